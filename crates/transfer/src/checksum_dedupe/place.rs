//! The file system in which extents are shared: an open image, or a mount of the kernel's Btrfs.
//!
//! Owns [`SharingPlace`], which leads from an extent to the files that use it, and shares ranges of
//! two files.
//!
//! A mount answers by ioctls, which need the rights of an administrator. It opens files by their
//! handles, since no path may lead to them.
//!
//! **Locks:** those of the public methods.

use crate::dedupe::{DedupeError, unsupported};
use crate::file_walk::WalkError;
use papilio_engine::data::FileExtent;
use papilio_engine::errors::{Error, PathError};
use papilio_engine::jobs::data_extents::data_extent_at;
use papilio_engine::jobs::extent_owners::{AddressUse, ExtentOwner, extent_owners};
use papilio_engine::namespace::create::{NewInode, NewKind};
use papilio_format::{InodeNumber, LogicalAddress, TreeId, objectid};
use papilio_fs::{File, FileSystem};
use papilio_ioctl::client::MountedPath;
use rustix::io::Errno;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Files that stay open.
const OPEN_FILES: usize = 16;
/// The memory for the kernel's answer in bytes: enough for most, and the most that it takes.
const USUAL_ANSWER: usize = 64 << 10;
const ANSWER: usize = 16 << 20;
/// Where a copy begins in its file: a small one at the start of a file would be inline data, which
/// is not shared. A multiple of all sector sizes.
pub(super) const COPY_OFFSET: u64 = 64 << 10;
/// Most bytes of one request.
const REQUEST: u64 = 16 << 20;

/// A file by its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct FilePlace {
    pub(super) tree: TreeId,
    pub(super) inode: InodeNumber,
}

/// An item of a file that refers to an extent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reference {
    pub(super) file: FilePlace,
    pub(super) extent: FileExtent,
    /// The size of the file.
    pub(super) size: u64,
}

/// An open file.
pub(super) enum SharedFile {
    Image(Box<File>),
    Mounted(MountedPath),
}

/// Where extents are shared.
pub(super) enum SharingPlace {
    Image(FileSystem),
    Mounted { root: MountedPath, path: PathBuf },
}

/// A place, and the files that are open.
pub(super) struct OpenPlace {
    place: SharingPlace,
    opened: Vec<(FilePlace, SharedFile)>,
}

type Outcome<T> = Result<T, DedupeError>;

fn library(error: Error) -> DedupeError {
    DedupeError::Library(Box::new(error))
}

impl OpenPlace {
    pub(super) fn new(place: SharingPlace) -> Self {
        Self { place, opened: Vec::new() }
    }

    fn mounted(path: &Path) -> impl FnOnce(io::Error) -> DedupeError {
        let path = path.to_owned();
        move |error| match Errno::from_io_error(&error) {
            Some(Errno::OPNOTSUPP | Errno::NOTTY) => unsupported(path),
            _ => WalkError::mounted(path)(error).into(),
        }
    }

    /// Makes all changes durable: only then the back references are complete.
    pub(super) fn sync(&self) -> Outcome<()> {
        match &self.place {
            SharingPlace::Image(fs) if fs.info.trees.transactions().is_none() => Ok(()),
            SharingPlace::Image(fs) => fs.sync().map_err(library),
            SharingPlace::Mounted { root, path } => root.sync().map_err(Self::mounted(path)),
        }
    }

