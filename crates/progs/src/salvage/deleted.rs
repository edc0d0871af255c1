//! Files that older states of a file system still hold.
//!
//! Owns [`DeletedFile`] and [`find_deleted`]. Each older root tree that is left on the devices
//! leads to the subvolumes of its commit. Of these only the blocks are read that neither the
//! current tree nor a newer one has, so that the time depends on what changed.
//!
//! **Invariant**: a file that is listed can be read with the root tree that is named beside it, as
//! far as its data was not overwritten.
//!
//! Kernel counterpart: none.

use super::block_scan::BlockScan;
use super::rebuild::Rebuilt;
use super::tree_roots::{FoundRoot, pointer, roots_of};
use papilio_engine::btree::{Forest, RootPointer, Tree, TreeBlock};
use papilio_engine::items::trees::Trees;
use papilio_engine::jobs::inode_paths::path_in_subvolume;
use papilio_engine::namespace::resolve;
use papilio_engine::subvolume;
use papilio_engine::volume::Volume;
use papilio_format::items::inode::{FileKind, InodeItem, Timespec};
use papilio_format::{Generation, InodeNumber, ItemType, Key, LogicalAddress, TreeId, objectid};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

/// The most root trees that are looked at, the newest first.
const MOST_ROOTS: usize = 1000;
/// Bytes of the cache of tree blocks.
const CACHE_BYTES: usize = 64 << 20;

/// A file that the current trees do not have.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeletedFile {
    /// Its path from the top level, without a leading slash.
    pub path: Vec<u8>,
    /// Its subvolume.
    pub tree: TreeId,
    /// Its inode number.
    pub inode: InodeNumber,
    /// Its kind; never a directory.
    pub kind: FileKind,
    /// Its size in bytes.
    pub size: u64,
    /// The time of its last modification.
    pub mtime: Timespec,
    /// The address of the newest root tree that has it.
    pub tree_root: LogicalAddress,
    /// The transaction that wrote that root tree.
    pub generation: Generation,
}

/// The blocks and files of one subvolume that the search knows.
#[derive(Default)]
struct Known {
    /// Blocks of the current tree, and of newer ones than those that are still to be read.
    blocks: HashSet<LogicalAddress>,
    /// Inodes that were listed, with the transactions that created them.
    listed: BTreeSet<(InodeNumber, Generation)>,
}

/// Lists the files that only older root trees lead to, by path. `volume` is the rebuilt one.
pub fn find_deleted(volume: &Arc<Volume>, scan: &BlockScan, rebuilt: &Rebuilt) -> Vec<DeletedFile> {
    let newest = volume.geometry().generation.max(scan.newest());
    volume.set_generation(newest);
    let forest = Forest::new(Arc::clone(volume), CACHE_BYTES);
    let found = rebuilt.options().rescue.found.as_ref();
    let raw = found.map_or(volume.superblock().raw, |found| found.superblock.raw);
    let current = RootPointer { address: raw.root, level: raw.root_level, generation: Some(raw.generation) };
    let chunk_root = RootPointer { address: LogicalAddress(0), level: 0, generation: None };
    let mut search = Search {
        current: Trees::new(&forest, current, chunk_root),
        known: BTreeMap::new(),
        files: Vec::new(),
    };
    let mut older = roots_of(scan, objectid::ROOT_TREE);
    older.retain(|root| root.generation <= raw.generation && root.address != raw.root);
    // A commit may write a root tree and copy it again. The last one counts: backups name it, and
    // it mostly has the highest address.
    let is_backup = |root: &FoundRoot| raw.super_roots.iter().any(|backup| backup.tree_root == root.address);
    older.sort_by_key(|root| std::cmp::Reverse((root.generation, is_backup(root), root.address)));
    for root in older.iter().take(MOST_ROOTS) {
        let trees = Trees::new(&forest, pointer(root), chunk_root);
        search.look(&trees, root.address, root.generation);
    }
    search.files.sort_by(|a, b| (&a.path, b.generation).cmp(&(&b.path, a.generation)));
    search.files
}

struct Search {
    current: Trees,
    known: BTreeMap<TreeId, Known>,
    files: Vec<DeletedFile>,
}

