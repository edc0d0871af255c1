//! The free-space tree: the free parts of each block group, as extents or as bitmaps.
//!
//! Owns [`FreeSpaceInfo`], [`FreeSpaceBitmap`] and the checks of the tree's keys. Sources: `struct
//! btrfs_free_space_info` (`include/uapi/linux/btrfs_tree.h`), `fs/btrfs/free-space-tree.c`,
//! `check_free_space_info`, `check_free_space_extent` and `check_free_space_bitmap`
//! (`fs/btrfs/tree-checker.c` of 7.0).
//!
//! Each block group has one FREE_SPACE_INFO item (start, .., length), followed by one of:
//! - FREE_SPACE_EXTENT items (start, .., bytes), empty, one per free range;
//! - FREE_SPACE_BITMAP items (start, .., bytes) that cover the whole group, 2048 sectors each
//!   except the last.

use crate::error::Corrupt;
use crate::geometry::Geometry;
use crate::items::bitmap::{BitRun, BitRuns, set_run};
use crate::key::{ItemType, Key};
use crate::parse::disk_struct;
use crate::units::LogicalAddress;
use zerocopy::little_endian::U32;

/// Sectors per bitmap item, except a block group's last (`BTRFS_FREE_SPACE_BITMAP_BITS`).
pub const BITMAP_SECTORS: u64 = 256 * 8;

bitflags::bitflags! {
    /// The representation of a block group's free space.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct FreeSpaceFlags: u32 {
        /// Bitmaps instead of extents.
        const USING_BITMAPS = 1 << 0;
        const _ = !0;
    }
}

impl crate::disk::OnDisk for FreeSpaceFlags {
    type Disk = U32;
    fn from_disk(disk: &U32) -> Self {
        Self::from_bits_retain(disk.get())
    }
    fn to_disk(&self) -> U32 {
        U32::new(self.bits())
    }
}

disk_struct! {
    /// Summary of one block group's free space, under key (block group's start, FREE_SPACE_INFO,
    /// its length).
    pub struct FreeSpaceInfo as FreeSpaceInfoDisk = 8 {
        /// Number of free ranges: extents, or runs of set bits.
        pub extent_count: u32,
        /// Their representation.
        pub flags: FreeSpaceFlags,
    }
}

impl FreeSpaceInfo {
    /// Checks the item, given its key.
    ///
    /// # Errors
    /// The first field that the format forbids.
    pub fn validate(&self, key: &Key, geometry: &Geometry) -> Result<(), Corrupt> {
        let what = "free space info";
        check_range(what, key, geometry)?;
        let unknown = self.flags.difference(FreeSpaceFlags::USING_BITMAPS);
        if !unknown.is_empty() {
            return Err(Corrupt::field(what, "flags", self.flags.bits().into(), "unknown bits"));
        }
        if u64::from(self.extent_count) > key.offset / u64::from(geometry.sector_size) {
            return Err(Corrupt::field(
                what,
                "extent_count",
                self.extent_count.into(),
                "more than the block group's sectors",
            ));
        }
        Ok(())
    }
}

/// Checks start and length: whole sectors, at least one, within the address space.
fn check_range(what: &'static str, key: &Key, geometry: &Geometry) -> Result<(), Corrupt> {
    let bad = |field, value, why| Err(Corrupt::field(what, field, value, why));
    let sector_size = u64::from(geometry.sector_size);
    if !key.objectid.is_multiple_of(sector_size) {
        return bad("start", key.objectid, "not a multiple of the sector size");
    }
    if key.offset == 0 || !key.offset.is_multiple_of(sector_size) {
        return bad("length", key.offset, "not a positive multiple of the sector size");
    }
    if key.objectid.checked_add(key.offset).is_none() {
        return bad("length", key.offset, "reaches past the end of the address space");
    }
    Ok(())
}

/// Checks a FREE_SPACE_EXTENT or FREE_SPACE_BITMAP item, given the preceding key in the leaf: its
/// range, its size, and that it does not overlap the preceding range.
///
/// # Errors
/// The first violation of the format.
///
/// # Panics
/// If the key has another type.
pub fn check_free_space_item(
    key: &Key,
    bytes: &[u8],
    previous: Option<&Key>,
    geometry: &Geometry,
) -> Result<(), Corrupt> {
    let what = match key.item_type {
        ItemType::FREE_SPACE_EXTENT => "free space extent",
        ItemType::FREE_SPACE_BITMAP => "free space bitmap",
        other => panic!("{other} is not a free-space item"),
    };
    check_range(what, key, geometry)?;
    let expected = if key.item_type == ItemType::FREE_SPACE_EXTENT {
        0
    } else {
        bitmap_size(key.offset / u64::from(geometry.sector_size))
    };
    if bytes.len() as u64 != expected {
        let expected = usize::try_from(expected).unwrap_or(usize::MAX);
        return Err(Corrupt::WrongSize { what, expected, found: bytes.len() });
    }
    let overlaps = previous.is_some_and(|previous| {
        matches!(previous.item_type, ItemType::FREE_SPACE_EXTENT | ItemType::FREE_SPACE_BITMAP)
            && previous.objectid.checked_add(previous.offset).is_none_or(|end| end > key.objectid)
    });
    if overlaps {
        return Err(Corrupt::field(what, "start", key.objectid, "overlaps the range before it"));
    }
    Ok(())
}

/// Returns the size in bytes of a bitmap of `sectors` sectors.
const fn bitmap_size(sectors: u64) -> u64 {
    sectors.div_ceil(8)
}

