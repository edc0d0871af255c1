//! The numbers and fixed structures of the NBD protocol.
//!
//! Owns the constants, [`Request`], and the errno of each failure. All integers on the wire are
//! big-endian.

use std::io;

/// The most bytes of a READ or WRITE. Clients assume this limit where a server names none.
pub const MAX_PAYLOAD: u32 = 32 << 20;
/// The most bytes of an export's name.
pub(crate) const MAX_NAME: usize = 4096;
/// The most bytes of an option's data. A name and some lists fit.
pub(crate) const MAX_OPTION: u32 = 64 << 10;

pub(crate) const SERVER_MAGIC: u64 = 0x4e42_444d_4147_4943;
pub(crate) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(crate) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub(crate) const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Flags of the handshake, from the server and, as the same bits, from the client.
pub(crate) const FIXED_NEWSTYLE: u16 = 1;
pub(crate) const NO_ZEROES: u16 = 1 << 1;

/// Options, which a client sends in the handshake.
pub(crate) mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Replies to options.
pub(crate) mod option_reply {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    const ERROR: u32 = 1 << 31;
    pub const UNSUPPORTED: u32 = ERROR + 1;
    pub const INVALID: u32 = ERROR + 3;
    pub const TLS_REQUIRED: u32 = ERROR + 5;
    pub const UNKNOWN: u32 = ERROR + 6;
    pub const TOO_BIG: u32 = ERROR + 9;
}

/// Kinds of information on an export.
pub(crate) mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: the abilities of an export.
pub(crate) mod ability {
    pub const HAS_FLAGS: u16 = 1;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const FLUSH: u16 = 1 << 2;
    pub const FUA: u16 = 1 << 3;
    pub const TRIM: u16 = 1 << 5;
    pub const WRITE_ZEROES: u16 = 1 << 6;
    pub const DF: u16 = 1 << 7;
    pub const MULTI_CONN: u16 = 1 << 8;
}

/// Commands.
pub(crate) mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISCONNECT: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of commands.
pub(crate) mod command_flag {
    pub const FUA: u16 = 1;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DONT_FRAGMENT: u16 = 1 << 2;
    pub const REQUEST_ONE: u16 = 1 << 3;
}

/// Chunks of structured replies.
pub(crate) mod chunk {
    pub const DONE: u16 = 1;
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const OFFSET_HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    pub const ERROR: u16 = (1 << 15) + 1;
}

/// The metadata context that tells data from holes, and its number on the wire.
pub(crate) const BASE_ALLOCATION: &str = "base:allocation";
pub(crate) const BASE_ALLOCATION_ID: u32 = 1;
/// A hole that reads as zeros, in `base:allocation`.
pub(crate) const STATE_HOLE_ZERO: u32 = 0b11;

/// Error numbers, which the protocol fixes for all systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Errno {
    Perm = 1,
    Io = 5,
    NoMemory = 12,
    Invalid = 22,
    NoSpace = 28,
    Overflow = 75,
    NotSupported = 95,
}

impl Errno {
    /// Returns the errno of a device's error.
    pub fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => Self::Perm,
            io::ErrorKind::InvalidInput => Self::Invalid,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Self::NoSpace
            }
            io::ErrorKind::OutOfMemory => Self::NoMemory,
            io::ErrorKind::Unsupported => Self::NotSupported,
            _ => Self::Io,
        }
    }
}

/// The header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Of [`command_flag`].
    pub flags: u16,
    /// Of [`command`].
    pub command: u16,
    /// Returned in the reply.
    pub cookie: u64,
    /// Byte offset on the export.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
}

impl Request {
    /// Bytes on the wire.
    pub const SIZE: usize = 28;

    /// Parses a header; `None` if its magic number is wrong.
    pub fn parse(bytes: &[u8; Self::SIZE]) -> Option<Self> {
        if u32_at(bytes, 0) != REQUEST_MAGIC {
            return None;
        }
        Some(Self {
            flags: u16_at(bytes, 4),
            command: u16_at(bytes, 6),
            cookie: u64_at(bytes, 8),
            offset: u64_at(bytes, 16),
            length: u32_at(bytes, 24),
        })
    }

    /// Returns whether a flag is set.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// Reads an integer at `at`, which the caller has checked to be inside.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// As [`u16_at`].
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) << 16 | u32::from(u16_at(bytes, at + 2))
}

/// As [`u16_at`].
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_header_is_parsed_in_network_order() {
        let mut bytes = [0; Request::SIZE];
        bytes[..4].copy_from_slice(&[0x25, 0x60, 0x95, 0x13]);
        bytes[5] = 3;
        bytes[7] = 6;
        bytes[15] = 9;
        bytes[16] = 1;
        bytes[26] = 2;
        let request = Request::parse(&bytes).unwrap();
        let expected = Request { flags: 3, command: 6, cookie: 9, offset: 1 << 56, length: 512 };
        assert_eq!(request, expected);
        assert!(request.has(command_flag::NO_HOLE) && !request.has(command_flag::DONT_FRAGMENT));
        bytes[0] = 0;
        assert_eq!(Request::parse(&bytes), None);
    }

    #[test]
    fn errors_have_the_numbers_of_the_protocol() {
        let of = |kind: io::ErrorKind| Errno::of(&io::Error::from(kind)) as u32;
        assert_eq!(of(io::ErrorKind::ReadOnlyFilesystem), 1);
        assert_eq!(of(io::ErrorKind::StorageFull), 28);
        assert_eq!(of(io::ErrorKind::InvalidInput), 22);
        assert_eq!(of(io::ErrorKind::UnexpectedEof), 5);
        assert_eq!(Errno::of(&io::Error::from_raw_os_error(5)) as u32, 5);
    }
}
