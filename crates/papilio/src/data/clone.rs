//! Reflinks: a range of one file becomes a range of another that shares its extents.
//!
//! Owns [`CloneRange`], which checks a request once and carries it out in steps. Invariants: both ends of
//! what is shared are sector boundaries; an extent that is shared has a reference for each item that
//! stands for a part of it; files with and without data checksums never share, as each would break the
//! other's promise. Inline data is copied. Locks: as [`super::file_edit`], and the layer above holds both
//! inodes'. Kernel counterparts: `btrfs_remap_file_range`, `btrfs_clone` (`fs/btrfs/reflink.c`),
//! `generic_remap_file_range_prep` (`fs/remap_range.c`).

use crate::btree::LiveTree;
use crate::data::extend::reach;
use crate::data::file_edit::{FileEdit, WriteContext};
use crate::data::inline::move_out_of_line;
use crate::data::read::{FileData, ReadContext};
use crate::data::stored_extents::{StoredExtent, StoredExtents};
use crate::data::truncate::{Progress, STEP_EXTENTS};
use crate::data::write::write;
use crate::errors::{Error, Result};
use papilio_format::items::file_extent::{ExtentPart, FileExtentContent, FileExtentItem};
use papilio_format::items::inode::{InodeFlags, InodeItem};
use papilio_format::{FileOffset, InodeNumber};
use std::sync::Arc;

/// A file whose extents are shared. It may be the one that gets them; nothing else may change it
/// meanwhile.
#[derive(Clone, Copy)]
pub(crate) struct CloneSource<'a> {
    /// Its subvolume.
    pub(crate) tree: &'a LiveTree,
    /// Its number.
    pub(crate) inode: InodeNumber,
    /// Its inode item.
    pub(crate) item: InodeItem,
}

/// A checked request, and how far it came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CloneRange {
    source: u64,
    target: u64,
    /// Bytes in whole sectors.
    length: u64,
    /// Where the target ends that the request names; the file becomes at least as long.
    target_end: u64,
    /// Bytes done, in whole sectors.
    done: u64,
    /// Whether times change: not where the content stays the same.
    touches: bool,
}

fn invalid<T>(reason: &str) -> Result<T> {
    Err(Error::Invalid(format!("clone: {reason}")))
}

impl CloneRange {
    /// Checks a request to share `length` bytes of `source` from `from` on, up to its end for 0, as
    /// `target` from `to` on. Without anything to do, there is no range.
    ///
    /// # Errors
    /// [`Error::Invalid`] for offsets that are not at sector boundaries, a length that is not unless it
    /// reaches the end of the source and the target does not go on behind it, a range that reaches behind
    /// the end of the source, ranges of one file that overlap, or files of which only one has checksums;
    /// [`crate::PathError::TooLarge`].
    pub(crate) fn new(
        context: &WriteContext<'_>,
        source: &CloneSource<'_>,
        from: FileOffset,
        length: u64,
        target: &FileEdit<'_>,
        to: FileOffset,
    ) -> Result<Option<Self>> {
        Self::checked(context, source, from, length, target, to, true)
    }

