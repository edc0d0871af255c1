//! Operands that are paths in a mount instead of an image.
//!
//! Owns [`Target`], the rule that tells the two apart, and the messages for errors of a mount. A
//! directory in a mount of Papilio or of the kernel's Btrfs is a path in a mount. So is a file
//! there, unless it is an image itself. Commands talk to both kinds of mount through Btrfs's
//! ioctls.

use crate::context::{Context, describe};
use crate::errno_text;
use crate::output::escaped;
use crate::path::{ImagePath, Operand, parse_image_path};
use crate::usage_error::UsageError;
use papilio::format::InodeNumber;
use papilio::{Subvolume, WalkError, WalkRoot};
use papilio_ioctl::client::MountedPath;
use papilio_ioctl::mount_table::MountEntry;
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// An operand.
#[derive(Clone, Debug)]
pub enum Target {
    /// A path in an image that is not mounted.
    Image(ImagePath),
    /// A path in a mount.
    Mounted(Mounted),
}

/// A path in a mount.
#[derive(Clone, Debug)]
pub struct Mounted {
    /// The path on the host.
    pub path: PathBuf,
    /// The mount that contains it.
    pub mount: MountEntry,
}

impl Target {
    /// Parses an argument that names something that exists.
    ///
    /// # Errors
    /// The argument is a directory of the host that is not in a Btrfs mount.
    pub fn parse(argument: &OsStr) -> Result<Self, UsageError> {
        if let Operand::Host(path) = Operand::parse(argument)
            && let Some(mount) = btrfs_mount_of(&path)
            && (path.is_dir() || !is_image(&path))
        {
            return Ok(Self::Mounted(Mounted { path, mount }));
        }
        parse_image_path(argument).map(Self::Image)
    }

    /// Returns the file or directory as the root of a walk.
    ///
    /// # Errors
    /// The image or the path in it cannot be opened.
    pub fn walk_root(self, context: &Context) -> anyhow::Result<WalkRoot> {
        Ok(match self {
            Self::Image(path) => {
                let inode = context.inode(&path, false)?;
                WalkRoot::Image(path, inode)
            }
            Self::Mounted(mounted) => WalkRoot::Mounted(mounted.path),
        })
    }

    /// Parses an argument that names something that exists or will be created.
    ///
    /// # Errors
    /// Same as [`Target::parse`].
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

    /// Parses an argument that names something that will be created, with directories above it that
    /// need not exist.
    ///
    /// # Errors
    /// Same as [`Target::parse`].
    pub fn parse_with_parents(argument: &OsStr) -> Result<Self, UsageError> {
        if let Operand::Host(path) = Operand::parse(argument)
            && let Some(existing) = path.ancestors().skip(1).map(or_here).find(|above| above.exists())
            && existing.is_dir()
            && let Some(mount) = btrfs_mount_of(existing)
        {
            return Ok(Self::Mounted(Mounted { path, mount }));
        }
        Self::parse_new(argument)
    }
}

/// Returns `.` for an empty path.
fn or_here(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

/// Returns the directory part of a path, or `.` if it has none.
fn parent_of(path: &Path) -> Option<PathBuf> {
    let parent = path.parent()?;
    Some(if parent.as_os_str().is_empty() { PathBuf::from(".") } else { parent.to_path_buf() })
}

fn btrfs_mount_of(path: &Path) -> Option<MountEntry> {
    MountEntry::of(path).ok()?.filter(|mount| mount.is_papilio() || mount.fstype == "btrfs")
}

/// Returns the devices of a mount, after everything that was written to it is durable: the first
/// one, and the others.
///
/// # Errors
/// The mount cannot be synced, or has no device that is there.
pub fn device_paths(mounted: &Mounted) -> anyhow::Result<(PathBuf, Vec<PathBuf>)> {
    let mount = mounted.open()?;
    let paths = mount.sync().and_then(|()| mount.device_paths()).map_err(|error| mounted.at(&error))?;
    let mut paths = paths.into_iter().filter_map(|(_, path)| Some(PathBuf::from(OsStr::from_bytes(&path?))));
    let Some(first) = paths.next() else {
        anyhow::bail!("{}: no device is there", mounted.path.display());
    };
    Ok((first, paths.collect()))
}

/// Returns the names from the top level of a file system to the directory that is open: those of
/// its subvolume, and those inside it.
///
/// # Errors
/// The mount does not tell.
pub fn names_from_top(directory: &MountedPath, subvolumes: &[Subvolume]) -> io::Result<Vec<Vec<u8>>> {
    let id = directory.subvolume_id()?;
    let subvolume = subvolumes.iter().find(|one| one.id == id).and_then(|one| one.path.clone());
    let mut path = subvolume.unwrap_or_default();
    // FUSE gives the root of a mount a number of its own.
    if !directory.is_subvolume_root()? {
        let inode = InodeNumber(directory.file().metadata()?.ino());
        path.push(b'/');
        path.extend(directory.directory_path(id, inode)?);
    }
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    Ok(names.map(<[u8]>::to_vec).collect())
}

/// Returns whether a file has the magic number of Btrfs.
fn is_image(path: &Path) -> bool {
    let mut magic = [0; 8];
    // Opening a FIFO would block.
    path.is_file()
        && File::open(path).and_then(|file| file.read_exact_at(&mut magic, 0x1_0040)).is_ok()
        && &magic == b"_BHRfS_M"
}

/// Returns the message for an error of a walk over files.
pub fn explain_walk(error: WalkError) -> anyhow::Error {
    match error {
        WalkError::Image { path, error } => anyhow::Error::msg(describe(&path, &error)),
        WalkError::Mounted { path, error } => match MountEntry::of(&path) {
            Ok(Some(mount)) => Mounted { path, mount }.at(&error),
            _ => WalkError::Mounted { path, error }.into(),
        },
        other => other.into(),
    }
}

/// As [`explain_walk`], for an error of a walk or of its visitor.
pub fn explain_visit(error: anyhow::Error) -> anyhow::Error {
    error.downcast::<WalkError>().map_or_else(|error| error, explain_walk)
}

impl Mounted {
    /// Opens the path.
    ///
    /// # Errors
    /// The path cannot be opened.
    pub fn open(&self) -> anyhow::Result<MountedPath> {
        MountedPath::open(&self.path).map_err(|error| self.at(&error))
    }

    /// Opens the parent directory, and returns it with the last component.
    ///
    /// # Errors
    /// The parent cannot be opened, or the path is the root of the host.
    pub fn open_parent(&self) -> anyhow::Result<(MountedPath, Vec<u8>)> {
        let mut path = self.path.clone();
        if path.file_name().is_none() {
            // `.` and `..` have names in other directories.
            path = path.canonicalize().map_err(|error| self.at(&error))?;
        }
        let (Some(parent), Some(name)) = (parent_of(&path), path.file_name()) else {
            anyhow::bail!("{self}: the root directory has no name");
        };
        let directory = MountedPath::open(&parent).map_err(|error| self.at(&error))?;
        Ok((directory, name.as_bytes().to_vec()))
    }

    /// Adds the path to `error`.
    pub fn at(&self, error: &io::Error) -> anyhow::Error {
        let errno = error.raw_os_error().map(rustix::io::Errno::from_raw_os_error);
        anyhow::Error::msg(match errno {
            Some(rustix::io::Errno::NOTTY) if !self.mount.is_papilio() => {
                format!("{self}: not supported on a mount of the kernel's Btrfs; use btrfs(8)")
            }
            Some(rustix::io::Errno::NOTCONN) => {
                format!("{self}: the server of the mount has died; unmount it with: papilio umount {self}")
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
