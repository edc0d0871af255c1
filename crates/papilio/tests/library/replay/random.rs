//! Random histories with random fsyncs: the power fails after some of the fsyncs, and both sides
//! replay the log on the disk.
//!
//! Each seed is one history. `PAPILIO_REPLAY_ROUNDS` is their number, `PAPILIO_REPLAY_SEED` the
//! first.

use super::judge::judge_all;
use super::power_cut::{Machine, PowerCut};
use super::steps::bytes;
use fastrand::Rng;
use papilio_oracle::{Need, require};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, XattrFlags};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Presets; histories take one after the other.
const SHAPES: [&str; 7] = ["default", "without-no-holes", "node-4k", "zstd", "oldest", "papilio", "quota"];
/// Power losses in one history.
const CUTS: usize = 7;
/// Most operations in one history.
const OPERATIONS: usize = 1500;
/// Largest offset of a write, in bytes.
const FILE_BYTES: u64 = 200_000;

/// Reads a number from an environment variable.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

/// A running history. Operations that fail in the current state are skipped.
struct History<'m> {
    machine: &'m Machine,
    /// The numbers of operations to choose from: all, those on names, or those on data.
    operations: std::ops::Range<u8>,
    random: Rng,
}

impl History<'_> {
    /// Returns a path that may or may not exist.
    fn path(&mut self) -> PathBuf {
        let mut path = self.machine.root().to_owned();
        for _ in 0..self.random.usize(..3) {
            path.push(format!("d{}", self.random.u8(..3)));
        }
        path.push(format!("{}{}", self.random.choice(["f", "f", "f", "d"]).unwrap(), self.random.u8(..5)));
        path
    }

    fn file(&mut self) -> io::Result<File> {
        let path = self.path();
        File::options().read(true).write(true).open(path)
    }

    fn content(&mut self, most: usize) -> Vec<u8> {
        let length = self.random.usize(1..most);
        let seed = self.random.u64(..);
        // Half of it can be compressed.
        if self.random.bool() { vec![seed as u8; length] } else { bytes(seed, length) }
    }

    fn write(&mut self, path: &Path) -> io::Result<()> {
        let most = *self.random.choice(&[300, 3000, 30_000]).unwrap();
        let content = self.content(most);
        let file = File::options().create(true).truncate(false).read(true).write(true).open(path)?;
        let size = file.metadata()?.len();
        let offset = if self.random.bool() { size } else { self.random.u64(..FILE_BYTES) };
        let offset = offset.min(FILE_BYTES);
        file.write_all_at(&content, if size == 0 && self.random.bool() { 0 } else { offset })
    }

    fn allocate(&mut self) -> io::Result<()> {
        let flags = *self
            .random
            .choice(&[
                FallocateFlags::empty(),
                FallocateFlags::KEEP_SIZE,
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                FallocateFlags::ZERO_RANGE,
                FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
            ])
            .unwrap();
        let (offset, length) = (self.random.u64(..FILE_BYTES), self.random.u64(1..60_000));
        Ok(rustix::fs::fallocate(self.file()?, flags, offset, length)?)
    }

    fn clone_range(&mut self) -> io::Result<()> {
        let (from, to) = (self.file()?, self.file()?);
        let [source, target] = [0; 2].map(|_: i32| self.random.u64(..20) * 4096);
        let length = self.random.u64(1..12) * 4096;
        papilio_oracle::sys::clone_range(&from, source, length, &to, target)
    }

    fn rename(&mut self) -> io::Result<()> {
        let (from, to) = (self.path(), self.path());
        let flags = *self
            .random
            .choice(&[
                RenameFlags::empty(),
                RenameFlags::empty(),
                RenameFlags::EXCHANGE,
                RenameFlags::WHITEOUT,
            ])
            .unwrap();
        Ok(rustix::fs::renameat_with(CWD, &from, CWD, &to, flags)?)
    }

    fn tmpfile(&mut self) -> io::Result<()> {
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        let file = File::from(rustix::fs::open(self.machine.root(), flags, Mode::from_raw_mode(0o600))?);
        file.write_all_at(&self.content(9000), 0)?;
        let proc = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let to = self.path();
        rustix::fs::linkat(CWD, Path::new(&proc), CWD, &to, AtFlags::SYMLINK_FOLLOW)?;
        file.sync_all()
    }

    /// Makes or deletes a subvolume, or makes a snapshot, so that trees share blocks.
    fn subvolume(&mut self) -> io::Result<()> {
        let path = self.path();
        match self.random.u8(..4) {
            0 => papilio_oracle::sys::create_subvolume(&path),
            1 => papilio_oracle::sys::delete_subvolume(&path),
            _ => papilio_oracle::sys::create_snapshot(&self.path(), &path, false),
        }
    }

    fn attribute(&mut self) -> io::Result<()> {
        let (path, name) = (self.path(), format!("user.{}", self.random.u8(..4)));
        if self.random.bool() {
            let value = self.content(400);
            return Ok(rustix::fs::lsetxattr(&path, name, &value, XattrFlags::empty())?);
        }
        Ok(rustix::fs::lremovexattr(&path, name)?)
    }

    fn step(&mut self) -> io::Result<()> {
        let path = self.path();
        match self.random.u8(self.operations.clone()) {
            0..8 => self.write(&path),
            8 | 9 => self.file()?.set_len(self.random.u64(..FILE_BYTES)),
            10..13 => self.allocate(),
            13 | 14 => self.clone_range(),
            15..19 => self.rename(),
            19 | 20 => std::fs::hard_link(&path, self.path()),
            21..24 => std::fs::remove_file(&path),
            24 | 25 => std::fs::create_dir(&path),
            26 => std::fs::remove_dir(&path),
            27 => std::os::unix::fs::symlink("some/where", &path),
            28 => self.tmpfile(),
            29 => self.subvolume(),
            30 => Ok(rustix::fs::chmodat(CWD, &path, Mode::from_raw_mode(0o600 + 8), AtFlags::empty())?),
            _ => self.attribute(),
        }
    }

    /// Syncs a random path; returns whether it exists.
    fn sync(&mut self) -> bool {
        let path = if self.random.u8(..8) == 0 { self.machine.root().to_owned() } else { self.path() };
        // Opening a symbolic link or a device would sync something else.
        if !path.symlink_metadata().is_ok_and(|found| found.is_file() || found.is_dir()) {
            return false;
        }
        let file = File::open(path).expect("the file exists");
        let synced = if self.random.bool() { file.sync_all() } else { file.sync_data() };
        synced.expect("an fsync succeeds");
        true
    }
}

