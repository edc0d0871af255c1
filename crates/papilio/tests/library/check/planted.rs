//! A table of planted faults: the check reports each with the expected kind of finding.

use super::image::Image;
use super::planted_fields::field_faults;
use super::planted_verdicts::verdict_faults;
use super::repaired;
use crate::in_memory::{check, crashed};
use papilio::FindingKind;
use papilio::format::items::back_ref::{BackRef, DataRef};
use papilio::format::items::block_group::{BlockGroupFlags, BlockGroupItem};
use papilio::format::items::device::{DeviceExtent, DeviceItem};
use papilio::format::items::dir_item::{DirEntries, DirEntry, FileType};
use papilio::format::items::extent::{ExtentFlags, ExtentHeader, ExtentItem};
use papilio::format::items::file_extent::{FileExtentContent, FileExtentItem};
use papilio::format::items::free_space::FreeSpaceInfo;
use papilio::format::items::inode::{InodeFlags, InodeItem};
use papilio::format::items::inode_ref::InodeRefs;
use papilio::format::items::root::RootItem;
use papilio::format::superblock::superblock_offset;
use papilio::format::{Generation, ItemType, Key, LogicalAddress, PhysicalAddress, TreeId, objectid};
use papilio_device::{Device, MemoryDevice};
use papilio_oracle::mkfs::Quota;
use papilio_oracle::{FileSystemSpec, Need, Scratch, TreeSpec, require};
use std::sync::Arc;

const FS: TreeId = objectid::FS_TREE;
const EXTENTS: TreeId = objectid::EXTENT_TREE;
const ROOTS: TreeId = objectid::ROOT_TREE;
const CHUNKS: TreeId = objectid::CHUNK_TREE;
const DEVICES: TreeId = objectid::DEV_TREE;
const FREE: TreeId = objectid::FREE_SPACE_TREE;
const CSUMS: TreeId = objectid::CSUM_TREE;

pub type Plant = Box<dyn Fn(&mut Image)>;

pub struct Fault {
    pub name: String,
    pub expected: FindingKind,
    pub plant: Plant,
}

pub fn fault(name: impl Into<String>, expected: FindingKind, plant: impl Fn(&mut Image) + 'static) -> Fault {
    Fault { name: name.into(), expected, plant: Box::new(plant) }
}

/// Makes an image with trees of all kinds. Small nodes give larger trees several levels.
fn make() -> MemoryDevice {
    let scratch = Scratch::new(256 << 20).expect("a scratch folder");
    let spec = FileSystemSpec { nodesize: Some(4096), quota: Quota::Full, ..FileSystemSpec::default() };
    let images = spec.make(&scratch).expect("mkfs");
    let mounted = images.mount().expect("mount");
    let tree = TreeSpec { files: 60, bytes: 2 << 20, seed: 5, subvolumes: true };
    tree.populate(mounted.path()).expect("populate");
    mounted.unmount().expect("unmount");
    MemoryDevice::from_image(&images.paths()[0]).expect("memory")
}

#[test]
fn every_planted_fault_is_found() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let mut images = Images::default();
    images.get(0);

    let only = std::env::var("PAPILIO_FAULT").unwrap_or_default();
    let mut missed = Vec::new();
    println!("| planted fault | expected | found | repaired |\n|---|---|---|---|");
    let (mut repaired, mut other) = (0, Vec::new());
    for fault in all_faults().iter().filter(|fault| fault.name.contains(&only)) {
        let device = images.plant(fault);
        let report = check(&device);
        let mended = repaired::judge(&device, images.get(images.last));
        repaired += usize::from(mended.is_ok());
        if documented(&fault.name) != Some(mended.is_ok()) {
            other.push(format!("{}: {mended:?}", fault.name));
        }
        let column = mended.map_or_else(|reason| format!("no: {reason}"), |()| "yes".to_owned());
        let kinds: Vec<String> =
            report.counts.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        println!("| {} | {} | {} | {column} |", fault.name, fault.expected, kinds.join(", "));
        if !only.is_empty() {
            report.findings.iter().take(20).for_each(|finding| println!("    {finding}"));
        }
        if !report.counts.contains_key(&fault.expected) {
            missed.push(format!("{}: {} expected, {kinds:?} found", fault.name, fault.expected));
        }
    }
    println!("{repaired} faults repaired");
    assert!(other.is_empty(), "docs/planted-faults.md says otherwise: {other:#?}");
    assert!(missed.is_empty(), "missed: {missed:#?}");
}

/// Returns whether docs/planted-faults.md says that a fault is repaired; `None` if it is not there.
fn documented(name: &str) -> Option<bool> {
    let text = include_str!("../../../../../docs/planted-faults.md");
    let row = text.lines().find(|line| line.starts_with(&format!("| {name} |")))?;
    Some(row.split('|').nth(4)?.trim().starts_with("yes"))
}

/// Images that the kernel made, each clean before any fault. The kernel's layout differs between
/// runs, and a leaf may be too full for a fault: the fault then goes into another image.
#[derive(Default)]
pub struct Images {
    made: Vec<MemoryDevice>,
    /// The image that the last fault went into.
    pub last: usize,
}

impl Images {
    const MOST: usize = 8;

