//! A file system that the kernel refuses to mount is refused for writing, with the reason, and
//! nothing is written. One that the kernel mounts can be written.

use super::image::Image;
use crate::in_memory::{assert_clean, check, crashed, formatted_with, try_open, writable};
use papilio::format::features::SuperblockFlags;
use papilio::format::items::block_group::{BlockGroupFlags, BlockGroupItem};
use papilio::format::items::device::{DeviceExtent, DeviceItem};
use papilio::format::superblock::superblock_offset;
use papilio::format::{ItemType, Key, PhysicalAddress, TreeId, objectid};
use papilio::{FindingKind, MkfsFeature, MkfsOptions, OpenOptions};
use papilio_device::{Device, FaultDevice, MemoryDevice};
use papilio_oracle::{FileSystemSpec, ImageSet, Need, Scratch, TreeSpec, require};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const DEVICES: TreeId = objectid::DEV_TREE;
const EXTENTS: TreeId = objectid::EXTENT_TREE;

type Plant = fn(&mut Image);

fn make(scratch: &Scratch) -> MemoryDevice {
    let spec = FileSystemSpec { nodesize: Some(4096), ..FileSystemSpec::default() };
    let images = spec.make(scratch).expect("mkfs");
    let mounted = images.mount().expect("mount");
    let tree = TreeSpec { files: 20, bytes: MIB, seed: 7, subvolumes: true };
    tree.populate(mounted.path()).expect("populate");
    mounted.unmount().expect("unmount");
    MemoryDevice::from_image(&images.paths()[0]).expect("memory")
}

fn edit_device(image: &Image, edit: impl Fn(&mut DeviceItem)) {
    let key = Key::new(objectid::DEV_ITEMS, ItemType::DEV_ITEM, 1);
    image.edit(objectid::CHUNK_TREE, &key, |data| {
        let mut item = DeviceItem::parse(data).unwrap();
        edit(&mut item);
        *data = item.to_bytes().to_vec();
    });
}

fn edit_extent(image: &Image, edit: impl Fn(&mut DeviceExtent)) {
    let key = device_extent(image);
    image.edit(DEVICES, &key, |data| {
        let mut item = DeviceExtent::parse(data).unwrap();
        edit(&mut item);
        *data = item.to_bytes().to_vec();
    });
}

fn device_extent(image: &Image) -> Key {
    image.find(DEVICES, |key, _| key.item_type == ItemType::DEV_EXTENT).0
}

fn group(image: &Image) -> Key {
    image.find(EXTENTS, |key, _| key.item_type == ItemType::BLOCK_GROUP_ITEM).0
}

fn break_root(image: &Image, tree: TreeId) {
    image.flip(image.root(tree), 2);
}

fn lose_root(image: &Image, tree: TreeId) {
    let is_root = |key: &Key, _: &[u8]| key.objectid == tree.0 && key.item_type == ItemType::ROOT_ITEM;
    let key = image.find(objectid::ROOT_TREE, is_root).0;
    image.remove(objectid::ROOT_TREE, &key);
}

/// Each fault, a part of the reason, and whether the rest can be read.
const REFUSED: &[(&str, &str, bool, Plant)] = &[
    ("the superblock's size below its devices'", "bytes in total", true, |image| {
        image.superblock.raw.total_bytes -= MIB;
        image.write_superblock();
    }),
    ("an unknown superblock flag", "flags", true, |image| {
        image.superblock.raw.flags |= SuperblockFlags::CHANGING_BG_TREE;
        image.write_superblock();
    }),
    ("an unknown read-only-compatible feature", "compatible", true, |image| {
        let bits = image.superblock.raw.compat_ro_flags.bits() | 1 << 40;
        image.superblock.raw.compat_ro_flags =
            papilio::format::features::CompatRoFeatures::from_bits_retain(bits);
        image.write_superblock();
    }),
    ("a device item beyond the device", "fix-device-size", true, |image| {
        edit_device(image, |item| item.total_bytes += MIB);
        image.superblock.raw.total_bytes += MIB;
        image.superblock.raw.dev_item.total_bytes += MIB;
        image.write_superblock();
    }),
    ("a device extent lost", "device extents for", true, |image| {
        let key = device_extent(image);
        image.remove(DEVICES, &key);
    }),
    ("a device extent of another chunk", "chunk", true, |image| {
        edit_extent(image, |item| item.chunk_offset.0 += 1 << 40);
    }),
    ("a device extent of another length", "bytes", true, |image| {
        edit_extent(image, |item| item.length -= 65536);
    }),
    ("a device extent past the end", "", true, |image| {
        let (key, data) = image.find(DEVICES, |key, _| key.item_type == ItemType::DEV_EXTENT);
        image.insert(DEVICES, Key::new(key.objectid, key.item_type, 1 << 40), data);
    }),
    ("a block group without a chunk", "no chunk", true, |image| {
        let item = BlockGroupItem { used: 0, chunk_objectid: 256, flags: BlockGroupFlags::DATA };
        let key = Key::new(1 << 45, ItemType::BLOCK_GROUP_ITEM, MIB);
        image.insert(EXTENTS, key, item.to_bytes().to_vec());
    }),
    ("the extent tree's root broken", "", true, |image| break_root(image, EXTENTS)),
    ("the device tree's root broken", "", true, |image| break_root(image, DEVICES)),
    ("the checksum tree's root broken", "", true, |image| break_root(image, objectid::CSUM_TREE)),
    ("the free-space tree's root broken", "", true, |image| break_root(image, objectid::FREE_SPACE_TREE)),
    ("the UUID tree's root broken", "UUID tree", true, |image| break_root(image, objectid::UUID_TREE)),
    ("the data relocation tree lost", "data relocation", true, |image| {
        lose_root(image, objectid::DATA_RELOC_TREE);
    }),
    ("the data relocation tree's root broken", "data relocation", true, |image| {
        break_root(image, objectid::DATA_RELOC_TREE);
    }),
];

