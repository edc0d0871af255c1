//! Advisory locks that keep two processes from writing one image.
//!
//! - The locks belong to the open file description and end with it, even if the process is killed.
//! - [`LockedFile`] releases them itself, since others may hold the file open for longer: a child
//!   of another thread between its fork and its exec, and an io_uring that a thread has not entered
//!   since its last request of this file.
//! - A writer excludes everyone; a reader excludes writers.
//! - One is a `flock` lock (kernel fs/locks.c). It conflicts between two opens in one process too,
//!   and udev and others honour it on block devices.
//! - The others are those of QEMU, so that no virtual machine uses the image at the same time: see
//!   [`Permissions`]. Other hosts than Linux do without them.
//! - A conflicting lock is an error after a short wait. The wait is longer while a process that
//!   holds one has announced its end ([`crate::ending`]).
//! - A process that has a file open for reading can open it for writing in its place
//!   ([`LockedFile::take_over`]): the locks of its readers pass on.

use crate::device::Access;
use crate::ending::is_ending;
use crate::error::OpenErrorKind;
use crate::host::calls;
use crate::lock_owner::is_held_by_caller;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::File;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long `acquire` retries: longer than a fork takes, too short for a user to notice.
const TIMEOUT: Duration = Duration::from_millis(100);
/// How long `acquire` retries while a server commits the last changes of a mount that has ended.
const ENDING_TIMEOUT: Duration = Duration::from_secs(60);

/// What QEMU calls the permissions of a user of an image file, one bit for each. They are held as
/// shared locks of single bytes: those that a user has from byte 100 on, and those that it denies
/// to others from byte 200 on (QEMU's block/file-posix.c, `RAW_LOCK_PERM_BASE`).
#[derive(Clone, Copy, Debug)]
struct Permissions {
    held: u8,
    denied: u8,
}

impl Permissions {
    const CONSISTENT_READ: u8 = 1 << 0;
    const WRITE: u8 = 1 << 1;
    const WRITE_UNCHANGED: u8 = 1 << 2;
    const RESIZE: u8 = 1 << 3;
    const HELD: u64 = 100;
    const DENIED: u64 = 200;

    fn of(access: Access) -> Self {
        match access {
            Access::ReadOnly => Self { held: Self::CONSISTENT_READ, denied: Self::WRITE | Self::RESIZE },
            Access::ReadWrite => Self {
                held: Self::CONSISTENT_READ | Self::WRITE | Self::RESIZE,
                denied: Self::CONSISTENT_READ | Self::WRITE | Self::WRITE_UNCHANGED | Self::RESIZE,
            },
        }
    }

    /// Acquires the locks of the permissions. Returns `WOULDBLOCK` if they conflict with those of
    /// another open file description; the locks stay until the file is closed.
    fn acquire(self, file: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let bytes =
            |bits: u8, first: u64| (0..8).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| first + bit);
        for byte in bytes(self.held, Self::HELD).chain(bytes(self.denied, Self::DENIED)) {
            calls::share_byte(file, byte)?;
        }
        // Of two users that come at once, each sees the locks of the other.
        for byte in bytes(self.held, Self::DENIED).chain(bytes(self.denied, Self::HELD)) {
            if calls::is_byte_locked(file, byte)? {
                return Err(Errno::WOULDBLOCK);
            }
        }
        Ok(())
    }
}

/// The files that this process has locked for reading.
static READERS: Mutex<Vec<Weak<File>>> = Mutex::new(Vec::new());

/// An open file and its locks, which are released when it is dropped.
#[derive(Debug)]
pub(crate) struct LockedFile {
    file: Arc<File>,
    /// The process that acquired the locks. A forked child shares them, and leaves them alone.
    process: Option<u32>,
}

impl LockedFile {
    /// Acquires the locks that `access` needs on an open file.
    ///
    /// A `flock` lock of a process above this one, or of an inherited descriptor, keeps others away
    /// already, and is no conflict.
    pub(crate) fn acquire(file: File, access: Access) -> Result<Self, OpenErrorKind> {
        let operation = match access {
            Access::ReadOnly => FlockOperation::NonBlockingLockShared,
            Access::ReadWrite => FlockOperation::NonBlockingLockExclusive,
        };
        match patiently(&file, || rustix::fs::flock(file.as_fd(), operation)) {
            Err(OpenErrorKind::InUseByProcess) if is_held_by_caller(&file) => {}
            locked => locked?,
        }
        // From here on, an error releases what was acquired.
        let locked = Self { file: Arc::new(file), process: Some(std::process::id()) };
        patiently(&locked, || Permissions::of(access).acquire(locked.as_fd()))?;
        if access == Access::ReadOnly {
            let mut readers = READERS.lock().unwrap_or_else(PoisonError::into_inner);
            readers.retain(|reader| reader.strong_count() > 0);
            readers.push(Arc::downgrade(&locked.file));
        }
        Ok(locked)
    }