    pub fn get(&mut self, index: usize) -> &MemoryDevice {
        while self.made.len() <= index {
            let device = make();
            let clean = check(&crashed(&device));
            assert!(clean.counts.is_empty(), "before any fault: {:#?}", clean.findings);
            self.made.push(device);
        }
        &self.made[index]
    }

    /// Returns a copy of an image with the fault.
    pub fn plant(&mut self, fault: &Fault) -> Arc<MemoryDevice> {
        for index in 0..Self::MOST {
            let mut image = Image::new(self.get(index).snapshot());
            let plant = std::panic::AssertUnwindSafe(|| (fault.plant)(&mut image));
            if std::panic::catch_unwind(plant).is_ok() {
                self.last = index;
                return image.device;
            }
        }
        panic!("{}: cannot be planted in any of {} images", fault.name, Self::MOST);
    }
}

pub fn all_faults() -> Vec<Fault> {
    let mut all = flipped_bytes();
    all.extend(tree_faults());
    all.extend(reference_faults());
    all.extend(extent_faults());
    all.extend(space_faults());
    all.extend(free_space_faults());
    all.extend(device_faults());
    all.extend(name_faults());
    all.extend(file_faults());
    all.extend(root_faults());
    all.extend(field_faults());
    all.extend(verdict_faults());
    all
}

/// A flipped byte in a block of each tree, in one copy and in all copies.
fn flipped_bytes() -> Vec<Fault> {
    let trees: [(&str, TreeId); 9] = [
        ("root", ROOTS),
        ("chunk", CHUNKS),
        ("extent", EXTENTS),
        ("device", DEVICES),
        ("file system", FS),
        ("checksum", CSUMS),
        ("free-space", FREE),
        ("UUID", objectid::UUID_TREE),
        ("quota", objectid::QUOTA_TREE),
    ];
    let mut all = Vec::new();
    for (name, tree) in trees {
        let last = move |image: &Image| LogicalAddress(image.blocks(tree).last().expect("a block").0 + 2000);
        all.push(fault(
            format!("a byte flipped in one copy, {name} tree"),
            FindingKind::BlockCopy,
            move |image| image.flip(last(image), 1),
        ));
        all.push(fault(
            format!("a byte flipped in all copies, {name} tree"),
            FindingKind::BlockChecksum,
            move |image| image.flip(last(image), 2),
        ));
    }
    all.push(fault("a byte flipped in one copy, a subvolume", FindingKind::BlockCopy, |image| {
        let subvolume = a_subvolume(image);
        image.flip(image.root(subvolume), 1);
    }));
    all.push(fault("a byte flipped in all copies, a subvolume", FindingKind::BlockChecksum, |image| {
        let subvolume = a_subvolume(image);
        image.flip(image.root(subvolume), 2);
    }));
    all
}

fn a_subvolume(image: &Image) -> TreeId {
    let is_subvolume = |key: &Key, _: &[u8]| key.item_type == ItemType::ROOT_ITEM && key.objectid >= 256;
    TreeId(image.find(ROOTS, |key, data| is_subvolume(key, data) && key.objectid < 1 << 40).0.objectid)
}

/// Blocks with good checksums that contradict their parents.
fn tree_faults() -> Vec<Fault> {
    vec![
        fault("a pointer's generation", FindingKind::BlockGeneration, |image| {
            let parent = image.internal(FS);
            image.edit_pointer(parent, 1, |pointer| pointer.generation.0 -= 1);
        }),
        fault("a root item's generation", FindingKind::BlockGeneration, |image| {
            let key = image.find(ROOTS, |key, _| key.objectid == CSUMS.0).0;
            image.edit(ROOTS, &key, |data| {
                let mut raw = RootItem::parse(data).unwrap().into_raw();
                raw.generation.0 -= 1;
                *data = RootItem::new(raw).to_bytes().to_vec();
            });
        }),
        fault("a pointer's key", FindingKind::FirstKey, |image| {
            let parent = image.internal(FS);
            image.edit_pointer(parent, 1, |pointer| pointer.key.offset += 1);
        }),
        fault("a block's level", FindingKind::BlockLevel, |image| {
            let parent = image.internal(FS);
            assert!(image.level(parent) > 1, "the children are internal nodes");
            let leaf = *image.leaves(FS).last().unwrap();
            image.edit_pointer(parent, 1, |pointer| pointer.address = leaf);
        }),
        fault("a block of another tree", FindingKind::BlockOwner, |image| {
            let leaf = image.leaves(CSUMS)[0];
            image.edit_header(leaf, |header| header.owner = DEVICES);
        }),
        fault("a block of another file system", FindingKind::BlockIdentity, |image| {
            let leaf = image.leaves(CSUMS)[0];
            image.edit_header(leaf, |header| header.fsid = papilio::format::Uuid::from_u128(1));
        }),
        fault("keys out of order", FindingKind::KeyOrder, |image| {
            let key = image.find(FS, |key, _| key.item_type == ItemType::DIR_INDEX).0;
            image.edit_key(FS, &key, |key| key.objectid = 1);
        }),
        fault("keys past the parent's next", FindingKind::KeyBounds, |image| {
            let leaf = image.leaves(DEVICES)[0];
            let leaves = image.leaves(EXTENTS);
            assert_ne!(leaf, leaves[0]);
            image.edit_leaf(EXTENTS, &Key::MIN, |items| {
                let last = items.last_mut().unwrap();
                last.0 = Key::new(last.0.objectid + (1 << 40), last.0.item_type, last.0.offset);
            });
        }),
        fault("a loop", FindingKind::TreeLoop, |image| {
            let parent = image.internal(FS);
            image.edit_pointer(parent, 1, |pointer| pointer.address = parent);
        }),
        fault("a block twice in one tree", FindingKind::BlockShared, |image| {
            let parent = image.internal(EXTENTS);
            let mut first = None;
            image.edit_pointer(parent, 0, |pointer| first = Some(pointer.address));
            image.edit_pointer(parent, 1, |pointer| pointer.address = first.unwrap());
        }),
        fault("a pointer outside all chunks", FindingKind::Unmapped, |image| {
            let parent = image.internal(FS);
            image.edit_pointer(parent, 1, |pointer| pointer.address = LogicalAddress(1 << 50));
        }),
        fault("an item's field", FindingKind::ItemInvalid, |image| {
            edit_inode(image, |_| true, |inode| inode.mode = 0);
        }),
    ]
}