/// A view of one bitmap, under key (start, FREE_SPACE_BITMAP, bytes covered).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSpaceBitmap<'a> {
    start: LogicalAddress,
    sectors: u64,
    bits: &'a [u8],
}

impl<'a> FreeSpaceBitmap<'a> {
    /// Views the bitmap of an item.
    ///
    /// # Errors
    /// As [`check_free_space_item`].
    pub fn parse(key: &Key, bytes: &'a [u8], geometry: &Geometry) -> Result<Self, Corrupt> {
        check_free_space_item(key, bytes, None, geometry)?;
        let sectors = key.offset / u64::from(geometry.sector_size);
        Ok(Self { start: LogicalAddress(key.objectid), sectors, bits: bytes })
    }

    /// Returns the address of the first sector.
    pub const fn start(&self) -> LogicalAddress {
        self.start
    }

    /// Returns the number of sectors covered.
    pub const fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Returns the free runs, in sectors from [`FreeSpaceBitmap::start`]. Padding bits behind the
    /// last sector do not count.
    pub fn free_runs(&self) -> BitRuns<'a> {
        BitRuns::new(self.bits, self.sectors)
    }

    /// Returns the item's bytes.
    pub const fn to_bytes(&self) -> &'a [u8] {
        self.bits
    }

    /// Encodes a bitmap of `sectors` sectors in which the given runs are free.
    ///
    /// # Panics
    /// If a run reaches past the bitmap's last byte.
    pub fn encode(sectors: u64, free: impl IntoIterator<Item = BitRun>) -> Vec<u8> {
        let mut bytes = vec![0; bitmap_size(sectors) as usize];
        free.into_iter().for_each(|run| set_run(&mut bytes, run, true));
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::items::test_support::{assert_fault, geometry};
    use proptest::prelude::*;

    const INFO: Key = Key::new(1 << 20, ItemType::FREE_SPACE_INFO, 1 << 20);
    const EXTENT: Key = Key::new(1 << 20, ItemType::FREE_SPACE_EXTENT, 8192);
    const BITMAP: Key = Key::new(1 << 20, ItemType::FREE_SPACE_BITMAP, 9 * 4096);

    #[test]
    fn items_round_trip() {
        crate::parse::assert_round_trip::<FreeSpaceInfo>();
    }

    #[test]
    fn info_faults_are_detected() {
        let good = FreeSpaceInfo { extent_count: 256, flags: FreeSpaceFlags::USING_BITMAPS };
        good.validate(&INFO, &geometry()).unwrap();
        let with = |info: FreeSpaceInfo, key: Key, why| assert_fault(info.validate(&key, &geometry()), why);
        with(good, Key { objectid: 1, ..INFO }, "multiple of the sector size");
        with(good, Key { offset: 0, ..INFO }, "positive multiple");
        with(good, Key { offset: 4097, ..INFO }, "positive multiple");
        with(good, Key { objectid: 0u64.wrapping_sub(4096), ..INFO }, "past the end of the address space");
        with(FreeSpaceInfo { extent_count: 257, ..good }, INFO, "sectors");
        with(FreeSpaceInfo { flags: FreeSpaceFlags::from_bits_retain(2), ..good }, INFO, "unknown bits");
    }

    #[test]
    fn range_faults_are_detected() {
        let check = |key: Key, bytes: &[u8]| check_free_space_item(&key, bytes, None, &geometry());
        check(EXTENT, &[]).unwrap();
        check(BITMAP, &[0; 2]).unwrap();
        assert!(matches!(check(EXTENT, &[0]), Err(Corrupt::WrongSize { expected: 0, .. })));
        assert!(matches!(check(BITMAP, &[0]), Err(Corrupt::WrongSize { expected: 2, .. })));
        assert!(matches!(check(BITMAP, &[0; 3]), Err(Corrupt::WrongSize { expected: 2, .. })));
        assert_fault(check(Key { objectid: 1, ..EXTENT }, &[]), "multiple of the sector size");
        assert_fault(check(Key { offset: 0, ..EXTENT }, &[]), "positive multiple");
        assert_fault(check(Key { offset: 100, ..BITMAP }, &[0]), "positive multiple");

        let after = |previous: Key| check_free_space_item(&EXTENT, &[], Some(&previous), &geometry());
        after(Key { objectid: EXTENT.objectid - 8192, ..EXTENT }).unwrap();
        assert_fault(
            after(Key { objectid: EXTENT.objectid - 4096, ..EXTENT }),
            "overlaps the range before it",
        );
        assert_fault(
            after(Key { objectid: EXTENT.objectid - 4096, ..BITMAP }),
            "overlaps the range before it",
        );
        after(INFO).unwrap();
    }

    #[test]
    fn padding_bits_are_not_free() {
        let bitmap = FreeSpaceBitmap::parse(&BITMAP, &[0xff; 2], &geometry()).unwrap();
        assert_eq!(bitmap.free_runs().collect::<Vec<_>>(), [BitRun { start: 0, length: 9 }]);
    }

    proptest! {
        #[test]
        fn bitmaps_round_trip(bytes in prop::collection::vec(any::<u8>(), 1..=256)) {
            let key = Key { offset: bytes.len() as u64 * 8 * 4096, ..BITMAP };
            let bitmap = FreeSpaceBitmap::parse(&key, &bytes, &geometry()).unwrap();
            let encoded = FreeSpaceBitmap::encode(bitmap.sectors(), bitmap.free_runs());
            prop_assert_eq!(&encoded, &bytes);
            prop_assert_eq!(bitmap.to_bytes(), &bytes);
        }
    }
}
