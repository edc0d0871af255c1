//! Block groups: a chunk's space accounting, and the flags that chunks and block groups share.
//!
//! Owns [`BlockGroupFlags`] and [`BlockGroupItem`]. Sources: `struct btrfs_block_group_item`
//! (`include/uapi/linux/btrfs_tree.h`), `check_block_group_item` (`fs/btrfs/tree-checker.c`).

use crate::error::Corrupt;
use crate::features::{IncompatFeatures, on_disk_flags};
use crate::geometry::Geometry;
use crate::key::Key;
use crate::objectid;
use crate::parse::disk_struct;

bitflags::bitflags! {
    /// The content type of a chunk, and its profile.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct BlockGroupFlags: u64 {
        /// File data.
        const DATA = 1 << 0;
        /// The chunk tree.
        const SYSTEM = 1 << 1;
        /// Tree blocks.
        const METADATA = 1 << 2;
        /// Striped, without redundancy.
        const RAID0 = 1 << 3;
        /// Two copies on two devices.
        const RAID1 = 1 << 4;
        /// Two copies on one device.
        const DUP = 1 << 5;
        /// Striped over mirrored pairs.
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
    /// The content type bits.
    pub const TYPE_MASK: Self = Self::DATA.union(Self::SYSTEM).union(Self::METADATA);
    /// The profile bits; none means single.
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
    /// One block group, under key (logical start, BLOCK_GROUP_ITEM, length).
    pub struct BlockGroupItem as BlockGroupItemDisk = 24 {
        /// Bytes in use.
        pub used: u64,
        /// Always 256, the object id of chunks.
        pub chunk_objectid: u64,
        /// The chunk's flags.
        pub flags: BlockGroupFlags,
    }
}

impl BlockGroupItem {
    /// Runs the checks of `check_block_group_item`, given the item's key. Like the kernel, it
    /// leaves alignment to the allocator.
    ///
    /// # Errors
    /// The first field that the format forbids.
    pub fn validate(&self, key: &Key, geometry: &Geometry) -> Result<(), Corrupt> {
        let bad = |field, value, why| Err(Corrupt::field("block group", field, value, why));
        if key.offset == 0 {
            return bad("length", 0, "not at least 1");
        }
        if key.objectid.checked_add(key.offset).is_none() {
            return bad("length", key.offset, "reaches past the end of the address space");
        }
        // With EXTENT_TREE_V2 the field holds the number of a global root instead.
        if !geometry.incompat.contains(IncompatFeatures::EXTENT_TREE_V2)
            && self.chunk_objectid != objectid::FIRST_CHUNK_TREE
        {
            return bad("chunk_objectid", self.chunk_objectid, "not 256");
        }
        if self.used > key.offset {
            return bad("used", self.used, "more than the block group's length");
        }
        if self.flags.intersection(BlockGroupFlags::PROFILE_MASK).bits().count_ones() > 1 {
            return bad("flags", self.flags.bits(), "more than one profile");
        }
        let mixed = BlockGroupFlags::DATA.union(BlockGroupFlags::METADATA);
        match self.flags.intersection(BlockGroupFlags::TYPE_MASK) {
            BlockGroupFlags::DATA | BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM => Ok(()),
            kind if kind == mixed => Ok(()),
            _ => bad("flags", self.flags.bits(), "not one of data, metadata and system"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::items::test_support::{assert_fault, geometry};
    use crate::key::ItemType;

    const KEY: Key = Key::new(1 << 20, ItemType::BLOCK_GROUP_ITEM, 1 << 20);
    const GOOD: BlockGroupItem =
        BlockGroupItem { used: 1 << 20, chunk_objectid: 256, flags: BlockGroupFlags::METADATA };

    #[test]
    fn items_round_trip() {
        crate::parse::assert_round_trip::<BlockGroupItem>();
    }

    #[test]
    fn faults_are_detected() {
        let mut geometry = geometry();
        geometry.incompat.remove(IncompatFeatures::EXTENT_TREE_V2);
        GOOD.validate(&KEY, &geometry).unwrap();
        let mixed = BlockGroupFlags::DATA | BlockGroupFlags::METADATA | BlockGroupFlags::DUP;
        BlockGroupItem { flags: mixed, ..GOOD }.validate(&KEY, &geometry).unwrap();

        let with = |item: BlockGroupItem, key: Key, why| assert_fault(item.validate(&key, &geometry), why);
        with(GOOD, Key { offset: 0, ..KEY }, "at least 1");
        with(GOOD, Key { offset: u64::MAX, ..KEY }, "past the end of the address space");
        with(BlockGroupItem { chunk_objectid: 255, ..GOOD }, KEY, "not 256");
        with(BlockGroupItem { used: (1 << 20) + 1, ..GOOD }, KEY, "more than the block group's length");
        let two = BlockGroupFlags::DATA | BlockGroupFlags::RAID1 | BlockGroupFlags::DUP;
        with(BlockGroupItem { flags: two, ..GOOD }, KEY, "more than one profile");
        for kind in [BlockGroupFlags::empty(), BlockGroupFlags::DATA | BlockGroupFlags::SYSTEM] {
            with(BlockGroupItem { flags: kind, ..GOOD }, KEY, "not one of data, metadata and system");
        }
    }
}
