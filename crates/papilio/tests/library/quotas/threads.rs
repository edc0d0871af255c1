//! Threads that change subvolumes while others take snapshots, delete them and rescan.

use super::judge::assert_exact;
use papilio::{FileSystem, MkfsOptions, OpenOptions, QgroupId};
use papilio_oracle::Scratch;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Threads that write, each in a subvolume of its own.
const WRITERS: u64 = 4;
/// Changes of each of them.
const CHANGES: u64 = 400;

fn write(fs: &FileSystem, writer: u64) {
    let mut random = fastrand::Rng::with_seed(writer);
    for _ in 0..CHANGES {
        let path = format!("/sub{writer}/file{}", random.u64(..50));
        match random.u32(..10) {
            0..6 => {
                let file = fs.open_file(&path).or_else(|_| fs.create_file(&path)).unwrap();
                let data = vec![writer as u8; random.usize(1..60_000)];
                file.write_all_at(&data, random.u64(..20_000)).unwrap();
            }
            6 => {
                // Data that two writers share.
                let source = format!("/sub{}/file{}", (writer + 1) % WRITERS, random.u64(..50));
                let file = fs.open_file(&path).or_else(|_| fs.create_file(&path)).unwrap();
                // Its owner may remove it meanwhile.
                if let Ok(source) = fs.open_file(&source)
                    && let Ok(metadata) = source.metadata()
                {
                    let length = metadata.size() / 4096 * 4096;
                    if length > 0 {
                        let _ = file.clone_range(&source, 0, length, 0);
                    }
                }
            }
            _ => drop(fs.remove_file(&path)),
        }
    }
}

fn take_snapshots(fs: &FileSystem, done: &AtomicBool) {
    let mut number = 0;
    while !done.load(Ordering::Relaxed) {
        number += 1;
        let path = format!("/snapshot{number}");
        fs.snapshot(format!("/sub{}", number % WRITERS), &path, false).unwrap();
        fs.write(format!("{path}/own"), [1; 9000]).unwrap();
        if number > 3 {
            fs.delete_subvolume(format!("/snapshot{}", number - 3)).unwrap();
        }
        fs.clean_subvolumes_step().unwrap();
    }
}

#[test]
fn threads_leave_exact_numbers() {
    super::warnings::print();
    let scratch = Scratch::new(2 << 30).unwrap();
    for cache in [0, 32 << 20] {
        let image = scratch.image("threads", 1 << 30).unwrap();
        papilio::mkfs(&image, &MkfsOptions::new().node_size(4096).force(true)).unwrap();
        let options = OpenOptions::new()
            .write(true)
            .cache_bytes(cache)
            .commit_interval(Some(Duration::from_millis(30)));
        let fs = FileSystem::open_with(&image, &options).unwrap();
        fs.enable_quotas().unwrap();
        for writer in 0..WRITERS {
            fs.create_subvolume(format!("/sub{writer}")).unwrap();
        }
        // The background thread counts beside the writers.
        fs.start_quota_rescan().unwrap();
        let id = QgroupId(fs.inode("/sub0").unwrap().tree().0);
        fs.limit_qgroup(id, Some(900 << 20), false).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let fs = &fs;
                    scope.spawn(move || write(fs, writer))
                })
                .collect();
            let snapshots = scope.spawn(|| take_snapshots(&fs, &done));
            let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            done.store(true, Ordering::Relaxed);
            snapshots.join().unwrap();
            ended.into_iter().for_each(|writer| writer.unwrap());
        });
        fs.clean_subvolumes().unwrap();
        while fs.rescan_quotas_step().unwrap().is_some() {}
        fs.close().unwrap();
        assert_exact(&scratch, &image, "threads");
        std::fs::remove_file(image).unwrap();
    }
}
