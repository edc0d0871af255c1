//! A part of the source that a clone lacks.
//!
//! Owns [`CloneLoss`].

use papilio_engine::errors::differ_in_numbers_only;
use std::ops::Range;

/// Something that a clone lacks, or has without having verified it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CloneLoss {
    /// The path from the top level, without a leading slash, as far as it is known; that of the
    /// subvolume for a tree block.
    pub path: Vec<u8>,
    /// The bytes of the file, for data.
    pub range: Option<Range<u64>>,
    /// Why they are missing.
    pub reason: String,
    /// Whether the bytes were copied all the same, without a checksum to verify them by.
    pub is_unverified: bool,
}

impl CloneLoss {
    /// Takes the bytes of `next` in, if they follow and are missing for a reason of the same kind.
    pub(super) fn continue_with(&mut self, next: &Self) -> bool {
        let (Some(range), Some(more)) = (&mut self.range, &next.range) else { return false };
        let is_next = range.end == more.start
            && self.path == next.path
            && self.is_unverified == next.is_unverified
            && differ_in_numbers_only(&self.reason, &next.reason);
        if is_next {
            range.end = more.end;
        }
        is_next
    }

    pub(super) fn of(path: impl AsRef<[u8]>, reason: impl ToString) -> Self {
        Self { path: path.as_ref().to_vec(), range: None, reason: reason.to_string(), is_unverified: false }
    }
}
