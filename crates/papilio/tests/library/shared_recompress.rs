//! Compressing without unsharing: snapshots and clones follow to the compressed extents, all of
//! them together need less space, and nothing else changes. The kernel reads the result.

use crate::in_memory::{formatted, formatted_with, open, places_of_blocks, writable};
use crate::shared_defragment::{
    NEEDS, SECTOR, SNAPSHOTS, Seen, extents, files, fragmented, judge, judge_by_mount, merge_with, overwrite,
    seen, sent, subvolumes, used,
};
use papilio::device::Device;
use papilio::format::TreeId;
use papilio::format::items::file_extent::Compression;
use papilio::format::items::inode::InodeFlags;
use papilio::{
    CheckOptions, CompressionChoice, FileExtentKind, FileSystem, MkfsOptions, OpenOptions,
    SharedDefragmentOptions, SharedDefragmentReport, StayReason,
};
use papilio_device::{MemoryDevice, PhysicalAddress, Recording};
use papilio_oracle::{ImageSet, Scratch, require};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const K: u64 = 1024;

/// Content that compresses to about a third, and differs in each sector.
fn text(sectors: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; sectors * SECTOR];
    for sector in bytes.chunks_mut(SECTOR) {
        let third = sector.len() / 4;
        sector[..third].iter_mut().for_each(|byte| *byte = random.u8(..));
    }
    bytes
}

fn noise(sectors: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..sectors * SECTOR).map(|_| random.u8(..)).collect()
}

fn options(algorithm: Compression) -> SharedDefragmentOptions {
    let choice = match algorithm {
        Compression::None => CompressionChoice::NONE,
        other => CompressionChoice::new(other),
    };
    SharedDefragmentOptions { compression: Some(choice), ..SharedDefragmentOptions::default() }
}

fn recompress(fs: &FileSystem, algorithm: Compression) -> SharedDefragmentReport {
    let report = merge_with(fs, &options(algorithm));
    let damaged = report.staying.iter().find(|one| matches!(one.reason, StayReason::Damaged(_)));
    assert_eq!(damaged, None);
    report
}

/// Bytes of all data extents that files have, by their compression.
fn stored(fs: &FileSystem) -> BTreeMap<Compression, u64> {
    let mut met = BTreeSet::new();
    let mut stored = BTreeMap::new();
    for (_, inode) in files(fs) {
        for extent in inode.open().unwrap().extents(0, usize::MAX).unwrap() {
            if extent.kind != FileExtentKind::Inline && met.insert(extent.address) {
                *stored.entry(extent.compression).or_default() += extent.stored;
            }
        }
    }
    stored
}

/// Makes a subvolume with large extents, clones of parts, small extents and noise, and snapshots of
/// different ages that share most of it.
fn shared_by_snapshots(device: &Arc<MemoryDevice>) -> FileSystem {
    let fs = open(device);
    fs.create_subvolume("/s").unwrap();
    fs.write("/s/large", text(2048, 1)).unwrap();
    let mixed = [text(100, 2), noise(90, 3), text(67, 4)].concat();
    fs.write("/s/mixed", mixed).unwrap();
    fs.write("/s/odd", &text(80, 5)[..70 * SECTOR + 77]).unwrap();
    fs.write("/s/noise", noise(100, 6)).unwrap();
    fs.write("/s/inline", b"small").unwrap();
    fragmented(&fs, "/s/small", &text(70, 7));
    fs.sync().unwrap();
    let large = fs.open_file("/s/large").unwrap();
    // Clones of parts, whose ends lie inside of pieces, and one in the same file.
    let clone = fs.create_file("/s/clone").unwrap();
    clone.clone_range(&large, 40 * K, 1000 * K, 16 * K).unwrap();
    clone.clone_range(&large, 3000 * K, 128 * K, 2000 * K).unwrap();
    large.clone_range(&large, 0, 300 * K, 9000 * K).unwrap();
    fs.sync().unwrap();
    for number in 0..SNAPSHOTS {
        fs.snapshot("/s", format!("/snapshot{number}"), number % 4 != 3).unwrap();
        overwrite(&fs, "/s/large", [number * 37 + 5, number * 31 + 600].into_iter(), number as u8);
        if number % 4 == 3 {
            overwrite(&fs, &format!("/snapshot{number}/mixed"), [number * 3 + 1].into_iter(), 0x99);
        }
    }
    fs.sync().unwrap();
    fs
}

