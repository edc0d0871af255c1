//! The sizes that `statfs` reports: total, free and available bytes.
//!
//! Owns [`Statfs`], computed from a [`Usage`]. The sizes are bytes of data: bytes of devices,
//! divided by the number of copies of the data profile.
//!
//! Kernel counterparts: `btrfs_statfs`, `btrfs_calc_avail_data_space` (`fs/btrfs/super.c`).

use super::usage::Usage;
use crate::space::allocatable::{STRIPE, allocatable, allocatable_by_even_chunks};
use crate::space::left_in_mixed;
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::items::chunk::RaidProfile;
use papilio_format::superblock::superblock_offset;

/// Bytes at the start of each device without chunks.
const DEVICE_RESERVED: u64 = 1 << 20;
/// Bytes of free metadata space beyond the reserve below which `available` is 0.
const METADATA_THRESHOLD: u64 = 4 << 20;

/// The sizes that `statfs` shows, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statfs {
    /// Data that would fit on the empty devices.
    pub total: u64,
    /// The unused part of `total`.
    pub free: u64,
    /// Space for files: free bytes of data chunks, and bytes of data chunks that could be
    /// allocated.
    pub available: u64,
}

impl Usage {
    /// Computes the sizes as the kernel does.
    pub fn statfs(&self) -> Statfs {
        let profile = self.profile_of(BlockGroupFlags::DATA);
        // Parity does not count as a copy.
        let factor = profile.copies() as u64;
        let used = self.spaces.iter().fold(0_u64, |sum, space| {
            sum.saturating_add(space.used.saturating_mul(space.profile.copies() as u64))
        });
        let total = self.device_size() / factor;
        let free = total.saturating_sub(used / factor).saturating_sub(self.global_reserve);
        let in_chunks = self
            .spaces
            .iter()
            .filter(|space| space.kind.contains(BlockGroupFlags::DATA))
            .fold(0_u64, |sum, space| sum.saturating_add(space.total.saturating_sub(space.used)));
        let allocatable = self.allocatable(profile) / factor;
        let mut available = in_chunks.saturating_add(allocatable);
        if self.is_mixed() {
            let total = self.spaces.iter().filter(|space| space.kind.contains(BlockGroupFlags::DATA));
            let left = left_in_mixed(total.map(|space| space.total).sum());
            available = available.saturating_sub(self.global_reserve).saturating_sub(left);
        } else if self.free_metadata() < self.global_reserve + METADATA_THRESHOLD
            && self.allocatable(self.profile_of(BlockGroupFlags::METADATA)) == 0
        {
            // No chunk of metadata fits any more.
            available = 0;
        }
        // The kernel leaves these out of its sum, and shows as much too much.
        let available = available.saturating_sub(self.superblock_rows(profile));
        Statfs { total, free, available }
    }

    /// Returns the profile of the next chunk of a type: the one in use with most copies.
    fn profile_of(&self, kind: BlockGroupFlags) -> RaidProfile {
        let spaces = self.spaces.iter().filter(|space| space.kind.contains(kind));
        let profiles = spaces.filter(|space| space.total > 0).map(|space| space.profile);
        profiles.max_by_key(|profile| profile.copies()).unwrap_or(RaidProfile::Single)
    }

    fn free_metadata(&self) -> u64 {
        self.spaces
            .iter()
            .filter(|space| space.kind.contains(BlockGroupFlags::METADATA))
            .fold(0_u64, |sum, space| sum.saturating_add(space.total.saturating_sub(space.used)))
    }

    /// Returns the bytes of data that chunks leave free around superblock copies, at most: a stripe
    /// element for each copy, and with parity the row that it is in.
    fn superblock_rows(&self, profile: RaidProfile) -> u64 {
        let present = self.devices.iter().filter(|device| !device.is_missing());
        let copies = present.map(|device| {
            // The first copy lies before all chunks.
            (1..3).filter(|mirror| superblock_offset(*mirror).0 < device.total).count() as u64
        });
        let columns = if profile.parity() > 0 { profile.data_stripes(self.devices.len()).max(1) } else { 1 };
        copies.sum::<u64>() * columns as u64 * STRIPE
    }

    /// Returns the bytes of content that further chunks of a profile could hold.
    pub fn room_for(&self, profile: RaidProfile) -> u64 {
        self.allocatable(profile) / profile.copies().max(1) as u64
    }

    /// Returns the bytes of devices that further chunks of a profile could take, with all copies
    /// and without parity.
    fn allocatable(&self, profile: RaidProfile) -> u64 {
        let least = if profile == RaidProfile::Dup { 2 * STRIPE } else { STRIPE };
        let unallocated = self
            .devices
            .iter()
            .filter(|device| !device.is_missing())
            .map(|device| device.unallocated() / STRIPE * STRIPE)
            .filter(|space| *space > DEVICE_RESERVED + least)
            .map(|space| space - DEVICE_RESERVED);
        match profile {
            RaidProfile::Raid10 => {
                allocatable(profile, unallocated.clone()).min(allocatable_by_even_chunks(unallocated))
            }
            _ => allocatable(profile, unallocated),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::usage::{DeviceUsage, SpaceUsage};
    use papilio_format::{DeviceId, Uuid};

    fn usage(profile: RaidProfile, sizes: &[u64]) -> Usage {
        let copies = profile.copies() as u64;
        let space = SpaceUsage {
            kind: BlockGroupFlags::DATA,
            profile,
            total: 1 << 30,
            used: 1 << 20,
            raw_total: copies << 30,
            raw_used: copies << 20,
        };
        let device = |(index, &total): (usize, &u64)| DeviceUsage {
            devid: DeviceId(index as u64 + 1),
            uuid: Uuid::nil(),
            path: Some("image".into()),
            total,
            size: Some(total),
            allocated: 1 << 30,
            by_space: vec![1 << 30],
        };
        let devices = sizes.iter().enumerate().map(device).collect();
        Usage { spaces: vec![space], devices, global_reserve: 0, chunks_without_block_group: 0 }
    }

    #[test]
    fn unallocated_space_of_one_device_is_available() {
        let statfs = usage(RaidProfile::Single, &[4 << 30]).statfs();
        assert_eq!(statfs.total, 4 << 30);
        assert_eq!(statfs.free, (4 << 30) - (1 << 20));
        assert_eq!(statfs.available, (1 << 30) - (1 << 20) + (3 << 30) - (1 << 20) - STRIPE);
    }

    #[test]
    fn two_copies_halve_the_space_and_need_two_devices() {
        let statfs = usage(RaidProfile::Raid1, &[4 << 30, 2 << 30]).statfs();
        assert_eq!(statfs.total, 3 << 30);
        // The smaller device limits both: twice its unallocated space, halved.
        assert_eq!(statfs.available, (1 << 30) - (1 << 20) + (1 << 30) - (1 << 20) - 2 * STRIPE);
    }

    #[test]
    fn parity_is_no_space_for_files() {
        let in_chunks = (1 << 30) - (1 << 20);
        let unallocated = (3 << 30) - (1 << 20);
        let of_four = usage(RaidProfile::Raid6, &[4 << 30; 4]).statfs();
        // A row of two columns around the second superblock copy of each device.
        assert_eq!(of_four.available, in_chunks + 2 * unallocated - 4 * 2 * STRIPE);
        let of_three = usage(RaidProfile::Raid5, &[4 << 30; 3]).statfs();
        assert_eq!(of_three.available, in_chunks + 2 * unallocated - 3 * 2 * STRIPE);
    }
}
