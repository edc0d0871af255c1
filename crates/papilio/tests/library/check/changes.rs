//! Changes of one structure, as `papilio rescue clear-space-cache` and its kin make them: the
//! kernel and `btrfs check` judge the results, and btrfs-progs makes the same changes where it can.

use super::image::Image;
use super::repaired::{agrees, same};
use crate::in_memory::{check, crashed};
use papilio::format::items::device::DeviceItem;
use papilio::format::items::inode::InodeItem;
use papilio::format::{ItemType, Key, LogicalAddress, TreeId, objectid};
use papilio::{FindingKind, OpenOptions, RepairOptions, RepairPlan, RescueChange, Tune};
use papilio_device::{Device, MemoryDevice};
use papilio_oracle::{FileSystemSpec, ImageSet, Need, Scratch, TreeSpec, require};
use std::process::Command;
use std::sync::Arc;

const ROOTS: TreeId = objectid::ROOT_TREE;
const FS: TreeId = objectid::FS_TREE;

/// Lets the kernel make and fill a file system.
fn make(spec: FileSystemSpec) -> Arc<MemoryDevice> {
    let scratch = Scratch::new(256 << 20).unwrap();
    let images = FileSystemSpec { nodesize: Some(4096), ..spec }.make(&scratch).unwrap();
    let mounted = images.mount().unwrap();
    TreeSpec { files: 60, bytes: 2 << 20, seed: 9, subvolumes: true }.populate(mounted.path()).unwrap();
    // The first data chunk of mkfs is small, and the kernel writes v1 caches for chunks of 100 MB
    // on.
    std::fs::write(mounted.path().join("large"), vec![5; 12 << 20]).unwrap();
    mounted.sync().unwrap();
    mounted.unmount().unwrap();
    Arc::new(MemoryDevice::from_image(&images.paths()[0]).unwrap())
}

fn plan(device: &Arc<MemoryDevice>, change: RescueChange) -> RepairPlan {
    let options = RepairOptions::new().only(change);
    papilio::plan_repair_with(&[device.clone() as Arc<dyn Device>], &OpenOptions::new(), &options).unwrap()
}

/// Makes a change; the undo file takes it back. Returns the device with the change, and the plan.
fn changed(device: &Arc<MemoryDevice>, change: RescueChange) -> (Arc<MemoryDevice>, RepairPlan) {
    let before = device.snapshot();
    let devices = vec![device.clone() as Arc<dyn Device>];
    let plan = plan(device, change);
    assert!(plan.better && plan.refused.is_empty(), "{change:?}: {plan:#?}");
    let folder = tempfile::tempdir().unwrap();
    let undo = folder.path().join("undo");
    papilio::repair(&devices, &OpenOptions::new(), &plan, &undo).unwrap();
    let after = crashed(device);
    papilio::undo_repair(&devices, &undo).unwrap();
    assert!(same(device, &before), "{change:?}: the undo file");
    let report = check(&after);
    assert!(report.counts.is_empty(), "{change:?}: {:#?}", report.findings);
    let again = self::plan(&after, change);
    assert!(again.changes.is_empty(), "{change:?}: {:?}", again.changes);
    (after, plan)
}

/// Lets btrfs-progs change a copy of a device.
fn by_stock(device: &MemoryDevice, arguments: &[&str]) -> Image {
    let scratch = Scratch::new(600 << 20).unwrap();
    let path = scratch.image("stock", device.size()).unwrap();
    device.write_image(&path).unwrap();
    let output = Command::new("btrfs").args(arguments).arg(&path).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Image::new(MemoryDevice::from_image(&path).unwrap())
}

/// Mounts the device for writing, with options; `btrfs check` judges it before and after.
fn kernel_takes(device: &MemoryDevice, options: &[&str]) -> Image {
    let scratch = Scratch::new(600 << 20).unwrap();
    let path = scratch.image("changed", device.size()).unwrap();
    device.write_image(&path).unwrap();
    let set = ImageSet::open(&scratch, vec![path]);
    set.btrfs_check().unwrap();
    let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
    let mounted = set.mount_with(&options, false).unwrap();
    std::fs::write(mounted.path().join("new"), vec![1; 1 << 20]).unwrap();
    mounted.sync().unwrap();
    mounted.unmount().unwrap();
    set.btrfs_check().unwrap();
    Image::new(MemoryDevice::from_image(&set.paths()[0]).unwrap())
}

