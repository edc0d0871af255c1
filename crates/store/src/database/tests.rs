//! Devices in a store of local files.

use super::*;
use papilio_device::{
    Access, Device, OpenErrorKind, PhysicalAddress, ReadRequest, RemoteCache, RemoteOptions,
};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const SIZE: u64 = 16 << 20;

fn options() -> RemoteOptions {
    RemoteOptions { cache: RemoteCache::Memory, ..RemoteOptions::default() }
}

/// A directory for stores, which is deleted at the end.
struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn url(&self, name: &str) -> StoreUrl {
        let url = format!("slatedb+file://{}/{name}", self.0.path().display());
        StoreUrl::parse(&url, &options()).unwrap()
    }
}

fn create(url: &StoreUrl) -> StoreDevice {
    StoreDevice::create(url, SIZE, &options()).unwrap()
}

fn open(url: &StoreUrl, access: Access) -> Result<StoreDevice, OpenErrorKind> {
    StoreDevice::open(url, access, &options())
}

fn read(device: &dyn Device, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; length];
    device.read_at(&mut bytes, PhysicalAddress(offset)).unwrap();
    bytes
}

#[test]
fn random_operations_agree_with_a_model() {
    let scratch = Scratch::new();
    let url = scratch.url("a/device");
    let mut device = create(&url);
    let mut model = vec![0_u8; SIZE as usize];
    let mut random = fastrand::Rng::with_seed(7);
    for step in 0..400 {
        let aligned = random.bool();
        let unit = if aligned { 4096 } else { 1 };
        let offset = random.u64(0..SIZE / unit) * unit;
        let length =
            (random.u64(1..=if step % 20 == 0 { 300 } else { 12 }) * unit).min(SIZE - offset) as usize;
        let range = offset as usize..offset as usize + length;
        match random.u8(0..10) {
            0..5 => {
                let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(length).collect();
                device.write_at(&bytes, PhysicalAddress(offset)).unwrap();
                model[range].copy_from_slice(&bytes);
            }
            5..7 => assert!(read(&device, offset, length) == model[range], "step {step}"),
            7 => {
                device.write_zeroes(PhysicalAddress(offset), length as u64, false).unwrap();
                model[range].fill(0);
            }
            8 => device.flush().unwrap(),
            _ if step % 5 == 0 => {
                device.flush().unwrap();
                drop(device);
                device = open(&url, Access::ReadWrite).unwrap();
            }
            _ => {
                let mut buffers: Vec<_> = (0..20).map(|_| vec![0; 5000]).collect();
                let places: Vec<_> = (0..20).map(|_| random.u64(0..SIZE - 5000)).collect();
                let mut requests: Vec<_> = (buffers.iter_mut().zip(&places))
                    .map(|(buffer, at)| ReadRequest::new(PhysicalAddress(*at), buffer))
                    .collect();
                device.read_many(&mut requests);
                assert!(requests.iter().all(|request| request.result.is_ok()));
                for (buffer, at) in buffers.iter().zip(places) {
                    assert!(buffer[..] == model[at as usize..][..5000], "step {step}");
                }
            }
        }
    }
    drop(device);
    let reader = open(&url, Access::ReadOnly).unwrap();
    assert!(read(&reader, 0, SIZE as usize) == model);
    assert_eq!(
        reader.write_at(&[1], PhysicalAddress(0)).unwrap_err().kind(),
        io::ErrorKind::ReadOnlyFilesystem
    );
}

#[test]
fn reader_keeps_the_state_that_it_opened() {
    let scratch = Scratch::new();
    let url = scratch.url("device");
    let writer = create(&url);
    let put = |byte: u8| {
        writer.write_at(&[byte; 8192], PhysicalAddress(4096)).unwrap();
        writer.flush().unwrap();
    };
    put(1);
    let reader = open(&url, Access::ReadOnly).unwrap();
    put(2);
    let later = open(&url, Access::ReadOnly).unwrap();
    assert_eq!(
        (read(&reader, 4096, 1), read(&later, 4096, 1), read(&writer, 4096, 1)),
        (vec![1], vec![2], vec![2])
    );
    assert_eq!(list_checkpoints(&url).unwrap().len(), 2);
    drop((reader, later));
    assert_eq!(list_checkpoints(&url).unwrap(), [], "readers leave no checkpoint behind");
}

