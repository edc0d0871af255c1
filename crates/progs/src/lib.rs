//! Jobs on a Btrfs file system that nobody has mounted: mkfs, check, repair, rescue, metadata
//! dumps, changes of superblocks, and views of the trees.
//!
//! This crate promises nothing to the outside. Programs use the crate `papilio`, which exports the
//! public types that are defined here.

#![forbid(unsafe_code)]
// Engineers of this project build the documentation with private items.
#![allow(rustdoc::private_intra_doc_links)]

pub mod archive;
pub mod census;
pub mod check;
mod descent;
pub mod dump;
pub mod find_filesystems;
pub mod image;
pub mod mkfs;
pub mod repair;
pub mod rescue_clone;
pub mod salvage;
pub mod scan;
pub mod space_sharing;
pub mod superblock_copy;
pub mod tree_stats;
pub mod tune;
