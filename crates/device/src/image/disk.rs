//! The disk in an image, and the content of its partitions.
//!
//! Owns [`OpenedImage`] and [`Content`].

use super::format::{self, ImageFormat};
use crate::device::Device;
use crate::error::OpenErrorKind;
use crate::partition::PartitionDevice;
use crate::partition_table::{Partition, PartitionTable};
use papilio_format::PhysicalAddress;
use std::sync::Arc;

/// A disk image before the choice of a partition.
#[derive(Debug)]
pub struct OpenedImage {
    /// The whole disk.
    pub disk: Arc<dyn Device>,
    /// The format of the file.
    pub format: ImageFormat,
    /// The partition table, unless the disk is one file system as a whole, or has none.
    pub table: Option<PartitionTable>,
}

/// The content of a disk at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// A Btrfs superblock.
    Btrfs,
    /// Something that is known by name.
    Other(&'static str),
    /// Nothing that is known.
    Unknown,
}

/// Returns whether the disk has the magic number of Btrfs in the first superblock of the range that
/// starts at `start`.
pub(super) fn is_btrfs(disk: &dyn Device, start: PhysicalAddress) -> bool {
    const MAGIC: (u64, &[u8; 8]) = (0x1_0040, b"_BHRfS_M");
    let mut magic = [0; 8];
    let place = start.checked_add(MAGIC.0);
    // A device that cannot be read is reported when its superblock is read.
    place.is_some_and(|place| disk.read_at(&mut magic, place).is_ok()) && &magic == MAGIC.1
}

/// Returns whether a file is a raw image of a Btrfs file system. A raw image may begin with any
/// bytes. An image of another format may have a superblock at the same place: that of its disk, in
/// its first cluster. The file is then shorter than the device that the superblock describes.
pub(super) fn is_raw_btrfs(file: &dyn Device) -> bool {
    /// The offset of `dev_item.total_bytes` (`struct btrfs_super_block`).
    const TOTAL_BYTES: u64 = 0x1_00d1;
    if !is_btrfs(file, PhysicalAddress(0)) {
        return false;
    }
    let mut start = [0; format::LONGEST_MAGIC];
    let is_container = file.read_at(&mut start, PhysicalAddress(0)).is_ok()
        && format::by_magic(&start).is_some_and(ImageFormat::holds_a_disk);
    let is_longer = || {
        let mut total = [0; 8];
        let read = file.read_at(&mut total, PhysicalAddress(TOTAL_BYTES));
        read.is_ok() && u64::from_le_bytes(total) > file.size()
    };
    !(is_container && is_longer())
}

/// Returns the content of a partition.
pub(crate) fn content_of(disk: &dyn Device, partition: &Partition) -> Content {
    if is_btrfs(disk, partition.start) {
        return Content::Btrfs;
    }
    let mut start = [0; 4096];
    let length = partition.length.min(start.len() as u64) as usize;
    if disk.read_at(&mut start[..length], partition.start).is_err() {
        return Content::Unknown;
    }
    format::other_content(&start[..length]).map_or(Content::Unknown, Content::Other)
}

impl OpenedImage {
    /// Reads the partition table of a disk, unless the disk is a file system as a whole.
    pub(super) fn of(disk: Arc<dyn Device>, format: ImageFormat) -> Result<Self, OpenErrorKind> {
        if is_btrfs(&*disk, PhysicalAddress(0)) {
            return Ok(Self { disk, format, table: None });
        }
        let table = PartitionTable::read(&*disk).map_err(OpenErrorKind::Io)?;
        Ok(Self { disk, format, table })
    }

    /// Returns a name for the content of a partition, such as `btrfs`; `None` if it is not known.
    pub fn content(&self, partition: &Partition) -> Option<&'static str> {
        match content_of(&*self.disk, partition) {
            Content::Btrfs => Some("btrfs"),
            Content::Other(name) => Some(name),
            Content::Unknown => None,
        }
    }
}

/// Returns a partition of a disk as a device.
pub(super) fn partition_device(
    disk: Arc<dyn Device>,
    partition: &Partition,
) -> Result<Arc<dyn Device>, OpenErrorKind> {
    let name = format!("{}@{}", disk.name(), partition.number);
    let device = PartitionDevice::new(disk, name, partition.start, partition.length);
    Ok(Arc::new(device.map_err(OpenErrorKind::Io)?))
}
