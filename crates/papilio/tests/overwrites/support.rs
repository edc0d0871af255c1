//! File systems in memory, and files that are written all over.

use papilio::{CheckOptions, FiemapExtent, File, FileSystem, MkfsOptions, OpenOptions};
use papilio_device::{Device, MemoryDevice};
use std::sync::Arc;

pub const SECTOR: u64 = 4096;

pub fn made(size: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(size));
    papilio::mkfs_device(&(device.clone() as Arc<dyn Device>), &MkfsOptions::new()).expect("mkfs");
    device
}

pub fn open_with(device: &Arc<MemoryDevice>, options: OpenOptions) -> FileSystem {
    let options = options.write(true).commit_interval(None);
    FileSystem::from_devices(vec![device.clone() as Arc<dyn Device>], &options).expect("open")
}

pub fn open(device: &Arc<MemoryDevice>) -> FileSystem {
    open_with(device, OpenOptions::new())
}

pub fn assert_clean(device: &Arc<MemoryDevice>) {
    let devices = vec![device.clone() as Arc<dyn Device>];
    let check = CheckOptions::new().data_csum(true);
    let report = papilio::check_devices(devices, &OpenOptions::new(), &check).expect("check");
    assert!(report.is_clean(), "{:#?}", report.findings);
}

/// Where the bytes of a file lie, and whether as preallocated.
pub fn places(file: &File) -> Vec<(u64, u64, u64, bool)> {
    let unwritten = |extent: &FiemapExtent| extent.flags & FiemapExtent::UNWRITTEN != 0;
    let extents = file.fiemap(0).unwrap();
    extents.iter().map(|e| (e.start.0, e.length, e.address.0, unwritten(e))).collect()
}

/// Writes up to 16 sectors at a time all over the file in a seeded order, here and in the model.
pub fn scatter(file: &File, model: &mut [u8], random: &mut fastrand::Rng, writes: usize) {
    let sectors = model.len() as u64 / SECTOR;
    for _ in 0..writes {
        let count = random.u64(1..=16).min(sectors);
        let at = random.u64(0..=sectors - count) * SECTOR;
        let bytes = vec![random.u8(1..); (count * SECTOR) as usize];
        file.write_at(&bytes, at).unwrap();
        model[at as usize..][..bytes.len()].copy_from_slice(&bytes);
    }
}

/// Sectors, all of whose words say who wrote it, when, and where.
pub fn stamp(buffer: &mut [u8], at: u64, who: u64, sequence: u64) {
    for (number, sector) in buffer.chunks_exact_mut(SECTOR as usize).enumerate() {
        let place = at / SECTOR + number as u64;
        let word = ((who << 56) | (sequence << 24) | place).to_le_bytes();
        sector.chunks_exact_mut(8).for_each(|bytes| bytes.copy_from_slice(&word));
    }
}

/// The word of a sector, which was written whole and belongs here.
pub fn stamped(sector: &[u8], place: u64) -> u64 {
    let word = u64::from_le_bytes(sector[..8].try_into().unwrap());
    assert!(sector.chunks_exact(8).all(|bytes| bytes == &sector[..8]), "sector {place} is torn");
    assert!(word == 0 || word & 0xff_ffff == place, "sector {place} has {word:x}");
    word
}
