//! Memory stays within 110% of the page cache and the node cache while several threads access a
//! file of twice the page cache at random. A quarter of their operations are writes.
//!
//! The test measures the anonymous memory of the process (`RssAnon`), allocator overhead included.
//! The node cache's limit covers dirty tree blocks, delayed changes and checksums. Outside of both
//! limits are cached extents of open files, free space, and each thread's buffers. This is a test
//! program of its own: the memory of other tests would count, too.

use papilio::{File, FileSystem, MemoryUse, MkfsOptions, OpenOptions};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// Operations of a thread between two measurements of memory.
const MEASURE_EVERY: usize = 500;

struct Load {
    cache: u64,
    nodes: u64,
    file_bytes: u64,
    threads: u64,
    /// Operations of each thread.
    operations: usize,
}

/// Returns the anonymous memory of the process in bytes.
fn own_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("Linux has this line");
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// The largest measurement, and the file system's own accounting at that time.
struct Most {
    /// Bytes before the file system was opened.
    before: u64,
    bytes: AtomicU64,
    accounted: std::sync::Mutex<MemoryUse>,
}

impl Most {
    fn measure(&self, fs: &FileSystem) {
        let now = own_memory().saturating_sub(self.before);
        if now > self.bytes.fetch_max(now, Ordering::Relaxed) {
            *self.accounted.lock().unwrap() = fs.memory_use();
        }
    }
}

/// Reads random pages; every fourth operation writes instead. A page starts with its number.
fn work(file: &File, load: &Load, seed: u64, mut measure: impl FnMut()) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut buffer = vec![0; PAGE as usize];
    for operation in 0..load.operations {
        let page = random.u64(0..load.file_bytes / PAGE);
        if operation % 4 == 0 {
            buffer.fill(random.u8(..));
            buffer[..8].copy_from_slice(&page.to_le_bytes());
            file.write_all_at(&buffer, page * PAGE).unwrap();
        } else {
            file.read_at(&mut buffer, page * PAGE).unwrap();
            assert_eq!(buffer[..8], page.to_le_bytes(), "page {page}");
        }
        if operation % MEASURE_EVERY == 0 {
            measure();
        }
    }
}

fn measure(load: &Load) {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("memory.img");
    papilio::mkfs(&image, &MkfsOptions::new().size(load.file_bytes * 5 / 2)).unwrap();
    let before = own_memory();
    let options = OpenOptions::new()
        .write(true)
        .commit_interval(Some(Duration::from_secs(3600)))
        .cache_bytes(load.cache)
        .node_cache_bytes(load.nodes as usize);
    let fs = FileSystem::open_with(&image, &options).unwrap();
    let file = fs.create_file("/file").unwrap();
    let mut piece = vec![0; MIB as usize];
    for start in (0..load.file_bytes).step_by(MIB as usize) {
        for (number, page) in piece.chunks_exact_mut(PAGE as usize).enumerate() {
            page[..8].copy_from_slice(&(start / PAGE + number as u64).to_le_bytes());
        }
        file.write_all_at(&piece, start).unwrap();
    }
    fs.sync().unwrap();
    let most = Most { before, bytes: AtomicU64::new(0), accounted: Default::default() };
    std::thread::scope(|scope| {
        for seed in 0..load.threads {
            let (file, fs, most) = (&file, &fs, &most);
            scope.spawn(move || work(file, load, seed, || most.measure(fs)));
        }
    });
    fs.sync().unwrap();
    most.measure(&fs);
    let (bytes, limit) = (most.bytes.into_inner(), (load.cache + load.nodes) * 11 / 10);
    let accounted = most.accounted.into_inner().unwrap();
    println!("{:.1} MiB; allowed {:.1}: {accounted:?}", bytes as f64 / MIB as f64, limit as f64 / MIB as f64);
    assert!(bytes <= limit, "{bytes} bytes of memory, {limit} allowed: {accounted:?}");
    // The whole page cache is in use, and at least half of the node cache.
    assert!(bytes > load.cache + load.nodes / 2, "only {bytes} bytes: {accounted:?}");
}

#[test]
fn mixed_load_stays_within_the_caches_limits() {
    measure(&Load {
        cache: 128 * MIB,
        nodes: 32 * MIB,
        file_bytes: 256 * MIB,
        threads: 8,
        operations: 30_000,
    });
}

/// With the cache sizes of fio jobs.
#[test]
#[ignore = "takes a gigabyte of disk and a while"]
fn mixed_load_stays_within_large_caches_limits() {
    measure(&Load {
        cache: 256 * MIB,
        nodes: 64 * MIB,
        file_bytes: 512 * MIB,
        threads: 16,
        operations: 80_000,
    });
}
