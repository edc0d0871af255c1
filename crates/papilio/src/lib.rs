//! Btrfs in user space: creates, reads and writes Btrfs file systems on image files and block
//! devices, without a kernel driver and without root. The Linux kernel mounts the result.
//!
//! The reader trusts nothing in an image. It validates each tree block in full, verifies data by
//! its checksums, and replaces a bad copy by another mirror's or by a rebuild from parity. Data
//! that cannot be read gives an [`Error`] with the place and the reason.
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
//! let subvolumes = fs.subvolumes()?;
//! assert!(subvolumes.iter().any(|subvolume| subvolume.path.as_deref() == Some(&b"sv/inner"[..])));
//!
//! let report = fs.check(&papilio::CheckOptions::new().data_csum(true))?;
//! assert!(report.is_clean());
//! # Ok(())
//! # }
//! ```
//!
//! Changes are visible at once. A commit makes them durable together: on [`FileSystem::sync`],
//! every 30 seconds, and when the file system is closed. After a crash the file system has the
//! state of one commit, plus the files synced since.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let image = folder.path().join("new.img");
//! use papilio::{FileSystem, MkfsOptions, NewInode, NewKind, OpenOptions, RenameMode};
//!
//! papilio::mkfs(&image, &MkfsOptions::new().size(256 << 20).label("store"))?;
//! let options = OpenOptions::new().write(true).compress("zstd".parse()?);
//! let fs = FileSystem::open_with(&image, &options)?;
//! fs.create_dir("/etc")?;
//! let new = NewInode::new(NewKind::Regular, 0o640).owner(0, 42);
//! let file = fs.create("/etc/hosts", &new)?.open()?;
//! file.write_all_at(b"127.0.0.1 localhost\n", 0)?;
//! fs.symlink("etc/hosts", "/hosts")?;
//! fs.set_xattr("/etc/hosts", b"user.origin", b"by hand")?;
//! fs.rename_with("/hosts", "/names", RenameMode::NoReplace)?;
//!
//! // A copy that shares the data until one of the files changes.
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
//! - [`FileSystem`] is a handle that any number of threads may share. [`Inode`], [`File`] and
//!   [`Entries`] come from it. Names of methods are those of the standard library where it has the
//!   same operation.
//! - [`File::sync_all`] and [`Inode::sync_all`] make one file durable without a commit, by the log
//!   tree. Opening for writing replays the log after a crash.
//! - [`OpenOptions::cache_bytes`] turns on a page cache.
//! - [`Populate`] fills a file system from the host, and [`Export`] copies out of one, to a
//!   directory or a tar archive. An [`ExportObserver`] hears of everything that the copy lacks.
//! - [`Error`] converts to [`std::io::Error`], and [`Error::errno`] gives its errno.
//!
//! The feature `unstable` adds internals for measurements and inspection: tuning switches, cache
//! statistics, raw tree blocks, and the on-disk format. They may change in any version.

#![forbid(unsafe_code)]

