//! Temporary folders that clean up everything in them: files, mounts, loop devices, and a kernel
//! switch that is on while a user exists ([`crate::fuse_ring`]).
//!
//! A folder is called `papilio-PID-START-RANDOM`, after its process and the time that process
//! started. It holds a file `lock` that the process keeps locked. A killed run leaves its folder
//! behind. The next run that creates one removes each folder whose process is gone *and* whose lock
//! is free. Nothing else is ever touched.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

use anyhow::{Context, bail};
use rustix::mount::UnmountFlags;

use crate::{switch_record, sys};

const PREFIX: &str = "papilio-";
const LOCK_FILE: &str = "lock";
/// Bytes left free on every file system, because other programs use it too.
const MARGIN: u64 = 256 << 20;

/// A temporary folder, shared by its clones. Dropping the last clone removes it.
#[derive(Clone, Debug)]
pub struct Scratch {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    _lock: File,
    next: std::sync::atomic::AtomicU64,
}

impl Scratch {
    /// Creates a folder for `needed` bytes: in memory (`/dev/shm`) if there is plenty, otherwise in
    /// the system's temporary folder.
    ///
    /// # Errors
    /// There is too little space, or the folder cannot be created.
    pub fn new(needed: u64) -> anyhow::Result<Self> {
        let memory = Path::new("/dev/shm");
        // Files in memory reduce the page cache, so use at most a quarter of the free memory.
        if memory.is_dir() && free_space(memory)? / 4 >= needed && available_memory() / 4 >= needed {
            return Self::under(memory, needed);
        }
        Self::under(&std::env::temp_dir(), needed)
    }

    /// Creates a folder under `parent` after checking for `needed` free bytes.
    ///
    /// # Errors
    /// There is too little space, or the folder cannot be created.
    pub fn under(parent: &Path, needed: u64) -> anyhow::Result<Self> {
        clean_leftovers_once();
        let free = free_space(parent)?;
        if free < needed.saturating_add(MARGIN) {
            bail!("{}: {free} bytes free, {needed} needed", parent.display());
        }
        let pid = std::process::id();
        let start = start_time(pid).context("/proc has no start time for this process")?;
        let folder = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{pid}-{start}-"))
            .tempdir_in(parent)
            .with_context(|| format!("create a folder in {}", parent.display()))?;
        let lock = File::create_new(folder.path().join(LOCK_FILE))?;
        lock.lock()?;
        let path = folder.keep().canonicalize()?;
        Ok(Self { inner: Arc::new(Inner { path, _lock: lock, next: 0.into() }) })
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Returns a new path in the folder, different on every call.
    pub fn unique(&self, stem: &str) -> PathBuf {
        let number = self.inner.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.inner.path.join(format!("{stem}-{number}"))
    }

    /// Creates a sparse file of `size` bytes in the folder.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn image(&self, stem: &str, size: u64) -> io::Result<PathBuf> {
        let path = self.unique(stem);
        create_image(&path, size)?;
        Ok(path)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.path) {
            eprintln!("{}: cannot remove: {error:#}", self.path.display());
        }
    }
}

/// Creates a sparse file of `size` bytes; fails if the path exists.
///
/// # Errors
/// The file system's.
pub fn create_image(path: &Path, size: u64) -> io::Result<()> {
    File::create_new(path)?.set_len(size)
}

/// Returns the bytes available to this user on the file system that holds `path`.
///
/// # Errors
/// The file system's.
pub fn free_space(path: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Removes the remains of killed runs from `/dev/shm` and the temporary folder; returns their
/// paths.
pub fn clean_leftovers() -> Vec<PathBuf> {
    let parents = [PathBuf::from("/dev/shm"), std::env::temp_dir()];
    parents.iter().flat_map(|parent| clean_leftovers_in(parent)).collect()
}

/// Removes the remains of killed runs from one folder; returns their paths.
pub fn clean_leftovers_in(parent: &Path) -> Vec<PathBuf> {
    let mut removed = Vec::new();
    let Ok(entries) = std::fs::read_dir(parent) else { return removed };
    for entry in entries.flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) || !is_orphan(&entry.file_name()) {
            continue;
        }
        match remove_leftover(&entry.path()) {
            Ok(true) => removed.push(entry.path()),
            Ok(false) => {}
            Err(error) => eprintln!("{}: cannot remove: {error:#}", entry.path().display()),
        }
    }
    removed
}

/// Runs [`clean_leftovers`] once per process.
pub(crate) fn clean_leftovers_once() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| drop(clean_leftovers()));
}

