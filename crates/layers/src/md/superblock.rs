//! `MdSuperblock`: the metadata of a member.
//!
//! **Invariants** of a parsed superblock: its checksum is right, it names its own place, and the
//! data lies inside the device.

use crate::bytes::{array, le16, le32, le64, text};
use papilio_device::{Device, PhysicalAddress};

/// Bytes of the unit of md's numbers.
pub(super) const SECTOR: u64 = 512;
/// Bytes that are read for a superblock.
pub(super) const LENGTH: usize = 4096;
const MAGIC: u32 = 0xa92b_4efc;
const KIB: u64 = 1024;

/// The features of version 1 that this crate knows.
pub(super) mod feature {
    pub const BITMAP: u32 = 1;
    pub const RECOVERY_OFFSET: u32 = 2;
    pub const RESHAPE: u32 = 4;
    pub const BAD_BLOCKS: u32 = 8;
    pub const REPLACEMENT: u32 = 16;
    pub const BACKWARDS: u32 = 32;
    pub const NEW_OFFSET: u32 = 64;
    pub const CLUSTERED: u32 = 256;
    pub const JOURNAL: u32 = 512;
    pub const PPL: u32 = 1024;
    pub const MULTIPLE_PPLS: u32 = 2048;
    pub const RAID0_LAYOUT: u32 = 4096;
    pub const KNOWN: u32 = 8191;
}

/// A change of an array's shape that is not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reshape {
    /// Bytes of the array before the border of the shapes. The new shape is before it, or after
    /// it if the reshape goes backwards.
    pub position: u64,
    /// Whether the reshape began at the end.
    pub is_backwards: bool,
    /// The number of members that the array had before.
    pub old_disks: u32,
    /// The new layout.
    pub layout: u32,
    /// Bytes of a new chunk.
    pub chunk: u64,
    /// The new level.
    pub level: i32,
    /// Bytes to the data of the new shape.
    pub data_offset: u64,
}

/// The part that a member has in its array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The member of this number.
    Active(u32),
    /// A spare.
    Spare,
    /// A member that failed.
    Faulty,
    /// A journal.
    Journal,
}

/// The metadata of a member.
#[derive(Clone, Debug)]
pub struct MdSuperblock {
    /// The version: "0.90", "1.0", "1.1" or "1.2".
    pub version: &'static str,
    /// The UUID of the array.
    pub uuid: [u8; 16],
    /// The array's name; empty in version 0.90.
    pub name: String,
    /// The level: 0, 1, 4, 5, 6, 10, or -1 for linear.
    pub level: i32,
    /// The layout, as the level defines it.
    pub layout: u32,
    /// Bytes of a chunk; 0 where the level has none.
    pub chunk: u64,
    /// The number of members that the array has.
    pub raid_disks: u32,
    /// Bytes of each member that the array uses; 0 for linear and RAID 0 arrays.
    pub component: u64,
    /// Bytes from the member's start to the data.
    pub data_offset: u64,
    /// Bytes of the member's data.
    pub data_size: u64,
    /// The count of changes of the array's state that this member knows.
    pub events: u64,
    /// The part of this member.
    pub role: Role,
    /// Whether the array was stopped after its last write.
    pub is_clean: bool,
    /// An unfinished reshape.
    pub reshape: Option<Reshape>,
    /// Bytes of this member that are rebuilt, if that is not finished.
    pub recovered: Option<u64>,
    /// The features of version 1.
    pub features: u32,
    /// Bytes from the member's start to the write-intent bitmap.
    pub bitmap: Option<u64>,
    /// Ranges of the member that cannot be read: start in the member, and bytes.
    pub bad: Vec<(u64, u64)>,
    /// This member's number in the list of devices.
    pub number: u32,
    /// The parts of all devices, as this member knows them.
    pub roles: Vec<Role>,
    /// The place of the superblock.
    pub(super) offset: u64,
}

impl MdSuperblock {
    /// Reads the superblock of a member. `None` if the device has no valid one.
    pub fn read(device: &dyn Device) -> Option<Self> {
        let size = device.size();
        let end = (size / SECTOR).checked_sub(16).map(|sector| (sector & !7) * SECTOR);
        let places = [(Some(4096), "1.2"), (Some(0), "1.1"), (end, "1.0")];
        for (place, version) in places {
            if let Some(found) = place.and_then(|place| read_1(device, place, version)) {
                return Some(found);
            }
        }
        let place = (size & !(64 * KIB - 1)).checked_sub(64 * KIB)?;
        parse_0(&read(device, place)?, place)
    }

    /// Returns whether the superblock lies behind the data, so that the member shows it at its own
    /// start.
    pub fn is_at_end(&self) -> bool {
        matches!(self.version, "0.90" | "1.0")
    }

    /// Returns the place of the superblock in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the name of the level, such as `raid5`.
    pub fn level_name(&self) -> String {
        match self.level {
            -1 => "linear".to_owned(),
            level => format!("raid{level}"),
        }
    }

