//! Writeback of dirty pages beside readers and writers of the same file.

use crate::held_device::{HeldDevice, Hold, Release};
use crate::in_memory::{assert_clean, formatted, open, open_with, writable};
use crate::overwrites::support::{SECTOR, stamp, stamped};
use papilio::format::items::inode::InodeFlags;
use papilio::{File, OpenOptions};
use papilio_device::{Access, Device, MemoryDevice, PhysicalAddress, WriteRequest};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Sectors of the files.
const SECTORS: u64 = 256;

fn direct(file: &File) -> File {
    let mut direct = file.clone();
    direct.set_direct(true);
    direct
}

fn read(file: &File, sector: u64) -> Vec<u8> {
    let mut bytes = vec![0; SECTOR as usize];
    file.read_exact_at(&mut bytes, sector * SECTOR).unwrap();
    bytes
}

/// Writes a file, then pages of it and behind its end, and has a thread write these back to a
/// device that is held. `meanwhile` runs until then, and must end.
fn beside_a_held_writeback(flags: InodeFlags, meanwhile: impl FnOnce(&File)) {
    let memory = formatted(256 << 20);
    let device = HeldDevice::new(memory.clone());
    let fs = open_with(&device, &writable().cache_bytes(8 << 20));
    let file = fs.create_file("/file").unwrap();
    file.inode().set_flags(flags).unwrap();
    file.write_all_at(&vec![1; (SECTORS * SECTOR) as usize], 0).unwrap();
    file.sync_all().unwrap();
    file.drop_cache().unwrap();
    let pages = vec![2; 4 * SECTOR as usize];
    file.write_all_at(&pages, 0).unwrap();
    // In whole pages, then not.
    file.write_all_at(&pages[..3 * SECTOR as usize / 2], SECTORS * SECTOR).unwrap();
    device.set(Hold::Writes);
    std::thread::scope(|scope| {
        let release = Release(&device);
        let sync = scope.spawn(|| file.sync_all());
        device.wait_for_a_call();
        meanwhile(&file);
        drop(release);
        sync.join().unwrap().unwrap();
    });
    let expected = |bytes: &[u8]| {
        let size = (SECTORS * SECTOR) as usize;
        assert_eq!(bytes.len(), size + 3 * SECTOR as usize / 2);
        assert!(bytes[..4 * SECTOR as usize].iter().chain(&bytes[size..]).all(|byte| *byte == 2));
        assert!(bytes[100 * SECTOR as usize..][..SECTOR as usize] == [3; SECTOR as usize]);
    };
    expected(&file.read_all().unwrap());
    drop(file);
    fs.close().unwrap();
    assert_clean(&memory);
    let fs = open(&memory);
    expected(&fs.open_file("/file").unwrap().read_all().unwrap());
    fs.close().unwrap();
}

#[test]
fn readers_and_buffered_writers_pass_a_writeback_that_waits() {
    for flags in [InodeFlags::empty(), InodeFlags::NODATACOW] {
        beside_a_held_writeback(flags, |file| {
            assert!(read(file, 0) == [2; SECTOR as usize], "pages under writeback are read");
            assert!(read(file, 40) == [1; SECTOR as usize], "a page that is not in the cache");
            assert!(read(&direct(file), 41) == [1; SECTOR as usize], "without the cache");
            assert!(read(file, SECTORS) == [2; SECTOR as usize], "behind the end on disk");
            file.write_all_at(&[3; SECTOR as usize], 100 * SECTOR).unwrap();
            assert!(read(file, 100) == [3; SECTOR as usize]);
        });
    }
}

#[test]
fn direct_readers_of_pages_under_writeback_get_the_new_bytes() {
    for flags in [InodeFlags::empty(), InodeFlags::NODATACOW] {
        let direct_read = std::sync::Mutex::new(None);
        beside_a_held_writeback(flags, |file| {
            file.write_all_at(&[3; SECTOR as usize], 100 * SECTOR).unwrap();
            let file = direct(file);
            // It waits for the writeback, and must not return the old bytes.
            *direct_read.lock().unwrap() = Some(std::thread::spawn(move || read(&file, 1)));
            std::thread::sleep(Duration::from_millis(20));
        });
        let reader = direct_read.lock().unwrap().take().unwrap();
        assert!(reader.join().unwrap() == [2; SECTOR as usize], "{flags:?}");
    }
}

