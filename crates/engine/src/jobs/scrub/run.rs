//! Running a scrub: its workers, its progress and its end.
//!
//! Owns [`FsInfo::scrub`]. Workers take units in turn: several for each device that takes its time,
//! and at least as many as processors. So all devices are read at once, and memory is bounded by
//! the workers. The calling thread reports the progress.
//!
//! **Invariant**: mended sectors are durable when the scrub returns.
//!
//! **Locks**: `commit` for moments; rows; the state of the units; a leaf for the counters.
//!
//! Kernel counterpart: `btrfs_scrub_dev` (`fs/btrfs/scrub.c`).

use super::encoding::Decoding;
use super::extents::UnitExtents;
use super::report::{MOST_NAMED, ScrubCounts, ScrubDevice, ScrubLimit, ScrubOptions, ScrubReport};
use super::superblocks;
use super::units::{Unit, Units};
use super::verify::{UnitScrub, wanted};
use crate::errors::{Error, Result};
use crate::file::fs_info::FsInfo;
use crate::jobs::inode_paths::owner_paths;
use crate::volume::{Chunk, DeviceSlot};
use papilio_device::AlignedBuffer;
use papilio_format::LogicalAddress;
use papilio_format::items::device::DeviceStat;
use papilio_locks::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Time between two reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);
/// The most workers: each has a unit in memory.
const WORKERS: usize = 8;
/// Workers for each device that takes its time: requests of a MiB keep it busy.
const WORKERS_PER_DEVICE: usize = 8;

/// The state that the workers share.
struct Scrub<'a> {
    info: &'a FsInfo,
    units: Units,
    mend: bool,
    /// The slots of the devices to verify.
    verified: Vec<bool>,
    counts: Mutex<Vec<ScrubCounts>>,
    /// Units that were skipped, and the first cause.
    skipped: Mutex<(u64, Option<String>)>,
    /// The chunks with data on missing devices alone, by their starts.
    unreadable: Mutex<BTreeSet<u64>>,
    /// Whether compressed extents are decoded; their number without success, and the first ones.
    decode: bool,
    undecodable: Mutex<(u64, Vec<String>)>,
    lost_data: Mutex<Vec<String>>,
    stop: AtomicBool,
    limit: ScrubLimit,
    /// The bytes that were read, less those that the time until now has allowed.
    ahead: Mutex<(Instant, f64)>,
}

impl FsInfo {
    /// Verifies all copies and mends them as `options` say. Calls `progress` now and then; where
    /// it returns false, the scrub ends early.
    ///
    /// # Errors
    /// A device that is not part of the file system; a commit or a flush fails.
    pub fn scrub(
        &self,
        options: &ScrubOptions,
        progress: &mut dyn FnMut(&ScrubReport) -> bool,
    ) -> Result<ScrubReport> {
        let devices = self.volume().devices();
        let is_verified = |slot: &DeviceSlot| {
            !slot.is_missing()
                && slot.in_chunk_tree
                && options.device.is_none_or(|devid| slot.devid() == devid)
        };
        let verified: Vec<bool> = devices.iter().map(is_verified).collect();
        if let Some(devid) = options.device.filter(|_| !verified.contains(&true)) {
            return Err(Error::Invalid(format!("device {devid} is not a present device of the file system")));
        }
        let concerned = |chunk: &&Arc<Chunk>| {
            chunk.stripes().iter().any(|stripe| devices.find(stripe).is_some_and(|(slot, _)| verified[slot]))
        };
        let chunks = self.volume().chunk_map().iter().filter(concerned).cloned().collect();
        let mut counts = vec![ScrubCounts::default(); verified.len()];
        let mend = !options.read_only && self.trees.transactions().is_some();
        // The scrub finds again everything that reads have found until now.
        self.volume().take_bad_copies();
        if options.start == LogicalAddress(0) {
            superblocks::verify(self, &mut counts, &verified, mend)?;
        }
        let devices = verified.iter().filter(|verified| **verified).count();
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let per_device = if self.volume().waits() { WORKERS_PER_DEVICE } else { 1 };
        let workers = (devices * per_device).max(processors).min(WORKERS);
        let scrub = Scrub::new(self, chunks, verified, mend, options);
        *scrub.counts.lock() = counts;
        let outcome = scrub.run(workers, progress);
        if mend {
            self.volume().flush()?;
        }
        outcome?;
        let report = scrub.report();
        if mend && report.finished && report.skipped == 0 && options.start == LogicalAddress(0) {
            self.believe_healed(&scrub)?;
        }
        Ok(report)
    }

