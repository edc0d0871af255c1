//! Which tree blocks a relocation has to copy.
//!
//! Owns [`RelocationPlan`]: for a batch of extents, all blocks that lead to them from any tree,
//! each once. A block is found by its back references: by tree and key, or by the address of its
//! parent.
//!
//! **Invariants**
//! - With a block, the plan holds all of its parents, up to the roots.
//! - Every reference that the extent tree counts was found in a block; otherwise planning fails.
//!
//! Locks: none; the caller keeps the trees from changing.
//!
//! Kernel counterpart: `btrfs_backref_add_tree_node`, `btrfs_backref_finish_upper_links`
//! (`fs/btrfs/backref.c`).

use super::delayed_refs::{RefKind, Reference, wrong_extent};
use super::extent_refs::ExtentRefs;
use super::transaction::Transactions;
use crate::btree::{Tree, TreeBlock};
use crate::errors::{Error, Result};
use papilio_format::items::file_extent::{ExtentPart, FileExtentContent, FileExtentItem};
use papilio_format::{
    FileOffset, InodeNumber, ItemType, Key, LogicalAddress, NodeExpectation, TreeId, objectid,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A tree block that is to be copied.
#[derive(Debug)]
pub(super) struct PlannedBlock {
    pub(super) block: Arc<TreeBlock>,
    pub(super) extent: ExtentRefs,
    /// The trees whose root it is.
    pub(super) roots: Vec<TreeId>,
}

/// The blocks to copy and the data extents to move, by their addresses.
pub(super) struct RelocationPlan<'t> {
    transactions: &'t Transactions,
    extents: Tree,
    pub(super) blocks: BTreeMap<LogicalAddress, PlannedBlock>,
    pub(super) data: BTreeMap<LogicalAddress, ExtentRefs>,
    /// Blocks to add.
    pending: Vec<LogicalAddress>,
    /// Most blocks, and most references of an extent.
    pub(super) most_blocks: usize,
    pub(super) most_references: usize,
    /// Whether one of these limits made planning fail.
    pub(super) is_too_large: bool,
}

impl<'t> RelocationPlan<'t> {
    /// An empty plan for the trees as they are on disk.
    pub(super) fn new(transactions: &'t Transactions) -> Result<Self> {
        let extents = transactions.live.get(objectid::EXTENT_TREE)?.tree();
        let (blocks, data, pending) = Default::default();
        let (most_blocks, most_references, is_too_large) = (usize::MAX, usize::MAX, false);
        Ok(Self { transactions, extents, blocks, data, pending, most_blocks, most_references, is_too_large })
    }

    /// Adds a tree block, unless it is gone.
    pub(super) fn add_block(&mut self, address: LogicalAddress) -> Result<()> {
        if self.find(address)?.is_some() {
            self.pending.push(address);
        }
        self.add_pending()
    }

    /// Adds a data extent, unless it is gone, and the leaves that refer to it.
    pub(super) fn add_data(&mut self, address: LogicalAddress) -> Result<()> {
        let Some(extent) = self.find(address)? else { return Ok(()) };
        if extent.refs.len() > self.most_references {
            self.is_too_large = true;
            return Err(wrong_extent(address, "has too many references"));
        }
        for &(reference, count) in &extent.refs {
            match reference {
                Reference::Data { root, inode, offset } => {
                    self.add_leaves(address, root, inode, offset, count)?
                }
                Reference::SharedData(parent) => self.pending.push(parent),
                _ => return Err(wrong_extent(address, "a tree block's reference to data")),
            }
        }
        self.data.insert(address, extent);
        self.add_pending()
    }

    /// Checks that each moving data extent is referred to as often as the extent tree counts.
    pub(super) fn finish(self) -> Result<Self> {
        match self.unconfirmed()? {
            Some(address) => Err(wrong_extent(address, "file extents and back references differ")),
            None => Ok(self),
        }
    }

    /// Returns a moving data extent that is not referred to as often as the extent tree counts.
    pub(super) fn unconfirmed(&self) -> Result<Option<LogicalAddress>> {
        let mut left: BTreeMap<(LogicalAddress, Reference), i64> = BTreeMap::new();
        for extent in self.data.values() {
            for &(reference, count) in &extent.refs {
                *left.entry((extent.address, reference)).or_default() += i64::from(count);
            }
        }
        for planned in self.blocks.values().filter(|planned| planned.block.level() == 0) {
            for slot in 0..planned.block.len() {
                let Some(part) = disk_extent(&planned.block, slot)? else { continue };
                if !self.data.contains_key(&part.disk_address) {
                    continue;
                }
                let key = planned.block.view().key(slot);
                let offset = FileOffset(key.offset.wrapping_sub(part.offset));
                let inode = InodeNumber(key.objectid);
                let reference = if planned.extent.is_full() {
                    Reference::SharedData(planned.extent.address)
                } else {
                    Reference::Data { root: planned.block.owner(), inode, offset }
                };
                *left.entry((part.disk_address, reference)).or_default() -= 1;
            }
        }
        Ok(left.into_iter().find(|&(_, count)| count != 0).map(|((address, _), _)| address))
    }

