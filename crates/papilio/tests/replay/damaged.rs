//! Logs that cannot be believed: an error that says what is wrong where, and nothing is written.

use crate::carried;
use papilio::format::items::file_extent::{FileExtentContent, FileExtentItem};
use papilio::format::items::inode::InodeItem;
use papilio::format::node::{ItemHeader, NodeHeader};
use papilio::format::{ItemType, LogicalAddress, objectid};
use papilio::{CheckOptions, Error, FileSystem, OpenOptions};
use papilio_device::{Action, Device, MemoryDevice, PhysicalAddress, Recording};
use std::sync::Arc;

/// The carried disk, and node by node where its log lies.
struct Logged {
    device: MemoryDevice,
    /// The blocks of the logs: their bytes, and where they are.
    blocks: Vec<(Vec<u8>, Vec<PhysicalAddress>)>,
}

fn read_only(device: &MemoryDevice) -> FileSystem {
    FileSystem::from_devices(vec![Arc::new(device.snapshot())], &OpenOptions::new()).unwrap()
}

fn logged() -> Logged {
    let device = carried::disk();
    let fs = read_only(&device);
    assert!(fs.has_log());
    let mut found = Vec::new();
    for root in fs.tree_roots_of(objectid::TREE_LOG).unwrap() {
        for block in fs.tree_blocks(&root) {
            let block = block.unwrap();
            found.push((block.address(), block.geometry().node_size as usize));
        }
    }
    assert!(found.len() > 1, "a tree of logs and a log");
    let blocks = found.into_iter().map(|(address, size)| copies(&device, address, size)).collect();
    Logged { device, blocks }
}

/// The bytes of a tree block, and the places of its copies: wherever the image has a block of this address
/// and content.
fn copies(device: &MemoryDevice, address: LogicalAddress, size: usize) -> (Vec<u8>, Vec<PhysicalAddress>) {
    let mut bytes = vec![0; size];
    let (mut block, mut places) = (Vec::new(), Vec::new());
    for place in (0..device.size()).step_by(4096).filter(|place| place + size as u64 <= device.size()) {
        let mut header = [0; NodeHeader::SIZE];
        device.read_at(&mut header, PhysicalAddress(place)).unwrap();
        let Ok(header) = NodeHeader::parse(&header) else { continue };
        if header.address != address || header.owner != objectid::TREE_LOG {
            continue;
        }
        device.read_at(&mut bytes, PhysicalAddress(place)).unwrap();
        places.push(PhysicalAddress(place));
        block.clone_from(&bytes);
    }
    assert_eq!(places.len(), 2, "metadata has two copies");
    (block, places)
}

/// Puts the checksum of a block right.
fn seal(block: &mut [u8]) {
    let sum = papilio::format::ChecksumType::Crc32c.compute(&block[32..]);
    block[..32].copy_from_slice(sum.padded());
}

/// Opens for writing a disk with another block in the place of one of the log's. What was written, in events.
fn open_with(logged: &Logged, number: usize, block: &[u8]) -> (papilio::Result<FileSystem>, usize) {
    let device = logged.device.snapshot();
    for &place in &logged.blocks[number].1 {
        device.write_at(block, place).unwrap();
    }
    let recording = Recording::new();
    let recorder: Arc<dyn Device> = Arc::new(recording.attach(Arc::new(device)));
    let options = OpenOptions::new().write(true).commit_interval(None);
    let result = FileSystem::from_devices(vec![recorder], &options);
    let writes = recording.events().iter().filter(|event| !matches!(event.action, Action::Flush)).count();
    (result, writes)
}

fn assert_refused(logged: &Logged, number: usize, block: &[u8]) -> String {
    let (result, writes) = open_with(logged, number, block);
    let error = result.err().unwrap_or_else(|| panic!("block {number}: a log that is wrong was replayed"));
    assert!(matches!(error, Error::LogReplay { .. }), "{error}");
    assert_eq!(writes, 0, "{error}");
    error.to_string()
}

#[test]
fn a_log_that_is_damaged_is_an_error() {
    let logged = logged();
    for (number, (block, _)) in logged.blocks.iter().enumerate() {
        let mut flipped = block.clone();
        flipped[block.len() / 2] ^= 0x10;
        let message = assert_refused(&logged, number, &flipped);
        println!("{message}");
        assert!(message.contains("TREE_LOG") && message.contains("checksum"), "{message}");
    }
    // The last commit can still be read, and a log that is not to be replayed forbids writing.
    let fs = read_only(&logged.device);
    assert!(fs.has_log());
    assert_eq!(fs.read("/f").unwrap().len(), 200_000);
    assert!(fs.inode("/copy").is_err(), "the log is not shown");
    let report = fs.check(&CheckOptions::new().data_csum(true)).unwrap();
    assert!(report.is_clean(), "{}", report.findings[0]);
    let options = OpenOptions::new().write(true).replay_log(false);
    let error = FileSystem::from_devices(vec![Arc::new(logged.device.snapshot())], &options).unwrap_err();
    assert!(matches!(error, Error::ReadOnlyFileSystem { .. }), "{error}");
    // It is the damage that was refused.
    let (result, writes) = open_with(&logged, 0, &logged.blocks[0].0);
    assert_eq!(result.unwrap().read("/copy").unwrap().len(), 65_536);
    assert!(writes > 0);
}

/// Changes the first item of a kind in the log, in the block that has it; gives the block's number.
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
    panic!("no such item in the log");
}

#[test]
fn a_log_that_contradicts_the_file_system_is_an_error() {
    let logged = logged();
    // An extent where another is, in part.
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
    // A file that the subvolume has as a directory.
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
    for _ in 0..2000 * crate::random::number("PAPILIO_REPLAY_ROUNDS", 1) {
        let number = random.usize(..logged.blocks.len());
        let mut block = logged.blocks[number].0.clone();
        let header = NodeHeader::parse(&block[..NodeHeader::SIZE]).unwrap();
        let items = header.item_count as usize * ItemHeader::SIZE;
        // Among the headers of items and in their data, which lies at the end.
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
        let (result, writes) = open_with(&logged, number, &block);
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
