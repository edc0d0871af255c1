//! `Core`: the parts of an open device, and the calls that read and write it.
//!
//! **Reads** look for a block in the groups that are not in the database yet, the newest first,
//! then for its place in the map, and bring it from there. A block that is overwritten or copied
//! meanwhile may be gone from its place; the reader then looks again. A sequence of reads is read
//! ahead.
//!
//! **Writes** go to the open group. A part of a block is written by reading the rest.
//!
//! **Invariants**
//! - A write is in memory when it ends, and durable after a flush, in the order of the writes: a
//!   crash leaves a prefix of them.
//! - A device opened for reading changes nothing in the store, except for its checkpoint.
//!
//! **Locks**: `parts`, shared by writes of whole blocks, exclusive for a part of one, held across
//! requests. Inside it, those of the groups, the map and the segments. `streams` and `manifest_at`,
//! held for one lookup each.

use super::clean::Cleaner;
use super::counted::{Counted, StoreRequests};
use super::extents::Content;
use super::groups::Groups;
use super::holder::Claim;
use super::layout::{BLOCK, REQUESTS, block_key, number_in};
use super::map::{BlockMap, Stretch};
use super::source::Source;
use super::units::{SegmentReader, UNIT, UnitKey};
use super::window::Place;
use crate::remote::readahead::Streams;
use papilio_device::{Access, PhysicalAddress, check_read, check_write, read_only};
use papilio_locks::Mutex;
use slatedb::WriteBatch;
use slatedb::bytes::Bytes;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::RwLock;

/// Units that are read ahead when a sequence of reads is found: 256 KiB.
pub(super) const FIRST_WINDOW: u64 = 8;
/// The most units that are read ahead: 16 MiB.
pub(super) const MAX_WINDOW: u64 = 512;
/// Bytes of blocks that a read brings at once.
const MOST_AT_ONCE: u64 = 8 << 20;
/// The longest time that a checkpoint of a device in use is behind. Flushes bring the database's
/// manifest up to date this often.
const MANIFEST_INTERVAL: Duration = Duration::from_secs(30);
/// Blocks that live at most, of a hundred, in a segment that a writer cleans unasked.
const SPARSE: u32 = 20;
/// Blocks that a writer copies unasked at a time: 32 MiB.
const COPIED_AT_ONCE: u64 = 8192;
/// How often a reader looks for a block that is gone from its place.
const ATTEMPTS: usize = 16;

/// The part of a device that writes.
pub(super) struct Writing {
    pub(super) groups: Arc<Groups>,
    /// The name of this writer.
    pub(super) claim: Claim,
    pub(super) cleaner: Cleaner,
    /// Requests of earlier writers.
    pub(super) earlier_requests: StoreRequests,
    /// When the manifest was last brought up to date.
    pub(super) manifest_at: Mutex<Instant>,
}

/// An open device.
pub(super) struct Core {
    pub(super) name: String,
    pub(super) size: u64,
    pub(super) runtime: &'static Runtime,
    pub(super) store: Arc<Counted>,
    pub(super) source: Arc<Source>,
    pub(super) map: Arc<BlockMap>,
    pub(super) segments: Arc<SegmentReader>,
    pub(super) streams: Mutex<Streams>,
    pub(super) parts: RwLock<()>,
    pub(super) writing: Option<Writing>,
}

/// Blocks whose place lacks them.
struct Lost {
    error: io::Error,
    /// Whether they may never have been written.
    may_be_hole: bool,
}

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Self {
        Self { error, may_be_hole: false }
    }
}

/// The blocks of a read, and the buffer that they go to.
struct Target<'a> {
    buffer: &'a mut [u8],
    /// Byte offset of the buffer on the device.
    offset: u64,
}

