//! Folios: 4 KiB << order of memory with a reference count, flags and a content lock.
//!
//! Owns [`Folio`] and the guards that give access to its bytes. A [`Folio`] keeps the memory alive,
//! but not its position in the file: a truncated folio stays readable for its holders.
//!
//! **Invariants**
//! - The content lock admits any number of [`FolioRead`]s and writeback runs, or one [`FolioWrite`]
//!   or [`FolioFill`]. This rule alone excludes data races on the bytes. Guards own a reference and
//!   may move to another thread.
//! - The reference count follows the folio's life: free (0) -> allocated (2: its creator's and the
//!   tree's) -> in the tree (1 and its users') -> removed (its users') -> free.
//! - A lookup takes a reference unless the count is 0, and only then checks that the folio is still
//!   the wanted one. Eviction takes the count from 2 (the tree's and its own) to 0 in one step. So
//!   the two cannot both succeed.
//!
//! Files:
//! - `record`: the 64 bytes kept for each page; `lock`: the content lock and waiting;
//! - `arena`: regions of memory and the buddy allocator in them.

pub(crate) mod arena;
pub(crate) mod lock;
mod mapped;
pub(crate) mod record;

use crate::processor::copy_past_caches;
use crate::shared::Shared;
use crate::{PAGE_SHIFT, PAGE_SIZE};
use papilio_locks::{Class, Held};
use record::{Record, flag};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Class of content locks in the lock order.
pub(crate) static CONTENTS: Class = Class::new("folio");
/// The content locks of folios that writers change. Unlike a thread that fills a folio, a writer
/// waits for nothing while it holds one.
static CHANGED: Class = Class::new("changed-folio");
/// Class of folios under writeback in the lock order.
pub(crate) static WRITEBACK: Class =
    Class::several("writeback", "a thread that writes back does not wait for other writeback");

/// A counted reference to a folio.
pub struct Folio {
    record: NonNull<Record>,
    shared: NonNull<Shared>,
}

// SAFETY: the reference counted by this handle keeps record, memory and `Shared` alive (see
// `Shared::hold`). All fields of a record are atomic, and the bytes are accessed only under the
// content lock.
unsafe impl Send for Folio {}
// SAFETY: as above; `&Folio` gives access to nothing that `Folio` does not.
unsafe impl Sync for Folio {}

impl Folio {
    /// Wraps a reference that is already counted.
    ///
    /// # Safety
    /// `record` belongs to `shared`'s arena and the caller owns one of its references.
    #[inline]
    pub(crate) unsafe fn from_counted(record: &Record, shared: &Arc<Shared>) -> Self {
        Self { record: NonNull::from(record), shared: shared.pointer() }
    }

    #[inline]
    pub(crate) fn record(&self) -> &Record {
        // SAFETY: this handle's reference keeps the record alive.
        unsafe { self.record.as_ref() }
    }

    #[inline]
    pub(crate) fn shared(&self) -> &Shared {
        // SAFETY: an allocated folio keeps `Shared` alive, and this handle keeps the folio
        // allocated.
        unsafe { self.shared.as_ref() }
    }

    /// Returns the first page in the file, aligned to the order.
    pub fn index(&self) -> u64 {
        self.record().index.load(Acquire)
    }

    /// Returns the byte offset in the file.
    pub fn offset(&self) -> u64 {
        self.index() << PAGE_SHIFT
    }

    /// Returns the order, 0 to 9: the folio has 2^order pages.
    pub fn order(&self) -> u8 {
        self.record().order()
    }

    /// Returns the size in bytes, 4 KiB to 2 MiB.
    #[allow(clippy::len_without_is_empty, reason = "a folio is never empty")]
    pub fn len(&self) -> usize {
        PAGE_SIZE << self.order()
    }

    /// Returns whether the contents are the file's.
    pub fn is_uptodate(&self) -> bool {
        self.record().has(flag::UPTODATE)
    }

    /// Returns whether any block has changed since it was last written.
    pub fn is_dirty(&self) -> bool {
        self.record().has(flag::DIRTY)
    }

    /// Returns whether any block is under writeback.
    pub fn is_writeback(&self) -> bool {
        self.record().has(flag::WRITEBACK)
    }

    /// Returns whether the folio belongs to the working set: it came back soon after eviction.
    pub fn is_workingset(&self) -> bool {
        self.record().has(flag::WORKINGSET)
    }

    /// Returns whether the folio is still in its mapping, not truncated or invalidated.
    pub fn is_attached(&self) -> bool {
        self.record().mapping.load(Acquire) != 0
    }

