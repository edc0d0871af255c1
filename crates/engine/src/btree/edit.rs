//! Editing one tree block in memory: items of a leaf, pointers of an internal node.
//!
//! Owns the editing half of [`TreeBlock`].
//!
//! **Invariants**, kept by every function:
//! - The bytes are well formed: item data is packed from the end, in slot order, and keys ascend.
//! - An internal node has as many links as pointers.
//! - The unused middle of a block has arbitrary contents until [`TreeBlock::copy_clean`] zeroes it
//!   for writing.
//! - The caller guarantees sufficient free space (asserted).
//!
//! **Locks**: none.
//!
//! Kernel counterpart: `setup_items_for_insert`, `btrfs_del_items`, `btrfs_extend_item`,
//! `push_leaf_left`, `insert_ptr` (`fs/btrfs/ctree.c`).

use super::block::TreeBlock;
use super::block_bytes::BlockBytes;
use papilio_format::OnDisk;
use papilio_format::node::{ItemHeader, KeyPointer, NodeHeader};
use papilio_format::{Generation, Key, LogicalAddress, TreeId};
use std::sync::Arc;

const ADDRESS_AT: usize = 48;
const FLAGS_AT: usize = 56;
const GENERATION_AT: usize = 80;
const OWNER_AT: usize = 88;
const COUNT_AT: usize = 96;
const LEVEL_AT: usize = 100;
/// Header flag: the second back-reference revision (`BTRFS_MIXED_BACKREF_REV`), in the top byte.
const MIXED_BACKREF_REVISION: u64 = 1 << 56;
/// Header flag: the block is on disk (`BTRFS_HEADER_FLAG_WRITTEN`).
const WRITTEN: u64 = 1;
/// Header flag: the kernel's relocation made the block (`BTRFS_HEADER_FLAG_RELOC`).
const RELOCATED: u64 = 2;

/// Identity of a new block.
#[derive(Clone, Copy, Debug)]
pub struct BlockIdentity {
    pub(crate) address: LogicalAddress,
    pub(crate) generation: Generation,
    pub(crate) owner: TreeId,
    pub(crate) stamp: u64,
}

impl TreeBlock {
    /// Returns a copy of this block with another identity.
    pub(crate) fn copy_as(&self, identity: &BlockIdentity) -> Self {
        let mut copy = self.clone();
        copy.move_to(identity);
        copy
    }

    /// Changes this block's identity.
    pub(crate) fn move_to(&mut self, identity: &BlockIdentity) {
        if self.level > 0 && self.links.is_empty() {
            self.links.resize(self.len(), None);
        }
        self.identify(identity);
    }

    /// Returns a copy at `address` that keeps its owner and its generation. So trees share it as
    /// they shared the original, and every comparison with a snapshot's generation stays true.
    pub(crate) fn relocated(&self, address: LogicalAddress) -> Self {
        let mut copy = self.without_links();
        copy.address = address;
        copy.put_u64(ADDRESS_AT, address.0);
        copy
    }

    /// Returns whether the kernel's relocation made the block. Snapshots may share it although it
    /// is newer than they are.
    pub(crate) fn is_relocated(&self) -> bool {
        self.view().header().flags & RELOCATED != 0
    }

    /// Returns a copy of this leaf at `address` with other items, in the order of their keys. It
    /// keeps its owner, its generation and its flags, as [`TreeBlock::relocated`] does.
    ///
    /// # Panics
    /// If the items do not fit.
    pub(crate) fn relocated_with_items(&self, address: LogicalAddress, items: &[(Key, Vec<u8>)]) -> Self {
        let mut copy = self.relocated(address);
        copy.set_len(0);
        for (slot, (key, data)) in items.iter().enumerate() {
            copy.insert_item(slot, key, data);
        }
        copy
    }

