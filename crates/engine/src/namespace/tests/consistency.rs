//! Invariants that hold between the items of a subvolume, checked from the items alone.

use crate::btree::Tree;
use papilio_format::items::dir_item::{DirEntries, dir_item_key};
use papilio_format::items::inode::{FileKind, InodeItem};
use papilio_format::items::inode_ref::{InodeExtrefs, InodeRefs};
use papilio_format::items::orphan::orphan_of;
use papilio_format::{ItemType, objectid};
use std::collections::{BTreeMap, BTreeSet};

/// Directory, name, index.
type Place = (u64, Vec<u8>, u64);

#[derive(Default)]
struct Items {
    inodes: BTreeMap<u64, InodeItem>,
    /// Maps directory and name to the inode.
    by_name: BTreeMap<(u64, Vec<u8>), u64>,
    by_index: BTreeMap<Place, u64>,
    refs: BTreeMap<Place, u64>,
    orphans: BTreeSet<u64>,
    sizes: BTreeMap<u64, u64>,
}

/// Panics unless names, references, link counts, sizes and orphans agree. Entries of subvolumes
/// must agree by name and index; their references are in the root tree.
pub(super) fn check(tree: &Tree) {
    let items = collect(tree);
    let by_index: BTreeMap<_, _> =
        items.by_index.iter().map(|((parent, name, _), inode)| ((*parent, name.clone()), *inode)).collect();
    assert_eq!(by_index, items.by_name, "entries by index and by name");
    assert_eq!(by_index.len(), items.by_index.len(), "one index for each name");
    let root = objectid::FIRST_INODE.0;
    let mut named = items.by_index.clone();
    named.retain(|_, inode| *inode != 0);
    named.insert((root, b"..".to_vec(), 0), root);
    assert_eq!(named, items.refs, "entries and references");
    let mut links: BTreeMap<u64, u32> = BTreeMap::new();
    for inode in items.refs.values() {
        *links.entry(*inode).or_default() += 1;
    }
    for (number, item) in &items.inodes {
        let count = links.remove(number).unwrap_or(0);
        assert_eq!(item.nlink, count, "link count of {number}");
        assert_eq!(items.orphans.contains(number), count == 0, "orphan item of {number}");
        if item.kind() == Some(FileKind::Directory) {
            let size = items.sizes.get(number).copied().unwrap_or(0);
            assert_eq!(item.size, size, "size of directory {number}");
        } else {
            assert!(!items.sizes.contains_key(number), "{number} has entries, but is not a directory");
        }
    }
    assert!(links.is_empty(), "names of missing inodes: {links:?}");
    let stale: Vec<_> = items.orphans.iter().filter(|number| !items.inodes.contains_key(number)).collect();
    assert!(stale.is_empty(), "stale orphan items: {stale:?}");
}

fn collect(tree: &Tree) -> Items {
    let mut items = Items::default();
    for item in tree.items() {
        let item = item.unwrap();
        let (key, data) = (item.key, item.data());
        let owner = key.objectid;
        match key.item_type {
            ItemType::INODE_ITEM => {
                items.inodes.insert(owner, InodeItem::parse(data).unwrap());
            }
            ItemType::INODE_REF => {
                for entry in InodeRefs::parse(data).unwrap() {
                    let place = (key.offset, entry.name.to_vec(), entry.index);
                    assert_eq!(items.refs.insert(place, owner), None);
                }
            }
            ItemType::INODE_EXTREF => {
                for entry in InodeExtrefs::parse(data).unwrap() {
                    assert_eq!(entry.key(papilio_format::InodeNumber(owner)), key);
                    let place = (entry.parent.0, entry.name.to_vec(), entry.index);
                    assert_eq!(items.refs.insert(place, owner), None);
                }
            }
            ItemType::DIR_ITEM | ItemType::DIR_INDEX => {
                for entry in DirEntries::parse(data).unwrap() {
                    let subvolume = entry.location.item_type == ItemType::ROOT_ITEM;
                    let target = if subvolume { 0 } else { entry.location.objectid };
                    let name = entry.name.to_vec();
                    if key.item_type == ItemType::DIR_INDEX {
                        *items.sizes.entry(owner).or_default() += 2 * name.len() as u64;
                        assert_eq!(items.by_index.insert((owner, name, key.offset), target), None);
                    } else {
                        assert_eq!(dir_item_key(papilio_format::InodeNumber(owner), &name), key);
                        assert_eq!(items.by_name.insert((owner, name), target), None);
                    }
                }
            }
            _ => {
                if let Some(orphan) = orphan_of(&key) {
                    items.orphans.insert(orphan);
                }
            }
        }
    }
    items
}
