//! The extents of a file: where each of its bytes is.
//!
//! Owns [`FileExtents`], which walks a file's extent items in order and fills the gaps between them
//! with holes.
//!
//! Invariants:
//! - The extents ascend and cover the range without gap or overlap.
//! - Each ends at a sector boundary.
//! - The referenced part of an extent on disk lies inside it.
//! - A step allocates nothing.
//!
//! Locks: none. Kernel counterparts: `btrfs_get_extent` (`fs/btrfs/inode.c`),
//! `btrfs_extent_item_to_extent_map` (`fs/btrfs/file-item.c`).

use crate::btree::{Cursor, Item, Tree};
use crate::data::compress::MAX_COMPRESSED;
use crate::errors::{Error, Result};
use papilio_format::items::file_extent::{
    Compression, ExtentPart, FileExtentContent, FileExtentItem, file_extent_key,
};
use papilio_format::{Corrupt, FileOffset, Generation, InodeNumber, ItemType, Key, LogicalAddress, TreeId};

/// A range of a file with its content.
#[derive(Clone, Debug)]
pub struct Extent {
    /// The file offset of the first byte.
    pub start: FileOffset,
    /// The file offset after the last byte, a sector boundary.
    pub end: FileOffset,
    /// Where the bytes are.
    pub kind: ExtentKind,
}

/// Where the bytes of an extent are.
#[derive(Clone, Debug)]
pub enum ExtentKind {
    /// Nowhere: the range reads as zeros.
    Hole,
    /// In the leaf.
    Inline(InlineExtent),
    /// On disk.
    Regular(DiskExtent),
    /// Allocated on disk, but the range reads as zeros.
    Prealloc(DiskExtent),
}

/// An inline extent.
#[derive(Clone, Debug)]
pub struct InlineExtent {
    item: Item,
    /// The compression of the stored bytes.
    pub compression: Compression,
    /// The uncompressed length in bytes; zeros follow up to the extent's end.
    pub ram_bytes: u64,
}

impl InlineExtent {
    /// Returns the stored bytes.
    pub fn data(&self) -> &[u8] {
        &self.item.data()[FileExtentItem::INLINE_DATA_START..]
    }
}

/// A part of an extent on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskExtent {
    /// The address of the whole extent.
    pub disk_address: LogicalAddress,
    /// The bytes that the whole extent takes on disk.
    pub disk_length: u64,
    /// The uncompressed bytes of the whole extent; meaningless for an uncompressed one.
    pub ram_bytes: u64,
    /// Where the part starts in the extent, in bytes of uncompressed data.
    pub offset: u64,
    /// The compression of the extent.
    pub compression: Compression,
    /// The transaction that created the extent.
    pub(crate) generation: Generation,
}

impl DiskExtent {
    /// Returns the part behind the first `bytes` bytes.
    pub fn advanced(self, bytes: u64) -> Self {
        // No overflow: `checked` proved that the part is inside the extent.
        Self { offset: self.offset + bytes, ..self }
    }

    /// Returns the part, or what is wrong if it does not lie inside its extent.
    fn checked(extent: &FileExtentItem<'_>, part: ExtentPart) -> Result<Self, Corrupt> {
        let bad = |field, value, why| Err(Corrupt::field("file extent", field, value, why));
        let compressed = extent.compression != Compression::None;
        let whole = if compressed { extent.ram_bytes } else { part.disk_length };
        if part.offset.checked_add(part.length).is_none_or(|end| end > whole) {
            return bad("length", part.length, "the part ends after its extent");
        }
        if compressed && part.disk_length > MAX_COMPRESSED {
            return bad("disk_length", part.disk_length, "larger than a compressed extent can be");
        }
        Ok(Self {
            disk_address: part.disk_address,
            disk_length: part.disk_length,
            ram_bytes: extent.ram_bytes,
            offset: part.offset,
            compression: extent.compression,
            generation: extent.generation,
        })
    }
}

/// An iterator over the extents of a file, in order. It ends after the first error.
pub struct FileExtents<'a> {
    cursor: Cursor<'a>,
    tree: TreeId,
    inode: InodeNumber,
    sector_size: u32,
    /// The file offset where the next extent starts.
    next: u64,
    /// The file offset where the walk ends.
    end: u64,
    sought: bool,
    /// Whether the first extent is returned from its own start.
    whole: bool,
}

impl<'a> FileExtents<'a> {
    /// Returns the extents that cover `start` to `end`. The first starts at `start`. The last may
    /// end after `end`; a hole then ends at the next sector boundary.
    pub fn new(
        tree: &'a Tree,
        inode: InodeNumber,
        sector_size: u32,
        start: FileOffset,
        end: FileOffset,
    ) -> Self {
        Self {
            cursor: Cursor::new(tree),
            tree: tree.id(),
            inode,
            sector_size,
            next: start.0,
            end: end.0,
            sought: false,
            whole: false,
        }
    }

