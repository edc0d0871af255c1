//! Partial flushes of ordered extents while other threads write, read, sync, snapshot and truncate
//! the file. With hardly any memory for ordered extents, nearly every write starts one.

use super::support::{SECTOR, scatter, stamp, stamped};
use crate::in_memory::{assert_clean, close_clean, crashed, formatted, open, open_with, writable};
use papilio::{File, FileSystem, OpenOptions};
use papilio_device::MemoryDevice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes that all writers share, from the start of the file.
const SIZE: u64 = 4 << 20;
/// Bytes after that, which one thread truncates and punches.
const TAIL: u64 = 1 << 20;
/// Bytes after that for each of the [`ALONE`] writers with a range of its own.
const OWN: u64 = 256 << 10;
const ALONE: u64 = 2;

fn options(node_cache: usize) -> OpenOptions {
    writable().node_cache_bytes(node_cache)
}

fn stamped_all(file: &File, at: u64, length: u64) -> Vec<u64> {
    let mut buffer = vec![0; length as usize];
    let read = file.read_at(&mut buffer, at).unwrap();
    let sectors = buffer[..read].chunks_exact(SECTOR as usize).enumerate();
    sectors.map(|(number, sector)| stamped(sector, at / SECTOR + number as u64)).collect()
}

/// Writes at random offsets of a range, once for each sequence number of `rounds`; returns the last
/// sequence number of each sector.
fn write_at_random(
    file: &File,
    range: std::ops::Range<u64>,
    writer: u64,
    rounds: std::ops::Range<u64>,
) -> Vec<u64> {
    let mut random = fastrand::Rng::with_seed(writer << 32 | rounds.start);
    let sectors = (range.end - range.start) / SECTOR;
    let mut own = vec![0; sectors as usize];
    for sequence in rounds {
        let count = random.u64(1..=4);
        let first = random.u64(0..=sectors - count);
        let at = range.start + first * SECTOR;
        let mut buffer = vec![0; (count * SECTOR) as usize];
        stamp(&mut buffer, at, writer, sequence);
        file.write_all_at(&buffer, at).unwrap();
        own[first as usize..(first + count) as usize].fill(sequence);
    }
    own
}

/// Asserts that a range holds the last write of `writer`, its only writer, to each sector.
fn assert_own(file: &File, range: &std::ops::Range<u64>, writer: u64, own: &[u64], when: &str) {
    let words = stamped_all(file, range.start, range.end - range.start);
    assert_eq!(words.len(), own.len(), "{when}: the file has the whole range");
    for (number, (word, sequence)) in words.into_iter().zip(own).enumerate() {
        let expected = if *sequence == 0 { 0 } else { writer };
        assert_eq!(
            (word >> 56, (word >> 24) & 0xffff_ffff),
            (expected, *sequence),
            "{when}: sector {number}"
        );
    }
}

/// Writes a range that has no other writer, then fsyncs, commits or takes a snapshot, and asserts
/// that the crashed device or the snapshot has the writes.
fn write_alone(fs: &FileSystem, device: &Arc<MemoryDevice>, file: &File, writer: u64) {
    let start = SIZE + TAIL + (writer % ALONE) * OWN;
    let range = start..start + OWN;
    let mut own = vec![0; (OWN / SECTOR) as usize];
    for round in 0..6 {
        let sequences = round * 60 + 1..(round + 1) * 60;
        for (sequence, before) in
            write_at_random(file, range.clone(), writer, sequences).into_iter().zip(&mut own)
        {
            *before = if sequence == 0 { *before } else { sequence };
        }
        let when = format!("writer {writer}, round {round}");
        match (writer % ALONE, round % 2) {
            (0, 0) => {
                file.sync_all().unwrap();
                let crashed = crashed(device);
                assert_own(&open(&crashed).open_file("/file").unwrap(), &range, writer, &own, &when);
            }
            (0, _) => {
                fs.sync().unwrap();
                let crashed = crashed(device);
                assert_own(&open(&crashed).open_file("/file").unwrap(), &range, writer, &own, &when);
                assert_clean(&crashed);
            }
            _ => {
                let name = format!("/snapshot-{round}");
                fs.snapshot("/", &name, round % 2 == 0).unwrap();
                let shown = fs.open_file(format!("{name}/file")).unwrap();
                assert_own(&shown, &range, writer, &own, &when);
            }
        }
        assert_own(file, &range, writer, &own, &when);
    }
}

/// Punches, zeroes, clones and overwrites random sectors of the tail until `stop` is set.
fn change_tail(file: &File, stop: &AtomicBool) {
    let mut random = fastrand::Rng::with_seed(77);
    let mut buffer = vec![0; 8192];
    while !stop.load(Ordering::Relaxed) {
        let at = SIZE + random.u64(0..TAIL / SECTOR - 2) * SECTOR;
        match random.u8(..8) {
            0 => file.punch_hole(at, 2 * SECTOR).unwrap(),
            1 => file.zero_range(at, 2 * SECTOR, false).unwrap(),
            2 => file.clone_range(file, at - TAIL, 2 * SECTOR, at).unwrap(),
            3 => drop(file.fiemap(at).unwrap()),
            _ => {
                stamp(&mut buffer, at, 9, 1);
                file.write_all_at(&buffer, at).unwrap();
            }
        }
    }
}

