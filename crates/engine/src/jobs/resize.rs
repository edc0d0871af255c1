//! Changing the size of a device's file system, and the label.
//!
//! Owns [`FsInfo::resize`], [`FsInfo::minimum_size`] and [`FsInfo::set_label`].
//!
//! **Invariant:** the superblock's total is never below the sum of the device items, because the
//! kernel refuses such a file system. The total grows first and shrinks last.
//!
//! **Locks:** those of a commit and of a transaction handle.
//!
//! Kernel counterparts: `btrfs_grow_device`, `btrfs_shrink_device` (`fs/btrfs/volumes.c`),
//! `btrfs_ioctl_set_fslabel` (`fs/btrfs/ioctl.c`).

use super::balance::BalanceReport;
use crate::errors::{Error, Result};
use crate::file::exclusive::Operation;
use crate::file::fs_info::FsInfo;
use papilio_format::superblock::LABEL_SIZE;
use papilio_format::{DeviceId, ItemType, Key, objectid};

impl FsInfo {
    /// Returns the smallest size in bytes that [`FsInfo::resize`] can shrink a device to: the
    /// end of its last chunk.
    ///
    /// # Errors
    /// A file system that is open for reading only, or a device that is not part of it.
    pub fn minimum_size(&self, devid: DeviceId) -> Result<u64> {
        self.device_bytes(devid)?;
        Ok(self.transactions()?.chunks().device_end(devid).unwrap_or(0))
    }

    /// Sets the bytes of a device that the file system uses, rounded down to whole sectors, and
    /// returns them. The change is durable on return. To shrink an image file, truncate it after
    /// the file system is closed; to grow one, extend it before the file system is opened.
    ///
    /// No data is moved, so that the size cannot go below [`FsInfo::minimum_size`].
    /// [`FsInfo::shrink`] moves data.
    ///
    /// # Errors
    /// [`Error::TooSmall`] with the smallest possible size; [`Error::Truncated`] if the device is
    /// smaller than `total_bytes`; [`Error::Busy`] while another operation runs; as
    /// [`FsInfo::sync`].
    pub fn resize(&self, devid: DeviceId, total_bytes: u64) -> Result<u64> {
        let _running = self.exclusive.begin(Operation::Resize)?;
        self.set_size(devid, total_bytes)
    }

    fn set_size(&self, devid: DeviceId, total_bytes: u64) -> Result<u64> {
        let transactions = self.transactions()?;
        let sector_size = u64::from(self.volume().geometry().sector_size);
        let total_bytes = total_bytes - total_bytes % sector_size;
        // The commit removes empty block groups, which may be at the end.
        self.commit()?;
        let before = self.device_bytes(devid)?;
        let minimum = self.minimum_size(devid)?;
        if total_bytes < minimum {
            let devices = self.volume().devices();
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
        self.commit()?;
        Ok(total_bytes)
    }

    /// Shrinks a device as [`FsInfo::resize`], and moves what lies behind its new end. Calls
    /// `progress` after each batch; where it returns false, the size stays. Returns the new size,
    /// or `None` if the size stays.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if what would be left is too small; as [`FsInfo::resize`] and
    /// [`FsInfo::balance`].
    pub fn shrink(
        &self,
        devid: DeviceId,
        total_bytes: u64,
        progress: &mut dyn FnMut(&BalanceReport) -> bool,
    ) -> Result<Option<u64>> {
        let _running = self.exclusive.begin(Operation::Resize)?;
        self.commit()?;
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
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        if label.len() >= LABEL_SIZE {
            return Err(Error::Invalid(format!("label of {} bytes: at most 255 are allowed", label.len())));
        }
        if label.contains(&0) || label.contains(&b'\n') {
            return Err(Error::Invalid("label contains a NUL or a line break".to_owned()));
        }
        let transactions = self.transactions()?;
        transactions.check_running()?;
        transactions.update_superblock(|raw| {
            raw.label = [0; LABEL_SIZE];
            raw.label[..label.len()].copy_from_slice(label);
        });
        Ok(())
    }

    fn device_bytes(&self, devid: DeviceId) -> Result<u64> {
        let devices = self.volume().devices();
        let slot = devices.iter().find(|slot| slot.in_chunk_tree && slot.devid() == devid);
        let slot =
            slot.ok_or_else(|| Error::Invalid(format!("device {devid} is not part of the file system")))?;
        Ok(slot.item.total_bytes)
    }

    fn check_device_holds(&self, devid: DeviceId, need: u64) -> Result<()> {
        let devices = self.volume().devices();
        let slot = devices.iter().find(|slot| slot.devid() == devid);
        match slot.and_then(|slot| slot.device.as_deref()) {
            Some(device) if device.size() < need => {
                Err(Error::Truncated { device: device.name().to_owned(), need, have: device.size() })
            }
            _ => Ok(()),
        }
    }

    fn change_device_size(&self, devid: DeviceId, total_bytes: u64) -> Result<()> {
        let volume = self.volume();
        self.transactions()?.change(2, |handle| {
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
