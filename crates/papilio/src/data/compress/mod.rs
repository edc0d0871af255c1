//! Compression of file data: zlib, LZO in Btrfs' framing, zstd, both ways.
//!
//! Owns [`compress`], [`compress_inline`], [`decompress`], and each thread's encoders and decoders,
//! which are made once and reused, so that the steady state allocates nothing. Every bound is known
//! beforehand: at most [`MAX_UNCOMPRESSED`] bytes go in or come out, and the compressed form is one
//! extent. [`heuristic`] tells what is not worth trying.
//!
//! Locks: none. Kernel counterparts: `fs/btrfs/zlib.c`, `fs/btrfs/lzo.c`, `fs/btrfs/zstd.c`,
//! `btrfs_decompress` (`fs/btrfs/compression.c`) and `compress_file_range` (`fs/btrfs/inode.c`).

mod heuristic;
mod limits;
mod lzo;
mod lzo1x;
#[cfg(test)]
mod tests;
mod zlib;
mod zstd;

pub(crate) use heuristic::is_compressible;
pub(crate) use limits::{DecompressError, MAX_COMPRESSED, MAX_UNCOMPRESSED};

use crate::options::CompressionChoice;
use limits::check_lengths;
use papilio_format::items::file_extent::Compression;
use std::cell::RefCell;

/// What one thread encodes and decodes with.
#[derive(Default)]
struct Coders {
    zlib: zlib::Zlib,
    lzo: lzo::Lzo,
    zstd: zstd::Zstd,
}

thread_local! {
    static CODERS: RefCell<Coders> = RefCell::default();
}

/// Compresses `input`, the data of one extent (at most [`MAX_UNCOMPRESSED`] bytes), into `output`,
/// whose former content goes. Returns whether that is worth while: whether the result, rounded up to
/// sectors, is at least one sector shorter than the input rounded up. If so `output` is the extent as
/// it is written, padded with zeros to whole sectors; else it holds anything.
///
/// # Panics
/// With a longer input.
pub(crate) fn compress(
    choice: CompressionChoice,
    input: &[u8],
    output: &mut Vec<u8>,
    sector_size: u32,
) -> bool {
    assert!(input.len() as u64 <= MAX_UNCOMPRESSED, "an extent's data");
    let sector = sector_size as usize;
    // What the result may have at most, padded.
    let Some(limit) = input.len().next_multiple_of(sector).checked_sub(sector).filter(|&limit| limit > 0)
    else {
        return false;
    };
    let limit = limit.min(MAX_COMPRESSED as usize);
    if !encode(choice, input, output, sector, limit, false) {
        return false;
    }
    output.resize(output.len().next_multiple_of(sector), 0);
    true
}

/// Compresses `input`, at most a sector, into `output` for an inline extent, which is not padded.
/// Returns whether the result is shorter than the input; if not `output` holds anything.
///
/// # Panics
/// With a longer input.
pub(crate) fn compress_inline(
    choice: CompressionChoice,
    input: &[u8],
    output: &mut Vec<u8>,
    sector_size: u32,
) -> bool {
    assert!(input.len() <= sector_size as usize, "an inline extent's data");
    let Some(limit) = input.len().checked_sub(1) else { return false };
    encode(choice, input, output, sector_size as usize, limit, true)
}

/// Replaces `output` by the compressed form, unless that is more than `limit` bytes.
fn encode(
    choice: CompressionChoice,
    input: &[u8],
    output: &mut Vec<u8>,
    sector: usize,
    limit: usize,
    inline: bool,
) -> bool {
    output.clear();
    CODERS.with_borrow_mut(|coders| match choice.algorithm() {
        Compression::Zlib => coders.zlib.encode(choice.level(), input, output, limit),
        Compression::Lzo => coders.lzo.encode(input, output, sector, limit, inline),
        Compression::Zstd => coders.zstd.encode(choice.level(), input, output, limit),
        Compression::None => false,
    })
}

/// Decodes the whole of `input`, an extent with the padding behind its stream, into `output`, which
/// is as long as the uncompressed extent (`ram_bytes`). A stream that holds less leaves zeros, one
/// that holds more is cut, as the kernel does.
///
/// # Errors
/// [`DecompressError`]; `output` then holds anything.
pub(crate) fn decompress(
    compression: Compression,
    input: &[u8],
    output: &mut [u8],
    sector_size: u32,
) -> Result<(), DecompressError> {
    check_lengths(input.len() as u64, output.len() as u64)?;
    if output.is_empty() {
        return Ok(());
    }
    let filled = CODERS.with_borrow_mut(|coders| match compression {
        Compression::Zlib => coders.zlib.decode(input, output),
        Compression::Lzo => coders.lzo.decode(input, output, sector_size as usize),
        Compression::Zstd => coders.zstd.decode(input, output),
        Compression::None => Err(DecompressError::NoDecoder(compression)),
    })?;
    output[filled..].fill(0);
    Ok(())
}
