//! Back references: from an extent to its users.
//!
//! Owns [`BackRef`], one enum for all five kinds, and their two stored forms: inline in an extent
//! item ([`InlineRefs`]) and as a separate item ([`KeyedRefs`]). Sources: `struct
//! btrfs_extent_inline_ref`, `btrfs_extent_data_ref`, `btrfs_shared_data_ref`,
//! `btrfs_extent_owner_ref` (`include/uapi/linux/btrfs_tree.h`), `hash_extent_data_ref`
//! (`fs/btrfs/extent-tree.c`), `check_simple_keyed_refs` and `check_extent_data_ref`
//! (`fs/btrfs/tree-checker.c`).
//!
//! | kind | inline, after the type byte | keyed: key offset | keyed: item |
//! |---|---|---|---|
//! | EXTENT_OWNER_REF | root | (never written keyed) | |
//! | TREE_BLOCK_REF | root | root | empty |
//! | EXTENT_DATA_REF | root, inode, offset, count | hash of the first three | the same 28 bytes |
//! | SHARED_BLOCK_REF | parent | parent | empty |
//! | SHARED_DATA_REF | parent, count | parent | count |

use crate::error::Corrupt;
use crate::geometry::Geometry;
use crate::key::{ItemType, Key};
use crate::objectid;
use crate::parse::disk_struct;
use crate::units::{FileOffset, InodeNumber, LogicalAddress, TreeId};
use std::cmp::Ordering;

disk_struct! {
    /// The body of an EXTENT_DATA_REF.
    pub struct DataRef as DataRefDisk = 28 {
        /// The subvolume.
        pub root: TreeId,
        /// The inode in that subvolume.
        pub inode: InodeNumber,
        /// File offset of the extent's first byte. It equals the file extent item's offset less the
        /// item's offset into the extent, modulo 2^64.
        pub offset: FileOffset,
        /// Number of file extent items with this reference.
        pub count: u32,
    }
}

disk_struct! {
    /// The fixed start of an inline reference other than EXTENT_DATA_REF.
    pub struct InlineHeader as InlineHeaderDisk = 9 {
        /// The kind, as an item type.
        pub kind: ItemType,
        /// Root or parent, depending on the kind.
        pub offset: u64,
    }
}

/// One reference to an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BackRef {
    /// The subvolume charged for an extent (simple quotas); not a reference in itself.
    Owner {
        /// The subvolume.
        root: TreeId,
    },
    /// A tree's reference to a tree block. The referring block is found by searching the tree for
    /// the block's first key.
    TreeBlock {
        /// The tree.
        root: TreeId,
    },
    /// An inode's reference to a data extent.
    Data {
        /// The subvolume.
        root: TreeId,
        /// The inode.
        inode: InodeNumber,
        /// File offset of the extent's first byte; see [`DataRef::offset`].
        offset: FileOffset,
        /// Number of file extent items with this reference.
        count: u32,
    },
    /// A tree block's reference to another one, independent of the tree.
    SharedBlock {
        /// The referring tree block.
        parent: LogicalAddress,
    },
    /// A leaf's reference to a data extent, independent of the tree.
    SharedData {
        /// The leaf.
        parent: LogicalAddress,
        /// Number of file extent items in the leaf with this reference.
        count: u32,
    },
}

impl BackRef {
    /// Returns the item type that identifies the kind, in keyed items and inline.
    pub const fn item_type(&self) -> ItemType {
        match self {
            Self::Owner { .. } => ItemType::EXTENT_OWNER_REF,
            Self::TreeBlock { .. } => ItemType::TREE_BLOCK_REF,
            Self::Data { .. } => ItemType::EXTENT_DATA_REF,
            Self::SharedBlock { .. } => ItemType::SHARED_BLOCK_REF,
            Self::SharedData { .. } => ItemType::SHARED_DATA_REF,
        }
    }

    /// Returns the reference's share of the extent's reference count.
    pub const fn count(&self) -> u32 {
        match *self {
            Self::Owner { .. } => 0,
            Self::TreeBlock { .. } | Self::SharedBlock { .. } => 1,
            Self::Data { count, .. } | Self::SharedData { count, .. } => count,
        }
    }

