//! Whether a file's data has checksums.
//!
//! Owns [`File::has_checksums`], the question that is asked before data is overwritten in place, as a call of its
//! own. Locks: the file's data lock (shared) for the flush before it; none then. Kernel counterpart:
//! `csum_exist_in_range` (`fs/btrfs/file-item.c`).

use crate::data::file_extents_edit::{is_plain, on_disk};
use crate::data::nocow;
use crate::data::stored_extents::StoredExtents;
use crate::errors::Result;
use crate::fs::file::File;
use papilio_format::LogicalAddress;
use std::ops::Range;

impl File {
    /// Whether any part of an extent that reaches into `range` has checksums. It is asked as
    /// [`Tuning::nocow_check`](crate::Tuning::nocow_check) says.
    ///
    /// # Errors
    /// [`Error::ReadOnlyFileSystem`](crate::Error::ReadOnlyFileSystem) where the file system was not opened for
    /// writing; a tree block or an item that cannot be read.
    pub fn has_checksums(&self, range: Range<u64>) -> Result<bool> {
        let fs = self.inode().file_system();
        let transactions = fs.info.transactions()?;
        self.flush()?;
        let Some(sums) = nocow::checksum_tree(transactions)? else { return Ok(false) };
        let pin = transactions.pin();
        let tree = transactions.live().get(self.inode().tree())?.tree().pinned(pin);
        let (geometry, check) = (fs.info.volume().geometry(), fs.info.tuning.nocow_check);
        let (number, sector) = (self.inode().number(), u64::from(geometry.sector_size));
        // Sums are of whole sectors.
        let end = range.end.checked_next_multiple_of(sector).unwrap_or(u64::MAX);
        let range = range.start - range.start % sector..end;
        for extent in StoredExtents::new(&tree, number, geometry.sector_size, range.start, range.end) {
            let extent = extent?;
            let Some(part) = on_disk(&extent.extent()) else { continue };
            let (address, length) = if is_plain(&extent.extent()) {
                let skipped = range.start.saturating_sub(extent.start);
                let length = extent.end.min(range.end) - extent.start - skipped;
                (part.disk_address.0 + part.offset + skipped, length)
            } else {
                // What is compressed is summed as it lies on disk.
                (part.disk_address.0, part.disk_length)
            };
            let address = LogicalAddress(address);
            if nocow::has_checksums(&sums, geometry, check, address, length)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
