//! Extended attributes, including access control lists.
//!
//! The empty directory that represents a subvolume in a snapshot has none. The kernel's Btrfs
//! answers for it by the lack of an operation (`new_simple_dir` in `fs/btrfs/inode.c`).

use super::labels::LABEL;
use super::privileges;
use super::state::Server;
use crate::ioctl::Caller;
use crate::nodes::{Node, stale};
use crate::transport::{NodeId, XattrSet};
use papilio::SetAttributes;
use papilio_ioctl::Errno;
use std::sync::atomic::Ordering;

const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
const SET_GROUP_ID: u32 = 0o2000;
impl Server {
    /// Returns the value of an extended attribute.
    pub(crate) fn xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let node = self.node(node)?;
        if node.is_stub() {
            return Err(Errno(if is_list(name) { libc::ENODATA } else { libc::EOPNOTSUPP }));
        }
        check_namespace(name)?;
        let value = self.used(&node)?.inode.xattr(name).map_err(stale)?;
        let value = match value {
            Some(_) if is_list(name) && self.ownership().hides_lists() => None,
            Some(list) if is_list(name) => Some(self.ownership().shown_list(list)),
            value => value,
        };
        let unlabelled = name == LABEL && !self.labelled.load(Ordering::Relaxed);
        value.ok_or(Errno(if unlabelled { libc::EOPNOTSUPP } else { libc::ENODATA }))
    }

    /// Returns the names of extended attributes, each followed by a NUL.
    pub(crate) fn list_xattrs(&self, node: NodeId) -> Result<Vec<u8>, Errno> {
        let mut names = Vec::new();
        for xattr in self.used_node(node)?.inode.xattrs().map_err(stale)? {
            if is_list(&xattr.name) && self.ownership().hides_lists() {
                continue;
            }
            names.extend_from_slice(&xattr.name);
            names.push(0);
        }
        Ok(names)
    }

    /// Sets an extended attribute.
    pub(crate) fn set_xattr(
        &self,
        caller: Caller,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
    ) -> Result<(), Errno> {
        let node = self.node(node)?;
        must_have_xattrs(&node)?;
        let used = self.used(&node)?;
        if is_list(name) {
            if self.ownership().hides_lists() {
                return Err(Errno(libc::EOPNOTSUPP));
            }
            used.inode.set_xattr(name, &self.ownership().stored_list(value)?, how)?;
        } else {
            used.inode.set_xattr(name, value, how).map_err(|error| self.refusal(&node, error))?;
        }
        if name == LABEL {
            self.labelled.store(true, Ordering::Relaxed);
        }
        self.changed(&node);
        if name == ACCESS_ACL {
            // Setting an access list clears the set-group-id bit if the caller is not in the group.
            let inode = node.current(&self.fs())?;
            let mode = inode.metadata().permissions();
            if mode & SET_GROUP_ID != 0
                && !privileges::is_in_group(caller, self.ownership().shown_group(inode.metadata().gid()))
            {
                let mode = Some(mode & !SET_GROUP_ID);
                inode.set_attributes(&SetAttributes { mode, ..SetAttributes::default() })?;
            }
        }
        Ok(())
    }

    /// Removes an extended attribute.
    pub(crate) fn remove_xattr(&self, node: NodeId, name: &[u8]) -> Result<(), Errno> {
        let node = self.node(node)?;
        must_have_xattrs(&node)?;
        let removed = self.used(&node)?.inode.remove_xattr(name);
        removed.map_err(|error| self.refusal(&node, error))?;
        self.changed(&node);
        Ok(())
    }
}

fn is_list(name: &[u8]) -> bool {
    matches!(name, ACCESS_ACL | DEFAULT_ACL)
}

/// Refuses the empty directory that represents a subvolume in a snapshot.
fn must_have_xattrs(node: &Node) -> Result<(), Errno> {
    if node.is_stub() { Err(Errno(libc::EOPNOTSUPP)) } else { Ok(()) }
}

/// Refuses names without a handler in the kernel's Btrfs.
fn check_namespace(name: &[u8]) -> Result<(), Errno> {
    if is_list(name) {
        return Ok(());
    }
    let prefixes = [&b"user."[..], b"trusted.", b"security.", b"btrfs."];
    match prefixes.iter().find(|prefix| name.starts_with(prefix)) {
        None => Err(Errno(libc::EOPNOTSUPP)),
        Some(prefix) if prefix.len() == name.len() => Err(Errno(libc::EINVAL)),
        Some(_) => Ok(()),
    }
}
