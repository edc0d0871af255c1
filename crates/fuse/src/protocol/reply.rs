//! A reply's body, in the buffer that held the request's payload.
//!
//! Owns [`Answer`] with the encoding of each kind, and [`Listing`], which encodes directory entries
//! in place. Nothing is written past the payload.
//!
//! Kernel counterpart: `fuse_copy_out_args` (`fs/fuse/dev.c`), which takes all arguments of a reply
//! from the payload, one after another.

use super::layout::{
    Attr, AttrOut, CopyOut64, Dirent, EntryOut, GetXattrOut, IoctlOut, LseekOut, OpenOut, STATX_MASK,
    StatfsOut, Statx, StatxOut, StatxTime, WriteOut,
};
use crate::device_number;
use crate::transport::{Attributes, DirectorySink, Entry, FileSystemSizes, ListedEntry, Validity};
use papilio::{FileKind, Timespec};
use papilio_ioctl::Errno;
use zerocopy::{Immutable, IntoBytes};

/// The answer to a request that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Success without data.
    Done,
    Entry(Entry),
    /// The name does not exist; the kernel caches this.
    NoEntry,
    Created(Entry, u32),
    Attributes(Attributes),
    ExtendedAttributes(Attributes),
    Opened {
        handle: u64,
        flags: u32,
    },
    Written(u32),
    /// The length of a copy that may exceed 4 GiB.
    Copied(u64),
    Bytes(Vec<u8>),
    /// The length of an extended attribute.
    Length(u32),
    Sizes(FileSystemSizes),
    Offset(u64),
    Ioctl {
        result: i32,
        output: Vec<u8>,
    },
}

impl Answer {
    /// Encodes the answer into the payload and returns its length in bytes. The kernel may cache
    /// names and attributes for `valid`.
    ///
    /// # Errors
    /// EIO if the answer does not fit.
    pub(crate) fn encode(&self, valid: Validity, payload: &mut [u8]) -> Result<usize, Errno> {
        let mut out = Out { payload, used: 0 };
        match self {
            Self::Done => {}
            Self::Entry(entry) => out.put(&entry_out(entry, entry.attributes.number, valid))?,
            Self::NoEntry => out.put(&no_entry(valid))?,
            Self::Created(entry, flags) => {
                out.put(&entry_out(entry, entry.attributes.number, valid))?;
                out.put(&OpenOut { handle: 0, flags: *flags, backing: 0 })?;
            }
            Self::Attributes(attributes) => out.put(&AttrOut {
                valid: valid.attributes.as_secs(),
                valid_nanoseconds: valid.attributes.subsec_nanos(),
                padding: 0,
                attributes: attr(attributes, attributes.number),
            })?,
            Self::ExtendedAttributes(attributes) => out.put(&StatxOut {
                valid: valid.attributes.as_secs(),
                valid_nanoseconds: valid.attributes.subsec_nanos(),
                flags: 0,
                spare: [0; 2],
                attributes: statx(attributes),
            })?,
            Self::Opened { handle, flags } => {
                out.put(&OpenOut { handle: *handle, flags: *flags, backing: 0 })?;
            }
            Self::Written(size) => out.put(&WriteOut { size: *size, padding: 0 })?,
            Self::Copied(bytes) => out.put(&CopyOut64 { bytes: *bytes })?,
            Self::Bytes(bytes) => out.put_bytes(bytes)?,
            Self::Length(size) => out.put(&GetXattrOut { size: *size, padding: 0 })?,
            Self::Sizes(sizes) => out.put(&statfs(sizes))?,
            Self::Offset(offset) => out.put(&LseekOut { offset: *offset as i64 })?,
            Self::Ioctl { result, output } => {
                // The last three fields matter only for servers that follow pointers.
                out.put(&IoctlOut { result: *result, flags: 0, in_parts: 0, out_parts: 0 })?;
                out.put_bytes(output)?;
            }
        }
        Ok(out.used)
    }
}

/// The payload and its filled length.
struct Out<'a> {
    payload: &'a mut [u8],
    used: usize,
}

impl Out<'_> {
    fn put(&mut self, part: &(impl IntoBytes + Immutable)) -> Result<(), Errno> {
        self.put_bytes(part.as_bytes())
    }

    fn put_bytes(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        let end = self.used + bytes.len();
        self.payload
            .get_mut(self.used..end)
            .ok_or_else(|| Errno::io(&"the reply does not fit its buffer"))?
            .copy_from_slice(bytes);
        self.used = end;
        Ok(())
    }
}