    /// Returns a name of the array for messages.
    pub fn label(&self) -> String {
        let uuid = crate::bytes::uuid(&self.uuid);
        match self.name.as_str() {
            "" => format!("md array {uuid}"),
            name => format!("md array {name:?} ({uuid})"),
        }
    }
}

fn read(device: &dyn Device, place: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; LENGTH];
    device.read_at(&mut bytes, PhysicalAddress(place)).ok()?;
    (le32(&bytes, 0) == MAGIC).then_some(bytes)
}

fn read_1(device: &dyn Device, place: u64, version: &'static str) -> Option<MdSuperblock> {
    let bytes = read(device, place)?;
    let mut found = parse_1(&bytes, place, version, device.size())?;
    if found.features & feature::BAD_BLOCKS != 0 {
        found.bad = bad_blocks(device, &bytes, place)?;
    }
    Some(found)
}

/// Returns the checksum of a superblock of version 1.
pub(super) fn checksum_1(bytes: &[u8]) -> Option<u32> {
    let roles = le32(bytes, 220) as usize;
    let summed = bytes.get(..256_usize.checked_add(roles.checked_mul(2)?)?)?;
    let (words, rest) = summed.as_chunks::<4>();
    let words = words.iter().map(|word| u64::from(u32::from_le_bytes(*word)));
    let sum = words.sum::<u64>() + u64::from(le16(rest, 0)) - u64::from(le32(bytes, 216));
    Some(folded(sum))
}

/// Returns the checksum of a superblock of version 0.90.
pub(super) fn checksum_0(bytes: &[u8]) -> u32 {
    let words = bytes.as_chunks::<4>().0.iter().map(|word| u64::from(u32::from_le_bytes(*word)));
    folded(words.sum::<u64>() - u64::from(le32(bytes, 38 * 4)))
}

fn folded(sum: u64) -> u32 {
    (sum as u32).wrapping_add((sum >> 32) as u32)
}

fn role(word: u16) -> Role {
    match word {
        0xffff => Role::Spare,
        0xfffe => Role::Faulty,
        0xfffd => Role::Journal,
        number => Role::Active(u32::from(number)),
    }
}

fn sectors(bytes: &[u8], at: usize) -> Option<u64> {
    le64(bytes, at).checked_mul(SECTOR)
}

/// Parses a superblock of version 1 that was found at `place`.
pub(super) fn parse_1(bytes: &[u8], place: u64, version: &'static str, device: u64) -> Option<MdSuperblock> {
    let count = le32(bytes, 220) as usize;
    let is_here = le32(bytes, 4) == 1 && sectors(bytes, 144) == Some(place);
    if !is_here || count > (LENGTH - 256) / 2 || checksum_1(bytes)? != le32(bytes, 216) {
        return None;
    }
    let features = le32(bytes, 8);
    let (data_offset, data_size) = (sectors(bytes, 128)?, sectors(bytes, 136)?);
    if data_offset.checked_add(data_size)? > device {
        return None;
    }
    let number = le32(bytes, 160);
    let roles: Vec<Role> = (0..count).map(|at| role(le16(bytes, 256 + 2 * at))).collect();
    let own = roles.get(number as usize).copied().unwrap_or(Role::Spare);
    let bitmap = i64::from(le32(bytes, 96) as i32) * SECTOR as i64;
    let has_bitmap = features & feature::BITMAP != 0 && bitmap != 0;
    Some(MdSuperblock {
        version,
        uuid: array(bytes, 16)?,
        name: text(&bytes[32..64]),
        level: le32(bytes, 72) as i32,
        layout: le32(bytes, 76),
        chunk: u64::from(le32(bytes, 88)) * SECTOR,
        raid_disks: le32(bytes, 92),
        component: sectors(bytes, 80)?,
        data_offset,
        data_size,
        events: le64(bytes, 200),
        role: own,
        is_clean: le64(bytes, 208) == u64::MAX,
        reshape: if features & feature::RESHAPE != 0 {
            let delta = le32(bytes, 112) as i32;
            let moved =
                if features & feature::NEW_OFFSET != 0 { i64::from(le32(bytes, 124) as i32) } else { 0 };
            Some(Reshape {
                position: sectors(bytes, 104)?,
                is_backwards: delta < 0 || (delta == 0 && features & feature::BACKWARDS != 0),
                old_disks: le32(bytes, 92).checked_add_signed(delta.checked_neg()?)?,
                layout: le32(bytes, 116),
                chunk: u64::from(le32(bytes, 120)) * SECTOR,
                level: le32(bytes, 100) as i32,
                data_offset: data_offset.checked_add_signed(moved * SECTOR as i64)?,
            })
        } else {
            None
        },
        recovered: if features & feature::RECOVERY_OFFSET != 0 { sectors(bytes, 152) } else { None },
        features,
        bitmap: if has_bitmap { place.checked_add_signed(bitmap) } else { None },
        bad: Vec::new(),
        number,
        roles,
        offset: place,
    })
}

