//! All block groups of a file system, and the allocator of its logical addresses.
//!
//! Owns [`Space`], [`NewBlockGroup`] and [`Pinned`]. Invariants: block groups are disjoint; each byte
//! of one is in one state (see [`super`]); sums are those of the block groups. What cannot be true
//! whatever the image says is asserted; what an image can contradict is an error.
//!
//! Lock: one, for a few map operations at a time; nothing else is taken and no I/O is done under it, but for
//! [`Space::with_free`], whose caller discards a bounded piece.
//! Kernel counterparts: `find_free_extent`, `unpin_extent_range`, `pin_down_extent`
//! (`fs/btrfs/extent-tree.c`), `btrfs_update_block_group`, `inc_block_group_ro`
//! (`fs/btrfs/block-group.c`).

use super::block_group::{BlockGroup, BlockGroupUpdate};
use super::range_set::RangeSet;
use super::space_info::SpaceInfo;
use super::{LogicalRange, Reservation, SpaceKind};
use crate::errors::{Error, Result};
use papilio_format::features::IncompatFeatures;
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::{Corrupt, Geometry, ItemType, Key, LogicalAddress, objectid};
use papilio_locks::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// Where a run ends, the next begins in a free range of at least so many bytes if there is one, so
/// that small extents of one time lie together.
const CLUSTER: u64 = 1 << 20;

/// Ranges that become free under one hold of the lock.
const UNPIN_BATCH: usize = 256;

/// A block group to take in.
#[derive(Clone, Debug)]
pub(crate) struct NewBlockGroup {
    /// Its place.
    pub(crate) range: LogicalRange,
    /// What it holds and how.
    pub(crate) flags: BlockGroupFlags,
    /// Bytes that the extent tree holds.
    pub(crate) used: u64,
}

/// Ranges that stay untouched until the superblocks of the transaction that gave them up are on
/// disk. Dropping it without [`Space::unpin`] (of a commit that failed) leaves them so for good.
#[derive(Debug, Default)]
#[must_use = "pinned ranges become free by Space::unpin only"]
pub(crate) struct Pinned {
    ranges: RangeSet,
}

impl Pinned {
    /// What may be discarded, ascending. Only before [`Space::unpin`]: behind it the ranges may hold
    /// something new already.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = LogicalRange> + '_ {
        self.ranges.iter().map(LogicalRange::of)
    }
}

/// The logical address space and who has it.
#[derive(Debug)]
pub(crate) struct Space {
    sector_size: u64,
    node_size: u64,
    /// Data and metadata share block groups.
    mixed: bool,
    /// Devices that chunks can be allocated on.
    devices: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    groups: BTreeMap<u64, BlockGroup>,
    /// By [`slot`].
    infos: [SpaceInfo; 4],
    /// Starts of block groups whose update is to be taken.
    dirty: BTreeSet<u64>,
    pinned: RangeSet,
    bytes_used: u64,
    global_reserve: u64,
    /// Bytes of metadata that unallocated device space would give.
    unallocated: u64,
}

impl Space {
    /// No block groups yet; chunks can be made on `devices` devices.
    pub(crate) fn new(geometry: &Geometry, devices: usize) -> Self {
        Self {
            sector_size: geometry.sector_size.into(),
            node_size: geometry.node_size.into(),
            mixed: geometry.incompat.contains(IncompatFeatures::MIXED_GROUPS),
            devices,
            state: Mutex::default(),
        }
    }

    /// Takes in a block group of which `free` is free, as the free-space tree says it: `excluded`,
    /// the places of superblocks, are taken out here.
    ///
    /// # Panics
    /// Where it overlaps another, or where free ranges overlap, lie outside, or contradict `used`.
    pub(crate) fn add_block_group(
        &self,
        new: &NewBlockGroup,
        free: impl IntoIterator<Item = Range<u64>>,
        excluded: &[Range<LogicalAddress>],
    ) {
        let excluded: Vec<_> = excluded.iter().map(|range| range.start.0..range.end.0).collect();
        let mut group = BlockGroup::new(&new.range.bytes(), new.flags, new.used, free, &excluded);
        let mut state = self.state.lock();
        let before = state.groups.range(..group.end()).next_back();
        let overlaps = before.is_some_and(|(_, other)| other.end() > group.start);
        assert!(!overlaps, "the block group at {} overlaps another", group.start);
        state.bytes_used += group.used;
        let flags = group.flags;
        let info = state.info(flags);
        group.lesser = info.redundant && !group.is_redundant();
        info.add(&group);
        state.groups.insert(group.start, group);
        self.compare_profiles(&mut state, flags);
    }

