//! Overwriting in place: files that are not copied on write stay where they are, until something shares their
//! data; preallocated room is used; and nobody sees anything but what was written.

use crate::support::{SECTOR, assert_clean, made, open, open_with, places, scatter};
use papilio::{File, FileSystem, InodeFlags, MkfsOptions, NocowCheck, OpenOptions, Tuning};
use papilio_device::{Device, MemoryDevice};
use std::sync::Arc;

/// A file that is overwritten in place.
fn nocow_file(fs: &FileSystem, path: &str) -> File {
    let file = fs.create_file(path).unwrap();
    file.inode().set_flags(InodeFlags::NODATACOW).unwrap();
    fs.open_file(path).unwrap()
}

#[test]
fn a_preallocated_file_is_written_where_it_lies() {
    let device = made(512 << 20);
    let fs = open(&device);
    let file = nocow_file(&fs, "/file");
    file.allocate(0, 16 << 20, false).unwrap();
    let before = places(&file);
    assert!(before.iter().all(|extent| extent.3), "{before:?}");
    let mut model = vec![0; 16 << 20];
    let mut random = fastrand::Rng::with_seed(1);
    for round in 0..6 {
        scatter(&file, &mut model, &mut random, 40 << round);
        assert!(file.read_all().unwrap() == model, "before the flush, round {round}");
        fs.sync().unwrap();
        assert!(file.read_all().unwrap() == model, "after it, round {round}");
        assert_clean(&device);
        // The same room, whatever part of it was written.
        let base = before[0].2 - before[0].0;
        assert!(before.len() > 1 || places(&file).iter().all(|place| place.2 - place.0 == base));
    }
    for at in (0..16 << 20).step_by(1 << 20) {
        file.write_at(&vec![7; 1 << 20], at).unwrap();
    }
    fs.sync().unwrap();
    let after = places(&file);
    let written: Vec<_> =
        before.iter().map(|&(logical, length, physical, _)| (logical, length, physical, false)).collect();
    assert_eq!(after, written, "pieces are joined again");
    drop(file);
    fs.close().unwrap();
    assert_clean(&device);
    assert!(open(&device).read("/file").unwrap() == vec![7; 16 << 20]);
}

#[test]
fn what_was_not_flushed_is_not_there_and_what_was_is() {
    let device = made(256 << 20);
    let fs = open(&device);
    let file = nocow_file(&fs, "/file");
    file.allocate(0, 1 << 20, false).unwrap();
    file.write_at(&[1; 8192], 0).unwrap();
    fs.sync().unwrap();
    let synced = device.snapshot();
    file.write_at(&[2; 8192], 65536).unwrap();
    let unsynced = Arc::new(device.snapshot());
    for (content, second) in [(Arc::new(synced), 0), (unsynced, 0)] {
        assert_clean(&content);
        let bytes = open(&content).read("/file").unwrap();
        assert!(bytes[..8192] == [1; 8192] && bytes[65536..65536 + 8192] == [second; 8192]);
    }
    drop(file);
    fs.close().unwrap();
    assert!(open(&device).read("/file").unwrap()[65536..65536 + 8192] == [2; 8192]);
}

#[test]
fn snapshots_and_reflinks_keep_what_they_share() {
    for check in [NocowCheck::FirstMatch, NocowCheck::CollectAll] {
        let device = made(512 << 20);
        let mut tuning = Tuning::default();
        tuning.nocow_check = check;
        let fs = open_with(&device, OpenOptions::new().tuning(tuning));
        fs.create_subvolume("/sub").unwrap();
        let file = nocow_file(&fs, "/sub/file");
        file.allocate(0, 4 << 20, false).unwrap();
        let mut model = vec![0; 4 << 20];
        let mut random = fastrand::Rng::with_seed(2);
        let mut kept = Vec::new();
        for round in 0..5 {
            scatter(&file, &mut model, &mut random, 100);
            fs.snapshot("/sub", format!("/snapshot{round}"), round % 2 == 0).unwrap();
            kept.push((format!("/snapshot{round}/file"), model.clone()));
            scatter(&file, &mut model, &mut random, 30);
            let copy = nocow_file(&fs, &format!("/sub/copy{round}"));
            copy.clone_range(&file, 0, 0, 0).unwrap();
            kept.push((format!("/sub/copy{round}"), model.clone()));
            scatter(&file, &mut model, &mut random, 30);
            for (path, content) in kept.iter().chain([&("/sub/file".to_owned(), model.clone())]) {
                assert!(fs.read(path).unwrap() == *content, "{path} in round {round}, {check:?}");
            }
            if round == 2 {
                fs.sync().unwrap();
                assert_clean(&device);
            }
        }
        // After a snapshot a range is copied once, and then stays where it is.
        fs.snapshot("/sub", "/last", true).unwrap();
        // What is made in the snapshot's own transaction counts as shared.
        fs.sync().unwrap();
        file.write_at(&[9; 65536], 1 << 20).unwrap();
        let first = places(&file);
        file.write_at(&[8; 65536], 1 << 20).unwrap();
        assert_eq!(places(&file), first);
        drop(file);
        fs.close().unwrap();
        assert_clean(&device);
    }
}

