//! Conversions of the trees that record space: block groups and free space.
//!
//! Owns [`convert_block_groups`] and [`convert_free_space`]. Each opens the file system, replays a
//! log of fsyncs, and makes one transaction. A power cut leaves the old state or the new one, and
//! no flag.

use super::change::Tuned;
use super::members::Members;
use papilio_engine::errors::{Error, Result};
use papilio_engine::file::fs_info::FsInfo;
use papilio_engine::mount;
use papilio_engine::options::OpenOptions;
use papilio_format::features::{CompatRoFeatures, IncompatFeatures};

/// Moves the block groups to a tree of their own, or back to the extent tree.
pub(super) fn convert_block_groups(members: &Members, on: bool) -> Result<Tuned> {
    let fs = open(members, CompatRoFeatures::BLOCK_GROUP_TREE, on, "block-group tree")?;
    let features = fs.volume().superblock().raw;
    if on && !features.compat_ro_flags.contains(CompatRoFeatures::FREE_SPACE_TREE) {
        return invalid("a block-group tree needs a free-space tree: convert to that one first");
    }
    if on && !features.incompat_flags.contains(IncompatFeatures::NO_HOLES) {
        return invalid("a block-group tree needs the feature no-holes: enable that one first");
    }
    fs.transactions()?.convert_block_groups(on)?;
    Ok(done(members))
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
