//! A request, decoded from the bytes that the kernel sent.
//!
//! Owns [`Head`], the parts that each request has, and [`Request`]. A transport makes a head and
//! knows where the payload is: names, data and further arguments. The decoder checks every length
//! against the bytes that exist; a request that does not fit is [`DecodeError::Malformed`].
//!
//! Kernel counterpart: the callers of `fuse_simple_request` (`fs/fuse/`).

use super::layout::{
    BatchForgetIn, CopyFileRangeIn, CreateIn, FSYNC_DATA_ONLY, FallocateIn, ForgetIn, ForgetOne, FsyncIn,
    GETATTR_BY_HANDLE, GetXattrIn, GetattrIn, IOCTL_SHORT_POINTERS, InHeader, InitIn, IoctlIn, LinkIn,
    LseekIn, MkdirIn, MknodIn, OpenIn, READ_FOR_CALLER, ReadIn, ReleaseIn, Rename2In, RenameIn,
    RequestHeader, SetAttrIn, SetXattrIn, StatxIn, WRITE_FROM_CACHE, WRITE_KILLS_PRIVILEGES, WriteIn, opcode,
    valid,
};
use crate::ioctl::Caller;
use crate::transport::{
    AttributeChange, CopyRange, DataAccess, DirectoryHandle, Ioctl, NewNode, NewNodeKind, NodeId, Rename,
    SeekTo, Write, XattrSet,
};
use papilio::{RenameMode, SetTime, Timespec};
use papilio_ioctl::Errno;
use zerocopy::FromBytes;

/// Reasons why a request cannot be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DecodeError {
    /// The kernel would not send these bytes.
    #[error("operation {opcode}: {what}")]
    Malformed {
        /// The operation's number.
        opcode: u32,
        /// The inconsistency.
        what: &'static str,
    },
    /// The server does not implement the operation.
    #[error("operation {0} is not supported")]
    Unknown(u32),
    /// No file system could fulfil the request.
    #[error("request refused with errno {}", .0.code())]
    Refused(Errno),
}

impl DecodeError {
    /// Returns the error number for the caller.
    pub(crate) fn errno(self) -> Errno {
        match self {
            Self::Malformed { .. } => Errno::io(&self),
            Self::Unknown(_) => Errno(libc::ENOSYS),
            Self::Refused(errno) => errno,
        }
    }
}

/// What `setxattr` expects of an existing attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetHow {
    /// A request that the library supports.
    Set(XattrSet),
    /// The attribute must exist and must not exist; the reply is the violated condition.
    Never,
}

