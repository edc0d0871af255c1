//! The v1 free-space cache: a block group's free space in a hidden file of the root tree.
//!
//! Owns [`FreeSpaceHeader`], the item that names the file, and [`FreeSpaceCache`], the file's
//! content. Sources: `struct btrfs_free_space_header`, `btrfs_free_space_entry`
//! (`include/uapi/linux/btrfs_tree.h`), `__load_free_space_cache`, `__btrfs_write_out_cache` and
//! the `io_ctl_*` functions (`fs/btrfs/free-space-cache.c`).
//!
//! The file consists of pages of the size used by the machine that wrote it. The cache is only used
//! if that is the sector size. The layout:
//!
//! ```text
//! page 0        crc32c of each page, u32 each   pages * 4 bytes
//!               generation                      8 bytes, as in the header item
//!               entries                         17 bytes each, none across pages, then padding
//! page 1..      entries, from the page's start
//! then          a page of bits for each bitmap entry, in their order; a bit is a sector
//! then          padding, whole pages
//! ```
//!
//! The checksum of page 0 covers the bytes after the checksums; every other checksum covers its
//! whole page. The content is only a cache: if anything is wrong, readers ignore it and use the
//! extent tree.

use crate::checksum::ChecksumType;
use crate::error::Corrupt;
use crate::items::bitmap::BitRuns;
use crate::key::{ItemType, Key};
use crate::parse::disk_struct;
use crate::units::{Generation, LogicalAddress};

disk_struct! {
    /// Names the file of a block group's cache, under key (FREE_SPACE, 0, block group's start) in
    /// the root tree.
    pub struct FreeSpaceHeader as FreeSpaceHeaderDisk = 41 {
        /// Key of the file's inode: (inode, INODE_ITEM, 0) in the root tree.
        pub location: Key,
        /// The transaction that wrote the file; a file with another generation is stale.
        pub generation: Generation,
        /// Number of entries, including those of bitmaps.
        pub num_entries: u64,
        /// Number of bitmaps.
        pub num_bitmaps: u64,
    }
}

impl FreeSpaceHeader {
    /// Checks the item.
    ///
    /// # Errors
    /// A location that is not an inode's key, or more bitmaps than entries.
    pub fn validate(&self) -> Result<(), Corrupt> {
        let bad = |field, value, why| Err(Corrupt::field("free space header", field, value, why));
        if self.location.item_type != ItemType::INODE_ITEM || self.location.offset != 0 {
            return bad("location", self.location.item_type.0.into(), "not an inode's key");
        }
        if self.num_bitmaps > self.num_entries {
            return bad("num_bitmaps", self.num_bitmaps, "more than the entries");
        }
        Ok(())
    }
}

disk_struct! {
    /// One free range, or one range that a bitmap describes.
    pub struct FreeSpaceEntry as FreeSpaceEntryDisk = 17 {
        /// Logical address of the range.
        pub start: LogicalAddress,
        /// Free bytes in the range; for a bitmap, the sum of its runs.
        pub bytes: u64,
        /// [`FreeSpaceEntry::EXTENT`] or [`FreeSpaceEntry::BITMAP`].
        pub kind: u8,
    }
}

impl FreeSpaceEntry {
    /// The whole range is free.
    pub const EXTENT: u8 = 1;
    /// A bitmap marks the free parts of the range.
    pub const BITMAP: u8 = 2;
}

/// An entry, with its bitmap if it has one.
#[derive(Clone, Debug)]
pub struct CachedFreeSpace<'a> {
    /// The entry.
    pub entry: FreeSpaceEntry,
    /// The page of bits, one per sector; the first bit is the sector at the entry's start.
    pub bitmap: Option<&'a [u8]>,
}

impl<'a> CachedFreeSpace<'a> {
    /// Returns a bitmap's free runs, in sectors from the entry's start; none for an extent.
    pub fn free_runs(&self) -> BitRuns<'a> {
        let bits = self.bitmap.unwrap_or_default();
        BitRuns::new(bits, bits.len() as u64 * 8)
    }
}

/// A view of a cache file's content, with checksums and generation checked.
#[derive(Clone, Debug)]
pub struct FreeSpaceCache<'a> {
    pages: &'a [u8],
    page_size: usize,
    entries: u64,
    bitmaps: u64,
}

/// Creates a fault of the cache.
fn bad(field: &'static str, value: u64, why: &'static str) -> Corrupt {
    Corrupt::field("free space cache", field, value, why)
}

