//! The forest: all trees of a file system, read through one volume and one cache.
//!
//! Owns [`Forest`], which returns the checked block for an expected address: from the cache, else
//! from the first good copy.
//!
//! **Locks**: only the cache's, and those of [`super::block_reads`].
//!
//! Kernel counterparts: `read_tree_block`, `btree_read_extent_buffer_pages` (`fs/btrfs/disk-io.c`),
//! `readahead_tree_block` (`fs/btrfs/extent_io.c`).

use crate::btree::block::TreeBlock;
use crate::btree::block_bytes::BlockBytes;
use crate::btree::block_reads::{BlockReads, must_not_wait};
use crate::btree::cache::NodeCache;
use crate::errors::{BlockFault, Error, ErrorKind, Result};
use crate::options::rescue::{FaultList, ItemFault};
use crate::volume::{LogicalRead, Volume};
use papilio_format::checksum::CHECKSUM_SIZE;
use papilio_format::{Geometry, Key, LogicalAddress, NodeExpectation, TreeId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Reads and caches the blocks of all trees.
#[derive(Debug)]
pub struct Forest {
    volume: Arc<Volume>,
    cache: NodeCache,
    reads: BlockReads,
    blocks_read: AtomicU64,
    bad_copies: AtomicU64,
    /// Whether checksums of blocks are not looked at.
    ignore_csums: bool,
    stand_ins: Option<Box<dyn StandIns>>,
    sound_leaves: Option<Box<dyn SoundLeaves>>,
    faults: Arc<FaultList>,
}

/// Leaves with the sound items of bad ones.
pub trait SoundLeaves: std::fmt::Debug + Send + Sync {
    /// Returns a leaf with those items of the bad leaf `bytes` that are sound, below `bound`, and
    /// the faults of the others; `None` if it is no leaf that `expected` describes.
    fn sound_leaf(
        &self,
        tree: TreeId,
        bytes: &[u8],
        expected: &NodeExpectation,
        bound: Option<Key>,
        geometry: &Geometry,
    ) -> Option<(TreeBlock, Vec<ItemFault>)>;
}

/// The parts of a forest that read a damaged file system.
#[derive(Debug, Default)]
pub struct RescueParts {
    /// Whether blocks with wrong checksums are accepted.
    pub(crate) ignore_csums: bool,
    /// Blocks that replace those that cannot be read.
    pub(crate) stand_ins: Option<Box<dyn StandIns>>,
    /// Leaves that replace bad ones.
    pub(crate) sound_leaves: Option<Box<dyn SoundLeaves>>,
    /// The faults that were met.
    pub(crate) faults: Arc<FaultList>,
}

/// Blocks that take the place of those that cannot be read.
pub trait StandIns: std::fmt::Debug + Send + Sync {
    /// Returns a block of `tree` in the place of the one that `expected` describes. All its keys
    /// are below `bound`.
    fn stand_in(
        &self,
        tree: TreeId,
        expected: &NodeExpectation,
        bound: Option<Key>,
    ) -> Option<Arc<TreeBlock>>;

    /// Returns whether blocks below the roots may be replaced, too.
    fn replaces_inner_blocks(&self) -> bool;

    /// Returns whether a key of `tree` from `first` to `last` would be below a block that was
    /// replaced.
    fn covers(&self, tree: TreeId, first: Key, last: Key) -> bool;
}

/// Statistics of the tree block cache since its creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheStatistics {
    /// Lookups answered from memory.
    pub hits: u64,
    /// Lookups that had to read.
    pub misses: u64,
    /// Blocks read from devices; each copy counts.
    pub blocks_read: u64,
    /// Number of times that a copy was bad while another was good.
    pub bad_copies: u64,
    /// Bytes cached.
    pub bytes: usize,
}

impl Forest {
    /// Creates a forest over `volume` with a cache of at most `cache_bytes`, including blocks that
    /// are not yet on disk.
    pub fn new(volume: Arc<Volume>, cache_bytes: usize) -> Arc<Self> {
        Self::for_rescue(volume, cache_bytes, RescueParts::default())
    }

