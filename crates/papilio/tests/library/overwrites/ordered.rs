//! Ordered extents: writes of whole sectors reach the trees only with a flush. Until then reads
//! find them in memory, a crash leaves the file as it was, and any other change of the file flushes
//! first.

use super::support::{SECTOR, extents_of, scatter, stamp, stamped};
use crate::in_memory::{
    assert_clean, close_clean, crashed, formatted, formatted_with, open, open_with, writable,
};
use papilio::{
    ErrorKind, File, FileSystem, InodeFlags, MkfsFeature, MkfsOptions, NocowCheck, OpenOptions, Tuning,
};
use papilio_device::MemoryDevice;
use papilio_oracle::{ImageSet, Need, Scratch, require};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[test]
fn a_preallocated_file_with_checksums_is_written_in_place() {
    for check in [NocowCheck::FirstMatch, NocowCheck::CollectAll] {
        let device = formatted(512 << 20);
        let mut tuning = Tuning::default();
        tuning.nocow_check = check;
        let fs = open_with(&device, &writable().tuning(tuning));
        let file = fs.create_file("/file").unwrap();
        file.allocate(0, 16 << 20, false).unwrap();
        let before = extents_of(&file);
        let mut model = vec![0; 16 << 20];
        let mut random = fastrand::Rng::with_seed(1);
        scatter(&file, &mut model, &mut random, 300);
        assert!(file.read_all().unwrap() == model, "before the flush");
        fs.sync().unwrap();
        assert!(file.read_all().unwrap() == model, "after it");
        assert_clean(&device);
        let base = before[0].2 - before[0].0;
        assert!(before.len() > 1 || extents_of(&file).iter().all(|extent| extent.2 - extent.0 == base));
        // Parts with checksums are copied on write now; the rest is still written in place.
        for round in 0..4 {
            scatter(&file, &mut model, &mut random, 200);
            assert!(file.read_all().unwrap() == model, "round {round}");
            fs.sync().unwrap();
            assert!(file.read_all().unwrap() == model, "round {round}, flushed");
            assert_clean(&device);
        }
        drop(file);
        fs.close().unwrap();
        assert!(open(&device).read("/file").unwrap() == model);
    }
}

#[test]
fn a_crash_keeps_flushed_ordered_extents_and_loses_the_rest() {
    let device = formatted(256 << 20);
    let fs = open(&device);
    let copied = fs.create_file("/copied").unwrap();
    copied.write_all_at(&[1; 65536], 0).unwrap();
    let preallocated = fs.create_file("/preallocated").unwrap();
    preallocated.allocate(0, 65536, false).unwrap();
    fs.sync().unwrap();
    for byte in 2..9 {
        copied.write_all_at(&[byte; 8192], 4096).unwrap();
        preallocated.write_all_at(&[byte; 8192], 4096).unwrap();
    }
    let content = |device: &Arc<MemoryDevice>| {
        assert_clean(device);
        let fs = open(device);
        ["/copied", "/preallocated"].map(|path| fs.read(path).unwrap()[8192])
    };
    assert_eq!(content(&crashed(&device)), [1, 0], "no tree or log refers to the extents");
    // An fsync makes one file durable alone.
    copied.sync_all().unwrap();
    assert_eq!(content(&crashed(&device)), [8, 0]);
    copied.write_all_at(&[9; 8192], 4096).unwrap();
    assert_eq!(content(&crashed(&device)), [8, 0], "an extent in the log is not overwritten");
    // A log cannot hold a new subvolume: this fsync commits everything.
    fs.create_subvolume("/new").unwrap();
    fs.create_file("/new/file").unwrap().sync_all().unwrap();
    assert_eq!(content(&crashed(&device)), [9, 8]);
    // Without a flush or an fsync: closing the file system commits it.
    copied.write_all_at(&[10; 4096], 8192).unwrap();
    drop((copied, preallocated));
    fs.close().unwrap();
    assert_eq!(content(&device), [10, 8]);
}

/// Seeded operations of all kinds on two files, and a model of their content.
struct Run {
    fs: FileSystem,
    files: [File; 2],
    models: [Vec<u8>; 2],
    snapshots: Vec<(String, [Vec<u8>; 2])>,
    random: fastrand::Rng,
}

const PATHS: [&str; 2] = ["/a", "/b"];
const FILE: u64 = 1 << 20;

