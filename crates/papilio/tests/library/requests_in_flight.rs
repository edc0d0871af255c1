//! Requests in flight on devices that answer late, out of order, or not at all: the same bytes as a
//! model in memory has, and a file system that is sound afterwards.

use papilio::{
    CheckOptions, Error, File, FileSystem, IoCompletion, IoOperation, IoQueue, IoRequest, MkfsOptions,
    OpenOptions,
};
use papilio_device::{
    DelayDevice, Device, FaultDevice, MemoryDevice, PhysicalAddress, Recording, ShuffleDevice,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

const SECTOR: usize = 4096;
const SECTORS: usize = 256;
const SIZE: u64 = 160 << 20;

fn new_device() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(SIZE));
    let shared: Arc<dyn Device> = device.clone();
    papilio::mkfs_device(&shared, &MkfsOptions::new()).unwrap();
    device
}

/// Without threads in the background, a run depends on its seed only.
fn open(device: Arc<dyn Device>) -> FileSystem {
    let options = OpenOptions::new().write(true).commit_interval(None);
    FileSystem::from_devices(vec![device], &options).unwrap()
}

fn check(device: &Arc<MemoryDevice>) {
    let device: Arc<dyn Device> = device.clone();
    let fs = FileSystem::from_devices(vec![device], &OpenOptions::new()).unwrap();
    let report = fs.check(&CheckOptions::new().data_csum(true)).unwrap();
    assert!(report.is_clean(), "{report:?}");
}

/// A file, its content as it must be, and the requests that are in flight on it.
struct Model {
    queue: IoQueue<Vec<u8>>,
    file: Arc<File>,
    /// A number for each sector; its bytes repeat it.
    content: Vec<u64>,
    /// Requests by token: the first sector, the number of sectors, and what a write puts there.
    in_flight: HashMap<u64, (usize, usize, Option<u64>)>,
    /// The numbers that each sector may hold after a power loss: the synced one and all later ones.
    possible: Vec<Vec<u64>>,
    next: u64,
    random: fastrand::Rng,
    done: Vec<IoCompletion<Vec<u8>>>,
    failed: u64,
    snapshots: u64,
}

fn bytes(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    numbers.into_iter().flat_map(|number| number.to_le_bytes().repeat(SECTOR / 8)).collect()
}

impl Model {
    fn new(fs: &FileSystem, seed: u64, depth: usize) -> Self {
        let file = fs.create_file("/f").unwrap();
        file.write_all_at(&vec![0; SECTORS * SECTOR], 0).unwrap();
        file.sync_all().unwrap();
        Self {
            queue: IoQueue::new(depth),
            file: Arc::new(file),
            content: vec![0; SECTORS],
            in_flight: HashMap::new(),
            possible: vec![vec![0]; SECTORS],
            next: 0,
            random: fastrand::Rng::with_seed(seed),
            done: Vec::new(),
            failed: 0,
            snapshots: 0,
        }
    }

    /// Returns whether a write is in flight in these sectors, or a read if `reads`.
    fn is_busy(&self, first: usize, count: usize, reads: bool) -> bool {
        self.in_flight.values().any(|&(start, length, write)| {
            (reads || write.is_some()) && start < first + count && first < start + length
        })
    }

    fn submit(&mut self) {
        let count = 1 + self.random.usize(..4);
        let first = self.random.usize(..=SECTORS - count);
        let write = self.random.bool();
        // The order of requests for the same bytes is not promised.
        if self.is_busy(first, count, write) {
            return;
        }
        self.next += 1;
        let (token, offset) = (self.next, (first * SECTOR) as u64);
        let operation = if write {
            for at in 0..count {
                self.possible[first + at].push(token << 8 | at as u64);
            }
            let buffer = bytes((0..count as u64).map(|at| token << 8 | at));
            IoOperation::Write { buffer, offset }
        } else {
            IoOperation::Read { buffer: vec![0xee; count * SECTOR], offset }
        };
        self.in_flight.insert(token, (first, count, write.then_some(token)));
        let request = IoRequest { file: Arc::clone(&self.file), operation, token };
        self.queue.submit(request).expect("the queue has room");
    }

    fn collect(&mut self, min: usize) {
        self.queue.wait(min, &mut self.done);
        for completion in std::mem::take(&mut self.done) {
            let request = self.in_flight.remove(&completion.token).expect("it completes once");
            let (first, count, write) = request;
            match (completion.result, write) {
                (Ok(length), Some(number)) => {
                    assert_eq!(length, count * SECTOR);
                    for at in 0..count {
                        self.content[first + at] = number << 8 | at as u64;
                    }
                }
                (Ok(length), None) => {
                    assert_eq!(length, count * SECTOR);
                    let expected = bytes(self.content[first..first + count].iter().copied());
                    assert!(completion.buffer.unwrap() == expected, "sectors {first} and {count}");
                }
                (Err(error), _) => {
                    assert!(matches!(error, Error::Device { .. }), "{error}");
                    self.failed += 1;
                }
            }
        }
    }

