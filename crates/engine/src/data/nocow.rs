//! Overwriting in place: the ranges of a file that allow it.
//!
//! Owns [`InPlace`], the in-memory state of an open file for this, and the five conditions:
//! - the extent is on disk, and neither compressed, encrypted nor inline;
//! - no other item refers to it;
//! - no snapshot is younger than it;
//! - its block group is writable;
//! - the range has no checksums.
//!
//! A result is cached until extents become shared (a snapshot or a reflink adds one to the *sharing
//! epoch*) or the file's extents change.
//!
//! A preallocated range stays preallocated in the tree after data was written to it, until
//! [`super::convert`] publishes the change. Until then [`InPlace::written`] records that it holds
//! data.
//!
//! Invariant: a range is recorded as written after its data is on the device.
//!
//! Locks: two leaves, one for the cached results and one for the written ranges. Kernel
//! counterparts: `can_nocow_file_extent`, `run_delalloc_nocow` (`fs/btrfs/inode.c`),
//! `csum_exist_in_range` (`fs/btrfs/file-item.c`).

use crate::btree::{LiveTree, Tree};
use crate::data::checksum::DataChecksums;
use crate::data::file_extents_edit::{is_plain, on_disk};
use crate::data::space::DataAllocator;
use crate::data::stored_extents::StoredExtents;
use crate::errors::Result;
use crate::space::RangeSet;
use crate::transaction::{DataReference, Transactions};
use crate::tuning::NocowCheck;
use arrayvec::ArrayVec;
use papilio_format::items::file_extent::{ExtentPart, FileExtentContent};
use papilio_format::{FileOffset, Geometry, InodeNumber, LogicalAddress, objectid};
use papilio_locks::RwLock;
use std::collections::BTreeMap;
use std::ops::Range;

/// The most cached results of a file; a full cache is emptied.
const MAX_CACHED: usize = 1 << 16;
/// The most extents that are checked, or overwritten, at once.
pub(crate) const MAX_IN_PLACE_PARTS: usize = 16;

/// A range that may be overwritten in place.
#[derive(Clone, Copy, Debug)]
struct Overwritable {
    end: u64,
    /// The address of the first byte.
    disk: LogicalAddress,
    preallocated: bool,
    /// The sharing epoch of the check.
    epoch: u64,
}

/// A part of an in-place write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InPlacePart {
    /// The range of the file.
    pub(crate) range: Range<u64>,
    /// The address of the first byte.
    pub(crate) disk: LogicalAddress,
    /// Whether the extent is preallocated in the tree.
    pub(crate) preallocated: bool,
}

/// The cached results.
#[derive(Debug, Default)]
struct KnownExtents {
    /// Ranges by their first byte in the file.
    extents: BTreeMap<u64, Overwritable>,
    /// The number of clears so far.
    clears: u64,
}

/// The in-memory state of an open file for overwriting in place.
#[derive(Debug, Default)]
pub(crate) struct InPlace {
    extents: RwLock<KnownExtents>,
    /// Preallocated ranges that hold data.
    written: RwLock<RangeSet>,
}

/// The parts of one in-place write.
pub(crate) type InPlaceParts = ArrayVec<InPlacePart, MAX_IN_PLACE_PARTS>;

/// The input of a check.
#[derive(Clone, Copy)]
pub(crate) struct OverwriteCheck<'a> {
    pub(crate) transactions: &'a Transactions,
    /// The file's subvolume.
    pub(crate) live: &'a LiveTree,
    /// The subvolume's current tree, and the checksum tree if there is one.
    pub(crate) tree: &'a Tree,
    pub(crate) checksums: Option<&'a Tree>,
    pub(crate) inode: InodeNumber,
    pub(crate) check: NocowCheck,
    /// Whether only preallocated extents are checked: a file with checksums may overwrite no
    /// others.
    pub(crate) preallocated_only: bool,
    /// The sharing epoch, which cannot end during the check.
    pub(crate) epoch: u64,
    /// The value of [`InPlace::clears`] before the tree's root was taken.
    pub(crate) clears: u64,
}

impl InPlace {
    /// Returns the first parts of `range` that may be overwritten according to the cache.
    pub(crate) fn parts(&self, range: &Range<u64>, epoch: u64) -> InPlaceParts {
        let extents = &self.extents.read().extents;
        let mut parts = InPlaceParts::new();
        let Some((&first, _)) = extents.range(..=range.start).next_back() else { return parts };
        let mut at = range.start;
        for (&start, extent) in extents.range(first..range.end) {
            if start > at || extent.end <= at || extent.epoch != epoch || parts.is_full() {
                break;
            }
            let end = extent.end.min(range.end);
            let disk = LogicalAddress(extent.disk.0 + (at - start));
            parts.push(InPlacePart { range: at..end, disk, preallocated: extent.preallocated });
            at = end;
        }
        parts
    }

