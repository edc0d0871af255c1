//! Defragmenting files without unsharing: small extents become larger ones, and all files and
//! snapshots that refer to them follow. [`super::shared_recompress`] stores extents in another way.
//!
//! Owns [`SharedDefragment`], which collects the extents of files in *windows*. Of each window it
//! merges the *runs*: pieces that lie one behind the other in a file, and in every other file that
//! has one of them. The runs that share extents with one another are a *group*, which moves at once
//! or not at all.
//!
//! **Invariants**
//! - Data needs at most as much space afterwards, for every subvolume and in total. Parts of old
//!   extents that nobody uses are given back.
//! - No byte, no inode and no number of a transaction changes, so that read-only snapshots and
//!   comparisons of snapshots stay as they are.
//! - Each batch is one transaction. Every committed state is a complete file system, and the job
//!   can end after any batch.
//! - Neither a send nor a balance runs meanwhile.
//!
//! **Locks:** those of [`FsInfo::merge_extents`]; none while data is copied. The old space stays
//! pinned from the look at the trees until the batch is done.
//!
//! Kernel counterpart: none; `btrfs_defrag_file` (`fs/btrfs/defrag.c`) unshares.

use super::shared_runs::{RunGroup, WindowPiece, groups, runs};
use crate::btree::ReadPin;
use crate::data::extent_map::{Extent, ExtentKind, FileExtents};
use crate::errors::{Error, PathError, Result};
use crate::file::exclusive::{Operation, Running};
use crate::file::fs_info::FsInfo;
use crate::items::inode::inode;
use crate::namespace::Place;
use crate::options::CompressionChoice;
use crate::transaction::{DataExtent, ExtentPiece, MergedExtent, PieceSharing, StayReason, Transactions};
use papilio_format::items::file_extent::{Compression, MAX_UNCOMPRESSED};
use papilio_format::items::inode::InodeFlags;
use papilio_format::{FileOffset, LogicalAddress};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::time::{Duration, Instant};

/// A window is full with so many bytes or pieces, where no extent reaches past its end.
const WINDOW_BYTES: u64 = 32 << 20;
const WINDOW_PIECES: usize = 4096;
/// A window ends with so many bytes or pieces in any case.
const MOST_BYTES: u64 = 256 << 20;
const MOST_PIECES: usize = 16384;
/// The most and the least bytes of a new extent where space allows.
const LARGEST: u64 = 32 << 20;
const LEAST: u64 = 128 << 10;
/// How often a batch is tried, each time without the groups that have changed meanwhile.
pub(super) const TRIES: usize = 3;
/// Ranges of so many bytes, or so many ranges, are merged and then stored in another way.
const CHUNK_BYTES: u64 = 256 << 20;
const CHUNK_RANGES: usize = 4096;
/// Most extents that stay of which the report tells.
const MOST_LISTED: usize = 10_000;

/// The extents to merge, and when to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedDefragmentOptions {
    /// Parts of files of so many bytes or more that are one extent stay as they are.
    pub threshold: u64,
    /// Stops before more bytes are written.
    pub max_bytes: Option<u64>,
    /// Stops before more extents are replaced.
    pub max_extents: Option<u64>,
    /// Begins no batch after this time.
    pub max_time: Option<Duration>,
    /// Stores extents in this way if that makes them smaller; with [`CompressionChoice::NONE`]
    /// those that are compressed without compression, which needs more space.
    pub compression: Option<CompressionChoice>,
}

/// 32 MiB, no limits, and extents stored as they are.
impl Default for SharedDefragmentOptions {
    fn default() -> Self {
        let (max_bytes, max_extents, max_time, compression) = Default::default();
        Self { threshold: LARGEST, max_bytes, max_extents, max_time, compression }
    }
}

/// An extent that stays, and a place of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StayingExtent {
    /// A file that has it.
    pub place: Place,
    /// Where it begins in the file.
    pub offset: u64,
    /// Why it stays.
    pub reason: StayReason,
}

