//! The mount point: mounting on it, and its errors.
//!
//! Owns [`attach`] and [`make`], which return the channel to the kernel. Root mounts with system
//! calls, so the table of mounts shows the image as the source and `fuse.papilio` as the type.
//! Other users go through `fusermount3`, which comes with FUSE. After the mount exists this file
//! never accesses it: this process is its server and could wait for itself.

use crate::device_transport::{DEVICE, HandshakeError};
use crate::options::{Atime, MountOptions};
use crate::ring_transport::RingError;
use crate::unmount::HELPER;
use crate::whole_mount::WholeMount;
use papilio_ioctl::mount_table::MountEntry;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The file system type in the table of mounts.
const TYPE: &str = "fuse.papilio";
/// The two parts of the type.
const KERNEL_TYPE: &str = "fuse";
const SUBTYPE: &str = "papilio";

/// Reasons why a file system cannot be mounted; each message is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The mount point does not exist.
    #[error("{}: no such directory to mount on", .0.display())]
    Missing(PathBuf),
    /// The mount point is not a directory.
    #[error("{}: not a directory", .0.display())]
    NotADirectory(PathBuf),
    /// The server of a mount there died, and the mount remains.
    #[error("{}: busy: the server of a mount there has died; unmount it first (umount, or fusermount3 -u)", .0.display())]
    DeadMount(PathBuf),
    /// The mount point cannot be read.
    #[error("{}: {source}", path.display())]
    MountPoint {
        /// The mount point.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel has no FUSE.
    #[error("{DEVICE}: {0}: FUSE is not available (modprobe fuse, or pass the device into the container)")]
    NoFuse(io::Error),
    /// This user may not use FUSE.
    #[error("{DEVICE}: permission denied: this user may not use FUSE")]
    FuseNotPermitted,
    /// The kernel refused the mount.
    #[error("mounting on {}: {source}", path.display())]
    Refused {
        /// The mount point.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// `fusermount3` is not installed.
    #[error("mounting on {} needs root, or {HELPER}, which is not installed (package fuse3)", .0.display())]
    NoHelper(PathBuf),
    /// `fusermount3` refused the mount.
    #[error("mounting on {}: {message}", path.display())]
    HelperRefused {
        /// The mount point.
        path: PathBuf,
        /// Its first line on standard error.
        message: String,
    },
    /// The FUSE handshake failed.
    #[error("FUSE handshake with the kernel failed: {0}")]
    Handshake(#[from] HandshakeError),
    /// The requested transport over io_uring is not available.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The file system's root directory cannot be read.
    #[error(transparent)]
    FileSystem(#[from] papilio::Error),
    /// There is no writer to follow.
    #[error("{}: the mount option follow: {reason}", path.display())]
    Follow {
        /// The image.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// A thread could not be started.
    #[error("starting a thread: {0}")]
    Thread(io::Error),
}

/// Checks a mount point and returns its absolute path.
pub(crate) fn check(directory: &Path) -> Result<PathBuf, MountError> {
    let fail = |source: io::Error| {
        let path = directory.to_path_buf();
        match source.raw_os_error() {
            Some(libc::ENOENT) => MountError::Missing(path),
            Some(libc::ENOTDIR) => MountError::NotADirectory(path),
            // ECANCELED: a request over io_uring that was in flight when the server died.
            Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED) => MountError::DeadMount(path),
            _ => MountError::MountPoint { path, source },
        }
    };
    let metadata = std::fs::metadata(directory).map_err(fail)?;
    if !metadata.is_dir() {
        return Err(MountError::NotADirectory(directory.to_path_buf()));
    }
    directory.canonicalize().map_err(fail)
}

/// Mounts `source` on `directory`, an absolute path, and returns the channel to the kernel.
pub(crate) fn attach(source: &Path, directory: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let device = open_device()?;
    match mount_directly(&device, source, directory, options) {
        Ok(()) => Ok(device),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            drop(device);
            mount_by_helper(source, directory, options)
        }
        Err(source) if source.raw_os_error() == Some(libc::ENODEV) => Err(MountError::NoFuse(source)),
        Err(source) => Err(MountError::Refused { path: directory.to_path_buf(), source }),
    }
}

/// Makes a file system from `source` that is attached nowhere yet, and returns the channel to the
/// kernel with it. Returns `None` if this user or this kernel (before Linux 5.2) cannot do so.
pub(crate) fn make(
    source: &Path,
    options: &MountOptions,
) -> Result<Option<(OwnedFd, WholeMount)>, MountError> {
    let device = open_device()?;
    match make_unattached(&device, source, options) {
        Ok(mount) => Ok(Some((device, WholeMount::new(mount)))),
        Err(error) => {
            tracing::info!("cannot mount a directory of the file system: {error}");
            Ok(None)
        }
    }
}

fn open_device() -> Result<OwnedFd, MountError> {
    let device = File::options().read(true).write(true).open(DEVICE);
    device.map(OwnedFd::from).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => MountError::FuseNotPermitted,
        _ => MountError::NoFuse(error),
    })
}

