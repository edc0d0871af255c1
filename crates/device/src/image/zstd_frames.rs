//! Raw images compressed with zstd in the seekable format.
//!
//! Owns [`open`]. The last frame of such a file is a skippable one with the sizes of all others
//! (zstd's contrib/seekable_format/zstd_seekable_compression_format.md). A file without it is one
//! block, which is decompressed into memory if it is small.

use super::blocks::{Block, BlockDevice, Decoder, MAX_WHOLE, read_range};
use crate::device::Device;
use crate::error::OpenErrorKind;
use std::io::{self, Read};
use std::sync::Arc;

const FORMAT: &str = "zstd";
const ADVICE: &str = "make a seekable file of smaller frames, with zeekstd or t2sz -r";
/// The magic number at the end of the table.
const FOOTER_MAGIC: u32 = 0x8f92_eab1;
const FOOTER_SIZE: u64 = 9;
/// The magic number of the skippable frame that has the table.
const TABLE_MAGIC: u32 = 0x184d_2a5e;
const HEADER_SIZE: u64 = 8;
/// The most frames; the format's own limit.
const MAX_FRAMES: u32 = 0x800_0000;
/// The most bytes of a window that a decompressor keeps, as a power of two.
const WINDOW_LOG: u32 = 27;

fn fault(reason: impl Into<String>) -> OpenErrorKind {
    OpenErrorKind::Image { format: FORMAT, reason: reason.into() }
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

/// Opens a compressed image.
pub(super) fn open(file: Arc<dyn Device>) -> Result<BlockDevice, OpenErrorKind> {
    let blocks = match seek_table(&*file)? {
        Some(blocks) => blocks,
        None => vec![whole(&*file)?],
    };
    BlockDevice::new(file, Box::new(Frames), blocks, FORMAT, ADVICE)
}

/// Reads the table of frames; `None` if the file has none.
fn seek_table(file: &dyn Device) -> Result<Option<Vec<Block>>, OpenErrorKind> {
    let size = file.size();
    if size < HEADER_SIZE + FOOTER_SIZE {
        return Ok(None);
    }
    let footer = read_range(file, size - FOOTER_SIZE, FOOTER_SIZE).map_err(OpenErrorKind::Io)?;
    if le32(&footer, 5) != FOOTER_MAGIC {
        return Ok(None);
    }
    let (frames, flags) = (le32(&footer, 0), footer[4]);
    if frames > MAX_FRAMES || flags & 0x7c != 0 {
        return Err(fault("the footer of its seek table is wrong"));
    }
    let entry: u64 = if flags & 0x80 != 0 { 12 } else { 8 };
    let content = u64::from(frames) * entry + FOOTER_SIZE;
    let Some(start) = size.checked_sub(content + HEADER_SIZE) else {
        return Err(fault("its seek table is larger than the file"));
    };
    let table = read_range(file, start, content + HEADER_SIZE).map_err(OpenErrorKind::Io)?;
    if le32(&table, 0) != TABLE_MAGIC || u64::from(le32(&table, 4)) != content {
        return Err(fault("the header of its seek table is wrong"));
    }
    let mut place = 0;
    let mut blocks = Vec::with_capacity(frames as usize);
    for bytes in table[HEADER_SIZE as usize..].chunks_exact(entry as usize).take(frames as usize) {
        let (packed, length) = (u64::from(le32(bytes, 0)), u64::from(le32(bytes, 4)));
        if place + packed > start {
            return Err(fault("its seek table names frames past the table"));
        }
        if length > 0 {
            blocks.push(Block { place, packed, unpadded: packed, length });
        }
        place += packed;
    }
    Ok(Some(blocks))
}

/// Returns a file without a table as one block. Finds its length by decompressing it.
fn whole(file: &dyn Device) -> Result<Block, OpenErrorKind> {
    let packed = file.size();
    let too_large = || {
        fault(format!(
            "it has no seek table and more than {} MiB, so each read would decompress all of it: {ADVICE}",
            MAX_WHOLE >> 20
        ))
    };
    if packed > MAX_WHOLE {
        return Err(too_large());
    }
    let bytes = read_range(file, 0, packed).map_err(OpenErrorKind::Io)?;
    let mut sink = io::sink();
    let mut decoder = decoder(&bytes).map_err(OpenErrorKind::Io)?.take(MAX_WHOLE + 1);
    let length = io::copy(&mut decoder, &mut sink).map_err(|error| fault(error.to_string()))?;
    if length > MAX_WHOLE {
        return Err(too_large());
    }
    Ok(Block { place: 0, packed, unpadded: packed, length })
}

fn decoder(bytes: &[u8]) -> io::Result<zstd::stream::read::Decoder<'static, &[u8]>> {
    let mut decoder = zstd::stream::read::Decoder::with_buffer(bytes)?;
    decoder.window_log_max(WINDOW_LOG)?;
    Ok(decoder)
}

/// The decoder of frames.
#[derive(Debug)]
struct Frames;

impl Decoder for Frames {
    fn decode(&self, file: &dyn Device, block: &Block) -> io::Result<Vec<u8>> {
        let packed = read_range(file, block.place, block.packed)?;
        let mut bytes = Vec::with_capacity(block.length as usize);
        decoder(&packed)?.take(block.length + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}
