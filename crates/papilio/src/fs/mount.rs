//! Mounting: from devices to trees.
//!
//! Owns [`Mounted`] and the order of the steps: superblocks, system chunks, chunk tree (devices and
//! chunks), root tree, for writing the replay of the log, the subvolume that paths start from. Kernel counterpart: `open_ctree`,
//! `init_tree_roots` (`fs/btrfs/disk-io.c`), `btrfs_read_chunk_tree` (`fs/btrfs/volumes.c`).

use crate::btree::{Forest, RootPointer, Tree};
use crate::data::ReadContext;
use crate::data::file_edit::WriteOptions;
use crate::errors::{Error, PathError, Result};
use crate::fs::change::{Subvolumes, write_options};
use crate::fs::committer::Committer;
use crate::fs::flush::DirtyInodes;
use crate::fs::fsync::ChangedFiles;
use crate::fs::open_inodes::OpenInodes;
use crate::fsync_log;
use crate::fsync_log::name_changes::NameChanges;
use crate::items::dir;
use crate::items::item_error;
use crate::items::trees::Trees;
use crate::namespace::{Handle, Place, resolve};
use crate::options::{OpenOptions, SubvolumeChoice};
use crate::transaction::{PENDING_SHARE, TransactionOptions, Transactions};
use crate::tuning::Tuning;
use crate::volume::Volume;
use papilio_device::{Access, Device, FileDevice};
use papilio_format::items::chunk::ChunkItem;
use papilio_format::items::device::DeviceItem;
use papilio_format::items::inode::InodeFlags;
use papilio_format::superblock::RootBackup;
use papilio_format::{InodeNumber, ItemType, LogicalAddress, Superblock, TreeId, objectid};
use papilio_locks::{Mutex, RwLock};
use papilio_pagecache::{CacheOptions, PageCache};
use std::path::Path;
use std::sync::Arc;

/// Sums of open files may take this part of what the node cache may; besides it, where nothing is written.
const SUM_SHARE: usize = 8;
/// What is written past the trees may take so many times what the node cache may, besides it.
const ORDERED_SHARE: usize = 2;
/// Bytes of changed tree blocks that a transaction may have, however small the node cache is.
const LEAST_DIRTY: u64 = 1 << 20;

/// Everything that an open file system is made of.
#[derive(Debug)]
pub(crate) struct Mounted {
    pub(crate) trees: Trees,
    pub(crate) reader: ReadContext,
    /// Where paths start.
    pub(crate) root: Place,
    /// What is kept of subvolumes that were changed.
    pub(crate) subvolumes: Subvolumes,
    /// Files that are open.
    pub(crate) open_inodes: OpenInodes,
    /// Open files with changes that the trees do not have.
    pub(crate) dirty_inodes: DirtyInodes,
    /// Names that changed in the running transaction.
    pub(crate) name_changes: NameChanges,
    /// Files whose data did.
    pub(crate) changed_files: ChangedFiles,
    /// Whether an fsync may be an entry in the log.
    pub(crate) tree_log: bool,
    /// How often extents got shared since the mount. Held, shared, while data is overwritten in place;
    /// exclusively, and counted, by who shares any.
    pub(crate) sharing: RwLock<u64>,
    /// How data is written.
    pub(crate) write_options: WriteOptions,
    /// Flags that the options give each new regular file.
    pub(crate) file_flags: InodeFlags,
    /// Pages of all files; absent where reads and writes go to the device.
    pub(crate) page_cache: Option<PageCache>,
    /// Which of several ways things are done.
    pub(crate) tuning: Tuning,
    /// Commits in the background; absent where nothing changes, or nobody asked for it.
    pub(crate) committer: Mutex<Option<Committer>>,
    /// Whether the trees are those of a backup root.
    pub(crate) used_backup_root: bool,
}

/// Where a mount's two first trees lie.
#[derive(Clone, Copy)]
struct Roots {
    root: RootPointer,
    chunk_root: RootPointer,
}

impl Mounted {
    /// Opens the device or image at `path` and those that the options name.
    pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<Self> {
        let access = if options.write { Access::ReadWrite } else { Access::ReadOnly };
        Self::from_devices(open_devices(path, options, access)?, options)
    }

