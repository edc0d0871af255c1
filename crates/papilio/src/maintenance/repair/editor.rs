//! Changes of tree blocks where they are.
//!
//! Owns [`Editor`], which finds the leaf of a key and writes leaves and nodes with all their
//! copies.
//!
//! **Invariants**
//! - A block is read and checked before it changes; one that cannot be read is not written.
//! - A leaf never becomes empty, and nothing moves between leaves: an item that does not fit is an
//!   error. All leaves of a change are encoded before the first is written.
//! - The first key of a leaf is also in its parents, which change with it.
//!
//! Locks: none; nothing else has the file system open.

use crate::btree::{Forest, TreeBlock};
use crate::errors::{Error, Result};
use crate::volume::Volume;
use papilio_format::items::root::RootItem;
use papilio_format::node::{ItemHeader, KeyPointer, NodeHeader};
use papilio_format::{ItemType, Key, LogicalAddress, NodeExpectation, TreeId, objectid};
use std::sync::Arc;

/// Bytes of the checksum at the start of a block.
const CHECKSUM: usize = 32;

/// Items of a leaf, decoded.
pub(super) type Items = Vec<(Key, Vec<u8>)>;

/// One step down from the root: the block, and the slot of the child.
type Path = Vec<(Arc<TreeBlock>, usize)>;

/// A leaf, the way to it, and the first key of the leaf after it.
struct Found {
    path: Path,
    leaf: Arc<TreeBlock>,
    bound: Option<Key>,
}

pub(super) struct Editor<'a> {
    volume: &'a Arc<Volume>,
    forest: Arc<Forest>,
}

/// Returns the error for a change that cannot be made.
pub(super) fn refuse<T>(reason: impl Into<String>) -> Result<T> {
    Err(Error::Invalid(reason.into()))
}

impl<'a> Editor<'a> {
    pub(super) fn new(volume: &'a Arc<Volume>) -> Self {
        // Without a cache, as blocks change behind it.
        Self { volume, forest: Forest::new(Arc::clone(volume), 0) }
    }

    /// Reads the first good copy of a block.
    pub(super) fn block(&self, address: LogicalAddress) -> Result<Arc<TreeBlock>> {
        let copies = self.volume.copies(address)?;
        let expected = NodeExpectation::at(address);
        for copy in 0..copies {
            if let Ok(block) = self.forest.read_copy(&expected, copy) {
                return Ok(Arc::new(block));
            }
        }
        refuse(format!("block {address} cannot be read"))
    }

    /// Writes all copies of a block, with its checksum.
    pub(super) fn write(&self, address: LogicalAddress, mut bytes: Vec<u8>) -> Result<()> {
        let sum = self.volume.geometry().checksum_type.compute(&bytes[CHECKSUM..]);
        bytes[..CHECKSUM].copy_from_slice(sum.padded());
        self.volume.write(address, &bytes)
    }

    fn root(&self, tree: TreeId) -> Result<LogicalAddress> {
        let raw = &self.volume.superblock().raw;
        match tree {
            objectid::ROOT_TREE => return Ok(raw.root),
            objectid::CHUNK_TREE => return Ok(raw.chunk_root),
            _ => {}
        }
        let (first, last) =
            (Key::new(tree.0, ItemType::ROOT_ITEM, 0), Key::new(tree.0, ItemType::ROOT_ITEM, u64::MAX));
        let items = self.items(objectid::ROOT_TREE, &first, &last)?;
        let Some((_, data)) = items.last() else { return refuse(format!("tree {tree} does not exist")) };
        match RootItem::parse(data) {
            Ok(item) => Ok(item.address),
            Err(reason) => refuse(format!("the root item of tree {tree}: {reason}")),
        }
    }

    /// Finds the leaf that has a key, or in which it would be inserted.
    fn find(&self, tree: TreeId, key: &Key) -> Result<Found> {
        let mut block = self.block(self.root(tree)?)?;
        let (mut path, mut bound) = (Path::new(), None);
        while block.level() > 0 {
            let view = block.view();
            let slot = match view.search(key) {
                Ok(slot) => slot,
                Err(slot) => slot.saturating_sub(1),
            };
            if slot + 1 < view.len() {
                bound = Some(view.key(slot + 1));
            }
            let child = self.block(view.child(slot).address)?;
            if child.level() + 1 != block.level() {
                return refuse(format!("block {} has a wrong level", child.address()));
            }
            path.push((block, slot));
            block = child;
        }
        Ok(Found { path, leaf: block, bound })
    }

