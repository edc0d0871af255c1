//! Devices with `O_DIRECT`: the same bytes as through the host's page cache, also in batches.

use crate::in_memory::{WatchedReads, assert_clean, formatted, open_with, writable};
use papilio::{
    CheckOptions, FileSystem, IoCompletion, IoOperation, IoQueue, IoRequest, MkfsOptions, OpenOptions,
    RaidProfile,
};
use papilio_device::{
    Access, DelayDevice, Device, MemoryDevice, OpenOptions as DeviceOptions, PhysicalAddress,
};
use papilio_oracle::{Need, require};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

const SECTOR: usize = 4096;
const SECTORS: usize = 512;

/// Returns whether `path` is opened with `O_DIRECT`. Fails where that is required.
fn is_direct(path: &Path) -> bool {
    let opened = DeviceOptions::new(Access::ReadOnly).direct_where_useful().open(path).unwrap();
    let direct = opened.alignment() > 1;
    let required = std::env::var_os("PAPILIO_REQUIRE_ALL").is_some_and(|value| value == "1");
    assert!(direct || !required, "direct I/O is required, and {} has none", path.display());
    if !direct {
        eprintln!("SKIPPED direct I/O: {} is on a file system without it", path.display());
    }
    direct
}

/// Returns sector `number` of the file.
fn sector(number: usize) -> Vec<u8> {
    (0..SECTOR).map(|at| (at * 31 + number * 7 + at / 256 * number) as u8).collect()
}

fn read_all(
    queue: &mut IoQueue<Vec<u8>>,
    file: &Arc<papilio::File>,
    sectors: &[usize],
) -> Vec<IoCompletion<Vec<u8>>> {
    let mut done = Vec::new();
    for chunk in sectors.chunks(queue.depth()) {
        for &number in chunk {
            let operation = IoOperation::Read { buffer: vec![0; SECTOR], offset: (number * SECTOR) as u64 };
            let request = IoRequest { file: Arc::clone(file), operation, token: number as u64 };
            queue.submit(request).expect("the queue is empty");
        }
        queue.wait(chunk.len(), &mut done);
    }
    assert_eq!((done.len(), queue.in_flight()), (sectors.len(), 0));
    done
}

#[test]
fn batched_direct_reads_return_what_was_written() {
    let folder = tempfile::tempdir_in(std::env::temp_dir()).unwrap();
    let image = folder.path().join("direct.img");
    papilio::mkfs(&image, &MkfsOptions::new().size(256 << 20)).unwrap();
    if !is_direct(&image) {
        return;
    }
    let options = OpenOptions::new().write(true).direct_io(true);
    let fs = FileSystem::open_with(&image, &options).unwrap();
    let content: Vec<u8> = (0..SECTORS).flat_map(sector).collect();
    let file = fs.create_file("/f").unwrap();
    file.write_all_at(&content, 0).unwrap();
    // Bytes that are neither aligned nor whole sectors.
    file.write_all_at(b"tail", content.len() as u64).unwrap();
    file.sync_all().unwrap();
    drop(file);

    let file = Arc::new(fs.open_file("/f").unwrap());
    let mut queue = IoQueue::new(64);
    let mut order: Vec<usize> = (0..SECTORS).collect();
    fastrand::Rng::with_seed(14).shuffle(&mut order);
    // The first round fills the caches of extents and checksums, the second is batched.
    for _ in 0..2 {
        for completion in read_all(&mut queue, &file, &order) {
            assert_eq!(completion.result.unwrap(), SECTOR);
            assert!(completion.buffer.unwrap() == sector(completion.token as usize));
        }
    }
    // An overwrite is an ordered extent, whose bytes and checksums are not in the trees.
    file.write_all_at(&sector(9_000), 5 * SECTOR as u64).unwrap();
    for completion in read_all(&mut queue, &file, &[4, 5, 6]) {
        let number = if completion.token == 5 { 9_000 } else { completion.token as usize };
        assert!(completion.buffer.unwrap() == sector(number));
    }
    // Past the end, and at it.
    let mut past = read_all(&mut queue, &file, &[SECTORS, SECTORS + 1, 3]);
    past.sort_by_key(|completion| completion.token);
    let counts: Vec<usize> = past.into_iter().map(|completion| completion.result.unwrap()).collect();
    assert_eq!(counts, [SECTOR, 4, 0]);
    drop(file);
    fs.close().unwrap();

    // Without O_DIRECT the bytes are the same, and the checks are clean.
    let fs = FileSystem::open(&image).unwrap();
    let mut expected = content;
    expected[5 * SECTOR..6 * SECTOR].copy_from_slice(&sector(9_000));
    expected.extend_from_slice(b"tail");
    assert!(fs.read("/f").unwrap() == expected);
    assert!(fs.check(&CheckOptions::new().data_csum(true)).unwrap().is_clean());
}

