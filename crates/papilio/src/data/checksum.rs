//! Data checksums: looking them up and holding sectors against them.
//!
//! Owns [`DataSums`], one cursor on the checksum tree for a whole request: the sums are compared where
//! they lie in their leaf, so that nothing is copied or allocated. Locks: none. Kernel counterparts:
//! `btrfs_lookup_bio_sums` (`fs/btrfs/file-item.c`), `btrfs_data_csum_ok` (`fs/btrfs/inode.c`).

use crate::btree::{Cursor, Tree};
use crate::errors::{Error, Result};
use papilio_format::items::csum::CsumItem;
use papilio_format::{ChecksumType, Geometry, LogicalAddress, TreeId};

/// What is wrong with a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SectorFault {
    /// Its bytes are not those that were summed.
    Mismatch,
    /// It has no sum, though it should.
    NoSum,
}

/// Look-ups in the checksum tree.
pub(crate) struct DataSums<'a> {
    cursor: Cursor<'a>,
    tree: TreeId,
    geometry: Geometry,
}

impl<'a> DataSums<'a> {
    /// Look-ups in `tree`, the checksum tree.
    pub(crate) fn new(tree: &'a Tree, geometry: Geometry) -> Self {
        Self { cursor: Cursor::new(tree), tree: tree.id(), geometry }
    }

    /// Hands out the sums of `sectors` sectors from `logical` on, a run at a time and in order:
    /// `visit(first, count, sums)`, with `first` counted from `logical`, and `sums` the sums one
    /// behind the other, or `None` where there are none. It goes on for as long as `visit` says
    /// `true`.
    ///
    /// # Errors
    /// A tree block or item that cannot be read.
    pub(crate) fn for_each_run(
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
            let sums = item.and_then(|item| item.sums_from(at, left));
            let run = match (sums, item) {
                (Some(sums), _) => sums.len() / self.geometry.checksum_type.size(),
                (None, Some(next)) => {
                    // At least one sector, so that no bytes whatsoever make this endless.
                    let gap = next.start().checked_since(at).unwrap_or(0).div_ceil(sector_size);
                    gap.clamp(1, left as u64) as usize
                }
                (None, None) => left,
            };
            if !visit(done, run, sums) {
                return Ok(());
            }
            done += run;
        }
        Ok(())
    }

    /// Holds `data`, whole sectors read from `logical`, against its sums, up to the first sector
    /// that is not as it should be: its number, counted from the first, and its fault.
    ///
    /// # Errors
    /// A tree block or item that cannot be read.
    pub(crate) fn first_fault(
        &mut self,
        logical: LogicalAddress,
        data: &[u8],
    ) -> Result<Option<(usize, SectorFault)>> {
        let algorithm = self.geometry.checksum_type;
        let sector_size = self.geometry.sector_size as usize;
        let mut fault = None;
        self.for_each_run(logical, data.len() / sector_size, |first, count, sums| {
            let data = &data[first * sector_size..][..count * sector_size];
            fault = match sums {
                None => Some((first, SectorFault::NoSum)),
                Some(sums) => first_mismatch(algorithm, sector_size, data, sums)
                    .map(|sector| (first + sector, SectorFault::Mismatch)),
            };
            fault.is_none()
        })?;
        Ok(fault)
    }

    /// As [`DataSums::first_fault`], of sums that are copied to memory of their own first.
    ///
    /// # Errors
    /// As [`DataSums::first_fault`].
    pub(crate) fn first_fault_copied(
        &mut self,
        logical: LogicalAddress,
        data: &[u8],
    ) -> Result<Option<(usize, SectorFault)>> {
        let algorithm = self.geometry.checksum_type;
        let sector_size = self.geometry.sector_size as usize;
        let sectors = data.len() / sector_size;
        let mut lookup = Box::new(DataSums { cursor: self.cursor.clone(), ..*self });
        let mut copied = vec![0; sectors * algorithm.size()];
        let mut missing = None;
        lookup.for_each_run(logical, sectors, |first, _, sums| {
            match sums {
                Some(sums) => copied[first * algorithm.size()..][..sums.len()].copy_from_slice(sums),
                None => missing = Some(first),
            }
            missing.is_none()
        })?;
        let there = missing.unwrap_or(sectors);
        let mismatch = first_mismatch(algorithm, sector_size, &data[..there * sector_size], &copied);
        Ok(mismatch
            .map(|sector| (sector, SectorFault::Mismatch))
            .or(missing.map(|sector| (sector, SectorFault::NoSum))))
    }

    /// Goes to the item that covers `address`, or else to the first behind it.
    fn seek(&mut self, address: LogicalAddress) -> Result<()> {
        // Sequential requests mostly stay in one item or go to the next.
        if let Some(item) = self.item()?
            && item.start() <= address
        {
            if address < item.end() {
                return Ok(());
            }
            if address == item.end() {
                self.cursor.step()?;
                // An item that starts later is the first behind the address: none lies between.
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

    /// The item here, if it holds data checksums.
    fn item(&self) -> Result<Option<CsumItem<'_>>> {
        let (Some(key), Some(data)) = (self.cursor.key(), self.cursor.data()) else { return Ok(None) };
        if key != CsumItem::key(LogicalAddress(key.offset)) {
            return Ok(None);
        }
        let item = CsumItem::parse(&key, data, &self.geometry);
        item.map(Some).map_err(|reason| Error::Item { tree: self.tree, key, reason })
    }
}

/// The first sector that differs from its sum.
pub(crate) fn first_mismatch(
    algorithm: ChecksumType,
    sector_size: usize,
    data: &[u8],
    sums: &[u8],
) -> Option<usize> {
    data.chunks_exact(sector_size)
        .zip(sums.chunks_exact(algorithm.size()))
        .position(|(bytes, sum)| !algorithm.verify(bytes, sum))
}
