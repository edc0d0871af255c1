//! Deletion of inodes that have no name any more.
//!
//! Owns [`FsInfo::evict`], the release of open and of kept inodes, and the deletion of the orphans
//! of earlier mounts.
//!
//! Invariant: an inode that lost its last name is deleted when the last handle on it is dropped, or
//! at once if no handle has it open. [`super::open_inodes`] keeps other threads away meanwhile.
//!
//! Locks: the transaction's locks; the tables of open and of dirty inodes. Kernel counterparts:
//! `btrfs_evict_inode`, `btrfs_orphan_cleanup` (`fs/btrfs/inode.c`).

use crate::data::progress::{Progress, STEP_EXTENTS};
use crate::data::truncate::shrink;
use crate::errors::{ErrorKind, PathError, Result};
use crate::file::change::{EXTENT_ITEMS, NAME_ITEMS};
use crate::file::fs_info::FsInfo;
use crate::file::kept_inodes::RemovedKeeper;
use crate::file::open_inode::{InodeOwner, OpenInode};
use crate::items::inode;
use crate::namespace::Place;
use crate::namespace::evict::{self, OrphanState};
use crate::subvolume::clean_step;
use crate::transaction::{Handle, Start};
use papilio_format::items::inode::{FileKind, InodeFlags};
use papilio_format::{InodeNumber, TreeId, objectid};
use std::sync::Arc;

impl InodeOwner for FsInfo {
    fn release(&self, open: &OpenInode) {
        self.release_inode(open);
        if self.open_inodes.end_use(open.place().tree) {
            self.clean_if_held(open.place().tree);
        }
    }
}

impl FsInfo {
    fn release_inode(&self, open: &OpenInode) {
        // Checked on every release, not only where the inode has no name.
        self.open_inodes.might_lock();
        self.dirty_inodes.might_lock();
        if let Some(transactions) = self.trees.transactions() {
            transactions.might_change();
        }
        self.open_inodes.remove(open.place());
        // Only an unlinked file still has ordered extents here: a dirty file is kept open by the
        // table.
        open.forget_ordered(self);
        let was_expected = open.set_expected(false);
        if was_expected && !open.is_unlinked() {
            // It got its first name.
            self.deletions.released_unnamed();
        }
        if open.is_unlinked() {
            let deletion = self.deletions.begin();
            if was_expected {
                self.deletions.released_unnamed();
            }
            if !self.open_inodes.begin_deletion(open.place()) {
                return;
            }
            let evicted = self.evict(open.place());
            self.open_inodes.end_deletion(open.place());
            match evicted {
                Ok(()) => deletion.end(),
                Err(error) => {
                    let place = open.place();
                    tracing::warn!("{place:?}: the next mount has to delete this unlinked inode: {error}");
                }
            }
        }
    }
}

impl FsInfo {
    /// Notes that the last name of an inode was removed. The inode is deleted with its last handle.
    pub fn unlinked(self: &Arc<Self>, place: Place) {
        // Opened here too, so that exactly one handle is the last.
        let open = self.open_inode(place);
        open.set_unlinked();
        // After the mark: a thread that keeps the inode from here on sees it.
        self.keep_unnamed(&open);
        self.dirty_inodes.forget_unlinked(&open);
    }

    fn keep_unnamed(&self, open: &Arc<OpenInode>) {
        if self.kept_inodes.keep_unnamed(open) && !open.set_expected(true) {
            self.deletions.keeps_unnamed();
        }
    }

    /// Delays the deletion of the inode at `place` until [`FsInfo::release_kept`]. An inode that is
    /// being deleted already is not saved.
    pub fn keep(&self, place: Place) {
        self.kept_inodes.add(place);
        // One without names is open, because another handle delays its deletion.
        if let Some(open) = self.open_inodes.get(place)
            && open.is_unlinked()
        {
            self.keep_unnamed(&open);
        }
    }

    /// Ends the delay that [`FsInfo::keep`] began.
    pub fn release_kept(&self, place: Place) {
        let RemovedKeeper::Last(unnamed) = self.kept_inodes.remove(place) else { return };
        if let Some(open) = unnamed {
            // Its deletion stays expected until it begins. Another thread may have it open for a
            // moment, or the caller itself.
            self.deletions.lets_go();
            self.dirty_inodes.forget_unlinked(&open);
        }
        if self.kept_inodes.end_use(place) {
            self.clean_if_held(place.tree);
        }
    }

    /// Cleans about four thousand extents of a deleted subvolume, and returns whether more may be
    /// left. Flushes files where it finds no space.
    ///
    /// # Errors
    /// As [`clean_step`].
    pub fn clean_subvolumes_step(&self) -> Result<bool> {
        let transactions = self.transactions()?;
        self.retry_after_flushes(|| clean_step(transactions, |tree| self.is_in_use(tree)))
    }

