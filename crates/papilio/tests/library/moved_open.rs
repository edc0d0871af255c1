//! Block groups are moved, and devices replaced, while files are open: several threads read, write,
//! sync, share and delete meanwhile, and every byte they read is the one that they wrote.
//!
//! `PAPILIO_MOVED_ROUNDS` sets how often everything is moved, or a device replaced.

use crate::in_memory;
use crate::in_memory::{assert_clean, writable};
use papilio::format::items::inode::InodeFlags;
use papilio::{
    BalanceControl, BalanceFilter, BalanceOptions, DevReplaceState, DeviceId, File, FileSystem, IoCompletion,
    IoOperation, IoQueue, IoRequest, MkfsOptions, OpenOptions, RaidProfile, ReplaceOptions, ScrubOptions,
};
use papilio_device::{Access, Device, Direction, MemoryDevice, PhysicalAddress, ShuffleDevice, StartedOp};
use papilio_oracle::{ImageSet, Scratch};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Some requests in flight have 200 MiB of metadata promised to them.
const SIZE: u64 = 1 << 30;
const FILE_BYTES: usize = 1 << 20;
const SECTOR: usize = 4096;

fn rounds() -> u64 {
    std::env::var("PAPILIO_MOVED_ROUNDS").map_or(6, |number| number.parse().expect("a number"))
}

/// How a worker's file is written.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Cached,
    Direct,
    InPlace,
    Preallocated,
    Compressed,
}

const KINDS: [Kind; 5] = [Kind::Cached, Kind::Direct, Kind::InPlace, Kind::Preallocated, Kind::Compressed];

/// A file, and its content as it must be.
struct Worker {
    fs: FileSystem,
    kind: Kind,
    file: File,
    content: Vec<u8>,
    random: fastrand::Rng,
    snapshots: u64,
}

impl Worker {
    fn new(fs: &FileSystem, kind: Kind) -> Self {
        fs.create_subvolume(format!("/{kind:?}")).unwrap();
        let mut file = fs.create_file(format!("/{kind:?}/f")).unwrap();
        match kind {
            Kind::Direct => file.set_direct(true),
            Kind::InPlace => {
                file.inode().set_flags(InodeFlags::NODATACOW).unwrap();
                file = fs.open_file(format!("/{kind:?}/f")).unwrap();
                file.set_direct(true);
            }
            Kind::Compressed => file.inode().set_flags(InodeFlags::COMPRESS).unwrap(),
            Kind::Cached | Kind::Preallocated => {}
        }
        let content = vec![0; FILE_BYTES];
        match kind {
            Kind::Preallocated => file.allocate(0, FILE_BYTES as u64, false).unwrap(),
            _ => file.write_all_at(&content, 0).unwrap(),
        }
        let random = fastrand::Rng::with_seed(kind as u64);
        Self { fs: fs.clone(), kind, file, content, random, snapshots: 0 }
    }

    fn range(&mut self) -> std::ops::Range<usize> {
        let (mut start, mut length) = (self.random.usize(..FILE_BYTES), self.random.usize(1..64 << 10));
        if self.random.bool() {
            (start, length) = (start - start % SECTOR, length.next_multiple_of(SECTOR));
        }
        start..(start + length).min(FILE_BYTES)
    }

    fn compare(&self, range: std::ops::Range<usize>) {
        let mut read = vec![0; range.len()];
        self.file.read_exact_at(&mut read, range.start as u64).unwrap();
        let wrong = read.iter().zip(&self.content[range.clone()]).position(|(read, wrote)| read != wrote);
        let wrong = wrong.map(|at| range.start + at);
        assert!(wrong.is_none(), "{:?}: the byte at {wrong:?} is not the one that was written", self.kind);
    }

