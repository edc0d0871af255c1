//! Volumes made by `mkfs.btrfs` and filled by the kernel: every profile, every copy, and every
//! survivable combination of missing devices.

use super::super::chunk_map::Chunk;
use super::super::volume::Volume;
use super::super::write::LogicalWrite;
use crate::options::OpenOptions;
use papilio_device::{Access, Device, FileDevice};
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::items::chunk::{ChunkItem, RaidProfile};
use papilio_format::items::device::DeviceItem;
use papilio_format::{ItemType, LogicalAddress, Node, NodeExpectation, objectid};
use papilio_oracle::loop_device::LoopDevice;
use papilio_oracle::mount::Mount;
use papilio_oracle::{FileSystemSpec, ImageSet, Need, Scratch, require};
use std::io::Write;
use std::sync::Arc;

const BLOCK: usize = 4096;
/// Several rotations of the parity on four devices.
const BLOCKS: u64 = (6 << 20) / BLOCK as u64;
const MARK: &[u8; 16] = b"papilio volume\0\0";

/// Returns block `number` of the test file: a mark, the number, and bytes that depend on it.
fn file_block(number: u64) -> Vec<u8> {
    let mut block = Vec::with_capacity(BLOCK);
    block.extend_from_slice(MARK);
    block.extend_from_slice(&number.to_le_bytes());
    let mut state = number.wrapping_mul(2).wrapping_add(1);
    while block.len() < BLOCK {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        block.extend_from_slice(&state.to_le_bytes());
    }
    block
}

fn make(scratch: &Scratch, profile: RaidProfile, devices: usize, mount_options: &[&str]) -> ImageSet {
    let name = Some(profile.name().to_lowercase());
    let spec = FileSystemSpec {
        devices,
        data_profile: name.clone(),
        metadata_profile: name,
        mount_options: mount_options.iter().map(ToString::to_string).collect(),
        ..FileSystemSpec::default()
    };
    let images = spec.make(scratch).unwrap();
    let mounted = images.mount().unwrap();
    let mut file = std::fs::File::create(mounted.path().join("file")).unwrap();
    for number in 0..BLOCKS {
        file.write_all(&file_block(number)).unwrap();
    }
    drop(file);
    mounted.unmount().unwrap();
    images
}

/// Opens the volume without the devices whose bit is set in `missing`, and installs the chunk tree.
/// Checks every block of that tree in every way to read it.
fn open(images: &ImageSet, missing: u32, access: Access) -> Volume {
    let present = images.paths().iter().enumerate().filter(|(index, _)| missing & (1 << index) == 0);
    let devices = present
        .map(|(_, path)| Arc::new(FileDevice::open(path, access).unwrap()) as Arc<dyn Device>)
        .collect();
    let volume = Volume::open(devices, &OpenOptions::new().degraded(missing != 0)).unwrap();
    let raw = &volume.superblock().raw;
    let root = NodeExpectation {
        level: Some(raw.chunk_root_level),
        generation: Some(raw.chunk_root_generation),
        owner: Some(objectid::CHUNK_TREE),
        ..NodeExpectation::at(raw.chunk_root)
    };
    let (mut chunks, mut devices) = (Vec::new(), Vec::new());
    walk(&volume, &root, missing != 0, &mut chunks, &mut devices);
    volume.install_chunks(chunks).unwrap();
    volume.install_devices(devices).unwrap();
    volume
}

fn walk(
    volume: &Volume,
    expected: &NodeExpectation,
    degraded: bool,
    chunks: &mut Vec<(LogicalAddress, ChunkItem)>,
    devices: &mut Vec<DeviceItem>,
) {
    let address = expected.address;
    let mut bytes = vec![0; volume.geometry().node_size as usize];
    for copy in 0..volume.copies(address).unwrap() {
        match volume.read_copy(address, &mut bytes, copy) {
            Ok(()) => drop(Node::check(&bytes, expected, &volume.geometry()).unwrap()),
            Err(error) => assert!(degraded, "copy {copy}: {error}"),
        }
    }
    volume.read(address, &mut bytes).unwrap();
    let node = Node::check(&bytes, expected, &volume.geometry()).unwrap();
    for slot in 0..node.len() {
        if !node.is_leaf() {
            let child = node.child(slot);
            let expected = NodeExpectation {
                level: Some(node.level() - 1),
                generation: Some(child.generation),
                first_key: Some(child.key),
                ..NodeExpectation { address: child.address, ..*expected }
            };
            walk(volume, &expected, degraded, chunks, devices);
            continue;
        }
        let key = node.key(slot);
        match key.item_type {
            ItemType::CHUNK_ITEM => {
                chunks.push((LogicalAddress(key.offset), ChunkItem::parse(node.item(slot)).unwrap()));
            }
            ItemType::DEV_ITEM => devices.push(DeviceItem::parse(node.item(slot)).unwrap()),
            _ => {}
        }
    }
}

fn data_chunks(volume: &Volume) -> Vec<Arc<Chunk>> {
    let is_data = |chunk: &&Arc<Chunk>| chunk.flags().contains(BlockGroupFlags::DATA);
    volume.chunk_map().iter().filter(is_data).cloned().collect()
}

