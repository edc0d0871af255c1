//! A file system that is nearly full: changes that fit together succeed side by side, and the
//! bound of what can be written holds.

use crate::in_memory::{close_clean, formatted_with, open_with, writable};
use papilio::{ErrorKind, File, FileSystem, MkfsFeature, MkfsOptions, RaidProfile};
use papilio_device::{Device, MemoryDevice};
use std::sync::Arc;

fn new(size: u64, mixed: bool, cache: u64) -> (Arc<MemoryDevice>, FileSystem) {
    let mut options = MkfsOptions::new();
    if mixed {
        options = options.feature(MkfsFeature::MixedGroups, true);
    }
    let device = formatted_with(size, &options);
    let fs = open_with(&device, &writable().cache_bytes(cache));
    (device, fs)
}

fn available(fs: &FileSystem) -> u64 {
    fs.usage().unwrap().statfs().available
}

/// Writes or allocates `bytes` bytes in pieces.
fn fill(file: &File, bytes: u64, piece: u64, allocates: bool) {
    let data = vec![0x5a; piece as usize];
    for start in (0..bytes).step_by(piece as usize) {
        let length = piece.min(bytes - start);
        let done = if allocates {
            file.allocate(start, length, false)
        } else {
            file.write_all_at(&data[..length as usize], start)
        };
        done.unwrap_or_else(|error| panic!("{piece}, {allocates}, {start} of {bytes} bytes: {error}"));
    }
}

#[test]
fn what_fits_together_never_fails_side_by_side() {
    const THREADS: u64 = 8;
    for (mixed, cache) in [(false, 0), (false, 16 << 20), (true, 0)] {
        let (device, fs) = new(320 << 20, mixed, cache);
        for (round, piece) in [64 << 10, 256 << 10, 1 << 20, 16 << 20, 16 << 20].into_iter().enumerate() {
            let share = available(&fs) / 100 * 97 / THREADS / 4096 * 4096;
            assert!(share > 10 << 20, "{share} bytes are left for each in round {round}");
            let files: Vec<_> =
                (0..THREADS).map(|number| fs.create_file(format!("/{number}")).unwrap()).collect();
            std::thread::scope(|scope| {
                for (number, file) in files.iter().enumerate() {
                    scope.spawn(move || fill(file, share, piece, number % 2 == 0));
                }
            });
            files.iter().for_each(|file| assert_eq!(file.size().unwrap(), share));
            fs.sync().unwrap();
            drop(files);
            (0..THREADS).for_each(|number| fs.remove_file(format!("/{number}")).unwrap());
            fs.sync().unwrap();
        }
        close_clean(fs, &device);
    }
}

/// Data leaves mixed block groups enough space for the inodes of files: after it has filled them,
/// `fsync` and changes of attributes still succeed.
#[test]
fn data_that_fills_mixed_groups_leaves_room_for_inodes() {
    for (size, cache) in [(64 << 20, 0), (64 << 20, 8 << 20), (200 << 20, 8 << 20)] {
        let (device, fs) = new(size, true, cache);
        let mut random = fastrand::Rng::with_seed(size + cache);
        let files: Vec<_> =
            (0..40).map(|number| fs.create_file(format!("/small-{number}")).unwrap()).collect();
        let large = fs.create_file("/large").unwrap();
        let data: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(1 << 20).collect();
        let (mut at, mut refused) = (0, 0);
        while refused < 50 {
            let (file, offset) = match random.u8(0..8) {
                0 => (&files[random.usize(..files.len())], random.u64(0..9) * 4096),
                _ => (&large, at),
            };
            at += 1 << 20;
            let length = random.usize(1..=data.len() / if refused > 0 { 64 } else { 1 });
            match file.write_all_at(&data[..length], offset) {
                Ok(()) => {}
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                    refused += 1;
                }
            }
        }
        for (number, file) in files.iter().enumerate() {
            file.sync_all().unwrap_or_else(|error| panic!("{size}, {cache}: fsync of {number}: {error}"));
            fs.set_permissions(format!("/small-{number}"), 0o640).unwrap();
            file.sync_all().unwrap_or_else(|error| panic!("{size}, {cache}: mode of {number}: {error}"));
        }
        large.sync_all().unwrap();
        drop((files, large));
        close_clean(fs, &device);
    }
}

