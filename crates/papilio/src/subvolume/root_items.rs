//! Root items of subvolumes, written while the transaction runs.
//!
//! A commit writes the root items of trees whose blocks changed; what changes a root item alone, or must
//! be found by its id at once, goes through here. Invariant: what is written is the live tree's record,
//! with what the commit will bring up to date left as it was. Takes no lock. Kernel counterparts:
//! `btrfs_insert_root`, `btrfs_update_root`, `btrfs_check_and_init_root_item` (`fs/btrfs/root-tree.c`).

use crate::btree::{LiveTree, TreeEditor};
use crate::errors::{Error, PathError, Result};
use crate::transaction::Handle;
use papilio_format::items::inode::{FileKind, InodeFlags};
use papilio_format::items::root::{RawRootItem, RootFlags, RootItem, root_key};
use papilio_format::{Key, TreeId};

/// The root item of a new tree that is no subvolume's.
pub(super) fn empty_root_item(handle: &Handle<'_>) -> RawRootItem {
    let mut item = RawRootItem::parse(&[0; RawRootItem::SIZE]).expect("zeros are a root item");
    item.generation = handle.generation();
    item.refs = 1;
    item
}

/// The root item of a new subvolume, as `create_subvol` fills it.
pub(super) fn new_subvolume_item(handle: &Handle<'_>, id: TreeId) -> RawRootItem {
    let mut item = empty_root_item(handle);
    item.inode.generation = papilio_format::Generation(1);
    item.inode.size = 3;
    item.inode.nlink = 1;
    item.inode.nbytes = handle.transactions().node_size();
    item.inode.mode = FileKind::Directory.mode_bits() | 0o755;
    item.inode.flags = InodeFlags::ROOT_ITEM_INIT;
    item.root_dirid = papilio_format::objectid::FIRST_INODE;
    item.uuid = super::uuid_tree::fresh_uuid(handle, id);
    item.ctransid = handle.generation();
    item.otransid = handle.generation();
    item.ctime = handle.now();
    item.otime = handle.now();
    item
}

/// The root item of a snapshot, made from its source's as `create_pending_snapshot` does.
pub(super) fn snapshot_item(
    handle: &Handle<'_>,
    id: TreeId,
    source: &RawRootItem,
    read_only: bool,
) -> RawRootItem {
    let mut item = *source;
    if !item.inode.flags.contains(InodeFlags::ROOT_ITEM_INIT) {
        // Kernels before 3.0 left these two undefined.
        item.inode.flags |= InodeFlags::ROOT_ITEM_INIT;
        item.flags = RootFlags::empty();
        item.byte_limit = 0;
    }
    item.flags.set(RootFlags::RDONLY, read_only);
    item.parent_uuid = source.uuid;
    item.uuid = super::uuid_tree::fresh_uuid(handle, id);
    if !read_only {
        // What can change is not what was sent any more.
        item.received_uuid = papilio_format::Uuid::nil();
        item.stime = Default::default();
        item.rtime = Default::default();
        item.stransid = Default::default();
        item.rtransid = Default::default();
    }
    item.otime = handle.now();
    item.otransid = handle.generation();
    item.drop_progress = Key::MIN;
    item.drop_level = 0;
    item
}

/// The key of a tree's root item.
pub(super) fn key_of(tree: &LiveTree) -> Key {
    let offset = tree.record().map_or(0, |record| record.key_offset);
    Key { offset, ..root_key(tree.id()) }
}

/// Writes a tree's root item as its record has it.
///
/// # Errors
/// What changing the root tree meets.
pub(super) fn put_root_item(root_editor: &mut TreeEditor<'_>, tree: &LiveTree) -> Result<()> {
    let record = tree.record().expect("only the root and the chunk tree have none");
    root_editor.put(key_of(tree), &RootItem::new(record.item).to_bytes())
}

/// Refuses a subvolume that was deleted. Under its writer lock the answer stays.
///
/// # Errors
/// [`PathError::NoSubvolume`].
pub(super) fn check_living(tree: &LiveTree) -> Result<()> {
    match tree.record() {
        Some(record) if record.item.refs > 0 => Ok(()),
        _ => Err(no_subvolume(tree.id())),
    }
}

pub(super) fn no_subvolume(id: TreeId) -> Error {
    Error::path(format!("subvolume {id}").as_bytes(), PathError::NoSubvolume)
}
