//! Tree blocks of a file system whose UUID or checksum algorithm is being changed in its blocks.
//!
//! Owns [`BlockReader`], which accepts the old and the new blocks, and finds all of them; and
//! [`Rewrite`], the change.
//!
//! **Invariants**
//! - A change of the algorithm changes a block's first 32 bytes, which are in one sector. A block
//!   has its old checksum or its new one.
//! - A change of UUID changes the first 48 bytes of a block, and the UUIDs in device items. Sectors
//!   are written whole. A block that was torn therefore becomes whole if all its UUIDs are set to
//!   the header's, which has the same sector as the checksum.
//! - Nothing here writes.
//!
//! **Locks**: none.

use crate::descent::Descent;
use papilio_engine::errors::{BlockFault, Error, Result};
use papilio_engine::volume::Volume;
use papilio_format::checksum::CHECKSUM_SIZE;
use papilio_format::items::chunk::ChunkItem;
use papilio_format::items::device::DeviceItem;
use papilio_format::items::root::RootItem;
use papilio_format::node::{Node, NodeExpectation, NodeHeader};
use papilio_format::superblock::Geometry;
use papilio_format::{ChecksumType, Corrupt, ItemType, Key, LogicalAddress, TreeId, Uuid, objectid};
use std::collections::BTreeSet;

/// Where the UUID is in a block's header.
const FSID: std::ops::Range<usize> = CHECKSUM_SIZE..CHECKSUM_SIZE + 16;
/// Where an extent item has its flags.
const EXTENT_FLAGS: std::ops::Range<usize> = 16..24;
/// The flag of an extent that is a tree block.
const TREE_BLOCK: u64 = 2;

/// A change of every tree block in its place.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rewrite {
    /// From the UUID `old` to `new`.
    Uuid {
        /// The UUID before.
        old: Uuid,
        /// The UUID after.
        new: Uuid,
    },
    /// From any checksum algorithm to the superblock's.
    Checksum,
}

/// Reads tree blocks in their old or new form.
pub(super) struct BlockReader<'v> {
    volume: &'v Volume,
    rewrite: Rewrite,
}

impl<'v> BlockReader<'v> {
    /// Creates a reader for a change.
    pub(super) fn new(volume: &'v Volume, rewrite: Rewrite) -> Self {
        Self { volume, rewrite }
    }

    /// Returns the UUIDs that blocks and device items may have: the old one and the new one.
    fn uuids(&self) -> (Uuid, Uuid) {
        match self.rewrite {
            Rewrite::Uuid { old, new } => (old, new),
            Rewrite::Checksum => {
                let uuid = self.volume.geometry().metadata_uuid;
                (uuid, uuid)
            }
        }
    }

    /// Reads the chunk tree, and adds its chunks to the volume. Returns the addresses of all tree
    /// blocks, by the extent tree.
    ///
    /// # Errors
    /// A block that cannot be read, an item that is corrupt, or a device of a seed.
    pub(super) fn all_blocks(&self) -> Result<BTreeSet<LogicalAddress>> {
        let raw = &self.volume.superblock().raw;
        let mut blocks = BTreeSet::new();
        let mut chunks = Vec::new();
        self.visit(objectid::CHUNK_TREE, raw.chunk_root, &mut |address, node| {
            blocks.insert(address);
            for (key, data) in items(node) {
                match key.item_type {
                    ItemType::DEV_ITEM => self.check_device(&DeviceItem::parse(data)?)?,
                    ItemType::CHUNK_ITEM => {
                        chunks.push((LogicalAddress(key.offset), ChunkItem::parse(data)?));
                    }
                    _ => {}
                }
            }
            Ok(())
        })?;
        self.volume.install_chunks(chunks)?;
        let mut extent_root = None;
        self.visit(objectid::ROOT_TREE, raw.root, &mut |_, node| {
            for (key, data) in items(node) {
                if key.objectid == objectid::EXTENT_TREE.0 && key.item_type == ItemType::ROOT_ITEM {
                    extent_root = Some(RootItem::parse(data)?.into_raw().address);
                }
            }
            Ok(())
        })?;
        let Some(extent_root) = extent_root else {
            return Err(Error::Invalid("the root tree has no extent tree".to_owned()));
        };
        self.visit(objectid::EXTENT_TREE, extent_root, &mut |_, node| {
            for (key, data) in items(node) {
                let is_block = match key.item_type {
                    ItemType::METADATA_ITEM => true,
                    ItemType::EXTENT_ITEM => data.get(EXTENT_FLAGS).is_some_and(|flags| {
                        u64::from_le_bytes(flags.try_into().expect("eight bytes")) & TREE_BLOCK != 0
                    }),
                    _ => false,
                };
                if is_block {
                    blocks.insert(LogicalAddress(key.objectid));
                }
            }
            Ok(())
        })?;
        Ok(blocks)
    }