#[test]
fn snapshots_and_clones_follow_to_compressed_extents() {
    let device = formatted(512 << 20);
    let fs = shared_by_snapshots(&device);
    let (before, lists, space) = (seen(&fs), subvolumes(&fs), used(&fs));
    let report = recompress(&fs, Compression::Zstd);
    let after = used(&fs);
    assert!(report.saved > 4 << 20 && !report.stopped, "{report:?}");
    assert!(after.0 < space.0 * 3 / 4, "{after:?} {space:?}");
    assert!(after.0 + after.1 < space.0 + space.1, "{after:?} {space:?}");
    assert!(report.stay[&StayReason::NotSmaller] >= 1, "the noise stays: {report:?}");
    assert!(seen(&fs) == before);
    assert_eq!(subvolumes(&fs), lists);
    // Clones and snapshots have the very same extents, so that nothing else is in use.
    assert_eq!(stored(&fs).values().sum::<u64>(), after.0, "{:?}", stored(&fs));
    let again = recompress(&fs, Compression::Zstd);
    assert_eq!((again.saved, used(&fs).0), (0, after.0), "{again:?}");
    fs.close().unwrap();
    judge(&device, &before);
}

#[test]
fn one_algorithm_after_the_other_and_none() {
    let device = formatted(512 << 20);
    let fs = shared_by_snapshots(&device);
    let before = seen(&fs);
    recompress(&fs, Compression::Lzo);
    let lzo = stored(&fs);
    assert!(lzo[&Compression::Lzo] > 1 << 20, "{lzo:?}");
    let space = used(&fs).0;
    recompress(&fs, Compression::Zlib);
    assert!(used(&fs).0 <= space, "{} {space}", used(&fs).0);
    let strong = CompressionChoice::with_level(Compression::Zlib, 9).unwrap();
    let report =
        merge_with(&fs, &SharedDefragmentOptions { compression: Some(strong), ..Default::default() });
    assert!(report.stay.contains_key(&StayReason::NotSmaller) || report.saved > 0, "tried: {report:?}");
    assert!(seen(&fs) == before);
    let space = used(&fs).0;
    let report = recompress(&fs, Compression::None);
    assert!(report.grown > 4 << 20, "{report:?}");
    assert_eq!(stored(&fs).keys().copied().collect::<Vec<_>>(), [Compression::None]);
    assert!(used(&fs).0 <= space + report.grown, "{} {space} {report:?}", used(&fs).0);
    assert!(seen(&fs) == before);
    fs.close().unwrap();
    judge(&device, &before);
}

#[test]
fn leaves_nodes_and_roots_are_split_for_all_trees() {
    // Leaves of 4 KiB hold some 50 file extents. Each extent becomes 64.
    let device = formatted_with(1 << 30, &MkfsOptions::new().node_size(4096));
    let fs = open(&device);
    fs.create_subvolume("/s").unwrap();
    for number in 0..12 {
        fs.write(format!("/s/f{number}"), text(2048, number)).unwrap();
    }
    fs.sync().unwrap();
    for number in 0..6 {
        fs.snapshot("/s", format!("/snapshot{number}"), true).unwrap();
        overwrite(&fs, &format!("/s/f{number}"), [100, 900, 1500].into_iter(), 7);
    }
    fs.sync().unwrap();
    let (before, space) = (seen(&fs), used(&fs));
    let report = recompress(&fs, Compression::Zstd);
    assert!(report.made > 700, "{report:?}");
    let after = used(&fs);
    assert!(after.0 + after.1 < (space.0 + space.1) * 2 / 3, "{after:?} {space:?}");
    // The leaves are shared: those of one tree, a few of each snapshot, and the extent tree.
    let blocks = (after.1 - space.1) / 4096 / 2;
    assert!(blocks < 3 * 768 / 40 + 120, "{blocks} more tree blocks");
    assert!(seen(&fs) == before);
    fs.close().unwrap();
    judge(&device, &before);
    // Trees can be changed, and subvolumes deleted, as before.
    let fs = open(&device);
    overwrite(&fs, "/s/f11", (0..2048).step_by(100), 3);
    for number in 0..6 {
        fs.delete_subvolume(format!("/snapshot{number}")).unwrap();
    }
    fs.clean_subvolumes().unwrap();
    fs.sync().unwrap();
    let left = seen(&fs);
    assert_eq!(stored(&fs).values().sum::<u64>(), used(&fs).0);
    fs.close().unwrap();
    judge(&device, &left);
}

