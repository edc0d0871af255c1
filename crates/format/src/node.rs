//! Tree blocks: the header, and views of leaves and internal nodes.
//!
//! Owns [`NodeHeader`], [`KeyPointer`], [`ItemHeader`], the view [`Node`] over a block's bytes, and
//! the check of a block's identity and structure. Kernel counterparts: `struct btrfs_header`,
//! `btrfs_key_ptr`, `btrfs_item` (`include/uapi/linux/btrfs_tree.h`), `btrfs_validate_extent_buffer`
//! (`fs/btrfs/disk-io.c`), `__btrfs_check_leaf` and `__btrfs_check_node` (`fs/btrfs/tree-checker.c`).
//!
//! Invariant: a [`Node`] exists only over bytes whose structure was checked, so its accessors index
//! without a further check; a slot past the end is a broken promise of the caller and panics.

use crate::checksum::CHECKSUM_SIZE;
use crate::disk::{OnDisk, disk_struct};
use crate::error::Corrupt;
use crate::key::{Key, KeyDisk};
use crate::objectid;
use crate::superblock::{Geometry, MAX_LEVEL};
use crate::units::{Generation, LogicalAddress, TreeId};
use uuid::Uuid;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

disk_struct! {
    /// The first 101 bytes of every tree block.
    pub struct NodeHeader as NodeHeaderDisk = 101 {
        /// Checksum of everything after it.
        pub csum: [u8; 32],
        /// UUID of the file system (the metadata UUID).
        pub fsid: Uuid,
        /// Logical address of the block itself.
        pub address: LogicalAddress,
        /// Flags in the low 56 bits, back reference revision (1) in the top 8.
        pub flags: u64,
        /// UUID of the chunk tree.
        pub chunk_tree_uuid: Uuid,
        /// The transaction that wrote the block.
        pub generation: Generation,
        /// The tree that allocated it; another may share it.
        pub owner: TreeId,
        /// Items in use.
        pub item_count: u32,
        /// 0 for a leaf.
        pub level: u8,
    }
}

disk_struct! {
    /// A pointer to a child: the smallest key below it, its address and generation.
    pub struct KeyPointer as KeyPointerDisk = 33 {
        /// The first key of the child.
        pub key: Key,
        /// Where the child lies.
        pub address: LogicalAddress,
        /// The transaction that wrote it.
        pub generation: Generation,
    }
}

disk_struct! {
    /// A leaf's directory entry of one item.
    pub struct ItemHeader as ItemHeaderDisk = 25 {
        /// The item's key.
        pub key: Key,
        /// Where the item's data starts, in bytes from the end of the node header.
        pub offset: u32,
        /// Bytes of the item's data.
        pub size: u32,
    }
}

/// What a reader knows of a tree block before it reads it.
#[derive(Clone, Copy, Debug)]
pub struct NodeExpectation {
    /// Where it was read from.
    pub address: LogicalAddress,
    /// Its level, where known.
    pub level: Option<u8>,
    /// Its generation, where known.
    pub generation: Option<Generation>,
    /// The tree that is being walked, where known. Subvolumes share blocks with their snapshots, so
    /// that for one subvolume's block any subvolume may be the owner.
    pub owner: Option<TreeId>,
    /// Its first key, where its parent names it.
    pub first_key: Option<Key>,
}

impl NodeExpectation {
    /// Nothing but the address.
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
    /// Checks a block in full (checksum, identity, structure, and each item by
    /// [`crate::tree_check`]) and returns the view.
    ///
    /// # Errors
    /// The first thing wrong with it.
    ///
    /// # Panics
    /// Unless `bytes` are `geometry.node_size` long.
    pub fn check(bytes: &'a [u8], expected: &NodeExpectation, geometry: &Geometry) -> Result<Self, Corrupt> {
        assert_eq!(bytes.len(), geometry.node_size as usize, "a tree block is one node size long");
        let header = NodeHeader::parse_prefix(bytes)?.0;
        // The cheap test first, and the one that tells "nothing was ever written here" best.
        check_address(&header, expected)?;
        let sum = geometry.checksum_type;
        let computed = sum.compute(&bytes[CHECKSUM_SIZE..]);
        let stored = sum.stored(bytes);
        if computed != stored {
            return Err(Corrupt::Checksum { what: "tree block", stored, computed });
        }
        Self::check_content(bytes, &header, expected, geometry)
    }

