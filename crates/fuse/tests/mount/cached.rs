//! Writes that wait in the kernel's cache: room for them, and direct writes beside it.

use crate::server::{Mount, NEEDS, check, make_image};
use io_uring::{IoUring, opcode, types};
use papilio_oracle::{Scratch, require};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A page on a page boundary, for direct I/O.
#[repr(align(4096))]
struct Page([u8; 4096]);

/// Pages of the file that is read while it is written, and its length.
const PAGES: u64 = 16;
const LENGTH: usize = PAGES as usize * 4096;

/// Writes in a loop, as `dd` does, and returns the number of bytes that were accepted.
fn fill(mount: &Mount, name: &str, piece: &[u8], most: u64) -> u64 {
    let mut file = File::create(mount.path().join(name)).unwrap();
    let mut accepted = 0;
    loop {
        match file.write(piece) {
            Ok(written) => accepted += written as u64,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
                return accepted;
            }
        }
        assert!(accepted <= most, "{accepted} bytes were accepted on a file system of {most}");
    }
}

#[test]
fn writer_that_fills_the_disk_hears_so() {
    let Some(_) = require(NEEDS) else { return };
    let size = 400 << 20;
    let scratch = Scratch::new(1 << 30).unwrap();
    for piece in [1 << 20, 5000] {
        let image = make_image(&scratch, size);
        let mount = Mount::new(&scratch, &image, "");
        let accepted = fill(&mount, "f", &vec![7; piece], size);
        assert!(accepted > size / 2, "{accepted}");
        // Space comes back, and with it the speed of the cache.
        std::fs::remove_file(mount.path().join("f")).unwrap();
        let write = || {
            let mut small = File::create(mount.path().join("g"))?;
            small.write_all(&[8; 100_000])?;
            small.sync_all()
        };
        // The kernel tells the server of the last close only after that has returned. The removed
        // file has its space until then.
        let until = Instant::now() + Duration::from_secs(10);
        while let Err(error) = write() {
            assert!(error.raw_os_error() == Some(28) && Instant::now() < until, "{error}");
            std::thread::sleep(Duration::from_millis(5));
        }
        mount.unmount();
        check(&image);
        std::fs::remove_file(&image).unwrap();
    }
}

#[test]
fn several_writers_that_fill_the_disk_hear_so() {
    let Some(_) = require(NEEDS) else { return };
    let size = 400 << 20;
    let scratch = Scratch::new(1 << 30).unwrap();
    let image = make_image(&scratch, size);
    let mount = Mount::new(&scratch, &image, "");
    let accepted: u64 = std::thread::scope(|scope| {
        let mount = &mount;
        let writers: Vec<_> = (0..4_u8)
            .map(|number| {
                scope.spawn(move || fill(mount, &format!("f{number}"), &vec![number; 70_000], size))
            })
            .collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).sum()
    });
    assert!(accepted > size / 2 && accepted < size, "{accepted}");
    mount.unmount();
    check(&image);
}

/// Pages of a file that are mapped for reading.
struct Mapping(*mut u8);

// SAFETY: the mapping is only read, and belongs to no thread.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn of(file: &File) -> Self {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        // SAFETY: this maps new memory at an address that the system chooses.
        let address = unsafe {
            mmap(std::ptr::null_mut(), LENGTH, ProtFlags::READ, MapFlags::SHARED, file, 0).unwrap()
        };
        Self(address.cast())
    }

    /// Returns the first and the last byte of a page.
    fn ends(&self, page: u64) -> [u8; 2] {
        // SAFETY: the page is in the mapping, which is there until this is dropped.
        [0, 4095].map(|byte| unsafe { self.0.add(page as usize * 4096 + byte).read_volatile() })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping, and nothing refers to it.
        unsafe { rustix::mm::munmap(self.0.cast(), LENGTH).unwrap() };
    }
}

/// Reads and asynchronous direct writes of the same pages, by different descriptors. `read` returns
/// the first and the last byte of a page of a file.
fn direct_writes_are_seen<R: Fn(u64) -> [u8; 2] + Sync>(open: impl Fn(&std::path::Path) -> R) {
    let Some(_) = require(NEEDS) else { return };
    let scratch = Scratch::new(512 << 20).unwrap();
    let image = make_image(&scratch, 256 << 20);
    let mount = Mount::new(&scratch, &image, "");
    let path = mount.path().join("f");
    // Without the cache, so that only `read` brings pages into it.
    let mut options = File::options();
    let direct = options.write(true).create(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    for page in 0..PAGES {
        direct.write_all_at(&Page([0; 4096]).0, page * 4096).unwrap();
    }
    let read = open(&path);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                // Brings pages into the cache all the time.
                let mut page = 0;
                while !done.load(Ordering::Acquire) {
                    read(page % PAGES);
                    page += 1;
                }
            });
        }
        let mut ring = IoUring::new(8).unwrap();
        let mut wrong = 0;
        for round in 1..3000_u64 {
            let page = round * 7 % PAGES;
            let written = Page([round as u8; 4096]);
            let (fd, address) = (types::Fd(direct.as_raw_fd()), written.0.as_ptr());
            let write = opcode::Write::new(fd, address, 4096).offset(page * 4096).build();
            // SAFETY: the page lives until the completion, which the next call waits for.
            unsafe { ring.submission().push(&write).unwrap() };
            ring.submit_and_wait(1).unwrap();
            assert_eq!(ring.completion().next().unwrap().result(), 4096);
            wrong += u32::from(read(page) != [round as u8; 2]);
        }
        done.store(true, Ordering::Release);
        assert_eq!(wrong, 0, "stale reads");
    });
    drop((direct, read));
    mount.unmount();
    check(&image);
}

#[test]
fn buffered_reader_sees_completed_direct_writes() {
    direct_writes_are_seen(|path| {
        let reader = File::open(path).unwrap();
        move |page| {
            let mut buffer = [0; 4096];
            reader.read_exact_at(&mut buffer, page * 4096).unwrap();
            [buffer[0], buffer[4095]]
        }
    });
}

/// The kernel passes the mapping's descriptor on with each page that it reads.
#[test]
fn mapping_of_a_direct_descriptor_shows_completed_direct_writes() {
    direct_writes_are_seen(|path| {
        let reader = File::options().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
        let mapping = Mapping::of(&reader);
        move |page| mapping.ends(page)
    });
}
