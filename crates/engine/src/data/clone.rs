//! Reflinks: a range of one file becomes a range of another that shares its extents.
//!
//! Owns [`CloneRange`], which checks a request once and carries it out in steps.
//!
//! Invariants:
//! - Both ends of a shared range are sector boundaries.
//! - A shared extent has a reference for each item that refers to a part of it.
//! - A file with data checksums and one without never share extents: one of them would break its
//!   guarantee.
//! - Inline data is copied.
//!
//! Locks: as [`super::file_edit`]; the layer above holds the locks of both inodes. Kernel
//! counterparts: `btrfs_remap_file_range`, `btrfs_clone` (`fs/btrfs/reflink.c`),
//! `generic_remap_file_range_prep` (`fs/remap_range.c`).

use crate::btree::LiveTree;
use crate::data::data_context::DataContext;
use crate::data::file_data::FileData;
use crate::data::file_edit::{FileEdit, WriteContext};
use crate::data::progress::{Progress, STEP_EXTENTS};
use crate::data::read::ReadContext;
use crate::data::rewrite::{SectorRewrite, fill_gap};
use crate::data::stored_extents::{StoredExtent, StoredExtents, inline_extent};
use crate::data::write::PreparedWrite;
use crate::data::write_rules::WriteRules;
use crate::errors::{Error, Result};
use papilio_format::items::file_extent::{ExtentPart, FileExtentContent, FileExtentItem, file_extent_key};
use papilio_format::items::inode::{InodeFlags, InodeItem};
use papilio_format::{Corrupt, FileOffset, InodeNumber};
use std::sync::Arc;

/// The file whose extents a clone shares. It may be the target file itself; no other thread may
/// change it meanwhile.
#[derive(Clone, Copy)]
pub(crate) struct CloneSource<'a> {
    /// Its subvolume.
    pub(crate) tree: &'a LiveTree,
    /// Its number.
    pub(crate) inode: InodeNumber,
    /// Its inode item.
    pub(crate) item: InodeItem,
}

/// A checked request and its progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CloneRange {
    source: u64,
    target: u64,
    /// Bytes in whole sectors.
    length: u64,
    /// The file offset where the requested target range ends; the file becomes at least as long.
    target_end: u64,
    /// Bytes done, in whole sectors.
    done: u64,
    /// Whether the file's times change; they do not where its content stays the same.
    touches: bool,
}

