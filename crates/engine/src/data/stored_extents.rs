//! A file's extent items as the tree stores them, for changes of them.
//!
//! Owns [`StoredExtents`], an iterator over the items that overlap a range, and [`StoredExtent`].
//! Unlike [`super::extent_map`] it returns items whole and skips gaps.
//!
//! Invariant: every returned item was parsed, and its end fits into 64 bits. Only inline data may
//! be empty. Locks: none.

use crate::btree::{Cursor, Item, Tree};
use crate::errors::{Error, Result};
use papilio_format::items::file_extent::{FileExtentContent, FileExtentItem, file_extent_key};
use papilio_format::{Corrupt, FileOffset, InodeNumber, ItemType};

/// One extent item.
#[derive(Clone, Debug)]
pub struct StoredExtent {
    item: Item,
    /// The file offset of the first byte.
    pub start: u64,
    /// The file offset after the last byte, a sector boundary.
    pub end: u64,
}

impl StoredExtent {
    fn read(tree: &Tree, item: Item, sector_size: u32) -> Result<Self> {
        let fault = |reason| Error::Item { tree: tree.id(), key: item.key, reason };
        let start = item.key.offset;
        let extent = FileExtentItem::parse(item.data()).map_err(fault)?;
        let end = extent.end(FileOffset(start), sector_size).ok_or_else(|| {
            fault(Corrupt::field("file extent", "length", extent.length(), "the end exceeds 64 bits"))
        })?;
        if end.0 == start && !matches!(extent.content, FileExtentContent::Inline(_)) {
            return Err(fault(Corrupt::field("file extent", "length", 0, "an extent must not be empty")));
        }
        Ok(Self { start, end: end.0, item })
    }

    /// Returns the parsed item.
    pub fn extent(&self) -> FileExtentItem<'_> {
        FileExtentItem::parse(self.item.data()).expect("it was parsed before")
    }

    /// Returns whether the extent is inline.
    pub(crate) fn is_inline(&self) -> bool {
        matches!(self.extent().content, FileExtentContent::Inline(_))
    }

    /// Returns the bytes that the range `from` to `to`, which is in the extent, adds to the inode's
    /// `nbytes`.
    pub(crate) fn bytes_between(&self, from: u64, to: u64) -> u64 {
        let extent = self.extent();
        match extent.content {
            FileExtentContent::Inline(_) => extent.ram_bytes,
            FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part) if part.is_hole() => 0,
            _ => to - from,
        }
    }
}

/// Returns the extent at the file's start, if it is inline.
///
/// # Errors
/// A tree block or an item that cannot be read.
pub(crate) fn inline_extent(
    tree: &Tree,
    inode: InodeNumber,
    sector_size: u32,
) -> Result<Option<StoredExtent>> {
    let Some(item) = tree.get(&file_extent_key(inode, FileOffset(0)))? else { return Ok(None) };
    StoredExtent::read(tree, item, sector_size).map(|extent| Some(extent).filter(StoredExtent::is_inline))
}

/// An iterator over the items that overlap a range, ascending. It ends after the first error.
pub struct StoredExtents<'a> {
    tree: &'a Tree,
    cursor: Cursor<'a>,
    inode: InodeNumber,
    sector_size: u32,
    start: u64,
    end: u64,
    sought: bool,
}

impl<'a> StoredExtents<'a> {
    /// Returns the items that overlap `start` to `end`.
    pub fn new(tree: &'a Tree, inode: InodeNumber, sector_size: u32, start: u64, end: u64) -> Self {
        Self { tree, cursor: Cursor::new(tree), inode, sector_size, start, end, sought: false }
    }

    /// Returns the item at the cursor, if it is an extent item of the file.
    fn here(&self) -> Result<Option<StoredExtent>> {
        let Some(item) = self.cursor.item() else { return Ok(None) };
        if (item.key.objectid, item.key.item_type) != (self.inode.0, ItemType::EXTENT_DATA) {
            return Ok(None);
        }
        StoredExtent::read(self.tree, item, self.sector_size).map(Some)
    }

    fn advance(&mut self) -> Result<Option<StoredExtent>> {
        if std::mem::replace(&mut self.sought, true) {
            self.cursor.step()?;
        } else {
            let key = file_extent_key(self.inode, FileOffset(self.start));
            self.cursor.seek(&key)?;
            if self.cursor.key() != Some(key) {
                self.cursor.step_back()?;
                match self.here()? {
                    Some(extent) if extent.end > self.start => return Ok(Some(extent)),
                    _ if self.cursor.key().is_some() => self.cursor.step()?,
                    _ => self.cursor.seek(&key)?,
                }
            }
        }
        Ok(self.here()?.filter(|extent| extent.start < self.end))
    }
}

impl Iterator for StoredExtents<'_> {
    type Item = Result<StoredExtent>;

    fn next(&mut self) -> Option<Result<StoredExtent>> {
        if self.start >= self.end {
            return None;
        }
        let found = self.advance();
        if !matches!(found, Ok(Some(_))) {
            self.end = 0;
        }
        found.transpose()
    }
}

/// Returns the last `limit` items of a file that end after `start`, descending.
///
/// # Errors
/// A tree block or an item that cannot be read.
pub(crate) fn last_extents(
    tree: &Tree,
    inode: InodeNumber,
    sector_size: u32,
    start: u64,
    limit: usize,
) -> Result<Vec<StoredExtent>> {
    let mut extents = Vec::new();
    let last = file_extent_key(inode, FileOffset(u64::MAX));
    let mut cursor = tree.seek(&last)?;
    if cursor.key() != Some(last) {
        cursor.step_back()?;
    }
    while extents.len() < limit {
        let Some(item) = cursor.item() else { break };
        if (item.key.objectid, item.key.item_type) != (inode.0, ItemType::EXTENT_DATA) {
            break;
        }
        let extent = StoredExtent::read(tree, item, sector_size)?;
        if extent.end <= start {
            break;
        }
        extents.push(extent);
        cursor.step_back()?;
        // Before the first item there is nothing; a further step back would lead to the last.
        if cursor.key().is_none() {
            break;
        }
    }
    Ok(extents)
}