/// Threads create and remove files again and again. The files fit together, but not with the
/// removed ones whose space is pinned.
#[test]
fn space_of_removed_files_is_found_side_by_side() {
    const FILE: u64 = 58 << 20;
    for cache in [0, 16 << 20] {
        let (device, fs) = new(256 << 20, false, cache);
        std::thread::scope(|scope| {
            for (number, allocates) in [false, true, true].into_iter().enumerate() {
                let fs = &fs;
                scope.spawn(move || {
                    for _ in 0..40 {
                        let name = format!("/{number}");
                        let file = fs.create_file(&name).unwrap();
                        if allocates {
                            file.allocate(0, FILE, false).unwrap();
                        } else {
                            fill(&file, FILE, 256 << 10, false);
                        }
                        drop(file);
                        fs.remove_file(&name).unwrap();
                    }
                });
            }
        });
        close_clean(fs, &device);
    }
}

/// Each time, as many bytes as the bound promises are written in the smallest runs that it allows.
#[test]
fn as_much_can_be_written_as_the_bound_says() {
    const RUN: u64 = 32 << 10;
    for (size, mixed) in [(128 << 20, true), (200 << 20, false), (700 << 20, false), (3 << 30, false)] {
        let (device, fs) = new(size, mixed, 0);
        let before = available(&fs);
        assert!(fs.writable_bytes() > before / 2, "{} of {before}", fs.writable_bytes());
        let mut written = 0;
        for number in 0.. {
            let bound = fs.writable_bytes() / RUN * RUN;
            if bound == 0 {
                break;
            }
            let file = fs.create_file(format!("/{number}")).unwrap();
            let data = vec![number as u8 + 1; RUN as usize];
            // Large bounds are not exhausted at once, so that the test stays short.
            let bound = if size > 1 << 30 { bound.min(300 << 20) } else { bound };
            for run in 0..bound / RUN {
                // With a hole after each run, so that none merges with the next.
                let done = file.write_back_at(&data, run * 2 * RUN);
                done.unwrap_or_else(|error| panic!("{number}: {} of {bound}: {error}", run * RUN));
            }
            written += bound;
            fs.sync().unwrap();
            if size > 1 << 30 && number == 2 {
                break;
            }
        }
        if size < 1 << 30 {
            let left = available(&fs);
            assert!(left < before / 4, "{left} of {before} bytes are left after {written}");
            // The file system still hears "no space", and ends.
            let file = fs.create_file("/rest").unwrap();
            let mut at = 0;
            let error = loop {
                match file.write_all_at(&[1; RUN as usize], at) {
                    Ok(()) => at += RUN,
                    Err(error) => break error,
                }
            };
            assert_eq!((error.kind(), fs.writable_bytes()), (ErrorKind::NoSpace, 0));
        }
        close_clean(fs, &device);
    }
}

/// A caller keeps a removed file a little longer, as a FUSE kernel does. A write that needs its
/// space waits for it.
#[test]
fn write_waits_for_the_space_of_a_removed_file() {
    for cache in [0, 16 << 20] {
        let (device, fs) = new(256 << 20, false, cache);
        let share = available(&fs) / 100 * 80 / 4096 * 4096;
        for delay in [0, 100] {
            let first = fs.create_file("/first").unwrap();
            fill(&first, share, 256 << 10, true);
            drop(first);
            let kept = fs.inode("/first").unwrap().keep();
            fs.remove_file("/first").unwrap();
            let second = fs.create_file("/second").unwrap();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    std::thread::sleep(std::time::Duration::from_millis(delay));
                    drop(kept);
                });
                fill(&second, share, 1 << 20, false);
            });
            drop(second);
            // Space that stays in use is not waited for long.
            let kept = fs.inode("/second").unwrap().keep();
            fs.remove_file("/second").unwrap();
            let third = fs.create_file("/third").unwrap();
            let error = third.allocate(0, share, false).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            drop((third, kept));
            fs.remove_file("/third").unwrap();
        }
        close_clean(fs, &device);
    }
}

