//! Finding what can be shared, by the checksums that are stored.
//!
//! Owns [`Scan`], which makes a [`SharingPlan`] and reads no data.
//!
//! 1. Each extent has a hash of all its checksums. Extents with equal hashes are whole copies of
//!    one another.
//! 2. Each run of a few sectors in the other extents has a hash: a seed. Two equal seeds are made
//!    longer in both directions, as far as the checksums of both extents are equal.
//!
//! With a state file, both steps look only at extents whose checksums are in leaves that are newer,
//! and compare them with those that the state file knows.
//!
//! **Invariants**
//! - Memory is bounded: pairs of a hash and an address are sorted outside of it ([`super::pairs`]).
//! - An extent is planned once, and never with itself as the source.
//! - An extent of which a checksum is missing is left to the mode that reads.
//!
//! **Locks:** none. The trees do not change meanwhile.

use super::known::{KnownState, NewState, hash_of};
use super::options::ChecksumDedupe;
use super::pairs::{Pair, PairSorter, Pairs};
use super::plan::{PlannedExtent, SharingPlan};
use super::report::ChecksumDedupeReport;
use super::segments::{SegmentBuilder, SumsCache};
use crate::dedupe::{DedupeError, DedupeObserver, DedupeStage};
use papilio_engine::errors::{Error, Result as EngineResult};
use papilio_engine::items::trees::Trees;
use papilio_engine::jobs::data_extents::{
    Checksummed, ListedExtent, checksummed_since, data_extent_at, data_extents, stored_checksums,
};
use papilio_format::{Generation, LogicalAddress};
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::io;
use std::ops::Range;
use std::rc::Rc;

/// Errors that are kept; further ones are counted.
const KEPT_ERRORS: usize = 20;
/// Extents between two calls of the observer.
const TICK: u64 = 1 << 12;
/// Addresses of a seed that a state file keeps.
const KEPT_SEEDS: usize = 2;

/// Tree blocks and items that could not be read.
#[derive(Default)]
pub(super) struct Faults {
    pub(super) errors: RefCell<Vec<Error>>,
    pub(super) count: Cell<u64>,
}

impl Faults {
    fn add(&self, error: Error) {
        self.count.set(self.count.get() + 1);
        let mut errors = self.errors.borrow_mut();
        // Each search below a bad block meets it again.
        let text = error.to_string();
        if errors.len() < KEPT_ERRORS && errors.iter().all(|known| known.to_string() != text) {
            errors.push(error);
        }
    }

    /// Returns the value, or nothing in place of a fault.
    fn known<T>(&self, found: EngineResult<T>) -> Option<T> {
        found.map_err(|error| self.add(error)).ok()
    }
}

/// The work of one [`ChecksumDedupe::plan`].
pub(super) struct Scan<'a> {
    trees: &'a Trees,
    options: &'a ChecksumDedupe,
    observer: &'a mut dyn DedupeObserver,
    sector: u64,
    sum_size: usize,
    /// The addresses of the extents that may be given up, ascending; `None` for all.
    wanted: Option<Vec<u64>>,
    known: Option<KnownState>,
    state: Option<NewState>,
    /// The addresses that leaves of the checksum tree cover which are newer than the state.
    changed: Vec<Range<u64>>,
    /// Extents in these that the state knows as they are.
    unchanged: Vec<(u64, u64)>,
    /// Extents that the state does not know.
    fresh: Vec<u64>,
    /// Where planned extents begin and end.
    planned: Vec<(u64, u64)>,
    plan: SharingPlan,
    unsummed: Vec<u64>,
    faults: Rc<Faults>,
    report: ChecksumDedupeReport,
}

/// The result of a scan.
pub(super) struct ScanResult {
    pub(super) plan: SharingPlan,
    pub(super) state: Option<NewState>,
    /// Extents without checksums, ascending.
    pub(super) unsummed: Vec<u64>,
    pub(super) faults: Rc<Faults>,
    pub(super) report: ChecksumDedupeReport,
}

type Outcome<T> = Result<T, DedupeError>;
/// Receives an extent and its checksums, which are empty unless it has all.
type Visit<'v, 'a> = &'v mut dyn FnMut(&mut Scan<'a>, ListedExtent, &[u8], Checksummed) -> Outcome<()>;

