//! `Export`: a file system as NFS clients see it.

use crate::attributes::attributes;
use crate::errors::{stale, status};
use crate::handle::Id;
use nfs3_server::nfs3_types::nfs3::{fattr3, nfsstat3};
use papilio::{FileKind, FileSystem, Inode};

/// A file system, or what lies below one of its directories.
#[derive(Clone, Debug)]
pub struct Export {
    pub(crate) fs: FileSystem,
    pub(crate) root: Id,
    pub(crate) read_only: bool,
    /// Tells file systems apart.
    fsid: u64,
}

impl Export {
    /// Exports the directory at `path`, in bytes, and all below it. A client that knows the handle
    /// of an inode elsewhere reaches it, too.
    ///
    /// # Errors
    /// No such directory.
    pub fn new(fs: FileSystem, path: &[u8], read_only: bool) -> papilio::Result<Self> {
        let root = fs.inode(path)?;
        root.read_dir()?;
        let uuid = *fs.uuid().as_bytes();
        let fsid = u64::from_le_bytes(uuid[..8].try_into().expect("a UUID has 16 bytes"));
        Ok(Self { root: Id::of(&root), read_only, fsid, fs })
    }

    /// Returns the file system.
    pub fn file_system(&self) -> &FileSystem {
        &self.fs
    }

    pub(crate) fn inode(&self, id: Id) -> Result<Inode, nfsstat3> {
        self.fs.inode_at(id.tree(), id.number()).map_err(|error| stale(&error))
    }

    pub(crate) fn directory(&self, id: Id) -> Result<Inode, nfsstat3> {
        let inode = self.inode(id)?;
        match inode.file_type() {
            FileKind::Directory => Ok(inode),
            _ => Err(nfsstat3::NFS3ERR_NOTDIR),
        }
    }

    pub(crate) fn regular(&self, id: Id) -> Result<Inode, nfsstat3> {
        let inode = self.inode(id)?;
        match inode.file_type() {
            FileKind::Regular => Ok(inode),
            FileKind::Directory => Err(nfsstat3::NFS3ERR_ISDIR),
            _ => Err(nfsstat3::NFS3ERR_INVAL),
        }
    }

    pub(crate) fn attributes(&self, inode: &Inode) -> fattr3 {
        attributes(inode.metadata(), self.fsid)
    }

    /// Returns the parent of a directory. That of the root is the root itself.
    pub(crate) fn parent(&self, directory: &Inode) -> Result<Inode, nfsstat3> {
        if Id::of(directory) == self.root {
            return Ok(directory.clone());
        }
        let (tree, number) = directory.parent().map_err(|error| status(&error))?;
        self.inode(Id::new(tree, number))
    }
}
