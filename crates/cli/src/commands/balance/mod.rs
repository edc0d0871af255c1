//! `papilio balance`: writes block groups anew.
//!
//! Owns the command's arguments and its start; [`filters`] parses the filters, [`control`] has the
//! other subcommands.

mod control;
mod filters;
mod room;

pub use control::print_done;

use crate::context::{Context, of_image};
use crate::jobs;
use crate::kernel_jobs;
use crate::mounted::Target;
use crate::moving::MovingBar;
use crate::usage_error::UsageError;
use papilio::format::items::block_group::BlockGroupFlags;
use papilio::{BalanceFilter, BalanceOptions};
use papilio_ioctl::job::JobKind;
use std::path::PathBuf;

/// Rewrite block groups: spread them over the devices, convert them, or free nearly empty ones
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    Start(Start),
    Pause(control::Pause),
    Cancel(control::Cancel),
    Resume(control::Resume),
    Status(control::Status),
}

/// Balance an image, a device or a mount
///
/// Without -d, -m and -s, all block groups are moved. Interrupting the command loses nothing. The
/// balance of an image is then paused, and that of a mount goes on in its server. FILTERS is a
/// comma-separated list:
///
/// usage=PERCENT|MIN..MAX, profiles=PROFILE[|PROFILE...], devid=ID, drange=START..END,
/// vrange=START..END, stripes=MIN..MAX, limit=NUMBER|MIN..MAX, convert=PROFILE, soft
#[derive(Debug, clap::Args)]
struct Start {
    /// Only data block groups that pass the filters; -dFILTERS is accepted, too
    #[arg(long, value_name = "FILTERS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    data: Option<String>,
    /// Only metadata and system block groups that pass the filters; -mFILTERS
    #[arg(long, value_name = "FILTERS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    metadata: Option<String>,
    /// Only system block groups that pass the filters; needs -f; -sFILTERS
    #[arg(long, value_name = "FILTERS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    system: Option<String>,
    /// Allow system filters, and a conversion that tolerates fewer lost devices
    #[arg(short, long)]
    force: bool,
    /// Accepted: without filters, all block groups are moved anyway
    #[arg(long)]
    full_balance: bool,
    /// Return at once; a mount goes on in the background
    #[arg(long, visible_alias = "bg")]
    background: bool,
    /// Wait while the server of a mount does other work
    #[arg(long)]
    enqueue: bool,
    /// The image or device, or a directory in a mount
    #[arg(value_name = "IMAGE|PATH", value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
}

/// The warning about RAID5 and RAID6 under the names of btrfs-progs.
pub const PARITY: &str = "RAID5 and RAID6: a crash of the kernel's Btrfs while it writes, followed by the loss of \
                          a device, can lose data (the write hole)";

fn converts_to(filter: Option<&BalanceFilter>, profiles: BlockGroupFlags) -> bool {
    filter.and_then(|filter| filter.convert).is_some_and(|profile| profiles.intersects(profile))
}

impl Args {
    /// Runs the subcommand.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        match self.command {
            Subcommand::Start(start) => start.run(context),
            Subcommand::Pause(pause) => pause.run(context),
            Subcommand::Cancel(cancel) => cancel.run(context),
            Subcommand::Resume(resume) => resume.run(context),
            Subcommand::Status(status) => status.run(context),
        }
    }
}

impl Start {
    fn options(&self) -> Result<BalanceOptions, UsageError> {
        let parse = |name: &str, text: &Option<String>| {
            let parsed = text.as_deref().map(filters::parse).transpose();
            parsed.map_err(|error| UsageError::new(format_args!("--{name}: {error}")))
        };
        let mut options = BalanceOptions {
            data: parse("data", &self.data)?,
            metadata: parse("metadata", &self.metadata)?,
            system: parse("system", &self.system)?,
            force: self.force,
        };
        if options.system.is_some() && !self.force {
            return Err(UsageError::new("--system: needs --force"));
        }
        if options.data.is_none() && options.metadata.is_none() && options.system.is_none() {
            let all = || Some(papilio::BalanceFilter::default());
            (options.data, options.metadata, options.system) = (all(), all(), all());
        } else if options.system.is_none() {
            options.system.clone_from(&options.metadata);
        }
        Ok(options)
    }

    fn run(&self, context: &Context) -> anyhow::Result<()> {
        let options = self.options()?;
        let is_filtered = self.data.is_some() || self.metadata.is_some() || self.system.is_some();
        if context.arguments().drop_in && !is_filtered && !self.full_balance {
            context.count_down(format_args!(
                "Full balance without filters requested. It moves everything and can take very long; \
                 --full-balance starts it at once"
            ));
        }
        let filters = [&options.data, &options.metadata, &options.system];
        let parity = BlockGroupFlags::RAID5 | BlockGroupFlags::RAID6;
        if context.arguments().drop_in && filters.iter().any(|filter| converts_to(filter.as_ref(), parity)) {
            context.warning(PARITY);
        }
        let report = match Target::parse(self.image.as_os_str())? {
            Target::Mounted(mounted) if !mounted.mount.is_papilio() => {
                let done =
                    kernel_jobs::balance(context, &mounted, Some(&options), self.enqueue, self.background);
                let usage = || mounted.open()?.usage().map_err(|error| mounted.at(&error));
                let done = done.map_err(|error| room::explain(error, &options, usage()))?;
                let Some(report) = done else { return Ok(()) };
                report
            }
            Target::Mounted(mounted) => {
                let mount = jobs::open(&mounted)?;
                jobs::start(&mounted, &mount, JobKind::Balance, self.enqueue, || {
                    mount.start_balance(Some(&options))
                })?;
                if self.background {
                    return Ok(());
                }
                let followed = jobs::follow_moves(context, &mounted, &mount);
                let usage = || mount.usage().map_err(|error| mounted.at(&error));
                followed.map_err(|error| room::explain(error, &options, usage()))?.moved
            }
            Target::Image(path) => {
                let fs = context.change(&path.image)?;
                let bar = MovingBar::new(context);
                let balanced = fs.balance(&options, |report| bar.show(report));
                drop(bar);
                let usage = || Ok(fs.usage()?);
                balanced.map_err(|error| room::explain(of_image(&path.image, error), &options, usage()))?
            }
        };
        print_done(context, &report)
    }
}
