//! Deleted subvolumes are cleaned up in steps, and a crash between two steps loses nothing.

use super::fill;
use crate::in_memory::{assert_clean, close_clean, crashed, formatted, formatted_with, open, open_with};
use papilio::{FileSystem, MkfsOptions, OpenOptions};
use papilio_device::MemoryDevice;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Deletes `path` and cleans up in at least `least` steps. Simulates a crash after each step, and
/// after some of them finishes the cleaning on the crashed device.
fn clean_with_crashes(device: &Arc<MemoryDevice>, path: &str, least: usize) {
    let fs = open(device);
    fs.delete_subvolume(path).unwrap();
    fs.sync().unwrap();
    assert_clean(&crashed(device));
    let mut steps = 0;
    while fs.clean_subvolumes_step().unwrap() {
        fs.sync().unwrap();
        let left = crashed(device);
        assert_clean(&left);
        if steps % 3 == 1 {
            let resumed = open(&left);
            resumed.clean_subvolumes().unwrap();
            close_clean(resumed, &left);
        }
        steps += 1;
    }
    assert!(steps >= least, "{path} took {steps} steps");
    close_clean(fs, device);
}

#[test]
fn cleaning_continues_after_a_crash_between_steps() {
    let device = formatted_with(1 << 30, &MkfsOptions::new().node_size(4096));
    let fs = open(&device);
    fs.create_subvolume("/a").unwrap();
    fill(&fs, "/a", 2500, 1);
    // Subvolumes that share some blocks: a snapshot, changes on both sides, a snapshot of that.
    fs.snapshot("/a", "/b", false).unwrap();
    for number in (0..2500).step_by(5) {
        fs.remove_file(format!("/a/file{number}")).unwrap();
        fs.open_file(format!("/b/file{}", number + 1)).unwrap().write_all_at(b"changed", 5).unwrap();
    }
    fs.snapshot("/b", "/c", true).unwrap();
    close_clean(fs, &device);
    let expected: Vec<_> = {
        let fs = open(&device);
        (1..2500).filter(|n| n % 5 != 0).map(|n| fs.read(format!("/c/file{n}")).unwrap()).collect()
    };
    // The origin goes first: cleaning it converts all its shared blocks to full back references.
    clean_with_crashes(&device, "/a", 2);
    clean_with_crashes(&device, "/b", 1);
    let fs = open(&device);
    let found: Vec<_> =
        (1..2500).filter(|n| n % 5 != 0).map(|n| fs.read(format!("/c/file{n}")).unwrap()).collect();
    assert!(found == expected, "the remaining snapshot is unchanged");
    drop(fs);
    let before = open(&device).usage().unwrap().used();
    clean_with_crashes(&device, "/c", 4);
    let fs = open(&device);
    assert_eq!(fs.subvolumes().unwrap().len(), 1);
    assert!(fs.usage().unwrap().used() < before / 4, "the space is free again");
}

#[test]
fn subvolumes_are_listed_while_others_are_freed() {
    let device = formatted(256 << 20);
    let fs = open(&device);
    fs.create_subvolume("/kept").unwrap();
    std::thread::scope(|scope| {
        let work = scope.spawn(|| {
            for round in 0..150 {
                for number in 0..4 {
                    fs.snapshot("/kept", format!("/{round}-{number}"), false).unwrap();
                }
                for number in 0..4 {
                    fs.delete_subvolume(format!("/{round}-{number}")).unwrap();
                }
                fs.clean_subvolumes().unwrap();
            }
        });
        let mut lists = 0;
        while !work.is_finished() || lists == 0 {
            let all = fs.subvolumes().unwrap();
            assert!(all.iter().any(|subvolume| subvolume.path.as_deref() == Some(b"kept")), "{all:?}");
            lists += 1;
        }
    });
    assert_eq!(fs.subvolumes().unwrap().len(), 2);
    close_clean(fs, &device);
}

#[test]
fn subvolumes_that_share_blocks_are_changed_and_deleted_concurrently() {
    let device = formatted_with(1 << 30, &MkfsOptions::new().node_size(4096));
    let fs = open(&device);
    fs.create_subvolume("/origin").unwrap();
    fill(&fs, "/origin", 600, 2);
    for round in 0..4 {
        for name in ["a", "b", "c", "d"] {
            fs.snapshot("/origin", format!("/{name}"), false).unwrap();
        }
        std::thread::scope(|scope| {
            for name in ["a", "b", "c", "d", "origin"] {
                let fs = &fs;
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(round);
                    for _ in 0..250 {
                        let file = fs.open_file(format!("/{name}/file{}", random.usize(..600))).unwrap();
                        file.write_all_at(&[random.u8(..); 100], random.u64(..5000)).unwrap();
                    }
                    if name != "origin" {
                        fs.delete_subvolume(format!("/{name}")).unwrap();
                    }
                });
            }
            let fs = &fs;
            scope.spawn(move || {
                for _ in 0..20 {
                    fs.clean_subvolumes_step().unwrap();
                    fs.sync().unwrap();
                }
            });
        });
        fs.sync().unwrap();
        assert_clean(&crashed(&device));
        fs.clean_subvolumes().unwrap();
        fs.sync().unwrap();
        assert_clean(&crashed(&device));
    }
}

#[test]
fn deleted_subvolumes_are_cleaned_up_in_the_background() {
    let device = formatted(256 << 20);
    // With the default commit interval, and so with the committer's thread.
    let options = OpenOptions::new().write(true);
    let fs = open_with(&device, &options);
    fs.create_subvolume("/gone").unwrap();
    fill(&fs, "/gone", 50, 3);
    fs.delete_subvolume("/gone").unwrap();
    wait_until_cleaned(&fs);
    close_clean(fs, &device);
    // The next mount cleans up a subvolume that was deleted just before closing.
    let fs = open(&device);
    fs.create_subvolume("/later").unwrap();
    fs.delete_subvolume("/later").unwrap();
    fs.close().unwrap();
    let fs = open_with(&device, &options);
    wait_until_cleaned(&fs);
    close_clean(fs, &device);
}

/// Polls until only the top-level subvolume is left: the committer's thread does not report the end
/// of cleaning.
fn wait_until_cleaned(fs: &FileSystem) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while fs.subvolumes().unwrap().len() > 1 {
        assert!(Instant::now() < deadline, "the deleted subvolume is not cleaned up within a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
}
