//! Folios: 4 KiB << order of memory with a counted reference, flags and a content lock.
//!
//! Owns [`Folio`] and the guards that give access to its bytes. Whoever has a [`Folio`] keeps the memory, not its place in the
//! file: a folio that is truncated stays readable to those who hold it. The bytes are behind a lock per folio: any number of
//! [`FolioRead`]s and writeback runs, or one [`FolioWrite`] or [`FolioFill`]. That is the whole rule against data races.
//! Guards own a reference and may go to another thread.
//!
//! Life of a folio, by its references: free (0) -> allocated (2: its maker's and the tree's) -> in the tree (1 and those of
//! users) -> taken out (those of users) -> free. A look-up takes a reference unless the count is 0, and only then asks whether
//! this is still the folio that it wanted; eviction takes the count from 2 (the tree's and its own) to 0 in one step, so
//! that the two cannot both succeed.
//!
//! - `record`: the 64 bytes kept on each page; `lock`: the content lock and waiting;
//! - `arena`: regions of memory and the buddy allocator in them.

pub(crate) mod arena;
pub(crate) mod lock;
pub(crate) mod record;

use crate::cache::Shared;
use crate::processor::copy_past_caches;
use crate::{PAGE_SHIFT, PAGE_SIZE};
use papilio_locks::{Class, Held};
use record::{Record, flag};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Content locks, for the order of locks.
pub(crate) static CONTENTS: Class = Class::new("folio");
/// Folios that are being written.
pub(crate) static WRITEBACK: Class =
    Class::several("writeback", "who writes does not wait for others who do");

/// A counted reference to a folio.
pub struct Folio {
    record: NonNull<Record>,
    shared: NonNull<Shared>,
}

// SAFETY: the reference counted by this handle keeps record, memory and `Shared` alive (see `Shared::hold`); all of a
// record's fields are atomics, and the bytes are only touched under the content lock.
unsafe impl Send for Folio {}
// SAFETY: as above; `&Folio` gives nothing that `Folio` does not.
unsafe impl Sync for Folio {}

impl Folio {
    /// Takes over a reference that has been counted already.
    ///
    /// # Safety
    /// `record` belongs to `shared`'s arena and the caller owns one of its references.
    #[inline]
    pub(crate) unsafe fn from_counted(record: &Record, shared: &Shared) -> Self {
        Self { record: NonNull::from(record), shared: NonNull::from(shared) }
    }

    #[inline]
    pub(crate) fn record(&self) -> &Record {
        // SAFETY: this handle's reference keeps the record alive.
        unsafe { self.record.as_ref() }
    }

    #[inline]
    pub(crate) fn shared(&self) -> &Shared {
        // SAFETY: an allocated folio keeps `Shared` alive, and this handle keeps the folio allocated.
        unsafe { self.shared.as_ref() }
    }

    /// First page in the file, aligned to the order.
    pub fn index(&self) -> u64 {
        self.record().index.load(Acquire)
    }

    /// First byte in the file.
    pub fn offset(&self) -> u64 {
        self.index() << PAGE_SHIFT
    }

    /// 2^order pages, 0 to 9.
    pub fn order(&self) -> u8 {
        self.record().order()
    }

    /// Bytes, 4 KiB to 2 MiB.
    #[allow(clippy::len_without_is_empty, reason = "a folio is never empty")]
    pub fn len(&self) -> usize {
        PAGE_SIZE << self.order()
    }

    /// Whether the contents are what the file holds.
    pub fn is_uptodate(&self) -> bool {
        self.record().has(flag::UPTODATE)
    }

    /// Whether any block has been changed since it was last written.
    pub fn is_dirty(&self) -> bool {
        self.record().has(flag::DIRTY)
    }

    /// Whether any block is being written.
    pub fn is_writeback(&self) -> bool {
        self.record().has(flag::WRITEBACK)
    }

    /// Whether it has been the working set's: it came back soon after it was evicted.
    pub fn is_workingset(&self) -> bool {
        self.record().has(flag::WORKINGSET)
    }

    /// Whether it is still in its mapping, not truncated or invalidated.
    pub fn is_attached(&self) -> bool {
        self.record().mapping.load(Acquire) != 0
    }

    /// Locks the contents for reading; waits for a fill or a writer. `None` when they are not up to date: the fill failed,
    /// or the folio was truncated before it.
    pub fn read(&self) -> Option<FolioRead> {
        CONTENTS.might_wait(self.record());
        self.record().lock_shared(&self.shared().waits);
        self.clone().locked_shared()
    }

    /// [`Folio::read`] that gives up instead of waiting.
    pub fn try_read(&self) -> Option<FolioRead> {
        if !self.record().try_lock_shared() {
            return None;
        }
        self.clone().locked_shared()
    }

    /// [`Folio::read`] that gives its own reference to the guard.
    pub fn into_read(self) -> Option<FolioRead> {
        CONTENTS.might_wait(self.record());
        self.record().lock_shared(&self.shared().waits);
        self.locked_shared()
    }

    #[inline]
    fn locked_shared(self) -> Option<FolioRead> {
        let _held = CONTENTS.tried(self.record());
        let guard = FolioRead { folio: self, _held };
        guard.folio.is_uptodate().then_some(guard)
    }

