//! zlib: a stream with the zlib header, windows of 32 KiB.
//!
//! Owns [`Zlib`], one thread's encoder and decoder. Locks: none. Kernel counterpart:
//! `fs/btrfs/zlib.c`.

use super::limits::DecompressError;
use flate2::{Compress, Decompress, FlushCompress, FlushDecompress, Status};
use papilio_format::items::file_extent::Compression;

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
        output.resize(limit, 0);
        // Ends early when the output is full.
        let status = encoder.compress(input, output, FlushCompress::Finish);
        output.truncate(encoder.total_out() as usize);
        matches!(status, Ok(Status::StreamEnd))
    }

    /// Decompresses `input` into `output`, and returns the bytes filled. Like the kernel, it
    /// inflates the raw stream after the header and ignores the Adler-32: the extent's own
    /// checksums cover the data.
    pub(super) fn decode(&mut self, input: &[u8], output: &mut [u8]) -> Result<usize, DecompressError> {
        const DEFLATED: u8 = 8;
        const PRESET_DICTIONARY: u8 = 0x20;
        let truncated = |filled| DecompressError::Truncated(Compression::Zlib, filled, output.len());
        let Some((&[method, flags], stream)) = input.split_first_chunk() else {
            return Err(truncated(0));
        };
        let header = u16::from_be_bytes([method, flags]);
        if method & 0x0f != DEFLATED || flags & PRESET_DICTIONARY != 0 || !header.is_multiple_of(31) {
            return Err(DecompressError::ZlibHeader(header));
        }
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
}
