//! The writer of a copy to files of the host.
//!
//! Owns [`HostSink`].
//!
//! **Invariants**
//! - Below the destination that the user named, every name is resolved relative to an open
//!   directory without following links. A link planted in the destination cannot redirect the copy.
//! - A directory has at least mode 0700 until it is complete. Then it gets its owner, attributes,
//!   mode and, last, times.
//! - An existing file that is not a directory is removed and created anew. The exception is a file
//!   that the user named as the destination: it is truncated and keeps its inode.
//! - A file that could not be copied completely has its full size, with zeros in unreadable places.
//!   It is reported with the number of bytes copied.
//! - A full or read-only destination ends the copy.

use super::event::{Attributes, Event, InodeId, Special};
use super::host_attributes::{Keeper, Node};
use super::problem::{ExportError, ExportObserver, ExportProblem};
use super::sink::Sink;
use crate::fakeroot;
use crate::host_calls;
use crate::image_path::ImagePath;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// The number of directories to keep open. The others are reopened when they are needed.
const OPEN_DIRECTORIES: usize = 128;

/// The destination of a source.
#[derive(Clone, Debug)]
pub enum Place {
    /// The source's entries go into this existing directory.
    Content(PathBuf),
    /// The source becomes an entry of an existing directory.
    Named {
        /// The directory.
        parent: PathBuf,
        /// The name of the entry.
        name: Vec<u8>,
        /// Whether an existing regular file is truncated and written instead of replaced.
        in_place: bool,
    },
    /// The source's bytes go to this pipe or device of the host.
    Stream(PathBuf),
}

impl Place {
    /// Returns the directory, or the file that takes the bytes.
    fn path(&self) -> &Path {
        match self {
            Self::Content(path) | Self::Stream(path) | Self::Named { parent: path, .. } => path,
        }
    }
}

/// Options of a copy to the host.
#[derive(Clone, Copy, Debug)]
pub struct HostOptions {
    /// Whether to keep attributes.
    pub archive: bool,
    /// Whether to leave existing files alone.
    pub no_clobber: bool,
}

/// A directory of the destination that is being filled.
struct FilledDirectory {
    /// `None` while it is closed because too many are open.
    directory: Option<Rc<OwnedFd>>,
    /// Device and inode number.
    identity: (u64, u64),
    name: Vec<u8>,
    /// `None` in the outermost frame, the directory that the user named.
    attributes: Option<Attributes>,
    created: bool,
    /// Whether new entries may inherit an ACL from this directory.
    has_default_acl: bool,
}

/// A file that is being written.
struct WrittenFile {
    file: File,
    stream: bool,
    name: Vec<u8>,
    attributes: Attributes,
    size: u64,
    /// The end of the bytes written so far.
    written: u64,
    id: Option<InodeId>,
    failed: bool,
}

/// The location of the first link to an inode.
struct FirstLink {
    base: Rc<OwnedFd>,
    directories: Vec<Vec<u8>>,
    name: Vec<u8>,
}

/// A sink that creates files of the host.
pub struct HostSink<'a> {
    observer: &'a dyn ExportObserver,
    options: HostOptions,
    sources: Vec<(ImagePath, Place)>,
    source: usize,
    keeper: Keeper<'a>,
    stack: Vec<FilledDirectory>,
    /// The number of open directories of the source that were not created here.
    skipped: usize,
    skip_source: bool,
    current: Option<WrittenFile>,
    links: HashMap<InodeId, FirstLink>,
}

impl<'a> HostSink<'a> {
    /// Creates a sink that copies each source to its place.
    ///
    /// # Errors
    /// Attributes are kept and the process runs under fakeroot, which would not see them.
    pub fn new(
        observer: &'a dyn ExportObserver,
        options: HostOptions,
        sources: Vec<(ImagePath, Place)>,
    ) -> Result<Self, ExportError> {
        if let (true, Some((_, place))) = (options.archive, sources.first()) {
            fakeroot::refuse_writing(place.path()).map_err(ExportError::Refused)?;
        }
        Ok(Self {
            observer,
            options,
            sources,
            source: 0,
            keeper: Keeper::new(observer),
            stack: Vec::new(),
            skipped: 0,
            skip_source: false,
            current: None,
            links: HashMap::new(),
        })
    }

