//! B-trees: reading blocks, keeping them, and walking trees of them.
//!
//! A tree is its root and blocks are immutable and shared, so a reader clones the root and walks
//! without waiting for anybody who changes the tree (design rule 7). The only locks below are those
//! of the cache's shards, held for one hash-map operation at a time.

mod block;
mod cache;
mod cursor;
mod forest;
mod tree;

pub(crate) use block::TreeBlock;
pub(crate) use cursor::Cursor;
pub use forest::CacheStatistics;
pub(crate) use forest::Forest;
pub(crate) use tree::{Item, RootPointer, Tree};