    /// As [`Forest::new`], with parts that read a damaged file system.
    pub(crate) fn for_rescue(volume: Arc<Volume>, cache_bytes: usize, parts: RescueParts) -> Arc<Self> {
        let RescueParts { ignore_csums, stand_ins, sound_leaves, faults } = parts;
        Arc::new(Self {
            volume,
            cache: NodeCache::new(cache_bytes),
            reads: BlockReads::default(),
            blocks_read: AtomicU64::new(0),
            bad_copies: AtomicU64::new(0),
            ignore_csums,
            stand_ins,
            sound_leaves,
            faults,
        })
    }

    /// Returns the parts with faults that were read so far.
    pub fn faults(&self) -> &Arc<FaultList> {
        &self.faults
    }

    /// Returns whether the sound items of bad leaves are read.
    pub fn has_sound_leaves(&self) -> bool {
        self.sound_leaves.is_some()
    }

    /// Returns whether blocks below the roots are replaced where they cannot be read.
    pub fn replaces_inner_blocks(&self) -> bool {
        self.stand_ins.as_ref().is_some_and(|stand_ins| stand_ins.replaces_inner_blocks())
    }

    /// Returns a leaf with the sound items of the first copy that has any, below `bound`.
    pub(super) fn sound_leaf(
        &self,
        tree: TreeId,
        expected: &NodeExpectation,
        bound: Option<Key>,
    ) -> Option<TreeBlock> {
        let maker = self.sound_leaves.as_ref()?;
        let geometry = self.volume.geometry();
        for copy in self.volume.copies_in_order(expected.address).ok()? {
            let mut bytes = vec![0; geometry.node_size as usize];
            if self.volume.read_copy(expected.address, &mut bytes, copy).is_err() {
                continue;
            }
            let sum = geometry.checksum_type;
            if !self.ignore_csums && !sum.verify(&bytes[CHECKSUM_SIZE..], &bytes) {
                continue;
            }
            if let Some((leaf, faults)) = maker.sound_leaf(tree, &bytes, expected, bound, &geometry) {
                self.faults.add(faults);
                return Some(leaf);
            }
        }
        None
    }

    /// Returns the block that takes the place of one that cannot be read, or else `error`.
    pub(super) fn stand_in(
        &self,
        tree: TreeId,
        expected: &NodeExpectation,
        bound: Option<Key>,
        error: Error,
    ) -> Result<Arc<TreeBlock>> {
        let found = self.stand_ins.as_ref().and_then(|all| all.stand_in(tree, expected, bound));
        found.ok_or(error)
    }

    /// Returns whether a key of `tree` from `first` to `last` would be below a stand-in, so that it
    /// is not certain that its item is current.
    pub fn is_uncertain(&self, tree: TreeId, first: Key, last: Key) -> bool {
        self.stand_ins.as_ref().is_some_and(|all| all.covers(tree, first, last))
    }

    /// Returns the underlying volume.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Returns the block that `expected` describes, met while walking `tree`.
    ///
    /// # Errors
    /// [`Error::TreeBlock`] with the fault of the first copy, if no copy is good.
    pub fn block(&self, tree: TreeId, expected: &NodeExpectation) -> Result<Arc<TreeBlock>> {
        if let Some(block) = self.cached(tree, expected)? {
            return Ok(block);
        }
        if must_not_wait() {
            return Err(block_error(tree, expected.address, 0, BlockFault::NotCached));
        }
        let reading = self.reads.begin(expected.address);
        // Another thread may have read it meanwhile.
        if (reading.is_none() || self.cache.contains(expected.address))
            && let Some(block) = self.cached(tree, expected)?
        {
            return Ok(block);
        }
        let block = Arc::new(self.read_any_copy(tree, expected)?);
        self.cache.insert(Arc::clone(&block));
        Ok(block)
    }

    /// Returns the block from the cache, if it is there.
    ///
    /// # Errors
    /// [`Error::TreeBlock`] if the cached block is not what `expected` says.
    fn cached(&self, tree: TreeId, expected: &NodeExpectation) -> Result<Option<Arc<TreeBlock>>> {
        let Some(block) = self.cache.get(expected.address) else { return Ok(None) };
        match block.meets(expected) {
            Ok(()) => Ok(Some(block)),
            // The cache may still hold the previous block at a reused address.
            Err(reason) if block.generation() == expected.generation.unwrap_or(block.generation()) => {
                Err(block_error(tree, expected.address, 1, reason.into()))
            }
            Err(_) => {
                self.cache.remove(expected.address);
                Ok(None)
            }
        }
    }

