//! Sprouting: a new file system that builds on a seed.
//!
//! Owns [`FileSystem::sprout`].
//!
//! **Invariants**
//! - No byte of the seed changes. Its devices are protected from writes, and block groups with a
//!   part on them are read-only.
//! - The new file system has a UUID of its own. It exists once the commit that adds its first device
//!   is on disk.
//! - The device items of the seed name the generation of its superblock. The kernel mounts the new
//!   file system only if they do.
//!
//! **Locks**: those of [`FileSystem::add_device`].
//!
//! Kernel counterparts: `btrfs_prepare_sprout`, `btrfs_setup_sprout`, `btrfs_finish_sprout`
//! (`fs/btrfs/volumes.c`).

use crate::errors::{Error, Result};
use crate::fs::file_system::FileSystem;
use crate::options::OpenOptions;
use crate::options::rescue::Found;
use crate::volume::superblock_of;
use papilio_device::Device;
use papilio_format::features::{IncompatFeatures, SuperblockFlags};
use papilio_format::items::device::DeviceItem;
use papilio_format::superblock::superblock_offset;
use papilio_format::{ItemType, Key, Superblock, Uuid, objectid};
use std::sync::Arc;

impl FileSystem {
    /// Creates a file system on `device` that builds on a seed, and opens it for writing. Its files
    /// are those of the seed; changes go to `device` only. `seeds` are all devices of the seed, and
    /// of those that it builds on itself, its own first.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: not a seed, or one with a log tree or a metadata UUID of its own.
    /// - As [`FileSystem::add_device`], and as [`FileSystem::from_devices`].
    pub fn sprout(
        seeds: &[Arc<dyn Device>],
        device: Arc<dyn Device>,
        force: bool,
        options: &OpenOptions,
    ) -> Result<Self> {
        let first = seeds.first().ok_or_else(|| Error::Invalid("no seed device was given".to_owned()))?;
        if seeds.iter().any(|seed| Arc::ptr_eq(seed, &device) || seed.name() == device.name()) {
            return Err(Error::Invalid(format!("{}: is a device of the seed", device.name())));
        }
        let superblock = new_superblock(&**first)?;
        let mut options = options.clone().write(true);
        let newest = superblock.raw.generation;
        let found = Found { superblock, newest, members: None, chunk_tree: None, blocks: None };
        options.rescue.found = Some(Arc::new(found));
        options.rescue.sprouting = true;
        // No thread changes anything before there is a device to write to.
        let unattended = options.clone().commit_interval(None);
        let fs = Self::from_devices(seeds.to_vec(), &unattended)?;
        fs.add(device, force, seeds)?;
        Ok(fs)
    }

    /// Notes the generations of the seeds' superblocks in their device items, in the running
    /// transaction.
    pub(super) fn note_generations(&self, seeds: &[Arc<dyn Device>]) -> Result<()> {
        let transactions = self.info.transactions()?;
        for seed in seeds {
            let raw = superblock_of(&**seed, 0)?.raw;
            let key = Key::new(objectid::DEV_ITEMS, ItemType::DEV_ITEM, raw.dev_item.devid.0);
            let noted = transactions.change(1, |handle| {
                let tree = handle.live_tree(objectid::CHUNK_TREE)?;
                let Some(item) = tree.tree().get(&key)? else { return Ok(None) };
                let item = DeviceItem::parse(item.data()).map_err(|reason| Error::Item {
                    tree: objectid::CHUNK_TREE,
                    key,
                    reason,
                })?;
                let item = DeviceItem { generation: raw.generation, ..item };
                tree.edit(handle).put(key, &item.to_bytes())?;
                Ok(Some(item))
            })?;
            if let Some(item) = noted {
                self.info.volume().set_device_item(item)?;
            }
        }
        Ok(())
    }
}

/// Returns the superblock of a new file system, made from that of a seed.
fn new_superblock(seed: &dyn Device) -> Result<Superblock> {
    let mut raw = superblock_of(seed, 0)?.raw;
    let refuse = |why: &str| Err(Error::Invalid(format!("{}: {why}", seed.name())));
    if !raw.flags.contains(SuperblockFlags::SEEDING) {
        return refuse("is not a seed device");
    }
    if raw.incompat_flags.contains(IncompatFeatures::METADATA_UUID) {
        return refuse("a seed with a metadata UUID cannot be built on");
    }
    if raw.log_root.0 != 0 {
        return refuse("the seed has a log tree: clear the seed flag, mount it once, and set the flag again");
    }
    raw.flags.remove(SuperblockFlags::SEEDING);
    raw.fsid = Uuid::new_v4();
    raw.dev_item.fsid = raw.fsid;
    Superblock::parse_unverified(&raw.to_bytes()).map_err(|reason| Error::Superblock {
        device: seed.name().to_owned(),
        offset: superblock_offset(0),
        reason: Box::new(reason),
        good_copies: Vec::new(),
    })
}