    /// Locks the contents for reading. Waits for a fill or a writer. Returns `None` if they are not
    /// up to date: the fill failed, or the folio was truncated before it was filled.
    pub fn read(&self) -> Option<FolioRead> {
        CONTENTS.might_wait(self.record());
        self.record().lock_shared(&self.shared().waits);
        self.clone().locked_shared()
    }

    /// [`Folio::read`] that returns `None` instead of waiting.
    pub fn try_read(&self) -> Option<FolioRead> {
        if !self.record().try_lock_shared() {
            return None;
        }
        self.clone().locked_shared()
    }

    /// [`Folio::read`] that moves its own reference into the guard.
    pub fn into_read(self) -> Option<FolioRead> {
        CONTENTS.might_wait(self.record());
        self.record().lock_shared(&self.shared().waits);
        self.locked_shared()
    }

    /// [`Folio::into_read`] of a folio that was dirty. It waits for a writer at most: a folio that
    /// is being filled is not dirty.
    pub(crate) fn into_read_dirty(self) -> Option<FolioRead> {
        CHANGED.might_wait(self.record());
        self.record().lock_shared(&self.shared().waits);
        self.locked_shared()
    }

    #[inline]
    fn locked_shared(self) -> Option<FolioRead> {
        let _held = CONTENTS.tried(self.record());
        let guard = FolioRead { folio: self, _held };
        guard.folio.is_uptodate().then_some(guard)
    }

    /// Locks the contents for writing. Waits for readers, a fill and writeback. Returns `None` if
    /// they are not up to date or the folio has left its mapping: look it up again. The folio stays
    /// in its mapping as long as the guard exists.
    pub fn write(&self) -> Option<FolioWrite> {
        CONTENTS.might_wait(self.record());
        self.record().lock_exclusive(&self.shared().waits);
        self.clone().locked_exclusive()
    }

    /// [`Folio::write`] that returns `None` instead of waiting.
    pub fn try_write(&self) -> Option<FolioWrite> {
        if !self.record().try_lock_exclusive() {
            return None;
        }
        self.clone().locked_exclusive()
    }

    fn locked_exclusive(self) -> Option<FolioWrite> {
        let guard = FolioWrite::from_locked(self);
        (guard.folio.is_uptodate() && guard.folio.is_attached()).then_some(guard)
    }

    /// Waits until no block of the folio is under writeback.
    pub fn wait_writeback(&self) {
        WRITEBACK.might_wait(self.record());
        self.record().wait_writeback(&self.shared().waits);
    }

    /// Returns the bytes.
    ///
    /// # Safety
    /// The content lock is held, shared or exclusive, for as long as the slice lives.
    #[inline]
    pub(crate) unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is `len` bytes from the record's address on, initialised by the
        // kernel. The caller's lock keeps writers out.
        unsafe { std::slice::from_raw_parts(self.record().data.as_ptr(), self.len()) }
    }

    /// Returns the bytes for writing.
    ///
    /// # Safety
    /// The content lock is held exclusively for as long as the slice lives, and this is the only
    /// slice made under it.
    #[allow(clippy::mut_from_ref, reason = "the caller's exclusive content lock takes the role of &mut")]
    pub(crate) unsafe fn bytes_mut(&self) -> &mut [u8] {
        // SAFETY: as for `bytes`, and the caller's lock is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.record().data.as_ptr(), self.len()) }
    }
}

impl Clone for Folio {
    fn clone(&self) -> Self {
        self.record().refs.fetch_add(1, Relaxed);
        Self { record: self.record, shared: self.shared }
    }
}

impl Drop for Folio {
    #[inline]
    fn drop(&mut self) {
        if self.record().put() {
            // SAFETY: the count has just dropped to 0, so nobody else frees the folio. `shared`
            // lives until this call ends.
            unsafe { Shared::free(self.shared, self.record) };
        }
    }
}

impl PartialEq for Folio {
    /// Returns whether both refer to the same folio.
    fn eq(&self, other: &Self) -> bool {
        self.record == other.record
    }
}

impl Eq for Folio {}

impl std::fmt::Debug for Folio {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Folio")
            .field("index", &self.index())
            .field("order", &self.order())
            .field("uptodate", &self.is_uptodate())
            .field("dirty", &self.is_dirty())
            .field("writeback", &self.is_writeback())
            .field("attached", &self.is_attached())
            .finish()
    }
}

/// Read access to the contents of a folio.
#[derive(Debug)]
pub struct FolioRead {
    folio: Folio,
    _held: Held,
}

impl FolioRead {
    /// Returns the folio.
    pub fn folio(&self) -> &Folio {
        &self.folio
    }
}

