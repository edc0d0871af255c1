//! Deleting subvolumes: the part that takes effect at once.
//!
//! Owns [`delete`] and [`forget_entry`]. A deletion removes the name and all references, and lists
//! the subvolume as an orphan in the root tree. The tree is *held* for inodes in use; once
//! there are none, `clean_step` drops it.
//!
//! **Invariants**
//! - A subvolume that contains others is not deleted, so that no entry leads to a missing
//!   subvolume.
//! - No subvolume is created in one that is being deleted: both operations hold its writer lock.
//!
//! **Locks**, in this order: the writer locks of the directory's subvolume and of the deleted one,
//! by their ids; the root tree's; the UUID tree's.
//!
//! Kernel counterparts: `btrfs_delete_subvolume`, `may_destroy_subvol`, `btrfs_unlink_subvol`
//! (`fs/btrfs/inode.c`).

use super::create::{DirName, Editors};
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

/// The target of a directory entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// An inode of the same subvolume.
    Other,
    /// A subvolume that this entry names, according to the root tree.
    Subvolume(TreeId, Link),
    /// A subvolume that another entry names: this is a snapshot's copy of that entry.
    Stub(TreeId),
}

/// Looks up the target of the entry `at`.
///
/// # Errors
/// [`PathError::NotFound`] without an entry, or errors of reading.
pub(super) fn named(tree: &Tree, root_tree: &Tree, at: DirName<'_>) -> Result<Named> {
    let missing = || Error::path(at.name, PathError::NotFound);
    let found = dir::look_up(tree, at.directory, at.name)?.ok_or_else(missing)?;
    let EntryTarget::Subvolume(id) = found.target else { return Ok(Named::Other) };
    let link = root_refs::link_in(root_tree, at.tree, id)?;
    Ok(match link.filter(|link| link.directory == at.directory && link.name == at.name) {
        Some(link) => Named::Subvolume(id, link),
        None => Named::Stub(id),
    })
}

/// Returns the subvolume that `at` names.
///
/// # Errors
/// [`PathError::NotFound`]; [`PathError::NoSubvolume`] if it names something else; errors of
/// reading.
fn subvolume_at(handle: &Handle<'_>, at: DirName<'_>) -> Result<TreeId> {
    let parent = handle.live_tree(at.tree)?;
    let root_tree = handle.transactions().live().root_tree().tree();
    match named(&parent.tree(), &root_tree, at)? {
        Named::Subvolume(id, _) => Ok(id),
        Named::Other | Named::Stub(_) => Err(Error::path(at.name, PathError::NoSubvolume)),
    }
}

/// Returns the subvolume and directory of subvolume `id`'s entry, and its name.
///
/// # Errors
/// [`PathError::NoSubvolume`] if it has no entry; errors of reading.
pub fn entry_of(root_tree: &Tree, id: TreeId) -> Result<(TreeId, InodeNumber, Vec<u8>)> {
    let link = root_refs::link_of(root_tree, id)?;
    link.map(|link| (link.parent, link.directory, link.name))
        .ok_or_else(|| super::root_items::no_subvolume(id))
}

/// Deletes the subvolume `at` and returns its id. With `only_empty`, as for `rmdir`, refuses a
/// subvolume with entries. Always refuses the subvolume `in_use`.
///
/// # Errors
/// [`PathError::Busy`] for `in_use`; [`PathError::NotFound`]; [`PathError::NoSubvolume`] for an
/// entry that names something else; [`PathError::NotPermitted`] for the default subvolume;
/// [`PathError::NotEmpty`] for a subvolume that contains others, or entries; as
/// [`remove_subvolume_entry`]; errors of reading and changing trees.
pub fn delete(handle: &Handle<'_>, at: DirName<'_>, only_empty: bool, in_use: TreeId) -> Result<TreeId> {
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
    remove_subvolume_entry(editors.first(), now, at.directory, at.name, (id, Some(link.index)), 1)?;
    mark_dead(handle, &mut root_editor, &victim, at.tree)?;
    drop(root_editor);
    let item = victim.record().expect("every subvolume has a root record").item;
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
pub fn forget_entry(handle: &Handle<'_>, at: DirName<'_>) -> Result<()> {
    let parent = handle.live_tree(at.tree)?;
    let mut editor = parent.edit(handle);
    check_living(&parent)?;
    let root_tree = handle.transactions().live().root_tree().tree();
    let Named::Stub(id) = named(&editor.tree(), &root_tree, at)? else {
        return Err(Error::path(at.name, PathError::NoSubvolume));
    };
    drop(root_tree);
    // A copied entry has no reference that records its index.
    remove_subvolume_entry(&mut editor, handle.now(), at.directory, at.name, (id, None), 1).map(drop)
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

/// Removes the references of a subvolume and lists it as an orphan.
fn mark_dead(
    handle: &Handle<'_>,
    root_editor: &mut TreeEditor<'_>,
    victim: &LiveTree,
    parent: TreeId,
) -> Result<()> {
    let id = victim.id();
    let changed = victim.is_changed_in(handle.generation());
    // In this order: no moment at which an open file has no tree.
    victim.set_held(true);
    victim.update_record(|record| {
        record.item.refs = 0;
        record.item.flags |= RootFlags::DEAD;
        record.item.drop_progress = Key::MIN;
        record.item.drop_level = 0;
        if changed {
            (record.item.ctransid, record.item.ctime) = (handle.generation(), handle.now());
        }
    });
    // The cleaner commits before it drops the tree.
    victim.note_change(handle.generation());
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
