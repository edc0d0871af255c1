//! Changes of trees, made where their blocks are.
//!
//! Owns [`Editor`], which finds the leaf of a key and writes leaves and nodes with all their
//! copies; and [`RoundContext`], the free blocks that it takes.
//!
//! **Invariants**
//! - A block is read and checked before it changes; one that cannot be read is not written.
//! - A leaf that has no room is divided, and one without items leaves its tree. The root of a tree
//!   stays where it is.
//! - New blocks have the generation of the block that they were divided from. Nothing lists them in
//!   the extent tree: the next check finds them, and proposes their items.
//! - The first key of a leaf is also in its parents, which change with it.
//! - A shared leaf changes for all its trees if each of them has the fault ([`Scope`]). Otherwise
//!   the tree gets a copy first. A shared leaf is never divided: a tree that needs more room gets a
//!   copy.
//!
//! Locks: none; nothing else has the file system open.

use super::free_blocks::FreeBlocks;
use papilio_engine::btree::{Forest, TreeBlock};
use papilio_engine::errors::{Error, Result};
pub(super) use papilio_engine::items::Items;
use papilio_engine::items::mended_fields::Around;
use papilio_engine::items::sound_items::encode_leaf;
use papilio_engine::volume::Volume;
use papilio_format::items::inode::InodeItem;
use papilio_format::items::root::RootItem;
use papilio_format::node::{ItemHeader, KeyPointer, NodeHeader};
use papilio_format::superblock::RawSuperblock;
use papilio_format::{ItemType, Key, LogicalAddress, NodeExpectation, TreeId, objectid};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Bytes of the checksum at the start of a block.
const CHECKSUM: usize = 32;

/// The levels of a tree are below this (`BTRFS_MAX_LEVEL`).
pub(super) const MAX_LEVEL: u8 = 8;

/// One step down from the root: the block, and the slot of the child.
pub(super) type Path = Vec<(Arc<TreeBlock>, usize)>;

/// A leaf, the way to it, and the first key of the leaf after it.
struct FoundLeaf {
    path: Path,
    leaf: Arc<TreeBlock>,
    bound: Option<Key>,
}

pub(super) struct Editor<'a> {
    pub(super) volume: &'a Arc<Volume>,
    context: &'a RoundContext,
    forest: Arc<Forest>,
}

/// The means of a round of repair: free blocks, and the blocks that several trees share.
#[derive(Debug)]
pub(super) struct RoundContext {
    free: RefCell<FreeBlocks>,
    shared: RefCell<HashSet<LogicalAddress>>,
    /// The subvolumes, which may share blocks.
    subvolumes: Vec<TreeId>,
    /// The trees that the present change concerns.
    scope: RefCell<Scope>,
    /// By leaf: the subvolumes that reach it.
    holders: RefCell<HashMap<LogicalAddress, Vec<TreeId>>>,
}

/// The trees that a change of a shared leaf concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// All trees of the leaf.
    All,
    /// One tree. Others keep what they have.
    One,
    /// The tree that is changed, and these, which have the same fault.
    These(Vec<TreeId>),
}

impl RoundContext {
    pub(super) fn new(free: FreeBlocks, shared: HashSet<LogicalAddress>, subvolumes: Vec<TreeId>) -> Self {
        let (scope, holders) = (RefCell::new(Scope::All), RefCell::default());
        Self { free: RefCell::new(free), shared: RefCell::new(shared), subvolumes, scope, holders }
    }

    /// Returns the trees that changes concern.
    pub(super) fn scope(&self) -> Scope {
        self.scope.borrow().clone()
    }

    /// Sets the trees that the next changes concern.
    pub(super) fn set_scope(&self, scope: Scope) {
        *self.scope.borrow_mut() = scope;
    }

    /// Takes a free block for a tree.
    pub(super) fn take(&self, tree: TreeId) -> Result<LogicalAddress> {
        self.free.borrow_mut().take(tree)
    }

    /// Whether a block was wanted that only a new metadata chunk could give.
    pub(super) fn ran_out(&self) -> bool {
        self.free.borrow().ran_out()
    }

    pub(super) fn is_shared(&self, block: LogicalAddress) -> bool {
        self.shared.borrow().contains(&block)
    }

    fn share(&self, block: LogicalAddress) {
        self.shared.borrow_mut().insert(block);
    }
}

/// Returns the error for a change that cannot be made.
pub(super) fn refuse<T>(reason: impl Into<String>) -> Result<T> {
    Err(Error::Invalid(reason.into()))
}