pub use papilio_engine::data::{EncodedExtent, EncodedRead, compression_of_number, number_of_compression};
pub use papilio_engine::data::{FiemapExtent, FileExtent, FileExtentKind};
#[doc(hidden)]
pub use papilio_engine::errors::differ_in_numbers_only;
pub use papilio_engine::errors::{BlockFault, Error, ErrorKind, FilePlace, PathError, QuotaError, Result};
pub use papilio_engine::file::defragment::DefragmentOptions;
pub use papilio_engine::file::verity::{FsverityInfo, FsverityMetadata, FsverityOptions};
pub use papilio_engine::file::write_promise::WritePromise;
pub use papilio_engine::items::dir::EntryTarget;
pub use papilio_engine::items::xattr::Xattr;
pub use papilio_engine::items::xattr_edit::XattrSet;
pub use papilio_engine::jobs::replace::{ReplaceOptions, ReplaceReport};
pub use papilio_engine::jobs::scrub::{ScrubCounts, ScrubDevice, ScrubLimit, ScrubOptions, ScrubReport};
pub use papilio_engine::jobs::signature::find_signature;
pub use papilio_engine::jobs::statfs::Statfs;
pub use papilio_engine::jobs::usage::{DeviceUsage, LesserProfile, SpaceUsage, Usage};
pub use papilio_engine::mount::check_signatures;
pub use papilio_engine::namespace::create::{NewInode, NewKind};
pub use papilio_engine::namespace::permission::{Caller, Permissions};
pub use papilio_engine::namespace::rename::RenameMode;
pub use papilio_engine::namespace::setattr::{SetAttributes, SetTime};
pub use papilio_engine::options::older::{OlderCause, OlderFile, OlderPart, OlderState};
pub use papilio_engine::options::rescue::{FoundBlock, ItemFault, ItemUse, TreeRootChoice};
pub use papilio_engine::options::{CompressionChoice, DiscardMode, OpenOptions, SubvolumeChoice};
pub use papilio_engine::subvolume::{Received, Subvolume};
pub use papilio_engine::transaction::StayReason;
pub use papilio_fs::{
    AsPath, BalanceControl, BalanceFilter, BalanceOptions, BalanceReport, DeviceErrors, DirEntry, Entries,
    File, FileCursor, FileSystem, ImageTargets, Inode, IoCompletion, IoOperation, IoQueue, IoRequest,
    KeptInode, Metadata, QgroupUsage, QuotaStatus, Relief, ReliefGroup, ReliefStep, RepairOptions,
    RepairPlan, RescueCloneOptions, SharedDefragmentOptions, SharedDefragmentReport, StayingExtent,
    SubvolumeState, Walk, WalkEntry, cancel_replace, check, check_devices, find_deleted,
    find_deleted_subvolumes, find_tree_roots, open_devices, plan_repair, plan_repair_with, plan_superblocks,
    rebuild, repair, replace_device, rescue_clone, scan_devices, undo_repair, write_superblocks,
};
pub use papilio_progs::census::Kept;
pub use papilio_progs::check::{
    CheckOptions, CheckProgress, CheckReport, CheckStage, CheckStatistics, Finding, FindingKind,
    Note as CheckNote, Place, Severity,
};
pub use papilio_progs::find_filesystems::{FoundCopy, FoundFileSystem, find_filesystems};
pub use papilio_progs::image::{
    ImageDump, ImageDumpOptions, ImageDumped, ImageRestored, NameReplacement, RestoreMode,
};
pub use papilio_progs::mkfs::{
    FeatureMeaning, FeatureName, FeatureVersions, KernelVersion, Made, MadeBlockGroup, MadeDevice,
    MkfsFeature, MkfsOptions, mkfs, mkfs_device, mkfs_devices, mkfs_many,
};
pub use papilio_progs::repair::change::RescueChange;
pub use papilio_progs::rescue_clone::{CloneLoss, CloneProgress, Cloned};
pub use papilio_progs::salvage::block_scan::{BlockScan, ScanOptions, ScanProgress};
pub use papilio_progs::salvage::chunks::ChunkSources;
pub use papilio_progs::salvage::deleted::DeletedFile;
pub use papilio_progs::salvage::deleted_subvolumes::DeletedSubvolume;
pub use papilio_progs::salvage::rebuild::{Rebuilt, SuperblockSource};
pub use papilio_progs::salvage::root_choice::RootChoice;
pub use papilio_progs::salvage::super_recover::{CopyState, SuperRecovery, SuperblockChange};
pub use papilio_progs::salvage::tree_roots::FoundRoot;
pub use papilio_progs::scan::FoundDevice;
pub use papilio_progs::space_sharing::{
    Estimate, SharedBytes, SharingOptions, SharingProgress, SpaceSharing, SubvolumeSpace,
};
pub use papilio_progs::tune::{Tune, Tuned, tune};
pub use papilio_transfer::checksum_dedupe::{
    ChecksumDedupe, ChecksumDedupeReport, DedupePlace, DedupePlan, Left,
};
pub use papilio_transfer::copy::image::{CopyError, ImageCopy, ImageCopyOptions, Share};
pub use papilio_transfer::dedupe::{Dedupe, DedupeError, DedupeObserver, DedupeReport, DedupeStage};
pub use papilio_transfer::export::Export;
pub use papilio_transfer::export::problem::{
    ExportError, ExportObserver, ExportProblem, ExportProblems, Missing,
};
pub use papilio_transfer::file_versions::{
    FileVersion, VersionHolder, file_versions, file_versions_leaving_out, snapshot_family,
};
pub use papilio_transfer::file_walk::{WalkError, WalkRoot};
pub use papilio_transfer::history::{
    HistoryGap, HistoryStep, SnapshotOnly, directory_history, directory_history_leaving_out,
    only_in_snapshots, only_in_snapshots_leaving_out,
};
pub use papilio_transfer::image_path::ImagePath;
pub use papilio_transfer::import::{
    ContentSource, Existing, Layer, Manifest, ManifestEntry, MkfsContent, NewSubvolume, Populate,
    PopulateObserver, Populated, Updated,
};
#[cfg(target_os = "linux")]
pub use papilio_transfer::receive::HostDirectory;
pub use papilio_transfer::receive::{
    CloneRange, ExistingSubvolume, Receive, ReceiveObserver, ReceiveTarget, ReceivedSubvolume, ResumeToken,
    SentSubvolume, StreamReader,
};
pub use papilio_transfer::send::changes::{NameChange, SnapshotChange, snapshot_changes};
pub use papilio_transfer::send::{SendObserver, SendOptions, Sent, pass_rest};

