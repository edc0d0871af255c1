//! Root directories in the place of root blocks that cannot be read.
//!
//! Owns [`LostRoots`]. The root tree names the subvolumes in a subvolume. Where the root block of a
//! subvolume is lost, they stay within reach: a root directory is made, in memory only, with an
//! entry for each. One that was in another directory is named `lost+found.ID`.
//!
//! **Invariant**: each subvolume whose root block is replaced is a fault of the forest.
//!
//! **Locks**: `made`, while one directory is made. A reader of the root tree takes those of another
//! forest meanwhile.
//!
//! Kernel counterpart: none.

use crate::btree::{StandIns, Tree, TreeBlock};
use crate::items::Items;
use crate::items::sound_items::encode_leaf;
use crate::options::rescue::{FaultList, ItemFault, ItemUse};
use papilio_format::items::dir_item::{DirEntry, FileType, dir_item_key};
use papilio_format::items::inode::{FileKind, InodeItem};
use papilio_format::items::inode_ref::InodeRef;
use papilio_format::items::root::RootItem;
use papilio_format::items::root_ref::RootRef;
use papilio_format::node::{ItemHeader, KeyPointer, NodeExpectation, NodeHeader};
use papilio_format::{
    Generation, Geometry, InodeNumber, ItemType, Key, LogicalAddress, TreeId, Uuid, objectid,
};
use papilio_locks::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// The first index of a directory entry; those before are `.` and `..`.
const FIRST_INDEX: u64 = 2;
/// The address of blocks that have none.
const NOWHERE: LogicalAddress = LogicalAddress(1 << 20);

/// Makes root directories of the references in the root tree.
#[derive(Debug)]
pub(super) struct LostRoots {
    root_tree: Tree,
    geometry: Geometry,
    /// Whether every subvolume may be replaced, or only the top level.
    all: bool,
    faults: Arc<FaultList>,
    made: Mutex<HashMap<TreeId, Option<Arc<TreeBlock>>>>,
}

impl LostRoots {
    /// Reads references from `root_tree`, a tree of a forest of its own.
    pub(super) fn new(root_tree: Tree, geometry: Geometry, all: bool, faults: &Arc<FaultList>) -> Self {
        Self { root_tree, geometry, all, faults: Arc::clone(faults), made: Mutex::default() }
    }

    /// Returns the names of the subvolumes in a subvolume, by name.
    fn children(&self, parent: TreeId) -> BTreeMap<Vec<u8>, TreeId> {
        let (mut roots, mut references) = (BTreeSet::new(), Vec::new());
        for item in self.root_tree.items() {
            // Subvolumes behind a fault have no name here.
            let Ok(item) = item else { break };
            let id = TreeId(item.key.objectid);
            match item.key.item_type {
                ItemType::ROOT_ITEM => {
                    let is_there = RootItem::parse(item.data()).is_ok_and(|root| root.refs > 0);
                    roots.extend(is_there.then_some(id));
                }
                ItemType::ROOT_REF if id == parent => {
                    references.push((TreeId(item.key.offset), item.data().to_vec()));
                }
                ItemType::ROOT_BACKREF if item.key.offset == parent.0 => {
                    references.push((id, item.data().to_vec()));
                }
                _ => {}
            }
        }
        let mut named = BTreeMap::new();
        for (child, data) in references {
            let Ok(reference) = RootRef::parse(&data) else { continue };
            let is_root = reference.directory.0 == objectid::FIRST_FREE;
            let lost = || format!("lost+found.{child}").into_bytes();
            let name = if is_root { reference.name.to_vec() } else { lost() };
            if roots.contains(&child) && !named.values().any(|known| *known == child) {
                // A name that is taken would hide the other.
                let name = if named.contains_key(&name) { lost() } else { name };
                named.insert(name, child);
            }
        }
        named
    }

    fn make(&self, parent: TreeId, generation: Generation) -> Option<Arc<TreeBlock>> {
        let children = self.children(parent);
        let root = objectid::FIRST_FREE;
        let mut inode = InodeItem::parse(&[0; InodeItem::SIZE]).expect("zeros are an inode");
        (inode.generation, inode.transid, inode.nlink) = (generation, generation, 1);
        inode.mode = FileKind::Directory.mode_bits() | 0o755;
        inode.size = children.keys().map(|name| 2 * name.len() as u64).sum();
        let mut items: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
        items.insert(Key::new(root, ItemType::INODE_ITEM, 0), inode.to_bytes().to_vec());
        let itself = InodeRef { index: 0, name: b".." }.to_bytes();
        items.insert(Key::new(root, ItemType::INODE_REF, root), itself);
        for (number, (name, child)) in children.iter().enumerate() {
            let entry = DirEntry {
                location: Key::new(child.0, ItemType::ROOT_ITEM, u64::MAX),
                transid: generation,
                file_type: FileType::Directory,
                encrypted: false,
                name,
                data: &[],
            };
            let named = items.entry(dir_item_key(InodeNumber(root), name)).or_default();
            entry.append_to(named);
            let index = Key::new(root, ItemType::DIR_INDEX, FIRST_INDEX + number as u64);
            items.insert(index, entry.to_bytes());
        }
        self.tree_of(parent, generation, items.into_iter().collect())
    }

