//! How the parts of data extents are shared: by which files of which subvolumes, at which offsets.
//!
//! Owns [`ExtentPiece`], [`PieceSharing`] and the look at them, [`Transactions::sharing_of`]. A
//! *piece* is a part of an extent that a file uses without a gap. Pieces of two extents can become
//! one extent without a change for anybody if they lie one behind the other in every file that has
//! them, and if the same subvolumes have them. Then a deletion frees as much as before, and
//! quotas have nothing to count.
//!
//! **Invariants**
//! - The look is at trees without changes: every block is on disk.
//! - An extent is movable only if each reference to it lies inside one of the pieces. A move loses
//!   the bytes that no reference uses.
//! - Every reference that the extent tree counts was found.
//!
//! **Locks**: as [`Transactions::read_still`].
//!
//! Kernel counterpart: `find_parent_nodes` (`fs/btrfs/backref.c`).

use super::relocation_plan::RelocationPlan;
use super::root_sets::{RootSet, RootSets};
use super::transaction::Transactions;
use crate::errors::{Error, Result};
use papilio_format::items::file_extent::{Compression, FileExtentContent, FileExtentItem};
use papilio_format::{ItemType, Key, LogicalAddress, TreeId};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Most tree blocks of one look, which are all in memory.
const MOST_BLOCKS: usize = 4096;
/// Most references of an extent that moves.
const MOST_REFERENCES: usize = 1 << 16;

/// A part of a data extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExtentPiece {
    /// The address of the whole extent.
    pub(crate) extent: LogicalAddress,
    /// Bytes of the whole extent.
    pub(crate) extent_length: u64,
    /// Where the part begins in the extent, in bytes.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) length: u64,
}

impl ExtentPiece {
    /// Returns the address of the first byte.
    pub(crate) fn address(&self) -> LogicalAddress {
        LogicalAddress(self.extent.0 + self.offset)
    }

    fn contains(&self, offset: u64, length: u64) -> bool {
        offset.checked_sub(self.offset).is_some_and(|inside| inside + length <= self.length)
    }
}

/// Why an extent stays where it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum StayReason {
    /// Another file or snapshot uses other parts of it.
    OtherParts,
    /// It is preallocated, at least in part.
    Preallocated,
    /// It is compressed.
    Compressed,
    /// It has no checksums, so that it may be overwritten in place.
    NoChecksums,
    /// It is referred to too often.
    ManyReferences,
    /// Quotas would count another number.
    Quotas,
    /// It would not become smaller.
    NotSmaller,
    /// A subvolume that is being deleted has it.
    Deleting,
    /// There is no contiguous space for it.
    NoSpace,
    /// It changed meanwhile.
    Changed,
    /// A tree block, an item or data that cannot be read, or that contradicts another.
    Damaged(String),
}

impl StayReason {
    /// All reasons but damage. Ioctls number them by their places.
    pub const PLAIN: [Self; 10] = [
        Self::OtherParts,
        Self::Preallocated,
        Self::Compressed,
        Self::NoChecksums,
        Self::ManyReferences,
        Self::Quotas,
        Self::NoSpace,
        Self::Changed,
        Self::NotSmaller,
        Self::Deleting,
    ];
}

impl std::fmt::Display for StayReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::OtherParts => "another file or snapshot uses other parts of it",
            Self::Preallocated => "it is preallocated",
            Self::Compressed => "it is compressed",
            Self::NoChecksums => "it has no checksums",
            Self::ManyReferences => "it is referred to too often",
            Self::Quotas => "quotas would count another number",
            Self::NotSmaller => "it would not become smaller",
            Self::Deleting => "a subvolume that is being deleted has it",
            Self::NoSpace => "there is no contiguous space",
            Self::Changed => "it changed meanwhile",
            Self::Damaged(why) => why,
        })
    }
}

/// How a piece is shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PieceSharing {
    /// Its extent can move. Two pieces of a look with the same number follow one another, at the
    /// distance that they have in the look, in every file that has one of them.
    Movable(u32),
    /// Its extent stays.
    Stays(StayReason),
}

/// A look at pieces, and the plan for moving their extents.
pub(super) struct Look<'t> {
    pub(super) plan: RelocationPlan<'t>,
    pub(super) sharing: Vec<PieceSharing>,
}

/// An inode, and the file offset at which its look at the pieces would begin.
type Seat = (u64, u64);

impl Transactions {
    /// Returns how each of the pieces is shared; `None` if they have too many tree blocks for one
    /// look. The pieces of one extent do not overlap.
    ///
    /// # Errors
    /// The extent tree cannot be read; as [`Transactions::commit`].
    pub(crate) fn sharing_of(&self, pieces: &[ExtentPiece]) -> Result<Option<Vec<PieceSharing>>> {
        self.read_still(|| Ok(self.look_at(pieces)?.map(|look| look.sharing)))
    }

