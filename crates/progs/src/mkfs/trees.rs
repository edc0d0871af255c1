//! The items of the trees of a new file system.
//!
//! They are the same as after `mkfs.btrfs`, except for two fields that it leaves zero until a later
//! change: the transaction of the root directory's last change, and the creation time of the
//! relocation tree's directory.
//!
//! Sources: btrfs-progs' `mkfs/common.c`, `mkfs/main.c` and `common/root-tree-utils.c`.

use super::block::Items;
use super::chunks::Chunk;
use super::facts::{Facts, GENERATION, TreePlace};
use super::features::MkfsFeature;
use super::options::Choice;
use papilio_format::checksum::name_hash;
use papilio_format::items::back_ref::BackRef;
use papilio_format::items::block_group::BlockGroupItem;
use papilio_format::items::chunk::Stripe;
use papilio_format::items::device::{DeviceExtent, DeviceItem, DeviceStat, DeviceStats};
use papilio_format::items::dir_item::{DirEntry, FileType};
use papilio_format::items::extent::{ExtentFlags, ExtentHeader, ExtentItem, TreeBlockInfo};
use papilio_format::items::free_space::{FreeSpaceFlags, FreeSpaceInfo};
use papilio_format::items::inode::{FileKind, InodeFlags, InodeItem, Timespec};
use papilio_format::items::inode_ref::InodeRef;
use papilio_format::items::qgroup::{
    QgroupInfo, QgroupLimit, QgroupLimitFlags, QgroupStatus, QgroupStatusFlags, QgroupStatusHeader,
};
use papilio_format::items::root::{RawRootItem, RootFlags, RootItem, root_key};
use papilio_format::items::uuid_tree::{UuidItem, uuid_key};
use papilio_format::key::{ItemType, Key};
use papilio_format::objectid;
use papilio_format::{Generation, InodeNumber, LogicalAddress, TreeId, Uuid};

/// The name of the default subvolume in the root tree's directory.
const DEFAULT: &[u8] = b"default";
const ROOT_DIRECTORY_MODE: u32 = FileKind::Directory.mode_bits() | 0o755;

/// Returns the items of tree `id`, sorted.
pub(super) fn items(id: TreeId, facts: &Facts<'_>) -> Items {
    let mut items = match id {
        objectid::ROOT_TREE => root_tree(facts),
        objectid::EXTENT_TREE => extent_tree(facts),
        objectid::CHUNK_TREE => chunk_tree(facts),
        objectid::DEV_TREE => device_tree(facts),
        objectid::FS_TREE => root_directory(facts.choice, u64::from(facts.choice.node_size)),
        objectid::DATA_RELOC_TREE => root_directory(facts.choice, 0),
        objectid::UUID_TREE => uuid_tree(facts.choice),
        objectid::FREE_SPACE_TREE => free_space_tree(facts),
        objectid::BLOCK_GROUP_TREE => block_groups(facts),
        objectid::CSUM_TREE => Items::new(),
        objectid::QUOTA_TREE => quota_tree(facts),
        other => unreachable!("a new file system has no tree {other}"),
    };
    items.sort_unstable_by_key(|(key, _)| *key);
    items
}

fn root_tree(facts: &Facts<'_>) -> Items {
    let choice = facts.choice;
    let in_root_tree = |tree: &&TreePlace| !matches!(tree.id, objectid::ROOT_TREE | objectid::CHUNK_TREE);
    let mut items: Items = facts
        .places
        .iter()
        .filter(in_root_tree)
        .map(|tree| (root_key(tree.id), root_item(tree, choice)))
        .collect();
    items.extend(directory(objectid::ROOT_TREE_DIR, choice, u64::from(choice.node_size)));
    // The only entry of this directory has no index, as nothing lists the directory.
    let entry = DirEntry {
        location: Key::new(objectid::FS_TREE.0, ItemType::ROOT_ITEM, u64::MAX),
        transid: Generation(0),
        file_type: FileType::Directory,
        encrypted: false,
        name: DEFAULT,
        data: &[],
    };
    let entry_key = Key::new(objectid::ROOT_TREE_DIR, ItemType::DIR_ITEM, name_hash(DEFAULT));
    items.push((entry_key, entry.to_bytes()));
    let name_key = Key::new(objectid::FS_TREE.0, ItemType::INODE_REF, objectid::ROOT_TREE_DIR);
    items.push((name_key, InodeRef { index: 0, name: DEFAULT }.to_bytes()));
    items
}

