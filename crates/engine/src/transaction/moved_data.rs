//! Where the data of extents goes, and the file extents that refer to it afterwards.
//!
//! Owns [`MovedData`], the new file extents of a leaf, and [`Growth`], how far a move may add to
//! metadata.
//!
//! **Invariants**
//! - A file extent keeps its bytes, its place in the file and the number of its transaction.
//!
//! **Locks**: none.
//!
//! Kernel counterpart: `replace_file_extents` (`fs/btrfs/relocation.c`).

use super::delayed_refs::wrong_extent;
use super::handle::DataExtent;
use crate::btree::TreeBlock;
use crate::errors::{Error, Result};
use papilio_format::items::file_extent::{Compression, ExtentPart, FileExtentContent, FileExtentItem};
use papilio_format::{ItemType, Key, LogicalAddress};
use std::collections::BTreeSet;

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

/// How far a relocation may add tree blocks, and whether quotas count what it changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    pub(super) most_more_blocks: u64,
    /// Bytes of metadata that the commit may need for items of new extents.
    pub(super) commit_bytes: u64,
    pub(super) counts: bool,
}

impl Growth {
    /// For moves that change no owner and no number of bytes.
    pub(super) const NONE: Self = Self { most_more_blocks: 0, commit_bytes: 0, counts: false };
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
