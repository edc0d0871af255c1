//! Clearing of set-user-id bits and capabilities, which the kernel leaves to the server.
//!
//! With `FUSE_HANDLE_KILLPRIV_V2` the kernel does not ask for attributes at each write. When data
//! changes, the server clears the set-user-id bit, the capabilities, and the set-group-id bit if
//! the group may execute the file or the caller is not in the group. A write request says whether
//! the caller may keep them (`CAP_FSETID`), and so does one that changes the size. For other
//! requests the server assumes it for user 0 only.

use super::state::Server;
use crate::ioctl::Caller;
use crate::nodes::Node;
use papilio::SetAttributes;
use papilio::format::items::inode::FileKind;
use papilio_ioctl::Errno;

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o0010;
const CAPABILITY: &[u8] = b"security.capability";

impl Server {
    /// As [`kill_privileges`](Self::kill_privileges), unless the caller may keep them. Most files
    /// have none, and need no look at the caller.
    pub(super) fn kill_privileges_by(&self, caller: Caller, node: &Node) -> Result<bool, Errno> {
        if caller.is_told() {
            return Ok(!may_keep_set_id(caller) && self.kill_privileges(caller, node)?);
        }
        let inode = node.current(&self.fs())?;
        let set_ids = inode.metadata().permissions() & (SET_USER_ID | SET_GROUP_ID) != 0;
        let has_some = set_ids || inode.xattr(CAPABILITY)?.is_some();
        Ok(has_some && !may_keep_set_id(caller) && self.kill_privileges(caller, node)?)
    }

    /// Clears the privileges of a file whose data changes; returns whether it had any.
    pub(super) fn kill_privileges(&self, caller: Caller, node: &Node) -> Result<bool, Errno> {
        let inode = node.current(&self.fs())?;
        let permissions = inode.metadata().permissions();
        let mut kept = permissions & !SET_USER_ID;
        let group_executes = permissions & GROUP_EXECUTE != 0;
        if permissions & SET_GROUP_ID != 0
            && (group_executes || !is_in_group(caller, self.ownership().shown_group(inode.metadata().gid())))
        {
            kept &= !SET_GROUP_ID;
        }
        let has_some = kept != permissions || inode.xattr(CAPABILITY)?.is_some();
        if has_some {
            inode.kill_privileges(kept)?;
        }
        Ok(has_some)
    }

    /// Answers a `chown` that keeps user and group: a file loses its privileges, and every inode
    /// takes the time of a change (`chown_common`, `fs/open.c`). The kernel's FUSE sends the same
    /// request before a write by a caller that may not keep the privileges. That caller need not be
    /// the owner, and the write itself takes them. Only regular files are written so.
    pub(super) fn chown_to_same(
        &self,
        caller: Caller,
        node: &Node,
        set: &SetAttributes,
    ) -> Result<(), Errno> {
        let inode = node.current(&self.fs())?;
        let owner = self.ownership().shown_user(inode.metadata().uid());
        if inode.file_type() != FileKind::Directory {
            let caller = caller.known();
            if inode.file_type() == FileKind::Regular && caller.uid != 0 && caller.uid != owner {
                return Ok(());
            }
            self.kill_privileges(caller, node)?;
        }
        inode.set_attributes(set)?;
        Ok(())
    }
}

/// Returns whether a caller may keep set-user-id bits of files that it changes.
fn may_keep_set_id(caller: Caller) -> bool {
    caller.known().uid == 0
}

/// Returns whether a caller is in a group.
pub(super) fn is_in_group(caller: Caller, gid: u32) -> bool {
    let caller = caller.known();
    if caller.uid == 0 || caller.gid == gid {
        return true;
    }
    let groups = status_field(caller, "Groups:").unwrap_or_default();
    groups.split_whitespace().any(|group| group.parse() == Ok(gid))
}

/// Returns a caller's umask; the usual 022 if it cannot be read.
pub(super) fn umask_of(caller: Caller) -> u32 {
    let umask = status_field(caller, "Umask:");
    umask.and_then(|text| u32::from_str_radix(text.trim(), 8).ok()).unwrap_or(0o022)
}

fn status_field(caller: Caller, field: &str) -> Option<String> {
    // The pid is 0 for a process that this one cannot see.
    let status = std::fs::read_to_string(format!("/proc/{}/status", caller.pid)).ok()?;
    let line = status.lines().find(|line| line.starts_with(field))?;
    Some(line[field.len()..].to_owned())
}