    fn step(&mut self) {
        let range = self.range();
        match self.random.u32(..100) {
            0..45 => self.compare(range),
            45..85 => {
                let byte = self.random.u8(..);
                self.content[range.clone()].iter_mut().enumerate().for_each(|(at, place)| {
                    *place = byte.wrapping_add((at >> 8) as u8);
                });
                self.file.write_all_at(&self.content[range.clone()], range.start as u64).unwrap();
            }
            85..90 => {
                self.content[range.clone()].fill(0);
                self.file.punch_hole(range.start as u64, range.len() as u64).unwrap();
            }
            90..95 => self.file.sync_all().unwrap(),
            95..98 => {
                let sectors = |byte: usize| byte - byte % SECTOR;
                let (from, length) = (sectors(range.start), sectors(range.len()));
                let to = sectors(self.random.usize(..FILE_BYTES - (64 << 10)));
                if length > 0 && from.abs_diff(to) >= length && from + length <= FILE_BYTES {
                    self.file.clone_range(&self.file, from as u64, length as u64, to as u64).unwrap();
                    self.content.copy_within(from..from + length, to);
                }
            }
            _ => self.snapshot(),
        }
    }

    /// Takes a snapshot, and deletes it after a look at it.
    fn snapshot(&mut self) {
        self.snapshots += 1;
        let path = format!("/{:?} {}", self.kind, self.snapshots);
        self.fs.snapshot(format!("/{:?}", self.kind), &path, self.snapshots.is_multiple_of(2)).unwrap();
        assert!(self.fs.read(format!("{path}/f")).unwrap() == self.content, "{path}");
        if self.snapshots > 2 {
            let old = format!("/{:?} {}", self.kind, self.snapshots - 2);
            self.fs.delete_subvolume(old).unwrap();
        }
    }
}

/// Stops all threads if one panics.
struct StopIfPanics<'a>(&'a AtomicBool);

impl Drop for StopIfPanics<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// Creates and deletes small files.
fn change_names(fs: &FileSystem, stop: &AtomicBool) {
    let _stop = StopIfPanics(stop);
    fs.create_dir("/names").unwrap();
    let mut random = fastrand::Rng::with_seed(9);
    let content = |number: u64| format!("file {number} ").repeat(1 + number as usize % 900);
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        fs.write(format!("/names/{number}"), content(number)).unwrap();
        let old = random.u64(..=number).max(number.saturating_sub(200));
        match fs.read(format!("/names/{old}")) {
            Ok(read) => assert!(read == content(old).as_bytes(), "/names/{old}"),
            Err(error) => assert_eq!(error.errno(), 2, "{error}"),
        }
        if random.bool() {
            let _ = fs.remove_file(format!("/names/{old}"));
        }
        if number > 300 {
            let _ = fs.remove_file(format!("/names/{}", number - 300));
        }
        number += 1;
    }
    assert!(number > 20);
}

/// Keeps requests in flight on a file.
fn keep_in_flight(fs: &FileSystem, stop: &AtomicBool) {
    let _stop = StopIfPanics(stop);
    const SECTORS: usize = 256;
    let mut queue: IoQueue<Vec<u8>> = IoQueue::new(16);
    let mut file = fs.create_file("/queue").unwrap();
    file.set_direct(true);
    file.write_all_at(&vec![0; SECTORS * SECTOR], 0).unwrap();
    let file = Arc::new(file);
    let mut content = vec![0_u8; SECTORS];
    // Each sector waits for nothing, for a read, or for the write of a byte.
    let mut waiting: Vec<Option<Option<u8>>> = vec![None; SECTORS];
    let mut random = fastrand::Rng::with_seed(3);
    let mut done: Vec<IoCompletion<Vec<u8>>> = Vec::new();
    let mut ended = 0;
    while !stop.load(Ordering::Relaxed) || queue.in_flight() > 0 {
        let sector = random.usize(..SECTORS);
        if !stop.load(Ordering::Relaxed) && queue.in_flight() < 16 && waiting[sector].is_none() {
            let write = random.bool().then(|| random.u8(..));
            let offset = (sector * SECTOR) as u64;
            let operation = match write {
                Some(byte) => IoOperation::Write { buffer: vec![byte; SECTOR], offset },
                None => IoOperation::Read { buffer: vec![0; SECTOR], offset },
            };
            waiting[sector] = Some(write);
            queue.submit(IoRequest { file: Arc::clone(&file), operation, token: sector as u64 }).unwrap();
            if queue.in_flight() < 12 {
                continue;
            }
        }
        queue.wait(1, &mut done);
        for completion in done.drain(..) {
            assert_eq!(completion.result.unwrap(), SECTOR);
            let sector = completion.token as usize;
            match waiting[sector].take().unwrap() {
                Some(byte) => content[sector] = byte,
                None => {
                    let read = completion.buffer.unwrap();
                    assert!(read.iter().all(|byte| *byte == content[sector]), "sector {sector}");
                }
            }
            ended += 1;
        }
    }
    assert!(ended > 100);
}

