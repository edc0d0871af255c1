//! The memory that an open file system uses, by kind.
//!
//! Owns [`MemoryUse`] and [`FileSystem::memory_use`], which read the counters of the caches.
//!
//! **Locks:** those of the counters, one after the other.

use crate::file_system::FileSystem;

/// Bytes of memory that a file system uses at a moment, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryUse {
    /// Pages of the page cache and their descriptions.
    pub pages: u64,
    /// The dirty pages among `pages`.
    pub dirty_pages: u64,
    /// Clean tree blocks.
    pub tree_blocks: u64,
    /// Tree blocks changed by the running transaction, and those that a commit has yet to write.
    pub dirty_tree_blocks: u64,
    /// Delayed refs: changes of references that are not in the extent tree yet.
    pub delayed_refs: u64,
    /// Cached checksums of data.
    pub checksums: u64,
    /// Ordered extents: data written whose extents are not in the trees yet.
    pub ordered_extents: u64,
}

impl FileSystem {
    /// Returns the memory in use.
    #[cfg(feature = "unstable")]
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
