//! The kernel's switch for FUSE over io_uring.
//!
//! Owns [`RingSwitch`], while one of which exists the switch is on (or off). Who changed it puts it back, after the last
//! user in any process; mounts that do not ask for rings do not notice. A process that is killed leaves a folder like
//! those of [`crate::scratch`], in which is written what is to be put back: whoever cleans up after killed runs does it, and
//! so does the last user. Locks: `IN_USE` in a process, then `flock` on the switch itself, shared by who uses it as it is
//! and exclusive for who changes it. Kernel counterpart: `enable_uring` (`fs/fuse/dev_uring.c`).

use crate::scratch::{self, Scratch};
use rustix::fs::{FlockOperation, flock};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The switch.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// The file in a scratch folder that says what is to be put back: a switch's value, and behind it its path.
const RECORD: &str = "switch";
const ON: u8 = b'Y';
const OFF: u8 = b'N';

static IN_USE: Mutex<Weak<Held>> = Mutex::new(Weak::new());

/// FUSE over io_uring is on, or off.
#[derive(Clone, Debug)]
pub struct RingSwitch(#[expect(dead_code, reason = "held until the last user is gone")] Arc<Held>);

impl RingSwitch {
    /// Why it cannot be switched, or `None` where it can.
    pub fn missing() -> Option<String> {
        let writable = File::options().read(true).write(true).open(SWITCH);
        writable.err().map(|error| format!("needs FUSE over io_uring: {SWITCH}: {error}"))
    }

    /// Switches it on.
    ///
    /// # Errors
    /// The kernel does not have it, or this is not root.
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

    /// Switches on the file `switch`, which stands for the kernel's switch, for tests of this type.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn on_at(switch: &Path) -> io::Result<Self> {
        Ok(Self(Arc::new(Held::share(switch)?)))
    }

    /// Waits until nobody needs it on, and switches it off; who needs it on waits then. A thread that has it on waits for
    /// itself.
    ///
    /// # Errors
    /// The kernel does not have it, or this is not root.
    pub fn off() -> io::Result<Self> {
        scratch::clean_leftovers_once();
        Ok(Self(Arc::new(Held::alone(Path::new(SWITCH))?)))
    }
}

/// What a process holds.
#[derive(Debug)]
struct Held {
    file: File,
    /// What is put back, where it was this process that changed it.
    changed: Option<Change>,
}

/// A switch that was changed. Dropped after it was put back, which takes the record away.
#[derive(Debug)]
struct Change {
    before: u8,
    record: Scratch,
}

impl Held {
    /// Switches on, beside others who want that.
    fn share(switch: &Path) -> io::Result<Self> {
        let mut held = Self::open(switch)?;
        loop {
            // Changing the kind of a lock lets others in between, so that it is looked at again under the lock that stays.
            flock(&held.file, FlockOperation::LockShared)?;
            if value(switch)? == ON {
                return Ok(held);
            }
            flock(&held.file, FlockOperation::LockExclusive)?;
            held.set(switch, ON)?;
        }
    }

    /// Switches off, and lets nobody change that.
    fn alone(switch: &Path) -> io::Result<Self> {
        let mut held = Self::open(switch)?;
        flock(&held.file, FlockOperation::LockExclusive)?;
        held.set(switch, OFF)?;
        Ok(held)
    }

    fn open(switch: &Path) -> io::Result<Self> {
        Ok(Self { file: File::options().read(true).write(true).open(switch)?, changed: None })
    }

    /// Changes it, by who has it alone.
    fn set(&mut self, switch: &Path, wanted: u8) -> io::Result<()> {
        let before = value(switch)?;
        if before == wanted {
            return Ok(());
        }
        if self.changed.is_none() {
            // Written before there is something to put back.
            let record = Scratch::under(&std::env::temp_dir(), 0).map_err(io::Error::other)?;
            let content = [&[before][..], switch.as_os_str().as_bytes()].concat();
            std::fs::write(record.path().join(RECORD), content)?;
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
            // Who changed it may have been killed while it was in use here.
            None if flock(&self.file, FlockOperation::Unlock).is_ok() => drop(scratch::clean_leftovers()),
            None => {}
        }
    }
}

/// Puts a switch back that the owner of a folder changed, who was killed. Says whether nothing is left to do: a switch that is
/// in use stays as it is for now.
///
/// # Errors
/// The switch cannot be written.
pub(crate) fn put_back(folder: &Path) -> io::Result<bool> {
    let record = folder.join(RECORD);
    let content = match std::fs::read(&record) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        content => content?,
    };
    // Others may make folders beside ours, and shall not say what is written where.
    let ours = [folder, &record].into_iter().try_fold(true, |ours, path| {
        let found = std::fs::symlink_metadata(path)?;
        io::Result::Ok(
            ours && found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0,
        )
    })?;
    // A record that was cut short was written before anything was changed.
    let Some((&before, path)) = content.split_first().filter(|(_, path)| ours && !path.is_empty()) else {
        return Ok(true);
    };
    let switch = match File::options().read(true).write(true).open(OsStr::from_bytes(path)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        switch => switch?,
    };
    match flock(&switch, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(false),
        locked => locked?,
    }
    rustix::io::pwrite(&switch, &[before], 0)?;
    Ok(true)
}

/// What a switch shows.
fn value(switch: &Path) -> io::Result<u8> {
    std::fs::read(switch)?.first().copied().ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A file that stands for the switch, and the folder that it is in.
    fn switch(value: &str) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let switch = directory.path().join("pretended");
        std::fs::write(&switch, value).unwrap();
        (directory, switch)
    }

    #[test]
    fn who_switches_it_on_puts_it_back_after_the_last_user() {
        let (_directory, switch) = switch("N\n");
        let first = Held::share(&switch).unwrap();
        assert!(first.changed.is_some());
        assert_eq!(value(&switch).unwrap(), ON);
        let second = Held::share(&switch).unwrap();
        assert!(second.changed.is_none());
        // It waits for the second.
        let waits = std::thread::spawn(move || drop(first));
        assert_eq!(value(&switch).unwrap(), ON);
        drop(second);
        waits.join().unwrap();
        assert_eq!(value(&switch).unwrap(), OFF);
    }

    #[test]
    fn what_was_on_stays_on() {
        let (_directory, switch) = switch("Y\n");
        drop(Held::share(&switch).unwrap());
        assert_eq!(value(&switch).unwrap(), ON);
        let off = Held::alone(&switch).unwrap();
        assert_eq!(value(&switch).unwrap(), OFF);
        drop(off);
        assert_eq!(value(&switch).unwrap(), ON);
    }

    #[test]
    fn a_record_of_others_is_not_believed() {
        let (directory, switch) = switch("Y\n");
        let folder = directory.path().join("folder");
        std::fs::create_dir(&folder).unwrap();
        let record = folder.join(RECORD);
        std::fs::write(&record, [b"N", switch.as_os_str().as_bytes()].concat()).unwrap();
        let mode = |mode| {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(&record, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        mode(0o666);
        assert!(put_back(&folder).unwrap());
        assert_eq!(value(&switch).unwrap(), ON);
        mode(0o600);
        assert!(put_back(&folder).unwrap());
        assert_eq!(value(&switch).unwrap(), OFF);
    }
}
