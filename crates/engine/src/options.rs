//! The options of opening a file system.
//!
//! Owns [`OpenOptions`], the builder for every way of opening, and [`CompressionChoice`], which
//! other options take too.

pub mod older;
pub mod rescue;

use crate::errors::Error;
use crate::tuning::Tuning;
use papilio_device::{ImageOptions, PartitionChoice, RemoteOptions};
use papilio_format::items::file_extent::Compression;
use papilio_format::items::inode::{InodeFlags, Timespec};
use papilio_format::{LogicalAddress, TreeId};
use rescue::{Rescue, TreeRootChoice};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The most bytes that the replay of a log for reading only may keep in memory, for each device.
const REPLAY_BYTES: u64 = 256 << 20;

/// When freed space is discarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiscardMode {
    /// Never.
    #[default]
    Off,
    /// By the commit that frees it, as soon as it is on disk. Older states, which backup roots
    /// lead to, lose their content.
    Sync,
    /// In the background, once no backup root leads to it. Without background threads, by commits.
    Async,
}

impl From<bool> for DiscardMode {
    fn from(discards: bool) -> Self {
        if discards { Self::Sync } else { Self::Off }
    }
}

/// Options for opening a file system. All defaults are the safe ones.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    pub(crate) devices: Vec<PathBuf>,
    pub(crate) degraded: bool,
    #[doc(hidden)]
    pub superblock_mirror: Option<usize>,
    pub(crate) use_backup_root: bool,
    pub(crate) replay_log: bool,
    pub(crate) allow_older: bool,
    /// Whether the devices are overlays in memory that a log is replayed into.
    pub(crate) in_memory: bool,
    pub(crate) subvolume: SubvolumeChoice,
    pub(crate) node_cache_bytes: usize,
    pub(crate) verify_data: bool,
    #[doc(hidden)]
    pub write: bool,
    #[doc(hidden)]
    pub commit_interval: Option<Duration>,
    pub(crate) dirty_bytes: u64,
    pub(crate) discard: DiscardMode,
    pub(crate) chunk_bytes: Option<u64>,
    pub(crate) keep_empty_groups: bool,
    /// Whether devices are opened without a lock, beside a writer.
    pub(crate) unlocked: bool,
    /// Whether a writer takes the place of this process's readers.
    pub(crate) take_over: bool,
    pub(crate) timestamp: Option<Timespec>,
    pub(crate) max_inline: u32,
    pub(crate) compression: Option<CompressionChoice>,
    pub(crate) force_compression: bool,
    /// Flags that each new regular file gets.
    pub(crate) file_flags: InodeFlags,
    pub(crate) tuning: Tuning,
    pub(crate) device_delay: Option<Duration>,
    /// `None` where nothing was chosen.
    pub(crate) cache_bytes: Option<u64>,
    pub(crate) scarce_cache_bytes: u64,
    /// `None` where nothing was chosen.
    pub(crate) direct_io: Option<bool>,
    pub(crate) cached_by_default: bool,
    pub(crate) direct_queue: bool,
    pub(crate) device_timeout: Option<Duration>,
    pub(crate) tree_log: bool,
    pub(crate) heal_reads: bool,
    pub(crate) immutable_at_open: bool,
    /// Whether a replacement of a device may be under way.
    #[doc(hidden)]
    pub replacing: bool,
    pub(crate) unfinished: bool,
    /// Whether a device may be written that has another owner, by its signatures.
    pub(crate) ignore_signatures: bool,
    pub(crate) replay_bytes: u64,
    #[doc(hidden)]
    pub rescue: Rescue,
    /// How the device at the path that the caller opens is found in a disk image.
    pub(crate) image: ImageOptions,
}