    /// Returns the items of a tree from `first` to `last`.
    pub(super) fn items(&self, tree: TreeId, first: &Key, last: &Key) -> Result<Items> {
        let mut all = Items::new();
        let mut at = *first;
        loop {
            let found = self.find(tree, &at)?;
            all.extend(decode(&found.leaf).into_iter().filter(|(key, _)| key >= first && key <= last));
            match found.bound {
                Some(bound) if bound <= *last && bound > at => at = bound,
                _ => return Ok(all),
            }
        }
    }

    /// Returns one item.
    pub(super) fn item(&self, tree: TreeId, key: &Key) -> Result<Option<Vec<u8>>> {
        Ok(self.items(tree, key, key)?.pop().map(|(_, data)| data))
    }

    /// Returns an item that must exist.
    pub(super) fn need(&self, tree: TreeId, key: &Key) -> Result<Vec<u8>> {
        match self.item(tree, key)? {
            Some(data) => Ok(data),
            None => refuse(format!("tree {tree} has no item {key}")),
        }
    }

    /// Writes one item.
    pub(super) fn put(&self, tree: TreeId, key: Key, data: Vec<u8>) -> Result<bool> {
        self.replace(tree, &key, &key, vec![(key, data)])
    }

    /// Replaces all items from `first` to `last`. Returns whether anything changed.
    pub(super) fn replace(&self, tree: TreeId, first: &Key, last: &Key, new: Items) -> Result<bool> {
        let mut leaves = Vec::new();
        let mut at = *first;
        loop {
            let found = self.find(tree, &at)?;
            let bound = found.bound;
            let mut items = decode(&found.leaf);
            items.retain(|(key, _)| key < first || key > last);
            let start = at;
            let mine =
                |key: &Key| (leaves.is_empty() || *key >= start) && bound.is_none_or(|bound| *key < bound);
            items.extend(new.iter().filter(|(key, _)| mine(key)).cloned());
            items.sort_by_key(|(key, _)| *key);
            leaves.push((found, items));
            match bound {
                Some(bound) if bound <= *last && bound > at => at = bound,
                _ => break,
            }
        }
        let mut writes = Vec::new();
        for (found, items) in &leaves {
            if *items != decode(&found.leaf) {
                if items.is_empty() && !found.path.is_empty() {
                    return refuse(format!("leaf {} would be empty", found.leaf.address()));
                }
                writes.push((found, items.first().map(|item| item.0), encode(found.leaf.bytes(), items)?));
            }
        }
        for (found, first, bytes) in &writes {
            self.write(found.leaf.address(), bytes.clone())?;
            if let Some(first) = first {
                self.set_first_key(&found.path, first)?;
            }
        }
        Ok(!writes.is_empty())
    }

    /// Sets the key of a child in its parents, as far up as it is the first one.
    fn set_first_key(&self, path: &Path, key: &Key) -> Result<()> {
        for (block, slot) in path.iter().rev() {
            // An earlier leaf of the same change may have changed the block.
            let block = self.block(block.address())?;
            if block.view().key(*slot) == *key {
                return Ok(());
            }
            self.edit_pointer(&block, *slot, |pointer| pointer.key = *key)?;
            if *slot > 0 {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Changes one pointer of a node.
    pub(super) fn edit_pointer(
        &self,
        block: &TreeBlock,
        slot: usize,
        edit: impl FnOnce(&mut KeyPointer),
    ) -> Result<()> {
        let mut pointer = block.view().child(slot);
        edit(&mut pointer);
        let mut bytes = block.bytes().to_vec();
        bytes[NodeHeader::SIZE + slot * KeyPointer::SIZE..][..KeyPointer::SIZE]
            .copy_from_slice(&pointer.to_bytes());
        self.write(block.address(), bytes)
    }
}

fn decode(leaf: &TreeBlock) -> Items {
    let view = leaf.view();
    (0..view.len()).map(|slot| (view.key(slot), view.item(slot).to_vec())).collect()
}

/// Encodes a leaf with the header of the old one.
fn encode(old: &[u8], items: &Items) -> Result<Vec<u8>> {
    let room = old.len() - NodeHeader::SIZE;
    let need: usize = items.iter().map(|(_, data)| data.len() + ItemHeader::SIZE).sum();
    if need > room {
        return refuse(format!("a leaf has no room: its items take {need} of {room} bytes"));
    }
    let Ok((mut header, _)) = NodeHeader::parse_prefix(old) else {
        return refuse("a block without a header");
    };
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
    Ok(bytes)
}
