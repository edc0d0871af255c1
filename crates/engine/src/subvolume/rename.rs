//! Moving subvolumes, within the subvolume that contains them or into another.
//!
//! Owns [`check_movable`], [`entry_moved`] and [`rename_across`]. Only subvolumes can be renamed
//! across subvolumes: the entry and its references move, the tree stays.
//!
//! **Invariant**: no subvolume ends up below itself. A move holds the root tree's writer lock from
//! the check to the change.
//!
//! **Locks**, in this order: the writer locks of both subvolumes, by their ids; the root tree's.
//!
//! Kernel counterparts: `btrfs_rename`, `btrfs_rename_exchange` (`fs/btrfs/inode.c`).

use super::create::{DirName, Editors};
use super::delete::{Named, named};
use super::root_items::check_living;
use super::root_refs::{self, Link};
use crate::btree::{Tree, TreeEditor};
use crate::errors::{Error, PathError, Result};
use crate::items::dir::{self, EntryTarget};
use crate::items::dir_edit::{self, EntryValue};
use crate::items::draft;
use crate::items::numbers::SubvolumeNumbers;
use crate::namespace::link::{self, Removed};
use crate::namespace::rename::{CHANGES, RenameMode};
use crate::namespace::subvolume_entry::{
    check_subvolume_entry, insert_subvolume_entry, remove_subvolume_entry,
};
use crate::transaction::Handle;
use papilio_format::TreeId;
use papilio_format::items::root::RootFlags;

/// Refuses to rename a snapshot's copy of a subvolume's entry. Also refuses to move a read-only
/// subvolume to another directory (`moves`), because its `..` would change. Accepts other entries,
/// and missing ones.
///
/// # Errors
/// [`PathError::NotEmpty`] and [`PathError::ReadOnly`], as in the kernel; errors of reading.
pub fn check_movable(
    handle: &Handle<'_>,
    editor: &TreeEditor<'_>,
    at: DirName<'_>,
    moves: bool,
) -> Result<()> {
    let tree = editor.tree();
    match dir::look_up(&tree, at.directory, at.name)? {
        Some(dir::FoundEntry { target: EntryTarget::Subvolume(_), .. }) => {}
        _ => return Ok(()),
    }
    let root_tree = handle.transactions().live().root_tree().tree();
    match named(&tree, &root_tree, at)? {
        Named::Stub(_) => Err(Error::path(at.name, PathError::NotEmpty)),
        Named::Subvolume(id, _) if moves => check_not_read_only(handle, id, at.name),
        Named::Subvolume(..) | Named::Other => Ok(()),
    }
}

fn check_not_read_only(handle: &Handle<'_>, id: TreeId, name: &[u8]) -> Result<()> {
    let subvolume = handle.live_tree(id)?;
    if subvolume.record().is_some_and(|record| record.item.flags.contains(RootFlags::RDONLY)) {
        return Err(Error::path(name, PathError::ReadOnly));
    }
    Ok(())
}

/// The entry of a subvolume that was moved.
fn moved_value(handle: &Handle<'_>, id: TreeId) -> Result<EntryValue> {
    let offset = handle.live_tree(id)?.record().map_or(0, |record| record.key_offset);
    Ok(EntryValue::subvolume(id, offset))
}

/// Updates the location and the references of a subvolume whose entry was renamed within a
/// subvolume, to `at` with `index`. `editor` is that of the subvolume.
///
/// # Errors
/// Errors of reading and changing the trees.
pub fn entry_moved(
    handle: &Handle<'_>,
    editor: &mut TreeEditor<'_>,
    at: DirName<'_>,
    id: TreeId,
    index: u64,
) -> Result<()> {
    let DirName { tree, directory, name } = at;
    let value = moved_value(handle, id)?;
    draft::edit(editor, |draft| {
        dir_edit::remove(draft, directory, index, name)?;
        dir_edit::insert(draft, directory, index, name, &value)
    })?;
    let link = Link { parent: tree, directory, index, name: name.to_vec() };
    let mut root_editor = handle.transactions().live().root_tree().edit(handle);
    draft::edit(&mut root_editor, |draft| link.put(draft, id))
}

