//! The scan of whole devices for tree blocks.
//!
//! Owns [`scan`], [`BlockScan`] and [`ScanOptions`]. A block counts if its checksum is good. Which
//! file system it is of, the size of its blocks and their checksum algorithm are taken from
//! superblocks, or learned from the first block that fits one of the sizes and algorithms.
//!
//! **Invariants**
//! - Memory is one window of the device, and some 80 bytes for each block found.
//! - Holes of sparse files are skipped. Sectors that cannot be read count as without blocks.
//! - Of items that exist in several generations the newest is kept.
//!
//! **Locks**: none.
//!
//! Kernel counterpart: none; `btrfs-find-root` and `btrfs rescue chunk-recover` scan alike.

use super::candidates::{Candidate, candidates};
use papilio_device::{Advice, Device};
use papilio_engine::btree::SoundLeaves;
use papilio_engine::mount::SoundItems;
use papilio_engine::options::rescue::FoundBlock;
use papilio_format::checksum::CHECKSUM_SIZE;
use papilio_format::features::{CompatRoFeatures, IncompatFeatures};
use papilio_format::items::block_group::{BlockGroupFlags, BlockGroupItem};
use papilio_format::items::chunk::ChunkItem;
use papilio_format::items::device::{DeviceExtent, DeviceItem};
use papilio_format::node::{NodeExpectation, NodeHeader};
use papilio_format::{
    ChecksumType, DeviceId, Generation, Geometry, ItemType, LogicalAddress, Node, PhysicalAddress, Uuid,
    objectid,
};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Bytes that are read at once, besides what a block at the end reaches beyond.
const WINDOW: u64 = 4 << 20;
/// The largest block.
const LARGEST: u64 = 64 << 10;
/// Blocks start at multiples of the smallest sector.
const STEP: u64 = 4096;
/// Bytes that are read at once around a bad sector.
const RETRY: usize = 4096;
/// The sizes of blocks, the usual one first.
const SIZES: [u32; 5] = [16384, 4096, 32768, 65536, 8192];
/// The most file systems whose blocks are told apart on the devices.
const MOST_FAMILIES: usize = 64;

type Callback = Arc<dyn Fn(ScanProgress) -> ControlFlow<()> + Send + Sync>;

/// The progress of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScanProgress {
    /// Bytes scanned, holes included.
    pub done: u64,
    /// Bytes of all devices.
    pub total: u64,
    /// Tree blocks found so far.
    pub blocks: u64,
}

/// Options of a scan.
#[derive(Clone, Default)]
pub struct ScanOptions {
    fsid: Option<Uuid>,
    progress: Option<Callback>,
}

impl ScanOptions {
    /// Returns the defaults: the file system of the superblocks, or with most blocks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Looks for the blocks of the file system with this UUID in its tree blocks only.
    pub fn fsid(mut self, fsid: Uuid) -> Self {
        self.fsid = Some(fsid);
        self
    }

    /// Calls `callback` after every few MiB. If it returns [`ControlFlow::Break`], the scan ends
    /// with what it found so far.
    pub fn progress(
        mut self,
        callback: impl Fn(ScanProgress) -> ControlFlow<()> + Send + Sync + 'static,
    ) -> Self {
        self.progress = Some(Arc::new(callback));
        self
    }
}

impl fmt::Debug for ScanOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScanOptions").field("fsid", &self.fsid).finish_non_exhaustive()
    }
}

/// An item, and the generation of the leaf that it was found in.
pub(crate) type Newest<T> = (Generation, T);

/// The result of a scan for one file system.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BlockScan {
    /// The UUID in tree blocks.
    pub fsid: Uuid,
    /// Bytes of a tree block.
    pub node_size: u32,
    /// The checksum algorithm.
    pub checksum_type: ChecksumType,
    /// All copies of all blocks, in the order of devices and offsets.
    pub blocks: Arc<Vec<FoundBlock>>,
    /// Bytes scanned, without holes.
    pub bytes_read: u64,
    /// Bytes that could not be read.
    pub bytes_unreadable: u64,
    /// Blocks of this file system with a wrong checksum.
    pub damaged: u64,
    /// The UUIDs of other file systems with blocks on the devices, and their number.
    pub others: Vec<(Uuid, u64)>,
    pub(crate) superblocks: Vec<Candidate>,
    pub(crate) chunks: BTreeMap<LogicalAddress, Newest<ChunkItem>>,
    pub(crate) devices: BTreeMap<DeviceId, Newest<DeviceItem>>,
    /// By device and start: the chunk, and the length.
    pub(crate) device_extents: BTreeMap<(DeviceId, PhysicalAddress), Newest<(LogicalAddress, u64)>>,
    /// By start: the length, and the flags.
    pub(crate) block_groups: BTreeMap<LogicalAddress, Newest<(u64, BlockGroupFlags)>>,
}