/// Returns the locations of the test file's blocks, each with its number.
fn find_blocks(volume: &Volume) -> Vec<(LogicalAddress, u64)> {
    let mut found = Vec::new();
    let mut buffer = vec![0; 1 << 20];
    for chunk in data_chunks(volume) {
        let mut start = chunk.start();
        while start < chunk.end() {
            let length = (chunk.end().0 - start.0).min(buffer.len() as u64) as usize;
            volume.read(start, &mut buffer[..length]).unwrap();
            for (index, block) in buffer[..length].chunks_exact(BLOCK).enumerate() {
                if block.starts_with(MARK) {
                    let number = u64::from_le_bytes(block[16..24].try_into().unwrap());
                    found.push((LogicalAddress(start.0 + (index * BLOCK) as u64), number));
                }
            }
            start = LogicalAddress(start.0 + length as u64);
        }
    }
    found
}

fn check_profile(profile: RaidProfile, devices: usize) {
    let scratch = Scratch::new(256 << 20).unwrap();
    let images = make(&scratch, profile, devices, &[]);
    let whole = open(&images, 0, Access::ReadOnly);
    assert!(data_chunks(&whole).iter().any(|chunk| chunk.profile() == profile), "{profile} is used");
    let blocks = find_blocks(&whole);
    let mut numbers: Vec<_> = blocks.iter().map(|&(_, number)| number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..BLOCKS).collect::<Vec<_>>(), "{profile}: every block exists exactly once");

    let mut buffer = [0; BLOCK];
    for &(logical, number) in &blocks {
        for copy in 0..whole.copies(logical).unwrap() {
            whole.read_copy(logical, &mut buffer, copy).unwrap();
            assert!(buffer[..] == file_block(number), "{profile}, block {number}, copy {copy}");
        }
    }
    drop(whole);
    for missing in 1u32..1 << devices {
        if missing.count_ones() as usize > profile.tolerated_failures() {
            continue;
        }
        let volume = open(&images, missing, Access::ReadOnly);
        for &(logical, number) in &blocks {
            volume.read(logical, &mut buffer).unwrap();
            assert!(buffer[..] == file_block(number), "{profile} without {missing:#b}, block {number}");
        }
    }
}

const LAYOUTS: [(RaidProfile, usize); 9] = [
    (RaidProfile::Single, 1),
    (RaidProfile::Dup, 1),
    (RaidProfile::Raid0, 3),
    (RaidProfile::Raid1, 3),
    (RaidProfile::Raid1c3, 4),
    (RaidProfile::Raid1c4, 4),
    (RaidProfile::Raid10, 4),
    (RaidProfile::Raid5, 4),
    (RaidProfile::Raid6, 5),
];

#[test]
fn reads_volumes_written_by_the_kernel() {
    let Some(_met) = require(Need::KERNEL_MOUNT) else { return };
    for (profile, devices) in LAYOUTS {
        check_profile(profile, devices);
    }
}

/// Returns the new contents of block `number`.
fn new_block(number: u64) -> Vec<u8> {
    file_block(number + (1 << 32))
}

/// Overwrites two in three blocks of the test file in place, so that rows are written partially:
/// batches of adjacent blocks, and single ones.
fn overwrite(volume: &Volume) {
    let blocks: Vec<_> = find_blocks(volume).into_iter().filter(|&(_, number)| number % 3 != 0).collect();
    let contents: Vec<_> = blocks.iter().map(|&(_, number)| new_block(number)).collect();
    let mut requests: Vec<_> = blocks
        .iter()
        .zip(&contents)
        .map(|(&(logical, _), bytes)| LogicalWrite::new(logical, bytes))
        .collect();
    let (batched, single) = requests.split_at_mut(blocks.len() * 2 / 3);
    for batch in batched.chunks_mut(37) {
        volume.write_many(batch);
        assert!(batch.iter().all(|request| request.result.is_ok()));
    }
    for request in single {
        volume.write(request.logical, request.buffer).unwrap();
    }
    volume.flush().unwrap();
}

/// Mounts the images except those of `missing` read-only, and compares the test file.
fn check_mounted(scratch: &Scratch, images: &ImageSet, missing: u32, what: &str) {
    let present = images.paths().iter().enumerate().filter(|(index, _)| missing & (1 << index) == 0);
    let loops: Vec<_> = present.map(|(_, path)| LoopDevice::attach(path, true).unwrap()).collect();
    let named = loops.iter().skip(1).map(|device| format!(",device={}", device.path().display()));
    let options = format!("degraded{}", named.collect::<String>());
    let mounted = Mount::btrfs(scratch, loops[0].path(), &options, true).unwrap();
    let read = std::fs::read(mounted.path().join("file")).unwrap();
    assert_eq!(read.len() as u64, BLOCKS * BLOCK as u64);
    for (number, block) in (0..).zip(read.chunks(BLOCK)) {
        let expected = if number % 3 == 0 { file_block(number) } else { new_block(number) };
        assert!(block == expected, "{what} without {missing:#b}: block {number}");
    }
}

#[test]
fn the_kernel_reads_written_volumes() {
    let Some(_met) = require(Need::KERNEL_MOUNT) else { return };
    for (profile, devices) in LAYOUTS {
        let scratch = Scratch::new(256 << 20).unwrap();
        // Without checksums, which would be those of the old contents.
        let images = make(&scratch, profile, devices, &["nodatasum"]);
        overwrite(&open(&images, 0, Access::ReadWrite));
        check_mounted(&scratch, &images, 0, profile.name());
        // Now from the other copies, and rebuilt from the parity.
        let tolerated = profile.tolerated_failures();
        let most = (0..devices as u32)
            .map(|first| (0..tolerated as u32).map(|n| 1 << ((first + n) % devices as u32)).sum());
        for missing in most.filter(|_| tolerated > 0) {
            check_mounted(&scratch, &images, missing, profile.name());
        }
    }
}
