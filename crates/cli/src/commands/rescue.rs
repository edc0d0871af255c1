//! `papilio rescue`: looks for what is left of a damaged file system, mends superblocks, and takes
//! repairs back. Owns the list of its subcommands.

use crate::commands::inspect::parse_tree;
use crate::commands::rescue_change::{self, Consent, Written, open, undo_of};
use crate::commands::{rescue_clone, rescue_find, rescue_full};
use crate::context::Context;
use crate::output::Output;
use anyhow::Context as _;
use papilio::format::TreeId;
use papilio::format::objectid::Objectid;
use papilio::{SuperblockChange, SuperblockSource};
use serde_json::json;
use std::path::PathBuf;

/// Search damaged file systems, repair superblocks, undo repairs
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    FindRoot(FindRoot),
    #[command(name = "find-filesystems")]
    FindFileSystems(rescue_find::Args),
    ChunkRecover(ChunkRecover),
    SuperRecover(SuperRecover),
    SelectSuper(SelectSuper),
    ZeroLog(ZeroLog),
    /// Create /dev/btrfs-control, by which programs reach the kernel's Btrfs, if udev does not
    CreateControlDevice,
    ClearSpaceCache(rescue_change::ClearSpaceCache),
    ClearUuidTree(rescue_change::ClearUuidTree),
    ClearInoCache(rescue_change::ClearInoCache),
    FixDeviceSize(rescue_change::FixDeviceSize),
    FixDataChecksum(rescue_change::FixDataChecksum),
    Clone(rescue_clone::Args),
    Full(rescue_full::Args),
    Undo(Undo),
}

/// Find the root trees that are left on the devices, the newest first
///
/// Scans the devices for tree blocks. Each line has an address that --tree-root takes, the
/// generation, the level, and how many blocks of the tree can be read. Nothing is written.
#[derive(Debug, clap::Args)]
struct FindRoot {
    /// The image or device
    #[arg(value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
    /// Show all; without it the list ends with the newest root whose tree is whole
    #[arg(short, long)]
    all: bool,
    /// Show only roots of this generation
    #[arg(short, long, value_name = "N")]
    generation: Option<u64>,
    /// Look for roots of this tree: a number, or a name such as fs or csum
    #[arg(short = 'o', long = "objectid", value_name = "TREE", value_parser = parse_tree, default_value = "root")]
    tree: TreeId,
    /// Show only roots of this level
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=7))]
    level: Option<u8>,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

/// Rebuild an unreadable chunk tree from a scan of the devices
///
/// The chunks come from chunk items, device extents and block groups, or the places of tree blocks.
/// The map is shown first. It is written only if it is complete and no bounds are guessed; with
/// --scan, commands that read can use any map.
#[derive(Debug, clap::Args)]
struct ChunkRecover {
    /// The image or device, and all others of its file system
    #[arg(required = true, value_hint = clap::ValueHint::FilePath)]
    image: Vec<PathBuf>,
    /// Write without asking
    #[arg(short, long)]
    yes: bool,
    /// The undo file to write; it must not exist [default: IMAGE.undo]
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    undo: Option<PathBuf>,
    /// Accepted for compatibility with btrfs rescue
    #[arg(short = 'H', hide = true)]
    old_help: bool,
}

/// Overwrite bad and outdated superblock copies from the newest good one
///
/// Each device's copies are made from its own. The old bytes go to the undo file first; papilio
/// rescue undo takes the change back.
#[derive(Debug, clap::Args)]
struct SuperRecover {
    #[command(flatten)]
    written: Written,
    /// Accepted for compatibility with btrfs rescue
    #[arg(short, long)]
    yes: bool,
}

/// Overwrite all superblock copies with one of them
#[derive(Debug, clap::Args)]
struct SelectSuper {
    #[command(flatten)]
    written: Written,
    /// The copy to use (0 at 64 KiB, 1 at 64 MiB, 2 at 256 GiB)
    #[arg(short = 's', long = "super", value_name = "N", value_parser = clap::value_parser!(u8).range(0..=2))]
    copy: u8,
}

