//! `Cleaner`: removes segments that nothing names, and copies what lives in mostly dead ones.
//!
//! A segment may be named by the device's map, by the maps of its checkpoints, and by those of its
//! clones. The rules are on the safe side:
//!
//! - *Checkpoints.* A manifest without the segment is known: the one after its death. A checkpoint
//!   of that manifest or a later one does not name it. Nor does a checkpoint of a manifest from
//!   before the segment's birth, if it was made more than [`SKEW`] before the birth. A reader's
//!   checkpoint may be behind the state that the reader sees, hence the time.
//!   One that expired more than [`SKEW`] ago counts no more.
//! - *Clones.* [`clone_store`](super::clone_store) leaves a record of the segments that it shares
//!   with each ancestor. They stay while the clone exists.
//! - *Orphans* have no account: a writer crashed after the upload. Only a writer that has fenced
//!   all others removes them.
//!
//! **Invariant**: an account goes after its object, so that a crash leaves no orphan here.

use super::accounts::Account;
use super::commit::{Committer, Moved};
use super::layout::BLOCK;
use super::lineage;
use super::segment::{MOST_BLOCKS, SegmentRef};
use super::units::{UNIT, UnitKey};
use super::url::StoreUrl;
use super::window::{Place, WINDOW};
use chrono::{DateTime, Utc};
use futures_util::{StreamExt, TryStreamExt};
use object_store::{ObjectStore, ObjectStoreExt};
use papilio_device::StoreCleaned;
use slatedb::bytes::Bytes;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use ulid::Ulid;

/// The most that the clocks of programs may differ, with the time that an open takes.
const SKEW: Duration = Duration::from_secs(3600);
/// Units that are read at once for copying.
const UNITS: usize = 128;
/// Windows of one step of a count.
const STEP: usize = 1024;

/// Removes and copies segments of a device that is open for writing.
pub(super) struct Cleaner {
    pub(super) committer: Arc<Committer>,
    pub(super) url: StoreUrl,
}

impl Cleaner {
    /// Deletes the segments that nothing names any more. Returns their number. `is_current` says
    /// that the manifest has all that is in the database.
    pub(super) async fn delete_dead(&self, is_current: bool) -> io::Result<u64> {
        let committer = &self.committer;
        let mut dead = committer.accounts().await?;
        dead.retain(|_, account| account.live == 0);
        if dead.is_empty() {
            return Ok(0);
        }
        if !is_current && dead.values().any(|account| account.died == 0) {
            committer.source.update_manifest().await?;
        }
        let (manifest, checkpoints) = committer.source.latest_manifest().await?;
        let shared = lineage::shared_with_clones(&self.url, &committer.store).await?;
        let mut replaced = BTreeMap::new();
        let mut deleted = 0;
        for (id, account) in dead {
            let account =
                Account { died: if account.died == 0 { manifest } else { account.died }, ..account };
            let is_named = checkpoints.iter().any(|checkpoint| may_name(checkpoint, id, &account));
            // The segments of ancestors are theirs to delete.
            let is_own = account.origin == committer.origin;
            if is_own && (is_named || shared.contains(&id)) {
                replaced.insert(id, Some(account));
                continue;
            }
            if is_own {
                self.delete(account.segment(id)).await?;
                deleted += 1;
            }
            replaced.insert(id, None);
        }
        committer.replace_accounts(&replaced).await?;
        Ok(deleted)
    }

