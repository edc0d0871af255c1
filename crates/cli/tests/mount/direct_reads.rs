//! Direct reads by many threads, beside direct and gathered writes, with each choice of
//! `device_io`: each read returns what was written last, and the kernel reads the same afterwards.
//!
//! The image lies on a disk. An image in memory has no direct I/O.

use crate::kernel::KernelMount;
use crate::world::{MOUNT, World, succeed};
use papilio::AlignedBuffer;
use papilio_oracle::{Need, require};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const BLOCK: usize = 4096;
const BLOCKS: usize = 1024;
const READERS: usize = 8;
const WRITES: u64 = 1500;

fn open(path: &str, direct: bool) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(if direct { libc::O_DIRECT } else { 0 });
    options.open(path).unwrap()
}

/// A file's last content, block by block: the numbers that were written, and those that may be.
struct Stamps {
    begun: Vec<AtomicU64>,
    ended: Vec<AtomicU64>,
}

impl Stamps {
    fn new() -> Self {
        let zeros = || (0..BLOCKS).map(|_| AtomicU64::new(0)).collect();
        Self { begun: zeros(), ended: zeros() }
    }

    /// Writes random blocks. Only this thread writes them.
    fn write(&self, file: &File, seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut memory = AlignedBuffer::new(BLOCK, BLOCK);
        for number in 1..=WRITES {
            let block = random.usize(..BLOCKS);
            fill(&mut memory, number);
            self.begun[block].store(number, Ordering::SeqCst);
            file.write_all_at(&memory, (block * BLOCK) as u64).unwrap();
            self.ended[block].store(number, Ordering::SeqCst);
            if number % 500 == 0 {
                file.sync_all().unwrap();
            }
        }
    }

    /// Reads random blocks until the writers have ended.
    fn read(&self, file: &File, seed: u64, done: &AtomicBool) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut memory = AlignedBuffer::new(BLOCK, BLOCK);
        while !done.load(Ordering::SeqCst) {
            let block = random.usize(..BLOCKS);
            let least = self.ended[block].load(Ordering::SeqCst);
            file.read_exact_at(&mut memory, (block * BLOCK) as u64).unwrap();
            let most = self.begun[block].load(Ordering::SeqCst);
            let found = u64::from_le_bytes(memory[..8].try_into().unwrap());
            assert!((least..=most).contains(&found), "block {block}: {found} is not {least} to {most}");
            assert!(memory.chunks_exact(8).all(|word| word == found.to_le_bytes()), "block {block} is torn");
        }
    }
}

fn fill(memory: &mut [u8], number: u64) {
    memory.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&number.to_le_bytes()));
}

/// Runs readers and a writer on each file.
fn exercise(world: &World) {
    let files = [("direct", true), ("gathered", false)];
    let stamps = files.map(|_| Stamps::new());
    for (name, _) in files {
        fs::write(world.at(name), vec![0; BLOCKS * BLOCK]).unwrap();
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..READERS {
            let (stamps, done) = (&stamps[seed % 2], &done);
            // A reader of gathered writes sees them once the kernel has written them back, which it
            // does before each direct read.
            let path = world.at(files[seed % 2].0);
            scope.spawn(move || stamps.read(&open(&path, true), seed as u64, done));
        }
        let writers = files.map(|(name, direct)| {
            let (stamps, path) = (&stamps[usize::from(!direct)], world.at(name));
            scope.spawn(move || stamps.write(&open(&path, direct), 77))
        });
        let ended = writers.map(|writer| writer.join());
        done.store(true, Ordering::SeqCst);
        ended.into_iter().for_each(|ended| ended.unwrap());
    });
    // Once more, with nothing in any cache.
    File::open(world.at("direct")).unwrap().sync_all().unwrap();
}

fn all_files(folder: &Path) -> Vec<Vec<u8>> {
    ["direct", "gathered"].map(|name| fs::read(folder.join(name)).unwrap()).into()
}

#[test]
fn direct_reads_see_every_write() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    for choice in ["", "device_io=direct", "device_io=cached"] {
        let Some(world) = World::new_in(&std::env::temp_dir(), MOUNT) else { return };
        let options: &[&str] = if choice.is_empty() { &[] } else { &["-o", choice] };
        world.mount(options);
        exercise(&world);
        let found = all_files(&world.directory());
        world.unmount();
        succeed(["check", "--check-data-csum", world.image().to_str().unwrap()]);

        // A read-only mount, too, by many threads at once.
        world.mount(&[options, &["-o", "ro"]].concat());
        std::thread::scope(|scope| {
            for seed in 0..READERS {
                let (path, expected) = (world.at("direct"), &found[0]);
                scope.spawn(move || {
                    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
                    let mut random = fastrand::Rng::with_seed(seed as u64);
                    let mut memory = AlignedBuffer::new(BLOCK, BLOCK);
                    for _ in 0..300 {
                        let at = random.usize(..BLOCKS) * BLOCK;
                        file.read_exact_at(&mut memory, at as u64).unwrap();
                        assert!(memory[..] == expected[at..at + BLOCK], "{choice}: the block at {at}");
                    }
                });
            }
        });
        world.unmount();

        let _mounted = KernelMount::new(&world.image(), &world.directory(), "ro");
        assert!(all_files(&world.directory()) == found, "{choice}: the kernel reads the same");
    }
}
