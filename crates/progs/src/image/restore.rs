//! Writes the file system of a dump to devices.
//!
//! Owns [`ImageDump`], [`RestoreMode`] and [`ImageRestored`].
//!
//! **Invariant**: superblocks are written last, after a flush. A restore that was cut short leaves
//! nothing that looks like a file system, on a target that was empty before.

use super::chunks::{Chunks, TreeImage, read_chunks};
use super::one_device::OneDevice;
use super::source::{Source, fault, mend_checksum};
use papilio_device::Device;
use papilio_engine::errors::{Error, Result};
use papilio_engine::options::OpenOptions;
use papilio_engine::options::rescue::{FoundChunks, FoundTrees};
use papilio_engine::volume::Volume;
use papilio_format::features::SuperblockFlags;
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::items::chunk::{ChunkItem, STRIPE_LENGTH, Stripe};
use papilio_format::items::device::DeviceItem;
use papilio_format::metadump::DumpVersion;
use papilio_format::superblock::{
    RawSuperblock, SUPERBLOCK_MIRRORS, SUPERBLOCK_SIZE, SYSTEM_CHUNK_ARRAY_SIZE, superblock_offset,
};
use papilio_format::{
    DeviceId, Geometry, ItemType, Key, LogicalAddress, PhysicalAddress, Superblock, objectid,
};
use std::io::{Read, Seek};
use std::sync::Arc;

/// How a file system is restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreMode {
    /// To one device. Chunks of a file system of several devices get one stripe there.
    OneDevice,
    /// To as many devices as the file system had.
    AllDevices,
    /// Every block at the offset that is its logical address, with the chunk tree as it was. Only
    /// btrfs-progs reads the result.
    Unmapped,
}

/// A file system that was restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImageRestored {
    /// Bytes of tree blocks and data.
    pub bytes: u64,
}

/// A dump that was opened.
#[derive(Debug)]
pub struct ImageDump<R> {
    source: Source<R>,
    chunk_tree: TreeImage,
    chunks: Chunks,
}

/// The devices, the superblock and the mapping of a restore.
struct RestorePlan {
    superblock: Superblock,
    devices: Vec<DeviceItem>,
    chunks: Vec<(LogicalAddress, ChunkItem)>,
    change: Option<OneDevice>,
}

impl<R: Read + Seek> ImageDump<R> {
    /// Opens a dump of `btrfs-image` or of Papilio.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is no dump, is cut short, or lacks the superblock or the chunk
    /// tree.
    pub fn open(input: R) -> Result<Self> {
        let mut source = Source::open(input)?;
        let raw = source.superblock().raw;
        let chunk_tree =
            TreeImage::read(&mut source, objectid::CHUNK_TREE, raw.chunk_root, raw.chunk_root_level)?;
        let chunks = read_chunks(&chunk_tree, &source.superblock().geometry())?;
        Ok(Self { source, chunk_tree, chunks })
    }

    /// Returns the number of devices that the file system had.
    pub fn devices(&self) -> u64 {
        self.source.superblock().raw.num_devices
    }

    /// Returns the sizes in bytes of the devices that a restore needs.
    ///
    /// # Errors
    /// The dump cannot be restored that way.
    pub fn sizes(&mut self, mode: RestoreMode) -> Result<Vec<u64>> {
        if mode != RestoreMode::Unmapped {
            return Ok(self.plan(mode)?.devices.iter().map(|item| item.total_bytes).collect());
        }
        let mut end = self.source.superblock().raw.dev_item.total_bytes;
        for number in 0..self.source.len() {
            self.source.read(number, &mut |start, piece| {
                end = end.max(start.0 + piece.len() as u64);
                Ok(())
            })?;
        }
        Ok(vec![end])
    }

