//! Error counters of devices: the errors that they count, and that commits keep them.

use papilio::format::{DeviceId, ItemType, objectid};
use papilio::{DeviceErrors, FileSystem, MkfsOptions, OpenOptions, RaidProfile};
use papilio_device::{Device, FaultDevice, MemoryDevice, PhysicalAddress};
use std::sync::Arc;

const BYTES: usize = 256 << 10;

struct World {
    devices: [Arc<FaultDevice>; 2],
}

impl World {
    /// A file on two mirrors.
    fn new() -> Self {
        let memory: Vec<Arc<dyn Device>> =
            (0..2).map(|_| Arc::new(MemoryDevice::new(300 << 20)) as Arc<dyn Device>).collect();
        let raid1 = MkfsOptions::new().data_profile(RaidProfile::Raid1).metadata_profile(RaidProfile::Raid1);
        papilio::mkfs_devices(&memory, &raid1).unwrap();
        let devices = [0, 1].map(|number: usize| Arc::new(FaultDevice::new(memory[number].clone())));
        let world = Self { devices };
        let fs = world.open(true);
        fs.write("/file", vec![7; BYTES]).unwrap();
        fs.close().unwrap();
        world
    }

    fn open(&self, write: bool) -> FileSystem {
        self.open_with(&OpenOptions::new().write(write))
    }

    fn open_with(&self, options: &OpenOptions) -> FileSystem {
        Self::open_on(self.all(), options)
    }

    fn all(&self) -> Vec<Arc<dyn Device>> {
        self.devices.iter().map(|device| device.clone() as Arc<dyn Device>).collect()
    }

    fn open_on(devices: Vec<Arc<dyn Device>>, options: &OpenOptions) -> FileSystem {
        // Without a page cache every read reaches a device.
        let options = options.clone().commit_interval(None).cache_bytes(0);
        FileSystem::from_devices(devices, &options).unwrap()
    }

    fn everywhere(&self) -> std::ops::Range<PhysicalAddress> {
        PhysicalAddress(0)..PhysicalAddress(self.devices[0].size())
    }
}

fn read(fs: &FileSystem) {
    let mut bytes = vec![0; BYTES];
    fs.open_file("/file").unwrap().read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == [7; BYTES]);
}

/// The counters of both devices: write, read, flush, corruption, generation.
fn counters(fs: &FileSystem) -> [[u64; 5]; 2] {
    let errors = fs.device_errors().unwrap();
    let devids: Vec<_> = errors.iter().map(|errors| errors.devid).collect();
    assert_eq!(devids, [DeviceId(1), DeviceId(2)]);
    [0, 1].map(|number: usize| values(&errors[number]))
}

fn values(errors: &DeviceErrors) -> [u64; 5] {
    errors.named().map(|(_, value)| value)
}

#[test]
fn counters_outlive_the_commit_and_are_reset() {
    let world = World::new();
    let fs = world.open(true);
    assert_eq!(counters(&fs), [[0; 5]; 2]);
    for device in &world.devices {
        device.fail_reads(world.everywhere());
        read(&fs);
        device.repair();
        // In wrong bytes too, the other mirror helps. They count when they are mended.
        device.corrupt_reads(world.everywhere(), 1);
        read(&fs);
        fs.heal();
        device.repair();
    }
    let counted = counters(&fs);
    // Only the first mirror is read, as long as it is good.
    let first = usize::from(counted[0] == [0; 5]);
    let [writes, reads, flushes, corruptions, _] = counted[first];
    assert_eq!((writes, flushes), (0, 0));
    assert!(reads > 0 && corruptions >= BYTES as u64 / 4096, "{counted:?}");
    assert_eq!(counted[1 - first], [0; 5]);
    fs.close().unwrap();
    for write in [false, true] {
        assert_eq!(counters(&world.open(write)), counted, "after opening again");
    }
    // A reader adds to those of the last commit.
    let reader = world.open(false);
    world.devices[first].fail_reads(world.everywhere());
    read(&reader);
    world.devices[first].repair();
    assert!(counters(&reader)[first][1] > reads);
    drop(reader);
    let fs = world.open(true);
    let devid = DeviceId(first as u64 + 1);
    assert_eq!(values(&fs.reset_device_errors(devid).unwrap()), counted[first]);
    assert!(fs.reset_device_errors(DeviceId(9)).is_err());
    assert_eq!(counters(&fs), [[0; 5]; 2]);
    fs.close().unwrap();
    assert_eq!(counters(&world.open(false)), [[0; 5]; 2]);
    assert!(world.open(false).reset_device_errors(devid).is_err(), "it is read-only");
}

