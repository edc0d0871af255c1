//! The reading half of filling from a host directory: a walk that reads ahead of the writer.
//!
//! Owns [`read`] and [`walk`].
//!
//! **Invariants**
//! - Symbolic links are not followed, except the source itself on request.
//! - A directory stays open while entries of it are visited, and one that was closed in between is
//!   recognized by its inode number. So moving it cannot redirect the walk.
//! - Entries come in the order of their names.
//! - Access times of the host do not change, if the host permits it (`O_NOATIME`).

use super::event::{Batch, ImportEvent, ImportedNode, LinkId, MemberAttributes};
use super::host_calls::{NO_XATTR, NOATIME, Stat, stat_at, xattr_list, xattr_value};
use crate::batches::{Batches, HungUp};
use papilio_engine::errors::{Error, Result};
use papilio_engine::items::xattr::Xattr;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

/// The number of directories to keep open. Those above are opened again by `..` on the way back.
const OPEN_DIRECTORIES: usize = 128;
/// Bytes to read at once from a large file.
const PIECE: usize = 4 << 20;
/// The most bytes to clone at once.
const CLONED: u64 = 32 << 20;
/// Limit in bytes of a list of attribute names and of an attribute value (`XATTR_LIST_MAX`,
/// `XATTR_SIZE_MAX`).
const XATTR_MAX: usize = 64 << 10;

/// Options of reading the host.
#[derive(Clone, Copy)]
pub(super) struct HostTreeOptions<'a> {
    /// Whether to read extended attributes.
    pub(super) xattrs: bool,
    /// Whether to follow the source if it is a symbolic link itself.
    pub(super) follow: bool,
    /// Whether to enter directories.
    pub(super) recursive: bool,
    /// Device and inode numbers of files to leave out.
    pub(super) excluded: &'a [(u64, u64)],
    /// The sector size in bytes if files are to share their blocks with the target.
    pub(super) reflink: Option<u64>,
}

struct HostReader<'a> {
    options: HostTreeOptions<'a>,
    batches: Batches<'a, ImportEvent>,
    /// Inodes with several names sent so far.
    sent: HashSet<LinkId>,
    list: Vec<u8>,
    value: Vec<u8>,
}

/// A directory of the walk.
struct WalkedDirectory {
    /// `None` while it is closed because too many are open.
    directory: Option<OwnedFd>,
    /// Device and inode number, by which it is recognized when it is opened again.
    id: LinkId,
    path: PathBuf,
    /// The remaining names, the next one last.
    names: Vec<CString>,
}

/// Walks and reads `from`, until the end or until the receiver is dropped. `from` gets the name
/// `name`; with `None` it must be a directory, and its entries fill the target.
pub(super) fn read(
    from: &Path,
    name: Option<&[u8]>,
    options: HostTreeOptions<'_>,
    sender: &SyncSender<Batch>,
) {
    let mut reader = HostReader {
        options,
        batches: Batches::new(sender),
        sent: HashSet::new(),
        list: vec![0; XATTR_MAX],
        value: vec![0; XATTR_MAX],
    };
    // The only error is a dropped receiver, which ends the reader.
    let _ = reader.source(from, name).and_then(|()| reader.batches.flush());
}

impl WalkedDirectory {
    /// Opens the directory again, if it was closed, as the parent of `below`, which was left.
    fn reopen(&mut self, below: Option<&OwnedFd>) -> Result<(), std::io::Error> {
        if self.directory.is_some() {
            return Ok(());
        }
        let below = below.ok_or(Errno::STALE)?;
        let place = HostEntry { directory: below.as_fd(), name: c"..", path: &self.path, follow: false };
        let directory = place.open(OFlags::DIRECTORY)?;
        if stat_at(&directory, c".", AtFlags::empty())?.id != self.id {
            return Err(std::io::Error::other("the directory was moved while it was read"));
        }
        self.directory = Some(directory);
        Ok(())
    }
}

