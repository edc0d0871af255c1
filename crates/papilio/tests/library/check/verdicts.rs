//! Verdicts about images of other shapes than the planted faults need: nodes of 16 KiB, logs, old
//! forms of extent items, dumps of metadata.

use super::image::Image;
use crate::in_memory::{check, crashed, formatted_with, open, superblock};
use papilio::format::features::SuperblockFlags;
use papilio::format::items::file_extent::{FileExtentContent, FileExtentItem};
use papilio::format::items::root::RootItem;
use papilio::format::node::{ItemHeader, NodeHeader};
use papilio::format::superblock::superblock_offset;
use papilio::format::{ItemType, Key, LogicalAddress, TreeId, objectid};
use papilio::{CheckOptions, CheckReport, FindingKind, MkfsOptions, OpenOptions};
use papilio_device::{Device, MemoryDevice};
use papilio_oracle::{FileSystemSpec, ImageSet, Need, Scratch, require};
use std::fs;
use std::path::Path;
use std::sync::Arc;

const FS: TreeId = objectid::FS_TREE;

/// Makes a file system of the kernel and fills it; returns it on a device.
fn made_by_kernel(spec: &FileSystemSpec, fill: impl FnOnce(&Path)) -> MemoryDevice {
    let scratch = Scratch::new(512 << 20).unwrap();
    let images = spec.make(&scratch).unwrap();
    let mounted = images.mount().unwrap();
    fill(mounted.path());
    mounted.unmount().unwrap();
    MemoryDevice::from_image(&images.paths()[0]).unwrap()
}

fn kinds(report: &CheckReport) -> Vec<FindingKind> {
    report.counts.keys().copied().collect()
}

/// Repairs a device; nothing may be left, btrfs-progs may have no complaint, and the kernel must
/// find `files` at the top.
fn repairs(image: &Image, files: usize) {
    let devices = vec![image.device.clone() as Arc<dyn Device>];
    let plan = papilio::plan_repair(&devices, &OpenOptions::new()).unwrap();
    assert!(plan.better && plan.after.counts.is_empty(), "{:#?} {:#?}", plan.refused, plan.after.findings);
    assert!(plan.kept.as_ref().is_none_or(|kept| kept.lost.is_empty()), "{:#?}", plan.kept);
    let folder = tempfile::tempdir().unwrap();
    papilio::repair(&devices, &OpenOptions::new(), &plan, &folder.path().join("undo")).unwrap();
    let scratch = Scratch::new(600 << 20).unwrap();
    let path = scratch.image("mended", image.device.size()).unwrap();
    image.device.write_image(&path).unwrap();
    let mended = ImageSet::open(&scratch, vec![path]);
    mended.btrfs_check().unwrap();
    let mounted = mended.mount().unwrap();
    assert_eq!(fs::read_dir(mounted.path()).unwrap().count(), files);
    mounted.unmount().unwrap();
}

fn write_files(top: &Path, count: usize) {
    for number in 0..count {
        fs::write(top.join(format!("file{number}")), vec![number as u8; 100 + number * 50]).unwrap();
    }
}

#[test]
fn a_block_in_two_stripes_is_moved() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let spec = FileSystemSpec { device_size: 128 << 20, ..FileSystemSpec::default() };
    let image = Image::new(made_by_kernel(&spec, |top| write_files(top, 300)));
    let parent = image.internal(FS);
    let leaf = image.leaves(FS)[1];
    // Far behind all blocks in use, and half in the next stripe.
    let place = LogicalAddress((leaf.0 / (64 << 10) + 160) * (64 << 10) - (8 << 10));
    let mut bytes = image.read_block(leaf);
    let mut header = NodeHeader::parse_prefix(&bytes).unwrap().0;
    header.address = place;
    bytes[..NodeHeader::SIZE].copy_from_slice(&header.to_bytes());
    image.write_block(place, bytes);
    let slot = (0..image.children(parent)).find(|slot| {
        let mut found = false;
        image.edit_pointer(parent, *slot, |pointer| found = pointer.address == leaf);
        found
    });
    image.edit_pointer(parent, slot.unwrap(), |pointer| pointer.address = place);
    let report = check(&image.device);
    assert!(kinds(&report).contains(&FindingKind::BlockCrossesStripes), "{:#?}", report.findings);
    repairs(&image, 300);
}

#[test]
fn old_extent_items_of_tree_blocks_are_written_anew() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let features = ["^skinny-metadata"].map(str::to_owned).to_vec();
    let nodesize = Some(4096);
    let spec = FileSystemSpec { device_size: 128 << 20, features, nodesize, ..FileSystemSpec::default() };
    let device = made_by_kernel(&spec, |top| write_files(top, 100));
    for level in [0, 1] {
        let image = Image::new(device.snapshot());
        let block = image.blocks(FS).into_iter().find(|block| image.level(*block) == level).unwrap();
        image.remove(objectid::EXTENT_TREE, &Key::new(block.0, ItemType::EXTENT_ITEM, 4096));
        let report = check(&image.device);
        assert!(kinds(&report).contains(&FindingKind::ExtentMissing), "{:#?}", report.findings);
        repairs(&image, 100);
    }
}

/// A file system that the kernel commits on request only.
fn seldom_committed() -> FileSystemSpec {
    let mount_options = vec!["commit=300".to_owned()];
    FileSystemSpec { device_size: 128 << 20, mount_options, ..FileSystemSpec::default() }
}

