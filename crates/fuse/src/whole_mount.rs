//! Mounts that show a directory below the root of their file system.
//!
//! Owns [`WholeMount`], a mount of a whole FUSE file system that is attached nowhere, so no process
//! sees it. [`WholeMount::attach`] clones the part of it below a directory and attaches the clone.
//! This is how the kernel's Btrfs shows a subvolume: the file system has the top level as its root,
//! and each mount a directory in it. So mounts of any subvolumes share one server.
//!
//! **Invariants**
//! - A mount that is attached nowhere goes with its descriptor, so none keeps the file system alive
//!   after the last mount point.
//! - [`WholeMount::attach`] looks up names in the file system. The server must serve by then, and
//!   the caller must not be one of its threads.
//!
//! Kernel counterpart: `mount_subtree` (`fs/namespace.c`).

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

/// The kernel's file handle of the root directory of each FUSE file system: node 1, generation 0.
///
/// Kernel counterpart: `fuse_encode_fh` (`fs/fuse/inode.c`).
#[repr(C)]
struct RootHandle {
    bytes: libc::c_uint,
    kind: libc::c_int,
    /// The upper and the lower half of the node's id, and the generation.
    handle: [u32; 3],
}

impl RootHandle {
    /// A handle of a node's id and generation.
    const KIND: libc::c_int = 0x81;

    fn new() -> Self {
        Self { bytes: size_of::<[u32; 3]>() as libc::c_uint, kind: Self::KIND, handle: [0, 1, 0] }
    }
}

/// A mount of a whole FUSE file system, attached nowhere.
#[derive(Debug)]
pub struct WholeMount {
    mount: OwnedFd,
}

impl WholeMount {
    /// Takes a mount that `fsmount` has made.
    pub(crate) fn new(mount: OwnedFd) -> Self {
        Self { mount }
    }

    /// Makes a mount of the whole file system that has `file`, a file or directory in any mount of
    /// it. That mount may show only a part.
    ///
    /// # Errors
    /// EPERM without `CAP_DAC_READ_SEARCH`, or another error of the system.
    pub fn of(file: &impl AsFd) -> io::Result<Self> {
        let mut handle = RootHandle::new();
        // SAFETY: the handle is a `file_handle` that is followed by as many bytes as it says, and
        // outlives the call.
        let root = unsafe {
            libc::open_by_handle_at(
                file.as_fd().as_raw_fd(),
                std::ptr::from_mut(&mut handle).cast(),
                libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC,
            )
        };
        if root < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the system call has just opened this descriptor.
        let root = unsafe { OwnedFd::from_raw_fd(root) };
        let flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        Ok(Self { mount: rustix::mount::open_tree(root, "", flags)? })
    }

    /// Makes a mount of the whole file system that a process serves, also where none of its mounts
    /// is in this mount namespace, or all were detached while in use. The kernel makes a further
    /// mount of the file system behind an open connection (Linux 5.14). `source` is the name in the
    /// table of mounts.
    ///
    /// # Errors
    /// EPERM without `CAP_SYS_PTRACE` or `CAP_SYS_ADMIN`; ENOENT if the process serves none;
    /// another error of the system.
    pub fn of_server(server: Pid, source: &Path) -> io::Result<Self> {
        use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
        use rustix::mount::{fsconfig_create, fsconfig_set_string, fsmount, fsopen};
        let connection = connection_of(server)?;
        let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(&context, "source", source)?;
        fsconfig_set_string(&context, "subtype", "papilio")?;
        fsconfig_set_string(&context, "fd", connection.as_raw_fd().to_string())?;
        // They count for a new file system only, and the kernel wants them nevertheless.
        for (key, value) in [("rootmode", "40000"), ("user_id", "0"), ("group_id", "0")] {
            fsconfig_set_string(&context, key, value)?;
        }
        fsconfig_create(&context)?;
        let mount = fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        Ok(Self { mount })
    }

