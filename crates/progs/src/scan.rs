//! Finding the devices of file systems by their superblocks.
//!
//! Owns [`FoundDevice`] and the rules for choosing among devices that claim the same place in a
//! file system. Nothing here locks or changes a device.
//!
//! **Invariants**
//! - Only regular files and block devices are opened: opening others could block or have effects.
//! - A device whose superblock is damaged is not found.
//!
//! Kernel counterpart: `btrfs_scan_one_device` (`fs/btrfs/volumes.c`).

use papilio_device::{
    Access, ImageOptions, OpenOptions, has_layers, is_inside_image, is_url, split_partition,
};
use papilio_engine::btree::{Forest, RootPointer};
use papilio_engine::errors::{Error, Result};
use papilio_engine::items::item_error;
use papilio_engine::volume::Volume;
use papilio_format::features::SuperblockFlags;
use papilio_format::items::device::DeviceItem;
use papilio_format::superblock::{RawSuperblock, SUPERBLOCK_SIZE, superblock_offset};
use papilio_format::{DeviceId, Generation, ItemType, Key, Superblock, Uuid, objectid};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The kernel's list of block devices, including partitions, loop devices and mapped ones.
const BLOCK_DEVICES: &str = "/sys/class/block";
/// Bytes of the cache for reading a chunk tree once.
const CACHE_BYTES: usize = 1 << 20;

/// A device or image with a valid superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FoundDevice {
    /// The path of the device or image.
    pub path: PathBuf,
    /// The UUID of the file system that users see.
    pub fsid: Uuid,
    /// The label of the file system; empty if there is none.
    pub label: Vec<u8>,
    /// The device's number in the file system.
    pub devid: DeviceId,
    /// The device's own UUID.
    pub uuid: Uuid,
    /// The number of devices of the file system.
    pub devices: u64,
    /// The generation of the last commit that this device has.
    pub generation: Generation,
    /// The size that the file system uses of the device, in bytes.
    pub size: u64,
    /// The bytes of it that are allocated.
    pub allocated: u64,
    /// The bytes that the whole file system uses.
    pub used: u64,
    /// Whether the file system is a seed, which is never written.
    pub seeding: bool,
}

impl FoundDevice {
    /// Reads the superblock of the device or image at `path`, of a partition (`IMAGE@N`) or of the
    /// disk in a qcow2 image, also if layers are in between. Returns `None` for one without a valid
    /// superblock.
    ///
    /// # Errors
    /// A file that does not exist, is neither a regular file nor a block device, or cannot be read.
    pub fn read(path: impl AsRef<Path>) -> Result<Option<Self>> {
        let path = path.as_ref();
        match Self::read_itself(path)? {
            None if has_layers(path) => Self::read_inside(path),
            found => Ok(found),
        }
    }

