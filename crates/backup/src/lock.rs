//! The lock of a repository.
//!
//! Owns [`RepositoryLock`]: one writer at a time has the object `lock`, which names its holder. A
//! writer that was killed leaves it. A writer whose lock was broken notices before it makes a
//! backup visible or deletes anything.

use crate::error::{BackupError, Result};
use crate::holder::{LockHolder, host_name};
use crate::shared::Shared;
use papilio_keys::{hex, random};
use std::io;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The name of the object.
pub const LOCK: &str = "lock";
/// The most bytes of its content.
const MOST_LOCK: u64 = 64 << 10;

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