/// Returns the error of a temporary file.
pub(super) fn spill_error(error: io::Error) -> DedupeError {
    DedupeError::Host { path: std::env::temp_dir(), error }
}

impl<'a> Scan<'a> {
    pub(super) fn new(
        trees: &'a Trees,
        options: &'a ChecksumDedupe,
        wanted: Option<Vec<u64>>,
        known: Option<KnownState>,
        state: Option<NewState>,
        observer: &'a mut dyn DedupeObserver,
    ) -> Self {
        let geometry = trees.forest().volume().geometry();
        Self {
            trees,
            options,
            observer,
            sector: u64::from(geometry.sector_size),
            sum_size: geometry.checksum_type.size(),
            wanted,
            known,
            state,
            changed: Vec::new(),
            unchanged: Vec::new(),
            fresh: Vec::new(),
            planned: Vec::new(),
            plan: SharingPlan::new(),
            unsummed: Vec::new(),
            faults: Rc::default(),
            report: ChecksumDedupeReport::default(),
        }
    }

    /// Finds everything.
    ///
    /// # Errors
    /// The root of a tree cannot be read; a temporary file or the state file fails; the observer
    /// ends the work.
    pub(super) fn run(mut self) -> Outcome<ScanResult> {
        let extents = self.collect_extents()?;
        self.join_extents(extents.sorted().map_err(spill_error)?)?;
        let seeds = self.collect_seeds()?;
        let pairs = self.join_seeds(seeds.sorted().map_err(spill_error)?)?;
        self.plan_parts(pairs.sorted().map_err(spill_error)?)?;
        self.plan.finish();
        self.unsummed.sort_unstable();
        self.unsummed.dedup();
        self.report.faults = self.faults.count.get();
        let Self { plan, state, unsummed, faults, report, .. } = self;
        Ok(ScanResult { plan, state, unsummed, faults, report })
    }

    fn library(error: Error) -> DedupeError {
        DedupeError::Library(Box::new(error))
    }

    fn tick(&mut self, stage: DedupeStage, done: u64) -> Outcome<()> {
        match done.is_multiple_of(TICK) {
            true => self.observer.stage(stage, done).map_err(DedupeError::Stopped),
            false => Ok(()),
        }
    }

    fn extent_at(&self, address: u64) -> Option<ListedExtent> {
        self.faults.known(data_extent_at(self.trees, LogicalAddress(address))).flatten()
    }

    fn is_wanted(&self, start: u64) -> bool {
        self.wanted.as_ref().is_none_or(|wanted| wanted.binary_search(&start).is_ok())
    }

    /// Passes an extent with its checksums to `visit`.
    fn visit(&mut self, extent: ListedExtent, sums: &mut Vec<u8>, visit: Visit<'_, 'a>) -> Outcome<()> {
        sums.clear();
        let range = extent.start.0..extent.start.0.saturating_add(extent.length);
        let Some(found) = self.faults.known(stored_checksums(self.trees, range, sums)) else {
            return Ok(());
        };
        visit(self, extent, sums, found)
    }

    /// Visits all extents.
    fn walk_all(&mut self, stage: DedupeStage, visit: Visit<'_, 'a>) -> Outcome<()> {
        let (trees, faults) = (self.trees, Rc::clone(&self.faults));
        let (mut failure, mut sums, mut done) = (None, Vec::new(), 0);
        let mut each = |extent| {
            done += 1;
            let visited = self.tick(stage, done).and_then(|()| self.visit(extent, &mut sums, visit));
            failure = visited.err();
            failure.is_none()
        };
        data_extents(trees, &mut each, &mut |error| faults.add(error)).map_err(Self::library)?;
        failure.map_or(Ok(()), Err)
    }

