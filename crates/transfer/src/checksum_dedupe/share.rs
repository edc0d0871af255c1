//! Carrying out a plan: all references of an extent are led to others, so that it becomes free.
//!
//! Owns [`Sharer`].
//!
//! **Invariants**
//! - The file system compares both ranges, locked, before it shares them. Checksums alone share
//!   nothing.
//! - Nothing of an extent is shared unless all its references can be: a part of an extent frees
//!   nothing.
//! - A compressed extent is only replaced by a whole one that is compressed in the same way.
//! - An extent that was given up is no source, and a source is not given up.
//!
//! **Locks:** those of the public methods.

use super::options::ChecksumDedupe;
use super::place::{COPY_OFFSET, FilePlace, OpenPlace, Reference, SharedFile};
use super::plan::{PlannedExtent, SharedRun};
use super::report::{ChecksumDedupeReport, Left};
use crate::dedupe::{DedupeError, DedupeObserver, DedupeStage};
use papilio_engine::data::FileExtentKind;
use papilio_format::TreeId;
use papilio_format::items::file_extent::Compression;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::rc::Rc;

/// Bytes of metadata for one more piece of a file: its item, its key, and the back reference.
const PIECE_COST: u64 = 150;
/// Inodes of which the items fill about one leaf.
const INODES_PER_LEAF: u64 = 32;
/// Sources with equal checksums and other content that are remembered.
const OTHER_SOURCES: usize = 8;

/// The use of an extent in this run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Source,
    GivenUp,
}

/// One request to the file system.
struct Request {
    to: FilePlace,
    target: u64,
    length: u64,
    from: From,
}

/// The other side of a request.
enum From {
    File(FilePlace, u64),
    /// A copy of this many bytes at an offset of the extent.
    Copy(u64, u64),
}

/// The requests for one extent.
struct Requests {
    list: Vec<Request>,
    sources: HashSet<u64>,
    /// Bytes on disk of the parts that are written anew.
    copied: u64,
}

/// The work of one [`ChecksumDedupe::share`].
pub(super) struct Sharer<'a> {
    options: &'a ChecksumDedupe,
    place: OpenPlace,
    sector: u64,
    node_size: u64,
    report: &'a mut ChecksumDedupeReport,
    observer: &'a mut dyn DedupeObserver,
    roles: HashMap<u64, Role>,
    /// Sources whose checksums are those of the key, and whose content is not.
    others: HashMap<u64, Vec<u64>>,
    /// The references of sources, in this batch.
    known: HashMap<u64, Rc<Vec<Reference>>>,
    /// Leaves that are copied already: the subvolume, and the inode by groups.
    copied_leaves: HashSet<(TreeId, u64)>,
    /// Extents without references that the next commit frees: start, length, gain.
    pending: Vec<(u64, u64, u64)>,
}

type Outcome<T> = Result<T, DedupeError>;

impl<'a> Sharer<'a> {
    pub(super) fn new(
        options: &'a ChecksumDedupe,
        place: OpenPlace,
        (sector, node_size): (u64, u64),
        report: &'a mut ChecksumDedupeReport,
        observer: &'a mut dyn DedupeObserver,
    ) -> Self {
        Self {
            options,
            place,
            sector,
            node_size,
            report,
            observer,
            roles: HashMap::new(),
            others: HashMap::new(),
            known: HashMap::new(),
            copied_leaves: HashSet::new(),
            pending: Vec::new(),
        }
    }

    /// Commits, so that the file system knows all references, and counts what became free.
    ///
    /// # Errors
    /// The commit fails.
    pub(super) fn settle(&mut self) -> Outcome<()> {
        self.place.close_files();
        self.place.sync()?;
        self.known.clear();
        for (start, length, gain) in std::mem::take(&mut self.pending) {
            if !self.options.dry_run && self.place.is_used(start, length)? {
                self.report.leave(Left::StillUsed, length);
                continue;
            }
            self.report.freed_extents += 1;
            self.report.freed_bytes += gain;
        }
        Ok(())
    }

    /// Carries out one plan. A failure concerns this extent only, and goes to the observer.
    ///
    /// # Errors
    /// The observer ends the work.
    pub(super) fn extent(&mut self, planned: &PlannedExtent) -> Outcome<()> {
        let done = self.report.freed_bytes;
        self.observer.stage(DedupeStage::Sharing, done).map_err(DedupeError::Stopped)?;
        match self.try_extent(planned) {
            Ok(None) => {}
            Ok(Some(left)) => self.report.leave(left, planned.length),
            Err(error) => {
                self.report.leave(Left::Failed, planned.length);
                self.observer.failed(error);
            }
        }
        Ok(())
    }

