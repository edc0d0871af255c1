//! Btrfs in user space: reads real Btrfs file systems, in images and on block devices, without a
//! kernel driver and without root.

#![forbid(unsafe_code)]
#![allow(dead_code, unused_imports)] // REMOVE once all layers have landed

mod btree;
mod data;
mod errors;
mod fs;
mod items;
mod maintenance;
mod namespace;
mod options;
mod subvolume;
mod volume;

pub use data::FiemapExtent;
pub use errors::{BlockFault, Error, ErrorKind, FilePlace, PathError, Result};
pub use fs::{
    DirEntry, Entries, File, FileReader, FileSystem, Inode, Metadata, Walk, WalkEntry, check, check_devices,
};
pub use items::dir::EntryTarget;
pub use items::xattr::Xattr;
pub use maintenance::check::{
    CheckOptions, CheckProgress, CheckReport, CheckStage, CheckStatistics, Finding, FindingKind, Place,
    Severity,
};
pub use options::{OpenOptions, SubvolumeChoice};
pub use papilio_format as format;
pub use papilio_format::items::inode::{FileKind, InodeFlags, Timespec};
pub use subvolume::Subvolume;
