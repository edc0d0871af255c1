//! `PartcloneLayout`: the header and the bitmap of an image, and where its blocks are.
//!
//! Version 2 begins with 110 bytes: a magic number of 16, the program's version of 14, `0002`, and
//! the order of bytes (`c0de`); the file system of 16 bytes, the size of the device, all blocks,
//! the blocks that the file system and that the bitmap has in use (8 each), and the size of a block
//! (4); 18 bytes of options: their size, the version, the bits of a processor, the kind and the
//! size of checksums (2 each), the blocks for each checksum (4), whether each checksum begins anew,
//! and the kind of bitmap (1 each); and a checksum of all that. A bitmap of one bit for each block
//! follows, with a checksum.
//!
//! Version 1 begins with 4,160 bytes: the magic number and the file system of 15 each, `0001`, 2
//! unused; the size of a block (4), the size of the device, all blocks and the used ones (8 each),
//! and 4,096 unused. A bitmap of one byte for each block follows, and then `BiTmAgIc`. Each block
//! has a checksum of 4 bytes, which that version computed wrongly and nobody verifies.
//!
//! Checksums are CRC-32 without the final inversion.

use super::error::{PartcloneError, PartcloneFault};
use std::io::{self, Read};

/// The first bytes of an image.
pub(super) const MAGIC: &[u8; 15] = b"partclone-image";
const HEADER_V2: usize = 110;
const HEADER_V1: usize = 4160;
const BITMAP_END_V1: &[u8; 8] = b"BiTmAgIc";
/// Bits of a bitmap for which a count is kept.
const RANK_BITS: u64 = 4096;
/// The kinds of checksums.
const NO_CHECKSUMS: u16 = 0;
const CRC32: u16 = 0x20;
/// The kind of bitmap that has a bit for each block.
const BIT_MODE: u8 = 1;

/// Where the blocks of a device are in an image.
#[derive(Clone, Debug)]
pub struct PartcloneLayout {
    pub(super) block_size: u64,
    pub(super) device_size: u64,
    pub(super) blocks: u64,
    pub(super) checksums: Option<BlockChecksums>,
    bitmap: Vec<u8>,
    /// The used blocks before each [`RANK_BITS`] blocks.
    ranks: Vec<u64>,
    pub(super) used: u64,
    /// Where the first used block is.
    pub(super) start: u64,
}

/// How blocks are verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockChecksums {
    /// Bytes of each.
    pub(super) size: u64,
    /// Blocks before each.
    pub(super) blocks: u64,
    pub(super) rule: ChecksumRule,
}

/// The blocks that a checksum covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChecksumRule {
    /// The blocks since the last one.
    Alone,
    /// All blocks before it.
    Together,
    /// Nobody knows: those of version 1.
    Ignored,
}

/// Returns CRC-32 without the final inversion.
pub(super) fn crc(bytes: &[u8]) -> u32 {
    !(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, bytes) as u32)
}

fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

