//! An image in memory whose trees can be edited: finds and changes items, and repairs checksums.
//!
//! Shares only the on-disk types with the code under test. Supports one device with SINGLE and DUP
//! chunks, as the images of these tests have.

use papilio::format::items::chunk::{ChunkItem, RaidProfile};
use papilio::format::items::root::RootItem;
use papilio::format::node::{ItemHeader, KeyPointer, NodeHeader};
use papilio::format::superblock::{SUPERBLOCK_SIZE, superblock_offset};
use papilio::format::{
    Generation, Geometry, ItemType, Key, LogicalAddress, Node, NodeExpectation, PhysicalAddress, Superblock,
    TreeId, objectid,
};
use papilio_device::{Device, MemoryDevice};
use std::sync::Arc;

/// Items of a leaf, decoded.
pub type Items = Vec<(Key, Vec<u8>)>;

/// An image that tests edit.
pub struct Image {
    pub device: Arc<MemoryDevice>,
    pub superblock: Superblock,
    pub geometry: Geometry,
    chunks: Vec<(LogicalAddress, ChunkItem)>,
}

impl Image {
    pub fn new(device: MemoryDevice) -> Self {
        let mut bytes = [0; SUPERBLOCK_SIZE];
        device.read_at(&mut bytes, superblock_offset(0)).expect("a superblock");
        let superblock = Superblock::parse(&bytes, superblock_offset(0)).expect("a good superblock");
        let geometry = superblock.geometry();
        let chunks = superblock.system_chunks().expect("system chunks");
        let mut image = Self { device: Arc::new(device), superblock, geometry, chunks };
        let mut chunks = Vec::new();
        image.for_each_item(objectid::CHUNK_TREE, |_, key, data| {
            if key.item_type == ItemType::CHUNK_ITEM {
                chunks.push((LogicalAddress(key.offset), ChunkItem::parse(data).expect("a chunk")));
            }
        });
        image.chunks = chunks;
        image
    }

    /// Returns the device offset of each copy of a byte.
    pub fn copies(&self, address: LogicalAddress) -> Vec<PhysicalAddress> {
        let covers = |(start, chunk): &&(LogicalAddress, ChunkItem)| {
            address.checked_since(*start).is_some_and(|offset| offset < chunk.length)
        };
        let (start, chunk) = self.chunks.iter().find(covers).expect("a chunk");
        let profile = chunk.profile().expect("a profile");
        assert!(matches!(profile, RaidProfile::Single | RaidProfile::Dup), "{profile} cannot be edited");
        chunk.stripes.iter().map(|stripe| PhysicalAddress(stripe.offset.0 + address.0 - start.0)).collect()
    }

    pub fn read_block(&self, address: LogicalAddress) -> Vec<u8> {
        let mut bytes = vec![0; self.geometry.node_size as usize];
        self.device.read_at(&mut bytes, self.copies(address)[0]).expect("a block");
        bytes
    }

    /// Writes all copies of a block, with its checksum.
    pub fn write_block(&self, address: LogicalAddress, mut bytes: Vec<u8>) {
        let sum = self.geometry.checksum_type.compute(&bytes[32..]);
        bytes[..32].copy_from_slice(sum.padded());
        for place in self.copies(address) {
            self.device.write_at(&bytes, place).expect("a place on the device");
        }
    }

    /// Changes the bytes of a block.
    pub fn edit_block(&self, address: LogicalAddress, edit: impl FnOnce(&mut [u8])) {
        let mut bytes = self.read_block(address);
        edit(&mut bytes);
        self.write_block(address, bytes);
    }

    /// Flips bits of one byte in the first `copies` copies; leaves the checksums as they are.
    pub fn flip(&self, address: LogicalAddress, copies: usize) {
        for place in self.copies(address).into_iter().take(copies) {
            let mut byte = [0];
            self.device.read_at(&mut byte, place).expect("a byte");
            self.device.write_at(&[byte[0] ^ 0x5a], place).expect("a byte");
        }
    }