#[test]
fn quotas_count_the_smaller_extents() {
    for simple in [false, true] {
        let device = formatted(512 << 20);
        let fs = shared_by_snapshots(&device);
        if simple { fs.enable_simple_quotas() } else { fs.enable_quotas() }.unwrap();
        if !simple {
            fs.rescan_quotas(|_| {}).unwrap();
        }
        fs.write("/s/new", text(300, 9)).unwrap();
        fs.snapshot("/s", "/last", true).unwrap();
        overwrite(&fs, "/s/new", (0..300).step_by(50), 0xcc);
        fs.sync().unwrap();
        let before = seen(&fs);
        let report = recompress(&fs, Compression::Zstd);
        assert!(report.saved > 4 << 20 && !report.stay.contains_key(&StayReason::Quotas), "{report:?}");
        assert!(!fs.quota_status().unwrap().unwrap().is_inconsistent());
        assert!(seen(&fs) == before);
        fs.close().unwrap();
        // The check counts all qgroups.
        match simple {
            true => drop(judge_by_mount(&device, &before)),
            false => judge(&device, &before),
        }
    }
}

#[test]
fn streams_between_snapshots_stay_small() {
    let device = formatted(512 << 20);
    let fs = shared_by_snapshots(&device);
    fs.snapshot("/s", "/one", true).unwrap();
    fs.snapshot("/s", "/two", true).unwrap();
    overwrite(&fs, "/s/large", [700].into_iter(), 1);
    fs.snapshot("/s", "/three", true).unwrap();
    let pairs = [("/two", "/one"), ("/three", "/one")];
    let before = pairs.map(|(path, parent)| sent(&fs, path, parent));
    assert!(recompress(&fs, Compression::Zstd).saved > 0);
    let after = pairs.map(|(path, parent)| sent(&fs, path, parent));
    assert!(before[0] == after[0] && after[0].len() < 500, "nothing changed: {}", after[0].len());
    assert!(after[1].len() <= before[1].len() + 500, "{} {}", before[1].len(), after[1].len());
    fs.close().unwrap();
}

#[test]
fn readers_and_writers_go_on() {
    let device = formatted(512 << 20);
    let fs = shared_by_snapshots(&device);
    let before = seen(&fs);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for path in ["/s/clone", "/snapshot1/large", "/snapshot9/mixed", "/s/odd"] {
            let (fs, before, ended) = (&fs, &before, &ended);
            scope.spawn(move || {
                let file = fs.open_file(path).unwrap();
                while !ended.load(Ordering::Relaxed) {
                    assert!(file.read_all().unwrap() == before[&path.as_bytes()[1..]].0, "{path}");
                }
            });
        }
        scope.spawn(|| {
            let mut file = fs.create_file("/busy").unwrap();
            file.set_direct(true);
            for number in (0..).take_while(|_| !ended.load(Ordering::Relaxed)) {
                file.write_all_at(&[number as u8; SECTOR], number % 50 * SECTOR as u64).unwrap();
            }
        });
        for algorithm in [Compression::Lzo, Compression::Zstd, Compression::None, Compression::Zstd] {
            let report = merge_with(&fs, &options(algorithm));
            assert!(report.replaced > 0, "{report:?}");
            overwrite(&fs, "/snapshot3/large", (0..90).step_by(5), algorithm as u8);
        }
        ended.store(true, Ordering::Relaxed);
    });
    fs.close().unwrap();
    let fs = open(&device);
    let after = seen(&fs);
    for (path, known) in before.iter().filter(|(path, _)| !path.ends_with(b"snapshot3/large")) {
        assert!(after[path] == *known, "{}", String::from_utf8_lossy(path));
    }
    fs.close().unwrap();
    judge(&device, &after);
}

