//! Sets attributes of the host's files to those from the image.
//!
//! Owns [`Keeper`].
//!
//! **Invariants**
//! - The order is owner, extended attributes, mode, ACLs, times. Changing the owner clears set-id
//!   bits and capabilities, an ACL is part of the mode, and all of these change the times.

use super::event::Attributes;
use super::problem::{ExportObserver, ExportProblem};
use crate::host_calls;
use crate::text::{escaped, system_text};
use papilio_engine::items::xattr::Xattr;
use papilio_format::items::inode::Timespec;
use rustix::fs::{Gid, Mode, Timestamps, Uid};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;

const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// Sets attributes, and counts those that the destination does not support.
pub struct Keeper<'a> {
    observer: &'a dyn ExportObserver,
    privileged: bool,
    unsupported: u64,
    example: Option<String>,
}

/// An inode that cannot be opened for its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// A symbolic link, which has no mode of its own.
    Symlink,
    /// A pipe, socket or device.
    Special {
        /// Whether it may have inherited an ACL from its directory.
        inherits_acl: bool,
    },
}

/// The set-id bits, which must not be set if the owner could not be changed.
const SET_ID: u32 = 0o6000;

impl<'a> Keeper<'a> {
    /// Creates a keeper with the privileges of this process.
    pub fn new(observer: &'a dyn ExportObserver) -> Self {
        let privileged = rustix::process::geteuid().is_root();
        Self { observer, privileged, unsupported: 0, example: None }
    }

    /// Reports the attributes that could not be kept.
    pub fn finish(self) {
        if let Some(example) = self.example {
            let count = self.unsupported;
            self.observer.problem(ExportProblem::AttributesUnsupported { count, example });
        }
    }

    /// Sets the attributes of an open regular file or directory.
    pub fn keep(&mut self, file: BorrowedFd<'_>, attributes: &Attributes, path: &str) -> Result<(), Errno> {
        let owned = self.own(attributes, |uid, gid| rustix::fs::fchown(file, uid, gid))?;
        let set = |xattr: &Xattr| host_calls::set_xattr(file, &xattr.name, &xattr.value);
        self.set_xattrs(attributes, false, path, set);
        rustix::fs::fchmod(file, mode(attributes, owned))?;
        self.set_xattrs(attributes, true, path, set);
        rustix::fs::futimens(file, &times(attributes))
    }

