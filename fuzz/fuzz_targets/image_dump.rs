//! Fuzzes restoring a metadata dump. Bytes of a good dump are overwritten, and the checksums of
//! the superblock and of all tree blocks repaired, so that every input reaches the code behind
//! them; or the input is the dump itself. A file system that can be restored must be opened or
//! refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use papilio::device::{Device, MemoryDevice};
use papilio::{FileSystem, ImageDump, ImageDumpOptions, MkfsOptions, OpenOptions, RaidProfile, RestoreMode};
use papilio_format::ChecksumType;
use papilio_fuzz::Patches;
use std::io::Cursor;
use std::sync::{Arc, OnceLock};

/// Sizes of a dump's header, of its superblock and of a tree block.
const HEADER: usize = 1024;
const SUPERBLOCK: usize = 4096;
const BLOCK: usize = 16 << 10;
/// The largest device that is made.
const LARGEST: u64 = 1 << 40;

/// Returns a dump of an empty file system on two devices.
fn good() -> &'static [u8] {
    static DUMP: OnceLock<Vec<u8>> = OnceLock::new();
    DUMP.get_or_init(|| {
        let device = || -> Arc<dyn Device> { Arc::new(MemoryDevice::new(256 << 20)) };
        let devices = vec![device(), device()];
        let options =
            MkfsOptions::new().data_profile(RaidProfile::Raid0).metadata_profile(RaidProfile::Raid1);
        papilio::mkfs_devices(&devices, &options).expect("empty devices");
        let fs = FileSystem::from_devices(devices, &OpenOptions::new()).expect("a new file system");
        let mut dump = Vec::new();
        fs.dump_image(&mut dump, &ImageDumpOptions::new(), |_, _| {}).expect("a good file system");
        dump
    })
}

fn repair(block: &mut [u8]) {
    let sum = ChecksumType::Crc32c.compute(&block[32..]);
    block[..32].copy_from_slice(sum.padded());
}

fuzz_target!(|input: (Vec<(u8, Patches)>, u8, Vec<u8>)| {
    let (patches, mode, raw) = input;
    let mode = match mode % 3 {
        0 => RestoreMode::OneDevice,
        1 => RestoreMode::AllDevices,
        _ => RestoreMode::Unmapped,
    };
    let dump = if patches.is_empty() {
        raw
    } else {
        let mut dump = good().to_vec();
        let (head, blocks) = dump.split_at_mut(HEADER + SUPERBLOCK);
        let count = blocks.len() / BLOCK;
        for (number, patches) in &patches {
            match usize::from(*number) % (count + 1) {
                0 => patches.apply(head),
                number => patches.apply(&mut blocks[(number - 1) * BLOCK..number * BLOCK]),
            }
        }
        repair(&mut head[HEADER..]);
        blocks.chunks_exact_mut(BLOCK).for_each(repair);
        dump
    };
    let Ok(mut dump) = ImageDump::open(Cursor::new(dump)) else { return };
    let Ok(sizes) = dump.sizes(mode) else { return };
    if sizes.len() > 8 || sizes.iter().any(|size| *size > LARGEST) {
        return;
    }
    let device = |size: &u64| -> Arc<dyn Device> { Arc::new(MemoryDevice::new(*size)) };
    let devices: Vec<_> = sizes.iter().map(device).collect();
    if dump.restore(mode, &devices, |_, _| {}).is_ok() {
        drop(FileSystem::from_devices(devices, &OpenOptions::new()).map(|fs| fs.usage()));
    }
});
