//! A tree as the kernel shows it: a folder of a mounted file system.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, SeekFrom, StatxFlags};

use crate::source::{Content, FiemapExtent, Kind, Metadata, Segment, Source, Time};
use crate::sys;

/// The inode number of a subvolume's root folder (`BTRFS_FIRST_FREE_OBJECTID`).
pub const SUBVOLUME_ROOT: u64 = 256;

/// A folder of the host as a [`Source`].
#[derive(Clone, Debug)]
pub struct HostTree {
    root: PathBuf,
}

impl HostTree {
    /// Creates a source for the tree below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn full(&self, path: &Path) -> PathBuf {
        // Joining an empty path would append a slash, which follows a symbolic link.
        if path.as_os_str().is_empty() { self.root.clone() } else { self.root.join(path) }
    }

    fn open_file(&self, path: &Path) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(rustix::fs::open(self.full(path), flags, Mode::empty())?.into())
    }
}

impl Content for File {
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }
}

impl Source for HostTree {
    fn read_directory(&self, path: &Path) -> io::Result<Vec<OsString>> {
        std::fs::read_dir(self.full(path))?.map(|entry| Ok(entry?.file_name())).collect()
    }

    fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        let fields = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let full = self.full(path);
        let stat = rustix::fs::statx(rustix::fs::CWD, &full, AtFlags::SYMLINK_NOFOLLOW, fields)?;
        let kind = kind_of(u32::from(stat.stx_mode))?;
        let mut metadata = Metadata {
            kind,
            mode: u32::from(stat.stx_mode) & 0o7777,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            rdev: (stat.stx_rdev_major, stat.stx_rdev_minor),
            nlink: u64::from(stat.stx_nlink),
            size: stat.stx_size,
            ino: stat.stx_ino,
            subvolume: None,
            flags: None,
            mtime: time(stat.stx_mtime),
            ctime: time(stat.stx_ctime),
            atime: time(stat.stx_atime),
            btime: time(stat.stx_btime),
        };
        if matches!(kind, Kind::File | Kind::Directory) {
            let file = self.open_file(path)?;
            metadata.flags = rustix::fs::ioctl_getflags(&file).ok().map(|flags| flags.bits());
            if kind == Kind::Directory && metadata.ino == SUBVOLUME_ROOT {
                metadata.subvolume = sys::subvolume_of(&file).ok();
            }
        }
        Ok(metadata)
    }

    fn xattrs(&self, path: &Path) -> io::Result<Vec<(OsString, Vec<u8>)>> {
        let full = self.full(path);
        let mut all = Vec::new();
        for name in xattr::list(&full)? {
            // A listed name without a value is a fact worth comparing, not an error.
            let value = xattr::get(&full, &name)?.unwrap_or_default();
            all.push((name, value));
        }
        Ok(all)
    }

    fn read_link(&self, path: &Path) -> io::Result<OsString> {
        let target = rustix::fs::readlink(self.full(path), Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn Content + '_>> {
        Ok(Box::new(self.open_file(path)?))
    }

    fn segments(&self, path: &Path) -> io::Result<Option<Vec<Segment>>> {
        let file = self.open_file(path)?;
        let mut segments = Vec::new();
        let mut at = 0;
        loop {
            let start = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
                Ok(start) => start,
                Err(rustix::io::Errno::NXIO) => return Ok(Some(segments)),
                Err(error) => return Err(error.into()),
            };
            let end = rustix::fs::seek(&file, SeekFrom::Hole(start))?;
            segments.push(Segment { start, end });
            at = end;
        }
    }

    fn extents(&self, path: &Path) -> io::Result<Option<Vec<FiemapExtent>>> {
        Ok(Some(sys::fiemap(&self.open_file(path)?)?))
    }
}

fn kind_of(raw_mode: u32) -> io::Result<Kind> {
    Ok(match FileType::from_raw_mode(raw_mode) {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::BlockDevice => Kind::BlockDevice,
        FileType::CharacterDevice => Kind::CharacterDevice,
        _ => return Err(io::Error::other(format!("unknown file type in mode {raw_mode:o}"))),
    })
}

fn time(stamp: rustix::fs::StatxTimestamp) -> Time {
    Time { seconds: stamp.tv_sec, nanoseconds: stamp.tv_nsec }
}