fn make_unattached(device: &OwnedFd, source: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
    use rustix::mount::{fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen};
    let context = fsopen(KERNEL_TYPE, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", name_of(source, options).as_os_str())?;
    fsconfig_set_string(&context, "subtype", SUBTYPE)?;
    for (key, value) in numbers_for_fuse(device) {
        fsconfig_set_string(&context, key, value)?;
    }
    let flags = [(options.read_only, "ro"), (options.sync, "sync"), (options.dirsync, "dirsync")];
    let flags = flags.into_iter().filter_map(|(wanted, name)| wanted.then_some(name));
    for flag in flags.chain(fuse_options(options)) {
        fsconfig_set_flag(&context, flag)?;
    }
    fsconfig_create(&context)?;
    let mut attributes = MountAttrFlags::empty();
    attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, options.read_only);
    attributes.set(MountAttrFlags::MOUNT_ATTR_NODEV, !options.dev);
    attributes.set(MountAttrFlags::MOUNT_ATTR_NOSUID, !options.suid);
    attributes.set(MountAttrFlags::MOUNT_ATTR_NOEXEC, !options.exec);
    attributes.set(MountAttrFlags::MOUNT_ATTR_NOATIME, options.noatime == Atime::Noatime);
    attributes.set(MountAttrFlags::MOUNT_ATTR_NODIRATIME, options.noatime == Atime::Nodiratime);
    Ok(fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// Returns the mount options of FUSE that are numbers.
fn numbers_for_fuse(device: &OwnedFd) -> [(&'static str, String); 4] {
    [
        ("fd", device.as_raw_fd().to_string()),
        ("rootmode", format!("{:o}", libc::S_IFDIR)),
        ("user_id", rustix::process::getuid().as_raw().to_string()),
        ("group_id", rustix::process::getgid().as_raw().to_string()),
    ]
}

/// Returns the mount options that FUSE itself interprets.
fn fuse_options(options: &MountOptions) -> Vec<&'static str> {
    let all = [
        (options.allow_other || options.allow_root, "allow_other"),
        (options.default_permissions, "default_permissions"),
    ];
    all.into_iter().filter_map(|(wanted, name)| wanted.then_some(name)).collect()
}

fn mount_directly(
    device: &OwnedFd,
    source: &Path,
    directory: &Path,
    options: &MountOptions,
) -> io::Result<()> {
    use rustix::mount::MountFlags;
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NODEV, !options.dev);
    flags.set(MountFlags::NOSUID, !options.suid);
    flags.set(MountFlags::NOEXEC, !options.exec);
    flags.set(MountFlags::SYNCHRONOUS, options.sync);
    flags.set(MountFlags::DIRSYNC, options.dirsync);
    flags.set(MountFlags::NOATIME, options.noatime == Atime::Noatime);
    flags.set(MountFlags::NODIRATIME, options.noatime == Atime::Nodiratime);
    let numbers = numbers_for_fuse(device).map(|(key, value)| format!("{key}={value}"));
    let named = fuse_options(options).into_iter().map(str::to_owned);
    let data = numbers.into_iter().chain(named).collect::<Vec<_>>().join(",");
    let name = name_of(source, options);
    Ok(rustix::mount::mount(name.as_os_str(), directory, TYPE, flags, CString::new(data)?.as_c_str())?)
}

/// Returns the source that the table of mounts shows.
fn name_of(source: &Path, options: &MountOptions) -> PathBuf {
    options.fsname.as_ref().map_or_else(|| source.to_path_buf(), PathBuf::from)
}

fn mount_by_helper(source: &Path, directory: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let path = || directory.to_path_buf();
    let refused = |source| MountError::Refused { path: path(), source };
    let (ours, theirs) = UnixStream::pair().map_err(refused)?;
    // The child must inherit this end.
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty()).map_err(|error| refused(error.into()))?;
    let mut list = fuse_options(options).join(",");
    for (wanted, name) in [
        (true, "subtype=papilio"),
        (options.read_only, "ro"),
        (!options.exec, "noexec"),
        (options.sync, "sync"),
        (options.dirsync, "dirsync"),
        (options.noatime == Atime::Noatime, "noatime"),
    ] {
        if wanted {
            list = if list.is_empty() { name.to_owned() } else { format!("{list},{name}") };
        }
    }
    let mut argument = std::ffi::OsString::from(format!("{list},fsname="));
    argument.push(escape(name_of(source, options).as_os_str()));
    let child = Command::new(HELPER)
        .arg("-o")
        .arg(argument)
        .arg("--")
        .arg(directory)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let child = child.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => MountError::NoHelper(path()),
        _ => refused(error),
    })?;
    drop(theirs);
    let received = receive_descriptor(&ours);
    let output = child.wait_with_output().map_err(refused)?;
    match received {
        Ok(Some(channel)) if output.status.success() => Ok(channel),
        Err(error) if output.status.success() => Err(refused(error)),
        _ => {
            let message = String::from_utf8_lossy(&output.stderr);
            let line = message.lines().next().unwrap_or("it refused without a reason");
            Err(MountError::HelperRefused { path: path(), message: line.trim().to_owned() })
        }
    }
}

