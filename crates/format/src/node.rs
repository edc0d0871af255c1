//! Tree blocks: the header, and views of leaves and internal nodes.
//!
//! Owns [`NodeHeader`], [`KeyPointer`], [`ItemHeader`], the view [`Node`] over a block's bytes, and
//! [`NodeExpectation`]. [`crate::block_check`] implements [`Node::check`].
//!
//! **Invariant:** a [`Node`] exists only over bytes whose structure was checked, so its accessors
//! index without further checks. A slot past the end is a bug in the caller and panics.
//!
//! Kernel counterparts: `struct btrfs_header`, `btrfs_key_ptr`, `btrfs_item`
//! (`include/uapi/linux/btrfs_tree.h`).

use crate::disk::OnDisk;
use crate::error::Corrupt;
use crate::key::{Key, KeyDisk};
use crate::objectid;
use crate::parse::disk_struct;
use crate::units::{Generation, LogicalAddress, TreeId};
use uuid::Uuid;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

disk_struct! {
    /// The first 101 bytes of every tree block.
    pub struct NodeHeader as NodeHeaderDisk = 101 {
        /// Checksum of the rest of the block.
        pub csum: [u8; 32],
        /// UUID of the file system (the metadata UUID).
        pub fsid: Uuid,
        /// Logical address of this block.
        pub address: LogicalAddress,
        /// Flags in the low 56 bits, back reference revision (1) in the top 8.
        pub flags: u64,
        /// UUID of the chunk tree.
        pub chunk_tree_uuid: Uuid,
        /// The transaction that wrote the block.
        pub generation: Generation,
        /// The tree that allocated the block; other trees may share it.
        pub owner: TreeId,
        /// Items or key pointers in use.
        pub item_count: u32,
        /// 0 for a leaf, up to 7.
        pub level: u8,
    }
}

disk_struct! {
    /// A pointer to a child: its first key, address and generation.
    pub struct KeyPointer as KeyPointerDisk = 33 {
        /// The first key of the child.
        pub key: Key,
        /// Logical address of the child.
        pub address: LogicalAddress,
        /// The transaction that wrote the child.
        pub generation: Generation,
    }
}

disk_struct! {
    /// A leaf's header of one item.
    pub struct ItemHeader as ItemHeaderDisk = 25 {
        /// The item's key.
        pub key: Key,
        /// Where the item's data starts, in bytes from the end of the node header.
        pub offset: u32,
        /// Size of the item's data in bytes.
        pub size: u32,
    }
}

/// A reader's expectations of a tree block before it reads the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeExpectation {
    /// Logical address that the block is read from.
    pub address: LogicalAddress,
    /// Its level, if known.
    pub level: Option<u8>,
    /// Its generation, if known.
    pub generation: Option<Generation>,
    /// The tree that the reader walks, if known. Subvolumes share blocks with their snapshots, so
    /// any subvolume may own a block of another.
    pub owner: Option<TreeId>,
    /// Its first key, if its parent names it.
    pub first_key: Option<Key>,
}

impl NodeExpectation {
    /// Expects only the address.
    pub const fn at(address: LogicalAddress) -> Self {
        Self { address, level: None, generation: None, owner: None, first_key: None }
    }
}

/// A view of a checked tree block.
#[derive(Clone, Copy)]
pub struct Node<'a> {
    bytes: &'a [u8],
    item_count: u32,
    level: u8,
}

impl<'a> Node<'a> {
    /// Views bytes that an earlier [`Node::check`] accepted and that have not changed since.
    #[inline]
    pub fn of_checked(bytes: &'a [u8]) -> Self {
        let header = NodeHeaderDisk::ref_from_prefix(bytes).expect("a checked block").0;
        Self { bytes, item_count: header.item_count.get(), level: header.level }
    }

    /// Views a block after checking that the header's item count fits the block.
    pub(crate) fn of_counted(bytes: &'a [u8], header: &NodeHeader) -> Result<Self, Corrupt> {
        let body = bytes.len() - NodeHeader::SIZE;
        let entry = if header.level == 0 { ItemHeader::SIZE } else { KeyPointer::SIZE };
        if header.item_count as usize > body / entry {
            return Err(Corrupt::field(
                "tree block",
                "item_count",
                header.item_count.into(),
                "more than the block can hold",
            ));
        }
        Ok(Self { bytes, item_count: header.item_count, level: header.level })
    }