    /// Reports attributes that were not kept. Call this after the copy.
    pub fn finish(self) {
        self.keeper.finish();
    }

    /// Returns the path of an entry of the innermost directory, for messages.
    fn path(&self, name: &[u8]) -> String {
        let base = match &self.sources[self.source].1 {
            Place::Content(base) | Place::Named { parent: base, .. } => base,
            Place::Stream(path) => return path.display().to_string(),
        };
        let mut path = base.clone();
        let directories = self.stack.iter().skip(1).map(|frame| &frame.name[..]);
        for part in directories.chain([name]).filter(|part| !part.is_empty()) {
            path.push(OsStr::from_bytes(part));
        }
        path.strip_prefix(".").unwrap_or(&path).display().to_string()
    }

    /// Reports the failure of one file, or returns a failure of the whole destination.
    fn fail(&self, path: &str, errno: Errno) -> Result<(), ExportError> {
        match errno {
            Errno::NOSPC | Errno::DQUOT | Errno::ROFS => {
                Err(ExportError::Destination { path: path.to_owned(), error: errno.into() })
            }
            errno => {
                let path = path.to_owned();
                self.observer.problem(ExportProblem::Host { path, error: errno.into() });
                Ok(())
            }
        }
    }

    /// Returns the name of a new entry: its own, or that of its place for the source's own inode.
    fn name(&self, name: Vec<u8>) -> Vec<u8> {
        match &self.sources[self.source].1 {
            Place::Named { name: place, .. } if name.is_empty() => place.clone(),
            _ => name,
        }
    }

    fn directory(&mut self) -> Result<Rc<OwnedFd>, Errno> {
        let last = self.stack.len().checked_sub(1).ok_or(Errno::NOENT)?;
        if let Some(directory) = &self.stack[last].directory {
            return Ok(Rc::clone(directory));
        }
        let names: Vec<&[u8]> = self.stack[1..].iter().map(|frame| &frame.name[..]).collect();
        let base = self.stack[0].directory.clone().ok_or(Errno::BADF)?;
        let directory = Rc::new(descend(&base, &names)?);
        if identity(&directory)? != self.stack[last].identity {
            // Another process has replaced the directory.
            return Err(Errno::STALE);
        }
        self.stack[last].directory = Some(Rc::clone(&directory));
        Ok(directory)
    }

