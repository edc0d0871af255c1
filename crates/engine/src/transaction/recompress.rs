//! Storing data extents in another way, for everything that refers to them.
//!
//! Owns [`ExtentUse`], the look at how an extent is used, and [`Transactions::recompress`]. An
//! extent becomes one or several *pieces*, each compressed or not. One transaction of its own lets
//! every file extent of every tree refer to the pieces. A file extent that has bytes of several
//! pieces becomes several, so that leaves grow; [`super::copied_blocks`] splits them.
//!
//! **Invariants**
//! - As in [`super::relocate`], trees share the copies of their blocks as they shared the blocks.
//! - The pieces have all bytes that anybody uses. Every file keeps each of its bytes.
//! - Nothing changes if an extent is not used as the caller found it, or if there would be too many
//!   new tree blocks.
//! - Trees that are being deleted do not change: a deletion goes on by keys, and would leave out
//!   blocks that were split behind it.
//!
//! **Locks**: those of [`Transactions::relocate`].
//!
//! Kernel counterpart: none.

use super::chunks::copies_of;
use super::extent_sharing::{StayReason, roots_of_blocks};
use super::moved_data::{Growth, MovedData, MovedPiece};
use super::relocation_plan::RelocationPlan;
use super::root_sets::RootSets;
use super::transaction::Transactions;
use crate::errors::{Error, Result};
use crate::space::SpaceKind;
use papilio_format::features::IncompatFeatures;
use papilio_format::items::file_extent::{Compression, FileExtentContent, FileExtentItem};
use papilio_format::{ItemType, LogicalAddress};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Bytes of the items of a new extent in the extent and checksum trees, in leaves that are half
/// empty.
const ITEM_BYTES: u64 = 512;
/// Tree blocks that a commit copies in any case.
const SPARE_BLOCKS: u64 = 16;

/// How everything that refers to an extent uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExtentUse {
    /// Bytes on disk.
    pub(crate) length: u64,
    /// Bytes without compression.
    pub(crate) plain_length: u64,
    /// How it is stored.
    pub(crate) compression: Compression,
    /// The bytes that are used, in ranges that neither overlap nor touch, ascending.
    pub(crate) ranges: Vec<Range<u64>>,
    /// The range of each file extent. Leaves that trees share count once.
    pub(crate) parts: Vec<Range<u64>>,
    /// The number of back references.
    pub(crate) references: usize,
}

/// The result of a look at an extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExtentUsed {
    /// It can be stored in another way.
    By(ExtentUse),
    /// It stays.
    Stays(StayReason),
}

/// An extent whose bytes are stored in another way by now.
#[derive(Clone, Debug)]
pub(crate) struct RecompressedExtent {
    /// Its address.
    pub(crate) from: LogicalAddress,
    /// Its use when it was read.
    pub(crate) used: ExtentUse,
    /// The new extents, in order.
    pub(crate) pieces: Vec<MovedPiece>,
    /// Runs of checksums of the new extents, by the address of their first sector.
    pub(crate) checksums: Vec<(LogicalAddress, Vec<u8>)>,
}

/// The result of a change to other extents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Recompressed {
    /// Everything refers to the new extents.
    Done,
    /// Nothing has changed: these extents, by their place in the list, are not used as before.
    Changed(BTreeSet<usize>),
    /// Nothing has changed: there would be too many new tree blocks.
    Grows,
}

struct UseLook<'t> {
    plan: RelocationPlan<'t>,
    uses: Vec<ExtentUsed>,
}

impl Transactions {
    /// Returns how each of the extents is used; `None` if they have too many tree blocks for one
    /// look.
    ///
    /// # Errors
    /// The extent tree cannot be read; as [`Transactions::commit`].
    pub(crate) fn uses_of(&self, extents: &[LogicalAddress]) -> Result<Option<Vec<ExtentUsed>>> {
        self.read_still(|| Ok(self.look_at_uses(extents)?.map(|look| look.uses)))
    }

    /// Lets everything that refers to extents refer to their new pieces, in a transaction of its
    /// own, which is durable on return. Calls `moved` after the trees lead to the new places, and
    /// before the old ones may be freed. Makes at most `most_more_blocks` tree blocks more than
    /// there were.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; a block or an item that cannot be read, or that contradicts another.
    /// Nothing has changed then, and the caller releases the new space. An error later makes the
    /// file system read-only.
    pub(crate) fn recompress(
        &self,
        extents: &[RecompressedExtent],
        most_more_blocks: u64,
        moved: &mut dyn FnMut(),
    ) -> Result<Recompressed> {
        self.might_change();
        let addresses: Vec<_> = extents.iter().map(|extent| extent.from).collect();
        let pieces = extents.iter().flat_map(|extent| &extent.pieces);
        let features = pieces.map(|piece| piece.compression.feature());
        self.require_features(features.fold(IncompatFeatures::empty(), |all, one| all | one));
        let counts = self.quotas().is_counting();
        let mut refused = None;
        let result = self.commit_alone_counted(counts, |buffer| {
            // Ends the transaction; the caller never sees it.
            let nothing = || Error::Invalid("nothing is stored in another way".to_owned());
            let all = || Recompressed::Changed((0..extents.len()).collect());
            let Some(look) = self.look_at_uses(&addresses)? else {
                refused = Some(all());
                return Err(nothing());
            };
            let changed = changed(extents, &look.uses);
            if !changed.is_empty() {
                refused = Some(Recompressed::Changed(changed));
                return Err(nothing());
            }
            let pieces =
                |extent: &RecompressedExtent| (extent.from, MovedData::Pieces(extent.pieces.clone()));
            let data: BTreeMap<_, _> = extents.iter().map(pieces).collect();
            let sums = extents.iter().flat_map(|extent| extent.checksums.iter().cloned()).collect();
            let made: u64 = extents.iter().map(|extent| extent.pieces.len() as u64).sum();
            let commit_bytes = made * ITEM_BYTES + self.node_size() * SPARE_BLOCKS;
            let growth = Growth { most_more_blocks, commit_bytes, counts };
            if !self.carry_out(&look.plan, &data, sums, &growth, buffer)? {
                refused = Some(Recompressed::Grows);
                return Err(nothing());
            }
            moved();
            Ok(())
        });
        match (result, refused) {
            (Ok(()), _) => Ok(Recompressed::Done),
            (Err(_), Some(refused)) => Ok(refused),
            (Err(error), None) => Err(error),
        }
    }

