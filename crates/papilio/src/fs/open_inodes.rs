//! Files that are open: what keeps reading and writing of one file apart, and an unlinked file alive.
//!
//! Owns [`OpenInodes`] and [`OpenInode`]. Invariants: one [`OpenInode`] for an inode as long as anybody has
//! it open; an inode that lost its last name is deleted when the last of them goes, and if nobody has it
//! open, at once. A crash in between leaves an orphan item, by which the next mount finds it.
//!
//! Locks: the table's, for one operation on the map, and never where an [`OpenInode`] may be let go: that asks for
//! it, as it asks for the table of dirty files, and joins a transaction where the last name is gone; inside it, leaves
//! (the tables of changed files and of mappings). An inode's data lock, shared by readers of its data and exclusive
//! for who changes it ([`super::ordered_flush`] says who else does), and its `linkable`: both taken before a
//! transaction is joined.
//! Kernel counterpart: the inode cache, `btrfs_evict_inode` (`fs/btrfs/inode.c`).

use crate::btree::LiveTree;
use crate::data::extent_cache::ExtentCache;
use crate::data::nocow::InPlace;
use crate::data::ordered_budget::OrderedBudget;
use crate::data::ordered_extents::OrderedExtents;
use crate::data::sum_cache::SumBudget;
use crate::errors::{Error, PathError, Result};
use crate::fs::data_lock::DataLock;
use crate::fs::fsync::ChangedRanges;
use crate::fs::known_item::{Glance, KnownItem};
use crate::fs::mount::Mounted;
use crate::fs::ordered_write::forget_ordered;
use crate::fs::{FileSystem, Inode};
use crate::items::inode;
use crate::namespace::Place;
use crate::space::Reservation;
use papilio_format::items::inode::{InodeItem, Timespec};
use papilio_locks::{Mutex, MutexGuard, might_lock};
use papilio_pagecache::Mapping;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Inodes that are open, by place.
#[derive(Debug)]
pub(crate) struct OpenInodes {
    table: Mutex<HashMap<Place, Weak<OpenInode>>>,
    /// Of the checksums that are kept of them.
    sum_budget: Arc<SumBudget>,
    /// Of what is written past the trees.
    ordered_budget: Arc<OrderedBudget>,
}

/// An inode that somebody has open.
#[derive(Debug)]
pub(crate) struct OpenInode {
    place: Place,
    mounted: Weak<Mounted>,
    /// Shared while data is read, exclusive while it changes.
    pub(super) data: DataLock,
    /// Its last name is gone.
    unlinked: AtomicBool,
    /// It was made without a name and never had one (`I_LINKABLE`): only then may it get one. Held by who names it
    /// then, and by who notes that its last name went.
    linkable: Mutex<bool>,
    /// What is known of overwriting it in place.
    pub(super) in_place: InPlace,
    /// What is known of its extents.
    pub(super) extents: ExtentCache,
    /// Its data that no tree tells of yet.
    pub(super) ordered: OrderedExtents,
    /// The inode item.
    item: KnownItem,
    /// What changes in memory did to the inode.
    touched: Mutex<Option<Touched>>,
    /// The size that they gave it; 0 without any.
    touched_size: AtomicU64,
    /// There is something to flush.
    dirty: AtomicBool,
    /// What changed of it in the running transaction.
    pub(super) changed: Arc<ChangedRanges>,
    /// Held by who enters it into the log, or makes a step of bringing ordered extents to the trees beside others
    /// who write, one at a time.
    pub(super) fsync: Mutex<()>,
    /// Its pages, where there is a cache.
    pub(super) mapping: Option<Mapping>,
    /// Held by who writes through the cache, one at a time.
    pub(super) writer: Mutex<()>,
    /// Room for data, and for metadata to go with it, that is promised to dirty pages.
    promised: Mutex<Promised>,
}

/// Room that is promised to dirty pages.
#[derive(Debug, Default)]
pub(super) struct Promised {
    pub(super) data: Option<Reservation>,
    pub(super) metadata: Option<Reservation>,
}

/// What changes in memory did to an inode.
#[derive(Clone, Copy, Debug)]
pub(super) struct Touched {
    /// When the last was made.
    pub(super) time: Timespec,
    /// The change counter after it.
    pub(super) sequence: u64,
    /// The size, if that is more than the tree has.
    pub(super) size: u64,
}

/// Keeps an inode of any kind after its last name went, as an open [`File`](crate::File) keeps a regular one:
/// for who has it in use in another way, such as a kernel that knows it. It goes with the last that keeps it.
#[derive(Clone, Debug)]
pub struct KeptInode {
    _open: Option<Arc<OpenInode>>,
}

