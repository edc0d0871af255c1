//! Ordered extents go to the trees a step at a time, beside others who write, read, sync, snapshot and cut the file.
//! With next to no memory for them there is a step after nearly every write.

use crate::support::{SECTOR, assert_clean, made, open, open_with, scatter, stamp, stamped};
use papilio::{File, FileSystem, OpenOptions};
use papilio_device::MemoryDevice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What all write.
const SIZE: u64 = 4 << 20;
/// And behind that what is cut off and punched.
const TAIL: u64 = 1 << 20;
/// Then what one each writes alone.
const OWN: u64 = 256 << 10;
const ALONE: u64 = 2;

fn options(node_cache: usize) -> OpenOptions {
    OpenOptions::new().node_cache_bytes(node_cache)
}

fn stamped_all(file: &File, at: u64, length: u64) -> Vec<u64> {
    let mut buffer = vec![0; length as usize];
    let read = file.read_at(&mut buffer, at).unwrap();
    let sectors = buffer[..read].chunks_exact(SECTOR as usize).enumerate();
    sectors.map(|(number, sector)| stamped(sector, at / SECTOR + number as u64)).collect()
}

/// Writes all over a range with ever larger sequence numbers, so many times; returns those of its sectors.
fn write_all_over(
    file: &File,
    range: std::ops::Range<u64>,
    who: u64,
    rounds: std::ops::Range<u64>,
) -> Vec<u64> {
    let mut random = fastrand::Rng::with_seed(who << 32 | rounds.start);
    let sectors = (range.end - range.start) / SECTOR;
    let mut own = vec![0; sectors as usize];
    for sequence in rounds {
        let count = random.u64(1..=4);
        let first = random.u64(0..=sectors - count);
        let at = range.start + first * SECTOR;
        let mut buffer = vec![0; (count * SECTOR) as usize];
        stamp(&mut buffer, at, who, sequence);
        file.write_at(&buffer, at).unwrap();
        own[first as usize..(first + count) as usize].fill(sequence);
    }
    own
}

/// What `who` wrote of a range alone, of a file that has all of it.
fn assert_own(file: &File, range: &std::ops::Range<u64>, who: u64, own: &[u64], when: &str) {
    let words = stamped_all(file, range.start, range.end - range.start);
    assert_eq!(words.len(), own.len(), "{when}: all is there");
    for (number, (word, sequence)) in words.into_iter().zip(own).enumerate() {
        let expected = if *sequence == 0 { 0 } else { who };
        assert_eq!(
            (word >> 56, (word >> 24) & 0xffff_ffff),
            (expected, *sequence),
            "{when}: sector {number}"
        );
    }
}

/// Writes a range that nobody else writes, makes that durable or takes a snapshot, and looks at what came of it.
fn write_alone(fs: &FileSystem, device: &Arc<MemoryDevice>, file: &File, who: u64) {
    let start = SIZE + TAIL + (who % ALONE) * OWN;
    let range = start..start + OWN;
    let mut own = vec![0; (OWN / SECTOR) as usize];
    for round in 0..6 {
        let sequences = round * 60 + 1..(round + 1) * 60;
        for (sequence, before) in
            write_all_over(file, range.clone(), who, sequences).into_iter().zip(&mut own)
        {
            *before = if sequence == 0 { *before } else { sequence };
        }
        let when = format!("{who}, round {round}");
        match (who % ALONE, round % 2) {
            (0, 0) => {
                file.sync().unwrap();
                let crashed = Arc::new(device.snapshot());
                assert_own(&open(&crashed).open_file("/file").unwrap(), &range, who, &own, &when);
            }
            (0, _) => {
                fs.sync().unwrap();
                let crashed = Arc::new(device.snapshot());
                assert_own(&open(&crashed).open_file("/file").unwrap(), &range, who, &own, &when);
                assert_clean(&crashed);
            }
            _ => {
                let name = format!("/snapshot-{round}");
                fs.snapshot("/", &name, round % 2 == 0).unwrap();
                let shown = fs.open_file(format!("{name}/file")).unwrap();
                assert_own(&shown, &range, who, &own, &when);
            }
        }
        assert_own(file, &range, who, &own, &when);
    }
}

