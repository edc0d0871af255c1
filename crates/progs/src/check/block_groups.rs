//! Compares block groups with their chunks and with their extents.
//!
//! Owns [`BlockGroups`].
//!
//! **Rules**
//! - A chunk and its block group have the same start, length and flags.
//! - The used bytes of a block group are the sum of its extents, those of the superblock the sum of
//!   all block groups.
//!
//! Kernel counterparts: `read_one_block_group`, `check_chunk_block_group_mappings`
//! (`fs/btrfs/block-group.c`).

use super::references::Extent;
use super::remedy::{Remedy, SuperblockField};
use super::report::{FindingKind, Findings, Place};
use super::walker::Visit;
use papilio_format::items::block_group::{BlockGroupFlags, BlockGroupItem};
use papilio_format::items::chunk::ChunkItem;
use papilio_format::{ItemType, Key, LogicalAddress, TreeId, objectid};

/// One block group.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockGroup {
    pub(super) start: u64,
    pub(super) length: u64,
    used: u64,
    flags: BlockGroupFlags,
    /// Bytes of its extents.
    counted: u64,
    /// Whether a chunk starts where it does.
    pub(super) has_chunk: bool,
}

impl BlockGroup {
    pub(super) fn end(&self) -> u64 {
        // Cannot overflow: the tree checker refuses such an item.
        self.start.saturating_add(self.length)
    }

    /// Whether anything is in it, by its item or by its extents.
    pub(super) fn has_extents(&self) -> bool {
        self.used > 0 || self.counted > 0
    }
}

/// Returns the keys of all block group items that start at an address.
fn item_range(start: u64) -> (Key, Key) {
    let key = |length| Key::new(start, ItemType::BLOCK_GROUP_ITEM, length);
    (key(0), key(u64::MAX))
}

pub(crate) fn group_item(start: u64, length: u64, used: u64, flags: BlockGroupFlags) -> (Key, Vec<u8>) {
    let item = BlockGroupItem { used, chunk_objectid: objectid::FIRST_CHUNK_TREE, flags };
    (Key::new(start, ItemType::BLOCK_GROUP_ITEM, length), item.to_bytes().to_vec())
}

/// All block groups.
#[derive(Debug, Default)]
pub(super) struct BlockGroups {
    pub(super) groups: Vec<BlockGroup>,
}

impl BlockGroups {
    /// Reads the block groups of a leaf.
    pub(super) fn read_leaf(&mut self, visit: &Visit<'_>) {
        let view = visit.block.view();
        for slot in 0..view.len() {
            let key = view.key(slot);
            if key.item_type != ItemType::BLOCK_GROUP_ITEM {
                continue;
            }
            if let Ok(item) = BlockGroupItem::parse(view.item(slot)) {
                let (start, length) = (key.objectid, key.offset);
                let BlockGroupItem { used, flags, .. } = item;
                self.groups.push(BlockGroup { start, length, used, flags, counted: 0, has_chunk: true });
            }
        }
    }

    /// Returns the block group that contains an address.
    pub(super) fn find(&mut self, address: u64) -> Option<&mut BlockGroup> {
        let after = self.groups.partition_point(|group| group.start <= address);
        let group = self.groups.get_mut(after.checked_sub(1)?)?;
        (address < group.end()).then_some(group)
    }

    /// Sorts the block groups after all were read.
    pub(super) fn sort(&mut self) {
        self.groups.sort_by_key(|group| group.start);
    }

    /// Compares with the chunks, which are sorted. `holder` is the tree that has the block groups;
    /// `complete` is whether it was read completely.
    pub(super) fn compare_chunks(
        &self,
        holder: TreeId,
        chunks: &[(LogicalAddress, ChunkItem)],
        complete: bool,
        findings: &mut Findings,
    ) {
        for (start, chunk) in chunks {
            self.mend_group(holder, *start, chunk, complete, findings);
            let found = self.groups.binary_search_by_key(&start.0, |group| group.start);
            let place = Place { address: Some(*start), ..Place::tree(holder) };
            match found.ok().map(|index| &self.groups[index]) {
                None if complete => findings.add(
                    FindingKind::BlockGroupMissing,
                    place,
                    format_args!("the chunk of {} bytes has no block group", chunk.length),
                ),
                Some(group) if group.length != chunk.length || group.flags != chunk.flags => findings.add(
                    FindingKind::BlockGroupDiffers,
                    place,
                    format_args!(
                        "block group of {} bytes, flags {:#x}; its chunk has {} bytes, flags {:#x}",
                        group.length,
                        group.flags.bits(),
                        chunk.length,
                        chunk.flags.bits()
                    ),
                ),
                _ => {}
            }
        }
    }

