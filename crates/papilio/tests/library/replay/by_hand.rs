//! Handmade logs that no current kernel writes. Older kernels wrote such logs, and a replay has to
//! handle every well-formed one.

use crate::in_memory::{
    close_clean, crashed, new_file_system, open_read_only, places_of_blocks, superblock, try_open, writable,
};
use papilio::format::items::dir_item::{DirEntry, FileType};
use papilio::format::items::dir_log::DirLogItem;
use papilio::format::items::file_extent::{Compression, ExtentPart, FileExtentContent, FileExtentItem};
use papilio::format::items::inode::{InodeItem, inode_key};
use papilio::format::items::inode_ref::{InodeExtref, InodeRef, InodeRefs};
use papilio::format::items::root::RawRootItem;
use papilio::format::node::{ItemHeader, NodeHeader};
use papilio::format::superblock::superblock_offset;
use papilio::format::{Generation, InodeNumber, ItemType, Key, LogicalAddress, PhysicalAddress, objectid};
use papilio::{Error, FileSystem};
use papilio_device::{Device, MemoryDevice};
use std::sync::Arc;

const NODE: usize = 16384;
/// Bytes from the last block of the file system to the log.
const APART: u64 = 1 << 20;
const ROOT: InodeNumber = objectid::FIRST_INODE;

/// A committed file system, to which a test adds a log.
struct Committed {
    device: Arc<MemoryDevice>,
    /// The items of the top-level subvolume.
    items: Vec<(Key, Vec<u8>)>,
    header: NodeHeader,
    /// For each copy of the metadata chunk, the difference of device offset and logical address.
    places: Vec<u64>,
    /// The address of the log.
    free: LogicalAddress,
}

impl Committed {
    /// Makes the file system, with `/a`, its hard link `/a2`, and `/b`.
    fn new() -> Self {
        Self::with(|_| ())
    }

    /// As [`Self::new`], with more that `add` makes.
    fn with(add: impl FnOnce(&FileSystem)) -> Self {
        let (device, fs) = new_file_system(256 << 20);
        for name in ["/a", "/b"] {
            fs.create_file(name).unwrap().write_all_at(name.as_bytes(), 0).unwrap();
        }
        fs.hard_link("/a", "/a2").unwrap();
        add(&fs);
        fs.close().unwrap();
        let fs = open_read_only(&device);
        let roots = fs.tree_roots().unwrap();
        let last =
            roots.iter().filter(|root| root.id != objectid::CHUNK_TREE).map(|root| root.address.0).max();
        let root = roots.iter().find(|root| root.id == objectid::FS_TREE).unwrap();
        let block = fs.tree_blocks(root).next().unwrap().unwrap();
        assert!(block.node().is_leaf(), "the tree is one leaf");
        let node = block.node();
        let items = (0..node.len()).map(|slot| (node.key(slot), node.item(slot).to_vec())).collect();
        let header = block.header();
        let places = places_of_blocks(&device, |found| *found == header);
        let places: Vec<_> = places.into_iter().map(|place| place.0 - header.address.0).collect();
        assert!(!places.is_empty());
        let free = LogicalAddress(last.unwrap() + APART);
        Self { items, header, places, free, device }
    }

    fn item(&self, key: Key) -> &[u8] {
        &self.items.iter().find(|(found, _)| *found == key).unwrap_or_else(|| panic!("no item {key}")).1
    }

    fn inode(&self, name: &[u8]) -> (InodeNumber, InodeItem) {
        let (number, _) = self.entry(name);
        (number, InodeItem::parse(self.item(inode_key(number))).unwrap())
    }

    /// Returns the inode of a name in the root directory, and the name's index.
    fn entry(&self, name: &[u8]) -> (InodeNumber, u64) {
        let refs = self.items.iter().filter(|(key, _)| key.item_type == ItemType::INODE_REF);
        refs.flat_map(|(key, data)| {
            InodeRefs::parse(data).unwrap().map(|entry| (entry.name, key.objectid, entry.index))
        })
        .find(|(found, ..)| *found == name)
        .map(|(_, number, index)| (InodeNumber(number), index))
        .unwrap()
    }

