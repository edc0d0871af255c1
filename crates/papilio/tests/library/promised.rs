//! Space that a file has already: preallocated extents, and those of a NODATACOW file. Writes there
//! succeed on a full file system, however they come.

use crate::in_memory::{close_clean, formatted, open, open_with, writable};
use papilio::format::items::inode::InodeFlags;
use papilio::{Compression, CompressionChoice, ErrorKind, File, FileExtentKind, FileSystem, OpenOptions};
use papilio_device::MemoryDevice;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
/// The size of the promised range.
const PROMISED: u64 = 4 * MIB;

/// The ways in which a file system writes: without a cache, with one, and compressing.
fn ways() -> [OpenOptions; 3] {
    let zlib = CompressionChoice::new(Compression::Zlib);
    [writable(), writable().cache_bytes(8 << 20), writable().cache_bytes(8 << 20).compress_force(zlib)]
}

/// Fills the file system until a sector finds no space.
fn fill(fs: &FileSystem) {
    let file = fs.create_file("/fill").unwrap();
    let (mut at, mut step) = (0, 8 * MIB);
    while step >= 4096 {
        match file.allocate(at, step, false) {
            Ok(()) => at += step,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                step /= 2;
            }
        }
    }
    fs.sync().unwrap();
    let rest = fs.create_file("/rest").unwrap();
    let error = rest.write_all_at(&vec![1; 1 << 20], 0).and_then(|()| rest.sync_all()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
}

/// Bytes that tell their offset.
fn bytes(offset: u64, length: usize) -> Vec<u8> {
    (offset..offset + length as u64).map(|at| (at / 7 % 251) as u8 + 1).collect()
}

/// Writes ranges, and keeps what the file should hold.
struct Promised {
    file: File,
    content: Vec<u8>,
}

impl Promised {
    fn write(&mut self, offset: u64, length: usize) {
        let data = bytes(offset, length);
        let wrote = self.file.write_all_at(&data, offset);
        wrote.unwrap_or_else(|error| panic!("{length} bytes at {offset}: {error}"));
        let end = offset as usize + length;
        if self.content.len() < end {
            self.content.resize(end, 0);
        }
        self.content[offset as usize..end].copy_from_slice(&data);
    }

    fn check(&self, what: &str) {
        assert!(self.file.read_all().unwrap() == self.content, "{what}: other bytes");
    }
}

/// Writes into the promised range: growing, at odd offsets, after holes, over what was written.
fn write_all_ways(promised: &mut Promised) {
    promised.write(0, 98_304);
    promised.write(98_304, 7);
    promised.write(MIB + 77, 5000);
    promised.write(3 * MIB, 131_072);
    promised.file.sync_all().unwrap();
    promised.write(3 * MIB + 131_072, 4096);
    promised.write(2 * MIB, 65_536);
    promised.file.sync_data().unwrap();
    promised.write(PROMISED - 1000, 1000);
    promised.check("before the sync");
    promised.file.sync_all().unwrap();
}

fn reopened(device: &Arc<MemoryDevice>, name: &str) -> Vec<u8> {
    let fs = open(device);
    fs.open_file(name).unwrap().read_all().unwrap()
}

#[test]
fn growing_writes_find_their_preallocated_space() {
    for (way, options) in ways().iter().enumerate() {
        for flags in [InodeFlags::empty(), InodeFlags::NODATACOW] {
            for direct in [false, true] {
                let what = format!("way {way}, {flags:?}, direct {direct}");
                let device = formatted(256 << 20);
                let fs = open_with(&device, options);
                let mut file = fs.create_file("/file").unwrap();
                file.set_direct(direct);
                file.inode().set_flags(flags).unwrap();
                file.allocate(0, PROMISED, true).unwrap();
                fill(&fs);
                let mut promised = Promised { file, content: Vec::new() };
                write_all_ways(&mut promised);
                promised.check(&what);
                let Promised { file, content } = promised;
                let extents = file.extents(0, 100).unwrap();
                assert!(
                    extents.iter().all(|extent| extent.compression == Compression::None),
                    "{what}: {extents:?}"
                );
                drop(file);
                close_clean(fs, &device);
                assert!(reopened(&device, "/file") == content, "{what}: other bytes after a remount");
            }
        }
    }
}

