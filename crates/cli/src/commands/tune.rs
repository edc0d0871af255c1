//! `papilio tune`: changes UUIDs, checksums, features and the seed flag of a file system that
//! nothing has mounted.
//!
//! Owns its options, which are those of btrfstune(8).

use crate::context::Context;
use crate::output::Output;
use crate::usage_error::UsageError;
use indicatif::{ProgressBar, ProgressStyle};
use papilio::format::ChecksumType;
use papilio::{Tune, Uuid};
use std::io::IsTerminal;
use std::path::PathBuf;

/// Change properties of a file system
///
/// The file system must not be mounted, and all of its devices must be given. A change of the UUID
/// or of the checksums that was cut short leaves a file system that cannot be mounted; the same
/// option, given again, completes it. The conversions are atomic.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "papilio tune [OPTIONS] <CHANGE> <IMAGE>...",
    group = clap::ArgGroup::new("change").required(true).multiple(false)
)]
pub struct Args {
    /// Change the UUID to a random one, in every tree block; or finish an interrupted change
    #[arg(short = 'u', group = "change")]
    random_uuid: bool,
    /// Change the UUID to this one, in every tree block
    #[arg(short = 'U', value_name = "UUID", group = "change")]
    uuid: Option<Uuid>,
    /// Change the UUID to a random one; tree blocks keep theirs, as the metadata UUID; or finish an
    /// interrupted change
    #[arg(short = 'm', group = "change")]
    random_metadata_uuid: bool,
    /// Change the UUID to this one; tree blocks keep theirs, as the metadata UUID
    #[arg(short = 'M', value_name = "UUID", group = "change")]
    metadata_uuid: Option<Uuid>,
    /// Set (1) or clear (0) the seed flag; to clear it needs --force
    #[arg(short = 'S', value_name = "0|1", group = "change", value_parser = clap::value_parser!(u8).range(0..=1))]
    seed: Option<u8>,
    /// Enable extended inode references
    #[arg(short = 'r', group = "change")]
    extended_refs: bool,
    /// Enable skinny extent items of tree blocks
    #[arg(short = 'x', group = "change")]
    skinny_metadata: bool,
    /// Enable holes without file extent items
    #[arg(short = 'n', group = "change")]
    no_holes: bool,
    /// Change the checksum algorithm: crc32c, xxhash, sha256 or blake2; or finish an interrupted
    /// change
    #[arg(long, value_name = "TYPE", group = "change", value_parser = super::mkfs::parse_checksum)]
    csum: Option<ChecksumType>,
    /// Move the block groups to a tree of their own, for quicker mounts; needs kernel 6.1
    #[arg(long, group = "change")]
    convert_to_block_group_tree: bool,
    /// Move the block groups back to the extent tree
    #[arg(long, group = "change")]
    convert_from_block_group_tree: bool,
    /// Replace the v1 free-space caches by the free-space tree
    #[arg(long, group = "change")]
    convert_to_free_space_tree: bool,
    /// Remove the free-space tree
    #[arg(long, group = "change")]
    convert_from_free_space_tree: bool,
    /// Turn simple quotas on, with a qgroup for each subvolume; needs kernel 6.7
    #[arg(long, group = "change")]
    enable_simple_quota: bool,
    /// Turn simple quotas off, and remove what they left in the extent tree, so that older kernels
    /// mount the file system
    #[arg(long, group = "change")]
    remove_simple_quota: bool,
    /// Allow clearing the seed flag, which makes file systems built on the seed unreadable; under
    /// the name btrfstune, ask nothing
    #[arg(short, long)]
    force: bool,
    /// The image or device, and all others of its file system
    #[arg(required = true, value_hint = clap::ValueHint::FilePath)]
    image: Vec<PathBuf>,
}

