//! The headers of a stream and of each command.
//!
//! Owns [`CommandHeader`], and parsing a stream's header.

use super::fault::{SendStreamError, SendStreamFault};
use super::kind::{COMMAND_HEADER_SIZE, CommandKind, MAGIC, Protocol, STREAM_HEADER_SIZE};
use crate::checksum::crc32c_raw;

impl Protocol {
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
