//! Paths in mounts: operands that a running server is asked about, instead of an image.
//!
//! Owns [`Target`], how an operand is told to be one or the other, and how an error of a server reads. A
//! directory in a mount of Papilio's, or of the kernel's Btrfs, is a path in a mount; so is a file there, unless
//! it is itself an image. The kernel's Btrfs answers its own ioctls, so that most commands work there too.

use crate::errno_text;
use crate::output::escaped;
use crate::path::{ImagePath, Operand};
use crate::usage_error::UsageError;
use papilio_fuse::ioctl::client::MountedPath;
use papilio_fuse::mount_table::MountEntry;
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// What an operand names.
#[derive(Debug)]
pub enum Target {
    /// A path in an image that nobody has mounted.
    Image(ImagePath),
    /// A path in a mount.
    Mounted(Mounted),
}

/// A path in a mount.
#[derive(Clone, Debug)]
pub struct Mounted {
    /// The host's path.
    pub path: PathBuf,
    /// The mount that it lies in.
    pub mount: MountEntry,
}

impl Target {
    /// Takes an argument apart that names something that is there.
    ///
    /// # Errors
    /// A directory of the host that is in no mount of Btrfs.
    pub fn parse(argument: &OsStr) -> Result<Self, UsageError> {
        if let Operand::Host(path) = Operand::parse(argument)
            && let Some(mount) = btrfs_mount_of(&path)
            && (path.is_dir() || !is_image(&path))
        {
            return Ok(Self::Mounted(Mounted { path, mount }));
        }
        ImagePath::parse(argument).map(Self::Image)
    }

    /// Takes an argument apart that names something that is there or that is to be made.
    ///
    /// # Errors
    /// As [`Target::parse`].
    pub fn parse_new(argument: &OsStr) -> Result<Self, UsageError> {
        if let Operand::Host(path) = Operand::parse(argument)
            && path.symlink_metadata().is_err()
            && let Some(parent) = parent_of(&path)
            && let Some(mount) = btrfs_mount_of(&parent)
        {
            return Ok(Self::Mounted(Mounted { path, mount }));
        }
        Self::parse(argument)
    }
}

/// The directory that a path names something in.
fn parent_of(path: &Path) -> Option<PathBuf> {
    let parent = path.parent()?;
    Some(if parent.as_os_str().is_empty() { PathBuf::from(".") } else { parent.to_path_buf() })
}

fn btrfs_mount_of(path: &Path) -> Option<MountEntry> {
    MountEntry::of(path).ok()?.filter(|mount| mount.is_papilio() || mount.fstype == "btrfs")
}

/// Whether a file starts as a Btrfs does.
fn is_image(path: &Path) -> bool {
    let mut magic = [0; 8];
    // Only of regular files: a FIFO would wait.
    path.is_file()
        && File::open(path).and_then(|file| file.read_exact_at(&mut magic, 0x1_0040)).is_ok()
        && &magic == b"_BHRfS_M"
}

impl Mounted {
    /// Opens it.
    ///
    /// # Errors
    /// What opening it says, in a line.
    pub fn open(&self) -> anyhow::Result<MountedPath> {
        MountedPath::open(&self.path).map_err(|error| self.at(&error))
    }

    /// Opens the directory that it is or will be named in, and that name.
    ///
    /// # Errors
    /// As [`Mounted::open`]; a path without a name.
    pub fn open_parent(&self) -> anyhow::Result<(MountedPath, Vec<u8>)> {
        let mut path = self.path.clone();
        if path.file_name().is_none() {
            // As `.` and `..` have names in other directories.
            path = path.canonicalize().map_err(|error| self.at(&error))?;
        }
        let (Some(parent), Some(name)) = (parent_of(&path), path.file_name()) else {
            anyhow::bail!("{self}: it has no name in a directory");
        };
        let directory = MountedPath::open(&parent).map_err(|error| self.at(&error))?;
        Ok((directory, name.as_bytes().to_vec()))
    }

    /// `error` with the path that it is about.
    pub fn at(&self, error: &io::Error) -> anyhow::Error {
        let told = error.raw_os_error().map(rustix::io::Errno::from_raw_os_error);
        anyhow::Error::msg(match told {
            Some(rustix::io::Errno::NOTTY) if !self.mount.is_papilio() => {
                format!("{self}: mounted by the kernel's Btrfs, which does not tell that: use btrfs(8)")
            }
            Some(rustix::io::Errno::NOTCONN) => {
                format!("{self}: the mount's server is gone; end the mount with: papilio umount {self}")
            }
            Some(errno) => format!("{self}: {}", errno_text::text_of(errno)),
            None => format!("{self}: {error}"),
        })
    }
}

impl fmt::Display for Mounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&escaped(self.path.as_os_str().as_bytes())))
    }
}
