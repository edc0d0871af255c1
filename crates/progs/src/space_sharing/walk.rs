//! The walk over the trees of all subvolumes that finds out which subvolumes share which bytes.
//!
//! Owns [`SharingWalk`]. It goes level by level, from the highest roots down to the leaves. The
//! parents of a block are one level above it, so that all subvolumes that reach a block are known
//! before it is read. It therefore reads each block once, in the order of addresses, however many
//! snapshots share it.
//!
//! A sampled walk reads some leaves only: those with items of chosen inodes. Inodes are chosen in
//! clusters of neighbouring numbers, the same ones in every subvolume, so that a snapshot is
//! compared with its origin. References between a chosen inode and another one are missed.
//!
//! **Invariant:** a child's level is one below that of its parent, so that the walk ends on any
//! bytes.

use super::child_runs::{Child, ChildRuns};
use super::references::{HolderReference, HolderReferences};
use super::root_sets::{RootSets, SetId};
use super::shares::{GROUPS, SharedBytes, SharingOptions, SharingProgress};
use papilio_engine::btree::Forest;
use papilio_engine::errors::{Error, Result};
use papilio_format::items::file_extent::{FileExtentContent, FileExtentItem};
use papilio_format::superblock::MAX_LEVEL;
use papilio_format::{Generation, ItemType, Key, LogicalAddress, Node, NodeExpectation, TreeId};
use rayon::prelude::*;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;

/// Blocks that are read by one thread at once.
const BATCH: usize = 32;
/// Batches between two reports of progress.
const BATCHES: usize = 16;
/// Most errors that are kept; further ones are only counted.
const KEPT_ERRORS: usize = 32;
/// Inodes with neighbouring numbers that are chosen together: less than a leaf of small files.
const CLUSTER: u64 = 16;
/// More clusters than this below one leaf, and it is read without looking for a chosen one.
const CLUSTERS_LOOKED_AT: u64 = 4096;
/// The bit in a leaf's detail that says that it need not be read.
const PASSED_OVER: u64 = 1 << 63;
/// The bits of an extent's detail below its group.
const LENGTH_BITS: u32 = 56;

/// Bytes by set of subvolumes.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) bytes: SharedBytes,
    /// Bytes of data by group of inodes, if inodes were sampled.
    pub(super) groups: Option<Box<[u64; GROUPS]>>,
}

/// Chooses inodes.
#[derive(Clone, Copy, Debug)]
struct InodeSample {
    /// A cluster is chosen if its hash is below.
    threshold: u64,
}

impl InodeSample {
    fn hash(cluster: u64) -> u64 {
        // The finalizer of SplitMix64.
        let mut hash = cluster.wrapping_add(0x9e37_79b9_7f4a_7c15);
        hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        hash ^ (hash >> 31)
    }

    fn chooses_cluster(self, cluster: u64) -> bool {
        Self::hash(cluster) < self.threshold
    }

    /// Returns the group of an inode, if it is chosen.
    fn group(self, inode: u64) -> Option<usize> {
        let cluster = inode / CLUSTER;
        self.chooses_cluster(cluster).then(|| (Self::hash(cluster) % GROUPS as u64) as usize)
    }

    /// Returns whether a leaf may have items of chosen inodes, if its keys go from `first` up to,
    /// at most, `end`.
    fn wants_leaf(self, first: Key, end: Option<Key>) -> bool {
        let first = first.objectid / CLUSTER;
        let last = end.map_or(u64::MAX, |end| end.objectid) / CLUSTER;
        last.saturating_sub(first) > CLUSTERS_LOOKED_AT
            || (first..=last).any(|cluster| self.chooses_cluster(cluster))
    }
}

/// The blocks or extents that a block refers to.
enum Content {
    /// Blocks on the level below: address and detail.
    Children(Vec<Child>),
    /// Extents: address and detail.
    Extents(Vec<(u64, u64)>),
}

/// A walk under way.
pub(super) struct SharingWalk<'a> {
    forest: &'a Arc<Forest>,
    options: &'a SharingOptions,
    roots: &'a [TreeId],
    pub(super) sets: RootSets,
    levels: [HolderReferences; MAX_LEVEL as usize],
    /// Children of the level that is being read.
    children: ChildRuns,
    extents: HolderReferences,
    sample: Option<InodeSample>,
    /// Tree blocks of all trees together, at most.
    all_blocks: u64,
    pub(super) tallies: HashMap<SetId, Tally>,
    pub(super) blocks: u64,
    pub(super) leaves_read: u64,
    pub(super) errors: Vec<Error>,
    pub(super) bad_blocks: u64,
}