impl BlockScan {
    fn new(family: &Family) -> Self {
        Self {
            fsid: family.fsid,
            node_size: family.node_size,
            checksum_type: family.checksum_type,
            blocks: Arc::default(),
            bytes_read: 0,
            bytes_unreadable: 0,
            damaged: family.damaged,
            others: Vec::new(),
            superblocks: Vec::new(),
            chunks: family.chunks.clone(),
            devices: family.devices.clone(),
            device_extents: family.device_extents.clone(),
            block_groups: family.block_groups.clone(),
        }
    }

    /// Returns the parameters for reading the blocks that were found.
    pub(crate) fn geometry(&self) -> Geometry {
        geometry(self.fsid, self.node_size, self.checksum_type)
    }

    /// Returns the newest generation of a block.
    pub(crate) fn newest(&self) -> Generation {
        self.blocks.iter().map(|block| block.generation).max().unwrap_or_default()
    }
}

/// The blocks of one file system.
#[derive(Debug)]
struct Family {
    fsid: Uuid,
    node_size: u32,
    checksum_type: ChecksumType,
    blocks: Vec<FoundBlock>,
    damaged: u64,
    chunks: BTreeMap<LogicalAddress, Newest<ChunkItem>>,
    devices: BTreeMap<DeviceId, Newest<DeviceItem>>,
    device_extents: BTreeMap<(DeviceId, PhysicalAddress), Newest<(LogicalAddress, u64)>>,
    block_groups: BTreeMap<LogicalAddress, Newest<(u64, BlockGroupFlags)>>,
}

impl Family {
    fn new(fsid: Uuid, node_size: u32, checksum_type: ChecksumType) -> Self {
        Self {
            fsid,
            node_size,
            checksum_type,
            blocks: Vec::new(),
            damaged: 0,
            chunks: BTreeMap::new(),
            devices: BTreeMap::new(),
            device_extents: BTreeMap::new(),
            block_groups: BTreeMap::new(),
        }
    }

    /// Takes the block at the start of `bytes`, if its checksum is good. Returns its size.
    fn take(&mut self, bytes: &[u8], header: &NodeHeader, device: usize, offset: u64) -> Option<u64> {
        let bytes = bytes.get(..self.node_size as usize)?;
        if !self.checksum_type.verify(&bytes[CHECKSUM_SIZE..], bytes) {
            self.damaged += 1;
            return None;
        }
        let geometry = geometry(self.fsid, self.node_size, self.checksum_type);
        let expected = NodeExpectation::at(header.address);
        let node = Node::check_summed(bytes, &expected, &geometry).ok();
        // One bad item does not hide the others.
        let partial = match node {
            Some(_) => None,
            None => SoundItems.sound_leaf(header.owner, bytes, &expected, None, &geometry),
        };
        let node = node.or_else(|| partial.as_ref().map(|(leaf, _)| leaf.view()));
        let keys = node.filter(|node| !node.is_empty()).map(|node| (node.key(0), node.key(node.len() - 1)));
        self.blocks.push(FoundBlock::new(header, keys, device, PhysicalAddress(offset)));
        if let Some(node) = node.filter(Node::is_leaf) {
            self.take_items(&node, header);
        }
        Some(u64::from(self.node_size))
    }