    /// Returns the inode item of the root directory as a log has it.
    fn root_item(&self) -> (Key, Vec<u8>) {
        let item = InodeItem::parse(self.item(inode_key(ROOT))).unwrap();
        self.logged(ROOT, &item)
    }

    fn logged(&self, number: InodeNumber, item: &InodeItem) -> (Key, Vec<u8>) {
        let item = InodeItem { transid: Generation(self.header.generation.0 + 1), ..*item };
        (inode_key(number), item.to_bytes().to_vec())
    }

    /// Writes a leaf of a log.
    fn write_leaf(&self, address: LogicalAddress, items: &[(Key, Vec<u8>)]) {
        let mut block = vec![0; NODE];
        let mut end = NODE - NodeHeader::SIZE;
        for (slot, (key, data)) in items.iter().enumerate() {
            end -= data.len();
            let item = ItemHeader { key: *key, offset: end as u32, size: data.len() as u32 };
            let at = NodeHeader::SIZE + slot * ItemHeader::SIZE;
            block[at..at + ItemHeader::SIZE].copy_from_slice(&item.to_bytes());
            block[NodeHeader::SIZE + end..][..data.len()].copy_from_slice(data);
        }
        let header = NodeHeader {
            address,
            generation: self.generation(),
            owner: objectid::TREE_LOG,
            item_count: items.len() as u32,
            level: 0,
            ..self.header
        };
        block[..NodeHeader::SIZE].copy_from_slice(&header.to_bytes());
        let sum = papilio::format::ChecksumType::Crc32c.compute(&block[32..]);
        block[..32].copy_from_slice(sum.padded());
        for place in &self.places {
            self.device.write_at(&block, PhysicalAddress(address.0 + place)).unwrap();
        }
    }

    /// Returns the transaction of the log.
    fn generation(&self) -> Generation {
        Generation(superblock(&self.device).raw.generation.0 + 1)
    }

    /// Adds a log with these items to the top-level subvolume and replays it on a copy of the
    /// device.
    fn replay(&self, mut items: Vec<(Key, Vec<u8>)>) -> papilio::Result<FileSystem> {
        items.sort_by_key(|(key, _)| *key);
        let log = LogicalAddress(self.free.0 + NODE as u64);
        self.write_leaf(log, &items);
        let raw = RawRootItem {
            generation: self.generation(),
            generation_v2: self.generation(),
            address: log,
            refs: 1,
            ..RawRootItem::parse(&[0; RawRootItem::SIZE]).unwrap()
        };
        let key = Key::new(objectid::TREE_LOG.0, ItemType::ROOT_ITEM, objectid::FS_TREE.0);
        self.write_leaf(self.free, &[(key, raw.to_bytes().to_vec())]);
        let place = superblock_offset(0);
        let mut superblock = superblock(&self.device);
        superblock.raw.log_root = self.free;
        self.device.write_at(&superblock.to_bytes(place), place).unwrap();
        let device = crashed(&self.device);
        close_clean(try_open(&device, &writable())?, &device);
        Ok(open_read_only(&device))
    }
}

fn names(fs: &FileSystem) -> Vec<String> {
    let entries =
        fs.read_dir("/").unwrap().map(|entry| String::from_utf8_lossy(entry.unwrap().file_name()).into());
    let mut names: Vec<String> = entries.collect();
    names.sort();
    names
}

fn entry(name: &[u8], index: u64, location: Key) -> (Key, Vec<u8>) {
    let entry = DirEntry {
        location,
        transid: Generation(1),
        file_type: FileType::Regular,
        encrypted: false,
        name,
        data: &[],
    };
    (Key::new(ROOT.0, ItemType::DIR_INDEX, index), entry.to_bytes())
}

fn reference(inode: InodeNumber, name: &[u8], index: u64) -> (Key, Vec<u8>) {
    (Key::new(inode.0, ItemType::INODE_REF, ROOT.0), InodeRef { index, name }.to_bytes())
}

