//! Chunks that are added and removed while the file system is open.
//!
//! Owns [`Chunks`]: the ranges in use on each device, and chunks made in memory whose items the
//! next commit inserts. A chunk can be used as soon as it is made, even from inside a change of a
//! tree and at any time during a commit. Its items are inserted before the commit that first uses
//! it.
//!
//! **Invariants**
//! - A chunk is not removed while its items are pending.
//! - Device space of a removed chunk is not reused before the commit without it is on disk.
//!
//! **Locks**, in this order: this one; the volume's; the space's.
//!
//! Kernel counterparts: `btrfs_create_chunk`, `btrfs_chunk_alloc_add_chunk_item`,
//! `btrfs_remove_chunk` (`fs/btrfs/volumes.c`), `btrfs_create_pending_block_groups`,
//! `btrfs_delete_unused_bgs` (`fs/btrfs/block-group.c`).

use crate::errors::{Error, Result};
use crate::space::allocatable::allocatable;
use crate::space::chunk_allocation::{ChunkLimits, ChunkPlan, DeviceSpace, next_chunk_start, plan_chunk};
use crate::space::superblock_exclusions::superblock_exclusions;
use crate::space::{LogicalRange, NewBlockGroup, Space, SpaceKind};
use crate::volume::{DeviceSlot, Volume};
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::items::chunk::RaidProfile;
use papilio_format::{DeviceId, LogicalAddress, PhysicalAddress};
use papilio_locks::Mutex;
use std::borrow::Cow;

/// Bytes of each device that are not counted on for metadata: a rest that may be too small for a
/// chunk.
const UNUSABLE_REST: u64 = 16 << 20;
/// If less system space than this is free, in tree blocks, another system chunk is made first.
const SYSTEM_BLOCKS_MIN: u64 = 16;

/// Bytes at the start of a device that no chunk takes (`BTRFS_DEVICE_RANGE_RESERVED`), for boot
/// loaders.
const RESERVED_START: u64 = 1 << 20;

/// A chunk whose items the next commit inserts.
#[derive(Clone, Debug)]
pub(crate) struct PendingChunk {
    /// The logical address of its first byte.
    pub(crate) start: LogicalAddress,
    /// The stripes and devices that it consists of.
    pub(crate) plan: ChunkPlan,
}

/// A range of a device that belonged to a removed chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreedExtent {
    pub(crate) devid: DeviceId,
    pub(crate) start: PhysicalAddress,
    /// In bytes.
    pub(crate) length: u64,
}

#[derive(Debug, Default)]
struct ChunkState {
    devices: Vec<DeviceSpace>,
    pending: Vec<PendingChunk>,
    /// Device extents of chunks that the running commit removes.
    freed: Vec<(DeviceId, PhysicalAddress)>,
    /// The most bytes of a new chunk, if the caller of the file system chose that.
    length_max: Option<u64>,
}

/// The chunks that were added and removed, and the device space in use.
#[derive(Debug)]
pub struct Chunks {
    state: Mutex<ChunkState>,
}

impl Chunks {
    /// Starts from the ranges in use according to the device tree. New chunks have at most
    /// `length_max` bytes, if that is given, and the kernel's limit at any rate.
    pub(crate) fn new(devices: Vec<DeviceSpace>, length_max: Option<u64>) -> Self {
        Self { state: Mutex::new(ChunkState { devices, length_max, ..ChunkState::default() }) }
    }

    /// Makes a chunk of a kind. Makes a system chunk first if the chunk tree may run out of space.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if no device has enough, or if metadata reservations need the space.
    pub fn allocate(&self, volume: &Volume, space: &Space, kind: SpaceKind) -> Result<()> {
        let mut state = self.state.lock();
        let node_size = u64::from(volume.geometry().node_size);
        if kind != SpaceKind::System && space.available(SpaceKind::System) < SYSTEM_BLOCKS_MIN * node_size {
            // On failure the chunk tree's few new blocks may still fit, so go on.
            let _ = state.allocate(volume, space, SpaceKind::System);
        }
        state.allocate(volume, space, kind)?;
        state.count_unallocated(space);
        Ok(())
    }

    /// Tells the space how many bytes of the devices are in no chunk.
    pub fn count_unallocated(&self, space: &Space) {
        self.state.lock().count_unallocated(space);
    }

    /// Waits for a chunk that another thread is making.
    pub(crate) fn settle(&self) {
        drop(self.state.lock());
    }

    /// Whether there are chunks whose items no commit has inserted yet.
    pub(crate) fn has_pending(&self) -> bool {
        !self.state.lock().pending.is_empty()
    }

    /// Whether the items of the chunk that starts at `start` are pending.
    pub(crate) fn is_pending(&self, start: LogicalAddress) -> bool {
        self.state.lock().pending.iter().any(|chunk| chunk.start == start)
    }