/// The operation and its arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body<'a> {
    Lookup {
        name: &'a [u8],
    },
    Attributes {
        by_handle: bool,
    },
    /// Those of `statx`, with the birth time.
    ExtendedAttributes,
    SetAttributes(AttributeChange),
    ReadLink,
    Make(NewNode<'a>),
    Create {
        new: NewNode<'a>,
        flags: i32,
    },
    CreateUnnamed {
        new: NewNode<'a>,
        flags: i32,
    },
    Link {
        node: NodeId,
        name: &'a [u8],
    },
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    Rename(Rename<'a>),
    Open {
        flags: i32,
    },
    Release {
        flags: i32,
    },
    /// The data of a write is the payload.
    Data(DataAccess),
    Sync {
        data_only: bool,
    },
    SyncAll,
    Allocate {
        offset: u64,
        length: u64,
        mode: i32,
    },
    Seek {
        offset: u64,
        to: SeekTo,
    },
    /// `long` if the reply can express more than 4 GiB.
    CopyRange {
        range: CopyRange,
        long: bool,
    },
    OpenDirectory,
    List {
        handle: DirectoryHandle,
        offset: u64,
        size: usize,
        attributes: bool,
    },
    ReleaseDirectory(DirectoryHandle),
    Sizes,
    Xattr {
        name: &'a [u8],
        size: u32,
    },
    ListXattrs {
        size: u32,
    },
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        how: SetHow,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    Ioctl(Ioctl<'a>),
}

/// The parts that each request has: the header, and the operation's first argument.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// The general header.
    pub(crate) general: InHeader,
    argument: [u8; ARGUMENT],
    argument_length: usize,
    /// Number of bytes of the payload.
    pub(crate) payload: usize,
}

/// Length of the offer of kernels before Linux 5.17 (protocol 7.36) in bytes.
const OLDEST_OFFER: usize = 16;
/// Space for the first argument in bytes; the longest has 88.
const ARGUMENT: usize = 128;

impl Head {
    /// Reads the head of a request that lies in an entry of a ring.
    ///
    /// # Errors
    /// [`DecodeError::Malformed`] if the lengths contradict one another.
    pub(crate) fn of_entry(header: &RequestHeader, buffer: usize) -> Result<Self, DecodeError> {
        let (general, _) = InHeader::read_from_prefix(&header.in_out).expect("the header fits its field");
        let malformed = |what| DecodeError::Malformed { opcode: general.opcode, what };
        let payload = header.entry.payload as usize;
        if payload > buffer {
            return Err(malformed("the payload is longer than its buffer"));
        }
        let length = (general.length as usize).checked_sub(size_of::<InHeader>() + payload);
        let argument_length = length.filter(|&length| length <= ARGUMENT);
        let argument_length = argument_length.ok_or(malformed("the lengths contradict one another"))?;
        Ok(Self { general, argument: header.operation, argument_length, payload })
    }

    /// Reads the head of a request that was read from `/dev/fuse`. The payload is at its end.
    ///
    /// # Errors
    /// [`DecodeError::Malformed`] if a length is wrong.
    pub(crate) fn of_message(message: &[u8]) -> Result<Self, DecodeError> {
        let Ok((general, rest)) = InHeader::read_from_prefix(message) else {
            return Err(DecodeError::Malformed { opcode: 0, what: "the header is incomplete" });
        };
        let malformed = |what| DecodeError::Malformed { opcode: general.opcode, what };
        if general.length as usize != message.len() {
            return Err(malformed("the length is not that of the message"));
        }
        let argument_length = match general.opcode {
            // Kernels before Linux 5.17 offer less.
            opcode::INIT => size_of::<InitIn>().min(rest.len()),
            operation => argument_length(operation),
        };
        let Some((first, payload)) = rest.split_at_checked(argument_length) else {
            return Err(malformed("an argument is too short"));
        };
        let mut argument = [0; ARGUMENT];
        argument[..argument_length].copy_from_slice(first);
        Ok(Self { general, argument, argument_length, payload: payload.len() })
    }

    /// Returns the process that made the request.
    pub(crate) fn caller(&self) -> Caller {
        Caller { uid: self.general.uid, gid: self.general.gid, pid: self.general.pid }
    }

    /// Returns the first argument. Newer kernels may append fields.
    ///
    /// # Errors
    /// [`DecodeError::Malformed`] if it is too short.
    pub(crate) fn argument<T: FromBytes>(&self) -> Result<T, DecodeError> {
        let found = T::read_from_prefix(&self.argument[..self.argument_length]);
        let what = "an argument is too short";
        let malformed = DecodeError::Malformed { opcode: self.general.opcode, what };
        found.map(|(argument, _)| argument).map_err(|_| malformed)
    }

    /// Returns the kernel's offer. Fields that older kernels do not send are 0.
    ///
    /// # Errors
    /// [`DecodeError::Malformed`] if it is too short for any kernel's.
    pub(crate) fn offer(&self) -> Result<InitIn, DecodeError> {
        let mut bytes = [0; size_of::<InitIn>()];
        let length = self.argument_length.min(bytes.len());
        if length < OLDEST_OFFER {
            let what = "the offer is too short";
            return Err(DecodeError::Malformed { opcode: self.general.opcode, what });
        }
        bytes[..length].copy_from_slice(&self.argument[..length]);
        Ok(InitIn::read_from_bytes(&bytes).expect("the bytes have its size"))
    }

    /// Returns whether a question for attributes comes from an open file.
    ///
    /// # Errors
    /// [`DecodeError::Malformed`] if the argument is too short.
    pub(crate) fn asks_by_handle(&self) -> Result<bool, DecodeError> {
        Ok(self.argument::<GetattrIn>()?.flags & GETATTR_BY_HANDLE != 0)
    }

    /// Returns whether a request to read is of a file that its caller has open for direct I/O.
    pub(crate) fn reads_directly(&self) -> bool {
        self.argument::<ReadIn>().is_ok_and(|read| flags_of(&read) & libc::O_DIRECT != 0)
    }

    /// Returns the nodes that a request to forget names, each with its count of look-ups.
    ///
    /// # Errors
    /// [`DecodeError::Malformed`] if the payload is too short.
    pub(crate) fn forgotten<'a>(
        &self,
        payload: &'a [u8],
    ) -> Result<impl Iterator<Item = (NodeId, u64)> + use<'a>, DecodeError> {
        let (single, several) = match self.general.opcode {
            opcode::FORGET => (Some((NodeId(self.general.node), self.argument::<ForgetIn>()?.lookups)), 0),
            _ => (None, self.argument::<BatchForgetIn>()?.count as usize),
        };
        let bytes = several.checked_mul(size_of::<ForgetOne>()).and_then(|bytes| payload.get(..bytes));
        let what = "nodes are missing";
        let bytes = bytes.ok_or(DecodeError::Malformed { opcode: self.general.opcode, what })?;
        let several = bytes.chunks_exact(size_of::<ForgetOne>()).map(|one| {
            let ForgetOne { node, lookups } = ForgetOne::read_from_bytes(one).expect("one has this size");
            (NodeId(node), lookups)
        });
        Ok(single.into_iter().chain(several))
    }
}

