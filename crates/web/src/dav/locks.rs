//! `LockTable`: the locks of WebDAV, in memory.
//!
//! A lock is of a place: names from the exported directory on, without symbolic links. It covers
//! that place, and with an infinite depth everything below it.
//!
//! **Invariants**
//! - An exclusive lock covers no place that another lock covers.
//! - At most [`LOCKS_MOST`] locks exist, each for at most [`LONGEST`].
//!
//! **Locks**: one, a leaf.

use crate::random;
use papilio_locks::Mutex;
use std::io;
use std::time::{Duration, Instant};

const LOCKS_MOST: usize = 4096;
/// The longest time of a lock without a refresh.
pub(crate) const LONGEST: Duration = Duration::from_secs(3600);

pub(crate) type Names = Vec<Vec<u8>>;

/// A lock.
#[derive(Clone, Debug)]
pub(crate) struct ActiveLock {
    pub(crate) token: String,
    pub(crate) names: Names,
    pub(crate) is_directory: bool,
    pub(crate) is_deep: bool,
    pub(crate) is_shared: bool,
    /// The owner as the client tells it, as XML.
    pub(crate) owner: String,
    pub(crate) timeout: Duration,
    ends: Instant,
}

/// The lock that a client wants.
#[derive(Clone, Debug)]
pub(crate) struct WantedLock {
    pub(crate) names: Names,
    pub(crate) is_directory: bool,
    pub(crate) is_deep: bool,
    pub(crate) is_shared: bool,
    pub(crate) owner: String,
    pub(crate) timeout: Duration,
}

/// Why there is no lock.
#[derive(Debug)]
pub(crate) enum NoLock {
    /// A lock at this place is in the way.
    Conflict(Names),
    TooMany,
    /// The system has no random bytes.
    Random(io::Error),
}

#[derive(Debug, Default)]
pub(crate) struct LockTable(Mutex<Vec<ActiveLock>>);

impl ActiveLock {
    fn covers(&self, names: &[Vec<u8>]) -> bool {
        self.names == names || self.is_deep && names.starts_with(&self.names)
    }

    /// Returns the time that is left.
    pub(crate) fn left(&self) -> Duration {
        self.ends.saturating_duration_since(Instant::now())
    }
}

impl LockTable {
    fn with<R>(&self, work: impl FnOnce(&mut Vec<ActiveLock>) -> R) -> R {
        let mut locks = self.0.lock();
        let now = Instant::now();
        locks.retain(|lock| lock.ends > now);
        work(&mut locks)
    }

    /// Returns the locks that cover a place.
    pub(crate) fn covering(&self, names: &[Vec<u8>]) -> Vec<ActiveLock> {
        self.with(|locks| locks.iter().filter(|lock| lock.covers(names)).cloned().collect())
    }

    /// Returns the locks of places below this one.
    pub(crate) fn below(&self, names: &[Vec<u8>]) -> Vec<ActiveLock> {
        let is_below = |lock: &&ActiveLock| lock.names.len() > names.len() && lock.names.starts_with(names);
        self.with(|locks| locks.iter().filter(is_below).cloned().collect())
    }

    /// Locks a place.
    pub(crate) fn add(&self, wanted: WantedLock) -> Result<ActiveLock, NoLock> {
        let token = new_token().map_err(NoLock::Random)?;
        self.with(|locks| {
            let conflicts = |lock: &&ActiveLock| {
                let meets =
                    lock.covers(&wanted.names) || wanted.is_deep && lock.names.starts_with(&wanted.names);
                meets && !(lock.is_shared && wanted.is_shared)
            };
            if let Some(lock) = locks.iter().find(conflicts) {
                return Err(NoLock::Conflict(lock.names.clone()));
            }
            if locks.len() >= LOCKS_MOST {
                return Err(NoLock::TooMany);
            }
            let timeout = wanted.timeout.min(LONGEST);
            let lock = ActiveLock {
                token,
                names: wanted.names,
                is_directory: wanted.is_directory,
                is_deep: wanted.is_deep,
                is_shared: wanted.is_shared,
                owner: wanted.owner,
                timeout,
                ends: Instant::now() + timeout,
            };
            locks.push(lock.clone());
            Ok(lock)
        })
    }

