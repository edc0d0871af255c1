//! The client's side of ioctls on the extents of files.
//!
//! A mount of Papilio answers with an ioctl of its own. On the kernel's Btrfs, the search of trees
//! (for administrators) and FIEMAP take its place.

use super::{MountedPath, garbled};
use crate::layout::{Fiemap, SearchArgs, SearchHeader};
use crate::number::Command;
use papilio_engine::data::{FiemapExtent, FileExtent, FileExtentKind};
use papilio_format::items::file_extent::{Compression, FileExtentContent, FileExtentItem};
use papilio_format::items::inode::InodeItem;
use papilio_format::{FileOffset, Generation, InodeNumber, ItemType, Key, LogicalAddress, TreeId};
use std::io;
use std::ops::RangeInclusive;
use zerocopy::FromBytes;

impl MountedPath {
    /// Returns the extents of the file, and whether they are shared, which is unknown (false)
    /// on the kernel's Btrfs.
    ///
    /// # Errors
    /// EINVAL if it is no regular file; on the kernel's Btrfs EPERM without `CAP_SYS_ADMIN`.
    pub fn extents(&self) -> io::Result<Vec<(FileExtent, bool)>> {
        match self.own_extents() {
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => self.searched_extents(),
            result => result,
        }
    }

    /// Returns the extents of the file, and whether they are shared. On the kernel's Btrfs
    /// these are the merged ones of FIEMAP, without the sizes of whole extents.
    ///
    /// # Errors
    /// EINVAL if it is no regular file.
    pub fn mapped_extents(&self) -> io::Result<Vec<(FileExtent, bool)>> {
        match self.own_extents() {
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => self.fiemap(),
            result => result,
        }
    }

    fn own_extents(&self) -> io::Result<Vec<(FileExtent, bool)>> {
        let mut extents = Vec::new();
        self.pages(Command::EXTENTS, |mut reader| {
            while !reader.is_empty() {
                extents.push(reader.extent().ok_or_else(garbled)?);
            }
            Ok(())
        })?;
        Ok(extents)
    }

    fn fiemap(&self) -> io::Result<Vec<(FileExtent, bool)>> {
        let mut extents = Vec::new();
        let mut start = 0;
        loop {
            let mut map = Fiemap { start, length: u64::MAX - start, count: 72, ..Fiemap::default() };
            self.call(Command::FIEMAP, &mut map)?;
            let found = map.extents.get(..map.mapped as usize).ok_or_else(garbled)?;
            for record in found {
                let kind = match record.flags {
                    flags if flags & FiemapExtent::DATA_INLINE != 0 => FileExtentKind::Inline,
                    flags if flags & FiemapExtent::UNWRITTEN != 0 => FileExtentKind::Preallocated,
                    _ => FileExtentKind::Regular,
                };
                let extent = FileExtent {
                    start: FileOffset(record.start),
                    length: record.length,
                    kind,
                    compression: Compression::None,
                    address: LogicalAddress(record.address),
                    stored: record.length,
                    uncompressed: record.length,
                    offset: 0,
                    generation: Generation(0),
                };
                extents.push((extent, record.flags & FiemapExtent::SHARED != 0));
                start = record.start.saturating_add(record.length);
            }
            if found.last().is_none_or(|last| last.flags & FiemapExtent::LAST != 0) {
                return Ok(extents);
            }
        }
    }

    fn searched_extents(&self) -> io::Result<Vec<(FileExtent, bool)>> {
        let (_, inode) = self.place()?;
        let keys =
            Key::new(inode, ItemType::EXTENT_DATA, 0)..=Key::new(inode, ItemType::EXTENT_DATA, u64::MAX);
        let mut extents = Vec::new();
        self.search_tree(TreeId(0), keys, 0, |_, key, item| {
            let item = FileExtentItem::parse(item).map_err(|_| garbled())?;
            extents.extend(extent_of_item(key.offset, &item).map(|extent| (extent, false)));
            Ok(())
        })?;
        Ok(extents)
    }

