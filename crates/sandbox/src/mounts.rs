//! A table of mounts of the process's own, in which all but some directories is read-only.
//!
//! Owns [`read_only_but`]. Landlock does not know the attributes of files, so a process that may
//! change owners and modes could do so anywhere. On a read-only mount it cannot. Only root, more
//! exactly `CAP_SYS_ADMIN`, can have such a table.
//!
//! **Invariant**: mounts that others remove disappear here, too, so that this process keeps no
//! device busy. The kernel does so for mounts that are shared, as systemd makes all. Where a mount
//! of a device is not, the process does without a table of its own.

use rustix::fs::CWD;
use rustix::mount::{
    MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount_change, move_mount, open_tree,
};
use std::io::{self, Result};
use std::path::{Path, PathBuf};

/// `struct mount_attr` of the kernel.
#[repr(C)]
#[derive(Default)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// File systems that have no device and no server: a mount of them keeps nothing busy.
const WITHOUT_DEVICES: &[&str] = &[
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nsfs",
    "proc",
    "pstore",
    "ramfs",
    "securityfs",
    "selinuxfs",
    "sysfs",
    "tmpfs",
    "tracefs",
];

/// `MOUNT_ATTR_RDONLY`.
const RDONLY: u64 = 1;

/// Makes all mounts read-only for this process but those of `places`, which exist. The process has
/// one thread.
pub(crate) fn read_only_but(places: &[PathBuf]) -> Result<String> {
    let places = places.iter().map(|place| place.canonicalize()).collect::<Result<Vec<PathBuf>>>()?;
    if places.iter().any(|place| place == Path::new("/")) {
        // Nothing is left to protect.
        return Err(io::Error::other("the destination is the whole machine"));
    }
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    if let Some(place) = table.lines().find_map(unshared) {
        return Err(io::Error::other(format!("{place} is no shared mount, so it would stay in use")));
    }
    let here = std::env::current_dir();
    // SAFETY: it takes a number, and changes the table of mounts of this thread only.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(io::Error::last_os_error());
    }
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    // The copies keep the flags that their mounts have now.
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::AT_RECURSIVE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let copies =
        places.iter().map(|place| open_tree(CWD, place, flags)).collect::<rustix::io::Result<Vec<_>>>()?;
    set_everywhere(MountAttributes { set: RDONLY, ..MountAttributes::default() })?;
    for (copy, place) in copies.iter().zip(&places) {
        let moved = move_mount(copy, "", CWD, place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH);
        if let Err(error) = moved {
            // The job comes first.
            let _ = set_everywhere(MountAttributes { clear: RDONLY, ..MountAttributes::default() });
            return Err(error.into());
        }
    }
    // The working directory is a place in the mounts below.
    if let Ok(here) = here {
        let _ = std::env::set_current_dir(here);
    }
    Ok("read-only elsewhere".to_owned())
}

/// Returns the place of a mount that would stay in a copy of the table although others remove it. A
/// line is described in proc_pid_mountinfo(5).
fn unshared(line: &str) -> Option<&str> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut fields = mount.split(' ').skip(4);
    let (place, _options) = (fields.next()?, fields.next()?);
    let follows = fields.any(|field| field.starts_with("shared:") || field.starts_with("master:"));
    let kind = file_system.split(' ').next()?;
    let stays = place != "/" && !follows && !WITHOUT_DEVICES.contains(&kind);
    stays.then_some(place)
}

/// Changes the attributes of all mounts.
fn set_everywhere(attributes: MountAttributes) -> Result<()> {
    // SAFETY: the path is a string that ends in zero, and the structure has the size that is
    // given; both outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            c"/".as_ptr(),
            libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<MountAttributes>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_devices_must_be_shared() {
        for line in [
            "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw",
            "28 22 0:20 / /proc rw,nosuid - proc proc rw",
            "30 22 8:1 / /mnt rw shared:12 - btrfs /dev/sda1 rw",
            "31 22 8:1 / /mnt rw,noatime master:3 propagate_from:2 - btrfs /dev/sda1 rw",
            "nonsense",
        ] {
            assert_eq!(unshared(line), None, "{line}");
        }
        let private = "30 22 8:1 / /mnt rw - btrfs /dev/sda1 rw";
        assert_eq!(unshared(private), Some("/mnt"));
        assert_eq!(unshared("31 22 0:44 / /home/me rw - fuse.sshfs host: rw"), Some("/home/me"));
    }
}