    /// Returns the number that orders references of one kind: the root, the parent, or the hash of
    /// a data reference. It is also the key offset of the keyed form, unless an earlier data
    /// reference has the same hash.
    pub fn sequence(&self) -> u64 {
        match *self {
            Self::Owner { root } | Self::TreeBlock { root } => root.0,
            Self::SharedBlock { parent } | Self::SharedData { parent, .. } => parent.0,
            Self::Data { root, inode, offset, .. } => data_ref_hash(root, inode, offset),
        }
    }

    /// Compares inline references: kinds ascend; within a kind, sequences descend.
    pub fn inline_order(&self, other: &Self) -> Ordering {
        (self.item_type().cmp(&other.item_type())).then_with(|| other.sequence().cmp(&self.sequence()))
    }

    /// Returns `Some(true)` for references to tree blocks, `Some(false)` for references to data,
    /// and `None` for an owner of either.
    pub const fn is_of_tree_block(&self) -> Option<bool> {
        match self {
            Self::Owner { .. } => None,
            Self::TreeBlock { .. } | Self::SharedBlock { .. } => Some(true),
            Self::Data { .. } | Self::SharedData { .. } => Some(false),
        }
    }

    /// Returns the size of the inline form in bytes.
    pub const fn inline_size(&self) -> usize {
        match self {
            Self::Owner { .. } | Self::TreeBlock { .. } | Self::SharedBlock { .. } => InlineHeader::SIZE,
            Self::Data { .. } => 1 + DataRef::SIZE,
            Self::SharedData { .. } => InlineHeader::SIZE + 4,
        }
    }

    /// Decodes the inline reference at the start of `bytes` and returns it with the remaining
    /// bytes.
    ///
    /// # Errors
    /// An unknown kind, or [`Corrupt::TooShort`].
    pub fn parse_inline(bytes: &[u8]) -> Result<(Self, &[u8]), Corrupt> {
        let kind = ItemType(*bytes.first().ok_or(Corrupt::TooShort {
            what: "inline reference",
            need: InlineHeader::SIZE,
            have: 0,
        })?);
        if kind == ItemType::EXTENT_DATA_REF {
            let (body, rest) = DataRef::parse_prefix(&bytes[1..])?;
            return Ok((body.into(), rest));
        }
        let (InlineHeader { offset, .. }, rest) = InlineHeader::parse_prefix(bytes)?;
        let reference = match kind {
            ItemType::EXTENT_OWNER_REF => Self::Owner { root: TreeId(offset) },
            ItemType::TREE_BLOCK_REF => Self::TreeBlock { root: TreeId(offset) },
            ItemType::SHARED_BLOCK_REF => Self::SharedBlock { parent: LogicalAddress(offset) },
            ItemType::SHARED_DATA_REF => {
                let (count, rest) = crate::parse::parse_prefix("inline reference", rest)?;
                return Ok((Self::SharedData { parent: LogicalAddress(offset), count }, rest));
            }
            _ => return Err(Corrupt::field("inline reference", "type", kind.0.into(), "unknown")),
        };
        Ok((reference, rest))
    }

    /// Appends the inline form to `bytes`.
    pub fn encode_inline(&self, bytes: &mut Vec<u8>) {
        if let Some(body) = self.data_ref() {
            bytes.push(ItemType::EXTENT_DATA_REF.0);
            bytes.extend_from_slice(&body.to_bytes());
            return;
        }
        let header = InlineHeader { kind: self.item_type(), offset: self.sequence() };
        bytes.extend_from_slice(&header.to_bytes());
        if let Self::SharedData { count, .. } = self {
            bytes.extend_from_slice(&count.to_le_bytes());
        }
    }

    /// Encodes the keyed form for the extent at `extent`. If another data reference of the extent
    /// has the same hash, the caller must use the next free key offset.
    pub fn encode_keyed(&self, extent: LogicalAddress) -> (Key, Vec<u8>) {
        let item = match self {
            Self::Owner { .. } | Self::TreeBlock { .. } | Self::SharedBlock { .. } => Vec::new(),
            Self::SharedData { count, .. } => count.to_le_bytes().to_vec(),
            Self::Data { .. } => self.data_ref().expect("a data reference has a body").to_bytes().to_vec(),
        };
        (Key::new(extent.0, self.item_type(), self.sequence()), item)
    }