/// Each file with dirty pages has metadata reserved for it, far more than it takes in the end. That
/// must not look like a full device: writing pages back returns it.
#[test]
fn many_dirty_files_do_not_fill_the_device() {
    let (device, fs) = new(1 << 30, false, 64 << 20);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let fs = &fs;
            scope.spawn(move || {
                fs.create_dir(format!("/{thread}")).unwrap();
                for number in 0..6000 {
                    let path = format!("/{thread}/{number}");
                    let file = fs.create_file(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
                    file.write_all_at(&[thread as u8; 6000], 0)
                        .unwrap_or_else(|error| panic!("{path}: {error}"));
                    if number % 500 == 0 {
                        fs.sync().unwrap_or_else(|error| panic!("{path}: sync: {error}"));
                    }
                }
            });
        }
    });
    fs.sync().unwrap();
    assert_eq!(fs.open_file("/3/5999").unwrap().read_all().unwrap(), [3; 6000]);
    close_clean(fs, &device);
}

/// Files that are written, and removed while they are open, keep their reserved metadata until
/// their pages are written back. A removal has that done where it finds no space.
#[test]
fn dirty_files_that_are_open_are_removed_one_after_the_other() {
    for (cache, at_once) in [(2 << 20, true), (32 << 20, true), (32 << 20, false)] {
        let (device, fs) = new(256 << 20, false, cache);
        let mut open = Vec::new();
        let remove = |number| {
            let removed = fs.remove_file(format!("/{number}"));
            removed.unwrap_or_else(|error| panic!("{cache}, {number}: {error}"));
        };
        for number in 0..3000 {
            let path = format!("/{number}");
            let file = fs.create_file(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
            file.write_all_at(&[7; 5000], 0).unwrap_or_else(|error| panic!("{path}: {error}"));
            open.push(file);
            if at_once {
                remove(number);
            }
        }
        (0..open.len()).filter(|_| !at_once).for_each(remove);
        for (number, file) in open.iter().enumerate() {
            assert_eq!(file.read_all().unwrap(), [7; 5000], "{number}");
        }
        drop(open);
        close_clean(fs, &device);
    }
}

/// Fills of an ordinary run; `PAPILIO_FILLS=1000` makes that many.
fn fills() -> u64 {
    std::env::var("PAPILIO_FILLS").map_or(12, |number| number.parse().expect("a number of fills"))
}

/// Data that a write took into the cache has its space: a flush never says that there is none.
#[test]
fn accepted_writes_are_stored_whatever_the_profile() {
    let from = std::env::var("PAPILIO_FILLS_FROM").map_or(0, |number| number.parse().unwrap());
    for seed in from..from + fills() {
        fill_with(seed);
    }
}

fn fill_with(seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut pick = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let profile = |number| if number == 0 { RaidProfile::Dup } else { RaidProfile::Single };
    let (data, metadata) = (profile(pick(2)), profile(pick(2)));
    let least = if data == RaidProfile::Dup { 232 } else { 120 };
    let size = (least + pick(150)) << 20;
    let cache = [4, 16, 64, 256][pick(4) as usize] << 20;
    let (threads, piece) = (1 + pick(3), [3_000, 4096, 65_536, 100_001, 1 << 20, 8 << 20][pick(6) as usize]);
    let holes = pick(3) == 0;
    let name = format!(
        "seed {seed}: {data:?}/{metadata:?}, {size} bytes, cache {cache}, {threads} threads, \
         pieces {piece}, holes {holes}"
    );
    let options = MkfsOptions::new().data_profile(data).metadata_profile(metadata);
    let device = formatted_with(size, &options);
    let fs = open_with(&device, &writable().cache_bytes(cache));
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (fs, name) = (&fs, &name);
            scope.spawn(move || {
                let bytes: Vec<u8> = (0..piece).map(|at| (at / 3) as u8 ^ thread as u8).collect();
                let file = fs.create_file(format!("/{thread}")).unwrap();
                let (mut at, mut stored) = (0, 0);
                let error = loop {
                    match file.write_all_at(&bytes, at) {
                        Ok(()) => (stored, at) = (at + piece, at + piece * if holes { 2 } else { 1 }),
                        Err(error) => break error,
                    }
                };
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{name}: {error}");
                let synced = file.sync_all();
                synced.unwrap_or_else(|error| panic!("{name}: fsync of {thread}: {error}"));
                let mut found = vec![0; piece as usize];
                for at in (0..stored).step_by(piece as usize * if holes { 2 } else { 1 }) {
                    assert_eq!(file.read_at(&mut found, at).unwrap(), found.len(), "{name}: {at}");
                    assert!(found == bytes, "{name}: {at} of {thread}");
                }
            });
        }
    });
    fs.sync().unwrap_or_else(|error| panic!("{name}: sync: {error}"));
    close_clean(fs, &device);
}

