//! Writing a file's data.
//!
//! Owns the half of [`File`] that changes data. A change holds the inode's data lock exclusively, so that
//! readers see it whole or not at all within one step; a large write is several steps, and each is a
//! transaction's change of its own. Without a page cache, or with direct I/O, what a call wrote is on the
//! device when it returns, and durable once the file system or the file is synced (see [`super::ordered_write`] for what
//! the trees do not hear of before); with one, see [`super::buffered`]. Whatever
//! changes extents writes dirty pages back first, and takes pages out of the cache that are not true any more.

use crate::data::clone::{CloneRange, CloneSource};
use crate::data::dedupe::{self, Deduped};
use crate::data::file_edit::{FileEdit, WriteContext};
use crate::data::prealloc::preallocate_step;
use crate::data::punch_hole::punch_hole_step;
use crate::data::truncate::{Progress, truncate_step};
use crate::data::write;
use crate::errors::{Error, PathError, Result};
use crate::fs::File;
use crate::fs::change::EXTENT_ITEMS;
use crate::fs::data_lock::ExclusiveData;
use crate::fs::in_place::check_mutable;
use crate::fs::open_inodes::OpenInode;
use crate::items::inode;
use papilio_format::FileOffset;
use papilio_locks::{RwLockReadGuard, in_order};
use papilio_pagecache::Invalidate;
use std::ops::Range;

/// Bytes that one change of a transaction writes at most.
const WRITE_STEP: usize = 8 << 20;

