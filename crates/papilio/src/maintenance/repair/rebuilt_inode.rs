//! Rebuilds an inode item from the other items of its inode.
//!
//! Owns [`blank_inode`] and [`is_for_inode`]. What no other item says is lost: mode, owner and
//! times; the inode then belongs to root.
//!
//! Userspace counterpart: `repair_inode_no_item` (`check/main.c` of btrfs-progs).

use super::editor::Items;
use papilio_format::items::file_extent::{FileExtentContent, FileExtentItem};
use papilio_format::items::inode::{FileKind, InodeItem};
use papilio_format::{Generation, ItemType, Key, objectid};

/// Whether an item belongs to an inode.
pub(super) fn is_for_inode(key: &Key) -> bool {
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
pub(super) fn blank_inode(number: u64, items: &Items, generation: Generation) -> (Key, Vec<u8>) {
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
