//! Deleted subvolumes are taken apart piece by piece, and a crash between two pieces costs nothing.

use crate::{assert_clean, crashed, fill, made, open};
use papilio::MkfsOptions;
use std::sync::Arc;

/// Deletes `path` and cleans up; at each piece also goes on from what a crash would have left there.
fn clean_with_crashes(device: &Arc<papilio_device::MemoryDevice>, path: &str, least: usize) {
    let fs = open(device);
    fs.delete_subvolume(path).unwrap();
    fs.sync().unwrap();
    assert_clean(&crashed(device));
    let mut pieces = 0;
    while fs.clean_subvolumes_step().unwrap() {
        fs.sync().unwrap();
        let left = crashed(device);
        assert_clean(&left);
        if pieces % 3 == 1 {
            let resumed = open(&left);
            resumed.clean_subvolumes().unwrap();
            resumed.close().unwrap();
            assert_clean(&left);
        }
        pieces += 1;
    }
    assert!(pieces >= least, "{path} went in {pieces} pieces");
    fs.close().unwrap();
    assert_clean(device);
}

#[test]
fn a_crash_between_pieces_is_gone_on_from() {
    let device = made(1 << 30, &MkfsOptions::new().node_size(4096));
    let fs = open(&device);
    fs.create_subvolume("/a").unwrap();
    fill(&fs, "/a", 2500, 1);
    // Shared in parts: a snapshot, changes on both sides, a snapshot of the snapshot.
    fs.snapshot("/a", "/b", false).unwrap();
    for number in (0..2500).step_by(5) {
        fs.remove_file(format!("/a/file{number}")).unwrap();
        fs.open_file(format!("/b/file{}", number + 1)).unwrap().write_at(b"changed", 5).unwrap();
    }
    fs.snapshot("/b", "/c", true).unwrap();
    fs.close().unwrap();
    assert_clean(&device);
    let expected: Vec<_> = {
        let fs = open(&device);
        (1..2500).filter(|n| n % 5 != 0).map(|n| fs.read(format!("/c/file{n}")).unwrap()).collect()
    };
    // The origin first, all of whose shared blocks have to be converted.
    clean_with_crashes(&device, "/a", 2);
    clean_with_crashes(&device, "/b", 1);
    let fs = open(&device);
    let found: Vec<_> =
        (1..2500).filter(|n| n % 5 != 0).map(|n| fs.read(format!("/c/file{n}")).unwrap()).collect();
    assert!(found == expected, "what is left is as it was");
    drop(fs);
    let before = open(&device).usage().unwrap().used();
    clean_with_crashes(&device, "/c", 4);
    let fs = open(&device);
    assert_eq!(fs.subvolumes().unwrap().len(), 1);
    assert!(fs.usage().unwrap().used() < before / 4, "space comes back");
}

#[test]
fn subvolumes_that_share_blocks_change_and_go_at_the_same_time() {
    let device = made(1 << 30, &MkfsOptions::new().node_size(4096));
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
                        file.write_at(&[random.u8(..); 100], random.u64(..5000)).unwrap();
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
fn the_background_cleans_up() {
    let device = made(256 << 20, &MkfsOptions::new());
    let options = papilio::OpenOptions::new().write(true);
    let opened = || {
        papilio::FileSystem::from_devices(vec![device.clone() as Arc<dyn papilio_device::Device>], &options)
            .unwrap()
    };
    let fs = opened();
    fs.create_subvolume("/gone").unwrap();
    fill(&fs, "/gone", 50, 3);
    fs.delete_subvolume("/gone").unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while fs.subvolumes().unwrap().len() > 1 {
        assert!(std::time::Instant::now() < deadline, "nobody cleans up");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    fs.close().unwrap();
    assert_clean(&device);
    // What was deleted just before closing is left to the next who opens.
    let fs = open(&device);
    fs.create_subvolume("/later").unwrap();
    fs.delete_subvolume("/later").unwrap();
    fs.close().unwrap();
    let fs = opened();
    while fs.subvolumes().unwrap().len() > 1 {
        assert!(std::time::Instant::now() < deadline, "nobody cleans up");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    fs.close().unwrap();
    assert_clean(&device);
}
