//! Changing the size of a device's file system, and the label.
//!
//! Owns [`FileSystem::resize`], [`FileSystem::minimum_size`] and [`FileSystem::set_label`].
//!
//! **Invariant:** the superblock's total is never below the sum of the device items, because the
//! kernel refuses such a file system. The total grows first and shrinks last.
//!
//! **Locks:** those of a commit and of a transaction handle.
//!
//! Kernel counterparts: `btrfs_grow_device`, `btrfs_shrink_device` (`fs/btrfs/volumes.c`),
//! `btrfs_ioctl_set_fslabel` (`fs/btrfs/ioctl.c`).

use crate::balance::BalanceReport;
use crate::file_system::FileSystem;
use papilio_engine::errors::{Error, Result};
use papilio_engine::file::exclusive::Operation;
use papilio_format::superblock::LABEL_SIZE;
use papilio_format::{DeviceId, ItemType, Key, objectid};

impl FileSystem {
    /// Returns the smallest size in bytes that [`FileSystem::resize`] can shrink a device to: the
    /// end of its last chunk.
    ///
    /// # Errors
    /// A file system that is open for reading only, or a device that is not part of it.
    pub fn minimum_size(&self, devid: DeviceId) -> Result<u64> {
        self.device_bytes(devid)?;
        Ok(self.info.transactions()?.chunks().device_end(devid).unwrap_or(0))
    }

    /// Sets the bytes of a device that the file system uses, rounded down to whole sectors, and
    /// returns them. The change is durable on return. To shrink an image file, truncate it after
    /// the file system is closed; to grow one, extend it before the file system is opened.
    ///
    /// No data is moved, so that the size cannot go below [`FileSystem::minimum_size`].
    /// [`FileSystem::shrink`] moves data.
    ///
    /// # Errors
    /// [`Error::TooSmall`] with the smallest possible size; [`Error::Truncated`] if the device is
    /// smaller than `total_bytes`; [`Error::Busy`] while another operation runs; as
    /// [`FileSystem::sync`].
    pub fn resize(&self, devid: DeviceId, total_bytes: u64) -> Result<u64> {
        let _running = self.info.exclusive.begin(Operation::Resize)?;
        self.set_size(devid, total_bytes)
    }

    fn set_size(&self, devid: DeviceId, total_bytes: u64) -> Result<u64> {
        let transactions = self.info.transactions()?;
        let sector_size = u64::from(self.info.volume().geometry().sector_size);
        let total_bytes = total_bytes - total_bytes % sector_size;
        // The commit removes empty block groups, which may be at the end.
        self.info.commit()?;
        let before = self.device_bytes(devid)?;
        let minimum = self.minimum_size(devid)?;
        if total_bytes < minimum {
            let devices = self.info.volume().devices();
            let slot = devices.iter().find(|slot| slot.devid() == devid);
            let device = slot.and_then(|slot| slot.name()).unwrap_or_default().to_owned();
            return Err(Error::TooSmall { device, size: total_bytes, minimum });
        }
        self.check_device_holds(devid, total_bytes)?;
        if total_bytes > before {
            transactions.update_superblock(|raw| raw.total_bytes += total_bytes - before);
        }
        transactions.chunks().resize(devid, total_bytes, transactions.space())?;
        let changed = self.change_device_size(devid, total_bytes);
        if let Err(error) = changed {
            let now = if transactions.check_running().is_ok() { before } else { total_bytes };
            transactions.chunks().resize(devid, now, transactions.space())?;
            if total_bytes > before {
                transactions.update_superblock(|raw| raw.total_bytes -= total_bytes - before);
            }
            return Err(error);
        }
        if total_bytes < before {
            transactions.update_superblock(|raw| raw.total_bytes -= before - total_bytes);
        }
        self.info.commit()?;
        Ok(total_bytes)
    }

    /// Shrinks a device as [`FileSystem::resize`], and moves what lies behind its new end. Calls
    /// `progress` after each batch; where it returns false, the size stays. Returns the new size,
    /// or `None` if the size stays.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if what would be left is too small; as [`FileSystem::resize`] and
    /// [`FileSystem::balance`].
    pub fn shrink(
        &self,
        devid: DeviceId,
        total_bytes: u64,
        progress: impl FnMut(&BalanceReport) -> bool,
    ) -> Result<Option<u64>> {
        let _running = self.info.exclusive.begin(Operation::Resize)?;
        self.info.commit()?;
        if total_bytes < self.minimum_size(devid)? && !self.vacate(devid, total_bytes, progress)? {
            return Ok(None);
        }
        self.set_size(devid, total_bytes).map(Some)
    }

    /// Sets the label, which may be empty. The next commit makes it durable.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a label of more than 255 bytes or with a NUL or a line break; a
    /// read-only file system.
    pub fn set_label(&self, label: impl AsRef<[u8]>) -> Result<()> {
        let label = label.as_ref();
        if label.len() >= LABEL_SIZE {
            return Err(Error::Invalid(format!("label of {} bytes: at most 255 are allowed", label.len())));
        }
        if label.contains(&0) || label.contains(&b'\n') {
            return Err(Error::Invalid("label contains a NUL or a line break".to_owned()));
        }
        let transactions = self.info.transactions()?;
        transactions.check_running()?;
        transactions.update_superblock(|raw| {
            raw.label = [0; LABEL_SIZE];
            raw.label[..label.len()].copy_from_slice(label);
        });
        Ok(())
    }

    fn device_bytes(&self, devid: DeviceId) -> Result<u64> {
        let devices = self.info.volume().devices();
        let slot = devices.iter().find(|slot| slot.in_chunk_tree && slot.devid() == devid);
        let slot =
            slot.ok_or_else(|| Error::Invalid(format!("device {devid} is not part of the file system")))?;
        Ok(slot.item.total_bytes)
    }

    fn check_device_holds(&self, devid: DeviceId, need: u64) -> Result<()> {
        let devices = self.info.volume().devices();
        let slot = devices.iter().find(|slot| slot.devid() == devid);
        match slot.and_then(|slot| slot.device.as_deref()) {
            Some(device) if device.size() < need => {
                Err(Error::Truncated { device: device.name().to_owned(), need, have: device.size() })
            }
            _ => Ok(()),
        }
    }

    fn change_device_size(&self, devid: DeviceId, total_bytes: u64) -> Result<()> {
        let volume = self.info.volume();
        self.info.transactions()?.change(2, |handle| {
            let devices = volume.devices();
            let slot =
                devices.iter().find(|slot| slot.devid() == devid).expect("device_bytes found the device");
            let mut item = slot.item;
            item.total_bytes = total_bytes;
            let key = Key::new(objectid::DEV_ITEMS, ItemType::DEV_ITEM, devid.0);
            let tree = handle.live_tree(objectid::CHUNK_TREE)?;
            tree.edit(handle).replace(key, &item.to_bytes())?;
            volume.set_device_item(item)
        })
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