/// Faults that the kernel mounts with; a writer here needs the lost item.
const STRICTER: &[(&str, &str, Plant)] = &[("a chunk without a block group", "block group", |image| {
    let key = group(image);
    image.remove(EXTENTS, &key);
})];

/// Faults that the kernel mounts with, and mends.
const MOUNTED: &[(&str, Plant)] = &[
    ("nothing", |_| {}),
    ("a superblock copy damaged", |image| {
        let place = PhysicalAddress(superblock_offset(1).0 + 1000);
        image.device.write_at(&[0xff], place).unwrap();
    }),
    ("a superblock copy absent", |image| {
        image.device.write_at(&[0; 4096], superblock_offset(1)).unwrap();
    }),
    ("the UUID tree lost", |image| lose_root(image, objectid::UUID_TREE)),
];

/// Whether the kernel mounts a copy of the device for writing.
fn kernel_mounts(scratch: &Scratch, device: &MemoryDevice) -> bool {
    let path = scratch.unique("refused");
    device.write_image(&path).expect("an image");
    let images = ImageSet::open(scratch, vec![path.clone()]);
    let mounts = images.mount().is_ok();
    std::fs::remove_file(&path).expect("the image");
    mounts
}

fn planted(base: &MemoryDevice, plant: Plant) -> Arc<MemoryDevice> {
    let mut image = Image::new(base.snapshot());
    plant(&mut image);
    image.device
}

/// Opens a device for writing, which a rule forbids. Returns the differences from that.
fn try_refused(name: &str, reason: &str, readable: bool, device: &Arc<MemoryDevice>) -> Vec<String> {
    let mut wrong = Vec::new();
    let counted = Arc::new(FaultDevice::new(device.clone()));
    match try_open(&counted, &writable()) {
        Ok(_) => wrong.push(format!("{name}: opened for writing")),
        Err(error) if !error.to_string().contains(reason) => wrong.push(format!("{name}: {error}")),
        Err(error) => println!("{name}: {error}"),
    }
    let calls = counted.counts();
    if calls.writes + calls.discards > 0 {
        wrong.push(format!("{name}: something was written"));
    }
    let read = try_open(device, &OpenOptions::new());
    if read.is_ok() != readable {
        wrong.push(format!("{name}: opening for reading: {:?}", read.err().map(|e| e.to_string())));
    }
    wrong
}

/// The faults, and whether the kernel mounts with them.
fn forbidden() -> impl Iterator<Item = (&'static str, &'static str, bool, Plant, bool)> {
    let stricter = STRICTER.iter().map(|(name, reason, plant)| (*name, *reason, true, *plant, true));
    let refused =
        REFUSED.iter().map(|(name, reason, readable, plant)| (*name, *reason, *readable, *plant, false));
    refused.chain(stricter)
}

#[test]
fn broken_rules_forbid_writing() {
    // The faults are planted in an extent tree that has the block groups.
    let options = MkfsOptions::new().feature(MkfsFeature::BlockGroupTree, false);
    let device = formatted_with(512 << 20, &options);
    let fs = try_open(&device, &writable()).expect("open");
    for number in 0..20 {
        let file = fs.create_file(format!("/file{number}")).expect("a file");
        file.write_all_at(&vec![number; 60_000], 0).expect("bytes");
    }
    fs.create_subvolume("/subvolume").expect("a subvolume");
    fs.close().expect("close");
    for (name, reason, readable, plant, _) in forbidden() {
        let wrong = try_refused(name, reason, readable, &planted(&device, plant));
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
    for (name, plant) in MOUNTED {
        let fs = try_open(&planted(&device, *plant), &writable());
        fs.unwrap_or_else(|error| panic!("{name}: {error}")).close().expect("close");
    }
}

#[test]
fn what_the_kernel_refuses_is_never_opened_for_writing() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).expect("a scratch folder");
    let base = make(&scratch);
    let mut wrong = Vec::new();
    for (name, reason, readable, plant, mounts) in forbidden() {
        let device = planted(&base, plant);
        if kernel_mounts(&scratch, &device) != mounts {
            wrong.push(format!("{name}: the kernel mounts it: {}", !mounts));
        }
        wrong.extend(try_refused(name, reason, readable, &device));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn what_the_kernel_mounts_is_opened_for_writing() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).expect("a scratch folder");
    let base = make(&scratch);
    for (name, plant) in MOUNTED {
        let device = planted(&base, *plant);
        assert!(kernel_mounts(&scratch, &device), "{name}: the kernel refuses it");
        let fs = try_open(&device, &writable()).unwrap_or_else(|error| panic!("{name}: {error}"));
        fs.create_file("/written").unwrap();
        fs.close().unwrap();
        let left = check(&device);
        assert!(!left.counts.contains_key(&FindingKind::SuperblockCopy), "{name}: {:#?}", left.findings);
        assert!(kernel_mounts(&scratch, &crashed(&device)), "{name}: the kernel refuses what was written");
        if *name != "the UUID tree lost" {
            assert_clean(&device);
        }
    }
}
