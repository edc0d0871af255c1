//! The journal of ext3 and ext4, and the blocks that a mount would replay.
//!
//! Owns [`ExtFs::replay`]. Nothing is written: [`super::replayed::ReplayedDevice`] shows the file
//! system as a mount would leave it, and the device keeps its bytes.
//!
//! **Passes**, as the kernel has them: the first finds the last whole transaction, the second the
//! revoked blocks, the third which copy of each block is the newest. Memory: 24 bytes for each
//! block.
//!
//! Source: `Documentation/filesystems/ext4/journal.rst`.

use super::checksum::crc;
use super::inode::ExtInode;
use super::reader::ExtFs;
use super::replayed::{Copy, Replay};
use crate::error::{ConvertError, Result};
use crate::source::Extent;
use crate::xfs::fields::{u16_at, u32_at, u64_at};
use std::collections::BTreeMap;

const MAGIC: u32 = 0xc03b_3998;
/// Bytes of the header of every block of the journal.
const HEADER: usize = 12;
/// Bytes of the checksum at the end of descriptors and revocations.
const TAIL: usize = 4;
/// The longest journal.
const BLOCKS_MAX: u64 = 1 << 22;

/// Kinds of blocks.
mod kind {
    pub(crate) const DESCRIPTOR: u32 = 1;
    pub(crate) const COMMIT: u32 = 2;
    pub(crate) const SUPERBLOCK: u32 = 4;
    pub(crate) const REVOKE: u32 = 5;
}

/// Features that readers must know.
mod incompat {
    pub(crate) const BITS_64: u32 = 0x2;
    pub(crate) const ASYNC: u32 = 0x4;
    pub(crate) const CSUM_2: u32 = 0x8;
    pub(crate) const CSUM_3: u32 = 0x10;
    pub(crate) const FAST: u32 = 0x20;
    pub(crate) const KNOWN: u32 = 0x1 | BITS_64 | ASYNC | CSUM_2 | CSUM_3 | FAST;
}

/// Flags of a tag.
mod flag {
    pub(crate) const ESCAPED: u32 = 1;
    pub(crate) const SAME_UUID: u32 = 2;
    pub(crate) const LAST: u32 = 8;
}

/// A tag: a block of the file system, its flags, and its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tag {
    block: u64,
    flags: u32,
    checksum: u32,
}

/// The superblock of the journal.
#[derive(Clone, Debug)]
struct JournalShape {
    incompat: u32,
    /// Blocks behind the last one, and the first one of transactions.
    end: u64,
    first: u64,
    /// The first transaction, and its block; 0 if there is nothing to replay.
    sequence: u32,
    start: u64,
    /// The state that checksums begin with.
    seed: u32,
}

impl JournalShape {
    /// Parses the superblock.
    fn parse(bytes: &[u8], block_size: u64, blocks: u64) -> Result<Self, String> {
        if u32_at(bytes, 0) != MAGIC || u32_at(bytes, 4) != kind::SUPERBLOCK {
            return Err("its superblock has no magic number, or an old version".to_owned());
        }
        let [compat, incompat, ro_compat] = [36, 40, 44].map(|at| u32_at(bytes, at));
        let shape = Self {
            incompat,
            end: u32_at(bytes, 16).into(),
            first: u32_at(bytes, 20).into(),
            sequence: u32_at(bytes, 24),
            start: u32_at(bytes, 28).into(),
            seed: crc(!0, &bytes[48..64]),
        };
        if shape.has_checksums() {
            let sum = crc(crc(!0, &bytes[..252]), &[0; 4]);
            if crc(sum, &bytes[256..1024]) != u32_at(bytes, 252) {
                return Err("the checksum of its superblock does not match".to_owned());
            }
        }
        if u64::from(u32_at(bytes, 12)) != block_size
            || shape.end > blocks
            || shape.end > BLOCKS_MAX
            || !(1..shape.end).contains(&shape.first)
            || (shape.start != 0 && !(shape.first..shape.end).contains(&shape.start))
        {
            return Err("its superblock names an impossible shape".to_owned());
        }
        let unknown = incompat & !incompat::KNOWN;
        match () {
            () if unknown != 0 || ro_compat != 0 => {
                Err(format!("unknown features {unknown:#x}, {ro_compat:#x}"))
            }
            () if incompat & incompat::FAST != 0 => Err("fast commits (fast_commit)".to_owned()),
            () if compat & 1 != 0 => Err("checksums of version 1 (journal_checksum)".to_owned()),
            () if incompat & incompat::ASYNC != 0 && !shape.has_checksums() => {
                Err("commits without order (journal_async_commit) and without checksums".to_owned())
            }
            () if u32_at(bytes, 32) != 0 => Err("an error that stopped it".to_owned()),
            () => Ok(shape),
        }
    }

