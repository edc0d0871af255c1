//! Devices at URLs, which the object stores of a program open.
//!
//! Owns [`ObjectStores`], the options of its calls, and the process's installed stores. The stores
//! themselves are in the crate `papilio-store`, which brings an HTTP client, TLS, an async runtime
//! and SlateDB. Programs that need none of them do not compile it.
//!
//! **Invariant**: the first stores that a program installs stay until it ends.

use crate::device::{Access, Device};
use crate::error::OpenErrorKind;
use crate::object_store::ObjectStore;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

/// Where blocks that were fetched are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RemoteCache {
    /// `papilio/remote` in the user's cache directory: `$XDG_CACHE_HOME`, else `$HOME/.cache`. In
    /// memory only if neither is set.
    #[default]
    User,
    /// This directory, which is made if it is missing.
    Directory(PathBuf),
    /// In memory only.
    Memory,
}

/// How images at URLs are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteOptions {
    /// The place of the cache on disk.
    pub cache: RemoteCache,
    /// The most bytes of the cache on disk, for all images together. The default is 1 GiB.
    pub cache_bytes: u64,
    /// The most bytes of an image's blocks in memory. The default is 64 MiB.
    pub memory_bytes: u64,
    /// The longest time that one attempt of a request may take. The default is 30 s.
    pub timeout: Duration,
    /// How often a request that a store throttled, failed or did not answer is sent again. The
    /// default is 5. The waits between attempts grow from 0.1 s to 5 s and are random.
    pub retries: usize,
}

impl Default for RemoteOptions {
    fn default() -> Self {
        Self {
            cache: RemoteCache::User,
            cache_bytes: 1 << 30,
            memory_bytes: 64 << 20,
            timeout: Duration::from_secs(30),
            retries: 5,
        }
    }
}

/// A checkpoint of a device in an object store: a state that stays readable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreCheckpoint {
    /// The UUID.
    pub id: String,
    /// The name, if it has one.
    pub name: Option<String>,
    /// When it was made.
    pub created: SystemTime,
    /// When it expires, if it does.
    pub expires: Option<SystemTime>,
}

/// A passphrase or key file that opens an encrypted device in an object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreKey {
    /// Its number.
    pub slot: u32,
    /// When it was added or changed last.
    pub added: SystemTime,
}

/// Requests to an object store by kind, each counted once however often it was repeated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// Objects that were written, and parts of them.
    pub puts: u64,
    /// Objects that were read, and ranges of them.
    pub gets: u64,
    /// Listings, however many pages they had.
    pub lists: u64,
    /// Objects that were deleted.
    pub deletes: u64,
    /// Bytes that were sent in objects.
    pub bytes_sent: u64,
    /// Bytes that were received from objects.
    pub bytes_received: u64,
}

/// The requests of a device in an object store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreRequests {
    /// Those for segments, which hold large runs of blocks.
    pub segments: RequestCounts,
    /// Those of the database, which holds the rest, and those for listings.
    pub database: RequestCounts,
}

/// The space and the requests of a device in an object store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreInfo {
    /// Bytes of the device.
    pub size: u64,
    /// The version of the device's format.
    pub version: u32,
    /// Whether its objects are encrypted.
    pub is_encrypted: bool,
    /// Objects that hold large runs of blocks, orphans too.
    pub segments: u64,
    /// Bytes of these objects.
    pub segment_bytes: u64,
    /// Bytes of blocks in segments that the device has.
    pub live_bytes: u64,
    /// Bytes of blocks in segments that were overwritten or discarded since.
    pub dead_bytes: u64,
    /// Segments of ancestors that the device, a clone, shares.
    pub ancestor_segments: u64,
    /// Bytes of blocks in them that the device has.
    pub ancestor_bytes: u64,
    /// Segments that a crash left behind.
    pub orphans: u64,
    /// Bytes of these objects.
    pub orphan_bytes: u64,
    /// Objects of the database.
    pub database_objects: u64,
    /// Bytes of these objects.
    pub database_bytes: u64,
    /// Checkpoints, those of readers and clones too.
    pub checkpoints: u64,
    /// Clones that share segments.
    pub clones: u64,
    /// Requests of all writers, as far as they were closed or flushed for long.
    pub requests: StoreRequests,
}

