//! What is in the log after each fsync: the same whichever way items enter it, all in one pass or one by one.

use fastrand::Rng;
use papilio::format::items::inode::Timespec;
use papilio::format::{Key, objectid};
use papilio::{File, FileSystem, LogItems, MkfsOptions, OpenOptions, Tuning};
use papilio_device::{Device, MemoryDevice};
use std::collections::BTreeMap;
use std::sync::Arc;

const FILES: u64 = 3;
const SECTORS: u64 = 200;
const STEPS: usize = 120;
const NOW: Timespec = Timespec { seconds: 1_700_000_000, nanoseconds: 5 };

/// One of two that do the same.
struct Side {
    device: Arc<MemoryDevice>,
    fs: FileSystem,
    files: Vec<File>,
}

impl Side {
    fn new(how: LogItems) -> Self {
        let device = Arc::new(MemoryDevice::new(256 << 20));
        let mkfs = MkfsOptions::new().node_size(4096).fsid(uuid::Uuid::from_u128(5)).timestamp(NOW);
        papilio::mkfs_device(&(device.clone() as Arc<dyn Device>), &mkfs).expect("mkfs");
        let mut tuning = Tuning::default();
        tuning.log_items = how;
        let options =
            OpenOptions::new().write(true).commit_interval(None).timestamp(Some(NOW)).tuning(tuning);
        let fs = FileSystem::from_devices(vec![device.clone() as Arc<dyn Device>], &options).expect("open");
        let files: Vec<File> = (0..FILES).map(|n| fs.create_file(format!("/file{n}")).unwrap()).collect();
        files.iter().for_each(|file| file.write_at(&vec![1; (SECTORS * 4096) as usize], 0).unwrap());
        fs.sync().unwrap();
        Self { device, fs, files }
    }

    /// A change of a file, which is then durable. Each time the same for the same `random`.
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
                file.write_at(&bytes, at + offset).unwrap();
            }
        }
        file.sync().unwrap();
    }

    /// All items of the log that is on the device.
    fn log(&self) -> BTreeMap<Key, Vec<u8>> {
        let fs = FileSystem::from_devices(
            vec![Arc::new(self.device.snapshot()) as Arc<dyn Device>],
            &OpenOptions::new(),
        )
        .expect("open for reading");
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
fn items_that_enter_in_one_pass_are_those_that_enter_one_by_one() {
    let sides = [LogItems::Prepared, LogItems::InPlace].map(Side::new);
    let mut sums = 0;
    for step in 0..STEPS {
        let logs = sides.each_ref().map(|side| {
            side.step(&mut Rng::with_seed(step as u64));
            side.log()
        });
        let [prepared, in_place] = &logs;
        assert!(prepared.keys().eq(in_place.keys()), "step {step}: the same keys");
        for (key, data) in prepared {
            assert!(in_place[key] == *data, "step {step}: the item {key:?}");
        }
        sums += usize::from(prepared.keys().any(|key| key.objectid == objectid::EXTENT_CSUM));
    }
    assert!(sums > STEPS / 2, "the log has sums, mostly");
}