#[test]
fn extents_of_a_snapshot_in_deletion_stay() {
    let device = formatted(512 << 20);
    let fs = shared_by_snapshots(&device);
    fs.delete_subvolume("/snapshot3").unwrap();
    fs.sync().unwrap();
    let before = seen(&fs);
    let report = recompress(&fs, Compression::Zstd);
    assert!(report.stay[&StayReason::Deleting] > 0, "{report:?}");
    fs.clean_subvolumes_step().unwrap();
    recompress(&fs, Compression::Zstd);
    fs.clean_subvolumes().unwrap();
    let report = recompress(&fs, Compression::Zstd);
    assert!(!report.stay.contains_key(&StayReason::Deleting), "{report:?}");
    assert!(stored(&fs)[&Compression::Zstd] > 1 << 20);
    assert!(seen(&fs) == before);
    fs.close().unwrap();
    judge(&device, &before);
}

#[test]
fn what_cannot_be_compressed_stays_and_is_told() {
    let device = formatted(512 << 20);
    let fs = open(&device);
    fs.write("/noise", noise(64, 1)).unwrap();
    fs.create_file("/nocow").unwrap().inode().set_flags(InodeFlags::NODATACOW).unwrap();
    fs.open_file("/nocow").unwrap().write_all_at(&text(64, 2), 0).unwrap();
    let file = fs.create_file("/half").unwrap();
    file.allocate(0, 256 << 10, false).unwrap();
    fs.sync().unwrap();
    file.write_all_at(&text(32, 3), 0).unwrap();
    fs.create_file("/reserved").unwrap().allocate(0, 1 << 20, false).unwrap();
    fs.sync().unwrap();
    let (before, space) = (seen(&fs), used(&fs));
    let report = recompress(&fs, Compression::Zstd);
    assert_eq!((report.replaced, report.bytes), (0, 0), "{report:?}");
    let told = [StayReason::Preallocated, StayReason::NoChecksums, StayReason::NotSmaller];
    assert_eq!(report.stay.keys().cloned().collect::<Vec<_>>(), told);
    let paths: Vec<_> = report.staying.iter().map(|one| fs.staying_path(one)).collect();
    assert!(["noise", "nocow", "half"].iter().all(|name| paths.iter().any(|path| path.ends_with(name))));
    assert!(used(&fs) == space && seen(&fs) == before);
    drop(file);
    fs.close().unwrap();
    judge(&device, &before);
}

#[test]
fn unused_parts_of_extents_are_given_back() {
    let device = formatted(256 << 20);
    let fs = open(&device);
    fs.write("/f", text(1024, 5)).unwrap();
    fs.sync().unwrap();
    overwrite(&fs, "/f", 100..900, 0xaa);
    let before = seen(&fs);
    let report = recompress(&fs, Compression::Zstd);
    // 224 of 1024 sectors are left of the first extent, and 800 sectors of one byte.
    assert!(report.saved > (800 + 100 + 700) * SECTOR as u64, "{report:?}");
    assert!(seen(&fs) == before);
    fs.close().unwrap();
    judge(&device, &before);
}

