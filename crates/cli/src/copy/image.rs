//! Copying from a file system into one: another, or the same, where data is shared.
//!
//! Owns [`ImageCopy`]. Invariants: a directory is never copied into itself; of several links to an inode
//! the first is copied and the others become links, where attributes are kept. Data is shared (a reflink)
//! where both places are in one file system and neither side forbids it.

use crate::context::{Context, describe};
use crate::filling::{Caller, Report};
use crate::path::ImagePath;
use papilio::{
    Error, Existing, File, FileKind, Inode, NewInode, NewKind, PathError, PopulateObserver, SetAttributes,
    SetTime, XattrSet,
};
use std::collections::HashMap;

/// Data is copied in pieces of so many bytes.
const PIECE: u64 = 4 << 20;

/// Whether data is shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Share {
    /// Where that can be
    #[default]
    Auto,
    /// In any case: what cannot be shared is a failure
    Always,
    /// Not at all
    Never,
}

/// How it is copied.
#[derive(Clone, Copy, Debug)]
pub struct ImageCopyOptions {
    /// Owners, times, extended attributes and links are kept.
    pub keep_attributes: bool,
    /// What happens to names that are there.
    pub existing: Existing,
    /// Subvolumes other than the source's own are left empty.
    pub one_subvolume: bool,
    /// Whether data is shared.
    pub share: Share,
}

/// A copy.
pub struct ImageCopy<'a> {
    context: &'a Context,
    options: ImageCopyOptions,
    same_file_system: bool,
    caller: Caller,
    /// Inodes with several names, and what they became.
    links: HashMap<(u64, u64), Inode>,
}

/// A directory on the way down.
struct Frame {
    from: Inode,
    from_path: ImagePath,
    to: Inode,
    to_path: ImagePath,
    names: Vec<Vec<u8>>,
    is_new: bool,
}

impl<'a> ImageCopy<'a> {
    /// Between places of one file system where `same_file_system`.
    pub fn new(context: &'a Context, options: ImageCopyOptions, same_file_system: bool) -> Self {
        Self { context, options, same_file_system, caller: Caller::new(), links: HashMap::new() }
    }