/// Finds a data extent with one inline back reference; returns its key, bytes and reference.
fn data_extent(image: &Image) -> (Key, Vec<u8>, DataRef) {
    let one = |data: &[u8]| {
        ExtentItem::parse(ItemType::EXTENT_ITEM, data).ok().and_then(|item| {
            let refs: Vec<_> = item.inline_refs().map_while(Result::ok).collect();
            match (item.header.refs, &refs[..]) {
                (1, &[BackRef::Data { root, inode, offset, count }]) if root == FS => {
                    Some(DataRef { root, inode, offset, count })
                }
                _ => None,
            }
        })
    };
    let wanted = |key: &Key, data: &[u8]| key.item_type == ItemType::EXTENT_ITEM && one(data).is_some();
    let (key, data) = image.find(EXTENTS, wanted);
    let reference = one(&data).unwrap();
    (key, data, reference)
}

fn edit_data_ref(image: &Image, edit: impl Fn(&mut ExtentHeader, &mut DataRef)) {
    let (key, data, mut reference) = data_extent(image);
    let mut header = ExtentItem::parse(key.item_type, &data).unwrap().header;
    edit(&mut header, &mut reference);
    image.edit(EXTENTS, &key, |data| *data = ExtentItem::encode(&header, None, &[reference.into()]));
}

/// Finds the extent item of a tree block with one back reference.
fn block_extent(image: &Image) -> (Key, ExtentHeader, BackRef) {
    let (key, data) = image.find(EXTENTS, |key, data| {
        let item = ExtentItem::parse(key.item_type, data);
        key.item_type == ItemType::METADATA_ITEM && item.is_ok_and(|item| item.header.refs == 1)
    });
    let item = ExtentItem::parse(key.item_type, &data).unwrap();
    (key, item.header, item.inline_refs().next().expect("inline").unwrap())
}

fn edit_block_extent(image: &Image, edit: impl Fn(&mut ExtentHeader)) {
    let (key, mut header, reference) = block_extent(image);
    edit(&mut header);
    image.edit(EXTENTS, &key, |data| *data = ExtentItem::encode(&header, None, &[reference]));
}

/// Sets the FULL_BACKREF flag of a leaf with data whose references are not full ones.
fn set_full_back_ref(image: &mut Image) {
    let leaf = image.leaves(FS).into_iter().find(|leaf| {
        let mut found = false;
        image.for_each_item(FS, |block, key, data| {
            let regular = |item: FileExtentItem<'_>| {
                matches!(item.content, FileExtentContent::Regular(part) if !part.is_hole())
            };
            found |= block == *leaf
                && key.item_type == ItemType::EXTENT_DATA
                && FileExtentItem::parse(data).is_ok_and(regular);
        });
        found
    });
    let leaf = leaf.expect("a leaf with data");
    let key = Key::new(leaf.0, ItemType::METADATA_ITEM, 0);
    image.edit(EXTENTS, &key, |data| data[16 + 1] |= 1);
}

fn reference_faults() -> Vec<Fault> {
    vec![
        fault("a back reference's count", FindingKind::BackRefCount, |image| {
            edit_data_ref(image, |header, reference| {
                header.refs += 1;
                reference.count += 1;
            });
        }),
        fault("a back reference's root", FindingKind::BackRefMissing, |image| {
            edit_data_ref(image, |_, reference| reference.root.0 = 300);
        }),
        fault("a back reference's inode", FindingKind::BackRefMissing, |image| {
            edit_data_ref(image, |_, reference| reference.inode.0 += 1);
        }),
        fault("a back reference's offset", FindingKind::BackRefMissing, |image| {
            edit_data_ref(image, |_, reference| reference.offset.0 += 4096);
        }),
        fault("an extent's count", FindingKind::ExtentRefCount, |image| {
            edit_data_ref(image, |header, _| header.refs += 1);
        }),
        fault("a data extent's item lost", FindingKind::ExtentMissing, |image| {
            let key = data_extent(image).0;
            image.remove(EXTENTS, &key);
        }),
        fault("a tree block's extent item lost", FindingKind::ExtentMissing, |image| {
            let key = block_extent(image).0;
            image.remove(EXTENTS, &key);
        }),
        fault("an extra back reference", FindingKind::BackRefExtra, |image| {
            let (key, mut header, reference) = block_extent(image);
            header.refs += 1;
            let mut refs = [reference, BackRef::TreeBlock { root: TreeId(77) }];
            refs.sort_by(BackRef::inline_order);
            image.edit(EXTENTS, &key, |data| *data = ExtentItem::encode(&header, None, &refs));
        }),
        fault("a keyed back reference without an extent", FindingKind::BackRefOrphan, |image| {
            let key = data_extent(image).0;
            let orphan = Key::new(key.objectid + 4096, ItemType::SHARED_BLOCK_REF, 4096);
            image.insert(EXTENTS, orphan, Vec::new());
        }),
    ]
}