/// Pages that share the promised range with pages that have reserved space.
#[test]
fn promised_and_reserved_pages_are_written_back_together() {
    for options in ways() {
        let device = formatted(256 << 20);
        let fs = open_with(&device, &options);
        let file = fs.create_file("/file").unwrap();
        for part in [1, 3] {
            file.allocate(part * 64 * 1024, 64 * 1024, true).unwrap();
        }
        let mut promised = Promised { file, content: Vec::new() };
        promised.write(0, 60_000);
        promised.write(2 * 64 * 1024, 60_000);
        fill(&fs);
        promised.write(64 * 1024 + 5, 50_000);
        promised.write(3 * 64 * 1024, 5);
        promised.check("dirty");
        promised.file.sync_all().unwrap();
        promised.check("written back");
        let Promised { file, content } = promised;
        drop(file);
        close_clean(fs, &device);
        assert!(reopened(&device, "/file") == content);
    }
}

/// A snapshot shares the preallocated extents: the promise is then the snapshot's, too, as in the
/// kernel.
#[test]
fn shared_preallocated_space_is_not_overwritten() {
    for options in ways() {
        let device = formatted(256 << 20);
        let fs = open_with(&device, &options);
        fs.create_subvolume("/a").unwrap();
        let mut promised = Promised { file: fs.create_file("/a/file").unwrap(), content: Vec::new() };
        promised.file.allocate(0, PROMISED, true).unwrap();
        promised.write(0, 9000);
        let source = fs.root().unwrap().lookup(b"a").unwrap().unwrap().tree();
        fs.root().unwrap().create_snapshot(source, b"b", false).unwrap();
        promised.write(5000, 9000);
        promised.write(MIB, 9000);
        promised.file.sync_all().unwrap();
        promised.check("after the snapshot");
        assert!(fs.open_file("/b/file").unwrap().read_all().unwrap() == bytes(0, 9000));
        drop(promised);
        close_clean(fs, &device);
        assert!(reopened(&device, "/b/file") == bytes(0, 9000));
    }
}

/// An operation that frees space, or overwrites a NODATACOW file, needs none.
#[test]
fn a_full_file_system_lets_space_be_freed() {
    for options in &ways()[..2] {
        let device = formatted(256 << 20);
        let fs = open_with(&device, options);
        let file = fs.create_file("/file").unwrap();
        file.inode().set_flags(InodeFlags::NODATACOW).unwrap();
        let mut promised = Promised { file, content: Vec::new() };
        promised.write(0, 2 << 20);
        promised.file.sync_all().unwrap();
        fill(&fs);
        promised.file.punch_hole(1000, 300_000).unwrap();
        promised.content[1000..301_000].fill(0);
        promised.check("punched");
        promised.file.zero_range(MIB + 10, 5000, true).unwrap();
        promised.content[MIB as usize + 10..MIB as usize + 5010].fill(0);
        promised.write(MIB + 100_000, 777);
        promised.file.set_len(MIB + 500_000 + 3).unwrap();
        promised.content.truncate(MIB as usize + 500_003);
        promised.check("truncated");
        promised.file.sync_all().unwrap();
        fs.remove_file("/fill").unwrap();
        fs.sync().unwrap();
        promised.write(2 * MIB, 100_000);
        promised.file.sync_all().unwrap();
        promised.check("at the end");
        let Promised { file, content } = promised;
        drop(file);
        close_clean(fs, &device);
        assert!(reopened(&device, "/file") == content);
    }
}

/// Zeroing a range of a full file system changes nothing where space is missing, and needs none
/// where all of it is preallocated.
#[test]
fn zeroing_a_range_needs_its_space_first() {
    for options in ways() {
        let device = formatted(256 << 20);
        let fs = open_with(&device, &options);
        let mut promised = Promised { file: fs.create_file("/file").unwrap(), content: Vec::new() };
        promised.write(0, 3 << 20);
        promised.file.sync_all().unwrap();
        let kept = fs.create_file("/kept").unwrap();
        kept.allocate(0, 4 * MIB, false).unwrap();
        kept.sync_all().unwrap();
        fill(&fs);
        let refused = promised.file.zero_range(100, 2 * MIB, true).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace);
        promised.check("refused");
        kept.zero_range(4096, 3 * MIB, false).unwrap();
        kept.write_all_at(&bytes(0, MIB as usize), 4096).unwrap();
        kept.sync_all().unwrap();
        fs.remove_file("/fill").unwrap();
        fs.sync().unwrap();
        promised.file.zero_range(100, 2 * MIB, true).unwrap();
        promised.content[100..100 + 2 * MIB as usize].fill(0);
        promised.check("zeroed");
        drop(kept);
        let Promised { file, content } = promised;
        file.sync_all().unwrap();
        drop(file);
        close_clean(fs, &device);
        assert!(reopened(&device, "/file") == content);
    }
}

