//! `ArchiveMap`: superblock, devices and chunks of the file system in an archive.

use super::error::ArchiveFault;
use papilio_format::disk_archive::{ArchiveHeader, HEADER_SUPERBLOCK};
use papilio_format::items::chunk::ChunkItem;
use papilio_format::items::device::DeviceItem;
use papilio_format::superblock::{SUPERBLOCK_SIZE, superblock_offset};
use papilio_format::{LogicalAddress, Superblock};

/// The parts of a file system that say where its bytes are.
#[derive(Clone, Debug, Default)]
pub struct ArchiveMap {
    superblock: Option<Box<Superblock>>,
    devices: Vec<DeviceItem>,
    chunks: Vec<(LogicalAddress, ChunkItem)>,
}

impl ArchiveMap {
    /// Creates a map. Sorts devices by their ids and chunks by their addresses.
    pub fn new(
        superblock: Superblock,
        mut devices: Vec<DeviceItem>,
        mut chunks: Vec<(LogicalAddress, ChunkItem)>,
    ) -> Self {
        devices.sort_by_key(|item| item.devid);
        chunks.sort_by_key(|(start, _)| *start);
        Self { superblock: Some(Box::new(superblock)), devices, chunks }
    }

    /// Creates a map of which only devices and chunks are used.
    #[cfg(test)]
    pub(super) fn without_superblock(
        devices: Vec<DeviceItem>,
        chunks: Vec<(LogicalAddress, ChunkItem)>,
    ) -> Self {
        Self { superblock: None, devices, chunks }
    }

    /// Decodes and checks the map. `header_bytes` is the whole header.
    pub(super) fn parse(
        header: &ArchiveHeader,
        header_bytes: &[u8],
        mut bytes: &[u8],
    ) -> Result<Self, ArchiveFault> {
        let contradiction = |text: String| ArchiveFault::Contradiction(text);
        let superblock = &header_bytes[HEADER_SUPERBLOCK..HEADER_SUPERBLOCK + SUPERBLOCK_SIZE];
        let superblock = Superblock::parse(superblock, superblock_offset(0))
            .map_err(|error| contradiction(format!("its superblock: {error}")))?;
        if superblock.raw.fsid != header.fsid || superblock.raw.generation != header.generation {
            return Err(contradiction("its superblock is that of another state".to_owned()));
        }
        let geometry = superblock.geometry();
        let mut devices = Vec::new();
        for _ in 0..header.devices {
            let (item, rest) = DeviceItem::parse_prefix(bytes)?;
            if devices.last().is_some_and(|last: &DeviceItem| last.devid >= item.devid) {
                return Err(contradiction(format!("device {} is out of order", item.devid)));
            }
            devices.push(item);
            bytes = rest;
        }
        let mut chunks: Vec<(LogicalAddress, ChunkItem)> = Vec::new();
        for _ in 0..header.chunks {
            let short = || contradiction("its map ends inside a chunk".to_owned());
            let (start, rest) = bytes.split_first_chunk::<8>().ok_or_else(short)?;
            let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(short)?;
            let length = u32::from_le_bytes(*length) as usize;
            let item = rest.get(..length).ok_or_else(short)?;
            let (start, chunk) = (LogicalAddress(u64::from_le_bytes(*start)), ChunkItem::parse(item)?);
            chunk.validate(start, &geometry)?;
            if chunks.last().is_some_and(|(last, chunk)| last.0 + chunk.length > start.0) {
                return Err(contradiction(format!("the chunk at {start} is out of order")));
            }
            let known = |devid| devices.iter().any(|item: &DeviceItem| item.devid == devid);
            if let Some(stripe) = chunk.stripes.iter().find(|stripe| !known(stripe.devid)) {
                return Err(contradiction(format!("its map has no device {}", stripe.devid)));
            }
            chunks.push((start, chunk));
            bytes = &rest[length..];
        }
        match bytes.is_empty() {
            true => Ok(Self { superblock: Some(Box::new(superblock)), devices, chunks }),
            false => Err(contradiction("its map has more than its devices and chunks".to_owned())),
        }
    }

    /// Encodes devices and chunks.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for item in &self.devices {
            bytes.extend_from_slice(&item.to_bytes());
        }
        for (start, chunk) in &self.chunks {
            let item = chunk.to_bytes();
            bytes.extend_from_slice(&start.0.to_le_bytes());
            bytes.extend_from_slice(&(item.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&item);
        }
        bytes
    }

    /// Returns the superblock. That of each device differs from it in its device item only.
    ///
    /// # Panics
    /// For a map that is being read, which no caller outside the reader has.
    pub fn superblock(&self) -> &Superblock {
        self.superblock.as_deref().expect("a map that was read has a superblock")
    }

    /// Returns the superblock of a device, by its index.
    pub fn superblock_of(&self, device: usize) -> Superblock {
        let mut superblock = self.superblock().clone();
        superblock.raw.dev_item = self.devices[device];
        superblock
    }

    /// Returns the devices by their ids.
    pub fn devices(&self) -> &[DeviceItem] {
        &self.devices
    }

    /// Returns the chunks by their addresses.
    pub fn chunks(&self) -> &[(LogicalAddress, ChunkItem)] {
        &self.chunks
    }

    /// Returns the chunk that has an address.
    pub fn chunk_at(&self, address: u64) -> Option<&(LogicalAddress, ChunkItem)> {
        let after = self.chunks.partition_point(|(start, _)| start.0 <= address);
        let found = &self.chunks[after.checked_sub(1)?];
        (address < found.0.0 + found.1.length).then_some(found)
    }
}