    /// Writes the superblock to all copies.
    pub fn write_superblock(&self) {
        for place in [superblock_offset(0), superblock_offset(1)] {
            self.device.write_at(&self.superblock.to_bytes(place), place).expect("a place on the device");
        }
    }

    /// Returns the root block of a tree.
    pub fn root(&self, tree: TreeId) -> LogicalAddress {
        match tree {
            objectid::ROOT_TREE => return self.superblock.raw.root,
            objectid::CHUNK_TREE => return self.superblock.raw.chunk_root,
            _ => {}
        }
        let mut root = None;
        self.for_each_item(objectid::ROOT_TREE, |_, key, data| {
            if key.item_type == ItemType::ROOT_ITEM && key.objectid == tree.0 {
                root = Some(RootItem::parse(data).expect("a root item").address);
            }
        });
        root.unwrap_or_else(|| panic!("tree {tree} exists"))
    }

    /// Whether a tree exists.
    pub fn has(&self, tree: TreeId) -> bool {
        let mut found = matches!(tree, objectid::ROOT_TREE | objectid::CHUNK_TREE);
        self.for_each_item(objectid::ROOT_TREE, |_, key, _| {
            found |= key.item_type == ItemType::ROOT_ITEM && key.objectid == tree.0;
        });
        found
    }

    /// Returns all blocks of a tree in order, parents first.
    pub fn blocks(&self, tree: TreeId) -> Vec<LogicalAddress> {
        let mut blocks = Vec::new();
        let mut stack = vec![self.root(tree)];
        while let Some(address) = stack.pop() {
            blocks.push(address);
            let bytes = self.read_block(address);
            let node = self.node(&bytes, address);
            if !node.is_leaf() {
                stack.extend((0..node.len()).rev().map(|slot| node.child(slot).address));
            }
        }
        blocks
    }

