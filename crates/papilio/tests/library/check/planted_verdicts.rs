//! Faults that the kernel or btrfs-progs refuse, although a reader of Papilio could go on.

use super::planted::{Fault, fault};
use papilio::FindingKind;
use papilio::format::items::free_space::{FreeSpaceFlags, FreeSpaceInfo};
use papilio::format::items::inode::{FileKind, InodeItem};
use papilio::format::{ItemType, Key, objectid};

/// An address behind all chunks.
const NOWHERE: u64 = 1 << 40;

pub fn verdict_faults() -> Vec<Fault> {
    vec![
        fault("a cache of free inode numbers", FindingKind::InodeCache, |image| {
            let (_, data) = image.find(objectid::FS_TREE, |key, _| key.item_type == ItemType::INODE_ITEM);
            let mut cache = InodeItem::parse(&data).unwrap();
            (cache.mode, cache.nlink) = (FileKind::Regular.mode_bits() | 0o600, 1);
            (cache.size, cache.nbytes) = (0, 0);
            let key = Key::new(objectid::FREE_INO, ItemType::INODE_ITEM, 0);
            image.insert(objectid::FS_TREE, key, cache.to_bytes().to_vec());
        }),
        fault("an item of an unknown type", FindingKind::ItemUnknown, |image| {
            let key = image.find(objectid::FS_TREE, |key, _| key.item_type == ItemType::INODE_REF).0;
            let key = Key { item_type: ItemType(201), ..key };
            image.insert(objectid::FS_TREE, key, vec![1, 2, 3]);
        }),
        fault("another name in a directory's reference", FindingKind::InodeRefMissing, |image| {
            let mut folders = std::collections::BTreeSet::new();
            image.for_each_item(objectid::FS_TREE, |_, key, data| {
                let inode = InodeItem::parse(data).ok().filter(|_| key.item_type == ItemType::INODE_ITEM);
                let is_folder = inode.is_some_and(|inode| inode.kind() == Some(FileKind::Directory));
                folders.extend((is_folder && key.objectid > objectid::FIRST_FREE).then_some(key.objectid));
            });
            let wanted =
                |key: &Key, _: &[u8]| key.item_type == ItemType::INODE_REF && folders.contains(&key.objectid);
            let key = image.find(objectid::FS_TREE, wanted).0;
            image.edit(objectid::FS_TREE, &key, |data| *data.last_mut().unwrap() ^= 1);
        }),
        fault("a qgroup's number", FindingKind::QgroupNumbers, |image| {
            let wanted = |key: &Key, _: &[u8]| key.item_type == ItemType::QGROUP_INFO;
            let key = image.find(objectid::QUOTA_TREE, wanted).0;
            // Referenced bytes follow the generation.
            image.edit(objectid::QUOTA_TREE, &key, |data| data[8 + 2] ^= 1);
        }),
        fault("free space of a block group that is gone", FindingKind::FreeSpaceStale, |image| {
            let info = FreeSpaceInfo { extent_count: 1, flags: FreeSpaceFlags::empty() };
            let key = |item_type| Key::new(NOWHERE, item_type, 1 << 20);
            let tree = objectid::FREE_SPACE_TREE;
            image.insert(tree, key(ItemType::FREE_SPACE_INFO), info.to_bytes().to_vec());
            image.insert(tree, key(ItemType::FREE_SPACE_EXTENT), Vec::new());
        }),
    ]
}
