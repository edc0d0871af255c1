//! A superblock in memory for a file system whose own leads nowhere.
//!
//! Owns [`rebuild`] and [`Rebuilt`]. The order:
//! 1. the best superblock: a good copy, a torn one, or one made of what the blocks say;
//! 2. the devices: by their superblocks, else by the places of their blocks;
//! 3. the chunk map: the chunk tree if it can be read, else [`super::chunks`];
//! 4. the root tree: that of the superblock if it can be read, else the newest that is whole
//!    ([`RootSearch`]).
//!
//! **Invariant**: nothing is written; a rebuilt file system is for reading only.

use super::block_scan::BlockScan;
use super::candidates::Candidate;
use super::chunks::{ChunkSources, rebuild_chunks};
use super::root_choice::{ChosenRoot, RootChoice, RootSearch};
use super::striped::Evidence;
use super::tree_roots::{FoundRoot, pointer};
use papilio_device::Device;
use papilio_engine::btree::{Forest, RootPointer};
use papilio_engine::errors::{Error, Result};
use papilio_engine::mount::{read_chunk_tree, rescue_forest};
use papilio_engine::options::OpenOptions;
use papilio_engine::options::older::{OlderCause, OlderState, UnreplayedLog};
use papilio_engine::options::rescue::{FoundBlock, FoundChunks, FoundTrees, TreeRootChoice};
use papilio_engine::volume::{Chunk, Volume};
use papilio_format::features::IncompatFeatures;
use papilio_format::items::chunk::ChunkItem;
use papilio_format::items::device::DeviceItem;
use papilio_format::superblock::{MAGIC, RawSuperblock, SUPERBLOCK_SIZE};
use papilio_format::{DeviceId, Generation, LogicalAddress, Superblock, Uuid, objectid};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Blocks of a device that are compared with the chunks to find out which device it is.
const VOTES: usize = 4096;
/// Bytes of the cache of tree blocks.
const CACHE_BYTES: usize = 64 << 20;

/// Where the superblock in use comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SuperblockSource {
    /// A good copy.
    Good {
        /// The device, counted from 0.
        device: usize,
        /// The copy, 0 to 2.
        copy: usize,
    },
    /// A copy with a fault.
    Torn {
        /// The device, counted from 0.
        device: usize,
        /// The copy, 0 to 2.
        copy: usize,
        /// The fault.
        fault: String,
    },
    /// No copy: it was made of what the tree blocks say.
    Made,
}

/// A file system that was rebuilt in memory, for reading.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Rebuilt {
    /// Where the superblock comes from.
    pub superblock: SuperblockSource,
    /// The sources of the chunk map; `None` if the chunk tree can be read.
    pub chunks: Option<ChunkSources>,
    /// The chunks, if they were rebuilt: start, length, flags and stripes.
    pub(crate) chunk_items: Vec<(LogicalAddress, ChunkItem)>,
    /// The root tree, if it is not the superblock's.
    pub root: Option<FoundRoot>,
    /// Why that root was taken, and the other root blocks of its generation, if there are any.
    pub rivals: Option<(RootChoice, Vec<LogicalAddress>)>,
    /// Whether newer tree blocks than that root were found: the state is not that of the last
    /// commit.
    pub is_older: bool,
    options: OpenOptions,
}

impl Rebuilt {
    /// Returns the options that open it, with the same devices in the same order.
    pub fn options(&self) -> &OpenOptions {
        &self.options
    }

    /// Replaces the options that open it.
    #[doc(hidden)]
    pub fn set_options(&mut self, options: OpenOptions) {
        self.options = options;
    }

    /// Returns a line for each chunk that was rebuilt.
    pub fn chunk_lines(&self) -> Vec<String> {
        let line = |(start, chunk): &(LogicalAddress, ChunkItem)| {
            let stripes: Vec<String> = chunk
                .stripes
                .iter()
                .map(|stripe| format!("device {} at {}", stripe.devid, stripe.offset))
                .collect();
            let (length, flags) = (chunk.length, chunk.flags.iter_names().map(|(name, _)| name));
            let flags = flags.collect::<Vec<_>>().join("|");
            format!("chunk {start} length {length} {flags}: {}", stripes.join(", "))
        };
        self.chunk_items.iter().map(line).collect()
    }
}