    /// Takes the chunks with pending items.
    pub(crate) fn take_pending(&self) -> Vec<PendingChunk> {
        std::mem::take(&mut self.state.lock().pending)
    }

    /// Notes device extents that become free with the running commit.
    pub(crate) fn removed(&self, extents: impl IntoIterator<Item = (DeviceId, PhysicalAddress)>) {
        self.state.lock().freed.extend(extents);
    }

    /// Returns the device extents of removed chunks, which [`Chunks::committed`] frees.
    pub(crate) fn extents(&self, freed: &[(DeviceId, PhysicalAddress)]) -> Vec<FreedExtent> {
        let state = self.state.lock();
        let extent = |&(devid, start): &(DeviceId, PhysicalAddress)| {
            let device = state.devices.iter().find(|device| device.devid == devid)?;
            let (_, length) = device.used.iter().find(|(at, _)| *at == start)?;
            Some(FreedExtent { devid, start, length: *length })
        };
        freed.iter().filter_map(extent).collect()
    }

    /// Frees the device extents of removed chunks, once the commit is on disk.
    pub(crate) fn committed(&self, freed: Vec<(DeviceId, PhysicalAddress)>, space: &Space) {
        if freed.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        for (devid, start) in freed {
            if let Some(device) = state.devices.iter_mut().find(|device| device.devid == devid) {
                device.used.retain(|&(at, _)| at != start);
            }
        }
        state.count_unallocated(space);
    }

    /// Takes the device extents that [`Chunks::committed`] gets after the running commit.
    pub(crate) fn take_freed(&self) -> Vec<(DeviceId, PhysicalAddress)> {
        std::mem::take(&mut self.state.lock().freed)
    }

    /// Changes how many bytes of a device may be used.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if a chunk lies beyond the new end; [`Error::Invalid`] for an unknown
    /// device.
    pub fn resize(&self, devid: DeviceId, total_bytes: u64, space: &Space) -> Result<()> {
        let mut state = self.state.lock();
        let Some(device) = state.devices.iter_mut().find(|device| device.devid == devid) else {
            return Err(Error::Invalid(format!("device {devid} is not part of the file system")));
        };
        if device.used.iter().any(|&(start, length)| start.0.saturating_add(length) > total_bytes) {
            return Err(Error::NoSpace { what: "chunks lie beyond the new end of the device" });
        }
        device.total_bytes = total_bytes;
        state.count_unallocated(space);
        Ok(())
    }

    /// Keeps new chunks off a device from byte `end` on. Chunks that lie there stay. Returns the
    /// end before.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an unknown device.
    pub fn confine(&self, devid: DeviceId, end: u64, space: &Space) -> Result<u64> {
        let mut state = self.state.lock();
        let Some(device) = state.devices.iter_mut().find(|device| device.devid == devid) else {
            return Err(Error::Invalid(format!("device {devid} is not part of the file system")));
        };
        let before = std::mem::replace(&mut device.total_bytes, end);
        let writable = state.devices.iter().filter(|device| device.total_bytes > 0).count();
        space.set_devices(writable);
        state.count_unallocated(space);
        Ok(before)
    }

    /// Adds a device, on which nothing is in use.
    pub fn add_device(&self, device: DeviceSpace, space: &Space) {
        let mut state = self.state.lock();
        state.devices.push(device);
        space.set_devices(state.devices.len());
        state.count_unallocated(space);
    }

    /// Whether chunks can be made on a device.
    pub(crate) fn has_device(&self, devid: DeviceId) -> bool {
        self.state.lock().devices.iter().any(|device| device.devid == devid)
    }

    /// Forgets a device, on which nothing is in use.
    pub fn forget_device(&self, devid: DeviceId, space: &Space) {
        let mut state = self.state.lock();
        state.devices.retain(|device| device.devid != devid);
        space.set_devices(state.devices.len());
        state.count_unallocated(space);
    }

    /// Finds the first range of a device from byte `from` on that is in no chunk and at least `min`
    /// bytes long, and runs `on` with it, cut to `max` bytes. No chunk is made meanwhile. Returns
    /// the end of that range, where the next search starts.
    pub fn with_unallocated<E>(
        &self,
        devid: DeviceId,
        from: u64,
        min: u64,
        max: u64,
        on: impl FnOnce(std::ops::Range<u64>) -> Result<(), E>,
    ) -> Result<Option<u64>, E> {
        let state = self.state.lock();
        let Some(device) = state.devices.iter().find(|device| device.devid == devid) else { return Ok(None) };
        let mut gap_start = RESERVED_START;
        let extents = device.used.iter().map(|&(start, length)| (start.0, length));
        for (start, length) in extents.chain([(device.total_bytes, 0)]) {
            let at = gap_start.max(from);
            if at < start && start - gap_start >= min {
                let end = start.min(at.saturating_add(max));
                return on(at..end).map(|()| Some(end));
            }
            gap_start = gap_start.max(start.saturating_add(length));
        }
        Ok(None)
    }