impl HostReader<'_> {
    fn send(&mut self, event: ImportEvent) -> Result<(), HungUp> {
        let weight = event.weight();
        self.batches.send(event, weight)
    }

    fn problem(&mut self, path: &Path, error: impl Into<std::io::Error>) -> Result<(), HungUp> {
        self.send(ImportEvent::Problem(host_error(path, error)))
    }

    fn source(&mut self, from: &Path, name: Option<&[u8]>) -> Result<(), HungUp> {
        let follow = match self.options.follow || name.is_none() {
            true => AtFlags::empty(),
            false => AtFlags::SYMLINK_NOFOLLOW,
        };
        let Ok(place) = CString::new(from.as_os_str().as_bytes()) else {
            return self.problem(from, Errno::INVAL);
        };
        let stat = match stat_at(CWD, &place, follow) {
            Ok(stat) => stat,
            Err(error) => return self.problem(from, error),
        };
        if name.is_none() && stat.kind != FileType::Directory {
            return self.problem(from, Errno::NOTDIR);
        }
        let place = HostEntry { directory: CWD, name: &place, path: from, follow: follow.is_empty() };
        let mut stack: Vec<WalkedDirectory> = Vec::new();
        stack.extend(self.entry(&place, name.unwrap_or_default(), &stat)?);
        while let Some(frame) = stack.last_mut() {
            let (Some(name), Some(open)) = (frame.names.pop(), &frame.directory) else {
                let left = stack.pop().and_then(|frame| frame.directory);
                self.send(ImportEvent::Leave)?;
                if let Some(above) = stack.last_mut()
                    && let Err(error) = above.reopen(left.as_ref())
                {
                    let path = above.path.clone();
                    above.names.clear();
                    self.problem(&path, error)?;
                }
                continue;
            };
            let path = frame.path.join(OsStr::from_bytes(name.to_bytes()));
            let below = match stat_at(open, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => {
                    let directory = open.as_fd();
                    let place = HostEntry { directory, name: &name, path: &path, follow: false };
                    self.entry(&place, name.to_bytes(), &stat)?
                }
                Err(error) => {
                    self.problem(&path, error)?;
                    None
                }
            };
            stack.extend(below);
            if let Some(far) = stack.len().checked_sub(OPEN_DIRECTORIES + 1) {
                stack[far].directory = None;
            }
        }
        Ok(())
    }

    /// Sends an entry, and returns the open directory if it is one.
    fn entry(
        &mut self,
        place: &HostEntry<'_>,
        name: &[u8],
        stat: &Stat,
    ) -> Result<Option<WalkedDirectory>, HungUp> {
        let (id, kind) = (stat.id, stat.kind);
        if self.options.excluded.contains(&id) {
            return Ok(None);
        }
        if kind == FileType::Directory {
            return self.directory(place, name, stat);
        }
        let mut link = None;
        if stat.links > 1 {
            if !self.sent.insert(id) {
                self.send(ImportEvent::Link { name: name.to_vec(), link: id })?;
                return Ok(None);
            }
            link = Some(id);
        }
        if kind == FileType::RegularFile {
            self.file(place, name, stat, link)?;
            return Ok(None);
        }
        let attributes = match self.attributes(stat, &Opened::Not(place)) {
            Ok(attributes) => attributes,
            Err(error) => return self.problem(place.path, error).map(|()| None),
        };
        let (major, minor) = stat.device;
        let node = match kind {
            FileType::Symlink => match rustix::fs::readlinkat(place.directory, place.name, Vec::new()) {
                Ok(target) => ImportedNode::Symlink(target.into_bytes()),
                Err(error) => return self.problem(place.path, error).map(|()| None),
            },
            FileType::Fifo => ImportedNode::Fifo,
            FileType::Socket => ImportedNode::Socket,
            FileType::BlockDevice => ImportedNode::Block { major, minor },
            FileType::CharacterDevice => ImportedNode::Character { major, minor },
            _ => return self.problem(place.path, Errno::OPNOTSUPP).map(|()| None),
        };
        self.send(ImportEvent::Node { name: name.to_vec(), attributes, node, link })?;
        Ok(None)
    }

    fn directory(
        &mut self,
        place: &HostEntry<'_>,
        name: &[u8],
        stat: &Stat,
    ) -> Result<Option<WalkedDirectory>, HungUp> {
        if !self.options.recursive {
            return self.problem(place.path, Errno::ISDIR).map(|()| None);
        }
        let opened = place.open(OFlags::DIRECTORY).and_then(|directory| {
            let names = names_of(&directory)?;
            let attributes = self.attributes(stat, &Opened::Yes(directory.as_fd()))?;
            Ok((directory, names, attributes))
        });
        match opened {
            Ok((directory, names, attributes)) => {
                self.send(ImportEvent::Enter { name: name.to_vec(), attributes })?;
                let (directory, path) = (Some(directory), place.path.to_path_buf());
                Ok(Some(WalkedDirectory { directory, id: stat.id, path, names }))
            }
            Err(error) => self.problem(place.path, error).map(|()| None),
        }
    }

    fn file(
        &mut self,
        place: &HostEntry<'_>,
        name: &[u8],
        stat: &Stat,
        link: Option<LinkId>,
    ) -> Result<(), HungUp> {
        let opened = place.open(OFlags::NONBLOCK).and_then(|file| {
            let attributes = self.attributes(stat, &Opened::Yes(file.as_fd()))?;
            Ok((file, attributes))
        });
        let (file, attributes) = match opened {
            Ok(opened) => opened,
            Err(error) => return self.problem(place.path, error),
        };
        let (name, size) = (name.to_vec(), stat.size);
        let sparse = stat.is_sparse();
        // A file without a whole sector may become inline.
        let reflink = self.options.reflink.filter(|sector| size >= *sector);
        if reflink.is_none() && !sparse && size <= PIECE as u64 {
            let mut content = vec![0; size as usize];
            return match read_piece(&file, &mut content, 0) {
                Ok(length) if length == content.len() => {
                    self.send(ImportEvent::File { name, attributes, size, link, content, complete: true })
                }
                Ok(_) => self.problem(place.path, changed()),
                Err(error) => self.problem(place.path, error),
            };
        }
        let content = Vec::new();
        self.send(ImportEvent::File { name, attributes, size, link, content, complete: false })?;
        let error = match reflink {
            Some(sector) => self.clones(file, size, sector)?.err(),
            None => self.pieces(&file, size, sparse)?.err(),
        };
        self.send(ImportEvent::EndFile { error: error.map(|error| host_error(place.path, error)) })
    }

    /// Sends the data of a file without its holes.
    fn pieces(
        &mut self,
        file: &OwnedFd,
        size: u64,
        sparse: bool,
    ) -> Result<Result<(), std::io::Error>, HungUp> {
        let mut at = 0;
        while at < size {
            let (start, end) = match sparse {
                false => (at, size),
                true => match segment(file, at, size) {
                    Ok(Some(segment)) => segment,
                    Ok(None) => break,
                    Err(error) => return Ok(Err(error.into())),
                },
            };
            at = start;
            while at < end {
                let mut bytes = vec![0; usize::try_from(end - at).map_or(PIECE, |left| left.min(PIECE))];
                match read_piece(file, &mut bytes, at) {
                    Ok(length) if length == bytes.len() => {}
                    Ok(_) => return Ok(Err(changed())),
                    Err(error) => return Ok(Err(error.into())),
                }
                let (offset, length) = (at, bytes.len() as u64);
                self.send(ImportEvent::Data { offset, bytes })?;
                at += length;
            }
        }
        Ok(Ok(()))
    }

    /// Sends the whole sectors of a file, without its holes, as clones, and the rest as data.
    fn clones(
        &mut self,
        file: OwnedFd,
        size: u64,
        sector: u64,
    ) -> Result<Result<(), std::io::Error>, HungUp> {
        let (file, whole) = (Arc::new(file), size - size % sector);
        let mut at = 0;
        while at < whole {
            let (start, end) = match segment(&file, at, whole) {
                Ok(Some(segment)) => segment,
                Ok(None) => break,
                Err(error) => return Ok(Err(error.into())),
            };
            // The host's blocks may be smaller.
            let end = end.next_multiple_of(sector);
            at = at.max(start - start % sector);
            while at < end {
                let length = (end - at).min(CLONED);
                self.send(ImportEvent::Clone { offset: at, length, source: Arc::clone(&file) })?;
                at += length;
            }
        }
        if whole == size {
            return Ok(Ok(()));
        }
        let mut bytes = vec![0; (size - whole) as usize];
        match read_piece(&file, &mut bytes, whole) {
            Ok(length) if length == bytes.len() => {}
            Ok(_) => return Ok(Err(changed())),
            Err(error) => return Ok(Err(error.into())),
        }
        // A hole at the end stays one.
        if bytes.iter().any(|byte| *byte != 0) {
            self.send(ImportEvent::Data { offset: whole, bytes })?;
        }
        Ok(Ok(()))
    }

    fn attributes(&mut self, stat: &Stat, place: &Opened<'_>) -> Result<MemberAttributes, Errno> {
        Ok(MemberAttributes {
            mode: stat.permissions,
            uid: stat.uid,
            gid: stat.gid,
            atime: Some(stat.atime),
            mtime: Some(stat.mtime),
            xattrs: if self.options.xattrs { self.xattrs(place)? } else { Vec::new() },
        })
    }

    fn xattrs(&mut self, place: &Opened<'_>) -> Result<Vec<Xattr>, Errno> {
        // An inode that is not open is found by its directory's descriptor and its name, without
        // following links.
        let path = match place {
            Opened::Yes(_) => Vec::new(),
            Opened::Not(place) => place.path_for_names(),
        };
        let file = match place {
            Opened::Yes(file) => Some(*file),
            Opened::Not(_) => None,
        };
        let length = match xattr_list(file, &path, &mut self.list) {
            Ok(length) => length,
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut xattrs = Vec::new();
        for name in self.list[..length].split(|&byte| byte == 0).filter(|name| is_kept(name)) {
            match xattr_value(file, &path, name, &mut self.value) {
                Ok(length) => {
                    xattrs.push(Xattr { name: name.to_vec(), value: self.value[..length].to_vec() });
                }
                // Removed since the list was read.
                Err(NO_XATTR) => {}
                Err(error) => return Err(error),
            }
        }
        xattrs.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(xattrs)
    }
}

