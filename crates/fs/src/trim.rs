//! Discarding free space (`FITRIM`).
//!
//! Owns [`FileSystem::trim`].
//!
//! **Invariants**
//! - A range is discarded only while no thread can allocate it.
//! - Superblock copies are never discarded.
//!
//! **Locks:** that of the space or of the chunks, held for one piece at a time.
//!
//! Kernel counterpart: `btrfs_trim_fs`, `btrfs_issue_discard` (`fs/btrfs/extent-tree.c`).

use crate::file_system::FileSystem;
use papilio_device::Device;
use papilio_engine::errors::{Error, PathError, Result};
use papilio_format::superblock::{SUPERBLOCK_SIZE, superblock_offset};
use papilio_format::{DeviceId, PhysicalAddress};
use std::io;
use std::ops::Range;

/// Bytes to discard while holding the lock of the space once.
const SPACE_PIECE: u64 = 64 << 20;
/// Bytes to discard while holding the lock of the chunks once.
const DEVICE_PIECE: u64 = 1 << 30;

impl FileSystem {
    /// Discards free space: in chunks, the logical addresses in `range` (as in `fstrim`'s offset
    /// and length), and all space of the devices outside chunks. Skips runs of less than
    /// `min_length` bytes. Commits first, so that deleted files count as free. Returns the number
    /// of bytes discarded.
    ///
    /// # Errors
    /// [`PathError::NotSupported`] if a device does not support discard; a device that fails; as
    /// [`FileSystem::sync`].
    pub fn trim(&self, range: Range<u64>, min_length: u64) -> Result<u64> {
        let transactions = self.info.transactions()?;
        self.sync()?;
        let volume = self.info.volume();
        let min_length = min_length.max(1);
        let mut bytes = 0;
        let mut at = range.start;
        while at < range.end {
            let next = transactions.space().with_free(at..range.end, min_length, SPACE_PIECE, |free| {
                bytes += free.length;
                volume.discard(free.start, free.length)
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
        let chunks = self.info.transactions()?.chunks();
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

/// Returns the parts of a device's range outside the superblock copies.
fn without_superblocks(range: Range<u64>) -> Vec<Range<u64>> {
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

fn discard(device: &dyn Device, range: &Range<u64>) -> Result<()> {
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
    use crate::{CheckOptions, MkfsOptions, OpenOptions};
    use papilio_device::MemoryDevice;
    use std::sync::Arc;

    #[test]
    fn superblock_copies_are_not_discarded() {
        let copy = 64 << 20;
        assert_eq!(without_superblocks(0..1 << 20), [0..64 << 10, (64 << 10) + 4096..1 << 20]);
        assert_eq!(without_superblocks(copy..copy + 4096), []);
        assert_eq!(without_superblocks(copy - 1..copy + 4097), [copy - 1..copy, copy + 4096..copy + 4097]);
        let between = 5 << 20..6 << 20;
        assert_eq!(without_superblocks(between.clone()), std::slice::from_ref(&between));
    }

    #[test]
    fn only_free_space_is_discarded() {
        let device = Arc::new(MemoryDevice::new(512 << 20));
        crate::mkfs_device(&(device.clone() as Arc<dyn Device>), &MkfsOptions::new()).unwrap();
        let devices = || vec![device.clone() as Arc<dyn Device>];
        let options = OpenOptions::new().write(true).commit_interval(None);
        let fs = FileSystem::from_devices(devices(), &options).unwrap();
        let (kept, gone) = (vec![7; 3 << 20], vec![0xab; 5 << 20]);
        fs.create_file("/kept").unwrap().write_all_at(&kept, 0).unwrap();
        fs.create_file("/gone").unwrap().write_all_at(&gone, 0).unwrap();
        fs.sync().unwrap();
        let extent = fs.open_file("/gone").unwrap().fiemap(0).unwrap()[0];
        fs.remove_file("/gone").unwrap();
        // A memory device reads as zeros where it was discarded.
        let shows = |fs: &FileSystem| {
            let mut bytes = vec![0; 4096];
            fs.info.volume().read(extent.address, &mut bytes).unwrap();
            bytes == vec![0xab; 4096]
        };
        assert!(shows(&fs));
        let first = fs.trim(0..u64::MAX, 0).unwrap();
        assert!(first > 400 << 20 && first < 512 << 20, "{first}");
        assert!(!shows(&fs));
        // Skips short runs and addresses outside the range.
        let whole = fs.usage().unwrap();
        assert!(fs.trim(0..u64::MAX, 1 << 40).unwrap() == 0);
        // Space without chunks: most of it is one run, and no run is longer than all of it.
        let unallocated = fs.trim(0..0, 0).unwrap();
        assert!(unallocated > 0 && unallocated <= whole.unallocated());
        assert!(fs.trim(0..0, unallocated / 2).unwrap() > unallocated / 2);
        assert_eq!(fs.trim(0..0, whole.unallocated() + 1).unwrap(), 0);
        // Block groups have runs of 1 MiB, too: where the removed file was.
        assert!(fs.trim(0..u64::MAX, 1 << 20).unwrap() > unallocated + (4 << 20));
        fs.create_file("/more").unwrap().write_all_at(&gone, 0).unwrap();
        assert_eq!(fs.read("/kept").unwrap(), kept);
        fs.close().unwrap();
        let check = CheckOptions::new().data_csum(true);
        assert!(crate::check_devices(devices(), &OpenOptions::new(), &check).unwrap().is_clean());
        let fs = FileSystem::from_devices(devices(), &OpenOptions::new()).unwrap();
        assert_eq!((fs.read("/kept").unwrap(), fs.read("/more").unwrap()), (kept, gone));
        assert!(fs.trim(0..u64::MAX, 0).is_err());
    }
}
