//! Generators that the fuzz targets share: geometries, keys and tree blocks from a fuzzer's bytes.
//!
//! The generated blocks are valid in their outer layers (checksum, identity, item bounds), so that
//! the fuzzer's bytes reach the inner checks. [`Patches`] then overwrites any bytes of a block, and
//! the target repairs the checksum. [`fuse`] makes messages of the FUSE protocol, [`sources`] loads
//! file systems to convert, and [`backups`] makes repositories and archives.

pub mod backups;
pub mod fuse;
pub mod images;
pub mod sources;

use arbitrary::{Arbitrary, Unstructured};
use papilio_format::checksum::CHECKSUM_SIZE;
use papilio_format::features::{CompatRoFeatures, IncompatFeatures};
use papilio_format::key::{ItemType, Key};
use papilio_format::node::{ItemHeader, KeyPointer, NodeHeader};
use papilio_format::{ChecksumType, Generation, Geometry, LogicalAddress, TreeId, Uuid};

/// Returns whether an input is one of `one_in`, a power of two, that a target also checks.
///
/// A sum decides, not a byte of the input: libFuzzer keeps inputs that reach the check, so that
/// most of their descendants would be checked too.
pub fn is_checked(input: &[u8], one_in: u32) -> bool {
    let sum = input.iter().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)));
    sum.is_multiple_of(one_in)
}

/// The logical address in the header of every block.
pub const ADDRESS: LogicalAddress = LogicalAddress(0x1d0_0000);
/// The file system UUID of every block.
pub const FSID: Uuid = Uuid::from_bytes(*b"papilio fuzzing!");
/// The generation of the last transaction.
pub const GENERATION: Generation = Generation(1000);

/// An arbitrary geometry that a superblock can have.
#[derive(Clone, Copy, Debug)]
pub struct AnyGeometry(pub Geometry);

impl<'a> Arbitrary<'a> for AnyGeometry {
    fn arbitrary(input: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let sector_log: u32 = input.int_in_range(12..=16)?;
        let node_log: u32 = input.int_in_range(sector_log..=16)?;
        Ok(Self(Geometry {
            node_size: 1 << node_log,
            sector_size: 1 << sector_log,
            checksum_type: *input.choose(&ChecksumType::ALL)?,
            incompat: IncompatFeatures::from_bits_retain(u64::from(input.arbitrary::<u32>()? & 0x1_ffff)),
            compat_ro: CompatRoFeatures::from_bits_retain(u64::from(input.arbitrary::<u8>()? & 0xf)),
            metadata_uuid: FSID,
            generation: GENERATION,
        }))
    }
}

/// Generates a number of a kind that keys, addresses and sizes have: small, aligned, extreme or
/// any.
pub fn number(input: &mut Unstructured<'_>) -> arbitrary::Result<u64> {
    let small = u64::from(input.arbitrary::<u16>()?);
    Ok(match input.int_in_range(0..=7_u8)? {
        0 => small & 0xff,
        1 => small,
        2 => 256 + (small & 0xff),
        3 => small << 12,
        4 => small << 16,
        5 => u64::MAX - (small & 0xff),
        6 => 1 << (small & 63),
        _ => input.arbitrary()?,
    })
}

/// An arbitrary key, mostly of a known item type.
#[derive(Clone, Copy, Debug)]
pub struct AnyKey(pub Key);

impl<'a> Arbitrary<'a> for AnyKey {
    fn arbitrary(input: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let mut item_type = ItemType(input.arbitrary()?);
        // Three of four keys get the next known type.
        if input.ratio(3, 4)? {
            while item_type.name().is_none() {
                item_type.0 = item_type.0.wrapping_add(1);
            }
        }
        Ok(Self(Key::new(number(input)?, item_type, number(input)?)))
    }
}

/// Generates the id of the tree that a block claims to belong to.
pub fn owner(input: &mut Unstructured<'_>) -> arbitrary::Result<TreeId> {
    Ok(TreeId(match input.int_in_range(0..=3_u8)? {
        0 => u64::from(input.arbitrary::<u8>()?),
        1 => u64::from(input.int_in_range(0..=13_u8)?),
        2 => 0_u64.wrapping_sub(u64::from(input.int_in_range(0..=12_u8)?)),
        _ => number(input)?,
    }))
}

