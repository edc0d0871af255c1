//! Images at URLs, with moto as the server and a proxy that delays, fails and counts.

use papilio_device::{
    Access, Device, ImageOptions, OpenErrorKind, OpenOptions, PartitionChoice, PhysicalAddress, ReadRequest,
    RemoteCache, RemoteOptions,
};
use papilio_oracle::object_server::{ObjectServer, PROGRAM, Proxy};
use papilio_oracle::{Need, require};
use papilio_store::RemoteDevice;
use std::io;
use std::time::{Duration, Instant};

const SIZE: usize = (8 << 20) + 777;

struct Served {
    server: ObjectServer,
    proxy: Proxy,
    bytes: Vec<u8>,
}

/// Bytes that differ everywhere, from a seed.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..length).map(|_| next()).collect()
}

impl Served {
    fn start(delay: Duration) -> Option<Self> {
        papilio_store::install();
        let _met = require(&[Need::Command(PROGRAM)])?;
        let server = ObjectServer::start().unwrap();
        server.make_bucket("bucket").unwrap();
        let bytes = noise(1, SIZE);
        server.put("bucket", "object", &bytes).unwrap();
        let proxy = server.proxy(delay).unwrap();
        Some(Self { server, proxy, bytes })
    }

    fn url(&self) -> String {
        format!("{}/bucket/object", self.proxy.url())
    }

    fn open(&self, options: &RemoteOptions) -> RemoteDevice {
        RemoteDevice::open(&self.url(), options).unwrap()
    }
}

fn in_memory() -> RemoteOptions {
    let timeout = Duration::from_secs(10);
    RemoteOptions { cache: RemoteCache::Memory, timeout, ..RemoteOptions::default() }
}

fn read(device: &dyn Device, offset: usize, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    device.read_at(&mut bytes, PhysicalAddress(offset as u64))?;
    Ok(bytes)
}

#[test]
fn all_ranges_are_read_and_the_disk_keeps_them() {
    let Some(served) = Served::start(Duration::ZERO) else { return };
    let directory = tempfile::tempdir().unwrap();
    let cache = RemoteCache::Directory(directory.path().join("made"));
    // Little memory, so that blocks are evicted all the time.
    let options = RemoteOptions { cache, memory_bytes: 300 << 10, ..in_memory() };
    let whole = |device: &RemoteDevice| {
        assert_eq!(device.size(), SIZE as u64);
        let ranges = noise(7, 300);
        for parts in ranges.chunks(30) {
            let place = |at: usize| {
                let offset = usize::from(parts[at]) * 32_771 % SIZE;
                let length = usize::from(parts[at + 1]) * 517;
                (offset, length.min(SIZE - offset))
            };
            let places: Vec<_> = (0..parts.len() - 1).map(place).collect();
            let mut buffers: Vec<_> = places.iter().map(|(_, length)| vec![0; *length]).collect();
            let mut requests: Vec<_> = places
                .iter()
                .zip(&mut buffers)
                .map(|((offset, _), buffer)| ReadRequest::new(PhysicalAddress(*offset as u64), buffer))
                .collect();
            device.read_many(&mut requests);
            requests.into_iter().for_each(|request| request.result.unwrap());
            for ((offset, length), buffer) in places.iter().zip(&buffers) {
                assert!(buffer[..] == served.bytes[*offset..offset + length], "{length} bytes at {offset}");
            }
        }
        assert!(read(device, 0, SIZE).unwrap() == served.bytes);
        let error = read(device, SIZE - 1, 2).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    };
    whole(&served.open(&options));
    served.proxy.take_counts();
    whole(&served.open(&options));
    let (requests, _) = served.proxy.take_counts();
    assert_eq!(requests, 1, "all blocks but those of the first request come from the disk");
    // Another state of the object has blocks of its own.
    served.server.put("bucket", "object", &noise(2, SIZE)).unwrap();
    assert!(read(&served.open(&options), 0, SIZE).unwrap() == noise(2, SIZE));
}

#[test]
fn many_requests_are_in_flight() {
    let delay = Duration::from_millis(200);
    let Some(served) = Served::start(delay) else { return };
    let device = served.open(&in_memory());
    served.proxy.take_counts();
    // Every third block, so that no two are in one request.
    let mut buffers = vec![[0; 100]; 30];
    let offset = |index: usize| (index * 3 + 4) * 65_536 + 9;
    let mut requests: Vec<_> = (0..)
        .zip(&mut buffers)
        .map(|(index, buffer)| ReadRequest::new(PhysicalAddress(offset(index) as u64), buffer))
        .collect();
    let began = Instant::now();
    device.read_many(&mut requests);
    let took = began.elapsed();
    requests.into_iter().for_each(|request| request.result.unwrap());
    for (index, buffer) in buffers.iter().enumerate() {
        assert!(buffer[..] == served.bytes[offset(index)..offset(index) + 100], "{index}");
    }
    assert_eq!(served.proxy.take_counts().0, 30);
    assert!(took < delay * 15, "30 requests of {delay:?} took {took:?}");
    // Neighbours share a request.
    let before = device.statistics().requests;
    read(&device, 100 * 65_536, 16 * 65_536).unwrap();
    assert_eq!(device.statistics().requests, before + 1);
}

