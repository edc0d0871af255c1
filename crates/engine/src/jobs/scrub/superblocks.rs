//! Verifying the superblock copies of the devices, and healing them.
//!
//! Owns [`verify`]. A copy is wrong if it cannot be parsed, is of another file system or another
//! device, or is not that of the last commit. A commit writes all copies anew.
//!
//! **Locks**: `commit`, while the copies are read.
//!
//! Kernel counterpart: `scrub_supers`, `scrub_one_super` (`fs/btrfs/scrub.c`).

use super::report::ScrubCounts;
use crate::errors::Result;
use crate::file::fs_info::FsInfo;
use crate::volume::{DeviceSlot, superblock_of};
use papilio_format::superblock::{RawSuperblock, SUPERBLOCK_MIRRORS, SUPERBLOCK_SIZE, superblock_offset};

/// Counts the wrong copies of each device in `counts`. With `mend`, a commit writes them anew.
///
/// # Errors
/// A commit that fails.
pub(super) fn verify(info: &FsInfo, counts: &mut [ScrubCounts], verified: &[bool], mend: bool) -> Result<()> {
    let devices = info.volume().devices();
    let mut check = |last: &RawSuperblock| {
        let slots = devices.iter().zip(counts.iter_mut()).zip(verified);
        for ((slot, counts), _) in slots.filter(|(_, verified)| **verified) {
            counts.super_errors += wrong_copies(slot, last);
        }
        devices.iter().zip(counts.iter()).any(|(_, counts)| counts.super_errors > 0)
    };
    let Some(transactions) = info.trees.transactions() else {
        check(&info.volume().superblock().raw);
        return Ok(());
    };
    if transactions.between_commits(check) && mend {
        transactions.commit_anyway()?;
    }
    Ok(())
}

/// Returns how many copies of a device are wrong.
fn wrong_copies(slot: &DeviceSlot, last: &RawSuperblock) -> u64 {
    let Some(device) = &slot.device else { return 0 };
    // A seed keeps the superblock that it had when it became one.
    if !slot.in_chunk_tree || slot.item.fsid != last.fsid && slot.item.fsid != last.metadata_uuid {
        return 0;
    }
    let copies = (0..SUPERBLOCK_MIRRORS)
        .filter(|&copy| superblock_offset(copy).0 + SUPERBLOCK_SIZE as u64 <= slot.item.total_bytes);
    let is_good = |copy| {
        superblock_of(&**device, copy).is_ok_and(|found| {
            found.raw.fsid == last.fsid
                && found.raw.generation == last.generation
                && found.raw.dev_item.devid == slot.item.devid
        })
    };
    copies.filter(|&copy| !is_good(copy)).count() as u64
}
