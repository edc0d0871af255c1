//! All block groups of a file system, and the allocator of its logical addresses.
//!
//! Owns [`Space`] and [`Pinned`].
//!
//! **Invariants**
//! - Block groups are disjoint; each of their bytes is in one state (see [`super`]).
//! - Sums equal those of the block groups.
//! - Impossible states are asserted; states that a damaged image can cause are errors.
//!
//! **Locks**: one, held for a few map operations. Nothing else is locked and no I/O is done under
//! it, except by [`Space::with_free`], whose caller discards a bounded range.
//!
//! Kernel counterparts: `find_free_extent`, `unpin_extent_range`, `pin_down_extent`
//! (`fs/btrfs/extent-tree.c`), `btrfs_update_block_group`, `inc_block_group_ro`
//! (`fs/btrfs/block-group.c`).

use super::block_group::{BlockGroup, BlockGroupUpdate, NewBlockGroup};
use super::range_set::RangeSet;
use super::space_info::SpaceInfo;
use super::{LogicalRange, SpaceKind};
use crate::errors::{Error, Result};
use papilio_format::features::IncompatFeatures;
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::{Corrupt, Geometry, ItemType, Key, LogicalAddress, objectid};
use papilio_locks::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of ranges freed under one acquisition of the lock.
const UNPIN_BATCH: usize = 256;

/// Ranges that must stay untouched until the superblocks of the transaction that freed them are on
/// disk. Dropping it without [`Space::unpin`], as after a failed commit, keeps them pinned forever.
#[derive(Debug, Default)]
#[must_use = "pinned ranges become free only through Space::unpin"]
pub struct Pinned {
    ranges: RangeSet,
}

impl Pinned {
    /// Iterates over the ranges to discard, in ascending order. Only before [`Space::unpin`]:
    /// afterwards they may hold new data.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = LogicalRange> + '_ {
        self.ranges.iter().map(LogicalRange::of)
    }
}

/// The metadata that goes with data, as far as it can be foreseen.
#[derive(Clone, Copy, Debug)]
pub struct MetadataNeed {
    /// Bytes that any change needs.
    pub base: u64,
    /// Bytes of data for each byte of metadata besides.
    pub data_per_metadata: u64,
}

/// One part in so many of unallocated device space is not counted on: chunks may not fit exactly.
const CHUNK_SHARE: u64 = 8;

/// The logical address space and its allocation state.
#[derive(Debug)]
pub struct Space {
    sector_size: u64,
    node_size: u64,
    /// Whether data and metadata share block groups.
    mixed: bool,
    /// Number of devices on which chunks can be allocated.
    devices: AtomicUsize,
    state: Mutex<SpaceState>,
}

#[derive(Debug, Default)]
pub(super) struct SpaceState {
    pub(super) groups: BTreeMap<u64, BlockGroup>,
    /// Indexed by [`slot`].
    pub(super) infos: [SpaceInfo; 4],
    /// Starts of block groups with changes that no commit has taken.
    dirty: BTreeSet<u64>,
    pinned: RangeSet,
    bytes_used: u64,
    global_reserve: u64,
    /// Bytes of metadata that unallocated device space could provide.
    unallocated: u64,
    /// Bytes of data that chunks in it could provide at most; `None` until they are counted.
    data_room: Option<u64>,
}

impl Space {
    /// Creates a space without block groups. Chunks can be created on `devices` devices.
    pub(crate) fn new(geometry: &Geometry, devices: usize) -> Self {
        Self {
            sector_size: geometry.sector_size.into(),
            node_size: geometry.node_size.into(),
            mixed: geometry.incompat.contains(IncompatFeatures::MIXED_GROUPS),
            devices: AtomicUsize::new(devices),
            state: Mutex::default(),
        }
    }

    /// Adds a block group. `free` are its free ranges according to the free-space tree; `excluded`
    /// superblock locations are removed from them here.
    ///
    /// # Panics
    /// If it overlaps another block group, or free ranges overlap, lie outside, or contradict
    /// `used`.
    pub(crate) fn add_block_group(
        &self,
        new: &NewBlockGroup,
        free: impl IntoIterator<Item = Range<u64>>,
        excluded: &[Range<LogicalAddress>],
    ) {
        let excluded: Vec<_> = excluded.iter().map(|range| range.start.0..range.end.0).collect();
        let mut group = BlockGroup::new(&new.range.bytes(), new.flags, new.used, free, &excluded);
        group.row = new.row;
        let mut state = self.state.lock();
        let before = state.groups.range(..group.end()).next_back();
        let overlaps = before.is_some_and(|(_, other)| other.end() > group.start);
        assert!(!overlaps, "the block group at {} overlaps another", group.start);
        state.bytes_used += group.used;
        let flags = group.flags;
        let info = state.info(flags);
        group.lesser = info.is_lesser(&group);
        info.add(&group);
        state.groups.insert(group.start, group);
        self.compare_profiles(&mut state, flags);
    }