/// The prepared first phase of a step.
pub(crate) enum PreparedClone<'a> {
    /// A copy of the source's inline data, up to source offset `end`.
    Copy { copy: PreparedWrite<'a>, end: u64 },
    /// Sharing of extents, after this rewrite.
    Share(SectorRewrite<'a>),
}

fn invalid<T>(reason: &str) -> Result<T> {
    Err(Error::Invalid(format!("clone: {reason}")))
}

impl CloneRange {
    /// Checks a request to share `length` bytes of `source` from `from` on (up to its end for 0) as
    /// `target` from `to` on. Returns `None` where there is nothing to do.
    ///
    /// # Errors
    /// [`Error::Invalid`] for:
    /// - an offset that is not a sector boundary,
    /// - a length that is not a multiple of the sector size, unless the range ends with the source
    ///   and the target does not go on after it,
    /// - a range that ends after the source,
    /// - overlapping ranges of one file,
    /// - files of which only one has checksums.
    ///
    /// [`crate::PathError::TooLarge`] for a target past the largest file size.
    pub(crate) fn new(
        rules: &WriteRules<'_>,
        source: &CloneSource<'_>,
        from: FileOffset,
        length: u64,
        target: &FileEdit<'_>,
        to: FileOffset,
    ) -> Result<Option<Self>> {
        Self::checked(rules, source, from, length, target, to, true)
    }

    pub(crate) fn checked(
        rules: &WriteRules<'_>,
        source: &CloneSource<'_>,
        from: FileOffset,
        length: u64,
        target: &FileEdit<'_>,
        to: FileOffset,
        touches: bool,
    ) -> Result<Option<Self>> {
        let (sector, size) = (rules.sector(), source.item.size);
        let checksummed = |item: &InodeItem| !item.flags.contains(InodeFlags::NODATASUM);
        if checksummed(&source.item) != checksummed(&target.item) {
            return invalid("one of the files has no data checksums");
        }
        // Before the other checks, as in the kernel.
        if length == 0 && from.0 == size {
            return Ok(None);
        }
        if !from.is_aligned(sector) || !to.is_aligned(sector) {
            return invalid("an offset is not a multiple of the sector size");
        }
        let Some(left) = size.checked_sub(from.0).filter(|&left| left > 0) else {
            return invalid("the source ends before the range");
        };
        let length = if length == 0 { left } else { length };
        if length > left {
            return invalid("the range ends after the end of the source");
        }
        let target_end = rules.end_of(target.inode, to, length)?;
        if !length.is_multiple_of(sector) && (length < left || target_end < target.item.size) {
            return invalid("the length is not a multiple of the sector size");
        }
        let whole = rules.round_up(length);
        let same = source.inode == target.inode && source.tree.id() == target.tree.id();
        if same && from.0 < to.0 + whole && to.0 < from.0 + whole {
            return invalid("ranges of one file overlap");
        }
        Ok(Some(Self { source: from.0, target: to.0, length: whole, target_end, done: 0, touches }))
    }

    /// Returns the bytes of the request that are done.
    pub(crate) fn bytes_done(&self) -> u64 {
        self.done.min(self.target_end - self.target)
    }

    /// Prepares the next step: copies inline data of the source, or rewrites the sectors that the
    /// step needs rewritten.
    ///
    /// # Errors
    /// [`Error::NoSpace`], or an error of reading or writing.
    pub(crate) fn prepare<'a>(
        &self,
        context: &DataContext<'a>,
        source: &CloneSource<'_>,
        target: &FileEdit<'_>,
    ) -> Result<PreparedClone<'a>> {
        let start = self.source + self.done;
        let tree = source.tree.tree();
        let inline = inline_extent(&tree, source.inode, context.geometry.sector_size)?;
        if let Some(inline_end) = inline.map(|inline| inline.end).filter(|&end| start < end) {
            drop(tree);
            let end = inline_end.min(self.source + self.length);
            let to = self.target + self.done;
            let mut bytes = vec![0; (end - start).min(self.target_end - to) as usize];
            source.read(context, start, &mut bytes)?;
            let copy = PreparedWrite::new(context, target, FileOffset(to), &bytes)?;
            return Ok(PreparedClone::Copy { copy, end });
        }
        if self.done > 0 {
            return Ok(PreparedClone::Share(SectorRewrite::default()));
        }
        let covered = self.target..self.target + self.length;
        let rewrite = SectorRewrite::prepare(context, target, Some(&covered), Some(self.target))?;
        Ok(PreparedClone::Share(rewrite))
    }

    /// Makes a step of a bounded size.
    ///
    /// # Errors
    /// [`Error::NoSpace`], or an error of reading or changing trees.
    pub(crate) fn step(
        &mut self,
        context: &WriteContext<'_>,
        source: &CloneSource<'_>,
        target: &mut FileEdit<'_>,
        prepared: &mut PreparedClone<'_>,
    ) -> Result<Progress> {
        self.limited_step(context, source, target, prepared, STEP_EXTENTS)
    }

    /// As [`CloneRange::step`], of at most `limit` extents of the source.
    ///
    /// # Errors
    /// As [`CloneRange::step`].
    pub(crate) fn limited_step(
        &mut self,
        context: &WriteContext<'_>,
        source: &CloneSource<'_>,
        target: &mut FileEdit<'_>,
        prepared: &mut PreparedClone<'_>,
        limit: usize,
    ) -> Result<Progress> {
        match prepared {
            PreparedClone::Copy { copy, end } => {
                self.publish_copy(context, target, copy)?;
                self.done = *end - self.source;
            }
            PreparedClone::Share(rewrite) => {
                rewrite.publish(context, target)?;
                if self.done == 0 {
                    fill_gap(context, target, self.target)?;
                }
                let reached = self.share_step(context, source, target, limit)?;
                self.done = reached - self.source;
            }
        }
        Ok(if self.done == self.length { Progress::Done } else { Progress::More })
    }

    /// Publishes a copy of the source's inline data.
    fn publish_copy(
        &self,
        context: &WriteContext<'_>,
        target: &mut FileEdit<'_>,
        copy: &mut PreparedWrite<'_>,
    ) -> Result<()> {
        let before = target.item;
        copy.publish(context, target)?;
        if !self.touches {
            let InodeItem { mtime, ctime, sequence, .. } = before;
            let item = InodeItem { mtime, ctime, sequence, ..target.item };
            let changes = context.changes(target);
            target.publish(context, changes, item)?;
        }
        Ok(())
    }

    /// Shares at most `limit` extents, and returns the source offset that it reached.
    fn share_step(
        &self,
        context: &WriteContext<'_>,
        source: &CloneSource<'_>,
        target: &mut FileEdit<'_>,
        limit: usize,
    ) -> Result<u64> {
        let (start, end) = (self.source + self.done, self.source + self.length);
        let sector_size = context.geometry.sector_size;
        let mut extents = Vec::new();
        let mut reached = end;
        // Read after the rewrite, which changes the source, too, where both are the same file.
        let tree = source.tree.tree();
        for extent in StoredExtents::new(&tree, source.inode, sector_size, start, end) {
            let extent = extent?;
            if extents.len() == limit {
                reached = extent.start;
                break;
            }
            if extent.is_inline() {
                // An earlier step copied inline data at the file's start.
                let key = file_extent_key(source.inode, FileOffset(extent.start));
                let reason = "inline data is not the file's first";
                let reason = Corrupt::field("file extent", "offset", extent.start, reason);
                return Err(Error::Item { tree: tree.id(), key, reason });
            }
            extents.push(extent);
        }
        drop(tree);
        self.share(context, target, &extents, start, reached)
    }

    /// Inserts the source's `extents` from `start` to `end` into the target, and returns the source
    /// offset that it reached.
    fn share(
        &self,
        context: &WriteContext<'_>,
        target: &mut FileEdit<'_>,
        extents: &[StoredExtent],
        start: u64,
        end: u64,
    ) -> Result<u64> {
        let there = |offset: u64| offset - self.source + self.target;
        let mut changes = context.changes(target);
        let tree = target.tree.tree();
        // The number of extents that the target loses is bounded, too.
        let end = changes.drop_range(&tree, there(start), there(end), 2 * STEP_EXTENTS)? - self.target
            + self.source;
        drop(tree);
        let mut next = start;
        for stored in extents.iter().filter(|stored| stored.start < end) {
            let (from, to) = (stored.start.max(start), stored.end.min(end));
            changes.insert_hole(there(next), there(from));
            match shared_part(stored, from, to) {
                Some(item) => changes.insert(there(from), &item, false),
                None => changes.insert_hole(there(from), there(to)),
            }
            next = to;
        }
        changes.insert_hole(there(next), there(end));
        let reached = there(end).min(self.target_end);
        let item = if self.touches { context.touched(target) } else { context.stamped(target) };
        let item = InodeItem { size: item.size.max(reached), ..item };
        target.publish(context, changes, item)?;
        Ok(end)
    }
}

