//! The cost of latency for a file system in an object store, and what a cache on disk saves.
//!
//! Compares three devices whose requests each take the same time: a disk, a store without and one
//! with a cache on disk. The objects are in memory, so that nothing but the latency counts.
//!
//! Run it with `cargo run --release -p papilio-cli-store --example store_latency`.

use object_store::ObjectStore;
use object_store::memory::InMemory;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use papilio::device::{Access, Device, MemoryDevice, RemoteCache, RemoteOptions};
use papilio::{DelayDevice, FileSystem, MkfsOptions, OpenOptions};
use papilio_store::{StoreDevice, StoreUrl};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SIZE: u64 = 512 << 20;
const LARGE: usize = 64 << 20;
const FILES: usize = 500;
const SYNCS: usize = 50;

type AnyError = Box<dyn std::error::Error>;

/// Opens the device anew, as another program would.
type Open<'a> = dyn Fn() -> Result<Arc<dyn Device>, AnyError> + 'a;

fn timed(work: impl FnOnce() -> Result<(), AnyError>) -> Result<f64, AnyError> {
    let began = Instant::now();
    work()?;
    Ok(began.elapsed().as_secs_f64() * 1e3)
}

/// Returns the times of the jobs in milliseconds.
fn measure(open: &Open<'_>) -> Result<[f64; 6], AnyError> {
    papilio::mkfs_device(&open()?, &MkfsOptions::new())?;
    let options = || OpenOptions::new().write(true).cache_bytes(128 << 20);
    let fs = FileSystem::from_devices(vec![open()?], &options())?;
    let bytes: Vec<u8> = (0..LARGE as u64).map(|at| ((at * at) >> 9) as u8).collect();
    let write = timed(|| {
        fs.create_file("/large")?.write_all_at(&bytes, 0)?;
        Ok(fs.sync()?)
    })?;
    let create = timed(|| {
        for number in 0..FILES {
            fs.create_file(format!("/file{number}"))?.write_all_at(&bytes[..4096], 0)?;
        }
        Ok(fs.sync()?)
    })?;
    let fsync = timed(|| {
        for number in 0..SYNCS {
            let file = fs.create_file(format!("/synced{number}"))?;
            file.write_all_at(&bytes[..4096], 0)?;
            file.sync_all()?;
        }
        Ok(())
    })?;
    fs.close()?;
    let fs = FileSystem::from_devices(vec![open()?], &options())?;
    let list = timed(|| {
        for number in 0..FILES {
            fs.open_file(format!("/file{number}"))?.metadata()?;
        }
        Ok(())
    })?;
    let read = timed(|| {
        let read = fs.open_file("/large")?.read_all()?;
        if read == bytes { Ok(()) } else { Err("the file differs".into()) }
    })?;
    fs.close()?;
    let fs = FileSystem::from_devices(vec![open()?], &options())?;
    let again = timed(|| {
        fs.open_file("/large")?.read_all()?;
        Ok(())
    })?;
    fs.close()?;
    Ok([write, create, fsync / SYNCS as f64, list, read, again])
}

fn main() -> Result<(), AnyError> {
    println!("times in ms: 64 MiB written and synced | 500 files created and synced | one fsync of 4 KiB");
    println!("             | 500 files looked up | 64 MiB read cold | and again in a new process");
    for latency in [1, 10, 50].map(Duration::from_millis) {
        let memory: Arc<dyn Device> = Arc::new(MemoryDevice::new(SIZE));
        let disk = || Ok(Arc::new(DelayDevice::new(Arc::clone(&memory), latency)?) as Arc<dyn Device>);
        print_row(latency, "disk", measure(&disk)?);
        let cache = tempfile::tempdir()?;
        for (name, cache) in [
            ("store", RemoteCache::Memory),
            ("store, cached", RemoteCache::Directory(cache.path().to_owned())),
        ] {
            let calls = ThrottleConfig {
                wait_delete_per_call: latency,
                wait_get_per_call: latency,
                wait_list_per_call: latency,
                wait_list_with_delimiter_per_call: latency,
                wait_put_per_call: latency,
                ..ThrottleConfig::default()
            };
            let objects: Arc<dyn ObjectStore> = Arc::new(ThrottledStore::new(InMemory::new(), calls));
            let options = RemoteOptions { cache, ..RemoteOptions::default() };
            let url = StoreUrl::in_store("throttled", objects, "device");
            drop(StoreDevice::create(&url, SIZE, &options)?);
            let open =
                || Ok(Arc::new(StoreDevice::open(&url, Access::ReadWrite, &options)?) as Arc<dyn Device>);
            print_row(latency, name, measure(&open)?);
        }
    }
    Ok(())
}

fn print_row(latency: Duration, name: &str, times: [f64; 6]) {
    let times: Vec<_> = times.iter().map(|time| format!("{time:>9.1}")).collect();
    println!("{:>3} ms  {name:<14}{}", latency.as_millis(), times.join(" "));
}
