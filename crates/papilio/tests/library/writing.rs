//! Writing through the public API on a memory device: reads return what was written, and the check
//! is clean after each commit.

use crate::in_memory;
use crate::in_memory::{
    assert_clean, close_clean, formatted, new_file_system, open, open_read_only, open_with, try_open,
    writable,
};
use papilio::format::features::{CompatRoFeatures, SuperblockFlags};
use papilio::format::superblock::{RawSuperblock, superblock_offset};
use papilio::format::{PhysicalAddress, Superblock, objectid};
use papilio::{
    ErrorKind, FileSystem, InodeFlags, MkfsOptions, NewInode, NewKind, OpenOptions, PathError, RenameMode,
};
use papilio_device::{Access, Device, MemoryDevice};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// The superblock has the roots of the last four commits, and those of the last one are its own.
#[test]
fn the_last_four_commits_are_backed_up() {
    let device = formatted(512 << 20);
    let fs = open(&device);
    for number in 0..9 {
        fs.create_file(format!("/file{number}")).unwrap();
        fs.sync().unwrap();
        let raw = in_memory::superblock(&device).raw;
        let mut backups = raw.super_roots;
        backups.sort_by_key(|backup| backup.tree_root_generation);
        let last = backups[3];
        assert_eq!((last.tree_root, last.tree_root_generation), (raw.root, raw.generation));
        assert_eq!((last.tree_root_level, last.chunk_root_level), (raw.root_level, raw.chunk_root_level));
        assert_eq!(
            (last.chunk_root, last.chunk_root_generation),
            (raw.chunk_root, raw.chunk_root_generation)
        );
        assert_eq!((last.total_bytes, last.bytes_used), (raw.total_bytes, raw.bytes_used));
        assert_eq!(last.num_devices, 1);
        for root in fs.tree_roots().unwrap() {
            let found = match root.id {
                objectid::EXTENT_TREE => (last.extent_root, last.extent_root_generation),
                objectid::FS_TREE => (last.fs_root, last.fs_root_generation),
                objectid::DEV_TREE => (last.dev_root, last.dev_root_generation),
                objectid::CSUM_TREE => (last.csum_root, last.csum_root_generation),
                _ => continue,
            };
            assert_eq!(Some(found.1), root.generation, "{root:?}");
            assert_eq!(found.0, root.address);
        }
        let generations: Vec<_> = backups.iter().map(|backup| backup.tree_root_generation.0).collect();
        let newest = raw.generation.0;
        if number >= 3 {
            assert_eq!(generations, [newest - 3, newest - 2, newest - 1, newest]);
        }
    }
    fs.close().unwrap();
}

#[test]
fn committed_changes_survive_closing() {
    let device = formatted(512 << 20);
    assert_clean(&device);
    let fs = open(&device);
    fs.create_dir("/d").unwrap();
    fs.sync().unwrap();
    assert_clean(&device);
    let file = fs.create_file("/d/file").unwrap();
    let content: Vec<u8> = (0..3_000_001u32).map(|n| (n / 7) as u8).collect();
    file.write_all_at(&content, 0).unwrap();
    let small = fs.create_file("/d/small").unwrap();
    small.write_all_at(b"a few bytes", 0).unwrap();
    fs.symlink("d/small", "/link").unwrap();
    fs.create("/d/fifo", &NewInode::new(NewKind::Fifo, 0o600).owner(5, 6)).unwrap();
    fs.hard_link("/d/small", "/other").unwrap();
    assert_eq!(fs.read("/d/file").unwrap(), content);
    fs.sync().unwrap();
    assert_clean(&device);
    fs.rename_with("/d/file", "/moved", RenameMode::NoReplace).unwrap();
    fs.remove_file("/d/fifo").unwrap();
    drop((file, small));
    close_clean(fs, &device);
    let fs = open(&device);
    assert_eq!(fs.read("/moved").unwrap(), content);
    assert_eq!(fs.read("/link").unwrap(), b"a few bytes");
    assert_eq!(fs.metadata("/other").unwrap().nlink(), 2);
    for number in 0..2000 {
        let file = fs.create_file(format!("/d/n{number}")).unwrap();
        file.write_all_at(format!("content {number}").repeat(number % 500).as_bytes(), 0).unwrap();
    }
    fs.sync().unwrap();
    assert_clean(&device);
    for number in (0..2000).step_by(3) {
        fs.remove_file(format!("/d/n{number}")).unwrap();
    }
    fs.remove_file("/moved").unwrap();
    fs.sync().unwrap();
    assert_clean(&device);
    fs.close().unwrap();
    if let Some(path) = std::env::var_os("PAPILIO_IMAGE") {
        device.write_image(path.as_ref()).unwrap();
    }
}

