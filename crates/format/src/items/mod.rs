//! The items that leaves hold, one file for each kind.
//!
//! Every structure has a `parse` and a `to_bytes` that invert one another; what the values may be
//! is checked by `validate` functions, which [`crate::tree_check`] calls for a whole leaf.

pub mod block_group;
pub mod chunk;
pub mod csum;
pub mod device;
pub mod dir_item;
pub mod dir_log;
pub mod file_extent;
pub mod inode;
pub mod inode_ref;
pub mod orphan;
pub mod packed;
pub mod root;
pub mod root_ref;
pub mod verity;
