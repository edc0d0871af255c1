//! Copies from a file system into another or the same one.
//!
//! Owns [`ImageCopy`].
//!
//! **Invariants**
//! - A directory is never copied into itself.
//! - If attributes are kept, the first link to an inode is copied and the others become links.
//! - Bytes that cannot be read do not end the copy: each such range is reported, and a hole in it.
//! - Within one file system, files share their data (reflinks) unless the options or the files'
//!   checksum settings forbid it.

use crate::export::problem::{ExportObserver, ExportProblem, Missing};
use crate::image_path::{ImagePath, describe};
use crate::import::Existing;
use crate::read_around::{Around, Gap, Receiver, read_around};
use papilio_engine::errors::{Error, PathError, Result as FsResult};
use papilio_engine::items::xattr_edit::XattrSet;
use papilio_engine::namespace::create::{NewInode, NewKind};
use papilio_engine::namespace::setattr::{SetAttributes, SetTime};
use papilio_format::items::inode::FileKind;
use papilio_fs::{File, Inode};
use std::collections::HashMap;
use std::ops::Range;

/// The size in bytes of the pieces in which data is copied.
const PIECE: u64 = 4 << 20;

/// Whether files share their data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Share {
    /// Share where possible.
    #[default]
    Auto,
    /// Share, or fail where that is impossible.
    Always,
    /// Copy the data.
    Never,
}

/// An error that ends a copy into a file system.
#[derive(Debug)]
pub struct CopyError {
    /// Where the copy stopped.
    pub path: ImagePath,
    /// The error.
    pub error: Box<Error>,
}

impl std::fmt::Display for CopyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&describe(&self.path, &self.error))
    }
}

impl std::error::Error for CopyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

/// Options of a copy into a file system.
#[derive(Clone, Copy, Debug)]
pub struct ImageCopyOptions {
    /// Whether to keep owners, times, extended attributes and links.
    pub keep_attributes: bool,
    /// User and group of new inodes if attributes are not kept.
    pub owner: (u32, u32),
    /// The permission bits that new inodes lack if attributes are not kept.
    pub umask: u32,
    /// How to treat existing names.
    pub existing: Existing,
    /// Whether to leave directories of other subvolumes than the source's empty.
    pub one_subvolume: bool,
    /// Whether to share data.
    pub share: Share,
}

/// A copy into a file system.
pub struct ImageCopy<'a> {
    observer: &'a dyn ExportObserver,
    options: ImageCopyOptions,
    same_file_system: bool,
    /// The copies of inodes with several links.
    links: HashMap<(u64, u64), Inode>,
}

/// A directory that is being copied.
struct CopiedDirectory {
    from: Inode,
    from_path: ImagePath,
    to: Inode,
    to_path: ImagePath,
    names: Vec<Vec<u8>>,
    is_new: bool,
}

impl<'a> ImageCopy<'a> {
    /// Creates a copy. `same_file_system` says whether source and destination are in one.
    pub fn new(observer: &'a dyn ExportObserver, options: ImageCopyOptions, same_file_system: bool) -> Self {
        Self { observer, options, same_file_system, links: HashMap::new() }
    }

    /// Copies `source` into `parent` as `name`.
    pub fn entry(
        &mut self,
        source_path: &ImagePath,
        source: &Inode,
        path: &ImagePath,
        parent: &Inode,
        name: &[u8],
    ) -> Result<(), CopyError> {
        let mut stack = Vec::new();
        let copied = self.one(source_path, source, path, parent, name);
        if let Some(frame) = self.report(path, copied)?.flatten() {
            stack.push(frame);
        }
        self.finish(stack, source.tree().0)
    }

    /// Copies the entries of `source` into `directory`.
    pub fn content(
        &mut self,
        source_path: &ImagePath,
        source: &Inode,
        path: &ImagePath,
        directory: &Inode,
    ) -> Result<(), CopyError> {
        let names =
            names(source).map_err(|error| CopyError { path: source_path.clone(), error: Box::new(error) })?;
        let frame = CopiedDirectory {
            from: source.clone(),
            from_path: source_path.clone(),
            to: directory.clone(),
            to_path: path.clone(),
            names,
            is_new: false,
        };
        self.finish(vec![frame], source.tree().0)
    }

