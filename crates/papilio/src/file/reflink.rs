//! Reflinks and deduplication between open files.
//!
//! Owns [`OpenFile::clone_range`] and [`OpenFile::dedupe_range`].
//!
//! Locks, in this order: `sharing` (exclusive: no writer overwrites in place what becomes shared), the data locks of
//! both files by place, those of a transaction. Kernel counterparts: `fs/btrfs/reflink.c`, `fs/remap_range.c`.

use crate::data::clone::{CloneRange, CloneSource};
use crate::data::dedupe::{self, Deduped};
use crate::data::file_edit::WriteContext;
use crate::data::truncate::Progress;
use crate::errors::{Error, PathError, Result};
use crate::file::change::EXTENT_ITEMS;
use crate::file::open_file::OpenFile;
use crate::file::write::Exclusive;
use crate::items::inode;
use papilio_format::FileOffset;
use papilio_locks::in_order;
use papilio_pagecache::Invalidate;
use std::sync::Arc;

impl OpenFile {
    /// Shares `length` bytes of `source` from `from` on (up to its end for 0) as this file's from `to` on
    /// (`FICLONERANGE`). The files may be the same, and lie in different subvolumes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for offsets that are not at sector boundaries, overlapping ranges, or files of
    /// which only one has checksums; as [`File::write_at`].
    pub(crate) fn clone_range(&self, source: &OpenFile, from: u64, length: u64, to: u64) -> Result<()> {
        self.with_source(source, |file, exclusive, open_source| {
            let mut range: Option<CloneRange> = None;
            let bytes = if length == 0 { u64::MAX } else { length };
            let cloned = file.open.changed_range(&file.fs, to, bytes)?;
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
            if let Some(mapping) = &file.open.mapping {
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
    pub(crate) fn dedupe_range(
        &self,
        source: &OpenFile,
        from: u64,
        length: u64,
        to: u64,
    ) -> Result<Option<u64>> {
        self.with_source(source, |file, exclusive, open_source| {
            let mut found: Option<Deduped> = None;
            let bytes = if length == 0 { u64::MAX } else { length };
            let shared = file.open.changed_range(&file.fs, to, bytes)?;
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

    /// Runs `run` with both files locked, in an order that all follow.
    fn with_source<R>(
        &self,
        source: &OpenFile,
        run: impl FnOnce(&OpenFile, &Exclusive<'_>, &Shared<'_>) -> Result<R>,
    ) -> Result<R> {
        if !Arc::ptr_eq(&self.fs, &source.fs) {
            return Err(Error::path(b"clone", PathError::CrossDevice));
        }
        self.open.publish_ordered_if_many(&self.fs)?;
        source.open.publish_ordered_if_many(&self.fs)?;
        // Nobody overwrites in place what will be shared, nor reads what is flushed.
        let mut sharing = self.fs.sharing.write();
        *sharing += 1;
        let (own, other) = (&self.open, &source.open);
        let (own_place, other_place) = (own.place(), other.place());
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
        other.flush_locked(&self.fs, *sharing)?;
        let live = self.fs.transactions()?.live().get(other_place.tree)?;
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
}

/// Gives the source of a clone, as it is in the running transaction, to what needs it.
type Shared<'s> =
    dyn Fn(&WriteContext<'_>, &mut dyn FnMut(&CloneSource<'_>) -> Result<Progress>) -> Result<Progress> + 's;