#[test]
fn a_watch_sees_each_flush_and_nothing_else() {
    use papilio_device::StoreWatch;
    let scratch = Scratch::new();
    let url = scratch.url("device");
    let writer = create(&url);
    let mut watch = LogWatch::new(url.clone()).unwrap();
    let put = |byte: u8| {
        writer.write_at(&[byte; 8192], PhysicalAddress(4096)).unwrap();
        writer.flush().unwrap();
    };
    put(1);
    assert!(watch.has_changed().unwrap(), "the first look has nothing to compare with");
    assert!(!watch.has_changed().unwrap());
    for byte in 2..5 {
        put(byte);
        assert!(watch.has_changed().unwrap(), "flush {byte}");
        let reader = open(&url, Access::ReadOnly).unwrap();
        assert_eq!(read(&reader, 4096, 1), [byte], "a reader that opens the device then sees the flush");
        drop(reader);
        assert!(!watch.has_changed().unwrap(), "a reader changes nothing");
    }
    assert!(LogWatch::new(url.clone().at_checkpoint("one")).is_err());
    let mut none = LogWatch::new(scratch.url("none")).unwrap();
    assert!(none.has_changed().unwrap() && !none.has_changed().unwrap());
}

#[test]
fn second_writer_fences_the_first() {
    let scratch = Scratch::new();
    let url = scratch.url("device");
    let first = create(&url);
    first.write_at(&[1; 4096], PhysicalAddress(0)).unwrap();
    first.flush().unwrap();
    let second = open(&url, Access::ReadWrite).unwrap();
    assert_eq!(read(&second, 0, 1), [1], "an acknowledged write stays");
    let fenced = first.write_at(&[2; 4096], PhysicalAddress(0)).and_then(|()| first.flush()).unwrap_err();
    assert_eq!(fenced.kind(), io::ErrorKind::StaleNetworkFileHandle, "{fenced}");
    let process = format!("process {} on ", std::process::id());
    let (other, own) = fenced
        .to_string()
        .split_once("; this one is ")
        .map_or_else(|| panic!("{fenced}"), |(other, own)| (other.to_owned(), own.to_owned()));
    assert!(other.contains("another program has opened it for writing"), "{fenced}");
    assert!(other.contains(&format!("; the other is {process}")) && own.starts_with(&process), "{fenced}");
    second.write_at(&[3; 4096], PhysicalAddress(4096)).unwrap();
    second.flush().unwrap();
    drop((first, second));
    let after = open(&url, Access::ReadOnly).unwrap();
    assert_eq!((read(&after, 0, 1), read(&after, 4096, 1)), (vec![1], vec![3]));
}

#[test]
fn a_writer_says_that_it_has_the_device_until_it_closes() {
    let scratch = Scratch::new();
    let url = scratch.url("device");
    let named = scratch.0.path().join("device/writer");
    let first = create(&url);
    let text = || std::fs::read_to_string(&named).unwrap();
    let of_first = text();
    assert_eq!(of_first.lines().nth(1), Some(&*std::process::id().to_string()));
    let second = open(&url, Access::ReadWrite).unwrap();
    let of_second = text();
    assert_ne!(of_second, of_first);
    // The fenced one leaves the name of the other.
    assert!(first.close().is_err());
    drop(first);
    assert!(text() == of_second && of_second.ends_with("\nopen\n"));
    drop(second);
    assert!(text().ends_with("\nclosed\n"));
}

