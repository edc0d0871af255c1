//! Trees for tests: a volume of one chunk in memory, and an allocator that only counts blocks.
//!
//! Owns [`TestForest`] and [`TestAllocator`].

use super::{
    BlockIdentity, Forest, LiveTree, NodeAllocator, RootRecord, Tree, TreeBlock, dirty_blocks, sealed,
};
use crate::errors::Error;
use crate::errors::Result;
use crate::options::OpenOptions;
use crate::volume::Volume;
use crate::volume::testing::{CHUNK_START, chunk_item, superblock, write_superblock};
use papilio_device::{Device, MemoryDevice};
use papilio_format::features::IncompatFeatures;
use papilio_format::items::chunk::RaidProfile;
use papilio_format::items::root::RawRootItem;
use papilio_format::node::NodeHeader;
use papilio_format::{Generation, Key, LogicalAddress, PhysicalAddress, TreeId};
use papilio_locks::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Size of the only chunk in bytes; the memory device allocates on write.
pub(crate) const CHUNK_LENGTH: u64 = 4 << 30;

/// A volume in memory and trees on it.
pub(crate) struct TestForest {
    pub(crate) device: Arc<MemoryDevice>,
    pub(crate) volume: Arc<Volume>,
    pub(crate) forest: Arc<Forest>,
    pub(crate) allocator: TestAllocator,
}

/// Allocates ascending addresses and counts blocks.
#[derive(Debug)]
pub(crate) struct TestAllocator {
    node_size: u64,
    next: AtomicU64,
    stamp: AtomicU64,
    /// Blocks in use, with the tree that each was allocated for.
    pub(crate) blocks: Mutex<BTreeMap<LogicalAddress, TreeId>>,
    /// Number of allocations left before [`Error::NoSpace`].
    pub(crate) left: AtomicU64,
}

impl NodeAllocator for TestAllocator {
    fn generation(&self) -> Generation {
        Generation(10)
    }

    fn stamp(&self) -> u64 {
        self.stamp.load(Ordering::Relaxed)
    }

    fn allocate(&self, tree: &LiveTree, _level: u8, _first_key: &Key) -> Result<LogicalAddress> {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 0 {
            self.left.store(0, Ordering::Relaxed);
            return Err(Error::NoSpace { what: "metadata" });
        }
        let address = LogicalAddress(self.next.fetch_add(self.node_size, Ordering::Relaxed));
        self.blocks.lock().insert(address, tree.id());
        Ok(address)
    }

    fn free(&self, _tree: &LiveTree, block: &TreeBlock) -> Result<()> {
        let freed = self.blocks.lock().remove(&block.address());
        assert!(freed.is_some(), "block {} is freed once", block.address());
        Ok(())
    }

    fn copied(&self, tree: &LiveTree, old: &TreeBlock, _new: &TreeBlock) -> Result<()> {
        self.free(tree, old)
    }
}

impl TestForest {
    /// Creates a forest with nodes of `node_size` bytes and NO_HOLES, skinny metadata and extended
    /// references.
    pub(crate) fn new(node_size: u32) -> Self {
        let chunk = chunk_item(RaidProfile::Single, 1, CHUNK_LENGTH);
        let mut raw = superblock(1, 1, &chunk);
        raw.node_size = node_size;
        raw.leaf_size = node_size;
        raw.total_bytes = CHUNK_LENGTH + (16 << 20);
        raw.dev_item.total_bytes = raw.total_bytes;
        raw.incompat_flags = IncompatFeatures::MIXED_BACKREF
            | IncompatFeatures::BIG_METADATA
            | IncompatFeatures::SKINNY_METADATA
            | IncompatFeatures::EXTENDED_IREF
            | IncompatFeatures::NO_HOLES;
        Self::of(raw)
    }

    /// Creates a forest on the file system that the superblock describes, which names one chunk.
    pub(crate) fn of(raw: papilio_format::superblock::RawSuperblock) -> Self {
        let device = Arc::new(MemoryDevice::new(raw.total_bytes));
        write_superblock(&*device, &raw);
        let volume = Volume::open(vec![device.clone() as Arc<dyn Device>], &OpenOptions::new()).unwrap();
        let volume = Arc::new(volume);
        let forest = Forest::new(Arc::clone(&volume), 16 << 20);
        let allocator = TestAllocator {
            node_size: raw.node_size.into(),
            next: AtomicU64::new(CHUNK_START.0),
            stamp: AtomicU64::new(1),
            blocks: Mutex::default(),
            left: AtomicU64::new(u64::MAX),
        };
        Self { device, volume, forest, allocator }
    }

    /// Creates an empty tree.
    pub(crate) fn live_tree(&self, id: TreeId) -> LiveTree {
        let identity = BlockIdentity {
            address: LogicalAddress(
                self.allocator.next.fetch_add(self.allocator.node_size, Ordering::Relaxed),
            ),
            generation: self.allocator.generation(),
            owner: id,
            stamp: self.allocator.stamp(),
        };
        self.allocator.blocks.lock().insert(identity.address, id);
        let root = self.leaf(&identity);
        let item = RawRootItem::parse(&[0; RawRootItem::SIZE]).unwrap();
        LiveTree::of_block(&self.forest, id, root, Some(RootRecord { item, key_offset: 0 }))
    }

    /// Creates an empty leaf.
    pub(crate) fn leaf(&self, identity: &BlockIdentity) -> Arc<TreeBlock> {
        let header = NodeHeader {
            csum: [0; 32],
            fsid: self.volume.geometry().metadata_uuid,
            address: identity.address,
            flags: 0,
            chunk_tree_uuid: papilio_format::Uuid::nil(),
            generation: identity.generation,
            owner: identity.owner,
            item_count: 0,
            level: 0,
        };
        let node_size = self.volume.geometry().node_size as usize;
        Arc::new(TreeBlock::empty(&header.to_bytes(), node_size, identity, 0))
    }

    /// Freezes the tree and returns its state.
    pub(crate) fn freeze(&self, tree: &LiveTree) -> Tree {
        let stamp = self.allocator.stamp.fetch_add(1, Ordering::Relaxed);
        tree.freeze(stamp)
    }

    /// Freezes the tree, writes its dirty blocks to the device and drops them from memory. Returns
    /// their number.
    pub(crate) fn write_out(&self, tree: &LiveTree) -> usize {
        let stamp = self.allocator.stamp.fetch_add(1, Ordering::Relaxed);
        let frozen = tree.freeze(stamp);
        let mut blocks = Vec::new();
        dirty_blocks(&frozen.root_block().unwrap(), &mut blocks);
        let mut bytes = vec![0; self.allocator.node_size as usize];
        for block in &blocks {
            sealed(block, &self.volume.geometry(), &mut bytes).expect("written blocks pass the check");
            let (_, place): (_, PhysicalAddress) = self.volume.place_of(block.address(), 0).unwrap();
            self.device.write_at(&bytes, place).unwrap();
        }
        tree.settle(stamp);
        blocks.len()
    }
}
