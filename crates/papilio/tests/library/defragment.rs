//! Defragmentation: fewer extents, the same bytes and times; holes, preallocated and shared extents
//! stay. The kernel reads the result.

use crate::in_memory::{assert_clean, formatted, open, open_with, writable};
use papilio::format::items::file_extent::Compression;
use papilio::format::items::inode::InodeFlags;
use papilio::{CompressionChoice, DefragmentOptions, File, FileSystem};
use papilio_device::MemoryDevice;
use papilio_oracle::{ImageSet, Need, Scratch, require};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const SECTOR: usize = 4096;

/// Content that compresses, different in each sector.
fn content(sectors: usize, seed: usize) -> Vec<u8> {
    (0..sectors * SECTOR).map(|at| (at / SECTOR * 31 + at % 7 + seed) as u8).collect()
}

/// Writes a file of one extent for each sector.
fn fragmented(fs: &FileSystem, path: &str, content: &[u8]) -> File {
    let mut file = fs.create_file(path).unwrap();
    file.set_direct(true);
    file.write_all_at(&vec![0; content.len()], 0).unwrap();
    for half in [0, 1] {
        for (number, sector) in content.chunks(SECTOR).enumerate().filter(|(number, _)| number % 2 == half) {
            file.write_all_at(sector, (number * SECTOR) as u64).unwrap();
        }
        fs.sync().unwrap();
    }
    file
}

fn extents(file: &File) -> usize {
    file.fiemap(0).unwrap().len()
}

fn defragment(file: &File, options: &DefragmentOptions) -> u64 {
    let size = file.metadata().unwrap().size();
    file.defragment(0..size, options, |_| true).unwrap()
}

fn compressed(algorithm: Compression) -> DefragmentOptions {
    DefragmentOptions { compression: Some(CompressionChoice::new(algorithm)), ..DefragmentOptions::default() }
}

/// Compares files with what the kernel reads.
fn judge(device: &Arc<MemoryDevice>, files: &[(&str, &[u8])]) {
    assert_clean(device);
    if require(&[Need::Root, Need::Loop, Need::KernelBtrfs, Need::Command("btrfs")]).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    let path = scratch.unique("image");
    device.write_image(&path).unwrap();
    let images = ImageSet::open(&scratch, vec![path]);
    let mounted = images.mount().unwrap();
    for (name, content) in files {
        assert!(std::fs::read(mounted.path().join(name)).unwrap() == *content, "{name}");
    }
    mounted.unmount().unwrap();
    images.btrfs_check().unwrap();
}

#[test]
fn extents_become_one_and_times_stay() {
    let device = formatted(256 << 20);
    let fs = open(&device);
    fs.create_subvolume("/s").unwrap();
    let content = content(300, 1);
    let file = fragmented(&fs, "/s/f", &content);
    fs.snapshot("/s", "/snapshot", true).unwrap();
    let (before, times) = (extents(&file), file.metadata().unwrap());
    assert!(before > 200, "{before}");
    assert_eq!(defragment(&file, &DefragmentOptions::default()), content.len() as u64);
    fs.sync().unwrap();
    assert_eq!(extents(&file), 1);
    let after = file.metadata().unwrap();
    assert_eq!((after.mtime(), after.ctime()), (times.mtime(), times.ctime()));
    assert_eq!(extents(&fs.open_file("/snapshot/f").unwrap()), before, "the snapshot keeps its extents");
    assert_eq!(defragment(&file, &DefragmentOptions::default()), 0, "there is nothing left to do");
    drop(file);
    fs.close().unwrap();
    judge(&device, &[("s/f", &content), ("snapshot/f", &content)]);
}