    fn node<'a>(&self, bytes: &'a [u8], address: LogicalAddress) -> Node<'a> {
        Node::check(bytes, &NodeExpectation::at(address), &self.geometry).expect("a good block")
    }

    pub fn level(&self, address: LogicalAddress) -> u8 {
        self.node(&self.read_block(address), address).level()
    }

    /// Returns the number of children of a block.
    pub fn children(&self, address: LogicalAddress) -> usize {
        self.node(&self.read_block(address), address).len()
    }

    /// Returns the leaves of a tree in order.
    pub fn leaves(&self, tree: TreeId) -> Vec<LogicalAddress> {
        self.blocks(tree).into_iter().filter(|block| self.level(*block) == 0).collect()
    }

    /// Returns the root of a tree; asserts that it has children.
    pub fn internal(&self, tree: TreeId) -> LogicalAddress {
        let root = self.root(tree);
        assert!(self.level(root) > 0, "tree {tree} has more than one block");
        root
    }

    /// Calls `each` with leaf, key and bytes of each item.
    pub fn for_each_item(&self, tree: TreeId, mut each: impl FnMut(LogicalAddress, Key, &[u8])) {
        for leaf in self.leaves(tree) {
            let bytes = self.read_block(leaf);
            let node = self.node(&bytes, leaf);
            (0..node.len()).for_each(|slot| each(leaf, node.key(slot), node.item(slot)));
        }
    }

    /// Returns the first item that `wanted` accepts and that is not the first of its leaf.
    pub fn find(&self, tree: TreeId, mut wanted: impl FnMut(&Key, &[u8]) -> bool) -> (Key, Vec<u8>) {
        let mut found = None;
        let mut last = None;
        self.for_each_item(tree, |leaf, key, data| {
            if last == Some(leaf) && found.is_none() && wanted(&key, data) {
                found = Some((key, data.to_vec()));
            }
            last = Some(leaf);
        });
        found.expect("an item to plant a fault in")
    }

    /// Rewrites the leaf that has `key`, or in which it would be inserted.
    pub fn edit_leaf(&self, tree: TreeId, key: &Key, edit: impl FnOnce(&mut Items)) {
        let mut target = None;
        for leaf in self.leaves(tree) {
            let bytes = self.read_block(leaf);
            if target.is_none() || self.node(&bytes, leaf).key(0) <= *key {
                target = Some(leaf);
            }
        }
        self.edit_items(target.expect("a leaf"), edit);
    }

    /// Rewrites a leaf with other items.
    pub fn edit_items(&self, leaf: LogicalAddress, edit: impl FnOnce(&mut Items)) {
        let bytes = self.read_block(leaf);
        let node = self.node(&bytes, leaf);
        let mut items: Items =
            (0..node.len()).map(|slot| (node.key(slot), node.item(slot).to_vec())).collect();
        edit(&mut items);
        self.write_block(leaf, encode_leaf(&bytes, &items));
    }

    /// Changes the bytes of one item.
    pub fn edit(&self, tree: TreeId, key: &Key, edit: impl FnOnce(&mut Vec<u8>)) {
        self.edit_leaf(tree, key, |items| {
            edit(&mut items.iter_mut().find(|(found, _)| found == key).expect("the item").1);
        });
    }

    /// Changes the key of one item.
    pub fn edit_key(&self, tree: TreeId, key: &Key, edit: impl FnOnce(&mut Key)) {
        self.edit_leaf(tree, key, |items| {
            edit(&mut items.iter_mut().find(|(found, _)| found == key).expect("the item").0);
        });
    }

    /// Removes one item.
    pub fn remove(&self, tree: TreeId, key: &Key) {
        self.edit_leaf(tree, key, |items| {
            let index = items.iter().position(|(found, _)| found == key).expect("the item");
            items.remove(index);
        });
    }

    /// Adds one item.
    pub fn insert(&self, tree: TreeId, key: Key, data: Vec<u8>) {
        self.edit_leaf(tree, &key, |items| {
            let index = items.partition_point(|(found, _)| *found < key);
            items.insert(index, (key, data));
        });
    }

    /// Changes one pointer of an internal node.
    pub fn edit_pointer(&self, block: LogicalAddress, slot: usize, edit: impl FnOnce(&mut KeyPointer)) {
        self.edit_block(block, |bytes| {
            let start = NodeHeader::SIZE + slot * KeyPointer::SIZE;
            let mut pointer = KeyPointer::parse(&bytes[start..][..KeyPointer::SIZE]).expect("a pointer");
            edit(&mut pointer);
            bytes[start..][..KeyPointer::SIZE].copy_from_slice(&pointer.to_bytes());
        });
    }

    /// Changes a block's header.
    pub fn edit_header(&self, block: LogicalAddress, edit: impl FnOnce(&mut NodeHeader)) {
        self.edit_block(block, |bytes| {
            let mut header = NodeHeader::parse_prefix(bytes).expect("a header").0;
            edit(&mut header);
            bytes[..NodeHeader::SIZE].copy_from_slice(&header.to_bytes());
        });
    }

    pub fn generation(&self) -> Generation {
        self.superblock.raw.generation
    }
}

fn encode_leaf(old: &[u8], items: &Items) -> Vec<u8> {
    let mut bytes = vec![0; old.len()];
    let mut header = NodeHeader::parse_prefix(old).expect("a header").0;
    header.item_count = items.len() as u32;
    bytes[..NodeHeader::SIZE].copy_from_slice(&header.to_bytes());
    let mut end = old.len() - NodeHeader::SIZE;
    for (slot, (key, data)) in items.iter().enumerate() {
        end -= data.len();
        assert!(end >= (slot + 1) * ItemHeader::SIZE, "the items fit into the leaf");
        let item = ItemHeader { key: *key, offset: end as u32, size: data.len() as u32 };
        let start = NodeHeader::SIZE + slot * ItemHeader::SIZE;
        bytes[start..][..ItemHeader::SIZE].copy_from_slice(&item.to_bytes());
        bytes[NodeHeader::SIZE + end..][..data.len()].copy_from_slice(data);
    }
    bytes
}
