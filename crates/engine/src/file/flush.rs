//! Flushing: publishing the changes of open files that only memory and device have.
//!
//! Owns the flush of one file, of a subvolume's files, and of all files in
//! [`DirtyInodes`](super::dirty_inodes). A flush does most of its work beside readers and writers:
//! it publishes ordered extents ([`super::ordered_flush`]) and writes pages back
//! ([`super::write_back`]). Then it locks the file's data exclusively for the rest.
//!
//! Invariants:
//! - A thread that changes a file's extents, size or times in the tree flushes the file first, in
//!   the same exclusive hold of its data lock. The two modules above are the exceptions.
//! - A commit of the transaction by itself flushes nothing. A caller that promises durable data
//!   (`sync`, `fsync`, a snapshot of the subvolume, closing) flushes before it commits.
//!
//! Locks, in this order: `sharing` (shared), a file's data lock, the transaction's locks. The table
//! of dirty inodes is a leaf. Kernel counterparts: `btrfs_start_delalloc_roots`
//! (`fs/btrfs/inode.c`), `btrfs_writepages` (`fs/btrfs/extent_io.c`).

use crate::data::convert::{STEP_RANGES, convert_step};
use crate::data::progress::Progress;
use crate::errors::{Error, ErrorKind, PathError, Result};
use crate::file::change::EXTENT_ITEMS;
use crate::file::fs_info::FsInfo;
use crate::file::open_inode::OpenInode;
use crate::file::write_back::PagesLeft;
use crate::namespace::Place;
use crate::transaction::Start;
use crate::workers::each_at_once;
use papilio_format::items::inode::InodeItem;
use papilio_format::{Generation, TreeId};
use std::cell::Cell;
use std::sync::Arc;

/// Files that a flush of all writes back at once.
const FLUSHERS: usize = 16;

/// The changes that a flush has to publish with the data lock held exclusively.
#[derive(Clone, Copy, Debug)]
struct Rest {
    /// Whether the ordered extents that the caller has to flush were published.
    published: bool,
    pages: PagesLeft,
}

/// The inode items that [`OpenInode::write_back_items`] writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    /// With the size in memory.
    OfMemory,
    /// With the size that the tree has: pages that have the rest are not written back yet.
    OfTree,
}

impl OpenInode {
    /// Publishes all changes of the file that only memory and device have.
    pub(super) fn flush(&self, fs: &FsInfo) -> Result<()> {
        if !self.is_dirty() {
            return Ok(());
        }
        let rest = self.flush_beside(fs)?;
        let epoch = fs.sharing.read();
        let _exclusive = self.data.write();
        self.flush_rest(fs, *epoch, rest)
    }

    /// Does as much of a flush as is possible beside readers and writers. The caller holds none of
    /// the file's locks.
    fn flush_beside(&self, fs: &FsInfo) -> Result<Rest> {
        // In this order: pages become ordered extents.
        let pages = self.write_back_shared(fs)?;
        Ok(Rest { published: self.publish_ordered(fs)?, pages })
    }

    /// Flushes what [`OpenInode::flush_beside`] has left. Changes that were made since stay where
    /// flushing them, too, would take long. The caller holds the locks that
    /// [`OpenInode::flush_locked`] needs.
    fn flush_rest(&self, fs: &FsInfo, epoch: u64, rest: Rest) -> Result<()> {
        let is_dirty = || self.mapping.as_ref().is_some_and(|mapping| mapping.has_dirty(0..u64::MAX));
        let pages = rest.pages.range(self).filter(|_| rest.published);
        let Some(pages) = pages.filter(|_| is_dirty() || self.ordered.is_many()) else {
            return self.flush_locked(fs, epoch);
        };
        let flushed = match self.mapping.as_ref().is_some_and(|mapping| mapping.has_dirty(pages.clone())) {
            // Dirty pages are newer than ordered extents, which must be published before them.
            true => {
                let published = self.publish_ordered_exclusively(fs);
                published.and_then(|()| self.write_back_pages(fs, pages, epoch))
            }
            false => Ok(()),
        };
        let size = if is_dirty() { Size::OfTree } else { Size::OfMemory };
        match flushed.and_then(|()| self.write_back_items(fs, size)) {
            // The file was deleted with its subvolume.
            Err(error) if error.kind() == ErrorKind::Path(PathError::NoSubvolume) => Ok(()),
            result => result,
        }
    }

