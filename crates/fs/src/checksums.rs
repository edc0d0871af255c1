//! Looking up whether a file's data has checksums.
//!
//! Owns [`File::has_checksums`], the check before data is overwritten in place, for measurements.
//!
//! **Locks:** the file's data lock (shared) for the flush, none afterwards.
//!
//! Kernel counterpart: `csum_exist_in_range` (`fs/btrfs/file-item.c`).

use crate::file::File;
use papilio_engine::data::file_extents_edit::{is_plain, on_disk};
use papilio_engine::data::nocow;
use papilio_engine::data::stored_extents::StoredExtents;
use papilio_engine::errors::Result;
use papilio_format::LogicalAddress;
use std::ops::Range;

impl File {
    /// Returns whether any extent in `range` has checksums, looked up as
    /// [`Tuning::nocow_check`](crate::Tuning::nocow_check) chooses.
    ///
    /// # Errors
    /// [`Error::ReadOnlyFileSystem`](papilio_engine::Error::ReadOnlyFileSystem) if the file system
    /// is open for reading only; a tree block or an item that cannot be read.
    #[cfg(feature = "unstable")]
    pub fn has_checksums(&self, range: Range<u64>) -> Result<bool> {
        let fs = self.inode().file_system();
        let transactions = fs.info.transactions()?;
        self.flush()?;
        let Some(sums) = nocow::checksum_tree(transactions)? else { return Ok(false) };
        let pin = transactions.pin();
        let tree = transactions.live().get(self.inode().tree())?.tree().pinned(pin);
        let (geometry, check) = (fs.info.volume().geometry(), fs.info.tuning.nocow_check);
        let (number, sector) = (self.inode().number(), u64::from(geometry.sector_size));
        // Checksums cover whole sectors.
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
                // The checksums of compressed data cover the compressed bytes.
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
