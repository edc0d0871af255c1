//! Ordered extents go to the trees.
//!
//! Owns the ways in which what was written past the trees gets there, a *step* at a time: the extents of a part of
//! the file, in a transaction's changes of their own. A step is made beside others who read and write the file: it
//! holds the data lock shared, as they do, and locks its part of the file, so that only who wants that part waits.
//! Who needs all to be there without anything coming after it holds the data lock exclusively instead.
//!
//! Invariants: one at a time makes a step of a file (its fsync lock), so that nobody else changes the file in its
//! tree meanwhile, nor enters it into the log; until a step's extents are in the trees they can be read where
//! they were. What is known of the file's extents is forgotten before its part is unlocked. Before the first step
//! all must know that there are ordered extents, see [`crate::data::ordered_extents`]: for that, whoever makes it
//! waits once until he has the data lock alone.
//!
//! Locks, in this order: sharing (shared), the file's fsync lock, its data lock (shared), the step's range, those
//! of a transaction. Kernel counterpart: `btrfs_finish_one_ordered` (`fs/btrfs/inode.c`), in a work queue there.

use crate::data::convert::STEP_RANGES;
use crate::data::ordered_extents::{OrderedPart, Step};
use crate::data::publish_extents::{publish_extents, publish_preallocated};
use crate::data::rewrite::SectorRewrite;
use crate::data::written_extents::WrittenExtent;
use crate::errors::{Error, ErrorKind, PathError, Result};
use crate::file::change::EXTENT_ITEMS;
use crate::file::fs_info::FsInfo;
use crate::file::open_inode::OpenInode;
use crate::file::ordered_write::{BLOCKS, DATA_PER_METADATA};
use papilio_format::items::inode::InodeItem;

/// Extents of a step where there is no room for more.
const MIN_STEP: usize = 16;
/// Bytes of a step.
const STEP_BYTES: u64 = 256 << 20;

impl OpenInode {
    /// Where a file has many ordered extents: brings some to the trees, unless another does and they are not far
    /// too many. The caller holds none of the file's locks.
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
            // What it takes must not wait for others.
            Err(error) if needs_all(&error) => self.flush(fs),
            made => made,
        }
    }

    /// Brings the ordered extents that a file has by now to the trees, beside others who read and write it. What
    /// they write meanwhile may be left, and all of it where there is no room; says whether only that. The caller
    /// holds none of the file's locks.
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

    /// As [`OpenInode::publish_ordered`], but only where the file has many: later changes wait less.
    pub(super) fn publish_ordered_if_many(&self, fs: &FsInfo) -> Result<()> {
        if self.ordered.is_many() {
            self.publish_ordered(fs)?;
        }
        Ok(())
    }

    /// Brings all ordered extents of a file to the trees.
    pub(super) fn publish_all_ordered(&self, fs: &FsInfo) -> Result<()> {
        if self.publish_ordered(fs)? {
            return Ok(());
        }
        let _exclusive = self.data.write();
        self.publish_ordered_exclusively(fs)
    }

    /// A step from `from` on; says where the next one begins, if there are more. The caller holds the lock on
    /// sharing (shared), and the file's fsync lock.
    fn publish_step_shared(&self, fs: &FsInfo, from: u64) -> Result<Option<u64>> {
        // Not while others wait for the step's range.
        fs.transactions()?.commit_if_full()?;
        let _shared = loop {
            let shared = self.data.read();
            if self.ordered.is_empty() {
                return Ok(None);
            }
            if self.ordered.is_announced() {
                break shared;
            }
            drop(shared);
            let _exclusive = self.data.write();
            self.ordered.announce();
        };
        let most = self.ordered.step_size();
        let Some(step) = self.ordered.lock_step(from, most, STEP_BYTES) else { return Ok(None) };
        self.publish_step(fs, &step)?;
        self.ordered.trim_reservation(BLOCKS * fs.transactions()?.node_size(), DATA_PER_METADATA);
        Ok(Some(step.next))
    }

    /// Brings a file's ordered extents to the trees. The caller holds its data lock exclusively.
    pub(super) fn publish_ordered_exclusively(&self, fs: &FsInfo) -> Result<()> {
        if self.ordered.is_empty() {
            return Ok(());
        }
        // What was promised is there for what follows.
        drop(self.ordered.take_reservation());
        let mut most = self.ordered.step_size().max(MIN_STEP);
        while let Some(step) = self.ordered.lock_step(0, most, STEP_BYTES) {
            match self.publish_step(fs, &step) {
                Err(Error::NoSpace { .. }) if most > MIN_STEP => most = MIN_STEP,
                // It went with its subvolume.
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

    /// Brings a step's extents to the trees: the new ones, then those in preallocated extents.
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

    /// `parts` are of one kind.
    fn publish_parts(&self, fs: &FsInfo, parts: &[OrderedPart]) -> Result<()> {
        let place = self.place();
        let geometry = fs.volume().geometry();
        let bytes: u64 = parts.iter().map(|part| part.range.end - part.range.start).sum();
        let checksums = bytes / u64::from(geometry.sector_size) * geometry.checksum_type.size() as u64;
        let items = EXTENT_ITEMS + parts.len() as u64 + checksums / u64::from(geometry.node_size);
        let trees = fs.data_trees(place)?;
        let context = trees.context(&**fs.transactions()?);
        let mut rewrite = trees.prepare(|file| SectorRewrite::prepare(&context, file, None, None))?;
        fs.change_data(place, items, |context, file| {
            for part in parts {
                self.note_changed(&fs.changed_files, context.space.generation(), &part.range);
            }
            rewrite.publish(context, file)?;
            let checksums = self.ordered.checksums_of(parts, &geometry);
            // A larger size belongs to pages in the cache, and is published with their data.
            let item = InodeItem { size: file.item.size, ..self.as_seen(context.stamped(file)) };
            if parts[0].new {
                let extents: Vec<_> =
                    parts.iter().map(|part| WrittenExtent::plain(&part.range, part.disk)).collect();
                publish_extents(context, file, &extents, Some(checksums), item)
            } else {
                publish_preallocated(context, file, parts, checksums, item)
            }
        })
    }
}

/// Whether bringing all to the trees at once may do where a step could not: it has all that was promised.
fn needs_all(error: &Error) -> bool {
    matches!(error, Error::NoSpace { .. }) || error.kind() == ErrorKind::Path(PathError::NoSubvolume)
}