    /// Writes the file system to the devices, which have the sizes that [`ImageDump::sizes`]
    /// returned or more. Calls `progress` with the items done and the number of all.
    ///
    /// # Errors
    /// A fault of the dump; too few or too small devices; a device fails.
    pub fn restore(
        &mut self,
        mode: RestoreMode,
        devices: &[Arc<dyn Device>],
        mut progress: impl FnMut(u64, u64),
    ) -> Result<ImageRestored> {
        if mode == RestoreMode::Unmapped {
            return self.restore_unmapped(devices, &mut progress);
        }
        let plan = self.plan(mode)?;
        let (given, needed) = (devices.len(), plan.devices.len());
        if given != needed {
            return fault(format_args!("its file system needs {needed} devices, {given} were given"));
        }
        for (device, item) in devices.iter().zip(&plan.devices) {
            if device.size() < item.total_bytes {
                let (need, have) = (item.total_bytes, device.size());
                return Err(Error::Truncated { device: device.name().to_owned(), need, have });
            }
        }
        let volume = plan.volume(devices)?;
        let geometry = plan.superblock.geometry();
        let restored = self.write_items(&mut progress, |start, piece| {
            let metadata = plan.is_metadata(start);
            if metadata {
                plan.change_blocks(start, piece, &geometry);
            }
            volume.write(start, piece)
        })?;
        // A volume forgives a device that fails, as a file system in use can do without it.
        if let Some(lost) = volume.devices().iter().find(|slot| slot.stale) {
            let name = lost.name().unwrap_or_default();
            return Err(Error::Invalid(format!("{name}: a write failed, and the restore is incomplete")));
        }
        for (device, item) in devices.iter().zip(&plan.devices) {
            flush(&**device)?;
            let mut superblock = plan.superblock.clone();
            superblock.raw.dev_item = *item;
            write_superblocks(&**device, &superblock)?;
        }
        Ok(restored)
    }

    fn write_items(
        &mut self,
        progress: &mut dyn FnMut(u64, u64),
        mut write: impl FnMut(LogicalAddress, &mut [u8]) -> Result<()>,
    ) -> Result<ImageRestored> {
        let mut restored = ImageRestored::default();
        // Free-space caches may be in a dump twice, more is a fault.
        let chunks = self.chunks.chunks.iter();
        let limit = chunks.fold(0, |sum: u64, (_, chunk)| sum.saturating_add(chunk.length)).saturating_mul(2);
        let all = self.source.len();
        for number in 0..all {
            self.source.read(number, &mut |start, piece| {
                restored.bytes += piece.len() as u64;
                if restored.bytes > limit {
                    return fault("its items are more than its chunks can hold");
                }
                write(start, piece)
            })?;
            progress(number as u64 + 1, all as u64);
        }
        Ok(restored)
    }

    fn plan(&mut self, mode: RestoreMode) -> Result<RestorePlan> {
        let mut superblock = self.source.superblock().clone();
        let mut change = None;
        let (devices, chunks) = if mode == RestoreMode::AllDevices {
            let mut devices = self.chunks.devices.clone();
            devices.sort_by_key(|item| item.devid);
            (devices, self.chunks.chunks.clone())
        } else if self.devices() == 1 && self.chunks.devices.len() == 1 {
            (vec![superblock.raw.dev_item], self.chunks.chunks.clone())
        } else {
            let planned = OneDevice::plan(&mut self.source, &self.chunk_tree, &self.chunks)?;
            superblock.raw = planned.superblock;
            let chunks = planned.chunks.clone();
            change = Some(planned);
            (vec![superblock.raw.dev_item], chunks)
        };
        if mode == RestoreMode::OneDevice && self.source.version() == DumpVersion::Metadata {
            superblock.raw.flags |= SuperblockFlags::METADUMP_V2;
        }
        Ok(RestorePlan { superblock, devices, chunks, change })
    }

    fn restore_unmapped(
        &mut self,
        devices: &[Arc<dyn Device>],
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<ImageRestored> {
        let [device] = devices else { return fault("without a mapping it is restored to one device") };
        let restored = self.write_items(progress, |start, piece| {
            let place = PhysicalAddress(start.0);
            device
                .write_at(piece, place)
                .map_err(|source| device_error(&**device, place, piece.len(), source))
        })?;
        flush(&**device)?;
        let mut superblock = self.source.superblock().clone();
        superblock.raw.flags |= SuperblockFlags::METADUMP;
        set_identity_chunk(&mut superblock.raw);
        write_superblocks(&**device, &superblock)?;
        Ok(restored)
    }
}

impl RestorePlan {
    fn volume(&self, devices: &[Arc<dyn Device>]) -> Result<Volume> {
        volume_over(&self.superblock, &self.devices, &self.chunks, devices)
    }