/// Extent items that contradict their extents.
fn extent_faults() -> Vec<Fault> {
    vec![
        fault("an unreferenced extent", FindingKind::ExtentUnreferenced, |image| {
            let group = metadata_group(image);
            let end = group.objectid + group.offset;
            let mut free = group.objectid;
            image.for_each_item(EXTENTS, |_, key, _| {
                if key.item_type == ItemType::METADATA_ITEM && key.objectid < end {
                    free = free.max(key.objectid + 4096);
                }
            });
            assert!(free < end, "the block group has free space");
            let header =
                ExtentHeader { refs: 1, generation: image.generation(), flags: ExtentFlags::TREE_BLOCK };
            let item = ExtentItem::encode(&header, None, &[BackRef::TreeBlock { root: FS }]);
            image.insert(EXTENTS, Key::new(free, ItemType::METADATA_ITEM, 0), item);
        }),
        fault("a tree block's level in its extent item", FindingKind::ExtentLevel, |image| {
            let key = block_extent(image).0;
            image.edit_key(EXTENTS, &key, |key| key.offset += 1);
        }),
        fault("a tree block's generation in its extent item", FindingKind::ExtentGeneration, |image| {
            edit_block_extent(image, |header| header.generation.0 -= 1);
        }),
        fault("FULL_BACKREF set", FindingKind::BackRefMissing, set_full_back_ref),
        fault("a file extent's length on disk", FindingKind::ExtentLength, |image| {
            edit_file_extent(image, |part| part.disk_length += 4096);
        }),
    ]
}

fn metadata_group(image: &Image) -> Key {
    let is_metadata = |data: &[u8]| {
        BlockGroupItem::parse(data).is_ok_and(|item| item.flags.contains(BlockGroupFlags::METADATA))
    };
    image.find(EXTENTS, |key, data| key.item_type == ItemType::BLOCK_GROUP_ITEM && is_metadata(data)).0
}

fn edit_group(image: &Image, edit: impl Fn(&mut BlockGroupItem)) {
    let key = metadata_group(image);
    image.edit(EXTENTS, &key, |data| {
        let mut item = BlockGroupItem::parse(data).unwrap();
        edit(&mut item);
        *data = item.to_bytes().to_vec();
    });
}

fn edit_info(image: &Image, start: u64, edit: impl Fn(&mut FreeSpaceInfo)) {
    let mut last = None;
    image.for_each_item(FREE, |_, key, _| {
        if key.item_type == ItemType::FREE_SPACE_INFO && key.objectid <= start {
            last = Some(key);
        }
    });
    image.edit(FREE, &last.expect("an item"), |data| {
        let mut item = FreeSpaceInfo::parse(data).unwrap();
        edit(&mut item);
        *data = item.to_bytes().to_vec();
    });
}

/// Whether an address is inside a block group, not at its start.
fn is_in_group(image: &Image, address: u64) -> bool {
    let mut found = false;
    image.for_each_item(EXTENTS, |_, key, _| {
        found |= key.item_type == ItemType::BLOCK_GROUP_ITEM
            && (key.objectid + 1..key.objectid + key.offset).contains(&address);
    });
    found
}

/// Finds a free extent that follows used space in its block group.
fn free_extent(image: &Image) -> Key {
    let wanted = |key: &Key| key.item_type == ItemType::FREE_SPACE_EXTENT && is_in_group(image, key.objectid);
    image.find(FREE, |key, _| wanted(key)).0
}

/// Flips the first bit with the value `set` in a free-space bitmap.
fn flip_bit(image: &Image, set: bool) {
    let holds = |byte: &u8| if set { *byte != 0 } else { *byte != 0xff };
    let (key, _) =
        image.find(FREE, |key, data| key.item_type == ItemType::FREE_SPACE_BITMAP && data.iter().any(holds));
    image.edit(FREE, &key, |data| {
        let byte = data.iter_mut().find(|byte| holds(byte)).unwrap();
        let bit = if set { byte.trailing_zeros() } else { byte.trailing_ones() };
        *byte ^= 1 << bit;
    });
}