impl Inode {
    /// Keeps this inode after its last name went, until what this returns is dropped.
    pub fn keep(&self) -> KeptInode {
        let mounted = &self.file_system().mounted;
        let changes = mounted.trees.transactions().is_some();
        KeptInode { _open: changes.then(|| mounted.open_inodes.open(mounted, self.place())) }
    }
}

impl OpenInodes {
    /// Nobody has anything open. Up to `sum_bytes` of memory will be taken by checksums of what is opened, about
    /// `ordered_bytes` by what is written past the trees.
    pub(super) fn new(sum_bytes: usize, ordered_bytes: usize) -> Self {
        Self {
            table: Mutex::default(),
            sum_budget: SumBudget::new(sum_bytes),
            ordered_budget: Arc::new(OrderedBudget::new(ordered_bytes)),
        }
    }

    /// Bytes of checksums that are kept, and of what is written past the trees.
    pub(super) fn memory(&self) -> (usize, usize) {
        (self.sum_budget.used(), self.ordered_budget.used())
    }

    /// Opens an inode.
    pub(super) fn open(&self, mounted: &Arc<Mounted>, place: Place) -> Arc<OpenInode> {
        let mut table = self.table.lock();
        if let Some(open) = table.get(&place).and_then(Weak::upgrade) {
            return open;
        }
        let open = Arc::new(OpenInode {
            place,
            mounted: Arc::downgrade(mounted),
            data: DataLock::default(),
            unlinked: AtomicBool::new(false),
            linkable: Mutex::new(false),
            in_place: InPlace::default(),
            extents: ExtentCache::new(&self.sum_budget),
            ordered: OrderedExtents::new(&mounted.volume().geometry(), &self.ordered_budget),
            item: KnownItem::default(),
            touched: Mutex::new(None),
            touched_size: AtomicU64::new(0),
            dirty: AtomicBool::new(false),
            changed: mounted.changed_files.open(place),
            fsync: Mutex::new(()),
            mapping: mounted.page_cache.as_ref().map(|cache| cache.mapping(place.inode.0)),
            writer: Mutex::new(()),
            promised: Mutex::default(),
        });
        table.insert(place, Arc::downgrade(&open));
        open
    }

    /// The last name of an inode is gone; it goes with the last who has it open.
    pub(super) fn unlinked(&self, mounted: &Arc<Mounted>, place: Place) {
        // Opened here too, so that exactly one is the last.
        let open = self.open(mounted, place);
        {
            // Not before who gave it that name has noted it.
            let _linkable = open.linkable.lock();
            open.unlinked.store(true, Ordering::Release);
        }
        mounted.dirty_inodes.forget_unlinked(open);
    }

    /// The inode at a place, if somebody has it open.
    pub(super) fn get(&self, place: Place) -> Option<Arc<OpenInode>> {
        // The lock goes before what this returns does.
        self.table.lock().get(&place).and_then(Weak::upgrade)
    }
}

#[cfg(all(test, feature = "lock-order"))]
impl OpenInodes {
    pub(super) fn lock_table(&self) -> MutexGuard<'_, impl Sized> {
        self.table.lock()
    }
}

impl OpenInode {
    /// Where it lies.
    pub(super) fn place(&self) -> Place {
        self.place
    }

    /// Whether its last name is gone.
    pub(super) fn is_unlinked(&self) -> bool {
        self.unlinked.load(Ordering::Acquire)
    }

    /// The inode item as `live`, its subvolume, has it.
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

    /// What reading needs of that item.
    ///
    /// # Errors
    /// As [`OpenInode::item`].
    #[inline]
    pub(super) fn glance(&self, live: &LiveTree) -> Result<Glance> {
        match self.item.glance(live.version()) {
            Some(glance) => Ok(glance),
            None => self.item(live).map(|item| Glance::of(&item)),
        }
    }

    /// The size as who asks for it is to see it.
    ///
    /// # Errors
    /// As [`OpenInode::item`].
    #[inline]
    pub(super) fn size(&self, live: &LiveTree) -> Result<u64> {
        // First: what is in the trees by now leaves here after it got there.
        let touched = self.touched_size.load(Ordering::Acquire);
        Ok(self.glance(live)?.size.max(touched))
    }

