//! File extents: the location of a file's bytes.
//!
//! Owns [`FileExtentItem`] and [`Compression`]. An extent is inline in the leaf, or it is a part of
//! an extent on disk, written or preallocated. Sources: `struct btrfs_file_extent_item`
//! (`include/uapi/linux/btrfs_tree.h`), `check_extent_data_item` (`fs/btrfs/tree-checker.c`).

use crate::error::Corrupt;
use crate::features::IncompatFeatures;
use crate::incompatible::Incompatible;
use crate::item_context::ItemContext;
use crate::items::inode;
use crate::key::{ItemType, Key};
use crate::parse::disk_struct;
use crate::units::{FileOffset, Generation, InodeNumber, LogicalAddress};
use std::ops::RangeInclusive;
use zerocopy::FromBytes;

/// Maximum uncompressed bytes in one compressed extent (`BTRFS_MAX_UNCOMPRESSED`).
pub const MAX_UNCOMPRESSED: u64 = 128 << 10;

/// The compression algorithm of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Compression {
    None = 0,
    Zlib = 1,
    Lzo = 2,
    Zstd = 3,
}

impl Compression {
    /// All algorithms, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::None, Self::Zlib, Self::Lzo, Self::Zstd];

    /// Returns the algorithm with the given number.
    ///
    /// # Errors
    /// [`Incompatible::Compression`] for an unknown number.
    pub fn from_raw(raw: u8) -> Result<Self, Incompatible> {
        Self::ALL.get(usize::from(raw)).copied().ok_or(Incompatible::Compression(raw))
    }

    /// Returns the name that the mount option takes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Zlib => "zlib",
            Self::Lzo => "lzo",
            Self::Zstd => "zstd",
        }
    }

    /// Returns the algorithm with this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// Returns the levels; only 0 if there are none.
    pub const fn levels(self) -> RangeInclusive<i32> {
        match self {
            Self::None | Self::Lzo => 0..=0,
            Self::Zlib => 1..=9,
            Self::Zstd => -15..=15,
        }
    }

    /// Returns the level that stands for no choice.
    pub const fn default_level(self) -> i32 {
        match self {
            Self::None | Self::Lzo => 0,
            Self::Zlib | Self::Zstd => 3,
        }
    }

    /// Returns the feature bit that a reader of such data needs; zlib needs none.
    pub const fn feature(self) -> IncompatFeatures {
        match self {
            Self::None | Self::Zlib => IncompatFeatures::empty(),
            Self::Lzo => IncompatFeatures::COMPRESS_LZO,
            Self::Zstd => IncompatFeatures::COMPRESS_ZSTD,
        }
    }
}

impl std::fmt::Display for Compression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

disk_struct! {
    /// The fixed part at the start of every file extent.
    pub struct FileExtentHeader as FileExtentHeaderDisk = 21 {
        /// The transaction that created the extent.
        pub generation: Generation,
        /// Uncompressed size of the extent on disk, or of the inline data, in bytes.
        pub ram_bytes: u64,
        /// See [`Compression`].
        pub compression: u8,
        /// Always 0.
        pub encryption: u8,
        /// Reserved.
        pub other_encoding: u16,
        /// 0 inline, 1 regular, 2 preallocated.
        pub extent_type: u8,
    }
}

disk_struct! {
    /// A part of an extent on disk.
    pub struct ExtentPart as ExtentPartDisk = 32 {
        /// Logical address of the extent on disk; 0 for a hole.
        pub disk_address: LogicalAddress,
        /// Size of the extent on disk, compressed, in bytes; 0 for a hole.
        pub disk_length: u64,
        /// Offset of the part within the uncompressed extent, in bytes.
        pub offset: u64,
        /// Uncompressed size of the part, and of its range in the file, in bytes.
        pub length: u64,
    }
}

impl ExtentPart {
    /// Returns whether the part is a hole, which reads as zeros.
    #[inline]
    pub const fn is_hole(&self) -> bool {
        self.disk_address.0 == 0
    }
}

/// The location of an extent's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileExtentContent<'a> {
    /// In the item itself, possibly compressed.
    Inline(&'a [u8]),
    /// On disk, or a hole.
    Regular(ExtentPart),
    /// Preallocated on disk; reads as zeros.
    Prealloc(ExtentPart),
}

/// One file extent, under key (inode, EXTENT_DATA, offset in the file).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileExtentItem<'a> {
    /// The transaction that created the extent.
    pub generation: Generation,
    /// Uncompressed size of the extent on disk, or of the inline data, in bytes. It is unreliable
    /// for an uncompressed extent on disk: kernels wrote wrong values, and none reads it.
    pub ram_bytes: u64,
    /// The compression algorithm.
    pub compression: Compression,
    /// Reserved, 0.
    pub other_encoding: u16,
    /// The location of the bytes.
    pub content: FileExtentContent<'a>,
}

