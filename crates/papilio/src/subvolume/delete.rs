//! Deleting subvolumes: the part that happens at once.
//!
//! Owns [`delete`] and [`forget_entry`]. The name and all references go, and the root tree lists the
//! subvolume as an orphan; its tree is taken apart later, by `clean_step`. Invariants: a subvolume that
//! holds others stays, so that no entry leads to a place that is gone; nobody makes one in a subvolume
//! that is being deleted, as both hold its writer lock. Locks: the writer locks of the directory's
//! subvolume and of the deleted one, in the order of their ids; inside them the root tree's, then the UUID
//! tree's. Kernel counterparts: `btrfs_delete_subvolume`, `may_destroy_subvol`, `btrfs_unlink_subvol`
//! (`fs/btrfs/inode.c`).

use super::create::{Editors, Entry};
use super::properties::default_subvolume;
use super::root_items::{check_living, put_root_item};
use super::{root_refs, uuid_tree};
use crate::btree::{LiveTree, Tree, TreeEditor};
use crate::errors::{Error, PathError, Result};
use crate::items::dir::{self, EntryTarget};
use crate::items::dir_edit::{self};
use crate::items::draft;
use crate::namespace::subvolume_entry::remove_subvolume_entry;
use crate::subvolume::root_refs::Link;
use crate::transaction::Handle;
use papilio_format::items::orphan::orphan_key;
use papilio_format::items::root::RootFlags;
use papilio_format::{InodeNumber, ItemType, Key, TreeId, objectid};

/// What an entry of a directory leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// Something of the same subvolume, or nothing.
    Other,
    /// A subvolume whose place this is.
    Subvolume(TreeId, Link),
    /// A subvolume whose place is elsewhere: a snapshot's copy of an entry.
    Stub(TreeId),
}

/// What the entry `at` leads to.
///
/// # Errors
/// [`PathError::NotFound`] without an entry, or what reading says.
pub(super) fn named(tree: &Tree, root_tree: &Tree, at: Entry<'_>) -> Result<Named> {
    let missing = || Error::path(at.name, PathError::NotFound);
    let found = dir::look_up(tree, at.directory, at.name)?.ok_or_else(missing)?;
    let EntryTarget::Subvolume(id) = found.target else { return Ok(Named::Other) };
    let link = root_refs::link_in(root_tree, at.tree, id)?;
    Ok(match link.filter(|link| link.directory == at.directory && link.name == at.name) {
        Some(link) => Named::Subvolume(id, link),
        None => Named::Stub(id),
    })
}

/// The subvolume that `at` names.
///
/// # Errors
/// [`PathError::NotFound`]; [`PathError::NoSubvolume`] where it names something else.
fn subvolume_at(handle: &Handle<'_>, at: Entry<'_>) -> Result<TreeId> {
    let parent = handle.live_tree(at.tree)?;
    let root_tree = handle.transactions().live().root_tree().tree();
    match named(&parent.tree(), &root_tree, at)? {
        Named::Subvolume(id, _) => Ok(id),
        Named::Other | Named::Stub(_) => Err(Error::path(at.name, PathError::NoSubvolume)),
    }
}

/// The directory and the name of subvolume `id`.
///
/// # Errors
/// [`PathError::NoSubvolume`] where it has none.
pub(crate) fn entry_of(root_tree: &Tree, id: TreeId) -> Result<(TreeId, InodeNumber, Vec<u8>)> {
    let link = root_refs::link_of(root_tree, id)?;
    link.map(|link| (link.parent, link.directory, link.name))
        .ok_or_else(|| super::root_items::no_subvolume(id))
}

