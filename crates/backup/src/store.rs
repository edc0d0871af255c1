//! The place of a repository.
//!
//! Owns [`open_store`], which opens a folder of the host or a bucket. The stores of a program are
//! those that it installed for its devices.

use crate::error::{BackupError, Result};
use crate::folder::FolderStore;
use papilio::device::{ObjectStore, RemoteOptions, is_url, object_stores};
use std::path::Path;
use std::sync::Arc;

/// Opens the place of a repository: a folder, or `s3://BUCKET/PREFIX`, `gs://...`, `az://...`.
///
/// # Errors
/// [`BackupError::Place`]: the program has no object stores, or the URL names no place in one.
pub fn open_store(place: &Path, options: &RemoteOptions) -> Result<Arc<dyn ObjectStore>> {
    if !is_url(place) {
        return Ok(Arc::new(FolderStore::new(place)));
    }
    let failed = |reason: String| BackupError::Place { place: place.display().to_string(), reason };
    let url = place.to_str().ok_or_else(|| failed("a URL is UTF-8".to_owned()))?;
    let opened = object_stores().and_then(|stores| stores.objects(url, options));
    opened.map_err(|error| failed(error.to_string()))
}
