//! `SegmentReader`: brings blocks of segments, and keeps them in memory and on disk.
//!
//! It owns the caches of segments and the requests in flight. The unit of both is [`UNIT`] blocks
//! of one segment. Neighbouring units are asked for in one request of at most [`MAX_RUN`] units.
//!
//! **Invariants**
//! - A block is returned only if its checksum agreed. A block whose checksum does not agree, or
//!   that its object lacks, is an error which names the object. Other blocks stay readable.
//! - Units with such a block are not kept on disk. A file of the cache on disk is used only if its
//!   own checksum agrees.
//! - Each unit is in one request at a time; other readers wait for that request.
//! - A task that ends, also by a panic, reports all its units.
//!
//! **Locks**: `units`, held for lookups and insertions, never across a request or a call of the
//! host.

use super::layout::BLOCK;
use super::segment::{STRIDE, SegmentRef, check, object_name, ranges_in};
use crate::remote::blocks::{Blocks, Fault};
use crate::remote::disk_cache::DiskCache;
use crate::remote::object::describe;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore};
use papilio_locks::Mutex;
use slatedb::bytes::{Bytes, BytesMut};
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use tokio::runtime::Runtime;
use tokio::sync::{Notify, Semaphore};

/// Blocks of a unit: 32 KiB. A read of one block fetches so much.
pub(super) const UNIT: u32 = 8;
/// Units of one request: 4 MiB.
const MAX_RUN: u32 = 128;
/// Units that are fetched unasked to make one request of two.
const MAX_GAP: u32 = 1;
/// Requests for segments that are in flight at once.
const IN_FLIGHT: usize = 32;

/// Segments that are kept on disk at once after they were written. Others are not kept.
const KEEPING: usize = 2;

/// A unit of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct UnitKey {
    pub(super) segment: SegmentRef,
    pub(super) unit: u32,
}

impl UnitKey {
    /// Returns the units that have blocks of a range of a segment.
    pub(super) fn of(segment: SegmentRef, blocks: Range<u32>) -> impl Iterator<Item = Self> {
        (blocks.start / UNIT..blocks.end.div_ceil(UNIT)).map(move |unit| Self { segment, unit })
    }

    /// Returns the indices of its blocks.
    fn blocks(&self) -> Range<u32> {
        self.unit * UNIT..((self.unit + 1) * UNIT).min(u32::from(self.segment.blocks))
    }

    fn name(&self) -> String {
        format!("{}-{:x}", self.segment.id, self.unit)
    }
}

/// The blocks of a unit.
#[derive(Debug)]
pub(super) struct Unit {
    bytes: Bytes,
    /// The blocks that could not be read, by their place in the unit.
    faults: Vec<(u32, Fault)>,
}

impl Unit {
    /// Returns the block at an index of the segment.
    pub(super) fn block(&self, index: u32) -> io::Result<&[u8]> {
        let at = index % UNIT;
        match self.faults.iter().find(|fault| fault.0 == at) {
            Some((_, fault)) => Err(fault.to_error()),
            None => Ok(&self.bytes[(u64::from(at) * BLOCK) as usize..][..BLOCK as usize]),
        }
    }
}

/// Brings blocks of segments.
pub(super) struct SegmentReader {
    name: String,
    store: Arc<dyn ObjectStore>,
    /// The folders of segments, by origin.
    folders: Vec<Path>,
    runtime: &'static Runtime,
    disk: Option<DiskCache>,
    units: Mutex<Blocks<UnitKey, Arc<Unit>>>,
    arrived: Notify,
    in_flight: Semaphore,
    /// Segments that are being kept on disk after they were written.
    keeping: Arc<Semaphore>,
}

/// UnitReports the units of a task that ends without having done so.
struct UnitReports {
    reader: Arc<SegmentReader>,
    segment: SegmentRef,
    units: Range<u32>,
}

impl Drop for UnitReports {
    fn drop(&mut self) {
        let path = self.reader.path(self.segment);
        let reason = match &path {
            Ok(path) => format!("{}: {path}: the request was given up", self.reader.name),
            Err(error) => error.to_string(),
        };
        let fault = Fault::new(&io::Error::other(reason));
        self.reader.report(self.segment, self.units.clone().map(|unit| (unit, Err(fault.clone()))));
    }
}