impl<'a> Editor<'a> {
    pub(super) fn new(volume: &'a Arc<Volume>, context: &'a RoundContext) -> Self {
        // Without a cache, as blocks change behind it.
        Self { volume, context, forest: Forest::new(Arc::clone(volume), 0) }
    }

    /// Reads the first good copy of a block.
    pub(super) fn block(&self, address: LogicalAddress) -> Result<Arc<TreeBlock>> {
        let copies = self.volume.copies(address)?;
        let expected = NodeExpectation::at(address);
        for copy in 0..copies {
            if let Ok(block) = self.forest.read_copy(&expected, copy) {
                return Ok(Arc::new(block));
            }
        }
        refuse(format!("block {address} cannot be read"))
    }

    /// Writes all copies of a block, with its checksum.
    pub(super) fn write(&self, address: LogicalAddress, mut bytes: Vec<u8>) -> Result<()> {
        let sum = self.volume.geometry().checksum_type.compute(&bytes[CHECKSUM..]);
        bytes[..CHECKSUM].copy_from_slice(sum.padded());
        self.volume.write(address, &bytes)
    }

    pub(super) fn root(&self, tree: TreeId) -> Result<LogicalAddress> {
        match tree {
            objectid::ROOT_TREE => return Ok(current_superblock(self.volume)?.root),
            objectid::CHUNK_TREE => return Ok(current_superblock(self.volume)?.chunk_root),
            _ => {}
        }
        let (first, last) = root_item_keys(tree);
        let items = self.items(objectid::ROOT_TREE, &first, &last)?;
        let Some((_, data)) = items.last() else { return refuse(format!("tree {tree} does not exist")) };
        match RootItem::parse(data) {
            Ok(item) => Ok(item.address),
            Err(reason) => refuse(format!("the root item of tree {tree}: {reason}")),
        }
    }

    /// Finds the leaf that has a key, or in which it would be inserted.
    fn find(&self, tree: TreeId, key: &Key) -> Result<FoundLeaf> {
        let mut block = self.block(self.root(tree)?)?;
        let (mut path, mut bound) = (Path::new(), None);
        while block.level() > 0 {
            let view = block.view();
            let slot = match view.search(key) {
                Ok(slot) => slot,
                Err(slot) => slot.saturating_sub(1),
            };
            if slot + 1 < view.len() {
                bound = Some(view.key(slot + 1));
            }
            let child = self.block(view.child(slot).address)?;
            if child.level() + 1 != block.level() {
                return refuse(format!("block {} has a wrong level", child.address()));
            }
            path.push((block, slot));
            block = child;
        }
        Ok(FoundLeaf { path, leaf: block, bound })
    }

    /// Returns the way from the root to a block that is on the way to a key; its own slot in the
    /// last step is that of the key.
    pub(super) fn path_to(&self, tree: TreeId, key: &Key, target: LogicalAddress) -> Result<Path> {
        let mut block = self.block(self.root(tree)?)?;
        let mut path = Path::new();
        while block.level() > 0 {
            let view = block.view();
            let slot = match view.search(key) {
                Ok(slot) => slot,
                Err(slot) => slot.saturating_sub(1),
            };
            let child = view.child(slot).address;
            path.push((Arc::clone(&block), slot));
            if block.address() == target {
                return Ok(path);
            }
            let next = self.block(child)?;
            if next.level() >= block.level() {
                break;
            }
            block = next;
        }
        refuse(format!("no path of tree {tree} leads to block {target}"))
    }

    /// Returns the items of a tree from `first` to `last`.
    pub(super) fn items(&self, tree: TreeId, first: &Key, last: &Key) -> Result<Items> {
        let mut all = Items::new();
        let mut at = *first;
        loop {
            let found = self.find(tree, &at)?;
            all.extend(decode(&found.leaf).into_iter().filter(|(key, _)| key >= first && key <= last));
            match found.bound {
                Some(bound) if bound <= *last && bound > at => at = bound,
                _ => return Ok(all),
            }
        }
    }

    /// Returns the last key that is not after `key`.
    pub(super) fn last_before(&self, tree: TreeId, key: &Key) -> Result<Option<Key>> {
        let found = self.find(tree, key)?;
        let view = found.leaf.view();
        let slot = match view.search(key) {
            Ok(slot) => slot + 1,
            Err(slot) => slot,
        };
        Ok(slot.checked_sub(1).map(|slot| view.key(slot)))
    }

