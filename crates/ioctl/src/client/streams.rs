//! The client's side of ioctls that send and receive use.
//!
//! Owns [`SendRequest`] and [`EncodedPart`]. Some of these ioctls take addresses, so they are
//! issued here and not by [`MountedPath::call`].

use super::{MountedPath, garbled};
use crate::host;
use crate::layout::{
    EncodedIo, FileCloneRange, InoLookup, IoctlTimespec, ReceivedSubvol, SendArgs, until_nul,
};
use crate::number::Command;
use papilio_engine::subvolume::Received;
use papilio_format::Uuid;
use papilio_format::items::root_ref::RootRef;
use papilio_format::items::uuid_tree::{UuidItem, uuid_key};
use papilio_format::{ItemType, Key, TreeId, objectid};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// `BTRFS_SEND_FLAG_VERSION`.
const VERSION: u64 = 1 << 3;
const NO_FILE_DATA: u64 = 1 << 0;
const OMIT_STREAM_HEADER: u64 = 1 << 1;
const OMIT_END_COMMAND: u64 = 1 << 2;
const COMPRESSED: u64 = 1 << 4;

/// A request to send a subvolume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SendRequest {
    /// The subvolume that the receiver has, from which the difference is sent.
    pub parent: Option<TreeId>,
    /// Subvolumes that the receiver has, from which data may be cloned.
    pub clone_sources: Vec<TreeId>,
    /// The protocol; 0 is the newest one.
    pub protocol: u32,
    /// Changed ranges are named, without their data.
    pub no_data: bool,
    /// Compressed extents are sent as they lie.
    pub compressed: bool,
    /// The stream's header is left out.
    pub omit_header: bool,
    /// The command that ends the stream is left out.
    pub omit_end: bool,
}

/// A compressed extent, and the part of it that a file gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodedPart<'a> {
    /// The compressed bytes.
    pub data: &'a [u8],
    /// Byte of the file.
    pub offset: u64,
    /// Bytes of the file.
    pub length: u64,
    /// Bytes of the whole extent, without compression.
    pub unencoded_length: u64,
    /// Bytes of the extent before those of the file.
    pub unencoded_offset: u64,
    /// `BTRFS_ENCODED_IO_COMPRESSION_*`.
    pub compression: u32,
}

impl MountedPath {
    /// Writes the stream of the subvolume with this root to `out`, a pipe for example. Another
    /// thread must read the pipe meanwhile.
    ///
    /// # Errors
    /// EPERM if a subvolume is not read-only, or without `CAP_SYS_ADMIN`; EPROTO for a protocol
    /// that is unknown; ENOTTY if it is no Btrfs, or one of Papilio whose server may not look into
    /// this process; EPIPE if the reader has gone; errors of reading.
    pub fn send(&self, out: BorrowedFd<'_>, request: &SendRequest) -> io::Result<()> {
        let sources: Vec<u64> = request.clone_sources.iter().map(|source| source.0).collect();
        let flag = |set, flag| if set { flag } else { 0 };
        let mut arguments = SendArgs {
            fd: out.as_raw_fd().into(),
            source_count: sources.len() as u64,
            sources: if sources.is_empty() { 0 } else { sources.as_ptr() as u64 },
            parent: request.parent.map_or(0, |parent| parent.0),
            // Kernels before 6.0 know protocol 1 only, and no flag for it.
            flags: flag(request.protocol != 1, VERSION)
                | flag(request.no_data, NO_FILE_DATA)
                | flag(request.omit_header, OMIT_STREAM_HEADER)
                | flag(request.omit_end, OMIT_END_COMMAND)
                | flag(request.compressed, COMPRESSED),
            version: if request.protocol == 1 { 0 } else { request.protocol },
            ..SendArgs::default()
        };
        // SAFETY: the callee reads `arguments`, and as many ids at `sources` as `source_count`
        // says. Both live until the call returns. Nothing is written.
        unsafe { host::ioctl(self.file().as_fd(), Command::SEND, &raw mut arguments) }.map(|_| ())
    }

    /// Marks the subvolume with this root as received.
    ///
    /// # Errors
    /// EPERM for another user's subvolume; EROFS if it is read-only.
    pub fn set_received(&self, received: &Received) -> io::Result<()> {
        let send_time = IoctlTimespec {
            seconds: received.send_time.seconds as u64,
            nanoseconds: received.send_time.nanoseconds,
            ..IoctlTimespec::default()
        };
        let mut arguments = ReceivedSubvol {
            uuid: *received.uuid.as_bytes(),
            sent: received.sent.0,
            send_time,
            ..ReceivedSubvol::default()
        };
        self.call(Command::SET_RECEIVED_SUBVOL, &mut arguments)
    }

