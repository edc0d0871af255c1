//! `Export`: a file system as NFS clients see it; `Session`: one call on it.
//!
//! **Locks**: `names`, held from the check of a user's permissions to the change of names or
//! attributes that it allows. The server is the only process that changes the file system, so
//! nothing else comes between the two.

use crate::attributes::attributes;
use crate::errors::{stale, status};
use crate::handle::{Id, Seal};
use crate::identity::Squash;
use crate::secret::{Secret, random};
use nfs3_types::nfs3::{Nfs3Option, fattr3, nfs_fh3, nfsstat3, post_op_attr, wcc_attr, wcc_data};
use papilio::format::Generation;
use papilio::{Caller, FileKind, FileSystem, Inode, Permissions};
use papilio_locks::Mutex;
use std::path::PathBuf;
use std::sync::Arc;

/// The name of the export, without the slash before it. Some clients cannot mount `/`.
pub(crate) const NAME: &str = "papilio";

/// A file system, or the part of it below one of its directories.
#[derive(Clone, Debug)]
pub struct Export {
    pub(crate) fs: FileSystem,
    pub(crate) root: Id,
    pub(crate) read_only: bool,
    pub(crate) squash: Squash,
    pub(crate) seal: Seal,
    pub(crate) names: Arc<Mutex<()>>,
    /// Whether a change is durable before it is answered.
    pub(crate) is_sync: bool,
    /// Differs between starts of the server: a client with writes that it has not committed then
    /// sends them again.
    pub(crate) verifier: [u8; 8],
    /// Tells file systems apart.
    fsid: u64,
}

impl Export {
    /// Exports the directory at `path`, in bytes, and all below it.
    ///
    /// # Errors
    /// No such directory, or a system without random bytes.
    pub fn new(fs: FileSystem, path: &[u8], read_only: bool) -> papilio::Result<Self> {
        let root = fs.inode(path)?;
        root.read_dir()?;
        let uuid = *fs.uuid().as_bytes();
        let fsid = u64::from_le_bytes(uuid[..8].try_into().expect("a UUID has 16 bytes"));
        let failed = |source| papilio::Error::Host { path: PathBuf::from("/dev/urandom"), source };
        let root = Id::of(&root);
        let seal = Seal::new(&Secret::random().map_err(failed)?, &uuid, root);
        let (verifier, is_sync) = (random().map_err(failed)?, true);
        let (squash, names) = (Squash::default(), Arc::default());
        Ok(Self { root, read_only, squash, seal, names, is_sync, verifier, fsid, fs })
    }

    /// Marks handles with a secret that is kept, so that they are valid after a restart of the
    /// server. Handles of other directories and file systems stay invalid.
    pub fn secret(mut self, secret: &Secret) -> Self {
        self.seal = Seal::new(secret, self.fs.uuid().as_bytes(), self.root);
        self
    }

    /// Chooses whether names, attributes and sizes that a call changes are durable when it is
    /// answered. They are by default, as the protocol demands; without, a server that is killed
    /// forgets the calls of the last 30 seconds.
    pub fn sync(mut self, is_sync: bool) -> Self {
        self.is_sync = is_sync;
        self
    }

    /// Chooses the users that clients' users become.
    pub fn squash(mut self, squash: Squash) -> Self {
        self.squash = squash;
        self
    }

    /// Returns the handle of an inode.
    pub(crate) fn handle_of(&self, id: Id) -> nfs_fh3 {
        // A subvolume that was deleted meanwhile leaves a handle that nothing opens.
        let created = self.fs.subvolume_state(id.tree()).map_or(Generation(0), |state| state.created);
        self.seal.handle(id, created)
    }

    /// Returns the file system.
    pub fn file_system(&self) -> &FileSystem {
        &self.fs
    }
}

/// A call on an export, by a user.
#[derive(Debug)]
pub(crate) struct Session<'a> {
    pub(crate) export: &'a Export,
    pub(crate) caller: Caller,
}

