//! `OpenOptions`: opens a path as a [`FileDevice`], or reports why it cannot.
//!
//! Steps, in order:
//! 1. Open without blocking, so that a FIFO does not hang the caller.
//! 2. Check the file type.
//! 3. Acquire the lock. This comes before any read, so no read sees another writer's half-done
//!    work.
//! 4. Check whether the kernel has the image mounted.
//! 5. Measure the size.

use crate::backing::Backing;
use crate::device::Access;
use crate::error::{OpenError, OpenErrorKind};
use crate::file::FileDevice;
use crate::host::calls;
use crate::lock::LockedFile;
use crate::loop_use;
use crate::url::is_url;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::path::Path;

/// Options for opening a file or block device.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    pub(crate) access: Access,
    direct: bool,
    /// Whether a host without direct I/O is served through its page cache instead of refused.
    fallback: bool,
    lock: bool,
    /// Whether a block device is not claimed.
    shared: bool,
    /// Whether the locks of this process's readers pass on.
    take_over: bool,
    ring: bool,
    /// Whether queued reads may bypass the host's page cache.
    direct_queue: bool,
}

impl OpenOptions {
    /// Creates the default options: buffered, locked, io_uring for batches.
    pub fn new(access: Access) -> Self {
        Self {
            access,
            direct: false,
            fallback: false,
            lock: true,
            shared: false,
            take_over: false,
            ring: true,
            direct_queue: false,
        }
    }

    /// Sets whether to bypass the host's page cache (`O_DIRECT`). Requests not aligned to
    /// [`alignment`](crate::Device::alignment) are copied through an aligned buffer.
    pub fn direct(mut self, direct: bool) -> Self {
        self.direct = direct;
        self
    }

    /// Sets whether to lock the file (default: yes).
    ///
    /// A writer locks exclusively and also refuses an image that is mounted through a loop device.
    /// A reader locks shared. Without the lock, a reader may see another process's half-done
    /// writes.
    pub fn lock(mut self, lock: bool) -> Self {
        self.lock = lock;
        self
    }

    /// Sets whether a block device may be written that is mounted or claimed by others, without a
    /// lock (default: no). Only a program whose user insists on it needs this.
    pub fn shared(mut self, shared: bool) -> Self {
        self.shared = shared;
        self.lock &= !shared;
        self
    }

    /// Sets whether a writer takes the place of this process's readers (default: no): it is the
    /// very file that they have open, and their locks pass on. A reader is not affected.
    pub fn take_over(mut self, take_over: bool) -> Self {
        self.take_over = take_over;
        self
    }

    /// Sets whether batches may use io_uring where the host supports it (default: yes).
    pub fn ring(mut self, ring: bool) -> Self {
        self.ring = ring;
        self
    }

    /// Sets whether reads that a [`Driver`](crate::Driver) starts bypass the host's page cache
    /// where it lacks their bytes (default: no). All other requests use the cache. Has no effect on
    /// a host without direct I/O, io_uring or cachestat(2) (Linux 6.5), and none on an image in
    /// memory.
    pub fn direct_queue(mut self, direct_queue: bool) -> Self {
        self.direct_queue = direct_queue;
        self
    }

