//! Reading memory volumes of every profile: whole, degraded, failing and corrupt.

use super::super::read::LogicalRead;
use super::super::testing::{CHUNK_START, TestVolume, byte_at, content};
use super::super::volume::Volume;
use super::watched_reads::WatchedReads;
use crate::errors::Error;
use crate::options::OpenOptions;
use papilio_device::{Device, FaultDevice, MemoryDevice};
use papilio_format::items::chunk::{RaidProfile, STRIPE_LENGTH};
use papilio_format::{LogicalAddress, PhysicalAddress};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Every profile with the numbers of stripes that make a difference.
pub(super) const LAYOUTS: [(RaidProfile, usize); 19] = [
    (RaidProfile::Single, 1),
    (RaidProfile::Dup, 2),
    (RaidProfile::Raid0, 1),
    (RaidProfile::Raid0, 2),
    (RaidProfile::Raid0, 3),
    (RaidProfile::Raid1, 2),
    (RaidProfile::Raid1c3, 3),
    (RaidProfile::Raid1c4, 4),
    (RaidProfile::Raid10, 2),
    (RaidProfile::Raid10, 4),
    (RaidProfile::Raid10, 6),
    (RaidProfile::Raid5, 2),
    (RaidProfile::Raid5, 3),
    (RaidProfile::Raid5, 4),
    (RaidProfile::Raid5, 5),
    (RaidProfile::Raid6, 3),
    (RaidProfile::Raid6, 4),
    (RaidProfile::Raid6, 5),
    (RaidProfile::Raid6, 6),
];

/// Returns whether the data of both chunks survives the loss of the devices in `missing`.
pub(super) fn survives(profile: RaidProfile, stripes: usize, missing: u32) -> bool {
    let lost = missing.count_ones() as usize;
    match profile {
        RaidProfile::Single | RaidProfile::Dup | RaidProfile::Raid0 => lost == 0,
        RaidProfile::Raid1 | RaidProfile::Raid1c3 | RaidProfile::Raid1c4 => lost < stripes,
        RaidProfile::Raid5 => lost <= 1,
        RaidProfile::Raid6 => lost <= 2,
        RaidProfile::Raid10 => {
            // Pairs of the system chunk, and of the data chunk, which starts at the second device.
            let whole = |a: usize, b: usize| missing & (1 << a) == 0 || missing & (1 << b) == 0;
            (0..stripes)
                .step_by(2)
                .all(|first| whole(first, first + 1) && whole(first + 1, (first + 2) % stripes))
        }
    }
}

#[track_caller]
fn assert_content(logical: LogicalAddress, bytes: &[u8], what: &str) {
    let wrong = bytes.iter().enumerate().position(|(i, &byte)| byte != byte_at(logical.0 + i as u64));
    assert_eq!(wrong, None, "{what}: offset of the first wrong byte from {logical}");
}

fn assert_reads_all(test: &TestVolume, volume: &Volume, what: &str) {
    let (start, length) = test.range();
    let mut buffer = vec![0; length];
    volume.read(start, &mut buffer).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_content(start, &buffer, what);
}

#[test]
fn all_copies_of_every_profile_read_the_same() {
    for (profile, stripes) in LAYOUTS {
        let test = TestVolume::new(profile, stripes);
        let volume = test.open(0, false).unwrap();
        assert_reads_all(&test, &volume, profile.name());
        let (start, length) = test.range();
        let copies = volume.copies(start).unwrap();
        let mut buffer = vec![0; length];
        for copy in 0..copies {
            buffer.fill(0);
            volume.read_copy(start, &mut buffer, copy).unwrap();
            assert_content(start, &buffer, &format!("{profile} on {stripes}, copy {copy}"));
        }
        assert!(volume.read_copy(start, &mut buffer, copies).is_err());
    }
}

