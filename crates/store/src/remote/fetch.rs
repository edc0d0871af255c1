//! `Fetcher`: brings absent blocks of an object, many requests at a time.
//!
//! It owns the object, its caches, and the requests in flight. Neighbouring blocks are asked for in
//! one request, also across a gap of [`MAX_GAP`] blocks.
//!
//! **Invariants**
//! - Each block is in one request at a time; other readers wait for that request.
//! - At most [`IN_FLIGHT`] requests of an object are in flight.
//! - A task that ends, also by a panic, reports all its blocks.
//!
//! **Locks**
//! - `blocks`: held for lookups and insertions, never across a request or a call of the host.
//!   `arrived` is notified when a request ends.

use super::blocks::{BLOCK, Blocks, Fault, Found};
use super::disk_cache::DiskCache;
use super::object::Object;
use papilio_locks::{Condvar, Mutex};
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

/// Requests of an object that are in flight at once.
const IN_FLIGHT: usize = 32;
/// Blocks of one request.
const MAX_RUN: u64 = 16;
/// Blocks that are fetched unasked to make one request of two.
const MAX_GAP: u64 = 1;

/// Counts of one device since it was opened.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) requests: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) disk_hits: AtomicU64,
}

/// Brings the blocks of an object.
#[derive(Debug)]
pub(super) struct Fetcher {
    pub(super) object: Object,
    runtime: &'static Runtime,
    disk: Option<DiskCache>,
    blocks: Mutex<Blocks<u64, Arc<[u8]>>>,
    arrived: Condvar,
    in_flight: Semaphore,
    pub(super) counters: Counters,
}

/// Returns the name of a block's file in the cache.
fn file_name(block: u64) -> String {
    format!("{block:x}")
}

/// Reports the blocks of a task that ends without having done so.
struct Reports {
    fetcher: Arc<Fetcher>,
    run: Range<u64>,
}

impl Drop for Reports {
    fn drop(&mut self) {
        let fault =
            Fault::new(&io::Error::other(format!("{}: the request was given up", self.fetcher.object.name)));
        self.fetcher.report(self.run.clone(), |_| Err(fault.clone()));
    }
}

impl Fetcher {
    pub(super) fn new(
        object: Object,
        runtime: &'static Runtime,
        disk: Option<DiskCache>,
        memory: u64,
    ) -> Self {
        Self {
            object,
            runtime,
            disk,
            blocks: Mutex::new(Blocks::new(memory, |bytes| bytes.len() as u64)),
            arrived: Condvar::new(),
            in_flight: Semaphore::new(IN_FLIGHT),
            counters: Counters::default(),
        }
    }

