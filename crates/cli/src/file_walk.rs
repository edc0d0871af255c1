//! A walk over the files below an operand, in an image or in a mount, with their extents.
//!
//! Owns [`FileWalk`] and [`Visitor`].
//!
//! **Invariants**
//! - Each regular file is visited once, whatever number of names it has.
//! - The walk enters subvolumes, but no other file system. Symbolic links are not followed.
//! - A file or directory that cannot be read is reported, and the walk goes on.

use crate::context::{Context, describe};
use crate::host_calls::is_in_mount;
use crate::mounted::{Mounted, Target};
use crate::path::ImagePath;
use papilio::format::Uuid;
use papilio::{DirEntry, FileExtent, FileKind, Inode, SharedExtents};
use papilio_ioctl::client::MountedPath;
use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// An extent of a file, and whether it is shared.
pub type UsedExtent = (FileExtent, bool);

/// The extents that a visitor wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// All items of the file, without the question whether they are shared.
    Items,
    /// Merged or not, with the answer whether they are shared.
    Shared,
}

/// Receives what a walk finds.
pub trait Visitor {
    /// The walk enters a directory at this depth; the operand has depth 0.
    fn enter(&mut self, path: &[u8], depth: usize) -> anyhow::Result<()>;
    /// All entries of the directory were visited.
    fn leave(&mut self, path: &[u8], depth: usize) -> anyhow::Result<()>;
    /// A regular file.
    fn file(&mut self, path: &[u8], depth: usize, extents: &[UsedExtent]) -> anyhow::Result<()>;
}

/// The state of walks over one or more operands.
pub struct FileWalk<'a> {
    context: &'a Context,
    wanted: Wanted,
    /// The files that were visited: the image or nothing, the subvolume or device, the inode.
    visited: HashSet<(PathBuf, u64, u64)>,
    /// The image that was asked last, with what is known of its extents.
    shared: Option<(PathBuf, SharedExtents)>,
}

impl<'a> FileWalk<'a> {
    /// Prepares a walk.
    pub fn new(context: &'a Context, wanted: Wanted) -> Self {
        Self { context, wanted, visited: HashSet::new(), shared: None }
    }

    /// Returns the UUID of the file system of an operand.
    ///
    /// # Errors
    /// The file system cannot be opened or asked.
    pub fn file_system(&self, target: &Target) -> anyhow::Result<Uuid> {
        match target {
            Target::Image(path) => Ok(self.context.open(&path.image)?.uuid()),
            Target::Mounted(mounted) => {
                let info = mounted.open()?.fs_info().map_err(|error| mounted.at(&error))?;
                Ok(Uuid::from_bytes(info.fsid))
            }
        }
    }

    /// Visits the files below an operand. In a mount, writes what is still in memory first.
    ///
    /// # Errors
    /// The operand itself cannot be read; an error of the visitor.
    pub fn walk(&mut self, target: Target, visitor: &mut dyn Visitor) -> anyhow::Result<()> {
        let home = match &target {
            Target::Image(_) => 0,
            Target::Mounted(mounted) => mounted.mount.id,
        };
        let mut next = Some(self.start(target)?);
        let mut stack: Vec<Entries> = Vec::new();
        loop {
            if let Some(place) = next.take()
                && let Some(entries) = self.visit(place, stack.len(), visitor)?
            {
                stack.push(entries);
            }
            let depth = stack.len();
            let Some(entries) = stack.last_mut() else { return Ok(()) };
            match entries.next(self.context, home) {
                Some(place) => next = Some(place),
                None => {
                    visitor.leave(&entries.path(), depth - 1)?;
                    stack.pop();
                }
            }
        }
    }

    fn start(&mut self, target: Target) -> anyhow::Result<Place> {
        match target {
            Target::Image(path) => {
                let inode = self.context.inode(&path, false)?;
                let known = self.shared.as_ref().is_some_and(|(image, _)| *image == path.image);
                if self.wanted == Wanted::Shared && !known {
                    let fs = self.context.open(&path.image)?;
                    self.shared = Some((path.image.clone(), fs.shared_extents()?));
                }
                Ok(Place::Image(path, inode))
            }
            Target::Mounted(mounted) => {
                let metadata = mounted.path.symlink_metadata().map_err(|error| mounted.at(&error))?;
                // Data in memory has no extents yet, and references in memory do not count.
                mounted.open()?.sync().map_err(|error| mounted.at(&error))?;
                Ok(Place::Host(mounted, metadata))
            }
        }
    }

