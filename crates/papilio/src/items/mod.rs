//! The typed items that trees hold: one file for each question that layers above ask of a tree.

pub(crate) mod dir;
pub(crate) mod inode;
pub(crate) mod trees;
pub(crate) mod xattr;

use crate::btree::{Item, Tree};
use crate::errors::Error;
use papilio_format::Corrupt;

/// The error of an item of `tree` that contradicts what else is known.
pub(crate) fn item_error(tree: &Tree, item: &Item, reason: Corrupt) -> Error {
    Error::Item { tree: tree.id(), key: item.key, reason }
}
