//! A repair for which no metadata chunk has room: it adds one, as a mount would.

use super::image::Image;
use super::repaired::{agrees, same};
use crate::in_memory::{check, crashed, formatted, open, open_read_only};
use papilio::format::items::back_ref::DataRef;
use papilio::format::items::block_group::{BlockGroupFlags, BlockGroupItem};
use papilio::format::items::extent::{ExtentFlags, ExtentHeader, ExtentItem};
use papilio::format::{FileOffset, InodeNumber, ItemType, Key, objectid};
use papilio::{OpenOptions, RepairOptions};
use papilio_device::{Device, MemoryDevice};
use papilio_oracle::{Need, require};
use std::sync::Arc;

fn sample() -> Arc<MemoryDevice> {
    let device = formatted(256 << 20);
    let fs = open(&device);
    for number in 0..400 {
        fs.write(format!("/file-{number}"), vec![number as u8; 300 * (number % 50) + 1]).unwrap();
    }
    fs.close().unwrap();
    device
}

/// Adds extents that cover all free space of the metadata chunks: a repair must not use what may be
/// in them.
fn fill_metadata(image: &Image) {
    let mut groups = Vec::new();
    let converted = image.has(objectid::BLOCK_GROUP_TREE);
    let holder = if converted { objectid::BLOCK_GROUP_TREE } else { objectid::EXTENT_TREE };
    image.for_each_item(holder, |_, key, data| {
        if key.item_type == ItemType::BLOCK_GROUP_ITEM
            && BlockGroupItem::parse(data).unwrap().flags.contains(BlockGroupFlags::METADATA)
        {
            groups.push(key);
        }
    });
    assert!(!groups.is_empty());
    let node_size = u64::from(image.geometry.node_size);
    for group in groups {
        let mut used = Vec::new();
        image.for_each_item(objectid::EXTENT_TREE, |_, key, _| {
            let inside = (group.objectid..group.objectid + group.offset).contains(&key.objectid);
            used.extend((key.item_type == ItemType::METADATA_ITEM && inside).then_some(key.objectid));
        });
        used.push(group.objectid + group.offset);
        let mut at = group.objectid;
        for start in used {
            if start > at {
                let header =
                    ExtentHeader { refs: 1, generation: image.generation(), flags: ExtentFlags::DATA };
                let (root, inode) = (objectid::FS_TREE, InodeNumber(4000));
                let owner = DataRef { root, inode, offset: FileOffset(0), count: 1 };
                let key = Key::new(at, ItemType::EXTENT_ITEM, start - at);
                let item = ExtentItem::encode(&header, None, &[owner.into()]);
                image.insert(objectid::EXTENT_TREE, key, item);
            }
            at = start + node_size;
        }
    }
}

fn contents(device: &Arc<MemoryDevice>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let fs = open_read_only(device);
    let files = fs.walk("/").unwrap().map(|entry| entry.unwrap().path);
    let path = |path: &[u8]| std::str::from_utf8(path).unwrap().to_owned();
    let mut all: Vec<_> = files
        .filter(|found| found.windows(5).any(|part| part == b"file-"))
        .map(|found| (fs.read(path(&found)).unwrap(), found))
        .map(|(data, found)| (found, data))
        .collect();
    all.sort();
    all
}

/// Repairs the device, and asserts that a chunk was added and everything is as before.
fn assert_repaired(device: &Arc<MemoryDevice>, sound: &Arc<MemoryDevice>, options: &RepairOptions) {
    let before = device.snapshot();
    let devices = vec![device.clone() as Arc<dyn Device>];
    let open = OpenOptions::new();
    let plan = papilio::plan_repair_with(&devices, &open, options).unwrap();
    let added = plan.changes.iter().filter(|change| change.contains("add a metadata chunk")).count();
    assert_eq!(added, 1, "{:#?} {:#?}", plan.changes, plan.refused);
    assert!(plan.better && plan.after.counts.is_empty(), "{:#?}", plan.after.findings);
    let folder = tempfile::tempdir().unwrap();
    let undo = folder.path().join("undo");
    papilio::repair(&devices, &open, &plan, &undo).unwrap();
    assert!(check(&crashed(device)).counts.is_empty());
    assert_eq!(contents(device).len(), 400);
    assert!(contents(device) == contents(sound), "other data");
    if require(Need::KERNEL_MOUNT).is_some() {
        agrees(device, sound).unwrap();
    }
    papilio::undo_repair(&devices, &undo).unwrap();
    assert!(same(device, &before), "the undo file restores every byte");
}

#[test]
fn a_tree_is_written_anew_in_a_new_chunk() {
    let sound = sample();
    let image = Image::new(sound.snapshot());
    fill_metadata(&image);
    assert_repaired(&image.device, &sound, &RepairOptions::new().init_extent_tree(true));
}

#[test]
fn a_lost_node_is_replaced_in_a_new_chunk() {
    let sound = sample();
    let image = Image::new(sound.snapshot());
    fill_metadata(&image);
    let root = image.internal(objectid::FS_TREE);
    for place in image.copies(root) {
        image.device.write_at(&vec![0; image.geometry.node_size as usize], place).unwrap();
    }
    assert_repaired(&image.device, &sound, &RepairOptions::new());
}