/// Returns the flags of the open file that a request reads for.
fn flags_of(read: &ReadIn) -> i32 {
    match read.read_flags & READ_FOR_CALLER {
        // A page for the cache, although a mapping's descriptor may be for direct I/O.
        0 => read.flags & !libc::O_DIRECT,
        _ => read.flags,
    }
}

/// Returns the length of an operation's first argument, which the payload follows.
fn argument_length(operation: u32) -> usize {
    match operation {
        opcode::FORGET => size_of::<ForgetIn>(),
        opcode::GETATTR => size_of::<GetattrIn>(),
        opcode::SETATTR => size_of::<SetAttrIn>(),
        opcode::MKNOD => size_of::<MknodIn>(),
        opcode::MKDIR => size_of::<MkdirIn>(),
        opcode::RENAME => size_of::<RenameIn>(),
        opcode::LINK => size_of::<LinkIn>(),
        opcode::OPEN | opcode::OPENDIR => size_of::<OpenIn>(),
        opcode::READ | opcode::READDIR | opcode::READDIRPLUS => size_of::<ReadIn>(),
        opcode::WRITE => size_of::<WriteIn>(),
        opcode::RELEASE | opcode::RELEASEDIR => size_of::<ReleaseIn>(),
        opcode::FSYNC | opcode::FSYNCDIR => size_of::<FsyncIn>(),
        opcode::SETXATTR => size_of::<SetXattrIn>(),
        opcode::GETXATTR | opcode::LISTXATTR => size_of::<GetXattrIn>(),
        opcode::INIT => size_of::<InitIn>(),
        opcode::CREATE | opcode::TMPFILE => size_of::<CreateIn>(),
        opcode::IOCTL => size_of::<IoctlIn>(),
        opcode::BATCH_FORGET => size_of::<BatchForgetIn>(),
        opcode::FALLOCATE => size_of::<FallocateIn>(),
        opcode::RENAME2 => size_of::<Rename2In>(),
        opcode::LSEEK => size_of::<LseekIn>(),
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => size_of::<CopyFileRangeIn>(),
        opcode::STATX => size_of::<StatxIn>(),
        _ => 0,
    }
}

