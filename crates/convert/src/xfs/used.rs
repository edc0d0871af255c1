//! The blocks that XFS uses, those that belong to no inode, and those that files share.
//!
//! Owns [`XfsFs::used_blocks`], which reads the trees of free space and compares them with one
//! another, [`XfsFs::structure_blocks`], which reads all other trees, and [`XfsFs::read_shared`].
//!
//! **Invariant:** a block that counts as free is in no other tree, and none is in two of them.

use super::btree::TreeKind;
use super::fields::{u16_at, u32_at, u64_at};
use super::group::NO_BLOCK;
use super::reader::XfsFs;
use crate::block_set::BlockSet;
use crate::error::Result;
use crate::shared::{SharedExtents, scatter};
use std::ops::Range;

/// Inodes of a chunk.
pub(crate) const CHUNK: u32 = 64;
/// The bit of a reference count's start that says that the blocks wait for a write.
const STAGING: u32 = 1 << 31;

/// A chunk of inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// The first inode, counted in the group.
    pub(crate) first: u32,
    /// A bit for each inode that is free.
    pub(crate) free: u64,
    /// A bit for each inode that has no place.
    pub(crate) holes: u64,
    /// The counts of inodes and of free inodes, as the tree has them.
    pub(crate) count: u32,
    pub(crate) free_count: u32,
}

impl Chunk {
    /// Parses a record of a tree of inodes.
    fn parse(record: &[u8], is_sparse: bool) -> Self {
        let first = u32_at(record, 0);
        let free = u64_at(record, 8);
        if !is_sparse {
            return Self { first, free, holes: 0, count: CHUNK, free_count: u32_at(record, 4) };
        }
        // Each bit of the mask stands for four inodes.
        let mask = u16_at(record, 4);
        let holes = (0..16).filter(|bit| mask >> bit & 1 == 1).fold(0, |holes, bit| holes | 0xf << (bit * 4));
        Self { first, free, holes, count: record[6].into(), free_count: record[7].into() }
    }

    /// Whether the inode is in use.
    pub(crate) fn uses(&self, slot: u32) -> bool {
        (self.free | self.holes) >> slot & 1 == 0
    }

    /// The runs of inodes that have a place.
    pub(crate) fn runs(&self) -> Vec<Range<u32>> {
        let mut runs: Vec<Range<u32>> = Vec::new();
        for slot in (0..CHUNK).filter(|slot| self.holes >> slot & 1 == 0) {
            match runs.last_mut() {
                Some(run) if run.end == slot => run.end += 1,
                _ => runs.push(slot..slot + 1),
            }
        }
        runs
    }
}

/// A set of pairs, in 16 bytes: equal sets are equal, and others differ almost certainly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Digest {
    count: u64,
    sum: u64,
}

impl Digest {
    fn add(&mut self, first: u64, second: u64) {
        self.count += 1;
        self.sum = self.sum.wrapping_add(scatter(scatter(first).wrapping_add(second)));
    }
}

impl XfsFs {
    /// Returns the number of a group's block along the device.
    fn place_in(&self, group: u32, block: u32) -> u64 {
        u64::from(group) * u64::from(self.superblock.group_blocks) + u64::from(block)
    }

    /// Returns a range of blocks of a group, if it lies behind the headers and inside.
    fn range_in(&self, group: u32, first: u32, count: u32) -> Option<Range<u64>> {
        let end = first.checked_add(count)?;
        let inside = first >= self.superblock.header_blocks() && end <= self.superblock.blocks_of(group);
        let start = self.place_in(group, first);
        (inside && count > 0).then(|| start..start + u64::from(count))
    }

    /// Returns the blocks in use: those that are in no tree of free space.
    ///
    /// # Errors
    /// Trees that are damaged or contradict one another; the device's errors.
    pub(crate) fn used_blocks(&self) -> Result<BlockSet> {
        let mut used = BlockSet::new(self.superblock.blocks);
        used.insert(0..self.superblock.blocks);
        for (number, group) in self.groups.iter().enumerate() {
            let number = number as u32;
            let bad = |reason: String| self.damaged(format!("the free space of group {number}"), reason);
            let (mut by_place, mut by_size) = (Digest::default(), Digest::default());
            let (mut next, mut free, mut longest) = (0, 0u64, 0);
            self.walk_tree(number, TreeKind::BY_PLACE, group.by_place, &mut |_| Ok(()), &mut |record| {
                let (first, count) = (u32_at(record, 0), u32_at(record, 4));
                let Some(range) = self.range_in(number, first, count).filter(|_| first >= next) else {
                    return Err(bad(format!("{count} blocks from block {first} on lie outside, or overlap")));
                };
                next = first + count;
                free += u64::from(count);
                longest = longest.max(count);
                by_place.add(first.into(), count.into());
                used.remove(range);
                Ok(true)
            })?;
            let mut last = (0, 0);
            self.walk_tree(number, TreeKind::BY_SIZE, group.by_size, &mut |_| Ok(()), &mut |record| {
                let (first, count) = (u32_at(record, 0), u32_at(record, 4));
                if (count, first) <= last {
                    return Err(bad("the tree by size is not sorted".to_owned()));
                }
                last = (count, first);
                by_size.add(first.into(), count.into());
                Ok(true)
            })?;
            if by_place != by_size {
                return Err(bad("its two trees differ".to_owned()));
            }
            if free != u64::from(group.free_blocks) || longest != group.longest {
                return Err(bad(format!(
                    "{free} free blocks, {longest} of them together, and {} and {} by its header",
                    group.free_blocks, group.longest
                )));
            }
        }
        Ok(used)
    }