impl Target<'_> {
    /// Copies the bytes of blocks from `first` on, or zeros for `count` blocks.
    fn put(&mut self, first: u64, count: u64, bytes: Option<&[u8]>) {
        let start = first * BLOCK;
        let from = start.max(self.offset);
        let to = (start + count * BLOCK).min(self.offset + self.buffer.len() as u64);
        let buffer = &mut self.buffer[(from - self.offset) as usize..(to - self.offset) as usize];
        match bytes {
            Some(bytes) => buffer.copy_from_slice(&bytes[(from - start) as usize..(to - start) as usize]),
            None => buffer.fill(0),
        }
    }
}

impl Core {
    pub(super) fn access(&self) -> Access {
        if self.writing.is_some() { Access::ReadWrite } else { Access::ReadOnly }
    }

    pub(super) fn writing(&self) -> io::Result<&Writing> {
        self.writing.as_ref().ok_or_else(read_only)
    }

    /// Fills a buffer from an offset on.
    pub(super) async fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        check_read(self.size, PhysicalAddress(offset), buffer.len())?;
        let mut at = offset;
        for buffer in buffer.chunks_mut(MOST_AT_ONCE as usize) {
            let length = buffer.len() as u64;
            self.read_ahead(at, length);
            self.read_some(Target { buffer, offset: at }).await?;
            at += length;
        }
        Ok(())
    }

    async fn read_some(&self, mut target: Target<'_>) -> io::Result<()> {
        let end = target.offset + target.buffer.len() as u64;
        let blocks = target.offset / BLOCK..end.div_ceil(BLOCK);
        let mut before: Option<(Vec<Stretch>, Lost)> = None;
        for _ in 0..ATTEMPTS {
            let mut places = Vec::new();
            for gap in self.read_groups(blocks.clone(), &mut target) {
                places.extend(self.map.places(&gap).await?);
            }
            let is_final = match before {
                Some((old, lost)) if old == places => {
                    if !lost.may_be_hole {
                        return Err(lost.error);
                    }
                    true
                }
                _ => false,
            };
            match self.bring(&places, &mut target, is_final).await {
                Ok(()) => return Ok(()),
                Err(lost) => before = Some((places, lost)),
            }
        }
        let error = before.map(|(_, lost)| lost.error);
        Err(error.unwrap_or_else(|| io::Error::other(format!("{}: a block moves all the time", self.name))))
    }

    /// Copies that which is in memory only, and returns the rest.
    fn read_groups(&self, blocks: Range<u64>, target: &mut Target<'_>) -> Vec<Range<u64>> {
        let Some(writing) = &self.writing else { return vec![blocks] };
        writing.groups.read(blocks, |range, content| {
            let bytes = match &content {
                Content::Data(bytes) => Some(&bytes[..]),
                Content::Zeros => None,
            };
            target.put(range.start, range.end - range.start, bytes);
        })
    }

    /// Brings blocks from their places. With `zeros`, a block that the database lacks is zeros.
    async fn bring(&self, places: &[Stretch], target: &mut Target<'_>, zeros: bool) -> Result<(), Lost> {
        let mut keys = Vec::new();
        for (range, place) in places {
            if let Place::Segment(segment, index) = place {
                keys.extend(UnitKey::of(*segment, *index..index + (range.end - range.start) as u32));
            }
        }
        keys.sort_unstable();
        keys.dedup();
        let units = if keys.is_empty() { Default::default() } else { self.segments.get(&keys).await };
        for (range, place) in places {
            match place {
                Place::Hole => target.put(range.start, range.end - range.start, None),
                Place::Database => self.read_database(range, target, zeros).await?,
                Place::Segment(segment, first) => {
                    for (block, index) in range.clone().zip(*first..) {
                        let unit = units[&UnitKey { segment: *segment, unit: index / UNIT }].as_ref();
                        let unit = unit.map_err(crate::remote::blocks::Fault::to_error)?;
                        target.put(block, 1, Some(unit.block(index)?));
                    }
                }
            }
        }
        Ok(())
    }

    async fn read_database(
        &self,
        range: &Range<u64>,
        target: &mut Target<'_>,
        zeros: bool,
    ) -> Result<(), Lost> {
        let lost = |block: u64| Lost {
            error: io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{}: block {block} is missing from the database", self.name),
            ),
            may_be_hole: self.map.has_earlier_blocks(),
        };
        let valid = |block: u64, bytes: Bytes| {
            if bytes.len() as u64 == BLOCK {
                return Ok(bytes);
            }
            let reason = format!("{}: block {block} has {} bytes", self.name, bytes.len());
            Err(io::Error::new(io::ErrorKind::InvalidData, reason))
        };
        if range.end - range.start == 1 {
            match self.source.get(&block_key(range.start)).await? {
                Some(bytes) => target.put(range.start, 1, Some(&valid(range.start, bytes)?)),
                None if zeros => target.put(range.start, 1, None),
                None => return Err(lost(range.start)),
            }
            return Ok(());
        }
        let mut next = range.start;
        let mut scan =
            self.source.scan(block_key(range.start).to_vec()..block_key(range.end).to_vec()).await?;
        while let Some((key, bytes)) = scan.next().await? {
            let Some(block) = number_in(b'b', &key).filter(|block| (next..range.end).contains(block)) else {
                let reason = format!("{}: a block of the database is not valid", self.name);
                return Err(io::Error::new(io::ErrorKind::InvalidData, reason).into());
            };
            if block > next {
                if !zeros {
                    return Err(lost(next));
                }
                target.put(next, block - next, None);
            }
            target.put(block, 1, Some(&valid(block, bytes)?));
            next = block + 1;
        }
        if next < range.end {
            if !zeros {
                return Err(lost(next));
            }
            target.put(next, range.end - next, None);
        }
        Ok(())
    }

    /// Starts to bring the blocks that follow a sequence of reads.
    fn read_ahead(&self, offset: u64, length: u64) {
        let unit = u64::from(UNIT) * BLOCK;
        let units = offset / unit..(offset + length).div_ceil(unit);
        if !units.is_empty() {
            let ahead = self.streams.lock().read(units.start, units.end);
            self.prefetch(ahead.start * unit..(ahead.end * unit).min(self.size));
        }
    }

    /// Starts to bring the blocks of segments in a range of bytes.
    pub(super) fn prefetch(&self, bytes: Range<u64>) {
        let blocks = bytes.start / BLOCK..bytes.end.div_ceil(BLOCK);
        if blocks.is_empty() {
            return;
        }
        let (map, segments) = (Arc::clone(&self.map), Arc::clone(&self.segments));
        self.runtime.spawn(async move {
            // The read that follows reports an error.
            let Ok(places) = map.places(&blocks).await else { return };
            let keys = places.into_iter().flat_map(|(range, place)| {
                let run = match place {
                    Place::Segment(segment, index) => Some((segment, index)),
                    _ => None,
                };
                let keys = move |(segment, index)| {
                    UnitKey::of(segment, index..index + (range.end - range.start) as u32)
                };
                run.into_iter().flat_map(keys)
            });
            segments.prefetch(keys);
        });
    }

    /// Adds the names of both writers to the error of one that was fenced.
    async fn explained<T>(&self, outcome: io::Result<T>) -> io::Result<T> {
        match (outcome, &self.writing) {
            (Err(error), Some(writing)) if error.kind() == io::ErrorKind::StaleNetworkFileHandle => {
                Err(writing.claim.explain(&error).await)
            }
            (outcome, _) => outcome,
        }
    }

    /// Writes bytes at an offset.
    pub(super) async fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let written = self.write_groups(bytes, offset).await;
        self.explained(written).await
    }

    async fn write_groups(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        check_write(self.access(), self.size, PhysicalAddress(offset), bytes.len() as u64)?;
        let groups = &self.writing()?.groups;
        let end = offset + bytes.len() as u64;
        if bytes.is_empty() {
            return Ok(());
        }
        let blocks = offset / BLOCK..end.div_ceil(BLOCK);
        if offset.is_multiple_of(BLOCK) && end.is_multiple_of(BLOCK) {
            let _shared = self.parts.read().await;
            return groups.write(blocks, Content::Data(Bytes::copy_from_slice(bytes))).await;
        }
        let _alone = self.parts.write().await;
        let start = blocks.start * BLOCK;
        let mut whole = vec![0; ((blocks.end - blocks.start) * BLOCK) as usize];
        for edge in [blocks.start, blocks.end - 1] {
            let at = (edge * BLOCK - start) as usize;
            let buffer = &mut whole[at..at + BLOCK as usize];
            self.read_some(Target { buffer, offset: edge * BLOCK }).await?;
        }
        whole[(offset - start) as usize..(end - start) as usize].copy_from_slice(bytes);
        groups.write(blocks, Content::Data(Bytes::from(whole))).await
    }

    /// Makes the whole blocks of a range read as zeros. Returns the range of bytes that they cover.
    pub(super) async fn discard(&self, offset: u64, length: u64) -> io::Result<Range<u64>> {
        let groups = &self.writing()?.groups;
        let blocks = offset.div_ceil(BLOCK)..(offset + length) / BLOCK;
        if blocks.is_empty() {
            return Ok(offset..offset);
        }
        let _shared = self.parts.read().await;
        let written = groups.write(blocks.clone(), Content::Zeros).await;
        self.explained(written).await?;
        Ok(blocks.start * BLOCK..blocks.end * BLOCK)
    }

    /// Makes all earlier writes durable.
    pub(super) async fn flush(&self) -> io::Result<()> {
        let flushed = self.flush_groups().await;
        self.explained(flushed).await
    }

    async fn flush_groups(&self) -> io::Result<()> {
        let writing = self.writing()?;
        writing.groups.settle().await?;
        self.source.flush().await?;
        let is_due = {
            let mut at = writing.manifest_at.lock();
            let is_due = at.elapsed() >= MANIFEST_INTERVAL;
            if is_due {
                *at = Instant::now();
            }
            is_due
        };
        if is_due { self.update_manifest().await } else { Ok(()) }
    }

    /// Brings the manifest up to date, so that a checkpoint made now has all that is durable.
    async fn update_manifest(&self) -> io::Result<()> {
        let segments = self.store.requests().segments;
        if self.writing()?.groups.is_used() || segments.puts + segments.deletes > 0 {
            let mut batch = WriteBatch::new();
            batch.put(REQUESTS, super::counted::to_bytes(&self.all_requests()?));
            self.source.write(batch).await?;
        }
        self.source.update_manifest().await
    }

    /// Returns the requests of all writers until now.
    fn all_requests(&self) -> io::Result<StoreRequests> {
        let earlier = self.writing()?.earlier_requests;
        Ok(super::counted::sum(&earlier, &self.store.requests()))
    }

    /// Seals a group that has been open for long. A writer calls it all the time.
    pub(super) fn seal_old(&self) {
        if let Some(writing) = &self.writing {
            writing.groups.seal_old();
        }
    }

    /// Removes dead segments and copies what lives in those that are mostly dead.
    pub(super) async fn clean_some(&self) -> io::Result<()> {
        let cleaner = &self.writing()?.cleaner;
        // A damaged segment does not keep the others.
        let copied = cleaner.copy_live(SPARSE, COPIED_AT_ONCE).await;
        cleaner.delete_dead(false).await?;
        copied.map(drop)
    }

    pub(super) async fn close(&self) -> io::Result<()> {
        let settled = match &self.writing {
            Some(writing) => {
                let settle = async {
                    writing.groups.settle().await?;
                    self.update_manifest().await?;
                    writing.cleaner.delete_dead(true).await.map(drop)
                };
                settle.await
            }
            None => Ok(()),
        };
        // The database is closed also if the rest failed.
        let closed = self.source.close().await;
        let closed = settled.and(closed);
        if let Some(writing) = &self.writing {
            writing.claim.end().await;
        }
        self.explained(closed).await
    }
}
