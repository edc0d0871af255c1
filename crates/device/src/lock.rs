//! Advisory locks that keep two processes from writing one image.
//!
//! - The lock belongs to the open file description and ends with it, even if the process is killed.
//! - A writer excludes everyone; a reader excludes writers.
//! - The locks are `flock` locks (kernel fs/locks.c). They conflict between two opens in one
//!   process too, and udev and others honour them on block devices.
//! - A conflicting lock is an error after a short wait.

use crate::device::Access;
use crate::error::OpenErrorKind;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// How long `acquire` retries: longer than a fork takes, too short for a user to notice.
const PATIENCE: Duration = Duration::from_millis(100);

/// Acquires the lock that `access` needs on an open file.
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
            // Some network file systems lack flock. Nobody can hold a lock there, so there is no
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
    use std::fs::File;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    fn in_use(result: Result<(), OpenErrorKind>) -> bool {
        matches!(result, Err(OpenErrorKind::InUseByProcess))
    }

    #[test]
    fn readers_share_and_writer_excludes() {
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
        let while_locked = acquire(image.reopen().unwrap(), Access::ReadOnly);
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        child.wait().unwrap();
        assert_eq!(line, "locked\n");
        assert!(in_use(while_locked));
        acquire(image.reopen().unwrap(), Access::ReadWrite).unwrap();
    }
}