    fn has_checksums(&self) -> bool {
        self.incompat & (incompat::CSUM_2 | incompat::CSUM_3) != 0
    }

    fn is_64(&self) -> bool {
        self.incompat & incompat::BITS_64 != 0
    }

    /// The block that follows.
    fn after(&self, block: u64) -> u64 {
        if block + 1 >= self.end { self.first } else { block + 1 }
    }

    /// Whether the checksum at the end of a descriptor or a revocation matches.
    fn has_sound_tail(&self, block: &[u8]) -> bool {
        let end = block.len() - TAIL;
        !self.has_checksums() || crc(crc(self.seed, &block[..end]), &[0; 4]) == u32_at(block, end)
    }

    /// Returns the tags of a descriptor.
    fn tags(&self, block: &[u8]) -> Vec<Tag> {
        let is_v3 = self.incompat & incompat::CSUM_3 != 0;
        let is_v2 = self.incompat & incompat::CSUM_2 != 0;
        let size = match (is_v3, is_v2, self.is_64()) {
            (true, _, _) => 16,
            (_, true, is_64) => {
                if is_64 {
                    14
                } else {
                    10
                }
            }
            (_, _, is_64) => {
                if is_64 {
                    12
                } else {
                    8
                }
            }
        };
        let end = block.len() - if self.has_checksums() { TAIL } else { 0 };
        let (mut at, mut tags) = (HEADER, Vec::new());
        while at + size <= end {
            let bytes = &block[at..at + size];
            let high = if self.is_64() { u64::from(u32_at(bytes, 8)) << 32 } else { 0 };
            let (flags, checksum) = match is_v3 {
                true => (u32_at(bytes, 4), u32_at(bytes, 12)),
                false => (u16_at(bytes, 6).into(), u16_at(bytes, 4).into()),
            };
            tags.push(Tag { block: u64::from(u32_at(bytes, 0)) | high, flags, checksum });
            at += size + if flags & flag::SAME_UUID == 0 { 16 } else { 0 };
            if flags & flag::LAST != 0 {
                break;
            }
        }
        tags
    }

    /// Returns the blocks that a revocation names.
    fn revoked(&self, block: &[u8]) -> Vec<u64> {
        let size = if self.is_64() { 8 } else { 4 };
        let end = (u32_at(block, 12) as usize).min(block.len());
        let list = block.get(16..end).unwrap_or_default();
        list.chunks_exact(size)
            .map(|entry| if size == 8 { u64_at(entry, 0) } else { u32_at(entry, 0).into() })
            .collect()
    }

    /// Whether the copy of a block matches its tag.
    fn is_sound(&self, tag: &Tag, sequence: u32, bytes: &[u8]) -> bool {
        let sum = crc(crc(self.seed, &sequence.to_be_bytes()), bytes);
        match self.incompat & (incompat::CSUM_2 | incompat::CSUM_3) {
            0 => true,
            found if found & incompat::CSUM_3 != 0 => sum == tag.checksum,
            _ => sum & 0xffff == tag.checksum,
        }
    }

    /// Whether a commit block is sound.
    fn is_sound_commit(&self, block: &[u8]) -> bool {
        !self.has_checksums()
            || crc(crc(crc(self.seed, &block[..16]), &[0; 4]), &block[20..]) == u32_at(block, 16)
    }
}

