//! Reading big-endian fields of a structure on disk, and the checksum of version 5.
//!
//! Owns the functions that every parser of XFS structures uses. An offset past the end of the bytes
//! reads as zero: parsers check the size of what they read beforehand.

/// Returns the 16-bit field at an offset.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |field| u16::from_be_bytes([field[0], field[1]]))
}

/// Returns the 32-bit field at an offset.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |field| u32::from_be_bytes(field.try_into().expect("4 bytes")))
}

/// Returns the 64-bit field at an offset.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |field| u64::from_be_bytes(field.try_into().expect("8 bytes")))
}

/// Whether the CRC-32C of a structure matches the one that it has at an offset. The field counts as
/// zero, and is the only little-endian one of XFS.
pub(crate) fn is_intact(bytes: &[u8], at: usize) -> bool {
    let Some(stored) = bytes.get(at..at + 4) else { return false };
    let stored = u32::from_le_bytes(stored.try_into().expect("4 bytes"));
    let sum = crc32c::crc32c_append(crc32c::crc32c(&bytes[..at]), &[0; 4]);
    crc32c::crc32c_append(sum, &bytes[at + 4..]) == stored
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_past_the_end_are_zero() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!((u16_at(&bytes, 6), u16_at(&bytes, 7)), (0x0708, 0));
        assert_eq!((u32_at(&bytes, 0), u32_at(&bytes, 5)), (0x0102_0304, 0));
        assert_eq!((u64_at(&bytes, 0), u64_at(&bytes, 1)), (0x0102_0304_0506_0708, 0));
    }

    #[test]
    fn the_checksum_leaves_its_own_field_out() {
        let mut bytes = [7; 64];
        bytes[20..24].fill(0);
        let sum = crc32c::crc32c(&bytes);
        bytes[20..24].copy_from_slice(&sum.to_le_bytes());
        assert!(is_intact(&bytes, 20) && !is_intact(&bytes, 24) && !is_intact(&bytes, 62));
        bytes[63] ^= 1;
        assert!(!is_intact(&bytes, 20));
    }
}
