//! Mends the items of one inode: rebuilds its inode item from the others, and file extents.
//!
//! Owns [`rebuild`], [`blank`], [`fit_extent`], [`set_size`] and [`fill_holes`].
//!
//! Userspace counterpart: `repair_inode_no_item` (`check/main.c` of btrfs-progs).

use super::editor::{Editor, Items, inode_item, refuse};
use papilio_engine::errors::Result;
use papilio_engine::items::blank_inode::{blank_inode, kind_in};
use papilio_format::items::back_ref::{BackRef, KeyedRefs};
use papilio_format::items::dir_item::DirEntries;
use papilio_format::items::extent::ExtentItem;
use papilio_format::items::file_extent::{Compression, ExtentPart, FileExtentContent, FileExtentItem};
use papilio_format::items::inode::{FileKind, InodeItem};
use papilio_format::items::inode_ref::{InodeRef, InodeRefs};
use papilio_format::{ItemType, Key, LogicalAddress, TreeId, objectid};

/// Writes the inode item of an inode that has other items, or of a root directory that has none.
/// One that has only attributes goes.
pub(super) fn rebuild(editor: &Editor<'_>, tree: TreeId, inode: u64) -> Result<bool> {
    let first = Key::new(inode, ItemType::INODE_ITEM, 0);
    let last = Key::new(inode, ItemType(255), u64::MAX);
    let items = editor.items(tree, &first, &last)?;
    let is_root = inode == objectid::FIRST_FREE;
    if !is_root && items.iter().all(|(key, _)| key.item_type == ItemType::XATTR_ITEM) {
        return editor.replace(tree, &first, &last, Items::new());
    }
    let generation = editor.volume.geometry().generation;
    let (key, data) = blank_inode(inode, &items, generation);
    let mut item = match InodeItem::parse(&data) {
        Ok(item) => item,
        Err(reason) => return refuse(reason.to_string()),
    };
    if let Some(kind) = named_kind(editor, tree, &items)?.filter(|_| item.kind() == Some(FileKind::Regular)) {
        item.mode = kind.mode_bits() | item.permissions();
    }
    editor.put(tree, key, item.to_bytes().to_vec())
}

/// Writes an inode without content for an entry by index, and its reference to the entry.
pub(super) fn blank(editor: &Editor<'_>, tree: TreeId, index: Key) -> Result<bool> {
    let data = editor.need(tree, &index)?;
    let Some(entry) = DirEntries::parse(&data).into_iter().flatten().next() else {
        return refuse("the entry cannot be read");
    };
    let number = entry.location.objectid;
    let (first, last) = (Key::first_of(number), Key::last_of(number));
    if entry.location.item_type != ItemType::INODE_ITEM || !editor.items(tree, &first, &last)?.is_empty() {
        return refuse("the inode has items by now");
    }
    // Without a target or a device number the others mean nothing.
    let kind = match entry.file_type.kind() {
        Some(FileKind::Directory) => FileKind::Directory,
        _ => FileKind::Regular,
    };
    let generation = editor.volume.geometry().generation;
    let (key, data) = blank_inode(number, &Items::new(), generation);
    let mut item = match InodeItem::parse(&data) {
        Ok(item) => item,
        Err(reason) => return refuse(reason.to_string()),
    };
    item.mode = kind.mode_bits() | if kind == FileKind::Directory { 0o700 } else { 0o600 };
    let reference = InodeRef { index: index.offset, name: entry.name }.to_bytes();
    let named = Key::new(number, ItemType::INODE_REF, index.objectid);
    editor.replace(tree, &first, &last, vec![(key, item.to_bytes().to_vec()), (named, reference)])
}

/// Returns the kind that a directory entry of the inode says.
fn named_kind(editor: &Editor<'_>, tree: TreeId, items: &Items) -> Result<Option<FileKind>> {
    for (key, data) in items.iter().filter(|(key, _)| key.item_type == ItemType::INODE_REF) {
        for found in InodeRefs::parse(data).into_iter().flatten() {
            let index = Key::new(key.offset, ItemType::DIR_INDEX, found.index);
            let entry = editor.item(tree, &index)?.unwrap_or_default();
            let kind = kind_in(&entry, found.name);
            if kind.is_some() {
                return Ok(kind);
            }
        }
    }
    Ok(None)
}

/// Makes a file extent a part of its extent on disk: by the back reference that fits, else by
/// making it shorter; one that has nothing of the extent becomes a hole.
pub(super) fn fit_extent(editor: &Editor<'_>, tree: TreeId, key: Key) -> Result<bool> {
    let data = editor.need(tree, &key)?;
    let Ok(mut item) = FileExtentItem::parse(&data) else { return refuse("no file extent") };
    let whole = if item.compression == Compression::None { None } else { Some(item.ram_bytes) };
    let (FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part)) = &mut item.content else {
        return refuse("the extent is inline");
    };
    let whole = whole.unwrap_or(part.disk_length);
    let sector = u64::from(editor.volume.geometry().sector_size);
    if let Some(offset) = listed_offset(editor, key, part, whole)? {
        part.offset = offset;
    } else if part.offset < whole {
        part.length = whole - part.offset;
    } else {
        let length = part.length;
        *part = ExtentPart { disk_address: LogicalAddress(0), disk_length: 0, offset: 0, length };
        item.compression = Compression::None;
        item.ram_bytes = length;
    }
    let (FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part)) = item.content else {
        return refuse("the extent is inline");
    };
    if !part.length.is_multiple_of(sector) || part.length == 0 {
        return refuse("the extent on disk has an unaligned length");
    }
    if part.is_hole() {
        item.content = FileExtentContent::Regular(part);
    }
    editor.put(tree, key, item.to_bytes())
}