/// The location of an entry on the host.
struct HostEntry<'a> {
    directory: BorrowedFd<'a>,
    name: &'a CStr,
    /// The path for errors.
    path: &'a Path,
    follow: bool,
}

/// The file whose attributes are read.
enum Opened<'a> {
    Yes(BorrowedFd<'a>),
    Not(&'a HostEntry<'a>),
}

impl HostEntry<'_> {
    fn open(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        let mut flags = flags | OFlags::RDONLY | OFlags::CLOEXEC;
        flags.set(OFlags::NOFOLLOW, !self.follow);
        let open = |flags| rustix::fs::openat(self.directory, self.name, flags, Mode::empty());
        match open(flags | NOATIME) {
            // Only the owner of a file may use `O_NOATIME`.
            Err(Errno::PERM) => open(flags),
            result => result,
        }
    }

    fn path_for_names(&self) -> Vec<u8> {
        if self.directory.as_raw_fd() == CWD.as_raw_fd() {
            return self.name.to_bytes().to_vec();
        }
        let mut path = format!("/proc/self/fd/{}/", self.directory.as_raw_fd()).into_bytes();
        path.extend_from_slice(self.name.to_bytes());
        path
    }
}

/// An entry found by [`walk`].
pub(super) struct Walked {
    pub(super) name_length: usize,
    /// Bytes of data of a regular file or symbolic link.
    pub(super) content: Option<u64>,
}