    /// Opens a regular file or a block device. Follows symbolic links.
    ///
    /// # Errors
    /// [`OpenError`] with the path and the cause.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<FileDevice, OpenError> {
        let path = path.as_ref();
        if is_url(path) {
            return Err(OpenError::new(path, OpenErrorKind::RemoteReadOnly));
        }
        self.open_inner(path).map_err(|kind| OpenError::new(path, kind))
    }

    /// Bypasses the host's page cache where that is possible and useful, and uses it elsewhere: on
    /// a file system without direct I/O, and on one in memory, which has no other place for the
    /// bytes. [`alignment`](crate::Device::alignment) is 1 where the page cache is used.
    pub fn direct_where_useful(mut self) -> Self {
        (self.direct, self.fallback) = (true, true);
        self
    }

    /// Uses the host's page cache only if direct I/O is not asked for.
    pub(crate) fn without_fallback(mut self) -> Self {
        self.fallback = false;
        self
    }

    fn open_inner(&self, path: &Path) -> Result<FileDevice, OpenErrorKind> {
        if self.fallback {
            let strict = Self { fallback: false, ..self.clone() };
            let buffered = Self { direct: false, ..strict.clone() };
            if calls::is_in_memory(path) {
                return buffered.open_inner(path);
            }
            return match strict.open_inner(path) {
                Err(OpenErrorKind::DirectUnsupported) => buffered.open_inner(path),
                opened => opened,
            };
        }
        let direct = match self.direct {
            true => calls::DIRECT.ok_or(OpenErrorKind::DirectUnsupported)?,
            false => OFlags::empty(),
        };
        let flags = self.flags() | direct;
        let file = match rustix::fs::open(path, flags | OFlags::NONBLOCK, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(errno) => return Err(self.classify(path, errno)),
        };
        let backing = Backing::of(&file)?;
        if self.access == Access::ReadWrite && calls::is_read_only_device(&file) {
            return Err(OpenErrorKind::ReadOnlyMedium);
        }
        // Only the open itself must not block; with O_NONBLOCK set, io_uring returns EAGAIN instead
        // of waiting.
        rustix::fs::fcntl_setfl(&file, direct).map_err(OpenErrorKind::io)?;
        calls::leave_access_time(&file, direct);
        let file = match self.lock {
            true if self.take_over && self.access == Access::ReadWrite => LockedFile::take_over(file)?,
            true => LockedFile::acquire(file, self.access)?,
            false => LockedFile::unlocked(file),
        };
        if self.lock
            && self.access == Access::ReadWrite
            && backing == Backing::RegularFile
            && let Some(device) = loop_use::claimed_through(&file)
        {
            return Err(OpenErrorKind::InUseByLoop(device.display().to_string()));
        }
        let alignment = if self.direct { calls::direct_alignment(&file, backing) } else { 1 };
        let name = path.display().to_string();
        let mut device = FileDevice::from_parts(file, name, self.access, backing, alignment, self.ring);
        if self.direct_queue && self.ring && !self.direct && !calls::is_in_memory(path) {
            device.add_direct_reads();
        }
        match device.measure() {
            Ok(0) => Err(OpenErrorKind::Empty),
            Ok(_) => Ok(device),
            Err(error) => Err(OpenErrorKind::Io(error)),
        }
    }

    fn flags(&self) -> OFlags {
        let mut flags = OFlags::CLOEXEC | OFlags::NOCTTY;
        // On a block device O_EXCL claims the device, and fails if it is mounted or claimed. On a
        // file it has no effect without O_CREAT.
        flags |= match self.access {
            Access::ReadOnly => OFlags::RDONLY,
            Access::ReadWrite if self.shared => OFlags::RDWR,
            Access::ReadWrite => OFlags::RDWR | OFlags::EXCL,
        };
        flags
    }

    fn classify(&self, path: &Path, errno: Errno) -> OpenErrorKind {
        match errno {
            Errno::NOENT | Errno::NOTDIR => OpenErrorKind::NotFound,
            Errno::ACCESS | Errno::PERM => OpenErrorKind::PermissionDenied,
            Errno::ISDIR => OpenErrorKind::IsDirectory,
            Errno::BUSY => holders(path).map_or(OpenErrorKind::InUseByKernel, OpenErrorKind::InUseByDevice),
            Errno::TXTBSY => OpenErrorKind::TextBusy,
            Errno::ROFS => OpenErrorKind::ReadOnlyMedium,
            // For a directory, FIFO or socket the file type explains the failure better than
            // O_DIRECT.
            Errno::INVAL | Errno::NXIO => {
                match rustix::fs::stat(path).map(|stat| Backing::of_mode(stat.st_mode)) {
                    Ok(Err(kind)) => kind,
                    _ if self.direct && errno == Errno::INVAL => OpenErrorKind::DirectUnsupported,
                    _ => OpenErrorKind::io(errno),
                }
            }
            _ => OpenErrorKind::io(errno),
        }
    }
}

