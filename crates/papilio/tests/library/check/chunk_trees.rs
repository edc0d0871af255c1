//! Chunk trees that a scan makes anew, for all profiles: the kernel mounts the result with all
//! data, and the undo file restores every byte.

use crate::in_memory::writable;
use papilio::format::superblock::{SUPERBLOCK_SIZE, Superblock, superblock_offset};
use papilio::format::{TreeId, objectid};
use papilio::{
    CheckOptions, FileSystem, MkfsOptions, OpenOptions, RaidProfile, RepairOptions, RescueChange, ScanOptions,
};
use papilio_device::{Device, MemoryDevice};
use papilio_oracle::{ImageSet, Need, Scratch, require};
use std::sync::Arc;

const SIZE: u64 = 320 << 20;
const FILES: usize = 40;

fn shared(devices: &[Arc<MemoryDevice>]) -> Vec<Arc<dyn Device>> {
    devices.iter().map(|device| device.clone() as Arc<dyn Device>).collect()
}

fn content(number: usize) -> Vec<u8> {
    (0..100_000 + number * 5000).map(|byte| (byte * (number + 3) / 7) as u8).collect()
}

fn filled(devices: usize, data: RaidProfile, metadata: RaidProfile) -> Vec<Arc<MemoryDevice>> {
    let memory: Vec<_> = (0..devices).map(|_| Arc::new(MemoryDevice::new(SIZE))).collect();
    let options = MkfsOptions::new().data_profile(data).metadata_profile(metadata);
    papilio::mkfs_devices(&shared(&memory), &options).unwrap();
    let fs = FileSystem::from_devices(shared(&memory), &writable()).unwrap();
    for number in 0..FILES {
        fs.write(format!("/{number}"), content(number)).unwrap();
    }
    fs.close().unwrap();
    memory
}

/// Overwrites all blocks of a tree, old ones too.
fn zero(devices: &[Arc<MemoryDevice>], tree: TreeId) -> usize {
    let scan = papilio::scan_devices(&shared(devices), &ScanOptions::new()).unwrap();
    let blocks = scan.blocks.iter().filter(|block| block.owner == tree);
    let zeros = vec![0; scan.node_size as usize];
    blocks.map(|block| devices[block.device].write_at(&zeros, block.offset).unwrap()).count()
}

fn bytes(device: &MemoryDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.size() as usize];
    device.read_at(&mut bytes, papilio_device::PhysicalAddress(0)).unwrap();
    bytes
}

fn kernel_reads(devices: &[Arc<MemoryDevice>], what: &str) {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(SIZE * devices.len() as u64).unwrap();
    let paths: Vec<_> = (0..devices.len()).map(|_| scratch.unique("member")).collect();
    for (device, path) in devices.iter().zip(&paths) {
        device.write_image(path).unwrap();
    }
    let set = ImageSet::open(&scratch, paths);
    set.btrfs_check().unwrap_or_else(|error| panic!("{what}: {error}"));
    let mounted = set.mount().unwrap_or_else(|error| panic!("{what}: {error}"));
    for number in 0..FILES {
        let read = std::fs::read(mounted.path().join(number.to_string())).unwrap();
        assert!(read == content(number), "{what}: file {number}");
    }
    mounted.unmount().unwrap();
}

#[test]
fn a_chunk_tree_is_written_anew() {
    use RaidProfile::{Dup, Raid0, Raid1, Raid5, Raid6, Raid10, Single};
    for (count, data, metadata) in [
        (1, Single, Dup),
        (2, Raid0, Raid1),
        (3, Raid0, Raid0),
        (4, Raid10, Raid10),
        (3, Raid5, Raid5),
        (4, Raid6, Raid6),
    ] {
        let what = format!("{data:?}, {metadata:?} on {count} devices");
        let devices = filled(count, data, metadata);
        assert!(zero(&devices, objectid::CHUNK_TREE) > 0);
        let before: Vec<_> = devices.iter().map(|device| device.snapshot()).collect();
        let open = OpenOptions::new();
        let read = FileSystem::from_devices(shared(&devices), &open);
        assert!(read.is_err(), "{what}: the chunk tree is lost");
        for options in [RepairOptions::new().only(RescueChange::WriteChunkTree), RepairOptions::new()] {
            let folder = tempfile::tempdir().unwrap();
            let undo = folder.path().join("undo");
            let plan = papilio::plan_repair_with(&shared(&devices), &open, &options)
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(plan.better && plan.after.counts.is_empty(), "{what}: {plan:#?}");
            papilio::repair(&shared(&devices), &open, &plan, &undo)
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            let mended: Vec<_> = devices.iter().map(|device| Arc::new(device.snapshot())).collect();
            papilio::undo_repair(&shared(&devices), &undo).unwrap();
            for (device, before) in devices.iter().zip(&before) {
                assert!(bytes(device) == bytes(before), "{what}: the undo file");
            }
            kernel_reads(&mended, &what);
            let fs = FileSystem::from_devices(shared(&mended), &writable()).unwrap();
            let report = fs.check(&CheckOptions::new().data_csum(true)).unwrap();
            assert!(report.counts.is_empty(), "{what}: {:#?}", report.findings);
            fs.write("/new", b"new").unwrap();
            fs.close().unwrap();
        }
    }
}

#[test]
fn a_map_with_a_gap_is_not_written() {
    let devices = filled(1, RaidProfile::Single, RaidProfile::Dup);
    zero(&devices, objectid::CHUNK_TREE);
    zero(&devices, objectid::DEV_TREE);
    let before = devices[0].snapshot();
    let options = RepairOptions::new().only(RescueChange::WriteChunkTree);
    let error = papilio::plan_repair_with(&shared(&devices), &OpenOptions::new(), &options).unwrap_err();
    assert!(error.to_string().contains("the map is not complete"), "{error}");
    assert!(bytes(&devices[0]) == bytes(&before));
    let mut superblock = [0; SUPERBLOCK_SIZE];
    devices[0].read_at(&mut superblock, superblock_offset(0)).unwrap();
    assert!(Superblock::parse(&superblock, superblock_offset(0)).is_ok());
}
