//! Memory: no more than the page cache, the node cache and a tenth of both, while several threads read a file of twice
//! the page cache at random and write a quarter of what they touch.
//!
//! What counts is the process's own memory (`RssAnon`), whatever its allocator makes of what it is asked for. Changed
//! tree blocks, what waits to become some, and checksums are part of the node cache's limit; beside both limits are what
//! is remembered of an open file's extents and of free space, and each thread's buffers. A test program of its own, as the memory of others would count too.

use papilio::{File, FileSystem, MemoryUse, MkfsOptions, OpenOptions};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// Operations of a thread between two looks at the process's memory.
const BETWEEN_LOOKS: usize = 500;

struct Load {
    cache: u64,
    nodes: u64,
    file_bytes: u64,
    threads: u64,
    /// Of each thread.
    operations: usize,
}

/// Bytes of the process's own memory.
fn own_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("Linux tells it");
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// The most that was seen, and what the file system said of itself then.
struct Most {
    before: u64,
    bytes: AtomicU64,
    seen: std::sync::Mutex<MemoryUse>,
}

impl Most {
    fn look(&self, fs: &FileSystem) {
        let now = own_memory().saturating_sub(self.before);
        if now > self.bytes.fetch_max(now, Ordering::Relaxed) {
            *self.seen.lock().unwrap() = fs.memory_use();
        }
    }
}

/// Reads pages at random and writes every fourth of them: the page's number and a byte that others may have changed.
fn work(file: &File, load: &Load, seed: u64, mut look: impl FnMut()) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut buffer = vec![0; PAGE as usize];
    for operation in 0..load.operations {
        let page = random.u64(0..load.file_bytes / PAGE);
        if operation % 4 == 0 {
            buffer.fill(random.u8(..));
            buffer[..8].copy_from_slice(&page.to_le_bytes());
            file.write_at(&buffer, page * PAGE).unwrap();
        } else {
            file.read_at(&mut buffer, page * PAGE).unwrap();
            assert_eq!(buffer[..8], page.to_le_bytes(), "page {page}");
        }
        if operation % BETWEEN_LOOKS == 0 {
            look();
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
        file.write_at(&piece, start).unwrap();
    }
    fs.sync().unwrap();
    let most = Most { before, bytes: AtomicU64::new(0), seen: Default::default() };
    std::thread::scope(|scope| {
        for seed in 0..load.threads {
            let (file, fs, most) = (&file, &fs, &most);
            scope.spawn(move || work(file, load, seed, || most.look(fs)));
        }
    });
    fs.sync().unwrap();
    most.look(&fs);
    let (bytes, limit) = (most.bytes.into_inner(), (load.cache + load.nodes) * 11 / 10);
    let seen = most.seen.into_inner().unwrap();
    println!("{:.1} MiB; allowed {:.1}: {seen:?}", bytes as f64 / MIB as f64, limit as f64 / MIB as f64);
    assert!(bytes <= limit, "{bytes} bytes of memory where {limit} are allowed: {seen:?}");
    // Both were in use, the page cache all of it.
    assert!(bytes > load.cache + load.nodes / 2, "{bytes} bytes only: {seen:?}");
}

#[test]
fn reading_and_writing_takes_no_more_than_the_caches() {
    measure(&Load {
        cache: 128 * MIB,
        nodes: 32 * MIB,
        file_bytes: 256 * MIB,
        threads: 8,
        operations: 30_000,
    });
}

/// As a job of fio's with caches of the size that such jobs have.
#[test]
#[ignore = "takes a gigabyte of disk and a while"]
fn large_caches_too() {
    measure(&Load {
        cache: 256 * MIB,
        nodes: 64 * MIB,
        file_bytes: 512 * MIB,
        threads: 16,
        operations: 80_000,
    });
}