fn read(file: &File, seed: u64, stop: &AtomicBool) {
    let mut random = fastrand::Rng::with_seed(seed);
    while !stop.load(Ordering::Relaxed) {
        let count = random.u64(1..=32);
        let at = random.u64(0..=SIZE / SECTOR - count) * SECTOR;
        assert_eq!(stamped_all(file, at, count * SECTOR).len() as u64, count);
    }
}

#[test]
fn partial_flushes_during_every_operation_lose_nothing() {
    const WRITERS: u64 = 3;
    for (preallocated, node_cache) in [(false, 64 << 10), (true, 64 << 10), (false, 0), (false, 1 << 20)] {
        let device = formatted(768 << 20);
        let fs = open_with(&device, &options(node_cache));
        let file = fs.create_file("/file").unwrap();
        let whole = SIZE + TAIL + ALONE * OWN;
        if preallocated {
            file.allocate(0, whole, false).unwrap();
        } else {
            file.set_len(whole).unwrap();
        }
        let stop = AtomicBool::new(false);
        let written = std::thread::scope(|scope| {
            let (fs, file, device, stop) = (&fs, &file, &device, &stop);
            let writers: Vec<_> = (1..=WRITERS)
                .map(|writer| scope.spawn(move || write_at_random(file, 0..SIZE, writer, 1..700)))
                .collect();
            let alone: Vec<_> = (0..ALONE)
                .map(|which| scope.spawn(move || write_alone(fs, device, file, 4 + which)))
                .collect();
            let until: Vec<_> = [1, 2].map(|seed| scope.spawn(move || read(file, seed, stop))).into();
            let changing_tail = scope.spawn(move || change_tail(file, stop));
            let written: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            let alone: Vec<_> = alone.into_iter().map(|one| one.join()).collect();
            // Before any failure is reported: without it, the other threads never end.
            stop.store(true, Ordering::Relaxed);
            alone.into_iter().chain(until.into_iter().map(|one| one.join())).for_each(Result::unwrap);
            changing_tail.join().unwrap();
            written.into_iter().map(Result::unwrap).collect::<Vec<_>>()
        });
        for _ in 0..2 {
            for (place, word) in stamped_all(&file, 0, SIZE).into_iter().enumerate() {
                let (writer, sequence) = (word >> 56, (word >> 24) & 0xffff_ffff);
                match written.get((writer as usize).wrapping_sub(1)) {
                    // Some writer's last write to this sector.
                    Some(own) => assert_eq!(own[place], sequence, "sector {place} by {writer}"),
                    None => assert!(written.iter().all(|own| own[place] == 0), "sector {place}"),
                }
            }
            // The second round reads from the trees.
            fs.sync().unwrap();
        }
        drop(file);
        close_clean(fs, &device);
    }
}

#[test]
fn ordered_extents_reach_the_trees_when_their_memory_is_used_up() {
    // Bytes in the trees before a flush: none with much memory for ordered extents, some with a
    // little, nearly all with none.
    for (node_cache, expected) in [(64 << 20, 0..1), (64 << 10, 15 << 20..16 << 20), (0, 16 << 20..17 << 20)]
    {
        let device = formatted(256 << 20);
        let fs = open_with(&device, &options(node_cache));
        let file = fs.create_file("/file").unwrap();
        let mut model = vec![0; 16 << 20];
        file.set_len(model.len() as u64).unwrap();
        // Every second sector, then the rest.
        for first in [0, SECTOR] {
            for at in (first..model.len() as u64).step_by(2 * SECTOR as usize) {
                file.write_all_at(&[7; SECTOR as usize], at).unwrap();
                model[at as usize..][..SECTOR as usize].fill(7);
            }
            assert!(file.read_all().unwrap() == model);
        }
        let in_trees = fs.inode("/file").unwrap().metadata().allocated_bytes();
        assert!(expected.contains(&in_trees), "{in_trees} with {node_cache}");
        // A crash loses whole extents that were not flushed, never parts.
        assert_clean(&crashed(&device));
        let mut random = fastrand::Rng::with_seed(5);
        scatter(&file, &mut model, &mut random, 2000);
        assert!(file.read_all().unwrap() == model);
        file.sync_all().unwrap();
        let crashed = crashed(&device);
        assert!(open(&crashed).read("/file").unwrap() == model);
        assert_clean(&crashed);
        drop(file);
        close_clean(fs, &device);
        assert!(open(&device).read("/file").unwrap() == model);
    }
}