    /// Runs `make` for a new entry. If the name exists, removes the old entry and retries, or
    /// returns `None` under `no_clobber`.
    fn make<T>(
        &mut self,
        name: &[u8],
        make: impl Fn(BorrowedFd<'_>) -> Result<T, Errno>,
    ) -> Result<Option<T>, Failure> {
        let directory = self.directory()?;
        match make(directory.as_fd()) {
            Ok(made) => return Ok(Some(made)),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        if self.options.no_clobber {
            return Ok(None);
        }
        let stat = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            return Err(Failure::DirectoryInTheWay);
        }
        rustix::fs::unlinkat(&directory, name, AtFlags::empty())?;
        Ok(Some(make(directory.as_fd())?))
    }

    fn announce(&self, name: &[u8], own_name: &[u8]) -> Result<(), ExportError> {
        if !self.observer.wants_names() {
            return Ok(());
        }
        let mut from = self.sources[self.source].0.clone();
        let top = self.stack.len().min(2);
        let below = self.stack[top..].iter().map(|frame| &frame.name[..]);
        for part in below.chain([own_name]).filter(|part| !part.is_empty()) {
            from = from.join(part);
        }
        self.observer.created(&from, &self.path(name)).map_err(ExportError::Stopped)
    }

    fn enter(&mut self, own_name: Vec<u8>, attributes: Attributes) -> Result<(), ExportError> {
        if self.skip_source || self.skipped > 0 {
            self.skipped += 1;
            return Ok(());
        }
        let name = self.name(own_name.clone());
        self.announce(&name, &own_name)?;
        match self.enter_named(name.clone(), attributes) {
            Ok(()) => Ok(()),
            Err(failure) => {
                self.skipped += 1;
                let path = self.path(&name);
                self.fail_with(&path, failure)
            }
        }
    }

    fn fail_with(&self, path: &str, failure: Failure) -> Result<(), ExportError> {
        match failure {
            Failure::Host(errno) => return self.fail(path, errno),
            Failure::DirectoryInTheWay => {
                self.observer.problem(ExportProblem::DirectoryInTheWay { path: path.to_owned() });
            }
            Failure::FileInTheWay => {
                self.observer.problem(ExportProblem::FileInTheWay { path: path.to_owned() });
            }
        }
        Ok(())
    }

    fn enter_named(&mut self, name: Vec<u8>, attributes: Attributes) -> Result<(), Failure> {
        let parent = self.directory()?;
        if name.is_empty() {
            let identity = identity(&parent)?;
            let has_default_acl = self.stack.last().is_some_and(|frame| frame.has_default_acl);
            let directory = Some(parent);
            let attributes = Some(attributes);
            let created = false;
            self.stack.push(FilledDirectory {
                directory,
                identity,
                name,
                attributes,
                created,
                has_default_acl,
            });
            return Ok(());
        }
        let mode = match self.options.archive {
            true => Mode::RWXU,
            false => host_calls::mode(attributes.permissions & 0o777) | Mode::RWXU,
        };
        let created = match rustix::fs::mkdirat(&parent, &name[..], mode) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(errno.into()),
        };
        let directory = match open_directory(parent.as_fd(), &name) {
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return Err(Failure::FileInTheWay);
            }
            opened => opened?,
        };
        let identity = identity(&directory)?;
        let inherits = self.stack.last().is_some_and(|frame| frame.has_default_acl);
        if created && inherits && self.options.archive {
            self.keeper.remove_acls(directory.as_fd());
        }
        let has_default_acl = match created {
            true => inherits && !self.options.archive,
            false => self.keeper.has_default_acl(directory.as_fd()),
        };
        let directory = Some(Rc::new(directory));
        let attributes = Some(attributes);
        self.stack.push(FilledDirectory { directory, identity, name, attributes, created, has_default_acl });
        // The outermost directory stays open, since the others are reopened from there.
        if let Some(far) = self.stack.len().checked_sub(OPEN_DIRECTORIES).filter(|&far| far > 0) {
            self.stack[far].directory = None;
        }
        Ok(())
    }

    fn leave(&mut self) -> Result<(), ExportError> {
        if self.skipped > 0 {
            self.skipped -= 1;
            return Ok(());
        }
        let directory = self.directory();
        let path = self.path(b"");
        let Some(frame) = self.stack.pop() else { return Ok(()) };
        let Some(attributes) = frame.attributes else { return Ok(()) };
        let directory = match directory {
            Ok(directory) => directory,
            Err(errno) => return self.fail(&path, errno),
        };
        if let Some(above) = self.stack.last_mut()
            && above.directory.is_none()
            && let Ok(opened) = open_directory(directory.as_fd(), b"..")
            && identity(&opened).is_ok_and(|identity| identity == above.identity)
        {
            // One step, where the way down from the outermost directory has many.
            above.directory = Some(Rc::new(opened));
        }
        if self.options.archive {
            if !frame.created {
                self.keeper.remove_acls(directory.as_fd());
            }
            let kept = self.keeper.keep(directory.as_fd(), &attributes, &path);
            return kept.or_else(|errno| self.fail(&path, errno));
        }
        let missing = Mode::RWXU.difference(host_calls::mode(attributes.permissions));
        if frame.created && !missing.is_empty() {
            // mkdir added these bits to the source's mode, so that the directory could be filled.
            let restored = rustix::fs::fstat(&directory)
                .and_then(|stat| rustix::fs::fchmod(&directory, Mode::from_raw_mode(stat.st_mode) - missing));
            return restored.or_else(|errno| self.fail(&path, errno));
        }
        Ok(())
    }

    fn begin_file(
        &mut self,
        own_name: Vec<u8>,
        attributes: Attributes,
        size: u64,
        id: Option<InodeId>,
    ) -> Result<(), ExportError> {
        let name = self.name(own_name.clone());
        self.announce(&name, &own_name)?;
        match self.open_file(&name, &attributes) {
            Ok(Some((file, stream))) => {
                let (written, failed) = (0, false);
                let current = WrittenFile { file, stream, name, attributes, size, written, id, failed };
                self.current = Some(current);
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(failure) => self.fail_with(&self.path(&name), failure),
        }
    }

    /// Gives the file that was begun the data of another one, shared where the host can.
    fn share(&mut self, twin: &File) -> Result<(), ExportError> {
        let Some(current) = self.current.as_mut().filter(|current| !current.failed) else {
            return Ok(());
        };
        match host_calls::share_data(twin, &current.file) {
            Ok(()) => {
                current.written = current.size;
                self.observer.bytes(current.size);
                Ok(())
            }
            Err(error) => {
                current.failed = true;
                match self.current.as_ref() {
                    Some(current) => self.write_failed(current, &error),
                    None => Ok(()),
                }
            }
        }
    }

    fn open_file(&mut self, name: &[u8], attributes: &Attributes) -> Result<Option<(File, bool)>, Failure> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
        let in_place = match &self.sources[self.source].1 {
            Place::Stream(path) => {
                let file = rustix::fs::open(path, flags, Mode::empty())?;
                return Ok(Some((file.into(), true)));
            }
            Place::Named { in_place, .. } => *in_place && self.stack.len() == 1,
            Place::Content(_) => false,
        };
        if in_place && !self.options.no_clobber {
            let directory = self.directory()?;
            let flags = flags | OFlags::NOFOLLOW | OFlags::TRUNC | OFlags::NONBLOCK;
            let file = rustix::fs::openat(&directory, name, flags, Mode::empty())?;
            if self.options.archive {
                self.keeper.remove_acls(file.as_fd());
            }
            return Ok(Some((file.into(), false)));
        }
        let mode = match self.options.archive {
            true => Mode::RUSR | Mode::WUSR,
            false => host_calls::mode(attributes.permissions & 0o777),
        };
        let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let file = self.make(name, |at| rustix::fs::openat(at, name, flags, mode))?;
        if let Some(file) = &file
            && self.options.archive
            && self.stack.last().is_some_and(|frame| frame.has_default_acl)
        {
            self.keeper.remove_acls(file.as_fd());
        }
        Ok(file.map(|file| (file.into(), false)))
    }

    /// Reports that the file is incomplete.
    fn incomplete(&self, current: &WrittenFile, copied: u64, error: Option<std::io::Error>) {
        let (path, size) = (self.path(&current.name), current.size);
        self.observer.problem(ExportProblem::Incomplete { path, copied, size, error });
    }

    fn end_file(&mut self, missing: u64) -> Result<(), ExportError> {
        let Some(mut current) = self.current.take() else { return Ok(()) };
        if missing > 0 && !current.failed {
            let copied = current.size.saturating_sub(missing);
            self.incomplete(&current, copied, None);
        }
        if !current.failed && current.written < current.size {
            let extended = match current.stream {
                true => write_zeros(&mut current.file, current.size - current.written),
                false => current.file.set_len(current.size),
            };
            if let Err(error) = extended {
                return self.write_failed(&current, &error);
            }
        }
        if current.stream {
            return Ok(());
        }
        if self.options.archive {
            let path = self.path(&current.name);
            let kept = self.keeper.keep(current.file.as_fd(), &current.attributes, &path);
            kept.or_else(|errno| self.fail(&path, errno))?;
        }
        self.remember(current.id, &current.name);
        Ok(())
    }

    fn write_failed(&self, current: &WrittenFile, error: &std::io::Error) -> Result<(), ExportError> {
        let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
        self.incomplete(current, current.written, Some(errno.into()));
        match errno {
            Errno::NOSPC | Errno::DQUOT | Errno::ROFS => Err(ExportError::Full),
            _ => Ok(()),
        }
    }

    /// Records the location of an inode for later links to it.
    fn remember(&mut self, id: Option<InodeId>, name: &[u8]) {
        let (Some(id), Some(outermost)) = (id, self.stack.first()) else { return };
        let Some(base) = outermost.directory.clone() else { return };
        let directories = self.stack[1..].iter().map(|frame| frame.name.clone()).collect();
        self.links.insert(id, FirstLink { base, directories, name: name.to_vec() });
    }

    fn link(&mut self, own_name: Vec<u8>, id: InodeId) -> Result<(), ExportError> {
        let name = self.name(own_name.clone());
        self.announce(&name, &own_name)?;
        let Some(first) = self.links.get(&id) else {
            self.observer.problem(ExportProblem::NotLinked { path: self.path(&name) });
            return Ok(());
        };
        let names: Vec<&[u8]> = first.directories.iter().map(|name| &name[..]).collect();
        let found = descend(&first.base, &names);
        let first_name = first.name.clone();
        let linked = found.map_err(Failure::from).and_then(|from| {
            self.make(&name, |at| rustix::fs::linkat(&from, &first_name[..], at, &name[..], AtFlags::empty()))
        });
        linked.map(drop).or_else(|failure| self.fail_with(&self.path(&name), failure))
    }

    /// Creates a symbolic link or special file with `make`, and sets its attributes.
    fn node(
        &mut self,
        own_name: Vec<u8>,
        attributes: &Attributes,
        id: Option<InodeId>,
        kind: Node,
        make: impl Fn(BorrowedFd<'_>, &[u8]) -> Result<(), Errno>,
    ) -> Result<(), ExportError> {
        let name = self.name(own_name.clone());
        self.announce(&name, &own_name)?;
        if matches!(self.sources[self.source].1, Place::Stream(_)) {
            self.observer.problem(ExportProblem::NotRegular { path: self.path(&name) });
            return Ok(());
        }
        let made = self.make(&name, |at| make(at, &name)).and_then(|made| {
            let directory = self.directory()?;
            if made.is_some() && self.options.archive {
                let path = self.path(&name);
                self.keeper.keep_of_node((directory.as_fd(), &name), attributes, kind, &path)?;
            }
            Ok(made)
        });
        match made {
            Ok(Some(())) => self.remember(id, &name),
            Ok(None) => {}
            Err(failure) => return self.fail_with(&self.path(&name), failure),
        }
        Ok(())
    }
}

