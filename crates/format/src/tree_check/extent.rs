//! Dispatch for the items of the trees that account for space: extent, chunk, device, block-group,
//! free-space, quota, UUID and RAID stripe trees, and their items in the root tree.
//!
//! Owns only the table from item type to validator; each item's own file holds the rules for its
//! content.
//!
//! Kernel counterpart: `check_leaf_item` in `fs/btrfs/tree-checker.c`. It skips quota, UUID,
//! balance, replacement and statistics items, which the kernel checks where it reads them.

use super::ItemContext;
use crate::error::Corrupt;
use crate::items::back_ref::KeyedRefs;
use crate::items::balance::BalanceItem;
use crate::items::block_group::BlockGroupItem;
use crate::items::chunk::ChunkItem;
use crate::items::dev_replace::DevReplaceItem;
use crate::items::device::{DeviceExtent, DeviceItem, DeviceStats};
use crate::items::extent::ExtentItem;
use crate::items::free_space::{FreeSpaceInfo, check_free_space_item};
use crate::items::free_space_cache::FreeSpaceHeader;
use crate::items::qgroup::{QgroupStatus, check_qgroup_item};
use crate::items::raid_stripe::RaidStripeItem;
use crate::items::uuid_tree::UuidItem;
use crate::key::{ItemType, Key};
use crate::objectid;
use crate::units::LogicalAddress;

/// Calls the validator for the item's type. Unknown types pass, as in the kernel.
pub(super) fn check_item(context: &ItemContext<'_>) -> Result<(), Corrupt> {
    let ItemContext { key, data, geometry, .. } = *context;
    let previous = context.previous.as_ref().map(|(key, _)| key);
    match key.item_type {
        ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM => {
            ExtentItem::parse(key.item_type, data)?.validate(&key, previous, geometry)
        }
        ItemType::TREE_BLOCK_REF
        | ItemType::SHARED_BLOCK_REF
        | ItemType::SHARED_DATA_REF
        | ItemType::EXTENT_DATA_REF
        | ItemType::EXTENT_OWNER_REF => KeyedRefs::parse(&key, data)?.validate(&key, geometry),
        ItemType::BLOCK_GROUP_ITEM => BlockGroupItem::parse(data)?.validate(&key, geometry),
        ItemType::FREE_SPACE_INFO => FreeSpaceInfo::parse(data)?.validate(&key, geometry),
        ItemType::FREE_SPACE_EXTENT | ItemType::FREE_SPACE_BITMAP => {
            check_free_space_item(&key, data, previous, geometry)
        }
        ItemType::CHUNK_ITEM => ChunkItem::parse(data)?.validate(LogicalAddress(key.offset), geometry),
        ItemType::DEV_ITEM => DeviceItem::parse(data)?.validate(&key),
        ItemType::DEV_EXTENT => check_device_extent(context),
        ItemType::RAID_STRIPE => RaidStripeItem::parse(data)?.validate(&key, geometry),
        ItemType::QGROUP_STATUS => QgroupStatus::parse(data)?.validate(&key),
        ItemType::QGROUP_INFO | ItemType::QGROUP_LIMIT | ItemType::QGROUP_RELATION => {
            check_qgroup_item(&key, data)
        }
        ItemType::DEV_REPLACE => DevReplaceItem::parse(data)?.validate(&key),
        ItemType::UUID_SUBVOL | ItemType::UUID_RECEIVED_SUBVOL => UuidItem::parse(data).map(|_| ()),
        _ if is_free_space_header(&key) => FreeSpaceHeader::parse(data)?.validate(),
        _ if is_balance(&key) => BalanceItem::parse(data)?.validate(&key),
        _ if is_device_stats(&key) => DeviceStats::parse(data).map(|_| ()),
        _ => Ok(()),
    }
}

/// Returns whether the key belongs to a v1 free-space cache's header, which has no item type.
pub(crate) fn is_free_space_header(key: &Key) -> bool {
    (key.objectid, key.item_type) == (objectid::FREE_SPACE, ItemType(0))
}

/// Returns whether the key belongs to a paused balance, the only temporary item.
pub(crate) fn is_balance(key: &Key) -> bool {
    (key.objectid, key.item_type) == (objectid::BALANCE, ItemType::TEMPORARY_ITEM)
}

/// Returns whether the key belongs to device statistics, the only persistent item.
pub(crate) fn is_device_stats(key: &Key) -> bool {
    (key.objectid, key.item_type) == (objectid::DEV_STATS, ItemType::PERSISTENT_ITEM)
}