fn count(image: &Image, tree: TreeId, wanted: impl Fn(&Key) -> bool) -> usize {
    let mut count = 0;
    image.for_each_item(tree, |_, key, _| count += usize::from(wanted(&key)));
    count
}

fn caches(image: &Image) -> usize {
    count(image, ROOTS, |key| key.objectid == objectid::FREE_SPACE)
}

fn image(device: &MemoryDevice) -> Image {
    Image::new(device.snapshot())
}

#[test]
fn space_caches_are_removed() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let device = make(FileSystemSpec {
        runtime_features: vec!["^free-space-tree".to_owned()],
        mount_options: vec!["space_cache=v1".to_owned()],
        device_size: 1280 << 20,
        ..FileSystemSpec::default()
    });
    assert!(caches(&image(&device)) > 0, "the kernel wrote caches");
    let (after, _) = changed(&device, RescueChange::ClearSpaceCache);
    let stock = by_stock(&device, &["check", "--clear-space-cache", "v1"]);
    let ours = image(&after);
    assert_eq!((caches(&ours), caches(&stock)), (0, 0));
    assert_eq!(ours.superblock.raw.cache_generation, stock.superblock.raw.cache_generation);
    assert_eq!(ours.superblock.raw.bytes_used, stock.superblock.raw.bytes_used);
    agrees(&after, &device).unwrap();
    assert!(caches(&kernel_takes(&after, &["space_cache=v1"])) > 0, "the kernel writes caches anew");
}

#[test]
fn the_free_space_tree_is_removed() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let tree = objectid::FREE_SPACE_TREE;
    let device = make(FileSystemSpec::default());
    let (after, _) = changed(&device, RescueChange::ClearFreeSpaceTree);
    let stock = by_stock(&device, &["check", "--clear-space-cache", "v2"]);
    let ours = image(&after);
    assert!(!ours.has(tree) && !stock.has(tree));
    assert_eq!(ours.superblock.raw.compat_ro_flags, stock.superblock.raw.compat_ro_flags);
    agrees(&after, &device).unwrap();
    assert!(kernel_takes(&after, &["space_cache=v2"]).has(tree));

    // A block-group tree needs it.
    papilio::tune(&[device.clone() as Arc<dyn Device>], Tune::BlockGroupTree(true), &mut |_, _| {}).unwrap();
    let refused = plan(&device, RescueChange::ClearFreeSpaceTree);
    assert!(refused.changes.is_empty() && refused.refused[0].contains("needs the free-space tree"));
}

#[test]
fn the_uuid_tree_is_removed() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let tree = objectid::UUID_TREE;
    let device = make(FileSystemSpec::default());
    let (after, _) = changed(&device, RescueChange::ClearUuidTree);
    let stock = by_stock(&device, &["rescue", "clear-uuid-tree"]);
    let ours = image(&after);
    assert!(image(&device).has(tree) && !ours.has(tree) && !stock.has(tree));
    assert_eq!(ours.superblock.raw.bytes_used, stock.superblock.raw.bytes_used);
    agrees(&after, &device).unwrap();
    let mounted = kernel_takes(&after, &[]);
    assert_eq!(count(&mounted, tree, |_| true), count(&image(&device), tree, |_| true));
}