impl SegmentReader {
    pub(super) fn new(
        name: String,
        store: Arc<dyn ObjectStore>,
        folders: Vec<Path>,
        runtime: &'static Runtime,
        disk: Option<DiskCache>,
        memory: u64,
    ) -> Self {
        Self {
            name,
            store,
            folders,
            runtime,
            disk,
            units: Mutex::new(Blocks::new(memory, |unit| unit.bytes.len() as u64)),
            arrived: Notify::new(),
            in_flight: Semaphore::new(IN_FLIGHT),
            keeping: Arc::new(Semaphore::new(KEEPING)),
        }
    }

    /// Returns the path of a segment's object.
    pub(super) fn path(&self, segment: SegmentRef) -> io::Result<Path> {
        let folder = self.folders.get(usize::from(segment.origin)).ok_or_else(|| {
            let reason = format!("{}: segment {} is of an unknown clone", self.name, segment.id);
            io::Error::new(io::ErrorKind::InvalidData, reason)
        })?;
        Ok(folder.clone().join(object_name(segment.id)))
    }

    /// Starts to bring the absent ones of these units, and returns.
    pub(super) fn prefetch(self: &Arc<Self>, wanted: impl IntoIterator<Item = UnitKey>) {
        let absent: Vec<_> = {
            let mut units = self.units.lock();
            wanted.into_iter().filter(|key| units.want(*key)).collect()
        };
        self.bring(absent);
    }

    /// Returns units. Waits for those that are not in memory. A unit that failed is an error of its
    /// own.
    pub(super) async fn get(
        self: &Arc<Self>,
        wanted: &[UnitKey],
    ) -> HashMap<UnitKey, Result<Arc<Unit>, Fault>> {
        let began = Instant::now();
        let mut found = HashMap::with_capacity(wanted.len());
        loop {
            let arrived = self.arrived.notified();
            let absent = self.units.lock().take(wanted, began, &mut found);
            if !absent.is_empty() {
                self.bring(absent);
            } else if found.len() == wanted.len() {
                return found;
            }
            arrived.await;
        }
    }

    /// Starts requests for units that are noted as coming.
    fn bring(self: &Arc<Self>, mut absent: Vec<UnitKey>) {
        absent.sort_unstable();
        let mut runs: Vec<(SegmentRef, Range<u32>)> = Vec::new();
        {
            let mut units = self.units.lock();
            for UnitKey { segment, unit } in absent {
                match runs.last_mut() {
                    Some((last, run))
                        if *last == segment
                            && unit - run.end <= MAX_GAP
                            && unit - run.start < MAX_RUN
                            && (run.end..unit).all(|unit| units.want(UnitKey { segment, unit })) =>
                    {
                        run.end = unit + 1;
                    }
                    _ => runs.push((segment, unit..unit + 1)),
                }
            }
        }
        for (segment, units) in runs {
            let reports = UnitReports { reader: Arc::clone(self), segment, units };
            self.runtime.spawn(fetch(reports));
        }
    }

    fn report(
        &self,
        segment: SegmentRef,
        outcomes: impl IntoIterator<Item = (u32, Result<Arc<Unit>, Fault>)>,
    ) {
        {
            let mut units = self.units.lock();
            for (unit, outcome) in outcomes {
                units.arrived(UnitKey { segment, unit }, outcome);
            }
        }
        self.arrived.notify_waiters();
    }

    /// Returns the units of a range that are on disk, from the first on.
    async fn on_disk(self: &Arc<Self>, segment: SegmentRef, units: Range<u32>) -> Vec<Arc<Unit>> {
        if self.disk.is_none() {
            return Vec::new();
        }
        let reader = Arc::clone(self);
        let read = move || {
            let disk = reader.disk.as_ref()?;
            let read_one = |unit| {
                let key = UnitKey { segment, unit };
                let bytes = disk.read(&key.name(), key.blocks().len() * BLOCK as usize)?;
                Some(Arc::new(Unit { bytes: bytes.into(), faults: Vec::new() }))
            };
            Some(units.map_while(read_one).collect())
        };
        self.runtime.spawn_blocking(read).await.ok().flatten().unwrap_or_default()
    }

