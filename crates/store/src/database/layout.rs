//! The layout of a device's database: its keys, and the description under `meta`.
//!
//! | key | value |
//! |---|---|
//! | `meta` | magic number with the version, size of a block, size of the device, flags |
//! | `b` and a block, big-endian | the bytes of the block |
//! | `w` and a window, big-endian | where the blocks of the window are: [`Window`](super::window) |
//! | `s` and a segment's number | the account of the segment: [`Account`](super::accounts) |
//! | `requests` | requests of all writers by kind: [`StoreRequests`](super::counted) |
//!
//! Version 1 had the keys `meta` and `b` only. A device of version 1 becomes one of version 2 with
//! the first write. It has the flag [`EARLIER`]: a window without a key has its blocks under `b`.
//!
//! **Invariant**: versions from 2 on begin with [`MAGIC`], so a newer one is refused by its number.

use papilio_device::OpenErrorKind;

/// Bytes of a block: a sector of most file systems, so that few writes cover parts of one.
pub(super) const BLOCK: u64 = 4096;
/// The key of the device's description.
pub(super) const META: &[u8] = b"meta";
/// The key of the counts of requests.
pub(super) const REQUESTS: &[u8] = b"requests";
/// The first byte of the keys of segments.
pub(super) const SEGMENTS: &[u8] = b"s";

/// The first bytes of a description. The next one is the version.
const MAGIC: &[u8; 15] = b"papilio-device\0";
const FIRST_VERSION: u8 = 1;
const VERSION: u8 = 2;
/// The device was made by version 1.
const EARLIER: u64 = 1;

/// The description of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    /// Bytes of the device.
    pub(super) size: u64,
    /// Whether the device is in the format of version 1: it has blocks and no windows.
    pub(super) is_first_version: bool,
    /// Whether a window without a key has its blocks under their own keys.
    pub(super) has_earlier_blocks: bool,
}

impl Meta {
    /// Describes a new device.
    pub(super) fn new(size: u64) -> Self {
        Self { size, is_first_version: false, has_earlier_blocks: false }
    }

    /// Returns the version of the format.
    pub(super) fn version(self) -> u32 {
        u32::from(if self.is_first_version { FIRST_VERSION } else { VERSION })
    }

    /// Returns the description after the upgrade to the present version.
    pub(super) fn upgraded(self) -> Self {
        Self { is_first_version: false, ..self }
    }

    pub(super) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.push(if self.is_first_version { FIRST_VERSION } else { VERSION });
        bytes.extend_from_slice(&BLOCK.to_le_bytes());
        bytes.extend_from_slice(&self.size.to_le_bytes());
        if !self.is_first_version {
            let flags = if self.has_earlier_blocks { EARLIER } else { 0 };
            bytes.extend_from_slice(&flags.to_le_bytes());
        }
        bytes
    }

    /// Reads a description.
    ///
    /// # Errors
    /// A description of something else; a version or a flag that this program does not know.
    pub(super) fn parse(bytes: Option<&[u8]>) -> Result<Self, OpenErrorKind> {
        let refuse = |reason: String| Err(OpenErrorKind::Remote(reason));
        let Some((version, numbers)) =
            bytes.and_then(|bytes| bytes.strip_prefix(MAGIC)).and_then(<[u8]>::split_first)
        else {
            return refuse("the database there is no device of Papilio".to_owned());
        };
        let numbers: Vec<u64> = numbers
            .chunks_exact(8)
            .map(|number| u64::from_le_bytes(number.try_into().unwrap_or_default()))
            .collect();
        match (*version, &numbers[..]) {
            (FIRST_VERSION, &[BLOCK, size]) => {
                Ok(Self { size, is_first_version: true, has_earlier_blocks: true })
            }
            (VERSION, &[BLOCK, size, flags @ (0 | EARLIER)]) => {
                Ok(Self { size, is_first_version: false, has_earlier_blocks: flags == EARLIER })
            }
            (VERSION, &[BLOCK, _, flags]) => {
                refuse(format!("the device has the flags {flags:#x}, which this version does not know"))
            }
            (version, _) if version > VERSION => refuse(format!(
                "the device has version {version}; this program knows versions up to {VERSION}"
            )),
            _ => refuse("the description of the device there is not valid".to_owned()),
        }
    }
}

/// Returns the key of a block.
pub(super) fn block_key(block: u64) -> [u8; 9] {
    numbered(b'b', block)
}

/// Returns the key of a window.
pub(super) fn window_key(window: u64) -> [u8; 9] {
    numbered(b'w', window)
}

fn numbered(kind: u8, number: u64) -> [u8; 9] {
    let mut key = [kind; 9];
    key[1..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Returns the number in a key of blocks (`b`) or windows (`w`).
pub(super) fn number_in(kind: u8, key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.strip_prefix(&[kind])?.try_into().ok()?))
}

/// Returns the key of a segment.
pub(super) fn segment_key(id: u128) -> [u8; 17] {
    let mut key = [b's'; 17];
    key[1..].copy_from_slice(&id.to_be_bytes());
    key
}

/// Returns the number of the segment that a key names.
pub(super) fn segment_in(key: &[u8]) -> Option<u128> {
    Some(u128::from_be_bytes(key.strip_prefix(SEGMENTS)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_are_read_back_and_others_refused_by_name() {
        let new = Meta::new(1 << 30);
        let first = Meta { is_first_version: true, has_earlier_blocks: true, ..new };
        for meta in [new, first, first.upgraded()] {
            assert_eq!(Meta::parse(Some(&meta.to_bytes())).unwrap(), meta);
        }
        let mut old = b"papilio-device\0\x01".to_vec();
        old.extend_from_slice(&4096_u64.to_le_bytes());
        old.extend_from_slice(&(1_u64 << 30).to_le_bytes());
        assert_eq!(first.to_bytes(), old);
        let changed = |at: usize, byte: u8| {
            let mut bytes = new.to_bytes();
            bytes[at] = byte;
            Meta::parse(Some(&bytes)).unwrap_err().to_string()
        };
        assert!(changed(15, 3).contains("has version 3; this program knows versions up to 2"));
        assert!(changed(32, 2).contains("flags 0x2"));
        assert!(changed(16, 1).contains("not valid"));
        assert!(changed(0, 1).contains("no device of Papilio"));
        for length in 0..new.to_bytes().len() {
            assert!(Meta::parse(Some(&new.to_bytes()[..length])).is_err(), "{length}");
        }
        assert!(Meta::parse(None).is_err());
    }

    #[test]
    fn keys_are_read_back_and_ordered() {
        assert_eq!(number_in(b'b', &block_key(77)), Some(77));
        assert_eq!(number_in(b'w', &block_key(77)), None);
        assert_eq!(number_in(b'w', b"w12"), None);
        assert_eq!(segment_in(&segment_key(1 << 100)), Some(1 << 100));
        assert!(window_key(255) < window_key(256));
    }
}
