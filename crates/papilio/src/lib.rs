//! Btrfs in user space: reads real Btrfs file systems, in images and on block devices, without a
//! kernel driver and without root.
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
//! [`FileSystem`] is a handle that any number of threads may share; [`Inode`], [`File`] and
//! [`Entries`] are made from it. Writing is not there yet.

#![forbid(unsafe_code)]

#[allow(dead_code)] // Not all of the writing half has a caller yet.
mod btree;
#[allow(dead_code)] // Not all of the writing half has a caller yet.
mod data;
mod errors;
mod fs;
#[allow(dead_code)] // Not all of the writing half has a caller yet.
mod items;
mod maintenance;
#[allow(dead_code)] // Not all of the writing half has a caller yet.
mod namespace;
mod options;
#[allow(dead_code)] // Not all of the writing half has a caller yet.
mod space;
mod subvolume;
#[allow(dead_code)] // Not all of the writing half has a caller yet.
mod transaction;
mod volume;

pub use btree::CacheStatistics;
pub use data::FiemapExtent;
pub use errors::{BlockFault, Error, ErrorKind, FilePlace, PathError, Result};
pub use fs::{
    DirEntry, Entries, File, FileReader, FileSystem, Inode, Metadata, Walk, WalkEntry, check, check_devices,
};
pub use items::dir::EntryTarget;
pub use items::xattr::Xattr;
pub use items::xattr_edit::XattrSet;
pub use maintenance::check::{
    CheckOptions, CheckProgress, CheckReport, CheckStage, CheckStatistics, Finding, FindingKind, Place,
    Severity,
};
pub use maintenance::dump::{Block, BlockItem, TreeBlocks, TreeRoot};
pub use maintenance::mkfs::{Made, MadeBlockGroup, MkfsFeature, MkfsOptions, mkfs, mkfs_device};
pub use maintenance::superblock_copy::{ChecksumState, SuperblockCopy};
pub use maintenance::tree_stats::{Layout, TreeStats};
pub use maintenance::usage::{DeviceUsage, SpaceUsage, Usage};
pub use namespace::create::{NewInode, NewKind};
pub use namespace::rename::RenameMode;
pub use namespace::setattr::{SetAttributes, SetTime};
pub use options::{CompressionChoice, OpenOptions, SubvolumeChoice};
pub use papilio_format as format;
pub use papilio_format::items::inode::{FileKind, InodeFlags, Timespec};
pub use subvolume::Subvolume;