/// Returns a name as the header has it.
fn name(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

impl PartcloneLayout {
    /// Reads header and bitmap.
    ///
    /// # Errors
    /// No image of Btrfs, or a damaged one.
    pub(super) fn read(input: &mut impl Read, image: &str) -> Result<Self, PartcloneError> {
        let at = |offset: usize, fault: PartcloneFault| PartcloneError::new(image, offset as u64, fault);
        let mut bytes = vec![0; HEADER_V2];
        fill(input, &mut bytes, image, 0)?;
        if !bytes.starts_with(MAGIC) {
            return Err(at(0, PartcloneFault::Magic));
        }
        // The magic number of version 2 has a zero behind it.
        match (&bytes[30..34], bytes[15]) {
            (b"0002", 0) => Self::read_v2(input, image, &bytes),
            _ if &bytes[30..34] == b"0001" => {
                bytes.resize(HEADER_V1, 0);
                fill(input, &mut bytes[HEADER_V2..], image, HEADER_V2)?;
                Self::read_v1(input, image, &bytes)
            }
            (version, _) => Err(at(30, PartcloneFault::Version(name(version)))),
        }
    }

    fn read_v2(input: &mut impl Read, image: &str, bytes: &[u8]) -> Result<Self, PartcloneError> {
        let at = |offset: u64, fault: PartcloneFault| PartcloneError::new(image, offset, fault);
        if le16(bytes, 34) == 0xdec0 {
            return Err(at(34, PartcloneFault::BigEndian));
        }
        let (stored, computed) = (le32(bytes, 106), crc(&bytes[..106]));
        if stored != computed {
            return Err(at(0, PartcloneFault::Checksum { part: "the header", stored, computed }));
        }
        let (kind, size, blocks) = (le16(bytes, 96), le16(bytes, 98), le32(bytes, 100));
        let rule = if bytes[104] == 0 { ChecksumRule::Together } else { ChecksumRule::Alone };
        let checksums = match kind {
            NO_CHECKSUMS => None,
            CRC32 if size == 4 && blocks > 0 => Some(BlockChecksums { size: 4, blocks: blocks.into(), rule }),
            _ => {
                return Err(at(96, PartcloneFault::Field { field: "kind of checksums", value: kind.into() }));
            }
        };
        if bytes[105] != BIT_MODE {
            let fault = PartcloneFault::Field { field: "kind of bitmap", value: bytes[105].into() };
            return Err(at(105, fault));
        }
        let mut layout = Self {
            block_size: le32(bytes, 84).into(),
            device_size: le64(bytes, 52),
            blocks: le64(bytes, 60),
            checksums,
            bitmap: Vec::new(),
            ranks: Vec::new(),
            used: 0,
            start: 0,
        };
        layout.check(image, &bytes[36..52])?;
        let length = layout.blocks.div_ceil(8);
        layout.bitmap = read_exactly(input, length, image, HEADER_V2 as u64)?;
        let place = HEADER_V2 as u64 + length;
        let sum = read_exactly(input, 4, image, place)?;
        let (stored, computed) = (le32(&sum, 0), crc(&layout.bitmap));
        if stored != computed {
            let fault = PartcloneFault::Checksum { part: "the bitmap", stored, computed };
            return Err(at(HEADER_V2 as u64, fault));
        }
        layout.start = place + 4;
        Ok(layout.counted())
    }

    fn read_v1(input: &mut impl Read, image: &str, bytes: &[u8]) -> Result<Self, PartcloneError> {
        let checksums = BlockChecksums { size: 4, blocks: 1, rule: ChecksumRule::Ignored };
        let mut layout = Self {
            block_size: le32(bytes, 36).into(),
            device_size: le64(bytes, 40),
            blocks: le64(bytes, 48),
            checksums: Some(checksums),
            bitmap: Vec::new(),
            ranks: Vec::new(),
            used: 0,
            start: 0,
        };
        layout.check(image, &bytes[15..30])?;
        let flags = read_exactly(input, layout.blocks, image, HEADER_V1 as u64)?;
        let place = HEADER_V1 as u64 + layout.blocks;
        if read_exactly(input, 8, image, place)? != BITMAP_END_V1 {
            let fault = PartcloneFault::Field { field: "mark behind the bitmap", value: 0 };
            return Err(PartcloneError::new(image, place, fault));
        }
        layout.bitmap = flags
            .chunks(8)
            .map(|flags| {
                let bits = flags.iter().enumerate();
                bits.fold(0, |byte, (bit, flag)| byte | (u8::from(*flag == 1) << bit))
            })
            .collect();
        layout.start = place + 8;
        Ok(layout.counted())
    }

    fn check(&self, image: &str, file_system: &[u8]) -> Result<(), PartcloneError> {
        let failed = |fault| Err(PartcloneError::new(image, 0, fault));
        let found = name(file_system);
        if !found.eq_ignore_ascii_case("btrfs") {
            return failed(PartcloneFault::FileSystem(found));
        }
        if !self.block_size.is_power_of_two() || !(512..=1 << 20).contains(&self.block_size) {
            return failed(PartcloneFault::Field { field: "size of a block", value: self.block_size });
        }
        // The last block may reach past the end.
        let blocks = self.device_size.div_ceil(self.block_size);
        if self.blocks == 0 || self.blocks > blocks {
            return failed(PartcloneFault::Field { field: "number of blocks", value: self.blocks });
        }
        Ok(())
    }

    /// Counts the used blocks.
    fn counted(mut self) -> Self {
        // Bits behind the last block count for nothing.
        let spare = self.blocks % 8;
        if spare > 0
            && let Some(last) = self.bitmap.last_mut()
        {
            *last &= (1 << spare) - 1;
        }
        for bytes in self.bitmap.chunks((RANK_BITS / 8) as usize) {
            self.ranks.push(self.used);
            self.used += bytes.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>();
        }
        self
    }

    /// Returns the size of the device in bytes.
    pub fn device_size(&self) -> u64 {
        self.device_size
    }

    /// Returns the size of a block in bytes.
    pub fn block_size(&self) -> u64 {
        self.block_size
    }

    /// Returns whether a block is in the image.
    pub(super) fn is_used(&self, block: u64) -> bool {
        block < self.blocks && self.bitmap[(block / 8) as usize] & (1 << (block % 8)) != 0
    }

    /// Returns the number of used blocks before one.
    pub(super) fn rank(&self, block: u64) -> u64 {
        let group = block / RANK_BITS;
        let first = (group * RANK_BITS / 8) as usize;
        let (whole, bits) = ((block / 8) as usize, block % 8);
        let count = |bytes: &[u8]| bytes.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>();
        let rest = self.bitmap.get(whole).map_or(0, |byte| (byte & ((1 << bits) - 1)).count_ones());
        self.ranks[group as usize] + count(&self.bitmap[first..whole]) + u64::from(rest)
    }

    /// Returns where the used block with a number is in the image.
    pub(super) fn place(&self, number: u64) -> Option<u64> {
        let sums = self.checksums.map_or(0, |sums| number / sums.blocks * sums.size);
        number.checked_mul(self.block_size)?.checked_add(self.start)?.checked_add(sums)
    }
}

/// Reads exactly `length` bytes, with no more memory than there are.
pub(super) fn read_exactly(
    input: &mut impl Read,
    length: u64,
    image: &str,
    offset: u64,
) -> Result<Vec<u8>, PartcloneError> {
    let mut bytes = Vec::new();
    let read = input.take(length).read_to_end(&mut bytes);
    read.map_err(|error| PartcloneError::new(image, offset, error))?;
    match bytes.len() as u64 == length {
        true => Ok(bytes),
        false => Err(PartcloneError::new(image, offset + bytes.len() as u64, PartcloneFault::Cut)),
    }
}

fn fill(input: &mut impl Read, bytes: &mut [u8], image: &str, offset: usize) -> Result<(), PartcloneError> {
    input.read_exact(bytes).map_err(|error| {
        let fault = match error.kind() {
            io::ErrorKind::UnexpectedEof => PartcloneFault::Cut,
            _ => PartcloneFault::Io(error),
        };
        PartcloneError::new(image, offset as u64, fault)
    })
}