#[test]
fn a_log_without_checksums_is_an_error() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(512 << 20).unwrap();
    let images = seldom_committed().make(&scratch).unwrap();
    let mounted = images.mount().unwrap();
    write_files(mounted.path(), 5);
    mounted.sync().unwrap();
    let synced = mounted.path().join("synced");
    fs::write(&synced, vec![7; 20_000]).unwrap();
    fs::File::open(&synced).unwrap().sync_all().unwrap();
    let device = MemoryDevice::from_image(&images.paths()[0]).unwrap();
    mounted.unmount().unwrap();
    assert!(check(&Arc::new(device.snapshot())).counts.is_empty());

    let image = Image::new(device);
    let root = image.superblock.raw.log_root;
    let mut leaf = None;
    let bytes = image.read_block(root);
    for place in 0..NodeHeader::parse_prefix(&bytes).unwrap().0.item_count as usize {
        let at = NodeHeader::SIZE + place * ItemHeader::SIZE;
        let item = ItemHeader::parse(&bytes[at..][..25]).unwrap();
        let start = NodeHeader::SIZE + item.offset as usize;
        let root = RootItem::parse(&bytes[start..][..item.size as usize]).unwrap();
        leaf = Some((item.key.offset, root.address));
    }
    let (tree, leaf) = leaf.expect("a log of the top level");
    assert_eq!(tree, FS.0);
    image.edit_items(leaf, |items| items.retain(|(key, _)| key.item_type != ItemType::EXTENT_CSUM));
    let report = check(&image.device);
    assert_eq!(kinds(&report), [FindingKind::LogCsumMissing], "{:#?}", report.findings);
    repairs(&image, 6);
}

#[test]
fn a_dump_of_metadata_has_no_data_to_verify() {
    let device = formatted_with(128 << 20, &MkfsOptions::new());
    let fs = open(&device);
    fs.write("/file", vec![9; 100_000]).unwrap();
    fs.close().unwrap();
    let device = crashed(&device);
    let mut found = superblock(&device);
    let options = CheckOptions::new().data_csum(true);
    let place = superblock_offset(0);
    let read = |device: &Arc<MemoryDevice>| {
        let devices: Vec<Arc<dyn Device>> = vec![device.clone()];
        papilio::check_devices(devices, &OpenOptions::new(), &options).unwrap()
    };
    // Overwrite the data: a dump does not have it.
    let image = Image::new(device.snapshot());
    let (_, data) = image.find(FS, |key, _| key.item_type == ItemType::EXTENT_DATA);
    let extent = FileExtentItem::parse(&data).unwrap();
    let FileExtentContent::Regular(part) = extent.content else {
        panic!("a regular extent");
    };
    let at = image.copies(part.disk_address)[0];
    image.device.write_at(&[0; 4096], at).unwrap();
    assert!(kinds(&read(&image.device)).contains(&FindingKind::DataChecksum));
    found.raw.flags |= SuperblockFlags::METADUMP;
    for mirror in [place, superblock_offset(1)] {
        image.device.write_at(&found.to_bytes(mirror), mirror).unwrap();
    }
    let report = read(&image.device);
    assert!(report.counts.is_empty(), "{:#?}", report.findings);
}

#[test]
fn a_deleted_directory_with_deleted_files_is_sound() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(512 << 20).unwrap();
    let images = seldom_committed().make(&scratch).unwrap();
    let mounted = images.mount().unwrap();
    let folder = mounted.path().join("folder");
    fs::create_dir(&folder).unwrap();
    let paths = ["a", "b", "c"].map(|name| folder.join(name));
    paths.iter().for_each(|path| fs::write(path, vec![3; 10_000]).unwrap());
    mounted.sync().unwrap();
    // Their last holder keeps them until the end.
    let held: Vec<_> = paths.iter().chain([&folder]).map(|path| fs::File::open(path).unwrap()).collect();
    paths.iter().for_each(|path| fs::remove_file(path).unwrap());
    fs::remove_dir(&folder).unwrap();
    mounted.sync().unwrap();
    let device = Arc::new(MemoryDevice::from_image(&images.paths()[0]).unwrap());
    drop(held);
    mounted.unmount().unwrap();
    let image = Image::new(device.snapshot());
    let mut orphans = 0;
    image.for_each_item(FS, |_, key, _| orphans += usize::from(key.item_type == ItemType::ORPHAN_ITEM));
    assert_eq!(orphans, 4);
    let report = check(&device);
    assert!(report.counts.is_empty(), "{:#?}", report.findings);
    let plan = papilio::plan_repair(&[device as Arc<dyn Device>], &OpenOptions::new()).unwrap();
    assert!(plan.changes.is_empty(), "{:#?}", plan.changes);
}

#[test]
fn holes_get_the_file_extents_that_they_need() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let features = ["^no-holes"].map(str::to_owned).to_vec();
    let spec = FileSystemSpec { device_size: 128 << 20, features, ..FileSystemSpec::default() };
    let device = made_by_kernel(&spec, |top| {
        for number in 0..5u64 {
            let file = fs::File::create(top.join(format!("sparse{number}"))).unwrap();
            file.set_len(500_000).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, &[9; 5000], number * 100_000).unwrap();
        }
    });
    let image = Image::new(device);
    let mut holes = Vec::new();
    image.for_each_item(FS, |_, key, data| {
        if key.item_type == ItemType::EXTENT_DATA
            && let FileExtentContent::Regular(part) = FileExtentItem::parse(data).unwrap().content
            && part.is_hole()
        {
            holes.push(key);
        }
    });
    assert!(holes.len() > 5, "{holes:?}");
    // Those in the middle, at the end, and the only one of a file.
    holes.iter().for_each(|key| image.remove(FS, key));
    let report = check(&image.device);
    assert_eq!(kinds(&report), [FindingKind::FileExtentHole], "{:#?}", report.findings);
    repairs(&image, 5);
}
