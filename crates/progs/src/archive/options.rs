//! `ArchiveOptions` and `ArchiveCreated`: how an archive is made, and the result.

use papilio_device::archive::ArchiveChain;
use papilio_engine::items::trees::Trees;
use papilio_format::Uuid;

/// The zstd level that is used unless another one is set.
const DEFAULT_LEVEL: i32 = 3;

/// How an archive is made.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ArchiveOptions {
    pub(super) level: i32,
    pub(super) threads: usize,
    pub(super) skip_unreadable: bool,
    pub(super) log: bool,
}

impl Default for ArchiveOptions {
    fn default() -> Self {
        Self { level: DEFAULT_LEVEL, threads: 0, skip_unreadable: false, log: true }
    }
}

impl ArchiveOptions {
    /// Returns the default: zstd at level 3, a thread for each core, no unreadable bytes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the level of zstd, 1 to 19, or 0 for no compression.
    pub fn level(mut self, level: i32) -> Self {
        self.level = level.clamp(0, 19);
        self
    }

    /// Sets the number of threads; 0 for one of each core.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Sets whether bytes that no copy gives are noted in the archive, and not an error.
    pub fn skip_unreadable(mut self, skip: bool) -> Self {
        self.skip_unreadable = skip;
        self
    }

    /// Sets whether the archive has the log of fsyncs, if there is one; true by default. An archive
    /// of a file system that is open for writing has none.
    pub fn log(mut self, log: bool) -> Self {
        self.log = log;
        self
    }
}

/// The archive that an incremental one is based on.
#[derive(Clone, Copy, Debug)]
pub struct ArchiveParent<'a> {
    /// The archive, with those that it is based on.
    pub chain: &'a ArchiveChain,
    /// The trees of the file system in it.
    pub trees: &'a Trees,
}

/// An archive that was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArchiveCreated {
    /// Its id.
    pub id: Uuid,
    /// Bytes of the archive.
    pub bytes: u64,
    /// Bytes of tree blocks in it, unpacked.
    pub metadata_bytes: u64,
    /// Bytes of data in it, unpacked.
    pub data_bytes: u64,
    /// Bytes that are in use and the parent has.
    pub unchanged_bytes: u64,
    /// Bytes of tree blocks and data of which no copy is good. They are in the archive as they are.
    pub damaged_bytes: u64,
    /// Bytes of which no copy can be read. They are not in the archive.
    pub unreadable_bytes: u64,
}
