//! The paths of an inode.
//!
//! Owns [`path_in_subvolume`], and for messages [`owner_paths`] and [`inode_text`]. Locks: none.
//!
//! Kernel counterpart: `paths_from_inode` (`fs/btrfs/backref.c`).

use crate::btree::Tree;
use crate::errors::Result;
use crate::items::inode::{first_name, for_each_name};
use crate::items::trees::Trees;
use crate::jobs::extent_owners::{AddressUse, extent_owners_leaving_out};
use crate::subvolume::show;
use papilio_format::{InodeNumber, LogicalAddress, TreeId, objectid};
use std::collections::BTreeSet;

/// The most directories of a path: a longer one is a loop.
const MOST_DIRECTORIES: usize = 1 << 16;
/// The most files that [`owner_paths`] names.
const MOST_OWNERS: usize = 10;

/// Returns the path of an inode by its first names, from the directory `top` of its tree on,
/// without a leading slash. `None` if its names do not lead there, as for a deleted file.
///
/// # Errors
/// A tree block or item that cannot be read.
pub fn path_in_subvolume(tree: &Tree, inode: InodeNumber, top: InodeNumber) -> Result<Option<Vec<u8>>> {
    let mut names = Vec::new();
    let mut at = inode;
    while at != top {
        if names.len() >= MOST_DIRECTORIES {
            return Ok(None);
        }
        let Some(name) = first_name(tree, at)? else { return Ok(None) };
        names.push(name.name);
        at = name.parent;
    }
    names.reverse();
    Ok(Some(names.join(&b'/')))
}

/// Returns the paths of an inode, from the top level. An inode without a name has none.
///
/// # Errors
/// A tree block or item that cannot be read.
pub(crate) fn inode_paths(trees: &Trees, tree: TreeId, inode: InodeNumber) -> Result<Vec<Vec<u8>>> {
    let subvolume = trees.subvolume(tree)?;
    let prefix = match tree {
        objectid::FS_TREE => Vec::new(),
        _ => {
            let path = show(trees, tree)?.path.unwrap_or_else(|| format!("(subvolume {tree})").into());
            [b"/", &path[..]].concat()
        }
    };
    let top = subvolume.root_directory();
    let mut names = Vec::new();
    for_each_name(&subvolume.tree, inode, |name| {
        names.push(name);
        true
    })?;
    let mut paths = Vec::new();
    for name in names {
        // A directory without a name of its own leads nowhere.
        let Some(directory) = path_in_subvolume(&subvolume.tree, name.parent, top)? else { continue };
        let slash: &[u8] = if directory.is_empty() { b"" } else { b"/" };
        paths.push([&prefix[..], slash, &directory[..], b"/", &name.name[..]].concat());
    }
    Ok(paths)
}

/// Lists the files that use the data extent at `address`, for a message: "/a, /snapshot/a". The
/// message says so where they are not known, or too many. `None` without any, as for an extent of a
/// subvolume that is being deleted.
pub fn owner_paths(trees: &Trees, address: LogicalAddress) -> Option<String> {
    let mut unread = false;
    let found = extent_owners_leaving_out(trees, address, true, &mut |_, _| {
        unread = true;
        Ok(())
    });
    let owners = match found {
        Ok(AddressUse::Data(owners)) if owners.is_empty() && unread => {
            return Some("unknown (subvolumes cannot be read)".to_owned());
        }
        Ok(AddressUse::Data(owners)) if owners.is_empty() => return None,
        Ok(AddressUse::Data(owners)) => owners,
        Ok(_) => return Some("unknown (the extent tree does not have the extent)".to_owned()),
        Err(error) => return Some(format!("unknown ({error})")),
    };
    let inodes: BTreeSet<_> = owners.iter().map(|owner| (owner.tree, owner.inode)).collect();
    let named = inodes.iter().take(MOST_OWNERS).map(|&(tree, inode)| inode_text(trees, tree, inode));
    let mut text = named.collect::<Vec<_>>().join(", ");
    if let Some(more @ 1..) = inodes.len().checked_sub(MOST_OWNERS) {
        text.push_str(&format!(" and {more} more"));
    }
    if unread {
        text.push_str(", and perhaps files in subvolumes that cannot be read");
    }
    Some(text)
}

/// Returns the first path of an inode, or its numbers where it has none.
pub fn inode_text(trees: &Trees, tree: TreeId, inode: InodeNumber) -> String {
    match inode_paths(trees, tree, inode) {
        Ok(paths) if !paths.is_empty() => String::from_utf8_lossy(&paths[0]).into_owned(),
        _ => format!("inode {inode} of subvolume {tree}"),
    }
}
