//! Data checksums: looking them up and verifying sectors.
//!
//! Owns [`DataChecksums`], one cursor on the checksum tree for a whole request. Checksums are
//! compared in their leaf, so that nothing is copied or allocated.
//!
//! Locks: none. Kernel counterparts: `btrfs_lookup_bio_sums` (`fs/btrfs/file-item.c`),
//! `btrfs_data_csum_ok` (`fs/btrfs/inode.c`).

use crate::btree::{Cursor, Tree};
use crate::errors::{Error, Result};
use papilio_format::items::csum::CsumItem;
use papilio_format::{ChecksumType, Geometry, LogicalAddress, TreeId};

/// Why a sector is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectorFault {
    /// The bytes do not match the checksum.
    Mismatch,
    /// The checksum tree has no checksum for the sector.
    Missing,
}

/// A cursor for look-ups in the checksum tree.
pub struct DataChecksums<'a> {
    cursor: Cursor<'a>,
    tree: TreeId,
    geometry: Geometry,
}

impl<'a> DataChecksums<'a> {
    /// Starts look-ups in `tree`, the checksum tree.
    pub fn new(tree: &'a Tree, geometry: Geometry) -> Self {
        Self { cursor: Cursor::new(tree), tree: tree.id(), geometry }
    }

    /// Calls `visit(first, count, checksums)` for each run of the `sectors` sectors from `logical`
    /// on, in order. `first` counts sectors from `logical`. `checksums` is the run's checksums in a
    /// row, or `None` for sectors without any. Stops when `visit` returns `false`.
    ///
    /// # Errors
    /// A tree block or item that cannot be read.
    pub fn for_each_run(
        &mut self,
        logical: LogicalAddress,
        sectors: usize,
        mut visit: impl FnMut(usize, usize, Option<&[u8]>) -> bool,
    ) -> Result<()> {
        let sector_size = u64::from(self.geometry.sector_size);
        let mut done = 0;
        while done < sectors {
            let left = sectors - done;
            let Some(at) = logical.checked_add(done as u64 * sector_size) else {
                visit(done, left, None);
                return Ok(());
            };
            self.seek(at)?;
            let item = self.item()?;
            let checksums = item.and_then(|item| item.sums_from(at, left));
            let run = match (checksums, item) {
                (Some(checksums), _) => checksums.len() / self.geometry.checksum_type.size(),
                (None, Some(next)) => {
                    // At least one sector, so that the loop ends whatever the bytes say.
                    let gap = next.start().checked_since(at).unwrap_or(0).div_ceil(sector_size);
                    gap.clamp(1, left as u64) as usize
                }
                (None, None) => left,
            };
            if !visit(done, run, checksums) {
                return Ok(());
            }
            done += run;
        }
        Ok(())
    }

    /// Verifies `data`, whole sectors read from `logical`. Returns the first bad sector, counted
    /// from the start of `data`, and its fault.
    ///
    /// # Errors
    /// A tree block or item that cannot be read.
    pub fn first_fault(
        &mut self,
        logical: LogicalAddress,
        data: &[u8],
    ) -> Result<Option<(usize, SectorFault)>> {
        let algorithm = self.geometry.checksum_type;
        let sector_size = self.geometry.sector_size as usize;
        let mut fault = None;
        self.for_each_run(logical, data.len() / sector_size, |first, count, checksums| {
            let data = &data[first * sector_size..][..count * sector_size];
            fault = match checksums {
                None => Some((first, SectorFault::Missing)),
                Some(checksums) => first_mismatch(algorithm, sector_size, data, checksums)
                    .map(|sector| (first + sector, SectorFault::Mismatch)),
            };
            fault.is_none()
        })?;
        Ok(fault)
    }

    /// As [`DataChecksums::first_fault`], but copies the checksums to the heap first.
    ///
    /// # Errors
    /// As [`DataChecksums::first_fault`].
    #[cfg(feature = "ablation")]
    pub(crate) fn first_fault_copied(
        &mut self,
        logical: LogicalAddress,
        data: &[u8],
    ) -> Result<Option<(usize, SectorFault)>> {
        let algorithm = self.geometry.checksum_type;
        let sector_size = self.geometry.sector_size as usize;
        let sectors = data.len() / sector_size;
        let mut lookup = Box::new(DataChecksums { cursor: self.cursor.clone(), ..*self });
        let mut copied = vec![0; sectors * algorithm.size()];
        let mut missing = None;
        lookup.for_each_run(logical, sectors, |first, _, checksums| {
            match checksums {
                Some(checksums) => {
                    copied[first * algorithm.size()..][..checksums.len()].copy_from_slice(checksums)
                }
                None => missing = Some(first),
            }
            missing.is_none()
        })?;
        let there = missing.unwrap_or(sectors);
        let mismatch = first_mismatch(algorithm, sector_size, &data[..there * sector_size], &copied);
        Ok(mismatch
            .map(|sector| (sector, SectorFault::Mismatch))
            .or(missing.map(|sector| (sector, SectorFault::Missing))))
    }

    /// Moves to the item that covers `address`, or else to the first item after it.
    fn seek(&mut self, address: LogicalAddress) -> Result<()> {
        // Sequential requests mostly stay in one item or move on to the next.
        if let Some(item) = self.item()?
            && item.start() <= address
        {
            if address < item.end() {
                return Ok(());
            }
            if address == item.end() {
                self.cursor.step()?;
                // An item that starts later is the first after `address`: none lies in between.
                if self.item()?.is_some() {
                    return Ok(());
                }
            }
        }
        let key = CsumItem::key(address);
        self.cursor.seek(&key)?;
        if self.cursor.key() == Some(key) {
            return Ok(());
        }
        self.cursor.step_back()?;
        if self.item()?.is_none_or(|item| item.end() <= address) {
            if self.cursor.key().is_some() {
                self.cursor.step()?;
            } else {
                self.cursor.seek(&key)?;
            }
        }
        Ok(())
    }

    /// Returns the item at the cursor, if it holds data checksums.
    fn item(&self) -> Result<Option<CsumItem<'_>>> {
        let (Some(key), Some(data)) = (self.cursor.key(), self.cursor.data()) else { return Ok(None) };
        if key != CsumItem::key(LogicalAddress(key.offset)) {
            return Ok(None);
        }
        let item = CsumItem::parse(&key, data, &self.geometry);
        item.map(Some).map_err(|reason| Error::Item { tree: self.tree, key, reason })
    }
}

/// Returns the first sector of `data` that does not match its checksum.
pub fn first_mismatch(
    algorithm: ChecksumType,
    sector_size: usize,
    data: &[u8],
    checksums: &[u8],
) -> Option<usize> {
    data.chunks_exact(sector_size)
        .zip(checksums.chunks_exact(algorithm.size()))
        .position(|(bytes, checksum)| !algorithm.verify(bytes, checksum))
}
