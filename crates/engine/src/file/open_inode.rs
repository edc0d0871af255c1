//! An inode that at least one handle has open.
//!
//! Owns [`OpenInode`]: the locks between readers and writers of one file, and its in-memory state.
//!
//! Invariants:
//! - An inode without a name is deleted when its last [`OpenInode`] handle is dropped. After a
//!   crash, the next mount finds it by its orphan item.
//!
//! Locks:
//! - `data`: shared by readers and by writers that change only memory and device; exclusive for a
//!   change of extents. [`super::ordered_flush`] and [`super::write_back`] name the exceptions.
//! - `linkable`: taken, like `data`, before the transaction is joined.
//! - Dropping the last handle may lock the tables of open and of dirty inodes, and may join a
//!   transaction.
//!
//! Kernel counterparts: `struct btrfs_inode` (`fs/btrfs/btrfs_inode.h`), `btrfs_evict_inode`
//! (`fs/btrfs/inode.c`).

use crate::btree::LiveTree;
use crate::data::extent_cache::ExtentCache;
use crate::data::file_edit::Touch;
use crate::data::nocow::InPlace;
use crate::data::ordered_extents::OrderedExtents;
use crate::data::write_rules::WriteOptions;
use crate::errors::{Error, PathError, Result};
use crate::file::building_tree::BuildingTree;
use crate::file::cached_inode_item::{CachedInodeItem, SizeAndFlags};
use crate::file::changed_files::{ChangedFiles, ChangedRanges};
use crate::file::data_lock::DataLock;
use crate::file::memory_budgets::MemoryBudgets;
use crate::items::inode;
use crate::namespace::Place;
use crate::space::{RangeSet, Reservation};
use papilio_format::items::inode::{InodeFlags, InodeItem, Timespec};
use papilio_format::{Generation, Geometry};
use papilio_locks::{Mutex, MutexGuard};
use papilio_pagecache::Mapping;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// The file system that an open inode belongs to, as far as the inode knows it.
pub(crate) trait InodeOwner: Debug + Send + Sync {
    /// Forgets `open`, whose last handle is being dropped, and deletes the inode if it has no name.
    fn release(&self, open: &OpenInode);
}

/// An open inode.
#[derive(Debug)]
pub struct OpenInode {
    place: Place,
    owner: Weak<dyn InodeOwner>,
    pub(super) data: DataLock,
    /// Whether the last name was removed.
    unlinked: AtomicBool,
    /// Whether [`Deletions`](super::deletions::Deletions) expects its deletion.
    expected: AtomicBool,
    /// Whether the inode was created without a name and never had one (`I_LINKABLE`). Only then may
    /// it get one. Held while the inode gets its first name, and while the loss of its last name is
    /// noted.
    linkable: Mutex<bool>,
    /// Which extents may be overwritten in place.
    pub(super) in_place: InPlace,
    /// Extents that were looked up, with their checksums.
    pub(super) extents: ExtentCache,
    /// Data on the device that no tree refers to yet.
    pub(super) ordered: OrderedExtents,
    item: CachedInodeItem,
    /// Changes of the inode item that only memory has.
    touched: Mutex<Option<Touched>>,
    /// The size in `touched`; 0 without one.
    touched_size: AtomicU64,
    /// Whether a flush has anything to do.
    dirty: AtomicBool,
    /// Ranges that changed in the running transaction.
    pub(super) changed: Arc<ChangedRanges>,
    /// Held by one thread at a time, while it logs the file or publishes ordered extents beside
    /// other writers.
    pub(super) fsync: Mutex<()>,
    /// The file's pages; `None` without a page cache.
    pub(super) mapping: Option<Mapping>,
    /// Held by the thread that writes through the page cache.
    pub(super) writer: Mutex<()>,
    /// Space reserved for dirty pages.
    reserved: Mutex<DirtyReservation>,
    /// How often pages could not be written back, and are dirty again.
    pub(super) failed_writebacks: AtomicU64,
    /// The end of the pages that became dirty last. Pages that go on there need no extent of their
    /// own.
    pub(super) last_dirtied: AtomicU64,
    /// Whether a caller is building the Merkle tree of the file's data.
    pub(super) merkle_tree: BuildingTree,
}

/// Space that is reserved for dirty pages.
#[derive(Debug, Default)]
pub(super) struct DirtyReservation {
    pub(super) data: Option<Reservation>,
    pub(super) metadata: Option<Reservation>,
    /// Dirty ranges without reserved data space: the file has their space already.
    pub(super) own: RangeSet,
    /// For the sector with the end of the file on disk, which is zeroed when the file grows.
    pub(super) tail: Option<Reservation>,
}

/// Changes of an inode item that only memory has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Touched {
    /// The times of the last change, and the change counter after it.
    pub(super) touch: Touch,
    /// The size in bytes, if it is larger than the tree's.
    pub(super) size: u64,
}

