//! Where the blocks of a fork lie: lists of extents, and trees of them.
//!
//! Owns [`XfsFs::for_each_in_fork`]. It reads one path of a tree at a time, so that memory does not
//! grow with the file.
//!
//! **Invariants** of the extents that it passes on
//! - They ascend and do not overlap, and are as long as they can be.
//! - Each lies in one allocation group, behind its headers.
//! - Block numbers count along the device.
//!
//! Source: "XFS Algorithms & Data Structures", chapter "Data Extents".

use super::fields::{is_intact, u16_at, u64_at};
use super::inode::{Fork, Format, XfsInode};
use super::reader::XfsFs;
use crate::error::{ConvertError, Result};
use crate::source::Extent;

/// Bytes of an extent.
const RECORD: usize = 16;
/// The most levels of a tree below its root.
const LEVELS_MAX: u16 = 9;

/// Joins extents that continue one another, and checks their order.
struct ExtentJoiner<'a> {
    fs: &'a XfsFs,
    own: u64,
    /// Extents of the fork that may still come, and blocks of its tree.
    left: u64,
    tree_left: u64,
    held: Option<Extent>,
    act: &'a mut dyn FnMut(Extent) -> Result<()>,
}

impl ExtentJoiner<'_> {
    fn bad(&self, reason: impl Into<String>) -> ConvertError {
        self.fs.damaged(format!("inode {}", self.own), reason)
    }

    /// Adds a record.
    fn add(&mut self, record: &[u8]) -> Result<()> {
        let (high, low) = (u64_at(record, 0), u64_at(record, 8));
        let logical = high >> 9 & ((1 << 54) - 1);
        let (number, length) = ((high & 0x1ff) << 43 | low >> 21, low & 0x1f_ffff);
        let superblock = &self.fs.superblock;
        match self.left.checked_sub(1) {
            Some(left) => self.left = left,
            None => return Err(self.bad("it has more extents than it counts")),
        }
        let place = superblock.place_of(number).filter(|(_, left)| length <= *left && length > 0);
        let Some((physical, _)) = place else {
            return Err(self.bad(format!("an extent of {length} blocks from block {number} on lies outside")));
        };
        if logical + length > (1 << 63) / superblock.block_size {
            return Err(self.bad("an extent lies behind the end of any file"));
        }
        let extent = Extent { logical, physical, length, written: high >> 63 == 0 };
        if let Some(held) = &mut self.held {
            if logical < held.logical + held.length {
                return Err(self.bad(format!("extents overlap or are not sorted at block {logical}")));
            }
            if held.written == extent.written
                && held.logical + held.length == logical
                && held.physical + held.length == physical
            {
                held.length += length;
                return Ok(());
            }
        }
        match self.held.replace(extent) {
            Some(before) => (self.act)(before),
            None => Ok(()),
        }
    }

    fn finish(mut self) -> Result<()> {
        if self.left != 0 {
            return Err(self.bad("it has fewer extents than it counts"));
        }
        match self.held.take() {
            Some(last) => (self.act)(last),
            None => Ok(()),
        }
    }
}

impl XfsFs {
    /// Calls `act` with the extents of a fork, in order, and `inner` with each block of its tree.
    ///
    /// # Errors
    /// Damage; errors of `act` and `inner`; the device's.
    pub(crate) fn for_each_in_fork(
        &self,
        inode: &XfsInode,
        fork: &Fork,
        act: &mut dyn FnMut(Extent) -> Result<()>,
        inner: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let tree_left = inode.blocks;
        let mut joiner =
            ExtentJoiner { fs: self, own: inode.own, left: fork.extents, tree_left, held: None, act };
        match fork.format {
            Format::Device | Format::Local => {
                joiner.left = 0;
            }
            Format::Extents => {
                let room = (fork.bytes.len() / RECORD) as u64;
                if fork.extents > room {
                    return Err(joiner.bad(format!("{} extents in room for {room}", fork.extents)));
                }
                for record in fork.bytes.chunks_exact(RECORD).take(fork.extents as usize) {
                    joiner.add(record)?;
                }
            }
            Format::Tree => {
                let (level, count) = (u16_at(&fork.bytes, 0), usize::from(u16_at(&fork.bytes, 2)));
                let most = fork.bytes.len().saturating_sub(4) / 16;
                if level == 0 || level > LEVELS_MAX || count == 0 || count > most {
                    return Err(joiner.bad("the root of its tree of extents is damaged"));
                }
                for slot in 0..count {
                    let child = u64_at(&fork.bytes, 4 + most * 8 + slot * 8);
                    self.extent_block(&mut joiner, child, level - 1, inner)?;
                }
            }
        }
        joiner.finish()
    }