/// Returns whether a folder's name is one of ours and its process is gone.
fn is_orphan(name: &OsStr) -> bool {
    let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { return false };
    let mut parts = rest.splitn(3, '-');
    let (Some(pid), Some(start), Some(_random)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    match (pid.parse::<u32>(), start.parse::<u64>()) {
        (Ok(pid), Ok(start)) => start_time(pid) != Some(start),
        _ => false,
    }
}

/// Removes an orphan unless its lock is held (its process may be in another pid namespace). Returns
/// whether it did.
fn remove_leftover(path: &Path) -> anyhow::Result<bool> {
    match File::open(path.join(LOCK_FILE)) {
        Ok(lock) => match lock.try_lock() {
            Ok(()) => Ok(switch_record::restore(path)? && remove(path).map(|()| true)?),
            Err(std::fs::TryLockError::WouldBlock) => Ok(false),
            Err(std::fs::TryLockError::Error(error)) => Err(error.into()),
        },
        // The process was killed before it locked the folder, or another run is removing it now.
        Err(error) if error.kind() == io::ErrorKind::NotFound => remove(path).map(|()| true),
        Err(error) => Err(error.into()),
    }
}

/// Unmounts everything under `path`, detaches loop devices backed by files in it, and removes it.
fn remove(path: &Path) -> anyhow::Result<()> {
    for point in mounts_under(path)?.iter().rev() {
        unmount(point)?;
    }
    // Keep a folder with a remaining mount: removing it would delete the mounted files.
    if let Some(still) = mounts_under(path)?.first() {
        bail!("{} is still mounted", still.display());
    }
    detach_loops_under(path);
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Unmounts `point`, with retries while it is busy, and lazily as a last resort.
///
/// # Errors
/// The kernel's. A path that is not mounted is not an error.
pub fn unmount(point: &Path) -> io::Result<()> {
    for attempt in 0..8 {
        match rustix::mount::unmount(point, UnmountFlags::empty()) {
            Err(rustix::io::Errno::BUSY) => {
                std::thread::sleep(std::time::Duration::from_millis(10 << attempt));
            }
            Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(rustix::mount::unmount(point, UnmountFlags::DETACH)?)
}

/// Returns the mount points at or below `path`, parents before children.
fn mounts_under(path: &Path) -> io::Result<Vec<PathBuf>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(table
        .split(|&byte| byte == b'\n')
        .filter_map(|line| line.split(|&byte| byte == b' ').nth(4))
        .map(unescape)
        .filter(|point| point.starts_with(path))
        .collect())
}

/// Decodes the octal escapes (such as `\040`) in /proc's tables.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = (first == b'\\' && tail.len() >= 3)
            .then(|| std::str::from_utf8(&tail[..3]).ok())
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(octal.unwrap_or(first));
        rest = if octal.is_some() { &tail[3..] } else { tail };
    }
    std::ffi::OsString::from_vec(bytes).into()
}

fn detach_loops_under(path: &Path) {
    let Ok(devices) = std::fs::read_dir("/sys/block") else { return };
    for device in devices.flatten().filter(|d| d.file_name().as_bytes().starts_with(b"loop")) {
        let Ok(backing) = std::fs::read_to_string(device.path().join("loop/backing_file")) else {
            continue;
        };
        if Path::new(backing.trim_end()).starts_with(path) {
            let node = Path::new("/dev").join(device.file_name());
            let _ = sys::forget_device(&node);
            // It may have detached itself by now. The next run finds a device that remains.
            let _ = File::open(&node).and_then(|file| sys::clear_loop_device(&file));
        }
    }
}

/// Returns when a process started, in clock ticks since boot; `None` if there is no such process.
fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name may contain spaces and parentheses; field 22 is the 20th after it.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

fn available_memory() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    info.lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .map_or(0, |kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_is_removed_on_drop_and_on_panic() {
        let scratch = Scratch::new(0).unwrap();
        let path = scratch.path().to_owned();
        scratch.image("image", 1 << 20).unwrap();
        let second = scratch.clone();
        drop(scratch);
        assert!(path.is_dir());
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _held = second;
            std::panic::resume_unwind(Box::new("on purpose"));
        }));
        assert!(caught.is_err());
        assert!(!path.exists());
    }

    #[test]
    fn only_folders_of_dead_processes_are_orphans() {
        let me = std::process::id();
        let start = start_time(me).unwrap();
        assert!(!is_orphan(OsStr::new(&format!("papilio-{me}-{start}-abc"))));
        assert!(is_orphan(OsStr::new(&format!("papilio-{me}-{}-abc", start + 1))));
        for name in ["papilio-", "papilio-x-1-abc", "papilio-1", "papilio-999999999-1", "other-1-1-a"] {
            assert!(!is_orphan(OsStr::new(name)), "{name}");
        }
    }

    #[test]
    fn leftover_is_removed_unless_locked() {
        let parent = Scratch::new(0).unwrap();
        let folder = parent.path().join("papilio-4294967294-1-abc");
        std::fs::create_dir(&folder).unwrap();
        let lock = File::create_new(folder.join(LOCK_FILE)).unwrap();
        lock.lock().unwrap();
        assert!(is_orphan(folder.file_name().unwrap()));
        assert!(!remove_leftover(&folder).unwrap());
        assert!(folder.exists());
        drop(lock);
        assert!(remove_leftover(&folder).unwrap());
        assert!(!folder.exists());
    }

    #[test]
    fn mount_table_escapes_are_decoded() {
        assert_eq!(unescape(br"/a\040b\134c"), Path::new(r"/a b\c"));
        assert_eq!(unescape(br"/plain\"), Path::new(r"/plain\"));
    }

    #[test]
    fn too_little_space_is_an_error() {
        assert!(Scratch::under(Path::new("/dev/shm"), u64::MAX).is_err());
    }
}