    /// Returns one item.
    pub(super) fn item(&self, tree: TreeId, key: &Key) -> Result<Option<Vec<u8>>> {
        Ok(self.items(tree, key, key)?.pop().map(|(_, data)| data))
    }

    /// Returns an item that must exist.
    pub(super) fn need(&self, tree: TreeId, key: &Key) -> Result<Vec<u8>> {
        match self.item(tree, key)? {
            Some(data) => Ok(data),
            None => refuse(format!("tree {tree} has no item {key}")),
        }
    }

    /// Writes one item.
    pub(super) fn put(&self, tree: TreeId, key: Key, data: Vec<u8>) -> Result<bool> {
        self.replace(tree, &key, &key, vec![(key, data)])
    }

    /// Replaces all items from `first` to `last`. Returns whether anything changed.
    pub(super) fn replace(&self, tree: TreeId, first: &Key, last: &Key, new: Items) -> Result<bool> {
        let mut new = new;
        new.sort_by_key(|(key, _)| *key);
        let (mut at, mut changed) = (*first, false);
        loop {
            let mut found = self.find(tree, &at)?;
            let bound = found.bound;
            let old = decode(&found.leaf);
            let mut items = old.clone();
            items.retain(|(key, _)| key < first || key > last);
            let mine = bound.map_or(new.len(), |bound| new.partition_point(|(key, _)| *key < bound));
            items.extend(new.drain(..mine));
            items.sort_by_key(|(key, _)| *key);
            if items != old {
                self.store(tree, &mut found, &items)?;
                changed = true;
            }
            match bound {
                Some(bound) if bound <= *last && bound > at => at = bound,
                _ => return Ok(changed),
            }
        }
    }

    /// Writes a leaf with other items: removes it without any, and divides it if they do not fit.
    fn store(&self, tree: TreeId, found: &mut FoundLeaf, items: &Items) -> Result<()> {
        if self.is_kept_apart(tree, found) {
            self.unshare(tree, found)?;
        }
        let old = found.leaf.bytes();
        if items.is_empty() && !found.path.is_empty() {
            return self.remove_child(tree, &found.path);
        }
        if let Ok(bytes) = encode(old, items) {
            self.write(found.leaf.address(), bytes)?;
            return match items.first() {
                Some((first, _)) => self.set_first_key(&found.path, first),
                None => Ok(()),
            };
        }
        self.unshare(tree, found)?;
        let old = found.leaf.bytes();
        let mut pieces = Vec::new();
        for piece in divide(items, old.len() - NodeHeader::SIZE)? {
            pieces.push((piece[0].0, encode(old, &piece)?));
        }
        self.place(tree, &found.path, &found.leaf, pieces)
    }

    /// Whether a tree must get its own copy of a leaf before it changes.
    fn is_kept_apart(&self, tree: TreeId, found: &FoundLeaf) -> bool {
        let blocks = found.path.iter().map(|(block, _)| block).chain([&found.leaf]);
        match &*self.context.scope.borrow() {
            Scope::All => false,
            Scope::One => true,
            Scope::These(_) if !blocks.map(|block| block.address()).any(|at| self.context.is_shared(at)) => {
                false
            }
            Scope::These(trees) => {
                !self.holders(&found.leaf).iter().all(|holder| *holder == tree || trees.contains(holder))
            }
        }
    }

    /// Returns the subvolumes that reach a leaf. One whose way there is damaged does not.
    fn holders(&self, leaf: &TreeBlock) -> Vec<TreeId> {
        let view = leaf.view();
        if view.is_empty() {
            return self.context.subvolumes.clone();
        }
        let first = view.key(0);
        let reaches = |tree: &TreeId| {
            self.find(*tree, &first).is_ok_and(|found| found.leaf.address() == leaf.address())
        };
        let mut known = self.context.holders.borrow_mut();
        let holders = known
            .entry(leaf.address())
            .or_insert_with(|| self.context.subvolumes.iter().copied().filter(reaches).collect());
        holders.clone()
    }

