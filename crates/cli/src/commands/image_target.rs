//! What `papilio image restore` is told, and the files and devices that it writes.
//!
//! Owns [`RestoreArgs`], and the bar of progress of the commands on images.

use crate::context::Context;
use crate::units::parse_size;
use anyhow::bail;
use indicatif::{ProgressBar, ProgressStyle};
use papilio::{Error, ImageTargets};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Create a file system from an archive or a dump
///
/// Of an archive, the result is the file system that was archived, with its UUIDs, on as many
/// devices. A device may be larger, or smaller if the file system can be shrunk to it.
///
/// Of a dump, the result has the files' names and sizes. Reading their data fails, as it is not in
/// a dump, unless the dump was made with --data. By default it comes to lie on one device, whose
/// chunks have no profile then.
#[derive(Debug, clap::Args)]
pub(super) struct RestoreArgs {
    /// Restore to as many devices as the file system had, in the order of their ids
    #[arg(short, long, conflicts_with = "old")]
    pub(super) multi: bool,
    /// Leave the chunk tree as it is, and each block at its logical address: only btrfs-progs read
    /// the result
    #[arg(short, long)]
    pub(super) old: bool,
    /// Overwrite files that are not empty, and devices
    #[arg(short, long)]
    pub(super) force: bool,
    /// An archive that ARCHIVE is based on, if it is not beside it
    #[arg(long, value_name = "ARCHIVE", value_hint = clap::ValueHint::FilePath)]
    pub(super) parent: Vec<PathBuf>,
    /// Make image files of this size, smaller or larger than the archived device; once for each
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with_all = ["multi", "old"])]
    pub(super) size: Vec<u64>,
    /// The archive or the dump; - is standard input
    #[arg(value_name = "ARCHIVE", value_hint = clap::ValueHint::FilePath)]
    pub(super) dump: PathBuf,
    /// The image or device to write
    #[arg(value_name = "IMAGE", required = true, value_hint = clap::ValueHint::FilePath)]
    pub(super) images: Vec<PathBuf>,
}

/// Adds a device, or a file of the given size, which is made or emptied first.
pub(super) fn add_target(
    targets: &mut ImageTargets,
    path: &Path,
    size: u64,
    force: bool,
) -> anyhow::Result<()> {
    match targets.add(path, size, force) {
        Err(Error::Host { path, source }) if source.kind() == ErrorKind::AlreadyExists => {
            bail!("{}: exists; use --force to overwrite it", path.display())
        }
        added => added.map_err(crate::holder::explain),
    }
}

/// Returns a bar of progress, on a terminal.
pub(super) fn bar(context: &Context) -> Option<ProgressBar> {
    let bar = context.is_interactive().then(|| {
        let style = ProgressStyle::with_template("{bar:30} {percent} %, {eta} left");
        ProgressBar::new(0).with_style(style.expect("the template is valid"))
    });
    context.set_progress(bar.clone());
    bar
}

pub(super) fn advance(bar: Option<&ProgressBar>, done: u64, all: u64) {
    if let Some(bar) = bar {
        bar.set_length(all);
        bar.set_position(done);
    }
}

pub(super) fn finish(context: &Context, bar: Option<ProgressBar>) {
    context.set_progress(None);
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
}
