//! Whether there is a database at a prefix.

use futures_util::StreamExt;
use object_store::ObjectStore;
use object_store::path::Path;
use std::sync::Arc;

/// The folder of SlateDB's manifests, which every database has.
pub(super) const MANIFESTS: &str = "manifest";

/// Returns whether there is a database at a prefix.
pub(super) async fn is_device(store: &Arc<dyn ObjectStore>, prefix: &Path) -> object_store::Result<bool> {
    match store.list(Some(&prefix.clone().join(MANIFESTS))).next().await {
        None | Some(Err(object_store::Error::NotFound { .. })) => Ok(false),
        Some(Ok(_)) => Ok(true),
        Some(Err(error)) => Err(error),
    }
}
