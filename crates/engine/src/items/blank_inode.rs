//! Inode items made of the other items of an inode.
//!
//! Owns [`blank_inode`], [`sound_inode`] and [`kind_in`]. Mode, owner and times are lost with an
//! inode item; the inode then belongs to root.
//!
//! Userspace counterpart: `repair_inode_no_item` (`check/main.c` of btrfs-progs).

use super::Items;
use papilio_format::items::dir_item::DirEntries;
use papilio_format::items::file_extent::{FileExtentContent, FileExtentItem};
use papilio_format::items::inode::{FileKind, InodeFlags, InodeItem, MODE_PERMISSION_MASK};
use papilio_format::{Generation, ItemType, Key, objectid};

/// Whether an item belongs to an inode.
pub(crate) fn is_for_inode(key: &Key) -> bool {
    (objectid::FIRST_FREE..=objectid::LAST_FREE).contains(&key.objectid)
        && matches!(
            key.item_type,
            ItemType::INODE_ITEM
                | ItemType::INODE_REF
                | ItemType::INODE_EXTREF
                | ItemType::XATTR_ITEM
                | ItemType::DIR_ITEM
                | ItemType::DIR_INDEX
                | ItemType::EXTENT_DATA
        )
}

/// Returns the inode item of a number, as its other items in `items` say: a directory if it has
/// entries, otherwise a file that ends with its last extent. The next check corrects the rest.
pub fn blank_inode(number: u64, items: &Items, generation: Generation) -> (Key, Vec<u8>) {
    let own = || items.iter().filter(|(key, _)| key.objectid == number);
    let is_entry = |key: &Key| matches!(key.item_type, ItemType::DIR_ITEM | ItemType::DIR_INDEX);
    let directory = number == objectid::FIRST_FREE || own().any(|(key, _)| is_entry(key));
    let mut inode = InodeItem::parse(&[0; InodeItem::SIZE]).expect("zeros are an inode");
    (inode.generation, inode.transid, inode.nlink) = (generation, generation, 1);
    inode.mode = match directory {
        true => FileKind::Directory.mode_bits() | 0o700,
        false => FileKind::Regular.mode_bits() | 0o600,
    };
    for (key, data) in own().filter(|(key, _)| key.item_type == ItemType::EXTENT_DATA) {
        let Ok(item) = FileExtentItem::parse(data) else { continue };
        let (end, bytes) = match item.content {
            FileExtentContent::Inline(_) => (item.ram_bytes, item.ram_bytes),
            FileExtentContent::Regular(part) => {
                (key.offset.saturating_add(part.length), if part.is_hole() { 0 } else { part.length })
            }
            FileExtentContent::Prealloc(part) => (0, part.length),
        };
        inode.size = inode.size.max(end);
        inode.nbytes = inode.nbytes.saturating_add(bytes);
    }
    (Key::new(number, ItemType::INODE_ITEM, 0), inode.to_bytes().to_vec())
}

/// Returns an inode item whose fields the reader refuses, with those that are sound.
pub(crate) fn sound_inode(number: u64, data: &[u8], items: &Items, generation: Generation) -> (Key, Vec<u8>) {
    let (key, blank) = blank_inode(number, items, generation);
    let (Ok(mut old), Ok(blank)) = (InodeItem::parse(data), InodeItem::parse(&blank)) else {
        return (key, blank);
    };
    if old.kind().is_none() {
        let permissions = if old.permissions() == 0 { blank.permissions() } else { old.permissions() };
        old.mode = blank.mode & !MODE_PERMISSION_MASK | permissions;
    }
    old.generation.0 = old.generation.0.min(generation.0);
    old.transid.0 = old.transid.0.min(generation.0);
    old.flags = old.flags.intersection(InodeFlags::KNOWN.union(InodeFlags::KNOWN_RO));
    (key, old.to_bytes().to_vec())
}

/// Returns the kind that a directory item has for a name.
pub fn kind_in(item: &[u8], name: &[u8]) -> Option<FileKind> {
    let mut entries = DirEntries::parse(item).into_iter().flatten();
    entries.find(|entry| entry.name == name)?.file_type.kind()
}
