//! The parts of a file system that a dump has.
//!
//! Owns [`collect`], which finds them by the extent tree or by walking all trees, and
//! [`CollectReader`], which reads blocks, whether they are good or not.

use crate::descent::Descent;
use papilio_engine::errors::{Error, Result};
use papilio_engine::items::item_error;
use papilio_engine::items::trees::Trees;
use papilio_engine::volume::Volume;
use papilio_format::items::extent::{ExtentFlags, ExtentItem};
use papilio_format::items::file_extent::{FileExtentContent, FileExtentItem};
use papilio_format::items::root::RootItem;
use papilio_format::{ItemType, Key, LogicalAddress, Node, NodeExpectation, objectid};
use std::collections::{BTreeMap, BTreeSet};

/// A range of logical addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CollectedRange {
    pub(super) start: LogicalAddress,
    /// Length in bytes.
    pub(super) length: usize,
    /// Whether it is data, not tree blocks.
    pub(super) is_data: bool,
}

/// Reads tree blocks.
pub(crate) struct CollectReader<'v> {
    pub(crate) volume: &'v Volume,
}

impl CollectReader<'_> {
    /// Returns the first good copy of a block, or else the first that can be read; and whether it
    /// is good.
    ///
    /// # Errors
    /// No copy can be read.
    pub(crate) fn read(&self, address: LogicalAddress) -> Result<(Vec<u8>, bool)> {
        let geometry = self.volume.geometry();
        let mut found = Err(Error::Unmapped { logical: address, length: geometry.node_size.into() });
        for copy in self.volume.copies_in_order(address)? {
            let mut bytes = vec![0; geometry.node_size as usize];
            match self.volume.read_copy(address, &mut bytes, copy) {
                Ok(()) if Node::check(&bytes, &NodeExpectation::at(address), &geometry).is_ok() => {
                    return Ok((bytes, true));
                }
                Ok(()) if found.is_err() => found = Ok((bytes, false)),
                Ok(()) => {}
                Err(error) => found = found.or(Err(error)),
            }
        }
        found
    }

    /// Adds the blocks below `root`, itself included, to `blocks`; with `roots` also those of the
    /// trees that it has root items of. Blocks that are not good have none below them.
    pub(crate) fn walk(&self, root: LogicalAddress, roots: bool, blocks: &mut BTreeSet<u64>) -> Result<()> {
        let mut trees = Vec::new();
        self.walk_tree(root, blocks, |node| {
            let leaf = if node.is_leaf() && roots { node.len() } else { 0 };
            for slot in (0..leaf).filter(|slot| node.key(*slot).item_type == ItemType::ROOT_ITEM) {
                trees.extend(RootItem::parse(node.item(slot)).map(|item| item.address));
            }
        })?;
        trees.into_iter().try_for_each(|root| self.walk_tree(root, blocks, |_| {}))
    }

    fn walk_tree(
        &self,
        root: LogicalAddress,
        blocks: &mut BTreeSet<u64>,
        mut visit: impl FnMut(Node<'_>),
    ) -> Result<()> {
        let mut descent = Descent::new(NodeExpectation::at(root));
        while let Some(next) = descent.next() {
            let address = next.expected.address;
            if !blocks.insert(address.0) {
                continue;
            }
            let (bytes, true) = self.read(address)? else { continue };
            let node = Node::of_checked(&bytes);
            visit(node);
            descent.enter(node, next.bound, node.header().owner);
        }
        Ok(())
    }
}

/// Returns the parts of a dump, each of at most `limit` bytes: first those of the chunk tree, then
/// the others, in ascending order. With `walks` they are found by walking all trees, otherwise by
/// the extent tree. With `data` they include all data.
///
/// # Errors
/// A tree that cannot be read.
pub(super) fn collect(trees: &Trees, walks: bool, data: bool, limit: usize) -> Result<Vec<CollectedRange>> {
    let volume = trees.forest().volume();
    let reader = CollectReader { volume };
    let raw = &volume.superblock().raw;
    let mut chunk_blocks = BTreeSet::new();
    reader.walk(raw.chunk_root, false, &mut chunk_blocks)?;
    let mut blocks = BTreeSet::new();
    let mut extents = BTreeMap::new();
    if walks {
        reader.walk(raw.root, true, &mut blocks)?;
    } else {
        by_extent_tree(trees, data, &mut blocks, &mut extents)?;
    }
    if let Some((log, _)) = volume.superblock().log_root() {
        reader.walk(log, true, &mut blocks)?;
    }
    space_caches(trees, &mut extents)?;
    let node_size = u64::from(raw.node_size);
    let mut parts = Vec::new();
    let block = |start: &u64| (*start, node_size, false);
    append(chunk_blocks.iter().map(block), limit, &mut parts);
    let others = blocks.difference(&chunk_blocks).map(block);
    let mut others: Vec<_> =
        others.chain(extents.into_iter().map(|(start, length)| (start, length, true))).collect();
    others.sort_unstable();
    append(others.into_iter(), limit, &mut parts);
    Ok(parts)
}

/// Adds ranges, adjacent ones together, in parts of at most `limit` bytes.
fn append(ranges: impl Iterator<Item = (u64, u64, bool)>, limit: usize, parts: &mut Vec<CollectedRange>) {
    for (start, length, is_data) in ranges {
        let mut at = start;
        while at < start + length {
            let piece = (start + length - at).min(limit as u64) as usize;
            match parts.last_mut() {
                Some(last)
                    if last.is_data == is_data
                        && last.start.0 + last.length as u64 == at
                        && last.length + piece <= limit =>
                {
                    last.length += piece;
                }
                _ => parts.push(CollectedRange { start: LogicalAddress(at), length: piece, is_data }),
            }
            at += piece as u64;
        }
    }
}

fn by_extent_tree(
    trees: &Trees,
    data: bool,
    blocks: &mut BTreeSet<u64>,
    extents: &mut BTreeMap<u64, u64>,
) -> Result<()> {
    let tree = &trees.get(objectid::EXTENT_TREE, "the extent tree")?.tree;
    for item in tree.items() {
        let item = item?;
        let Key { objectid: start, item_type, offset } = item.key;
        if !matches!(item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM) {
            continue;
        }
        let extent =
            ExtentItem::parse(item_type, item.data()).map_err(|reason| item_error(tree, &item, reason))?;
        if extent.is_tree_block() {
            blocks.insert(start);
        } else if data && extent.header.flags.contains(ExtentFlags::DATA) {
            extents.insert(start, offset);
        }
    }
    Ok(())
}

/// Adds the extents of the v1 free-space caches, whose inodes are in the root tree.
fn space_caches(trees: &Trees, extents: &mut BTreeMap<u64, u64>) -> Result<()> {
    let tree = trees.root_tree();
    for item in tree.items() {
        let item = item?;
        if item.key.item_type != ItemType::EXTENT_DATA {
            continue;
        }
        let parsed = FileExtentItem::parse(item.data()).map_err(|reason| item_error(&tree, &item, reason))?;
        if let FileExtentContent::Regular(part) = parsed.content
            && part.disk_address.0 != 0
        {
            extents.insert(part.disk_address.0, part.disk_length);
        }
    }
    Ok(())
}