#[test]
fn an_idle_writer_sends_no_requests() {
    let scratch = Scratch::new();
    let device = create(&scratch.url("device"));
    let total = || {
        let requests = device.requests();
        [requests.segments, requests.database]
            .map(|counts| counts.puts + counts.gets + counts.lists + counts.deletes)
            .iter()
            .sum::<u64>()
    };
    let write = |byte: u8| {
        device.write_at(&[byte; 4096], PhysicalAddress(0)).unwrap();
        device.flush().unwrap();
    };
    write(1);
    let before = total();
    for _ in 0..6 {
        device.activity().note();
        std::thread::sleep(Duration::from_millis(500));
    }
    let in_use = total() - before;
    assert!(in_use > 0, "SlateDB polls while the device is used");
    std::thread::sleep(activity::REST_AFTER + Duration::from_secs(2));
    let idle = total();
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(total(), idle, "an idle device sends requests; one in use sent {in_use} in 3 s");
    println!("{in_use} requests in 3 s of use, none in 6 s of rest");
    // It wakes up.
    write(2);
    let awake = total();
    std::thread::sleep(Duration::from_secs(2));
    assert!(total() > awake && read(&device, 0, 1) == [2]);
}

#[test]
fn checkpoints_and_clones_have_their_states() {
    let scratch = Scratch::new();
    let url = scratch.url("device");
    let device = create(&url);
    device.write_at(&[1; 4096], PhysicalAddress(0)).unwrap();
    drop(device);
    let made = create_checkpoint(&url, Some("before"), None).unwrap();
    assert_eq!(made.name.as_deref(), Some("before"));
    let again = create_checkpoint(&url, Some("before"), None).unwrap_err().to_string();
    assert_eq!(again, "it has a checkpoint before already");
    let device = open(&url, Access::ReadWrite).unwrap();
    device.write_at(&[2; 4096], PhysicalAddress(0)).unwrap();
    drop(device);

    let before = url.clone().at_checkpoint("before");
    for checkpoint in [before.clone(), url.clone().at_checkpoint(&made.id)] {
        assert_eq!(read(&open(&checkpoint, Access::ReadOnly).unwrap(), 0, 1), [1]);
    }
    assert!(matches!(open(&before, Access::ReadWrite), Err(OpenErrorKind::ReadOnlyMedium)));
    let (old, new) = (scratch.url("old"), scratch.url("new"));
    clone_store(&before, &old).unwrap();
    clone_store(&url, &new).unwrap();
    assert!(clone_store(&url, &new).unwrap_err().to_string().contains("already"));
    for (clone, byte) in [(&old, 1), (&new, 2)] {
        let clone = open(clone, Access::ReadWrite).unwrap();
        assert_eq!(read(&clone, 0, 1), [byte]);
        clone.write_at(&[9; 4096], PhysicalAddress(0)).unwrap();
    }
    assert_eq!(read(&open(&url, Access::ReadOnly).unwrap(), 0, 1), [2]);
    assert_eq!(read(&open(&old, Access::ReadOnly).unwrap(), 0, 1), [9]);
    delete_checkpoint(&url, "before").unwrap();
    let gone = open(&before, Access::ReadOnly).unwrap_err().to_string();
    assert_eq!(gone, "it has no checkpoint before");
}

#[test]
fn places_without_a_device_are_errors() {
    let scratch = Scratch::new();
    for access in [Access::ReadOnly, Access::ReadWrite] {
        assert!(matches!(open(&scratch.url("none"), access), Err(OpenErrorKind::NotFound)));
    }
    for size in [0, 1000] {
        assert!(StoreDevice::create(&scratch.url("odd"), size, &options()).is_err());
    }
    for (url, reason) in [
        ("slatedb+file://relative", "an absolute path"),
        ("slatedb+file:///", "an absolute path"),
        ("slatedb+http://host/a", "s3, gs, az or file"),
        ("slatedb+s3://bucket", "names no object"),
        ("slatedb+s3://bucket/a?version=1", "checkpoint=NAME"),
        ("s3://bucket/a", "no slatedb+ URL"),
    ] {
        let error = StoreUrl::parse(url, &options()).unwrap_err().to_string();
        assert!(error.contains(reason), "{url}: {error}");
    }
}

