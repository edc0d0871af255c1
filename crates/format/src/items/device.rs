//! Devices: their items, their allocated ranges and their statistics.
//!
//! Owns [`DeviceItem`] (chunk tree), [`DeviceExtent`] and [`DeviceStats`] (device tree). Sources:
//! `struct btrfs_dev_item`, `btrfs_dev_extent`, `btrfs_dev_stats_item`
//! (`include/uapi/linux/btrfs_tree.h`), `check_dev_item`, `check_dev_extent_item`
//! (`fs/btrfs/tree-checker.c`).

use crate::error::Corrupt;
use crate::geometry::Geometry;
use crate::key::Key;
use crate::objectid;
use crate::parse::disk_struct;
use crate::units::{DeviceId, Generation, LogicalAddress, TreeId};
use uuid::Uuid;

disk_struct! {
    /// One device, under key (DEV_ITEMS, DEV_ITEM, device id).
    pub struct DeviceItem as DeviceItemDisk = 98 {
        /// The device's number.
        pub devid: DeviceId,
        /// Size of the device in bytes.
        pub total_bytes: u64,
        /// Bytes allocated to chunks.
        pub bytes_used: u64,
        /// Optimal I/O alignment in bytes.
        pub io_align: u32,
        /// Optimal I/O width in bytes.
        pub io_width: u32,
        /// The sector size.
        pub sector_size: u32,
        /// Reserved (`type`).
        pub device_type: u64,
        /// Generation that added the device, or 0.
        pub generation: Generation,
        /// Start of allocation, unused.
        pub start_offset: u64,
        /// Reserved.
        pub dev_group: u32,
        /// Reserved.
        pub seek_speed: u8,
        /// Reserved.
        pub bandwidth: u8,
        /// The device's own UUID.
        pub uuid: Uuid,
        /// UUID of the file system that the device belongs to.
        pub fsid: Uuid,
    }
}

impl DeviceItem {
    /// Runs the checks of `check_dev_item`, given the item's key. A device that is being removed
    /// may have a size of 0.
    ///
    /// # Errors
    /// The first field that the format forbids.
    pub fn validate(&self, key: &Key) -> Result<(), Corrupt> {
        let bad = |field, value, why| Err(Corrupt::field("device item", field, value, why));
        if key.objectid != objectid::DEV_ITEMS {
            return bad("object id", key.objectid, "not 1");
        }
        if self.devid.0 != key.offset {
            return bad("devid", self.devid.0, "not the key's offset");
        }
        if self.bytes_used > self.total_bytes {
            return bad("bytes_used", self.bytes_used, "more than the device's size");
        }
        Ok(())
    }
}

disk_struct! {
    /// A range of a device that a chunk's stripe occupies, under key (device id, DEV_EXTENT,
    /// physical start).
    pub struct DeviceExtent as DeviceExtentDisk = 48 {
        /// Always 3, the chunk tree.
        pub chunk_tree: TreeId,
        /// Always 256, the object id of chunks.
        pub chunk_objectid: u64,
        /// Logical start of the chunk.
        pub chunk_offset: LogicalAddress,
        /// Length on the device in bytes.
        pub length: u64,
        /// UUID of the chunk tree.
        pub chunk_tree_uuid: Uuid,
    }
}

impl DeviceExtent {
    /// Runs the checks of `check_dev_extent_item`, given the item's key and the device extent right
    /// before it in the leaf.
    ///
    /// # Errors
    /// The first field that the format forbids.
    pub fn validate(
        &self,
        key: &Key,
        previous: Option<(&Key, &Self)>,
        geometry: &Geometry,
    ) -> Result<(), Corrupt> {
        let bad = |field, value, why| Err(Corrupt::field("device extent", field, value, why));
        let sector_size = u64::from(geometry.sector_size);
        if self.chunk_tree != objectid::CHUNK_TREE {
            return bad("chunk_tree", self.chunk_tree.0, "not 3");
        }
        if self.chunk_objectid != objectid::FIRST_CHUNK_TREE {
            return bad("chunk_objectid", self.chunk_objectid, "not 256");
        }
        if !key.offset.is_multiple_of(sector_size) {
            return bad("physical start", key.offset, "not a multiple of the sector size");
        }
        if !self.chunk_offset.is_aligned(sector_size) {
            return bad("chunk_offset", self.chunk_offset.0, "not a multiple of the sector size");
        }
        if self.length == 0 || !self.length.is_multiple_of(sector_size) {
            return bad("length", self.length, "not a positive multiple of the sector size");
        }
        if key.offset.checked_add(self.length).is_none() {
            return bad("length", self.length, "reaches past the end of the address space");
        }
        if let Some((before, extent)) = previous
            && before.objectid == key.objectid
            && before.offset.checked_add(extent.length).is_none_or(|end| end > key.offset)
        {
            return bad("physical start", key.offset, "overlaps the device extent before it");
        }
        Ok(())
    }
}

/// Error counters of a device, under key (DEV_STATS, PERSISTENT_ITEM, device id). An older kernel
/// may have written fewer counters, a newer one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceStats<'a> {
    bytes: &'a [u8],
}

