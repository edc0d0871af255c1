//! Compression of file data: zlib, LZO in Btrfs' framing, and zstd.
//!
//! Owns [`compress`], [`compress_inline`], [`decompress`], and the encoders and decoders of each
//! thread. They are made once and reused, so that the steady state allocates nothing. All sizes are
//! bounded: at most [`MAX_UNCOMPRESSED`] bytes go in or come out, and the compressed form is one
//! extent. [`heuristic`] filters out data that is not worth trying.
//!
//! Locks: none. Kernel counterparts: `fs/btrfs/zlib.c`, `fs/btrfs/lzo.c`, `fs/btrfs/zstd.c`,
//! `btrfs_decompress` (`fs/btrfs/compression.c`), `compress_file_range` (`fs/btrfs/inode.c`).

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

/// The encoders and decoders of one thread.
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
/// which is cleared first. Returns whether the result, rounded up to sectors, is at least one
/// sector shorter than the input rounded up. If so, `output` is the extent as it goes to the
/// device, padded with zeros to whole sectors. If not, its content is undefined.
///
/// # Panics
/// With a longer input.
pub(crate) fn compress(
    choice: CompressionChoice,
    input: &[u8],
    output: &mut Vec<u8>,
    sector_size: u32,
) -> bool {
    assert!(input.len() as u64 <= MAX_UNCOMPRESSED, "the input is longer than an extent");
    let sector = sector_size as usize;
    // The most bytes of the result, with padding.
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

/// Compresses `input`, at most a sector, into `output` for an inline extent, without padding.
/// Returns whether the result is shorter than the input. If not, the content of `output` is
/// undefined.
///
/// # Panics
/// With a longer input.
pub(crate) fn compress_inline(
    choice: CompressionChoice,
    input: &[u8],
    output: &mut Vec<u8>,
    sector_size: u32,
) -> bool {
    assert!(input.len() <= sector_size as usize, "the input is longer than an inline extent");
    let Some(limit) = input.len().checked_sub(1) else { return false };
    encode(choice, input, output, sector_size as usize, limit, true)
}

/// Replaces `output` by the compressed form; returns `false` if that takes more than `limit` bytes.
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

/// Decodes `input`, a whole extent with padding, into `output`, which is as long as the
/// uncompressed extent (`ram_bytes`). A shorter stream leaves zeros; a longer one is cut, as in the
/// kernel.
///
/// # Errors
/// [`DecompressError`]; the content of `output` is then undefined.
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