#[test]
fn a_device_grows_and_does_not_shrink() {
    let folder = Scratch::new();
    let url = folder.url("grows");
    let device = create(&url);
    let size = device.size();
    device.write_at(&[7; 4096], PhysicalAddress(size - 4096)).unwrap();
    device.flush().unwrap();
    drop(device);
    for (wrong, reason) in [(size - 4096, "does not shrink"), (size + 1, "multiple of 4096")] {
        let error = StoreDevice::grow(&url, wrong, &options()).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    assert_eq!(StoreDevice::grow(&url, 2 * size, &options()).unwrap(), size);
    let device = open(&url, Access::ReadWrite).unwrap();
    assert_eq!(device.size(), 2 * size);
    let mut expected = vec![7; 4096];
    expected.resize(8192, 0);
    assert!(read(&device, size - 4096, 8192) == expected);
    device.write_at(&[8; 10], PhysicalAddress(2 * size - 10)).unwrap();
    drop(device);
    assert!(StoreDevice::grow(&folder.url("nowhere"), size, &options()).is_err());
}

#[test]
fn reads_writes_and_cleaning_at_once_agree() {
    const BLOCKS: u64 = SIZE / 4096;
    let scratch = Scratch::new();
    let device = create(&scratch.url("device"));
    let counters = || (0..BLOCKS).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
    // The write that began last for each block, and the one that ended last.
    let (begun, ended) = (counters(), counters());
    let is_over = AtomicBool::new(false);
    let runtime = crate::remote::runtime().unwrap();
    std::thread::scope(|scope| {
        let (device, begun, ended, is_over) = (&device, &begun, &ended, &is_over);
        scope.spawn(move || {
            let mut random = fastrand::Rng::with_seed(1);
            for stamp in 1..250_u64 {
                let count = if random.bool() { random.u64(1..20) } else { random.u64(64..400) };
                let start = random.u64(0..BLOCKS - count);
                let blocks = start as usize..(start + count) as usize;
                begun[blocks.clone()].iter().for_each(|block| block.store(stamp, Ordering::SeqCst));
                let bytes: Vec<u8> = stamp.to_le_bytes().repeat((count * 512) as usize);
                device.write_at(&bytes, PhysicalAddress(start * 4096)).unwrap();
                ended[blocks].iter().for_each(|block| block.store(stamp, Ordering::SeqCst));
                if stamp % 8 == 0 {
                    device.flush().unwrap();
                }
            }
            is_over.store(true, Ordering::SeqCst);
        });
        scope.spawn(move || {
            let mut copied = 0;
            while !is_over.load(Ordering::SeqCst) {
                copied += runtime.block_on(device.cleaner().copy_live(80, u64::MAX)).unwrap().1;
                runtime.block_on(device.cleaner().delete_dead(false)).unwrap();
                std::thread::yield_now();
            }
            assert!(copied > 0);
        });
        for seed in 0..2 {
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                let mut bytes = vec![0; 40 * 4096];
                while !is_over.load(Ordering::SeqCst) {
                    let start = random.u64(0..BLOCKS - 40);
                    let blocks = start as usize..start as usize + 40;
                    let values = |of: &[AtomicU64]| {
                        of[blocks.clone()]
                            .iter()
                            .map(|stamp| stamp.load(Ordering::SeqCst))
                            .collect::<Vec<_>>()
                    };
                    let least = values(ended);
                    device.read_at(&mut bytes, PhysicalAddress(start * 4096)).unwrap();
                    for ((block, least), most) in bytes.chunks(4096).zip(least).zip(values(begun)) {
                        let stamp = u64::from_le_bytes(block[..8].try_into().unwrap());
                        assert!((least..=most).contains(&stamp), "{stamp} is not in {least}..={most}");
                        assert!(block.chunks(8).all(|word| word == stamp.to_le_bytes()));
                    }
                }
            });
        }
    });
    drop(device);
    let reader = open(&scratch.url("device"), Access::ReadOnly).unwrap();
    let bytes = read(&reader, 0, SIZE as usize);
    for (block, stamp) in bytes.chunks(4096).zip(&ended) {
        assert_eq!(block[..8], stamp.load(Ordering::SeqCst).to_le_bytes());
    }
}
