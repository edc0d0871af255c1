//! `Committer`: writes groups to the store.
//!
//! It decides where the blocks of a group go, uploads the segments, and then writes the rest, the
//! map and the accounts to the database in one batch.
//!
//! - A run of at least [`RUN`] consecutive blocks goes to a segment, if such runs make a segment of
//!   [`LEAST`] blocks. So does everything, if the shorter runs are many.
//! - Other blocks go to the database under their own keys.
//!
//! **Invariants**
//! - A segment is uploaded before the batch that names it is written.
//! - The segments of a group are in flight while earlier groups are committed. Batches are written
//!   one at a time, in the order of the groups.
//! - A batch has all of a group. Only long ranges of zeros enter in several.
//!
//! **Locks**: `turn`, held across requests: one batch at a time. Then those of the map and the
//! accounts.

use super::accounts::{Account, Accounts, Changes};
use super::extents::{Content, Extents};
use super::groups::Group;
use super::layout::{BLOCK, META, Meta, block_key, number_in, window_key};
use super::map::BlockMap;
use super::segment::{MOST_BLOCKS, SegmentRef, encode};
use super::source::Source;
use super::units::SegmentReader;
use super::window::{Place, WINDOW, Window};
use futures_util::{StreamExt, TryStreamExt};
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use papilio_device::RemoteOptions;
use papilio_locks::Mutex;
use slatedb::WriteBatch;
use slatedb::bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use ulid::Ulid;

/// Blocks of a run that goes to a segment: 64 KiB.
const RUN: u64 = 16;
/// Blocks of the smallest segment: 256 KiB.
const LEAST: u64 = 64;
/// Blocks in shorter runs that go to segments, too: 4 MiB.
const MANY: u64 = 1024;
/// Uploads in flight.
const UPLOADS: usize = 6;
/// Windows that are loaded at once.
const LOADS: usize = 16;
/// Windows of zeros that enter the map in one batch.
const CLEARED: u64 = 1024;
/// Keys of one batch of deletions.
const DELETIONS: usize = 4096;
/// The longest wait before an upload is tried again.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Where a range of a group goes.
#[derive(Debug)]
enum Placed {
    Zeros,
    Database(Bytes),
    Segment(SegmentRef, u32),
}

/// A group whose segments are in the store.
#[derive(Debug)]
pub(super) struct Prepared {
    placed: Vec<(Range<u64>, Placed)>,
    new: BTreeMap<Ulid, Account>,
}

/// Blocks that were copied to a new segment: each with its old place and its new index.
#[derive(Debug)]
pub(super) struct Moved {
    pub(super) segment: SegmentRef,
    pub(super) blocks: Vec<(u64, Place, u32)>,
    pub(super) born: u64,
}

/// Writes groups to the store.
pub(super) struct Committer {
    pub(super) source: Arc<Source>,
    pub(super) map: Arc<BlockMap>,
    pub(super) accounts: Arc<Accounts>,
    pub(super) segments: Arc<SegmentReader>,
    pub(super) store: Arc<dyn ObjectStore>,
    /// The origin of this device's own segments.
    pub(super) origin: u16,
    retries: usize,
    uploads: Semaphore,
    turn: tokio::sync::Mutex<()>,
    meta: Mutex<Meta>,
    /// Whether a batch failed: memory and database may differ.
    is_broken: AtomicBool,
}

impl Committer {
    pub(super) fn new(
        source: Arc<Source>,
        map: Arc<BlockMap>,
        segments: Arc<SegmentReader>,
        store: Arc<dyn ObjectStore>,
        origin: u16,
        meta: Meta,
        options: &RemoteOptions,
    ) -> Self {
        Self {
            source,
            map,
            accounts: Arc::default(),
            segments,
            store,
            origin,
            retries: options.retries,
            uploads: Semaphore::new(UPLOADS),
            turn: tokio::sync::Mutex::default(),
            meta: Mutex::new(meta),
            is_broken: AtomicBool::new(false),
        }
    }