fn space_faults() -> Vec<Fault> {
    vec![
        fault("a block group's used bytes", FindingKind::BlockGroupUsed, |image| {
            edit_group(image, |item| item.used += 4096);
        }),
        fault("a block group's flags", FindingKind::BlockGroupDiffers, |image| {
            edit_group(image, |item| item.flags = BlockGroupFlags::METADATA);
        }),
        fault("a block group of the wrong kind", FindingKind::ExtentGroup, |image| {
            edit_group(image, |item| item.flags = BlockGroupFlags::DATA | BlockGroupFlags::DUP);
        }),
        fault("a block group lost", FindingKind::BlockGroupMissing, |image| {
            let key = metadata_group(image);
            image.remove(EXTENTS, &key);
        }),
        fault("an extra block group", FindingKind::ChunkMissing, |image| {
            let item = BlockGroupItem { used: 0, chunk_objectid: 256, flags: BlockGroupFlags::DATA };
            let key = Key::new(1 << 45, ItemType::BLOCK_GROUP_ITEM, 1 << 20);
            image.insert(EXTENTS, key, item.to_bytes().to_vec());
        }),
        fault("the superblock's used bytes", FindingKind::SuperblockBytesUsed, |image| {
            image.superblock.raw.bytes_used += 4096;
            image.write_superblock();
        }),
        fault("a free-space entry lost", FindingKind::FreeSpaceLost, |image| {
            let key = free_extent(image);
            image.remove(FREE, &key);
            edit_info(image, key.objectid, |info| info.extent_count -= 1);
        }),
        fault("a free-space entry too long", FindingKind::FreeSpaceUsed, |image| {
            let key = free_extent(image);
            image.edit_key(FREE, &key, |key| {
                key.objectid -= 4096;
                key.offset += 4096;
            });
        }),
        fault("a bit of a free-space bitmap cleared", FindingKind::FreeSpaceLost, |image| {
            flip_bit(image, true)
        }),
        fault("a bit of a free-space bitmap set", FindingKind::FreeSpaceUsed, |image| flip_bit(image, false)),
        fault("a count of free extents", FindingKind::FreeSpaceCount, |image| {
            let key = free_extent(image);
            edit_info(image, key.objectid, |info| info.extent_count += 1);
        }),
    ]
}

fn free_space_faults() -> Vec<Fault> {
    vec![
        fault("a block group's free-space item lost", FindingKind::FreeSpaceInfoMissing, |image| {
            let group = metadata_group(image);
            let key = Key::new(group.objectid, ItemType::FREE_SPACE_INFO, group.offset);
            image.remove(FREE, &key);
        }),
        fault("a copy of the superblock damaged", FindingKind::SuperblockCopy, |image| {
            let place = PhysicalAddress(superblock_offset(1).0 + 1000);
            image.device.write_at(&[0xff], place).unwrap();
        }),
        fault("a copy of the superblock out of date", FindingKind::SuperblockCopy, |image| {
            let mut old = image.superblock.clone();
            old.raw.generation.0 -= 1;
            old.raw.chunk_root_generation = Generation(1);
            old.raw.cache_generation = 0;
            let place = superblock_offset(1);
            image.device.write_at(&old.to_bytes(place), place).unwrap();
        }),
        fault("the superblock's size", FindingKind::SuperblockDevices, |image| {
            image.superblock.raw.total_bytes += 4096;
            image.write_superblock();
        }),
        fault("the superblock's number of devices", FindingKind::SuperblockDeviceCount, |image| {
            image.superblock.raw.num_devices = 2;
            image.write_superblock();
        }),
        fault("an unaligned device size", FindingKind::DeviceSizeUnaligned, |image| {
            image.superblock.raw.dev_item.total_bytes -= 1000;
            image.superblock.raw.total_bytes -= 1000;
            image.write_superblock();
            edit_device(image, |item| item.total_bytes -= 1000);
        }),
        fault("a conversion to a block-group tree cut short", FindingKind::ConversionUnfinished, |image| {
            image.superblock.raw.flags |= papilio::format::features::SuperblockFlags::CHANGING_BG_TREE;
            image.write_superblock();
        }),
        fault("a block-group tree without its feature", FindingKind::ConversionUnfinished, |image| {
            let key = image.find(ROOTS, |key, _| key.objectid == objectid::UUID_TREE.0).0;
            let root = image.root(objectid::UUID_TREE);
            assert_eq!(image.level(root), 0, "one leaf");
            image.edit_leaf(ROOTS, &key, |items| {
                items.iter_mut().find(|item| item.0 == key).unwrap().0.objectid =
                    objectid::BLOCK_GROUP_TREE.0;
                items.sort_by_key(|(key, _)| *key);
            });
            image.edit_header(root, |header| header.owner = objectid::BLOCK_GROUP_TREE);
        }),
        fault("checksums lost", FindingKind::CsumMissing, |image| {
            let key = image.find(CSUMS, |_, _| true).0;
            image.remove(CSUMS, &key);
        }),
        fault("checksums without an extent", FindingKind::CsumWithoutExtent, |image| {
            let key = Key::new(objectid::EXTENT_CSUM, ItemType::EXTENT_CSUM, 1 << 45);
            image.insert(CSUMS, key, vec![1, 2, 3, 4]);
        }),
        fault("a checksum", FindingKind::DataChecksum, |image| {
            let key = image.find(CSUMS, |_, _| true).0;
            image.edit(CSUMS, &key, |data| data[0] ^= 1);
        }),
        fault("a byte of data", FindingKind::DataChecksum, |image| {
            let key = image.find(CSUMS, |_, _| true).0;
            image.flip(LogicalAddress(key.offset + 100), 1);
        }),
    ]
}

fn device_extent(image: &Image) -> Key {
    image.find(DEVICES, |key, _| key.item_type == ItemType::DEV_EXTENT).0
}

fn edit_device(image: &Image, edit: impl Fn(&mut DeviceItem)) {
    let key = Key::new(objectid::DEV_ITEMS, ItemType::DEV_ITEM, 1);
    image.edit(CHUNKS, &key, |data| {
        let mut item = DeviceItem::parse(data).unwrap();
        edit(&mut item);
        *data = item.to_bytes().to_vec();
    });
}

