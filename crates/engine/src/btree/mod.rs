//! B-trees: reading and caching blocks, walking trees, and changing them in memory.
//!
//! A tree is its root; blocks are shared and immutable for readers. A reader clones the root and
//! walks without waiting for writers (design rule 7). It locks the cache's shards and a tree's root
//! only for a single hash map operation or clone.

mod allocator;
mod block;
mod block_bytes;
mod block_reads;
mod cache;
mod change;
mod cursor;
mod dirty;
mod edit;
mod editor;
mod forest;
mod live;
#[cfg(test)]
mod live_tests;
mod push;
mod search;
mod since;
#[cfg(test)]
pub(crate) mod testing;
mod tree;

pub(crate) use allocator::NodeAllocator;
pub use block::TreeBlock;
pub(crate) use block_reads::without_waiting;
pub use cursor::Cursor;
pub(crate) use dirty::{dirty_blocks, dirty_blocks_since, sealed};
pub(crate) use edit::{BlockIdentity, pointer_to};
pub use editor::{Change, TreeEditor, empty_root};
pub use forest::CacheStatistics;
pub use forest::{Forest, RescueParts, SoundLeaves, StandIns};
pub use live::{LiveTree, RootRecord};
pub use tree::{Item, ReadPin, RootPointer, Tree};
