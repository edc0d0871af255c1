//! Volumes for tests: memory devices filled row by row by a writer that shares only the on-disk
//! types with the code under test.
//!
//! Owns [`TestVolume`]. Its content is [`byte_at`], a function of the logical address.

use super::volume::Volume;
use crate::errors::Result;
use crate::options::OpenOptions;
use papilio_device::{Device, FaultDevice, MemoryDevice};
use papilio_format::features::IncompatFeatures;
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::items::chunk::{ChunkItem, RaidProfile, STRIPE_LENGTH, Stripe};
use papilio_format::superblock::{MAGIC, RawSuperblock, SUPERBLOCK_SIZE, superblock_offset};
use papilio_format::{
    DeviceId, Generation, ItemType, Key, LogicalAddress, PhysicalAddress, Superblock, Uuid, objectid,
};
use std::sync::Arc;

/// Logical start of a test volume's system chunk.
pub(crate) const CHUNK_START: LogicalAddress = LogicalAddress(1 << 20);
/// Size of each device in bytes.
const DEVICE_SIZE: u64 = 8 << 20;
/// Rows of each chunk: more than there are stripes, so that the parity rotates through all of them.
const ROWS: u64 = 6;
const ELEMENT: usize = STRIPE_LENGTH as usize;

/// Returns the byte of a test volume at a logical address.
pub(crate) fn byte_at(logical: u64) -> u8 {
    ((logical / 8).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> ((logical % 8) * 8)) as u8
}

/// Returns the content of a range.
pub(crate) fn content(logical: LogicalAddress, length: usize) -> Vec<u8> {
    (logical.0..logical.0 + length as u64).map(byte_at).collect()
}

/// Returns the UUID of device `devid`.
pub(crate) fn device_uuid(devid: u64) -> Uuid {
    Uuid::from_u128(0xd0_0000 + u128::from(devid))
}

/// Returns a system chunk of `length` bytes on devices 1, 2, ...; DUP has both stripes on device 1.
pub(crate) fn chunk_item(profile: RaidProfile, stripes: usize, length: u64) -> ChunkItem {
    let stripe = |number: usize| {
        let devid = if profile == RaidProfile::Dup { 1 } else { number as u64 + 1 };
        // A different offset on each device.
        let offset = (1 << 20) + number as u64 * (640 << 10);
        Stripe { devid: DeviceId(devid), offset: PhysicalAddress(offset), device_uuid: device_uuid(devid) }
    };
    ChunkItem {
        length,
        owner: 2,
        stripe_length: STRIPE_LENGTH,
        flags: BlockGroupFlags::SYSTEM | profile.flags(),
        io_align: STRIPE_LENGTH as u32,
        io_width: STRIPE_LENGTH as u32,
        sector_size: 4096,
        sub_stripes: if profile == RaidProfile::Raid10 { 2 } else { 1 },
        stripes: (0..stripes).map(stripe).collect(),
    }
}

/// Returns the contents of a row's elements, in stripe order.
fn row_of(profile: RaidProfile, stripes: usize, row: u64, logical: u64) -> Vec<Vec<u8>> {
    let data = |column: u64| content(LogicalAddress(logical + column * STRIPE_LENGTH), ELEMENT);
    let mut columns: Vec<Vec<u8>> = match profile {
        RaidProfile::Single
        | RaidProfile::Dup
        | RaidProfile::Raid1
        | RaidProfile::Raid1c3
        | RaidProfile::Raid1c4 => vec![data(0); stripes],
        RaidProfile::Raid0 => (0..stripes as u64).map(data).collect(),
        RaidProfile::Raid10 => (0..stripes as u64).map(|stripe| data(stripe / 2)).collect(),
        RaidProfile::Raid5 => (0..stripes as u64 - 1).map(data).collect(),
        RaidProfile::Raid6 => (0..stripes as u64 - 2).map(data).collect(),
    };
    if profile.parity() > 0 {
        let parity = parity_of(&columns);
        columns.extend(parity.into_iter().take(profile.parity()));
        columns.rotate_right(row as usize % stripes);
    }
    columns
}

