//! Ordered extents: data of an open file that is on the device and that no tree tells of yet.
//!
//! Owns [`OrderedExtents`]: where such data lies and its checksums, by file offset. Each lies either in room
//! that was allocated for it (*new*: no tree and no log refers to it, nor has it ever been referred to), or in
//! a preallocated extent of the file's that may be written where it lies. In both cases a crash leaves what the
//! trees say: the old extents, or zeros. Therefore what is written again before a flush is overwritten where it
//! is, and costs one item however often.
//!
//! Invariants: extents do not overlap; each has sums for all its sectors, of the bytes that are on the device,
//! unless its range is locked by a writer; all room of a new one is shown by it, so that cutting one makes two
//! that stand for themselves. What is entered here covers what the trees say. Extents change under the file's
//! data lock, shared, and the writer's range; they leave by a flush, under the data lock, exclusive.
//!
//! Locks: one mutex, for a few operations on maps; who waits for a range holds the file's data lock (shared) and
//! none but those before it. Kernel counterpart: `struct btrfs_ordered_extent`
//! (`fs/btrfs/ordered-data.h`), which lives from the write's submission to its items.

use super::csum_edit::SumRuns;
use super::extent_map::{DiskExtent, Extent, ExtentKind};
use super::range_locks::RangeLocks;
use super::sector_sums::SectorSums;
use crate::space::{LogicalRange, Reservation};
use arrayvec::ArrayVec;
use papilio_format::items::file_extent::Compression;
use papilio_format::{ChecksumType, FileOffset, Generation, Geometry, LogicalAddress};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Parts that a write finds at most; where there are more, it is one of its own.
pub(crate) const MAX_PARTS: usize = 16;
/// Extents of a file beyond which it is to be flushed.
const MAX_EXTENTS: usize = 16 << 10;
/// And pieces of memory for sums, of 256 sectors each.
const MAX_CHUNKS: usize = 16 << 10;
/// Bytes of sums that are copied at once to be compared.
const COMPARED: usize = 1 << 10;

/// A part of a file, and where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OrderedPart {
    /// Of the file.
    pub(crate) range: Range<u64>,
    /// Of its first byte.
    pub(crate) disk: LogicalAddress,
    /// In room that was allocated for it, or else in a preallocated extent.
    pub(crate) new: bool,
}

/// The parts of one write.
pub(crate) type OrderedParts = ArrayVec<OrderedPart, MAX_PARTS>;

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
    /// Whether there are any. Set before the first one's range is unlocked.
    any: AtomicBool,
    state: Mutex<State>,
    left: Condvar,
}

#[derive(Debug)]
struct State {
    extents: BTreeMap<u64, Ordered>,
    sums: SectorSums,
    locks: RangeLocks,
    /// Metadata that is promised for items to come.
    promised: Option<Reservation>,
    /// Bytes of data that it is for and that were not entered yet.
    credit: u64,
}

#[derive(Clone, Copy, Debug)]
struct Ordered {
    end: u64,
    disk: LogicalAddress,
    new: bool,
}

/// A locked range of the file.
#[derive(Debug)]
#[must_use = "it is unlocked when dropped"]
pub(crate) struct RangeLock<'a> {
    of: &'a OrderedExtents,
    range: Range<u64>,
    ticket: u64,
}

impl OrderedExtents {
    /// None yet.
    pub(crate) fn new(geometry: &Geometry) -> Self {
        let state = State {
            extents: BTreeMap::new(),
            sums: SectorSums::new(geometry),
            locks: RangeLocks::default(),
            promised: None,
            credit: 0,
        };
        Self {
            checksum_type: geometry.checksum_type,
            any: AtomicBool::new(false),
            state: Mutex::new(state),
            left: Condvar::new(),
        }
    }

