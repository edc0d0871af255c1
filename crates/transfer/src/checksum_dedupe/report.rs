//! The findings and the work of a run by checksums.
//!
//! Owns [`ChecksumDedupeReport`] and [`Left`].

use std::collections::BTreeMap;

/// The reason why an extent stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Left {
    /// It is the source of others.
    Source,
    /// Its references changed since the plan was made.
    Changed,
    /// A file has a part of it that is allocated and not written.
    Unwritten,
    /// A file uses it behind its end.
    BehindEnd,
    /// It is compressed, and the others are not in the same way.
    Compressed,
    /// More than half of it would have to be written anew.
    Parts,
    /// Tree blocks that snapshots share would take more space than it.
    Metadata,
    /// Its checksums are those of another extent, its content is not.
    Differs,
    /// Something still refers to it, such as a subvolume that is being deleted.
    StillUsed,
    /// An error, of which the observer heard.
    Failed,
}

impl Left {
    /// Returns the reason in words, which follow the number of extents.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Source => "are the source of others",
            Self::Changed => "changed meanwhile",
            Self::Unwritten => "have parts that are not written",
            Self::BehindEnd => "are used behind the end of a file",
            Self::Compressed => "are compressed in different ways",
            Self::Parts => "have too much of their own",
            Self::Metadata => "would cost more metadata than they free",
            Self::Differs => "have equal checksums only",
            Self::StillUsed => "have other users, such as deleted snapshots",
            Self::Failed => "failed",
        }
    }
}

/// The findings and the work of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChecksumDedupeReport {
    /// Extents whose checksums were looked at.
    pub extents: u64,
    /// Their bytes on disk.
    pub extent_bytes: u64,
    /// Runs of a few sectors that were looked at.
    pub seeds: u64,
    /// Extents of which others have all or most.
    pub planned_extents: u64,
    /// Extents that became free, or would in a dry run.
    pub freed_extents: u64,
    /// Their bytes on disk, without those that were written anew.
    pub freed_bytes: u64,
    /// Bytes that were written anew.
    pub copied_bytes: u64,
    /// References that were led to other extents.
    pub references: u64,
    /// Bytes that the file system compared, counted on one side.
    pub compared_bytes: u64,
    /// Extents whose content differs from that of another with the same checksums.
    pub differing_extents: u64,
    /// Extents without checksums. Only [`crate::dedupe::Dedupe`] shares them.
    pub unsummed_extents: u64,
    /// Tree blocks and items that cannot be read. The data that they describe was left out.
    pub faults: u64,
    /// Planned extents that stay, and their bytes, by reason.
    pub left: BTreeMap<Left, (u64, u64)>,
}

impl ChecksumDedupeReport {
    pub(super) fn leave(&mut self, reason: Left, length: u64) {
        let left = self.left.entry(reason).or_default();
        left.0 += 1;
        left.1 += length;
    }
}
