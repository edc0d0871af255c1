//! The commands of a stream.
//!
//! Owns [`Command`] and [`EncodedWrite`], with parser and serialiser. The order of
//! attributes is the kernel's. Attributes that a command does not use are ignored.

use super::attribute::{Attributes, Writer};
use super::fault::{SendStreamError, SendStreamFault};
use super::header::CommandHeader;
use super::kind::{Attribute as A, CommandKind, Protocol};
use crate::items::inode::Timespec;
use uuid::Uuid;

/// Data that the sender passes on as the extent stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedWrite {
    /// The file.
    pub path: Vec<u8>,
    /// Where the data goes, in bytes from the file's start.
    pub offset: u64,
    /// Bytes of the file that are written.
    pub file_length: u64,
    /// Bytes of the whole extent after decoding.
    pub unencoded_length: u64,
    /// Where the written bytes start in the decoded extent.
    pub unencoded_offset: u64,
    /// `BTRFS_ENCODED_IO_COMPRESSION_*`: 0 none, 1 zlib, 2 zstd, 3 to 7 LZO with sectors of 4 to
    /// 64 KiB.
    pub compression: u32,
    /// `BTRFS_ENCODED_IO_ENCRYPTION_*`: 0 none, as if the attribute is missing. The kernel leaves
    /// it out for inline extents.
    pub encryption: Option<u32>,
    /// The encoded extent.
    pub data: Vec<u8>,
}

/// A command. Paths are relative to the subvolume's root and contain no NUL; the root's own path is
/// empty. Offsets and lengths are bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Command {
    /// Starts a new subvolume.
    Subvol {
        path: Vec<u8>,
        uuid: Uuid,
        ctransid: u64,
    },
    /// Starts a snapshot of a received subvolume.
    Snapshot {
        path: Vec<u8>,
        uuid: Uuid,
        ctransid: u64,
        clone_uuid: Uuid,
        clone_ctransid: u64,
    },
    /// Creates an empty file.
    Mkfile {
        path: Vec<u8>,
        inode: u64,
    },
    Mkdir {
        path: Vec<u8>,
        inode: u64,
    },
    Mknod {
        path: Vec<u8>,
        inode: u64,
        rdev: u64,
        mode: u64,
    },
    Mkfifo {
        path: Vec<u8>,
        inode: u64,
        rdev: u64,
        mode: u64,
    },
    Mksock {
        path: Vec<u8>,
        inode: u64,
        rdev: u64,
        mode: u64,
    },
    Symlink {
        path: Vec<u8>,
        inode: u64,
        target: Vec<u8>,
    },
    Rename {
        from: Vec<u8>,
        to: Vec<u8>,
    },
    /// Gives the file `existing` the further name `path`.
    Link {
        path: Vec<u8>,
        existing: Vec<u8>,
    },
    Unlink {
        path: Vec<u8>,
    },
    Rmdir {
        path: Vec<u8>,
    },
    SetXattr {
        path: Vec<u8>,
        name: Vec<u8>,
        value: Vec<u8>,
    },
    RemoveXattr {
        path: Vec<u8>,
        name: Vec<u8>,
    },
    Write {
        path: Vec<u8>,
        offset: u64,
        data: Vec<u8>,
    },
    /// Shares `length` bytes of a file in this or another received subvolume.
    Clone {
        offset: u64,
        length: u64,
        path: Vec<u8>,
        clone_uuid: Uuid,
        clone_ctransid: u64,
        clone_path: Vec<u8>,
        clone_offset: u64,
    },
    Truncate {
        path: Vec<u8>,
        size: u64,
    },
    Chmod {
        path: Vec<u8>,
        mode: u64,
    },
    Chown {
        path: Vec<u8>,
        uid: u64,
        gid: u64,
    },
    /// `otime` is in protocol 2 only.
    Utimes {
        path: Vec<u8>,
        atime: Timespec,
        mtime: Timespec,
        ctime: Timespec,
        otime: Option<Timespec>,
    },
    /// Ends the subvolume.
    End,
    /// Tells, in a stream without data, that a range of a file changed.
    UpdateExtent {
        path: Vec<u8>,
        offset: u64,
        size: u64,
    },
    Fallocate {
        path: Vec<u8>,
        mode: u32,
        offset: u64,
        size: u64,
    },
    /// The low 32 bits are the inode's flags on disk.
    Fileattr {
        path: Vec<u8>,
        attributes: u64,
    },
    EncodedWrite(EncodedWrite),
}

