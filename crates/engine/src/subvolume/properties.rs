//! Properties of subvolumes: the default subvolume, read-only subvolumes, and received ones.
//!
//! Owns [`set_default`], [`set_read_only`], [`set_received`] and their look-ups.
//!
//! **Locks**, in this order: the subvolume's writer lock, so that it is not deleted meanwhile; the
//! root tree's or the UUID tree's.
//!
//! Kernel counterparts: `btrfs_ioctl_default_subvol`, `btrfs_ioctl_subvol_setflags`,
//! `_btrfs_ioctl_set_received_subvol` (`fs/btrfs/ioctl.c`).

use super::root_items::{check_living, key_of, put_root_item};
use super::uuid_tree;
use crate::btree::Tree;
use crate::errors::{Error, PathError, Result};
use crate::items::dir::{self, EntryTarget};
use crate::items::draft;
use crate::transaction::Handle;
use papilio_format::features::IncompatFeatures;
use papilio_format::items::dir_item::{DirEntries, dir_item_key};
use papilio_format::items::inode::Timespec;
use papilio_format::items::root::RootFlags;
use papilio_format::{Generation, InodeNumber, ItemType, TreeId, Uuid, objectid};

const DEFAULT: &[u8] = b"default";

/// The origin of a received subvolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The UUID that it had on the sender's file system; nil removes the mark.
    pub uuid: Uuid,
    /// The sender's transaction that last changed it.
    pub sent: Generation,
    /// The time when it was sent.
    pub send_time: Timespec,
}

/// Returns the subvolume that a mount without options shows, if the root tree names one.
///
/// # Errors
/// A block or an item that cannot be read.
pub fn default_subvolume(root_tree: &Tree) -> Result<Option<TreeId>> {
    let directory = InodeNumber(objectid::ROOT_TREE_DIR);
    Ok(match dir::look_up(root_tree, directory, DEFAULT)? {
        Some(dir::FoundEntry { target: EntryTarget::Subvolume(id), .. }) => Some(id),
        _ => None,
    })
}

/// Makes `id` the subvolume that a mount without options shows.
///
/// # Errors
/// [`PathError::NoSubvolume`]; [`Error::MissingItem`] if the file system has no entry for the
/// default; errors of reading and changing the root tree.
pub fn set_default(handle: &Handle<'_>, id: TreeId) -> Result<()> {
    let tree = handle.live_tree(id)?;
    let _editor = tree.edit(handle);
    check_living(&tree)?;
    let location = key_of(&tree);
    let key = dir_item_key(InodeNumber(objectid::ROOT_TREE_DIR), DEFAULT);
    draft::edit(&mut handle.transactions().live().root_tree().edit(handle), |draft| {
        let what = "the entry of the default subvolume";
        let Some(data) = draft.get(&key)?.map(<[u8]>::to_vec) else { return Err(draft.missing(key, what)) };
        let mut changed = Vec::with_capacity(data.len());
        let mut found = false;
        for mut entry in DirEntries::parse(&data).map_err(|reason| draft.fault(key, reason))? {
            if entry.name == DEFAULT {
                entry.location = location;
                found = true;
            }
            entry.append_to(&mut changed);
        }
        if !found {
            return Err(draft.missing(key, what));
        }
        draft.replace(key, changed);
        Ok(())
    })?;
    handle.transactions().require_features(IncompatFeatures::DEFAULT_SUBVOL);
    Ok(())
}

/// Makes a subvolume read-only or writable.
///
/// # Errors
/// [`PathError::NoSubvolume`], or errors of reading and changing the root tree.
pub fn set_read_only(handle: &Handle<'_>, id: TreeId, read_only: bool) -> Result<()> {
    let tree = handle.live_tree(id)?;
    let _editor = tree.edit(handle);
    check_living(&tree)?;
    tree.update_record(|record| record.item.flags.set(RootFlags::RDONLY, read_only));
    put_root_item(&mut handle.transactions().live().root_tree().edit(handle), &tree)
}

/// Marks a subvolume as received. Returns the transaction that the mark names as receiving it.
///
/// # Errors
/// [`PathError::NoSubvolume`]; [`PathError::ReadOnly`] for a read-only subvolume; errors of reading
/// and changing the root tree and the UUID tree.
pub fn set_received(handle: &Handle<'_>, id: TreeId, received: &Received) -> Result<Generation> {
    let tree = handle.live_tree(id)?;
    let _editor = tree.edit(handle);
    check_living(&tree)?;
    let before = tree.record().expect("every subvolume has a root record").item;
    if before.flags.contains(RootFlags::RDONLY) {
        return Err(Error::path(format!("subvolume {id}").as_bytes(), PathError::ReadOnly));
    }
    tree.update_record(|record| {
        record.item.received_uuid = received.uuid;
        record.item.stransid = received.sent;
        record.item.stime = received.send_time;
        record.item.rtransid = handle.generation();
        record.item.rtime = handle.now();
    });
    put_root_item(&mut handle.transactions().live().root_tree().edit(handle), &tree)?;
    if before.received_uuid != received.uuid {
        let item_type = ItemType::UUID_RECEIVED_SUBVOL;
        if !before.received_uuid.is_nil() {
            uuid_tree::remove(handle, before.received_uuid, item_type, id)?;
        }
        if !received.uuid.is_nil() {
            uuid_tree::add(handle, received.uuid, item_type, id)?;
        }
    }
    Ok(handle.generation())
}