    /// Returns in how many copies new metadata and new data is stored.
    pub(crate) fn copies(&self) -> (u64, u64) {
        let of = |kind| copies_of(self.space.chunk_flags(kind));
        (of(SpaceKind::Metadata), of(SpaceKind::Data))
    }

    fn look_at_uses(&self, extents: &[LogicalAddress]) -> Result<Option<UseLook<'_>>> {
        let mut stays = BTreeMap::new();
        let set: BTreeSet<_> = extents.iter().copied().collect();
        let Some(plan) = self.plan_movable(&set, &mut stays)? else { return Ok(None) };
        let mut uses: BTreeMap<LogicalAddress, ExtentUse> = BTreeMap::new();
        let mut sets = RootSets::default();
        let reached = roots_of_blocks(&plan, &mut sets);
        for planned in plan.blocks.values().filter(|planned| planned.block.level() == 0) {
            let roots = sets.members(reached[&planned.block.address()]);
            let mut deleting = false;
            for &root in roots {
                deleting |= !self.live.get(root)?.is_referenced();
            }
            let view = planned.block.view();
            for slot in 0..view.len() {
                let key = view.key(slot);
                if key.item_type != ItemType::EXTENT_DATA {
                    continue;
                }
                let fault = |reason| Error::Item { tree: planned.block.owner(), key, reason };
                let item = FileExtentItem::parse(view.item(slot)).map_err(fault)?;
                let (FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part)) = item.content
                else {
                    continue;
                };
                let Some(extent) = plan.data.get(&part.disk_address) else { continue };
                let reason = match item.content {
                    FileExtentContent::Prealloc(_) => Some(StayReason::Preallocated),
                    _ if deleting => Some(StayReason::Deleting),
                    _ => None,
                };
                if let Some(reason) = reason {
                    stays.entry(part.disk_address).or_insert(reason);
                    continue;
                }
                let plain_length = match item.compression {
                    Compression::None => extent.length,
                    _ => item.ram_bytes.next_multiple_of(u64::from(self.volume.geometry().sector_size)),
                };
                let used = uses.entry(part.disk_address).or_insert_with(|| ExtentUse {
                    length: extent.length,
                    plain_length,
                    compression: item.compression,
                    ranges: Vec::new(),
                    parts: Vec::new(),
                    references: extent.refs.len(),
                });
                let end = part.offset.saturating_add(part.length);
                let alike = used.compression == item.compression && used.plain_length == plain_length;
                if !alike || end > plain_length || part.disk_length != extent.length || part.length == 0 {
                    let why = format!("extent {}: file extents contradict one another", extent.address);
                    stays.entry(part.disk_address).or_insert(StayReason::Damaged(why));
                    continue;
                }
                used.parts.push(part.offset..end);
            }
        }
        let used = |extent: &LogicalAddress| match (stays.get(extent), uses.get(extent)) {
            (Some(reason), _) => ExtentUsed::Stays(reason.clone()),
            (None, Some(found)) => ExtentUsed::By(joined(found.clone())),
            (None, None) => ExtentUsed::Stays(StayReason::Changed),
        };
        let uses = extents.iter().map(used).collect();
        Ok(Some(UseLook { plan, uses }))
    }
}

/// Finds the ranges that the parts cover.
fn joined(mut used: ExtentUse) -> ExtentUse {
    used.parts.sort_unstable_by_key(|part| (part.start, part.end));
    for part in &used.parts {
        match used.ranges.last_mut() {
            Some(last) if part.start <= last.end => last.end = last.end.max(part.end),
            _ => used.ranges.push(part.clone()),
        }
    }
    used
}

/// Returns the extents that are not used as they were when they were read.
fn changed(extents: &[RecompressedExtent], uses: &[ExtentUsed]) -> BTreeSet<usize> {
    let same = |extent: &RecompressedExtent, used: &ExtentUsed| match used {
        ExtentUsed::Stays(_) => false,
        ExtentUsed::By(now) => {
            let facts = |used: &ExtentUse| (used.length, used.plain_length, used.compression);
            facts(now) == facts(&extent.used) && now.ranges == extent.used.ranges
        }
    };
    let both = extents.iter().zip(uses).enumerate();
    both.filter(|(_, (extent, used))| !same(extent, used)).map(|(index, _)| index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_touch_are_one_range() {
        let used = ExtentUse {
            length: 64,
            plain_length: 64,
            compression: Compression::None,
            ranges: Vec::new(),
            parts: vec![40..48, 0..8, 4..12, 12..16, 40..44],
            references: 1,
        };
        assert_eq!(joined(used).ranges, [0..16, 40..48]);
    }
}
