//! A table of mounts of the process's own, in which all but some directories is read-only.
//!
//! Owns [`read_only_but`]. Landlock does not know the attributes of files, so a process that may
//! change owners and modes could do so anywhere. On a read-only mount it cannot. Only root, more
//! exactly `CAP_SYS_ADMIN`, can have such a table.
//!
//! **Invariant**: mounts that others remove disappear here, too, so that this process keeps no
//! device busy.

use rustix::fs::CWD;
use rustix::io::{Errno, Result};
use rustix::mount::{
    MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount_change, move_mount, open_tree,
};
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

const RDONLY: u64 = libc::MOUNT_ATTR_RDONLY;

/// Makes all mounts read-only for this process but those of `places`, which exist. The process has
/// one thread.
pub(crate) fn read_only_but(places: &[PathBuf]) -> Result<String> {
    let places: Vec<PathBuf> = places
        .iter()
        .map(|place| place.canonicalize())
        .collect::<std::io::Result<_>>()
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOENT))?;
    if places.iter().any(|place| place == Path::new("/")) {
        // Nothing is left to protect.
        return Err(Errno::NOTSUP);
    }
    let here = std::env::current_dir();
    // SAFETY: it takes a number, and changes the table of mounts of this thread only.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(last_error());
    }
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    // The copies keep the flags that their mounts have now.
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::AT_RECURSIVE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let copies = places.iter().map(|place| open_tree(CWD, place, flags)).collect::<Result<Vec<_>>>()?;
    set_everywhere(MountAttributes { set: RDONLY, ..MountAttributes::default() })?;
    for (copy, place) in copies.iter().zip(&places) {
        let moved = move_mount(copy, "", CWD, place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH);
        if let Err(error) = moved {
            // The job comes first.
            let _ = set_everywhere(MountAttributes { clear: RDONLY, ..MountAttributes::default() });
            return Err(error);
        }
    }
    // The working directory is a place in the mounts below.
    if let Ok(here) = here {
        let _ = std::env::set_current_dir(here);
    }
    Ok("read-only elsewhere".to_owned())
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
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}