/// Visits everything below `from` without reading data. It skips files and directories that cannot
/// be read; the reader reports them later.
pub(super) fn walk(from: &Path, excluded: &[(u64, u64)], visit: &mut dyn FnMut(Walked)) -> Result<()> {
    let mut pending = vec![from.to_path_buf()];
    let mut links = HashSet::new();
    let top = std::fs::read_dir(from).map_err(|error| host_error(from, error))?;
    drop(top);
    while let Some(path) = pending.pop() {
        for entry in std::fs::read_dir(&path).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            let path = path.join(&name);
            let Ok(stat) = stat_at(CWD, &path, flags) else { continue };
            if excluded.contains(&stat.id) {
                continue;
            }
            let mut content = None;
            match stat.kind {
                FileType::Directory => pending.push(path),
                FileType::RegularFile if stat.links == 1 || links.insert(stat.id) => {
                    // A compressed file also has fewer blocks than bytes, so its data is counted.
                    let sparse = stat.size > (1 << 20) && stat.is_sparse();
                    content = Some(if sparse { data_bytes(&path, stat.size) } else { stat.size });
                }
                FileType::Symlink => content = Some(stat.size.min(4096)),
                _ => {}
            }
            visit(Walked { name_length: name.len(), content });
        }
    }
    Ok(())
}

