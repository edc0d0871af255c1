//! The cost of one operation on metadata, in time and in allocations, on a file system in memory.
//!
//! `cargo bench -p papilio --bench metadata -- [FILES]` prints a line for each operation. Files are
//! in directories of a thousand.

use papilio::{
    Entries, FileSystem, Inode, KeptInode, MkfsOptions, NewInode, NewKind, OpenOptions, SetAttributes,
    SetTime, Timespec,
};
use papilio_device::{Device, MemoryDevice};
use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const IN_DIRECTORY: usize = 1000;

/// An allocator that counts its calls, and the bytes in use.
struct Counting;

static CALLS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

// SAFETY: forwards everything to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(layout.size() as u64, Ordering::Relaxed);
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

/// Runs `run`, which makes `count` operations, and prints their cost.
fn measure<R>(what: &str, count: usize, run: impl FnOnce() -> R) -> R {
    let (calls, bytes) = (CALLS.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed));
    let start = Instant::now();
    let result = run();
    let micros = start.elapsed().as_secs_f64() * 1e6 / count as f64;
    let calls = (CALLS.load(Ordering::Relaxed) - calls) as f64 / count as f64;
    let bytes = (BYTES.load(Ordering::Relaxed) as f64 - bytes as f64) / count as f64;
    println!("{what:40} {micros:8.2} us {calls:8.2} allocations {bytes:8.0} bytes kept");
    result
}

fn directories(fs: &FileSystem) -> Vec<Inode> {
    let entries: Entries = fs.read_dir("/").unwrap();
    entries.map(|entry| entry.unwrap().inode().unwrap()).collect()
}

fn list(fs: &FileSystem) -> Vec<Inode> {
    let mut files = Vec::new();
    for directory in directories(fs) {
        for entry in directory.read_dir().unwrap() {
            files.push(entry.unwrap().inode().unwrap());
        }
    }
    files
}

fn main() {
    let count = std::env::args().filter_map(|argument| argument.parse().ok()).next().unwrap_or(200_000);
    let device = Arc::new(MemoryDevice::new(4 << 30));
    papilio::mkfs_device(&(device.clone() as Arc<dyn Device>), &MkfsOptions::new()).unwrap();
    let open = || {
        let options = OpenOptions::new().write(true);
        FileSystem::from_devices(vec![device.clone() as Arc<dyn Device>], &options).unwrap()
    };
    let fs = open();
    measure("create", count, || create(&fs, count));
    fs.close().unwrap();
    let fs = open();
    list_in_ways(&fs, count);
    look_up(&fs, count);
    let files = measure("list into inodes", count, || list(&fs));
    use_files(&files);
    measure("unlink", count, || {
        for directory in directories(&fs) {
            for file in 0..IN_DIRECTORY {
                directory.remove_file(format!("file {file}").as_bytes()).unwrap();
            }
        }
    });
    drop(files);
    fs.close().unwrap();
}

fn create(fs: &FileSystem, count: usize) {
    let root = fs.inode("/").unwrap();
    let new = NewInode::new(NewKind::Regular, 0o644);
    for number in 0..count.div_ceil(IN_DIRECTORY) {
        let name = format!("{number}");
        let directory = root.create(name.as_bytes(), &NewInode::new(NewKind::Directory, 0o755)).unwrap();
        for file in 0..IN_DIRECTORY.min(count - number * IN_DIRECTORY) {
            directory.create(format!("file {file}").as_bytes(), &new).unwrap();
        }
    }
}

fn list_in_ways(fs: &FileSystem, count: usize) {
    measure("list with attributes, from the device", count, || black_box(list(fs).len()));
    measure("list names only", count, || {
        for directory in directories(fs) {
            black_box(directory.read_dir().unwrap().count());
        }
    });
    measure("list with attributes, cached", count, || {
        for directory in directories(fs) {
            for entry in directory.read_dir().unwrap() {
                black_box(entry.unwrap().inode().unwrap().metadata().size());
            }
        }
    });
    measure("list with inodes read together", count, || {
        for directory in directories(fs) {
            for entry in directory.read_dir().unwrap().with_inodes() {
                black_box(entry.unwrap().inode().unwrap().metadata().size());
            }
        }
    });
    measure("the same, from anew every 24 entries", count, || {
        for directory in directories(fs) {
            let mut at = 0;
            loop {
                let entries = directory.read_dir().unwrap().starting_at(at).with_inodes();
                let before = at;
                for entry in entries.take(24) {
                    let entry = entry.unwrap();
                    at = entry.index() + 1;
                    black_box(entry.inode().unwrap().metadata().size());
                }
                if at == before {
                    break;
                }
            }
        }
    });
}

fn look_up(fs: &FileSystem, count: usize) {
    let kept: Vec<KeptInode> = measure("list and keep", count, || {
        let mut kept = Vec::with_capacity(count);
        for directory in directories(fs) {
            for entry in directory.read_dir().unwrap() {
                kept.push(entry.unwrap().inode().unwrap().keep());
            }
        }
        kept
    });
    measure("inode_at", count, || {
        for one in &kept {
            black_box(fs.inode_at(one.tree(), one.number()).unwrap());
        }
    });
    measure("lookup", count, || {
        for directory in directories(fs) {
            for file in 0..IN_DIRECTORY {
                black_box(directory.lookup(format!("file {file}").as_bytes()).unwrap());
            }
        }
    });
    measure("lookup of an absent name", count, || {
        for directory in directories(fs) {
            for file in 0..IN_DIRECTORY {
                assert!(directory.lookup(format!("absent {file}").as_bytes()).unwrap().is_none());
            }
        }
    });
    measure("writable_bytes", count, || (0..count).for_each(|_| assert!(black_box(fs.writable_bytes()) > 0)));
}

fn use_files(files: &[Inode]) {
    let count = files.len();
    measure("absent xattr", count, || {
        for file in files {
            assert!(file.xattr(b"security.capability").unwrap().is_none());
        }
    });
    measure("xattrs", count, || files.iter().for_each(|file| assert!(file.xattrs().unwrap().is_empty())));
    measure("open and close", count, || files.iter().for_each(|file| drop(file.open().unwrap())));
    let opened: Vec<_> = measure("open", count, || files.iter().map(|file| file.open().unwrap()).collect());
    measure("size of an open file", count, || {
        opened.iter().for_each(|file| assert_eq!(file.size().unwrap(), 0));
    });
    drop(opened);
    let time = SetTime::At(Timespec { seconds: 1, nanoseconds: 2 });
    measure("set_attributes", count, || {
        let set = SetAttributes { mtime: Some(time), ..SetAttributes::default() };
        files.iter().for_each(|file| file.set_attributes(&set).unwrap());
    });
    measure("set_xattr", count, || {
        let how = papilio::XattrSet::default();
        files.iter().for_each(|file| file.set_xattr(b"user.a", b"value", how).unwrap());
    });
}
