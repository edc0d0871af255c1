//! The places of a chunk's bytes on devices.
//!
//! Owns [`ChunkPlace`] and [`ChunkItem::places`], for tools that show where something lies. Reading
//! and writing use a map of their own, which also knows which devices are there.
//!
//! Kernel counterpart: `btrfs_map_block` (`fs/btrfs/volumes.c`).

use crate::error::Corrupt;
use crate::items::chunk::{ChunkItem, RaidProfile};
use crate::units::{DeviceId, PhysicalAddress};

/// The place of one copy of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkPlace {
    /// The device.
    pub devid: DeviceId,
    /// The offset on it.
    pub offset: PhysicalAddress,
    /// How many bytes from here on are adjacent on the device, too.
    pub length: u64,
}

impl ChunkItem {
    /// Returns the places of the byte at `offset` in the chunk: one for each copy. With parity it
    /// is the one copy that needs no rebuild.
    ///
    /// # Errors
    /// Flags of several profiles, or fewer stripes than the profile needs.
    pub fn places(&self, offset: u64) -> Result<Vec<ChunkPlace>, Corrupt> {
        let profile = self.profile()?;
        let stripes = self.stripes.len();
        let columns = profile.data_stripes(stripes) as u64;
        if !profile.accepts_stripes(stripes) || columns == 0 || self.stripe_length == 0 {
            return Err(Corrupt::field("chunk", "num_stripes", stripes as u64, "not enough for the profile"));
        }
        let contiguous = columns == 1 && profile.parity() == 0;
        let (row, column, within) = match contiguous {
            true => (0, 0, offset),
            false => {
                let element = offset / self.stripe_length;
                (element / columns, element % columns, offset % self.stripe_length)
            }
        };
        let length = match contiguous {
            true => self.length.saturating_sub(offset),
            false => self.stripe_length - within,
        };
        let place = |stripe: usize| ChunkPlace {
            devid: self.stripes[stripe].devid,
            offset: PhysicalAddress(
                self.stripes[stripe]
                    .offset
                    .0
                    .saturating_add(row.saturating_mul(self.stripe_length))
                    .saturating_add(within),
            ),
            length,
        };
        let column = column as usize;
        Ok(match profile {
            RaidProfile::Single | RaidProfile::Raid0 => vec![place(column)],
            RaidProfile::Dup | RaidProfile::Raid1 | RaidProfile::Raid1c3 | RaidProfile::Raid1c4 => {
                (0..stripes).map(place).collect()
            }
            RaidProfile::Raid10 => {
                let copies = RaidProfile::Raid10.copies();
                (column * copies..(column + 1) * copies).map(place).collect()
            }
            RaidProfile::Raid5 | RaidProfile::Raid6 => {
                vec![place(((row % stripes as u64) as usize + column) % stripes)]
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::items::block_group::BlockGroupFlags;
    use crate::items::chunk::Stripe;
    use uuid::Uuid;

    const ELEMENT: u64 = 64 << 10;

    fn places(profile: RaidProfile, stripes: u64, offset: u64) -> Vec<(u64, u64)> {
        let item = ChunkItem {
            length: 1 << 30,
            owner: 2,
            stripe_length: ELEMENT,
            flags: BlockGroupFlags::DATA | profile.flags(),
            io_align: 65536,
            io_width: 65536,
            sector_size: 4096,
            sub_stripes: 2,
            stripes: (1..=stripes)
                .map(|devid| Stripe {
                    devid: DeviceId(devid),
                    offset: PhysicalAddress(devid << 32),
                    device_uuid: Uuid::nil(),
                })
                .collect(),
        };
        let places = item.places(offset).unwrap();
        places.iter().map(|place| (place.devid.0, place.offset.0 - (place.devid.0 << 32))).collect()
    }

    #[test]
    fn every_profile_has_its_places() {
        let third = 2 * ELEMENT + 5;
        assert_eq!(places(RaidProfile::Single, 1, third), [(1, third)]);
        assert_eq!(places(RaidProfile::Raid1c3, 3, third), [(1, third), (2, third), (3, third)]);
        assert_eq!(places(RaidProfile::Raid0, 2, third), [(1, ELEMENT + 5)]);
        assert_eq!(places(RaidProfile::Raid0, 2, third + ELEMENT), [(2, ELEMENT + 5)]);
        assert_eq!(places(RaidProfile::Raid10, 4, ELEMENT), [(3, 0), (4, 0)]);
        // Data, data, parity; then the columns turn by one.
        assert_eq!(places(RaidProfile::Raid5, 3, ELEMENT), [(2, 0)]);
        assert_eq!(places(RaidProfile::Raid5, 3, third), [(2, ELEMENT + 5)]);
        assert_eq!(places(RaidProfile::Raid6, 4, 3 * ELEMENT), [(3, ELEMENT)]);
    }
}
