//! The forest: every tree of a file system, read through one volume and one cache.
//!
//! Owns [`Forest`], which turns an expected address into a checked block: from the cache, else from
//! the first copy that is good. Kernel counterparts: `read_tree_block`, `btree_read_extent_buffer_pages`
//! (`fs/btrfs/disk-io.c`), `readahead_tree_block` (`fs/btrfs/extent_io.c`).
//!
//! Locks: none of its own; the cache's.

use crate::btree::block_bytes::BlockBytes;
use crate::btree::cache::NodeCache;
use crate::btree::{RootPointer, Tree, TreeBlock};
use crate::errors::{BlockFault, Error, ErrorKind, Result};
use crate::volume::{LogicalRead, Volume};
use papilio_format::{LogicalAddress, NodeExpectation, TreeId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Reads and keeps the blocks of all trees.
#[derive(Debug)]
pub(crate) struct Forest {
    volume: Arc<Volume>,
    cache: NodeCache,
    blocks_read: AtomicU64,
    bad_copies: AtomicU64,
}

/// What the cache of tree blocks did so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheStatistics {
    /// Look-ups answered from memory.
    pub hits: u64,
    /// Look-ups that had to read.
    pub misses: u64,
    /// Blocks read from devices, each copy counted.
    pub blocks_read: u64,
    /// Copies that were bad while another was good.
    pub bad_copies: u64,
    /// Bytes held.
    pub bytes: usize,
}

impl Forest {
    /// A forest over `volume` with a cache of at most `cache_bytes`, blocks that are not on disk yet included.
    pub(crate) fn new(volume: Arc<Volume>, cache_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            volume,
            cache: NodeCache::new(cache_bytes),
            blocks_read: AtomicU64::new(0),
            bad_copies: AtomicU64::new(0),
        })
    }

    /// The volume below.
    pub(crate) fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// The tree `id` with its root at `root`.
    pub(crate) fn tree(self: &Arc<Self>, id: TreeId, root: RootPointer) -> Tree {
        Tree::new(Arc::clone(self), id, root)
    }

    /// The block that `expected` describes, met while walking `tree`.
    ///
    /// # Errors
    /// [`Error::TreeBlock`] with the fault of the first copy, if no copy is good.
    pub(crate) fn block(&self, tree: TreeId, expected: &NodeExpectation) -> Result<Arc<TreeBlock>> {
        if let Some(block) = self.cache.get(expected.address) {
            match block.meets(expected) {
                Ok(()) => return Ok(block),
                // What was here before may be cached still, where the place was given to another block.
                Err(reason) if block.generation() == expected.generation.unwrap_or(block.generation()) => {
                    return Err(block_error(tree, expected.address, 1, reason.into()));
                }
                Err(_) => self.cache.remove(expected.address),
            }
        }
        let block = Arc::new(self.read_any_copy(tree, expected)?);
        self.cache.insert(Arc::clone(&block));
        Ok(block)
    }

    /// A block was written: from now on it can be read at its place, and what was cached of that place
    /// before is gone.
    pub(crate) fn written(&self, block: &Arc<TreeBlock>) {
        self.cache.remove(block.address());
        // Links would keep all that lies below in memory.
        let clean = if block.level() == 0 { Arc::clone(block) } else { Arc::new(block.without_links()) };
        self.cache.insert(clean);
    }

    /// A tree got a block of so many bytes that is not on disk: it counts against the cache's limit until
    /// [`Forest::unwritten_shrank`].
    pub(crate) fn unwritten_grew(&self, bytes: u64) {
        self.cache.unwritten_grew(bytes as usize);
    }

    /// Blocks of so many bytes are on disk, or gone.
    pub(crate) fn unwritten_shrank(&self, bytes: u64) {
        self.cache.unwritten_shrank(bytes as usize);
    }

    /// Reads copy after copy until one is good.
    fn read_any_copy(&self, tree: TreeId, expected: &NodeExpectation) -> Result<TreeBlock> {
        let address = expected.address;
        let fail = |copies, reason| block_error(tree, address, copies, reason);
        let copies = self.volume.copies(address).map_err(|error| fail(0, read_fault(error)))?;
        let mut first = None;
        for copy in 0..copies {
            match self.read_copy(expected, copy) {
                Ok(block) => {
                    // A device that is known to be missing is no news at every block.
                    if let Some(fault) = first.filter(|fault| !is_missing(fault)) {
                        self.bad_copies.fetch_add(1, Ordering::Relaxed);
                        tracing::warn!(
                            "tree {tree}, block {address}: copy {copy} read instead of the first: {fault}"
                        );
                    }
                    return Ok(block);
                }
                Err(fault) => first = first.or(Some(fault)),
            }
        }
        let fault = first.expect("a chunk has at least one copy");
        Err(fail(copies, fault))
    }

    /// Reads and checks one copy, whatever the cache holds.
    pub(crate) fn read_copy(&self, expected: &NodeExpectation, copy: usize) -> Result<TreeBlock, BlockFault> {
        let geometry = self.volume.geometry();
        let mut bytes = BlockBytes::zeroed(geometry.node_size as usize);
        self.blocks_read.fetch_add(1, Ordering::Relaxed);
        self.volume.read_copy(expected.address, &mut bytes, copy).map_err(read_fault)?;
        Ok(TreeBlock::check(bytes, expected, &geometry)?)
    }

    /// Reads those of the blocks that are not cached, all at once. A block that cannot be read is
    /// left for [`Forest::block`] to complain of, if it is ever asked for.
    pub(crate) fn prefetch(&self, expected: impl Iterator<Item = NodeExpectation>) {
        let geometry = self.volume.geometry();
        let wanted: Vec<_> = expected.filter(|block| !self.cache.contains(block.address)).collect();
        let mut buffers: Vec<_> =
            wanted.iter().map(|_| BlockBytes::zeroed(geometry.node_size as usize)).collect();
        let mut requests: Vec<_> = wanted
            .iter()
            .zip(&mut buffers)
            .map(|(block, buffer)| LogicalRead::new(block.address, buffer))
            .collect();
        self.volume.read_many(&mut requests);
        let read: Vec<bool> = requests.iter().map(|request| request.result.is_ok()).collect();
        drop(requests);
        self.blocks_read.fetch_add(wanted.len() as u64, Ordering::Relaxed);
        for ((block, buffer), read) in wanted.iter().zip(buffers).zip(read) {
            if read && let Ok(block) = TreeBlock::check(buffer, block, &geometry) {
                self.cache.insert(Arc::new(block));
            }
        }
    }

    /// What the cache did so far.
    pub(crate) fn statistics(&self) -> CacheStatistics {
        let (hits, misses) = self.cache.hits_and_misses();
        CacheStatistics {
            hits,
            misses,
            blocks_read: self.blocks_read.load(Ordering::Relaxed),
            bad_copies: self.bad_copies.load(Ordering::Relaxed),
            bytes: self.cache.bytes(),
        }
    }

    /// Forgets all cached blocks.
    pub(crate) fn drop_cache(&self) {
        self.cache.clear();
    }
}

