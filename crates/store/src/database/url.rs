//! `StoreUrl`: the place of a device in an object store.
//!
//! The syntax is `slatedb+SCHEME://BUCKET/PREFIX`, with the schemes `s3`, `gs` and `az`, or
//! `slatedb+file:///DIRECTORY`. `?checkpoint=NAME` or `?checkpoint=UUID` names a checkpoint.

use crate::remote::object::{Location, object_store};
use ::object_store::ObjectStore;
use ::object_store::local::LocalFileSystem;
use ::object_store::path::Path;
use papilio_device::{OpenErrorKind, RemoteOptions};
use std::sync::Arc;

/// The start of all URLs of such devices.
pub(crate) const PREFIX: &str = "slatedb+";
const CHECKPOINT: &str = "checkpoint=";

/// The place of a device in an object store.
#[derive(Clone, Debug)]
pub struct StoreUrl {
    /// The URL without its query.
    pub(super) name: String,
    /// Scheme and bucket, or the local file system.
    pub(super) store_name: String,
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) path: Path,
    /// The name or UUID of a checkpoint.
    pub(super) checkpoint: Option<String>,
}

impl StoreUrl {
    /// Parses a URL and makes the client of its store, with the environment's credentials.
    ///
    /// # Errors
    /// A URL that names no place in a store; a client that cannot be made.
    pub fn parse(url: &str, options: &RemoteOptions) -> Result<Self, OpenErrorKind> {
        let refuse = |reason: &str| OpenErrorKind::Remote(reason.to_owned());
        let (name, query) = url.split_once('?').map_or((url, None), |(name, query)| (name, Some(query)));
        let checkpoint = match query.map(|query| query.strip_prefix(CHECKPOINT)) {
            None => None,
            Some(Some(checkpoint)) if !checkpoint.is_empty() => Some(checkpoint.to_owned()),
            Some(_) => return Err(refuse("the query of a slatedb+ URL is checkpoint=NAME")),
        };
        let inner = name
            .get(..PREFIX.len())
            .filter(|start| start.eq_ignore_ascii_case(PREFIX))
            .map(|_| &name[PREFIX.len()..])
            .ok_or_else(|| refuse("it is no slatedb+ URL"))?;
        let (scheme, rest) = inner.split_once("://").ok_or_else(|| refuse("it is no URL"))?;
        let not_valid = |error: ::object_store::path::Error| {
            OpenErrorKind::Remote(format!("its path is not valid: {error}"))
        };
        let (store, store_name, path) = if scheme.eq_ignore_ascii_case("file") {
            if !rest.starts_with('/') || rest.trim_matches('/').is_empty() {
                return Err(refuse("slatedb+file:///DIRECTORY is needed, an absolute path"));
            }
            let store: Arc<dyn ObjectStore> = Arc::new(LocalFileSystem::new());
            (store, "file".to_owned(), Path::from_url_path(rest).map_err(not_valid)?)
        } else {
            let location = Location::parse(inner).map_err(OpenErrorKind::Remote)?;
            if !matches!(location.scheme.as_str(), "s3" | "gs" | "az") {
                return Err(refuse("the store of a slatedb+ URL is s3, gs, az or file"));
            }
            let store = object_store(&location, options)?;
            let store_name = format!("{}://{}", location.scheme, location.authority);
            (store, store_name, Path::from_url_path(location.path).map_err(not_valid)?)
        };
        Ok(Self { name: name.to_owned(), store_name, store, path, checkpoint })
    }

    /// Returns a place in a store that the caller has made. `name` is for messages.
    pub fn in_store(name: &str, store: Arc<dyn ObjectStore>, path: &str) -> Self {
        let store_name = name.to_owned();
        Self { name: name.to_owned(), store_name, store, path: Path::from(path), checkpoint: None }
    }

    /// Returns the same place at a checkpoint, by its name or UUID.
    #[must_use]
    pub fn at_checkpoint(mut self, checkpoint: &str) -> Self {
        self.checkpoint = Some(checkpoint.to_owned());
        self
    }
}