fn moves_to(profile: Option<RaidProfile>) -> BalanceOptions {
    let filter = BalanceFilter { convert: profile.map(RaidProfile::flags), ..BalanceFilter::default() };
    BalanceOptions {
        data: Some(filter.clone()),
        metadata: Some(filter.clone()),
        system: Some(filter),
        force: true,
    }
}

/// Makes a file system on some devices, calls `round` a few times with workers beside it, and
/// compares and checks what is on the devices that `round` leaves.
fn beside_workers(
    mut memory: Vec<Arc<MemoryDevice>>,
    (made, opened): (&MkfsOptions, &OpenOptions),
    attach: &dyn Fn(Arc<MemoryDevice>) -> Arc<dyn Device>,
    round: impl Fn(u64, &FileSystem, &mut Vec<Arc<MemoryDevice>>),
) {
    let plain = |memory: &[Arc<MemoryDevice>]| -> Vec<_> {
        memory.iter().map(|device| device.clone() as Arc<dyn Device>).collect()
    };
    papilio::mkfs_devices(&plain(&memory), made).unwrap();
    let devices = memory.iter().map(|device| attach(device.clone())).collect();
    let fs = FileSystem::from_devices(devices, opened).unwrap();
    let stop = AtomicBool::new(false);
    let workers = KINDS.map(|kind| Worker::new(&fs, kind));
    let workers = std::thread::scope(|scope| {
        let workers = workers.map(|mut worker| {
            let stop = &stop;
            scope.spawn(move || {
                let _stop = StopIfPanics(stop);
                while !stop.load(Ordering::Relaxed) {
                    worker.step();
                }
                worker.compare(0..FILE_BYTES);
                worker
            })
        });
        scope.spawn(|| change_names(&fs, &stop));
        scope.spawn(|| keep_in_flight(&fs, &stop));
        // Even where a move fails, the workers end.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for number in 0..rounds() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                round(number, &fs, &mut memory);
                std::thread::sleep(Duration::from_millis(30));
            }
        }));
        stop.store(true, Ordering::Relaxed);
        let workers = workers.map(|worker| worker.join().unwrap());
        outcome.unwrap();
        workers
    });
    let contents: Vec<_> = workers.iter().map(|worker| (worker.kind, worker.content.clone())).collect();
    drop(workers);
    fs.close().unwrap();

    let fs = FileSystem::from_devices(plain(&memory), &writable()).unwrap();
    for (kind, content) in &contents {
        assert!(fs.read(format!("/{kind:?}/f")).unwrap() == *content, "{kind:?}, opened again");
    }
    fs.close().unwrap();
    judge(&memory);
}

/// Moves everything a few times, into other profiles too, with workers beside it.
fn moved_beside_workers(attach: &dyn Fn(Arc<MemoryDevice>) -> Arc<dyn Device>, options: &OpenOptions) {
    let memory = vec![Arc::new(MemoryDevice::new(SIZE)), Arc::new(MemoryDevice::new(SIZE))];
    let moved = AtomicU64::new(0);
    let made = MkfsOptions::new().metadata_profile(RaidProfile::Raid1);
    beside_workers(memory, (&made, options), attach, |round, fs, _| {
        let profile = [None, Some(RaidProfile::Raid1), None, Some(RaidProfile::Single)][round as usize % 4];
        let report = fs.balance(&moves_to(profile), |_| true).unwrap();
        assert_eq!(report.completed, report.expected);
        moved.fetch_add(report.bytes, Ordering::Relaxed);
    });
    assert!(moved.into_inner() > 1 << 20);
}

