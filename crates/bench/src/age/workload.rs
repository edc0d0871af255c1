//! The work that ages a file system.
//!
//! Each function works in units of its workload and notes them with [`Ager::worked`]. An operation
//! that fails ends the run, unless it may: a device that is full is the aim of [`fill`].

use super::kind::Workload;
use super::point::Ager;
use papilio::{ErrorKind, FileSystem, NewInode, NewKind};
use std::time::{Duration, Instant};

const KIB: u64 = 1 << 10;
const PIECE: u64 = 1 << 20;

/// Runs a workload.
pub(super) fn run(ager: &mut Ager, workload: Workload, amount: u64) -> anyhow::Result<()> {
    match workload {
        Workload::Churn => Churn::new(ager)?.run(ager, amount),
        Workload::Fill => fill(ager, amount),
        Workload::Snapshots => snapshots(ager, amount),
        Workload::Extents => extents(ager, amount),
        Workload::Names => names(ager, amount),
        Workload::Stream => stream(ager, amount),
    }
}

/// Returns bytes that do not compress.
fn noise(ager: &mut Ager, length: u64) -> Vec<u8> {
    let mut bytes = vec![0; length as usize];
    ager.random.fill(&mut bytes);
    bytes
}

/// Random operations on files of up to 1 MiB in 64 directories.
struct Churn {
    data: Vec<u8>,
    next: u64,
    /// Bytes in use above which files are deleted.
    limit: u64,
    /// Numbers of the first and the next snapshot.
    snapshots: (u64, u64),
    full: bool,
}

impl Churn {
    const FILE: u64 = 1 << 20;
    const DIRECTORIES: u64 = 64;
    /// Snapshots that exist at a time. Each keeps old extents.
    const SNAPSHOTS: u64 = 4;
    /// Files below which snapshots are deleted before files.
    const FILES: usize = 20_000;

    fn new(ager: &mut Ager) -> anyhow::Result<Self> {
        ager.fs.create_subvolume("/live")?;
        for number in 0..Self::DIRECTORIES {
            ager.fs.create_dir(format!("/live/{number}"))?;
        }
        let data = noise(ager, 128 * KIB);
        let limit = ager.fs.usage()?.device_size() / 10 * 6;
        Ok(Self { data, next: 0, limit, snapshots: (0, 0), full: false })
    }

    fn run(mut self, ager: &mut Ager, amount: u64) -> anyhow::Result<()> {
        for number in 1..=amount {
            if number % 1000 == 0 {
                if ager.is_over() {
                    break;
                }
                self.full = ager.fs.usage()?.used() > self.limit;
                if self.full && ager.files.len() < Self::FILES {
                    self.delete_snapshot(ager)?;
                }
            }
            if number % 10_000 == 0 {
                ager.fs.sync()?;
            }
            if number % 100_000 == 0 {
                ager.fs.snapshot("/live", format!("/snapshot {}", self.snapshots.1), true)?;
                self.snapshots.1 += 1;
                if self.snapshots.1 - self.snapshots.0 > Self::SNAPSHOTS {
                    self.delete_snapshot(ager)?;
                }
            }
            match self.step(ager) {
                // Space of deleted files comes back with a commit.
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    self.full = true;
                    ager.fs.sync()?;
                }
                result => result?,
            }
            ager.worked(1)?;
        }
        Ok(())
    }

    /// Deletes the oldest snapshot, if there is one.
    fn delete_snapshot(&mut self, ager: &mut Ager) -> anyhow::Result<()> {
        if self.snapshots.0 < self.snapshots.1 {
            ager.fs.delete_subvolume(format!("/snapshot {}", self.snapshots.0))?;
            self.snapshots.0 += 1;
        }
        Ok(())
    }

    fn new_path(&mut self, ager: &mut Ager) -> String {
        self.next += 1;
        format!("/live/{}/{}", ager.random.u64(..Self::DIRECTORIES), self.next)
    }

    fn step(&mut self, ager: &mut Ager) -> papilio::Result<()> {
        let choice = ager.random.u8(..100);
        if ager.files.len() < 100 || (choice < 20 && !self.full) {
            let path = self.new_path(ager);
            let file = ager.fs.create_file(&path)?;
            ager.files.push(path);
            let length = ager.random.usize(..32 << 10);
            return file.write_all_at(&self.data[..length], 0);
        }
        let index = ager.random.usize(..ager.files.len());
        match choice {
            // Of files that are written again and again, some are removed at any time.
            0..18 => self.remove(ager, index),
            18..30 if self.full => self.remove(ager, index),
            18..45 => {
                let to = self.new_path(ager);
                ager.fs.rename(&ager.files[index], &to)?;
                ager.files[index] = to;
                Ok(())
            }
            45..85 => {
                let file = ager.fs.open_file(&ager.files[index])?;
                let (offset, length) =
                    (ager.random.u64(..=file.size()?.min(Self::FILE)), ager.random.usize(..16 << 10));
                file.write_all_at(&self.data[length..2 * length], offset)
            }
            85..90 => {
                let file = ager.fs.open_file(&ager.files[index])?;
                let size = ager.random.u64(..=file.size()?);
                file.set_len(size)
            }
            90..99 => {
                let file = ager.fs.open_file(&ager.files[index])?;
                let offset = ager.random.u64(..=file.size()?);
                file.read_at(&mut vec![0; 16 << 10], offset).map(drop)
            }
            _ => ager.fs.open_file(&ager.files[index])?.sync_all(),
        }
    }

    fn remove(&mut self, ager: &mut Ager, index: usize) -> papilio::Result<()> {
        ager.fs.remove_file(ager.files.swap_remove(index))
    }
}