/// Cuts the tail off and puts it back, punches holes into it and preallocates it.
fn cut(file: &File, stop: &AtomicBool) {
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
                file.write_at(&buffer, at).unwrap();
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
fn steps_beside_all_that_may_be_done_to_a_file_lose_nothing() {
    const WRITERS: u64 = 3;
    for (preallocated, node_cache) in [(false, 64 << 10), (true, 64 << 10), (false, 0), (false, 1 << 20)] {
        let device = made(768 << 20);
        let fs = open_with(&device, options(node_cache));
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
                .map(|who| scope.spawn(move || write_all_over(file, 0..SIZE, who, 1..700)))
                .collect();
            let alone: Vec<_> = (0..ALONE)
                .map(|which| scope.spawn(move || write_alone(fs, device, file, 4 + which)))
                .collect();
            let until: Vec<_> = [1, 2].map(|seed| scope.spawn(move || read(file, seed, stop))).into();
            let cutting = scope.spawn(move || cut(file, stop));
            let written: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            let alone: Vec<_> = alone.into_iter().map(|one| one.join()).collect();
            // Before anybody is told of a failure: the others would go on for ever.
            stop.store(true, Ordering::Relaxed);
            alone.into_iter().chain(until.into_iter().map(|one| one.join())).for_each(Result::unwrap);
            cutting.join().unwrap();
            written.into_iter().map(Result::unwrap).collect::<Vec<_>>()
        });
        for _ in 0..2 {
            for (place, word) in stamped_all(&file, 0, SIZE).into_iter().enumerate() {
                let (who, sequence) = (word >> 56, (word >> 24) & 0xffff_ffff);
                match written.get((who as usize).wrapping_sub(1)) {
                    // The last of one of those who wrote it.
                    Some(own) => assert_eq!(own[place], sequence, "sector {place} by {who}"),
                    None => assert!(written.iter().all(|own| own[place] == 0), "sector {place}"),
                }
            }
            // Once more, from the trees.
            fs.sync().unwrap();
        }
        drop(file);
        fs.close().unwrap();
        assert_clean(&device);
    }
}

#[test]
fn what_is_written_past_the_trees_gets_there_as_there_is_more_of_it() {
    // Much memory for it, a little, none: nothing of it is in the trees before a flush, some, nearly all.
    for (node_cache, expected) in [(64 << 20, 0..1), (64 << 10, 15 << 20..16 << 20), (0, 16 << 20..17 << 20)]
    {
        let device = made(256 << 20);
        let fs = open_with(&device, options(node_cache));
        let file = fs.create_file("/file").unwrap();
        let mut model = vec![0; 16 << 20];
        file.set_len(model.len() as u64).unwrap();
        // Each second sector, then the others.
        for first in [0, SECTOR] {
            for at in (first..model.len() as u64).step_by(2 * SECTOR as usize) {
                file.write_at(&[7; SECTOR as usize], at).unwrap();
                model[at as usize..][..SECTOR as usize].fill(7);
            }
            assert!(file.read_all().unwrap() == model);
        }
        let in_trees = fs.inode("/file").unwrap().metadata().allocated_bytes();
        assert!(expected.contains(&in_trees), "{in_trees} with {node_cache}");
        // What was not flushed is not there after a crash, nor is anything half there.
        assert_clean(&Arc::new(device.snapshot()));
        let mut random = fastrand::Rng::with_seed(5);
        scatter(&file, &mut model, &mut random, 2000);
        assert!(file.read_all().unwrap() == model);
        file.sync().unwrap();
        let crashed = Arc::new(device.snapshot());
        assert!(open(&crashed).read("/file").unwrap() == model);
        assert_clean(&crashed);
        drop(file);
        fs.close().unwrap();
        assert_clean(&device);
        assert!(open(&device).read("/file").unwrap() == model);
    }
}