/// Rebuilds the file system of a scan, as far as its own superblock and trees cannot be read.
///
/// # Errors
/// Options that choose another file system; a chunk map that is empty.
pub fn rebuild(devices: &[Arc<dyn Device>], options: &OpenOptions, scan: &BlockScan) -> Result<Rebuilt> {
    // A device that is truncated, or too few of them: read what there is.
    let mut options = options.clone().degraded(true);
    options.rescue.found = None;
    let (superblock, source) = base_superblock(scan, options.superblock_mirror)?;
    let is_good = matches!(source, SuperblockSource::Good { .. });
    let members = members(devices, scan, options.superblock_mirror.unwrap_or(0));
    let blocks = options.rescue.orphans.then(|| Arc::clone(&scan.blocks));
    let newest = scan.newest().max(superblock.raw.generation);
    let mut found = FoundTrees { superblock, newest, members, chunk_tree: None, blocks, older: None };
    if !(is_good && opens(devices, &options, &found)) {
        found.chunk_tree = Some(FoundChunks::default());
    }
    let mut sources = None;
    let mut chunk_items = Vec::new();
    if let Some(chunk_tree) = &mut found.chunk_tree {
        let members = found.members.clone().unwrap_or_else(|| own_items(scan, devices.len()));
        let uuids = device_uuids(scan, &members);
        let places: Vec<DeviceId> = members.iter().map(|item| item.devid).collect();
        let system = if is_good { found.superblock.system_chunks().unwrap_or_default() } else { Vec::new() };
        let evidence = Evidence { devices, scan, places: &places };
        let rebuilt = rebuild_chunks(&evidence, system, &uuids);
        sources = Some(rebuilt.sources);
        chunk_tree.devices = used_devices(scan, &members, &rebuilt.chunks);
        found.members.get_or_insert(members);
        chunk_items = readable_chunks(devices, &options, &found, rebuilt.chunks)?;
        if let Some(chunk_tree) = &mut found.chunk_tree {
            chunk_tree.chunks.clone_from(&chunk_items);
        }
    }
    if found.chunk_tree.as_ref().is_some_and(|tree| tree.chunks.is_empty()) {
        return Err(Error::Invalid("the scan found no chunk, nor blocks to make one of".to_owned()));
    }
    let last = found.superblock.raw;
    let chosen = choose_root(devices, &mut options, &mut found, scan)?;
    let root = chosen.as_ref().map(|chosen| chosen.root);
    let is_first = matches!(source, SuperblockSource::Good { copy: 0, .. });
    let is_chosen = options.superblock_mirror.is_some() || options.rescue.chooses_roots();
    let later = match &root {
        Some(_) => Some(newest),
        // A superblock that is not the first one may be of an earlier commit.
        None if !is_first && !is_chosen => search(devices, &options, &found, scan)?.newest_whole(),
        None => None,
    };
    let later = later.filter(|later| *later > found.superblock.raw.generation);
    let is_older = later.is_some();
    if root.is_some() || !is_good {
        found.superblock.raw.log_root = LogicalAddress(0);
    }
    name_older(&mut found, &last, later);
    if let Some(chosen) = chosen.as_ref().filter(|_| found.older.is_none()) {
        name_doubt(&mut found, chosen);
    }
    if found.older.is_none() && !is_first && options.superblock_mirror.is_none() {
        name_lost_log(&mut found, scan);
    }
    options.rescue.found = Some(Arc::new(found));
    options.rescue.scan = false;
    let rivals = chosen.filter(|chosen| !chosen.rivals.is_empty());
    let rivals = rivals.map(|chosen| (chosen.choice, chosen.rivals));
    Ok(Rebuilt { superblock: source, chunks: sources, chunk_items, root, rivals, is_older, options })
}

/// Keeps for the reader that the root tree is older than `newest`, the newest block that is left.
/// The log of `last`, the superblock before, is not replayed then.
fn name_older(found: &mut FoundTrees, last: &RawSuperblock, newest: Option<Generation>) {
    let Some(newest) = newest else { return };
    let (address, level, committed) = (last.log_root, last.log_root_level, last.generation);
    let log = Some(UnreplayedLog { address, level, committed }).filter(|log| log.address.0 != 0);
    let cause = OlderCause::Fallback { newest, reason: String::new() };
    found.older = Some(OlderState::new(cause, found.superblock.raw.generation, log));
}

/// Keeps for the reader that the root tree is incomplete, or one of several that could be the last.
fn name_doubt(found: &mut FoundTrees, chosen: &ChosenRoot) {
    let cause = match (chosen.root.missing, chosen.choice) {
        (1.., _) => OlderCause::IncompleteRoots { missing: chosen.root.missing },
        (0, RootChoice::Unclear) => OlderCause::Doubtful { others: chosen.rivals.clone() },
        _ => return,
    };
    found.older = Some(OlderState::new(cause, found.superblock.raw.generation, None));
}