    /// As [`Node::check`], of a block whose checksum was computed just now.
    ///
    /// # Errors
    /// The first thing wrong with it.
    ///
    /// # Panics
    /// As [`Node::check`].
    pub fn check_summed(
        bytes: &'a [u8],
        expected: &NodeExpectation,
        geometry: &Geometry,
    ) -> Result<Self, Corrupt> {
        assert_eq!(bytes.len(), geometry.node_size as usize, "a tree block is one node size long");
        let header = NodeHeader::parse_prefix(bytes)?.0;
        check_address(&header, expected)?;
        Self::check_content(bytes, &header, expected, geometry)
    }

    /// Identity, structure and items.
    fn check_content(
        bytes: &'a [u8],
        header: &NodeHeader,
        expected: &NodeExpectation,
        geometry: &Geometry,
    ) -> Result<Self, Corrupt> {
        check_identity(header, expected, geometry)?;
        let node = Self::of_counted(bytes, header)?;
        if let Some(first_key) = expected.first_key
            && !node.is_empty()
            && node.key(0) != first_key
        {
            return Err(Corrupt::FirstKey { expected: first_key, found: node.key(0) });
        }
        if node.level == 0 {
            crate::tree_check::check_leaf(node, header, geometry)?;
        } else {
            crate::tree_check::check_internal(node, header, geometry)?;
        }
        Ok(node)
    }

    /// A view of bytes that an earlier [`Node::check`] accepted and that have not changed since.
    #[inline]
    pub fn of_checked(bytes: &'a [u8]) -> Self {
        let header = NodeHeaderDisk::ref_from_prefix(bytes).expect("a checked block").0;
        Self { bytes, item_count: header.item_count.get(), level: header.level }
    }

    /// A view of a block that has room for as many entries as its header says.
    fn of_counted(bytes: &'a [u8], header: &NodeHeader) -> Result<Self, Corrupt> {
        let room = bytes.len() - NodeHeader::SIZE;
        let entry = if header.level == 0 { ItemHeader::SIZE } else { KeyPointer::SIZE };
        if header.item_count as usize > room / entry {
            return Err(Corrupt::field(
                "tree block",
                "item_count",
                header.item_count.into(),
                "more than fit",
            ));
        }
        Ok(Self { bytes, item_count: header.item_count, level: header.level })
    }