fn device_faults() -> Vec<Fault> {
    vec![
        fault("a device extent lost", FindingKind::DeviceExtentMissing, |image| {
            let key = device_extent(image);
            image.remove(DEVICES, &key);
        }),
        fault("a device extent of another chunk", FindingKind::DeviceExtentExtra, |image| {
            let key = device_extent(image);
            image.edit(DEVICES, &key, |data| {
                let mut item = DeviceExtent::parse(data).unwrap();
                item.chunk_offset.0 += 1 << 20;
                *data = item.to_bytes().to_vec();
            });
        }),
        fault("a device extent past the device's end", FindingKind::DeviceExtentBounds, |image| {
            let (key, data) = image.find(DEVICES, |key, _| key.item_type == ItemType::DEV_EXTENT);
            image.insert(DEVICES, Key::new(key.objectid, key.item_type, 1 << 40), data);
        }),
        fault("a device's used bytes", FindingKind::DeviceBytesUsed, |image| {
            edit_device(image, |item| item.bytes_used -= 65536);
        }),
        fault("a device item that differs from its superblock", FindingKind::DeviceItemDiffers, |image| {
            image.superblock.raw.dev_item.bytes_used -= 65536;
            image.write_superblock();
        }),
    ]
}

/// Changes the first inode of the top-level subvolume that `wanted` accepts; returns its number.
pub fn edit_inode(image: &Image, wanted: impl Fn(&InodeItem) -> bool, edit: impl Fn(&mut InodeItem)) -> u64 {
    let (key, data) = image.find(FS, |key, data| {
        key.item_type == ItemType::INODE_ITEM
            && key.objectid > 256
            && InodeItem::parse(data).is_ok_and(|inode| wanted(&inode))
    });
    let mut inode = InodeItem::parse(&data).unwrap();
    edit(&mut inode);
    image.edit(FS, &key, |data| *data = inode.to_bytes().to_vec());
    key.objectid
}

pub fn is_file(inode: &InodeItem) -> bool {
    inode.kind() == Some(papilio::FileKind::Regular)
}

/// A file with one name, whose directory items hold no other names.
struct Named {
    inode: u64,
    directory: u64,
    index: u64,
    name: Vec<u8>,
}

impl Named {
    fn find(image: &Image) -> Self {
        let mut files = Vec::new();
        image.for_each_item(FS, |_, key, data| {
            if key.item_type == ItemType::INODE_ITEM
                && InodeItem::parse(data).is_ok_and(|inode| is_file(&inode))
            {
                files.push(key.objectid);
            }
        });
        // Keys that do not start a leaf, like those of all items that tests edit.
        let mut movable = std::collections::HashSet::new();
        let mut last = None;
        image.for_each_item(FS, |leaf, key, data| {
            let single = DirEntries::parse(data).is_ok_and(|entries| entries.count() == 1);
            if last == Some(leaf) && single {
                movable.insert(key);
            }
            last = Some(leaf);
        });
        let mut named = None;
        image.find(FS, |key, data| {
            let one = |refs: InodeRefs<'_>| {
                let refs: Vec<_> = refs.collect();
                let [found] = refs[..] else { return None };
                Some(Named {
                    inode: key.objectid,
                    directory: key.offset,
                    index: found.index,
                    name: found.name.to_vec(),
                })
            };
            if key.item_type != ItemType::INODE_REF || !files.contains(&key.objectid) {
                return false;
            }
            named = InodeRefs::parse(data).ok().and_then(one);
            let good =
                |named: &Named| movable.contains(&named.item_key()) && movable.contains(&named.index_key());
            named.as_ref().is_some_and(good)
        });
        named.expect("a file")
    }

    fn item_key(&self) -> Key {
        papilio::format::items::dir_item::dir_item_key(
            papilio::format::InodeNumber(self.directory),
            &self.name,
        )
    }

    fn index_key(&self) -> Key {
        Key::new(self.directory, ItemType::DIR_INDEX, self.index)
    }

    fn ref_key(&self) -> Key {
        Key::new(self.inode, ItemType::INODE_REF, self.directory)
    }

    /// Changes both directory entries.
    fn edit_entries(&self, image: &Image, edit: impl Fn(&mut DirEntry<'_>)) {
        for key in [self.item_key(), self.index_key()] {
            image.edit(FS, &key, |data| {
                let old = data.clone();
                let mut entry = DirEntries::parse(&old).unwrap().next().unwrap();
                edit(&mut entry);
                *data = entry.to_bytes();
            });
        }
    }
}

