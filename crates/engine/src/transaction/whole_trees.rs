//! Adding and removing trees that are no subvolumes: of quotas, block groups, free space.
//!
//! Owns [`add_tree`] and [`remove_tree`].
//!
//! **Locks**, in this order: the tree's writer, the root tree's writer.
//!
//! Kernel counterparts: `btrfs_create_tree` (`fs/btrfs/disk-io.c`), `btrfs_delete_free_space_tree`
//! (`fs/btrfs/free-space-tree.c`).

use super::handle::Handle;
use crate::btree::{LiveTree, NodeAllocator};
use crate::errors::Result;
use papilio_format::items::root::{RawRootItem, RootItem, root_key};
use papilio_format::{Key, TreeId};
use std::sync::Arc;

/// Adds an empty tree, and its item to the root tree.
///
/// # Errors
/// [`crate::Error::NoSpace`], or a block that cannot be read.
pub(super) fn add_tree(handle: &Handle<'_>, id: TreeId) -> Result<Arc<LiveTree>> {
    let mut item = RawRootItem::parse(&[0; RawRootItem::SIZE]).expect("all zeros parse as a root item");
    item.generation = handle.generation();
    item.refs = 1;
    let tree = handle.new_tree(id, item, 0)?;
    let record = tree.record().expect("a new tree has a record");
    let root_tree = handle.transactions().live().root_tree();
    root_tree.edit(handle).put(root_key(id), &RootItem::new(record.item).to_bytes())?;
    Ok(tree)
}

/// Drops a tree, and its item in the root tree.
///
/// # Errors
/// A block that cannot be read; a tree that is not there.
pub(super) fn remove_tree(handle: &Handle<'_>, id: TreeId) -> Result<()> {
    let live = handle.transactions().live();
    let tree = live.get(id)?;
    tree.edit(handle).remove_range(Key::MIN..=Key::MAX)?;
    let root = tree.tree().root_block()?;
    NodeAllocator::free(handle, &tree, &root)?;
    drop(root);
    let offset = tree.record().map_or(0, |record| record.key_offset);
    live.root_tree().edit(handle).remove(Key { offset, ..root_key(id) })?;
    live.remove(id);
    Ok(())
}