/// Replaces one device after the other, with workers beside it.
fn replaced_beside_workers(
    data: RaidProfile,
    attach: &dyn Fn(Arc<MemoryDevice>) -> Arc<dyn Device>,
    options: &OpenOptions,
) {
    let memory: Vec<_> = (0..3).map(|_| Arc::new(MemoryDevice::new(SIZE))).collect();
    let made = MkfsOptions::new().metadata_profile(RaidProfile::Raid1).data_profile(data);
    beside_workers(memory, (&made, options), attach, |round, fs, memory| {
        let number = round as usize % memory.len();
        let new = Arc::new(MemoryDevice::new(SIZE));
        let how = ReplaceOptions { avoid_source: round % 2 == 1, force: false };
        let source = DeviceId(number as u64 + 1);
        let replace = |control: BalanceControl| {
            fs.replace_device(source, &attach(new.clone()), how, |_| control).unwrap()
        };
        assert_eq!(replace(BalanceControl::Cancel).state, DevReplaceState::Canceled);
        let report = replace(BalanceControl::Continue);
        assert_eq!((report.state, report.uncorrectable_read_errors), (DevReplaceState::Finished, 0));
        let old = std::mem::replace(&mut memory[number], new);
        assert!(FileSystem::from_devices(vec![old], &OpenOptions::new()).is_err(), "it is erased");
    });
}

/// Asks both checks.
fn judge(memory: &[Arc<MemoryDevice>]) {
    let devices = memory.iter().map(|device| device.clone() as Arc<dyn Device>).collect();
    let options = papilio::CheckOptions::new().data_csum(true);
    let report = papilio::check_devices(devices, &OpenOptions::new(), &options).unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
    let devices = memory.iter().map(|device| device.clone() as Arc<dyn Device>).collect();
    let fs = FileSystem::from_devices(devices, &OpenOptions::new()).unwrap();
    let counts = fs.scrub(&ScrubOptions::new(), |_| true).unwrap().total();
    assert!(!counts.has_errors(), "{counts:?}");
    if papilio_oracle::require(&[
        papilio_oracle::Need::Command("btrfs"),
        papilio_oracle::Need::Root,
        papilio_oracle::Need::Loop,
    ])
    .is_none()
    {
        return;
    }
    let scratch = Scratch::new(memory.len() as u64 * SIZE).unwrap();
    let paths = memory.iter().map(|device| {
        let path = scratch.unique("image");
        device.write_image(&path).unwrap();
        path
    });
    let images = ImageSet::open(&scratch, paths.collect());
    // btrfs-progs 6.2 finds wrong second copies on RAID5 that the kernel finds right.
    if fs.usage().unwrap().spaces.iter().any(|space| space.profile == RaidProfile::Raid5) {
        let mounted = images.mount().unwrap();
        let scrub =
            Command::new("btrfs").args(["scrub", "start", "-B"]).arg(mounted.path()).output().unwrap();
        let found = String::from_utf8_lossy(&scrub.stdout).into_owned();
        assert!(scrub.status.success() && found.contains("no errors found"), "{scrub:?}");
        mounted.unmount().unwrap();
    } else {
        images.btrfs_check().unwrap();
    }
}

#[test]
fn open_files_keep_their_data_while_it_moves() {
    let options = OpenOptions::new().write(true).commit_interval(Some(Duration::from_secs(1)));
    moved_beside_workers(&|device| device, &options);
}

#[test]
fn open_files_keep_their_data_while_devices_are_replaced() {
    let options = OpenOptions::new().write(true).commit_interval(Some(Duration::from_secs(1)));
    for data in [RaidProfile::Raid1, RaidProfile::Raid0, RaidProfile::Raid5] {
        replaced_beside_workers(data, &|device| device, &options);
    }
}

#[test]
fn requests_in_flight_end_while_devices_are_replaced() {
    let seed = AtomicU64::new(1);
    let options = OpenOptions::new().write(true).cache_bytes(8 << 20);
    let shuffled = |device: Arc<MemoryDevice>| {
        Arc::new(ShuffleDevice::new(device, seed.fetch_add(1, Ordering::Relaxed))) as Arc<dyn Device>
    };
    for data in [RaidProfile::Single, RaidProfile::Raid1] {
        replaced_beside_workers(data, &shuffled, &options);
    }
}

