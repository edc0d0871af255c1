//! Reading a file system that its superblock does not lead to: the public functions of
//! [`papilio_progs::salvage`].
//!
//! Owns [`scan_devices`], [`rebuild`], [`find_tree_roots`], [`find_deleted`],
//! [`find_deleted_subvolumes`], [`plan_superblocks`] and [`write_superblocks`].

use crate::repair::{start_log, undo_identity};
use papilio_device::Device;
use papilio_engine::errors::{Error, Result};
use papilio_engine::mount;
use papilio_engine::options::OpenOptions;
use papilio_format::TreeId;
use papilio_progs::salvage::block_scan::{self, BlockScan, ScanOptions};
use papilio_progs::salvage::deleted::{self, DeletedFile};
use papilio_progs::salvage::deleted_subvolumes::{self, DeletedSubvolume};
use papilio_progs::salvage::rebuild::{self as rebuilding, Rebuilt, rebuilt_volume};
use papilio_progs::salvage::super_recover::{self, SuperRecovery, SuperblockChange};
use papilio_progs::salvage::tree_roots::{self, FoundRoot};
use std::path::Path;
use std::sync::Arc;

/// Scans whole devices for the tree blocks of a file system. Nothing is written.
///
/// # Errors
/// [`Error::Invalid`] if there is no tree block with a good checksum.
pub fn scan_devices(devices: &[Arc<dyn Device>], options: &ScanOptions) -> Result<BlockScan> {
    block_scan::scan(devices, options).ok_or_else(|| {
        let names: Vec<&str> = devices.iter().map(|device| device.name()).collect();
        Error::Invalid(format!("{}: no tree block of Btrfs was found", names.join(", ")))
    })
}

/// Rebuilds the file system of a scan in memory, as far as its superblock, chunk tree and root tree
/// cannot be read. [`Rebuilt::options`] open it for reading.
///
/// # Errors
/// No chunk can be made of what was found.
pub fn rebuild(devices: &[Arc<dyn Device>], options: &OpenOptions, scan: &BlockScan) -> Result<Rebuilt> {
    rebuilding::rebuild(devices, options, scan)
}

/// Returns the blocks that may be roots of a tree, the newest first, and how much of each tree can
/// be read. For the root tree, these are the states of the file system that may be left.
///
/// # Errors
/// As [`rebuild`].
pub fn find_tree_roots(
    devices: &[Arc<dyn Device>],
    options: &OpenOptions,
    scan: &BlockScan,
    tree: TreeId,
) -> Result<Vec<FoundRoot>> {
    let rebuilt = rebuild(devices, options, scan)?;
    Ok(tree_roots::find_roots(&rebuilt_volume(devices, &rebuilt)?, scan, tree))
}

/// Lists the files that the current trees do not have, and older root trees that a scan found still
/// have, by path. Open the file system with the root tree of a file
/// ([`OpenOptions::tree_root`]) to read it.
///
/// # Errors
/// As [`rebuild`].
pub fn find_deleted(
    devices: &[Arc<dyn Device>],
    options: &OpenOptions,
    scan: &BlockScan,
) -> Result<Vec<DeletedFile>> {
    let mut rebuilt = rebuild(devices, options, scan)?;
    // Files that the log of fsyncs has removed are deleted, too.
    let (devices, replayed) = mount::replayed(devices, rebuilt.options())?;
    rebuilt.set_options(replayed);
    Ok(deleted::find_deleted(&rebuilt_volume(&devices, &rebuilt)?, scan, &rebuilt))
}

/// Returns options that open what a scan finds, if the options want one.
///
/// # Errors
/// As [`scan_devices`] and [`rebuild`].
pub(super) fn scanned(devices: &[Arc<dyn Device>], options: &OpenOptions) -> Result<OpenOptions> {
    if !options.rescue.scan || options.rescue.found.is_some() {
        return Ok(options.clone());
    }
    if options.write {
        let cause = "a file system found by scanning can only be read".to_owned();
        return Err(Error::ReadOnlyFileSystem { cause });
    }
    let scan = scan_devices(devices, &ScanOptions::new())?;
    Ok(rebuild(devices, options, &scan)?.options().clone())
}

/// Lists the subvolumes that were deleted, and that older root trees which a scan found still have,
/// by id. [`RescueChange::Undelete`](papilio_progs::repair::change::RescueChange::Undelete) brings
/// one back.
///
/// # Errors
/// As [`rebuild`].
pub fn find_deleted_subvolumes(
    devices: &[Arc<dyn Device>],
    options: &OpenOptions,
    scan: &BlockScan,
) -> Result<Vec<DeletedSubvolume>> {
    let rebuilt = rebuild(devices, options, scan)?;
    let volume = rebuilt_volume(devices, &rebuilt)?;
    Ok(deleted_subvolumes::find_deleted_subvolumes(&volume, scan, &rebuilt))
}

/// Plans a change of the superblock copies on the devices. Nothing is written.
///
/// # Errors
/// A device without a good copy, or without the one that is to be used.
pub fn plan_superblocks(devices: &[Arc<dyn Device>], change: SuperblockChange) -> Result<SuperRecovery> {
    super_recover::plan(devices, change)
}

/// Writes the planned superblock copies. The old bytes go to the new file `undo` first.
///
/// # Errors
/// The undo file cannot be written: nothing was written to the devices. Failures of a device.
pub fn write_superblocks(devices: &[Arc<dyn Device>], plan: &SuperRecovery, undo: &Path) -> Result<()> {
    let host = |error: std::io::Error| Error::Invalid(format!("{}: the undo file: {error}", undo.display()));
    let Some(identity) = undo_identity(devices, plan.sources()) else { return Ok(()) };
    let (log, recorded) = start_log(devices, undo, identity)?;
    plan.write(&recorded)?;
    log.complete().map_err(host)
}