    pub(super) fn runtime(&self) -> &'static Runtime {
        self.runtime
    }

    /// Returns the blocks that have bytes of a range.
    pub(super) fn blocks_of(start: u64, length: u64) -> Range<u64> {
        if length == 0 { 0..0 } else { start / BLOCK..(start + length - 1) / BLOCK + 1 }
    }

    fn bytes_of(&self, block: u64) -> Range<u64> {
        block * BLOCK..((block + 1) * BLOCK).min(self.object.size)
    }

    /// Takes blocks whose bytes are known already: those of the first request.
    pub(super) fn insert(&self, start: &[u8]) {
        for (block, bytes) in (0..).zip(start.chunks(BLOCK as usize)) {
            let range = self.bytes_of(block);
            if bytes.len() as u64 == range.end - range.start {
                let mut blocks = self.blocks.lock();
                blocks.coming(block);
                blocks.arrived(block, Ok(bytes.into()));
            }
        }
    }

    /// Returns whether all blocks of a range are in memory.
    pub(super) fn has(&self, mut range: Range<u64>) -> bool {
        let mut blocks = self.blocks.lock();
        let now = Instant::now();
        range.all(|block| matches!(blocks.find(block, now), Found::Here(_)))
    }

    /// Starts to bring the absent ones of these blocks, which are in ascending order, and returns.
    pub(super) fn prefetch(self: &Arc<Self>, wanted: impl IntoIterator<Item = u64>) {
        let end = self.object.size.div_ceil(BLOCK);
        let mut blocks = self.blocks.lock();
        let absent: Vec<u64> =
            wanted.into_iter().filter(|block| *block < end && blocks.is_absent(*block)).collect();
        absent.iter().for_each(|block| blocks.coming(*block));
        drop(blocks);
        self.bring(absent);
    }

    /// Returns the blocks, which are in ascending order and each there once. Waits for those that
    /// are not in memory. A block that failed is an error of its own.
    pub(super) fn get(self: &Arc<Self>, wanted: &[u64]) -> HashMap<u64, Result<Arc<[u8]>, Fault>> {
        let began = Instant::now();
        let mut found = HashMap::with_capacity(wanted.len());
        let mut blocks = self.blocks.lock();
        loop {
            let absent = blocks.take(wanted, began, &mut found);
            if !absent.is_empty() {
                drop(blocks);
                self.bring(absent);
                blocks = self.blocks.lock();
            } else if found.len() == wanted.len() {
                return found;
            } else {
                self.arrived.wait(&mut blocks);
            }
        }
    }

    /// Reads blocks that are noted as coming from the disk, and starts requests for the others.
    fn bring(self: &Arc<Self>, mut absent: Vec<u64>) {
        if let Some(disk) = &self.disk {
            absent.retain(|block| {
                let range = self.bytes_of(*block);
                let Some(bytes) = disk.read(&file_name(*block), (range.end - range.start) as usize) else {
                    return true;
                };
                self.counters.disk_hits.fetch_add(1, Ordering::Relaxed);
                let bytes: Arc<[u8]> = bytes.into();
                self.report(*block..*block + 1, |_| Ok(Arc::clone(&bytes)));
                false
            });
        }
        let mut runs: Vec<Range<u64>> = Vec::new();
        let mut blocks = self.blocks.lock();
        for block in absent {
            match runs.last_mut() {
                Some(run)
                    if block - run.end <= MAX_GAP
                        && block - run.start < MAX_RUN
                        && (run.end..block).all(|between| blocks.is_absent(between)) =>
                {
                    (run.end..block).for_each(|between| blocks.coming(between));
                    run.end = block + 1;
                }
                _ => runs.push(block..block + 1),
            }
        }
        drop(blocks);
        for run in runs {
            let reports = Reports { fetcher: Arc::clone(self), run };
            self.runtime.spawn(fetch(reports));
        }
    }

    fn report(&self, run: Range<u64>, outcome: impl Fn(u64) -> Result<Arc<[u8]>, Fault>) {
        let mut blocks = self.blocks.lock();
        run.for_each(|block| blocks.arrived(block, outcome(block)));
        drop(blocks);
        self.arrived.notify_all();
    }
}

async fn fetch(mut reports: Reports) {
    let (fetcher, run) = (Arc::clone(&reports.fetcher), reports.run.clone());
    // Never closed.
    let Ok(_permit) = fetcher.in_flight.acquire().await else { return };
    let range = fetcher.bytes_of(run.start).start..fetcher.bytes_of(run.end - 1).end;
    fetcher.counters.requests.fetch_add(1, Ordering::Relaxed);
    let outcome = fetcher.object.read(range.clone()).await;
    // Reported below; a block that is evicted then may be on its way again soon.
    reports.run = 0..0;
    match outcome {
        Err(error) => {
            let fault = Fault::new(&error);
            fetcher.report(run, |_| Err(fault.clone()));
        }
        Ok(bytes) => {
            fetcher.counters.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            let part = |block| {
                let part = fetcher.bytes_of(block);
                &bytes[(part.start - range.start) as usize..(part.end - range.start) as usize]
            };
            // Before readers go on: a short program would end before its blocks are kept.
            if let Some(disk) = &fetcher.disk {
                run.clone().for_each(|block| disk.write(&file_name(block), part(block)));
            }
            fetcher.report(run, |block| Ok(part(block).into()));
        }
    }
}