    /// Proposes the item of a chunk whose block group is missing or differs. The used bytes of a
    /// missing one are unknown yet: the next check finds them.
    fn mend_group(
        &self,
        holder: TreeId,
        start: LogicalAddress,
        chunk: &ChunkItem,
        complete: bool,
        findings: &mut Findings,
    ) {
        let found = self.groups.binary_search_by_key(&start.0, |group| group.start);
        let used = match found.ok().map(|index| &self.groups[index]) {
            Some(group) if group.length == chunk.length && group.flags == chunk.flags => return,
            Some(group) => group.used,
            None => 0,
        };
        if complete {
            let (first, last) = item_range(start.0);
            let items = vec![group_item(start.0, chunk.length, used, chunk.flags)];
            findings.mend(Remedy::Replace { tree: holder, first, last, items });
        }
    }

    /// Reports block groups without a chunk.
    pub(super) fn find_chunkless(
        &mut self,
        holder: TreeId,
        chunks: &[(LogicalAddress, ChunkItem)],
        findings: &mut Findings,
    ) {
        for group in &mut self.groups {
            if chunks.binary_search_by_key(&group.start, |(start, _)| start.0).is_err() {
                group.has_chunk = false;
                let place = Place { address: Some(LogicalAddress(group.start)), ..Place::tree(holder) };
                let message = format_args!("the block group of {} bytes has no chunk", group.length);
                findings.add(FindingKind::ChunkMissing, place, message);
                let (first, last) = item_range(group.start);
                findings.mend(Remedy::Replace { tree: holder, first, last, items: Vec::new() });
            }
        }
    }

    /// Adds up the extents of each block group, and checks that each extent is in a block group of
    /// its type.
    pub(super) fn count_extents(&mut self, extents: &[Extent], complete: bool, findings: &mut Findings) {
        for extent in extents {
            let place = || Place::extent(extent.start);
            let Some(group) = self.find(extent.start).filter(|group| extent.end() <= group.end()) else {
                if complete {
                    let length = extent.length;
                    let message = format_args!("{length} bytes outside any block group");
                    findings.add(FindingKind::ExtentOutside, place(), message);
                }
                continue;
            };
            group.counted = group.counted.saturating_add(extent.length);
            let allowed = if extent.is_data() {
                BlockGroupFlags::DATA
            } else {
                BlockGroupFlags::METADATA.union(BlockGroupFlags::SYSTEM)
            };
            if !group.flags.intersects(allowed) {
                let (what, start) = (if extent.is_data() { "data" } else { "a tree block" }, group.start);
                let message = format_args!("{what} in the block group at {start}, which has another type");
                findings.add(FindingKind::ExtentGroup, place(), message);
            }
        }
    }

    /// Compares the used bytes of each block group and of the superblock with the extents.
    pub(super) fn compare_used(&self, holder: TreeId, superblock: u64, findings: &mut Findings) {
        for group in self.groups.iter().filter(|group| group.used != group.counted) {
            let (used, counted) = (group.used, group.counted);
            let place = Place { address: Some(LogicalAddress(group.start)), ..Place::tree(holder) };
            let message =
                format_args!("the block group says {used} bytes are used, its extents have {counted}");
            findings.add(FindingKind::BlockGroupUsed, place, message);
            let (key, data) = group_item(group.start, group.length, counted, group.flags);
            findings.mend(Remedy::put(holder, key, data));
        }
        let total = self.groups.iter().fold(0u64, |sum, group| sum.saturating_add(group.counted));
        if total != superblock {
            let message =
                format_args!("the superblock says {superblock} bytes are used, all extents have {total}");
            findings.add(FindingKind::SuperblockBytesUsed, Place::default(), message);
            findings.mend(Remedy::Superblock(SuperblockField::BytesUsed(total)));
        }
    }
}