impl OpenInode {
    /// Creates a clean inode without ordered extents. `owner` is told when the last handle is
    /// dropped.
    pub(super) fn new(
        place: Place,
        owner: Weak<dyn InodeOwner>,
        geometry: &Geometry,
        budgets: &MemoryBudgets,
        changed: Arc<ChangedRanges>,
        mapping: Option<Mapping>,
    ) -> Self {
        Self {
            place,
            owner,
            data: DataLock::default(),
            unlinked: AtomicBool::new(false),
            expected: AtomicBool::new(false),
            linkable: Mutex::new(false),
            in_place: InPlace::default(),
            extents: ExtentCache::new(&budgets.checksums),
            ordered: OrderedExtents::new(geometry, &budgets.ordered),
            item: CachedInodeItem::default(),
            touched: Mutex::new(None),
            touched_size: AtomicU64::new(0),
            dirty: AtomicBool::new(false),
            changed,
            fsync: Mutex::new(()),
            mapping,
            writer: Mutex::new(()),
            reserved: Mutex::default(),
            failed_writebacks: AtomicU64::new(0),
            last_dirtied: AtomicU64::new(0),
            merkle_tree: BuildingTree::default(),
        }
    }

    /// Returns the inode's subvolume and number.
    pub(super) fn place(&self) -> Place {
        self.place
    }

    /// Returns whether the last name was removed.
    pub(super) fn is_unlinked(&self) -> bool {
        self.unlinked.load(Ordering::Acquire)
    }

    /// Notes that a range of the file's data changes in transaction `generation`.
    pub(crate) fn note_changed(&self, files: &ChangedFiles, generation: Generation, range: &Range<u64>) {
        self.merkle_tree.note_change();
        if self.changed.note(generation, range) {
            files.insert(generation, self.place(), &self.changed);
        }
    }

    /// Returns the inode item as `live`, its subvolume, has it.
    ///
    /// # Errors
    /// [`PathError::NotFound`], or a tree block that cannot be read.
    pub(super) fn item(&self, live: &LiveTree) -> Result<InodeItem> {
        let version = live.version();
        if let Some(item) = self.item.get(version) {
            return Ok(item);
        }
        let item = inode::inode(&live.tree(), self.place.inode)?.ok_or_else(|| {
            let path = format!("subvolume {}, inode {}", self.place.tree, self.place.inode);
            Error::path(path.as_bytes(), PathError::NotFound)
        })?;
        self.item.set(version, item);
        Ok(item)
    }

    /// Returns the parts of that item that each read needs.
    ///
    /// # Errors
    /// As [`OpenInode::item`].
    #[inline]
    pub(super) fn size_and_flags(&self, live: &LiveTree) -> Result<SizeAndFlags> {
        match self.item.size_and_flags(live.version()) {
            Some(found) => Ok(found),
            None => self.item(live).map(|item| SizeAndFlags::of(&item)),
        }
    }

    /// Returns the size, with changes that only memory has.
    ///
    /// # Errors
    /// As [`OpenInode::item`].
    #[inline]
    pub(super) fn size(&self, live: &LiveTree) -> Result<u64> {
        // Loaded first: a flush clears it only after the tree has the size.
        let touched = self.touched_size.load(Ordering::Acquire);
        Ok(self.size_and_flags(live)?.size.max(touched))
    }

    /// Notes a change in memory at `time` that reaches to byte `end`; without a `time`, mtime and
    /// ctime stay. The table of dirty files has the file already.
    pub(super) fn touch_to(&self, time: Option<Timespec>, end: u64) {
        self.merkle_tree.note_change();
        let mut touched = self.touched.lock();
        let (before, size) = match &*touched {
            Some(touched) => (touched.touch, touched.size),
            None => {
                let sequence = self.item.last().map_or(0, |item| item.sequence);
                (Touch { mtime: None, ctime: None, sequence }, 0)
            }
        };
        let size = size.max(end);
        let touch = Touch {
            mtime: time.or(before.mtime),
            ctime: time.or(before.ctime),
            sequence: before.sequence.wrapping_add(1),
        };
        *touched = Some(Touched { touch, size });
        self.touched_size.store(size, Ordering::Release);
        self.dirty.store(true, Ordering::Release);
    }

    /// Notes that the tree got a newer ctime than memory has, and a newer mtime if `mtime`. The
    /// caller holds the data lock exclusively.
    pub(super) fn times_were_set(&self, mtime: bool) {
        if let Some(touched) = &mut *self.touched.lock() {
            touched.touch.ctime = None;
            if mtime {
                touched.touch.mtime = None;
            }
        }
    }

    /// Adds the reservation of pages that became dirty.
    pub(super) fn add_reservation(&self, data: Option<Reservation>, metadata: Reservation) {
        let add = |total: &mut Option<Reservation>, new| match total {
            Some(total) => total.merge(new),
            None => *total = Some(new),
        };
        let mut reserved = self.reserved.lock();
        data.into_iter().for_each(|data| add(&mut reserved.data, data));
        add(&mut reserved.metadata, metadata);
    }

    /// Keeps space for the sector with the end of the file on disk.
    pub(super) fn add_tail(&self, tail: Reservation) {
        self.reserved.lock().tail = Some(tail);
    }

    /// Returns whether there is space for that sector.
    pub(super) fn has_tail(&self) -> bool {
        self.reserved.lock().tail.is_some()
    }

