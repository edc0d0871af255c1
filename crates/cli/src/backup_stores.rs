//! The object stores that a program may bring for repositories of backups: `papilio-store` has
//! them, `papilio` itself does not.
//!
//! Owns the interface between the command and the stores. Their crate is none of those that the
//! command depends on.

use papilio::device::RemoteOptions;
use papilio_backup::ObjectStore;
use std::sync::{Arc, OnceLock};

static INSTALLED: OnceLock<&'static dyn BackupStores> = OnceLock::new();

/// Object stores for repositories.
pub trait BackupStores: Sync {
    /// Opens the place that a URL names.
    ///
    /// # Errors
    /// The reason why there is no such place.
    fn open(&self, url: &str, options: &RemoteOptions) -> Result<Arc<dyn ObjectStore>, String>;
}

/// Gives the command object stores. Returns whether it had none.
pub fn install_backup_stores(stores: &'static dyn BackupStores) -> bool {
    INSTALLED.set(stores).is_ok()
}

/// Returns the stores, if this program has some.
pub(crate) fn backup_stores() -> Option<&'static dyn BackupStores> {
    INSTALLED.get().copied()
}
