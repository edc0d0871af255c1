//! Repairing a file system: the public functions of [`papilio_progs::repair`].
//!
//! Owns [`plan_repair`], [`repair`] and [`undo_repair`].
//!
//! **Order**: the repair is first made in memory, on overlays of the devices. Only a result that is
//! better is made on the devices, each old block going to the undo file first. The devices are
//! checked again, and set back if the result is not as it was in memory.

use papilio_device::{Access, Device, OverlayDevice, UndoFile, UndoIdentity, UndoLog, UndoMember};
use papilio_engine::errors::{Error, Result};
use papilio_engine::mount::from_devices;
use papilio_engine::options::OpenOptions;
use papilio_engine::volume::{Volume, superblock_of};
use papilio_format::Superblock;
use papilio_format::superblock::SUPERBLOCK_MIRRORS;
use papilio_progs::census::{Census, Kept};
use papilio_progs::check::{CheckOptions, CheckReport};
use papilio_progs::repair::change::RescueChange;
use papilio_progs::repair::chunk_tree::NewChunkTree;
use papilio_progs::repair::log::OVERLAY_LIMIT;
use papilio_progs::repair::{self, Mended, RepairScope};
use papilio_progs::salvage::block_scan::{self, ScanOptions};
use papilio_progs::salvage::rebuild::rebuild;
use std::path::Path;
use std::sync::Arc;

/// Bytes of the cache of tree blocks during a check.
const CACHE_BYTES: usize = 256 << 20;

/// Trees that a repair writes anew even if they can be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepairOptions {
    scope: RepairScope,
}

impl RepairOptions {
    /// Returns the defaults: a repair only mends what a check finds.
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes the extent tree with all back references, the block groups and the free-space tree
    /// anew, from the trees that refer to extents.
    pub fn init_extent_tree(mut self, yes: bool) -> Self {
        self.scope.init_extent_tree = yes;
        self
    }

    /// Writes the checksum tree anew, from the data as it is. Data that is damaged by then counts
    /// as right afterwards; the plan lists the files.
    pub fn init_csum_tree(mut self, yes: bool) -> Self {
        self.scope.init_csum_tree = yes;
        self
    }

    /// Makes one change only, and mends nothing else that a check finds.
    pub fn only(mut self, change: RescueChange) -> Self {
        self.scope.only = Some(change);
        self
    }
}

/// A repair that was made in memory.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RepairPlan {
    /// The check of the devices as they are.
    pub before: CheckReport,
    /// The check after the repair.
    pub after: CheckReport,
    /// The changes, one line each.
    pub changes: Vec<String>,
    /// Changes that would mend something and cannot be made, one line each with the reason.
    pub refused: Vec<String>,
    /// Everything that is lost by the changes or was lost before, one line each.
    pub losses: Vec<String>,
    /// Whether more can be read than before, or there are fewer faults and none of a new kind.
    pub better: bool,
    /// The files that a reader of the damaged file system can read, and those after the repair;
    /// `None` if nothing is changed, or neither can be read at all.
    pub kept: Option<Kept>,
    scope: RepairScope,
    /// The chunk tree to write first.
    chunk_tree: Option<Arc<NewChunkTree>>,
}

impl RepairPlan {
    fn new(mended: Mended, scope: RepairScope, chunk_tree: Option<Arc<NewChunkTree>>) -> Self {
        let better = mended.is_better();
        let Mended { before, after, changes, refused, losses, .. } = mended;
        Self { before, after, changes, refused, losses, better, kept: None, scope, chunk_tree }
    }
}

/// Plans the repair of the file system on the devices, which must be all of it. Nothing is written.
///
/// # Errors
/// As [`check_devices`](crate::check_devices); a log of fsyncs that cannot be replayed after the
/// repair; too many changes to keep in memory.
pub fn plan_repair(devices: &[Arc<dyn Device>], open: &OpenOptions) -> Result<RepairPlan> {
    plan_repair_with(devices, open, &RepairOptions::new())
}

/// As [`plan_repair`], with options.
///
/// # Errors
/// As [`plan_repair`].
pub fn plan_repair_with(
    devices: &[Arc<dyn Device>],
    open: &OpenOptions,
    options: &RepairOptions,
) -> Result<RepairPlan> {
    let scope = options.scope;
    if scope.only == Some(RescueChange::WriteChunkTree) {
        let tree = scanned_chunk_tree(devices, open)?;
        let (mended, _) = mend_in_memory(devices, open, scope, Some(&tree))?;
        return Ok(RepairPlan::new(mended, scope, Some(tree)));
    }
    let mut plan = plan_all(devices, open, scope)?;
    if !plan.0.changes.is_empty() && plan.0.better && scope.only.is_none() {
        let before = census(devices, open);
        plan.0.kept = before.and_then(|before| Some(before.compare(&census(&plan.1, open)?)));
    }
    Ok(plan.0)
}