    /// Keeps the items that place logical addresses on devices.
    fn take_items(&mut self, node: &Node<'_>, header: &NodeHeader) {
        let generation = header.generation;
        for slot in 0..node.len() {
            let (key, data) = (node.key(slot), node.item(slot));
            match (header.owner, key.item_type) {
                (objectid::CHUNK_TREE, ItemType::CHUNK_ITEM) => {
                    if let Ok(chunk) = ChunkItem::parse(data) {
                        keep(&mut self.chunks, LogicalAddress(key.offset), generation, chunk);
                    }
                }
                (objectid::CHUNK_TREE, ItemType::DEV_ITEM) => {
                    if let Ok(item) = DeviceItem::parse(data) {
                        keep(&mut self.devices, item.devid, generation, item);
                    }
                }
                (objectid::DEV_TREE, ItemType::DEV_EXTENT) => {
                    if let Ok(extent) = DeviceExtent::parse(data) {
                        let place = (DeviceId(key.objectid), PhysicalAddress(key.offset));
                        let extent = (extent.chunk_offset, extent.length);
                        keep(&mut self.device_extents, place, generation, extent);
                    }
                }
                (objectid::EXTENT_TREE | objectid::BLOCK_GROUP_TREE, ItemType::BLOCK_GROUP_ITEM) => {
                    if let Ok(group) = BlockGroupItem::parse(data) {
                        let start = LogicalAddress(key.objectid);
                        keep(&mut self.block_groups, start, generation, (key.offset, group.flags));
                    }
                }
                _ => {}
            }
        }
    }
}

fn keep<K: Ord, T>(map: &mut BTreeMap<K, Newest<T>>, key: K, generation: Generation, item: T) {
    let is_newer = map.get(&key).is_none_or(|(known, _)| *known <= generation);
    if is_newer {
        map.insert(key, (generation, item));
    }
}

fn geometry(fsid: Uuid, node_size: u32, checksum_type: ChecksumType) -> Geometry {
    Geometry {
        node_size,
        sector_size: STEP as u32,
        checksum_type,
        incompat: IncompatFeatures::SUPPORTED,
        compat_ro: CompatRoFeatures::empty(),
        metadata_uuid: fsid,
        generation: Generation(u64::MAX),
    }
}

/// Scans the devices. Returns what was found of the file system that the options or the good
/// superblocks name, or of the one with most blocks; `None` if there is no block.
pub fn scan(devices: &[Arc<dyn Device>], options: &ScanOptions) -> Option<BlockScan> {
    let superblocks: Vec<Candidate> =
        devices.iter().enumerate().flat_map(|(number, device)| candidates(&**device, number)).collect();
    let mut scanner = Scanner {
        options,
        families: Vec::new(),
        total: devices.iter().map(|device| device.size()).sum(),
        done: 0,
        read: 0,
        unreadable: 0,
        found: 0,
    };
    // Good superblocks are asked first: a torn one may name anything.
    for good in [true, false] {
        for candidate in superblocks.iter().filter(|candidate| candidate.is_good() == good) {
            if let Some((fsid, node_size, checksum_type)) = candidate.identity() {
                scanner.know(fsid, node_size, checksum_type);
            }
        }
    }
    for (number, device) in devices.iter().enumerate() {
        if scanner.device(number, &**device).is_break() {
            break;
        }
    }
    scanner.finish(superblocks)
}

struct Scanner<'a> {
    options: &'a ScanOptions,
    families: Vec<Family>,
    total: u64,
    done: u64,
    read: u64,
    unreadable: u64,
    found: u64,
}