impl Run {
    fn new(fs: FileSystem, seed: u64) -> Self {
        let files = PATHS.map(|path| fs.create_file(path).unwrap());
        files[0].allocate(0, FILE, false).unwrap();
        files[1].write_all_at(&[7; FILE as usize], 0).unwrap();
        let models = [vec![0; FILE as usize], vec![7; FILE as usize]];
        Self { fs, files, models, snapshots: Vec::new(), random: fastrand::Rng::with_seed(seed) }
    }

    fn sectors(&mut self, most: u64) -> (u64, u64) {
        let count = self.random.u64(1..=most);
        (self.random.u64(0..=FILE / SECTOR - count) * SECTOR, count * SECTOR)
    }

    fn step(&mut self) {
        let which = self.random.usize(..2);
        let (mut file, byte) = (self.files[which].clone(), self.random.u8(1..));
        file.set_direct(self.random.bool());
        let (at, length) = self.sectors(24);
        let (start, end) = (at as usize, (at + length) as usize);
        match self.random.u8(..64) {
            0 => {
                let (from, to) = (at + self.random.u64(..SECTOR), at + length);
                file.write_all_at(&vec![byte; (to - from) as usize], from).unwrap();
                self.models[which][from as usize..end].fill(byte);
            }
            1 => {
                file.punch_hole(at, length).unwrap();
                self.models[which][start..end].fill(0);
            }
            2 => {
                file.set_len(at).unwrap();
                file.set_len(FILE).unwrap();
                self.models[which][start..].fill(0);
            }
            3 => {
                file.set_len(at).unwrap();
                file.allocate(at, FILE - at, false).unwrap();
                self.models[which][start..].fill(0);
            }
            4 => file.allocate(at, length, false).unwrap(),
            5 => {
                self.files[1 - which].clone_range(&file, at, length, at).unwrap();
                let bytes = self.models[which][start..end].to_vec();
                self.models[1 - which][start..end].copy_from_slice(&bytes);
            }
            6 if self.snapshots.len() < 6 => {
                let name = format!("/snapshot-{}", self.snapshots.len());
                self.fs.snapshot("/", &name, false).unwrap();
                self.snapshots.push((name, self.models.clone()));
            }
            7 => file.sync_all().unwrap(),
            8 => self.fs.sync().unwrap(),
            10 => {
                // A write behind a hole makes the file longer again.
                file.set_len(at).unwrap();
                let from = (FILE - length).max(at) as usize + self.random.usize(..100);
                file.write_all_at(&vec![byte; FILE as usize - from], from as u64).unwrap();
                self.models[which][start..].fill(0);
                self.models[which][from..].fill(byte);
            }
            9 => assert!(!file.fiemap(0).unwrap().is_empty() || self.models[which].iter().all(|b| *b == 0)),
            11..20 => {
                let (from, to) = (start + self.random.usize(..4096), end - self.random.usize(..4000));
                let mut buffer = vec![0; to.saturating_sub(from)];
                assert_eq!(file.read_at(&mut buffer, from as u64).unwrap(), buffer.len());
                assert!(buffer == self.models[which][from..from + buffer.len()]);
            }
            _ => {
                file.write_all_at(&vec![byte; length as usize], at).unwrap();
                self.models[which][start..end].fill(byte);
            }
        }
    }

    fn compare(&self) {
        for (file, model) in self.files.iter().zip(&self.models) {
            assert!(file.read_all().unwrap() == *model);
        }
        for (name, models) in &self.snapshots {
            for (path, model) in PATHS.iter().zip(models) {
                assert!(self.fs.read(format!("{name}{path}")).unwrap() == *model, "{name}{path}");
            }
        }
    }
}

#[test]
fn random_operations_agree_with_a_model() {
    for seed in 1..=12 {
        let mkfs = MkfsOptions::new().feature(MkfsFeature::NoHoles, seed % 4 < 2);
        let device = formatted_with(256 << 20, &mkfs);
        let options = match seed % 3 {
            0 => writable(),
            _ => writable().cache_bytes(2 << 20),
        };
        let mut run = Run::new(open_with(&device, &options), seed);
        for step in 0..1200 {
            run.step();
            if step % 100 == 99 {
                run.compare();
                assert_clean(&crashed(&device));
            }
        }
        let Run { fs, files, models, .. } = run;
        drop(files);
        close_clean(fs, &device);
        let fs = open(&device);
        for (path, model) in PATHS.iter().zip(&models) {
            assert!(fs.read(path).unwrap() == *model, "seed {seed}");
        }
    }
}

