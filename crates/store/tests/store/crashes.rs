//! Writers whose store stops at a random request, and devices of which objects are damaged.
//!
//! The store is in memory. It loses all that it has not acknowledged: after the last request, which
//! it may have carried out or not, every request is an error. `PAPILIO_STORE_STOPS` is the number
//! of writers, and of cleaners, that are stopped on plain and on encrypted devices.

use crate::encrypted::{COST, secret};
use crate::memory::{options, segments};
use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use papilio_device::{Access, Device, PhysicalAddress};
use papilio_store::{StoreDevice, StoreUrl, encrypt_store, store_info};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 4096;

/// A store that stops after so many requests.
#[derive(Debug)]
struct Stopping {
    inner: Arc<InMemory>,
    left: AtomicU64,
    /// Whether the last request is carried out although it fails.
    does_last: bool,
}

impl fmt::Display for Stopping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a store that stops")
    }
}

impl Stopping {
    fn stopped() -> Error {
        Error::PermissionDenied { path: String::new(), source: "the store has stopped".into() }
    }

    /// Counts a request. Returns whether it is to be carried out, and whether it succeeds.
    fn count(&self) -> (bool, bool) {
        let left = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        match left {
            Ok(0) | Err(_) => (false, false),
            Ok(1) => (self.does_last, false),
            Ok(_) => (true, true),
        }
    }

    async fn run<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let (is_done, succeeds) = self.count();
        if is_done {
            let outcome = work.await;
            if succeeds {
                return outcome;
            }
        }
        Err(Self::stopped())
    }
}

#[async_trait]
impl ObjectStore for Stopping {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.run(self.inner.put_opts(path, payload, options)).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.run(self.inner.put_multipart_opts(path, options)).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.run(self.inner.get_opts(path, options)).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        match self.count() {
            (true, true) => self.inner.delete_stream(paths),
            _ => paths.map(|_| Err(Self::stopped())).boxed(),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.count() {
            (true, true) => self.inner.list(prefix),
            _ => futures_util::stream::iter([Err(Self::stopped())]).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.run(self.inner.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.run(self.inner.copy_opts(from, to, options)).await
    }
}

/// Whether the objects of a device are encrypted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Plain,
    Encrypted,
}

impl Form {
    fn url(self, store: Arc<dyn ObjectStore>) -> StoreUrl {
        let url = StoreUrl::in_store("memory", store, "device");
        if self == Self::Encrypted { url.with_secret(secret("right")) } else { url }
    }

    fn create(self, memory: &Arc<InMemory>) -> StoreDevice {
        let url = self.url(Arc::clone(memory) as Arc<dyn ObjectStore>);
        if self == Self::Encrypted {
            encrypt_store(&url, &secret("right"), COST).unwrap();
        }
        StoreDevice::create(&url, BLOCKS * BLOCK, &options()).unwrap()
    }

