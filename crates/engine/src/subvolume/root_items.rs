//! Root items of subvolumes, written within a transaction.
//!
//! A commit writes the root items of trees whose blocks changed. Changes of a root item alone, and
//! root items that must be found by their id at once, go through this file.
//!
//! **Invariant**: the written item is the live tree's record. The commit updates its address and
//! size later.
//!
//! Locks: none.
//!
//! Kernel counterparts: `btrfs_insert_root`, `btrfs_update_root`, `btrfs_check_and_init_root_item`
//! (`fs/btrfs/root-tree.c`).

use crate::btree::{LiveTree, TreeEditor};
use crate::errors::{Error, PathError, Result};
use crate::transaction::Handle;
use papilio_format::items::inode::{FileKind, InodeFlags};
use papilio_format::items::root::{RawRootItem, RootFlags, RootItem, root_key};
use papilio_format::{ChecksumType, Key, TreeId, Uuid};

/// The root item of a new tree that is not a subvolume.
pub(super) fn empty_root_item(handle: &Handle<'_>) -> RawRootItem {
    let mut item = RawRootItem::parse(&[0; RawRootItem::SIZE]).expect("all zeros parse as a root item");
    item.generation = handle.generation();
    item.refs = 1;
    item
}

/// The root item of a new subvolume, with the same fields as in `create_subvol`.
pub(super) fn new_subvolume_item(handle: &Handle<'_>, id: TreeId) -> RawRootItem {
    let mut item = empty_root_item(handle);
    item.inode.generation = papilio_format::Generation(1);
    item.inode.size = 3;
    item.inode.nlink = 1;
    item.inode.nbytes = handle.transactions().node_size();
    item.inode.mode = FileKind::Directory.mode_bits() | 0o755;
    item.inode.flags = InodeFlags::ROOT_ITEM_INIT;
    item.root_dirid = papilio_format::objectid::FIRST_INODE;
    item.uuid = fresh_uuid(handle, id);
    item.ctransid = handle.generation();
    item.otransid = handle.generation();
    item.ctime = handle.now();
    item.otime = handle.now();
    item
}

/// The root item of a snapshot, derived from its source's as in `create_pending_snapshot`.
pub(super) fn snapshot_item(
    handle: &Handle<'_>,
    id: TreeId,
    source: &RawRootItem,
    read_only: bool,
) -> RawRootItem {
    let mut item = *source;
    if !item.inode.flags.contains(InodeFlags::ROOT_ITEM_INIT) {
        // Kernels before 3.0 left these two fields undefined.
        item.inode.flags |= InodeFlags::ROOT_ITEM_INIT;
        item.flags = RootFlags::empty();
        item.byte_limit = 0;
    }
    item.flags.set(RootFlags::RDONLY, read_only);
    item.parent_uuid = source.uuid;
    item.uuid = fresh_uuid(handle, id);
    if !read_only {
        // A snapshot that can change no longer equals what was sent.
        item.received_uuid = Uuid::nil();
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

/// Returns a new UUID: the only random value in a file system. If all changes carry one fixed time,
/// so that equal changes make equal images, it is derived instead. It is then version 8 (RFC 9562),
/// from the SHA-256 of the file system's UUID, the transaction and the subvolume.
fn fresh_uuid(handle: &Handle<'_>, id: TreeId) -> Uuid {
    if !handle.transactions().is_reproducible() {
        return Uuid::new_v4();
    }
    let fsid = handle.transactions().volume().superblock().raw.fsid;
    let (generation, id) = (handle.generation().0.to_le_bytes(), id.0.to_le_bytes());
    let sum = ChecksumType::Sha256.compute(&[&fsid.as_bytes()[..], &generation, &id].concat());
    Uuid::new_v8(*sum.as_bytes().first_chunk().expect("SHA-256 has 32 bytes"))
}

/// The key of a tree's root item.
pub(super) fn key_of(tree: &LiveTree) -> Key {
    let offset = tree.record().map_or(0, |record| record.key_offset);
    Key { offset, ..root_key(tree.id()) }
}

/// Writes a tree's root item from its record.
///
/// # Errors
/// Errors of changing the root tree.
pub(super) fn put_root_item(root_editor: &mut TreeEditor<'_>, tree: &LiveTree) -> Result<()> {
    let record = tree.record().expect("only the root tree and the chunk tree have no record");
    root_editor.put(key_of(tree), &RootItem::new(record.item).to_bytes())
}

/// Refuses a subvolume that was deleted. While the caller holds its writer lock, the result stays
/// valid.
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
