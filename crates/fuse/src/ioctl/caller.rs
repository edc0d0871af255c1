//! The caller's groups, umask and open files, from /proc.
//!
//! FUSE passes only a user, a group and a thread id. The server reads the rest from /proc if it has
//! permission; otherwise it knows less and allows less. The caller controls what /proc shows, so it
//! only decides on the caller's own permissions.

use super::call::{Caller, IoctlCall, Result};
use papilio::Inode;
use papilio_ioctl::Errno;
use papilio_ioctl::mount_table::{self, MountEntry};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Returns all groups of the caller.
pub(super) fn groups(caller: &Caller) -> Vec<u32> {
    let mut groups = vec![caller.gid];
    if let Some(line) = status_field(caller.pid, "Groups:") {
        groups.extend(line.split_ascii_whitespace().filter_map(|group| group.parse::<u32>().ok()));
    }
    groups
}

/// Returns whether the caller is known not to administrate this machine: it lacks `CAP_SYS_ADMIN`,
/// or is in another user namespace than the server.
pub(super) fn lacks_administration(caller: &Caller) -> bool {
    const SYS_ADMIN: u64 = 1 << 21;
    let effective = status_field(caller.pid, "CapEff:");
    let effective = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/user")).ok();
    effective.is_some_and(|effective| effective & SYS_ADMIN == 0)
        || namespace(&caller.pid.to_string())
            .is_some_and(|theirs| namespace("self").is_some_and(|ours| ours != theirs))
}

/// Returns the caller's umask.
pub(super) fn umask(call: &IoctlCall<'_>) -> u32 {
    let told = status_field(call.caller.pid, "Umask:");
    told.and_then(|text| u32::from_str_radix(text.trim(), 8).ok()).unwrap_or(call.umask)
}

/// Returns whether a signal waits for the caller, or it is gone.
pub(super) fn has_signal(caller: &Caller) -> bool {
    if caller.pid == 0 {
        return false;
    }
    let pending =
        |name| status_field(caller.pid, name).and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    let blocked = pending("SigBlk:").unwrap_or(0);
    match (pending("SigPnd:"), pending("ShdPnd:")) {
        (Some(own), Some(shared)) => (own | shared) & !blocked != 0,
        _ => !std::path::Path::new(&format!("/proc/{}", caller.pid)).exists(),
    }
}

fn status_field(pid: u32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned)
}

/// Returns the inode behind one of the caller's file descriptors, which must be in this mount.
/// Finds the descriptor's mount and path in /proc.
///
/// # Errors
/// EBADF if the descriptor is not open, EXDEV for another file system, EOPNOTSUPP if the server may
/// not read the caller's /proc.
pub(super) fn file_of(call: &IoctlCall<'_>, fd: i64) -> Result<Inode> {
    let process = PathBuf::from(format!("/proc/{}", call.caller.pid));
    let fd = u32::try_from(fd).map_err(|_| Errno(libc::EBADF))?;
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => Errno(libc::EBADF),
        _ => Errno(libc::EOPNOTSUPP),
    };
    let path = fs::read_link(process.join(format!("fd/{fd}"))).map_err(failed)?;
    let info = fs::read_to_string(process.join(format!("fdinfo/{fd}"))).map_err(failed)?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse::<u64>().ok());
    let mounts = mount_table::parse(&fs::read(process.join("mountinfo")).map_err(failed)?);
    let mount = mounts.into_iter().find(|mount| Some(mount.id) == id).ok_or(Errno(libc::EOPNOTSUPP))?;
    let own = MountEntry::of_papilio_on(&call.mount.directory).map_err(failed)?;
    if own.is_none_or(|own| own.device != mount.device) {
        return Err(Errno(libc::EXDEV));
    }
    let below = path.strip_prefix(&mount.point).map_err(|_| Errno(libc::EOPNOTSUPP))?;
    // A bind mount may show only a part of the file system.
    let inside = mount.root.join(below);
    let names = inside.as_os_str().as_bytes().split(|&byte| byte == b'/').filter(|name| !name.is_empty());
    let mut inode = call.mount.root(call.fs)?;
    for name in names {
        inode = inode.lookup(name)?.ok_or(Errno(libc::ENOENT))?;
    }
    Ok(inode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_is_readable() {
        let caller = Caller { uid: 0, gid: 77, pid: std::process::id() };
        assert!(groups(&caller).contains(&77));
        assert!(status_field(caller.pid, "Umask:").is_some());
    }
}
