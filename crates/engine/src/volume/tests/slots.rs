//! The devices of a volume: which of them get superblocks, are refused, are read last, or fail.

use super::super::pieces::Pieces;
use super::super::testing::{CHUNK_START, TestVolume, content, write_superblock};
use super::super::volume::Volume;
use crate::errors::Error;
use crate::options::OpenOptions;
use papilio_device::{Device, Direction, MemoryDevice};
use papilio_format::checksum::ChecksumType;
use papilio_format::items::chunk::RaidProfile;
use papilio_format::superblock::{SUPERBLOCK_SIZE, superblock_offset};
use papilio_format::{DeviceId, Generation, PhysicalAddress, Superblock, Uuid};
use std::io;

/// Where the content of a device begins.
const CONTENT: PhysicalAddress = PhysicalAddress(1 << 20);

fn generation(device: &MemoryDevice, copy: usize) -> Option<Generation> {
    let (mut bytes, place) = ([0; SUPERBLOCK_SIZE], superblock_offset(copy));
    device.read_at(&mut bytes, place).unwrap();
    Superblock::parse(&bytes, place).ok().map(|superblock| superblock.raw.generation)
}

#[test]
fn a_copy_at_the_very_end_is_not_written() {
    let end = superblock_offset(1).0 + SUPERBLOCK_SIZE as u64;
    for (size, written) in [(end - 4096, None), (end, None), (end + 4096, Some(Generation(10)))] {
        let mut test = TestVolume::blank(RaidProfile::Single, 1);
        test.devices[0].resize(80 << 20);
        test.superblocks[0].dev_item.total_bytes = size;
        write_superblock(&*test.devices[0], &test.superblocks[0]);
        let volume = test.open(0, false).unwrap();
        let mut raw = test.superblocks[0];
        raw.generation = Generation(10);
        volume.write_superblocks(&raw).unwrap();
        assert_eq!(generation(&test.devices[0], 0), Some(Generation(10)));
        assert_eq!(generation(&test.devices[0], 1), written, "{size}");
    }
}

#[test]
fn devices_that_missed_writes_get_no_superblock() {
    let mut test = TestVolume::blank(RaidProfile::Raid1, 2);
    test.miss_commits(1);
    let volume = test.open(0, false).unwrap();
    let mut raw = test.superblocks[0];
    raw.generation = Generation(12);
    volume.write_superblocks(&raw).unwrap();
    assert_eq!(generation(&test.devices[0], 0), Some(Generation(12)));
    assert_eq!(generation(&test.devices[1], 0), Some(Generation(9)));
    volume.set_healed(1);
    volume.write_superblocks(&raw).unwrap();
    assert_eq!(generation(&test.devices[1], 0), Some(Generation(12)));
}

#[test]
fn a_device_that_shrank_gets_no_superblock() {
    let test = TestVolume::blank(RaidProfile::Single, 1);
    for degraded in [false, true] {
        let volume = test.open(0, degraded).unwrap();
        let full = test.devices[0].size();
        test.devices[0].resize(full - 4096);
        let written = volume.write_superblocks(&test.superblocks[0]);
        assert_eq!(written.is_ok(), degraded, "{written:?}");
        assert!(degraded || matches!(written, Err(Error::Truncated { need, .. }) if need == full));
        test.devices[0].resize(full);
    }
}

