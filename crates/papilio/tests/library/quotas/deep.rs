//! Qgroups of subvolumes whose trees have several levels and are shared at each of them.

use super::judge::assert_exact;
use crate::images::writable;
use papilio::{FileSystem, MkfsOptions};
use papilio_oracle::Scratch;

/// Files of each subvolume: with nodes of 4 KiB, blocks of level 2 and more.
const FILES: usize = 4000;

/// Writes a file: most are inline, some have an extent.
fn write(fs: &FileSystem, path: &str, number: usize, byte: u8) {
    let bytes = if number.is_multiple_of(50) { 6000 } else { 1500 };
    let file = fs.open_file(path).or_else(|_| fs.create_file(path)).unwrap();
    file.write_all_at(&vec![byte; bytes], 0).unwrap();
}

#[test]
fn blocks_of_each_level_are_shared_and_counted() {
    let scratch = Scratch::new(2 << 30).unwrap();
    let image = scratch.image("deep", 1 << 30).unwrap();
    papilio::mkfs(&image, &MkfsOptions::new().node_size(4096).force(true)).unwrap();
    let fs = FileSystem::open_with(&image, &writable()).unwrap();
    fs.enable_quotas().unwrap();
    fs.rescan_quotas(|_| ()).unwrap();
    fs.create_subvolume("/a").unwrap();
    for number in 0..FILES {
        write(&fs, &format!("/a/file{number}"), number, 1);
    }
    fs.snapshot("/a", "/b", false).unwrap();
    fs.sync().unwrap();
    // Neighbours share a path to the root, and the others share most of theirs with the snapshot.
    for number in (0..40).chain((0..FILES).step_by(700)) {
        write(&fs, &format!("/a/file{number}"), number, 2);
    }
    fs.sync().unwrap();
    fs.snapshot("/b", "/c", false).unwrap();
    fs.snapshot("/a", "/d", true).unwrap();
    for number in (20..60).chain((0..FILES).step_by(450)) {
        write(&fs, &format!("/b/file{number}"), number, 3);
        fs.remove_file(format!("/c/file{number}")).unwrap();
    }
    fs.sync().unwrap();
    for number in (0..FILES).step_by(900) {
        fs.remove_file(format!("/a/file{number}")).unwrap();
        write(&fs, &format!("/c/new{number}"), number, 4);
    }
    fs.close().unwrap();
    assert_exact(&scratch, &image, "trees that share blocks");
    let fs = FileSystem::open_with(&image, &writable()).unwrap();
    fs.delete_subvolume("/b").unwrap();
    fs.clean_subvolumes().unwrap();
    for number in (1..FILES).step_by(800) {
        write(&fs, &format!("/a/file{number}"), number, 5);
    }
    fs.close().unwrap();
    assert_exact(&scratch, &image, "one of the trees is gone");
}
