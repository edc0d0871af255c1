//! How a file system is opened.
//!
//! Owns [`OpenOptions`], the builder that every way of opening goes through, and
//! [`CompressionChoice`], which several places take.

use crate::Error;
use crate::tuning::Tuning;
use papilio_format::TreeId;
use papilio_format::items::file_extent::Compression;
use papilio_format::items::inode::{InodeFlags, Timespec};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options of opening a file system; all defaults are the safe ones.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    pub(crate) devices: Vec<PathBuf>,
    pub(crate) degraded: bool,
    pub(crate) superblock_mirror: Option<usize>,
    pub(crate) use_backup_root: bool,
    pub(crate) replay_log: bool,
    pub(crate) subvolume: SubvolumeChoice,
    pub(crate) node_cache_bytes: usize,
    pub(crate) verify_data: bool,
    pub(crate) write: bool,
    pub(crate) commit_interval: Option<Duration>,
    pub(crate) dirty_bytes: u64,
    pub(crate) discard: bool,
    pub(crate) timestamp: Option<Timespec>,
    pub(crate) max_inline: u32,
    pub(crate) compression: Option<CompressionChoice>,
    pub(crate) force_compression: bool,
    /// Flags of each new regular file.
    pub(crate) file_flags: InodeFlags,
    pub(crate) tuning: Tuning,
    pub(crate) cache_bytes: u64,
    pub(crate) tree_log: bool,
}

/// Which subvolume is the root of all paths.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum SubvolumeChoice {
    /// The top level (id 5), from which every other can be reached.
    #[default]
    TopLevel,
    /// The one that `btrfs subvolume set-default` chose, as a mount without options takes it.
    Default,
    /// By id.
    Id(TreeId),
    /// By path from the top level.
    Path(Vec<u8>),
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            degraded: false,
            superblock_mirror: None,
            use_backup_root: false,
            replay_log: true,
            subvolume: SubvolumeChoice::TopLevel,
            node_cache_bytes: 64 << 20,
            verify_data: true,
            write: false,
            commit_interval: Some(Duration::from_secs(30)),
            dirty_bytes: 128 << 20,
            discard: false,
            timestamp: None,
            max_inline: 2048,
            compression: None,
            force_compression: false,
            file_flags: InodeFlags::empty(),
            tuning: Tuning::default(),
            cache_bytes: 0,
            tree_log: true,
        }
    }
}

impl OpenOptions {
    /// The defaults: one device, nothing missing, the primary superblock, the top-level subvolume.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a further device of a file system that has several.
    pub fn device(mut self, path: impl AsRef<Path>) -> Self {
        self.devices.push(path.as_ref().to_path_buf());
        self
    }

    /// Opens although devices are missing, as long as each chunk tolerates it.
    pub fn degraded(mut self, degraded: bool) -> Self {
        self.degraded = degraded;
        self
    }

    /// Reads superblock copy `mirror` (0 to 2) instead of the first.
    pub fn superblock_mirror(mut self, mirror: usize) -> Self {
        self.superblock_mirror = Some(mirror);
        self
    }

    /// Falls back to the superblock's older roots where the newest cannot be read
    /// (`rescue=usebackuproot`).
    pub fn use_backup_root(mut self, use_backup_root: bool) -> Self {
        self.use_backup_root = use_backup_root;
        self
    }

    /// Whether a log of fsyncs that a crash left is replayed when the file system is opened for writing
    /// (default true). Without (`rescue=nologreplay`), a file system that has one is opened for reading only,
    /// which shows the last commit either way.
    pub fn replay_log(mut self, replay: bool) -> Self {
        self.replay_log = replay;
        self
    }

    /// Chooses the subvolume that paths start from.
    pub fn subvolume(mut self, choice: SubvolumeChoice) -> Self {
        self.subvolume = choice;
        self
    }

    /// Limits the memory of tree blocks, in bytes (default 64 MiB): of those that are cached, which give way down to a
    /// quarter to those that changes made and a commit has not written yet, and of a writable file system's checksums
    /// of data in open files and changes of references to extents. Beside it, checksums take up to an eighth where the
    /// file system is open for reading only; and data that was written past the page cache, of which the trees were not
    /// told yet, about twice as much.
    pub fn node_cache_bytes(mut self, bytes: usize) -> Self {
        self.node_cache_bytes = bytes;
        self
    }