#[test]
fn ranges_of_any_offset_and_length() {
    for (profile, stripes) in LAYOUTS {
        let test = TestVolume::new(profile, stripes);
        let volume = test.open(0, false).unwrap();
        let (start, length) = test.range();
        let mut seed = 88172645463325252u64;
        let mut random = |below: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed % below as u64) as usize
        };
        let ranges: Vec<_> = (0..40)
            .map(|_| {
                let offset = random(length);
                (LogicalAddress(start.0 + offset as u64), random((length - offset).min(200_000)) + 1)
            })
            .map(|(from, size)| (from, size.min((start.0 + length as u64 - from.0) as usize)))
            .collect();
        let mut buffers: Vec<_> = ranges.iter().map(|&(_, size)| vec![0; size]).collect();
        for (&(from, _), buffer) in ranges.iter().zip(&mut buffers) {
            volume.read(from, buffer).unwrap();
            assert_content(from, buffer, profile.name());
            buffer.fill(0);
        }
        let mut requests: Vec<_> = ranges
            .iter()
            .zip(&mut buffers)
            .map(|(&(from, _), buffer)| LogicalRead::new(from, buffer))
            .collect();
        volume.read_many(&mut requests);
        for request in &requests {
            assert!(request.result.is_ok(), "{profile}: {:?}", request.result);
            assert_content(request.logical, request.buffer, profile.name());
        }
    }
}

#[test]
fn every_combination_of_missing_devices() {
    for (profile, stripes) in LAYOUTS {
        let test = TestVolume::new(profile, stripes);
        let all = (1u32 << test.devices.len()) - 1;
        for missing in 1..all {
            let what = format!("{profile} on {stripes} without {missing:#b}");
            let error = test.open(missing, false).unwrap_err();
            assert!(matches!(error, Error::DeviceMissing { .. }), "{what}: {error}");
            match test.open(missing, true) {
                Ok(volume) => {
                    assert!(survives(profile, stripes, missing), "{what}: opened");
                    assert_reads_all(&test, &volume, &what);
                    let lost = volume.devices().iter().filter(|slot| slot.is_missing()).count();
                    assert_eq!(lost, missing.count_ones() as usize);
                }
                Err(error) => {
                    assert!(!survives(profile, stripes, missing), "{what}: {error}");
                    assert!(matches!(error, Error::TooManyMissing { .. }), "{what}: {error}");
                }
            }
        }
    }
}

#[test]
fn every_combination_of_failing_devices() {
    for (profile, stripes) in LAYOUTS {
        let test = TestVolume::new(profile, stripes);
        let volume = test.open(0, false).unwrap();
        for failing in 1..1u32 << test.devices.len() {
            let what = format!("{profile} on {stripes}, failing {failing:#b}");
            let is_failing = |index: usize| failing & (1 << index) != 0;
            let failed: Vec<_> = (0..test.devices.len())
                .filter(|&index| is_failing(index))
                .map(|index| (&*test.devices[index], test.devices[index].snapshot()))
                .collect();
            // A device that ends before its stripes start fails to read them.
            failed.iter().for_each(|(device, _)| device.resize(128 << 10));
            let (start, length) = test.range();
            let mut buffer = vec![0; length];
            match volume.read(start, &mut buffer) {
                Ok(()) => {
                    assert!(survives(profile, stripes, failing), "{what}: read");
                    assert_content(start, &buffer, &what);
                }
                Err(error) => {
                    assert!(!survives(profile, stripes, failing), "{what}: {error}");
                    assert!(matches!(error, Error::Device { operation: "read", .. }), "{what}: {error}");
                }
            }
            failed.iter().for_each(|(device, snapshot)| restore(device, snapshot));
        }
    }
}