/// The subvolume that is the root of all paths.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum SubvolumeChoice {
    /// The top level (id 5), which contains all other subvolumes.
    #[default]
    TopLevel,
    /// The subvolume chosen by `btrfs subvolume set-default`, which a mount without options shows.
    Default,
    /// The subvolume with this id.
    Id(TreeId),
    /// The subvolume at this path from the top level.
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
            allow_older: false,
            in_memory: false,
            subvolume: SubvolumeChoice::TopLevel,
            node_cache_bytes: 64 << 20,
            verify_data: true,
            write: false,
            commit_interval: Some(Duration::from_secs(30)),
            dirty_bytes: 128 << 20,
            discard: DiscardMode::Off,
            chunk_bytes: None,
            keep_empty_groups: false,
            unlocked: false,
            take_over: false,
            timestamp: None,
            max_inline: 2048,
            compression: None,
            force_compression: false,
            file_flags: InodeFlags::empty(),
            tuning: Tuning::default(),
            device_delay: None,
            cache_bytes: None,
            scarce_cache_bytes: 0,
            direct_io: None,
            cached_by_default: false,
            direct_queue: false,
            device_timeout: None,
            tree_log: true,
            heal_reads: true,
            immutable_at_open: false,
            replacing: false,
            unfinished: false,
            ignore_signatures: false,
            replay_bytes: REPLAY_BYTES,
            rescue: Rescue::default(),
            image: ImageOptions::default(),
        }
    }
}

impl OpenOptions {
    /// The defaults: one device, none missing, the primary superblock, the top-level subvolume,
    /// reading only.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the path of another device of a file system with several devices.
    pub fn device(mut self, path: impl AsRef<Path>) -> Self {
        self.devices.push(path.as_ref().to_path_buf());
        self
    }

    /// Selects the partition of a disk image, if the path does not with `@N`. The default is the
    /// whole disk if it is a file system, else the one partition with Btrfs. Counts for the path
    /// that is opened, not for further devices.
    pub fn partition(mut self, choice: PartitionChoice) -> Self {
        self.image.partition = choice;
        self
    }

    /// Sets whether a disk image may name files outside of its own directory as its parts, such as
    /// the backing file of a qcow2 image. The default is false: an image from an untrusted source
    /// could name any file that the caller may read.
    pub fn allow_backing(mut self, allow: bool) -> Self {
        self.image.allow_backing = allow;
        self
    }

    /// Sets how images at URLs are read. The program must have
    /// installed object stores, those of the crate `papilio-store`.
    pub fn remote(mut self, remote: RemoteOptions) -> Self {
        self.image.remote = remote;
        self
    }

    /// Sets whether the file system may be opened while devices are missing, as far as each chunk
    /// tolerates it. The default is false.
    pub fn degraded(mut self, degraded: bool) -> Self {
        self.degraded = degraded;
        self
    }

    /// Selects the superblock copy to read, 0 to 2. The default is copy 0, the primary.
    pub fn superblock_mirror(mut self, mirror: usize) -> Self {
        self.superblock_mirror = Some(mirror);
        self
    }

    /// Sets whether the superblock's older roots are tried if the newest cannot be read. The
    /// default is false. Corresponds to the mount option `rescue=usebackuproot`.
    pub fn use_backup_root(mut self, use_backup_root: bool) -> Self {
        self.use_backup_root = use_backup_root;
        self
    }

    /// Sets whether an fsync log that a crash left is replayed. The default is true. Opened for
    /// reading, the file system is replayed in memory, and nothing is written; opening fails with
    /// [`Error::Unreplayed`] if that is not possible. If false (`rescue=nologreplay`), a file
    /// system with a log can only be opened for reading, which shows the last commit.
    pub fn replay_log(mut self, replay: bool) -> Self {
        self.replay_log = replay;
        self
    }

    /// Limits the memory for a replay of the log of fsyncs, in bytes for each device. The default
    /// is 256 MiB. It counts only for a file system that is opened for reading. A log that needs
    /// more cannot be replayed: opening for writing replays it on the devices.
    pub fn replay_bytes(mut self, bytes: u64) -> Self {
        self.replay_bytes = bytes;
        self
    }

