//! The way down a tree whose blocks may be bad: which block comes next, and what its parent says of
//! it.
//!
//! Owns [`Descent`] and [`children`], by which all walks over tree blocks go. A walk reads the
//! blocks itself and enters those that it accepts, so that nothing below a bad block is visited.
//! Walks differ in these:
//!
//! | walk | reads | compares with the pointer | a bad block |
//! |---|---|---|---|
//! | [`crate::dump::TreeBlocks`] | a good copy, cached | all | is an error; the walk goes on |
//! | `tune`'s `BlockReader` | each copy, old or new | level, generation | ends the change |
//! | `image`'s `TreeImage` | a dump | all | ends the restore |
//! | `image`'s `CollectReader` | any copy, at last a bad one | nothing | is copied, none below it |
//! | `check`'s `Walker` | all copies | all, and corrects one byte | is a finding |
//!
//! `TreeBlocks` serves dump-tree, find-root, the choice of a root and the statistics of trees.
//! `Walker` keeps frames of its own, since it looks for loops and knows deletions under way, and
//! takes their [`children`] from here.
//!
//! Two kinds of readers have reasons to go another way. Readers of items (`restore`, `rescue
//! clone`, the census) use the cursor of the engine, which all files are read by: it goes on behind
//! a fault by keys ([`crate::rescue_clone`]'s `ItemWalk`), and takes the sound items of a bad leaf.
//! Scans ([`crate::salvage::block_scan`]) find blocks by their places on devices, since nothing
//! leads to these.
//!
//! **Invariant:** the level of a child is below that of its parent, so that every walk ends whose
//! blocks match it.

use papilio_format::{Key, Node, NodeExpectation, TreeId};
use std::ops::Range;

/// A block to read, as the block above it says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextBlock {
    pub(crate) expected: NodeExpectation,
    /// All keys of the block and below it are smaller.
    pub(crate) bound: Option<Key>,
}

/// Returns the children in some slots of an internal block of `tree`. The keys of the block are
/// below `bound`.
pub(crate) fn children(
    node: Node<'_>,
    slots: Range<usize>,
    bound: Option<Key>,
    tree: TreeId,
) -> impl Iterator<Item = NextBlock> {
    slots.map(move |slot| {
        let pointer = node.child(slot);
        let expected = NodeExpectation {
            address: pointer.address,
            level: node.level().checked_sub(1),
            generation: Some(pointer.generation),
            owner: Some(tree),
            first_key: Some(pointer.key),
        };
        let bound = if slot + 1 < node.len() { Some(node.key(slot + 1)) } else { bound };
        NextBlock { expected, bound }
    })
}

/// The blocks of a tree that are still to be read: parents before children, in the order of keys;
/// depth first, unless [`Descent::breadth_first`] changes that.
#[derive(Debug)]
pub(crate) struct Descent {
    /// The next one last.
    stack: Vec<NextBlock>,
    /// The blocks after those of `stack`, in their order, if the walk is breadth first.
    level_below: Option<Vec<NextBlock>>,
}

impl Descent {
    /// Begins at a root.
    pub(crate) fn new(root: NodeExpectation) -> Self {
        Self { stack: vec![NextBlock { expected: root, bound: None }], level_below: None }
    }

    /// With `breadth`, visits the blocks of each level before those of the level below.
    pub(crate) fn breadth_first(mut self, breadth: bool) -> Self {
        self.level_below = breadth.then(Vec::new);
        self
    }

    /// Returns the next block.
    pub(crate) fn next(&mut self) -> Option<NextBlock> {
        self.begin_level();
        self.stack.pop()
    }

    /// Returns the blocks that come next, as far as they are known, for a reader that reads ahead.
    pub(crate) fn upcoming(&mut self) -> impl ExactSizeIterator<Item = &NextBlock> {
        self.begin_level();
        self.stack.iter().rev()
    }

    fn begin_level(&mut self) {
        if let Some(below) = self.level_below.as_mut().filter(|_| self.stack.is_empty()) {
            self.stack.extend(below.drain(..).rev());
        }
    }

    /// Goes down into a block of `tree` that was read: its children come next. A leaf has none.
    pub(crate) fn enter(&mut self, node: Node<'_>, bound: Option<Key>, tree: TreeId) {
        if node.is_leaf() {
            return;
        }
        let found = children(node, 0..node.len(), bound, tree);
        match &mut self.level_below {
            Some(below) => below.extend(found),
            None => {
                let first = self.stack.len();
                self.stack.extend(found);
                self.stack[first..].reverse();
            }
        }
    }
}