    /// Returns whether the extent that begins at `start` and was allocated before is still there.
    pub(super) fn is_used(&mut self, start: u64, length: u64) -> Outcome<bool> {
        match &self.place {
            SharingPlace::Image(fs) => {
                let found = data_extent_at(&fs.info.trees, LogicalAddress(start)).map_err(library)?;
                Ok(found.is_some_and(|found| found.start.0 == start && found.length == length))
            }
            // Another extent may have taken its place. A subvolume that is being deleted counts.
            SharingPlace::Mounted { .. } => {
                for owner in self.owners(LogicalAddress(start))? {
                    if self.item(&owner)?.is_none_or(|extent| extent.stored == length) {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }

    /// Returns the items of files that refer to an extent. With a length, other extents that begin
    /// there do not count. Files that are being deleted are left out.
    pub(super) fn references(&mut self, start: u64, length: Option<u64>) -> Outcome<Vec<Reference>> {
        let mut references = Vec::new();
        for owner in self.owners(LogicalAddress(start))? {
            let file = FilePlace { tree: owner.tree, inode: owner.inode };
            let Some(extent) = self.item(&owner)? else { continue };
            let fits = length.is_none_or(|length| extent.stored == length);
            if extent.address.0 != start || !fits || extent.start.0 != owner.offset {
                continue;
            }
            if let Some(size) = self.size(file)? {
                references.push(Reference { file, extent, size });
            }
        }
        Ok(references)
    }

    fn owners(&self, start: LogicalAddress) -> Outcome<Vec<ExtentOwner>> {
        match &self.place {
            SharingPlace::Image(fs) => {
                Ok(match extent_owners(&fs.info.trees, start, true).map_err(library)? {
                    AddressUse::Data(owners) => owners,
                    AddressUse::Free | AddressUse::TreeBlock => Vec::new(),
                })
            }
            SharingPlace::Mounted { root, path } => {
                let mut answer = root.extent_owners(start, true, USUAL_ANSWER);
                if answer.as_ref().is_ok_and(|(_, missed)| *missed > 0) {
                    answer = root.extent_owners(start, true, ANSWER);
                }
                match answer {
                    Ok((owners, 0)) => Ok(owners),
                    Ok(_) => Err(Self::mounted(path)(io::Error::other("an extent has too many references"))),
                    // Nothing, or a tree block, is there by now.
                    Err(error)
                        if matches!(Errno::from_io_error(&error), Some(Errno::NOENT | Errno::INVAL)) =>
                    {
                        Ok(Vec::new())
                    }
                    Err(error) => Err(Self::mounted(path)(error)),
                }
            }
        }
    }

    fn item(&mut self, owner: &ExtentOwner) -> Outcome<Option<FileExtent>> {
        if let SharingPlace::Mounted { root, path } = &self.place {
            let found = root.extent_item(owner.tree, owner.inode, owner.offset);
            return found.map_err(Self::mounted(path));
        }
        let file = FilePlace { tree: owner.tree, inode: owner.inode };
        let Some(SharedFile::Image(file)) = self.open(file)? else { return Ok(None) };
        Ok(file.extents(owner.offset, 1).map_err(library)?.first().copied())
    }

    fn size(&mut self, file: FilePlace) -> Outcome<Option<u64>> {
        let metadata = match self.open(file)? {
            Some(SharedFile::Image(file)) => return file.size().map(Some).map_err(library),
            Some(SharedFile::Mounted(file)) => file.file().metadata(),
            None => return Ok(None),
        };
        metadata.map(|metadata| Some(metadata.len())).map_err(|error| self.host(error))
    }

    fn host(&self, error: io::Error) -> DedupeError {
        match &self.place {
            SharingPlace::Mounted { path, .. } => Self::mounted(path)(error),
            SharingPlace::Image(_) => DedupeError::Host { path: PathBuf::new(), error },
        }
    }

    /// Opens a file and keeps it open; `None` if it is gone.
    fn open(&mut self, file: FilePlace) -> Outcome<Option<&SharedFile>> {
        if let Some(at) = self.opened.iter().position(|(known, _)| *known == file) {
            let opened = self.opened.remove(at);
            self.opened.push(opened);
            return Ok(self.opened.last().map(|(_, opened)| opened));
        }
        let opened = match &self.place {
            SharingPlace::Image(fs) => {
                match fs.inode_at(file.tree, file.inode).and_then(|inode| inode.open()) {
                    Ok(open) => SharedFile::Image(Box::new(open)),
                    Err(Error::Path { kind: PathError::NotFound | PathError::NoSubvolume, .. }) => {
                        return Ok(None);
                    }
                    Err(error) => return Err(library(error)),
                }
            }
            SharingPlace::Mounted { root, path } => {
                let item = root.inode_item(file.tree, file.inode).map_err(Self::mounted(path))?;
                let Some(item) = item else { return Ok(None) };
                match root.open_inode(file.tree, file.inode, item.generation) {
                    Ok(open) => SharedFile::Mounted(MountedPath::from_file(open)),
                    // Deleted meanwhile, or in a subvolume that is.
                    Err(error)
                        if matches!(Errno::from_io_error(&error), Some(Errno::STALE | Errno::NOENT)) =>
                    {
                        return Ok(None);
                    }
                    Err(error) => return Err(Self::mounted(path)(error)),
                }
            }
        };
        if self.opened.len() >= OPEN_FILES {
            self.opened.remove(0);
        }
        self.opened.push((file, opened));
        Ok(self.opened.last().map(|(_, opened)| opened))
    }

    /// Forgets the files that are open.
    pub(super) fn close_files(&mut self) {
        self.opened.clear();
    }

    /// Shares `length` bytes of a file, or of an open copy, with the file `to`, if they are equal.
    /// Returns whether they are.
    pub(super) fn share(
        &mut self,
        from: Result<FilePlace, &SharedFile>,
        offset: u64,
        length: u64,
        to: FilePlace,
        target: u64,
    ) -> Outcome<bool> {
        let gone = || library(Error::path(b"dedupe", PathError::NotFound));
        if let Ok(from) = from {
            self.open(from)?.ok_or_else(gone)?;
        }
        self.open(to)?.ok_or_else(gone)?;
        let find = |file: FilePlace| {
            let found = self.opened.iter().find(|(known, _)| *known == file);
            found.map(|(_, opened)| opened).ok_or_else(gone)
        };
        let source = match from {
            Ok(from) => find(from)?,
            Err(copy) => copy,
        };
        let mut done = 0;
        while done < length {
            let part = REQUEST.min(length - done);
            let shared = match (source, find(to)?) {
                (SharedFile::Image(source), SharedFile::Image(file)) => {
                    file.dedupe_range(source, offset + done, part, target + done).map_err(library)?
                }
                (SharedFile::Mounted(source), SharedFile::Mounted(file)) => {
                    let shared = source.dedupe_range(offset + done, part, file, target + done);
                    shared.map_err(|error| self.host(error))?
                }
                _ => unreachable!("all files are in one place"),
            };
            match shared {
                Some(0) => return Err(self.host(io::Error::other("a range was not shared"))),
                Some(shared) => done += shared,
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Writes bytes of a file into a new one without a name, at [`COPY_OFFSET`].
    pub(super) fn copy(&mut self, file: FilePlace, offset: u64, length: u64) -> Outcome<SharedFile> {
        let mut bytes = vec![0; length as usize];
        match self.open(file)? {
            Some(SharedFile::Image(file)) => file.read_exact_at(&mut bytes, offset).map_err(library)?,
            Some(SharedFile::Mounted(file)) => {
                let read = file.file().read_exact_at(&mut bytes, offset);
                read.map_err(|error| self.host(error))?;
            }
            None => return Err(library(Error::path(b"dedupe", PathError::NotFound))),
        }
        match &self.place {
            SharingPlace::Image(fs) => {
                let new = NewInode::new(NewKind::Regular, 0o600);
                let root = fs.inode_at(objectid::FS_TREE, objectid::FIRST_INODE);
                let copy = root.and_then(|root| root.create_unnamed(&new)).map_err(library)?;
                copy.write_all_at(&bytes, COPY_OFFSET).map_err(library)?;
                Ok(SharedFile::Image(Box::new(copy)))
            }
            SharingPlace::Mounted { root, path } => {
                let write = || {
                    let folder =
                        if root.is_directory()? { path.as_path() } else { path.parent().unwrap_or(path) };
                    let copy = tempfile::tempfile_in(folder)?;
                    copy.write_all_at(&bytes, COPY_OFFSET)?;
                    Ok(MountedPath::from_file(copy))
                };
                write().map(SharedFile::Mounted).map_err(Self::mounted(path))
            }
        }
    }
}
