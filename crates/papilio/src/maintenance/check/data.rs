//! Whether data matches its checksums: every copy of it is read, by several threads.
//!
//! Owns [`DataCheck`]. The walk over the checksum tree queues runs of sectors, and the threads take
//! them in turn, so that the device reads ahead while others compute checksums. Little data is read
//! by the caller's thread, when the walk has ended.
//!
//! **Invariants**
//! - Memory is bounded by the threads and the queue.
//! - Findings are in the order of their addresses, however the threads ran.
//!
//! **Lock**: that of the queue's receiving end, while a thread takes a run.
//!
//! Kernel counterpart: `scrub_verify_one_sector` (`fs/btrfs/scrub.c`).

use super::copies::{threads, ways_to_read};
use super::csums::place;
use super::report::{FindingKind, Findings, Place};
use super::walker::Visit;
use crate::btree::Forest;
use crate::errors::Error;
use papilio_format::items::csum::CsumItem;
use papilio_format::{ItemType, LogicalAddress};
use papilio_locks::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

/// Largest read, in bytes.
const READ_SIZE: usize = 1 << 20;
/// The most runs in the queue.
const QUEUED: usize = 64;
/// The fewest bytes that pay for threads.
const WORTH_THREADS: u64 = READ_SIZE as u64;

/// Consecutive sectors with their checksums.
struct Run {
    start: u64,
    sums: Vec<u8>,
}

/// The queue of a check of data.
pub(super) struct DataCheck<'a> {
    forest: &'a Forest,
    queue: SyncSender<Run>,
    done: &'a AtomicU64,
    /// Runs from before the threads, and their bytes.
    early: (Vec<Run>, u64),
    /// Starts the threads; `None` once it was called.
    start: Option<&'a mut dyn FnMut()>,
}

/// Verifies the data whose checksum leaves `walk` passes to [`DataCheck::queue`]. Returns the bytes
/// read and the findings.
pub(super) fn verify_data(
    forest: &Forest,
    max_findings: usize,
    walk: impl FnOnce(&mut DataCheck<'_>),
) -> (u64, Findings) {
    let (queue, runs) = sync_channel(QUEUED);
    let done = &AtomicU64::new(0);
    thread::scope(|scope| {
        let mut workers = Vec::new();
        // Only the threads hold the receiving end: if all of them panicked, the queue ends too.
        let mut runs = Some(runs);
        let mut start = || {
            let runs = Arc::new(Mutex::new(runs.take().expect("the threads are started once")));
            workers.extend((0..threads()).map(|_| {
                let runs = Arc::clone(&runs);
                let next = move || runs.lock().recv().ok();
                scope.spawn(|| verify_runs(forest, std::iter::from_fn(next), done, max_findings))
            }));
        };
        let mut check = DataCheck { forest, queue, done, early: (Vec::new(), 0), start: Some(&mut start) };
        walk(&mut check);
        let DataCheck { early: (early, _), queue, .. } = check;
        // The threads end with the last run of the queue.
        drop(queue);
        let (mut read, findings) = verify_runs(forest, early.into_iter(), done, max_findings);
        let mut found = vec![findings];
        for worker in workers {
            let (bytes, findings) = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            read += bytes;
            found.push(findings);
        }
        (read, Findings::merged_by_address(max_findings, found))
    })
}

impl DataCheck<'_> {
    /// Queues the sectors of a checksum leaf. Returns the bytes that were verified so far.
    pub(super) fn queue(&mut self, leaf: &Visit<'_>) -> u64 {
        let geometry = self.forest.volume().geometry();
        let view = leaf.block.view();
        for slot in 0..view.len() {
            let key = view.key(slot);
            if key.item_type != ItemType::EXTENT_CSUM {
                continue;
            }
            let Ok(item) = CsumItem::parse(&key, view.item(slot), &geometry) else { continue };
            let sector = geometry.sector_size as usize;
            let sum_size = geometry.checksum_type.size();
            let mut start = item.start().0;
            let mut sums = item.as_bytes();
            while !sums.is_empty() {
                // An item may continue into the next chunk, which has its own copies.
                let chunks = self.forest.volume().chunk_map();
                let left =
                    chunks.find(LogicalAddress(start)).map_or(sector as u64, |chunk| chunk.end().0 - start);
                let most = (left / sector as u64).clamp(1, (READ_SIZE / sector) as u64) as usize;
                let (run, rest) = sums.split_at(sums.len().min(most * sum_size));
                sums = rest;
                let length = (run.len() / sum_size * sector) as u64;
                self.add(Run { start, sums: run.to_vec() }, length);
                start += length;
            }
        }
        self.done.load(Ordering::Relaxed)
    }

    fn add(&mut self, run: Run, length: u64) {
        let (early, bytes) = &mut self.early;
        early.push(run);
        *bytes += length;
        if *bytes < WORTH_THREADS {
            return;
        }
        if let Some(start) = self.start.take() {
            start();
        }
        for run in early.drain(..) {
            // It fails only after a thread panicked, which its join passes on.
            let _ = self.queue.send(run);
        }
    }
}

