//! A whole new file system in memory: the number, addresses and content of its blocks.
//!
//! Owns [`MkfsLayout`]. The content of the trees depends on the addresses of blocks (extent tree,
//! free-space tree, root items), and the number of blocks on the content. So the items are made and
//! distributed repeatedly, until the result does not change.
//!
//! **Invariants**
//! - Blocks of the chunk tree are in the system chunk, all others in the metadata chunk.
//! - No block is where a superblock copy could be.
//! - All blocks have generation [`GENERATION`].
//! - Block groups, free space, extent items and the superblock agree to the byte.
//!
//! Counterparts: btrfs-progs' `make_btrfs` (`mkfs/common.c`) and its caller in `mkfs/main.c`.

use super::block::{BlockEncoder, Items, Shape};
use super::chunks::{Chunk, ChunkLayout, DeviceLocation};
use super::facts::{Facts, GENERATION, TreePlace};
use super::features::MkfsFeature;
use super::options::Choice;
use super::rows::ChunkContent;
use super::trees;
use papilio_engine::errors::Result;
use papilio_format::checksum::CHECKSUM_SIZE;
use papilio_format::features::SuperblockFlags;
use papilio_format::items::device::DeviceItem;
use papilio_format::key::{ItemType, Key};
use papilio_format::objectid;
use papilio_format::superblock::{
    Geometry, LABEL_SIZE, MAGIC, MAGIC_TEMPORARY, RawSuperblock, RootBackup, SYSTEM_CHUNK_ARRAY_SIZE,
    superblock_offset,
};
use papilio_format::{LogicalAddress, Superblock, TreeId, Uuid};

/// More rounds than any choice needs. Except with small blocks, the second round changes nothing.
const MAX_ROUNDS: usize = 8;

/// A new file system: tree blocks or parity rows with the places of their copies, and superblocks.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MkfsLayout {
    pub(super) chunks: ChunkLayout,
    pub(super) blocks: Vec<(Vec<DeviceLocation>, Vec<u8>)>,
    /// The superblock of each device, by devid from 1 on.
    pub(super) superblocks: Vec<Superblock>,
}

impl MkfsLayout {
    /// Lays out a file system on devices of `totals` bytes: whole sectors, and at least the minimum
    /// size.
    ///
    /// # Errors
    /// As [`ChunkLayout::new`].
    pub(super) fn new(totals: &[u64], choice: &Choice) -> Result<Self> {
        Ok(Self::with_chunks(ChunkLayout::new(totals, choice)?, totals, choice))
    }

    /// Lays out a file system with these chunks, of which the longest of the system and of metadata
    /// have room for all blocks.
    pub(super) fn with_chunks(chunks: ChunkLayout, totals: &[u64], choice: &Choice) -> Self {
        let (places, items) = settle(totals, choice, &chunks);
        let facts = Facts { choice, chunks: &chunks, places: &places, totals };
        let superblocks: Vec<_> = facts.device_items().map(|device| superblock(&facts, device)).collect();
        let geometry = superblocks[0].geometry();
        let blocks = encode(&facts, &items, &geometry);
        Self { chunks, blocks, superblocks }
    }
}

/// Returns the trees of a file system, in the order of their blocks' addresses.
fn tree_ids(choice: &Choice) -> Vec<TreeId> {
    let mut ids = vec![
        objectid::CHUNK_TREE,
        objectid::ROOT_TREE,
        objectid::EXTENT_TREE,
        objectid::DEV_TREE,
        objectid::FS_TREE,
        objectid::CSUM_TREE,
        objectid::UUID_TREE,
        objectid::DATA_RELOC_TREE,
    ];
    if choice.has(MkfsFeature::FreeSpaceTree) {
        ids.push(objectid::FREE_SPACE_TREE);
    }
    if choice.has(MkfsFeature::BlockGroupTree) {
        ids.push(objectid::BLOCK_GROUP_TREE);
    }
    if choice.has(MkfsFeature::Quota) || choice.has(MkfsFeature::SimpleQuota) {
        ids.push(objectid::QUOTA_TREE);
    }
    ids
}

/// Makes and distributes items until they get the places for which they were made.
fn settle(totals: &[u64], choice: &Choice, chunks: &ChunkLayout) -> (Vec<TreePlace>, Vec<Items>) {
    let ids = tree_ids(choice);
    let mut shapes = vec![Shape::default(); ids.len()];
    for _ in 0..MAX_ROUNDS {
        let places = place(&ids, &shapes, choice, chunks);
        let facts = Facts { choice, chunks, places: &places, totals };
        let items: Vec<Items> = ids.iter().map(|id| trees::items(*id, &facts)).collect();
        let found: Vec<_> = items.iter().map(|items| Shape::of(items, choice.node_size)).collect();
        if found == shapes {
            return (places, items);
        }
        shapes = found;
    }
    unreachable!("the sizes of items do not depend on the addresses of blocks");
}

