//! Random reads and writes in every way, compared with a model in memory.
//!
//! There are two files and two models. Each step changes or reads one file, or copies between them.
//! `PAPILIO_FSX_SECONDS` sets the duration, and `PAPILIO_FSX_SEED` repeats a run.

use crate::server::{Mount, NEEDS, check, make_image};
use fastrand::Rng;
use papilio_oracle::{Scratch, require};
use rustix::fs::{Advice, FallocateFlags, OFlags, fadvise, fallocate};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Maximum size of a file in bytes.
const SIZE: u64 = 3 << 20;
/// Maximum length of a step in bytes.
const STEP: u64 = 200_000;

/// A file with its expected content.
struct Subject {
    path: PathBuf,
    file: File,
    other: File,
    direct: File,
    model: Vec<u8>,
}

fn open(path: &Path, flags: OFlags) -> File {
    let flags = flags.bits() as i32;
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(flags)
        .open(path)
        .unwrap()
}

impl Subject {
    fn new(path: PathBuf) -> Self {
        let (file, other) = (open(&path, OFlags::empty()), open(&path, OFlags::empty()));
        let direct = open(&path, OFlags::DIRECT);
        Self { path, file, other, direct, model: Vec::new() }
    }

    /// Returns a random range that starts in the file or shortly after its end.
    fn range(&self, random: &mut Rng) -> (u64, u64) {
        let start = random.u64(0..(self.model.len() as u64 + 50_000).min(SIZE));
        let length = random.u64(1..=STEP).min(SIZE - start);
        match random.u8(0..4) {
            0 => (start / 4096 * 4096, length.next_multiple_of(4096)),
            _ => (start, length),
        }
    }

    fn grow(&mut self, size: u64) {
        if self.model.len() < size as usize {
            self.model.resize(size as usize, 0);
        }
    }

    fn put(&mut self, offset: u64, data: &[u8]) {
        self.grow(offset + data.len() as u64);
        self.model[offset as usize..offset as usize + data.len()].copy_from_slice(data);
    }

    fn zero(&mut self, offset: u64, length: u64) {
        let end = (offset + length).min(self.model.len() as u64);
        if offset < end {
            self.model[offset as usize..end as usize].fill(0);
        }
    }

    fn write(&mut self, random: &mut Rng) -> String {
        let (offset, length) = self.range(random);
        let mut data = vec![random.u8(..); length as usize];
        if random.bool() {
            random.fill(&mut data);
        }
        let file = if random.bool() { &self.file } else { &self.other };
        file.write_all_at(&data, offset).unwrap();
        self.put(offset, &data);
        format!("write {offset} {length}")
    }

    fn read(&self, random: &mut Rng) -> String {
        let (offset, length) = self.range(random);
        let mut data = vec![0xaa; length as usize];
        let mut done = 0;
        while done < data.len() {
            match self.other.read_at(&mut data[done..], offset + done as u64).unwrap() {
                0 => break,
                read => done += read,
            }
        }
        let from = (offset as usize).min(self.model.len());
        let to = ((offset + length) as usize).min(self.model.len());
        assert_eq!(done, to - from, "read {offset} {length}: {done} bytes");
        if let Some(at) = (0..done).find(|&at| data[at] != self.model[from + at]) {
            panic!("read {offset} {length}: byte {} differs", from + at);
        }
        format!("read {offset} {length}")
    }

    /// Reads or writes by direct I/O: whole blocks in aligned memory.
    fn direct(&mut self, random: &mut Rng) -> String {
        let (offset, length) = self.range(random);
        let (offset, length) = (offset / 4096 * 4096, length.div_ceil(4096) * 4096);
        let mut memory = vec![0_u8; length as usize + 4096];
        let start = memory.as_ptr().align_offset(4096);
        let block = &mut memory[start..start + length as usize];
        if random.bool() {
            random.fill(block);
            self.direct.write_all_at(block, offset).unwrap();
            let data = block.to_vec();
            self.put(offset, &data);
            return format!("direct write {offset} {length}");
        }
        let read = self.direct.read_at(block, offset).unwrap();
        let from = (offset as usize).min(self.model.len());
        assert!(block[..read] == self.model[from..from + read], "direct read {offset} {length}: differs");
        format!("direct read {offset} {length}")
    }

    fn truncate(&mut self, random: &mut Rng) -> String {
        let size = random.u64(0..SIZE);
        self.file.set_len(size).unwrap();
        self.model.resize(size as usize, 0);
        format!("truncate {size}")
    }

    fn allocate(&mut self, random: &mut Rng) -> String {
        let (offset, length) = self.range(random);
        let keep = random.bool();
        let keeps = if keep { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
        let name = match random.u8(0..3) {
            0 => {
                fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, length)
                    .unwrap();
                self.zero(offset, length);
                "punch"
            }
            1 => {
                fallocate(&self.file, FallocateFlags::ZERO_RANGE | keeps, offset, length).unwrap();
                if !keep {
                    self.grow(offset + length);
                }
                self.zero(offset, length);
                "zero"
            }
            _ => {
                fallocate(&self.file, keeps, offset, length).unwrap();
                if !keep {
                    self.grow(offset + length);
                }
                "allocate"
            }
        };
        format!("{name} {offset} {length} {keep}")
    }

