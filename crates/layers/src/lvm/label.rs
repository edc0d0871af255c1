//! `PhysicalVolume`: the label of a device, and its copy of the group's metadata.
//!
//! | offset | bytes | field of the label, in one of the first four sectors |
//! |---|---|---|
//! | 0 | 8 | `LABELONE` |
//! | 8 | 8 | this sector's number |
//! | 16 | 4 | checksum of the bytes from 20 on |
//! | 20 | 4 | offset of the header in the sector |
//! | 24 | 8 | `LVM2 001` |
//!
//! The header has the UUID, the size, and two lists of areas that end with zeros: of data, and of
//! metadata.

use super::group::VolumeGroup;
use super::text;
use crate::bytes::{array, le32, le64};
use crate::error::{LayerError, Result};
use papilio_device::{Device, PhysicalAddress};

/// The format's name in messages.
pub(super) const FORMAT: &str = "LVM2";
const SECTOR: usize = 512;
/// The start value of LVM's checksums.
const CHECKSUM_START: u32 = 0xf597_a6cf;
const AREA_MAGIC: &[u8; 16] = b"\x20LVM2\x20x[5A%r0N*>";
/// The most bytes of a group's metadata.
const MOST_TEXT: u64 = 64 << 20;
/// The flag of a copy of the metadata that is not kept up to date.
const IGNORED: u32 = 1;

/// A physical volume.
#[derive(Clone, Debug)]
pub struct PhysicalVolume {
    /// The UUID, without dashes.
    pub uuid: String,
    /// The group, as this device's newest copy of the metadata describes it. Some devices have no
    /// copy, and a device of no group has an empty one.
    pub group: Option<VolumeGroup>,
}

impl PhysicalVolume {
    /// Reads the label and metadata of a device. `None` if it has no valid label.
    ///
    /// # Errors
    /// Metadata that is damaged, if no other copy on the device is good.
    pub fn read(device: &dyn Device) -> Option<Result<Self>> {
        let mut start = [0; 4 * SECTOR];
        device.read_at(&mut start, PhysicalAddress(0)).ok()?;
        let (number, label) = (0_u64..).zip(start.chunks_exact(SECTOR)).find(|(number, label)| {
            label.starts_with(b"LABELONE")
                && le64(label, 8) == *number
                && &label[24..32] == b"LVM2 001"
                && le32(label, 16) == checksum(&label[20..])
        })?;
        let _ = number;
        Some(Self::of(device, label))
    }

    fn of(device: &dyn Device, label: &[u8]) -> Result<Self> {
        let damaged = |reason: &str| LayerError::damaged(device.name(), FORMAT, reason);
        let header = label.get(le32(label, 20) as usize..).unwrap_or_default();
        let uuid = header.get(..32).ok_or_else(|| damaged("the label has no header"))?;
        let uuid = std::str::from_utf8(uuid).map_err(|_| damaged("the UUID is not text"))?.to_owned();
        let mut places = header[32..].get(8..).unwrap_or_default().chunks_exact(16);
        let is_area = |area: &&[u8]| le64(area, 0) != 0;
        places.by_ref().take_while(is_area).for_each(drop);
        let areas: Vec<u64> = places.take_while(is_area).map(|area| le64(area, 0)).collect();
        let (mut group, mut fault): (Option<VolumeGroup>, _) = (None, None);
        for area in areas {
            match read_area(device, area) {
                Ok(Some(found)) if group.as_ref().is_none_or(|known| known.sequence < found.sequence) => {
                    group = Some(found);
                }
                Ok(_) => {}
                Err(error) => fault = Some(error),
            }
        }
        match (group, fault) {
            (None, Some(error)) => Err(error),
            (group, _) => Ok(Self { uuid, group }),
        }
    }
}

/// Returns the checksum of a header or of metadata: CRC-32 without the inversions.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(CHECKSUM_START, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    })
}

/// Reads the group of a metadata area; `None` if the area has none.
fn read_area(device: &dyn Device, place: u64) -> Result<Option<VolumeGroup>> {
    let damaged = |reason: &str| LayerError::damaged(device.name(), FORMAT, reason);
    let mut header = [0; SECTOR];
    device.read_at(&mut header, PhysicalAddress(place)).map_err(LayerError::io(device.name()))?;
    if array(&header, 4) != Some(*AREA_MAGIC) || checksum(&header[4..]) != le32(&header, 0) {
        return Err(damaged("the header of a metadata area is damaged"));
    }
    let (start, size) = (le64(&header, 24), le64(&header, 32));
    let (offset, length) = (le64(&header, 40), le64(&header, 48));
    if offset == 0 || length == 0 || le32(&header, 60) & IGNORED != 0 {
        return Ok(None);
    }
    let is_inside = offset >= SECTOR as u64
        && offset < size
        && length <= size.saturating_sub(SECTOR as u64)
        && length <= MOST_TEXT
        && start == place
        && start.checked_add(size).is_some_and(|end| end <= device.size());
    if !is_inside {
        return Err(damaged("the metadata lies outside of its area"));
    }
    // The area is a ring behind its header.
    let mut bytes = vec![0; length as usize];
    let first = length.min(size - offset) as usize;
    let io = || LayerError::io(device.name());
    device.read_at(&mut bytes[..first], PhysicalAddress(start + offset)).map_err(io())?;
    device.read_at(&mut bytes[first..], PhysicalAddress(start + SECTOR as u64)).map_err(io())?;
    if checksum(&bytes) != le32(&header, 56) {
        return Err(damaged("the metadata has a wrong checksum"));
    }
    let text = std::str::from_utf8(&bytes).map_err(|_| damaged("the metadata is not UTF-8"))?;
    let section = text::parse(text).map_err(|reason| damaged(&format!("metadata: {reason}")))?;
    VolumeGroup::of(&section).map(Some).map_err(|reason| damaged(&format!("metadata: {reason}")))
}
