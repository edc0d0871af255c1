//! Reasons to refuse opening a file system for writing.
//!
//! Owns [`check_writable`], which finds everything that this code could not keep consistent.
//!
//! Locks: none.
//!
//! Kernel counterparts: `btrfs_check_features`, `open_ctree` (`fs/btrfs/disk-io.c`).

use super::live_trees::LiveTrees;
use crate::errors::{Error, Result};
use crate::volume::Volume;
use papilio_format::features::{CompatRoFeatures, SuperblockFlags};
use papilio_format::items::dev_replace::DevReplaceItem;
use papilio_format::{DeviceId, ItemType, Key, LogicalAddress, objectid};

/// The greatest generation of a file system that can be written. No file system reaches it.
const MOST_COMMITS: u64 = u64::MAX / 2;

/// Refuses a file system that this code could not keep consistent while writing. A replacement of
/// a device may be under way with `replacing`, or if the new device is there.
///
/// With `in_memory`, no change reaches the disk. Then a replacement may be under way in any case,
/// and chunks may lack devices: the caller allocates nothing there.
///
/// # Errors
/// [`Error::ReadOnlyFileSystem`] with the cause, or a tree that cannot be read.
pub(super) fn check_writable(
    volume: &Volume,
    live: &LiveTrees,
    replacing: bool,
    in_memory: bool,
) -> Result<()> {
    check_superblock(volume, in_memory)?;
    if !in_memory && let Some((_, cause)) = incomplete_chunks(volume).next() {
        return refuse(&cause);
    }
    let replacing = replacing || in_memory;
    let key = Key::new(objectid::DEV_REPLACE, ItemType::DEV_REPLACE, 0);
    if let Some(item) = live.get(objectid::DEV_TREE)?.tree().get(&key)? {
        let replace = DevReplaceItem::parse(item.data()).map_err(|reason| Error::Item {
            tree: objectid::DEV_TREE,
            key,
            reason,
        })?;
        let target = volume.devices().iter().any(|slot| slot.devid() == DeviceId(0) && !slot.is_missing());
        if replace.is_under_way() && !replacing && !target {
            return refuse(
                "a device is being replaced; name the new device, too, or finish or cancel that (papilio replace)",
            );
        }
    }
    Ok(())
}

/// Returns the chunks that could not be written safely, and why: more of their devices are missing,
/// or missed writes, than their profile tolerates.
pub(super) fn incomplete_chunks(volume: &Volume) -> impl Iterator<Item = (LogicalAddress, String)> {
    let devices = volume.devices();
    let chunks = volume.chunk_map();
    let mut incomplete = Vec::new();
    for chunk in chunks.iter() {
        let (mut missing, mut stale) = (Vec::new(), Vec::new());
        for stripe in chunk.stripes() {
            match devices.find(stripe) {
                Some((_, slot)) if slot.stale => stale.push(stripe.devid.to_string()),
                Some((_, slot)) if !slot.is_missing() => {}
                _ => missing.push(stripe.devid.to_string()),
            }
        }
        if missing.len() + stale.len() <= chunk.profile().tolerated_failures() {
            continue;
        }
        let mut causes = Vec::new();
        for (devices, what) in [(missing, "missing"), (stale, "out of date, because they missed writes")] {
            if !devices.is_empty() {
                causes.push(format!("devices {} are {what}", devices.join(", ")));
            }
        }
        let cause = format!(
            "the chunk at {} ({:?}) cannot be written without loss: {}",
            chunk.start(),
            chunk.profile(),
            causes.join(", and ")
        );
        incomplete.push((chunk.start(), cause));
    }
    incomplete.into_iter()
}

fn check_superblock(volume: &Volume, in_memory: bool) -> Result<()> {
    let superblock = volume.superblock();
    let raw = &superblock.raw;
    if raw.flags.contains(SuperblockFlags::SEEDING) {
        return refuse("it is a seed file system");
    }
    let mut harmless = SuperblockFlags::WRITTEN | SuperblockFlags::RELOC | SuperblockFlags::ERROR;
    if in_memory {
        // A dump has all metadata, so its log can be replayed.
        harmless |= SuperblockFlags::METADUMP | SuperblockFlags::METADUMP_V2;
    }
    if !harmless.contains(raw.flags) {
        let flags = raw.flags.difference(harmless).bits();
        return refuse(&format!(
            "its superblock has unsupported flags ({flags:#x}): it is being converted, or is a metadata dump"
        ));
    }
    if raw.generation.0 > MOST_COMMITS {
        return refuse(&format!(
            "its generation {} is damaged: it leaves no numbers for commits",
            raw.generation.0
        ));
    }
    let compat_ro = raw.compat_ro_flags;
    if compat_ro.unsupported() != 0 {
        return refuse(&format!(
            "it has unknown read-only-compatible features ({:#x})",
            compat_ro.unsupported()
        ));
    }
    if compat_ro.contains(CompatRoFeatures::FREE_SPACE_TREE)
        && !compat_ro.contains(CompatRoFeatures::FREE_SPACE_TREE_VALID)
    {
        return refuse("its free-space tree is not valid; mount it with the kernel once to rebuild it");
    }
    Ok(())
}

/// Returns the error for a file system that is not to be written.
pub(super) fn refuse(cause: &str) -> Result<()> {
    Err(Error::ReadOnlyFileSystem { cause: cause.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::testing::{TestVolume, write_superblock};
    use papilio_format::Generation;
    use papilio_format::items::block_group::BlockGroupFlags;
    use papilio_format::items::chunk::RaidProfile;

    #[test]
    fn commits_need_numbers() {
        let mut test = TestVolume::new(RaidProfile::Single, 1);
        for (generation, fits) in [(MOST_COMMITS, true), (MOST_COMMITS + 1, false), (u64::MAX, false)] {
            test.superblocks[0].generation = Generation(generation);
            write_superblock(&*test.devices[0], &test.superblocks[0]);
            let checked = check_superblock(&test.open(0, false).unwrap(), false);
            assert_eq!(checked.is_ok(), fits, "{generation}");
            if let Err(error) = checked {
                assert!(error.to_string().contains(&generation.to_string()), "{error}");
            }
        }
    }

    #[test]
    fn devices_that_are_missing_or_late_count_together() {
        // The data has two copies, on the devices 1 and 2.
        let mut test = TestVolume::new(RaidProfile::Raid1c3, 3);
        test.data_chunk.1.flags = BlockGroupFlags::DATA | BlockGroupFlags::RAID1;
        test.data_chunk.1.stripes.retain(|stripe| stripe.devid != DeviceId(3));
        let newest = test.copy();
        test.miss_commits(1);
        let cause = |test: &TestVolume, missing| {
            let volume = test.open(missing, true).unwrap();
            incomplete_chunks(&volume).next().map(|(_, cause)| cause)
        };
        assert_eq!(cause(&newest, 0), None);
        assert_eq!(cause(&newest, 0b001), None);
        assert_eq!(cause(&newest, 0b110), None);
        assert_eq!(cause(&test, 0), None);
        assert_eq!(cause(&test, 0b100), None);
        let both = cause(&test, 0b001).unwrap();
        let expected = "devices 1 are missing, and devices 2 are out of date, because they missed writes";
        assert!(both.contains(expected), "{both}");
    }
}
