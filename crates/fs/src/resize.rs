//! Sizes of devices, and the label: the public methods of [`papilio_engine::jobs::resize`].
//!
//! Owns [`FileSystem::resize`], [`FileSystem::shrink`], [`FileSystem::minimum_size`] and
//! [`FileSystem::set_label`].

use crate::balance::BalanceReport;
use crate::file_system::FileSystem;
use papilio_engine::errors::Result;
use papilio_format::DeviceId;

impl FileSystem {
    /// Returns the smallest size in bytes that [`FileSystem::resize`] can shrink a device to: the
    /// end of its last chunk.
    ///
    /// # Errors
    /// A file system that is open for reading only, or a device that is not part of it.
    pub fn minimum_size(&self, devid: DeviceId) -> Result<u64> {
        self.info.minimum_size(devid)
    }

    /// Sets the bytes of a device that the file system uses, rounded down to whole sectors, and
    /// returns them. The change is durable on return. To shrink an image file, truncate it after
    /// the file system is closed; to grow one, extend it before the file system is opened.
    ///
    /// No data is moved, so that the size cannot go below [`FileSystem::minimum_size`].
    /// [`FileSystem::shrink`] moves data.
    ///
    /// # Errors
    /// [`Error::TooSmall`](papilio_engine::Error::TooSmall) with the smallest possible size;
    /// [`Error::Truncated`](papilio_engine::Error::Truncated) if the device is smaller than
    /// `total_bytes`; [`Error::Busy`](papilio_engine::Error::Busy) while another operation runs; as
    /// [`FileSystem::sync`].
    pub fn resize(&self, devid: DeviceId, total_bytes: u64) -> Result<u64> {
        self.info.resize(devid, total_bytes)
    }

    /// Shrinks a device as [`FileSystem::resize`], and moves what lies behind its new end. Calls
    /// `progress` after each batch; where it returns false, the size stays. Returns the new size,
    /// or `None` if the size stays.
    ///
    /// # Errors
    /// [`Error::NoSpace`](papilio_engine::Error::NoSpace) if what would be left is too small; as
    /// [`FileSystem::resize`] and [`FileSystem::balance`].
    pub fn shrink(
        &self,
        devid: DeviceId,
        total_bytes: u64,
        mut progress: impl FnMut(&BalanceReport) -> bool,
    ) -> Result<Option<u64>> {
        self.info.shrink(devid, total_bytes, &mut progress)
    }

    /// Sets the label, which may be empty. The next commit makes it durable.
    ///
    /// # Errors
    /// [`Error::Invalid`](papilio_engine::Error::Invalid) for a label of more than 255 bytes or
    /// with a NUL or a line break; a read-only file system.
    pub fn set_label(&self, label: impl AsRef<[u8]>) -> Result<()> {
        self.info.set_label(label.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use crate::{CheckOptions, Error, FileSystem, MkfsOptions, OpenOptions};
    use papilio_device::{Device, MemoryDevice};
    use papilio_format::DeviceId;
    use std::sync::Arc;

    const DEVICE: DeviceId = DeviceId(1);

    fn open(device: &Arc<MemoryDevice>) -> FileSystem {
        let options = OpenOptions::new().write(true).commit_interval(None);
        FileSystem::from_devices(vec![device.clone() as Arc<dyn Device>], &options).unwrap()
    }

    fn assert_clean(device: &Arc<MemoryDevice>) {
        let devices = vec![device.clone() as Arc<dyn Device>];
        let report = crate::check_devices(devices, &OpenOptions::new(), &CheckOptions::new()).unwrap();
        assert!(report.is_clean(), "{:#?}", report.findings);
    }

    #[test]
    fn resize_shrinks_to_the_last_chunk_and_grows_again() {
        let device = Arc::new(MemoryDevice::new(512 << 20));
        let options = MkfsOptions::new().size(256 << 20);
        crate::mkfs_device(&(device.clone() as Arc<dyn Device>), &options).unwrap();
        let fs = open(&device);
        fs.create_file("/f").unwrap().write_all_at(&vec![7; 20 << 20], 0).unwrap();
        fs.sync().unwrap();
        let minimum = fs.minimum_size(DEVICE).unwrap();
        assert!(minimum > 20 << 20 && minimum < 256 << 20, "{minimum}");
        match fs.resize(DEVICE, minimum - 1) {
            Err(Error::TooSmall { minimum: told, .. }) => assert_eq!(told, minimum),
            other => panic!("{other:?}"),
        }
        assert_eq!(fs.resize(DEVICE, minimum + 100).unwrap(), minimum);
        assert_eq!(fs.superblock().raw.total_bytes, minimum);
        assert_clean(&device);
        let data = vec![1; 200 << 20];
        let full = fs.create_file("/g").unwrap().write_all_at(&data, 0).unwrap_err();
        assert!(matches!(full, Error::NoSpace { .. }), "{full}");
        fs.remove_file("/g").unwrap();
        assert!(matches!(fs.resize(DEVICE, 1 << 30), Err(Error::Truncated { .. })));
        assert_eq!(fs.resize(DEVICE, 512 << 20).unwrap(), 512 << 20);
        fs.create_file("/g").unwrap().write_all_at(&data, 0).unwrap();
        assert!(fs.resize(DeviceId(2), 512 << 20).is_err());
        fs.set_label("renamed").unwrap();
        assert!(fs.set_label("two\nlines").is_err() && fs.set_label([b'x'; 256]).is_err());
        fs.close().unwrap();
        assert_clean(&device);
        let fs = open(&device);
        assert_eq!((fs.label(), fs.superblock().raw.total_bytes), (b"renamed".to_vec(), 512 << 20));
        assert_eq!(fs.read("/g").unwrap(), data);
    }
}
