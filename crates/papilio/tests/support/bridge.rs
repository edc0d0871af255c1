//! A file system opened by Papilio as a [`Source`] that the oracle compares.

use papilio::{FileKind, FileSystem, Inode, InodeFlags, Timespec};
use papilio_oracle::source::Content;
use papilio_oracle::{Kind, Metadata, Segment, Source, Time};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// A file system seen from its root.
pub struct Papilio(pub FileSystem);

fn failed(error: papilio::Error) -> io::Error {
    io::Error::other(error)
}

fn name(bytes: &[u8]) -> OsString {
    OsStr::from_bytes(bytes).to_os_string()
}

fn time(moment: Timespec) -> Time {
    Time { seconds: moment.seconds, nanoseconds: moment.nanoseconds }
}

/// `FS_*_FL` of an inode's flags, as the kernel shows them (`btrfs_inode_flags_to_fsflags`).
fn visible_flags(flags: InodeFlags) -> u32 {
    let pairs = [
        (InodeFlags::SYNC, 0x8),
        (InodeFlags::IMMUTABLE, 0x10),
        (InodeFlags::APPEND, 0x20),
        (InodeFlags::NODUMP, 0x40),
        (InodeFlags::NOATIME, 0x80),
        (InodeFlags::DIRSYNC, 0x1_0000),
        (InodeFlags::NODATACOW, 0x80_0000),
        (InodeFlags::VERITY, 0x10_0000),
    ];
    let mut visible =
        pairs.iter().filter(|(flag, _)| flags.contains(*flag)).fold(0, |all, (_, bit)| all | bit);
    // The kernel shows only one of the two.
    if flags.contains(InodeFlags::NOCOMPRESS) {
        visible |= 0x400;
    } else if flags.contains(InodeFlags::COMPRESS) {
        visible |= 0x4;
    }
    visible
}

impl Papilio {
    fn inode(&self, path: &Path) -> io::Result<Inode> {
        self.0.inode_nofollow(path.as_os_str().as_bytes()).map_err(failed)
    }
}

impl Source for Papilio {
    fn read_directory(&self, path: &Path) -> io::Result<Vec<OsString>> {
        let entries = self.inode(path)?.read_dir().map_err(failed)?;
        entries.map(|entry| Ok(name(entry.map_err(failed)?.file_name()))).collect()
    }

    fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        let inode = self.inode(path)?;
        let metadata = inode.metadata();
        let kind = match metadata.file_type() {
            FileKind::Regular => Kind::File,
            FileKind::Directory => Kind::Directory,
            FileKind::Symlink => Kind::Symlink,
            FileKind::Fifo => Kind::Fifo,
            FileKind::Socket => Kind::Socket,
            FileKind::BlockDevice => Kind::BlockDevice,
            FileKind::CharacterDevice => Kind::CharacterDevice,
        };
        Ok(Metadata {
            kind,
            mode: metadata.permissions(),
            uid: metadata.uid(),
            gid: metadata.gid(),
            rdev: metadata.rdev(),
            nlink: metadata.nlink().into(),
            size: metadata.size(),
            ino: metadata.number().get(),
            subvolume: inode.is_subvolume_root().then(|| inode.tree().get()),
            flags: Some(visible_flags(metadata.flags())),
            mtime: time(metadata.mtime()),
            ctime: time(metadata.ctime()),
            atime: time(metadata.atime()),
            btime: time(metadata.btime()),
        })
    }

    fn xattrs(&self, path: &Path) -> io::Result<Vec<(OsString, Vec<u8>)>> {
        let attributes = self.inode(path)?.xattrs().map_err(failed)?;
        Ok(attributes.into_iter().map(|attribute| (name(&attribute.name), attribute.value)).collect())
    }

    fn read_link(&self, path: &Path) -> io::Result<OsString> {
        Ok(OsString::from_vec(self.inode(path)?.read_link().map_err(failed)?))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn Content + '_>> {
        Ok(Box::new(OpenFile(self.inode(path)?.open().map_err(failed)?)))
    }

    fn segments(&self, path: &Path) -> io::Result<Option<Vec<Segment>>> {
        let file = self.inode(path)?.open().map_err(failed)?;
        let mut segments = Vec::new();
        let mut offset = 0;
        while offset < file.len() {
            let Some(start) = file.seek_data(offset).map_err(failed)? else { break };
            let end = file.seek_hole(start).map_err(failed)?;
            segments.push(Segment { start, end });
            offset = end;
        }
        Ok(Some(segments))
    }
}

struct OpenFile(papilio::File);

impl Content for OpenFile {
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(buffer, offset).map_err(failed)
    }
}