/// The work of a job so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedDefragmentReport {
    /// Extents that are gone.
    pub replaced: u64,
    /// Extents that took their place.
    pub made: u64,
    /// Bytes that were written.
    pub bytes: u64,
    /// Bytes of the old extents that nobody used, and that are free now.
    pub freed: u64,
    /// Bytes that the extents need less because they are stored in another way.
    pub saved: u64,
    /// Bytes that the extents need more, because they are no longer compressed.
    pub grown: u64,
    /// Neighbours that stay apart because some file or subvolume has only one of them.
    pub apart: u64,
    /// The number of extents that stay, which might have been merged otherwise.
    pub stay: BTreeMap<StayReason, u64>,
    /// The first of these extents.
    pub staying: Vec<StayingExtent>,
    /// Whether a limit, or the caller, ended the job early.
    pub stopped: bool,
}

/// A defragmentation that keeps extents shared.
pub struct SharedDefragment<'a> {
    pub(super) info: &'a FsInfo,
    pub(super) transactions: &'a Transactions,
    pub(super) options: SharedDefragmentOptions,
    pub(super) progress: &'a mut dyn FnMut(&SharedDefragmentReport) -> bool,
    window: Vec<WindowPiece>,
    /// Holds the space of the window's extents. Taken before the first of them was found.
    pub(super) pin: Option<ReadPin>,
    pub(super) report: SharedDefragmentReport,
    /// Most bytes of a new extent, as far as free space is contiguous.
    largest: u64,
    /// Ranges of files whose extents are to be stored in another way, and their bytes.
    ranges: Vec<(Place, Range<u64>)>,
    range_bytes: u64,
    /// Extents that were stored in another way, or that stay.
    pub(super) tried: HashSet<LogicalAddress>,
    started: Instant,
    _running: Running<'a>,
}

impl FsInfo {
    /// Begins to defragment files without unsharing them. Calls `progress` after each batch;
    /// `false` stops.
    ///
    /// # Errors
    /// [`Error::ReadOnlyFileSystem`]; [`Error::Busy`] while another operation or a send runs; as
    /// [`FsInfo::sync`].
    pub fn defragment_shared<'a>(
        &'a self,
        options: &SharedDefragmentOptions,
        progress: &'a mut dyn FnMut(&SharedDefragmentReport) -> bool,
    ) -> Result<SharedDefragment<'a>> {
        let transactions: &Transactions = self.transactions()?;
        let running = self.exclusive.begin(Operation::Defragment)?;
        // Then the trees have all data that was written until now.
        self.sync()?;
        let mut options = options.clone();
        if options.compression.is_some_and(|choice| choice != CompressionChoice::NONE) {
            // Larger ones would be split again.
            options.threshold = options.threshold.min(MAX_UNCOMPRESSED);
        }
        Ok(SharedDefragment {
            info: self,
            transactions,
            progress,
            window: Vec::new(),
            pin: None,
            report: SharedDefragmentReport::default(),
            largest: LARGEST.min(options.threshold.max(LEAST)),
            options,
            ranges: Vec::new(),
            range_bytes: 0,
            tried: HashSet::new(),
            started: Instant::now(),
            _running: running,
        })
    }
}