    /// Writes the pieces that a block was divided into: the first in its place, the others in new
    /// blocks, which their parent gets pointers to. A root stays where it is, one level higher.
    fn place(
        &self,
        tree: TreeId,
        path: &[(Arc<TreeBlock>, usize)],
        block: &TreeBlock,
        pieces: Vec<(Key, Vec<u8>)>,
    ) -> Result<()> {
        let mut pointers = Vec::with_capacity(pieces.len());
        for (number, (key, mut bytes)) in pieces.into_iter().enumerate() {
            let address = match number {
                0 if !path.is_empty() => block.address(),
                _ => self.context.take(tree)?,
            };
            set_header(&mut bytes, |header| header.address = address)?;
            self.write(address, bytes)?;
            pointers.push(KeyPointer { key, address, generation: block.generation() });
        }
        let Some(((parent, slot), above)) = path.split_last() else {
            let level = block.level() + 1;
            if level >= MAX_LEVEL {
                return refuse(format!("tree {tree} would have more than {MAX_LEVEL} levels"));
            }
            let mut bytes = encode_node(block.bytes(), &pointers)?;
            set_header(&mut bytes, |header| header.level = level)?;
            self.write(block.address(), bytes)?;
            return self.set_level(tree, level);
        };
        // An earlier leaf of the same change may have changed the block.
        let parent = self.block(parent.address())?;
        let mut all = children(&parent);
        all.splice(*slot..slot + 1, pointers);
        self.store_node(tree, above, &parent, all)
    }

    /// Writes a node with other pointers, divided if they do not fit.
    pub(super) fn store_node(
        &self,
        tree: TreeId,
        above: &[(Arc<TreeBlock>, usize)],
        node: &TreeBlock,
        pointers: Vec<KeyPointer>,
    ) -> Result<()> {
        let most = (node.bytes().len() - NodeHeader::SIZE) / KeyPointer::SIZE;
        if pointers.len() <= most {
            self.write(node.address(), encode_node(node.bytes(), &pointers)?)?;
            return self.set_first_key(above, &pointers[0].key);
        }
        let size = pointers.len().div_ceil(pointers.len().div_ceil(most));
        let piece = |part: &[KeyPointer]| Ok((part[0].key, encode_node(node.bytes(), part)?));
        let pieces = pointers.chunks(size).map(piece).collect::<Result<Vec<_>>>()?;
        self.place(tree, above, node, pieces)
    }

    /// Removes the pointer at the end of a path; its block is no longer part of the tree. Nodes
    /// that become empty go with it, and an empty root becomes a leaf.
    pub(super) fn remove_child(&self, tree: TreeId, path: &[(Arc<TreeBlock>, usize)]) -> Result<()> {
        let Some(((parent, slot), above)) = path.split_last() else {
            return refuse(format!("tree {tree} has no other block"));
        };
        let parent = self.block(parent.address())?;
        let mut pointers = children(&parent);
        pointers.remove(*slot);
        if !pointers.is_empty() {
            self.write(parent.address(), encode_node(parent.bytes(), &pointers)?)?;
            return self.set_first_key(above, &pointers[0].key);
        }
        if !above.is_empty() {
            return self.remove_child(tree, above);
        }
        let mut bytes = encode(parent.bytes(), &Items::new())?;
        set_header(&mut bytes, |header| header.level = 0)?;
        self.write(parent.address(), bytes)?;
        self.set_level(tree, 0)
    }

    /// Gives a tree blocks of its own on the way to a leaf, from the first one on that other trees
    /// share: they get no pointers to the new blocks.
    fn unshare(&self, tree: TreeId, found: &mut FoundLeaf) -> Result<()> {
        let shared = |block: &TreeBlock| self.context.is_shared(block.address());
        let mut blocks = found.path.iter().map(|(block, _)| block).chain([&found.leaf]);
        let Some(first) = blocks.position(|block| shared(block)) else { return Ok(()) };
        drop(blocks);
        if first == 0 {
            self.unshare_root(tree, found)?;
        }
        for depth in first.max(1)..=found.path.len() {
            let (parent, slot) = &found.path[depth - 1];
            let (parent, slot) = (self.block(parent.address())?, *slot);
            let old = match found.path.get(depth) {
                Some((block, _)) => Arc::clone(block),
                None => Arc::clone(&found.leaf),
            };
            let address = self.context.take(tree)?;
            let mut bytes = old.bytes().to_vec();
            set_header(&mut bytes, |header| (header.address, header.owner) = (address, tree))?;
            self.write(address, bytes)?;
            if old.level() > 0 {
                children(&old).iter().for_each(|child| self.context.share(child.address));
            }
            self.edit_pointer(&parent, slot, |pointer| pointer.address = address)?;
            let new = self.block(address)?;
            match found.path.get_mut(depth) {
                Some(step) => step.0 = new,
                None => found.leaf = new,
            }
            found.path[depth - 1].0 = self.block(parent.address())?;
        }
        Ok(())
    }

