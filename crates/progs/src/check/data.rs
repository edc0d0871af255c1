//! Whether data matches its checksums, and decodes: every copy of it is read, by several threads.
//!
//! Owns [`DataCheck`]. The walk over the checksum tree queues runs of sectors, and the threads take
//! them in turn, so that the device reads ahead while others compute checksums. Little data is read
//! by the caller's thread, when the walk has ended.
//!
//! Compressed extents are decoded from the bytes whose checksums matched. A run ends between two of
//! them where it can. One that checksum items split is read once more by itself.
//!
//! **Invariants**
//! - Memory is bounded by the threads and the queue.
//! - Findings are in the order of their addresses, however the threads ran.
//!
//! **Lock**: that of the queue's receiving end, while a thread takes a run.
//!
//! Kernel counterpart: `scrub_verify_one_sector` (`fs/btrfs/scrub.c`).

use super::compressed::CompressedExtent;
use super::copies::{threads, ways_to_read};
use super::csums::place;
use super::report::{FindingKind, Findings, Place};
use super::walker::Visit;
use papilio_engine::btree::{Forest, Tree};
use papilio_engine::data::checksum::{DataChecksums, SectorFault};
use papilio_engine::errors::Error;
use papilio_engine::volume::Volume;
use papilio_format::items::csum::CsumItem;
use papilio_format::{ItemType, LogicalAddress};
use papilio_locks::Mutex;
use std::ops::Range;
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

/// The data to verify.
#[derive(Clone, Copy)]
pub(super) struct DataTask<'a> {
    pub(super) forest: &'a Forest,
    /// The checksum tree.
    pub(super) checksums: Option<&'a Tree>,
    /// By address, each once.
    pub(super) compressed: &'a [CompressedExtent],
}

/// A part of the work.
enum Work {
    Run(SectorRun),
    /// A compressed extent by its index, which is in no run.
    Extent(usize),
}

/// Consecutive sectors with their checksums.
struct SectorRun {
    start: u64,
    sums: Vec<u8>,
    /// The compressed extents that begin in it, by their indexes.
    extents: Range<usize>,
}

/// The results of a check of data.
pub(super) struct Verified {
    /// The bytes that were read, each copy counted.
    pub(super) read: u64,
    /// The compressed extents that were decoded.
    pub(super) decoded: u64,
    pub(super) findings: Findings,
}

impl Verified {
    fn new(max_findings: usize) -> Self {
        Self { read: 0, decoded: 0, findings: Findings::new(max_findings) }
    }
}

/// The queue of a check of data.
pub(super) struct DataCheck<'a> {
    task: DataTask<'a>,
    queue: SyncSender<Work>,
    done: &'a AtomicU64,
    /// The first compressed extent that is in no run and not queued.
    next: usize,
    /// Work from before the threads, and its bytes.
    early: (Vec<Work>, u64),
    /// Starts the threads; `None` once it was called.
    start: Option<&'a mut dyn FnMut()>,
}