/// Returns P and Q, computed from their definition.
fn parity_of(columns: &[Vec<u8>]) -> [Vec<u8>; 2] {
    let (mut p, mut q) = (vec![0; ELEMENT], vec![0; ELEMENT]);
    for column in columns.iter().rev() {
        for (index, byte) in column.iter().enumerate() {
            p[index] ^= byte;
            let carry = if q[index] & 0x80 != 0 { 0x1d } else { 0 };
            q[index] = (q[index] << 1) ^ carry ^ byte;
        }
    }
    [p, q]
}

/// Returns a superblock for device `devid` of `devices`.
pub(crate) fn superblock(devid: u64, devices: u64, chunk: &ChunkItem) -> RawSuperblock {
    let mut raw = RawSuperblock::parse(&[0; SUPERBLOCK_SIZE]).unwrap();
    raw.fsid = Uuid::from_u128(0xf5);
    raw.magic = MAGIC;
    raw.generation = Generation(9);
    raw.chunk_root_generation = Generation(9);
    raw.root = CHUNK_START;
    raw.chunk_root = CHUNK_START;
    raw.total_bytes = devices * DEVICE_SIZE;
    raw.bytes_used = 1 << 20;
    raw.root_dir_objectid = 6;
    raw.num_devices = devices;
    raw.sector_size = 4096;
    raw.node_size = 16384;
    raw.leaf_size = 16384;
    raw.stripe_size = 4096;
    raw.incompat_flags = IncompatFeatures::MIXED_BACKREF | IncompatFeatures::RAID56;
    raw.dev_item.devid = DeviceId(devid);
    raw.dev_item.total_bytes = DEVICE_SIZE;
    raw.dev_item.uuid = device_uuid(devid);
    raw.dev_item.fsid = raw.fsid;
    let key =
        Key { objectid: objectid::FIRST_CHUNK_TREE, item_type: ItemType::CHUNK_ITEM, offset: CHUNK_START.0 };
    let array = [key.to_bytes().to_vec(), chunk.to_bytes()].concat();
    raw.sys_chunk_array[..array.len()].copy_from_slice(&array);
    raw.sys_chunk_array_size = array.len() as u32;
    raw
}

/// Writes a superblock's first copy, with a correct checksum.
pub(crate) fn write_superblock(device: &dyn Device, raw: &RawSuperblock) {
    let superblock = Superblock::parse_unverified(&raw.to_bytes()).unwrap();
    let place = superblock_offset(0);
    device.write_at(&superblock.to_bytes(place), place).unwrap();
}

/// Two adjacent chunks of one profile on memory devices: a system chunk and a data chunk.
pub(crate) struct TestVolume {
    pub(crate) devices: Vec<Arc<MemoryDevice>>,
    pub(crate) superblocks: Vec<RawSuperblock>,
    pub(crate) system_chunk: (LogicalAddress, ChunkItem),
    pub(crate) data_chunk: (LogicalAddress, ChunkItem),
}

impl TestVolume {
    /// Creates a volume with [`byte_at`] written to both chunks.
    pub(crate) fn new(profile: RaidProfile, stripes: usize) -> Self {
        let volume = Self::blank(profile, stripes);
        let (_, system) = &volume.system_chunk;
        volume.write_chunk(CHUNK_START, system, profile);
        volume.write_chunk(volume.data_chunk.0, &volume.data_chunk.1, profile);
        volume
    }

    /// Creates a volume with zeros in both chunks.
    pub(crate) fn blank(profile: RaidProfile, stripes: usize) -> Self {
        let data_columns = profile.data_stripes(stripes) as u64;
        let length = ROWS * data_columns * STRIPE_LENGTH;
        let system = chunk_item(profile, stripes, length);
        let mut data = system.clone();
        data.flags = BlockGroupFlags::DATA | profile.flags();
        // Other devices first, at offsets after the system chunk's stripes.
        if profile != RaidProfile::Dup {
            data.stripes.rotate_left(1);
        }
        for stripe in &mut data.stripes {
            stripe.offset.0 += 3 << 20;
        }
        let count = if profile == RaidProfile::Dup { 1 } else { stripes };
        let devices: Vec<_> = (1..=count)
            .map(|devid| Arc::new(MemoryDevice::new(DEVICE_SIZE).with_name(format!("device-{devid}"))))
            .collect();
        let superblocks: Vec<_> =
            (1..=count as u64).map(|devid| superblock(devid, count as u64, &system)).collect();
        for (device, raw) in devices.iter().zip(&superblocks) {
            write_superblock(&**device, raw);
        }
        let data_chunk = (LogicalAddress(CHUNK_START.0 + length), data);
        Self { devices, superblocks, system_chunk: (CHUNK_START, system), data_chunk }
    }

