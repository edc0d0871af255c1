//! The position up to which a stream was applied.
//!
//! Owns [`ResumeToken`]. Its text is the note of an incomplete subvolume, and the token with which
//! a sender goes on: a version, the UUID and the generation of the sent subvolume, the number of
//! commands that were applied after the one that began the subvolume, and two checksums of those.
//! - The first runs over the checksums of the commands, each of which covers all bytes of its
//!   command. So a stream that was sent again is recognised without a copy of the first one.
//! - The second, the outline, leaves out the bytes of file data. A sender computes it without
//!   reading the data that the receiver has.
//!
//! Notes of version 1 have no outline.

use super::target::SentSubvolume;
use papilio_engine::errors::{Error, Result};
use papilio_format::checksum::crc32c_raw;
use papilio_format::send_stream::{Command, EncodedWrite};
use papilio_format::{Generation, Uuid};
use std::fmt;
use std::str::FromStr;

/// The position in the part of a stream that is about one subvolume: where an interrupted receive
/// stopped, and where a sender can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumeToken {
    pub(crate) subvolume: SentSubvolume,
    /// Commands, without the one that began the subvolume.
    pub(crate) commands: u64,
    pub(crate) checksum: u32,
    pub(crate) outline: Option<u32>,
}

impl ResumeToken {
    /// The position behind the command that begins a subvolume.
    pub(crate) fn start(subvolume: SentSubvolume, checksum: u32, outline: u32) -> Self {
        let start = Self { subvolume, commands: 0, checksum: 0, outline: Some(0) };
        Self { commands: 0, ..start.after(checksum, outline) }
    }

    /// The position behind one more command, with its checksum and its outline.
    pub(crate) fn after(self, checksum: u32, outline: u32) -> Self {
        let checksum = crc32c_raw(self.checksum, &checksum.to_le_bytes());
        let outline = self.outline.map(|before| crc32c_raw(before, &outline.to_le_bytes()));
        Self { commands: self.commands + 1, checksum, outline, ..self }
    }

    /// Whether both are the same position of the same stream. A note of version 1 has no outline to
    /// compare.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let outlines = self.outline.zip(other.outline).is_none_or(|(one, other)| one == other);
        let of = |token: &Self| (token.subvolume, token.commands, token.checksum);
        of(self) == of(other) && outlines
    }

    pub(crate) fn to_note(self) -> Vec<u8> {
        self.to_string().into_bytes()
    }

    pub(crate) fn parse(note: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(note).ok()?;
        let (version, rest) = text.split_once([' ', ':'])?;
        let separator = match version {
            "1" => ' ',
            "2" => ':',
            _ => return None,
        };
        let mut words = rest.split(separator);
        let uuid = Uuid::parse_str(words.next()?).ok()?;
        let ctransid = Generation(words.next()?.parse().ok()?);
        let commands = words.next()?.parse().ok()?;
        let checksum = u32::from_str_radix(words.next()?, 16).ok()?;
        let outline = match version {
            "1" => None,
            _ => Some(u32::from_str_radix(words.next()?, 16).ok()?),
        };
        let subvolume = SentSubvolume { uuid, ctransid };
        words.next().is_none().then_some(Self { subvolume, commands, checksum, outline })
    }

    /// Returns the identity of the subvolume that was being received.
    pub fn subvolume(&self) -> SentSubvolume {
        self.subvolume
    }

    /// Returns the number of commands that the receiver has applied.
    pub fn commands(&self) -> u64 {
        self.commands
    }

    /// Refuses a subvolume that is not the one of the token.
    ///
    /// # Errors
    /// [`Error::Invalid`] that says which it is.
    pub fn check(&self, found: SentSubvolume) -> Result<()> {
        let SentSubvolume { uuid, ctransid } = self.subvolume;
        if found.uuid != uuid {
            let text = format!("the token is of subvolume {uuid}, not of {}", found.uuid);
            return Err(Error::Invalid(text));
        }
        if found.ctransid != ctransid {
            return Err(Error::Invalid(format!(
                "the snapshot changed: the token is of transaction {}, and it is at {}",
                ctransid.0, found.ctransid.0
            )));
        }
        if self.outline.is_none() {
            let text = "the token is of an older version: send the whole stream to receive --resume";
            return Err(Error::Invalid(text.into()));
        }
        Ok(())
    }

    /// The error of a stream that is not the one of the token.
    pub(crate) fn other_stream(&self) -> Error {
        let text = "the token is of another stream: give the parent and the options of the first send; if \
                    these are the same, extents were shared or unshared since, and the whole stream is \
                    needed";
        Error::Invalid(text.into())
    }
}

