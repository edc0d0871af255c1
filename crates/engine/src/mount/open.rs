//! Opening a file system: from devices to trees.
//!
//! Owns the order of the steps:
//! 1. superblocks and system chunks; roots that the caller chose take the place of the
//!    superblock's,
//! 2. the chunk tree with devices and chunks,
//! 3. the root tree, or that of a backup root,
//! 4. the replay of the log tree: on the devices if opened for writing, else in memory,
//! 5. the subvolume that paths start from.
//!
//! Kernel counterparts: `open_ctree`, `init_tree_roots` (`fs/btrfs/disk-io.c`).

use crate::btree::{Forest, RescueParts, RootPointer, SoundLeaves, StandIns};
use crate::data::ReadContext;
use crate::data::write_rules::WriteOptions;
use crate::errors::{Error, PathError, Result, reason_of};
use crate::file::background::Background;
use crate::file::changed_files::ChangedFiles;
use crate::file::deletions::Deletions;
use crate::file::dirty_inodes::DirtyInodes;
use crate::file::exclusive::ExclusiveOp;
use crate::file::fs_info::{ChangedSubvolumes, FsInfo};
use crate::file::kept_inodes::KeptInodes;
use crate::file::moving::Moving;
use crate::file::open_inodes::OpenInodes;
use crate::file::read_ahead::ReadAhead;
use crate::file::sharing::Sharing;
use crate::fsync_log;
use crate::fsync_log::name_changes::NameChanges;
use crate::items::trees::Trees;
use crate::mount::chosen::{choose, header_at};
use crate::mount::chunk_tree::read_chunk_tree;
use crate::mount::lost_roots::{Either, LostRoots};
use crate::mount::roots::Roots;
use crate::mount::signatures::check_signatures;
use crate::mount::sound_leaf::SoundItems;
use crate::mount::stand_ins::ScannedLeaves;
use crate::mount::unreplayed::older_files;
use crate::namespace::{InodeHandle, Place, resolve};
use crate::options::older::{OlderCause, OlderState, UnreplayedLog};
use crate::options::rescue::{FaultList, FoundTrees, Rescue};
use crate::options::{DiscardMode, OpenOptions, SubvolumeChoice};
use crate::subvolume::{default_subvolume, drop_relocation_trees, subvolume_root};
use crate::transaction::{PENDING_SHARE, TransactionOptions, Transactions};
use crate::volume::{Volume, compare_copies, superblock_of};
use papilio_device::{
    Access, DeadlineDevice, DelayDevice, Device, ImageOptions, OverlayDevice, PartitionChoice,
};
use papilio_format::LogicalAddress;
use papilio_format::features::SuperblockFlags;
use papilio_format::objectid::{self, Objectid};
use papilio_format::superblock::RawSuperblock;
use papilio_locks::Mutex;
use papilio_pagecache::{CacheOptions, PAGE_SIZE, PageCache};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

/// The divisor of the node cache's size that gives the memory for cached checksums of open files. A
/// read-only file system uses that memory in addition to the node cache.
const CHECKSUM_SHARE: usize = 8;
/// The factor of the node cache's size that gives the memory for ordered extents, in addition to
/// the node cache.
const ORDERED_SHARE: usize = 2;
/// The least limit on a transaction's changed tree blocks, in bytes.
const LEAST_DIRTY: u64 = 1 << 20;

/// Bytes of the cache for a second look at the root tree.
const ROOTS_BYTES: usize = 1 << 20;

/// Opens the device or image at `path` and those that the options name.
pub fn open_path(path: &Path, options: &OpenOptions) -> Result<FsInfo> {
    let access = if options.write { Access::ReadWrite } else { Access::ReadOnly };
    if options.direct_io.is_none() && options.cache_bytes.is_none() && is_direct_by_default(path, options) {
        let options = options.clone().cache_bytes(DEFAULT_CACHE);
        return from_devices(open_devices(path, &options, access)?, &options);
    }
    from_devices(open_devices(path, options, access)?, options)
}