    /// Sets whether a reader may show the last commit if a log of fsyncs cannot be replayed. The
    /// default is false: opening fails then. If true, the caller asks
    /// `FileSystem::older_states` for the cause, and
    /// `FileSystem::older_files` for the files that are older
    /// than their newest content. The superblock copies are compared, too.
    pub fn allow_older(mut self, allow: bool) -> Self {
        self.allow_older = allow;
        self
    }

    /// Selects the subvolume that paths start from. The default is the top level.
    pub fn subvolume(mut self, choice: SubvolumeChoice) -> Self {
        self.subvolume = choice;
        self
    }

    /// Limits the memory for tree blocks, in bytes. The default is 64 MiB.
    ///
    /// The limit covers cached blocks and changed blocks that no commit has written yet. The cache
    /// shrinks to a quarter of the limit to make space for changed blocks. If the file system is
    /// open for writing, the limit also covers checksums of open files and delayed references.
    ///
    /// Two kinds of memory come on top. If the file system is open for reading only, checksums take
    /// up to an eighth of the limit. Ordered extents, which were written past the page cache and
    /// are not in the trees yet, take up to about twice the limit.
    pub fn node_cache_bytes(mut self, bytes: usize) -> Self {
        self.node_cache_bytes = bytes;
        self
    }

    /// Sets the size of the page cache of a file system that is opened for writing with less than
    /// 400 MiB unused, where [`OpenOptions::cache_bytes`] is 0. The default is 0. A server whose
    /// clients must hear at once of a write that does not fit can then pass on each of their
    /// writes, even small ones: `FileSystem::has_page_cache`.
    pub fn scarce_cache_bytes(mut self, bytes: u64) -> Self {
        self.scarce_cache_bytes = bytes;
        self
    }

    /// Sets whether data is verified against its checksums. The default is true. False corresponds
    /// to `rescue=ignoredatacsums`.
    pub fn verify_data(mut self, verify: bool) -> Self {
        self.verify_data = verify;
        self
    }

    /// Sets whether the file system is opened for writing too. The default is false.
    pub fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

    /// Sets the longest time before a change is committed (`commit=`). The default is 30 seconds.
    /// With `None`, only `FileSystem::sync`, memory pressure and closing
    /// commit.
    pub fn commit_interval(mut self, interval: Option<Duration>) -> Self {
        self.commit_interval = interval;
        self
    }

    /// Limits the bytes of changed tree blocks in memory beyond which a change waits for a commit.
    /// The default is 128 MiB. The value is capped at three eighths of
    /// [`OpenOptions::node_cache_bytes`], or at 1 MiB if that is more. The limit applies twice: to
    /// the running transaction, and to one that is being written.
    pub fn dirty_bytes(mut self, bytes: u64) -> Self {
        self.dirty_bytes = bytes;
        self
    }

    /// Sets when freed space is discarded (`discard`). The default is [`DiscardMode::Off`]; `true`
    /// is [`DiscardMode::Sync`].
    pub fn discard(mut self, discard: impl Into<DiscardMode>) -> Self {
        self.discard = discard.into();
        self
    }

    /// Sets whether the devices are opened although another process writes to them, for reading
    /// only (default false). Blocks may then be those of several moments: a commit in between may
    /// reuse blocks of the one before.
    pub fn unlocked(mut self, unlocked: bool) -> Self {
        self.unlocked = unlocked;
        self
    }

    /// Sets whether a file system that is opened for writing takes the place of one that this
    /// process has open for reading (default false): the devices must be the very files that are
    /// open, and their locks pass on.
    pub fn take_over(mut self, take_over: bool) -> Self {
        self.take_over = take_over;
        self
    }

    /// Sets whether commits keep empty block groups (default false). A conversion has chosen their
    /// places before it fills them.
    #[doc(hidden)]
    pub fn keep_empty_groups(mut self, keep: bool) -> Self {
        self.keep_empty_groups = keep;
        self
    }