    /// Whether there are none. Who holds the data lock, shared, and hears that there are none may read what the
    /// trees say without locking a range: that stays as it is until a flush.
    pub(crate) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }

    /// Whether there are so many that they are to be flushed.
    pub(crate) fn is_full(&self) -> bool {
        if self.is_empty() {
            return false;
        }
        let state = self.state.lock();
        state.extents.len() > MAX_EXTENTS || state.sums.chunks() > MAX_CHUNKS
    }

    /// Locks a range, to read what it stands for. The caller holds the data lock, shared.
    pub(crate) fn lock_to_read(&self, range: Range<u64>) -> RangeLock<'_> {
        self.lock(range, false).0
    }

    /// Locks a range, to write it, and shows the ordered extents in it, as many as [`OrderedParts`] holds. The
    /// caller holds the data lock, shared.
    pub(crate) fn lock_to_write(&self, range: Range<u64>) -> (RangeLock<'_>, OrderedParts) {
        let (lock, state) = self.lock(range, true);
        let parts = state.parts(&lock.range);
        drop(state);
        (lock, parts)
    }

    fn lock(&self, range: Range<u64>, exclusive: bool) -> (RangeLock<'_>, MutexGuard<'_, State>) {
        let mut state = self.state.lock();
        let ticket = state.locks.enter(range.clone(), exclusive);
        while !state.locks.is_granted(ticket) {
            self.left.wait(&mut state);
        }
        (RangeLock { of: self, range, ticket }, state)
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

    /// What stands at `at`, which lies in a locked range.
    pub(crate) fn at(&self, at: u64) -> OrderedAt {
        let state = self.state.lock();
        if let Some((start, found)) = state.holder(at) {
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
        OrderedAt::Until(state.extents.range(at..).next().map_or(u64::MAX, |(&start, _)| start))
    }

    /// Whether the sums of what stands at `at`, in a locked range, are here.
    pub(crate) fn holds(&self, at: u64) -> bool {
        self.state.lock().holder(at).is_some()
    }

    /// The first sector of `data`, which was read from an ordered extent that holds `start` and is in a locked
    /// range, whose sum is another.
    pub(crate) fn first_mismatch(&self, start: u64, data: &[u8]) -> Option<usize> {
        let (sector, size) = self.state.lock().sums.sizes();
        let most = COMPARED / size * sector as usize;
        let mut first = 0;
        for data in data.chunks(most) {
            let at = start + first as u64 * sector;
            let mut sums: ArrayVec<u8, COMPARED> = ArrayVec::new();
            let state = self.state.lock();
            state.sums.for_each(&(at..at + data.len() as u64), |part| sums.extend(part.iter().copied()));
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

    /// The first extents of one kind, up to `most` of them and of about `bytes` bytes.
    pub(crate) fn first(&self, new: bool, most: usize, bytes: u64) -> Vec<OrderedPart> {
        let state = self.state.lock();
        let mut parts = Vec::new();
        let mut left = bytes;
        for (&start, found) in state.extents.iter().filter(|(_, extent)| extent.new == new) {
            let range = start..found.end.min(start + left);
            left -= range.end - range.start;
            parts.push(OrderedPart { range, disk: found.disk, new });
            if parts.len() == most || left == 0 {
                break;
            }
        }
        parts
    }

    /// The sums of `parts`, which are here.
    pub(crate) fn sums_of(&self, parts: &[OrderedPart], geometry: &Geometry) -> SumRuns {
        let state = self.state.lock();
        let mut runs = SumRuns::new(geometry);
        let (sector, size) = state.sums.sizes();
        for part in parts {
            let mut at = part.disk.0;
            state.sums.for_each(&part.range, |sums| {
                runs.add_known(LogicalAddress(at), sums);
                at += (sums.len() / size) as u64 * sector;
            });
        }
        runs
    }

    /// The trees have these now. The caller holds the data lock exclusively.
    pub(crate) fn published(&self, parts: &[OrderedPart]) {
        let mut state = self.state.lock();
        for part in parts {
            state.cut_out(&part.range, &mut Vec::new());
        }
        self.note_whether_any(&mut state);
    }

    /// Forgets all, and returns the room of those that were new. The caller holds the data lock exclusively, or
    /// is the last to know the file.
    pub(crate) fn forget(&self) -> Vec<LogicalRange> {
        drop(self.take_promise());
        let mut state = self.state.lock();
        let mut room = Vec::new();
        state.cut_out(&(0..u64::MAX), &mut room);
        self.note_whether_any(&mut state);
        room
    }

    fn note_whether_any(&self, state: &mut State) {
        if state.extents.is_empty() {
            state.sums.clear();
            self.any.store(false, Ordering::Release);
        }
    }
}

impl RangeLock<'_> {
    /// Data of the range's bytes in `parts` is on the device, where it lay before or in a preallocated extent.
    /// `sums` are those of the whole of `range`, which the parts cover.
    pub(crate) fn overwritten(&self, parts: &[OrderedPart], range: &Range<u64>, sums: &[u8]) {
        let mut state = self.of.state.lock();
        state.sums.put(range, sums);
        for part in parts.iter().filter(|part| !part.new) {
            state.enter_preallocated(part);
        }
        self.of.any.store(true, Ordering::Release);
    }

    /// Data of the range is on the device, in new room that `parts` show. Returns the room of what it takes the
    /// place of, which nothing leads to any more; to be given back before the range is unlocked.
    pub(crate) fn replaced(&self, parts: &[OrderedPart], sums: &[u8]) -> Vec<LogicalRange> {
        let mut room = Vec::new();
        let mut state = self.of.state.lock();
        state.cut_out(&self.range, &mut room);
        state.sums.put(&self.range, sums);
        for part in parts {
            let extent = Ordered { end: part.range.end, disk: part.disk, new: true };
            state.extents.insert(part.range.start, extent);
        }
        self.of.any.store(true, Ordering::Release);
        room
    }
}

impl Drop for RangeLock<'_> {
    fn drop(&mut self) {
        if self.of.state.lock().locks.leave(self.ticket) {
            self.of.left.notify_all();
        }
    }
}

impl State {
    /// The extent that holds byte `at`.
    fn holder(&self, at: u64) -> Option<(u64, Ordered)> {
        let (&start, &found) = self.extents.range(..=at).next_back()?;
        (at < found.end).then_some((start, found))
    }

    /// The extents in a range, cut to it.
    fn parts(&self, range: &Range<u64>) -> OrderedParts {
        let first = self.holder(range.start).map_or(range.start, |(start, _)| start);
        let parts = self.extents.range(first..range.end).take(MAX_PARTS).map(|(&start, found)| {
            let from = start.max(range.start);
            let disk = LogicalAddress(found.disk.0 + (from - start));
            OrderedPart { range: from..found.end.min(range.end), disk, new: found.new }
        });
        parts.collect()
    }

    /// Leaves nothing of a range, and adds the room of what was new in it to `room`.
    fn cut_out(&mut self, range: &Range<u64>, room: &mut Vec<LogicalRange>) {
        let mut at = range.start;
        while let Some((start, found)) =
            self.holder(at).or_else(|| self.extents.range(at..).next().map(|(&start, &found)| (start, found)))
            && start < range.end
        {
            let (from, to) = (start.max(range.start), found.end.min(range.end));
            let address = |offset: u64| LogicalAddress(found.disk.0 + (offset - start));
            if from > start {
                self.extents.insert(start, Ordered { end: from, ..found });
            } else {
                self.extents.remove(&start);
            }
            if to < found.end {
                self.extents.insert(to, Ordered { disk: address(to), ..found });
            }
            if found.new {
                room.push(LogicalRange { start: address(from), length: to - from });
            }
            at = to;
        }
    }

    /// Enters what was written of a preallocated extent, together with its neighbours in the same.
    fn enter_preallocated(&mut self, part: &OrderedPart) {
        let Range { start, end } = part.range;
        if self.holder(start).is_some_and(|(_, found)| !found.new && found.end >= end) {
            return;
        }
        let mut joined = Ordered { end, disk: part.disk, new: false };
        let mut first = start;
        self.cut_out(&part.range, &mut Vec::new());
        if let Some((&before, found)) = self.extents.range(..start).next_back()
            && !found.new
            && found.end == start
            && found.disk.0 + (start - before) == part.disk.0
        {
            (first, joined.disk) = (before, found.disk);
        }
        if let Some(&behind) = self.extents.get(&end)
            && !behind.new
            && behind.disk.0 == part.disk.0 + (end - start)
        {
            self.extents.remove(&end);
            joined.end = behind.end;
        }
        self.extents.insert(first, joined);
    }
}
