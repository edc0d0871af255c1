//! Replacing a device of a file system, which may be in use meanwhile.
//!
//! Owns [`ReplaceOptions`], [`ReplaceReport`], [`replace`] and [`cancel`].
//!
//! The steps:
//! 1. The target gets superblocks with devid 0. A [`DevReplace`] takes the source's place: from now
//!    on all is written to both. A commit makes an item of the device tree durable that says so.
//! 2. All that the last commit's trees have on the source is copied to the same places of the
//!    target, from the source or rebuilt ([`CopyOf`]).
//! 3. The target takes the source's place, between the tree blocks of a commit and its superblocks:
//!    they give it devid and UUID.
//! 4. The source's superblocks are erased.
//!
//! **Invariants**
//! - A crash before step 3 leaves the source in its place. The replacement is then begun anew, by
//!   the kernel or here, or cancelled.
//! - After a crash between steps 3 and 4 both devices have the same devid, and the target the newer
//!   generation, which counts.
//! - The item and the superblocks are the kernel's, so that each resumes what the other left. The
//!   item's cursor stays 0.
//!
//! **Locks**: `sharing`, to wait for requests in flight; those of a commit and of rows.
//!
//! Kernel counterparts: `btrfs_dev_replace_start`, `btrfs_dev_replace_finishing`
//! (`fs/btrfs/dev-replace.c`), `btrfs_scratch_superblocks` (`fs/btrfs/volumes.c`).

use crate::errors::{Error, Result};
use crate::file::exclusive::{BalanceControl, Operation};
use crate::file::fs_info::FsInfo;
use crate::jobs::scrub::copy::CopyOf;
use crate::jobs::signature::find_signature;
use crate::volume::DevReplace;
use papilio_device::Device;
use papilio_format::items::dev_replace::{DevReplaceItem, DevReplaceState};
use papilio_format::items::device::DeviceItem;
use papilio_format::superblock::{RawSuperblock, SUPERBLOCK_MIRRORS, SUPERBLOCK_SIZE, superblock_offset};
use papilio_format::{DeviceId, ItemType, Key, PhysicalAddress, Superblock, Uuid, objectid};
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

impl ReplaceReport {
    /// Returns whether the replacement is neither complete nor cancelled.
    pub fn is_under_way(&self) -> bool {
        matches!(self.state, DevReplaceState::Started | DevReplaceState::Suspended)
    }
}

fn key() -> Key {
    Key::new(objectid::DEV_REPLACE, ItemType::DEV_REPLACE, 0)
}

/// Returns the item of the last replacement, if there was one.
///
/// # Errors
/// The device tree cannot be read.
pub fn item(info: &FsInfo) -> Result<Option<DevReplaceItem>> {
    let open = info.trees.get(objectid::DEV_TREE, "the device tree")?;
    let Some(item) = open.tree.get(&key())? else { return Ok(None) };
    let fault = |reason| Error::Item { tree: objectid::DEV_TREE, key: key(), reason };
    let parsed = DevReplaceItem::parse(item.data()).map_err(fault)?;
    parsed.state().map_err(fault)?;
    Ok(Some(parsed))
}