    /// Decides where the blocks of a group go, and uploads its segments.
    pub(super) async fn prepare(self: Arc<Self>, group: Arc<Group>) -> io::Result<Prepared> {
        let born = self.source.known_manifest()?;
        let (mut placed, bulk) = divide(&group.extents);
        let mut new = BTreeMap::new();
        let mut uploads = Vec::new();
        for pieces in cut(bulk) {
            let blocks = pieces.iter().map(|(_, bytes)| bytes.len() as u64 / BLOCK).sum::<u64>() as u16;
            let segment = SegmentRef { id: Ulid::new(), origin: self.origin, blocks };
            let account = Account { origin: self.origin, blocks, live: blocks, born, died: 0 };
            new.insert(segment.id, account);
            let mut index = 0;
            for (start, bytes) in &pieces {
                let count = bytes.len() as u64 / BLOCK;
                placed.push((*start..start + count, Placed::Segment(segment, index)));
                index += count as u32;
            }
            uploads.push(self.upload(segment, pieces));
        }
        futures_util::future::try_join_all(uploads).await?;
        Ok(Prepared { placed, new })
    }

    /// Writes a segment, and keeps its blocks in the cache on disk.
    pub(super) async fn upload(&self, segment: SegmentRef, pieces: Vec<(u64, Bytes)>) -> io::Result<()> {
        // Never closed.
        let _permit = self.uploads.acquire().await.map_err(io::Error::other)?;
        self.put(segment, encode(segment.id, &pieces)).await?;
        self.segments.keep_soon(segment, pieces);
        Ok(())
    }