/// A decoded request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) node: NodeId,
    pub(crate) caller: Caller,
    pub(crate) body: Body<'a>,
}

impl<'a> Request<'a> {
    /// Decodes a request; `buffer` starts with its payload.
    pub(crate) fn decode(head: &'a Head, buffer: &'a [u8]) -> Result<Self, DecodeError> {
        let general = &head.general;
        let payload = buffer.get(..head.payload).ok_or(DecodeError::Malformed {
            opcode: general.opcode,
            what: "the payload is longer than its buffer",
        })?;
        let fields = Fields { opcode: general.opcode, head, payload };
        let body = fields.body(NodeId(general.node))?;
        Ok(Self { node: NodeId(general.node), caller: head.caller(), body })
    }
}

/// The operation's own parts of a request.
struct Fields<'a> {
    opcode: u32,
    head: &'a Head,
    payload: &'a [u8],
}

impl<'a> Fields<'a> {
    fn malformed(&self, what: &'static str) -> DecodeError {
        DecodeError::Malformed { opcode: self.opcode, what }
    }

    fn argument<T: FromBytes>(&self) -> Result<T, DecodeError> {
        self.head.argument()
    }

    /// Returns the payload's first name and the bytes after its NUL.
    fn name_and_rest(&self) -> Result<(&'a [u8], &'a [u8]), DecodeError> {
        let end = self.payload.iter().position(|&byte| byte == 0);
        let end = end.ok_or_else(|| self.malformed("a name lacks its NUL"))?;
        Ok((&self.payload[..end], &self.payload[end + 1..]))
    }

