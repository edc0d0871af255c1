//! The shape of a Merkle tree, and its construction.
//!
//! Owns [`MerkleLevels`] and [`MerkleTreeBuilder`]. Level 0 has the hashes of the data blocks, each
//! level above those of the blocks below. The tree is stored from its root block on, level after
//! level. A file of one block has no tree: its root hash is that of the block.
//!
//! Locks: none. Sources: `Documentation/filesystems/fsverity.rst`,
//! `fsverity_init_merkle_tree_params` (`fs/verity/open.c`), `fs/verity/enable.c`.

use crate::data::fsverity::hash::{HashBytes, SaltedHash};
use crate::errors::Result;
use arrayvec::ArrayVec;

/// Most levels of a tree (`FS_VERITY_MAX_LEVELS`).
const MAX_LEVELS: usize = 8;

/// Where the levels of a tree are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MerkleLevels {
    block_size: usize,
    hash_size: usize,
    /// The first byte of each level in the stored tree, from level 0 on.
    starts: ArrayVec<u64, MAX_LEVELS>,
    /// The size of the stored tree in bytes.
    stored: u64,
}

/// The place of a hash in the stored tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HashPlace {
    /// The number of its block within its level.
    pub(crate) number: u64,
    /// The first byte of its block in the stored tree.
    pub(crate) block: u64,
    /// Its first byte within that block.
    pub(crate) within: usize,
}

impl MerkleLevels {
    /// Returns the levels for a file of `file_size` bytes; `None` if there would be too many. Sizes
    /// of blocks and hashes are in bytes, powers of two.
    pub fn new(file_size: u64, block_size: usize, hash_size: usize) -> Option<Self> {
        let hashes = (block_size / hash_size) as u64;
        let mut counts = ArrayVec::<u64, MAX_LEVELS>::new();
        let mut blocks = file_size.div_ceil(block_size as u64);
        while blocks > 1 {
            blocks = blocks.div_ceil(hashes);
            counts.try_push(blocks).ok()?;
        }
        let mut starts: ArrayVec<u64, MAX_LEVELS> = counts.iter().map(|_| 0).collect();
        let mut at = 0;
        for (start, count) in starts.iter_mut().zip(&counts).rev() {
            *start = at;
            at += count * block_size as u64;
        }
        Some(Self { block_size, hash_size, starts, stored: at })
    }

    /// Returns the size of the stored tree in bytes.
    pub fn stored_bytes(&self) -> u64 {
        self.stored
    }

    pub(crate) fn block_size(&self) -> usize {
        self.block_size
    }

    pub(crate) fn hash_size(&self) -> usize {
        self.hash_size
    }

    /// Returns the place of the hash that `level` has of block `number` below it, or `None` above
    /// the root.
    pub(crate) fn place(&self, level: usize, number: u64) -> Option<HashPlace> {
        let start = *self.starts.get(level)?;
        let hashes = (self.block_size / self.hash_size) as u64;
        let (block, within) = (number / hashes, (number % hashes) as usize * self.hash_size);
        Some(HashPlace { number: block, block: start + block * self.block_size as u64, within })
    }
}

/// Builds a tree from a file's blocks, in their order.
#[derive(Debug)]
pub(crate) struct MerkleTreeBuilder {
    levels: MerkleLevels,
    hash: SaltedHash,
    /// The block of each level that is being filled, and the number of those before it.
    filling: Vec<(Vec<u8>, u64)>,
    root: HashBytes,
}

impl MerkleTreeBuilder {
    pub(crate) fn new(levels: MerkleLevels, hash: SaltedHash) -> Self {
        let filling = levels.starts.iter().map(|_| (Vec::new(), 0)).collect();
        Self { levels, hash, filling, root: HashBytes::new() }
    }

    /// Adds the next block of data; only the last one may be short. Passes the finished blocks of
    /// the tree to `write`, with their first bytes in the stored tree.
    ///
    /// # Errors
    /// Those of `write`.
    pub(crate) fn add(
        &mut self,
        block: &[u8],
        write: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let hash = self.hash.of_block(block, self.levels.block_size);
        self.add_hash(0, hash, write)
    }