fn read_fault(error: Error) -> BlockFault {
    BlockFault::Read(Box::new(error))
}

fn is_missing(fault: &BlockFault) -> bool {
    matches!(fault, BlockFault::Read(error) if error.kind() == ErrorKind::MissingDevice)
}

pub(crate) fn block_error(tree: TreeId, address: LogicalAddress, copies: usize, reason: BlockFault) -> Error {
    Error::TreeBlock { tree, address, copies, reason }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use papilio_format::node::{ItemHeader, NodeHeader};
    use papilio_format::{ChecksumType, Generation, Geometry, ItemType, Key, Uuid, objectid};

    /// The geometry of the blocks below.
    pub(crate) fn geometry() -> Geometry {
        Geometry {
            node_size: 4096,
            sector_size: 4096,
            checksum_type: ChecksumType::Crc32c,
            incompat: Default::default(),
            compat_ro: Default::default(),
            metadata_uuid: Uuid::from_u128(7),
            generation: Generation(10),
        }
    }

    /// A leaf of the UUID tree with one item, whose key is its address.
    pub(crate) fn leaf(address: LogicalAddress) -> TreeBlock {
        let geometry = geometry();
        let header = NodeHeader {
            csum: [0; 32],
            fsid: geometry.metadata_uuid,
            address,
            flags: 1 | 1 << 56,
            chunk_tree_uuid: Uuid::nil(),
            generation: Generation(9),
            owner: objectid::UUID_TREE,
            item_count: 1,
            level: 0,
        };
        let data = 256u64.to_le_bytes();
        let item = ItemHeader {
            key: Key::new(address.0, ItemType::UUID_SUBVOL, 1),
            offset: (4096 - NodeHeader::SIZE - data.len()) as u32,
            size: data.len() as u32,
        };
        let mut bytes = BlockBytes::zeroed(4096);
        bytes[..NodeHeader::SIZE].copy_from_slice(&header.to_bytes());
        bytes[NodeHeader::SIZE..][..ItemHeader::SIZE].copy_from_slice(&item.to_bytes());
        bytes[4096 - data.len()..].copy_from_slice(&data);
        let sum = geometry.checksum_type.compute(&bytes[32..]);
        bytes[..32].copy_from_slice(sum.padded());
        TreeBlock::check(bytes, &NodeExpectation::at(address), &geometry).expect("a good leaf")
    }

    #[test]
    fn a_cached_block_still_has_to_meet_expectations() {
        let block = leaf(LogicalAddress(8192));
        let good = NodeExpectation {
            level: Some(0),
            generation: Some(Generation(9)),
            owner: Some(objectid::UUID_TREE),
            first_key: Some(Key::new(8192, ItemType::UUID_SUBVOL, 1)),
            ..NodeExpectation::at(LogicalAddress(8192))
        };
        assert_eq!(block.meets(&good), Ok(()));
        for bad in [
            NodeExpectation { level: Some(1), ..good },
            NodeExpectation { generation: Some(Generation(8)), ..good },
            NodeExpectation { owner: Some(objectid::EXTENT_TREE), ..good },
            NodeExpectation { first_key: Some(Key::MIN), ..good },
        ] {
            assert!(block.meets(&bad).is_err(), "{bad:?}");
        }
        assert!(block.stays_below(Some(Key::new(8192, ItemType::UUID_SUBVOL, 1))).is_err());
        assert!(block.stays_below(Some(Key::new(8192, ItemType::UUID_SUBVOL, 2))).is_ok());
    }
}
