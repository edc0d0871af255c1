//! Finding a file system without its superblocks, chunk tree or root tree.
//!
//! - `block_scan`: reads whole devices and lists the tree blocks on them
//! - `candidates`: the superblocks on a device, good or torn
//! - `chunks`: the chunk map, from chunk items, device extents, or the places of blocks
//! - `striped`: the order of the stripes of a striped chunk
//! - `tree_roots`: the root trees among the blocks, and which of them are whole
//! - `root_choice`: which of them is the last one
//! - `deleted`: the files that only older root trees have
//! - `rebuild`: a superblock in memory that leads to all of it
//! - `super_recover`, `select_super`: writing superblocks
//!
//! Nothing here writes, except for the two that say so.

pub mod block_scan;
pub(crate) mod candidates;
pub mod chunks;
pub mod deleted;
pub mod deleted_subvolumes;
pub mod rebuild;
pub mod root_choice;
mod striped;
pub mod super_recover;
pub mod tree_roots;