impl Args {
    /// Runs the command.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let change = self.change(context)?;
        let named: Vec<_> = self.image.iter().chain(&context.arguments().device).cloned().collect();
        let images = crate::devices::with_siblings(&named);
        let devices = super::rescue_change::open(context, &images)?;
        let current = papilio::FoundDevice::read(&images[0])?.map(|found| found.fsid);
        self.ask(context, change)?;
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template(match change {
                Tune::Checksum(_) => "{bar:30} {bytes} of {total_bytes}, {eta} left",
                _ => "{bar:30} {pos} of {len} tree blocks, {eta} left",
            });
            ProgressBar::new(0).with_style(style.expect("the template is valid"))
        });
        context.set_progress(bar.clone());
        let tuned = papilio::tune(&devices, change, &mut |done, total| {
            if let Some(bar) = &bar {
                bar.set_length(total);
                bar.set_position(done);
            }
        });
        context.set_progress(None);
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
        let named = |error| crate::context::of_image(&images[0], error);
        context.changed_devices.note(&images);
        let tuned = tuned.map_err(named)?;
        let mut output = Output::new()?;
        if tuned.resumed {
            output.text(format_args!("finished an interrupted change\n"))?;
        }
        if let (Some(current), Tune::Uuid(_) | Tune::MetadataUuid(_)) = (current, change) {
            output.text(format_args!("Current fsid: {current}\nNew fsid: {}\n", tuned.fsid))?;
        }
        match change {
            Tune::Uuid(_) => {
                output.text(format_args!("UUID {}, {} tree blocks rewritten\n", tuned.fsid, tuned.blocks))?;
            }
            Tune::Checksum(algorithm) => {
                let (name, blocks) = (algorithm.name(), tuned.blocks);
                output.text(format_args!("{name} checksums, {blocks} tree blocks rewritten\n"))?;
            }
            Tune::MetadataUuid(_) => output.text(format_args!("UUID {}\n", tuned.fsid))?,
            _ => {}
        }
        output.finish()?;
        Ok(())
    }

    /// Asks before a change that btrfstune(8) asks about, under that name.
    fn ask(&self, context: &Context, change: Tune) -> anyhow::Result<()> {
        let risk = match change {
            Tune::Uuid(_) => "a change of the UUID rewrites all tree blocks; check the file system first",
            Tune::Seed(false) => "file systems that build on this seed become unreadable",
            _ => return Ok(()),
        };
        if self.force || !context.arguments().drop_in {
            return Ok(());
        }
        context.warning(risk);
        match super::rescue_change::confirmed("Go on?", false)? {
            true => Ok(()),
            false => anyhow::bail!("{}: nothing was written", self.image[0].display()),
        }
    }

    /// Returns the one change that was chosen.
    fn change(&self, context: &Context) -> anyhow::Result<Tune> {
        Ok(match self.seed {
            Some(0) if !self.force && !context.arguments().drop_in => {
                return Err(UsageError::new(
                    "-S 0 makes file systems that build on the seed unreadable: add --force",
                )
                .into());
            }
            Some(seed) => Tune::Seed(seed == 1),
            None if self.random_uuid || self.uuid.is_some() => Tune::Uuid(self.uuid),
            None if self.extended_refs => Tune::ExtendedRefs,
            None if self.skinny_metadata => Tune::SkinnyMetadata,
            None if self.no_holes => Tune::NoHoles,
            None if self.convert_to_block_group_tree => Tune::BlockGroupTree(true),
            None if self.convert_from_block_group_tree => Tune::BlockGroupTree(false),
            None if self.convert_to_free_space_tree => Tune::FreeSpaceTree(true),
            None if self.convert_from_free_space_tree => Tune::FreeSpaceTree(false),
            None if self.enable_simple_quota => Tune::SimpleQuotas(true),
            None if self.remove_simple_quota => Tune::SimpleQuotas(false),
            None if self.csum.is_some() => Tune::Checksum(self.csum.expect("checked just before")),
            None => Tune::MetadataUuid(self.metadata_uuid),
        })
    }
}
