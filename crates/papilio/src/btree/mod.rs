//! B-trees: reading blocks, keeping them, walking trees of them, and changing them in memory.
//!
//! A tree is its root and its blocks are shared, so a reader clones the root and walks without
//! waiting for anybody who changes the tree (design rule 7). Readers take the locks of the cache's
//! shards and a tree's root for one operation on a hash map or one clone at a time.

mod allocator;
mod block;
mod block_bytes;
mod cache;
mod change;
mod cursor;
mod dirty;
mod edit;
mod forest;
mod live;
#[cfg(test)]
mod live_tests;
mod push;
#[cfg(test)]
pub(crate) mod testing;
mod tree;

pub(crate) use allocator::NodeAllocator;
pub(crate) use block::TreeBlock;
pub(crate) use cursor::Cursor;
pub(crate) use dirty::{dirty_blocks, dirty_blocks_since, sealed};
pub(crate) use edit::BlockIdentity;
pub use forest::CacheStatistics;
pub(crate) use forest::Forest;
pub(crate) use live::{Change, LiveTree, RootRecord, TreeEditor, empty_root};
pub(crate) use tree::{Item, ReadPin, RootPointer, Tree};