    /// Returns whether the chunk at an address can hold tree blocks.
    fn is_metadata(&self, address: LogicalAddress) -> bool {
        let after = self.chunks.partition_point(|(start, _)| *start <= address);
        let chunk = after.checked_sub(1).map(|at| &self.chunks[at].1);
        chunk.is_some_and(|chunk| chunk.flags.intersects(BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM))
    }

    fn change_blocks(&self, start: LogicalAddress, piece: &mut [u8], geometry: &Geometry) {
        let size = geometry.node_size as usize;
        for (number, block) in piece.chunks_exact_mut(size).enumerate() {
            mend_checksum(block, |_| Some(geometry.checksum_type));
            if let Some(change) = &self.change {
                change.change(LogicalAddress(start.0 + (number * size) as u64), block, geometry);
            }
        }
    }
}

/// Returns a volume of devices without superblocks, for writing.
pub(crate) fn volume_over(
    superblock: &Superblock,
    items: &[DeviceItem],
    chunks: &[(LogicalAddress, ChunkItem)],
    devices: &[Arc<dyn Device>],
) -> Result<Volume> {
    let chunk_tree = FoundChunks { chunks: chunks.to_vec(), devices: items.to_vec() };
    let found = FoundTrees {
        superblock: superblock.clone(),
        newest: superblock.raw.generation,
        members: Some(items.to_vec()),
        chunk_tree: Some(chunk_tree),
        blocks: None,
        older: None,
    };
    let mut options = OpenOptions::new();
    options.rescue.found = Some(Arc::new(found));
    Volume::open_unfinished(devices.to_vec(), &options)
}

/// Makes the superblock's only system chunk one that maps every address to the same offset.
fn set_identity_chunk(raw: &mut RawSuperblock) {
    let (devid, device_uuid): (DeviceId, _) = (raw.dev_item.devid, raw.dev_item.uuid);
    let chunk = ChunkItem {
        length: u64::MAX,
        owner: objectid::EXTENT_TREE.0,
        stripe_length: STRIPE_LENGTH,
        flags: BlockGroupFlags::SYSTEM,
        io_align: raw.sector_size,
        io_width: raw.sector_size,
        sector_size: raw.sector_size,
        sub_stripes: 0,
        stripes: vec![Stripe { devid, offset: PhysicalAddress(0), device_uuid }],
    };
    let key = Key::new(objectid::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, 0);
    let array = [&key.to_bytes()[..], &chunk.to_bytes()].concat();
    raw.sys_chunk_array_size = array.len() as u32;
    raw.sys_chunk_array = [0; SYSTEM_CHUNK_ARRAY_SIZE];
    raw.sys_chunk_array[..array.len()].copy_from_slice(&array);
}

fn write_superblocks(device: &dyn Device, superblock: &Superblock) -> Result<()> {
    for copy in 0..SUPERBLOCK_MIRRORS {
        let place = superblock_offset(copy);
        if place.0 + SUPERBLOCK_SIZE as u64 >= superblock.raw.dev_item.total_bytes.min(device.size()) {
            continue;
        }
        device.write_at(&superblock.to_bytes(place), place).map_err(|source| Error::SuperblockWrite {
            device: device.name().to_owned(),
            copy,
            source,
        })?;
    }
    flush(device)
}

fn flush(device: &dyn Device) -> Result<()> {
    device.flush().map_err(|source| device_error(device, PhysicalAddress(0), 0, source))
}

fn device_error(
    device: &dyn Device,
    offset: PhysicalAddress,
    length: usize,
    source: std::io::Error,
) -> Error {
    Error::Device { device: device.name().to_owned(), operation: "write", offset, length, source }
}
