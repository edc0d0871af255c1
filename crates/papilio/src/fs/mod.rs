//! The public API: a file system, its inodes, files and directories.
//!
//! The methods here translate and check. What an open file does is in [`crate::file`], opening in [`crate::mount`].

mod as_path;
mod check;
mod checksums;
#[cfg(test)]
mod chunks_beside_commits;
#[cfg(test)]
mod compression_against_kernel;
#[cfg(test)]
mod data_against_kernel;
mod dir;
mod file;
mod file_cursor;
mod file_system;
mod file_write;
mod inode;
mod inspect;
mod io_queue;
#[cfg(all(test, feature = "lock-order"))]
mod lock_order;
mod memory_use;
mod metadata;
mod names;
mod names_by_path;
mod paths;
mod resize;
#[cfg(test)]
mod space_against_kernel;
mod subvolumes;
mod sync;
mod trim;
mod walk;

pub use as_path::AsPath;
pub use check::{check, check_devices};
pub use dir::{DirEntry, Entries};
pub use file::File;
pub use file_cursor::FileCursor;
pub use file_system::FileSystem;
pub use inode::{Inode, KeptInode};
pub use io_queue::{IoCompletion, IoOperation, IoQueue, IoRequest};
pub use memory_use::MemoryUse;
pub use metadata::Metadata;
pub use walk::{Walk, WalkEntry};