    /// Whether data is compared with its checksums (default true; `rescue=ignoredatacsums` is
    /// false).
    pub fn verify_data(mut self, verify: bool) -> Self {
        self.verify_data = verify;
        self
    }

    /// Opens for reading and writing (default: reading only).
    pub fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

    /// How long a change waits for its commit at most; `None` leaves all commits to
    /// [`FileSystem::sync`](crate::FileSystem::sync), memory pressure and closing (default 30 s, `commit=`).
    pub fn commit_interval(mut self, interval: Option<Duration>) -> Self {
        self.commit_interval = interval;
        self
    }

    /// Bytes of changed tree blocks in memory beyond which a change waits for a commit (default 128 MiB), but no more
    /// than three eighths of [`OpenOptions::node_cache_bytes`], of which there are then two such parts: those of the
    /// running transaction, and those of one that is being written.
    pub fn dirty_bytes(mut self, bytes: u64) -> Self {
        self.dirty_bytes = bytes;
        self
    }

    /// Whether freed space is discarded after each commit (default false, `discard`).
    pub fn discard(mut self, discard: bool) -> Self {
        self.discard = discard;
        self
    }

    /// Gives all changes this time instead of the clock's, so that the same changes give the same
    /// image.
    pub fn timestamp(mut self, time: Option<Timespec>) -> Self {
        self.timestamp = time;
        self
    }

    /// Bytes up to which a file lies in its tree's leaf, in all below a sector (default 2048,
    /// `max_inline=`).
    pub fn max_inline(mut self, bytes: u32) -> Self {
        self.max_inline = bytes;
        self
    }

    /// Reads and writes of file data go through a page cache of so many bytes at most, all that belongs to it
    /// included (default 0: from and to the device). Of a file system that is open for writing; what is
    /// written is durable after [`File::sync`](crate::File::sync) or
    /// [`FileSystem::sync`](crate::FileSystem::sync), and an error of writing it back is told there.
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// Whether an fsync may be an entry in the log instead of a commit (default true; `notreelog` is false).
    pub fn tree_log(mut self, tree_log: bool) -> Self {
        self.tree_log = tree_log;
        self
    }

    /// Which of several ways things are done, for measurements.
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.tuning = tuning;
        self
    }
}

impl OpenOptions {
    /// Compresses what is written to files that do not say otherwise, where it gets smaller (`compress=`).
    pub fn compress(mut self, choice: CompressionChoice) -> Self {
        self.compression = Some(choice).filter(|choice| !choice.is_none());
        self
    }

    /// As [`OpenOptions::compress`], for all files and every piece (`compress-force=`).
    pub fn compress_force(mut self, choice: CompressionChoice) -> Self {
        self.force_compression = true;
        self.compress(choice)
    }

    /// Whether data of new files has no checksums (default false, `nodatasum`). It is not compressed either.
    pub fn no_data_sums(mut self, no_data_sums: bool) -> Self {
        self.file_flags.set(InodeFlags::NODATASUM, no_data_sums);
        self
    }

    /// Whether data of new files is overwritten in place (default false, `nodatacow`). It has no checksums and
    /// is not compressed either.
    pub fn no_data_cow(mut self, no_data_cow: bool) -> Self {
        self.file_flags.set(InodeFlags::NODATACOW | InodeFlags::NODATASUM, no_data_cow);
        self
    }
}

/// How data is compressed: an algorithm, and how hard it tries.
///
/// ```
/// use papilio::CompressionChoice;
/// let choice: CompressionChoice = "zstd:9".parse()?;
/// assert_eq!((choice.level(), choice.to_string().as_str()), (9, "zstd:9"));
/// assert_eq!("zstd".parse::<CompressionChoice>()?.level(), 3);
/// assert_eq!("none".parse::<CompressionChoice>()?, CompressionChoice::NONE);
/// assert!("zlib:10".parse::<CompressionChoice>().is_err());
/// # Ok::<(), papilio::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CompressionChoice {
    algorithm: Compression,
    level: i32,
}

impl CompressionChoice {
    /// No compression.
    pub const NONE: Self = Self { algorithm: Compression::None, level: 0 };

