//! Devices: their items, the ranges of them in use, and their statistics.
//!
//! Owns [`DeviceItem`]. Sources: `struct btrfs_dev_item` (`include/uapi/linux/btrfs_tree.h`),
//! `check_dev_item` (`fs/btrfs/tree-checker.c`).

use crate::disk::disk_struct;
use crate::units::{DeviceId, Generation};
use uuid::Uuid;

disk_struct! {
    /// One device: key (DEV_ITEMS, DEV_ITEM, device id).
    pub struct DeviceItem as DeviceItemDisk = 98 {
        /// The device's number.
        pub devid: DeviceId,
        /// Bytes of the device.
        pub total_bytes: u64,
        /// Bytes that chunks use.
        pub bytes_used: u64,
        /// Optimal I/O alignment in bytes.
        pub io_align: u32,
        /// Optimal I/O width in bytes.
        pub io_width: u32,
        /// The sector size.
        pub sector_size: u32,
        /// Reserved (`type`).
        pub device_type: u64,
        /// Generation at which the device was added, or 0.
        pub generation: Generation,
        /// Start of allocation, unused.
        pub start_offset: u64,
        /// Reserved.
        pub dev_group: u32,
        /// Reserved.
        pub seek_speed: u8,
        /// Reserved.
        pub bandwidth: u8,
        /// The device's own UUID.
        pub uuid: Uuid,
        /// UUID of the file system that the device belongs to.
        pub fsid: Uuid,
    }
}
