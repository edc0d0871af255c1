//! The commit: the running transaction becomes the state on disk.
//!
//! Owns [`Transactions::commit`]. The critical section excludes handles. In it the commit applies
//! delayed references and updates block groups, the free-space tree and root items until none of
//! that causes further changes. Then it freezes all trees, and the next transaction may run.
//! Outside the critical section the commit writes the frozen blocks, flushes the devices, and
//! writes the superblocks, always in this order.
//!
//! **Invariants**
//! - Nothing that the last commit's trees refer to is overwritten before this commit's superblocks
//!   are on disk.
//! - A failure anywhere makes the file system read-only.
//!
//! **Locks**, in this order: `commit` throughout; `gate`, exclusively, in the critical section.
//!
//! Kernel counterparts: `btrfs_commit_transaction`, `commit_cowonly_roots`
//! (`fs/btrfs/transaction.c`), `write_all_supers` (`fs/btrfs/disk-io.c`).

use super::chunk_items::{put_block_group, remove_system_chunk};
use super::commit_state::{CommitState, FreedSpace};
use super::csum_items::remove_sums;
use super::delayed_refs::{Head, RefKind};
use super::device_stats::changed_items;
use super::extent_items::ExtentItems;
use super::handle::Handle;
use super::start::Start;
use super::transaction::Transactions;
use crate::btree::{Change, LiveTree, ReadPin, Tree, dirty_blocks};
use crate::errors::{Error, Result};
use crate::options::DiscardMode;
use crate::space::{BlockGroupUpdate, LogicalRange, Pinned, free_space_tree};
use crate::volume::DevReplace;
use papilio_device::AlignedBuffer;
use papilio_format::features::CompatRoFeatures;
use papilio_format::items::root::{RootItem, root_key};
use papilio_format::superblock::{RawSuperblock, RootBackup};
use papilio_format::{DeviceId, Generation, Key, LogicalAddress, PhysicalAddress, TreeId, objectid};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Heads that are applied to the extent tree in one pass. Many heads share leaves, but the changes
/// of a pass take memory besides the heads.
const HEADS_AT_ONCE: usize = 4096;
/// How often, and how long each time, a thread without space waits for readers of earlier states.
const READER_WAITS: usize = 100;
const READER_WAIT: Duration = Duration::from_millis(1);

/// Extents that a pass over the delayed references inserted and removed.
#[derive(Default)]
struct AppliedExtents {
    inserted: Vec<LogicalRange>,
    removed: Vec<LogicalRange>,
    /// Removed data extents (address, bytes), whose checksums must go.
    sums: Vec<(LogicalAddress, u64)>,
}

/// A transaction that does not change any more.
struct Frozen {
    stamp: u64,
    trees: Vec<(Arc<LiveTree>, Tree)>,
    superblock: RawSuperblock,
    pin: ReadPin,
    pinned: Pinned,
    freed: Vec<(DeviceId, PhysicalAddress)>,
    log_blocks: Vec<LogicalRange>,
    /// Whether the transaction had changes, or exists for its superblock only.
    has_changes: bool,
}

impl Transactions {
    /// Makes all changes made before the call durable.
    ///
    /// # Errors
    /// [`Error::ReadOnlyFileSystem`](crate::Error::ReadOnlyFileSystem) after an earlier failure;
    /// else the failure of this commit, which makes the file system read-only.
    pub fn commit(&self) -> Result<()> {
        let mut state = self.commit.lock();
        self.check_running()?;
        let result = self.commit_locked(&mut state, || {});
        if let Err(error) = &result {
            self.abort(error);
        }
        result
    }

    /// Commits, and lets the target of `dev_replace` take the place of device `devid`. Trees and
    /// logs of earlier states are on both devices; the superblocks of this one are on the target.
    ///
    /// # Errors
    /// As [`Transactions::commit`]; a failure of the target, which makes the file system read-only.
    pub(crate) fn commit_replacing(&self, devid: DeviceId, dev_replace: &Arc<DevReplace>) -> Result<()> {
        let mut state = self.commit.lock();
        self.check_running()?;
        state.superblock_changed = true;
        state.replaced = Some((devid, Arc::clone(dev_replace)));
        self.commit_locked(&mut state, || {}).inspect_err(|error| self.abort(error))
    }

