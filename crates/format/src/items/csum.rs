//! Data checksums: one per sector of a range of the logical address space.
//!
//! Owns the view [`CsumItem`]. Sources: `fs/btrfs/file-item.c`, `check_csum_item`
//! (`fs/btrfs/tree-checker.c`).

use crate::checksum::{Checksum, ChecksumType};
use crate::error::Corrupt;
use crate::geometry::Geometry;
use crate::item_context::ItemContext;
use crate::key::{ItemType, Key};
use crate::objectid;
use crate::units::LogicalAddress;

/// The checksums of one item, under key (EXTENT_CSUM, EXTENT_CSUM, address of the first sector).
#[derive(Clone, Copy, Debug)]
pub struct CsumItem<'a> {
    start: LogicalAddress,
    sums: &'a [u8],
    checksum_type: ChecksumType,
    sector_size: u32,
}

impl<'a> CsumItem<'a> {
    /// Views the item under `key`.
    ///
    /// # Errors
    /// A size that is not a whole number of checksums, an unaligned address, or a range past the
    /// end of the address space.
    pub fn parse(key: &Key, data: &'a [u8], geometry: &Geometry) -> Result<Self, Corrupt> {
        let bad = |field, value, why| Err(Corrupt::field("checksum item", field, value, why));
        let item = Self {
            start: LogicalAddress(key.offset),
            sums: data,
            checksum_type: geometry.checksum_type,
            sector_size: geometry.sector_size,
        };
        if !item.start.is_aligned(geometry.sector_size.into()) {
            return bad("key.offset", key.offset, "not a multiple of the sector size");
        }
        if !data.len().is_multiple_of(geometry.checksum_type.size()) {
            return bad("size", data.len() as u64, "not a multiple of the checksum size");
        }
        if item.start.checked_add(item.length()).is_none() {
            return bad("key.offset", key.offset, "reaches past the end of the address space");
        }
        Ok(item)
    }

    /// Returns the key of an item whose first sector is at `start`.
    pub const fn key(start: LogicalAddress) -> Key {
        Key::new(objectid::EXTENT_CSUM, ItemType::EXTENT_CSUM, start.0)
    }

    /// Returns the first sector's address.
    pub const fn start(&self) -> LogicalAddress {
        self.start
    }

    /// Returns the number of sectors covered.
    pub const fn sectors(&self) -> usize {
        self.sums.len() / self.checksum_type.size()
    }

    /// Returns the covered bytes of the address space.
    pub const fn length(&self) -> u64 {
        self.sectors() as u64 * self.sector_size as u64
    }

    /// Returns the address after the last sector.
    pub const fn end(&self) -> LogicalAddress {
        // Cannot overflow: `parse` refuses such an item.
        LogicalAddress(self.start.0 + self.length())
    }

    /// Returns all checksums, one after the other.
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.sums
    }

    /// Returns the checksums of up to `count` sectors, beginning with the one that holds `address`,
    /// or fewer if the item ends. Returns `None` if the item does not cover `address`.
    pub fn sums_from(&self, address: LogicalAddress, count: usize) -> Option<&'a [u8]> {
        let sector =
            usize::try_from(address.checked_since(self.start)? / u64::from(self.sector_size)).ok()?;
        if sector >= self.sectors() {
            return None;
        }
        let size = self.checksum_type.size();
        let end = sector.saturating_add(count).min(self.sectors());
        Some(&self.sums[sector * size..end * size])
    }

    /// Returns the checksum of the sector that holds `address`, or `None` if the item does not
    /// cover it.
    pub fn sum_at(&self, address: LogicalAddress) -> Option<Checksum> {
        Some(self.checksum_type.stored(self.sums_from(address, 1)?))
    }
}

/// Runs the checks of `check_csum_item`.
pub(crate) fn validate(context: &ItemContext<'_>) -> Result<(), Corrupt> {
    let bad = |field, value, why| Err(Corrupt::field("checksum item", field, value, why));
    if context.key.objectid != objectid::EXTENT_CSUM {
        return bad("key.objectid", context.key.objectid, "not EXTENT_CSUM");
    }
    let item = CsumItem::parse(&context.key, context.data, context.geometry)?;
    if let Some((key, data)) = context.previous
        && key.item_type == ItemType::EXTENT_CSUM
        && CsumItem::parse(&key, data, context.geometry)?.end() > item.start()
    {
        return bad("key.offset", context.key.offset, "overlaps the item before it");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree_check::test_support::{check, check_in, fault, geometry};

    #[test]
    fn checksums_are_found_by_address() {
        let data: Vec<u8> = (0..12).collect();
        let start = LogicalAddress(1 << 20);
        let item = CsumItem::parse(&CsumItem::key(start), &data, &geometry()).unwrap();
        assert_eq!((item.sectors(), item.length()), (3, 12288));
        assert_eq!(item.end(), LogicalAddress((1 << 20) + 12288));
        let at = |offset: u64| item.sum_at(LogicalAddress(start.0 + offset));
        assert_eq!(at(0).unwrap().as_bytes(), [0, 1, 2, 3]);
        assert_eq!(at(8191).unwrap().as_bytes(), [4, 5, 6, 7]);
        assert_eq!(at(12288), None);
        assert_eq!(item.sum_at(LogicalAddress(start.0 - 1)), None);
        let from = |offset: u64, count| item.sums_from(LogicalAddress(start.0 + offset), count);
        assert_eq!(from(4096, usize::MAX), Some(&data[4..]));
        assert_eq!(from(4096, 1), Some(&data[4..8]));
    }

    #[test]
    fn each_check_detects_its_fault() {
        let at = |address| CsumItem::key(LogicalAddress(address));
        assert_eq!(check(at(4096), &[0; 8]), Ok(()));
        assert_eq!(fault(check(at(4097), &[0; 8])), "key.offset");
        assert_eq!(fault(check(at(4096), &[0; 9])), "size");
        assert_eq!(fault(check(Key::new(1, ItemType::EXTENT_CSUM, 4096), &[0; 8])), "key.objectid");
        assert_eq!(fault(check(at(u64::MAX - 4095), &[0; 8])), "key.offset");
        let previous = Some((at(4096), &[0; 8][..]));
        assert_eq!(check_in(objectid::CSUM_TREE, previous, at(12288), &[0; 4]), Ok(()));
        assert_eq!(fault(check_in(objectid::CSUM_TREE, previous, at(8192), &[0; 4])), "key.offset");
    }
}
