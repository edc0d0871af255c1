//! Dirty blocks, and their writeback.
//!
//! Owns which 4 KiB blocks of a folio are dirty, and the corresponding marks in the tree.
//!
//! **Invariants**
//! - Marking blocks dirty needs the content lock exclusively.
//! - Taking blocks for writeback needs it shared and keeps it until the write has ended. So a
//!   block's bytes cannot change while it is written, writeback does not block readers, and a block
//!   dirtied later is written later.
//!
//! ```text
//!                 mark_dirty                start_writeback                 finish
//!     clean  ------------------> dirty  ------------------> writeback  --------------> clean
//!       ^                         |  ^                          |
//!       +---- truncate, discard --+  +-------- fail, drop ------+
//! ```

use crate::folio::record::{BLOCKS_PER_RECORD, Record, flag};
use crate::folio::{Folio, FolioRead, FolioWrite, WRITEBACK};
use crate::mapping::{LAST_INDEX, Mapping};
use crate::shared::MappingInner;
use crate::sync;
use crate::xarray::{Mark, XArray};
use crate::{PAGE_SHIFT, PAGE_SIZE};
use papilio_locks::Held;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64 as PlainU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// The folio has left its mapping: look it up again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the folio is no longer in its mapping")]
pub struct Detached;

/// The blocks to write back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dirty {
    /// All dirty blocks.
    Any,
    /// Blocks that were dirty when [`Mapping::tag_for_writeback`] was called.
    Tagged,
}

impl Dirty {
    fn mark(self) -> Mark {
        match self {
            Self::Any => Mark::Dirty,
            Self::Tagged => Mark::ToWrite,
        }
    }
}

/// Returns the first and last page that overlap a range of bytes.
pub(crate) fn pages_of(bytes: &Range<u64>) -> Option<(u64, u64)> {
    (bytes.start < bytes.end).then(|| (bytes.start >> PAGE_SHIFT, (bytes.end - 1) >> PAGE_SHIFT))
}

impl MappingInner {
    /// Returns the words of dirty bits that hold the blocks, with each word's mask and first block.
    fn words<'a>(
        &'a self,
        record: &Record,
        blocks: Range<u32>,
    ) -> impl Iterator<Item = (&'a PlainU64, u64, u32)> {
        let first = record.id;
        let words = blocks.start / BLOCKS_PER_RECORD..blocks.end.div_ceil(BLOCKS_PER_RECORD);
        words.map(move |word| {
            let base = word * BLOCKS_PER_RECORD;
            let from = blocks.start.max(base) - base;
            let to = blocks.end.min(base + BLOCKS_PER_RECORD) - base;
            let mask = (((1u128 << to) - 1) as u64) & !((1u64 << from) - 1);
            (&self.shared.arena.record(first + word).blocks, mask, base)
        })
    }

    /// Returns whether any of the blocks is dirty. The tree is locked, or the folio exclusively.
    pub fn any_dirty(&self, record: &Record, blocks: Range<u32>) -> bool {
        record.has(flag::DIRTY)
            && self.words(record, blocks).any(|(word, mask, _)| word.load(Relaxed) & mask != 0)
    }

    /// Returns the first run of dirty blocks. The tree is locked.
    fn dirty_run(&self, record: &Record, blocks: Range<u32>) -> Option<Range<u32>> {
        let mut run: Option<Range<u32>> = None;
        for (word, mask, base) in self.words(record, blocks) {
            let bits = word.load(Relaxed) & mask;
            let end = match &mut run {
                None if bits == 0 => continue,
                None => {
                    let at = bits.trailing_zeros();
                    let end = at + (bits >> at).trailing_ones();
                    run = Some(base + at..base + end);
                    end
                }
                Some(run) => {
                    run.end += bits.trailing_ones();
                    bits.trailing_ones()
                }
            };
            if end < BLOCKS_PER_RECORD {
                break;
            }
        }
        run
    }

    /// Sets dirty bits and updates flag, mark and counters. Returns the bytes that were clean.
    /// The tree is locked.
    fn set_blocks(&self, tree: &mut XArray, folio: &Folio, blocks: Range<u32>) -> u64 {
        let record = folio.record();
        let mut new = 0;
        for (word, mask, _) in self.words(record, blocks) {
            let before = word.load(Relaxed);
            new += (mask & !before).count_ones();
            word.store(before | mask, Relaxed);
        }
        if record.set(flag::DIRTY) & flag::DIRTY == 0 {
            tree.set_mark(folio.index(), Mark::Dirty);
        }
        let bytes = u64::from(new) << PAGE_SHIFT;
        self.dirty.fetch_add(bytes, Relaxed);
        self.shared.dirty.fetch_add(bytes, Relaxed);
        bytes
    }

    /// Clears dirty bits and updates the flag and the counters; the caller updates the marks. The
    /// tree is locked.
    pub fn clean(&self, folio: &Folio, blocks: Range<u32>) {
        let mut gone = 0;
        for (word, mask, _) in self.words(folio.record(), blocks) {
            let before = word.load(Relaxed);
            gone += (mask & before).count_ones();
            word.store(before & !mask, Relaxed);
        }
        let bytes = u64::from(gone) << PAGE_SHIFT;
        self.dirty.fetch_sub(bytes, Relaxed);
        self.shared.dirty.fetch_sub(bytes, Relaxed);
        let record = folio.record();
        if !self.words(record, 0..record.pages() as u32).any(|(word, ..)| word.load(Relaxed) != 0) {
            record.clear(flag::DIRTY);
        }
    }

    /// [`MappingInner::clean`] for a folio that stays in the tree: also clears its marks.
    pub fn clean_in_tree(&self, tree: &mut XArray, folio: &Folio, blocks: Range<u32>) {
        self.clean(folio, blocks);
        if !folio.is_dirty() {
            tree.clear_mark(folio.index(), Mark::Dirty);
            tree.clear_mark(folio.index(), Mark::ToWrite);
        }
    }

    /// Collects the first run of adjacent dirty blocks in pages `first` to `last`, at most `max`
    /// pages, one piece per folio. The tree is locked.
    fn gather(&self, tree: &XArray, first: u64, last: u64, max: u64, mark: Mark, pieces: &mut Vec<Piece>) {
        let mut wanted = max;
        let mut end = None;
        for found in tree.iter_marked(first..=last, mark) {
            if end.is_some_and(|end| found.index != end) || wanted == 0 {
                break;
            }
            let record = self.shared.arena.record(found.entry.payload() as u32);
            let from = first.saturating_sub(found.index) as u32;
            let to = (last - found.index).min(record.pages() - 1) as u32 + 1;
            let Some(mut blocks) = self.dirty_run(record, from..to) else {
                if pieces.is_empty() {
                    continue;
                }
                break;
            };
            if !pieces.is_empty() && (blocks.start != 0 || u64::from(blocks.end) > wanted) {
                break;
            }
            blocks.end = blocks.end.min(blocks.start.saturating_add(wanted.min(u64::from(u32::MAX)) as u32));
            wanted -= u64::from(blocks.end - blocks.start);
            end = (u64::from(blocks.end) == record.pages()).then(|| found.index + record.pages());
            let whole = end.is_some();
            pieces.push(Piece {
                first: found.index,
                blocks,
                folio: None,
                record: found.entry.payload() as u32,
            });
            if !whole {
                break;
            }
        }
    }
}