    /// Removes an empty block group that is read-only.
    ///
    /// # Panics
    /// If it is in use, is not read-only, or does not exist.
    pub(crate) fn remove_block_group(&self, start: LogicalAddress) {
        let mut state = self.state.lock();
        let Some(group) = state.groups.remove(&start.0) else { panic!("no block group at {start}") };
        assert!(group.read_only && group.is_empty(), "the block group at {start} is in use or not read-only");
        state.dirty.remove(&start.0);
        state.info(group.flags).remove(&group);
        self.compare_profiles(&mut state, group.flags);
    }

    /// Puts block groups without redundancy out of service while a redundant profile of their kind
    /// is available.
    fn compare_profiles(&self, state: &mut SpaceState, flags: BlockGroupFlags) {
        let info = state.info(flags);
        let redundant =
            info.profile(self.devices.load(Ordering::Relaxed)).intersects(super::block_group::REDUNDANT);
        if info.redundant == redundant {
            return;
        }
        info.redundant = redundant;
        state.settle_service(flags);
    }

    /// Makes a block group read-only for good, because a part lies on a seed device.
    ///
    /// # Panics
    /// If there is no such block group.
    pub(crate) fn keep_read_only(&self, start: LogicalAddress) {
        let mut state = self.state.lock();
        state.change(start.0, |group| (group.read_only, group.on_seed) = (true, true));
    }

    /// Sets the number of devices on which chunks can be created.
    pub(crate) fn set_devices(&self, devices: usize) {
        self.devices.store(devices, Ordering::Relaxed);
        let mut state = self.state.lock();
        for kind in [SpaceKind::Data, SpaceKind::Metadata, SpaceKind::System] {
            self.compare_profiles(&mut state, self.flags(kind));
        }
    }

    /// Returns whether a kind has a target, as [`Space::set_target`] sets it.
    pub(crate) fn converts(&self) -> bool {
        self.state.lock().infos.iter().any(|info| info.target.is_some())
    }

    /// Lets all new space of a kind have this profile, in place of the usual choice (`None`). Block
    /// groups of other profiles are out of service meanwhile.
    pub fn set_target(&self, kind: SpaceKind, target: Option<BlockGroupFlags>) {
        let flags = self.flags(kind);
        let mut state = self.state.lock();
        state.info(flags).target = target;
        let redundant = state
            .info(flags)
            .profile(self.devices.load(Ordering::Relaxed))
            .intersects(super::block_group::REDUNDANT);
        state.info(flags).redundant = redundant;
        state.settle_service(flags);
    }

    /// Allocates space. For data: `want` bytes if there is such a run, else the longest run of at
    /// least `min` bytes, in whole sectors. For metadata and the chunk tree: exactly one node,
    /// whatever `min` and `want` are. Runs of one kind are placed one after the other if possible.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if no block group has such a run. A new chunk or a commit may help.
    ///
    /// # Panics
    /// If `min` and `want` are 0, not multiples of a sector, or in the wrong order.
    pub fn allocate(&self, kind: SpaceKind, min: u64, want: u64) -> Result<LogicalRange> {
        let (min, want, alignment) = match kind {
            SpaceKind::Data => (min, want, self.sector_size),
            SpaceKind::Metadata | SpaceKind::System => (self.node_size, self.node_size, self.node_size),
        };
        assert!(0 < min && min <= want, "allocating {min} to {want} bytes");
        assert!(
            min.is_multiple_of(alignment) && want.is_multiple_of(alignment),
            "allocating {min} to {want} bytes, unaligned"
        );
        let flags = self.flags(kind);
        let mut state = self.state.lock();
        let Some(range) = state.choose(kind, flags, min, want, alignment) else {
            return Err(no_space(kind));
        };
        state.change(range.start, |group| group.reserve(&range));
        Ok(LogicalRange::of(range))
    }