    fn data_ref(&self) -> Option<DataRef> {
        match *self {
            Self::Data { root, inode, offset, count } => Some(DataRef { root, inode, offset, count }),
            _ => None,
        }
    }

    /// Checks the rules for every reference, inline or keyed.
    ///
    /// # Errors
    /// The first field that the format forbids.
    pub fn validate(&self, geometry: &Geometry) -> Result<(), Corrupt> {
        let bad = |field, value, why| Err(Corrupt::field("back reference", field, value, why));
        let sector_size = u64::from(geometry.sector_size);
        match *self {
            Self::Owner { .. } | Self::TreeBlock { .. } => {}
            Self::SharedBlock { parent } | Self::SharedData { parent, .. } => {
                if !parent.is_aligned(sector_size) {
                    return bad("parent", parent.0, "not a multiple of the sector size");
                }
            }
            Self::Data { root, inode, offset, .. } => {
                if !may_hold_data(root) {
                    return bad("root", root.0, "not a tree with file data");
                }
                if !(objectid::FIRST_FREE..=objectid::LAST_FREE).contains(&inode.0)
                    && inode.0 != objectid::FREE_INO
                {
                    return bad("inode", inode.0, "not an inode number");
                }
                if !offset.is_aligned(sector_size) {
                    return bad("offset", offset.0, "not a multiple of the sector size");
                }
            }
        }
        if self.count() == 0 && !matches!(self, Self::Owner { .. }) {
            return bad("count", 0, "not at least 1");
        }
        Ok(())
    }
}

/// Returns whether a tree's inodes may have data: subvolumes, the data relocation tree, and the
/// root tree (v1 space cache). The upper 16 bits of a subvolume's id are 0; in a qgroup's they hold
/// the level.
fn may_hold_data(root: TreeId) -> bool {
    root == objectid::FS_TREE
        || (root.0 >= objectid::FIRST_FREE && root.0 < 1 << 48)
        || root == objectid::DATA_RELOC_TREE
        || root == objectid::ROOT_TREE
}

impl From<DataRef> for BackRef {
    fn from(DataRef { root, inode, offset, count }: DataRef) -> Self {
        Self::Data { root, inode, offset, count }
    }
}

/// Computes the hash that orders data references (`hash_extent_data_ref`). It combines the CRC-32C
/// of the root, shifted left by 31, with that of inode and offset, both without the final
/// inversion.
pub fn data_ref_hash(root: TreeId, inode: InodeNumber, offset: FileOffset) -> u64 {
    let high = !crc32c::crc32c(&root.0.to_le_bytes());
    let low = crc32c::crc32c(&inode.0.to_le_bytes());
    let low = !crc32c::crc32c_append(low, &offset.0.to_le_bytes());
    (u64::from(high) << 31) ^ u64::from(low)
}

/// Iterates over the inline references of an extent item; ends after the first error.
#[derive(Clone, Debug)]
pub struct InlineRefs<'a> {
    rest: &'a [u8],
}

impl<'a> InlineRefs<'a> {
    pub(crate) const fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }
}

impl Iterator for InlineRefs<'_> {
    type Item = Result<BackRef, Corrupt>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        match BackRef::parse_inline(self.rest) {
            Ok((reference, rest)) => {
                self.rest = rest;
                Some(Ok(reference))
            }
            Err(reason) => {
                self.rest = &[];
                Some(Err(reason))
            }
        }
    }
}

/// The references of one keyed item: one, or several in an EXTENT_DATA_REF.
#[derive(Clone, Debug)]
pub struct KeyedRefs<'a> {
    simple: Option<BackRef>,
    data: &'a [u8],
}

