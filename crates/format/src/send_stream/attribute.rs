//! The attributes of commands: type, length, value.
//!
//! Owns [`Attributes`] (those of one command, parsed) and [`Writer`].
//!
//! In protocol 2, `DATA` has no length: it is the last attribute and reaches to the command's end.

use super::fault::{SendStreamError, SendStreamFault};
use super::header::CommandHeader;
use super::kind::{Attribute, COMMAND_HEADER_SIZE, COUNT, CommandKind, Protocol};
use crate::items::inode::Timespec;
use uuid::Uuid;

/// The attributes of one command.
pub(super) struct Attributes<'a> {
    command: CommandKind,
    /// Where the command starts in the stream.
    offset: u64,
    /// The values by number, each with its place in the stream.
    values: [Option<(&'a [u8], u64)>; COUNT],
}

impl<'a> Attributes<'a> {
    pub(super) fn parse(
        command: CommandKind,
        protocol: Protocol,
        offset: u64,
        bytes: &'a [u8],
    ) -> Result<Self, SendStreamError> {
        let mut values = [None; COUNT];
        let mut at = 0;
        while at < bytes.len() {
            let place = offset + (COMMAND_HEADER_SIZE + at) as u64;
            let take = |from: usize, need: usize| {
                let have = bytes.len() - from;
                let cut = SendStreamFault::AttributeCut { command, need, have }.at(place);
                bytes.get(from..).and_then(|rest| rest.get(..need)).ok_or(cut)
            };
            let number = |bytes: &[u8]| u16::from_le_bytes([bytes[0], bytes[1]]);
            let raw = number(take(at, 2)?);
            let unknown = SendStreamFault::UnknownAttribute { command, attribute: raw };
            let attribute = Attribute::from_raw(raw).ok_or(unknown.at(place))?;
            at += 2;
            let length = if attribute == Attribute::Data && protocol >= Protocol::V2 {
                bytes.len() - at
            } else {
                let length = number(take(at, 2)?);
                at += 2;
                usize::from(length)
            };
            let value = take(at, length)?;
            at += length;
            if values[attribute as usize].replace((value, place)).is_some() {
                return Err(SendStreamFault::Repeated { command, attribute }.at(place));
            }
        }
        Ok(Self { command, offset, values })
    }

    fn find(&self, attribute: Attribute) -> Result<(&'a [u8], u64), SendStreamError> {
        let missing = SendStreamFault::Missing { command: self.command, attribute };
        self.values[attribute as usize].ok_or(missing.at(self.offset))
    }

    fn fixed<const N: usize>(&self, attribute: Attribute) -> Result<[u8; N], SendStreamError> {
        let (value, place) = self.find(attribute)?;
        let (command, found) = (self.command, value.len());
        value
            .try_into()
            .map_err(|_| SendStreamFault::Size { command, attribute, found, expected: N }.at(place))
    }

    pub(super) fn has(&self, attribute: Attribute) -> bool {
        self.values[attribute as usize].is_some()
    }

    pub(super) fn number(&self, attribute: Attribute) -> Result<u64, SendStreamError> {
        self.fixed(attribute).map(u64::from_le_bytes)
    }

    pub(super) fn short(&self, attribute: Attribute) -> Result<u32, SendStreamError> {
        self.fixed(attribute).map(u32::from_le_bytes)
    }

    pub(super) fn uuid(&self, attribute: Attribute) -> Result<Uuid, SendStreamError> {
        self.fixed(attribute).map(Uuid::from_bytes)
    }

    pub(super) fn time(&self, attribute: Attribute) -> Result<Timespec, SendStreamError> {
        let bytes: [u8; 12] = self.fixed(attribute)?;
        let (seconds, nanoseconds) = bytes.split_at(8);
        Ok(Timespec {
            seconds: i64::from_le_bytes(seconds.try_into().expect("eight bytes")),
            nanoseconds: u32::from_le_bytes(nanoseconds.try_into().expect("four bytes")),
        })
    }

    pub(super) fn bytes(&self, attribute: Attribute) -> Result<Vec<u8>, SendStreamError> {
        self.find(attribute).map(|(value, _)| value.to_vec())
    }

    /// Returns a path or a name, which contains no NUL and is at most `PATH_MAX` bytes long.
    pub(super) fn text(&self, attribute: Attribute) -> Result<Vec<u8>, SendStreamError> {
        const PATH_MAX: usize = 4096;
        let (value, place) = self.find(attribute)?;
        let (command, found) = (self.command, value.len());
        if found > PATH_MAX {
            return Err(SendStreamFault::Size { command, attribute, found, expected: PATH_MAX }.at(place));
        }
        if value.contains(&0) {
            return Err(SendStreamFault::Nul { command, attribute }.at(place));
        }
        Ok(value.to_vec())
    }
}

/// Appends one command to a buffer.
pub(super) struct Writer<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    protocol: Protocol,
    kind: CommandKind,
}

impl<'a> Writer<'a> {
    pub(super) fn new(out: &'a mut Vec<u8>, protocol: Protocol, kind: CommandKind) -> Self {
        let start = out.len();
        out.extend([0; COMMAND_HEADER_SIZE]);
        Self { out, start, protocol, kind }
    }

    /// Appends an attribute. A value of more than 65,535 bytes makes the command too long, which
    /// [`Writer::finish`] reports; only `DATA` of protocol 2 may be so long.
    pub(super) fn bytes(&mut self, attribute: Attribute, value: &[u8]) -> &mut Self {
        self.out.extend((attribute as u16).to_le_bytes());
        if attribute != Attribute::Data || self.protocol == Protocol::V1 {
            let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
            self.out.extend(length.to_le_bytes());
            if usize::from(length) < value.len() {
                // Longer than any command may be.
                self.out.resize(self.start + COMMAND_HEADER_SIZE + self.protocol.max_length() + 1, 0);
                return self;
            }
        }
        self.out.extend(value);
        self
    }

    pub(super) fn number(&mut self, attribute: Attribute, value: u64) -> &mut Self {
        self.bytes(attribute, &value.to_le_bytes())
    }

    pub(super) fn short(&mut self, attribute: Attribute, value: u32) -> &mut Self {
        self.bytes(attribute, &value.to_le_bytes())
    }

    pub(super) fn uuid(&mut self, attribute: Attribute, value: &Uuid) -> &mut Self {
        self.bytes(attribute, value.as_bytes())
    }

    pub(super) fn time(&mut self, attribute: Attribute, value: &Timespec) -> &mut Self {
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&value.seconds.to_le_bytes());
        bytes[8..].copy_from_slice(&value.nanoseconds.to_le_bytes());
        self.bytes(attribute, &bytes)
    }

    /// Fills in the header. Restores the buffer if the command is too long.
    pub(super) fn finish(self) -> Result<(), SendStreamError> {
        let Self { out, start, protocol, kind } = self;
        let length = out.len() - start - COMMAND_HEADER_SIZE;
        let limit = protocol.max_length();
        if length > limit {
            out.truncate(start);
            return Err(SendStreamFault::TooLong { length, limit }.at(start as u64));
        }
        let (head, attributes) = out[start..].split_at_mut(COMMAND_HEADER_SIZE);
        let mut header = CommandHeader { length, kind, crc: 0 };
        header.crc = header.checksum(attributes);
        head.copy_from_slice(&header.to_bytes());
        Ok(())
    }
}
