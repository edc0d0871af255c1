//! A part of the source that a clone lacks.
//!
//! Owns [`CloneLoss`].

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
    pub(super) fn of(path: impl AsRef<[u8]>, reason: impl ToString) -> Self {
        Self { path: path.as_ref().to_vec(), range: None, reason: reason.to_string(), is_unverified: false }
    }
}