    /// Copies the volume, whose content is expensive to compute.
    pub(crate) fn copy(&self) -> Self {
        Self {
            devices: self.devices.iter().map(|device| Arc::new(device.snapshot())).collect(),
            superblocks: self.superblocks.clone(),
            system_chunk: self.system_chunk.clone(),
            data_chunk: self.data_chunk.clone(),
        }
    }

    fn write_chunk(&self, start: LogicalAddress, item: &ChunkItem, profile: RaidProfile) {
        let stripes = item.stripes.len();
        let row_bytes = profile.data_stripes(stripes) as u64 * STRIPE_LENGTH;
        for row in 0..item.length / row_bytes {
            let elements = row_of(profile, stripes, row, start.0 + row * row_bytes);
            for (stripe, bytes) in item.stripes.iter().zip(elements) {
                let place = PhysicalAddress(stripe.offset.0 + row * STRIPE_LENGTH);
                self.devices[stripe.devid.0 as usize - 1].write_at(&bytes, place).unwrap();
            }
        }
    }

    /// Returns the logical range that both chunks cover.
    pub(crate) fn range(&self) -> (LogicalAddress, usize) {
        (CHUNK_START, 2 * self.data_chunk.1.length as usize)
    }

    /// Opens the volume without the devices whose bit is set in `missing`, and installs the chunks
    /// and devices that its chunk tree would hold.
    pub(crate) fn open(&self, missing: u32, degraded: bool) -> Result<Volume> {
        self.open_on(self.all_devices().into_iter(), missing, degraded)
    }

    /// Returns all devices, as openers take them.
    pub(crate) fn all_devices(&self) -> Vec<Arc<dyn Device>> {
        self.devices.iter().map(|device| device.clone() as Arc<dyn Device>).collect()
    }

    /// Opens the volume on devices that can be made to fail, and returns these, too.
    pub(crate) fn open_with_faults(&self) -> (Vec<Arc<FaultDevice>>, Volume) {
        let faults: Vec<_> =
            self.devices.iter().map(|device| Arc::new(FaultDevice::new(device.clone()))).collect();
        let devices = faults.iter().map(|fault| fault.clone() as Arc<dyn Device>);
        let volume = self.open_on(devices, 0, false).unwrap();
        (faults, volume)
    }

    /// Gives all devices but the one at index `late` a superblock two commits later: a power cut
    /// explains one that is missed.
    pub(crate) fn miss_commits(&mut self, late: usize) {
        let others = self.devices.iter().zip(&mut self.superblocks).enumerate();
        for (_, (device, raw)) in others.filter(|(number, _)| *number != late) {
            raw.generation.0 += 2;
            write_superblock(&**device, raw);
        }
    }

    /// [`TestVolume::open`] on other devices, such as decorators of its own.
    pub(crate) fn open_on(
        &self,
        devices: impl Iterator<Item = Arc<dyn Device>>,
        missing: u32,
        degraded: bool,
    ) -> Result<Volume> {
        let present = devices.enumerate().filter(|(index, _)| missing & (1 << index) == 0);
        let devices = present.map(|(_, device)| device).collect();
        // For writing: a reader does not ask for missing devices until it reads.
        let volume = Volume::open(devices, &OpenOptions::new().degraded(degraded).write(true))?;
        volume.install_chunks([self.data_chunk.clone()])?;
        volume.install_devices(self.superblocks.iter().map(|raw| raw.dev_item))?;
        Ok(volume)
    }
}