    fn name(&self) -> Result<&'a [u8], DecodeError> {
        Ok(self.name_and_rest()?.0)
    }

    fn two_names(&self) -> Result<(&'a [u8], &'a [u8]), DecodeError> {
        let (first, rest) = self.name_and_rest()?;
        let end = rest.iter().position(|&byte| byte == 0);
        let end = end.ok_or_else(|| self.malformed("the second name lacks its NUL"))?;
        Ok((first, &rest[..end]))
    }

    fn body(&self, node: NodeId) -> Result<Body<'a>, DecodeError> {
        Ok(match self.opcode {
            opcode::GETATTR => Body::Attributes { by_handle: self.head.asks_by_handle()? },
            opcode::STATX => {
                self.argument::<StatxIn>()?;
                Body::ExtendedAttributes
            }
            opcode::SETATTR => Body::SetAttributes(change(&self.argument()?)),
            opcode::OPEN => Body::Open { flags: self.argument::<OpenIn>()?.flags },
            opcode::RELEASE => Body::Release { flags: self.argument::<ReleaseIn>()?.flags },
            opcode::READ => {
                let read: ReadIn = self.argument()?;
                let (offset, size, flags) = (read.offset, read.size, flags_of(&read));
                Body::Data(DataAccess::Read { offset, length: size as usize, flags })
            }
            opcode::WRITE => self.write()?,
            opcode::FSYNC | opcode::FSYNCDIR => {
                Body::Sync { data_only: self.argument::<FsyncIn>()?.flags & FSYNC_DATA_ONLY != 0 }
            }
            opcode::SYNCFS => Body::SyncAll,
            opcode::FALLOCATE => {
                let FallocateIn { offset, length, mode, .. } = self.argument()?;
                Body::Allocate { offset, length, mode }
            }
            opcode::LSEEK => seek(&self.argument()?)?,
            opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
                let CopyFileRangeIn { source_offset, target, target_offset, length, .. } = self.argument()?;
                let target = NodeId(target);
                let range = CopyRange { source: node, source_offset, target, target_offset, length };
                Body::CopyRange { range, long: self.opcode == opcode::COPY_FILE_RANGE_64 }
            }
            opcode::OPENDIR => Body::OpenDirectory,
            opcode::READDIR | opcode::READDIRPLUS => {
                let ReadIn { handle, offset, size, .. } = self.argument()?;
                let (handle, size) = (DirectoryHandle(handle), size as usize);
                Body::List { handle, offset, size, attributes: self.opcode == opcode::READDIRPLUS }
            }
            opcode::RELEASEDIR => {
                Body::ReleaseDirectory(DirectoryHandle(self.argument::<ReleaseIn>()?.handle))
            }
            opcode::STATFS => Body::Sizes,
            opcode::IOCTL => self.ioctl()?,
            _ => self.names(node)?,
        })
    }

    /// Decodes operations on names.
    fn names(&self, node: NodeId) -> Result<Body<'a>, DecodeError> {
        Ok(match self.opcode {
            opcode::LOOKUP => Body::Lookup { name: self.name()? },
            opcode::READLINK => Body::ReadLink,
            opcode::UNLINK => Body::Unlink { name: self.name()? },
            opcode::RMDIR => Body::Rmdir { name: self.name()? },
            opcode::LINK => Body::Link { node: NodeId(self.argument::<LinkIn>()?.node), name: self.name()? },
            opcode::MKNOD | opcode::MKDIR | opcode::SYMLINK => Body::Make(self.new_node(node)?),
            opcode::CREATE | opcode::TMPFILE => {
                let CreateIn { flags, mode, umask, .. } = self.argument()?;
                let (kind, permissions) = (NewNodeKind::Regular, mode & 0o7777);
                let unnamed = self.opcode == opcode::TMPFILE;
                // An unnamed file is created with a name that means nothing.
                let name = if unnamed { b"" } else { self.name()? };
                let new = NewNode { parent: node, name, kind, permissions, umask };
                if unnamed { Body::CreateUnnamed { new, flags } } else { Body::Create { new, flags } }
            }
            opcode::RENAME => self.rename(
                node,
                Rename2In { directory: self.argument::<RenameIn>()?.directory, flags: 0, padding: 0 },
            )?,
            opcode::RENAME2 => self.rename(node, self.argument()?)?,
            opcode::GETXATTR => Body::Xattr { name: self.name()?, size: self.argument::<GetXattrIn>()?.size },
            opcode::LISTXATTR => Body::ListXattrs { size: self.argument::<GetXattrIn>()?.size },
            opcode::SETXATTR => self.set_xattr()?,
            opcode::REMOVEXATTR => Body::RemoveXattr { name: self.name()? },
            unknown => return Err(DecodeError::Unknown(unknown)),
        })
    }

    fn new_node(&self, parent: NodeId) -> Result<NewNode<'a>, DecodeError> {
        if self.opcode == opcode::SYMLINK {
            let (name, target) = self.two_names()?;
            let kind = NewNodeKind::Symlink(target);
            return Ok(NewNode { parent, name, kind, permissions: 0o777, umask: 0 });
        }
        let name = self.name()?;
        if self.opcode == opcode::MKDIR {
            let MkdirIn { mode, umask } = self.argument()?;
            let kind = NewNodeKind::Directory;
            return Ok(NewNode { parent, name, kind, permissions: mode & 0o7777, umask });
        }
        let MknodIn { mode, device, umask, .. } = self.argument()?;
        let kind = NewNodeKind::of_mknod(mode, device).ok_or(DecodeError::Refused(Errno(libc::EINVAL)))?;
        Ok(NewNode { parent, name, kind, permissions: mode & 0o7777, umask })
    }

    fn rename(&self, parent: NodeId, argument: Rename2In) -> Result<Body<'a>, DecodeError> {
        let whiteout = argument.flags & libc::RENAME_WHITEOUT != 0;
        let mode = match argument.flags & !libc::RENAME_WHITEOUT {
            0 => RenameMode::Replace,
            libc::RENAME_NOREPLACE => RenameMode::NoReplace,
            libc::RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return Err(DecodeError::Refused(Errno(libc::EINVAL))),
        };
        let (name, new_name) = self.two_names()?;
        let new_parent = NodeId(argument.directory);
        Ok(Body::Rename(Rename { parent, name, new_parent, new_name, mode, whiteout }))
    }

    fn write(&self) -> Result<Body<'a>, DecodeError> {
        let WriteIn { offset, size, write_flags, flags, .. } = self.argument()?;
        if size as usize != self.payload.len() {
            return Err(self.malformed("the length of the data is wrong"));
        }
        let kills_privileges = write_flags & WRITE_KILLS_PRIVILEGES != 0;
        let from_cache = write_flags & WRITE_FROM_CACHE != 0;
        let direct = !from_cache && flags & libc::O_DIRECT != 0;
        let write = Write { offset, length: self.payload.len(), kills_privileges, from_cache, direct };
        Ok(Body::Data(DataAccess::Write(write)))
    }

    fn set_xattr(&self) -> Result<Body<'a>, DecodeError> {
        let SetXattrIn { size, flags } = self.argument()?;
        let (name, rest) = self.name_and_rest()?;
        let value = rest.get(..size as usize).ok_or_else(|| self.malformed("a value is too short"))?;
        let how = match flags {
            0 => SetHow::Set(XattrSet::Any),
            libc::XATTR_CREATE => SetHow::Set(XattrSet::Create),
            libc::XATTR_REPLACE => SetHow::Set(XattrSet::Replace),
            3 => SetHow::Never,
            _ => return Err(DecodeError::Refused(Errno(libc::EINVAL))),
        };
        Ok(Body::SetXattr { name, value, how })
    }

    fn ioctl(&self) -> Result<Body<'a>, DecodeError> {
        let IoctlIn { command, in_size, out_size, flags, argument, .. } = self.argument()?;
        let input = self.payload.get(..in_size as usize);
        let input = input.ok_or_else(|| self.malformed("the input is too short"))?;
        let address = if flags & IOCTL_SHORT_POINTERS == 0 { argument } else { 0 };
        Ok(Body::Ioctl(Ioctl { command, input, address, output_size: out_size as usize }))
    }
}

