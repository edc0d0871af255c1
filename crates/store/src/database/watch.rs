//! `LogWatch`: whether a device has changed, by the names of its database's log.
//!
//! Each flush of a writer adds an object to the log, and so does each program that opens the device
//! for writing. Their names ascend. The content is not read, so no key is needed.

use super::lineage;
use super::url::StoreUrl;
use crate::remote::runtime;
use futures_util::TryStreamExt;
use object_store::path::Path;
use papilio_device::{OpenErrorKind, StoreWatch};
use std::io;

/// The folder of SlateDB's log.
const LOG: &str = "wal";

/// A watch of a device.
#[derive(Debug)]
pub struct LogWatch {
    url: StoreUrl,
    /// The last object of the log; `None` before the first look.
    last: Option<Path>,
}

impl LogWatch {
    /// Watches the device at a URL.
    ///
    /// # Errors
    /// A URL with a checkpoint.
    pub fn new(url: StoreUrl) -> Result<Self, OpenErrorKind> {
        if url.names_checkpoint() {
            return Err(OpenErrorKind::Remote("a checkpoint does not change".to_owned()));
        }
        Ok(Self { url, last: None })
    }
}

impl StoreWatch for LogWatch {
    fn has_changed(&mut self) -> io::Result<bool> {
        let folder = self.url.path().clone().join(LOG);
        let listed = match &self.last {
            None => self.url.raw().list(Some(&folder)),
            Some(last) => self.url.raw().list_with_offset(Some(&folder), last),
        };
        let latest =
            listed.try_fold(None, async |latest: Option<Path>, object| Ok(latest.max(Some(object.location))));
        let latest = match runtime()?.block_on(latest) {
            Err(object_store::Error::NotFound { .. }) => None,
            latest => latest.map_err(|error| lineage::failed(&self.url, &error))?,
        };
        let is_first = self.last.is_none();
        let has_changed = is_first || latest.is_some();
        // Nothing is before the folder itself.
        self.last = latest.or_else(|| self.last.take()).or(Some(folder));
        Ok(has_changed)
    }
}