impl Command {
    /// Returns the paths of files that the command names; not the target of a symbolic link.
    pub fn paths(&self) -> [Option<&[u8]>; 2] {
        match self {
            Self::Rename { from, to } => [Some(from), Some(to)],
            Self::Link { path, existing } => [Some(path), Some(existing)],
            Self::Clone { path, clone_path, .. } => [Some(path), Some(clone_path)],
            Self::End => [None, None],
            Self::EncodedWrite(write) => [Some(&write.path), None],
            Self::Subvol { path, .. }
            | Self::Snapshot { path, .. }
            | Self::Mkfile { path, .. }
            | Self::Mkdir { path, .. }
            | Self::Mknod { path, .. }
            | Self::Mkfifo { path, .. }
            | Self::Mksock { path, .. }
            | Self::Symlink { path, .. }
            | Self::Unlink { path }
            | Self::Rmdir { path }
            | Self::SetXattr { path, .. }
            | Self::RemoveXattr { path, .. }
            | Self::Write { path, .. }
            | Self::Truncate { path, .. }
            | Self::Chmod { path, .. }
            | Self::Chown { path, .. }
            | Self::Utimes { path, .. }
            | Self::UpdateExtent { path, .. }
            | Self::Fallocate { path, .. }
            | Self::Fileattr { path, .. } => [Some(path), None],
        }
    }

    /// Parses the command at byte `offset` of the stream; `bytes` follow its header.
    ///
    /// # Errors
    /// A wrong checksum, or a fault of an attribute.
    ///
    /// # Panics
    /// If `bytes` is not as long as the header says.
    pub fn parse(
        protocol: Protocol,
        header: &CommandHeader,
        bytes: &[u8],
        offset: u64,
    ) -> Result<Self, SendStreamError> {
        assert_eq!(bytes.len(), header.length, "the caller reads a whole command");
        let expected = header.checksum(bytes);
        if expected != header.crc {
            let fault = SendStreamFault::Checksum { command: header.kind, found: header.crc, expected };
            return Err(fault.at(offset));
        }
        Self::from_attributes(
            protocol,
            header.kind,
            &Attributes::parse(header.kind, protocol, offset, bytes)?,
        )
    }

    fn from_attributes(
        protocol: Protocol,
        kind: CommandKind,
        a: &Attributes<'_>,
    ) -> Result<Self, SendStreamError> {
        let path = || a.text(A::Path);
        let inode = || a.number(A::Ino);
        let offset = || a.number(A::FileOffset);
        Ok(match kind {
            CommandKind::Subvol => {
                Self::Subvol { path: path()?, uuid: a.uuid(A::Uuid)?, ctransid: a.number(A::Ctransid)? }
            }
            CommandKind::Snapshot => Self::Snapshot {
                path: path()?,
                uuid: a.uuid(A::Uuid)?,
                ctransid: a.number(A::Ctransid)?,
                clone_uuid: a.uuid(A::CloneUuid)?,
                clone_ctransid: a.number(A::CloneCtransid)?,
            },
            CommandKind::Mkfile => Self::Mkfile { path: path()?, inode: inode()? },
            CommandKind::Mkdir => Self::Mkdir { path: path()?, inode: inode()? },
            CommandKind::Mknod | CommandKind::Mkfifo | CommandKind::Mksock => {
                let (path, inode) = (path()?, inode()?);
                let (rdev, mode) = (a.number(A::Rdev)?, a.number(A::Mode)?);
                match kind {
                    CommandKind::Mknod => Self::Mknod { path, inode, rdev, mode },
                    CommandKind::Mkfifo => Self::Mkfifo { path, inode, rdev, mode },
                    _ => Self::Mksock { path, inode, rdev, mode },
                }
            }
            CommandKind::Symlink => {
                Self::Symlink { path: path()?, inode: inode()?, target: a.text(A::PathLink)? }
            }
            CommandKind::Rename => Self::Rename { from: path()?, to: a.text(A::PathTo)? },
            CommandKind::Link => Self::Link { path: path()?, existing: a.text(A::PathLink)? },
            CommandKind::Unlink => Self::Unlink { path: path()? },
            CommandKind::Rmdir => Self::Rmdir { path: path()? },
            CommandKind::SetXattr => {
                Self::SetXattr { path: path()?, name: a.text(A::XattrName)?, value: a.bytes(A::XattrData)? }
            }
            CommandKind::RemoveXattr => Self::RemoveXattr { path: path()?, name: a.text(A::XattrName)? },
            CommandKind::Write => Self::Write { path: path()?, offset: offset()?, data: a.bytes(A::Data)? },
            CommandKind::Clone => Self::clone_from(a)?,
            CommandKind::Truncate => Self::Truncate { path: path()?, size: a.number(A::Size)? },
            CommandKind::Chmod => Self::Chmod { path: path()?, mode: a.number(A::Mode)? },
            CommandKind::Chown => {
                Self::Chown { path: path()?, uid: a.number(A::Uid)?, gid: a.number(A::Gid)? }
            }
            CommandKind::Utimes => Self::Utimes {
                path: path()?,
                atime: a.time(A::Atime)?,
                mtime: a.time(A::Mtime)?,
                ctime: a.time(A::Ctime)?,
                // A receiver of protocol 1 does not know it.
                otime: (protocol >= Protocol::V2 && a.has(A::Otime)).then(|| a.time(A::Otime)).transpose()?,
            },
            CommandKind::End => Self::End,
            CommandKind::UpdateExtent => {
                Self::UpdateExtent { path: path()?, offset: offset()?, size: a.number(A::Size)? }
            }
            CommandKind::Fallocate => Self::Fallocate {
                path: path()?,
                mode: a.short(A::FallocateMode)?,
                offset: offset()?,
                size: a.number(A::Size)?,
            },
            CommandKind::Fileattr => Self::Fileattr { path: path()?, attributes: a.number(A::Fileattr)? },
            CommandKind::EncodedWrite => Self::EncodedWrite(EncodedWrite {
                path: path()?,
                offset: offset()?,
                file_length: a.number(A::UnencodedFileLen)?,
                unencoded_length: a.number(A::UnencodedLen)?,
                unencoded_offset: a.number(A::UnencodedOffset)?,
                // The kernel leaves out what is 0.
                compression: if a.has(A::Compression) { a.short(A::Compression)? } else { 0 },
                encryption: if a.has(A::Encryption) { Some(a.short(A::Encryption)?) } else { None },
                data: a.bytes(A::Data)?,
            }),
        })
    }