    /// Mounts what lies on the devices.
    pub(crate) fn from_devices(devices: Vec<Arc<dyn Device>>, options: &OpenOptions) -> Result<Self> {
        let volume = Arc::new(Volume::open(devices, options)?);
        let current = Roots::current(volume.superblock());
        let first_error = match Self::with_roots(&volume, current, options) {
            Ok(trees) => return Self::finish(trees, options, false),
            Err(error) if options.use_backup_root => error,
            Err(error) => return Err(error),
        };
        let mut backups = volume.superblock().raw.super_roots;
        backups.sort_by_key(|backup| std::cmp::Reverse(backup.tree_root_generation));
        for backup in backups.iter().filter(|backup| backup.tree_root.0 != 0) {
            let roots = Roots::backup(backup);
            match Self::with_roots(&volume, roots, options) {
                Ok(trees) => {
                    tracing::warn!(
                        "{first_error}; using the roots of generation {} instead",
                        backup.tree_root_generation
                    );
                    return Self::finish(trees, options, true);
                }
                Err(error) => tracing::warn!("backup root {}: {error}", backup.tree_root_generation),
            }
        }
        Err(first_error)
    }

    /// Reads the chunk tree and opens the root tree; proves that the top-level subvolume can be
    /// reached.
    fn with_roots(volume: &Arc<Volume>, roots: Roots, options: &OpenOptions) -> Result<Trees> {
        let forest = Forest::new(Arc::clone(volume), block_bytes(options));
        let trees = Trees::new(&forest, roots.root, roots.chunk_root);
        read_chunk_tree(volume, &trees.chunk_tree())?;
        trees.root_tree().root_block()?;
        trees.get(objectid::FS_TREE, "the top-level subvolume")?.tree.root_block()?;
        Ok(trees)
    }

    fn finish(trees: Trees, options: &OpenOptions, used_backup_root: bool) -> Result<Self> {
        if options.write {
            if used_backup_root {
                let cause = "a backup root is in use".to_owned();
                return Err(Error::ReadOnlyFileSystem { cause });
            }
            return Self::finish_live(&trees, options);
        }
        let root = choose_root(&trees, &options.subvolume)?.place();
        // Without a checksum tree only files that have no checksums can be read.
        let checksums = trees.find(objectid::CSUM_TREE)?.map(|open| open.tree.clone());
        let volume = Arc::clone(trees.forest().volume());
        let reader = ReadContext::new(volume, checksums, options.verify_data);
        Ok(Self::new(trees, reader, root, options, used_backup_root))
    }

    fn new(
        trees: Trees,
        reader: ReadContext,
        root: Place,
        options: &OpenOptions,
        used_backup_root: bool,
    ) -> Self {
        Self {
            trees,
            reader,
            root,
            subvolumes: Subvolumes::default(),
            open_inodes: OpenInodes::new(
                options.node_cache_bytes / SUM_SHARE,
                options.node_cache_bytes.saturating_mul(ORDERED_SHARE),
            ),
            dirty_inodes: DirtyInodes::default(),
            name_changes: NameChanges::default(),
            changed_files: ChangedFiles::default(),
            tree_log: options.tree_log,
            sharing: RwLock::new(0),
            write_options: write_options(options),
            file_flags: options.file_flags,
            page_cache: (options.cache_bytes > 0).then(|| page_cache(options)),
            tuning: options.tuning,
            committer: Mutex::new(None),
            used_backup_root,
        }
    }

    /// Takes the file system over for writing.
    fn finish_live(committed: &Trees, options: &OpenOptions) -> Result<Self> {
        let run = TransactionOptions {
            dirty_limit: options.dirty_bytes.min(dirty_share(options.node_cache_bytes)),
            discard: options.discard,
            timestamp: options.timestamp,
        };
        let log = committed.forest().volume().superblock().log_root();
        if log.is_some() && !options.replay_log {
            let cause = "it has a log of fsyncs, which is not to be replayed".to_owned();
            return Err(Error::ReadOnlyFileSystem { cause });
        }
        let (root, chunk_root) = (committed.root_tree().root(), committed.chunk_tree().root());
        let transactions = Arc::new(Transactions::open(committed.forest(), root, chunk_root, run)?);
        if let Some((address, level)) = log {
            fsync_log::replay(&transactions, address, level)?;
        }
        let trees = Trees::live(&transactions);
        let root = choose_root(&trees, &options.subvolume)?.place();
        let reader = ReadContext::live(&transactions, options.verify_data, options.tuning.csum_lookup);
        Ok(Self::new(trees, reader, root, options, false))
    }

    /// The volume below.
    pub(crate) fn volume(&self) -> &Arc<Volume> {
        self.trees.forest().volume()
    }
}

