//! What keeps a file system from being opened for writing.
//!
//! Owns [`check_writable`]: everything that this code could not keep right while it changes something. Takes
//! no lock. Kernel counterparts: `btrfs_check_features`, `open_ctree` (`fs/btrfs/disk-io.c`).

use super::live_trees::LiveTrees;
use crate::errors::{Error, Result};
use crate::volume::Volume;
use papilio_format::features::{CompatRoFeatures, IncompatFeatures, SuperblockFlags};
use papilio_format::items::dev_replace::DevReplaceItem;
use papilio_format::{ItemType, Key, objectid};

/// Refuses what could not be kept right while writing.
///
/// # Errors
/// [`Error::ReadOnlyFileSystem`] with the cause, or a tree that cannot be read.
pub(super) fn check_writable(volume: &Volume, live: &LiveTrees) -> Result<()> {
    check_superblock(volume)?;
    for slot in volume.devices().iter().filter(|slot| slot.in_chunk_tree) {
        if slot.is_missing() {
            return refuse("devices are missing");
        }
        if slot.stale {
            return refuse(&format!(
                "device {} missed writes (repair it with the kernel's scrub)",
                slot.devid()
            ));
        }
    }
    if live.find(objectid::TREE_RELOC)?.is_some() {
        return refuse("a balance was interrupted (mount it with the kernel once to recover it)");
    }
    let key = Key::new(objectid::DEV_REPLACE, ItemType::DEV_REPLACE, 0);
    if let Some(item) = live.get(objectid::DEV_TREE)?.tree().get(&key)? {
        let replace = DevReplaceItem::parse(item.data()).map_err(|reason| Error::Item {
            tree: objectid::DEV_TREE,
            key,
            reason,
        })?;
        if replace.is_under_way() {
            return refuse("the replacement of a device is under way");
        }
    }
    Ok(())
}

fn check_superblock(volume: &Volume) -> Result<()> {
    let superblock = volume.superblock();
    let raw = &superblock.raw;
    if raw.flags.contains(SuperblockFlags::SEEDING) {
        return refuse("it is a seed, on which others may be built");
    }
    let harmless = SuperblockFlags::WRITTEN | SuperblockFlags::RELOC | SuperblockFlags::ERROR;
    if !harmless.contains(raw.flags) {
        let flags = raw.flags.difference(harmless).bits();
        return refuse(&format!(
            "its superblock has flags that say it is being converted or dumped ({flags:#x})"
        ));
    }
    let compat_ro = raw.compat_ro_flags;
    if compat_ro.unsupported() != 0 {
        return refuse(&format!("it has features that are not known ({:#x})", compat_ro.unsupported()));
    }
    if raw.incompat_flags.contains(IncompatFeatures::SIMPLE_QUOTA) {
        return refuse("simple quotas are not kept up to date by this code");
    }
    if compat_ro.contains(CompatRoFeatures::FREE_SPACE_TREE)
        && !compat_ro.contains(CompatRoFeatures::FREE_SPACE_TREE_VALID)
    {
        return refuse("its free-space tree is not valid (mount it with the kernel once to rebuild it)");
    }
    Ok(())
}

fn refuse(cause: &str) -> Result<()> {
    Err(Error::ReadOnlyFileSystem { cause: cause.to_owned() })
}
