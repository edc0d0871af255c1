//! A tree: an id, a root, and the searches that start there.
//!
//! Owns [`Tree`], [`RootPointer`] and [`Item`]. A `Tree` is a value: cloning it is cheap, and a clone
//! goes on seeing the root it was made with.

use crate::btree::cursor::empty_child;
use crate::btree::forest::block_error;
use crate::btree::{Cursor, Forest, TreeBlock};
use crate::errors::Result;
use papilio_format::{Generation, Key, LogicalAddress, NodeExpectation, TreeId};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// What a reader holds so that blocks and data which are freed after it began are not reused before
/// it ends.
pub(crate) type ReadPin = Arc<()>;

/// Where a tree's root lies, and what it must look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RootPointer {
    pub(crate) address: LogicalAddress,
    pub(crate) level: u8,
    /// `None` where the pointer's holder does not record it (log trees' roots in old kernels).
    pub(crate) generation: Option<Generation>,
}

/// One tree as of one root.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    forest: Arc<Forest>,
    id: TreeId,
    root: RootPointer,
    /// The root's block, where it is not on disk yet.
    live: Option<Arc<TreeBlock>>,
    pin: Option<ReadPin>,
}

impl Tree {
    pub(super) fn new(forest: Arc<Forest>, id: TreeId, root: RootPointer) -> Self {
        Self { forest, id, root, live: None, pin: None }
    }

    /// The tree below a block that may not be on disk yet.
    pub(super) fn with_root(forest: Arc<Forest>, id: TreeId, block: Arc<TreeBlock>) -> Self {
        let root = RootPointer {
            address: block.address(),
            level: block.level(),
            generation: Some(block.generation()),
        };
        Self { forest, id, root, live: Some(block), pin: None }
    }

    /// The same, holding `pin` while it lives.
    pub(crate) fn pinned(mut self, pin: ReadPin) -> Self {
        self.pin = Some(pin);
        self
    }

    /// Gives up the root's block, to change it. Nothing but [`Tree::with_root`] may follow.
    pub(super) fn take_live(&mut self) -> Option<Arc<TreeBlock>> {
        self.live.take()
    }

    /// The root's block, where it is in memory for good.
    pub(super) fn live(&self) -> Option<&Arc<TreeBlock>> {
        self.live.as_ref()
    }

    /// Its id.
    pub(crate) fn id(&self) -> TreeId {
        self.id
    }

    /// Its root.
    pub(crate) fn root(&self) -> RootPointer {
        self.root
    }

    /// The forest it stands in.
    pub(crate) fn forest(&self) -> &Arc<Forest> {
        &self.forest
    }

    /// The root's block.
    ///
    /// # Errors
    /// [`crate::Error::TreeBlock`].
    pub(crate) fn root_block(&self) -> Result<Arc<TreeBlock>> {
        if let Some(block) = &self.live {
            return Ok(Arc::clone(block));
        }
        let expected = NodeExpectation {
            level: Some(self.root.level),
            generation: self.root.generation,
            owner: Some(self.id),
            ..NodeExpectation::at(self.root.address)
        };
        self.forest.block(self.id, &expected)
    }

    /// The child in a slot of one of this tree's nodes, all of whose keys are below `bound`.
    ///
    /// # Errors
    /// [`crate::Error::TreeBlock`].
    pub(crate) fn child(&self, node: &TreeBlock, slot: usize, bound: Option<Key>) -> Result<Arc<TreeBlock>> {
        if let Some(child) = node.link(slot) {
            return Ok(Arc::clone(child));
        }
        let pointer = node.view().child(slot);
        let expected = NodeExpectation {
            address: pointer.address,
            level: Some(node.level() - 1),
            generation: Some(pointer.generation),
            owner: Some(self.id),
            first_key: Some(pointer.key),
        };
        let child = self.forest.block(self.id, &expected)?;
        child
            .stays_below(bound)
            .and_then(|()| if child.view().is_empty() { Err(empty_child()) } else { Ok(()) })
            .map_err(|reason| block_error(self.id, expected.address, 1, reason.into()))?;
        Ok(child)
    }

    /// A cursor on the first item whose key is `key` or larger.
    ///
    /// # Errors
    /// A block on the way that cannot be read.
    pub(crate) fn seek(&self, key: &Key) -> Result<Cursor<'_>> {
        let mut cursor = Cursor::new(self);
        cursor.seek(key)?;
        Ok(cursor)
    }

    /// The item with exactly this key.
    ///
    /// # Errors
    /// A block on the way that cannot be read.
    pub(crate) fn get(&self, key: &Key) -> Result<Option<Item>> {
        let cursor = self.seek(key)?;
        Ok(cursor.item().filter(|item| item.key == *key))
    }

    /// The last item whose key is `key` or smaller.
    ///
    /// # Errors
    /// A block on the way that cannot be read.
    pub(crate) fn last_up_to(&self, key: &Key) -> Result<Option<Item>> {
        let mut cursor = self.seek(key)?;
        if cursor.key() == Some(*key) {
            return Ok(cursor.item());
        }
        cursor.step_back()?;
        Ok(cursor.item())
    }

    /// The items with keys in `range`, ascending.
    pub(crate) fn range(&self, range: RangeInclusive<Key>) -> Range<'_> {
        Range { cursor: Cursor::new(self), next: Some(*range.start()), last: *range.end() }
    }

    /// All items.
    pub(crate) fn items(&self) -> Range<'_> {
        self.range(Key::MIN..=Key::MAX)
    }
}

/// An item, which keeps its leaf alive.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    /// Its key.
    pub(crate) key: Key,
    leaf: Arc<TreeBlock>,
    slot: usize,
}

impl Item {
    pub(super) fn new(leaf: Arc<TreeBlock>, slot: usize) -> Self {
        Self { key: leaf.view().key(slot), leaf, slot }
    }

    /// Its bytes.
    #[inline]
    pub(crate) fn data(&self) -> &[u8] {
        self.leaf.view().item(self.slot)
    }
}

/// An iterator over items; it ends after the first error.
pub(crate) struct Range<'a> {
    cursor: Cursor<'a>,
    /// Where to seek, before the first item.
    next: Option<Key>,
    last: Key,
}

impl Iterator for Range<'_> {
    type Item = Result<Item>;

    fn next(&mut self) -> Option<Result<Item>> {
        let moved = match self.next.take() {
            Some(key) => self.cursor.seek(&key),
            None => self.cursor.step(),
        };
        if let Err(error) = moved {
            self.cursor.clear();
            return Some(Err(error));
        }
        self.cursor.item().filter(|item| item.key <= self.last).map(Ok)
    }
}