    /// Acquires the locks of a writer on a file that this process has locked for reading. The
    /// readers' locks end; if that fails, they come back.
    ///
    /// # Errors
    /// [`OpenErrorKind::Replaced`] if this process does not have this very file open; as
    /// [`LockedFile::acquire`].
    pub(crate) fn take_over(file: File) -> Result<Self, OpenErrorKind> {
        let place = |file: &File| file.metadata().map(|found| (found.dev(), found.ino(), found.rdev()));
        let wanted = place(&file).map_err(OpenErrorKind::Io)?;
        let readers = {
            let readers = READERS.lock().unwrap_or_else(PoisonError::into_inner);
            let same = |reader: &Arc<File>| place(reader).is_ok_and(|found| found == wanted);
            readers.iter().filter_map(Weak::upgrade).filter(same).collect::<Vec<_>>()
        };
        if readers.is_empty() {
            return Err(OpenErrorKind::Replaced);
        }
        readers.iter().for_each(|reader| unlock(reader));
        let taken = Self::acquire(file, Access::ReadWrite);
        if taken.is_err() {
            restore_readers_locks();
        }
        taken
    }

    /// Takes a file without locks.
    pub(crate) fn unlocked(file: File) -> Self {
        Self { file: Arc::new(file), process: None }
    }
}

/// Locks again the files that this process has open for reading, after an attempt to open them for
/// writing ([`OpenOptions::take_over`](crate::OpenOptions::take_over)) that failed in the end. A
/// program that came meanwhile keeps its lock.
pub fn restore_readers_locks() {
    let readers: Vec<_> = {
        let readers = READERS.lock().unwrap_or_else(PoisonError::into_inner);
        readers.iter().filter_map(Weak::upgrade).collect()
    };
    for reader in readers {
        let _ = patiently(&reader, || {
            rustix::fs::flock(reader.as_fd(), FlockOperation::NonBlockingLockShared)?;
            Permissions::of(Access::ReadOnly).acquire(reader.as_fd())
        });
    }
}

/// Releases all locks of a file. A host without locks has nothing to release.
fn unlock(file: &File) {
    let _ = calls::unlock_bytes(file.as_fd());
    let _ = rustix::fs::flock(file.as_fd(), FlockOperation::Unlock);
}

impl Deref for LockedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        if self.process == Some(std::process::id()) {
            unlock(&self.file);
        }
    }
}