    /// An algorithm with its usual level: 3 for zlib and zstd; the others have none.
    pub const fn new(algorithm: Compression) -> Self {
        let level = match algorithm {
            Compression::Zlib | Compression::Zstd => 3,
            Compression::None | Compression::Lzo => 0,
        };
        Self { algorithm, level }
    }

    /// The algorithm with another level: 1 to 9 for zlib, -15 to 15 for zstd; 0 is the usual one.
    ///
    /// # Errors
    /// [`Error::Invalid`] with a level that the algorithm does not have.
    pub fn with_level(algorithm: Compression, level: i32) -> Result<Self, Error> {
        let usual = Self::new(algorithm);
        let levels = match algorithm {
            Compression::Zlib => 1..=9,
            Compression::Zstd => -15..=15,
            Compression::None | Compression::Lzo => 0..=0,
        };
        match level {
            0 => Ok(usual),
            _ if levels.contains(&level) => Ok(Self { algorithm, level }),
            _ if usual.level == 0 => Err(Error::Invalid(format!("compression {algorithm} has no levels"))),
            _ => Err(Error::Invalid(format!(
                "compression {algorithm}: level {level} is not one of {} to {}",
                levels.start(),
                levels.end()
            ))),
        }
    }

    /// The algorithm.
    pub const fn algorithm(&self) -> Compression {
        self.algorithm
    }

    /// The level; 0 where the algorithm has none.
    pub const fn level(&self) -> i32 {
        self.level
    }

    /// Whether nothing is compressed.
    pub const fn is_none(&self) -> bool {
        matches!(self.algorithm, Compression::None)
    }
}

/// The values of the kernel's mount option `compress`: `zlib`, `zlib:1` to `zlib:9`, `lzo`, `zstd`,
/// `zstd:-15` to `zstd:15`, `no` and `none`. Unlike the kernel, a level that does not exist is an error.
impl std::str::FromStr for CompressionChoice {
    type Err = Error;

    fn from_str(value: &str) -> Result<Self, Error> {
        let (name, level) = match value.split_once(':') {
            Some((name, level)) => (name, Some(level)),
            None => (value, None),
        };
        let algorithm = match name {
            "zlib" => Compression::Zlib,
            "lzo" => Compression::Lzo,
            "zstd" => Compression::Zstd,
            "no" | "none" => Compression::None,
            _ => {
                return Err(Error::Invalid(format!(
                    "compression {value:?}: not zlib[:1-9], lzo, zstd[:-15-15] or none"
                )));
            }
        };
        let Some(level) = level else { return Ok(Self::new(algorithm)) };
        let level = level
            .parse()
            .map_err(|_| Error::Invalid(format!("compression {value:?}: {level:?} is no level")))?;
        Self::with_level(algorithm, level)
    }
}

/// As the mount option takes it.
impl std::fmt::Display for CompressionChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.algorithm.name())?;
        if self.level != 0 {
            write!(f, ":{}", self.level)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_compress_are_the_kernels() {
        let parse = |value: &str| value.parse::<CompressionChoice>();
        for (value, algorithm, level) in [
            ("zlib", Compression::Zlib, 3),
            ("zlib:1", Compression::Zlib, 1),
            ("zlib:9", Compression::Zlib, 9),
            ("zlib:0", Compression::Zlib, 3),
            ("lzo", Compression::Lzo, 0),
            ("zstd", Compression::Zstd, 3),
            ("zstd:15", Compression::Zstd, 15),
            ("zstd:-15", Compression::Zstd, -15),
            ("zstd:0", Compression::Zstd, 3),
            ("no", Compression::None, 0),
            ("none", Compression::None, 0),
        ] {
            let choice = parse(value).unwrap();
            assert_eq!((choice.algorithm(), choice.level()), (algorithm, level), "{value}");
            assert_eq!(parse(&choice.to_string()).unwrap(), choice, "{value}");
            assert_eq!(choice.is_none(), value.starts_with("no"));
        }
        let bad = [
            "", "zip", "zlib:", "zlib:10", "zlib:-1", "zlib:3x", "lzo:1", "zstd:16", "zstd:-16", "no:2",
            "ZSTD",
        ];
        for value in bad {
            assert!(matches!(parse(value), Err(Error::Invalid(_))), "{value:?}");
        }
    }
}
