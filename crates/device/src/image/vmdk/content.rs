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
/// Stands in front of the content identifier.
const NAME: &str = "CID=";
/// The most digits of a content identifier.
const MAX_DIGITS: usize = 8;

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

/// The content identifier in a file: the digits behind `CID=`.
///
/// qemu-img writes no leading zeros, so there can be fewer than eight digits.
#[derive(Debug)]
pub(super) struct ContentId {
    place: PhysicalAddress,
    digits: usize,
    value: u32,
}

impl ContentId {
    /// Looks for the identifier in a descriptor of `length` bytes at `place`.
    pub(super) fn find(file: &dyn Device, place: u64, length: u64) -> Result<Option<Self>, OpenErrorKind> {
        let bytes = read_range(file, place, length.min(MAX_DESCRIPTOR));
        let bytes = bytes.map_err(OpenErrorKind::Io)?;
        let mut start = place;
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            if let Some(value) = line.strip_prefix(NAME.as_bytes()) {
                let digits = value.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
                let text = std::str::from_utf8(&value[..digits]);
                let value = text.ok().and_then(|text| u32::from_str_radix(text, 16).ok());
                if let Some(value) = value.filter(|_| digits <= MAX_DIGITS) {
                    let place = PhysicalAddress(start + NAME.len() as u64);
                    return Ok(Some(Self { place, digits, value }));
                }
            }
            start += line.len() as u64;
        }
        Ok(None)
    }

    /// Writes another identifier of as many digits, so that nothing moves.
    pub(super) fn renew(&self, file: &dyn Device) -> io::Result<()> {
        let [a, b, c, d, ..] = identifier();
        let digits = self.digits;
        let value = other_value(self.value, digits, u32::from_le_bytes([a, b, c, d]));
        file.write_at(format!("{value:0digits$x}").as_bytes(), self.place)
    }
}

/// Returns a value of at most `digits` digits that is not `old`, from a `random` number.
fn other_value(old: u32, digits: usize, random: u32) -> u32 {
    // Eight digits f mean that there is no parent.
    let greatest = (1_u64 << (4 * digits)).min(1 << 31) as u32 - 1;
    let value = random & greatest;
    if value == old { value ^ 1 } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryDevice;

    /// Returns the text that a descriptor becomes.
    fn renewed(text: &str) -> Option<String> {
        let device = MemoryDevice::new(64);
        device.write_at(text.as_bytes(), PhysicalAddress(16)).unwrap();
        ContentId::find(&device, 16, text.len() as u64).unwrap()?.renew(&device).unwrap();
        let mut bytes = [0; 64];
        device.read_at(&mut bytes, PhysicalAddress(0)).unwrap();
        let (before, rest) = bytes.split_at(16);
        let (text, after) = rest.split_at(text.len());
        assert!(before.iter().chain(after).all(|byte| *byte == 0));
        Some(String::from_utf8(text.to_vec()).unwrap())
    }

    #[test]
    fn identifiers_of_any_length_change_and_nothing_else() {
        for digits in ["0", "a", "1f", "0ab", "ea5c0fd", "fffffffe"] {
            for (before, after) in [("x=1\nCID=", "\nparentCID=ff\n"), ("CID=", "")] {
                let text = format!("{before}{digits}{after}");
                let new = renewed(&text).unwrap();
                let value = new.strip_prefix(before).unwrap().strip_suffix(after).unwrap();
                assert_eq!(value.len(), digits.len());
                assert!(value.bytes().all(|byte| byte.is_ascii_hexdigit()));
                assert_ne!(value, digits);
            }
        }
        for none in ["", "CID=", "CID=\n", "CID=x", "CID=123456789\n", "parentCID=12\n"] {
            assert_eq!(renewed(none), None, "{none:?}");
        }
    }

    #[test]
    fn other_values_differ_and_are_never_that_of_no_parent() {
        for old in 0..16 {
            assert!(
                (0..64)
                    .all(|random| (other_value(old, 1, random) < 16) & (other_value(old, 1, random) != old))
            );
        }
        assert_eq!(other_value(0, 7, u32::MAX), 0x0fff_ffff);
        assert_eq!(other_value(0, 8, u32::MAX), 0x7fff_ffff);
        assert_eq!(other_value(0x7fff_ffff, 8, u32::MAX), 0x7fff_fffe);
    }
}
