//! Subvolumes that keep their identity in a new file system.
//!
//! Owns [`adopt`], [`keep_change`] and [`link`], from which a clone of a damaged file system makes
//! its subvolumes: with the ids, UUIDs, times and flags that they had.
//!
//! **Invariant**: root item, UUID items and references agree after each call.
//!
//! Locks: as [`super::create`].
//!
//! Kernel counterpart: none.

use super::root_items::put_root_item;
use super::root_refs::Link;
use super::uuid_tree;
use crate::btree::LiveTree;
use crate::errors::Result;
use crate::items::draft;
use crate::transaction::Handle;
use papilio_format::items::root::{RawRootItem, RootFlags};
use papilio_format::items::root_ref::RootRef;
use papilio_format::{Generation, ItemType, Key, TreeId, objectid};
use std::sync::Arc;

/// Creates the subvolume `id` from the root item that it had elsewhere: without items, or as a
/// snapshot of `base`. No block of `base` may have been changed in this transaction. The top level
/// exists already, and takes over what the item says.
///
/// # Errors
/// [`crate::Error::NoSpace`]; errors of reading and changing trees.
pub fn adopt(
    handle: &Handle<'_>,
    id: TreeId,
    key_offset: u64,
    item: &RawRootItem,
    base: Option<TreeId>,
) -> Result<Arc<LiveTree>> {
    let item = RawRootItem {
        root_dirid: objectid::FIRST_INODE,
        generation: handle.generation(),
        generation_v2: handle.generation(),
        byte_limit: 0,
        bytes_used: 0,
        last_snapshot: Generation(0),
        flags: item.flags.intersection(RootFlags::RDONLY),
        refs: 1,
        drop_progress: Key::MIN,
        drop_level: 0,
        ..*item
    };
    let tree = match (handle.transactions().live().find(id)?, base) {
        (None, None) => handle.new_tree(id, item, key_offset)?,
        (None, Some(base)) => {
            let base = handle.live_tree(base)?;
            let mut editor = base.edit(handle);
            // Blocks up to this transaction are older than the snapshot, as its drop assumes.
            handle.snapshot_tree(&mut editor, id, item, handle.generation().0 - 1)?
        }
        (Some(tree), _) => {
            take_over(handle, &tree, &item)?;
            tree
        }
    };
    put_root_item(&mut handle.transactions().live().root_tree().edit(handle), &tree)?;
    let item = tree.record().expect("every subvolume has a root record").item;
    for (uuid, kind) in
        [(item.uuid, ItemType::UUID_SUBVOL), (item.received_uuid, ItemType::UUID_RECEIVED_SUBVOL)]
    {
        if !uuid.is_nil() {
            uuid_tree::add(handle, uuid, kind, id)?;
        }
    }
    Ok(tree)
}

/// Gives an existing tree the identity of `item`.
fn take_over(handle: &Handle<'_>, tree: &LiveTree, item: &RawRootItem) -> Result<()> {
    let before = tree.update_record(|record| {
        let old = record.item;
        let uuid = if item.uuid.is_nil() { old.uuid } else { item.uuid };
        let (address, level, bytes_used) = (old.address, old.level, old.bytes_used);
        let (generation, generation_v2) = (old.generation, old.generation_v2);
        record.item = RawRootItem { uuid, address, level, bytes_used, generation, generation_v2, ..*item };
        old.uuid
    });
    match before {
        Some(uuid) if !uuid.is_nil() => uuid_tree::remove(handle, uuid, ItemType::UUID_SUBVOL, tree.id()),
        _ => Ok(()),
    }
}

/// Sets transaction and time of a subvolume's last change to those of `item`, as copying its items
/// has changed them.
///
/// # Errors
/// Errors of changing the root tree.
pub fn keep_change(handle: &Handle<'_>, id: TreeId, item: &RawRootItem) -> Result<()> {
    let tree = handle.live_tree(id)?;
    tree.update_record(|record| (record.item.ctransid, record.item.ctime) = (item.ctransid, item.ctime));
    put_root_item(&mut handle.transactions().live().root_tree().edit(handle), &tree)
}

/// Adds the references between `child` and the directory of `parent` that contains it.
///
/// # Errors
/// Errors of reading and changing the root tree.
pub fn link(handle: &Handle<'_>, parent: TreeId, child: TreeId, entry: &RootRef<'_>) -> Result<()> {
    let (directory, index, name) = (entry.directory, entry.sequence, entry.name.to_vec());
    let link = Link { parent, directory, index, name };
    let mut root_editor = handle.transactions().live().root_tree().edit(handle);
    draft::edit(&mut root_editor, |draft| link.put(draft, child))
}