#[test]
fn bad_ranges_are_read_from_other_copies() {
    for (profile, stripes) in LAYOUTS {
        let test = TestVolume::new(profile, stripes);
        for failing in 0..test.devices.len() {
            // Within the device's stripe of the system chunk.
            let stripe = (1 << 20) + failing as u64 * (640 << 10);
            let bad = PhysicalAddress(stripe + (100 << 10))..PhysicalAddress(stripe + (300 << 10));
            let fault = Arc::new(FaultDevice::new(test.devices[failing].clone()));
            fault.fail_reads(bad.clone());
            let devices = test.devices.iter().enumerate().map(|(index, device)| match index {
                _ if index == failing => fault.clone() as Arc<dyn Device>,
                _ => device.clone() as Arc<dyn Device>,
            });
            let volume = Volume::open(devices.collect(), &OpenOptions::new()).unwrap();
            volume.install_chunks([test.data_chunk.clone()]).unwrap();
            let (start, length) = test.range();
            let mut buffer = vec![0; length];
            let result = volume.read(start, &mut buffer);
            let what = format!("{profile} on {stripes}, bad sectors on device {}", failing + 1);
            if profile == RaidProfile::Dup || profile.tolerated_failures() > 0 {
                result.unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_content(start, &buffer, &what);
            } else {
                let Err(Error::Device { offset, length, .. }) = result else {
                    panic!("{what}: {result:?}");
                };
                assert!(offset < bad.end && offset.0 + length as u64 > bad.start.0, "{what}: at {offset}");
            }
        }
    }
}

/// Restores the contents of a device.
fn restore(device: &MemoryDevice, snapshot: &MemoryDevice) {
    let mut bytes = vec![0; snapshot.size() as usize];
    snapshot.read_at(&mut bytes, PhysicalAddress(0)).unwrap();
    device.resize(snapshot.size());
    device.write_at(&bytes, PhysicalAddress(0)).unwrap();
}

/// Overwrites copy 0 of an element.
fn corrupt(test: &TestVolume, volume: &Volume, logical: LogicalAddress) {
    let (name, place) = volume.place_of(logical, 0).expect("copy 0 has a place");
    let device = test.devices.iter().find(|device| device.name() == name).unwrap();
    device.write_at(&[0xee; 4096], place).unwrap();
}

#[test]
fn raid6_recovers_a_bad_block_with_another_bad_block_in_its_row() {
    let test = TestVolume::new(RaidProfile::Raid6, 6);
    let volume = test.open(0, false).unwrap();
    let row = 4 * STRIPE_LENGTH;
    for target in 0..4 {
        for other in (0..4).filter(|&other| other != target) {
            // Each pair at a location of its own.
            let within = (target * 4 + other) * 4096;
            let at = |column: u64| LogicalAddress(CHUNK_START.0 + row + column * STRIPE_LENGTH + within);
            corrupt(&test, &volume, at(target));
            corrupt(&test, &volume, at(other));
            let expected = content(at(target), 4096);
            let good: Vec<usize> = (0..volume.copies(at(target)).unwrap())
                .filter(|&copy| {
                    let mut buffer = [0; 4096];
                    volume.read_copy(at(target), &mut buffer, copy).unwrap();
                    buffer[..] == expected
                })
                .collect();
            assert_eq!(good.len(), 1, "only the attempt that assumes both bad succeeds: {good:?}");
            assert!(good[0] >= 3);
        }
    }
}

#[test]
fn other_rebuild_attempts_avoid_a_bad_parity() {
    let test = TestVolume::new(RaidProfile::Raid6, 4);
    let volume = test.open(0, false).unwrap();
    // Row 0: D0 D1 P Q on devices 1 to 4. D0 and P are bad.
    corrupt(&test, &volume, CHUNK_START);
    let p_place = PhysicalAddress((1 << 20) + 2 * (640 << 10));
    test.devices[2].write_at(&[0xee; 4096], p_place).unwrap();
    let mut buffer = [0; 4096];
    let good: Vec<usize> = (0..4)
        .filter(|&copy| {
            volume.read_copy(CHUNK_START, &mut buffer, copy).unwrap();
            buffer[..] == content(CHUNK_START, 4096)
        })
        .collect();
    assert_eq!(good, [2], "only Q gives the right bytes");
}