    /// Visits the extents with checksums in leaves of this transaction or a later one.
    fn walk_newer(&mut self, oldest: Generation, visit: Visit<'_, 'a>) -> Outcome<()> {
        let (trees, faults) = (self.trees, Rc::clone(&self.faults));
        let mut leaves: Vec<Vec<Range<u64>>> = Vec::new();
        let mut note = |items: &[Range<u64>]| leaves.push(items.to_vec());
        checksummed_since(trees, oldest, &mut note, &mut |error| faults.add(error)).map_err(Self::library)?;
        let (mut sums, mut reached, mut done) = (Vec::new(), 0, 0);
        for items in leaves {
            if let (Some(first), Some(last)) = (items.first(), items.last()) {
                self.changed.push(first.start..last.end);
            }
            for item in items {
                let mut address = item.start.max(reached);
                while address < item.end {
                    let Some(extent) = self.extent_at(address) else {
                        address += self.sector;
                        continue;
                    };
                    done += 1;
                    self.tick(DedupeStage::Extents, done)?;
                    self.visit(extent, &mut sums, visit)?;
                    address = extent.start.0.saturating_add(extent.length).max(address + self.sector);
                    reached = address;
                }
            }
        }
        Ok(())
    }

    fn collect_extents(&mut self) -> Outcome<PairSorter> {
        let mut sorter = PairSorter::new(self.options.memory_bytes / 2);
        let mut note = |scan: &mut Self, extent: ListedExtent, sums: &[u8], found: Checksummed| {
            scan.report.extents += 1;
            scan.report.extent_bytes += extent.length;
            match found {
                Checksummed::All => {
                    let pair = (fingerprint(&extent, sums), extent.start.0);
                    sorter.push(pair).map_err(spill_error)
                }
                Checksummed::Part => Ok(()),
                Checksummed::Nothing => {
                    scan.unsummed.push(extent.start.0);
                    Ok(())
                }
            }
        };
        match self.known.as_ref().map(|known| known.generation) {
            Some(generation) => self.walk_newer(Generation(generation + 1), &mut note)?,
            None => self.walk_all(DedupeStage::Extents, &mut note)?,
        }
        Ok(sorter)
    }

    /// Plans whole extents.
    fn join_extents(&mut self, mut new: Pairs) -> Outcome<()> {
        let (mut before, mut fresh, mut done) = (Vec::new(), Vec::new(), 0);
        loop {
            let known = self.known.as_ref().and_then(|known| known.extents.peek());
            let Some(number) = new.peek().into_iter().chain(known).map(|(number, _)| number).min() else {
                break;
            };
            done += 1;
            self.tick(DedupeStage::Whole, done)?;
            before.clear();
            fresh.clear();
            new.take(number, &mut fresh).map_err(spill_error)?;
            if let Some(known) = &mut self.known {
                known.extents.take(number, &mut before).map_err(|error| self.options.state_error(error))?;
            }
            // The checksums that the state knows, at the places where they were.
            let unchanged: Vec<u64> = intersection(&before, &fresh);
            fresh.retain(|address| unchanged.binary_search(address).is_err());
            before.retain(|address| {
                unchanged.binary_search(address).is_ok() || !contains_range(&self.changed, *address)
            });
            for start in unchanged {
                let end = self.extent_at(start).map_or(start, |extent| start + extent.length);
                self.unchanged.push((start, end));
            }
            if self.known.is_some() {
                self.fresh.extend(&fresh);
            }
            let planned = self.plan_whole(number, &before, &fresh)?;
            if let Some(state) = &mut self.state {
                let mut kept = [&before[..], &fresh[..]].concat();
                kept.retain(|address| planned.binary_search(address).is_err());
                kept.sort_unstable();
                for address in kept {
                    state.extent((number, address)).map_err(|error| self.options.state_error(error))?;
                }
            }
        }
        self.fresh.sort_unstable();
        self.planned.sort_unstable();
        self.unchanged.sort_unstable();
        Ok(())
    }

    /// Plans the extents in `fresh` that one source can replace, and returns them, ascending.
    fn plan_whole(&mut self, number: u64, before: &[u64], fresh: &[u64]) -> Outcome<Vec<u64>> {
        if fresh.is_empty() || before.len() + fresh.len() < 2 {
            return Ok(Vec::new());
        }
        let known = before.iter().find_map(|start| self.known_extent(number, *start));
        let exact = |start: &u64| self.extent_at(*start).filter(|extent| extent.start.0 == *start);
        let extents: Vec<ListedExtent> = fresh.iter().filter_map(exact).collect();
        let best = |extent: &&ListedExtent| {
            (!self.is_wanted(extent.start.0), extent.references, Reverse(extent.start))
        };
        let Some(source) = known.or_else(|| extents.iter().max_by_key(best).copied()) else {
            return Ok(Vec::new());
        };
        let mut planned = Vec::new();
        for extent in extents {
            let start = extent.start.0;
            if extent.start == source.start || extent.length != source.length || !self.is_wanted(start) {
                continue;
            }
            self.plan.push(&PlannedExtent::whole(&extent, &source)).map_err(spill_error)?;
            self.planned.push((start, start + extent.length));
            self.report.planned_extents += 1;
            planned.push(start);
        }
        Ok(planned)
    }

