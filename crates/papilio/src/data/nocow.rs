//! Overwriting in place: which ranges of a file may be, and which preallocated ones were.
//!
//! Owns [`InPlace`], what is kept of an open file for it, and the five conditions: the extent is on disk and
//! neither compressed, encrypted nor inline; nothing else refers to it; no snapshot is younger than it; its
//! block group is writable; and no checksum exists for the range. An answer is remembered until anything is
//! shared (a snapshot, a reflink: the *epoch* of sharing counts them) or the file's extents change.
//!
//! A preallocated range that was written stays as it is in the tree until [`super::convert`] is told; until
//! then [`InPlace::written`] says that it holds data. Invariant: a range enters there after its data is on the
//! device. Locks: two leaves, the answers' and the written ranges'. Kernel counterparts:
//! `can_nocow_file_extent`, `run_delalloc_nocow` (`fs/btrfs/inode.c`), `csum_exist_in_range`
//! (`fs/btrfs/file-item.c`).

use crate::btree::{LiveTree, Tree};
use crate::data::checksum::DataSums;
use crate::data::file_extents_edit::{is_plain, on_disk};
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

/// Extents whose answer is remembered at most; beyond that all are asked anew.
const REMEMBERED: usize = 1 << 16;
/// Extents that are overwritten, and asked for, at once.
pub(crate) const MAX_PIECES: usize = 16;

/// A range that may be overwritten where it lies.
#[derive(Clone, Copy, Debug)]
struct Overwritable {
    end: u64,
    /// Where its first byte lies.
    disk: LogicalAddress,
    preallocated: bool,
    /// The epoch of sharing in which that was found.
    epoch: u64,
}

/// A part of a write in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Of the file.
    pub(crate) range: Range<u64>,
    /// Where it lies.
    pub(crate) disk: LogicalAddress,
    /// The tree has it as preallocated.
    pub(crate) preallocated: bool,
}

/// What is known.
#[derive(Debug, Default)]
struct Answers {
    /// By the first byte.
    extents: BTreeMap<u64, Overwritable>,
    /// How often all were forgotten.
    forgotten: u64,
}

/// What is kept of an open file for overwriting in place.
#[derive(Debug, Default)]
pub(crate) struct InPlace {
    extents: RwLock<Answers>,
    /// Preallocated ranges that hold data by now.
    written: RwLock<RangeSet>,
}

/// The pieces of one write.
pub(crate) type Pieces = ArrayVec<Piece, MAX_PIECES>;

/// What asking takes.
#[derive(Clone, Copy)]
pub(crate) struct Question<'a> {
    pub(crate) transactions: &'a Transactions,
    /// The subvolume.
    pub(crate) live: &'a LiveTree,
    /// The subvolume as it is, and the checksum tree, if there is one.
    pub(crate) tree: &'a Tree,
    pub(crate) sums: Option<&'a Tree>,
    pub(crate) inode: InodeNumber,
    pub(crate) check: NocowCheck,
    /// Only preallocated extents are asked for: of a file with checksums, no other may be overwritten.
    pub(crate) preallocated_only: bool,
    /// The epoch of sharing, which cannot end meanwhile.
    pub(crate) epoch: u64,
    /// What [`InPlace::forgotten`] said before the tree was taken.
    pub(crate) forgotten: u64,
}

impl InPlace {
    /// The first pieces of `range`, as far as what is remembered says that they may be overwritten.
    pub(crate) fn pieces(&self, range: &Range<u64>, epoch: u64) -> Pieces {
        let extents = &self.extents.read().extents;
        let mut pieces = Pieces::new();
        let Some((&first, _)) = extents.range(..=range.start).next_back() else { return pieces };
        let mut at = range.start;
        for (&start, extent) in extents.range(first..range.end) {
            if start > at || extent.end <= at || extent.epoch != epoch || pieces.is_full() {
                break;
            }
            let end = extent.end.min(range.end);
            let disk = LogicalAddress(extent.disk.0 + (at - start));
            pieces.push(Piece { range: at..end, disk, preallocated: extent.preallocated });
            at = end;
        }
        pieces
    }

    /// How often all was forgotten: to be asked before the tree of a question is taken.
    pub(crate) fn forgotten(&self) -> u64 {
        self.extents.read().forgotten
    }

