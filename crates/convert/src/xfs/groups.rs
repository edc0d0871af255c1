//! The headers of allocation groups: free space, inodes, and the list of spare blocks.
//!
//! Owns [`XfsFs::read_group`].
//!
//! Source: "XFS Algorithms & Data Structures", chapter "Allocation Groups".

use super::fields::{is_intact, u32_at};
use super::group::{AllocationGroup, NO_BLOCK, Root};
use super::reader::XfsFs;
use super::superblock::XfsSuperblock;
use crate::error::Result;

impl XfsFs {
    /// Reads and checks the headers of a group.
    ///
    /// # Errors
    /// Damage; the device's errors.
    pub(crate) fn read_group(&self, number: u32) -> Result<AllocationGroup> {
        let superblock = &self.superblock;
        let size = superblock.sector_size;
        let mut bytes = vec![0; 4 * size];
        let start = u64::from(number) * u64::from(superblock.group_blocks) * superblock.block_size;
        self.read(&mut bytes, start)?;
        let (first, rest) = bytes.split_at(size);
        let (space, rest) = rest.split_at(size);
        let (inodes, spare) = rest.split_at(size);
        self.check_copy(number, first)?;
        let length = superblock.blocks_of(number);
        for (sector, magic, name, crc) in [
            (space, b"XAGF", "the header of free space", 216),
            (inodes, b"XAGI", "the header of inodes", 312),
        ] {
            let place = || format!("{name} of group {number}");
            if !sector.starts_with(magic) || u32_at(sector, 4) != 1 || u32_at(sector, 8) != number {
                return Err(self.damaged(place(), "it does not say that it is one"));
            }
            if superblock.is_v5 && !is_intact(sector, crc) {
                return Err(self.damaged(place(), "its checksum does not match"));
            }
            if u32_at(sector, 12) != length {
                let reason = format!("{} blocks, and {length} by the superblock", u32_at(sector, 12));
                return Err(self.damaged(place(), reason));
            }
        }
        let root = |sector: &[u8], block: usize, levels: usize| Root {
            block: u32_at(sector, block),
            levels: u32_at(sector, levels),
        };
        let spare = self.spare_blocks(number, space, spare)?;
        Ok(AllocationGroup {
            by_place: root(space, 16, 28),
            by_size: root(space, 20, 32),
            reverse_map: superblock.has_reverse_maps().then(|| root(space, 24, 36)),
            refcounts: superblock.has_reflinks().then(|| root(space, 88, 92)),
            inodes: root(inodes, 20, 24),
            free_inodes: superblock.has_free_inode_trees().then(|| root(inodes, 328, 332)),
            free_blocks: u32_at(space, 52),
            longest: u32_at(space, 56),
            tree_blocks: u32_at(space, 60),
            spare,
            inode_count: u32_at(inodes, 16),
            free_inode_count: u32_at(inodes, 28),
            has_orphans: (0..64).any(|bucket| u32_at(inodes, 40 + bucket * 4) != NO_BLOCK),
        })
    }

    /// Checks a copy of the superblock.
    fn check_copy(&self, number: u32, sector: &[u8]) -> Result<()> {
        let place = || format!("the superblock of group {number}");
        let copy =
            XfsSuperblock::parse(sector).map_err(|fault| self.damaged(place(), format!("it has {fault}")))?;
        let shape = |found: &XfsSuperblock| {
            (
                found.block_size,
                found.blocks,
                found.group_blocks,
                found.groups,
                found.inode_size,
                found.sector_size,
                found.log_start,
                found.log_blocks,
            )
        };
        match shape(&copy) == shape(&self.superblock) {
            true => Ok(()),
            false => Err(self.damaged(place(), "it has another shape than the first one")),
        }
    }

    /// Returns the blocks of a group's list of spare blocks.
    fn spare_blocks(&self, number: u32, space: &[u8], list: &[u8]) -> Result<Vec<u32>> {
        let bad =
            |reason: &str| Err(self.damaged(format!("the list of spare blocks of group {number}"), reason));
        let start = if self.superblock.is_v5 { 36 } else { 0 };
        if self.superblock.is_v5 {
            if !list.starts_with(b"XAFL") || u32_at(list, 4) != number {
                return bad("it does not say that it is one");
            }
            if !is_intact(list, 32) {
                return bad("its checksum does not match");
            }
        }
        let slots = ((list.len() - start) / 4) as u32;
        let [first, last, count] = [40, 44, 48].map(|at| u32_at(space, at));
        if first >= slots || last >= slots || count > slots {
            return bad("its ends lie outside");
        }
        let between = (last + slots - first) % slots + 1;
        if count != 0 && count != between {
            return bad("its ends do not match its length");
        }
        Ok((0..count).map(|at| u32_at(list, start + ((first + at) % slots) as usize * 4)).collect())
    }
}
