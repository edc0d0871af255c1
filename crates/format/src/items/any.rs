//! Any item, decoded by its key, for inspectors and checkers that walk a tree without knowing its
//! content in advance.
//!
//! Owns [`AnyItem`].
//!
//! **Invariant:** decoding requires only the item's structure, so that a damaged leaf can be shown.
//! [`crate::tree_check`] does the validation.
//!
//! Kernel counterpart: `btrfs_print_leaf` (`fs/btrfs/print-tree.c`).

use crate::error::Corrupt;
use crate::geometry::Geometry;
use crate::items::back_ref::KeyedRefs;
use crate::items::balance::BalanceItem;
use crate::items::block_group::BlockGroupItem;
use crate::items::chunk::ChunkItem;
use crate::items::csum::CsumItem;
use crate::items::dev_replace::DevReplaceItem;
use crate::items::device::{DeviceExtent, DeviceItem, DeviceStats};
use crate::items::dir_item::DirEntries;
use crate::items::dir_log::DirLogItem;
use crate::items::extent::ExtentItem;
use crate::items::file_extent::FileExtentItem;
use crate::items::free_space::{FreeSpaceBitmap, FreeSpaceInfo};
use crate::items::free_space_cache::FreeSpaceHeader;
use crate::items::inode::InodeItem;
use crate::items::inode_ref::{InodeExtrefs, InodeRefs};
use crate::items::qgroup::{QgroupId, QgroupInfo, QgroupLimit, QgroupStatus};
use crate::items::raid_stripe::RaidStripeItem;
use crate::items::root::RootItem;
use crate::items::root_ref::RootRef;
use crate::items::uuid_tree::{UuidItem, uuid_of_key};
use crate::items::verity::VerityDescriptorItem;
use crate::key::{ItemType, Key};
use crate::objectid;
use crate::tree_check::extent::{is_balance, is_device_stats, is_free_space_header};
use crate::units::{InodeNumber, LogicalAddress, TreeId};
use uuid::Uuid;

