//! Superblocks at the places of a device where they can be, good or torn.
//!
//! Owns [`Candidate`] and [`candidates`].

use papilio_device::Device;
use papilio_format::superblock::{
    MAGIC, RawSuperblock, SUPERBLOCK_MIRRORS, SUPERBLOCK_SIZE, superblock_offset,
};
use papilio_format::{ChecksumType, Superblock, Uuid};

/// Bytes with the magic of Btrfs at the place of a superblock copy.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    /// The device, counted from 0.
    pub(crate) device: usize,
    /// The copy, 0 to 2.
    pub(crate) mirror: usize,
    /// All fields, believable or not.
    pub(crate) raw: RawSuperblock,
    /// The superblock, if it is good.
    pub(crate) good: Option<Superblock>,
    /// Why it is not.
    pub(crate) fault: Option<String>,
}

impl Candidate {
    pub(crate) fn is_good(&self) -> bool {
        self.good.is_some()
    }

    /// Returns the UUID in tree blocks, their size and the checksum algorithm, if the fields can be
    /// those of a file system.
    pub(crate) fn identity(&self) -> Option<(Uuid, u32, ChecksumType)> {
        if let Some(good) = &self.good {
            return Some((good.metadata_uuid(), good.raw.node_size, good.checksum_type()));
        }
        let checksum_type = ChecksumType::from_raw(self.raw.csum_type).ok()?;
        let size = self.raw.node_size;
        let fits = size.is_power_of_two() && (4096..=65536).contains(&size) && !self.raw.fsid.is_nil();
        fits.then_some((self.raw.fsid, size, checksum_type))
    }
}

/// Returns the copies of the superblock on a device that have the magic of Btrfs.
pub(crate) fn candidates(device: &dyn Device, number: usize) -> Vec<Candidate> {
    let read = |mirror: usize| {
        let place = superblock_offset(mirror);
        let mut bytes = [0; SUPERBLOCK_SIZE];
        device.read_at(&mut bytes, place).ok()?;
        let raw = RawSuperblock::parse(&bytes).ok().filter(|raw| raw.magic == MAGIC)?;
        let (good, fault) = match Superblock::parse(&bytes, place) {
            Ok(good) => (Some(good), None),
            Err(fault) => (None, Some(fault.to_string())),
        };
        Some(Candidate { device: number, mirror, raw, good, fault })
    };
    (0..SUPERBLOCK_MIRRORS).filter_map(read).collect()
}