/// Verifies runs. Returns the bytes read and the findings.
fn verify_runs(
    forest: &Forest,
    runs: impl Iterator<Item = Run>,
    done: &AtomicU64,
    max_findings: usize,
) -> (u64, Findings) {
    let geometry = forest.volume().geometry();
    let (sector, sum_size) = (geometry.sector_size as usize, geometry.checksum_type.size());
    let (mut read, mut findings, mut buffer) = (0, Findings::new(max_findings), Vec::new());
    for Run { start, sums } in runs {
        buffer.resize(sums.len() / sum_size * sector, 0);
        read += verify_range(forest, start, &sums, &mut buffer, &mut findings);
        done.fetch_add(buffer.len() as u64, Ordering::Relaxed);
    }
    (read, findings)
}

/// Verifies one run of sectors in all ways of reading it (see [`ways_to_read`]).
fn verify_range(forest: &Forest, start: u64, sums: &[u8], buffer: &mut [u8], findings: &mut Findings) -> u64 {
    let geometry = forest.volume().geometry();
    let ways = match ways_to_read(forest, LogicalAddress(start)) {
        Ok(ways) => ways,
        Err(error) => {
            findings.add(FindingKind::Unmapped, place(start), format_args!("{error}"));
            return 0;
        }
    };
    let sectors = sums.len() / geometry.checksum_type.size();
    let mut bad = vec![0u8; sectors];
    let mut tried = 0u8;
    let mut read = 0;
    let mut faults: Vec<(usize, usize)> = Vec::new();
    for copy in 0..ways {
        match forest.volume().read_copy(LogicalAddress(start), buffer, copy) {
            Ok(()) => {}
            Err(Error::DeviceMissing { .. }) => continue,
            Err(error) => {
                findings.add(FindingKind::DataRead, place(start), format_args!("copy {copy}: {error}"));
                continue;
            }
        }
        tried += 1;
        read += buffer.len() as u64;
        let sectors = buffer.chunks_exact(geometry.sector_size as usize);
        let sums = sums.chunks_exact(geometry.checksum_type.size());
        for (index, (sector, sum)) in sectors.zip(sums).enumerate() {
            if !geometry.checksum_type.verify(sector, sum) {
                bad[index] = bad[index].saturating_add(1);
                faults.push((index, copy));
            }
        }
    }
    let mut reported = vec![false; bad.len()];
    for (index, copy) in faults {
        let address = LogicalAddress(start + index as u64 * u64::from(geometry.sector_size));
        let place = Place::extent(address.0).on(forest.volume().place_of(address, copy));
        if bad[index] < tried {
            findings.add(FindingKind::DataCopy, place, format_args!("copy {copy}: checksum mismatch"));
        } else if !std::mem::replace(&mut reported[index], true) {
            let message = format_args!("checksum mismatch (copies tried: {tried})");
            findings.add(FindingKind::DataChecksum, place, message);
        }
    }
    read
}
