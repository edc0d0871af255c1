//! Faults of single fields, each of which makes the reader refuse a leaf. A repair sets the field
//! and keeps everything else.

use super::planted::{Fault, edit_inode, fault, is_file};
use papilio::FindingKind::ItemInvalid;
use papilio::format::items::dir_item::DirItemHeader;
use papilio::format::items::file_extent::{FileExtentContent, FileExtentHeader, FileExtentItem};
use papilio::format::items::inode::{FileKind, InodeFlags, InodeItem};
use papilio::format::items::root::{RawRootItem, RootFlags};
use papilio::format::{Generation, ItemType, Key, TreeId, objectid};

const FS: TreeId = objectid::FS_TREE;
const ROOTS: TreeId = objectid::ROOT_TREE;

/// Changes an inode that `wanted` accepts.
fn inode(
    name: &'static str,
    wanted: impl Fn(&InodeItem) -> bool + 'static,
    edit: impl Fn(&mut InodeItem) + 'static,
) -> Fault {
    fault(name, ItemInvalid, move |image| {
        edit_inode(image, &wanted, &edit);
    })
}

/// Changes the root item of a tree.
fn root(name: &'static str, tree: TreeId, edit: impl Fn(&mut RawRootItem) + 'static) -> Fault {
    fault(name, ItemInvalid, move |image| {
        let key = image.find(ROOTS, |key, _| is_root_item(key, tree)).0;
        image.edit(ROOTS, &key, |data| {
            let mut raw = RawRootItem::parse(data).unwrap();
            edit(&mut raw);
            *data = raw.to_bytes().to_vec();
        });
    })
}

fn is_root_item(key: &Key, tree: TreeId) -> bool {
    key.objectid == tree.0 && key.item_type == ItemType::ROOT_ITEM
}

/// Flips bits of the type in the key of the top level's root item.
fn root_key(name: &'static str, bits: u8) -> Fault {
    fault(name, ItemInvalid, move |image| {
        let (key, data) = image.find(ROOTS, |key, _| is_root_item(key, FS));
        image.remove(ROOTS, &key);
        image.insert(ROOTS, Key { item_type: ItemType(key.item_type.0 ^ bits), ..key }, data);
    })
}

/// Changes the header of a file extent that `wanted` accepts.
fn extent(
    name: &'static str,
    wanted: impl Fn(&FileExtentItem<'_>) -> bool + 'static,
    edit: impl Fn(&mut FileExtentHeader) + 'static,
) -> Fault {
    fault(name, ItemInvalid, move |image| {
        let is_wanted = |key: &Key, data: &[u8]| {
            key.item_type == ItemType::EXTENT_DATA
                && FileExtentItem::parse(data).is_ok_and(|item| wanted(&item))
        };
        let key = image.find(FS, is_wanted).0;
        image.edit(FS, &key, |data| {
            let mut header = FileExtentHeader::parse_prefix(data).unwrap().0;
            edit(&mut header);
            data[..FileExtentHeader::SIZE].copy_from_slice(&header.to_bytes());
        });
    })
}

/// Changes the header of the first entry of an item type.
fn entry(name: &'static str, item_type: ItemType, edit: impl Fn(&mut DirItemHeader) + 'static) -> Fault {
    fault(name, ItemInvalid, move |image| {
        let key = image.find(FS, |key, _| key.item_type == item_type).0;
        image.edit(FS, &key, |data| {
            let mut header = DirItemHeader::parse_prefix(data).unwrap().0;
            edit(&mut header);
            data[..DirItemHeader::SIZE].copy_from_slice(&header.to_bytes());
        });
    })
}

fn is_inline(item: &FileExtentItem<'_>) -> bool {
    matches!(item.content, FileExtentContent::Inline(_))
}

fn is_on_disk(item: &FileExtentItem<'_>) -> bool {
    matches!(item.content, FileExtentContent::Regular(part) if !part.is_hole())
}

/// No transaction of the image is as late.
const LATE: Generation = Generation(1 << 40);

pub fn field_faults() -> Vec<Fault> {
    let is_kind = |kind| move |inode: &InodeItem| inode.kind() == Some(kind);
    let no_kind = |inode: &mut InodeItem| inode.mode &= 0o7_777;
    vec![
        inode("an inode's generation in the future", is_file, |inode| inode.generation = LATE),
        inode("an inode's transaction in the future", is_file, |inode| inode.transid = LATE),
        inode("an unknown inode flag", is_file, |inode| inode.flags |= InodeFlags::from_bits_retain(1 << 30)),
        inode("an unknown bit of a mode", is_file, |inode| inode.mode |= 1 << 20),
        inode("a file without a kind", is_file, no_kind),
        inode("a directory without a kind", is_kind(FileKind::Directory), no_kind),
        inode("a symbolic link without a kind", is_kind(FileKind::Symlink), no_kind),
        inode("a directory's link count", is_kind(FileKind::Directory), |inode| inode.nlink = 2),
        root("a root's generation in the future", FS, |raw| {
            (raw.generation, raw.generation_v2) = (LATE, LATE);
        }),
        root("the generation in the future of the checksum tree's root", objectid::CSUM_TREE, |raw| {
            (raw.generation, raw.generation_v2) = (LATE, LATE);
        }),
        root("a root's last snapshot in the future", FS, |raw| raw.last_snapshot = LATE),
        root("a root's level out of range", FS, |raw| raw.level = 9),
        root("an unknown flag of a root", FS, |raw| {
            raw.flags |= RootFlags::from_bits_retain(1 << 20);
        }),
        root_key("the type in a root item's key, to another one", 0x04),
        root_key("the type in a root item's key, to an unknown one", 0x08),
        extent("an inline extent's size", is_inline, |header| header.ram_bytes += 1),
        extent("an encrypted extent", is_on_disk, |header| header.encryption = 1),
        entry("an entry's unknown type", ItemType::DIR_INDEX, |header| header.file_type = 0x44),
        entry("an attribute's type", ItemType::XATTR_ITEM, |header| header.file_type = 1),
        entry("an attribute with a location", ItemType::XATTR_ITEM, |header| header.location.objectid = 300),
    ]
}
