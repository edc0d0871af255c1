//! Tests of the driver on every kind of device.

use super::*;
use crate::{
    Access, AlignedBuffer, DelayDevice, FaultDevice, FileDevice, MemoryDevice, OpenOptions, ShuffleDevice,
};
use std::collections::HashSet;
use std::time::{Duration, Instant};

const SIZE: u64 = 8 << 20;
const BLOCK: usize = 4096;

fn block(value: u64) -> AlignedBuffer {
    let mut block = AlignedBuffer::new(BLOCK, BLOCK);
    block.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&value.to_le_bytes()));
    block
}

fn whole(device: &Arc<dyn Device>, offset: u64) -> Piece {
    Piece { device: Arc::clone(device), offset: PhysicalAddress(offset), range: 0..BLOCK, busy: None }
}

/// An image on a file system with direct I/O, if the temporary folder has one.
fn direct_file() -> Option<(tempfile::NamedTempFile, FileDevice)> {
    let image =
        tempfile::NamedTempFile::new_in(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target")).unwrap();
    image.as_file().set_len(SIZE).unwrap();
    match OpenOptions::new(Access::ReadWrite).direct(true).open(image.path()) {
        Ok(device) => Some((image, device)),
        Err(error) if std::env::var_os("PAPILIO_REQUIRE_ALL").is_none_or(|value| value != "1") => {
            eprintln!("SKIPPED direct I/O: {error}");
            None
        }
        Err(error) => panic!("direct I/O is required: {error}"),
    }
}

/// A device whose started reads bypass the host's page cache, if this host can tell what is in it.
fn queued_directly() -> Option<(tempfile::NamedTempFile, Arc<dyn Device>)> {
    let (image, direct) = direct_file()?;
    drop(direct);
    let device = OpenOptions::new(Access::ReadWrite).direct_queue(true).open(image.path()).unwrap();
    if device.answers_later() {
        return Some((image, Arc::new(device)));
    }
    assert!(std::env::var_os("PAPILIO_REQUIRE_ALL").is_none_or(|value| value != "1"), "cachestat(2)");
    eprintln!("SKIPPED: no cachestat(2), which Linux has since 6.5");
    None
}

/// Drops the host's cache of an image.
fn forget(image: &tempfile::NamedTempFile) {
    rustix::fs::fadvise(image.as_file(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

#[test]
fn a_started_read_passes_the_cache_that_lacks_its_bytes() {
    let Some((image, device)) = queued_directly() else { return };
    for number in 0..SIZE / BLOCK as u64 {
        device.write_at(&block(number), PhysicalAddress(number * BLOCK as u64)).unwrap();
    }
    image.as_file().sync_all().unwrap();
    forget(&image);
    assert_eq!((device.alignment(), device.waits()), (1, false), "other requests use the cache");
    let memory = block(0);
    let target = |direction, number: u64, length| RingTarget {
        direction,
        offset: PhysicalAddress(number * BLOCK as u64),
        address: memory.as_ptr().addr(),
        length,
    };
    assert!(device.ring_file(&target(Direction::Read, 100, BLOCK)).is_some());
    assert!(device.ring_file(&target(Direction::Write, 100, BLOCK)).is_none(), "writes use the cache");
    assert!(device.ring_file(&target(Direction::Read, 100, 512)).is_none(), "a part of a page");
    assert!(device.ring_file(&target(Direction::Read, SIZE / BLOCK as u64, BLOCK)).is_none(), "the end");
    device.read_at(&mut [0; BLOCK], PhysicalAddress(100 * BLOCK as u64)).unwrap();
    assert!(device.ring_file(&target(Direction::Read, 100, BLOCK)).is_none(), "it is cached now");
}

#[test]
fn started_reads_beside_cached_writes_are_exact() {
    let Some((image, device)) = queued_directly() else { return };
    let blocks = SIZE / BLOCK as u64;
    let mut random = fastrand::Rng::with_seed(5);
    let mut content = vec![0; blocks as usize];
    for ring in [true, false] {
        let mut driver = Driver::with_ring(32, ring).unwrap();
        for round in 1..4_000 {
            let number = random.u64(..blocks);
            match random.u8(..8) {
                0..3 => {
                    content[number as usize] = round;
                    device.write_at(&block(round), PhysicalAddress(number * BLOCK as u64)).unwrap();
                }
                3 if random.u8(..40) == 0 => {
                    device.flush().unwrap();
                    forget(&image);
                }
                _ => {
                    let expected = content[number as usize];
                    let piece = whole(&device, number * BLOCK as u64);
                    driver.start(Direction::Read, block(u64::MAX), expected, [piece]);
                }
            }
            // A write waits for the reads of what it overwrites; here, for all.
            while driver.in_flight() > 0 {
                driver.collect(true, |done| {
                    assert!(done.failed.is_none(), "{:?}", done.failed);
                    assert!(done.buffer[..] == block(done.tag)[..], "round {round}");
                });
            }
        }
    }
}

/// Writes and reads back with many requests in flight.
fn exercise(device: Arc<dyn Device>, ring: bool) {
    let mut driver = Driver::with_ring(32, ring).unwrap();
    let blocks = SIZE / BLOCK as u64;
    let mut written = HashSet::new();
    let mut next = 0;
    while (written.len() as u64) < blocks {
        while driver.in_flight() < 32 && next < blocks {
            driver.start(Direction::Write, block(next), next, [whole(&device, next * BLOCK as u64)]);
            next += 1;
        }
        driver.collect(true, |done| {
            assert!(done.failed.is_none(), "{:?}", done.failed);
            assert!(written.insert(done.tag), "each request completes once");
        });
    }
    let mut seen = HashSet::new();
    for number in 0..blocks {
        // Backwards, so that the order on the device differs.
        let at = blocks - 1 - number;
        driver.start(Direction::Read, block(u64::MAX), at, [whole(&device, at * BLOCK as u64)]);
        driver.collect(driver.in_flight() >= 32, |done| {
            assert!(done.failed.is_none(), "{:?}", done.failed);
            assert!(done.buffer[..] == block(done.tag)[..], "block {}", done.tag);
            seen.insert(done.tag);
        });
    }
    while driver.in_flight() > 0 {
        driver.collect(true, |done| {
            assert!(done.buffer[..] == block(done.tag)[..], "block {}", done.tag);
            seen.insert(done.tag);
        });
    }
    assert_eq!(seen.len() as u64, blocks);
}

#[test]
fn every_kind_of_device_reads_what_was_written() {
    exercise(Arc::new(MemoryDevice::new(SIZE)), true);
    exercise(Arc::new(ShuffleDevice::new(Arc::new(MemoryDevice::new(SIZE)), 7)), true);
    let delayed = DelayDevice::new(Arc::new(MemoryDevice::new(SIZE)), Duration::from_micros(50));
    exercise(Arc::new(delayed.unwrap()), true);
    for ring in [true, false] {
        let Some((_image, device)) = direct_file() else { return };
        exercise(Arc::new(device), ring);
        let Some((_image, device)) = queued_directly() else { return };
        exercise(device, ring);
    }
}

#[test]
fn a_ring_carries_direct_requests() {
    let Some((_image, device)) = direct_file() else { return };
    let device: Arc<dyn Device> = Arc::new(device);
    let mut driver = Driver::new(4).unwrap();
    if !driver.has_ring() {
        assert!(
            std::env::var_os("PAPILIO_REQUIRE_ALL").is_none_or(|value| value != "1"),
            "io_uring is required"
        );
        return eprintln!("SKIPPED: no io_uring");
    }
    driver.start(Direction::Read, block(1), (), [whole(&device, 0)]);
    assert_eq!((driver.started, driver.ring.as_ref().unwrap().in_flight()), (0, 1));
    // Memory at an odd address cannot go to the ring: a thread copies it.
    let mut unaligned = AlignedBuffer::new(BLOCK + 1, BLOCK);
    unaligned.fill(9);
    let piece = Piece { range: 1..BLOCK + 1, ..whole(&device, BLOCK as u64) };
    driver.start(Direction::Write, unaligned, (), [piece]);
    assert_eq!((driver.started, driver.ring.as_ref().unwrap().in_flight()), (1, 1));
    let mut done = 0;
    while driver.in_flight() > 0 {
        done += driver.collect(true, |done| assert!(done.failed.is_none()));
    }
    assert_eq!(done, 2);
    let mut found = [0; BLOCK];
    device.read_at(&mut found, PhysicalAddress(BLOCK as u64)).unwrap();
    assert_eq!(found, [9; BLOCK]);
}

#[test]
fn more_completions_than_the_ring_has_room_for() {
    let Some((_image, device)) = direct_file() else { return };
    let device: Arc<dyn Device> = Arc::new(device);
    let mut driver = Driver::new(4).unwrap();
    // 64 requests of 64 pieces, on a ring with room for 512 completions.
    for number in 0..64u64 {
        let pieces = (0..64).map(|piece| Piece {
            device: Arc::clone(&device),
            offset: PhysicalAddress((number * 64 + piece) % 2048 * BLOCK as u64),
            range: piece as usize * BLOCK..(piece as usize + 1) * BLOCK,
            busy: None,
        });
        driver.start(Direction::Read, AlignedBuffer::new(64 * BLOCK, BLOCK), number, pieces);
    }
    // Long enough for all of them to complete.
    driver.submit();
    std::thread::sleep(Duration::from_millis(200));
    let mut done = 0;
    while driver.in_flight() > 0 {
        done += driver.collect(true, |done| assert!(done.failed.is_none()));
    }
    assert_eq!(done, 64);
}

#[test]
fn delays_of_requests_in_flight_overlap() {
    let delay = Duration::from_millis(20);
    let device: Arc<dyn Device> =
        Arc::new(DelayDevice::new(Arc::new(MemoryDevice::new(SIZE)), delay).unwrap());
    let mut driver = Driver::new(64).unwrap();
    let start = Instant::now();
    for number in 0..64 {
        driver.start(Direction::Read, block(1), number, [whole(&device, number * BLOCK as u64)]);
    }
    let mut done = 0;
    while driver.in_flight() > 0 {
        done += driver.collect(true, |_| {});
    }
    let took = start.elapsed();
    assert_eq!(done, 64);
    // One after the other they would take 1.28 s.
    assert!(took >= delay && took < 20 * delay, "{took:?}");
}

#[test]
fn a_device_with_one_head_takes_requests_in_turn() {
    let inner = Arc::new(MemoryDevice::new(SIZE));
    let delay = Duration::from_millis(2);
    let device: Arc<dyn Device> = Arc::new(DelayDevice::new(inner, delay).unwrap().one_at_a_time());
    let mut driver = Driver::new(16).unwrap();
    let start = Instant::now();
    for number in 0..16 {
        driver.start(Direction::Read, block(1), (), [whole(&device, number * BLOCK as u64)]);
    }
    while driver.in_flight() > 0 {
        driver.collect(true, |_| {});
    }
    device.flush().unwrap();
    assert!(start.elapsed() >= 17 * delay, "{:?}", start.elapsed());
}

#[test]
fn shuffled_completions_repeat_by_seed() {
    let order = |seed| {
        let inner = Arc::new(MemoryDevice::new(SIZE));
        let device: Arc<dyn Device> = Arc::new(ShuffleDevice::new(inner, seed));
        let mut driver = Driver::new(64).unwrap();
        for number in 0..64 {
            driver.start(Direction::Read, block(1), number, [whole(&device, number * BLOCK as u64)]);
        }
        let mut order = Vec::new();
        while driver.in_flight() > 0 {
            driver.collect(true, |done| order.push(done.tag));
        }
        order
    };
    let (first, second) = (order(1), order(2));
    assert_eq!(first, order(1));
    assert_ne!(first, second);
    assert_ne!(first, (0..64).collect::<Vec<_>>());
}

#[test]
fn a_request_of_several_pieces_reports_its_first_failure() {
    let good: Arc<dyn Device> = Arc::new(MemoryDevice::new(SIZE));
    let bad = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new(SIZE))));
    bad.fail_all();
    let bad: Arc<dyn Device> = bad;
    let mut driver = Driver::new(4).unwrap();
    let pieces = [&good, &bad, &bad, &good].map(|device| whole(device, 0));
    driver.start(Direction::Write, block(3), (), pieces);
    let mut failed = None;
    driver.collect(true, |done| failed = done.failed);
    let (piece, _) = failed.expect("a piece failed");
    assert!(Arc::ptr_eq(&piece.device, &bad));
    let mut found = [0; BLOCK];
    good.read_at(&mut found, PhysicalAddress(0)).unwrap();
    assert!(found[..] == block(3)[..], "the other pieces were carried out");
}

#[test]
fn dropping_a_driver_waits_for_its_requests() {
    let inner = Arc::new(MemoryDevice::new(SIZE));
    let delay = Duration::from_millis(10);
    let device: Arc<dyn Device> = Arc::new(DelayDevice::new(inner.clone(), delay).unwrap());
    let mut driver = Driver::new(8).unwrap();
    for number in 0..8 {
        driver.start(Direction::Write, block(5), (), [whole(&device, number * BLOCK as u64)]);
    }
    drop(driver);
    let mut found = [0; BLOCK];
    inner.read_at(&mut found, PhysicalAddress(7 * BLOCK as u64)).unwrap();
    assert!(found[..] == block(5)[..]);
}
