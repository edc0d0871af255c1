//! The volume: devices and chunks together, as one logical address space.
//!
//! Owns [`Volume`]: opening it from devices, and installing the chunk tree's contents. Reading it
//! is in [`super::read`].
//!
//! **Invariant**: published snapshots of chunks and devices were checked against each other.
//! Without `degraded` no chunk has a missing device. With it, none lacks so many that its data
//! cannot be read, if the volume is written; a reader meets the missing copies at its reads.
//!
//! **Locks**: `install` serialises writers of the snapshots; readers load them without a lock. For
//! `rows` see [`super::row_locks`]. `replaced` is a leaf.
//!
//! Kernel counterparts: `btrfs_read_sys_array`, `read_one_chunk`, `read_one_dev`
//! (`fs/btrfs/volumes.c`).

use super::chunk_map::{Chunk, ChunkMap};
use super::counters::BadCopies;
use super::dev_replace::DevReplace;
use super::devices::{DeviceSlot, DeviceTable};
use super::row_locks::RowLocks;
use super::superblocks::{assemble, check_size};
use crate::errors::{Error, Result};
use crate::options::OpenOptions;
use arc_swap::ArcSwap;
use papilio_device::{Device, Load};
use papilio_format::features::CompatRoFeatures;
use papilio_format::items::chunk::{ChunkItem, RaidProfile, Stripe};
use papilio_format::items::device::DeviceItem;
use papilio_format::{DeviceId, Generation, Geometry, LogicalAddress, Superblock};
use papilio_locks::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// The logical address space of one file system.
#[derive(Debug)]
pub struct Volume {
    superblock: Superblock,
    /// From the superblock at opening; `generation` and `compat_ro` hold the current values.
    geometry: Geometry,
    generation: AtomicU64,
    compat_ro: AtomicU64,
    degraded: bool,
    /// Whether the devices are written.
    writes: bool,
    pub(super) chunks: ArcSwap<ChunkMap>,
    pub(super) devices: ArcSwap<DeviceTable>,
    pub(super) rows: RowLocks,
    pub(super) bad_copies: BadCopies,
    /// Commits until the superblocks tell that a device was lost.
    pub(super) lost: AtomicU8,
    /// Whether a commit has begun without the devices that are missing.
    pub(super) tells_missing: AtomicBool,
    pub(super) install: Mutex<()>,
    /// The device that is being replaced.
    pub(super) replaced: Mutex<Option<(DeviceId, Arc<DevReplace>)>>,
}

impl Volume {
    /// Returns whether devices may be missing or too short.
    pub(super) fn is_degraded(&self) -> bool {
        self.degraded
    }

    /// Reads the superblocks, checks that the devices belong together, and installs the system
    /// chunks, so that the chunk tree can be read.
    ///
    /// # Errors
    /// Fails without a usable superblock, with devices that do not belong together or are
    /// truncated, or if a system chunk is unreadable for lack of devices; for writing, with an
    /// interrupted change of the UUID or of the blocks' checksums.
    pub fn open(devices: Vec<Arc<dyn Device>>, options: &OpenOptions) -> Result<Self> {
        if let Some(choice) =
            options.rescue.only_for_reading().filter(|_| options.write && !options.in_memory)
        {
            let cause = format!("{choice} can only be read");
            return Err(Error::ReadOnlyFileSystem { cause });
        }
        let volume = Self::open_unfinished(devices, options)?;
        let unfinished = volume.superblock.raw.flags.mixed_blocks();
        // Those blocks can be read that have the UUID and the checksum of the superblock.
        if unfinished.is_empty() || !options.write {
            return Ok(volume);
        }
        let cause = format!(
            "it is being converted; `papilio tune` or `btrfstune` has to finish that first: {}",
            unfinished.names()
        );
        Err(Error::ReadOnlyFileSystem { cause })
    }