/// Returns the bits of `st_mode` for a kind of file.
fn type_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::Regular => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::CharacterDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
    }
}

fn attr(attributes: &Attributes, number: u64) -> Attr {
    Attr {
        number,
        size: attributes.size,
        blocks: attributes.blocks,
        atime: attributes.atime.seconds,
        mtime: attributes.mtime.seconds,
        ctime: attributes.ctime.seconds,
        atime_nanoseconds: attributes.atime.nanoseconds,
        mtime_nanoseconds: attributes.mtime.nanoseconds,
        ctime_nanoseconds: attributes.ctime.nanoseconds,
        mode: type_bits(attributes.kind) | attributes.permissions & 0o7777,
        links: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        device: device_number::pack(attributes.device),
        block_size: attributes.block_size,
        flags: 0,
    }
}

fn statx(attributes: &Attributes) -> Statx {
    let time =
        |time: Timespec| StatxTime { seconds: time.seconds, nanoseconds: time.nanoseconds, reserved: 0 };
    let (major, minor) = attributes.device;
    Statx {
        mask: STATX_MASK,
        block_size: attributes.block_size,
        links: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        mode: (type_bits(attributes.kind) | attributes.permissions & 0o7777) as u16,
        number: attributes.number,
        size: attributes.size,
        blocks: attributes.blocks,
        atime: time(attributes.atime),
        btime: time(attributes.btime),
        ctime: time(attributes.ctime),
        mtime: time(attributes.mtime),
        device: [major, minor],
        ..zerocopy::FromZeros::new_zeroed()
    }
}

fn entry_out(entry: &Entry, number: u64, valid: Validity) -> EntryOut {
    EntryOut {
        node: entry.node.0,
        generation: entry.generation,
        attributes: attr(&entry.attributes, number),
        ..no_entry(valid)
    }
}

fn no_entry(valid: Validity) -> EntryOut {
    let nothing: EntryOut = zerocopy::FromZeros::new_zeroed();
    EntryOut {
        entry_valid: valid.attributes.as_secs(),
        attributes_valid: valid.attributes.as_secs(),
        entry_valid_nanoseconds: valid.attributes.subsec_nanos(),
        attributes_valid_nanoseconds: valid.attributes.subsec_nanos(),
        ..nothing
    }
}

fn statfs(sizes: &FileSystemSizes) -> StatfsOut {
    StatfsOut {
        blocks: sizes.blocks,
        free: sizes.free,
        available: sizes.available,
        // Btrfs has no limit on inodes, which zeros express.
        files: 0,
        free_files: 0,
        block_size: sizes.block_size,
        name_max: sizes.name_max,
        fragment_size: sizes.block_size,
        padding: 0,
        spare: [0; 6],
    }
}

/// A directory listing in the payload.
pub(crate) struct Listing<'a> {
    buffer: &'a mut [u8],
    used: usize,
    /// Entries have attributes, which the kernel may cache for this long.
    attributes: Option<Validity>,
}

impl<'a> Listing<'a> {
    /// Creates a listing of at most `buffer.len()` bytes.
    pub(crate) fn new(buffer: &'a mut [u8], attributes: Option<Validity>) -> Self {
        Self { buffer, used: 0, attributes }
    }

    /// Returns the length of the listing in bytes.
    pub(crate) fn used(&self) -> usize {
        self.used
    }
}

impl DirectorySink for Listing<'_> {
    fn add(&mut self, entry: &ListedEntry<'_>) -> bool {
        let Ok(name_length) = u32::try_from(entry.name.len()) else { return false };
        let before = if self.attributes.is_some() { size_of::<EntryOut>() } else { 0 };
        let name_at = before + size_of::<Dirent>();
        let length = (name_at + entry.name.len()).next_multiple_of(8);
        let Some(target) = self.buffer.get_mut(self.used..).and_then(|rest| rest.get_mut(..length)) else {
            return false;
        };
        if let Some(valid) = self.attributes {
            let Some(known) = &entry.entry else { return false };
            target[..before].copy_from_slice(entry_out(known, entry.number, valid).as_bytes());
        }
        let kind = type_bits(entry.kind) >> 12;
        let dirent = Dirent { number: entry.number, next: entry.next, name_length, kind };
        target[before..name_at].copy_from_slice(dirent.as_bytes());
        let (name, padding) = target[name_at..].split_at_mut(entry.name.len());
        name.copy_from_slice(entry.name);
        padding.fill(0);
        self.used += length;
        true
    }
}
