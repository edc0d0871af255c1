//! Overwriting in place: a file without copy-on-write keeps its extents until a snapshot or reflink
//! shares them, and writes use preallocated extents. Readers see the bytes written last throughout.

use super::support::{SECTOR, extents_of, scatter};
use crate::in_memory::{
    assert_clean, close_clean, crashed, formatted, open, open_read_only, open_with, writable,
};
use papilio::{File, FileSystem, InodeFlags, NocowCheck, OpenOptions, Tuning};

/// Makes a file without copy-on-write.
fn nocow_file(fs: &FileSystem, path: &str) -> File {
    let file = fs.create_file(path).unwrap();
    file.inode().set_flags(InodeFlags::NODATACOW).unwrap();
    fs.open_file(path).unwrap()
}

#[test]
fn a_preallocated_file_is_written_in_place() {
    let device = formatted(512 << 20);
    let fs = open(&device);
    let file = nocow_file(&fs, "/file");
    file.allocate(0, 16 << 20, false).unwrap();
    let before = extents_of(&file);
    assert!(before.iter().all(|extent| extent.3), "{before:?}");
    let mut model = vec![0; 16 << 20];
    let mut random = fastrand::Rng::with_seed(1);
    for round in 0..6 {
        scatter(&file, &mut model, &mut random, 40 << round);
        assert!(file.read_all().unwrap() == model, "before the flush, round {round}");
        fs.sync().unwrap();
        assert!(file.read_all().unwrap() == model, "after it, round {round}");
        assert_clean(&device);
        // The same location on the device, whichever part was written.
        let base = before[0].2 - before[0].0;
        assert!(before.len() > 1 || extents_of(&file).iter().all(|extent| extent.2 - extent.0 == base));
    }
    for at in (0..16 << 20).step_by(1 << 20) {
        file.write_all_at(&vec![7; 1 << 20], at).unwrap();
    }
    fs.sync().unwrap();
    let after = extents_of(&file);
    let written: Vec<_> =
        before.iter().map(|&(logical, length, physical, _)| (logical, length, physical, false)).collect();
    assert_eq!(after, written, "the pieces are merged again");
    drop(file);
    close_clean(fs, &device);
    assert!(open(&device).read("/file").unwrap() == vec![7; 16 << 20]);
}

#[test]
fn a_crash_loses_writes_into_preallocated_extents_that_no_sync_flushed() {
    let device = formatted(256 << 20);
    let fs = open(&device);
    let file = nocow_file(&fs, "/file");
    file.allocate(0, 1 << 20, false).unwrap();
    file.write_all_at(&[1; 8192], 0).unwrap();
    fs.sync().unwrap();
    let synced = crashed(&device);
    file.write_all_at(&[2; 8192], 65536).unwrap();
    let unsynced = crashed(&device);
    for crashed in [synced, unsynced] {
        assert_clean(&crashed);
        let bytes = open(&crashed).read("/file").unwrap();
        assert!(bytes[..8192] == [1; 8192] && bytes[65536..65536 + 8192] == [0; 8192]);
    }
    drop(file);
    fs.close().unwrap();
    assert!(open(&device).read("/file").unwrap()[65536..65536 + 8192] == [2; 8192]);
}

#[test]
fn overwrites_leave_snapshots_and_reflinks_unchanged() {
    for check in [NocowCheck::FirstMatch, NocowCheck::CollectAll] {
        let device = formatted(512 << 20);
        let mut tuning = Tuning::default();
        tuning.nocow_check = check;
        let fs = open_with(&device, &writable().tuning(tuning));
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
        // After a snapshot, the first write copies a range and later writes stay in place.
        fs.snapshot("/sub", "/last", true).unwrap();
        // Extents of the snapshot's own transaction count as shared.
        fs.sync().unwrap();
        file.write_all_at(&[9; 65536], 1 << 20).unwrap();
        let first = extents_of(&file);
        file.write_all_at(&[8; 65536], 1 << 20).unwrap();
        assert_eq!(extents_of(&file), first);
        drop(file);
        close_clean(fs, &device);
    }
}

#[test]
fn many_threads_write_and_read_one_file() {
    let device = formatted(512 << 20);
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
                    file.write_all_at(&bytes, thread * PART + at).unwrap();
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
    close_clean(fs, &device);
}

#[test]
fn writes_in_place_update_mtime_and_a_commit_keeps_a_set_mtime() {
    let device = formatted(256 << 20);
    let fs = open(&device);
    let file = nocow_file(&fs, "/file");
    file.allocate(0, 65536, false).unwrap();
    fs.sync().unwrap();
    let before = fs.metadata("/file").unwrap().mtime();
    // Until the clock shows a later time than the file has.
    while fs.now() <= before {
        std::hint::spin_loop();
    }
    file.write_all_at(&[1; 4096], 0).unwrap();
    let written = fs.metadata("/file").unwrap().mtime();
    assert!(written > before);
    let old = papilio::Timespec { seconds: 1000, nanoseconds: 5 };
    fs.set_times_nofollow("/file", None, Some(papilio::SetTime::At(old))).unwrap();
    fs.sync().unwrap();
    assert_eq!(fs.metadata("/file").unwrap().mtime().seconds, 1000);
    file.write_all_at(&[1; 4096], 0).unwrap();
    drop(file);
    fs.close().unwrap();
    assert!(open(&device).metadata("/file").unwrap().mtime().seconds > 1000);
}

#[test]
fn a_file_with_bytes_only_in_the_page_cache_is_not_empty() {
    let device = formatted(256 << 20);
    let fs = open_with(&device, &writable().cache_bytes(1 << 20));
    let file = fs.create_file("/f").unwrap();
    file.inode().set_flags(InodeFlags::NODATACOW).unwrap();
    file.write_all_at(b"not empty", 0).unwrap();
    // This flag of a file with data does not change.
    file.inode().set_flags(InodeFlags::empty()).unwrap();
    assert!(fs.metadata("/f").unwrap().flags().contains(InodeFlags::NODATACOW));
}

#[test]
fn both_nocow_checks_find_the_same_checksums() {
    let device = formatted(256 << 20);
    for check in [NocowCheck::FirstMatch, NocowCheck::CollectAll] {
        let mut tuning = Tuning::default();
        tuning.nocow_check = check;
        let fs = open_with(&device, &writable().tuning(tuning));
        let unsummed = nocow_file(&fs, &format!("/unsummed-{check:?}"));
        unsummed.write_all_at(&[1; 1 << 20], 0).unwrap();
        let mixed = fs.create_file(format!("/mixed-{check:?}")).unwrap();
        mixed.write_all_at(&[1; 64 << 10], 0).unwrap();
        mixed.allocate(64 << 10, 64 << 10, false).unwrap();
        mixed.write_all_at(&[1; 4096], 160 << 10).unwrap();
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
    let fs = open_with(&device, &compressed);
    let file = fs.create_file("/compressed").unwrap();
    file.write_all_at(&[7; 128 << 10], 0).unwrap();
    assert!(file.has_checksums(64 << 10..68 << 10).unwrap());
    drop(file);
    fs.close().unwrap();
    let fs = open_read_only(&device);
    assert!(fs.open_file("/compressed").unwrap().has_checksums(0..4096).is_err());
}