    /// Returns a copy of this internal node at `address` with other pointers, whose targets are on
    /// disk. It keeps its owner, its generation and its flags.
    ///
    /// # Panics
    /// If the pointers do not fit.
    pub(crate) fn relocated_with_pointers(&self, address: LogicalAddress, pointers: &[KeyPointer]) -> Self {
        let mut copy = self.relocated(address);
        copy.set_len(0);
        for (slot, pointer) in pointers.iter().enumerate() {
            copy.insert_pointer(slot, pointer, None);
        }
        copy.links.clear();
        copy
    }

    /// Creates an empty block of the same file system as `template`.
    pub(crate) fn empty_like(template: &Self, identity: &BlockIdentity, level: u8) -> Self {
        Self::empty(&template.bytes[..NodeHeader::SIZE], template.bytes.len(), identity, level)
    }

    /// Creates an empty block; `header` holds the UUIDs.
    pub(crate) fn empty(header: &[u8], node_size: usize, identity: &BlockIdentity, level: u8) -> Self {
        let mut bytes = BlockBytes::zeroed(node_size);
        bytes[..NodeHeader::SIZE].copy_from_slice(&header[..NodeHeader::SIZE]);
        bytes[..32].fill(0);
        bytes[LEVEL_AT] = level;
        let mut block = Self {
            bytes,
            address: identity.address,
            generation: identity.generation,
            owner: identity.owner,
            level,
            stamp: identity.stamp,
            is_partial: false,
            links: Vec::new(),
        };
        block.set_len(0);
        block.identify(identity);
        block
    }

    fn identify(&mut self, identity: &BlockIdentity) {
        self.address = identity.address;
        self.generation = identity.generation;
        self.owner = identity.owner;
        self.stamp = identity.stamp;
        self.put_u64(ADDRESS_AT, identity.address.0);
        self.put_u64(FLAGS_AT, MIXED_BACKREF_REVISION | WRITTEN);
        self.put_u64(GENERATION_AT, identity.generation.0);
        self.put_u64(OWNER_AT, identity.owner.0);
    }

    /// Returns a copy without links, for the cache of clean blocks.
    pub(crate) fn without_links(&self) -> Self {
        Self {
            bytes: self.bytes.clone(),
            address: self.address,
            generation: self.generation,
            owner: self.owner,
            level: self.level,
            stamp: 0,
            is_partial: false,
            links: Vec::new(),
        }
    }

    /// Copies the bytes with zeros between headers and data, so that no stale bytes reach the disk.
    pub(crate) fn copy_clean(&self, bytes: &mut [u8]) {
        let (start, end) = if self.level == 0 {
            (NodeHeader::SIZE + self.len() * ItemHeader::SIZE, NodeHeader::SIZE + self.data_start())
        } else {
            (NodeHeader::SIZE + self.len() * KeyPointer::SIZE, bytes.len())
        };
        bytes[..start].copy_from_slice(&self.bytes[..start]);
        bytes[start..end].fill(0);
        bytes[end..].copy_from_slice(&self.bytes[end..]);
    }

    fn put_u64(&mut self, at: usize, value: u64) {
        self.bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    fn put_u32(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// Returns the number of items or pointers.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.view().len()
    }

    fn set_len(&mut self, count: usize) {
        self.put_u32(COUNT_AT, u32::try_from(count).expect("the item count of a block fits in 32 bits"));
    }

    /// Returns the first key.
    ///
    /// # Panics
    /// If the block is empty.
    #[inline]
    pub(crate) fn first_key(&self) -> Key {
        self.view().key(0)
    }

    /// Returns the bytes available for items with their headers, or for pointers.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.len() - NodeHeader::SIZE
    }

    /// Returns the bytes used of [`TreeBlock::capacity`].
    #[inline]
    pub(crate) fn used(&self) -> usize {
        self.capacity() - self.view().free_space()
    }

    /// Returns the start of the last item's data, relative to the end of the block header.
    fn data_start(&self) -> usize {
        self.data_end(self.len())
    }