fn name_faults() -> Vec<Fault> {
    vec![
        fault("a link count", FindingKind::LinkCount, |image| {
            edit_inode(image, is_file, |inode| inode.nlink += 1);
        }),
        fault("an index entry without the entry by name", FindingKind::DirItemMissing, |image| {
            let named = Named::find(image);
            image.remove(FS, &named.item_key());
        }),
        fault("an entry by name without the index entry", FindingKind::DirIndexMissing, |image| {
            let named = Named::find(image);
            image.remove(FS, &named.index_key());
        }),
        fault("an inode's reference lost", FindingKind::InodeRefMissing, |image| {
            let named = Named::find(image);
            image.remove(FS, &named.ref_key());
        }),
        fault("both entries lost", FindingKind::DirEntryMissing, |image| {
            let named = Named::find(image);
            image.remove(FS, &named.index_key());
            image.remove(FS, &named.item_key());
        }),
        fault("an entry of a missing inode", FindingKind::DirEntryDangling, |image| {
            let named = Named::find(image);
            named.edit_entries(image, |entry| entry.location.objectid = 1 << 30);
        }),
        fault("an entry of another inode", FindingKind::InodeRefMissing, |image| {
            let named = Named::find(image);
            named.edit_entries(image, |entry| entry.location.objectid = 256);
        }),
        fault("an entry's file type", FindingKind::DirEntryType, |image| {
            let named = Named::find(image);
            named.edit_entries(image, |entry| entry.file_type = FileType::Fifo);
        }),
        fault("a directory's size", FindingKind::DirectorySize, |image| {
            let is_directory = |inode: &InodeItem| inode.kind() == Some(papilio::FileKind::Directory);
            edit_inode(image, is_directory, |inode| inode.size += 2);
        }),
        fault("an unlinked inode without an orphan item", FindingKind::OrphanMissing, |image| {
            let named = Named::find(image);
            [named.ref_key(), named.index_key(), named.item_key()]
                .iter()
                .for_each(|key| image.remove(FS, key));
            let key = Key::new(named.inode, ItemType::INODE_ITEM, 0);
            image.edit(FS, &key, |data| {
                let inode = InodeItem { nlink: 0, ..InodeItem::parse(data).unwrap() };
                *data = inode.to_bytes().to_vec();
            });
        }),
        fault("an orphan item without an inode", FindingKind::OrphanStale, |image| {
            let key = papilio::format::items::orphan::orphan_key(1 << 30);
            image.insert(FS, key, Vec::new());
        }),
    ]
}

/// Changes a file extent that refers to all of an uncompressed extent on disk.
fn edit_file_extent(image: &Image, edit: impl Fn(&mut papilio::format::items::file_extent::ExtentPart)) {
    edit_file_extent_item(image, |item| {
        if let FileExtentContent::Regular(part) = &mut item.content {
            edit(part);
        }
    });
}

/// As [`edit_file_extent`], with the whole item.
fn edit_file_extent_item(image: &Image, edit: impl FnOnce(&mut FileExtentItem<'_>)) {
    let (key, data) = image.find(FS, |key, data| {
        let plain = |item: FileExtentItem<'_>| {
            matches!(item.content, FileExtentContent::Regular(part)
                if !part.is_hole() && part.offset == 0 && part.length == part.disk_length)
        };
        key.item_type == ItemType::EXTENT_DATA && FileExtentItem::parse(data).is_ok_and(plain)
    });
    let mut item = FileExtentItem::parse(&data).unwrap();
    edit(&mut item);
    let bytes = item.to_bytes();
    image.edit(FS, &key, |data| *data = bytes);
}

fn only_the_flag_of_verity(image: &mut Image) {
    edit_inode(image, is_file, |inode| inode.flags |= InodeFlags::VERITY);
}

fn file_faults() -> Vec<Fault> {
    vec![
        fault("a file's bytes", FindingKind::FileBytes, |image| {
            edit_inode(image, is_file, |inode| inode.nbytes += 4096);
        }),
        fault("a file extent past its extent", FindingKind::FileExtentBounds, |image| {
            edit_file_extent(image, |part| part.offset += 4096);
        }),
        fault("data past a file's end", FindingKind::FileExtentBeyondEnd, |image| {
            edit_inode(image, |inode| is_file(inode) && inode.nbytes > 65536, |inode| inode.size = 1);
        }),
        fault("a symbolic link's size", FindingKind::SymlinkTarget, |image| {
            let is_link = |inode: &InodeItem| inode.kind() == Some(papilio::FileKind::Symlink);
            edit_inode(image, is_link, |inode| inode.size += 1);
        }),
        fault("an immutable symbolic link", FindingKind::SymlinkFlags, |image| {
            let is_link = |inode: &InodeItem| inode.kind() == Some(papilio::FileKind::Symlink);
            edit_inode(image, is_link, |inode| inode.flags |= InodeFlags::IMMUTABLE);
        }),
        fault("the flag of fs-verity alone", FindingKind::VerityInvalid, only_the_flag_of_verity),
        fault("checksums of a NODATASUM file", FindingKind::CsumUnexpected, |image| {
            let with_data = |inode: &InodeItem| {
                is_file(inode) && inode.nbytes > 65536 && !inode.flags.contains(InodeFlags::NODATASUM)
            };
            edit_inode(image, with_data, |inode| inode.flags |= InodeFlags::NODATASUM);
        }),
        fault("compressed data without checksums", FindingKind::CsumMissingCompressed, |image| {
            let mut place = None;
            edit_file_extent_item(image, |item| {
                item.compression = papilio::format::items::file_extent::Compression::Zlib;
                if let FileExtentContent::Regular(part) = &item.content {
                    place = Some(part.disk_address.0);
                }
            });
            let place = place.unwrap();
            // The key need not be movable: of the item that covers the data, the head stays.
            let mut covers = None;
            image.for_each_item(CSUMS, |_, key, data| {
                if (key.offset..key.offset + data.len() as u64 / 4 * 4096).contains(&place) {
                    covers = Some(key);
                }
            });
            let key = covers.expect("checksums");
            let sums = ((place - key.offset) / 4096 * 4).max(4) as usize;
            image.edit(CSUMS, &key, |data| data.truncate(sums));
            let owner = image.find(FS, |key, data| {
                key.item_type == ItemType::EXTENT_DATA
                    && FileExtentItem::parse(data).is_ok_and(|item| {
                        matches!(item.content, FileExtentContent::Regular(part)
                            if part.disk_address.0 == place)
                    })
            });
            let key = Key::new(owner.0.objectid, ItemType::INODE_ITEM, 0);
            image.edit(FS, &key, |data| {
                let mut inode = InodeItem::parse(data).unwrap();
                inode.flags |= InodeFlags::NODATASUM;
                *data = inode.to_bytes().to_vec();
            });
        }),
        fault("an inode item lost", FindingKind::ItemInvalid, |image| {
            let named = Named::find(image);
            let key = Key::new(named.inode, ItemType::INODE_ITEM, 0);
            image.remove(FS, &key);
        }),
        fault("an extended attribute of a missing inode", FindingKind::InodeMissing, |image| {
            // The tree checker does not compare the first item of a leaf with another one.
            let leaf = image.leaves(FS).into_iter().skip(1).find(|leaf| {
                let mut first = None;
                image.for_each_item(FS, |block, key, _| {
                    if block == *leaf && first.is_none() {
                        first = Some(key);
                    }
                });
                first.is_some_and(|key| key.item_type == ItemType::INODE_ITEM)
            });
            remove_first(image, leaf.expect("a leaf that starts with an inode"));
        }),
    ]
}