impl<'a> SharingWalk<'a> {
    /// Begins a walk over subvolumes whose ids are `roots`, in a file system that has `all_blocks`
    /// tree blocks at most.
    pub(super) fn new(
        forest: &'a Arc<Forest>,
        options: &'a SharingOptions,
        roots: &'a [TreeId],
        all_blocks: u64,
    ) -> Self {
        // Extents, the blocks of one level and runs of the next are in memory at once.
        let bound = options.memory_bytes / (3 * size_of::<HolderReference>());
        Self {
            forest,
            options,
            roots,
            sets: RootSets::default(),
            levels: std::array::from_fn(|_| HolderReferences::new(bound)),
            children: ChildRuns::new(bound),
            extents: HolderReferences::new(bound),
            sample: None,
            all_blocks,
            tallies: HashMap::new(),
            blocks: 0,
            leaves_read: 0,
            errors: Vec::new(),
            bad_blocks: 0,
        }
    }

    /// Returns whether leaves were left out.
    pub(super) fn is_sampled(&self) -> bool {
        self.sample.is_some()
    }

    /// Adds the root block of the subvolume at a position of `roots`.
    ///
    /// # Errors
    /// [`Error::Host`] if no temporary file can be written.
    pub(super) fn add_root(
        &mut self,
        position: u32,
        address: LogicalAddress,
        level: u8,
        generation: Generation,
    ) -> Result<()> {
        let set = self.sets.single(position);
        let Some(level) = self.levels.get_mut(usize::from(level)) else { return Ok(()) };
        let root = HolderReference { address: address.0, detail: generation.0, set };
        level.push(root, &mut self.sets).map_err(spill_error)
    }

    /// Reads all blocks and counts the extents. Returns `false` if `progress` ended the walk.
    ///
    /// # Errors
    /// [`Error::Host`] if no temporary file can be used. Blocks that cannot be read are counted.
    pub(super) fn run(&mut self, progress: &mut dyn FnMut(SharingProgress) -> bool) -> Result<bool> {
        for level in (0..MAX_LEVEL).rev() {
            if !self.level(level, progress)? {
                return Ok(false);
            }
        }
        self.count_extents()?;
        Ok(true)
    }

    fn level(&mut self, level: u8, progress: &mut dyn FnMut(SharingProgress) -> bool) -> Result<bool> {
        let bound = 2;
        let references =
            std::mem::replace(&mut self.levels[usize::from(level)], HolderReferences::new(bound));
        if references.is_empty() {
            return Ok(true);
        }
        if level == 1 {
            self.choose_sample(references.len());
        }
        let known = references.len();
        let mut sorted = references.sorted(&mut self.sets).map_err(spill_error)?;
        let mut done = 0;
        loop {
            let mut batch = Vec::with_capacity(BATCH * BATCHES);
            while batch.len() < BATCH * BATCHES {
                let Some(reference) = sorted.next(&mut self.sets).map_err(spill_error)? else { break };
                batch.push(reference);
            }
            if batch.is_empty() {
                self.pass_children_on(level)?;
                return Ok(true);
            }
            done += batch.len() as u64;
            self.blocks(level, &batch)?;
            if !progress(SharingProgress { level, blocks: done, known_blocks: known.max(done) }) {
                return Ok(false);
            }
        }
    }

    /// Decides which inodes are looked at, where only some leaves are to be read. The blocks above
    /// the leaves tell how many there are at most: those of snapshots share most of their leaves.
    fn choose_sample(&mut self, parents: u64) {
        let Some(wanted) = self.options.sampled_leaves else { return };
        // Three quarters full, as trees are on average.
        let geometry = self.forest.volume().geometry();
        let fanout = u64::from(geometry.node_size) / 33 * 3 / 4;
        let leaves = parents.saturating_mul(fanout).min(self.all_blocks).max(1);
        // A cluster touches up to two leaves, which it does not fill.
        let share = wanted as f64 / (3.0 * leaves as f64);
        if share < 0.5 {
            self.sample = Some(InodeSample { threshold: (share * u64::MAX as f64) as u64 });
        }
    }

