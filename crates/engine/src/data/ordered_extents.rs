//! Ordered extents: data of an open file that is on the device but not in the trees yet.
//!
//! Owns [`OrderedExtents`]: the locations and checksums of such data, by file offset. An ordered
//! extent is either *new*, in space that was allocated for it and that no tree or log has ever
//! referred to, or in a preallocated extent of the file. Either way, a crash leaves what the trees
//! have: the old extents, or zeros. Data that is written again before a flush is therefore
//! overwritten in place; it costs one item however often that happens.
//!
//! Invariants:
//! - Ordered extents do not overlap, and take precedence over what the trees have.
//! - Each has checksums of all its sectors, equal to the bytes on the device, except in a range
//!   that a writer has locked.
//! - A writer changes ordered extents under the file's data lock (shared) and a lock on its range.
//! - A flush removes them under the data lock held exclusively, or in steps, under the data lock
//!   (shared) and a lock on the step's range.
//! - Ordered extents are *announced* before the first flush step, and before pages are written back
//!   beside readers: from then on, every holder of the data lock locks the range it reads. A reader
//!   that found none before may still be reading without a range lock.
//!
//! Locks: one mutex, held for a few operations on maps. A thread that waits for a range holds the
//! file's data lock (shared) and the locks before it, no others. Kernel counterpart: `struct
//! btrfs_ordered_extent` (`fs/btrfs/ordered-data.h`), which lives from the submission of a write to
//! its items.

use super::csum_edit::ChecksumRuns;
use super::extent_map::{DiskExtent, Extent, ExtentKind};
use super::in_flight;
use super::ordered_budget::OrderedBudget;
use super::ordered_map::{Ordered, OrderedMap};
use super::range_locks::RangeLocks;
use crate::space::{LogicalRange, Reservation};
use arrayvec::ArrayVec;
use papilio_format::items::file_extent::Compression;
use papilio_format::{ChecksumType, FileOffset, Generation, Geometry, LogicalAddress};
use papilio_locks::{Class, Condvar, Held, Mutex, MutexGuard};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

pub(crate) use super::ordered_map::{MAX_PARTS, OrderedPart, OrderedParts};

/// The factor by which a file exceeds its limits before writers wait for a flush step.
const OVERFULL: usize = 2;
/// How long a thread waits for a range before it looks for requests in flight.
const RECHECK: Duration = Duration::from_millis(5);
/// Bytes of checksums that one comparison copies.
const COMPARED: usize = 1 << 10;

/// The result of looking up a byte of the file.
pub(crate) enum OrderedAt {
    /// An ordered extent, cut to start at the byte.
    Here(Extent),
    /// No ordered extent up to this file offset; the trees have the data.
    Until(u64),
}

/// The ordered extents of one open file.
#[derive(Debug)]
pub struct OrderedExtents {
    checksum_type: ChecksumType,
    budget: Arc<OrderedBudget>,
    /// Whether there may be any. Set before the range of the first one is unlocked.
    any: AtomicBool,
    /// Whether every holder of the data lock knows that there are some.
    announced: AtomicBool,
    /// The number of extents and their memory in bytes, readable without the lock.
    count: AtomicUsize,
    memory: AtomicUsize,
    /// The file offset where the next step of a flush for memory begins.
    next_step: AtomicU64,
    state: Mutex<OrderedState>,
    released: Condvar,
}

#[derive(Debug)]
struct OrderedState {
    map: OrderedMap,
    locks: RangeLocks,
    /// Metadata reserved for future items.
    reserved: Option<Reservation>,
    /// Bytes of data that the reservation is for and that were not written yet.
    credit: u64,
}

/// The extents that one flush step publishes.
#[derive(Debug)]
pub(crate) struct Step<'a> {
    /// The lock on the step's range; no other thread reads or writes there.
    pub(crate) lock: RangeLock<'a>,
    /// The extents, ascending.
    pub(crate) parts: Vec<OrderedPart>,
    /// The file offset where the next step begins.
    pub(crate) next: u64,
}

/// Locked ranges of files. A thread holds at most one.
static RANGE: Class = Class::new("range-of-file");

/// A locked range of the file.
#[derive(Debug)]
#[must_use = "it is unlocked when dropped"]
pub(crate) struct RangeLock<'a> {
    of: &'a OrderedExtents,
    range: Range<u64>,
    ticket: u64,
    _held: Held,
}

/// A locked range of a file that no thread holds. [`OrderedExtents::redeem`] unlocks it.
#[derive(Debug)]
#[must_use = "the range stays locked until it is redeemed"]
pub(crate) struct RangeTicket {
    range: Range<u64>,
    ticket: u64,
}