    /// Returns an extent of the state if it is still there.
    fn known_extent(&self, number: u64, start: u64) -> Option<ListedExtent> {
        let extent = self.extent_at(start).filter(|extent| extent.start.0 == start)?;
        let mut sums = Vec::new();
        let range = start..start.saturating_add(extent.length);
        (self.sums(range, &mut sums) && fingerprint(&extent, &sums) == number).then_some(extent)
    }

    fn collect_seeds(&mut self) -> Outcome<PairSorter> {
        let mut sorter = PairSorter::new(self.options.memory_bytes / 2);
        let seed = self.options.seed_sectors(self.sector) * self.sum_size;
        let mut note = |scan: &mut Self, extent: ListedExtent, sums: &[u8], _: Checksummed| {
            let (start, end) = (extent.start.0, extent.start.0 + extent.length);
            if scan.planned.binary_search(&(start, end)).is_ok() {
                return Ok(());
            }
            for (at, seed) in sums.windows(seed).step_by(scan.sum_size).enumerate() {
                let address = start + at as u64 * scan.sector;
                sorter.push((hash_of(seed), address)).map_err(spill_error)?;
                scan.report.seeds += 1;
            }
            Ok(())
        };
        if self.known.is_none() {
            self.walk_all(DedupeStage::Seeds, &mut note)?;
            return Ok(sorter);
        }
        let mut sums = Vec::new();
        for (done, start) in std::mem::take(&mut self.fresh).into_iter().enumerate() {
            self.tick(DedupeStage::Seeds, done as u64)?;
            if let Some(extent) = self.extent_at(start) {
                self.visit(extent, &mut sums, &mut note)?;
            }
        }
        Ok(sorter)
    }

    /// Pairs each place with an earlier one that has the same seed.
    fn join_seeds(&mut self, mut new: Pairs) -> Outcome<PairSorter> {
        let mut pairs = PairSorter::new(self.options.memory_bytes / 2);
        let (mut before, mut fresh, mut done) = (Vec::new(), Vec::new(), 0);
        loop {
            let known = self.known.as_ref().and_then(|known| known.seeds.peek());
            let Some(number) = new.peek().into_iter().chain(known).map(|(number, _)| number).min() else {
                return Ok(pairs);
            };
            done += 1;
            self.tick(DedupeStage::Runs, done)?;
            before.clear();
            fresh.clear();
            new.take(number, &mut fresh).map_err(spill_error)?;
            if let Some(known) = &mut self.known {
                known.seeds.take(number, &mut before).map_err(|error| self.options.state_error(error))?;
            }
            before.retain(|address| {
                !contains_range(&self.changed, *address) || contains(&self.unchanged, *address)
            });
            let sources: Vec<u64> = before.iter().chain(&fresh).copied().take(KEPT_SEEDS).collect();
            for pair in seed_pairs(&before, &fresh) {
                pairs.push(pair).map_err(spill_error)?;
            }
            for source in sources {
                if let Some(state) = &mut self.state {
                    state.seed((number, source)).map_err(|error| self.options.state_error(error))?;
                }
            }
        }
    }