/// Blocks of one folio in a run.
#[derive(Debug)]
struct Piece {
    first: u64,
    blocks: Range<u32>,
    record: u32,
    folio: Option<FolioRead>,
}

impl Piece {
    fn guard(&self) -> &FolioRead {
        self.folio.as_ref().expect("a piece of a run has its folio")
    }
}

impl Mapping {
    /// Marks a range of bytes within a folio dirty, rounded out to 4 KiB blocks. Returns how many
    /// bytes of these were clean.
    ///
    /// # Errors
    /// Fails if the folio belongs to another mapping, or was new and its fill has failed: the
    /// change is lost.
    ///
    /// # Panics
    /// If the range extends beyond the folio.
    pub fn mark_dirty(&self, guard: &FolioWrite, bytes: Range<usize>) -> Result<u64, Detached> {
        assert!(bytes.start <= bytes.end && bytes.end <= guard.len(), "{bytes:?} extends beyond the folio");
        let inner = &self.inner;
        let (folio, record) = (guard.folio(), guard.folio().record());
        if record.mapping.load(Acquire) != inner.id {
            return Err(Detached);
        }
        let blocks = (bytes.start / PAGE_SIZE) as u32..bytes.end.div_ceil(PAGE_SIZE) as u32;
        if blocks.is_empty() {
            return Ok(0);
        }
        // Dirty bits are cleared only under the content lock, which the guard holds: if all are
        // set, they stay set.
        if inner.words(record, blocks.clone()).all(|(word, mask, _)| word.load(Relaxed) & mask == mask) {
            return Ok(0);
        }
        let mut tree = sync::lock(&inner.tree);
        if record.mapping.load(Acquire) != inner.id {
            return Err(Detached);
        }
        Ok(inner.set_blocks(&mut tree, folio, blocks))
    }

    /// Returns the number of dirty bytes in this file.
    pub fn dirty_bytes(&self) -> u64 {
        self.inner.dirty.load(Relaxed)
    }

    /// Returns whether any block that overlaps the range is dirty.
    pub fn has_dirty(&self, bytes: Range<u64>) -> bool {
        let Some((first, last)) = pages_of(&bytes) else { return false };
        let tree = sync::lock(&self.inner.tree);
        self.inner.has_dirty_in(&tree, first, last)
    }