const WHAT: &str = "file extent";

impl<'a> FileExtentItem<'a> {
    /// Size in bytes of the part before inline data.
    pub const INLINE_DATA_START: usize = FileExtentHeader::SIZE;
    /// Size in bytes of an extent that is not inline.
    pub const SIZE: usize = FileExtentHeader::SIZE + ExtentPart::SIZE;

    /// Decodes an item.
    ///
    /// A compressed extent of more than 128 KiB of data is refused, so that no reader allocates
    /// more. No writer ever produced one.
    ///
    /// # Errors
    /// An unknown type, compression or encryption, a wrong size, inline data of the wrong length,
    /// or a sum that exceeds 64 bits.
    pub fn parse(data: &'a [u8]) -> Result<Self, Corrupt> {
        let bad = |field, value, why| Err(Corrupt::field(WHAT, field, value, why));
        let (header, rest) = FileExtentHeader::parse_prefix(data)?;
        let Ok(compression) = Compression::from_raw(header.compression) else {
            return bad("compression", header.compression.into(), "unknown");
        };
        if header.encryption != 0 {
            return bad("encryption", header.encryption.into(), "unknown");
        }
        if compression != Compression::None && header.ram_bytes > MAX_UNCOMPRESSED {
            return bad("ram_bytes", header.ram_bytes, "more than a compressed extent can hold");
        }
        let content = match header.extent_type {
            0 => {
                if compression == Compression::None && header.ram_bytes != rest.len() as u64 {
                    return bad("ram_bytes", header.ram_bytes, "not the size of the inline data");
                }
                FileExtentContent::Inline(rest)
            }
            1 => FileExtentContent::Regular(Self::parse_part(data.len(), rest)?),
            2 => FileExtentContent::Prealloc(Self::parse_part(data.len(), rest)?),
            other => return bad("extent_type", other.into(), "unknown"),
        };
        Ok(Self {
            generation: header.generation,
            ram_bytes: header.ram_bytes,
            compression,
            other_encoding: header.other_encoding,
            content,
        })
    }

    fn parse_part(item_size: usize, bytes: &[u8]) -> Result<ExtentPart, Corrupt> {
        let bad = |field, value, why| Err(Corrupt::field(WHAT, field, value, why));
        if item_size != Self::SIZE {
            return Err(Corrupt::WrongSize { what: WHAT, expected: Self::SIZE, found: item_size });
        }
        let part = ExtentPart::parse(bytes)?;
        if part.disk_address.checked_add(part.disk_length).is_none() {
            return bad("disk_length", part.disk_length, "reaches past the end of the address space");
        }
        if part.offset.checked_add(part.length).is_none() {
            return bad("length", part.length, "offset plus length exceeds 64 bits");
        }
        Ok(part)
    }

    /// Encodes the item.
    pub fn to_bytes(&self) -> Vec<u8> {
        let header = FileExtentHeader {
            generation: self.generation,
            ram_bytes: self.ram_bytes,
            compression: self.compression as u8,
            encryption: 0,
            other_encoding: self.other_encoding,
            extent_type: match self.content {
                FileExtentContent::Inline(_) => 0,
                FileExtentContent::Regular(_) => 1,
                FileExtentContent::Prealloc(_) => 2,
            },
        };
        let mut bytes = Vec::with_capacity(self.size_on_disk());
        bytes.extend_from_slice(&header.to_bytes());
        match &self.content {
            FileExtentContent::Inline(data) => bytes.extend_from_slice(data),
            FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part) => {
                bytes.extend_from_slice(&part.to_bytes());
            }
        }
        bytes
    }

    /// Returns the item's size on disk in bytes.
    pub const fn size_on_disk(&self) -> usize {
        match self.content {
            FileExtentContent::Inline(data) => Self::INLINE_DATA_START + data.len(),
            _ => Self::SIZE,
        }
    }

    /// Returns the bytes of the file that the extent covers. For an inline extent this need not be
    /// a multiple of the sector size.
    pub const fn length(&self) -> u64 {
        match self.content {
            FileExtentContent::Inline(_) => self.ram_bytes,
            FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part) => part.length,
        }
    }

    /// Returns the file offset at which the extent ends, rounded up to whole sectors for an inline
    /// one, or `None` past 64 bits.
    pub fn end(&self, start: FileOffset, sector_size: u32) -> Option<FileOffset> {
        let end = start.0.checked_add(self.length())?;
        match self.content {
            FileExtentContent::Inline(_) => end.checked_next_multiple_of(sector_size.into()),
            _ => Some(end),
        }
        .map(FileOffset)
    }
}

