//! Extents and checksums that open files keep in memory: they follow every change of the file, and
//! a read finds a damaged sector whether its checksum comes from memory or from the tree.

use crate::in_memory::{assert_clean, formatted, formatted_with, open, open_with, writable};
use papilio::{CsumLookup, Error, File, IoOperation, IoQueue, IoRequest, MkfsOptions, Tuning};
use papilio_device::{DelayDevice, Device, FaultDevice, MemoryDevice};
use papilio_format::PhysicalAddress;
use std::sync::Arc;
use std::time::Duration;

const SECTOR: usize = 4096;

/// Returns the offset on the device of the sector that holds these bytes.
fn find(device: &MemoryDevice, sector: &[u8]) -> PhysicalAddress {
    let mut chunk = vec![0; 1 << 20];
    for start in (0..device.size()).step_by(chunk.len()) {
        device.read_at(&mut chunk, PhysicalAddress(start)).unwrap();
        if let Some(at) = chunk.chunks(SECTOR).position(|bytes| bytes == sector) {
            return PhysicalAddress(start + (at * SECTOR) as u64);
        }
    }
    panic!("no sector on the device holds these bytes");
}

#[test]
fn damage_under_cached_checksums_is_found() {
    for lookup in [CsumLookup::Stack, CsumLookup::Heap] {
        let device = formatted(256 << 20);
        let mut tuning = Tuning::default();
        tuning.csum_lookup = lookup;
        let fs = open_with(&device, &writable().tuning(tuning));
        let file = fs.create_file("/file").unwrap();
        let content: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(6 << 20).collect();
        file.write_all_at(&content, 0).unwrap();
        fs.sync().unwrap();
        assert!(
            file.read_all().unwrap() == content,
            "{lookup:?}: the first read, which caches the checksums"
        );
        for sector in [0, 700, 1023, 1024, 1535] {
            let good = &content[sector * SECTOR..][..SECTOR];
            let place = find(&device, good);
            let mut bad = good.to_vec();
            bad[sector % SECTOR] ^= 1;
            device.write_at(&bad, place).unwrap();
            // A read of the sector alone, one of its neighbours too, and an unaligned one.
            for (start, end) in [
                (sector, sector + 1),
                (sector.saturating_sub(300), (sector + 200).min(content.len() / SECTOR)),
            ] {
                let mut buffer = vec![0; (end - start) * SECTOR];
                let error = file.read_at(&mut buffer, (start * SECTOR) as u64).unwrap_err();
                let Error::DataChecksum { place, .. } = &error else { panic!("{lookup:?}: {error}") };
                assert_eq!(place.offset.0, (sector * SECTOR) as u64, "{lookup:?}");
            }
            let mut byte = [0];
            assert!(file.read_at(&mut byte, (sector * SECTOR + 9) as u64).is_err());
            device.write_at(good, place).unwrap();
        }
        assert!(file.read_all().unwrap() == content, "{lookup:?}: repaired");
    }
}

/// A file, and a model of its content.
struct Modelled {
    file: File,
    content: Vec<u8>,
}

impl Modelled {
    fn read(&self, random: &mut fastrand::Rng) {
        let at = random.usize(0..=self.content.len());
        let mut buffer = vec![0; random.usize(1..200_000)];
        let read = self.file.read_at(&mut buffer, at as u64).unwrap();
        assert_eq!(read, buffer.len().min(self.content.len() - at));
        assert!(buffer[..read] == self.content[at..][..read], "{read} bytes at {at}");
    }

    fn change(&mut self, random: &mut fastrand::Rng) {
        let at = random.usize(0..3 << 20);
        let length = random.usize(1..300_000);
        match random.u8(..8) {
            0 => {
                self.content.resize(at, 0);
                self.file.set_len(at as u64).unwrap();
            }
            1 => {
                self.file.punch_hole(at as u64, length as u64).unwrap();
                let end = (at + length).min(self.content.len());
                self.content[at.min(end)..end].fill(0);
            }
            _ => {
                let bytes = vec![random.u8(1..); length];
                self.file.write_all_at(&bytes, at as u64).unwrap();
                let end = self.content.len().max(at + length);
                self.content.resize(end, 0);
                self.content[at..at + length].copy_from_slice(&bytes);
            }
        }
    }
}

