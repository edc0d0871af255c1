//! Repairing a file system: the public functions of [`crate::maintenance::repair`].
//!
//! Owns [`plan_repair`], [`repair`] and [`undo_repair`].
//!
//! **Order**: the repair is first made in memory, on overlays of the devices. Only a result that is
//! better is made on the devices, each old block going to the undo file first. The devices are
//! checked again, and set back if the result is not as it was in memory.

use crate::errors::{Error, Result};
use crate::maintenance::check::{CheckOptions, CheckReport};
use crate::maintenance::repair::{self, Mended, Wishes};
use crate::options::OpenOptions;
use crate::volume::{Volume, superblock_of};
use papilio_device::{Device, OverlayDevice, UndoFile, UndoIdentity, UndoLog, UndoMember};
use papilio_format::Superblock;
use papilio_format::superblock::SUPERBLOCK_MIRRORS;
use std::path::Path;
use std::sync::Arc;

/// Bytes of the cache of tree blocks during a check.
const CACHE_BYTES: usize = 256 << 20;
/// The most bytes that a plan keeps in memory, for each device.
const OVERLAY_LIMIT: u64 = 1 << 30;

/// Trees that a repair writes anew even if they can be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepairOptions {
    wishes: Wishes,
}

impl RepairOptions {
    /// Returns the defaults: a repair only mends what a check finds.
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes the extent tree with all back references, the block groups and the free-space tree
    /// anew, from the trees that refer to extents.
    pub fn init_extent_tree(mut self, yes: bool) -> Self {
        self.wishes.init_extent_tree = yes;
        self
    }

    /// Writes the checksum tree anew, from the data as it is. Data that is damaged by then counts
    /// as right afterwards; the plan lists the files.
    pub fn init_csum_tree(mut self, yes: bool) -> Self {
        self.wishes.init_csum_tree = yes;
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
    wishes: Wishes,
}

impl RepairPlan {
    fn new(mended: Mended, wishes: Wishes) -> Self {
        let better = mended.is_better();
        let Mended { before, after, changes, refused, losses, .. } = mended;
        Self { before, after, changes, refused, losses, better, wishes }
    }
}

/// Plans the repair of the file system on the devices, which must be all of it. Nothing is written.
///
/// # Errors
/// As [`check_devices`](crate::check_devices); a log of fsyncs; too many changes to keep in memory.
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
    let overlay = |device: &Arc<dyn Device>| -> Arc<dyn Device> {
        Arc::new(OverlayDevice::new(Arc::clone(device), OVERLAY_LIMIT))
    };
    if Volume::open(devices.to_vec(), open)?.superblock().log_root().is_some() {
        // Its blocks look free, and its replay would meet other trees than it was written for.
        let text = "it has a log of fsyncs, which a mount for writing has to replay before a repair";
        return Err(Error::Invalid(text.to_owned()));
    }
    let overlays: Vec<_> = devices.iter().map(overlay).collect();
    let wishes = options.wishes;
    let mended = repair::mend(&overlays, open, CACHE_BYTES, &CheckOptions::new(), wishes)?;
    Ok(RepairPlan::new(mended, wishes))
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
    let log = UndoLog::create(undo, identity).map_err(|error| {
        // An existing file is not ours; one without room for its header is.
        if error.kind() != std::io::ErrorKind::AlreadyExists {
            let _ = std::fs::remove_file(undo);
        }
        host("the undo file", error)
    })?;
    let log = Arc::new(log);
    let recorded = log.attach(devices);
    let wishes = plan.wishes;
    let made = repair::mend(&recorded, open, CACHE_BYTES, &CheckOptions::new(), wishes)
        .map(|mended| RepairPlan::new(mended, wishes));
    let flushed = recorded.iter().try_for_each(|device| device.flush());
    match made {
        Ok(made) if made.better && made.after.counts == plan.after.counts && flushed.is_ok() => {
            log.complete(devices).map_err(|error| host("the undo file", error))?;
            Ok(made)
        }
        made => {
            let file = UndoFile::open(undo).map_err(|error| host("taking the repair back", error))?;
            file.restore(devices).map_err(|error| host("taking the repair back", error))?;
            // Nothing is left to be taken back.
            let _ = std::fs::remove_file(undo);
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
    for member in &identity.members {
        let belongs = |device: &&Arc<dyn Device>| {
            (0..SUPERBLOCK_MIRRORS).filter_map(|mirror| superblock_of(&***device, mirror).ok()).any(|found| {
                let item = found.raw.dev_item;
                found.raw.fsid == identity.fsid
                    && found.raw.generation.0 == identity.generation
                    && (item.devid.0, item.uuid) == (member.devid, member.uuid)
            })
        };
        let Some(device) = devices.iter().find(belongs) else {
            let (path, devid) = (undo.display(), member.devid);
            return Err(Error::Invalid(format!(
                "{path}: no device is the one that the undo file is of (device {devid} of file system {}, \
                 generation {}), or the file system was changed since",
                identity.fsid, identity.generation
            )));
        };
        ordered.push(Arc::clone(device));
    }
    if !file.is_as_left(&ordered).map_err(host)? {
        let path = undo.display();
        return Err(Error::Invalid(format!("{path}: the file system was changed since the repair")));
    }
    file.restore(&ordered).map_err(host)
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