/// A promise that was made to a write holds although other writers fill the file system.
#[test]
fn promised_writes_find_space_after_others_filled_it() {
    let device = formatted(256 << 20);
    let fs = open_with(&device, &writable().cache_bytes(8 << 20));
    let file = fs.create_file("/file").unwrap();
    let mut promise = file.promise_write(Some(0), MIB).unwrap();
    assert_eq!(promise.bytes(), MIB);
    fill(&fs);
    assert_eq!(file.promise_write(Some(MIB), MIB).unwrap_err().kind(), ErrorKind::NoSpace);
    for at in (0..MIB).step_by(128 << 10) {
        let part = promise.split(128 << 10);
        file.write_back_promised(&bytes(at, 128 << 10), at, part).1.unwrap();
    }
    assert!(promise.is_empty());
    file.sync_all().unwrap();
    drop(file);
    close_clean(fs, &device);
    assert!(reopened(&device, "/file") == bytes(0, MIB as usize));
}

/// A small write to preallocated space takes that, not the tree.
#[test]
fn small_writes_fill_preallocated_space() {
    for options in ways() {
        let device = formatted(256 << 20);
        let fs = open_with(&device, &options);
        for allocated in [4096, 3 * 4096] {
            let name = format!("/{allocated}");
            let file = fs.create_file(&name).unwrap();
            file.allocate(0, allocated, true).unwrap();
            file.write_all_at(&[5; 100], 0).unwrap();
            file.sync_all().unwrap();
            let extents = file.extents(0, 9).unwrap();
            assert!(extents.iter().all(|extent| extent.kind != FileExtentKind::Inline), "{extents:?}");
            assert!(file.read_all().unwrap() == [5; 100]);
        }
        close_clean(fs, &device);
    }
}

/// The state of a sector, for the writers of a full file system.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sector {
    /// A write may find no space.
    Unsure,
    /// Preallocated, and not written since: a write must succeed.
    Promised,
}

/// A file under random operations.
struct Random {
    random: fastrand::Rng,
    nocow: bool,
    file: File,
    content: Vec<u8>,
    sectors: Vec<Sector>,
    kept: u64,
}

impl Random {
    const SECTOR: u64 = 4096;
    /// Sectors of the file at most.
    const SECTORS: u64 = 256;

    /// Returns a random range of at most two to the power of `bits` bytes.
    fn range(&mut self, bits: u32) -> (u64, u64) {
        let offset = self.random.u64(0..Self::SECTORS * Self::SECTOR - 1);
        let most = (Self::SECTORS * Self::SECTOR - offset).min(1 << self.random.u32(1..=bits));
        let (offset, length) = (offset, self.random.u64(1..=most));
        match self.random.u8(0..3) {
            0 => (offset, length),
            _ => {
                let start = offset - offset % Self::SECTOR;
                (start, length.next_multiple_of(Self::SECTOR).min(Self::SECTORS * Self::SECTOR - start))
            }
        }
    }

    fn of(offset: u64, length: u64) -> std::ops::Range<usize> {
        (offset / Self::SECTOR) as usize..(offset + length).div_ceil(Self::SECTOR) as usize
    }

