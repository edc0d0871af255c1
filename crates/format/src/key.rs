//! Keys: the 136-bit numbers that order the items of a tree.
//!
//! Owns [`Key`] and [`ItemType`]. Keys compare by object id, then item type, then offset, all
//! unsigned (`include/uapi/linux/btrfs_tree.h`, `struct btrfs_disk_key`).

use crate::disk::{OnDisk, disk_layout};

/// The middle part of a key: the kind of item.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ItemType(pub u8);

impl OnDisk for ItemType {
    type Disk = u8;
    #[inline]
    fn from_disk(disk: &u8) -> Self {
        Self(*disk)
    }
    #[inline]
    fn to_disk(&self) -> u8 {
        self.0
    }
}

macro_rules! item_types {
    ($( $(#[$doc:meta])* $name:ident = $value:literal ),* $(,)?) => {
        impl ItemType {
            $( $(#[$doc])* pub const $name: Self = Self($value); )*

            /// Returns the kernel's name without `BTRFS_` and `_KEY`, or `None` for an unknown
            /// type.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $( $value => Some(stringify!($name)), )*
                    _ => None,
                }
            }
        }
    };
}

item_types! {
    /// Inode metadata.
    INODE_ITEM = 1,
    /// Back reference from an inode to one of its names.
    INODE_REF = 12,
    /// Back reference from an inode to a name, with the parent directory inside the item.
    INODE_EXTREF = 13,
    /// An extended attribute.
    XATTR_ITEM = 24,
    /// fs-verity descriptor pages.
    VERITY_DESC_ITEM = 36,
    /// fs-verity Merkle tree pages.
    VERITY_MERKLE_ITEM = 37,
    /// An inode to delete at the next mount.
    ORPHAN_ITEM = 48,
    /// Log tree: a completely logged range of directory items (unused since 5.16).
    DIR_LOG_ITEM = 60,
    /// Log tree: a completely logged range of directory indexes.
    DIR_LOG_INDEX = 72,
    /// A directory entry by the hash of its name.
    DIR_ITEM = 84,
    /// A directory entry by its index, in creation order.
    DIR_INDEX = 96,
    /// A piece of file data.
    EXTENT_DATA = 108,
    /// Data checksums of a range of the address space.
    EXTENT_CSUM = 128,
    /// The root of a tree.
    ROOT_ITEM = 132,
    /// From a subvolume to the directory entry that names it.
    ROOT_BACKREF = 144,
    /// From a directory's subvolume to a subvolume named in it.
    ROOT_REF = 156,
    /// An allocated extent and its references.
    EXTENT_ITEM = 168,
    /// An allocated tree block and its references, level in the key.
    METADATA_ITEM = 169,
    /// The subvolume that owns an extent (simple quotas).
    EXTENT_OWNER_REF = 172,
    /// A tree's reference to a tree block.
    TREE_BLOCK_REF = 176,
    /// An inode's reference to a data extent.
    EXTENT_DATA_REF = 178,
    /// A parent block's reference to a tree block.
    SHARED_BLOCK_REF = 182,
    /// A leaf's reference to a data extent.
    SHARED_DATA_REF = 184,
    /// A block group.
    BLOCK_GROUP_ITEM = 192,
    /// Free-space tree: summary of one block group.
    FREE_SPACE_INFO = 198,
    /// Free-space tree: one free extent.
    FREE_SPACE_EXTENT = 199,
    /// Free-space tree: a bitmap of free sectors.
    FREE_SPACE_BITMAP = 200,
    /// A range of a device that a chunk's stripe uses.
    DEV_EXTENT = 204,
    /// A device.
    DEV_ITEM = 216,
    /// A chunk: a range of logical addresses and the stripes behind it.
    CHUNK_ITEM = 228,
    /// RAID stripe tree: the device locations of a logical range.
    RAID_STRIPE = 230,
    /// State of quotas.
    QGROUP_STATUS = 240,
    /// Usage of a qgroup.
    QGROUP_INFO = 242,
    /// Limits of a qgroup.
    QGROUP_LIMIT = 244,
    /// Parent and child of qgroups.
    QGROUP_RELATION = 246,
    /// A temporary item, such as a paused balance.
    TEMPORARY_ITEM = 248,
    /// A persistent item, such as device statistics.
    PERSISTENT_ITEM = 249,
    /// State of a device replacement.
    DEV_REPLACE = 250,
    /// UUID tree: subvolumes by UUID.
    UUID_SUBVOL = 251,
    /// UUID tree: subvolumes by the UUID they were received as.
    UUID_RECEIVED_SUBVOL = 252,
    /// A string, for debugging.
    STRING_ITEM = 253,
}

impl std::fmt::Debug for ItemType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl std::fmt::Display for ItemType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "UNKNOWN.{}", self.0),
        }
    }
}

disk_layout! {
    /// A key, ordered by object id, item type, offset.
    #[derive(PartialOrd, Ord, Hash)]
    pub struct Key as KeyDisk = 17 {
        /// The owner of the item: an inode, a tree or an address, depending on the tree.
        pub objectid: u64,
        /// The kind of item.
        pub item_type: ItemType,
        /// A number whose meaning depends on the item type.
        pub offset: u64,
    }
}

impl Key {
    /// The smallest key.
    pub const MIN: Self = Self::new(0, ItemType(0), 0);
    /// The largest key.
    pub const MAX: Self = Self::new(u64::MAX, ItemType(u8::MAX), u64::MAX);

    /// Creates a key from its three parts.
    #[inline]
    pub const fn new(objectid: u64, item_type: ItemType, offset: u64) -> Self {
        Self { objectid, item_type, offset }
    }

    /// Returns the smallest key of an object.
    #[inline]
    pub const fn first_of(objectid: u64) -> Self {
        Self::new(objectid, ItemType(0), 0)
    }

    /// Returns the largest key of an object.
    #[inline]
    pub const fn last_of(objectid: u64) -> Self {
        Self::new(objectid, ItemType(u8::MAX), u64::MAX)
    }

    /// Returns the key right after this one, or `None` after [`Key::MAX`].
    pub const fn successor(self) -> Option<Self> {
        if self.offset < u64::MAX {
            return Some(Self::new(self.objectid, self.item_type, self.offset + 1));
        }
        if self.item_type.0 < u8::MAX {
            return Some(Self::new(self.objectid, ItemType(self.item_type.0 + 1), 0));
        }
        if self.objectid < u64::MAX {
            return Some(Self::new(self.objectid + 1, ItemType(0), 0));
        }
        None
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "({} {} {})", crate::objectid::Objectid(self.objectid), self.item_type, self.offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_round_trip() {
        crate::parse::assert_round_trip::<Key>();
    }

    #[test]
    fn order_is_objectid_type_offset() {
        let low = Key::new(1, ItemType(255), u64::MAX);
        let high = Key::new(2, ItemType(0), 0);
        assert!(low < high);
        assert_eq!(low.successor(), Some(high));
        assert_eq!(Key::MAX.successor(), None);
        assert!(Key::new(1, ItemType(2), 0) > Key::new(1, ItemType(1), 9));
    }

    #[test]
    fn keys_print_like_the_kernel_prints_them() {
        assert_eq!(Key::new(5, ItemType::ROOT_ITEM, 0).to_string(), "(FS_TREE ROOT_ITEM 0)");
        assert_eq!(Key::new(257, ItemType(3), 7).to_string(), "(257 UNKNOWN.3 7)");
    }
}