/// Renames the subvolume `from` to `to`, in another subvolume. `numbers` are those of the two
/// containing subvolumes. Replaces an empty directory at `to`, and returns it.
///
/// # Errors
/// - [`PathError::CrossDevice`] for an entry that is not a subvolume's;
/// - [`PathError::IntoItself`]; [`PathError::ReadOnly`] for a read-only subvolume;
/// - [`PathError::NotEmpty`] if `to` is a subvolume or a directory with entries, and for a
///   snapshot's copy of an entry;
/// - [`PathError::Exists`] and [`PathError::NotFound`], depending on `mode`;
/// - errors of the directories, and of reading and changing trees.
pub fn rename_across(
    handle: &Handle<'_>,
    numbers: [&SubvolumeNumbers; 2],
    from: DirName<'_>,
    to: DirName<'_>,
    mode: RenameMode,
) -> Result<Option<Removed>> {
    let (first, second) = (handle.live_tree(from.tree)?, handle.live_tree(to.tree)?);
    assert!(first.id() != second.id(), "renaming across subvolumes within a single one");
    let mut editors = Editors::lock(handle, &first, &second);
    check_living(&first)?;
    check_living(&second)?;
    let mut root_editor = handle.transactions().live().root_tree().edit(handle);
    let root_tree = root_editor.tree();
    let (id, link) = moved(&editors.first().tree(), &root_tree, from, to.name)?;
    check_outside(&root_tree, to, id)?;
    check_not_read_only(handle, id, from.name)?;
    let target = dir::look_up(&editors.second().tree(), to.directory, to.name)?;
    let mut removed = None;
    match (target, mode) {
        (Some(_), RenameMode::NoReplace) => return Err(Error::path(to.name, PathError::Exists)),
        (None, RenameMode::Exchange) => return Err(Error::path(to.name, PathError::NotFound)),
        (Some(_), RenameMode::Exchange) => {
            let (other, other_link) = moved(&editors.second().tree(), &root_tree, to, from.name)?;
            check_outside(&root_tree, from, other)?;
            check_not_read_only(handle, other, to.name)?;
            drop(root_tree);
            take(handle, editors.second(), &mut root_editor, to, other, &other_link)?;
            take(handle, editors.first(), &mut root_editor, from, id, &link)?;
            // Each directory has counted the rename itself.
            put(handle, editors.first(), &mut root_editor, numbers[0], from, (other, 1))?;
            put(handle, editors.second(), &mut root_editor, numbers[1], to, (id, 1))?;
            return Ok(None);
        }
        (Some(dir::FoundEntry { target: EntryTarget::Subvolume(_), .. }), RenameMode::Replace) => {
            return Err(Error::path(to.name, PathError::NotEmpty));
        }
        (Some(_), RenameMode::Replace) => {
            drop(root_tree);
            removed = Some(link::rmdir(editors.second(), handle.now(), to.directory, to.name)?);
        }
        (None, _) => {
            check_subvolume_entry(editors.second(), to.directory, to.name, id)?;
            drop(root_tree);
        }
    }
    take(handle, editors.first(), &mut root_editor, from, id, &link)?;
    put(handle, editors.second(), &mut root_editor, numbers[1], to, (id, CHANGES))?;
    Ok(removed)
}

/// Returns the subvolume to be moved, and its entry.
fn moved(tree: &Tree, root_tree: &Tree, at: DirName<'_>, new_name: &[u8]) -> Result<(TreeId, Link)> {
    match named(tree, root_tree, at)? {
        Named::Subvolume(id, link) => Ok((id, link)),
        Named::Stub(_) => Err(Error::path(at.name, PathError::NotEmpty)),
        Named::Other => Err(Error::path(new_name, PathError::CrossDevice)),
    }
}

/// Refuses to move subvolume `id` below itself.
fn check_outside(root_tree: &Tree, to: DirName<'_>, id: TreeId) -> Result<()> {
    if root_refs::is_within(root_tree, to.tree, id)? {
        return Err(Error::path(to.name, PathError::IntoItself));
    }
    Ok(())
}

fn take(
    handle: &Handle<'_>,
    editor: &mut TreeEditor<'_>,
    root_editor: &mut TreeEditor<'_>,
    at: DirName<'_>,
    id: TreeId,
    link: &Link,
) -> Result<()> {
    remove_subvolume_entry(editor, handle.now(), at.directory, at.name, (id, Some(link.index)), CHANGES)?;
    draft::edit(root_editor, |draft| root_refs::remove(draft, at.tree, id))
}

fn put(
    handle: &Handle<'_>,
    editor: &mut TreeEditor<'_>,
    root_editor: &mut TreeEditor<'_>,
    numbers: &SubvolumeNumbers,
    at: DirName<'_>,
    (id, changes): (TreeId, u64),
) -> Result<()> {
    let value = (moved_value(handle, id)?, changes);
    let index = insert_subvolume_entry(editor, numbers, handle.now(), at.directory, at.name, value)?;
    let link = Link { parent: at.tree, directory: at.directory, index, name: at.name.to_vec() };
    draft::edit(root_editor, |draft| link.put(draft, id))
}
