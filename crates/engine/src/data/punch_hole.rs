//! Punching holes: a range reads as zeros and takes no space.
//!
//! Owns [`Hole`]. Whole sectors are dropped; the rest of the range is overwritten with zeros.
//! Locks: as [`super::file_edit`]. Kernel counterpart: `btrfs_punch_hole` (`fs/btrfs/file.c`).

use crate::data::data_context::DataContext;
use crate::data::file_edit::{FileEdit, WriteContext};
use crate::data::progress::{Progress, STEP_EXTENTS};
use crate::data::rewrite::{SectorRewrite, is_written};
use crate::data::write::PreparedWrite;
use crate::data::write_rules::WriteRules;
use crate::errors::Result;
use arrayvec::ArrayVec;
use papilio_format::{FileOffset, InodeNumber};
use std::ops::Range;

/// The parts of a range that becomes a hole, in file offsets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hole {
    /// Whole sectors.
    pub(crate) sectors: Option<Range<u64>>,
    /// Parts of one sector each, before and after.
    pub(crate) edges: ArrayVec<Range<u64>, 2>,
}

impl Hole {
    /// Cuts `length` bytes from `offset` on of inode `inode`, which is `size` bytes long.
    /// Preallocated space after the end belongs to the hole if the range starts inside the file.
    ///
    /// # Errors
    /// [`crate::PathError::TooLarge`].
    pub(crate) fn new(
        rules: &WriteRules<'_>,
        inode: InodeNumber,
        size: u64,
        offset: u64,
        length: u64,
    ) -> Result<Self> {
        let end = rules.end_of(inode, FileOffset(offset), length)?;
        let mut hole = Self::default();
        if length == 0 || offset >= rules.round_up(size) {
            return Ok(hole);
        }
        let (start, stop) = (rules.round_up(offset), rules.round_down(end));
        let edges = if start > stop { [offset..end, 0..0] } else { [offset..start, stop..end] };
        hole.edges.extend(
            edges.into_iter().map(|edge| edge.start..edge.end.min(size)).filter(|edge| !edge.is_empty()),
        );
        hole.sectors = (start < stop).then_some(start..stop);
        Ok(hole)
    }
}

/// Drops a bounded number of extents in `sectors`, and moves its start to where the next step
/// begins.
///
/// # Errors
/// [`crate::Error::NoSpace`], or an error of reading or changing trees.
pub(crate) fn punch_hole_step(
    context: &WriteContext<'_>,
    file: &mut FileEdit<'_>,
    sectors: &Range<u64>,
    rewrite: &mut SectorRewrite<'_>,
) -> Result<(Progress, u64)> {
    rewrite.publish(context, file)?;
    let last = context.round_up(file.item.size);
    let mut changes = context.changes(file);
    let reached = changes.drop_range(&file.tree.tree(), sectors.start, sectors.end, STEP_EXTENTS)?;
    changes.insert_hole(sectors.start, reached.min(last));
    let item = context.touched(file);
    file.publish(context, changes, item)?;
    let progress = if reached < sectors.end { Progress::More } else { Progress::Done };
    Ok((progress, reached))
}

/// Prepares zeros for `edge`, a part of one sector inside the file, unless it reads as zeros
/// already.
///
/// # Errors
/// As [`PreparedWrite::new`].
pub(crate) fn zero_edge<'a>(
    context: &DataContext<'a>,
    file: &FileEdit<'_>,
    edge: &Range<u64>,
) -> Result<PreparedWrite<'a>> {
    let length = if is_written(context, file, edge.start)? { edge.end - edge.start } else { 0 };
    PreparedWrite::new(context, file, FileOffset(edge.start), &vec![0; length as usize])
}