/// Returns the key of an extent.
pub const fn file_extent_key(inode: InodeNumber, offset: FileOffset) -> Key {
    Key::new(inode.0, ItemType::EXTENT_DATA, offset.0)
}

/// Runs the checks of `check_extent_data_item`.
///
/// Like the kernel, it ignores `ram_bytes` of uncompressed extents (old kernels wrote wrong values)
/// and the length of inline data (old tools exceeded a sector).
pub(crate) fn validate(context: &ItemContext<'_>) -> Result<(), Corrupt> {
    if is_valid_plain_part(context) { Ok(()) } else { validate_fully(context) }
}

/// The fast path of [`validate`]: returns whether the item is a valid, uncompressed, non-inline
/// extent that follows another one of the same file. Most items in a file's leaf are, both on reads
/// and on writes. For all other items [`validate_fully`] decides and reports the fault.
#[inline]
fn is_valid_plain_part(context: &ItemContext<'_>) -> bool {
    let Some((before, before_data)) = context.previous else { return false };
    let (Some((_, part_before)), Some((header, part))) = (plain_part(before_data), plain_part(context.data))
    else {
        return false;
    };
    let (address, bytes) = (part.disk_address.get(), part.disk_length.get());
    let (offset, length, start) = (part.offset.get(), part.length.get(), context.key.offset);
    let misaligned = (header.ram_bytes.get() | address | bytes | offset | length | start)
        & (u64::from(context.geometry.sector_size) - 1);
    (before.objectid, before.item_type) == (context.key.objectid, ItemType::EXTENT_DATA)
        && misaligned == 0
        && address.checked_add(bytes).is_some()
        && offset.checked_add(length).is_some()
        && start.checked_add(length).is_some()
        && before.offset.checked_add(part_before.length.get()).is_some_and(|end| end <= start)
}

/// Decodes an uncompressed extent that is not inline.
#[inline]
fn plain_part(data: &[u8]) -> Option<(&FileExtentHeaderDisk, &ExtentPartDisk)> {
    let (header, rest) = FileExtentHeaderDisk::ref_from_prefix(data).ok()?;
    let part = ExtentPartDisk::ref_from_bytes(rest).ok()?;
    let plain = header.compression == 0 && header.encryption == 0 && matches!(header.extent_type, 1 | 2);
    plain.then_some((header, part))
}

