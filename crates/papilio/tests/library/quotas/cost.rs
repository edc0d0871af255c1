//! The cost of counting, measured side by side with a file system without quotas.

use crate::images::writable;
use papilio::{FileSystem, MkfsOptions};
use papilio_oracle::Scratch;
use std::path::Path;
use std::time::{Duration, Instant};

/// Files that are created, renamed and removed in a round.
const FILES: u32 = 40_000;
/// Rounds of each kind, in turn.
const ROUNDS: usize = 5;

fn make(image: &Path, quotas: bool) -> FileSystem {
    papilio::mkfs(image, &MkfsOptions::new().force(true)).unwrap();
    let fs = FileSystem::open_with(image, &writable()).unwrap();
    if quotas {
        fs.enable_quotas().unwrap();
        fs.rescan_quotas(|_| ()).unwrap();
    }
    fs
}

/// Names: creations, renames and removals, with a commit after each thousand.
fn names(fs: &FileSystem) {
    let commit = |number: u32| {
        if number % 1000 == 999 {
            fs.sync().unwrap();
        }
    };
    for number in 0..FILES {
        fs.create_file(format!("/file{number}")).unwrap();
        commit(number);
    }
    for number in 0..FILES {
        fs.rename(format!("/file{number}"), format!("/name{number}")).unwrap();
        commit(number);
    }
    for number in 0..FILES {
        fs.remove_file(format!("/name{number}")).unwrap();
        commit(number);
    }
}

/// Data: files of 64 KiB, with a commit after each hundred, written twice.
fn data(fs: &FileSystem) {
    let content = vec![7; 64 << 10];
    for number in 0..4000u32 {
        fs.write(format!("/data{}", number % 2000), &content).unwrap();
        if number % 100 == 99 {
            fs.sync().unwrap();
        }
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Measures: run it by name, alone, on a quiet machine.
#[test]
#[ignore = "a measurement"]
fn counting_costs_little() {
    let scratch = Scratch::new(4 << 30).unwrap();
    for (what, work) in [("names", names as fn(&FileSystem)), ("data", data)] {
        let mut times = [Vec::new(), Vec::new()];
        for round in 0..2 * ROUNDS {
            let image = scratch.image("cost", 2 << 30).unwrap();
            let fs = make(&image, round % 2 == 1);
            let start = Instant::now();
            work(&fs);
            times[round % 2].push(start.elapsed());
            fs.close().unwrap();
            std::fs::remove_file(image).unwrap();
        }
        let [without, with] = times.map(median);
        let ratio = with.as_secs_f64() / without.as_secs_f64();
        println!("{what}: {without:.2?} without quotas, {with:.2?} with them: {ratio:.3}");
        assert!(ratio < 1.25, "{what}: quotas cost {ratio:.3} times as much");
    }
}
