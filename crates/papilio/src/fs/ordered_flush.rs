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
use crate::data::file_edit::{FileEdit, WriteContext};
use crate::data::ordered_extents::{OrderedPart, Step};
use crate::data::ordered_items::{put_new, put_preallocated};
use crate::errors::{Error, ErrorKind, PathError, Result};
use crate::fs::FileSystem;
use crate::fs::change::EXTENT_ITEMS;
use crate::fs::open_inodes::OpenInode;
use crate::fs::ordered_write::{BLOCKS, DATA_PER_METADATA, forget_ordered};
use papilio_format::items::inode::InodeItem;

/// Extents of a step where there is no room for more.
const SMALL_STEP: usize = 16;
/// Bytes of a step.
const STEP_BYTES: u64 = 256 << 20;

impl FileSystem {
    /// Where a file has many ordered extents: brings some to the trees, unless another does and they are not far
    /// too many. The caller holds none of the file's locks.
    pub(super) fn relieve(&self, open: &OpenInode) -> Result<()> {
        let made = {
            let _sharing = self.mounted.sharing.read();
            let _one = match open.fsync.try_lock() {
                Some(one) => one,
                None if open.ordered.is_overfull() => open.fsync.lock(),
                None => return Ok(()),
            };
            if !open.ordered.is_full() {
                return Ok(());
            }
            let next = self.step_beside_others(open, open.ordered.next_step());
            next.map(|next| open.ordered.set_next_step(next.unwrap_or(0)))
        };
        match made {
            // What it takes must not wait for others.
            Err(error) if needs_all(&error) => self.flush(open),
            made => made,
        }
    }

    /// Brings the ordered extents that a file has by now to the trees, beside others who read and write it. What
    /// they write meanwhile may be left, and all of it where there is no room; says whether only that. The caller
    /// holds none of the file's locks.
    pub(super) fn sweep_ordered(&self, open: &OpenInode) -> Result<bool> {
        let mut from = Some(0);
        while let Some(at) = from {
            if open.ordered.is_empty() {
                break;
            }
            let _sharing = self.mounted.sharing.read();
            let _one = open.fsync.lock();
            from = match self.step_beside_others(open, at) {
                Err(error) if needs_all(&error) => return Ok(false),
                next => next?,
            };
        }
        Ok(true)
    }

    /// Brings all ordered extents of a file to the trees.
    pub(super) fn flush_ordered(&self, open: &OpenInode) -> Result<()> {
        if self.sweep_ordered(open)? {
            return Ok(());
        }
        let _exclusive = open.data.write();
        self.write_back_ordered(open)
    }

    /// A step from `from` on; says where the next one begins, if there are more. The caller holds the lock on
    /// sharing (shared), and the file's fsync lock.
    fn step_beside_others(&self, open: &OpenInode, from: u64) -> Result<Option<u64>> {
        // Not while others wait for the step's range.
        self.transactions()?.commit_if_full()?;
        let _shared = loop {
            let shared = open.data.read();
            if open.ordered.is_empty() {
                return Ok(None);
            }
            if open.ordered.is_known() {
                break shared;
            }
            drop(shared);
            let _exclusive = open.data.write();
            open.ordered.make_known();
        };
        let most = open.ordered.step_size();
        let Some(step) = open.ordered.lock_step(from, most, STEP_BYTES) else { return Ok(None) };
        self.publish_step(open, &step)?;
        open.ordered.trim_promise(BLOCKS * self.transactions()?.node_size(), DATA_PER_METADATA);
        Ok(Some(step.next))
    }

    /// Brings a file's ordered extents to the trees. The caller holds its data lock exclusively.
    pub(super) fn write_back_ordered(&self, open: &OpenInode) -> Result<()> {
        if open.ordered.is_empty() {
            return Ok(());
        }
        // What was promised is there for what follows.
        drop(open.ordered.take_promise());
        let mut most = open.ordered.step_size().max(SMALL_STEP);
        while let Some(step) = open.ordered.lock_step(0, most, STEP_BYTES) {
            match self.publish_step(open, &step) {
                Err(Error::NoSpace { .. }) if most > SMALL_STEP => most = SMALL_STEP,
                // It went with its subvolume.
                Err(error) if error.kind() == ErrorKind::Path(PathError::NoSubvolume) => {
                    drop(step);
                    forget_ordered(&self.mounted, open);
                    return Ok(());
                }
                result => result?,
            }
        }
        open.ordered.note_whether_any();
        Ok(())
    }

    /// Brings a step's extents to the trees: the new ones, then those in preallocated extents.
    fn publish_step(&self, open: &OpenInode, step: &Step<'_>) -> Result<()> {
        let (new, preallocated): (Vec<_>, Vec<_>) = step.parts.iter().cloned().partition(|part| part.new);
        for parts in
            std::iter::once(&new[..]).filter(|new| !new.is_empty()).chain(preallocated.chunks(STEP_RANGES))
        {
            self.publish_ordered(open, parts)?;
            open.forget_extents();
            step.lock.published(parts);
        }
        Ok(())
    }

    /// `parts` are of one kind.
    fn publish_ordered(&self, open: &OpenInode, parts: &[OrderedPart]) -> Result<()> {
        let place = open.place();
        let geometry = self.mounted.volume().geometry();
        let bytes: u64 = parts.iter().map(|part| part.range.end - part.range.start).sum();
        let sums = bytes / u64::from(geometry.sector_size) * geometry.checksum_type.size() as u64;
        let items = EXTENT_ITEMS + parts.len() as u64 + sums / u64::from(geometry.node_size);
        self.change_handle(place.tree, items, |handle, _| {
            self.edit_data(handle, place, |context: &WriteContext<'_>, file: &mut FileEdit<'_>| {
                for part in parts {
                    open.note_changed(&self.mounted.changed_files, context.space.generation(), &part.range);
                }
                let sums = open.ordered.sums_of(parts, &geometry);
                // What makes it longer is in the page cache, and comes with its data.
                let item = InodeItem { size: file.item.size, ..open.as_seen(context.stamped(file)) };
                if parts[0].new {
                    put_new(context, file, parts, sums, item)
                } else {
                    put_preallocated(context, file, parts, sums, item)
                }
            })
        })
    }
}

/// Whether bringing all to the trees at once may do where a step could not: it has all that was promised.
fn needs_all(error: &Error) -> bool {
    matches!(error, Error::NoSpace { .. }) || error.kind() == ErrorKind::Path(PathError::NoSubvolume)
}