impl Session<'_> {
    pub(crate) fn open_handle(&self, handle: &[u8]) -> Result<Id, nfsstat3> {
        self.export.seal.open(handle, |tree| {
            self.export.fs.subvolume_state(tree).map(|state| state.created).map_err(|error| stale(&error))
        })
    }

    pub(crate) fn handle_of(&self, id: Id) -> nfs_fh3 {
        self.export.handle_of(id)
    }

    pub(crate) fn inode(&self, id: Id) -> Result<Inode, nfsstat3> {
        let inode = self.export.fs.inode_at(id.tree(), id.number()).map_err(|error| stale(&error))?;
        // A number is used again; one without names is about to be deleted.
        if Id::of(&inode) != id || inode.metadata().nlink() == 0 {
            return Err(nfsstat3::NFS3ERR_STALE);
        }
        Ok(inode)
    }

    /// Makes inodes durable that a call has changed.
    pub(crate) fn keep<'i>(&self, changed: impl IntoIterator<Item = &'i Inode>) -> Result<(), nfsstat3> {
        if !self.export.is_sync {
            return Ok(());
        }
        changed.into_iter().try_for_each(|inode| inode.sync_all().map_err(|error| status(&error)))
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

    /// Refuses a caller without permissions.
    pub(crate) fn must_have(&self, inode: &Inode, wanted: Permissions) -> Result<(), nfsstat3> {
        inode.check_permissions(&self.caller, wanted).map_err(|error| status(&error))
    }

    /// As [`Session::must_have`] for the data of a file, to which the owner always has access: the
    /// protocol has no open files, and a program may have opened one before it changed the mode.
    pub(crate) fn must_reach_data(&self, inode: &Inode, wanted: Permissions) -> Result<(), nfsstat3> {
        let owns = self.caller.uid() == inode.metadata().uid();
        if owns && !wanted.contains(Permissions::WRITE) {
            return Ok(());
        }
        if wanted.contains(Permissions::WRITE) {
            // Also refuses the owner of an immutable inode.
            inode.check_changeable().map_err(|error| status(&error))?;
            return if owns { Ok(()) } else { self.must_have(inode, wanted) };
        }
        // A program that may only be executed must be read for it.
        match self.must_have(inode, wanted) {
            Err(nfsstat3::NFS3ERR_ACCES) => self.must_have(inode, Permissions::EXECUTE),
            checked => checked,
        }
    }

    /// Refuses changes of an export that is for reading.
    pub(crate) fn must_be_writable(&self) -> Result<(), nfsstat3> {
        if self.export.read_only { Err(nfsstat3::NFS3ERR_ROFS) } else { Ok(()) }
    }

    pub(crate) fn attributes(&self, inode: &Inode) -> fattr3 {
        attributes(inode.metadata(), self.export.fsid)
    }

    /// Returns the attributes of an inode, as far as it can be read.
    pub(crate) fn attributes_at(&self, id: Id) -> post_op_attr {
        match self.inode(id) {
            Ok(inode) => Nfs3Option::Some(self.attributes(&inode)),
            Err(_) => Nfs3Option::None,
        }
    }

    /// As [`Session::attributes_at`], for the inode of a handle.
    pub(crate) fn attributes_of(&self, handle: &[u8]) -> post_op_attr {
        self.open_handle(handle).map_or(Nfs3Option::None, |id| self.attributes_at(id))
    }

    /// Returns the attributes after a change, and before if nothing came between.
    pub(crate) fn change(&self, handle: &[u8], before: Option<wcc_attr>) -> wcc_data {
        let before = before.map_or(Nfs3Option::None, Nfs3Option::Some);
        wcc_data { before, after: self.attributes_of(handle) }
    }

    /// Returns the parent of a directory. That of the root is the root itself.
    pub(crate) fn parent(&self, directory: &Inode) -> Result<Inode, nfsstat3> {
        if Id::of(directory) == self.export.root {
            return Ok(directory.clone());
        }
        let (tree, number) = directory.parent().map_err(|error| status(&error))?;
        self.export.fs.inode_at(tree, number).map_err(|error| stale(&error))
    }

    /// Looks a name up in a directory that the caller may search.
    pub(crate) fn find(&self, directory: &Inode, name: &[u8]) -> Result<Inode, nfsstat3> {
        self.must_have(directory, Permissions::EXECUTE)?;
        match name {
            b"." => Ok(directory.clone()),
            b".." => self.parent(directory),
            name => {
                let found = directory.lookup(name).map_err(|error| status(&error))?;
                found.ok_or(nfsstat3::NFS3ERR_NOENT)
            }
        }
    }
}
