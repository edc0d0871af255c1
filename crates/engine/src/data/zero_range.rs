//! Zeroing a range that keeps space for all its sectors.
//!
//! Owns [`ZeroRange`] and [`HeldSpace`]. Preallocated space reads as zeros already, and stays. The
//! space for the other sectors is held before anything is dropped, so that a full file system loses
//! no data.
//!
//! Locks: as [`super::file_edit`]. Kernel counterpart: `btrfs_zero_range` (`fs/btrfs/file.c`).

use crate::data::data_context::DataContext;
use crate::data::extent_map::{ExtentKind, FileExtents};
use crate::data::file_edit::FileEdit;
use crate::data::space::{DataAllocator, DataExtent};
use crate::errors::Result;
use papilio_format::FileOffset;
use papilio_format::items::inode::InodeFlags;
use std::ops::Range;

/// The most bytes that are held in one extent.
const MAX_EXTENT: u64 = 256 << 20;

/// The changes that zeroing a range makes.
pub(crate) struct ZeroRange<'a> {
    /// The parts of the range that have data, in file offsets.
    pub(crate) written: Vec<Range<u64>>,
    /// Space for the sectors that have none that may stay.
    pub(crate) space: HeldSpace<'a>,
    /// Space for sectors of which only a part is zeroed, which are copied. The caller releases it
    /// before it writes them.
    pub(crate) edges: HeldSpace<'a>,
}

/// Allocated space that no tree refers to. Dropping it releases the space.
pub(crate) struct HeldSpace<'a> {
    allocator: &'a dyn DataAllocator,
    extents: Vec<DataExtent>,
}

impl<'a> ZeroRange<'a> {
    /// Finds the data in `length` bytes from `offset` on, and holds the space that is missing.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`], [`crate::PathError::TooLarge`], or a tree block that cannot be
    /// read.
    pub(crate) fn new(
        context: &DataContext<'a>,
        file: &FileEdit<'_>,
        offset: u64,
        length: u64,
    ) -> Result<Self> {
        let end = context.end_of(file.inode, FileOffset(offset), length)?;
        let (start, stop) = (context.round_down(offset), context.round_up(end));
        let tree = file.tree.tree();
        let sector_size = context.geometry.sector_size;
        let mut written: Vec<Range<u64>> = Vec::new();
        // Whole sectors of the range.
        let (inner, outer) = (context.round_up(offset), context.round_down(end));
        let in_place = file.item.flags.contains(InodeFlags::NODATACOW);
        let (mut missing, mut edges) = (0, 0);
        for extent in FileExtents::new(&tree, file.inode, sector_size, FileOffset(start), FileOffset(stop)) {
            let extent = extent?;
            let (from, to) = (extent.start.0.max(start), extent.end.0.min(stop));
            match extent.kind {
                ExtentKind::Prealloc(_) => continue,
                ExtentKind::Hole => {
                    missing += context.round_up(to) - from;
                    continue;
                }
                ExtentKind::Inline(_) => missing += context.sector(),
                ExtentKind::Regular(_) => {
                    let whole = to.min(outer).saturating_sub(from.max(inner));
                    missing += whole;
                    edges += if in_place { 0 } else { to - from - whole };
                }
            }
            let (from, to) = (from.max(offset), to.min(end));
            match written.last_mut() {
                _ if from >= to => {}
                Some(last) if last.end == from => last.end = to,
                _ => written.push(from..to),
            }
        }
        let space = HeldSpace::new(context, missing)?;
        let edges = HeldSpace::new(context, edges)?;
        Ok(Self { written, space, edges })
    }
}

impl<'a> HeldSpace<'a> {
    fn new(context: &DataContext<'a>, bytes: u64) -> Result<Self> {
        let mut held = Self { allocator: context.allocator, extents: Vec::new() };
        let mut left = bytes;
        while left > 0 {
            let extent = held.allocator.allocate_data(context.sector(), left.min(MAX_EXTENT))?;
            left -= extent.length;
            held.extents.push(extent);
        }
        Ok(held)
    }
}

impl Drop for HeldSpace<'_> {
    fn drop(&mut self) {
        for extent in self.extents.drain(..) {
            self.allocator.release_data(extent);
        }
    }
}
