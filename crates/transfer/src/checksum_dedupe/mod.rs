//! Sharing the data of equal extents, found by the checksums that are stored already.
//!
//! Owns the two steps of [`ChecksumDedupe`] and the [`DedupePlan`] between them.
//!
//! | module | owns |
//! |---|---|
//! | `options`, `report` | how to work, and what was done |
//! | `pairs` | sorting outside of memory |
//! | `known` | the state file |
//! | `segments` | runs of equal checksums between two extents |
//! | `plan` | the list of what to share |
//! | `scan` | finding it, without reading data |
//! | `place` | references and sharing, in an image or a mount |
//! | `share` | carrying out the plan |
//!
//! **Locks:** those of the public methods.

mod known;
mod options;
mod pairs;
mod place;
mod plan;
mod report;
mod scan;
mod segments;
mod share;

pub use options::ChecksumDedupe;
pub use report::{ChecksumDedupeReport, Left};

use crate::dedupe::{DedupeError, DedupeObserver};
use crate::file_walk::{FileVisitor, FileWalk, UsedExtent, WalkError, WalkRoot, WantedExtents};
use known::{BadState, KnownState, NewState, StateKey};
use papilio_engine::data::FileExtentKind;
use papilio_engine::errors::Error;
use papilio_format::superblock::RawSuperblock;
use papilio_fs::FileSystem;
use papilio_ioctl::client::MountedPath;
use place::{OpenPlace, SharingPlace};
use plan::SharingPlan;
use scan::{Faults, Scan, ScanResult, spill_error};
use share::Sharer;
use std::path::Path;
use std::rc::Rc;

/// Extents between two commits.
const BATCH: usize = 512;
/// Addresses that are collected before equal ones are removed.
const COLLECTED: usize = 1 << 20;

