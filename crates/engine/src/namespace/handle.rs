//! A handle on one inode: its subvolume, number and item.
//!
//! Owns [`InodeHandle`], and the step from a directory entry to the inode that it names.
//!
//! Kernel counterpart: `btrfs_lookup_dentry`, `fixup_tree_root_location`, `new_simple_dir`
//! (`fs/btrfs/inode.c`).

use crate::btree::Tree;
use crate::errors::{Error, PathError, Result};
use crate::items::compared_entries;
use crate::items::dir::{self, EntryTarget};
use crate::items::inode;
use crate::items::item_error;
use crate::items::trees::{OpenTree, Trees};
use crate::options::rescue::{ItemFault, ItemUse};
use papilio_format::items::dir_item::NAME_MAX;
use papilio_format::items::inode::{FileKind, InodeFlags, InodeItem};
use papilio_format::items::root_ref::RootRef;
use papilio_format::{InodeNumber, ItemType, Key, TreeId, objectid};
use std::sync::Arc;

/// The subvolume and number of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The subvolume's tree.
    pub tree: TreeId,
    /// The inode number in it.
    pub inode: InodeNumber,
}

/// An inode and the subvolume that it is in.
#[derive(Clone, Debug)]
pub struct InodeHandle {
    /// The subvolume's tree.
    pub subvolume: Arc<OpenTree>,
    /// The inode number in it.
    pub number: InodeNumber,
    /// The inode item.
    pub item: InodeItem,
}

impl InodeHandle {
    /// Opens the inode at `place`.
    ///
    /// # Errors
    /// [`PathError::NoSubvolume`], [`PathError::NotFound`], or errors of reading.
    pub fn open(trees: &Trees, place: Place) -> Result<Self> {
        let subvolume = trees.subvolume_in_use(place.tree)?;
        Self::in_subvolume(subvolume, place.inode)
    }

    /// Opens the inode `number` of a subvolume.
    ///
    /// # Errors
    /// [`PathError::NotFound`] if there is none; errors of reading.
    pub(crate) fn in_subvolume(subvolume: Arc<OpenTree>, number: InodeNumber) -> Result<Self> {
        let item = inode::inode(&subvolume.tree, number)?.ok_or_else(|| {
            let path = format!("subvolume {}, inode {number}", subvolume.tree.id());
            Error::path(path.as_bytes(), PathError::NotFound)
        })?;
        Ok(Self { subvolume, number, item })
    }

    /// The tree that the inode is in.
    pub fn tree(&self) -> &Tree {
        &self.subvolume.tree
    }

    /// The inode's subvolume and number.
    pub fn place(&self) -> Place {
        Place { tree: self.tree().id(), inode: self.number }
    }

    /// The kind of file.
    pub fn kind(&self) -> FileKind {
        self.item.kind().expect("the tree checker rejects modes without a file kind")
    }

    /// Whether this is the empty directory that stands in for a subvolume's entry in a snapshot.
    pub(crate) fn is_stub(&self) -> bool {
        self.number == objectid::EMPTY_SUBVOL_DIR
    }

    /// Opens the entry `name` of this inode, which the caller has checked is a directory.
    ///
    /// # Errors
    /// [`PathError::NameTooLong`], or errors of reading.
    pub fn child(&self, trees: &Trees, name: &[u8]) -> Result<Option<InodeHandle>> {
        if name.len() > NAME_MAX {
            return Err(Error::path(name, PathError::NameTooLong));
        }
        if self.is_stub() {
            return Ok(None);
        }
        let target = match dir::look_up(self.tree(), self.number, name) {
            found if trees.forest().has_sound_leaves() => self.target_in_rescue(name, found)?,
            found => found?.map(|found| found.target),
        };
        let Some(target) = target else { return Ok(None) };
        self.target(trees, name, target).map(Some)
    }

    /// Returns what a name leads to, by index if the entry by name is lost or contradicted.
    fn target_in_rescue(
        &self,
        name: &[u8],
        found: Result<Option<dir::FoundEntry>>,
    ) -> Result<Option<EntryTarget>> {
        let by_index = || compared_entries::look_up_by_index(self.tree(), self.number, name);
        match found {
            Ok(Some(found)) => {
                let is_wrong =
                    compared_entries::is_contradicted(self.tree(), self.number, name, found.target);
                let other = if is_wrong { by_index() } else { None };
                Ok(Some(other.unwrap_or(found.target)))
            }
            Ok(None) => Ok(by_index()),
            Err(error) => by_index().map(Some).ok_or(error),
        }
    }

    /// Opens the inode that an entry of this directory names.
    ///
    /// # Errors
    /// [`PathError::NotFound`] or [`PathError::NoSubvolume`] if the entry's target does not exist;
    /// errors of reading.
    pub fn target(&self, trees: &Trees, name: &[u8], target: EntryTarget) -> Result<InodeHandle> {
        match target {
            EntryTarget::Inode(number) => Self::in_subvolume(Arc::clone(&self.subvolume), number),
            EntryTarget::Subvolume(id) if self.names_subvolume(trees, name, id)? => {
                let subvolume = trees.subvolume(id)?;
                let root = subvolume.root_directory();
                Self::in_subvolume(subvolume, root)
            }
            EntryTarget::Subvolume(_) => Ok(self.stub()),
        }
    }

    /// Whether the root tree confirms that this directory's entry names that subvolume. It does not
    /// for a snapshot's copy of the entry: the subvolume belongs to the original.
    fn names_subvolume(&self, trees: &Trees, name: &[u8], id: TreeId) -> Result<bool> {
        let root_tree = trees.root_tree();
        let key = Key::new(self.tree().id().0, ItemType::ROOT_REF, id.0);
        let found = root_tree.get(&key)?;
        if let Some(item) = &found {
            let reference =
                RootRef::parse(item.data()).map_err(|reason| item_error(&root_tree, item, reason))?;
            if reference.directory == self.number && reference.name == name {
                return Ok(true);
            }
        }
        if !trees.forest().has_sound_leaves() {
            return Ok(false);
        }
        // A snapshot has no reference to the subvolume at all, in neither direction.
        let back = Key::new(id.0, ItemType::ROOT_BACKREF, self.tree().id().0);
        let Some(item) = root_tree.get(&back)?.or(found) else { return Ok(false) };
        trees.forest().faults().add(vec![ItemFault {
            tree: objectid::ROOT_TREE,
            block: item.leaf_address(),
            key: Some(key),
            used: ItemUse::FieldSet("name"),
            reason: format!("the entry \"{}\" and the references differ", name.escape_ascii()),
        }]);
        Ok(true)
    }

    /// The empty directory that the kernel shows for a snapshot's copy of a subvolume's entry.
    fn stub(&self) -> InodeHandle {
        let item = InodeItem {
            size: 0,
            nbytes: 0,
            nlink: 1,
            mode: FileKind::Directory.mode_bits() | 0o755,
            rdev: 0,
            flags: InodeFlags::empty(),
            ..self.item
        };
        InodeHandle { subvolume: Arc::clone(&self.subvolume), number: objectid::EMPTY_SUBVOL_DIR, item }
    }
}
