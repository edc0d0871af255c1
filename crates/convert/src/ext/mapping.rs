//! Where the blocks of an inode lie: extent trees, and the block maps of ext2 and ext3.
//!
//! Owns [`ExtFs::for_each_extent`]. It reads one path of a tree at a time, so that memory does not
//! grow with the file.
//!
//! **Invariants** of the extents that it passes on
//! - They ascend and do not overlap, and are as long as they can be.
//! - All of their blocks are inside the file system and behind its first.
//!
//! Sources: `Documentation/filesystems/ext4/ifork.rst` and `blockmap.rst`.

use super::checksum::{Seed, crc};
use super::fields::{u16_at, u32_at};
use super::inode::{ExtInode, flag};
use super::reader::ExtFs;
use crate::error::{ConvertError, Result};

/// The magic number of a node of an extent tree.
const EXTENT_MAGIC: u16 = 0xf30a;
/// The most levels of an extent tree below its root.
const DEPTH_MAX: u16 = 5;
const ENTRY: usize = 12;
/// Blocks that no file exceeds.
const BLOCKS_MAX: u64 = 1 << 32;

/// A run of blocks of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExtExtent {
    /// The first block in the file.
    pub(crate) logical: u64,
    /// The first block on the device.
    pub(crate) physical: u64,
    /// Blocks.
    pub(crate) length: u64,
    /// Whether the blocks are written; others read as zeros.
    pub(crate) written: bool,
}

/// Joins runs that continue one another, and checks their order.
struct Joiner<'a> {
    fs: &'a ExtFs,
    number: u32,
    /// Blocks of content and of the map that may still come: no file has more than the device.
    content_left: u64,
    map_left: u64,
    held: Option<ExtExtent>,
    act: &'a mut dyn FnMut(ExtExtent) -> Result<()>,
}

impl Joiner<'_> {
    fn bad(&self, reason: String) -> ConvertError {
        self.fs.damaged(format!("inode {}", self.number), reason)
    }

    /// Counts a block of the map itself.
    fn enter(&mut self) -> Result<()> {
        match self.map_left.checked_sub(1) {
            Some(left) => self.map_left = left,
            None => return Err(self.bad("its map repeats itself".to_owned())),
        }
        Ok(())
    }

    fn add(&mut self, extent: ExtExtent) -> Result<()> {
        match self.content_left.checked_sub(extent.length) {
            Some(left) => self.content_left = left,
            None => return Err(self.bad("its map repeats itself".to_owned())),
        }
        let superblock = &self.fs.superblock;
        let end = extent.physical.checked_add(extent.length);
        if extent.physical <= superblock.first_data_block || end.is_none_or(|end| end > superblock.blocks) {
            return Err(self.bad(format!("an extent lies in block {}, outside", extent.physical)));
        }
        if extent.logical + extent.length > BLOCKS_MAX {
            return Err(self.bad(format!("an extent ends behind block {BLOCKS_MAX}")));
        }
        if let Some(held) = &mut self.held {
            if extent.logical < held.logical + held.length {
                let at = extent.logical;
                return Err(self.bad(format!("extents overlap or are not sorted at block {at}")));
            }
            if held.written == extent.written
                && held.logical + held.length == extent.logical
                && held.physical + held.length == extent.physical
            {
                held.length += extent.length;
                return Ok(());
            }
        }
        match self.held.replace(extent) {
            Some(before) => (self.act)(before),
            None => Ok(()),
        }
    }

    fn finish(mut self) -> Result<()> {
        match self.held.take() {
            Some(last) => (self.act)(last),
            None => Ok(()),
        }
    }
}

impl ExtFs {
    /// Calls `act` with the extents of an inode, in order, and `inner` with each block that holds a
    /// part of the map itself.
    ///
    /// # Errors
    /// Damage; errors of `act` and `inner`; the device's.
    pub(crate) fn for_each_extent(
        &self,
        inode: &ExtInode,
        act: &mut dyn FnMut(ExtExtent) -> Result<()>,
        inner: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let blocks = self.superblock.blocks;
        let (content_left, map_left) = (blocks, blocks);
        let mut joiner = Joiner { fs: self, number: inode.number, content_left, map_left, held: None, act };
        if inode.has(flag::EXTENTS) {
            let seed = self.inode_seed(inode.number, inode.generation);
            let depth = u16_at(&inode.root, 6);
            if depth > DEPTH_MAX {
                return Err(joiner.bad(format!("its extent tree has {depth} levels")));
            }
            self.extent_node(&inode.root, depth, seed, &mut joiner, inner)?;
        } else {
            self.block_map(inode, &mut joiner, inner)?;
        }
        joiner.finish()
    }

