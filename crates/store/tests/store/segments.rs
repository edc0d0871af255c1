//! Segments: the writes that go to them, reads while they are filled, upgrades, clones, and
//! cleaning.

use crate::memory::{delete_device, options, runtime, segments};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use papilio_device::{Access, Device, PhysicalAddress, RemoteCache, RemoteOptions, StoreRequests};
use papilio_store::{
    StoreDevice, StoreUrl, clone_store, create_checkpoint, delete_checkpoint, list_checkpoints, store_info,
};
use slatedb::{Db, DbReader};
use std::sync::Arc;

const MIB: usize = 1 << 20;
const SIZE: u64 = 256 << 20;

struct Memory(Arc<InMemory>);

impl Memory {
    fn new() -> Self {
        Self(Arc::new(InMemory::new()))
    }

    fn store(&self) -> Arc<dyn ObjectStore> {
        Arc::clone(&self.0) as Arc<dyn ObjectStore>
    }

    fn url(&self, name: &str) -> StoreUrl {
        StoreUrl::in_store("memory", self.store(), name)
    }

    fn create(&self, name: &str) -> StoreDevice {
        StoreDevice::create(&self.url(name), SIZE, &options()).unwrap()
    }

    fn open(&self, name: &str, access: Access) -> StoreDevice {
        StoreDevice::open(&self.url(name), access, &options()).unwrap()
    }
}

fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

fn write(device: &dyn Device, offset: usize, seed: u64, length: usize) {
    device.write_at(&bytes(seed, length), PhysicalAddress(offset as u64)).unwrap();
}

fn read(device: &dyn Device, offset: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; length];
    device.read_at(&mut bytes, PhysicalAddress(offset as u64)).unwrap();
    bytes
}

fn sent(requests: StoreRequests) -> u64 {
    requests.segments.bytes_sent + requests.database.bytes_sent
}

#[test]
fn bulk_data_is_sent_once_and_read_in_large_pieces() {
    let memory = Memory::new();
    let device = memory.create("device");
    let total = 64 * MIB;
    for at in (0..total).step_by(MIB) {
        write(&device, at, at as u64, MIB);
        // From memory, on its way, or from its segment.
        let back = at / 2;
        assert!(read(&device, back, 4096) == bytes((back / MIB * MIB) as u64, MIB)[back % MIB..][..4096]);
    }
    device.flush().unwrap();
    device.close().unwrap();
    let written = device.requests();
    assert!(sent(written) * 100 < total as u64 * 102, "{written:?}");
    // On a slow machine a part goes before it is full.
    assert!((4..=8).contains(&written.segments.puts), "{written:?}");
    let reader = memory.open("device", Access::ReadOnly);
    for at in (0..total).step_by(256 << 10) {
        assert!(read(&reader, at, 256 << 10) == bytes((at / MIB * MIB) as u64, MIB)[at % MIB..][..256 << 10]);
    }
    let after = reader.requests();
    assert!(after.segments.gets <= 40, "{after:?}");
    assert!(after.segments.bytes_received < total as u64 * 102 / 100, "{after:?}");
    assert_eq!(after.segments.puts + after.segments.deletes, 0);
    let reader = memory.open("device", Access::ReadOnly);
    let before = reader.requests();
    let mut random = fastrand::Rng::with_seed(2);
    for _ in 0..100 {
        let at = random.usize(0..total / 4096) * 4096;
        assert!(read(&reader, at, 4096) == bytes((at / MIB * MIB) as u64, MIB)[at % MIB..][..4096]);
    }
    let after = reader.requests();
    assert!(after.segments.gets - before.segments.gets <= 100, "{after:?}");
    assert!(after.segments.bytes_received <= 100 * 64 * 1024, "{after:?}");
    assert!(after.database.gets - before.database.gets < 10, "the map is one block: {after:?}");
}

