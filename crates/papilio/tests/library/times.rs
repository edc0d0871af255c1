//! Attributes of inodes while data is in memory: a time that a caller sets stays, whatever is
//! written back afterwards.

use crate::in_memory::{close_clean, formatted, open_with, writable};
use papilio::{FileSystem, InodeFlags, Metadata, SetAttributes, SetTime, Timespec};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const SET: Timespec = Timespec { seconds: 1_000_000_000, nanoseconds: 123 };
const SIZE: u64 = 8 << 20;

fn metadata(fs: &FileSystem) -> Metadata {
    fs.metadata("/file").unwrap()
}

fn set_times(fs: &FileSystem) {
    let set = SetAttributes { mtime: Some(SetTime::At(SET)), ctime: Some(SET), ..SetAttributes::default() };
    fs.inode("/file").unwrap().set_attributes(&set).unwrap();
}

/// The ways in which a file's data stays in memory: dirty pages, ordered extents, preallocated
/// extents that are overwritten in place, none.
fn each_way(mut run: impl FnMut(&FileSystem, &papilio::File)) {
    for (cache, flags, preallocated) in [
        (0, InodeFlags::empty(), false),
        (16 << 20, InodeFlags::empty(), false),
        (0, InodeFlags::empty(), true),
        (0, InodeFlags::NODATACOW | InodeFlags::NODATASUM, true),
    ] {
        let device = formatted(256 << 20);
        let options = writable().cache_bytes(cache);
        let fs = open_with(&device, &options);
        let file = fs.create_file("/file").unwrap();
        fs.inode("/file").unwrap().set_flags(flags & InodeFlags::NODATACOW).unwrap();
        if preallocated {
            file.allocate(0, SIZE, false).unwrap();
        } else {
            file.set_len(SIZE).unwrap();
        }
        fs.sync().unwrap();
        run(&fs, &file);
        let before = metadata(&fs);
        drop(file);
        close_clean(fs, &device);
        let fs = open_with(&device, &options);
        let after = metadata(&fs);
        assert_eq!((after.mtime(), after.ctime()), (before.mtime(), before.ctime()));
        assert_eq!((after.mtime(), after.ctime()), (SET, SET));
    }
}

/// Writes every other sector, so that there are many ordered extents.
fn write_some(file: &papilio::File, write: impl Fn(&papilio::File, &[u8], u64)) {
    for sector in (0..SIZE / 4096).step_by(2) {
        write(file, &[7; 4096], sector * 4096);
    }
    write(file, b"a part", 4096);
    write(file, b"the end", SIZE);
}

#[test]
fn a_time_set_after_a_write_stays() {
    each_way(|fs, file| {
        write_some(file, |file, data, at| file.write_all_at(data, at).unwrap());
        assert_ne!(metadata(fs).mtime(), SET);
        set_times(fs);
        let now = metadata(fs);
        assert_eq!((now.mtime(), now.ctime()), (SET, SET));
    });
}

#[test]
fn writing_back_leaves_the_times() {
    each_way(|fs, file| {
        set_times(fs);
        write_some(file, |file, data, at| file.write_back_at(data, at).unwrap());
        let now = metadata(fs);
        assert_eq!((now.mtime(), now.ctime()), (SET, SET));
        assert_eq!(now.size(), SIZE + 7);
    });
}

#[test]
fn a_mode_set_after_a_write_leaves_the_writes_mtime() {
    let device = formatted(256 << 20);
    let options = writable().cache_bytes(16 << 20);
    let fs = open_with(&device, &options);
    let file = fs.create_file("/file").unwrap();
    fs.sync().unwrap();
    file.write_all_at(b"content", 0).unwrap();
    let written = metadata(&fs);
    std::thread::sleep(Duration::from_millis(30));
    let set = SetAttributes { mode: Some(0o640), ..SetAttributes::default() };
    fs.inode("/file").unwrap().set_attributes(&set).unwrap();
    let changed = metadata(&fs);
    assert_eq!(changed.mtime(), written.mtime());
    assert!(changed.ctime() > written.ctime());
    fs.sync().unwrap();
    let after = metadata(&fs);
    assert_eq!((after.mtime(), after.ctime()), (written.mtime(), changed.ctime()));
    assert_eq!((after.permissions(), after.size()), (0o640, 7));
    // A new name changes the ctime only, before and after the flush.
    file.write_all_at(b"Content", 0).unwrap();
    let written = metadata(&fs);
    std::thread::sleep(Duration::from_millis(30));
    fs.hard_link("/file", "/link").unwrap();
    let linked = metadata(&fs);
    assert!(linked.ctime() > written.ctime());
    fs.sync().unwrap();
    let after = metadata(&fs);
    assert_eq!((after.mtime(), after.ctime()), (written.mtime(), linked.ctime()));
    drop(file);
    close_clean(fs, &device);
}

