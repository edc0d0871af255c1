//! Content with fewer copies than the rest of its kind, as degraded writing leaves it.
//!
//! Owns [`warn_of_lesser_profiles`], and [`RedundancyArgs`] of commands that end a degraded state:
//! they convert such chunks back, by a balance.
//!
//! **Invariant**: the caller's work is done. A question about copies that fails is only a warning.

use crate::commands::balance::print_done;
use crate::commands::rescue_change::confirmed;
use crate::context::Context;
use crate::jobs;
use crate::kernel_jobs;
use crate::mounted::Mounted;
use crate::moving::MovingBar;
use crate::units::Units;
use anyhow::Context as _;
use papilio::format::items::block_group::BlockGroupFlags;
use papilio::format::items::chunk::RaidProfile;
use papilio::{BalanceFilter, BalanceOptions, FileSystem, LesserProfile, Usage};
use papilio_ioctl::job::JobKind;
use std::io::IsTerminal;
use std::path::Path;

/// Whether a command gives chunks with fewer copies the profile of the rest.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct RedundancyArgs {
    /// Convert chunks with fewer copies, which degraded writing leaves, to the profile of the rest.
    /// On a terminal, the command asks
    #[arg(long, overrides_with = "no_restore_redundancy")]
    restore_redundancy: bool,
    /// Only name the balance that would convert them
    #[arg(long)]
    no_restore_redundancy: bool,
}

/// An open file system.
pub enum OpenedAs<'p> {
    /// On devices that are open for writing.
    Image(&'p FileSystem),
    /// In a mount.
    Mounted(&'p Mounted),
}

/// The balance that gives chunks with fewer copies the profile of the rest.
struct Conversion {
    lessers: Vec<LesserProfile>,
    data: Option<RaidProfile>,
    metadata: Option<RaidProfile>,
}

impl Conversion {
    /// Returns `None` if no chunk with content has fewer copies than the rest of its kind.
    fn of(usage: &Usage) -> Option<Self> {
        let lessers = usage.lesser_profiles();
        let best = |flag: BlockGroupFlags| {
            lessers.iter().find(|lesser| lesser.kind.contains(flag)).map(|lesser| lesser.best)
        };
        let data = best(BlockGroupFlags::DATA);
        // A balance of metadata takes the system chunks along.
        let metadata = best(BlockGroupFlags::METADATA).or_else(|| best(BlockGroupFlags::SYSTEM));
        (data.is_some() || metadata.is_some()).then_some(Self { lessers, data, metadata })
    }

    /// Returns the command that makes the conversion.
    fn command(&self, shown: &Path) -> String {
        let argument = |letter: char, profile: Option<RaidProfile>| {
            profile.map(|profile| format!("-{letter}convert={},soft ", profile.name().to_lowercase()))
        };
        let arguments = [argument('d', self.data), argument('m', self.metadata)];
        let arguments: String = arguments.into_iter().flatten().collect();
        format!("balance start {arguments}{}", shown.display())
    }

    /// Names the chunks, and the command.
    fn warn(&self, context: &Context, shown: &Path) {
        let command = self.command(shown);
        let shown = shown.display();
        for lesser in &self.lessers {
            context.warning(format_args!(
                "{shown}: {} of {} are {} beside {}, with fewer copies; make them alike with: {command}",
                Units::HUMAN.text(lesser.used),
                kind_name(lesser.kind),
                lesser.profile.name().to_lowercase(),
                lesser.best.name().to_lowercase(),
            ));
        }
    }

    fn options(&self) -> BalanceOptions {
        let filter = |profile: Option<RaidProfile>| {
            let profile = profile?.flags();
            Some(BalanceFilter { convert: Some(profile), soft: true, ..BalanceFilter::default() })
        };
        let metadata = filter(self.metadata);
        BalanceOptions { data: filter(self.data), system: metadata.clone(), metadata, force: false }
    }

    /// Whether the devices that are present can hold the profiles.
    fn is_possible(&self, usage: &Usage) -> bool {
        [self.data, self.metadata].into_iter().flatten().all(|profile| usage.has_devices_for(profile))
    }
}

fn kind_name(kind: BlockGroupFlags) -> &'static str {
    let mixed = BlockGroupFlags::DATA | BlockGroupFlags::METADATA;
    match kind & BlockGroupFlags::TYPE_MASK {
        kind if kind == mixed => "data and metadata",
        BlockGroupFlags::DATA => "data",
        BlockGroupFlags::METADATA => "metadata",
        _ => "the chunk tree",
    }
}

