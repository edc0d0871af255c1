//! Sprouting: a new file system that builds on a seed.
//!
//! Owns [`FileSystem::sprout`] and [`FileSystem::sprout_from_this`].
//!
//! **Invariants**
//! - No byte of the seed changes. Its devices are protected from writes, and block groups with a
//!   part on them are read-only.
//! - The new file system has a UUID of its own, and a temporary magic until all is in its place.
//! - All blocks of the chunk tree, and so all chunks that the superblock names, are on the new
//!   device. The kernel looks for seeds only once it has read the chunk tree.
//! - The device items of the seed name the generation of its superblock. The kernel mounts the new
//!   file system only if they do.
//!
//! **Locks**: those of [`FileSystem::add_device`].
//!
//! Kernel counterparts: `btrfs_setup_sprout`, `btrfs_finish_sprout`, `btrfs_relocate_sys_chunks`
//! (`fs/btrfs/volumes.c`).

use crate::file_system::FileSystem;
use papilio_device::{Access, Device};
use papilio_engine::errors::{Error, Result};
use papilio_engine::options::OpenOptions;
use papilio_engine::options::rescue::FoundTrees;
use papilio_engine::volume::superblock_of;
use papilio_format::features::{IncompatFeatures, SuperblockFlags};
use papilio_format::superblock::{MAGIC_TEMPORARY, superblock_offset};
use papilio_format::{Superblock, Uuid};
use std::sync::Arc;

const HAS_LOG: &str = "the seed has a log tree: clear the seed flag, mount it once, and set the flag again";

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
        device: &Arc<dyn Device>,
        force: bool,
        options: &OpenOptions,
    ) -> Result<Self> {
        let first = seeds.first().ok_or_else(|| Error::Invalid("no seed device was given".to_owned()))?;
        let superblock = new_superblock(&**first)?;
        // No thread changes anything before there is a device to write to.
        let mut making = options.clone().write(true).commit_interval(None);
        let newest = superblock.raw.generation;
        let found =
            FoundTrees { superblock, newest, members: None, chunk_tree: None, blocks: None, older: None };
        making.rescue.found = Some(Arc::new(found));
        making.rescue.sprouting = true;
        let fs = Self::from_devices(seeds.to_vec(), &making)?;
        fs.info.add_device(Arc::clone(device), force, seeds)?;
        fs.info.move_system_chunks()?;
        fs.finish_making()?;
        drop(fs);
        let mut devices = vec![Arc::clone(device)];
        devices.extend(seeds.iter().cloned());
        Self::from_devices(devices, &options.clone().write(true))
    }
}

impl FileSystem {
    /// Creates a file system on `device` that builds on this one, a seed that is open for reading,
    /// and opens it for writing. Both have the devices of the seed open.
    ///
    /// # Errors
    /// As [`FileSystem::sprout`]; a device of the seed is missing.
    pub fn sprout_from_this(
        &self,
        device: &Arc<dyn Device>,
        force: bool,
        options: &OpenOptions,
    ) -> Result<Self> {
        let (devices, own) = (self.info.volume().devices(), self.current_superblock().metadata_uuid());
        let mut seeds = Vec::new();
        for slot in devices.iter() {
            let missing = || Error::Invalid(format!("device {} of the seed is missing", slot.devid()));
            let device = slot.device.clone().ok_or_else(missing)?;
            if device.access() == Access::ReadWrite {
                // An overlay in memory, which the log was replayed into.
                return Err(Error::Invalid(format!("{}: {HAS_LOG}", device.name())));
            }
            seeds.push((slot.item.fsid != own, device));
        }
        // Its own first.
        seeds.sort_by_key(|(is_older, _)| *is_older);
        let seeds: Vec<_> = seeds.into_iter().map(|(_, device)| device).collect();
        Self::sprout(&seeds, device, force, options)
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
        return refuse(HAS_LOG);
    }
    raw.flags.remove(SuperblockFlags::SEEDING);
    raw.fsid = Uuid::new_v4();
    raw.dev_item.fsid = raw.fsid;
    raw.magic = MAGIC_TEMPORARY;
    Superblock::parse_unverified(&raw.to_bytes()).map_err(|reason| Error::Superblock {
        device: seed.name().to_owned(),
        offset: superblock_offset(0),
        reason: Box::new(reason),
        good_copies: Vec::new(),
        found: None,
    })
}
