//! One tree block in memory: its checked bytes and its identity.
//!
//! Owns [`TreeBlock`].
//!
//! **Invariants**
//! - A *clean* block came from a device. Its bytes passed `Node::check` and never change.
//! - A *dirty* block was made by a writer and is well formed. It changes only while nobody else
//!   holds it ([`Arc::make_mut`]). It links to those of its children that are not yet on disk, so a
//!   reader with a root reaches the whole tree.
//!
//! Kernel counterpart: `struct extent_buffer`.

use super::block_bytes::BlockBytes;
use papilio_format::node::NodeHeader;
use papilio_format::{Corrupt, Generation, Geometry, Key, LogicalAddress, Node, NodeExpectation, TreeId};
use std::sync::Arc;

/// A tree block.
#[derive(Clone, Debug)]
pub struct TreeBlock {
    pub(super) bytes: BlockBytes,
    pub(super) address: LogicalAddress,
    pub(super) generation: Generation,
    pub(super) owner: TreeId,
    pub(super) level: u8,
    /// Stamp of the freeze clock at its creation; 0 for a clean block.
    pub(super) stamp: u64,
    /// Whether items of the block on the device were left out or changed.
    pub(super) is_partial: bool,
    /// Children that are not yet on disk, by slot; empty if there are none.
    pub(super) links: Vec<Option<Arc<TreeBlock>>>,
}

impl TreeBlock {
    /// Checks `bytes` and takes ownership of them.
    ///
    /// # Errors
    /// The violation that `Node::check` finds.
    pub(crate) fn check(
        bytes: BlockBytes,
        expected: &NodeExpectation,
        geometry: &Geometry,
    ) -> Result<Self, Corrupt> {
        let header = Node::check(&bytes, expected, geometry)?.header();
        Ok(Self::of_header(bytes, &header))
    }

    /// As [`TreeBlock::check`], but ignores the checksum.
    ///
    /// # Errors
    /// The violation that `Node::check_summed` finds.
    pub(super) fn check_without_csum(
        bytes: BlockBytes,
        expected: &NodeExpectation,
        geometry: &Geometry,
    ) -> Result<Self, Corrupt> {
        let header = Node::check_summed(&bytes, expected, geometry)?.header();
        Ok(Self::of_header(bytes, &header))
    }

    fn of_header(bytes: BlockBytes, header: &NodeHeader) -> Self {
        Self {
            bytes,
            address: header.address,
            generation: header.generation,
            owner: header.owner,
            level: header.level,
            stamp: 0,
            is_partial: false,
            links: Vec::new(),
        }
    }

    /// Creates an internal block that is in memory only, and links to its children that are, too.
    ///
    /// # Errors
    /// The violation that `Node::check_summed` finds.
    pub(crate) fn in_memory(
        bytes: Vec<u8>,
        links: Vec<Option<Arc<TreeBlock>>>,
        geometry: &Geometry,
    ) -> Result<Self, Corrupt> {
        let header = NodeHeader::parse_prefix(&bytes)?.0;
        let expected = NodeExpectation::at(header.address);
        let mut own = BlockBytes::zeroed(bytes.len());
        own.copy_from_slice(&bytes);
        Ok(Self { links, ..Self::check_without_csum(own, &expected, geometry)? })
    }

    /// Creates a leaf with the sound items of a bad one.
    ///
    /// # Errors
    /// As [`TreeBlock::in_memory`].
    pub(crate) fn partial(bytes: Vec<u8>, geometry: &Geometry) -> Result<Self, Corrupt> {
        Ok(Self { is_partial: true, ..Self::in_memory(bytes, Vec::new(), geometry)? })
    }

    /// Checks that a block read under other expectations meets these as well.
    ///
    /// # Errors
    /// The first expectation that is not met.
    pub fn meets(&self, expected: &NodeExpectation) -> Result<(), Corrupt> {
        let wrong = |field, expected, found| Err(Corrupt::NodeIdentity { field, expected, found });
        if let Some(level) = expected.level
            && level != self.level
        {
            return wrong("level", level.into(), self.level.into());
        }
        if let Some(generation) = expected.generation
            && generation != self.generation
        {
            return wrong("generation", generation.0, self.generation.0);
        }
        if let Some(owner) = expected.owner
            && !papilio_format::node::owner_allowed(owner, self.owner)
        {
            return wrong("owner", owner.0, self.owner.0);
        }
        let view = self.view();
        if let Some(first_key) = expected.first_key
            && !view.is_empty()
            && view.key(0) != first_key
            && !(self.is_partial && view.key(0) > first_key)
        {
            return Err(Corrupt::FirstKey { expected: first_key, found: view.key(0) });
        }
        Ok(())
    }

    /// Checks that all keys are below `bound`, the parent's next key.
    ///
    /// Together with the first-key check this makes the blocks of a tree disjoint. No block is
    /// reached twice, so a walk terminates whatever the bytes.
    ///
    /// # Errors
    /// The last key, if it is not below.
    pub fn stays_below(&self, bound: Option<Key>) -> Result<(), Corrupt> {
        let view = self.view();
        let (Some(bound), Some(last)) = (bound, view.len().checked_sub(1)) else {
            return Ok(());
        };
        let key = view.key(last);
        if key >= bound {
            return Err(Corrupt::KeyOrder { slot: last, previous: key, key: bound });
        }
        Ok(())
    }

    /// Checks a child: its keys are below `bound`, and it has items.
    ///
    /// # Errors
    /// The first violation.
    pub(super) fn check_child(&self, bound: Option<Key>) -> Result<(), Corrupt> {
        self.stays_below(bound)?;
        if self.view().is_empty() {
            let why = "only the root of an empty tree has no items";
            return Err(Corrupt::field("tree block", "item_count", 0, why));
        }
        Ok(())
    }

    /// Returns what the pointer in `slot` says of the child, which belongs to `tree`.
    pub(super) fn child_expectation(&self, slot: usize, tree: TreeId) -> NodeExpectation {
        let pointer = self.view().child(slot);
        NodeExpectation {
            address: pointer.address,
            level: Some(self.level - 1),
            generation: Some(pointer.generation),
            owner: Some(tree),
            first_key: Some(pointer.key),
        }
    }

    /// Returns the node view of the bytes.
    #[inline]
    pub fn view(&self) -> Node<'_> {
        Node::of_checked(&self.bytes)
    }

    /// Returns the bytes; their length is the node size.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the logical address.
    pub fn address(&self) -> LogicalAddress {
        self.address
    }

    /// Returns the generation of the transaction that wrote it.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Returns the tree that allocated it.
    pub fn owner(&self) -> TreeId {
        self.owner
    }

    /// Returns the level; 0 for a leaf.
    #[inline]
    pub fn level(&self) -> u8 {
        self.level
    }

    /// Returns the freeze-clock stamp of its creation; 0 for a block from a device.
    #[inline]
    pub(crate) fn stamp(&self) -> u64 {
        self.stamp
    }

    /// Returns the child in `slot` if it is not yet on disk.
    #[inline]
    pub(crate) fn link(&self, slot: usize) -> Option<&Arc<TreeBlock>> {
        self.links.get(slot)?.as_ref()
    }
}