    /// Visits a file, or enters a directory and returns its entries.
    fn visit(
        &mut self,
        place: Place,
        depth: usize,
        visitor: &mut dyn Visitor,
    ) -> anyhow::Result<Option<Entries>> {
        // A corrupt directory may be its own ancestor.
        if place.kind() == Kind::Other || !self.visited.insert(place.identity()) {
            return Ok(None);
        }
        if place.kind() == Kind::File {
            match self.extents(&place) {
                Ok(extents) => visitor.file(&place.path(), depth, &extents)?,
                Err(error) => self.context.failure(&error),
            }
            return Ok(None);
        }
        visitor.enter(&place.path(), depth)?;
        Ok(Some(Entries::read(self.context, place)))
    }

    fn extents(&mut self, place: &Place) -> anyhow::Result<Vec<UsedExtent>> {
        match place {
            Place::Image(path, inode) => {
                self.image_extents(inode).map_err(|error| self.context.at(path, &error))
            }
            Place::Host(mounted, _) => {
                let read = || {
                    let file = MountedPath::open(&mounted.path)?;
                    match self.wanted {
                        Wanted::Items => file.extents(),
                        Wanted::Shared => file.mapped_extents(),
                    }
                };
                read().map_err(|error| mounted.at(&error))
            }
        }
    }

    fn image_extents(&mut self, inode: &Inode) -> papilio::Result<Vec<UsedExtent>> {
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

/// A file or directory.
enum Place {
    Image(ImagePath, Inode),
    Host(Mounted, std::fs::Metadata),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Directory,
    Other,
}

impl Place {
    fn kind(&self) -> Kind {
        match self {
            Self::Image(_, inode) => match inode.file_type() {
                FileKind::Regular => Kind::File,
                FileKind::Directory => Kind::Directory,
                _ => Kind::Other,
            },
            Self::Host(_, metadata) if metadata.is_file() => Kind::File,
            Self::Host(_, metadata) if metadata.is_dir() => Kind::Directory,
            Self::Host(..) => Kind::Other,
        }
    }

    fn identity(&self) -> (PathBuf, u64, u64) {
        match self {
            Self::Image(path, inode) => (path.image.clone(), inode.tree().0, inode.number().0),
            Self::Host(_, metadata) => (PathBuf::new(), metadata.dev(), metadata.ino()),
        }
    }

    fn path(&self) -> Vec<u8> {
        match self {
            Self::Image(path, _) => path.to_bytes(),
            Self::Host(mounted, _) => mounted.path.as_os_str().as_bytes().to_vec(),
        }
    }
}

/// The entries of a directory that are left.
enum Entries {
    Image(ImagePath, std::vec::IntoIter<DirEntry>),
    Host(Mounted, std::vec::IntoIter<std::fs::DirEntry>),
}

impl Entries {
    /// Reads a directory. Reports a failure, and keeps the entries before it.
    fn read(context: &Context, directory: Place) -> Self {
        match directory {
            Place::Image(path, inode) => {
                let mut entries = Vec::new();
                let mut read = || -> papilio::Result<()> {
                    inode.read_dir()?.try_for_each(|entry| entry.map(|entry| entries.push(entry)))
                };
                if let Err(error) = read() {
                    context.error(describe(&path, &error));
                }
                Self::Image(path, entries.into_iter())
            }
            Place::Host(mounted, _) => {
                let mut entries = Vec::new();
                let mut read = || -> std::io::Result<()> {
                    std::fs::read_dir(&mounted.path)?
                        .try_for_each(|entry| entry.map(|entry| entries.push(entry)))
                };
                if let Err(error) = read() {
                    context.failure(&mounted.at(&error));
                }
                Self::Host(mounted, entries.into_iter())
            }
        }
    }

    fn path(&self) -> Vec<u8> {
        match self {
            Self::Image(path, _) => path.to_bytes(),
            Self::Host(mounted, _) => mounted.path.as_os_str().as_bytes().to_vec(),
        }
    }

    /// Returns the next entry that can be read and is in the mount `home`.
    fn next(&mut self, context: &Context, home: u64) -> Option<Place> {
        match self {
            Self::Image(path, entries) => loop {
                let entry = entries.next()?;
                let child = path.join(entry.file_name());
                match entry.inode() {
                    Ok(inode) => return Some(Place::Image(child, inode)),
                    Err(error) => context.error(describe(&child, &error)),
                }
            },
            Self::Host(mounted, entries) => loop {
                let entry = entries.next()?;
                let child = Mounted { path: entry.path(), mount: mounted.mount.clone() };
                match entry.metadata().and_then(|found| Ok((is_in_mount(&child.path, home)?, found))) {
                    Ok((true, found)) => return Some(Place::Host(child, found)),
                    Ok((false, _)) => {}
                    Err(error) => context.failure(&child.at(&error)),
                }
            },
        }
    }
}