    /// Flushes a file. The caller holds its data lock exclusively, and the lock on `sharing`,
    /// shared or exclusively.
    pub(super) fn flush_locked(&self, fs: &FsInfo, epoch: u64) -> Result<()> {
        if !self.is_dirty() {
            return Ok(());
        }
        // In this order: dirty pages are newer than ordered extents.
        let written = self.publish_ordered_exclusively(fs);
        let written = written.and_then(|()| self.write_back_pages(fs, 0..u64::MAX, epoch));
        let written = written.and_then(|()| self.write_back_items(fs, Size::OfMemory));
        match written {
            // The file was deleted with its subvolume.
            Err(error) if error.kind() == ErrorKind::Path(PathError::NoSubvolume) => {}
            result => result?,
        }
        self.set_clean();
        fs.dirty_inodes.remove(self.place());
        Ok(())
    }

    /// Returns whether the tree has the inode item with all changes; after writing data back it
    /// mostly has.
    fn has_all(&self, fs: &FsInfo, size: Size) -> bool {
        let item = fs.transactions().and_then(|transactions| {
            let live = transactions.live().get(self.place().tree)?;
            self.item(&live)
        });
        // An error of reading it shows again when it is written.
        item.is_ok_and(|item| self.as_flushed(item, size) == item)
    }

    /// Returns `item` with the changes that a flush writes.
    fn as_flushed(&self, item: InodeItem, size: Size) -> InodeItem {
        let seen = self.as_seen(item);
        match size {
            Size::OfMemory => seen,
            Size::OfTree => InodeItem { size: item.size, ..seen },
        }
    }

    /// Publishes written preallocated ranges, the size and the times.
    fn write_back_items(&self, fs: &FsInfo, size: Size) -> Result<()> {
        let place = self.place();
        let written = self.in_place.written().read().clone();
        if written.is_empty() && self.has_all(fs, size) {
            return Ok(());
        }
        let touched = self.touched();
        let mut from = 0;
        loop {
            let items = EXTENT_ITEMS + written.len().min(STEP_RANGES) as u64;
            let (progress, next) =
                fs.change(place.tree, Start::items(items).steal().accepted(), |handle, _| {
                    fs.edit_data(handle, place, |context, file| {
                        let item = self.as_flushed(context.stamped(file), size);
                        if written.is_empty() && touched.is_none() {
                            return Ok((Progress::Done, 0));
                        }
                        for range in written.iter() {
                            self.note_changed(&fs.changed_files, context.space.generation(), &range);
                        }
                        convert_step(context, file, &written, from, item)
                    })
                })?;
            if progress == Progress::Done {
                return Ok(());
            }
            from = next;
        }
    }
}

thread_local! {
    /// Whether this thread flushes files to free space.
    static FREEING: Cell<bool> = const { Cell::new(false) };
}

impl Rest {
    /// Everything is left.
    const ALL: Self = Self { published: false, pages: PagesLeft::Unknown };
}

impl FsInfo {
    /// Flushes all files, several at once where devices take their time. After an error in one file
    /// the others are flushed nevertheless.
    pub(crate) fn flush_all(&self) -> Result<()> {
        let files = self.dirty_inodes.of_tree(None);
        let threads = if self.volume().waits() { FLUSHERS } else { 1 };
        let flush = |open: &Arc<OpenInode>| {
            let flush = || {
                let rest = if open.is_unlinked() { Rest::ALL } else { open.flush_beside(self)? };
                let epoch = self.sharing.read();
                self.flush_or_forget(open, *epoch, rest)
            };
            flush().inspect_err(|error: &Error| {
                let Place { tree, inode } = open.place();
                tracing::error!("subvolume {tree}, inode {inode}: data is not written back: {error}");
            })
        };
        each_at_once(&files, threads, flush).into_iter().collect()
    }

