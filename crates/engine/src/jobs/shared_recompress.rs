//! Storing the extents of files in another way, without unsharing them.
//!
//! Owns the part of [`SharedDefragment`] that compresses extents, or stores compressed ones
//! plainly, for all files and snapshots that refer to them.
//!
//! **Invariants**
//! - An extent is replaced only if its data and the tree blocks that it needs more take less space
//!   than before, unless compression is given up.
//! - Each batch is one transaction. The job can end after any batch.
//! - An extent is tried once in a job.
//!
//! **Locks**: those of `FsInfo::recompress_extents`; none while data is read and compressed. The
//! old space stays pinned from the look at the trees until the batch is done.
//!
//! Kernel counterpart: none; `btrfs_defrag_file` (`fs/btrfs/defrag.c`) unshares.

use super::extent_recoding::Recoded;
use super::shared_defragment::{SharedDefragment, TRIES};
use crate::data::extent_map::{ExtentKind, FileExtents};
use crate::errors::{Error, PathError, Result};
use crate::items::inode::inode;
use crate::namespace::Place;
use crate::options::CompressionChoice;
use crate::transaction::{
    DataExtent, ExtentUse, ExtentUsed, MovedPiece, Recompressed, RecompressedExtent, StayReason,
};
use papilio_format::items::file_extent::{Compression, MAX_UNCOMPRESSED};
use papilio_format::items::inode::InodeFlags;
use papilio_format::{FileOffset, LogicalAddress};
use std::ops::Range;

/// A batch is full with so many bytes or extents.
const BATCH_BYTES: u64 = 32 << 20;
const BATCH_EXTENTS: usize = 2048;
/// Most extents that a job remembers. After that, it may try some again.
const MOST_TRIED: usize = 1 << 22;
/// Bytes of a file extent in a leaf, with its header.
const FILE_EXTENT_BYTES: u64 = 78;
/// Bytes of an extent item with its header, and of a back reference in it.
const EXTENT_BYTES: u64 = 49;
const REFERENCE_BYTES: u64 = 32;

/// An extent that may be stored in another way, and a place of it.
#[derive(Clone, Copy, Debug)]
struct TriedExtent {
    address: LogicalAddress,
    place: Place,
    offset: u64,
}

/// An extent whose pieces have been written.
struct WrittenPieces {
    candidate: TriedExtent,
    extent: RecompressedExtent,
}

impl WrittenPieces {
    fn bytes(&self) -> u64 {
        self.extent.pieces.iter().map(|piece| piece.place.length).sum()
    }
}

