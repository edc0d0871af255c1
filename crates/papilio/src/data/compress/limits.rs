//! The limits of a compressed extent, and the error of one that cannot be decoded.
//!
//! Owns [`MAX_UNCOMPRESSED`], [`MAX_COMPRESSED`], [`check_lengths`] and [`DecompressError`].
//! Kernel counterpart: `fs/btrfs/compression.h`.

use papilio_format::items::file_extent::Compression;

/// The most bytes of a compressed extent, uncompressed (`BTRFS_MAX_UNCOMPRESSED`).
pub(crate) const MAX_UNCOMPRESSED: u64 = 128 * 1024;

/// The most bytes of a compressed extent on disk (`BTRFS_MAX_COMPRESSED`).
pub(crate) const MAX_COMPRESSED: u64 = 128 * 1024;

/// Why an extent cannot be decoded.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DecompressError {
    #[error("compressed extent of {length} bytes {what}: at most {limit} are possible")]
    TooLong { what: &'static str, length: u64, limit: u64 },
    #[error("zlib: invalid stream header {0:#06x}")]
    ZlibHeader(u16),
    #[error("zlib: invalid data")]
    Zlib,
    #[error("zlib: the stream's Adler-32 is not that of its data")]
    ZlibChecksum,
    #[error("zlib: the stream does not end after its data")]
    ZlibEnd,
    #[error("{0}: stream ends after {1} of {2} bytes")]
    Truncated(Compression, usize, usize),
    #[error("lzo: total length {total} does not fit an extent of {length} bytes")]
    LzoTotal { total: u32, length: usize },
    #[error("lzo: segment of {length} bytes at {offset} ends after the total length {total}")]
    LzoSegment { offset: usize, length: u32, total: usize },
    #[error("{0}, in the segment at {1}")]
    Lzo(::lzo::Error, usize),
    #[error("zstd: {0}")]
    Zstd(&'static str),
    #[error("no decoder for compression type {0}")]
    NoDecoder(Compression),
}

/// Refuses a compressed extent that the kernel could not have written, before memory is allocated
/// for it.
///
/// # Errors
/// [`DecompressError::TooLong`].
pub(crate) fn check_lengths(compressed: u64, uncompressed: u64) -> Result<(), DecompressError> {
    let check = |what, length, limit| {
        if length > limit { Err(DecompressError::TooLong { what, length, limit }) } else { Ok(()) }
    };
    check("on disk", compressed, MAX_COMPRESSED)?;
    check("uncompressed", uncompressed, MAX_UNCOMPRESSED)
}
