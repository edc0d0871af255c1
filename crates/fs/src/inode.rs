//! Inodes in the public API.
//!
//! Owns [`Inode`], which keeps its file system open and shows the metadata as of when it was made,
//! and [`KeptInode`].

use crate::file_system::FileSystem;
use crate::metadata::Metadata;
use papilio_engine::errors::{Error, PathError, Result};
use papilio_engine::file::fs_info::FsInfo;
use papilio_engine::items::dir::{index_first_key, index_last_key};
use papilio_engine::items::inode::for_each_name;
use papilio_engine::items::trees::OpenTree;
use papilio_engine::items::xattr::{self, Xattr};
use papilio_engine::namespace::{InodeHandle, Place, symlink_target};
use papilio_format::items::inode::{FileKind, InodeItem};
use papilio_format::{InodeNumber, Key, TreeId};
use std::sync::{Arc, Weak};

/// How often an inode is read again because its subvolume changed meanwhile.
const WRAPS: usize = 8;

/// An inode of an open file system.
#[derive(Clone, Debug)]
pub struct Inode {
    fs: FileSystem,
    /// Set if the file system is open for reading only; otherwise each use looks the tree up.
    subvolume: Option<Arc<OpenTree>>,
    is_subvolume_root: bool,
    metadata: Metadata,
}

impl Inode {
    pub(crate) fn new(fs: FileSystem, handle: InodeHandle) -> Self {
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

    /// Returns the same inode of subvolume `tree`, a snapshot of this one's.
    pub(super) fn in_snapshot(mut self, tree: TreeId) -> Self {
        self.metadata.tree = tree;
        self
    }

    /// Returns the file system that contains the inode.
    pub fn file_system(&self) -> &FileSystem {
        &self.fs
    }

    /// Returns a handle with this inode's metadata, in its subvolume as it is now.
    pub(crate) fn handle(&self) -> Result<InodeHandle> {
        let subvolume = match &self.subvolume {
            Some(subvolume) => Arc::clone(subvolume),
            None => self.fs.info.trees.subvolume_in_use(self.metadata.tree)?,
        };
        Ok(InodeHandle { subvolume, number: self.metadata.number, item: self.metadata.item })
    }

    /// Returns the subvolume and number of the inode.
    pub(crate) fn place(&self) -> Place {
        Place { tree: self.metadata.tree, inode: self.metadata.number }
    }

    /// Returns the id of the subvolume that contains the inode.
    pub fn tree(&self) -> TreeId {
        self.metadata.tree
    }

    /// Returns the inode number, which is unique in the subvolume only.
    pub fn number(&self) -> InodeNumber {
        self.metadata.number
    }

    /// Returns the metadata as of when this `Inode` was made.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Returns the kind of file.
    pub fn file_type(&self) -> FileKind {
        self.metadata.kind
    }

    /// Returns whether this is the root directory of a subvolume.
    pub fn is_subvolume_root(&self) -> bool {
        self.is_subvolume_root
    }

    /// Returns whether this is the empty directory that stands for a nested subvolume in a
    /// snapshot: snapshots do not include nested subvolumes. It has no times of its own.
    pub fn is_subvolume_stub(&self) -> bool {
        self.metadata.number == papilio_format::objectid::EMPTY_SUBVOL_DIR
    }

    /// Returns whether items of this inode may be outdated or incomplete, because a block that led
    /// to them was lost and a scan found their leaves. Call it after they were read.
    pub fn is_uncertain(&self) -> bool {
        let number = self.metadata.number.0;
        let forest = self.fs.info.trees.forest();
        forest.is_uncertain(self.metadata.tree, Key::first_of(number), Key::last_of(number))
    }

    /// Returns the inode with the name `name` in this directory. `name` is not a path.
    ///
    /// # Errors
    /// [`PathError::NotADirectory`], [`PathError::NameTooLong`], or a tree block that cannot be
    /// read.
    pub fn lookup(&self, name: &[u8]) -> Result<Option<Inode>> {
        self.must_be(FileKind::Directory, PathError::NotADirectory)?;
        let child = self.handle()?.child(&self.fs.info.trees, name)?;
        Ok(child.map(|handle| self.fs.wrap(handle)))
    }

    /// Returns the index of this directory's newest entry; 0 if it is empty.
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

    /// Returns the subvolume and number of the parent directory. A subvolume's root is in another
    /// subvolume, and the top level is its own parent.
    ///
    /// # Errors
    /// [`PathError::NotADirectory`], [`PathError::NotFound`] for a removed directory, or a tree
    /// block that cannot be read.
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

    /// Returns the target of this symbolic link.
    ///
    /// # Errors
    /// [`PathError::NotASymlink`], or a tree block that cannot be read.
    pub fn read_link(&self) -> Result<Vec<u8>> {
        symlink_target(&self.handle()?)
    }

    /// Returns all extended attributes, access control lists among them, in no particular order.
    ///
    /// # Errors
    /// A tree block that cannot be read.
    pub fn xattrs(&self) -> Result<Vec<Xattr>> {
        xattr::list(self.handle()?.tree(), self.number())
    }

    /// Returns the value of an extended attribute.
    ///
    /// # Errors
    /// A tree block that cannot be read.
    pub fn xattr(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        xattr::get(self.handle()?.tree(), self.number(), name)
    }

    /// Returns all names of this inode: directory and name of each.
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

    /// Returns the version of this inode's subvolume, which every change increments.
    pub(super) fn tree_version(&self) -> Result<u64> {
        match self.fs.info.trees.transactions() {
            Some(transactions) => Ok(transactions.live().get(self.tree())?.version()),
            None => Ok(0),
        }
    }

    /// Returns the inode `number` of the same subvolume, whose item was read before.
    pub(super) fn with_item(&self, number: InodeNumber, item: InodeItem) -> Inode {
        let place = Place { tree: self.tree(), inode: number };
        let item = match self.fs.info.dirty_inodes.get(place) {
            Some(open) => open.as_seen(item),
            None => item,
        };
        let kind = item.kind().expect("the tree checker rejects modes without a file kind");
        let metadata = Metadata { tree: place.tree, number, kind, item };
        let (fs, subvolume) = (self.fs.clone(), self.subvolume.clone());
        // An entry of the same subvolume is not its root.
        Self { fs, subvolume, is_subvolume_root: false, metadata }
    }

    pub(super) fn must_be(&self, kind: FileKind, otherwise: PathError) -> Result<()> {
        if self.file_type() == kind { Ok(()) } else { Err(self.path_error(otherwise)) }
    }

    pub(super) fn path_error(&self, kind: PathError) -> Error {
        let path = format!("subvolume {}, inode {}", self.tree(), self.number());
        Error::path(path.as_bytes(), kind)
    }
}

/// A guard that delays the deletion of an inode that loses its names, as an open
/// [`File`](crate::File) does for a regular file. For callers that refer to many inodes of any
/// kind, such as a FUSE server. The last guard or file to be dropped deletes the inode.
///
/// A guard is 24 bytes, and an inode with guards takes less than 80 more in the file system. It
/// neither opens the inode nor keeps the file system open; [`FileSystem::inode_at`] returns the
/// inode as it is now.
#[derive(Debug)]
pub struct KeptInode {
    /// Dangling if the file system is open for reading only.
    info: Weak<FsInfo>,
    place: Place,
}

impl KeptInode {
    /// Returns the id of the subvolume that contains the inode.
    pub fn tree(&self) -> TreeId {
        self.place.tree
    }