#[test]
fn readers_see_no_torn_sectors_and_the_last_write_wins() {
    const SIZE: u64 = 8 << 20;
    const WRITERS: u64 = 4;
    for preallocated in [true, false] {
        let device = formatted(512 << 20);
        let fs = open(&device);
        let file = fs.create_file("/file").unwrap();
        if preallocated {
            file.allocate(0, SIZE, false).unwrap();
        } else {
            let mut first = vec![0; SIZE as usize];
            stamp(&mut first, 0, 9, 0);
            file.write_all_at(&first, 0).unwrap();
        }
        let (stop, highest) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let (fs, file, stop, highest) = (&fs, &file, &stop, &highest);
            let writers: Vec<_> = (1..=WRITERS)
                .map(|writer| {
                    scope.spawn(move || {
                        let mut random = fastrand::Rng::with_seed(writer);
                        let mut own = vec![0; (SIZE / SECTOR) as usize];
                        for sequence in 1..600 {
                            let count = random.u64(1..=16);
                            let at = random.u64(0..=SIZE / SECTOR - count);
                            let mut buffer = vec![0; (count * SECTOR) as usize];
                            stamp(&mut buffer, at * SECTOR, writer, sequence);
                            file.write_all_at(&buffer, at * SECTOR).unwrap();
                            own[at as usize..(at + count) as usize].fill(sequence);
                            highest.fetch_max(sequence, Ordering::Relaxed);
                        }
                        own
                    })
                })
                .collect();
            let others: Vec<_> = (0..3)
                .map(|which| {
                    scope.spawn(move || {
                        let mut random = fastrand::Rng::with_seed(which);
                        while !stop.load(Ordering::Relaxed) {
                            match (which, random.u8(..8)) {
                                (2, 0) => fs.sync().unwrap(),
                                (2, 1) => file.sync_all().unwrap(),
                                (2, _) => std::thread::yield_now(),
                                _ => {
                                    let count = random.u64(1..=64);
                                    let at = random.u64(0..=SIZE / SECTOR - count);
                                    let mut buffer = vec![0; (count * SECTOR) as usize];
                                    file.read_at(&mut buffer, at * SECTOR).unwrap();
                                    for (number, sector) in buffer.chunks_exact(SECTOR as usize).enumerate() {
                                        stamped(sector, at + number as u64);
                                    }
                                }
                            }
                        }
                    })
                })
                .collect();
            let written: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            // Before any failure is reported: without it, the other threads never end.
            stop.store(true, Ordering::Relaxed);
            others.into_iter().for_each(|other| other.join().unwrap());
            let written: Vec<Vec<u64>> = written.into_iter().map(|own| own.unwrap()).collect();
            let content = file.read_all().unwrap();
            for (place, sector) in content.chunks_exact(SECTOR as usize).enumerate() {
                let word = stamped(sector, place as u64);
                let (writer, sequence) = (word >> 56, (word >> 24) & 0xffff_ffff);
                match written.get((writer as usize).wrapping_sub(1)) {
                    // Some writer's last write to this sector.
                    Some(own) => assert_eq!(own[place], sequence, "sector {place} by {writer}"),
                    None => assert!(written.iter().all(|own| own[place] == 0), "sector {place}"),
                }
            }
        });
        drop(file);
        close_clean(fs, &device);
    }
}

/// Fsyncs pin space until the next commit. The device has little more space than the file takes, so
/// they have to commit to find some.
#[test]
fn endless_fsyncs_find_space_by_a_commit() {
    const SIZE: u64 = 8 << 20;
    let device = formatted(112 << 20);
    let fs = open(&device);
    let file = fs.create_file("/file").unwrap();
    file.write_all_at(&[1; SIZE as usize], 0).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (file, stop) = (&file, &stop);
        let write_at_random = |writer: u64| {
            let mut random = fastrand::Rng::with_seed(writer);
            for _ in 0..3000 {
                let count = random.u64(1..=16);
                let at = random.u64(0..=SIZE / SECTOR - count);
                file.write_all_at(&vec![writer as u8; (count * SECTOR) as usize], at * SECTOR)?;
            }
            Ok::<(), papilio::Error>(())
        };
        let writers: Vec<_> = (1..=4).map(|writer| scope.spawn(move || write_at_random(writer))).collect();
        let syncing = scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                file.sync_all()?;
            }
            Ok::<(), papilio::Error>(())
        });
        let written: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        stop.store(true, Ordering::Relaxed);
        let synced = syncing.join().unwrap();
        for result in written {
            result.unwrap().unwrap();
        }
        synced.unwrap();
    });
    drop(file);
    close_clean(fs, &device);
}

