//! Finding a subvolume's root directory, and the default subvolume.

use crate::errors::Result;
use crate::items::dir;
use crate::items::trees::Trees;
use crate::namespace::{InodeHandle, Place};
use papilio_format::{InodeNumber, TreeId, objectid};

/// Opens the root directory of subvolume `id`.
pub fn subvolume_root(trees: &Trees, id: TreeId) -> Result<InodeHandle> {
    let subvolume = trees.subvolume(id)?;
    let inode = subvolume.root_directory();
    InodeHandle::open(trees, Place { tree: id, inode })
}

/// Returns the subvolume that a mount without options shows: the entry `default` of the root tree's
/// directory, or the top level where that is missing.
pub fn default_subvolume(trees: &Trees) -> Result<TreeId> {
    let directory = InodeNumber(objectid::ROOT_TREE_DIR);
    Ok(match dir::look_up(&trees.root_tree(), directory, b"default")? {
        Some(dir::FoundEntry { target: dir::EntryTarget::Subvolume(id), .. }) => id,
        _ => objectid::FS_TREE,
    })
}
