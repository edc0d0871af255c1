//! Opening volumes, good and bad.

use super::super::superblocks::read_superblock;
use super::super::testing::{CHUNK_START, TestVolume, content, device_uuid, write_superblock};
use super::super::volume::Volume;
use super::reading::{LAYOUTS, survives};
use crate::errors::{Error, ErrorKind};
use crate::options::OpenOptions;
use papilio_device::{Access, Device, MemoryDevice};
use papilio_format::features::{IncompatFeatures, SuperblockFlags};
use papilio_format::items::chunk::RaidProfile;
use papilio_format::superblock::superblock_offset;
use papilio_format::{DeviceId, Generation, PhysicalAddress, Superblock, Uuid};
use std::sync::Arc;

fn open(test: &TestVolume) -> crate::errors::Result<Volume> {
    Volume::open(test.all_devices(), &OpenOptions::new())
}

#[test]
fn opening_without_devices_or_without_btrfs_fails() {
    let error = Volume::open(Vec::new(), &OpenOptions::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    for size in [0, 4096, 1 << 20] {
        let device = Arc::new(MemoryDevice::new(size));
        let error = Volume::open(vec![device], &OpenOptions::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotBtrfs, "{error}");
    }
}

#[test]
fn a_cut_device_is_read_and_written_only_if_degraded() {
    let test = TestVolume::new(RaidProfile::Single, 1);
    let full = test.devices[0].size();
    test.devices[0].resize(full - 4096);
    // Which chunks are cut is known with the device items.
    let install = |options: &OpenOptions| {
        let volume = Volume::open(test.all_devices(), options).unwrap();
        volume.install_chunks([test.data_chunk.clone()]).unwrap();
        volume.install_devices([test.superblocks[0].dev_item]).map(|()| volume)
    };
    let error = install(&OpenOptions::new().write(true)).unwrap_err();
    assert!(
        matches!(error, Error::DeviceCut { need, have, .. } if need == full && have == full - 4096),
        "{error}"
    );
    // No chunk is behind the end, so a reader misses nothing.
    for options in [OpenOptions::new(), OpenOptions::new().degraded(true)] {
        let volume = install(&options).unwrap();
        let mut buffer = [0; 4096];
        volume.read(CHUNK_START, &mut buffer).unwrap();
        assert_eq!(buffer[..], content(CHUNK_START, 4096));
    }
}

#[test]
fn unknown_incompat_bits_are_rejected() {
    let mut test = TestVolume::new(RaidProfile::Single, 1);
    test.superblocks[0].incompat_flags |= IncompatFeatures::from_bits_retain(1 << 50);
    write_superblock(&*test.devices[0], &test.superblocks[0]);
    assert_eq!(open(&test).unwrap_err().kind(), ErrorKind::Incompatible);
}

#[test]
fn other_superblock_copies_are_read_only_when_selected() {
    let test = TestVolume::new(RaidProfile::Single, 1);
    let device = &test.devices[0];
    device.resize(65 << 20);
    let place = superblock_offset(1);
    let superblock = Superblock::parse_unverified(&test.superblocks[0].to_bytes()).unwrap();
    device.write_at(&superblock.to_bytes(place), place).unwrap();
    device.write_at(&[0; 4096], superblock_offset(0)).unwrap();

    let error = open(&test).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotBtrfs);
    assert!(error.to_string().ends_with("(copy 1 is good: --superblock 1 reads by it)"), "{error}");
    let chosen = OpenOptions::new().superblock_mirror(1);
    assert_eq!(Volume::open(test.all_devices(), &chosen).unwrap().superblock().raw.bytenr, place);
    assert!(read_superblock(&**device, 2).is_err(), "beyond the device");
    assert_eq!(read_superblock(&**device, 3).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn unrelated_devices_are_rejected() {
    let mut test = TestVolume::new(RaidProfile::Raid1, 2);
    let good = test.superblocks[1];

    test.superblocks[1].fsid = Uuid::from_u128(1);
    test.superblocks[1].dev_item.fsid = Uuid::from_u128(1);
    write_superblock(&*test.devices[1], &test.superblocks[1]);
    let error = open(&test).unwrap_err();
    assert!(matches!(&error, Error::DeviceMismatch { device, .. } if device == "device-2"), "{error}");

    test.superblocks[1] = good;
    test.superblocks[1].dev_item.devid = DeviceId(1);
    write_superblock(&*test.devices[1], &test.superblocks[1]);
    let error = open(&test).unwrap_err();
    assert!(error.to_string().contains("device-1 has the same devid 1"), "{error}");

    // The right devid with another UUID is another device.
    test.superblocks[1] = good;
    test.superblocks[1].dev_item.uuid = Uuid::from_u128(2);
    write_superblock(&*test.devices[1], &test.superblocks[1]);
    let error = open(&test).unwrap_err();
    assert!(
        matches!(error, Error::DeviceMissing { devid: DeviceId(2), uuid, .. } if uuid == device_uuid(2)),
        "{error}"
    );
}

#[test]
fn newest_superblock_wins_and_stale_device_is_read_last() {
    let mut test = TestVolume::new(RaidProfile::Raid1, 2);
    test.superblocks[1].generation = Generation(12);
    write_superblock(&*test.devices[1], &test.superblocks[1]);
    // A write that the stale device missed.
    test.devices[0].write_at(&[0xee; 4096], PhysicalAddress(1 << 20)).unwrap();
    let volume = test.open(0, false).unwrap();
    assert_eq!(volume.superblock().raw.generation, Generation(12));
    assert_eq!(volume.geometry().generation, Generation(12));
    let stale: Vec<_> = volume.devices().iter().map(|slot| slot.stale).collect();
    assert_eq!(stale, [true, false]);
    let mut buffer = [0; 4096];
    volume.read(CHUNK_START, &mut buffer).unwrap();
    assert_eq!(buffer[..], content(CHUNK_START, 4096));
    volume.read_copy(CHUNK_START, &mut buffer, 0).unwrap();
    assert_eq!(buffer, [0xee; 4096]);
    // Alone it is usable; the other device is missing then.
    assert!(test.open(0b10, true).is_ok());
}

/// A fuzz target found that the next generation overflowed.
#[test]
fn the_greatest_generation_is_read() {
    let mut test = TestVolume::new(RaidProfile::Raid1, 2);
    for (behind, stale) in [(0, false), (1, false), (2, true)] {
        for (number, behind) in [(0, 0), (1, behind)] {
            test.superblocks[number].generation = Generation(u64::MAX - behind);
            write_superblock(&*test.devices[number], &test.superblocks[number]);
        }
        let volume = test.open(0, false).unwrap();
        let found: Vec<_> = volume.devices().iter().map(|slot| slot.stale).collect();
        assert_eq!(found, [false, stale]);
    }
}

#[test]
fn of_two_devices_with_one_devid_the_newer_counts() {
    let test = TestVolume::new(RaidProfile::Single, 1);
    // The source of a replacement, from before the power cut, and without what was written since.
    let mut old = test.superblocks[0];
    (old.generation, old.chunk_root_generation) = (Generation(7), Generation(7));
    let source = test.devices[0].snapshot();
    write_superblock(&source, &old);
    source.write_at(&[0xee; 4096], PhysicalAddress(1 << 20)).unwrap();
    let (source, target): (Arc<dyn Device>, Arc<dyn Device>) = (Arc::new(source), test.devices[0].clone());
    for devices in [[&source, &target], [&target, &source]] {
        let volume = test.open_on(devices.into_iter().cloned(), 0, false).unwrap();
        let slots: Vec<_> = volume.devices().iter().map(|slot| (slot.devid(), slot.stale)).collect();
        assert_eq!(slots, [(DeviceId(1), false)]);
        assert_eq!(volume.superblock().raw.generation, Generation(9));
        let mut buffer = [0; 4096];
        volume.read(CHUNK_START, &mut buffer).unwrap();
        assert_eq!(buffer[..], content(CHUNK_START, 4096));
    }
}

#[test]
fn seed_with_a_device_added_to_it() {
    let mut test = TestVolume::new(RaidProfile::Raid1, 2);
    let seed_fsid = Uuid::from_u128(0x5eed);
    test.superblocks[0].flags |= SuperblockFlags::SEEDING;
    test.superblocks[0].fsid = seed_fsid;
    test.superblocks[0].dev_item.fsid = seed_fsid;
    // A seed's generation may be anything.
    test.superblocks[0].generation = Generation(90);
    write_superblock(&*test.devices[0], &test.superblocks[0]);
    let volume = test.open(0, false).unwrap();
    assert_eq!(volume.superblock().raw.fsid, test.superblocks[1].fsid);
    assert_eq!(volume.superblock().raw.generation, Generation(9));
    assert!(volume.is_seed(DeviceId(1)) && !volume.is_seed(DeviceId(2)));
    let access =
        volume.devices().iter().map(|slot| slot.device.as_ref().unwrap().access()).collect::<Vec<_>>();
    assert_eq!(access.iter().filter(|access| **access == Access::ReadOnly).count(), 1, "the seed");
    let mut buffer = [0; 4096];
    for copy in 0..2 {
        volume.read_copy(CHUNK_START, &mut buffer, copy).unwrap();
        assert_eq!(buffer[..], content(CHUNK_START, 4096));
    }
}

#[test]
fn chunks_that_contradict_the_system_array_are_rejected() {
    let test = TestVolume::new(RaidProfile::Raid1, 2);
    let volume = open(&test).unwrap();
    let mut chunk = test.data_chunk.clone();
    chunk.0 = CHUNK_START;
    assert!(volume.install_chunks([chunk]).is_err());
    assert_eq!(volume.chunk_map().iter().len(), 1, "all or nothing");
    volume.install_chunks([test.data_chunk.clone()]).unwrap();
    assert_eq!(volume.chunk_map().iter().len(), 2);
}

/// Without some devices a volume opens if `degraded` allows it, and each chunk has one copy left.
#[test]
fn each_chunk_needs_one_copy_of_everything() {
    for (profile, stripes) in LAYOUTS {
        let test = TestVolume::blank(profile, stripes);
        for missing in 1..1u32 << test.devices.len() {
            // A volume needs a device to read the superblock from.
            if missing.count_ones() as usize == test.devices.len() {
                continue;
            }
            let error = test.open(missing, false).unwrap_err();
            assert!(matches!(error, Error::DeviceMissing { .. }), "{profile}: {error}");
            match test.open(missing, true) {
                Ok(volume) => {
                    assert!(survives(profile, stripes, missing), "{profile} {stripes} {missing:b}");
                    assert!(volume.is_degraded());
                }
                Err(error) => {
                    assert!(!survives(profile, stripes, missing), "{profile} {stripes} {missing:b}: {error}");
                    assert!(matches!(error, Error::TooManyMissing { .. }), "{error}");
                }
            }
        }
        assert!(!test.open(0, false).unwrap().is_degraded());
    }
}
