//! zlib: a stream with the zlib header, windows of 32 KiB.
//!
//! Owns [`Zlib`], one thread's encoder and decoder.
//!
//! **Invariant**: an encoder is used again only after a stream that it ended. The library's reset
//! does not undo all of an unfinished stream (see `docs/upstream/zlib-rs-reset.md`). So the output
//! has room for data that grows, and its length is judged afterwards.
//!
//! Locks: none. Kernel counterpart: `fs/btrfs/zlib.c`.

use super::limits::DecompressError;
use flate2::{Compress, Decompress, FlushCompress, FlushDecompress, Status};
use papilio_format::items::file_extent::Compression;

/// Returns room for the stream of `length` bytes at any level. The most come from fixed codes of 9
/// bits for each byte (level 1) and from stored blocks; a header, a trailer and the ends of blocks
/// are added.
const fn bound(length: usize) -> usize {
    length + length.div_ceil(8) + (length >> 10) + 64
}

/// The zlib coders of one thread.
#[derive(Default)]
pub(super) struct Zlib {
    /// The encoder and the level that it was made for: a file system uses one level at a time.
    encoder: Option<(i32, Compress)>,
    decoder: Option<Decompress>,
}

impl Zlib {
    /// Compresses with level 1 to 9; returns `false` if that takes more than `limit` bytes.
    pub(super) fn encode(&mut self, level: i32, input: &[u8], output: &mut Vec<u8>, limit: usize) -> bool {
        if self.encoder.as_ref().is_none_or(|(made_for, _)| *made_for != level) {
            let setting = flate2::Compression::new(level.clamp(1, 9) as u32);
            self.encoder = Some((level, Compress::new(setting, true)));
        }
        let (_, encoder) = self.encoder.as_mut().expect("made above");
        encoder.reset();
        output.resize(bound(input.len()), 0);
        let status = encoder.compress(input, output, FlushCompress::Finish);
        let length = encoder.total_out() as usize;
        if !matches!(status, Ok(Status::StreamEnd)) {
            self.encoder = None;
            return false;
        }
        output.truncate(length);
        length <= limit
    }

    /// Decompresses `input` into `output`, and returns the bytes filled. Like the kernel, it
    /// inflates the raw stream after the header and ignores the Adler-32: the extent's own
    /// checksums cover the data.
    pub(super) fn decode(&mut self, input: &[u8], output: &mut [u8]) -> Result<usize, DecompressError> {
        let stream = without_header(input, output.len())?;
        let decoder = self.decoder.get_or_insert_with(|| Decompress::new(false));
        decoder.reset(false);
        let length = output.len();
        let status =
            decoder.decompress(stream, output, FlushDecompress::Finish).map_err(|_| DecompressError::Zlib)?;
        let filled = decoder.total_out() as usize;
        if status != Status::StreamEnd && filled < length {
            return Err(DecompressError::Truncated(Compression::Zlib, filled, length));
        }
        Ok(filled)
    }

    /// Decodes `length` bytes as [`Self::decode`] does. Also finds a stream that does not end
    /// within the buffer, or whose Adler-32 is not that of all its data.
    pub(super) fn verify(
        &mut self,
        input: &[u8],
        length: usize,
        buffer: &mut [u8],
    ) -> Result<(), DecompressError> {
        without_header(input, length)?;
        let decoder = self.decoder.get_or_insert_with(|| Decompress::new(false));
        decoder.reset(true);
        let status = decoder.decompress(input, buffer, FlushDecompress::Finish);
        if matches!(status, Ok(Status::StreamEnd)) {
            return Ok(());
        }
        // Not valid as a whole: either a reader fails too, or only the end differs.
        self.decode(input, &mut buffer[..length])?;
        Err(if status.is_err() { DecompressError::ZlibChecksum } else { DecompressError::ZlibEnd })
    }
}

/// Returns the raw stream after a header that the kernel accepts. `length` is that of the output.
fn without_header(input: &[u8], length: usize) -> Result<&[u8], DecompressError> {
    const DEFLATED: u8 = 8;
    const PRESET_DICTIONARY: u8 = 0x20;
    let Some((&[method, flags], stream)) = input.split_first_chunk() else {
        return Err(DecompressError::Truncated(Compression::Zlib, 0, length));
    };
    let header = u16::from_be_bytes([method, flags]);
    if method & 0x0f != DEFLATED || flags & PRESET_DICTIONARY != 0 || !header.is_multiple_of(31) {
        return Err(DecompressError::ZlibHeader(header));
    }
    Ok(stream)
}
