//! `StoreUrl`: the place of a device in an object store.
//!
//! The syntax is `slatedb+SCHEME://BUCKET/PREFIX`, with the schemes `s3`, `gs` and `az`, or
//! `slatedb+file:///DIRECTORY`. `?checkpoint=NAME` or `?checkpoint=UUID` names a checkpoint.
//!
//! It also owns the way to the content: [`StoreUrl::unlock`] finds out what is there, and decrypts
//! it if it is encrypted.

use super::counted::Counted;
use super::probe::{MANIFESTS, is_device};
use crate::remote::object::{Location, describe, object_store};
use crate::sealed::{FOLDER as KEYS, KeyRing, SealedStore, Sealing};
use ::object_store::ObjectStore;
use ::object_store::local::LocalFileSystem;
use ::object_store::path::Path;
use papilio_device::{OpenErrorKind, RemoteOptions};
use papilio_keys::{Secret, SecretKey};
use papilio_layers::KeyFault;
use std::fmt;
use std::io;
use std::sync::Arc;
use zeroize::Zeroizing;

/// The start of all URLs of such devices.
pub(crate) const PREFIX: &str = "slatedb+";
const CHECKPOINT: &str = "checkpoint=";

const NO_KEY: &str = "it is encrypted: give a key with --key-file FILE, --key-fd N, --key-command COMMAND \
                      or PAPILIO_KEY_FILE, or run this in a terminal";

/// A secret that no message shows.
#[derive(Clone)]
struct GivenSecret(Secret);

impl fmt::Debug for GivenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a secret")
    }
}

/// The parts of a device that are at a place in a store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Survey {
    /// There is a database.
    pub(crate) is_device: bool,
    /// There are keys: it is, or will be, encrypted.
    pub(crate) has_keys: bool,
}

