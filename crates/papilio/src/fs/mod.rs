//! The public API: a file system, its inodes, files and directories.

mod buffered;
mod change;
mod check;
mod checksums;
#[cfg(test)]
mod chunks_beside_commits;
mod committer;
#[cfg(test)]
mod compression_against_kernel;
#[cfg(test)]
mod data_against_kernel;
mod data_lock;
mod dir;
mod file;
mod file_system;
mod file_write;
mod flush;
mod fsync;
mod in_place;
mod inode;
mod inspect;
mod io_queue;
mod known_item;
#[cfg(all(test, feature = "lock-order"))]
mod lock_order;
mod memory_use;
mod metadata;
mod mount;
mod names;
mod open_inodes;
mod ordered_flush;
mod ordered_write;
mod populate;
mod resize;
#[cfg(test)]
mod space_against_kernel;
mod subvolumes;
mod sync;
mod trim;
mod walk;

pub use check::{check, check_devices};
pub use dir::{DirEntry, Entries};
pub use file::{File, FileReader};
pub use file_system::FileSystem;
pub use inode::Inode;
pub use io_queue::{IoCompletion, IoOperation, IoQueue, IoRequest};
pub use memory_use::MemoryUse;
pub use metadata::Metadata;
pub use open_inodes::KeptInode;
pub use populate::{Existing, Manifest, ManifestEntry, NewSubvolume, Populate, PopulateObserver, Populated};
pub use walk::{Walk, WalkEntry};