/// Opens the file system on the devices.
pub fn from_devices(devices: Vec<Arc<dyn Device>>, options: &OpenOptions) -> Result<FsInfo> {
    let options = &choose(&devices, options)?;
    let volume = Arc::new(Volume::open(devices.clone(), options)?);
    let raw = volume.superblock().raw;
    let mut older = Vec::new();
    if !options.write {
        older.extend(options.rescue.found.as_ref().and_then(|found| found.older.clone()));
        if options.allow_older {
            older.extend(newer_superblock(&volume, options));
        }
    }
    let mut unreplayed = None;
    if let Some((address, level)) = volume.superblock().log_root().filter(|_| !options.write) {
        let log = UnreplayedLog { address, level, committed: raw.generation };
        let state = |cause| OlderState::new(cause, raw.generation, Some(log));
        if !options.replay_log {
            older.push(state(OlderCause::LogForbidden));
        } else {
            match replay_sound_items(&devices, options, &mut older, &state) {
                Ok(replayed) => {
                    // Its superblock has no log, so nothing below is about one.
                    let (devices, options) = replayed.named_in(options);
                    if let Some(address) = options.rescue.fs_root {
                        older.push(state(OlderCause::ChosenRootOfFiles { address }));
                    }
                    let volume = Arc::new(Volume::open(devices, &options)?);
                    return with_any_roots(&volume, &options, older);
                }
                Err(error) => {
                    older.push(state(OlderCause::LogUnusable { reason: reason_of(&error) }));
                    unreplayed = Some((error, log));
                }
            }
        }
    }
    let info = with_any_roots(&volume, options, older)?;
    match unreplayed {
        Some((cause, log)) if !options.allow_older => {
            let older = older_files(&info.trees, log);
            Err(Error::Unreplayed { cause: Box::new(cause), older })
        }
        _ => Ok(info),
    }
}

/// Opens the file system with the roots of the superblock or, if the options allow that, of its
/// newest backup that can be read. `older` are the reasons so far why it is not the newest state.
fn with_any_roots(volume: &Arc<Volume>, options: &OpenOptions, mut older: Vec<OlderState>) -> Result<FsInfo> {
    let current = Roots::current(volume.superblock());
    let first_error = match with_roots(volume, current, options) {
        Ok(trees) => return finish(trees, options, false, older),
        Err(error) if options.use_backup_root => error,
        Err(error) => return Err(error),
    };
    let newest = volume.superblock().raw.generation;
    let mut backups = volume.superblock().raw.super_roots;
    backups.sort_by_key(|backup| std::cmp::Reverse(backup.tree_root_generation));
    for backup in backups.iter().filter(|backup| backup.tree_root.0 != 0) {
        let roots = Roots::backup(backup);
        let shown = backup.tree_root_generation;
        match with_roots(volume, roots, options) {
            Ok(trees) => {
                let reason = first_error.to_string();
                older.push(OlderState::new(OlderCause::Fallback { newest, reason }, shown, None));
                return finish(trees, options, true, older);
            }
            Err(error) => tracing::warn!("backup root {shown}: {error}"),
        }
    }
    Err(first_error)
}

/// Returns the cause if another superblock copy leads to a newer state than the one in use. A mount
/// of the kernel reads the first copy only, and only that one names a log.
fn newer_superblock(volume: &Volume, options: &OpenOptions) -> Option<OlderState> {
    if options.rescue.chooses_roots() || options.rescue.found.is_some() {
        return None;
    }
    let used = volume.superblock().raw;
    let copies = compare_copies(&volume.devices(), used.fsid);
    let (device, copy, newest) = copies.newest?;
    let is_newer = newest.generation > used.generation;
    let has_log = newest.generation == used.generation && newest.log_root.0 != 0 && used.log_root.0 == 0;
    let log = UnreplayedLog {
        address: newest.log_root,
        level: newest.log_root_level,
        committed: newest.generation,
    };
    let log = Some(log).filter(|_| has_log);
    let newest = newest.generation;
    let cause = match options.superblock_mirror {
        Some(_) if is_newer || has_log => OlderCause::ChosenSuperblock { newest },
        Some(copy) if copy > 0 && copies.first_is_bad => OlderCause::LogUnknown { copy },
        None if is_newer => OlderCause::NewerSuperblock { device, copy, newest },
        _ => return None,
    };
    Some(OlderState::new(cause, used.generation, log))
}

