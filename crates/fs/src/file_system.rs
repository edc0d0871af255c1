//! Open file systems.
//!
//! Owns [`FileSystem`], a handle that is cheap to clone and that any number of threads may share.

use crate::salvage::scanned;
use papilio_device::{Access, Device, restore_readers_locks};
#[cfg(feature = "unstable")]
use papilio_engine::btree::CacheStatistics;
use papilio_engine::errors::Result;
use papilio_engine::file::fs_info::FsInfo;
use papilio_engine::jobs::replace;
use papilio_engine::mount::{self, Closer};
use papilio_engine::options::OpenOptions;
use papilio_engine::options::older::{OlderFile, OlderState};
use papilio_engine::options::rescue::ItemFault;
use papilio_engine::subvolume::{self, Subvolume, default_subvolume};
use papilio_engine::transaction::clock;
use papilio_format::features::SuperblockFlags;
use papilio_format::items::inode::Timespec;
use papilio_format::items::root::RootFlags;
use papilio_format::{Generation, Superblock, TreeId, Uuid};
use std::path::Path;
use std::sync::Arc;

/// An open Btrfs file system. A clone is another handle of the same one.
///
/// A path ([`AsPath`](crate::AsPath)) consists of components separated by `/`, with or without a
/// leading `/`. It starts at the subvolume chosen by the options, and may cross into other
/// subvolumes and snapshots. The names of methods are those of [`std::fs`], where it has one.
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
///     println!("{:?} {}", entry.file_type(), String::from_utf8_lossy(entry.file_name()));
/// }
/// assert_eq!(fs.read_link("/link")?, b"../d/text");
/// let missing = fs.metadata("/no/such/file").unwrap_err();
/// assert_eq!(missing.to_string(), "/no/such/file: no such file or directory");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FileSystem {
    #[doc(hidden)]
    pub info: Arc<FsInfo>,
    /// Closes the file system when the last handle is dropped; `None` if it is open for reading
    /// only.
    _closer: Option<Arc<Closer>>,
}

