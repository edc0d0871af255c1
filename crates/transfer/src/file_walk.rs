//! A walk over the files below a root, in an image or in a mount, with their extents.
//!
//! Owns [`FileWalk`], [`WalkRoot`], [`FileVisitor`] and [`WalkError`].
//!
//! **Invariants**
//! - Each regular file is visited once, whatever number of names it has.
//! - The walk enters subvolumes, but no other file system. Symbolic links are not followed.
//! - A visitor hears of a file or directory that cannot be read, and the walk goes on.

use crate::host_calls::is_in_mount;
use crate::image_path::{ImagePath, describe};
use crate::text::{escaped, system_text};
use papilio_engine::data::FileExtent;
use papilio_engine::errors::{Error, Result};
use papilio_engine::jobs::shared_extents::SharedExtents;
use papilio_format::Uuid;
use papilio_format::items::inode::FileKind;
use papilio_fs::{AsPath, DirEntry, FileSystem, Inode};
use papilio_ioctl::client::MountedPath;
use papilio_ioctl::mount_table::MountEntry;
use std::collections::HashSet;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// An extent of a file, and whether it is shared.
pub type UsedExtent = (FileExtent, bool);

/// The extents that a visitor wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedExtents {
    /// All items of the file, without the question whether they are shared.
    Items,
    /// Merged or not, with the answer whether they are shared.
    Shared,
}

/// A file or directory at which a walk begins, or that it finds.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "a walk holds one for each level of directories")]
pub enum WalkRoot {
    /// An inode of an open file system, and the path that messages show.
    Image(ImagePath, Inode),
    /// A path in a mount of Papilio or of the kernel's Btrfs.
    Mounted(PathBuf),
}

/// A file or directory that a walk could not read.
#[derive(Debug)]
#[non_exhaustive]
pub enum WalkError {
    /// It is in an image.
    Image {
        /// Its path.
        path: Box<ImagePath>,
        /// The reason.
        error: Box<Error>,
    },
    /// It is in a mount.
    Mounted {
        /// Its path on the host.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

impl WalkError {
    /// Adds a path in a mount to an error.
    pub(crate) fn mounted(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        |error| Self::Mounted { path, error }
    }

    /// Adds a path in an image to an error.
    pub(crate) fn image(path: &ImagePath) -> impl FnOnce(Error) -> Self {
        let path = Box::new(path.clone());
        |error| Self::Image { path, error: Box::new(error) }
    }
}

impl fmt::Display for WalkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image { path, error } => f.write_str(&describe(path, error)),
            Self::Mounted { path, error } => {
                let path = escaped(path.as_os_str().as_bytes());
                write!(f, "{}: {}", String::from_utf8_lossy(&path), system_text(error))
            }
        }
    }
}

impl std::error::Error for WalkError {}

/// Receives what a walk finds. The root has depth 0.
pub trait FileVisitor {
    /// The errors that end the walk.
    type Error: From<WalkError>;

    /// The walk enters a directory.
    ///
    /// # Errors
    /// An error that ends the walk; so for all methods.
    fn enter(&mut self, _path: &[u8], _depth: usize) -> Result<(), Self::Error> {
        Ok(())
    }

    /// All entries of the directory were visited.
    ///
    /// # Errors
    /// As [`Self::enter`].
    fn leave(&mut self, _path: &[u8], _depth: usize) -> Result<(), Self::Error> {
        Ok(())
    }

    /// A regular file.
    ///
    /// # Errors
    /// As [`Self::enter`].
    fn file(&mut self, file: &WalkRoot, depth: usize, extents: &[UsedExtent]) -> Result<(), Self::Error>;

    /// A file or directory could not be read.
    ///
    /// # Errors
    /// As [`Self::enter`].
    fn failed(&mut self, error: WalkError) -> Result<(), Self::Error>;
}

/// The state of walks over one or more roots.
pub struct FileWalk {
    wanted: WantedExtents,
    /// The files that were visited: the image or nothing, the subvolume or device, the inode.
    visited: HashSet<(PathBuf, u64, u64)>,
    /// The image that was asked last, with what is known of its extents.
    shared: Option<(PathBuf, SharedExtents)>,
}

impl WalkRoot {
    /// Returns the root for a path in a file system. A symbolic link at its end is not followed.
    ///
    /// # Errors
    /// As [`FileSystem::inode_nofollow`].
    pub fn in_file_system(fs: &FileSystem, path: impl AsPath) -> Result<Self> {
        let inode = fs.inode_nofollow(path.as_path_bytes())?;
        Ok(Self::Image(ImagePath::unnamed(path.as_path_bytes()), inode))
    }