    /// Limits the bytes of a new chunk, where the kernel's own limits allow more. A file system
    /// that is shrunk to its last chunk afterwards is then little larger than its content. The
    /// default is none.
    pub fn chunk_bytes(mut self, bytes: Option<u64>) -> Self {
        self.chunk_bytes = bytes.map(|bytes| bytes.max(1 << 20));
        self
    }

    /// Sets whether a file system may be one that
    /// `MkfsOptions::unfinished` made. The default is false.
    pub fn unfinished(mut self, unfinished: bool) -> Self {
        self.unfinished = unfinished;
        self
    }

    /// Sets whether a device may be written that has the signature of something else, such as a
    /// member of an array, a volume of LVM or an encrypted volume. The default is false: writing
    /// would damage that. It is read in any case.
    pub fn ignore_signatures(mut self, ignore: bool) -> Self {
        self.ignore_signatures = ignore;
        self
    }

    /// Sets a fixed time for all changes, so that equal changes make equal images. The default,
    /// `None`, takes the clock's time.
    pub fn timestamp(mut self, time: Option<Timespec>) -> Self {
        self.timestamp = time;
        self
    }

    /// Sets the most bytes of a file, after compression, that are stored inline in a leaf of its
    /// tree (`max_inline=`). The default is 2048; 0 stores no file inline. The value is capped
    /// below the sector size.
    pub fn max_inline(mut self, bytes: u32) -> Self {
        self.max_inline = bytes;
        self
    }

    /// Sets the size of the page cache for file data in bytes, including its own overhead. With 0
    /// there is none: data is read from and written to the device directly. The default is 256 MiB
    /// where direct I/O is the default ([`OpenOptions::direct_io`]) and neither option was set. It
    /// is 0 elsewhere: the host's page cache has the data then.
    ///
    /// The page cache is used only if the file system is open for writing and has sectors of 4 KiB.
    /// Written data is durable after `File::sync_all` or
    /// `FileSystem::sync`, which also report errors of writing it back.
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.cache_bytes = Some(bytes);
        self
    }

    /// Sets whether devices bypass the host's page cache (`O_DIRECT`). By default a writer bypasses
    /// it for block devices, and it is used for image files and by readers. Where the host cannot
    /// bypass it, or keeps the image in memory, it is used all the same.
    ///
    /// Requests of whole sectors from aligned memory go straight to the device; others are copied.
    /// An `IoQueue` then reads many requests at once, without a thread for each.
    pub fn direct_io(mut self, direct_io: bool) -> Self {
        self.direct_io = Some(direct_io);
        self
    }

    /// Restores the default of [`OpenOptions::direct_io`].
    pub fn default_direct_io(mut self) -> Self {
        self.direct_io = None;
        self
    }

    /// Makes the host's page cache the default for block devices, too.
    pub fn cached_by_default(mut self) -> Self {
        self.cached_by_default = true;
        self
    }

    /// Sets whether reads of an `IoQueue` bypass the host's page cache where it lacks their bytes,
    /// although all other requests use it (default: no). They are then in flight without a thread
    /// for each. Has no effect where [`OpenOptions::direct_io`] was chosen or is the default, in
    /// disk images that are not raw, and before Linux 6.5.
    pub fn direct_queue(mut self, direct_queue: bool) -> Self {
        self.direct_queue = direct_queue;
        self
    }

    /// Bounds the time that a request to a device may take. A request that takes longer fails with
    /// an error that names the device, and so do all others until the device has answered it. The
    /// default, `None`, waits as long as the device takes. With a bound, requests are copied and
    /// take a thread each, and a flush needs to end in time, too.
    pub fn device_timeout(mut self, bound: Option<Duration>) -> Self {
        self.device_timeout = bound;
        self
    }

    /// Sets whether an fsync may write to the log instead of committing. The default is true. False
    /// corresponds to the mount option `notreelog`.
    pub fn tree_log(mut self, tree_log: bool) -> Self {
        self.tree_log = tree_log;
        self
    }

    /// Sets whether a copy that a read found bad is rewritten from a good one, where the file
    /// system is open for writing. The default is true.
    pub fn heal_reads(mut self, heal: bool) -> Self {
        self.heal_reads = heal;
        self
    }

    /// Lets files that are open be written after they became immutable. The caller refuses to open
    /// immutable files for writing, as a kernel does (`may_open`, `fs/namei.c`). The default
    /// refuses each write.
    #[cfg(feature = "unstable")]
    pub fn immutable_at_open(mut self, by_caller: bool) -> Self {
        self.immutable_at_open = by_caller;
        self
    }

    /// Delays each request to a device, as if it were far away. For measurements.
    #[cfg(feature = "unstable")]
    pub fn device_delay(mut self, delay: Duration) -> Self {
        self.device_delay = Some(delay);
        self
    }

    /// Selects between implementations of some mechanisms, for measurements.
    #[cfg(feature = "unstable")]
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.tuning = tuning;
        self
    }
}

