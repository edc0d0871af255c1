//! The descriptor of a VMDK as a text: its content identifier and that of a parent.
//!
//! Owns [`ContentId`] and the rule that an image that needs a parent is refused.

use super::super::blocks::read_range;
use super::super::sparse::identifier;
use crate::device::Device;
use crate::error::OpenErrorKind;
use papilio_format::PhysicalAddress;
use std::io;

/// The most bytes of a descriptor.
pub(super) const MAX_DESCRIPTOR: u64 = 1 << 20;
/// Digits of a content identifier.
const DIGITS: usize = 8;

/// Returns an error of the image.
pub(super) fn fault(reason: impl Into<String>) -> OpenErrorKind {
    OpenErrorKind::Image { format: "vmdk", reason: reason.into() }
}

/// Refuses a disk that is the difference to another one.
pub(super) fn refuse_parents(text: &str) -> Result<(), OpenErrorKind> {
    let parent = text.lines().find_map(|line| line.trim().strip_prefix("parentCID="));
    if parent.is_some_and(|parent| !parent.trim().eq_ignore_ascii_case("ffffffff")) {
        return Err(fault("it is the difference to another image, which is not supported"));
    }
    Ok(())
}

/// The place of the content identifier in a file: the digits behind `CID=`.
#[derive(Debug)]
pub(super) struct ContentId {
    place: PhysicalAddress,
}

impl ContentId {
    /// Looks for the identifier in a descriptor of `length` bytes at `place`.
    pub(super) fn find(file: &dyn Device, place: u64, length: u64) -> Result<Option<Self>, OpenErrorKind> {
        let bytes = read_range(file, place, length.min(MAX_DESCRIPTOR));
        let bytes = bytes.map_err(OpenErrorKind::Io)?;
        let mut start = 0;
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let digits = line.strip_prefix(b"CID=").and_then(|rest| rest.get(..DIGITS));
            if digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
                return Ok(Some(Self { place: PhysicalAddress(place + start + 4) }));
            }
            start += line.len() as u64;
        }
        Ok(None)
    }

    /// Writes another identifier.
    pub(super) fn renew(&self, file: &dyn Device) -> io::Result<()> {
        let [a, b, c, d, ..] = identifier();
        // All digits f mean that there is no parent.
        let value = u32::from_le_bytes([a, b, c, d & 0x7f]);
        file.write_at(format!("{value:08x}").as_bytes(), self.place)
    }
}
