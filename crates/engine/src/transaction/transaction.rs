//! The running transaction and the state that all its handles share.
//!
//! Owns [`Transactions`]: the parts of an open, writable file system that lie below names and
//! files.
//!
//! **Invariants**
//! - One transaction runs at any time, and at most one more is being written.
//! - The gate keeps handles out of a commit's critical section, and the commit out of a change.
//! - After a failure nothing changes any more. The first cause is kept, and the disk stays as the
//!   last good commit left it.
//!
//! **Locks**, in this order:
//! - `cleaning`, `reserve_tickets`, `commit`, `gate`, a tree's writer, a tree's root, `sharing`,
//!   the extent tree's root, the chunks';
//! - leaves: `failure`, `changed_trees`, `dropped_data`, `pin`, those of the space and of the
//!   delayed references.
//!
//! Kernel counterpart: `start_transaction`, `btrfs_commit_transaction`, `btrfs_abort_transaction`
//! (`fs/btrfs/transaction.c`).

use super::chunks::{Chunks, copies_of};
use super::clock;
use super::commit_state::CommitState;
use super::delayed_refs::DelayedRefs;
use super::device_stats::load_counters;
use super::kernel_rules::{check_device_extents, check_mountable};
use super::live_trees::LiveTrees;
use super::log::running::RunningLog;
use super::pending_discards::Discards;
use super::quota::Quotas;
use super::reserve_tickets::ReserveTickets;
use super::writable::{check_writable, incomplete_chunks};
use crate::btree::{Forest, LiveTree, ReadPin, RootPointer};
use crate::errors::{Error, Result};
use crate::options::DiscardMode;
use crate::space::chunk_allocation::DeviceSpace;
use crate::space::load::{self, SpaceTrees};
use crate::space::{LogicalRange, MetadataNeed, Reservation, Space, SpaceKind};
use crate::volume::Volume;
use papilio_format::features::{CompatRoFeatures, IncompatFeatures};
use papilio_format::items::device::DeviceExtent;
use papilio_format::items::inode::Timespec;
use papilio_format::superblock::RawSuperblock;
use papilio_format::{DeviceId, Generation, ItemType, LogicalAddress, PhysicalAddress, TreeId, objectid};
use papilio_locks::{Mutex, MutexGuard, RwLock, might_lock, might_read};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Most bytes that ordinary changes leave to commits and deletions (the kernel's limit).
const GLOBAL_RESERVE_MAX: u64 = 512 << 20;
/// Fewest tree blocks that ordinary changes leave to commits and deletions.
const GLOBAL_RESERVE_BLOCKS: u64 = 32;

/// The share of [`TransactionOptions::dirty_limit`] that delayed references may fill: one in so
/// many.
pub const PENDING_SHARE: u64 = 4;

/// How transactions run.
#[derive(Clone, Debug)]
pub struct TransactionOptions {
    /// Bytes of changed tree blocks and delayed references in memory beyond which a change waits
    /// for a commit. Together with a commit that is being written, they may take twice as much.
    pub(crate) dirty_limit: u64,
    /// When freed space is discarded.
    pub(crate) discard: DiscardMode,
    /// Whether commits discard, because no thread does that in the background.
    pub(crate) discards_in_commits: bool,
    /// The most bytes of a new chunk; `None` takes the kernel's limits.
    pub(crate) chunk_bytes: Option<u64>,
    /// Whether commits leave empty block groups as they are.
    pub(crate) keep_empty_groups: bool,
    /// The time that all changes carry; `None` takes the clock's.
    pub(crate) timestamp: Option<Timespec>,
    /// Whether a replacement of a device may be under way: its caller writes nothing else.
    pub(crate) replacing: bool,
    /// Whether the devices are overlays, so that no change reaches the disk.
    pub(crate) in_memory: bool,
}

impl Default for TransactionOptions {
    fn default() -> Self {
        Self {
            dirty_limit: 128 << 20,
            discard: DiscardMode::Off,
            discards_in_commits: false,
            chunk_bytes: None,
            keep_empty_groups: false,
            timestamp: None,
            replacing: false,
            in_memory: false,
        }
    }
}

/// The shared state of an open, writable file system.
#[derive(Debug)]
pub struct Transactions {
    pub(super) volume: Arc<Volume>,
    pub(super) space: Arc<Space>,
    pub(super) chunks: Chunks,
    pub(super) live: LiveTrees,
    pub(super) refs: DelayedRefs,
    pub(super) log: RunningLog,
    pub(super) discards: Discards,
    /// The qgroups.
    quotas: Quotas,
    pub(super) options: TransactionOptions,
    /// The number of the running transaction.
    pub(super) generation: AtomicU64,
    /// The clock that freezes advance.
    pub(super) stamp: AtomicU64,
    pub(super) gate: RwLock<()>,
    pub(super) commit: Mutex<CommitState>,
    /// Trees with blocks that are not on disk.
    pub(super) changed_trees: Mutex<BTreeSet<TreeId>>,
    /// Bytes of tree blocks that the running transaction made and that are not on disk.
    pub(super) dirty_bytes: AtomicU64,
    /// Bytes of frozen tree blocks that a commit has yet to write.
    pub(super) frozen_bytes: AtomicU64,
    /// Data extents that were allocated and dropped within the running transaction. Their checksums
    /// must go.
    pub(super) dropped_data: Mutex<Vec<(LogicalAddress, u64)>>,
    /// Held while a block's reference count is looked up and acted on.
    pub(super) sharing: Mutex<()>,
    /// Held by the thread that drops the trees of deleted subvolumes.
    cleaning: Mutex<()>,
    /// Threads that found no space.
    pub(super) reserve_tickets: ReserveTickets,
    /// Feature bits that the next superblock gets.
    pub(super) features: Mutex<IncompatFeatures>,
    /// The pin that new readers get.
    pub(super) pin: Mutex<ReadPin>,
    /// When the sizes that `statfs` shows led to a commit.
    pub(super) removals_committed: Mutex<Option<Instant>>,
    failed: AtomicBool,
    failure: Mutex<Option<String>>,
}

impl Transactions {
    /// Takes over the file system on `volume`, whose chunk tree has been read.
    ///
    /// # Errors
    /// [`Error::ReadOnlyFileSystem`] for a file system that this code cannot write correctly; a
    /// tree that cannot be read; space items that contradict each other.
    pub(crate) fn open(
        forest: &Arc<Forest>,
        root: RootPointer,
        chunk_root: RootPointer,
        options: TransactionOptions,
    ) -> Result<Self> {
        let volume = Arc::clone(forest.volume());
        let live = LiveTrees::new(forest, root, chunk_root);
        check_writable(&volume, &live, options.replacing, options.in_memory)?;
        check_mountable(&volume, &live)?;
        let devices = device_spaces(&volume, &live)?;
        let geometry = volume.geometry();
        let extent = live.get(objectid::EXTENT_TREE)?.tree();
        let block_group = if geometry.compat_ro.contains(CompatRoFeatures::BLOCK_GROUP_TREE) {
            Some(live.get(objectid::BLOCK_GROUP_TREE)?.tree())
        } else {
            None
        };
        let free_space = if geometry.compat_ro.contains(CompatRoFeatures::FREE_SPACE_TREE) {
            Some(live.get(objectid::FREE_SPACE_TREE)?.tree())
        } else {
            None
        };
        let trees = SpaceTrees {
            extent: &extent,
            block_group: block_group.as_ref(),
            free_space: free_space.as_ref(),
        };
        let space = Arc::new(load::load(trees, &volume.chunk_map(), &geometry, devices.len())?);
        for chunk in volume.chunk_map().iter().filter(|chunk| volume.is_on_seed(chunk)) {
            space.keep_read_only(chunk.start());
        }
        for (start, _) in incomplete_chunks(&volume) {
            space.keep_read_only(start);
        }
        let chunks = Chunks::new(devices, options.chunk_bytes);
        chunks.count_unallocated(&space);
        load_counters(&volume, &live.get(objectid::DEV_TREE)?.tree())?;
        let raw = volume.superblock().raw;
        let quotas = Quotas::default();
        quotas.load(live.find(objectid::QUOTA_TREE)?.map(|live| live.tree()).as_ref(), raw.generation)?;
        let transactions = Self {
            space,
            chunks,
            live,
            refs: DelayedRefs::default(),
            log: RunningLog::default(),
            discards: Discards::default(),
            quotas,
            options,
            generation: AtomicU64::new(raw.generation.0 + 1),
            stamp: AtomicU64::new(1),
            gate: RwLock::new(()),
            commit: Mutex::new(CommitState::new(raw)),
            changed_trees: Mutex::default(),
            dirty_bytes: AtomicU64::new(0),
            frozen_bytes: AtomicU64::new(0),
            dropped_data: Mutex::default(),
            sharing: Mutex::default(),
            cleaning: Mutex::default(),
            reserve_tickets: ReserveTickets::default(),
            features: Mutex::default(),
            pin: Mutex::default(),
            removals_committed: Mutex::new(None),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            volume,
        };
        transactions.set_global_reserve();
        Ok(transactions)
    }

    /// The trees.
    pub fn live(&self) -> &LiveTrees {
        &self.live
    }

    /// The space.
    pub fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// The chunks.
    pub fn chunks(&self) -> &Chunks {
        &self.chunks
    }

    /// The qgroups.
    #[inline]
    pub fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// The delayed references.
    pub(super) fn delayed(&self) -> &DelayedRefs {
        &self.refs
    }

    /// Keeps commits from happening, while the caller reads the state of the last one.
    pub(super) fn lock_commit(&self) -> MutexGuard<'_, CommitState> {
        self.commit.lock()
    }

    /// Calls `read` with the superblock of the last commit, while no commit runs: the extent tree
    /// then has the extents of that commit, and all of its blocks are on the devices.
    pub fn between_commits<R>(&self, read: impl FnOnce(&RawSuperblock) -> R) -> R {
        let state = self.commit.lock();
        read(state.last())
    }

    /// The volume.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Returns the current pin. While a reader holds it, no space that the reader's trees reach is
    /// reused. The reader must take the pin before it takes a tree.
    pub fn pin(&self) -> ReadPin {
        Arc::clone(&self.pin.lock())
    }

    /// A copy of the superblock that the next commit will write.
    pub fn superblock(&self) -> RawSuperblock {
        self.commit.lock().superblock
    }

    /// Changes the superblock that the next commit writes.
    pub fn update_superblock(&self, change: impl FnOnce(&mut RawSuperblock)) {
        let mut state = self.commit.lock();
        change(&mut state.superblock);
        state.superblock_changed = true;
    }

    /// Adds feature bits to the next superblock, because something in this transaction needs them.
    pub fn require_features(&self, features: IncompatFeatures) {
        *self.features.lock() |= features;
    }

    /// Takes feature bits out of the next superblock, since nothing needs them any more.
    pub(super) fn forget_features(&self, features: IncompatFeatures) {
        self.features.lock().remove(features);
        self.update_superblock(|raw| raw.incompat_flags.remove(features));
    }

    /// The number of the running transaction. Without a handle it may end at any time.
    pub fn generation(&self) -> Generation {
        Generation(self.generation.load(Ordering::Acquire))
    }

    /// Makes `generation` the number of the running transaction if it is higher. Only for a new
    /// file system that takes over items with the numbers of another one, before its first change.
    pub fn start_at(&self, generation: Generation) {
        let _state = self.commit.lock();
        assert!(!self.is_dirty(), "a transaction that began keeps its number");
        self.generation.fetch_max(generation.0, Ordering::AcqRel);
    }

    /// Waits for the right to drop deleted subvolumes, which one thread has at a time. The caller
    /// holds no handle.
    pub fn lock_cleaning(&self) -> MutexGuard<'_, ()> {
        self.cleaning.lock()
    }

    /// The number of extents with delayed references, whose memory only a commit frees.
    pub(crate) fn delayed_refs(&self) -> usize {
        self.refs.len()
    }

    /// Bytes of tree blocks that are not on disk, and bytes of delayed references.
    pub fn memory(&self) -> (u64, u64) {
        let [dirty, frozen] =
            [&self.dirty_bytes, &self.frozen_bytes].map(|bytes| bytes.load(Ordering::Relaxed));
        (dirty + frozen, self.refs.bytes())
    }

    /// The time that a change made now carries.
    pub fn now(&self) -> Timespec {
        self.options.timestamp.unwrap_or_else(clock::now)
    }

    /// Whether all changes carry one fixed time, so that equal changes make equal images.
    pub(crate) fn is_reproducible(&self) -> bool {
        self.options.timestamp.is_some()
    }

    /// Bytes of a tree block.
    pub fn node_size(&self) -> u64 {
        self.volume.geometry().node_size.into()
    }

    /// Tells the lock checker that the caller may join the running transaction or commit.
    #[inline]
    pub(crate) fn might_change(&self) {
        might_lock(&self.commit);
        might_read(&self.gate);
    }

    /// Commits if tree blocks and delayed references in memory exceed the limit. Waits for a commit
    /// that is being written if both together exceed twice the limit.
    ///
    /// # Errors
    /// As [`Transactions::commit`].
    pub fn commit_if_full(&self) -> Result<()> {
        let generation = self.generation();
        let limit = self.options.dirty_limit;
        let pending = self.refs.bytes();
        let running = self.dirty_bytes.load(Ordering::Relaxed) + pending;
        if running > limit || pending > limit / PENDING_SHARE {
            // Of all threads that get here at once, one commits.
            return self.commit_transaction(generation);
        }
        if running + self.frozen_bytes.load(Ordering::Relaxed) > 2 * limit {
            return self.wait_for_commit();
        }
        Ok(())
    }

    /// Makes the file system read-only for good. The first cause is kept.
    pub(crate) fn abort(&self, cause: &Error) {
        let mut failure = self.failure.lock();
        if failure.is_none() {
            tracing::error!("the file system is now read-only: {cause}");
            *failure = Some(cause.to_string());
        }
        self.failed.store(true, Ordering::Release);
    }

    /// The first failure, if there was one.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    /// Checks that no failure has made the file system read-only.
    ///
    /// # Errors
    /// [`Error::ReadOnlyFileSystem`] after a failure.
    pub fn check_running(&self) -> Result<()> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(Error::ReadOnlyFileSystem { cause: self.failure().unwrap_or_default() })
    }

    /// Whether there is anything to commit.
    pub(crate) fn is_dirty(&self) -> bool {
        !self.changed_trees.lock().is_empty()
            || !self.refs.is_empty()
            || self.volume.devices().counters().are_changed()
            || self.volume.needs_commit()
    }

    /// Allocates space of a kind, and makes a chunk if no block group has enough.
    pub(super) fn allocate(&self, kind: SpaceKind, min: u64, want: u64) -> Result<LogicalRange> {
        match self.space.allocate(kind, min, want) {
            Err(Error::NoSpace { what }) => {
                // Where there is no space for a chunk, another thread may just have made the last.
                let _ = self.chunks.allocate(&self.volume, &self.space, kind);
                self.space.allocate(kind, min, want).map_err(|_| Error::NoSpace { what })
            }
            result => result,
        }
    }

    /// Allocates space for data: as much of `want` as the reservations of metadata, which may share
    /// the block groups, leave over, and at least `min` bytes.
    pub fn allocate_data(&self, min: u64, want: u64) -> Result<LogicalRange> {
        let mut least = want;
        loop {
            match self.space.allocate_unpromised(min, want, least) {
                // After the last chunk, whatever is left will do.
                Err(Error::NoSpace { .. }) if least > 0 => {
                    if self.chunks.allocate(&self.volume, &self.space, SpaceKind::Data).is_err() {
                        least = 0;
                    }
                }
                result => return result,
            }
        }
    }

    /// Allocates exactly this range of data, as [`Transactions::allocate_data`] would. For a
    /// conversion in place: content lies there already, and extents will refer to it. The caller
    /// claims all such ranges before it allocates anything. It gives each an extent by
    /// [`Handle::add_data_ref`](super::Handle::add_data_ref), or releases it.
    ///
    /// # Errors
    /// [`Error::Item`] if a part of it is not free, or is where a superblock copy could be.
    pub fn claim_data(&self, range: LogicalRange) -> Result<()> {
        self.space.claim(range)
    }

    /// Commits even if nothing changed, so that block groups which are empty by now go.
    ///
    /// # Errors
    /// As [`Transactions::commit`].
    pub(crate) fn commit_anyway(&self) -> Result<()> {
        self.commit.lock().superblock_changed = true;
        self.commit()
    }

    /// Returns a lower bound of the bytes of data that can be written now.
    pub fn writable_bytes(&self, need: &MetadataNeed) -> u64 {
        let copies = |kind| copies_of(self.space.chunk_flags(kind));
        self.space.writable_bytes(need, copies(SpaceKind::Metadata), copies(SpaceKind::Data))
    }

    /// Reserves space for data and for the metadata that goes with it. Makes chunks, or commits,
    /// where that helps.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::ReadOnlyFileSystem`] after a failure.
    pub(crate) fn reserve(&self, data: u64, metadata: u64) -> Result<(Reservation, Reservation)> {
        might_lock(&self.commit);
        self.retry_after_commits(|| {
            loop {
                self.check_running()?;
                match self.space.reserve_data(data) {
                    Ok(data) => return Ok((data, self.space.reserve_metadata(metadata, false)?)),
                    Err(Error::NoSpace { .. })
                        if self.chunks.allocate(&self.volume, &self.space, SpaceKind::Data).is_ok() => {}
                    Err(error) => return Err(error),
                }
            }
        })
    }

    /// Reserves metadata, without commits.
    ///
    /// # Errors
    /// As [`Transactions::reserve`].
    pub(crate) fn reserve_metadata(&self, bytes: u64) -> Result<Reservation> {
        self.check_running()?;
        self.space.reserve_metadata(bytes, false)
    }

    /// Counts a block that a tree got. The caller holds the gate.
    pub(super) fn block_added(&self, tree: &LiveTree) {
        self.dirty_bytes.fetch_add(self.node_size(), Ordering::Relaxed);
        self.live.forest().unwritten_grew(self.node_size());
        self.changed_trees.lock().insert(tree.id());
    }

    /// Counts a block of the running transaction that is gone. The caller holds the gate.
    pub(super) fn block_dropped(&self) {
        self.dirty_bytes.fetch_sub(self.node_size(), Ordering::Relaxed);
        self.live.forest().unwritten_shrank(self.node_size());
    }

    /// Notes that the checksums of a dropped data extent must go with the next commit.
    pub(super) fn note_dropped_data(&self, address: LogicalAddress, length: u64) {
        self.dropped_data.lock().push((address, length));
    }

    /// Keeps back as much metadata as a commit may need to copy the trees that it changes.
    pub(super) fn set_global_reserve(&self) {
        let trees = [
            objectid::EXTENT_TREE,
            objectid::CSUM_TREE,
            objectid::FREE_SPACE_TREE,
            objectid::BLOCK_GROUP_TREE,
            objectid::DEV_TREE,
        ];
        let used: u64 = trees
            .into_iter()
            .filter_map(|id| self.live.find(id).ok().flatten()?.record())
            .map(|record| record.item.bytes_used)
            .fold(0, u64::saturating_add);
        let least = GLOBAL_RESERVE_BLOCKS * self.node_size();
        self.space.set_global_reserve(used.saturating_add(least).min(GLOBAL_RESERVE_MAX));
    }
}

