//! Very many inodes: a directory of a million entries, and ten thousand open files without names.

#[path = "support/in_memory.rs"]
mod in_memory;

use in_memory::{
    close_clean, crashed, formatted, new_file_system, open, open_read_only, open_with, writable,
};
use papilio::{CheckOptions, NewInode, NewKind};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// An allocator that counts the bytes in use, and the most since it was told to begin anew.
struct Counting;

static BYTES: AtomicU64 = AtomicU64::new(0);
static MOST: AtomicU64 = AtomicU64::new(0);

// SAFETY: forwards everything to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let bytes = BYTES.fetch_add(layout.size() as u64, Ordering::Relaxed) + layout.size() as u64;
        MOST.fetch_max(bytes, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Held by each test: the allocator counts for the whole process.
static ONE: Mutex<()> = Mutex::new(());

fn one_test() -> std::sync::MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The listing takes no more memory than the cache of tree blocks. A million entries with
/// `PAPILIO_LONG`, which `make longtest` sets.
#[test]
#[cfg(not(feature = "lock-order"))]
fn a_large_directory_lists_in_little_memory() {
    let _one = one_test();
    let long = std::env::var_os("PAPILIO_LONG").is_some();
    let (count, size) = if long { (1_000_000, 4 << 30) } else { (50_000, 512 << 20) };
    let device = formatted(size);
    let fs = open(&device);
    let directory = fs.create_dir("/d").unwrap();
    for number in 0..count {
        let new = NewInode::new(NewKind::Regular, 0o644);
        directory.create(format!("a file with a name of usual length {number}").as_bytes(), &new).unwrap();
    }
    drop(directory);
    fs.close().unwrap();
    let cache = 4 << 20;
    let options = writable().node_cache_bytes(cache);
    for with_inodes in [false, true] {
        let fs = open_with(&device, &options);
        let directory = fs.inode("/d").unwrap();
        let before = BYTES.load(Ordering::Relaxed);
        MOST.store(before, Ordering::Relaxed);
        let entries = directory.read_dir().unwrap();
        let entries = if with_inodes { entries.with_inodes() } else { entries };
        let (mut seen, mut last) = (0, 0);
        for entry in entries {
            let entry = entry.unwrap();
            assert_eq!(entry.file_name(), format!("a file with a name of usual length {seen}").as_bytes());
            assert!(entry.index() > last);
            (seen, last) = (seen + 1, entry.index());
            if with_inodes {
                assert_eq!(entry.inode().unwrap().metadata().nlink(), 1);
            }
        }
        assert_eq!(seen, count);
        let most = MOST.load(Ordering::Relaxed) - before;
        assert!(most < 3 * cache as u64, "{most} bytes, with inodes: {with_inodes}");
        // It goes on from any index.
        let rest = directory.read_dir().unwrap().starting_at(last - 999).count();
        assert_eq!(rest, 1000);
        drop(directory);
        fs.close().unwrap();
    }
    let report = open_read_only(&device).check(&CheckOptions::new()).unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
}

/// After a crash, the next open for writing deletes the files that had lost their names, without
/// any change by the caller.
#[test]
fn open_files_without_names_are_deleted_after_a_crash() {
    const FILES: usize = 10_000;
    let _one = one_test();
    let (device, fs) = new_file_system(512 << 20);
    let root = fs.inode("/").unwrap();
    fs.sync().unwrap();
    let before = fs.usage().unwrap().statfs().free;
    let new = NewInode::new(NewKind::Regular, 0o644);
    let mut files = Vec::new();
    for number in 0..FILES {
        let file = if number % 2 == 0 {
            let name = format!("{number}");
            let file = root.create(name.as_bytes(), &new).unwrap().open().unwrap();
            file.write_all_at(&[7; 6000], 0).unwrap();
            root.remove_file(name.as_bytes()).unwrap();
            file
        } else {
            let file = root.create_unnamed(&new).unwrap();
            file.write_all_at(&[8; 100], 0).unwrap();
            file
        };
        files.push(file);
    }
    fs.sync().unwrap();
    let inodes: Vec<_> = files.iter().map(|file| (file.inode().tree(), file.inode().number())).collect();
    let copy = crashed(&device);
    assert_eq!(files[0].read_all().unwrap(), [7; 6000]);
    assert_eq!(files[1].read_all().unwrap(), [8; 100]);
    drop(files);
    drop(root);
    close_clean(fs, &device);

    // With a background thread, which deletes them.
    let fs = open_with(&copy, &writable().commit_interval(Some(Duration::from_secs(600))));
    let start = Instant::now();
    while inodes.iter().any(|(tree, number)| fs.inode_at(*tree, *number).is_ok()) {
        assert!(start.elapsed() < Duration::from_secs(60), "files without names are left");
        std::thread::sleep(Duration::from_millis(10));
    }
    fs.sync().unwrap();
    fs.sync().unwrap();
    let after = fs.usage().unwrap().statfs().free;
    assert!(before.abs_diff(after) < 1 << 20, "{before} bytes were free before, {after} are after");
    close_clean(fs, &copy);
}