    /// Returns whether inodes of a subvolume are open or kept.
    pub fn is_in_use(&self, tree: TreeId) -> bool {
        self.open_inodes.has_uses(tree) || self.kept_inodes.has_uses(tree)
    }

    /// Has the cleaner drop a subvolume that was deleted while its inodes were in use, once none
    /// is.
    fn clean_if_held(&self, tree: TreeId) {
        let live = self.trees.transactions().and_then(|transactions| transactions.live().opened(tree));
        if live.is_some_and(|live| live.is_held()) {
            self.background.clean();
        }
    }

    /// Notes that a subvolume was deleted. Data of its files that only memory has is dropped with
    /// their last handles.
    pub fn subvolume_was_deleted(&self, tree: TreeId) {
        for open in self.open_inodes.of_tree(tree) {
            open.set_deleted();
            self.dirty_inodes.forget_unlinked(&open);
        }
    }

    /// Deletes an inode that has no name: its data in steps, then itself.
    pub(crate) fn evict(&self, place: Place) -> Result<()> {
        let has_extents = {
            let subvolume = match self.trees.subvolume_in_use(place.tree) {
                // The inode was deleted with its subvolume.
                Err(error) if error.kind() == ErrorKind::Path(PathError::NoSubvolume) => return Ok(()),
                subvolume => subvolume?,
            };
            let Some(item) = inode::inode(&subvolume.tree, place.inode)? else { return Ok(()) };
            if item.nlink > 0 {
                return Ok(());
            }
            matches!(item.kind(), Some(FileKind::Regular | FileKind::Symlink))
                && evict::has_extents(&subvolume.tree, place.inode)?
        };
        self.delete_unnamed(place, has_extents)
    }

    /// Deletes an inode without a name: its data, if it has any, in steps, then itself.
    fn delete_unnamed(&self, place: Place, has_extents: bool) -> Result<()> {
        if has_extents {
            loop {
                let progress = self.change_to_delete(EXTENT_ITEMS, |handle| {
                    self.edit_data_of_deleted(handle, place, |context, file| {
                        shrink(context, file, 0, STEP_EXTENTS)
                    })
                })?;
                if progress == Progress::Done {
                    break;
                }
            }
        }
        self.change_to_delete(NAME_ITEMS, |handle| {
            let live = handle.live_tree(place.tree)?;
            evict::evict(&mut live.edit(handle), place.inode)
        })
    }

    /// Runs a change that deletes what has no name. Unlike [`FsInfo::change`] it asks for no
    /// counters of the subvolume, which a caller may be about to make.
    fn change_to_delete<R>(&self, items: u64, mut change: impl FnMut(&Handle<'_>) -> Result<R>) -> Result<R> {
        let transactions = self.transactions()?;
        self.retry_after_flushes(|| transactions.change(Start::items(items).steal(), &mut change))
    }

    /// Deletes the files through which a balance of the kernel moved data when it was cut short.
    /// The data that subvolumes refer to stays.
    pub(crate) fn clean_relocated_data(&self) -> Result<()> {
        let tree = objectid::DATA_RELOC_TREE;
        let transactions = Arc::clone(self.transactions()?);
        let mut from = InodeNumber(0);
        loop {
            let now = transactions.live().get(tree)?.tree();
            let Some(orphan) = evict::next_orphan(&now, from)? else { return Ok(()) };
            from = InodeNumber(orphan.inode.0.saturating_add(1));
            if let OrphanState::Unnamed(_) = orphan.state {
                let has_extents = evict::has_extents(&now, orphan.inode)?;
                drop(now);
                self.delete_unnamed(Place { tree, inode: orphan.inode }, has_extents)?;
            }
        }
    }

    /// Deletes the inodes without a name that earlier mounts left.
    pub(super) fn clean_orphans(&self, tree: TreeId) -> Result<()> {
        let transactions = Arc::clone(self.transactions()?);
        let mut from = InodeNumber(0);
        loop {
            let now = transactions.live().get(tree)?.tree();
            let Some(orphan) = evict::next_orphan(&now, from)? else { return Ok(()) };
            drop(now);
            from = InodeNumber(orphan.inode.0.saturating_add(1));
            match orphan.state {
                OrphanState::Unnamed(_) => self.evict(Place { tree, inode: orphan.inode })?,
                OrphanState::Named(_) | OrphanState::Gone => {
                    if let OrphanState::Named(item) = orphan.state
                        && !item.flags.contains(InodeFlags::VERITY)
                    {
                        self.drop_verity(Place { tree, inode: orphan.inode })?;
                    }
                    self.change_to_delete(NAME_ITEMS, |handle| {
                        let live = handle.live_tree(tree)?;
                        evict::forget_orphan(&mut live.edit(handle), orphan.inode).map(drop)
                    })?;
                }
            }
        }
    }
}