/// Counts the files that a reader can read who goes on around faults, with a scan if it must.
fn census(devices: &[Arc<dyn Device>], open: &OpenOptions) -> Option<Census> {
    let options = open.clone().write(false).ignore_bad_roots(true).allow_older(true).degraded(true);
    let info = from_devices(devices.to_vec(), &options).ok().or_else(|| {
        let scan = block_scan::scan(devices, &ScanOptions::new())?;
        let rebuilt = rebuild(devices, &options, &scan).ok()?;
        from_devices(devices.to_vec(), rebuilt.options()).ok()
    });
    info.map(|info| Census::take(&info.trees))
}

/// Plans a repair. Returns overlays of the devices with it.
fn plan_all(
    devices: &[Arc<dyn Device>],
    open: &OpenOptions,
    scope: RepairScope,
) -> Result<(RepairPlan, Vec<Arc<dyn Device>>)> {
    let (mended, overlays) = mend_in_memory(devices, open, scope, None)?;
    if !mended.has_chunk_tree && !mended.after.is_clean() && scope.only.is_none() {
        // Other trees repeat the content of the chunk tree; a scan takes longer.
        let second = scanned_chunk_tree(devices, open).and_then(|tree| {
            let (mended, overlays) = mend_in_memory(devices, open, scope, Some(&tree))?;
            Ok((mended, overlays, tree))
        });
        match second {
            Ok((second, overlays, tree)) if second.rank() < mended.rank() => {
                return Ok((RepairPlan::new(second, scope, Some(tree)), overlays));
            }
            Ok(_) => {}
            Err(error) => {
                let mut plan = RepairPlan::new(mended, scope, None);
                plan.refused.push(format!("write a chunk tree from a scan: {error}"));
                return Ok((plan, overlays));
            }
        }
    }
    Ok((RepairPlan::new(mended, scope, None), overlays))
}

fn mend_in_memory(
    devices: &[Arc<dyn Device>],
    open: &OpenOptions,
    scope: RepairScope,
    tree: Option<&Arc<NewChunkTree>>,
) -> Result<(Mended, Vec<Arc<dyn Device>>)> {
    let overlay = |device: &Arc<dyn Device>| -> Arc<dyn Device> {
        Arc::new(OverlayDevice::new(Arc::clone(device), OVERLAY_LIMIT))
    };
    let overlays: Vec<_> = devices.iter().map(overlay).collect();
    let tree = tree.map(|tree| &**tree);
    let mended = repair::mend(&overlays, open, CACHE_BYTES, &check_options(scope), scope, tree)?;
    Ok((mended, overlays))
}

/// Makes a chunk tree from a scan of the devices.
fn scanned_chunk_tree(devices: &[Arc<dyn Device>], open: &OpenOptions) -> Result<Arc<NewChunkTree>> {
    let Some(scan) = block_scan::scan(devices, &ScanOptions::new()) else {
        return Err(Error::Invalid("no tree block of Btrfs was found".to_owned()));
    };
    let rebuilt = rebuild(devices, open, &scan)?;
    Ok(Arc::new(NewChunkTree::new(devices, rebuilt, &scan)?))
}

fn check_options(scope: RepairScope) -> CheckOptions {
    CheckOptions::new().data_csum(scope.only.is_some_and(RescueChange::needs_data))
}

/// Makes a planned repair on the devices. The old content goes to the new file `undo` first.
///
/// # Errors
/// A plan that makes nothing better: nothing is written.
/// Failures of a device or of the undo file, or a result other than planned: the devices are set
/// back, as far as they can be written.
pub fn repair(
    devices: &[Arc<dyn Device>],
    open: &OpenOptions,
    plan: &RepairPlan,
    undo: &Path,
) -> Result<RepairPlan> {
    if !plan.better {
        return Err(Error::Invalid("the repair would not make the file system better".to_owned()));
    }
    let identity = identity(devices, open)?;
    let host =
        |what: &str, error: std::io::Error| Error::Invalid(format!("{}: {what}: {error}", undo.display()));
    let (log, recorded) = start_log(devices, undo, identity)?;
    let scope = plan.scope;
    let tree = plan.chunk_tree.as_deref();
    let made = repair::mend(&recorded, open, CACHE_BYTES, &check_options(scope), scope, tree)
        .map(|mended| RepairPlan::new(mended, scope, plan.chunk_tree.clone()));
    // Devices of seeds are read only.
    let mut written = recorded.iter().filter(|device| device.access() == Access::ReadWrite);
    let flushed = written.try_for_each(|device| device.flush());
    match made {
        Ok(made) if made.better && made.after.counts == plan.after.counts && flushed.is_ok() => {
            log.complete().map_err(|error| host("the undo file", error))?;
            Ok(RepairPlan { kept: plan.kept.clone(), ..made })
        }
        made => {
            let file = UndoFile::open(undo).map_err(|error| host("taking the repair back", error))?;
            file.restore(devices).map_err(|error| host("taking the repair back", error))?;
            // Nothing is left to be taken back.
            let _ = std::fs::remove_file(undo);
            if let Some(failure) = log.failure() {
                let path = undo.display();
                return Err(Error::Invalid(format!(
                    "{path}: the undo file: {failure}; the repair was taken back"
                )));
            }
            made?;
            Err(Error::Invalid("the repair was taken back: its result was not as planned".to_owned()))
        }
    }
}

