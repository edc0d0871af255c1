//! Reads that are in flight without a thread.
//!
//! Owns [`StartedRead`], and the halves of such a read in [`ReadContext`]: placing it with what is
//! needed to verify it, and verifying what arrived. A read that cannot be placed, or arrives bad,
//! is left to [`ReadContext::read`].
//!
//! Locks: none held between calls. Kernel counterparts: `btrfs_dio_iomap_begin`
//! (`fs/btrfs/direct-io.c`), `btrfs_check_read_bio` (`fs/btrfs/bio.c`).

use crate::data::extent_map::{DiskExtent, Extent, ExtentKind};
use crate::data::file_data::{ExtentLookup, FileData};
use crate::data::read::ReadContext;
use crate::data::verify::{ChecksumTree, ReadRange, Verifier};
use crate::errors::Result;
use crate::transaction::assert_no_handle;
use crate::volume::Pieces;
use papilio_format::LogicalAddress;
use papilio_format::items::file_extent::Compression;
use smallvec::SmallVec;

/// The most parts of a read. One of more parts takes longer to place than a thread to wait.
const MAX_PARTS: usize = 1024;

/// A part of a read: whole sectors of one extent.
#[derive(Clone, Copy, Debug)]
struct ReadPart {
    logical: LogicalAddress,
    /// Bytes.
    length: usize,
    /// Whether the checksums are those of an ordered extent.
    ordered: bool,
}

/// Where the bytes of a read in flight come from.
#[derive(Debug)]
pub(crate) struct StartedRead {
    /// The file offset.
    offset: u64,
    parts: SmallVec<[ReadPart; 2]>,
}

/// Returns the location of the data at `at` in an extent, and where it ends in the file.
fn data_of(extent: &Extent, at: u64, file: &FileData<'_>) -> Option<(DiskExtent, u64)> {
    match &extent.kind {
        ExtentKind::Regular(disk) => Some((*disk, extent.end.0)),
        ExtentKind::Prealloc(disk) => {
            let run = file.written?.read().first_behind(at).filter(|run| run.start <= at)?;
            Some((*disk, extent.end.0.min(run.end)))
        }
        ExtentKind::Hole | ExtentKind::Inline(_) => None,
    }
}

impl ReadContext {
    /// Places a read of `length` bytes at `offset`, and adds its pieces. Returns `None` unless it
    /// is of whole sectors inside the file, and all of it is uncompressed data.
    ///
    /// # Errors
    /// A tree block that cannot be read; an invalid extent.
    pub(crate) fn place_read(
        &self,
        file: &FileData<'_>,
        offset: u64,
        length: usize,
        pieces: &mut Pieces,
    ) -> Result<Option<StartedRead>> {
        assert_no_handle();
        let sector = self.volume.geometry().sector_size;
        let aligned = offset.is_multiple_of(u64::from(sector)) && length.is_multiple_of(sector as usize);
        let end = offset.checked_add(length as u64).filter(|&end| end <= file.size);
        let (Some(end), true, true) = (end, aligned, length > 0) else { return Ok(None) };
        // Only a full request verifies by the Merkle tree.
        if self.is_measured(file) {
            return Ok(None);
        }
        let mut extents = ExtentLookup::new(file, sector);
        let mut parts = SmallVec::new();
        let mut at = offset;
        while at < end {
            let extent = extents.at(at, end)?;
            let Some((disk, data_end)) = data_of(&extent, at, file) else { return Ok(None) };
            let logical = LogicalAddress(disk.disk_address.0 + disk.offset);
            let next = data_end.min(end);
            let (length, start) = ((next - at) as usize, (at - offset) as usize);
            let placed = disk.compression == Compression::None
                && logical.0.is_multiple_of(u64::from(sector))
                && length.is_multiple_of(sector as usize)
                && parts.len() < MAX_PARTS
                && self.volume.read_pieces(logical, length, start, pieces);
            if !placed {
                return Ok(None);
            }
            let ordered = file.ordered.is_some_and(|ordered| ordered.holds(at));
            parts.push(ReadPart { logical, length, ordered });
            at = next;
        }
        Ok(Some(StartedRead { offset, parts }))
    }

    /// Caches what [`is_valid`](Self::is_valid) will look up.
    ///
    /// # Errors
    /// A block of the checksum tree that cannot be read.
    pub(crate) fn load_checksums(&self, file: &FileData<'_>, read: &StartedRead) -> Result<()> {
        if !self.verifies(file) {
            return Ok(());
        }
        let checksums = ChecksumTree::new(self.checksums());
        let geometry = self.volume.geometry();
        let mut verifier = Verifier::new(geometry, self.lookup(), true, file.extent_cache, &checksums);
        let mut in_tree = read.parts.iter().filter(|part| !part.ordered);
        in_tree.try_for_each(|part| verifier.load(part.logical, part.length))
    }

    /// Returns whether there is no second copy of any part, so that an error is final.
    pub(crate) fn has_one_copy(&self, read: &StartedRead) -> bool {
        read.parts.iter().all(|part| self.volume.copies(part.logical).is_ok_and(|copies| copies == 1))
    }

    /// Returns whether `data`, which has arrived, is valid.
    ///
    /// # Errors
    /// A block of the checksum tree that cannot be read.
    pub(crate) fn is_valid(&self, file: &FileData<'_>, read: &StartedRead, data: &[u8]) -> Result<bool> {
        if !self.verifies(file) {
            return Ok(true);
        }
        let checksums = ChecksumTree::new(self.checksums());
        let geometry = self.volume.geometry();
        let mut verifier = Verifier::new(geometry, self.lookup(), true, file.extent_cache, &checksums);
        let mut done = 0;
        for part in &read.parts {
            let offset = read.offset + done as u64;
            let ordered = file.ordered.filter(|_| part.ordered);
            let range = ReadRange { logical: part.logical, offset, ordered };
            if verifier.first_fault(&range, &data[done..done + part.length])?.is_some() {
                return Ok(false);
            }
            done += part.length;
        }
        Ok(true)
    }
}
