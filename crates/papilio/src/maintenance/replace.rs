//! Replacing a device of a file system that nothing else uses meanwhile.
//!
//! Owns [`ReplaceOptions`], [`ReplaceReport`], [`replace`] and [`cancel`].
//!
//! The steps:
//! 1. The target gets superblocks with devid 0, and the device tree an item that says so. A commit
//!    makes that durable.
//! 2. All that the chunks have on the source is copied to the same places of the target, from the
//!    source or rebuilt. Nothing is committed meanwhile.
//! 3. The target takes the source's place: devid, UUID, and with the next commit its superblocks.
//! 4. The source's superblocks are erased.
//!
//! **Invariants**
//! - A crash before step 3 leaves the source in its place. The replacement is then resumed, by the
//!   kernel or here, or cancelled; this file begins the copy at the item's cursor.
//! - The item and the superblocks are the kernel's, so that each resumes what the other left.
//!
//! **Locks**: those of a commit and of rows.
//!
//! Kernel counterparts: `btrfs_dev_replace_start`, `btrfs_dev_replace_finishing`
//! (`fs/btrfs/dev-replace.c`), `btrfs_scratch_superblocks` (`fs/btrfs/volumes.c`).

use crate::errors::{Error, Result};
use crate::file::fs_info::FsInfo;
use crate::maintenance::mkfs::find_signature;
use crate::maintenance::scrub::copy::CopyOf;
use papilio_device::Device;
use papilio_format::items::dev_replace::{DevReplaceItem, DevReplaceState};
use papilio_format::items::device::DeviceItem;
use papilio_format::superblock::{RawSuperblock, SUPERBLOCK_MIRRORS, SUPERBLOCK_SIZE, superblock_offset};
use papilio_format::{DeviceId, ItemType, Key, Superblock, Uuid, objectid};
use std::sync::Arc;

/// The devid of a target until it takes the source's place (`BTRFS_DEV_REPLACE_DEVID`).
const TARGET: DeviceId = DeviceId(0);
/// The cursor of a replacement that is complete.
const END: u64 = u64::MAX;

/// How a device is replaced.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplaceOptions {
    /// The source is read only where no other copy is good.
    pub avoid_source: bool,
    /// A target with a file system or another known content is overwritten.
    pub force: bool,
}

/// How far a replacement is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplaceReport {
    /// The device that is replaced.
    pub source: DeviceId,
    /// The state on disk.
    pub state: DevReplaceState,
    /// Bytes of the source's chunks that are done, including free space in them.
    pub bytes_done: u64,
    /// Bytes of the source's chunks.
    pub bytes_total: u64,
    /// Sectors that could not be written to the target.
    pub write_errors: u64,
    /// Sectors without any readable copy.
    pub uncorrectable_read_errors: u64,
    /// Seconds since 1970.
    pub started: u64,
    /// Seconds since 1970; 0 while the replacement is not complete.
    pub stopped: u64,
}

fn key() -> Key {
    Key::new(objectid::DEV_REPLACE, ItemType::DEV_REPLACE, 0)
}

/// Returns the item of the last replacement, if there was one.
///
/// # Errors
/// The device tree cannot be read.
pub(crate) fn item(info: &FsInfo) -> Result<Option<DevReplaceItem>> {
    let open = info.trees.get(objectid::DEV_TREE, "the device tree")?;
    let Some(item) = open.tree.get(&key())? else { return Ok(None) };
    let fault = |reason| Error::Item { tree: objectid::DEV_TREE, key: key(), reason };
    let parsed = DevReplaceItem::parse(item.data()).map_err(fault)?;
    parsed.state().map_err(fault)?;
    Ok(Some(parsed))
}

/// Returns the report of an item on disk.
pub(crate) fn report_of(item: &DevReplaceItem) -> ReplaceReport {
    ReplaceReport {
        source: item.source,
        state: item.state().unwrap_or(DevReplaceState::NeverStarted),
        bytes_done: 0,
        bytes_total: 0,
        write_errors: item.write_errors,
        uncorrectable_read_errors: item.uncorrectable_read_errors,
        started: item.time_started,
        stopped: item.time_stopped,
    }
}

/// Replaces `source` by `target`, or resumes that. Calls `progress` now and then; where it returns
/// false, the replacement stops and can be resumed.
///
/// # Errors
/// A target that is too small, in use by the file system, or occupied; another replacement that is
/// under way; a write to the target that fails; as [`FsInfo::commit`].
pub(crate) fn replace(
    info: &FsInfo,
    source: DeviceId,
    target: &Arc<dyn Device>,
    options: ReplaceOptions,
    progress: &mut dyn FnMut(&ReplaceReport) -> bool,
) -> Result<ReplaceReport> {
    let devices = info.volume().devices();
    let slot = devices.iter().find(|slot| slot.in_chunk_tree && slot.devid() == source);
    let slot =
        slot.ok_or_else(|| Error::Invalid(format!("device {source} is not part of the file system")))?;
    let (device, need) = (slot.device.clone(), slot.item.total_bytes);
    if target.size() < need {
        return Err(Error::Truncated { device: target.name().to_owned(), need, have: target.size() });
    }
    let mut item = begin(info, slot.item, target, options)?;
    let mut report = report_of(&item);
    let avoided = options.avoid_source || device.is_none();
    let mut copy = CopyOf::new(info, source, item.cursor_left, avoided);
    (report.bytes_done, report.bytes_total) = copy.progress();
    while copy.next(&**target)? {
        (report.bytes_done, report.bytes_total) = copy.progress();
        report.uncorrectable_read_errors = item.uncorrectable_read_errors + copy.unknown;
        if copy.failed > 0 {
            return Err(Error::Invalid(format!(
                "{}: {} sectors could not be written; cancel the replacement",
                target.name(),
                copy.failed
            )));
        }
        if !progress(&report) {
            return Ok(report);
        }
    }
    info.volume().replace_device(source, Arc::clone(target));
    info.volume().devices().counters().reset(source);
    item.state = DevReplaceState::Finished as u64;
    (item.cursor_left, item.cursor_right) = (END, END);
    item.uncorrectable_read_errors = report.uncorrectable_read_errors;
    item.time_stopped = now(info);
    put(info, &item)?;
    info.commit()?;
    if let Some(device) = device {
        erase_superblocks(&*device)?;
    }
    Ok(ReplaceReport { bytes_done: report.bytes_total, bytes_total: report.bytes_total, ..report_of(&item) })
}

