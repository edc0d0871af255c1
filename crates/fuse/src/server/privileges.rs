//! What set-user-id bits and groups ask of a server that the kernel trusts with them.
//!
//! With `FUSE_HANDLE_KILLPRIV_V2` the kernel asks for no attribute at each write, and the server takes
//! set-user-id, set-group-id (of what its group may execute, or from who is not in it) and capabilities away
//! when data changes. The
//! kernel tells with a write whether the caller may keep them (`CAP_FSETID`); with other requests fuser does
//! not pass that on, and user 0 stands for it.

use super::state::Server;
use crate::errno::Errno;
use crate::ioctl::Caller;
use crate::nodes::Node;
use papilio::SetAttributes;

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o0010;
const CAPABILITY: &[u8] = b"security.capability";

impl Server {
    /// Takes privileges away from a file whose data changes; says whether there were any.
    pub(super) fn kill_privileges(&self, caller: Caller, node: &Node) -> Result<bool, Errno> {
        let inode = node.current(&self.fs)?;
        let permissions = inode.metadata().permissions();
        let mut kept = permissions & !SET_USER_ID;
        let group_executes = permissions & GROUP_EXECUTE != 0;
        if permissions & SET_GROUP_ID != 0 && (group_executes || !is_in_group(caller, inode.metadata().gid()))
        {
            kept &= !SET_GROUP_ID;
        }
        if kept != permissions {
            inode.set_attributes(&SetAttributes { mode: Some(kept), ..SetAttributes::default() })?;
        }
        let capable = inode.xattr(CAPABILITY)?.is_some();
        if capable {
            inode.remove_xattr(CAPABILITY)?;
        }
        Ok(kept != permissions || capable)
    }
}

/// Whether a caller may keep set-user-id bits of what it changes.
pub(super) fn may_keep_set_id(caller: Caller) -> bool {
    caller.uid == 0
}

/// Whether a caller is in a group.
pub(super) fn is_in_group(caller: Caller, gid: u32) -> bool {
    if caller.uid == 0 || caller.gid == gid {
        return true;
    }
    let groups = status_field(caller, "Groups:").unwrap_or_default();
    groups.split_whitespace().any(|group| group.parse() == Ok(gid))
}

/// A caller's umask; the usual one where it cannot be known.
pub(super) fn umask_of(caller: Caller) -> u32 {
    let umask = status_field(caller, "Umask:");
    umask.and_then(|text| u32::from_str_radix(text.trim(), 8).ok()).unwrap_or(0o022)
}

fn status_field(caller: Caller, field: &str) -> Option<String> {
    // 0 is a process that this one cannot see.
    let status = std::fs::read_to_string(format!("/proc/{}/status", caller.pid)).ok()?;
    let line = status.lines().find(|line| line.starts_with(field))?;
    Some(line[field.len()..].to_owned())
}
