//! The state that all parts of an open file system share.
//!
//! Owns [`FsInfo`], which lives from opening to the last handle. The layers above add methods to
//! it: each part of the state has its own locks, named in its own file.
//!
//! Kernel counterpart: `struct btrfs_fs_info` (`fs/btrfs/fs.h`).

use crate::data::ReadContext;
use crate::data::write_rules::{WriteOptions, WriteRules};
use crate::errors::{Error, Result};
use crate::file::background::Background;
use crate::file::changed_files::ChangedFiles;
use crate::file::deletions::Deletions;
use crate::file::dirty_inodes::DirtyInodes;
use crate::file::exclusive::ExclusiveOp;
use crate::file::kept_inodes::KeptInodes;
use crate::file::moving::Moving;
use crate::file::open_inode::{InodeOwner, OpenInode};
use crate::file::open_inodes::OpenInodes;
use crate::file::read_ahead::ReadAhead;
use crate::file::sharing::Sharing;
use crate::fsync_log::name_changes::NameChanges;
use crate::items::numbers::SubvolumeNumbers;
use crate::items::trees::Trees;
use crate::namespace::Place;
use crate::options::older::OlderState;
use crate::transaction::Transactions;
use crate::tuning::Tuning;
use crate::volume::Volume;
use papilio_format::TreeId;
use papilio_format::items::inode::InodeFlags;
use papilio_locks::Mutex;
use papilio_pagecache::PageCache;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// The inode and index counters of each subvolume that this mount has changed.
pub(crate) type ChangedSubvolumes = Mutex<HashMap<TreeId, Arc<SubvolumeNumbers>>>;

/// An open file system.
#[derive(Debug)]
pub struct FsInfo {
    /// The trees, of the last commit or live.
    pub trees: Trees,
    /// Reads data, and verifies it as the options say.
    pub reader: ReadContext,
    /// Reads the last commit without checksums.
    pub unverified: ReadContext,
    /// The directory that paths start from.
    pub root: Place,
    /// The counters of subvolumes that this mount has changed.
    pub subvolumes: ChangedSubvolumes,
    /// Held by the thread that prepares the first change of a subvolume.
    pub(crate) first_change: Mutex<()>,
    /// The inodes that are open, by subvolume and number.
    pub open_inodes: OpenInodes,
    /// Open files with changes that their trees do not have yet.
    pub dirty_inodes: DirtyInodes,
    /// Inodes that callers keep without having them open.
    pub(crate) kept_inodes: KeptInodes,
    /// Unlinked inodes that will give space back.
    pub deletions: Deletions,
    /// Directory entries that changed in the running transaction.
    pub name_changes: NameChanges,
    /// Files whose data changed in the running transaction.
    pub(crate) changed_files: ChangedFiles,
    /// Whether an fsync may write the log tree instead of committing.
    pub(crate) tree_log: bool,
    /// Held by writers, and by everything that makes extents shared.
    pub sharing: Sharing,
    /// The operation on the whole file system that runs.
    pub exclusive: ExclusiveOp,
    /// Held by relocation while extents move.
    pub(crate) moving: Moving,
    /// The options of writing data.
    pub write_options: WriteOptions,
    /// Inode flags that the options give each new regular file.
    pub file_flags: InodeFlags,
    /// The pages of all files; `None` where reads and writes go straight to the device.
    pub page_cache: Option<PageCache>,
    /// The switches of measured changes.
    pub tuning: Tuning,
    /// The way to the thread that reads ahead.
    pub(crate) read_ahead: ReadAhead,
    /// The way to the background threads.
    pub background: Background,
    /// Whether copies that reads found bad are rewritten.
    pub(crate) heal_reads: bool,
    /// Whether the trees are those of a backup root.
    pub used_backup_root: bool,
    /// Why the trees are not those of the newest state, if they are not.
    pub older: Vec<OlderState>,
}

impl FsInfo {
    /// Returns the volume that holds trees and data.
    pub fn volume(&self) -> &Arc<Volume> {
        self.trees.forest().volume()
    }

    /// Returns the transactions of a file system that is open for writing.
    ///
    /// # Errors
    /// [`Error::ReadOnlyFileSystem`] for one that was opened for reading.
    pub fn transactions(&self) -> Result<&Arc<Transactions>> {
        self.trees
            .transactions()
            .ok_or_else(|| Error::ReadOnlyFileSystem { cause: "it was opened for reading only".to_owned() })
    }

    /// Returns why the file system became read-only, if it did.
    pub fn failure(&self) -> Option<String> {
        self.trees.transactions()?.failure()
    }

    /// Returns the bytes of a sector. Reads the geometry, not the superblock, which a commit holds
    /// locked during device I/O.
    pub fn sector_size(&self) -> u64 {
        u64::from(self.volume().geometry().sector_size)
    }
}

impl FsInfo {
    /// Returns the rules that writes of data follow.
    pub(crate) fn write_rules(&self) -> WriteRules<'_> {
        WriteRules { geometry: self.volume().geometry(), options: &self.write_options }
    }

    /// Returns a reference to the open inode at `place`, which it opens if no handle has it open.
    /// The file system is open for writing.
    pub(crate) fn open_inode(self: &Arc<Self>, place: Place) -> Arc<OpenInode> {
        self.open_inodes.open(place, |budgets| {
            let owner: Weak<dyn InodeOwner> = Arc::<Self>::downgrade(self);
            let mapping = self.page_cache.as_ref().map(|cache| cache.mapping(place.inode.0));
            let changed = self.changed_files.open(place);
            OpenInode::new(place, owner, &self.volume().geometry(), budgets, changed, mapping)
        })
    }
}