#[test]
fn overwrites_give_their_space_back() {
    let device = formatted(320 << 20);
    let fs = open(&device);
    let mut random = fastrand::Rng::with_seed(3);
    let mut model = vec![0; 40 << 20];
    let file = fs.create_file("/file").unwrap();
    file.write_all_at(&model, 0).unwrap();
    // Many times the size of the device.
    for round in 0..24 {
        scatter(&file, &mut model, &mut random, 1500);
        assert!(file.read_all().unwrap() == model, "round {round}");
        let other = fs.create_file("/other").unwrap();
        other.write_all_at(&vec![1; 20 << 20], 0).unwrap();
        for at in (0..20 << 20).step_by(1 << 20) {
            other.write_all_at(&vec![2; 1 << 20], at).unwrap();
        }
        // Its ordered extents, which no tree refers to, are freed with it.
        fs.remove_file("/other").unwrap();
        drop(other);
        if round % 4 == 3 {
            fs.sync().unwrap();
            assert_clean(&device);
        }
    }
    drop(file);
    close_clean(fs, &device);
    assert!(open(&device).read("/file").unwrap() == model);
}

#[test]
fn a_full_file_system_refuses_writes_and_loses_no_data() {
    let device = formatted(128 << 20);
    let fs = open(&device);
    let file = fs.create_file("/file").unwrap();
    let mut model = vec![1; 24 << 20];
    file.write_all_at(&model, 0).unwrap();
    let filler = fs.create_file("/filler").unwrap();
    let mut at = 0;
    loop {
        match filler.write_all_at(&[3; 256 << 10], at) {
            Ok(()) => at += 256 << 10,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                break;
            }
        }
    }
    // Writes succeed where commits free the space of older ones, and fail with "no space"
    // otherwise.
    let mut random = fastrand::Rng::with_seed(4);
    let (mut done, mut refused) = (0, 0);
    for _ in 0..2000 {
        let count = random.u64(1..=8);
        let at = random.u64(0..=(24 << 20) / SECTOR - count) * SECTOR;
        let bytes = vec![random.u8(1..); (count * SECTOR) as usize];
        match file.write_all_at(&bytes, at) {
            Ok(()) => {
                model[at as usize..][..bytes.len()].copy_from_slice(&bytes);
                done += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                refused += 1;
            }
        }
    }
    assert!(file.read_all().unwrap() == model, "{done} writes succeeded, {refused} were refused");
    fs.remove_file("/filler").unwrap();
    drop(filler);
    fs.sync().unwrap();
    scatter(&file, &mut model, &mut random, 200);
    assert!(file.read_all().unwrap() == model);
    drop(file);
    close_clean(fs, &device);
    assert!(open(&device).read("/file").unwrap() == model);
}

#[test]
fn files_of_a_deleted_subvolume_free_their_ordered_extents() {
    let device = formatted(256 << 20);
    let fs = open(&device);
    fs.create_subvolume("/sub").unwrap();
    let file = fs.create_file("/sub/file").unwrap();
    file.write_all_at(&[1; 1 << 20], 0).unwrap();
    file.write_all_at(&[2; 1 << 19], 0).unwrap();
    fs.delete_subvolume("/sub").unwrap();
    fs.create_file("/file").unwrap().sync_all().unwrap();
    fs.sync().unwrap();
    let mut buffer = [0; 4096];
    file.read_at(&mut buffer, 0).unwrap();
    assert_eq!(buffer, [2; 4096]);
    drop(file);
    fs.clean_subvolumes().unwrap();
    close_clean(fs, &device);
}

#[test]
fn a_folio_dirty_in_another_part_does_not_hide_a_direct_write() {
    let device = formatted(256 << 20);
    let fs = open_with(&device, &writable().cache_bytes(8 << 20));
    for flags in [InodeFlags::empty(), InodeFlags::NODATACOW] {
        fs.create_file("/file").unwrap().inode().set_flags(flags).unwrap();
        let file = fs.open_file("/file").unwrap();
        let mut direct = file.clone();
        direct.set_direct(true);
        for dirty in [16 << 10, 60 << 10, 250 << 10, 900 << 10] {
            let mut expected = vec![1; 1 << 20];
            // One folio, clean after the flush.
            file.write_all_at(&expected, 0).unwrap();
            file.sync_all().unwrap();
            file.write_all_at(&[2; 4096], dirty).unwrap();
            direct.write_all_at(&[3; 8192], 4096).unwrap();
            expected[4096..4096 + 8192].fill(3);
            expected[dirty as usize..][..4096].fill(2);
            assert!(file.read_all().unwrap() == expected, "{flags:?}, {dirty}");
        }
        drop((file, direct));
        fs.remove_file("/file").unwrap();
    }
}