impl SharedDefragment<'_> {
    /// Defragments a range of a file, at the latest in [`SharedDefragment::finish`]. Returns
    /// whether the job goes on.
    ///
    /// # Errors
    /// As [`SharedDefragment::finish`]. An inode that is gone, and a file with damage, are counted
    /// in the report.
    pub fn add(&mut self, place: Place, range: Range<u64>) -> Result<bool> {
        if self.options.compression.is_none() {
            self.merge_range(place, range)?;
            return Ok(!self.report.stopped);
        }
        let size = || inode(&self.info.trees.subvolume_in_use(place.tree)?.tree, place.inode);
        // An inode that cannot be read is told about when its extents are looked for.
        let size = size().ok().flatten().map_or(1, |item| item.size.next_multiple_of(MAX_UNCOMPRESSED));
        let (mut at, end) = (range.start, range.end.min(size));
        while at < end && !self.report.stopped {
            let next = end.min(at.saturating_add(CHUNK_BYTES));
            self.ranges.push((place, at..next));
            self.range_bytes += next - at;
            at = next;
            if self.range_bytes >= CHUNK_BYTES || self.ranges.len() >= CHUNK_RANGES {
                self.work_on_ranges()?;
            }
        }
        Ok(!self.report.stopped)
    }

    /// Merges small extents of the collected ranges, and stores all of them in another way.
    fn work_on_ranges(&mut self) -> Result<()> {
        self.range_bytes = 0;
        let ranges = std::mem::take(&mut self.ranges);
        let plain = self.options.compression == Some(CompressionChoice::NONE);
        if plain {
            self.recompress_ranges(&ranges)?;
        }
        for (place, range) in &ranges {
            self.merge_range(*place, range.clone())?;
        }
        if !self.report.stopped {
            self.merge_window()?;
        }
        if !plain {
            self.recompress_ranges(&ranges)?;
        }
        Ok(())
    }

    /// Merges the extents in a range of a file, at the latest in [`SharedDefragment::finish`].
    fn merge_range(&mut self, place: Place, range: Range<u64>) -> Result<()> {
        let mut at = range.start;
        while at < range.end && !self.report.stopped {
            let pin = self.pin.take().unwrap_or_else(|| self.transactions.pin());
            self.pin = Some(pin);
            let (pieces, reached) = match self.pieces_of(place, at..range.end) {
                Ok(found) => found,
                Err(error) => {
                    self.transactions.check_running()?;
                    let reason = match error {
                        Error::Path { .. } => StayReason::Changed,
                        error => StayReason::Damaged(error.to_string()),
                    };
                    self.stays_apart(place, at, reason);
                    break;
                }
            };
            at = reached.unwrap_or(range.end);
            if is_fragmented(&pieces) {
                self.window.extend(pieces);
            }
            let bytes: u64 = self.window.iter().map(|piece| piece.piece.length).sum();
            if bytes >= WINDOW_BYTES || self.window.len() >= WINDOW_PIECES {
                self.merge_window()?;
            } else if self.window.is_empty() {
                self.pin = None;
            }
        }
        Ok(())
    }

    /// Defragments the rest of the files, and returns the report of the whole job.
    ///
    /// # Errors
    /// [`Error::NoSpace`] for metadata; as [`FsInfo::sync`].
    pub fn finish(mut self) -> Result<SharedDefragmentReport> {
        if !self.report.stopped {
            self.work_on_ranges()?;
        }
        Ok(self.report)
    }

    /// Returns the pieces of a file from an offset on, for one window, and where they end if more
    /// follow.
    fn pieces_of(&mut self, place: Place, range: Range<u64>) -> Result<(Vec<WindowPiece>, Option<u64>)> {
        let info = self.info;
        let tree = &info.trees.subvolume_in_use(place.tree)?.tree;
        let gone = || Error::Path { path: place.inode.to_string().into_bytes(), kind: PathError::NotFound };
        let item = inode(tree, place.inode)?.ok_or_else(gone)?;
        let mut pieces: Vec<WindowPiece> = Vec::new();
        let unsummed = item.flags.intersects(InodeFlags::NODATASUM | InodeFlags::NODATACOW);
        let sector = info.volume().geometry().sector_size;
        let end = range.end.min(item.size.next_multiple_of(u64::from(sector)));
        if range.start >= end {
            return Ok((pieces, None));
        }
        let (mut follows, mut bytes, mut reach) = (false, 0, 0);
        let (start, last) = (FileOffset(range.start), FileOffset(end));
        for extent in FileExtents::whole(tree, place.inode, sector, start, last) {
            let extent = extent?;
            let full = bytes >= WINDOW_BYTES || pieces.len() >= WINDOW_PIECES;
            let over = bytes >= MOST_BYTES || pieces.len() >= MOST_PIECES;
            if over || full && extent.start.0 >= reach {
                return Ok((pieces, Some(extent.start.0)));
            }
            let Some(piece) = self.candidate(place, &extent, unsummed) else {
                follows = false;
                continue;
            };
            let begin = extent.start.0.saturating_sub(piece.offset);
            reach = reach.max(begin.saturating_add(piece.extent_length));
            bytes += piece.length;
            match pieces.last_mut() {
                Some(last) if follows && last.continues_in(&piece) => last.piece.length += piece.length,
                _ => pieces.push(WindowPiece { piece, follows, place, offset: extent.start.0 }),
            }
            follows = true;
        }
        Ok((pieces, None))
    }

    /// Returns the part of an extent that a file uses, if it may be merged with others.
    fn candidate(&mut self, place: Place, extent: &Extent, unsummed: bool) -> Option<ExtentPiece> {
        let length = extent.end.0 - extent.start.0;
        let (disk, reason) = match extent.kind {
            ExtentKind::Hole | ExtentKind::Inline(_) => return None,
            ExtentKind::Regular(disk) if disk.compression != Compression::None => {
                (disk, Some(StayReason::Compressed))
            }
            ExtentKind::Regular(disk) if unsummed => (disk, Some(StayReason::NoChecksums)),
            ExtentKind::Regular(disk) => (disk, None),
            ExtentKind::Prealloc(disk) => (disk, Some(StayReason::Preallocated)),
        };
        if length >= self.options.threshold {
            return None;
        }
        if let Some(reason) = reason {
            self.stays_apart(place, extent.start.0, reason);
            return None;
        }
        let (address, extent_length) = (disk.disk_address, disk.disk_length);
        Some(ExtentPiece { extent: address, extent_length, offset: disk.offset, length })
    }

    /// Counts an extent that stays for itself. One that is to be stored in another way is counted
    /// there.
    fn stays_apart(&mut self, place: Place, offset: u64, reason: StayReason) {
        if self.options.compression.is_none() {
            self.stays(place, offset, reason);
        }
    }

    pub(super) fn stays(&mut self, place: Place, offset: u64, reason: StayReason) {
        *self.report.stay.entry(reason.clone()).or_default() += 1;
        if self.report.staying.len() < MOST_LISTED {
            self.report.staying.push(StayingExtent { place, offset, reason });
        }
    }

    /// Merges the runs of the window, and empties it.
    fn merge_window(&mut self) -> Result<()> {
        let window = without_repeats(std::mem::take(&mut self.window));
        let mut pending = vec![window];
        while let Some(window) = pending.pop() {
            if window.is_empty() || self.report.stopped {
                continue;
            }
            let pieces: Vec<_> = window.iter().map(|piece| piece.piece).collect();
            match self.transactions.sharing_of(&pieces)? {
                Some(sharing) => self.merge_runs(&window, &sharing)?,
                None => {
                    // Too much for one look: the second half comes later.
                    let mut first = window;
                    let second = first.split_off(first.len() / 2);
                    pending.extend([second, first]);
                }
            }
        }
        self.pin = None;
        Ok(())
    }

    fn merge_runs(&mut self, window: &[WindowPiece], sharing: &[PieceSharing]) -> Result<()> {
        let mut told = HashSet::new();
        for (piece, sharing) in window.iter().zip(sharing) {
            if let PieceSharing::Stays(reason) = sharing
                && told.insert(piece.piece.extent)
            {
                self.stays_apart(piece.place, piece.offset, reason.clone());
            }
        }
        let is_apart = |pair: &[(&WindowPiece, &PieceSharing)]| {
            let both = pair.iter().all(|(_, sharing)| matches!(sharing, PieceSharing::Movable(_)));
            both && pair[1].0.follows && pair[0].1 != pair[1].1
        };
        let both: Vec<_> = window.iter().zip(sharing).collect();
        self.report.apart += both.windows(2).filter(|pair| is_apart(pair)).count() as u64;
        loop {
            // A run that exceeds a limit is cut, so that there is progress.
            let left = self.options.max_bytes.map_or(u64::MAX, |most| most.saturating_sub(self.report.bytes));
            let most = self.options.max_extents.unwrap_or(u64::MAX).saturating_sub(self.report.replaced);
            let most = usize::try_from(most).unwrap_or(usize::MAX).max(1);
            let groups = groups(runs(window, sharing, self.largest.min(left), most));
            let groups = self.within_limits(groups);
            if groups.is_empty() {
                return Ok(());
            }
            if let Some(placed) = self.place(groups)? {
                return self.merge_placed(placed);
            }
            self.largest = (self.largest / 4).max(LEAST);
        }
    }

    /// Whether the time is over.
    pub(super) fn is_late(&self) -> bool {
        self.options.max_time.is_some_and(|most| self.started.elapsed() >= most)
    }

    /// Returns the first groups, as many as the limits allow.
    fn within_limits(&mut self, groups: Vec<RunGroup>) -> Vec<RunGroup> {
        if self.is_late() {
            self.report.stopped |= !groups.is_empty();
            return Vec::new();
        }
        let (mut bytes, mut extents) = (self.report.bytes, self.report.replaced);
        let all = groups.len();
        let mut kept = Vec::new();
        for group in groups {
            bytes += group.bytes();
            extents += group.extents().len() as u64;
            let most_bytes = self.options.max_bytes.is_some_and(|most| bytes > most);
            if most_bytes || self.options.max_extents.is_some_and(|most| extents > most) {
                break;
            }
            kept.push(group);
        }
        self.report.stopped |= kept.len() < all;
        kept
    }

    /// Allocates the new extents; `None` if smaller ones may be possible.
    fn place(&mut self, groups: Vec<RunGroup>) -> Result<Option<Vec<PlacedGroup>>> {
        let mut placed: Vec<PlacedGroup> = Vec::new();
        for group in groups {
            let mut merged = Vec::new();
            let mut failure = None;
            for run in &group.runs {
                let length = run.bytes();
                let found =
                    self.transactions.retry_after_commits(|| self.transactions.allocate_data(length, length));
                match found {
                    Ok(range) => {
                        let place = DataExtent { address: range.start, length };
                        let pieces = run.pieces.iter().map(|piece| piece.piece).collect();
                        merged.push(MergedExtent { place, pieces, checksums: Vec::new() });
                    }
                    Err(error) => {
                        failure = Some(error);
                        break;
                    }
                }
            }
            let group = PlacedGroup { group, merged };
            match failure {
                None => placed.push(group),
                Some(Error::NoSpace { .. }) if self.largest > LEAST => {
                    self.release(&group);
                    placed.iter().for_each(|group| self.release(group));
                    return Ok(None);
                }
                Some(Error::NoSpace { .. }) => self.give_up(group, &StayReason::NoSpace),
                Some(error) => return Err(error),
            }
        }
        Ok(Some(placed))
    }

    fn merge_placed(&mut self, groups: Vec<PlacedGroup>) -> Result<()> {
        let mut groups = self.gather(groups)?;
        for _ in 0..TRIES {
            let merged: Vec<_> = groups.iter().flat_map(|group| group.merged.iter().cloned()).collect();
            if merged.is_empty() {
                return Ok(());
            }
            let fit = match self.info.merge_extents(&merged) {
                Ok(fit) => fit,
                Err(error) => {
                    self.transactions.check_running()?;
                    groups.iter().for_each(|group| self.release(group));
                    if matches!(error, Error::NoSpace { .. }) {
                        return Err(error);
                    }
                    let why = StayReason::Damaged(error.to_string());
                    groups.into_iter().for_each(|group| self.tell_staying(&group, &why));
                    return Ok(());
                }
            };
            if !fit.contains(&false) {
                self.count(&groups);
                let goes_on = (self.progress)(&self.report);
                self.report.stopped |= !goes_on;
                return Ok(());
            }
            let mut fit = fit.into_iter();
            let mut left = Vec::new();
            for group in groups {
                let fits: Vec<_> = fit.by_ref().take(group.merged.len()).collect();
                if fits.contains(&false) {
                    self.give_up(group, &StayReason::Changed);
                } else {
                    left.push(group);
                }
            }
            groups = left;
        }
        groups.into_iter().for_each(|group| self.give_up(group, &StayReason::Changed));
        Ok(())
    }

    /// Copies the data of groups. Returns those whose data could be read.
    fn gather(&mut self, groups: Vec<PlacedGroup>) -> Result<Vec<PlacedGroup>> {
        let mut all: Vec<_> = groups.iter().flat_map(|group| group.merged.iter().cloned()).collect();
        let failures = match self.info.gather_extents(&mut all) {
            Ok(failures) => failures,
            Err(error) => {
                groups.iter().for_each(|group| self.release(group));
                return Err(error);
            }
        };
        let mut gathered = all.into_iter().zip(failures);
        let mut good = Vec::new();
        for mut group in groups {
            let mut reason = None;
            for extent in &mut group.merged {
                let (copied, failure) = gathered.next().expect("each extent was copied");
                *extent = copied;
                reason = reason.or(failure);
            }
            match reason {
                Some(reason) => self.give_up(group, &reason),
                None => good.push(group),
            }
        }
        Ok(good)
    }

    fn count(&mut self, groups: &[PlacedGroup]) {
        for PlacedGroup { group, merged } in groups {
            let extents = group.extents();
            self.report.replaced += extents.len() as u64;
            self.report.made += merged.len() as u64;
            self.report.bytes += group.bytes();
            self.report.freed += extents.values().sum::<u64>() - group.bytes();
        }
    }

    fn release(&self, group: &PlacedGroup) {
        group.merged.iter().for_each(|extent| self.transactions.release_extent(extent.place));
    }

    /// Releases the new space of a group, whose extents stay.
    fn give_up(&mut self, group: PlacedGroup, reason: &StayReason) {
        self.release(&group);
        self.tell_staying(&group, reason);
    }

    fn tell_staying(&mut self, group: &PlacedGroup, reason: &StayReason) {
        let mut told = HashSet::new();
        for piece in group.group.runs.iter().flat_map(|run| &run.pieces) {
            if told.insert(piece.piece.extent) {
                self.stays_apart(piece.place, piece.offset, reason.clone());
            }
        }
    }
}

/// A group with the new extents of its runs, as far as they have been allocated.
struct PlacedGroup {
    group: RunGroup,
    merged: Vec<MergedExtent>,
}

/// Whether any two neighbours in a file lie apart on disk.
fn is_fragmented(pieces: &[WindowPiece]) -> bool {
    pieces.windows(2).any(|pair| pair[1].follows && !pair[0].touches(&pair[1]))
}

/// Leaves pieces out that the window has already, also in part.
fn without_repeats(window: Vec<WindowPiece>) -> Vec<WindowPiece> {
    let mut known: BTreeMap<LogicalAddress, Vec<Range<u64>>> = BTreeMap::new();
    let mut kept = Vec::with_capacity(window.len());
    let mut follows = true;
    for piece in window {
        let range = piece.piece.offset..piece.piece.offset + piece.piece.length;
        let own = known.entry(piece.piece.extent).or_default();
        if own.iter().any(|other| other.start < range.end && range.start < other.end) {
            follows = false;
            continue;
        }
        own.push(range);
        kept.push(WindowPiece { follows: piece.follows && follows, ..piece });
        follows = true;
    }
    kept
}