/// Runs all checks in order and reports the first fault.
fn validate_fully(context: &ItemContext<'_>) -> Result<(), Corrupt> {
    let bad = |field, value, why| Err(Corrupt::field(WHAT, field, value, why));
    let start = FileOffset(context.key.offset);
    let sector_size = context.geometry.sector_size;
    context.check_sector_aligned(WHAT, "key.offset", start.0)?;
    inode::validate_follows_inode(context)?;
    let extent = FileExtentItem::parse(context.data)?;
    match extent.content {
        FileExtentContent::Inline(_) => {
            if start.0 != 0 {
                return bad("key.offset", start.0, "inline data must be at the start of the file");
            }
            return Ok(());
        }
        FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part) => {
            context.check_sector_aligned(WHAT, "ram_bytes", extent.ram_bytes)?;
            context.check_sector_aligned(WHAT, "disk_address", part.disk_address.0)?;
            context.check_sector_aligned(WHAT, "disk_length", part.disk_length)?;
            context.check_sector_aligned(WHAT, "offset", part.offset)?;
            context.check_sector_aligned(WHAT, "length", part.length)?;
        }
    }
    if extent.end(start, sector_size).is_none() {
        return bad("length", extent.length(), "reaches past the largest offset");
    }
    if let Some((key, data)) = context.previous
        && (key.objectid, key.item_type) == (context.key.objectid, ItemType::EXTENT_DATA)
    {
        let previous_end = FileExtentItem::parse(data)?.end(FileOffset(key.offset), sector_size);
        if previous_end.is_none_or(|end| end > start) {
            return bad("key.offset", start.0, "overlaps the extent before it");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objectid;
    use crate::tree_check::test_support::{check, check_in, fault, geometry};
    use proptest::prelude::*;

    const INODE: InodeNumber = InodeNumber(257);
    const PART: ExtentPart =
        ExtentPart { disk_address: LogicalAddress(1 << 20), disk_length: 8192, offset: 0, length: 8192 };

    fn regular(part: ExtentPart) -> FileExtentItem<'static> {
        FileExtentItem {
            generation: Generation(9),
            ram_bytes: 8192,
            compression: Compression::None,
            other_encoding: 0,
            content: FileExtentContent::Regular(part),
        }
    }

    fn inline(data: &[u8]) -> FileExtentItem<'_> {
        let content = FileExtentContent::Inline(data);
        FileExtentItem { ram_bytes: data.len() as u64, content, ..regular(PART) }
    }

    fn key(offset: u64) -> Key {
        file_extent_key(INODE, FileOffset(offset))
    }

    proptest! {
        #![proptest_config(ProptestConfig { max_global_rejects: 1 << 20, ..crate::parse::cases(2048) })]
        #[test]
        fn fast_path_accepts_only_valid_extents(
            fields in prop::collection::vec(any_field(), 10),
            types in (0u8..4, 0u8..4, 0u8..2, 0u8..2),
            cut in prop_oneof![8 => Just(FileExtentItem::SIZE), 1 => 0..FileExtentItem::SIZE + 2],
            same_inode in prop::bool::weighted(0.9),
            before_type in prop_oneof![8 => Just(ItemType::EXTENT_DATA), 1 => Just(ItemType::XATTR_ITEM)],
        ) {
            let bytes = |fields: &[u64], extent_type: u8, compression: u8| {
                let header = FileExtentHeader {
                    generation: Generation(9),
                    ram_bytes: fields[0],
                    compression,
                    encryption: 0,
                    other_encoding: 0,
                    extent_type,
                };
                let part = ExtentPart {
                    disk_address: LogicalAddress(fields[1]),
                    disk_length: fields[2],
                    offset: fields[3],
                    length: fields[4],
                };
                let mut bytes = header.to_bytes().to_vec();
                bytes.extend_from_slice(&part.to_bytes());
                bytes
            };
            let before = bytes(&fields[..5], types.0, types.2);
            let mut data = bytes(&fields[5..], types.1, types.3);
            data.resize(cut, 0);
            let inode = INODE.0 + u64::from(!same_inode);
            let before_key = Key::new(INODE.0, before_type, fields[1]);
            let geometry = geometry();
            let context = |key, data, previous| {
                ItemContext { key, data, previous, owner: objectid::FS_TREE, geometry: &geometry }
            };
            // Preceding items have passed their own check.
            prop_assume!(validate_fully(&context(before_key, &before, None)).is_ok());
            let key = Key::new(inode, ItemType::EXTENT_DATA, fields[6]);
            let context = context(key, &data, Some((before_key, &before)));
            if is_valid_plain_part(&context) {
                prop_assert_eq!(validate_fully(&context), Ok(()));
            }
        }
    }

    /// Mostly multiples of the sector size, and values near a limit.
    fn any_field() -> impl Strategy<Value = u64> {
        prop_oneof![8 => (0u64..32).prop_map(|n| n << 12), 1 => Just(u64::MAX - 4095), 1 => any::<u64>()]
    }

    #[test]
    fn fast_path_accepts_consecutive_extents() {
        let item = regular(PART).to_bytes();
        let check = |start: u64| {
            let context = ItemContext {
                key: key(start),
                data: &item,
                previous: Some((key(0), &item)),
                owner: objectid::FS_TREE,
                geometry: &geometry(),
            };
            (is_valid_plain_part(&context), validate(&context).is_ok())
        };
        assert_eq!(check(8192), (true, true));
        assert_eq!(check(1 << 20), (true, true));
        assert_eq!(check(4096), (false, false), "overlaps the preceding extent");
        assert_eq!(check(8193), (false, false), "does not start at a sector");
    }

    proptest! {
        #[test]
        fn extents_round_trip(
            kind in 0u8..3,
            compression in 0usize..4,
            numbers in any::<(u64, u64, u16)>(),
            part in any::<(u32, u32, u32, u32)>(),
            data in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let compression = Compression::ALL[compression];
            let part = ExtentPart {
                disk_address: LogicalAddress(part.0.into()),
                disk_length: part.1.into(),
                offset: part.2.into(),
                length: part.3.into(),
            };
            let content = match kind {
                0 => FileExtentContent::Inline(&data),
                1 => FileExtentContent::Regular(part),
                _ => FileExtentContent::Prealloc(part),
            };
            let ram_bytes = match (kind, compression) {
                (0, Compression::None) => data.len() as u64,
                (_, Compression::None) => numbers.1,
                _ => numbers.1 % (MAX_UNCOMPRESSED + 1),
            };
            let generation = Generation(numbers.0);
            let item = FileExtentItem { generation, ram_bytes, compression, other_encoding: numbers.2, content };
            let bytes = item.to_bytes();
            prop_assert_eq!(bytes.len(), item.size_on_disk());
            prop_assert_eq!(FileExtentItem::parse(&bytes), Ok(item));
        }

        #[test]
        fn parsed_extents_serialise_to_the_same_bytes(
            mut bytes in prop::collection::vec(any::<u8>(), 53),
            compression in 0u8..5, extent_type in 0u8..4, high in 0u8..2,
        ) {
            bytes[16] = compression;
            bytes[17] = 0;
            bytes[20] = extent_type;
            // High bytes of zero keep most sums within 64 bits.
            [15, 28, 36, 44, 52].into_iter().for_each(|at| bytes[at] &= high);
            if let Ok(item) = FileExtentItem::parse(&bytes) {
                prop_assert_eq!(item.to_bytes(), bytes);
            }
        }
    }

    #[test]
    fn good_extents_pass() {
        assert_eq!(check(key(4096), &regular(PART).to_bytes()), Ok(()));
        assert_eq!(check(key(0), &inline(b"hello").to_bytes()), Ok(()));
        assert_eq!(check(key(0), &inline(b"").to_bytes()), Ok(()));
        let compressed = FileExtentItem { compression: Compression::Zstd, ram_bytes: 4000, ..inline(b"zz") };
        assert_eq!(check(key(0), &compressed.to_bytes()), Ok(()));
        assert_eq!(compressed.end(FileOffset(0), 4096), Some(FileOffset(4096)));
        // Old kernels wrote such ram_bytes.
        assert_eq!(check(key(0), &FileExtentItem { ram_bytes: 4096, ..regular(PART) }.to_bytes()), Ok(()));
        let hole = ExtentPart { disk_address: LogicalAddress(0), disk_length: 0, ..PART };
        assert!(hole.is_hole());
        assert_eq!(check(key(0), &regular(hole).to_bytes()), Ok(()));
    }

    #[test]
    fn each_header_check_detects_its_fault() {
        let good = regular(PART).to_bytes();
        let with = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            bytes
        };
        assert_eq!(fault(check(key(0), &good[..20])), "size");
        assert_eq!(fault(check(key(0), &good[..52])), "size");
        assert_eq!(fault(check(key(1), &good)), "key.offset");
        assert_eq!(fault(check(key(0), &with(16, 4))), "compression");
        assert_eq!(fault(check(key(0), &with(17, 1))), "encryption");
        assert_eq!(fault(check(key(0), &with(20, 3))), "extent_type");
        assert_eq!(fault(check(key(0), &with(20, 0))), "ram_bytes");
        assert_eq!(fault(check(key(4096), &inline(b"hello").to_bytes())), "key.offset");
        let huge = FileExtentItem { compression: Compression::Zlib, ram_bytes: 132 << 10, ..regular(PART) };
        assert_eq!(fault(check(key(0), &huge.to_bytes())), "ram_bytes");
    }

    #[test]
    fn each_part_check_detects_its_fault() {
        let at = |offset, part| check(key(offset), &regular(part).to_bytes());
        assert_eq!(fault(at(0, ExtentPart { disk_address: LogicalAddress(1), ..PART })), "disk_address");
        assert_eq!(fault(at(0, ExtentPart { disk_length: 1, ..PART })), "disk_length");
        assert_eq!(fault(at(0, ExtentPart { offset: 1, ..PART })), "offset");
        assert_eq!(fault(at(0, ExtentPart { length: 1, ..PART })), "length");
        let odd = FileExtentItem { ram_bytes: 1, ..regular(PART) };
        assert_eq!(fault(check(key(0), &odd.to_bytes())), "ram_bytes");
        let last = u64::MAX - 4095;
        assert_eq!(fault(at(0, ExtentPart { disk_address: LogicalAddress(last), ..PART })), "disk_length");
        assert_eq!(fault(at(0, ExtentPart { offset: last, ..PART })), "length");
        assert_eq!(fault(at(last, PART)), "length");
    }

    #[test]
    fn overlapping_extents_are_refused() {
        let data = regular(PART).to_bytes();
        let after = |previous: &[u8], offset| {
            check_in(objectid::FS_TREE, Some((key(0), previous)), key(offset), &data)
        };
        assert_eq!(after(&data, 8192), Ok(()));
        assert_eq!(fault(after(&data, 4096)), "key.offset");
        // Inline data counts as whole sectors.
        assert_eq!(after(&inline(b"x").to_bytes(), 4096), Ok(()));
        assert_eq!(fault(after(&inline(&[0; 4097]).to_bytes(), 4096)), "key.offset");
    }
}
