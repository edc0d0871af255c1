//! Publishing ordered extents.
//!
//! Owns the publishing of ordered extents in *steps*: the extents of a part of the file, in a
//! transaction handle of their own. A step runs beside readers and writers of the file: it holds
//! the data lock shared, as they do, and locks its part of the file, so that only a thread that
//! needs that part waits. A caller that needs all extents published, with none added meanwhile,
//! holds the data lock exclusively instead.
//!
//! Invariants:
//! - One thread at a time makes a step of a file (its fsync lock). No other thread changes the file
//!   in its tree or logs it meanwhile.
//! - A step's extents stay readable as ordered extents until the trees have them.
//! - The caches of the file's extents are cleared before the step's part is unlocked.
//! - Ordered extents are announced before the first step, see [`crate::data::ordered_extents`]. To
//!   announce them, the thread takes the data lock exclusively once.
//!
//! Locks, in this order: `sharing` (shared), the file's fsync lock, its data lock (shared), the
//! step's range, the transaction's locks. Kernel counterpart: `btrfs_finish_one_ordered`
//! (`fs/btrfs/inode.c`), which runs in a work queue.

use crate::data::convert::STEP_RANGES;
use crate::data::ordered_extents::{OrderedPart, Step};
use crate::data::publish_extents::{publish_extents, publish_preallocated};
use crate::data::rewrite::SectorRewrite;
use crate::data::written_extents::{MAX_EXTENT, WrittenExtent};
use crate::errors::{Error, ErrorKind, PathError, Result};
use crate::file::change::EXTENT_ITEMS;
use crate::file::data_lock::SharedData;
use crate::file::fs_info::FsInfo;
use crate::file::open_inode::OpenInode;
use crate::file::ordered_write::{BLOCKS, DATA_PER_METADATA};
use crate::space::Space;
use crate::transaction::Start;
use papilio_format::items::inode::InodeItem;

/// Extents of a step where there is no space for a larger one.
const MIN_STEP: usize = 16;
/// The most bytes of a step.
const STEP_BYTES: u64 = 256 << 20;

impl OpenInode {
    /// Publishes some ordered extents of a file over its limits. Does nothing if another thread
    /// does so, unless the file is far over its limits. The caller holds none of the file's locks.
    pub(super) fn publish_some_ordered(&self, fs: &FsInfo) -> Result<()> {
        let made = {
            let _sharing = fs.sharing.read();
            let _one = match self.fsync.try_lock() {
                Some(one) => one,
                None if self.ordered.is_overfull() => self.fsync.lock(),
                None => return Ok(()),
            };
            if !self.ordered.is_full() {
                return Ok(());
            }
            let next = self.publish_step_shared(fs, self.ordered.next_step());
            next.map(|next| self.ordered.set_next_step(next.unwrap_or(0)))
        };
        match made {
            // After the locks are released: a full flush takes them in its own order.
            Err(error) if needs_all(&error) => self.flush(fs),
            made => made,
        }
    }

    /// Publishes the ordered extents that the file has now, beside readers and writers. Extents
    /// that they add meanwhile may be left. Returns `false` if steps failed for lack of space or
    /// because the subvolume was deleted; more extents are then left. The caller holds none of the
    /// file's locks.
    pub(super) fn publish_ordered(&self, fs: &FsInfo) -> Result<bool> {
        let mut from = Some(0);
        while let Some(at) = from {
            if self.ordered.is_empty() {
                break;
            }
            let _sharing = fs.sharing.read();
            let _one = self.fsync.lock();
            from = match self.publish_step_shared(fs, at) {
                Err(error) if needs_all(&error) => return Ok(false),
                next => next?,
            };
        }
        Ok(true)
    }

    /// Publishes ordered extents of a file with many, and writes its dirty pages back: an exclusive
    /// flush afterwards blocks other threads for less time. The caller holds none of the file's
    /// locks.
    pub(super) fn prepare_exclusive(&self, fs: &FsInfo) -> Result<()> {
        self.write_back_shared(fs)?;
        if self.ordered.is_many() {
            self.publish_ordered(fs)?;
        }
        Ok(())
    }

    /// Publishes all ordered extents of a file.
    pub(super) fn publish_all_ordered(&self, fs: &FsInfo) -> Result<()> {
        if self.publish_ordered(fs)? {
            return Ok(());
        }
        let _exclusive = self.data.write();
        self.publish_ordered_exclusively(fs)
    }

    /// Makes a step from file offset `from` on. Returns where the next step begins, if there is
    /// one. The caller holds the lock on `sharing` (shared), and the file's fsync lock.
    fn publish_step_shared(&self, fs: &FsInfo, from: u64) -> Result<Option<u64>> {
        // Here, because no thread waits for the step's range yet.
        fs.transactions()?.commit_if_full()?;
        if self.ordered.is_empty() {
            return Ok(None);
        }
        let _shared = self.lock_announced();
        let most = self.ordered.step_size();
        let Some(step) = self.ordered.lock_step(from, most, STEP_BYTES) else { return Ok(None) };
        self.publish_step(fs, &step)?;
        self.ordered.trim_reservation(BLOCKS * fs.transactions()?.node_size(), DATA_PER_METADATA);
        Ok(Some(step.next))
    }

