//! `Content`: the things that a device has on it.

use crate::error::Result;
use crate::luks::LuksHeader;
use crate::lvm::PhysicalVolume;
use crate::md::MdSuperblock;
use papilio_device::{Device, PartitionTable, PhysicalAddress, signatures};
use papilio_format::Superblock;
use papilio_format::superblock::{SUPERBLOCK_SIZE, superblock_offset};

/// The content of a device.
#[derive(Debug)]
pub(crate) enum Content {
    /// A Btrfs file system, with its label and UUID in one text.
    Btrfs(String),
    Luks(Result<Box<LuksHeader>>),
    Member(Box<MdSuperblock>),
    Physical(Result<Box<PhysicalVolume>>),
    Partitions(PartitionTable),
    /// Something else that is known by name.
    Other(&'static str),
    Unknown,
}

impl Content {
    /// Returns the content of a device.
    pub(crate) fn of(device: &dyn Device, ignore_signatures: bool) -> Self {
        let btrfs = superblock(device);
        let member = MdSuperblock::read(device);
        if let Some((used, text)) = btrfs {
            return match member {
                // A superblock in the file system's own range is its data, or from an earlier use.
                Some(member) if member.is_at_end() && member.offset() >= used && !ignore_signatures => {
                    Self::Member(Box::new(member))
                }
                _ => Self::Btrfs(text),
            };
        }
        let table =
            || PartitionTable::read(device).ok().flatten().filter(|table| !table.partitions.is_empty());
        // Version 0.90 has no place of its own: the last partition's superblock may be where that
        // of the whole disk would be.
        if let Some(member) = &member
            && member.version == "0.90"
            && member.component < member.offset()
            && let Some(table) = table()
        {
            return Self::Partitions(table);
        }
        if let Some(member) = member {
            return Self::Member(Box::new(member));
        }
        if LuksHeader::is_at(device) {
            return Self::Luks(LuksHeader::read(device).map(Box::new));
        }
        if let Some(physical) = PhysicalVolume::read(device) {
            return Self::Physical(physical.map(Box::new));
        }
        if let Some(table) = table() {
            return Self::Partitions(table);
        }
        let known = signatures(device).unwrap_or_default();
        known.first().map_or(Self::Unknown, |signature| Self::Other(signature.name))
    }

    /// Returns whether other devices lie on this one.
    pub(crate) fn is_layer(&self) -> bool {
        matches!(self, Self::Luks(_) | Self::Member(_) | Self::Physical(_))
    }
}

/// Returns the bytes that a Btrfs file system uses of a device, and its name.
fn superblock(device: &dyn Device) -> Option<(u64, String)> {
    const MAGIC: usize = 64;
    let place = superblock_offset(0);
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device.read_at(&mut bytes, PhysicalAddress(place.get())).ok()?;
    if bytes[MAGIC..].first_chunk() != Some(b"_BHRfS_M") {
        return None;
    }
    Some(match Superblock::parse(&bytes, place) {
        Ok(superblock) => {
            let label = String::from_utf8_lossy(superblock.label()).into_owned();
            let label = if label.is_empty() { label } else { format!(" {label:?}") };
            (superblock.raw.dev_item.total_bytes, format!("btrfs{label}, {}", superblock.raw.fsid))
        }
        Err(_) => (0, "btrfs, damaged superblock".to_owned()),
    })
}