    /// Returns whether any block that overlaps the range is dirty or in a folio that is being
    /// written back. The data below the cache is older there.
    pub fn has_unwritten(&self, bytes: Range<u64>) -> bool {
        let Some((first, last)) = pages_of(&bytes) else { return false };
        let tree = sync::lock(&self.inner.tree);
        tree.next_marked(first..=last, Mark::Writeback).is_some()
            || self.inner.has_dirty_in(&tree, first, last)
    }

    /// Returns the first run of adjacent dirty blocks that overlap the range, in bytes: at most
    /// `max_bytes`, but at least one block.
    pub fn next_dirty(&self, bytes: Range<u64>, max_bytes: u64) -> Option<Range<u64>> {
        let (first, last) = pages_of(&bytes)?;
        let max = (max_bytes >> PAGE_SHIFT).max(1);
        let mut pieces = Vec::new();
        let tree = sync::lock(&self.inner.tree);
        self.inner.gather(&tree, first, last.min(LAST_INDEX), max, Mark::Dirty, &mut pieces);
        drop(tree);
        run_of(&pieces)
    }

    /// Tags the blocks that are dirty in the range now, so that writing back [`Dirty::Tagged`]
    /// terminates while writers continue. Returns whether any are.
    pub fn tag_for_writeback(&self, bytes: Range<u64>) -> bool {
        let Some((first, last)) = pages_of(&bytes) else { return false };
        let mut tree = sync::lock(&self.inner.tree);
        let mut next = first;
        let mut any = false;
        while let Some(found) = tree.next_marked(next..=last, Mark::Dirty) {
            tree.set_mark(found.index, Mark::ToWrite);
            any = true;
            next = found.last() + 1;
            if next > last {
                break;
            }
        }
        any
    }

    /// Takes the first run of adjacent dirty blocks that overlap the range for writing: at most
    /// `max_bytes`, but at least one block. Returns `None` if nothing is dirty there.
    ///
    /// Waits for writers of the first folio only: the run ends before any other locked folio.
    pub fn start_writeback(&self, bytes: Range<u64>, max_bytes: u64, which: Dirty) -> Option<WritebackRun> {
        self.take_for_writeback(bytes, max_bytes, which, true)
    }

    /// As [`Mapping::start_writeback`], but returns `None` instead of waiting for a writer.
    pub fn try_start_writeback(
        &self,
        bytes: Range<u64>,
        max_bytes: u64,
        which: Dirty,
    ) -> Option<WritebackRun> {
        self.take_for_writeback(bytes, max_bytes, which, false)
    }

    fn take_for_writeback(
        &self,
        bytes: Range<u64>,
        max_bytes: u64,
        which: Dirty,
        waits: bool,
    ) -> Option<WritebackRun> {
        let inner = &self.inner;
        let (first, last) = pages_of(&bytes)?;
        let last = last.min(LAST_INDEX);
        let max = (max_bytes >> PAGE_SHIFT).max(1);
        let mut pieces = Vec::new();
        loop {
            pieces.clear();
            let mut folios = Vec::new();
            {
                let tree = sync::lock(&inner.tree);
                inner.gather(&tree, first, last, max, which.mark(), &mut pieces);
                for piece in &pieces {
                    let found = tree.get(piece.first).expect("it has just been found");
                    debug_assert_eq!(found.entry.payload(), u64::from(piece.record));
                    folios.push(inner.folio(found));
                }
            }
            if pieces.is_empty() {
                return None;
            }
            // Waiting for a lock while holding others could deadlock with a writer that does the
            // same in reverse.
            for (number, (piece, folio)) in pieces.iter_mut().zip(folios).enumerate() {
                piece.folio = if number == 0 && waits { folio.into_read_dirty() } else { folio.try_read() };
                if piece.folio.is_none() {
                    break;
                }
            }
            let mut tree = sync::lock(&inner.tree);
            let still = pieces.iter().take_while(|piece| self.still_dirty(piece)).count();
            if still == 0 {
                drop(tree);
                if !waits {
                    return None;
                }
                continue;
            }
            // Content locks are released after the tree's.
            let given_back: Vec<Piece> = pieces.drain(still..).collect();
            for piece in &pieces {
                inner.begin(&mut tree, piece);
            }
            drop(tree);
            drop(given_back);
            let range = run_of(&pieces).expect("a run has a piece");
            let _held = WRITEBACK.tried(pieces[0].guard().folio().record());
            return Some(WritebackRun { mapping: Arc::clone(inner), pieces, range, _held });
        }
    }

