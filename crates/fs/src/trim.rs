//! Discarding free space: the public method of [`papilio_engine::jobs::trim`].
//!
//! Owns [`FileSystem::trim`].

use crate::file_system::FileSystem;
use papilio_engine::errors::Result;
use std::ops::Range;

impl FileSystem {
    /// Discards free space: in chunks, the logical addresses in `range` (as in `fstrim`'s offset
    /// and length), and all space of the devices outside chunks. Skips runs of less than
    /// `min_length` bytes. Commits first, so that deleted files count as free. Returns the number
    /// of bytes discarded.
    ///
    /// # Errors
    /// `PathError::NotSupported` if a device does not support discard; a device that fails; as
    /// [`FileSystem::sync`].
    pub fn trim(&self, range: Range<u64>, min_length: u64) -> Result<u64> {
        self.info.trim(range, min_length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CheckOptions, MkfsOptions, OpenOptions};
    use papilio_device::{Device, MemoryDevice};
    use std::sync::Arc;

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