    /// Prolongs a lock that covers a place.
    pub(crate) fn refresh(&self, token: &str, names: &[Vec<u8>], timeout: Duration) -> Option<ActiveLock> {
        self.with(|locks| {
            let lock = locks.iter_mut().find(|lock| lock.token == token && lock.covers(names))?;
            lock.timeout = timeout.min(LONGEST);
            lock.ends = Instant::now() + lock.timeout;
            Some(lock.clone())
        })
    }

    /// Removes a lock that covers a place. Returns whether there was one.
    pub(crate) fn remove(&self, token: &str, names: &[Vec<u8>]) -> bool {
        self.with(|locks| {
            let before = locks.len();
            locks.retain(|lock| !(lock.token == token && lock.covers(names)));
            locks.len() < before
        })
    }

    /// Removes the locks of a place and of all below it, which is gone.
    pub(crate) fn forget(&self, names: &[Vec<u8>]) {
        self.with(|locks| locks.retain(|lock| !lock.names.starts_with(names)));
    }
}

/// Makes the name of a lock, which is unique for all time (RFC 4122, version 4).
fn new_token() -> io::Result<String> {
    let mut bytes = random::bytes::<16>()?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(format!("urn:uuid:{}", papilio::Uuid::from_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(path: &str) -> Names {
        path.split('/').filter(|name| !name.is_empty()).map(|name| name.as_bytes().to_vec()).collect()
    }

    fn wanted(path: &str, is_deep: bool, is_shared: bool) -> WantedLock {
        let timeout = Duration::from_secs(60);
        WantedLock {
            names: names(path),
            is_directory: false,
            is_deep,
            is_shared,
            owner: String::new(),
            timeout,
        }
    }

    #[test]
    fn exclusive_locks_meet_no_other() {
        let table = LockTable::default();
        let deep = table.add(wanted("/a", true, false)).unwrap();
        for path in ["/a", "/a/b", "/a/b/c", "/"] {
            let met = table.add(wanted(path, true, true));
            assert!(matches!(met, Err(NoLock::Conflict(_))), "{path}");
        }
        assert!(table.add(wanted("/ab", true, false)).is_ok());
        assert!(table.add(wanted("/", false, false)).is_ok(), "a lock of the root alone");
        assert_eq!(table.covering(&names("/a/b")).len(), 1);
        assert_eq!(table.below(&[]).len(), 2);
        assert!(!table.remove(&deep.token, &names("/b")));
        assert!(table.refresh(&deep.token, &names("/a/x"), Duration::MAX).unwrap().timeout == LONGEST);
        assert!(table.remove(&deep.token, &names("/a/x")) && table.covering(&names("/a")).is_empty());
        table.forget(&[]);
        assert!(table.below(&[]).is_empty());
    }

    #[test]
    fn shared_locks_meet_shared_ones_and_all_end() {
        let table = LockTable::default();
        assert!(table.add(wanted("/a", false, true)).is_ok() && table.add(wanted("/a", false, true)).is_ok());
        assert!(matches!(table.add(wanted("/a", false, false)), Err(NoLock::Conflict(_))));
        let brief = WantedLock { timeout: Duration::ZERO, ..wanted("/b", false, false) };
        table.add(brief).unwrap();
        assert!(table.covering(&names("/b")).is_empty());
        for number in 0..LOCKS_MOST {
            let _ = table.add(wanted(&format!("/c{number}"), false, false));
        }
        assert!(matches!(table.add(wanted("/d", false, false)), Err(NoLock::TooMany)));
    }
}