/// Returns the report of an item on disk.
pub fn report_of(item: &DevReplaceItem) -> ReplaceReport {
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

/// Replaces `source` by `target`, or begins the copy of one that is under way anew. Files may be
/// open, and change. Calls `progress` now and then; it says how to go on.
///
/// # Errors
/// A target that is too small, in use by the file system, or occupied; another replacement that is
/// under way; a failure of the target, after which the source stays; as [`FsInfo::commit`].
pub fn replace(
    info: &FsInfo,
    source: DeviceId,
    target: &Arc<dyn Device>,
    options: ReplaceOptions,
    progress: &mut dyn FnMut(&ReplaceReport) -> BalanceControl,
) -> Result<ReplaceReport> {
    let _running = info.exclusive.begin(Operation::ReplaceDevice)?;
    let devices = info.volume().devices();
    let is_own = |own: &Arc<dyn Device>| Arc::ptr_eq(own, target);
    if devices.iter().any(|slot| slot.devid() != TARGET && slot.device.as_ref().is_some_and(is_own)) {
        return Err(Error::Invalid(format!("{}: is a device of this file system", target.name())));
    }
    let slot = devices.iter().find(|slot| slot.in_chunk_tree && slot.devid() == source);
    let slot =
        slot.ok_or_else(|| Error::Invalid(format!("device {source} is not part of the file system")))?;
    let need = slot.item.total_bytes;
    if target.size() < need {
        let (device, size) = (target.name().to_owned(), target.size());
        return Err(Error::TooSmall { device, size, minimum: need });
    }
    let dev_replace = Arc::new(DevReplace::new(slot.device.clone(), Arc::clone(target)));
    let run = ReplaceRun { info, source, item: slot.item, was_stale: slot.stale, dev_replace };
    let begun = run.begin(options)?;
    let ended = run.copy(begun, options, progress);
    match ended {
        Ok((item, report, BalanceControl::Continue)) => run.finish(item, report),
        Ok((_, report, BalanceControl::Pause)) => {
            run.leave();
            Ok(report)
        }
        Ok((item, _, BalanceControl::Cancel)) => run.cancel(item),
        Err(error) => {
            let cancelled = run.cancel(begun);
            if let Err(also) = cancelled {
                tracing::warn!(error = %also, "the failed replacement could not be cancelled");
            }
            Err(error)
        }
    }
}

/// A replacement that runs.
struct ReplaceRun<'a> {
    info: &'a FsInfo,
    source: DeviceId,
    item: DeviceItem,
    was_stale: bool,
    dev_replace: Arc<DevReplace>,
}

impl ReplaceRun<'_> {
    /// Lets writes go to both devices. Returns after those that began earlier are known to the last
    /// commit's trees.
    fn begin(&self, options: ReplaceOptions) -> Result<DevReplaceItem> {
        let (info, target) = (self.info, self.dev_replace.target());
        let item = begin(info, self.item, target, options)?;
        // Without a source, only what its profile restores is read.
        let stale = self.was_stale || self.dev_replace.source().is_none();
        let device: Arc<dyn Device> = self.dev_replace.clone();
        info.volume().set_device(self.source, Some(&device), stale);
        info.volume().set_replaced(Some((self.source, Arc::clone(&self.dev_replace))));
        let begun = self.make_durable(&item);
        if begun.is_err() {
            self.leave();
        }
        begun.map(|()| item)
    }

    fn make_durable(&self, item: &DevReplaceItem) -> Result<()> {
        // Requests that were in flight may write to the source alone. They hold this lock.
        drop(self.info.sharing.write());
        // A chunk that is being made may not know of the target. It is copied, once it is there.
        self.info.transactions()?.chunks().settle();
        put(self.info, item)?;
        self.info.sync()
    }

    fn copy(
        &self,
        item: DevReplaceItem,
        options: ReplaceOptions,
        progress: &mut dyn FnMut(&ReplaceReport) -> BalanceControl,
    ) -> Result<(DevReplaceItem, ReplaceReport, BalanceControl)> {
        let mut report = report_of(&item);
        let avoided = options.avoid_source || self.dev_replace.source().is_none();
        let mut copy = CopyOf::new(self.info, self.source, avoided);
        (report.bytes_done, report.bytes_total) = copy.progress();
        while copy.next(&self.dev_replace)? {
            self.dev_replace.check()?;
            (report.bytes_done, report.bytes_total) = copy.progress();
            report.uncorrectable_read_errors = item.uncorrectable_read_errors + copy.unknown;
            let control = progress(&report);
            if control != BalanceControl::Continue {
                return Ok((item, report, control));
            }
        }
        let flushed = self.dev_replace.flush();
        flushed.map_err(|source| Error::Device {
            device: self.dev_replace.name().to_owned(),
            operation: "flush",
            offset: PhysicalAddress(0),
            length: 0,
            source,
        })?;
        self.dev_replace.check()?;
        Ok((item, report, BalanceControl::Continue))
    }

    /// Puts the target in the source's place.
    fn finish(&self, mut item: DevReplaceItem, report: ReplaceReport) -> Result<ReplaceReport> {
        self.info.volume().devices().counters().reset(self.source);
        item.state = DevReplaceState::Finished as u64;
        (item.cursor_left, item.cursor_right) = (END, END);
        item.uncorrectable_read_errors = report.uncorrectable_read_errors;
        item.time_stopped = now(self.info);
        put(self.info, &item)?;
        self.info.transactions()?.commit_replacing(self.source, &self.dev_replace)?;
        self.info.volume().set_replaced(None);
        self.info.volume().forget_device(TARGET);
        self.info.transactions()?.device_appeared(self.source)?;
        if let Some(device) = self.dev_replace.source() {
            erase_superblocks(&**device)?;
        }
        let total = report.bytes_total;
        Ok(ReplaceReport { bytes_done: total, bytes_total: total, ..report_of(&item) })
    }

    /// Writes to the source alone again.
    fn leave(&self) {
        self.info.volume().set_device(self.source, self.dev_replace.source(), self.was_stale);
        self.info.volume().set_replaced(None);
    }

    fn cancel(&self, item: DevReplaceItem) -> Result<ReplaceReport> {
        self.leave();
        self.info.volume().forget_device(TARGET);
        cancel_item(self.info, item, Some(&**self.dev_replace.target()))
    }
}