    /// As [`Transactions::sharing_of`], for a caller that keeps the trees from changing.
    pub(super) fn look_at(&self, pieces: &[ExtentPiece]) -> Result<Option<Look<'_>>> {
        let mut stays = BTreeMap::new();
        let extents: BTreeSet<_> = pieces.iter().map(|piece| piece.extent).collect();
        let Some(plan) = self.plan_movable(&extents, &mut stays)? else { return Ok(None) };
        for piece in pieces {
            match plan.data.get(&piece.extent) {
                Some(extent) if extent.length == piece.extent_length && extent.is_data() => {}
                _ => drop(stays.entry(piece.extent).or_insert(StayReason::Changed)),
            }
        }
        let mut roots = RootSets::default();
        let seats = seats(&plan, pieces, &mut roots, &mut stays)?;
        let unused = pieces.iter().zip(&seats).filter(|(_, seats)| seats.is_empty());
        for (piece, _) in unused {
            stays.entry(piece.extent).or_insert(StayReason::Changed);
        }
        if self.quotas().is_counting() {
            uncounted(pieces, &seats, &mut roots, &mut stays);
        }
        let mut numbers = HashMap::new();
        let mut sharing = Vec::with_capacity(pieces.len());
        for (piece, seats) in pieces.iter().zip(seats) {
            if let Some(reason) = stays.get(&piece.extent) {
                sharing.push(PieceSharing::Stays(reason.clone()));
                continue;
            }
            let extent = &plan.data[&piece.extent];
            let charged = self.quotas().charges_extents_of(extent.header.generation);
            let seats: Vec<_> = seats.into_iter().map(|(seat, sets)| (seat, roots.union_of(&sets))).collect();
            let next = numbers.len() as u32;
            let number = *numbers.entry((seats, extent.owner, charged)).or_insert(next);
            sharing.push(PieceSharing::Movable(number));
        }
        Ok(Some(Look { plan, sharing }))
    }

    /// Plans the move of all extents that do not stay, and adds those to `stays` that cannot move.
    /// `None` if they have too many tree blocks for one look.
    ///
    /// # Errors
    /// The extent tree cannot be read.
    pub(super) fn plan_movable(
        &self,
        extents: &BTreeSet<LogicalAddress>,
        stays: &mut BTreeMap<LogicalAddress, StayReason>,
    ) -> Result<Option<RelocationPlan<'_>>> {
        loop {
            match self.plan_all(extents, stays)? {
                PlanOutcome::All(plan) => return Ok(Some(plan)),
                PlanOutcome::TooMany => return Ok(None),
                PlanOutcome::Fault => {}
            }
        }
    }

    /// Plans the move of all extents that do not stay. After damage, each extent is tried alone, so
    /// that only those stay that are concerned.
    fn plan_all(
        &self,
        extents: &BTreeSet<LogicalAddress>,
        stays: &mut BTreeMap<LogicalAddress, StayReason>,
    ) -> Result<PlanOutcome<'_>> {
        let mut plan = self.limited_plan()?;
        for &extent in extents {
            if stays.contains_key(&extent) {
                continue;
            }
            let Err(error) = plan.add_data(extent) else { continue };
            self.check_running()?;
            if !plan.is_too_large {
                stays.insert(extent, StayReason::Damaged(error.to_string()));
                for &other in extents {
                    let mut alone = self.limited_plan()?;
                    if !stays.contains_key(&other)
                        && let Err(error) = alone.add_data(other)
                        && !alone.is_too_large
                    {
                        stays.insert(other, StayReason::Damaged(error.to_string()));
                    }
                }
            } else if plan.data.is_empty() {
                stays.insert(extent, StayReason::ManyReferences);
            } else {
                return Ok(PlanOutcome::TooMany);
            }
            return Ok(PlanOutcome::Fault);
        }
        match plan.unconfirmed()? {
            Some(extent) => {
                let why = format!("extent {extent}: file extents and back references differ");
                stays.insert(extent, StayReason::Damaged(why));
                Ok(PlanOutcome::Fault)
            }
            None => Ok(PlanOutcome::All(plan)),
        }
    }

    fn limited_plan(&self) -> Result<RelocationPlan<'_>> {
        let mut plan = RelocationPlan::new(self)?;
        (plan.most_blocks, plan.most_references) = (MOST_BLOCKS, MOST_REFERENCES);
        Ok(plan)
    }
}