    /// Copies what `source` is as `name` into `parent`.
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
        if let Some(frame) = self.tell(path, copied)?.flatten() {
            stack.push(frame);
        }
        self.rest(stack, source.tree().0, report)
    }

    /// Copies what is in `source` into `directory`.
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
        self.rest(vec![frame], source.tree().0, report)
    }

    fn rest(&mut self, mut stack: Vec<Frame>, home: u64, report: &mut Report<'_>) -> anyhow::Result<()> {
        let top = stack.first().map(|frame| id(&frame.to));
        while let Some(frame) = stack.last_mut() {
            let Some(name) = frame.names.pop() else {
                let done = stack.pop().expect("it was just looked at");
                let kept = self.keep(&done.from, &done.to, done.is_new);
                self.tell(&done.to_path, kept)?;
                continue;
            };
            let (from_path, path) = (frame.from_path.join(&name), frame.to_path.join(&name));
            let source = match frame.from.lookup(&name) {
                Ok(Some(source)) => source,
                // Gone since the names were read, by our own doing.
                Ok(None) => continue,
                Err(error) => {
                    self.tell(&from_path, Err::<(), _>(error))?;
                    continue;
                }
            };
            if self.same_file_system && Some(id(&source)) == top {
                self.context.error(format_args!("{from_path}: {}", PathError::IntoItself));
                continue;
            }
            let parent = frame.to.clone();
            let copied = self.one(&from_path, &source, &path, &parent, &name, report);
            if let Some(mut below) = self.tell(&path, copied)?.flatten() {
                if self.options.one_subvolume && source.tree().0 != home {
                    below.names.clear();
                }
                stack.push(below);
            }
        }
        Ok(())
    }

    /// Copies one inode; returns the directory to go on with if it is one.
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
            self.options.keep_attributes && metadata.nlink() > 1 && source.kind() != FileKind::Directory;
        if linked
            && let Some(target) = self.links.get(&id(source))
            && target.tree() == parent.tree()
        {
            if self.make_room(parent, name, None)?.is_none() {
                parent.link(target, name)?;
            }
            return Ok(None);
        }
        let target = if source.kind() == FileKind::Symlink { source.read_link()? } else { Vec::new() };
        let (major, minor) = metadata.rdev();
        let kind = match source.kind() {
            FileKind::Regular => NewKind::Regular,
            FileKind::Directory => NewKind::Directory,
            FileKind::Symlink => NewKind::Symlink(&target),
            FileKind::Fifo => NewKind::Fifo,
            FileKind::Socket => NewKind::Socket,
            FileKind::BlockDevice => NewKind::BlockDevice { major, minor },
            FileKind::CharacterDevice => NewKind::CharacterDevice { major, minor },
        };
        let new = match (self.options.keep_attributes, source.kind()) {
            // Nobody else looks into it before it has its own mode.
            (true, FileKind::Directory) => NewInode::new(kind, 0o700),
            (true, _) => NewInode::new(kind, metadata.permissions()).owner(metadata.uid(), metadata.gid()),
            (false, _) => self.caller.inode(kind, metadata.permissions()),
        };
        let (made, is_new) = match self.make_room(parent, name, Some(source.kind()))? {
            None => (parent.create(name, &new)?, true),
            Some(Kept::Stays) => return Ok(None),
            Some(Kept::TakenOver(there)) if id(&there) == id(source) && self.same_file_system => {
                return Err(Error::Invalid("it is the source itself".to_owned()));
            }
            Some(Kept::TakenOver(there)) => (*there, false),
        };
        if linked {
            self.links.insert(id(source), made.clone());
        }
        match source.kind() {
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
                self.data(&source.open()?, &file, report)?;
            }
            _ => {}
        }
        self.keep(source, &made, is_new)?;
        Ok(None)
    }

    fn data(&self, from: &File, to: &File, report: &mut Report<'_>) -> papilio::Result<()> {
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
                // Only one of them has checksums.
                Err(Error::Invalid(_)) if share == Share::Auto => {}
                Err(error) => return Err(error),
            }
        } else if share == Share::Always {
            return Err(path_error(b"reflink", PathError::CrossDevice));
        }
        let mut buffer = vec![0; usize::try_from(size.min(PIECE)).unwrap_or(PIECE as usize)];
        let mut at = 0;
        while at < size {
            let Some(start) = from.seek_data(at)?.filter(|&start| start < size) else { break };
            let end = from.seek_hole(start)?.min(size);
            at = start;
            while at < end {
                // Pieces end at multiples of their size, so that no sector is written twice.
                let step = (end - at).min(PIECE - at % PIECE).min(buffer.len() as u64) as usize;
                let read = from.read_at(&mut buffer[..step], at)?;
                if read == 0 {
                    break;
                }
                to.write_at(&buffer[..read], at)?;
                report.bytes(read as u64);
                at += read as u64;
            }
            at = at.max(end);
        }
        if to.len() < size {
            to.set_len(size)?;
        }
        Ok(())
    }

    /// Keeps attributes, where that was asked for.
    fn keep(&self, source: &Inode, made: &Inode, is_new: bool) -> papilio::Result<()> {
        if !self.options.keep_attributes {
            return Ok(());
        }
        let metadata = source.metadata();
        for xattr in made.xattrs()? {
            // An access control list that was inherited, or what was there before.
            if !is_new || xattr.name.starts_with(b"system.posix_acl_") {
                made.remove_xattr(&xattr.name)?;
            }
        }
        made.set_attributes(&SetAttributes {
            mode: (source.kind() != FileKind::Symlink).then(|| metadata.permissions()),
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

    /// Deals with what is at a name where something of `kind` (or a link) shall be; `None`: nothing is.
    fn make_room(
        &self,
        parent: &Inode,
        name: &[u8],
        kind: Option<FileKind>,
    ) -> papilio::Result<Option<Kept>> {
        let Some(there) = parent.lookup(name)? else { return Ok(None) };
        match (there.kind(), kind) {
            (FileKind::Directory, Some(FileKind::Directory)) => Ok(Some(Kept::TakenOver(Box::new(there)))),
            _ if self.options.existing == Existing::Keep => Ok(Some(Kept::Stays)),
            _ if self.options.existing == Existing::Refuse => Err(path_error(name, PathError::Exists)),
            (FileKind::Directory, _) => Err(path_error(name, PathError::IsADirectory)),
            (_, Some(FileKind::Directory)) => Err(path_error(name, PathError::NotADirectory)),
            (FileKind::Regular, Some(FileKind::Regular)) => Ok(Some(Kept::TakenOver(Box::new(there)))),
            _ => {
                parent.unlink(name)?;
                Ok(None)
            }
        }
    }

    /// Reports what concerns one file; the rest ends the copy.
    fn tell<T>(&self, path: &ImagePath, result: papilio::Result<T>) -> anyhow::Result<Option<T>> {
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

/// What is at a name.
enum Kept {
    /// And stays.
    Stays,
    /// And becomes the copy.
    TakenOver(Box<Inode>),
}

fn path_error(name: &[u8], kind: PathError) -> Error {
    Error::Path { path: name.to_vec(), kind }
}

fn id(inode: &Inode) -> (u64, u64) {
    (inode.tree().0, inode.number().0)
}

/// The names in a directory, the first one last.
fn names(directory: &Inode) -> papilio::Result<Vec<Vec<u8>>> {
    let mut names: Vec<Vec<u8>> =
        directory.entries()?.map(|entry| Ok(entry?.name().to_vec())).collect::<papilio::Result<_>>()?;
    names.reverse();
    Ok(names)
}
