//! Subvolumes that were deleted, and that older root trees still have.
//!
//! Owns [`DeletedSubvolume`] and [`find_deleted_subvolumes`]. Each older root tree that is left on
//! the devices leads to the subvolumes of its commit. The newest root tree with a whole tree
//! counts; without one, the newest of those that lack the fewest blocks.
//!
//! Kernel counterpart: none.

use super::block_scan::BlockScan;
use super::rebuild::Rebuilt;
use super::tree_roots::{FoundRoot, pointer, roots_of};
use crate::dump::{TreeBlocks, TreeRoot};
use papilio_engine::btree::{Forest, RootPointer};
use papilio_engine::items::trees::Trees;
use papilio_engine::subvolume::{self, Subvolume};
use papilio_engine::volume::Volume;
use papilio_format::{Generation, LogicalAddress, TreeId, Uuid, objectid};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The most root trees that are looked at, the newest first.
const MOST_ROOTS: usize = 1000;
/// The most states of a subvolume that are looked at.
const MOST_STATES: usize = 16;
/// Bytes of the cache of tree blocks.
const CACHE_BYTES: usize = 64 << 20;

/// A subvolume that the current root tree does not have, or has in deletion.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeletedSubvolume {
    /// The subvolume, as the older root tree has it.
    pub subvolume: Subvolume,
    /// The address of that root tree.
    pub root_tree: LogicalAddress,
    /// The transaction that wrote that root tree.
    pub generation: Generation,
    /// Blocks of the subvolume's tree that can be read.
    pub blocks: u64,
    /// Blocks that were overwritten, besides all those below them.
    pub missing: u64,
    /// Whether its content is still being freed.
    pub is_being_freed: bool,
}

impl DeletedSubvolume {
    /// Whether all blocks of its tree are left. Its data may be overwritten all the same.
    pub fn is_whole(&self) -> bool {
        self.missing == 0
    }
}

/// Lists the deleted subvolumes, by id. `volume` is the rebuilt one.
pub fn find_deleted_subvolumes(
    volume: &Arc<Volume>,
    scan: &BlockScan,
    rebuilt: &Rebuilt,
) -> Vec<DeletedSubvolume> {
    let newest = volume.geometry().generation.max(scan.newest());
    volume.set_generation(newest);
    let forest = Forest::new(Arc::clone(volume), CACHE_BYTES);
    let found = rebuilt.options().rescue.found.as_ref();
    let raw = found.map_or(volume.superblock().raw, |found| found.superblock.raw);
    let current = RootPointer { address: raw.root, level: raw.root_level, generation: Some(raw.generation) };
    let chunk_root = RootPointer { address: LogicalAddress(0), level: 0, generation: None };
    let present = subvolume::list(&Trees::new(&forest, current, chunk_root)).unwrap_or_default();
    let present: HashMap<(TreeId, Uuid), Subvolume> =
        present.into_iter().map(|found| ((found.id, found.uuid), found)).collect();
    let mut deleted: BTreeMap<(TreeId, Uuid), Vec<DeletedSubvolume>> = BTreeMap::new();
    let mut older = roots_of(scan, objectid::ROOT_TREE);
    older.retain(|root| root.generation <= raw.generation && root.address != raw.root);
    // A commit may write a root tree and copy it again. The last one counts: backups name it, and
    // it mostly has the highest address.
    let is_backup = |root: &FoundRoot| raw.super_roots.iter().any(|backup| backup.tree_root == root.address);
    older.sort_by_key(|root| std::cmp::Reverse((root.generation, is_backup(root), root.address)));
    for root in older.iter().take(MOST_ROOTS) {
        let trees = Trees::new(&forest, pointer(root), chunk_root);
        // A root tree with blocks that were overwritten since has no list.
        for found in subvolume::list(&trees).unwrap_or_default() {
            let key = (found.id, found.uuid);
            let now = present.get(&key);
            if found.is_being_deleted() || now.is_some_and(|now| !now.is_being_deleted()) {
                continue;
            }
            let states = deleted.entry(key).or_default();
            let is_found = |state: &DeletedSubvolume| state.is_whole() && state.subvolume.path.is_some();
            if states.len() >= MOST_STATES || states.iter().any(is_found) {
                continue;
            }
            let Ok(Some(open)) = trees.find(found.id) else { continue };
            let (blocks, missing) = count(&forest, found.id, open.tree.root());
            states.push(DeletedSubvolume {
                subvolume: found,
                root_tree: root.address,
                generation: root.generation,
                blocks,
                missing,
                is_being_freed: now.is_some(),
            });
        }
    }
    // Of several states that lack as much, the newest is the first. In a root tree that its commit
    // copied again, no path may lead to the subvolume yet.
    let best = |states: Vec<DeletedSubvolume>| {
        let left = states.into_iter().filter(|state| state.blocks > 0);
        left.min_by_key(|state| (state.missing, state.subvolume.path.is_none()))
    };
    deleted.into_values().filter_map(best).collect()
}

/// Counts the blocks of a tree that can be read, and those that cannot.
fn count(forest: &Arc<Forest>, id: TreeId, root: RootPointer) -> (u64, u64) {
    let generation = root.generation.unwrap_or(Generation(0));
    let tree = TreeRoot::of(id, root.address, root.level, generation);
    TreeBlocks::of_tree(forest, &tree).fold((0, 0), |(read, missing), block| match block {
        Ok(_) => (read + 1, missing),
        Err(_) => (read, missing + 1),
    })
}
