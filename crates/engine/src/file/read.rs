//! Reading an open file's data.
//!
//! Owns [`OpenFile::read_at`], which chooses between the page cache ([`super::buffered`]) and the
//! device, and the read from trees and device that both use.
//!
//! Locks: the file's data lock (shared), then the range that is read where the file has ordered
//! extents. Kernel counterparts: `btrfs_file_read_iter`, `btrfs_direct_read` (`fs/btrfs/file.c`,
//! `fs/btrfs/direct-io.c`).

use crate::btree::LiveTree;
use crate::data::ordered_extents::OrderedExtents;
use crate::data::{FileData, FileTree};
use crate::errors::{Error, PathError, Result};
use crate::file::open_file::OpenFile;
use crate::transaction::LazyTree;
use papilio_format::FileOffset;
use std::ops::Range;

impl OpenFile {
    /// Reads from byte `offset` on and returns the number of bytes: fewer than fit only at the end
    /// of the file.
    ///
    /// # Errors
    /// [`Error::DataChecksum`] where no copy is good; an error of the device; an invalid extent.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        if let Some(mapping) = &self.open.mapping {
            if !self.direct {
                return self.read_buffered(mapping, buffer, offset);
            }
            let range = offset..offset.saturating_add(buffer.len() as u64);
            // The hole before dirty pages that extend the file belongs to the file, too.
            if mapping.has_unwritten(range.clone()) || self.is_longer_in_memory(range.end)? {
                self.flush()?;
            }
        }
        let _shared = self.open.data.read();
        self.read_trees(buffer, offset)
    }

    /// Returns whether `end` is after the end of the file as the tree has it, and memory has a
    /// larger size.
    fn is_longer_in_memory(&self, end: u64) -> Result<bool> {
        let live = self.live()?;
        let in_tree = self.open.size_and_flags(live)?.size;
        Ok(end > in_tree && self.open.size(live)? > in_tree)
    }

    /// Reads from trees and device. The caller holds the data lock.
    pub(super) fn read_trees(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let ordered = Some(&self.open.ordered).filter(|ordered| !ordered.is_empty());
        let _locked = ordered.map(|ordered| ordered.lock_to_read(self.sectors(buffer.len(), offset)));
        self.fs.read_until_unmoved(|| {
            self.with_file_data(ordered, |file| self.fs.reader.read(file, FileOffset(offset), buffer))
        })
    }

    /// Runs `read` on the file as the trees, `ordered` and the caches have it. The caller holds the
    /// data lock, and a lock on the range that it reads if there are ordered extents.
    ///
    /// # Errors
    /// [`PathError::NoSubvolume`], an inode that cannot be read, or what `read` returns.
    pub(super) fn with_file_data<R>(
        &self,
        ordered: Option<&OrderedExtents>,
        read: impl FnOnce(&FileData<'_>) -> Result<R>,
    ) -> Result<R> {
        let transactions = self.fs.transactions()?;
        let live = self.live()?;
        self.check_usable(live)?;
        let inode = self.open.size_and_flags(live)?;
        let tree = LazyTree::new(transactions, live);
        let file = FileData {
            tree: FileTree::Live(&tree),
            inode: self.open.place().inode,
            flags: inode.flags,
            size: inode.size,
            written: Some(self.open.in_place.written()),
            extent_cache: Some(&self.open.extents),
            ordered,
        };
        let read = read(&file);
        // Cached extents are not pinned. The data lock keeps the file's extents in use, unless the
        // whole subvolume was dropped: then another file's data may be there already.
        self.check_usable(live)?;
        read
    }

    /// Checks that the subvolume's tree is not being dropped.
    ///
    /// # Errors
    /// [`PathError::NoSubvolume`].
    fn check_usable(&self, live: &LiveTree) -> Result<()> {
        if live.is_usable() {
            return Ok(());
        }
        let path = format!("subvolume {}", self.open.place().tree);
        Err(Error::path(path.as_bytes(), PathError::NoSubvolume))
    }

    /// Returns the whole sectors that a read of `length` bytes at `offset` covers.
    pub(super) fn sectors(&self, length: usize, offset: u64) -> Range<u64> {
        let sector = self.fs.sector_size();
        let end = offset.saturating_add(length as u64);
        offset - offset % sector..end.checked_next_multiple_of(sector).unwrap_or(u64::MAX)
    }
}