#[test]
fn batched_read_reports_the_sector_that_is_bad() {
    let folder = tempfile::tempdir_in(std::env::temp_dir()).unwrap();
    let image = folder.path().join("direct.img");
    papilio::mkfs(&image, &MkfsOptions::new().size(256 << 20)).unwrap();
    if !is_direct(&image) {
        return;
    }
    let options = OpenOptions::new().write(true).direct_io(true);
    let fs = FileSystem::open_with(&image, &options).unwrap();
    let content: Vec<u8> = (0..16).flat_map(sector).collect();
    let file = Arc::new(fs.create_file("/f").unwrap());
    file.write_all_at(&content, 0).unwrap();
    fs.sync().unwrap();
    let mut queue = IoQueue::new(64);
    let all: Vec<usize> = (0..16).collect();
    for completion in read_all(&mut queue, &file, &all) {
        completion.result.unwrap();
    }
    let bytes = std::fs::read(&image).unwrap();
    let at = bytes.chunks(SECTOR).position(|found| found == sector(7)).expect("the sector is on disk");
    let raw = DeviceOptions::new(Access::ReadWrite).lock(false).open(&image).unwrap();
    raw.write_at(b"spoiled", PhysicalAddress((at * SECTOR + 100) as u64)).unwrap();
    raw.flush().unwrap();
    for completion in read_all(&mut queue, &file, &all) {
        match completion.token {
            7 => {
                let error = completion.result.unwrap_err();
                assert!(matches!(error, papilio::Error::DataChecksum { .. }), "{error}");
            }
            token => assert!(completion.buffer.unwrap() == sector(token as usize)),
        }
    }
}

/// Holds the thread that reads ahead.
#[derive(Debug, Default)]
struct Hold {
    held: Mutex<bool>,
    changed: Condvar,
    /// Reads that came to be held.
    reads: AtomicU64,
}

impl Hold {
    fn set(&self, held: bool) {
        *self.held.lock().unwrap() = held;
        self.changed.notify_all();
    }

    fn pass(&self) {
        if std::thread::current().name() == Some("papilio-ahead") {
            self.reads.fetch_add(1, Ordering::SeqCst);
            drop(self.changed.wait_while(self.held.lock().unwrap(), |held| *held).unwrap());
        }
    }
}