impl<'a> KeyedRefs<'a> {
    /// Decodes the item under `key`.
    ///
    /// # Errors
    /// A size that is invalid for the kind, or a key of another item type.
    pub fn parse(key: &Key, bytes: &'a [u8]) -> Result<Self, Corrupt> {
        let sized = |expected| match bytes.len() {
            found if found == expected => Ok(()),
            found => Err(Corrupt::WrongSize { what: "back reference", expected, found }),
        };
        let parent = LogicalAddress(key.offset);
        let root = TreeId(key.offset);
        let simple = match key.item_type {
            ItemType::EXTENT_DATA_REF => {
                if bytes.is_empty() || !bytes.len().is_multiple_of(DataRef::SIZE) {
                    let size = bytes.len() as u64;
                    return Err(Corrupt::field("back reference", "size", size, "not a multiple of 28"));
                }
                return Ok(Self { simple: None, data: bytes });
            }
            ItemType::EXTENT_OWNER_REF => sized(0).map(|()| BackRef::Owner { root })?,
            ItemType::TREE_BLOCK_REF => sized(0).map(|()| BackRef::TreeBlock { root })?,
            ItemType::SHARED_BLOCK_REF => sized(0).map(|()| BackRef::SharedBlock { parent })?,
            ItemType::SHARED_DATA_REF => {
                sized(4)?;
                let (count, _) = crate::parse::parse_prefix("back reference", bytes)?;
                BackRef::SharedData { parent, count }
            }
            other => {
                return Err(Corrupt::field(
                    "back reference",
                    "item type",
                    other.0.into(),
                    "not a back reference",
                ));
            }
        };
        Ok(Self { simple: Some(simple), data: &[] })
    }

    /// Runs the checks of `check_simple_keyed_refs` and `check_extent_data_ref`. They do not
    /// compare a data reference's hash with the key's offset, because colliding references follow
    /// that offset.
    ///
    /// # Errors
    /// The first field that the format forbids.
    pub fn validate(&self, key: &Key, geometry: &Geometry) -> Result<(), Corrupt> {
        if !key.objectid.is_multiple_of(geometry.sector_size.into()) {
            return Err(Corrupt::field(
                "back reference",
                "address",
                key.objectid,
                "not a multiple of the sector size",
            ));
        }
        self.clone().try_for_each(|reference| reference.validate(geometry))
    }
}