    /// Allocates data as [`Space::allocate`], but leaves what reservations hold: at most as many
    /// bytes as they leave over, if these are at least `least`. Other threads that allocate at the
    /// same time find exactly the rest, so all of them fit where their sum does.
    ///
    /// # Errors
    /// As [`Space::allocate`].
    ///
    /// # Panics
    /// As [`Space::allocate`].
    pub(crate) fn allocate_unpromised(&self, min: u64, want: u64, least: u64) -> Result<LogicalRange> {
        let sector = self.sector_size;
        assert!(0 < min && min <= want && min.is_multiple_of(sector) && want.is_multiple_of(sector));
        let flags = self.flags(SpaceKind::Data);
        let mut state = self.state.lock();
        let spared = state.spared(SpaceKind::Data, flags, false);
        let info = state.info(flags);
        let left = info.available.saturating_sub(info.promised).saturating_sub(spared);
        let want = want.min(left / sector * sector);
        if left < least || want < min {
            return Err(no_space(SpaceKind::Data));
        }
        let Some(range) = state.choose(SpaceKind::Data, flags, min, want, sector) else {
            return Err(no_space(SpaceKind::Data));
        };
        state.change(range.start, |group| group.reserve(&range));
        Ok(LogicalRange::of(range))
    }

    /// Allocates exactly this range, which a log tree or another record says is allocated.
    ///
    /// # Errors
    /// [`Error::Item`] if a part of it is not free.
    pub(crate) fn claim(&self, range: LogicalRange) -> Result<()> {
        let mut state = self.state.lock();
        let bytes = range.bytes();
        let group = state.group_of(&bytes).filter(|group| group.free.ranges().holder(&bytes).is_some());
        if group.is_none() {
            return Err(extent_error(range, "a part of it is not free"));
        }
        state.change(bytes.start, |group| group.reserve(&bytes));
        Ok(())
    }

    /// Frees an allocated range that nothing written by a commit ever referred to.
    ///
    /// # Panics
    /// If it is not allocated, or has an extent item.
    pub fn release(&self, range: LogicalRange) {
        self.state.lock().change(range.start.0, |group| group.release(range.bytes()));
    }

    /// Records that the extent tree now has an extent item for the range.
    ///
    /// # Panics
    /// If it is not allocated.
    pub(crate) fn extent_inserted(&self, range: LogicalRange) {
        let mut state = self.state.lock();
        let start = state.change(range.start.0, |group| {
            group.insert_extent(&range.bytes());
            group.start
        });
        state.bytes_used += range.length;
        state.dirty.insert(start);
    }

    /// Records that the extent tree no longer has an extent item for the range, and pins its bytes.
    ///
    /// # Errors
    /// [`Error::Item`] if it lies in no block group, or in one with fewer bytes in use, or if a
    /// part of it is free or pinned: the extent tree is damaged.
    pub(crate) fn extent_removed(&self, range: LogicalRange) -> Result<()> {
        let mut state = self.state.lock();
        let bytes = range.bytes();
        let wrong = |why| Err(extent_error(range, why));
        if state.group_of(&bytes).is_none() {
            return wrong("lies in no block group");
        }
        if state.pinned.overlaps(&bytes) {
            return wrong("a part of it has already been removed");
        }
        let removed = state.change(bytes.start, |group| group.remove_extent(&bytes).then_some(group.start));
        let Some(start) = removed else { return wrong("a part of it is not in use") };
        state.pinned.insert(bytes);
        state.bytes_used -= range.length;
        state.dirty.insert(start);
        Ok(())
    }

    /// Pins an allocated range that has no extent item but is reachable from something on disk: a
    /// block of a log tree.
    ///
    /// # Panics
    /// If it is not allocated.
    pub(crate) fn pin_reserved(&self, range: LogicalRange) {
        let mut state = self.state.lock();
        state.change(range.start.0, |group| group.pin_reserved(&range.bytes()));
        state.pinned.insert(range.bytes());
    }

    /// Returns the ranges pinned since the last call, and lets the next transaction begin rows of
    /// its own. Call it after a transaction has removed its last extent item and before the next
    /// one removes any.
    pub(crate) fn take_pinned(&self) -> Pinned {
        let mut state = self.state.lock();
        state.end_rows();
        Pinned { ranges: std::mem::take(&mut state.pinned) }
    }