    /// Returns the UUID of the file system.
    ///
    /// # Errors
    /// The path cannot be opened, or is not in a Btrfs.
    pub fn file_system(&self) -> Result<Uuid, WalkError> {
        match self {
            Self::Image(_, inode) => Ok(inode.file_system().uuid()),
            Self::Mounted(path) => {
                let asked = MountedPath::open(path).and_then(|open| open.fs_info());
                Ok(Uuid::from_bytes(asked.map_err(WalkError::mounted(path))?.fsid))
            }
        }
    }

    /// Returns `IMAGE:/path`, or the path on the host.
    pub fn path(&self) -> Vec<u8> {
        match self {
            Self::Image(path, _) => path.to_bytes(),
            Self::Mounted(path) => path.as_os_str().as_bytes().to_vec(),
        }
    }
}

impl FileWalk {
    /// Prepares a walk.
    pub fn new(wanted: WantedExtents) -> Self {
        Self { wanted, visited: HashSet::new(), shared: None }
    }

    /// Visits the files below a root. In a mount, writes what is still in memory first.
    ///
    /// # Errors
    /// The root itself cannot be read; an error of the visitor.
    pub fn walk<V: FileVisitor>(&mut self, root: WalkRoot, visitor: &mut V) -> Result<(), V::Error> {
        let (start, mount) = self.start(root)?;
        let mut next = Some(start);
        let mut stack: Vec<EntriesLeft> = Vec::new();
        loop {
            if let Some(found) = next.take()
                && let Some(entries) = self.visit(found, stack.len(), visitor)?
            {
                stack.push(entries);
            }
            let depth = stack.len();
            let Some(entries) = stack.last_mut() else { return Ok(()) };
            match entries.next(mount) {
                Some(Ok(found)) => next = Some(found),
                Some(Err(error)) => visitor.failed(error)?,
                None => {
                    visitor.leave(&entries.path(), depth - 1)?;
                    stack.pop();
                }
            }
        }
    }

    /// Returns the root, and the id of its mount.
    fn start(&mut self, root: WalkRoot) -> Result<(FoundInode, u64), WalkError> {
        match &root {
            WalkRoot::Image(path, inode) => {
                let known = self.shared.as_ref().is_some_and(|(image, _)| *image == path.image);
                if self.wanted == WantedExtents::Shared && !known {
                    let shared = inode.file_system().shared_extents();
                    let shared = shared.map_err(WalkError::image(path))?;
                    self.shared = Some((path.image.clone(), shared));
                }
                Ok((FoundInode { place: root, metadata: None }, 0))
            }
            WalkRoot::Mounted(path) => {
                let ask = || {
                    let metadata = path.symlink_metadata()?;
                    // Data in memory has no extents yet, and references in memory do not count.
                    MountedPath::open(path)?.sync()?;
                    let mount = MountEntry::of(path)?.ok_or(io::ErrorKind::NotFound)?;
                    Ok((metadata, mount.id))
                };
                let (metadata, mount) = ask().map_err(WalkError::mounted(path))?;
                Ok((FoundInode { place: root, metadata: Some(metadata) }, mount))
            }
        }
    }

    /// Visits a file, or enters a directory and returns its entries.
    fn visit<V: FileVisitor>(
        &mut self,
        found: FoundInode,
        depth: usize,
        visitor: &mut V,
    ) -> Result<Option<EntriesLeft>, V::Error> {
        // A corrupt directory may be its own ancestor.
        if found.kind().is_none() || !self.visited.insert(found.identity()) {
            return Ok(None);
        }
        if found.kind() == Some(FileKind::Regular) {
            match self.extents(&found.place) {
                Ok(extents) => visitor.file(&found.place, depth, &extents)?,
                Err(error) => visitor.failed(error)?,
            }
            return Ok(None);
        }
        visitor.enter(&found.place.path(), depth)?;
        let (entries, failure) = EntriesLeft::read(found.place);
        failure.map_or(Ok(()), |error| visitor.failed(error))?;
        Ok(Some(entries))
    }

