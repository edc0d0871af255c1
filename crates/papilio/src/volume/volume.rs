//! The volume: devices and chunks together, as one logical address space.
//!
//! Owns [`Volume`]: opening it from devices, and taking in what the chunk tree says. Reading it is
//! in [`super::read`].
//!
//! Invariants: every snapshot that is published was checked against the other: without `degraded`
//! no chunk has a missing device; with it, none has so many that bytes of it cannot be read.
//!
//! Locks: `install` orders writers of the snapshots; readers take none (they load the snapshots).
//! `rows` see [`super::row_locks`].
//! Kernel counterparts: `btrfs_read_sys_array`, `read_one_chunk`, `read_one_dev`
//! (`fs/btrfs/volumes.c`).

use super::chunk_map::{Chunk, ChunkMap};
use super::devices::{DeviceSlot, DeviceTable};
use super::row_locks::RowLocks;
use super::superblocks::{assemble, check_size};
use crate::options::OpenOptions;
use crate::{Error, Result};
use arc_swap::ArcSwap;
use papilio_device::Device;
use papilio_format::items::chunk::{ChunkItem, RaidProfile, Stripe};
use papilio_format::items::device::DeviceItem;
use papilio_format::{Generation, Geometry, LogicalAddress, Superblock};
use papilio_locks::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The logical address space of one file system.
#[derive(Debug)]
pub(crate) struct Volume {
    superblock: Superblock,
    /// As of the superblock that was read; the generation has moved on since.
    geometry: Geometry,
    generation: AtomicU64,
    degraded: bool,
    pub(super) chunks: ArcSwap<ChunkMap>,
    pub(super) devices: ArcSwap<DeviceTable>,
    pub(super) rows: RowLocks,
    install: Mutex<()>,
}

impl Volume {
    /// Reads the superblocks, checks that the devices belong together, and installs the system
    /// chunks, so that the chunk tree can be read.
    ///
    /// # Errors
    /// No usable superblock, devices that don't fit together or are truncated, or a system chunk
    /// that cannot be read for lack of devices.
    pub(crate) fn open(devices: Vec<Arc<dyn Device>>, options: &OpenOptions) -> Result<Self> {
        let assembled = assemble(devices, options)?;
        let superblock = assembled.superblock;
        let volume = Self {
            geometry: superblock.geometry(),
            generation: AtomicU64::new(superblock.raw.generation.0),
            degraded: options.degraded,
            chunks: ArcSwap::from_pointee(ChunkMap::default()),
            devices: ArcSwap::from_pointee(assembled.devices),
            rows: RowLocks::default(),
            install: Mutex::new(()),
            superblock,
        };
        // Parsing the superblock decoded the array already, so that this finds no fault.
        let system_chunks = volume
            .superblock
            .system_chunks()
            .map_err(|reason| Error::Invalid(format!("system chunk array: {reason}")))?;
        volume.install_chunks(system_chunks)?;
        Ok(volume)
    }

    /// The newest superblock when the volume was opened.
    pub(crate) fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// What readers of tree blocks need to know, as of now.
    #[inline]
    pub(crate) fn geometry(&self) -> Geometry {
        Geometry { generation: Generation(self.generation.load(Ordering::Acquire)), ..self.geometry }
    }

    /// Tells the last committed transaction: tree blocks of the one after it are accepted from here
    /// on. To be called before a block of a still later transaction can be read.
    pub(crate) fn set_generation(&self, generation: Generation) {
        self.generation.store(generation.0, Ordering::Release);
    }

    /// The chunks known so far.
    pub(crate) fn chunk_map(&self) -> Arc<ChunkMap> {
        self.chunks.load_full()
    }

    /// The devices known so far, missing ones included.
    pub(crate) fn devices(&self) -> Arc<DeviceTable> {
        self.devices.load_full()
    }

    /// Adds chunks of the chunk tree; all or none of them.
    ///
    /// # Errors
    /// Chunks that overlap or contradict others, or whose devices are missing.
    pub(crate) fn install_chunks(
        &self,
        items: impl IntoIterator<Item = (LogicalAddress, ChunkItem)>,
    ) -> Result<()> {
        let _writer = self.install.lock();
        let chunks = self.chunks.load().with(items)?;
        self.check_devices(&chunks, &self.devices.load())?;
        self.chunks.store(Arc::new(chunks));
        Ok(())
    }

