//! Files with hand-made items: the bounds of every extent, and corrupt items.

use crate::btree::{Forest, RootPointer, Tree};
use crate::data::extent_map::{ExtentKind, FileExtents};
use crate::data::*;
use crate::errors::{Error, Result};
use crate::volume::testing::{CHUNK_START, TestVolume, content};
use papilio_device::Device;
use papilio_format::items::chunk::RaidProfile;
use papilio_format::items::csum::CsumItem;
use papilio_format::items::file_extent::{
    Compression, ExtentPart, FileExtentContent, FileExtentItem, file_extent_key,
};
use papilio_format::items::inode::InodeFlags;
use papilio_format::node::{ItemHeader, NodeHeader};
use papilio_format::{
    ChecksumType, FileOffset, Generation, InodeNumber, Key, LogicalAddress, PhysicalAddress, TreeId, Uuid,
    objectid,
};
use std::sync::Arc;

const SECTOR: u64 = 4096;
const NODE: usize = 16384;
const INODE: InodeNumber = InodeNumber(257);

/// A single-device volume with known data, and leaves written into its system chunk.
struct Made {
    forest: Arc<Forest>,
    test: TestVolume,
    leaves: u64,
}

impl Made {
    fn new() -> Self {
        let test = TestVolume::new(RaidProfile::Single, 1);
        let volume = Arc::new(test.open(0, false).expect("it opens"));
        Self { forest: Forest::new(volume, 1 << 20), test, leaves: 0 }
    }

    /// Returns the start of the data that nothing overwrites.
    fn data(&self) -> u64 {
        self.test.data_chunk.0.0
    }

    /// Returns a tree of one leaf.
    fn tree(&mut self, owner: TreeId, items: &[(Key, Vec<u8>)]) -> Tree {
        let address = LogicalAddress(CHUNK_START.0 + self.leaves * NODE as u64);
        let bytes = leaf(owner, address, items);
        // The chunk's only stripe starts at the same number on the device.
        let stripe = PhysicalAddress((1 << 20) + self.leaves * NODE as u64);
        self.test.devices[0].write_at(&bytes, stripe).expect("it is memory");
        self.leaves += 1;
        self.forest.tree(owner, RootPointer { address, level: 0, generation: Some(Generation(9)) })
    }