/// Checks a device extent, also against the preceding one on the same device.
fn check_device_extent(context: &ItemContext<'_>) -> Result<(), Corrupt> {
    let previous = match &context.previous {
        Some((key, data)) if key.item_type == ItemType::DEV_EXTENT => Some((key, DeviceExtent::parse(data)?)),
        _ => None,
    };
    let previous = previous.as_ref().map(|(key, extent)| (*key, extent));
    DeviceExtent::parse(context.data)?.validate(&context.key, previous, context.geometry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::items::test_support::{assert_fault, geometry};
    use crate::tree_check::check_item as check_any_item;
    use crate::units::TreeId;
    use proptest::prelude::*;

    fn check(key: Key, data: &[u8], previous: Option<(Key, &[u8])>) -> Result<(), Corrupt> {
        let geometry = geometry();
        check_any_item(&ItemContext { key, data, previous, owner: TreeId(2), geometry: &geometry })
    }

    /// An item of each type with a size that is invalid for it reaches that type's validator.
    #[test]
    fn every_type_is_dispatched() {
        let types = [
            (ItemType::EXTENT_ITEM, 23),
            (ItemType::METADATA_ITEM, 23),
            (ItemType::TREE_BLOCK_REF, 1),
            (ItemType::SHARED_BLOCK_REF, 1),
            (ItemType::SHARED_DATA_REF, 0),
            (ItemType::EXTENT_DATA_REF, 1),
            (ItemType::EXTENT_OWNER_REF, 1),
            (ItemType::BLOCK_GROUP_ITEM, 23),
            (ItemType::FREE_SPACE_INFO, 7),
            (ItemType::FREE_SPACE_EXTENT, 1),
            (ItemType::FREE_SPACE_BITMAP, 2),
            (ItemType::CHUNK_ITEM, 47),
            (ItemType::DEV_ITEM, 97),
            (ItemType::DEV_EXTENT, 47),
            (ItemType::RAID_STRIPE, 15),
            (ItemType::QGROUP_STATUS, 31),
            (ItemType::QGROUP_INFO, 39),
            (ItemType::QGROUP_LIMIT, 39),
            (ItemType::QGROUP_RELATION, 1),
            (ItemType::DEV_REPLACE, 71),
            (ItemType::UUID_SUBVOL, 7),
            (ItemType::UUID_RECEIVED_SUBVOL, 0),
        ];
        for (item_type, size) in types {
            let key = Key::new(1 << 20, item_type, 4096);
            assert!(check(key, &vec![0; size], None).is_err(), "{item_type}");
        }
        assert!(check(Key::new(objectid::FREE_SPACE, ItemType(0), 0), &[0; 40], None).is_err());
        assert!(check(Key::new(objectid::BALANCE, ItemType::TEMPORARY_ITEM, 0), &[0; 447], None).is_err());
        assert!(check(Key::new(0, ItemType::PERSISTENT_ITEM, 1), &[0; 39], None).is_err());
        check(Key::new(7, ItemType::STRING_ITEM, 1), b"text", None).unwrap();
    }

    #[test]
    fn items_are_checked_against_their_neighbours() {
        let extent = DeviceExtent {
            chunk_tree: objectid::CHUNK_TREE,
            chunk_objectid: 256,
            chunk_offset: LogicalAddress(0),
            length: 8192,
            chunk_tree_uuid: uuid::Uuid::nil(),
        }
        .to_bytes();
        let at = |offset| Key::new(1, ItemType::DEV_EXTENT, offset);
        check(at(8192), &extent, Some((at(0), &extent))).unwrap();
        assert_fault(
            check(at(8192), &extent, Some((at(4096), &extent))),
            "overlaps the device extent before it",
        );
        let free = |start| Key::new(start, ItemType::FREE_SPACE_EXTENT, 8192);
        check(free(8192), &[], Some((free(0), &[]))).unwrap();
        assert_fault(check(free(8192), &[], Some((free(4096), &[]))), "overlaps the range before it");
    }

    proptest! {
        #![proptest_config(crate::parse::cases(4096))]
        #[test]
        fn random_items_under_any_key_never_panic(
            (objectid, item_type, offset) in any_key_parts(), before in any_key_parts(),
            data in prop::collection::vec(any::<u8>(), 0..500),
            before_data in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            let before = Key::new(before.0, ItemType(before.1), before.2);
            let _ = check(Key::new(objectid, ItemType(item_type), offset), &data, Some((before, &before_data)));
        }
    }

    /// Known types and round numbers more often than chance would produce them.
    fn any_key_parts() -> impl Strategy<Value = (u64, u8, u64)> {
        let number = || {
            prop_oneof![
                any::<u64>(),
                (0u64..1 << 30).prop_map(|n| n * 4096),
                Just(objectid::FREE_SPACE),
                Just(objectid::BALANCE),
                Just(0),
                Just(u64::MAX),
            ]
        };
        (number(), any::<u8>(), number())
    }
}
