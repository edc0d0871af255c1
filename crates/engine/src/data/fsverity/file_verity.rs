//! Verification of a file's data by its Merkle tree.
//!
//! Owns [`FileVerity`].
//!
//! Invariant: `verified` has only blocks of the tree whose hashes were compared up to the root.
//!
//! Locks: `verified`, alone, for moments. Kernel counterpart: `verify_data_block`
//! (`fs/verity/verify.c`).

use crate::btree::Tree;
use crate::data::fsverity::hash::{HashBytes, SaltedHash, hex};
use crate::data::fsverity::merkle_tree::MerkleLevels;
use crate::errors::{Error, FilePlace, Result};
use crate::items::verity;
use papilio_format::items::fsverity_descriptor::{FsverityAlgorithm, FsverityDescriptor};
use papilio_format::{FileOffset, InodeNumber, ItemType, Key};
use papilio_locks::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Most bytes of verified tree blocks that one file keeps: those of 32 MiB of data with 4 KiB
/// blocks and SHA-256.
const MOST_KEPT: usize = 256 << 10;

/// Verifies the data of one file.
#[derive(Debug)]
pub(crate) struct FileVerity {
    pub(crate) descriptor: FsverityDescriptor,
    /// The builtin signature; empty without one. It is kept, never verified.
    pub(crate) signature: Vec<u8>,
    pub(crate) algorithm: FsverityAlgorithm,
    levels: MerkleLevels,
    hash: SaltedHash,
    /// Verified blocks of the tree, by their first bytes in the stored tree.
    verified: Mutex<HashMap<u64, Arc<[u8]>>>,
}

impl FileVerity {
    /// Loads the descriptor of a file of `size` bytes.
    ///
    /// # Errors
    /// A descriptor that is missing or invalid; a tree block that cannot be read.
    pub(crate) fn load(tree: &Tree, inode: InodeNumber, size: u64) -> Result<Self> {
        let (descriptor, signature) = verity::descriptor(tree, inode, size)?;
        let fault = |reason| Error::Item {
            tree: tree.id(),
            key: Key::new(inode.0, ItemType::VERITY_DESC_ITEM, 0),
            reason,
        };
        let algorithm = descriptor.algorithm().map_err(fault)?;
        let levels = MerkleLevels::new(size, 1 << descriptor.log_blocksize, algorithm.size());
        let levels = levels.ok_or_else(|| {
            fault(papilio_format::Corrupt::field(
                "fs-verity descriptor",
                "data_size",
                size,
                "the Merkle tree would have more than 8 levels",
            ))
        })?;
        let hash = SaltedHash::new(algorithm, descriptor.salt());
        Ok(Self { descriptor, signature, algorithm, levels, hash, verified: Mutex::default() })
    }

    /// Returns the size of the blocks that are verified, in bytes.
    pub(crate) fn block_size(&self) -> usize {
        self.levels.block_size()
    }

    /// Returns the file digest (`FS_IOC_MEASURE_VERITY`): the hash of the descriptor without its
    /// signature.
    pub(crate) fn digest(&self) -> HashBytes {
        let bare = FsverityDescriptor { sig_size: 0, ..self.descriptor };
        SaltedHash::new(self.algorithm, b"").of_block(&bare.to_bytes(), FsverityDescriptor::SIZE)
    }

    /// Verifies `data`, whole blocks from `start` on; the last may be cut by the end of the file.
    ///
    /// # Errors
    /// [`Error::Verity`] with the first block that is not valid; a tree block that cannot be read.
    pub(crate) fn verify(&self, tree: &Tree, start: FilePlace, data: &[u8]) -> Result<()> {
        let block_size = self.block_size();
        let first = start.offset.0 / block_size as u64;
        for (number, block) in data.chunks(block_size).enumerate() {
            let offset = FileOffset(start.offset.0 + (number * block_size) as u64);
            let place = FilePlace { offset, ..start };
            let found = self.hash.of_block(block, block_size);
            let stored = self.stored_hash(tree, place, 0, first + number as u64)?;
            if found != stored {
                let [found, stored] = [hex(&found), hex(&stored)];
                let reason = format!("the data block has the hash {found}, the Merkle tree {stored}");
                return Err(Error::Verity { place, reason });
            }
        }
        Ok(())
    }

    /// Returns the hash that `level` has of block `number` below it, from a verified block.
    fn stored_hash(&self, tree: &Tree, place: FilePlace, level: usize, number: u64) -> Result<HashBytes> {
        let Some(at) = self.levels.place(level, number) else {
            return Ok(self.descriptor.root_hash[..self.levels.hash_size()].iter().copied().collect());
        };
        let cached = self.verified.lock().get(&at.block).cloned();
        let block = match cached {
            Some(block) => block,
            None => self.read_verified(tree, place, level, (at.number, at.block))?,
        };
        Ok(block[at.within..][..self.levels.hash_size()].iter().copied().collect())
    }

    /// Reads block `number` of `level`, which begins at byte `at` of the stored tree.
    fn read_verified(
        &self,
        tree: &Tree,
        place: FilePlace,
        level: usize,
        (number, at): (u64, u64),
    ) -> Result<Arc<[u8]>> {
        let block_size = self.block_size();
        let fault = |reason| Err(Error::Verity { place, reason });
        let mut block = vec![0; block_size];
        let read = verity::read_bytes(tree, place.inode, ItemType::VERITY_MERKLE_ITEM, at, &mut block)?;
        if read < block_size {
            return fault(format!("the Merkle tree ends at byte {} of its items", at + read as u64));
        }
        let found = self.hash.of_block(&block, block_size);
        let stored = self.stored_hash(tree, place, level + 1, number)?;
        if found != stored {
            let [found, stored] = [hex(&found), hex(&stored)];
            return fault(format!(
                "the Merkle tree's block at byte {at} has the hash {found}, the level above {stored}"
            ));
        }
        let block: Arc<[u8]> = block.into();
        let mut verified = self.verified.lock();
        if (verified.len() + 1) * block_size > MOST_KEPT {
            verified.clear();
        }
        verified.insert(at, Arc::clone(&block));
        Ok(block)
    }
}