/// Starts a replacement on disk, or finds the one that is under way.
fn begin(
    info: &FsInfo,
    source: DeviceItem,
    target: &Arc<dyn Device>,
    options: ReplaceOptions,
) -> Result<DevReplaceItem> {
    if let Some(mut item) = item(info)?.filter(DevReplaceItem::is_under_way) {
        if item.source != source.devid {
            return Err(Error::Invalid(format!(
                "the replacement of device {} is under way: finish or cancel it first",
                item.source
            )));
        }
        if !is_target(info, &**target) {
            return Err(Error::Invalid(format!(
                "{}: not the target of the replacement that is under way",
                target.name()
            )));
        }
        item.state = DevReplaceState::Started as u64;
        return Ok(item);
    }
    if let Some(found) = find_signature(&**target)?.filter(|_| !options.force) {
        return Err(Error::Occupied { device: target.name().to_owned(), found });
    }
    let uuid = Uuid::new_v4();
    // Before and after the commit: the kernel refuses a replacement without a target.
    write_target(info, source, uuid, &**target)?;
    let item = DevReplaceItem {
        source: source.devid,
        cursor_left: 0,
        cursor_right: 0,
        avoid_source: options.avoid_source.into(),
        state: DevReplaceState::Started as u64,
        time_started: now(info),
        time_stopped: 0,
        write_errors: 0,
        uncorrectable_read_errors: 0,
    };
    put(info, &item)?;
    info.commit()?;
    write_target(info, source, uuid, &**target)?;
    Ok(item)
}

/// Cancels the replacement that is under way. The source stays in its place; a target that is
/// passed is erased.
///
/// # Errors
/// No replacement is under way; as [`FsInfo::commit`].
pub(crate) fn cancel(info: &FsInfo, target: Option<&dyn Device>) -> Result<ReplaceReport> {
    let Some(mut item) = item(info)?.filter(DevReplaceItem::is_under_way) else {
        return Err(Error::Invalid("no replacement of a device is under way".to_owned()));
    };
    item.state = DevReplaceState::Canceled as u64;
    item.time_stopped = now(info);
    put(info, &item)?;
    info.commit()?;
    if let Some(target) = target.filter(|target| is_target(info, *target)) {
        erase_superblocks(target)?;
    }
    Ok(report_of(&item))
}

fn now(info: &FsInfo) -> u64 {
    info.transactions().map_or(0, |transactions| transactions.now().seconds.max(0) as u64)
}

fn put(info: &FsInfo, item: &DevReplaceItem) -> Result<()> {
    info.transactions()?.change(2, |handle| {
        let tree = handle.live_tree(objectid::DEV_TREE)?;
        tree.edit(handle).put(key(), &item.to_bytes())
    })
}

/// Returns whether a device has the superblock of a target of this file system.
fn is_target(info: &FsInfo, device: &dyn Device) -> bool {
    crate::volume::superblock_of(device, 0).is_ok_and(|found| {
        found.raw.fsid == info.volume().superblock().raw.fsid && found.raw.dev_item.devid == TARGET
    })
}

/// Writes the superblocks of the last commit to the target, as device 0.
fn write_target(info: &FsInfo, source: DeviceItem, uuid: Uuid, target: &dyn Device) -> Result<()> {
    let last = info.transactions()?.between_commits(|last| *last);
    let dev_item = DeviceItem { devid: TARGET, uuid, ..source };
    let bytes = RawSuperblock { dev_item, ..last }.to_bytes();
    let superblock = Superblock::parse_unverified(&bytes)
        .map_err(|reason| Error::Invalid(format!("the superblock of the last commit: {reason}")))?;
    for_each_copy(target, source.total_bytes, |place| superblock.to_bytes(place).to_vec())
}

/// Overwrites the superblock copies of a device, so that it is no part of a file system any more.
fn erase_superblocks(device: &dyn Device) -> Result<()> {
    for_each_copy(device, device.size(), |_| vec![0; SUPERBLOCK_SIZE])
}

fn for_each_copy(
    device: &dyn Device,
    size: u64,
    bytes: impl Fn(papilio_format::PhysicalAddress) -> Vec<u8>,
) -> Result<()> {
    let places = (0..SUPERBLOCK_MIRRORS).map(superblock_offset);
    let written = places
        .filter(|place| place.0 + SUPERBLOCK_SIZE as u64 <= size)
        .try_for_each(|place| device.write_at(&bytes(place), place))
        .and_then(|()| device.flush());
    written.map_err(|source| Error::SuperblockWrite { device: device.name().to_owned(), copy: 0, source })
}
