//! The mount that all jobs share.
//!
//! Owns [`MountRequest`] and the table of mounts. Invariants: an image is made and opened by the first job
//! that names it and stays open until the process exits; jobs that ask for the same image otherwise are
//! refused; a mount that failed is not tried again. Locks: the table's, also while an image is opened, so that
//! others wait for it.

use crate::error::EngineError;
use crate::message::say;
use papilio::format::ChecksumType;
use papilio::{CompressionChoice, FileSystem, MkfsOptions, OpenOptions, Tuning};
use parking_lot::Mutex;
use std::path::PathBuf;

/// What is to be mounted, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountRequest {
    /// Images or devices, at least one.
    pub images: Vec<PathBuf>,
    /// Make the file system first.
    pub mkfs: Option<MkfsRequest>,
    /// Compression of new data.
    pub compress: Option<CompressionChoice>,
    /// Which of several ways things are done.
    pub tuning: Tuning,
    /// Bytes of the page cache; 0 for none.
    pub cache_bytes: u64,
    /// Bytes of the cache of tree blocks, if not as many as there usually are.
    pub node_cache_bytes: Option<usize>,
    /// New files are written in place and have no checksums.
    pub no_data_cow: bool,
    /// New files have no checksums.
    pub no_data_sums: bool,
    /// fio runs with `--readonly`.
    pub read_only: bool,
}

/// A file system that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MkfsRequest {
    /// Also over what is there.
    pub force: bool,
    /// Its bytes; all that the image has where not given.
    pub size: Option<u64>,
    /// Of metadata and data.
    pub checksum: ChecksumType,
    /// Bytes of a tree block.
    pub node_size: Option<u32>,
}

struct Mount {
    request: MountRequest,
    /// Absent if it failed.
    fs: Option<FileSystem>,
}

static MOUNTS: Mutex<Vec<Mount>> = Mutex::new(Vec::new());

/// The file system that `request` names, mounted at the first call.
///
/// # Errors
/// What making or opening it meets, or that it is mounted otherwise.
pub fn mount(request: &MountRequest) -> Result<FileSystem, EngineError> {
    let mut mounts = MOUNTS.lock();
    if let Some(mount) = mounts.iter().find(|mount| mount.request.images == request.images) {
        if mount.request != *request {
            return Err(EngineError::OtherMount { image: request.image() });
        }
        return mount.fs.clone().ok_or_else(|| EngineError::MountFailed { image: request.image() });
    }
    let made = request.open();
    mounts.push(Mount { request: request.clone(), fs: made.as_ref().ok().cloned() });
    made.map_err(|source| EngineError::Mount { image: request.image(), source: Box::new(source) })
}

impl MountRequest {
    /// The images as the job gives them.
    fn image(&self) -> String {
        self.images.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(":")
    }

    fn open(&self) -> papilio::Result<FileSystem> {
        if let Some(mkfs) = &self.mkfs {
            if self.images.len() > 1 {
                let reason = "mkfs makes file systems of one device; several must exist already";
                return Err(papilio::Error::Invalid(reason.to_owned()));
            }
            mkfs.make(&self.images[0])?;
        }
        let mut options = OpenOptions::new()
            .write(!self.read_only)
            .tuning(self.tuning)
            .cache_bytes(self.cache_bytes)
            .no_data_sums(self.no_data_sums);
        if self.no_data_cow {
            options = options.no_data_cow(true);
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
        // A job's own process has a copy of the mount that is not its to write.
        mounts.into_iter().for_each(std::mem::forget);
        return;
    }
    // In a thread of its own: what this one keeps to itself is gone already.
    let failed = std::thread::spawn(move || {
        let mut failed = false;
        for mount in mounts {
            if let Some(Err(error)) = mount.fs.map(FileSystem::close) {
                say(format_args!("{}: unmounting: {error}", mount.request.image()));
                failed |= !mount.request.read_only;
            }
        }
        failed
    });
    if failed.join().unwrap_or(true) {
        // SAFETY: flushing all streams has no conditions; what fio printed must not be lost with its exit code.
        unsafe {
            libc::fflush(std::ptr::null_mut());
            libc::_exit(1);
        }
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static UNMOUNT_AT_EXIT: extern "C" fn() = unmount_at_exit;