/// Allocates the blocks of each tree, one tree after the other.
fn place(ids: &[TreeId], shapes: &[Shape], choice: &Choice, chunks: &ChunkLayout) -> Vec<TreePlace> {
    let mut system = Allocator::new(chunks.system(), choice.node_size);
    let mut metadata = Allocator::new(chunks.metadata(), choice.node_size);
    let place = |(id, shape): (&TreeId, &Shape)| {
        let allocator = if *id == objectid::CHUNK_TREE { &mut system } else { &mut metadata };
        let blocks = (0..shape.blocks()).map(|_| allocator.take()).collect();
        TreePlace { id: *id, shape: shape.clone(), blocks }
    };
    ids.iter().zip(shapes).map(place).collect()
}

/// Allocates blocks from the start of a chunk.
struct Allocator<'a> {
    chunk: &'a Chunk,
    next: LogicalAddress,
    node_size: u64,
}

impl<'a> Allocator<'a> {
    fn new(chunk: &'a Chunk, node_size: u32) -> Self {
        Self { chunk, next: chunk.start, node_size: node_size.into() }
    }

    fn take(&mut self) -> LogicalAddress {
        while self.chunk.meets_superblock(self.next, self.node_size) {
            self.next.0 += self.node_size;
        }
        let taken = self.next;
        self.next.0 += self.node_size;
        assert!(self.next <= self.chunk.end(), "the smallest chunk has space for all blocks");
        taken
    }
}

fn encode(facts: &Facts<'_>, items: &[Items], geometry: &Geometry) -> Vec<(Vec<DeviceLocation>, Vec<u8>)> {
    let encoder = BlockEncoder { geometry, chunk_tree_uuid: facts.choice.uuids.chunk_tree };
    let [mut system, mut metadata] = [facts.chunks.system(), facts.chunks.metadata()].map(ChunkContent::new);
    for (tree, items) in facts.places.iter().zip(items) {
        let is_chunk_tree = tree.id == objectid::CHUNK_TREE;
        let content = if is_chunk_tree { &mut system } else { &mut metadata };
        let encoded = encoder.tree(tree.id, items, &tree.shape, &tree.blocks);
        for (address, bytes) in tree.blocks.iter().zip(encoded) {
            content.add(*address, bytes);
        }
    }
    [system.finish(), metadata.finish()].concat()
}

fn superblock(facts: &Facts<'_>, dev_item: DeviceItem) -> Superblock {
    let choice = facts.choice;
    let root = facts.tree(objectid::ROOT_TREE);
    let chunk_root = facts.tree(objectid::CHUNK_TREE);
    let (sys_chunk_array, sys_chunk_array_size) = system_chunk_array(facts);
    let backup = backup(facts);
    let mut label = [0; LABEL_SIZE];
    label[..choice.label.len()].copy_from_slice(&choice.label);
    let has_free_space_tree = choice.has(MkfsFeature::FreeSpaceTree);
    let raw = RawSuperblock {
        csum: [0; CHECKSUM_SIZE],
        fsid: choice.uuids.fsid,
        bytenr: superblock_offset(0),
        flags: SuperblockFlags::WRITTEN,
        magic: if choice.unfinished { MAGIC_TEMPORARY } else { MAGIC },
        generation: GENERATION,
        root: root.root(),
        chunk_root: chunk_root.root(),
        log_root: LogicalAddress(0),
        log_root_transid: 0,
        total_bytes: facts.total_bytes(),
        bytes_used: backup.bytes_used,
        root_dir_objectid: objectid::ROOT_TREE_DIR,
        num_devices: facts.totals.len() as u64,
        sector_size: choice.sector_size,
        node_size: choice.node_size,
        leaf_size: choice.node_size,
        stripe_size: choice.sector_size,
        sys_chunk_array_size,
        chunk_root_generation: GENERATION,
        compat_flags: 0,
        compat_ro_flags: choice.compat_ro(),
        incompat_flags: choice.incompat(),
        csum_type: choice.checksum as u16,
        root_level: root.shape.level(),
        chunk_root_level: chunk_root.shape.level(),
        log_root_level: 0,
        dev_item,
        label,
        // There is no v1 cache. With u64::MAX the kernel makes one, as before the free-space tree.
        cache_generation: if has_free_space_tree { 0 } else { u64::MAX },
        // The UUID tree has the only subvolume, so that a mount does not rebuild it.
        uuid_tree_generation: GENERATION.0,
        metadata_uuid: choice.uuids.metadata.unwrap_or(Uuid::nil()),
        nr_global_roots: 0,
        reserved: [0; 27],
        sys_chunk_array,
        super_roots: [backup, no_backup(), no_backup(), no_backup()],
        padding: [0; 565],
    };
    let place = superblock_offset(0);
    let unsigned = Superblock::parse_unverified(&raw.to_bytes()).expect("magic and checksum type are right");
    match Superblock::parse_unfinished(&unsigned.to_bytes(place), place) {
        Ok(superblock) => superblock,
        Err(reason) => panic!("a new superblock is invalid: {reason}"),
    }
}

