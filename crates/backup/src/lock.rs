//! The lock of a repository.
//!
//! Owns [`RepositoryLock`]: one writer at a time has the object `lock`. The object names its holder.
//! A writer that was killed leaves it. A writer whose lock was broken notices before it makes a
//! backup visible or deletes anything.

use crate::error::{BackupError, Result};
use crate::hex;
use crate::repository::Shared;
use crate::store::random;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The name of the object.
pub const LOCK: &str = "lock";
/// The most bytes of its content.
const MOST_LOCK: u64 = 64 << 10;

/// The process that has a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockHolder {
    /// The host.
    pub host: String,
    /// The number of the process.
    pub pid: u32,
    /// When it took the lock, in seconds since 1970.
    pub time: u64,
    /// What it does.
    pub job: String,
    /// A random number, by which the holder knows its lock.
    token: String,
}

impl LockHolder {
    /// Returns whether the holder is a process of this host that has ended. `None` for other hosts.
    pub fn has_ended(&self) -> Option<bool> {
        if self.host != host_name() {
            return None;
        }
        let pid = i32::try_from(self.pid).ok().and_then(rustix::process::Pid::from_raw)?;
        Some(rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
    }
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, pid, job, .. } = self;
        let age = UNIX_EPOCH + Duration::from_secs(self.time);
        let age = SystemTime::now().duration_since(age).unwrap_or_default().as_secs();
        write!(f, "{job} on {host}, process {pid}, has the lock of the repository since {}", age_text(age))?;
        match self.has_ended() {
            Some(true) => f.write_str("; the process has ended, so --break-lock is safe"),
            Some(false) => f.write_str("; the process runs"),
            None => f.write_str("; --break-lock takes the lock away, if the process does not run any more"),
        }
    }
}

fn age_text(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

/// Returns the name of this host.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The lock, held until it is released or dropped.
#[derive(Debug)]
pub struct RepositoryLock {
    shared: Arc<Shared>,
    token: String,
    is_released: bool,
}

impl RepositoryLock {
    /// Takes the lock. With `breaks`, a lock that another process left is removed first.
    pub(crate) fn take(shared: &Arc<Shared>, job: &str, breaks: bool) -> Result<Self> {
        let host = |source| BackupError::Store { object: LOCK.into(), source };
        let token = hex::text(&random::<16>().map_err(host)?);
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let holder = LockHolder {
            host: host_name(),
            pid: std::process::id(),
            time,
            job: job.to_owned(),
            token: token.clone(),
        };
        let text = serde_json::to_vec(&holder).expect("it is text and numbers");
        let stored = shared.sealer.seal(LOCK, &text, 3)?;
        if breaks {
            shared.delete(LOCK)?;
        }
        match shared.store.create(LOCK, &stored) {
            Ok(()) => Ok(Self { shared: Arc::clone(shared), token, is_released: false }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match Self::holder(shared) {
                Ok(holder) => {
                    Err(BackupError::Locked { place: shared.store.place(), holder: Box::new(holder) })
                }
                // It was released meanwhile.
                Err(BackupError::Missing(_)) => Self::take(shared, job, false),
                Err(BackupError::Damaged { object, fault }) => {
                    let fault = format!("{fault}; --break-lock removes this lock");
                    Err(BackupError::Damaged { object, fault })
                }
                Err(error) => Err(error),
            },
            Err(error) => Err(shared.failed(LOCK, error)),
        }
    }

    fn holder(shared: &Shared) -> Result<LockHolder> {
        let text = shared.sealer.open(LOCK, &shared.get(LOCK, MOST_LOCK)?, MOST_LOCK)?;
        serde_json::from_slice(&text).map_err(|error| BackupError::damaged(LOCK, error.to_string()))
    }

    /// Checks that the lock is still held.
    ///
    /// # Errors
    /// [`BackupError::LockBroken`].
    pub fn check(&self) -> Result<()> {
        match Self::holder(&self.shared) {
            Ok(holder) if holder.token == self.token => Ok(()),
            Ok(_) | Err(BackupError::Missing(_)) => Err(BackupError::LockBroken(self.shared.store.place())),
            Err(error) => Err(error),
        }
    }

    /// Releases the lock.
    ///
    /// # Errors
    /// The store's error.
    pub fn release(mut self) -> Result<()> {
        self.is_released = true;
        self.give_back()
    }

    fn give_back(&self) -> Result<()> {
        match self.check() {
            Ok(()) => self.shared.delete(LOCK),
            // It belongs to somebody else.
            Err(BackupError::LockBroken(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Drop for RepositoryLock {
    fn drop(&mut self) {
        if !self.is_released {
            // The error that ended the work was reported. A lock that stays is named to the next.
            let _ = self.give_back();
        }
    }
}