impl SharedDefragment<'_> {
    /// Stores the extents in ranges of files in another way, unless the job has ended.
    pub(super) fn recompress_ranges(&mut self, ranges: &[(Place, Range<u64>)]) -> Result<()> {
        let mut batch = Vec::new();
        for (place, range) in ranges {
            let mut at = range.start;
            while at < range.end && !self.report.stopped {
                if self.pin.is_none() {
                    self.pin = Some(self.transactions.pin());
                }
                let found = self.add_candidates(*place, at..range.end, &mut batch);
                let reached = match found {
                    Ok(reached) => reached,
                    Err(error) => {
                        self.transactions.check_running()?;
                        let reason = match error {
                            Error::Path { .. } => StayReason::Changed,
                            error => StayReason::Damaged(error.to_string()),
                        };
                        self.stays(*place, at, reason);
                        None
                    }
                };
                at = reached.unwrap_or(range.end);
                if reached.is_some() {
                    self.recompress_batch(&mut batch)?;
                } else if batch.is_empty() {
                    self.pin = None;
                }
            }
        }
        self.recompress_batch(&mut batch)
    }

    /// Adds the extents of a file to a batch. Returns where it goes on, if the batch is full.
    fn add_candidates(
        &mut self,
        place: Place,
        range: Range<u64>,
        batch: &mut Vec<TriedExtent>,
    ) -> Result<Option<u64>> {
        let Some(choice) = self.options.compression else { return Ok(None) };
        let info = self.info;
        let tree = &info.trees.subvolume_in_use(place.tree)?.tree;
        let gone = || Error::Path { path: place.inode.to_string().into_bytes(), kind: PathError::NotFound };
        let item = inode(tree, place.inode)?.ok_or_else(gone)?;
        let unsummed = item.flags.intersects(InodeFlags::NODATASUM | InodeFlags::NODATACOW);
        let sector = info.volume().geometry().sector_size;
        let end = range.end.min(item.size.next_multiple_of(u64::from(sector)));
        if range.start >= end {
            return Ok(None);
        }
        // A level that was asked for may be another one than that of an extent.
        let any_level = choice != CompressionChoice::new(choice.algorithm());
        let mut bytes: u64 = 0;
        for extent in FileExtents::whole(tree, place.inode, sector, FileOffset(range.start), FileOffset(end))
        {
            let extent = extent?;
            if bytes >= BATCH_BYTES || batch.len() >= BATCH_EXTENTS {
                return Ok(Some(extent.start.0));
            }
            let ExtentKind::Regular(disk) = extent.kind else { continue };
            let is_so = disk.compression == choice.algorithm();
            if is_so && (!any_level || disk.compression == Compression::None) {
                continue;
            }
            if self.tried.len() >= MOST_TRIED {
                self.tried.clear();
            }
            if !self.tried.insert(disk.disk_address) {
                continue;
            }
            if unsummed {
                self.stays(place, extent.start.0, StayReason::NoChecksums);
                continue;
            }
            bytes += disk.disk_length;
            batch.push(TriedExtent { address: disk.disk_address, place, offset: extent.start.0 });
        }
        // Small files share a batch, up to a number of extents.
        Ok(None)
    }

    /// Stores the extents of a batch in another way, as far as that makes them smaller, and empties
    /// it.
    fn recompress_batch(&mut self, batch: &mut Vec<TriedExtent>) -> Result<()> {
        let mut pending = vec![std::mem::take(batch)];
        while let Some(mut candidates) = pending.pop() {
            if candidates.is_empty() || self.report.stopped {
                continue;
            }
            let addresses: Vec<_> = candidates.iter().map(|candidate| candidate.address).collect();
            match self.transactions.uses_of(&addresses)? {
                Some(uses) => self.recompress_used(&candidates, uses)?,
                None => {
                    let second = candidates.split_off(candidates.len() / 2);
                    pending.extend([second, candidates]);
                }
            }
        }
        self.pin = None;
        Ok(())
    }

    /// Reads, compresses and replaces extents, in steps of a bounded number of bytes.
    fn recompress_used(&mut self, candidates: &[TriedExtent], uses: Vec<ExtentUsed>) -> Result<()> {
        let mut step: Vec<(TriedExtent, ExtentUse)> = Vec::new();
        let mut bytes = 0;
        for (candidate, used) in candidates.iter().zip(uses) {
            let used = match used {
                ExtentUsed::By(used) => used,
                ExtentUsed::Stays(reason) => {
                    self.stays(candidate.place, candidate.offset, reason);
                    continue;
                }
            };
            let own = plain_bytes(&used);
            if !step.is_empty() && bytes + own > BATCH_BYTES {
                self.recompress_step(std::mem::take(&mut step))?;
                bytes = 0;
            }
            if self.report.stopped || self.exceeds_limits(bytes + own, step.len() as u64 + 1) {
                self.report.stopped = true;
                break;
            }
            bytes += own;
            step.push((*candidate, used));
        }
        let stopped = self.report.stopped;
        // Those before the limit are done all the same.
        self.recompress_step(step)?;
        self.report.stopped |= stopped;
        Ok(())
    }

    /// Whether a batch of so many bytes and extents is too much.
    fn exceeds_limits(&self, bytes: u64, extents: u64) -> bool {
        let (options, report) = (&self.options, &self.report);
        self.is_late()
            || options.max_bytes.is_some_and(|most| report.bytes + bytes > most)
            || options.max_extents.is_some_and(|most| report.replaced + extents > most)
    }

    fn recompress_step(&mut self, step: Vec<(TriedExtent, ExtentUse)>) -> Result<()> {
        let Some(choice) = self.options.compression.filter(|_| !step.is_empty()) else { return Ok(()) };
        let extents: Vec<_> = step.iter().map(|(candidate, used)| (candidate.address, used)).collect();
        let recoded = self.info.recode_extents(&extents, choice)?;
        let mut drafts = Vec::new();
        for ((candidate, used), pieces) in step.into_iter().zip(recoded) {
            let reason = match pieces {
                Err(reason) => reason,
                Ok(pieces) if choice != CompressionChoice::NONE && self.gain(&used, &pieces) <= 0 => {
                    StayReason::NotSmaller
                }
                Ok(pieces) => match self.write_pieces(candidate, used, pieces)? {
                    Ok(draft) => {
                        drafts.push(draft);
                        continue;
                    }
                    Err(reason) => reason,
                },
            };
            self.stays(candidate.place, candidate.offset, reason);
        }
        let mut pending = vec![drafts];
        while let Some(drafts) = pending.pop() {
            if let Some(halves) = self.replace(drafts)? {
                pending.extend(halves);
            }
        }
        let goes_on = (self.progress)(&self.report);
        self.report.stopped |= !goes_on;
        Ok(())
    }

    /// Returns how many bytes of data a change saves beyond those of the metadata that it needs.
    fn gain(&self, used: &ExtentUse, pieces: &[Recoded]) -> i64 {
        let stored: u64 = pieces.iter().map(|piece| piece.bytes.len() as u64).sum();
        let overlaps = |part: &Range<u64>| {
            let met =
                pieces.iter().filter(|piece| piece.range.start < part.end && part.start < piece.range.end);
            met.count().saturating_sub(1) as u64
        };
        let items: u64 = if pieces.len() > 1 { used.parts.iter().map(overlaps).sum() } else { 0 };
        let extents = pieces.len().saturating_sub(1) as u64;
        let extents = extents * (EXTENT_BYTES + REFERENCE_BYTES * used.references as u64);
        // Leaves are about two thirds full.
        let metadata = (items * FILE_EXTENT_BYTES + extents) * 3 / 2;
        let (of_metadata, of_data) = self.transactions.copies();
        let metadata = metadata.saturating_mul(of_metadata).div_ceil(of_data);
        used.length as i64 - stored as i64 - i64::try_from(metadata).unwrap_or(i64::MAX / 2)
    }

    /// Writes the pieces of an extent to new space.
    fn write_pieces(
        &self,
        candidate: TriedExtent,
        used: ExtentUse,
        recoded: Vec<Recoded>,
    ) -> Result<std::result::Result<WrittenPieces, StayReason>> {
        let mut pieces: Vec<(MovedPiece, Vec<u8>)> = Vec::with_capacity(recoded.len());
        let release = |pieces: &[(MovedPiece, Vec<u8>)]| {
            pieces.iter().for_each(|(piece, _)| self.transactions.release_extent(piece.place));
        };
        for one in recoded {
            let length = one.bytes.len() as u64;
            let place =
                self.transactions.retry_after_commits(|| self.transactions.allocate_data(length, length));
            let place = match place {
                Ok(range) => DataExtent { address: range.start, length },
                Err(error) => {
                    release(&pieces);
                    let no_space = matches!(error, Error::NoSpace { .. });
                    return if no_space { Ok(Err(StayReason::NoSpace)) } else { Err(error) };
                }
            };
            let (offset, length) = (one.range.start, one.range.end - one.range.start);
            let piece = MovedPiece { offset, length, compression: one.compression, place };
            pieces.push((piece, one.bytes));
        }
        let mut checksums = Vec::new();
        for written in self.info.write_recoded(&pieces) {
            match written {
                Ok(sums) => checksums.extend(sums),
                Err(reason) => {
                    release(&pieces);
                    return Ok(Err(reason));
                }
            }
        }
        let pieces = pieces.into_iter().map(|(piece, _)| piece).collect();
        let extent = RecompressedExtent { from: candidate.address, used, pieces, checksums };
        Ok(Ok(WrittenPieces { candidate, extent }))
    }

    /// Lets the trees refer to new pieces. Returns halves of the drafts if all of them together
    /// need too many tree blocks.
    fn replace(&mut self, mut drafts: Vec<WrittenPieces>) -> Result<Option<[Vec<WrittenPieces>; 2]>> {
        for _ in 0..TRIES {
            if drafts.is_empty() {
                return Ok(None);
            }
            let extents: Vec<_> = drafts.iter().map(|draft| draft.extent.clone()).collect();
            let changed = match self.info.recompress_extents(&extents, self.most_more_blocks(&drafts)) {
                Ok(Recompressed::Done) => {
                    self.count_recompressed(&drafts);
                    return Ok(None);
                }
                Ok(Recompressed::Changed(changed)) => changed,
                Ok(Recompressed::Grows) if drafts.len() > 1 => {
                    let second = drafts.split_off(drafts.len() / 2);
                    return Ok(Some([second, drafts]));
                }
                Ok(Recompressed::Grows) => {
                    self.give_up_drafts(drafts, &StayReason::NotSmaller);
                    return Ok(None);
                }
                Err(error) => {
                    self.transactions.check_running()?;
                    let is_space = matches!(error, Error::NoSpace { .. });
                    self.give_up_drafts(drafts, &StayReason::Damaged(error.to_string()));
                    return if is_space { Err(error) } else { Ok(None) };
                }
            };
            let (gone, left): (Vec<_>, Vec<_>) =
                drafts.into_iter().enumerate().partition(|(index, _)| changed.contains(index));
            self.give_up_drafts(gone.into_iter().map(|(_, draft)| draft).collect(), &StayReason::Changed);
            drafts = left.into_iter().map(|(_, draft)| draft).collect();
        }
        self.give_up_drafts(drafts, &StayReason::Changed);
        Ok(None)
    }

    /// How many tree blocks more than before the savings pay for.
    fn most_more_blocks(&self, drafts: &[WrittenPieces]) -> u64 {
        if self.options.compression == Some(CompressionChoice::NONE) {
            return u64::MAX;
        }
        let saved: u64 = drafts.iter().map(|draft| draft.extent.used.length - draft.bytes()).sum();
        let (of_metadata, of_data) = self.transactions.copies();
        let node_size = u64::from(self.info.volume().geometry().node_size);
        saved * of_data / (node_size * of_metadata)
    }

    fn count_recompressed(&mut self, drafts: &[WrittenPieces]) {
        for draft in drafts {
            let (old, new) = (draft.extent.used.length, draft.bytes());
            self.report.replaced += 1;
            self.report.made += draft.extent.pieces.len() as u64;
            self.report.bytes += new;
            self.report.saved += old.saturating_sub(new);
            self.report.grown += new.saturating_sub(old);
            self.tried.extend(draft.extent.pieces.iter().map(|piece| piece.place.address));
        }
    }

    /// Releases the new space of extents that stay.
    fn give_up_drafts(&mut self, drafts: Vec<WrittenPieces>, reason: &StayReason) {
        for draft in drafts {
            for piece in &draft.extent.pieces {
                self.transactions.release_extent(piece.place);
            }
            self.stays(draft.candidate.place, draft.candidate.offset, reason.clone());
        }
    }
}

/// Bytes of an extent that are used, without compression.
fn plain_bytes(used: &ExtentUse) -> u64 {
    let bytes = used.ranges.iter().map(|range| range.end - range.start).sum();
    if used.compression == Compression::None { bytes } else { MAX_UNCOMPRESSED.max(bytes) }
}