impl Scanner<'_> {
    fn know(&mut self, fsid: Uuid, node_size: u32, checksum_type: ChecksumType) {
        let is_wanted = self.options.fsid.is_none_or(|wanted| wanted == fsid);
        if is_wanted && !self.families.iter().any(|family| family.fsid == fsid) {
            self.families.push(Family::new(fsid, node_size, checksum_type));
        }
    }

    fn device(&mut self, number: usize, device: &dyn Device) -> ControlFlow<()> {
        let size = device.size();
        let before = self.done;
        let mut window = vec![0; (WINDOW + LARGEST) as usize];
        let mut at = 0;
        device.advise(PhysicalAddress(0), size, Advice::Sequential);
        while at < size {
            let Some(data) = device.next_data(PhysicalAddress(at)) else { break };
            at = at.max(data.0 - data.0 % STEP);
            if at >= size {
                break;
            }
            let length = (WINDOW + LARGEST).min(size - at) as usize;
            self.fill(device, &mut window[..length], at);
            at = self.window(number, &window[..length], at);
            self.done = before + at.min(size);
            self.report()?;
        }
        self.done = before + size;
        self.report()
    }

    fn report(&self) -> ControlFlow<()> {
        let progress = ScanProgress { done: self.done, total: self.total, blocks: self.found };
        self.options.progress.as_ref().map_or(ControlFlow::Continue(()), |callback| callback(progress))
    }

    /// Reads a window, with zeros in place of sectors that cannot be read.
    fn fill(&mut self, device: &dyn Device, window: &mut [u8], at: u64) {
        self.read += window.len() as u64;
        if device.read_at(window, PhysicalAddress(at)).is_ok() {
            return;
        }
        for (number, part) in window.chunks_mut(RETRY).enumerate() {
            let offset = PhysicalAddress(at + (number * RETRY) as u64);
            if device.read_at(part, offset).is_err() {
                part.fill(0);
                self.unreadable += part.len() as u64;
            }
        }
    }

    /// Finds the blocks that start in the window. Returns where the next window starts.
    fn window(&mut self, number: usize, bytes: &[u8], start: u64) -> u64 {
        let mut at = 0;
        while at < WINDOW && at < bytes.len() as u64 {
            let rest = &bytes[at as usize..];
            at += self.block(number, rest, start + at).unwrap_or(STEP);
        }
        start + at
    }

    /// Takes the block at the start of `bytes`, if there is one. Returns its size.
    fn block(&mut self, device: usize, bytes: &[u8], offset: u64) -> Option<u64> {
        let header = NodeHeader::parse_prefix(bytes).ok()?.0;
        if !is_plausible(&header) {
            return None;
        }
        let known = self.families.iter().position(|family| family.fsid == header.fsid);
        let family = match known {
            Some(known) => known,
            None => self.learn(bytes, &header)?,
        };
        let taken = self.families[family].take(bytes, &header, device, offset)?;
        self.found += 1;
        Some(taken)
    }

    /// Learns size and checksum algorithm of a file system from one of its blocks.
    fn learn(&mut self, bytes: &[u8], header: &NodeHeader) -> Option<usize> {
        let is_wanted = self.options.fsid.is_none_or(|wanted| wanted == header.fsid);
        if !is_wanted || self.families.len() >= MOST_FAMILIES {
            return None;
        }
        let fits = |size: &u32, algorithm: ChecksumType| {
            let bytes = bytes.get(..*size as usize);
            bytes.is_some_and(|bytes| algorithm.verify(&bytes[CHECKSUM_SIZE..], bytes))
        };
        let (size, algorithm) = SIZES
            .iter()
            .flat_map(|size| ChecksumType::ALL.map(|algorithm| (size, algorithm)))
            .find(|(size, algorithm)| fits(size, *algorithm))?;
        self.families.push(Family::new(header.fsid, *size, algorithm));
        Some(self.families.len() - 1)
    }

    fn finish(mut self, superblocks: Vec<Candidate>) -> Option<BlockScan> {
        let named = |fsid: Uuid| {
            superblocks.iter().any(|candidate| {
                candidate.is_good() && candidate.identity().is_some_and(|(named, ..)| named == fsid)
            })
        };
        self.families.retain(|family| !family.blocks.is_empty());
        self.families.sort_by_key(|family| std::cmp::Reverse((named(family.fsid), family.blocks.len())));
        let mut families = self.families.into_iter();
        let mut family = families.next()?;
        let blocks = Arc::new(std::mem::take(&mut family.blocks));
        Some(BlockScan {
            blocks,
            bytes_read: self.read,
            bytes_unreadable: self.unreadable,
            others: families.map(|other| (other.fsid, other.blocks.len() as u64)).collect(),
            superblocks,
            ..BlockScan::new(&family)
        })
    }
}

/// Returns whether bytes may be the header of a tree block: cheap, and true for few others.
fn is_plausible(header: &NodeHeader) -> bool {
    header.flags >> 56 == 1
        && header.flags & ((1 << 56) - 1) < 4
        && header.level < 8
        && header.address.is_aligned(STEP)
        && header.generation.0 != 0
        && header.owner.0 != 0
        && !header.fsid.is_nil()
        && u64::from(header.item_count) <= LARGEST / 25
}