    /// Gives a tree a root block of its own.
    fn unshare_root(&self, tree: TreeId, found: &mut FoundLeaf) -> Result<()> {
        if matches!(tree, objectid::ROOT_TREE | objectid::CHUNK_TREE) {
            return refuse(format!("the root of tree {tree} is a block of another tree"));
        }
        let root = found.path.first_mut().map_or(&mut found.leaf, |(block, _)| block);
        let address = self.context.take(tree)?;
        let mut bytes = root.bytes().to_vec();
        set_header(&mut bytes, |header| (header.address, header.owner) = (address, tree))?;
        self.write(address, bytes)?;
        if root.level() > 0 {
            children(root).iter().for_each(|child| self.context.share(child.address));
        }
        self.set_root(tree, |_, _, level| (address, None, level))?;
        *root = self.block(address)?;
        Ok(())
    }

    /// Sets the level of a tree's root block.
    pub(super) fn set_level(&self, tree: TreeId, level: u8) -> Result<()> {
        self.set_root(tree, |address, _, _| (address, None, level))
    }

    /// Changes address, generation and level of a tree's root, where the file system names it.
    pub(super) fn set_root(
        &self,
        tree: TreeId,
        edit: impl FnOnce(LogicalAddress, u64, u8) -> (LogicalAddress, Option<u64>, u8),
    ) -> Result<()> {
        if matches!(tree, objectid::ROOT_TREE | objectid::CHUNK_TREE) {
            let mut raw = current_superblock(self.volume)?;
            if tree == objectid::ROOT_TREE {
                (raw.root, _, raw.root_level) = edit(raw.root, raw.generation.0, raw.root_level);
            } else {
                let (address, generation, level) =
                    edit(raw.chunk_root, raw.chunk_root_generation.0, raw.chunk_root_level);
                (raw.chunk_root, raw.chunk_root_level) = (address, level);
                raw.chunk_root_generation.0 = generation.unwrap_or(raw.chunk_root_generation.0);
            }
            return write_superblock(self.volume, &raw);
        }
        let (first, last) = root_item_keys(tree);
        let items = self.items(objectid::ROOT_TREE, &first, &last)?;
        let Some((key, data)) = items.last() else { return refuse(format!("tree {tree} does not exist")) };
        let Ok(item) = RootItem::parse(data) else { return refuse("the root item is damaged") };
        let mut raw = item.into_raw();
        let (address, generation, level) = edit(raw.address, raw.generation.0, raw.level);
        (raw.address, raw.level) = (address, level);
        if let Some(generation) = generation {
            raw.generation.0 = generation;
        }
        let mut bytes = RootItem::new(raw).to_bytes().to_vec();
        // Root items of old file systems are shorter.
        bytes.truncate(data.len());
        self.put(objectid::ROOT_TREE, *key, bytes).map(drop)
    }