/// Discard the log tree: changes that were fsynced since the last commit are lost
#[derive(Debug, clap::Args)]
struct ZeroLog {
    #[command(flatten)]
    written: Written,
}

/// Restore every byte that a repair changed
///
/// FILE is the undo file that `papilio check --repair` or a rescue command wrote. Its checksums are
/// verified first. An undo file of another image, or of one that was changed since, is refused, and
/// nothing is written.
#[derive(Debug, clap::Args)]
struct Undo {
    /// The undo file
    #[arg(value_hint = clap::ValueHint::FilePath)]
    file: PathBuf,
    /// The image or device, and all others of its file system
    #[arg(required = true, value_hint = clap::ValueHint::FilePath)]
    image: Vec<PathBuf>,
}

impl Args {
    /// Runs the subcommand.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        match self.command {
            Subcommand::FindRoot(command) => command.run(context),
            Subcommand::FindFileSystems(command) => command.run(context),
            Subcommand::ChunkRecover(command) => command.run(context),
            Subcommand::SuperRecover(command) => command.run(context),
            Subcommand::SelectSuper(command) => {
                let change = SuperblockChange::Select(command.copy.into());
                command.written.change(context, change).map(drop)
            }
            Subcommand::ZeroLog(command) => {
                command.written.change(context, SuperblockChange::ZeroLog).map(drop)
            }
            Subcommand::CreateControlDevice => create_control_device(),
            Subcommand::ClearSpaceCache(command) => command.run(context),
            Subcommand::ClearUuidTree(command) => command.run(context),
            Subcommand::ClearInoCache(command) => command.run(context),
            Subcommand::FixDeviceSize(command) => command.run(context),
            Subcommand::FixDataChecksum(command) => command.run(context),
            Subcommand::Clone(command) => command.run(context),
            Subcommand::Full(command) => command.run(context),
            Subcommand::Undo(command) => command.run(context),
        }
    }
}

impl FindRoot {
    fn run(self, context: &Context) -> anyhow::Result<()> {
        let devices = context.devices(&self.image)?;
        let scan = context.scan(&devices)?;
        let options = context.options_for(&self.image);
        let roots = papilio::find_tree_roots(&devices, &options, &scan, self.tree)?;
        let wanted = roots.iter().filter(|root| {
            self.generation.is_none_or(|generation| root.generation.0 == generation)
                && self.level.is_none_or(|level| root.level == level)
        });
        let filtered = self.all || self.generation.is_some() || self.level.is_some();
        let mut output = Output::new()?;
        let mut listed = Vec::new();
        for root in wanted {
            if self.json {
                listed.push(json!({
                    "tree": root.tree.0,
                    "address": root.address.0,
                    "generation": root.generation.0,
                    "level": root.level,
                    "blocks": root.blocks,
                    "missing": root.missing,
                    "whole": root.is_whole(),
                }));
            } else {
                let state = match root.is_whole() {
                    true => format!("whole, {} blocks", root.blocks),
                    false => format!("{} blocks, {} cannot be read", root.blocks, root.missing),
                };
                let (address, generation, level) = (root.address, root.generation, root.level);
                if listed.is_empty() && root.is_whole() && context.arguments().drop_in {
                    // The line that scripts for btrfs-find-root look for.
                    output.text(format_args!(
                        "Found tree root at {address} gen {generation} level {level}\n"
                    ))?;
                }
                output.text(format_args!("{address} generation {generation} level {level}: {state}\n"))?;
            }
            if root.is_whole() && !filtered {
                break;
            }
        }
        if self.json {
            output.text(format_args!("{:#}\n", serde_json::Value::from(listed)))?;
        }
        output.finish()?;
        if roots.is_empty() {
            let (image, tree) = (self.image.display(), Objectid(self.tree.0));
            anyhow::bail!("{image}: no root of tree {tree} was found among {} blocks", scan.blocks.len());
        }
        Ok(())
    }
}

