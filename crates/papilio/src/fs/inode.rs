//! One inode, as callers see it.
//!
//! Owns [`Inode`], a value that keeps its file system open and shows the inode as it was when the
//! handle was made.

use crate::errors::{Error, PathError, Result};
use crate::file::open_inode::OpenInode;
use crate::fs::file_system::FileSystem;
use crate::fs::metadata::Metadata;
use crate::items::dir::{index_first_key, index_last_key};
use crate::items::inode::for_each_name;
use crate::items::trees::OpenTree;
use crate::items::xattr::{self, Xattr};
use crate::namespace::{Handle, Place, symlink_target};
use papilio_format::items::inode::FileKind;
use papilio_format::{InodeNumber, TreeId};
use std::sync::Arc;

/// An inode of an open file system.
#[derive(Clone, Debug)]
pub struct Inode {
    fs: FileSystem,
    /// Of a file system that does not change; else the tree is looked up anew each time.
    subvolume: Option<Arc<OpenTree>>,
    is_subvolume_root: bool,
    metadata: Metadata,
}

impl Inode {
    pub(crate) fn new(fs: FileSystem, handle: Handle) -> Self {
        let metadata = Metadata {
            tree: handle.tree().id(),
            number: handle.number,
            kind: handle.kind(),
            item: handle.item,
        };
        let is_subvolume_root = handle.number == handle.subvolume.root_directory();
        let changes = fs.info.trees.transactions().is_some();
        Self { fs, subvolume: (!changes).then_some(handle.subvolume), is_subvolume_root, metadata }
    }

    /// The file system that it belongs to.
    pub fn file_system(&self) -> &FileSystem {
        &self.fs
    }

    /// The inode as it was when this was made, in its subvolume as it is now.
    pub(crate) fn handle(&self) -> Result<Handle> {
        let subvolume = match &self.subvolume {
            Some(subvolume) => Arc::clone(subvolume),
            None => self.fs.info.trees.subvolume(self.metadata.tree)?,
        };
        Ok(Handle { subvolume, number: self.metadata.number, item: self.metadata.item })
    }

    /// Where it lies.
    pub(crate) fn place(&self) -> Place {
        Place { tree: self.metadata.tree, inode: self.metadata.number }
    }

    /// The subvolume that it lies in.
    pub fn tree(&self) -> TreeId {
        self.metadata.tree
    }

    /// Its number, unique in its subvolume.
    pub fn number(&self) -> InodeNumber {
        self.metadata.number
    }

    /// What `stat` shows of it.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The kind of file.
    pub fn kind(&self) -> FileKind {
        self.metadata.kind
    }

    /// Whether this is the root directory of a subvolume.
    pub fn is_subvolume_root(&self) -> bool {
        self.is_subvolume_root
    }

    /// Whether this is the empty directory that the kernel shows where a snapshot has the name of a
    /// subvolume that stayed with the original. It has no times of its own.
    pub fn is_subvolume_stub(&self) -> bool {
        self.metadata.number == papilio_format::objectid::EMPTY_SUBVOL_DIR
    }

    /// The entry `name` of this directory; not a path.
    ///
    /// # Errors
    /// [`PathError::NotADirectory`], [`PathError::NameTooLong`], or a tree block that cannot be read.
    pub fn lookup(&self, name: &[u8]) -> Result<Option<Inode>> {
        self.must_be(FileKind::Directory, PathError::NotADirectory)?;
        let child = self.handle()?.child(&self.fs.info.trees, name)?;
        Ok(child.map(|handle| self.fs.wrap(handle)))
    }

    /// The index of this directory's newest entry; 0 where it has none.
    ///
    /// # Errors
    /// [`PathError::NotADirectory`], or a tree block that cannot be read.
    pub fn last_entry_index(&self) -> Result<u64> {
        self.must_be(FileKind::Directory, PathError::NotADirectory)?;
        let handle = self.handle()?;
        let first = index_first_key(handle.number, 0);
        let item = handle.tree().last_up_to(&index_last_key(handle.number))?;
        Ok(item.filter(|item| item.key >= first).map_or(0, |item| item.key.offset))
    }

