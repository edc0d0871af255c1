//! Creating subvolumes and snapshots.
//!
//! Owns [`create`], [`snapshot`] and [`DirName`].
//!
//! **Invariant**: the tree, root item, references, directory entry and UUID item appear in one
//! transaction.
//!
//! **Locks**, in this order: the writer locks of the directory's subvolume and of a snapshot's
//! source, by their ids; the root tree's; the UUID tree's.
//!
//! Kernel counterparts: `create_subvol` (`fs/btrfs/ioctl.c`), `create_pending_snapshot`
//! (`fs/btrfs/transaction.c`).

use super::root_items::{check_living, new_subvolume_item, put_root_item, snapshot_item};
use super::root_refs::Link;
use super::uuid_tree;
use crate::btree::{LiveTree, TreeEditor};
use crate::errors::{Error, Result};
use crate::items::dir_edit::EntryValue;
use crate::items::draft;
use crate::items::numbers::SubvolumeNumbers;
use crate::namespace::create::{self, NewInode};
use crate::namespace::subvolume_entry::{check_subvolume_entry, insert_subvolume_entry};
use crate::transaction::Handle;
use crate::transaction::quota::Inherit;
use papilio_format::{InodeNumber, ItemType, TreeId, objectid};
use papilio_locks::in_order;

/// A name in a directory of a subvolume.
#[derive(Clone, Copy, Debug)]
pub struct DirName<'a> {
    /// The id of the subvolume.
    pub tree: TreeId,
    /// The directory.
    pub directory: InodeNumber,
    /// The name of the entry.
    pub name: &'a [u8],
}

/// The sources of new numbers.
#[derive(Clone, Copy)]
pub struct Numbers<'a> {
    /// The root tree's numbers, which are the ids of subvolumes.
    pub subvolumes: &'a SubvolumeNumbers,
    /// The numbers of the subvolume in which the entry is created.
    pub parent: &'a SubvolumeNumbers,
}

impl Numbers<'_> {
    /// A new subvolume id, unused since the mount.
    fn subvolume(&self, handle: &Handle<'_>) -> Result<TreeId> {
        let root_tree = handle.transactions().live().root_tree().tree();
        let id = TreeId(self.subvolumes.inode(&root_tree)?.0);
        // The bits above hold the level of a quota group.
        if !objectid::is_subvolume(id) {
            return Err(Error::NoSpace { what: "subvolume ids" });
        }
        Ok(id)
    }
}

/// Creates an empty subvolume named `at`, with the root directory `new`. Returns its id.
///
/// # Errors
/// As [`insert_subvolume_entry`]; [`Error::NoSpace`]; [`crate::PathError::NoSubvolume`] if the
/// directory's subvolume was deleted; errors of reading and changing trees.
pub fn create(
    handle: &Handle<'_>,
    numbers: Numbers<'_>,
    at: DirName<'_>,
    new: &NewInode<'_>,
    inherit: &Inherit,
) -> Result<TreeId> {
    let parent = handle.live_tree(at.tree)?;
    let mut editor = parent.edit(handle);
    check_living(&parent)?;
    let inheritance = create::root_inheritance(&editor, at.directory)?;
    let id = numbers.subvolume(handle)?;
    check_subvolume_entry(&editor, at.directory, at.name, id)?;
    handle.transactions().check_inherit(inherit)?;
    handle.inherit_quotas(None, at.tree, id, inherit)?;
    let tree = handle.new_tree(id, new_subvolume_item(handle, id), 0)?;
    {
        let _order = in_order("a new tree's id is the highest");
        create::create_root(&mut tree.edit(handle), handle.now(), inheritance, new)?;
    }
    add_entry(handle, &mut editor, numbers.parent, (at, Entry::CREATED), &tree)?;
    Ok(id)
}