/// Returns the item for bytes `from` to `to` of an extent; `None` for a hole.
fn shared_part(stored: &StoredExtent, from: u64, to: u64) -> Option<FileExtentItem<'_>> {
    let extent = stored.extent();
    let cut = |part: ExtentPart| ExtentPart {
        offset: part.offset + (from - stored.start),
        length: to - from,
        ..part
    };
    let content = match extent.content {
        FileExtentContent::Inline(_) => unreachable!("only the first extent of a file is inline"),
        FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part) if part.is_hole() => {
            return None;
        }
        FileExtentContent::Regular(part) => FileExtentContent::Regular(cut(part)),
        FileExtentContent::Prealloc(part) => FileExtentContent::Prealloc(cut(part)),
    };
    Some(FileExtentItem { content, ..extent })
}

impl CloneSource<'_> {
    /// Fills `buffer` with the file's bytes from `offset` on, and with zeros after its end.
    ///
    /// # Errors
    /// A read error.
    pub(crate) fn read(&self, context: &DataContext<'_>, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let checksums = context.checksum_tree.tree();
        let reading = ReadContext::new(Arc::clone(context.volume), Some(checksums), true);
        let (inode, item) = (self.inode, &self.item);
        let tree = self.tree.tree();
        let data = FileData {
            tree: (&tree).into(),
            inode,
            flags: item.flags,
            size: item.size,
            written: None,
            extent_cache: None,
            ordered: None,
        };
        let read = reading.read(&data, FileOffset(offset), buffer)?;
        buffer[read..].fill(0);
        Ok(())
    }
}