impl<'a> FreeSpaceCache<'a> {
    /// Checks the file's bytes against the header: page checksums, generation, and a sufficient
    /// size for the header's counts. Takes one pass over the bytes and allocates nothing.
    ///
    /// # Errors
    /// The first fault found.
    ///
    /// # Panics
    /// If the page size is 0.
    pub fn parse(header: &FreeSpaceHeader, bytes: &'a [u8], page_size: usize) -> Result<Self, Corrupt> {
        let size = bytes.len() as u64;
        let pages = bytes.len() / page_size;
        if bytes.is_empty() || !bytes.len().is_multiple_of(page_size) {
            return Err(bad("size", size, "not a positive multiple of the page size"));
        }
        let prefix = pages * 4 + 8;
        if prefix > page_size {
            return Err(bad("size", size, "more pages than the first page can hold checksums for"));
        }
        for (index, page) in bytes.chunks_exact(page_size).enumerate() {
            let stored = ChecksumType::Crc32c.stored(&bytes[index * 4..]);
            let covered = if index == 0 { &page[pages * 4..] } else { page };
            let computed = ChecksumType::Crc32c.compute(covered);
            if stored != computed {
                return Err(Corrupt::Checksum { what: "free space cache page", stored, computed });
            }
        }
        let (generation, _): (Generation, _) =
            crate::parse::parse_prefix("free space cache", &bytes[pages * 4..])?;
        if generation != header.generation {
            return Err(bad("generation", generation.0, "not the header item's generation"));
        }
        let cache =
            Self { pages: bytes, page_size, entries: header.num_entries, bitmaps: header.num_bitmaps };
        let need = cache.entry_pages().checked_add(header.num_bitmaps);
        if need.is_none_or(|need| need > pages as u64) {
            return Err(bad("size", size, "too small for the header's entries and bitmaps"));
        }
        Ok(cache)
    }

    /// Returns the number of entries that fit on page 0, and on each other page.
    fn entries_per_page(&self) -> (u64, u64) {
        let prefix = self.pages.len() / self.page_size * 4 + 8;
        let per = |bytes: usize| (bytes / FreeSpaceEntry::SIZE) as u64;
        (per(self.page_size - prefix), per(self.page_size))
    }

    /// Returns the number of pages with entries, at least 1.
    fn entry_pages(&self) -> u64 {
        let (first, other) = self.entries_per_page();
        match self.entries.saturating_sub(first) {
            0 => 1,
            // A page too small for one entry cannot hold the rest.
            _ if other == 0 => u64::MAX,
            left => 1 + left.div_ceil(other),
        }
    }

    /// Iterates over the entries; ends after the first error.
    pub fn entries(&self) -> CacheEntries<'a> {
        CacheEntries { cache: self.clone(), index: 0, bitmaps_seen: 0 }
    }

    fn entry(&self, index: u64) -> Result<FreeSpaceEntry, Corrupt> {
        let (first, other) = self.entries_per_page();
        let start = if index < first {
            (self.page_size - self.entry_bytes_on_first_page()) + index as usize * FreeSpaceEntry::SIZE
        } else {
            let (page, slot) = ((index - first) / other + 1, (index - first) % other);
            page as usize * self.page_size + slot as usize * FreeSpaceEntry::SIZE
        };
        Ok(FreeSpaceEntry::parse_prefix(&self.pages[start..])?.0)
    }

    fn entry_bytes_on_first_page(&self) -> usize {
        self.page_size - (self.pages.len() / self.page_size * 4 + 8)
    }

    fn bitmap(&self, index: u64) -> &'a [u8] {
        let start = (self.entry_pages() + index) as usize * self.page_size;
        &self.pages[start..start + self.page_size]
    }

    /// Encodes a file of `pages` pages and the header item.
    ///
    /// # Panics
    /// If there are too few pages, the first page cannot hold their checksums, a bitmap is not one
    /// page long, or an entry's kind contradicts its bitmap.
    pub fn encode(
        location: Key,
        generation: Generation,
        entries: &[CachedFreeSpace<'_>],
        pages: usize,
        page_size: usize,
    ) -> (FreeSpaceHeader, Vec<u8>) {
        let bitmaps: Vec<_> = entries.iter().filter_map(|entry| entry.bitmap).collect();
        let header = FreeSpaceHeader {
            location,
            generation,
            num_entries: entries.len() as u64,
            num_bitmaps: bitmaps.len() as u64,
        };
        let mut bytes = Vec::with_capacity(pages * page_size);
        bytes.resize(pages * 4, 0);
        bytes.extend_from_slice(&generation.0.to_le_bytes());
        assert!(bytes.len() <= page_size, "the first page must hold all checksums");
        for CachedFreeSpace { entry, bitmap } in entries {
            assert_eq!(
                entry.kind == FreeSpaceEntry::BITMAP,
                bitmap.is_some(),
                "exactly the bitmap entries must have a bitmap"
            );
            if bytes.len() % page_size + FreeSpaceEntry::SIZE > page_size {
                bytes.resize(bytes.len().next_multiple_of(page_size), 0);
            }
            bytes.extend_from_slice(&entry.to_bytes());
        }
        bytes.resize(bytes.len().next_multiple_of(page_size), 0);
        for bitmap in bitmaps {
            assert_eq!(bitmap.len(), page_size, "a bitmap must be one page long");
            bytes.extend_from_slice(bitmap);
        }
        assert!(bytes.len() <= pages * page_size, "the pages must hold all entries and bitmaps");
        bytes.resize(pages * page_size, 0);
        for page in 0..pages {
            let start = if page == 0 { pages * 4 } else { page * page_size };
            let sum = crc32c::crc32c(&bytes[start..(page + 1) * page_size]);
            bytes[page * 4..page * 4 + 4].copy_from_slice(&sum.to_le_bytes());
        }
        (header, bytes)
    }
}

