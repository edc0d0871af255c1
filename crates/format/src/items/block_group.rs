//! Block groups: a chunk's accounting, and the flags that chunks and block groups share.
//!
//! Owns [`BlockGroupFlags`] and [`BlockGroupItem`]. Sources: `struct btrfs_block_group_item`
//! (`include/uapi/linux/btrfs_tree.h`), `check_block_group_item` (`fs/btrfs/tree-checker.c`).

use crate::disk::disk_struct;
use crate::features::on_disk_flags;

bitflags::bitflags! {
    /// What a chunk holds and how it is spread over devices.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct BlockGroupFlags: u64 {
        /// File data.
        const DATA = 1 << 0;
        /// The chunk tree.
        const SYSTEM = 1 << 1;
        /// Tree blocks.
        const METADATA = 1 << 2;
        /// Striped, no redundancy.
        const RAID0 = 1 << 3;
        /// Two copies on two devices.
        const RAID1 = 1 << 4;
        /// Two copies on one device.
        const DUP = 1 << 5;
        /// Striped over pairs of copies.
        const RAID10 = 1 << 6;
        /// One parity stripe.
        const RAID5 = 1 << 7;
        /// Two parity stripes.
        const RAID6 = 1 << 8;
        /// Three copies on three devices.
        const RAID1C3 = 1 << 9;
        /// Four copies on four devices.
        const RAID1C4 = 1 << 10;
        const _ = !0;
    }
}
on_disk_flags!(BlockGroupFlags);

impl BlockGroupFlags {
    /// What may be stored.
    pub const TYPE_MASK: Self = Self::DATA.union(Self::SYSTEM).union(Self::METADATA);
    /// How it is spread; no bit means single.
    pub const PROFILE_MASK: Self = Self::RAID0
        .union(Self::RAID1)
        .union(Self::DUP)
        .union(Self::RAID10)
        .union(Self::RAID5)
        .union(Self::RAID6)
        .union(Self::RAID1C3)
        .union(Self::RAID1C4);
}

disk_struct! {
    /// One block group: key (logical start, BLOCK_GROUP_ITEM, length).
    pub struct BlockGroupItem as BlockGroupItemDisk = 24 {
        /// Bytes in use.
        pub used: u64,
        /// Always 256, the object id of chunks.
        pub chunk_objectid: u64,
        /// The chunk's flags.
        pub flags: BlockGroupFlags,
    }
}
