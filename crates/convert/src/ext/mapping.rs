//! Where the blocks of an inode lie: extent trees, and the block maps of ext2 and ext3.
//!
//! Owns [`ExtFs::for_each_ext_extent`]. It reads one path of a tree at a time, so that memory does
//! not grow with the file.
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
use crate::source::Extent;

/// The magic number of a node of an extent tree.
const EXTENT_MAGIC: u16 = 0xf30a;
/// The most levels of an extent tree below its root.
const DEPTH_MAX: u16 = 5;
const ENTRY: usize = 12;
/// Blocks that no file exceeds.
const BLOCKS_MAX: u64 = 1 << 32;

/// Joins runs that continue one another, and checks their order.
struct Joiner<'a> {
    fs: &'a ExtFs,
    number: u32,
    /// Blocks of content and of the map that may still come: no file has more than the device.
    content_left: u64,
    map_left: u64,
    held: Option<Extent>,
    act: &'a mut dyn FnMut(Extent) -> Result<()>,
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

    fn add(&mut self, extent: Extent) -> Result<()> {
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
    pub(crate) fn for_each_ext_extent(
        &self,
        inode: &ExtInode,
        act: &mut dyn FnMut(Extent) -> Result<()>,
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
            joiner.add(Extent {
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
            joiner.add(Extent { logical: *at, physical: place, length: 1, written: true })?;
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
}

#[cfg(test)]
mod tests {
    use super::super::inode::tests::bare;
    use super::super::inode::{ExtInode, flag};
    use super::*;
    use papilio_device::Device;
    use papilio_format::PhysicalAddress;
    use papilio_format::items::inode::{FileKind, Timespec};

    fn inode(flags: u32, root: [u8; 60]) -> ExtInode {
        let time = Timespec::default();
        ExtInode {
            number: 12,
            mode: 0o100_644,
            kind: FileKind::Regular,
            uid: 0,
            gid: 0,
            size: 1 << 20,
            links: 1,
            flags,
            generation: 0,
            project: 0,
            atime: time,
            ctime: time,
            mtime: time,
            otime: None,
            root,
            xattr_block: 0,
            xattr_bytes: Vec::new(),
        }
    }

    /// A node of an extent tree: entries of logical block, length and physical block.
    fn node(depth: u16, entries: &[(u32, u16, u32)], size: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for field in [EXTENT_MAGIC, entries.len() as u16, (size / ENTRY - 1) as u16, depth, 0, 0] {
            bytes.extend(field.to_le_bytes());
        }
        for (logical, length, physical) in entries {
            bytes.extend(logical.to_le_bytes());
            match depth {
                0 => {
                    bytes.extend(length.to_le_bytes());
                    bytes.extend(0u16.to_le_bytes());
                    bytes.extend(physical.to_le_bytes());
                }
                _ => {
                    bytes.extend(physical.to_le_bytes());
                    bytes.extend([0; 4]);
                }
            }
        }
        bytes.resize(size, 0);
        bytes
    }

    fn extents(fs: &ExtFs, inode: &ExtInode) -> Result<Vec<(u64, u64, u64, bool)>> {
        let mut found = Vec::new();
        let mut add = |extent: Extent| {
            found.push((extent.logical, extent.physical, extent.length, extent.written));
            Ok(())
        };
        fs.for_each_ext_extent(inode, &mut add, &mut |_| Ok(()))?;
        Ok(found)
    }

    #[test]
    fn runs_that_continue_one_another_are_joined() {
        let (fs, device) = bare();
        let leaf = node(0, &[(0, 4, 100), (4, 4, 104), (8, 2 + 32768, 108), (20, 1, 50)], 4096);
        device.write_at(&leaf, PhysicalAddress(9 * 4096)).unwrap();
        let root = node(1, &[(0, 0, 9)], 60).try_into().unwrap();
        let found = extents(&fs, &inode(flag::EXTENTS, root)).unwrap();
        assert_eq!(found, [(0, 100, 8, true), (8, 108, 2, false), (20, 50, 1, true)]);
    }

    #[test]
    fn block_maps_have_up_to_three_levels() {
        let (fs, device) = bare();
        let put = |block: u64, entries: &[(usize, u32)]| {
            let mut bytes = vec![0; 4096];
            entries
                .iter()
                .for_each(|(at, value)| bytes[at * 4..at * 4 + 4].copy_from_slice(&value.to_le_bytes()));
            device.write_at(&bytes, PhysicalAddress(block * 4096)).unwrap();
        };
        put(20, &[(0, 112), (1, 113), (1023, 7)]);
        put(21, &[(2, 22)]);
        put(22, &[(5, 300)]);
        let mut root = [0; 60];
        for (slot, block) in (0..12).map(|slot| (slot, 100 + slot as u32)).chain([(12, 20), (13, 21)]) {
            root[slot * 4..slot * 4 + 4].copy_from_slice(&block.to_le_bytes());
        }
        let found = extents(&fs, &inode(0, root)).unwrap();
        let second = 12 + 1024 + 2 * 1024 + 5;
        assert_eq!(found, [(0, 100, 14, true), (12 + 1023, 7, 1, true), (second, 300, 1, true)]);
    }

    #[test]
    fn maps_that_lead_to_themselves_end() {
        let (fs, device) = bare();
        // Every entry of the block names the block itself.
        let block: Vec<u8> = (0..1024).flat_map(|_| 9u32.to_le_bytes()).collect();
        device.write_at(&block, PhysicalAddress(9 * 4096)).unwrap();
        let mut root = [0; 60];
        root[14 * 4] = 9;
        let error = extents(&fs, &inode(0, root)).unwrap_err().to_string();
        assert!(error.contains("its map repeats itself"), "{error}");
    }

    #[test]
    fn any_byte_of_a_node_may_be_damaged() {
        let (fs, device) = bare();
        for at in 0..80 {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut leaf = node(0, &[(0, 4, 100), (4, 4, 200), (9, 2, 300)], 4096);
                leaf[at] = value;
                device.write_at(&leaf, PhysicalAddress(9 * 4096)).unwrap();
                let mut root: [u8; 60] = node(1, &[(0, 0, 9)], 60).try_into().unwrap();
                let _ = extents(&fs, &inode(flag::EXTENTS, root));
                root[at % 60] = value;
                let _ = extents(&fs, &inode(flag::EXTENTS, root));
                let _ = extents(&fs, &inode(0, root));
            }
        }
    }
}
