//! Truncation, holes and preallocation of an open file.
//!
//! Owns the operations of `ftruncate` and `fallocate`. Each holds the file's data lock exclusively and changes the tree
//! in steps.
//!
//! Kernel counterparts: `btrfs_setsize` (`fs/btrfs/inode.c`), `btrfs_fallocate` (`fs/btrfs/file.c`).

use crate::data::prealloc::preallocate_step;
use crate::data::punch_hole::punch_hole_step;
use crate::data::truncate::truncate_step;
use crate::errors::Result;
use crate::file::open_file::OpenFile;
use crate::file::write::Exclusive;
use papilio_format::FileOffset;
use papilio_pagecache::Invalidate;
use std::ops::Range;

impl OpenFile {
    /// Makes the file `size` bytes long (`ftruncate`).
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub(crate) fn set_len(&self, size: u64) -> Result<()> {
        let open = &self.open;
        let exclusive = self.exclusive()?;
        // All that is not there any more, or is for the first time.
        let range = open.changed_range(&self.fs, size, u64::MAX)?;
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
    pub(crate) fn punch_hole(&self, offset: u64, length: u64) -> Result<()> {
        let open = &self.open;
        let exclusive = self.exclusive()?;
        let range = open.changed_range(&self.fs, offset, length)?;
        self.punch(&exclusive, &range, offset, length)
    }

    /// Makes a hole, of which the cache then knows.
    fn punch(&self, exclusive: &Exclusive<'_>, range: &Range<u64>, offset: u64, length: u64) -> Result<()> {
        self.steps(exclusive, range, |context, file| {
            punch_hole_step(context, file, FileOffset(offset), length)
        })?;
        if let Some(mapping) = &self.open.mapping {
            mapping.discard(offset..offset.saturating_add(length));
        }
        Ok(())
    }

    /// Gives room to all sectors of a range; those that had none read as zeros (`fallocate`).
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub(crate) fn allocate(&self, offset: u64, length: u64, keep_size: bool) -> Result<()> {
        let open = &self.open;
        let exclusive = self.exclusive()?;
        let range = open.changed_range(&self.fs, offset, length)?;
        self.steps(&exclusive, &range, |context, file| {
            preallocate_step(context, file, FileOffset(offset), length, keep_size)
        })
    }

    /// Makes a range read as zeros, with room for all its sectors (`FALLOC_FL_ZERO_RANGE`). Where there is no
    /// room for them, a part of the range may be a hole, which reads the same.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub(crate) fn zero_range(&self, offset: u64, length: u64, keep_size: bool) -> Result<()> {
        let open = &self.open;
        let exclusive = self.exclusive()?;
        let range = open.changed_range(&self.fs, offset, length)?;
        self.punch(&exclusive, &range, offset, length)?;
        self.steps(&exclusive, &range, |context, file| {
            preallocate_step(context, file, FileOffset(offset), length, keep_size)
        })
    }

    /// Lets go of the pages that the page cache holds of this file, after writing back those that are dirty.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub(crate) fn drop_cache(&self) -> Result<()> {
        if let Some(mapping) = &self.open.mapping {
            let exclusive = self.exclusive()?;
            self.open.flush_locked(&self.fs, exclusive.epoch)?;
            mapping.invalidate(0..u64::MAX, Invalidate::All);
        }
        Ok(())
    }
}