    /// As [`read`](Self::read), without opening layers: nobody is asked for a passphrase.
    fn read_itself(path: &Path) -> Result<Option<Self>> {
        let host = |source| Error::Host { path: path.to_path_buf(), source };
        if !is_url(path) && split_partition(path).1.is_some() {
            return Self::read_inside(path);
        }
        let kind = std::fs::metadata(path).map_err(host)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            let message = "neither a regular file nor a block device";
            return Err(host(io::Error::new(io::ErrorKind::InvalidInput, message)));
        }
        let file = File::open(path).map_err(host)?;
        let place = superblock_offset(0);
        let mut bytes = [0; SUPERBLOCK_SIZE];
        let found = match file.read_exact_at(&mut bytes, place.0) {
            Ok(()) => Superblock::parse(&bytes, place).ok(),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => None,
            Err(error) => return Err(host(error)),
        };
        match found {
            Some(superblock) => Ok(Some(Self::new(path, &superblock))),
            None if is_inside_image(path) => Self::read_inside(path),
            None => Ok(None),
        }
    }

    fn read_inside(path: &Path) -> Result<Option<Self>> {
        // As of a file: another program may be writing it.
        let options = OpenOptions::new(Access::ReadOnly).lock(false);
        let device = options.open_existing(path, &ImageOptions::default())?;
        let place = superblock_offset(0);
        let mut bytes = [0; SUPERBLOCK_SIZE];
        if device.size() < place.0 + bytes.len() as u64 {
            return Ok(None);
        }
        let host = |source| Error::Host { path: path.to_path_buf(), source };
        device.read_at(&mut bytes, place).map_err(host)?;
        Ok(Superblock::parse(&bytes, place).ok().map(|superblock| Self::new(path, &superblock)))
    }

    fn new(path: &Path, superblock: &Superblock) -> Self {
        let RawSuperblock { fsid, dev_item, num_devices, generation, bytes_used, .. } = superblock.raw;
        Self {
            path: path.to_path_buf(),
            fsid,
            label: superblock.label().to_vec(),
            devid: dev_item.devid,
            uuid: dev_item.uuid,
            devices: num_devices,
            generation,
            size: dev_item.total_bytes,
            allocated: dev_item.bytes_used,
            used: bytes_used,
            seeding: superblock.raw.flags.contains(SuperblockFlags::SEEDING),
        }
    }

    /// Whether an item of the chunk tree of another device names this one. The UUID of its file
    /// system may be another one: that of a seed, or of an interrupted change.
    pub fn is_named_by(&self, item: &DeviceItem) -> bool {
        (self.devid, self.uuid) == (item.devid, item.uuid)
    }

    /// Returns the items of all devices of the file system, seeds included, as the chunk tree has
    /// them.
    ///
    /// # Errors
    /// A chunk tree that cannot be read from this device alone.
    pub fn members(&self) -> Result<Vec<DeviceItem>> {
        let options = OpenOptions::new(Access::ReadOnly).lock(false);
        let device = options.open_existing(&self.path, &ImageOptions::default())?;
        let alone = papilio_engine::options::OpenOptions::new().degraded(true);
        let volume = Arc::new(Volume::open(vec![device], &alone)?);
        let raw = volume.superblock().raw;
        let root = RootPointer {
            address: raw.chunk_root,
            level: raw.chunk_root_level,
            generation: Some(raw.chunk_root_generation),
        };
        let tree = Forest::new(volume, CACHE_BYTES).tree(objectid::CHUNK_TREE, root);
        let items = Key::new(objectid::DEV_ITEMS, ItemType::DEV_ITEM, 0)
            ..=Key::new(objectid::DEV_ITEMS, ItemType::DEV_ITEM, u64::MAX);
        let mut found = Vec::new();
        for item in tree.range(items) {
            let item = item?;
            found.push(DeviceItem::parse(item.data()).map_err(|reason| item_error(&tree, &item, reason))?);
        }
        Ok(found)
    }

    /// Returns the block devices of this machine that have a valid superblock, by name. Skips
    /// devices that cannot be read, as empty drives and those of other users.
    ///
    /// # Errors
    /// The list of block devices cannot be read.
    pub fn on_this_machine() -> Result<Vec<Self>> {
        let host = |source| Error::Host { path: PathBuf::from(BLOCK_DEVICES), source };
        let mut paths = Vec::new();
        match std::fs::read_dir(BLOCK_DEVICES) {
            Ok(entries) => {
                for entry in entries {
                    let entry = entry.map_err(host)?;
                    if is_empty(&entry.path()) {
                        continue;
                    }
                    // The kernel writes a slash in a name as an exclamation mark.
                    let name = entry.file_name().to_string_lossy().replace('!', "/");
                    paths.push(Path::new("/dev").join(name));
                }
            }
            // A container may have no sysfs.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(host(error)),
        }
        paths.sort();
        Ok(paths.iter().filter_map(|path| Self::read_itself(path).ok().flatten()).collect())
    }

    /// Returns whether two devices have the same place in the same file system.
    fn is_twin_of(&self, other: &Self) -> bool {
        (self.fsid, self.devid, self.uuid) == (other.fsid, other.devid, other.uuid)
    }

    /// Keeps one of several devices with the same place in a file system, as an image and the loop
    /// device on it: the one with the newest commit, and of equally new ones the first.
    pub fn without_twins(found: impl IntoIterator<Item = Self>) -> Vec<Self> {
        let mut kept: Vec<Self> = Vec::new();
        for device in found {
            match kept.iter_mut().find(|known| known.is_twin_of(&device)) {
                Some(known) if known.generation < device.generation => *known = device,
                Some(_) => {}
                None => kept.push(device),
            }
        }
        kept
    }
}

/// Returns whether sysfs says that a block device has no sectors.
fn is_empty(directory: &Path) -> bool {
    std::fs::read_to_string(directory.join("size")).is_ok_and(|sectors| sectors.trim() == "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(path: &str, devid: u64, generation: u64) -> FoundDevice {
        FoundDevice {
            path: path.into(),
            fsid: Uuid::from_bytes([7; 16]),
            label: Vec::new(),
            devid: DeviceId(devid),
            uuid: Uuid::from_bytes([devid as u8; 16]),
            devices: 2,
            generation: Generation(generation),
            size: 1 << 30,
            allocated: 1 << 20,
            used: 1 << 19,
            seeding: false,
        }
    }

    #[test]
    fn newest_twin_is_kept() {
        let found = [device("a", 1, 5), device("b", 2, 5), device("c", 1, 6), device("d", 2, 5)];
        let kept = FoundDevice::without_twins(found);
        let paths: Vec<_> = kept.iter().map(|device| device.path.to_str().unwrap()).collect();
        assert_eq!(paths, ["c", "b"]);
        let mut other = device("e", 1, 9);
        other.fsid = Uuid::from_bytes([8; 16]);
        assert_eq!(FoundDevice::without_twins([device("a", 1, 5), other]).len(), 2);
    }

    #[test]
    fn images_are_found_and_other_files_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        let options = crate::mkfs::MkfsOptions::new().size(128 << 20).label("found");
        crate::mkfs::mkfs(&image, &options).unwrap();
        let found = FoundDevice::read(&image).unwrap().unwrap();
        assert_eq!((found.label.as_slice(), found.devid, found.devices), (&b"found"[..], DeviceId(1), 1));
        assert_eq!((found.size, found.path.as_path()), (128 << 20, image.as_path()));
        for (name, bytes) in [("short", 10_usize), ("zeros", 1 << 20)] {
            let path = folder.path().join(name);
            std::fs::write(&path, vec![0; bytes]).unwrap();
            assert_eq!(FoundDevice::read(&path).unwrap(), None, "{name}");
        }
        assert!(FoundDevice::read(folder.path()).is_err());
        assert!(FoundDevice::read(folder.path().join("missing")).is_err());
        assert!(FoundDevice::read("/dev/null").is_err());
    }
}
