//! The position up to which a stream was applied.
//!
//! Owns [`Position`]. Its text is the note of an incomplete subvolume: a version, the UUID and the
//! generation of the sent subvolume, the number of commands that were applied after the one that
//! began the subvolume, and a checksum of those. The checksum runs over the checksums of the
//! commands, each of which covers all bytes of its command. So a stream that was sent again is
//! recognised without a copy of the first one.

use super::target::SentSubvolume;
use papilio_format::checksum::crc32c_raw;
use papilio_format::{Generation, Uuid};

/// The position in the part of a stream that is about one subvolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) subvolume: SentSubvolume,
    /// Commands, without the one that began the subvolume.
    pub(super) commands: u64,
    pub(super) checksum: u32,
}

impl Position {
    /// The position behind the command that begins a subvolume.
    pub(super) fn start(subvolume: SentSubvolume, checksum: u32) -> Self {
        let start = Self { subvolume, commands: 0, checksum: 0 };
        Self { commands: 0, ..start.after(checksum) }
    }

    /// The position behind one more command, which has this checksum.
    pub(super) fn after(self, checksum: u32) -> Self {
        let checksum = crc32c_raw(self.checksum, &checksum.to_le_bytes());
        Self { commands: self.commands + 1, checksum, ..self }
    }

    pub(super) fn to_note(self) -> Vec<u8> {
        let SentSubvolume { uuid, ctransid } = self.subvolume;
        format!("1 {uuid} {} {} {:08x}", ctransid.0, self.commands, self.checksum).into_bytes()
    }

    pub(super) fn parse(note: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(note).ok()?.split(' ');
        words.next().filter(|version| *version == "1")?;
        let uuid = Uuid::parse_str(words.next()?).ok()?;
        let ctransid = Generation(words.next()?.parse().ok()?);
        let commands = words.next()?.parse().ok()?;
        let checksum = u32::from_str_radix(words.next()?, 16).ok()?;
        let position = Self { subvolume: SentSubvolume { uuid, ctransid }, commands, checksum };
        words.next().is_none().then_some(position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_parsed_to_what_they_were() {
        let subvolume = SentSubvolume { uuid: Uuid::from_u128(9), ctransid: Generation(7) };
        let position = Position::start(subvolume, 0x1234).after(5).after(6);
        assert_eq!(position.commands, 2);
        assert_eq!(Position::parse(&position.to_note()), Some(position));
        assert_ne!(position.checksum, Position::start(subvolume, 0x1234).after(6).after(5).checksum);
        for wrong in ["", "2 a", "1 x 7 2 0", &(String::from_utf8(position.to_note()).unwrap() + " 1")] {
            assert_eq!(Position::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
