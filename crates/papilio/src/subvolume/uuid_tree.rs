//! The UUID tree, changed: from a subvolume's UUID, or the one it was received with, to its id.
//!
//! Owns [`add`], [`remove`] and [`fresh_uuid`]. Invariant: the tree has an item for each UUID of a living
//! subvolume; where a file system of before Linux 3.12 has no such tree, the first change makes it, of all
//! subvolumes that there are. Lock: the tree's writer lock, for one item. Kernel counterpart:
//! `fs/btrfs/uuid-tree.c`, `btrfs_create_uuid_tree` (`fs/btrfs/volumes.c`).

use crate::btree::{LiveTree, TreeEditor};
use crate::errors::{Error, Result};
use crate::subvolume::root_items::{empty_root_item, put_root_item};
use crate::transaction::Handle;
use papilio_format::items::root::RootItem;
use papilio_format::items::uuid_tree::{UuidItem, uuid_key};
use papilio_format::{ChecksumType, ItemType, Key, TreeId, Uuid, objectid};
use std::sync::Arc;

/// A UUID that no other has: the only place where chance enters. Where all changes are given one time, so that the
/// same changes make the same image, it follows from the file system's UUID, the transaction and the
/// subvolume: version 8 (RFC 9562), of their SHA-256.
pub(super) fn fresh_uuid(handle: &Handle<'_>, id: TreeId) -> Uuid {
    if !handle.transactions().is_reproducible() {
        return Uuid::new_v4();
    }
    let fsid = handle.transactions().volume().superblock().raw.fsid;
    let (generation, id) = (handle.generation().0.to_le_bytes(), id.0.to_le_bytes());
    let sum = ChecksumType::Sha256.compute(&[&fsid.as_bytes()[..], &generation, &id].concat());
    Uuid::new_v8(*sum.as_bytes().first_chunk().expect("SHA-256 has 32 bytes"))
}

/// Notes that `uuid` is subvolume `id`'s; nothing changes where it is noted.
///
/// # Errors
/// A block or an item that cannot be read, or what changing the tree meets.
pub(super) fn add(handle: &Handle<'_>, uuid: Uuid, item_type: ItemType, id: TreeId) -> Result<()> {
    let tree = open_or_create(handle)?;
    add_to(&mut tree.edit(handle), uuid, item_type, id)
}

/// Notes that `uuid` is not subvolume `id`'s any more.
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
    // Its writer lock keeps a second from making it too.
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

/// The UUIDs of all living subvolumes.
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
