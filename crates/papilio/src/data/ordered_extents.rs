//! Ordered extents: data of an open file that is on the device and that no tree tells of yet.
//!
//! Owns [`OrderedExtents`]: where such data lies and its checksums, by file offset. Each lies either in room
//! that was allocated for it (*new*: no tree and no log refers to it, nor has it ever been referred to), or in
//! a preallocated extent of the file's that may be written where it lies. In both cases a crash leaves what the
//! trees say: the old extents, or zeros. Therefore what is written again before a flush is overwritten where it
//! is, and costs one item however often.
//!
//! Invariants: extents do not overlap; each has sums for all its sectors, of the bytes that are on the device,
//! unless its range is locked by a writer. What is entered here covers what the trees say. Extents change under
//! the file's data lock, shared, and the writer's range. They leave by a flush: under the data lock, exclusive, or,
//! a step at a time, shared, and the step's range. The latter only once all who hold the data lock know that there
//! are some, and lock what they read (*known*): who found none may be reading still.
//!
//! Locks: one mutex, for a few operations on maps; who waits for a range holds the file's data lock (shared) and
//! none but those before it. Kernel counterpart: `struct btrfs_ordered_extent`
//! (`fs/btrfs/ordered-data.h`), which lives from the write's submission to its items.

use super::csum_edit::SumRuns;
use super::extent_map::{DiskExtent, Extent, ExtentKind};
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

pub(crate) use super::ordered_map::{MAX_PARTS, OrderedPart, OrderedParts};

/// How often its limits a file may have before writers wait for a step of a flush.
const FAR_BEYOND: usize = 2;
/// Bytes of sums that are copied at once to be compared.
const COMPARED: usize = 1 << 10;

/// What stands at a byte of the file.
pub(crate) enum OrderedAt {
    /// An ordered extent, from there on.
    Here(Extent),
    /// What the trees say, up to this byte at most.
    Until(u64),
}

/// Ordered extents of one open file.
#[derive(Debug)]
pub(crate) struct OrderedExtents {
    checksum_type: ChecksumType,
    budget: Arc<OrderedBudget>,
    /// Whether there are any. Set before the first one's range is unlocked.
    any: AtomicBool,
    /// Whether all who hold the data lock know of that.
    known: AtomicBool,
    /// How many there are, and bytes of memory that they take, to be asked without the lock.
    count: AtomicUsize,
    memory: AtomicUsize,
    /// Where the next step of a flush begins that is made because there are many.
    next_step: AtomicU64,
    state: Mutex<State>,
    left: Condvar,
}

#[derive(Debug)]
struct State {
    map: OrderedMap,
    locks: RangeLocks,
    /// Metadata that is promised for items to come.
    promised: Option<Reservation>,
    /// Bytes of data that it is for and that were not entered yet.
    credit: u64,
}

/// What a step of a flush brings to the trees.
#[derive(Debug)]
pub(crate) struct Step<'a> {
    /// Nobody else reads or writes there meanwhile.
    pub(crate) lock: RangeLock<'a>,
    /// Ascending.
    pub(crate) parts: Vec<OrderedPart>,
    /// Where the next step begins.
    pub(crate) next: u64,
}

/// Ranges of files that are locked: a thread has at most one.
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

impl OrderedExtents {
    /// None yet.
    pub(crate) fn new(geometry: &Geometry, budget: &Arc<OrderedBudget>) -> Self {
        let state =
            State { map: OrderedMap::new(geometry), locks: RangeLocks::default(), promised: None, credit: 0 };
        Self {
            checksum_type: geometry.checksum_type,
            budget: Arc::clone(budget),
            any: AtomicBool::new(false),
            known: AtomicBool::new(false),
            count: AtomicUsize::new(0),
            memory: AtomicUsize::new(0),
            next_step: AtomicU64::new(0),
            state: Mutex::new(state),
            left: Condvar::new(),
        }
    }

