//! Damaged logs: opening for writing fails with an error that names the damage, and writes nothing.

use super::carried;
use crate::in_memory::{
    assert_clean, crashed, open_last_commit, open_with, places_of_blocks, try_open, writable,
};
use papilio::format::items::file_extent::{FileExtentContent, FileExtentItem};
use papilio::format::items::inode::InodeItem;
use papilio::format::node::{ItemHeader, NodeHeader};
use papilio::format::{ItemType, LogicalAddress, objectid};
use papilio::{Error, FileSystem, OlderCause, OpenOptions};
use papilio_device::{Action, Device, MemoryDevice, PhysicalAddress, Recording};
use std::sync::Arc;

/// The stored disk, and where the blocks of its log are.
struct Logged {
    device: Arc<MemoryDevice>,
    /// The blocks of the log trees: their bytes, and the device offsets of their copies.
    blocks: Vec<(Vec<u8>, Vec<PhysicalAddress>)>,
}

fn logged() -> Logged {
    let device = carried::disk();
    let fs = open_last_commit(&device);
    assert!(fs.has_log());
    let mut found = Vec::new();
    for root in fs.tree_roots_of(objectid::TREE_LOG).unwrap() {
        for block in fs.tree_blocks(&root) {
            let block = block.unwrap();
            found.push((block.address(), block.geometry().node_size as usize));
        }
    }
    assert!(found.len() > 1, "a log root tree and a log tree");
    let blocks = found.into_iter().map(|(address, size)| copies(&device, address, size)).collect();
    Logged { device, blocks }
}

/// Returns the bytes of a tree block, and the device offsets of its copies: every offset at which
/// the image has a log block with this address.
fn copies(device: &MemoryDevice, address: LogicalAddress, size: usize) -> (Vec<u8>, Vec<PhysicalAddress>) {
    let is_log = |header: &NodeHeader| header.address == address && header.owner == objectid::TREE_LOG;
    let places = places_of_blocks(device, is_log);
    assert_eq!(places.len(), 2, "metadata has two copies");
    let mut block = vec![0; size];
    device.read_at(&mut block, places[1]).unwrap();
    (block, places)
}

/// Repairs the checksum of a block.
fn seal(block: &mut [u8]) {
    let sum = papilio::format::ChecksumType::Crc32c.compute(&block[32..]);
    block[..32].copy_from_slice(sum.padded());
}

/// Opens a disk for writing after block `number` of the log was replaced. Also returns the number
/// of writes.
fn open_replaced(logged: &Logged, number: usize, block: &[u8]) -> (papilio::Result<FileSystem>, usize) {
    let device = crashed(&logged.device);
    for &place in &logged.blocks[number].1 {
        device.write_at(block, place).unwrap();
    }
    let recording = Recording::new();
    let result = try_open(&Arc::new(recording.attach(device)), &writable());
    let writes = recording.events().iter().filter(|event| !matches!(event.action, Action::Flush)).count();
    (result, writes)
}

fn assert_refused(logged: &Logged, number: usize, block: &[u8]) -> String {
    let (result, writes) = open_replaced(logged, number, block);
    let error = result.err().unwrap_or_else(|| panic!("block {number}: the damaged log was replayed"));
    assert!(matches!(error, Error::LogReplay { .. }), "{error}");
    assert_eq!(writes, 0, "{error}");
    error.to_string()
}

#[test]
fn a_damaged_log_is_an_error() {
    let logged = logged();
    for (number, (block, _)) in logged.blocks.iter().enumerate() {
        let mut flipped = block.clone();
        flipped[block.len() / 2] ^= 0x10;
        let message = assert_refused(&logged, number, &flipped);
        println!("{message}");
        assert!(message.contains("TREE_LOG") && message.contains("checksum"), "{message}");
    }
    // The last commit can still be read. Without a replay, the log forbids writing.
    let fs = open_last_commit(&logged.device);
    assert!(fs.has_log());
    assert_eq!(fs.read("/f").unwrap().len(), 200_000);
    assert!(fs.inode("/copy").is_err(), "reading shows the last commit, not the log");
    assert_clean(&logged.device);
    let error = try_open(&crashed(&logged.device), &writable().replay_log(false)).unwrap_err();
    assert!(matches!(error, Error::ReadOnlyFileSystem { .. }), "{error}");
    // Opened for reading, a damaged log is an error, unless the options allow the last commit.
    let damaged = crashed(&logged.device);
    let (block, places) = &logged.blocks[0];
    places.iter().for_each(|place| damaged.write_at(&vec![7; block.len()], *place).unwrap());
    let error = try_open(&damaged, &OpenOptions::new()).unwrap_err();
    assert!(matches!(error, Error::Unreplayed { .. }), "{error}");
    let fs = open_with(&damaged, &OpenOptions::new().allow_older(true));
    assert!(fs.has_log() && fs.inode("/copy").is_err());
    let causes: Vec<_> = fs.older_states().iter().map(|state| &state.cause).collect();
    assert!(matches!(causes[..], [OlderCause::LogUnusable { .. }]), "{causes:?}");
    assert_eq!(fs.read("/f").unwrap().len(), 200_000);
    // The undamaged log is replayed.
    let (result, writes) = open_replaced(&logged, 0, &logged.blocks[0].0);
    assert_eq!(result.unwrap().read("/copy").unwrap().len(), 65_536);
    assert!(writes > 0);
}