#[test]
fn small_writes_go_to_the_database_and_many_of_them_to_segments() {
    let memory = Memory::new();
    let device = memory.create("device");
    for number in 0..30 {
        write(&device, number * 3 * MIB, number as u64, 4096);
    }
    device.flush().unwrap();
    assert_eq!(segments(&memory.0, "device").len(), 0);
    for number in 0..1200 {
        write(&device, number * 5 * 8192, 5, 4096);
    }
    device.flush().unwrap();
    assert_eq!(segments(&memory.0, "device").len(), 1);
    drop(device);
    let device = memory.open("device", Access::ReadOnly);
    assert!(read(&device, 1199 * 5 * 8192, 4096) == bytes(5, 4096));
    assert!(read(&device, 87 * MIB, 4096) == bytes(29, 4096));
    assert!(read(&device, 87 * MIB + 4096, 4096) == vec![0; 4096]);
}

/// Makes a device of version 1 with some blocks, and returns the device's bytes.
fn make_first_version(memory: &Memory, name: &str) -> Vec<u8> {
    let mut model = vec![0; SIZE as usize];
    runtime().block_on(async {
        let db = Db::open(name, memory.store()).await.unwrap();
        let mut meta = b"papilio-device\0\x01".to_vec();
        meta.extend_from_slice(&4096_u64.to_le_bytes());
        meta.extend_from_slice(&SIZE.to_le_bytes());
        db.put(b"meta", meta).await.unwrap();
        for block in (0..4000_u64).filter(|block| block % 7 < 4) {
            let content = bytes(block, 4096);
            model[block as usize * 4096..][..4096].copy_from_slice(&content);
            let mut key = b"b".to_vec();
            key.extend_from_slice(&block.to_be_bytes());
            db.put(key, content).await.unwrap();
        }
        db.close().await.unwrap();
    });
    model
}

#[test]
fn a_device_of_version_1_is_read_and_becomes_one_of_version_2() {
    let memory = Memory::new();
    let mut model = make_first_version(&memory, "device");
    assert!(read(&memory.open("device", Access::ReadOnly), 0, SIZE as usize) == model);
    let first = create_checkpoint(&memory.url("device"), Some("first"), None).unwrap();
    assert_eq!(store_info(&memory.url("device"), &options()).unwrap().version, 1);
    let before = model.clone();
    let mut random = fastrand::Rng::with_seed(8);
    for round in 0..6 {
        let device = memory.open("device", Access::ReadWrite);
        for step in 0..20 {
            let length = (random.usize(1..400) * 4096).min(2 * MIB);
            let at = random.usize(0..(24 * MIB - length) / 4096) * 4096;
            if step % 4 == 0 {
                device.write_zeroes(PhysicalAddress(at as u64), length as u64, false).unwrap();
                model[at..at + length].fill(0);
            } else {
                let length = if step % 4 == 1 { length } else { random.usize(1..9000) };
                write(&device, at, step, length);
                model[at..at + length].copy_from_slice(&bytes(step, length));
            }
            if step % 7 == 0 {
                device.flush().unwrap();
            }
            assert!(read(&device, at, length) == model[at..at + length], "round {round}, step {step}");
        }
        assert!(read(&device, 0, 24 * MIB) == model[..24 * MIB], "round {round}");
        drop(device);
        let reader = memory.open("device", Access::ReadOnly);
        assert!(read(&reader, 0, SIZE as usize) == model, "round {round}");
    }
    let info = store_info(&memory.url("device"), &options()).unwrap();
    assert!(info.version == 2 && info.segments > 0, "{info:?}");
    let old = memory.url("device").at_checkpoint(&first.id);
    let old = StoreDevice::open(&old, Access::ReadOnly, &options()).unwrap();
    assert!(read(&old, 0, SIZE as usize) == before);
    drop(old);
    // Programs of version 1 look for this.
    runtime().block_on(async {
        let db = DbReader::builder("device", memory.store()).build().await.unwrap();
        let meta = db.get(b"meta").await.unwrap().unwrap();
        assert!(meta.starts_with(b"papilio-device\0") && !meta.starts_with(b"papilio-device\0\x01"));
        db.close().await.unwrap();
    });
    // All of it is discarded.
    let device = memory.open("device", Access::ReadWrite);
    device.discard(PhysicalAddress(0), SIZE).unwrap();
    drop(device);
    assert!(read(&memory.open("device", Access::ReadOnly), 0, SIZE as usize).iter().all(|byte| *byte == 0));
}