    fn try_extent(&mut self, planned: &PlannedExtent) -> Outcome<Option<Left>> {
        if self.roles.get(&planned.start) == Some(&Role::Source) {
            return Ok(Some(Left::Source));
        }
        let references = self.place.references(planned.start, Some(planned.length))?;
        if references.is_empty() {
            return Ok(Some(Left::Changed));
        }
        if references.iter().any(|reference| reference.extent.kind != FileExtentKind::Regular) {
            return Ok(Some(Left::Unwritten));
        }
        if !planned.whole {
            return self.try_source(planned, &references).map(|(left, _)| left);
        }
        // Others may have the same checksums, and another content.
        let first = planned.segments[0].source;
        let others = self.others.get(&first).cloned().unwrap_or_default();
        let mut last = None;
        for source in std::iter::once(first).chain(others) {
            let segments = vec![SharedRun { source, ..planned.segments[0] }];
            let (left, differs) =
                self.try_source(&PlannedExtent { segments, ..planned.clone() }, &references)?;
            if !differs {
                return Ok(left);
            }
            last = left;
        }
        let others = self.others.entry(first).or_default();
        if others.len() < OTHER_SOURCES {
            others.push(planned.start);
        }
        Ok(last)
    }

    /// Shares an extent; also returns whether contents differ.
    fn try_source(
        &mut self,
        planned: &PlannedExtent,
        references: &[Reference],
    ) -> Outcome<(Option<Left>, bool)> {
        let requests = match self.requests(planned, references)? {
            Ok(requests) => requests,
            Err(left) => return Ok((Some(left), false)),
        };
        let leaves = self.leaves_to_copy(references);
        let pieces = requests.list.len().saturating_sub(references.len()) as u64;
        let cost = leaves.len() as u64 * self.node_size + pieces * PIECE_COST;
        if requests.copied + cost >= planned.length {
            return Ok((Some(Left::Metadata), false));
        }
        if !self.options.dry_run && !self.carry_out(planned, &requests, references)? {
            self.report.differing_extents += 1;
            return Ok((Some(Left::Differs), true));
        }
        self.copied_leaves.extend(leaves);
        self.roles.insert(planned.start, Role::GivenUp);
        self.roles.extend(requests.sources.iter().map(|source| (*source, Role::Source)));
        self.report.references += references.len() as u64;
        self.report.copied_bytes += requests.copied;
        self.pending.push((planned.start, planned.length, planned.length - requests.copied));
        Ok((None, false))
    }

    /// Returns the leaves that snapshots share and that would become separate.
    fn leaves_to_copy(&self, references: &[Reference]) -> HashSet<(TreeId, u64)> {
        let leaf = |reference: &Reference| (reference.file.tree, reference.file.inode.0 / INODES_PER_LEAF);
        let mut holders: HashMap<(u64, u64), usize> = HashMap::new();
        for reference in references {
            *holders.entry((reference.file.inode.0, reference.extent.start.0)).or_default() += 1;
        }
        let mut seen = HashSet::new();
        let mut leaves = HashSet::new();
        for reference in references {
            let item = (reference.file.inode.0, reference.extent.start.0);
            // One of the holders keeps the leaf that is shared.
            let is_shared = holders[&item] > 1 && !seen.insert(item);
            if is_shared && !self.copied_leaves.contains(&leaf(reference)) {
                leaves.insert(leaf(reference));
            }
        }
        leaves
    }

    /// Finds the other side of each part of each reference.
    fn requests(
        &mut self,
        planned: &PlannedExtent,
        references: &[Reference],
    ) -> Outcome<Result<Requests, Left>> {
        let mut requests = Requests { list: Vec::new(), sources: HashSet::new(), copied: 0 };
        let compressed = references.iter().any(|one| one.extent.compression != Compression::None);
        if compressed && !planned.whole {
            return Ok(Err(Left::Compressed));
        }
        let mut copies: HashSet<(u64, u64)> = HashSet::new();
        for reference in references {
            let extent = &reference.extent;
            let (mut at, end) = (extent.offset, extent.offset.saturating_add(extent.length));
            while at < end {
                let target = extent.start.0 + (at - extent.offset);
                if target >= reference.size {
                    return Ok(Err(Left::BehindEnd));
                }
                let to = |at: u64| at.min(end);
                let found = self.source_of(planned, reference, at..end, &mut requests.sources)?;
                let (from, until) = match found {
                    Some((file, offset, length)) => (From::File(file, offset), to(at + length)),
                    None if compressed => return Ok(Err(Left::Compressed)),
                    None => {
                        let until = to(self.next_source(planned, at));
                        let length = (until - at).min(reference.size - target);
                        copies.insert((at, length));
                        (From::Copy(at, length), until)
                    }
                };
                let length = (until - at).min(reference.size - target);
                match (requests.list.last_mut(), &from) {
                    // Sectors without a source are found one by one.
                    (
                        Some(Request { to, target: before, length: known, from: From::Copy(start, copied) }),
                        From::Copy(..),
                    ) if *to == reference.file && *before + *known == target && *start + *known == at => {
                        copies.remove(&(at, length));
                        copies.remove(&(*start, *copied));
                        *known += length;
                        *copied += length;
                        copies.insert((*start, *copied));
                    }
                    _ => requests.list.push(Request { to: reference.file, target, length, from }),
                }
                at = until;
            }
        }
        requests.copied = copies.iter().map(|(_, length)| length.next_multiple_of(self.sector)).sum();
        if requests.copied > 0 && !self.options.copies {
            return Ok(Err(Left::Parts));
        }
        if requests.copied > planned.length / 2 {
            return Ok(Err(Left::Parts));
        }
        Ok(Ok(requests))
    }