    /// Frees the pinned ranges of a transaction whose superblocks are on disk.
    pub(crate) fn unpin(&self, pinned: Pinned) {
        let ranges: Vec<_> = pinned.ranges.iter().collect();
        for batch in ranges.chunks(UNPIN_BATCH) {
            let mut state = self.state.lock();
            for range in batch {
                // Adjacent ranges of two block groups form one range.
                let mut at = range.start;
                while at < range.end {
                    at = state.change(at, |group| {
                        let end = range.end.min(group.end());
                        group.unpin(at..end);
                        end
                    });
                }
            }
        }
    }

    /// Returns the changes in block groups since the last call, in ascending order of start.
    pub(crate) fn dirty_groups(&self) -> Vec<BlockGroupUpdate> {
        let mut state = self.state.lock();
        let SpaceState { groups, dirty, .. } = &mut *state;
        let dirty = std::mem::take(dirty);
        dirty.iter().filter_map(|start| Some(groups.get_mut(start)?.take_update())).collect()
    }

    /// Calls `on` with the first free range in `within` that belongs to a free run of at least
    /// `min` bytes, cut to `max` bytes. Allocations wait meanwhile, so `on` must be short. Returns
    /// the end of that range, to continue from, or `None` if there is no more.
    pub fn with_free<E>(
        &self,
        within: Range<u64>,
        min: u64,
        max: u64,
        on: impl FnOnce(LogicalRange) -> Result<(), E>,
    ) -> Result<Option<u64>, E> {
        let state = self.state.lock();
        let first = state.groups.range(..=within.start).next_back().map_or(within.start, |(start, _)| *start);
        for group in state.groups.range(first..within.end).map(|(_, group)| group) {
            let mut at = within.start.max(group.start);
            while let Some(run) = group.free.ranges().first_behind(at)
                && run.start < within.end
            {
                let (start, end) = (run.start.max(within.start), run.end.min(within.end));
                if run.end - run.start >= min {
                    let end = end.min(start.saturating_add(max));
                    return on(LogicalRange::of(start..end)).map(|()| Some(end));
                }
                at = run.end;
            }
        }
        Ok(None)
    }

    /// Returns the sums of a kind; the same for both kinds if data and metadata share block groups.
    pub fn totals(&self, kind: SpaceKind) -> super::SpaceTotals {
        self.state.lock().info(self.flags(kind)).totals
    }

    /// Returns the bytes that allocations of a kind can get: free, and not in a read-only block
    /// group.
    pub fn available(&self, kind: SpaceKind) -> u64 {
        self.state.lock().info(self.flags(kind)).available
    }

    /// As [`Space::available`], without the bytes that reservations hold.
    pub(crate) fn unpromised(&self, kind: SpaceKind) -> u64 {
        let mut state = self.state.lock();
        let info = state.info(self.flags(kind));
        info.available.saturating_sub(info.promised)
    }