impl OpenOptions {
    /// Sets the compression of new data in files without a compression property (`compress=`). Data
    /// that does not get smaller stays uncompressed. The default is none.
    pub fn compress(mut self, choice: CompressionChoice) -> Self {
        self.compression = Some(choice).filter(|choice| !choice.is_none());
        self
    }

    /// Like [`OpenOptions::compress`], but for all files and every piece of data
    /// (`compress-force=`).
    pub fn compress_force(mut self, choice: CompressionChoice) -> Self {
        self.force_compression = true;
        self.compress(choice)
    }

    /// Sets whether new files are created without checksums (`nodatasum`). The default is false.
    /// Such files are not compressed either.
    pub fn no_data_sums(mut self, no_data_sums: bool) -> Self {
        self.file_flags.set(InodeFlags::NODATASUM, no_data_sums);
        self
    }

    /// Sets whether new files are overwritten in place (`nodatacow`). The default is false. Such
    /// files have no checksums and are not compressed either.
    pub fn no_data_cow(mut self, no_data_cow: bool) -> Self {
        self.file_flags.set(InodeFlags::NODATACOW | InodeFlags::NODATASUM, no_data_cow);
        self
    }
}

/// Options for reading a damaged file system. With any of them, nothing can be written.
impl OpenOptions {
    /// Reads the root tree whose root block is at an address or has a generation, as commits before
    /// the last one left it. Needed blocks may have been overwritten since.
    pub fn tree_root(mut self, choice: TreeRootChoice) -> Self {
        self.rescue.tree_root = Some(choice);
        self
    }

    /// Reads the chunk tree whose root block is at `address`, in bytes of logical address space.
    pub fn chunk_root(mut self, address: LogicalAddress) -> Self {
        self.rescue.chunk_root = Some(address);
        self
    }

    /// Shows the subvolume whose root block is at `address` as the top level.
    pub fn fs_root(mut self, address: LogicalAddress) -> Self {
        self.rescue.fs_root = Some(address);
        self
    }

    /// Reads the trees that backup root `number` (0 to 3) of the superblock names.
    pub fn backup_root(mut self, number: usize) -> Self {
        self.rescue.backup = Some(number);
        self
    }

    /// Sets whether the devices are scanned for tree blocks, and the superblock, the chunk tree and
    /// the root tree are taken from there if they cannot be read. The default is false.
    pub fn scan(mut self, scan: bool) -> Self {
        self.rescue.scan = scan;
        self.rescue.sound_items |= scan;
        self
    }

    /// Returns whether opening scans the devices ([`OpenOptions::scan`]).
    pub fn wants_scan(&self) -> bool {
        self.rescue.scan
    }

    /// Sets whether leaves that a scan finds are read where the blocks above them are lost. They
    /// may be outdated (`Inode::is_uncertain`). Implies a scan. The
    /// default is false.
    pub fn orphans(mut self, orphans: bool) -> Self {
        self.rescue.orphans = orphans;
        self.rescue.scan |= orphans;
        self
    }

