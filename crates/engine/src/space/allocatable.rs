//! The bytes that further chunks of a profile can take.
//!
//! Owns [`allocatable`], a pure computation on the free bytes of devices. It assumes that a device
//! with free space in several holes can use all of them.
//!
//! Locks: none. Kernel counterpart: `btrfs_calc_avail_data_space` (`fs/btrfs/super.c`).

use papilio_format::items::chunk::RaidProfile;

/// Bytes of a stripe element, the least that a chunk takes of a device.
pub(crate) const STRIPE: u64 = 64 << 10;

/// Returns the bytes of devices that further chunks of a profile can take, with all copies and
/// without parity, where the devices have `free` bytes in no chunk.
pub(crate) fn allocatable(profile: RaidProfile, free: impl Iterator<Item = u64>) -> u64 {
    let least = if profile == RaidProfile::Dup { 2 * STRIPE } else { STRIPE };
    let mut free: Vec<u64> = free.map(|bytes| bytes / STRIPE * STRIPE).filter(|bytes| *bytes > 0).collect();
    free.sort_unstable_by(|a, b| b.cmp(a));
    let (devices_least, wanted) = match profile {
        RaidProfile::Single | RaidProfile::Dup => (1, 1),
        RaidProfile::Raid0 => (1, free.len()),
        RaidProfile::Raid1 => (2, 2),
        RaidProfile::Raid1c3 => (3, 3),
        RaidProfile::Raid1c4 => (4, 4),
        RaidProfile::Raid10 => (2, 4),
        RaidProfile::Raid5 => (2, free.len()),
        RaidProfile::Raid6 => (3, free.len()),
    };
    // The kernel subtracts parity here, since its factor for the profile is 1.
    let parity = profile.parity();
    let mut bytes = 0_u64;
    // Each round takes all of the smallest remaining device, and as much of as many larger ones as
    // a chunk spans.
    while free.len() >= devices_least && !free.is_empty() {
        let span = wanted.min(free.len());
        let take = free[free.len() - 1];
        if take >= least {
            bytes = bytes.saturating_add(take.saturating_mul((span - parity) as u64));
            let first = free.len() - span;
            for space in &mut free[first..] {
                *space -= take;
            }
        }
        free.pop();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_device_has_alone_is_of_no_use_to_several() {
        const MIB: u64 = 1 << 20;
        let of = |profile, free: &[u64]| allocatable(profile, free.iter().map(|mib| mib * MIB)) / MIB;
        assert_eq!(of(RaidProfile::Single, &[100, 30]), 130);
        assert_eq!(of(RaidProfile::Raid1, &[100, 30]), 60);
        // As the kernel does, it fills the smallest device first: a pair of 50, then one of 10.
        assert_eq!(of(RaidProfile::Raid1, &[100, 60, 50]), 120);
        assert_eq!(of(RaidProfile::Raid5, &[100, 30, 30]), 60);
        assert_eq!(of(RaidProfile::Raid6, &[100, 0, 0]), 0);
        assert_eq!(of(RaidProfile::Raid10, &[100]), 0);
    }
}