/// The outcome of a cleaning of a device in an object store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCleaned {
    /// Segments whose blocks were copied together.
    pub copied_segments: u64,
    /// Bytes of these blocks.
    pub copied_bytes: u64,
    /// Segments without a block in use that were deleted.
    pub deleted_segments: u64,
    /// Segments without a block in use that a checkpoint or a clone may name.
    pub kept_dead_segments: u64,
    /// Segments that a crash had left behind, and that were deleted.
    pub orphans: u64,
    /// Bytes of these objects.
    pub orphan_bytes: u64,
    /// Segments whose blocks in use had been counted wrong.
    pub corrected_accounts: u64,
}

/// Looks for new flushes of the writer of a device in a store.
pub trait StoreWatch: Send {
    /// Returns whether the writer has flushed, or another one has opened the device, since the last
    /// call; true for the first. Costs one request.
    ///
    /// # Errors
    /// A store that does not answer, or denies access.
    fn has_changed(&mut self) -> std::io::Result<bool>;
}

/// Opens devices at URLs and administers those in object stores.
///
/// Every URL has one of the schemes in [`URL_SCHEMES`](crate::URL_SCHEMES). Functions that concern
/// a device in a store fail for a URL of another scheme than `slatedb+...`.
pub trait ObjectStores: Send + Sync {
    /// Opens the device at a URL. A URL without `slatedb+` names an object, which is only read.
    ///
    /// # Errors
    /// A URL that names no device; no such device; a store that does not answer, or denies access.
    fn open(
        &self,
        url: &str,
        access: Access,
        options: &RemoteOptions,
    ) -> Result<Arc<dyn Device>, OpenErrorKind>;

    /// Opens the place of named objects at a URL. It need not have objects.
    ///
    /// # Errors
    /// A URL that names no place in a store to which objects can be written.
    fn objects(&self, url: &str, options: &RemoteOptions) -> Result<Arc<dyn ObjectStore>, OpenErrorKind>;

    /// Opens the device in a store for writing. Makes it with `size` bytes if there is none, or
    /// gives it that size.
    ///
    /// # Errors
    /// As [`open`](Self::open); a size that is no multiple of 4096.
    fn create(&self, url: &str, size: u64, options: &RemoteOptions)
    -> Result<Arc<dyn Device>, OpenErrorKind>;

    /// Returns a watch of the device in a store. A device that is open for reading keeps its state;
    /// a reader that follows the writer opens it anew once the watch says that it has changed.
    ///
    /// # Errors
    /// A URL that names no device in a store, or a checkpoint, which does not change.
    fn watch(&self, url: &str, options: &RemoteOptions) -> Result<Box<dyn StoreWatch>, OpenErrorKind>;

    /// Makes the device in a store larger; the new part reads as zeros. Returns the size in bytes
    /// before.
    ///
    /// # Errors
    /// As [`open`](Self::open); a size below that of the device, or no multiple of 4096.
    fn grow(&self, url: &str, size: u64, options: &RemoteOptions) -> Result<u64, OpenErrorKind>;

    /// Makes a checkpoint of a device in a store. It expires after `lifetime`, if that is given.
    ///
    /// # Errors
    /// No such device; a name in use; a store that does not answer.
    fn create_checkpoint(
        &self,
        url: &str,
        name: Option<&str>,
        lifetime: Option<Duration>,
        options: &RemoteOptions,
    ) -> Result<StoreCheckpoint, OpenErrorKind>;

    /// Returns the checkpoints of a device in a store, the oldest first.
    ///
    /// # Errors
    /// No such device; a store that does not answer.
    fn checkpoints(&self, url: &str, options: &RemoteOptions) -> Result<Vec<StoreCheckpoint>, OpenErrorKind>;

    /// Deletes a checkpoint, by its name or UUID.
    ///
    /// # Errors
    /// No such device or checkpoint; a store that does not answer.
    fn delete_checkpoint(
        &self,
        url: &str,
        checkpoint: &str,
        options: &RemoteOptions,
    ) -> Result<(), OpenErrorKind>;