/// Returns the offset into an extent that a back reference of the inode says, if the part fits.
fn listed_offset(editor: &Editor<'_>, key: Key, part: &ExtentPart, whole: u64) -> Result<Option<u64>> {
    let start = part.disk_address.0;
    let first = Key::new(start, ItemType::EXTENT_ITEM, 0);
    let last = Key::new(start, ItemType(ItemType::BLOCK_GROUP_ITEM.0 - 1), u64::MAX);
    let fits = |reference: BackRef| match reference {
        BackRef::Data { inode, offset, .. } if inode.0 == key.objectid => {
            let offset = key.offset.checked_sub(offset.0)?;
            offset.checked_add(part.length).filter(|end| *end <= whole).map(|_| offset)
        }
        _ => None,
    };
    let mut found = Vec::new();
    for (key, data) in editor.items(objectid::EXTENT_TREE, &first, &last)? {
        if key.item_type == ItemType::EXTENT_ITEM {
            let Ok(item) = ExtentItem::parse(key.item_type, &data) else { continue };
            found.extend(item.inline_refs().map_while(std::result::Result::ok).filter_map(fits));
        } else {
            found.extend(KeyedRefs::parse(&key, &data).into_iter().flatten().filter_map(fits));
        }
    }
    // Several say nothing about this one.
    Ok(if let [one] = found[..] { Some(one) } else { None })
}

/// Sets the size of a file to the end of its data. Zeros at the end of the last sector are what
/// writers fill it with, and do not count.
pub(super) fn set_size(editor: &Editor<'_>, tree: TreeId, inode: u64, end: u64) -> Result<bool> {
    let (key, mut item) = inode_item(editor, tree, inode)?;
    let sector = u64::from(editor.volume.geometry().sector_size);
    let last = Key::new(inode, ItemType::EXTENT_DATA, u64::MAX);
    let mut size = end;
    if let Some(found) = editor.last_before(tree, &last)?.filter(|found| found.objectid == inode)
        && let Ok(extent) = FileExtentItem::parse(&editor.need(tree, &found)?)
        && let (FileExtentContent::Regular(part), Compression::None) = (extent.content, extent.compression)
        && !part.is_hole()
        && found.offset.checked_add(part.length) == Some(end)
    {
        let mut bytes = vec![0; sector as usize];
        let tail = (part.offset.saturating_add(part.length)).saturating_sub(sector);
        editor.volume.read(LogicalAddress(part.disk_address.0.saturating_add(tail)), &mut bytes)?;
        let zeros = bytes.iter().rev().take_while(|byte| **byte == 0).count() as u64;
        size -= zeros.min(sector - 1);
    }
    if size <= item.size {
        return refuse("the data does not reach past the end");
    }
    item.size = size;
    editor.put(tree, key, item.to_bytes().to_vec())
}

/// Adds file extents of holes where a file has none, up to its size.
pub(super) fn fill_holes(editor: &Editor<'_>, tree: TreeId, inode: u64) -> Result<bool> {
    let (_, item) = inode_item(editor, tree, inode)?;
    let geometry = editor.volume.geometry();
    let sector = u64::from(geometry.sector_size);
    let Some(size) = item.size.checked_next_multiple_of(sector) else {
        return refuse("the size is too large");
    };
    let key = |offset| Key::new(inode, ItemType::EXTENT_DATA, offset);
    let mut holes = Items::new();
    let mut end = 0;
    let mut add = |start: u64, end: u64| {
        if start < end {
            let part = ExtentPart {
                disk_address: LogicalAddress(0),
                disk_length: 0,
                offset: 0,
                length: end - start,
            };
            let extent = FileExtentItem {
                generation: geometry.generation,
                ram_bytes: end - start,
                compression: Compression::None,
                other_encoding: 0,
                content: FileExtentContent::Regular(part),
            };
            holes.push((key(start), extent.to_bytes()));
        }
    };
    for (found, data) in editor.items(tree, &key(0), &key(u64::MAX))? {
        let Ok(extent) = FileExtentItem::parse(&data) else { return refuse("a file extent cannot be read") };
        if matches!(extent.content, FileExtentContent::Inline(_)) && found.offset == 0 && size <= sector {
            return refuse("the file is inline");
        }
        add(end, found.offset.min(size));
        let after = extent.end(papilio_format::FileOffset(found.offset), geometry.sector_size);
        end = end.max(after.map_or(u64::MAX, |after| after.0));
    }
    add(end, size);
    let mut changed = false;
    for (key, data) in holes {
        changed |= editor.put(tree, key, data)?;
    }
    Ok(changed)
}