    /// Believes devices again that had missed writes, if all of their copies are good now.
    fn believe_healed(&self, scrub: &Scrub<'_>) -> Result<()> {
        let devices = self.volume().devices();
        let mut any = false;
        for (number, _) in devices.iter().enumerate().filter(|(_, slot)| slot.stale) {
            let counts = scrub.counts.lock()[number];
            if scrub.verified[number] && counts.uncorrectable_errors == 0 && counts.write_errors == 0 {
                self.volume().set_healed(number);
                any = true;
            }
        }
        if any {
            self.transactions()?.commit_anyway()?;
        }
        Ok(())
    }
}

impl FsInfo {
    /// Whether copies that reads have found bad are rewritten.
    fn heals(&self) -> bool {
        self.heal_reads && self.transactions().is_ok_and(|transactions| transactions.check_running().is_ok())
    }

    /// Verifies all copies around the addresses where reads have found a bad one, and counts their
    /// errors. Mends them unless the options forbid it, or the file system is open for reading
    /// only. The next commit makes it durable. The caller holds no lock and no handle.
    pub fn heal(&self) {
        self.verify_bad_copies(self.heals());
    }

    /// As [`FsInfo::heal`], for a file system that mends nothing.
    pub fn count_bad_copies(&self) {
        if !self.heals() {
            self.verify_bad_copies(false);
        }
    }

    fn verify_bad_copies(&self, mend: bool) {
        let mut buffers = Vec::new();
        let mut last: Option<Unit> = None;
        let mut decoding = Decoding::new(self);
        for address in self.volume().take_bad_copies() {
            let Some(chunk) = self.volume().chunk_map().find(address).cloned() else { continue };
            if last.as_ref().is_some_and(|unit| unit.range().contains(&address.0)) {
                continue;
            }
            let unit = Unit::row_of(chunk, address);
            let devices = self.volume().devices();
            let verified: Vec<bool> =
                devices.iter().map(|slot| !slot.is_missing() && slot.in_chunk_tree).collect();
            let scrub = Scrub::new(self, Vec::new(), verified, mend, &ScrubOptions::new());
            scrub.scrub_unit(&unit, &mut buffers, &mut decoding);
            let report = scrub.report();
            let (total, files) = (report.total(), report.lost_data.join("; "));
            if !mend && total.uncorrectable_errors > 0 {
                tracing::warn!(%address, files, "data has no good copy");
            }
            if mend && total.has_errors() {
                warn_of_mending(address, &total, &files);
            }
            last = Some(unit);
        }
    }
}

/// Says what became of the copies around an address that a read found bad.
fn warn_of_mending(address: LogicalAddress, total: &ScrubCounts, files: &str) {
    let mended = total.corrected_errors + total.parity_errors;
    // A good copy exists, and its device did not take it.
    let refused = total.write_errors;
    let lost = total.uncorrectable_errors.saturating_sub(refused);
    let text = match (mended, refused, lost) {
        (_, 0, 0) => "copies that a read found bad were rewritten",
        (0, 0, _) => "data that a read found bad has no good copy",
        (0, _, 0) => "copies that a read found bad could not be rewritten, their device takes no writes",
        (0, ..) => "copies that a read found bad could not be rewritten, and some have no good one",
        _ => "copies that a read found bad were rewritten in part",
    };
    tracing::warn!(%address, mended, refused, lost, files, "{text}");
}

