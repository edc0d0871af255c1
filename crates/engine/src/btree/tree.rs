//! A tree: an id and a root.
//!
//! Owns [`Tree`], [`RootPointer`] and [`Item`]. A `Tree` is a value: it is cheap to clone, and a
//! clone continues to see the root that it was made with.

use crate::btree::block::TreeBlock;
use crate::btree::forest::{Forest, block_error};
use crate::errors::Result;
use papilio_format::{Generation, Key, LogicalAddress, NodeExpectation, TreeId};
use std::sync::Arc;

/// Held by a reader; delays the reuse of blocks and data freed after it was taken.
pub type ReadPin = Arc<()>;

/// Location of a tree's root, and its expected level and generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootPointer {
    /// The address of the root block.
    pub address: LogicalAddress,
    /// The level of the root block; 0 for a leaf.
    pub level: u8,
    /// `None` if the pointer's holder does not record it (roots of log trees in old kernels).
    pub generation: Option<Generation>,
}

/// One tree as of one root.
#[derive(Clone, Debug)]
pub struct Tree {
    forest: Arc<Forest>,
    id: TreeId,
    root: RootPointer,
    /// The root block if it is held in memory, as it always is while it is not on disk.
    live: Option<Arc<TreeBlock>>,
    pin: Option<ReadPin>,
}

impl Tree {
    fn new(forest: Arc<Forest>, id: TreeId, root: RootPointer) -> Self {
        Self { forest, id, root, live: None, pin: None }
    }

    /// Creates a tree from a root block that may not yet be on disk.
    pub(super) fn with_root(forest: Arc<Forest>, id: TreeId, block: Arc<TreeBlock>) -> Self {
        let root = RootPointer {
            address: block.address(),
            level: block.level(),
            generation: Some(block.generation()),
        };
        Self { forest, id, root, live: Some(block), pin: None }
    }

    /// Returns the tree holding `pin` for its lifetime.
    pub fn pinned(mut self, pin: ReadPin) -> Self {
        self.pin = Some(pin);
        self
    }

    /// Takes the root block out for a change. The caller must replace the tree by
    /// [`Tree::with_root`].
    pub(super) fn take_live(&mut self) -> Option<Arc<TreeBlock>> {
        self.live.take()
    }

    /// Returns the root block if the tree holds it in memory.
    pub(super) fn live(&self) -> Option<&Arc<TreeBlock>> {
        self.live.as_ref()
    }

    /// Returns the tree id.
    pub fn id(&self) -> TreeId {
        self.id
    }

    /// Returns the root pointer.
    pub fn root(&self) -> RootPointer {
        self.root
    }

    /// Returns the forest that the tree belongs to.
    pub fn forest(&self) -> &Arc<Forest> {
        &self.forest
    }

    /// Returns the root block.
    ///
    /// # Errors
    /// [`crate::Error::TreeBlock`].
    pub fn root_block(&self) -> Result<Arc<TreeBlock>> {
        if let Some(block) = &self.live {
            return Ok(Arc::clone(block));
        }
        let expected = self.root_expectation();
        let found = self.forest.block(self.id, &expected);
        found.or_else(|error| self.forest.stand_in(self.id, &expected, None, error))
    }

    /// Returns the error if the root block cannot be read, whatever would stand in for it.
    pub fn require_root_block(&self) -> Result<()> {
        if self.live.is_some() {
            return Ok(());
        }
        self.forest.block(self.id, &self.root_expectation()).map(drop)
    }

    fn root_expectation(&self) -> NodeExpectation {
        NodeExpectation {
            level: Some(self.root.level),
            generation: self.root.generation,
            owner: Some(self.id),
            ..NodeExpectation::at(self.root.address)
        }
    }

    /// Returns the child in a slot of one of this tree's nodes. All its keys must be below `bound`.
    ///
    /// # Errors
    /// [`crate::Error::TreeBlock`].
    pub fn child(&self, node: &TreeBlock, slot: usize, bound: Option<Key>) -> Result<Arc<TreeBlock>> {
        if let Some(child) = node.link(slot) {
            return Ok(Arc::clone(child));
        }
        let expected = node.child_expectation(slot, self.id);
        let found = self.forest.block(self.id, &expected).and_then(|child| {
            let Err(reason) = child.check_child(bound) else { return Ok(child) };
            // Keys at or past the next leaf's.
            match self.forest.sound_leaf(self.id, &expected, bound) {
                Some(leaf) => Ok(Arc::new(leaf)),
                None => Err(block_error(self.id, expected.address, 1, reason.into())),
            }
        });
        found.or_else(|error| self.forest.stand_in(self.id, &expected, bound, error))
    }
}

impl Forest {
    /// Returns the tree `id` with its root at `root`.
    pub fn tree(self: &Arc<Self>, id: TreeId, root: RootPointer) -> Tree {
        Tree::new(Arc::clone(self), id, root)
    }
}

/// An item, which keeps its leaf alive.
#[derive(Clone, Debug)]
pub struct Item {
    /// Key of the item.
    pub key: Key,
    leaf: Arc<TreeBlock>,
    slot: usize,
}

impl Item {
    pub(super) fn new(leaf: Arc<TreeBlock>, slot: usize) -> Self {
        Self { key: leaf.view().key(slot), leaf, slot }
    }

    /// Returns the leaf that holds the item.
    pub(crate) fn leaf(&self) -> &Arc<TreeBlock> {
        &self.leaf
    }

    /// Returns the generation of the leaf.
    pub fn generation(&self) -> Generation {
        self.leaf.generation()
    }

    /// Returns the address of the leaf.
    pub(crate) fn leaf_address(&self) -> LogicalAddress {
        self.leaf.address()
    }

    /// Returns the data.
    #[inline]
    pub fn data(&self) -> &[u8] {
        self.leaf.view().item(self.slot)
    }
}
