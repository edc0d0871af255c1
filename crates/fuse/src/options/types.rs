//! The parsed options of a mount, and the error about an option.

use crate::ownership::Ownership;
use papilio::format::TreeId;
use papilio::{OpenOptions, SubvolumeChoice};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// When a read updates a file's access time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Atime {
    /// If it is not later than the last change, or a day old.
    #[default]
    Relatime,
    /// Never.
    Noatime,
    /// Always.
    Strict,
    /// As relatime for files, never for directories.
    Nodiratime,
}

/// How the kernel delivers requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Through reads and writes of `/dev/fuse`.
    #[default]
    Classic,
    /// Over io_uring; the kernel must support it and root must have enabled it.
    Ring,
    /// Over io_uring if the kernel offers it, otherwise through `/dev/fuse`.
    Auto,
}

/// The side that opens regular files of a writable mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opens {
    /// The kernel asks the server at each open, and tells it of each close.
    Server,
    /// The kernel opens and closes files without the server.
    Kernel,
}

/// The options with which a file system is opened and mounted.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Options for opening: devices, subvolume, compression and the like.
    pub open: OpenOptions,
    /// The paths of further devices, which [`MountOptions::open`] has too.
    pub devices: Vec<PathBuf>,
    /// The mount is read-only.
    pub read_only: bool,
    /// The option because of which the mount can only be read-only.
    pub needs_read_only: Option<&'static str>,
    /// When reads update access times.
    pub noatime: Atime,
    /// Other users may use the mount.
    pub allow_other: bool,
    /// Root may use the mount, and no other user but its owner.
    pub allow_root: bool,
    /// The owners and permissions that the mount shows.
    pub ownership: Ownership,
    /// The kernel checks permissions.
    pub default_permissions: bool,
    /// The source in the table of mounts, if it is not the image's path.
    pub fsname: Option<String>,
    /// Maximum number of threads that serve requests.
    pub max_threads: Option<usize>,
    /// How the kernel delivers requests.
    pub transport: Transport,
    /// The side that opens regular files. `None`: the server, and the kernel on a read-only mount.
    pub opens: Option<Opens>,
    /// Whether the kernel gathers writes in its cache. `None`: if the mount is writable, and the
    /// file system got no page cache, which it has where little room is left.
    pub writeback_cache: Option<bool>,
    /// The mount shows what the writer of a device in a store has flushed, at most so much later
    /// (`follow`). `None` shows the state at the time of mounting.
    pub follow: Option<Duration>,
    /// How long the kernel may cache attributes and names. Long, because only this server changes
    /// them.
    pub attr_timeout: Duration,
    /// Owners may delete their subvolumes.
    pub user_subvol_rm_allowed: bool,
    /// A paused balance stays paused (`skip_balance`).
    pub skip_balance: bool,
    /// Device files give access to devices.
    pub dev: bool,
    /// Set-user-id and set-group-id bits take effect.
    pub suid: bool,
    /// Programs may be executed.
    pub exec: bool,
    /// All writes are synchronous.
    pub sync: bool,
    /// Changes to directories are synchronous.
    pub dirsync: bool,
    /// The subvolume to show, which [`MountOptions::open`] has too.
    pub subvolume: SubvolumeChoice,
    /// Id of the subvolume that the given path must lead to, if both were given.
    pub expected_subvolume: Option<TreeId>,
}

/// An unknown option or an invalid value; the message is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptionError {
    pub(super) message: String,
    pub(super) unknown: bool,
}

impl MountOptions {
    /// Returns whether the kernel gathers writes in its cache.
    pub(crate) fn gathers_writes(&self) -> bool {
        self.writeback_cache.unwrap_or(!self.read_only)
    }
}

impl MountOptionError {
    pub(super) fn new(message: String) -> Self {
        Self { message, unknown: false }
    }

    /// Returns whether the option is unknown.
    pub fn is_unknown(&self) -> bool {
        self.unknown
    }
}

impl fmt::Display for MountOptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for MountOptionError {}
