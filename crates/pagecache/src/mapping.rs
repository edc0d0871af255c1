//! A file's pages.
//!
//! Owns a file's tree and how folios are found in it and put into it. A look-up takes no lock: it reads the tree as it may be
//! changing, takes a reference to what it found and asks the folio whether it is the right one. Only when that fails does it look again
//! under the tree's lock, so that "nothing there" is the truth. An insertion allocates first, then looks and inserts
//! in one walk under the lock.
//!
//! The kernel's counterparts are `struct address_space` and mm/filemap.c.

use crate::cache::{CacheError, PageCache, Shared};
use crate::folio::record::{Record, flag};
use crate::folio::{Folio, FolioFill};
use crate::reclaim;
use crate::sync::{self, Mutex, Padded};
use crate::xarray::{Entry, Found, InsertError, NodePool, Reader, XArray};
use crate::{MAX_ORDER, PAGE_SHIFT, PAGE_SIZE};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64 as PlainU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The last page that a file can have.
pub(crate) const LAST_INDEX: u64 = u64::MAX >> PAGE_SHIFT;

/// What [`Mapping::get_or_insert`] found or made.
#[derive(Debug)]
pub enum Lookup {
    /// A folio is there; it may still be being filled by another.
    Present(Folio),
    /// There was none: fill this.
    Vacant(FolioFill),
}

/// The pages of one file. Dropped, all of them go, dirty or not.
pub struct Mapping {
    pub(crate) inner: Arc<MappingInner>,
}

/// What guards keep of a mapping.
pub(crate) struct MappingInner {
    pub shared: Arc<Shared>,
    pub id: u64,
    pub host: u64,
    pub reader: Reader,
    /// Apart from what a look-up reads.
    pub tree: Padded<Mutex<XArray>>,
    /// Folios in the tree; changed with it locked.
    pub folios: Padded<PlainU64>,
    pub dirty: PlainU64,
}

/// Why a folio found no place.
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

    /// The caller's own name for the file.
    pub fn host(&self) -> u64 {
        self.inner.host
    }

    /// The cache.
    pub fn cache(&self) -> PageCache {
        PageCache::from_shared(Arc::clone(&self.inner.shared))
    }

    /// Folios in the cache.
    pub fn folios(&self) -> u64 {
        self.inner.folios.load(Relaxed)
    }

    /// Whether no folio of this file is in the cache.
    pub fn is_empty(&self) -> bool {
        self.folios() == 0
    }

    /// The folio that covers page `index`, up to date or being filled. Counts as an access, by which the working set is
    /// known: a reader that goes on within a folio uses [`Mapping::peek`].
    #[inline]
    pub fn get(&self, index: u64) -> Option<Folio> {
        let found = self.inner.find(index);
        self.inner.count(found.as_ref());
        found
    }

    /// [`Mapping::get`] that is no access.
    #[inline]
    pub fn peek(&self, index: u64) -> Option<Folio> {
        self.inner.find(index)
    }

    /// Copies bytes from `offset` on, as far as they are in the cache and up to date without a gap; gives how many. Waits
    /// for folios being filled. Counts as an access to each folio. Knows nothing of the file's size.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> usize {
        self.read_by(offset, out, MappingInner::find)
    }

    /// [`Mapping::read`] that never waits for who changes the file's pages, and for that may stop at one that is there:
    /// for who goes on with [`Mapping::insert`], which is sure.
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

    /// The folio that covers page `index`, or a new one to be filled. `order` is a hint: a new folio covers the index, is aligned and of
    /// that order or, where others or memory are in the way, smaller.
    ///
    /// # Errors
    /// The cache is full and nothing can be evicted, see [`CacheError`].
    ///
    /// # Panics
    /// With an index that no file has (2^52 and above).
    pub fn get_or_insert(&self, index: u64, order: u8) -> Result<Lookup, CacheError> {
        if let Some(folio) = self.inner.find_unlocked(index) {
            folio.record().accessed();
            return Ok(Lookup::Present(folio));
        }
        self.insert(index, order)
    }

    /// [`Mapping::get_or_insert`] by who has just looked, and found nothing.
    ///
    /// # Errors
    /// As [`Mapping::get_or_insert`].
    ///
    /// # Panics
    /// As [`Mapping::get_or_insert`].
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
                    // The block around the index that leaves this item out.
                    while order > 0 && index >> order == nearest(found, index) >> order {
                        order -= 1;
                    }
                }
                Err(Misplaced::Failed(error)) => return Err(error),
            }
        }
    }

    /// Makes new folios for all pages of the range that have none, in ascending order, and adds them to `fills`; no access. `order` is
    /// a hint: they are as large as that, alignment, neighbours and memory allow, and never reach out of the range.
    ///
    /// # Errors
    /// The cache is full and nothing can be evicted. `fills` holds what could be made.
    ///
    /// # Panics
    /// With a range that no file has (beyond 2^52).
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
                // Another was quicker: look again from here.
                Err(Misplaced::Occupied(..)) => next = hole,
                Err(Misplaced::Failed(error)) => return Err(error),
            }
        }
        Ok(())
    }
}

