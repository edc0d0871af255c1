//! A handle: a change's membership in the running transaction.
//!
//! Owns [`Handle`], which allocates tree blocks and data extents and queues delayed references.
//!
//! **Invariants**
//! - A transaction does not commit while one of its handles lives.
//! - Handles never nest: a commit that waits between the two would deadlock.
//!
//! **Locks**, in this order: the transaction's gate, shared, from join to drop; those of trees;
//! chunks; then space and delayed references, which are leaves.
//!
//! Kernel counterpart: `struct btrfs_trans_handle` (`fs/btrfs/transaction.c`),
//! `btrfs_alloc_tree_block`, `btrfs_free_tree_block` (`fs/btrfs/extent-tree.c`),
//! `update_ref_for_cow` (`fs/btrfs/ctree.c`).

use super::delayed_refs::{Head, Outcome, QuotaMark, RefKind, Reference};
use super::extent_items::extent_info;
use super::no_data_io::HandleHeld;
use super::quota::groups::is_counted;
use super::transaction::Transactions;
use crate::btree::{LiveTree, NodeAllocator, TreeBlock};
use crate::errors::{Error, PathError, Result};
use crate::space::{LogicalRange, Reservation, SpaceKind};
use papilio_format::items::extent::ExtentFlags;
use papilio_format::items::file_extent::{ExtentPart, FileExtentContent, FileExtentItem};
use papilio_format::items::inode::Timespec;
use papilio_format::{
    Corrupt, FileOffset, Generation, InodeNumber, ItemType, Key, LogicalAddress, TreeId, objectid,
};
use papilio_locks::{MutexGuard, RwLockReadGuard};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A data extent that was just allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataExtent {
    /// The logical address of its first byte.
    pub(crate) address: LogicalAddress,
    /// Bytes, a multiple of the sector size.
    pub(crate) length: u64,
}

/// One file extent item's reference to a data extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DataReference {
    /// The logical address of the extent's first byte.
    pub address: LogicalAddress,
    /// The extent's length on disk, in bytes.
    pub length: u64,
    /// The subvolume.
    pub tree: TreeId,
    /// The inode.
    pub inode: InodeNumber,
    /// The file offset of the item's key less the item's offset into the extent, wrapping.
    pub offset: FileOffset,
}

/// A change's membership in the running transaction. The transaction stays open until it drops.
pub struct Handle<'a> {
    transactions: &'a Transactions,
    /// `None` in a commit, which holds the gate exclusively.
    _gate: Option<RwLockReadGuard<'a, ()>>,
    generation: Generation,
    reservation: RefCell<Option<Reservation>>,
    changed: Cell<bool>,
    now: Timespec,
    _held: HandleHeld,
}

impl<'a> Handle<'a> {
    /// A handle on the running transaction, which `gate` keeps open.
    pub(super) fn new(
        transactions: &'a Transactions,
        gate: Option<RwLockReadGuard<'a, ()>>,
        reservation: Option<Reservation>,
        now: Timespec,
    ) -> Self {
        Self {
            transactions,
            _gate: gate,
            generation: Generation(transactions.generation.load(Ordering::Acquire)),
            reservation: RefCell::new(reservation),
            changed: Cell::new(false),
            now,
            _held: HandleHeld::new(),
        }
    }

    /// The number of the transaction.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The time that the change carries.
    pub fn now(&self) -> Timespec {
        self.now
    }

    /// Whether no other change runs: the caller holds the gate exclusively.
    pub(super) fn is_alone(&self) -> bool {
        self._gate.is_none()
    }

    /// Whether the change has touched a tree, so that a failure from here on leaves it half done.
    pub(super) fn is_changed(&self) -> bool {
        self.changed.get()
    }

    /// Declares the changes so far complete: a failure from here on leaves nothing half done.
    pub(crate) fn settle(&self) {
        self.changed.set(false);
    }

    /// Takes what is left of the handle's reservation, when its change is made.
    pub(super) fn take_reservation(&self) -> Option<Reservation> {
        self.reservation.take()
    }