impl Sink for HostSink<'_> {
    fn begin(&mut self, source: usize) -> Result<(), ExportError> {
        self.source = source;
        self.stack.clear();
        self.skipped = 0;
        self.skip_source = false;
        let base = match &self.sources[source].1 {
            Place::Content(base) | Place::Named { parent: base, .. } => base.clone(),
            Place::Stream(_) => return Ok(()),
        };
        // Links are followed in the path that the user gave.
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(&base, flags, Mode::empty());
        match opened.and_then(|directory| Ok((identity(&directory)?, directory))) {
            Ok((identity, directory)) => {
                let has_default_acl = self.keeper.has_default_acl(directory.as_fd());
                let directory = Some(Rc::new(directory));
                let (name, attributes, created) = (Vec::new(), None, false);
                let frame =
                    FilledDirectory { directory, identity, name, attributes, created, has_default_acl };
                self.stack.push(frame);
                Ok(())
            }
            Err(errno) => {
                self.skip_source = true;
                self.fail(&base.display().to_string(), errno)
            }
        }
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ExportError> {
        let Some(current) = self.current.as_mut().filter(|current| !current.failed) else {
            return Ok(());
        };
        let written = match current.stream {
            false => current.file.write_all_at(bytes, offset),
            true => write_zeros(&mut current.file, offset.saturating_sub(current.written))
                .and_then(|()| current.file.write_all(bytes)),
        };
        match written {
            Ok(()) => {
                current.written = offset + bytes.len() as u64;
                Ok(())
            }
            Err(error) => {
                current.failed = true;
                match self.current.as_ref() {
                    Some(current) => self.write_failed(current, &error),
                    None => Ok(()),
                }
            }
        }
    }

    fn take(&mut self, event: Event) -> Result<(), ExportError> {
        match event {
            Event::EnterDirectory { name, attributes } => return self.enter(name, attributes),
            Event::LeaveDirectory => return self.leave(),
            Event::EndFile { missing } => return self.end_file(missing),
            _ if self.skip_source || self.skipped > 0 => return Ok(()),
            _ => {}
        }
        match event {
            Event::File { name, attributes, size, id, twin, .. } => {
                self.begin_file(name, attributes, size, id)?;
                twin.map_or(Ok(()), |twin| self.share(&twin))
            }
            Event::Link { name, id, .. } => self.link(name, id),
            Event::Symlink { name, attributes, target, id } => {
                self.node(name, &attributes, id, Node::Symlink, |at, name| {
                    rustix::fs::symlinkat(&target[..], at, name)
                })
            }
            Event::Special { name, attributes, special, id } => {
                let mode = match self.options.archive {
                    true => Mode::RUSR | Mode::WUSR,
                    false => host_calls::mode(attributes.permissions & 0o777),
                };
                let (kind, device) = node_kind(special);
                let inherits_acl = self.stack.last().is_some_and(|frame| frame.has_default_acl);
                self.node(name, &attributes, id, Node::Special { inherits_acl }, |at, name| {
                    host_calls::make_node(at, name, kind, mode, device)
                })
            }
            _ => Ok(()),
        }
    }
}