    /// Copies the entries of the directories on `stack`, and of those below.
    fn finish(&mut self, mut stack: Vec<CopiedDirectory>, home: u64) -> Result<(), CopyError> {
        let top = stack.first().map(|frame| id(&frame.to));
        while let Some(frame) = stack.last_mut() {
            let Some(name) = frame.names.pop() else {
                let done = stack.pop().expect("the stack has a last frame");
                let kept = self.keep(&done.from, &done.to, done.is_new);
                self.report(&done.to_path, kept)?;
                continue;
            };
            let (from_path, path) = (frame.from_path.join(&name), frame.to_path.join(&name));
            let source = match frame.from.lookup(&name) {
                Ok(Some(source)) => source,
                // The copy itself has removed it since the names were read.
                Ok(None) => continue,
                Err(error) => {
                    self.report(&from_path, Err::<(), _>(error))?;
                    continue;
                }
            };
            if self.same_file_system && Some(id(&source)) == top {
                self.problem(from_path, Error::Path { path: Vec::new(), kind: PathError::IntoItself });
                continue;
            }
            let parent = frame.to.clone();
            let copied = self.one(&from_path, &source, &path, &parent, &name);
            if let Some(mut below) = self.report(&path, copied)?.flatten() {
                if self.options.one_subvolume && source.tree().0 != home {
                    below.names.clear();
                }
                stack.push(below);
            }
        }
        Ok(())
    }

    /// Copies one inode, without the entries of a directory, whose frame it returns.
    fn one(
        &mut self,
        source_path: &ImagePath,
        source: &Inode,
        path: &ImagePath,
        parent: &Inode,
        name: &[u8],
    ) -> FsResult<Option<CopiedDirectory>> {
        if self.observer.wants_names() {
            let told = self.observer.created(source_path, &path.to_string());
            told.map_err(|error| Error::Invalid(error.to_string()))?;
        }
        let metadata = source.metadata();
        let linked =
            self.options.keep_attributes && metadata.nlink() > 1 && source.file_type() != FileKind::Directory;
        if linked
            && let Some(target) = self.links.get(&id(source))
            && target.tree() == parent.tree()
        {
            if self.clear_name(parent, name, None)?.is_none() {
                parent.hard_link(target, name)?;
            }
            return Ok(None);
        }
        let target = if source.file_type() == FileKind::Symlink { source.read_link()? } else { Vec::new() };
        let (major, minor) = metadata.rdev();
        let kind = match source.file_type() {
            FileKind::Regular => NewKind::Regular,
            FileKind::Directory => NewKind::Directory,
            FileKind::Symlink => NewKind::Symlink(&target),
            FileKind::Fifo => NewKind::Fifo,
            FileKind::Socket => NewKind::Socket,
            FileKind::BlockDevice => NewKind::BlockDevice { major, minor },
            FileKind::CharacterDevice => NewKind::CharacterDevice { major, minor },
        };
        let new = match (self.options.keep_attributes, source.file_type()) {
            // Other users cannot enter the directory before it gets its own mode.
            (true, FileKind::Directory) => NewInode::new(kind, 0o700),
            (true, _) => NewInode::new(kind, metadata.permissions()).owner(metadata.uid(), metadata.gid()),
            (false, _) => {
                let (uid, gid) = self.options.owner;
                NewInode::new(kind, metadata.permissions()).owner(uid, gid).umask(self.options.umask)
            }
        };
        let (made, is_new) = match self.clear_name(parent, name, Some(source.file_type()))? {
            None => (parent.create(name, &new)?, true),
            Some(Present::Keep) => return Ok(None),
            Some(Present::Reuse(present)) if id(&present) == id(source) && self.same_file_system => {
                return Err(Error::Invalid("source and destination are the same file".to_owned()));
            }
            Some(Present::Reuse(present)) => (*present, false),
        };
        if linked {
            self.links.insert(id(source), made.clone());
        }
        match source.file_type() {
            FileKind::Directory => {
                let names = names(source)?;
                let (from, to) = (source.clone(), made);
                let (from_path, to_path) = (source_path.clone(), path.clone());
                return Ok(Some(CopiedDirectory { from, from_path, to, to_path, names, is_new }));
            }
            FileKind::Regular => {
                let file = made.open()?;
                if !is_new && !file.is_empty() {
                    file.set_len(0)?;
                }
                self.data(source_path, &source.open()?, &file)?;
            }
            _ => {}
        }
        self.keep(source, &made, is_new)?;
        Ok(None)
    }

    fn data(&self, path: &ImagePath, from: &File, to: &File) -> FsResult<()> {
        let size = from.len();
        if size == 0 {
            return Ok(());
        }
        let share = self.options.share;
        if self.same_file_system && share != Share::Never {
            match to.clone_range(from, 0, 0, 0) {
                Ok(()) => {
                    self.observer.bytes(size);
                    return Ok(());
                }
                // Only one of the files has checksums.
                Err(Error::Invalid(_)) if share == Share::Auto => {}
                Err(error) => return Err(error),
            }
        } else if share == Share::Always {
            return Err(path_error(b"reflink", PathError::CrossDevice));
        }
        // Pieces end at multiples of their size, so that no sector is written twice.
        let how = Around { piece: PIECE, unverified: false };
        let mut writer = Writer { to, path, observer: self.observer, spare: Vec::new() };
        read_around(from, how, &mut writer)?;
        if to.len() < size {
            to.set_len(size)?;
        }
        Ok(())
    }

