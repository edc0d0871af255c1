//! What an open file system keeps in memory, by kind.
//!
//! Owns [`MemoryUse`] and [`FileSystem::memory_use`], which ask those who keep count. Locks: those of the counts, one
//! after the other.

use crate::fs::file_system::FileSystem;

/// Bytes of memory that a file system takes just now, by kind, as it counts them itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryUse {
    /// Pages of the page cache, and what describes them.
    pub pages: u64,
    /// Pages that are not written back yet, among those.
    pub dirty_pages: u64,
    /// Tree blocks that are as on disk.
    pub tree_blocks: u64,
    /// Tree blocks that the running transaction changed, and those that a commit has not written yet.
    pub dirty_tree_blocks: u64,
    /// What extents gained and lost since the last commit, and the extent tree was not told of.
    pub delayed_refs: u64,
    /// Checksums of what was read.
    pub checksums: u64,
    /// What was written that the trees were not told of.
    pub ordered_extents: u64,
}

impl FileSystem {
    /// What it keeps in memory.
    pub fn memory_use(&self) -> MemoryUse {
        let info = &self.info;
        let pages = info.page_cache.as_ref();
        let (dirty, refs) = info.trees.transactions().map_or((0, 0), |transactions| transactions.memory());
        let (checksums, ordered_extents) = info.open_inodes.memory();
        MemoryUse {
            pages: pages.map_or(0, |cache| cache.bytes()),
            dirty_pages: pages.map_or(0, |cache| cache.dirty_bytes()),
            tree_blocks: info.trees.forest().statistics().bytes as u64,
            dirty_tree_blocks: dirty,
            delayed_refs: refs,
            checksums: checksums as u64,
            ordered_extents: ordered_extents as u64,
        }
    }
}