    /// Makes the changes of transaction `generation` durable, unless a commit has done so already.
    ///
    /// # Errors
    /// As [`Transactions::commit`].
    pub(crate) fn commit_transaction(&self, generation: Generation) -> Result<()> {
        let mut state = self.commit.lock();
        if state.written.generation >= generation {
            return Ok(());
        }
        self.check_running()?;
        self.commit_locked(&mut state, || {}).inspect_err(|error| self.abort(error))
    }

    /// Makes a change on the terms of [`Start::first`], after a commit of all earlier ones.
    pub(super) fn change_first<R>(
        &self,
        start: Start<'_>,
        change: &mut dyn FnMut(&Handle<'_>) -> Result<R>,
    ) -> Result<R> {
        let mut state = self.commit.lock();
        self.check_running()?;
        let mut result = None;
        self.commit_locked(&mut state, || result = Some(self.run_alone(start, change)))
            .inspect_err(|error| self.abort(error))?;
        result.expect("a commit without an error runs what follows it")
    }

    /// Makes a change on the terms of [`Start::last`].
    pub(super) fn change_last<R>(
        &self,
        start: Start<'_>,
        change: &mut dyn FnMut(&Handle<'_>) -> Result<R>,
    ) -> Result<R> {
        let fatal = |error: &Error| self.abort(error);
        let mut state = self.commit.lock();
        self.check_running()?;
        let alone = self.quotas().is_counting();
        if alone {
            // Leaves little to write while the gate is closed.
            self.commit_locked(&mut state, || {}).inspect_err(fatal)?;
        }
        let (result, frozen) = {
            let _gate = self.gate.write();
            if alone && (self.is_dirty() || state.superblock_changed) {
                let frozen = self.end_transaction(&mut state).inspect_err(fatal)?;
                self.write_transaction(&mut state, frozen).inspect_err(fatal)?;
            }
            let result = self.run_alone(start, change)?;
            (result, self.end_transaction(&mut state).inspect_err(fatal)?)
        };
        self.write_transaction(&mut state, frozen).inspect_err(fatal)?;
        while self.volume.needs_commit() {
            self.commit_once(&mut state, || {}).inspect_err(fatal)?;
        }
        Ok(result)
    }

    /// Waits until no commit is being written. The changes of transactions before the running one
    /// are then durable.
    ///
    /// # Errors
    /// [`Error::ReadOnlyFileSystem`](crate::Error::ReadOnlyFileSystem) if a commit failed.
    pub(crate) fn wait_for_commit(&self) -> Result<()> {
        drop(self.commit.lock());
        self.check_running()
    }

    /// Waits until readers of earlier states have ended and what commits freed can be used; not
    /// for long, because a reader may take its time.
    ///
    /// # Errors
    /// As [`Transactions::wait_for_commit`].
    pub(crate) fn wait_for_readers(&self) -> Result<()> {
        for _ in 0..READER_WAITS {
            let mut state = self.commit.lock();
            self.unpin_waiting(&mut state);
            if state.waiting.is_empty() {
                break;
            }
            drop(state);
            std::thread::sleep(READER_WAIT);
        }
        self.check_running()
    }

    /// Commits, and runs `first` before the next transaction's changes, even if there was nothing
    /// to commit. Commits again until the superblocks tell of devices that were lost.
    fn commit_locked(&self, state: &mut CommitState, first: impl FnOnce()) -> Result<()> {
        self.commit_once(state, first)?;
        while self.volume.needs_commit() {
            self.commit_once(state, || {})?;
        }
        Ok(())
    }

    fn commit_once(&self, state: &mut CommitState, first: impl FnOnce()) -> Result<()> {
        let frozen = {
            let _gate = self.gate.write();
            if !self.is_dirty() && !state.superblock_changed {
                first();
                drop(_gate);
                self.unpin_waiting(state);
                return Ok(());
            }
            let frozen = self.end_transaction(state)?;
            first();
            frozen
        };
        self.write_transaction(state, frozen)
    }

    /// Commits, and makes a transaction of `change` alone while no other change runs. The trees
    /// have no change that is not on disk when `change` begins. It changes where extents are, but
    /// not who owns them, so quotas need not count. If it fails and has changed nothing, the file
    /// system goes on.
    ///
    /// # Errors
    /// As [`Transactions::commit`]; errors of `change`.
    pub(super) fn commit_alone(&self, change: impl FnOnce(&mut AlignedBuffer) -> Result<()>) -> Result<()> {
        self.commit_alone_counted(false, change)
    }

    /// As [`Transactions::commit_alone`]. Quotas count what `change` marked, if `counts` says so.
    ///
    /// # Errors
    /// As [`Transactions::commit_alone`].
    pub(super) fn commit_alone_counted(
        &self,
        counts: bool,
        change: impl FnOnce(&mut AlignedBuffer) -> Result<()>,
    ) -> Result<()> {
        let mut state = self.commit.lock();
        self.check_running()?;
        let fatal = |error: &Error| self.abort(error);
        let frozen = {
            let _gate = self.gate.write();
            if self.is_dirty() || state.superblock_changed {
                let frozen = self.end_transaction(&mut state).inspect_err(fatal)?;
                self.write_transaction(&mut state, frozen).inspect_err(fatal)?;
            }
            change(&mut state.buffer)?;
            state.only_moves = !counts;
            let frozen = self.end_transaction(&mut state);
            state.only_moves = false;
            frozen.inspect_err(fatal)?
        };
        self.write_transaction(&mut state, frozen).inspect_err(fatal)?;
        while self.volume.needs_commit() {
            self.commit_once(&mut state, || {}).inspect_err(fatal)?;
        }
        Ok(())
    }

    /// Commits also where nothing has changed. Each commit removes the block groups that the one
    /// before it left empty.
    ///
    /// # Errors
    /// As [`Transactions::commit`].
    pub(crate) fn commit_always(&self) -> Result<()> {
        self.commit_alone(|_| Ok(()))
    }

    /// Commits what has changed, and runs `read` while nothing changes. All blocks of the trees are
    /// on disk then.
    ///
    /// # Errors
    /// As [`Transactions::commit`]; errors of `read`.
    pub(super) fn read_still<R>(&self, read: impl FnOnce() -> Result<R>) -> Result<R> {
        let mut state = self.commit.lock();
        self.check_running()?;
        let fatal = |error: &Error| self.abort(error);
        let _gate = self.gate.write();
        if self.is_dirty() || state.superblock_changed {
            let frozen = self.end_transaction(&mut state).inspect_err(fatal)?;
            self.write_transaction(&mut state, frozen).inspect_err(fatal)?;
        }
        read()
    }

    /// Ends the running transaction. The caller holds the gate exclusively.
    fn end_transaction(&self, state: &mut CommitState) -> Result<Frozen> {
        self.check_running()?;
        let has_changes = self.is_dirty();
        self.prepare(state)?;
        Ok(Frozen { has_changes, ..self.freeze(state)? })
    }

    /// Makes an ended transaction durable.
    fn write_transaction(&self, state: &mut CommitState, mut frozen: Frozen) -> Result<()> {
        let trees = std::mem::take(&mut frozen.trees);
        self.write_out(&trees, &mut state.buffer)?;
        for (tree, root) in trees {
            // Drops the root, so that only blocks which the tree still has stay in memory.
            drop(root);
            tree.settle(frozen.stamp);
        }
        let left = self.frozen_bytes.swap(0, Ordering::Relaxed);
        self.live.forest().unwritten_shrank(left);
        self.volume.flush()?;
        if let Some((devid, dev_replace)) = state.replaced.take() {
            dev_replace.check()?;
            self.volume.set_device(devid, Some(dev_replace.target()), false);
        }
        self.volume.write_superblocks(&frozen.superblock)?;
        (state.written, state.log_superblocks) = (frozen.superblock, None);
        self.log.queue.committed(frozen.superblock.generation);
        for range in frozen.log_blocks {
            self.space.release(range);
        }
        let generation = frozen.superblock.generation;
        self.discards.committed(generation);
        let has_changes = frozen.has_changes;
        self.free_chunks(generation, has_changes, frozen.freed);
        state.waiting.push_back(FreedSpace {
            pin: frozen.pin,
            pinned: frozen.pinned,
            generation,
            has_changes,
        });
        self.unpin_waiting(state);
        self.set_global_reserve();
        if self.options.discard == DiscardMode::Async && self.options.discards_in_commits {
            self.try_discard(|| self.discard_freed(|_| true).map(drop));
        }
        Ok(())
    }

    /// Frees pinned space that no reader can reach any more.
    fn unpin_waiting(&self, state: &mut CommitState) {
        while let Some(freed) = state.waiting.front()
            && Arc::strong_count(&freed.pin) == 1
        {
            let freed = state.waiting.pop_front().expect("the queue has a front");
            match self.options.discard {
                DiscardMode::Off => {}
                DiscardMode::Sync => {
                    for range in freed.pinned.ranges() {
                        self.try_discard(|| self.volume.discard(range.start, range.length).map(drop));
                    }
                }
                DiscardMode::Async => {
                    let ranges = freed.pinned.ranges().map(|range| range.bytes());
                    self.discards.freed(freed.generation, freed.has_changes, ranges);
                }
            }
            self.space.unpin(freed.pinned);
        }
    }

    /// Frees the space of removed chunks.
    fn free_chunks(
        &self,
        generation: Generation,
        has_changes: bool,
        freed: Vec<(DeviceId, PhysicalAddress)>,
    ) {
        let extents = match self.options.discard {
            DiscardMode::Off => Vec::new(),
            _ => self.chunks.extents(&freed),
        };
        if self.options.discard == DiscardMode::Async {
            self.discards.removed(generation, has_changes, &extents);
        }
        self.chunks.committed(freed, &self.space);
        if self.options.discard == DiscardMode::Sync {
            for extent in extents {
                let range = extent.start.0..extent.start.0.saturating_add(extent.length);
                self.try_discard(|| self.discard_unallocated(extent.devid, range, &mut |_| true).map(drop));
            }
        }
    }

    /// Runs a discard. A device that fails it is no reason for the commit to fail.
    fn try_discard(&self, discard: impl FnOnce() -> Result<()>) {
        if let Err(error) = discard() {
            tracing::debug!("discarding freed space: {error}");
        }
    }

    /// Updates the trees until no update causes another.
    fn prepare(&self, state: &mut CommitState) -> Result<()> {
        let handle = Handle::new(self, None, None, self.now());
        // The superblock's generation has to equal the root tree's, whatever else changed.
        self.live.root_tree().edit(&handle).own_root()?;
        self.save_counters(&handle)?;
        // First, because a chunk that is removed below may have been made since the last commit.
        self.insert_chunks(&handle, state)?;
        let empty = match self.options.keep_empty_groups {
            true => Vec::new(),
            false => self.remove_empty_groups(&handle)?,
        };
        for start in empty {
            remove_system_chunk(&mut state.superblock, start)?;
        }
        if self.quotas().is_on() {
            let touched = if state.only_moves { Vec::new() } else { self.touched_extents() };
            if !touched.is_empty() || self.quotas().is_simple() {
                self.run_delayed_refs(&handle)?;
            }
            self.update_quotas(&handle, &state.written, &touched)?;
        }
        loop {
            // The order matters: block groups are read before chunks, so that no group is seen
            // without its chunk.
            let updates = self.space.dirty_groups();
            let made = self.insert_chunks(&handle, state)?;
            let sums = std::mem::take(&mut *self.dropped_data.lock());
            let more = !updates.is_empty() || made || !sums.is_empty();
            self.remove_sums(&handle, sums)?;
            let ran = self.run_delayed_refs(&handle)?;
            self.update_block_groups(&handle, &updates)?;
            let changed = self.update_roots(&handle)?;
            if !more && !ran && !changed {
                return Ok(());
            }
        }
    }

    /// Saves the error counters of devices that changed since the last commit.
    fn save_counters(&self, handle: &Handle<'_>) -> Result<()> {
        if !self.volume.devices().counters().are_changed() {
            return Ok(());
        }
        let tree = self.live.get(objectid::DEV_TREE)?;
        let mut editor = tree.edit(handle);
        changed_items(&self.volume, &editor.tree())?
            .into_iter()
            .try_for_each(|(key, bytes)| editor.put(key, &bytes))
    }

    fn remove_sums(&self, handle: &Handle<'_>, mut ranges: Vec<(LogicalAddress, u64)>) -> Result<()> {
        if ranges.is_empty() {
            return Ok(());
        }
        ranges.sort_unstable();
        let Some(tree) = self.live.find(objectid::CSUM_TREE)? else { return Ok(()) };
        remove_sums(&mut tree.edit(handle), &ranges)
    }

    /// Applies the delayed references to the extent tree. Returns whether there were any.
    fn run_delayed_refs(&self, handle: &Handle<'_>) -> Result<bool> {
        let heads = self.refs.take();
        if heads.is_empty() {
            return Ok(false);
        }
        let live = self.live.get(objectid::EXTENT_TREE)?;
        let mut editor = live.edit(handle);
        let mut extents = AppliedExtents::default();
        let mut heads = heads.into_iter();
        while heads.len() > 0 {
            let changes =
                self.extent_changes(&editor.tree(), heads.by_ref().take(HEADS_AT_ONCE), &mut extents)?;
            editor.apply(&changes)?;
        }
        drop(editor);
        for range in extents.inserted {
            self.space.extent_inserted(range);
        }
        for range in extents.removed {
            self.space.extent_removed(range)?;
        }
        self.remove_sums(handle, extents.sums)?;
        Ok(true)
    }

    /// Returns the changes of the extent tree for these heads, in ascending order of keys.
    fn extent_changes(
        &self,
        tree: &Tree,
        heads: impl Iterator<Item = (LogicalAddress, Head)>,
        extents: &mut AppliedExtents,
    ) -> Result<Vec<Change>> {
        let items = ExtentItems::new(tree, &self.volume.geometry());
        let mut changes: Vec<Change> = Vec::new();
        for (address, head) in heads {
            let mut applied = items.apply(address, &head)?;
            if self.quotas().is_simple() {
                self.charge(address, &head, &applied);
            }
            let range = LogicalRange { start: address, length: head.length };
            // A removal and an insertion at one key are a replacement: the later one counts.
            applied.changes.sort_by_key(Change::key);
            for change in applied.changes {
                match changes.last_mut() {
                    Some(last) if Change::key(last) == change.key() => *last = change,
                    _ => changes.push(change),
                }
            }
            if head.new {
                extents.inserted.push(range);
            }
            if applied.removed {
                extents.removed.push(range);
                if head.kind == RefKind::Data {
                    extents.sums.push((address, head.length));
                }
            }
        }
        Ok(changes)
    }

    pub(super) fn has_free_space_tree(&self) -> bool {
        self.volume.geometry().compat_ro.contains(CompatRoFeatures::FREE_SPACE_TREE)
    }

    /// The tree that holds block group items.
    pub(super) fn block_group_tree(&self) -> Result<Arc<LiveTree>> {
        let own = self.volume.geometry().compat_ro.contains(CompatRoFeatures::BLOCK_GROUP_TREE);
        self.live.get(if own { objectid::BLOCK_GROUP_TREE } else { objectid::EXTENT_TREE })
    }

    fn update_block_groups(&self, handle: &Handle<'_>, updates: &[BlockGroupUpdate]) -> Result<()> {
        if updates.is_empty() {
            return Ok(());
        }
        if self.has_free_space_tree() {
            let tree = self.live.get(objectid::FREE_SPACE_TREE)?;
            let mut editor = tree.edit(handle);
            for update in updates {
                free_space_tree::apply(&mut editor, update.range, &update.changes)?;
            }
        }
        let changes: Vec<_> =
            updates.iter().map(|update| put_block_group(update.range, update.used, update.flags)).collect();
        self.block_group_tree()?.edit(handle).apply(&changes)
    }

    /// Updates the root items of changed trees. Returns whether any had to change.
    fn update_roots(&self, handle: &Handle<'_>) -> Result<bool> {
        let changed: Vec<TreeId> = self.changed_trees.lock().iter().copied().collect();
        let root_tree = self.live.root_tree();
        let mut any = false;
        for id in changed {
            // A tree that was created and dropped again has no root item.
            let Some(tree) = self.live.find(id)? else { continue };
            let root = tree.tree().root_block()?;
            let updated = tree.update_record(|record| {
                record.item.address = root.address();
                record.item.level = root.level();
                // The root of a tree that was only relocated keeps its generation.
                record.item.generation = root.generation();
                // A deleted subvolume keeps what the deletion has recorded.
                let counts = objectid::is_subvolume(id) && record.item.refs > 0;
                if counts && tree.is_changed_in(handle.generation()) {
                    record.item.ctransid = handle.generation();
                    record.item.ctime = handle.now();
                }
                *record
            });
            drop(root);
            let Some(record) = updated else { continue };
            let key = Key { offset: record.key_offset, ..root_key(id) };
            let bytes = RootItem::new(record.item).to_bytes();
            let mut editor = root_tree.edit(handle);
            let same = editor.get(&key)?.is_some_and(|item| same_root(item.data(), &bytes));
            if !same {
                editor.put(key, &bytes)?;
                any = true;
            }
        }
        Ok(any)
    }

    /// Freezes all changed trees and starts the next transaction.
    fn freeze(&self, state: &mut CommitState) -> Result<Frozen> {
        let generation = Generation(self.generation.load(Ordering::Acquire));
        let stamp = self.stamp.fetch_add(1, Ordering::AcqRel);
        let mut trees = Vec::new();
        let changed = std::mem::take(&mut *self.changed_trees.lock());
        for id in changed {
            if let Some(tree) = self.live.find(id)? {
                let frozen = tree.freeze(stamp);
                trees.push((tree, frozen));
            }
        }
        let root = self.live.root_tree().tree();
        let chunk_root = self.live.chunk_tree().tree();
        let superblock = &mut state.superblock;
        superblock.generation = generation;
        superblock.incompat_flags |= *self.features.lock();
        self.set_compat_ro(superblock);
        superblock.root = root.root().address;
        superblock.root_level = root.root().level;
        superblock.chunk_root = chunk_root.root().address;
        superblock.chunk_root_level = chunk_root.root().level;
        superblock.chunk_root_generation =
            chunk_root.root().generation.unwrap_or(superblock.chunk_root_generation);
        superblock.bytes_used = self.space.bytes_used();
        superblock.log_root = LogicalAddress(0);
        superblock.log_root_level = 0;
        if state.uuid_tree_current {
            superblock.uuid_tree_generation = generation.0;
        }
        self.back_up_roots(superblock)?;
        state.superblock_changed = false;
        let superblock = state.superblock;
        self.volume.set_generation(generation);
        self.frozen_bytes.store(self.dirty_bytes.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        self.generation.store(generation.0 + 1, Ordering::Release);
        let pin = std::mem::take(&mut *self.pin.lock());
        Ok(Frozen {
            stamp,
            trees,
            superblock,
            pin,
            pinned: self.space.take_pinned(),
            freed: self.chunks.take_freed(),
            log_blocks: self.log.take_blocks(),
            has_changes: true,
        })
    }

    /// Writes the compat_ro features, and whether a kernel may use v1 free-space caches.
    fn set_compat_ro(&self, superblock: &mut RawSuperblock) {
        let features = self.volume.geometry().compat_ro;
        let changed = superblock.compat_ro_flags ^ features;
        if changed.contains(CompatRoFeatures::FREE_SPACE_TREE) {
            // The values of a new file system with and without the tree. No cache is valid.
            superblock.cache_generation = if self.has_free_space_tree() { 0 } else { u64::MAX };
        }
        superblock.compat_ro_flags = features;
    }

    /// Writes the roots into the backup slot after the newest one.
    fn back_up_roots(&self, superblock: &mut RawSuperblock) -> Result<()> {
        let newest = (0..superblock.super_roots.len())
            .max_by_key(|&slot| superblock.super_roots[slot].tree_root_generation)
            .expect("a superblock has four backup slots");
        let empty = superblock.super_roots[newest].tree_root.0 == 0;
        let slot = if empty { 0 } else { (newest + 1) % superblock.super_roots.len() };
        let of = |id: TreeId| -> Result<(LogicalAddress, Generation, u8)> {
            let Some(tree) = self.live.find(id)? else { return Ok(Default::default()) };
            let root = tree.tree().root();
            Ok((root.address, root.generation.unwrap_or_default(), root.level))
        };
        let mut backup = RootBackup::parse(&[0; RootBackup::SIZE]).expect("all zeros parse as a backup");
        backup.tree_root = superblock.root;
        backup.tree_root_generation = superblock.generation;
        backup.tree_root_level = superblock.root_level;
        backup.chunk_root = superblock.chunk_root;
        backup.chunk_root_generation = superblock.chunk_root_generation;
        backup.chunk_root_level = superblock.chunk_root_level;
        (backup.extent_root, backup.extent_root_generation, backup.extent_root_level) =
            of(objectid::EXTENT_TREE)?;
        (backup.fs_root, backup.fs_root_generation, backup.fs_root_level) = of(objectid::FS_TREE)?;
        (backup.dev_root, backup.dev_root_generation, backup.dev_root_level) = of(objectid::DEV_TREE)?;
        (backup.csum_root, backup.csum_root_generation, backup.csum_root_level) = of(objectid::CSUM_TREE)?;
        backup.total_bytes = superblock.total_bytes;
        backup.bytes_used = superblock.bytes_used;
        backup.num_devices = superblock.num_devices;
        superblock.super_roots[slot] = backup;
        Ok(())
    }

    /// Writes all blocks of the frozen trees that are not on disk, in the order of their addresses.
    fn write_out(&self, trees: &[(Arc<LiveTree>, Tree)], buffer: &mut AlignedBuffer) -> Result<()> {
        let mut blocks = Vec::new();
        for (_, tree) in trees {
            dirty_blocks(&tree.root_block()?, &mut blocks);
        }
        self.write_blocks(&mut blocks, buffer)?;
        let forest = self.live.forest();
        for block in blocks {
            // Blocks dropped after the extent tree was updated still count; the caller subtracts
            // the rest.
            let left = self.frozen_bytes.load(Ordering::Relaxed);
            let written = left.min(self.node_size());
            self.frozen_bytes.store(left - written, Ordering::Relaxed);
            forest.unwritten_shrank(written);
            forest.written(&block);
        }
        Ok(())
    }
}

/// Whether two root items are equal apart from their time, which alone is no change.
fn same_root(old: &[u8], new: &[u8]) -> bool {
    let (Ok(old), Ok(new)) = (RootItem::parse(old), RootItem::parse(new)) else { return false };
    let mut old = old.into_raw();
    old.ctime = new.ctime;
    old == new.into_raw()
}