    fn find(&self, address: LogicalAddress) -> Result<Option<ExtentRefs>> {
        ExtentRefs::find(&self.extents, address, self.transactions.node_size())
    }

    fn add_pending(&mut self) -> Result<()> {
        while let Some(address) = self.pending.pop() {
            if self.blocks.contains_key(&address) {
                continue;
            }
            if self.blocks.len() >= self.most_blocks {
                self.is_too_large = true;
                return Err(wrong_extent(address, "is one of too many tree blocks"));
            }
            let extent = self.find(address)?.ok_or_else(|| wrong_extent(address, "has no item"))?;
            let RefKind::TreeBlock { level } = extent.kind else {
                return Err(wrong_extent(address, "is data, but referred to as a tree block"));
            };
            let expected = NodeExpectation { level: Some(level), ..NodeExpectation::at(address) };
            let block = self.transactions.live.forest().block(objectid::EXTENT_TREE, &expected)?;
            let mut roots = Vec::new();
            for &(reference, _) in &extent.refs {
                match reference {
                    Reference::Tree(id) => match self.parent_in(id, &block)? {
                        Some(parent) => self.pending.push(parent),
                        None => roots.push(id),
                    },
                    Reference::SharedBlock(parent) if parent != address => self.pending.push(parent),
                    _ => return Err(wrong_extent(address, "has a reference of no parent")),
                }
            }
            self.blocks.insert(address, PlannedBlock { block, extent, roots });
        }
        Ok(())
    }

    /// Returns the address of a block's parent in a tree; `None` if it is the tree's root.
    fn parent_in(&self, id: TreeId, block: &TreeBlock) -> Result<Option<LogicalAddress>> {
        let tree = self.transactions.live.get(id)?.tree();
        if tree.root().address == block.address() {
            return Ok(None);
        }
        let lost = || wrong_extent(block.address(), "the tree that refers to it does not lead to it");
        if block.len() == 0 || tree.root().level <= block.level() {
            return Err(lost());
        }
        let mut node = tree.root_block()?;
        loop {
            let slot = node.view().search(&block.first_key()).unwrap_or_else(|slot| slot.saturating_sub(1));
            if node.level() == block.level() + 1 {
                let found = node.view().child(slot).address == block.address();
                return if found { Ok(Some(node.address())) } else { Err(lost()) };
            }
            node = tree.child(&node, slot, None)?;
        }
    }

    /// Adds the leaves in which extent items of one inode refer to a data extent.
    fn add_leaves(
        &mut self,
        address: LogicalAddress,
        root: TreeId,
        inode: InodeNumber,
        offset: FileOffset,
        count: u32,
    ) -> Result<()> {
        let tree = self.transactions.live.get(root)?.tree();
        // An item may use the end of an extent whose start would be before the file's.
        let from = if offset.0 > i64::MAX as u64 { 0 } else { offset.0 };
        let first = Key::new(inode.0, ItemType::EXTENT_DATA, from);
        let last = Key::new(inode.0, ItemType::EXTENT_DATA, u64::MAX);
        let mut left = count;
        for item in tree.range(first..=last) {
            if left == 0 {
                break;
            }
            let item = item?;
            let Some(part) = parse_extent(tree.id(), item.key, item.data())? else { continue };
            if part.disk_address == address && item.key.offset.wrapping_sub(part.offset) == offset.0 {
                self.pending.push(item.leaf_address());
                left -= 1;
            }
        }
        Ok(())
    }
}

/// The extent on disk that an item of a leaf refers to.
pub(super) fn disk_extent(leaf: &TreeBlock, slot: usize) -> Result<Option<ExtentPart>> {
    let view = leaf.view();
    parse_extent(leaf.owner(), view.key(slot), view.item(slot))
}

fn parse_extent(tree: TreeId, key: Key, data: &[u8]) -> Result<Option<ExtentPart>> {
    if key.item_type != ItemType::EXTENT_DATA {
        return Ok(None);
    }
    let item = FileExtentItem::parse(data).map_err(|reason| Error::Item { tree, key, reason })?;
    Ok(match item.content {
        FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part) => {
            Some(part).filter(|part| !part.is_hole())
        }
        _ => None,
    })
}