    /// As [`FileExtents::new`], but returns the extent that contains `start` whole.
    pub fn whole(
        tree: &'a Tree,
        inode: InodeNumber,
        sector_size: u32,
        start: FileOffset,
        end: FileOffset,
    ) -> Self {
        Self { whole: true, ..Self::new(tree, inode, sector_size, start, end) }
    }

    /// Returns the file offset that the walk has reached.
    pub fn reached(&self) -> u64 {
        self.next
    }

    /// Returns the offset of the first extent of this file behind the place where the walk failed,
    /// from which another walk can go on. `None` if there is none that can be read.
    pub fn behind_fault(&mut self) -> Option<u64> {
        // The fault may be an item: then the cursor is on it.
        let from = match self.extent_start().filter(|start| *start >= self.next) {
            Some(start) => start.checked_add(1)?,
            None => self.next,
        };
        let mut from = file_extent_key(self.inode, FileOffset(from));
        loop {
            match self.cursor.seek(&from) {
                Ok(()) => return self.extent_start().filter(|start| *start >= self.next),
                Err(_) => {
                    let behind = self.cursor.behind_fault().filter(|behind| *behind > from)?;
                    if behind.objectid > self.inode.0 {
                        return None;
                    }
                    from = behind;
                }
            }
        }
    }

    /// Moves to the item that contains `next`, or else to the first after it.
    fn seek(&mut self) -> Result<()> {
        let key = file_extent_key(self.inode, FileOffset(self.next));
        self.cursor.seek(&key)?;
        if self.cursor.key() == Some(key) {
            return Ok(());
        }
        self.cursor.step_back()?;
        // The item before may not be an extent of this file. Then step forward again.
        if self.extent_start().is_none() {
            if self.cursor.key().is_some() {
                self.cursor.step()?;
            } else {
                self.cursor.seek(&key)?;
            }
        }
        Ok(())
    }

    /// Returns the file offset of the extent item at the cursor, if it belongs to this file.
    fn extent_start(&self) -> Option<u64> {
        let Key { objectid, item_type, offset } = self.cursor.key()?;
        (objectid == self.inode.0 && item_type == ItemType::EXTENT_DATA).then_some(offset)
    }

    fn step(&mut self) -> Result<Option<Extent>> {
        if self.next >= self.end {
            return Ok(None);
        }
        if !std::mem::replace(&mut self.sought, true) {
            self.seek()?;
        }
        while let Some(start) = self.extent_start() {
            if start > self.next {
                return Ok(Some(self.hole_to(start)));
            }
            if let Some(extent) = self.extent_here(start)? {
                self.next = extent.end.0;
                return Ok(Some(extent));
            }
            self.cursor.step()?;
        }
        Ok(Some(self.hole_to(u64::MAX)))
    }

    fn hole_to(&mut self, end: u64) -> Extent {
        let last = self.end.checked_next_multiple_of(self.sector_size.into()).unwrap_or(u64::MAX);
        self.whole = false;
        let start = FileOffset(std::mem::replace(&mut self.next, end.min(last)));
        Extent { start, end: FileOffset(self.next), kind: ExtentKind::Hole }
    }

    /// Returns the extent at the cursor, which starts at `start`, from `next` on; `None` where it
    /// ends before `next`.
    fn extent_here(&mut self, start: u64) -> Result<Option<Extent>> {
        let (tree, key) = (self.tree, file_extent_key(self.inode, FileOffset(start)));
        let fault = |reason| Error::Item { tree, key, reason };
        let data = self.cursor.data().expect("the cursor is at an item");
        let extent = FileExtentItem::parse(data).map_err(fault)?;
        let end = extent.end(FileOffset(start), self.sector_size).ok_or_else(|| {
            fault(Corrupt::field("file extent", "length", extent.length(), "the end exceeds 64 bits"))
        })?;
        if end.0 <= self.next {
            return Ok(None);
        }
        // Extents overlap only in a corrupt tree: only the first may start before `next`.
        let from = if std::mem::take(&mut self.whole) { start } else { self.next };
        let skipped = from - start;
        let part =
            |part| DiskExtent::checked(&extent, part).map(|disk| disk.advanced(skipped)).map_err(fault);
        let kind = match extent.content {
            FileExtentContent::Inline(_) => ExtentKind::Inline(InlineExtent {
                item: self.cursor.item().expect("the cursor is at an item"),
                compression: extent.compression,
                ram_bytes: extent.ram_bytes,
            }),
            FileExtentContent::Regular(on_disk) | FileExtentContent::Prealloc(on_disk)
                if on_disk.is_hole() =>
            {
                ExtentKind::Hole
            }
            FileExtentContent::Regular(on_disk) => ExtentKind::Regular(part(on_disk)?),
            FileExtentContent::Prealloc(on_disk) => ExtentKind::Prealloc(part(on_disk)?),
        };
        Ok(Some(Extent { start: FileOffset(from), end, kind }))
    }
}

impl Iterator for FileExtents<'_> {
    type Item = Result<Extent>;

    fn next(&mut self) -> Option<Result<Extent>> {
        let step = self.step();
        if step.is_err() {
            self.end = 0;
        }
        step.transpose()
    }
}
