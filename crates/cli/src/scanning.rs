//! Scans of devices for tree blocks.
//!
//! Owns the parts of it that need no state of the run: [`open_devices`], [`scan`] and
//! [`explanations`].

use indicatif::{ProgressBar, ProgressStyle};
use papilio::device::{Access, Device, DeviceOptions, ImageOptions, PartitionChoice};
use papilio::{BlockScan, Rebuilt, ScanOptions, ScanProgress, SuperblockSource};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Opens `image` and the other devices for reading. `options` are those of `image`.
///
/// # Errors
/// A device that cannot be opened.
pub fn open_devices(
    image: &Path,
    options: &ImageOptions,
    others: &[PathBuf],
) -> anyhow::Result<Vec<Arc<dyn Device>>> {
    let further = ImageOptions { partition: PartitionChoice::Found, ..options.clone() };
    let others = others.iter().map(|path| (path.as_path(), &further));
    let mut devices = Vec::new();
    for (path, options) in std::iter::once((image, options)).chain(others) {
        devices.extend(DeviceOptions::new(Access::ReadOnly).open_members(path, options)?);
    }
    Ok(devices)
}

/// Returns the progress bar of a scan.
pub fn new_bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    let form = "{elapsed_precise} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} eta {eta} {msg}";
    if let Ok(style) = ProgressStyle::with_template(form) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

/// Scans the devices, and shows the progress on the bar.
///
/// # Errors
/// No tree block was found.
pub fn scan(devices: &[Arc<dyn Device>], bar: Option<ProgressBar>) -> papilio::Result<BlockScan> {
    let mut options = ScanOptions::new();
    if let Some(bar) = bar {
        options = options.progress(move |progress: ScanProgress| {
            bar.set_length(progress.total);
            bar.set_position(progress.done);
            bar.set_message(format!("{} blocks", progress.blocks));
            ControlFlow::Continue(())
        });
    }
    papilio::scan_devices(devices, &options)
}

/// Says what of the file system had to be rebuilt, one line each.
pub fn explanations(rebuilt: &Rebuilt) -> Vec<String> {
    let mut lines = Vec::new();
    match &rebuilt.superblock {
        SuperblockSource::Torn { copy, fault, .. } => {
            lines.push(format!("no superblock is good; using parts of copy {copy}: {fault}"));
        }
        SuperblockSource::Made => {
            lines.push("there is no superblock; using one made of what the tree blocks say".to_owned());
        }
        _ => {}
    }
    if let Some(sources) = &rebuilt.chunks {
        lines.push(format!(
            "the chunk tree cannot be read; using {} chunks by their items, {} by device extents, {} by \
             the places of tree blocks; {} block groups are lost",
            sources.items, sources.device_extents, sources.blocks, sources.lost
        ));
    }
    if let Some(root) = &rebuilt.root {
        let (address, generation, missing) = (root.address, root.generation, root.missing);
        let lacks = if root.is_whole() { String::new() } else { format!(", which lacks {missing} blocks") };
        lines.push(format!(
            "the root tree cannot be read; using that at {address} of generation {generation}{lacks}"
        ));
    }
    if let (Some(root), Some((choice, rivals))) = (&rebuilt.root, &rebuilt.rivals) {
        let others: Vec<String> = rivals.iter().map(ToString::to_string).collect();
        lines.push(format!(
            "there are {} root trees of generation {}: that at {} was taken, as {choice}, not that at {}",
            rivals.len() + 1,
            root.generation,
            root.address,
            others.join(", ")
        ));
    }
    lines
}
