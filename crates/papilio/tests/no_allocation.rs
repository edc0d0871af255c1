//! Reads and overwrites in a steady state make no heap allocation: direct and cached ones, hits,
//! misses and evictions, for files with one extent and with many.

// The lock-order checker allocates.
#![cfg(not(feature = "lock-order"))]

use papilio::{File, FileSystem, InodeFlags, IoOperation, IoQueue, IoRequest, MkfsOptions, OpenOptions};
use papilio_device::{Device, MemoryDevice, ShuffleDevice};
use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// An allocator that counts the allocations of threads that ask for it.
struct Counting;

thread_local! {
    /// The number of allocations, while this thread counts them.
    static COUNT: Cell<Option<u64>> = const { Cell::new(None) };
    /// The call stack of the first one.
    static FIRST: RefCell<Option<Backtrace>> = const { RefCell::new(None) };
}

fn count_one() {
    // Not counted: allocations while a thread starts or ends, and those of the backtrace itself.
    let Ok(Some(before)) = COUNT.try_with(|count| count.take()) else { return };
    if before == 0 {
        FIRST.with_borrow_mut(|first| *first = Some(Backtrace::force_capture()));
    }
    COUNT.set(Some(before + 1));
}

// SAFETY: forwards everything to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_one();
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count_one();
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Calls `run`, and fails if this thread allocates meanwhile.
fn without_allocation<R>(what: &str, run: impl FnOnce() -> R) -> R {
    COUNT.set(Some(0));
    let result = run();
    let count = COUNT.take().expect("the counter was set");
    let first = FIRST.take();
    assert_eq!(
        count,
        0,
        "{what} allocated {count} times, first here:\n{}",
        first.expect("the first allocation has a backtrace")
    );
    result
}

const SECTOR: u64 = 4096;
/// Bytes of a file.
const FILE: u64 = 24 << 20;
const ROUNDS: usize = 4_000;

struct Place {
    _folder: tempfile::TempDir,
    fs: FileSystem,
}

impl Place {
    fn new(cache_bytes: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("steady.img");
        papilio::mkfs(&image, &MkfsOptions::new().size(256 << 20)).unwrap();
        let options = OpenOptions::new().write(true).commit_interval(None).cache_bytes(cache_bytes);
        Self { fs: FileSystem::open_with(&image, &options).unwrap(), _folder: folder }
    }

    /// Makes a file with a pattern for each sector, written `step` bytes at a time.
    fn file(&self, path: &str, step: u64) -> File {
        let mut file = self.fs.create_file(path).unwrap();
        file.set_direct(true);
        for start in (0..FILE).step_by(step as usize) {
            let bytes: Vec<u8> = (start / SECTOR..(start + step) / SECTOR).flat_map(sector).collect();
            file.write_all_at(&bytes, start).unwrap();
        }
        self.fs.sync().unwrap();
        file
    }
}

/// Returns the content of sector `number`.
fn sector(number: u64) -> [u8; SECTOR as usize] {
    [(number * 7 + 1) as u8; SECTOR as usize]
}

fn read_at_random(file: &File, buffer: &mut [u8], random: &mut fastrand::Rng, rounds: usize) {
    let length = buffer.len() as u64;
    for _ in 0..rounds {
        let at = random.u64(0..=(FILE - length) / SECTOR) * SECTOR;
        assert_eq!(file.read_at(buffer, at).unwrap(), buffer.len());
        for (index, bytes) in buffer.chunks(SECTOR as usize).enumerate() {
            assert!(bytes == sector(at / SECTOR + index as u64), "{at}: sector {index}");
        }
    }
}

#[test]
fn direct_reads() {
    let place = Place::new(0);
    let mut random = fastrand::Rng::with_seed(1);
    for (path, step) in [("/whole", FILE), ("/pieces", 12 * SECTOR)] {
        let file = place.file(path, step);
        for length in [4096, 1 << 20] {
            let mut buffer = vec![0; length];
            read_at_random(&file, &mut buffer, &mut random, 4_000);
            without_allocation(&format!("direct reads of {length} of {path}"), || {
                read_at_random(&file, &mut buffer, &mut random, ROUNDS);
            });
        }
        // Neither the offset nor the length is a multiple of the sector size.
        let mut buffer = vec![0; 10_000];
        file.read_at(&mut buffer, 100).unwrap();
        without_allocation(&format!("unaligned reads of {path}"), || {
            for _ in 0..ROUNDS {
                let at = random.u64(0..FILE - 10_000);
                assert_eq!(file.read_at(&mut buffer, at).unwrap(), buffer.len());
                assert_eq!(buffer[5000], sector((at + 5000) / SECTOR)[0]);
            }
        });
    }
}

