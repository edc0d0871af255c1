//! The log's items after each fsync: they are the same whether the fsync inserts them in one pass
//! or one by one.

use crate::in_memory::{crashed, formatted_with, open_last_commit, open_with, writable};
use fastrand::Rng;
use papilio::format::items::inode::Timespec;
use papilio::format::{ItemType, Key, objectid};
use papilio::{File, FileSystem, LogItems, MkfsOptions, Tuning};
use papilio_device::MemoryDevice;
use std::collections::BTreeMap;
use std::sync::Arc;

const FILES: u64 = 3;
const SECTORS: u64 = 200;
const STEPS: usize = 120;
const NOW: Timespec = Timespec { seconds: 1_700_000_000, nanoseconds: 5 };

/// One of two file systems that undergo the same changes.
struct Side {
    device: Arc<MemoryDevice>,
    fs: FileSystem,
    files: Vec<File>,
}

impl Side {
    fn new(how: LogItems) -> Self {
        let mkfs = MkfsOptions::new().node_size(4096).fsid(uuid::Uuid::from_u128(5)).timestamp(NOW);
        let device = formatted_with(256 << 20, &mkfs);
        let mut tuning = Tuning::default();
        tuning.log_items = how;
        let fs = open_with(&device, &writable().timestamp(Some(NOW)).tuning(tuning));
        let files: Vec<File> = (0..FILES).map(|n| fs.create_file(format!("/file{n}")).unwrap()).collect();
        files.iter().for_each(|file| file.write_all_at(&vec![1; (SECTORS * 4096) as usize], 0).unwrap());
        fs.sync().unwrap();
        Self { device, fs, files }
    }

    /// Changes and fsyncs a file. Equal seeds make equal changes.
    fn step(&self, random: &mut Rng) {
        let file = &self.files[random.usize(0..self.files.len())];
        let at = random.u64(0..SECTORS) * 4096;
        match random.u8(0..20) {
            0 => file.set_len(at + random.u64(1..5000)).unwrap(),
            1 => file.punch_hole(at, random.u64(1..20) * 4096).unwrap(),
            2 => file.clone_range(file, 0, 8192, at.max(8192)).unwrap(),
            3 => self.fs.set_xattr("/file1", b"user.name", &[random.u8(..); 40]).unwrap(),
            kind => {
                let offset = if kind < 7 { random.u64(0..4096) } else { 0 };
                let bytes = vec![random.u8(..); random.usize(1..30) * 4096];
                file.write_all_at(&bytes, at + offset).unwrap();
            }
        }
        file.sync_all().unwrap();
    }

    /// Returns all items of the log that is on the device.
    fn log(&self) -> BTreeMap<Key, Vec<u8>> {
        let fs = open_last_commit(&crashed(&self.device));
        let mut items = BTreeMap::new();
        for root in fs.tree_roots_of(objectid::TREE_LOG).unwrap_or_default() {
            for block in fs.tree_blocks(&root) {
                for item in block.expect("a good block").items() {
                    items.insert(item.header.key, item.data.to_vec());
                }
            }
        }
        items
    }
}

#[test]
fn prepared_items_equal_items_inserted_one_by_one() {
    let sides = [LogItems::Prepared, LogItems::InPlace].map(Side::new);
    let mut with_checksums = 0;
    for step in 0..STEPS {
        let logs = sides.each_ref().map(|side| {
            side.step(&mut Rng::with_seed(step as u64));
            side.log()
        });
        let [prepared, in_place] = &logs;
        assert!(prepared.keys().eq(in_place.keys()), "step {step}: the keys differ");
        // A root item has the address of the log's root: the ways need different numbers of blocks.
        for (key, data) in prepared.iter().filter(|(key, _)| key.item_type != ItemType::ROOT_ITEM) {
            assert!(in_place[key] == *data, "step {step}: the item {key:?} differs");
        }
        with_checksums += usize::from(prepared.keys().any(|key| key.objectid == objectid::EXTENT_CSUM));
    }
    assert!(with_checksums > STEPS / 2, "most logs have checksums: {with_checksums} of {STEPS}");
}
