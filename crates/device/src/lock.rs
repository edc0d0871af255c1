//! Advisory locks that keep two processes from writing one image.
//!
//! Owns nothing: the lock belongs to the open file description and goes with it, also when the
//! process is killed. A writer excludes everyone, readers exclude writers. Locks are `flock` locks
//! (kernel fs/locks.c): they hold between two opens in one process too, and udev and others honour
//! them on block devices. They never block: a lock that is held is an error now.

use crate::device::Access;
use crate::error::OpenErrorKind;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// How long a lock is waited for: longer than a fork takes, and not felt.
const PATIENCE: Duration = Duration::from_millis(100);

/// Takes the lock that `access` needs on an open file, or says that another holds it.
pub(crate) fn acquire(file: impl AsFd, access: Access) -> Result<(), OpenErrorKind> {
    let operation = match access {
        Access::ReadOnly => FlockOperation::NonBlockingLockShared,
        Access::ReadWrite => FlockOperation::NonBlockingLockExclusive,
    };
    let begun = Instant::now();
    loop {
        return match rustix::fs::flock(file.as_fd(), operation) {
            Ok(()) => Ok(()),
            Err(Errno::INTR) => continue,
            Err(Errno::WOULDBLOCK) if begun.elapsed() < PATIENCE => {
                std::thread::sleep(PATIENCE / 20);
                continue;
            }
            Err(Errno::WOULDBLOCK) => Err(OpenErrorKind::InUseByProcess),
            // Some network file systems have no flock; a lock that nobody can take excludes nobody.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK) => Ok(()),
            // Over NFS an exclusive flock becomes a POSIX lock, which needs the file open for
            // writing; it is, so EBADF is not expected and is passed on like the rest.
            Err(errno) => Err(OpenErrorKind::Io(errno.into())),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    fn in_use(result: Result<(), OpenErrorKind>) -> bool {
        matches!(result, Err(OpenErrorKind::InUseByProcess))
    }

    #[test]
    fn readers_share_and_a_writer_excludes() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let open = || File::options().read(true).write(true).open(image.path()).unwrap();
        let (first, second, writer) = (open(), open(), open());
        acquire(&first, Access::ReadOnly).unwrap();
        acquire(&second, Access::ReadOnly).unwrap();
        assert!(in_use(acquire(&writer, Access::ReadWrite)));
        drop(first);
        assert!(in_use(acquire(&writer, Access::ReadWrite)));
        drop(second);
        acquire(&writer, Access::ReadWrite).unwrap();
        assert!(in_use(acquire(open(), Access::ReadOnly)));
        drop(writer);
        acquire(open(), Access::ReadOnly).unwrap();
    }

    #[test]
    fn holds_between_processes_and_ends_with_its_process() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let mut child = Command::new("flock")
            .args(["--exclusive", "--no-fork"])
            .arg(image.path())
            .args(["sh", "-c", "echo locked; read line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("util-linux's flock runs");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let while_locked = acquire(image.reopen().unwrap(), Access::ReadOnly);
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        child.wait().unwrap();
        assert_eq!(line, "locked\n");
        assert!(in_use(while_locked));
        acquire(image.reopen().unwrap(), Access::ReadWrite).unwrap();
    }
}
