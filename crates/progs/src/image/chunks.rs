//! Trees of a dump.
//!
//! Owns [`TreeImage`], all blocks of a tree, and [`read_chunks`].

use super::source::{Source, fault, mend_checksum};
use crate::descent::Descent;
use papilio_engine::errors::{Error, Result};
use papilio_format::items::chunk::ChunkItem;
use papilio_format::items::device::DeviceItem;
use papilio_format::{
    Corrupt, Geometry, ItemType, Key, LogicalAddress, Node, NodeExpectation, TreeId, objectid,
};
use std::collections::BTreeSet;
use std::io::{Read, Seek};

/// A block of a tree.
#[derive(Clone, Debug)]
pub(super) struct BlockImage {
    pub(super) address: LogicalAddress,
    /// Bytes that [`Node::check`] accepted.
    pub(super) bytes: Vec<u8>,
}

/// The blocks of a tree.
///
/// **Invariant**: each level has the blocks in the order of their keys, no block twice.
#[derive(Clone, Debug)]
pub(super) struct TreeImage {
    /// The leaves, then the level above, up to the root.
    pub(super) levels: Vec<Vec<BlockImage>>,
}

impl TreeImage {
    /// Reads the tree with the root at `root`.
    ///
    /// # Errors
    /// A block that the dump does not have, or that is not good.
    pub(super) fn read<R: Read + Seek>(
        source: &mut Source<R>,
        owner: TreeId,
        root: LogicalAddress,
        level: u8,
    ) -> Result<Self> {
        let geometry = source.superblock().geometry();
        let mut seen = BTreeSet::new();
        let root = NodeExpectation { level: Some(level), owner: Some(owner), ..NodeExpectation::at(root) };
        let mut descent = Descent::new(root).breadth_first(true);
        let mut levels = vec![Vec::new(); usize::from(level) + 1];
        while let Some(next) = descent.next() {
            let address = next.expected.address;
            if !seen.insert(address) {
                return fault(format_args!("block {address} is twice in tree {owner}"));
            }
            let Some(mut bytes) = source.block(address, geometry.node_size as usize)? else {
                return fault(format_args!("it lacks block {address} of tree {owner}"));
            };
            mend_checksum(&mut bytes, |_| Some(geometry.checksum_type));
            let node = Node::check(&bytes, &next.expected, &geometry)
                .or_else(|reason| fault(format_args!("block {address} of tree {owner}: {reason}")))?;
            descent.enter(node, next.bound, owner);
            let level = usize::from(node.level());
            levels[level].push(BlockImage { address, bytes });
        }
        Ok(Self { levels })
    }

    /// Iterates over the items.
    pub(super) fn items(&self) -> impl Iterator<Item = (Key, &[u8])> {
        self.levels[0].iter().flat_map(|leaf| {
            let node = Node::of_checked(&leaf.bytes);
            (0..node.len()).map(move |slot| (node.key(slot), node.item(slot)))
        })
    }
}

/// The content of a chunk tree.
#[derive(Clone, Debug, Default)]
pub(super) struct Chunks {
    /// In ascending order, without overlaps.
    pub(super) chunks: Vec<(LogicalAddress, ChunkItem)>,
    pub(super) devices: Vec<DeviceItem>,
}

/// Reads chunks and devices of a chunk tree.
///
/// # Errors
/// An item that is not valid, and chunks that overlap.
pub(super) fn read_chunks(tree: &TreeImage, geometry: &Geometry) -> Result<Chunks> {
    let mut found = Chunks::default();
    for (key, data) in tree.items() {
        let named =
            |reason: Corrupt| Error::Invalid(format!("the dump: item {key} of the chunk tree: {reason}"));
        match key.item_type {
            ItemType::DEV_ITEM => found.devices.push(DeviceItem::parse(data).map_err(named)?),
            ItemType::CHUNK_ITEM => {
                let start = LogicalAddress(key.offset);
                let chunk = ChunkItem::parse(data).map_err(named)?;
                chunk.validate(start, geometry).map_err(named)?;
                if let Some((last, before)) = found.chunks.last()
                    && last.0 + before.length > start.0
                {
                    return fault(format_args!("chunks {last} and {start} overlap"));
                }
                found.chunks.push((start, chunk));
            }
            _ => {}
        }
    }
    if found.chunks.is_empty() {
        return fault(format_args!("tree {} has no chunks", objectid::CHUNK_TREE));
    }
    Ok(found)
}