    /// Reads and changes the file through a mapping.
    fn map(&mut self, random: &mut Rng) -> String {
        if self.model.is_empty() {
            return "map nothing".to_owned();
        }
        let length = self.model.len();
        // SAFETY: a new mapping of the file, which no thread truncates while it exists.
        let memory = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, &self.file, 0).unwrap()
        };
        // SAFETY: the mapping's own length, and the only reference to it.
        let bytes = unsafe { std::slice::from_raw_parts_mut(memory.cast::<u8>(), length) };
        let start = random.usize(0..length);
        let end = (start + random.usize(1..=50_000)).min(length);
        assert!(bytes[start..end] == self.model[start..end], "map {start} {end}: differs");
        random.fill(&mut bytes[start..end]);
        self.model[start..end].copy_from_slice(&bytes[start..end]);
        // SAFETY: the mapping from above, which is not used again.
        unsafe {
            if random.bool() {
                msync(memory, length, MsyncFlags::SYNC).unwrap();
            }
            munmap(memory, length).unwrap();
        }
        format!("map {start} {end}")
    }

    fn settle(&mut self, random: &mut Rng) -> &'static str {
        match random.u8(0..4) {
            0 => {
                self.file.sync_all().unwrap();
                "fsync"
            }
            1 => {
                self.file.sync_data().unwrap();
                fadvise(&self.file, 0, None, Advice::DontNeed).unwrap();
                "forget pages"
            }
            2 => {
                self.file = open(&self.path, OFlags::empty());
                "open anew"
            }
            _ => {
                let size = self.file.metadata().unwrap().len();
                assert_eq!(size, self.model.len() as u64, "size");
                "stat"
            }
        }
    }

    fn verify(&self) {
        let content = std::fs::read(&self.path).unwrap();
        assert_eq!(content.len(), self.model.len(), "length");
        if let Some(at) = (0..content.len()).find(|&at| content[at] != self.model[at]) {
            panic!("byte {at} is {:x}, not {:x}", content[at], self.model[at]);
        }
    }
}

/// Copies a range between the files with `copy_file_range`.
fn copy(random: &mut Rng, from: &Subject, to: &mut Subject) -> String {
    let (source, length) = from.range(random);
    let (target, _) = to.range(random);
    let target = if random.bool() { target / 4096 * 4096 + source % 4096 } else { target };
    let (mut at, mut there) = (source, target);
    let mut left = length.min(SIZE.saturating_sub(target)) as usize;
    while left > 0 {
        let copied =
            rustix::fs::copy_file_range(&from.file, Some(&mut at), &to.file, Some(&mut there), left).unwrap();
        if copied == 0 {
            break;
        }
        left -= copied;
    }
    let (start, end) = (source.min(from.model.len() as u64), at.min(from.model.len() as u64));
    if start < end {
        let data = from.model[start as usize..end as usize].to_vec();
        to.put(target, &data);
    }
    let wanted =
        (from.model.len() as u64).saturating_sub(source).min(length).min(SIZE.saturating_sub(target));
    assert_eq!(at - source, wanted, "copy {source} {target} {length}");
    format!("copy {source} to {target}, {length}")
}

fn run(options: &str) {
    let Some(_) = require(NEEDS) else { return };
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seconds = number("PAPILIO_FSX_SECONDS").unwrap_or(3);
    let seed = number("PAPILIO_FSX_SEED").unwrap_or_else(|| fastrand::u64(..));
    let mut random = Rng::with_seed(seed);
    let scratch = Scratch::new(512 << 20).unwrap();
    let image = make_image(&scratch, 512 << 20);
    let mount = Mount::new(&scratch, &image, options);
    let mut subjects = ["a", "b"].map(|name| Subject::new(mount.path().join(name)));
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut log = Log { seed, lines: Vec::new() };
    while Instant::now() < end {
        let which = random.usize(0..2);
        let subject = &mut subjects[which];
        let done = match random.u8(0..20) {
            0..=5 => subject.write(&mut random),
            6..=9 => subject.read(&mut random),
            10 => subject.truncate(&mut random),
            11..=12 => subject.allocate(&mut random),
            13 => subject.map(&mut random),
            14 => subject.direct(&mut random),
            15..=16 => {
                let [a, b] = &mut subjects;
                let (from, to) = if which == 0 { (a, b) } else { (b, a) };
                copy(&mut random, from, to)
            }
            _ => subject.settle(&mut random).to_owned(),
        };
        log.lines.push(format!("{which}: {done}"));
    }
    subjects.iter().for_each(Subject::verify);
    let models = subjects.map(|subject| (subject.path.file_name().unwrap().to_owned(), subject.model));
    mount.unmount();
    check(&image);
    let again = Mount::new(&scratch, &image, "ro");
    for (name, model) in models {
        assert!(std::fs::read(again.path().join(name)).unwrap() == model, "after mounting again");
    }
    again.unmount();
    log.lines.clear();
}

/// The steps of a run, printed if it fails.
struct Log {
    seed: u64,
    lines: Vec<String>,
}

impl Drop for Log {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let first = self.lines.len().saturating_sub(30);
            eprintln!("PAPILIO_FSX_SEED={}, {} steps, the last:", self.seed, self.lines.len());
            self.lines[first..].iter().for_each(|line| eprintln!("  {line}"));
        }
    }
}

#[test]
fn random_io() {
    run("");
}

#[test]
fn random_io_on_compressed_files() {
    run("compress=zstd");
}

#[test]
fn random_io_in_place() {
    run("nodatacow");
}

#[test]
fn random_io_without_writeback_cache() {
    run("nowriteback_cache");
}