/// Makes the target recognisable, or finds the replacement that is under way. Returns the item that
/// is to be stored.
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
        // The replay of a log may have written to the source alone, before the cursor, too.
        (item.cursor_left, item.cursor_right) = (0, 0);
        return Ok(item);
    }
    if let Some(found) = find_signature(&**target)?.filter(|_| !options.force) {
        return Err(Error::Occupied { device: target.name().to_owned(), found });
    }
    let uuid = Uuid::new_v4();
    // Before the commit: the kernel refuses a replacement without a target. Never again: a torn
    // write would lose the target.
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
    Ok(item)
}

/// Makes the replacement that is under way copy everything again. Writes go to the source alone
/// until it is resumed.
///
/// # Errors
/// As [`FsInfo::commit`].
pub fn rewind(info: &FsInfo) -> Result<()> {
    let Some(mut item) = item(info)?.filter(DevReplaceItem::is_under_way) else { return Ok(()) };
    if (item.cursor_left, item.cursor_right) == (0, 0) {
        return Ok(());
    }
    (item.cursor_left, item.cursor_right) = (0, 0);
    put(info, &item)?;
    info.commit()
}

/// Resumes the replacement that is under way, if its target is among the devices.
///
/// # Errors
/// [`Error::Invalid`] if it is not, or there is no replacement; as [`replace`].
pub fn resume(
    info: &FsInfo,
    progress: &mut dyn FnMut(&ReplaceReport) -> BalanceControl,
) -> Result<ReplaceReport> {
    let Some(item) = item(info)?.filter(DevReplaceItem::is_under_way) else {
        return Err(Error::Invalid("no replacement of a device is under way".to_owned()));
    };
    let devices = info.volume().devices();
    let target = devices.iter().find(|slot| slot.devid() == TARGET).and_then(|slot| slot.device.clone());
    let target =
        target.ok_or_else(|| Error::Invalid("the target of the replacement is missing".to_owned()))?;
    let options = ReplaceOptions { avoid_source: item.avoid_source != 0, force: false };
    replace(info, item.source, &target, options, progress)
}

/// Cancels the replacement that is under way. The source stays in its place; a target that is
/// passed is erased.
///
/// # Errors
/// No replacement is under way; as [`FsInfo::commit`].
pub fn cancel(info: &FsInfo, target: Option<&dyn Device>) -> Result<ReplaceReport> {
    let Some(item) = item(info)?.filter(DevReplaceItem::is_under_way) else {
        return Err(Error::Invalid("no replacement of a device is under way".to_owned()));
    };
    cancel_item(info, item, target)
}

fn cancel_item(
    info: &FsInfo,
    mut item: DevReplaceItem,
    target: Option<&dyn Device>,
) -> Result<ReplaceReport> {
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
    let Ok(found) = crate::volume::superblock_of(device, 0) else { return false };
    let found = found.raw;
    found.fsid == info.volume().superblock().raw.fsid && found.dev_item.devid == TARGET
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

fn for_each_copy(device: &dyn Device, size: u64, bytes: impl Fn(PhysicalAddress) -> Vec<u8>) -> Result<()> {
    let places = (0..SUPERBLOCK_MIRRORS).map(superblock_offset);
    let written = places
        .filter(|place| place.0 + SUPERBLOCK_SIZE as u64 <= size)
        .try_for_each(|place| device.write_at(&bytes(place), place))
        .and_then(|()| device.flush());
    written.map_err(|source| Error::SuperblockWrite { device: device.name().to_owned(), copy: 0, source })
}