/// The iterator of [`FreeSpaceCache::entries`].
#[derive(Clone, Debug)]
pub struct CacheEntries<'a> {
    cache: FreeSpaceCache<'a>,
    index: u64,
    bitmaps_seen: u64,
}

impl<'a> CacheEntries<'a> {
    fn decode(&mut self) -> Result<CachedFreeSpace<'a>, Corrupt> {
        let entry = self.cache.entry(self.index)?;
        let bitmap = match entry.kind {
            FreeSpaceEntry::EXTENT => None,
            FreeSpaceEntry::BITMAP if self.bitmaps_seen < self.cache.bitmaps => {
                self.bitmaps_seen += 1;
                Some(self.cache.bitmap(self.bitmaps_seen - 1))
            }
            FreeSpaceEntry::BITMAP => {
                return Err(bad("bitmaps", self.bitmaps_seen + 1, "more than the header's count"));
            }
            kind => return Err(bad("entry kind", kind.into(), "not 1 or 2")),
        };
        if entry.bytes == 0 {
            return Err(bad("entry bytes", 0, "not at least 1"));
        }
        if entry.start.checked_add(entry.bytes).is_none() {
            return Err(bad("entry bytes", entry.bytes, "reaches past the end of the address space"));
        }
        Ok(CachedFreeSpace { entry, bitmap })
    }
}

