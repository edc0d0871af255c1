//! Discarding freed space (`discard=async`), and the ranges of a device that may be discarded.
//!
//! Owns the methods of [`Transactions`] that take batches from the pending discards.
//!
//! **Invariant**: a range is discarded only while no thread can allocate it. Space of a batch that
//! is in use by then is left out; the transaction that frees it notes it again.
//!
//! **Locks:** that of the space or of the chunks, held for one piece at a time.
//!
//! Kernel counterpart: `btrfs_discard_workfn` (`fs/btrfs/discard.c`).

use super::pending_discards::LEAST;
use super::transaction::Transactions;
use crate::errors::{Error, PathError, Result};
use crate::options::DiscardMode;
use papilio_device::Device;
use papilio_format::superblock::{SUPERBLOCK_SIZE, superblock_offset};
use papilio_format::{DeviceId, PhysicalAddress};
use std::io;
use std::ops::Range;

/// Bytes to discard while holding a lock once.
const PIECE: u64 = 16 << 20;
/// Waiting bytes for which it is worth to commit without a change.
const WORTH_COMMITS: u64 = 1 << 20;

impl Transactions {
    /// Discards freed space that no superblock leads to. Calls `pause` with the bytes of each
    /// piece; it says whether to go on. Space that is left then stays as it is until it is freed
    /// again.
    ///
    /// # Errors
    /// A device that fails. Devices that know no discard are no failure.
    pub fn discard_freed(&self, mut pause: impl FnMut(u64) -> bool) -> Result<u64> {
        let mut bytes = 0;
        let mut note = |piece: u64| {
            bytes += piece;
            pause(piece)
        };
        'batches: while let Some(batch) = self.discards.take_ripe() {
            for range in batch.logical.iter() {
                if !self.discard_logical(range, &mut note)? {
                    break 'batches;
                }
            }
            for (devid, ranges) in batch.physical {
                for range in ranges.iter() {
                    if !self.discard_unallocated(devid, range, &mut note)? {
                        break 'batches;
                    }
                }
            }
        }
        Ok(bytes)
    }

    /// Whether a background thread is to discard freed space.
    pub fn discards_in_background(&self) -> bool {
        self.options.discard == DiscardMode::Async && !self.options.discards_in_commits
    }

    /// Commits without a change if much freed space waits for that: a file system that is idle
    /// keeps its backup roots otherwise.
    ///
    /// # Errors
    /// As [`Transactions::commit`].
    pub fn commit_for_discards(&self) -> Result<()> {
        if self.options.discard != DiscardMode::Async || self.discards.waiting_bytes() < WORTH_COMMITS {
            return Ok(());
        }
        self.commit_anyway()
    }

    fn discard_logical(&self, range: Range<u64>, note: &mut impl FnMut(u64) -> bool) -> Result<bool> {
        let mut at = range.start;
        while at < range.end {
            let (mut bytes, mut is_known) = (0, true);
            let next = self.space.with_free(at..range.end, LEAST, PIECE, |free| {
                is_known = self.volume.discard(free.start, free.length)?;
                bytes = free.length;
                Ok::<_, Error>(())
            })?;
            let Some(next) = next else { break };
            if !is_known {
                // No device supports discards: nothing has to wait for commits.
                self.discards.clear();
                return Ok(false);
            }
            if !note(bytes) {
                return Ok(false);
            }
            at = next;
        }
        Ok(true)
    }

    pub(super) fn discard_unallocated(
        &self,
        devid: DeviceId,
        range: Range<u64>,
        note: &mut impl FnMut(u64) -> bool,
    ) -> Result<bool> {
        let devices = self.volume.devices();
        let slot = devices.iter().find(|slot| slot.in_chunk_tree && slot.devid() == devid);
        let Some(device) = slot.and_then(|slot| slot.device.as_ref()) else { return Ok(true) };
        let mut at = range.start;
        while at < range.end {
            let mut known = 0;
            let found = self.chunks.with_unallocated(devid, at, 1, PIECE, |free| {
                let end = free.end.min(range.end).min(device.size());
                for piece in without_superblocks(free.start..end.max(free.start)) {
                    discard(&**device, &piece)?;
                    known += piece.end - piece.start;
                }
                Ok::<_, Error>(())
            });
            match found {
                Ok(Some(next)) => at = next,
                Ok(None) => break,
                Err(Error::Path { kind: PathError::NotSupported, .. }) => return Ok(true),
                Err(error) => return Err(error),
            }
            if !note(known) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Returns the parts of a device's range outside the superblock copies.
pub fn without_superblocks(range: Range<u64>) -> Vec<Range<u64>> {
    let mut parts = vec![range];
    for mirror in 0..3 {
        let start = superblock_offset(mirror).0;
        let copy = start..start + SUPERBLOCK_SIZE as u64;
        parts = parts
            .into_iter()
            .flat_map(|part| [part.start..part.end.min(copy.start), part.start.max(copy.end)..part.end])
            .filter(|part| part.start < part.end)
            .collect();
    }
    parts
}

/// Discards a range of a device.
///
/// # Errors
/// [`PathError::NotSupported`] if the device does not support that; a device that fails.
pub fn discard(device: &dyn Device, range: &Range<u64>) -> Result<()> {
    let (offset, length) = (PhysicalAddress(range.start), range.end - range.start);
    device.discard(offset, length).map_err(|source| match source.kind() {
        io::ErrorKind::Unsupported => Error::path(device.name().as_bytes(), PathError::NotSupported),
        _ => {
            let (device, length) = (device.name().to_owned(), usize::try_from(length).unwrap_or(usize::MAX));
            Error::Device { device, operation: "discard", offset, length, source }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn superblock_copies_are_not_discarded() {
        let copy = 64 << 20;
        assert_eq!(without_superblocks(0..1 << 20), [0..64 << 10, (64 << 10) + 4096..1 << 20]);
        assert_eq!(without_superblocks(copy..copy + 4096), []);
        assert_eq!(without_superblocks(copy - 1..copy + 4097), [copy - 1..copy, copy + 4096..copy + 4097]);
        let between = 5 << 20..6 << 20;
        assert_eq!(without_superblocks(between.clone()), std::slice::from_ref(&between));
    }
}
