//! The checksums of ext4: CRC-32C and CRC-16, both without the final inversion.
//!
//! Owns [`crc`], [`crc16`] and [`Seed`], the state that the checksums of an inode's blocks begin
//! with.
//!
//! Source: `Documentation/filesystems/ext4/checksums.rst`.

/// Continues a CRC-32C from the state `seed`.
pub(crate) fn crc(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

/// Continues a CRC-16 (polynomial 0x8005, reflected) from the state `seed`.
pub(crate) fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(seed, |state, byte| {
        (0..8).fold(
            state ^ u16::from(*byte),
            |state, _| {
                if state & 1 == 1 { (state >> 1) ^ 0xa001 } else { state >> 1 }
            },
        )
    })
}

/// The state that checksums of the blocks of one inode begin with; `None` where blocks have none.
pub(crate) type Seed = Option<u32>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_algorithms() {
        // The check values of CRC-32C/ISCSI (inverted at the end) and CRC-16/ARC.
        assert_eq!(!crc(!0, b"123456789"), 0xe306_9283);
        assert_eq!(crc16(0, b"123456789"), 0xbb3d);
        let whole = crc(!0, b"two parts");
        assert_eq!(crc(crc(!0, b"two "), b"parts"), whole);
    }
}
