//! Btrfs in user space: makes, reads and writes real Btrfs file systems, in images and on block devices,
//! without a kernel driver and without root. The Linux kernel mounts what is written here.
//!
//! Nothing in an image is trusted. Tree blocks are checked in full when they are read, data is
//! compared with its checksums, a bad copy is passed over for a good one on another mirror or
//! rebuilt from parity, and what cannot be read is an [`Error`] that says what was found where.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let image = folder.path().join("backup.img");
//! # let carried = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/fuzz-mixed.img.zst");
//! # zstd::stream::copy_decode(std::fs::File::open(carried)?, std::fs::File::create(&image)?)?;
//! let fs = papilio::FileSystem::open(&image)?;
//!
//! // Paths cross into subvolumes and snapshots.
//! for entry in fs.walk("/snap")? {
//!     let entry = entry?;
//!     println!("{:>10} {}", entry.inode.metadata().size(), String::from_utf8_lossy(&entry.path));
//! }
//! let text = fs.read("/snap/d/f5")?;
//! assert_eq!(text, b"file 5\n");
//! assert_eq!(fs.read("/sv/d/f5")?, b"change\n");
//!
//! let names: Vec<_> = fs.subvolumes()?.into_iter().filter_map(|subvolume| subvolume.path).collect();
//! assert!(names.contains(&b"sv/inner".to_vec()));
//!
//! let report = fs.check(&papilio::CheckOptions::new().data_csum(true))?;
//! assert!(report.is_clean());
//! # Ok(())
//! # }
//! ```
//!
//! Opened for writing, changes are seen at once and become durable together, with a commit: on
//! [`FileSystem::sync`], every 30 seconds, and when the file system is closed. A crash leaves the state of
//! one commit or another, never something in between.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let image = folder.path().join("new.img");
//! use papilio::{FileSystem, MkfsOptions, NewInode, NewKind, OpenOptions, RenameMode};
//!
//! papilio::mkfs(&image, &MkfsOptions::new().size(256 << 20).label("store"))?;
//! let fs = FileSystem::open_with(&image, &OpenOptions::new().write(true).compress("zstd".parse()?))?;
//! fs.create_dir("/etc")?;
//! let file = fs.create("/etc/hosts", &NewInode::new(NewKind::Regular, 0o640).owner(0, 42))?.open()?;
//! file.write_at(b"127.0.0.1 localhost\n", 0)?;
//! fs.symlink("etc/hosts", "/hosts")?;
//! fs.set_xattr("/etc/hosts", b"user.origin", b"by hand")?;
//! fs.rename("/hosts", "/names", RenameMode::NoReplace)?;
//!
//! // A copy that shares the data until either changes.
//! let copy = fs.create_file("/etc/hosts.old")?;
//! copy.clone_range(&file, 0, 0, 0)?;
//! fs.sync()?;
//!
//! let missing = fs.remove_file("/etc/passwd").unwrap_err();
//! assert_eq!(missing.to_string(), "/etc/passwd: no such file or directory");
//! drop((file, copy));
//! fs.close()?;
//!
//! let fs = FileSystem::open(&image)?;
//! assert_eq!(fs.read("/names")?, fs.read("/etc/hosts.old")?);
//! assert!(fs.check(&papilio::CheckOptions::new().data_csum(true))?.is_clean());
//! # Ok(())
//! # }
//! ```
//!
//! [`FileSystem`] is a handle that any number of threads may share; [`Inode`], [`File`] and
//! [`Entries`] are made from it. A log of fsyncs that a crash left is replayed when the file system is opened for
//! writing; [`File::sync`] and [`Inode::sync`] write one. With [`OpenOptions::cache_bytes`] data goes through a page cache.

#![forbid(unsafe_code)]

// Helpers of unit and integration tests are one file, which calls this crate by its name.
#[cfg(test)]
extern crate self as papilio;

mod btree;
mod data;
mod errno;
mod errors;
mod file;
mod fs;
mod fsync_log;
mod import;
#[cfg(test)]
#[path = "../tests/support/in_memory.rs"]
mod in_memory;
mod items;
mod maintenance;
mod mount;
mod namespace;
mod options;
mod space;
mod subvolume;
mod transaction;
mod tuning;
mod volume;

pub use btree::CacheStatistics;
pub use data::FiemapExtent;
pub use errors::{BlockFault, Error, ErrorKind, FilePlace, PathError, Result};
pub use fs::{
    DirEntry, Entries, File, FileReader, FileSystem, Inode, IoCompletion, IoOperation, IoQueue, IoRequest,
    KeptInode, MemoryUse, Metadata, Walk, WalkEntry, check, check_devices,
};
pub use import::{Existing, Manifest, ManifestEntry, NewSubvolume, Populate, PopulateObserver, Populated};
pub use items::dir::EntryTarget;
pub use items::xattr::Xattr;
pub use items::xattr_edit::XattrSet;
pub use maintenance::check::{
    CheckOptions, CheckProgress, CheckReport, CheckStage, CheckStatistics, Finding, FindingKind, Place,
    Severity,
};
pub use maintenance::dump::{Block, BlockItem, TreeBlocks, TreeRoot};
pub use maintenance::mkfs::{Made, MadeBlockGroup, MkfsFeature, MkfsOptions, mkfs, mkfs_device};
pub use maintenance::statfs::Statfs;
pub use maintenance::superblock_copy::{ChecksumState, SuperblockCopy};
pub use maintenance::tree_stats::{Layout, TreeStats};
pub use maintenance::usage::{DeviceUsage, SpaceUsage, Usage};
pub use namespace::create::{NewInode, NewKind};
pub use namespace::rename::RenameMode;
pub use namespace::setattr::{SetAttributes, SetTime};
pub use options::{CompressionChoice, OpenOptions, SubvolumeChoice};
pub use papilio_format as format;
pub use papilio_format::items::inode::{FileKind, InodeFlags, Timespec};
pub use papilio_pagecache::CacheInsert;
pub use subvolume::{Received, Subvolume};
pub use tuning::{CsumLookup, LogItems, NocowCheck, Tuning, TuningError, WriteChecksum};
