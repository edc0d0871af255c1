//! The items of a bad leaf that are sound.
//!
//! Owns [`sound_items`], which sets single wrong fields, leaves bad items out, and makes inodes for
//! items that have none, until a leaf passes the reader's checks; and [`encode_leaf`].
//!
//! **Invariant**: whatever differs from the leaf is in [`Sound`].
//!
//! Locks: none.

use super::Items;
use super::blank_inode::{blank_inode, is_for_inode, sound_inode};
use super::mended_fields::{Around, FieldMender, Mended};
use papilio_format::items::root::{LEGACY_SIZE, RawRootItem, RootItem};
use papilio_format::node::{ItemHeader, NodeHeader};
use papilio_format::superblock::MAX_LEVEL;
use papilio_format::{
    Corrupt, Geometry, ItemType, Key, LogicalAddress, Node, NodeExpectation, TreeId, objectid,
};
use std::collections::BTreeSet;

/// The items of a bad leaf that stay.
#[derive(Debug, Default)]
pub struct Sound {
    /// The items, in the order of their keys.
    pub items: Items,
    /// The keys of the others, and their faults.
    pub lost: Vec<(Key, String)>,
    /// The fields that were set, and their faults.
    pub mended: Vec<(Key, &'static str, String)>,
    /// Inodes of which only some fields are known, and the faults.
    pub guessed: Vec<(Key, String)>,
    /// Inodes that were made for items that have none.
    pub(crate) made: Vec<Key>,
    /// Items whose keys did not ascend, and were put in order.
    pub(crate) moved: Vec<Key>,
}

/// The place of a leaf.
pub struct LeafPlace {
    /// The tree.
    pub tree: TreeId,
    /// The leaf's address.
    pub address: LogicalAddress,
    /// The first key that the leaf may have.
    pub first: Key,
    /// The first key of the next leaf.
    pub bound: Option<Key>,
}

/// Returns the items of a leaf that lie inside it and within its bounds, in the order of their
/// keys; the others are lost. `None` without a header.
pub fn readable_items(bytes: &[u8], place: &LeafPlace) -> Option<Sound> {
    let header = NodeHeader::parse_prefix(bytes).ok()?.0;
    let room = bytes.len() - NodeHeader::SIZE;
    let mut sound = Sound::default();
    let mut inside: Items = Vec::new();
    let headers = (0..(header.item_count as usize).min(room / ItemHeader::SIZE)).map(|slot| {
        let at = NodeHeader::SIZE + slot * ItemHeader::SIZE;
        ItemHeader::parse(&bytes[at..][..ItemHeader::SIZE]).ok()
    });
    let headers = headers.collect::<Option<Vec<_>>>()?;
    for (slot, item) in headers.iter().enumerate() {
        let end = u64::from(item.offset) + u64::from(item.size);
        let key = match key_between(&headers, slot, place) {
            Some(key) => {
                let fault = format!("the key is {}, out of order", item.key);
                sound.mended.push((key, "key", fault));
                key
            }
            None => item.key,
        };
        if key < place.first || place.bound.is_some_and(|bound| key >= bound) {
            sound.lost.push((key, "its key does not belong into this leaf".to_owned()));
        } else if end > room as u64 {
            sound.lost.push((key, "its data lies outside of the leaf".to_owned()));
        } else {
            let start = NodeHeader::SIZE + item.offset as usize;
            inside.push((key, bytes[start..start + item.size as usize].to_vec()));
        }
    }
    let keep = ascending(&inside);
    let moved = inside.iter().zip(keep).filter(|(_, keep)| !keep);
    sound.moved = moved.map(|((key, _), _)| *key).collect();
    inside.sort_by_key(|(key, _)| *key);
    inside.dedup_by(|later, earlier| later.0 == earlier.0);
    sound.items = inside;
    Some(sound)
}

/// Returns the right key of an item whose own does not lie between its neighbours', if that is
/// certain: the object id of both neighbours, or the only key that differs in one bit.
fn key_between(headers: &[ItemHeader], slot: usize, place: &LeafPlace) -> Option<Key> {
    let key = headers[slot].key;
    let at = |slot: usize| headers.get(slot).map(|header| header.key);
    let before = slot.checked_sub(1).and_then(at);
    let after = at(slot + 1).or(place.bound);
    let is_between = |before: Option<Key>, key: &Key, after: Option<Key>| {
        *key >= place.first
            && before.is_none_or(|before| before < *key)
            && after.is_none_or(|after| *key < after)
    };
    let fits = |key: &Key| is_between(before, key, after);
    // Where the neighbours are out of order, the fault may be theirs.
    if fits(&key) || before.zip(after).is_some_and(|(before, after)| before >= after) {
        return None;
    }
    if let (Some(before), Some(after)) = (before, after)
        && before.objectid == after.objectid
    {
        let moved = Key { objectid: before.objectid, ..key };
        return fits(&moved).then_some(moved);
    }
    // Without one neighbour it may be the right one, and the neighbour's is wrong.
    if is_between(before, &key, at(slot + 2).or(place.bound))
        || is_between(slot.checked_sub(2).and_then(at), &key, after)
    {
        return None;
    }
    let objectids = (0..64).map(|bit| Key { objectid: key.objectid ^ 1 << bit, ..key });
    let types = (0..8).map(|bit| Key { item_type: ItemType(key.item_type.0 ^ 1 << bit), ..key });
    let offsets = (0..64).map(|bit| Key { offset: key.offset ^ 1 << bit, ..key });
    let mut fitting = objectids.chain(types).chain(offsets).filter(fits);
    fitting.next().filter(|_| fitting.next().is_none())
}

/// Returns which items are part of the longest run of ascending keys.
fn ascending(items: &Items) -> Vec<bool> {
    let mut best: Vec<(usize, Option<usize>)> = Vec::with_capacity(items.len());
    for (at, (key, _)) in items.iter().enumerate() {
        // In a sound leaf the item before is the one.
        let before = (0..at).rev().filter(|other| items[*other].0 < *key).max_by_key(|other| best[*other].0);
        best.push((before.map_or(0, |other| best[other].0) + 1, before));
    }
    let mut keep = vec![false; items.len()];
    let mut at = (0..items.len()).max_by_key(|at| best[*at].0);
    while let Some(slot) = at {
        keep[slot] = true;
        at = best[slot].1;
    }
    keep
}

/// Sets fields, drops items or adds inodes, until the leaf passes the reader's checks. `empty` is
/// the leaf without items. Returns the items and the leaf's bytes, without a checksum.
pub fn sound_items(
    place: &LeafPlace,
    empty: &[u8],
    mut sound: Sound,
    geometry: Geometry,
    around: &dyn Around,
) -> Option<(Sound, Vec<u8>)> {
    let fields = FieldMender { around, tree: place.tree, bound: place.bound, geometry };
    let (mut added, mut set) = (BTreeSet::new(), BTreeSet::new());
    while !sound.items.is_empty() {
        let Some(bytes) = encode_leaf(empty, &sound.items) else {
            // An added inode may not fit.
            let (key, _) = sound.items.pop()?;
            sound.lost.push((key, "the leaf has no room for it".to_owned()));
            continue;
        };
        let (slot, key, reason) =
            match Node::check_summed(&bytes, &NodeExpectation::at(place.address), &geometry) {
                Ok(_) => return Some((sound, bytes)),
                Err(Corrupt::Item { slot, key, reason }) => (slot, key, reason),
                Err(_) => return None,
            };
        if place.tree == objectid::ROOT_TREE && correct_type(&mut sound.items, slot) {
            sound.mended.push((key, "key.type", reason.to_string()));
            continue;
        }
        // Each field once, so that this ends.
        if let Some(Mended { data, field }) = fields.mend(&sound.items, slot, &reason)
            && set.insert((key, field))
        {
            sound.items[slot].1 = data;
            sound.mended.push((key, field, reason.to_string()));
            continue;
        }
        let needs_inode = objectid::is_subvolume(place.tree)
            && is_for_inode(&key)
            && key.item_type != ItemType::INODE_ITEM
            && !sound.items[..slot].iter().any(|(other, _)| other.objectid == key.objectid)
            && added.insert(key.objectid);
        let bad_inode = objectid::is_subvolume(place.tree)
            && key.item_type == ItemType::INODE_ITEM
            && added.insert(key.objectid);
        if bad_inode {
            let old = &sound.items[slot].1;
            sound.items[slot] = sound_inode(key.objectid, old, &sound.items, geometry.generation);
            sound.guessed.push((key, reason.to_string()));
        } else if needs_inode {
            let inode = blank_inode(key.objectid, &sound.items, geometry.generation);
            sound.made.push(inode.0);
            sound.items.insert(slot, inode);
        } else {
            let (key, _) = sound.items.remove(slot);
            sound.lost.push((key, reason.to_string()));
        }
    }
    Some((sound, encode_leaf(empty, &Items::new())?))
}

/// Corrects the type in the key of a root item, if one bit of it is wrong and the tree has no other
/// root item in the leaf.
fn correct_type(items: &mut Items, slot: usize) -> bool {
    let (key, data) = &items[slot];
    let right = Key::new(key.objectid, ItemType::ROOT_ITEM, key.offset);
    let is_root = |other: &Key| other.objectid == right.objectid && other.item_type == right.item_type;
    if !is_mistyped_root(key, data) || items.iter().any(|(other, _)| is_root(other)) {
        return false;
    }
    items[slot].0 = right;
    items.sort_by_key(|(key, _)| *key);
    true
}

/// Returns whether an item of the root tree can only be a root item whose key has one wrong bit in
/// its type: no other item has that size.
pub fn is_mistyped_root(key: &Key, data: &[u8]) -> bool {
    let bits = key.item_type.0 ^ ItemType::ROOT_ITEM.0;
    bits.count_ones() == 1
        && matches!(data.len(), RawRootItem::SIZE | LEGACY_SIZE)
        && RootItem::parse(data).is_ok_and(|root| root.address.0 > 0 && root.level < MAX_LEVEL)
}

/// Encodes a leaf with the header of the old one; `None` if the items do not fit.
pub fn encode_leaf(old: &[u8], items: &Items) -> Option<Vec<u8>> {
    let room = old.len() - NodeHeader::SIZE;
    let need: usize = items.iter().map(|(_, data)| data.len() + ItemHeader::SIZE).sum();
    if need > room {
        return None;
    }
    let (mut header, _) = NodeHeader::parse_prefix(old).ok()?;
    header.item_count = items.len() as u32;
    let mut bytes = vec![0; old.len()];
    bytes[..NodeHeader::SIZE].copy_from_slice(&header.to_bytes());
    let mut end = room;
    for (slot, (key, data)) in items.iter().enumerate() {
        end -= data.len();
        let item = ItemHeader { key: *key, offset: end as u32, size: data.len() as u32 };
        let start = NodeHeader::SIZE + slot * ItemHeader::SIZE;
        bytes[start..][..ItemHeader::SIZE].copy_from_slice(&item.to_bytes());
        bytes[NodeHeader::SIZE + end..][..data.len()].copy_from_slice(data);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corrected(keys: &[(u64, u8, u64)], slot: usize) -> Option<Key> {
        let key =
            |&(objectid, item_type, offset): &(u64, u8, u64)| Key::new(objectid, ItemType(item_type), offset);
        let headers: Vec<_> = keys.iter().map(|at| ItemHeader { key: key(at), offset: 0, size: 0 }).collect();
        let place = LeafPlace {
            tree: objectid::FS_TREE,
            address: LogicalAddress(0),
            first: Key::MIN,
            bound: Some(Key::new(400, ItemType(1), 0)),
        };
        key_between(&headers, slot, &place)
    }

    #[test]
    fn a_key_out_of_order_is_corrected_where_one_fits() {
        let right = Some(Key::new(274, ItemType(12), 256));
        let with = |wrong| [(256, 1, 0), (274, 1, 0), wrong, (274, 108, 0), (275, 1, 0)];
        for wrong in [(274 | 8 << 56, 12, 256), (282, 12, 256), (3, 12, 256), (274 ^ 0x00ff_00ff, 12, 256)] {
            assert_eq!(corrected(&with(wrong), 2), right, "{wrong:?}");
        }
        // The neighbours of a wrong key stay.
        for slot in [0, 1, 3, 4] {
            assert_eq!(corrected(&with((282, 12, 256)), slot), None, "{slot}");
            assert_eq!(corrected(&with((274 | 8 << 56, 12, 256)), slot), None, "{slot}");
        }
        // One bit at the end of an inode, and no other key would fit.
        let keys = [(273, 1, 0), (274, 1, 0), (274 | 8 << 56, 108, 0), (275, 1, 0), (276, 1, 0)];
        assert_eq!(corrected(&keys, 2), Some(Key::new(274, ItemType(108), 0)));
        // Either of two may be the wrong one.
        let keys = [(256, 1, 0), (274, 1, 0), (282, 12, 256), (275, 1, 0), (300, 1, 0)];
        assert_eq!((corrected(&keys, 2), corrected(&keys, 3)), (None, None));
        // Keys in order are not questioned.
        assert_eq!(corrected(&with((274, 12, 256)), 2), None);
    }
}
