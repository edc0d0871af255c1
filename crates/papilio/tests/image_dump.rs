//! Dumps with bytes that were changed, whose checksums fit: restoring them ends, with an error or a
//! file system. `PAPILIO_IMAGE_DUMPS` sets the number of dumps.

use papilio::device::{Device, MemoryDevice};
use papilio::format::ChecksumType;
use papilio::{
    CheckOptions, FileSystem, ImageDump, ImageDumpOptions, MkfsOptions, OpenOptions, RaidProfile, RestoreMode,
};
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