/// Overlays of the devices with a log that was replayed into them.
struct Replayed {
    devices: Vec<Arc<dyn Device>>,
    superblock: RawSuperblock,
}

impl Replayed {
    /// Returns the overlays, and options that open them.
    fn named_in(self, options: &OpenOptions) -> (Vec<Arc<dyn Device>>, OpenOptions) {
        let mut options = options.clone();
        if let Some(found) = &options.rescue.found {
            let mut found = FoundTrees::clone(found);
            found.newest = found.newest.max(self.superblock.generation);
            found.superblock.raw = self.superblock;
            options.rescue.found = Some(Arc::new(found));
        }
        (self.devices, options)
    }
}

/// Returns the devices of a file system for reading with its log replayed in memory, and options
/// that open them. Without a log, or if it cannot be replayed or the options choose roots, they are
/// the given ones.
pub fn replayed(
    devices: &[Arc<dyn Device>],
    options: &OpenOptions,
) -> Result<(Vec<Arc<dyn Device>>, OpenOptions)> {
    let volume = Volume::open(devices.to_vec(), options)?;
    let has_log = volume.superblock().log_root().is_some();
    if has_log && options.replay_log && !options.rescue.chooses_roots() {
        match replay_in_memory(devices, options, false) {
            Ok((replayed, _)) => return Ok(replayed.named_in(options)),
            Err(error) => {
                tracing::warn!("the log of fsyncs cannot be replayed: {}", reason_of(&error));
            }
        }
    }
    Ok((devices.to_vec(), options.clone()))
}

/// Replays the log into overlays of the devices. Nothing is written to the devices. Options that
/// ignore faults count for the reader only: a replay needs whole trees.
fn replay_in_memory(
    devices: &[Arc<dyn Device>],
    options: &OpenOptions,
    sound_items: bool,
) -> Result<(Replayed, Arc<FaultList>)> {
    let overlay = |device: &Arc<dyn Device>| -> Arc<dyn Device> {
        Arc::new(OverlayDevice::new(Arc::clone(device), options.replay_bytes))
    };
    let overlays: Vec<_> = devices.iter().map(overlay).collect();
    let mut options = options.clone().write(true).discard(DiscardMode::Off);
    options.in_memory = true;
    let mut rescue = Rescue { sound_items, ..Rescue::default() };
    if let Some(found) = &options.rescue.found {
        // Blocks of the log are newer than the commit, and are expected to be.
        let newest = found.superblock.raw.generation;
        rescue.found = Some(Arc::new(FoundTrees { newest, blocks: None, ..FoundTrees::clone(found) }));
    }
    options.rescue = rescue;
    let volume = Arc::new(Volume::open(overlays.clone(), &options)?);
    let trees = with_roots(&volume, Roots::current(volume.superblock()), &options)?;
    let transactions = open_transactions(&trees, &options)?;
    let faults = Arc::clone(trees.forest().faults());
    Ok((Replayed { devices: overlays, superblock: transactions.superblock() }, faults))
}

/// Replays the log as [`replay_in_memory`]. Where that fails and the options allow it, replays the
/// items of the log that are sound; the others are a cause in `older`.
fn replay_sound_items(
    devices: &[Arc<dyn Device>],
    options: &OpenOptions,
    older: &mut Vec<OlderState>,
    state: &dyn Fn(OlderCause) -> OlderState,
) -> Result<Replayed> {
    let whole = replay_in_memory(devices, options, false);
    let error = match whole {
        Ok((replayed, _)) => return Ok(replayed),
        Err(error) => error,
    };
    if !options.rescue.sound_items || !options.allow_older {
        return Err(error);
    }
    let Ok((replayed, faults)) = replay_in_memory(devices, options, true) else { return Err(error) };
    let faults = faults.all();
    // Without a fault of an item the second replay would have failed as the first did.
    let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
    older.push(OlderState { log: None, ..state(OlderCause::LogPartial { faults }) });
    Ok(replayed)
}