#[test]
fn requests_in_flight_end_while_data_moves() {
    let seed = AtomicU64::new(1);
    let options = OpenOptions::new().write(true).cache_bytes(8 << 20);
    let shuffled = |device: Arc<MemoryDevice>| {
        Arc::new(ShuffleDevice::new(device, seed.fetch_add(1, Ordering::Relaxed))) as Arc<dyn Device>
    };
    moved_beside_workers(&shuffled, &options);
}

/// The bytes of the read that [`HeldReads`] holds.
const HELD: usize = 96 << 10;

/// A device that holds the first read of [`HELD`] bytes while it is told to.
#[derive(Debug)]
struct HeldReads {
    inner: Arc<MemoryDevice>,
    in_flight: bool,
    hold: AtomicBool,
    held: AtomicU64,
}

impl HeldReads {
    fn pass(&self, length: usize) {
        let holds = length == HELD && self.hold.load(Ordering::SeqCst);
        if holds && self.held.fetch_add(1, Ordering::SeqCst) == 0 {
            while self.hold.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

impl Device for HeldReads {
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
        self.in_flight
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> std::io::Result<()> {
        self.pass(buffer.len());
        self.inner.read_at(buffer, offset)
    }

    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> std::io::Result<()> {
        self.inner.write_at(buffer, offset)
    }

    fn flush(&self) -> std::io::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: PhysicalAddress, length: u64) -> std::io::Result<()> {
        self.inner.discard(offset, length)
    }

    fn start(self: Arc<Self>, mut op: StartedOp) {
        std::thread::spawn(move || {
            if op.direction() == Direction::Read {
                self.pass(op.bytes_mut().len());
            }
            op.run(&*self.inner);
        });
    }
}

/// The space that a file had is used by others after a move. A read that began before, and still
/// goes to the old place, must not return their data. The file has no checksums that would tell.
fn late_read(in_flight: bool) {
    let device = Arc::new(HeldReads {
        inner: in_memory::formatted(320 << 20),
        in_flight,
        hold: AtomicBool::new(false),
        held: AtomicU64::new(0),
    });
    let fs = in_memory::open(&device);
    fs.create_file("/in place").unwrap().inode().set_flags(InodeFlags::NODATACOW).unwrap();
    let mut file = fs.open_file("/in place").unwrap();
    file.set_direct(true);
    file.write_all_at(&vec![7; HELD], 0).unwrap();
    fs.sync().unwrap();
    let file = Arc::new(file);
    let read = || -> Vec<u8> {
        let mut queue = IoQueue::new(1);
        let operation = IoOperation::Read { buffer: vec![0; HELD], offset: 0 };
        queue.submit(IoRequest { file: Arc::clone(&file), operation, token: 0 }).unwrap();
        let mut done: Vec<IoCompletion<Vec<u8>>> = Vec::new();
        queue.wait(1, &mut done);
        assert_eq!(done[0].result.as_ref().unwrap(), &HELD);
        done.remove(0).buffer.unwrap()
    };
    // The second read knows the extent without a look at the tree, and pins nothing.
    assert_eq!(read(), [7; HELD]);
    device.hold.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let late = scope.spawn(read);
        while device.held.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let moved = fs.balance(&moves_to(None), |_| true).and_then(|_| {
            let other = fs.create_file("/other")?;
            let full = (0..400).find_map(|number| other.write_all_at(&[9; 1 << 20], number << 20).err());
            assert_eq!(full.expect("the device is full").errno(), 28);
            fs.sync()
        });
        device.hold.store(false, Ordering::SeqCst);
        moved.unwrap();
        assert_eq!(late.join().unwrap(), [7; HELD]);
    });
    drop(file);
    fs.close().unwrap();
    assert_clean(&device);
}

#[test]
fn a_read_that_waits_follows_data_that_moves() {
    late_read(false);
}

#[test]
fn a_read_in_flight_follows_data_that_moves() {
    late_read(true);
}