/// The outcome of planning.
enum PlanOutcome<'t> {
    All(RelocationPlan<'t>),
    TooMany,
    /// An extent stays that was to move; the plan is made again without it.
    Fault,
}

/// Finds the files that have each piece, each with the leaves' sets of roots. Extents that cannot
/// move are added to `stays`.
fn seats(
    plan: &RelocationPlan<'_>,
    pieces: &[ExtentPiece],
    roots: &mut RootSets,
    stays: &mut BTreeMap<LogicalAddress, StayReason>,
) -> Result<Vec<BTreeMap<Seat, BTreeSet<RootSet>>>> {
    let of_block = roots_of_blocks(plan, roots);
    let mut by_extent: HashMap<LogicalAddress, Vec<(usize, u64)>> = HashMap::new();
    let mut at = 0;
    for (index, piece) in pieces.iter().enumerate() {
        by_extent.entry(piece.extent).or_default().push((index, at));
        at += piece.length;
    }
    let mut seats = vec![BTreeMap::new(); pieces.len()];
    for planned in plan.blocks.values().filter(|planned| planned.block.level() == 0) {
        let view = planned.block.view();
        for slot in 0..view.len() {
            let key = view.key(slot);
            if key.item_type != ItemType::EXTENT_DATA {
                continue;
            }
            let fault = |reason| Error::Item { tree: planned.block.owner(), key, reason };
            let item = FileExtentItem::parse(view.item(slot)).map_err(fault)?;
            let (part, is_written) = match item.content {
                FileExtentContent::Regular(part) => (part, true),
                FileExtentContent::Prealloc(part) => (part, false),
                FileExtentContent::Inline(_) => continue,
            };
            let Some(own) = by_extent.get(&part.disk_address) else { continue };
            let piece = own.iter().find(|(index, _)| pieces[*index].contains(part.offset, part.length));
            let reason = match piece {
                _ if !is_written => StayReason::Preallocated,
                _ if item.compression != Compression::None => StayReason::Compressed,
                None => StayReason::OtherParts,
                Some(&(index, at)) => {
                    let begin = begin_of(key, part.offset - pieces[index].offset).wrapping_sub(at);
                    let leaf: &mut BTreeSet<RootSet> = seats[index].entry((key.objectid, begin)).or_default();
                    leaf.insert(of_block[&planned.block.address()]);
                    continue;
                }
            };
            stays.entry(part.disk_address).or_insert(reason);
        }
    }
    Ok(seats)
}

/// Returns the file offset at which a piece begins, or would begin, that has `inside` bytes before
/// the item's part.
fn begin_of(key: Key, inside: u64) -> u64 {
    key.offset.wrapping_sub(inside)
}

/// Keeps extents in their places that quotas would count in another way afterwards: for fewer
/// bytes, or for other subvolumes.
fn uncounted(
    pieces: &[ExtentPiece],
    seats: &[BTreeMap<Seat, BTreeSet<RootSet>>],
    roots: &mut RootSets,
    stays: &mut BTreeMap<LogicalAddress, StayReason>,
) {
    let mut counted: HashMap<LogicalAddress, (u64, BTreeSet<RootSet>)> = HashMap::new();
    for (piece, seats) in pieces.iter().zip(seats) {
        let all = seats.values().flatten().copied().collect();
        let (bytes, sets) = counted.entry(piece.extent).or_insert((piece.extent_length, BTreeSet::new()));
        *bytes = bytes.saturating_sub(piece.length);
        sets.insert(roots.union_of(&all));
    }
    for (extent, (bytes, sets)) in counted {
        if bytes > 0 || sets.len() > 1 {
            stays.entry(extent).or_insert(StayReason::Quotas);
        }
    }
}

/// Returns the trees that reach each planned block.
pub(super) fn roots_of_blocks(
    plan: &RelocationPlan<'_>,
    roots: &mut RootSets,
) -> HashMap<LogicalAddress, RootSet> {
    let mut order: Vec<_> = plan.blocks.values().collect();
    order.sort_by_key(|planned| std::cmp::Reverse(planned.block.level()));
    let mut reached: HashMap<LogicalAddress, BTreeSet<TreeId>> = HashMap::new();
    let mut found = HashMap::new();
    for planned in order {
        let block = &planned.block;
        let mut set = reached.remove(&block.address()).unwrap_or_default();
        set.extend(&planned.roots);
        let children = if block.level() > 0 { block.len() } else { 0 };
        for slot in 0..children {
            let child = block.view().child(slot).address;
            if plan.blocks.contains_key(&child) {
                reached.entry(child).or_default().extend(&set);
            }
        }
        found.insert(block.address(), roots.of(&set));
    }
    found
}
