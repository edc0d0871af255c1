//! The store and the keys of a repository, which all parts of a run share.
//!
//! Owns [`Shared`]. Errors of the store name the object.

use crate::error::{BackupError, Result};
use crate::seal::{OVERHEAD, Sealer};
use papilio::device::ObjectStore;
use std::io;
use std::sync::Arc;

/// The store and the keys.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) sealer: Sealer,
}

impl Shared {
    pub(crate) fn failed(&self, object: &str, source: io::Error) -> BackupError {
        match source.kind() {
            io::ErrorKind::NotFound => BackupError::Missing(object.to_owned()),
            io::ErrorKind::FileTooLarge => BackupError::damaged(object, "the object is too long"),
            _ => BackupError::Store { object: object.to_owned(), source },
        }
    }

    /// Reads an object whose content has at most `most` bytes.
    pub(crate) fn get(&self, name: &str, most: u64) -> Result<Vec<u8>> {
        // Content that does not compress grows a little.
        let most = most + most / 64 + OVERHEAD;
        self.store.get(name, most).map_err(|error| self.failed(name, error))
    }

    /// Reads and opens an object that is named after its content.
    pub(crate) fn open_named(&self, name: &str, most: u64) -> Result<Vec<u8>> {
        self.sealer.open_named(name, &self.get(name, most)?, most)
    }

    pub(crate) fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.store.put(name, bytes).map_err(|error| self.failed(name, error))
    }

    pub(crate) fn delete(&self, name: &str) -> Result<()> {
        self.store.delete(name).map_err(|error| self.failed(name, error))
    }

    pub(crate) fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>> {
        self.store.list(prefix).map_err(|error| self.failed(&self.store.place(), error))
    }
}