    /// Returns the end of an item's data in `slot`: the start of the previous item's, or the
    /// block's end.
    fn data_end(&self, slot: usize) -> usize {
        match slot {
            0 => self.capacity(),
            _ => self.view().item_header(slot - 1).offset as usize,
        }
    }

    fn header_at(slot: usize) -> usize {
        NodeHeader::SIZE + slot * ItemHeader::SIZE
    }

    fn put_item_header(&mut self, slot: usize, key: &Key, offset: usize, size: usize) {
        let header = ItemHeader { key: *key, offset: offset as u32, size: size as u32 };
        self.bytes[Self::header_at(slot)..][..ItemHeader::SIZE].copy_from_slice(&header.to_bytes());
    }

    /// Moves the data of items from `slot` on by `by` bytes towards the start (or, if negative, the
    /// end).
    fn shift_data(&mut self, slot: usize, by: isize) {
        let (start, end) = (self.data_start(), self.data_end(slot));
        let target = start.checked_add_signed(-by).expect("the leaf has enough free space");
        self.bytes.copy_within(NodeHeader::SIZE + start..NodeHeader::SIZE + end, NodeHeader::SIZE + target);
        for moved in slot..self.len() {
            let at = Self::header_at(moved) + 17;
            let old = u32::from_le_bytes(self.bytes[at..at + 4].try_into().expect("four bytes"));
            self.put_u32(at, old.wrapping_add_signed(-by as i32));
        }
    }

    /// Inserts an item.
    ///
    /// # Panics
    /// If the leaf has too little free space.
    pub(crate) fn insert_item(&mut self, slot: usize, key: &Key, data: &[u8]) {
        let count = self.len();
        assert!(self.view().free_space() >= ItemHeader::SIZE + data.len(), "the leaf has enough free space");
        let end = self.data_end(slot);
        if slot < count {
            self.shift_data(slot, data.len() as isize);
            let headers = Self::header_at(slot)..Self::header_at(count);
            self.bytes.copy_within(headers, Self::header_at(slot + 1));
        }
        let offset = end - data.len();
        self.bytes[NodeHeader::SIZE + offset..NodeHeader::SIZE + end].copy_from_slice(data);
        self.put_item_header(slot, key, offset, data.len());
        self.set_len(count + 1);
    }

    /// Removes `how_many` items from `slot` on.
    pub(crate) fn remove_items(&mut self, slot: usize, how_many: usize) {
        let count = self.len();
        assert!(slot + how_many <= count, "the leaf has these items");
        if how_many == 0 {
            return;
        }
        let freed = self.data_end(slot) - self.data_end(slot + how_many);
        if slot + how_many < count {
            let (start, end) = (self.data_start(), self.data_end(slot + how_many));
            self.bytes.copy_within(
                NodeHeader::SIZE + start..NodeHeader::SIZE + end,
                NodeHeader::SIZE + start + freed,
            );
            for moved in slot + how_many..count {
                let at = Self::header_at(moved) + 17;
                let old = u32::from_le_bytes(self.bytes[at..at + 4].try_into().expect("four bytes"));
                self.put_u32(at, old + freed as u32);
            }
            let headers = Self::header_at(slot + how_many)..Self::header_at(count);
            self.bytes.copy_within(headers, Self::header_at(slot));
        }
        self.set_len(count - how_many);
    }

    /// Replaces an item's data by any data that fits.
    pub(crate) fn replace_item(&mut self, slot: usize, data: &[u8]) {
        let header = self.view().item_header(slot);
        let (size, end) = (header.size as usize, self.data_end(slot));
        let growth = data.len() as isize - size as isize;
        if growth != 0 {
            assert!(self.view().free_space() as isize >= growth, "the leaf has enough free space");
            self.shift_data(slot + 1, growth);
        }
        let offset = end - data.len();
        self.bytes[NodeHeader::SIZE + offset..NodeHeader::SIZE + end].copy_from_slice(data);
        self.put_item_header(slot, &header.key, offset, data.len());
    }