#[test]
fn reader_goes_on_while_pages_are_read_ahead() {
    const STEP: usize = 16 << 10;
    let memory = formatted(256 << 20);
    let content: Vec<u8> = (0..SECTORS).flat_map(sector).collect();
    let fs = open_with(&memory, &writable());
    fs.create_file("/f").unwrap().write_all_at(&content, 0).unwrap();
    fs.close().unwrap();
    let hold = Arc::new(Hold { held: Mutex::new(true), ..Hold::default() });
    let passed = Arc::clone(&hold);
    let pass = move || {
        passed.pass();
        Ok(())
    };
    let device = Arc::new(WatchedReads::new(memory.clone(), pass));
    let fs = open_with(&device, &OpenOptions::new().write(true).cache_bytes(64 << 20));
    let file = fs.open_file("/f").unwrap();
    let mut buffer = vec![0; STEP];
    let mut steps = 0;
    let mut read_step = || {
        let at = steps * STEP;
        file.read_exact_at(&mut buffer, at as u64).unwrap();
        assert!(buffer == content[at..at + STEP], "the bytes at {at}");
        steps += 1;
    };
    // Up to the first request: the reader has not got to those pages, so it does not wait.
    while hold.reads.load(Ordering::SeqCst) == 0 {
        read_step();
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    hold.set(false);
    for _ in 0..20 {
        read_step();
    }
    drop(file);
    fs.close().unwrap();
    assert_clean(&memory);
}

#[test]
fn many_folios_are_read_together_and_a_bad_one_is_an_error() {
    let memory = formatted(256 << 20);
    let content: Vec<u8> = (0..SECTORS).flat_map(sector).collect();
    let fs = open_with(&memory, &writable());
    let file = fs.create_file("/f").unwrap();
    // Extents of two sectors, a hole, and an end within a sector.
    for (number, part) in content.chunks(2 * SECTOR).enumerate().filter(|(number, _)| number % 8 != 3) {
        file.write_all_at(part, (number * 2 * SECTOR) as u64).unwrap();
        fs.sync().unwrap();
    }
    file.write_all_at(b"tail", content.len() as u64).unwrap();
    drop(file);
    let expected = fs.read("/f").unwrap();
    fs.close().unwrap();
    let device = Arc::new(WatchedReads::new(memory.clone(), || Ok(())));
    let options = OpenOptions::new().write(true).cache_bytes(64 << 20);
    let fs = open_with(&device, &options);
    assert!(fs.read("/f").unwrap() == expected);
    fs.close().unwrap();

    let bad = sector(100);
    let mut image = vec![0; memory.size() as usize];
    memory.read_at(&mut image, PhysicalAddress(0)).unwrap();
    let at = image.chunks(SECTOR).position(|found| found == bad).expect("the sector is on the device");
    memory.write_at(b"spoiled", PhysicalAddress((at * SECTOR) as u64)).unwrap();
    let fs = open_with(&device, &options);
    let file = fs.open_file("/f").unwrap();
    let mut all = vec![0; expected.len()];
    let error = file.read_exact_at(&mut all, 0).unwrap_err();
    assert!(matches!(error, papilio::Error::DataChecksum { .. }), "{error}");
    // The others can be read.
    let mut page = vec![0; SECTOR];
    for number in (0..SECTORS).filter(|&number| number != 100) {
        file.read_exact_at(&mut page, (number * SECTOR) as u64).unwrap();
        assert!(page == expected[number * SECTOR..][..SECTOR], "sector {number}");
    }
}

#[test]
fn block_devices_bypass_the_hosts_cache_for_writers() {
    let Some(_) = require(&[Need::Root, Need::Loop]) else { return };
    let folder = tempfile::tempdir_in(std::env::temp_dir()).unwrap();
    let image = folder.path().join("device.img");
    papilio::mkfs(&image, &MkfsOptions::new().size(256 << 20)).unwrap();
    let device = papilio_oracle::LoopDevice::attach(&image, false).unwrap();
    let content: Vec<u8> = (0..SECTORS).flat_map(sector).collect();
    let fs = FileSystem::open_with(device.path(), &OpenOptions::new().write(true)).unwrap();
    assert!(fs.waits_for_devices(), "direct I/O is the default");
    fs.create_file("/f").unwrap().write_all_at(&content, 0).unwrap();
    assert!(fs.memory_use().dirty_pages >= content.len() as u64, "the page cache has the data");
    assert!(fs.read("/f").unwrap() == content);
    fs.close().unwrap();
    for (options, waits) in [
        (OpenOptions::new(), false),
        (OpenOptions::new().write(true).direct_io(false), false),
        (OpenOptions::new().write(true).cache_bytes(0), true),
    ] {
        let fs = FileSystem::open_with(device.path(), &options).unwrap();
        assert_eq!((fs.waits_for_devices(), fs.memory_use().pages), (waits, 0), "{options:?}");
        assert!(fs.read("/f").unwrap() == content);
        assert_eq!(fs.memory_use().pages, 0, "{options:?}");
    }
    drop(device);
    let fs = FileSystem::open_with(&image, &OpenOptions::new().write(true)).unwrap();
    assert!(!fs.waits_for_devices(), "an image file uses the host's cache");
    assert!(fs.check(&CheckOptions::new().data_csum(true)).unwrap().is_clean());
}

/// Returns the options of a mount of an image file, or `None` on a host before Linux 6.5.
fn queued_directly(image: &Path) -> Option<OpenOptions> {
    let options = OpenOptions::new().direct_queue(true);
    let fs = FileSystem::open_with(image, &options).unwrap();
    assert!(!fs.waits_for_devices(), "other requests use the host's cache");
    let required = std::env::var_os("PAPILIO_REQUIRE_ALL").is_some_and(|value| value == "1");
    assert!(fs.queues_reads() || !required, "cachestat(2) and direct I/O are required");
    fs.queues_reads().then_some(options)
}

/// Drops the host's cache of an image.
fn forget(image: &Path) {
    let file = std::fs::File::open(image).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

#[test]
fn queued_reads_past_the_hosts_cache_are_exact_for_readers_and_writers() {
    let folder = tempfile::tempdir_in(std::env::temp_dir()).unwrap();
    let image = folder.path().join("queued.img");
    papilio::mkfs(&image, &MkfsOptions::new().size(256 << 20)).unwrap();
    if !is_direct(&image) {
        return;
    }
    let Some(options) = queued_directly(&image) else { return eprintln!("SKIPPED: no cachestat(2)") };
    let content: Vec<u8> = (0..SECTORS).flat_map(sector).collect();
    let mut order: Vec<usize> = (0..SECTORS).collect();
    fastrand::Rng::with_seed(15).shuffle(&mut order);
    let read_back = |fs: &FileSystem, spoiled: Option<usize>| {
        let file = Arc::new(fs.open_file("/f").unwrap());
        for mut queue in [IoQueue::new(32), IoQueue::with_threads(32, 4).unwrap()] {
            // The second round finds some in the host's cache.
            for _ in 0..2 {
                forget(&image);
                file.read_exact_at(&mut vec![0; 40 * SECTOR], 0).unwrap();
                for completion in read_all(&mut queue, &file, &order) {
                    match (completion.token as usize, completion.result) {
                        (number, Err(error)) => {
                            assert_eq!(Some(number), spoiled);
                            assert!(matches!(error, papilio::Error::DataChecksum { .. }), "{error}");
                        }
                        (number, Ok(length)) => {
                            assert_eq!((length, Some(number) == spoiled), (SECTOR, false));
                            assert!(completion.buffer.unwrap() == sector(number), "sector {number}");
                        }
                    }
                }
            }
        }
        // A hole, inline data, and the end of a file are for the calls that wait.
        for name in ["/sparse", "/inline"] {
            let file = Arc::new(fs.open_file(name).unwrap());
            let mut found = vec![0; 2 * SECTOR];
            for completion in read_all(&mut IoQueue::new(4), &file, &[0, 1, 2]) {
                let at = completion.token as usize * SECTOR;
                let length = completion.result.unwrap();
                if at < found.len() {
                    found[at..at + length].copy_from_slice(&completion.buffer.unwrap()[..length]);
                } else {
                    assert_eq!(length, 0);
                }
            }
            let expected = fs.read(name).unwrap();
            assert!(found[..expected.len()] == expected, "{name}");
        }
    };
    let fs = FileSystem::open_with(&image, &options.clone().write(true)).unwrap();
    fs.write("/inline", b"short").unwrap();
    let sparse = fs.create_file("/sparse").unwrap();
    sparse.write_all_at(&sector(3), SECTOR as u64).unwrap();
    drop(sparse);
    fs.create_file("/f").unwrap().write_all_at(&content, 0).unwrap();
    // Neither the host nor a transaction has stored it yet.
    let file = Arc::new(fs.open_file("/f").unwrap());
    for completion in read_all(&mut IoQueue::new(64), &file, &order) {
        assert!(completion.buffer.unwrap() == sector(completion.token as usize));
    }
    drop(file);
    fs.sync().unwrap();
    read_back(&fs, None);
    fs.close().unwrap();
    let fs = FileSystem::open_with(&image, &options).unwrap();
    read_back(&fs, None);
    drop(fs);

    let bytes = std::fs::read(&image).unwrap();
    // Sector 300 has the same bytes, and comes later.
    let at = bytes.chunks(SECTOR).position(|found| found == sector(44)).expect("the sector is on disk");
    let raw = DeviceOptions::new(Access::ReadWrite).open(&image).unwrap();
    raw.write_at(b"spoiled", PhysicalAddress((at * SECTOR + 100) as u64)).unwrap();
    drop(raw);
    for options in [options.clone(), options.write(true)] {
        read_back(&FileSystem::open_with(&image, &options).unwrap(), Some(44));
    }
}

#[test]
fn a_queued_read_of_a_reader_takes_the_other_copy() {
    let memory: Vec<Arc<dyn Device>> =
        (0..2).map(|_| Arc::new(MemoryDevice::new(300 << 20)) as Arc<dyn Device>).collect();
    let raid1 = MkfsOptions::new().data_profile(RaidProfile::Raid1).metadata_profile(RaidProfile::Raid1);
    papilio::mkfs_devices(&memory, &raid1).unwrap();
    let content: Vec<u8> = (0..SECTORS).flat_map(sector).collect();
    let fs = FileSystem::from_devices(memory.clone(), &writable()).unwrap();
    fs.write("/f", &content).unwrap();
    fs.close().unwrap();
    // One copy is bad everywhere.
    for at in (1 << 20..300 << 20).step_by(1 << 20) {
        let mut found = vec![0; 1 << 20];
        memory[0].read_at(&mut found, PhysicalAddress(at)).unwrap();
        let is_data = |block: &[u8]| content.chunks(SECTOR).any(|sector| sector == block);
        for (number, block) in found.chunks(SECTOR).enumerate().filter(|(_, block)| is_data(block)) {
            assert_eq!(block.len(), SECTOR);
            memory[0].write_at(b"spoiled", PhysicalAddress(at + (number * SECTOR) as u64)).unwrap();
        }
    }
    let devices = [memory[0].clone(), memory[1].clone()];
    let waiting = devices.map(|device| {
        Arc::new(DelayDevice::new(device, std::time::Duration::ZERO).unwrap()) as Arc<dyn Device>
    });
    let fs = FileSystem::from_devices(waiting.to_vec(), &OpenOptions::new()).unwrap();
    assert!(fs.queues_reads());
    let file = Arc::new(fs.open_file("/f").unwrap());
    let order: Vec<usize> = (0..SECTORS).collect();
    for completion in read_all(&mut IoQueue::with_threads(32, 2).unwrap(), &file, &order) {
        assert_eq!(completion.result.unwrap(), SECTOR);
        assert!(completion.buffer.unwrap() == sector(completion.token as usize));
    }
}
