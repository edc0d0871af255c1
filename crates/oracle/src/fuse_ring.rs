//! The kernel's switch for FUSE over io_uring.
//!
//! Owns [`RingSwitch`], while one of which exists the switch is on. Who found it off puts it back, after the last user in
//! any process; mounts that do not ask for rings do not notice. Locks: `flock` on the switch itself, shared by who
//! uses it and exclusive for who changes it; in a process, `IN_USE` before that. Kernel counterpart: `enable_uring`
//! (`fs/fuse/dev_uring.c`).

use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The switch.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

static IN_USE: Mutex<Weak<Held>> = Mutex::new(Weak::new());

/// FUSE over io_uring is on.
#[derive(Clone, Debug)]
pub struct RingSwitch(#[expect(dead_code, reason = "held until the last user is gone")] Arc<Held>);

/// What a process holds.
#[derive(Debug)]
struct Held {
    file: File,
    /// Whether it was this process that switched it on.
    switched: bool,
}

impl RingSwitch {
    /// Why it cannot be switched on, or `None` where it can.
    pub fn missing() -> Option<String> {
        let writable = File::options().read(true).write(true).open(SWITCH);
        writable.err().map(|error| format!("needs FUSE over io_uring: {SWITCH}: {error}"))
    }

    /// Switches it on.
    ///
    /// # Errors
    /// The kernel does not have it, or this is not root.
    pub fn on() -> io::Result<Self> {
        let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = in_use.upgrade() {
            return Ok(Self(held));
        }
        let held = Arc::new(Held::take(Path::new(SWITCH))?);
        *in_use = Arc::downgrade(&held);
        Ok(Self(held))
    }
}

impl Held {
    fn take(switch: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(switch)?;
        let mut held = Self { file, switched: false };
        loop {
            // Changing the kind of a lock lets others in between, so that it is looked at again under the lock that stays.
            flock(&held.file, FlockOperation::LockShared)?;
            if is_on(switch)? {
                return Ok(held);
            }
            flock(&held.file, FlockOperation::LockExclusive)?;
            if !is_on(switch)? {
                std::fs::write(switch, "Y")?;
                held.switched = true;
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.switched && flock(&self.file, FlockOperation::LockExclusive).is_ok() {
            let _ = rustix::io::pwrite(&self.file, b"N", 0);
        }
    }
}

fn is_on(switch: &Path) -> io::Result<bool> {
    Ok(std::fs::read_to_string(switch)?.trim() == "Y")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_switches_it_on_puts_it_back_after_the_last_user() {
        let directory = tempfile::tempdir().unwrap();
        let switch = directory.path().join("switch");
        let shows = |value: &str| assert_eq!(std::fs::read_to_string(&switch).unwrap().trim(), value);
        std::fs::write(&switch, "N\n").unwrap();
        let first = Held::take(&switch).unwrap();
        assert!(first.switched);
        shows("Y");
        let second = Held::take(&switch).unwrap();
        assert!(!second.switched);
        // It waits for the second.
        let waits = std::thread::spawn(move || drop(first));
        shows("Y");
        drop(second);
        waits.join().unwrap();
        assert!(!is_on(&switch).unwrap());
    }

    #[test]
    fn what_was_on_stays_on() {
        let directory = tempfile::tempdir().unwrap();
        let switch = directory.path().join("switch");
        std::fs::write(&switch, "Y\n").unwrap();
        drop(Held::take(&switch).unwrap());
        assert!(is_on(&switch).unwrap());
    }
}
