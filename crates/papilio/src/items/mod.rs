//! The typed items of trees, one file for each kind of question that the layers above ask.

pub(crate) mod blank_inode;
pub(crate) mod compared_entries;
pub(crate) mod dir;
pub(crate) mod dir_edit;
pub(crate) mod draft;
pub(crate) mod inode;
pub(crate) mod inode_edit;
pub(crate) mod inode_ref_edit;
pub(crate) mod mended_fields;
pub(crate) mod numbers;
pub(crate) mod orphan;
mod packed_edit;
pub(crate) mod sound_items;
pub(crate) mod trees;
pub(crate) mod xattr;
pub(crate) mod xattr_edit;

use crate::btree::{Item, Tree};
use crate::errors::Error;
use papilio_format::{Corrupt, Key};

/// Items of a leaf, decoded.
pub(crate) type Items = Vec<(Key, Vec<u8>)>;

/// The error for an item of `tree` that contradicts other items.
pub(crate) fn item_error(tree: &Tree, item: &Item, reason: Corrupt) -> Error {
    Error::Item { tree: tree.id(), key: item.key, reason }
}