    fn open(self, store: Arc<dyn ObjectStore>, access: Access) -> Option<StoreDevice> {
        StoreDevice::open(&self.url(store), access, &options()).ok()
    }
}

/// Returns how many programs of a kind are stopped.
fn stops() -> u32 {
    std::env::var("PAPILIO_STORE_STOPS").map_or(40, |text| text.parse().unwrap())
}

/// Returns the bytes of a block that the write `stamp` wrote; zeros for 0.
fn content(stamp: u32, block: u64) -> Vec<u8> {
    if stamp == 0 {
        return vec![0; BLOCK as usize];
    }
    let mut bytes = vec![stamp as u8; BLOCK as usize];
    bytes[..4].copy_from_slice(&stamp.to_le_bytes());
    bytes[4..12].copy_from_slice(&block.to_le_bytes());
    bytes
}

/// Returns the write that each block of a device comes from.
fn stamps(device: &dyn Device) -> Vec<u32> {
    let mut bytes = vec![0; (BLOCKS * BLOCK) as usize];
    for (number, part) in bytes.chunks_mut(4 << 20).enumerate() {
        device.read_at(part, PhysicalAddress(number as u64 * (4 << 20))).unwrap();
    }
    let stamp = |(block, bytes): (u64, &[u8])| {
        let stamp = u32::from_le_bytes(bytes[..4].try_into().unwrap());
        assert!(bytes == content(stamp, block), "block {block} has other bytes than write {stamp}");
        stamp
    };
    (0..).zip(bytes.chunks(BLOCK as usize)).map(stamp).collect()
}

/// A write or a discard of blocks.
struct Change {
    blocks: std::ops::Range<u64>,
    stamp: u32,
}

fn apply(state: &mut [u32], change: &Change) {
    state[change.blocks.start as usize..change.blocks.end as usize].fill(change.stamp);
}

fn random_change(random: &mut fastrand::Rng, stamp: u32) -> Change {
    let count = match random.u8(0..10) {
        0..4 => random.u64(1..8),
        4..7 => random.u64(16..256),
        7..9 => random.u64(256..1500),
        _ => random.u64(1..3000),
    };
    let start = random.u64(0..BLOCKS - count);
    let stamp = if random.u8(0..8) == 0 { 0 } else { stamp };
    Change { blocks: start..start + count, stamp }
}

fn carry_out(device: &dyn Device, change: &Change) -> std::io::Result<()> {
    let (offset, count) =
        (PhysicalAddress(change.blocks.start * BLOCK), change.blocks.end - change.blocks.start);
    if change.stamp == 0 {
        return device.write_zeroes(offset, count * BLOCK, false);
    }
    let bytes: Vec<u8> = change.blocks.clone().flat_map(|block| content(change.stamp, block)).collect();
    device.write_at(&bytes, offset)
}

/// Returns how many of the changes, at least `durable`, make the state `found`.
fn prefix_with(state: &[u32], changes: &[Change], durable: usize, found: &[u32]) -> Option<usize> {
    let mut prefix = state.to_vec();
    let mut length = (durable == 0 && prefix == found).then_some(0);
    for (number, change) in changes.iter().enumerate() {
        apply(&mut prefix, change);
        if number + 1 >= durable && prefix == found {
            length = Some(number + 1);
        }
    }
    length
}

/// Cleans a device. Its accounts must be right, its content stay, and its orphans go.
fn clean_and_check(form: Form, memory: &Arc<InMemory>, state: &[u32]) {
    let store = Arc::clone(memory) as Arc<dyn ObjectStore>;
    let url = form.url(Arc::clone(&store));
    assert_eq!(StoreDevice::clean(&url, &options()).unwrap().corrected_accounts, 0);
    assert_eq!(StoreDevice::clean(&url, &options()).unwrap().orphans, 0);
    assert!(stamps(&form.open(store, Access::ReadOnly).unwrap()) == state, "after cleaning");
    let info = store_info(&url, &options()).unwrap();
    assert_eq!((info.orphans, info.version), (0, 2));
}

#[test]
fn stopped_writers_leave_a_prefix_with_all_that_was_flushed() {
    stop_writers(Form::Plain);
}

#[test]
fn stopped_writers_of_encrypted_devices_leave_a_prefix() {
    stop_writers(Form::Encrypted);
}

fn stop_writers(form: Form) {
    let stops = stops();
    let seed = std::env::var("PAPILIO_STORE_SEED").map_or(1, |text| text.parse().unwrap());
    let mut random = fastrand::Rng::with_seed(seed);
    let mut memory = Arc::new(InMemory::new());
    let mut state = Vec::new();
    let (mut stamp, mut flushes, mut lost) = (0, 0, 0);
    for stop in 0..stops {
        if stop % 20 == 0 {
            memory = Arc::new(InMemory::new());
            drop(form.create(&memory));
            state = vec![0; BLOCKS as usize];
        }
        // One in four stops while it opens the device.
        let opening = if random.u8(0..4) == 0 { random.u64(1..70) } else { u64::MAX };
        let does_last = random.bool();
        let stopping = Arc::new(Stopping { inner: Arc::clone(&memory), left: opening.into(), does_last });
        let mut changes = Vec::new();
        let mut durable = 0;
        if let Some(device) = form.open(Arc::clone(&stopping) as Arc<dyn ObjectStore>, Access::ReadWrite) {
            let left = random.u64(0..60);
            stopping.left.fetch_min(left, Ordering::SeqCst);
            for _ in 0..random.u32(1..60) {
                if random.u8(0..6) == 0 {
                    if device.flush().is_err() {
                        break;
                    }
                    durable = changes.len();
                    flushes += 1;
                    continue;
                }
                stamp += 1;
                let change = random_change(&mut random, stamp);
                let outcome = carry_out(&device, &change);
                changes.push(change);
                if outcome.is_err() {
                    break;
                }
                if random.u8(0..20) == 0 {
                    // Until then, a device in memory has the writes that are not durable.
                    let block = random.u64(0..BLOCKS);
                    let mut bytes = vec![0; BLOCK as usize];
                    if device.read_at(&mut bytes, PhysicalAddress(block * BLOCK)).is_ok() {
                        let mut now = state.clone();
                        changes.iter().for_each(|change| apply(&mut now, change));
                        assert!(bytes == content(now[block as usize], block), "stop {stop}: block {block}");
                    }
                }
            }
        }
        let store = Arc::clone(&memory) as Arc<dyn ObjectStore>;
        let found = stamps(&form.open(store, Access::ReadOnly).expect("a stopped writer leaves a device"));
        let length = prefix_with(&state, &changes, durable, &found).unwrap_or_else(|| {
            panic!("stop {stop}, seed {seed}: no prefix of {} writes, {durable} durable", changes.len())
        });
        lost += changes.len() - length;
        state = found;
        if stop % 20 == 19 {
            clean_and_check(form, &memory, &state);
        }
    }
    println!(
        "{stops} writers were stopped after {stamp} writes and {flushes} flushes; {lost} writes were lost, \
              none of which had been flushed"
    );
    assert!(flushes > 0 && lost > 0);
}

#[test]
fn a_cleaner_that_is_stopped_loses_nothing() {
    stop_cleaners(Form::Plain);
}

#[test]
fn a_cleaner_of_an_encrypted_device_that_is_stopped_loses_nothing() {
    stop_cleaners(Form::Encrypted);
}

fn stop_cleaners(form: Form) {
    let mut random = fastrand::Rng::with_seed(4);
    let mut memory = Arc::new(InMemory::new());
    let mut state = Vec::new();
    for round in 0..stops() {
        if round % 20 == 0 {
            memory = Arc::new(InMemory::new());
            drop(form.create(&memory));
            state = vec![0; BLOCKS as usize];
        }
        let device = form.open(Arc::clone(&memory) as Arc<dyn ObjectStore>, Access::ReadWrite).unwrap();
        for _ in 0..12 {
            let stamp = round * 100 + random.u32(1..100);
            let change = random_change(&mut random, stamp);
            carry_out(&device, &change).unwrap();
            apply(&mut state, &change);
        }
        drop(device);
        let stopping = Stopping {
            inner: Arc::clone(&memory),
            left: random.u64(10..60).into(),
            does_last: random.bool(),
        };
        let _ = StoreDevice::clean(&form.url(Arc::new(stopping)), &options());
        let device = form.open(Arc::clone(&memory) as Arc<dyn ObjectStore>, Access::ReadOnly).unwrap();
        assert!(stamps(&device) == state, "round {round}");
    }
}

#[test]
fn a_damaged_segment_is_named_and_other_blocks_stay_readable() {
    let runtime = crate::memory::runtime();
    let memory = Arc::new(InMemory::new());
    let store = Arc::clone(&memory) as Arc<dyn ObjectStore>;
    let url = StoreUrl::in_store("memory", Arc::clone(&store), "device");
    let device = StoreDevice::create(&url, BLOCKS * BLOCK, &options()).unwrap();
    for (start, stamp) in [(0, 1), (1000, 2)] {
        carry_out(&device, &Change { blocks: start..start + 500, stamp }).unwrap();
        device.flush().unwrap();
    }
    drop(device);
    let [first, second] = &segments(&memory, "device")[..] else { panic!("two segments") };
    let bytes =
        |path: &Path| runtime.block_on(async { memory.get(path).await.unwrap().bytes().await.unwrap() });
    let (good, other) = (bytes(first), bytes(second));
    let read = |block: u64| {
        let device = Form::Plain.open(Arc::clone(&store), Access::ReadOnly).unwrap();
        let mut bytes = vec![0; BLOCK as usize];
        device.read_at(&mut bytes, PhysicalAddress(block * BLOCK)).map(|()| bytes)
    };
    let fails = |block: u64, reason: &str| {
        let error = read(block).unwrap_err().to_string();
        assert!(error.contains(first.as_ref()) && error.contains(reason), "{error}");
    };
    let put = |bytes: PutPayload| drop(runtime.block_on(memory.put(first, bytes)).unwrap());
    // Truncated inside block 300, and at the start.
    put(good.slice(..300 * (BLOCK as usize + 8) + 100).into());
    assert!([0, 299].iter().all(|block| read(*block).unwrap() == content(1, *block)));
    fails(300, "block 300");
    fails(301, "block 301: the object ends before it");
    fails(499, "");
    put(PutPayload::new());
    fails(0, "");
    // The object of another segment, as an old copy would be.
    put(other.into());
    fails(7, "block 7: its checksum does not agree");
    // A bit that flipped.
    let mut damaged = good.to_vec();
    damaged[20 * (BLOCK as usize + 8) + 5] ^= 1;
    put(damaged.into());
    fails(20, "block 20: its checksum does not agree");
    assert!([19, 21].iter().all(|block| read(*block).unwrap() == content(1, *block)));
    // Gone.
    runtime.block_on(memory.delete(first)).unwrap();
    fails(0, "the object is gone");
    assert!([1000, 1499].iter().all(|block| read(*block).unwrap() == content(2, *block)));
    assert!(read(600).unwrap() == content(0, 600));
    // A read of both fails, and a read of the rest does not.
    let device = Form::Plain.open(Arc::clone(&store), Access::ReadOnly).unwrap();
    let mut bytes = vec![0; 1100 * BLOCK as usize];
    assert!(device.read_at(&mut bytes, PhysicalAddress(0)).is_err());
    device.read_at(&mut bytes[..600 * BLOCK as usize], PhysicalAddress(500 * BLOCK)).unwrap();
}