/// In so little space that new extents soon reuse the space of old ones, with and without a cache.
#[test]
fn cached_extents_and_checksums_follow_changes() {
    for cache_bytes in [0, 1 << 20] {
        let device = formatted(160 << 20);
        // Too little memory for the checksums of all files: they evict one another.
        let options = writable().cache_bytes(cache_bytes).node_cache_bytes(64 << 10);
        let fs = open_with(&device, &options);
        let mut random = fastrand::Rng::with_seed(cache_bytes + 5);
        let files = (0..4).map(|number| fs.create_file(format!("/{number}")).unwrap());
        let mut files: Vec<_> = files.map(|file| Modelled { file, content: Vec::new() }).collect();
        for step in 0..1_500 {
            let file = &mut files[random.usize(..4)];
            file.change(&mut random);
            for _ in 0..3 {
                files[random.usize(..4)].read(&mut random);
            }
            if step % 16 == 0 {
                fs.sync().unwrap();
            }
        }
        for modelled in &files {
            assert!(modelled.file.read_all().unwrap() == modelled.content);
        }
        drop(files);
        drop(fs);
        assert_clean(&device);
    }
}

#[test]
fn a_file_of_a_deleted_subvolume_can_be_read_while_it_is_open() {
    let device = formatted(256 << 20);
    let fs = open(&device);
    fs.create_subvolume("/sub").unwrap();
    let file = fs.create_file("/sub/file").unwrap();
    file.write_all_at(&[7; 40_000], 0).unwrap();
    fs.sync().unwrap();
    let mut buffer = [0; 4096];
    file.read_at(&mut buffer, 0).unwrap();
    fs.delete_subvolume("/sub").unwrap();
    fs.clean_subvolumes().unwrap();
    file.read_at(&mut buffer, 0).unwrap();
    assert_eq!(buffer, [7; 4096]);
    let inode = file.inode().clone();
    drop(file);
    fs.clean_subvolumes().unwrap();
    // Not an open handle, so it did not keep the subvolume.
    let error = inode.open().unwrap().read_at(&mut buffer, 0).unwrap_err();
    assert!(matches!(error, Error::Path { .. }), "{error:?}");
}

/// Reads sector 3 of a file whose sectors on the device cannot be read, and returns the reads that
/// reached the device, for a read in a call and one in flight.
fn reads_of_a_failing_sector(mkfs: &MkfsOptions, length: usize) -> [u64; 2] {
    let device = formatted_with(256 << 20, mkfs);
    // Requests on a device that waits are in flight without a thread.
    let slow = Arc::new(DelayDevice::new(device.clone(), Duration::ZERO).unwrap());
    let fault = Arc::new(FaultDevice::new(slow));
    let fs = open_with(&fault, &writable());
    let file = Arc::new(fs.create_file("/file").unwrap());
    let content: Vec<u8> = (0..8 * SECTOR).map(|at| (at / SECTOR * 31 + at) as u8).collect();
    file.write_all_at(&content, 0).unwrap();
    fs.sync().unwrap();
    assert!(file.read_all().unwrap() == content, "the extents and checksums are cached now");
    let mut whole = vec![0; 256 << 20];
    device.read_at(&mut whole, PhysicalAddress(0)).unwrap();
    for (at, bytes) in whole.chunks(SECTOR).enumerate() {
        if bytes == &content[3 * SECTOR..4 * SECTOR] {
            let start = PhysicalAddress((at * SECTOR) as u64);
            fault.fail_reads(start..PhysicalAddress(start.0 + SECTOR as u64));
        }
    }
    let mut buffer = vec![0; length];
    fault.reset_counts();
    let error = file.read_at(&mut buffer, 3 * SECTOR as u64).unwrap_err();
    assert_eq!(error.errno(), 5, "{error}");
    let called = fault.counts().reads;
    let mut queue = IoQueue::new(4);
    let operation = IoOperation::Read { buffer, offset: 3 * SECTOR as u64 };
    fault.reset_counts();
    queue.submit(IoRequest { file: Arc::clone(&file), operation, token: 1 }).unwrap();
    let mut completions = Vec::new();
    queue.wait(1, &mut completions);
    let error = completions.pop().unwrap().result.unwrap_err();
    assert_eq!(error.errno(), 5, "{error}");
    [called, fault.counts().reads]
}

#[test]
fn failing_reads_are_not_repeated() {
    let single = MkfsOptions::new();
    assert_eq!(reads_of_a_failing_sector(&single, SECTOR), [1, 1]);
    assert_eq!(reads_of_a_failing_sector(&single, 4 * SECTOR), [1, 1]);
    // Each copy once; a request in flight meets the first copy before the call that waits does.
    let two = MkfsOptions::new().data_profile(papilio::RaidProfile::Dup);
    assert_eq!(reads_of_a_failing_sector(&two, SECTOR), [2, 3]);
}
