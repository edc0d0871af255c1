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

use super::around::{Around, Gap, Receiver, read_around};
use crate::context::{Context, describe};
use crate::filling::{Caller, Report};
use crate::path::ImagePath;
use papilio::{
    Error, Existing, File, FileKind, Inode, NewInode, NewKind, PathError, PopulateObserver, SetAttributes,
    SetTime, XattrSet,
};
use std::collections::HashMap;
use std::ops::Range;

/// The size in bytes of the pieces in which data is copied.
const PIECE: u64 = 4 << 20;

/// Whether files share their data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Share {
    /// Share where possible
    #[default]
    Auto,
    /// Share, or fail where that is impossible
    Always,
    /// Copy the data
    Never,
}

/// Options of a copy into a file system.
#[derive(Clone, Copy, Debug)]
pub struct ImageCopyOptions {
    /// Whether to keep owners, times, extended attributes and links.
    pub keep_attributes: bool,
    /// How to treat existing names.
    pub existing: Existing,
    /// Whether to leave directories of other subvolumes than the source's empty.
    pub one_subvolume: bool,
    /// Whether to share data.
    pub share: Share,
}

/// A copy into a file system.
pub struct ImageCopy<'a> {
    context: &'a Context,
    options: ImageCopyOptions,
    same_file_system: bool,
    caller: Caller,
    /// The copies of inodes with several links.
    links: HashMap<(u64, u64), Inode>,
}

/// A directory that is being copied.
struct Frame {
    from: Inode,
    from_path: ImagePath,
    to: Inode,
    to_path: ImagePath,
    names: Vec<Vec<u8>>,
    is_new: bool,
}

impl<'a> ImageCopy<'a> {
    /// Creates a copy. `same_file_system` says whether source and destination are in one.
    pub fn new(context: &'a Context, options: ImageCopyOptions, same_file_system: bool) -> Self {
        Self { context, options, same_file_system, caller: Caller::new(), links: HashMap::new() }
    }

    /// Copies `source` into `parent` as `name`.
    pub fn entry(
        &mut self,
        source_path: &ImagePath,
        source: &Inode,
        path: &ImagePath,
        parent: &Inode,
        name: &[u8],
        report: &mut Report<'_>,
    ) -> anyhow::Result<()> {
        let mut stack = Vec::new();
        let copied = self.one(source_path, source, path, parent, name, report);
        if let Some(frame) = self.report(path, copied)?.flatten() {
            stack.push(frame);
        }
        self.finish(stack, source.tree().0, report)
    }

    /// Copies the entries of `source` into `directory`.
    pub fn content(
        &mut self,
        source_path: &ImagePath,
        source: &Inode,
        path: &ImagePath,
        directory: &Inode,
        report: &mut Report<'_>,
    ) -> anyhow::Result<()> {
        let names = names(source).map_err(|error| self.context.at(source_path, &error))?;
        let frame = Frame {
            from: source.clone(),
            from_path: source_path.clone(),
            to: directory.clone(),
            to_path: path.clone(),
            names,
            is_new: false,
        };
        self.finish(vec![frame], source.tree().0, report)
    }

    /// Copies the entries of the directories on `stack`, and of those below.
    fn finish(&mut self, mut stack: Vec<Frame>, home: u64, report: &mut Report<'_>) -> anyhow::Result<()> {
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
                self.context.error(format_args!("{from_path}: {}", PathError::IntoItself));
                continue;
            }
            let parent = frame.to.clone();
            let copied = self.one(&from_path, &source, &path, &parent, &name, report);
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
        report: &mut Report<'_>,
    ) -> papilio::Result<Option<Frame>> {
        if self.context.verbosity > 0 {
            self.context.note(format_args!("{source_path} -> {path}"));
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
            (false, _) => self.caller.inode(kind, metadata.permissions()),
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
                return Ok(Some(Frame { from, from_path, to, to_path, names, is_new }));
            }
            FileKind::Regular => {
                let file = made.open()?;
                if !is_new && !file.is_empty() {
                    file.set_len(0)?;
                }
                self.data(source_path, &source.open()?, &file, report)?;
            }
            _ => {}
        }
        self.keep(source, &made, is_new)?;
        Ok(None)
    }

    fn data(&self, path: &ImagePath, from: &File, to: &File, report: &mut Report<'_>) -> papilio::Result<()> {
        let size = from.len();
        if size == 0 {
            return Ok(());
        }
        let share = self.options.share;
        if self.same_file_system && share != Share::Never {
            match to.clone_range(from, 0, 0, 0) {
                Ok(()) => {
                    report.bytes(size);
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
        let mut writer = Writer { to, path, context: self.context, report, spare: Vec::new() };
        read_around(from, how, &mut writer)?;
        if to.len() < size {
            to.set_len(size)?;
        }
        Ok(())
    }

    /// Copies the attributes if the options say so.
    fn keep(&self, source: &Inode, made: &Inode, is_new: bool) -> papilio::Result<()> {
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
    fn clear_name(
        &self,
        parent: &Inode,
        name: &[u8],
        kind: Option<FileKind>,
    ) -> papilio::Result<Option<Present>> {
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
    fn report<T>(&self, path: &ImagePath, result: papilio::Result<T>) -> anyhow::Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error @ (Error::NoSpace { .. } | Error::ReadOnlyFileSystem { .. })) => {
                Err(anyhow::Error::from(error).context(path.to_string()))
            }
            Err(error) => {
                self.context.error(describe(path, &error));
                Ok(None)
            }
        }
    }
}

/// Writes what is read of one file, and reports the rest.
struct Writer<'w, 'r> {
    to: &'w File,
    path: &'w ImagePath,
    context: &'w Context,
    report: &'w mut Report<'r>,
    spare: Vec<u8>,
}

impl Receiver for Writer<'_, '_> {
    type Stop = Error;

    fn buffer(&mut self, length: usize) -> Vec<u8> {
        let mut buffer = std::mem::take(&mut self.spare);
        buffer.resize(length, 0);
        buffer
    }

    fn data(&mut self, offset: u64, bytes: Vec<u8>) -> papilio::Result<()> {
        self.to.write_all_at(&bytes, offset)?;
        self.report.bytes(bytes.len() as u64);
        self.spare = bytes;
        Ok(())
    }

    fn gap(&mut self, gap: Gap) -> papilio::Result<()> {
        let Gap { range: Range { start, end }, reason, .. } = gap;
        self.context.error(format_args!("{}: bytes {start} to {end} are missing: {reason}", self.path));
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
fn names(directory: &Inode) -> papilio::Result<Vec<Vec<u8>>> {
    let mut names: Vec<Vec<u8>> =
        directory.read_dir()?.map(|entry| Ok(entry?.file_name().to_vec())).collect::<papilio::Result<_>>()?;
    names.reverse();
    Ok(names)
}
