//! Conversions of the trees that record space: block groups and free space.
//!
//! Owns [`convert_block_groups`] and [`convert_free_space`]. Each opens the file system, replays a
//! log of fsyncs, and makes one transaction. A power cut leaves the old state or the new one, and
//! no flag.

use super::change::Tuned;
use super::members::Members;
use crate::check::{CheckOptions, Finding, FindingKind, Severity};
use crate::repair::log::OVERLAY_LIMIT;
use crate::repair::{self, RepairScope};
use papilio_device::{Access, Device, OverlayDevice};
use papilio_engine::errors::{Error, Result};
use papilio_engine::file::fs_info::FsInfo;
use papilio_engine::mount;
use papilio_engine::options::OpenOptions;
use papilio_format::features::{CompatRoFeatures, IncompatFeatures};
use std::sync::Arc;

/// Bytes of the cache of tree blocks during a check.
const CACHE_BYTES: usize = 64 << 20;

/// Moves the block groups to a tree of their own, or back to the extent tree.
pub(super) fn convert_block_groups(mut members: Members, on: bool) -> Result<Tuned> {
    let resumed = members.is_converting_block_groups();
    if resumed {
        members = finish_conversion(&members)?;
        let converted = members.first().raw.compat_ro_flags.contains(CompatRoFeatures::BLOCK_GROUP_TREE);
        if converted == on {
            return Ok(Tuned { resumed, ..done(&members) });
        }
    }
    let members = &members;
    let fs = open(members, CompatRoFeatures::BLOCK_GROUP_TREE, on, "block-group tree")?;
    let features = fs.volume().superblock().raw;
    if on && !features.compat_ro_flags.contains(CompatRoFeatures::FREE_SPACE_TREE) {
        return invalid("a block-group tree needs a free-space tree: convert to that one first");
    }
    if on && !features.incompat_flags.contains(IncompatFeatures::NO_HOLES) {
        return invalid("a block-group tree needs the feature no-holes: enable that one first");
    }
    fs.transactions()?.convert_block_groups(on)?;
    Ok(Tuned { resumed, ..done(members) })
}

/// Brings all block groups into the tree that most of them are not in yet, as a repair does, and
/// ends the conversion. Refuses a file system with other faults: tune leaves no undo file.
fn finish_conversion(members: &Members) -> Result<Members> {
    let devices = members.devices();
    let overlay = |device: &Arc<dyn Device>| -> Arc<dyn Device> {
        Arc::new(OverlayDevice::new(Arc::clone(device), OVERLAY_LIMIT))
    };
    let mend = |devices: &[Arc<dyn Device>]| {
        let (open, options) = (OpenOptions::new(), CheckOptions::new());
        repair::mend(devices, &open, CACHE_BYTES, &options, RepairScope::default(), None)
    };
    let plan = mend(&devices.iter().map(overlay).collect::<Vec<_>>())?;
    let is_other = |finding: &&Finding| {
        let about_groups = matches!(
            finding.kind,
            FindingKind::ConversionUnfinished | FindingKind::BlockGroupMissing | FindingKind::ExtentOutside
        );
        finding.kind.severity() == Severity::Error && !about_groups
    };
    if let Some(other) = plan.before.findings.iter().find(is_other) {
        return invalid(&format!("{other}: repair it with `papilio check --repair` first"));
    }
    if !plan.after.is_clean() {
        return invalid("the interrupted conversion cannot be finished: see `papilio check --repair`");
    }
    mend(&devices)?;
    let mut written = devices.iter().filter(|device| device.access() == Access::ReadWrite);
    written
        .try_for_each(|device| device.flush())
        .map_err(|error| Error::Invalid(format!("the devices cannot be flushed: {error}")))?;
    Members::read(&devices)
}

/// Replaces v1 caches by the free-space tree, or removes that tree.
pub(super) fn convert_free_space(members: &Members, on: bool) -> Result<Tuned> {
    let fs = open(members, CompatRoFeatures::FREE_SPACE_TREE, on, "free-space tree")?;
    if on {
        fs.transactions()?.create_free_space_tree()?;
        return Ok(done(members));
    }
    if fs.volume().superblock().raw.compat_ro_flags.contains(CompatRoFeatures::BLOCK_GROUP_TREE) {
        return invalid("its block-group tree needs the free-space tree: convert from that one first");
    }
    fs.transactions()?.remove_free_space_tree()?;
    Ok(done(members))
}

/// Opens the file system for writing. Refuses one whose `feature` is `on` or off already.
fn open(members: &Members, feature: CompatRoFeatures, on: bool, name: &str) -> Result<FsInfo> {
    members.require_finished()?;
    members.require_no_seed()?;
    if members.first().raw.compat_ro_flags.contains(feature) == on {
        let state = if on { "already has a" } else { "has no" };
        return invalid(&format!("the file system {state} {name}"));
    }
    mount::from_devices(members.devices(), &OpenOptions::new().write(true))
}

fn done(members: &Members) -> Tuned {
    Tuned { fsid: members.first().raw.fsid, blocks: 0, resumed: false }
}

fn invalid<T>(text: &str) -> Result<T> {
    Err(Error::Invalid(text.to_owned()))
}
