//! Allocated extents: the users of a range of the address space, and their reference counts.
//!
//! Owns [`ExtentItem`] (a view of an EXTENT_ITEM or METADATA_ITEM), its fixed parts
//! [`ExtentHeader`] and [`TreeBlockInfo`], and their validation. The references themselves are
//! [`BackRef`]s. Sources: `struct btrfs_extent_item`, `btrfs_tree_block_info`
//! (`include/uapi/linux/btrfs_tree.h`), `check_extent_item` (`fs/btrfs/tree-checker.c`).
//!
//! Layout of the item; there is no padding between the parts:
//!
//! | part | bytes | present |
//! |---|---|---|
//! | header | 24 | always |
//! | tree block info | 18 | in an EXTENT_ITEM (not METADATA_ITEM) with the TREE_BLOCK flag |
//! | inline references | 9, 13 or 29 each | up to a limit that the writer chooses |
//!
//! **Invariants** of a validated item
//! - References ascend by type and, within a type, descend by [`BackRef::sequence`].
//! - Their counts sum to at most the header's count. Keyed items that follow hold the remainder.

use crate::error::Corrupt;
use crate::features::{IncompatFeatures, on_disk_flags};
use crate::geometry::{Geometry, MAX_LEVEL};
use crate::items::back_ref::{BackRef, InlineRefs};
use crate::key::{ItemType, Key};
use crate::parse::disk_struct;
use crate::units::Generation;

bitflags::bitflags! {
    /// The content of an extent.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct ExtentFlags: u64 {
        /// File data.
        const DATA = 1 << 0;
        /// A tree block.
        const TREE_BLOCK = 1 << 1;
        /// The tree block's references to other extents name the block as their parent, not its
        /// tree.
        const FULL_BACKREF = 1 << 8;
        const _ = !0;
    }
}
on_disk_flags!(ExtentFlags);

disk_struct! {
    /// The first 24 bytes of an extent item.
    pub struct ExtentHeader as ExtentHeaderDisk = 24 {
        /// Number of references of all kinds, inline and keyed.
        pub refs: u64,
        /// The transaction that allocated the extent.
        pub generation: Generation,
        /// The extent's content.
        pub flags: ExtentFlags,
    }
}

disk_struct! {
    /// Facts about a tree block in an EXTENT_ITEM. A METADATA_ITEM has the level in its key.
    pub struct TreeBlockInfo as TreeBlockInfoDisk = 18 {
        /// The block's first key.
        pub first_key: Key,
        /// The block's level.
        pub level: u8,
    }
}

/// One extent, under key (logical start, EXTENT_ITEM, bytes) or (logical start, METADATA_ITEM,
/// level).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentItem<'a> {
    /// Count, generation and flags.
    pub header: ExtentHeader,
    /// The tree block's first key and level, if the item has them.
    pub tree_block: Option<TreeBlockInfo>,
    inline: &'a [u8],
}

impl<'a> ExtentItem<'a> {
    /// Decodes an item of the given type. Inline references are decoded during iteration.
    ///
    /// # Errors
    /// [`Corrupt::TooShort`] for the fixed parts.
    pub fn parse(item_type: ItemType, bytes: &'a [u8]) -> Result<Self, Corrupt> {
        let (header, rest) = ExtentHeader::parse_prefix(bytes)?;
        let (tree_block, inline) =
            if item_type == ItemType::METADATA_ITEM || !header.flags.contains(ExtentFlags::TREE_BLOCK) {
                (None, rest)
            } else {
                let (info, rest) = TreeBlockInfo::parse_prefix(rest)?;
                (Some(info), rest)
            };
        Ok(Self { header, tree_block, inline })
    }

    /// Returns whether the extent is a tree block.
    #[inline]
    pub const fn is_tree_block(&self) -> bool {
        self.header.flags.contains(ExtentFlags::TREE_BLOCK)
    }