/// Verifies the data whose checksum leaves `walk` passes to [`DataCheck::queue`], and decodes the
/// compressed extents.
pub(super) fn verify_data(
    task: &DataTask<'_>,
    max_findings: usize,
    walk: impl FnOnce(&mut DataCheck<'_>),
) -> Verified {
    let (queue, works) = sync_channel(QUEUED);
    let done = &AtomicU64::new(0);
    thread::scope(|scope| {
        let mut workers = Vec::new();
        // Only the threads hold the receiving end: if all of them panicked, the queue ends too.
        let mut works = Some(works);
        let mut start = || {
            let works = Arc::new(Mutex::new(works.take().expect("the threads are started once")));
            workers.extend((0..threads()).map(|_| {
                let works = Arc::clone(&works);
                let next = move || works.lock().recv().ok();
                scope.spawn(|| do_works(task, std::iter::from_fn(next), done, max_findings))
            }));
        };
        let (early, start) = ((Vec::new(), 0), Some(&mut start as &mut dyn FnMut()));
        let mut check = DataCheck { task: *task, queue, done, next: 0, early, start };
        walk(&mut check);
        check.queue_extents(task.compressed.len());
        let DataCheck { early: (early, _), queue, .. } = check;
        // The threads end with the last part of the queue.
        drop(queue);
        let mut all = do_works(task, early.into_iter(), done, max_findings);
        let mut found = vec![std::mem::replace(&mut all.findings, Findings::new(max_findings))];
        for worker in workers {
            let verified = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            all.read += verified.read;
            all.decoded += verified.decoded;
            found.push(verified.findings);
        }
        Verified { findings: Findings::merged_by_address(max_findings, found), ..all }
    })
}

impl DataCheck<'_> {
    /// Queues the sectors of a checksum leaf. Returns the bytes that were verified so far.
    pub(super) fn queue(&mut self, leaf: &Visit<'_>) -> u64 {
        let geometry = self.task.forest.volume().geometry();
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
                let chunks = self.task.forest.volume().chunk_map();
                let left =
                    chunks.find(LogicalAddress(start)).map_or(sector as u64, |chunk| chunk.end().0 - start);
                let most = (left / sector as u64).clamp(1, (READ_SIZE / sector) as u64) as usize;
                let count = self.between_extents(start, most, sums.len() / sum_size, sector as u64);
                let (run, rest) = sums.split_at(count * sum_size);
                sums = rest;
                let length = (count * sector) as u64;
                self.add_run(start, run, length);
                start += length;
            }
        }
        self.done.load(Ordering::Relaxed)
    }

    /// Returns how many sectors from `start` on are a run: at most `most` of `all`, and fewer where
    /// the run would end inside a compressed extent.
    fn between_extents(&self, start: u64, most: usize, all: usize, sector: u64) -> usize {
        if all <= most {
            return all;
        }
        let end = start + most as u64 * sector;
        let after = self.task.compressed.partition_point(|extent| extent.start < end);
        match after.checked_sub(1).map(|last| self.task.compressed[last]) {
            Some(last) if last.end() > end && last.start > start => ((last.start - start) / sector) as usize,
            _ => most,
        }
        .max(1)
    }

    /// Queues a run, and the compressed extents before and in it that are not in it as a whole.
    fn add_run(&mut self, start: u64, sums: &[u8], length: u64) {
        let index_of = |address| self.task.compressed.partition_point(|extent| extent.start < address);
        let (first, last) = (index_of(start), index_of(start + length));
        self.queue_extents(first);
        let extents = self.next.min(last)..last;
        let cut = extents.clone().filter(|index| self.task.compressed[*index].end() > start + length);
        let cut: Vec<usize> = cut.collect();
        self.next = self.next.max(last);
        self.add(Work::Run(SectorRun { start, sums: sums.to_vec(), extents }), length);
        cut.into_iter().for_each(|index| self.add(Work::Extent(index), 0));
    }

    /// Queues the compressed extents before an index that no run has.
    fn queue_extents(&mut self, end: usize) {
        while self.next < end {
            let length = self.task.compressed[self.next].length().unwrap_or(0) as u64;
            self.add(Work::Extent(self.next), length);
            self.next += 1;
        }
    }

    fn add(&mut self, work: Work, length: u64) {
        let (early, bytes) = &mut self.early;
        early.push(work);
        *bytes += length;
        if *bytes < WORTH_THREADS {
            return;
        }
        if let Some(start) = self.start.take() {
            start();
        }
        for work in early.drain(..) {
            // It fails only after a thread panicked, which its join passes on.
            let _ = self.queue.send(work);
        }
    }
}

/// Does parts of the work.
fn do_works(
    task: &DataTask<'_>,
    works: impl Iterator<Item = Work>,
    done: &AtomicU64,
    max_findings: usize,
) -> Verified {
    let geometry = task.forest.volume().geometry();
    let (sector, sum_size) = (geometry.sector_size as usize, geometry.checksum_type.size());
    let (mut verified, mut buffer) = (Verified::new(max_findings), Vec::new());
    for work in works {
        match work {
            Work::Run(run) => {
                buffer.resize(run.sums.len() / sum_size * sector, 0);
                verify_range(task, &run, &mut buffer, &mut verified);
                done.fetch_add(buffer.len() as u64, Ordering::Relaxed);
            }
            Work::Extent(index) => decode_alone(task, &task.compressed[index], &mut buffer, &mut verified),
        }
    }
    verified
}

/// Reads and decodes a compressed extent that is in no run as a whole. Faults of its checksums are
/// found by its runs.
fn decode_alone(
    task: &DataTask<'_>,
    extent: &CompressedExtent,
    buffer: &mut Vec<u8>,
    verified: &mut Verified,
) {
    let volume = task.forest.volume();
    let (geometry, start) = (volume.geometry(), LogicalAddress(extent.start));
    let Some(length) = extent.length() else { return extent.refuse(&mut verified.findings) };
    // An extent outside all chunks is a finding about its reference.
    let Ok(ways) = ways_to_read(task.forest, start) else { return };
    buffer.resize(length, 0);
    for copy in 0..ways {
        if volume.read_copy(start, buffer, copy).is_err() {
            continue;
        }
        let lookup = task.checksums.map(|tree| DataChecksums::new(tree, geometry).first_fault(start, buffer));
        match lookup {
            None | Some(Ok(None | Some((_, SectorFault::Missing)))) => {}
            Some(Ok(Some((_, SectorFault::Mismatch))) | Err(_)) => continue,
        }
        verified.decoded += 1;
        return extent.decode(buffer, &geometry, &mut verified.findings);
    }
}