    /// Counts blocks of a level, and reads them.
    fn blocks(&mut self, level: u8, batch: &[HolderReference]) -> Result<()> {
        let volume = self.forest.volume();
        let (chunks, node_size) = (volume.chunk_map(), u64::from(volume.geometry().node_size));
        for block in batch {
            let tally = self.tallies.entry(block.set).or_default();
            tally.bytes.metadata += node_size;
            tally.bytes.raw_metadata += raw_length(&chunks, block.address, node_size);
        }
        self.blocks += batch.len() as u64;
        let wanted: Vec<HolderReference> =
            batch.iter().copied().filter(|block| block.detail & PASSED_OVER == 0).collect();
        let read: Vec<(HolderReference, Result<Content>)> = wanted
            .par_chunks(BATCH)
            .flat_map_iter(|some| {
                self.forest.prefetch(some.iter().map(|block| expectation(level, block)));
                some.iter().map(|block| (*block, self.read(level, block))).collect::<Vec<_>>()
            })
            .collect();
        for (block, content) in read {
            match content {
                Ok(Content::Children(children)) => {
                    self.children.add(&children, block.set);
                    if self.children.is_full() {
                        self.pass_children_on(level)?;
                    }
                }
                Ok(Content::Extents(extents)) => {
                    self.leaves_read += 1;
                    for (address, detail) in extents {
                        let reference = HolderReference { address, detail, set: block.set };
                        self.extents.push(reference, &mut self.sets).map_err(spill_error)?;
                    }
                }
                Err(error) => {
                    self.bad_blocks += 1;
                    if self.errors.len() < KEPT_ERRORS {
                        self.errors.push(error);
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes the children of a level's nodes known to the level below.
    fn pass_children_on(&mut self, level: u8) -> Result<()> {
        let Some(below) = level.checked_sub(1) else { return Ok(()) };
        let into = &mut self.levels[usize::from(below)];
        self.children.empty_into(into, &mut self.sets).map_err(spill_error)
    }

    fn read(&self, level: u8, block: &HolderReference) -> Result<Content> {
        let holder = self.sets.runs(block.set)[0].first as usize;
        let found = self.forest.block(self.roots[holder], &expectation(level, block))?;
        Ok(match level {
            0 => Content::Extents(self.extents_of(found.view())),
            _ => Content::Children(self.children_of(found.view(), level)),
        })
    }

    fn children_of(&self, node: Node<'_>, level: u8) -> Vec<(u64, u64)> {
        let child = |slot: usize| {
            let pointer = node.child(slot);
            let end = (slot + 1 < node.len()).then(|| node.key(slot + 1));
            let wanted = level > 1 || self.sample.is_none_or(|sample| sample.wants_leaf(pointer.key, end));
            (pointer.address.0, pointer.generation.0 | if wanted { 0 } else { PASSED_OVER })
        };
        (0..node.len()).map(child).collect()
    }

    fn extents_of(&self, node: Node<'_>) -> Vec<(u64, u64)> {
        let extent = |slot: usize| {
            let key = node.key(slot);
            if key.item_type != ItemType::EXTENT_DATA {
                return None;
            }
            let group = match self.sample {
                None => 0,
                Some(sample) => sample.group(key.objectid)?,
            };
            match FileExtentItem::parse(node.item(slot)).ok()?.content {
                FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part) if !part.is_hole() => {
                    let length = part.disk_length & ((1 << LENGTH_BITS) - 1);
                    Some((part.disk_address.0, (group as u64) << LENGTH_BITS | length))
                }
                _ => None,
            }
        };
        (0..node.len()).filter_map(extent).collect()
    }

    fn count_extents(&mut self) -> Result<()> {
        let chunks = self.forest.volume().chunk_map();
        let extents = std::mem::replace(&mut self.extents, HolderReferences::new(2));
        let mut sorted = extents.sorted(&mut self.sets).map_err(spill_error)?;
        while let Some(extent) = sorted.next(&mut self.sets).map_err(spill_error)? {
            let group = (extent.detail >> LENGTH_BITS) as usize % GROUPS;
            let length = extent.detail & ((1 << LENGTH_BITS) - 1);
            let tally = self.tallies.entry(extent.set).or_default();
            tally.bytes.data = tally.bytes.data.saturating_add(length);
            let raw = raw_length(&chunks, extent.address, length);
            tally.bytes.raw_data = tally.bytes.raw_data.saturating_add(raw);
            if self.sample.is_some() {
                let groups = tally.groups.get_or_insert_with(|| Box::new([0; GROUPS]));
                groups[group] = groups[group].saturating_add(length);
            }
        }
        Ok(())
    }
}

fn expectation(level: u8, block: &HolderReference) -> NodeExpectation {
    NodeExpectation {
        level: Some(level),
        generation: Some(Generation(block.detail)),
        ..NodeExpectation::at(LogicalAddress(block.address))
    }
}

/// Returns the bytes of devices that `length` bytes at a logical address take.
fn raw_length(chunks: &papilio_engine::volume::chunk_map::ChunkMap, address: u64, length: u64) -> u64 {
    let Some(chunk) = chunks.find(LogicalAddress(address)) else { return length };
    let stripes = chunk.stripes().len();
    let data = chunk.profile().data_stripes(stripes).max(1) as u128;
    u64::try_from(u128::from(length) * stripes as u128 / data).unwrap_or(u64::MAX)
}

fn spill_error(source: io::Error) -> Error {
    Error::Host { path: std::env::temp_dir(), source }
}