impl<'a> Scrub<'a> {
    fn new(
        info: &'a FsInfo,
        chunks: Vec<Arc<Chunk>>,
        verified: Vec<bool>,
        mend: bool,
        options: &ScrubOptions,
    ) -> Self {
        Self {
            info,
            units: Units::new(chunks, options.start),
            mend,
            counts: Mutex::new(vec![ScrubCounts::default(); verified.len()]),
            verified,
            skipped: Mutex::default(),
            unreadable: Mutex::default(),
            decode: options.decode,
            undecodable: Mutex::default(),
            lost_data: Mutex::default(),
            stop: AtomicBool::new(false),
            limit: options.limit.clone(),
            ahead: Mutex::new((Instant::now(), 0.0)),
        }
    }

    fn run(&self, workers: usize, progress: &mut dyn FnMut(&ScrubReport) -> bool) -> Result<()> {
        let (done, results) = channel();
        std::thread::scope(|scope| {
            for number in 0..workers {
                let done: Sender<()> = done.clone();
                let name = format!("papilio-scrub-{number}");
                let worker = move || {
                    // Dropped when the work ends: the receiver waits for that.
                    let _done = done;
                    self.work();
                };
                let started = std::thread::Builder::new().name(name).spawn_scoped(scope, worker);
                if let Err(error) = started
                    && number == 0
                {
                    return Err(Error::Invalid(format!("no thread for the scrub: {error}")));
                }
            }
            drop(done);
            self.watch(&results, progress);
            Ok(())
        })
    }

    /// Reports the progress until all workers have ended.
    fn watch(&self, results: &Receiver<()>, progress: &mut dyn FnMut(&ScrubReport) -> bool) {
        while results.recv_timeout(REPORT_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            if !progress(&self.report()) {
                self.stop.store(true, Ordering::Relaxed);
            }
        }
    }

    fn work(&self) {
        let (mut buffers, mut decoding) = (Vec::new(), Decoding::new(self.info));
        while !self.stop.load(Ordering::Relaxed) {
            let Some(unit) = self.units.next() else { break };
            if self.scrub_unit(&unit, &mut buffers, &mut decoding) {
                self.note_unreadable(&unit.chunk);
            }
            self.units.finish(&unit);
            self.throttle();
        }
    }

    /// Notes a chunk in use of which a part is on missing devices alone, once.
    fn note_unreadable(&self, chunk: &Chunk) {
        if let Err(error) = self.info.volume().check_readable(chunk)
            && self.unreadable.lock().insert(chunk.start().0)
        {
            self.skip(&error);
        }
    }

    /// Scrubs a unit; returns whether it has extents.
    fn scrub_unit(&self, unit: &Unit, buffers: &mut Vec<AlignedBuffer>, decoding: &mut Decoding<'_>) -> bool {
        let volume = self.info.volume();
        // A chunk that was removed has no extents any more; another may be in its place.
        if !volume.chunk_map().find(unit.chunk.start()).is_some_and(|chunk| **chunk == *unit.chunk) {
            return false;
        }
        let mut extents = match UnitExtents::read(self.info, unit.range()) {
            Ok(extents) => extents,
            Err(error) => {
                self.skip(&error);
                return false;
            }
        };
        let left_out = extents.left_out.take();
        if let Some(error) = &left_out {
            self.skip(error);
        }
        if extents.extents.is_empty() {
            return false;
        }
        // Without checksums nothing tells which bytes are good.
        let decodes = self.decode && left_out.is_none();
        if decodes {
            decoding.find(&extents);
        }
        let rows =
            volume.load_rows(&unit.chunk, unit.rows.clone(), wanted(&extents), std::mem::take(buffers), None);
        self.ahead.lock().1 += unit.bytes() as f64;
        let mut counts = vec![ScrubCounts::default(); self.verified.len()];
        let mut scrub = UnitScrub::new(rows, &extents, &mut counts, &self.verified);
        scrub.run();
        let lost = std::mem::take(&mut scrub.lost);
        let mut rows = scrub.rows;
        if self.mend {
            for failed in rows.write_mended() {
                tracing::warn!(slot = failed.slot, error = %failed.source, "a sector could not be mended");
                let counts = &mut counts[failed.slot];
                let sectors = failed.sectors as u64;
                counts.write_errors += sectors;
                let corrected = counts.corrected_errors.min(sectors);
                counts.corrected_errors -= corrected;
                counts.uncorrectable_errors += corrected;
            }
        }
        if decodes {
            decoding.decode(&extents, &rows);
        }
        *buffers = rows.into_buffers();
        if decodes {
            decoding.finish(unit, &extents, |line| self.add_undecodable(line));
        }
        for address in lost {
            self.name_lost(LogicalAddress(address));
        }
        self.count_errors(&counts);
        for (all, counts) in self.counts.lock().iter_mut().zip(&counts) {
            all.add(counts);
        }
        true
    }