/// Looks for the log of fsyncs that a lost first superblock copy named: an fsync writes no other
/// copy. A torn copy may still name it. If none does, but blocks of a log are left, keeps that for
/// the reader.
fn name_lost_log(found: &mut FoundTrees, scan: &BlockScan) {
    let committed = found.superblock.raw.generation;
    let is_later = |block: &FoundBlock| block.owner == objectid::TREE_LOG && block.generation > committed;
    if found.superblock.log_root().is_some() || !scan.blocks.iter().any(is_later) {
        return;
    }
    let is_root =
        |address: LogicalAddress| scan.blocks.iter().any(|block| is_later(block) && block.address == address);
    let torn = scan.superblocks.iter().filter(|candidate| {
        candidate.mirror == 0 && candidate.raw.generation == committed && is_root(candidate.raw.log_root)
    });
    match torn.map(|candidate| &candidate.raw).next() {
        Some(torn) => {
            let raw = &mut found.superblock.raw;
            (raw.log_root, raw.log_root_level) = (torn.log_root, torn.log_root_level);
        }
        None => found.older = Some(OlderState::new(OlderCause::LogLost, committed, None)),
    }
}

/// Returns the best superblock: a good one of the newest generation, else a torn one, else one made
/// of nothing.
fn base_superblock(scan: &BlockScan, mirror: Option<usize>) -> Result<(Superblock, SuperblockSource)> {
    let wanted = |candidate: &&Candidate| mirror.is_none_or(|mirror| candidate.mirror == mirror);
    let own = |candidate: &&Candidate| candidate.identity().is_some_and(|(fsid, ..)| fsid == scan.fsid);
    let good = scan.superblocks.iter().filter(wanted).filter(own);
    let good = good.filter_map(|candidate| Some((candidate, candidate.good.as_ref()?)));
    // Of equally new ones the first whose root block is there.
    let leads = |raw: &RawSuperblock| {
        let is_root = |block: &FoundBlock| (block.address, block.generation) == (raw.root, raw.generation);
        scan.blocks.iter().any(is_root)
    };
    let order = |superblock: &Superblock| (superblock.raw.generation, leads(&superblock.raw));
    let best = good.reduce(|best, other| if order(other.1) > order(best.1) { other } else { best });
    if let Some((candidate, superblock)) = best {
        let (device, copy) = (candidate.device, candidate.mirror);
        return Ok((superblock.clone(), SuperblockSource::Good { device, copy }));
    }
    let made = made_superblock(scan)?;
    // The newest of those whose root block is there, else the first.
    let torn = scan.superblocks.iter().filter(own).reduce(|best, other| {
        let order = |candidate: &Candidate| leads(&candidate.raw).then_some(candidate.raw.generation);
        if order(other) > order(best) { other } else { best }
    });
    let Some(torn) = torn else {
        return Ok((made, SuperblockSource::Made));
    };
    // Only what shows and what the trees are read by; each could be the torn part.
    let mut raw = made.raw;
    raw.label = torn.raw.label;
    raw.root = torn.raw.root;
    raw.root_level = torn.raw.root_level.min(7);
    if torn.raw.generation <= raw.generation {
        raw.generation = torn.raw.generation;
    }
    let fault = torn.fault.clone().unwrap_or_default();
    let source = SuperblockSource::Torn { device: torn.device, copy: torn.mirror, fault };
    Ok((of_raw(&raw)?, source))
}

fn made_superblock(scan: &BlockScan) -> Result<Superblock> {
    let mut raw = RawSuperblock::parse(&[0; SUPERBLOCK_SIZE])
        .map_err(|reason| Error::Invalid(format!("superblock: {reason}")))?;
    raw.magic = MAGIC;
    raw.fsid = scan.fsid;
    raw.generation = scan.newest();
    raw.root_dir_objectid = objectid::ROOT_TREE_DIR;
    raw.num_devices = scan.devices.len().max(1) as u64;
    raw.sector_size = 4096;
    raw.node_size = scan.node_size;
    raw.leaf_size = scan.node_size;
    raw.stripe_size = 4096;
    raw.csum_type = scan.checksum_type as u16;
    // METADATA_UUID would name a UUID that is lost.
    raw.incompat_flags = IncompatFeatures::SUPPORTED.difference(IncompatFeatures::METADATA_UUID);
    raw.total_bytes = scan.devices.values().map(|(_, item)| item.total_bytes).fold(0, u64::saturating_add);
    of_raw(&raw)
}