    /// Reads the stored bytes of a range of blocks: fewer, if the object is shorter.
    async fn request(&self, segment: SegmentRef, blocks: Range<u32>) -> io::Result<Bytes> {
        let path = self.path(segment)?;
        let range = u64::from(blocks.start) * STRIDE..u64::from(blocks.end) * STRIDE;
        let get = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
        let answer = self.store.get_opts(&path, get).await.map_err(|error| self.failed(&path, &error))?;
        answer.bytes().await.map_err(|error| self.failed(&path, &error))
    }

    /// Reads units of an encrypted object one by one, and damaged ones block by block: a chunk that
    /// is not authentic fails the request that has it.
    async fn request_apart(&self, segment: SegmentRef, units: Range<u32>) -> Vec<(u32, Arc<Unit>)> {
        let mut found = Vec::with_capacity(units.len());
        for unit in units {
            let key = UnitKey { segment, unit };
            let content = match self.request(segment, key.blocks()).await {
                Ok(stored) => self.decode(key, &stored),
                Err(_) => self.blocks_apart(key).await,
            };
            found.push((unit, Arc::new(content)));
        }
        found
    }

    async fn blocks_apart(&self, key: UnitKey) -> Unit {
        let mut bytes = Vec::with_capacity(UNIT as usize * BLOCK as usize);
        let mut faults = Vec::new();
        for index in key.blocks() {
            let stored = self.request(key.segment, index..index + 1).await;
            let block = stored.and_then(|stored| {
                let block = check(key.segment.id, u64::from(index), &stored).map(<[u8]>::to_vec);
                block.ok_or_else(|| self.not_valid(key.segment, index, "its checksum does not agree"))
            });
            match block {
                Ok(block) => bytes.extend_from_slice(&block),
                Err(error) => {
                    faults.push((index % UNIT, Fault::new(&error)));
                    bytes.resize(bytes.len() + BLOCK as usize, 0);
                }
            }
        }
        Unit { bytes: bytes.into(), faults }
    }

    /// Returns the error of a block that is not what was written.
    fn not_valid(&self, segment: SegmentRef, index: u32, found: &str) -> io::Error {
        let path = self.path(segment).map(|path| path.to_string()).unwrap_or_default();
        let reason = format!("{}: {path}: block {index}: {found}", self.name);
        io::Error::new(io::ErrorKind::InvalidData, reason)
    }

    /// Returns the ranges of the device that a segment was written for.
    pub(super) async fn ranges(&self, segment: SegmentRef) -> io::Result<Vec<Range<u64>>> {
        let path = self.path(segment)?;
        let range = Some(GetRange::Offset(u64::from(segment.blocks) * STRIDE));
        let get = GetOptions { range, ..GetOptions::default() };
        let answer = self.store.get_opts(&path, get).await.map_err(|error| self.failed(&path, &error))?;
        let footer = answer.bytes().await.map_err(|error| self.failed(&path, &error))?;
        ranges_in(segment.id, &footer).ok_or_else(|| {
            let reason = format!("{}: {path}: the end of the segment is not valid", self.name);
            io::Error::new(io::ErrorKind::InvalidData, reason)
        })
    }

    /// Turns an error of a request for an object into one that names it.
    pub(super) fn failed(&self, path: &Path, error: &object_store::Error) -> io::Error {
        let scheme = self.name.trim_start_matches(super::url::PREFIX).split("://").next().unwrap_or_default();
        let (kind, reason) = describe(error, scheme);
        io::Error::new(kind, format!("{}: {path}: {reason}", self.name))
    }

    /// Takes the stored bytes of a unit apart.
    fn decode(&self, key: UnitKey, stored: &[u8]) -> Unit {
        let mut bytes = Vec::with_capacity(UNIT as usize * BLOCK as usize);
        let mut faults = Vec::new();
        for index in key.blocks() {
            let start = (bytes.len() as u64 / BLOCK * STRIDE) as usize;
            let stored = stored.get(start..).unwrap_or_default();
            let stored = stored.get(..STRIDE as usize).unwrap_or_default();
            match check(key.segment.id, u64::from(index), stored) {
                Some(block) => bytes.extend_from_slice(block),
                None => {
                    let found = match stored {
                        [] => "the object ends before it",
                        _ => "its checksum does not agree",
                    };
                    let error = self.not_valid(key.segment, index, found);
                    faults.push((index % UNIT, Fault::new(&error)));
                    bytes.resize(bytes.len() + BLOCK as usize, 0);
                }
            }
        }
        Unit { bytes: bytes.into(), faults }
    }

