//! References to one extent whose keys collide: two file offsets with the same hash.
//!
//! Offsets that differ in few neighbouring bits never collide, because the hash is a CRC. Those of
//! some 100,000 clones in many files do.

use crate::in_memory::{assert_clean, check, crashed, formatted, open};
use papilio::format::items::back_ref::data_ref_hash;
use papilio::format::{FileOffset, InodeNumber, objectid};
use papilio::{FileSystem, OpenOptions, RepairOptions};
use papilio_device::{Device, MemoryDevice};
use papilio_oracle::{ImageSet, Need, Scratch, require};
use std::collections::HashMap;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const SECTOR: u64 = 4096;
/// Clones that fill the extent's item, so that more have items of their own.
const FILL: u64 = 60;

/// Returns two file offsets above the first clones whose references have the same hash.
fn colliding(inode: InodeNumber) -> [u64; 2] {
    let mut random = fastrand::Rng::with_seed(1);
    let mut known = HashMap::new();
    let pair = (0..10_000_000).find_map(|_| {
        let offset = random.u64(FILL..1 << 40) * SECTOR;
        let hash = data_ref_hash(objectid::FS_TREE, inode, FileOffset(offset));
        known.insert(hash, offset).filter(|other| *other != offset).map(|other| [other, offset])
    });
    pair.expect("some of 10,000,000 hashes of 32 bits collide")
}

/// Makes clones of a file's only sector at the first sectors of another and at two offsets that
/// collide, which are returned.
fn cloned() -> (Arc<MemoryDevice>, FileSystem, [u64; 2]) {
    let device = formatted(256 << 20);
    let fs = open(&device);
    let source = fs.create_file("/source").unwrap();
    source.write_all_at(&[7; SECTOR as usize], 0).unwrap();
    let clones = fs.create_file("/clones").unwrap();
    let pair = colliding(clones.inode().number());
    for offset in (0..FILL).map(|sector| sector * SECTOR).chain(pair) {
        clones.clone_range(&source, 0, SECTOR, offset).unwrap();
    }
    fs.sync().unwrap();
    assert_clean(&device);
    (device, fs, pair)
}

#[test]
fn each_reference_can_be_dropped_and_added_again() {
    for swapped in [false, true] {
        let (device, fs, [mut first, mut second]) = cloned();
        if swapped {
            std::mem::swap(&mut first, &mut second);
        }
        let clones = fs.open_file("/clones").unwrap();
        let source = fs.open_file("/source").unwrap();
        let drop_at = |offset| clones.punch_hole(offset, SECTOR).unwrap();
        let add_at = |offset| clones.clone_range(&source, 0, SECTOR, offset).unwrap();
        let commit = || {
            fs.sync().unwrap();
            assert_clean(&device);
        };
        drop_at(first);
        commit();
        drop_at(second);
        commit();
        add_at(second);
        add_at(first);
        commit();
        // The reference that stays has a gap before it.
        drop_at(first);
        commit();
        add_at(first);
        commit();
        drop_at(first);
        drop_at(second);
        commit();
        fs.close().unwrap();
    }
}

#[test]
fn a_repair_writes_both_items() {
    let (device, fs, _) = cloned();
    fs.close().unwrap();
    let devices = vec![device.clone() as Arc<dyn Device>];
    let options = RepairOptions::new().init_extent_tree(true);
    let plan = papilio::plan_repair_with(&devices, &OpenOptions::new(), &options).unwrap();
    assert!(plan.better, "{:#?} {:#?}", plan.refused, plan.after.findings);
    let folder = tempfile::tempdir().unwrap();
    papilio::repair(&devices, &OpenOptions::new(), &plan, &folder.path().join("undo")).unwrap();
    assert!(check(&device).counts.is_empty(), "{:#?}", check(&device).findings);
}

/// The kernel takes the items of both references, and drops the one behind a gap.
#[test]
fn the_kernel_finds_a_reference_behind_a_gap() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let (device, fs, [first, second]) = cloned();
    fs.open_file("/clones").unwrap().punch_hole(first, SECTOR).unwrap();
    fs.close().unwrap();
    let scratch = Scratch::new(1 << 30).unwrap();
    let path = scratch.unique("image");
    device.write_image(&path).unwrap();
    let images = ImageSet::open(&scratch, vec![path.clone()]);
    images.btrfs_check().unwrap();
    let mounted = images.mount().unwrap();
    let clones = std::fs::OpenOptions::new().read(true).write(true).open(mounted.path().join("clones"));
    let clones = clones.unwrap();
    let mut read = [0; SECTOR as usize];
    clones.read_exact_at(&mut read, second).unwrap();
    assert_eq!(read, [7; SECTOR as usize]);
    clones.set_len(second).unwrap();
    drop(clones);
    mounted.unmount().unwrap();
    images.btrfs_check().unwrap();
    let changed = Arc::new(MemoryDevice::from_image(&path).unwrap());
    assert_clean(&crashed(&changed));
}