    /// Returns the blocks that belong to no inode: headers, trees, spare blocks, inodes, the log,
    /// and what waits for a write that copies.
    ///
    /// # Errors
    /// Damage; a block with two of these; the device's errors.
    pub(crate) fn structure_blocks(&self) -> Result<BlockSet> {
        let superblock = &self.superblock;
        let mut blocks = BlockSet::new(superblock.blocks);
        let claim = |blocks: &mut BlockSet, range: Range<u64>, what: &str| match blocks.insert(range.clone())
        {
            0 => Ok(()),
            _ => {
                Err(self.damaged(what, format!("block {} or one after it has another use, too", range.start)))
            }
        };
        for number in 0..superblock.groups {
            let start = self.place_in(number, 0);
            claim(&mut blocks, start..start + u64::from(superblock.header_blocks()), "the headers")?;
        }
        if let Some((start, _)) = superblock.place_of(superblock.log_start) {
            claim(&mut blocks, start..start + u64::from(superblock.log_blocks), "the log")?;
        }
        for (number, group) in self.groups.iter().enumerate() {
            let number = number as u32;
            let roots = [
                (TreeKind::BY_PLACE, Some(group.by_place)),
                (TreeKind::BY_SIZE, Some(group.by_size)),
                (TreeKind::REVERSE_MAP, group.reverse_map),
                (TreeKind::REFCOUNTS, group.refcounts),
                (TreeKind::FREE_INODES, group.free_inodes),
                (TreeKind::INODES, Some(group.inodes)),
            ];
            for (kind, root) in roots {
                let Some(root) = root else { continue };
                let what = format!("the trees of group {number}");
                let add = &mut |block| {
                    let place = self.place_in(number, block);
                    claim(&mut blocks, place..place + 1, &what)
                };
                self.walk_tree(number, kind, root, add, &mut |_| Ok(true))?;
            }
            for block in &group.spare {
                let what = format!("the list of spare blocks of group {number}");
                let range = self.range_in(number, *block, 1);
                let range =
                    range.ok_or_else(|| self.damaged(&what, format!("block {block} lies outside")))?;
                claim(&mut blocks, range, &what)?;
            }
            self.claim_inodes(number, &mut |range| {
                claim(&mut blocks, range, &format!("the inodes of group {number}"))
            })?;
            if let Some(root) = group.refcounts {
                self.walk_tree(number, TreeKind::REFCOUNTS, root, &mut |_| Ok(()), &mut |record| {
                    if u32_at(record, 0) & STAGING != 0 {
                        let range = self.refcount_range(number, record)?;
                        claim(&mut blocks, range, &format!("the reference counts of group {number}"))?;
                    }
                    Ok(true)
                })?;
            }
        }
        Ok(blocks)
    }