    /// Appends items `from` to `to` (exclusive) of another leaf, whose keys are larger.
    pub(crate) fn append_items(&mut self, other: &TreeBlock, from: usize, to: usize) {
        if from == to {
            return;
        }
        let count = self.len();
        let (start, end) = (other.data_end(to), other.data_end(from));
        let target = self.data_start() - (end - start);
        self.bytes[NodeHeader::SIZE + target..][..end - start]
            .copy_from_slice(&other.bytes[NodeHeader::SIZE + start..NodeHeader::SIZE + end]);
        for slot in from..to {
            let header = other.view().item_header(slot);
            let offset = target + (header.offset as usize - start);
            self.put_item_header(count + slot - from, &header.key, offset, header.size as usize);
        }
        self.set_len(count + to - from);
    }

    /// Inserts a pointer.
    ///
    /// # Panics
    /// If the node is full.
    pub(crate) fn insert_pointer(&mut self, slot: usize, pointer: &KeyPointer, link: Option<Arc<TreeBlock>>) {
        let count = self.len();
        assert!(count < self.max_pointers(), "the node is not full");
        let at = |slot| NodeHeader::SIZE + slot * KeyPointer::SIZE;
        self.bytes.copy_within(at(slot)..at(count), at(slot + 1));
        self.bytes[at(slot)..at(slot + 1)].copy_from_slice(&pointer.to_bytes());
        self.links.insert(slot, link);
        self.set_len(count + 1);
    }

    /// Removes a pointer.
    pub(crate) fn remove_pointer(&mut self, slot: usize) {
        let count = self.len();
        let at = |slot| NodeHeader::SIZE + slot * KeyPointer::SIZE;
        self.bytes.copy_within(at(slot + 1)..at(count), at(slot));
        self.links.remove(slot);
        self.set_len(count - 1);
    }

    /// Points a slot at the current state of `child`.
    pub(crate) fn set_child(&mut self, slot: usize, child: Arc<TreeBlock>) {
        let at = NodeHeader::SIZE + slot * KeyPointer::SIZE;
        self.bytes[at..at + KeyPointer::SIZE].copy_from_slice(&pointer_to(&child).to_bytes());
        self.links[slot] = (child.stamp != 0).then_some(child);
    }

    /// Takes the link of a slot, so that the child can be changed in place.
    pub(crate) fn take_link(&mut self, slot: usize) -> Option<Arc<TreeBlock>> {
        self.links[slot].take()
    }

    /// Drops the link of a slot whose child is on disk, or held by the caller.
    pub(crate) fn unlink(&mut self, slot: usize) {
        self.links[slot] = None;
    }

    /// Moves the pointers from `slot` on to the end of `other`.
    pub(crate) fn move_pointers_to(&mut self, slot: usize, other: &mut TreeBlock) {
        let count = self.len();
        let at = |slot| NodeHeader::SIZE + slot * KeyPointer::SIZE;
        let (length, moved) = (other.len(), count - slot);
        other.bytes[at(length)..at(length + moved)].copy_from_slice(&self.bytes[at(slot)..at(count)]);
        other.links.extend(self.links.drain(slot..));
        other.set_len(length + moved);
        self.set_len(slot);
    }

    /// Returns how many pointers fit into an internal node.
    pub(crate) fn max_pointers(&self) -> usize {
        self.capacity() / KeyPointer::SIZE
    }
}

/// Returns the pointer by which a parent refers to `child`.
pub(crate) fn pointer_to(child: &TreeBlock) -> KeyPointer {
    KeyPointer { key: child.first_key(), address: child.address, generation: child.generation }
}

const _: () = {
    assert!(std::mem::size_of::<<NodeHeader as OnDisk>::Disk>() == LEVEL_AT + 1);
};