    /// Notes a change in memory that reaches to byte `end`. The table of dirty files has it by now.
    pub(super) fn touch_to(&self, now: Timespec, end: u64) {
        let mut touched = self.touched.lock();
        let (sequence, size) = match &*touched {
            Some(touched) => (touched.sequence, touched.size),
            None => (self.item.last().map_or(0, |item| item.sequence), 0),
        };
        let size = size.max(end);
        *touched = Some(Touched { time: now, sequence: sequence.wrapping_add(1), size });
        self.touched_size.store(size, Ordering::Release);
        self.dirty.store(true, Ordering::Release);
    }

    /// Takes over room for pages that are dirty now.
    pub(super) fn promise(&self, data: Reservation, metadata: Reservation) {
        let add = |kept: &mut Option<Reservation>, new| match kept {
            Some(kept) => kept.merge(new),
            None => *kept = Some(new),
        };
        let mut promised = self.promised.lock();
        add(&mut promised.data, data);
        add(&mut promised.metadata, metadata);
    }

    /// Room for `bytes` of what was promised.
    pub(super) fn take_promise(&self, bytes: u64) -> Promised {
        let mut promised = self.promised.lock();
        Promised {
            data: promised.data.as_mut().map(|data| data.split(bytes)),
            metadata: promised.metadata.take(),
        }
    }

    /// What changes in memory did to the inode.
    pub(super) fn touched(&self) -> Option<Touched> {
        *self.touched.lock()
    }

    /// The inode item as who asks for it is to see it.
    pub(super) fn as_seen(&self, item: InodeItem) -> InodeItem {
        match self.touched() {
            Some(Touched { time, sequence, size }) => InodeItem {
                mtime: time,
                ctime: time,
                sequence: item.sequence.max(sequence),
                size: item.size.max(size),
                ..item
            },
            None => item,
        }
    }

    /// Whether data, or what it takes to read it, is in memory only; `item` is what the tree has.
    pub(super) fn has_data_in_memory(&self, item: &InodeItem) -> bool {
        !self.ordered.is_empty()
            || self.is_dirty()
                && (self.mapping.as_ref().is_some_and(|mapping| mapping.has_dirty(0..u64::MAX))
                    || !self.in_place.written().read().is_empty()
                    || self.touched().is_some_and(|touched| touched.size > item.size))
    }

    /// Whether there is something to flush.
    pub(super) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    /// Its extents change: the caller holds the data lock exclusively. Or they have changed, in a range that the
    /// caller has locked.
    pub(super) fn forget_extents(&self) {
        self.in_place.forget();
        self.extents.clear();
    }

    /// All of it is in the trees. The caller holds the data lock exclusively.
    pub(super) fn set_clean(&self) {
        self.in_place.written().write().clear();
        self.forget_extents();
        let mut touched = self.touched.lock();
        *touched = None;
        self.touched_size.store(0, Ordering::Release);
        drop(touched);
        *self.promised.lock() = Promised::default();
        self.dirty.store(false, Ordering::Release);
    }

    /// It was made without a name: it is deleted when the last who has it open is gone.
    pub(super) fn set_unnamed(&self) {
        let mut linkable = self.linkable.lock();
        self.unlinked.store(true, Ordering::Release);
        *linkable = true;
    }

    /// The right to give it its first name, if it was made without one and has none yet.
    pub(super) fn linkable(&self) -> Option<MutexGuard<'_, bool>> {
        let linkable = self.linkable.lock();
        linkable.then_some(linkable)
    }

    /// It has its first name now.
    pub(super) fn named(&self, mut linkable: MutexGuard<'_, bool>) {
        *linkable = false;
        self.unlinked.store(false, Ordering::Release);
    }
}

impl Drop for OpenInode {
    fn drop(&mut self) {
        let Some(mounted) = self.mounted.upgrade() else { return };
        // Each time, whether it has a name or not.
        might_lock(&mounted.open_inodes.table);
        mounted.dirty_inodes.might_lock();
        if let Some(transactions) = mounted.trees.transactions() {
            transactions.might_change();
        }
        {
            let mut table = mounted.open_inodes.table.lock();
            // Somebody may have opened it anew in between.
            if table.get(&self.place).is_some_and(|open| open.strong_count() == 0) {
                table.remove(&self.place);
            }
        }
        // Of a file that was unlinked meanwhile, and is not flushed any more.
        forget_ordered(&mounted, self);
        if self.unlinked.load(Ordering::Acquire)
            && let Err(error) = FileSystem::of_mounted(mounted).evict(self.place)
        {
            tracing::warn!("{:?}: an unlinked file is left to the next mount: {error}", self.place);
        }
    }
}
