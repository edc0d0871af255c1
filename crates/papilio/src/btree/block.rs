//! One tree block in memory: its checked bytes and what identifies it.
//!
//! Owns [`TreeBlock`]. A *clean* block came from a device: its bytes passed `Node::check` and never
//! change. A *dirty* one was made by a writer: it is well formed, is changed only while nobody else
//! holds it ([`Arc::make_mut`]), and links to those of its children that are not on disk yet, so that a
//! reader who holds a root reaches all of its tree. Kernel counterpart: `struct extent_buffer`.

use super::block_bytes::BlockBytes;
use papilio_format::{Corrupt, Generation, Geometry, Key, LogicalAddress, Node, NodeExpectation, TreeId};
use std::sync::Arc;

/// A tree block.
#[derive(Clone, Debug)]
pub(crate) struct TreeBlock {
    pub(super) bytes: BlockBytes,
    pub(super) address: LogicalAddress,
    pub(super) generation: Generation,
    pub(super) owner: TreeId,
    pub(super) level: u8,
    /// When it was made, by the clock of freezes; 0 for a clean block.
    pub(super) stamp: u64,
    /// The children that are not on disk yet, by slot; empty where there is none.
    pub(super) links: Vec<Option<Arc<TreeBlock>>>,
}

impl TreeBlock {
    /// Checks `bytes` and keeps them.
    ///
    /// # Errors
    /// What `Node::check` finds.
    pub(crate) fn check(
        bytes: BlockBytes,
        expected: &NodeExpectation,
        geometry: &Geometry,
    ) -> Result<Self, Corrupt> {
        let header = Node::check(&bytes, expected, geometry)?.header();
        Ok(Self {
            bytes,
            address: header.address,
            generation: header.generation,
            owner: header.owner,
            level: header.level,
            stamp: 0,
            links: Vec::new(),
        })
    }

    /// Whether a block that was read under other expectations also meets these.
    ///
    /// # Errors
    /// The first that it does not meet.
    pub(crate) fn meets(&self, expected: &NodeExpectation) -> Result<(), Corrupt> {
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
        {
            return Err(Corrupt::FirstKey { expected: first_key, found: view.key(0) });
        }
        Ok(())
    }

    /// Whether all keys are below `bound`, the parent's next key. Together with the first-key check
    /// this keeps the blocks of a tree disjoint: no block can be reached twice, so that a walk of
    /// any bytes ends.
    ///
    /// # Errors
    /// The last key, where it is not.
    pub(crate) fn stays_below(&self, bound: Option<Key>) -> Result<(), Corrupt> {
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

    /// The view of its bytes.
    #[inline]
    pub(crate) fn view(&self) -> Node<'_> {
        Node::of_checked(&self.bytes)
    }

    /// The bytes, one node size long.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its logical address.
    pub(crate) fn address(&self) -> LogicalAddress {
        self.address
    }

    /// The transaction that wrote it.
    pub(crate) fn generation(&self) -> Generation {
        self.generation
    }

    /// The tree that allocated it.
    pub(crate) fn owner(&self) -> TreeId {
        self.owner
    }

    /// 0 for a leaf.
    #[inline]
    pub(crate) fn level(&self) -> u8 {
        self.level
    }

    /// When it was made, by the clock of freezes; 0 for a block that came from a device.
    #[inline]
    pub(crate) fn stamp(&self) -> u64 {
        self.stamp
    }

    /// The child in `slot`, where it is not on disk yet.
    #[inline]
    pub(crate) fn link(&self, slot: usize) -> Option<&Arc<TreeBlock>> {
        self.links.get(slot)?.as_ref()
    }
}
