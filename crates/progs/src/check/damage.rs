//! Parts of trees that a check could not visit.
//!
//! Owns [`Damage`].

use papilio_format::{Key, LogicalAddress, TreeId};

/// A part of a tree that could not be visited: everything below one pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    pub(crate) tree: TreeId,
    /// The key of the tree's root item; `Key::MIN` for a tree that the superblock points to.
    pub(crate) item: Key,
    /// The block with the pointer; `None` for the root.
    pub(crate) parent: Option<LogicalAddress>,
    /// The key of the pointer; `Key::MIN` for the root.
    pub(crate) key: Key,
    /// The first key past the part.
    pub(crate) bound: Option<Key>,
    /// The block that the pointer names.
    pub(crate) address: LogicalAddress,
    /// The level that it should have.
    pub(crate) level: u8,
}
