//! One tree block in memory: its checked bytes and what identifies it.
//!
//! Owns [`TreeBlock`]. Invariant: the bytes passed `Node::check` and never change, so that any
//! thread may hold a view of them. Kernel counterpart: `struct extent_buffer`.

use papilio_format::{Corrupt, Generation, Geometry, Key, LogicalAddress, Node, NodeExpectation, TreeId};

/// A checked tree block.
#[derive(Debug)]
pub(crate) struct TreeBlock {
    bytes: Box<[u8]>,
    address: LogicalAddress,
    generation: Generation,
    owner: TreeId,
    level: u8,
}

impl TreeBlock {
    /// Checks `bytes` and keeps them.
    ///
    /// # Errors
    /// What `Node::check` finds.
    pub(crate) fn check(
        bytes: Box<[u8]>,
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
}