impl File {
    /// Writes all of `data` at byte `offset`; behind the end, zeros come in between. Neither has to be
    /// aligned, but sectors that are written in part are read first.
    ///
    /// # Errors
    /// [`PathError::TooLarge`], [`Error::NoSpace`], [`PathError::NotPermitted`] for an immutable file, or what
    /// reading and writing meets. What came before a failing step stays written.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        if let Some(open) = self.open_arc()
            && let Some(mapping) = self.cached(open)
        {
            return self.write_buffered(open, mapping, data, offset);
        }
        let done = self.write_shared(data, offset)?;
        let data = &data[done..];
        if data.is_empty() && done > 0 {
            return Ok(());
        }
        let open = self.open_inode()?;
        let exclusive = self.exclusive(open)?;
        let mut at = offset + done as u64;
        let range = at..at.saturating_add(data.len() as u64);
        // Steps end at multiples of their size, so that no sector is written twice.
        let mut rest = data;
        while !rest.is_empty() {
            let step = (WRITE_STEP - (at % WRITE_STEP as u64) as usize).min(rest.len());
            let (now, later) = rest.split_at(step);
            let items = EXTENT_ITEMS + (step >> 20) as u64;
            let range = self.inode().file_system().changed_range(open, at, step as u64)?;
            self.change(&exclusive, &range, items, |context, file| {
                write::write(context, file, FileOffset(at), now)
            })?;
            at = at.checked_add(step as u64).ok_or_else(|| self.too_large())?;
            rest = later;
        }
        if let Some(mapping) = &open.mapping {
            mapping.invalidate(range, Invalidate::All);
        }
        Ok(())
    }

    /// Makes the file `size` bytes long (`ftruncate`).
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn set_len(&self, size: u64) -> Result<()> {
        let open = self.open_inode()?;
        let exclusive = self.exclusive(open)?;
        // All that is not there any more, or is for the first time.
        let range = self.inode().file_system().changed_range(open, size, u64::MAX)?;
        self.steps(&exclusive, &range, |context, file| truncate_step(context, file, size))?;
        // Not before: a refusal leaves all as it was.
        if let Some(mapping) = &open.mapping {
            mapping.truncate(size);
        }
        Ok(())
    }

    /// Makes a hole of `length` bytes from `offset` on; the size stays (`FALLOC_FL_PUNCH_HOLE`).
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn punch_hole(&self, offset: u64, length: u64) -> Result<()> {
        let open = self.open_inode()?;
        let exclusive = self.exclusive(open)?;
        let range = self.inode().file_system().changed_range(open, offset, length)?;
        self.punch(open, &exclusive, &range, offset, length)
    }

    /// Makes a hole, of which the cache then knows.
    fn punch(
        &self,
        open: &OpenInode,
        exclusive: &Exclusive<'_>,
        range: &Range<u64>,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        self.steps(exclusive, range, |context, file| {
            punch_hole_step(context, file, FileOffset(offset), length)
        })?;
        if let Some(mapping) = &open.mapping {
            mapping.discard(offset..offset.saturating_add(length));
        }
        Ok(())
    }

    /// Gives room to all sectors of a range; those that had none read as zeros (`fallocate`).
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn allocate(&self, offset: u64, length: u64, keep_size: bool) -> Result<()> {
        let open = self.open_inode()?;
        let exclusive = self.exclusive(open)?;
        let range = self.inode().file_system().changed_range(open, offset, length)?;
        self.steps(&exclusive, &range, |context, file| {
            preallocate_step(context, file, FileOffset(offset), length, keep_size)
        })
    }

    /// Makes a range read as zeros, with room for all its sectors (`FALLOC_FL_ZERO_RANGE`). Where there is no
    /// room for them, a part of the range may be a hole, which reads the same.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn zero_range(&self, offset: u64, length: u64, keep_size: bool) -> Result<()> {
        let open = self.open_inode()?;
        let exclusive = self.exclusive(open)?;
        let range = self.inode().file_system().changed_range(open, offset, length)?;
        self.punch(open, &exclusive, &range, offset, length)?;
        self.steps(&exclusive, &range, |context, file| {
            preallocate_step(context, file, FileOffset(offset), length, keep_size)
        })
    }

    /// Shares `length` bytes of `source` from `from` on (up to its end for 0) as this file's from `to` on
    /// (`FICLONERANGE`). The files may be the same, and lie in different subvolumes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for offsets that are not at sector boundaries, overlapping ranges, or files of
    /// which only one has checksums; as [`File::write_at`].
    pub fn clone_range(&self, source: &File, from: u64, length: u64, to: u64) -> Result<()> {
        self.with_source(source, |file, exclusive, open_source| {
            let mut range: Option<CloneRange> = None;
            let bytes = if length == 0 { u64::MAX } else { length };
            let cloned = file.inode().file_system().changed_range(file.open_inode()?, to, bytes)?;
            loop {
                let progress = file.change(exclusive, &cloned, 2 * EXTENT_ITEMS, |context, edit| {
                    open_source(context, &mut |shared| {
                        if range.is_none() {
                            let (from, to) = (FileOffset(from), FileOffset(to));
                            range = CloneRange::new(context, shared, from, length, edit, to)?;
                        }
                        let Some(range) = &mut range else { return Ok(Progress::Done) };
                        range.step(context, shared, edit)
                    })
                })?;
                if progress == Progress::Done {
                    break;
                }
            }
            if let Some(mapping) = &file.open_inode()?.mapping {
                let end = if length == 0 { u64::MAX } else { to.saturating_add(length) };
                mapping.invalidate(to..end, Invalidate::All);
            }
            Ok(())
        })
    }

    /// Shares the bytes of `source` if they are the same (`FIDEDUPERANGE`). Returns how many bytes were, or
    /// `None` where the ranges differ.
    ///
    /// # Errors
    /// As [`File::clone_range`].
    pub fn dedupe_range(&self, source: &File, from: u64, length: u64, to: u64) -> Result<Option<u64>> {
        self.with_source(source, |file, exclusive, open_source| {
            let mut found: Option<Deduped> = None;
            let bytes = if length == 0 { u64::MAX } else { length };
            let shared = file.inode().file_system().changed_range(file.open_inode()?, to, bytes)?;
            loop {
                let progress = file.change(exclusive, &shared, 2 * EXTENT_ITEMS, |context, edit| {
                    open_source(context, &mut |shared| {
                        if found.is_none() {
                            let (from, to) = (FileOffset(from), FileOffset(to));
                            found = Some(dedupe::dedupe(context, shared, from, length, edit, to)?);
                        }
                        let Some(Deduped::Same(range)) = &mut found else { return Ok(Progress::Done) };
                        range.step(context, shared, edit)
                    })
                })?;
                if progress == Progress::Done {
                    return Ok(match found {
                        Some(Deduped::Same(range)) => Some(range.bytes_done()),
                        Some(Deduped::Differs) => None,
                        _ => Some(0),
                    });
                }
            }
        })
    }

    /// Lets go of the pages that the page cache holds of this file, after writing back those that are dirty.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn drop_cache(&self) -> Result<()> {
        if let Some(open) = self.open_arc()
            && let Some(mapping) = &open.mapping
        {
            let exclusive = self.exclusive(open)?;
            self.inode().file_system().flush_locked(open, exclusive.epoch)?;
            mapping.invalidate(0..u64::MAX, Invalidate::All);
        }
        Ok(())
    }

    /// The right to change the file's extents.
    fn exclusive<'a>(&'a self, open: &'a OpenInode) -> Result<Exclusive<'a>> {
        self.thin_out(open)?;
        let sharing = self.inode().file_system().mounted.sharing.read();
        let epoch = *sharing;
        Ok(Exclusive { epoch, _data: Some(open.data.write()), _sharing: Some(sharing) })
    }

    /// Brings much that the trees do not have there beside others who read and write, before they have to wait.
    fn thin_out(&self, open: &OpenInode) -> Result<()> {
        if open.ordered.is_many() {
            self.inode().file_system().sweep_ordered(open)?;
        }
        Ok(())
    }

    /// Runs `run` with both files locked, in an order that all follow.
    fn with_source<R>(
        &self,
        source: &File,
        run: impl FnOnce(&File, &Exclusive<'_>, &Shared<'_>) -> Result<R>,
    ) -> Result<R> {
        if !std::sync::Arc::ptr_eq(&self.inode().file_system().mounted, &source.inode().file_system().mounted)
        {
            return Err(Error::path(b"clone", PathError::CrossDevice));
        }
        self.thin_out(self.open_inode()?)?;
        source.thin_out(source.open_inode()?)?;
        // Nobody overwrites in place what will be shared, nor reads what is flushed.
        let mut sharing = self.inode().file_system().mounted.sharing.write();
        *sharing += 1;
        let (own, other) = (self.open_inode()?, source.open_inode()?);
        let (own_place, other_place) = (self.inode().place(), source.inode().place());
        let (_first, _second);
        {
            let _order = in_order("data locks of two files, by their places");
            match own_place.cmp(&other_place) {
                std::cmp::Ordering::Equal => _first = own.data.write(),
                std::cmp::Ordering::Less => {
                    _first = own.data.write();
                    _second = other.data.write();
                }
                std::cmp::Ordering::Greater => {
                    _second = other.data.write();
                    _first = own.data.write();
                }
            }
        }
        let exclusive = Exclusive { epoch: *sharing, _data: None, _sharing: None };
        self.inode().file_system().flush_locked(other, *sharing)?;
        let live = self.inode().file_system().transactions()?.live().get(other_place.tree)?;
        let open_source =
            move |_: &WriteContext<'_>, then: &mut dyn FnMut(&CloneSource<'_>) -> Result<Progress>| {
                let tree = live.tree();
                let item = inode::inode(&tree, other_place.inode)?
                    .ok_or_else(|| Error::path(b"clone", PathError::NotFound))?;
                drop(tree);
                then(&CloneSource { tree: &live, inode: other_place.inode, item })
            };
        run(self, &exclusive, &open_source)
    }

    /// One change of this file's data.
    fn change<R>(
        &self,
        exclusive: &Exclusive<'_>,
        range: &Range<u64>,
        items: u64,
        mut change: impl FnMut(&WriteContext<'_>, &mut FileEdit<'_>) -> Result<R>,
    ) -> Result<R> {
        let (place, fs) = (self.inode().place(), self.inode().file_system());
        let open = self.open_inode()?;
        fs.flush_locked(open, exclusive.epoch)?;
        open.forget_extents();
        fs.change_data(place, items, |context, file| {
            check_mutable(place, &file.item)?;
            open.note_changed(&fs.mounted.changed_files, context.space.generation(), range);
            change(context, file)
        })
    }

    /// A change in steps.
    fn steps(
        &self,
        exclusive: &Exclusive<'_>,
        range: &Range<u64>,
        mut step: impl FnMut(&WriteContext<'_>, &mut FileEdit<'_>) -> Result<Progress>,
    ) -> Result<()> {
        while self.change(exclusive, range, 2 * EXTENT_ITEMS, &mut step)? == Progress::More {}
        Ok(())
    }
}

/// The right to change a file's extents, until it is dropped.
struct Exclusive<'a> {
    /// Of sharing; it does not end meanwhile.
    epoch: u64,
    // In this order: the data lock is taken last. Absent where the caller holds them.
    _data: Option<ExclusiveData<'a>>,
    _sharing: Option<RwLockReadGuard<'a, u64>>,
}

/// Gives the source of a clone, as it is in the running transaction, to what needs it.
type Shared<'s> =
    dyn Fn(&WriteContext<'_>, &mut dyn FnMut(&CloneSource<'_>) -> Result<Progress>) -> Result<Progress> + 's;
