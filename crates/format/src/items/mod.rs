//! The items in leaves, one file per kind.
//!
//! Every structure has a `parse` and a `to_bytes` that invert each other. `validate` functions
//! check the values; [`crate::tree_check`] calls them for a whole leaf.

pub mod any;
pub mod back_ref;
pub mod balance;
pub mod bitmap;
pub mod block_group;
pub mod chunk;
pub mod chunk_places;
pub mod csum;
pub mod dev_replace;
pub mod device;
pub mod dir_item;
pub mod dir_log;
pub mod extent;
pub mod file_extent;
pub mod file_type;
pub mod free_space;
pub mod free_space_cache;
pub mod fsverity_descriptor;
pub mod inode;
pub mod inode_ref;
pub mod orphan;
pub mod packed;
pub mod qgroup;
pub mod raid_stripe;
pub mod root;
pub mod root_ref;
pub mod uuid_tree;
pub mod verity;

#[cfg(test)]
pub(crate) mod test_support;
