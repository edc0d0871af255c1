//! The limits of a compressed extent, and the error of one that cannot be decoded.
//!
//! Owns [`MAX_UNCOMPRESSED`], [`MAX_COMPRESSED`], [`check_lengths`] and [`DecompressError`].
//! Kernel counterpart: `fs/btrfs/compression.h`.

use papilio_format::items::file_extent::Compression;

/// The most bytes of a compressed extent, uncompressed (`BTRFS_MAX_UNCOMPRESSED`).
pub const MAX_UNCOMPRESSED: u64 = 128 * 1024;

/// The most bytes of a compressed extent on disk (`BTRFS_MAX_COMPRESSED`).
pub const MAX_COMPRESSED: u64 = 128 * 1024;

/// Why an extent cannot be decoded.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecompressError {
    /// More compressed or decompressed bytes than an extent can have.
    #[error("compressed extent of {length} bytes {what}: at most {limit} are possible")]
    TooLong {
        /// The unit that is counted, for the message.
        what: &'static str,
        /// The length, in bytes.
        length: u64,
        /// The most that is allowed, in bytes.
        limit: u64,
    },
    /// The first two bytes are no header of a zlib stream (RFC 1950).
    #[error("zlib: invalid stream header {0:#06x}")]
    ZlibHeader(u16),
    /// The deflate data is invalid.
    #[error("zlib: invalid data")]
    Zlib,
    /// The checksum at the stream's end is wrong.
    #[error("zlib: the stream's Adler-32 is not that of its data")]
    ZlibChecksum,
    /// Data follows where the stream should end.
    #[error("zlib: the stream does not end after its data")]
    ZlibEnd,
    /// The stream ends after the second of the third number of bytes.
    #[error("{0}: stream ends after {1} of {2} bytes")]
    Truncated(Compression, usize, usize),
    /// The total length at the start contradicts the extent's length.
    #[error("lzo: total length {total} does not fit an extent of {length} bytes")]
    LzoTotal {
        /// The total length, in bytes.
        total: u32,
        /// The extent's length on disk, in bytes.
        length: usize,
    },
    /// A segment ends behind the total length.
    #[error("lzo: segment of {length} bytes at {offset} ends after the total length {total}")]
    LzoSegment {
        /// The segment's offset in the extent.
        offset: usize,
        /// The segment's length, in bytes.
        length: u32,
        /// The total length, in bytes.
        total: usize,
    },
    /// A segment, at the given offset in the extent, is invalid.
    #[error("{0}, in the segment at {1}")]
    Lzo(::lzo::Error, usize),
    /// The zstd frame is invalid, for this reason of the decoder.
    #[error("zstd: {0}")]
    Zstd(&'static str),
    /// The type of compression is unknown.
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