    /// Iterates over the references stored in the item, without allocating.
    #[inline]
    pub const fn inline_refs(&self) -> InlineRefs<'a> {
        InlineRefs::new(self.inline)
    }

    /// Encodes the item unchanged.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Self::fixed_bytes(&self.header, self.tree_block.as_ref());
        bytes.extend_from_slice(self.inline);
        bytes
    }

    /// Encodes an item from its parts.
    ///
    /// # Panics
    /// If `refs` are not in [`BackRef::inline_order`].
    pub fn encode(header: &ExtentHeader, tree_block: Option<&TreeBlockInfo>, refs: &[BackRef]) -> Vec<u8> {
        assert!(
            refs.is_sorted_by(|a, b| a.inline_order(b).is_le()),
            "inline references must be in inline order"
        );
        let mut bytes = Self::fixed_bytes(header, tree_block);
        for reference in refs {
            reference.encode_inline(&mut bytes);
        }
        bytes
    }

    fn fixed_bytes(header: &ExtentHeader, tree_block: Option<&TreeBlockInfo>) -> Vec<u8> {
        let mut bytes = header.to_bytes().to_vec();
        if let Some(info) = tree_block {
            bytes.extend_from_slice(&info.to_bytes());
        }
        bytes
    }

    /// Runs the checks of `check_extent_item`, given the previous key in the leaf.
    ///
    /// # Errors
    /// The first violation of the format.
    pub fn validate(&self, key: &Key, previous: Option<&Key>, geometry: &Geometry) -> Result<(), Corrupt> {
        check_key(key, geometry)?;
        self.check_header(key, geometry)?;
        if let Some(info) = &self.tree_block
            && info.level >= MAX_LEVEL
        {
            return Err(bad("tree block level", info.level.into(), "not below 8"));
        }
        self.check_inline_refs(geometry)?;
        match previous {
            Some(previous) => check_overlap(key, previous, geometry),
            None => Ok(()),
        }
    }

    /// Checks the generation, the flags, and the key against them.
    fn check_header(&self, key: &Key, geometry: &Geometry) -> Result<(), Corrupt> {
        let ExtentHeader { generation, flags, .. } = self.header;
        // One generation ahead: the transaction that is being committed.
        if generation.0 > geometry.generation.0.saturating_add(1) {
            return Err(bad("generation", generation.0, "later than the last transaction"));
        }
        let data = flags.contains(ExtentFlags::DATA);
        if data == flags.contains(ExtentFlags::TREE_BLOCK) {
            return Err(bad("flags", flags.bits(), "not exactly one of data and tree block"));
        }
        if !data {
            if key.item_type == ItemType::EXTENT_ITEM && key.offset != u64::from(geometry.node_size) {
                return Err(bad("length", key.offset, "not the node size"));
            }
            return Ok(());
        }
        if key.item_type != ItemType::EXTENT_ITEM {
            return Err(bad("flags", flags.bits(), "data in a METADATA_ITEM"));
        }
        if key.offset == 0 || !key.offset.is_multiple_of(geometry.sector_size.into()) {
            return Err(bad("length", key.offset, "not a positive multiple of the sector size"));
        }
        if flags.contains(ExtentFlags::FULL_BACKREF) {
            return Err(bad("flags", flags.bits(), "full back references on data"));
        }
        Ok(())
    }

    /// Checks each reference, their order, and the sum of their counts.
    fn check_inline_refs(&self, geometry: &Geometry) -> Result<(), Corrupt> {
        let mut last: Option<BackRef> = None;
        let mut sum = 0u64;
        for reference in self.inline_refs() {
            let reference = reference?;
            reference.validate(geometry)?;
            if let Some(allowed) = reference.is_of_tree_block()
                && allowed != self.is_tree_block()
            {
                let found = reference.item_type().0.into();
                return Err(bad("inline reference type", found, "not allowed for the extent's content"));
            }
            if let Some(last) = last
                && last.inline_order(&reference).is_gt()
            {
                let found = reference.item_type().0.into();
                return Err(bad("inline reference type", found, "out of order by type or sequence"));
            }
            // 64 KiB / 13 counts of 32 bits at most: no overflow.
            sum += u64::from(reference.count());
            last = Some(reference);
        }
        if sum > self.header.refs {
            return Err(bad("refs", self.header.refs, "less than the sum of its inline references"));
        }
        Ok(())
    }
}

