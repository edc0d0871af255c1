//! Repairs of file systems with a log of fsyncs: the log stays, and its replay shows what was
//! fsynced. A log that cannot be replayed is not repaired around.

use super::image::Image;
use super::repaired::same;
use crate::in_memory::{check, crashed, formatted_with, has_log, open, superblock, writable};
use papilio::format::items::extent::ExtentHeader;
use papilio::format::items::inode::InodeItem;
use papilio::format::{ItemType, Key, objectid};
use papilio::{FileSystem, MkfsOptions, OpenOptions};
use papilio_device::{Device, MemoryDevice};
use papilio_oracle::{ImageSet, Need, Scratch, require};
use std::sync::Arc;

const FILES: usize = 300;
const FSYNCED: usize = 20;

/// Returns a device with a file system that has a log, as a power cut leaves it.
fn logged() -> MemoryDevice {
    let device = formatted_with(256 << 20, &MkfsOptions::new().node_size(4096));
    let fs = open(&device);
    for number in 0..FILES {
        fs.write(format!("/{number}"), vec![number as u8; 3000 + number]).unwrap();
    }
    fs.sync().unwrap();
    for number in 0..FSYNCED {
        let file = fs.create_file(format!("/fsynced{number}")).unwrap();
        file.write_all_at(&vec![7; 9000 + number], 0).unwrap();
        file.sync_all().unwrap();
    }
    let left = crashed(&device).snapshot();
    assert!(has_log(&left));
    left
}

fn assert_files(fs: &FileSystem, what: &str) {
    for number in 0..FSYNCED {
        let read = fs.read(format!("/fsynced{number}")).unwrap();
        assert!(read == vec![7; 9000 + number], "{what}: fsynced file {number}");
    }
    for number in 0..FILES {
        assert!(fs.read(format!("/{number}")).unwrap() == vec![number as u8; 3000 + number], "{what}");
    }
}

type Plant = fn(&Image);

fn faults() -> Vec<(&'static str, Plant)> {
    vec![
        ("a link count", |image| {
            let key = Key::new(300, ItemType::INODE_ITEM, 0);
            image.edit(objectid::FS_TREE, &key, |data| {
                let mut item = InodeItem::parse(data).unwrap();
                item.nlink = 3;
                *data = item.to_bytes().to_vec();
            });
        }),
        ("a count of references", |image| {
            let wanted = |key: &Key, _: &[u8]| key.item_type == ItemType::EXTENT_ITEM;
            let key = image.find(objectid::EXTENT_TREE, wanted).0;
            image.edit(objectid::EXTENT_TREE, &key, |data| {
                let mut header = ExtentHeader::parse_prefix(data).unwrap().0;
                header.refs += 1;
                data[..ExtentHeader::SIZE].copy_from_slice(&header.to_bytes());
            });
        }),
        ("a leaf of the extent tree", |image| {
            let leaf = image.leaves(objectid::EXTENT_TREE)[1];
            let places = image.copies(leaf);
            places.iter().for_each(|place| image.device.write_at(&[0; 4096], *place).unwrap());
        }),
        ("the root of the file system tree", |image| {
            let root = image.internal(objectid::FS_TREE);
            let places = image.copies(root);
            places.iter().for_each(|place| image.device.write_at(&[0; 4096], *place).unwrap());
        }),
        ("the free-space tree", |image| {
            let root = image.root(objectid::FREE_SPACE_TREE);
            let places = image.copies(root);
            places.iter().for_each(|place| image.device.write_at(&[0; 4096], *place).unwrap());
        }),
    ]
}

#[test]
fn a_repair_keeps_the_log() {
    let sound = logged();
    let folder = tempfile::tempdir().unwrap();
    for (name, plant) in faults() {
        let image = Image::new(sound.snapshot());
        plant(&image);
        let device = image.device;
        let before = device.snapshot();
        let devices = vec![device.clone() as Arc<dyn Device>];
        let open = OpenOptions::new();
        let plan = papilio::plan_repair(&devices, &open).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(plan.better && plan.after.counts.is_empty(), "{name}: {plan:#?}");
        let undo = folder.path().join("undo");
        papilio::repair(&devices, &open, &plan, &undo).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mended = crashed(&device);
        papilio::undo_repair(&devices, &undo).unwrap();
        std::fs::remove_file(&undo).unwrap();
        assert!(same(&device, &before), "{name}: the undo file");
        assert_eq!(superblock(&mended).log_root(), superblock(&before).log_root(), "{name}");
        kernel_replays(&mended, name);
        let fs = FileSystem::from_devices(vec![mended.clone() as Arc<dyn Device>], &writable()).unwrap();
        assert_files(&fs, name);
        fs.close().unwrap();
        assert!(!has_log(&mended) && check(&mended).counts.is_empty(), "{name}");
    }
}

fn kernel_replays(device: &MemoryDevice, name: &str) {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(300 << 20).unwrap();
    let path = scratch.image("logged", device.size()).unwrap();
    device.write_image(&path).unwrap();
    let set = ImageSet::open(&scratch, vec![path]);
    let mounted = set.mount().unwrap_or_else(|error| panic!("{name}: {error}"));
    for number in 0..FSYNCED {
        let read = std::fs::read(mounted.path().join(format!("fsynced{number}"))).unwrap();
        assert!(read == vec![7; 9000 + number], "{name}: the kernel's fsynced file {number}");
    }
    mounted.unmount().unwrap();
    set.btrfs_check().unwrap_or_else(|error| panic!("{name}: {error}"));
}

#[test]
fn a_log_that_cannot_be_replayed_is_named() {
    let image = Image::new(logged());
    let root = image.superblock.log_root().unwrap().0;
    for place in image.copies(root) {
        image.device.write_at(&[0; 4096], place).unwrap();
    }
    let (_, plant) = faults()[0];
    plant(&image);
    let before = image.device.snapshot();
    let devices = vec![image.device.clone() as Arc<dyn Device>];
    let open = OpenOptions::new();
    match papilio::plan_repair(&devices, &open) {
        Err(error) => assert!(error.to_string().contains("zero-log"), "{error}"),
        Ok(plan) => assert!(!plan.after.is_clean(), "{plan:#?}"),
    }
    assert!(same(&image.device, &before), "a plan writes nothing");
    // Without the log it is repaired.
    let plan = papilio::plan_superblocks(&devices, papilio::SuperblockChange::ZeroLog).unwrap();
    let folder = tempfile::tempdir().unwrap();
    papilio::write_superblocks(&devices, &plan, &folder.path().join("undo")).unwrap();
    let plan = papilio::plan_repair(&devices, &open).unwrap();
    assert!(plan.better && plan.after.counts.is_empty(), "{plan:#?}");
}