#[test]
fn caches_of_inode_numbers_are_removed() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let sound = make(FileSystemSpec::default());
    let planted = image(&sound);
    // As kernels before 5.11 wrote it: an inode without a name, and its data.
    let (_, data) = planted.find(FS, |key, data| key.item_type == ItemType::EXTENT_DATA && data.len() == 53);
    let (_, inode) = planted.find(FS, |key, data| {
        key.item_type == ItemType::INODE_ITEM
            && InodeItem::parse(data).is_ok_and(|item| item.mode & 0o170000 == 0o100000)
    });
    planted.insert(FS, Key::new(objectid::FREE_INO, ItemType::INODE_ITEM, 0), inode);
    planted.insert(FS, Key::new(objectid::FREE_INO, ItemType::EXTENT_DATA, 0), data);
    // The header: the key of that inode, a generation, and the numbers of entries and bitmaps.
    let numbers = [7_u64, 1, 0].map(u64::to_le_bytes);
    let key = [&objectid::FREE_INO.to_le_bytes()[..], &[1], &[0; 8]].concat();
    let header = [&key[..], &numbers.concat()].concat();
    planted.insert(FS, Key::new(objectid::FREE_SPACE, ItemType(0), 0), header);
    let (after, plan) = changed(&planted.device, RescueChange::ClearInodeCache);
    assert!(plan.changes.iter().any(|change| change.contains("cache of free inode numbers")));
    let of_cache = |key: &Key| [objectid::FREE_INO, objectid::FREE_SPACE].contains(&key.objectid);
    assert_eq!(count(&image(&after), FS, of_cache), 0);
    agrees(&after, &sound).unwrap();
}

#[test]
fn device_sizes_are_made_right() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let sound = make(FileSystemSpec::default());
    for (device_bytes, total_bytes) in [(1000, 1000), (0, 4096), (1000, 0)] {
        let mut planted = image(&sound);
        planted.superblock.raw.dev_item.total_bytes -= device_bytes;
        planted.superblock.raw.total_bytes -= total_bytes;
        planted.write_superblock();
        let key = Key::new(objectid::DEV_ITEMS, ItemType::DEV_ITEM, 1);
        planted.edit(objectid::CHUNK_TREE, &key, |data| {
            let mut item = DeviceItem::parse(data).unwrap();
            item.total_bytes -= device_bytes;
            *data = item.to_bytes().to_vec();
        });
        // Another fault stays.
        let (after, _) = changed(&planted.device, RescueChange::FixDeviceSize);
        let stock = by_stock(&planted.device, &["rescue", "fix-device-size"]);
        let ours = image(&after).superblock.raw;
        assert_eq!(ours.total_bytes, stock.superblock.raw.total_bytes);
        assert_eq!(ours.dev_item.total_bytes, stock.superblock.raw.dev_item.total_bytes);
        agrees(&after, &sound).unwrap();
    }
}

#[test]
fn checksums_of_damaged_data_are_made_right() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let fix = |mirror| RescueChange::FixDataChecksum { mirror };
    let spec = FileSystemSpec { data_profile: Some("dup".to_owned()), ..FileSystemSpec::default() };
    let planted = image(&make(spec));
    let key = planted.find(objectid::CSUM_TREE, |_, data| data.len() > 8).0;
    let (first, second) = (LogicalAddress(key.offset + 100), LogicalAddress(key.offset + 4096 + 9));
    // The same damage in both copies of a sector; other damage in both copies of the next; and
    // damage in one copy of the first sector of another extent, which stays.
    planted.flip(first, 2);
    let (fixed, plan) = changed(&planted.device, fix(None));
    assert_eq!((plan.changes.len(), plan.losses.len()), (1, 1), "{plan:#?}");
    kernel_takes(&fixed, &[]);
    let [one, other] = planted.copies(second)[..] else { panic!("two copies") };
    planted.device.write_at(&[1, 2, 3], one).unwrap();
    planted.device.write_at(&[4, 5, 6], other).unwrap();
    let refused = self::plan(&planted.device, fix(None));
    assert_eq!((refused.changes.len(), refused.refused.len()), (1, 1), "{refused:#?}");
    let (fixed, _) = changed(&planted.device, fix(Some(1)));
    for place in planted.copies(second) {
        let mut bytes = [0; 3];
        fixed.read_at(&mut bytes, place).unwrap();
        assert_eq!(bytes, [4, 5, 6]);
    }
    kernel_takes(&fixed, &[]);
    let copy = image(&make(FileSystemSpec { data_profile: Some("dup".to_owned()), ..Default::default() }));
    copy.flip(LogicalAddress(copy.find(objectid::CSUM_TREE, |_, _| true).0.offset), 1);
    let untouched = self::plan(&copy.device, fix(None));
    assert!(untouched.changes.is_empty(), "{:?}", untouched.changes);
    assert!(untouched.before.counts.contains_key(&FindingKind::DataCopy));
}