impl Search {
    /// Looks for files of an older root tree.
    fn look(&mut self, trees: &Trees, address: LogicalAddress, generation: Generation) {
        // A root tree with blocks that were overwritten since is used as far as it can be read.
        let paths: BTreeMap<TreeId, Vec<u8>> = match subvolume::list(trees) {
            Ok(list) => list.into_iter().filter_map(|found| Some((found.id, found.path?))).collect(),
            Err(_) => BTreeMap::from([(objectid::FS_TREE, Vec::new())]),
        };
        for (id, prefix) in paths {
            let Ok(Some(open)) = trees.find(id) else { continue };
            if !leads_to(trees, id, &prefix) {
                continue;
            }
            let current = self.current.find(id).ok().flatten();
            let current = current.as_ref().map(|open| &open.tree);
            let known = self.known.entry(id).or_insert_with(|| {
                let mut known = Known::default();
                if let Some(tree) = current {
                    new_leaves(tree, &mut known.blocks, |_| {});
                }
                known
            });
            let Known { blocks, listed } = known;
            let files = &mut self.files;
            new_leaves(&open.tree, blocks, |leaf| {
                for (inode, item) in inodes_of(leaf) {
                    if is_there(current, inode, &item) || listed.contains(&(inode, item.generation)) {
                        continue;
                    }
                    let Ok(Some(below)) = path_in_subvolume(&open.tree, inode, open.root_directory()) else {
                        continue;
                    };
                    listed.insert((inode, item.generation));
                    let mut path = prefix.clone();
                    if !path.is_empty() {
                        path.push(b'/');
                    }
                    path.extend(below);
                    let kind = item.kind().expect("it was filtered by its kind");
                    let (size, mtime) = (item.size, item.mtime);
                    let (tree, tree_root) = (id, address);
                    files.push(DeletedFile { path, tree, inode, kind, size, mtime, tree_root, generation });
                }
            });
        }
    }
}

/// Calls `take` for each leaf of a tree that is not among `blocks`, and adds the tree's blocks.
/// Leaves out what cannot be read.
fn new_leaves(tree: &Tree, blocks: &mut HashSet<LogicalAddress>, mut take: impl FnMut(&TreeBlock)) {
    if !blocks.insert(tree.root().address) {
        return;
    }
    let Ok(root) = tree.root_block() else { return };
    let mut pending: Vec<(Arc<TreeBlock>, Option<Key>)> = vec![(root, None)];
    while let Some((block, bound)) = pending.pop() {
        let view = block.view();
        if view.is_leaf() {
            take(&block);
            continue;
        }
        for slot in 0..view.len() {
            if !blocks.insert(view.child(slot).address) {
                continue;
            }
            let bound = if slot + 1 < view.len() { Some(view.key(slot + 1)) } else { bound };
            if let Ok(child) = tree.child(&block, slot, bound) {
                pending.push((child, bound));
            }
        }
    }
}

/// Returns the inodes of a leaf that have names and are no directories.
fn inodes_of(leaf: &TreeBlock) -> Vec<(InodeNumber, InodeItem)> {
    let view = leaf.view();
    let slots = (0..view.len()).filter(|slot| {
        let key = view.key(*slot);
        key.item_type == ItemType::INODE_ITEM && key.objectid >= objectid::FIRST_FREE
    });
    let parsed = slots.filter_map(|slot| {
        let item = InodeItem::parse(view.item(slot)).ok()?;
        Some((InodeNumber(view.key(slot).objectid), item))
    });
    let is_file = |item: &InodeItem| item.kind().is_some_and(|kind| kind != FileKind::Directory);
    parsed.filter(|(_, item)| item.nlink > 0 && is_file(item)).collect()
}

/// Whether the current tree has this inode, under any name.
fn is_there(current: Option<&Tree>, inode: InodeNumber, item: &InodeItem) -> bool {
    let Some(tree) = current else { return false };
    match papilio_engine::items::inode::inode(tree, inode) {
        Ok(Some(found)) => found.generation == item.generation && found.nlink > 0,
        // One that cannot be read any more is as good as deleted.
        Ok(None) | Err(_) => false,
    }
}

/// Whether the path of a subvolume leads to it. In a root tree that its commit copied again, it may
/// not do so yet.
fn leads_to(trees: &Trees, id: TreeId, path: &[u8]) -> bool {
    let Ok(top) = subvolume::subvolume_root(trees, objectid::FS_TREE) else { return false };
    let found = resolve(trees, &top, path, false);
    found.is_ok_and(|found| found.place().tree == id)
}