/// Applies `change` to items of a type until it returns true. Returns the changed block and its
/// number.
fn change_item(
    logged: &Logged,
    wanted: ItemType,
    mut change: impl FnMut(&mut [u8]) -> bool,
) -> (usize, Vec<u8>) {
    for (number, (block, _)) in logged.blocks.iter().enumerate() {
        let header = NodeHeader::parse(&block[..NodeHeader::SIZE]).unwrap();
        if header.level > 0 {
            continue;
        }
        for slot in 0..header.item_count as usize {
            let at = NodeHeader::SIZE + slot * ItemHeader::SIZE;
            let item = ItemHeader::parse(&block[at..at + ItemHeader::SIZE]).unwrap();
            let start = NodeHeader::SIZE + item.offset as usize;
            let mut changed = block.clone();
            if item.key.item_type == wanted && change(&mut changed[start..start + item.size as usize]) {
                seal(&mut changed);
                return (number, changed);
            }
        }
    }
    panic!("the log has no item of type {wanted:?} to change");
}

#[test]
fn a_log_that_contradicts_the_file_system_is_an_error() {
    let logged = logged();
    // An extent that overlaps another.
    let (number, block) = change_item(&logged, ItemType::EXTENT_DATA, |data| {
        let extent = FileExtentItem::parse(data).unwrap();
        let FileExtentContent::Regular(mut part) = extent.content else { return false };
        part.disk_address = LogicalAddress(part.disk_address.0 - 4096);
        part.disk_length += 1 << 20;
        let changed = FileExtentItem { content: FileExtentContent::Regular(part), ..extent }.to_bytes();
        data.copy_from_slice(&changed);
        true
    });
    let message = assert_refused(&logged, number, &block);
    assert!(message.contains("not free") || message.contains("otherwise"), "{message}");
    // A file whose inode is a directory in the subvolume.
    let (number, block) = change_item(&logged, ItemType::INODE_ITEM, |data| {
        let inode = InodeItem::parse(data).unwrap();
        let is_directory = inode.mode & 0o170_000 == 0o040_000;
        let changed = InodeItem { mode: 0o100_644, ..inode };
        data.copy_from_slice(&changed.to_bytes());
        is_directory
    });
    let message = assert_refused(&logged, number, &block);
    assert!(message.contains("another kind") && message.contains("subvolume 5"), "{message}");
}

#[test]
fn any_change_of_a_log_is_replayed_or_refused() {
    let logged = logged();
    let mut random = fastrand::Rng::with_seed(5);
    let (mut refused, mut replayed) = (0, 0);
    for _ in 0..2000 * super::random::number("PAPILIO_REPLAY_ROUNDS", 1) {
        let number = random.usize(..logged.blocks.len());
        let mut block = logged.blocks[number].0.clone();
        let header = NodeHeader::parse(&block[..NodeHeader::SIZE]).unwrap();
        let items = header.item_count as usize * ItemHeader::SIZE;
        // In the item headers, or in the item data at the end of the block.
        let place = if random.bool() {
            NodeHeader::SIZE + random.usize(..items)
        } else {
            block.len() - 1 - random.usize(..2000)
        };
        block[place] ^= 1 << random.u8(..8);
        if random.bool() {
            let other = block.len() - 1 - random.usize(..2000);
            block[other] = *random.choice(&[0, 1, 255, block[place]]).unwrap();
        }
        seal(&mut block);
        let (result, writes) = open_replaced(&logged, number, &block);
        match result {
            Ok(_) => replayed += 1,
            Err(error) => {
                assert!(matches!(error, Error::LogReplay { .. }), "{error}");
                assert_eq!(writes, 0, "{error}");
                refused += 1;
            }
        }
    }
    println!("{refused} refused, {replayed} replayed");
    assert!(refused > 200 && replayed > 200, "{refused} refused, {replayed} replayed");
}