/// Reads the chunk tree and opens the root tree. Checks that the root block of the subvolume that
/// the options choose can be read; of a path, that of the top level may be lost.
fn with_roots(volume: &Arc<Volume>, roots: Roots, options: &OpenOptions) -> Result<Trees> {
    let rescue = &options.rescue;
    let reads = !options.write;
    let faults = Arc::new(FaultList::default());
    let sound_leaves = || rescue.sound_items.then(|| Box::new(SoundItems) as Box<dyn SoundLeaves>);
    let blocks = rescue.found.as_ref().and_then(|found| found.blocks.as_ref());
    let scanned =
        blocks.map(|blocks| Box::new(ScannedLeaves::new(blocks, volume.geometry())) as Box<dyn StandIns>);
    let lost = reads.then(|| {
        let parts = RescueParts { sound_leaves: sound_leaves(), ..RescueParts::default() };
        let forest = Forest::for_rescue(Arc::clone(volume), ROOTS_BYTES, parts);
        let root_tree = forest.tree(objectid::ROOT_TREE, roots.root);
        let all = rescue.sound_items;
        Box::new(LostRoots::new(root_tree, volume.geometry(), all, &faults)) as Box<dyn StandIns>
    });
    let stand_ins = match (scanned, lost) {
        (Some(scanned), Some(lost)) => Some(Box::new(Either(scanned, lost)) as Box<dyn StandIns>),
        (scanned, lost) => scanned.or(lost),
    };
    let ignore_csums = rescue.ignore_meta_csums;
    let parts = RescueParts { ignore_csums, stand_ins, sound_leaves: sound_leaves(), faults };
    let forest = Forest::for_rescue(Arc::clone(volume), block_bytes(options), parts);
    let trees = Trees::new(&forest, roots.root, roots.chunk_root);
    read_chunk_tree(volume, &trees.chunk_tree(), options)?;
    trees.root_tree().root_block()?;
    if let Some(address) = rescue.fs_root {
        show_as_top(volume, &trees, address)?;
        return Ok(trees);
    }
    let start = match &options.subvolume {
        SubvolumeChoice::Id(id) => *id,
        SubvolumeChoice::Default => default_subvolume(&trees).unwrap_or(objectid::FS_TREE),
        SubvolumeChoice::TopLevel | SubvolumeChoice::Path(_) => objectid::FS_TREE,
    };
    let found = match options.subvolume {
        // An id that no subvolume has is the caller's error, and no damage.
        SubvolumeChoice::Id(_) if start != objectid::FS_TREE => trees.subvolume(start),
        _ => trees.get(start, "the root of a subvolume"),
    };
    let found = found.and_then(|open| open.tree.require_root_block().map(|()| open));
    let Err(error) = found else { return Ok(trees) };
    let is_path = matches!(options.subvolume, SubvolumeChoice::Path(_));
    let allowed = rescue.ignore_bad_roots
        || start == objectid::FS_TREE && (is_path || options.allow_older) && !options.use_backup_root;
    if !reads || !allowed {
        return Err(error);
    }
    if start == objectid::FS_TREE && !matches!(trees.find(start), Ok(Some(_))) {
        // Its root item is lost.
        trees.show_as_top(start, RootPointer { address: LogicalAddress(0), level: 0, generation: None });
    }
    Ok(trees)
}