/// Returns the devices that a block device is a part of, such as `/dev/md0`.
fn holders(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let holders = Path::new("/sys/class/block").join(path.file_name()?).join("holders");
    let names = std::fs::read_dir(holders).ok()?.flatten().map(|holder| {
        // A mapped device has a name that people know.
        let given = std::fs::read_to_string(holder.path().join("dm/name"));
        let holder = holder.file_name().to_string_lossy().into_owned();
        given.map_or(format!("/dev/{holder}"), |name| format!("/dev/mapper/{}", name.trim_end()))
    });
    let names: Vec<_> = names.collect();
    (!names.is_empty()).then(|| names.join(", "))
}

impl FileDevice {
    /// Opens with the default [`OpenOptions`].
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn open(path: impl AsRef<Path>, access: Access) -> Result<Self, OpenError> {
        OpenOptions::new(access).open(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;

    fn open(path: &Path, access: Access) -> Result<FileDevice, OpenErrorKind> {
        OpenOptions::new(access).open(path).map_err(|error| {
            assert_eq!(error.path, path);
            error.kind
        })
    }

    #[test]
    fn error_names_the_unsupported_file_type() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let fifo = at("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, Mode::from(0o600), 0)
            .unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        File::create(at("empty")).unwrap();
        for access in [Access::ReadOnly, Access::ReadWrite] {
            assert!(matches!(open(folder.path(), access), Err(OpenErrorKind::IsDirectory)));
            assert!(matches!(open(&at("none"), access), Err(OpenErrorKind::NotFound)));
            assert!(matches!(open(&at("empty/below"), access), Err(OpenErrorKind::NotFound)));
            assert!(matches!(open(&at("empty"), access), Err(OpenErrorKind::Empty)));
            assert!(matches!(open(&fifo, access), Err(OpenErrorKind::UnsupportedFileType("FIFO"))));
            assert!(matches!(open(&at("socket"), access), Err(OpenErrorKind::UnsupportedFileType("socket"))));
            assert!(matches!(
                open(Path::new("/dev/null"), access),
                Err(OpenErrorKind::UnsupportedFileType("character device"))
            ));
        }
        let direct = OpenOptions::new(Access::ReadOnly).direct(true).open(folder.path());
        assert!(matches!(direct.unwrap_err().kind, OpenErrorKind::IsDirectory));
        let message = open(folder.path(), Access::ReadOnly).unwrap_err().to_string();
        assert_eq!(message, "it is a directory; expected an image file or a block device");
    }

    #[test]
    fn direct_where_useful_falls_back_in_memory() {
        let image = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        image.as_file().set_len(8192).unwrap();
        let options = OpenOptions::new(Access::ReadWrite).direct_where_useful();
        let device = options.open(image.path()).unwrap();
        assert_eq!(device.alignment(), 1);
        device.write_at(&[7; 100], crate::PhysicalAddress(50)).unwrap();
        let missing = options.open("/dev/shm/no-such-image").unwrap_err();
        assert!(matches!(missing.kind, OpenErrorKind::NotFound));
    }

    #[test]
    fn running_program_is_not_opened_for_writing() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("sleep");
        // By another process: a child that another test forks here would inherit the open copy.
        let copied = std::process::Command::new("cp").arg("/bin/sleep").arg(&program).status().unwrap();
        assert!(copied.success());
        let mut child = std::process::Command::new(&program).arg("60").spawn().unwrap();
        let result = open(&program, Access::ReadWrite);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(matches!(result, Err(OpenErrorKind::TextBusy)), "{result:?}");
    }

    #[test]
    fn two_opens_share_or_exclude_each_other() {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(4096).unwrap();
        let in_use = |access| matches!(open(image.path(), access), Err(OpenErrorKind::InUseByProcess));
        let reader = open(image.path(), Access::ReadOnly).unwrap();
        assert!(!in_use(Access::ReadOnly));
        assert!(in_use(Access::ReadWrite));
        drop(reader);
        let writer = open(image.path(), Access::ReadWrite).unwrap();
        assert!(in_use(Access::ReadOnly));
        assert!(in_use(Access::ReadWrite));
        let unlocked = OpenOptions::new(Access::ReadOnly).lock(false).open(image.path()).unwrap();
        assert_eq!((unlocked.size(), writer.size()), (4096, 4096));
    }
}
