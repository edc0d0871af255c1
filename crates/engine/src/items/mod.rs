//! The typed items of trees, one file for each kind of question that the layers above ask.

pub mod blank_inode;
pub mod compared_entries;
pub mod dir;
pub(crate) mod dir_edit;
pub(crate) mod draft;
pub mod inode;
pub(crate) mod inode_edit;
pub mod inode_ref_edit;
pub mod mended_fields;
pub mod numbers;
pub(crate) mod orphan;
mod packed_edit;
pub mod sound_items;
pub mod trees;
pub(crate) mod verity;
pub mod xattr;
pub mod xattr_edit;

use crate::btree::{Item, Tree};
use crate::errors::Error;
use papilio_format::{Corrupt, Key};

/// Items of a leaf, decoded.
pub type Items = Vec<(Key, Vec<u8>)>;

/// The error for an item of `tree` that contradicts other items.
pub fn item_error(tree: &Tree, item: &Item, reason: Corrupt) -> Error {
    Error::Item { tree: tree.id(), key: item.key, reason }
}