impl OrderedExtents {
    /// Creates an empty set.
    pub(crate) fn new(geometry: &Geometry, budget: &Arc<OrderedBudget>) -> Self {
        let state = OrderedState {
            map: OrderedMap::new(geometry),
            locks: RangeLocks::default(),
            reserved: None,
            credit: 0,
        };
        Self {
            checksum_type: geometry.checksum_type,
            budget: Arc::clone(budget),
            any: AtomicBool::new(false),
            announced: AtomicBool::new(false),
            count: AtomicUsize::new(0),
            memory: AtomicUsize::new(0),
            next_step: AtomicU64::new(0),
            state: Mutex::new(state),
            released: Condvar::new(),
        }
    }

    /// Returns whether there are none. A holder of the data lock (shared) that gets `true` may read
    /// the trees without locking a range: that stays valid until a flush.
    pub(crate) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }

    /// Returns whether every present and future holder of the data lock knows that there are some.
    pub(crate) fn is_announced(&self) -> bool {
        self.announced.load(Ordering::Acquire)
    }

    /// Announces that there are some, or may be soon. The caller holds the data lock exclusively,
    /// so that each later holder checks.
    pub(crate) fn announce(&self) {
        self.any.store(true, Ordering::Release);
        self.announced.store(true, Ordering::Release);
    }

    /// Returns whether the file exceeds its limits, so that some extents should be published.
    pub(crate) fn is_full(&self) -> bool {
        self.is_beyond(1)
    }

    /// Returns whether the file exceeds its limits so far that writers should wait for a flush
    /// step.
    pub(crate) fn is_overfull(&self) -> bool {
        self.is_beyond(OVERFULL)
    }

    fn is_beyond(&self, times: usize) -> bool {
        let (count, memory) = (self.count.load(Ordering::Relaxed), self.memory.load(Ordering::Relaxed));
        if count == 0 {
            return false;
        }
        let limits = self.budget.limits();
        count > limits.extents * times || memory > limits.memory * times
    }

    /// Returns whether publishing all of them takes several steps.
    pub(crate) fn is_many(&self) -> bool {
        self.count.load(Ordering::Relaxed) > self.budget.step()
    }

    /// Returns the number of extents of one flush step.
    pub(crate) fn step_size(&self) -> usize {
        self.budget.step()
    }

    /// Returns the file offset where the next step of a flush for memory begins.
    pub(crate) fn next_step(&self) -> u64 {
        self.next_step.load(Ordering::Relaxed)
    }

    /// Sets the file offset where the next step of a flush for memory begins.
    pub(crate) fn set_next_step(&self, at: u64) {
        self.next_step.store(at, Ordering::Relaxed);
    }

    /// Locks a range for reading. The caller holds the data lock, shared.
    pub(crate) fn lock_to_read(&self, range: Range<u64>) -> RangeLock<'_> {
        self.lock(range, false).0
    }

    /// Locks a range for writing, and returns the ordered extents in it, at most as many as
    /// [`OrderedParts`] holds. The caller holds the data lock, shared.
    pub(crate) fn lock_to_write(&self, range: Range<u64>) -> (RangeLock<'_>, OrderedParts) {
        let (lock, state) = self.lock(range, true);
        let parts = state.map.parts(&lock.range).take(MAX_PARTS).collect();
        drop(state);
        (lock, parts)
    }

    /// Returns the ordered extents in a range that the caller has locked, at most as many as
    /// [`OrderedParts`] holds.
    pub(crate) fn parts(&self, range: &Range<u64>) -> OrderedParts {
        self.state.lock().map.parts(range).take(MAX_PARTS).collect()
    }

    /// As [`OrderedExtents::lock_to_read`], for a request that holds the range without a thread.
    /// `None` instead of waiting.
    pub(crate) fn try_ticket_to_read(&self, range: &Range<u64>) -> Option<RangeTicket> {
        self.try_ticket(&mut self.state.lock(), range, false)
    }

    /// As [`OrderedExtents::lock_to_write`], for a request that holds the range without a thread.
    /// `None` instead of waiting.
    pub(crate) fn try_ticket_to_write(&self, range: &Range<u64>) -> Option<(RangeTicket, OrderedParts)> {
        let mut state = self.state.lock();
        let ticket = self.try_ticket(&mut state, range, true)?;
        Some((ticket, state.map.parts(range).take(MAX_PARTS).collect()))
    }

    fn try_ticket(
        &self,
        state: &mut OrderedState,
        range: &Range<u64>,
        exclusive: bool,
    ) -> Option<RangeTicket> {
        let ticket = state.locks.request(range.clone(), exclusive);
        if state.locks.is_granted(ticket) {
            return Some(RangeTicket { range: range.clone(), ticket });
        }
        let wakes = state.locks.release(ticket);
        debug_assert!(!wakes, "the last request is behind all others");
        None
    }

    /// Turns the ticket of one of these extents' ranges into a lock of this thread.
    pub(crate) fn redeem(&self, ticket: RangeTicket) -> RangeLock<'_> {
        let RangeTicket { range, ticket } = ticket;
        RangeLock { of: self, range, ticket, _held: RANGE.tried(self) }
    }

    /// Locks the range of the first extents from `from` on, at most `most` extents of `bytes`
    /// bytes, and returns them; `None` where there are none. The caller holds the data lock, either
    /// exclusively, or shared as the only thread that makes steps.
    pub(crate) fn lock_step(&self, from: u64, most: usize, bytes: u64) -> Option<Step<'_>> {
        let first = |state: &OrderedState, range: Range<u64>| state.map.first_parts(&range, most, bytes);
        let parts = first(&self.state.lock(), from..u64::MAX);
        let range = parts.first()?.range.start..parts.last()?.range.end;
        let (lock, state) = self.lock(range.clone(), true);
        // Read again: a thread that had a part of the range locked may have changed them.
        let parts = first(&state, range.clone());
        drop(state);
        let next = parts.last().map_or(range.end, |last| last.range.end);
        Some(Step { lock, parts, next })
    }

    fn lock(&self, range: Range<u64>, exclusive: bool) -> (RangeLock<'_>, MutexGuard<'_, OrderedState>) {
        RANGE.might_wait(self);
        let mut state = self.state.lock();
        let ticket = state.locks.request(range.clone(), exclusive);
        while !state.locks.is_granted(ticket) {
            if in_flight::any() {
                drop(state);
                in_flight::collect_or_sleep();
                state = self.state.lock();
            } else {
                self.released.wait_for(&mut state, RECHECK);
            }
        }
        (RangeLock { of: self, range, ticket, _held: RANGE.tried(self) }, state)
    }

    /// Uses up `bytes` of the bytes that metadata is reserved for, if there are as many left.
    pub(crate) fn take_credit(&self, bytes: u64) -> bool {
        let mut state = self.state.lock();
        let left = state.credit.checked_sub(bytes);
        state.credit = left.unwrap_or(state.credit);
        left.is_some()
    }

    /// Adds a metadata reservation for `bytes` bytes of data.
    pub(crate) fn add_reservation(&self, bytes: u64, metadata: Reservation) {
        let mut state = self.state.lock();
        state.credit += bytes;
        match &mut state.reserved {
            Some(reserved) => reserved.merge(metadata),
            None => state.reserved = Some(metadata),
        }
    }

    /// Takes the whole metadata reservation.
    pub(crate) fn take_reservation(&self) -> Option<Reservation> {
        let mut state = self.state.lock();
        state.credit = 0;
        state.reserved.take()
    }

    /// Releases the surplus of the metadata reservation: all but `base` bytes, and one byte for
    /// each `data_per_byte` bytes of data.
    pub(crate) fn trim_reservation(&self, base: u64, data_per_byte: u64) {
        let mut state = self.state.lock();
        let keep = base + (state.map.bytes() + state.credit).div_ceil(data_per_byte);
        let surplus = state.reserved.as_mut().and_then(|reserved| {
            let surplus = reserved.bytes().checked_sub(keep)?;
            Some(reserved.split(surplus))
        });
        drop(state);
        drop(surplus);
    }

    /// Looks up byte `at`, which is in a locked range.
    pub(crate) fn at(&self, at: u64) -> OrderedAt {
        let state = self.state.lock();
        if let Some((start, found)) = state.map.holder(at) {
            let disk = DiskExtent {
                disk_address: LogicalAddress(found.disk.0 + (at - start)),
                disk_length: found.end - at,
                ram_bytes: found.end - at,
                offset: 0,
                compression: Compression::None,
                generation: Generation(0),
            };
            let (start, end) = (FileOffset(at), FileOffset(found.end));
            return OrderedAt::Here(Extent { start, end, kind: ExtentKind::Regular(disk) });
        }
        OrderedAt::Until(state.map.next_start(at).unwrap_or(u64::MAX))
    }

    /// Returns whether byte `at`, in a locked range, is in an ordered extent.
    pub(crate) fn holds(&self, at: u64) -> bool {
        self.state.lock().map.holder(at).is_some()
    }

    /// Returns the first sector of `data` that does not match its checksum. The data was read from
    /// one ordered extent, from file offset `start` on, in a locked range.
    pub(crate) fn first_mismatch(&self, start: u64, data: &[u8]) -> Option<usize> {
        let (sector, size) = self.state.lock().map.checksums.sizes();
        let most = COMPARED / size * sector as usize;
        let mut first = 0;
        for data in data.chunks(most) {
            let at = start + first as u64 * sector;
            let mut checksums: ArrayVec<u8, COMPARED> = ArrayVec::new();
            let state = self.state.lock();
            state
                .map
                .checksums
                .for_each(&(at..at + data.len() as u64), |part| checksums.extend(part.iter().copied()));
            drop(state);
            let sectors = data.chunks_exact(sector as usize).zip(checksums.chunks_exact(size));
            let bad =
                sectors.into_iter().position(|(bytes, checksum)| !self.checksum_type.verify(bytes, checksum));
            if let Some(bad) = bad {
                return Some(first + bad);
            }
            first += data.len() / sector as usize;
        }
        None
    }

    /// Returns the checksums of `parts`, which are ordered extents.
    pub(crate) fn checksums_of<'p>(
        &self,
        parts: impl IntoIterator<Item = &'p OrderedPart>,
        geometry: &Geometry,
    ) -> ChecksumRuns {
        let state = self.state.lock();
        let mut runs = ChecksumRuns::new(geometry);
        let (sector, size) = state.map.checksums.sizes();
        for part in parts {
            let mut at = part.disk.0;
            state.map.checksums.for_each(&part.range, |checksums| {
                runs.add(LogicalAddress(at), checksums);
                at += (checksums.len() / size) as u64 * sector;
            });
        }
        runs
    }

    /// Removes all, and returns the space of the new ones, which the caller releases. The caller
    /// holds the data lock exclusively, or drops the last handle.
    pub(crate) fn forget(&self) -> Vec<LogicalRange> {
        drop(self.take_reservation());
        let mut state = self.state.lock();
        let mut freed = Vec::new();
        state.map.cut_out(&(0..u64::MAX), &mut freed);
        drop(state);
        self.update_any();
        freed
    }

    /// Updates whether there are any. The caller holds the data lock exclusively, or drops the last
    /// handle.
    pub(crate) fn update_any(&self) {
        let mut state = self.state.lock();
        if state.map.len() == 0 {
            state.map.checksums.clear();
            self.account(&state);
            self.any.store(false, Ordering::Release);
            self.announced.store(false, Ordering::Release);
        }
    }

    /// Updates the number and the memory.
    fn account(&self, state: &OrderedState) {
        let memory = state.map.memory();
        self.count.store(state.map.len(), Ordering::Relaxed);
        self.budget.changed(self.memory.swap(memory, Ordering::Relaxed), memory);
    }
}