/// One item of any type.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AnyItem<'a> {
    /// INODE_ITEM.
    Inode(Box<InodeItem>),
    /// INODE_REF.
    InodeRefs(InodeRefs<'a>),
    /// INODE_EXTREF.
    InodeExtrefs(InodeExtrefs<'a>),
    /// DIR_ITEM or DIR_INDEX.
    DirEntries(DirEntries<'a>),
    /// XATTR_ITEM; entries with values.
    Xattrs(DirEntries<'a>),
    /// VERITY_DESC_ITEM with offset 0: the descriptor's size.
    VerityDescriptor(VerityDescriptorItem),
    /// VERITY_DESC_ITEM with offset 1 and up: descriptor bytes, starting at the key's offset less
    /// 1.
    VerityDescriptorBytes(&'a [u8]),
    /// VERITY_MERKLE_ITEM: Merkle tree bytes, starting at the key's offset.
    VerityMerkle(&'a [u8]),
    /// ORPHAN_ITEM of an inode.
    OrphanInode(InodeNumber),
    /// ORPHAN_ITEM of a subvolume, in the root tree.
    OrphanSubvolume(TreeId),
    /// DIR_LOG_ITEM or DIR_LOG_INDEX.
    DirLog(DirLogItem),
    /// EXTENT_DATA.
    FileExtent(FileExtentItem<'a>),
    /// EXTENT_CSUM.
    Csum(CsumItem<'a>),
    /// ROOT_ITEM.
    Root(Box<RootItem>),
    /// ROOT_REF or ROOT_BACKREF.
    RootRef(RootRef<'a>),
    /// EXTENT_ITEM or METADATA_ITEM.
    Extent(ExtentItem<'a>),
    /// A back reference with its own key.
    BackRefs(KeyedRefs<'a>),
    /// BLOCK_GROUP_ITEM.
    BlockGroup(BlockGroupItem),
    /// FREE_SPACE_INFO.
    FreeSpaceInfo(FreeSpaceInfo),
    /// FREE_SPACE_EXTENT.
    FreeSpaceExtent {
        /// Logical address of the first free byte.
        start: LogicalAddress,
        /// In bytes.
        length: u64,
    },
    /// FREE_SPACE_BITMAP.
    FreeSpaceBitmap(FreeSpaceBitmap<'a>),
    /// The header of a v1 free-space cache.
    FreeSpaceHeader(FreeSpaceHeader),
    /// DEV_EXTENT.
    DeviceExtent(DeviceExtent),
    /// DEV_ITEM.
    Device(Box<DeviceItem>),
    /// The PERSISTENT_ITEM of device statistics.
    DeviceStats(DeviceStats<'a>),
    /// DEV_REPLACE.
    DevReplace(DevReplaceItem),
    /// CHUNK_ITEM.
    Chunk(ChunkItem),
    /// RAID_STRIPE.
    RaidStripe(RaidStripeItem<'a>),
    /// QGROUP_STATUS.
    QgroupStatus(QgroupStatus),
    /// QGROUP_INFO.
    QgroupInfo(QgroupId, QgroupInfo),
    /// QGROUP_LIMIT.
    QgroupLimit(QgroupId, QgroupLimit),
    /// QGROUP_RELATION, between the key's object id and its offset.
    QgroupRelation(QgroupId, QgroupId),
    /// The TEMPORARY_ITEM of a paused balance.
    Balance(Box<BalanceItem>),
    /// UUID_SUBVOL or UUID_RECEIVED_SUBVOL.
    Uuid(Uuid, UuidItem<'a>),
    /// STRING_ITEM.
    String(&'a [u8]),
    /// An item of unknown type.
    Unknown(&'a [u8]),
}

impl<'a> AnyItem<'a> {
    /// Decodes the item under `key` in a leaf of tree `owner`.
    ///
    /// # Errors
    /// Bytes that lack the structure of the item's type.
    pub fn parse(key: &Key, owner: TreeId, data: &'a [u8], geometry: &Geometry) -> Result<Self, Corrupt> {
        match Self::parse_of_file_tree(key, owner, data, geometry)? {
            Some(item) => Ok(item),
            None => Self::parse_of_space_tree(key, data, geometry),
        }
    }

    /// Decodes the items of subvolumes, log trees, the root tree and the checksum tree; returns
    /// `None` for other types.
    fn parse_of_file_tree(
        key: &Key,
        owner: TreeId,
        data: &'a [u8],
        geometry: &Geometry,
    ) -> Result<Option<Self>, Corrupt> {
        Ok(Some(match key.item_type {
            ItemType::INODE_ITEM => Self::Inode(Box::new(InodeItem::parse(data)?)),
            ItemType::INODE_REF => Self::InodeRefs(InodeRefs::parse(data)?),
            ItemType::INODE_EXTREF => Self::InodeExtrefs(InodeExtrefs::parse(data)?),
            ItemType::DIR_ITEM | ItemType::DIR_INDEX => Self::DirEntries(DirEntries::parse(data)?),
            ItemType::XATTR_ITEM => Self::Xattrs(DirEntries::parse(data)?),
            ItemType::VERITY_DESC_ITEM if key.offset == 0 => {
                Self::VerityDescriptor(VerityDescriptorItem::parse(data)?)
            }
            ItemType::VERITY_DESC_ITEM => Self::VerityDescriptorBytes(data),
            ItemType::VERITY_MERKLE_ITEM => Self::VerityMerkle(data),
            ItemType::ORPHAN_ITEM if owner == objectid::ROOT_TREE => {
                Self::OrphanSubvolume(TreeId(key.offset))
            }
            ItemType::ORPHAN_ITEM => Self::OrphanInode(InodeNumber(key.offset)),
            ItemType::DIR_LOG_ITEM | ItemType::DIR_LOG_INDEX => Self::DirLog(DirLogItem::parse(data)?),
            ItemType::EXTENT_DATA => Self::FileExtent(FileExtentItem::parse(data)?),
            ItemType::EXTENT_CSUM => Self::Csum(CsumItem::parse(key, data, geometry)?),
            ItemType::ROOT_ITEM => Self::Root(Box::new(RootItem::parse(data)?)),
            ItemType::ROOT_REF | ItemType::ROOT_BACKREF => Self::RootRef(RootRef::parse(data)?),
            _ => return Ok(None),
        }))
    }

    /// Decodes the items of the trees that account for space, and unknown items.
    fn parse_of_space_tree(key: &Key, data: &'a [u8], geometry: &Geometry) -> Result<Self, Corrupt> {
        Ok(match key.item_type {
            ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM => {
                Self::Extent(ExtentItem::parse(key.item_type, data)?)
            }
            ItemType::TREE_BLOCK_REF
            | ItemType::SHARED_BLOCK_REF
            | ItemType::SHARED_DATA_REF
            | ItemType::EXTENT_DATA_REF
            | ItemType::EXTENT_OWNER_REF => Self::BackRefs(KeyedRefs::parse(key, data)?),
            ItemType::BLOCK_GROUP_ITEM => Self::BlockGroup(BlockGroupItem::parse(data)?),
            ItemType::FREE_SPACE_INFO => Self::FreeSpaceInfo(FreeSpaceInfo::parse(data)?),
            ItemType::FREE_SPACE_EXTENT => {
                Self::FreeSpaceExtent { start: LogicalAddress(key.objectid), length: key.offset }
            }
            ItemType::FREE_SPACE_BITMAP => {
                Self::FreeSpaceBitmap(FreeSpaceBitmap::parse(key, data, geometry)?)
            }
            ItemType::DEV_EXTENT => Self::DeviceExtent(DeviceExtent::parse(data)?),
            ItemType::DEV_ITEM => Self::Device(Box::new(DeviceItem::parse(data)?)),
            ItemType::DEV_REPLACE => Self::DevReplace(DevReplaceItem::parse(data)?),
            ItemType::CHUNK_ITEM => Self::Chunk(ChunkItem::parse(data)?),
            ItemType::RAID_STRIPE => Self::RaidStripe(RaidStripeItem::parse(data)?),
            ItemType::QGROUP_STATUS => Self::QgroupStatus(QgroupStatus::parse(data)?),
            ItemType::QGROUP_INFO => Self::QgroupInfo(QgroupId(key.offset), QgroupInfo::parse(data)?),
            ItemType::QGROUP_LIMIT => Self::QgroupLimit(QgroupId(key.offset), QgroupLimit::parse(data)?),
            ItemType::QGROUP_RELATION => Self::QgroupRelation(QgroupId(key.objectid), QgroupId(key.offset)),
            ItemType::UUID_SUBVOL | ItemType::UUID_RECEIVED_SUBVOL => {
                Self::Uuid(uuid_of_key(key), UuidItem::parse(data)?)
            }
            ItemType::STRING_ITEM => Self::String(data),
            _ if is_free_space_header(key) => Self::FreeSpaceHeader(FreeSpaceHeader::parse(data)?),
            _ if is_balance(key) => Self::Balance(Box::new(BalanceItem::parse(data)?)),
            _ if is_device_stats(key) => Self::DeviceStats(DeviceStats::parse(data)?),
            _ => Self::Unknown(data),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::items::test_support::geometry;
    use proptest::prelude::*;

    fn parse(key: Key, owner: TreeId, data: &[u8]) -> Result<AnyItem<'_>, Corrupt> {
        AnyItem::parse(&key, owner, data, &geometry())
    }

    #[test]
    fn every_named_type_is_decoded() {
        for number in 1..=u8::MAX {
            let item_type = ItemType(number);
            // Temporary and persistent items are recognised by their object ids.
            let objectid = match item_type {
                ItemType::TEMPORARY_ITEM => objectid::BALANCE,
                _ => 0,
            };
            let item = parse(Key::new(objectid, item_type, 4096), TreeId(5), &[]);
            let unknown = matches!(item, Ok(AnyItem::Unknown(_)));
            assert_eq!(unknown, item_type.name().is_none(), "{item_type}: {item:?}");
        }
    }

    #[test]
    fn key_and_tree_select_the_item() {
        let orphan = Key::new(objectid::ORPHAN, ItemType::ORPHAN_ITEM, 257);
        assert!(matches!(parse(orphan, TreeId(5), &[]), Ok(AnyItem::OrphanInode(InodeNumber(257)))));
        assert!(matches!(parse(orphan, TreeId(1), &[]), Ok(AnyItem::OrphanSubvolume(TreeId(257)))));
        let header = Key::new(objectid::FREE_SPACE, ItemType(0), 0);
        assert!(matches!(parse(header, TreeId(1), &[0; 41]), Ok(AnyItem::FreeSpaceHeader(_))));
        let verity = |offset| Key::new(257, ItemType::VERITY_DESC_ITEM, offset);
        assert!(matches!(parse(verity(0), TreeId(5), &[0; 25]), Ok(AnyItem::VerityDescriptor(_))));
        assert!(matches!(parse(verity(1), TreeId(5), &[0; 9]), Ok(AnyItem::VerityDescriptorBytes(_))));
    }

    proptest! {
        #![proptest_config(crate::parse::cases(4096))]
        #[test]
        fn random_items_are_decoded_or_refused(
            objectid in any::<u64>(), item_type in any::<u8>(), offset in any::<u64>(),
            owner in 0u64..300, data in prop::collection::vec(any::<u8>(), 0..500),
        ) {
            let item = parse(Key::new(objectid, ItemType(item_type), offset), TreeId(owner), &data);
            // A decoded item can be printed, iterators included.
            let _ = format!("{item:?}");
        }
    }
}
