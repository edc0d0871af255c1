//! The stream of `btrfs send`: bytes to commands and back.
//!
//! Owns the stream's header, the header of each command, and their limits. `command` has the
//! commands, `attribute` their attributes, `fault` the errors. A reader hands in one whole command
//! at a time; nothing here reads or buffers a stream.
//!
//! **Invariant:** parsing what a command was serialised to gives the command back.
//!
//! Sources: `fs/btrfs/send.h` and `fs/btrfs/send.c` for protocols 1 and 2; "Btrfs send stream
//! format" of the Btrfs documentation.

mod attribute;
mod command;
mod fault;
#[cfg(test)]
mod tests;

pub use attribute::Attribute;
pub use command::{Command, CommandKind, EncodedWrite};
pub use fault::{SendStreamError, SendStreamFault};

use crate::checksum::crc32c_raw;

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
    /// by 16 KiB and a page, and pages have 64 KiB at most; the limit leaves room for later kernels.
    pub const fn max_length(self) -> usize {
        match self {
            Self::V1 => (64 << 10) - COMMAND_HEADER_SIZE,
            Self::V2 => 1 << 20,
        }
    }

    /// Parses the header of a stream.
    ///
    /// # Errors
    /// [`SendStreamFault::Magic`], [`SendStreamFault::Version`].
    pub fn parse(header: &[u8; STREAM_HEADER_SIZE]) -> Result<Self, SendStreamError> {
        let (magic, version) = header.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(SendStreamFault::Magic.at(0));
        }
        match u32::from_le_bytes(version.try_into().expect("four bytes follow the magic")) {
            1 => Ok(Self::V1),
            2 => Ok(Self::V2),
            other => Err(SendStreamFault::Version(other).at(MAGIC.len() as u64)),
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

/// The header of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandHeader {
    /// Bytes that follow the header.
    pub length: usize,
    /// The command.
    pub kind: CommandKind,
    /// The checksum of header and attributes, computed with zeros in its place.
    pub crc: u32,
}

impl CommandHeader {
    /// Parses the header of the command at byte `offset` of the stream.
    ///
    /// # Errors
    /// [`SendStreamFault::TooLong`], [`SendStreamFault::Command`].
    pub fn parse(
        bytes: &[u8; COMMAND_HEADER_SIZE],
        protocol: Protocol,
        offset: u64,
    ) -> Result<Self, SendStreamError> {
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let length = number(0) as usize;
        let limit = protocol.max_length();
        if length > limit {
            return Err(SendStreamFault::TooLong { length, limit }.at(offset));
        }
        let raw = u16::from_le_bytes([bytes[4], bytes[5]]);
        let kind = CommandKind::from_raw(raw, protocol)
            .ok_or(SendStreamFault::Command { command: raw, protocol: protocol as u32 }.at(offset + 4))?;
        Ok(Self { length, kind, crc: number(6) })
    }

    /// Returns the header's bytes.
    pub fn to_bytes(&self) -> [u8; COMMAND_HEADER_SIZE] {
        let mut bytes = [0; COMMAND_HEADER_SIZE];
        bytes[..4].copy_from_slice(&(self.length as u32).to_le_bytes());
        bytes[4..6].copy_from_slice(&(self.kind as u16).to_le_bytes());
        bytes[6..].copy_from_slice(&self.crc.to_le_bytes());
        bytes
    }

    /// Computes the checksum of the command with these attributes. The register starts at zero and
    /// is not inverted at the end.
    pub fn checksum(&self, attributes: &[u8]) -> u32 {
        let unsummed = Self { crc: 0, ..*self }.to_bytes();
        crc32c_raw(crc32c_raw(0, &unsummed), attributes)
    }
}