    /// Returns the number of clears. The caller reads it before it takes the tree of a check.
    pub(crate) fn clears(&self) -> u64 {
        self.extents.read().clears
    }

    /// Checks the first extents that `range` overlaps, and caches those that may be overwritten,
    /// unless the cache was cleared meanwhile.
    ///
    /// # Errors
    /// A tree block or an item that cannot be read.
    pub(crate) fn check(&self, check: &OverwriteCheck<'_>, range: &Range<u64>) -> Result<()> {
        let sector_size = check.transactions.volume().geometry().sector_size;
        let stored = StoredExtents::new(check.tree, check.inode, sector_size, range.start, range.end);
        for extent in stored.take(MAX_IN_PLACE_PARTS) {
            let extent = extent?;
            let item = extent.extent();
            let Some(part) = on_disk(&item).filter(|_| is_plain(&item)) else { continue };
            let preallocated = matches!(item.content, FileExtentContent::Prealloc(_));
            if check.preallocated_only && !preallocated || !check.may_overwrite(extent.start, &part)? {
                continue;
            }
            let disk = LogicalAddress(part.disk_address.0 + part.offset);
            let overwritable = Overwritable { end: extent.end, disk, preallocated, epoch: check.epoch };
            let mut known = self.extents.write();
            if known.clears != check.clears {
                break;
            }
            if known.extents.len() >= MAX_CACHED {
                known.extents.clear();
            }
            known.extents.insert(extent.start, overwritable);
        }
        Ok(())
    }

    /// Clears the cached results, because the file's extents change.
    pub(crate) fn clear(&self) {
        let mut known = self.extents.write();
        known.clears += 1;
        known.extents.clear();
    }

    /// Records that a preallocated range holds data. Returns whether that was not recorded before.
    pub(crate) fn set_written(&self, range: &Range<u64>) -> bool {
        if self.written.read().holder(range).is_some() {
            return false;
        }
        self.written.write().cover(range);
        true
    }

    /// Returns the preallocated ranges that hold data.
    pub(crate) fn written(&self) -> &RwLock<RangeSet> {
        &self.written
    }
}

impl OverwriteCheck<'_> {
    /// Checks the conditions for a part of an extent that starts at file offset `start`.
    fn may_overwrite(&self, start: u64, part: &ExtentPart) -> Result<bool> {
        let Some(record) = self.live.record() else { return Ok(false) };
        let reference = DataReference {
            address: part.disk_address,
            length: part.disk_length,
            tree: self.live.id(),
            inode: self.inode,
            offset: FileOffset(start.wrapping_sub(part.offset)),
        };
        if !self.transactions.may_overwrite(&reference, record.item.last_snapshot)? {
            return Ok(false);
        }
        let address = LogicalAddress(part.disk_address.0 + part.offset);
        Ok(!self.has_checksums(address, part.length)?)
    }

    fn has_checksums(&self, address: LogicalAddress, length: u64) -> Result<bool> {
        let Some(tree) = self.checksums else { return Ok(false) };
        has_checksums(tree, self.transactions.volume().geometry(), self.check, address, length)
    }
}

/// Returns whether `tree`, the checksum tree, has any checksum in a range.
///
/// # Errors
/// A tree block or an item that cannot be read.
pub fn has_checksums(
    tree: &Tree,
    geometry: Geometry,
    check: NocowCheck,
    address: LogicalAddress,
    length: u64,
) -> Result<bool> {
    let sectors = (length / u64::from(geometry.sector_size)) as usize;
    let mut checksums = DataChecksums::new(tree, geometry);
    match check {
        NocowCheck::FirstMatch => {
            let mut found = false;
            checksums.for_each_run(address, sectors, |_, _, checksums| {
                found = checksums.is_some();
                !found
            })?;
            Ok(found)
        }
        #[cfg(feature = "ablation")]
        NocowCheck::CollectAll => {
            let mut collected: Vec<Vec<u8>> = Vec::new();
            checksums.for_each_run(address, sectors, |_, _, checksums| {
                collected.extend(checksums.map(<[u8]>::to_vec));
                true
            })?;
            Ok(!collected.is_empty())
        }
    }
}

/// Returns the checksum tree, pinned, if there is one.
///
/// # Errors
/// A block on the way to it that cannot be read.
pub fn checksum_tree(transactions: &Transactions) -> Result<Option<Tree>> {
    let pin = transactions.pin();
    Ok(transactions.live().find(objectid::CSUM_TREE)?.map(|live| live.tree().pinned(pin)))
}
