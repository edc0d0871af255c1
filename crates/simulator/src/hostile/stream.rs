//! A stream as a list of commands: [`HostileStream`] and [`RawCommand`].
//!
//! **Invariant:** the bytes of a stream have right lengths and checksums, unless its [`Damage`]
//! breaks them. Commands and attributes may be wrong.

use papilio_format::checksum::crc32c_raw;
use papilio_format::send_stream::{COMMAND_HEADER_SIZE, CommandKind, MAGIC, STREAM_HEADER_SIZE};
use std::fmt;

/// A command, whose number and attributes may be wrong.
#[derive(Clone, PartialEq, Eq)]
pub struct RawCommand {
    /// The command's number.
    pub number: u16,
    /// The bytes after its header.
    pub attributes: Vec<u8>,
}

impl fmt::Debug for RawCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} \"{}\"", self.number, self.attributes.escape_ascii())
    }
}

/// The change of a stream's bytes after its checksums were computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// None.
    None,
    /// The stream ends after this many bytes, modulo its length.
    Cut(usize),
    /// This bit is flipped, modulo the number of bits.
    Flip(usize),
}

/// A stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostileStream {
    /// The version in the stream's header.
    pub version: u32,
    /// The commands.
    pub commands: Vec<RawCommand>,
    /// The change of the bytes at the end.
    pub damage: Damage,
}

impl HostileStream {
    /// Takes a stream apart.
    ///
    /// # Panics
    /// If the bytes are not one whole stream.
    pub fn split(bytes: &[u8]) -> Self {
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let (mut commands, mut at) = (Vec::new(), STREAM_HEADER_SIZE);
        while at < bytes.len() {
            let start = at + COMMAND_HEADER_SIZE;
            let end = start + number(at) as usize;
            let number = u16::from_le_bytes([bytes[at + 4], bytes[at + 5]]);
            commands.push(RawCommand { number, attributes: bytes[start..end].to_vec() });
            at = end;
        }
        Self { version: number(MAGIC.len()), commands, damage: Damage::None }
    }

    /// Returns the bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = [&MAGIC[..], &self.version.to_le_bytes()].concat();
        for RawCommand { number, attributes } in &self.commands {
            let mut header = (attributes.len() as u32).to_le_bytes().to_vec();
            header.extend(number.to_le_bytes());
            let crc = crc32c_raw(crc32c_raw(0, &[&header[..], &[0; 4]].concat()), attributes);
            header.extend(crc.to_le_bytes());
            bytes.extend(header);
            bytes.extend(attributes);
        }
        match self.damage {
            Damage::None => {}
            Damage::Cut(at) => bytes.truncate(at % bytes.len()),
            Damage::Flip(bit) => {
                let bit = bit % (bytes.len() * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
        bytes
    }

    /// Returns the most subvolumes that the stream may complete: each needs its end, or the
    /// beginning of another one.
    pub fn most_complete(&self) -> usize {
        let count =
            |kind: CommandKind| self.commands.iter().filter(|command| command.number == kind as u16).count();
        let begun = count(CommandKind::Subvol) + count(CommandKind::Snapshot);
        begun.min(count(CommandKind::End) + begun.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_format::Uuid;
    use papilio_format::send_stream::{Command, CommandHeader, Protocol};

    #[test]
    fn a_stream_is_the_same_after_taking_it_apart() {
        let mut bytes = Protocol::V2.header().to_vec();
        let name = || b"name".to_vec();
        let commands = [
            Command::Subvol { path: name(), uuid: Uuid::from_u128(3), ctransid: 7 },
            Command::Mkfile { path: name(), inode: 257 },
            Command::Write { path: name(), offset: 5, data: vec![1, 2, 3] },
            Command::End,
        ];
        commands.iter().for_each(|command| command.append_to(Protocol::V2, &mut bytes).unwrap());
        let mut stream = HostileStream::split(&bytes);
        assert_eq!((stream.version, stream.commands.len(), stream.most_complete()), (2, 4, 1));
        assert_eq!(stream.to_bytes(), bytes);

        // A changed attribute gets a checksum that the parser accepts.
        *stream.commands[1].attributes.last_mut().unwrap() ^= 1;
        let changed = stream.to_bytes();
        assert_ne!(changed, bytes);
        let at = changed.len() - stream.commands[3].attributes.len() - COMMAND_HEADER_SIZE;
        assert_eq!(changed[at..], bytes[at..]);
        let at = STREAM_HEADER_SIZE + COMMAND_HEADER_SIZE + stream.commands[0].attributes.len();
        let header = changed[at..at + COMMAND_HEADER_SIZE].try_into().unwrap();
        let header = CommandHeader::parse(header, Protocol::V2, 0).unwrap();
        let parsed = Command::parse(Protocol::V2, &header, &stream.commands[1].attributes, 0);
        assert!(matches!(parsed, Ok(Command::Mkfile { inode, .. }) if inode != 257), "{parsed:?}");

        stream.damage = Damage::Cut(20);
        assert_eq!(stream.to_bytes().len(), 20);
    }
}
