//! Writing extents of an open file that another program made.
//!
//! Owns [`OpenFile::write_encoded_at`], for compressed extents as they lie, and
//! [`OpenFile::clone_from_file`], for the blocks of a file of the host. Locks: as [`super::write`].
//!
//! Kernel counterpart: `btrfs_do_encoded_write` (`fs/btrfs/inode.c`).

use crate::data::encoded::EncodedExtent;
use crate::data::write::PreparedWrite;
use crate::errors::Result;
use crate::file::change::EXTENT_ITEMS;
use crate::file::open_file::OpenFile;
use papilio_format::FileOffset;
use papilio_pagecache::Invalidate;
use std::os::fd::BorrowedFd;

impl OpenFile {
    /// Writes the part of a compressed extent at `offset`, and the whole extent to the device.
    /// Returns false if the file cannot have it so; then nothing has changed.
    ///
    /// # Errors
    /// As [`OpenFile::write_at`].
    pub fn write_encoded_at(&self, extent: &EncodedExtent<'_>, offset: u64) -> Result<bool> {
        self.charge(offset, extent.length)?;
        let exclusive = self.exclusive()?;
        let range = self.open.changed_range(&self.fs, offset, extent.length)?;
        let trees = self.begin_change(&exclusive)?;
        let context = trees.context(&**self.fs.transactions()?);
        let prepared =
            trees.prepare(|file| PreparedWrite::of_encoded(&context, file, FileOffset(offset), extent))?;
        let Some(mut write) = prepared else { return Ok(false) };
        self.publish_change(&range, EXTENT_ITEMS, |context, file| write.publish(context, file))?;
        if let Some(mapping) = &self.open.mapping {
            mapping.invalidate(offset..offset.saturating_add(extent.length), Invalidate::All);
        }
        Ok(true)
    }

    /// Shares `length` bytes of a host file, from byte `from` on, with this file at `offset`.
    ///
    /// # Errors
    /// As [`OpenFile::write_at`], and those of
    /// [`Device::clone_from_file`](papilio_device::Device::clone_from_file).
    pub fn clone_from_file(&self, source: BorrowedFd<'_>, from: u64, length: u64, offset: u64) -> Result<()> {
        self.charge(offset, length)?;
        let exclusive = self.exclusive()?;
        let range = self.open.changed_range(&self.fs, offset, length)?;
        let trees = self.begin_change(&exclusive)?;
        let context = trees.context(&**self.fs.transactions()?);
        let mut write = trees.prepare(|file| {
            PreparedWrite::of_clone(&context, file, FileOffset(offset), source, from, length)
        })?;
        self.publish_change(&range, EXTENT_ITEMS, |context, file| write.publish(context, file))?;
        if let Some(mapping) = &self.open.mapping {
            mapping.invalidate(offset..offset.saturating_add(length), Invalidate::All);
        }
        Ok(())
    }
}
