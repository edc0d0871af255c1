//! Truncation, holes and preallocation of an open file.
//!
//! Owns the operations of `ftruncate` and `fallocate`. Each holds the file's data lock exclusively
//! and changes the tree in steps.
//!
//! Kernel counterparts: `btrfs_setsize` (`fs/btrfs/inode.c`), `btrfs_fallocate`
//! (`fs/btrfs/file.c`).

use crate::data::prealloc::{preallocate_rewrite, preallocate_step};
use crate::data::progress::Progress;
use crate::data::punch_hole::{Hole, punch_hole_step, zero_edge};
use crate::data::rewrite::SectorRewrite;
use crate::data::truncate::PreparedTruncate;
use crate::data::zero_range::ZeroRange;
use crate::errors::Result;
use crate::file::change::EXTENT_ITEMS;
use crate::file::open_file::OpenFile;
use crate::file::write::ExtentsGuard;
use papilio_format::FileOffset;
use papilio_pagecache::Invalidate;
use std::ops::Range;

/// Items that a step touches.
const STEP_ITEMS: u64 = 2 * EXTENT_ITEMS;

impl OpenFile {
    /// Makes the file `size` bytes long (`ftruncate`).
    ///
    /// # Errors
    /// As [`OpenFile::write_at`].
    pub fn set_len(&self, size: u64) -> Result<()> {
        let open = &self.open;
        let exclusive = self.exclusive()?;
        // The sectors that the file loses or gains.
        let range = open.changed_range(&self.fs, size, u64::MAX)?;
        let trees = self.begin_change(&exclusive)?;
        let context = trees.context(&**self.fs.transactions()?);
        let mut truncate = trees.prepare(|file| PreparedTruncate::new(&context, file, size))?;
        let truncated = loop {
            match self.publish_change(&range, STEP_ITEMS, |context, file| truncate.step(context, file)) {
                Ok(Progress::More) => {}
                done => break done.map(drop),
            }
        };
        if let Some(mapping) = &open.mapping {
            match &truncated {
                Ok(()) => mapping.truncate(size),
                // Steps before the error may have cut the file.
                Err(_) => drop(mapping.invalidate(range, Invalidate::All)),
            }
        }
        truncated
    }

    /// Punches a hole of `length` bytes from `offset` on; the size stays (`FALLOC_FL_PUNCH_HOLE`).
    ///
    /// # Errors
    /// As [`OpenFile::write_at`].
    pub fn punch_hole(&self, offset: u64, length: u64) -> Result<()> {
        let open = &self.open;
        let exclusive = self.exclusive()?;
        let range = open.changed_range(&self.fs, offset, length)?;
        self.punch(&exclusive, &range, offset, length)
    }

    /// Punches the hole and drops the pages in it.
    fn punch(
        &self,
        exclusive: &ExtentsGuard<'_>,
        range: &Range<u64>,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        let punched = self.punch_extents(exclusive, range, offset, length);
        if let Some(mapping) = &self.open.mapping {
            let hole = offset..offset.saturating_add(length);
            match &punched {
                Ok(()) => mapping.discard(hole),
                // Steps before the error have changed the file.
                Err(_) => drop(mapping.invalidate(hole, Invalidate::All)),
            }
        }
        punched
    }

    fn punch_extents(
        &self,
        exclusive: &ExtentsGuard<'_>,
        range: &Range<u64>,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        let trees = self.begin_change(exclusive)?;
        let context = trees.context(&**self.fs.transactions()?);
        let hole =
            trees.prepare(|file| Hole::new(&context.rules, file.inode, file.item.size, offset, length))?;
        if let Some(mut sectors) = hole.sectors {
            let mut rewrite =
                trees.prepare(|file| SectorRewrite::prepare(&context, file, Some(&sectors), None))?;
            loop {
                let (progress, reached) = self.publish_change(range, STEP_ITEMS, |context, file| {
                    punch_hole_step(context, file, &sectors, &mut rewrite)
                })?;
                if progress == Progress::Done {
                    break;
                }
                sectors.start = reached;
            }
        }
        for edge in &hole.edges {
            let mut zeros = trees.prepare(|file| zero_edge(&context, file, edge))?;
            self.publish_change(range, STEP_ITEMS, |context, file| zeros.publish(context, file))?;
        }
        Ok(())
    }

    /// Allocates space for the sectors of a range that have none; they read as zeros (`fallocate`).
    ///
    /// # Errors
    /// As [`OpenFile::write_at`].
    pub fn allocate(&self, offset: u64, length: u64, keep_size: bool) -> Result<()> {
        self.charge(offset, length)?;
        let open = &self.open;
        let exclusive = self.exclusive()?;
        let range = open.changed_range(&self.fs, offset, length)?;
        self.preallocate(&exclusive, &range, offset, length, keep_size)
    }

    fn preallocate(
        &self,
        exclusive: &ExtentsGuard<'_>,
        range: &Range<u64>,
        offset: u64,
        length: u64,
        keep_size: bool,
    ) -> Result<()> {
        let offset = FileOffset(offset);
        let trees = self.begin_change(exclusive)?;
        let context = trees.context(&**self.fs.transactions()?);
        let mut rewrite = trees.prepare(|file| preallocate_rewrite(&context, file, offset, length))?;
        while self.publish_change(range, STEP_ITEMS, |context, file| {
            preallocate_step(context, file, offset, length, keep_size, &mut rewrite)
        })? == Progress::More
        {}
        Ok(())
    }

    /// Makes a range read as zeros, with space for all its sectors (`FALLOC_FL_ZERO_RANGE`). Space
    /// that is preallocated stays. If there is no room for the rest, the file is unchanged.
    ///
    /// # Errors
    /// As [`OpenFile::write_at`].
    pub fn zero_range(&self, offset: u64, length: u64, keep_size: bool) -> Result<()> {
        self.charge(offset, length)?;
        let open = &self.open;
        let exclusive = self.exclusive()?;
        let range = open.changed_range(&self.fs, offset, length)?;
        let trees = self.begin_change(&exclusive)?;
        let context = trees.context(&**self.fs.transactions()?);
        let zeroed = trees.prepare(|file| ZeroRange::new(&context, file, offset, length))?;
        drop(zeroed.edges);
        for part in &zeroed.written {
            self.punch(&exclusive, &range, part.start, part.end - part.start)?;
        }
        drop(zeroed.space);
        self.preallocate(&exclusive, &range, offset, length, keep_size)
    }

    /// Writes dirty pages back and drops all pages of the file.
    ///
    /// # Errors
    /// As [`OpenFile::write_at`].
    pub fn drop_cache(&self) -> Result<()> {
        if let Some(mapping) = &self.open.mapping {
            let exclusive = self.exclusive()?;
            self.open.flush_locked(&self.fs, exclusive.epoch)?;
            mapping.invalidate(0..u64::MAX, Invalidate::All);
        }
        Ok(())
    }
}
