//! The space and the requests of a device in a store: objects, bytes live and dead.
//!
//! Owns [`store_info`], which reads the present state and changes nothing in the store, except for
//! a reader's checkpoint.

use super::accounts::Accounts;
use super::counted;
use super::errors::opening;
use super::layout::{BLOCK, META, Meta, REQUESTS};
use super::lineage;
use super::source::Source;
use super::url::StoreUrl;
use papilio_device::{OpenErrorKind, RemoteOptions, StoreInfo};
use slatedb::DbReaderMode;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Returns the space and the requests of the device that a URL names.
///
/// # Errors
/// No such device; a store that does not answer.
pub fn store_info(url: &StoreUrl, options: &RemoteOptions) -> Result<StoreInfo, OpenErrorKind> {
    let io = OpenErrorKind::Io;
    crate::remote::runtime().map_err(io)?.block_on(async {
        let url = &url.unlock_device().await?;
        let store = Arc::clone(&url.store);
        let mode = match &url.checkpoint {
            Some(checkpoint) => {
                DbReaderMode::Checkpoint(super::admin::find_checkpoint(url, checkpoint).await?.id)
            }
            None => DbReaderMode::FollowLatest,
        };
        // Segments are listed before the accounts are read: a writer may be at work, and the
        // account of a segment follows its upload.
        let folder = lineage::segments_of(&url.path);
        let segments = lineage::objects(url, url.raw(), &folder).await.map_err(io)?;
        let source = Source::reader(url, &store, options, mode).await.map_err(opening)?;
        let meta = Meta::parse(source.get(META).await.map_err(io)?.as_deref())?;
        let accounts = Accounts::read(&source).await.map_err(io)?;
        let requests = source.get(REQUESTS).await.map_err(io)?;
        source.close().await.map_err(io)?;
        let origins = lineage::origins(url, &store).await.map_err(io)?;
        let shared = lineage::shared_with_clones(url, &store).await.map_err(io)?;
        let clones = lineage::clones(url, &store).await.map_err(io)?;
        let checkpoints = lineage::admin(url, &store).list_checkpoints(None).await.map_err(opening)?;
        let mut database = lineage::objects(url, url.raw(), &url.path).await.map_err(io)?;
        database.retain(|object| !object.location.prefix_matches(&folder));
        let bytes = |objects: &[object_store::ObjectMeta]| objects.iter().map(|object| object.size).sum();
        let mut info = StoreInfo {
            size: meta.size,
            version: meta.version(),
            is_encrypted: url.sealing().is_some(),
            segments: segments.len() as u64,
            segment_bytes: bytes(&segments),
            database_objects: database.len() as u64,
            database_bytes: bytes(&database),
            checkpoints: checkpoints.len() as u64,
            clones: clones.len() as u64,
            requests: requests.as_deref().and_then(counted::parse).unwrap_or_default(),
            ..StoreInfo::default()
        };
        let own = origins.len() - 1;
        let mut by_ancestor = BTreeMap::new();
        for account in accounts.values() {
            let live = u64::from(account.live) * BLOCK;
            if usize::from(account.origin) == own {
                info.live_bytes += live;
                info.dead_bytes += u64::from(account.blocks - account.live) * BLOCK;
            } else if account.live > 0 {
                *by_ancestor.entry(account.origin).or_insert(0) += 1;
                info.ancestor_bytes += live;
            }
        }
        info.ancestor_segments = by_ancestor.values().sum();
        let orphans = lineage::orphans(segments, &accounts, &shared);
        info.orphans = orphans.len() as u64;
        info.orphan_bytes = bytes(&orphans);
        Ok(info)
    })
}