fn bad(field: &'static str, value: u64, why: &'static str) -> Corrupt {
    Corrupt::field("extent item", field, value, why)
}

/// Checks the key by itself.
fn check_key(key: &Key, geometry: &Geometry) -> Result<(), Corrupt> {
    let skinny = key.item_type == ItemType::METADATA_ITEM;
    if skinny && !geometry.incompat.contains(IncompatFeatures::SKINNY_METADATA) {
        return Err(bad("item type", key.item_type.0.into(), "METADATA_ITEM without SKINNY_METADATA"));
    }
    if !key.objectid.is_multiple_of(geometry.sector_size.into()) {
        return Err(bad("address", key.objectid, "not a multiple of the sector size"));
    }
    if skinny && key.offset >= u64::from(MAX_LEVEL) {
        return Err(bad("level", key.offset, "not below 8"));
    }
    if extent_end(key, geometry).is_none() {
        return Err(bad("address", key.objectid, "the extent reaches past the end of the address space"));
    }
    Ok(())
}

/// Returns the first address behind the extent under an EXTENT_ITEM's or METADATA_ITEM's key, or
/// `None` past 64 bits.
pub fn extent_end(key: &Key, geometry: &Geometry) -> Option<u64> {
    let length =
        if key.item_type == ItemType::METADATA_ITEM { geometry.node_size.into() } else { key.offset };
    key.objectid.checked_add(length)
}