/// Restores every byte that a repair changed, from its undo file. Returns the bytes written.
/// `devices` are in any order.
///
/// # Errors
/// A damaged undo file; devices of another file system, size or generation than those of the undo
/// file, before anything is written; failures of a device.
pub fn undo_repair(devices: &[Arc<dyn Device>], undo: &Path) -> Result<u64> {
    let host = |error: std::io::Error| Error::Invalid(format!("{}: {error}", undo.display()));
    let file = UndoFile::open(undo).map_err(host)?;
    let identity = file.identity();
    let mut ordered = Vec::with_capacity(identity.members.len());
    let mut left: Vec<&Arc<dyn Device>> = devices.iter().collect();
    for (number, member) in identity.members.iter().enumerate() {
        let mut found = None;
        for (index, device) in left.iter().enumerate() {
            if device.size() == member.size && file.knows(number, &***device).map_err(host)? {
                found = Some(index);
                break;
            }
        }
        let Some(found) = found else {
            let (path, devid) = (undo.display(), member.devid);
            if left.iter().any(|device| is_member(&***device, identity, member)) {
                let text = format!("{path}: the file system was changed since the repair");
                return Err(Error::Invalid(text));
            }
            return Err(Error::Invalid(format!(
                "{path}: no device is the one that the undo file is of (device {devid} of file system {})",
                identity.fsid
            )));
        };
        ordered.push(Arc::clone(left.remove(found)));
    }
    file.restore(&ordered).map_err(host)
}

/// Whether a superblock copy of the device, even one with a fault, names the member.
fn is_member(device: &dyn Device, identity: &UndoIdentity, member: &UndoMember) -> bool {
    let found = (0..SUPERBLOCK_MIRRORS).filter_map(|mirror| superblock_of(device, mirror).ok());
    found.map(|found| found.raw).any(|raw| {
        let item = raw.dev_item;
        raw.fsid == identity.fsid && (item.devid.0, item.uuid) == (member.devid, member.uuid)
    })
}

/// Devices that save blocks in an undo file before they change.
pub(super) type Attached = Vec<Arc<dyn Device>>;

/// Creates an undo file, and attaches it to the devices. Nothing is written to them yet.
pub(super) fn start_log(
    devices: &[Arc<dyn Device>],
    undo: &Path,
    identity: UndoIdentity,
) -> Result<(Arc<UndoLog>, Attached)> {
    let path = undo.display();
    let log = match UndoLog::create(undo, identity) {
        Ok(log) => Arc::new(log),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let text = match UndoFile::open(undo) {
                Ok(file) if !file.complete => format!(
                    "{path}: the undo file of a repair that was interrupted; `papilio rescue undo` takes it back"
                ),
                _ => format!("{path}: the undo file: {error}"),
            };
            return Err(Error::Invalid(text));
        }
        Err(error) => {
            // A file without room for its header is ours.
            let _ = std::fs::remove_file(undo);
            return Err(Error::Invalid(format!("{path}: the undo file: {error}")));
        }
    };
    match log.attach(devices) {
        Ok(recorded) => Ok((log, recorded)),
        Err(error) => {
            let _ = std::fs::remove_file(undo);
            Err(Error::Invalid(format!("{path}: the undo file: {error}")))
        }
    }
}

/// Returns the identity of an undo file for superblocks that are about to be written; `None` if
/// there are none. All devices are members, in their order.
pub(super) fn undo_identity<'s>(
    devices: &[Arc<dyn Device>],
    written: impl Iterator<Item = (usize, &'s Superblock)>,
) -> Option<UndoIdentity> {
    let mut known: Vec<Option<Superblock>> = vec![None; devices.len()];
    written.for_each(|(number, superblock)| known[number] = Some(superblock.clone()));
    let first = known.iter().flatten().next()?.clone();
    let member = |(number, device): (usize, &Arc<dyn Device>)| {
        let own = known[number].clone();
        let own =
            own.or_else(|| (0..SUPERBLOCK_MIRRORS).find_map(|mirror| superblock_of(&**device, mirror).ok()));
        let item = own.as_ref().unwrap_or(&first).raw.dev_item;
        UndoMember { devid: item.devid.0, uuid: item.uuid, size: device.size() }
    };
    let members = devices.iter().enumerate().map(member).collect();
    let (fsid, generation) = (first.raw.fsid, first.raw.generation.0);
    Some(UndoIdentity { fsid, generation, members })
}

fn identity(devices: &[Arc<dyn Device>], open: &OpenOptions) -> Result<UndoIdentity> {
    let volume = Volume::open(devices.to_vec(), open)?;
    let raw = &volume.superblock().raw;
    let mut members = Vec::with_capacity(devices.len());
    for device in devices {
        let item = superblock_of(&**device, open.superblock_mirror.unwrap_or(0))?.raw.dev_item;
        members.push(UndoMember { devid: item.devid.0, uuid: item.uuid, size: device.size() });
    }
    Ok(UndoIdentity { fsid: raw.fsid, generation: raw.generation.0, members })
}