    /// Sets the attributes of a symbolic link or a special file, an entry of a directory.
    #[cfg(target_os = "linux")]
    pub fn keep_of_node(
        &mut self,
        (directory, name): (BorrowedFd<'_>, &[u8]),
        attributes: &Attributes,
        kind: Node,
        path: &str,
    ) -> Result<(), Errno> {
        use rustix::fs::{AtFlags, OFlags, XattrFlags};
        use std::os::fd::AsRawFd;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let node = rustix::fs::openat(directory, name, flags, Mode::empty())?;
        let owned =
            self.own(attributes, |uid, gid| rustix::fs::chownat(&node, "", uid, gid, AtFlags::EMPTY_PATH))?;
        // The only path to such an inode that no one can redirect.
        let place = format!("/proc/self/fd/{}", node.as_raw_fd());
        let set =
            |xattr: &Xattr| rustix::fs::setxattr(&place, &xattr.name[..], &xattr.value, XattrFlags::empty());
        self.set_xattrs(attributes, false, path, set);
        if let Node::Special { inherits_acl } = kind {
            if inherits_acl {
                // Errors are ignored for the reasons in `remove_acls`.
                let _ = rustix::fs::removexattr(&place, ACCESS_ACL);
            }
            rustix::fs::chmod(&place, mode(attributes, owned))?;
            self.set_xattrs(attributes, true, path, set);
        }
        rustix::fs::utimensat(&node, "", &times(attributes), AtFlags::EMPTY_PATH)
    }

    /// Sets the attributes of a symbolic link or a special file, an entry of a directory. Without
    /// `O_PATH` nothing but the name leads to it, so its extended attributes are not kept.
    #[cfg(not(target_os = "linux"))]
    pub fn keep_of_node(
        &mut self,
        (directory, name): (BorrowedFd<'_>, &[u8]),
        attributes: &Attributes,
        kind: Node,
        path: &str,
    ) -> Result<(), Errno> {
        use rustix::fs::AtFlags;
        let nofollow = AtFlags::SYMLINK_NOFOLLOW;
        let owned =
            self.own(attributes, |uid, gid| rustix::fs::chownat(directory, name, uid, gid, nofollow))?;
        for acls in [false, true] {
            self.set_xattrs(attributes, acls, path, |_| Err(Errno::OPNOTSUPP));
        }
        if kind != Node::Symlink {
            rustix::fs::chmodat(directory, name, mode(attributes, owned), nofollow)?;
        }
        rustix::fs::utimensat(directory, name, &times(attributes), nofollow)
    }

    /// Sets the owner, and returns whether it is right now. Without privilege, a wrong owner is no
    /// error.
    fn own(
        &self,
        attributes: &Attributes,
        chown: impl Fn(Option<Uid>, Option<Gid>) -> Result<(), Errno>,
    ) -> Result<bool, Errno> {
        let uid = (attributes.uid != u32::MAX).then(|| Uid::from_raw(attributes.uid));
        let gid = (attributes.gid != u32::MAX).then(|| Gid::from_raw(attributes.gid));
        match chown(uid, gid) {
            Ok(()) => Ok(uid.is_some() && gid.is_some()),
            Err(Errno::PERM | Errno::INVAL) if !self.privileged => {
                // The process may be a member of the group.
                let _ = chown(None, gid);
                Ok(false)
            }
            Err(errno) => Err(errno),
        }
    }

    fn set_xattrs(
        &mut self,
        attributes: &Attributes,
        acls: bool,
        path: &str,
        set: impl Fn(&Xattr) -> Result<(), Errno>,
    ) {
        for xattr in &attributes.xattrs {
            if is_acl(&xattr.name) != acls {
                continue;
            }
            let Err(errno) = set(xattr) else { continue };
            let name = String::from_utf8_lossy(&escaped(&xattr.name)).into_owned();
            match errno {
                Errno::OPNOTSUPP | Errno::PERM if errno != Errno::PERM || !self.privileged => {
                    self.unsupported += 1;
                    self.example
                        .get_or_insert_with(|| format!("{path}: {name}: {}", system_text(&errno.into())));
                }
                errno => {
                    let (path, error) = (path.to_owned(), errno.into());
                    self.observer.problem(ExportProblem::Attribute { path, name, error });
                }
            }
        }
    }

    /// Returns whether new entries of `directory` inherit an ACL.
    pub fn has_default_acl(&self, directory: BorrowedFd<'_>) -> bool {
        // Only its existence matters. An ACL does not fit into one byte, hence ERANGE.
        let mut byte = [0_u8; 1];
        let found = host_calls::xattr(directory, DEFAULT_ACL, &mut byte);
        matches!(found, Ok(_) | Err(Errno::RANGE))
    }

    /// Removes the ACLs that a new file has inherited from its directory.
    pub fn remove_acls(&self, file: BorrowedFd<'_>) {
        for name in [ACCESS_ACL, DEFAULT_ACL] {
            // There may be none to remove. Other failures show up when the mode is set.
            let _ = host_calls::remove_xattr(file, name);
        }
    }
}

/// Returns whether an extended attribute is an ACL.
pub fn is_acl(name: &[u8]) -> bool {
    name == ACCESS_ACL || name == DEFAULT_ACL
}

fn mode(attributes: &Attributes, owned: bool) -> Mode {
    let lost = if owned { 0 } else { SET_ID };
    host_calls::mode(attributes.permissions & !lost)
}

fn times(attributes: &Attributes) -> Timestamps {
    // utimensat(2) gives some larger values a special meaning.
    let time = |time: Timespec| rustix::fs::Timespec {
        tv_sec: time.seconds,
        tv_nsec: time.nanoseconds.min(999_999_999).into(),
    };
    Timestamps { last_access: time(attributes.atime), last_modification: time(attributes.mtime) }
}
