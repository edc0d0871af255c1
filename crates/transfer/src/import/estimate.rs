//! Estimating the size of a file system for given content.
//!
//! Owns [`Estimate`], which is generous: free space of a sparse image costs nothing, and the file
//! system can be shrunk afterwards.

use super::host::{Walked, walk};
use papilio_engine::errors::Result;
use std::path::Path;

const SECTOR: u64 = 4096;
/// Limit in bytes of files stored inline in the tree (the default of `max_inline`).
const MAX_INLINE: u64 = 2048;
/// Bytes of items of an inode with one name: inode item, inode ref, two directory entries, and
/// their headers. The name is stored three times in addition.
const INODE_BYTES: u64 = 160 + 10 + 2 * 30 + 4 * 25;
/// Bytes of items of an extent: file extent, extent item with its back reference, free space item.
const EXTENT_BYTES: u64 = 53 + 53 + 3 * 25;
/// Limit in bytes of a checksum.
const CHECKSUM_BYTES: u64 = 32;
/// Assumed bytes of an extent of a large file.
const EXTENT_LENGTH: u64 = 4 << 20;
/// Bytes of the smallest file system with its reserves.
const FIXED: u64 = 192 << 20;

/// Bytes of data and metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Estimate {
    data: u64,
    metadata: u64,
}

impl Estimate {
    /// Adds the content of another layer.
    pub(super) fn add(&mut self, other: Self) {
        self.data = self.data.saturating_add(other.data);
        self.metadata = self.metadata.saturating_add(other.metadata);
    }

    /// Adds an inode with a name.
    pub(super) fn add_entry(&mut self, name_length: usize, xattr_bytes: u64) {
        self.metadata += INODE_BYTES + 3 * name_length as u64 + xattr_bytes;
    }

    /// Adds a file's data of `allocated` bytes.
    pub(super) fn add_content(&mut self, allocated: u64) {
        if allocated <= MAX_INLINE {
            self.metadata += 25 + 21 + allocated;
            return;
        }
        let sectors = allocated.div_ceil(SECTOR);
        self.data = self.data.saturating_add(sectors * SECTOR);
        self.metadata += sectors * CHECKSUM_BYTES + allocated.div_ceil(EXTENT_LENGTH) * EXTENT_BYTES;
    }

    /// Returns the bytes of a file system for this content, with duplicate metadata and leaves two
    /// thirds full.
    pub(super) fn file_system_size(&self) -> u64 {
        let metadata = self.metadata.saturating_mul(3);
        let content = self.data.saturating_add(metadata);
        // A chunk is up to a tenth of the file system, and may be almost empty.
        let size = content.saturating_add(content / 4).saturating_add(FIXED);
        size.checked_next_multiple_of(1 << 20).unwrap_or(size)
    }
}

/// Sums up the content of a host directory.
pub(super) fn of_directory(from: &Path, excluded: &[(u64, u64)]) -> Result<Estimate> {
    let mut estimate = Estimate::default();
    walk(from, excluded, &mut |walked: Walked| {
        // Extended attributes are not read; a common one, such as a security label, is about 100
        // bytes.
        estimate.add_entry(walked.name_length, 128);
        if let Some(size) = walked.content {
            estimate.add_content(size);
        }
    })?;
    Ok(estimate)
}