    fn extents(&mut self, place: &WalkRoot) -> Result<Vec<UsedExtent>, WalkError> {
        match place {
            WalkRoot::Image(path, inode) => self.image_extents(inode).map_err(WalkError::image(path)),
            WalkRoot::Mounted(path) => {
                let file = MountedPath::open(path);
                let extents = file.and_then(|file| match self.wanted {
                    WantedExtents::Items => file.extents(),
                    WantedExtents::Shared => file.mapped_extents(),
                });
                extents.map_err(WalkError::mounted(path))
            }
        }
    }

    fn image_extents(&mut self, inode: &Inode) -> Result<Vec<UsedExtent>> {
        let extents = inode.open()?.extents(0, usize::MAX)?;
        let of = |extent: FileExtent| {
            let shared = match &mut self.shared {
                Some((_, shared)) => shared.is_shared(inode.tree(), inode.number(), &extent)?,
                None => false,
            };
            Ok((extent, shared))
        };
        extents.into_iter().map(of).collect()
    }
}

/// A file or directory that the walk has reached.
struct FoundInode {
    place: WalkRoot,
    /// In a mount.
    metadata: Option<std::fs::Metadata>,
}

impl FoundInode {
    /// Returns the kind of a regular file or directory; `None` for others.
    fn kind(&self) -> Option<FileKind> {
        let kind = match (&self.place, &self.metadata) {
            (WalkRoot::Image(_, inode), _) => inode.file_type(),
            (_, Some(metadata)) if metadata.is_file() => FileKind::Regular,
            (_, Some(metadata)) if metadata.is_dir() => FileKind::Directory,
            _ => return None,
        };
        Some(kind).filter(|kind| matches!(kind, FileKind::Regular | FileKind::Directory))
    }

    fn identity(&self) -> (PathBuf, u64, u64) {
        match (&self.place, &self.metadata) {
            (WalkRoot::Image(path, inode), _) => (path.image.clone(), inode.tree().0, inode.number().0),
            (_, metadata) => {
                let (device, inode) =
                    metadata.as_ref().map_or((0, 0), |metadata| (metadata.dev(), metadata.ino()));
                (PathBuf::new(), device, inode)
            }
        }
    }
}

/// The entries of a directory that are left.
enum EntriesLeft {
    Image(ImagePath, std::vec::IntoIter<DirEntry>),
    Mounted(PathBuf, std::vec::IntoIter<std::fs::DirEntry>),
}

impl EntriesLeft {
    /// Reads a directory. After a failure it has the entries before it.
    fn read(directory: WalkRoot) -> (Self, Option<WalkError>) {
        match directory {
            WalkRoot::Image(path, inode) => {
                let mut entries = Vec::new();
                let mut read = || -> Result<()> {
                    inode.read_dir()?.try_for_each(|entry| entry.map(|entry| entries.push(entry)))
                };
                let failure = read().map_err(WalkError::image(&path)).err();
                (Self::Image(path, entries.into_iter()), failure)
            }
            WalkRoot::Mounted(path) => {
                let mut entries = Vec::new();
                let mut read = || -> io::Result<()> {
                    std::fs::read_dir(&path)?.try_for_each(|entry| entry.map(|entry| entries.push(entry)))
                };
                let failure = read().map_err(WalkError::mounted(&path)).err();
                (Self::Mounted(path, entries.into_iter()), failure)
            }
        }
    }

    fn path(&self) -> Vec<u8> {
        match self {
            Self::Image(path, _) => path.to_bytes(),
            Self::Mounted(path, _) => path.as_os_str().as_bytes().to_vec(),
        }
    }

    /// Returns the next entry in the mount with this id.
    fn next(&mut self, mount: u64) -> Option<Result<FoundInode, WalkError>> {
        match self {
            Self::Image(path, entries) => {
                let entry = entries.next()?;
                let child = path.join(entry.file_name());
                Some(match entry.inode() {
                    Ok(inode) => Ok(FoundInode { place: WalkRoot::Image(child, inode), metadata: None }),
                    Err(error) => Err(WalkError::Image { path: Box::new(child), error: Box::new(error) }),
                })
            }
            Self::Mounted(_, entries) => loop {
                let entry = entries.next()?;
                let path = entry.path();
                match entry.metadata().and_then(|found| Ok((is_in_mount(&path, mount)?, found))) {
                    Ok((true, found)) => {
                        return Some(Ok(FoundInode {
                            place: WalkRoot::Mounted(path),
                            metadata: Some(found),
                        }));
                    }
                    Ok((false, _)) => {}
                    Err(error) => return Some(Err(WalkError::Mounted { path, error })),
                }
            },
        }
    }
}