    /// As [`Volume::open`], but accepts a file system with a change that was interrupted, for
    /// writing, too.
    ///
    /// # Errors
    /// As [`Volume::open`].
    pub fn open_unfinished(devices: Vec<Arc<dyn Device>>, options: &OpenOptions) -> Result<Self> {
        let assembled = assemble(devices, options)?;
        let superblock = assembled.superblock;
        let found = options.rescue.found.as_deref();
        let newest = found.map_or(superblock.raw.generation, |found| found.newest);
        let volume = Self {
            geometry: superblock.geometry(),
            generation: AtomicU64::new(newest.0),
            compat_ro: AtomicU64::new(superblock.raw.compat_ro_flags.bits()),
            degraded: options.degraded,
            writes: options.write && !options.in_memory,
            chunks: ArcSwap::from_pointee(ChunkMap::default()),
            devices: ArcSwap::from_pointee(assembled.devices),
            rows: RowLocks::default(),
            bad_copies: BadCopies::default(),
            lost: AtomicU8::new(0),
            tells_missing: AtomicBool::new(false),
            install: Mutex::new(()),
            replaced: Mutex::new(None),
            superblock,
        };
        if let Some(chunks) = found.and_then(|found| found.chunk_tree.as_ref()) {
            volume.install_chunks(chunks.chunks.iter().cloned())?;
            return Ok(volume);
        }
        // Parsing the superblock has already decoded the array, so this cannot fail.
        let system_chunks = volume
            .superblock
            .system_chunks()
            .map_err(|reason| Error::Invalid(format!("system chunk array: {reason}")))?;
        volume.install_chunks(system_chunks)?;
        Ok(volume)
    }

    /// Returns the newest superblock at the time of opening.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Returns the parameters for reading tree blocks, with the current generation and features.
    #[inline]
    pub fn geometry(&self) -> Geometry {
        Geometry {
            generation: Generation(self.generation.load(Ordering::Acquire)),
            compat_ro: CompatRoFeatures::from_bits_retain(self.compat_ro.load(Ordering::Acquire)),
            ..self.geometry
        }
    }

    /// Sets the compat_ro features, which the next commit writes into the superblocks. They tell
    /// which trees record block groups and free space, so nothing else runs meanwhile.
    pub(crate) fn set_compat_ro(&self, features: CompatRoFeatures) {
        self.compat_ro.store(features.bits(), Ordering::Release);
    }

    /// Sets the generation of the last commit; tree blocks of the next generation are accepted from
    /// then on. Call it before a block of a later transaction can be read.
    pub fn set_generation(&self, generation: Generation) {
        self.generation.store(generation.0, Ordering::Release);
    }

    /// Returns the chunks known so far.
    pub fn chunk_map(&self) -> Arc<ChunkMap> {
        self.chunks.load_full()
    }

    /// Returns whether requests wait for a device, as those that bypass the host's page cache do.
    pub fn waits(&self) -> bool {
        let devices = self.devices.load();
        devices.iter().any(|slot| slot.device.as_ref().is_some_and(|device| device.waits()))
    }

    /// Returns whether reads that were started may complete later, without a thread that waits.
    pub fn answers_later(&self) -> bool {
        let devices = self.devices.load();
        devices.iter().any(|slot| slot.device.as_ref().is_some_and(|device| device.answers_later()))
    }

    /// Returns the devices known so far, including missing ones.
    pub fn devices(&self) -> Arc<DeviceTable> {
        self.devices.load_full()
    }

    /// Notes that a copy of the bytes at `logical` is bad, so that all copies are verified soon.
    pub(crate) fn note_bad_copy(&self, logical: LogicalAddress) {
        self.bad_copies.note(logical);
    }

    /// Returns the addresses with bad copies that were noted since the last call.
    pub(crate) fn take_bad_copies(&self) -> BTreeSet<LogicalAddress> {
        self.bad_copies.take()
    }

