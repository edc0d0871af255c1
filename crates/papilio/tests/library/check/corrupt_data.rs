//! A repair never calls corrupt data right: where extent items of data are lost or wrong, and a
//! sector of that data is corrupt, the sector's checksum survives the repair and still says so.

use super::image::Image;
use crate::in_memory::{check, crashed, formatted, open};
use papilio::FindingKind;
use papilio::format::items::extent::{ExtentFlags, ExtentItem};
use papilio::format::{ItemType, Key, LogicalAddress, objectid};
use papilio::{FileSystem, OpenOptions};
use papilio_device::{Device, MemoryDevice};
use papilio_oracle::{ImageSet, Need, Scratch, require};
use std::sync::Arc;

const FILES: u8 = 30;
const BYTES: usize = 200_000;
const SECTOR: u64 = 4096;

fn content(number: u8) -> Vec<u8> {
    (0..BYTES).map(|at| (at / 251) as u8 ^ number).collect()
}

fn sample() -> MemoryDevice {
    let device = formatted(256 << 20);
    let fs = open(&device);
    for number in 0..FILES {
        fs.write(format!("/{number}"), content(number)).unwrap();
    }
    fs.close().unwrap();
    device.snapshot()
}

/// The keys of the items of data extents.
fn extents(image: &Image) -> Vec<Key> {
    let mut keys = Vec::new();
    image.for_each_item(objectid::EXTENT_TREE, |_, key, data| {
        let item = ExtentItem::parse(key.item_type, data);
        if key.item_type == ItemType::EXTENT_ITEM
            && item.is_ok_and(|item| item.header.flags.contains(ExtentFlags::DATA))
        {
            keys.push(key);
        }
    });
    keys
}

/// Repairs what `plant` did to the extent items, with the second sector of the extent at each of
/// `bad` corrupt. Reads all files afterwards.
fn judge(what: &str, plant: impl Fn(&Image, &[Key]) -> Vec<u64>) {
    let image = Image::new(sample());
    let keys = extents(&image);
    assert!(keys.len() >= FILES.into());
    let bad = plant(&image, &keys);
    for start in &bad {
        image.flip(LogicalAddress(start + SECTOR), 1);
    }
    let devices = vec![image.device.clone() as Arc<dyn Device>];
    let folder = tempfile::tempdir().unwrap();
    let plan = papilio::plan_repair(&devices, &OpenOptions::new()).unwrap();
    if std::env::var_os("PAPILIO_FAULT").is_some() {
        println!("{:#?}\n{:#?}\n{:#?}", plan.before.findings, plan.changes, plan.after.findings);
    }
    assert!(plan.better, "{what}: {:?}", plan.refused);
    papilio::repair(&devices, &OpenOptions::new(), &plan, &folder.path().join("undo")).unwrap();
    let after = crashed(&image.device);

    let report = check(&after);
    let counts: Vec<_> = report.counts.iter().map(|(kind, count)| (*kind, *count)).collect();
    assert_eq!(counts, [(FindingKind::DataChecksum, bad.len() as u64)], "{what}: {:#?}", report.findings);
    let found: Vec<_> = report.findings.iter().filter_map(|finding| finding.place.address).collect();
    let wanted: Vec<_> = bad.iter().map(|start| LogicalAddress(start + SECTOR)).collect();
    assert_eq!(found, wanted, "{what}");

    let fs = FileSystem::from_devices(vec![after.clone() as Arc<dyn Device>], &OpenOptions::new()).unwrap();
    let mut failed = 0;
    for number in 0..FILES {
        match fs.read(format!("/{number}")) {
            Ok(read) => assert!(read == content(number), "{what}: file {number} has other bytes"),
            Err(error) => {
                assert!(error.to_string().contains("checksum"), "{what}: {error}");
                failed += 1;
            }
        }
    }
    assert_eq!(failed, bad.len(), "{what}");
    if require(&[Need::Command("btrfs")]).is_none() {
        return;
    }
    let scratch = Scratch::new(300 << 20).unwrap();
    let path = scratch.image("repaired", after.size()).unwrap();
    after.write_image(&path).unwrap();
    let stock = ImageSet::open(&scratch, vec![path]).btrfs_check().unwrap_err().to_string();
    for LogicalAddress(address) in wanted {
        assert!(stock.contains(&address.to_string()), "{what}: {stock}");
    }
}

#[test]
fn a_repair_of_lost_extent_items_keeps_the_checksums_of_their_data() {
    judge("one extent item is lost", |image, keys| {
        image.remove(objectid::EXTENT_TREE, &keys[3]);
        vec![keys[3].objectid]
    });
    judge("all extent items of data are lost", |image, keys| {
        keys.iter().for_each(|key| image.remove(objectid::EXTENT_TREE, key));
        vec![keys[0].objectid, keys[7].objectid, keys[29].objectid]
    });
}

#[test]
fn a_repair_of_wrong_extent_items_keeps_the_checksums_of_their_data() {
    judge("an extent item is too short", |image, keys| {
        image.edit_key(objectid::EXTENT_TREE, &keys[5], |key| key.offset = SECTOR);
        vec![keys[5].objectid]
    });
    judge("an extent item has another address", |image, keys| {
        image.edit_key(objectid::EXTENT_TREE, &keys[9], |key| {
            key.objectid += SECTOR * 3;
            key.offset -= SECTOR * 3;
        });
        vec![keys[9].objectid]
    });
}
