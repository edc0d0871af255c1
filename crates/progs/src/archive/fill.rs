//! The content of frames: read, verified, compared with the parent and compressed.
//!
//! Owns [`FrameFiller`]. Several threads fill frames at once.
//!
//! **Invariants**
//! - Data with a checksum comes from a copy that matches it, if there is one.
//! - A range is left out only if the parent has the same bytes: tree blocks and data without
//!   checksums are compared byte by byte, other data by the checksums of an extent that is not
//!   newer than the parent.

use super::options::ArchiveParent;
use super::plan::{PlannedFrame, UsedRange};
use crate::image::collect::CollectReader;
use papilio_device::archive::pack;
use papilio_engine::data::checksum::DataChecksums;
use papilio_engine::errors::{Error, Result};
use papilio_engine::items::trees::OpenTree;
use papilio_engine::volume::Volume;
use papilio_format::LogicalAddress;
use papilio_format::disk_archive::{ArchiveRange, FrameKind};
use std::path::PathBuf;
use std::sync::Arc;

/// A frame's content.
#[derive(Debug, Default)]
pub(super) struct FilledFrame {
    pub(super) ranges: Vec<ArchiveRange>,
    /// The bytes for the archive, and their `compression`.
    pub(super) packed: Vec<u8>,
    pub(super) compression: u8,
    pub(super) unpacked: u32,
    /// The ranges that cannot be read.
    pub(super) unreadable: Vec<ArchiveRange>,
    /// Bytes of which no copy is good.
    pub(super) damaged: u64,
    /// Bytes that the parent has.
    pub(super) unchanged: u64,
}

impl FilledFrame {
    fn add(&mut self, start: u64, bytes: &[u8]) {
        push(&mut self.ranges, start, bytes.len());
        self.packed.extend_from_slice(bytes);
    }
}

fn push(ranges: &mut Vec<ArchiveRange>, start: u64, length: usize) {
    match ranges.last_mut() {
        Some(last) if last.start.0 + u64::from(last.length) == start => last.length += length as u32,
        _ => ranges.push(ArchiveRange { start: LogicalAddress(start), length: length as u32 }),
    }
}

/// Fills frames.
pub(super) struct FrameFiller<'a> {
    pub(super) volume: &'a Volume,
    pub(super) checksums: Option<Arc<OpenTree>>,
    pub(super) parent: Option<ArchiveParent<'a>>,
    pub(super) parent_checksums: Option<Arc<OpenTree>>,
    pub(super) level: i32,
    pub(super) skip_unreadable: bool,
}