    fn extent_node(
        &self,
        node: &[u8],
        depth: u16,
        seed: Seed,
        joiner: &mut Joiner<'_>,
        inner: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let [magic, entries, most, found] = [0, 2, 4, 6].map(|at| u16_at(node, at));
        let capacity = node.len() / ENTRY - 1;
        if magic != EXTENT_MAGIC || found != depth || entries > most || usize::from(most) > capacity {
            return Err(joiner.bad("a node of its extent tree is damaged".to_owned()));
        }
        for entry in node[ENTRY..].chunks_exact(ENTRY).take(entries.into()) {
            if depth > 0 {
                let place = u64::from(u32_at(entry, 4)) | u64::from(u16_at(entry, 8)) << 32;
                let block = self.block(place, &format!("the extent tree of inode {}", joiner.number))?;
                joiner.enter()?;
                inner(place)?;
                self.check_extent_block(&block, seed, joiner)?;
                self.extent_node(&block, depth - 1, seed, joiner, inner)?;
                continue;
            }
            let stored = u16_at(entry, 4);
            // Lengths above 32,768 say that the blocks are not written.
            let (length, written) = if stored > 32768 { (stored - 32768, false) } else { (stored, true) };
            if length == 0 {
                return Err(joiner.bad("an extent of no blocks".to_owned()));
            }
            joiner.add(ExtExtent {
                logical: u32_at(entry, 0).into(),
                physical: u64::from(u32_at(entry, 8)) | u64::from(u16_at(entry, 6)) << 32,
                length: length.into(),
                written,
            })?;
        }
        Ok(())
    }

    fn check_extent_block(&self, block: &[u8], seed: Seed, joiner: &Joiner<'_>) -> Result<()> {
        let Some(seed) = seed else { return Ok(()) };
        let end = ENTRY * (usize::from(u16_at(block, 4)) + 1);
        if end + 4 > block.len() || crc(seed, &block[..end]) != u32_at(block, end) {
            return Err(joiner.bad("the checksum of a node of its extent tree does not match".to_owned()));
        }
        Ok(())
    }

    fn block_map(
        &self,
        inode: &ExtInode,
        joiner: &mut Joiner<'_>,
        inner: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let per_block = self.superblock.block_size / 4;
        let mut at = 0;
        for slot in 0..15 {
            let level = if slot < 12 { 0 } else { slot as u32 - 11 };
            self.map_entry(u32_at(&inode.root, slot * 4).into(), level, &mut at, per_block, joiner, inner)?;
        }
        Ok(())
    }

    /// Passes on the blocks below one entry of a block map. `at` is the number of its first block
    /// in the file, and then the number behind its last.
    fn map_entry(
        &self,
        place: u64,
        level: u32,
        at: &mut u64,
        per_block: u64,
        joiner: &mut Joiner<'_>,
        inner: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let covered = per_block.pow(level);
        if place == 0 {
            *at += covered;
            return Ok(());
        }
        if level == 0 {
            joiner.add(ExtExtent { logical: *at, physical: place, length: 1, written: true })?;
            *at += 1;
            return Ok(());
        }
        let block = self.block(place, &format!("the block map of inode {}", joiner.number))?;
        joiner.enter()?;
        inner(place)?;
        for entry in block.chunks_exact(4) {
            self.map_entry(u32_at(entry, 0).into(), level - 1, at, per_block, joiner, inner)?;
        }
        Ok(())
    }

    /// Reads written bytes of an inode from its start, at most `limit`. Holes read as zeros.
    ///
    /// # Errors
    /// As [`ExtFs::for_each_extent`].
    pub(crate) fn read_start(&self, inode: &ExtInode, limit: u64) -> Result<Vec<u8>> {
        let length = inode.size.min(limit);
        let mut bytes = vec![0; length as usize];
        let size = self.superblock.block_size;
        let mut fill = |extent: ExtExtent| {
            let start = extent.logical.saturating_mul(size);
            if extent.written && start < length {
                let end = (start + extent.length * size).min(length);
                self.read(&mut bytes[start as usize..end as usize], extent.physical * size)?;
            }
            Ok(())
        };
        self.for_each_extent(inode, &mut fill, &mut |_| Ok(()))?;
        Ok(bytes)
    }
}
