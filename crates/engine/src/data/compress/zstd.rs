//! zstd: one frame, with a window of at most 128 KiB.
//!
//! Owns [`Zstd`], one thread's contexts. Locks: none. Kernel counterpart: `fs/btrfs/zstd.c`.

use super::limits::DecompressError;
use papilio_format::items::file_extent::Compression;
use zstd::zstd_safe::{
    CCtx, CParameter, DCtx, DParameter, InBuffer, OutBuffer, ResetDirective, get_error_name,
};

/// The largest window that the kernel writes and accepts (`ZSTD_BTRFS_MAX_WINDOWLOG`).
const WINDOW_LOG: u32 = 17;

/// The zstd contexts of one thread.
#[derive(Default)]
pub(super) struct Zstd {
    /// The context and the level that it is set to.
    encoder: Option<(i32, CCtx<'static>)>,
    decoder: Option<DCtx<'static>>,
}

impl Zstd {
    /// Compresses with level -15 to 15; returns `false` if that takes more than `limit` bytes.
    pub(super) fn encode(&mut self, level: i32, input: &[u8], output: &mut Vec<u8>, limit: usize) -> bool {
        let Ok(encoder) = self.encoder(level) else { return false };
        output.resize(limit, 0);
        let Ok(length) = encoder.compress2(&mut output[..], input) else { return false };
        output.truncate(length);
        true
    }

    /// Returns the context, set to `level`. As the size of the input is known, its window is no
    /// larger than the input needs, and never larger than the kernel's.
    fn encoder(&mut self, level: i32) -> Result<&mut CCtx<'static>, usize> {
        if self.encoder.is_none() {
            let mut encoder = CCtx::try_create().ok_or(0usize)?;
            encoder.set_parameter(CParameter::WindowLog(WINDOW_LOG))?;
            encoder.set_parameter(CParameter::CompressionLevel(level))?;
            self.encoder = Some((level, encoder));
        }
        let (set_to, encoder) = self.encoder.as_mut().expect("made above");
        if *set_to != level {
            encoder.set_parameter(CParameter::CompressionLevel(level))?;
            *set_to = level;
        }
        Ok(encoder)
    }

    /// Decompresses the one frame of `input` into `output`, and returns the bytes filled. The bytes
    /// after the frame are padding.
    pub(super) fn decode(&mut self, input: &[u8], output: &mut [u8]) -> Result<usize, DecompressError> {
        let failed = |code| DecompressError::Zstd(get_error_name(code));
        if self.decoder.is_none() {
            let mut decoder = DCtx::try_create().ok_or(DecompressError::Zstd("no memory"))?;
            decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG)).map_err(failed)?;
            self.decoder = Some(decoder);
        }
        let decoder = self.decoder.as_mut().expect("made above");
        decoder.reset(ResetDirective::SessionOnly).map_err(failed)?;
        let length = output.len();
        let mut source = InBuffer::around(input);
        let mut target = OutBuffer::around(output);
        loop {
            let before = (source.pos(), target.pos());
            let hint = decoder.decompress_stream(&mut target, &mut source).map_err(failed)?;
            if hint == 0 || target.pos() == length {
                return Ok(target.pos());
            }
            if source.pos() == input.len() || before == (source.pos(), target.pos()) {
                return Err(DecompressError::Truncated(Compression::Zstd, target.pos(), length));
            }
        }
    }
}
