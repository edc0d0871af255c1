//! The list of subvolumes.
//!
//! Owns [`Subvolume`] and the search for its path: from the subvolume's back reference to the
//! directory that contains it, up to that subvolume's root, and so on to the top level.
//!
//! Kernel counterparts: `btrfs_ioctl_get_subvol_info`, `btrfs_search_path_in_tree`
//! (`fs/btrfs/ioctl.c`).

use crate::errors::{Error, PathError, Result};
use crate::items::inode::first_name;
use crate::items::item_error;
use crate::items::sound_items::is_mistyped_root;
use crate::items::trees::{OpenTree, Trees};
use papilio_format::items::inode::Timespec;
use papilio_format::items::root::RootFlags;
use papilio_format::items::root_ref::RootRef;
use papilio_format::{Generation, InodeNumber, ItemType, Key, TreeId, Uuid, objectid};
use std::collections::HashMap;
use std::sync::Arc;

/// Most names in a path. A longer path means a loop.
const DEPTH_LIMIT: usize = 4096;

/// A subvolume or snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subvolume {
    /// The subvolume's id.
    pub id: TreeId,
    /// The subvolume whose directory contains it; `None` for the top level and for a deleted
    /// subvolume.
    pub parent: Option<TreeId>,
    /// The inode of the directory that contains it; `None` where `parent` is.
    pub directory: Option<InodeNumber>,
    /// Its name in that directory; empty for the top level.
    pub name: Vec<u8>,
    /// Its path from the top level, without a leading slash; empty for the top level, `None` if it
    /// has no path or the path cannot be found.
    pub path: Option<Vec<u8>>,
    /// Its UUID; nil for the top level of old file systems.
    pub uuid: Uuid,
    /// The UUID of the subvolume that it is a snapshot of, or nil.
    pub parent_uuid: Uuid,
    /// The UUID that it had on the sender's file system, or nil.
    pub received_uuid: Uuid,
    /// The transaction that last changed its tree.
    pub generation: Generation,
    /// The transaction that created it.
    pub created: Generation,
    /// The transaction that last changed an inode in it.
    pub changed: Generation,
    /// The sender's transaction, for a received subvolume.
    pub sent: Generation,
    /// The transaction that received it.
    pub received: Generation,
    /// The time of its creation.
    pub creation_time: Timespec,
    /// The time of its last change.
    pub change_time: Timespec,
    /// The time when it was sent.
    pub send_time: Timespec,
    /// The time when it was received.
    pub receive_time: Timespec,
    /// Flags: read-only, or deleted.
    pub flags: RootFlags,
    /// 1, or 0 once it is deleted.
    pub refs: u32,
}

impl Subvolume {
    /// Whether the subvolume is read-only.
    pub fn is_read_only(&self) -> bool {
        self.flags.contains(RootFlags::RDONLY)
    }

    /// Whether it was created as a snapshot of another subvolume.
    pub fn is_snapshot(&self) -> bool {
        !self.parent_uuid.is_nil()
    }

    /// Whether it was deleted: it has no path any more, but its tree still takes space.
    pub fn is_being_deleted(&self) -> bool {
        self.refs == 0
    }
}

/// The back reference of a subvolume.
#[derive(Clone)]
struct Parent {
    tree: TreeId,
    directory: InodeNumber,
    name: Vec<u8>,
}

/// Lists all subvolumes, the top level first, then by id.
///
/// # Errors
/// A tree block or an item that cannot be read.
pub fn list(trees: &Trees) -> Result<Vec<Subvolume>> {
    let root_tree = trees.root_tree();
    let mut parents: HashMap<TreeId, Parent> = HashMap::new();
    let mut ids = Vec::new();
    for item in root_tree.range(Key::first_of(objectid::FS_TREE.0)..=Key::last_of(objectid::LAST_FREE)) {
        let item = item?;
        let id = TreeId(item.key.objectid);
        if !objectid::is_subvolume(id) {
            continue;
        }
        let mistyped = trees.forest().has_sound_leaves() && is_mistyped_root(&item.key, item.data());
        if (item.key.item_type == ItemType::ROOT_ITEM || mistyped) && ids.last() != Some(&id) {
            ids.push(id);
        } else if item.key.item_type == ItemType::ROOT_BACKREF {
            let reference =
                RootRef::parse(item.data()).map_err(|reason| item_error(&root_tree, &item, reason))?;
            let parent = Parent {
                tree: TreeId(item.key.offset),
                directory: reference.directory,
                name: reference.name.to_vec(),
            };
            parents.insert(id, parent);
        }
    }
    let mut all = Vec::with_capacity(ids.len());
    for id in ids {
        match trees.find(id)? {
            Some(open) => all.push(describe(trees, &open, &parents)),
            None if is_gone(trees, id)? => {}
            None => drop(trees.get(id, "a subvolume's root item")?),
        }
    }
    Ok(all)
}

/// Returns whether the root tree has nothing of a subvolume any more: the cleaner has freed its
/// tree since it was listed.
fn is_gone(trees: &Trees, id: TreeId) -> Result<bool> {
    let item = trees.root_tree().range(Key::first_of(id.0)..=Key::last_of(id.0)).next();
    Ok(item.transpose()?.is_none())
}

/// Describes one subvolume by its id.
///
/// # Errors
/// [`PathError::NoSubvolume`], or a tree block or an item that cannot be read.
pub fn show(trees: &Trees, id: TreeId) -> Result<Subvolume> {
    let missing = || Error::path(format!("subvolume {id}").as_bytes(), PathError::NoSubvolume);
    list(trees)?.into_iter().find(|subvolume| subvolume.id == id).ok_or_else(missing)
}

fn describe(trees: &Trees, open: &Arc<OpenTree>, parents: &HashMap<TreeId, Parent>) -> Subvolume {
    let item = open.item();
    let id = open.tree.id();
    let parent = parents.get(&id);
    let path = match id {
        objectid::FS_TREE => Some(Vec::new()),
        _ => path_of(trees, id, parents).ok().flatten(),
    };
    Subvolume {
        id,
        parent: parent.map(|parent| parent.tree),
        directory: parent.map(|parent| parent.directory),
        name: parent.map(|parent| parent.name.clone()).unwrap_or_default(),
        path,
        uuid: item.uuid,
        parent_uuid: item.parent_uuid,
        received_uuid: item.received_uuid,
        generation: item.generation,
        created: item.otransid,
        changed: item.ctransid,
        sent: item.stransid,
        received: item.rtransid,
        creation_time: item.otime,
        change_time: item.ctime,
        send_time: item.stime,
        receive_time: item.rtime,
        flags: item.flags,
        refs: item.refs,
    }
}

/// Finds the path from the top level; `None` if the references do not lead there.
fn path_of(trees: &Trees, id: TreeId, parents: &HashMap<TreeId, Parent>) -> Result<Option<Vec<u8>>> {
    let mut names = Vec::new();
    let mut current = id;
    while current != objectid::FS_TREE {
        let Some(parent) = parents.get(&current) else { return Ok(None) };
        names.push(parent.name.clone());
        let Some(above) = trees.find(parent.tree)? else { return Ok(None) };
        let mut directory = parent.directory;
        while directory != above.root_directory() {
            let Some(name) = first_name(&above.tree, directory)? else { return Ok(None) };
            names.push(name.name);
            directory = name.parent;
            if names.len() > DEPTH_LIMIT {
                return Ok(None);
            }
        }
        current = parent.tree;
        if names.len() > DEPTH_LIMIT {
            return Ok(None);
        }
    }
    names.reverse();
    Ok(Some(names.join(&b'/')))
}