    /// The directory that this one is in; a subvolume's root is in another subvolume, and the top level in
    /// itself.
    ///
    /// # Errors
    /// [`PathError::NotADirectory`], [`PathError::NotFound`] for a removed one, or what reading says.
    pub fn parent(&self) -> Result<(TreeId, InodeNumber)> {
        self.must_be(FileKind::Directory, PathError::NotADirectory)?;
        if self.is_subvolume_root() {
            let subvolume = self.fs.subvolume(self.tree())?;
            return Ok(match (subvolume.parent, subvolume.directory) {
                (Some(tree), Some(directory)) => (tree, directory),
                _ => (self.tree(), self.number()),
            });
        }
        let mut parent = None;
        for_each_name(self.handle()?.tree(), self.number(), |name| {
            parent = Some(name.parent);
            false
        })?;
        let parent = parent.ok_or_else(|| self.path_error(PathError::NotFound))?;
        Ok((self.tree(), parent))
    }

    /// The target of this symbolic link.
    ///
    /// # Errors
    /// [`PathError::NotASymlink`], or a tree block that cannot be read.
    pub fn read_link(&self) -> Result<Vec<u8>> {
        symlink_target(&self.handle()?)
    }

    /// All extended attributes, ACLs among them, in no particular order.
    ///
    /// # Errors
    /// A tree block that cannot be read.
    pub fn xattrs(&self) -> Result<Vec<Xattr>> {
        xattr::list(self.handle()?.tree(), self.number())
    }

    /// The value of one extended attribute.
    ///
    /// # Errors
    /// A tree block that cannot be read.
    pub fn xattr(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        xattr::get(self.handle()?.tree(), self.number(), name)
    }

    /// The names of this inode in its subvolume: directory and name.
    ///
    /// # Errors
    /// A tree block that cannot be read.
    pub fn names(&self) -> Result<Vec<(InodeNumber, Vec<u8>)>> {
        let mut names = Vec::new();
        for_each_name(self.handle()?.tree(), self.number(), |name| {
            names.push((name.parent, name.name));
            true
        })?;
        Ok(names)
    }

    pub(super) fn must_be(&self, kind: FileKind, otherwise: PathError) -> Result<()> {
        if self.kind() == kind { Ok(()) } else { Err(self.path_error(otherwise)) }
    }

    pub(super) fn path_error(&self, kind: PathError) -> Error {
        let path = format!("subvolume {}, inode {}", self.tree(), self.number());
        Error::path(path.as_bytes(), kind)
    }
}

/// Keeps an inode of any kind after its last name went, as an open [`File`](crate::File) keeps a regular one:
/// for who has it in use in another way, such as a kernel that knows it. It goes with the last that keeps it.
#[derive(Clone, Debug)]
pub struct KeptInode {
    _open: Option<Arc<OpenInode>>,
}

impl Inode {
    /// Keeps this inode after its last name went, until what this returns is dropped.
    pub fn keep(&self) -> KeptInode {
        let info = &self.fs.info;
        let changes = info.trees.transactions().is_some();
        KeptInode { _open: changes.then(|| info.open_inode(self.place())) }
    }
}

impl FileSystem {
    /// Wraps a handle as an inode that shows changes in memory too.
    pub(crate) fn wrap(&self, mut handle: Handle) -> Inode {
        if let Some(open) = self.info.dirty_inodes.get(handle.place()) {
            handle.item = open.as_seen(handle.item);
        }
        Inode::new(self.clone(), handle)
    }

    /// Returns the inode at `place` as it is now.
    pub(super) fn reload(&self, place: Place) -> Result<Inode> {
        Ok(self.wrap(Handle::open(&self.info.trees, place)?))
    }
}