/// Warns of content that survives fewer failed devices than the rest of its kind, and names the
/// balance that ends that. `shown` is the file system as the user named it. Under the names of
/// btrfs-progs, whose output scripts compare, only a terminal or `-v` gets the warning.
pub fn warn_of_lesser_profiles(context: &Context, shown: &Path, usage: &Usage) {
    if context.arguments().drop_in && context.verbosity <= 0 && !std::io::stderr().is_terminal() {
        return;
    }
    if let Some(conversion) = Conversion::of(usage) {
        conversion.warn(context, shown);
    }
}

impl OpenedAs<'_> {
    fn usage(&self) -> anyhow::Result<Usage> {
        match self {
            Self::Image(fs) => Ok(fs.usage()?),
            Self::Mounted(mounted) => mounted.open()?.usage().map_err(|error| mounted.at(&error)),
        }
    }

    /// Runs a balance to its end.
    fn balance(&self, context: &Context, options: &BalanceOptions) -> anyhow::Result<()> {
        let report = match self {
            Self::Image(fs) => {
                let bar = MovingBar::new(context);
                fs.balance(options, |report| bar.show(report))?
            }
            Self::Mounted(mounted) if !mounted.mount.is_papilio() => {
                match kernel_jobs::balance(context, mounted, Some(options), false, false)? {
                    Some(report) => report,
                    None => return Ok(()),
                }
            }
            Self::Mounted(mounted) => {
                let mount = jobs::open(mounted)?;
                jobs::start(mounted, &mount, JobKind::Balance, false, || mount.start_balance(Some(options)))?;
                jobs::follow_moves(context, mounted, &mount)?.moved
            }
        };
        print_done(context, &report)
    }
}

impl RedundancyArgs {
    /// Converts chunks with fewer copies, if the user wants that. Otherwise warns of them.
    ///
    /// # Errors
    /// The user wants it, and the balance fails.
    pub fn apply(self, context: &Context, shown: &Path, place: &OpenedAs<'_>) -> anyhow::Result<()> {
        let usage = match place.usage() {
            Ok(usage) => usage,
            Err(error) => {
                context.warning(format_args!(
                    "{}: cannot tell whether chunks have fewer copies: {error:#}",
                    shown.display()
                ));
                return Ok(());
            }
        };
        let Some(conversion) = Conversion::of(&usage) else { return Ok(()) };
        if !self.is_wanted(context, shown, &conversion, &usage)? {
            return Ok(());
        }
        place.balance(context, &conversion.options()).with_context(|| {
            format!("chunks keep fewer copies; try again with: {}", conversion.command(shown))
        })?;
        if let Ok(usage) = place.usage() {
            warn_of_lesser_profiles(context, shown, &usage);
        }
        Ok(())
    }

    /// Returns whether to convert; asks on a terminal. Names the chunks, unless the user decided.
    fn is_wanted(
        self,
        context: &Context,
        shown: &Path,
        conversion: &Conversion,
        usage: &Usage,
    ) -> anyhow::Result<bool> {
        if self.restore_redundancy {
            return Ok(true);
        }
        conversion.warn(context, shown);
        let asks = !self.no_restore_redundancy
            && !context.arguments().drop_in
            && conversion.is_possible(usage)
            && std::io::stdin().is_terminal()
            && context.is_interactive();
        if !asks {
            return Ok(false);
        }
        confirmed("Convert them now?", true)
    }
}
