//! Device numbers as FUSE packs them: 12 bits of major number and 20 of minor number.
//!
//! Kernel counterpart: `new_encode_dev` (`include/linux/kdev_t.h`).

/// Packs a major and a minor number.
pub(crate) fn pack((major, minor): (u32, u32)) -> u32 {
    minor & 0xff | (major & 0xfff) << 8 | (minor & !0xff) << 12
}

/// Unpacks a device number into major and minor.
pub(crate) fn unpack(device: u32) -> (u32, u32) {
    ((device & 0xf_ff00) >> 8, device & 0xff | device >> 12 & 0xf_ff00)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_round_trip() {
        for device in [(0, 0), (8, 1), (259, 65_537), (0xfff, 0xf_ffff)] {
            assert_eq!(unpack(pack(device)), device);
        }
        assert_eq!(pack((8, 1)), 0x801);
    }
}
