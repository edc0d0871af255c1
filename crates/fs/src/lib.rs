//! File systems, inodes, files, directories and I/O queues: the public API.
//!
//! The methods here check and translate arguments. Open files are in [`papilio_engine::file`],
//! opening and closing in [`papilio_engine::mount`], jobs on file systems that nobody has mounted
//! in `papilio_progs`. Programs use the crate `papilio`, which exports the public types.
//!
//! - `as_path`: the types that can name a path
//! - `file_system`: opening, labels and ids, lists of subvolumes
//! - `sync`: commits, closing, cleaning of deleted subvolumes
//! - `paths`: lookups by path
//! - `names_by_path`: creating, renaming and removing by path
//! - `subvolumes`: subvolumes and snapshots
//! - `inode`, `metadata`: an inode, and what is read of it
//! - `names`: creating, renaming and removing in a directory; attributes
//! - `dir`, `walk`: the entries of a directory, and of all directories below it
//! - `file`, `file_write`, `file_cursor`, `checksums`: a regular file's data
//! - `io_queue`, `io_request`, `io_driven`, `io_pool`: asynchronous requests
//! - `repair`: plans of repairs, repairs with undo
//! - `salvage`: reading what superblocks do not lead to
//! - `balance`: moving block groups
//! - `defragment`: making extents larger without unsharing them
//! - `archive`: archives of whole file systems
//! - `image_targets`: files and devices that a restore writes
//! - `check`, `inspect`, `memory_use`, `resize`, `trim`: jobs on a whole file system

#![forbid(unsafe_code)]
// Engineers of this project build the documentation with private items.
#![allow(rustdoc::private_intra_doc_links)]
// Without the feature `unstable` nothing uses the items that only it exports.
#![cfg_attr(not(feature = "unstable"), allow(dead_code, unused_imports))]

// Unit tests and their helpers use the names that the facade gives its users.
#[cfg(test)]
extern crate self as papilio;
#[cfg(test)]
pub(crate) use papilio_engine::errors::{Error, ErrorKind, PathError, Result};
#[cfg(test)]
pub(crate) use papilio_engine::options::{CompressionChoice, OpenOptions};
#[cfg(test)]
pub(crate) use papilio_engine::tuning::VerifyCompression;
#[cfg(test)]
pub(crate) use papilio_format as format;
#[cfg(test)]
pub(crate) use papilio_progs::check::{CheckOptions, CheckReport};
#[cfg(test)]
pub(crate) use papilio_progs::mkfs::{MkfsOptions, mkfs_device};

mod archive;
mod as_path;
mod balance;
mod check;
mod checksums;
#[cfg(test)]
mod chunks_beside_commits;
#[cfg(test)]
mod compression_against_kernel;
#[cfg(test)]
mod data_against_kernel;
mod defragment;
mod device_stats;
mod devices;
mod dir;
#[cfg(test)]
mod engine_tests;
mod file;
mod file_cursor;
mod file_system;
mod file_write;
mod image_targets;
#[cfg(test)]
#[path = "../../papilio/tests/support/in_memory.rs"]
mod in_memory;
mod inode;
mod inspect;
mod io_driven;
mod io_pool;
mod io_queue;
mod io_request;
#[cfg(feature = "lock-order")]
#[doc(hidden)]
pub mod lock_order;
mod memory_use;
mod metadata;
mod names;
mod names_by_path;
#[cfg(test)]
mod other_signatures;
mod paths;
mod permissions;
mod quotas;
mod relief;
mod repair;
mod replace;
mod rescue_clone;
mod resize;
mod salvage;
mod scrub;
#[cfg(test)]
mod space_against_kernel;
mod sprout;
mod subvolumes;
mod sync;
#[cfg(feature = "unstable")]
mod tree_search;
mod trim;
mod walk;

pub use archive::{restore_archive, restore_partclone};
pub use as_path::AsPath;
pub use balance::{BalanceControl, BalanceFilter, BalanceOptions, BalanceReport};
pub use check::{check, check_devices, open_devices};
pub use defragment::{SharedDefragmentOptions, SharedDefragmentReport, StayingExtent};
pub use device_stats::DeviceErrors;
pub use dir::{DirEntry, Entries};
pub use file::File;
pub use file_cursor::FileCursor;
pub use file_system::{FileSystem, SubvolumeState};
pub use image_targets::ImageTargets;
pub use inode::{Inode, KeptInode};
pub use io_queue::IoQueue;
pub use io_request::{IoCompletion, IoOperation, IoRequest};
pub use memory_use::MemoryUse;
pub use metadata::Metadata;
pub use quotas::{QgroupUsage, QuotaStatus};
pub use relief::{Relief, ReliefGroup, ReliefStep};
pub use repair::{RepairOptions, RepairPlan, plan_repair, plan_repair_with, repair, undo_repair};
pub use replace::{cancel_replace, replace_device};
pub use rescue_clone::{RescueCloneOptions, rescue_clone};
pub use salvage::{
    find_deleted, find_deleted_subvolumes, find_tree_roots, plan_superblocks, rebuild, scan_devices,
    write_superblocks,
};
pub use walk::{Walk, WalkEntry};

/// The types of the API can be sent to and shared by threads.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<FileSystem>();
    shared::<Inode>();
    shared::<KeptInode>();
    shared::<File>();
    shared::<FileCursor>();
    shared::<Entries>();
    shared::<Walk>();
    shared::<IoQueue<Vec<u8>>>();
    shared::<papilio_engine::errors::Error>();
};
