//! A file's pages.
//!
//! Owns a file's tree, and lookup and insertion in it.
//!
//! - A lookup takes no lock. It reads the tree while others may change it, takes a reference to the
//!   folio it finds, and then checks that this folio still covers the page. Only if that fails does
//!   it repeat the lookup under the tree's lock, so that "not found" is reliable.
//! - An insertion allocates first, then searches and inserts in one walk under the lock.
//!
//! Kernel counterpart: `struct address_space` and mm/filemap.c.

use crate::charge::CacheError;
use crate::folio::record::{Record, flag};
use crate::folio::{Folio, FolioFill};
use crate::reclaim;
use crate::shared::{MappingInner, Shared};
use crate::sync::{self, Mutex, Padded};
use crate::xarray::{Entry, Found, InsertError, NodePool, XArray};
use crate::{MAX_ORDER, PAGE_SHIFT, PAGE_SIZE};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64 as PlainU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The last page that a file can have.
pub(crate) const LAST_INDEX: u64 = u64::MAX >> PAGE_SHIFT;

/// The result of [`Mapping::get_or_insert`].
#[derive(Debug)]
pub enum Lookup {
    /// The folio exists. Another thread may still be filling it.
    Present(Folio),
    /// There was no folio: the caller fills this one.
    Vacant(FolioFill),
}

/// The pages of one file. Dropping the mapping drops all its folios, dirty or not.
pub struct Mapping {
    pub(crate) inner: Arc<MappingInner>,
}

/// The reason why a new folio could not be inserted.
enum Misplaced {
    /// This item is in the way; here is its folio.
    Occupied(Found, Folio),
    Failed(CacheError),
}

impl Mapping {
    pub(crate) fn new(shared: &Arc<Shared>, host: u64) -> Self {
        let tree = XArray::with_pool(Arc::clone(&shared.pool));
        let id = shared.next_mapping.fetch_add(1, Relaxed);
        let inner = Arc::new(MappingInner {
            shared: Arc::clone(shared),
            id,
            host,
            reader: tree.reader(),
            tree: Padded(Mutex::new(tree)),
            folios: Padded(PlainU64::new(0)),
            dirty: PlainU64::new(0),
        });
        sync::lock(&shared.mappings).insert(id, Arc::downgrade(&inner));
        Self { inner }
    }

    /// Returns the caller's identifier for the file.
    pub fn host(&self) -> u64 {
        self.inner.host
    }

    /// Returns the number of the file's folios in the cache.
    pub fn folios(&self) -> u64 {
        self.inner.folios.load(Relaxed)
    }

    /// Returns whether the cache holds no folio of this file.
    pub fn is_empty(&self) -> bool {
        self.folios() == 0
    }

    /// Returns the folio that covers page `index`, up to date or being filled.
    ///
    /// Counts as an access, and accesses determine the working set. A reader that continues within
    /// a folio calls [`Mapping::peek`] instead.
    #[inline]
    pub fn get(&self, index: u64) -> Option<Folio> {
        let found = self.inner.find(index);
        self.inner.count(found.as_ref());
        found
    }

    /// [`Mapping::get`] without counting an access.
    #[inline]
    pub fn peek(&self, index: u64) -> Option<Folio> {
        self.inner.find(index)
    }

