//! Writing memory volumes of every profile: whole, degraded, failing, and with many concurrent
//! writers.

use super::super::testing::{CHUNK_START, TestVolume, content, device_uuid};
use super::super::volume::Volume;
use super::super::write::LogicalWrite;
use super::reading::{LAYOUTS, survives};
use crate::errors::Error;
use papilio_device::{Action, CallKind, Device, MemoryDevice, Recording};
use papilio_format::items::chunk::{RaidProfile, STRIPE_LENGTH};
use papilio_format::items::device::DeviceStat;
use papilio_format::superblock::{SUPERBLOCK_SIZE, superblock_offset};
use papilio_format::{DeviceId, Generation, LogicalAddress, PhysicalAddress, Superblock};
use papilio_locks::{Condvar, Mutex};
use std::sync::Arc;
use std::time::Duration;

const SECTOR: u64 = 4096;

/// A small random generator with a seed, so that failures are reproducible.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % bound
    }
}

fn bytes_of(device: &MemoryDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.size() as usize];
    device.read_at(&mut bytes, PhysicalAddress(0)).unwrap();
    bytes
}

#[track_caller]
fn assert_devices_alike(one: &TestVolume, other: &TestVolume, what: &str) {
    for (a, b) in one.devices.iter().zip(&other.devices) {
        let (bytes_a, bytes_b) = (bytes_of(a), bytes_of(b));
        if bytes_a != bytes_b {
            let differ = bytes_a.iter().zip(&bytes_b).position(|(a, b)| a != b);
            panic!("{what}: {} differs from the expected contents, first at {differ:?}", a.name());
        }
    }
}

/// Splits the range of `test` into ranges of 1 to `most` sectors, in random order.
fn cut(test: &TestVolume, most: u64, random: &mut Random) -> Vec<(LogicalAddress, usize)> {
    let (start, length) = test.range();
    let (mut at, end) = (start.0, start.0 + length as u64);
    let mut cuts = Vec::new();
    while at < end {
        let length = ((random.below(most) + 1) * SECTOR).min(end - at);
        cuts.push((LogicalAddress(at), length as usize));
        at += length;
    }
    for index in (1..cuts.len()).rev() {
        cuts.swap(index, random.below(index as u64 + 1) as usize);
    }
    cuts
}

/// Writes ranges of `all`, the contents from `start` on, in one batch.
fn write_ranges(volume: &Volume, start: LogicalAddress, all: &[u8], ranges: &[(LogicalAddress, usize)]) {
    let bytes = |logical: LogicalAddress, length| &all[(logical.0 - start.0) as usize..][..length];
    let mut requests: Vec<_> =
        ranges.iter().map(|&(logical, length)| LogicalWrite::new(logical, bytes(logical, length))).collect();
    volume.write_many(&mut requests);
    for request in requests {
        request.result.unwrap_or_else(|error| panic!("{}: {error}", request.logical));
    }
}

#[test]
fn every_profile_has_the_expected_layout() {
    for (profile, stripes) in LAYOUTS {
        let expected = TestVolume::new(profile, stripes);
        let blank = TestVolume::blank(profile, stripes);
        let (start, length) = blank.range();
        let all = content(start, length);
        let what = format!("{profile} on {stripes}");

        let test = blank.copy();
        test.open(0, false).unwrap().write(start, &all).unwrap();
        assert_devices_alike(&test, &expected, &format!("{what}, at once"));

        // Sizes from a sector to more than a row, in batches and one by one, in any order.
        for (most, batch) in [(1, 7), (20, 1), (40, 5), (200, 1000)] {
            let test = blank.copy();
            let volume = test.open(0, false).unwrap();
            for ranges in cut(&test, most, &mut Random(most)).chunks(batch) {
                match ranges {
                    &[(logical, length)] => {
                        volume.write(logical, &all[(logical.0 - start.0) as usize..][..length]).unwrap();
                    }
                    _ => write_ranges(&volume, start, &all, ranges),
                }
            }
            assert_devices_alike(&test, &expected, &format!("{what}, {batch} of up to {most} sectors"));
        }
    }
}