/// Repeats an attempt to lock `file` for a short time while it conflicts with others.
fn patiently(file: &File, mut attempt: impl FnMut() -> rustix::io::Result<()>) -> Result<(), OpenErrorKind> {
    let begun = Instant::now();
    let may_wait = || {
        let waited = begun.elapsed();
        waited < TIMEOUT || waited < ENDING_TIMEOUT && is_ending(file)
    };
    loop {
        return match attempt() {
            Ok(()) => Ok(()),
            Err(Errno::INTR) => continue,
            Err(Errno::WOULDBLOCK) if may_wait() => {
                std::thread::sleep(TIMEOUT / 20);
                continue;
            }
            Err(Errno::WOULDBLOCK) => Err(OpenErrorKind::InUseByProcess),
            // Some network file systems lack locks. Nobody can hold a lock there, so there is no
            // conflict.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK) => Ok(()),
            // Over NFS an exclusive flock becomes a POSIX lock, which needs write access. The file
            // has write access, so EBADF is unexpected and is passed on like the rest.
            Err(errno) => Err(OpenErrorKind::Io(errno.into())),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    fn in_use(result: Result<LockedFile, OpenErrorKind>) -> bool {
        matches!(result, Err(OpenErrorKind::InUseByProcess))
    }

    #[test]
    fn readers_share_and_writer_excludes() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let open = || File::options().read(true).write(true).open(image.path()).unwrap();
        let acquire = |access| LockedFile::acquire(open(), access);
        let first = acquire(Access::ReadOnly).unwrap();
        let second = acquire(Access::ReadOnly).unwrap();
        assert!(in_use(acquire(Access::ReadWrite)));
        drop(first);
        assert!(in_use(acquire(Access::ReadWrite)));
        drop(second);
        let writer = acquire(Access::ReadWrite).unwrap();
        assert!(in_use(acquire(Access::ReadOnly)));
        drop(writer);
        acquire(Access::ReadOnly).unwrap();
    }

    #[test]
    fn a_writer_takes_over_from_the_readers_of_its_own_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        assert!(matches!(LockedFile::take_over(open()), Err(OpenErrorKind::Replaced)));
        let reader = LockedFile::acquire(File::open(&path).unwrap(), Access::ReadOnly).unwrap();
        // Another program reads it, too.
        let other = open();
        rustix::fs::flock(&other, FlockOperation::NonBlockingLockShared).unwrap();
        assert!(in_use(LockedFile::take_over(open())));
        drop(other);
        assert!(in_use(LockedFile::acquire(open(), Access::ReadWrite)), "the reader has its lock again");
        let writer = LockedFile::take_over(open()).unwrap();
        drop(reader);
        assert!(in_use(LockedFile::acquire(open(), Access::ReadOnly)), "the writer keeps its own");
        drop(writer);
        // Another file of that name is not the one that is open.
        let reader = LockedFile::acquire(open(), Access::ReadOnly).unwrap();
        std::fs::rename(&path, folder.path().join("moved")).unwrap();
        File::create(&path).unwrap();
        assert!(matches!(LockedFile::take_over(open()), Err(OpenErrorKind::Replaced)));
        drop(reader);
    }

    #[test]
    fn lock_excludes_other_processes_until_its_holder_exits() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let mut child = Command::new("flock")
            .args(["--exclusive", "--no-fork"])
            .arg(image.path())
            .args(["sh", "-c", "echo locked; read line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("failed to run flock (util-linux)");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let while_locked = LockedFile::acquire(image.reopen().unwrap(), Access::ReadOnly);
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        child.wait().unwrap();
        assert_eq!(line, "locked\n");
        assert!(in_use(while_locked));
        LockedFile::acquire(image.reopen().unwrap(), Access::ReadWrite).unwrap();
    }

    /// A child that another thread starts has a copy of the file until its exec: here one that was
    /// started without close-on-exec, for as long as it lives.
    #[test]
    fn a_closed_file_is_free_though_a_child_has_a_copy() {
        let image = tempfile::NamedTempFile::new().unwrap();
        for access in [Access::ReadWrite, Access::ReadOnly] {
            let locked = LockedFile::acquire(image.reopen().unwrap(), access).unwrap();
            let mut child = Command::new("cat")
                .stdin(Stdio::piped())
                .stdout(Stdio::from(locked.try_clone().unwrap()))
                .spawn()
                .unwrap();
            drop(locked);
            let free = LockedFile::acquire(image.reopen().unwrap(), Access::ReadWrite).map(drop);
            drop(child.stdin.take());
            child.wait().unwrap();
            free.expect("nobody has the image open through Papilio");
        }
    }

    /// Runs qemu-io with `arguments` on the image until its input ends, and waits until it has
    /// opened the image or failed. Returns whether it has it open.
    fn qemu(image: &std::path::Path, arguments: &[&str]) -> Option<(std::process::Child, bool)> {
        let spawned = Command::new("qemu-io")
            .args(["-f", "raw"])
            .args(arguments)
            .arg(image)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) => {
                let required = std::env::var_os("PAPILIO_REQUIRE_ALL").is_some_and(|value| value == "1");
                assert!(!required, "PAPILIO_REQUIRE_ALL=1, but qemu-io (qemu-utils) is missing: {error}");
                eprintln!("SKIPPED QEMU's locks: {error}");
                return None;
            }
        };
        // It fails to write if qemu-io has ended already.
        let _ = child.stdin.as_mut().unwrap().write_all(b"read 0 512\n");
        let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines().map_while(Result::ok);
        let is_open = lines.any(|line| line.contains("read 512/512"));
        Some((child, is_open))
    }

    fn end(mut child: std::process::Child) {
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn qemu_and_papilio_exclude_each_other_as_writers() {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(1 << 20).unwrap();
        let open = |access| {
            let file = File::options().read(true).write(access == Access::ReadWrite).open(image.path());
            LockedFile::acquire(file.unwrap(), access)
        };

        let Some((writer, true)) = qemu(image.path(), &[]) else { return };
        assert!(in_use(open(Access::ReadOnly)));
        assert!(in_use(open(Access::ReadWrite)));
        end(writer);
        let (reader, is_open) = qemu(image.path(), &["-r"]).unwrap();
        assert!(is_open);
        open(Access::ReadOnly).unwrap();
        assert!(in_use(open(Access::ReadWrite)));
        end(reader);

        for (access, arguments, may) in [
            (Access::ReadOnly, &["-r"][..], true),
            (Access::ReadOnly, &[], false),
            (Access::ReadWrite, &["-r"], false),
            (Access::ReadWrite, &[], false),
        ] {
            let ours = open(access).unwrap();
            let (child, is_open) = qemu(image.path(), arguments).unwrap();
            assert_eq!(is_open, may, "{access:?} {arguments:?}");
            end(child);
            drop(ours);
        }
    }
}