    /// Whether there are none. Who holds the data lock, shared, and hears that there are none may read what the
    /// trees say without locking a range: that stays as it is until a flush.
    pub(crate) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }

    /// Whether all who hold the data lock, or will, know that there are some.
    pub(crate) fn is_known(&self) -> bool {
        self.known.load(Ordering::Acquire)
    }

    /// Lets all know, if there are some. The caller holds the data lock exclusively: whoever gets it next asks.
    pub(crate) fn make_known(&self) {
        self.known.store(!self.is_empty(), Ordering::Release);
    }

    /// Whether there are so many that some are to be brought to the trees.
    pub(crate) fn is_full(&self) -> bool {
        self.is_beyond(1)
    }

    /// Whether there are so many that writers are to wait until some are.
    pub(crate) fn is_overfull(&self) -> bool {
        self.is_beyond(FAR_BEYOND)
    }

    fn is_beyond(&self, times: usize) -> bool {
        let (count, memory) = (self.count.load(Ordering::Relaxed), self.memory.load(Ordering::Relaxed));
        if count == 0 {
            return false;
        }
        let limits = self.budget.limits();
        count > limits.extents * times || memory > limits.memory * times
    }

    /// Whether bringing all to the trees takes several steps.
    pub(crate) fn is_many(&self) -> bool {
        self.count.load(Ordering::Relaxed) > self.budget.step()
    }

    /// Extents that a step of a flush is of.
    pub(crate) fn step_size(&self) -> usize {
        self.budget.step()
    }

    /// Where the next step begins that is made because there are many.
    pub(crate) fn next_step(&self) -> u64 {
        self.next_step.load(Ordering::Relaxed)
    }

    /// It begins at `at`.
    pub(crate) fn set_next_step(&self, at: u64) {
        self.next_step.store(at, Ordering::Relaxed);
    }

    /// Locks a range, to read what it stands for. The caller holds the data lock, shared.
    pub(crate) fn lock_to_read(&self, range: Range<u64>) -> RangeLock<'_> {
        self.lock(range, false).0
    }

    /// Locks a range, to write it, and shows the ordered extents in it, as many as [`OrderedParts`] holds. The
    /// caller holds the data lock, shared.
    pub(crate) fn lock_to_write(&self, range: Range<u64>) -> (RangeLock<'_>, OrderedParts) {
        let (lock, state) = self.lock(range, true);
        let parts = state.map.parts(&lock.range).take(MAX_PARTS).collect();
        drop(state);
        (lock, parts)
    }

    /// Locks the range of the first extents from `from` on, up to `most` of them and of up to `bytes` bytes, and
    /// shows them; `None` where there are none. The caller holds the data lock, shared, and is the only one to
    /// make a step, or holds it exclusively.
    pub(crate) fn lock_step(&self, from: u64, most: usize, bytes: u64) -> Option<Step<'_>> {
        let first = |state: &State, range: Range<u64>| state.map.first_parts(&range, most, bytes);
        let parts = first(&self.state.lock(), from..u64::MAX);
        let range = parts.first()?.range.start..parts.last()?.range.end;
        let (lock, state) = self.lock(range.clone(), true);
        // As they are now: who had a part of the range locked may have changed them.
        let parts = first(&state, range.clone());
        drop(state);
        let next = parts.last().map_or(range.end, |last| last.range.end);
        Some(Step { lock, parts, next })
    }

    fn lock(&self, range: Range<u64>, exclusive: bool) -> (RangeLock<'_>, MutexGuard<'_, State>) {
        RANGE.might_wait(self);
        let mut state = self.state.lock();
        let ticket = state.locks.enter(range.clone(), exclusive);
        while !state.locks.is_granted(ticket) {
            self.left.wait(&mut state);
        }
        (RangeLock { of: self, range, ticket, _held: RANGE.tried(self) }, state)
    }

    /// Takes `bytes` of those for which metadata is promised, if there are so many.
    pub(crate) fn take_credit(&self, bytes: u64) -> bool {
        let mut state = self.state.lock();
        let left = state.credit.checked_sub(bytes);
        state.credit = left.unwrap_or(state.credit);
        left.is_some()
    }

    /// Takes over metadata that was promised for so many bytes.
    pub(crate) fn promise(&self, bytes: u64, metadata: Reservation) {
        let mut state = self.state.lock();
        state.credit += bytes;
        match &mut state.promised {
            Some(promised) => promised.merge(metadata),
            None => state.promised = Some(metadata),
        }
    }

    /// Hands out all metadata that was promised.
    pub(crate) fn take_promise(&self) -> Option<Reservation> {
        let mut state = self.state.lock();
        state.credit = 0;
        state.promised.take()
    }

    /// Keeps `base` bytes of what was promised, and one for so many bytes of what there is.
    pub(crate) fn trim_promise(&self, base: u64, data_per_byte: u64) {
        let mut state = self.state.lock();
        let keep = base + (state.map.bytes() + state.credit).div_ceil(data_per_byte);
        let surplus = state.promised.as_mut().and_then(|promised| {
            let surplus = promised.bytes().checked_sub(keep)?;
            Some(promised.split(surplus))
        });
        drop(state);
        drop(surplus);
    }

    /// What stands at `at`, which lies in a locked range.
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

    /// Whether the sums of what stands at `at`, in a locked range, are here.
    pub(crate) fn holds(&self, at: u64) -> bool {
        self.state.lock().map.holder(at).is_some()
    }

    /// The first sector of `data`, which was read from an ordered extent that holds `start` and is in a locked
    /// range, whose sum is another.
    pub(crate) fn first_mismatch(&self, start: u64, data: &[u8]) -> Option<usize> {
        let (sector, size) = self.state.lock().map.sums.sizes();
        let most = COMPARED / size * sector as usize;
        let mut first = 0;
        for data in data.chunks(most) {
            let at = start + first as u64 * sector;
            let mut sums: ArrayVec<u8, COMPARED> = ArrayVec::new();
            let state = self.state.lock();
            state.map.sums.for_each(&(at..at + data.len() as u64), |part| sums.extend(part.iter().copied()));
            drop(state);
            let sectors = data.chunks_exact(sector as usize).zip(sums.chunks_exact(size));
            let bad = sectors.into_iter().position(|(bytes, sum)| !self.checksum_type.verify(bytes, sum));
            if let Some(bad) = bad {
                return Some(first + bad);
            }
            first += data.len() / sector as usize;
        }
        None
    }

    /// The sums of `parts`, which are here.
    pub(crate) fn sums_of<'p>(
        &self,
        parts: impl IntoIterator<Item = &'p OrderedPart>,
        geometry: &Geometry,
    ) -> SumRuns {
        let state = self.state.lock();
        let mut runs = SumRuns::new(geometry);
        let (sector, size) = state.map.sums.sizes();
        for part in parts {
            let mut at = part.disk.0;
            state.map.sums.for_each(&part.range, |sums| {
                runs.add_known(LogicalAddress(at), sums);
                at += (sums.len() / size) as u64 * sector;
            });
        }
        runs
    }

    /// Forgets all, and returns the room of those that were new. The caller holds the data lock exclusively, or
    /// is the last to know the file.
    pub(crate) fn forget(&self) -> Vec<LogicalRange> {
        drop(self.take_promise());
        let mut state = self.state.lock();
        let mut room = Vec::new();
        state.map.cut_out(&(0..u64::MAX), &mut room);
        drop(state);
        self.note_whether_any();
        room
    }

    /// Notes whether there are any left. The caller holds the data lock exclusively, or is the last to know the
    /// file.
    pub(crate) fn note_whether_any(&self) {
        let mut state = self.state.lock();
        if state.map.len() == 0 {
            state.map.sums.clear();
            self.account(&state);
            self.any.store(false, Ordering::Release);
            self.known.store(false, Ordering::Release);
        }
    }

    /// Notes how many there are.
    fn account(&self, state: &State) {
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
    /// Data of the range's bytes in `parts` is on the device, where it lay before or in a preallocated extent.
    /// `sums` are those of the whole of `range`, which the parts cover.
    pub(crate) fn overwritten(&self, parts: &[OrderedPart], range: &Range<u64>, sums: &[u8]) {
        let mut state = self.of.state.lock();
        state.map.sums.put(range, sums);
        for part in parts.iter().filter(|part| !part.new) {
            state.map.enter_preallocated(part);
        }
        self.of.account(&state);
        self.of.any.store(true, Ordering::Release);
    }

    /// Data of the range is on the device, in new room that `parts` show. Returns the room of what it takes the
    /// place of, which nothing leads to any more; to be given back before the range is unlocked.
    pub(crate) fn replaced(&self, parts: &[OrderedPart], sums: &[u8]) -> Vec<LogicalRange> {
        let mut room = Vec::new();
        let mut state = self.of.state.lock();
        state.map.cut_out(&self.range, &mut room);
        state.map.sums.put(&self.range, sums);
        for part in parts {
            let extent = Ordered { end: part.range.end, disk: part.disk, new: true };
            state.map.insert(part.range.start, extent);
        }
        self.of.account(&state);
        self.of.any.store(true, Ordering::Release);
        room
    }

    /// The trees have `parts` of the range now.
    pub(crate) fn published(&self, parts: &[OrderedPart]) {
        let mut state = self.of.state.lock();
        state.map.take_out(parts);
        self.of.account(&state);
    }
}

impl Drop for RangeLock<'_> {
    fn drop(&mut self) {
        if self.of.state.lock().locks.leave(self.ticket) {
            self.of.left.notify_all();
        }
    }
}