#[test]
fn compression_is_changed_on_request() {
    let device = formatted(256 << 20);
    let fs = open(&device);
    let content = content(3000, 2);
    let file = fragmented(&fs, "/f", &content);
    let on_disk = |file: &File| {
        fs.sync().unwrap();
        file.metadata().unwrap();
        file.fiemap(0).unwrap().len()
    };
    assert_eq!(defragment(&file, &compressed(Compression::Zstd)), content.len() as u64);
    let pieces = content.len().div_ceil(128 << 10);
    assert!((pieces..pieces * 3 / 2).contains(&on_disk(&file)), "{}", on_disk(&file));
    // The level of an extent is not stored, so that compressing again writes all of it again.
    assert_eq!(defragment(&file, &compressed(Compression::Zstd)), content.len() as u64);
    assert_eq!(defragment(&file, &compressed(Compression::Lzo)), content.len() as u64);
    let plain =
        DefragmentOptions { compression: Some(CompressionChoice::NONE), ..DefragmentOptions::default() };
    assert_eq!(defragment(&file, &plain), content.len() as u64);
    assert!(on_disk(&file) <= 3, "{}", on_disk(&file));
    // A long extent is compressed in steps.
    assert_eq!(defragment(&file, &compressed(Compression::Zlib)), content.len() as u64);
    // One without checksums cannot be compressed.
    let inode = fs.create_file("/n").unwrap();
    inode.inode().set_flags(InodeFlags::NODATACOW).unwrap();
    let small = content[..SECTOR * 30].to_vec();
    let file = fs.open_file("/n").unwrap();
    file.write_all_at(&small, 0).unwrap();
    file.sync_all().unwrap();
    defragment(&file, &compressed(Compression::Zstd));
    fs.close().unwrap();
    judge(&device, &[("f", &content), ("n", &small)]);
}

#[test]
fn holes_preallocated_and_inline_extents_stay() {
    let device = formatted(256 << 20);
    let fs = open(&device);
    let mut content = content(64, 3);
    let file = fragmented(&fs, "/f", &content);
    file.punch_hole(16 * SECTOR as u64, 16 * SECTOR as u64).unwrap();
    content[16 * SECTOR..32 * SECTOR].fill(0);
    file.punch_hole(40 * SECTOR as u64, 8 * SECTOR as u64).unwrap();
    content[40 * SECTOR..48 * SECTOR].fill(0);
    file.allocate(40 * SECTOR as u64, 8 * SECTOR as u64, true).unwrap();
    fs.write("/inline", b"a few bytes").unwrap();
    fs.sync().unwrap();
    assert_eq!(defragment(&file, &DefragmentOptions::default()), 40 * SECTOR as u64);
    fs.sync().unwrap();
    // Data, hole, data, preallocated, data.
    assert_eq!(extents(&file), 4, "{:#?}", file.fiemap(0));
    assert_eq!(defragment(&fs.open_file("/inline").unwrap(), &DefragmentOptions::default()), 0);
    // A part of the file: whole extents are taken.
    let file = fragmented(&fs, "/part", &content);
    let before = extents(&file);
    file.defragment(100..10 * SECTOR as u64, &DefragmentOptions::default(), |_| true).unwrap();
    fs.sync().unwrap();
    assert_eq!(extents(&file), before - 9);
    // Large extents stay.
    let small = DefragmentOptions { threshold: SECTOR as u64, compression: None };
    assert_eq!(defragment(&file, &small), 0);
    drop(file);
    fs.close().unwrap();
    judge(&device, &[("f", &content), ("part", &content), ("inline", b"a few bytes")]);
}

#[test]
fn files_are_written_and_read_while_they_are_defragmented() {
    let device = formatted(512 << 20);
    let fs = open_with(&device, &writable().cache_bytes(16 << 20));
    let sectors = 2000;
    let initial = content(sectors, 4);
    drop(fragmented(&fs, "/f", &initial));
    let stop = AtomicBool::new(false);
    let content = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let (file, mut content) = (fs.open_file("/f").unwrap(), initial.clone());
            let mut random = fastrand::Rng::with_seed(5);
            while !stop.load(Ordering::Relaxed) {
                let at = random.usize(..content.len() - 20_000);
                let range = at..at + random.usize(1..20_000);
                if random.bool() {
                    content[range.clone()].fill(random.u8(..));
                    file.write_all_at(&content[range.clone()], at as u64).unwrap();
                } else {
                    let mut read = vec![0; range.len()];
                    file.read_exact_at(&mut read, at as u64).unwrap();
                    assert!(read == content[range], "byte {at}");
                }
                if random.u8(..) == 0 {
                    file.sync_all().unwrap();
                }
            }
            content
        });
        for round in 0..12 {
            let options = match round % 3 {
                0 => DefragmentOptions::default(),
                1 => compressed(Compression::Lzo),
                _ => DefragmentOptions {
                    compression: Some(CompressionChoice::NONE),
                    ..DefragmentOptions::default()
                },
            };
            defragment(&fs.open_file("/f").unwrap(), &options);
        }
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    assert!(fs.read("/f").unwrap() == content);
    fs.close().unwrap();
    judge(&device, &[("f", &content)]);
}