    /// Returns the extent of a file that begins at a file offset; `None` for a hole, or if nothing
    /// is there. Tree 0 means this file's own subvolume.
    ///
    /// # Errors
    /// EPERM without `CAP_SYS_ADMIN`.
    pub fn extent_item(
        &self,
        tree: TreeId,
        inode: InodeNumber,
        offset: u64,
    ) -> io::Result<Option<FileExtent>> {
        let key = Key::new(inode.0, ItemType::EXTENT_DATA, offset);
        let mut found = None;
        self.search_item(tree, key, |item| {
            let item = FileExtentItem::parse(item).map_err(|_| garbled())?;
            found = extent_of_item(offset, &item);
            Ok(())
        })?;
        Ok(found)
    }

    /// Returns the item of an inode; `None` if it is gone. Tree 0 means this file's own subvolume.
    ///
    /// # Errors
    /// EPERM without `CAP_SYS_ADMIN`.
    pub fn inode_item(&self, tree: TreeId, inode: InodeNumber) -> io::Result<Option<InodeItem>> {
        let mut found = None;
        self.search_item(tree, Key::new(inode.0, ItemType::INODE_ITEM, 0), |item| {
            found = Some(InodeItem::parse(item).map_err(|_| garbled())?);
            Ok(())
        })?;
        Ok(found)
    }

    /// Passes one item to `each`, if it is there.
    fn search_item(
        &self,
        tree: TreeId,
        key: Key,
        mut each: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        match self.search_tree(tree, key..=key, 0, |_, _, item| each(item)) {
            // The subvolume is gone.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            result => result,
        }
    }

    /// Passes the items of a tree in a range of keys to `each`, with the generation of their leaf.
    /// Leaves older than `oldest` are left out. Tree 0 means the file's own subvolume.
    ///
    /// # Errors
    /// EPERM without `CAP_SYS_ADMIN`, ENOENT if there is no such tree, and those of `each`.
    pub fn search_tree(
        &self,
        tree: TreeId,
        keys: RangeInclusive<Key>,
        oldest: u64,
        mut each: impl FnMut(u64, Key, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let (mut first, last) = keys.into_inner();
        loop {
            let mut arguments = SearchArgs::default();
            let wanted = &mut arguments.key;
            wanted.tree = tree.0;
            (wanted.min_objectid, wanted.max_objectid) = (first.objectid, last.objectid);
            (wanted.min_type, wanted.max_type) = (first.item_type.0.into(), last.item_type.0.into());
            (wanted.min_offset, wanted.max_offset) = (first.offset, last.offset);
            (wanted.min_generation, wanted.max_generation) = (oldest, u64::MAX);
            wanted.items = u32::MAX;
            self.call(Command::TREE_SEARCH, &mut arguments)?;
            let mut rest = &arguments.bytes[..];
            let mut found = None;
            for _ in 0..arguments.key.items {
                let (header, after) = SearchHeader::read_from_prefix(rest).map_err(|_| garbled())?;
                let (item, after) = after.split_at_checked(header.length as usize).ok_or_else(garbled)?;
                rest = after;
                let kind = u8::try_from(header.kind).map_err(|_| garbled())?;
                let key = Key::new(header.objectid, ItemType(kind), header.offset);
                if key < first {
                    return Err(garbled());
                }
                each(header.generation, key, item)?;
                found = Some(key);
            }
            match found.and_then(|key: Key| key.successor()).filter(|next| *next <= last) {
                Some(next) => first = next,
                None => return Ok(()),
            }
        }
    }
}

/// Returns the extent that an item at `start` describes, or `None` for a hole.
fn extent_of_item(start: u64, item: &FileExtentItem<'_>) -> Option<FileExtent> {
    let part = match item.content {
        FileExtentContent::Inline(data) => {
            return Some(FileExtent {
                start: FileOffset(start),
                length: item.ram_bytes,
                kind: FileExtentKind::Inline,
                compression: item.compression,
                address: LogicalAddress(0),
                stored: data.len() as u64,
                uncompressed: item.ram_bytes,
                offset: 0,
                generation: Generation(0),
            });
        }
        FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part) => part,
    };
    let kind = match item.content {
        FileExtentContent::Prealloc(_) => FileExtentKind::Preallocated,
        _ => FileExtentKind::Regular,
    };
    (part.disk_address.0 != 0).then_some(FileExtent {
        start: FileOffset(start),
        length: part.length,
        kind,
        compression: item.compression,
        address: part.disk_address,
        stored: part.disk_length,
        uncompressed: match item.compression {
            Compression::None => part.disk_length,
            _ => item.ram_bytes,
        },
        offset: part.offset,
        generation: item.generation,
    })
}