/// Verifies one run of sectors in all ways of reading it (see [`ways_to_read`]), and decodes its
/// compressed extents. Around a sector that cannot be read, all others are verified.
fn verify_range(task: &DataTask<'_>, run: &SectorRun, buffer: &mut [u8], verified: &mut Verified) {
    let (forest, start) = (task.forest, run.start);
    let Verified { read, decoded, findings } = verified;
    let geometry = forest.volume().geometry();
    let ways = match ways_to_read(forest, LogicalAddress(start)) {
        Ok(ways) => ways,
        Err(error) => {
            findings.add(FindingKind::Unmapped, place(start), format_args!("{error}"));
            return;
        }
    };
    let size = geometry.sector_size as usize;
    let end = start + buffer.len() as u64;
    let extents = task.compressed[run.extents.clone()].iter();
    let mut undecoded: Vec<_> = extents.filter(|extent| extent.end() <= end).collect();
    let mut tally = SectorTally::new(run.sums.len() / geometry.checksum_type.size());
    for copy in 0..ways {
        let mut states = vec![SectorState::Good; tally.tried.len()];
        read_sectors(forest.volume(), LogicalAddress(start), copy, buffer, &mut states);
        let sectors = buffer.chunks_exact(size);
        let sums = run.sums.chunks_exact(geometry.checksum_type.size());
        for ((state, sector), sum) in states.iter_mut().zip(sectors).zip(sums) {
            if matches!(state, SectorState::Good) {
                *read += size as u64;
                if !geometry.checksum_type.verify(sector, sum) {
                    *state = SectorState::Mismatch;
                }
            }
        }
        undecoded.retain(|extent| {
            let inside = (extent.start - start) as usize..(extent.end() - start) as usize;
            let sectors = inside.start / size..inside.end.div_ceil(size);
            if states[sectors].iter().any(|state| !matches!(state, SectorState::Good)) {
                return true;
            }
            *decoded += 1;
            extent.decode(&buffer[inside], &geometry, findings);
            false
        });
        tally.add(copy, states);
    }
    tally.report(forest.volume(), start, findings);
}

/// The result of one way of reading a sector.
#[derive(Clone)]
enum SectorState {
    Good,
    /// It does not match its checksum.
    Mismatch,
    /// It cannot be read, and why.
    Unread(String),
    /// Its device is missing.
    Missing,
}

/// Reads sectors one way, in as few reads as the bad ones allow: a read that fails is repeated in
/// halves. Sets the states of those that cannot be read.
fn read_sectors(
    volume: &Volume,
    start: LogicalAddress,
    copy: usize,
    buffer: &mut [u8],
    states: &mut [SectorState],
) {
    let Err(error) = volume.read_copy(start, buffer, copy) else { return };
    if let [state] = states {
        *state = match error {
            Error::DeviceMissing { .. } => SectorState::Missing,
            error => SectorState::Unread(error.to_string()),
        };
        return;
    }
    let half = states.len() / 2;
    let bytes = half * (buffer.len() / states.len());
    let (first, second) = buffer.split_at_mut(bytes);
    let (of_first, of_second) = states.split_at_mut(half);
    read_sectors(volume, start, copy, first, of_first);
    read_sectors(volume, LogicalAddress(start.0 + bytes as u64), copy, second, of_second);
}

/// The results of all ways of reading the sectors of a run.
struct SectorTally {
    /// By sector: how many ways there are to read it, and how many of them are bad.
    tried: Vec<u8>,
    bad: Vec<u8>,
    /// The sector, the copy, and the reason if it could not be read.
    faults: Vec<(usize, usize, Option<String>)>,
}

impl SectorTally {
    fn new(sectors: usize) -> Self {
        Self { tried: vec![0; sectors], bad: vec![0; sectors], faults: Vec::new() }
    }

    fn add(&mut self, copy: usize, states: Vec<SectorState>) {
        for (index, state) in states.into_iter().enumerate() {
            let fault = match state {
                SectorState::Missing => continue,
                SectorState::Good => None,
                SectorState::Mismatch => Some(None),
                SectorState::Unread(reason) => Some(Some(reason)),
            };
            self.tried[index] = self.tried[index].saturating_add(1);
            if let Some(reason) = fault {
                self.bad[index] = self.bad[index].saturating_add(1);
                self.faults.push((index, copy, reason));
            }
        }
    }

    /// Adds a finding for each bad copy of a sector that has a good one, and for each sector that
    /// has none.
    fn report(self, volume: &Volume, start: u64, findings: &mut Findings) {
        let sector = u64::from(volume.geometry().sector_size);
        let mut reported = vec![false; self.bad.len()];
        for (index, copy, reason) in self.faults {
            let address = LogicalAddress(start + index as u64 * sector);
            let place = Place::extent(address.0).on(volume.place_of(address, copy));
            let (tried, bad) = (self.tried[index], self.bad[index]);
            let mismatch = "checksum mismatch".to_owned();
            if bad < tried {
                let text = reason.unwrap_or(mismatch);
                findings.add(FindingKind::DataCopy, place, format_args!("copy {copy}: {text}"));
            } else if !std::mem::replace(&mut reported[index], true) {
                let kind = reason.as_ref().map_or(FindingKind::DataChecksum, |_| FindingKind::DataRead);
                let text = reason.unwrap_or(mismatch);
                findings.add(kind, place, format_args!("{text} (copies tried: {tried})"));
            }
        }
    }
}
