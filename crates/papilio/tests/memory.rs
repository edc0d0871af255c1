//! Memory: no more than the configured caches and a tenth, while a file of several times the page cache is read and
//! written at random through it.
//!
//! What counts is the process's own memory (`RssAnon`): pages and what describes them (the page cache's limit), tree
//! blocks, checksums and changed references (the node cache's), and a fixed part for what is remembered of one open
//! file's extents and for each thread's buffers. The kernel's pages of the image do not: they are not the process's.

use papilio::{File, FileSystem, MkfsOptions, OpenOptions};

const MIB: u64 = 1 << 20;
const NODES: u64 = 8 * MIB;
/// One file's extents in memory (65,536 at most, some 100 bytes each), and 2 MiB for each of two threads.
const FIXED: u64 = 10 * MIB;

/// Bytes of the process's own memory.
fn own_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("Linux tells it");
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Reads pages at random, writes every `write`th, and holds each against the last that was written.
fn work(file: &File, written: &mut [u8], random: &mut fastrand::Rng, operations: usize, write: usize) {
    let mut buffer = vec![0; 4096];
    for operation in 1..=operations {
        let page = random.usize(..written.len());
        let at = page as u64 * 4096;
        if operation.is_multiple_of(write) {
            written[page] = random.u8(..);
            file.write_at(&vec![written[page]; 4096], at).unwrap();
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
        file.write_at(&[0; MIB as usize], start).unwrap();
    }
    fs.sync().unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    let grown = || own_memory().saturating_sub(before);
    let mebibytes = |bytes: u64| bytes as f64 / MIB as f64;
    let told = format!("page cache of {} MiB, file of {} MiB", cache / MIB, file_bytes / MIB);

    work(&file, &mut written, &mut random, operations, usize::MAX);
    let (reading, limit) = (grown(), (cache + NODES) * 11 / 10);
    println!("{told}, reads: {:.1} MiB; allowed {:.1}", mebibytes(reading), mebibytes(limit));
    assert!(reading <= limit, "{reading} bytes of memory where {limit} are allowed");
    // The cache was in use, all of it.
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
    println!("{told}, reads and writes: {:.1} MiB; allowed {:.1}", mebibytes(most), mebibytes(limit));
    assert!(most <= limit, "{most} bytes of memory where {limit} are allowed");
}

#[test]
fn a_cache_is_no_larger_than_configured() {
    measure(64 * MIB, 256 * MIB, 200_000);
}

/// With a file of a gigabyte; needs that much room for the image.
#[test]
#[ignore = "takes a gigabyte of disk and a while"]
fn a_large_cache_is_no_larger_than_configured() {
    measure(256 * MIB, 1024 * MIB, 800_000);
}
