//! Memory stays within 110% of the configured caches while one thread reads and writes a file of
//! several times the page cache at random.
//!
//! The test measures the anonymous memory of the process (`RssAnon`). The page cache's limit covers
//! pages and their descriptors; the node cache's covers tree blocks, checksums and delayed
//! references. A fixed part is for the cached extents of the open file and for each thread's
//! buffers. The kernel's page cache of the image does not count.

use papilio::{File, FileSystem, MkfsOptions, OpenOptions};
use std::sync::Mutex;

const MIB: u64 = 1 << 20;
/// Held by the test that measures the memory of the process.
static ALONE: Mutex<()> = Mutex::new(());
const NODES: u64 = 8 * MIB;
/// Bytes of one file's cached extents (at most 65,536 of about 100 bytes), and 2 MiB for each of
/// two threads.
const FIXED: u64 = 10 * MIB;

/// Returns the anonymous memory of the process in bytes.
fn own_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("Linux has this line");
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Reads random pages and compares them with the last write; every `write`th operation writes
/// instead.
fn work(file: &File, written: &mut [u8], random: &mut fastrand::Rng, operations: usize, write: usize) {
    let mut buffer = vec![0; 4096];
    for operation in 1..=operations {
        let page = random.usize(..written.len());
        let at = page as u64 * 4096;
        if operation.is_multiple_of(write) {
            written[page] = random.u8(..);
            file.write_all_at(&vec![written[page]; 4096], at).unwrap();
        } else {
            file.read_at(&mut buffer, at).unwrap();
            assert!(buffer.iter().all(|&byte| byte == written[page]), "page {page}");
        }
    }
}

fn measure(cache: u64, file_bytes: u64, operations: usize) {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("memory.img");
    papilio::mkfs(&image, &MkfsOptions::new().size(file_bytes * 3)).unwrap();
    let mut written = vec![0; (file_bytes / 4096) as usize];
    let before = own_memory();
    let options = OpenOptions::new()
        .write(true)
        .commit_interval(None)
        .cache_bytes(cache)
        .node_cache_bytes(NODES as usize);
    let fs = FileSystem::open_with(&image, &options).unwrap();
    let file = fs.create_file("/file").unwrap();
    for start in (0..file_bytes).step_by(MIB as usize) {
        file.write_all_at(&[0; MIB as usize], start).unwrap();
    }
    fs.sync().unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    let grown = || own_memory().saturating_sub(before);
    let mebibytes = |bytes: u64| bytes as f64 / MIB as f64;
    let sizes = format!("page cache of {} MiB, file of {} MiB", cache / MIB, file_bytes / MIB);

    work(&file, &mut written, &mut random, operations, usize::MAX);
    let (reading, limit) = (grown(), (cache + NODES) * 11 / 10);
    println!("{sizes}, reads: {:.1} MiB; allowed {:.1}", mebibytes(reading), mebibytes(limit));
    assert!(reading <= limit, "{reading} bytes of memory, {limit} allowed");
    // The whole cache is in use.
    assert!(reading > cache * 9 / 10, "{reading}");

    let mut most = 0;
    for round in 0..20 {
        work(&file, &mut written, &mut random, operations / 20, 4);
        if round % 5 == 4 {
            fs.sync().unwrap();
        }
        most = most.max(grown());
    }
    let limit = (cache + NODES) * 11 / 10 + FIXED;
    println!("{sizes}, reads and writes: {:.1} MiB; allowed {:.1}", mebibytes(most), mebibytes(limit));
    assert!(most <= limit, "{most} bytes of memory, {limit} allowed");
}

#[test]
fn caches_stay_within_their_limits() {
    let _alone = ALONE.lock().unwrap();
    measure(64 * MIB, 256 * MIB, 200_000);
}

/// With a file of 1 GiB; the image takes that much disk space.
#[test]
#[ignore = "takes a gigabyte of disk and a while"]
fn large_caches_stay_within_their_limits() {
    measure(256 * MIB, 1024 * MIB, 800_000);
}

/// A subvolume that nobody changes takes a few hundred bytes, not a tree block.
#[test]
fn snapshots_stay_out_of_memory() {
    const SNAPSHOTS: u64 = 3000;
    let _alone = ALONE.lock().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("snapshots.img");
    papilio::mkfs(&image, &MkfsOptions::new().size(1 << 30)).unwrap();
    let options = OpenOptions::new().write(true).commit_interval(None).node_cache_bytes(NODES as usize);
    let fs = FileSystem::open_with(&image, &options).unwrap();
    fs.create_subvolume("/live").unwrap();
    fs.create_dir("/all").unwrap();
    let snapshots = |numbers: std::ops::Range<u64>| {
        for number in numbers {
            fs.create_file(format!("/live/{number}")).unwrap();
            fs.snapshot("/live", format!("/all/{number}"), true).unwrap();
            if number % 50 == 49 {
                fs.sync().unwrap();
            }
        }
    };
    // The caches are full afterwards.
    snapshots(0..1000);
    let before = own_memory();
    snapshots(1000..1000 + SNAPSHOTS);
    let each = own_memory().saturating_sub(before) / SNAPSHOTS;
    println!("{each} bytes for each snapshot");
    assert!(each < 4096, "{each} bytes for each of {SNAPSHOTS} snapshots");
}