    /// Returns a leaf's item headers in place.
    pub(crate) fn item_headers(&self) -> &'a [ItemHeaderDisk] {
        assert_eq!(self.level, 0, "only leaves have items");
        self.entries()
    }

    /// Returns an internal node's key pointers in place.
    pub(crate) fn key_pointers(&self) -> &'a [KeyPointerDisk] {
        assert_ne!(self.level, 0, "only internal nodes have children");
        self.entries()
    }

    fn entries<D: FromBytes + Immutable + KnownLayout + Unaligned>(&self) -> &'a [D] {
        let entries = <[D]>::ref_from_prefix_with_elems(&self.bytes[NodeHeader::SIZE..], self.len());
        entries.expect("the item count was checked against the block size").0
    }

    /// Returns the bytes behind the header, which item headers and data share.
    pub(crate) fn body(&self) -> &'a [u8] {
        &self.bytes[NodeHeader::SIZE..]
    }

    /// Returns the header.
    pub fn header(&self) -> NodeHeader {
        NodeHeader::parse_prefix(self.bytes).expect("a checked block").0
    }

    /// Returns the level: 0 for a leaf, up to 7.
    #[inline]
    pub fn level(&self) -> u8 {
        self.level
    }

    /// Returns whether this is a leaf.
    #[inline]
    pub fn is_leaf(&self) -> bool {
        self.level == 0
    }

    /// Returns the number of items or key pointers.
    #[inline]
    pub fn len(&self) -> usize {
        self.item_count as usize
    }

    /// Returns whether there are no items or key pointers.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.item_count == 0
    }

    /// Returns the key in `slot`.
    #[inline]
    pub fn key(&self, slot: usize) -> Key {
        let entry = if self.level == 0 { ItemHeader::SIZE } else { KeyPointer::SIZE };
        self.entry::<Key>(slot, entry)
    }

    /// Decodes the start of a slot's entry.
    #[inline]
    fn entry<T: OnDisk>(&self, slot: usize, entry_size: usize) -> T {
        assert!(slot < self.len(), "slot {slot} of {}", self.len());
        let start = NodeHeader::SIZE + slot * entry_size;
        T::from_disk(T::Disk::ref_from_prefix(&self.bytes[start..]).expect("a checked block").0)
    }

    /// Returns a leaf's item header.
    #[inline]
    pub fn item_header(&self, slot: usize) -> ItemHeader {
        assert_eq!(self.level, 0, "only leaves have items");
        self.entry(slot, ItemHeader::SIZE)
    }

    /// Returns the data of a leaf's item.
    #[inline]
    pub fn item(&self, slot: usize) -> &'a [u8] {
        let header = self.item_header(slot);
        let start = NodeHeader::SIZE + header.offset as usize;
        &self.bytes[start..start + header.size as usize]
    }

    /// Returns an internal node's key pointer.
    #[inline]
    pub fn child(&self, slot: usize) -> KeyPointer {
        assert_ne!(self.level, 0, "only internal nodes have children");
        self.entry(slot, KeyPointer::SIZE)
    }

    /// Returns `Ok(slot)` of the key, or `Err(slot)` at which it would be inserted.
    #[inline]
    pub fn search(&self, key: &Key) -> Result<usize, usize> {
        let entry_size = if self.level == 0 { ItemHeader::SIZE } else { KeyPointer::SIZE };
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            let start = NodeHeader::SIZE + middle * entry_size;
            let disk = KeyDisk::ref_from_prefix(&self.bytes[start..]).expect("a checked block").0;
            match Key::from_disk(disk).cmp(key) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// Returns the unused bytes: of a leaf, those between item headers and data; of an internal
    /// node, those behind the key pointers.
    pub fn free_space(&self) -> usize {
        if self.level != 0 {
            return self.bytes.len() - NodeHeader::SIZE - self.len() * KeyPointer::SIZE;
        }
        let data_start = match self.len() {
            0 => self.bytes.len() - NodeHeader::SIZE,
            count => self.item_header(count - 1).offset as usize,
        };
        data_start - self.len() * ItemHeader::SIZE
    }
}

/// Returns whether a walk of tree `walked` may meet a block owned by `owner`
/// (`btrfs_check_eb_owner`). Subvolumes share blocks among themselves, and relocation trees with
/// all trees. Every other tree owns its blocks alone.
pub fn owner_allowed(walked: TreeId, owner: TreeId) -> bool {
    if walked == objectid::TREE_RELOC || owner == objectid::TREE_RELOC || walked == owner {
        return true;
    }
    objectid::is_subvolume(walked) && objectid::is_subvolume(owner)
}