    /// Returns where the next segment begins after a place without a source, at least a sector on.
    fn next_source(&self, planned: &PlannedExtent, at: u64) -> u64 {
        let inside = planned.segments.iter().any(|one| (one.offset..one.offset + one.length).contains(&at));
        let next = planned.segments.iter().map(|one| one.offset).find(|start| *start > at);
        if inside { at + self.sector } else { next.unwrap_or(u64::MAX) }
    }

    /// Returns a file that has the content of the extent at `part.start`, the offset in it, and for
    /// how many bytes.
    fn source_of(
        &mut self,
        planned: &PlannedExtent,
        reference: &Reference,
        part: Range<u64>,
        used: &mut HashSet<u64>,
    ) -> Outcome<Option<(FilePlace, u64, u64)>> {
        let extent = &reference.extent;
        // The segments of a whole compressed extent are in bytes on disk.
        let segment = planned.segments.iter().copied().find(|one| {
            planned.whole || (one.offset..one.offset.saturating_add(one.length)).contains(&part.start)
        });
        let Some(segment) = segment else { return Ok(None) };
        if self.roles.get(&segment.source) == Some(&Role::GivenUp) {
            return Ok(None);
        }
        let (from, end) = match planned.whole {
            true => (part.start, part.end),
            false => {
                let end = part.end.min(segment.offset + segment.length);
                let there = |at: u64| at - segment.offset + segment.source_offset;
                (there(part.start), there(end))
            }
        };
        let target = extent.start.0 + (part.start - extent.offset);
        let mut best: Option<(FilePlace, u64, u64)> = None;
        for source in self.source_references(&segment, planned)?.iter() {
            let other = &source.extent;
            let alike = other.kind == FileExtentKind::Regular
                && other.compression == extent.compression
                && (extent.compression == Compression::None || other.uncompressed == extent.uncompressed);
            let covered = other.offset..other.offset.saturating_add(other.length);
            if !alike || !covered.contains(&from) {
                continue;
            }
            let offset = other.start.0 + (from - other.offset);
            let length = self.common(covered.end.min(end) - from, (source, offset), (reference, target));
            if length > 0 && best.is_none_or(|(_, _, known)| known < length) {
                best = Some((source.file, offset, length));
            }
        }
        if best.is_some() {
            used.insert(segment.source);
        }
        Ok(best)
    }

    /// Returns how many of `length` bytes both files can share: the last part of a sector only if
    /// both end there.
    fn common(
        &self,
        length: u64,
        (source, offset): (&Reference, u64),
        (reference, target): (&Reference, u64),
    ) -> u64 {
        let (here, there) = (reference.size.saturating_sub(target), source.size.saturating_sub(offset));
        let common = length.min(here.max(1).next_multiple_of(self.sector));
        if here < common && here == there {
            return common;
        }
        let whole = common.min(here).min(there);
        whole - whole % self.sector
    }

    fn source_references(
        &mut self,
        segment: &SharedRun,
        planned: &PlannedExtent,
    ) -> Outcome<Rc<Vec<Reference>>> {
        if let Some(known) = self.known.get(&segment.source) {
            return Ok(Rc::clone(known));
        }
        let length = planned.whole.then_some(planned.length);
        let found = Rc::new(self.place.references(segment.source, length)?);
        self.known.insert(segment.source, Rc::clone(&found));
        Ok(found)
    }

    /// Returns whether all contents were equal.
    fn carry_out(
        &mut self,
        planned: &PlannedExtent,
        requests: &Requests,
        references: &[Reference],
    ) -> Outcome<bool> {
        let mut copies: HashMap<(u64, u64), SharedFile> = HashMap::new();
        for request in &requests.list {
            let Request { to, target, length, .. } = *request;
            self.report.compared_bytes += length;
            let equal = match request.from {
                From::File(file, offset) => self.place.share(Ok(file), offset, length, to, target)?,
                From::Copy(start, copied) => {
                    let key = (start, copied);
                    if let std::collections::hash_map::Entry::Vacant(entry) = copies.entry(key) {
                        entry.insert(self.place.copy(to, target, copied)?);
                    }
                    self.place.share(Err(&copies[&key]), COPY_OFFSET, length, to, target)?
                }
            };
            if !equal {
                return Ok(false);
            }
        }
        debug_assert!(references.iter().all(|one| one.extent.address.0 == planned.start));
        Ok(true)
    }
}