/// Shows the subvolume with the root block at `address` as the top level.
fn show_as_top(volume: &Arc<Volume>, trees: &Trees, address: LogicalAddress) -> Result<()> {
    let invalid = |text: String| Error::Invalid(format!("root of files {address}: {text}"));
    let header = header_at(volume, address).map_err(|error| match error {
        Error::TreeBlock { reason, .. } => invalid(format!("no tree block is there: {reason}")),
        other => invalid(other.to_string()),
    })?;
    if !objectid::is_subvolume(header.owner) {
        let (owner, level, generation) = (Objectid(header.owner.0), header.level, header.generation);
        return Err(invalid(format!(
            "it is a block of tree {owner}, level {level}, generation {generation}, not one of a subvolume"
        )));
    }
    let generation = Some(header.generation);
    trees.show_as_top(header.owner, RootPointer { address, level: header.level, generation });
    Ok(())
}

fn finish(
    trees: Trees,
    options: &OpenOptions,
    used_backup_root: bool,
    older: Vec<OlderState>,
) -> Result<FsInfo> {
    if options.write {
        if used_backup_root {
            let cause = "a backup root is in use".to_owned();
            return Err(Error::ReadOnlyFileSystem { cause });
        }
        return finish_live(&trees, options);
    }
    let root = choose_root(&trees, &options.subvolume)?.place();
    // Without a checksum tree only files that have no checksums can be read.
    let checksums = trees.find(objectid::CSUM_TREE).map(|open| open.map(|open| open.tree.clone()));
    let ignored = options.rescue.ignore_bad_roots;
    let checksums = match checksums {
        Ok(Some(tree)) if ignored && tree.root_block().is_err() => None,
        Err(_) if ignored => None,
        found => found?,
    };
    let verify = options.verify_data && (checksums.is_some() || !ignored);
    let volume = Arc::clone(trees.forest().volume());
    let reader = ReadContext::new(volume, checksums, verify);
    Ok(FsInfo { older, ..new(trees, reader, root, options, used_backup_root) })
}

/// Creates the state of an open file system without open files.
fn new(
    trees: Trees,
    reader: ReadContext,
    root: Place,
    options: &OpenOptions,
    used_backup_root: bool,
) -> FsInfo {
    let volume = trees.forest().volume();
    let unverified = ReadContext::new(Arc::clone(volume), None, false);
    let raw = &volume.superblock().raw;
    let unused = raw.total_bytes.saturating_sub(raw.bytes_used);
    let page_cache = page_cache(options, volume.geometry().sector_size, unused);
    FsInfo {
        trees,
        reader,
        unverified,
        root,
        subvolumes: ChangedSubvolumes::default(),
        first_change: Mutex::default(),
        open_inodes: OpenInodes::new(
            options.node_cache_bytes / CHECKSUM_SHARE,
            options.node_cache_bytes.saturating_mul(ORDERED_SHARE),
        ),
        dirty_inodes: DirtyInodes::default(),
        kept_inodes: KeptInodes::default(),
        deletions: Deletions::default(),
        name_changes: NameChanges::default(),
        changed_files: ChangedFiles::default(),
        tree_log: options.tree_log,
        sharing: Sharing::default(),
        exclusive: ExclusiveOp::default(),
        moving: Moving::default(),
        write_options: write_options(options),
        file_flags: options.file_flags,
        page_cache,
        tuning: options.tuning,
        read_ahead: ReadAhead::default(),
        background: Background::default(),
        heal_reads: options.heal_reads,
        used_backup_root,
        older: Vec::new(),
    }
}

/// Opens the file system for writing, and replays the log tree.
fn finish_live(committed: &Trees, options: &OpenOptions) -> Result<FsInfo> {
    let transactions = open_transactions(committed, options)?;
    let trees = Trees::live(&transactions);
    let root = choose_root(&trees, &options.subvolume)?.place();
    let reader = ReadContext::live(&transactions, options.verify_data, options.tuning.csum_lookup);
    let info = new(trees, reader, root, options, false);
    info.clean_relocated_data()?;
    Ok(info)
}

