//! Reads of mirrors whose devices differ in speed: the slow one gets few of them, by requests that
//! wait and by requests in flight. Equal devices share the reads.

use papilio::{FileSystem, IoOperation, IoQueue, IoRequest, MkfsOptions, OpenOptions, RaidProfile};
use papilio_device::{DelayDevice, Device, FaultDevice, MemoryDevice};
use std::sync::Arc;
use std::time::Duration;

const SECTOR: usize = 4096;
const SECTORS: usize = 8192;
const READS: usize = 1600;

/// A file on mirrors whose requests are delayed.
struct World {
    /// Counts the calls that reach a device.
    counted: [Arc<FaultDevice>; 2],
    fs: FileSystem,
}

impl World {
    fn new(delays: [Duration; 2]) -> Self {
        let memory: Vec<Arc<dyn Device>> =
            (0..2).map(|_| Arc::new(MemoryDevice::new(300 << 20)) as Arc<dyn Device>).collect();
        let raid1 = MkfsOptions::new().data_profile(RaidProfile::Raid1).metadata_profile(RaidProfile::Raid1);
        papilio::mkfs_devices(&memory, &raid1).unwrap();
        let options = OpenOptions::new().write(true).commit_interval(None);
        let fs = FileSystem::from_devices(memory.clone(), &options).unwrap();
        let content: Vec<u8> =
            (0..SECTORS).flat_map(|number| (number as u64).to_le_bytes().repeat(512)).collect();
        fs.write("/file", content).unwrap();
        fs.close().unwrap();
        let counted = [0, 1].map(|number: usize| Arc::new(FaultDevice::new(memory[number].clone())));
        let delayed = counted.iter().zip(delays).map(|(device, delay)| {
            Arc::new(DelayDevice::new(device.clone(), delay).unwrap()) as Arc<dyn Device>
        });
        // Without a page cache every read reaches a device.
        let fs = FileSystem::from_devices(delayed.collect(), &options.cache_bytes(0)).unwrap();
        let file = fs.open_file("/file").unwrap();
        for number in (0..SECTORS).step_by(64) {
            file.read_exact_at(&mut [0; SECTOR], (number * SECTOR) as u64).unwrap();
        }
        drop(file);
        counted.iter().for_each(|device| device.reset_counts());
        Self { counted, fs }
    }

    fn reads(&self) -> [u64; 2] {
        self.counted.each_ref().map(|device| device.counts().reads)
    }
}

fn is_sector(number: usize, bytes: &[u8]) -> bool {
    bytes.chunks_exact(8).all(|piece| piece == (number as u64).to_le_bytes())
}

/// Reads random sectors by sixteen threads.
fn read_waiting(world: &World) {
    std::thread::scope(|scope| {
        for seed in 0..16 {
            scope.spawn(move || {
                let file = world.fs.open_file("/file").unwrap();
                let mut random = fastrand::Rng::with_seed(seed);
                for _ in 0..READS / 16 {
                    let (number, mut bytes) = (random.usize(..SECTORS), vec![0; SECTOR]);
                    file.read_exact_at(&mut bytes, (number * SECTOR) as u64).unwrap();
                    assert!(is_sector(number, &bytes), "sector {number}");
                }
            });
        }
    });
}

/// Reads random sectors, sixteen in flight.
fn read_in_flight(world: &World) {
    let mut queue: IoQueue<Vec<u8>> = IoQueue::new(16);
    let file = Arc::new(world.fs.open_file("/file").unwrap());
    let mut random = fastrand::Rng::with_seed(7);
    let (mut begun, mut ended, mut done) = (0, 0, Vec::new());
    while ended < READS {
        while begun < READS && begun - ended < 16 {
            let number = random.usize(..SECTORS);
            let (buffer, offset) = (vec![0; SECTOR], (number * SECTOR) as u64);
            let operation = IoOperation::Read { buffer, offset };
            let request = IoRequest { file: file.clone(), operation, token: number as u64 };
            queue.submit(request).expect("the queue has room");
            begun += 1;
        }
        queue.wait(1, &mut done);
        for end in done.drain(..) {
            assert_eq!(end.result.unwrap(), SECTOR);
            assert!(is_sector(end.token as usize, &end.buffer.unwrap()), "sector {}", end.token);
            ended += 1;
        }
    }
}

#[test]
fn a_slow_mirror_gets_few_reads() {
    let delays = [Duration::from_millis(20), Duration::from_micros(500)];
    for read in [read_waiting, read_in_flight] {
        for slow in [0, 1] {
            let world = World::new([delays[slow], delays[1 - slow]]);
            read(&world);
            let reads = world.reads();
            assert!(reads[0] + reads[1] >= READS as u64, "{reads:?}");
            assert!(reads[slow] * 3 < reads[1 - slow], "slow is {slow}: {reads:?}");
            // It is not left alone: it could have become faster.
            assert!(reads[slow] > 0, "slow is {slow}: {reads:?}");
        }
    }
}

#[test]
fn equal_mirrors_share_the_reads() {
    for read in [read_waiting, read_in_flight] {
        let world = World::new([Duration::from_millis(1); 2]);
        read(&world);
        let [one, other] = world.reads();
        assert!(one * 2 > other && other * 2 > one, "{one} and {other}");
    }
}
