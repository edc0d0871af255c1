//! Names: looking up, creating, linking and renaming.

use super::state::Server;
use crate::ioctl::Caller;
use crate::nodes::{Node, Used, stale};
use crate::transport::{Entry, NewNode, NewNodeKind, NodeId, Rename};
use papilio::{ErrorKind, FileKind, Inode, NewInode, NewKind, PathError};
use papilio_ioctl::Errno;
use std::sync::Arc;

impl Server {
    /// Looks up `name` in `parent`; counts as a look-up of the node.
    pub(crate) fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        if matches!(name, b"." | b"..") {
            return self.look_up_dots(parent, name);
        }
        let parent = self.used_node(parent)?;
        let child = parent.inode.lookup(name).map_err(stale)?.ok_or(Errno(libc::ENOENT))?;
        self.wait_for_close(&child);
        Ok(self.learn(&parent.inode, name, &child))
    }

    /// Looks up `.` or `..` for an NFS server, which knows only an inode's number.
    fn look_up_dots(&self, node: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        let inode = self.nodes.resolve(&self.fs(), node)?;
        if name == b"." {
            return Ok(self.learn(&inode, name, &inode));
        }
        let (tree, number) = inode.parent()?;
        let parent = self.fs().inode_at(tree, number).map_err(stale)?;
        Ok(self.learn(&parent, name, &parent))
    }

    fn learn(&self, directory: &Inode, name: &[u8], inode: &Inode) -> Entry {
        let node = self.nodes.learn(&self.served, directory, name, inode);
        self.entry_of(&node, inode)
    }

    /// Creates an inode; counts as a look-up of the node.
    pub(crate) fn make(&self, caller: Caller, new: &NewNode<'_>) -> Result<Entry, Errno> {
        let (node, parent) = self.parent(new.parent)?;
        let is_file = matches!(new.kind, NewNodeKind::Regular);
        must_take_entries(&node, if is_file { libc::EACCES } else { libc::EPERM })?;
        let inode = parent.inode.create(new.name, &self.new_inode(caller, &parent.inode, new)?)?;
        self.changed(&node);
        Ok(self.learn(&parent.inode, new.name, &inode))
    }

    /// Creates a regular file and opens it with `open`'s flags; counts as a look-up. With `O_EXCL`
    /// the name must not exist.
    pub(crate) fn create(&self, caller: Caller, new: &NewNode<'_>, flags: i32) -> Result<Entry, Errno> {
        let (node, parent) = self.parent(new.parent)?;
        must_take_entries(&node, libc::EACCES)?;
        let entry = match parent.inode.create(new.name, &self.new_inode(caller, &parent.inode, new)?) {
            Ok(inode) => {
                self.changed(&node);
                self.learn(&parent.inode, new.name, &inode)
            }
            // Another path created the file after the kernel's look-up.
            Err(error) if flags & libc::O_EXCL == 0 && error.kind() == ErrorKind::Path(PathError::Exists) => {
                let inode = parent.inode.lookup(new.name)?.ok_or(Errno(libc::ENOENT))?;
                if inode.file_type() != FileKind::Regular {
                    return Err(Errno(libc::ESTALE));
                }
                self.learn(&parent.inode, new.name, &inode)
            }
            Err(error) => return Err(error.into()),
        };
        self.open_created(entry, flags)
    }

    /// Creates a regular file without a name in a directory's subvolume and opens it with `open`'s
    /// flags; counts as a look-up. The name in `new` is ignored. The node keeps the file while the
    /// kernel knows it.
    pub(crate) fn create_unnamed(
        &self,
        caller: Caller,
        new: &NewNode<'_>,
        flags: i32,
    ) -> Result<Entry, Errno> {
        let (node, parent) = self.parent(new.parent)?;
        must_take_entries(&node, libc::EOPNOTSUPP)?;
        let file = parent.inode.create_unnamed(&self.new_inode(caller, &parent.inode, new)?)?;
        let inode = file.inode().clone();
        let entry = self.learn(&parent.inode, b"", &inode);
        self.open_created(entry, flags)
    }

    /// Opens a file that the kernel learns of by the reply.
    fn open_created(&self, entry: Entry, flags: i32) -> Result<Entry, Errno> {
        let opened = self.node(entry.node).and_then(|node| self.count_open(&node, flags));
        match opened {
            Ok(()) => Ok(entry),
            Err(error) => {
                self.nodes.forget(entry.node, 1);
                Err(error)
            }
        }
    }

    fn parent(&self, id: NodeId) -> Result<(Arc<Node>, Arc<Used>), Errno> {
        let node = self.node(id)?;
        let used = self.used(&node)?;
        Ok((node, used))
    }

    fn new_inode<'a>(
        &self,
        caller: Caller,
        directory: &Inode,
        new: &NewNode<'a>,
    ) -> Result<NewInode<'a>, Errno> {
        let kind = match new.kind {
            NewNodeKind::Regular => NewKind::Regular,
            NewNodeKind::Directory => NewKind::Directory,
            NewNodeKind::Fifo => NewKind::Fifo,
            NewNodeKind::Socket => NewKind::Socket,
            NewNodeKind::CharacterDevice(major, minor) => NewKind::CharacterDevice { major, minor },
            NewNodeKind::BlockDevice(major, minor) => NewKind::BlockDevice { major, minor },
            NewNodeKind::Symlink(target) => NewKind::Symlink(target),
        };
        let directory = directory.metadata();
        let (uid, gid) =
            self.ownership().stored_new((caller.uid, caller.gid), (directory.uid(), directory.gid()))?;
        Ok(NewInode::new(kind, new.permissions).owner(uid, gid).umask(new.umask))
    }

    /// Adds a name to a node; counts as a look-up of the node.
    pub(crate) fn link(&self, node: NodeId, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        let node = self.node(node)?;
        let (directory, parent) = self.parent(parent)?;
        must_take_entries(&directory, libc::EPERM)?;
        self.names_change();
        parent.inode.hard_link(&self.used(&node)?.inode, name)?;
        let inode = node.current(&self.fs())?;
        Ok(self.learn(&parent.inode, name, &inode))
    }

    /// Renames an entry.
    pub(crate) fn rename(&self, caller: Caller, rename: &Rename<'_>) -> Result<(), Errno> {
        let from = self.used_node(rename.parent)?;
        let (directory, to) = self.parent(rename.new_parent)?;
        must_take_entries(&directory, libc::EPERM)?;
        let Rename { name, new_name, mode, .. } = *rename;
        self.names_change();
        if rename.whiteout {
            let directory = from.inode.metadata();
            let directory = (directory.uid(), directory.gid());
            let owner = self.ownership().stored_new((caller.uid, caller.gid), directory)?;
            return Ok(from.inode.rename_leaving_whiteout(name, &to.inode, new_name, mode, owner)?);
        }
        Ok(from.inode.rename(name, &to.inode, new_name, mode)?)
    }
}

/// Refuses the empty directory that represents a subvolume in a snapshot, with the error of the
/// kernel's VFS for a directory without the operation.
fn must_take_entries(directory: &Node, refusal: i32) -> Result<(), Errno> {
    if directory.is_stub() { Err(Errno(refusal)) } else { Ok(()) }
}

impl Used {
    /// Returns an error if the inode is in a deleted or read-only subvolume.
    pub(super) fn check_changeable(&self) -> Result<(), Errno> {
        self.inode.check_changeable().map_err(stale)
    }
}