fn system_chunk_array(facts: &Facts<'_>) -> ([u8; SYSTEM_CHUNK_ARRAY_SIZE], u32) {
    let chunk = facts.chunks.system();
    let key = Key::new(objectid::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, chunk.start.0);
    let entry = [&key.to_bytes()[..], &chunk.item().to_bytes()].concat();
    let mut array = [0; SYSTEM_CHUNK_ARRAY_SIZE];
    array[..entry.len()].copy_from_slice(&entry);
    (array, entry.len() as u32)
}

/// Returns the root backup of the first commit.
fn backup(facts: &Facts<'_>) -> RootBackup {
    let root = |id| facts.tree(id).root();
    let level = |id| facts.tree(id).shape.level();
    RootBackup {
        tree_root: root(objectid::ROOT_TREE),
        tree_root_generation: GENERATION,
        chunk_root: root(objectid::CHUNK_TREE),
        chunk_root_generation: GENERATION,
        extent_root: root(objectid::EXTENT_TREE),
        extent_root_generation: GENERATION,
        fs_root: root(objectid::FS_TREE),
        fs_root_generation: GENERATION,
        dev_root: root(objectid::DEV_TREE),
        dev_root_generation: GENERATION,
        csum_root: root(objectid::CSUM_TREE),
        csum_root_generation: GENERATION,
        total_bytes: facts.total_bytes(),
        bytes_used: facts.chunks.chunks.iter().map(|chunk| facts.used(chunk)).sum(),
        num_devices: facts.totals.len() as u64,
        unused_64: [0; 4],
        tree_root_level: level(objectid::ROOT_TREE),
        chunk_root_level: level(objectid::CHUNK_TREE),
        extent_root_level: level(objectid::EXTENT_TREE),
        fs_root_level: level(objectid::FS_TREE),
        dev_root_level: level(objectid::DEV_TREE),
        csum_root_level: level(objectid::CSUM_TREE),
        unused_8: [0; 10],
    }
}

fn no_backup() -> RootBackup {
    RootBackup::parse(&[0; RootBackup::SIZE]).expect("the size of a root backup")
}

#[cfg(test)]
mod tests {
    use super::super::MkfsOptions;
    use super::*;
    use papilio_format::items::chunk::Stripe;
    use papilio_format::{DeviceId, PhysicalAddress};

    #[test]
    fn small_blocks_make_the_root_tree_two_levels_high() {
        let options = MkfsOptions::new().node_size(4096).feature(MkfsFeature::BlockGroupTree, true);
        let layout = MkfsLayout::new(&[256 << 20], &options.resolve(1).unwrap()).unwrap();
        // The root tree has two leaves and a node: 10 trees have 12 blocks.
        assert_eq!((layout.superblocks[0].raw.root_level, layout.blocks.len()), (1, 12));
        assert_eq!(layout.superblocks[0].raw.bytes_used, 12 * 4096);
    }

    #[test]
    fn blocks_avoid_superblocks() {
        let chunk = Chunk {
            start: LogicalAddress(1 << 20),
            length: 1 << 20,
            flags: papilio_format::items::block_group::BlockGroupFlags::METADATA,
            stripe_bytes: 1 << 20,
            stripes: vec![Stripe {
                devid: DeviceId(1),
                offset: PhysicalAddress((64 << 20) - 16384),
                device_uuid: Uuid::nil(),
            }],
            sector_size: 4096,
        };
        let mut allocator = Allocator::new(&chunk, 16384);
        assert_eq!(allocator.take(), chunk.start);
        // The next four blocks are in the superblock's stripe element.
        assert_eq!(allocator.take().0, chunk.start.0 + 5 * 16384);
    }
}
