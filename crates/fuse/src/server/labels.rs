//! SELinux labels.
//!
//! `ls -l` asks for the label of each file, and stops asking after an EOPNOTSUPP. Where neither the
//! machine nor the file system uses SELinux, a missing label is answered so, which saves a round
//! trip for each file. The kernel's Btrfs says ENODATA; `ls` treats both alike. A file system
//! counts as labelled if the mounted directory has a label, or any file has been given one.

use papilio::Inode;
use std::path::Path;

/// The attribute that holds a label.
pub(super) const LABEL: &[u8] = b"security.selinux";
/// Exists where the kernel uses SELinux.
const SELINUX: &str = "/sys/fs/selinux";

/// Returns whether labels matter on a file system with this root directory.
pub(super) fn has_labels(root: &Inode) -> bool {
    Path::new(SELINUX).exists() || !matches!(root.xattr(LABEL), Ok(None))
}