/// A counter of [`DeviceStats`]; the number is its index (`enum btrfs_dev_stat_values`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceStat {
    /// Failed writes.
    WriteErrors = 0,
    /// Failed reads.
    ReadErrors = 1,
    /// Failed flushes.
    FlushErrors = 2,
    /// Blocks with a wrong checksum or header.
    CorruptionErrors = 3,
    /// Tree blocks with an unexpected generation: lost writes.
    GenerationErrors = 4,
}

impl DeviceStat {
    /// All counters that a 6.18 kernel writes, in order.
    pub const ALL: [Self; 5] = [
        Self::WriteErrors,
        Self::ReadErrors,
        Self::FlushErrors,
        Self::CorruptionErrors,
        Self::GenerationErrors,
    ];

    /// Returns the name that `btrfs device stats` prints.
    pub const fn name(self) -> &'static str {
        match self {
            Self::WriteErrors => "write_io_errs",
            Self::ReadErrors => "read_io_errs",
            Self::FlushErrors => "flush_io_errs",
            Self::CorruptionErrors => "corruption_errs",
            Self::GenerationErrors => "generation_errs",
        }
    }
}

impl<'a> DeviceStats<'a> {
    /// Decodes the counters.
    ///
    /// # Errors
    /// A size that is not a multiple of 8.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Corrupt> {
        if !bytes.len().is_multiple_of(8) {
            let size = bytes.len() as u64;
            return Err(Corrupt::field("device statistics", "size", size, "not a multiple of 8"));
        }
        Ok(Self { bytes })
    }

    /// Returns the counters, in the order of [`DeviceStat::ALL`].
    pub fn values(&self) -> impl ExactSizeIterator<Item = u64> + 'a {
        self.bytes.chunks_exact(8).map(|value| u64::from_le_bytes(value.try_into().expect("8 bytes")))
    }

    /// Returns one counter, or 0 if the item is too short to hold it.
    pub fn get(&self, stat: DeviceStat) -> u64 {
        self.values().nth(stat as usize).unwrap_or(0)
    }

    /// Encodes counters.
    pub fn encode(values: &[u64]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::items::test_support::{assert_fault, geometry};
    use crate::key::ItemType;
    use proptest::prelude::*;

    fn extent(length: u64) -> DeviceExtent {
        DeviceExtent {
            chunk_tree: objectid::CHUNK_TREE,
            chunk_objectid: 256,
            chunk_offset: LogicalAddress(1 << 30),
            length,
            chunk_tree_uuid: Uuid::nil(),
        }
    }

    #[test]
    fn items_round_trip() {
        crate::parse::assert_round_trip::<DeviceItem>();
        crate::parse::assert_round_trip::<DeviceExtent>();
    }

    #[test]
    fn device_item_faults_are_detected() {
        let key = Key::new(1, ItemType::DEV_ITEM, 3);
        let mut item = DeviceItem::parse(&[0; 98]).unwrap();
        item.devid = DeviceId(3);
        (item.total_bytes, item.bytes_used) = (10, 10);
        item.validate(&key).unwrap();
        assert_fault(item.validate(&Key { objectid: 2, ..key }), "not 1");
        assert_fault(item.validate(&Key { offset: 2, ..key }), "not the key's offset");
        item.bytes_used = 11;
        assert_fault(item.validate(&key), "more than the device's size");
    }

    #[test]
    fn device_extent_faults_are_detected() {
        let geometry = geometry();
        let key = Key::new(1, ItemType::DEV_EXTENT, 1 << 20);
        let good = extent(1 << 20);
        good.validate(&key, None, &geometry).unwrap();
        let with = |extent: DeviceExtent, why| assert_fault(extent.validate(&key, None, &geometry), why);
        with(DeviceExtent { chunk_tree: TreeId(2), ..good }, "not 3");
        with(DeviceExtent { chunk_objectid: 1, ..good }, "not 256");
        with(DeviceExtent { chunk_offset: LogicalAddress(1), ..good }, "chunk_offset");
        with(extent(4095), "positive multiple");
        with(extent(0), "positive multiple");
        with(extent(0u64.wrapping_sub(4096)), "past the end of the address space");
        let off = Key { offset: 1, ..key };
        assert_fault(good.validate(&off, None, &geometry), "physical start");

        let before = Key { offset: 0, ..key };
        good.validate(&key, Some((&before, &good)), &geometry).unwrap();
        let long = extent((1 << 20) + 4096);
        assert_fault(
            good.validate(&key, Some((&before, &long)), &geometry),
            "overlaps the device extent before it",
        );
        let other = Key { objectid: 0, ..before };
        good.validate(&key, Some((&other, &long)), &geometry).unwrap();
    }

    #[test]
    fn statistics_may_be_short() {
        let bytes = DeviceStats::encode(&[1, 2]);
        let stats = DeviceStats::parse(&bytes).unwrap();
        assert_eq!(DeviceStat::ALL.map(|stat| stats.get(stat)), [1, 2, 0, 0, 0]);
        assert_fault(DeviceStats::parse(&[0; 39]), "multiple of 8");
    }

    proptest! {
        #[test]
        fn statistics_round_trip(values in prop::collection::vec(any::<u64>(), 0..9)) {
            let bytes = DeviceStats::encode(&values);
            let parsed: Vec<_> = DeviceStats::parse(&bytes).unwrap().values().collect();
            prop_assert_eq!(parsed, values);
        }
    }
}