/// Byte ranges to overwrite, and their new values.
#[derive(Arbitrary, Clone, Debug)]
pub struct Patches(Vec<(u16, Value)>);

#[derive(Arbitrary, Clone, Debug)]
enum Value {
    Byte(u8),
    Word(u32),
    Long(u64),
}

impl Patches {
    /// Whether there is nothing to overwrite.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Overwrites `bytes`. An offset past the end wraps around; a value is cut off at the end.
    pub fn apply(&self, bytes: &mut [u8]) {
        for (offset, value) in &self.0 {
            let value: &[u8] = match value {
                Value::Byte(value) => &value.to_le_bytes(),
                Value::Word(value) => &value.to_le_bytes(),
                Value::Long(value) => &value.to_le_bytes(),
            };
            let start = usize::from(*offset) % bytes.len();
            let end = (start + value.len()).min(bytes.len());
            bytes[start..end].copy_from_slice(&value[..end - start]);
        }
    }
}

/// Returns the header of a block with `item_count` entries.
pub fn header(owner: TreeId, level: u8, item_count: usize) -> NodeHeader {
    NodeHeader {
        csum: [0; CHECKSUM_SIZE],
        fsid: FSID,
        address: ADDRESS,
        flags: 1 | 1 << 56,
        chunk_tree_uuid: FSID,
        generation: GENERATION,
        owner,
        item_count: item_count as u32,
        level,
    }
}

/// Builds a leaf with as many of `items` as fit, in the given order.
pub fn leaf(geometry: &Geometry, owner: TreeId, items: &[(Key, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; geometry.node_size as usize];
    let mut data_start = bytes.len() - NodeHeader::SIZE;
    let mut count = 0;
    for (key, data) in items {
        if (count + 1) * ItemHeader::SIZE + data.len() > data_start {
            break;
        }
        data_start -= data.len();
        if data_start < (count + 1) * ItemHeader::SIZE {
            break;
        }
        let item = ItemHeader { key: *key, offset: data_start as u32, size: data.len() as u32 };
        write(&mut bytes, NodeHeader::SIZE + count * ItemHeader::SIZE, &item.to_bytes());
        write(&mut bytes, NodeHeader::SIZE + data_start, data);
        count += 1;
    }
    write(&mut bytes, 0, &header(owner, 0, count).to_bytes());
    bytes
}

/// Builds an internal node with as many of `children` as fit.
pub fn internal(geometry: &Geometry, owner: TreeId, level: u8, children: &[KeyPointer]) -> Vec<u8> {
    let mut bytes = vec![0; geometry.node_size as usize];
    let count = children.len().min((bytes.len() - NodeHeader::SIZE) / KeyPointer::SIZE);
    for (slot, child) in children[..count].iter().enumerate() {
        write(&mut bytes, NodeHeader::SIZE + slot * KeyPointer::SIZE, &child.to_bytes());
    }
    write(&mut bytes, 0, &header(owner, level, count).to_bytes());
    bytes
}

/// Formats a value for inspection without keeping the text.
pub fn format_nowhere(value: &impl std::fmt::Debug) {
    struct Nowhere;
    impl std::fmt::Write for Nowhere {
        fn write_str(&mut self, _text: &str) -> std::fmt::Result {
            Ok(())
        }
    }
    let _ = std::fmt::write(&mut Nowhere, format_args!("{value:?}"));
}

/// Stores the checksum of the rest of `bytes` at their start.
pub fn repair(checksum_type: ChecksumType, bytes: &mut [u8]) {
    let checksum = checksum_type.compute(&bytes[CHECKSUM_SIZE..]);
    bytes[..CHECKSUM_SIZE].copy_from_slice(checksum.padded());
}

fn write(bytes: &mut [u8], start: usize, data: &[u8]) {
    bytes[start..start + data.len()].copy_from_slice(data);
}