/// The reason why one file was not created.
enum Failure {
    Host(Errno),
    DirectoryInTheWay,
    FileInTheWay,
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Host(errno)
    }
}

fn node_kind(special: Special) -> (FileType, (u32, u32)) {
    match special {
        Special::Fifo => (FileType::Fifo, (0, 0)),
        Special::Socket => (FileType::Socket, (0, 0)),
        Special::Block { major, minor } => (FileType::BlockDevice, (major, minor)),
        Special::Character { major, minor } => (FileType::CharacterDevice, (major, minor)),
    }
}

// The numbers have other types on other hosts.
#[allow(clippy::unnecessary_cast)]
fn identity(directory: impl AsFd) -> Result<(u64, u64), Errno> {
    rustix::fs::fstat(directory).map(|stat| (stat.st_dev as u64, stat.st_ino as u64))
}

fn open_directory(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

/// Opens the directory at the path `names` below `base`, without following links.
fn descend(base: &OwnedFd, names: &[&[u8]]) -> Result<OwnedFd, Errno> {
    let mut directory = rustix::io::fcntl_dupfd_cloexec(base, 0)?;
    for name in names.iter().filter(|name| !name.is_empty()) {
        directory = open_directory(directory.as_fd(), name)?;
    }
    Ok(directory)
}

fn write_zeros(file: &mut File, mut length: u64) -> std::io::Result<()> {
    let zeros = vec![0; usize::try_from(length).map_or(1 << 16, |length| length.min(1 << 16))];
    while length > 0 {
        let part = usize::try_from(length).map_or(zeros.len(), |left| left.min(zeros.len()));
        file.write_all(&zeros[..part])?;
        length -= part as u64;
    }
    Ok(())
}

/// Returns the type of the file at `path` on the host, following links; `None` if there is none.
pub fn host_kind(path: &Path) -> Option<std::fs::FileType> {
    std::fs::metadata(path).ok().map(|metadata| metadata.file_type())
}
