//! Which devices share segments, and which of them are named.
//!
//! It owns three kinds of objects below a device's prefix:
//!
//! - `segments/`: the segments that it has written;
//! - `clone-of`, of a clone: the prefixes of its ancestors, one a line, the oldest first. A
//!   segment's origin is the number of its device in this list, which ends with the device itself;
//! - `clones/`: for each clone and its clones, a record of the segments of this device that they
//!   may name. It has the clone's prefix in the first line, and a number in each other.
//!
//! **Invariant**: `clone-of` and the records are written before the clone exists.

use super::accounts::Account;
use super::counted::SEGMENTS;
use super::probe::is_device;
use super::segment::id_in;
use super::url::StoreUrl;
use chrono::Utc;
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use slatedb::admin::{Admin, AdminBuilder};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use ulid::Ulid;

const CLONE_OF: &str = "clone-of";
const CLONES: &str = "clones";
const RECORD: &str = ".txt";
/// How old a record is before its clone, if there is none, counts as deleted.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

type Store = Arc<dyn ObjectStore>;

/// Returns SlateDB's administration of a device's database.
pub(super) fn admin(url: &StoreUrl, store: &Store) -> Admin {
    AdminBuilder::new(url.path.clone(), Arc::clone(store)).build()
}

/// Returns the folder of the segments of the device at a prefix.
pub(super) fn segments_of(prefix: &Path) -> Path {
    prefix.clone().join(SEGMENTS)
}

/// Turns an error of a request into one that names the device.
pub(super) fn failed(url: &StoreUrl, error: &object_store::Error) -> io::Error {
    let error = url.failure(error);
    io::Error::new(error.kind(), format!("{}: {error}", url.name))
}

/// Returns the objects in a folder and below it.
pub(super) async fn objects(url: &StoreUrl, store: &Store, folder: &Path) -> io::Result<Vec<ObjectMeta>> {
    let found = store.list(Some(folder)).try_collect().await;
    match found {
        Err(object_store::Error::NotFound { .. }) => Ok(Vec::new()),
        found => found.map_err(|error| failed(url, &error)),
    }
}

async fn text(url: &StoreUrl, store: &Store, path: &Path) -> io::Result<Option<String>> {
    let bytes = match store.get(path).await {
        Err(object_store::Error::NotFound { .. }) => return Ok(None),
        answer => answer.map_err(|error| failed(url, &error))?.bytes().await,
    };
    let bytes = bytes.map_err(|error| failed(url, &error))?;
    String::from_utf8(bytes.to_vec())
        .map(Some)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {path} is no text", url.name)))
}

/// Returns the prefixes of a device's ancestors, the oldest first, and its own.
pub(super) async fn origins(url: &StoreUrl, store: &Store) -> io::Result<Vec<Path>> {
    let path = url.path.clone().join(CLONE_OF);
    let ancestors = text(url, store, &path).await?.unwrap_or_default();
    let ancestors: Result<Vec<Path>, _> = ancestors.lines().map(Path::parse).collect();
    let mut origins = ancestors.map_err(|error| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{}: {path}: {error}", url.name))
    })?;
    origins.push(url.path.clone());
    Ok(origins)
}

/// Removes the list of ancestors, before a device is made where there is none.
pub(super) async fn forget_ancestors(url: &StoreUrl, store: &Store) -> io::Result<()> {
    delete(url, store, &url.path.clone().join(CLONE_OF)).await
}

async fn delete(url: &StoreUrl, store: &Store, path: &Path) -> io::Result<()> {
    match store.delete(path).await {
        Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
        Err(error) => Err(failed(url, &error)),
    }
}

/// Records that a clone will share the segments of `accounts`, those of the device at `url`.
pub(super) async fn record_clone(
    url: &StoreUrl,
    to: &StoreUrl,
    store: &Store,
    accounts: &BTreeMap<Ulid, Account>,
) -> io::Result<()> {
    if accounts.is_empty() {
        return forget_ancestors(to, store).await;
    }
    let origins = origins(url, store).await?;
    for (origin, prefix) in origins.iter().enumerate() {
        let ids = accounts.iter().filter(|(_, account)| usize::from(account.origin) == origin);
        let lines: Vec<String> = ids.map(|(id, _)| id.to_string()).collect();
        if !lines.is_empty() {
            let record = format!("{}\n{}\n", to.path, lines.join("\n"));
            let path = prefix.clone().join(CLONES).join(format!("{}{RECORD}", Ulid::new()));
            store.put(&path, record.into()).await.map_err(|error| failed(url, &error))?;
        }
    }
    let ancestors: Vec<&str> = origins.iter().map(AsRef::as_ref).collect();
    let path = to.path.clone().join(CLONE_OF);
    let list = format!("{}\n", ancestors.join("\n"));
    store.put(&path, list.into()).await.map(drop).map_err(|error| failed(to, &error))
}

/// A clone's record.
struct Record {
    path: Path,
    clone: Path,
    is_new: bool,
    segments: Vec<Ulid>,
}

async fn records(url: &StoreUrl, store: &Store) -> io::Result<Vec<Record>> {
    let mut records = Vec::new();
    for object in objects(url, store, &url.path.clone().join(CLONES)).await? {
        let path = object.location;
        let damaged =
            || io::Error::new(io::ErrorKind::InvalidData, format!("{}: {path} is damaged", url.name));
        let Some(text) = text(url, store, &path).await? else { continue };
        let mut lines = text.lines();
        let clone = lines.next().and_then(|line| Path::parse(line).ok()).ok_or_else(damaged)?;
        let segments: Result<Vec<Ulid>, _> = lines.map(Ulid::from_string).collect();
        let segments = segments.map_err(|_| damaged())?;
        records.push(Record { clone, is_new: object.last_modified + PATIENCE > Utc::now(), segments, path });
    }
    Ok(records)
}

/// Returns the segments of a device that its clones may name.
pub(super) async fn shared_with_clones(url: &StoreUrl, store: &Store) -> io::Result<BTreeSet<Ulid>> {
    let mut shared = BTreeSet::new();
    for record in records(url, store).await? {
        if record.is_new || is_device(store, &record.clone).await.map_err(|error| failed(url, &error))? {
            shared.extend(record.segments);
        }
    }
    Ok(shared)
}

/// Returns the prefixes of a device's clones.
pub(super) async fn clones(url: &StoreUrl, store: &Store) -> io::Result<BTreeSet<String>> {
    let records = records(url, store).await?;
    Ok(records.into_iter().map(|record| record.clone.to_string()).collect())
}

/// Removes the records of clones that were deleted.
pub(super) async fn forget_deleted_clones(url: &StoreUrl, store: &Store) -> io::Result<()> {
    for record in records(url, store).await? {
        let exists = is_device(store, &record.clone).await.map_err(|error| failed(url, &error))?;
        if !record.is_new && !exists {
            delete(url, store, &record.path).await?;
        }
    }
    Ok(())
}

/// Returns the objects of segments that neither an account nor a clone names: uploads before a
/// crash.
pub(super) fn orphans(
    objects: Vec<ObjectMeta>,
    accounts: &BTreeMap<Ulid, Account>,
    shared: &BTreeSet<Ulid>,
) -> Vec<ObjectMeta> {
    let is_orphan = |object: &ObjectMeta| {
        let id = object.location.filename().and_then(id_in);
        id.is_some_and(|id| !accounts.contains_key(&id) && !shared.contains(&id))
    };
    objects.into_iter().filter(is_orphan).collect()
}