impl Drop for OrderedExtents {
    fn drop(&mut self) {
        self.budget.changed(*self.memory.get_mut(), 0);
    }
}

impl RangeLock<'_> {
    /// Records that `parts`, which cover `range`, were written in place: over ordered extents, or
    /// in preallocated ones. `checksums` are those of all of `range`.
    pub(crate) fn record_overwrite(&self, parts: &[OrderedPart], range: &Range<u64>, checksums: &[u8]) {
        let mut state = self.of.state.lock();
        state.map.checksums.put(range, checksums);
        for part in parts.iter().filter(|part| !part.new) {
            state.map.enter_preallocated(part);
        }
        self.of.account(&state);
        self.of.any.store(true, Ordering::Release);
    }

    /// Records that a part of the locked range was written to the new space in `parts`, which
    /// follow each other. Returns the space of the new extents that these replace. Nothing refers
    /// to it; the caller releases it before it unlocks the range.
    pub(crate) fn record_new(&self, parts: &[OrderedPart], checksums: &[u8]) -> Vec<LogicalRange> {
        let mut freed = Vec::new();
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return freed };
        let range = first.range.start..last.range.end;
        let mut state = self.of.state.lock();
        state.map.cut_out(&range, &mut freed);
        state.map.checksums.put(&range, checksums);
        for part in parts {
            let extent = Ordered { end: part.range.end, disk: part.disk, new: true };
            state.map.insert(part.range.start, extent);
        }
        self.of.account(&state);
        self.of.any.store(true, Ordering::Release);
        freed
    }

    /// Removes the ordered extents of `range`, a part of the locked range, for which the trees have
    /// newer data. Returns the space of the new ones. Nothing refers to it; the caller releases it
    /// before it unlocks the range.
    pub(crate) fn record_replaced(&self, range: &Range<u64>) -> Vec<LogicalRange> {
        let mut freed = Vec::new();
        let mut state = self.of.state.lock();
        let parts: Vec<_> = state.map.parts(range).collect();
        if !parts.is_empty() {
            state.map.cut_out(range, &mut freed);
            state.map.forget_checksums(&parts);
            self.of.account(&state);
        }
        freed
    }

    /// Removes `parts` of the range, which the trees have now.
    pub(crate) fn record_published(&self, parts: &[OrderedPart]) {
        let mut state = self.of.state.lock();
        state.map.take_out(parts);
        self.of.account(&state);
    }
}

impl Drop for RangeLock<'_> {
    fn drop(&mut self) {
        if self.of.state.lock().locks.release(self.ticket) {
            self.of.released.notify_all();
        }
    }
}