/// Deletes the subvolume `at`; returns its id. With `only_empty`, as `rmdir` does, one with entries stays;
/// `in_use` stays in any case.
///
/// # Errors
/// [`PathError::Busy`] for `in_use`; [`PathError::NotFound`]; [`PathError::NoSubvolume`] for an entry that leads elsewhere;
/// [`PathError::NotPermitted`] for the default subvolume; [`PathError::NotEmpty`] for one that holds
/// others, or entries; as [`remove_subvolume_entry`]; or what reading and changing trees meets.
pub(crate) fn delete(handle: &Handle<'_>, at: Entry<'_>, only_empty: bool, in_use: TreeId) -> Result<TreeId> {
    let id = subvolume_at(handle, at)?;
    if id == in_use {
        return Err(Error::path(at.name, PathError::Busy));
    }
    let parent = handle.live_tree(at.tree)?;
    let victim = handle.live_tree(id)?;
    let mut editors = Editors::lock(handle, &parent, &victim);
    check_living(&parent)?;
    check_living(&victim)?;
    let live = handle.transactions().live();
    let mut root_editor = live.root_tree().edit(handle);
    let link = {
        let root_tree = root_editor.tree();
        let link = match named(&editors.first().tree(), &root_tree, at)? {
            Named::Subvolume(now, link) if now == id => link,
            _ => return Err(Error::path(at.name, PathError::NoSubvolume)),
        };
        check_deletable(&root_tree, id, at.name)?;
        link
    };
    if only_empty {
        check_empty(editors.second(), at.name)?;
    }
    let now = handle.now();
    remove_subvolume_entry(editors.first(), now, at.directory, at.name, id, Some(link.index))?;
    mark_dead(handle, &mut root_editor, &victim, at.tree)?;
    drop(root_editor);
    let item = victim.record().expect("a subvolume has one").item;
    for (uuid, item_type) in
        [(item.uuid, ItemType::UUID_SUBVOL), (item.received_uuid, ItemType::UUID_RECEIVED_SUBVOL)]
    {
        if !uuid.is_nil() {
            uuid_tree::remove(handle, uuid, item_type, id)?;
        }
    }
    Ok(id)
}

/// Removes the entry `at`, a snapshot's copy of a subvolume's entry.
///
/// # Errors
/// [`PathError::NotFound`]; [`PathError::NoSubvolume`] for an entry of another kind; as
/// [`remove_subvolume_entry`].
pub(crate) fn forget_entry(handle: &Handle<'_>, at: Entry<'_>) -> Result<()> {
    let parent = handle.live_tree(at.tree)?;
    let mut editor = parent.edit(handle);
    check_living(&parent)?;
    let root_tree = handle.transactions().live().root_tree().tree();
    let Named::Stub(id) = named(&editor.tree(), &root_tree, at)? else {
        return Err(Error::path(at.name, PathError::NoSubvolume));
    };
    drop(root_tree);
    // No reference tells its index.
    remove_subvolume_entry(&mut editor, handle.now(), at.directory, at.name, id, None).map(drop)
}

fn check_deletable(root_tree: &Tree, id: TreeId, name: &[u8]) -> Result<()> {
    if default_subvolume(root_tree)? == Some(id) {
        return Err(Error::path(name, PathError::NotPermitted));
    }
    if root_refs::has_children(root_tree, id)? {
        return Err(Error::path(name, PathError::NotEmpty));
    }
    Ok(())
}

fn check_empty(editor: &mut TreeEditor<'_>, name: &[u8]) -> Result<()> {
    let tree = editor.tree();
    let mut draft = draft::Draft::new(editor, &tree);
    if dir_edit::is_empty(&mut draft, objectid::FIRST_INODE)? {
        return Ok(());
    }
    Err(Error::path(name, PathError::NotEmpty))
}

/// Takes the references of a subvolume away and lists it as an orphan.
fn mark_dead(
    handle: &Handle<'_>,
    root_editor: &mut TreeEditor<'_>,
    victim: &LiveTree,
    parent: TreeId,
) -> Result<()> {
    let id = victim.id();
    victim.update_record(|record| {
        record.item.refs = 0;
        record.item.flags |= RootFlags::DEAD;
        record.item.drop_progress = Key::MIN;
        record.item.drop_level = 0;
        // Tells from when on nobody changes it any more.
        record.item.ctransid = handle.generation();
        record.item.ctime = handle.now();
    });
    put_root_item(root_editor, victim)?;
    draft::edit(root_editor, |draft| {
        root_refs::remove(draft, parent, id)?;
        let orphan = orphan_key(id.0);
        if draft.get(&orphan)?.is_none() {
            draft.insert(orphan, Vec::new());
        }
        Ok(())
    })
}
