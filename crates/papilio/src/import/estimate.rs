//! How large a file system has to be for what shall be in it.
//!
//! Owns [`Estimate`]. It is generous: an image is sparse, so that room costs nothing, and what is left
//! over can be cut off.

use super::host::{Walked, walk};
use crate::errors::Result;
use std::path::Path;

const SECTOR: u64 = 4096;
/// Up to so many bytes a file lies in its tree (the default of `max_inline`).
const MAX_INLINE: u64 = 2048;
/// Bytes of items of an inode with one name: inode item, back reference, two directory entries, with the
/// heads of all; the name comes three times on top.
const INODE_BYTES: u64 = 160 + 10 + 2 * 30 + 4 * 25;
/// Bytes of items of an extent: file extent, extent item with its back reference, free space around it.
const EXTENT_BYTES: u64 = 53 + 53 + 3 * 25;
/// Bytes of a checksum at most.
const CHECKSUM_BYTES: u64 = 32;
/// A file of several extents has one of at most so many bytes.
const EXTENT_LENGTH: u64 = 4 << 20;
/// What the smallest file system takes, and what it keeps in reserve.
const FIXED: u64 = 192 << 20;

/// What there is, in bytes and numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Estimate {
    data: u64,
    metadata: u64,
}

impl Estimate {
    /// A name and its inode.
    pub(super) fn add_entry(&mut self, name_length: usize, xattr_bytes: u64) {
        self.metadata += INODE_BYTES + 3 * name_length as u64 + xattr_bytes;
    }

    /// The content of a file, `allocated` bytes of it being data.
    pub(super) fn add_content(&mut self, allocated: u64) {
        if allocated <= MAX_INLINE {
            self.metadata += 25 + 21 + allocated;
            return;
        }
        let sectors = allocated.div_ceil(SECTOR);
        self.data = self.data.saturating_add(sectors * SECTOR);
        self.metadata += sectors * CHECKSUM_BYTES + allocated.div_ceil(EXTENT_LENGTH) * EXTENT_BYTES;
    }

    /// The file system that holds it, with metadata twice and leaves two thirds full, in bytes.
    pub(super) fn file_system_size(&self) -> u64 {
        let metadata = self.metadata.saturating_mul(3);
        let content = self.data.saturating_add(metadata);
        // Chunks are a tenth of the file system each, and may be begun only.
        let size = content.saturating_add(content / 4).saturating_add(FIXED);
        size.checked_next_multiple_of(1 << 20).unwrap_or(size)
    }
}

/// What is in a directory of the host.
pub(super) fn of_directory(from: &Path, excluded: &[(u64, u64)]) -> Result<Estimate> {
    let mut estimate = Estimate::default();
    walk(from, excluded, &mut |walked: Walked| {
        // Attributes are not looked at: one that is common (a label, say) is some hundred bytes at most.
        estimate.add_entry(walked.name_length, 128);
        if let Some(size) = walked.content {
            estimate.add_content(size);
        }
    })?;
    Ok(estimate)
}
