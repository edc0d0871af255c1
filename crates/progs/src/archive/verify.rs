//! Reads all of an archive.
//!
//! Owns [`verify_archive`].

use super::archive_error;
use papilio_device::archive::{ArchiveReader, ArchiveSummary};
use papilio_engine::errors::{Error, Result};
use rayon::ThreadPoolBuilder;
use rayon::prelude::*;
use std::io::Read;

/// Frames that are decompressed at once.
const FRAMES_AT_ONCE: usize = 16;

/// Reads an archive to its end, compares every checksum, decompresses every frame, and compares the
/// table of contents, by `threads` threads, or one for each core if that is 0. Calls `progress`
/// with the bytes that were read.
///
/// # Errors
/// An archive that was cut, damaged or reordered: the first fault.
pub fn verify_archive<R: Read>(
    reader: &mut ArchiveReader<R>,
    threads: usize,
    progress: &mut dyn FnMut(u64),
) -> Result<ArchiveSummary> {
    let name = reader.name().to_owned();
    let pool = ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.map_err(|error| Error::Invalid(format!("no threads for the check: {error}")))?;
    loop {
        let mut frames = Vec::with_capacity(FRAMES_AT_ONCE);
        while frames.len() < FRAMES_AT_ONCE
            && let Some(frame) = reader.next_frame().map_err(archive_error)?
        {
            frames.push(frame);
        }
        if frames.is_empty() {
            return Ok(reader.summary());
        }
        pool.install(|| frames.par_iter().try_for_each(|frame| frame.content(&name).map(drop)))
            .map_err(archive_error)?;
        progress(reader.position());
    }
}
