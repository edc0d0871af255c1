//! A handle on one inode: the subvolume it lies in, its number, its item.
//!
//! Owns [`Handle`] and how a directory entry becomes one. Kernel counterpart:
//! `btrfs_lookup_dentry`, `fixup_tree_root_location`, `new_simple_dir` (`fs/btrfs/inode.c`).

use crate::btree::Tree;
use crate::errors::{Error, PathError, Result};
use crate::items::dir::{self, EntryTarget};
use crate::items::inode;
use crate::items::item_error;
use crate::items::trees::{OpenTree, Trees};
use papilio_format::items::dir_item::NAME_MAX;
use papilio_format::items::inode::{FileKind, InodeFlags, InodeItem};
use papilio_format::items::root_ref::RootRef;
use papilio_format::{InodeNumber, ItemType, Key, TreeId, objectid};
use std::sync::Arc;

/// Where an inode lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) tree: TreeId,
    pub(crate) inode: InodeNumber,
}

/// One inode.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    pub(crate) subvolume: Arc<OpenTree>,
    pub(crate) number: InodeNumber,
    pub(crate) item: InodeItem,
}

impl Handle {
    /// The inode at `place`.
    ///
    /// # Errors
    /// [`PathError::NoSubvolume`], [`PathError::NotFound`], or what reading says.
    pub(crate) fn open(trees: &Trees, place: Place) -> Result<Self> {
        let subvolume = trees.subvolume(place.tree)?;
        Self::in_subvolume(subvolume, place.inode)
    }

    /// The inode `number` of a subvolume.
    ///
    /// # Errors
    /// [`PathError::NotFound`] where there is none.
    pub(crate) fn in_subvolume(subvolume: Arc<OpenTree>, number: InodeNumber) -> Result<Self> {
        let item = inode::inode(&subvolume.tree, number)?.ok_or_else(|| {
            let path = format!("subvolume {}, inode {number}", subvolume.tree.id());
            Error::path(path.as_bytes(), PathError::NotFound)
        })?;
        Ok(Self { subvolume, number, item })
    }

    /// The tree it lies in.
    pub(crate) fn tree(&self) -> &Tree {
        &self.subvolume.tree
    }

    /// Where it lies.
    pub(crate) fn place(&self) -> Place {
        Place { tree: self.tree().id(), inode: self.number }
    }

    /// The kind of file.
    pub(crate) fn kind(&self) -> FileKind {
        self.item.kind().expect("the tree checker refuses a mode without a kind")
    }

    /// Whether this is the empty directory that stands where a snapshot has another subvolume's name.
    pub(crate) fn is_stub(&self) -> bool {
        self.number == objectid::EMPTY_SUBVOL_DIR
    }

    /// The entry `name` of this directory.
    ///
    /// # Errors
    /// [`PathError::NameTooLong`], or what reading says; the caller has seen that it is a directory.
    pub(crate) fn child(&self, trees: &Trees, name: &[u8]) -> Result<Option<Handle>> {
        if name.len() > NAME_MAX {
            return Err(Error::path(name, PathError::NameTooLong));
        }
        if self.is_stub() {
            return Ok(None);
        }
        let Some(found) = dir::look_up(self.tree(), self.number, name)? else { return Ok(None) };
        self.target(trees, name, found.target).map(Some)
    }

    /// The inode that an entry of this directory names.
    ///
    /// # Errors
    /// An entry that points nowhere.
    pub(crate) fn target(&self, trees: &Trees, name: &[u8], target: EntryTarget) -> Result<Handle> {
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

    /// Whether the root tree agrees that this directory's entry names that subvolume. A snapshot's
    /// copy of the entry does not: the subvolume's place is in the original.
    fn names_subvolume(&self, trees: &Trees, name: &[u8], id: TreeId) -> Result<bool> {
        let root_tree = trees.root_tree();
        let key = Key::new(self.tree().id().0, ItemType::ROOT_REF, id.0);
        let Some(item) = root_tree.get(&key)? else { return Ok(false) };
        let reference =
            RootRef::parse(item.data()).map_err(|reason| item_error(&root_tree, &item, reason))?;
        Ok(reference.directory == self.number && reference.name == name)
    }

    /// The empty directory that the kernel shows for a subvolume that a snapshot left behind.
    fn stub(&self) -> Handle {
        let item = InodeItem {
            size: 0,
            nbytes: 0,
            nlink: 1,
            mode: FileKind::Directory.mode_bits() | 0o755,
            rdev: 0,
            flags: InodeFlags::empty(),
            ..self.item
        };
        Handle { subvolume: Arc::clone(&self.subvolume), number: objectid::EMPTY_SUBVOL_DIR, item }
    }
}