/// Removes the first item of a leaf, and updates the key in its parents.
fn remove_first(image: &Image, leaf: LogicalAddress) {
    let mut keys = Vec::new();
    image.for_each_item(FS, |block, key, _| keys.extend((block == leaf).then_some(key)));
    assert_eq!(keys[0].objectid, keys[1].objectid, "an item of the inode follows");
    image.remove(FS, &keys[0]);
    for block in image.blocks(FS).into_iter().filter(|block| image.level(*block) > 0) {
        for slot in 0..image.children(block) {
            image.edit_pointer(block, slot, |pointer| {
                if pointer.key == keys[0] {
                    pointer.key = keys[1];
                }
            });
        }
    }
}

fn root_faults() -> Vec<Fault> {
    let reference = |image: &Image, item_type| image.find(ROOTS, |key, _| key.item_type == item_type).0;
    vec![
        fault("a parent's reference lost", FindingKind::RootRefMissing, move |image| {
            let key = reference(image, ItemType::ROOT_REF);
            image.remove(ROOTS, &key);
        }),
        fault("a subvolume's reference lost", FindingKind::RootBackrefMissing, move |image| {
            let key = reference(image, ItemType::ROOT_BACKREF);
            image.remove(ROOTS, &key);
        }),
        fault("a reference's sequence", FindingKind::RootRefDiffers, move |image| {
            let key = reference(image, ItemType::ROOT_REF);
            image.edit(ROOTS, &key, |data| data[8] ^= 1);
        }),
        fault("a subvolume's count", FindingKind::RootRefCount, |image| {
            edit_root(image, |raw| raw.refs += 1);
        }),
        fault("a deleted subvolume without an orphan item", FindingKind::RootOrphanMissing, |image| {
            edit_root(image, |raw| raw.refs = 0);
        }),
        fault("a required tree lost", FindingKind::RootMissing, |image| {
            let key = Key::new(DEVICES.0, ItemType::ROOT_ITEM, 0);
            image.remove(ROOTS, &key);
        }),
        fault("a subvolume's entry lost", FindingKind::RootRefEntry, move |image| {
            let (key, data) = image.find(FS, |key, data| {
                let of_subvolume = |entry: DirEntry<'_>| entry.location.item_type == ItemType::ROOT_ITEM;
                key.item_type == ItemType::DIR_INDEX
                    && DirEntries::parse(data).is_ok_and(|mut entries| entries.any(of_subvolume))
            });
            assert!(!data.is_empty());
            image.remove(FS, &key);
        }),
        fault("the default subvolume", FindingKind::DefaultSubvolume, |image| {
            let (key, _) =
                image.find(ROOTS, |key, _| key.objectid == 6 && key.item_type == ItemType::DIR_ITEM);
            image.edit(ROOTS, &key, |data| data[..8].copy_from_slice(&4000u64.to_le_bytes()));
        }),
        fault("a subvolume's UUID lost", FindingKind::UuidTree, |image| {
            let key = image.find(objectid::UUID_TREE, |key, _| key.item_type == ItemType::UUID_SUBVOL).0;
            image.remove(objectid::UUID_TREE, &key);
        }),
    ]
}

/// Changes a subvolume's root item.
fn edit_root(image: &Image, edit: impl Fn(&mut papilio::format::items::root::RawRootItem)) {
    let key = image
        .find(ROOTS, |key, _| key.item_type == ItemType::ROOT_ITEM && (256..1 << 40).contains(&key.objectid))
        .0;
    image.edit(ROOTS, &key, |data| {
        let mut raw = RootItem::parse(data).unwrap().into_raw();
        edit(&mut raw);
        *data = RootItem::new(raw).to_bytes().to_vec();
    });
}
