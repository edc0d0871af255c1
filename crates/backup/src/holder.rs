//! The process that has the lock of a repository.
//!
//! Owns [`LockHolder`], which the object `lock` holds as JSON.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
    /// The command that it runs.
    pub job: String,
    /// A random number, by which the holder knows its lock.
    pub(crate) token: String,
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