/// Returns the bytes of data of a sparse file, or its size if they cannot be found.
fn data_bytes(path: &Path, size: u64) -> u64 {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(path, flags, Mode::empty()) else { return size };
    let (mut at, mut bytes) = (0, 0);
    while at < size {
        match segment(&file, at, size) {
            Ok(Some((start, end))) => {
                bytes += end - start;
                at = end;
            }
            Ok(None) => break,
            Err(_) => return size,
        }
    }
    bytes
}

/// Returns device and inode number of a file or directory; `None` if there is none.
///
/// # Errors
/// Another failure of the host.
pub(super) fn identity(path: &Path) -> Result<Option<LinkId>> {
    match stat_at(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if matches!(stat.kind, FileType::RegularFile | FileType::Directory) => Ok(Some(stat.id)),
        Ok(_) => Ok(None),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(error) => Err(host_error(path, error)),
    }
}

/// Returns the next data range of a file at or after `at`, up to a hole or `size`.
fn segment(file: &OwnedFd, at: u64, size: u64) -> Result<Option<(u64, u64)>, Errno> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) if start < size => start,
        Ok(_) | Err(Errno::NXIO) => return Ok(None),
        // The host's file system does not support holes.
        Err(Errno::INVAL) => return Ok(Some((at, size))),
        Err(error) => return Err(error),
    };
    let end = rustix::fs::seek(file, SeekFrom::Hole(start))?.min(size);
    // Another process may have changed the file; an empty range would loop.
    Ok((end > start).then_some((start, end)))
}

fn read_piece(file: &OwnedFd, bytes: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pread(file, &mut bytes[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(length) => done += length,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Returns whether to copy an attribute. Of those in `system.`, only access control lists have a
/// meaning on another file system.
fn is_kept(name: &[u8]) -> bool {
    !name.is_empty() && (!name.starts_with(b"system.") || name.starts_with(b"system.posix_acl_"))
}

/// Returns the names in a directory, in reverse order.
fn names_of(directory: &OwnedFd) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable_by(|a, b| b.cmp(a));
    Ok(names)
}

fn changed() -> std::io::Error {
    std::io::Error::other("the file became shorter while it was read")
}

fn host_error(path: &Path, error: impl Into<std::io::Error>) -> Error {
    Error::Host { path: path.to_path_buf(), source: error.into() }
}