    /// A leaf's directory entries, as they lie there.
    pub(crate) fn item_headers(&self) -> &'a [ItemHeaderDisk] {
        assert_eq!(self.level, 0, "items are in leaves");
        self.entries()
    }

    /// An internal node's pointers, as they lie there.
    pub(crate) fn key_pointers(&self) -> &'a [KeyPointerDisk] {
        assert_ne!(self.level, 0, "children are in internal nodes");
        self.entries()
    }

    fn entries<D: FromBytes + Immutable + KnownLayout + Unaligned>(&self) -> &'a [D] {
        let entries = <[D]>::ref_from_prefix_with_elems(&self.bytes[NodeHeader::SIZE..], self.len());
        entries.expect("as many as fit, which was checked").0
    }

    /// What a leaf's items have for themselves: all behind the header.
    pub(crate) fn room(&self) -> &'a [u8] {
        &self.bytes[NodeHeader::SIZE..]
    }

    /// The header.
    pub fn header(&self) -> NodeHeader {
        NodeHeader::parse_prefix(self.bytes).expect("a checked block").0
    }

    /// 0 for a leaf, up to 7.
    #[inline]
    pub fn level(&self) -> u8 {
        self.level
    }

    /// Whether this is a leaf.
    #[inline]
    pub fn is_leaf(&self) -> bool {
        self.level == 0
    }

    /// Items or key pointers.
    #[inline]
    pub fn len(&self) -> usize {
        self.item_count as usize
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.item_count == 0
    }

    /// The key in `slot`.
    #[inline]
    pub fn key(&self, slot: usize) -> Key {
        let entry = if self.level == 0 { ItemHeader::SIZE } else { KeyPointer::SIZE };
        self.entry::<Key>(slot, entry)
    }

    /// Decodes what starts a slot's entry.
    #[inline]
    fn entry<T: OnDisk>(&self, slot: usize, entry_size: usize) -> T {
        assert!(slot < self.len(), "slot {slot} of {}", self.len());
        let start = NodeHeader::SIZE + slot * entry_size;
        T::from_disk(T::Disk::ref_from_prefix(&self.bytes[start..]).expect("a checked block").0)
    }

    /// A leaf's directory entry.
    #[inline]
    pub fn item_header(&self, slot: usize) -> ItemHeader {
        assert_eq!(self.level, 0, "items are in leaves");
        self.entry(slot, ItemHeader::SIZE)
    }

    /// A leaf item's data.
    #[inline]
    pub fn item(&self, slot: usize) -> &'a [u8] {
        let header = self.item_header(slot);
        let start = NodeHeader::SIZE + header.offset as usize;
        &self.bytes[start..start + header.size as usize]
    }

    /// An internal node's pointer.
    #[inline]
    pub fn child(&self, slot: usize) -> KeyPointer {
        assert_ne!(self.level, 0, "children are in internal nodes");
        self.entry(slot, KeyPointer::SIZE)
    }

    /// `Ok(slot)` of the key, or `Err(slot)` where it would be inserted.
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

    /// Bytes of a leaf that neither items nor their headers use.
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

fn check_address(header: &NodeHeader, expected: &NodeExpectation) -> Result<(), Corrupt> {
    if header.address == expected.address {
        return Ok(());
    }
    let (expected, found) = (expected.address.0, header.address.0);
    Err(Corrupt::NodeIdentity { field: "address", expected, found })
}

/// File system, level, generation and owner, as the caller expects them.
fn check_identity(
    header: &NodeHeader,
    expected: &NodeExpectation,
    geometry: &Geometry,
) -> Result<(), Corrupt> {
    let wrong = |field, expected, found| Err(Corrupt::NodeIdentity { field, expected, found });
    if header.fsid != geometry.metadata_uuid {
        return Err(Corrupt::NodeFsid { expected: geometry.metadata_uuid, found: header.fsid });
    }
    if header.level >= MAX_LEVEL {
        return Err(Corrupt::field("tree block", "level", header.level.into(), "not below 8"));
    }
    if let Some(level) = expected.level
        && header.level != level
    {
        return wrong("level", level.into(), header.level.into());
    }
    if let Some(generation) = expected.generation
        && header.generation != generation
    {
        return wrong("generation", generation.0, header.generation.0);
    }
    // A log written since the last commit is one ahead.
    if header.generation.0 > geometry.generation.0.saturating_add(1) {
        return wrong("generation", geometry.generation.0, header.generation.0);
    }
    if let Some(owner) = expected.owner
        && !owner_allowed(owner, header.owner)
    {
        return wrong("owner", owner.0, header.owner.0);
    }
    Ok(())
}

/// `btrfs_check_eb_owner`: subvolumes share blocks among themselves, and relocation trees with
/// everything; every other tree's blocks are its own.
pub fn owner_allowed(walked: TreeId, owner: TreeId) -> bool {
    if walked == objectid::TREE_RELOC || owner == objectid::TREE_RELOC || walked == owner {
        return true;
    }
    objectid::is_subvolume(walked) && objectid::is_subvolume(owner)
}