#[test]
fn cached_reads() {
    // The first cache holds the whole file. With the second, most reads miss and evict a page.
    for (cache_bytes, what) in [(64 << 20, "hits"), (8 << 20, "misses")] {
        let place = Place::new(cache_bytes);
        place.file("/file", 4 << 20);
        let file = place.fs.open_file("/file").unwrap();
        let mut random = fastrand::Rng::with_seed(2);
        let mut buffer = vec![0; 4096];
        read_at_random(&file, &mut buffer, &mut random, 60_000);
        without_allocation(&format!("cached reads, {what}"), || {
            read_at_random(&file, &mut buffer, &mut random, ROUNDS);
        });
        // In order, with readahead.
        let in_order = |buffer: &mut [u8]| {
            for at in (0..FILE).step_by(buffer.len()) {
                file.read_at(buffer, at).unwrap();
                assert_eq!(buffer[0], sector(at / SECTOR)[0]);
            }
        };
        for length in [4096, 128 << 10] {
            let mut buffer = vec![0; length];
            (0..3).for_each(|_| in_order(&mut buffer));
            without_allocation(&format!("cached reads of {length} in order, {what}"), || {
                (0..3).for_each(|_| in_order(&mut buffer));
            });
        }
    }
}

#[test]
fn overwrites_in_place() {
    let place = Place::new(0);
    let file = place.fs.create_file("/nocow").unwrap();
    file.inode().set_flags(InodeFlags::NODATACOW).unwrap();
    drop(file);
    let mut file = place.fs.open_file("/nocow").unwrap();
    file.set_direct(true);
    for start in (0..FILE).step_by(4 << 20) {
        file.write_all_at(&vec![1; 4 << 20], start).unwrap();
    }
    place.fs.sync().unwrap();
    let mut random = fastrand::Rng::with_seed(3);
    for length in [4096, 1 << 20] {
        let bytes = vec![random.u8(..); length as usize];
        let mut overwrite = |rounds| {
            for _ in 0..rounds {
                let at = random.u64(0..=(FILE - length) / SECTOR) * SECTOR;
                file.write_all_at(&bytes, at).unwrap();
            }
        };
        overwrite(4_000);
        without_allocation(&format!("overwrites of {length} in place"), || overwrite(ROUNDS));
    }
}

/// Data with checksums is overwritten in place while it is in an ordered extent that no tree refers
/// to.
#[test]
fn overwrites_of_ordered_extents() {
    let place = Place::new(0);
    let file = place.file("/summed", 4 << 20);
    let mut random = fastrand::Rng::with_seed(4);
    let bytes = [7; SECTOR as usize];
    let mut overwrite = |rounds| {
        for _ in 0..rounds {
            file.write_all_at(&bytes, random.u64(0..256) * SECTOR).unwrap();
        }
    };
    overwrite(4_000);
    without_allocation("overwrites of ordered extents", || overwrite(ROUNDS));
}

/// Reads and writes in flight, on a device that answers later.
#[test]
fn requests_in_flight() {
    const DEPTH: usize = 32;
    let memory: Arc<dyn Device> = Arc::new(MemoryDevice::new(256 << 20));
    papilio::mkfs_device(&memory, &MkfsOptions::new()).unwrap();
    let device: Arc<dyn Device> = Arc::new(ShuffleDevice::new(memory, 5));
    let options = OpenOptions::new().write(true).commit_interval(None);
    let fs = FileSystem::from_devices(vec![device], &options).unwrap();
    for (path, writes) in [("/checksummed", false), ("/nocow", true)] {
        let file = fs.create_file(path).unwrap();
        if writes {
            file.inode().set_flags(InodeFlags::NODATACOW).unwrap();
        }
        drop(file);
        let file = fs.open_file(path).unwrap();
        for start in (0..FILE).step_by(4 << 20) {
            let bytes: Vec<u8> = (start / SECTOR..start / SECTOR + 1024).flat_map(sector).collect();
            file.write_all_at(&bytes, start).unwrap();
        }
        fs.sync().unwrap();
        let file = Arc::new(file);
        let mut queue = IoQueue::new(DEPTH);
        let mut buffers: Vec<Vec<u8>> = (0..DEPTH).map(|_| vec![0; SECTOR as usize]).collect();
        let mut done = Vec::with_capacity(DEPTH);
        let mut random = fastrand::Rng::with_seed(7);
        let mut run = |rounds: usize| {
            for _ in 0..rounds {
                while let Some(mut buffer) = buffers.pop() {
                    let number = random.u64(0..FILE / SECTOR);
                    let offset = number * SECTOR;
                    let operation = if writes && random.bool() {
                        buffer.copy_from_slice(&sector(number));
                        IoOperation::Write { buffer, offset }
                    } else {
                        IoOperation::Read { buffer, offset }
                    };
                    let request = IoRequest { file: Arc::clone(&file), operation, token: number };
                    queue.submit(request).expect("the queue has room");
                }
                queue.wait(1, &mut done);
                for completion in done.drain(..) {
                    assert_eq!(completion.result.unwrap(), SECTOR as usize);
                    let buffer = completion.buffer.expect("it comes back");
                    assert!(buffer == sector(completion.token));
                    buffers.push(buffer);
                }
            }
        };
        run(4_000);
        without_allocation(&format!("requests in flight on {path}"), || run(ROUNDS));
    }
}