/// Prints how long creating, listing and deleting many files takes; asserts nothing about it.
#[test]
#[ignore = "a measurement"]
fn measure_many_files() {
    let count = 100_000;
    let (device, fs) = new_file_system(4 << 30);
    let directory = fs.create_dir("/d").unwrap();
    let start = Instant::now();
    for number in 0..count {
        directory
            .create(format!("file{number}").as_bytes(), &NewInode::new(NewKind::Regular, 0o644))
            .unwrap();
    }
    println!("create {:?}", start.elapsed());
    let start = Instant::now();
    fs.sync().unwrap();
    println!("sync {:?}", start.elapsed());
    let start = Instant::now();
    assert_eq!(fs.read_dir("/d").unwrap().count(), count);
    println!("list {:?}", start.elapsed());
    let start = Instant::now();
    for number in 0..count {
        directory.remove_file(format!("file{number}").as_bytes()).unwrap();
    }
    fs.sync().unwrap();
    println!("delete+sync {:?}", start.elapsed());
    if let Some(path) = std::env::var_os("PAPILIO_IMAGE") {
        drop(fs);
        device.write_image(path.as_ref()).unwrap();
    }
}

#[test]
fn threads_write_while_commits_run() {
    let device = formatted(1 << 30);
    // So little memory for dirty blocks that changes force commits, too.
    let fs = open_with(&device, &writable().dirty_bytes(2 << 20));
    std::thread::scope(|scope| {
        for thread in 0..6u64 {
            let fs = fs.clone();
            scope.spawn(move || {
                let directory = fs.create_dir(format!("/t{thread}")).unwrap();
                for number in 0..300u64 {
                    let name = format!("f{number}");
                    let file = directory
                        .create(name.as_bytes(), &NewInode::new(NewKind::Regular, 0o644))
                        .unwrap()
                        .open();
                    let file = file.unwrap();
                    let length = (number * 977 % 60_000) as usize;
                    let content = vec![(number + thread) as u8; length];
                    file.write_all_at(&content, number % 5000).unwrap();
                    let mut back = vec![0; length];
                    assert_eq!(file.read_at(&mut back, number % 5000).unwrap(), length);
                    assert!(back == content);
                    if number % 3 == 0 {
                        directory.remove_file(name.as_bytes()).unwrap();
                        // The open handle still reads it.
                        assert_eq!(file.read_at(&mut back, number % 5000).unwrap(), length);
                    }
                    if number % 50 == 49 {
                        fs.sync().unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(fs.failure(), None);
    close_clean(fs, &device);
}

#[test]
fn a_full_file_system_reports_no_space_and_can_be_emptied() {
    let (device, fs) = new_file_system(128 << 20);
    let chunk = vec![7; 1 << 20];
    let mut written = 0;
    let error = loop {
        let file = fs.create_file(format!("/f{written}")).unwrap();
        match file.write_all_at(&chunk, 0) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(written > 20, "{written} MiB");
    let mut small = 0;
    let error = loop {
        match fs.create_file(format!("/s{small}")).and_then(|file| file.write_all_at(&[1; 1000], 0)) {
            Ok(()) => small += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert_eq!(fs.failure(), None);
    fs.sync().unwrap();
    assert_clean(&device);
    for number in 0..=written {
        fs.remove_file(format!("/f{number}")).unwrap();
    }
    for number in 0..small {
        fs.remove_file(format!("/s{number}")).unwrap();
    }
    assert_eq!(fs.failure(), None);
    fs.sync().unwrap();
    fs.create_file("/again").unwrap().write_all_at(&chunk, 0).unwrap();
    close_clean(fs, &device);
}

/// A device whose flushes wait while the gate is closed.
#[derive(Debug)]
struct Gated {
    inner: Arc<MemoryDevice>,
    closed: Mutex<bool>,
    changed: Condvar,
    /// Whether a flush has waited.
    waiting: AtomicBool,
}

impl Gated {
    fn set(&self, closed: bool) {
        *self.closed.lock().unwrap() = closed;
        self.changed.notify_all();
    }
}

impl Device for Gated {
    fn name(&self) -> &str {
        "gated"
    }
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn access(&self) -> Access {
        Access::ReadWrite
    }
    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> std::io::Result<()> {
        self.inner.read_at(buffer, offset)
    }
    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> std::io::Result<()> {
        self.inner.write_at(buffer, offset)
    }
    fn flush(&self) -> std::io::Result<()> {
        let mut closed = self.closed.lock().unwrap();
        while *closed {
            self.waiting.store(true, Ordering::Release);
            closed = self.changed.wait(closed).unwrap();
        }
        self.inner.flush()
    }
    fn discard(&self, offset: PhysicalAddress, length: u64) -> std::io::Result<()> {
        self.inner.discard(offset, length)
    }
}

#[test]
fn changes_join_the_next_transaction_while_a_commit_writes() {
    let device = formatted(256 << 20);
    let gated = Arc::new(Gated {
        inner: device.clone(),
        closed: Mutex::new(false),
        changed: Condvar::new(),
        waiting: AtomicBool::new(false),
    });
    let fs = open(&gated);
    fs.create_dir("/before").unwrap();
    gated.set(true);
    std::thread::scope(|scope| {
        let commit = scope.spawn(|| fs.sync());
        while !gated.waiting.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        // The commit waits for its flush; readers and writers do not wait for the commit.
        for number in 0..200 {
            fs.create_file(format!("/before/f{number}")).unwrap().write_all_at(b"meanwhile", 0).unwrap();
        }
        assert_eq!(fs.read("/before/f7").unwrap(), b"meanwhile");
        assert!(!commit.is_finished());
        gated.set(false);
        commit.join().unwrap().unwrap();
    });
    // Changes made meanwhile belong to the next transaction, which is not on the device yet.
    let committed = open_read_only(&device);
    assert_eq!(committed.read_dir("/before").unwrap().count(), 0);
    drop(committed);
    assert_clean(&device);
    close_clean(fs, &device);
    let committed = open_read_only(&device);
    assert_eq!(committed.read_dir("/before").unwrap().count(), 200);
}

#[test]
fn the_background_commits_without_a_sync() {
    let device = formatted(256 << 20);
    let options = OpenOptions::new().write(true).commit_interval(Some(Duration::from_millis(20)));
    let fs = open_with(&device, &options);
    fs.create_dir("/unsynced").unwrap();
    // Polls the device: a commit in the background is not reported.
    let begun = Instant::now();
    while open_read_only(&device).inode("/unsynced").is_err() {
        assert!(begun.elapsed() < Duration::from_secs(60), "no commit within a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn file_systems_that_writing_could_corrupt_open_read_only() {
    type Change = fn(&mut RawSuperblock);
    let cases: [(&str, Change); 4] = [
        ("a seed file system", |raw| raw.flags |= SuperblockFlags::SEEDING),
        ("being converted", |raw| raw.flags |= SuperblockFlags::CHANGING_FSID),
        ("unknown read-only-compatible features", |raw| {
            raw.compat_ro_flags |= CompatRoFeatures::from_bits_retain(1 << 40);
        }),
        ("free-space tree is not valid", |raw| {
            // A block-group tree needs the valid tree of free space.
            let both = CompatRoFeatures::FREE_SPACE_TREE_VALID | CompatRoFeatures::BLOCK_GROUP_TREE;
            raw.compat_ro_flags.remove(both);
        }),
    ];
    for (cause, change) in cases {
        let device = formatted(128 << 20);
        let place = superblock_offset(0);
        let mut bytes = vec![0; 4096];
        device.read_at(&mut bytes, place).unwrap();
        let mut superblock = Superblock::parse(&bytes, place).unwrap();
        change(&mut superblock.raw);
        device.write_at(&superblock.to_bytes(place), place).unwrap();
        let error = try_open(&device, &writable()).expect_err(cause);
        assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
        assert!(error.to_string().contains(cause), "{error}");
        let fs = open_read_only(&device);
        let error = fs.create_dir("/d").expect_err("it is open for reading");
        assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
    }
}

/// The kernel relies on this flag: it miscounts the bytes of a file that has extents past its end
/// and no flag.
#[test]
fn preallocation_past_the_end_sets_the_flag() {
    let (_device, fs) = new_file_system(256 << 20);
    let file = fs.create_file("/file").unwrap();
    file.write_all_at(&[1; 5000], 0).unwrap();
    file.allocate(8192, 65536, true).unwrap();
    assert_eq!(file.len(), 5000);
    let flags = fs.metadata("/file").unwrap().flags();
    assert!(flags.contains(InodeFlags::PREALLOC), "{flags:?}");
}

#[test]
fn another_program_grows_and_truncates_the_image() {
    let (device, fs) = new_file_system(256 << 20);
    fs.create_dir("/d").unwrap();
    device.resize(512 << 20);
    fs.create_file("/d/f").unwrap().write_all_at(&[5; 100_000], 0).unwrap();
    fs.sync().unwrap();
    assert_clean(&device);
    // So short that even the second copy of the superblock is gone.
    device.resize(48 << 20);
    let mut result = Ok(());
    for number in 0..100 {
        result = fs.create_file(format!("/d/g{number}")).and_then(|file| file.write_all_at(&[6; 1 << 20], 0));
        result = result.and_then(|()| fs.sync());
        if result.is_err() {
            break;
        }
    }
    let error = result.expect_err("writes past the end fail");
    assert!(!error.to_string().contains('\n'), "{error}");
    assert!(fs.failure().is_some(), "{error}");
    assert_eq!(fs.create_dir("/e").unwrap_err().kind(), ErrorKind::ReadOnly);
}

#[test]
fn a_snapshot_omits_unlinked_files() {
    let (device, fs) = new_file_system(256 << 20);
    let file = fs.create_file("/file").unwrap();
    file.write_all_at(&[1; 100_000], 0).unwrap();
    fs.remove_file("/file").unwrap();
    let snapshot = fs.snapshot("/", "/snapshot", true).unwrap().tree();
    let number = file.inode().number();
    let missing = fs.inode_at(snapshot, number).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Path(PathError::NotFound), "{missing}");
    // The open handle still reads it.
    assert_eq!(file.read_all().unwrap(), [1; 100_000]);
    drop(file);
    close_clean(fs, &device);
}

/// The options for `nodatacow` and `nodatasum` set flags of new regular files, not of directories.
#[test]
fn mount_options_give_new_files_their_flags() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("flags.img");
    papilio::mkfs(&image, &MkfsOptions::new().size(128 << 20)).unwrap();
    let base = || OpenOptions::new().write(true).compress("zstd".parse().unwrap());
    let no_sums = InodeFlags::NODATASUM;
    let runs = [
        (base(), "plain", InodeFlags::empty()),
        (base().no_data_sums(true), "sums", no_sums),
        (base().no_data_cow(true), "cow", no_sums | InodeFlags::NODATACOW),
    ];
    for (options, name, flags) in runs {
        let fs = FileSystem::open_with(&image, &options).unwrap();
        fs.create_dir(format!("/{name}.d")).unwrap();
        let file = fs.create_file(format!("/{name}")).unwrap();
        file.write_all_at(&[7; 1 << 20], 0).unwrap();
        let root = fs.inode("/").unwrap();
        let unnamed = root.create_unnamed(&NewInode::new(NewKind::Regular, 0o600)).unwrap();
        root.hard_link(unnamed.inode(), format!("{name}.tmp").as_bytes()).unwrap();
        drop((file, unnamed));
        let of = |name: String| fs.metadata(name).unwrap().flags() & (no_sums | InodeFlags::NODATACOW);
        assert_eq!(of(format!("/{name}")), flags);
        assert_eq!(of(format!("/{name}.tmp")), flags);
        assert_eq!(of(format!("/{name}.d")), InodeFlags::empty());
        // Data without checksums is never compressed.
        let extents = fs.open_file(format!("/{name}")).unwrap().fiemap(0).unwrap();
        assert_eq!(extents.len() == 1, !flags.is_empty(), "{name}: {} extents", extents.len());
        fs.close().unwrap();
    }
    let report = papilio::check(&image, &OpenOptions::new(), &papilio::CheckOptions::new().data_csum(true));
    assert!(report.unwrap().is_clean());
}

#[test]
fn opening_creates_where_a_symbolic_link_leads() {
    let (device, fs) = new_file_system(256 << 20);
    let new = NewInode::new(NewKind::Regular, 0o640);
    fs.create_dir("/d").unwrap();
    fs.symlink("target", "/d/link").unwrap();
    fs.symlink("d/link", "/outer").unwrap();
    fs.symlink("round", "/round").unwrap();
    fs.open_or_create("/outer", &new).unwrap().write_all_at(b"made", 0).unwrap();
    assert_eq!(fs.read("/d/target").unwrap(), b"made");
    assert_eq!(fs.open_or_create("/d/target", &new).unwrap().size().unwrap(), 4);
    let error = |path| fs.open_or_create(path, &new).unwrap_err().kind();
    assert_eq!(error("/round"), ErrorKind::Path(PathError::SymlinkLoop));
    assert_eq!(error("/none/file"), ErrorKind::Path(PathError::NotFound));
    assert_eq!(error("/d"), ErrorKind::Path(PathError::IsADirectory));
    close_clean(fs, &device);
}