/// Runs one history and returns its power losses that leave a log.
fn cuts(machine: &Machine, seed: u64, shape: &str) -> Vec<PowerCut> {
    let operations = [0..33, 6..33, 0..19][(seed / SHAPES.len() as u64 % 3) as usize].clone();
    let mut history = History { machine, operations, random: Rng::with_seed(seed) };
    let mut cuts = Vec::new();
    for number in 0..OPERATIONS {
        if cuts.len() == CUTS {
            break;
        }
        match history.random.u8(..24) {
            0 => machine.commit(),
            1..5 => {
                if history.sync() && history.random.u8(..3) == 0 {
                    let cut = machine.cut(&format!("{shape}, seed {seed}, after operation {number}"));
                    if cut.has_log() {
                        cuts.push(cut);
                    } else {
                        cut.remove();
                    }
                }
            }
            // A failed operation changes nothing.
            _ => drop(history.step()),
        }
    }
    cuts
}

#[test]
fn random_histories_replay_as_the_kernel_would() {
    if require(Need::KERNEL_MOUNT).is_none() || require(&[Need::Command("btrfs")]).is_none() {
        return;
    }
    let first = number("PAPILIO_REPLAY_SEED", 1);
    for seed in first..first + number("PAPILIO_REPLAY_ROUNDS", 3) {
        let shape = SHAPES[(seed % SHAPES.len() as u64) as usize];
        let machine = Machine::new(shape);
        let cuts = cuts(&machine, seed, shape);
        println!("{shape}, seed {seed}: {} logs", cuts.len());
        assert!(cuts.len() > CUTS / 2, "{shape}, seed {seed}: {} logs", cuts.len());
        judge_all(&machine.stop(), cuts);
    }
}