#[test]
fn items_of_the_chunk_tree_decide_on_devices() {
    let test = TestVolume::blank(RaidProfile::Raid1, 2);
    let open = |degraded| OpenOptions::new().degraded(degraded).write(true);
    let items: Vec<_> = test.superblocks.iter().map(|raw| raw.dev_item).collect();
    for degraded in [false, true] {
        let volume = Volume::open(test.all_devices(), &open(degraded)).unwrap();
        // One that is larger than its device.
        let mut large = items.clone();
        large[1].total_bytes += 4096;
        let result = volume.install_devices(large);
        assert!(degraded == result.is_ok(), "{result:?}");
        assert!(degraded || matches!(result, Err(Error::DeviceCut { .. })));
        // One that nothing uses, and that is not there.
        let mut more = items.clone();
        more.push(items[0]);
        more[2].uuid = Uuid::from_u128(3);
        more[2].devid = DeviceId(3);
        let result = volume.install_devices(more);
        assert!(degraded == result.is_ok(), "{result:?}");
        assert!(degraded || matches!(result, Err(Error::DeviceMissing { devid: DeviceId(3), .. })));
    }
    // A device without an item may be smaller than its superblock says.
    let volume = Volume::open(test.all_devices(), &open(false)).unwrap();
    test.devices[1].resize(4 << 20);
    volume.install_devices([items[0]]).unwrap();
    assert_eq!(volume.devices().iter().map(|slot| slot.in_chunk_tree).collect::<Vec<_>>(), [true, false]);
    // The devid alone does not make it the item's device.
    let volume = Volume::open(test.all_devices(), &open(true)).unwrap();
    let mut other = items.clone();
    other[1].uuid = Uuid::from_u128(5);
    volume.install_devices(other).unwrap();
    assert_eq!(volume.devices().iter().filter(|slot| slot.devid() == DeviceId(2)).count(), 2);
}

#[test]
fn a_removed_device_is_the_one_that_was_named() {
    let test = TestVolume::blank(RaidProfile::Raid1c3, 3);
    let volume = test.open(0, false).unwrap();
    assert!(volume.forget_device(DeviceId(4)).is_none());
    assert_eq!(volume.forget_device(DeviceId(2)).unwrap().devid, DeviceId(2));
    assert_eq!(volume.devices().iter().map(|slot| slot.devid().0).collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn blocks_of_other_file_systems_are_not_adopted() {
    let test = TestVolume::blank(RaidProfile::Single, 1);
    let volume = test.open(0, false).unwrap();
    let own = volume.superblock().metadata_uuid();
    for fsid in [own, Uuid::from_u128(0xabc)] {
        let mut block = content(CHUNK_START, 16384);
        block[32..48].copy_from_slice(fsid.as_bytes());
        let sum = ChecksumType::Crc32c.compute(&block[32..]);
        block[..32].copy_from_slice(sum.padded());
        let before = block.clone();
        volume.adopt_block(&mut block);
        assert!(block == before, "{fsid}");
    }
}

#[test]
fn a_failed_write_loses_a_device_and_a_failed_read_does_not() {
    let test = TestVolume::new(RaidProfile::Raid1, 2);
    let volume = test.open(0, false).unwrap();
    let mut pieces = Pieces::new();
    assert!(volume.write_pieces(CHUNK_START, 4096, 0, &mut pieces));
    assert_eq!(pieces.len(), 2);
    let failed = |direction| volume.piece_failed(&pieces[0], direction, io::Error::other("broken")).1;
    assert!(!failed(Direction::Read));
    assert!(!volume.needs_commit() && volume.devices().iter().all(|slot| !slot.stale));
    assert!(failed(Direction::Write));
    assert!(volume.needs_commit() && volume.devices().iter().any(|slot| slot.stale));
    // Nothing is left to go on with.
    let lost = volume.piece_failed(&pieces[1], Direction::Write, io::Error::other("broken"));
    assert!(!lost.1, "{}", lost.0);
}

#[test]
fn parity_of_a_device_that_missed_writes_is_the_last_resort() {
    for (profile, stripes) in [(RaidProfile::Raid5, 3), (RaidProfile::Raid6, 4)] {
        for late in 0..stripes {
            let mut test = TestVolume::new(profile, stripes);
            test.miss_commits(late);
            let (start, length) = test.range();
            if profile.parity() == 2 {
                // Its bytes are wrong, and the other parity tells the right ones.
                test.devices[late].write_at(&vec![0xe4; 7 << 20], CONTENT).unwrap();
            }
            let failing = (late + 1) % stripes;
            let (faults, volume) = test.open_with_faults();
            let all = CONTENT..PhysicalAddress(8 << 20);
            faults[failing].fail_reads(all);
            let mut read = vec![0; length];
            volume.read(start, &mut read).unwrap();
            assert!(read == content(start, length), "{profile}: {late} missed writes");
        }
    }
}
