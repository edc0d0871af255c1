//! The Btrfs on-disk format: bytes to types and back, validated, without any I/O.
//!
//! Every structure that a 6.18 kernel may have written has a type here. Structures come as
//! parse/serialise pairs whose sizes are asserted at compile time. Validation is as strict as the
//! kernel's tree checker, so upper layers may trust every field of a checked block.

#![forbid(unsafe_code)]

mod block_check;
pub mod checksum;
mod disk;
pub mod disk_archive;
mod error;
pub mod features;
mod geometry;
mod incompatible;
mod item_context;
pub mod items;
pub mod key;
pub mod metadump;
pub mod node;
pub mod objectid;
mod parse;
pub mod send_stream;
pub mod superblock;
mod tree_check;
pub mod units;

pub use checksum::{Checksum, ChecksumType};
pub use disk::OnDisk;
pub use error::Corrupt;
pub use geometry::Geometry;
pub use incompatible::Incompatible;
pub use key::{ItemType, Key};
pub use node::{Node, NodeExpectation};
pub use superblock::{Superblock, SuperblockError};
pub use units::{DeviceId, FileOffset, Generation, InodeNumber, LogicalAddress, PhysicalAddress, TreeId};
pub use uuid::Uuid;