    fn clone_from(a: &Attributes<'_>) -> Result<Self, SendStreamError> {
        Ok(Self::Clone {
            offset: a.number(A::FileOffset)?,
            length: a.number(A::CloneLen)?,
            path: a.text(A::Path)?,
            clone_uuid: a.uuid(A::CloneUuid)?,
            clone_ctransid: a.number(A::CloneCtransid)?,
            clone_path: a.text(A::ClonePath)?,
            clone_offset: a.number(A::CloneOffset)?,
        })
    }

    /// Returns the command's number.
    pub const fn kind(&self) -> CommandKind {
        match self {
            Self::Subvol { .. } => CommandKind::Subvol,
            Self::Snapshot { .. } => CommandKind::Snapshot,
            Self::Mkfile { .. } => CommandKind::Mkfile,
            Self::Mkdir { .. } => CommandKind::Mkdir,
            Self::Mknod { .. } => CommandKind::Mknod,
            Self::Mkfifo { .. } => CommandKind::Mkfifo,
            Self::Mksock { .. } => CommandKind::Mksock,
            Self::Symlink { .. } => CommandKind::Symlink,
            Self::Rename { .. } => CommandKind::Rename,
            Self::Link { .. } => CommandKind::Link,
            Self::Unlink { .. } => CommandKind::Unlink,
            Self::Rmdir { .. } => CommandKind::Rmdir,
            Self::SetXattr { .. } => CommandKind::SetXattr,
            Self::RemoveXattr { .. } => CommandKind::RemoveXattr,
            Self::Write { .. } => CommandKind::Write,
            Self::Clone { .. } => CommandKind::Clone,
            Self::Truncate { .. } => CommandKind::Truncate,
            Self::Chmod { .. } => CommandKind::Chmod,
            Self::Chown { .. } => CommandKind::Chown,
            Self::Utimes { .. } => CommandKind::Utimes,
            Self::End => CommandKind::End,
            Self::UpdateExtent { .. } => CommandKind::UpdateExtent,
            Self::Fallocate { .. } => CommandKind::Fallocate,
            Self::Fileattr { .. } => CommandKind::Fileattr,
            Self::EncodedWrite(_) => CommandKind::EncodedWrite,
        }
    }

    /// Appends the command with header and checksum to `out`.
    ///
    /// # Errors [`SendStreamFault::Command`] if the protocol lacks the command;
    /// [`SendStreamFault::TooLong`]. `out` is then as before, and the error's offset is one in
    /// `out`.
    pub fn append_to(&self, protocol: Protocol, out: &mut Vec<u8>) -> Result<(), SendStreamError> {
        let kind = self.kind();
        if kind.since() > protocol {
            let fault = SendStreamFault::Command { command: kind as u16, protocol: protocol as u32 };
            return Err(fault.at(out.len() as u64));
        }
        let mut writer = Writer::new(out, protocol, kind);
        self.append_names(&mut writer);
        self.append_content(&mut writer, protocol);
        writer.finish()
    }

