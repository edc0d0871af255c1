//! Giving files of the host the attributes that they had in the image.
//!
//! Owns [`Keeper`]. Order matters: changing the owner clears set-id bits and capabilities, and an ACL
//! is part of the mode; so the owner comes first, then attributes, the mode, the ACLs and, since all
//! of these change it, the times.

use super::event::Attributes;
use crate::context::Context;
use crate::errno_text::system_text;
use crate::output::escaped;
use papilio::{Timespec, Xattr};
use rustix::fs::{AtFlags, Gid, Mode, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// Keeps attributes, and counts those that the destination cannot hold.
pub struct Keeper<'a> {
    context: &'a Context,
    privileged: bool,
    unsupported: u64,
    example: Option<String>,
}

/// What has no content to open it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// A symbolic link, which has no mode of its own.
    Symlink,
    /// A pipe, socket or device.
    Special {
        /// Its directory may have given it an ACL.
        inherits_acl: bool,
    },
}

/// Set-id bits, which must not outlive a change of owner that failed.
const SET_ID: u32 = 0o6000;

impl<'a> Keeper<'a> {
    /// For this process.
    pub fn new(context: &'a Context) -> Self {
        let privileged = rustix::process::geteuid().is_root();
        Self { context, privileged, unsupported: 0, example: None }
    }

    /// Says how many attributes could not be kept.
    pub fn finish(self) {
        if let Some(example) = self.example {
            self.context.warning(format_args!(
                "{} extended attributes could not be kept; the first: {example}",
                self.unsupported
            ));
        }
    }

    /// Of a regular file or a directory that is open.
    pub fn keep(&mut self, file: BorrowedFd<'_>, attributes: &Attributes, path: &str) -> Result<(), Errno> {
        let owned = self.own(attributes, |uid, gid| rustix::fs::fchown(file, uid, gid))?;
        let set =
            |xattr: &Xattr| rustix::fs::fsetxattr(file, &xattr.name[..], &xattr.value, XattrFlags::empty());
        self.set_xattrs(attributes, false, path, set);
        rustix::fs::fchmod(file, mode(attributes, owned))?;
        self.set_xattrs(attributes, true, path, set);
        rustix::fs::futimens(file, &times(attributes))
    }

    /// Of a symbolic link or a special file, which is open as a place only.
    pub fn keep_of_node(
        &mut self,
        node: BorrowedFd<'_>,
        attributes: &Attributes,
        kind: Node,
        path: &str,
    ) -> Result<(), Errno> {
        let owned =
            self.own(attributes, |uid, gid| rustix::fs::chownat(node, "", uid, gid, AtFlags::EMPTY_PATH))?;
        // The one way to such a node that nobody can turn elsewhere.
        let place = format!("/proc/self/fd/{}", node.as_raw_fd());
        let set =
            |xattr: &Xattr| rustix::fs::setxattr(&place, &xattr.name[..], &xattr.value, XattrFlags::empty());
        self.set_xattrs(attributes, false, path, set);
        if let Node::Special { inherits_acl } = kind {
            if inherits_acl {
                // As in `remove_acls`.
                let _ = rustix::fs::removexattr(&place, ACCESS_ACL);
            }
            rustix::fs::chmod(&place, mode(attributes, owned))?;
            self.set_xattrs(attributes, true, path, set);
        }
        rustix::fs::utimensat(node, "", &times(attributes), AtFlags::EMPTY_PATH)
    }

    /// Whether the owner is now right. Without privilege a foreign owner is nobody's fault.
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
                // The group may be one of ours.
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
                    self.example.get_or_insert_with(|| format!("{path}: {name}: {}", system_text(errno)));
                }
                errno => self.context.error(format_args!("{path}: attribute {name}: {}", system_text(errno))),
            }
        }
    }

    /// Whether entries made in `directory` get an ACL from it.
    pub fn has_default_acl(&self, directory: BorrowedFd<'_>) -> bool {
        // Only whether there is one counts: an ACL does not fit into a byte.
        let mut byte = [0_u8; 1];
        let found = rustix::fs::fgetxattr(directory, DEFAULT_ACL, &mut byte[..]);
        matches!(found, Ok(_) | Err(Errno::RANGE))
    }

    /// Removes ACLs that a new file got from its directory, so that only its own are on it.
    pub fn remove_acls(&self, file: BorrowedFd<'_>) {
        for name in [ACCESS_ACL, DEFAULT_ACL] {
            // None to remove is what was wanted; a failure shows when the mode is set.
            let _ = rustix::fs::fremovexattr(file, name);
        }
    }
}

/// Whether an extended attribute is an ACL.
pub fn is_acl(name: &[u8]) -> bool {
    name == ACCESS_ACL || name == DEFAULT_ACL
}

fn mode(attributes: &Attributes, owned: bool) -> Mode {
    let lost = if owned { 0 } else { SET_ID };
    Mode::from_raw_mode(attributes.permissions & !lost)
}

fn times(attributes: &Attributes) -> Timestamps {
    // Nanoseconds beyond a second would be commands to utimensat(2).
    let time = |time: Timespec| rustix::fs::Timespec {
        tv_sec: time.seconds,
        tv_nsec: time.nanoseconds.min(999_999_999).into(),
    };
    Timestamps { last_access: time(attributes.atime), last_modification: time(attributes.mtime) }
}