#[test]
fn a_name_missing_from_the_logged_references_is_unlinked() {
    let committed = Committed::new();
    let (a, item) = committed.inode(b"a");
    let log = vec![committed.logged(a, &item), reference(a, b"a", committed.entry(b"a").1)];
    let fs = committed.replay(log).unwrap();
    assert_eq!(names(&fs), ["a", "b"]);
    assert_eq!(fs.metadata("/a").unwrap().nlink(), 1);
}

#[test]
fn a_logged_name_takes_the_index_of_another_name() {
    let committed = Committed::new();
    let (_, item) = committed.inode(b"b");
    let (new, index) = (InodeNumber(1000), committed.entry(b"b").1);
    let item = InodeItem { size: 0, nbytes: 0, ..item };
    let fs = committed.replay(vec![committed.logged(new, &item), reference(new, b"c", index)]).unwrap();
    assert_eq!(names(&fs), ["a", "a2", "c"]);
    assert_eq!(fs.metadata("/c").unwrap().number(), new);
}

#[test]
fn an_inode_logged_without_names_is_ignored() {
    let committed = Committed::new();
    let (b, item) = committed.inode(b"b");
    let unnamed = InodeItem { nlink: 0, size: 9, ..item };
    let new = InodeNumber(1000);
    let inline = |number: InodeNumber| {
        let key = Key::new(number.0, ItemType::EXTENT_DATA, 0);
        (key, committed.item(Key::new(b.0, ItemType::EXTENT_DATA, 0)).to_vec())
    };
    let log = vec![committed.logged(b, &unnamed), committed.logged(new, &unnamed), inline(b), inline(new)];
    let fs = committed.replay(log).unwrap();
    assert_eq!(names(&fs), ["a", "a2", "b"]);
    assert_eq!(fs.read("/b").unwrap(), b"/b");
}

#[test]
fn an_entry_without_a_reference_takes_the_name_and_index() {
    let committed = Committed::new();
    let (a, b) = (committed.entry(b"a").0, committed.entry(b"b"));
    let log = vec![committed.root_item(), entry(b"b", 77, inode_key(a)), entry(b"gone", 78, inode_key(ROOT))];
    // A name for a directory within itself is invalid.
    assert!(matches!(committed.replay(log), Err(Error::LogReplay { .. })));
    let committed = Committed::new();
    let log = vec![committed.root_item(), entry(b"b", 77, inode_key(a))];
    let fs = committed.replay(log).unwrap();
    assert_eq!(names(&fs), ["a", "a2", "b"]);
    assert_eq!(fs.metadata("/b").unwrap().number(), a);
    assert_eq!(fs.metadata("/b").unwrap().nlink(), 3);
    let committed = Committed::new();
    let fs = committed.replay(vec![committed.root_item(), entry(b"e", b.1, inode_key(a))]).unwrap();
    assert_eq!(names(&fs), ["a", "a2", "e"]);
    // The replay ignores entries for missing inodes and for subvolumes.
    let committed = Committed::new();
    let subvolume = Key::new(300, ItemType::ROOT_ITEM, u64::MAX);
    let missing = inode_key(InodeNumber(2000));
    let log = vec![committed.root_item(), entry(b"x", 80, missing), entry(b"y", 81, subvolume)];
    assert_eq!(names(&committed.replay(log).unwrap()), ["a", "a2", "b"]);
}

#[test]
fn references_to_missing_directories_are_ignored() {
    let committed = Committed::new();
    let (a, item) = committed.inode(b"a");
    let parent = InodeNumber(5000);
    let extended = InodeExtref { parent, index: 3, name: b"nowhere" };
    let plain = (Key::new(a.0, ItemType::INODE_REF, parent.0), InodeRef { index: 3, name: b"n" }.to_bytes());
    let log = vec![committed.logged(a, &item), plain, (extended.key(a), extended.to_bytes())];
    let fs = committed.replay(log).unwrap();
    assert_eq!(names(&fs), ["a", "a2", "b"]);
    assert_eq!(fs.metadata("/a").unwrap().nlink(), 2);
}