#[test]
fn limits_end_the_job_after_a_batch() {
    let device = formatted(512 << 20);
    let fs = shared_by_snapshots(&device);
    let before = seen(&fs);
    let few = SharedDefragmentOptions { max_extents: Some(2), ..options(Compression::Zstd) };
    let report = merge_with(&fs, &few);
    assert!(report.stopped && report.replaced <= 2, "{report:?}");
    let bytes = SharedDefragmentOptions { max_bytes: Some(1 << 20), ..options(Compression::Zstd) };
    let report = merge_with(&fs, &bytes);
    assert!(report.stopped && report.bytes <= 1 << 20, "{report:?}");
    let late = SharedDefragmentOptions { max_time: Some(Duration::ZERO), ..options(Compression::Zstd) };
    let report = merge_with(&fs, &late);
    assert!(report.stopped && report.replaced == 0, "{report:?}");
    let all: Vec<_> = files(&fs).into_iter().map(|(_, inode)| inode).collect();
    let mut calls = 0;
    let report = fs.defragment_shared(&all, 0..u64::MAX, &options(Compression::Zstd), |_| {
        calls += 1;
        false
    });
    assert!(report.unwrap().stopped && calls == 1);
    assert!(seen(&fs) == before);
    assert!(!recompress(&fs, Compression::Zstd).stopped);
    fs.close().unwrap();
    judge(&device, &before);
}

#[test]
fn damage_leaves_its_extents_and_is_told() {
    let device = formatted(512 << 20);
    let fs = open(&device);
    for name in ["/s", "/t"] {
        fs.create_subvolume(name).unwrap();
    }
    fs.write("/s/good", text(64, 1)).unwrap();
    fs.write("/s/shared", text(64, 2)).unwrap();
    fs.write("/s/bad", text(64, 3)).unwrap();
    let source = fs.open_file("/s/shared").unwrap();
    fs.create_file("/t/clone").unwrap().clone_range(&source, 0, 64 * SECTOR as u64, 0).unwrap();
    let damaged: TreeId = fs.inode("/t").unwrap().tree();
    drop(source);
    fs.close().unwrap();
    for place in places_of_blocks(&device, |header| header.level == 0 && header.owner == damaged) {
        device.write_at(&[0x55; 64], PhysicalAddress(place.0 + 2000)).unwrap();
    }
    let sector = text(64, 3)[SECTOR * 9..SECTOR * 10].to_vec();
    for place in (0..device.size()).step_by(SECTOR).map(PhysicalAddress) {
        let mut found = vec![0; SECTOR];
        device.read_at(&mut found, place).unwrap();
        if found == sector {
            device.write_at(&[0x55; 64], place).unwrap();
        }
    }
    let fs = open(&device);
    let chosen = ["/s/good", "/s/shared", "/s/bad"].map(|path| fs.inode(path).unwrap());
    let report = fs.defragment_shared(&chosen, 0..u64::MAX, &options(Compression::Zstd), |_| true).unwrap();
    assert_eq!(report.replaced, 1, "{report:?}");
    assert_eq!(report.staying.len(), 2, "{report:?}");
    assert!(report.staying.iter().all(|one| matches!(one.reason, StayReason::Damaged(_))));
    assert!(fs.read("/s/shared").unwrap() == text(64, 2) && fs.read("/s/good").unwrap() == text(64, 1));
    assert!(fs.read("/s/bad").is_err());
    fs.close().unwrap();
}

/// States of the device while `job` works, each of which must be complete.
fn judge_crashes(device: &Arc<MemoryDevice>, before: &Seen, job: impl FnOnce(&FileSystem)) {
    let states = std::env::var("PAPILIO_MOVED_STATES").map_or(16, |number| number.parse().unwrap());
    let recording = Recording::new();
    let attached: Arc<dyn Device> = Arc::new(recording.attach(device.clone()));
    let fs = FileSystem::from_devices(vec![attached], &writable()).unwrap();
    job(&fs);
    fs.close().unwrap();
    let (mut replay, end) = (recording.replay(), recording.len() as u64);
    let mut random = fastrand::Rng::with_seed(end);
    let mut moments: Vec<_> = (0..states).map(|_| random.u64(..=end)).collect();
    moments.sort_unstable();
    for (number, moment) in (0..).zip(moments) {
        replay.advance(moment as usize);
        let crashed = Arc::new(replay.crash(random.u64(..)).swap_remove(0));
        let fs = FileSystem::from_devices(vec![crashed.clone() as Arc<dyn Device>], &writable()).unwrap();
        assert!(seen(&fs) == *before, "event {moment} of {end}");
        let report = fs.check(&CheckOptions::new().data_csum(true)).unwrap();
        assert!(report.is_clean(), "event {moment} of {end}: {:#?}", report.findings);
        if number % 8 == 4 {
            recompress(&fs, Compression::Zstd);
            fs.close().unwrap();
            judge(&crashed, before);
        }
    }
}