    async fn put(&self, segment: SegmentRef, payload: PutPayload) -> io::Result<()> {
        let path = self.segments.path(segment)?;
        let mut wait = Duration::from_millis(100);
        let mut attempt = 0;
        loop {
            use object_store::Error as E;
            match self.store.put(&path, payload.clone()).await {
                Ok(_) => return Ok(()),
                Err(error) => {
                    let is_final = matches!(error, E::PermissionDenied { .. } | E::Unauthenticated { .. });
                    if is_final || attempt == self.retries {
                        return Err(self.segments.failed(&path, &error));
                    }
                }
            }
            attempt += 1;
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    /// Writes a group to the database, and brings map and accounts up to date.
    pub(super) async fn commit(&self, prepared: Prepared) -> io::Result<()> {
        let _turn = self.turn.lock().await;
        let mut changes = Changes { new: prepared.new, ..Changes::default() };
        let mut batch = WriteBatch::new();
        let mut cleared = Vec::new();
        let mut parts = Vec::new();
        for (range, placed) in prepared.placed {
            if let Placed::Zeros = placed {
                let windows = range.start.div_ceil(WINDOW)..range.end / WINDOW;
                if !windows.is_empty() {
                    let edges = [range.start..windows.start * WINDOW, windows.end * WINDOW..range.end];
                    parts.extend(
                        edges.into_iter().filter(|edge| !edge.is_empty()).map(|edge| (edge, Placed::Zeros)),
                    );
                    cleared.push(windows);
                    continue;
                }
            }
            parts.push((range, placed));
        }
        let mut windows = BTreeMap::new();
        for numbers in cleared {
            self.clear(numbers, &mut batch, &mut changes, &mut windows).await?;
        }
        let touched: BTreeSet<u64> =
            parts.iter().flat_map(|(range, _)| range.start / WINDOW..range.end.div_ceil(WINDOW)).collect();
        let old = self.load(touched).await?;
        let mut edited: BTreeMap<u64, Window> =
            old.iter().map(|(number, window)| (*number, (**window).clone())).collect();
        for (range, placed) in parts {
            edit(&mut edited, &range, &placed, &mut changes, &mut batch);
        }
        edited.retain(|number, window| *window != *old[number]);
        windows.extend(edited.into_iter().map(|(number, window)| (number, Arc::new(window))));
        self.write(batch, windows, &changes).await
    }

    /// Gives blocks that were copied their new places, unless they have been written since.
    pub(super) async fn commit_moved(&self, moved: Moved) -> io::Result<()> {
        let _turn = self.turn.lock().await;
        let SegmentRef { id, origin, blocks } = moved.segment;
        let mut changes = Changes::default();
        changes.new.insert(id, Account { origin, blocks, live: 0, born: moved.born, died: 0 });
        let old = self.load(moved.blocks.iter().map(|(block, ..)| block / WINDOW).collect()).await?;
        let mut edited: BTreeMap<u64, Window> =
            old.iter().map(|(number, window)| (*number, (**window).clone())).collect();
        for (block, place, index) in moved.blocks {
            let at = (block % WINDOW) as u16;
            let Some(window) = edited.get_mut(&(block / WINDOW)) else { continue };
            let mut is_same = false;
            window.for_each(at..at + 1, |_, now| is_same = now == place);
            if let (true, Place::Segment(from, _)) = (is_same, place) {
                window.set(at..at + 1, Place::Segment(moved.segment, index));
                changes.kill(from.id, 1);
                *changes.moved_in.entry(id).or_default() += 1;
            }
        }
        let windows = edited.into_iter().map(|(number, window)| (number, Arc::new(window))).collect();
        self.write(WriteBatch::new(), windows, &changes).await
    }

    /// Returns the accounts as they are in the database.
    pub(super) async fn accounts(&self) -> io::Result<BTreeMap<Ulid, Account>> {
        let _turn = self.turn.lock().await;
        if self.is_broken.load(Ordering::Relaxed) {
            return Err(io::Error::other(format!("{}: an earlier write failed", self.source.name())));
        }
        self.accounts.all(&self.source).await
    }

    /// Replaces accounts, and removes those without a new one.
    pub(super) async fn replace_accounts(
        &self,
        replaced: &BTreeMap<Ulid, Option<Account>>,
    ) -> io::Result<()> {
        let _turn = self.turn.lock().await;
        let mut batch = WriteBatch::new();
        self.accounts.replace(&self.source, replaced, &mut batch).await?;
        self.source.write(batch).await
    }

    async fn load(&self, numbers: BTreeSet<u64>) -> io::Result<BTreeMap<u64, Arc<Window>>> {
        let loads = numbers.into_iter().map(async |number| Ok((number, self.map.window(number).await?)));
        futures_util::stream::iter(loads).buffer_unordered(LOADS).try_collect().await
    }

    /// Adds windows and accounts to a batch, writes it, and brings the map up to date.
    async fn write(
        &self,
        mut batch: WriteBatch,
        windows: BTreeMap<u64, Arc<Window>>,
        changes: &Changes,
    ) -> io::Result<()> {
        let is_upgrade = self.meta.lock().is_first_version;
        if is_upgrade {
            let upgraded = self.meta.lock().upgraded();
            batch.put(META, upgraded.to_bytes());
        }
        let has_earlier_blocks = self.map.has_earlier_blocks();
        for (number, window) in &windows {
            let is_absent =
                if has_earlier_blocks { **window == Window::earlier() } else { window.is_empty() };
            match is_absent {
                true => batch.delete(window_key(*number)),
                false => batch.put(window_key(*number), window.to_bytes()),
            }
        }
        let written = async {
            self.accounts.change(&self.source, changes, &mut batch).await?;
            self.source.write(batch).await
        };
        written.await.inspect_err(|_| self.is_broken.store(true, Ordering::Relaxed))?;
        self.map.commit(windows);
        if is_upgrade {
            let mut meta = self.meta.lock();
            *meta = meta.upgraded();
        }
        Ok(())
    }

    /// Makes whole windows read as zeros. All but the last part of a long range is written at once.
    async fn clear(
        &self,
        numbers: Range<u64>,
        batch: &mut WriteBatch,
        changes: &mut Changes,
        windows: &mut BTreeMap<u64, Arc<Window>>,
    ) -> io::Result<()> {
        let has_earlier_blocks = self.map.has_earlier_blocks();
        let is_long = numbers.end - numbers.start > CLEARED;
        if has_earlier_blocks {
            // Blocks without a window.
            let keys = block_key(numbers.start * WINDOW).to_vec()..block_key(numbers.end * WINDOW).to_vec();
            let mut scan = self.source.scan(keys).await?;
            let mut count = 0;
            while let Some((key, _)) = scan.next().await? {
                if number_in(b'b', &key).is_some() {
                    batch.delete(&key);
                    count += 1;
                }
                if is_long && count == DELETIONS {
                    self.source.write(std::mem::replace(batch, WriteBatch::new())).await?;
                    count = 0;
                }
            }
        }
        let mut next = numbers.start;
        while next < numbers.end {
            let found = self.map.windows_in(next..numbers.end, CLEARED as usize).await?;
            let is_last = (found.len() as u64) < CLEARED;
            next = found.last().map_or(numbers.end, |(number, _)| number + 1);
            for (number, window) in found {
                window.for_each(0..WINDOW as u16, |stretch, place| match place {
                    Place::Segment(segment, _) => {
                        changes.kill(segment.id, u32::from(stretch.end - stretch.start))
                    }
                    Place::Database if !has_earlier_blocks => {
                        stretch.for_each(|block| batch.delete(block_key(number * WINDOW + u64::from(block))))
                    }
                    _ => {}
                });
                let empty = if has_earlier_blocks { Window::earlier() } else { Window::default() };
                windows.insert(number, Arc::new(empty));
            }
            if is_last {
                break;
            }
            if is_long {
                let part = std::mem::replace(batch, WriteBatch::new());
                let killed = Changes { killed: std::mem::take(&mut changes.killed), ..Changes::default() };
                self.write(part, std::mem::take(windows), &killed).await?;
            }
        }
        Ok(())
    }
}

/// Changes the windows of a range, and notes which blocks it replaces.
fn edit(
    windows: &mut BTreeMap<u64, Window>,
    range: &Range<u64>,
    placed: &Placed,
    changes: &mut Changes,
    batch: &mut WriteBatch,
) {
    for number in range.start / WINDOW..range.end.div_ceil(WINDOW) {
        let Some(window) = windows.get_mut(&number) else { continue };
        let base = number * WINDOW;
        let (start, end) = (range.start.max(base), range.end.min(base + WINDOW));
        let part = (start - base) as u16..(end - base) as u16;
        window.for_each(part.clone(), |stretch, place| match place {
            Place::Segment(segment, _) => changes.kill(segment.id, u32::from(stretch.end - stretch.start)),
            Place::Database if !matches!(placed, Placed::Database(_)) => {
                stretch.for_each(|block| batch.delete(block_key(base + u64::from(block))));
            }
            _ => {}
        });
        let skipped = start - range.start;
        let place = match placed {
            Placed::Zeros => Place::Hole,
            Placed::Segment(segment, index) => Place::Segment(*segment, index + skipped as u32),
            Placed::Database(bytes) => {
                for block in start..end {
                    let at = ((block - range.start) * BLOCK) as usize;
                    batch.put_bytes(
                        Bytes::copy_from_slice(&block_key(block)),
                        bytes.slice(at..at + BLOCK as usize),
                    );
                }
                Place::Database
            }
        };
        window.set(part, place);
    }
}

type Pieces = Vec<(u64, Bytes)>;

/// Divides a group into that which goes to the database or is zeros, and the pieces for segments.
fn divide(extents: &Extents) -> (Vec<(Range<u64>, Placed)>, Pieces) {
    let mut placed = Vec::new();
    // Runs of consecutive blocks: the number of blocks and the pieces.
    let mut runs: Vec<(u64, Pieces)> = Vec::new();
    let mut end = None;
    for (range, content) in extents.iter() {
        match content {
            Content::Zeros => placed.push((range, Placed::Zeros)),
            Content::Data(bytes) => {
                if end != Some(range.start) {
                    runs.push((0, Vec::new()));
                }
                end = Some(range.end);
                let Some((blocks, pieces)) = runs.last_mut() else { continue };
                *blocks += range.end - range.start;
                pieces.push((range.start, bytes.clone()));
            }
        }
    }
    let short: u64 = runs.iter().map(|run| run.0).filter(|blocks| *blocks < RUN).sum();
    let (long, other): (Vec<_>, Vec<_>) =
        runs.into_iter().partition(|(blocks, _)| *blocks >= RUN || short >= MANY);
    let is_segment = long.iter().map(|run| run.0).sum::<u64>() >= LEAST;
    let (bulk, rest) = if is_segment { (long, other) } else { (Vec::new(), [long, other].concat()) };
    for (start, bytes) in rest.into_iter().flat_map(|run| run.1) {
        placed.push((start..start + bytes.len() as u64 / BLOCK, Placed::Database(bytes)));
    }
    (placed, bulk.into_iter().flat_map(|run| run.1).collect())
}

/// Cuts pieces into segments of about the same size.
fn cut(pieces: Pieces) -> Vec<Pieces> {
    let total: u64 = pieces.iter().map(|(_, bytes)| bytes.len() as u64 / BLOCK).sum();
    if total == 0 {
        return Vec::new();
    }
    let size = total.div_ceil(total.div_ceil(MOST_BLOCKS));
    let mut segments = vec![Vec::new()];
    let mut room = size;
    for (mut start, mut bytes) in pieces {
        while !bytes.is_empty() {
            if room == 0 {
                segments.push(Vec::new());
                room = size;
            }
            let count = room.min(bytes.len() as u64 / BLOCK);
            let part = bytes.split_to((count * BLOCK) as usize);
            if let Some(segment) = segments.last_mut() {
                segment.push((start, part));
            }
            start += count;
            room -= count;
        }
    }
    segments
}
