//! The check of every item of a tree block, as strict as the kernel's tree checker.
//!
//! Owns the walk over a block's items, the dispatch from item type to validator, and the rules for
//! whole blocks. Each item's own file holds the rules for its content.
//!
//! **Invariants**
//! - A validator trusts nothing beyond its context.
//! - One pass checks a block. Before an item is validated, key order and item bounds up to it and
//!   the items in lower slots have been checked. Items in higher slots have not.
//!
//! Kernel counterpart: `fs/btrfs/tree-checker.c` (`__btrfs_check_leaf`, `__btrfs_check_node`).

pub(crate) mod extent;

use crate::disk::OnDisk;
use crate::error::Corrupt;
use crate::geometry::Geometry;
use crate::item_context::ItemContext;
use crate::items::{csum, dir_item, dir_log, file_extent, inode, inode_ref, root, root_ref, verity};
use crate::key::{ItemType, Key};
use crate::node::{ItemHeader, KeyPointer, Node, NodeHeader};
use crate::objectid;
use crate::units::TreeId;

/// Checks a leaf: the order of its keys, the bounds of its items, and each item.
pub(crate) fn check_leaf(node: Node<'_>, header: &NodeHeader, geometry: &Geometry) -> Result<(), Corrupt> {
    check_flags(header)?;
    if node.is_empty() {
        return check_empty_leaf(header);
    }
    let (headers, body) = (node.item_headers(), node.body());
    let first_data = size_of_val(headers);
    let mut end = body.len() as u32;
    let mut previous: Option<(Key, &[u8])> = None;
    for (slot, entry) in headers.iter().enumerate() {
        let ItemHeader { key, offset, size } = ItemHeader::from_disk(entry);
        if let Some((previous, _)) = previous
            && previous >= key
        {
            return Err(Corrupt::KeyOrder { slot, previous, key });
        }
        if offset.checked_add(size) != Some(end) || (offset as usize) < first_data {
            return Err(Corrupt::ItemBounds { slot, offset, size, expected_end: end });
        }
        let data = &body[offset as usize..end as usize];
        end = offset;
        let context = ItemContext { key, data, previous, owner: header.owner, geometry };
        check_item(&context).map_err(|reason| reason.in_item(slot, key))?;
        previous = Some((key, data));
    }
    Ok(())
}

/// Checks an internal node: the order of its keys, and each pointer.
pub(crate) fn check_internal(
    node: Node<'_>,
    header: &NodeHeader,
    geometry: &Geometry,
) -> Result<(), Corrupt> {
    check_flags(header)?;
    if node.is_empty() {
        return Err(Corrupt::field("tree block", "item_count", 0, "an internal node must have children"));
    }
    let mut previous: Option<Key> = None;
    for (slot, entry) in node.key_pointers().iter().enumerate() {
        let KeyPointer { key, address, generation } = KeyPointer::from_disk(entry);
        if let Some(previous) = previous
            && previous >= key
        {
            return Err(Corrupt::KeyOrder { slot, previous, key });
        }
        previous = Some(key);
        let bad =
            |field, value, why| Err(Corrupt::field("key pointer", field, value, why).in_item(slot, key));
        if address.0 == 0 || !address.is_aligned(geometry.sector_size.into()) {
            return bad("address", address.0, "not a positive multiple of the sector size");
        }
        // A child is never newer than its parent.
        if generation > header.generation {
            return bad("generation", generation.0, "later than the block that points to it");
        }
    }
    Ok(())
}

/// The header flag of a block that was written out; every block on disk has it.
const HEADER_FLAG_WRITTEN: u64 = 1 << 0;
/// The header flag of a block of a relocation tree.
const HEADER_FLAG_RELOC: u64 = 1 << 1;

fn check_flags(header: &NodeHeader) -> Result<(), Corrupt> {
    if header.flags & HEADER_FLAG_WRITTEN == 0 {
        return Err(Corrupt::field("tree block", "flags", header.flags, "WRITTEN is not set"));
    }
    Ok(())
}

/// Checks whether a tree may be empty, which means that its root is an empty leaf.
fn check_empty_leaf(header: &NodeHeader) -> Result<(), Corrupt> {
    // A block of a relocation tree carries the owner of the tree it was copied from.
    if header.flags & HEADER_FLAG_RELOC != 0 {
        return Ok(());
    }
    match header.owner {
        TreeId(0) => Err(Corrupt::field("tree block", "owner", 0, "no such tree")),
        objectid::ROOT_TREE
        | objectid::CHUNK_TREE
        | objectid::DEV_TREE
        | objectid::FS_TREE
        | objectid::DATA_RELOC_TREE
        | objectid::EXTENT_TREE => {
            Err(Corrupt::field("tree block", "owner", header.owner.0, "this tree is never empty"))
        }
        _ => Ok(()),
    }
}