    fn add_hash(
        &mut self,
        mut level: usize,
        mut hash: HashBytes,
        write: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        while let Some((block, _)) = self.filling.get_mut(level) {
            block.extend_from_slice(&hash);
            if block.len() < self.levels.block_size {
                return Ok(());
            }
            hash = self.end_block(level, write)?;
            level += 1;
        }
        self.root = hash;
        Ok(())
    }

    /// Writes the block that a level is filling, and returns its hash.
    fn end_block(
        &mut self,
        level: usize,
        write: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<HashBytes> {
        let block_size = self.levels.block_size;
        let (block, number) = &mut self.filling[level];
        block.resize(block_size, 0);
        write(self.levels.starts[level] + *number * block_size as u64, block)?;
        let hash = self.hash.of_block(block, block_size);
        block.clear();
        *number += 1;
        Ok(hash)
    }

    /// Writes the blocks that are not full, and returns the root hash: that of an empty file is
    /// empty.
    ///
    /// # Errors
    /// Those of `write`.
    pub(crate) fn finish(mut self, write: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<HashBytes> {
        for level in 0..self.filling.len() {
            if !self.filling[level].0.is_empty() {
                let hash = self.end_block(level, write)?;
                self.add_hash(level + 1, hash, write)?;
            }
        }
        Ok(self.root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_format::items::fsverity_descriptor::FsverityAlgorithm;
    use std::collections::BTreeMap;

    #[test]
    fn levels_begin_with_the_root() {
        let levels = |size| MerkleLevels::new(size, 4096, 32).unwrap().starts.to_vec();
        assert_eq!(levels(0), []);
        assert_eq!(levels(4096), []);
        assert_eq!(levels(4097), [0]);
        assert_eq!(levels(128 * 4096), [0]);
        assert_eq!(levels(128 * 4096 + 1), [4096, 0]);
        assert_eq!(levels(128 * 128 * 4096 + 1), [3 * 4096, 4096, 0]);
        assert!(MerkleLevels::new(u64::MAX, 1024, 64).is_none(), "14 levels");
        assert!(MerkleLevels::new(i64::MAX as u64, 4096, 32).is_some());
    }

    #[test]
    fn every_hash_is_that_of_the_block_below() {
        for (size, block_size, algorithm) in [
            (1, 1024, FsverityAlgorithm::Sha256),
            (5000, 1024, FsverityAlgorithm::Sha256),
            (200_000, 1024, FsverityAlgorithm::Sha512),
            (700_001, 1024, FsverityAlgorithm::Sha256),
        ] {
            let data: Vec<u8> = (0..size).map(|number: u32| (number / 7) as u8).collect();
            let hash = SaltedHash::new(algorithm, b"salt");
            let levels = MerkleLevels::new(size.into(), block_size, algorithm.size()).unwrap();
            let mut stored = BTreeMap::new();
            let mut write = |at, block: &[u8]| {
                assert!(stored.insert(at, block.to_vec()).is_none(), "{at} is written once");
                Ok(())
            };
            let mut builder = MerkleTreeBuilder::new(levels.clone(), hash.clone());
            data.chunks(block_size).for_each(|block| builder.add(block, &mut write).unwrap());
            let root = builder.finish(&mut write).unwrap();
            // The stored tree has no gap.
            assert_eq!(levels.stored_bytes(), (stored.len() * block_size) as u64);
            assert!(
                stored.keys().copied().eq((0..stored.len() as u64).map(|number| number * block_size as u64))
            );
            let mut below: Vec<HashBytes> =
                data.chunks(block_size).map(|block| hash.of_block(block, block_size)).collect();
            for level in 0..levels.starts.len() {
                let mut blocks = Vec::new();
                for (number, hash_below) in below.iter().enumerate() {
                    let place = levels.place(level, number as u64).unwrap();
                    assert_eq!(stored[&place.block][place.within..][..hash_below.len()], hash_below[..]);
                    blocks.push(place.block);
                }
                blocks.dedup();
                below = blocks.iter().map(|at| hash.of_block(&stored[at], block_size)).collect();
            }
            assert_eq!(below, [root]);
        }
    }
}