    /// Locks the file's data shared, once every holder of that lock locks the range that it reads.
    /// The caller has locked `sharing` (shared), and the file's fsync lock.
    pub(super) fn lock_announced(&self) -> SharedData<'_> {
        loop {
            let shared = self.data.read();
            if self.ordered.is_announced() {
                return shared;
            }
            drop(shared);
            let _exclusive = self.data.write();
            self.ordered.announce();
        }
    }

    /// Publishes all ordered extents. The caller holds the file's data lock exclusively.
    pub(super) fn publish_ordered_exclusively(&self, fs: &FsInfo) -> Result<()> {
        if self.ordered.is_empty() {
            return Ok(());
        }
        // Released, so that the steps below can reserve the same space.
        drop(self.ordered.take_reservation());
        let mut most = self.ordered.step_size().max(MIN_STEP);
        while let Some(step) = self.ordered.lock_step(0, most, STEP_BYTES) {
            match self.publish_step(fs, &step) {
                Err(Error::NoSpace { .. }) if most > 1 => most = if most > MIN_STEP { MIN_STEP } else { 1 },
                // The file was deleted with its subvolume.
                Err(error) if error.kind() == ErrorKind::Path(PathError::NoSubvolume) => {
                    drop(step);
                    self.forget_ordered(fs);
                    return Ok(());
                }
                result => result?,
            }
        }
        self.ordered.update_any();
        Ok(())
    }

    /// Publishes a step's extents: the new ones, then those in preallocated extents.
    fn publish_step(&self, fs: &FsInfo, step: &Step<'_>) -> Result<()> {
        let (new, preallocated): (Vec<_>, Vec<_>) = step.parts.iter().cloned().partition(|part| part.new);
        for parts in
            std::iter::once(&new[..]).filter(|new| !new.is_empty()).chain(preallocated.chunks(STEP_RANGES))
        {
            self.publish_parts(fs, parts)?;
            self.forget_extents();
            step.lock.record_published(parts);
        }
        Ok(())
    }

    /// Publishes `parts`, which are all new or all in preallocated extents.
    fn publish_parts(&self, fs: &FsInfo, parts: &[OrderedPart]) -> Result<()> {
        let place = self.place();
        let geometry = fs.volume().geometry();
        let bytes: u64 = parts.iter().map(|part| part.range.end - part.range.start).sum();
        let checksums = bytes / u64::from(geometry.sector_size) * geometry.checksum_type.size() as u64;
        let items = EXTENT_ITEMS + parts.len() as u64 + checksums / u64::from(geometry.node_size);
        let trees = fs.data_trees(place)?;
        let context = trees.context(&**fs.transactions()?);
        let mut rewrite = trees.prepare(|file| SectorRewrite::prepare(&context, file, None, None))?;
        fs.change_data(place, Start::items(items).steal(), |context, file| {
            for part in parts {
                self.note_changed(&fs.changed_files, context.space.generation(), &part.range);
            }
            rewrite.publish(context, file)?;
            let checksums = self.ordered.checksums_of(parts, &geometry);
            // A larger size belongs to pages in the cache, and is published with their data.
            let item = InodeItem { size: file.item.size, ..self.as_seen(context.stamped(file)) };
            if parts[0].new {
                let extents = joined(fs.transactions()?.space(), parts);
                publish_extents(context, file, &extents, Some(checksums), item)
            } else {
                publish_preallocated(context, file, parts, checksums, item)
            }
        })
    }
}

/// Returns the extents of new `parts`, ascending. Parts that follow each other in the file and in a
/// block group become one extent.
fn joined(space: &Space, parts: &[OrderedPart]) -> Vec<WrittenExtent> {
    let mut joined: Vec<OrderedPart> = Vec::with_capacity(parts.len());
    for part in parts {
        if let Some(last) = joined.last_mut() {
            let bytes = last.disk.0..last.disk.0 + (part.range.end - last.range.start);
            let follows = last.range.end == part.range.start
                && last.disk.0 + (last.range.end - last.range.start) == part.disk.0;
            if follows && bytes.end - bytes.start <= MAX_EXTENT && space.is_in_one_group(&bytes) {
                last.range.end = part.range.end;
                continue;
            }
        }
        joined.push(part.clone());
    }
    joined.iter().map(|part| WrittenExtent::plain(&part.range, part.disk)).collect()
}

/// Returns whether an exclusive flush of all ordered extents may succeed where a step failed: it
/// has the whole reservation.
pub(super) fn needs_all(error: &Error) -> bool {
    matches!(error, Error::NoSpace { .. }) || error.kind() == ErrorKind::Path(PathError::NoSubvolume)
}
