//! Writes the trees anew that can be computed from others: the extent tree with the block groups,
//! the free-space tree, the device tree, and trees that are empty at first.
//!
//! Owns [`rebuild_space`] and [`replace_tree`]. The new blocks of the extent tree and of the
//! free-space tree are extents themselves: they are placed first, and their number grows until the
//! items that describe them fit.
//!
//! Userspace counterpart: `reinit_extent_tree` (`check/main.c` of btrfs-progs).

use super::super::check::block_groups::group_item;
use super::super::check::free_space::items_of_group;
use super::super::check::inventory::Inventory;
use super::super::check::recount::{NewBlock, Recount};
use super::editor::{Editor, Items, RoundContext, refuse, root_item_keys};
use super::tree_writer::NewTree;
use papilio_engine::btree::Forest;
use papilio_engine::errors::Result;
use papilio_engine::volume::Volume;
use papilio_format::features::CompatRoFeatures;
use papilio_format::items::device::DeviceExtent;
use papilio_format::items::inode::{FileKind, InodeItem};
use papilio_format::items::inode_ref::InodeRef;
use papilio_format::items::root::{RawRootItem, RootItem};
use papilio_format::{Generation, InodeNumber, ItemType, Key, LogicalAddress, TreeId, objectid};
use std::sync::Arc;

/// The most times that the number of new blocks grows.
const MOST_TRIES: usize = 64;

/// Writes the extent tree, the tree of the block groups and the free-space tree anew. All trees
/// that refer to extents must be readable. Returns the changes.
///
/// # Errors
/// Forms of items that are not supported; lack of space; failures of a device.
pub(super) fn rebuild_space(
    volume: &Arc<Volume>,
    context: &RoundContext,
    inventory: &Inventory,
) -> Result<Vec<String>> {
    let forest = Forest::new(Arc::clone(volume), 16 << 20);
    let geometry = volume.geometry();
    let mut trees = vec![objectid::EXTENT_TREE];
    if inventory.group_tree != objectid::EXTENT_TREE {
        trees.push(inventory.group_tree);
    }
    if geometry.compat_ro.contains(CompatRoFeatures::FREE_SPACE_TREE) {
        trees.push(objectid::FREE_SPACE_TREE);
    }
    let recount = Recount::new(inventory, &forest, &trees)?;
    let mut addresses: Vec<Vec<LogicalAddress>> = vec![Vec::new(); trees.len()];
    let mut written: Vec<NewBlock> = Vec::new();
    for _ in 0..MOST_TRIES {
        let Some(items) = items_of_trees(inventory, &recount, &trees, &written, geometry.generation.0) else {
            return refuse("the extent tree cannot be written in the form that this file system has");
        };
        let plans: Vec<NewTree<'_>> = trees
            .iter()
            .zip(&items)
            .map(|(tree, items)| NewTree::plan(*tree, items, geometry.node_size))
            .collect::<Result<_>>()?;
        if plans.iter().zip(&addresses).all(|(plan, addresses)| plan.blocks() == addresses.len()) {
            let listed: Vec<NewBlock> =
                plans.iter().zip(&addresses).flat_map(|(plan, addresses)| plan.at(addresses)).collect();
            let same = |(a, b): (&NewBlock, &NewBlock)| {
                (a.address, a.level, a.first_key) == (b.address, b.level, b.first_key)
            };
            if listed.len() == written.len() && listed.iter().zip(&written).all(same) {
                return write_trees(volume, context, inventory, &plans, &addresses);
            }
            written = listed;
            continue;
        }
        for ((plan, addresses), tree) in plans.iter().zip(&mut addresses).zip(&trees) {
            // Blocks that are no longer needed stay free: nothing was written to them.
            addresses.truncate(plan.blocks());
            while addresses.len() < plan.blocks() {
                addresses.push(context.take(*tree)?);
            }
        }
        written = plans.iter().zip(&addresses).flat_map(|(plan, addresses)| plan.at(addresses)).collect();
    }
    refuse("the new extent tree does not settle")
}

/// Returns the items of each tree, as if the blocks `new` were in use.
fn items_of_trees(
    inventory: &Inventory,
    recount: &Recount<'_>,
    trees: &[TreeId],
    new: &[NewBlock],
    generation: u64,
) -> Option<Vec<Items>> {
    let (mut extents, ranges) = recount.items(new, generation)?;
    let mut groups = Items::new();
    let mut free = Items::new();
    let sector = u64::from(inventory.references.geometry().sector_size);
    for (start, chunk) in &inventory.chunks {
        let (start, end) = (start.0, start.0.saturating_add(chunk.length));
        let first = ranges.partition_point(|range| range.0 < start);
        let inside = ranges[first..].iter().take_while(|range| range.0 < end);
        let used = inside.map(|range| range.1 - range.0).sum();
        groups.push(group_item(start, chunk.length, used, chunk.flags));
        free.extend(items_of_group(start, end, &ranges, sector));
    }
    if inventory.group_tree == objectid::EXTENT_TREE {
        extents.append(&mut groups);
        extents.sort_by_key(|(key, _)| *key);
    }
    let of_tree = |tree: &TreeId| match *tree {
        objectid::EXTENT_TREE => std::mem::take(&mut extents),
        objectid::FREE_SPACE_TREE => std::mem::take(&mut free),
        _ => std::mem::take(&mut groups),
    };
    Some(trees.iter().map(of_tree).collect())
}

