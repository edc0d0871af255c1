//! The mount that all jobs share.
//!
//! Owns [`MountRequest`] and the table of mounts.
//!
//! **Invariants**
//! - The first job that names an image creates and opens the file system, which stays open until
//!   the process exits.
//! - A job that asks for a different mount of the same image is refused.
//! - A failed mount is not retried.
//!
//! **Locks**
//! - The table's mutex. It is held while an image is opened, so other jobs wait for that.

use crate::error::EngineError;
use crate::message::say;
use papilio::format::ChecksumType;
use papilio::{CompressionChoice, FileSystem, MkfsOptions, OpenOptions, Tuning};
use parking_lot::Mutex;
use std::path::PathBuf;
use std::time::Duration;

/// A request for a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountRequest {
    /// Images or devices; at least one.
    pub images: Vec<PathBuf>,
    /// The file system to make first, if any.
    pub mkfs: Option<MkfsRequest>,
    /// Compression of new data.
    pub compress: Option<CompressionChoice>,
    /// Switches for single optimisations.
    pub tuning: Tuning,
    /// Size limit of the page cache in bytes; 0 for no cache.
    pub cache_bytes: u64,
    /// Size limit of the tree block cache in bytes; `None` for the default.
    pub node_cache_bytes: Option<usize>,
    /// The image bypasses the host's page cache where the host can do that. The first job decides.
    pub direct_io: bool,
    /// Delay of each request to the image.
    pub device_delay: Option<Duration>,
    /// New files are overwritten in place and have no checksums.
    pub no_data_cow: bool,
    /// New files have no checksums.
    pub no_data_sums: bool,
    /// fio runs with `--readonly`.
    pub read_only: bool,
}

/// A request to make a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MkfsRequest {
    /// Overwrite an existing file system.
    pub force: bool,
    /// Size in bytes; `None` for the size of the image.
    pub size: Option<u64>,
    /// Checksum type of metadata and data.
    pub checksum: ChecksumType,
    /// Size of a tree block in bytes.
    pub node_size: Option<u32>,
}

struct Mount {
    request: MountRequest,
    /// `None` if the mount failed.
    fs: Option<FileSystem>,
}

static MOUNTS: Mutex<Vec<Mount>> = Mutex::new(Vec::new());

/// Returns the file system that `request` names; the first call mounts it.
///
/// # Errors
/// The file system cannot be made or opened, or an earlier request mounted it differently.
pub fn mount(request: &MountRequest) -> Result<FileSystem, EngineError> {
    let mut mounts = MOUNTS.lock();
    if let Some(mount) = mounts.iter().find(|mount| mount.request.images == request.images) {
        if !mount.request.is_same_mount(request) {
            return Err(EngineError::OtherMount { image: request.image() });
        }
        return mount.fs.clone().ok_or_else(|| EngineError::MountFailed { image: request.image() });
    }
    let made = request.open();
    mounts.push(Mount { request: request.clone(), fs: made.as_ref().ok().cloned() });
    made.map_err(|source| EngineError::Mount { image: request.image(), source: Box::new(source) })
}

impl MountRequest {
    /// Returns the images as the job gives them.
    fn image(&self) -> String {
        self.images.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(":")
    }

    /// Returns whether both ask for the same mount of the same images.
    fn is_same_mount(&self, other: &Self) -> bool {
        Self { direct_io: other.direct_io, ..self.clone() } == *other
    }

    fn open(&self) -> papilio::Result<FileSystem> {
        if let Some(mkfs) = &self.mkfs {
            if self.images.len() > 1 {
                let reason =
                    "mkfs makes file systems of one device only; make one with several devices beforehand";
                return Err(papilio::Error::Invalid(reason.to_owned()));
            }
            mkfs.make(&self.images[0])?;
        }
        let mut options = OpenOptions::new()
            .write(!self.read_only)
            .tuning(self.tuning)
            .cache_bytes(self.cache_bytes)
            .direct_io(self.direct_io)
            .no_data_sums(self.no_data_sums);
        if self.no_data_cow {
            options = options.no_data_cow(true);
        }
        if let Some(delay) = self.device_delay {
            options = options.device_delay(delay);
        }
        for image in &self.images[1..] {
            options = options.device(image);
        }
        if let Some(bytes) = self.node_cache_bytes {
            options = options.node_cache_bytes(bytes);
        }
        if let Some(compress) = self.compress {
            options = options.compress(compress);
        }
        FileSystem::open_with(&self.images[0], &options)
    }
}

impl MkfsRequest {
    fn make(&self, image: &std::path::Path) -> papilio::Result<()> {
        let mut options = MkfsOptions::new().force(self.force).checksum(self.checksum);
        if let Some(size) = self.size {
            options = options.size(size);
        }
        if let Some(node_size) = self.node_size {
            options = options.node_size(node_size);
        }
        papilio::mkfs(image, &options).map(drop)
    }
}

/// Unmounts everything when the process exits.
extern "C" fn unmount_at_exit() {
    let mounts = std::mem::take(&mut *MOUNTS.lock());
    if mounts.is_empty() || !crate::discover::fio().is_ok_and(|fio| fio.is_main_process()) {
        // A forked job has a copy of the mount that it must not write.
        mounts.into_iter().for_each(std::mem::forget);
        return;
    }
    // In a new thread, because this thread's local storage is already destroyed.
    let failed = std::thread::spawn(move || {
        let mut failed = false;
        for mount in mounts {
            if let Some(Err(error)) = mount.fs.map(FileSystem::close) {
                say(format_args!("{}: unmounting failed: {error}", mount.request.image()));
                failed |= !mount.request.read_only;
            }
        }
        failed
    });
    if failed.join().unwrap_or(true) {
        // SAFETY: flushing all streams has no preconditions. `_exit` would lose fio's buffered
        // output.
        unsafe {
            libc::fflush(std::ptr::null_mut());
            libc::_exit(1);
        }
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static UNMOUNT_AT_EXIT: extern "C" fn() = unmount_at_exit;
