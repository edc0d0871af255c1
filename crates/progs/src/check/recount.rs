//! Counts all references to extents anew, without believing the extent tree.
//!
//! Owns [`Recount`], from which a repair writes the extent tree and the free-space tree.
//!
//! **Rule**: a block of a file tree has FULL_BACKREF if and only if the tree that owns it does not
//! reach it. The kernel sets the flag when the owner copies a block that others share
//! (`update_ref_for_cow`, `fs/btrfs/ctree.c`).

use super::inventory::Inventory;
use super::references::{Extent, Holder, Reference, References, merge_equal};
use super::walker::Seen;
use papilio_engine::btree::Forest;
use papilio_engine::errors::Result;
use papilio_format::items::extent::ExtentFlags;
use papilio_format::items::file_extent::{FileExtentContent, FileExtentItem};
use papilio_format::{ItemType, Key, LogicalAddress, NodeExpectation, TreeId, objectid};
use std::collections::{BTreeMap, HashSet};

/// A tree block that a repair is about to write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewBlock {
    pub(crate) address: LogicalAddress,
    pub(crate) owner: TreeId,
    pub(crate) level: u8,
    pub(crate) first_key: Key,
}

/// Items with their keys.
type Items = Vec<(Key, Vec<u8>)>;

/// The side of a back reference that refers to a tree block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claimant {
    Tree(TreeId),
    /// A block with full back references.
    Block(LogicalAddress),
}

/// An extent, and the first key of a tree block.
type Counted = (Extent, Option<Key>);

/// All references that trees hold, and the extents that they lead to.
#[derive(Debug)]
pub(crate) struct Recount<'a> {
    references: &'a References,
    extents: BTreeMap<u64, Counted>,
    found: Vec<Reference>,
}

/// Whether a block's references name it, not its owner.
fn is_full(seen: &Seen) -> bool {
    objectid::is_fs_tree(seen.owner) && !seen.owned
}

impl References {
    /// Returns the ranges of all extents that the extent tree lists or that trees refer to.
    pub(crate) fn used_ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let listed = self.extents.iter().map(|extent| (extent.start, extent.end()));
        listed.chain(self.claims.iter().copied())
    }

    /// Returns the tree blocks to which a tree, or a block, does not refer although their back
    /// references say so.
    pub(crate) fn unclaimed_blocks(&self) -> impl Iterator<Item = (LogicalAddress, Claimant)> + '_ {
        self.stored.iter().filter_map(|stored| {
            let claimant = match stored.holder {
                Holder::Tree { root } => Claimant::Tree(TreeId(root)),
                Holder::SharedTree { parent } => Claimant::Block(LogicalAddress(parent)),
                Holder::Data { .. } | Holder::SharedData { .. } => return None,
            };
            let found = self.found.binary_search_by_key(&stored.order(), Reference::order);
            let count = found.map_or(0, |index| self.found[index].count);
            (count < stored.count).then_some((LogicalAddress(stored.extent), claimant))
        })
    }

    /// Returns the tree blocks that several blocks or roots refer to.
    pub(crate) fn shared_blocks(&self) -> HashSet<LogicalAddress> {
        let mut shared = HashSet::new();
        for group in self.found.chunk_by(|a, b| a.extent == b.extent) {
            let trees = group
                .iter()
                .filter(|found| matches!(found.holder, Holder::Tree { .. } | Holder::SharedTree { .. }));
            if trees.map(|found| found.count).sum::<u64>() > 1 {
                shared.insert(LogicalAddress(group[0].extent));
            }
        }
        shared
    }

    /// Returns the blocks whose flag FULL_BACKREF is wrong, with the right flags.
    pub(crate) fn wrong_flags<'b>(
        &'b self,
        seen: &'b std::collections::HashMap<LogicalAddress, Seen>,
    ) -> impl Iterator<Item = (u64, ExtentFlags)> + 'b {
        let flag = ExtentFlags::FULL_BACKREF;
        self.extents.iter().filter_map(move |extent| {
            let seen = seen.get(&LogicalAddress(extent.start)).filter(|seen| !seen.broken)?;
            // A relocation that was interrupted leaves flags that nobody else sets.
            let known = seen.owner != objectid::TREE_RELOC && !extent.is_data();
            let right = is_full(seen);
            (known && extent.flags.contains(flag) != right).then(|| match right {
                true => (extent.start, extent.flags.union(flag)),
                false => (extent.start, extent.flags.difference(flag)),
            })
        })
    }
}