/// Fills the device until no space is left, and deletes all files but one in 50.
fn fill(ager: &mut Ager, rounds: u64) -> anyhow::Result<()> {
    let data = noise(ager, 4 * PIECE);
    let mut next = 0_u64;
    for round in 0..rounds {
        if ager.is_over() {
            break;
        }
        let mut refused = 0;
        // At last, only small files fit.
        while refused < 20 {
            let most = [4 * PIECE, 256 * KIB, 8 * KIB][(refused / 7).min(2)];
            let length = ager.random.u64(..most) as usize;
            let path = format!("/{next}");
            next += 1;
            let written = ager.fs.create_file(&path).and_then(|file| {
                ager.files.push(path.clone());
                file.write_all_at(&data[..length], 0)
            });
            match written {
                Err(error) if error.kind() == ErrorKind::NoSpace => refused += 1,
                written => written?,
            }
        }
        ager.fs.sync()?;
        let usage = ager.fs.usage()?;
        let statfs = usage.statfs();
        anyhow::ensure!(
            statfs.available < statfs.total / 50,
            "round {round}: no space, but {} of {} bytes are available",
            statfs.available,
            statfs.total
        );
        let mut kept = Vec::new();
        for path in std::mem::take(&mut ager.files) {
            match ager.random.u8(..50) {
                0 => kept.push(path),
                _ => ager.fs.remove_file(&path)?,
            }
        }
        // Those that were kept long are replaced.
        for path in kept.drain(..kept.len().saturating_sub(100)) {
            ager.fs.remove_file(&path)?;
        }
        ager.files = kept;
        ager.fs.sync()?;
        ager.worked(1)?;
    }
    Ok(())
}

/// Makes snapshots of 1000 files, of which some change in between, then deletes the snapshots.
fn snapshots(ager: &mut Ager, count: u64) -> anyhow::Result<()> {
    let data = noise(ager, 64 * KIB);
    ager.fs.create_subvolume("/live")?;
    ager.fs.create_dir("/all")?;
    for number in 0..1000 {
        let path = format!("/live/{number}");
        ager.fs.create_file(&path)?.write_all_at(&data[..number * 16], 0)?;
        ager.files.push(path);
    }
    let mut made = 0;
    for number in 0..count {
        for _ in 0..3 {
            let path = &ager.files[ager.random.usize(..ager.files.len())];
            let at = ager.random.usize(..32 << 10);
            ager.fs.open_file(path)?.write_all_at(&data[at..at + 100], ager.random.u64(..16 * KIB))?;
        }
        ager.fs.snapshot("/live", format!("/all/{number}"), true)?;
        ager.worked(1)?;
        made += 1;
        if ager.is_over() {
            break;
        }
    }
    ager.fs.sync()?;
    for number in 0..made {
        ager.fs.delete_subvolume(format!("/all/{number}"))?;
        ager.worked(1)?;
    }
    Ok(ager.fs.sync()?)
}