impl Deref for FolioRead {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: this guard holds the lock shared.
        unsafe { self.folio.bytes() }
    }
}

impl Drop for FolioRead {
    #[inline]
    fn drop(&mut self) {
        self.folio.record().unlock_shared(&self.folio.shared().waits);
    }
}

/// Write access to the contents of a folio. Call [`crate::Mapping::mark_dirty`] for the changed
/// bytes before dropping it.
#[derive(Debug)]
pub struct FolioWrite {
    folio: Folio,
    held: Held,
    changed: Held,
}

impl FolioWrite {
    /// Returns the folio.
    pub fn folio(&self) -> &Folio {
        &self.folio
    }

    /// Wraps a lock that is already held.
    pub(crate) fn from_locked(folio: Folio) -> Self {
        let (held, changed) = (CONTENTS.tried(folio.record()), CHANGED.tried(folio.record()));
        Self { folio, held, changed }
    }

    /// Gives up the reference, which the caller has frozen, without releasing the lock; the caller
    /// releases it.
    pub(crate) fn forget<'a>(self) -> &'a Record {
        let record = self.folio.record;
        self.held.release();
        self.changed.release();
        std::mem::forget(self);
        // SAFETY: records live as long as the cache, which the caller keeps alive.
        unsafe { record.as_ref() }
    }
}

impl Deref for FolioWrite {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: this guard holds the lock exclusively.
        unsafe { self.folio.bytes() }
    }
}

impl DerefMut for FolioWrite {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: this guard holds the lock exclusively, and the slice borrows the guard mutably.
        unsafe { self.folio.bytes_mut() }
    }
}

impl Drop for FolioWrite {
    fn drop(&mut self) {
        self.folio.record().unlock_exclusive(&self.folio.shared().waits);
    }
}

/// A new folio for the caller to fill. The memory has arbitrary contents: overwrite all of it.
///
/// Dropping it without [`FolioFill::finish`] fails the fill: the folio leaves the mapping, and
/// waiters look it up again.
#[derive(Debug)]
pub struct FolioFill {
    folio: Option<Folio>,
    held: Held,
}

impl FolioFill {
    pub(crate) fn new(folio: Folio) -> Self {
        let held = CONTENTS.tried(folio.record());
        Self { folio: Some(folio), held }
    }

    /// Returns the folio.
    pub fn folio(&self) -> &Folio {
        self.folio.as_ref().expect("only finishing takes it")
    }

    /// Returns the first page in the file, aligned to the order.
    pub fn index(&self) -> u64 {
        self.folio().index()
    }

    /// Returns the byte offset in the file.
    pub fn offset(&self) -> u64 {
        self.folio().offset()
    }

    /// Returns the order, 0 to 9: the folio has 2^order pages.
    pub fn order(&self) -> u8 {
        self.folio().order()
    }

    /// Fills the folio with bytes that the reader already has in its own buffer. Nobody is likely
    /// to read the folio soon, so the copy bypasses the processor's caches.
    ///
    /// # Panics
    /// If `contents` is not as long as the folio.
    pub fn fill_from(&mut self, contents: &[u8]) {
        copy_past_caches(self, contents);
    }

    /// Marks the contents up to date and unlocks them: waiters may read.
    pub fn finish(mut self) -> Folio {
        let folio = self.folio.take().expect("only finishing takes it");
        folio.record().set(flag::UPTODATE);
        folio.record().unlock_exclusive(&folio.shared().waits);
        folio
    }

    /// Marks the contents up to date and keeps the lock, so that the caller can change or dirty
    /// them before others see them.
    pub fn finish_write(mut self) -> FolioWrite {
        let folio = self.folio.take().expect("only finishing takes it");
        folio.record().set(flag::UPTODATE);
        self.held.release();
        FolioWrite::from_locked(folio)
    }
}

impl Deref for FolioFill {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: an unfinished fill holds the lock exclusively.
        unsafe { self.folio().bytes() }
    }
}

impl DerefMut for FolioFill {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: an unfinished fill holds the lock exclusively, and the slice borrows it mutably.
        unsafe { self.folio().bytes_mut() }
    }
}

impl Drop for FolioFill {
    fn drop(&mut self) {
        if let Some(folio) = self.folio.take() {
            // Look the mapping up by number, so that finished fills never count a reference to it.
            // A mapping that is being dropped removes its folios itself.
            let mapping = folio.record().mapping.load(Acquire);
            if let Some(mapping) = folio.shared().mapping_by_id(mapping) {
                mapping.detach(&folio);
            }
            folio.record().unlock_exclusive(&folio.shared().waits);
        }
    }
}