#[test]
fn many_threads_write_and_read_one_file() {
    let device = made(512 << 20);
    let fs = open(&device);
    let file = nocow_file(&fs, "/file");
    const PART: u64 = 1 << 20;
    file.allocate(0, 8 * PART, false).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (file, fs) = (&file, &fs);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread);
                let mut model = vec![0; PART as usize];
                for step in 0..400 {
                    let at = random.u64(0..PART / SECTOR) * SECTOR;
                    let bytes = vec![random.u8(1..); SECTOR as usize];
                    file.write_at(&bytes, thread * PART + at).unwrap();
                    model[at as usize..][..SECTOR as usize].copy_from_slice(&bytes);
                    if step % 50 == 49 {
                        let mut read = vec![0; PART as usize];
                        assert_eq!(file.read_at(&mut read, thread * PART).unwrap(), read.len());
                        assert!(read == model, "thread {thread}, step {step}");
                    }
                    if step % 100 == thread * 10 {
                        fs.sync().unwrap();
                    }
                }
            });
        }
    });
    drop(file);
    fs.close().unwrap();
    assert_clean(&device);
}

#[test]
fn times_move_with_writes_in_place_and_stay_as_they_are_set() {
    let device = made(256 << 20);
    let fs = open(&device);
    let file = nocow_file(&fs, "/file");
    file.allocate(0, 65536, false).unwrap();
    fs.sync().unwrap();
    let before = fs.metadata("/file").unwrap().mtime();
    std::thread::sleep(std::time::Duration::from_millis(5));
    file.write_at(&[1; 4096], 0).unwrap();
    let written = fs.metadata("/file").unwrap();
    assert!(written.mtime().seconds > before.seconds || written.mtime().nanoseconds != before.nanoseconds);
    let old = papilio::Timespec { seconds: 1000, nanoseconds: 5 };
    fs.set_times("/file", None, Some(papilio::SetTime::At(old))).unwrap();
    fs.sync().unwrap();
    assert_eq!(fs.metadata("/file").unwrap().mtime().seconds, 1000);
    file.write_at(&[1; 4096], 0).unwrap();
    drop(file);
    fs.close().unwrap();
    assert!(open(&device).metadata("/file").unwrap().mtime().seconds > 1000);
}

#[test]
fn a_file_whose_bytes_are_in_the_page_cache_only_is_not_empty() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(256 << 20));
    papilio::mkfs_device(&device, &MkfsOptions::new()).unwrap();
    let options = OpenOptions::new().write(true).cache_bytes(1 << 20);
    let fs = FileSystem::from_devices(vec![device], &options).unwrap();
    let file = fs.create_file("/f").unwrap();
    file.inode().set_flags(InodeFlags::NODATACOW).unwrap();
    file.write_at(b"not empty", 0).unwrap();
    // Of a file with data, that stays as it is.
    file.inode().set_flags(InodeFlags::empty()).unwrap();
    assert!(fs.metadata("/f").unwrap().flags().contains(InodeFlags::NODATACOW));
}

#[test]
fn both_ways_to_ask_for_checksums_say_the_same() {
    let device = made(256 << 20);
    for check in [NocowCheck::FirstMatch, NocowCheck::CollectAll] {
        let mut tuning = Tuning::default();
        tuning.nocow_check = check;
        let fs = open_with(&device, OpenOptions::new().tuning(tuning));
        let unsummed = nocow_file(&fs, &format!("/unsummed-{check:?}"));
        unsummed.write_at(&[1; 1 << 20], 0).unwrap();
        let mixed = fs.create_file(format!("/mixed-{check:?}")).unwrap();
        mixed.write_at(&[1; 64 << 10], 0).unwrap();
        mixed.allocate(64 << 10, 64 << 10, false).unwrap();
        mixed.write_at(&[1; 4096], 160 << 10).unwrap();
        assert!(!unsummed.has_checksums(0..1 << 20).unwrap());
        for (range, expected) in [
            (0..4096, true),
            (0..1 << 20, true),
            (60 << 10..68 << 10, true),
            (64 << 10..128 << 10, false),
            (128 << 10..160 << 10, false),
            (64 << 10..161 << 10, true),
            (1 << 30..2 << 30, false),
            (0..0, false),
        ] {
            assert_eq!(mixed.has_checksums(range.clone()).unwrap(), expected, "{check:?} {range:?}");
        }
        drop((unsummed, mixed));
        fs.close().unwrap();
    }
    let compressed = OpenOptions::new().write(true).compress("zstd".parse().unwrap());
    let fs = FileSystem::from_devices(vec![device.clone() as Arc<dyn Device>], &compressed).unwrap();
    let file = fs.create_file("/compressed").unwrap();
    file.write_at(&[7; 128 << 10], 0).unwrap();
    assert!(file.has_checksums(64 << 10..68 << 10).unwrap());
    drop(file);
    fs.close().unwrap();
    let fs = FileSystem::from_devices(vec![device as Arc<dyn Device>], &OpenOptions::new()).unwrap();
    assert!(fs.open_file("/compressed").unwrap().has_checksums(0..4096).is_err());
}