#[test]
fn every_state_after_a_power_cut_is_complete() {
    let device = formatted(320 << 20);
    let fs = shared_by_snapshots(&device);
    fs.close().unwrap();
    let fs = open(&device);
    let before = seen(&fs);
    fs.close().unwrap();
    judge_crashes(&device, &before, |fs| {
        let few = SharedDefragmentOptions { max_extents: Some(30), ..options(Compression::Lzo) };
        merge_with(fs, &few);
        recompress(fs, Compression::Zstd);
    });
}

#[test]
fn an_image_of_the_kernel_stays_the_kernels() {
    if require(NEEDS).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    let path = scratch.unique("image");
    std::fs::File::create(&path).unwrap().set_len(512 << 20).unwrap();
    let made = Command::new("mkfs.btrfs").arg("-q").arg(&path).status().unwrap();
    assert!(made.success());
    let images = ImageSet::open(&scratch, vec![path.clone()]);
    let mounted = images.mount().unwrap();
    let script = "btrfs -q subvolume create s; seq 4000000 > s/numbers; \
                  head -c 3M /dev/urandom | od > s/octal; head -c 2M /dev/urandom > s/noise; sync; \
                  cp --reflink=always s/numbers s/clone; \
                  for i in $(seq 20); do btrfs -q subvolume snapshot -r s snapshot$i; \
                  dd if=/dev/urandom of=s/numbers bs=4k count=1 seek=$((i * 97)) conv=notrunc status=none; \
                  done; sync";
    let shell = Command::new("sh").args(["-ec", script]).current_dir(mounted.path()).status().unwrap();
    assert!(shell.success());
    mounted.unmount().unwrap();
    let writable = OpenOptions::new().write(true).commit_interval(None);
    let fs = FileSystem::open_with(&path, &writable).unwrap();
    let (before, space, count) = (seen(&fs), used(&fs), extents(&fs));
    let report = recompress(&fs, Compression::Zstd);
    let after = used(&fs);
    assert!(after.0 < space.0 / 2, "{after:?} {space:?} {count}: {report:?}");
    assert!(after.0 + after.1 < space.0 + space.1, "{after:?} {space:?}");
    assert!(seen(&fs) == before);
    fs.close().unwrap();
    let mounted = images.mount().unwrap();
    for (name, (content, _)) in &before {
        let name = std::str::from_utf8(name).unwrap().trim_start_matches('/');
        assert!(std::fs::read(mounted.path().join(name)).unwrap() == *content, "{name}");
    }
    let scrub = Command::new("btrfs").args(["scrub", "start", "-B"]).arg(mounted.path()).output().unwrap();
    assert!(scrub.status.success(), "{scrub:?}");
    // The kernel changes the split leaves, and drops subvolumes that share them.
    let script = "for i in $(seq 1 2 19); do btrfs -q subvolume delete snapshot$i; done; \
                  dd if=/dev/urandom of=s/numbers bs=4k count=900 seek=1000 conv=notrunc status=none; \
                  btrfs subvolume sync . ; sync";
    let shell = Command::new("sh").args(["-ec", script]).current_dir(mounted.path()).output().unwrap();
    assert!(shell.status.success(), "{shell:?}");
    mounted.unmount().unwrap();
    images.btrfs_check().unwrap();
    let fs = FileSystem::open(&path).unwrap();
    assert!(fs.read("/snapshot2/numbers").unwrap() == before[&b"snapshot2/numbers"[..]].0);
    fs.close().unwrap();
}
