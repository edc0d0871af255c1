//! The options of a mount, as `-o` takes them.

use papilio::OpenOptions;
use std::fmt;
use std::time::Duration;

/// When reading a file updates its access time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Atime {
    /// Where it is not later than the last change, or a day old.
    #[default]
    Relatime,
    /// Never.
    Noatime,
    /// Always.
    Strict,
    /// As relatime, and never of directories.
    Nodiratime,
}

/// How a file system is opened and mounted.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// How it is opened; devices, subvolume, writing, compression and the rest are applied already.
    pub open: OpenOptions,
    /// Whether nothing may be changed.
    pub read_only: bool,
    /// When reading updates access times.
    pub noatime: Atime,
    /// Whether other users may use the mount.
    pub allow_other: bool,
    /// Whether the kernel checks permissions.
    pub default_permissions: bool,
    /// The name of what is mounted, where it is not the image's path.
    pub fsname: Option<String>,
    /// The most threads that serve requests.
    pub max_threads: Option<usize>,
    /// Whether the kernel gathers writes.
    pub writeback_cache: bool,
    /// How long the kernel believes attributes and names.
    pub attr_timeout: Duration,
    /// Whether owners may delete their subvolumes.
    pub user_subvol_rm_allowed: bool,
    /// Whether device files are devices.
    pub dev: bool,
    /// Whether set-user-id and set-group-id bits count.
    pub suid: bool,
    /// Whether programs can be run.
    pub exec: bool,
    /// Whether all writing is synchronous.
    pub sync: bool,
    /// Whether changes of directories are synchronous.
    pub dirsync: bool,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            open: OpenOptions::new().write(true),
            read_only: false,
            noatime: Atime::default(),
            allow_other: false,
            default_permissions: true,
            fsname: None,
            max_threads: None,
            writeback_cache: true,
            attr_timeout: Duration::from_secs(1),
            user_subvol_rm_allowed: false,
            dev: true,
            suid: true,
            exec: true,
            sync: false,
            dirsync: false,
        }
    }
}

/// An option that is not known, or has a senseless value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptionError(String);

impl fmt::Display for MountOptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for MountOptionError {}

impl MountOptions {
    /// Takes options apart.
    ///
    /// # Errors
    /// An option that is not known, or has a senseless value.
    pub fn parse(comma_separated: &str) -> Result<Self, MountOptionError> {
        match comma_separated {
            "" | "rw" => Ok(Self::default()),
            other => Err(MountOptionError(format!("unknown mount option: {other}"))),
        }
    }
}