    fn file(&mut self, extents: &[(u64, FileExtentItem<'_>)]) -> Tree {
        let item = |(offset, extent): &(u64, FileExtentItem<'_>)| {
            (file_extent_key(INODE, FileOffset(*offset)), extent.to_bytes())
        };
        self.tree(objectid::FS_TREE, &extents.iter().map(item).collect::<Vec<_>>())
    }

    /// Builds a checksum tree with an item for each range of sectors, starting at an address.
    fn checksums(&mut self, ranges: &[(u64, usize)]) -> Tree {
        let item = |&(start, sectors): &(u64, usize)| {
            let data = content(LogicalAddress(start), sectors * SECTOR as usize);
            let checksums = data.chunks(SECTOR as usize).map(|sector| ChecksumType::Crc32c.compute(sector));
            let bytes = checksums.flat_map(|sum| sum.as_bytes().to_vec()).collect();
            (CsumItem::key(LogicalAddress(start)), bytes)
        };
        self.tree(objectid::CSUM_TREE, &ranges.iter().map(item).collect::<Vec<_>>())
    }
}

fn leaf(owner: TreeId, address: LogicalAddress, items: &[(Key, Vec<u8>)]) -> Vec<u8> {
    let header = NodeHeader {
        csum: [0; 32],
        fsid: Uuid::from_u128(0xf5),
        address,
        flags: 1 | 1 << 56,
        chunk_tree_uuid: Uuid::nil(),
        generation: Generation(9),
        owner,
        item_count: items.len() as u32,
        level: 0,
    };
    let mut bytes = vec![0; NODE];
    bytes[..NodeHeader::SIZE].copy_from_slice(&header.to_bytes());
    let mut end = NODE;
    for (slot, (key, data)) in items.iter().enumerate() {
        end -= data.len();
        bytes[end..][..data.len()].copy_from_slice(data);
        let offset = (end - NodeHeader::SIZE) as u32;
        let item = ItemHeader { key: *key, offset, size: data.len() as u32 };
        bytes[NodeHeader::SIZE + slot * ItemHeader::SIZE..][..ItemHeader::SIZE]
            .copy_from_slice(&item.to_bytes());
    }
    let sum = ChecksumType::Crc32c.compute(&bytes[32..]);
    bytes[..32].copy_from_slice(sum.padded());
    bytes
}

fn extent(content: FileExtentContent<'_>) -> FileExtentItem<'_> {
    let ram_bytes = match content {
        FileExtentContent::Inline(data) => data.len() as u64,
        FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part) => part.disk_length,
    };
    let compression = Compression::None;
    FileExtentItem { generation: Generation(9), ram_bytes, compression, other_encoding: 0, content }
}

/// Sectors `from` to `to` of an extent of `sectors` sectors at `address`.
fn part(address: u64, sectors: u64, from: u64, to: u64) -> ExtentPart {
    ExtentPart {
        disk_address: LogicalAddress(address),
        disk_length: sectors * SECTOR,
        offset: from * SECTOR,
        length: (to - from) * SECTOR,
    }
}

/// Returns the start and end of each extent in bytes, and its kind: h, i, r or p.
fn map(tree: &Tree, start: u64, end: u64) -> Result<Vec<(u64, u64, char)>> {
    FileExtents::new(tree, INODE, SECTOR as u32, FileOffset(start), FileOffset(end))
        .map(|extent| {
            let extent = extent?;
            let kind = match extent.kind {
                ExtentKind::Hole => 'h',
                ExtentKind::Inline(_) => 'i',
                ExtentKind::Regular(_) => 'r',
                ExtentKind::Prealloc(_) => 'p',
            };
            Ok((extent.start.0, extent.end.0, kind))
        })
        .collect()
}

fn read(
    made: &Made,
    tree: &Tree,
    checksums: &Tree,
    size: u64,
    offset: u64,
    length: usize,
) -> Result<Vec<u8>> {
    let context = ReadContext::new(made.forest.volume().clone(), Some(checksums.clone()), true);
    let file = FileData {
        tree: tree.into(),
        inode: INODE,
        flags: InodeFlags::empty(),
        size,
        written: None,
        extent_cache: None,
        ordered: None,
    };
    let mut buffer = vec![0xee; length];
    let read = context.read(&file, FileOffset(offset), &mut buffer)?;
    buffer.truncate(read);
    Ok(buffer)
}

#[test]
fn gaps_become_holes_between_extents() {
    let mut made = Made::new();
    let data = made.data();
    let tree = made.file(&[
        (2 * SECTOR, extent(FileExtentContent::Regular(part(data, 8, 1, 4)))),
        (5 * SECTOR, extent(FileExtentContent::Regular(part(0, 0, 0, 1)))),
        (8 * SECTOR, extent(FileExtentContent::Prealloc(part(data, 2, 0, 2)))),
    ]);
    let s = SECTOR;
    let whole = [
        (0, 2 * s, 'h'),
        (2 * s, 5 * s, 'r'),
        (5 * s, 6 * s, 'h'),
        (6 * s, 8 * s, 'h'),
        (8 * s, 10 * s, 'p'),
    ];
    assert_eq!(map(&tree, 0, 10 * s).unwrap(), whole);
    assert_eq!(map(&tree, 0, 12 * s - 5).unwrap().last(), Some(&(10 * s, 12 * s, 'h')));
    assert_eq!(map(&tree, 3 * s + 7, 3 * s + 8).unwrap(), [(3 * s + 7, 5 * s, 'r')]);
    assert_eq!(map(&tree, 7 * s, 8 * s).unwrap(), [(7 * s, 8 * s, 'h')]);
    assert_eq!(map(&tree, 100 * s, 101 * s).unwrap(), [(100 * s, 101 * s, 'h')]);
    assert_eq!(map(&tree, u64::MAX - 1, u64::MAX).unwrap(), [(u64::MAX - 1, u64::MAX, 'h')]);
    assert_eq!(map(&tree, s, s).unwrap(), []);
    // Another file's extent before it, and nothing after it.
    let other = extent(FileExtentContent::Regular(part(data, 1, 0, 1)));
    let key = file_extent_key(InodeNumber(INODE.0 - 1), FileOffset(0));
    let nothing = made.tree(objectid::FS_TREE, &[(key, other.to_bytes())]);
    assert_eq!(map(&nothing, 0, 10).unwrap(), [(0, s, 'h')]);
}

#[test]
fn a_part_outside_its_extent_is_an_error() {
    let mut made = Made::new();
    let data = made.data();
    for bad in [part(data, 4, 1, 6), part(data, 4, 5, 6), part(data, 0, 0, 1)] {
        let good = (0, extent(FileExtentContent::Regular(part(data, 1, 0, 1))));
        let tree = made.file(&[good, (SECTOR, extent(FileExtentContent::Regular(bad)))]);
        let error = map(&tree, 0, 2 * SECTOR).unwrap_err();
        assert!(matches!(&error, Error::Item { key, .. } if key.offset == SECTOR), "{error}");
    }
    let mut compressed = extent(FileExtentContent::Regular(part(data, 1, 0, 3)));
    (compressed.compression, compressed.ram_bytes) = (Compression::Zstd, 2 * SECTOR);
    let tree = made.file(&[(0, compressed)]);
    assert!(map(&tree, 0, SECTOR).is_err());
    let mut compressed = extent(FileExtentContent::Regular(part(data, 33, 0, 1)));
    (compressed.compression, compressed.ram_bytes) = (Compression::Zstd, 2 * SECTOR);
    let tree = made.file(&[(0, compressed)]);
    assert!(map(&tree, 0, SECTOR).is_err());
}

#[test]
fn seeking_counts_prealloc_as_hole() {
    let mut made = Made::new();
    let data = made.data();
    let tree = made.file(&[
        (0, extent(FileExtentContent::Prealloc(part(data, 1, 0, 1)))),
        (2 * SECTOR, extent(FileExtentContent::Regular(part(data, 1, 0, 1)))),
    ]);
    let go = |size, from, whence| seek(&tree, INODE, size, SECTOR as u32, FileOffset(from), whence).unwrap();
    let size = 4 * SECTOR;
    assert_eq!(go(size, 5, Whence::Data), Some(FileOffset(2 * SECTOR)));
    assert_eq!(go(size, 5, Whence::Hole), Some(FileOffset(5)));
    assert_eq!(go(size, 2 * SECTOR + 9, Whence::Data), Some(FileOffset(2 * SECTOR + 9)));
    assert_eq!(go(size, 2 * SECTOR + 9, Whence::Hole), Some(FileOffset(3 * SECTOR)));
    assert_eq!(go(size, 3 * SECTOR, Whence::Data), None);
    // The file ends inside the last sector of data: its end is the hole.
    assert_eq!(go(3 * SECTOR - 1, 2 * SECTOR, Whence::Hole), Some(FileOffset(3 * SECTOR - 1)));
    assert_eq!(go(size, size, Whence::Hole), None);
}

#[test]
fn reads_of_any_alignment_give_the_right_bytes() {
    let mut made = Made::new();
    let data = made.data();
    let tree = made.file(&[(SECTOR, extent(FileExtentContent::Regular(part(data, 16, 2, 16))))]);
    // Checksums in adjacent items, and one item that starts before the extent.
    let checksums = made.checksums(&[(data, 3), (data + 3 * SECTOR, 1), (data + 4 * SECTOR, 12)]);
    let size = 15 * SECTOR - 100;
    let mut expected = vec![0; SECTOR as usize];
    expected.extend(content(LogicalAddress(data + 2 * SECTOR), 14 * SECTOR as usize));
    expected.truncate(size as usize);
    for offset in [0, 1, 4095, 4096, 5000, 8192, 12_289, size - 1, size, size + 1] {
        for length in [1, 100, 4096, 5000, 8192, 20_000, 100_000] {
            let found = read(&made, &tree, &checksums, size, offset, length).unwrap();
            let end = (offset as usize + length).min(expected.len());
            let wanted = expected.get(offset as usize..end).unwrap_or(&[]);
            assert!(found == wanted, "{length} bytes at {offset}: got {}", found.len());
        }
    }
}

#[test]
fn a_missing_checksum_is_an_error_where_it_is_needed() {
    let mut made = Made::new();
    let data = made.data();
    let tree = made.file(&[(0, extent(FileExtentContent::Regular(part(data, 8, 0, 8))))]);
    let checksums = made.checksums(&[(data, 2), (data + 3 * SECTOR, 3)]);
    let size = 8 * SECTOR;
    let missing = |offset, length| match read(&made, &tree, &checksums, size, offset, length) {
        Err(Error::MissingChecksum { place, logical }) => {
            assert_eq!(logical.0 - data, place.offset.0);
            Some(place.offset.0 / SECTOR)
        }
        Err(error) => panic!("{error}"),
        Ok(_) => None,
    };
    assert_eq!(missing(0, 8192), None);
    assert_eq!(missing(0, 8193), Some(2));
    assert_eq!(missing(2 * SECTOR + 1, 1), Some(2));
    assert_eq!(missing(3 * SECTOR, 3 * 4096), None);
    assert_eq!(missing(4 * SECTOR, 4 * 4096), Some(6));
    assert_eq!(missing(7 * SECTOR, 4096), Some(7));
    let empty = made.checksums(&[]);
    assert!(matches!(read(&made, &tree, &empty, size, 0, 1), Err(Error::MissingChecksum { .. })));
}

#[test]
fn fiemap_merges_neighbours_and_skips_holes() {
    let mut made = Made::new();
    let data = made.data();
    let tree = made.file(&[
        (0, extent(FileExtentContent::Regular(part(data, 8, 0, 2)))),
        (2 * SECTOR, extent(FileExtentContent::Regular(part(data, 8, 2, 4)))),
        (4 * SECTOR, extent(FileExtentContent::Prealloc(part(data, 8, 4, 6)))),
        (8 * SECTOR, extent(FileExtentContent::Prealloc(part(data, 8, 6, 7)))),
    ]);
    let mut found = Vec::new();
    let report = |extent: FiemapExtent| {
        found.push((extent.start.0 / SECTOR, extent.length / SECTOR, extent.flags));
        true
    };
    fiemap(&tree, INODE, SECTOR as u32, FileOffset(SECTOR), |_| Ok(false), report).unwrap();
    let unwritten = FiemapExtent::UNWRITTEN;
    // From the item that contains the start on: the second would have been merged into the first
    // anyway.
    assert_eq!(found, [(0, 4, 0), (4, 2, unwritten), (8, 1, unwritten | FiemapExtent::LAST)]);
}