    /// The transactions that the handle belongs to.
    pub fn transactions(&self) -> &'a Transactions {
        self.transactions
    }

    /// Returns the tree `id` for changing. Fails for a deleted subvolume that is not held. A change
    /// that got the tree before ends within that transaction, and only a later transaction drops
    /// the tree.
    ///
    /// # Errors
    /// [`Error::MissingItem`] if there is no such tree; [`PathError::NoSubvolume`] if it was
    /// deleted; a block that cannot be read.
    pub fn live_tree(&self, id: TreeId) -> Result<Arc<LiveTree>> {
        let tree = self.transactions.live.get(id)?;
        if objectid::is_subvolume(id) && !tree.is_usable() {
            return Err(Error::path(format!("subvolume {id}").as_bytes(), PathError::NoSubvolume));
        }
        Ok(tree)
    }

    /// Keeps all other threads from copying, sharing or dropping tree blocks that trees may share.
    /// A block's reference count must not change between its look-up and the action that follows.
    /// Taken inside a tree's writer lock, and outside the extent tree's root.
    pub(crate) fn lock_sharing(&self) -> MutexGuard<'_, ()> {
        self.transactions.sharing.lock()
    }

    /// Allocates a tree block that gets no item in the extent tree.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(super) fn allocate_untracked(&self, kind: SpaceKind) -> Result<LogicalRange> {
        let node_size = self.transactions.node_size();
        let range = self.transactions.allocate(kind, node_size, node_size)?;
        if let Some(reservation) = &mut *self.reservation.borrow_mut() {
            reservation.spend(node_size);
        }
        Ok(range)
    }

    /// As [`Handle::allocate_untracked`], for a block that this change does not need: it leaves the
    /// change's reservation as it is, and makes no chunk.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(super) fn allocate_ahead(&self, kind: SpaceKind) -> Result<LogicalRange> {
        let node_size = self.transactions.node_size();
        self.transactions.space.allocate(kind, node_size, node_size)
    }

    /// Allocates a contiguous data extent of `min` to `want` bytes, both multiples of the sector
    /// size.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; a commit may free some.
    pub(crate) fn allocate_data(&self, min: u64, want: u64) -> Result<DataExtent> {
        let range = self.transactions.allocate_data(min, want)?;
        Ok(DataExtent { address: range.start, length: range.length })
    }

    /// Releases an allocated extent, or the end of one, that was never referenced.
    pub(crate) fn release_data(&self, extent: DataExtent) {
        self.transactions.space.release(LogicalRange { start: extent.address, length: extent.length });
    }

    /// Queues one more reference to a data extent. `new` says that the extent was just allocated
    /// and that this is its first reference.
    ///
    /// # Errors
    /// None so far.
    pub fn add_data_ref(&self, reference: &DataReference, new: bool) -> Result<()> {
        let (key, length) = (reference.key(), reference.length);
        self.changed.set(true);
        if new {
            let mut head = Head::new(length, RefKind::Data);
            head.new = true;
            head.generation = self.generation;
            head.owner = self.transactions.quotas().is_simple().then_some(reference.tree);
            head.touch = self.touch_for(reference.tree);
            head.changes.add(key, 1);
            return self.transactions.refs.insert_new(reference.address, head);
        }
        let touch = self.touch_for(reference.tree);
        self.change_ref(reference.address, length, RefKind::Data, key, 1, touch);
        Ok(())
    }

    /// Queues the removal of one reference to a data extent.
    ///
    /// # Errors
    /// None so far: a wrong reference shows when a commit updates the extent tree.
    pub fn drop_data_ref(&self, reference: &DataReference) -> Result<()> {
        self.changed.set(true);
        let touch = self.touch_for(reference.tree);
        self.change_ref(reference.address, reference.length, RefKind::Data, reference.key(), -1, touch);
        Ok(())
    }

    /// Returns whether the extent of `reference`, its only one, may get `bytes` more bytes, which
    /// were allocated behind it:
    /// - it is of this transaction, and younger than the last snapshot of its subvolume;
    /// - both are in one block group;
    /// - the log has nothing of the file: each later fsync would enter the whole extent again.
    ///
    /// The caller holds the editor of the subvolume's tree.
    pub(crate) fn may_extend_data(&self, reference: &DataReference, bytes: u64) -> bool {
        let (start, end) = (reference.address.0, reference.address.0 + reference.length + bytes);
        let transactions = self.transactions;
        let last_snapshot = transactions
            .live
            .find(reference.tree)
            .ok()
            .flatten()
            .and_then(|tree| tree.with_record(|record| record.item.last_snapshot));
        last_snapshot.is_some_and(|last| last < self.generation)
            && transactions.refs.is_new_with_only(reference.address, reference.length, reference.key())
            && transactions.space.is_in_one_group(&(start..end))
            && !transactions.is_logged(reference.tree, reference.inode)
    }

    /// Extends the extent of `reference` as [`Handle::may_extend_data`] allows, in the same hold of
    /// the editor.
    pub(crate) fn extend_data(&self, reference: &DataReference, bytes: u64) {
        self.changed.set(true);
        self.transactions.refs.extend_new(reference.address, bytes);
    }

    fn change_ref(
        &self,
        address: LogicalAddress,
        length: u64,
        kind: RefKind,
        reference: Reference,
        change: i64,
        touch: Option<QuotaMark>,
    ) {
        match self.transactions.refs.change(address, length, kind, reference, change, touch) {
            Outcome::Queued => {}
            // An earlier reader may still read data. Tree blocks of this transaction are in memory
            // only.
            Outcome::Gone if kind == RefKind::Data => {
                self.transactions.space.pin_reserved(LogicalRange { start: address, length });
                self.transactions.note_dropped_data(address, length);
            }
            Outcome::Gone => {
                self.transactions.block_dropped();
                self.transactions.space.release(LogicalRange { start: address, length });
            }
        }
    }

    /// Returns the number of references to a tree block, and whether references to its children are
    /// counted by the block instead of by its owner (`FULL_BACKREF`).
    ///
    /// # Errors
    /// A block that cannot be read; [`Error::MissingItem`] if the extent tree has no item for it.
    pub(crate) fn block_refs(&self, address: LogicalAddress, level: u8) -> Result<(u64, bool)> {
        let length = self.transactions.node_size();
        let kind = RefKind::TreeBlock { level };
        let pending = self.transactions.refs.pending(address);
        let extent_tree = self.transactions.live.get(objectid::EXTENT_TREE)?.tree();
        let missing = || {
            let key = Key::new(address.0, ItemType::METADATA_ITEM, level.into());
            Error::MissingItem { tree: objectid::EXTENT_TREE, key, what: "a tree block that is in use" }
        };
        let (refs, full) = match pending {
            Some((total, full, true)) => (0i64.checked_add(total), full),
            other => {
                let info = extent_info(&extent_tree, address, length, kind)?.ok_or_else(missing)?;
                let (total, full) = other.map_or((0, false), |(total, full, _)| (total, full));
                let refs = i64::try_from(info.header.refs).ok().and_then(|refs| refs.checked_add(total));
                (refs, full || info.header.flags.contains(ExtentFlags::FULL_BACKREF))
            }
        };
        match refs {
            Some(refs) if refs > 0 => Ok((refs as u64, full)),
            _ => Err(missing()),
        }
    }

    /// Adds (`change` 1) or drops (-1) the references that a block makes to its children or data
    /// extents. They are counted for tree `root` or, with `parent`, for the block at that address.
    pub(crate) fn change_child_refs(
        &self,
        block: &TreeBlock,
        root: TreeId,
        parent: Option<LogicalAddress>,
        change: i64,
    ) -> Result<()> {
        self.changed.set(true);
        let view = block.view();
        for slot in 0..view.len() {
            if !view.is_leaf() {
                let reference = parent.map_or(Reference::Tree(root), Reference::SharedBlock);
                let kind = RefKind::TreeBlock { level: view.level() - 1 };
                let length = self.transactions.node_size();
                self.change_ref(view.child(slot).address, length, kind, reference, change, None);
                continue;
            }
            let key = view.key(slot);
            let Some(part) = data_of(block, slot, root)? else { continue };
            let reference = match parent {
                Some(parent) => Reference::SharedData(parent),
                None => Reference::Data {
                    root,
                    inode: InodeNumber(key.objectid),
                    offset: FileOffset(key.offset.wrapping_sub(part.offset)),
                },
            };
            let (address, length) = (part.disk_address, part.disk_length);
            self.change_ref(address, length, RefKind::Data, reference, change, None);
        }
        Ok(())
    }

    /// The mark for an extent that gains or loses a reference by subvolume `tree`; `None` if
    /// quotas do not count it.
    fn touch_for(&self, tree: TreeId) -> Option<QuotaMark> {
        (self.transactions.quotas().is_counting() && is_counted(tree)).then_some(QuotaMark {
            only: None,
            key: None,
            shared: false,
        })
    }

    /// The mark for a tree block that `tree` gives up; `None` if quotas do not count it.
    fn touch_for_free(&self, tree: &LiveTree, block: &TreeBlock) -> Option<QuotaMark> {
        let mut touch = self.touch_for(tree.id())?;
        let last = tree.with_record(|record| record.item.last_snapshot);
        if block.owner() == tree.id() && last.is_some_and(|last| block.generation() > last) {
            touch.only = Some(tree.id());
        }
        let view = block.view();
        touch.key = (!view.is_empty()).then(|| view.key(0));
        Some(touch)
    }

    /// Marks the data that a leaf refers to, because subvolume `tree` gives the leaf up.
    ///
    /// # Errors
    /// [`Error::Item`] for an invalid file extent.
    pub(crate) fn touch_data_of(&self, leaf: &TreeBlock, tree: TreeId) -> Result<()> {
        let Some(touch) = self.touch_for(tree) else { return Ok(()) };
        for slot in 0..leaf.len() {
            if let Some(part) = data_of(leaf, slot, tree)? {
                self.transactions.refs.touch(part.disk_address, part.disk_length, RefKind::Data, touch);
            }
        }
        Ok(())
    }

    /// Marks a block that subvolume `tree` gives up together with a block above it.
    pub(crate) fn touch_block(&self, block: &TreeBlock, tree: TreeId) {
        let Some(touch) = self.touch_for(tree) else { return };
        let view = block.view();
        let key = (!view.is_empty()).then(|| view.key(0));
        let kind = RefKind::TreeBlock { level: block.level() };
        let length = self.transactions.node_size();
        self.transactions.refs.touch(block.address(), length, kind, QuotaMark { key, ..touch });
    }

    /// Marks a block `FULL_BACKREF`: its references to other extents are counted by its address
    /// from now on.
    pub(crate) fn set_full_backref(&self, block: &TreeBlock) {
        self.changed.set(true);
        self.transactions.refs.set_full_backref(
            block.address(),
            self.transactions.node_size(),
            block.level(),
        );
    }

    /// Drops one reference to a tree block: that of tree `root`, or that of a parent block. `alone`
    /// says that no other tree reached the block.
    pub fn drop_block_ref(
        &self,
        address: LogicalAddress,
        level: u8,
        root: TreeId,
        parent: Option<LogicalAddress>,
        alone: bool,
    ) {
        self.changed.set(true);
        let reference = parent.map_or(Reference::Tree(root), Reference::SharedBlock);
        let kind = RefKind::TreeBlock { level };
        let touch = self.touch_for(root).map(|touch| QuotaMark { only: alone.then_some(root), ..touch });
        self.change_ref(address, self.transactions.node_size(), kind, reference, -1, touch);
    }
}