impl<'a> Recount<'a> {
    /// Reads all blocks of the inventory but those of the trees `without`, which are to be written
    /// anew.
    ///
    /// # Errors
    /// A block that could be read a moment ago cannot be read.
    pub(crate) fn new(inventory: &'a Inventory, forest: &Forest, without: &[TreeId]) -> Result<Self> {
        let references = &inventory.references;
        let mut recount = Self { references, extents: BTreeMap::new(), found: Vec::new() };
        let superblock = forest.volume().superblock().raw;
        let top = [(objectid::ROOT_TREE, superblock.root), (objectid::CHUNK_TREE, superblock.chunk_root)];
        let roots = inventory.roots.iter().map(|root| (root.id, root.item.address));
        for (tree, root) in roots.chain(top).filter(|(tree, _)| !without.contains(tree)) {
            let holder = match tree {
                objectid::TREE_RELOC => Holder::SharedTree { parent: root.0 },
                _ => Holder::Tree { root: tree.0 },
            };
            recount.count(root.0, holder);
        }
        let mut blocks: Vec<_> = inventory.seen.iter().collect();
        blocks.sort_by_key(|(address, _)| **address);
        for (address, seen) in blocks {
            if !seen.broken && !without.contains(&seen.owner) {
                recount.count_block(inventory, forest, *address, seen)?;
            }
        }
        merge_equal(&mut recount.found);
        Ok(recount)
    }

    fn count(&mut self, extent: u64, holder: Holder) {
        self.found.push(Reference { extent, holder, count: 1 });
    }

    fn count_block(
        &mut self,
        inventory: &Inventory,
        forest: &Forest,
        address: LogicalAddress,
        seen: &Seen,
    ) -> Result<()> {
        let block = forest.block(seen.owner, &NodeExpectation::at(address))?;
        let (view, parent, root, full) = (block.view(), address.0, block.owner().0, is_full(seen));
        let flags = match full {
            true => ExtentFlags::TREE_BLOCK.union(ExtentFlags::FULL_BACKREF),
            false => ExtentFlags::TREE_BLOCK,
        };
        let first_key = if view.is_empty() { Key::MIN } else { view.key(0) };
        let length = self.references.geometry.node_size.into();
        let extent = Extent::new(parent, length, block.generation().0, flags, block.level());
        self.extents.insert(parent, (extent, Some(first_key)));
        for slot in 0..view.len() {
            if block.level() > 0 {
                let child = view.child(slot).address;
                // A subvolume that is being deleted has pointers to blocks that it gave up.
                if inventory.seen.contains_key(&child) {
                    self.count(child.0, Holder::of_child(root, parent, full));
                }
                continue;
            }
            let key = view.key(slot);
            if key.item_type != ItemType::EXTENT_DATA {
                continue;
            }
            let Ok(item) = FileExtentItem::parse(view.item(slot)) else { continue };
            let (FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part)) = item.content else {
                continue;
            };
            if part.is_hole() {
                continue;
            }
            let start = part.disk_address.0;
            self.count(start, Holder::of_data(root, parent, full, key, part.offset));
            let new = Extent::new(start, part.disk_length, item.generation.0, ExtentFlags::DATA, 0);
            let entry = self.extents.entry(start).or_insert((new, None));
            if entry.0.is_data() {
                // The extent tree decides, as far as it can be read; else the longest.
                let listed = self.references.extent_at(start).filter(|listed| listed.is_data());
                entry.0.length = listed.map_or(entry.0.length.max(new.length), |listed| listed.length);
                entry.0.generation = entry.0.generation.min(new.generation);
            }
        }
        Ok(())
    }

    /// Returns the items of all extents, in order, with those of `new` blocks; and each extent's
    /// range. `None` if the file system's form of items is not supported.
    pub(crate) fn items(&self, new: &[NewBlock], generation: u64) -> Option<(Items, Vec<(u64, u64)>)> {
        let (mut items, mut ranges) = (Vec::new(), Vec::new());
        let length = self.references.geometry.node_size.into();
        for block in new {
            let flags = ExtentFlags::TREE_BLOCK;
            let extent = Extent::new(block.address.0, length, generation, flags, block.level);
            let holder = Holder::Tree { root: block.owner.0 };
            let found = [Reference { extent: block.address.0, holder, count: 1 }];
            items.extend(self.references.encode(&extent, &found, Some(block.first_key))?);
            ranges.push((extent.start, extent.end()));
        }
        for group in self.found.chunk_by(|a, b| a.extent == b.extent) {
            // A root or a pointer that leads to nothing.
            let Some((extent, first_key)) = self.extents.get(&group[0].extent) else { continue };
            items.extend(self.references.encode(extent, group, *first_key)?);
            ranges.push((extent.start, extent.end()));
        }
        items.sort_by_key(|(key, _)| *key);
        ranges.sort_unstable();
        Some((items, ranges))
    }
}