impl ChunkRecover {
    fn run(self, context: &Context) -> anyhow::Result<()> {
        let _ = self.old_help;
        let devices = match &self.image[..] {
            [image] => context.devices(image)?,
            images => open(context, images)?,
        };
        let scan = context.scan(&devices)?;
        let rebuilt = papilio::rebuild(&devices, &context.options_for(&self.image[0]), &scan)?;
        let mut output = Output::new()?;
        for line in rebuilt.chunk_lines() {
            output.text(format_args!("{line}\n"))?;
        }
        let image = self.image[0].display();
        let good = matches!(rebuilt.superblock, SuperblockSource::Good { .. });
        match &rebuilt.chunks {
            None => output.text(format_args!("the chunk tree can be read: nothing to recover\n"))?,
            Some(sources) => {
                output.text(format_args!(
                    "{} chunks by their items, {} by device extents, {} by the places of tree blocks\n",
                    sources.items, sources.device_extents, sources.blocks
                ))?;
                if sources.lost > 0 {
                    context.error(format_args!("{image}: {} block groups are lost", sources.lost));
                }
                if good && sources.lost == 0 && sources.blocks == 0 {
                    drop(devices);
                    output.finish()?;
                    let consent = if self.yes { Consent::Given } else { Consent::Asked };
                    let change = papilio::RescueChange::WriteChunkTree;
                    return rescue_change::make(context, &self.image, self.undo.as_deref(), change, consent);
                }
                output
                    .text(format_args!("nothing was written: --scan reads the file system by this map\n"))?;
                context.error(format_args!("{image}: the chunk tree cannot be read"));
            }
        }
        if !good {
            context.error(format_args!("{image}: no superblock copy is good"));
        }
        Ok(output.finish()?)
    }
}

impl SuperRecover {
    /// Under the name `btrfs`, the exit code is 2 if copies were recovered, as there.
    fn run(self, context: &Context) -> anyhow::Result<()> {
        let recovered = self.written.change(context, SuperblockChange::Recover)?;
        if recovered && context.arguments().drop_in {
            context.set_code(2);
        }
        Ok(())
    }
}

impl Written {
    /// Makes a change of superblocks, if there is one to make. Returns whether it wrote anything.
    fn change(&self, context: &Context, change: SuperblockChange) -> anyhow::Result<bool> {
        let devices = open(context, &self.image)?;
        let plan = papilio::plan_superblocks(&devices, change)?;
        let mut output = Output::new()?;
        for copy in &plan.copies {
            output.text(format_args!("{copy}\n"))?;
        }
        if plan.bad.is_empty() {
            output.text(format_args!("nothing to write\n"))?;
            output.finish()?;
            return Ok(false);
        }
        let undo = self.undo.clone().unwrap_or_else(|| undo_of(context, &self.image[0]));
        papilio::write_superblocks(&devices, &plan, &undo)?;
        context.changed_devices.note(&self.image);
        let (count, undo) = (plan.bad.len(), undo.display());
        output.text(format_args!("{count} superblock copies written; {undo} takes them back\n"))?;
        output.finish()?;
        Ok(true)
    }
}

impl Undo {
    fn run(self, context: &Context) -> anyhow::Result<()> {
        let devices = open(context, &self.image)?;
        let bytes = papilio::undo_repair(&devices, &self.file)?;
        context.changed_devices.note(&self.image);
        let mut output = Output::new()?;
        output.text(format_args!("{bytes} bytes restored\n"))?;
        Ok(output.finish()?)
    }
}

/// Creates the device file of the kernel's control device (`BTRFS_MINOR` of miscdevice.h).
fn create_control_device() -> anyhow::Result<()> {
    use rustix::fs::{CWD, FileType, Mode};
    const PATH: &str = "/dev/btrfs-control";
    let mode = Mode::RUSR | Mode::WUSR;
    crate::host_calls::make_node(CWD, PATH.as_bytes(), FileType::CharacterDevice, mode, (10, 234))
        .with_context(|| format!("{PATH}: cannot create"))
}