/// The data that the item in a leaf's slot refers to, if it refers to any.
fn data_of(leaf: &TreeBlock, slot: usize, tree: TreeId) -> Result<Option<ExtentPart>> {
    let view = leaf.view();
    let key = view.key(slot);
    if key.item_type != ItemType::EXTENT_DATA {
        return Ok(None);
    }
    let fault = |reason: Corrupt| Error::Item { tree, key, reason };
    let extent = FileExtentItem::parse(view.item(slot)).map_err(fault)?;
    Ok(match extent.content {
        FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part) if !part.is_hole() => Some(part),
        _ => None,
    })
}

impl DataReference {
    pub(super) fn key(&self) -> Reference {
        Reference::Data { root: self.tree, inode: self.inode, offset: self.offset }
    }
}

impl NodeAllocator for Handle<'_> {
    fn generation(&self) -> Generation {
        self.generation
    }

    fn stamp(&self) -> u64 {
        self.transactions.stamp.load(Ordering::Acquire)
    }

    fn allocate(&self, tree: &LiveTree, level: u8, first_key: &Key) -> Result<LogicalAddress> {
        let node_size = self.transactions.node_size();
        let kind = if tree.id() == objectid::CHUNK_TREE { SpaceKind::System } else { SpaceKind::Metadata };
        let range = self.transactions.allocate(kind, node_size, node_size)?;
        if kind == SpaceKind::Metadata
            && let Some(reservation) = &mut *self.reservation.borrow_mut()
        {
            reservation.spend(node_size);
        }
        let mut head = Head::new(node_size, RefKind::TreeBlock { level });
        head.new = true;
        head.generation = self.generation;
        head.owner = Some(tree.id());
        head.first_key = *first_key;
        head.touch = self.touch_for(tree.id());
        if self.transactions.quotas().is_limited() {
            self.transactions.quotas().blocks_changed(tree.id(), node_size as i64);
        }
        head.changes.add(Reference::Tree(tree.id()), 1);
        self.transactions.refs.insert_new(range.start, head)?;
        self.transactions.block_added(tree);
        // The number on disk may be wrong.
        tree.update_record(|record| {
            record.item.bytes_used = record.item.bytes_used.saturating_add(node_size);
        });
        Ok(range.start)
    }

    fn free(&self, tree: &LiveTree, block: &TreeBlock) -> Result<()> {
        let node_size = self.transactions.node_size();
        tree.update_record(|record| {
            record.item.bytes_used = record.item.bytes_used.saturating_sub(node_size);
        });
        let kind = RefKind::TreeBlock { level: block.level() };
        let touch = self.touch_for_free(tree, block);
        if self.transactions.quotas().is_limited() {
            self.transactions.quotas().blocks_changed(tree.id(), -(node_size as i64));
        }
        self.change_ref(block.address(), node_size, kind, Reference::Tree(tree.id()), -1, touch);
        Ok(())
    }

    fn copied(&self, tree: &LiveTree, old: &TreeBlock, new: &TreeBlock) -> Result<()> {
        if !objectid::is_subvolume(tree.id()) {
            return self.free(tree, old);
        }
        let last_snapshot = tree.record().map_or(Generation(0), |record| record.item.last_snapshot);
        if old.generation() > last_snapshot && !old.is_relocated() {
            return self.free(tree, old);
        }
        let _sharing = self.lock_sharing();
        let (refs, full) = self.block_refs(old.address(), old.level())?;
        match (refs > 1, full) {
            // This tree owns the block. From now on the block's address counts for the trees that
            // still share it.
            (true, false) if old.owner() == tree.id() => {
                self.change_child_refs(old, tree.id(), Some(old.address()), 1)?;
                self.set_full_backref(old);
            }
            (true, _) => self.change_child_refs(new, tree.id(), None, 1)?,
            (false, true) => {
                self.change_child_refs(new, tree.id(), None, 1)?;
                self.change_child_refs(old, tree.id(), Some(old.address()), -1)?;
            }
            (false, false) => {}
        }
        self.free(tree, old)
    }

    fn changed(&self) {
        self.changed.set(true);
    }
}