/// Creates a snapshot of subvolume `source` named `at`. Returns its id. It must be the last change
/// of its transaction.
///
/// # Errors
/// As [`create`](fn@create); [`crate::PathError::NoSubvolume`] if there is no such source.
pub fn snapshot(
    handle: &Handle<'_>,
    numbers: Numbers<'_>,
    source: TreeId,
    at: DirName<'_>,
    read_only: bool,
    inherit: &Inherit,
) -> Result<TreeId> {
    let parent = handle.live_tree(at.tree)?;
    let source = handle.live_tree(source)?;
    let mut editors = Editors::lock(handle, &parent, &source);
    check_living(&parent)?;
    check_living(&source)?;
    let id = numbers.subvolume(handle)?;
    check_subvolume_entry(editors.first(), at.directory, at.name, id)?;
    handle.transactions().check_inherit(inherit)?;
    handle.inherit_quotas(Some(source.id()), at.tree, id, inherit)?;
    let mut record = source.record().expect("every subvolume has a root record");
    if source.is_changed_in(handle.generation()) {
        (record.item.ctransid, record.item.ctime) = (handle.generation(), handle.now());
    }
    let item = snapshot_item(handle, id, &record.item, read_only);
    // The drop of a snapshot treats blocks up to this generation as older than the snapshot. That
    // is so because nothing changes in this transaction after it.
    let origin = handle.generation().0;
    // Made before the entry, so that a snapshot of the directory's own subvolume does not contain
    // it.
    let tree = handle.snapshot_tree(editors.second(), id, item, origin)?;
    add_entry(handle, editors.first(), numbers.parent, (at, Entry::SNAPSHOT), &tree)?;
    Ok(id)
}

/// The kernel's entry of a new subvolume.
struct Entry {
    /// The offset in its location.
    offset: u64,
    /// The changes that the directory's `sequence` counts.
    changes: u64,
}

impl Entry {
    const CREATED: Self = Self { offset: 0, changes: 1 };
    /// `create_pending_snapshot` counts no change.
    const SNAPSHOT: Self = Self { offset: u64::MAX, changes: 0 };
}

/// Adds the entry of a new subvolume, its references, its root item and its UUID items.
fn add_entry(
    handle: &Handle<'_>,
    editor: &mut TreeEditor<'_>,
    numbers: &SubvolumeNumbers,
    (at, entry): (DirName<'_>, Entry),
    tree: &LiveTree,
) -> Result<()> {
    let value = (EntryValue::subvolume(tree.id(), entry.offset), entry.changes);
    let index = insert_subvolume_entry(editor, numbers, handle.now(), at.directory, at.name, value)?;
    let link = Link { parent: at.tree, directory: at.directory, index, name: at.name.to_vec() };
    {
        let mut root_editor = handle.transactions().live().root_tree().edit(handle);
        put_root_item(&mut root_editor, tree)?;
        draft::edit(&mut root_editor, |draft| link.put(draft, tree.id()))?;
    }
    let item = tree.record().expect("every subvolume has a root record").item;
    uuid_tree::add(handle, item.uuid, ItemType::UUID_SUBVOL, tree.id())?;
    if !item.received_uuid.is_nil() {
        uuid_tree::add(handle, item.received_uuid, ItemType::UUID_RECEIVED_SUBVOL, tree.id())?;
    }
    Ok(())
}

/// The writer locks of two trees, taken in the order of their ids; or one lock if both are the
/// same.
pub(super) struct Editors<'a> {
    first: TreeEditor<'a>,
    second: Option<TreeEditor<'a>>,
}

impl<'a> Editors<'a> {
    pub(super) fn lock(handle: &'a Handle<'_>, first: &'a LiveTree, second: &'a LiveTree) -> Self {
        let _order = in_order("writers of subvolumes, by their ids");
        match first.id().cmp(&second.id()) {
            std::cmp::Ordering::Equal => Self { first: first.edit(handle), second: None },
            std::cmp::Ordering::Less => {
                let first = first.edit(handle);
                Self { first, second: Some(second.edit(handle)) }
            }
            std::cmp::Ordering::Greater => {
                let second = second.edit(handle);
                Self { first: first.edit(handle), second: Some(second) }
            }
        }
    }

    /// The editor of the first tree.
    pub(super) fn first(&mut self) -> &mut TreeEditor<'a> {
        &mut self.first
    }

    /// The editor of the second tree.
    pub(super) fn second(&mut self) -> &mut TreeEditor<'a> {
        self.second.as_mut().unwrap_or(&mut self.first)
    }
}
