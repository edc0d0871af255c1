//! Checkpoints and clones of devices in object stores.
//!
//! Owns the functions that make, list and delete checkpoints, and
//! [`clone_store`]. A checkpoint is a state of the device that stays readable. A clone is a new
//! device that begins with such a state; it copies no data, and each of the two can be written.

use super::accounts::Accounts;
use super::errors::opening;
use super::layout::{META, Meta};
use super::lineage;
use super::source::Source;
use super::url::StoreUrl;
use crate::remote::runtime;
use papilio_device::{OpenErrorKind, RemoteCache, RemoteOptions, StoreCheckpoint};
use slatedb::admin::Admin;
use slatedb::config::CheckpointOptions;
use slatedb::{CloneSourceSpec, DbReaderMode};
use std::time::{Duration, SystemTime};

/// How long the checkpoint that is copied lives, if the program that copies it crashes.
const CLONING: Duration = Duration::from_secs(24 * 3600);

fn admin(url: &StoreUrl) -> Admin {
    lineage::admin(url, &url.store)
}

/// Returns the checkpoint of this name or UUID. Of several with one name, the latest.
pub(super) async fn find_checkpoint(
    url: &StoreUrl,
    wanted: &str,
) -> Result<slatedb::Checkpoint, OpenErrorKind> {
    let found = admin(url).list_checkpoints(None).await.map_err(opening)?;
    let matches = |checkpoint: &slatedb::Checkpoint| {
        checkpoint.name.as_deref() == Some(wanted) || checkpoint.id.to_string().eq_ignore_ascii_case(wanted)
    };
    let found = found.into_iter().filter(matches).max_by_key(|checkpoint| checkpoint.create_time);
    found.ok_or_else(|| OpenErrorKind::Remote(format!("it has no checkpoint {wanted}")))
}

fn run<R>(work: impl Future<Output = Result<R, OpenErrorKind>>) -> Result<R, OpenErrorKind> {
    runtime().map_err(OpenErrorKind::Io)?.block_on(work)
}

/// Makes a checkpoint of a device, which another program may have open. It has all that was durable
/// when that program last brought the manifest up to date, at most 30 s and a flush ago.
///
/// # Errors
/// No such device; a name in use; a store that does not answer.
pub fn create_checkpoint(
    url: &StoreUrl,
    name: Option<&str>,
    lifetime: Option<Duration>,
) -> Result<StoreCheckpoint, OpenErrorKind> {
    run(async {
        let url = &url.unlock_device().await?;
        if let Some(name) = name
            && find_checkpoint(url, name).await.is_ok()
        {
            return Err(OpenErrorKind::Remote(format!("it has a checkpoint {name} already")));
        }
        let options = CheckpointOptions { lifetime, name: name.map(str::to_owned), source: None };
        let made = admin(url).create_detached_checkpoint(&options).await.map_err(opening)?;
        Ok(found(find_checkpoint(url, &made.id.to_string()).await?))
    })
}

/// Returns the checkpoints of a device, the oldest first. Those of programs that have it open for
/// reading are among them, without a name.
///
/// # Errors
/// No such device; a store that does not answer.
pub fn list_checkpoints(url: &StoreUrl) -> Result<Vec<StoreCheckpoint>, OpenErrorKind> {
    run(async {
        let url = &url.unlock_device().await?;
        let mut all = admin(url).list_checkpoints(None).await.map_err(opening)?;
        all.sort_by_key(|checkpoint| checkpoint.create_time);
        Ok(all.into_iter().map(found).collect())
    })
}

/// Deletes a checkpoint, by its name or UUID. A program that reads it may fail afterwards.
///
/// # Errors
/// No such device or checkpoint; a store that does not answer.
pub fn delete_checkpoint(url: &StoreUrl, checkpoint: &str) -> Result<(), OpenErrorKind> {
    run(async {
        let url = &url.unlock_device().await?;
        let id = find_checkpoint(url, checkpoint).await?.id;
        admin(url).delete_checkpoint(id).await.map_err(opening)
    })
}

/// Makes a device that begins with the state of `source`: of its checkpoint, if the URL names one,
/// or else the latest. Both must be in the same bucket.
///
/// # Errors
/// No such device or checkpoint; a device at `to`; URLs in different buckets; a store that does not
/// answer.
pub fn clone_store(source: &StoreUrl, to: &StoreUrl) -> Result<(), OpenErrorKind> {
    if source.store_name != to.store_name {
        return Err(OpenErrorKind::Remote(format!("{} is in another bucket", to.name)));
    }
    if to.checkpoint.is_some() {
        return Err(OpenErrorKind::ReadOnlyMedium);
    }
    run(async {
        let source = &source.unlock_device().await?;
        let found = to.survey().await?;
        if found.is_device {
            return Err(OpenErrorKind::Remote(format!("there is a database at {} already", to.name)));
        }
        if found.has_keys && source.sealing().is_none() {
            let reason = format!("there are keys of an encrypted device at {}", to.name);
            return Err(OpenErrorKind::Remote(reason));
        }
        let from = match &source.checkpoint {
            None => None,
            Some(checkpoint) => Some(find_checkpoint(source, checkpoint).await?.id),
        };
        // Nothing that this checkpoint names is deleted until the clone names it.
        let options = CheckpointOptions { lifetime: Some(CLONING), name: None, source: from };
        let held = admin(source).create_detached_checkpoint(&options).await.map_err(opening)?.id;
        let made = async {
            let to = &source.share_keys(to).await?;
            record(source, to, DbReaderMode::Checkpoint(held)).await?;
            let from = CloneSourceSpec::with_checkpoint(source.path.clone(), held);
            admin(to).create_clone_builder_from_source(from).build().await.map_err(opening)
        };
        let made = made.await;
        let released = admin(source).delete_checkpoint(held).await.map_err(opening);
        made.and(released)
    })
}

/// Records the segments that a clone of a checkpoint will share.
async fn record(source: &StoreUrl, to: &StoreUrl, mode: DbReaderMode) -> Result<(), OpenErrorKind> {
    let io = OpenErrorKind::Io;
    let options = RemoteOptions { cache: RemoteCache::Memory, ..RemoteOptions::default() };
    let reader = Source::reader(source, &source.store, &options, mode).await.map_err(opening)?;
    Meta::parse(reader.get(META).await.map_err(io)?.as_deref())?;
    let accounts = Accounts::read(&reader).await.map_err(io)?;
    reader.close().await.map_err(io)?;
    lineage::record_clone(source, to, &to.store, &accounts).await.map_err(io)
}

fn found(checkpoint: slatedb::Checkpoint) -> StoreCheckpoint {
    StoreCheckpoint {
        id: checkpoint.id.to_string(),
        name: checkpoint.name,
        created: checkpoint.create_time.into(),
        expires: checkpoint.expire_time.map(SystemTime::from),
    }
}