/// Profiles with the fewest devices that they take here.
const PROFILES: [(RaidProfile, usize); 9] = [
    (RaidProfile::Single, 1),
    (RaidProfile::Dup, 1),
    (RaidProfile::Raid0, 2),
    (RaidProfile::Raid1, 2),
    (RaidProfile::Raid1c3, 3),
    (RaidProfile::Raid1c4, 4),
    (RaidProfile::Raid10, 4),
    (RaidProfile::Raid5, 3),
    (RaidProfile::Raid6, 4),
];

/// A file system of some devices, partly filled. Small files fill metadata, too.
fn layout(seed: u64) -> (String, Vec<Arc<MemoryDevice>>, FileSystem) {
    let mut random = fastrand::Rng::with_seed(seed);
    let (data, least) = PROFILES[random.usize(..PROFILES.len())];
    let metadata = [RaidProfile::Single, RaidProfile::Dup, RaidProfile::Raid1][random.usize(..3)];
    let count = least.max(if metadata == RaidProfile::Raid1 { 2 } else { 1 }) + random.usize(..2);
    let equal = random.bool();
    let size = random.u64(240..440) << 20;
    let sizes = (0..count).map(|_| if equal { size } else { random.u64(240..440) << 20 });
    let devices: Vec<_> = sizes.map(|size| Arc::new(MemoryDevice::new(size))).collect();
    let all = || devices.iter().map(|device| device.clone() as Arc<dyn Device>).collect::<Vec<_>>();
    papilio::mkfs_devices(&all(), &MkfsOptions::new().data_profile(data).metadata_profile(metadata)).unwrap();
    let fs = FileSystem::from_devices(all(), &writable()).unwrap();
    let filled = available(&fs) / 100 * random.u64(0..90);
    fill(&fs.create_file("/before").unwrap(), filled >> 20 << 20, 1 << 20, false);
    for number in 0..random.u64(0..300) {
        fs.write(format!("/small {number}"), vec![1; 1500]).unwrap();
    }
    fs.sync().unwrap();
    let sizes: Vec<_> = devices.iter().map(|device| device.size() >> 20).collect();
    (format!("seed {seed}: {data}/{metadata} on {sizes:?} MiB, {} MiB before", filled >> 20), devices, fs)
}

/// `PAPILIO_LAYOUTS` sets the number of layouts, `PAPILIO_SEED` the first seed.
#[test]
fn room_that_is_shown_can_be_written() {
    let setting = |name: &str, default| {
        std::env::var(name).map_or(default, |value| value.parse::<u64>().expect("a number"))
    };
    let first = setting("PAPILIO_SEED", 1);
    let mut short = Vec::new();
    for seed in first..first + setting("PAPILIO_LAYOUTS", 12) {
        let (what, _devices, fs) = layout(seed);
        let shown = available(&fs);
        let file = fs.create_file("/after").unwrap();
        let (mut written, mut step) = (0_u64, 1_u64 << 20);
        let bytes = vec![3; step as usize];
        while step >= 4096 {
            match file.write_all_at(&bytes[..step as usize], written) {
                Ok(()) => written += step,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NoSpace, "{what}: {error}");
                    written = file.len().max(written);
                    step /= 4;
                }
            }
        }
        fs.sync().unwrap_or_else(|error| panic!("{what}: {error}"));
        if written < shown {
            short.push(format!("{what}: {shown} bytes shown, {} less written", shown - written));
        }
    }
    assert!(short.is_empty(), "{short:#?}");
}