/// Deletes checkpoints that SlateDB's compaction has made for a while.
fn delete_unnamed_checkpoints(url: &StoreUrl) {
    for checkpoint in list_checkpoints(url).unwrap().iter().filter(|checkpoint| checkpoint.name.is_none()) {
        delete_checkpoint(url, &checkpoint.id).unwrap();
    }
}

#[test]
fn readers_and_checkpoints_keep_segments_and_cleaning_removes_the_others() {
    let memory = Memory::new();
    let url = memory.url("device");
    let device = memory.create("device");
    write(&device, 0, 1, 8 * MIB);
    device.flush().unwrap();
    let reader = memory.open("device", Access::ReadOnly);
    write(&device, 0, 2, 8 * MIB);
    device.flush().unwrap();
    drop(device);
    let cleaned = StoreDevice::clean(&url, &options()).unwrap();
    assert_eq!((cleaned.deleted_segments, cleaned.kept_dead_segments), (0, 1), "a reader has it");
    assert!(read(&reader, 0, 8 * MIB) == bytes(1, 8 * MIB));
    drop(reader);
    delete_unnamed_checkpoints(&url);
    let checkpoint = create_checkpoint(&url, Some("kept"), None).unwrap();
    let cleaned = StoreDevice::clean(&url, &options()).unwrap();
    assert_eq!(
        (cleaned.deleted_segments, cleaned.kept_dead_segments),
        (1, 0),
        "it died before the checkpoint"
    );
    let device = memory.open("device", Access::ReadWrite);
    // Little of the segment lives: the rest is copied together.
    device.discard(PhysicalAddress(0), 5 * MIB as u64).unwrap();
    device.discard(PhysicalAddress(6 * MIB as u64), 2 * MIB as u64).unwrap();
    device.flush().unwrap();
    drop(device);
    let info = store_info(&url, &options()).unwrap();
    assert_eq!((info.live_bytes, info.dead_bytes), (MIB as u64, 7 * MIB as u64), "{info:?}");
    let orphan = Path::from("device/segments/01ARZ3NDEKTSV4RRFFQ69G5FAV.seg");
    let put = memory.0.put(&orphan, vec![1; 100].into());
    runtime().block_on(put).unwrap();
    assert_eq!(store_info(&url, &options()).unwrap().orphans, 1);
    let cleaned = StoreDevice::clean(&url, &options()).unwrap();
    assert_eq!((cleaned.copied_segments, cleaned.copied_bytes), (1, MIB as u64));
    assert_eq!((cleaned.kept_dead_segments, cleaned.orphans, cleaned.orphan_bytes), (1, 1, 100));
    let kept = url.clone().at_checkpoint(&checkpoint.id);
    let kept = StoreDevice::open(&kept, Access::ReadOnly, &options()).unwrap();
    assert!(read(&kept, 0, 8 * MIB) == bytes(2, 8 * MIB));
    drop(kept);
    delete_checkpoint(&url, "kept").unwrap();
    delete_unnamed_checkpoints(&url);
    let cleaned = StoreDevice::clean(&url, &options()).unwrap();
    assert_eq!(cleaned.deleted_segments, 1, "{cleaned:?}, {:?}", list_checkpoints(&url));
    delete_unnamed_checkpoints(&url);
    let device = memory.open("device", Access::ReadWrite);
    assert!(read(&device, 5 * MIB, MIB) == bytes(2, 8 * MIB)[5 * MIB..6 * MIB]);
    // A writer removes a dead segment when it closes, unless SlateDB has made a checkpoint since.
    device.discard(PhysicalAddress(0), SIZE).unwrap();
    drop(device);
    delete_unnamed_checkpoints(&url);
    StoreDevice::clean(&url, &options()).unwrap();
    assert_eq!(segments(&memory.0, "device").len(), 0);
    let info = store_info(&url, &options()).unwrap();
    assert_eq!((info.live_bytes, info.dead_bytes, info.segments), (0, 0, 0));
    assert!(info.requests.segments.puts >= 3 && info.requests.segments.deletes >= 3, "{info:?}");
}