    /// Something that is not a request, while requests are in flight.
    fn interrupt(&mut self, fs: &FileSystem) {
        match self.random.u8(..8) {
            0 => self.file.sync_all().unwrap(),
            1 => fs.sync().unwrap(),
            2 => {
                self.snapshots += 1;
                fs.snapshot("/", format!("/snapshot-{}", self.snapshots), false).unwrap();
            }
            3 => {
                let first = self.random.usize(..SECTORS - 8);
                if !self.is_busy(first, 8, true) {
                    self.file.punch_hole((first * SECTOR) as u64, 8 * SECTOR as u64).unwrap();
                    self.content[first..first + 8].fill(0);
                    self.possible[first..first + 8].iter_mut().for_each(|possible| possible.push(0));
                }
            }
            4 => {
                // Waits for requests in flight, whose completions it collects itself.
                let (first, count) = (self.random.usize(..SECTORS), 1);
                if !self.is_busy(first, count, true) {
                    self.file.write_all_at(&bytes([7]), (first * SECTOR) as u64).unwrap();
                    self.content[first] = 7;
                    self.possible[first].push(7);
                }
            }
            _ => self.collect(0),
        }
    }

    fn run(&mut self, fs: &FileSystem, steps: u64) {
        for _ in 0..steps {
            while self.queue.in_flight() < self.queue.depth() && self.random.u8(..8) > 0 {
                self.submit();
            }
            if self.random.u8(..8) == 0 {
                self.interrupt(fs);
            }
            let min = self.random.usize(..4);
            self.collect(min);
        }
        self.collect(usize::MAX);
        assert!(self.in_flight.is_empty());
    }

    fn verify(&self, file: &File) {
        assert!(file.read_all().unwrap() == bytes(self.content.iter().copied()));
    }
}

/// Runs the model on a shuffled device, and returns a digest of everything that was read.
fn shuffled(seed: u64, steps: u64) -> Vec<u64> {
    let memory = new_device();
    let fs = open(Arc::new(ShuffleDevice::new(memory.clone(), seed)));
    let mut model = Model::new(&fs, seed, 16);
    model.run(&fs, steps);
    model.verify(&model.file);
    assert_eq!(model.failed, 0);
    let content = model.content.clone();
    drop(model);
    fs.close().unwrap();
    check(&memory);
    let fs = open(memory);
    let file = fs.open_file("/f").unwrap();
    assert!(file.read_all().unwrap() == bytes(content.iter().copied()));
    content
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect("the setting is a number"))
}

/// The seeds of `1 / part` of the runs that are asked for.
fn seeds(part: u64) -> std::ops::Range<u64> {
    let first = setting("PAPILIO_SEED", 0);
    first..first + setting("PAPILIO_SHUFFLED_RUNS", 12).div_ceil(part)
}

#[test]
fn late_and_reordered_completions_change_nothing() {
    for seed in seeds(1) {
        shuffled(seed, 60);
    }
}

#[test]
fn threads_for_requests_that_wait_change_nothing() {
    for seed in seeds(2) {
        let memory = new_device();
        let fs = open(Arc::new(ShuffleDevice::new(memory.clone(), seed)));
        let mut model = Model::new(&fs, seed, 16);
        model.queue = IoQueue::with_threads(16, 3).unwrap();
        model.run(&fs, 60);
        model.verify(&model.file);
        drop(model);
        fs.close().unwrap();
        check(&memory);
    }
}

/// Each run has a process of its own: a thread of another test that waits for its requests may
/// collect those of this queue, and the order of completions would be another.
#[test]
fn a_run_repeats_from_its_seed() {
    const ALONE: &str = "PAPILIO_SHUFFLED_ALONE";
    if std::env::var_os(ALONE).is_some() {
        println!("content {:?}", shuffled(99, 40));
        return;
    }
    let run = || {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "requests_in_flight::a_run_repeats_from_its_seed", "--nocapture"])
            .env(ALONE, "1")
            .output()
            .unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{printed}");
        let content = printed.split("content [").nth(1).and_then(|rest| rest.split(']').next());
        content.expect("the run prints its content").to_owned()
    };
    let first = run();
    assert!(first.len() > SECTORS, "{first}");
    assert_eq!(first, run());
}

