//! Truncation, hole punching and invalidation.
//!
//! Owns the removal of folios from a file, except by eviction. A folio is locked first, so that its
//! fill, its readers and its writeback have ended. Then it is removed under the tree's lock if it
//! is still there.

use crate::PAGE_SHIFT;
use crate::PAGE_SIZE;
use crate::dirty::pages_of;
use crate::folio::record::flag;
use crate::folio::{CONTENTS, Folio};
use crate::mapping::{LAST_INDEX, Mapping};
use crate::shared::Shared;
use crate::sync;
use crate::xarray::Found;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Acquire;

/// The folios that [`Mapping::invalidate`] drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalidate {
    /// Clean unused folios; waits for nothing.
    Clean,
    /// Clean folios, and dirty folios whose dirty blocks all lie in the range: those changes are
    /// lost. Waits for users.
    All,
}

/// The result of [`Mapping::invalidate`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Invalidated {
    /// Number of folios removed.
    pub dropped: u64,
    /// Number of folios that overlap the range and stay.
    pub kept: u64,
}

/// The part of a folio that lies in a range.
enum Part {
    Whole,
    /// These bytes of it.
    Some(Range<usize>),
}

fn part_of(folio: &Folio, bytes: &Range<u64>) -> Part {
    let (start, end) = (folio.offset(), folio.offset() + folio.len() as u64);
    if bytes.start <= start && end <= bytes.end {
        return Part::Whole;
    }
    Part::Some((bytes.start.max(start) - start) as usize..(bytes.end.min(end).max(start) - start) as usize)
}

impl Mapping {
    /// Truncates the file at byte `from`.
    ///
    /// Folios beyond it are removed, dirty or not, once their fill, readers and writeback have
    /// ended. The folio that contains `from` stays and is zeroed from there; its blocks wholly
    /// beyond `from` become clean. The block with `from` itself is not marked dirty.
    pub fn truncate(&self, from: u64) {
        self.discard(from..u64::MAX);
    }

    /// Punches a hole: [`Mapping::truncate`] for a range of bytes.
    pub fn discard(&self, bytes: Range<u64>) {
        self.discard_folios(bytes);
        // Fewer bytes may be dirty now.
        self.inner.shared.writeback_ended();
    }

    fn discard_folios(&self, bytes: Range<u64>) {
        let Some((mut next, last)) = pages_of(&bytes) else { return };
        let last = last.min(LAST_INDEX);
        while next <= last {
            let (found, folio) = {
                let mut tree = sync::lock(&self.inner.tree);
                let Some(found) = tree.next(next..=last) else { return };
                if !found.entry.is_item() {
                    if covered(found, &bytes) {
                        tree.erase(found.index);
                    }
                    next = found.last() + 1;
                    continue;
                }
                (found, self.inner.folio(found))
            };
            if self.discard_folio(folio, &bytes) {
                next = found.last() + 1;
            }
        }
    }

    /// Discards the part of a folio in the range. Returns false if the folio had left its mapping,
    /// so that another one may be in its position now.
    fn discard_folio(&self, folio: Folio, bytes: &Range<u64>) -> bool {
        let record = folio.record();
        let _held = CONTENTS.hold(record);
        record.lock_exclusive(&self.inner.shared.waits);
        let unlock = || record.unlock_exclusive(&self.inner.shared.waits);
        if record.mapping.load(Acquire) != self.inner.id {
            unlock();
            return false;
        }
        match part_of(&folio, bytes) {
            Part::Whole => {
                self.inner.detach(&folio);
            }
            Part::Some(part) => {
                if record.has(flag::UPTODATE) {
                    // SAFETY: the lock is held exclusively, and this is the only slice.
                    let contents = unsafe { folio.bytes_mut() };
                    contents[part.clone()].fill(0);
                }
                let blocks = part.start.div_ceil(PAGE_SIZE) as u32..(part.end / PAGE_SIZE) as u32;
                if blocks.start < blocks.end {
                    let mut tree = sync::lock(&self.inner.tree);
                    self.inner.clean_in_tree(&mut tree, &folio, blocks);
                }
            }
        }
        unlock();
        true
    }

    /// Drops folios that overlap the range, so that later reads fill them anew: for direct I/O. The
    /// result counts the folios that stay: write them back, or wait, and retry.
    pub fn invalidate(&self, bytes: Range<u64>, what: Invalidate) -> Invalidated {
        let mut result = Invalidated::default();
        let Some((mut next, last)) = pages_of(&bytes) else { return result };
        while next <= last {
            let mut tree = sync::lock(&self.inner.tree);
            let Some(found) = tree.next_item(next..=last) else { break };
            let folio = self.inner.folio(found);
            next = found.last() + 1;
            let gone = match what {
                Invalidate::Clean => {
                    // Two references: the tree's and ours. After freezing, no other thread can
                    // acquire one.
                    let record = folio.record();
                    let free = !record.has(flag::DIRTY | flag::WRITEBACK) && record.freeze(2);
                    if free {
                        self.inner.take_frozen(&mut tree, record);
                        let record = NonNull::from(record);
                        std::mem::forget(folio);
                        drop(tree);
                        // SAFETY: freezing took the count to 0, and the mapping keeps `shared`
                        // alive.
                        unsafe { Shared::free(self.inner.shared.pointer(), record) };
                    }
                    free
                }
                Invalidate::All => {
                    drop(tree);
                    match self.invalidate_folio(&folio, &bytes) {
                        Some(gone) => gone,
                        None => {
                            next = found.index.max(bytes.start >> PAGE_SHIFT);
                            continue;
                        }
                    }
                }
            };
            if gone {
                result.dropped += 1;
            } else {
                result.kept += 1;
            }
        }
        result
    }

    /// Returns whether the folio was removed; `None` if it had left the mapping before.
    fn invalidate_folio(&self, folio: &Folio, bytes: &Range<u64>) -> Option<bool> {
        let record = folio.record();
        let _held = CONTENTS.hold(record);
        record.lock_exclusive(&self.inner.shared.waits);
        let result = (record.mapping.load(Acquire) == self.inner.id).then(|| {
            let mut tree = sync::lock(&self.inner.tree);
            let blocks = record.pages() as u32;
            let outside = match part_of(folio, bytes) {
                Part::Whole => false,
                Part::Some(part) => {
                    let (start, end) = (part.start.div_ceil(PAGE_SIZE) as u32, (part.end / PAGE_SIZE) as u32);
                    self.inner.any_dirty(record, 0..start.min(blocks))
                        || self.inner.any_dirty(record, end.max(start).min(blocks)..blocks)
                }
            };
            !outside && self.inner.detach_locked(&mut tree, folio)
        });
        record.unlock_exclusive(&self.inner.shared.waits);
        result
    }
}

fn covered(found: Found, bytes: &Range<u64>) -> bool {
    let end = found.last().checked_add(1).and_then(|end| end.checked_mul(PAGE_SIZE as u64));
    found.index << PAGE_SHIFT >= bytes.start && end.is_none_or(|end| end <= bytes.end)
}
