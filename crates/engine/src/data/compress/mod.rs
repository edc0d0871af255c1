//! Compression of file data: zlib, LZO in Btrfs' framing, and zstd.
//!
//! Owns [`compress`], [`compress_inline`], [`decompress`], [`verify_stream`], and the encoders and
//! decoders of each thread. They are made once and reused, so that the steady state allocates
//! nothing. All sizes are bounded: at most [`MAX_UNCOMPRESSED`] bytes go in or come out, and the
//! compressed form is one extent. [`heuristic`] filters out data that is not worth trying.
//!
//! **Invariant**: what [`VerifyCompression`] selects was decoded and compared with the input. A
//! result that differs is not used, and the thread's coders are made anew.
//!
//! Locks: none. Kernel counterparts: `fs/btrfs/zlib.c`, `fs/btrfs/lzo.c`, `fs/btrfs/zstd.c`,
//! `btrfs_decompress` (`fs/btrfs/compression.c`), `compress_file_range` (`fs/btrfs/inode.c`).

#[cfg(test)]
mod cost;
mod heuristic;
mod limits;
mod lzo;
mod lzo1x;
#[cfg(test)]
mod mixtures;
#[cfg(test)]
mod tests;
mod zlib;
mod zstd;

pub(crate) use heuristic::is_compressible;
pub use limits::{DecompressError, MAX_COMPRESSED, MAX_UNCOMPRESSED};

use crate::options::CompressionChoice;
use crate::tuning::VerifyCompression;
use limits::check_lengths;
use papilio_format::items::file_extent::Compression;
use std::cell::RefCell;

/// The encoders and decoders of one thread.
#[derive(Default)]
struct Coders {
    zlib: zlib::Zlib,
    lzo: lzo::Lzo,
    zstd: zstd::Zstd,
    /// The output of a decoder whose bytes are only compared.
    decoded: Vec<u8>,
}

thread_local! {
    static CODERS: RefCell<Coders> = RefCell::default();
}

/// The lowest levels at which decoding costs less than a tenth of encoding, see `docs/writing.md`.
const CHEAP_ZLIB: i32 = 7;
const CHEAP_ZSTD: i32 = 5;

impl VerifyCompression {
    /// Whether the results of an encoder are decoded and compared.
    fn covers(self, choice: CompressionChoice) -> bool {
        let is_cheap = match choice.algorithm() {
            Compression::Zlib => choice.level() >= CHEAP_ZLIB,
            Compression::Zstd => choice.level() >= CHEAP_ZSTD,
            Compression::Lzo | Compression::None => false,
        };
        is_cheap || self == Self::Always || cfg!(debug_assertions)
    }
}

