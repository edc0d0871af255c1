//! Where the data of extents goes, and the file extents that refer to it afterwards.
//!
//! Owns [`MovedData`], the new file extents of a leaf, and the heads of the new data extents.
//!
//! **Invariants**
//! - A file extent keeps its bytes, its place in the file and the number of its transaction.
//! - The references of new extents are counted in the copies of leaves, so that both agree.
//!
//! **Locks**: none.
//!
//! Kernel counterpart: `replace_file_extents` (`fs/btrfs/relocation.c`).

use super::copied_blocks::CopiedBlocks;
use super::delayed_refs::{Head, QuotaMark, RefKind, Reference, wrong_extent};
use super::handle::DataExtent;
use super::relocation_plan::{RelocationPlan, disk_extent};
use crate::btree::TreeBlock;
use crate::errors::{Error, Result};
use papilio_format::items::file_extent::{Compression, ExtentPart, FileExtentContent, FileExtentItem};
use papilio_format::{FileOffset, InodeNumber, ItemType, Key, LogicalAddress};
use std::collections::{BTreeMap, BTreeSet};

/// The new place of a part of a data extent, inside a new extent.
#[derive(Clone, Copy, Debug)]
pub(super) struct MovedPart {
    /// Where the part begins in the old extent, in bytes.
    pub(super) offset: u64,
    /// Bytes.
    pub(super) length: u64,
    /// The new extent.
    pub(super) extent: DataExtent,
    /// Where the part begins in it, in bytes.
    pub(super) at: u64,
}

/// A new extent that holds some bytes of an old one, stored in another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MovedPiece {
    /// Where its bytes begin in the old extent, without compression.
    pub(crate) offset: u64,
    /// Bytes without compression.
    pub(crate) length: u64,
    /// How the new extent is stored.
    pub(crate) compression: Compression,
    /// The new extent.
    pub(crate) place: DataExtent,
}

/// Where the data of an extent goes.
#[derive(Clone, Debug)]
pub(super) enum MovedData {
    /// To this address; it stays an extent of its own.
    Whole(LogicalAddress),
    /// Into other extents. No reference lies outside these parts.
    Parts(Vec<MovedPart>),
    /// Into several extents, in the order of the old one's bytes. Every byte that is referred to is
    /// in one of them. A reference to bytes of several becomes several file extents.
    Pieces(Vec<MovedPiece>),
}

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

/// Returns the file extents that take the place of one, with their keys.
///
/// # Errors
/// A file extent that the pieces do not cover.
pub(super) fn piece_items(
    leaf: &TreeBlock,
    slot: usize,
    pieces: &[MovedPiece],
) -> Result<Vec<(Key, Vec<u8>)>> {
    let (key, item) = (leaf.view().key(slot), file_extent(leaf, slot)?);
    let old = match item.content {
        FileExtentContent::Regular(old) => old,
        FileExtentContent::Prealloc(old) => return Err(wrong_extent(old.disk_address, "is preallocated")),
        FileExtentContent::Inline(_) => unreachable!("it has an extent on disk"),
    };
    let end = old.offset + old.length;
    let (mut items, mut at) = (Vec::new(), old.offset);
    for piece in pieces.iter().filter(|piece| piece.offset < end && old.offset < piece.offset + piece.length)
    {
        let (from, to) = (piece.offset.max(old.offset), end.min(piece.offset + piece.length));
        if from != at {
            break;
        }
        let part = ExtentPart {
            disk_address: piece.place.address,
            disk_length: piece.place.length,
            offset: from - piece.offset,
            length: to - from,
        };
        let content = FileExtentContent::Regular(part);
        let compression = piece.compression;
        let new = FileExtentItem { ram_bytes: piece.length, compression, content, ..item };
        items.push((Key { offset: key.offset + (from - old.offset), ..key }, new.to_bytes()));
        at = to;
    }
    match at == end {
        true => Ok(items),
        false => Err(wrong_extent(old.disk_address, "is used where no piece of it moves")),
    }
}

/// Parses a file extent of a leaf.
fn file_extent(leaf: &TreeBlock, slot: usize) -> Result<FileExtentItem<'_>> {
    let (tree, key) = (leaf.owner(), leaf.view().key(slot));
    FileExtentItem::parse(leaf.view().item(slot)).map_err(|reason| Error::Item { tree, key, reason })
}

/// Returns the item that refers to a part of a new extent instead of an old one, and the address
/// of the new one.
pub(super) fn part_item(
    leaf: &TreeBlock,
    slot: usize,
    parts: &[MovedPart],
) -> Result<(Vec<u8>, LogicalAddress)> {
    let item = file_extent(leaf, slot)?;
    let old = match item.content {
        FileExtentContent::Regular(old) if item.compression == Compression::None => old,
        FileExtentContent::Regular(old) | FileExtentContent::Prealloc(old) => {
            return Err(wrong_extent(old.disk_address, "is not of the kind that can be merged"));
        }
        FileExtentContent::Inline(_) => unreachable!("it has an extent on disk"),
    };
    let inside = |part: &&MovedPart| {
        old.offset.checked_sub(part.offset).is_some_and(|from| from + old.length <= part.length)
    };
    let part = parts.iter().find(inside);
    let part = part.ok_or_else(|| wrong_extent(old.disk_address, "is used where no part of it moves"))?;
    let new = ExtentPart {
        disk_address: part.extent.address,
        disk_length: part.extent.length,
        offset: part.at + (old.offset - part.offset),
        length: old.length,
    };
    let content = FileExtentContent::Regular(new);
    let new = FileExtentItem { ram_bytes: part.extent.length, content, ..item };
    Ok((new.to_bytes(), part.extent.address))
}

/// Joins file extents that have become one part of a new extent. Those of several transactions stay
/// apart, so that comparisons of snapshots by transaction find what they found before.
pub(super) fn join_items(leaf: &mut TreeBlock, merged: &BTreeSet<LogicalAddress>) -> Result<()> {
    let mut slot = 1;
    while slot < leaf.len() {
        match joined_item(leaf, slot, merged)? {
            Some(item) => {
                leaf.replace_item(slot - 1, &item);
                leaf.remove_items(slot, 1);
            }
            None => slot += 1,
        }
    }
    Ok(())
}

/// Returns the item that stands for those in `slot` and before it; `None` if they stay two.
fn joined_item(leaf: &TreeBlock, slot: usize, merged: &BTreeSet<LogicalAddress>) -> Result<Option<Vec<u8>>> {
    let (before, key) = (leaf.view().key(slot - 1), leaf.view().key(slot));
    let both = [before, key].iter().all(|key| key.item_type == ItemType::EXTENT_DATA);
    if !both || before.objectid != key.objectid {
        return Ok(None);
    }
    let (left, right) = (file_extent(leaf, slot - 1)?, file_extent(leaf, slot)?);
    let (FileExtentContent::Regular(one), FileExtentContent::Regular(two)) = (left.content, right.content)
    else {
        return Ok(None);
    };
    let follows = one.disk_address == two.disk_address
        && one.offset.checked_add(one.length) == Some(two.offset)
        && before.offset.checked_add(one.length) == Some(key.offset);
    if !follows || left.generation != right.generation || !merged.contains(&one.disk_address) {
        return Ok(None);
    }
    let content = FileExtentContent::Regular(ExtentPart { length: one.length + two.length, ..one });
    Ok(Some(FileExtentItem { content, ..left }.to_bytes()))
}
