//! Dumps with bytes that were changed, whose checksums fit: restoring them ends, with an error or a
//! file system. `PAPILIO_IMAGE_DUMPS` sets the number of dumps.

use papilio::device::{Device, MemoryDevice};
use papilio::format::ChecksumType;
use papilio::{
    CheckOptions, FileSystem, ImageDump, ImageDumpOptions, MkfsOptions, OpenOptions, RaidProfile, RestoreMode,
};
use papilio_device::{FaultDevice, PhysicalAddress};
use std::io::Cursor;
use std::sync::Arc;

const HEADER: usize = 1024;
const SUPERBLOCK: usize = 4096;
const BLOCK: usize = 16 << 10;
const LARGEST: u64 = 1 << 40;

fn device(size: u64) -> Arc<dyn Device> {
    Arc::new(MemoryDevice::new(size))
}

fn good() -> Vec<u8> {
    let devices = vec![device(256 << 20), device(256 << 20)];
    let options = MkfsOptions::new().data_profile(RaidProfile::Raid0).metadata_profile(RaidProfile::Raid1);
    papilio::mkfs_devices(&devices, &options).unwrap();
    let fs = FileSystem::from_devices(devices, &OpenOptions::new()).unwrap();
    let mut dump = Vec::new();
    let dumped = fs.dump_image(&mut dump, &ImageDumpOptions::new(), |_, _| {}).unwrap();
    assert_eq!(dumped.bytes, dump.len() as u64);
    assert_eq!(dumped.damaged, 0);
    dump
}

fn restore(dump: Vec<u8>, mode: RestoreMode) -> papilio::Result<Vec<Arc<dyn Device>>> {
    let mut dump = ImageDump::open(Cursor::new(dump))?;
    let sizes = dump.sizes(mode)?;
    let devices: Vec<_> = sizes.iter().map(|size| device((*size).min(LARGEST))).collect();
    dump.restore(mode, &devices, |_, _| {})?;
    Ok(devices)
}

fn repair(block: &mut [u8]) {
    let sum = ChecksumType::Crc32c.compute(&block[32..]);
    block[..32].copy_from_slice(sum.padded());
}

#[test]
fn both_ways_of_restoring_pass_the_check() {
    let dump = good();
    for (mode, count) in [(RestoreMode::OneDevice, 1), (RestoreMode::AllDevices, 2)] {
        let devices = restore(dump.clone(), mode).unwrap();
        assert_eq!(devices.len(), count);
        let checked = papilio::check_devices(devices, &OpenOptions::new(), &CheckOptions::new()).unwrap();
        assert!(checked.is_clean(), "{mode:?}: {:?}", checked.findings);
    }
}

#[test]
fn changed_dumps_end_with_an_error_or_a_file_system() {
    let good = good();
    let count = std::env::var("PAPILIO_IMAGE_DUMPS").map_or(400, |count| count.parse().unwrap());
    let mut random = fastrand::Rng::with_seed(3);
    let (mut refused, mut restored) = (0, 0);
    for number in 0..count {
        let mut dump = good.clone();
        let blocks = (dump.len() - HEADER - SUPERBLOCK) / BLOCK;
        for _ in 0..random.usize(1..6) {
            let (start, length) = match random.usize(..blocks + 2) {
                0 => (0, HEADER),
                1 => (HEADER, 1024),
                block => (HEADER + SUPERBLOCK + (block - 2) * BLOCK, 1024),
            };
            let at = start + random.usize(..length);
            let any = random.u8(..);
            dump[at] = *random.choice(&[0, 1, 0x7f, 0x80, 0xff, any]).unwrap();
        }
        repair(&mut dump[HEADER..HEADER + SUPERBLOCK]);
        for block in dump[HEADER + SUPERBLOCK..].chunks_exact_mut(BLOCK) {
            repair(block);
        }
        let mode = [RestoreMode::OneDevice, RestoreMode::AllDevices, RestoreMode::Unmapped][number % 3];
        match restore(dump, mode) {
            Ok(devices) => {
                restored += 1;
                // The file system may have any fault, which is an error.
                drop(FileSystem::from_devices(devices, &OpenOptions::new()).map(|fs| fs.usage()));
            }
            Err(error) => {
                refused += 1;
                assert!(!error.to_string().contains('\n'), "{error}");
            }
        }
    }
    assert!(refused > count / 20 && restored > count / 10, "{refused} refused, {restored} restored");
}

/// Returns the offset on the device of the sector that holds these bytes.
fn find(device: &MemoryDevice, sector: &[u8]) -> PhysicalAddress {
    let mut bytes = vec![0; device.size() as usize];
    device.read_at(&mut bytes, PhysicalAddress(0)).unwrap();
    let number = bytes.chunks(sector.len()).position(|other| other == sector).unwrap();
    PhysicalAddress((number * sector.len()) as u64)
}

#[test]
fn a_dump_has_zeros_for_what_cannot_be_read_and_counts_it() {
    const SECTOR: usize = 4096;
    let memory = Arc::new(MemoryDevice::new(256 << 20));
    let dup = MkfsOptions::new().metadata_profile(RaidProfile::Dup);
    papilio::mkfs_device(&(memory.clone() as Arc<dyn Device>), &dup).unwrap();
    let open = |device: Arc<dyn Device>, write| {
        FileSystem::from_devices(vec![device], &OpenOptions::new().write(write)).unwrap()
    };
    let mut content: Vec<u8> = (0..100 * SECTOR).map(|at| (at / SECTOR) as u8 + 1).collect();
    let fs = open(memory.clone(), true);
    fs.write("/file", &content).unwrap();
    fs.close().unwrap();
    let faulty = Arc::new(FaultDevice::new(memory.clone()));
    let place = find(&memory, &content[7 * SECTOR..8 * SECTOR]);
    faulty.fail_reads(place..PhysicalAddress(place.0 + SECTOR as u64));
    let dump = |options: &ImageDumpOptions| {
        let (mut dump, fs) = (Vec::new(), open(faulty.clone(), false));
        let dumped = fs.dump_image(&mut dump, options, |_, _| {}).unwrap();
        (dump, dumped)
    };
    let (with_data, dumped) = dump(&ImageDumpOptions::new().data(true));
    assert_eq!((dumped.unread_bytes, dumped.damaged), (SECTOR as u64, 0));
    assert_eq!(dump(&ImageDumpOptions::new()).1.unread_bytes, 0);
    let restored = restore(with_data, RestoreMode::OneDevice).unwrap();
    let without_checks = OpenOptions::new().verify_data(false);
    let fs = FileSystem::from_devices(restored, &without_checks).unwrap();
    content[7 * SECTOR..8 * SECTOR].fill(0);
    assert!(fs.read("/file").unwrap() == content);
}
