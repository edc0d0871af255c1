//! Copies of plain directories, in place of snapshots.
//!
//! Owns [`copy_tree`]. A copy has the names, hard links, data, owners, modes, times and extended
//! attributes of its source. Files share their data where the file system can, and keep their
//! holes.
//!
//! **Invariant:** no symbolic link is followed. The two trees are walked by open directories.

use super::tree::{Descriptors, HostTree, copy_range, open_beneath};
use papilio_engine::namespace::create::NewKind;
use papilio_format::items::inode::Timespec;
use papilio_ioctl::client::MountedPath;
use rustix::fs::{AtFlags, Dir, FileType, OFlags, SeekFrom, Stat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

/// Most bytes of an attribute's value, and of the list of their names.
const XATTR_MAX: usize = 64 << 10;

/// Copies the content of the directory `from` to the empty directory `to`.
///
/// # Errors
/// As the calls of the operating system. The part that was copied until then stays.
pub fn copy_tree(from: &OwnedFd, to: &OwnedFd, descriptors: &Descriptors) -> io::Result<()> {
    let target = HostTree::new(to.try_clone()?, descriptors.clone());
    let mut copy = TreeCopy { from, target, descriptors, links: HashMap::new() };
    copy.children(b"")?;
    let stat = rustix::fs::fstat(from)?;
    copy.attributes(b"", &stat)
}

struct TreeCopy<'a> {
    from: &'a OwnedFd,
    target: HostTree,
    descriptors: &'a Descriptors,
    /// The copies of inodes with several names.
    links: HashMap<(u64, u64), Vec<u8>>,
}

impl TreeCopy<'_> {
    fn children(&mut self, directory: &[u8]) -> io::Result<()> {
        let open = open_beneath(self.from, directory, OFlags::RDONLY | OFlags::DIRECTORY)?;
        for entry in Dir::read_from(&open)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let path = if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() };
            let stat = rustix::fs::statat(&open, name, AtFlags::SYMLINK_NOFOLLOW)?;
            self.entry(&open, name, &path, &stat)?;
        }
        Ok(())
    }

    fn entry(&mut self, directory: &OwnedFd, name: &[u8], path: &[u8], stat: &Stat) -> io::Result<()> {
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind != FileType::Directory && stat.st_nlink > 1 {
            if let Some(first) = self.links.get(&(stat.st_dev, stat.st_ino)) {
                return self.target.link(first, path);
            }
            self.links.insert((stat.st_dev, stat.st_ino), path.to_vec());
        }
        let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
        let mut create = |kind| self.target.create(path, kind, 0o600);
        match kind {
            FileType::Directory => {
                self.target.create(path, NewKind::Directory, 0o700)?;
                self.children(path)?;
            }
            FileType::RegularFile => {
                create(NewKind::Regular)?;
                let source = File::from(open_beneath(directory, name, OFlags::RDONLY)?);
                self.data(&source, path, stat.st_size as u64)?;
            }
            FileType::Symlink => {
                let to = rustix::fs::readlinkat(directory, name, Vec::new())?;
                create(NewKind::Symlink(to.as_bytes()))?;
            }
            FileType::Fifo => create(NewKind::Fifo)?,
            FileType::Socket => create(NewKind::Socket)?,
            FileType::CharacterDevice => create(NewKind::CharacterDevice { major, minor })?,
            FileType::BlockDevice => create(NewKind::BlockDevice { major, minor })?,
            _ => return Err(Errno::OPNOTSUPP.into()),
        }
        self.attributes(path, stat)
    }

    fn data(&mut self, source: &File, path: &[u8], size: u64) -> io::Result<()> {
        let target = open_beneath(self.target.root(), path, OFlags::RDWR)?;
        let target = MountedPath::from_file(File::from(target));
        if size == 0 || target.clone_range(source, 0, 0, 0).is_ok() {
            return Ok(());
        }
        let target = target.file();
        target.set_len(size)?;
        let mut at = 0;
        while at < size {
            let start = match rustix::fs::seek(source, SeekFrom::Data(at)) {
                Ok(start) => start,
                Err(Errno::NXIO) => break,
                Err(_) => at,
            };
            let end = rustix::fs::seek(source, SeekFrom::Hole(start)).unwrap_or(size).clamp(start, size);
            copy_range(source, target, start, end - start, start)?;
            at = if end > at { end } else { size };
        }
        Ok(())
    }

    /// Copies owner, attributes, mode and times, in the order in which none undoes another.
    fn attributes(&mut self, path: &[u8], stat: &Stat) -> io::Result<()> {
        let source = open_beneath(self.from, path, OFlags::PATH)?;
        self.target.set_owner(path, stat.st_uid, stat.st_gid)?;
        let place = self.descriptors.path_of(&source);
        let mut names = vec![0; XATTR_MAX];
        let length = match rustix::fs::listxattr(&place, &mut names[..]) {
            Ok(length) => length,
            Err(Errno::OPNOTSUPP) => 0,
            Err(error) => return Err(error.into()),
        };
        let mut value = vec![0; XATTR_MAX];
        for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let length = rustix::fs::getxattr(&place, name, &mut value[..])?;
            self.target.set_xattr(path, name, &value[..length])?;
        }
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            self.target.set_mode(path, stat.st_mode & 0o7777)?;
        }
        let time = |seconds: i64, nanoseconds: u64| Timespec { seconds, nanoseconds: nanoseconds as u32 };
        let atime = time(stat.st_atime, stat.st_atime_nsec);
        self.target.set_times(path, atime, time(stat.st_mtime, stat.st_mtime_nsec))
    }
}