// The types of the on-disk format that the functions above take and return.
pub use papilio_format::items::block_group::BlockGroupFlags;
pub use papilio_format::items::chunk::RaidProfile;
pub use papilio_format::items::dev_replace::DevReplaceState;
pub use papilio_format::items::file_extent::Compression;
pub use papilio_format::items::fsverity_descriptor::FsverityAlgorithm;
pub use papilio_format::items::inode::{FileKind, InodeFlags, Timespec};
pub use papilio_format::items::qgroup::{QgroupId, QgroupLimitFlags, QgroupStatusFlags};
pub use papilio_format::{
    ChecksumType, Corrupt, DeviceId, FileOffset, Generation, Incompatible, InodeNumber, ItemType, Key,
    LogicalAddress, PhysicalAddress, SuperblockError, TreeId, Uuid,
};

pub use papilio_device::{AlignedBuffer, StableBuffer};
pub use papilio_format::send_stream::{
    Command as SendCommand, CommandKind as SendCommandKind, EncodedWrite, Protocol as SendProtocol,
    SendStreamError, SendStreamFault,
};

/// Disk archives: the used bytes of a file system in one file. `FileSystem::archive` writes them.
pub mod archive {
    pub use papilio_device::archive::{
        ArchiveChain, ArchiveError, ArchiveFault, ArchiveFile, ArchiveReader, ArchiveSummary, check_parent,
        find_parent, is_archive,
    };
    pub use papilio_fs::restore_archive;
    pub use papilio_progs::archive::{
        ArchiveCreated, ArchiveOptions, ArchiveRestored, ArchiveSource, add_parents, open_source,
        open_sources, restore_sizes, verify_archive,
    };
}

/// Images of partclone and Clonezilla. `FileSystem::open` reads those that are not compressed.
pub mod partclone {
    pub use papilio_device::partclone::{
        PartcloneError, PartcloneFault, PartcloneLayout, PartcloneReader, open_parts,
    };
    pub use papilio_fs::restore_partclone;
}

