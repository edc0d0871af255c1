//! The kernel's switch for FUSE over io_uring.
//!
//! Owns [`RingSwitch`]; while one exists, the switch stays on (or off). The process that changed
//! the switch restores it after the last user in any process is gone. Mounts that do not request
//! rings are unaffected.
//!
//! A killed process leaves a folder like those of [`crate::scratch`], with a record of the value to
//! restore ([`crate::switch_record`]). The last user restores it, and so does any cleanup of killed
//! runs.
//!
//! **Locks**
//! - `IN_USE`: within a process.
//! - `flock` on the switch: shared by users that leave it as it is, exclusive for a process that
//!   changes it.
//!
//! Kernel counterpart: `enable_uring` (`fs/fuse/dev_uring.c`).

use crate::scratch::{self, Scratch};
use crate::switch_record;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The module parameter that is the switch.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
const ON: u8 = b'Y';
const OFF: u8 = b'N';

static IN_USE: Mutex<Weak<Held>> = Mutex::new(Weak::new());

/// Keeps FUSE over io_uring on, or off.
#[derive(Clone, Debug)]
pub struct RingSwitch(#[expect(dead_code, reason = "held until the last user is gone")] Arc<Held>);

impl RingSwitch {
    /// Returns why the switch cannot be set, or `None` if it can.
    pub fn missing() -> Option<String> {
        let writable = File::options().read(true).write(true).open(SWITCH);
        writable.err().map(|error| format!("needs FUSE over io_uring: {SWITCH}: {error}"))
    }

    /// Switches it on.
    ///
    /// # Errors
    /// The kernel lacks the switch, or the process is not root.
    pub fn on() -> io::Result<Self> {
        scratch::clean_leftovers_once();
        let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = in_use.upgrade() {
            return Ok(Self(held));
        }
        let held = Arc::new(Held::share(Path::new(SWITCH))?);
        *in_use = Arc::downgrade(&held);
        Ok(Self(held))
    }

    /// Switches on the file `switch`, which stands in for the kernel's switch in tests.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn on_at(switch: &Path) -> io::Result<Self> {
        Ok(Self(Arc::new(Held::share(switch)?)))
    }

    /// Waits until no process needs it on, then switches it off. Later users that need it on wait
    /// for this one. A thread that already holds it on deadlocks.
    ///
    /// # Errors
    /// The kernel lacks the switch, or the process is not root.
    pub fn off() -> io::Result<Self> {
        scratch::clean_leftovers_once();
        Ok(Self(Arc::new(Held::exclusive(Path::new(SWITCH))?)))
    }
}

/// A process's hold on the switch.
#[derive(Debug)]
struct Held {
    file: File,
    /// The change to undo, if this process made one.
    changed: Option<Change>,
}

/// A change of the switch. It is dropped after the old value was restored, which removes the
/// record.
#[derive(Debug)]
struct Change {
    before: u8,
    record: Scratch,
}

impl Held {
    /// Switches on, shared with other users that want it on.
    fn share(switch: &Path) -> io::Result<Self> {
        let mut held = Self::open(switch)?;
        loop {
            // Converting a lock lets others in between, so check the value again under the shared
            // lock.
            flock(&held.file, FlockOperation::LockShared)?;
            if value(switch)? == ON {
                return Ok(held);
            }
            flock(&held.file, FlockOperation::LockExclusive)?;
            held.set(switch, ON)?;
        }
    }

    /// Switches off, and keeps every other process from changing it.
    fn exclusive(switch: &Path) -> io::Result<Self> {
        let mut held = Self::open(switch)?;
        flock(&held.file, FlockOperation::LockExclusive)?;
        held.set(switch, OFF)?;
        Ok(held)
    }

    fn open(switch: &Path) -> io::Result<Self> {
        Ok(Self { file: File::options().read(true).write(true).open(switch)?, changed: None })
    }

    /// Sets the value. The caller holds the exclusive lock.
    fn set(&mut self, switch: &Path, wanted: u8) -> io::Result<()> {
        let before = value(switch)?;
        if before == wanted {
            return Ok(());
        }
        if self.changed.is_none() {
            // Written before there is anything to restore.
            let record = Scratch::under(&std::env::temp_dir(), 0).map_err(io::Error::other)?;
            switch_record::write(record.path(), before, switch)?;
            self.changed = Some(Change { before, record });
        }
        rustix::io::pwrite(&self.file, &[wanted], 0)?;
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        match self.changed.take() {
            Some(Change { before, record }) => {
                if flock(&self.file, FlockOperation::LockExclusive).is_ok() {
                    let _ = rustix::io::pwrite(&self.file, &[before], 0);
                }
                drop(record);
            }
            // The process that changed the switch may have been killed while this process used it.
            None if flock(&self.file, FlockOperation::Unlock).is_ok() => drop(scratch::clean_leftovers()),
            None => {}
        }
    }
}

/// Reads the value of a switch.
fn value(switch: &Path) -> io::Result<u8> {
    std::fs::read(switch)?.first().copied().ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// Creates a file that stands in for the switch, and the folder that contains it.
    fn switch(value: &str) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let switch = directory.path().join("pretended");
        std::fs::write(&switch, value).unwrap();
        (directory, switch)
    }

    #[test]
    fn switch_is_restored_after_its_last_user() {
        let (_directory, switch) = switch("N\n");
        let first = Held::share(&switch).unwrap();
        assert!(first.changed.is_some());
        assert_eq!(value(&switch).unwrap(), ON);
        let second = Held::share(&switch).unwrap();
        assert!(second.changed.is_none());
        // The drop waits for the second user.
        let waits = std::thread::spawn(move || drop(first));
        assert_eq!(value(&switch).unwrap(), ON);
        drop(second);
        waits.join().unwrap();
        assert_eq!(value(&switch).unwrap(), OFF);
    }

    #[test]
    fn switch_that_was_on_stays_on() {
        let (_directory, switch) = switch("Y\n");
        drop(Held::share(&switch).unwrap());
        assert_eq!(value(&switch).unwrap(), ON);
        let off = Held::exclusive(&switch).unwrap();
        assert_eq!(value(&switch).unwrap(), OFF);
        drop(off);
        assert_eq!(value(&switch).unwrap(), ON);
    }
}