    /// Forgets a block group that was made read-only and has nothing in it.
    ///
    /// # Panics
    /// Where it is not so, or there is none.
    pub(crate) fn remove_block_group(&self, start: LogicalAddress) {
        let mut state = self.state.lock();
        let Some(group) = state.groups.remove(&start.0) else { panic!("no block group at {start}") };
        assert!(group.read_only && group.is_empty(), "the block group at {start} is in use");
        state.dirty.remove(&start.0);
        state.info(group.flags).remove(&group);
        self.compare_profiles(&mut state, group.flags);
    }

    /// Block groups without redundancy serve only while no other of their kind could.
    fn compare_profiles(&self, state: &mut State, flags: BlockGroupFlags) {
        let info = state.info(flags);
        let redundant = info.profile(self.devices).intersects(super::block_group::REDUNDANT);
        if info.redundant == redundant {
            return;
        }
        info.redundant = redundant;
        let same_kind = |group: &&BlockGroup| slot(group.flags) == slot(flags);
        let wrong = |group: &&BlockGroup| group.lesser != (redundant && !group.is_redundant());
        let starts: Vec<_> =
            state.groups.values().filter(same_kind).filter(wrong).map(|group| group.start).collect();
        for start in starts {
            state.change(start, |group| group.lesser = !group.lesser);
        }
    }

    /// Allocates space: for data a run of `min` to `want` bytes, whole sectors, `want` if there is
    /// such a run, else the longest; for metadata and the chunk tree exactly one node, whatever
    /// `min` and `want` are. Runs of one kind follow one another while there is room.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: no block group has such a run. A new chunk or a commit may help.
    ///
    /// # Panics
    /// Where `min` and `want` are no sector multiples, 0, or not in order.
    pub(crate) fn allocate(&self, kind: SpaceKind, min: u64, want: u64) -> Result<LogicalRange> {
        let (min, want, alignment) = match kind {
            SpaceKind::Data => (min, want, self.sector_size),
            SpaceKind::Metadata | SpaceKind::System => (self.node_size, self.node_size, self.node_size),
        };
        assert!(0 < min && min <= want, "{min} to {want} bytes");
        assert!(min.is_multiple_of(alignment) && want.is_multiple_of(alignment), "{min} to {want} bytes");
        let flags = self.flags(kind);
        let mut state = self.state.lock();
        let Some(range) = state.find(kind, flags, min, want, alignment) else {
            return Err(no_space(kind));
        };
        state.cursor(kind, flags, range.end);
        state.change(range.start, |group| group.reserve(&range));
        Ok(LogicalRange::of(range))
    }

    /// Allocates exactly this range, which the log tree or another record says was allocated.
    ///
    /// # Errors
    /// [`Error::Item`]: a part of it is not free.
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

    /// Gives back what was allocated and never referenced by anything that a commit wrote.
    ///
    /// # Panics
    /// Where it is not allocated, or has an extent item.
    pub(crate) fn release(&self, range: LogicalRange) {
        self.state.lock().change(range.start.0, |group| group.release(range.bytes()));
    }

    /// The range's extent item is in the extent tree now.
    ///
    /// # Panics
    /// Where it is not allocated.
    pub(crate) fn extent_inserted(&self, range: LogicalRange) {
        let mut state = self.state.lock();
        let start = state.change(range.start.0, |group| {
            group.insert_extent(&range.bytes());
            group.start
        });
        state.bytes_used += range.length;
        state.dirty.insert(start);
    }