    /// Adds chunks of the chunk tree, all or none.
    ///
    /// # Errors
    /// Fails on chunks that overlap or contradict others, or whose devices are missing.
    pub fn install_chunks(&self, items: impl IntoIterator<Item = (LogicalAddress, ChunkItem)>) -> Result<()> {
        let _writer = self.install.lock();
        let chunks = self.chunks.load().with(items)?;
        self.check_devices(&chunks, &self.devices.load())?;
        self.chunks.store(Arc::new(chunks));
        Ok(())
    }

    /// Removes the chunk that starts at `start`. Holders of an older map still have it.
    ///
    /// # Errors
    /// Fails if no chunk starts there.
    pub(crate) fn remove_chunk(&self, start: LogicalAddress) -> Result<()> {
        let _writer = self.install.lock();
        let chunks =
            self.chunks.load().without(start).ok_or(Error::Unmapped { logical: start, length: 1 })?;
        self.chunks.store(Arc::new(chunks));
        Ok(())
    }

    /// Updates the item of a known device, present or missing.
    ///
    /// # Errors
    /// Fails if there is no such device, or it is smaller than the item says.
    pub fn set_device_item(&self, item: DeviceItem) -> Result<()> {
        let _writer = self.install.lock();
        let devices = self.devices.load();
        let slot = devices
            .iter()
            .find(|slot| {
                slot.item.devid == item.devid && slot.item.uuid == item.uuid && slot.item.fsid == item.fsid
            })
            .ok_or(Error::DeviceMissing { devid: item.devid, uuid: item.uuid, refused: true })?;
        if let Some(device) = &slot.device {
            check_size(&**device, item.total_bytes, self.degraded)?;
        }
        self.devices.store(Arc::new(devices.with_items([item])));
        Ok(())
    }

    /// Adds a device of the file system.
    pub fn add_device(&self, item: DeviceItem, device: Arc<dyn Device>) {
        let _writer = self.install.lock();
        let (load, in_chunk_tree) = (Load::default(), true);
        let slot = DeviceSlot { item, device: Some(device), stale: false, in_chunk_tree, load };
        self.devices.store(Arc::new(self.devices.load().with_slot(slot)));
    }

    /// Removes a device, which no chunk uses any more. Returns its item, if it was there.
    pub fn forget_device(&self, devid: DeviceId) -> Option<DeviceItem> {
        let _writer = self.install.lock();
        let devices = self.devices.load();
        let item = devices.iter().find(|slot| slot.devid() == devid)?.item;
        self.devices.store(Arc::new(devices.without(devid)));
        Some(item)
    }

    /// Installs the device items of the chunk tree.
    ///
    /// # Errors
    /// Fails without `degraded` if a device is missing, or is cut within a chunk or, for writing,
    /// at all. Fails for writing if a chunk lacks too many devices to be read.
    pub fn install_devices(&self, items: impl IntoIterator<Item = DeviceItem>) -> Result<()> {
        let _writer = self.install.lock();
        let devices = self.devices.load().with_items(items);
        let mut known = 0u64;
        for slot in devices.iter() {
            known += u64::from(slot.in_chunk_tree);
            self.check_slot(slot, &self.chunks.load())?;
        }
        // Like the kernel since 5.19, trust the chunk tree over the superblock's count.
        if known != self.superblock.raw.num_devices {
            tracing::warn!(
                superblock = self.superblock.raw.num_devices,
                chunk_tree = known,
                "the superblock and the chunk tree disagree on the number of devices"
            );
        }
        self.check_devices(&self.chunks.load(), &devices)?;
        self.devices.store(Arc::new(devices));
        Ok(())
    }

