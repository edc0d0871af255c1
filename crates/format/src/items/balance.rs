//! A paused or interrupted balance, which the next mount resumes.
//!
//! Owns [`BalanceItem`] and [`BalanceArgs`]. Sources: `struct btrfs_balance_item`,
//! `btrfs_disk_balance_args` (`include/uapi/linux/btrfs_tree.h`), `BTRFS_BALANCE_*`
//! (`fs/btrfs/volumes.h`).

use crate::error::Corrupt;
use crate::features::on_disk_flags;
use crate::items::block_group::BlockGroupFlags;
use crate::key::Key;
use crate::objectid;
use crate::parse::disk_struct;
use crate::units::{DeviceId, LogicalAddress, PhysicalAddress};

bitflags::bitflags! {
    /// The block groups that a balance processes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct BalanceFlags: u64 {
        /// Data block groups.
        const DATA = 1 << 0;
        /// System block groups.
        const SYSTEM = 1 << 1;
        /// Metadata block groups.
        const METADATA = 1 << 2;
        /// The balance may reduce redundancy.
        const FORCE = 1 << 3;
        /// The balance is being resumed (in memory only).
        const RESUME = 1 << 4;
        const _ = !0;
    }

    /// The filters of [`BalanceArgs`] that are set.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct BalanceArgsFlags: u64 {
        /// `profiles`.
        const PROFILES = 1 << 0;
        /// `usage` as an upper bound.
        const USAGE = 1 << 1;
        /// `devid`.
        const DEVID = 1 << 2;
        /// `physical_start` and `physical_end`.
        const DRANGE = 1 << 3;
        /// `virtual_start` and `virtual_end`.
        const VRANGE = 1 << 4;
        /// `limit` as an upper bound.
        const LIMIT = 1 << 5;
        /// `limit` as a range.
        const LIMIT_RANGE = 1 << 6;
        /// `stripes_min` and `stripes_max`.
        const STRIPES_RANGE = 1 << 7;
        /// `target`: change the profile.
        const CONVERT = 1 << 8;
        /// With CONVERT, skip block groups that already have the profile.
        const SOFT = 1 << 9;
        /// `usage` as a range.
        const USAGE_RANGE = 1 << 10;
        const _ = !0;
    }
}
on_disk_flags!(BalanceFlags, BalanceArgsFlags);

disk_struct! {
    /// The filters for block groups of one type.
    pub struct BalanceArgs as BalanceArgsDisk = 136 {
        /// Profiles to process; single is bit 48 here (`BTRFS_AVAIL_ALLOC_BIT_SINGLE`).
        pub profiles: u64,
        /// Percent used: one number with USAGE, two 32-bit numbers with USAGE_RANGE.
        pub usage: u64,
        /// A device that the chunk must use.
        pub devid: DeviceId,
        /// Start of a range on that device.
        pub physical_start: PhysicalAddress,
        /// End of that range.
        pub physical_end: PhysicalAddress,
        /// Start of a range of logical addresses.
        pub virtual_start: LogicalAddress,
        /// End of that range.
        pub virtual_end: LogicalAddress,
        /// The profile to convert to, encoded as in [`BalanceArgs::profiles`].
        pub target: u64,
        /// The filters that are set.
        pub flags: BalanceArgsFlags,
        /// Number of chunks to process: one number with LIMIT, two 32-bit numbers with LIMIT_RANGE.
        pub limit: u64,
        /// Minimum number of stripes.
        pub stripes_min: u32,
        /// Maximum number of stripes.
        pub stripes_max: u32,
        /// Reserved.
        pub unused: [u64; 6],
    }
}

impl BalanceArgs {
    /// The bit for single where a profile needs a bit.
    pub const SINGLE: u64 = 1 << 48;

    /// Returns the minimum and maximum percentage used, if that filter is set.
    pub const fn usage_range(&self) -> Option<(u32, u32)> {
        if self.flags.contains(BalanceArgsFlags::USAGE_RANGE) {
            return Some((self.usage as u32, (self.usage >> 32) as u32));
        }
        if self.flags.contains(BalanceArgsFlags::USAGE) {
            return Some((0, self.usage as u32));
        }
        None
    }

    /// Returns the minimum and maximum number of chunks, if that filter is set.
    pub const fn limit_range(&self) -> Option<(u64, u64)> {
        if self.flags.contains(BalanceArgsFlags::LIMIT_RANGE) {
            return Some((self.limit & u32::MAX as u64, self.limit >> 32));
        }
        if self.flags.contains(BalanceArgsFlags::LIMIT) {
            return Some((0, self.limit));
        }
        None
    }

    /// Returns the profile to convert to, if the balance converts.
    pub fn convert_to(&self) -> Option<BlockGroupFlags> {
        self.flags
            .contains(BalanceArgsFlags::CONVERT)
            .then(|| BlockGroupFlags::from_bits_retain(self.target & !Self::SINGLE))
    }
}

disk_struct! {
    /// The balance, under key (BALANCE, TEMPORARY_ITEM, 0) in the root tree.
    pub struct BalanceItem as BalanceItemDisk = 448 {
        /// The block groups that the balance processes.
        pub flags: BalanceFlags,
        /// Filters for data block groups.
        pub data: BalanceArgs,
        /// Filters for metadata block groups.
        pub metadata: BalanceArgs,
        /// Filters for system block groups.
        pub system: BalanceArgs,
        /// Reserved.
        pub unused: [u64; 4],
    }
}

impl BalanceItem {
    /// Checks the item's key. The kernel checks the filters when it resumes the balance.
    ///
    /// # Errors
    /// Any key other than the balance's.
    pub fn validate(&self, key: &Key) -> Result<(), Corrupt> {
        if (key.objectid, key.offset) != (objectid::BALANCE, 0) {
            return Err(Corrupt::field("balance", "key offset", key.offset, "not (BALANCE, 0)"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::items::test_support::assert_fault;
    use crate::key::ItemType;

    #[test]
    fn items_round_trip() {
        crate::parse::assert_round_trip::<BalanceArgs>();
        crate::parse::assert_round_trip::<BalanceItem>();
    }

    #[test]
    fn filters_depend_on_flags() {
        let mut args = BalanceArgs::parse(&[0; 136]).unwrap();
        (args.usage, args.limit, args.target) = (90 << 32 | 10, 7 << 32 | 3, BalanceArgs::SINGLE);
        assert_eq!((args.usage_range(), args.limit_range(), args.convert_to()), (None, None, None));
        args.flags = BalanceArgsFlags::USAGE | BalanceArgsFlags::LIMIT | BalanceArgsFlags::CONVERT;
        assert_eq!(args.usage_range(), Some((0, 10)));
        assert_eq!(args.limit_range(), Some((0, 7 << 32 | 3)));
        assert_eq!(args.convert_to(), Some(BlockGroupFlags::empty()));
        args.flags = BalanceArgsFlags::USAGE_RANGE | BalanceArgsFlags::LIMIT_RANGE;
        assert_eq!(args.usage_range(), Some((10, 90)));
        assert_eq!(args.limit_range(), Some((3, 7)));
    }

    #[test]
    fn faults_are_detected() {
        let item = BalanceItem::parse(&[0; 448]).unwrap();
        let key = Key::new(objectid::BALANCE, ItemType::TEMPORARY_ITEM, 0);
        item.validate(&key).unwrap();
        assert_fault(item.validate(&Key { offset: 1, ..key }), "not (BALANCE, 0)");
    }
}