#[test]
fn read_copy_reads_only_the_given_copy() {
    let test = TestVolume::new(RaidProfile::Raid1, 2);
    let volume = test.open(0b10, true).unwrap();
    let mut buffer = [0; 4096];
    // The data chunk's first stripe is on device 2.
    for (start, missing_copy) in [(CHUNK_START, 1), (test.data_chunk.0, 0)] {
        let error = volume.read_copy(start, &mut buffer, missing_copy).unwrap_err();
        assert!(matches!(error, Error::DeviceMissing { devid, .. } if devid.0 == 2), "{error}");
        assert_eq!(volume.place_of(start, missing_copy), None);
        volume.read_copy(start, &mut buffer, 1 - missing_copy).unwrap();
        assert_content(start, &buffer, "the present copy");
        let (name, _) = volume.place_of(start, 1 - missing_copy).unwrap();
        assert_eq!(name, "device-1");
    }
    assert_eq!(volume.place_of(CHUNK_START, 2), None);
}

#[test]
fn reads_outside_all_chunks_fail() {
    let test = TestVolume::new(RaidProfile::Raid0, 2);
    let volume = test.open(0, false).unwrap();
    let (start, length) = test.range();
    let end = LogicalAddress(start.0 + length as u64);
    let mut buffer = [0; 8192];
    for logical in [LogicalAddress(0), LogicalAddress(start.0 - 1), end, LogicalAddress(u64::MAX)] {
        let error = volume.read(logical, &mut buffer).unwrap_err();
        assert!(matches!(error, Error::Unmapped { .. }), "{error}");
        assert!(volume.copies(logical).is_err());
        assert!(volume.read_copy(logical, &mut buffer, 0).is_err());
    }
    // Half inside, half outside: an error, which does not affect the neighbour in the batch.
    let (mut a, mut b) = ([0; 8192], [0; 8192]);
    let mut requests =
        [LogicalRead::new(LogicalAddress(end.0 - 4096), &mut a), LogicalRead::new(start, &mut b)];
    volume.read_many(&mut requests);
    let [half, whole] = &requests;
    assert!(matches!(half.result, Err(Error::Unmapped { logical, .. }) if logical == end));
    assert!(whole.result.is_ok());
    assert_content(start, whole.buffer, "the neighbour");
}

/// Counts the reads of a device, and fails them if it is told to.
#[derive(Debug, Default)]
struct Counted {
    reads: AtomicU64,
    fails: AtomicBool,
}

impl Counted {
    fn note(&self) -> std::io::Result<()> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        if self.fails.load(Ordering::SeqCst) { Err(std::io::ErrorKind::Other.into()) } else { Ok(()) }
    }
}

#[test]
fn mirrors_that_wait_take_turns() {
    for (profile, stripes) in [(RaidProfile::Raid1, 2), (RaidProfile::Raid1c3, 3), (RaidProfile::Raid10, 4)] {
        let test = TestVolume::new(profile, stripes);
        let counts: Vec<_> = test.devices.iter().map(|_| Arc::new(Counted::default())).collect();
        let devices = test.devices.iter().zip(&counts).map(|(device, counted)| {
            let counted = Arc::clone(counted);
            Arc::new(WatchedReads::new(Arc::clone(device), move || counted.note())) as Arc<dyn Device>
        });
        let volume = test.open_on(devices, 0, false).unwrap();
        let reads =
            || counts.iter().map(|counted| counted.reads.swap(0, Ordering::SeqCst)).collect::<Vec<_>>();
        let (start, length) = test.range();
        let read_in_steps = || {
            for step in 0..(length as u64 / STRIPE_LENGTH) {
                let at = LogicalAddress(start.0 + step * STRIPE_LENGTH);
                let mut buffer = vec![0; STRIPE_LENGTH as usize];
                volume.read(at, &mut buffer).unwrap();
                assert_content(at, &buffer, &format!("{profile:?}"));
            }
        };
        reads();
        read_in_steps();
        let read = reads();
        let all: u64 = read.iter().sum();
        assert_eq!(all, length as u64 / STRIPE_LENGTH, "{profile:?}: each is read once");
        // The range is shorter than a turn of all three.
        let unused = read.iter().filter(|&&count| count == 0).count();
        assert!(unused <= usize::from(profile == RaidProfile::Raid1c3), "{profile:?}: {read:?}");
        // One fails: its turns are others'.
        counts[1].fails.store(true, Ordering::SeqCst);
        read_in_steps();
        assert_reads_all(&test, &volume, &format!("{profile:?}"));
    }
}