/// A file that threads change, with the last acknowledged write of each sector.
struct Shared {
    file: File,
    acknowledged: Vec<AtomicU64>,
    stop: AtomicBool,
}

impl Shared {
    /// Writes `count` sectors from `first` on. No other thread writes these.
    fn write(&self, file: &File, first: u64, count: u64, sequence: u64) {
        let mut bytes = vec![0; (count * SECTOR) as usize];
        stamp(&mut bytes, first * SECTOR, 1, sequence);
        file.write_all_at(&bytes, first * SECTOR).unwrap();
        for sector in first..first + count {
            self.acknowledged[sector as usize].store(sequence, Ordering::Release);
        }
    }

    /// Reads a sector, which must be as new as the last acknowledged write.
    fn read(&self, file: &File, sector: u64) {
        let before = self.acknowledged[sector as usize].load(Ordering::Acquire);
        let mut bytes = vec![0; SECTOR as usize];
        let length = file.read_at(&mut bytes, sector * SECTOR).unwrap();
        if length == 0 {
            assert_eq!(before, 0, "sector {sector} is behind the end");
            return;
        }
        assert_eq!(length, SECTOR as usize);
        let sequence = (stamped(&bytes, sector) >> 24) & 0xffff_ffff;
        assert!(sequence >= before, "sector {sector} has write {sequence}, {before} was acknowledged");
    }
}

/// The parts of the file that threads write: two through the cache, two without.
const PART: u64 = 512;

fn writer(shared: &Shared, part: u64, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let file = if part.is_multiple_of(2) { shared.file.clone() } else { direct(&shared.file) };
    for sequence in 1.. {
        if shared.stop.load(Ordering::Relaxed) {
            break;
        }
        let count = random.u64(1..=24);
        // Parts are interleaved in stripes of 64 sectors, so that runs of pages touch each other.
        let stripe = random.u64(0..PART / 64) * 4 + part;
        let at = random.u64(0..=64 - count);
        shared.write(&file, stripe * 64 + at, count, sequence);
    }
}

/// Runs writers, readers and threads that flush for a while, on one file.
fn race(options: &OpenOptions, flags: InodeFlags, seed: u64, time: Duration) {
    let device = formatted(512 << 20);
    let fs = open_with(&device, options);
    let file = fs.create_file("/file").unwrap();
    file.inode().set_flags(flags).unwrap();
    let sectors = 4 * PART;
    let acknowledged = (0..sectors).map(|_| AtomicU64::new(0)).collect();
    let shared = Shared { file, acknowledged, stop: AtomicBool::new(false) };
    std::thread::scope(|scope| {
        for part in 0..4 {
            let shared = &shared;
            scope.spawn(move || writer(shared, part, seed * 4 + part));
        }
        for cached in [true, false] {
            let shared = &shared;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed + u64::from(cached));
                let file = if cached { shared.file.clone() } else { direct(&shared.file) };
                while !shared.stop.load(Ordering::Relaxed) {
                    shared.read(&file, random.u64(0..sectors));
                }
            });
        }
        let (shared, fs) = (&shared, &fs);
        scope.spawn(move || {
            let mut random = fastrand::Rng::with_seed(seed ^ 0xf1);
            let mut number = 0;
            while !shared.stop.load(Ordering::Relaxed) {
                match random.u8(0..8) {
                    0..4 => shared.file.sync_all().unwrap(),
                    4 => shared.file.sync_data().unwrap(),
                    5 => shared.file.drop_cache().unwrap(),
                    6 => fs.sync().unwrap(),
                    _ if number < 6 => {
                        number += 1;
                        let root = fs.root().unwrap();
                        let name = format!("snapshot{number}");
                        root.create_snapshot(root.tree(), name.as_bytes(), false).unwrap();
                    }
                    _ => drop(shared.file.fiemap(0).unwrap()),
                }
            }
        });
        std::thread::sleep(time);
        shared.stop.store(true, Ordering::Relaxed);
    });
    let after = |file: &File| {
        for sector in 0..sectors {
            let expected = shared.acknowledged[sector as usize].load(Ordering::Relaxed);
            if expected > 0 {
                let found = (stamped(&read(file, sector), sector) >> 24) & 0xffff_ffff;
                assert_eq!(found, expected, "sector {sector}");
            }
        }
    };
    after(&shared.file);
    shared.file.drop_cache().unwrap();
    after(&shared.file);
    let Shared { file, acknowledged, .. } = shared;
    drop(file);
    fs.close().unwrap();
    assert_clean(&device);
    let fs = open(&device);
    let file = fs.open_file("/file").unwrap();
    for (sector, expected) in acknowledged.iter().enumerate() {
        let expected = expected.load(Ordering::Relaxed);
        if expected > 0 {
            let found = (stamped(&read(&file, sector as u64), sector as u64) >> 24) & 0xffff_ffff;
            assert_eq!(found, expected, "sector {sector} after the mount");
        }
    }
}

