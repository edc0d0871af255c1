//! How a file system is opened.
//!
//! Owns [`OpenOptions`], the builder that every way of opening goes through.

use papilio_format::TreeId;
use std::path::{Path, PathBuf};

/// Options of opening a file system; all defaults are the safe ones.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    pub(crate) devices: Vec<PathBuf>,
    pub(crate) degraded: bool,
    pub(crate) superblock_mirror: Option<usize>,
    pub(crate) use_backup_root: bool,
    pub(crate) subvolume: SubvolumeChoice,
    pub(crate) node_cache_bytes: usize,
    pub(crate) verify_data: bool,
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
            subvolume: SubvolumeChoice::TopLevel,
            node_cache_bytes: 64 << 20,
            verify_data: true,
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

    /// Chooses the subvolume that paths start from.
    pub fn subvolume(mut self, choice: SubvolumeChoice) -> Self {
        self.subvolume = choice;
        self
    }

    /// Limits the memory of cached tree blocks, in bytes (default 64 MiB).
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
}