impl Transactions {
    /// Lets chunks be made on a device that was missing.
    ///
    /// # Errors
    /// A block of the device tree that cannot be read.
    pub fn device_appeared(&self, devid: DeviceId) -> Result<()> {
        if self.chunks.has_device(devid) {
            return Ok(());
        }
        let devices = device_spaces(&self.volume, &self.live)?;
        if let Some(device) = devices.into_iter().find(|device| device.devid == devid) {
            self.chunks.add_device(device, &self.space);
        }
        Ok(())
    }
}

/// Reads from the device tree which ranges of each device are in use.
fn device_spaces(volume: &Volume, live: &LiveTrees) -> Result<Vec<DeviceSpace>> {
    let dev_tree = live.get(objectid::DEV_TREE)?.tree();
    let mut devices: Vec<DeviceSpace> = volume
        .devices()
        .iter()
        .filter(|slot| slot.in_chunk_tree && !slot.is_missing() && !volume.is_seed(slot.devid()))
        .map(|slot| DeviceSpace {
            devid: slot.item.devid,
            uuid: slot.item.uuid,
            total_bytes: slot.item.total_bytes,
            used: Vec::new(),
        })
        .collect();
    let mut extents = Vec::new();
    for item in dev_tree.items() {
        let item = item?;
        if item.key.item_type != ItemType::DEV_EXTENT {
            continue;
        }
        let extent = DeviceExtent::parse(item.data()).map_err(|reason| Error::Item {
            tree: dev_tree.id(),
            key: item.key,
            reason,
        })?;
        if let Some(device) = devices.iter_mut().find(|device| device.devid.0 == item.key.objectid) {
            device.used.push((PhysicalAddress(item.key.offset), extent.length));
        }
        extents.push((item.key, extent));
    }
    check_device_extents(volume, &extents)?;
    Ok(devices)
}