    /// Makes a tree of items: one leaf, or leaves below a node.
    fn tree_of(&self, owner: TreeId, generation: Generation, items: Items) -> Option<Arc<TreeBlock>> {
        let room = self.geometry.node_size as usize - NodeHeader::SIZE;
        let mut leaves: Vec<Items> = vec![Items::new()];
        let mut filled = 0;
        for (key, data) in items {
            let need = data.len() + ItemHeader::SIZE;
            if filled + need > room {
                leaves.push(Items::new());
                filled = 0;
            }
            filled += need;
            leaves.last_mut()?.push((key, data));
        }
        let mut blocks = Vec::new();
        for leaf in leaves {
            let bytes = encode_leaf(&self.empty(owner, generation, 0), &leaf)?;
            let block = TreeBlock::in_memory(bytes, Vec::new(), &self.geometry).ok()?;
            let pointer = KeyPointer { key: leaf.first()?.0, address: NOWHERE, generation };
            blocks.push((pointer, Arc::new(block)));
        }
        if blocks.len() == 1 {
            return Some(blocks.pop()?.1);
        }
        if blocks.len() > room / KeyPointer::SIZE {
            return None;
        }
        let mut bytes = self.empty(owner, generation, 1);
        let (mut header, _) = NodeHeader::parse_prefix(&bytes).ok()?;
        header.item_count = blocks.len() as u32;
        bytes[..NodeHeader::SIZE].copy_from_slice(&header.to_bytes());
        for (slot, (pointer, _)) in blocks.iter().enumerate() {
            let at = NodeHeader::SIZE + slot * KeyPointer::SIZE;
            bytes[at..][..KeyPointer::SIZE].copy_from_slice(&pointer.to_bytes());
        }
        let links = blocks.into_iter().map(|(_, block)| Some(block)).collect();
        Some(Arc::new(TreeBlock::in_memory(bytes, links, &self.geometry).ok()?))
    }

    fn empty(&self, owner: TreeId, generation: Generation, level: u8) -> Vec<u8> {
        let header = NodeHeader {
            csum: [0; 32],
            fsid: self.geometry.metadata_uuid,
            address: NOWHERE,
            flags: 1 | 1 << 56,
            chunk_tree_uuid: Uuid::nil(),
            generation,
            owner,
            item_count: 0,
            level,
        };
        let mut bytes = header.to_bytes().to_vec();
        bytes.resize(self.geometry.node_size as usize, 0);
        bytes
    }
}

impl StandIns for LostRoots {
    fn stand_in(
        &self,
        tree: TreeId,
        expected: &NodeExpectation,
        _bound: Option<Key>,
    ) -> Option<Arc<TreeBlock>> {
        let is_root = expected.first_key.is_none();
        if !is_root || !objectid::is_subvolume(tree) || !(self.all || tree == objectid::FS_TREE) {
            return None;
        }
        let mut made = self.made.lock();
        if let Some(known) = made.get(&tree) {
            return known.clone();
        }
        let newest = self.geometry.generation;
        let generation = expected.generation.unwrap_or(newest).0.clamp(1, newest.0.max(1));
        let block = self.make(tree, Generation(generation));
        if block.is_some() {
            let reason = "the root block cannot be read".to_owned();
            let (block, used) = (expected.address, ItemUse::RootPassed);
            self.faults.add(vec![ItemFault { tree, block, key: None, used, reason }]);
        }
        made.insert(tree, block.clone());
        block
    }

    fn replaces_inner_blocks(&self) -> bool {
        false
    }

    fn covers(&self, _tree: TreeId, _first: Key, _last: Key) -> bool {
        false
    }
}

/// Blocks from the first source that has one.
#[derive(Debug)]
pub(super) struct Either(pub(super) Box<dyn StandIns>, pub(super) Box<dyn StandIns>);

impl StandIns for Either {
    fn stand_in(
        &self,
        tree: TreeId,
        expected: &NodeExpectation,
        bound: Option<Key>,
    ) -> Option<Arc<TreeBlock>> {
        self.0.stand_in(tree, expected, bound).or_else(|| self.1.stand_in(tree, expected, bound))
    }

    fn replaces_inner_blocks(&self) -> bool {
        self.0.replaces_inner_blocks() || self.1.replaces_inner_blocks()
    }

    fn covers(&self, tree: TreeId, first: Key, last: Key) -> bool {
        self.0.covers(tree, first, last) || self.1.covers(tree, first, last)
    }
}