    /// Copies the attributes if the options say so.
    fn keep(&self, source: &Inode, made: &Inode, is_new: bool) -> FsResult<()> {
        if !self.options.keep_attributes {
            return Ok(());
        }
        let metadata = source.metadata();
        for xattr in made.xattrs()? {
            // Inherited ACLs, and all attributes of a file that existed before.
            if !is_new || xattr.name.starts_with(b"system.posix_acl_") {
                made.remove_xattr(&xattr.name)?;
            }
        }
        made.set_attributes(&SetAttributes {
            mode: (source.file_type() != FileKind::Symlink).then(|| metadata.permissions()),
            uid: Some(metadata.uid()),
            gid: Some(metadata.gid()),
            atime: Some(SetTime::At(metadata.atime())),
            mtime: Some(SetTime::At(metadata.mtime())),
            ctime: None,
        })?;
        for xattr in source.xattrs()? {
            made.set_xattr(&xattr.name, &xattr.value, XattrSet::Any)?;
        }
        Ok(())
    }

    /// Prepares `name` for a new inode of `kind`, or for a link if that is `None`. Returns `None`
    /// if the name is free, possibly after the old entry was unlinked.
    fn clear_name(&self, parent: &Inode, name: &[u8], kind: Option<FileKind>) -> FsResult<Option<Present>> {
        let Some(present) = parent.lookup(name)? else { return Ok(None) };
        match (present.file_type(), kind) {
            (FileKind::Directory, Some(FileKind::Directory)) => Ok(Some(Present::Reuse(Box::new(present)))),
            _ if self.options.existing == Existing::Keep => Ok(Some(Present::Keep)),
            _ if self.options.existing == Existing::Refuse => Err(path_error(name, PathError::Exists)),
            (FileKind::Directory, _) => Err(path_error(name, PathError::IsADirectory)),
            (_, Some(FileKind::Directory)) => Err(path_error(name, PathError::NotADirectory)),
            (FileKind::Regular, Some(FileKind::Regular)) => Ok(Some(Present::Reuse(Box::new(present)))),
            _ => {
                parent.remove_file(name)?;
                Ok(None)
            }
        }
    }

    /// Reports the failure of one file, and returns one that ends the copy.
    fn report<T>(&self, path: &ImagePath, result: FsResult<T>) -> Result<Option<T>, CopyError> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error @ (Error::NoSpace { .. } | Error::ReadOnlyFileSystem { .. })) => {
                Err(CopyError { path: path.clone(), error: Box::new(error) })
            }
            Err(error) => {
                self.problem(path.clone(), error);
                Ok(None)
            }
        }
    }

    fn problem(&self, path: ImagePath, error: Error) {
        self.observer.problem(ExportProblem::Unreadable { path, error });
    }
}

/// Writes what is read of one file, and reports the rest.
struct Writer<'w> {
    to: &'w File,
    path: &'w ImagePath,
    observer: &'w dyn ExportObserver,
    spare: Vec<u8>,
}

impl Receiver for Writer<'_> {
    type Stop = Error;

    fn buffer(&mut self, length: usize) -> Vec<u8> {
        let mut buffer = std::mem::take(&mut self.spare);
        buffer.resize(length, 0);
        buffer
    }

    fn data(&mut self, offset: u64, bytes: Vec<u8>) -> FsResult<()> {
        self.to.write_all_at(&bytes, offset)?;
        self.observer.bytes(bytes.len() as u64);
        self.spare = bytes;
        Ok(())
    }

    fn gap(&mut self, gap: Gap) -> FsResult<()> {
        let Gap { range: Range { start, end }, reason, is_unverified } = gap;
        let (path, length) = (self.path.to_string(), end.saturating_sub(start));
        let missing = Missing { path, offset: start, length, reason, is_unverified };
        self.observer.problem(ExportProblem::Range(missing));
        Ok(())
    }
}

/// An inode that has the name of a copy.
enum Present {
    /// It stays, and the source is not copied.
    Keep,
    /// It becomes the copy.
    Reuse(Box<Inode>),
}

fn path_error(name: &[u8], kind: PathError) -> Error {
    Error::Path { path: name.to_vec(), kind }
}

fn id(inode: &Inode) -> (u64, u64) {
    (inode.tree().0, inode.number().0)
}

/// Returns the names in a directory in reverse order.
fn names(directory: &Inode) -> FsResult<Vec<Vec<u8>>> {
    let mut names: Vec<Vec<u8>> =
        directory.read_dir()?.map(|entry| Ok(entry?.file_name().to_vec())).collect::<FsResult<_>>()?;
    names.reverse();
    Ok(names)
}