    /// Returns whether a piece is locked, in this mapping, and its blocks all still dirty. The tree
    /// is locked.
    fn still_dirty(&self, piece: &Piece) -> bool {
        let Some(guard) = &piece.folio else { return false };
        let record = guard.folio().record();
        record.mapping.load(Acquire) == self.inner.id
            && record.index.load(Acquire) == piece.first
            && self
                .inner
                .words(record, piece.blocks.clone())
                .all(|(word, mask, _)| word.load(Relaxed) & mask == mask)
    }

    /// Waits until all writeback in the range that was under way at the call has ended.
    pub fn wait_writeback(&self, bytes: Range<u64>) {
        let Some((mut next, last)) = pages_of(&bytes) else { return };
        while next <= last {
            let folio = {
                let tree = sync::lock(&self.inner.tree);
                let Some(found) = tree.next_marked(next..=last, Mark::Writeback) else { return };
                next = found.last() + 1;
                self.inner.folio(found)
            };
            folio.wait_writeback();
        }
    }
}

impl MappingInner {
    /// Returns whether any block of the pages from `first` to `last` is dirty.
    fn has_dirty_in(&self, tree: &XArray, first: u64, last: u64) -> bool {
        tree.iter_marked(first..=last, Mark::Dirty).any(|found| {
            let record = self.shared.arena.record(found.entry.payload() as u32);
            let from = first.saturating_sub(found.index) as u32;
            let to = (last - found.index).min(record.pages() - 1) as u32 + 1;
            self.any_dirty(record, from..to)
        })
    }

    /// Moves a piece's blocks from dirty to writeback. The tree is locked, and the folio shared.
    fn begin(&self, tree: &mut XArray, piece: &Piece) {
        let folio = piece.guard().folio();
        self.clean_in_tree(tree, folio, piece.blocks.clone());
        let record = folio.record();
        if record.runs.fetch_add(1, Relaxed) == 0 {
            record.set(flag::WRITEBACK);
            tree.set_mark(piece.first, Mark::Writeback);
        }
        self.shared.writeback.fetch_add(piece_bytes(piece), Relaxed);
    }

    /// Ends the writeback of a piece, successful or failed. The tree is locked, and the folio
    /// shared.
    fn end(&self, tree: &mut XArray, piece: &Piece, failed: bool) {
        let folio = piece.guard().folio();
        let record = folio.record();
        let attached = record.mapping.load(Acquire) == self.id;
        self.shared.writeback.fetch_sub(piece_bytes(piece), Relaxed);
        if failed && attached {
            self.set_blocks(tree, folio, piece.blocks.clone());
        }
        if record.runs.fetch_sub(1, Relaxed) == 1 {
            if attached {
                tree.clear_mark(piece.first, Mark::Writeback);
            }
            record.end_writeback(&self.shared.waits);
        }
    }
}

fn piece_bytes(piece: &Piece) -> u64 {
    u64::from(piece.blocks.end - piece.blocks.start) << PAGE_SHIFT
}

fn run_of(pieces: &[Piece]) -> Option<Range<u64>> {
    let (first, last) = (pieces.first()?, pieces.last()?);
    let start = (first.first + u64::from(first.blocks.start)) << PAGE_SHIFT;
    Some(start..(last.first + u64::from(last.blocks.end)) << PAGE_SHIFT)
}

/// Adjacent blocks under writeback. They can be read but not changed until it ends. Dropping the
/// run without [`WritebackRun::finish`] counts as failure: the blocks are dirty again.
#[derive(Debug)]
pub struct WritebackRun {
    mapping: Arc<MappingInner>,
    pieces: Vec<Piece>,
    range: Range<u64>,
    _held: Held,
}

impl WritebackRun {
    /// Returns the range in bytes of the file; both ends are multiples of 4 KiB.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Returns the contents in order, one slice per folio.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().map(|piece| {
            let bytes = piece.blocks.start as usize * PAGE_SIZE..piece.blocks.end as usize * PAGE_SIZE;
            &piece.guard()[bytes]
        })
    }

    /// Returns the folios in order.
    pub fn folios(&self) -> impl Iterator<Item = &Folio> {
        self.pieces.iter().map(|piece| piece.guard().folio())
    }

    /// Ends the writeback: the blocks have been written.
    pub fn finish(mut self) {
        self.end(false);
    }

    /// Ends the writeback: the blocks could not be written and are dirty again.
    pub fn fail(mut self) {
        self.end(true);
    }

    fn end(&mut self, failed: bool) {
        if self.pieces.is_empty() {
            return;
        }
        let mut tree = sync::lock(&self.mapping.tree);
        for piece in &self.pieces {
            self.mapping.end(&mut tree, piece, failed);
        }
        drop(tree);
        self.pieces.clear();
        self.mapping.shared.writeback_ended();
    }
}

impl Drop for WritebackRun {
    fn drop(&mut self) {
        self.end(true);
    }
}