#[test]
fn a_directory_range_without_logged_names_is_emptied() {
    let committed = Committed::new();
    let range =
        (Key::new(ROOT.0, ItemType::DIR_LOG_INDEX, 0), DirLogItem { end: u64::MAX }.to_bytes().to_vec());
    let fs = committed.replay(vec![committed.root_item(), range]).unwrap();
    assert_eq!(names(&fs), [""; 0]);
    assert_eq!(fs.metadata("/").unwrap().size(), 0);
}

#[test]
fn a_directory_range_keeps_the_names_that_are_logged() {
    let committed = Committed::with(|fs| drop(fs.create_subvolume("/subvolume").unwrap()));
    let range =
        (Key::new(ROOT.0, ItemType::DIR_LOG_INDEX, 0), DirLogItem { end: u64::MAX }.to_bytes().to_vec());
    let (a, index) = committed.entry(b"a");
    let of_subvolume = committed
        .items
        .iter()
        .find(|(key, data)| key.item_type == ItemType::DIR_INDEX && data.ends_with(b"subvolume"));
    let log = vec![
        committed.root_item(),
        range,
        entry(b"a", index, inode_key(a)),
        of_subvolume.expect("it has a name").clone(),
    ];
    let fs = committed.replay(log).unwrap();
    assert_eq!(names(&fs), ["a", "subvolume"]);
    assert_eq!(fs.read("/a").unwrap(), b"/a");
    assert_eq!(fs.metadata("/a").unwrap().nlink(), 1);
    fs.inode("/subvolume").unwrap();
}

#[test]
fn a_name_moves_between_kinds_of_references() {
    // An index that no entry has yet, so that the name is not there as it is logged.
    const NEW: u64 = 99;
    let extended = |inode, name| {
        let reference = InodeExtref { parent: ROOT, index: NEW, name };
        (reference.key(inode), reference.to_bytes())
    };
    let committed = Committed::new();
    let (a, item) = committed.inode(b"a");
    let kept = reference(a, b"a", committed.entry(b"a").1);
    let fs = committed.replay(vec![committed.logged(a, &item), kept, extended(a, b"a2")]).unwrap();
    assert_eq!(names(&fs), ["a", "a2", "b"]);
    assert_eq!(fs.metadata("/a2").unwrap().nlink(), 2);
    let committed = Committed::new();
    let fs = committed.replay(vec![committed.logged(a, &item), extended(a, b"c")]).unwrap();
    assert_eq!(names(&fs), ["b", "c"]);
    assert_eq!(fs.metadata("/c").unwrap().nlink(), 1);
}

/// A file extent of one sector at the start of an extent of eight.
fn extent(change: impl FnOnce(&mut ExtentPart)) -> Vec<u8> {
    let mut part =
        ExtentPart { disk_address: LogicalAddress(13 << 20), disk_length: 32_768, offset: 0, length: 4096 };
    change(&mut part);
    let item = FileExtentItem {
        generation: Generation(1),
        ram_bytes: 32_768,
        compression: Compression::None,
        other_encoding: 0,
        content: FileExtentContent::Regular(part),
    };
    item.to_bytes()
}