    /// Copies cached bytes from `offset` on into `out` up to the first gap or folio that is not up
    /// to date. Returns the number of bytes copied.
    ///
    /// Waits for folios being filled. Counts as an access to each folio. Does not know the file's
    /// size.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> usize {
        self.read_by(offset, out, MappingInner::find)
    }

    /// [`Mapping::read`] that never waits for a thread that changes the file's tree. It may
    /// therefore stop at a page that is cached. Callers continue with [`Mapping::insert`], which
    /// finds it.
    pub fn read_found(&self, offset: u64, out: &mut [u8]) -> usize {
        self.read_by(offset, out, MappingInner::find_unlocked)
    }

    #[inline]
    fn read_by(&self, offset: u64, out: &mut [u8], find: fn(&MappingInner, u64) -> Option<Folio>) -> usize {
        let mut done = 0;
        while done < out.len() {
            let position = offset + done as u64;
            self.inner.prefetch(position);
            let found = find(&self.inner, position >> PAGE_SHIFT);
            self.inner.count(found.as_ref());
            let Some(guard) = found.and_then(Folio::into_read) else { break };
            let start = (position - guard.folio().offset()) as usize;
            let count = (guard.len() - start).min(out.len() - done);
            out[done..done + count].copy_from_slice(&guard[start..start + count]);
            done += count;
        }
        done
    }

    /// Returns the folio that covers page `index`, or a new one for the caller to fill.
    ///
    /// `order` is a hint. A new folio covers `index` and is aligned. It has that order, or a
    /// smaller one where neighbours or memory are in the way.
    ///
    /// # Errors
    /// Fails if the cache is full and nothing can be evicted, see [`CacheError`].
    ///
    /// # Panics
    /// If `index` is 2^52 or above: no file has such a page.
    pub fn get_or_insert(&self, index: u64, order: u8) -> Result<Lookup, CacheError> {
        if let Some(folio) = self.inner.find_unlocked(index) {
            folio.record().accessed();
            return Ok(Lookup::Present(folio));
        }
        self.insert(index, order)
    }

    /// [`Mapping::get_or_insert`] for a caller that has just looked and found nothing.
    ///
    /// # Errors
    /// See [`Mapping::get_or_insert`].
    ///
    /// # Panics
    /// See [`Mapping::get_or_insert`].
    pub fn insert(&self, index: u64, order: u8) -> Result<Lookup, CacheError> {
        assert!(index <= LAST_INDEX, "a file has no page {index}");
        let inner = &self.inner;
        let mut order = order.min(MAX_ORDER);
        inner.reader.prefetch(index);
        loop {
            let record = inner.shared.allocate(order, flag::REFERENCED)?;
            order = record.order();
            match inner.place(record, index & !((1 << order) - 1)) {
                Ok(fill) => return Ok(Lookup::Vacant(fill)),
                Err(Misplaced::Occupied(found, folio)) => {
                    if (found.index..=found.last()).contains(&index) {
                        folio.record().accessed();
                        return Ok(Lookup::Present(folio));
                    }
                    // Shrink to the aligned block around the index that excludes this item.
                    while order > 0 && index >> order == nearest(found, index) >> order {
                        order -= 1;
                    }
                }
                Err(Misplaced::Failed(error)) => return Err(error),
            }
        }
    }

    /// Creates folios for all missing pages of the range, in ascending order, and appends them to
    /// `fills`. Does not count as an access.
    ///
    /// `order` is a hint. Folios are as large as it, alignment, neighbours and memory allow, and
    /// never extend beyond the range.
    ///
    /// # Errors
    /// Fails if the cache is full and nothing can be evicted. `fills` then holds the folios created
    /// so far.
    ///
    /// # Panics
    /// If the range extends beyond page 2^52.
    pub fn insert_range(
        &self,
        pages: Range<u64>,
        order: u8,
        fills: &mut Vec<FolioFill>,
    ) -> Result<(), CacheError> {
        assert!(pages.end <= LAST_INDEX + 1, "a file has no page {}", pages.end);
        let inner = &self.inner;
        let mut next = pages.start;
        while next < pages.end {
            let (hole, end) = {
                let tree = sync::lock(&inner.tree);
                let Some(hole) = tree.next_miss(next..=pages.end - 1) else { break };
                (hole, tree.next_item(hole..=pages.end - 1).map_or(pages.end, |found| found.index))
            };
            let order = (hole.trailing_zeros() as u8).min((end - hole).ilog2() as u8).min(order);
            let record = inner.shared.allocate(order, 0)?;
            let pages = record.pages();
            match inner.place(record, hole) {
                Ok(fill) => {
                    fills.push(fill);
                    next = hole + pages;
                }
                // Another thread inserted a folio first: look again from here.
                Err(Misplaced::Occupied(..)) => next = hole,
                Err(Misplaced::Failed(error)) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Returns the page of `item` nearest to `index`, which the item does not cover.
fn nearest(item: Found, index: u64) -> u64 {
    if item.index > index { item.index } else { item.last() }
}

impl MappingInner {
    #[inline]
    fn count(&self, found: Option<&Folio>) {
        match found {
            Some(folio) => {
                folio.record().accessed();
                self.shared.counters.here().hits.fetch_add(1, Relaxed);
            }
            None => {
                self.shared.counters.here().misses.fetch_add(1, Relaxed);
            }
        }
    }

    #[inline]
    fn find(&self, index: u64) -> Option<Folio> {
        self.find_unlocked(index).or_else(|| self.find_locked(index))
    }

    /// Looks up without the tree's lock. May miss a folio that is there.
    #[inline]
    fn find_unlocked(&self, index: u64) -> Option<Folio> {
        let Some(Entry::Item(id)) = self.reader.load(index) else { return None };
        let record = self.shared.arena.record(id as u32);
        if !record.try_get() {
            return None;
        }
        // SAFETY: `try_get` has just counted this reference.
        let folio = unsafe { Folio::from_counted(record, &self.shared) };
        let here = record.mapping.load(Acquire) == self.id
            && index.wrapping_sub(record.index.load(Acquire)) < record.pages();
        here.then_some(folio)
    }

    /// Starts loading bytes of the file into the processor's caches. Assumes a folio of one page,
    /// so that the address follows from the page's number while the record is still loading.
    #[inline]
    fn prefetch(&self, position: u64) {
        if let Some(Entry::Item(id)) = self.reader.load(position >> PAGE_SHIFT) {
            self.shared.arena.prefetch(id as u32, position as usize % PAGE_SIZE);
        }
    }

    #[cold]
    fn find_locked(&self, index: u64) -> Option<Folio> {
        let tree = sync::lock(&self.tree);
        let found = tree.get(index)?;
        found.entry.is_item().then(|| self.folio(found))
    }

    /// Returns the folio of an item, with a new reference. The tree is locked.
    pub fn folio(&self, item: Found) -> Folio {
        let record = self.shared.arena.record(item.entry.payload() as u32);
        // The tree is locked, so its own reference cannot go away.
        assert!(record.try_get(), "a folio in the tree has a reference");
        // SAFETY: `try_get` has just counted this reference.
        unsafe { Folio::from_counted(record, &self.shared) }
    }

    /// Inserts a new folio into the tree, or frees it.
    fn place(&self, record: &Record, first: u64) -> Result<FolioFill, Misplaced> {
        let mut preload = self.shared.pool.preload(0);
        let entry = Entry::Item(u64::from(record.id));
        let inserted = loop {
            let mut tree = sync::lock(&self.tree);
            // Set both before the folio can be found, so that a lookup sees which page it covers.
            record.index.store(first, Release);
            record.mapping.store(self.id, Release);
            match tree.try_insert(first, record.order(), entry, self.shared.options.insert, &mut preload) {
                Ok(inserted) => {
                    self.add_folios(1);
                    break inserted;
                }
                Err(InsertError::Occupied(found)) => {
                    record.mapping.store(0, Release);
                    let folio = self.folio(found);
                    drop(tree);
                    self.shared.release_new(record);
                    return Err(Misplaced::Occupied(found, folio));
                }
                Err(InsertError::NeedNodes(count)) => {
                    record.mapping.store(0, Release);
                    drop(tree);
                    let missing = count.saturating_sub(preload.len()) * NodePool::NODE_BYTES;
                    if let Err(error) = self.shared.charge(missing as u64) {
                        self.shared.release_new(record);
                        return Err(Misplaced::Failed(error));
                    }
                    preload.fill_charged(count);
                }
            }
        };
        let counts = self.shared.counters.here();
        counts.insertions.fetch_add(1, Relaxed);
        if inserted.split {
            counts.splits.fetch_add(1, Relaxed);
        }
        reclaim::join(&self.shared, record, inserted.shadow.map(|shadow| shadow.entry.payload()));
        // SAFETY: the folio came with two references. The tree owns one now and this handle the
        // other.
        let folio = unsafe { Folio::from_counted(record, &self.shared) };
        Ok(FolioFill::new(folio))
    }

    /// Removes a clean folio with frozen references from the tree. The caller owns its memory then.
    pub fn take_frozen(&self, tree: &mut XArray, record: &Record) {
        tree.erase(record.index.load(Acquire));
        self.left(record);
    }

    /// Updates record and count after a folio left the tree, which is locked.
    pub fn left(&self, record: &Record) {
        record.mapping.store(0, Release);
        self.add_folios(-1);
    }

    /// Changes the number of folios. The tree is locked, so no other thread does.
    pub fn add_folios(&self, more: i64) {
        self.folios.store(self.folios.load(Relaxed).wrapping_add_signed(more), Relaxed);
    }

    /// Removes a folio from the tree if it is still there. It leaves no shadow and is no longer
    /// dirty. The caller holds its content lock, or the mapping is being dropped.
    pub fn detach(&self, folio: &Folio) -> bool {
        let mut tree = sync::lock(&self.tree);
        self.detach_locked(&mut tree, folio)
    }

    /// [`MappingInner::detach`] with the tree already locked.
    pub fn detach_locked(&self, tree: &mut XArray, folio: &Folio) -> bool {
        let record = folio.record();
        if record.mapping.load(Acquire) != self.id {
            return false;
        }
        tree.erase(folio.index());
        self.clean(folio, 0..record.pages() as u32);
        if record.has(flag::WRITEBACK) {
            // A writeback run continues with a folio that is in no mapping; nobody needs to wait
            // for it.
            record.end_writeback(&self.shared.waits);
        }
        self.left(record);
        // SAFETY: the entry owned this reference and is gone. The caller's handle keeps the folio
        // alive.
        drop(unsafe { Folio::from_counted(record, &self.shared) });
        true
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let inner = &self.inner;
        sync::lock(&inner.shared.mappings).remove(&inner.id);
        let mut next = 0;
        loop {
            let mut tree = sync::lock(&inner.tree);
            let Some(found) = tree.next_item(next..=LAST_INDEX) else {
                tree.clear();
                break;
            };
            next = found.index;
            let folio = inner.folio(found);
            inner.detach_locked(&mut tree, &folio);
            drop(tree);
        }
        inner.shared.writeback_ended();
    }
}

impl std::fmt::Debug for Mapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mapping")
            .field("host", &self.host())
            .field("folios", &self.folios())
            .finish_non_exhaustive()
    }
}

const _: () = assert!(PAGE_SIZE == 1 << PAGE_SHIFT);
