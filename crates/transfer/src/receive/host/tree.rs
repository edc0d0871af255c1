//! A directory of the host and everything below it.
//!
//! Owns [`HostTree`]. It keeps the last directory and the last file open, since a stream names them
//! again and again.
//!
//! **Invariants**
//! - The kernel resolves each path beneath the root, and refuses symbolic links in it
//!   (`RESOLVE_BENEATH`, `RESOLVE_NO_SYMLINKS`).
//! - Only regular files are opened for reading or writing: a stream may have made a device file.
//! - Attributes change through `/proc/self/fd`, where a descriptor stands for the inode itself.

use super::super::target::CloneRange;
use papilio_engine::namespace::create::NewKind;
use papilio_format::items::inode::Timespec;
use papilio_format::send_stream::EncodedWrite;
use papilio_ioctl::EncodedPart;
use papilio_ioctl::client::MountedPath;
use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Bytes that are copied or written as zeros at once.
const STEP: u64 = 1 << 20;

/// The directory `/proc/self/fd`.
#[derive(Clone, Debug)]
pub struct Descriptors {
    /// The start of a path to a descriptor.
    prefix: PathBuf,
}

impl Descriptors {
    /// Uses the absolute path.
    pub fn absolute() -> Self {
        Self { prefix: "/proc/self/fd".into() }
    }

    /// Confines the process to `directory`, with `/proc/self/fd` as its current directory, which it
    /// alone can reach from then on.
    ///
    /// # Errors
    /// EPERM without `CAP_SYS_CHROOT`; `/proc` is not mounted.
    pub fn confined_to(directory: &File) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptors = rustix::fs::open("/proc/self/fd", flags, Mode::empty())?;
        rustix::process::fchdir(directory)?;
        rustix::process::chroot(".")?;
        rustix::process::fchdir(descriptors)?;
        Ok(Self { prefix: PathBuf::new() })
    }

    /// Returns a path that leads to the inode of an open descriptor.
    pub fn path_of(&self, descriptor: &impl AsRawFd) -> PathBuf {
        self.prefix.join(descriptor.as_raw_fd().to_string())
    }
}

/// A directory and everything below it.
#[derive(Debug)]
pub struct HostTree {
    root: Rc<OwnedFd>,
    descriptors: Descriptors,
    parent: Option<(Vec<u8>, Rc<OwnedFd>)>,
    file: Option<(Vec<u8>, MountedPath)>,
    /// Whether the file system may take compressed extents.
    encodes: bool,
}

/// Opens `path` beneath `directory`. An empty path means the directory.
pub fn open_beneath(directory: impl AsFd, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    let path = if path.is_empty() { b"." } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let mut flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    // openat2 refuses flags that have no meaning.
    flags.set(OFlags::NOCTTY, !flags.contains(OFlags::PATH));
    Ok(rustix::fs::openat2(directory, path, flags, Mode::empty(), resolve)?)
}

/// Opens a regular file beneath `directory`.
fn open_file(directory: impl AsFd, name: &[u8], flags: OFlags) -> io::Result<File> {
    let regular = |mode: u32| FileType::from_raw_mode(mode) == FileType::RegularFile;
    let not_a_file = || io::Error::other("not a regular file");
    // Asked first, because opening a device file may have effects.
    let found = rustix::fs::statat(directory.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW)?;
    if !regular(found.st_mode) {
        return Err(not_a_file());
    }
    let file = open_beneath(directory, name, flags | OFlags::NONBLOCK)?;
    if regular(rustix::fs::fstat(&file)?.st_mode) { Ok(File::from(file)) } else { Err(not_a_file()) }
}

/// Splits a path into the directory and the last name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

impl HostTree {
    /// Takes the tree below `root`, an open directory.
    pub fn new(root: OwnedFd, descriptors: Descriptors) -> Self {
        Self { root: Rc::new(root), descriptors, parent: None, file: None, encodes: true }
    }