fn seek(argument: &LseekIn) -> Result<Body<'static>, DecodeError> {
    let to = match argument.whence {
        libc::SEEK_DATA => SeekTo::Data,
        libc::SEEK_HOLE => SeekTo::Hole,
        _ => return Err(DecodeError::Refused(Errno(libc::EINVAL))),
    };
    let offset = u64::try_from(argument.offset).map_err(|_| DecodeError::Refused(Errno(libc::ENXIO)))?;
    Ok(Body::Seek { offset, to })
}

fn change(argument: &SetAttrIn) -> AttributeChange {
    let has = |flag| argument.valid & flag != 0;
    let set_time = |flag, now, seconds, nanoseconds| {
        has(flag).then(|| match has(now) {
            true => SetTime::Now,
            false => SetTime::At(Timespec { seconds, nanoseconds }),
        })
    };
    AttributeChange {
        permissions: has(valid::MODE).then_some(argument.mode & 0o7777),
        uid: has(valid::UID).then_some(argument.uid),
        gid: has(valid::GID).then_some(argument.gid),
        size: has(valid::SIZE).then_some(argument.size),
        atime: set_time(valid::ATIME, valid::ATIME_NOW, argument.atime, argument.atime_nanoseconds),
        mtime: set_time(valid::MTIME, valid::MTIME_NOW, argument.mtime, argument.mtime_nanoseconds),
        ctime: has(valid::CTIME)
            .then_some(Timespec { seconds: argument.ctime, nanoseconds: argument.ctime_nanoseconds }),
        by_handle: has(valid::HANDLE),
        kills_privileges: has(valid::KILL_PRIVILEGES),
    }
}