    /// Returns the bytes that become free with the commits that free them.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        self.state.lock().infos.iter().map(|info| info.totals.pinned).sum()
    }

    /// Returns a lower bound of the bytes of data that can be written, where each `per_metadata`
    /// bytes of data need one byte of metadata, and all of them `base` bytes besides. One byte of a
    /// new data chunk takes `data_copies` bytes of devices, one byte of metadata `copies`.
    pub(crate) fn writable_bytes(&self, need: &MetadataNeed, copies: u64, data_copies: u64) -> u64 {
        let mut state = self.state.lock();
        let (reserve, unallocated, room) =
            (state.global_reserve, state.unallocated, state.data_room.unwrap_or(u64::MAX));
        let data = state.info(self.flags(SpaceKind::Data));
        let (in_groups, data_total) = (data.available.saturating_sub(data.promised), data.totals.total);
        let metadata = state.info(self.flags(SpaceKind::Metadata));
        let base = need.base.saturating_add(reserve);
        let share = |bytes: u64, per: u64| (u128::from(bytes) * u128::from(per) / u128::from(per + 1)) as u64;
        if self.mixed {
            let left = in_groups.saturating_add(unallocated / CHUNK_SHARE * (CHUNK_SHARE - 1));
            let base = base.saturating_add(left_in_mixed(data_total));
            return share(left.saturating_sub(base), need.data_per_metadata);
        }
        // Bytes that metadata block groups have beyond the base, and bytes that they lack for it.
        let promised = metadata.promised.saturating_add(base);
        let spare = metadata.available.saturating_sub(promised);
        let lacking = promised.saturating_sub(metadata.available);
        let on_devices = unallocated.saturating_sub(lacking) / CHUNK_SHARE * (CHUNK_SHARE - 1);
        let of_spare = spare.saturating_mul(need.data_per_metadata);
        if lacking > unallocated {
            return 0;
        }
        // First the data that fits with the metadata block groups that exist, then a share of the
        // device space each for data and its metadata.
        // Chunks on several devices need space on all of them, and those of metadata take some.
        let room = room.saturating_sub(lacking.saturating_mul(copies)) / CHUNK_SHARE * (CHUNK_SHARE - 1);
        let for_data = (on_devices.saturating_mul(copies) / data_copies).min(room);
        let fits = in_groups.saturating_add(for_data);
        if fits <= of_spare {
            return fits;
        }
        let more = share(for_data, (need.data_per_metadata * data_copies / copies).max(1));
        fits.min(of_spare.saturating_add(more))
    }

    /// Returns the bytes with extent items: the superblock's `bytes_used`.
    pub fn bytes_used(&self) -> u64 {
        self.state.lock().bytes_used
    }

    /// Returns the flags of the next chunk of a kind: its type, and the most redundant profile in
    /// use that the devices can hold.
    pub fn chunk_flags(&self, kind: SpaceKind) -> BlockGroupFlags {
        let flags = self.flags(kind);
        flags | self.state.lock().info(flags).profile(self.devices.load(Ordering::Relaxed))
    }

    /// Returns the block group that contains an address.
    pub fn block_group_of(&self, address: LogicalAddress) -> Option<NewBlockGroup> {
        let state = self.state.lock();
        let group = state.group_of(&(address.0..address.0.checked_add(1)?))?;
        Some(group.describe())
    }

    /// Returns whether one block group contains all of these logical addresses.
    pub(crate) fn is_in_one_group(&self, addresses: &Range<u64>) -> bool {
        self.state.lock().group_of(addresses).is_some()
    }

    /// Returns whether data at an address may be overwritten: its block group is not being removed
    /// or relocated.
    pub fn is_writable(&self, address: LogicalAddress) -> bool {
        let state = self.state.lock();
        address
            .0
            .checked_add(1)
            .and_then(|end| state.group_of(&(address.0..end)))
            .is_some_and(|group| !group.read_only)
    }

    /// Returns the block groups that are empty, also as of the last commit, and not needed to
    /// preserve their profile: like the kernel, this keeps the last one with its flags.
    pub(crate) fn empty_groups(&self) -> Vec<NewBlockGroup> {
        let state = self.state.lock();
        let mut left = BTreeMap::new();
        let mut found = Vec::new();
        let relocated: Vec<_> =
            state.groups.values().filter(|group| group.relocating && group.is_empty()).collect();
        found.extend(relocated.into_iter().map(BlockGroup::describe));
        let empty = |group: &&BlockGroup| group.is_empty() && !group.read_only;
        let candidates: Vec<_> = state.groups.values().filter(empty).map(BlockGroup::describe).collect();
        for candidate in candidates {
            let flags = candidate.flags;
            let stays = |group: &&BlockGroup| group.flags == flags && !group.relocating;
            let left =
                left.entry(flags.bits()).or_insert_with(|| state.groups.values().filter(stays).count());
            if *left > 1 {
                *left -= 1;
                found.push(candidate);
            }
        }
        found
    }

    /// Makes an empty block group read-only, in preparation of its removal. Returns false and
    /// changes nothing if it is in use (another thread may have allocated from it during a commit),
    /// or if existing reservations would not fit into the remaining space.
    ///
    /// # Panics
    /// If there is no such block group.
    pub fn mark_empty_read_only(&self, start: LogicalAddress) -> bool {
        let mut state = self.state.lock();
        let (flags, empty, free) = state.change(start.0, |group| {
            (group.flags, group.is_empty(), if group.serves() { group.free.bytes() } else { 0 })
        });
        let could_be_had = state.could_be_had(flags) - free;
        if !empty || free > 0 && could_be_had < state.info(flags).promised {
            return false;
        }
        state.change(start.0, |group| group.read_only = true);
        true
    }

    /// Begins to move everything out of a block group: nothing more is allocated in it, and the
    /// commit that finds it empty removes it. Returns false if there is no such block group.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if existing reservations would not fit into the remaining space; a new
    /// chunk may help.
    pub(crate) fn begin_relocation(&self, start: LogicalAddress) -> Result<bool> {
        let mut state = self.state.lock();
        if !state.groups.contains_key(&start.0) {
            return Ok(false);
        }
        let (flags, free) =
            state.change(start.0, |group| (group.flags, if group.serves() { group.free.bytes() } else { 0 }));
        let could_be_had = state.could_be_had(flags) - free;
        if free > 0 && could_be_had < state.info(flags).promised {
            return Err(Error::NoSpace { what: "what is promised, while a block group moves" });
        }
        state.change(start.0, |group| (group.relocating, group.read_only) = (true, true));
        Ok(true)
    }

    /// Returns whether a block group is empty and the only one that serves new data.
    pub(crate) fn is_only_for_data(&self, start: LogicalAddress) -> bool {
        let state = self.state.lock();
        let others = |group: &BlockGroup| group.start != start.0 && group.serves();
        state.groups.get(&start.0).is_some_and(|group| {
            group.flags.contains(BlockGroupFlags::DATA)
                && group.is_empty()
                && !state
                    .groups
                    .values()
                    .any(|other| other.flags.contains(BlockGroupFlags::DATA) && others(other))
        })
    }

    /// Gives up moving everything out of a block group, if it is still there.
    pub(crate) fn end_relocation(&self, start: LogicalAddress) {
        let mut state = self.state.lock();
        if state.groups.contains_key(&start.0) {
            state.change(start.0, |group| (group.relocating, group.read_only) = (false, group.on_seed));
        }
    }

    /// Whether a block group is being moved elsewhere.
    pub(crate) fn is_relocating(&self, start: LogicalAddress) -> bool {
        self.state.lock().groups.get(&start.0).is_some_and(|group| group.relocating)
    }

    /// Returns all block groups, ascending.
    pub fn block_groups(&self) -> Vec<NewBlockGroup> {
        self.state.lock().groups.values().map(BlockGroup::describe).collect()
    }

    /// Returns the bytes of metadata that commits need at hand. Ordinary reservations leave them.
    pub(crate) fn global_reserve(&self) -> u64 {
        self.state.lock().global_reserve
    }

    /// Counts bytes as reserved.
    ///
    /// # Errors
    /// [`Error::NoSpace`], see [`super::reservation`].
    pub(super) fn promise(&self, kind: SpaceKind, bytes: u64, emergency: bool) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let flags = self.flags(kind);
        let mut state = self.state.lock();
        let mut could_be_had = state.info(flags).available;
        if kind != SpaceKind::Data {
            could_be_had = state.could_be_had(flags);
        }
        let spared = state.spared(kind, flags, emergency);
        let info = state.info(flags);
        let needed = info.promised.checked_add(bytes).and_then(|sum| sum.checked_add(spared));
        if needed.is_none_or(|needed| needed > could_be_had) {
            return Err(no_space(kind));
        }
        info.promised += bytes;
        Ok(())
    }

    /// Releases reserved bytes.
    pub(super) fn return_promise(&self, kind: SpaceKind, bytes: u64) {
        let mut state = self.state.lock();
        let info = state.info(self.flags(kind));
        assert!(info.promised >= bytes, "releasing {bytes} bytes, but only {} are reserved", info.promised);
        info.promised -= bytes;
    }

    /// Sets the amount of device space in no chunk, in bytes of devices. One byte of metadata takes
    /// `copies` bytes of it.
    pub(crate) fn set_unallocated(&self, bytes: u64, copies: u64) {
        assert!(copies > 0);
        self.state.lock().unallocated = bytes / copies;
    }

    /// Sets how many bytes of data the chunks that still fit on the devices can take.
    pub(crate) fn set_data_room(&self, bytes: u64) {
        self.state.lock().data_room = Some(bytes);
    }

    /// Sets how many bytes of metadata ordinary reservations must leave.
    pub(crate) fn set_global_reserve(&self, bytes: u64) {
        self.state.lock().global_reserve = bytes;
    }

    /// Returns the bytes of metadata that are reserved or kept as global reserve and that no block
    /// group has. A chunk for another kind must leave this much device space.
    pub(crate) fn metadata_shortfall(&self) -> u64 {
        let flags = self.flags(SpaceKind::Metadata);
        let mut state = self.state.lock();
        let reserve = state.global_reserve;
        let info = state.info(flags);
        info.promised.saturating_add(reserve).saturating_sub(info.available)
    }

    /// Returns the type bits of block groups that serve a kind.
    fn flags(&self, kind: SpaceKind) -> BlockGroupFlags {
        match kind {
            SpaceKind::System => BlockGroupFlags::SYSTEM,
            _ if self.mixed => BlockGroupFlags::DATA | BlockGroupFlags::METADATA,
            SpaceKind::Data => BlockGroupFlags::DATA,
            SpaceKind::Metadata => BlockGroupFlags::METADATA,
        }
    }
}