fn root_item(tree: &TreePlace, choice: &Choice) -> Vec<u8> {
    let is_subvolume = tree.id == objectid::FS_TREE;
    let has_directory = is_subvolume || tree.id == objectid::DATA_RELOC_TREE;
    let node_size = u64::from(choice.node_size);
    let unset = Timespec::default();
    let time = if is_subvolume { choice.timestamp } else { unset };
    // Only the flags of this inode have a meaning.
    let inode = InodeItem {
        generation: GENERATION,
        transid: Generation(0),
        size: 3,
        nbytes: node_size,
        flags: if is_subvolume { InodeFlags::ROOT_ITEM_INIT } else { InodeFlags::empty() },
        ..inode(unset)
    };
    let raw = RawRootItem {
        inode,
        generation: GENERATION,
        root_dirid: InodeNumber(if has_directory { objectid::FIRST_FREE } else { 0 }),
        address: tree.root(),
        byte_limit: 0,
        bytes_used: tree.blocks.len() as u64 * node_size,
        last_snapshot: Generation(0),
        flags: RootFlags::empty(),
        refs: 1,
        drop_progress: Key::MIN,
        drop_level: 0,
        level: tree.shape.level(),
        generation_v2: GENERATION,
        uuid: if is_subvolume { choice.uuids.fs_tree } else { Uuid::nil() },
        parent_uuid: Uuid::nil(),
        received_uuid: Uuid::nil(),
        ctransid: Generation(0),
        otransid: Generation(0),
        stransid: Generation(0),
        rtransid: Generation(0),
        ctime: time,
        otime: time,
        stime: unset,
        rtime: unset,
        reserved: [0; 8],
    };
    RootItem::new(raw).to_bytes().to_vec()
}

/// Returns the inode of an empty directory, owned by root.
fn inode(time: Timespec) -> InodeItem {
    InodeItem {
        generation: GENERATION,
        transid: GENERATION,
        size: 0,
        nbytes: 0,
        block_group: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        mode: ROOT_DIRECTORY_MODE,
        rdev: 0,
        flags: InodeFlags::empty(),
        sequence: 0,
        reserved: [0; 4],
        atime: time,
        ctime: time,
        mtime: time,
        otime: time,
    }
}

/// Returns the items of an empty directory that is its own parent.
fn directory(number: u64, choice: &Choice, nbytes: u64) -> [(Key, Vec<u8>); 2] {
    let item = InodeItem { nbytes, ..inode(choice.timestamp) };
    [
        (Key::new(number, ItemType::INODE_ITEM, 0), item.to_bytes().to_vec()),
        (Key::new(number, ItemType::INODE_REF, number), InodeRef { index: 0, name: b".." }.to_bytes()),
    ]
}

fn root_directory(choice: &Choice, nbytes: u64) -> Items {
    directory(objectid::FIRST_FREE, choice, nbytes).into()
}

fn uuid_tree(choice: &Choice) -> Items {
    let key = uuid_key(choice.uuids.fs_tree, ItemType::UUID_SUBVOL);
    vec![(key, UuidItem::encode(&[objectid::FS_TREE]))]
}

/// Returns the state of quotas, and the qgroup of the only subvolume, which has its tree's blocks.
/// Simple quotas charge from the first transaction on.
fn quota_tree(facts: &Facts<'_>) -> Items {
    let simple = facts.choice.has(MkfsFeature::SimpleQuota);
    let mut flags = QgroupStatusFlags::ON;
    flags.set(QgroupStatusFlags::SIMPLE_MODE, simple);
    let header =
        QgroupStatusHeader { version: QgroupStatus::VERSION, generation: GENERATION, flags, rescan: 0 };
    let since = if simple { GENERATION } else { Generation(0) };
    let status = QgroupStatus { header, enable_generation: Some(since) };
    let blocks = facts.tree(objectid::FS_TREE).blocks.len() as u64;
    let bytes = blocks * u64::from(facts.choice.node_size);
    let info = QgroupInfo {
        generation: GENERATION,
        referenced: bytes,
        referenced_compressed: bytes,
        exclusive: bytes,
        exclusive_compressed: bytes,
    };
    let limit = QgroupLimit {
        flags: QgroupLimitFlags::empty(),
        max_referenced: 0,
        max_exclusive: 0,
        reserved_referenced: 0,
        reserved_exclusive: 0,
    };
    let group = objectid::FS_TREE.0;
    vec![
        (Key::new(0, ItemType::QGROUP_STATUS, 0), status.to_bytes()),
        (Key::new(0, ItemType::QGROUP_INFO, group), info.to_bytes().to_vec()),
        (Key::new(0, ItemType::QGROUP_LIMIT, group), limit.to_bytes().to_vec()),
    ]
}

fn extent_tree(facts: &Facts<'_>) -> Items {
    let node_size = u64::from(facts.choice.node_size);
    let skinny = facts.choice.has(MkfsFeature::SkinnyMetadata);
    let header = ExtentHeader { refs: 1, generation: GENERATION, flags: ExtentFlags::TREE_BLOCK };
    let extent = |(address, (root, level, first_key)): (LogicalAddress, (TreeId, u8, Key))| {
        let refs = [BackRef::TreeBlock { root }];
        if skinny {
            let key = Key::new(address.0, ItemType::METADATA_ITEM, level.into());
            return (key, ExtentItem::encode(&header, None, &refs));
        }
        let info = TreeBlockInfo { first_key, level };
        let key = Key::new(address.0, ItemType::EXTENT_ITEM, node_size);
        (key, ExtentItem::encode(&header, Some(&info), &refs))
    };
    let mut items: Items = facts.blocks().into_iter().map(extent).collect();
    if !facts.choice.has(MkfsFeature::BlockGroupTree) {
        items.extend(block_groups(facts));
    }
    items
}