/// The page of the item that is nearest to `index`, which it does not cover.
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

    /// Looks up beside whatever changes the tree; may miss what is there.
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

    /// Begins to load bytes of the file, if they lie in a folio of one page: by its number alone, while its record is still
    /// on its way too.
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

    /// The folio of an item; the tree is locked.
    pub fn folio(&self, item: Found) -> Folio {
        let record = self.shared.arena.record(item.entry.payload() as u32);
        // While the tree is locked, its own reference cannot go.
        assert!(record.try_get(), "a folio in the tree has a reference");
        // SAFETY: `try_get` has just counted this reference.
        unsafe { Folio::from_counted(record, &self.shared) }
    }

    /// Puts a new folio into the tree, or frees it.
    fn place(&self, record: &Record, first: u64) -> Result<FolioFill, Misplaced> {
        let mut preload = self.shared.pool.preload(0);
        let entry = Entry::Item(u64::from(record.id));
        let inserted = loop {
            let mut tree = sync::lock(&self.tree);
            // Before it can be found, so that whoever finds it sees where it belongs.
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
        // SAFETY: of the two references that the folio came with, one is the tree's now and this is the other.
        let folio = unsafe { Folio::from_counted(record, &self.shared) };
        Ok(FolioFill::new(folio))
    }

    /// Takes a clean folio out of the tree whose references have been frozen; its memory is the caller's.
    pub fn take_frozen(&self, tree: &mut XArray, record: &Record) {
        tree.erase(record.index.load(Acquire));
        self.left(record);
    }

    /// A folio has left the tree, which is locked.
    pub fn left(&self, record: &Record) {
        record.mapping.store(0, Release);
        self.add_folios(-1);
    }

    /// Changes the number of folios; the tree is locked, so that nobody else does.
    pub fn add_folios(&self, more: i64) {
        self.folios.store(self.folios.load(Relaxed).wrapping_add_signed(more), Relaxed);
    }

    /// Takes a folio out of the tree, if it is still there; it leaves no shadow and is no longer dirty. The caller holds its
    /// content lock, or the mapping is going away.
    pub fn detach(&self, folio: &Folio) -> bool {
        let mut tree = sync::lock(&self.tree);
        self.detach_locked(&mut tree, folio)
    }

    /// [`MappingInner::detach`] with the tree locked.
    pub fn detach_locked(&self, tree: &mut XArray, folio: &Folio) -> bool {
        let record = folio.record();
        if record.mapping.load(Acquire) != self.id {
            return false;
        }
        tree.erase(folio.index());
        self.clean(folio, 0..record.pages() as u32);
        if record.has(flag::WRITEBACK) {
            // A run goes on with a folio that is in no mapping any more; nobody need wait for it.
            record.end_writeback(&self.shared.waits);
        }
        self.left(record);
        // SAFETY: this is the tree's reference, which goes with the entry. The caller's handle keeps the folio.
        drop(unsafe { Folio::from_counted(record, &self.shared) });
        true
    }
}

impl Shared {
    /// The mapping of this number, if it still lives.
    pub(crate) fn mapping_by_id(&self, id: u64) -> Option<Arc<MappingInner>> {
        sync::lock(&self.mappings).get(&id)?.upgrade()
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

impl std::fmt::Debug for MappingInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MappingInner").field("host", &self.host).finish_non_exhaustive()
    }
}

const _: () = assert!(PAGE_SIZE == 1 << PAGE_SHIFT);