impl SpaceState {
    /// Takes block groups of a kind out of service, or back, according to their profile.
    fn settle_service(&mut self, flags: BlockGroupFlags) {
        let slot_of_kind = slot(flags);
        let info = &self.infos[slot_of_kind];
        let wrong =
            |group: &&BlockGroup| slot(group.flags) == slot_of_kind && group.lesser != info.is_lesser(group);
        let starts: Vec<_> = self.groups.values().filter(wrong).map(|group| group.start).collect();
        for start in starts {
            self.change(start, |group| group.lesser = !group.lesser);
        }
    }

    /// Returns the sums of the kind with these flags.
    pub(super) fn info(&mut self, flags: BlockGroupFlags) -> &mut SpaceInfo {
        &mut self.infos[slot(flags)]
    }

    /// Returns the block group that contains a whole range.
    pub(super) fn group_of(&self, range: &Range<u64>) -> Option<&BlockGroup> {
        let (_, group) = self.groups.range(..=range.start).next_back()?;
        (range.end <= group.end() && range.start < range.end).then_some(group)
    }

    /// Changes the block group that contains `address`, and the sums.
    fn change<T>(&mut self, address: u64, change: impl FnOnce(&mut BlockGroup) -> T) -> T {
        let found = self.groups.range_mut(..=address).next_back().filter(|(_, group)| address < group.end());
        let Some((&start, group)) = found else { panic!("{address} is in no block group") };
        let before = group.footprint();
        let result = change(group);
        let (after, flags) = (group.footprint(), group.flags);
        self.info(flags).change(start, &before, &after);
        result
    }

