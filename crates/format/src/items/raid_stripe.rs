//! The RAID stripe tree: the device locations of logical ranges, for zoned RAID.
//!
//! Owns [`RaidStripeItem`] and [`RaidStride`]. Sources: `struct btrfs_stripe_extent`,
//! `btrfs_raid_stride` (`include/uapi/linux/btrfs_tree.h`), `fs/btrfs/raid-stripe-tree.c`,
//! `check_raid_stripe_extent` (`fs/btrfs/tree-checker.c`).

use crate::error::Corrupt;
use crate::features::IncompatFeatures;
use crate::geometry::Geometry;
use crate::key::Key;
use crate::parse::disk_struct;
use crate::units::{DeviceId, PhysicalAddress};

disk_struct! {
    /// One location of the range.
    pub struct RaidStride as RaidStrideDisk = 16 {
        /// The device.
        pub devid: DeviceId,
        /// Byte offset on the device.
        pub physical: PhysicalAddress,
    }
}

/// The locations of one range, under key (logical start, RAID_STRIPE, bytes) in the RAID stripe
/// tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaidStripeItem<'a> {
    bytes: &'a [u8],
}

impl<'a> RaidStripeItem<'a> {
    /// Decodes the item.
    ///
    /// # Errors
    /// An empty item, or a size that is not a multiple of 16.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Corrupt> {
        if bytes.is_empty() || !bytes.len().is_multiple_of(RaidStride::SIZE) {
            let size = bytes.len() as u64;
            return Err(Corrupt::field("raid stripe", "size", size, "not a positive multiple of 16"));
        }
        Ok(Self { bytes })
    }

    /// Returns the locations, at least one.
    pub fn strides(&self) -> impl ExactSizeIterator<Item = RaidStride> + 'a {
        self.bytes.chunks_exact(RaidStride::SIZE).map(|stride| RaidStride::parse(stride).expect("16 bytes"))
    }

    /// Encodes an item with these locations.
    pub fn encode(strides: &[RaidStride]) -> Vec<u8> {
        strides.iter().flat_map(RaidStride::to_bytes).collect()
    }

    /// Runs the checks of `check_raid_stripe_extent`, given the item's key.
    ///
    /// # Errors
    /// The first violation of the format.
    pub fn validate(&self, key: &Key, geometry: &Geometry) -> Result<(), Corrupt> {
        let bad = |field, value, why| Err(Corrupt::field("raid stripe", field, value, why));
        let sector_size = u64::from(geometry.sector_size);
        if !geometry.incompat.contains(IncompatFeatures::RAID_STRIPE_TREE) {
            return bad("item type", key.item_type.0.into(), "not allowed without RAID_STRIPE_TREE");
        }
        if !key.objectid.is_multiple_of(sector_size) {
            return bad("address", key.objectid, "not a multiple of the sector size");
        }
        if key.offset == 0 || !key.offset.is_multiple_of(sector_size) {
            return bad("length", key.offset, "not a positive multiple of the sector size");
        }
        if key.objectid.checked_add(key.offset).is_none() {
            return bad("length", key.offset, "reaches past the end of the address space");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::items::test_support::{assert_fault, geometry};
    use crate::key::ItemType;
    use proptest::prelude::*;

    #[test]
    fn strides_round_trip() {
        crate::parse::assert_round_trip::<RaidStride>();
    }

    #[test]
    fn faults_are_detected() {
        let key = Key::new(1 << 20, ItemType::RAID_STRIPE, 4096);
        let item = RaidStripeItem::parse(&[0; 32]).unwrap();
        item.validate(&key, &geometry()).unwrap();
        let with = |key: Key, why| assert_fault(item.validate(&key, &geometry()), why);
        with(Key { objectid: 1, ..key }, "address");
        with(Key { offset: 0, ..key }, "positive multiple of the sector size");
        with(Key { offset: 1, ..key }, "positive multiple of the sector size");
        with(Key { offset: 0u64.wrapping_sub(4096), ..key }, "past the end of the address space");
        let mut without = geometry();
        without.incompat.remove(IncompatFeatures::RAID_STRIPE_TREE);
        assert_fault(item.validate(&key, &without), "without RAID_STRIPE_TREE");
        assert_fault(RaidStripeItem::parse(&[]), "positive multiple of 16");
        assert_fault(RaidStripeItem::parse(&[0; 17]), "positive multiple of 16");
    }

    proptest! {
        #[test]
        fn items_round_trip(strides in prop::collection::vec(any::<(u64, u64)>(), 1..6)) {
            let strides: Vec<_> = strides.into_iter()
                .map(|(devid, physical)| RaidStride { devid: devid.into(), physical: physical.into() })
                .collect();
            let bytes = RaidStripeItem::encode(&strides);
            prop_assert_eq!(RaidStripeItem::parse(&bytes).unwrap().strides().collect::<Vec<_>>(), strides);
        }
    }
}
