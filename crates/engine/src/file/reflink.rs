//! Reflinks and deduplication between open files.
//!
//! Owns [`OpenFile::clone_range`] and [`OpenFile::dedupe_range`].
//!
//! Invariant: a deduplication changes no content, so read-only subvolumes take it, unless a
//! snapshot is being sent.
//!
//! Locks, in this order: `sharing` (exclusive: no writer overwrites in place what becomes shared),
//! the data locks of both files by place, the transaction's locks. Kernel counterparts:
//! `fs/btrfs/reflink.c`, `fs/remap_range.c`.

use crate::data::clone::CloneRange;
use crate::data::data_context::DataContext;
use crate::data::dedupe::{self, Deduped};
use crate::data::file_edit::{FileEdit, WriteContext};
use crate::data::progress::Progress;
use crate::errors::{Error, PathError, Result};
use crate::file::change::EXTENT_ITEMS;
use crate::file::data_lock::ExclusiveData;
use crate::file::data_trees::DataTrees;
use crate::file::open_file::OpenFile;
use crate::file::write::ExtentsGuard;
use papilio_format::FileOffset;
use papilio_locks::{RwLockWriteGuard, in_order};
use papilio_pagecache::Invalidate;
use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

/// Both files of a clone, locked until this is dropped.
struct Locked<'a> {
    exclusive: ExtentsGuard<'static>,
    // In this order: the data locks are released first.
    _target: ExclusiveData<'a>,
    _source: Option<ExclusiveData<'a>>,
    _sharing: RwLockWriteGuard<'a, u64>,
}

/// The target's content after a request.
#[derive(Clone, Copy)]
enum ReflinkContent {
    Same,
    Other,
}

impl OpenFile {
    /// Shares `length` bytes of `source` from `from` on (up to its end for 0) with this file, from
    /// `to` on (`FICLONERANGE`). The files may be the same, and lie in different subvolumes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for offsets that are not at sector boundaries, overlapping ranges, or
    /// files of which only one has checksums; as [`OpenFile::write_at`].
    pub fn clone_range(&self, source: &OpenFile, from: u64, length: u64, to: u64) -> Result<()> {
        let locked = self.lock_with(source)?;
        let trees = self.begin_change(&locked.exclusive)?;
        let source_trees = self.fs.data_trees(source.open.place())?;
        let context = trees.context(&**self.fs.transactions()?);
        let range = trees.prepare(|target| {
            let (from, to) = (FileOffset(from), FileOffset(to));
            CloneRange::new(&context.rules, &source_trees.clone_source()?, from, length, target, to)
        })?;
        let bytes = if length == 0 { u64::MAX } else { length };
        if let Some(mut range) = range {
            let changed = self.open.changed_range(&self.fs, to, bytes)?;
            self.share(&context, &trees, &source_trees, &mut range, &changed, ReflinkContent::Other)?;
        }
        if let Some(mapping) = &self.open.mapping {
            mapping.invalidate(to..to.saturating_add(bytes), Invalidate::All);
        }
        Ok(())
    }

    /// Shares the bytes of `source` if they are the same (`FIDEDUPERANGE`). Returns how many bytes
    /// were shared, or `None` where the ranges differ.
    ///
    /// # Errors
    /// As [`OpenFile::clone_range`]; [`Error::Busy`] in a read-only subvolume during a send.
    pub fn dedupe_range(&self, source: &OpenFile, from: u64, length: u64, to: u64) -> Result<Option<u64>> {
        let is_read_only = self.fs.check_changeable(self.open.place().tree).is_err();
        let _no_send = if is_read_only { Some(self.fs.exclusive.begin_dedupe()?) } else { None };
        let locked = self.lock_with(source)?;
        let trees = self.begin_same_content(&locked.exclusive)?;
        let source_trees = self.fs.data_trees(source.open.place())?;
        let context = trees.context(&**self.fs.transactions()?);
        let compared = trees.prepare(|target| {
            let (from, to) = (FileOffset(from), FileOffset(to));
            dedupe::dedupe(&context, &source_trees.clone_source()?, from, length, target, to)
        })?;
        match compared {
            Deduped::Same(mut range) => {
                let bytes = if length == 0 { u64::MAX } else { length };
                let changed = self.open.changed_range(&self.fs, to, bytes)?;
                self.share(&context, &trees, &source_trees, &mut range, &changed, ReflinkContent::Same)?;
                Ok(Some(range.bytes_done()))
            }
            Deduped::Nothing => Ok(Some(0)),
            Deduped::Differs => Ok(None),
        }
    }

    /// Carries out a checked request, which touches the sectors in `changed`.
    fn share(
        &self,
        context: &DataContext<'_>,
        trees: &DataTrees<'_>,
        source_trees: &DataTrees<'_>,
        range: &mut CloneRange,
        changed: &Range<u64>,
        content: ReflinkContent,
    ) -> Result<()> {
        loop {
            let mut step =
                trees.prepare(|target| range.prepare(context, &source_trees.clone_source()?, target))?;
            let publish = |context: &WriteContext<'_>, target: &mut FileEdit<'_>| {
                range.step(context, &source_trees.clone_source()?, target, &mut step)
            };
            let progress = match content {
                ReflinkContent::Other => self.publish_change(changed, 2 * EXTENT_ITEMS, publish)?,
                ReflinkContent::Same => self.publish_same_content(changed, 2 * EXTENT_ITEMS, publish)?,
            };
            if progress == Progress::Done {
                return Ok(());
            }
        }
    }

    /// Locks both files, in the order that every thread follows, and flushes the source.
    fn lock_with<'a>(&'a self, source: &'a OpenFile) -> Result<Locked<'a>> {
        if !Arc::ptr_eq(&self.fs, &source.fs) {
            return Err(Error::path(b"clone", PathError::CrossDevice));
        }
        self.open.prepare_exclusive(&self.fs)?;
        source.open.prepare_exclusive(&self.fs)?;
        let mut sharing = self.fs.sharing.write();
        *sharing += 1;
        let (own, other) = (&self.open, &source.open);
        let (target_lock, source_lock) = {
            let _order = in_order("data locks of two files, by their places");
            match own.place().cmp(&other.place()) {
                Ordering::Equal => (own.data.write(), None),
                Ordering::Less => {
                    let own = own.data.write();
                    (own, Some(other.data.write()))
                }
                Ordering::Greater => {
                    let other = other.data.write();
                    (own.data.write(), Some(other))
                }
            }
        };
        let epoch = *sharing;
        other.flush_locked(&self.fs, epoch)?;
        let exclusive = ExtentsGuard { epoch, _data: None, _sharing: None };
        Ok(Locked { exclusive, _target: target_lock, _source: source_lock, _sharing: sharing })
    }
}
