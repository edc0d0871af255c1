//! The traffic of a file system in an object store, counted: bytes and requests of bulk data, of
//! random reads and of small files.
//!
//! The objects are in memory. The test prints the counts, and fails if they exceed the promises of
//! `docs/stores.md`.

use object_store::ObjectStore;
use object_store::memory::InMemory;
use papilio::device::{Access, Device, RemoteCache, RemoteOptions};
use papilio::{FileSystem, MkfsOptions, OpenOptions};
use papilio_store::{RequestCounts, StoreDevice, StoreRequests, StoreUrl};
use std::sync::Arc;

const SIZE: u64 = 1 << 30;
const LARGE: usize = 256 << 20;
const MIB: usize = 1 << 20;

fn options() -> RemoteOptions {
    RemoteOptions { cache: RemoteCache::Memory, ..RemoteOptions::default() }
}

/// Fills a buffer with bytes that depend on its place.
fn fill(buffer: &mut [u8], offset: u64) {
    for (at, word) in buffer.chunks_exact_mut(8).enumerate() {
        let number = (offset + at as u64 * 8).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&number.rotate_left(17).to_le_bytes());
    }
}

struct Traffic {
    requests: u64,
    sent: u64,
    received: u64,
}

fn total(requests: StoreRequests) -> Traffic {
    let sum = |value: fn(&RequestCounts) -> u64| value(&requests.segments) + value(&requests.database);
    Traffic {
        requests: sum(|counts| counts.puts + counts.gets + counts.lists + counts.deletes),
        sent: sum(|counts| counts.bytes_sent),
        received: sum(|counts| counts.bytes_received),
    }
}

/// Runs a job on a file system whose device was just opened, and returns the traffic until it is
/// closed.
fn counted(url: &StoreUrl, access: Access, name: &str, job: impl FnOnce(&FileSystem)) -> Traffic {
    let device = Arc::new(StoreDevice::open(url, access, &options()).unwrap());
    let open = OpenOptions::new().write(access == Access::ReadWrite);
    let fs = FileSystem::from_devices(vec![Arc::clone(&device) as Arc<dyn Device>], &open).unwrap();
    let opened = total(device.requests());
    job(&fs);
    fs.close().unwrap();
    device.close().unwrap();
    let requests = device.requests();
    let traffic = total(requests);
    println!(
        "{name}: {} requests, {:.1} MB sent, {:.1} MB received; {} requests before it\n    {requests:?}",
        traffic.requests - opened.requests,
        (traffic.sent - opened.sent) as f64 / 1e6,
        (traffic.received - opened.received) as f64 / 1e6,
        opened.requests,
    );
    traffic
}

#[test]
fn bulk_data_is_sent_once_and_fetched_in_large_pieces() {
    let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let url = StoreUrl::in_store("memory", objects, "device");
    let made = StoreDevice::create(&url, SIZE, &options()).unwrap();
    papilio::mkfs_device(&(Arc::new(made) as Arc<dyn Device>), &MkfsOptions::new()).unwrap();
    let write = counted(&url, Access::ReadWrite, "256 MiB written, flushed", |fs| {
        let file = fs.create_file("/large").unwrap();
        let mut buffer = vec![0; MIB];
        for at in (0..LARGE).step_by(MIB) {
            fill(&mut buffer, at as u64);
            file.write_all_at(&buffer, at as u64).unwrap();
        }
        fs.sync().unwrap();
    });
    let read = counted(&url, Access::ReadOnly, "256 MiB read cold", |fs| {
        let file = fs.open_file("/large").unwrap();
        let (mut buffer, mut expected) = (vec![0; MIB], vec![0; MIB]);
        for at in (0..LARGE).step_by(MIB) {
            assert_eq!(file.read_at(&mut buffer, at as u64).unwrap(), MIB);
            fill(&mut expected, at as u64);
            assert!(buffer == expected, "at {at}");
        }
    });
    let random = counted(&url, Access::ReadOnly, "500 random reads of 4 KiB, cold", |fs| {
        let file = fs.open_file("/large").unwrap();
        let mut random = fastrand::Rng::with_seed(5);
        let (mut buffer, mut expected) = (vec![0; 4096], vec![0; 4096]);
        for _ in 0..500 {
            let at = random.u64(0..LARGE as u64 / 4096) * 4096;
            assert_eq!(file.read_at(&mut buffer, at).unwrap(), 4096);
            fill(&mut expected, at);
            assert!(buffer == expected, "at {at}");
        }
    });
    let small = counted(&url, Access::ReadWrite, "1,000 files of 4 KiB, flushed", |fs| {
        for number in 0..1000_u64 {
            let mut buffer = vec![0; 4096];
            fill(&mut buffer, number << 20);
            fs.create_file(format!("/small{number}")).unwrap().write_all_at(&buffer, 0).unwrap();
        }
        fs.sync().unwrap();
    });
    let mounted = counted(&url, Access::ReadWrite, "opened for writing, 64 MiB read", |fs| {
        let file = fs.open_file("/large").unwrap();
        let mut buffer = vec![0; MIB];
        for at in (0..LARGE / 4).step_by(MIB) {
            assert_eq!(file.read_at(&mut buffer, at as u64).unwrap(), MIB);
        }
    });
    // The figures of docs/stores.md, with some room: flushes and compaction depend on time.
    assert!(write.sent <= LARGE as u64 * 11 / 10, "{} bytes sent", write.sent);
    assert!(read.requests <= 200 && read.sent <= 1 << 16, "{} requests", read.requests);
    assert!(read.received <= LARGE as u64 * 11 / 10, "{} bytes received", read.received);
    assert!(random.requests <= 650 && random.received <= 500 * (64 << 10), "{} requests", random.requests);
    assert!(small.sent <= 64 << 20, "{} bytes sent", small.sent);
    assert!(mounted.sent <= 1 << 20, "a writer that only reads sent {} bytes", mounted.sent);
}