/// A device with other bytes than zeros.
fn used_device(seed: u64, size: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(size));
    let mut random = fastrand::Rng::with_seed(seed);
    let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(1 << 20).collect();
    for offset in (0..size).step_by(bytes.len()) {
        device.write_at(&bytes, PhysicalAddress(offset)).unwrap();
    }
    device
}

/// Replaces each of three devices with RAID5 on old bytes, and writes a file when all is copied.
/// The parity of a row that is written in part counts on its rest, which was never written.
fn written_while_replaced(how: ReplaceOptions, content: impl Fn(&FileSystem) -> Vec<u8>) {
    const SMALL: u64 = 300 << 20;
    for number in 0..3 {
        let mut memory: Vec<_> = (0..3).map(|seed| used_device(seed, SMALL)).collect();
        let plain = |memory: &[Arc<MemoryDevice>]| -> Vec<_> {
            memory.iter().map(|device| device.clone() as Arc<dyn Device>).collect()
        };
        let made = MkfsOptions::new().metadata_profile(RaidProfile::Raid1).discard(false);
        papilio::mkfs_devices(&plain(&memory), &made.data_profile(RaidProfile::Raid5)).unwrap();
        let fs = FileSystem::from_devices(plain(&memory), &writable()).unwrap();
        let content = content(&fs);
        let target = Arc::new(MemoryDevice::new(SMALL));
        let new = target.clone() as Arc<dyn Device>;
        let replaced = fs.replace_device(DeviceId(number as u64 + 1), &new, how, |report| {
            if report.bytes_done == report.bytes_total {
                fs.write("/new", &content).unwrap();
                fs.sync().unwrap();
            }
            BalanceControl::Continue
        });
        assert_eq!(replaced.unwrap().state, DevReplaceState::Finished);
        memory[number] = target;
        assert!(fs.read("/new").unwrap() == content);
        fs.close().unwrap();
        judge(&memory);
    }
}

#[test]
fn parity_is_right_on_a_new_device_where_nothing_was_written_before() {
    for avoid_source in [false, true] {
        let how = ReplaceOptions { avoid_source, force: false };
        written_while_replaced(how, |_| vec![7; 7 * SECTOR]);
    }
}

#[test]
fn parity_is_right_on_a_new_device_in_chunks_that_were_made_meanwhile() {
    written_while_replaced(ReplaceOptions::default(), |fs| {
        let data = |space: &&papilio::SpaceUsage| space.profile == RaidProfile::Raid5;
        let chunk = fs.usage().unwrap().spaces.iter().find(data).expect("data is RAID5").total;
        vec![7; chunk as usize + SECTOR]
    });
}

/// Without any block group for data, nothing would tell that new data is to have two copies.
#[test]
fn a_balance_of_empty_block_groups_keeps_the_profile_of_data() {
    let memory: Vec<_> = (0..2).map(|_| Arc::new(MemoryDevice::new(SIZE))).collect();
    let devices = || -> Vec<_> { memory.iter().map(|device| device.clone() as Arc<dyn Device>).collect() };
    let made = MkfsOptions::new().metadata_profile(RaidProfile::Raid1).data_profile(RaidProfile::Raid1);
    papilio::mkfs_devices(&devices(), &made).unwrap();
    let fs = FileSystem::from_devices(devices(), &writable()).unwrap();
    let unused = BalanceFilter { usage: Some(0..=0), ..BalanceFilter::default() };
    for options in [
        BalanceOptions { data: Some(unused), ..BalanceOptions::default() },
        BalanceOptions { data: Some(BalanceFilter::default()), ..BalanceOptions::default() },
    ] {
        let report = fs.balance(&options, |_| true).unwrap();
        assert_eq!((report.expected, report.completed), (1, 1));
        let spaces = fs.usage().unwrap().spaces;
        assert!(spaces.iter().all(|space| space.profile == RaidProfile::Raid1), "{spaces:?}");
        assert_eq!(spaces.len(), 3, "{spaces:?}");
    }
    fs.write("/file", [7; 9000]).unwrap();
    fs.close().unwrap();
    judge(&memory);
}
