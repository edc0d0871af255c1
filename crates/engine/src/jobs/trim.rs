//! Discarding free space (`FITRIM`).
//!
//! Owns [`FsInfo::trim`].
//!
//! **Invariants**
//! - A range is discarded only while no thread can allocate it.
//! - Superblock copies are never discarded.
//!
//! **Locks:** that of the space or of the chunks, held for one piece at a time.
//!
//! Kernel counterpart: `btrfs_trim_fs`, `btrfs_issue_discard` (`fs/btrfs/extent-tree.c`).

use crate::errors::{Error, Result};
use crate::file::fs_info::FsInfo;
use crate::transaction::discards::{discard, without_superblocks};
use papilio_device::Device;
use papilio_format::DeviceId;
use std::ops::Range;

/// Bytes to discard while holding the lock of the space once.
const SPACE_PIECE: u64 = 64 << 20;
/// Bytes to discard while holding the lock of the chunks once.
const DEVICE_PIECE: u64 = 1 << 30;

impl FsInfo {
    /// Discards free space: in chunks, the logical addresses in `range` (as in `fstrim`'s offset
    /// and length), and all space of the devices outside chunks. Skips runs of less than
    /// `min_length` bytes. Commits first, so that deleted files count as free. Returns the number
    /// of bytes discarded.
    ///
    /// # Errors
    /// [`NotSupported`](crate::errors::PathError::NotSupported) if a device does not support
    /// discard; a device that fails; as [`FsInfo::sync`].
    pub fn trim(&self, range: Range<u64>, min_length: u64) -> Result<u64> {
        let transactions = self.transactions()?;
        self.heal();
        self.sync()?;
        let volume = self.volume();
        let min_length = min_length.max(1);
        let mut bytes = 0;
        let mut at = range.start;
        while at < range.end {
            let next = transactions.space().with_free(at..range.end, min_length, SPACE_PIECE, |free| {
                bytes += free.length;
                volume.discard(free.start, free.length).map(drop)
            })?;
            match next {
                Some(next) => at = next,
                None => break,
            }
        }
        for slot in volume.devices().iter().filter(|slot| slot.in_chunk_tree) {
            if let Some(device) = &slot.device {
                bytes += self.trim_unallocated(slot.devid(), &**device, min_length)?;
            }
        }
        Ok(bytes)
    }

    fn trim_unallocated(&self, devid: DeviceId, device: &dyn Device, min_length: u64) -> Result<u64> {
        let chunks = self.transactions()?.chunks();
        let (mut bytes, mut at) = (0, 0);
        loop {
            let next = chunks.with_unallocated(devid, at, min_length, DEVICE_PIECE, |range| {
                let end = range.end.min(device.size());
                for piece in without_superblocks(range.start..end.max(range.start)) {
                    discard(device, &piece)?;
                    bytes += piece.end - piece.start;
                }
                Ok::<_, Error>(())
            })?;
            match next {
                Some(next) => at = next,
                None => return Ok(bytes),
            }
        }
    }
}