/// Takes a descriptor or a revocation: its transaction, its block in the journal, and its content.
type Visit<'a> = dyn FnMut(u32, u64, &[u8]) -> Result<()> + 'a;

/// The journal, open for reading.
struct Journal<'a> {
    fs: &'a ExtFs,
    shape: JournalShape,
    map: Vec<Extent>,
}

impl ExtFs {
    /// Finds the blocks that a mount would replay.
    ///
    /// # Errors
    /// A journal that cannot be replayed here; damage; the device's errors.
    pub(crate) fn replay(&self) -> Result<Replay> {
        let dirty = |reason: String| ConvertError::Dirty {
            device: self.profile.device.clone(),
            reason: format!(
                "its journal needs a replay: mount it once, or run e2fsck on it; it has {reason}"
            ),
        };
        let number = self.superblock.journal_inode;
        if number == 0 {
            return Err(dirty("another device for its journal".to_owned()));
        }
        let inode = self.read_inode(number)?;
        let map = self.journal_map(&inode)?;
        let blocks = map.iter().map(|extent| extent.length).sum();
        let first = map.first().map_or(0, |extent| extent.physical);
        let block = self.block(first, "the journal")?;
        let shape = JournalShape::parse(&block, self.superblock.block_size, blocks).map_err(dirty)?;
        if shape.start == 0 {
            return Ok(Replay::default());
        }
        Journal { fs: self, shape, map }.read()
    }

    /// Returns the extents of the journal, which has no holes.
    fn journal_map(&self, inode: &ExtInode) -> Result<Vec<Extent>> {
        let (mut map, mut next) = (Vec::new(), 0);
        self.for_each_ext_extent(
            inode,
            &mut |extent| {
                if extent.logical != next || !extent.written {
                    return Err(self.damaged("the journal", format!("block {next} is missing")));
                }
                next += extent.length;
                map.push(extent);
                Ok(())
            },
            &mut |_| Ok(()),
        )?;
        Ok(map)
    }
}