    /// Caches a block that has just been written, in place of the previous block at its address.
    pub(crate) fn written(&self, block: &Arc<TreeBlock>) {
        self.cache.remove(block.address());
        // Links would keep the whole subtree in memory.
        let clean = if block.level() == 0 { Arc::clone(block) } else { Arc::new(block.without_links()) };
        self.cache.insert(clean);
    }

    /// Counts `bytes` of a new dirty block against the cache's limit, until
    /// [`Forest::unwritten_shrank`].
    pub(crate) fn unwritten_grew(&self, bytes: u64) {
        self.cache.unwritten_grew(bytes as usize);
    }

    /// Counts `bytes` less of dirty blocks: they were written or dropped.
    pub(crate) fn unwritten_shrank(&self, bytes: u64) {
        self.cache.unwritten_shrank(bytes as usize);
    }

    /// Reads one copy after the other until one is good.
    fn read_any_copy(&self, tree: TreeId, expected: &NodeExpectation) -> Result<TreeBlock> {
        let address = expected.address;
        let fail = |copies, reason| block_error(tree, address, copies, reason);
        let order = self.volume.copies_in_order(address).map_err(|error| fail(0, read_fault(error)))?;
        let copies = order.len();
        let mut first = None;
        for copy in order {
            match self.read_copy(expected, copy) {
                Ok(block) => {
                    // A known missing device would otherwise be reported for every block.
                    if let Some(fault) = first.filter(|fault| !is_missing(fault)) {
                        self.bad_copies.fetch_add(1, Ordering::Relaxed);
                        self.volume.note_bad_copy(address);
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
        if let Some(leaf) = self.sound_leaf(tree, expected, None) {
            return Ok(leaf);
        }
        self.volume.note_bad_copy(address);
        Err(fail(copies, fault))
    }

    /// Reads and checks one copy, bypassing the cache.
    pub fn read_copy(&self, expected: &NodeExpectation, copy: usize) -> Result<TreeBlock, BlockFault> {
        let geometry = self.volume.geometry();
        let mut bytes = BlockBytes::zeroed(geometry.node_size as usize);
        self.blocks_read.fetch_add(1, Ordering::Relaxed);
        self.volume.read_copy(expected.address, &mut bytes, copy).map_err(read_fault)?;
        self.volume.adopt_block(&mut bytes);
        if self.ignore_csums {
            return Ok(TreeBlock::check_without_csum(bytes, expected, &geometry)?);
        }
        Ok(TreeBlock::check(bytes, expected, &geometry)?)
    }

    /// Reads the blocks that are not cached, in one batch. Ignores unreadable blocks;
    /// [`Forest::block`] reports them if they are needed.
    pub fn prefetch(&self, expected: impl Iterator<Item = NodeExpectation>) {
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
        for ((block, mut buffer), read) in wanted.iter().zip(buffers).zip(read) {
            if read {
                self.volume.adopt_block(&mut buffer);
            }
            if read && let Ok(block) = TreeBlock::check(buffer, block, &geometry) {
                self.cache.insert(Arc::new(block));
            }
        }
    }

    /// Returns the statistics of the cache.
    pub fn statistics(&self) -> CacheStatistics {
        let (hits, misses) = self.cache.hits_and_misses();
        CacheStatistics {
            hits,
            misses,
            blocks_read: self.blocks_read.load(Ordering::Relaxed),
            bad_copies: self.bad_copies.load(Ordering::Relaxed),
            bytes: self.cache.bytes(),
        }
    }

    /// Drops all cached blocks.
    pub fn drop_cache(&self) {
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
    use papilio_format::{ChecksumType, Generation, Geometry, ItemType, Uuid, objectid};

    /// The geometry of the test blocks.
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

    /// Returns a leaf of the UUID tree with one item, whose objectid is the leaf's address.
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
    fn cached_blocks_are_checked_against_expectations() {
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
