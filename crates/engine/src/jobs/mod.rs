//! Jobs on a whole file system that is open, and the use of its space.

pub mod balance;
mod balance_item;
pub mod data_extents;
pub mod devices;
pub mod extent_copies;
mod extent_gathering;
pub mod extent_owners;
mod extent_recoding;
pub mod inode_paths;
pub mod relief;
pub mod relocation;
pub mod replace;
pub mod resize;
pub mod scrub;
pub mod shared_defragment;
pub mod shared_extents;
mod shared_recompress;
mod shared_runs;
pub mod signature;
pub mod statfs;
pub mod trim;
pub mod usage;
