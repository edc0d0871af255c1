//! The numbers of a stream: protocols, commands, attributes, and their limits.
//!
//! Owns [`Protocol`], [`CommandKind`] and [`Attribute`].

/// The first bytes of a stream, with their closing NUL.
pub const MAGIC: [u8; 13] = *b"btrfs-stream\0";
/// Bytes of the stream's header: magic and version.
pub const STREAM_HEADER_SIZE: usize = 17;
/// Bytes of a command's header: length, command, checksum.
pub const COMMAND_HEADER_SIZE: usize = 10;
/// Most bytes of file data in a command of protocol 1 (`BTRFS_SEND_READ_SIZE`).
pub const WRITE_SIZE: usize = 48 << 10;

/// The version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Protocol {
    /// Linux 3.6.
    V1 = 1,
    /// Linux 6.0: encoded writes, larger commands, creation times.
    V2 = 2,
}

impl Protocol {
    /// Returns the most bytes that a command may have, without its header.
    ///
    /// Senders of protocol 1 fill 64 KiB. Those of protocol 2 exceed a compressed extent of 128 KiB
    /// by 16 KiB and a page, and pages have 64 KiB at most; the limit leaves room for later
    /// kernels.
    pub const fn max_length(self) -> usize {
        match self {
            Self::V1 => (64 << 10) - COMMAND_HEADER_SIZE,
            Self::V2 => 1 << 20,
        }
    }

    /// Returns the header of a stream.
    pub fn header(self) -> [u8; STREAM_HEADER_SIZE] {
        let mut header = [0; STREAM_HEADER_SIZE];
        header[..MAGIC.len()].copy_from_slice(&MAGIC);
        header[MAGIC.len()..].copy_from_slice(&(self as u32).to_le_bytes());
        header
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        /// A command's number (`enum btrfs_send_cmd`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        #[allow(missing_docs)]
        pub enum CommandKind { $($(#[$doc])* $name = $number,)* }

        impl CommandKind {
            /// All commands, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the command's name, as `btrfs receive --dump` prints it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

kinds! {
    Subvol = 1, "subvol";
    Snapshot = 2, "snapshot";
    Mkfile = 3, "mkfile";
    Mkdir = 4, "mkdir";
    Mknod = 5, "mknod";
    Mkfifo = 6, "mkfifo";
    Mksock = 7, "mksock";
    Symlink = 8, "symlink";
    Rename = 9, "rename";
    Link = 10, "link";
    Unlink = 11, "unlink";
    Rmdir = 12, "rmdir";
    SetXattr = 13, "set_xattr";
    RemoveXattr = 14, "remove_xattr";
    Write = 15, "write";
    Clone = 16, "clone";
    Truncate = 17, "truncate";
    Chmod = 18, "chmod";
    Chown = 19, "chown";
    Utimes = 20, "utimes";
    End = 21, "end";
    UpdateExtent = 22, "update_extent";
    Fallocate = 23, "fallocate";
    Fileattr = 24, "fileattr";
    EncodedWrite = 25, "encoded_write";
}

impl CommandKind {
    /// Returns the command with a number, if the protocol has it.
    pub fn from_raw(raw: u16, protocol: Protocol) -> Option<Self> {
        let kind = *Self::ALL.get(usize::from(raw).checked_sub(1)?)?;
        (kind.since() <= protocol).then_some(kind)
    }

    /// Returns the first protocol that has the command.
    pub const fn since(self) -> Protocol {
        match self {
            Self::Fallocate | Self::Fileattr | Self::EncodedWrite => Protocol::V2,
            _ => Protocol::V1,
        }
    }
}

impl std::fmt::Display for CommandKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

macro_rules! attributes {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        /// An attribute's type (`enum btrfs_send_attr_type`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        #[allow(missing_docs)]
        pub enum Attribute { $($name = $number,)* }

        impl Attribute {
            const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the attribute's name in the kernel, in lower case.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

attributes! {
    Uuid = 1, "uuid";
    Ctransid = 2, "ctransid";
    Ino = 3, "ino";
    Size = 4, "size";
    Mode = 5, "mode";
    Uid = 6, "uid";
    Gid = 7, "gid";
    Rdev = 8, "rdev";
    Ctime = 9, "ctime";
    Mtime = 10, "mtime";
    Atime = 11, "atime";
    Otime = 12, "otime";
    XattrName = 13, "xattr_name";
    XattrData = 14, "xattr_data";
    Path = 15, "path";
    PathTo = 16, "path_to";
    PathLink = 17, "path_link";
    FileOffset = 18, "file_offset";
    Data = 19, "data";
    CloneUuid = 20, "clone_uuid";
    CloneCtransid = 21, "clone_ctransid";
    ClonePath = 22, "clone_path";
    CloneOffset = 23, "clone_offset";
    CloneLen = 24, "clone_len";
    FallocateMode = 25, "fallocate_mode";
    Fileattr = 26, "fileattr";
    UnencodedFileLen = 27, "unencoded_file_len";
    UnencodedLen = 28, "unencoded_len";
    UnencodedOffset = 29, "unencoded_offset";
    Compression = 30, "compression";
    Encryption = 31, "encryption";
}

/// One more than the greatest number of an attribute.
pub(super) const COUNT: usize = 32;

impl Attribute {
    pub(super) fn from_raw(raw: u16) -> Option<Self> {
        Self::ALL.get(usize::from(raw).checked_sub(1)?).copied()
    }
}

impl std::fmt::Display for Attribute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
