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

/// Returns the bytes of devices that RAID10 chunks take if each is as large as it can be, on an
/// even number of the devices with most space. Of three devices that are left it uses two;
/// [`allocatable`], as the kernel computes it, counts all three.
pub(crate) fn allocatable_by_even_chunks(free: impl Iterator<Item = u64>) -> u64 {
    let mut free: Vec<u64> = free.map(|bytes| bytes / STRIPE * STRIPE).filter(|bytes| *bytes > 0).collect();
    let mut bytes = 0_u64;
    while free.len() >= 2 {
        free.sort_unstable_by(|a, b| b.cmp(a));
        let span = free.len() / 2 * 2;
        let take = free[span - 1];
        bytes = bytes.saturating_add(take.saturating_mul(span as u64));
        free[..span].iter_mut().for_each(|space| *space -= take);
        free.retain(|space| *space > 0);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_chunks_leave_the_space_of_an_odd_device() {
        let of = |free: &[u64]| allocatable_by_even_chunks(free.iter().map(|units| units * STRIPE)) / STRIPE;
        assert_eq!(of(&[5]), 0);
        assert_eq!(of(&[5, 5, 5]), 10);
        assert_eq!(of(&[7, 7, 7, 2]), 4 * 2 + 2 * 5);
        assert_eq!(of(&[4, 4, 4, 4, 1]), 16);
        assert_eq!(of(&[9, 3]), 6);
    }

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