    /// Returns the inode number, which is unique in the subvolume only.
    pub fn number(&self) -> InodeNumber {
        self.place.inode
    }
}

impl Clone for KeptInode {
    fn clone(&self) -> Self {
        if let Some(info) = self.info.upgrade() {
            info.keep(self.place);
        }
        Self { info: Weak::clone(&self.info), place: self.place }
    }
}

impl Drop for KeptInode {
    fn drop(&mut self) {
        if let Some(info) = self.info.upgrade() {
            info.release_kept(self.place);
        }
    }
}

impl Inode {
    /// Delays the deletion of this inode until the returned guard is dropped. An inode that has a
    /// name after this call, or an open file, stays. One that lost its last name before may be in
    /// deletion already.
    pub fn keep(&self) -> KeptInode {
        self.fs.keep(self.tree(), self.number())
    }
}

impl FileSystem {
    /// Wraps a handle as an inode, with the changes that are in memory only.
    pub(crate) fn wrap(&self, mut handle: InodeHandle) -> Inode {
        if handle.number == handle.subvolume.root_directory() {
            self.info.trees.forest().faults().show_root(Some(handle.tree().id()));
        }
        let mut item = handle.item;
        for _ in 0..WRAPS {
            item = match self.info.dirty_inodes.get(handle.place()) {
                Some(open) => open.as_seen(handle.item),
                None => handle.item,
            };
            // A flush changes the tree before memory forgets what it flushed. So both together are
            // of one moment where the tree is still the same. Only files are flushed.
            if handle.subvolume.is_current() || handle.kind() != FileKind::Regular {
                break;
            }
            match InodeHandle::open(&self.info.trees, handle.place()) {
                Ok(newer) => handle = newer,
                // It was there when the caller looked it up.
                Err(_) => break,
            }
        }
        Inode::new(self.clone(), InodeHandle { item, ..handle })
    }

    /// Delays the deletion of an inode until the returned guard is dropped, as [`Inode::keep`].
    /// There need not be such an inode.
    pub fn keep(&self, tree: TreeId, number: InodeNumber) -> KeptInode {
        let place = Place { tree, inode: number };
        if self.info.trees.transactions().is_none() {
            return KeptInode { info: Weak::new(), place };
        }
        self.info.keep(place);
        KeptInode { info: Arc::downgrade(&self.info), place }
    }

    /// Returns the inode at `place` as it is now.
    pub(super) fn reload(&self, place: Place) -> Result<Inode> {
        Ok(self.wrap(InodeHandle::open(&self.info.trees, place)?))
    }
}