/// Starts transactions, and replays the log tree in the first one. Then drops the trees of a
/// balance that the kernel did not finish.
fn open_transactions(committed: &Trees, options: &OpenOptions) -> Result<Arc<Transactions>> {
    let run = TransactionOptions {
        dirty_limit: options.dirty_bytes.min(dirty_share(options.node_cache_bytes)),
        discard: options.discard,
        discards_in_commits: options.commit_interval.is_none(),
        chunk_bytes: options.chunk_bytes,
        keep_empty_groups: options.keep_empty_groups,
        timestamp: options.timestamp,
        replacing: options.replacing,
        in_memory: options.in_memory,
    };
    let log = committed.forest().volume().superblock().log_root();
    if log.is_some() && !options.replay_log {
        let cause = "it has a log tree, and the options forbid its replay".to_owned();
        return Err(Error::ReadOnlyFileSystem { cause });
    }
    let (root, chunk_root) = (committed.root_tree().root(), committed.chunk_tree().root());
    let transactions = Arc::new(Transactions::open(committed.forest(), root, chunk_root, run)?);
    if let Some((address, level)) = log {
        fsync_log::replay(&transactions, address, level)?;
    }
    drop_relocation_trees(&transactions)?;
    if options.superblock_mirror.is_some_and(|mirror| mirror > 0) {
        // The copies before it are bad. They are written anew even if nothing else changes.
        transactions.update_superblock(|_| {});
    }
    Ok(transactions)
}

/// Returns the most bytes of changed tree blocks that one transaction may have. With those of
/// another one that is being written they fill three quarters of the node cache.
fn dirty_share(node_cache_bytes: usize) -> u64 {
    (node_cache_bytes as u64 / 8 * 3).max(LEAST_DIRTY)
}

/// Returns the memory for tree blocks, including those that are not on disk yet. A writer gives
/// fixed shares of the node cache to checksums and delayed references: they come and go with every
/// commit, and would evict blocks that are soon needed again.
fn block_bytes(options: &OpenOptions) -> usize {
    let bytes = options.node_cache_bytes;
    if !options.write {
        return bytes;
    }
    bytes - bytes / CHECKSUM_SHARE - bytes / 8 * 3 / PENDING_SHARE as usize
}

/// Bytes of the page cache where direct I/O is the default.
const DEFAULT_CACHE: u64 = 256 << 20;

/// A file system with fewer unused bytes may soon be full.
const SCARCE: u64 = 400 << 20;

/// Returns the page cache, if the options want one. Its pages are of 4 KiB and are written back one
/// by one. So a file system with larger sectors, which are written as a whole, does without it.
fn page_cache(options: &OpenOptions, sector_size: u32, unused: u64) -> Option<PageCache> {
    let scarce = if options.write && unused < SCARCE { options.scarce_cache_bytes } else { 0 };
    let bytes = options.cache_bytes.filter(|&bytes| bytes > 0).or(Some(scarce).filter(|&bytes| bytes > 0))?;
    if sector_size as usize != PAGE_SIZE {
        tracing::warn!("sectors of {sector_size} bytes: the page cache is off, as its pages are smaller");
        return None;
    }
    let insert = options.tuning.cache_insert;
    Some(PageCache::with_options(CacheOptions { insert, ..CacheOptions::new(bytes) }))
}