/// The place of a device in an object store.
#[derive(Clone, Debug)]
pub struct StoreUrl {
    /// The URL without its query.
    pub(super) name: String,
    /// Scheme and bucket, or the local file system.
    pub(super) store_name: String,
    /// The store with the content of objects, once [`Self::unlock`] has been called.
    pub(super) store: Arc<dyn ObjectStore>,
    /// The store as it is.
    raw: Arc<dyn ObjectStore>,
    sealing: Option<Arc<Sealing>>,
    /// The secret; without it the process is asked.
    secret: Option<GivenSecret>,
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
        Ok(Self { checkpoint, ..Self::new(name, store_name, store, path) })
    }

    /// Returns a place in a store that the caller has made. `name` is for messages.
    pub fn in_store(name: &str, store: Arc<dyn ObjectStore>, path: &str) -> Self {
        Self::new(name, name.to_owned(), store, Path::from(path))
    }

    fn new(name: &str, store_name: String, store: Arc<dyn ObjectStore>, path: Path) -> Self {
        let (name, raw) = (name.to_owned(), Arc::clone(&store));
        Self { name, store_name, store, raw, sealing: None, secret: None, path, checkpoint: None }
    }

    /// Returns the same place with the passphrase, or the bytes of the key file, of an encrypted
    /// device. Without it, the key is that of
    /// [`papilio_layers::install`](papilio_layers::install).
    #[must_use]
    pub fn with_secret(mut self, secret: Secret) -> Self {
        self.secret = Some(GivenSecret(secret));
        self
    }

    /// Returns the same place at a checkpoint, by its name or UUID.
    #[must_use]
    pub fn at_checkpoint(mut self, checkpoint: &str) -> Self {
        self.checkpoint = Some(checkpoint.to_owned());
        self
    }

    /// Returns the store with the objects as they are.
    pub(crate) fn raw(&self) -> &Arc<dyn ObjectStore> {
        &self.raw
    }

    /// Turns an error of a request into one of the host, for a caller who names the device.
    pub(super) fn failure(&self, error: &::object_store::Error) -> io::Error {
        let scheme = self.store_name.split("://").next().unwrap_or_default();
        let (kind, reason) = describe(error, scheme);
        io::Error::new(kind, reason)
    }

    /// Returns the prefix of the device's objects.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn names_checkpoint(&self) -> bool {
        self.checkpoint.is_some()
    }

    /// Returns the cipher of an encrypted device.
    pub(super) fn sealing(&self) -> Option<&Arc<Sealing>> {
        self.sealing.as_ref()
    }

    /// Returns a store that counts the requests, and one above it with the content of objects.
    pub(super) fn counted(&self) -> (Arc<Counted>, Arc<dyn ObjectStore>) {
        let counted = Arc::new(Counted::new(Arc::clone(&self.raw)));
        let store = self.opened(Arc::clone(&counted) as Arc<dyn ObjectStore>);
        (counted, store)
    }

    fn opened(&self, raw: Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> {
        match &self.sealing {
            Some(sealing) => Arc::new(SealedStore::new(raw, Arc::clone(sealing))),
            None => raw,
        }
    }

    /// Finds out what is there, by one request. Asks the store itself: SlateDB's own requests are
    /// repeated without end where the store does not answer, or refuses.
    pub(crate) async fn survey(&self) -> Result<Survey, OpenErrorKind> {
        let listed = match self.raw.list_with_delimiter(Some(&self.path)).await {
            Err(::object_store::Error::NotFound { .. }) => Vec::new(),
            Err(error) => return Err(OpenErrorKind::Io(self.failure(&error))),
            Ok(listed) => listed.common_prefixes,
        };
        let has = |folder: &str| listed.iter().any(|path| path.filename() == Some(folder));
        let mut found = Survey { is_device: has(MANIFESTS), has_keys: has(KEYS) };
        if found.is_device && self.store_name == "file" {
            // The folder of a database that was deleted may still be there.
            let device = is_device(&self.raw, &self.path).await;
            found.is_device = device.map_err(|error| OpenErrorKind::Io(self.failure(&error)))?;
        }
        Ok(found)
    }

    /// Returns the same place with the content of its objects, and whether a device is there.
    ///
    /// # Errors
    /// An encrypted device whose key is not known; a store that does not answer.
    pub(super) async fn unlock(&self) -> Result<(Self, bool), OpenErrorKind> {
        let found = self.survey().await?;
        Ok((self.unlock_found(found).await?, found.is_device))
    }

    async fn unlock_found(&self, found: Survey) -> Result<Self, OpenErrorKind> {
        let ring = if found.has_keys { KeyRing::read(&self.raw, &self.path).await? } else { None };
        let Some(ring) = ring else { return Ok(self.clone()) };
        let key = self.key_of(&ring)?;
        Ok(self.with_sealing(Arc::new(ring.sealing(&self.path, &key)?)))
    }

    /// As [`Self::unlock`].
    ///
    /// # Errors
    /// As there; no device.
    pub(super) async fn unlock_device(&self) -> Result<Self, OpenErrorKind> {
        let found = self.survey().await?;
        if found.is_device { self.unlock_found(found).await } else { Err(OpenErrorKind::NotFound) }
    }

    fn with_sealing(&self, sealing: Arc<Sealing>) -> Self {
        let mut url = Self { sealing: Some(sealing), ..self.clone() };
        url.store = url.opened(Arc::clone(&url.raw));
        url
    }

    /// Writes the keys of a clone of this device, and returns the clone's place with a cipher that
    /// opens both. Does nothing if the device is not encrypted.
    pub(super) async fn share_keys(&self, to: &Self) -> Result<Self, OpenErrorKind> {
        let (Some(sealing), Some(ring)) = (&self.sealing, KeyRing::read(&self.raw, &self.path).await?) else {
            return Ok(to.clone());
        };
        let key = self.key_of(&ring)?;
        let mut clone = ring.of_clone(sealing, &key)?;
        clone.write(&to.raw, &to.path).await?;
        Ok(to.with_sealing(Arc::new(clone.sealing(&to.path, &key)?)))
    }

    /// Opens a device's key.
    ///
    /// # Errors
    /// No secret, or a wrong one.
    pub(crate) fn key_of(&self, ring: &KeyRing) -> Result<SecretKey, OpenErrorKind> {
        Ok(self.ask(ring, &ring.fingerprint())?.0)
    }

    /// Opens a device's key. Returns the slot that the secret has, too.
    ///
    /// # Errors
    /// As [`Self::key_of`].
    pub(crate) fn key_and_slot_of(&self, ring: &KeyRing) -> Result<(SecretKey, u32), OpenErrorKind> {
        // A name that no key is kept under: a kept one has no slot.
        let (key, slot) = self.ask(ring, &format!("slot of {}", ring.fingerprint()))?;
        let slot =
            slot.ok_or_else(|| OpenErrorKind::Remote("the slot of its key is not known".to_owned()))?;
        Ok((key, slot))
    }

    fn ask(&self, ring: &KeyRing, id: &str) -> Result<(SecretKey, Option<u32>), OpenErrorKind> {
        let wrong = |kind: &str| {
            OpenErrorKind::Remote(format!("it is encrypted, and none of its keys opens with this {kind}"))
        };
        if let Some(GivenSecret(secret)) = &self.secret {
            let (key, slot) = ring.open(secret)?.ok_or_else(|| wrong("secret"))?;
            return Ok((key, Some(slot)));
        }
        let (mut found, mut fault) = (None, None);
        let mut open = |secret: &[u8]| match ring.open(&Zeroizing::new(secret.to_vec())) {
            Ok(opened) => opened.map(|(key, slot)| {
                found = Some(slot);
                key
            }),
            Err(error) => {
                fault = Some(error);
                None
            }
        };
        let opened = papilio_layers::unlock(id, &self.name, &mut open);
        if let Some(fault) = fault {
            return Err(fault);
        }
        match opened {
            Ok(key) => Ok((key, found)),
            Err(KeyFault::Missing) => Err(OpenErrorKind::Remote(NO_KEY.to_owned())),
            Err(KeyFault::Wrong(kind)) => Err(wrong(kind)),
            Err(KeyFault::Unreadable(error)) => Err(OpenErrorKind::Layer(error)),
        }
    }
}