impl Iterator for KeyedRefs<'_> {
    type Item = BackRef;

    fn next(&mut self) -> Option<BackRef> {
        if let Some(reference) = self.simple.take() {
            return Some(reference);
        }
        // `parse` accepted whole references only.
        let (body, rest) = DataRef::parse_prefix(self.data).ok()?;
        self.data = rest;
        Some(body.into())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::items::test_support::{assert_fault, geometry};
    use proptest::prelude::*;

    pub(crate) fn any_back_ref() -> impl Strategy<Value = BackRef> {
        let number = any::<u64>;
        prop_oneof![
            number().prop_map(|root| BackRef::Owner { root: TreeId(root) }),
            number().prop_map(|root| BackRef::TreeBlock { root: TreeId(root) }),
            number().prop_map(|parent| BackRef::SharedBlock { parent: LogicalAddress(parent) }),
            (number(), any::<u32>())
                .prop_map(|(parent, count)| BackRef::SharedData { parent: LogicalAddress(parent), count }),
            (number(), number(), number(), any::<u32>()).prop_map(|(root, inode, offset, count)| {
                BackRef::Data {
                    root: TreeId(root),
                    inode: InodeNumber(inode),
                    offset: FileOffset(offset),
                    count,
                }
            }),
        ]
    }

    fn data(root: u64, inode: u64, offset: u64, count: u32) -> BackRef {
        BackRef::Data { root: TreeId(root), inode: InodeNumber(inode), offset: FileOffset(offset), count }
    }

    fn check(key: Key, bytes: &[u8]) -> Result<(), Corrupt> {
        KeyedRefs::parse(&key, bytes)?.validate(&key, &geometry())
    }

    #[test]
    fn fixed_parts_round_trip() {
        crate::parse::assert_round_trip::<DataRef>();
        crate::parse::assert_round_trip::<InlineHeader>();
    }

    #[test]
    fn bad_fields_are_detected() {
        let with = |reference: BackRef, why| assert_fault(reference.validate(&geometry()), why);
        with(data(2, 257, 0, 1), "not a tree with file data");
        with(data(1 << 48, 257, 0, 1), "not a tree with file data");
        with(data(5, 255, 0, 1), "not an inode number");
        with(data(5, u64::MAX, 0, 1), "not an inode number");
        with(data(5, 257, 1, 1), "multiple of the sector size");
        with(data(5, 257, 0, 0), "at least 1");
        let parent = LogicalAddress(4096);
        with(BackRef::SharedData { parent, count: 0 }, "at least 1");
        with(BackRef::SharedData { parent: LogicalAddress(1), count: 1 }, "multiple of the sector size");
        with(BackRef::SharedBlock { parent: LogicalAddress(1) }, "multiple of the sector size");
        for good in [
            data(1, 256, 0, 1),
            data(5, 257, 0u64.wrapping_sub(4096), 1),
            data(256, objectid::FREE_INO, 0, 1),
            data(objectid::DATA_RELOC_TREE.0, 257, 0, 1),
            BackRef::Owner { root: TreeId(0) },
        ] {
            good.validate(&geometry()).unwrap();
        }
    }

    #[test]
    fn bad_keyed_items_are_detected() {
        let key = |item_type, offset| Key::new(1 << 20, item_type, offset);
        check(key(ItemType::TREE_BLOCK_REF, 5), &[]).unwrap();
        check(key(ItemType::SHARED_BLOCK_REF, 4096), &[]).unwrap();
        check(key(ItemType::SHARED_DATA_REF, 4096), &[1, 0, 0, 0]).unwrap();
        for kind in [ItemType::TREE_BLOCK_REF, ItemType::SHARED_BLOCK_REF, ItemType::EXTENT_OWNER_REF] {
            assert!(matches!(check(key(kind, 4096), &[1]), Err(Corrupt::WrongSize { .. })), "{kind}");
        }
        assert!(matches!(check(key(ItemType::SHARED_DATA_REF, 4096), &[]), Err(Corrupt::WrongSize { .. })));
        assert_fault(check(key(ItemType::SHARED_BLOCK_REF, 1), &[]), "multiple of the sector size");
        assert_fault(check(key(ItemType::SHARED_DATA_REF, 1), &[1, 0, 0, 0]), "multiple of the sector size");
        assert_fault(check(key(ItemType::EXTENT_DATA_REF, 1), &[]), "multiple of 28");
        assert_fault(check(key(ItemType::EXTENT_DATA_REF, 1), &[0; 29]), "multiple of 28");
        assert_fault(check(key(ItemType::INODE_ITEM, 1), &[]), "not a back reference");
        assert_fault(check(Key::new(1, ItemType::TREE_BLOCK_REF, 5), &[]), "multiple of the sector size");
        let (key, mut bytes) = data(5, 257, 0, 1).encode_keyed(LogicalAddress(1 << 20));
        check(key, &bytes).unwrap();
        bytes.extend(data(5, 257, 1, 1).encode_keyed(LogicalAddress(1 << 20)).1);
        assert_fault(check(key, &bytes), "multiple of the sector size");
    }

    proptest! {
        #[test]
        fn inline_form_round_trips(reference in any_back_ref()) {
            let mut bytes = Vec::new();
            reference.encode_inline(&mut bytes);
            prop_assert_eq!(bytes.len(), reference.inline_size());
            let (parsed, rest) = BackRef::parse_inline(&bytes).unwrap();
            prop_assert_eq!((parsed, rest.len()), (reference, 0));
        }

        #[test]
        fn keyed_form_round_trips(reference in any_back_ref(), extent in any::<u64>()) {
            let (key, bytes) = reference.encode_keyed(LogicalAddress(extent));
            prop_assert_eq!(key.objectid, extent);
            let parsed: Vec<_> = KeyedRefs::parse(&key, &bytes).unwrap().collect();
            prop_assert_eq!(parsed, vec![reference]);
        }

        #[test]
        fn random_items_never_panic(kind in 170u8..190, offset in any::<u64>(), bytes in prop::collection::vec(any::<u8>(), 0..90)) {
            let _ = check(Key::new(offset, ItemType(kind), offset), &bytes);
        }
    }
}