    fn check_slot(&self, slot: &DeviceSlot, chunks: &ChunkMap) -> Result<()> {
        match &slot.device {
            Some(device) if slot.in_chunk_tree && device.size() < slot.item.total_bytes => {
                let (need, have) = (slot.item.total_bytes, device.size());
                let used = chunks.end_on(slot.item.devid, slot.item.uuid);
                let cut = Error::DeviceCut { device: device.name().to_owned(), need, have, used };
                // Where no chunk is behind the end, a reader misses nothing.
                if !self.degraded && (self.writes || used > have) {
                    return Err(cut);
                }
                tracing::warn!("{cut}");
                Ok(())
            }
            Some(_) if slot.in_chunk_tree => Ok(()),
            // The target of a replacement.
            Some(_) if slot.devid() == DeviceId(0) => Ok(()),
            Some(device) => {
                let (device, devid) = (device.name(), slot.item.devid.0);
                tracing::warn!(device, devid, "the device is no longer part of the file system");
                Ok(())
            }
            None if self.degraded => {
                let (devid, uuid) = (slot.item.devid.0, slot.item.uuid);
                tracing::warn!(devid, %uuid, "a device is missing");
                Ok(())
            }
            None => Err(Error::DeviceMissing { devid: slot.item.devid, uuid: slot.item.uuid, refused: true }),
        }
    }

    /// Believes the device of slot `number` again: all that it missed was written. The next commit
    /// writes its superblock.
    pub(crate) fn set_healed(&self, number: usize) {
        let _writer = self.install.lock();
        let devices = self.devices.load();
        self.devices.store(Arc::new(devices.with_stale(number, false)));
    }

    /// Puts another device in the place of one, present or missing. The next commit writes its
    /// superblock, unless it is `stale`.
    pub(crate) fn set_device(&self, devid: DeviceId, device: Option<&Arc<dyn Device>>, stale: bool) {
        let _writer = self.install.lock();
        let devices = self.devices.load().with_device(devid, device, stale);
        self.devices.store(Arc::new(devices));
    }

    /// Checks that each chunk has enough devices to be read.
    fn check_devices(&self, chunks: &ChunkMap, devices: &DeviceTable) -> Result<()> {
        // A reader meets what is missing at the reads that need it.
        if self.degraded && !self.writes {
            return Ok(());
        }
        chunks.iter().try_for_each(|chunk| check_chunk(chunk, devices, self.degraded))
    }

    /// Checks that no part of a chunk is on missing devices alone.
    ///
    /// # Errors
    /// [`Error::TooManyMissing`].
    pub(crate) fn check_readable(&self, chunk: &Chunk) -> Result<()> {
        check_chunk(chunk, &self.devices.load(), true)
    }

    /// Returns the chunks that cannot be read because too many of their devices are missing.
    pub fn unreadable_chunks(&self) -> Vec<(Arc<Chunk>, Error)> {
        let (chunks, devices) = (self.chunks.load(), self.devices.load());
        let unreadable = |chunk: &Arc<Chunk>| {
            let error = check_chunk(chunk, &devices, true).err()?;
            Some((Arc::clone(chunk), error))
        };
        chunks.iter().filter_map(unreadable).collect()
    }
}

fn check_chunk(chunk: &Chunk, devices: &DeviceTable, degraded: bool) -> Result<()> {
    let is_missing = |stripe: &Stripe| devices.present(stripe).is_none();
    let Some(first) = chunk.stripes().iter().find(|stripe| is_missing(stripe)) else {
        return Ok(());
    };
    if !degraded {
        return Err(Error::DeviceMissing { devid: first.devid, uuid: first.device_uuid, refused: true });
    }
    let count = |stripes: &[Stripe]| stripes.iter().filter(|stripe| is_missing(stripe)).count();
    // Groups of stripes with the same data, of which one must remain; with parity, all stripes.
    let (group, tolerated) = match chunk.profile() {
        RaidProfile::Raid5 | RaidProfile::Raid6 => (chunk.stripes().len(), chunk.profile().parity()),
        profile => (profile.copies(), profile.copies() - 1),
    };
    match chunk.stripes().chunks(group).map(count).find(|&missing| missing > tolerated) {
        Some(missing) => Err(Error::TooManyMissing { logical: chunk.start(), missing, tolerated }),
        None => Ok(()),
    }
}