    pub(crate) fn checked(
        context: &WriteContext<'_>,
        source: &CloneSource<'_>,
        from: FileOffset,
        length: u64,
        target: &FileEdit<'_>,
        to: FileOffset,
        touches: bool,
    ) -> Result<Option<Self>> {
        let (sector, size) = (context.sector(), source.item.size);
        let summed = |item: &InodeItem| !item.flags.contains(InodeFlags::NODATASUM);
        if summed(&source.item) != summed(&target.item) {
            return invalid("one of the files has no data checksums");
        }
        // Before any other question, as in the kernel.
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
            return invalid("the range reaches behind the end of the source");
        }
        let target_end = context.end_of(target, to, length)?;
        if !length.is_multiple_of(sector) && (length < left || target_end < target.item.size) {
            return invalid("the length is not a multiple of the sector size");
        }
        let whole = context.round_up(length);
        let same = source.inode == target.inode && source.tree.id() == target.tree.id();
        if same && from.0 < to.0 + whole && to.0 < from.0 + whole {
            return invalid("ranges of one file overlap");
        }
        Ok(Some(Self { source: from.0, target: to.0, length: whole, target_end, done: 0, touches }))
    }

    /// Bytes of the request that are done.
    pub(crate) fn bytes_done(&self) -> u64 {
        self.done.min(self.target_end - self.target)
    }

    /// Does a bounded part of it.
    ///
    /// # Errors
    /// [`Error::NoSpace`], or what reading and writing meets.
    pub(crate) fn step(
        &mut self,
        context: &WriteContext<'_>,
        source: &CloneSource<'_>,
        target: &mut FileEdit<'_>,
    ) -> Result<Progress> {
        self.limited_step(context, source, target, STEP_EXTENTS)
    }

    /// As [`CloneRange::step`], of at most `limit` extents of the source.
    pub(crate) fn limited_step(
        &mut self,
        context: &WriteContext<'_>,
        source: &CloneSource<'_>,
        target: &mut FileEdit<'_>,
        limit: usize,
    ) -> Result<Progress> {
        if self.done == 0 {
            let end = self.target + self.length;
            move_out_of_line(context, target, Some((self.target, end)))?;
            reach(context, target, self.target)?;
            context.space.settle();
        }
        let (start, end) = (self.source + self.done, self.source + self.length);
        let sector_size = context.geometry().sector_size;
        let mut extents = Vec::new();
        let mut reached = end;
        // Only now: what came before may have changed it, where source and target are one file.
        let tree = source.tree.tree();
        for extent in StoredExtents::new(&tree, source.inode, sector_size, start, end) {
            let extent = extent?;
            if extents.len() == limit {
                reached = extent.start;
                break;
            }
            extents.push(extent);
        }
        if extents.first().is_some_and(StoredExtent::is_inline) {
            let inline = extents.swap_remove(0);
            return self.copy_inline(context, source, target, &inline);
        }
        reached = self.share(context, target, &extents, start, reached)?;
        self.done = reached - self.source;
        Ok(if self.done == self.length { Progress::Done } else { Progress::More })
    }

    /// Copies what is inline, up to the end of its sector.
    fn copy_inline(
        &mut self,
        context: &WriteContext<'_>,
        source: &CloneSource<'_>,
        target: &mut FileEdit<'_>,
        inline: &StoredExtent,
    ) -> Result<Progress> {
        let start = self.source + self.done;
        let end = inline.end.min(self.source + self.length);
        let to = self.target + self.done;
        let wanted = (end - start).min(self.target_end - to);
        let mut bytes = vec![0; wanted as usize];
        source.read(context, start, &mut bytes)?;
        let before = target.item;
        write(context, target, FileOffset(to), &bytes)?;
        if !self.touches {
            let InodeItem { mtime, ctime, sequence, .. } = before;
            let item = InodeItem { mtime, ctime, sequence, ..target.item };
            let changes = context.changes(target);
            target.publish(context, changes, item)?;
        }
        self.done = end - self.source;
        Ok(if self.done == self.length { Progress::Done } else { Progress::More })
    }

    /// Lets the target have what the source has from `start` to `end`; says how far it came.
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
        // What the target loses is bounded too.
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

/// What stands for `from` to `to` of an extent; `None` for a hole.
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
    /// Fills `buffer` with the file's bytes from `offset` on; zeros behind its end.
    ///
    /// # Errors
    /// What reading meets.
    pub(crate) fn read(&self, context: &WriteContext<'_>, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let sums = context.checksum_tree.tree();
        let reading = ReadContext::new(Arc::clone(context.volume), Some(sums), true);
        let (inode, item) = (self.inode, &self.item);
        let tree = self.tree.tree();
        let data = FileData {
            tree: (&tree).into(),
            inode,
            flags: item.flags,
            size: item.size,
            written: None,
            known: None,
            ordered: None,
        };
        let read = reading.read(&data, FileOffset(offset), buffer)?;
        buffer[read..].fill(0);
        Ok(())
    }
}
