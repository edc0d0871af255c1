//! The file system: what opening a device or an image gives.
//!
//! Owns [`FileSystem`], a cheap handle that any number of threads may share.

use crate::btree::CacheStatistics;
use crate::errors::{Error, PathError, Result};
use crate::fs::mount::{Mounted, default_subvolume, subvolume_root};
use crate::fs::sync::Closer;
use crate::fs::{Entries, File, Inode, Metadata, Walk};
use crate::namespace::{Handle, Place, resolve};
use crate::options::OpenOptions;
use crate::subvolume::{self, Subvolume};
use papilio_device::Device;
use papilio_format::{InodeNumber, Superblock, TreeId, Uuid};
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
    pub(crate) mounted: Arc<Mounted>,
    /// Closes it when the last handle of a caller goes; absent inside.
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
        Ok(Self::started(Mounted::open(path.as_ref(), options)?, options))
    }

    /// Opens what lies on devices that the caller made, in memory for instance. The options'
    /// own devices are not looked at.
    ///
    /// # Errors
    /// As [`FileSystem::open_with`].
    pub fn from_devices(devices: Vec<Arc<dyn Device>>, options: &OpenOptions) -> Result<Self> {
        Ok(Self::started(Mounted::from_devices(devices, options)?, options))
    }

    fn started(mounted: Mounted, options: &OpenOptions) -> Self {
        let mounted = Arc::new(mounted);
        let closer = Closer::start(&mounted, options.commit_interval);
        Self { mounted, _closer: closer }
    }

    /// A handle for what is done inside, which does not keep the file system from being closed.
    pub(crate) fn of_mounted(mounted: Arc<Mounted>) -> Self {
        Self { mounted, _closer: None }
    }

    /// The superblock in use.
    pub fn superblock(&self) -> Superblock {
        match self.mounted.trees.transactions() {
            Some(transactions) => {
                let mut superblock = self.mounted.volume().superblock().clone();
                superblock.raw = transactions.superblock();
                superblock
            }
            None => self.mounted.volume().superblock().clone(),
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
        self.mounted.used_backup_root
    }

    /// What the cache of tree blocks did so far.
    pub fn cache_statistics(&self) -> CacheStatistics {
        self.mounted.trees.forest().statistics()
    }

    /// Forgets all cached tree blocks, as a fresh open would.
    pub fn drop_cache(&self) {
        self.mounted.trees.forest().drop_cache();
    }

    /// The directory that paths start from.
    ///
    /// # Errors
    /// A tree block that cannot be read, or a subvolume that was deleted since.
    pub fn root(&self) -> Result<Inode> {
        Ok(self.wrap(self.root_handle()?))
    }

    /// The root directory of subvolume `id`.
    ///
    /// # Errors
    /// [`PathError::NoSubvolume`] where there is none.
    pub fn subvolume_root(&self, id: TreeId) -> Result<Inode> {
        Ok(self.wrap(subvolume_root(&self.mounted.trees, id)?))
    }

    /// The subvolume that a mount without options shows.
    ///
    /// # Errors
    /// A tree block that cannot be read.
    pub fn default_subvolume(&self) -> Result<TreeId> {
        default_subvolume(&self.mounted.trees)
    }

    /// All subvolumes and snapshots, the top level first, then by id; those that are being deleted
    /// too.
    ///
    /// # Errors
    /// A tree block or item that cannot be read.
    pub fn subvolumes(&self) -> Result<Vec<Subvolume>> {
        subvolume::list(&self.mounted.trees)
    }

    /// One subvolume.
    ///
    /// # Errors
    /// [`PathError::NoSubvolume`], or as [`FileSystem::subvolumes`].
    pub fn subvolume(&self, id: TreeId) -> Result<Subvolume> {
        subvolume::show(&self.mounted.trees, id)
    }

    /// The inode at `path`; a symbolic link is followed.
    ///
    /// # Errors
    /// [`Error::Path`] with POSIX's reason, or a tree block that cannot be read.
    pub fn inode(&self, path: impl AsRef<[u8]>) -> Result<Inode> {
        self.resolve(path.as_ref(), true)
    }

    /// The inode at `path`; a symbolic link in the last component is not followed.
    ///
    /// # Errors
    /// As [`FileSystem::inode`].
    pub fn inode_nofollow(&self, path: impl AsRef<[u8]>) -> Result<Inode> {
        self.resolve(path.as_ref(), false)
    }

    /// The inode by its subvolume and number.
    ///
    /// # Errors
    /// [`PathError::NoSubvolume`] or [`PathError::NotFound`].
    pub fn inode_at(&self, tree: TreeId, inode: InodeNumber) -> Result<Inode> {
        Ok(self.wrap(Handle::open(&self.mounted.trees, Place { tree, inode })?))
    }

    /// What `stat` shows of `path`.
    ///
    /// # Errors
    /// As [`FileSystem::inode`].
    pub fn metadata(&self, path: impl AsRef<[u8]>) -> Result<Metadata> {
        Ok(*self.inode(path)?.metadata())
    }

    /// What `lstat` shows of `path`.
    ///
    /// # Errors
    /// As [`FileSystem::inode`].
    pub fn symlink_metadata(&self, path: impl AsRef<[u8]>) -> Result<Metadata> {
        Ok(*self.inode_nofollow(path)?.metadata())
    }

    /// The entries of the directory at `path`, in the order of their creation.
    ///
    /// # Errors
    /// [`PathError::NotADirectory`], or as [`FileSystem::inode`].
    pub fn read_dir(&self, path: impl AsRef<[u8]>) -> Result<Entries> {
        let path = path.as_ref();
        self.inode(path)?.entries().map_err(|error| name_path(error, path))
    }

    /// Opens the regular file at `path`.
    ///
    /// # Errors
    /// [`PathError::IsADirectory`], [`PathError::NotAFile`], or as [`FileSystem::inode`].
    pub fn open_file(&self, path: impl AsRef<[u8]>) -> Result<File> {
        let path = path.as_ref();
        self.inode(path)?.open().map_err(|error| name_path(error, path))
    }

    /// The whole content of the regular file at `path`. Memory grows with what is really there: a
    /// size that the device cannot hold is met by zeros read in steps, not by one allocation.
    ///
    /// # Errors
    /// As [`FileSystem::open_file`], or data that no copy holds with the right checksum.
    pub fn read(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        self.open_file(path)?.read_all()
    }

    /// The target of the symbolic link at `path`.
    ///
    /// # Errors
    /// [`PathError::NotASymlink`], or as [`FileSystem::inode`].
    pub fn read_link(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let path = path.as_ref();
        self.inode_nofollow(path)?.read_link().map_err(|error| name_path(error, path))
    }

    /// Everything below `path`, each directory before its content, without following symbolic
    /// links, across subvolumes.
    ///
    /// # Errors
    /// As [`FileSystem::inode`].
    pub fn walk(&self, path: impl AsRef<[u8]>) -> Result<Walk> {
        Ok(Walk::new(self.inode(path)?))
    }

    pub(super) fn root_handle(&self) -> Result<Handle> {
        Handle::open(&self.mounted.trees, self.mounted.root)
    }

    fn resolve(&self, path: &[u8], follow: bool) -> Result<Inode> {
        let handle = resolve(&self.mounted.trees, &self.root_handle()?, path, follow)?;
        Ok(self.wrap(handle))
    }

    pub(crate) fn wrap(&self, mut handle: Handle) -> Inode {
        if let Some(open) = self.mounted.dirty_inodes.get(handle.place()) {
            handle.item = open.as_seen(handle.item);
        }
        Inode::new(self.clone(), handle)
    }
}

/// Puts the caller's path into an error that knows only an inode number.
fn name_path(error: Error, path: &[u8]) -> Error {
    match error {
        Error::Path { kind, .. } if kind != PathError::NoSubvolume => Error::path(path, kind),
        other => other,
    }
}