/// Escapes commas and backslashes, which separate and escape options of `fusermount3`.
fn escape(name: &OsStr) -> std::ffi::OsString {
    use std::os::unix::ffi::OsStringExt;
    let mut escaped = Vec::new();
    for &byte in name.as_bytes() {
        if matches!(byte, b',' | b'\\') {
            escaped.push(b'\\');
        }
        escaped.push(byte);
    }
    std::ffi::OsString::from_vec(escaped)
}

/// Receives the file descriptor that `fusermount3` sends; `None` if it sends none.
fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    const CONTROL_BYTES: usize = 64;
    let mut byte = [0_u8; 1];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: byte.len() };
    // Words, because a control message's header must be aligned.
    let mut control = [0_u64; CONTROL_BYTES / 8];
    // SAFETY: every field of the structure may be zero.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_BYTES as _;
    // SAFETY: the message points to a byte and a control buffer, both live and of the given sizes.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    match received {
        0 => return Ok(None),
        1 => {}
        _ => return Err(io::Error::last_os_error()),
    }
    // SAFETY: the kernel filled the control buffer and stored its length in the message.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    if header.is_null() {
        return Ok(None);
    }
    // SAFETY: the header is not null, so it lies in the control buffer.
    let (level, kind) = unsafe { ((*header).cmsg_level, (*header).cmsg_type) };
    if (level, kind) != (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
        return Ok(None);
    }
    // SAFETY: a rights message holds descriptors, possibly unaligned, which this process now owns.
    Ok(Some(unsafe {
        let descriptor = std::ptr::read_unaligned(libc::CMSG_DATA(header).cast::<libc::c_int>());
        OwnedFd::from_raw_fd(descriptor)
    }))
}

/// Raises readahead to the size of one request, from the 128 KiB that each mount starts with. Only
/// root may do so; a failure is not an error.
pub(crate) fn raise_readahead(directory: &Path, bytes: u32) {
    let Some(device) = device_of(directory) else { return };
    let path = format!("/sys/class/bdi/{device}/read_ahead_kb");
    if let Err(error) = std::fs::write(&path, (bytes / 1024).to_string()) {
        tracing::debug!("{path}: {error}");
    }
}

/// Returns the device number (`major:minor`) of the newest mount on a directory without accessing
/// the mount.
fn device_of(directory: &Path) -> Option<String> {
    let mounts = MountEntry::all().ok()?;
    mounts.into_iter().rev().find(|mount| mount.point == directory).map(|mount| mount.device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_pass_through_options() {
        assert_eq!(escape(OsStr::new(r"/a,b\c")), OsStr::new(r"/a\,b\\c"));
    }

    #[test]
    fn mount_points_that_cannot_be_are_named() {
        let missing = check(Path::new("/no/such/directory")).unwrap_err();
        assert_eq!(missing.to_string(), "/no/such/directory: no such directory to mount on");
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(matches!(check(file.path()), Err(MountError::NotADirectory(_))));
    }
}