#[test]
fn clones_share_segments_and_none_takes_those_of_another() {
    let memory = Memory::new();
    let device = memory.create("a");
    write(&device, 0, 1, 4 * MIB);
    write(&device, 10 * MIB, 2, 4 * MIB);
    drop(device);
    let url = memory.url("a");
    create_checkpoint(&url, Some("before"), None).unwrap();
    clone_store(&url.clone().at_checkpoint("before"), &memory.url("b")).unwrap();
    delete_checkpoint(&url, "before").unwrap();
    let clone = memory.open("b", Access::ReadWrite);
    write(&clone, 0, 3, 4 * MIB);
    drop(clone);
    clone_store(&memory.url("b"), &memory.url("c")).unwrap();
    assert_eq!(
        ["a", "b", "c"].map(|name| segments(&memory.0, name).len()),
        [1, 1, 0],
        "a clone copies nothing"
    );
    assert_eq!(store_info(&url, &options()).unwrap().clones, 2, "and the clone of a clone");
    let info = store_info(&memory.url("b"), &options()).unwrap();
    assert_eq!((info.ancestor_segments, info.ancestor_bytes), (1, 4 * MIB as u64));
    assert_eq!((info.live_bytes, info.dead_bytes), (4 * MIB as u64, 0));
    // Everybody discards all, cleans, and takes nothing from the others.
    let expected = |seed: u64| [bytes(seed, 4 * MIB), bytes(2, 4 * MIB)];
    let found = |name: &str| {
        let device = memory.open(name, Access::ReadOnly);
        [read(&device, 0, 4 * MIB), read(&device, 10 * MIB, 4 * MIB)]
    };
    assert!(found("a") == expected(1) && found("b") == expected(3) && found("c") == expected(3));
    for name in ["a", "b"] {
        let device = memory.open(name, Access::ReadWrite);
        device.discard(PhysicalAddress(0), SIZE).unwrap();
        drop(device);
        // The records protect them, not only SlateDB's own checkpoints, which end sooner.
        let cleaned = StoreDevice::clean(&memory.url(name), &options()).unwrap();
        assert_eq!((cleaned.deleted_segments, cleaned.kept_dead_segments), (0, 1), "{name}");
    }
    assert!(found("c") == expected(3));
    let clone = memory.open("c", Access::ReadWrite);
    write(&clone, 10 * MIB, 5, 4 * MIB);
    drop(clone);
    StoreDevice::clean(&memory.url("c"), &options()).unwrap();
    assert_eq!(["a", "b", "c"].map(|name| segments(&memory.0, name).len()), [1, 1, 1]);
    delete_device(&memory.0, "b");
    assert!(memory.open("c", Access::ReadOnly).read_at(&mut [0; 4096], PhysicalAddress(0)).is_err());
}

#[test]
fn the_cache_on_disk_serves_a_second_reader() {
    let memory = Memory::new();
    let directory = tempfile::tempdir().unwrap();
    let cached = RemoteOptions { cache: RemoteCache::Directory(directory.path().to_owned()), ..options() };
    let device = memory.create("device");
    write(&device, 0, 1, 8 * MIB);
    drop(device);
    let gets = || {
        let device = StoreDevice::open(&memory.url("device"), Access::ReadOnly, &cached).unwrap();
        assert!(read(&device, 0, 8 * MIB) == bytes(1, 8 * MIB));
        device.requests().segments.gets
    };
    assert!(gets() > 0);
    assert_eq!(gets(), 0);
    // Damaged files are not believed.
    let mut damaged = 0;
    for folder in std::fs::read_dir(directory.path()).unwrap().flatten() {
        for file in std::fs::read_dir(folder.path()).unwrap().flatten().filter(|file| file.path().is_file()) {
            let mut content = std::fs::read(file.path()).unwrap();
            *content.last_mut().unwrap() ^= 1;
            std::fs::write(file.path(), content).unwrap();
            damaged += 1;
        }
    }
    assert!(damaged > 0 && gets() > 0);
}