impl fmt::Display for ResumeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subvolume: SentSubvolume { uuid, ctransid }, commands, checksum, outline } = self;
        match outline {
            Some(outline) => write!(f, "2:{uuid}:{}:{commands}:{checksum:08x}:{outline:08x}", ctransid.0),
            None => write!(f, "1 {uuid} {} {commands} {checksum:08x}", ctransid.0),
        }
    }
}

impl FromStr for ResumeToken {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::Invalid("not a token of an interrupted receive".into());
        Self::parse(text.trim().as_bytes()).ok_or_else(wrong)
    }
}

/// Returns the outline of a command: a checksum without file data. That of a command without data
/// is its own checksum.
pub(crate) fn outline_of(command: &Command, checksum: u32) -> u32 {
    match command {
        Command::Write { path, offset, data } => outline_of_write(path, *offset, data.len() as u64),
        Command::EncodedWrite(write) => outline_of_encoded(write, write.data.len() as u64),
        _ => checksum,
    }
}

/// Returns the outline of a write of `length` bytes.
pub(crate) fn outline_of_write(path: &[u8], offset: u64, length: u64) -> u32 {
    outline_of_numbers(path, &[offset, length])
}

/// Returns the outline of an encoded write with `stored` bytes of data.
pub(crate) fn outline_of_encoded(write: &EncodedWrite, stored: u64) -> u32 {
    let compression = u64::from(write.compression);
    let (whole, start) = (write.unencoded_length, write.unencoded_offset);
    outline_of_numbers(&write.path, &[write.offset, write.file_length, whole, start, compression, stored])
}

fn outline_of_numbers(path: &[u8], numbers: &[u64]) -> u32 {
    let sum = numbers.iter().fold(numbers.len() as u32, |sum, number| crc32c_raw(sum, &number.to_le_bytes()));
    crc32c_raw(sum, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_parsed_to_what_they_were() {
        let subvolume = SentSubvolume { uuid: Uuid::from_u128(9), ctransid: Generation(7) };
        let token = ResumeToken::start(subvolume, 0x1234, 1).after(5, 5).after(6, 7);
        assert_eq!(token.commands, 2);
        assert_eq!(ResumeToken::parse(&token.to_note()), Some(token));
        assert_eq!(token.to_string().parse::<ResumeToken>().unwrap(), token);
        let other = ResumeToken::start(subvolume, 0x1234, 1).after(6, 7).after(5, 5);
        assert_ne!(token.checksum, other.checksum);
        assert_ne!(token.outline, other.outline);
        for wrong in ["", "3:a", "1 x 7 2 0", "2:x:7:2:0:0", &(token.to_string() + ":1")] {
            assert_eq!(ResumeToken::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn notes_of_version_1_are_taken() {
        let subvolume = SentSubvolume { uuid: Uuid::from_u128(9), ctransid: Generation(7) };
        let token = ResumeToken::start(subvolume, 0x1234, 1).after(5, 5);
        let old = ResumeToken { outline: None, ..token };
        let parsed = ResumeToken::parse(&old.to_note()).unwrap();
        assert_eq!(parsed, old);
        assert!(parsed.is_same(&token) && token.is_same(&parsed));
        assert!(parsed.check(subvolume).unwrap_err().to_string().contains("older version"));
        token.check(subvolume).unwrap();
    }

    #[test]
    fn outlines_leave_out_data_alone() {
        let write = |path: &[u8], offset, data: &[u8]| {
            let command = Command::Write { path: path.to_vec(), offset, data: data.to_vec() };
            outline_of(&command, 77)
        };
        assert_eq!(write(b"a", 1, b"xy"), write(b"a", 1, b"zz"));
        assert_ne!(write(b"a", 1, b"xy"), write(b"a", 1, b"xyz"));
        assert_ne!(write(b"a", 1, b"xy"), write(b"a", 2, b"xy"));
        assert_ne!(write(b"a", 1, b"xy"), write(b"b", 1, b"xy"));
        assert_eq!(outline_of(&Command::End, 77), 77);
    }
}