    /// The range's extent item is gone from the extent tree. Its bytes are pinned.
    ///
    /// # Errors
    /// [`Error::Item`]: it lies in no block group, or in one that has less in use, or a part of it is
    /// free or pinned: the extent tree is damaged.
    pub(crate) fn extent_removed(&self, range: LogicalRange) -> Result<()> {
        let mut state = self.state.lock();
        let bytes = range.bytes();
        let wrong = |why| Err(extent_error(range, why));
        if state.group_of(&bytes).is_none() {
            return wrong("in no block group");
        }
        if state.pinned.overlaps(&bytes) {
            return wrong("a part of it was removed before");
        }
        let removed = state.change(bytes.start, |group| group.remove_extent(&bytes).then_some(group.start));
        let Some(start) = removed else { return wrong("a part of it is not in use") };
        state.pinned.insert(bytes);
        state.bytes_used -= range.length;
        state.dirty.insert(start);
        Ok(())
    }

    /// Gives back what was allocated, never got an extent item, and yet something on disk leads
    /// there: a block of a log tree.
    ///
    /// # Panics
    /// Where it is not allocated.
    pub(crate) fn pin_reserved(&self, range: LogicalRange) {
        let mut state = self.state.lock();
        state.change(range.start.0, |group| group.pin_reserved(&range.bytes()));
        state.pinned.insert(range.bytes());
    }

    /// What was pinned since the last call. To be called when the last extent item of a transaction
    /// is removed, and before any of the next is.
    pub(crate) fn take_pinned(&self) -> Pinned {
        Pinned { ranges: std::mem::take(&mut self.state.lock().pinned) }
    }

