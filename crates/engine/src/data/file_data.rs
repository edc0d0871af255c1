//! A file whose data is read.
//!
//! Owns [`FileData`], [`FileTree`] and [`ExtentLookup`], which finds the extents that a request
//! covers: first the ordered extents, then those in the cache, then those in the tree.
//!
//! Locks: none held between calls. Kernel counterpart: `btrfs_get_extent` (`fs/btrfs/inode.c`).

use crate::btree::Tree;
use crate::data::extent_cache::ExtentCache;
use crate::data::extent_map::{Extent, FileExtents};
use crate::data::ordered_extents::{OrderedAt, OrderedExtents};
use crate::errors::{FilePlace, Result};
use crate::space::RangeSet;
use crate::transaction::LazyTree;
use papilio_format::items::inode::InodeFlags;
use papilio_format::{FileOffset, InodeNumber, TreeId};
use papilio_locks::RwLock;

/// The tree of the file's subvolume.
#[derive(Clone, Copy, Debug)]
pub enum FileTree<'a> {
    /// A version that the caller took.
    Taken(&'a Tree),
    /// The current version, taken when a look-up is not cached. The caller keeps the file's extents
    /// from changing.
    Live(&'a LazyTree<'a>),
}

impl<'a> FileTree<'a> {
    fn id(self) -> TreeId {
        match self {
            Self::Taken(tree) => tree.id(),
            Self::Live(tree) => tree.live().id(),
        }
    }

    /// Returns the tree; takes it now, if it is the current version.
    pub fn get(self) -> &'a Tree {
        match self {
            Self::Taken(tree) => tree,
            Self::Live(tree) => tree.get(),
        }
    }
}

impl<'a> From<&'a Tree> for FileTree<'a> {
    fn from(tree: &'a Tree) -> Self {
        Self::Taken(tree)
    }
}

/// A file whose data is read.
#[derive(Clone, Copy, Debug)]
pub struct FileData<'a> {
    /// The tree of the file's subvolume.
    pub tree: FileTree<'a>,
    /// The inode number.
    pub inode: InodeNumber,
    /// The inode flags. Data with `NODATASUM` is not verified.
    pub flags: InodeFlags,
    /// The size in bytes.
    pub size: u64,
    /// Preallocated ranges that hold data; the tree does not say so yet.
    pub written: Option<&'a RwLock<RangeSet>>,
    /// The cache of the file's extents.
    pub extent_cache: Option<&'a ExtentCache>,
    /// The file's ordered extents, if there are any. The range that is read is locked.
    pub ordered: Option<&'a OrderedExtents>,
}

impl FileData<'_> {
    pub(super) fn place(&self, offset: u64) -> FilePlace {
        FilePlace { tree: self.tree.id(), inode: self.inode, offset: FileOffset(offset) }
    }
}

/// The extents of one request, in order.
pub(super) struct ExtentLookup<'a> {
    file: &'a FileData<'a>,
    sector_size: u32,
    /// The walk over the tree, and the file offset that it has reached.
    walk: Option<(FileExtents<'a>, u64)>,
    /// The epoch of the cache from before the tree was taken.
    epoch: u64,
}

impl<'a> ExtentLookup<'a> {
    /// Starts a request on `file`.
    pub(super) fn new(file: &'a FileData<'a>, sector_size: u32) -> Self {
        // Read before the tree's root is taken: see `ExtentCache::epoch`.
        let epoch = file.extent_cache.map_or(0, ExtentCache::epoch);
        Self { file, sector_size, walk: None, epoch }
    }

    /// Returns the extent that contains byte `at`, cut to start there. The request ends at `end`.
    pub(super) fn at(&mut self, at: u64, end: u64) -> Result<Extent> {
        let Some(ordered) = self.file.ordered else { return self.in_tree(at, end) };
        match ordered.at(at) {
            OrderedAt::Here(extent) => Ok(extent),
            OrderedAt::Until(next) => {
                let extent = self.in_tree(at, end)?;
                Ok(Extent { end: extent.end.min(FileOffset(next)), ..extent })
            }
        }
    }

    fn in_tree(&mut self, at: u64, end: u64) -> Result<Extent> {
        if let Some(extent) = self.file.extent_cache.and_then(|cache| cache.get(at)) {
            return Ok(extent);
        }
        let mut walk = match self.walk.take() {
            Some((walk, next)) if next == at => walk,
            _ => FileExtents::whole(
                self.file.tree.get(),
                self.file.inode,
                self.sector_size,
                FileOffset(at),
                FileOffset(end),
            ),
        };
        let extent = walk.next().expect("extents cover the whole range")?;
        if let Some(cache) = self.file.extent_cache {
            cache.insert(&extent, at, self.epoch);
        }
        self.walk = Some((walk, extent.end.0));
        Ok(extent.from(at))
    }
}