/// Where extents are shared.
#[derive(Clone, Copy, Debug)]
pub enum DedupePlace<'a> {
    /// In an open image, for which the plan was made.
    Image(&'a FileSystem),
    /// In a mount of the kernel's Btrfs: any path in it, by which it is reached. The plan was made
    /// from its devices.
    Mounted(&'a Path),
}

/// The data to share, before anything changes.
pub struct DedupePlan {
    plan: SharingPlan,
    state: Option<NewState>,
    /// The transaction that the plan has seen.
    generation: u64,
    /// The sizes of a sector and of a tree block.
    sizes: (u64, u64),
    unsummed: Vec<u64>,
    faults: Rc<Faults>,
    report: ChecksumDedupeReport,
}

impl DedupePlan {
    /// Returns the number of tree blocks and items that cannot be read. In a mount they may have
    /// changed meanwhile.
    pub fn faults(&self) -> u64 {
        self.report.faults
    }

    /// Returns the addresses of extents without checksums, ascending, for
    /// [`crate::dedupe::Dedupe::run_on`].
    pub fn unsummed(&self) -> &[u64] {
        &self.unsummed
    }
}

impl ChecksumDedupe {
    /// Looks for equal extents. Reads trees and no data. `roots` restricts the extents that are
    /// given up to those that files below them use; their references elsewhere follow. The file
    /// system must not change meanwhile.
    ///
    /// # Errors
    /// The root of a tree, or one of `roots`, cannot be read; a temporary file or the state file
    /// fails; the observer ends the work. Other blocks that cannot be read are left out, and
    /// counted.
    pub fn plan(
        &self,
        fs: &FileSystem,
        roots: Option<Vec<WalkRoot>>,
        observer: &mut dyn DedupeObserver,
    ) -> Result<DedupePlan, DedupeError> {
        let library = |error: Error| DedupeError::Library(Box::new(error));
        let trees = &fs.info.trees;
        if trees.transactions().is_some() {
            fs.sync().map_err(library)?;
        }
        let _pin = trees.transactions().map(|transactions| transactions.pin());
        let superblock = last_superblock(fs);
        let geometry = trees.forest().volume().geometry();
        let sector = u64::from(geometry.sector_size);
        let key = StateKey {
            fsid: fs.uuid(),
            sector_size: geometry.sector_size,
            checksum_type: u32::from(superblock.csum_type),
            seed_sectors: self.seed_sectors(sector) as u32,
        };
        let generation = superblock.generation.0;
        let known = self.known_state(&key, generation, observer)?;
        let state = match &self.state {
            Some(path) if !self.dry_run => {
                Some(NewState::create(path, key).map_err(|error| self.state_error(error))?)
            }
            _ => None,
        };
        let wanted = roots.map(|roots| wanted(roots, observer)).transpose()?;
        let found = Scan::new(trees, self, wanted, known, state, observer).run()?;
        let ScanResult { plan, state, unsummed, faults, mut report } = found;
        report.unsummed_extents = unsummed.len() as u64;
        let sizes = (sector, u64::from(geometry.node_size));
        Ok(DedupePlan { plan, state, generation, sizes, unsummed, faults, report })
    }

    /// Makes a plan for an open image and carries it out.
    ///
    /// # Errors
    /// As [`Self::plan`] and [`Self::share`].
    pub fn run(
        &self,
        fs: &FileSystem,
        roots: Option<Vec<WalkRoot>>,
        observer: &mut dyn DedupeObserver,
    ) -> Result<ChecksumDedupeReport, DedupeError> {
        let plan = self.plan(fs, roots, observer)?;
        self.share(plan, DedupePlace::Image(fs), observer)
    }

    fn known_state(
        &self,
        key: &StateKey,
        generation: u64,
        observer: &mut dyn DedupeObserver,
    ) -> Result<Option<KnownState>, DedupeError> {
        let Some(path) = &self.state else { return Ok(None) };
        match KnownState::open(path, key, generation) {
            Ok(known) => Ok(known),
            Err(BadState::Refused(reason)) => Err(DedupeError::State { path: path.clone(), reason }),
            Err(BadState::Unreadable(error)) => Err(self.state_error(error)),
            Err(BadState::Outdated(reason)) => {
                observer.note(&format!("{}: {reason}; all checksums are read anew", path.display()));
                Ok(None)
            }
        }
    }

    /// Carries out a plan, and writes the state file. Failures of single extents go to the
    /// observer.
    ///
    /// # Errors
    /// The mount cannot be reached, or a commit fails; a temporary file or the state file fails;
    /// the observer ends the work.
    pub fn share(
        &self,
        plan: DedupePlan,
        place: DedupePlace<'_>,
        observer: &mut dyn DedupeObserver,
    ) -> Result<ChecksumDedupeReport, DedupeError> {
        let DedupePlan { mut plan, state, generation, sizes, faults, mut report, .. } = plan;
        for error in faults.errors.take() {
            observer.failed(DedupeError::Library(Box::new(error)));
        }
        let sharing = match place {
            DedupePlace::Image(fs) => SharingPlace::Image(fs.clone()),
            DedupePlace::Mounted(path) => {
                let root = MountedPath::open(path).map_err(WalkError::mounted(path))?;
                SharingPlace::Mounted { root, path: path.to_owned() }
            }
        };
        let mut sharer = Sharer::new(self, OpenPlace::new(sharing), sizes, &mut report, observer);
        let mut done = 0;
        while let Some(extent) = plan.next().map_err(spill_error)? {
            if done % BATCH == 0 {
                sharer.settle()?;
            }
            sharer.extent(&extent)?;
            done += 1;
        }
        sharer.settle()?;
        if let Some(state) = state {
            // Nobody else changed the image, and what this run wrote is no copy of anything.
            let generation = match place {
                DedupePlace::Image(fs) => last_superblock(fs).generation.0,
                DedupePlace::Mounted(_) => generation,
            };
            if report.faults == 0 {
                state.finish(generation).map_err(|error| self.state_error(error))?;
            } else {
                observer.note("trees could not be read: the state file stays as it was");
            }
        }
        Ok(report)
    }
}

/// Returns the superblock of the last commit.
fn last_superblock(fs: &FileSystem) -> RawSuperblock {
    match fs.info.trees.transactions() {
        Some(transactions) => transactions.superblock(),
        None => fs.info.volume().superblock().raw,
    }
}

/// Returns the addresses of the extents that the files below `roots` use, ascending.
fn wanted(roots: Vec<WalkRoot>, observer: &mut dyn DedupeObserver) -> Result<Vec<u64>, DedupeError> {
    let mut collected = Wanted { addresses: Vec::new(), bound: COLLECTED, observer };
    let mut walk = FileWalk::new(WantedExtents::Items);
    for root in roots {
        walk.walk(root, &mut collected)?;
    }
    collected.compact();
    Ok(collected.addresses)
}

/// Collects addresses of extents.
struct Wanted<'a> {
    addresses: Vec<u64>,
    /// Addresses at which equal ones are removed.
    bound: usize,
    observer: &'a mut dyn DedupeObserver,
}

impl Wanted<'_> {
    fn compact(&mut self) {
        self.addresses.sort_unstable();
        self.addresses.dedup();
        self.bound = COLLECTED.max(2 * self.addresses.len());
    }
}

impl FileVisitor for Wanted<'_> {
    type Error = DedupeError;

    fn file(&mut self, _: &WalkRoot, _: usize, extents: &[UsedExtent]) -> Result<(), DedupeError> {
        let regular = extents.iter().filter(|(extent, _)| extent.kind == FileExtentKind::Regular);
        self.addresses.extend(regular.map(|(extent, _)| extent.address.0));
        if self.addresses.len() >= self.bound {
            self.compact();
        }
        Ok(())
    }

    fn failed(&mut self, error: WalkError) -> Result<(), DedupeError> {
        self.observer.failed(error.into());
        Ok(())
    }
}