    /// Returns the root directory.
    pub fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// Closes what is kept open.
    pub fn forget(&mut self) {
        self.parent = None;
        self.file = None;
    }

    fn directory<'p>(&mut self, path: &'p [u8]) -> io::Result<(Rc<OwnedFd>, &'p [u8])> {
        let (directory, name) = split(path);
        if directory.is_empty() {
            return Ok((Rc::clone(&self.root), name));
        }
        if let Some((known, open)) = &self.parent
            && known == directory
        {
            return Ok((Rc::clone(open), name));
        }
        let open = Rc::new(open_beneath(&self.root, directory, OFlags::PATH | OFlags::DIRECTORY)?);
        self.parent = Some((directory.to_vec(), Rc::clone(&open)));
        Ok((open, name))
    }

    /// Opens the inode itself, of whatever kind.
    fn inode(&mut self, path: &[u8]) -> io::Result<OwnedFd> {
        let (directory, name) = self.directory(path)?;
        open_beneath(directory, name, OFlags::PATH)
    }

    fn file(&mut self, path: &[u8]) -> io::Result<&MountedPath> {
        if self.file.as_ref().is_none_or(|(known, _)| known != path) {
            let (directory, name) = self.directory(path)?;
            let file = open_file(directory, name, OFlags::RDWR)?;
            self.file = Some((path.to_vec(), MountedPath::from_file(file)));
        }
        Ok(&self.file.as_ref().expect("it was opened").1)
    }

    /// Creates an inode.
    pub fn create(&mut self, path: &[u8], kind: NewKind<'_>, mode: u32) -> io::Result<()> {
        let (directory, name) = self.directory(path)?;
        let mode = Mode::from_raw_mode(mode);
        let node = |kind, device| rustix::fs::mknodat(&directory, name, kind, mode, device);
        match kind {
            NewKind::Directory => rustix::fs::mkdirat(&directory, name, mode)?,
            NewKind::Symlink(target) => rustix::fs::symlinkat(target, &directory, name)?,
            NewKind::Regular => node(FileType::RegularFile, 0)?,
            NewKind::Fifo => node(FileType::Fifo, 0)?,
            NewKind::Socket => node(FileType::Socket, 0)?,
            NewKind::CharacterDevice { major, minor } => {
                node(FileType::CharacterDevice, rustix::fs::makedev(major, minor))?;
            }
            NewKind::BlockDevice { major, minor } => {
                node(FileType::BlockDevice, rustix::fs::makedev(major, minor))?;
            }
            _ => return Err(Errno::OPNOTSUPP.into()),
        }
        Ok(())
    }

    /// Renames.
    pub fn rename(&mut self, from: &[u8], to: &[u8]) -> io::Result<()> {
        self.forget();
        let (source, name) = self.directory(from)?;
        let (target, new_name) = self.directory(to)?;
        self.forget();
        Ok(rustix::fs::renameat(source, name, target, new_name)?)
    }

    /// Adds a name.
    pub fn link(&mut self, existing: &[u8], path: &[u8]) -> io::Result<()> {
        let (source, name) = self.directory(existing)?;
        let (target, new_name) = self.directory(path)?;
        Ok(rustix::fs::linkat(source, name, target, new_name, AtFlags::empty())?)
    }

    /// Removes a name, of a directory if `directory` is set.
    pub fn remove(&mut self, path: &[u8], directory: bool) -> io::Result<()> {
        self.forget();
        let flags = if directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        let (parent, name) = self.directory(path)?;
        self.parent = None;
        Ok(rustix::fs::unlinkat(parent, name, flags)?)
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&mut self, path: &[u8], name: &[u8], value: &[u8]) -> io::Result<()> {
        let inode = self.inode(path)?;
        Ok(rustix::fs::setxattr(self.descriptors.path_of(&inode), name, value, XattrFlags::empty())?)
    }

    /// Returns an extended attribute of the root, if the file system has it.
    pub fn note(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let mut value = vec![0; 512];
        match rustix::fs::fgetxattr(&self.root, name, &mut value[..]) {
            Ok(length) => {
                value.truncate(length);
                Ok(Some(value))
            }
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&mut self, path: &[u8], name: &[u8]) -> io::Result<()> {
        let inode = self.inode(path)?;
        Ok(rustix::fs::removexattr(self.descriptors.path_of(&inode), name)?)
    }

    /// Sets the permission bits.
    pub fn set_mode(&mut self, path: &[u8], mode: u32) -> io::Result<()> {
        let inode = self.inode(path)?;
        let mode = Mode::from_raw_mode(mode);
        Ok(rustix::fs::chmod(self.descriptors.path_of(&inode), mode)?)
    }

    /// Sets the owner.
    pub fn set_owner(&mut self, path: &[u8], uid: u32, gid: u32) -> io::Result<()> {
        // The greatest number means that the owner stays.
        let of = |id: u32| (id != u32::MAX).then_some(id);
        let (uid, gid) = (of(uid).map(Uid::from_raw), of(gid).map(Gid::from_raw));
        if path.is_empty() {
            return Ok(rustix::fs::fchown(&self.root, uid, gid)?);
        }
        let (directory, name) = self.directory(path)?;
        Ok(rustix::fs::chownat(directory, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Sets the times of access and of modification.
    pub fn set_times(&mut self, path: &[u8], atime: Timespec, mtime: Timespec) -> io::Result<()> {
        let time = |time: Timespec| {
            if time.nanoseconds >= 1_000_000_000 {
                return Err(io::Error::from(Errno::INVAL));
            }
            Ok(rustix::fs::Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() })
        };
        let times = Timestamps { last_access: time(atime)?, last_modification: time(mtime)? };
        if path.is_empty() {
            return Ok(rustix::fs::futimens(&self.root, &times)?);
        }
        let (directory, name) = self.directory(path)?;
        Ok(rustix::fs::utimensat(directory, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Writes to a file.
    pub fn write(&mut self, path: &[u8], offset: u64, data: &[u8]) -> io::Result<()> {
        self.file(path)?.file().write_all_at(data, offset)
    }

    /// Writes a compressed extent as it lies, if the file system can take it so.
    pub fn write_encoded(&mut self, write: &EncodedWrite) -> io::Result<bool> {
        if !self.encodes {
            return Ok(false);
        }
        let part = EncodedPart {
            data: &write.data,
            offset: write.offset,
            length: write.file_length,
            unencoded_length: write.unencoded_length,
            unencoded_offset: write.unencoded_offset,
            compression: write.compression,
        };
        let result = self.file(&write.path)?.write_encoded(&part);
        match result.as_ref().map_err(errno) {
            Ok(()) => Ok(true),
            // This one does not fit.
            Err(Some(Errno::INVAL | Errno::NOSPC)) => Ok(false),
            Err(Some(Errno::NOTTY | Errno::PERM | Errno::NOSYS | Errno::OPNOTSUPP)) => {
                self.encodes = false;
                Ok(false)
            }
            Err(_) => result.map(|()| true),
        }
    }

    /// Sets the size of a file.
    pub fn truncate(&mut self, path: &[u8], size: u64) -> io::Result<()> {
        self.file(path)?.file().set_len(size)
    }

    /// Preallocates space. Where the file system cannot, only the size grows.
    pub fn allocate(&mut self, path: &[u8], offset: u64, length: u64, keep_size: bool) -> io::Result<()> {
        let file = self.file(path)?.file();
        let flags = if keep_size { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
        match rustix::fs::fallocate(file, flags, offset, length) {
            Err(Errno::OPNOTSUPP) if keep_size => Ok(()),
            Err(Errno::OPNOTSUPP) => {
                let size = file.metadata()?.len();
                file.set_len(size.max(offset + length))
            }
            result => Ok(result?),
        }
    }

    /// Makes a hole, or zeros where the file system has no holes.
    pub fn punch_hole(&mut self, path: &[u8], offset: u64, length: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.make_zeros(path, offset, length, flags, true)
    }

    /// Makes a range read as zeros.
    pub fn zero_range(&mut self, path: &[u8], offset: u64, length: u64, keep_size: bool) -> io::Result<()> {
        let mut flags = FallocateFlags::ZERO_RANGE;
        flags.set(FallocateFlags::KEEP_SIZE, keep_size);
        self.make_zeros(path, offset, length, flags, keep_size)
    }

    fn make_zeros(
        &mut self,
        path: &[u8],
        offset: u64,
        length: u64,
        flags: FallocateFlags,
        keep_size: bool,
    ) -> io::Result<()> {
        let file = self.file(path)?.file();
        match rustix::fs::fallocate(file, flags, offset, length) {
            Err(Errno::OPNOTSUPP) => {}
            result => return Ok(result?),
        }
        let size = file.metadata()?.len();
        let end = if keep_size { size.min(offset + length) } else { offset + length };
        let zeros = vec![0; STEP.min(length) as usize];
        let mut at = offset;
        // The part behind the end of the file is a hole once the size grows.
        while at < end.min(size) {
            let step = (end.min(size) - at).min(STEP);
            file.write_all_at(&zeros[..step as usize], at)?;
            at += step;
        }
        if end > size { file.set_len(end) } else { Ok(()) }
    }

    /// Gives a file a range of a file in `other`, or in this tree: shared where the file system
    /// can, otherwise copied.
    pub fn clone_range(
        &mut self,
        path: &[u8],
        other: Option<&mut HostTree>,
        range: &CloneRange<'_>,
    ) -> io::Result<()> {
        let (directory, name) = match other {
            Some(other) => other.directory(range.source)?,
            None => self.directory(range.source)?,
        };
        let source = open_file(directory, name, OFlags::RDONLY)?;
        let target = self.file(path)?;
        let shared = target.clone_range(&source, range.from, range.length, range.to);
        match shared.as_ref().map_err(errno) {
            Err(Some(
                Errno::OPNOTSUPP | Errno::NOTTY | Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::ISDIR,
            )) => copy_range(&source, target.file(), range.from, range.length, range.to),
            _ => shared,
        }
    }
}

fn errno(error: &io::Error) -> Option<Errno> {
    Errno::from_io_error(error)
}

/// Copies a range; the kernel does it, and shares the data, where the file system offers that.
pub fn copy_range(source: &File, target: &File, from: u64, length: u64, to: u64) -> io::Result<()> {
    let (mut input, mut output) = (from, to);
    let mut left = length;
    let ended = || io::Error::new(io::ErrorKind::UnexpectedEof, "the source of a clone is too short");
    while left > 0 {
        let step = usize::try_from(left).unwrap_or(usize::MAX).min(1 << 30);
        match rustix::fs::copy_file_range(source, Some(&mut input), target, Some(&mut output), step) {
            Ok(0) => return Err(ended()),
            Ok(copied) => left -= copied as u64,
            Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::BADF) => {
                return copy_bytes(source, target, input, left, output);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn copy_bytes(source: &File, target: &File, from: u64, length: u64, to: u64) -> io::Result<()> {
    let mut bytes = vec![0; STEP.min(length) as usize];
    let mut done = 0;
    while done < length {
        let step = (length - done).min(STEP) as usize;
        source.read_exact_at(&mut bytes[..step], from + done)?;
        target.write_all_at(&bytes[..step], to + done)?;
        done += step as u64;
    }
    Ok(())
}

/// Returns the path of an entry for messages.
pub fn shown(directory: &Path, name: &[u8]) -> PathBuf {
    directory.join(OsStr::from_bytes(name))
}