    /// Sets whether roots of trees that are not needed for reading may be bad, as that of the
    /// checksum tree: data is then not verified. The default is false. Corresponds to
    /// `rescue=ignorebadroots`.
    pub fn ignore_bad_roots(mut self, ignore: bool) -> Self {
        self.rescue.ignore_bad_roots = ignore;
        self.rescue.sound_items |= ignore;
        self
    }

    /// Sets whether tree blocks are read although their checksums are wrong. All other checks of a
    /// block still apply. The default is false. Corresponds to `rescue=ignoremetacsums`.
    pub fn ignore_meta_csums(mut self, ignore: bool) -> Self {
        self.rescue.ignore_meta_csums = ignore;
        self
    }
}

/// A compression algorithm and its level.
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

    /// The algorithm at its default level: 3 for zlib and zstd. The others have no levels.
    pub const fn new(algorithm: Compression) -> Self {
        Self { algorithm, level: algorithm.default_level() }
    }

    /// The algorithm at the given level: 1 to 9 for zlib, -15 to 15 for zstd. Level 0 selects the
    /// default.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a level that the algorithm does not have.
    pub fn with_level(algorithm: Compression, level: i32) -> Result<Self, Error> {
        let usual = Self::new(algorithm);
        let levels = algorithm.levels();
        match level {
            0 => Ok(usual),
            _ if levels.contains(&level) => Ok(Self { algorithm, level }),
            _ if usual.level == 0 => {
                Err(Error::Invalid(format!("compression {algorithm}: the algorithm has no levels")))
            }
            _ => Err(Error::Invalid(format!(
                "compression {algorithm}: level {level} is not in the range {} to {}",
                levels.start(),
                levels.end()
            ))),
        }
    }

    /// Parses a value of the mount option as the kernel (6.18) does: a level out of the range is
    /// the nearest one that the algorithm has.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another algorithm, and for a level that is no number.
    pub fn of_mount_option(value: &str) -> Result<Self, Error> {
        let Some((name, level)) = value.split_once(':') else { return value.parse() };
        if matches!(name, "no" | "none") {
            return Err(Error::Invalid(format!("compression {value:?}: no compression has no levels")));
        }
        match (Compression::of_name(name), level.parse::<i32>()) {
            (Some(algorithm), Ok(0)) => Ok(Self::new(algorithm)),
            (Some(algorithm), Ok(level)) => {
                let levels = algorithm.levels();
                Self::with_level(algorithm, level.clamp(*levels.start(), *levels.end()))
            }
            _ => value.parse(),
        }
    }

    /// The algorithm.
    pub const fn algorithm(&self) -> Compression {
        self.algorithm
    }

    /// The level; 0 if the algorithm has none.
    pub const fn level(&self) -> i32 {
        self.level
    }

    /// Whether this is [`CompressionChoice::NONE`].
    pub const fn is_none(&self) -> bool {
        matches!(self.algorithm, Compression::None)
    }
}

/// Parses the values of the kernel's mount option `compress`: `zlib`, `zlib:1` to `zlib:9`, `lzo`,
/// `zstd`, `zstd:-15` to `zstd:15`, `no` and `none`. Unlike in the kernel, an invalid level is an
/// error.
impl std::str::FromStr for CompressionChoice {
    type Err = Error;

    fn from_str(value: &str) -> Result<Self, Error> {
        let (name, level) = match value.split_once(':') {
            Some((name, level)) => (name, Some(level)),
            None => (value, None),
        };
        let name = if name == "no" { "none" } else { name };
        let Some(algorithm) = Compression::of_name(name) else {
            return Err(Error::Invalid(format!(
                "compression {value:?}: expected zlib[:1..9], lzo, zstd[:-15..15] or none"
            )));
        };
        let Some(level) = level else { return Ok(Self::new(algorithm)) };
        let level = level
            .parse()
            .map_err(|_| Error::Invalid(format!("compression {value:?}: {level:?} is not a number")))?;
        Self::with_level(algorithm, level)
    }
}

/// Formats the choice as a value of the mount option.
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
    fn mount_option_values_round_trip() {
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