#[test]
fn a_power_loss_keeps_what_was_synced() {
    for seed in seeds(1) {
        let recording = Recording::new();
        let recorder = recording.attach(new_device());
        let fs = open(Arc::new(ShuffleDevice::new(Arc::new(recorder), seed)));
        let mut model = Model::new(&fs, seed, 8);
        model.run(&fs, 20);
        model.file.sync_all().unwrap();
        model.possible = model.content.iter().map(|&number| vec![number]).collect();
        let synced = recording.len();
        model.run(&fs, 10);
        let mut replay = recording.replay();
        let end = recording.len();
        for moment in 0..4 {
            replay.advance(synced + (end - synced) * moment / 3);
            let device = Arc::new(replay.crash(seed * 4 + moment as u64).remove(0));
            let fs = open(device.clone());
            let found = fs.open_file("/f").unwrap().read_all().unwrap();
            for (at, sector) in found.chunks(SECTOR).enumerate() {
                let number = u64::from_le_bytes(sector[..8].try_into().unwrap());
                assert!(model.possible[at].contains(&number), "seed {seed}, sector {at}: {number:#x}");
                assert!(sector == bytes([number]), "seed {seed}, sector {at} is torn");
            }
            fs.close().unwrap();
            check(&device);
        }
    }
}

#[test]
fn failed_requests_say_so_and_leave_the_old_bytes() {
    for seed in seeds(2) {
        let memory = new_device();
        let fault = Arc::new(FaultDevice::new(memory.clone()));
        let fs = open(Arc::new(ShuffleDevice::new(fault.clone(), seed)));
        let mut model = Model::new(&fs, seed, 16);
        model.run(&fs, 10);
        // The data that is there; metadata is elsewhere.
        fault.fail_writes(PhysicalAddress(0)..PhysicalAddress(SIZE));
        for _ in 0..12 {
            model.submit();
        }
        let writes = model.in_flight.values().filter(|request| request.2.is_some()).count() as u64;
        model.collect(usize::MAX);
        fault.repair();
        assert_eq!(model.failed, writes, "seed {seed}: every write fails, and no read");
        model.verify(&model.file);
        model.run(&fs, 10);
        model.verify(&model.file);
        drop(model);
        fs.close().unwrap();
        check(&memory);
    }
}

#[test]
fn requests_of_a_slow_device_overlap() {
    let memory = new_device();
    let fs = open(memory.clone());
    let model = Model::new(&fs, 1, 1);
    drop(model);
    fs.close().unwrap();
    let delay = Duration::from_millis(5);
    let fs = open(Arc::new(DelayDevice::new(memory.clone(), delay).unwrap()));
    let file = Arc::new(fs.open_file("/f").unwrap());
    // Tree blocks are read before.
    file.read_at(&mut vec![0; SECTORS * SECTOR], 0).unwrap();
    let mut queue = IoQueue::new(128);
    let start = std::time::Instant::now();
    for token in 0..128 {
        let operation = match token % 2 {
            0 => IoOperation::Read { buffer: vec![0; SECTOR], offset: token * SECTOR as u64 },
            _ => IoOperation::Write { buffer: vec![1; SECTOR], offset: token * SECTOR as u64 },
        };
        queue.submit(IoRequest { file: Arc::clone(&file), operation, token }).unwrap();
    }
    let mut done = Vec::new();
    queue.wait(128, &mut done);
    assert!(done.iter().all(|completion| completion.result.is_ok()));
    // One after the other they would take 640 ms.
    assert!(start.elapsed() < 60 * delay, "{:?}", start.elapsed());
}

#[test]
fn dropping_a_queue_carries_out_its_requests() {
    let memory = new_device();
    let fs = open(Arc::new(ShuffleDevice::new(memory.clone(), 3)));
    let mut model = Model::new(&fs, 3, 32);
    for token in 0..20u64 {
        let operation = IoOperation::Write { buffer: bytes([token + 1]), offset: token * SECTOR as u64 };
        model.queue.submit(IoRequest { file: Arc::clone(&model.file), operation, token }).unwrap();
        model.content[token as usize] = token + 1;
    }
    model.queue = IoQueue::new(1);
    model.verify(&model.file);
}

#[test]
fn an_event_loop_needs_no_thread() {
    let memory = new_device();
    let delayed = DelayDevice::new(memory, Duration::from_millis(1)).unwrap();
    let fs = open(Arc::new(delayed));
    let mut model = Model::new(&fs, 4, 8);
    for _ in 0..8 {
        model.submit();
    }
    let signal = model.queue.event_fd().unwrap().expect("a delayed device answers later");
    while model.queue.in_flight() > 0 {
        model.collect(0);
        let mut fds = [rustix::event::PollFd::new(&signal, rustix::event::PollFlags::IN)];
        if model.queue.in_flight() > 0 {
            assert_eq!(
                rustix::event::poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 })),
                Ok(1)
            );
            rustix::io::read(&signal, &mut [0; 8]).unwrap();
        }
    }
}