    fn extent_block(
        &self,
        joiner: &mut ExtentJoiner<'_>,
        number: u64,
        level: u16,
        inner: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let superblock = &self.superblock;
        let Some((place, _)) = superblock.place_of(number) else {
            return Err(joiner.bad(format!("its tree of extents has a block {number}, outside")));
        };
        match joiner.tree_left.checked_sub(1) {
            Some(left) => joiner.tree_left = left,
            None => return Err(joiner.bad("its tree of extents has more blocks than it counts")),
        }
        inner(place)?;
        let bytes = self.blocks(place, 1)?;
        let (magic, header) = if superblock.is_v5 { (b"BMA3", 72) } else { (b"BMAP", 24) };
        if !bytes.starts_with(magic) || u16_at(&bytes, 4) != level {
            return Err(joiner.bad(format!("block {number} is none of its tree of extents")));
        }
        if superblock.is_v5 {
            if !is_intact(&bytes, 64) {
                return Err(joiner.bad("the checksum of a block of its tree of extents does not match"));
            }
            if u64_at(&bytes, 56) != joiner.own || bytes[40..56] != superblock.meta_uuid {
                return Err(joiner.bad("a block of its tree of extents belongs to another inode"));
            }
        }
        let count = usize::from(u16_at(&bytes, 6));
        let body = &bytes[header..];
        // Records of extents, and pairs of key and pointer, are equally long.
        let most = body.len() / RECORD;
        if count == 0 || count > most {
            return Err(joiner.bad("a block of its tree of extents has too many entries, or none"));
        }
        if level == 0 {
            return body.chunks_exact(RECORD).take(count).try_for_each(|record| joiner.add(record));
        }
        for slot in 0..count {
            self.extent_block(joiner, u64_at(body, most * 8 + slot * 8), level - 1, inner)?;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::superblock::XfsSuperblock;
    use super::super::superblock::tests::sample;
    use super::*;
    use crate::shared::SharedExtents;
    use crate::source::Profile;
    use papilio_device::{Device, MemoryDevice};
    use papilio_format::PhysicalAddress;
    use papilio_format::items::inode::{FileKind, Timespec};
    use std::sync::Arc;

    /// An XFS of version 4 without groups, for parsers of single structures.
    pub(crate) fn bare() -> (XfsFs, Arc<MemoryDevice>) {
        let device = Arc::new(MemoryDevice::new(4000 * 4096));
        let superblock = XfsSuperblock::parse(&sample()).unwrap();
        let fs = XfsFs {
            device: device.clone(),
            profile: Profile::for_test(superblock.block_size, superblock.blocks),
            superblock,
            groups: Vec::new(),
            shared: SharedExtents::default(),
        };
        (fs, device)
    }

    pub(crate) fn inode(kind: FileKind, size: u64, data: Fork, attributes: Option<Fork>) -> XfsInode {
        let time = Timespec::default();
        let (fs, _) = bare();
        let mut bytes = vec![0; 512];
        bytes[..6].copy_from_slice(&[b'I', b'N', 0x81, 0xa4, 2, 2]);
        let blank = fs.parse_inode(131, &bytes).unwrap();
        XfsInode { kind, size, data, attributes, blocks: 100, otime: Some(time), ..blank }
    }

    /// A record: offset in the file, block, length, whether it is written.
    pub(crate) fn record(logical: u64, number: u64, length: u64, written: bool) -> Vec<u8> {
        let high = u64::from(!written) << 63 | logical << 9 | number >> 43;
        [high.to_be_bytes(), (number << 21 | length).to_be_bytes()].concat()
    }

    fn tree_block(level: u16, records: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = b"BMAP".to_vec();
        bytes.extend(level.to_be_bytes());
        bytes.extend((records.len() as u16).to_be_bytes());
        bytes.extend([0xff; 16]);
        bytes.extend(records.concat());
        bytes.resize(4096, 0);
        bytes
    }

    fn extents(fs: &XfsFs, fork: Fork) -> Result<Vec<(u64, u64, u64, bool)>> {
        let inode = inode(FileKind::Regular, 1 << 20, fork, None);
        let mut found = Vec::new();
        let mut add = |extent: Extent| {
            found.push((extent.logical, extent.physical, extent.length, extent.written));
            Ok(())
        };
        fs.for_each_in_fork(&inode, &inode.data, &mut add, &mut |_| Ok(()))?;
        Ok(found)
    }

    #[test]
    fn extents_that_continue_one_another_are_joined() {
        let (fs, device) = bare();
        let records = [
            record(0, 100, 4, true),
            record(4, 104, 4, true),
            record(8, 108, 2, false),
            record(20, 2100, 1, true),
        ];
        let expected = [(0, 100, 8, true), (8, 108, 2, false), (20, 2100, 1, true)];
        let list = Fork { format: Format::Extents, bytes: records.concat(), extents: 4 };
        assert_eq!(extents(&fs, list).unwrap(), expected);
        device.write_at(&tree_block(0, &records), PhysicalAddress(9 * 4096)).unwrap();
        let mut root = vec![0, 1, 0, 1];
        root.resize(84, 0);
        root[44..52].copy_from_slice(&9u64.to_be_bytes());
        let tree = Fork { format: Format::Tree, bytes: root, extents: 4 };
        assert_eq!(extents(&fs, tree.clone()).unwrap(), expected);
        let error = extents(&fs, Fork { extents: 5, ..tree }).unwrap_err().to_string();
        assert!(error.contains("fewer extents than it counts"), "{error}");
    }

    #[test]
    fn trees_that_lead_to_themselves_end() {
        let (fs, device) = bare();
        let mut block = tree_block(1, &vec![vec![0; 16]; 254]);
        for slot in 0..254 {
            let at = 24 + 254 * 8 + slot * 8;
            block[at..at + 8].copy_from_slice(&9u64.to_be_bytes());
        }
        device.write_at(&block, PhysicalAddress(9 * 4096)).unwrap();
        let mut root = vec![0, 2, 0, 1];
        root.resize(84, 0);
        root[44..52].copy_from_slice(&9u64.to_be_bytes());
        assert!(extents(&fs, Fork { format: Format::Tree, bytes: root, extents: 4 }).is_err());
    }

    #[test]
    fn any_byte_of_a_tree_may_be_damaged() {
        let (fs, device) = bare();
        let records = [record(0, 100, 4, true), record(4, 200, 4, true), record(9, 300, 2, true)];
        for at in 0..80 {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut block = tree_block(0, &records);
                block[at] = value;
                device.write_at(&block, PhysicalAddress(9 * 4096)).unwrap();
                let mut root = vec![0, 1, 0, 1];
                root.resize(84, 0);
                root[44..52].copy_from_slice(&9u64.to_be_bytes());
                let _ = extents(&fs, Fork { format: Format::Tree, bytes: root.clone(), extents: 3 });
                root[at] = value;
                let _ = extents(&fs, Fork { format: Format::Tree, bytes: root, extents: 3 });
            }
        }
    }
}