    /// Starts to keep the blocks of a segment that was written on disk, if there is a cache and it
    /// keeps up.
    pub(super) fn keep_soon(self: &Arc<Self>, segment: SegmentRef, pieces: Vec<(u64, Bytes)>) {
        if self.disk.is_none() {
            return;
        }
        let Ok(permit) = Arc::clone(&self.keeping).try_acquire_owned() else { return };
        let reader = Arc::clone(self);
        self.runtime.spawn(async move {
            reader.keep_pieces(segment, &pieces).await;
            drop(permit);
        });
    }

    async fn keep_pieces(self: &Arc<Self>, segment: SegmentRef, pieces: &[(u64, Bytes)]) {
        let mut units = Vec::new();
        let mut bytes = BytesMut::new();
        for (_, piece) in pieces {
            bytes.extend_from_slice(piece);
            while bytes.len() as u64 >= u64::from(UNIT) * BLOCK {
                units.push(bytes.split_to((u64::from(UNIT) * BLOCK) as usize).freeze());
            }
        }
        units.extend((!bytes.is_empty()).then(|| bytes.freeze()));
        let unit = |bytes| Arc::new(Unit { bytes, faults: Vec::new() });
        self.keep(segment, (0..).zip(units.into_iter().map(unit)).collect()).await;
    }

    /// Keeps units on disk, if there is a cache.
    async fn keep(self: &Arc<Self>, segment: SegmentRef, units: Vec<(u32, Arc<Unit>)>) {
        if self.disk.is_none() {
            return;
        }
        let reader = Arc::clone(self);
        let write = move || {
            let Some(disk) = &reader.disk else { return };
            for (unit, content) in units.iter().filter(|(_, content)| content.faults.is_empty()) {
                disk.write(&UnitKey { segment, unit: *unit }.name(), &content.bytes);
            }
        };
        // A cache that cannot be written is none.
        let _ = self.runtime.spawn_blocking(write).await;
    }
}

async fn fetch(mut reports: UnitReports) {
    let (reader, segment) = (Arc::clone(&reports.reader), reports.segment);
    // Never closed.
    let Ok(_permit) = reader.in_flight.acquire().await else { return };
    let kept = reader.on_disk(segment, reports.units.clone()).await;
    let first = reports.units.start;
    reports.units.start += kept.len() as u32;
    reader.report(segment, (first..).zip(kept.into_iter().map(Ok)));
    let units = reports.units.clone();
    if units.is_empty() {
        return;
    }
    let key = |unit| UnitKey { segment, unit };
    let blocks = key(units.start).blocks().start..key(units.end - 1).blocks().end;
    let outcome = reader.request(segment, blocks.clone()).await;
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::InvalidData && blocks.len() > 1 => {
            let found = reader.request_apart(segment, units).await;
            reports.units = 0..0;
            reader.report(segment, found.into_iter().map(|(unit, content)| (unit, Ok(content))));
        }
        Err(error) => {
            let fault = Fault::new(&error);
            // A unit that is evicted soon may be on its way again: it is reported once.
            reports.units = 0..0;
            reader.report(segment, units.map(|unit| (unit, Err(fault.clone()))));
        }
        Ok(stored) => {
            let length = (u64::from(UNIT) * STRIDE) as usize;
            let decode = |unit: u32| {
                let start = (unit - units.start) as usize * length;
                (unit, Arc::new(reader.decode(key(unit), stored.get(start..).unwrap_or_default())))
            };
            let found: Vec<_> = units.clone().map(decode).collect();
            // Before readers go on: a short program would end before its units are kept.
            reader.keep(segment, found.clone()).await;
            reports.units = 0..0;
            reader.report(segment, found.into_iter().map(|(unit, content)| (unit, Ok(content))));
        }
    }
}