impl FrameFiller<'_> {
    /// Fills a frame.
    ///
    /// # Errors
    /// A tree that cannot be read; bytes that cannot be read, unless they are to be skipped; a
    /// parent that cannot be read.
    pub(super) fn fill(&self, frame: &PlannedFrame) -> Result<FilledFrame> {
        let mut filled = FilledFrame::default();
        for range in &frame.ranges {
            match frame.kind {
                FrameKind::Metadata => self.blocks(range, frame.newer, &mut filled)?,
                _ => self.data(range, frame.newer, &mut filled)?,
            }
        }
        let content = std::mem::take(&mut filled.packed);
        filled.unpacked = content.len() as u32;
        let packed = pack(content, self.level);
        (filled.packed, filled.compression) =
            packed.map_err(|source| Error::Host { path: PathBuf::from("the archive"), source })?;
        Ok(filled)
    }

    /// Notes bytes that cannot be read, or fails.
    fn unreadable(&self, filled: &mut FilledFrame, start: u64, length: usize, cause: Error) -> Result<()> {
        if !self.skip_unreadable {
            return Err(cause);
        }
        push(&mut filled.unreadable, start, length);
        Ok(())
    }

    fn blocks(&self, range: &UsedRange, newer: bool, filled: &mut FilledFrame) -> Result<()> {
        let node_size = self.volume.geometry().node_size as usize;
        let reader = CollectReader { volume: self.volume };
        for start in (range.start..range.start + range.length).step_by(node_size) {
            let (block, good) = match reader.read(LogicalAddress(start)) {
                Err(error @ (Error::Device { .. } | Error::DeviceMissing { .. })) => {
                    self.unreadable(filled, start, node_size, error)?;
                    continue;
                }
                read => read?,
            };
            if !newer && self.is_in_parent(start, &block)? {
                filled.unchanged += node_size as u64;
                continue;
            }
            if !good {
                filled.damaged += node_size as u64;
            }
            filled.add(start, &block);
        }
        Ok(())
    }

    /// Returns whether the parent has these bytes.
    fn is_in_parent(&self, start: u64, bytes: &[u8]) -> Result<bool> {
        let Some(parent) = self.parent else { return Ok(false) };
        if !parent.chain.covers(LogicalAddress(start), bytes.len() as u64) {
            return Ok(false);
        }
        let mut known = vec![0; bytes.len()];
        parent.chain.read(LogicalAddress(start), &mut known).map_err(super::archive_error)?;
        Ok(known == bytes)
    }

    fn data(&self, range: &UsedRange, newer: bool, filled: &mut FilledFrame) -> Result<()> {
        let geometry = self.volume.geometry();
        let sector = geometry.sector_size as usize;
        let count = range.length as usize / sector;
        let own = self.sums(self.checksums.as_deref(), range.start, count)?;
        let is_old = !newer && self.parent.is_some();
        let known = match is_old {
            true => self.sums(self.parent_checksums.as_deref(), range.start, count)?,
            false => Sums::default(),
        };
        let is_same = |at: usize| {
            let address = LogicalAddress(range.start + (at * sector) as u64);
            let sum = own.get(at);
            is_old
                && sum.is_some()
                && sum == known.get(at)
                && self.parent.is_some_and(|parent| parent.chain.covers(address, sector as u64))
        };
        let mut at = 0;
        while at < count {
            let skipped = (at..count).take_while(|at| is_same(*at)).count();
            filled.unchanged += (skipped * sector) as u64;
            at += skipped;
            let length = (at..count).take_while(|at| !is_same(*at)).count();
            self.sectors(range.start, at, length, &own, is_old, filled)?;
            at += length;
        }
        Ok(())
    }

    /// Adds `count` sectors, from the one with number `first` after `start` on.
    fn sectors(
        &self,
        start: u64,
        first: usize,
        count: usize,
        sums: &Sums,
        compare: bool,
        filled: &mut FilledFrame,
    ) -> Result<()> {
        let sector = self.volume.geometry().sector_size as usize;
        let begin = start + (first * sector) as u64;
        let mut bytes = vec![0; count * sector];
        let whole = self.volume.read(LogicalAddress(begin), &mut bytes).is_ok();
        for (number, bytes) in bytes.chunks_exact_mut(sector).enumerate() {
            let at = begin + (number * sector) as u64;
            let sum = sums.get(first + number);
            if !(whole && self.matches(bytes, sum)) {
                match self.best_copy(at, bytes, sum) {
                    Ok(good) => filled.damaged += if good { 0 } else { sector as u64 },
                    Err(error @ (Error::Device { .. } | Error::DeviceMissing { .. })) => {
                        self.unreadable(filled, at, sector, error)?;
                        continue;
                    }
                    Err(error) => return Err(error),
                }
            }
            if compare && sum.is_none() && self.is_in_parent(at, bytes)? {
                filled.unchanged += sector as u64;
                continue;
            }
            filled.add(at, bytes);
        }
        Ok(())
    }

    fn matches(&self, bytes: &[u8], sum: Option<&[u8]>) -> bool {
        sum.is_none_or(|sum| self.volume.geometry().checksum_type.verify(bytes, sum))
    }

    /// Reads the first copy that matches, or else the first that can be read. Returns whether it
    /// matches.
    fn best_copy(&self, at: u64, bytes: &mut [u8], sum: Option<&[u8]>) -> Result<bool> {
        let mut readable = None;
        let address = LogicalAddress(at);
        let mut failed = Error::Unmapped { logical: address, length: bytes.len() as u64 };
        for copy in self.volume.copies_in_order(address)? {
            match self.volume.read_copy(address, bytes, copy) {
                Ok(()) if self.matches(bytes, sum) => return Ok(true),
                Ok(()) => readable = readable.or_else(|| Some(bytes.to_vec())),
                Err(error) => failed = error,
            }
        }
        match readable {
            Some(first) => {
                bytes.copy_from_slice(&first);
                Ok(false)
            }
            None => Err(failed),
        }
    }

    /// Looks up the checksums of sectors.
    fn sums(&self, tree: Option<&OpenTree>, start: u64, count: usize) -> Result<Sums> {
        let geometry = self.volume.geometry();
        let size = geometry.checksum_type.size();
        let mut sums = Sums { size, known: vec![false; count], bytes: vec![0; count * size] };
        let Some(tree) = tree else { return Ok(sums) };
        DataChecksums::new(&tree.tree, geometry).for_each_run(
            LogicalAddress(start),
            count,
            |first, length, found| {
                if let Some(found) = found {
                    sums.bytes[first * size..(first + length) * size].copy_from_slice(found);
                    sums.known[first..first + length].fill(true);
                }
                true
            },
        )?;
        Ok(sums)
    }
}

/// The checksums of consecutive sectors.
#[derive(Debug, Default)]
struct Sums {
    size: usize,
    known: Vec<bool>,
    bytes: Vec<u8>,
}

impl Sums {
    fn get(&self, at: usize) -> Option<&[u8]> {
        let known = self.known.get(at).copied().unwrap_or(false);
        known.then(|| &self.bytes[at * self.size..(at + 1) * self.size])
    }
}
