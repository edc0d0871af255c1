//! Files after a power loss that followed an fsync. In memory, so that no test needs the kernel.

use crate::in_memory::{
    assert_clean, crashed, formatted_with, has_log, new_file_system, open, open_last_commit,
};
use crate::in_memory::{open_read_only, open_with, writable};
use papilio::{FileSystem, MkfsOptions};
use papilio_device::MemoryDevice;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// Opens what a power loss leaves now: a log, which is replayed.
fn after_power_loss(device: &MemoryDevice) -> (Arc<MemoryDevice>, FileSystem) {
    let left = crashed(device);
    assert!(has_log(&left), "the fsync was not a commit");
    let fs = open(&left);
    (left, fs)
}

/// Commits the replay, and checks it with all checksums of data.
fn close_replayed(fs: FileSystem, device: &Arc<MemoryDevice>) {
    fs.close().unwrap();
    assert_clean(device);
}

fn fsync(fs: &FileSystem, path: &str) {
    fs.open_file(path).unwrap().sync_all().unwrap();
}

fn names(fs: &FileSystem) -> Vec<String> {
    let mut names: Vec<_> = fs
        .read_dir("/")
        .unwrap()
        .map(|entry| String::from_utf8(entry.unwrap().file_name().to_vec()).unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn checksums_of_many_items_are_logged() {
    // Checksums of one extent fill several items.
    let device = formatted_with(256 * MIB, &MkfsOptions::new().node_size(4096));
    let fs = open(&device);
    // A log cannot tell of a new chunk, so that there is one before.
    fs.write("/filler", vec![1; 64 << 20]).unwrap();
    fs.sync().unwrap();
    fs.remove_file("/filler").unwrap();
    fs.sync().unwrap();
    let bytes: Vec<u8> = (0..24 * MIB as usize).map(|at| (at / 4096 % 251) as u8).collect();
    fs.write("/large", &bytes).unwrap();
    fsync(&fs, "/large");
    // A part of an extent whose rest is overwritten.
    fs.open_file("/large").unwrap().write_all_at(&[9; 8 << 20], 8 * MIB).unwrap();
    fsync(&fs, "/large");
    let (left, replayed) = after_power_loss(&device);
    let usage = open_last_commit(&crashed(&device)).log_usage().unwrap().unwrap();
    assert!(usage.extents > 1 && usage.extent_bytes >= 24 * MIB, "{usage:?}");
    assert_eq!(open_read_only(&left).log_usage().unwrap(), None, "replayed in memory");
    let mut expected = bytes;
    expected[8 << 20..16 << 20].fill(9);
    assert!(replayed.read("/large").unwrap() == expected);
    close_replayed(replayed, &left);
}

#[test]
fn a_removed_file_stays_removed() {
    let (device, fs) = new_file_system(128 * MIB);
    fs.write("/old", "committed").unwrap();
    fs.sync().unwrap();
    fs.write("/new", "fsynced").unwrap();
    fsync(&fs, "/new");
    fsync(&fs, "/old");
    fs.remove_file("/new").unwrap();
    fs.write("/other", "bytes").unwrap();
    fsync(&fs, "/other");
    let (left, replayed) = after_power_loss(&device);
    assert_eq!(names(&replayed), ["old", "other"]);
    assert_eq!(replayed.read("/old").unwrap(), b"committed");
    close_replayed(replayed, &left);
}

#[test]
fn a_related_file_stays_as_its_fsync_left_it() {
    let device = formatted_with(128 * MIB, &MkfsOptions::new());
    let fs = open_with(&device, &writable().cache_bytes(16 << 20));
    fs.write("/moved", vec![1; 8192]).unwrap();
    fsync(&fs, "/moved");
    let moved = fs.open_file("/moved").unwrap();
    moved.write_all_at(&[2; 8192], 8192).unwrap();
    // Its name goes to another file, so that the names are logged together.
    fs.rename("/moved", "/away").unwrap();
    fs.write("/moved", "new").unwrap();
    fsync(&fs, "/moved");
    let (left, replayed) = after_power_loss(&device);
    assert_eq!(names(&replayed), ["away", "moved"]);
    let away = replayed.read("/away").unwrap();
    assert!(away == [1; 8192] || away == [[1; 8192], [2; 8192]].concat(), "{} bytes", away.len());
    close_replayed(replayed, &left);
}

#[test]
fn a_related_file_has_all_or_none_of_its_data() {
    for committed in [false, true] {
        let device = formatted_with(128 * MIB, &MkfsOptions::new());
        let fs = open_with(&device, &writable().cache_bytes(16 << 20));
        fs.write("/moved", "").unwrap();
        if committed {
            fs.sync().unwrap();
        }
        let moved = fs.open_file("/moved").unwrap();
        moved.write_all_at(&[2; 20_000], 0).unwrap();
        fs.rename("/moved", "/away").unwrap();
        fs.write("/moved", "new").unwrap();
        fsync(&fs, "/moved");
        let left = crashed(&device);
        let replayed = open(&left);
        assert_eq!(names(&replayed), ["away", "moved"]);
        assert_eq!(replayed.read("/moved").unwrap(), b"new");
        let away = replayed.read("/away").unwrap();
        assert!(away.is_empty() || away == [2; 20_000], "{} bytes", away.len());
        close_replayed(replayed, &left);
    }
}

#[test]
fn a_subvolume_gives_its_name_to_a_file() {
    let (device, fs) = new_file_system(128 * MIB);
    fs.create_subvolume("/name").unwrap();
    fs.write("/file", "bytes").unwrap();
    fs.sync().unwrap();
    fs.delete_subvolume("/name").unwrap();
    fs.rename("/file", "/name").unwrap();
    fsync(&fs, "/name");
    let left = crashed(&device);
    let replayed = open(&left);
    assert_eq!(names(&replayed), ["name"]);
    assert_eq!(replayed.read("/name").unwrap(), b"bytes");
    close_replayed(replayed, &left);
}

#[test]
fn a_new_directory_is_logged_with_its_names() {
    let (device, fs) = new_file_system(128 * MIB);
    fs.create_dir("/old").unwrap();
    fs.write("/old/file", "bytes").unwrap();
    fs.sync().unwrap();
    fs.create_dir("/new").unwrap();
    fs.create_dir("/new/inner").unwrap();
    fs.rename("/old/file", "/new/inner/file").unwrap();
    fs.write("/new/other", "others").unwrap();
    fs.inode("/new").unwrap().sync_all().unwrap();
    let left = crashed(&device);
    let replayed = open(&left);
    assert_eq!(names(&replayed), ["new", "old"]);
    assert_eq!(replayed.read("/new/inner/file").unwrap(), b"bytes");
    assert!(replayed.inode("/old/file").is_err());
    close_replayed(replayed, &left);
}

#[test]
fn an_open_file_without_names_is_not_logged() {
    let (device, fs) = new_file_system(128 * MIB);
    fs.create_dir("/dir").unwrap();
    fs.write("/dir/file", "first").unwrap();
    fs.sync().unwrap();
    let kept = fs.open_file("/dir/file").unwrap();
    fs.remove_file("/dir/file").unwrap();
    fs.write("/dir/file", "second").unwrap();
    fsync(&fs, "/dir/file");
    let (left, replayed) = after_power_loss(&device);
    assert_eq!(replayed.read("/dir/file").unwrap(), b"second");
    close_replayed(replayed, &left);
    drop(kept);
}

#[test]
fn a_directory_that_was_emptied_and_replaced() {
    let (device, fs) = new_file_system(128 * MIB);
    fs.create_dir("/dir").unwrap();
    for name in 0..20 {
        fs.write(format!("/dir/{name}"), "old").unwrap();
    }
    fs.sync().unwrap();
    // Names of the old directory go with it; one file moves to the new one.
    fs.rename("/dir/7", "/seven").unwrap();
    for name in (0..20).filter(|name| *name != 7) {
        fs.remove_file(format!("/dir/{name}")).unwrap();
    }
    fs.remove_dir("/dir").unwrap();
    fs.create_dir("/dir").unwrap();
    fs.rename("/seven", "/dir/eight").unwrap();
    fsync(&fs, "/dir/eight");
    let (left, replayed) = after_power_loss(&device);
    assert_eq!(names(&replayed), ["dir"]);
    assert_eq!(replayed.read("/dir/eight").unwrap(), b"old");
    assert_eq!(replayed.read_dir("/dir").unwrap().count(), 1);
    close_replayed(replayed, &left);
}

#[test]
fn names_of_a_file_move_within_their_directory() {
    let (device, fs) = new_file_system(128 * MIB);
    let long = "n".repeat(200);
    fs.write("/file", "bytes").unwrap();
    // Some of the names are in extended references.
    for number in 0..150 {
        fs.hard_link("/file", format!("/{long}{number}")).unwrap();
    }
    fs.sync().unwrap();
    for number in (0..150).step_by(3) {
        fs.rename(format!("/{long}{number}"), format!("/{long}x{number}")).unwrap();
    }
    for number in (1..150).step_by(3) {
        fs.remove_file(format!("/{long}{number}")).unwrap();
    }
    fsync(&fs, "/file");
    let before = names(&fs);
    let last = open_last_commit(&crashed(&device));
    let usage = last.log_usage().unwrap().unwrap();
    assert_eq!((usage.logs, usage.extents), (1, 0), "the bytes are inline, and committed");
    assert!(usage.blocks > 1, "{usage:?}");
    let (left, replayed) = after_power_loss(&device);
    assert_eq!(names(&replayed), before);
    assert_eq!(replayed.metadata("/file").unwrap().nlink() as usize, before.len());
    close_replayed(replayed, &left);
}