fn of_raw(raw: &RawSuperblock) -> Result<Superblock> {
    Superblock::parse_unverified(&raw.to_bytes())
        .map_err(|reason| Error::Invalid(format!("superblock: {reason}")))
}

/// Returns the device item of each device; `None` if all superblocks that opening reads are good.
fn members(devices: &[Arc<dyn Device>], scan: &BlockScan, mirror: usize) -> Option<Vec<DeviceItem>> {
    let is_read = |number: usize| {
        let reads = |candidate: &Candidate| candidate.device == number && candidate.mirror == mirror;
        scan.superblocks.iter().any(|candidate| reads(candidate) && candidate.is_good())
    };
    if (0..devices.len()).all(is_read) {
        return None;
    }
    Some(own_items(scan, devices.len()))
}

/// Returns the device item of each device: from its good superblock, else by the chunks that its
/// blocks are in, else the first that is left.
pub(crate) fn own_items(scan: &BlockScan, devices: usize) -> Vec<DeviceItem> {
    let mut items: Vec<Option<DeviceItem>> = vec![None; devices];
    for candidate in &scan.superblocks {
        let own = candidate.good.as_ref().filter(|good| good.metadata_uuid() == scan.fsid);
        if let Some(good) = own {
            items[candidate.device].get_or_insert(good.raw.dev_item);
        }
    }
    let chunks: BTreeMap<LogicalAddress, Chunk> = scan
        .chunks
        .iter()
        .filter_map(|(start, (_, item))| Some((*start, Chunk::new(*start, item).ok()?)))
        .collect();
    for number in 0..devices {
        if items[number].is_some() {
            continue;
        }
        let taken: Vec<DeviceId> = items.iter().flatten().map(|item| item.devid).collect();
        let voted = vote(scan, &chunks, number).filter(|devid| !taken.contains(devid));
        let left = || scan.devices.keys().copied().find(|devid| !taken.contains(devid));
        let unused = || (1..).map(DeviceId).find(|devid| !taken.contains(devid));
        let devid = voted.or_else(left).or_else(unused).unwrap_or(DeviceId(1));
        items[number] = Some(item_of(scan, devid));
    }
    items.into_iter().flatten().collect()
}

/// Returns the device whose stripes agree with most places of the device's blocks.
fn vote(scan: &BlockScan, chunks: &BTreeMap<LogicalAddress, Chunk>, number: usize) -> Option<DeviceId> {
    let mut votes: BTreeMap<DeviceId, usize> = BTreeMap::new();
    for block in scan.blocks.iter().filter(|block| block.device == number).take(VOTES) {
        let Some((_, chunk)) = chunks.range(..=block.address).next_back() else { continue };
        if block.address >= chunk.end() {
            continue;
        }
        let Some(element) = chunk.elements(block.address, 1).next() else { continue };
        for copy in 0..chunk.profile().copies() {
            if let Some((stripe, place)) = chunk.direct(&element, copy)
                && place == block.offset
            {
                *votes.entry(chunk.stripes()[stripe].devid).or_default() += 1;
            }
        }
    }
    votes.into_iter().max_by_key(|(_, votes)| *votes).map(|(devid, _)| devid)
}

fn item_of(scan: &BlockScan, devid: DeviceId) -> DeviceItem {
    if let Some((_, item)) = scan.devices.get(&devid) {
        return *item;
    }
    let mut stripes = scan.chunks.values().flat_map(|(_, chunk)| &chunk.stripes);
    let uuid = stripes.find(|stripe| stripe.devid == devid).map(|stripe| stripe.device_uuid);
    let item = DeviceItem::parse(&[0; DeviceItem::SIZE]).expect("all zeros are fields");
    DeviceItem { devid, uuid: uuid.unwrap_or_default(), fsid: scan.fsid, sector_size: 4096, ..item }
}

fn device_uuids(scan: &BlockScan, members: &[DeviceItem]) -> BTreeMap<DeviceId, Uuid> {
    let known = scan.devices.iter().map(|(devid, (_, item))| (*devid, item.uuid));
    let own = members.iter().map(|item| (item.devid, item.uuid));
    known.chain(own).collect()
}