/// Makes extents of one sector each in one file, by clones of sectors of another one.
fn extents(ager: &mut Ager, count: u64) -> anyhow::Result<()> {
    const SECTOR: u64 = 4 * KIB;
    const SOURCES: u64 = 4096;
    let data = noise(ager, SOURCES * SECTOR);
    let source = ager.fs.create_file("/source")?;
    source.write_all_at(&data, 0)?;
    source.sync_all()?;
    let file = ager.fs.create_file("/many extents")?;
    let mut made = 0;
    while made < count && !(made % 1000 == 999 && ager.is_over()) {
        let number = made;
        // Not the sector that follows the last one, so that the extents stay apart.
        let from = number * 7 % SOURCES * SECTOR;
        file.clone_range(&source, from, SECTOR, number * SECTOR)?;
        made += 1;
        ager.worked(1)?;
    }
    file.sync_all()?;
    let mut found = vec![0; SECTOR as usize];
    for _ in 0..10_000 {
        let number = ager.random.u64(..made);
        file.read_exact_at(&mut found, number * SECTOR)?;
        let from = (number * 7 % SOURCES * SECTOR) as usize;
        anyhow::ensure!(found == data[from..][..SECTOR as usize], "extent {number} has other bytes");
    }
    Ok(())
}

/// Makes names in one directory, looks some up, and removes every other one.
fn names(ager: &mut Ager, count: u64) -> anyhow::Result<()> {
    let directory = ager.fs.create_dir("/d")?;
    let new = NewInode::new(NewKind::Regular, 0o644);
    let mut made = 0;
    while made < count && !(made % 1000 == 999 && ager.is_over()) {
        directory.create(format!("file {made}").as_bytes(), &new)?;
        made += 1;
        ager.worked(1)?;
    }
    ager.fs.sync()?;
    let began = Instant::now();
    for _ in 0..100_000 {
        let name = format!("file {}", ager.random.u64(..made));
        anyhow::ensure!(directory.lookup(name.as_bytes())?.is_some(), "{name} is missing");
    }
    let each = began.elapsed() / 100_000;
    let began = Instant::now();
    let listed = ager.fs.read_dir("/d")?.count() as u64;
    anyhow::ensure!(listed == made, "{listed} of {made} names are listed");
    crate::measure::print_line(format_args!("lookup {each:?}, list {:?}", began.elapsed()))?;
    for number in (0..made).step_by(2) {
        directory.remove_file(format!("file {number}").as_bytes())?;
        ager.worked(1)?;
    }
    Ok(ager.fs.sync()?)
}

/// Writes a file of half of the device from start to end, again and again.
fn stream(ager: &mut Ager, seconds: u64) -> anyhow::Result<()> {
    let data = noise(ager, 8 * PIECE);
    let size = ager.fs.usage()?.device_size() / 2;
    let file = ager.fs.create_file("/stream")?;
    ager.files.push("/stream".to_owned());
    let began = Instant::now();
    let (mut written, mut offset, mut told) = (0_u64, 0, 0);
    while told < seconds && !ager.is_over() {
        file.write_all_at(&data, offset)?;
        written += data.len() as u64;
        offset = if offset + 2 * data.len() as u64 > size { 0 } else { offset + data.len() as u64 };
        let now = began.elapsed().as_secs().min(seconds);
        if now > told {
            ager.worked(now - told)?;
            told = now;
        }
    }
    rate(&ager.fs, written, began)
}

fn rate(fs: &FileSystem, written: u64, began: Instant) -> anyhow::Result<()> {
    fs.sync()?;
    let took: Duration = began.elapsed();
    let each = written as f64 / took.as_secs_f64() / 1e6;
    crate::measure::print_line(format_args!("{written} bytes in {took:?}: {each:.0} MB/s"))
}