    /// Asks for the first extents that `range` lies in, and remembers those that may be overwritten, unless all
    /// was forgotten meanwhile.
    ///
    /// # Errors
    /// A tree block or an item that cannot be read.
    pub(crate) fn ask(&self, question: &Question<'_>, range: &Range<u64>) -> Result<()> {
        let sector_size = question.transactions.volume().geometry().sector_size;
        let stored = StoredExtents::new(question.tree, question.inode, sector_size, range.start, range.end);
        for extent in stored.take(MAX_PIECES) {
            let extent = extent?;
            let item = extent.extent();
            let Some(part) = on_disk(&item).filter(|_| is_plain(&item)) else { continue };
            let preallocated = matches!(item.content, FileExtentContent::Prealloc(_));
            if question.preallocated_only && !preallocated || !question.may_overwrite(extent.start, &part)? {
                continue;
            }
            let disk = LogicalAddress(part.disk_address.0 + part.offset);
            let known = Overwritable { end: extent.end, disk, preallocated, epoch: question.epoch };
            let mut answers = self.extents.write();
            if answers.forgotten != question.forgotten {
                break;
            }
            if answers.extents.len() >= REMEMBERED {
                answers.extents.clear();
            }
            answers.extents.insert(extent.start, known);
        }
        Ok(())
    }

    /// The file's extents change: nothing is known of them any more.
    pub(crate) fn forget(&self) {
        let mut answers = self.extents.write();
        answers.forgotten += 1;
        answers.extents.clear();
    }

    /// A preallocated range holds data by now. Says whether that is news.
    pub(crate) fn set_written(&self, range: &Range<u64>) -> bool {
        if self.written.read().holder(range).is_some() {
            return false;
        }
        self.written.write().cover(range);
        true
    }

    /// Preallocated ranges that hold data though the tree says otherwise.
    pub(crate) fn written(&self) -> &RwLock<RangeSet> {
        &self.written
    }
}

impl Question<'_> {
    /// The conditions, for a part of an extent that stands at `start` in the file.
    fn may_overwrite(&self, start: u64, part: &ExtentPart) -> Result<bool> {
        let Some(record) = self.live.record() else { return Ok(false) };
        let reference = DataReference {
            address: part.disk_address,
            length: part.disk_length,
            tree: self.live.id(),
            inode: self.inode,
            offset: FileOffset(start.wrapping_sub(part.offset)),
        };
        if !self.transactions.space().is_writable(part.disk_address)
            || !self.transactions.is_only_reference(&reference, record.item.last_snapshot)?
        {
            return Ok(false);
        }
        let address = LogicalAddress(part.disk_address.0 + part.offset);
        Ok(!self.has_sums(address, part.length)?)
    }

    fn has_sums(&self, address: LogicalAddress, length: u64) -> Result<bool> {
        let Some(tree) = self.sums else { return Ok(false) };
        has_sums(tree, self.transactions.volume().geometry(), self.check, address, length)
    }
}

/// Whether there is any checksum in a range of `tree`, the checksum tree.
///
/// # Errors
/// A tree block or an item that cannot be read.
pub(crate) fn has_sums(
    tree: &Tree,
    geometry: Geometry,
    check: NocowCheck,
    address: LogicalAddress,
    length: u64,
) -> Result<bool> {
    let sectors = (length / u64::from(geometry.sector_size)) as usize;
    let mut sums = DataSums::new(tree, geometry);
    match check {
        NocowCheck::FirstMatch => {
            let mut found = false;
            sums.for_each_run(address, sectors, |_, _, sums| {
                found = sums.is_some();
                !found
            })?;
            Ok(found)
        }
        NocowCheck::CollectAll => {
            let mut collected: Vec<Vec<u8>> = Vec::new();
            sums.for_each_run(address, sectors, |_, _, sums| {
                collected.extend(sums.map(<[u8]>::to_vec));
                true
            })?;
            Ok(!collected.is_empty())
        }
    }
}

/// The checksum tree, to be asked.
///
/// # Errors
/// A block on the way to it that cannot be read.
pub(crate) fn checksum_tree(transactions: &Transactions) -> Result<Option<Tree>> {
    let pin = transactions.pin();
    Ok(transactions.live().find(objectid::CSUM_TREE)?.map(|live| live.tree().pinned(pin)))
}
