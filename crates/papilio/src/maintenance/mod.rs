//! Operations on a whole file system: making and checking it, and reporting the use of its space,
//! the structure of its trees and the content of its superblocks.

pub(crate) mod census;
pub(crate) mod check;
pub(crate) mod dump;
mod extent_copies;
pub(crate) mod extent_owners;
pub(crate) mod image;
mod inode_paths;
pub(crate) mod mkfs;
pub(crate) mod relocation;
pub(crate) mod repair;
pub(crate) mod replace;
pub(crate) mod rescue_clone;
pub(crate) mod salvage;
pub(crate) mod scan;
pub(crate) mod scrub;
pub(crate) mod shared_extents;
pub(crate) mod statfs;
pub(crate) mod superblock_copy;
pub(crate) mod tree_stats;
pub(crate) mod tune;
pub(crate) mod usage;