impl Journal<'_> {
    /// Returns the place of a block of the journal.
    fn place(&self, block: u64) -> u64 {
        let at = self.map.partition_point(|extent| extent.logical + extent.length <= block);
        self.map.get(at).map_or(0, |extent| extent.physical + (block - extent.logical))
    }

    fn block(&self, block: u64) -> Result<Vec<u8>> {
        self.fs.block(self.place(block), "the journal")
    }

    /// Calls `act` with each descriptor and each revocation of whole transactions: sequence number,
    /// block number and content. Without `limit`, it goes as far as there are whole ones. Returns
    /// the number behind the last.
    fn walk(&self, limit: Option<u32>, act: &mut Visit<'_>) -> Result<u32> {
        let shape = &self.shape;
        let (mut sequence, mut at) = (shape.sequence, shape.start);
        let mut left = shape.end;
        while limit != Some(sequence) && left > 0 {
            let block = self.block(at)?;
            if u32_at(&block, 0) != MAGIC || u32_at(&block, 8) != sequence {
                break;
            }
            left -= 1;
            let own = at;
            at = shape.after(at);
            let found = u32_at(&block, 4);
            let is_sound = match found {
                kind::DESCRIPTOR | kind::REVOKE => shape.has_sound_tail(&block),
                kind::COMMIT => shape.is_sound_commit(&block),
                _ => break,
            };
            // A block of the right transaction may be damaged, and hide what follows.
            if !is_sound {
                let reason = format!("the checksum of a block of transaction {sequence} is wrong");
                return Err(self.fs.damaged("the journal", reason));
            }
            match found {
                kind::DESCRIPTOR => {
                    act(sequence, own, &block)?;
                    let count = shape.tags(&block).len() as u64;
                    // More than the ring holds is no transaction.
                    let Some(rest) = left.checked_sub(count) else { break };
                    left = rest;
                    (0..count).for_each(|_| at = shape.after(at));
                }
                kind::REVOKE => act(sequence, own, &block)?,
                _ => sequence = sequence.wrapping_add(1),
            }
        }
        Ok(sequence)
    }

    /// Makes the three passes.
    fn read(&self) -> Result<Replay> {
        let shape = &self.shape;
        let end = self.walk(None, &mut |_, _, _| Ok(()))?;
        let is_after = |a: u32, b: u32| a.wrapping_sub(b) as i32 > 0;
        let mut revoked: BTreeMap<u64, u32> = BTreeMap::new();
        self.walk(Some(end), &mut |sequence, _, block| {
            if u32_at(block, 4) == kind::REVOKE {
                revoked.extend(shape.revoked(block).into_iter().map(|number| (number, sequence)));
            }
            Ok(())
        })?;
        let mut replay = Replay::default();
        self.walk(Some(end), &mut |sequence, own, block| {
            if u32_at(block, 4) != kind::DESCRIPTOR {
                return Ok(());
            }
            let mut at = own;
            for tag in shape.tags(block) {
                at = shape.after(at);
                if revoked.get(&tag.block).is_some_and(|until| !is_after(sequence, *until)) {
                    continue;
                }
                if tag.block >= self.fs.superblock.blocks {
                    let reason = format!("transaction {sequence} has block {}, past the end", tag.block);
                    return Err(self.fs.damaged("the journal", reason));
                }
                if !shape.is_sound(&tag, sequence, &self.block(at)?) {
                    let reason =
                        format!("the checksum of block {} in transaction {sequence} is wrong", tag.block);
                    return Err(self.fs.damaged("the journal", reason));
                }
                let is_escaped = tag.flags & flag::ESCAPED != 0;
                replay.blocks.insert(tag.block, Copy { place: self.place(at), is_escaped });
            }
            Ok(())
        })?;
        Ok(replay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(incompat: u32) -> JournalShape {
        JournalShape { incompat, end: 100, first: 1, sequence: 5, start: 90, seed: 7 }
    }

    #[test]
    fn tags_have_four_sizes() {
        for (incompat, size) in [(0, 8), (incompat::BITS_64, 12), (incompat::CSUM_2, 10), (0x12, 16)] {
            let mut block = vec![0; 4096];
            for slot in 0..3 {
                let at = HEADER + 16 * usize::from(slot > 0) + slot * size;
                block[at + 3] = 9 + slot as u8;
                let flags =
                    if slot == 0 { 0 } else { flag::SAME_UUID } | if slot == 2 { flag::LAST } else { 0 };
                block[at + 7] = flags as u8;
            }
            let tags = shape(incompat).tags(&block);
            assert_eq!(tags.iter().map(|tag| tag.block).collect::<Vec<_>>(), [9, 10, 11], "{incompat:#x}");
        }
    }

    #[test]
    fn revocations_name_blocks_of_two_sizes() {
        let mut block = vec![0; 4096];
        block[12..16].copy_from_slice(&32u32.to_be_bytes());
        block[19] = 3;
        block[23] = 4;
        assert_eq!(shape(0).revoked(&block), [3, 4, 0, 0]);
        assert_eq!(shape(incompat::BITS_64).revoked(&block), [3 << 32 | 4, 0]);
        block[12..16].fill(0xff);
        assert_eq!(shape(0).revoked(&block).len(), 1020);
    }

    #[test]
    fn the_ring_begins_again() {
        assert_eq!((shape(0).after(98), shape(0).after(99)), (99, 1));
    }

    #[test]
    fn any_byte_of_a_superblock_may_be_damaged() {
        let mut sound = vec![0; 4096];
        sound[..4].copy_from_slice(&MAGIC.to_be_bytes());
        for (at, value) in [(4, 4u32), (12, 4096), (16, 100), (20, 1), (24, 5), (28, 90)] {
            sound[at..at + 4].copy_from_slice(&value.to_be_bytes());
        }
        assert_eq!(JournalShape::parse(&sound, 4096, 100).unwrap().start, 90);
        for at in 0..256 {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = sound.clone();
                bytes[at] = value;
                if let Ok(shape) = JournalShape::parse(&bytes, 4096, 100) {
                    let _ = (shape.tags(&bytes), shape.revoked(&bytes), shape.has_sound_tail(&bytes));
                }
            }
        }
    }
}
