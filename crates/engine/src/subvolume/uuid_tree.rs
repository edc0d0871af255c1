//! Changes of the UUID tree, which maps UUIDs of subvolumes, own and received, to their ids.
//!
//! Owns [`add`] and [`remove`].
//!
//! **Invariant**: the tree has an item for each UUID of a living subvolume. File systems from
//! before Linux 3.12 lack the tree; the first change then creates it for all subvolumes.
//!
//! **Locks**: the tree's writer lock, for one item; the root tree's, while the tree is created.
//!
//! Kernel counterpart: `fs/btrfs/uuid-tree.c`, `btrfs_create_uuid_tree` (`fs/btrfs/volumes.c`).

use crate::btree::{LiveTree, TreeEditor};
use crate::errors::{Error, Result};
use crate::subvolume::root_items::{empty_root_item, put_root_item};
use crate::transaction::Handle;
use papilio_format::items::root::RootItem;
use papilio_format::items::uuid_tree::{UuidItem, uuid_key};
use papilio_format::{ItemType, Key, TreeId, Uuid, objectid};
use std::sync::Arc;

/// Adds `uuid` as subvolume `id`'s, unless it is there already.
///
/// # Errors
/// A block or an item that cannot be read; errors of changing the tree.
pub(super) fn add(handle: &Handle<'_>, uuid: Uuid, item_type: ItemType, id: TreeId) -> Result<()> {
    let tree = open_or_create(handle)?;
    add_to(&mut tree.edit(handle), uuid, item_type, id)
}

/// Removes `uuid` of subvolume `id`, if it is there.
///
/// # Errors
/// As [`add`].
pub(super) fn remove(handle: &Handle<'_>, uuid: Uuid, item_type: ItemType, id: TreeId) -> Result<()> {
    let Some(tree) = handle.transactions().live().find(objectid::UUID_TREE)? else { return Ok(()) };
    let mut editor = tree.edit(handle);
    let key = uuid_key(uuid, item_type);
    let mut ids = subvolumes_of(&editor, &key)?;
    let before = ids.len();
    ids.retain(|other| *other != id);
    match ids.len() {
        left if left == before => Ok(()),
        0 => editor.remove(key).map(drop),
        _ => editor.replace(key, &UuidItem::encode(&ids)),
    }
}

fn add_to(editor: &mut TreeEditor<'_>, uuid: Uuid, item_type: ItemType, id: TreeId) -> Result<()> {
    let key = uuid_key(uuid, item_type);
    let mut ids = subvolumes_of(editor, &key)?;
    if ids.contains(&id) {
        return Ok(());
    }
    ids.push(id);
    editor.put(key, &UuidItem::encode(&ids))
}

fn subvolumes_of(editor: &TreeEditor<'_>, key: &Key) -> Result<Vec<TreeId>> {
    let Some(item) = editor.get(key)? else { return Ok(Vec::new()) };
    let fault = |reason| Error::Item { tree: editor.id(), key: *key, reason };
    Ok(UuidItem::parse(item.data()).map_err(fault)?.subvolumes().collect())
}

fn open_or_create(handle: &Handle<'_>) -> Result<Arc<LiveTree>> {
    let live = handle.transactions().live();
    if let Some(tree) = live.find(objectid::UUID_TREE)? {
        return Ok(tree);
    }
    // The root tree's writer lock keeps a second thread from creating the tree too.
    let mut root_editor = live.root_tree().edit(handle);
    if let Some(tree) = live.find(objectid::UUID_TREE)? {
        return Ok(tree);
    }
    let subvolumes = all_uuids(&root_editor)?;
    let tree = handle.new_tree(objectid::UUID_TREE, empty_root_item(handle), 0)?;
    put_root_item(&mut root_editor, &tree)?;
    drop(root_editor);
    let mut editor = tree.edit(handle);
    for (uuid, item_type, id) in subvolumes {
        add_to(&mut editor, uuid, item_type, id)?;
    }
    drop(editor);
    Ok(tree)
}

/// Collects the UUIDs of all living subvolumes.
fn all_uuids(root_editor: &TreeEditor<'_>) -> Result<Vec<(Uuid, ItemType, TreeId)>> {
    let root_tree = root_editor.tree();
    let mut found = Vec::new();
    for item in root_tree.range(Key::first_of(objectid::FS_TREE.0)..=Key::last_of(objectid::LAST_FREE)) {
        let item = item?;
        let id = TreeId(item.key.objectid);
        if item.key.item_type != ItemType::ROOT_ITEM || !objectid::is_subvolume(id) {
            continue;
        }
        let fault = |reason| Error::Item { tree: objectid::ROOT_TREE, key: item.key, reason };
        let root = RootItem::parse(item.data()).map_err(fault)?;
        if root.refs == 0 {
            continue;
        }
        for (uuid, item_type) in
            [(root.uuid, ItemType::UUID_SUBVOL), (root.received_uuid, ItemType::UUID_RECEIVED_SUBVOL)]
        {
            if !uuid.is_nil() {
                found.push((uuid, item_type, id));
            }
        }
    }
    Ok(found)
}