fn write_trees(
    volume: &Arc<Volume>,
    context: &RoundContext,
    inventory: &Inventory,
    plans: &[NewTree<'_>],
    addresses: &[Vec<LogicalAddress>],
) -> Result<Vec<String>> {
    let generation = volume.geometry().generation;
    let uuid = inventory.chunk_tree_uuid;
    for (plan, addresses) in plans.iter().zip(addresses) {
        plan.write(volume, uuid, generation, addresses)?;
    }
    let editor = Editor::new(volume, context);
    let mut changes = Vec::new();
    for (plan, addresses) in plans.iter().zip(addresses) {
        switch_root(&editor, plan, addresses, generation)?;
        changes.push(plan.to_string());
    }
    Ok(changes)
}

/// Makes the last block of a written tree its root.
fn switch_root(
    editor: &Editor<'_>,
    plan: &NewTree<'_>,
    addresses: &[LogicalAddress],
    generation: Generation,
) -> Result<()> {
    let (tree, root, level) = (plan.owner(), addresses[addresses.len() - 1], plan.level());
    let (first, last) = root_item_keys(tree);
    let in_root_tree = !matches!(tree, objectid::ROOT_TREE | objectid::CHUNK_TREE);
    if in_root_tree && editor.items(objectid::ROOT_TREE, &first, &last)?.is_empty() {
        let item = new_root_item(editor.volume, tree, root, level);
        return editor.put(objectid::ROOT_TREE, first, item).map(drop);
    }
    editor.set_root(tree, |_, _, _| (root, Some(generation.0), level))
}

fn new_root_item(volume: &Volume, tree: TreeId, address: LogicalAddress, level: u8) -> Vec<u8> {
    let node_size = u64::from(volume.geometry().node_size);
    let generation = volume.geometry().generation;
    let blank = vec![0; RawRootItem::SIZE];
    let mut raw = RawRootItem::parse(&blank).expect("zeros are a root item");
    raw.inode = InodeItem { generation, size: 3, nbytes: node_size, nlink: 1, ..raw.inode };
    raw.inode.mode = FileKind::Directory.mode_bits() | 0o755;
    (raw.generation, raw.address, raw.level) = (generation, address, level);
    (raw.refs, raw.bytes_used) = (1, node_size);
    if objectid::is_fs_tree(tree) {
        raw.root_dirid = InodeNumber(objectid::FIRST_FREE);
    }
    RootItem::new(raw).to_bytes().to_vec()
}

/// Writes a tree anew that is not the extent tree. The extent tree learns of its blocks by the
/// remedies of the next check.
///
/// # Errors
/// Lack of space; failures of a device.
pub(super) fn replace_tree(
    volume: &Arc<Volume>,
    context: &RoundContext,
    inventory: &Inventory,
    tree: TreeId,
    items: &Items,
) -> Result<String> {
    let plan = NewTree::plan(tree, items, volume.geometry().node_size)?;
    let addresses: Vec<_> = (0..plan.blocks()).map(|_| context.take(tree)).collect::<Result<_>>()?;
    let generation = volume.geometry().generation;
    plan.write(volume, inventory.chunk_tree_uuid, generation, &addresses)?;
    switch_root(&Editor::new(volume, context), &plan, &addresses, generation)?;
    Ok(plan.to_string())
}

/// Returns the items of the device tree: an extent for each stripe of each chunk. Counters of
/// errors, and a replacement in progress, are lost.
pub(super) fn device_extents(inventory: &Inventory) -> Items {
    let uuid = inventory.chunk_tree_uuid;
    let mut items = Items::new();
    for (logical, chunk) in &inventory.chunks {
        let Ok(length) = chunk.stripe_bytes() else { continue };
        for stripe in &chunk.stripes {
            let extent = DeviceExtent {
                chunk_tree: objectid::CHUNK_TREE,
                chunk_objectid: objectid::FIRST_CHUNK_TREE,
                chunk_offset: *logical,
                length,
                chunk_tree_uuid: uuid,
            };
            let key = Key::new(stripe.devid.0, ItemType::DEV_EXTENT, stripe.offset.0);
            items.push((key, extent.to_bytes().to_vec()));
        }
    }
    items.sort_by_key(|(key, _)| *key);
    items.dedup_by_key(|(key, _)| *key);
    items
}

/// Returns the items of an empty root directory.
pub(super) fn root_directory(generation: Generation) -> Items {
    let number = objectid::FIRST_FREE;
    let mut inode = InodeItem::parse(&[0; InodeItem::SIZE]).expect("zeros are an inode");
    (inode.generation, inode.transid, inode.nlink) = (generation, generation, 1);
    inode.mode = FileKind::Directory.mode_bits() | 0o755;
    vec![
        (Key::new(number, ItemType::INODE_ITEM, 0), inode.to_bytes().to_vec()),
        (Key::new(number, ItemType::INODE_REF, number), InodeRef { index: 0, name: b".." }.to_bytes()),
    ]
}