    /// Sets the key of a child in its parents, as far up as it is the first one.
    fn set_first_key(&self, path: &[(Arc<TreeBlock>, usize)], key: &Key) -> Result<()> {
        for (block, slot) in path.iter().rev() {
            // An earlier leaf of the same change may have changed the block.
            let block = self.block(block.address())?;
            if block.view().key(*slot) == *key {
                return Ok(());
            }
            self.edit_pointer(&block, *slot, |pointer| pointer.key = *key)?;
            if *slot > 0 {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Changes one pointer of a node.
    pub(super) fn edit_pointer(
        &self,
        block: &TreeBlock,
        slot: usize,
        edit: impl FnOnce(&mut KeyPointer),
    ) -> Result<()> {
        let mut pointer = block.view().child(slot);
        edit(&mut pointer);
        let mut bytes = block.bytes().to_vec();
        bytes[NodeHeader::SIZE + slot * KeyPointer::SIZE..][..KeyPointer::SIZE]
            .copy_from_slice(&pointer.to_bytes());
        self.write(block.address(), bytes)
    }
}

/// Returns an inode's item and its key.
pub(super) fn inode_item(editor: &Editor<'_>, tree: TreeId, inode: u64) -> Result<(Key, InodeItem)> {
    let key = Key::new(inode, ItemType::INODE_ITEM, 0);
    match InodeItem::parse(&editor.need(tree, &key)?) {
        Ok(item) => Ok((key, item)),
        Err(reason) => refuse(format!("inode {inode}: {reason}")),
    }
}

/// Returns the superblock as it is on the devices.
pub(super) fn current_superblock(volume: &Volume) -> Result<RawSuperblock> {
    let devices = volume.devices();
    let devices = devices.iter().filter_map(|slot| slot.device.clone());
    for device in devices {
        if let Ok(current) = papilio_engine::volume::superblock_of(&*device, 0)
            && current.raw.generation == volume.superblock().raw.generation
        {
            return Ok(current.raw);
        }
    }
    Ok(volume.superblock().raw)
}

/// Writes all superblock copies, after all blocks that they may name.
pub(super) fn write_superblock(volume: &Volume, raw: &RawSuperblock) -> Result<()> {
    volume.flush()?;
    volume.write_superblocks(raw)
}

/// Returns the first and the last key that root items of a tree can have.
pub(super) fn root_item_keys(tree: TreeId) -> (Key, Key) {
    (Key::new(tree.0, ItemType::ROOT_ITEM, 0), Key::new(tree.0, ItemType::ROOT_ITEM, u64::MAX))
}

/// Returns the pointers of a node.
pub(super) fn children(node: &TreeBlock) -> Vec<KeyPointer> {
    let view = node.view();
    (0..view.len()).map(|slot| view.child(slot)).collect()
}

/// Changes the header of an encoded block.
pub(super) fn set_header(bytes: &mut [u8], edit: impl FnOnce(&mut NodeHeader)) -> Result<()> {
    let Ok((mut header, _)) = NodeHeader::parse_prefix(bytes) else { return refuse("no header") };
    edit(&mut header);
    bytes[..NodeHeader::SIZE].copy_from_slice(&header.to_bytes());
    Ok(())
}

/// Divides items into leaves of about the same size.
fn divide(items: &Items, room: usize) -> Result<Vec<Items>> {
    let size = |data: &[u8]| data.len() + ItemHeader::SIZE;
    let total: usize = items.iter().map(|(_, data)| size(data)).sum();
    let target = total.div_ceil(total.div_ceil(room).max(2));
    let (mut pieces, mut filled) = (vec![Items::new()], 0);
    for (key, data) in items {
        let need = size(data);
        if need > room {
            return refuse(format!("item {key} does not fit into a leaf"));
        }
        if filled > 0 && (filled >= target || filled + need > room) {
            pieces.push(Items::new());
            filled = 0;
        }
        filled += need;
        pieces.last_mut().expect("at least one").push((*key, data.clone()));
    }
    Ok(pieces)
}

/// Encodes a node of the level of the old block, or of level 1 if that was a leaf.
pub(super) fn encode_node(old: &[u8], pointers: &[KeyPointer]) -> Result<Vec<u8>> {
    let mut bytes = vec![0; old.len()];
    bytes[..NodeHeader::SIZE].copy_from_slice(&old[..NodeHeader::SIZE]);
    set_header(&mut bytes, |header| {
        header.item_count = pointers.len() as u32;
        header.level = header.level.max(1);
    })?;
    for (slot, pointer) in pointers.iter().enumerate() {
        bytes[NodeHeader::SIZE + slot * KeyPointer::SIZE..][..KeyPointer::SIZE]
            .copy_from_slice(&pointer.to_bytes());
    }
    Ok(bytes)
}

pub(super) fn decode(leaf: &TreeBlock) -> Items {
    let view = leaf.view();
    (0..view.len()).map(|slot| (view.key(slot), view.item(slot).to_vec())).collect()
}

/// Encodes a leaf with the header of the old one.
pub(super) fn encode(old: &[u8], items: &Items) -> Result<Vec<u8>> {
    match encode_leaf(old, items) {
        Some(bytes) => Ok(bytes),
        None => refuse("a leaf has no room for its items"),
    }
}

impl Around for Editor<'_> {
    fn item(&self, tree: TreeId, key: &Key) -> Option<Vec<u8>> {
        Editor::item(self, tree, key).ok().flatten()
    }

    fn items(&self, tree: TreeId, first: &Key, last: &Key) -> Items {
        Editor::items(self, tree, first, last).unwrap_or_default()
    }

    fn block(&self, address: LogicalAddress) -> Option<(papilio_format::Generation, u8)> {
        let block = Editor::block(self, address).ok()?;
        Some((block.generation(), block.level()))
    }
}