    /// Returns whether metadata is allocated from block groups with these flags.
    fn is_metadata(flags: BlockGroupFlags) -> bool {
        flags.contains(BlockGroupFlags::METADATA)
    }

    /// Returns the bytes that are available now, or could be after creating chunks.
    fn could_be_had(&mut self, flags: BlockGroupFlags) -> u64 {
        let unallocated = if Self::is_metadata(flags) { self.unallocated } else { 0 };
        self.info(flags).available.saturating_add(unallocated)
    }

    /// Returns the bytes that a reservation must leave.
    fn spared(&mut self, kind: SpaceKind, flags: BlockGroupFlags, emergency: bool) -> u64 {
        if !Self::is_metadata(flags) || emergency {
            return 0;
        }
        let left_by_data = match kind {
            SpaceKind::Data => left_in_mixed(self.info(flags).totals.total),
            SpaceKind::Metadata | SpaceKind::System => 0,
        };
        self.global_reserve.saturating_add(left_by_data)
    }
}

/// Returns the bytes that data leaves free in mixed block groups of `total` bytes, besides the
/// global reserve. Files that were written until the groups were full need them for their inodes:
/// without them `fsync` would fail.
pub(crate) fn left_in_mixed(total: u64) -> u64 {
    (total / 64).min(2 << 20)
}

/// Returns the index of the [`SpaceInfo`] for block groups with these flags.
pub(super) fn slot(flags: BlockGroupFlags) -> usize {
    let data = flags.contains(BlockGroupFlags::DATA);
    match (data, flags.contains(BlockGroupFlags::METADATA)) {
        (true, true) => 0,
        (true, false) => 1,
        (false, true) => 2,
        (false, false) => 3,
    }
}

fn no_space(kind: SpaceKind) -> Error {
    let what = match kind {
        SpaceKind::Data => "data",
        SpaceKind::Metadata => "metadata",
        SpaceKind::System => "the chunk tree",
    };
    Error::NoSpace { what }
}

/// The error of an extent that the extent tree contradicts.
pub fn extent_error(range: LogicalRange, why: &'static str) -> Error {
    let key = Key::new(range.start.0, ItemType::EXTENT_ITEM, range.length);
    let reason = Corrupt::field("extent", "address", range.start.0, why);
    Error::Item { tree: objectid::EXTENT_TREE, key, reason }
}