    /// Plans the extents of which others have most, from pairs of places with equal seeds.
    fn plan_parts(&mut self, mut pairs: Pairs) -> Outcome<()> {
        let mut sums = SumsCache::new(self.sum_size);
        let seed = self.options.seed_sectors(self.sector);
        let (mut done, mut seeds) = (0, Vec::new());
        while let Some((address, source)) = pairs.next().map_err(spill_error)? {
            done += 1;
            self.tick(DedupeStage::Runs, done)?;
            let Some(extent) = self.extent_at(address) else { continue };
            let (start, end) = (extent.start.0, extent.start.0 + extent.length);
            seeds.clear();
            seeds.push((address, source));
            while let Some(pair) = pairs.peek().filter(|(next, _)| *next < end) {
                seeds.push(pair);
                pairs.next().map_err(spill_error)?;
            }
            if !self.is_wanted(start) {
                continue;
            }
            let Some(own) = sums.of(&extent, |range, into| self.sums(range, into)) else { continue };
            let mut builder = SegmentBuilder::new(extent, own, self.sector, seed as u64);
            for (address, source) in seeds.iter().copied() {
                if builder.covers(address) {
                    continue;
                }
                let Some(other) = self.extent_at(source).filter(|other| other.start.0 != start) else {
                    continue;
                };
                if let Some(theirs) = sums.of(&other, |range, into| self.sums(range, into)) {
                    builder.add(address, &other, &theirs, source);
                }
            }
            let segments = builder.finish();
            let covered: u64 = segments.iter().map(|segment| segment.length).sum();
            // The rest is written anew, so that the extent can go.
            if covered >= extent.length.div_ceil(2) {
                let length = extent.length;
                let planned = PlannedExtent { start, length, segments, whole: false };
                self.plan.push(&planned).map_err(spill_error)?;
                self.report.planned_extents += 1;
            }
        }
        Ok(())
    }

    fn sums(&self, range: Range<u64>, into: &mut Vec<u8>) -> bool {
        self.faults.known(stored_checksums(self.trees, range, into)) == Some(Checksummed::All)
    }
}

/// Returns the hash of an extent's length and checksums.
fn fingerprint(extent: &ListedExtent, sums: &[u8]) -> u64 {
    hash_of(&[&hash_of(sums).to_le_bytes()[..], &extent.length.to_le_bytes()].concat())
}

/// Returns the pairs of a place and its source for places with equal seeds: those that were known
/// before, and new ones.
fn seed_pairs(before: &[u64], fresh: &[u64]) -> Vec<Pair> {
    let mut pairs = Vec::new();
    match (before, fresh) {
        (_, []) | ([], [_]) => {}
        ([], [first, second, ..]) => {
            pairs.extend(fresh[1..].iter().map(|place| (*place, *first)));
            // The first extent may be the one that is better given up.
            pairs.push((*first, *second));
        }
        // A known place may be gone, so two are tried.
        _ => {
            for source in before.iter().take(KEPT_SEEDS) {
                pairs.extend(fresh.iter().map(|place| (*place, *source)));
            }
            if let [first, rest @ ..] = fresh {
                pairs.extend(rest.iter().map(|place| (*place, *first)));
            }
        }
    }
    pairs
}

/// Returns the numbers that both ascending lists have.
fn intersection(a: &[u64], b: &[u64]) -> Vec<u64> {
    a.iter().filter(|number| b.binary_search(number).is_ok()).copied().collect()
}

/// Returns whether one of the disjoint, ascending ranges contains an address.
fn contains_range(ranges: &[Range<u64>], address: u64) -> bool {
    let after = ranges.partition_point(|range| range.start <= address);
    after > 0 && ranges[after - 1].contains(&address)
}

fn contains(ranges: &[(u64, u64)], address: u64) -> bool {
    let after = ranges.partition_point(|(start, _)| *start <= address);
    after > 0 && address < ranges[after - 1].1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_gets_a_source_that_is_not_itself() {
        assert_eq!(seed_pairs(&[], &[5]), []);
        assert_eq!(seed_pairs(&[1, 2], &[]), []);
        assert_eq!(seed_pairs(&[], &[5, 9, 12]), [(9, 5), (12, 5), (5, 9)]);
        assert_eq!(seed_pairs(&[1], &[5]), [(5, 1)]);
        assert_eq!(seed_pairs(&[1, 2, 3], &[5, 6]), [(5, 1), (6, 1), (5, 2), (6, 2), (6, 5)]);
    }

    #[test]
    fn ranges_contain_their_addresses() {
        let ranges = [4..8, 12..13];
        let found: Vec<u64> = (0..20).filter(|address| contains_range(&ranges, *address)).collect();
        assert_eq!(found, [4, 5, 6, 7, 12]);
        let found: Vec<u64> = (0..20).filter(|address| contains(&[(4, 8), (12, 13)], *address)).collect();
        assert_eq!(found, [4, 5, 6, 7, 12]);
        assert_eq!(intersection(&[1, 3, 5], &[2, 3, 5, 9]), [3, 5]);
    }
}