    fn write(&mut self, step: u32) {
        let (offset, length) = self.range(15);
        let data = vec![step as u8 | 1; length as usize];
        let sectors = Self::of(offset, length);
        let promised = self.sectors[sectors.clone()].iter().all(|sector| *sector == Sector::Promised);
        match self.file.write_all_at(&data, offset) {
            Ok(()) => self.kept += u64::from(promised),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "step {step}: {error}");
                assert!(!promised, "step {step}: {length} bytes at {offset} were promised: {error}");
                // Some of the data may be there.
                self.content = self.file.read_all().unwrap();
                self.sectors[sectors].fill(Sector::Unsure);
                return;
            }
        }
        let end = (offset + length) as usize;
        if self.content.len() < end {
            self.content.resize(end, 0);
        }
        self.content[offset as usize..end].copy_from_slice(&data);
        if !self.nocow {
            self.sectors[sectors].fill(Sector::Unsure);
        }
    }

    fn allocate(&mut self) {
        let ((offset, length), keep) = (self.range(20), self.random.bool());
        match self.file.allocate(offset, length, keep) {
            Ok(()) => {
                let holes = Self::of(offset, length);
                // Sectors that hold data already stay as they are.
                for sector in holes {
                    let at = sector as u64 * Self::SECTOR;
                    if self.nocow || self.is_unwritten(at) {
                        self.sectors[sector] = Sector::Promised;
                    }
                }
                if !keep && self.content.len() < (offset + length) as usize {
                    self.content.resize((offset + length) as usize, 0);
                }
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                self.content = self.file.read_all().unwrap();
            }
        }
    }

    fn is_unwritten(&self, at: u64) -> bool {
        let extents = self.file.extents(at, 1).unwrap();
        extents.iter().all(|extent| extent.start.0 <= at && extent.kind == FileExtentKind::Preallocated)
    }

    fn step(&mut self, step: u32) {
        match self.random.u8(0..20) {
            0..10 => self.write(step),
            10..14 => self.allocate(),
            14 => {
                let (offset, length) = self.range(17);
                let size = self.content.len() as u64;
                match self.file.punch_hole(offset, length) {
                    Ok(()) if offset < size => {
                        self.content[offset as usize..(offset + length).min(size) as usize].fill(0);
                    }
                    Ok(()) => {}
                    Err(_) => self.content = self.file.read_all().unwrap(),
                }
                self.sectors[Self::of(offset, length)].fill(Sector::Unsure);
            }
            15 => {
                let size = self.random.usize(self.content.len() / 8 * 7..=self.content.len());
                match self.file.set_len(size as u64) {
                    Ok(()) => self.content.truncate(size),
                    Err(_) => self.content = self.file.read_all().unwrap(),
                }
                self.sectors[size.div_ceil(4096)..].fill(Sector::Unsure);
            }
            16 => self.file.sync_all().unwrap(),
            17 => self.file.sync_data().unwrap(),
            18 => self.file.drop_cache().unwrap(),
            _ => self.file.inode().file_system().sync().unwrap(),
        }
        if step.is_multiple_of(16) {
            assert!(self.file.read_all().unwrap() == self.content, "step {step}: other bytes");
        }
    }
}

/// Random operations on a full file system. `PAPILIO_SEED` and `PAPILIO_OPERATIONS` choose others.
#[test]
fn promises_hold_among_random_operations() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("PAPILIO_SEED").unwrap_or(1);
    let steps = number("PAPILIO_OPERATIONS").unwrap_or(400) as u32;
    for (way, options) in ways().iter().enumerate() {
        for nocow in [false, true] {
            let device = formatted(256 << 20);
            let fs = open_with(&device, options);
            let file = fs.create_file("/file").unwrap();
            if nocow {
                file.inode().set_flags(InodeFlags::NODATACOW).unwrap();
            }
            // In small extents: a part of one frees nothing.
            for at in (0..Random::SECTORS * Random::SECTOR).step_by(16 << 10) {
                file.allocate(at, 16 << 10, true).unwrap();
            }
            fill(&fs);
            let mut run = Random {
                random: fastrand::Rng::with_seed(seed * 100 + way as u64 * 10 + u64::from(nocow)),
                nocow,
                file,
                content: Vec::new(),
                sectors: vec![Sector::Promised; Random::SECTORS as usize],
                kept: 0,
            };
            (1..=steps).for_each(|step| run.step(step));
            assert!(run.kept > 30, "way {way}, {nocow}: {} promises were called in", run.kept);
            let content = run.content.clone();
            drop(run);
            close_clean(fs, &device);
            assert!(reopened(&device, "/file") == content, "way {way}, {nocow}: after a remount");
        }
    }
}