/// Calls the validator for the item's type. Types that the kernel does not check pass here too.
fn check_item(context: &ItemContext<'_>) -> Result<(), Corrupt> {
    match context.key.item_type {
        ItemType::INODE_ITEM => inode::validate(context),
        ItemType::INODE_REF => inode_ref::validate(context),
        ItemType::INODE_EXTREF => inode_ref::validate_extref(context),
        ItemType::DIR_ITEM | ItemType::DIR_INDEX | ItemType::XATTR_ITEM => dir_item::validate(context),
        ItemType::DIR_LOG_ITEM | ItemType::DIR_LOG_INDEX => dir_log::validate(context),
        ItemType::EXTENT_DATA => file_extent::validate(context),
        ItemType::EXTENT_CSUM => csum::validate(context),
        ItemType::ROOT_ITEM => root::validate(context),
        ItemType::ROOT_REF | ItemType::ROOT_BACKREF => root_ref::validate(context),
        ItemType::VERITY_DESC_ITEM => verity::validate_descriptor(context),
        _ => extent::check_item(context),
    }
}

/// Shared code of the validators' tests.
#[cfg(test)]
pub(crate) mod test_support {
    use super::*;
    use crate::checksum::ChecksumType;
    use crate::features::{CompatRoFeatures, IncompatFeatures};
    use crate::units::Generation;

    /// 16 KiB nodes, 4 KiB sectors, CRC-32C, last transaction 100.
    pub fn geometry() -> Geometry {
        Geometry {
            node_size: 16384,
            sector_size: 4096,
            checksum_type: ChecksumType::Crc32c,
            incompat: IncompatFeatures::SUPPORTED,
            compat_ro: CompatRoFeatures::SUPPORTED,
            metadata_uuid: uuid::Uuid::from_u128(7),
            generation: Generation(100),
        }
    }

    /// Checks one item of the top-level subvolume, alone in its leaf.
    pub fn check(key: Key, data: &[u8]) -> Result<(), Corrupt> {
        check_in(objectid::FS_TREE, None, key, data)
    }

    /// Checks one item of a tree, with an optional item before it.
    pub fn check_in(
        owner: TreeId,
        previous: Option<(Key, &[u8])>,
        key: Key,
        data: &[u8],
    ) -> Result<(), Corrupt> {
        check_item(&ItemContext { key, data, previous, owner, geometry: &geometry() })
    }