impl FileSystem {
    /// Opens the image or block device at `path` for reading, with the default options. The device
    /// is locked against writers until the last handle is dropped.
    ///
    /// # Errors
    /// A device that cannot be opened, is not Btrfs, or uses unknown features; a tree needed for
    /// opening that cannot be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, &OpenOptions::default())
    }

    /// Opens the file system whose first device is `path`. The options name the other devices.
    ///
    /// The path may be a disk image: qcow2, VMDK, VHDX, or a raw image, also compressed with xz or
    /// zstd. The file system is the whole disk or its only partition with Btrfs. `IMAGE@N` names
    /// partition N if no file has that name, as [`OpenOptions::partition`] does.
    ///
    /// # Errors
    /// As [`FileSystem::open`]; [`Error::DeviceMissing`](papilio_engine::Error::DeviceMissing) if a
    /// device is not named.
    pub fn open_with(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        if options.rescue.scan {
            let devices = mount::open_devices(path.as_ref(), options, Access::ReadOnly)?;
            return Self::from_devices(devices, options);
        }
        Self::started(mount::open_path(path.as_ref(), options)?, options)
    }

    /// Opens for writing a file system that this process has open for reading, with the same path
    /// and devices. The devices must be the very files that are open. Their locks pass on, so that
    /// no other program can come between; if it fails, the readers have them back. The file system
    /// that is open keeps showing what it shows, and must not be read once this one has changed.
    ///
    /// # Errors
    /// As [`FileSystem::open_with`]; another process has a device open, or this one does not.
    pub fn open_over_readers(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        let opened = Self::open_with(path, &options.clone().write(true).take_over(true));
        if opened.is_err() {
            restore_readers_locks();
        }
        opened
    }

    /// Returns whether this is a seed, which is never written: adding a device makes a new file
    /// system that builds on it ([`FileSystem::sprout_from_this`]).
    pub fn is_seed(&self) -> bool {
        self.current_superblock().raw.flags.contains(SuperblockFlags::SEEDING)
    }

    /// Opens the file system on the given devices, for example in memory
    /// ([`MemoryDevice`](papilio_device::MemoryDevice)). Devices named in the options are ignored.
    ///
    /// # Errors
    /// As [`FileSystem::open_with`].
    pub fn from_devices(devices: Vec<Arc<dyn Device>>, options: &OpenOptions) -> Result<Self> {
        let options = &scanned(&devices, options)?;
        Self::started(mount::from_devices(devices, options)?, options)
    }

    fn started(info: FsInfo, options: &OpenOptions) -> Result<Self> {
        if options.write {
            // Writes from here on may reach one of the two devices only.
            replace::rewind(&info)?;
        }
        let info = Arc::new(info);
        let closer = Closer::start(&info, options.commit_interval, FsInfo::heal);
        Ok(Self { info, _closer: closer })
    }

    /// Returns whether dirty data of open files waits in a page cache.
    pub fn has_page_cache(&self) -> bool {
        self.info.page_cache.is_some()
    }

    /// Returns the superblock in use.
    #[cfg(feature = "unstable")]
    pub fn superblock(&self) -> Superblock {
        self.current_superblock()
    }

    pub(super) fn current_superblock(&self) -> Superblock {
        match self.info.trees.transactions() {
            Some(transactions) => {
                let mut superblock = self.info.volume().superblock().clone();
                superblock.raw = transactions.superblock();
                superblock
            }
            None => self.info.volume().superblock().clone(),
        }
    }

    /// Returns whether requests wait for a device, as those that bypass the host's page cache do
    /// ([`OpenOptions::direct_io`](papilio_engine::OpenOptions::direct_io)). It then pays to have
    /// many in flight.
    pub fn waits_for_devices(&self) -> bool {
        self.info.volume().waits()
    }

    /// Returns whether reads of an [`IoQueue`](crate::IoQueue) are in flight without a thread for
    /// each: requests wait for a device, or
    /// [`OpenOptions::direct_queue`](papilio_engine::OpenOptions::direct_queue) has an effect.
    pub fn queues_reads(&self) -> bool {
        self.info.volume().answers_later()
    }

    /// Returns the time that a change made now carries: that of
    /// [`OpenOptions::timestamp`](papilio_engine::OpenOptions::timestamp), or of the clock that the
    /// kernel stamps inodes with, so that stamps of both are in order.
    pub fn now(&self) -> Timespec {
        self.info.trees.transactions().map_or_else(clock::now, |transactions| transactions.now())
    }

    /// Returns the UUID of the file system.
    pub fn uuid(&self) -> Uuid {
        self.current_superblock().raw.fsid
    }

    /// Returns the label without its NUL; empty if there is none.
    pub fn label(&self) -> Vec<u8> {
        self.current_superblock().label().to_vec()
    }

    /// Returns whether there is a log of fsyncs since the last commit whose changes are not
    /// visible: the options forbid its replay, or it cannot be replayed and they allow an older
    /// state. Opening for writing replays a log and removes it; opening for reading replays it in
    /// memory.
    pub fn has_log(&self) -> bool {
        self.current_superblock().log_root().is_some()
    }

    /// Returns why the state that is shown is older than the newest one on the devices; empty if it
    /// is the newest, or if the file system is open for writing.
    pub fn older_states(&self) -> &[OlderState] {
        &self.info.older
    }

    /// Returns the files for which the log of fsyncs of `state` has something newer than what is
    /// shown, by path. Faults of the log are listed, too. Empty if no log belongs to `state`.
    pub fn older_files(&self, state: &OlderState) -> Vec<OlderFile> {
        state.log.map_or_else(Vec::new, |log| mount::older_files(&self.info.trees, log))
    }

    /// Returns the parts of trees with faults that reads have met so far and went without, each
    /// once. Only a file system that was opened to ignore faults
    /// ([`OpenOptions::ignore_bad_roots`](papilio_engine::OpenOptions::ignore_bad_roots),
    /// [`OpenOptions::scan`](papilio_engine::OpenOptions::scan)) or to allow an older state has
    /// any.
    pub fn item_faults(&self) -> Vec<ItemFault> {
        self.info.trees.forest().faults().all()
    }

    /// Logs the faults so far, and each further one when a read meets it, as servers do.
    pub fn log_item_faults(&self) {
        self.info.trees.forest().faults().announce();
    }

    /// Returns whether a backup root is in use because the newest roots could not be read.
    pub fn used_backup_root(&self) -> bool {
        self.info.used_backup_root
    }

    /// Returns whether data is verified by checksums: not if the options forbid it, or if the
    /// checksum tree cannot be read and the options allow that.
    pub fn verifies_data(&self) -> bool {
        self.info.reader.verifies_any()
    }

    /// Returns whether data is read without verification because the whole checksum tree is lost:
    /// its root cannot be read, and the options allow that
    /// ([`OpenOptions::ignore_bad_roots`](papilio_engine::OpenOptions::ignore_bad_roots)). Data
    /// that is read may be wrong, and nothing tells.
    pub fn has_lost_checksums(&self) -> bool {
        !self.verifies_data() && !self.info.reader.has_checksum_tree()
    }

    /// Returns statistics of the tree block cache.
    #[cfg(feature = "unstable")]
    pub fn cache_statistics(&self) -> CacheStatistics {
        self.info.trees.forest().statistics()
    }

    /// Drops all clean tree blocks from the cache.
    pub fn drop_cache(&self) {
        self.info.trees.forest().drop_cache();
    }

    /// Returns the id of the subvolume that a mount without options shows.
    ///
    /// # Errors
    /// A tree block that cannot be read.
    pub fn default_subvolume(&self) -> Result<TreeId> {
        default_subvolume(&self.info.trees)
    }

    /// Returns all subvolumes and snapshots, also those being deleted: the top level first, the
    /// others by id.
    ///
    /// # Errors
    /// A tree block or item that cannot be read.
    pub fn subvolumes(&self) -> Result<Vec<Subvolume>> {
        subvolume::list(&self.info.trees)
    }

    /// Returns the subvolume with an id.
    ///
    /// # Errors
    /// [`PathError::NoSubvolume`](papilio_engine::PathError::NoSubvolume), or as
    /// [`FileSystem::subvolumes`].
    pub fn subvolume(&self, id: TreeId) -> Result<Subvolume> {
        subvolume::show(&self.info.trees, id)
    }

    /// Returns what a server asks of a subvolume at each call. It costs no listing, unlike
    /// [`Self::subvolume`].
    ///
    /// # Errors
    /// [`PathError::NoSubvolume`](papilio_engine::PathError::NoSubvolume) also for one that is
    /// deleted; a tree block or item that cannot be read.
    pub fn subvolume_state(&self, id: TreeId) -> Result<SubvolumeState> {
        let subvolume = self.info.trees.subvolume(id)?;
        let item = subvolume.item();
        Ok(SubvolumeState { created: item.otransid, is_read_only: item.flags.contains(RootFlags::RDONLY) })
    }
}

/// A subvolume that is not deleted, in short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SubvolumeState {
    /// The transaction that created it. It tells subvolumes apart that had the same id in turn.
    pub created: Generation,
    /// Whether it is read-only.
    pub is_read_only: bool,
}