impl<'a> Iterator for CacheEntries<'a> {
    type Item = Result<CachedFreeSpace<'a>, Corrupt>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.index >= self.cache.entries {
            return None;
        }
        let result = self.decode();
        self.index = if result.is_ok() { self.index + 1 } else { u64::MAX };
        Some(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::items::test_support::assert_fault;
    use proptest::prelude::*;

    const PAGE: usize = 4096;
    const LOCATION: Key = Key::new(256, ItemType::INODE_ITEM, 0);

    fn extent(start: u64, bytes: u64) -> CachedFreeSpace<'static> {
        let entry = FreeSpaceEntry { start: LogicalAddress(start), bytes, kind: FreeSpaceEntry::EXTENT };
        CachedFreeSpace { entry, bitmap: None }
    }

    fn bitmap(start: u64, bits: &[u8]) -> CachedFreeSpace<'_> {
        let entry =
            FreeSpaceEntry { start: LogicalAddress(start), bytes: 4096, kind: FreeSpaceEntry::BITMAP };
        CachedFreeSpace { entry, bitmap: Some(bits) }
    }

    fn encode(entries: &[CachedFreeSpace<'_>]) -> (FreeSpaceHeader, Vec<u8>) {
        FreeSpaceCache::encode(LOCATION, Generation(9), entries, 8, PAGE)
    }

    /// Updates the checksums after a change.
    fn seal(bytes: &mut [u8]) {
        for page in 0..8 {
            let start = if page == 0 { 32 } else { page * PAGE };
            let sum = crc32c::crc32c(&bytes[start..(page + 1) * PAGE]).to_le_bytes();
            bytes[page * 4..page * 4 + 4].copy_from_slice(&sum);
        }
    }

    #[test]
    fn fixed_parts_round_trip() {
        crate::parse::assert_round_trip::<FreeSpaceHeader>();
        crate::parse::assert_round_trip::<FreeSpaceEntry>();
    }

    #[test]
    fn header_faults_are_detected() {
        let (good, _) = encode(&[extent(0, 1)]);
        good.validate().unwrap();
        let location = Key::new(256, ItemType::ROOT_ITEM, 0);
        assert_fault(FreeSpaceHeader { location, ..good }.validate(), "not an inode's key");
        assert_fault(FreeSpaceHeader { num_bitmaps: 2, ..good }.validate(), "more than the entries");
    }

    #[test]
    fn file_faults_are_detected() {
        let (header, bytes) = encode(&[extent(4096, 4096)]);
        let parse = |bytes: &[u8]| FreeSpaceCache::parse(&header, bytes, PAGE).map(|_| ());
        parse(&bytes).unwrap();
        assert_fault(parse(&[]), "positive multiple of the page size");
        assert_fault(parse(&bytes[1..]), "positive multiple of the page size");
        assert_fault(parse(&vec![0; 1023 * PAGE]), "more pages than the first");
        for page in [0, 7] {
            let mut flipped = bytes.clone();
            flipped[page * PAGE + 4000] ^= 1;
            assert!(matches!(parse(&flipped), Err(Corrupt::Checksum { .. })));
        }
        let stale = FreeSpaceHeader { generation: Generation(8), ..header };
        assert_fault(FreeSpaceCache::parse(&stale, &bytes, PAGE), "not the header item's");
        for (num_entries, num_bitmaps) in [(u64::MAX, 0), (1, 8), (u64::MAX, u64::MAX), (4000, 0)] {
            let greedy = FreeSpaceHeader { num_entries, num_bitmaps, ..header };
            assert_fault(FreeSpaceCache::parse(&greedy, &bytes, PAGE), "too small");
        }
    }

    #[test]
    fn entry_faults_are_detected() {
        let (header, bytes) = encode(&[extent(4096, 4096)]);
        let last = |change: fn(&mut [u8])| {
            let mut bytes = bytes.clone();
            change(&mut bytes[40..57]);
            seal(&mut bytes);
            let result = FreeSpaceCache::parse(&header, &bytes, PAGE).unwrap().entries().last().unwrap();
            result.map(|cached| cached.entry)
        };
        last(|_| ()).unwrap();
        assert_fault(last(|entry| entry[16] = 3), "not 1 or 2");
        assert_fault(last(|entry| entry[16] = 2), "more than the header's count");
        assert_fault(last(|entry| entry[9] = 0), "at least 1");
        assert_fault(last(|entry| entry[..8].fill(0xff)), "past the end of the address space");
    }

    /// The most entries of a file that is made: more than a page holds, except under Miri.
    const MOST: usize = if cfg!(miri) { 20 } else { 700 };

    proptest! {
        #![proptest_config(crate::parse::cases(64))]
        #[test]
        fn files_round_trip(kinds in prop::collection::vec(prop::bool::weighted(0.01), 0..MOST), fill in any::<u8>()) {
            let bits = vec![fill; PAGE];
            let mut room = 3;
            let entries: Vec<_> = kinds.iter().enumerate().map(|(i, &is_bitmap)| {
                let start = i as u64 * 8192;
                if is_bitmap && room > 0 {
                    room -= 1;
                    bitmap(start, &bits)
                } else {
                    extent(start, 4096)
                }
            }).collect();
            let (header, bytes) = encode(&entries);
            header.validate().unwrap();
            let cache = FreeSpaceCache::parse(&header, &bytes, PAGE).unwrap();
            let parsed: Vec<_> = cache.entries().collect::<Result<_, _>>().unwrap();
            prop_assert_eq!(parsed.len(), entries.len());
            for (a, b) in parsed.iter().zip(&entries) {
                prop_assert_eq!(a.entry, b.entry);
                prop_assert_eq!(a.bitmap, b.bitmap);
                prop_assert_eq!(a.free_runs().count(), b.free_runs().count());
            }
            prop_assert_eq!(encode(&parsed), (header, bytes));
        }
    }
}