    /// Returns the field that a fault is about; `size` if the item has the wrong size.
    pub fn fault(result: Result<(), Corrupt>) -> &'static str {
        match result.expect_err("a fault") {
            Corrupt::Field { field, .. } => field,
            Corrupt::WrongSize { .. } | Corrupt::TooShort { .. } => "size",
            other => panic!("unexpected kind of fault: {other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::test_support::{check_in, geometry};
    use super::*;
    use crate::checksum::CHECKSUM_SIZE;
    use crate::node::NodeExpectation;
    use crate::units::{Generation, LogicalAddress};
    use proptest::prelude::*;

    const ADDRESS: LogicalAddress = LogicalAddress(1 << 20);

    fn header(owner: TreeId, level: u8) -> NodeHeader {
        NodeHeader {
            csum: [0; CHECKSUM_SIZE],
            fsid: geometry().metadata_uuid,
            address: ADDRESS,
            flags: HEADER_FLAG_WRITTEN | 1 << 56,
            chunk_tree_uuid: uuid::Uuid::nil(),
            generation: Generation(90),
            owner,
            item_count: 0,
            level,
        }
    }

    fn seal(header: &NodeHeader, bytes: &mut [u8]) {
        bytes[..NodeHeader::SIZE].copy_from_slice(&header.to_bytes());
        let sum = geometry().checksum_type.compute(&bytes[CHECKSUM_SIZE..]);
        bytes[..CHECKSUM_SIZE].copy_from_slice(sum.padded());
    }

    fn check_block(bytes: &[u8]) -> Result<(), Corrupt> {
        Node::check(bytes, &NodeExpectation::at(ADDRESS), &geometry()).map(drop)
    }

    fn leaf(mut header: NodeHeader, items: &[(Key, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; geometry().node_size as usize];
        let mut end = bytes.len() - NodeHeader::SIZE;
        for (slot, (key, data)) in items.iter().enumerate() {
            end -= data.len();
            let item = ItemHeader { key: *key, offset: end as u32, size: data.len() as u32 };
            let at = NodeHeader::SIZE + slot * ItemHeader::SIZE;
            bytes[at..at + ItemHeader::SIZE].copy_from_slice(&item.to_bytes());
            bytes[NodeHeader::SIZE + end..][..data.len()].copy_from_slice(data);
        }
        header.item_count = items.len() as u32;
        seal(&header, &mut bytes);
        bytes
    }

    #[test]
    fn bad_item_is_reported_with_its_slot() {
        let good = (Key::new(257, ItemType::ORPHAN_ITEM, 0), &[][..]);
        let bad = (Key::new(257, ItemType::EXTENT_DATA, 1), &[0; 53][..]);
        assert_eq!(check_block(&leaf(header(objectid::FS_TREE, 0), &[good])), Ok(()));
        match check_block(&leaf(header(objectid::FS_TREE, 0), &[good, bad])) {
            Err(Corrupt::Item { slot: 1, key, .. }) => assert_eq!(key, bad.0),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_some_trees_may_be_empty() {
        for owner in [
            objectid::ROOT_TREE,
            objectid::EXTENT_TREE,
            objectid::CHUNK_TREE,
            objectid::DEV_TREE,
            objectid::FS_TREE,
            objectid::DATA_RELOC_TREE,
            TreeId(0),
        ] {
            let mut header = header(owner, 0);
            assert!(matches!(check_block(&leaf(header, &[])), Err(Corrupt::Field { field: "owner", .. })));
            header.flags |= HEADER_FLAG_RELOC;
            assert_eq!(check_block(&leaf(header, &[])), Ok(()));
        }
        assert_eq!(check_block(&leaf(header(objectid::CSUM_TREE, 0), &[])), Ok(()));
    }

    #[test]
    fn block_must_have_the_written_flag() {
        let mut header = header(objectid::CSUM_TREE, 0);
        header.flags &= !HEADER_FLAG_WRITTEN;
        assert!(matches!(check_block(&leaf(header, &[])), Err(Corrupt::Field { field: "flags", .. })));
    }

    #[test]
    fn child_newer_than_its_parent_is_refused() {
        let block = |generation| {
            let mut bytes = vec![0; geometry().node_size as usize];
            let pointer = KeyPointer { key: Key::MIN, address: LogicalAddress(4096), generation };
            bytes[NodeHeader::SIZE..][..KeyPointer::SIZE].copy_from_slice(&pointer.to_bytes());
            seal(&NodeHeader { item_count: 1, ..header(objectid::FS_TREE, 1) }, &mut bytes);
            bytes
        };
        assert_eq!(check_block(&block(Generation(90))), Ok(()));
        assert!(matches!(check_block(&block(Generation(91))), Err(Corrupt::Item { slot: 0, .. })));
        let mut empty = vec![0; geometry().node_size as usize];
        seal(&header(objectid::FS_TREE, 1), &mut empty);
        assert!(matches!(check_block(&empty), Err(Corrupt::Field { field: "item_count", .. })));
    }

    fn any_key() -> impl Strategy<Value = Key> {
        (
            any::<u64>(),
            any::<u8>(),
            prop_oneof![any::<u64>(), Just(0), Just(1), (0u64..64).prop_map(|n| n << 12)],
        )
            .prop_map(|(objectid, item_type, offset)| Key::new(objectid, ItemType(item_type), offset))
    }

    fn any_data() -> impl Strategy<Value = Vec<u8>> {
        // Small values and the sizes of real items reach further than random bytes.
        let byte = prop_oneof![3 => Just(0u8), 2 => 0u8..10, 1 => any::<u8>()];
        let size = prop_oneof![
            Just(8usize),
            Just(24),
            Just(25),
            Just(53),
            Just(160),
            Just(239),
            Just(439),
            0usize..600
        ];
        size.prop_flat_map(move |size| prop::collection::vec(byte.clone(), size))
    }

    proptest! {
        #![proptest_config(crate::parse::cases(4096))]
        #[test]
        fn arbitrary_bytes_never_panic(
            key in any_key(),
            data in any_data(),
            previous in prop::option::of((any_key(), any_data())),
            same_type in any::<bool>(),
            owner in prop_oneof![Just(1u64), Just(2), Just(5), Just(7), any::<u64>()],
        ) {
            let previous = previous.as_ref().map(|(previous, data)| {
                let mut previous = *previous;
                if same_type {
                    previous.item_type = key.item_type;
                    previous.objectid = key.objectid;
                }
                (previous, &data[..])
            });
            let _ = check_in(TreeId(owner), previous, key, &data);
        }
    }
}