    /// The superblocks of the transaction are on disk: its pinned ranges are free.
    pub(crate) fn unpin(&self, pinned: Pinned) {
        let ranges: Vec<_> = pinned.ranges.iter().collect();
        for batch in ranges.chunks(UNPIN_BATCH) {
            let mut state = self.state.lock();
            for range in batch {
                // Neighbours of two block groups are one range.
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

    /// What changed in block groups since the last call, ascending by start.
    pub(crate) fn dirty_groups(&self) -> Vec<BlockGroupUpdate> {
        let mut state = self.state.lock();
        let State { groups, dirty, .. } = &mut *state;
        let dirty = std::mem::take(dirty);
        dirty.iter().filter_map(|start| Some(groups.get_mut(start)?.take_update())).collect()
    }

    /// Runs `on` with the first range of free space in `within` that lies in a free run of at least `min` bytes,
    /// and cuts it to `max` bytes. Nobody allocates anything meanwhile: what `on` does must be short. Returns
    /// the end of that range, to go on from, or `None` where there is no more.
    pub(crate) fn with_free<E>(
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

    /// The sums of a kind. Where data and metadata share block groups, both are the same.
    #[cfg(test)]
    pub(crate) fn totals(&self, kind: SpaceKind) -> super::SpaceTotals {
        self.state.lock().info(self.flags(kind)).totals
    }

    /// Bytes that allocations of a kind can still get: free, and not of a read-only block group.
    pub(crate) fn available(&self, kind: SpaceKind) -> u64 {
        self.state.lock().info(self.flags(kind)).available
    }

    /// Bytes held by items of the extent tree: the superblock's `bytes_used`.
    pub(crate) fn bytes_used(&self) -> u64 {
        self.state.lock().bytes_used
    }

    /// The flags of the next chunk of a kind: the type, and of the profiles in use the one of most
    /// redundancy that the devices can hold.
    pub(crate) fn chunk_flags(&self, kind: SpaceKind) -> BlockGroupFlags {
        let flags = self.flags(kind);
        flags | self.state.lock().info(flags).profile(self.devices)
    }

    /// The block group that an address lies in.
    #[cfg(test)]
    pub(crate) fn block_group_of(&self, address: LogicalAddress) -> Option<NewBlockGroup> {
        let state = self.state.lock();
        let group = state.group_of(&(address.0..address.0.checked_add(1)?))?;
        Some(NewBlockGroup { range: group.range(), flags: group.flags, used: group.used })
    }

    /// Whether what lies at an address may be overwritten: its block group is not being removed or relocated.
    pub(crate) fn is_writable(&self, address: LogicalAddress) -> bool {
        let state = self.state.lock();
        address
            .0
            .checked_add(1)
            .and_then(|end| state.group_of(&(address.0..end)))
            .is_some_and(|group| !group.read_only)
    }

    /// Block groups in which nothing is, of the last commit neither, and which can go without the
    /// loss of their profile: the last one of its flags stays, as the kernel has it.
    pub(crate) fn empty_groups(&self) -> Vec<NewBlockGroup> {
        let mut state = self.state.lock();
        let mut left = BTreeMap::new();
        let mut found = Vec::new();
        let empty = |group: &&BlockGroup| group.is_empty() && !group.read_only;
        let candidates: Vec<_> =
            state.groups.values().filter(empty).map(|group| (group.range(), group.flags)).collect();
        for (range, flags) in candidates {
            let left = left.entry(flags.bits()).or_insert_with(|| state.info(flags).count(flags));
            if *left > 1 {
                *left -= 1;
                found.push(NewBlockGroup { range, flags, used: 0 });
            }
        }
        found
    }

    /// Keeps new allocations out of a block group, as its removal needs. Returns false, and changes nothing, where
    /// something is in it, which others may have allocated while a commit runs, or where what is promised would not
    /// fit in the rest.
    ///
    /// # Panics
    /// Where there is none.
    pub(crate) fn mark_empty_read_only(&self, start: LogicalAddress) -> bool {
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

    /// Promises metadata. An `emergency` may use the global reserve (see [`super::reservation`]).
    ///
    /// # Errors
    /// [`Error::NoSpace`]; a commit may help where bytes are pinned.
    pub(crate) fn reserve_metadata(self: &Arc<Self>, bytes: u64, emergency: bool) -> Result<Reservation> {
        self.promise(SpaceKind::Metadata, bytes, emergency)
    }

    /// Promises data.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; a new chunk may help, or a commit where bytes are pinned.
    pub(crate) fn reserve_data(self: &Arc<Self>, bytes: u64) -> Result<Reservation> {
        self.promise(SpaceKind::Data, bytes, false)
    }

    fn promise(self: &Arc<Self>, kind: SpaceKind, bytes: u64, emergency: bool) -> Result<Reservation> {
        let flags = self.flags(kind);
        let mut state = self.state.lock();
        let mut could_be_had = state.info(flags).available;
        if kind != SpaceKind::Data {
            could_be_had = state.could_be_had(flags);
        }
        let spared = state.spared(flags, emergency);
        let info = state.info(flags);
        let needed = info.promised.checked_add(bytes).and_then(|sum| sum.checked_add(spared));
        if needed.is_none_or(|needed| needed > could_be_had) {
            return Err(no_space(kind));
        }
        info.promised += bytes;
        drop(state);
        Ok(Reservation::new(Arc::clone(self), kind, bytes))
    }

    /// Takes back a promise.
    pub(super) fn return_promise(&self, kind: SpaceKind, bytes: u64) {
        let mut state = self.state.lock();
        let info = state.info(self.flags(kind));
        assert!(info.promised >= bytes, "{bytes} bytes were never promised");
        info.promised -= bytes;
    }

    /// Sets what device space is in no chunk, in bytes of devices, and how many bytes of it one byte
    /// of metadata takes.
    pub(crate) fn set_unallocated(&self, bytes: u64, copies: u64) {
        assert!(copies > 0);
        self.state.lock().unallocated = bytes / copies;
    }

    /// Sets how many bytes of metadata ordinary reservations leave alone.
    pub(crate) fn set_global_reserve(&self, bytes: u64) {
        self.state.lock().global_reserve = bytes;
    }

    /// Bytes of metadata that are promised or kept back and that no block group has: so many must
    /// stay possible when a chunk for something else is made.
    pub(crate) fn metadata_shortfall(&self) -> u64 {
        let flags = self.flags(SpaceKind::Metadata);
        let mut state = self.state.lock();
        let reserve = state.global_reserve;
        let info = state.info(flags);
        info.promised.saturating_add(reserve).saturating_sub(info.available)
    }

    /// The type bits of block groups that serve a kind.
    fn flags(&self, kind: SpaceKind) -> BlockGroupFlags {
        match kind {
            SpaceKind::System => BlockGroupFlags::SYSTEM,
            _ if self.mixed => BlockGroupFlags::DATA | BlockGroupFlags::METADATA,
            SpaceKind::Data => BlockGroupFlags::DATA,
            SpaceKind::Metadata => BlockGroupFlags::METADATA,
        }
    }
}

impl State {
    /// The sums of the kind that flags name.
    fn info(&mut self, flags: BlockGroupFlags) -> &mut SpaceInfo {
        &mut self.infos[slot(flags)]
    }

    /// The block group that holds a whole range.
    fn group_of(&self, range: &Range<u64>) -> Option<&BlockGroup> {
        let (_, group) = self.groups.range(..=range.start).next_back()?;
        (range.end <= group.end() && range.start < range.end).then_some(group)
    }

    /// Changes the block group that holds `address`, and the sums with it.
    fn change<T>(&mut self, address: u64, change: impl FnOnce(&mut BlockGroup) -> T) -> T {
        let found = self.groups.range_mut(..=address).next_back().filter(|(_, group)| address < group.end());
        let Some((&start, group)) = found else { panic!("{address} is in no block group") };
        let before = group.footprint();
        let result = change(group);
        let (after, flags) = (group.footprint(), group.flags);
        self.info(flags).change(start, &before, &after);
        result
    }

    /// Where an allocation is made.
    fn find(
        &self,
        kind: SpaceKind,
        flags: BlockGroupFlags,
        min: u64,
        want: u64,
        alignment: u64,
    ) -> Option<Range<u64>> {
        let info = &self.infos[slot(flags)];
        let cursors = info.cursors;
        let cursor = if kind == SpaceKind::Data { cursors.data } else { cursors.metadata };
        if let Some(at) = cursor.filter(|at| at.is_multiple_of(alignment))
            && let Some(group) = self.group_of(&(at..at.saturating_add(1)))
            && group.serves()
            && slot(group.flags) == slot(flags)
            && let rest = group.free.rest_at(at)
            && rest.end - rest.start >= want
        {
            return Some(at..at + want);
        }
        let free = |start: u64| &self.groups[&start].free;
        let fit =
            |length: u64| info.with_room(length).find_map(|start| free(start).best_fit(length, alignment));
        if let Some(start) = fit(want.max(CLUSTER)).or_else(|| fit(want)) {
            return Some(start..start + want);
        }
        let runs = info.with_most_room().filter_map(|start| free(start).longest_run(min, alignment));
        runs.max_by_key(|run| run.end - run.start).map(|run| run.start..run.end.min(run.start + want))
    }

    /// The next allocation of the kind begins here if it can.
    fn cursor(&mut self, kind: SpaceKind, flags: BlockGroupFlags, at: u64) {
        let cursors = &mut self.info(flags).cursors;
        *(if kind == SpaceKind::Data { &mut cursors.data } else { &mut cursors.metadata }) = Some(at);
    }

    /// Whether metadata comes from block groups of these flags.
    fn is_metadata(flags: BlockGroupFlags) -> bool {
        flags.contains(BlockGroupFlags::METADATA)
    }

    /// Bytes that can be allocated here, or once chunks are made.
    fn could_be_had(&mut self, flags: BlockGroupFlags) -> u64 {
        let unallocated = if Self::is_metadata(flags) { self.unallocated } else { 0 };
        self.info(flags).available.saturating_add(unallocated)
    }

    /// Bytes that a reservation has to leave.
    fn spared(&self, flags: BlockGroupFlags, emergency: bool) -> u64 {
        if Self::is_metadata(flags) && !emergency { self.global_reserve } else { 0 }
    }
}

/// Which kind's sums a block group of these flags is part of.
fn slot(flags: BlockGroupFlags) -> usize {
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

fn extent_error(range: LogicalRange, why: &'static str) -> Error {
    let key = Key::new(range.start.0, ItemType::EXTENT_ITEM, range.length);
    let reason = Corrupt::field("extent", "address", range.start.0, why);
    Error::Item { tree: objectid::EXTENT_TREE, key, reason }
}
