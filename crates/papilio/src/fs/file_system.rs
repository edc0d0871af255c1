//! The file system: what opening a device or an image gives.
//!
//! Owns [`FileSystem`], a cheap handle that any number of threads may share.

use crate::btree::CacheStatistics;
use crate::errors::Result;
use crate::file::fs_info::FsInfo;
use crate::mount::{self, Closer};
use crate::options::OpenOptions;
use crate::subvolume::{self, Subvolume, default_subvolume};
use papilio_device::Device;
use papilio_format::{Superblock, TreeId, Uuid};
use std::path::Path;
use std::sync::Arc;

/// An open Btrfs file system. Cloning gives another handle on the same one.
///
/// Paths are bytes, as on disk: components separated by `/`, starting at the subvolume that the
/// options chose, with or without a leading `/`. They cross into other subvolumes and snapshots.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let image = folder.path().join("backup.img");
/// # let carried = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/fuzz-mixed.img.zst");
/// # zstd::stream::copy_decode(std::fs::File::open(carried)?, std::fs::File::create(&image)?)?;
/// let fs = papilio::FileSystem::open(&image)?;
/// for entry in fs.read_dir("/d")? {
///     let entry = entry?;
///     println!("{:?} {}", entry.kind(), String::from_utf8_lossy(entry.name()));
/// }
/// assert_eq!(fs.read_link("/link")?, b"../d/text");
/// let missing = fs.metadata("/no/such/file").unwrap_err();
/// assert_eq!(missing.to_string(), "/no/such/file: no such file or directory");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FileSystem {
    pub(crate) info: Arc<FsInfo>,
    /// Closes the file system with the last handle; `None` for one that is open for reading.
    _closer: Option<Arc<Closer>>,
}

impl FileSystem {
    /// Opens the image or block device at `path` for reading, with the default options. The device
    /// is locked against writers until the last handle is dropped.
    ///
    /// # Errors
    /// A device that cannot be opened, is no Btrfs, uses features that this code does not know, or
    /// whose first trees cannot be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, &OpenOptions::default())
    }

    /// Opens as the options say; `path` is the first device, the options name the others.
    ///
    /// # Errors
    /// As [`FileSystem::open`]; [`Error::DeviceMissing`] where a device was not named.
    pub fn open_with(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        Ok(Self::started(mount::open_path(path.as_ref(), options)?, options))
    }

    /// Opens what lies on devices that the caller made, in memory for instance. The options'
    /// own devices are not looked at.
    ///
    /// # Errors
    /// As [`FileSystem::open_with`].
    pub fn from_devices(devices: Vec<Arc<dyn Device>>, options: &OpenOptions) -> Result<Self> {
        Ok(Self::started(mount::from_devices(devices, options)?, options))
    }

    fn started(info: FsInfo, options: &OpenOptions) -> Self {
        let info = Arc::new(info);
        let closer = Closer::start(&info, options.commit_interval);
        Self { info, _closer: closer }
    }

    /// The superblock in use.
    pub fn superblock(&self) -> Superblock {
        match self.info.trees.transactions() {
            Some(transactions) => {
                let mut superblock = self.info.volume().superblock().clone();
                superblock.raw = transactions.superblock();
                superblock
            }
            None => self.info.volume().superblock().clone(),
        }
    }

    /// The UUID that users see.
    pub fn uuid(&self) -> Uuid {
        self.superblock().raw.fsid
    }

    /// The label, without its NUL; empty if there is none.
    pub fn label(&self) -> Vec<u8> {
        self.superblock().label().to_vec()
    }

    /// Whether there is a log of fsyncs since the last commit, whose changes are not shown: it is replayed, and
    /// gone, when the file system is opened for writing.
    pub fn has_log(&self) -> bool {
        self.superblock().log_root().is_some()
    }

    /// Whether the newest roots could not be read and a backup root is in use.
    pub fn used_backup_root(&self) -> bool {
        self.info.used_backup_root
    }

    /// What the cache of tree blocks did so far.
    pub fn cache_statistics(&self) -> CacheStatistics {
        self.info.trees.forest().statistics()
    }

    /// Forgets all cached tree blocks, as a fresh open would.
    pub fn drop_cache(&self) {
        self.info.trees.forest().drop_cache();
    }

    /// The subvolume that a mount without options shows.
    ///
    /// # Errors
    /// A tree block that cannot be read.
    pub fn default_subvolume(&self) -> Result<TreeId> {
        default_subvolume(&self.info.trees)
    }

    /// All subvolumes and snapshots, the top level first, then by id; those that are being deleted
    /// too.
    ///
    /// # Errors
    /// A tree block or item that cannot be read.
    pub fn subvolumes(&self) -> Result<Vec<Subvolume>> {
        subvolume::list(&self.info.trees)
    }

    /// One subvolume.
    ///
    /// # Errors
    /// [`PathError::NoSubvolume`], or as [`FileSystem::subvolumes`].
    pub fn subvolume(&self, id: TreeId) -> Result<Subvolume> {
        subvolume::show(&self.info.trees, id)
    }
}
