//! Raw images compressed with xz in several blocks.
//!
//! Owns [`open`]. The index at the end of an xz stream has the size of each block, compressed and
//! not (The .xz File Format, version 1.2.1). A block is decompressed as a stream of its own, made
//! of the stream's header, the block, and an index with one record, so that its checksum is
//! checked. Several streams may follow one another.

use super::blocks::{Block, BlockDevice, Decoder, read_range};
use crate::device::Device;
use crate::error::OpenErrorKind;
use std::io::{self, Read};
use std::sync::Arc;

const FORMAT: &str = "xz";
const ADVICE: &str = "compress it in blocks, for example with xz --block-size=1MiB";
const HEADER_MAGIC: &[u8; 6] = b"\xfd7zXZ\0";
const FOOTER_MAGIC: &[u8; 2] = b"YZ";
/// Bytes of the header of a stream, and of its footer.
const FRAME: u64 = 12;
/// The most bytes of an index. It has about 8 bytes for each block.
const MAX_INDEX: u64 = 64 << 20;
/// The most memory of a decompressor in KiB: the dictionary of xz -9 has 64 MiB.
const MEMORY_KIB: u32 = 256 << 10;

fn fault(reason: impl Into<String>) -> OpenErrorKind {
    OpenErrorKind::Image { format: FORMAT, reason: reason.into() }
}

fn crc32(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, bytes) as u32
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

/// Opens a compressed image.
pub(super) fn open(file: Arc<dyn Device>) -> Result<BlockDevice, OpenErrorKind> {
    let mut end = file.size();
    let mut streams = Vec::new();
    // From the last stream to the first, since only the end of a stream says where it starts.
    while end > 0 {
        let stream = read_stream(&*file, end)?;
        end = stream.start;
        streams.push(stream);
    }
    streams.reverse();
    let checks = streams.iter().map(|stream| (stream.start, stream.flags)).collect();
    let blocks = streams.into_iter().flat_map(|stream| stream.blocks).collect();
    BlockDevice::new(file, Box::new(Blocks { checks }), blocks, FORMAT, ADVICE)
}

/// A stream of the file.
struct Stream {
    start: u64,
    /// The kind of the checksum of each block.
    flags: [u8; 2],
    blocks: Vec<Block>,
}

/// Reads the index of the stream that ends at `end`, or before the padding there.
fn read_stream(file: &dyn Device, end: u64) -> Result<Stream, OpenErrorKind> {
    let read = |offset, length| read_range(file, offset, length).map_err(OpenErrorKind::Io);
    let truncated = || fault("it is truncated or has bytes behind its end");
    let mut end = end;
    let footer = loop {
        let start = end.checked_sub(FRAME).ok_or_else(truncated)?;
        let footer = read(start, FRAME)?;
        if footer[8..] != [0; 4] {
            break footer;
        }
        end -= 4;
    };
    if &footer[10..] != FOOTER_MAGIC || crc32(&footer[4..10]) != le32(&footer, 0) {
        return Err(truncated());
    }
    let index_size = (u64::from(le32(&footer, 4)) + 1) * 4;
    let flags = [footer[8], footer[9]];
    if index_size > MAX_INDEX {
        return Err(fault("its index is too large"));
    }
    let index_start = end.checked_sub(FRAME + index_size).ok_or_else(truncated)?;
    let index = read(index_start, index_size)?;
    let body = index.len() - 4;
    if crc32(&index[..body]) != le32(&index, body) || index[0] != 0 {
        return Err(fault("its index is damaged"));
    }
    let records = parse_index(&index[1..body]).ok_or_else(|| fault("its index is damaged"))?;
    let packed = records.iter().try_fold(0u64, |sum, (unpadded, _)| sum.checked_add(padded(*unpadded)?));
    let start = packed.and_then(|packed| index_start.checked_sub(packed)?.checked_sub(FRAME));
    let start = start.ok_or_else(|| fault("its index names more bytes than it has"))?;
    let header = read(start, FRAME)?;
    if !header.starts_with(HEADER_MAGIC) || header[6..8] != flags {
        return Err(fault("the header of a stream is not where its index says"));
    }
    let mut place = start + FRAME;
    let mut blocks = Vec::with_capacity(records.len());
    for (unpadded, length) in records {
        // The padding is before the checksum of the block. The sum of all was checked above.
        let packed = padded(unpadded).unwrap_or(0);
        if length > 0 {
            blocks.push(Block { place, packed, unpadded, length });
        }
        place += packed;
    }
    Ok(Stream { start, flags, blocks })
}

fn padded(unpadded: u64) -> Option<u64> {
    unpadded.checked_next_multiple_of(4)
}

/// Parses the records of an index: unpadded and uncompressed size of each block.
fn parse_index(mut bytes: &[u8]) -> Option<Vec<(u64, u64)>> {
    let count = take_integer(&mut bytes)?;
    // A record has two bytes at least.
    if count > bytes.len() as u64 / 2 {
        return None;
    }
    let mut records = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let unpadded = take_integer(&mut bytes).filter(|size| *size > 0)?;
        records.push((unpadded, take_integer(&mut bytes)?));
    }
    (bytes.len() < 4 && bytes.iter().all(|byte| *byte == 0)).then_some(records)
}

/// Takes an integer of seven bits a byte, lowest first.
fn take_integer(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..63).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn put_integer(into: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        into.push(value as u8 | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}

/// The decoder of blocks.
#[derive(Debug)]
struct Blocks {
    /// The start of each stream and the flags in its header.
    checks: Vec<(u64, [u8; 2])>,
}

impl Decoder for Blocks {
    fn decode(&self, file: &dyn Device, block: &Block) -> io::Result<Vec<u8>> {
        let stream = self.checks.partition_point(|(start, _)| *start < block.place);
        let flags = self.checks[stream - 1].1;
        let mut packed = Vec::with_capacity((block.packed + 64) as usize);
        packed.extend_from_slice(HEADER_MAGIC);
        packed.extend_from_slice(&flags);
        packed.extend_from_slice(&crc32(&flags).to_le_bytes());
        packed.extend(read_range(file, block.place, block.packed)?);
        let index_start = packed.len();
        packed.extend([0, 1]);
        put_integer(&mut packed, block.unpadded);
        put_integer(&mut packed, block.length);
        packed.resize(packed.len().next_multiple_of(4), 0);
        let sum = crc32(&packed[index_start..]);
        packed.extend(sum.to_le_bytes());
        let index_size = packed.len() - index_start;
        let mut footer = ((index_size / 4 - 1) as u32).to_le_bytes().to_vec();
        footer.extend_from_slice(&flags);
        packed.extend(crc32(&footer).to_le_bytes());
        packed.extend(footer);
        packed.extend_from_slice(FOOTER_MAGIC);

        let reader = lzma_rust2::XzReader::new_mem_limit(&packed[..], false, MEMORY_KIB);
        let mut bytes = Vec::with_capacity(block.length as usize);
        // One byte more, so that the reader gets to the checksum.
        reader.take(block.length + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}