fn block_groups(facts: &Facts<'_>) -> Items {
    let block_group = |chunk: &Chunk| {
        let item = BlockGroupItem {
            used: facts.used(chunk),
            chunk_objectid: objectid::FIRST_CHUNK_TREE,
            flags: chunk.flags,
        };
        let key = Key::new(chunk.start.0, ItemType::BLOCK_GROUP_ITEM, chunk.length);
        (key, item.to_bytes().to_vec())
    };
    facts.chunks.chunks.iter().map(block_group).collect()
}

fn chunk_tree(facts: &Facts<'_>) -> Items {
    let device = |device: DeviceItem| {
        let key = Key::new(objectid::DEV_ITEMS, ItemType::DEV_ITEM, device.devid.0);
        (key, device.to_bytes().to_vec())
    };
    let chunk = |chunk: &Chunk| {
        let key = Key::new(objectid::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, chunk.start.0);
        (key, chunk.item().to_bytes())
    };
    let chunks = facts.chunks.chunks.iter().map(chunk);
    facts.device_items().map(device).chain(chunks).collect()
}

fn device_tree(facts: &Facts<'_>) -> Items {
    let no_errors = DeviceStats::encode(&[0; DeviceStat::ALL.len()]);
    let stats = |device: DeviceItem| {
        let key = Key::new(objectid::DEV_STATS, ItemType::PERSISTENT_ITEM, device.devid.0);
        (key, no_errors.clone())
    };
    let mut items: Items = facts.device_items().map(stats).collect();
    for chunk in &facts.chunks.chunks {
        let extent = DeviceExtent {
            chunk_tree: objectid::CHUNK_TREE,
            chunk_objectid: objectid::FIRST_CHUNK_TREE,
            chunk_offset: chunk.start,
            length: chunk.stripe_bytes,
            chunk_tree_uuid: facts.choice.uuids.chunk_tree,
        };
        let key = |stripe: &Stripe| Key::new(stripe.devid.0, ItemType::DEV_EXTENT, stripe.offset.0);
        items.extend(chunk.stripes.iter().map(|stripe| (key(stripe), extent.to_bytes().to_vec())));
    }
    items
}

fn free_space_tree(facts: &Facts<'_>) -> Items {
    let blocks: Vec<_> = facts.blocks().into_keys().collect();
    let mut items = Items::new();
    for chunk in &facts.chunks.chunks {
        let free = free_ranges(chunk, &blocks, facts.choice.node_size.into());
        let info = FreeSpaceInfo { extent_count: free.len() as u32, flags: FreeSpaceFlags::empty() };
        let info_key = Key::new(chunk.start.0, ItemType::FREE_SPACE_INFO, chunk.length);
        items.push((info_key, info.to_bytes().to_vec()));
        let range = |(start, length)| (Key::new(start, ItemType::FREE_SPACE_EXTENT, length), Vec::new());
        items.extend(free.into_iter().map(range));
    }
    items
}

/// Returns start and length of the ranges of a chunk without blocks; `blocks` is sorted. As in the
/// kernel's free-space tree, locations of superblocks count as free.
fn free_ranges(chunk: &Chunk, blocks: &[LogicalAddress], node_size: u64) -> Vec<(u64, u64)> {
    let (mut free, mut from) = (Vec::new(), chunk.start.0);
    for block in blocks.iter().filter(|block| (chunk.start..chunk.end()).contains(block)) {
        if block.0 > from {
            free.push((from, block.0 - from));
        }
        from = block.0 + node_size;
    }
    if chunk.end().0 > from {
        free.push((from, chunk.end().0 - from));
    }
    free
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_format::items::block_group::BlockGroupFlags;

    #[test]
    fn ranges_between_blocks_are_free() {
        let chunk = Chunk {
            start: LogicalAddress(100),
            length: 50,
            flags: BlockGroupFlags::METADATA,
            stripe_bytes: 50,
            stripes: Vec::new(),
            sector_size: 4096,
        };
        let free = |blocks: &[u64]| {
            let blocks: Vec<_> = blocks.iter().copied().map(LogicalAddress).collect();
            free_ranges(&chunk, &blocks, 10)
        };
        assert_eq!(free(&[]), [(100, 50)]);
        assert_eq!(free(&[90, 150]), [(100, 50)]);
        assert_eq!(free(&[100, 110, 130]), [(120, 10), (140, 10)]);
        assert_eq!(free(&[140]), [(100, 40)]);
        assert_eq!(free(&[100, 110, 120, 130, 140]), []);
    }
}