#[test]
fn the_kernel_reads_flushed_ordered_extents() {
    if require(&[Need::Root, Need::Loop, Need::KernelBtrfs]).is_none() {
        return;
    }
    let scratch = Scratch::new(256 << 20).unwrap();
    let image = scratch.path().join("ordered.img");
    papilio::mkfs(&image, &MkfsOptions::new().size(256 << 20)).unwrap();
    let open = |image: &Path| FileSystem::open_with(image, &OpenOptions::new().write(true)).unwrap();
    let mut models = None;
    for seed in 1..=3 {
        let fs = open(&image);
        let mut run = match models.take() {
            None => Run::new(fs, seed),
            Some(models) => Run {
                files: PATHS.map(|path| fs.open_file(path).unwrap()),
                fs,
                models,
                snapshots: Vec::new(),
                random: fastrand::Rng::with_seed(seed),
            },
        };
        for _ in 0..800 {
            // The names of snapshots are taken since the first round: a full list keeps `step` from
            // making more.
            if seed > 1 {
                run.snapshots = vec![Default::default(); 6];
            }
            run.step();
        }
        let Run { fs, files, models: left, .. } = run;
        drop(files);
        fs.close().unwrap();
        let images = ImageSet::open(&scratch, vec![image.clone()]);
        images.btrfs_check().unwrap();
        let mounted = images.mount().unwrap();
        for (path, model) in PATHS.iter().zip(&left) {
            let host = mounted.path().join(&path[1..]);
            assert!(std::fs::read(&host).unwrap() == *model, "seed {seed}, {path}");
        }
        // The next round writes in place into extents that the kernel preallocates here.
        let host = mounted.path().join("a");
        for how in [&["-p"][..], &[]] {
            let mut command = std::process::Command::new("fallocate");
            command.args(how).args(["-o", "65536", "-l", "262144"]).arg(&host);
            assert!(command.status().unwrap().success());
        }
        mounted.unmount().unwrap();
        let mut left = left;
        left[0][65536..65536 + 262_144].fill(0);
        models = Some(left);
    }
}

/// Pieces that were written one after the other become few extents, also across block groups, and
/// an interleaved file does not change what each file holds.
#[test]
fn neighbours_become_one_extent() {
    const PIECE: u64 = 1 << 20;
    for sector in [true, false] {
        let device = formatted(512 << 20);
        let fs = open(&device);
        let [alone, first, second] =
            ["/alone", "/first", "/second"].map(|name| fs.create_file(name).unwrap());
        let content = |number: u64, file: u64| {
            let mut piece = vec![(number * 3 + file) as u8; PIECE as usize];
            piece[..8].copy_from_slice(&(number << 8 | file).to_le_bytes());
            piece
        };
        // Pieces of a file that grows are published at once (see `growing`); those of a sparse file
        // are ordered.
        alone.set_len(150 * PIECE).unwrap();
        first.set_len(20 * PIECE).unwrap();
        for number in 0..150 {
            // A piece that is cut inside of a sector is ordered in part only.
            let cut = if sector { 0 } else { 100 };
            let data = content(number, 0);
            let (head, tail) = data.split_at(PIECE as usize - cut);
            alone.write_all_at(head, number * PIECE).unwrap();
            alone.write_all_at(tail, (number + 1) * PIECE - cut as u64).unwrap();
        }
        for number in 0..20 {
            first.write_all_at(&content(number, 1), number * PIECE).unwrap();
            second.write_all_at(&content(number, 2), number * PIECE).unwrap();
        }
        fs.sync().unwrap();
        let extents = alone.extents(0, usize::MAX).unwrap();
        assert!(!sector || extents.len() <= 12, "{} extents", extents.len());
        assert!(extents.iter().all(|extent| extent.stored <= 128 << 20));
        assert_clean(&device);
        drop((alone, first, second));
        fs.close().unwrap();
        let fs = open(&device);
        for (file, name, pieces) in [(0, "/alone", 150), (1, "/first", 20), (2, "/second", 20)] {
            let expected: Vec<u8> = (0..pieces).flat_map(|number| content(number, file)).collect();
            assert!(fs.read(name).unwrap() == expected, "{name}");
        }
    }
}
