//! Writing compressed extents of an open file as they lie.
//!
//! Owns [`OpenFile::write_encoded_at`]. Locks: as [`super::write`].
//!
//! Kernel counterpart: `btrfs_do_encoded_write` (`fs/btrfs/inode.c`).

use crate::data::encoded::EncodedExtent;
use crate::data::write::PreparedWrite;
use crate::errors::Result;
use crate::file::change::EXTENT_ITEMS;
use crate::file::open_file::OpenFile;
use papilio_format::FileOffset;
use papilio_pagecache::Invalidate;

impl OpenFile {
    /// Writes the part of a compressed extent at `offset`, and the whole extent to the device.
    /// Returns false if the file cannot have it so; then nothing has changed.
    ///
    /// # Errors
    /// As [`OpenFile::write_at`].
    pub(crate) fn write_encoded_at(&self, extent: &EncodedExtent<'_>, offset: u64) -> Result<bool> {
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
}