    async fn delete(&self, segment: SegmentRef) -> io::Result<()> {
        let path = self.committer.segments.path(segment)?;
        match self.committer.store.delete(&path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.committer.segments.failed(&path, &error)),
        }
    }

    /// Copies what lives in segments of which at most `percent` of the blocks live, until so many
    /// blocks were copied. Returns the segments and blocks that were copied.
    pub(super) async fn copy_live(&self, percent: u32, most_blocks: u64) -> io::Result<(u64, u64)> {
        let accounts = self.committer.accounts().await?;
        let is_sparse = |account: &Account| {
            account.origin == self.committer.origin
                && account.live > 0
                && u32::from(account.live) * 100 <= u32::from(account.blocks) * percent
        };
        let (mut segments, mut copied, mut first_fault) = (0, 0, None);
        let mut blocks = Vec::new();
        for (id, account) in accounts.iter().filter(|(_, account)| is_sparse(account)) {
            if copied + blocks.len() as u64 + u64::from(account.live) > most_blocks {
                break;
            }
            match self.live_blocks(account.segment(*id)).await {
                Ok(live) => {
                    segments += 1;
                    blocks.extend(live);
                }
                // Damaged segments stay as they are. The others are still copied.
                Err(error) => drop(first_fault.get_or_insert(error)),
            }
            while blocks.len() as u64 >= MOST_BLOCKS {
                let rest = blocks.split_off(MOST_BLOCKS as usize);
                copied += self.rewrite(std::mem::replace(&mut blocks, rest)).await?;
            }
        }
        copied += self.rewrite(blocks).await?;
        match first_fault {
            Some(error) => Err(error),
            None => Ok((segments, copied)),
        }
    }

    /// Returns the blocks of a segment that the map names, with their bytes.
    async fn live_blocks(&self, segment: SegmentRef) -> io::Result<Vec<(u64, Place, Bytes)>> {
        let mut places = Vec::new();
        for range in self.committer.segments.ranges(segment).await? {
            for (stretch, place) in self.committer.map.places(&range).await? {
                let Place::Segment(found, index) = place else { continue };
                if found == segment {
                    places
                        .extend(stretch.clone().map(|block| (block, index + (block - stretch.start) as u32)));
                }
            }
        }
        places.sort_unstable_by_key(|(_, index)| *index);
        let mut live = Vec::with_capacity(places.len());
        for part in places.chunks(UNITS * UNIT as usize) {
            let mut keys: Vec<_> =
                part.iter().map(|(_, index)| UnitKey { segment, unit: index / UNIT }).collect();
            keys.dedup();
            let units = self.committer.segments.get(&keys).await;
            for (block, index) in part {
                let unit = units[&UnitKey { segment, unit: index / UNIT }].as_ref();
                let unit = unit.map_err(crate::remote::blocks::Fault::to_error)?;
                let bytes = Bytes::copy_from_slice(unit.block(*index)?);
                live.push((*block, Place::Segment(segment, *index), bytes));
            }
        }
        Ok(live)
    }

    /// Writes blocks to a new segment, and gives them their new places.
    async fn rewrite(&self, mut blocks: Vec<(u64, Place, Bytes)>) -> io::Result<u64> {
        if blocks.is_empty() {
            return Ok(0);
        }
        blocks.sort_unstable_by_key(|(block, ..)| *block);
        let count = blocks.len();
        let segment = SegmentRef { id: Ulid::new(), origin: self.committer.origin, blocks: count as u16 };
        let born = self.committer.source.known_manifest()?;
        let pieces = blocks.iter().map(|(block, _, bytes)| (*block, bytes.clone())).collect();
        self.committer.upload(segment, pieces).await?;
        let blocks = (0..).zip(blocks).map(|(index, (block, place, _))| (block, place, index)).collect();
        self.committer.commit_moved(Moved { segment, blocks, born }).await?;
        Ok(count as u64)
    }

    /// Counts the blocks in use of all segments anew, by the map. Returns how many accounts were
    /// wrong.
    async fn count(&self) -> io::Result<u64> {
        let committer = &self.committer;
        let mut found: BTreeMap<SegmentRef, u32> = BTreeMap::new();
        let mut next = 0;
        loop {
            let windows = committer.map.windows_in(next..u64::MAX, STEP).await?;
            let Some((last, _)) = windows.last() else { break };
            next = last + 1;
            for (_, window) in windows {
                window.for_each(0..WINDOW as u16, |stretch, place| {
                    if let Place::Segment(segment, _) = place {
                        *found.entry(segment).or_default() += u32::from(stretch.end - stretch.start);
                    }
                });
            }
        }
        let accounts = committer.accounts().await?;
        let mut replaced = BTreeMap::new();
        for (id, account) in &accounts {
            let live = found.remove(&account.segment(*id)).unwrap_or_default();
            if live != u32::from(account.live) && live <= u32::from(account.blocks) {
                replaced.insert(*id, Some(Account { live: live as u16, died: 0, ..*account }));
            }
        }
        for (segment, live) in found {
            let SegmentRef { id, origin, blocks } = segment;
            let live = live.min(u32::from(blocks)) as u16;
            replaced.insert(id, Some(Account { origin, blocks, live, born: 0, died: 0 }));
        }
        committer.replace_accounts(&replaced).await?;
        Ok(replaced.len() as u64)
    }

    /// Deletes the objects in the device's folder of segments that have no account. Returns their
    /// number and bytes.
    async fn delete_orphans(&self) -> io::Result<(u64, u64)> {
        let committer = &self.committer;
        let accounts = committer.accounts().await?;
        let shared = lineage::shared_with_clones(&self.url, &committer.store).await?;
        let folder = lineage::segments_of(&self.url.path);
        let objects = lineage::objects(&self.url, &committer.store, &folder).await?;
        let orphans = lineage::orphans(objects, &accounts, &shared);
        let bytes = orphans.iter().map(|object| object.size).sum();
        let count = orphans.len() as u64;
        let paths = futures_util::stream::iter(orphans.into_iter().map(|object| Ok(object.location)));
        let deleted = committer.store.delete_stream(paths.boxed());
        let deleted = deleted.filter(|result| {
            std::future::ready(!matches!(result, Err(object_store::Error::NotFound { .. })))
        });
        let failed = |error| lineage::failed(&self.url, &error);
        deleted.map_err(failed).try_for_each(async |_| Ok(())).await?;
        Ok((count, bytes))
    }

    /// Cleans everything: counts anew, copies what lives in segments that are half dead, and
    /// removes those that nothing names, orphans too.
    pub(super) async fn clean(&self) -> io::Result<StoreCleaned> {
        let corrected = self.count().await?;
        // The rest is done even if a segment is damaged, which is an error at the end.
        let copied = self.copy_live(50, u64::MAX).await;
        let deleted = self.delete_dead(false).await?;
        let (orphans, orphan_bytes) = self.delete_orphans().await?;
        lineage::forget_deleted_clones(&self.url, &self.committer.store).await?;
        let kept = self.committer.accounts().await?.values().filter(|account| account.live == 0).count();
        let (copied_segments, copied_blocks) = copied?;
        Ok(StoreCleaned {
            copied_segments,
            copied_bytes: copied_blocks * BLOCK,
            deleted_segments: deleted,
            kept_dead_segments: kept as u64,
            orphans,
            orphan_bytes,
            corrected_accounts: corrected,
        })
    }
}

/// Returns whether a checkpoint may name a dead segment.
fn may_name(checkpoint: &slatedb::Checkpoint, id: Ulid, account: &Account) -> bool {
    let born = i64::try_from(id.timestamp_ms()).ok().and_then(DateTime::<Utc>::from_timestamp_millis);
    let is_older = checkpoint.manifest_id < account.born
        && born.is_some_and(|born| checkpoint.create_time + SKEW < born);
    // SlateDB removes these when a writer collects garbage.
    let has_expired = checkpoint.expire_time.is_some_and(|expires| expires + SKEW < Utc::now());
    checkpoint.manifest_id < account.died && !is_older && !has_expired
}