#[test]
fn a_commit_without_errors_leaves_the_counters() {
    let world = World::new();
    let fs = world.open(true);
    for device in &world.devices {
        device.fail_reads(world.everywhere());
        read(&fs);
        device.repair();
    }
    fs.sync().unwrap();
    let counted = counters(&fs);
    for number in 0..3 {
        fs.write(format!("/more{number}"), vec![1; 5000]).unwrap();
        fs.sync().unwrap();
    }
    assert_eq!(counters(&fs), counted);
    fs.close().unwrap();
    assert_eq!(counters(&world.open(false)), counted);
}

#[test]
fn wrong_bytes_count_where_nothing_mends_them() {
    for options in [OpenOptions::new(), OpenOptions::new().write(true).heal_reads(false)] {
        let world = World::new();
        let fs = world.open_with(&options);
        for device in &world.devices {
            device.corrupt_reads(world.everywhere(), 1);
            read(&fs);
            // The bytes are verified while they are wrong.
            counters(&fs);
            device.repair();
        }
        let counted = counters(&fs);
        // Data is read from one mirror, tree blocks perhaps from the other.
        assert!(counted.iter().any(|values| values[3] >= BYTES as u64 / 4096), "{counted:?}");
        assert!(counted.iter().all(|values| values[..3] == [0; 3]), "{counted:?}");
        let writes: u64 = world.devices.iter().map(|device| device.counts().writes).sum();
        fs.heal();
        let after: u64 = world.devices.iter().map(|device| device.counts().writes).sum();
        assert_eq!(after, writes, "nothing is written");
        if fs.sync().is_ok() {
            fs.close().unwrap();
            assert_eq!(counters(&world.open(false)), counted);
        }
    }
}

/// The devices whose counters the device tree holds.
fn counted_devices(fs: &FileSystem) -> Vec<u64> {
    let roots = fs.tree_roots().unwrap();
    let root = roots.iter().find(|root| root.id == objectid::DEV_TREE).unwrap();
    let mut devids = Vec::new();
    for block in fs.tree_blocks(root) {
        let block = block.unwrap();
        let node = block.node();
        let keys = (0..node.len()).map(|slot| node.key(slot)).filter(|_| node.is_leaf());
        let counters = keys.filter(|key| key.item_type == ItemType::PERSISTENT_ITEM);
        devids.extend(counters.filter(|key| key.objectid == objectid::DEV_STATS).map(|key| key.offset));
    }
    devids
}

#[test]
fn a_removed_device_leaves_no_counters() {
    let world = World::new();
    let third: Arc<dyn Device> = Arc::new(MemoryDevice::new(300 << 20));
    let fs = world.open(true);
    let devid = fs.add_device(third.clone(), false).unwrap();
    fs.close().unwrap();
    let mut devices = world.all();
    devices.push(third);
    let fs = World::open_on(devices, &OpenOptions::new().write(true));
    let fail_a_read = || {
        world.devices.iter().for_each(|device| {
            device.fail_reads(world.everywhere());
            read(&fs);
            device.repair();
        });
        fs.sync().unwrap();
    };
    fail_a_read();
    assert!(fs.remove_device(devid, |_| true).unwrap());
    fail_a_read();
    assert!(!counted_devices(&fs).is_empty() && !counted_devices(&fs).contains(&devid.0));
    fs.close().unwrap();
}

#[test]
fn an_fsync_that_loses_a_device_is_a_commit() {
    let world = World::new();
    let fs = world.open(true);
    fs.write("/other", vec![1; 5000]).unwrap();
    fs.sync().unwrap();
    let generation = fs.superblock().raw.generation;
    let file = fs.open_file("/file").unwrap();
    file.write_all_at(&[8; 4096], 0).unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs.superblock().raw.generation, generation, "it is in the log");
    world.devices[1].fail_writes(world.everywhere());
    file.write_all_at(&[9; 4096], 0).unwrap();
    file.sync_all().unwrap();
    // Only a newer superblock tells that the other device is out of date.
    assert!(fs.superblock().raw.generation > generation);
    fs.close().unwrap();
}