    /// Appends the attributes of commands that create, rename and remove.
    fn append_names(&self, w: &mut Writer<'_>) {
        match self {
            Self::Subvol { path, uuid, ctransid } => {
                w.bytes(A::Path, path).uuid(A::Uuid, uuid).number(A::Ctransid, *ctransid);
            }
            Self::Snapshot { path, uuid, ctransid, clone_uuid, clone_ctransid } => {
                w.bytes(A::Path, path).uuid(A::Uuid, uuid).number(A::Ctransid, *ctransid);
                w.uuid(A::CloneUuid, clone_uuid).number(A::CloneCtransid, *clone_ctransid);
            }
            Self::Mkfile { path, inode } | Self::Mkdir { path, inode } => {
                w.bytes(A::Path, path).number(A::Ino, *inode);
            }
            Self::Mknod { path, inode, rdev, mode }
            | Self::Mkfifo { path, inode, rdev, mode }
            | Self::Mksock { path, inode, rdev, mode } => {
                w.bytes(A::Path, path).number(A::Ino, *inode);
                w.number(A::Rdev, *rdev).number(A::Mode, *mode);
            }
            Self::Symlink { path, inode, target } => {
                w.bytes(A::Path, path).number(A::Ino, *inode).bytes(A::PathLink, target);
            }
            Self::Rename { from, to } => {
                w.bytes(A::Path, from).bytes(A::PathTo, to);
            }
            Self::Link { path, existing } => {
                w.bytes(A::Path, path).bytes(A::PathLink, existing);
            }
            Self::Unlink { path } | Self::Rmdir { path } => {
                w.bytes(A::Path, path);
            }
            _ => {}
        }
    }

    /// Appends the attributes of commands that change an inode.
    fn append_content(&self, w: &mut Writer<'_>, protocol: Protocol) {
        match self {
            Self::SetXattr { path, name, value } => {
                w.bytes(A::Path, path).bytes(A::XattrName, name).bytes(A::XattrData, value);
            }
            Self::RemoveXattr { path, name } => {
                w.bytes(A::Path, path).bytes(A::XattrName, name);
            }
            Self::Write { path, offset, data } => {
                w.bytes(A::Path, path).number(A::FileOffset, *offset).bytes(A::Data, data);
            }
            Self::Clone { offset, length, path, clone_uuid, clone_ctransid, clone_path, clone_offset } => {
                w.number(A::FileOffset, *offset).number(A::CloneLen, *length).bytes(A::Path, path);
                w.uuid(A::CloneUuid, clone_uuid).number(A::CloneCtransid, *clone_ctransid);
                w.bytes(A::ClonePath, clone_path).number(A::CloneOffset, *clone_offset);
            }
            Self::Truncate { path, size } => {
                w.bytes(A::Path, path).number(A::Size, *size);
            }
            Self::Chmod { path, mode } => {
                w.bytes(A::Path, path).number(A::Mode, *mode);
            }
            Self::Chown { path, uid, gid } => {
                w.bytes(A::Path, path).number(A::Uid, *uid).number(A::Gid, *gid);
            }
            Self::Utimes { path, atime, mtime, ctime, otime } => {
                w.bytes(A::Path, path).time(A::Atime, atime).time(A::Mtime, mtime).time(A::Ctime, ctime);
                if let Some(otime) = otime.as_ref().filter(|_| protocol >= Protocol::V2) {
                    w.time(A::Otime, otime);
                }
            }
            Self::UpdateExtent { path, offset, size } => {
                w.bytes(A::Path, path).number(A::FileOffset, *offset).number(A::Size, *size);
            }
            Self::Fallocate { path, mode, offset, size } => {
                w.bytes(A::Path, path).short(A::FallocateMode, *mode);
                w.number(A::FileOffset, *offset).number(A::Size, *size);
            }
            Self::Fileattr { path, attributes } => {
                w.bytes(A::Path, path).number(A::Fileattr, *attributes);
            }
            Self::EncodedWrite(write) => {
                w.bytes(A::Path, &write.path).number(A::FileOffset, write.offset);
                w.number(A::UnencodedFileLen, write.file_length);
                w.number(A::UnencodedLen, write.unencoded_length);
                w.number(A::UnencodedOffset, write.unencoded_offset);
                w.short(A::Compression, write.compression);
                if let Some(encryption) = write.encryption {
                    w.short(A::Encryption, encryption);
                }
                w.bytes(A::Data, &write.data);
            }
            _ => {}
        }
    }
}