/// Attributes are set while other threads write the file and publish its data.
#[test]
fn attributes_are_set_beside_writers() {
    let device = formatted(256 << 20);
    let fs = open_with(&device, &writable());
    let file = fs.create_file("/file").unwrap();
    file.set_len(SIZE).unwrap();
    fs.sync().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 0..200 {
                file.write_back_at(&[turn as u8; 4096], turn % 64 * 8192).unwrap();
                if turn % 16 == 0 {
                    fs.sync().unwrap();
                }
            }
        });
        for turn in 0..500 {
            let time = Timespec { seconds: turn, nanoseconds: 0 };
            let set = SetAttributes {
                mtime: Some(SetTime::At(time)),
                mode: Some(turn as u32 & 0o777),
                ..SetAttributes::default()
            };
            fs.inode("/file").unwrap().set_attributes(&set).unwrap();
            let now = metadata(&fs);
            assert_eq!((now.mtime(), now.permissions()), (time, turn as u32 & 0o777));
        }
    });
    drop(file);
    close_clean(fs, &device);
}

/// Inodes that a listing read ahead are those of now.
#[test]
fn a_listing_shows_inodes_as_they_are_now() {
    let device = formatted(256 << 20);
    let fs = open_with(&device, &writable().cache_bytes(16 << 20));
    let files: Vec<_> = (0..100).map(|number| fs.create_file(format!("/{number}")).unwrap()).collect();
    let length = |number: u64| vec![1; number as usize + 1];
    let mut entries = fs.read_dir("/").unwrap().with_inodes();
    for number in 0..100 {
        let entry = entries.next().unwrap().unwrap();
        assert_eq!(entry.inode().unwrap().metadata().size(), 0);
        // In memory, then flushed, after the inode was read ahead.
        files[number as usize].write_all_at(&length(number), 0).unwrap();
        assert_eq!(entry.inode().unwrap().metadata().size(), number + 1);
        if number % 3 == 0 {
            fs.sync().unwrap();
        }
        assert_eq!(entry.inode().unwrap().metadata().size(), number + 1);
    }
    assert!(entries.next().is_none());
    let again = fs.read_dir("/").unwrap().with_inodes();
    let sizes: Vec<_> = again.map(|entry| entry.unwrap().inode().unwrap().metadata().size()).collect();
    assert_eq!(sizes, (1..=100).collect::<Vec<_>>());
    let mut entries = fs.read_dir("/").unwrap().with_inodes();
    let first = entries.next().unwrap().unwrap();
    drop(files);
    fs.remove_file("/0").unwrap();
    assert!(first.inode().is_err());
    close_clean(fs, &device);
}

/// A thread that asks for a file's size, while others write and flush it, never sees an older one.
#[test]
fn a_size_never_goes_back() {
    let device = formatted(256 << 20);
    let fs = open_with(&device, &writable().cache_bytes(16 << 20));
    let file = fs.create_file("/file").unwrap();
    let (over, looks) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut last = 0;
            while !over.load(Ordering::Relaxed) {
                let size = metadata(&fs).size();
                assert!(size >= last, "{size} bytes after {last}");
                last = size;
                looks.fetch_add(1, Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                fs.sync().unwrap();
            }
        });
        // On a busy machine the others may not run before all bytes are written.
        for at in 0.. {
            if at >= 3_000 && (looks.load(Ordering::Relaxed) > 100 || looking.is_finished()) {
                break;
            }
            file.write_all_at(b"x", at).unwrap();
            std::thread::yield_now();
        }
        over.store(true, Ordering::Relaxed);
    });
    drop(file);
    close_clean(fs, &device);
}