    /// Opens the root directory of the file system.
    ///
    /// # Errors
    /// The system's.
    pub fn open_root(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.mount, ".", flags, Mode::empty())?.into())
    }

    /// Allows changes of the file system, which was mounted read-only. Its mounts keep their own
    /// flags: those that are read-only stay so.
    ///
    /// # Errors
    /// The system's.
    pub fn allow_changes(&self) -> io::Result<()> {
        allow_changes(&self.mount)
    }

    /// Attaches the part of the file system below its directory `inside` to the directory `point`,
    /// both without symbolic links. `inside` is relative, and empty for the whole; `point` is
    /// absolute.
    ///
    /// # Errors
    /// `inside` does not exist, or another error of the system.
    pub fn attach(self, inside: &Path, point: &Path) -> io::Result<()> {
        let tree = self.part(inside, point)?;
        Ok(rustix::mount::move_mount(tree, "", CWD, point, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
    }

    fn part(self, inside: &Path, point: &Path) -> io::Result<OwnedFd> {
        if inside.as_os_str().is_empty() {
            return Ok(self.mount);
        }
        match clone_of(&self.mount, inside) {
            // Until Linux 6.15 only attached mounts can be cloned.
            Err(Errno::INVAL) => clone_in_private(self.mount, inside, point),
            tree => Ok(tree?),
        }
    }
}

/// Allows changes of the file system of a mount, as [`WholeMount::allow_changes`]. `file` is in any
/// mount of it.
///
/// # Errors
/// The system's.
pub fn allow_changes(file: &impl AsFd) -> io::Result<()> {
    use rustix::mount::{FsPickFlags, fsconfig_reconfigure, fsconfig_set_flag, fspick};
    let context = fspick(file, "", FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH)?;
    fsconfig_set_flag(&context, "rw")?;
    Ok(fsconfig_reconfigure(&context)?)
}

/// Returns a copy of the descriptor by which a process is connected with the kernel's FUSE.
fn connection_of(server: Pid) -> io::Result<OwnedFd> {
    let process = rustix::process::pidfd_open(server, PidfdFlags::empty())?;
    for entry in std::fs::read_dir(format!("/proc/{}/fd", server.as_raw_nonzero()))?.flatten() {
        let is_connection = std::fs::read_link(entry.path()).is_ok_and(|link| link == Path::new("/dev/fuse"));
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let (true, Some(number)) = (is_connection, number) {
            return Ok(rustix::process::pidfd_getfd(&process, number, PidfdGetfdFlags::empty())?);
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// Makes a mount of a directory below another one, attached nowhere.
fn clone_of(directory: impl AsFd, inside: &Path) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    rustix::mount::open_tree(directory, inside, flags)
}

/// As [`clone_of`], with the whole attached to `point` in a mount namespace that no other thread
/// sees.
fn clone_in_private(whole: OwnedFd, inside: &Path, point: &Path) -> io::Result<OwnedFd> {
    let clone = move || {
        // SAFETY: the call affects only this thread, which leaves the mount namespace and the
        // working directory that it shares with others.
        if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // Nothing that this thread mounts may appear elsewhere.
        rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        rustix::mount::move_mount(whole, "", CWD, point, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        let tree = clone_of(CWD, &point.join(inside));
        // The namespace may outlive this thread by a moment.
        rustix::mount::unmount(point, UnmountFlags::DETACH)?;
        Ok(tree?)
    };
    std::thread::scope(|scope| {
        scope.spawn(clone).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_ioctl::mount_table::MountEntry;
    use papilio_oracle::{Need, require};
    use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

    /// Makes a file system in memory, attached nowhere, with the directory `a/b`.
    fn in_memory() -> OwnedFd {
        let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
        rustix::mount::fsconfig_create(&context).unwrap();
        let whole =
            rustix::mount::fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NOEXEC);
        let whole = whole.unwrap();
        for directory in ["a", "a/b", "a/b/inner"] {
            rustix::fs::mkdirat(&whole, directory, Mode::RWXU).unwrap();
        }
        whole
    }

    /// The way of kernels before Linux 6.15 leaves nothing behind.
    #[test]
    fn parts_are_cloned_in_a_private_namespace() {
        let Some(_) = require(&[Need::Root]) else { return };
        let directory = tempfile::tempdir().unwrap();
        let point = directory.path().canonicalize().unwrap();
        let before = MountEntry::all().unwrap().len();
        assert!(clone_in_private(in_memory(), Path::new("missing"), &point).is_err());
        let tree = clone_in_private(in_memory(), Path::new("a/b"), &point).unwrap();
        assert_eq!(MountEntry::all().unwrap().len(), before);
        rustix::mount::move_mount(tree, "", CWD, &point, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).unwrap();
        let mounts = MountEntry::all().unwrap();
        let found = mounts.iter().find(|mount| mount.point == point).map(|mount| mount.root.clone());
        let shown = point.join("inner").is_dir();
        rustix::mount::unmount(&point, UnmountFlags::DETACH).unwrap();
        assert_eq!((mounts.len(), found.as_deref(), shown), (before + 1, Some(Path::new("/a/b")), true));
        assert!(!point.join("inner").exists());
    }
}