    /// Returns the ids of the subvolumes with this UUID: those that were received as it, then the
    /// one whose own it is.
    ///
    /// # Errors
    /// EPERM without `CAP_SYS_ADMIN`; ENOTTY if it is no Btrfs.
    pub fn subvolumes_by_uuid(&self, uuid: Uuid) -> io::Result<Vec<TreeId>> {
        let mut found = Vec::new();
        for kind in [ItemType::UUID_RECEIVED_SUBVOL, ItemType::UUID_SUBVOL] {
            let key = uuid_key(uuid, kind);
            self.search_tree(objectid::UUID_TREE, key..=key, 0, |_, _, item| {
                found.extend(UuidItem::parse(item).map_err(|_| garbled())?.subvolumes());
                Ok(())
            })?;
        }
        Ok(found)
    }

    /// Returns the subvolume that contains the subvolume `id`, and the path there, which starts at
    /// the root of the containing one. Returns `None` for the top level and for deleted subvolumes.
    ///
    /// # Errors
    /// As [`MountedPath::subvolumes_by_uuid`].
    pub fn containing_subvolume(&self, id: TreeId) -> io::Result<Option<(TreeId, Vec<u8>)>> {
        let keys =
            Key::new(id.0, ItemType::ROOT_BACKREF, 0)..=Key::new(id.0, ItemType::ROOT_BACKREF, u64::MAX);
        let mut found = None;
        self.search_tree(objectid::ROOT_TREE, keys, 0, |_, key, item| {
            let entry = RootRef::parse(item).map_err(|_| garbled())?;
            found = Some((TreeId(key.offset), entry.directory, entry.name.to_vec()));
            Ok(())
        })?;
        let Some((parent, directory, name)) = found else { return Ok(None) };
        let mut lookup = InoLookup { tree: parent.0, inode: directory.0, ..InoLookup::default() };
        if directory != objectid::FIRST_INODE {
            self.call(Command::INO_LOOKUP, &mut lookup)?;
        }
        let path = until_nul(&lookup.name).ok_or_else(garbled)?;
        Ok(Some((parent, [path, &name].concat())))
    }

    /// Shares a range of `source` with this file, which is open for writing (`FICLONERANGE`).
    ///
    /// # Errors
    /// EOPNOTSUPP, EXDEV or EINVAL if the file system cannot share it.
    pub fn clone_range(&self, source: &File, from: u64, length: u64, to: u64) -> io::Result<()> {
        let mut range = FileCloneRange { source: source.as_raw_fd().into(), from, length, to };
        self.call(Command::CLONE_RANGE, &mut range)
    }

    /// Writes a compressed extent as it lies to this file, which is open for writing.
    ///
    /// # Errors
    /// ENOTTY if the file system takes none; EINVAL, ENOSPC if it cannot take this one so; EPERM
    /// without `CAP_SYS_ADMIN`.
    pub fn write_encoded(&self, part: &EncodedPart<'_>) -> io::Result<()> {
        let buffer = libc::iovec { iov_base: part.data.as_ptr() as *mut _, iov_len: part.data.len() };
        let mut arguments = EncodedIo {
            buffers: std::ptr::from_ref(&buffer) as u64,
            buffer_count: 1,
            offset: part.offset,
            length: part.length,
            unencoded_length: part.unencoded_length,
            unencoded_offset: part.unencoded_offset,
            compression: part.compression,
            ..EncodedIo::default()
        };
        // SAFETY: the kernel reads `arguments`, the one `buffer`, and the bytes that it names. All
        // live until the call returns. It writes to the file only.
        unsafe { host::ioctl(self.file().as_fd(), Command::ENCODED_WRITE, &raw mut arguments) }.map(|_| ())
    }

    /// Reads from byte `offset` of this file as the data lies, into `buffer`. Returns the number of
    /// bytes in it, and the part of the file that they hold, with no data.
    ///
    /// # Errors
    /// ENOBUFS if the compressed extent does not fit; ENOTTY if the file system has no such call;
    /// EPERM without `CAP_SYS_ADMIN`.
    pub fn read_encoded(&self, offset: u64, buffer: &mut [u8]) -> io::Result<(usize, EncodedPart<'static>)> {
        let buffers = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let mut arguments = EncodedIo {
            buffers: std::ptr::from_ref(&buffers) as u64,
            buffer_count: 1,
            offset,
            ..EncodedIo::default()
        };
        // SAFETY: the kernel reads `arguments` and the one item of `buffers`. It writes `arguments`
        // and at most the bytes of `buffer`, which is borrowed mutably until the call returns.
        let read =
            unsafe { host::ioctl(self.file().as_fd(), Command::ENCODED_READ, &raw mut arguments)? } as usize;
        let part = EncodedPart {
            data: &[],
            offset,
            length: arguments.length,
            unencoded_length: arguments.unencoded_length,
            unencoded_offset: arguments.unencoded_offset,
            compression: arguments.compression,
        };
        Ok((read, part))
    }
}