#[test]
fn sequential_reads_are_read_ahead() {
    let Some(served) = Served::start(Duration::from_millis(20)) else { return };
    let device = served.open(&in_memory());
    for offset in (0..SIZE - 4096).step_by(4096) {
        assert!(read(&device, offset, 4096).unwrap() == served.bytes[offset..offset + 4096]);
    }
    let statistics = device.statistics();
    assert!(statistics.requests < 40, "{statistics:?} for {} blocks", SIZE / 65_536);
    assert!(statistics.bytes <= SIZE as u64, "{statistics:?}");
}

#[test]
fn an_object_that_changes_or_goes_is_an_error() {
    let Some(served) = Served::start(Duration::ZERO) else { return };
    let device = served.open(&in_memory());
    read(&device, 1 << 20, 10).unwrap();
    served.server.put("bucket", "object", &noise(2, SIZE)).unwrap();
    let error = read(&device, 4 << 20, 10).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StaleNetworkFileHandle, "{error}");
    let text = error.to_string();
    assert!(text.contains(&served.url()) && text.contains("has changed"), "{text}");
    assert!(read(&device, 1 << 20, 10).unwrap() == served.bytes[1 << 20..][..10], "it was read before");

    let device = served.open(&in_memory());
    served.server.remove("bucket", "object").unwrap();
    let error = read(&device, 4 << 20, 10).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
    assert!(error.to_string().contains("the object is gone"), "{error}");
    let error = RemoteDevice::open(&served.url(), &in_memory()).unwrap_err();
    assert!(matches!(error, OpenErrorKind::NotFound), "{error}");
}

#[test]
fn throttling_is_waited_for_within_bounds() {
    let Some(served) = Served::start(Duration::ZERO) else { return };
    let device = served.open(&RemoteOptions { retries: 3, ..in_memory() });
    served.proxy.throttle(3);
    assert!(read(&device, 1 << 20, 10).unwrap() == served.bytes[1 << 20..][..10]);
    served.proxy.take_counts();
    served.proxy.throttle(usize::MAX);
    let error = read(&device, 4 << 20, 10).unwrap_err().to_string();
    assert!(error.contains(&served.url()) && error.contains("503"), "{error}");
    assert_eq!(served.proxy.take_counts().0, 4, "one attempt and three more");
    served.proxy.throttle(0);
    assert!(read(&device, 4 << 20, 10).unwrap() == served.bytes[4 << 20..][..10], "a later read tries again");
}

#[test]
fn silence_and_missing_ranges_are_errors() {
    let Some(served) = Served::start(Duration::ZERO) else { return };
    let short = RemoteOptions { retries: 1, timeout: Duration::from_millis(400), ..in_memory() };
    let device = served.open(&short);
    served.proxy.be_silent(true);
    let began = Instant::now();
    let error = read(&device, 4 << 20, 10).unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    assert!(error.to_string().contains(&served.url()), "{error}");
    served.proxy.be_silent(false);

    served.proxy.ignore_ranges(true);
    let error = RemoteDevice::open(&served.url(), &in_memory()).unwrap_err().to_string();
    assert!(error.contains("no ranges"), "{error}");
    let closed = "http://127.0.0.1:1/object";
    let error = RemoteDevice::open(closed, &RemoteOptions { retries: 0, ..in_memory() }).unwrap_err();
    assert!(error.to_string().contains("onnect"), "{error}");
}

#[test]
fn writers_and_partitions_are_refused_by_name() {
    papilio_store::install();
    let error = OpenOptions::new(Access::ReadWrite)
        .open_image("https://host.invalid/disk.img@2", &ImageOptions::default())
        .unwrap_err();
    assert!(matches!(error.kind, OpenErrorKind::RemoteReadOnly), "{error}");
    assert!(error.to_string().contains("https://host.invalid/disk.img"), "{error}");
    let error = OpenOptions::new(Access::ReadOnly).open("s3://bucket/disk.img").unwrap_err();
    assert!(matches!(error.kind, OpenErrorKind::RemoteReadOnly), "{error}");

    let Some(served) = Served::start(Duration::ZERO) else { return };
    let options = ImageOptions { remote: in_memory(), ..ImageOptions::default() };
    let open =
        |path: &str, options: &ImageOptions| OpenOptions::new(Access::ReadOnly).open_image(path, options);
    let error = open(&format!("{}@2", served.url()), &options).unwrap_err();
    assert!(matches!(error.kind, OpenErrorKind::NoPartition { .. }), "{error}");
    let whole = ImageOptions { partition: PartitionChoice::Whole, ..options };
    let device = open(&served.url(), &whole).unwrap();
    assert!(read(&*device, 70_000, 10).unwrap() == served.bytes[70_000..70_010]);
    assert_eq!(device.flush().unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
}
