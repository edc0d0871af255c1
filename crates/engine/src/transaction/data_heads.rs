//! The heads of data extents that take the place of others.
//!
//! Owns [`data_heads`].
//!
//! **Invariant**: the references of a new extent are counted in the copies of leaves, so that the
//! extent tree and the leaves agree.
//!
//! **Locks**: none.
//!
//! Kernel counterpart: `replace_file_extents` (`fs/btrfs/relocation.c`).

use super::copied_blocks::CopiedBlocks;
use super::delayed_refs::{Head, QuotaMark, RefKind, Reference, wrong_extent};
use super::moved_data::MovedData;
use super::relocation_plan::{RelocationPlan, disk_extent};
use crate::errors::Result;
use papilio_format::{FileOffset, InodeNumber, LogicalAddress};
use std::collections::BTreeMap;

/// Returns the heads of the new extents. Their references are counted in the copies of leaves. With
/// `counts`, quotas look at extents that are stored in another way.
///
/// # Errors
/// A new extent that nothing would refer to; an item that cannot be read.
pub(super) fn data_heads(
    plan: &RelocationPlan<'_>,
    data: &BTreeMap<LogicalAddress, MovedData>,
    copies: &CopiedBlocks,
    counts: bool,
) -> Result<BTreeMap<LogicalAddress, Head>> {
    let mut heads: BTreeMap<LogicalAddress, Head> = BTreeMap::new();
    for (from, moved) in data {
        let Some(old) = plan.data.get(from) else { continue };
        let mut add = |address: LogicalAddress, length: u64, touch: Option<QuotaMark>| {
            let head = heads.entry(address).or_insert_with(|| {
                let mut head = Head::new(length, RefKind::Data);
                // Snapshots are compared with the generation to find out what they share.
                (head.new, head.generation, head.owner) = (true, old.header.generation, old.owner);
                head.touch = touch;
                head
            });
            // The least: then nothing that snapshots share seems to be newer than they are.
            head.generation = head.generation.min(old.header.generation);
        };
        match moved {
            MovedData::Whole(to) => add(*to, old.length, None),
            MovedData::Parts(parts) => {
                parts.iter().for_each(|part| add(part.extent.address, part.extent.length, None));
            }
            MovedData::Pieces(pieces) => {
                let touch = counts.then_some(QuotaMark { only: None, key: None, shared: true });
                pieces.iter().for_each(|piece| add(piece.place.address, piece.place.length, touch));
            }
        }
    }
    if heads.is_empty() {
        return Ok(heads);
    }
    for planned in plan.blocks.values().filter(|planned| planned.block.level() == 0) {
        for copy in copies.of(planned.extent.address) {
            for slot in 0..copy.len() {
                let Some(part) = disk_extent(copy, slot)? else { continue };
                let Some(head) = heads.get_mut(&part.disk_address) else { continue };
                let key = copy.view().key(slot);
                let reference = if planned.extent.is_full() {
                    Reference::SharedData(copy.address())
                } else {
                    let offset = FileOffset(key.offset.wrapping_sub(part.offset));
                    Reference::Data { root: copy.owner(), inode: InodeNumber(key.objectid), offset }
                };
                head.changes.add(reference, 1);
            }
        }
    }
    match heads.iter().find(|(_, head)| head.changes.is_empty()) {
        Some((address, _)) => Err(wrong_extent(*address, "would have no reference")),
        None => Ok(heads),
    }
}