    /// Passes on the blocks of inodes, and checks the two trees of inodes.
    fn claim_inodes(&self, number: u32, claim: &mut dyn FnMut(Range<u64>) -> Result<()>) -> Result<()> {
        let group = &self.groups[number as usize];
        let log = self.superblock.inodes_log;
        let bad = |reason: String| self.damaged(format!("the inodes of group {number}"), reason);
        let (mut next, mut count, mut free) = (0, 0u64, 0u64);
        let (mut with_free, mut reached) = (Digest::default(), 0);
        self.for_each_chunk(number, &mut |chunk| {
            if chunk.first < next || chunk.first % CHUNK.min(1 << log) != 0 {
                return Err(bad(format!("the chunk at inode {} is out of place", chunk.first)));
            }
            next = chunk.first.saturating_add(CHUNK);
            let present = (!chunk.holes).count_ones();
            let free_here = (chunk.free & !chunk.holes).count_ones();
            if present != chunk.count || free_here != chunk.free_count || chunk.holes & !chunk.free != 0 {
                return Err(bad(format!("the counts of the chunk at inode {} are wrong", chunk.first)));
            }
            count += u64::from(present);
            free += u64::from(free_here);
            if free_here > 0 {
                with_free.add(chunk.first.into(), chunk.free);
            }
            for run in chunk.runs() {
                let first = (u64::from(chunk.first) + u64::from(run.start)) >> log;
                let last = (u64::from(chunk.first) + u64::from(run.end) - 1) >> log;
                let range = u32::try_from(last)
                    .ok()
                    .and_then(|_| self.range_in(number, first as u32, (last - first + 1) as u32));
                let Some(range) = range else {
                    return Err(bad(format!("the chunk at inode {} lies outside", chunk.first)));
                };
                // Large blocks hold several chunks.
                let start = range.start.max(reached);
                if start < range.end {
                    claim(start..range.end)?;
                }
                reached = range.end;
            }
            Ok(true)
        })?;
        if (count, free) != (group.inode_count.into(), group.free_inode_count.into()) {
            return Err(bad(format!(
                "{count} inodes and {free} of them free, and {} and {} by their header",
                group.inode_count, group.free_inode_count
            )));
        }
        let Some(root) = group.free_inodes else { return Ok(()) };
        let mut found = Digest::default();
        self.walk_tree(number, TreeKind::FREE_INODES, root, &mut |_| Ok(()), &mut |record| {
            let chunk = Chunk::parse(record, self.superblock.has_sparse_inodes());
            found.add(chunk.first.into(), chunk.free);
            Ok(true)
        })?;
        match found == with_free {
            true => Ok(()),
            false => Err(bad("the tree of free inodes differs from that of all".to_owned())),
        }
    }

    /// Calls `act` with the chunks of inodes of a group, in order, until it returns false.
    ///
    /// # Errors
    /// Damage; errors of `act`; the device's.
    pub(crate) fn for_each_chunk(
        &self,
        number: u32,
        act: &mut dyn FnMut(Chunk) -> Result<bool>,
    ) -> Result<()> {
        let root = self.groups[number as usize].inodes;
        let is_sparse = self.superblock.has_sparse_inodes();
        self.walk_tree(number, TreeKind::INODES, root, &mut |_| Ok(()), &mut |record| {
            act(Chunk::parse(record, is_sparse))
        })
    }

    /// Returns the blocks of a record of reference counts.
    fn refcount_range(&self, group: u32, record: &[u8]) -> Result<Range<u64>> {
        let (first, count) = (u32_at(record, 0) & !STAGING, u32_at(record, 4));
        self.range_in(group, first, count).ok_or_else(|| {
            let reason = format!("{count} blocks from block {first} on lie outside");
            self.damaged(format!("the reference counts of group {group}"), reason)
        })
    }

    /// Returns the blocks that files share, with their counts.
    ///
    /// # Errors
    /// Damage; the device's errors.
    pub(crate) fn read_shared(&self) -> Result<SharedExtents> {
        let mut shared = SharedExtents::default();
        for (number, group) in self.groups.iter().enumerate() {
            let number = number as u32;
            let Some(root) = group.refcounts else { continue };
            self.walk_tree(number, TreeKind::REFCOUNTS, root, &mut |_| Ok(()), &mut |record| {
                let count = u32_at(record, 8);
                if u32_at(record, 0) & STAGING != 0 {
                    return Ok(true);
                }
                let range = self.refcount_range(number, record)?;
                if count < 2 || count == NO_BLOCK || !shared.push(range.clone(), count) {
                    let reason = format!("the record at block {} overlaps, or has no count", range.start);
                    return Err(self.damaged(format!("the reference counts of group {number}"), reason));
                }
                Ok(true)
            })?;
        }
        Ok(shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_have_holes() {
        let mut record = 128u32.to_be_bytes().to_vec();
        record.extend(0xff00u16.to_be_bytes());
        record.extend([32, 3]);
        record.extend((0xffff_ffff_0000_0007u64).to_be_bytes());
        let chunk = Chunk::parse(&record, true);
        assert_eq!((chunk.count, chunk.free_count), (32, 3));
        assert_eq!(chunk.runs().iter().map(|run| (run.start, run.end)).collect::<Vec<_>>(), [(0, 32)]);
        assert!(!chunk.uses(0) && chunk.uses(3) && chunk.uses(31) && !chunk.uses(32));
        let chunk = Chunk::parse(&record, false);
        assert_eq!(chunk.count, 64);
        assert_eq!(chunk.runs().iter().map(|run| (run.start, run.end)).collect::<Vec<_>>(), [(0, 64)]);
    }

    #[test]
    fn digests_do_not_depend_on_the_order() {
        let (mut a, mut b) = (Digest::default(), Digest::default());
        a.add(1, 2);
        a.add(3, 4);
        b.add(3, 4);
        b.add(1, 2);
        assert_eq!(a, b);
        let mut c = Digest::default();
        c.add(1, 4);
        c.add(3, 2);
        assert_ne!(a, c);
    }
}
