//! The trees of one file's data, for the first phase of a change.
//!
//! Owns [`DataTrees`]. The caller holds the file's data lock, so that the file stays as it is until
//! the second phase. Locks: a commit's locks, where there is no space.

use crate::btree::LiveTree;
use crate::data::clone::CloneSource;
use crate::data::data_context::DataContext;
use crate::data::file_edit::FileEdit;
use crate::data::space::DataAllocator;
use crate::errors::{Error, PathError, Result};
use crate::file::fs_info::FsInfo;
use crate::namespace::Place;
use papilio_format::objectid;
use std::sync::Arc;

/// The trees that hold one file and its checksums.
pub(super) struct DataTrees<'a> {
    fs: &'a FsInfo,
    place: Place,
    subvolume: Arc<LiveTree>,
    checksums: Arc<LiveTree>,
}

impl FsInfo {
    /// Returns the trees of the file at `place`.
    ///
    /// # Errors
    /// [`PathError::NoSubvolume`] for a deleted one, or a tree block that cannot be read.
    pub(super) fn data_trees(&self, place: Place) -> Result<DataTrees<'_>> {
        let live = self.transactions()?.live();
        let subvolume = live.get(place.tree)?;
        if !subvolume.is_usable() {
            return Err(Error::path(format!("subvolume {}", place.tree).as_bytes(), PathError::NoSubvolume));
        }
        Ok(DataTrees { fs: self, place, subvolume, checksums: live.get(objectid::CSUM_TREE)? })
    }
}

impl DataTrees<'_> {
    /// Returns the context of the first phase. New extents come from `allocator`.
    pub(super) fn context<'a>(&'a self, allocator: &'a dyn DataAllocator) -> DataContext<'a> {
        DataContext {
            allocator,
            volume: self.fs.volume(),
            checksum_tree: &self.checksums,
            rules: self.fs.write_rules(),
        }
    }

    /// Runs the first phase, and again where it found no space.
    ///
    /// # Errors
    /// An error of `prepare`.
    pub(super) fn prepare<P>(&self, mut prepare: impl FnMut(&FileEdit<'_>) -> Result<P>) -> Result<P> {
        let transactions = self.fs.transactions()?;
        self.fs.retry_for_space(|| {
            // Pinned before the trees' roots are taken, so that their blocks and the data stay in
            // place.
            let _pin = transactions.pin();
            prepare(&self.fs.file_edit(&self.subvolume, self.place.inode)?)
        })
    }

    /// Returns the file as the source of a clone.
    ///
    /// # Errors
    /// An inode that cannot be read.
    pub(super) fn clone_source(&self) -> Result<CloneSource<'_>> {
        let file = self.fs.file_edit(&self.subvolume, self.place.inode)?;
        Ok(CloneSource { tree: &self.subvolume, inode: file.inode, item: file.item })
    }
}