    /// The end of the last chunk on a device, in bytes from the device's start.
    pub fn device_end(&self, devid: DeviceId) -> Option<u64> {
        let state = self.state.lock();
        let device = state.devices.iter().find(|device| device.devid == devid)?;
        device.used.iter().map(|&(start, length)| start.0.saturating_add(length)).max()
    }
}

impl ChunkState {
    fn allocate(&mut self, volume: &Volume, space: &Space, kind: SpaceKind) -> Result<()> {
        let geometry = volume.geometry();
        let flags = space.chunk_flags(kind);
        let limits = ChunkLimits {
            shares: space.converts(),
            length_max: self.length_max.unwrap_or(u64::MAX),
            exact: self.length_max.is_some(),
            ..ChunkLimits::new(geometry.node_size)
        };
        let plan = plan_chunk(&self.devices_for(volume, flags), flags, &limits)?;
        if kind == SpaceKind::Data && !flags.contains(BlockGroupFlags::METADATA) {
            // Device space that metadata reservations count on stays for metadata.
            let taken = plan.stripe_bytes * plan.stripes.len() as u64;
            let left = self.unallocated().saturating_sub(taken);
            if left / copies_of(space.chunk_flags(SpaceKind::Metadata)) < space.metadata_shortfall() {
                return Err(Error::NoSpace { what: "data" });
            }
        }
        if RaidProfile::from_flags(flags).is_ok_and(|profile| profile.parity() > 0) {
            volume.settle_new_rows(&plan.stripes, plan.stripe_bytes)?;
        }
        let start = next_chunk_start(&volume.chunk_map())
            .ok_or(Error::NoSpace { what: "logical addresses for a chunk" })?;
        volume.install_chunks([(start, plan.chunk_item(geometry.sector_size))])?;
        for stripe in &plan.stripes {
            let device = self.devices.iter_mut().find(|device| device.devid == stripe.devid);
            let device = device.expect("a plan uses known devices only");
            device.used.push((stripe.offset, plan.stripe_bytes));
            device.used.sort_unstable();
        }
        let range = LogicalRange { start, length: plan.length };
        let chunks = volume.chunk_map();
        let chunk = chunks.find(start).expect("the chunk was just installed");
        let excluded = superblock_exclusions(chunk);
        // Noted here before the block group exists: a commit that sees the group's changes sees the
        // chunk.
        self.pending.push(PendingChunk { start, plan });
        let group = NewBlockGroup { range, flags, used: 0, row: chunk.row_bytes() };
        space.add_block_group(&group, std::iter::once(start.0..start.0 + range.length), &excluded);
        Ok(())
    }

    /// Returns the devices for a chunk. One that missed writes is written, but not believed until
    /// it is healed: it takes no chunk that could not do without it.
    fn devices_for(&self, volume: &Volume, flags: BlockGroupFlags) -> Cow<'_, [DeviceSpace]> {
        let devices = volume.devices();
        let stale: Vec<_> = devices.iter().filter(|slot| slot.stale).map(DeviceSlot::devid).collect();
        let tolerated = RaidProfile::from_flags(flags).map_or(0, |profile| profile.tolerated_failures());
        if stale.len() <= tolerated {
            return Cow::Borrowed(&self.devices);
        }
        self.devices.iter().filter(|device| !stale.contains(&device.devid)).cloned().collect()
    }

    fn unallocated(&self) -> u64 {
        self.devices.iter().map(DeviceSpace::unallocated).sum()
    }

    fn count_unallocated(&self, space: &Space) {
        let flags = space.chunk_flags(SpaceKind::Metadata);
        // One of several devices may fill up before the others, so only half is counted on.
        let spread = if self.devices.len() > 1 { 2 } else { 1 };
        space.set_unallocated(self.unallocated() / spread, copies_of(flags));
        let flags = space.chunk_flags(SpaceKind::Data);
        let profile = RaidProfile::from_flags(flags).unwrap_or(RaidProfile::Single);
        let room = allocatable(profile, self.devices.iter().map(DeviceSpace::unallocated));
        space.set_data_room(room / copies_of(flags));
    }
}

impl DeviceSpace {
    /// Bytes of the device in no chunk that a chunk could take.
    fn unallocated(&self) -> u64 {
        let used: u64 = self.used.iter().map(|&(_, length)| length).sum();
        self.total_bytes.saturating_sub(used + UNUSABLE_REST)
    }
}

/// Bytes on devices that one byte of such a chunk takes.
pub(super) fn copies_of(flags: BlockGroupFlags) -> u64 {
    RaidProfile::from_flags(flags).map_or(1, |profile| profile.copies().max(1)) as u64
}

#[cfg(test)]
mod tests;