    fn check_device(&self, item: &DeviceItem) -> Result<(), VisitEnd> {
        let (old, new) = self.uuids();
        if item.fsid == old || item.fsid == new {
            return Ok(());
        }
        let (devid, fsid) = (item.devid, item.fsid);
        Err(VisitEnd::Refused(Error::Invalid(format!(
            "device {devid} belongs to the seed {fsid}: remove it from the file system first"
        ))))
    }

    /// Visits each block of a tree: `root` and all below it.
    fn visit(
        &self,
        tree: TreeId,
        root: LogicalAddress,
        visit: &mut dyn FnMut(LogicalAddress, &Node<'_>) -> Result<(), VisitEnd>,
    ) -> Result<()> {
        let mut descent = Descent::new(NodeExpectation::at(root));
        while let Some(next) = descent.next() {
            // Owner and first key are left to `check`.
            let expected = NodeExpectation { owner: None, first_key: None, ..next.expected };
            let bytes = self.read(tree, &expected)?;
            let node = Node::of_checked(&bytes);
            let fault = |reason| block_error(tree, expected.address, 1, reason);
            visit(expected.address, &node).map_err(|error| match error {
                VisitEnd::Corrupt(reason) => fault(reason),
                VisitEnd::Refused(error) => error,
            })?;
            descent.enter(node, next.bound, tree);
        }
        Ok(())
    }

    /// Reads a block from its first good copy. One that was torn is put together again.
    ///
    /// # Errors
    /// [`Error::TreeBlock`] if no copy is good.
    pub(super) fn read(&self, tree: TreeId, expected: &NodeExpectation) -> Result<Vec<u8>> {
        let copies = self.volume.copies(expected.address)?;
        let mut first = None;
        for copy in 0..copies {
            let bytes = match self.read_copy(expected.address, copy) {
                Ok(bytes) => bytes,
                Err(error) => {
                    first.get_or_insert(BlockFault::Read(Box::new(error)));
                    continue;
                }
            };
            match self.whole(bytes, expected) {
                Ok(bytes) => return Ok(bytes),
                Err(reason) => first = first.or(Some(BlockFault::Corrupt(reason))),
            }
        }
        let reason = first.expect("a block has a copy");
        Err(Error::TreeBlock { tree, address: expected.address, copies, reason })
    }

    /// Returns whether every copy of a block is `wanted`.
    pub(super) fn is_written(&self, address: LogicalAddress, wanted: &[u8]) -> Result<bool> {
        for copy in 0..self.volume.copies(address)? {
            match self.read_copy(address, copy) {
                Ok(bytes) if bytes == wanted => {}
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    fn read_copy(&self, address: LogicalAddress, copy: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.volume.geometry().node_size as usize];
        self.volume.read_copy(address, &mut bytes, copy)?;
        Ok(bytes)
    }

    /// Returns the block if it is sound: as it is, with the checksum of any algorithm, or with all
    /// UUIDs set to the same one.
    fn whole(&self, mut bytes: Vec<u8>, expected: &NodeExpectation) -> Result<Vec<u8>, Corrupt> {
        if let Rewrite::Checksum = self.rewrite {
            let geometry = self.volume.geometry();
            let fault = match Node::check(&bytes, expected, &geometry) {
                Ok(_) => return Ok(bytes),
                Err(fault) => fault,
            };
            let mut others = ChecksumType::ALL.into_iter();
            if !others.any(|other| other != geometry.checksum_type && is_summed(&bytes, other)) {
                return Err(fault);
            }
            Node::check_summed(&bytes, expected, &geometry)?;
            return Ok(bytes);
        }
        let found = NodeHeader::parse_prefix(&bytes)?.0.fsid;
        let (old, new) = self.uuids();
        let uuid = if found == new { new } else { old };
        let geometry = Geometry { metadata_uuid: uuid, ..self.volume.geometry() };
        let fault = match Node::check(&bytes, expected, &geometry) {
            Ok(_) => return Ok(bytes),
            Err(fault) => fault,
        };
        if !matches!(fault, Corrupt::Checksum { .. })
            || Node::check_summed(&bytes, expected, &geometry).is_err()
        {
            return Err(fault);
        }
        set_device_uuids(&mut bytes, uuid)?;
        Node::check(&bytes, expected, &geometry)?;
        Ok(bytes)
    }

    /// Returns a block that [`BlockReader::read`] returned, in its new form.
    ///
    /// # Errors
    /// A device item that cannot be decoded.
    pub(super) fn rewritten(&self, mut bytes: Vec<u8>) -> Result<Vec<u8>, Corrupt> {
        if let Rewrite::Uuid { new, .. } = self.rewrite {
            bytes[FSID].copy_from_slice(new.as_bytes());
            set_device_uuids(&mut bytes, new)?;
        }
        let sum = self.volume.geometry().checksum_type.compute(&bytes[CHECKSUM_SIZE..]);
        bytes[..CHECKSUM_SIZE].copy_from_slice(sum.padded());
        Ok(bytes)
    }
}

/// Whether a block has the checksum of this algorithm.
fn is_summed(bytes: &[u8], algorithm: ChecksumType) -> bool {
    algorithm.verify(&bytes[CHECKSUM_SIZE..], &bytes[..CHECKSUM_SIZE])
}

/// Why a visitor stops.
enum VisitEnd {
    /// An item cannot be decoded.
    Corrupt(Corrupt),
    /// The file system cannot take the change.
    Refused(Error),
}

impl From<Corrupt> for VisitEnd {
    fn from(reason: Corrupt) -> Self {
        Self::Corrupt(reason)
    }
}

/// Returns the error for a bad block.
pub(super) fn block_error(tree: TreeId, address: LogicalAddress, copies: usize, reason: Corrupt) -> Error {
    Error::TreeBlock { tree, address, copies, reason: BlockFault::Corrupt(reason) }
}

/// Iterates over the items of a leaf; an internal node has none.
fn items<'n>(node: &'n Node<'n>) -> impl Iterator<Item = (Key, &'n [u8])> {
    let count = if node.is_leaf() { node.len() } else { 0 };
    (0..count).map(|slot| (node.key(slot), node.item(slot)))
}

/// Sets the UUID in all device items of a block of the chunk tree, whose structure was checked.
fn set_device_uuids(bytes: &mut [u8], uuid: Uuid) -> Result<(), Corrupt> {
    let node = Node::of_checked(bytes);
    if !node.is_leaf() || node.header().owner != objectid::CHUNK_TREE {
        return Ok(());
    }
    let mut changed = Vec::new();
    for slot in 0..node.len() {
        if node.key(slot).item_type == ItemType::DEV_ITEM {
            let item = DeviceItem { fsid: uuid, ..DeviceItem::parse(node.item(slot))? };
            changed.push((NodeHeader::SIZE + node.item_header(slot).offset as usize, item.to_bytes()));
        }
    }
    for (start, item) in changed {
        bytes[start..start + item.len()].copy_from_slice(&item);
    }
    Ok(())
}
