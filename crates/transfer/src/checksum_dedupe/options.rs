//! How extents are shared by their checksums.
//!
//! Owns [`ChecksumDedupe`] and its options.

use crate::dedupe::DedupeError;
use std::io;
use std::path::PathBuf;

/// Shares the data of equal extents, found by their checksums. Whole extents come first, and then
/// the longest runs of equal sectors. An extent is only given up whole: all references to it, also
/// those of read-only snapshots, are led to others, and parts that no other extent has are written
/// anew if they are the smaller half.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let image = folder.path().join("new.img");
/// use papilio::{ChecksumDedupe, FileSystem, MkfsOptions, OpenOptions};
///
/// papilio::mkfs(&image, &MkfsOptions::new().size(256 << 20))?;
/// let fs = FileSystem::open_with(&image, &OpenOptions::new().write(true))?;
/// let content: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
/// fs.write("/a", &content)?;
/// fs.write("/b", &content)?;
/// let report = ChecksumDedupe::new().run(&fs, None, &mut ())?;
/// assert_eq!((report.freed_extents, report.freed_bytes), (1, 401_408));
/// fs.close()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ChecksumDedupe {
    pub(super) memory_bytes: usize,
    pub(super) shortest_run: u64,
    pub(super) copies: bool,
    pub(super) dry_run: bool,
    pub(super) state: Option<PathBuf>,
}

impl Default for ChecksumDedupe {
    fn default() -> Self {
        Self { memory_bytes: 256 << 20, shortest_run: 16 << 10, copies: true, dry_run: false, state: None }
    }
}

impl ChecksumDedupe {
    /// The defaults: 256 MiB of memory, runs of 16 KiB and more.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the memory for pairs of hashes and addresses, 16 bytes each. Others go to a temporary
    /// file.
    pub fn memory_bytes(mut self, bytes: usize) -> Self {
        self.memory_bytes = bytes;
        self
    }

    /// Sets the bytes of the shortest run of equal sectors that counts, rounded up to sectors.
    pub fn shortest_run(mut self, bytes: u64) -> Self {
        self.shortest_run = bytes;
        self
    }

    /// Sets whether parts of an extent that no other has are written anew, so that the extent can
    /// be given up (default true).
    pub fn copies(mut self, copies: bool) -> Self {
        self.copies = copies;
        self
    }

    /// Sets whether nothing is changed (default false).
    pub fn dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }

    /// Sets a file that keeps what is known of the checksums, so that the next run looks only at
    /// newer ones.
    pub fn state(mut self, path: Option<PathBuf>) -> Self {
        self.state = path;
        self
    }

    pub(super) fn seed_sectors(&self, sector: u64) -> usize {
        self.shortest_run.div_ceil(sector).clamp(1, 1 << 12) as usize
    }

    pub(super) fn state_error(&self, error: io::Error) -> DedupeError {
        DedupeError::Host { path: self.state.clone().unwrap_or_default(), error }
    }
}