/// Opens the device or image at `path` and those that the options name.
pub fn open_devices(path: &Path, options: &OpenOptions, access: Access) -> Result<Vec<Arc<dyn Device>>> {
    let further = ImageOptions { partition: PartitionChoice::Found, ..options.image.clone() };
    let all = std::iter::once((path, &options.image))
        .chain(options.devices.iter().map(|path| (path.as_path(), &further)));
    let mut devices = Vec::new();
    for (path, image) in all {
        // A seed is never written, and others may build on it, too.
        let access = match access {
            Access::ReadWrite if !options.devices.is_empty() && is_seed(path, image) => Access::ReadOnly,
            access => access,
        };
        let mut how = papilio_device::OpenOptions::new(access).take_over(options.take_over);
        if options.unlocked && access == Access::ReadOnly {
            how = how.lock(false);
        }
        let direct = options.direct_io.unwrap_or_else(|| is_direct_by_default(path, options));
        how = match direct {
            true => how.direct_where_useful(),
            false => how.direct_queue(options.direct_queue && options.direct_io.is_none()),
        };
        // An archive has all devices of its file system.
        for device in how.open_members(path, image)? {
            if access == Access::ReadWrite || is_raw(path, &*device) {
                check_signatures(&*device, options.ignore_signatures)?;
            }
            if direct {
                report_slow_io(path, &*device);
            }
            devices.push(decorated(device, path, options)?);
        }
    }
    Ok(devices)
}

/// Returns a device with the delay and the deadline that the options want.
fn decorated(device: Arc<dyn Device>, path: &Path, options: &OpenOptions) -> Result<Arc<dyn Device>> {
    let device: Arc<dyn Device> = match options.device_delay {
        None => device,
        Some(delay) => {
            let delayed = DelayDevice::new(device, delay).map_err(|error| {
                Error::Invalid(format!("{}: no thread to delay its requests: {error}", path.display()))
            })?;
            Arc::new(delayed)
        }
    };
    Ok(match options.device_timeout {
        None => device,
        Some(bound) => Arc::new(DeadlineDevice::new(device, bound)),
    })
}

/// Returns whether the superblock of a device says that it is a seed. Opening it reports faults.
fn is_seed(path: &Path, image: &ImageOptions) -> bool {
    let look = papilio_device::OpenOptions::new(Access::ReadOnly).lock(false);
    let superblock = look.open_image(path, image).ok().and_then(|device| superblock_of(&*device, 0).ok());
    superblock.is_some_and(|superblock| superblock.raw.flags.contains(SuperblockFlags::SEEDING))
}

/// Returns whether a device is the file or block device at `path` itself. An image
/// that is compressed, or on a server, is not read at both ends only to warn.
fn is_raw(path: &Path, device: &dyn Device) -> bool {
    std::fs::metadata(path).is_ok_and(|found| !found.is_file() || found.len() == device.size())
}

/// Returns whether a device is opened for direct I/O where the options leave that open.
fn is_direct_by_default(path: &Path, options: &OpenOptions) -> bool {
    options.write
        && !options.cached_by_default
        && std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// Logs why requests of a device that was opened for direct I/O are slower than they could be.
fn report_slow_io(path: &Path, device: &dyn Device) {
    let path = path.display();
    if device.alignment() == 1 {
        tracing::info!("{path}: no direct I/O there: requests pass through the host's page cache");
    } else if let Err(error) = papilio_device::io_uring_available() {
        tracing::info!("{path}: no io_uring ({error}): threads wait for the device instead");
    }
}

/// Returns the directory that paths start from.
fn choose_root(trees: &Trees, choice: &SubvolumeChoice) -> Result<InodeHandle> {
    match choice {
        SubvolumeChoice::TopLevel => subvolume_root(trees, objectid::FS_TREE),
        SubvolumeChoice::Id(id) => subvolume_root(trees, *id),
        SubvolumeChoice::Default => subvolume_root(trees, default_subvolume(trees)?),
        SubvolumeChoice::Path(path) => {
            let top = subvolume_root(trees, objectid::FS_TREE)?;
            let found = resolve(trees, &top, path, true)?;
            if found.number != found.subvolume.root_directory() {
                return Err(Error::path(path, PathError::NoSubvolume));
            }
            Ok(found)
        }
    }
}

/// Returns the options that writes of data follow.
fn write_options(options: &OpenOptions) -> WriteOptions {
    WriteOptions {
        max_inline: options.max_inline,
        compression: options.compression,
        force_compression: options.force_compression,
        checksum: options.tuning.write_checksum,
        verify_compression: options.tuning.verify_compression,
        immutable: options.immutable_at_open,
    }
}