    /// Notes a dirty range for which no data space is reserved.
    pub(super) fn add_own(&self, range: &Range<u64>) {
        self.reserved.lock().own.cover(range);
    }

    /// Takes the reservation of dirty pages, with at most `metadata` bytes of metadata. The space
    /// for the sector with the end of the file stays.
    pub(super) fn take_reservation(&self, range: &Range<u64>, metadata: u64) -> DirtyReservation {
        let mut reserved = self.reserved.lock();
        let own: RangeSet = reserved.own.remove_overlap(range).into_iter().collect();
        let bytes = range.end - range.start - own.bytes();
        DirtyReservation {
            data: reserved.data.as_mut().map(|data| data.split(bytes)),
            metadata: reserved.metadata.as_mut().map(|reserved| reserved.split(metadata)),
            own,
            tail: None,
        }
    }

    /// Takes all metadata that is reserved for dirty pages. The caller gives back what it does not
    /// spend.
    pub(super) fn take_metadata(&self) -> Option<Reservation> {
        self.reserved.lock().metadata.take()
    }

    /// Takes the space for the sector with the end of the file on disk.
    pub(super) fn take_tail(&self) -> Option<Reservation> {
        self.reserved.lock().tail.take()
    }

    /// Returns the changes of the inode item that only memory has.
    pub(super) fn touched(&self) -> Option<Touched> {
        *self.touched.lock()
    }

    /// Returns `item` with the changes that only memory has.
    pub fn as_seen(&self, item: InodeItem) -> InodeItem {
        match self.touched() {
            Some(Touched { touch, size }) => {
                InodeItem { size: item.size.max(size), ..touch.applied_to(item) }
            }
            None => item,
        }
    }

    /// Returns whether only memory or the device has data, or metadata that is needed to read it.
    /// `item` is what the tree has.
    pub(super) fn has_data_in_memory(&self, item: &InodeItem) -> bool {
        !self.ordered.is_empty()
            || self.is_dirty()
                && (self.mapping.as_ref().is_some_and(|mapping| mapping.has_unwritten(0..u64::MAX))
                    || !self.in_place.written().read().is_empty()
                    || self.touched().is_some_and(|touched| touched.size > item.size))
    }

    /// Returns whether a flush has anything to do.
    pub(super) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    /// Clears the caches of extents. The caller holds the data lock exclusively and is about to
    /// change the extents; or it has changed them in a range that it has locked.
    pub(super) fn forget_extents(&self) {
        self.in_place.clear();
        self.extents.clear();
    }

    /// Marks the file clean: the trees have all of it. The caller holds the data lock exclusively.
    pub(super) fn set_clean(&self) {
        self.in_place.written().write().clear();
        self.forget_extents();
        let mut touched = self.touched.lock();
        *touched = None;
        self.touched_size.store(0, Ordering::Release);
        drop(touched);
        *self.reserved.lock() = DirtyReservation::default();
        self.dirty.store(false, Ordering::Release);
    }

    /// Marks an inode that was created without a name: it is deleted with its last handle.
    pub(super) fn set_unnamed(&self) {
        let mut linkable = self.linkable.lock();
        self.unlinked.store(true, Ordering::Release);
        *linkable = true;
    }

    /// Notes that the last name was removed.
    pub(super) fn set_unlinked(&self) {
        // Waits for a thread that is giving the inode its first name.
        let _linkable = self.linkable.lock();
        self.unlinked.store(true, Ordering::Release);
    }

    /// Notes whether its deletion is expected. Returns whether it was.
    pub(super) fn set_expected(&self, expected: bool) -> bool {
        self.expected.swap(expected, Ordering::AcqRel)
    }

    /// Notes that the inode was opened without a name, so that no thread gives it one.
    pub(super) fn set_deleted(&self) {
        self.unlinked.store(true, Ordering::Release);
    }

    /// Returns the right to give the inode its first name, if it was created without one and has
    /// none yet.
    pub fn linkable(&self) -> Option<MutexGuard<'_, bool>> {
        let linkable = self.linkable.lock();
        linkable.then_some(linkable)
    }

    /// Notes that the inode has its first name.
    pub fn named(&self, mut linkable: MutexGuard<'_, bool>) {
        *linkable = false;
        self.unlinked.store(false, Ordering::Release);
    }
}

/// Refuses a file whose data must not change: one with fs-verity, or an immutable one unless the
/// caller refuses to open it.
///
/// # Errors
/// [`PathError::NotPermitted`].
pub(super) fn check_mutable(options: &WriteOptions, place: Place, item: &InodeItem) -> Result<()> {
    let immutable = item.flags.contains(InodeFlags::IMMUTABLE) && !options.immutable;
    if immutable || item.flags.contains(InodeFlags::VERITY) {
        let path = format!("subvolume {}, inode {}", place.tree, place.inode);
        return Err(Error::path(path.as_bytes(), PathError::NotPermitted));
    }
    Ok(())
}

impl Drop for OpenInode {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.upgrade() {
            owner.release(self);
        }
    }
}