    /// Adds the errors of a unit to the counters of the devices.
    fn count_errors(&self, counts: &[ScrubCounts]) {
        let devices = self.info.volume().devices();
        for (slot, counts) in devices.iter().zip(counts) {
            let corrupt = counts.csum_errors + counts.verify_errors - counts.generation_errors;
            for (stat, errors) in [
                (DeviceStat::ReadErrors, counts.read_errors),
                (DeviceStat::WriteErrors, counts.write_errors),
                (DeviceStat::CorruptionErrors, corrupt),
                (DeviceStat::GenerationErrors, counts.generation_errors),
            ] {
                devices.counters().add(slot.devid(), stat, errors);
            }
        }
    }

    /// Notes a compressed extent that does not decode.
    /// Notes the files of data that has no good copy. The caller has dropped the rows; the extent
    /// is pinned.
    fn name_lost(&self, address: LogicalAddress) {
        if self.lost_data.lock().len() >= MOST_NAMED {
            return;
        }
        let files = owner_paths(&self.info.trees, address).unwrap_or_else(|| "none".to_owned());
        self.lost_data.lock().push(format!("logical address {address}: files: {files}"));
    }

    fn add_undecodable(&self, line: String) {
        tracing::info!("compressed data cannot be decoded: {line}");
        let mut undecodable = self.undecodable.lock();
        undecodable.0 += 1;
        if undecodable.1.len() < MOST_NAMED {
            undecodable.1.push(line);
        }
    }

    /// Notes that a unit is not verified, or not completely.
    fn skip(&self, error: &Error) {
        tracing::warn!(%error, "the scrub leaves a range out");
        let mut skipped = self.skipped.lock();
        skipped.0 += 1;
        skipped.1.get_or_insert_with(|| error.to_string());
    }

    /// Waits while more was read than the limit allows.
    fn throttle(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            let limit = self.limit.get() as f64;
            let mut ahead = self.ahead.lock();
            let passed = ahead.0.elapsed().as_secs_f64();
            *ahead = (Instant::now(), (ahead.1 - passed * limit).max(0.0));
            let left = ahead.1;
            drop(ahead);
            if limit <= 0.0 || left <= 0.0 {
                return;
            }
            std::thread::sleep(Duration::from_secs_f64((left / limit).min(0.1)));
        }
    }

    fn report(&self) -> ScrubReport {
        let (bytes_done, bytes_total, position) = self.units.progress();
        let devices = self.info.volume().devices();
        let (skipped, first_error) = self.skipped.lock().clone();
        let (undecodable, undecodable_extents) = self.undecodable.lock().clone();
        let mut lost_data = self.lost_data.lock().clone();
        lost_data.sort_unstable();
        let counts = self.counts.lock();
        let of_device = |(number, slot): (usize, &DeviceSlot)| ScrubDevice {
            devid: slot.devid(),
            path: slot.name().map(str::to_owned),
            counts: counts[number],
        };
        let wanted = |number: &usize| {
            self.verified[*number] || devices.iter().nth(*number).is_some_and(DeviceSlot::is_missing)
        };
        let devices =
            devices.iter().enumerate().filter(|(number, _)| wanted(number)).map(of_device).collect();
        let finished = bytes_done == bytes_total;
        ScrubReport {
            devices,
            bytes_done,
            bytes_total,
            position,
            skipped,
            first_error,
            undecodable,
            undecodable_extents,
            lost_data,
            finished,
        }
    }
}