#[test]
fn threads_agree_on_a_file_that_is_written_back() {
    let options = || writable().cache_bytes(6 << 20);
    let time = Duration::from_secs(2);
    for (seed, flags) in [(1, InodeFlags::empty()), (2, InodeFlags::NODATACOW), (3, InodeFlags::COMPRESS)] {
        race(&options(), flags, seed, time);
    }
    race(&options().compress("zstd".parse().unwrap()), InodeFlags::empty(), 4, time);
}

/// A memory device that counts the writes that are on it at once.
#[derive(Debug)]
struct Depth {
    inner: Arc<MemoryDevice>,
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Depth {
    fn during(&self, writes: usize, work: impl FnOnce()) {
        let now = self.now.fetch_add(writes, Ordering::SeqCst) + writes;
        self.most.fetch_max(now, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(2));
        work();
        self.now.fetch_sub(writes, Ordering::SeqCst);
    }
}

impl Device for Depth {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn access(&self) -> Access {
        self.inner.access()
    }

    fn waits(&self) -> bool {
        true
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        self.inner.read_at(buffer, offset)
    }

    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        let mut result = Ok(());
        self.during(1, || result = self.inner.write_at(buffer, offset));
        result
    }

    fn write_many(&self, requests: &mut [WriteRequest<'_>]) {
        self.during(requests.len(), || self.inner.write_many(requests));
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: PhysicalAddress, length: u64) -> io::Result<()> {
        self.inner.discard(offset, length)
    }
}

#[test]
fn writeback_keeps_a_device_busy() {
    let memory = formatted(256 << 20);
    let device =
        Arc::new(Depth { inner: memory.clone(), now: AtomicUsize::new(0), most: AtomicUsize::new(0) });
    let fs = open_with(&device, &writable().cache_bytes(8 << 20));
    let file = fs.create_file("/scattered").unwrap();
    file.write_all_at(&vec![1; (SECTORS * SECTOR) as usize], 0).unwrap();
    fs.sync().unwrap();
    for sector in (0..SECTORS).step_by(4) {
        file.write_all_at(&[2; SECTOR as usize], sector * SECTOR).unwrap();
    }
    device.most.store(0, Ordering::SeqCst);
    file.sync_all().unwrap();
    let most = device.most.load(Ordering::SeqCst);
    assert!(most >= 32, "{most} of {} scattered pages were written at once", SECTORS / 4);
    assert!(
        (0..SECTORS).all(|sector| read(&file, sector) == [1 + u8::from(sector % 4 == 0); SECTOR as usize])
    );

    for number in 0..64 {
        fs.create_file(format!("/{number}")).unwrap().write_all_at(&[3; SECTOR as usize], 0).unwrap();
    }
    device.most.store(0, Ordering::SeqCst);
    fs.sync().unwrap();
    let most = device.most.load(Ordering::SeqCst);
    assert!(most >= 8, "{most} of 64 new files were written at once");
    drop(file);
    fs.close().unwrap();
    assert_clean(&memory);
}