#[test]
fn extents_that_no_reader_understands_are_refused() {
    let refused = |extents: Vec<(u64, Vec<u8>)>, reason: &str| {
        let committed = Committed::new();
        let (b, item) = committed.inode(b"b");
        let key = |offset| Key::new(b.0, ItemType::EXTENT_DATA, offset);
        let mut log = vec![committed.logged(b, &item), reference(b, b"b", committed.entry(b"b").1)];
        log.extend(extents.into_iter().map(|(offset, data)| (key(offset), data)));
        let error = committed.replay(log).err().unwrap_or_else(|| panic!("replayed: {reason}"));
        let mut text = String::new();
        let mut next: Option<&dyn std::error::Error> = Some(&error);
        while let Some(error) = next {
            text += &format!("{error}; ");
            next = error.source();
        }
        assert!(text.contains(reason), "{text}");
    };
    refused(vec![(0, extent(|part| part.length = 0))], "an extent must not be empty");
    refused(vec![(0, extent(|part| part.length = 36_864))], "exceeds the extent on disk");
    refused(vec![(0, extent(|part| (part.offset, part.length) = (28_672, 8192)))], "exceeds the extent");
    refused(
        vec![(0, extent(|part| part.length = 8192)), (4096, extent(|_| ()))],
        "overlaps the extent before it",
    );
    refused(
        vec![(0, extent(|_| ())), (4096, extent(|part| part.disk_length = 16_384))],
        "differs from another item",
    );
    refused(vec![(0, extent(|_| ())), (u64::MAX - 4095, extent(|_| ()))], "largest offset");
}

/// The kernel logs an inode whose existence matters, and not its state, with generation 0
/// (`LOG_INODE_EXISTS`). Of such an item only the size of a regular file counts.
#[test]
fn an_inode_of_generation_0_changes_the_size_only() {
    let exists = |item: InodeItem, size: u64| InodeItem {
        generation: Generation(0),
        size,
        mode: item.mode ^ 0o777,
        uid: 77,
        nbytes: 1 << 30,
        ..item
    };
    for (logged, expected) in [(7777, 7777), (0, 2)] {
        let committed = Committed::new();
        let (b, item) = committed.inode(b"b");
        let log =
            vec![committed.logged(b, &exists(item, logged)), reference(b, b"b", committed.entry(b"b").1)];
        let fs = committed.replay(log).unwrap();
        let found = fs.metadata("/b").unwrap();
        assert_eq!((found.size(), found.mode(), found.uid()), (expected, item.mode, 0));
        assert_eq!(found.generation(), item.generation);
        assert_eq!(fs.read("/b").unwrap()[..2], *b"/b");
    }
    // A directory keeps its size, which its entries have.
    let committed = Committed::new();
    let root = InodeItem::parse(committed.item(inode_key(ROOT))).unwrap();
    let fs = committed.replay(vec![committed.logged(ROOT, &exists(root, 9))]).unwrap();
    let found = fs.metadata("/").unwrap();
    assert_eq!((found.size(), found.mode(), found.generation()), (root.size, root.mode, root.generation));
    // A new one belongs to the transaction of the replay.
    let committed = Committed::new();
    let (_, item) = committed.inode(b"b");
    let new = InodeNumber(1000);
    let item = exists(InodeItem { mode: item.mode ^ 0o777, ..item }, 0);
    let fs = committed.replay(vec![committed.logged(new, &item), reference(new, b"c", 99)]).unwrap();
    let found = fs.metadata("/c").unwrap();
    assert_eq!((found.generation(), found.size()), (committed.generation(), 0));
    // Any other generation stays.
    let committed = Committed::new();
    let item = InodeItem { generation: Generation(3), nbytes: 0, size: 5000, ..committed.inode(b"b").1 };
    let fs = committed.replay(vec![committed.logged(new, &item), reference(new, b"c", 99)]).unwrap();
    let found = fs.metadata("/c").unwrap();
    assert_eq!((found.generation(), found.size()), (Generation(3), 5000));
    // A logged file has its own size, a directory that of its entries.
    let committed = Committed::new();
    let (b, item) = committed.inode(b"b");
    let root = InodeItem::parse(committed.item(inode_key(ROOT))).unwrap();
    let log = vec![
        committed.logged(b, &InodeItem { size: 0, ..item }),
        reference(b, b"b", committed.entry(b"b").1),
        committed.logged(ROOT, &InodeItem { size: 12, mode: root.mode ^ 0o7, ..root }),
    ];
    let fs = committed.replay(log).unwrap();
    assert_eq!(fs.metadata("/b").unwrap().size(), 0);
    let found = fs.metadata("/").unwrap();
    assert_eq!((found.size(), found.mode()), (root.size, root.mode ^ 0o7));
}