/// Bytes of changed tree blocks that a transaction may have with a node cache of so many: with those of another that
/// is being written three quarters of it, and the least that a commit is worth.
fn dirty_share(node_cache_bytes: usize) -> u64 {
    (node_cache_bytes as u64 / 8 * 3).max(LEAST_DIRTY)
}

/// Bytes that tree blocks may take, those that are not on disk included. Who writes has checksums and delayed
/// references in fixed shares of the node cache's bytes: blocks that made room for what comes and goes with every
/// commit would be let go of and made anew as often.
fn block_bytes(options: &OpenOptions) -> usize {
    let bytes = options.node_cache_bytes;
    if !options.write {
        return bytes;
    }
    bytes - bytes / SUM_SHARE - bytes / 8 * 3 / PENDING_SHARE as usize
}

fn page_cache(options: &OpenOptions) -> PageCache {
    let insert = options.tuning.cache_insert;
    PageCache::with_options(CacheOptions { insert, ..CacheOptions::new(options.cache_bytes) })
}

impl Roots {
    fn current(superblock: &Superblock) -> Self {
        let raw = &superblock.raw;
        Self {
            root: RootPointer { address: raw.root, level: raw.root_level, generation: Some(raw.generation) },
            chunk_root: RootPointer {
                address: raw.chunk_root,
                level: raw.chunk_root_level,
                generation: Some(raw.chunk_root_generation),
            },
        }
    }

    fn backup(backup: &RootBackup) -> Self {
        Self {
            root: RootPointer {
                address: backup.tree_root,
                level: backup.tree_root_level,
                generation: Some(backup.tree_root_generation),
            },
            chunk_root: RootPointer {
                address: backup.chunk_root,
                level: backup.chunk_root_level,
                generation: Some(backup.chunk_root_generation),
            },
        }
    }
}

/// Opens the device or image at `path` and those that the options name.
pub(super) fn open_devices(
    path: &Path,
    options: &OpenOptions,
    access: Access,
) -> Result<Vec<Arc<dyn Device>>> {
    std::iter::once(path)
        .chain(options.devices.iter().map(|path| path.as_path()))
        .map(|path| Ok(Arc::new(FileDevice::open(path, access)?) as Arc<dyn Device>))
        .collect()
}

/// Installs the devices and chunks of the chunk tree.
fn read_chunk_tree(volume: &Volume, tree: &Tree) -> Result<()> {
    let mut devices = Vec::new();
    let mut chunks = Vec::new();
    for item in tree.items() {
        let item = item?;
        let fault = |reason| item_error(tree, &item, reason);
        match item.key.item_type {
            ItemType::DEV_ITEM => devices.push(DeviceItem::parse(item.data()).map_err(fault)?),
            ItemType::CHUNK_ITEM => {
                let chunk = ChunkItem::parse(item.data()).map_err(fault)?;
                chunks.push((LogicalAddress(item.key.offset), chunk));
            }
            _ => {}
        }
    }
    volume.install_chunks(chunks)?;
    volume.install_devices(devices)
}

/// The directory that paths start from.
fn choose_root(trees: &Trees, choice: &SubvolumeChoice) -> Result<Handle> {
    let top = subvolume_root(trees, objectid::FS_TREE)?;
    match choice {
        SubvolumeChoice::TopLevel => Ok(top),
        SubvolumeChoice::Id(id) => subvolume_root(trees, *id),
        SubvolumeChoice::Default => subvolume_root(trees, default_subvolume(trees)?),
        SubvolumeChoice::Path(path) => {
            let found = resolve(trees, &top, path, true)?;
            if found.number != found.subvolume.root_directory() {
                return Err(Error::path(path, PathError::NoSubvolume));
            }
            Ok(found)
        }
    }
}

/// The root directory of a subvolume.
pub(crate) fn subvolume_root(trees: &Trees, id: TreeId) -> Result<Handle> {
    let subvolume = trees.subvolume(id)?;
    let inode = subvolume.root_directory();
    Handle::open(trees, Place { tree: id, inode })
}

/// The subvolume that a mount without options shows: the entry "default" of the root tree's
/// directory, or the top level where there is none.
pub(crate) fn default_subvolume(trees: &Trees) -> Result<TreeId> {
    let directory = InodeNumber(objectid::ROOT_TREE_DIR);
    Ok(match dir::look_up(&trees.root_tree(), directory, b"default")? {
        Some(dir::Found { target: dir::EntryTarget::Subvolume(id), .. }) => id,
        _ => objectid::FS_TREE,
    })
}
