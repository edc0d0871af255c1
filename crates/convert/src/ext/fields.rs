//! Reading little-endian fields of a structure on disk.
//!
//! Owns the functions that every parser of ext structures uses. An offset past the end of the bytes
//! reads as zero: parsers check the size of what they read beforehand.

/// Returns the 16-bit field at an offset.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |field| u16::from_le_bytes([field[0], field[1]]))
}

/// Returns the 32-bit field at an offset.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let field = bytes.get(at..at + 4);
    field.map_or(0, |field| u32::from_le_bytes([field[0], field[1], field[2], field[3]]))
}

/// Returns a 64-bit number whose halves lie at two offsets.
pub(crate) fn split_u64(bytes: &[u8], low: usize, high: usize) -> u64 {
    u64::from(u32_at(bytes, low)) | u64::from(u32_at(bytes, high)) << 32
}