    /// Makes a device at `to` that begins with the state of the one at `url`.
    ///
    /// # Errors
    /// No such device or checkpoint; a device at `to`; URLs in different buckets; a store that does
    /// not answer.
    fn clone_device(&self, url: &str, to: &str, options: &RemoteOptions) -> Result<(), OpenErrorKind>;

    /// Returns what a device in a store takes.
    ///
    /// # Errors
    /// No such device; a store that does not answer.
    fn info(&self, url: &str, options: &RemoteOptions) -> Result<StoreInfo, OpenErrorKind>;

    /// Removes segments of a device in a store that nothing names, and copies what lives in those
    /// that are half dead. Fences a program that has the device open for writing.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    fn clean(&self, url: &str, options: &RemoteOptions) -> Result<StoreCleaned, OpenErrorKind>;

    /// Prepares a place for an encrypted device, which [`create`](Self::create) makes afterwards.
    /// `secret` is a passphrase, or the bytes of a key file.
    ///
    /// # Errors
    /// A device at the place; a store that does not answer.
    fn encrypt(&self, url: &str, secret: &[u8], options: &RemoteOptions) -> Result<(), OpenErrorKind>;

    /// Returns the secrets that open an encrypted device, by their slots. Needs none of them.
    ///
    /// # Errors
    /// No such device, or one that is not encrypted; a store that does not answer.
    fn keys(&self, url: &str, options: &RemoteOptions) -> Result<Vec<StoreKey>, OpenErrorKind>;

    /// Adds a secret, and returns its slot. Like the next two functions, it rewrites no data and
    /// does not disturb a program that has the device open.
    ///
    /// # Errors
    /// As [`keys`](Self::keys); the secret of this process is missing or wrong; too many secrets.
    fn add_key(&self, url: &str, secret: &[u8], options: &RemoteOptions) -> Result<u32, OpenErrorKind>;

    /// Removes a secret. That of this process must open another slot.
    ///
    /// # Errors
    /// As [`add_key`](Self::add_key); no such slot.
    fn remove_key(&self, url: &str, slot: u32, options: &RemoteOptions) -> Result<(), OpenErrorKind>;

    /// Replaces the secret of a slot, by default that of this process. Returns the slot.
    ///
    /// # Errors
    /// As [`add_key`](Self::add_key); no such slot.
    fn change_key(
        &self,
        url: &str,
        slot: Option<u32>,
        secret: &[u8],
        options: &RemoteOptions,
    ) -> Result<u32, OpenErrorKind>;
}

static INSTALLED: OnceLock<&'static dyn ObjectStores> = OnceLock::new();

/// Installs the object stores of this process, and returns whether there were none before.
pub fn install_object_stores(stores: &'static dyn ObjectStores) -> bool {
    INSTALLED.set(stores).is_ok()
}

/// Returns the object stores of this process.
///
/// # Errors
/// [`OpenErrorKind::NoObjectStores`] if the program installed none.
pub fn object_stores() -> Result<&'static dyn ObjectStores, OpenErrorKind> {
    INSTALLED.get().copied().ok_or(OpenErrorKind::NoObjectStores)
}

/// Returns a URL as text.
///
/// # Errors
/// [`OpenErrorKind::Remote`] if it is not valid UTF-8.
pub fn url_text(url: &Path) -> Result<&str, OpenErrorKind> {
    url.to_str().ok_or_else(|| OpenErrorKind::Remote("the URL is not valid UTF-8".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_object_stores_says_so() {
        assert!(matches!(object_stores().map(drop), Err(OpenErrorKind::NoObjectStores)));
        let url = Path::new("s3://bucket/disk.img");
        let options = crate::OpenOptions::new(Access::ReadOnly);
        let error = options.open_image(url, &crate::ImageOptions::default()).map(drop).unwrap_err();
        assert_eq!(error.path, url);
        assert!(error.to_string().contains("papilio-store"), "{error}");
    }
}