/// Returns the devices that chunks are on, and the present ones.
fn used_devices(
    scan: &BlockScan,
    members: &[DeviceItem],
    chunks: &BTreeMap<LogicalAddress, ChunkItem>,
) -> Vec<DeviceItem> {
    let mut devices = members.to_vec();
    for stripe in chunks.values().flat_map(|chunk| &chunk.stripes) {
        if !devices.iter().any(|item| item.devid == stripe.devid) {
            devices.push(DeviceItem { uuid: stripe.device_uuid, ..item_of(scan, stripe.devid) });
        }
    }
    devices
}

/// Leaves out the chunks that cannot be read with the devices that are present.
fn readable_chunks(
    devices: &[Arc<dyn Device>],
    options: &OpenOptions,
    found: &FoundTrees,
    chunks: BTreeMap<LogicalAddress, ChunkItem>,
) -> Result<Vec<(LogicalAddress, ChunkItem)>> {
    let volume = Volume::open(devices.to_vec(), &with(options, found))?;
    Ok(chunks.into_iter().filter(|chunk| volume.install_chunks([chunk.clone()]).is_ok()).collect())
}

fn with(options: &OpenOptions, found: &FoundTrees) -> OpenOptions {
    let mut options = options.clone();
    options.rescue.found = Some(Arc::new(found.clone()));
    options
}

/// Opens the volume, with all chunks.
fn volume(devices: &[Arc<dyn Device>], options: &OpenOptions, found: &FoundTrees) -> Result<Arc<Volume>> {
    let options = with(options, found);
    let volume = Arc::new(Volume::open(devices.to_vec(), &options)?);
    let raw = &volume.superblock().raw;
    let root = RootPointer {
        address: raw.chunk_root,
        level: raw.chunk_root_level,
        generation: Some(raw.chunk_root_generation),
    };
    let forest = Forest::new(Arc::clone(&volume), CACHE_BYTES);
    read_chunk_tree(&volume, &forest.tree(objectid::CHUNK_TREE, root), &options)?;
    Ok(volume)
}

/// Returns whether the chunk tree can be read.
fn opens(devices: &[Arc<dyn Device>], options: &OpenOptions, found: &FoundTrees) -> bool {
    volume(devices, options, found).is_ok()
}

/// Opens the volume as it was rebuilt, for walks of trees.
pub fn rebuilt_volume(devices: &[Arc<dyn Device>], rebuilt: &Rebuilt) -> Result<Arc<Volume>> {
    let found = rebuilt.options.rescue.found.as_ref().expect("a rebuilt file system has been found");
    volume(devices, &rebuilt.options, found)
}

/// Opens the volume for a search for root trees.
fn search<'a>(
    devices: &[Arc<dyn Device>],
    options: &OpenOptions,
    found: &FoundTrees,
    scan: &'a BlockScan,
) -> Result<RootSearch<'a>> {
    let volume = volume(devices, options, found)?;
    let forest = rescue_forest(&volume, CACHE_BYTES);
    Ok(RootSearch { forest, scan, orphans: options.rescue.orphans })
}

/// Names the newest whole root tree in the superblock, unless its own can be read or the options
/// choose another one. Returns it.
fn choose_root(
    devices: &[Arc<dyn Device>],
    options: &mut OpenOptions,
    found: &mut FoundTrees,
    scan: &BlockScan,
) -> Result<Option<ChosenRoot>> {
    let search = search(devices, options, found, scan)?;
    if let Some(TreeRootChoice::Generation(generation)) = options.rescue.tree_root {
        // The superblock may not know it.
        if let Some(chosen) = search.of_generation(generation) {
            options.rescue.tree_root = Some(TreeRootChoice::Address(chosen.root.address));
        }
    }
    let raw = &found.superblock.raw;
    let own = RootPointer { address: raw.root, level: raw.root_level, generation: Some(raw.generation) };
    let has_own = raw.root.0 != 0;
    if has_own && search.leads_to_files(own) {
        return Ok(None);
    }
    let Some(chosen) = search.newest() else { return Ok(None) };
    // The current state without its top level may have more than an older one that is whole.
    let blocks = if has_own { search.blocks_of_files(own) } else { 0 };
    if blocks > 0 && blocks >= search.blocks_of_files(pointer(&chosen.root)) {
        return Ok(None);
    }
    let (root, raw) = (chosen.root, &mut found.superblock.raw);
    (raw.root, raw.root_level, raw.generation) = (root.address, root.level, root.generation);
    Ok(Some(chosen))
}