/// Compresses `input`, the data of one extent (at most [`MAX_UNCOMPRESSED`] bytes), into `output`,
/// which is cleared first. Returns whether the result, rounded up to sectors, is at least one
/// sector shorter than the input rounded up. If so, `output` is the extent as it goes to the
/// device, padded with zeros to whole sectors. If not, its content is undefined.
///
/// # Panics
/// With a longer input.
pub fn compress(
    choice: CompressionChoice,
    input: &[u8],
    output: &mut Vec<u8>,
    sector_size: u32,
    verify: VerifyCompression,
) -> bool {
    assert!(input.len() as u64 <= MAX_UNCOMPRESSED, "the input is longer than an extent");
    let sector = sector_size as usize;
    // The most bytes of the result, with padding.
    let Some(limit) = input.len().next_multiple_of(sector).checked_sub(sector).filter(|&limit| limit > 0)
    else {
        return false;
    };
    let limit = limit.min(MAX_COMPRESSED as usize);
    let framing = Framing { sector, inline: false };
    if !CODERS.with_borrow_mut(|coders| coders.encode(choice, input, output, limit, framing, verify)) {
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
    verify: VerifyCompression,
) -> bool {
    assert!(input.len() <= sector_size as usize, "the input is longer than an inline extent");
    let Some(limit) = input.len().checked_sub(1) else { return false };
    let framing = Framing { sector: sector_size as usize, inline: true };
    CODERS.with_borrow_mut(|coders| coders.encode(choice, input, output, limit, framing, verify))
}

/// How LZO frames its segments.
#[derive(Clone, Copy)]
struct Framing {
    /// Bytes of a sector.
    sector: usize,
    inline: bool,
}

impl Coders {
    /// Replaces `output` by the compressed form; returns `false` if that takes more than `limit`
    /// bytes, or is not what was compressed.
    fn encode(
        &mut self,
        choice: CompressionChoice,
        input: &[u8],
        output: &mut Vec<u8>,
        limit: usize,
        framing: Framing,
        verify: VerifyCompression,
    ) -> bool {
        let fits = self.pack(choice, input, output, limit, framing);
        #[cfg(test)]
        tests::damage(output);
        if !fits || !verify.covers(choice) {
            return fits;
        }
        let mut decoded = std::mem::take(&mut self.decoded);
        decoded.resize(input.len(), 0);
        let filled = self.decode(choice.algorithm(), output, &mut decoded, framing.sector);
        if matches!(filled, Ok(filled) if filled == input.len()) && decoded == input {
            self.decoded = decoded;
            return true;
        }
        let error = filled.err().map(|error| error.to_string());
        tracing::warn!(
            %choice,
            bytes = input.len(),
            error,
            "a compressor gave other data than it was given: the data is stored uncompressed"
        );
        *self = Self::default();
        false
    }

    /// As [`Self::encode`], but verifies nothing.
    fn pack(
        &mut self,
        choice: CompressionChoice,
        input: &[u8],
        output: &mut Vec<u8>,
        limit: usize,
        framing: Framing,
    ) -> bool {
        output.clear();
        let Framing { sector, inline } = framing;
        match choice.algorithm() {
            Compression::Zlib => self.zlib.encode(choice.level(), input, output, limit),
            Compression::Lzo => self.lzo.encode(input, output, sector, limit, inline),
            Compression::Zstd => self.zstd.encode(choice.level(), input, output, limit),
            Compression::None => false,
        }
    }

    /// Decodes `input` into `output`, and returns the bytes filled.
    fn decode(
        &mut self,
        compression: Compression,
        input: &[u8],
        output: &mut [u8],
        sector: usize,
    ) -> Result<usize, DecompressError> {
        match compression {
            Compression::Zlib => self.zlib.decode(input, output),
            Compression::Lzo => self.lzo.decode(input, output, sector),
            Compression::Zstd => self.zstd.decode(input, output),
            Compression::None => Err(DecompressError::NoDecoder(compression)),
        }
    }
}

/// Decodes `input`, a whole extent with padding, into `output`, which is as long as the
/// uncompressed extent (`ram_bytes`). A shorter stream leaves zeros; a longer one is cut, as in the
/// kernel.
///
/// # Errors
/// [`DecompressError`]; the content of `output` is then undefined.
pub fn decompress(
    compression: Compression,
    input: &[u8],
    output: &mut [u8],
    sector_size: u32,
) -> Result<(), DecompressError> {
    check_lengths(input.len() as u64, output.len() as u64)?;
    if output.is_empty() {
        return Ok(());
    }
    let sector = sector_size as usize;
    let filled = CODERS.with_borrow_mut(|coders| coders.decode(compression, input, output, sector))?;
    output[filled..].fill(0);
    Ok(())
}

/// Decodes `input` as [`decompress`] does, into `length` bytes that are dropped. Also compares the
/// end of a zlib stream and its checksum, which readers ignore: a wrong stream may decode by
/// chance.
///
/// # Errors
/// [`DecompressError`].
pub fn verify_stream(
    compression: Compression,
    input: &[u8],
    length: u64,
    sector_size: u32,
) -> Result<(), DecompressError> {
    check_lengths(input.len() as u64, length)?;
    if length == 0 {
        return Ok(());
    }
    CODERS.with_borrow_mut(|coders| {
        let mut decoded = std::mem::take(&mut coders.decoded);
        decoded.resize(MAX_UNCOMPRESSED as usize, 0);
        let length = length as usize;
        let result = match compression {
            Compression::Zlib => coders.zlib.verify(input, length, &mut decoded),
            _ => coders.decode(compression, input, &mut decoded[..length], sector_size as usize).map(drop),
        };
        coders.decoded = decoded;
        result
    })
}