    /// Takes out the chunk that starts at `start`. Who holds the map from before still has it.
    ///
    /// # Errors
    /// No chunk starts there.
    pub(crate) fn remove_chunk(&self, start: LogicalAddress) -> Result<()> {
        let _writer = self.install.lock();
        let chunks =
            self.chunks.load().without(start).ok_or(Error::Unmapped { logical: start, length: 1 })?;
        self.chunks.store(Arc::new(chunks));
        Ok(())
    }

    /// Takes in a changed item of a device that is known, whether it is there or missing.
    ///
    /// # Errors
    /// No such device, or one that is smaller than the item says.
    pub(crate) fn set_device_item(&self, item: DeviceItem) -> Result<()> {
        let _writer = self.install.lock();
        let devices = self.devices.load();
        let slot = devices
            .iter()
            .find(|slot| {
                slot.item.devid == item.devid && slot.item.uuid == item.uuid && slot.item.fsid == item.fsid
            })
            .ok_or(Error::DeviceMissing { devid: item.devid, uuid: item.uuid })?;
        if let Some(device) = &slot.device {
            check_size(&**device, item.total_bytes, self.degraded)?;
        }
        self.devices.store(Arc::new(devices.with_items([item])));
        Ok(())
    }

    /// Takes in the chunk tree's device items.
    ///
    /// # Errors
    /// A device that is missing (without `degraded`), that is smaller than its item says, or so many
    /// that a chunk cannot be read.
    pub(crate) fn install_devices(&self, items: impl IntoIterator<Item = DeviceItem>) -> Result<()> {
        let _writer = self.install.lock();
        let devices = self.devices.load().with_items(items);
        let mut known = 0u64;
        for slot in devices.iter() {
            known += u64::from(slot.in_chunk_tree);
            self.check_slot(slot)?;
        }
        // As the kernel since 5.19: the chunk tree is right and the superblock's count is not.
        if known != self.superblock.raw.num_devices {
            tracing::warn!(
                superblock = self.superblock.raw.num_devices,
                chunk_tree = known,
                "the superblock's number of devices is not the chunk tree's"
            );
        }
        self.check_devices(&self.chunks.load(), &devices)?;
        self.devices.store(Arc::new(devices));
        Ok(())
    }

    fn check_slot(&self, slot: &DeviceSlot) -> Result<()> {
        match &slot.device {
            Some(device) if slot.in_chunk_tree => check_size(&**device, slot.item.total_bytes, self.degraded),
            Some(device) => {
                let (device, devid) = (device.name(), slot.item.devid.0);
                tracing::warn!(device, devid, "device is no part of the file system any more");
                Ok(())
            }
            None if self.degraded => {
                let (devid, uuid) = (slot.item.devid.0, slot.item.uuid);
                tracing::warn!(devid, %uuid, "device is missing");
                Ok(())
            }
            None => Err(Error::DeviceMissing { devid: slot.item.devid, uuid: slot.item.uuid }),
        }
    }

    /// Checks that each chunk has the devices that reading it takes.
    fn check_devices(&self, chunks: &ChunkMap, devices: &DeviceTable) -> Result<()> {
        chunks.iter().try_for_each(|chunk| check_chunk(chunk, devices, self.degraded))
    }
}

fn check_chunk(chunk: &Chunk, devices: &DeviceTable, degraded: bool) -> Result<()> {
    let is_missing = |stripe: &Stripe| devices.present(stripe).is_none();
    let Some(first) = chunk.stripes().iter().find(|stripe| is_missing(stripe)) else {
        return Ok(());
    };
    if !degraded {
        return Err(Error::DeviceMissing { devid: first.devid, uuid: first.device_uuid });
    }
    let count = |stripes: &[Stripe]| stripes.iter().filter(|stripe| is_missing(stripe)).count();
    // Stripes that hold the same, of which one must be left; or all of them with parity.
    let (group, tolerated) = match chunk.profile() {
        RaidProfile::Raid5 | RaidProfile::Raid6 => (chunk.stripes().len(), chunk.profile().parity()),
        profile => (profile.copies(), profile.copies() - 1),
    };
    match chunk.stripes().chunks(group).map(count).find(|&missing| missing > tolerated) {
        Some(missing) => Err(Error::TooManyMissing { logical: chunk.start(), missing, tolerated }),
        None => Ok(()),
    }
}
