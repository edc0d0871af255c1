//! The object ids with a fixed meaning (`include/uapi/linux/btrfs_tree.h`).
//!
//! Owns the constants, and [`Objectid`], which prints an object id.

use crate::units::{InodeNumber, TreeId};

/// The roots of all trees except the chunk tree and the log trees.
pub const ROOT_TREE: TreeId = TreeId(1);
/// Extents and their references; block groups, if there is no block-group tree.
pub const EXTENT_TREE: TreeId = TreeId(2);
/// Chunks and devices.
pub const CHUNK_TREE: TreeId = TreeId(3);
/// Device extents, device statistics, replacement state.
pub const DEV_TREE: TreeId = TreeId(4);
/// The top-level subvolume.
pub const FS_TREE: TreeId = TreeId(5);
/// Not a tree: the directory in the root tree that names the default subvolume.
pub const ROOT_TREE_DIR: u64 = 6;
/// Data checksums.
pub const CSUM_TREE: TreeId = TreeId(7);
/// Quota groups.
pub const QUOTA_TREE: TreeId = TreeId(8);
/// Subvolumes by UUID.
pub const UUID_TREE: TreeId = TreeId(9);
/// Free space of every block group.
pub const FREE_SPACE_TREE: TreeId = TreeId(10);
/// Block groups (feature BLOCK_GROUP_TREE).
pub const BLOCK_GROUP_TREE: TreeId = TreeId(11);
/// Device locations of logical ranges (feature RAID_STRIPE_TREE).
pub const RAID_STRIPE_TREE: TreeId = TreeId(12);
/// Object id of the device replacement item in the device tree; equals 0.
pub const DEV_REPLACE: u64 = 0;
/// Object id of device statistics in the device tree; equals 0.
pub const DEV_STATS: u64 = 0;
/// A paused balance (root tree).
pub const BALANCE: u64 = -4i64 as u64;
/// Orphan items.
pub const ORPHAN: u64 = -5i64 as u64;
/// The tree of log trees, and the log trees in it.
pub const TREE_LOG: TreeId = TreeId(-6i64 as u64);
/// A log tree's root item while the log is being fixed up.
pub const TREE_LOG_FIXUP: TreeId = TreeId(-7i64 as u64);
/// The tree that relocation works in.
pub const TREE_RELOC: TreeId = TreeId(-8i64 as u64);
/// The tree whose data inodes relocation works through.
pub const DATA_RELOC_TREE: TreeId = TreeId(-9i64 as u64);
/// Keys of checksum items.
pub const EXTENT_CSUM: u64 = -10i64 as u64;
/// Free-space cache headers (v1) in the root tree.
pub const FREE_SPACE: u64 = -11i64 as u64;
/// The inode number cache's inode in a subvolume (removed in 5.11, but may still exist).
pub const FREE_INO: u64 = -12i64 as u64;
/// A dummy id that stands for several object ids.
pub const MULTIPLE: u64 = -255i64 as u64;
/// The first inode number, and the first subvolume id, available to users.
pub const FIRST_FREE: u64 = 256;
/// The last inode number, and the last subvolume id, available to users.
pub const LAST_FREE: u64 = -256i64 as u64;
/// The root directory of a subvolume.
pub const FIRST_INODE: InodeNumber = InodeNumber(FIRST_FREE);
/// The object id of all chunk items.
pub const FIRST_CHUNK_TREE: u64 = 256;
/// The object id of all device items.
pub const DEV_ITEMS: u64 = 1;
/// The inode number in the empty directory entry that stands for a lost subvolume
/// (`BTRFS_EMPTY_SUBVOL_DIR_OBJECTID`).
pub const EMPTY_SUBVOL_DIR: InodeNumber = InodeNumber(2);

/// Returns whether a tree is a subvolume, which holds inodes and is visible to users. As in the
/// kernel's `btrfs_is_fstree`, the top 16 bits must be 0: in a quota group's id they hold its
/// level.
#[inline]
pub const fn is_subvolume(tree: TreeId) -> bool {
    tree.0 == FS_TREE.0 || (tree.0 >= FIRST_FREE && tree.0 < 1 << 48)
}

/// Returns whether a tree holds inodes and file extents: a subvolume, or a relocation or log tree.
#[inline]
pub const fn is_fs_tree(tree: TreeId) -> bool {
    is_subvolume(tree) || tree.0 == DATA_RELOC_TREE.0 || tree.0 == TREE_LOG.0 || tree.0 == TREE_RELOC.0
}

/// An object id that prints its fixed name if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Objectid(pub u64);

impl Objectid {
    /// Returns the kernel's name without `BTRFS_` and `_OBJECTID`, or `None` for an ordinary
    /// number.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            1 => "ROOT_TREE",
            2 => "EXTENT_TREE",
            3 => "CHUNK_TREE",
            4 => "DEV_TREE",
            5 => "FS_TREE",
            6 => "ROOT_TREE_DIR",
            7 => "CSUM_TREE",
            8 => "QUOTA_TREE",
            9 => "UUID_TREE",
            10 => "FREE_SPACE_TREE",
            11 => "BLOCK_GROUP_TREE",
            12 => "RAID_STRIPE_TREE",
            BALANCE => "BALANCE",
            ORPHAN => "ORPHAN",
            v if v == TREE_LOG.0 => "TREE_LOG",
            v if v == TREE_LOG_FIXUP.0 => "TREE_LOG_FIXUP",
            v if v == TREE_RELOC.0 => "TREE_RELOC",
            v if v == DATA_RELOC_TREE.0 => "DATA_RELOC_TREE",
            EXTENT_CSUM => "EXTENT_CSUM",
            FREE_SPACE => "FREE_SPACE",
            FREE_INO => "FREE_INO",
            MULTIPLE => "MULTIPLE",
            _ => return None,
        })
    }
}

impl std::fmt::Display for Objectid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => self.0.fmt(f),
        }
    }
}