    /// Makes everything that changed before the call durable: flushes all files and commits, also
    /// where a file could not be flushed.
    pub fn sync(&self) -> Result<()> {
        let transactions = self.transactions()?;
        let flushed = self.flush_all();
        transactions.commit()?;
        flushed
    }

    /// Publishes all ordered extents and commits. Without the first step, data of calls that have
    /// returned would not be in the committed trees.
    pub fn commit(&self) -> Result<()> {
        self.write_back_all_ordered()?;
        self.transactions()?.commit()
    }

    /// As [`FsInfo::commit`], unless transaction `generation` is committed already.
    pub(crate) fn commit_transaction(&self, generation: Generation) -> Result<()> {
        self.write_back_all_ordered()?;
        self.transactions()?.commit_transaction(generation)
    }

    fn write_back_all_ordered(&self) -> Result<()> {
        for open in self.dirty_inodes.of_tree(None) {
            open.publish_all_ordered(self)?;
        }
        Ok(())
    }

    /// Frees space for a change that found none: flushes files that no thread has locked. This
    /// returns the metadata that is reserved for their changes, far more than these take, and a
    /// commit then frees the extents that were replaced. Returns whether there were any. The caller
    /// may hold data locks.
    ///
    /// One thread at a time does this. The others wait for it: it waits for no lock of a file.
    pub(super) fn free_by_flushing(&self) -> bool {
        if FREEING.get() {
            return false;
        }
        let Some(_one) = self.dirty_inodes.freeing.try_lock() else {
            drop(self.dirty_inodes.freeing.lock());
            return true;
        };
        FREEING.set(true);
        let mut any = false;
        // While a snapshot is made, pages stay where they are.
        let epoch = self.sharing.try_read();
        for open in self.dirty_inodes.of_tree(None) {
            // Only the table and this thread have a reference: no handle can read the file again.
            if open.is_unlinked() && Arc::strong_count(&open) == 2 {
                self.dirty_inodes.forget_unlinked(&open);
            } else if let Some(_exclusive) = open.data.try_write() {
                any |= match &epoch {
                    Some(epoch) => open.flush_locked(self, **epoch).is_ok(),
                    None => !open.ordered.is_empty() && open.publish_ordered_exclusively(self).is_ok(),
                };
            }
        }
        FREEING.set(false);
        any
    }

    /// Flushes the files of a subvolume. The caller holds `sharing`, so that nothing is shared or
    /// overwritten in place meanwhile.
    pub fn flush_tree(&self, tree: TreeId, epoch: u64) -> Result<()> {
        for open in self.dirty_inodes.of_tree(Some(tree)) {
            self.flush_or_forget(&open, epoch, Rest::ALL)?;
        }
        Ok(())
    }

    /// Publishes the ordered extents of those files of a subvolume that have many, and writes dirty
    /// pages back, while other threads write. A later flush that blocks writers then has less to
    /// do.
    pub fn flush_tree_beside(&self, tree: TreeId) -> Result<()> {
        for open in self.dirty_inodes.of_tree(Some(tree)) {
            if !open.is_unlinked() {
                open.prepare_exclusive(self)?;
            }
        }
        Ok(())
    }

    fn flush_or_forget(&self, open: &Arc<OpenInode>, epoch: u64, rest: Rest) -> Result<()> {
        let _exclusive = open.data.write();
        // Only the table and the caller have a reference: no handle can read the file again.
        if open.is_unlinked() && Arc::strong_count(open) == 2 {
            self.dirty_inodes.remove(open.place());
            return Ok(());
        }
        open.flush_rest(self, epoch, rest)
    }

    /// Flushes the file at `place`, if it has changes in memory.
    pub fn flush_place(&self, place: Place) -> Result<()> {
        match self.dirty_inodes.get(place) {
            Some(open) => open.flush(self),
            None => Ok(()),
        }
    }
}