/// Reads the list of bad blocks. `None` if it cannot be read.
fn bad_blocks(device: &dyn Device, bytes: &[u8], place: u64) -> Option<Vec<(u64, u64)>> {
    let shift = u32::from(bytes[185]);
    let length = u64::from(le16(bytes, 186)) * SECTOR;
    let offset = place.checked_add_signed(i64::from(le32(bytes, 188) as i32) * SECTOR as i64)?;
    if length > 64 * KIB || shift > 20 {
        return None;
    }
    let mut list = vec![0; length as usize];
    device.read_at(&mut list, PhysicalAddress(offset)).ok()?;
    let entries = list.as_chunks::<8>().0.iter().map(|entry| u64::from_le_bytes(*entry));
    entries
        .take_while(|entry| *entry != u64::MAX)
        .map(|entry| {
            let start = (entry >> 10).checked_mul(SECTOR << shift)?;
            let length = ((entry & 0x3ff) + 1).checked_mul(SECTOR << shift)?;
            Some((start, length))
        })
        .collect()
}

/// Parses a superblock of version 0.90 or 0.91 that was found at `place`.
pub(super) fn parse_0(bytes: &[u8], place: u64) -> Option<MdSuperblock> {
    let word = |at: usize| le32(bytes, at * 4);
    if word(1) != 0 || !matches!(word(2), 90 | 91) || checksum_0(bytes) != word(38) {
        return None;
    }
    let component = u64::from(word(8)) * KIB;
    if component > place {
        return None;
    }
    let mut uuid = [0; 16];
    for (bytes, at) in uuid.chunks_exact_mut(4).zip([5, 13, 14, 15]) {
        bytes.copy_from_slice(&word(at).to_le_bytes());
    }
    // A disk's entry has its number, place, and state: faulty 1, active 2, in sync 4.
    let disk = |at: usize| {
        let (role, state) = (word(at + 3), word(at + 4));
        match state {
            _ if state & 1 != 0 => Role::Faulty,
            _ if state & 4 != 0 => Role::Active(role),
            _ => Role::Spare,
        }
    };
    let level = word(7) as i32;
    let data_size = if component == 0 { place } else { component };
    Some(MdSuperblock {
        version: "0.90",
        uuid,
        name: String::new(),
        level,
        layout: word(64),
        chunk: u64::from(word(65)),
        raid_disks: word(10),
        component,
        data_offset: 0,
        data_size: if matches!(level, -1 | 0) { place } else { data_size },
        events: u64::from(word(39)) | u64::from(word(40)) << 32,
        role: disk(992),
        is_clean: word(33) & 1 != 0,
        // The position, the new level, the change of members, and the new layout and chunks.
        reshape: if word(2) == 91 {
            let delta = word(47) as i32;
            Some(Reshape {
                position: (u64::from(word(44)) | u64::from(word(45)) << 32).checked_mul(SECTOR)?,
                is_backwards: delta < 0,
                old_disks: word(10).checked_add_signed(delta.checked_neg()?)?,
                layout: word(48),
                chunk: u64::from(word(49)),
                level: word(46) as i32,
                data_offset: 0,
            })
        } else {
            None
        },
        recovered: None,
        features: 0,
        // Bit 8 of the state: a bitmap follows the superblock.
        bitmap: (word(33) & 1 << 8 != 0).then_some(place + LENGTH as u64),
        bad: Vec::new(),
        number: word(992),
        roles: (0..27).map(|number| disk(128 + 32 * number)).collect(),
        offset: place,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_device::MemoryDevice;

    #[test]
    fn random_superblocks_never_panic() {
        let mut random = fastrand::Rng::with_seed(7);
        for round in 0..20_000_u64 {
            let mut bytes = vec![0; LENGTH];
            random.fill(&mut bytes);
            bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
            if round % 2 == 0 {
                bytes[4..8].copy_from_slice(&1_u32.to_le_bytes());
                bytes[144..152].copy_from_slice(&8_u64.to_le_bytes());
                bytes[220..224].copy_from_slice(&random.u32(..2000).to_le_bytes());
                if let Some(sum) = checksum_1(&bytes) {
                    bytes[216..220].copy_from_slice(&sum.to_le_bytes());
                }
                let _ = parse_1(&bytes, 4096, "1.2", u64::MAX);
            } else {
                bytes[4..12].copy_from_slice(&[0, 0, 0, 0, 90, 0, 0, 0]);
                let sum = checksum_0(&bytes);
                bytes[152..156].copy_from_slice(&sum.to_le_bytes());
                let _ = parse_0(&bytes, u64::MAX / 2);
            }
        }
        assert!(MdSuperblock::read(&MemoryDevice::new(1 << 20)).is_none());
    }
}