    /// Locks the contents for changing them; waits for readers, a fill and writeback. `None` when they are not up to date or
    /// the folio is no longer in its mapping: look it up again. While the guard lives, the folio stays in its mapping.
    pub fn write(&self) -> Option<FolioWrite> {
        CONTENTS.might_wait(self.record());
        self.record().lock_exclusive(&self.shared().waits);
        self.clone().locked_exclusive()
    }

    /// [`Folio::write`] that gives up instead of waiting.
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

    /// Waits until no block of it is being written.
    pub fn wait_writeback(&self) {
        WRITEBACK.might_wait(self.record());
        self.record().wait_writeback(&self.shared().waits);
    }

    /// The bytes.
    ///
    /// # Safety
    /// The content lock is held, shared or exclusive, for as long as the slice lives.
    #[inline]
    pub(crate) unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the folio's memory is `len` bytes from its record's address on, initialised by the kernel's mapping; the lock
        // keeps writers out, as the caller has promised.
        unsafe { std::slice::from_raw_parts(self.record().data.as_ptr(), self.len()) }
    }

    /// The bytes, to be changed.
    ///
    /// # Safety
    /// The content lock is held exclusively, and this is the only slice made under it, for as long as it lives.
    #[allow(
        clippy::mut_from_ref,
        reason = "the exclusive content lock, which the caller holds, stands for &mut"
    )]
    pub(crate) unsafe fn bytes_mut(&self) -> &mut [u8] {
        // SAFETY: as for `bytes`, and the lock is exclusive, as the caller has promised.
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
            // SAFETY: the count has just gone to 0, so nobody else frees it, and `shared` lives until this call ends.
            unsafe { Shared::free(self.shared, self.record) };
        }
    }
}

impl PartialEq for Folio {
    /// Whether both are the same folio.
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

/// The contents of a folio, for reading.
#[derive(Debug)]
pub struct FolioRead {
    folio: Folio,
    _held: Held,
}

impl FolioRead {
    /// The folio.
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

/// The contents of a folio, for changing them. Say what was changed by [`crate::Mapping::mark_dirty`] before it is dropped.
#[derive(Debug)]
pub struct FolioWrite {
    folio: Folio,
    held: Held,
}

impl FolioWrite {
    /// The folio.
    pub fn folio(&self) -> &Folio {
        &self.folio
    }

    /// Takes over a lock that is held.
    pub(crate) fn from_locked(folio: Folio) -> Self {
        let held = CONTENTS.tried(folio.record());
        Self { folio, held }
    }

    /// Gives up the reference, which the caller has frozen, and the lock, which it lets go itself.
    pub(crate) fn forget<'a>(self) -> &'a Record {
        let record = self.folio.record;
        self.held.release();
        std::mem::forget(self);
        // SAFETY: records live as long as the cache, which the caller, who froze the folio, keeps alive.
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

/// A new folio, to be filled. Its contents are whatever the memory held before: all of it is to be overwritten.
///
/// Dropped without [`FolioFill::finish`], the fill has failed: the folio leaves the mapping, and those who wait for it look
/// again.
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

    /// The folio.
    pub fn folio(&self) -> &Folio {
        self.folio.as_ref().expect("only finishing takes it")
    }

    /// First page in the file, aligned to the order.
    pub fn index(&self) -> u64 {
        self.folio().index()
    }

    /// First byte in the file.
    pub fn offset(&self) -> u64 {
        self.folio().offset()
    }

    /// 2^order pages, 0 to 9.
    pub fn order(&self) -> u8 {
        self.folio().order()
    }

    /// Fills the folio with what a reader has in a buffer of its own already, so that nobody is going to look at the folio soon:
    /// the copy goes past the processor's caches.
    ///
    /// # Panics
    /// When that is not as long as the folio.
    pub fn fill_from(&mut self, contents: &[u8]) {
        copy_past_caches(self, contents);
    }

    /// The contents are the file's now; those who wait may read.
    pub fn finish(mut self) -> Folio {
        let folio = self.folio.take().expect("only finishing takes it");
        folio.record().set(flag::UPTODATE);
        folio.record().unlock_exclusive(&folio.shared().waits);
        folio
    }

    /// The contents are up to date; the lock is kept, so that the caller changes or dirties them before others see them.
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
        // SAFETY: a fill holds the lock exclusively until it is finished.
        unsafe { self.folio().bytes() }
    }
}

impl DerefMut for FolioFill {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: a fill holds the lock exclusively until it is finished, and the slice borrows it mutably.
        unsafe { self.folio().bytes_mut() }
    }
}

impl Drop for FolioFill {
    fn drop(&mut self) {
        if let Some(folio) = self.folio.take() {
            // By its number, so that a fill that is finished has counted no reference to the mapping. One that is going takes
            // its folios out itself.
            let mapping = folio.record().mapping.load(Acquire);
            if let Some(mapping) = folio.shared().mapping_by_id(mapping) {
                mapping.detach(&folio);
            }
            folio.record().unlock_exclusive(&folio.shared().waits);
        }
    }
}