#[test]
fn degraded_writes_survive() {
    for (profile, stripes) in LAYOUTS {
        let devices = if profile == RaidProfile::Dup { 1 } else { stripes };
        // The volume has other contents before, of which a part stays.
        let before = TestVolume::new(profile, stripes);
        let (start, length) = before.range();
        let content_before = content(start, length);
        for missing in 1u32..1 << devices {
            if !survives(profile, stripes, missing) {
                continue;
            }
            let what = format!("{profile} on {stripes} without {missing:#b}");
            let test = before.copy();
            let volume = test.open(missing, true).unwrap();
            let mut model = content_before.clone();
            let mut random = Random(u64::from(missing));
            for _ in 0..12 {
                let first = random.below(length as u64 / SECTOR);
                let count = (random.below(24) + 1).min(length as u64 / SECTOR - first);
                let bytes = vec![random.below(256) as u8; (count * SECTOR) as usize];
                let at = (first * SECTOR) as usize;
                volume.write(LogicalAddress(start.0 + at as u64), &bytes).unwrap();
                model[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            let mut read = vec![0; length];
            volume.read(start, &mut read).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(read == model, "{what}");
            for (number, (device, untouched)) in test.devices.iter().zip(&before.devices).enumerate() {
                if missing & (1 << number) != 0 {
                    assert!(bytes_of(device) == bytes_of(untouched), "{what}");
                }
            }
        }
    }
}

#[test]
fn too_few_devices_refuse_a_write() {
    for (profile, stripes) in LAYOUTS {
        let devices = if profile == RaidProfile::Dup { 1 } else { stripes };
        let test = TestVolume::blank(profile, stripes);
        let (start, length) = test.range();
        for missing in (1..(1u32 << devices) - 1).filter(|missing| !survives(profile, stripes, *missing)) {
            // Opened whole: a volume does not open without so many.
            let volume = test.open(0, false).unwrap();
            for devid in (1..=devices as u64).filter(|devid| missing & (1 << (devid - 1)) != 0) {
                volume.forget_device(DeviceId(devid)).unwrap();
            }
            let written = volume.write(start, &vec![1; length]);
            let what = format!("{profile} on {stripes} without {missing:#b}");
            assert!(matches!(written, Err(Error::TooManyMissing { .. })), "{what}: {written:?}");
        }
    }
}

#[test]
fn all_copies_agree_after_overwrites() {
    for (profile, stripes) in LAYOUTS {
        let test = TestVolume::new(profile, stripes);
        let volume = test.open(0, false).unwrap();
        let (start, length) = test.range();
        let mut model = content(start, length);
        let mut random = Random(stripes as u64);
        for round in 0..40u8 {
            let first = random.below(length as u64 / SECTOR);
            let count = (random.below(40) + 1).min(length as u64 / SECTOR - first);
            let at = (first * SECTOR) as usize;
            let bytes: Vec<u8> =
                (0..count * SECTOR).map(|index| (index / 13) as u8 ^ round.wrapping_mul(37)).collect();
            volume.write(LogicalAddress(start.0 + at as u64), &bytes).unwrap();
            model[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        let mut read = vec![0; length];
        for copy in 0..volume.copies(start).unwrap() {
            volume.read_copy(start, &mut read, copy).unwrap();
            assert!(read == model, "{profile} on {stripes}, copy {copy}");
        }
    }
}

#[test]
fn concurrent_writers_of_a_row_keep_its_parity_consistent() {
    for (profile, stripes) in [(RaidProfile::Raid5, 4), (RaidProfile::Raid6, 5)] {
        let test = TestVolume::blank(profile, stripes);
        let volume = test.open(0, false).unwrap();
        let (start, length) = test.range();
        let sectors = length as u64 / SECTOR;
        let (threads, volume) = (4u64, &volume);
        std::thread::scope(|scope| {
            for thread in 0..threads {
                scope.spawn(move || {
                    for sector in (thread..sectors).step_by(threads as usize) {
                        let logical = LogicalAddress(start.0 + sector * SECTOR);
                        volume.write(logical, &content(logical, SECTOR as usize)).unwrap();
                        // A concurrent rebuild sees data and parity of the same time.
                        let mut read = vec![0; SECTOR as usize];
                        volume.read_copy(logical, &mut read, 1).unwrap();
                        assert!(read == content(logical, SECTOR as usize), "{profile}, sector {sector}");
                    }
                });
            }
        });
        assert_devices_alike(&test, &TestVolume::new(profile, stripes), profile.name());
    }
}

/// Returns the devids of devices that count as out of date.
fn stale(volume: &Volume) -> Vec<u64> {
    volume.devices().iter().filter(|slot| slot.stale).map(|slot| slot.devid().0).collect()
}

#[test]
fn a_failing_device_is_lost_or_fails_the_write() {
    for (profile, stripes) in LAYOUTS {
        let test = TestVolume::blank(profile, stripes);
        let (start, length) = test.range();
        let bytes = content(start, length);
        for (number, device) in test.devices.iter().enumerate() {
            let (faults, volume) = test.open_with_faults();
            faults[number].fail_writes(PhysicalAddress(1 << 20)..PhysicalAddress(8 << 20));
            let what = format!("{profile} on {stripes}, device {number}");
            match volume.write(start, &bytes) {
                Ok(()) => {
                    assert!(profile.tolerated_failures() > 0 && volume.needs_commit(), "{what}");
                    assert_eq!(stale(&volume), [number as u64 + 1], "{what}");
                    let mut read = vec![0; length];
                    volume.read(start, &mut read).unwrap();
                    assert!(read == bytes, "{what}: read from the others");
                }
                Err(error) => {
                    assert!(
                        matches!(&error, Error::Device { device: name, operation: "write", .. } if name == device.name()),
                        "{what}: {error}"
                    );
                    assert!(profile.tolerated_failures() == 0 && stale(&volume).is_empty(), "{what}");
                }
            }
            let counts = volume.devices().counters().get(DeviceId(number as u64 + 1));
            assert!(counts[DeviceStat::WriteErrors as usize] > 0, "{what}");
        }
        // All other devices have the bytes; now the failed one gets them as well.
        let (_, volume) = test.open_with_faults();
        volume.write(start, &bytes).unwrap();
        assert_devices_alike(&test, &TestVolume::new(profile, stripes), profile.name());
    }
}

#[test]
fn only_failed_ranges_report_errors() {
    let test = TestVolume::blank(RaidProfile::Raid0, 2);
    let (faults, volume) = test.open_with_faults();
    // Stripe 0 of the system chunk is at 1 MiB of device 1.
    faults[0].fail_writes(PhysicalAddress(1 << 20)..PhysicalAddress((1 << 20) + STRIPE_LENGTH));
    let bytes = vec![7; SECTOR as usize];
    let at = |offset: u64| LogicalAddress(CHUNK_START.0 + offset);
    let mut requests = [
        LogicalWrite::new(at(0), &bytes),
        LogicalWrite::new(at(STRIPE_LENGTH), &bytes),
        LogicalWrite::new(at(2 * STRIPE_LENGTH), &bytes),
        LogicalWrite::new(LogicalAddress(0), &bytes),
    ];
    volume.write_many(&mut requests);
    assert!(matches!(requests[0].result, Err(Error::Device { .. })));
    assert!(requests[1].result.is_ok() && requests[2].result.is_ok());
    assert!(matches!(requests[3].result, Err(Error::Unmapped { .. })));
    // One call per device carries the batch.
    assert_eq!(faults[1].counts().writes, 1);
}

#[test]
fn an_unreadable_row_is_not_written() {
    let test = TestVolume::new(RaidProfile::Raid5, 4);
    let (faults, volume) = test.open_with_faults();
    let before: Vec<_> = test.devices.iter().map(|device| bytes_of(device)).collect();
    for fault in &faults[1..3] {
        fault.fail_reads(PhysicalAddress(1 << 20)..PhysicalAddress(8 << 20));
    }
    let error = volume.write(CHUNK_START, &[1; SECTOR as usize]).unwrap_err();
    assert!(matches!(&error, Error::Device { operation: "read", .. }), "{error}");
    for (device, before) in test.devices.iter().zip(&before) {
        assert!(bytes_of(device) == *before, "{} was written to", device.name());
    }
    // With one device back, the other column is rebuilt and the parity stays right.
    faults[1].repair();
    volume.write(CHUNK_START, &[1; SECTOR as usize]).unwrap();
    faults[2].repair();
    let mut read = [0; SECTOR as usize];
    for copy in 0..2 {
        volume.read_copy(CHUNK_START, &mut read, copy).unwrap();
        assert_eq!(read, [1; SECTOR as usize], "copy {copy}");
    }
    let next = LogicalAddress(CHUNK_START.0 + STRIPE_LENGTH);
    volume.read_copy(next, &mut read, 1).unwrap();
    assert!(read[..] == content(next, SECTOR as usize), "the neighbour in the row is rebuilt unchanged");
}

#[test]
fn stale_bytes_do_not_corrupt_parity() {
    // Device 2 missed two generations and holds other bytes since.
    let test = TestVolume::new(RaidProfile::Raid5, 3);
    let mut raw = test.superblocks[1];
    raw.generation = Generation(7);
    raw.chunk_root_generation = Generation(7);
    super::super::testing::write_superblock(&*test.devices[1], &raw);
    let neighbour = LogicalAddress(CHUNK_START.0 + STRIPE_LENGTH);
    let place = test.open(0, false).unwrap().place_of(neighbour, 0).unwrap();
    assert_eq!(place.0, "device-2");
    test.devices[1].write_at(&[0xee; SECTOR as usize], place.1).unwrap();

    test.open(0, false).unwrap().write(CHUNK_START, &[1; SECTOR as usize]).unwrap();
    let mut read = [0; SECTOR as usize];
    test.open(0, false).unwrap().read_copy(neighbour, &mut read, 1).unwrap();
    assert!(read[..] == content(neighbour, SECTOR as usize), "the parity still recovers the old data");
}

#[test]
fn chunks_that_end_within_a_row_refuse_writes() {
    let mut test = TestVolume::blank(RaidProfile::Raid0, 2);
    test.data_chunk.1.length -= SECTOR;
    let volume = test.open(0, false).unwrap();
    let error = volume.write(test.data_chunk.0, &[1; SECTOR as usize]).unwrap_err();
    assert!(matches!(&error, Error::Item { .. }) && error.to_string().contains("whole rows"), "{error}");
    assert!(volume.discard(test.data_chunk.0, SECTOR).is_err());
    volume.write(CHUNK_START, &[1; SECTOR as usize]).unwrap();
}

#[test]
fn discards_reach_exactly_all_copies() {
    for (profile, stripes) in LAYOUTS {
        let test = TestVolume::new(profile, stripes);
        let (faults, volume) = test.open_with_faults();
        let (start, length) = test.range();
        // From within the first chunk to within the second.
        let (from, count) = (3 * SECTOR as usize, length - 7 * SECTOR as usize);
        volume.discard(LogicalAddress(start.0 + from as u64), count as u64).unwrap();
        let calls: u64 = faults.iter().map(|fault| fault.counts().discards).sum();
        let mut model = content(start, length);
        if profile.parity() == 0 {
            // Memory devices read as zeros where they were discarded.
            model[from..from + count].fill(0);
            assert_eq!(calls, 2 * stripes as u64, "{profile} on {stripes}: adjacent ranges are merged");
        } else {
            assert_eq!(calls, 0, "{profile}");
        }
        let mut read = vec![0; length];
        for copy in 0..profile.copies() {
            volume.read_copy(start, &mut read, copy).unwrap();
            assert!(read == model, "{profile} on {stripes}, copy {copy}");
        }
        assert!(volume.discard(LogicalAddress(0), 1).is_err());
    }
}

#[test]
fn flushes_reach_every_device() {
    let test = TestVolume::blank(RaidProfile::Raid1c3, 3);
    let (faults, volume) = test.open_with_faults();
    volume.flush().unwrap();
    assert!(faults.iter().all(|fault| fault.counts().flushes == 1));
    faults[0].fail_call(CallKind::Flush, faults[0].counts().flushes);
    volume.flush().unwrap();
    assert_eq!(stale(&volume), [1], "lost, as the others are enough");
    assert!(faults.iter().all(|fault| fault.counts().flushes == 2), "the others are flushed nevertheless");

    let test = TestVolume::blank(RaidProfile::Raid0, 2);
    let (faults, volume) = test.open_with_faults();
    faults[0].fail_call(CallKind::Flush, 0);
    let error = volume.flush().unwrap_err();
    assert!(matches!(&error, Error::Device { operation: "flush", device, .. } if device == "device-1"));
    assert!(faults.iter().all(|fault| fault.counts().flushes == 1), "the others are flushed nevertheless");
}

#[test]
fn first_superblock_copies_are_written_first() {
    // Large enough for the second copy.
    let mut test = TestVolume::blank(RaidProfile::Raid1, 2);
    let size = 65 << 20;
    for (device, raw) in test.devices.iter().zip(&mut test.superblocks) {
        device.resize(size);
        raw.dev_item.total_bytes = size;
    }
    let recording = Recording::new();
    let devices =
        test.devices.iter().map(|device| Arc::new(recording.attach(device.clone())) as Arc<dyn Device>);
    let volume = test.open_on(devices, 0, false).unwrap();
    let mut raw = test.superblocks[0];
    raw.generation = Generation(10);
    volume.write_superblocks(&raw).unwrap();

    let mut writes = Vec::new();
    for event in recording.events() {
        match event.action {
            Action::Write { offset, fua, .. } => writes.push((event.device, offset.0, fua)),
            Action::Flush => writes.push((event.device, 0, false)),
            other => panic!("{other:?}"),
        }
    }
    let (first, second) = (superblock_offset(0).0, superblock_offset(1).0);
    let expected = [
        (0, first, true),
        (1, first, true),
        (0, second, false),
        (1, second, false),
        (0, 0, false),
        (1, 0, false),
    ];
    assert_eq!(writes, expected);
    for (device, raw) in test.devices.iter().zip(&test.superblocks) {
        for copy in 0..2 {
            let place = superblock_offset(copy);
            let mut bytes = [0; SUPERBLOCK_SIZE];
            device.read_at(&mut bytes, place).unwrap();
            let read = Superblock::parse(&bytes, place).unwrap().raw;
            assert_eq!((read.generation, read.dev_item), (Generation(10), raw.dev_item));
        }
    }
}

#[test]
fn failed_superblock_writes_name_device_and_copy() {
    let test = TestVolume::blank(RaidProfile::Raid1, 2);
    let (faults, volume) = test.open_with_faults();
    let mut raw = test.superblocks[0];
    raw.generation = Generation(10);
    let place = superblock_offset(0);
    faults[0].fail_writes(place..PhysicalAddress(place.0 + 1));
    volume.write_superblocks(&raw).unwrap();
    assert_eq!(stale(&volume), [1], "lost, as the other is enough");
    let generation = |device: &MemoryDevice| {
        let mut bytes = [0; SUPERBLOCK_SIZE];
        device.read_at(&mut bytes, place).unwrap();
        Superblock::parse(&bytes, place).unwrap().raw.generation
    };
    assert_eq!(generation(&test.devices[0]), Generation(9));
    assert_eq!(generation(&test.devices[1]), Generation(10), "the other device has it nevertheless");

    let single = TestVolume::blank(RaidProfile::Raid0, 2);
    let (faults, strict) = single.open_with_faults();
    faults[0].fail_writes(place..PhysicalAddress(place.0 + 1));
    let error = strict.write_superblocks(&single.superblocks[0]).unwrap_err();
    assert!(
        matches!(&error, Error::SuperblockWrite { device, copy: 0, .. } if device == "device-1"),
        "{error}"
    );

    // A superblock that readers would reject is written nowhere.
    raw.node_size = 5000;
    assert!(matches!(volume.write_superblocks(&raw), Err(Error::Superblock { .. })));
    assert_eq!(generation(&test.devices[1]), Generation(10));
}

#[test]
fn superblocks_skip_missing_devices_and_use_changed_items() {
    let test = TestVolume::blank(RaidProfile::Raid1, 2);
    let volume = test.open(0b10, true).unwrap();
    let mut item = test.superblocks[0].dev_item;
    item.bytes_used = 5 << 20;
    volume.set_device_item(item).unwrap();
    item.devid = DeviceId(3);
    assert!(matches!(volume.set_device_item(item), Err(Error::DeviceMissing { devid: DeviceId(3), .. })));
    item = test.superblocks[1].dev_item;
    item.bytes_used = 1 << 20;
    volume.set_device_item(item).unwrap();
    assert_eq!(volume.devices().iter().map(|slot| slot.item.bytes_used >> 20).collect::<Vec<_>>(), [5, 1]);

    let mut raw = test.superblocks[1];
    raw.generation = Generation(10);
    volume.write_superblocks(&raw).unwrap();
    let reopened = test.open(0b10, true).unwrap();
    let own = reopened.superblock().raw;
    assert_eq!(
        (own.generation, own.dev_item.bytes_used, own.dev_item.uuid),
        (Generation(10), 5 << 20, device_uuid(1))
    );
    let mut bytes = [0; SUPERBLOCK_SIZE];
    test.devices[1].read_at(&mut bytes, superblock_offset(0)).unwrap();
    let other = Superblock::parse(&bytes, superblock_offset(0)).unwrap();
    assert_eq!(other.raw.generation, Generation(9));
}

#[test]
fn generation_and_chunk_map_are_updated() {
    let test = TestVolume::blank(RaidProfile::Single, 1);
    let volume = test.open(0, false).unwrap();
    assert_eq!(volume.geometry().generation, Generation(9));
    volume.set_generation(Generation(10));
    assert_eq!(volume.geometry().generation, Generation(10));

    let (start, item) = test.data_chunk.clone();
    let held = volume.chunk_map();
    volume.remove_chunk(start).unwrap();
    assert!(held.find(start).is_some(), "a snapshot stays");
    assert!(matches!(volume.read(start, &mut [0]), Err(Error::Unmapped { .. })));
    assert!(matches!(volume.remove_chunk(start), Err(Error::Unmapped { .. })));
    volume.install_chunks([(start, item)]).unwrap();
    volume.read(start, &mut [0]).unwrap();
}

/// A device whose writes wait until those of another have begun.
#[derive(Debug)]
struct Partner {
    inner: Arc<dyn Device>,
    begun: Arc<(Mutex<usize>, Condvar)>,
}

impl Partner {
    /// Returns once `PARTNERS` calls are under way; panics if they do not come.
    fn meet(&self) {
        let (begun, changed) = &*self.begun;
        let mut count = begun.lock();
        *count += 1;
        let round = (*count - 1) / PARTNERS;
        changed.notify_all();
        while *count < (round + 1) * PARTNERS {
            let waited = changed.wait_for(&mut count, Duration::from_secs(60));
            assert!(!waited.timed_out(), "one device waits for the other");
        }
    }
}

const PARTNERS: usize = 2;

impl Device for Partner {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn access(&self) -> papilio_device::Access {
        self.inner.access()
    }

    fn waits(&self) -> bool {
        true
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> std::io::Result<()> {
        self.inner.read_at(buffer, offset)
    }

    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> std::io::Result<()> {
        self.meet();
        self.inner.write_at(buffer, offset)
    }

    fn write_fua(&self, buffer: &[u8], offset: PhysicalAddress) -> std::io::Result<()> {
        self.meet();
        self.inner.write_at(buffer, offset)
    }

    fn flush(&self) -> std::io::Result<()> {
        self.meet();
        self.inner.flush()
    }

    fn discard(&self, offset: PhysicalAddress, length: u64) -> std::io::Result<()> {
        self.inner.discard(offset, length)
    }
}

#[test]
fn devices_that_wait_are_written_at_once() {
    let test = TestVolume::blank(RaidProfile::Raid1, PARTNERS);
    let begun = Arc::new((Mutex::new(0), Condvar::new()));
    let partner = |inner: &Arc<MemoryDevice>| -> Arc<dyn Device> {
        Arc::new(Partner { inner: Arc::clone(inner) as Arc<dyn Device>, begun: Arc::clone(&begun) })
    };
    let volume = test.open_on(test.devices.iter().map(partner), 0, false).unwrap();
    // One tree block, several, a flush, superblocks.
    volume.write(CHUNK_START, &[1; SECTOR as usize]).unwrap();
    let next = LogicalAddress(CHUNK_START.0 + SECTOR);
    let bytes = [2; SECTOR as usize];
    let mut writes = [LogicalWrite::new(next, &bytes)];
    volume.write_many(&mut writes);
    assert!(writes.iter().all(|write| write.result.is_ok()));
    volume.flush().unwrap();
    volume.write_superblocks(&test.superblocks[0]).unwrap();
    let mut kept = None;
    volume.write_log_superblock(&test.superblocks[0], (CHUNK_START, 0), &mut kept).unwrap();
    assert!(*begun.0.lock() >= 5 * PARTNERS);
    assert_eq!(*begun.0.lock() % PARTNERS, 0);
}
