//! Bytes that subvolumes share, and how they are measured.
//!
//! Owns [`SharedBytes`], [`Share`], [`SharingOptions`] and [`SharingProgress`].

use super::root_sets::Run;
use std::ops::AddAssign;

/// Groups of inodes in a sample. The difference between groups tells how far off an estimate is.
pub(super) const GROUPS: usize = 32;

/// How [`SpaceSharing::measure`] works.
#[derive(Clone, Debug)]
pub struct SharingOptions {
    /// Bytes of memory for references, 24 bytes each. The rest goes to a temporary file without a
    /// name in the host's directory for such files.
    pub memory_bytes: usize,
    /// Reads about so many leaves only, and estimates the bytes of data from these. Tree blocks are
    /// counted exactly all the same.
    pub sampled_leaves: Option<u64>,
}

impl Default for SharingOptions {
    fn default() -> Self {
        Self { memory_bytes: 256 << 20, sampled_leaves: None }
    }
}

/// How far a walk is.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SharingProgress {
    /// The level of the blocks that are being read; the walk ends with level 0.
    pub level: u8,
    /// Blocks of that level that were read.
    pub blocks: u64,
    /// Blocks of that level.
    pub known_blocks: u64,
}

/// Bytes of data and of tree blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedBytes {
    /// Bytes of data extents, as they lie on disk, counted once for all copies.
    pub data: u64,
    /// Bytes of tree blocks, counted once for all copies.
    pub metadata: u64,
    /// Bytes of devices that the data takes: with copies and parity.
    pub raw_data: u64,
    /// Bytes of devices that the tree blocks take.
    pub raw_metadata: u64,
}

impl SharedBytes {
    /// Returns data and metadata together.
    pub const fn total(&self) -> u64 {
        self.data.saturating_add(self.metadata)
    }

    /// Returns the bytes of devices, of data and metadata together.
    pub const fn raw_total(&self) -> u64 {
        self.raw_data.saturating_add(self.raw_metadata)
    }
}

impl AddAssign for SharedBytes {
    fn add_assign(&mut self, other: Self) {
        self.data = self.data.saturating_add(other.data);
        self.metadata = self.metadata.saturating_add(other.metadata);
        self.raw_data = self.raw_data.saturating_add(other.raw_data);
        self.raw_metadata = self.raw_metadata.saturating_add(other.raw_metadata);
    }
}

/// The bytes that exactly one set of subvolumes holds.
#[derive(Debug)]
pub(super) struct Share {
    pub(super) holders: Box<[Run]>,
    pub(super) bytes: SharedBytes,
    pub(super) groups: Option<Box<[u64; GROUPS]>>,
}

impl Share {
    pub(super) fn holders(&self) -> impl Iterator<Item = usize> {
        self.holders.iter().flat_map(|run| run.first as usize..=run.last as usize)
    }
}