/// Checks that the extent in the preceding item, if there is one, does not overlap this one.
fn check_overlap(key: &Key, previous: &Key, geometry: &Geometry) -> Result<(), Corrupt> {
    if !matches!(previous.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM) {
        return Ok(());
    }
    match extent_end(previous, geometry) {
        Some(end) if end <= key.objectid => Ok(()),
        _ => Err(bad("address", key.objectid, "overlaps the extent before it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::items::test_support::{assert_fault, geometry};
    use crate::units::{FileOffset, InodeNumber, LogicalAddress, TreeId};
    use proptest::prelude::*;

    const DATA_KEY: Key = Key::new(1 << 20, ItemType::EXTENT_ITEM, 8192);
    const TREE_KEY: Key = Key::new(1 << 20, ItemType::METADATA_ITEM, 1);

    fn header(refs: u64, flags: ExtentFlags) -> ExtentHeader {
        ExtentHeader { refs, generation: Generation(7), flags }
    }

    fn data_ref(inode: u64, count: u32) -> BackRef {
        BackRef::Data { root: TreeId(5), inode: InodeNumber(inode), offset: FileOffset(4096), count }
    }

    fn check(key: &Key, bytes: &[u8], previous: Option<&Key>) -> Result<(), Corrupt> {
        ExtentItem::parse(key.item_type, bytes)?.validate(key, previous, &geometry())
    }

    fn sorted(mut refs: Vec<BackRef>) -> Vec<BackRef> {
        refs.sort_by(|a, b| a.inline_order(b));
        refs
    }

    #[test]
    fn fixed_parts_round_trip() {
        crate::parse::assert_round_trip::<ExtentHeader>();
        crate::parse::assert_round_trip::<TreeBlockInfo>();
    }

    #[test]
    fn good_items_pass() {
        let refs = sorted(vec![
            BackRef::Owner { root: TreeId(256) },
            data_ref(257, 2),
            data_ref(300, 1),
            BackRef::SharedData { parent: LogicalAddress(1 << 24), count: 1 },
        ]);
        let bytes = ExtentItem::encode(&header(4, ExtentFlags::DATA), None, &refs);
        check(&DATA_KEY, &bytes, None).unwrap();

        let refs = sorted(vec![
            BackRef::TreeBlock { root: TreeId(5) },
            BackRef::TreeBlock { root: TreeId(256) },
            BackRef::SharedBlock { parent: LogicalAddress(1 << 24) },
        ]);
        let flags = ExtentFlags::TREE_BLOCK | ExtentFlags::FULL_BACKREF;
        let bytes = ExtentItem::encode(&header(3, flags), None, &refs);
        check(&TREE_KEY, &bytes, None).unwrap();

        let info = TreeBlockInfo { first_key: Key::new(256, ItemType::INODE_ITEM, 0), level: 1 };
        let key = Key::new(1 << 20, ItemType::EXTENT_ITEM, 16384);
        let bytes = ExtentItem::encode(&header(3, flags), Some(&info), &refs);
        check(&key, &bytes, None).unwrap();
        let item = ExtentItem::parse(key.item_type, &bytes).unwrap();
        assert_eq!(item.tree_block, Some(info));
        assert_eq!(item.inline_refs().collect::<Result<Vec<_>, _>>().unwrap(), refs);
    }

    #[test]
    fn bad_keys_are_detected() {
        let tree = ExtentItem::encode(&header(1, ExtentFlags::TREE_BLOCK), None, &[]);
        let data = ExtentItem::encode(&header(1, ExtentFlags::DATA), None, &[]);
        let with = |key: Key, bytes: &[u8], why| assert_fault(check(&key, bytes, None), why);
        with(Key { objectid: 4097, ..TREE_KEY }, &tree, "multiple of the sector size");
        with(Key { offset: 8, ..TREE_KEY }, &tree, "not below 8");
        with(Key { offset: 4095, ..DATA_KEY }, &data, "positive multiple of the sector size");
        with(Key { offset: 0, ..DATA_KEY }, &data, "positive multiple of the sector size");
        with(
            Key { objectid: 0u64.wrapping_sub(4096), ..DATA_KEY },
            &data,
            "past the end of the address space",
        );
        let mut old = geometry();
        old.incompat.remove(IncompatFeatures::SKINNY_METADATA);
        let item = ExtentItem::parse(TREE_KEY.item_type, &tree).unwrap();
        assert_fault(item.validate(&TREE_KEY, None, &old), "without SKINNY_METADATA");
    }

    #[test]
    fn bad_headers_are_detected() {
        let with = |key: &Key, header: ExtentHeader, why| {
            assert_fault(check(key, &ExtentItem::encode(&header, None, &[]), None), why);
        };
        let newer = ExtentHeader { generation: Generation(102), ..header(1, ExtentFlags::DATA) };
        with(&DATA_KEY, newer, "later than the last transaction");
        with(&DATA_KEY, header(1, ExtentFlags::empty()), "not exactly one of data and tree block");
        let both = ExtentFlags::DATA | ExtentFlags::TREE_BLOCK;
        with(&TREE_KEY, header(1, both), "not exactly one of data and tree block");
        with(&TREE_KEY, header(1, ExtentFlags::DATA), "data in a METADATA_ITEM");
        let full = ExtentFlags::DATA | ExtentFlags::FULL_BACKREF;
        with(&DATA_KEY, header(1, full), "full back references");

        let mut info = TreeBlockInfo { first_key: Key::MIN, level: 0 };
        let fat = ExtentItem::encode(&header(1, ExtentFlags::TREE_BLOCK), Some(&info), &[]);
        assert_fault(check(&DATA_KEY, &fat, None), "not the node size");
        info.level = 8;
        let fat = ExtentItem::encode(&header(1, ExtentFlags::TREE_BLOCK), Some(&info), &[]);
        let key = Key::new(1 << 20, ItemType::EXTENT_ITEM, 16384);
        assert_fault(check(&key, &fat, None), "not below 8");
        assert!(matches!(check(&key, &fat[..41], None), Err(Corrupt::TooShort { .. })));
        assert!(matches!(check(&DATA_KEY, &fat[..23], None), Err(Corrupt::TooShort { .. })));
    }

    #[test]
    fn bad_references_are_detected() {
        let with = |key: &Key, header: ExtentHeader, refs: &[BackRef], why| {
            let mut bytes = header.to_bytes().to_vec();
            refs.iter().for_each(|reference| reference.encode_inline(&mut bytes));
            assert_fault(check(key, &bytes, None), why);
        };
        let data = header(9, ExtentFlags::DATA);
        let tree = header(9, ExtentFlags::TREE_BLOCK);
        let block = |root| BackRef::TreeBlock { root: TreeId(root) };
        let shared = |parent| BackRef::SharedBlock { parent: LogicalAddress(parent) };

        with(&TREE_KEY, tree, &[shared(8192), block(5)], "out of order");
        with(&TREE_KEY, tree, &[block(5), block(256)], "out of order");
        let mut refs = sorted(vec![data_ref(257, 1), data_ref(258, 1)]);
        refs.reverse();
        with(&DATA_KEY, data, &refs, "out of order");
        with(&DATA_KEY, data, &[block(5)], "not allowed for the extent's content");
        with(&TREE_KEY, tree, &[data_ref(257, 1)], "not allowed for the extent's content");
        with(&DATA_KEY, data, &[data_ref(257, 10)], "less than the sum of its inline references");
        with(&TREE_KEY, tree, &[shared(100)], "multiple of the sector size");

        let mut bytes = data.to_bytes().to_vec();
        bytes.extend_from_slice(&[99; 9]);
        assert_fault(check(&DATA_KEY, &bytes, None), "unknown");
        // Padding after the last reference is too short to hold another.
        let mut bytes = ExtentItem::encode(&data, None, &[data_ref(257, 1)]);
        bytes.push(0);
        assert!(check(&DATA_KEY, &bytes, None).is_err());
        bytes.truncate(bytes.len() - 2);
        assert!(matches!(check(&DATA_KEY, &bytes, None), Err(Corrupt::TooShort { .. })));
    }

    #[test]
    fn overlaps_are_detected() {
        let bytes = ExtentItem::encode(&header(1, ExtentFlags::DATA), None, &[]);
        let before = |item_type, distance: u64, offset| {
            check(&DATA_KEY, &bytes, Some(&Key::new((1 << 20) - distance, item_type, offset)))
        };
        before(ItemType::EXTENT_ITEM, 4096, 4096).unwrap();
        assert_fault(before(ItemType::EXTENT_ITEM, 4096, 8192), "overlaps the extent before it");
        before(ItemType::METADATA_ITEM, 16384, 0).unwrap();
        assert_fault(before(ItemType::METADATA_ITEM, 12288, 0), "overlaps the extent before it");
        before(ItemType::SHARED_DATA_REF, 4096, 1 << 30).unwrap();
    }

    proptest! {
        #[test]
        fn items_round_trip(
            refs in prop::collection::vec(crate::items::back_ref::tests::any_back_ref(), 0..20),
            count in any::<u64>(), fat in any::<bool>(), level in any::<u8>(),
        ) {
            let refs = sorted(refs);
            let flags = if fat { ExtentFlags::TREE_BLOCK } else { ExtentFlags::DATA };
            let info = TreeBlockInfo { first_key: Key::MAX, level };
            let bytes = ExtentItem::encode(&header(count, flags), fat.then_some(&info), &refs);
            let item = ExtentItem::parse(ItemType::EXTENT_ITEM, &bytes).unwrap();
            prop_assert_eq!(item.inline_refs().collect::<Result<Vec<_>, _>>().unwrap(), refs);
            prop_assert_eq!(&item.to_bytes(), &bytes);
        }

        #[test]
        fn random_bytes_never_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200), skinny in any::<bool>(),
            objectid in any::<u64>(), offset in any::<u64>(),
        ) {
            let item_type = if skinny { ItemType::METADATA_ITEM } else { ItemType::EXTENT_ITEM };
            let key = Key::new(objectid, item_type, offset);
            if let Ok(item) = ExtentItem::parse(item_type, &bytes) {
                prop_assert_eq!(&item.to_bytes(), &bytes);
                let _ = item.validate(&key, Some(&Key::MAX), &geometry());
                prop_assert!(item.inline_refs().count() <= 23);
            }
        }
    }
}