/// In-place conversion of ext2, ext3, ext4 and XFS to Btrfs, and the way back.
pub mod conversion {
    pub use papilio_convert::{
        Conversion, ConvertError, ConvertOptions, ConvertPlan, ConvertProgress, ConvertStage, Converted,
        Finished, IMAGE, Interruption, Losses, RolledBack, SAVED, SAVED_XFS, TargetLabel, TargetUuid,
        convert, find_interrupted, finish_interrupted, plan, rollback, undo_interrupted,
    };
}

/// Streams of send as archives: listed, read, checked, joined and rewritten without a receiver.
pub mod stream {
    pub use papilio_transfer::stream::{
        ChainDoubt, Extract, JoinOptions, LoadOptions, Recompress, Recompression, SentEntry, SentPart,
        StreamChain, StreamDifference, StreamError, StreamFault, StreamIndex, StreamInput, StreamSource,
        WrittenStream, compare, plain_path, split,
    };
}

/// Devices for [`FileSystem::from_devices`], [`mkfs_device`] and [`check_devices`].
pub mod device {
    pub use papilio_device::OpenOptions as DeviceOptions;
    pub use papilio_device::{
        Access, Advice, Device, Direction, FileDevice, ImageFormat, ImageOptions, ImageTarget, MemoryDevice,
        ObjectStore, ObjectStores, OpenError, OpenErrorKind, OpenedImage, Partition, PartitionChoice,
        PartitionDevice, PartitionTable, PartitionType, ReadRequest, RemoteCache, RemoteOptions,
        RequestCounts, RingTarget, Signature, SignatureUse, StartedOp, StoreCheckpoint, StoreCleaned,
        StoreInfo, StoreKey, StoreRequests, StoreWatch, TableKind, UndoFile, WriteRequest, announce_ending,
        describe_content, io_uring_available, is_inside_image, is_raw_file, is_store_url, is_url,
        object_stores, signatures, split_partition, url_prefix,
    };
}

#[cfg(feature = "unstable")]
pub use papilio_device::DelayDevice;
#[cfg(feature = "unstable")]
pub use papilio_engine::btree::CacheStatistics;
#[cfg(feature = "unstable")]
pub use papilio_engine::fsync_log::LogUsage;
#[cfg(feature = "unstable")]
pub use papilio_engine::jobs::extent_owners::{AddressUse, ExtentOwner};
#[cfg(feature = "unstable")]
pub use papilio_engine::jobs::shared_extents::SharedExtents;
#[cfg(feature = "unstable")]
pub use papilio_engine::tuning::{
    CsumLookup, LogItems, NocowCheck, Tuning, TuningError, VerifyCompression, WriteChecksum,
};
#[cfg(feature = "unstable")]
pub use papilio_format as format;
#[cfg(feature = "unstable")]
pub use papilio_fs::MemoryUse;
#[cfg(feature = "unstable")]
pub use papilio_pagecache::CacheInsert;
#[cfg(feature = "unstable")]
pub use papilio_progs::dump::{Block, BlockItem, TreeBlocks, TreeRoot};
#[cfg(feature = "unstable")]
pub use papilio_progs::superblock_copy::{ChecksumState, SuperblockCopy};
#[cfg(feature = "unstable")]
pub use papilio_progs::tree_stats::{Layout, TreeStats};
#[cfg(feature = "unstable")]
pub use papilio_transfer::export::{
    event::Event,
    export,
    host::{HostOptions, HostSink, Place as HostPlace, host_kind},
    sink::Sink,
    source::{PathFilter, Source, SourceOptions, TwinFinder},
    tar::TarSink,
};
#[cfg(feature = "unstable")]
pub use papilio_transfer::file_walk::{FileVisitor, FileWalk, UsedExtent, WantedExtents};
#[cfg(feature = "unstable")]
pub use papilio_transfer::{
    host_calls,
    image_path::describe,
    import::is_to_be_made,
    text::{escaped, kind_words, system_text},
};
