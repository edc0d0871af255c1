//! Defragmenting without unsharing: snapshots and clones follow to the larger extents, nobody needs
//! more space, and nothing else changes. The kernel reads the result.

use crate::in_memory::{assert_clean, formatted, open, places_of_blocks, writable};
use papilio::device::Device;
use papilio::format::TreeId;
use papilio::format::items::file_extent::Compression;
use papilio::format::items::inode::InodeFlags;
use papilio::{
    CheckOptions, CompressionChoice, DefragmentOptions, Error, FileExtentKind, FileKind, FileSystem, Inode,
    OpenOptions, ScrubOptions, SendOptions, SharedDefragmentOptions, SharedDefragmentReport, StayReason,
};
use papilio_device::{MemoryDevice, PhysicalAddress, Recording};
use papilio_oracle::{ImageSet, Need, Scratch, require};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) const SECTOR: usize = 4096;
pub(crate) const NEEDS: &[Need] = &[Need::Root, Need::Loop, Need::KernelBtrfs, Need::Command("btrfs")];
pub(crate) const SNAPSHOTS: usize = 20;

/// Content that is different in each sector.
pub(crate) fn content(sectors: usize, seed: usize) -> Vec<u8> {
    (0..sectors * SECTOR).map(|at| (at / SECTOR * 31 + at % 251 * (seed + 3) + seed) as u8).collect()
}

/// Writes a file of one extent for each sector, which lie apart.
pub(crate) fn fragmented(fs: &FileSystem, path: &str, content: &[u8]) {
    let mut file = fs.create_file(path).unwrap();
    file.set_direct(true);
    for half in [0, 1] {
        for (number, sector) in content.chunks(SECTOR).enumerate().filter(|(number, _)| number % 2 == half) {
            file.write_all_at(sector, (number * SECTOR) as u64).unwrap();
            // An extent that was committed is not extended.
            fs.sync().unwrap();
        }
    }
}

/// Overwrites sectors, each in place of a part of an extent.
pub(crate) fn overwrite(fs: &FileSystem, path: &str, sectors: impl Iterator<Item = usize>, seed: u8) {
    let mut file = fs.open_file(path).unwrap();
    file.set_direct(true);
    for number in sectors {
        file.write_all_at(&[seed; SECTOR], (number * SECTOR) as u64).unwrap();
    }
    fs.sync().unwrap();
}

/// All regular files with their paths, in all subvolumes.
pub(crate) fn files(fs: &FileSystem) -> Vec<(Vec<u8>, Inode)> {
    let entries = fs.walk("/").unwrap().map(|entry| entry.unwrap());
    let regular = entries.filter(|entry| entry.inode.file_type() == FileKind::Regular);
    regular.map(|entry| (entry.path, entry.inode)).collect()
}

/// The view of readers: the content and the inode's times and numbers, by path.
pub(crate) type Seen = BTreeMap<Vec<u8>, (Vec<u8>, String)>;

pub(crate) fn seen(fs: &FileSystem) -> Seen {
    let of = |inode: &Inode| {
        let data = inode.metadata();
        let times = (data.mtime(), data.ctime(), data.atime(), data.btime());
        let numbers = (data.generation(), data.last_changed(), data.size(), data.allocated_bytes());
        (inode.open().unwrap().read_all().unwrap(), format!("{times:?} {numbers:?}"))
    };
    files(fs).iter().map(|(path, inode)| (path.clone(), of(inode))).collect()
}

/// Bytes of data and of metadata in use.
pub(crate) fn used(fs: &FileSystem) -> (u64, u64) {
    let usage = fs.usage().unwrap();
    let of = |data: bool| {
        let spaces = usage.spaces.iter();
        let wanted = spaces.filter(|space| {
            space.kind.contains(papilio::format::items::block_group::BlockGroupFlags::DATA) == data
        });
        wanted.map(|space| space.used).sum()
    };
    (of(true), of(false))
}

/// The number of data extents.
pub(crate) fn extents(fs: &FileSystem) -> usize {
    let of = |inode: &Inode| inode.open().unwrap().extents(0, usize::MAX).unwrap();
    let all = files(fs);
    let all = all.iter().flat_map(|(_, inode)| of(inode));
    let addresses = all.filter(|extent| extent.kind != FileExtentKind::Inline).map(|extent| extent.address);
    addresses.collect::<BTreeSet<_>>().len()
}

pub(crate) fn merge_with(fs: &FileSystem, options: &SharedDefragmentOptions) -> SharedDefragmentReport {
    let files: Vec<_> = files(fs).into_iter().map(|(_, inode)| inode).collect();
    fs.defragment_shared(&files, 0..u64::MAX, options, |_| true).unwrap()
}

fn merge(fs: &FileSystem) -> SharedDefragmentReport {
    merge_with(fs, &SharedDefragmentOptions::default())
}

/// The subvolumes as lists show them, without the changes of mounts.
pub(crate) fn subvolumes(fs: &FileSystem) -> Vec<String> {
    fs.subvolumes().unwrap().iter().map(|subvolume| format!("{subvolume:?}")).collect()
}

/// Compares all files with what the kernel reads, and lets `btrfs check` judge.
pub(crate) fn judge(device: &Arc<MemoryDevice>, expected: &Seen) {
    if let Some(images) = judge_by_mount(device, expected) {
        images.btrfs_check().unwrap();
    }
}

/// As [`judge`], for features that `btrfs check` may not know.
pub(crate) fn judge_by_mount(device: &Arc<MemoryDevice>, expected: &Seen) -> Option<ImageSet> {
    assert_clean(device);
    let _ = require(NEEDS)?;
    let scratch = Scratch::new(1 << 30).unwrap();
    let path = scratch.unique("image");
    device.write_image(&path).unwrap();
    let images = ImageSet::open(&scratch, vec![path]);
    let mounted = images.mount().unwrap();
    for (name, (content, _)) in expected {
        let name = std::str::from_utf8(name).unwrap().trim_start_matches('/');
        assert!(std::fs::read(mounted.path().join(name)).unwrap() == *content, "{name}");
    }
    mounted.unmount().unwrap();
    Some(images)
}

/// Makes a subvolume with fragmented files and clones, and snapshots that share all of it.
fn shared_by_snapshots(device: &Arc<MemoryDevice>) -> FileSystem {
    let fs = open(device);
    fs.create_subvolume("/s").unwrap();
    fragmented(&fs, "/s/f", &content(300, 1));
    fragmented(&fs, "/s/g", &content(100, 2));
    let (f, g) = (fs.open_file("/s/f").unwrap(), fs.open_file("/s/g").unwrap());
    // A clone of all, one of a part at another offset, and one within the file.
    fs.create_file("/s/h").unwrap().clone_range(&g, 0, 100 * SECTOR as u64, 0).unwrap();
    f.clone_range(&f, 0, 40 * SECTOR as u64, 310 * SECTOR as u64).unwrap();
    fs.create_file("/s/part").unwrap().clone_range(&f, 60 * 4096, 30 * 4096, 8 * 4096).unwrap();
    fs.sync().unwrap();
    for number in 0..SNAPSHOTS {
        fs.snapshot("/s", format!("/snapshot{number}"), number % 4 != 3).unwrap();
    }
    fs.sync().unwrap();
    fs
}

#[test]
fn snapshots_and_clones_follow() {
    let device = formatted(512 << 20);
    let fs = shared_by_snapshots(&device);
    let (before, lists, space, count) = (seen(&fs), subvolumes(&fs), used(&fs), extents(&fs));
    let report = merge(&fs);
    assert!(!report.stopped && report.freed == 0, "{report:?}");
    assert_eq!(report.staying, []);
    let after = used(&fs);
    assert!(after.0 <= space.0 && after.1 <= space.1, "{after:?} {space:?}");
    assert_eq!(extents(&fs) as u64, count as u64 - report.replaced + report.made);
    assert!(extents(&fs) < 20, "{count} became {}: {report:?}", extents(&fs));
    assert!(seen(&fs) == before);
    assert_eq!(subvolumes(&fs), lists);
    // The inner clone and the part end runs.
    let f = fs.open_file("/snapshot7/f").unwrap();
    assert!(f.fiemap(0).unwrap().len() < 12, "{:?}", f.fiemap(0).unwrap());
    assert_eq!(fs.open_file("/s/h").unwrap().fiemap(0).unwrap().len(), 1);
    let again = merge(&fs);
    assert_eq!((again.replaced, again.bytes), (0, 0), "{again:?}");
    fs.close().unwrap();
    judge(&device, &before);
}

#[test]
fn a_copy_needs_space_and_a_merge_does_not() {
    let device = formatted(512 << 20);
    let fs = shared_by_snapshots(&device);
    let before = used(&fs).0;
    let file = fs.open_file("/s/g").unwrap();
    file.defragment(0..u64::MAX, &DefragmentOptions::default(), |_| true).unwrap();
    fs.sync().unwrap();
    assert!(used(&fs).0 >= before + 100 * SECTOR as u64, "the old way copies");
}

#[test]
fn what_others_do_not_have_stays_apart() {
    let device = formatted(512 << 20);
    let fs = shared_by_snapshots(&device);
    // The subvolume now has other data in some places, and a tail that no snapshot has.
    overwrite(&fs, "/s/g", [10, 11, 40, 70].into_iter(), 0xee);
    overwrite(&fs, "/s/f", 350..360, 0xdd);
    let (before, space) = (seen(&fs), used(&fs));
    let report = merge(&fs);
    assert!(report.apart > 0, "{report:?}");
    assert!(used(&fs).0 <= space.0, "{:?} {space:?}", used(&fs));
    assert!(seen(&fs) == before);
    // Deleting frees as much as it would have freed before.
    for number in 0..SNAPSHOTS {
        fs.delete_subvolume(format!("/snapshot{number}")).unwrap();
    }
    fs.clean_subvolumes().unwrap();
    fs.sync().unwrap();
    fs.remove_file("/s/h").unwrap();
    fs.sync().unwrap();
    // The files have 300 + 40 + 10, 100 and 30 sectors; clones share. Each of the four sectors of
    // the other clone is gone with it.
    let rest = (300 + 10 + 100) * SECTOR as u64;
    assert_eq!(used(&fs).0, rest, "only what the subvolume has is left");
    let rest = seen(&fs);
    fs.close().unwrap();
    judge(&device, &rest);
}

#[test]
fn unused_parts_of_extents_are_given_back() {
    let device = formatted(256 << 20);
    let fs = open(&device);
    fs.create_subvolume("/s").unwrap();
    let sectors = 256;
    fs.write("/s/f", content(sectors, 5)).unwrap();
    fs.sync().unwrap();
    overwrite(&fs, "/s/f", (0..sectors).step_by(7), 0xaa);
    fs.snapshot("/s", "/one", true).unwrap();
    fs.snapshot("/s", "/two", true).unwrap();
    let (before, space) = (seen(&fs), used(&fs).0);
    let unused = (sectors.div_ceil(7) * SECTOR) as u64;
    assert_eq!(space, (sectors * SECTOR) as u64 + unused);
    let report = merge(&fs);
    assert_eq!((report.freed, report.made), (unused, 1), "{report:?}");
    assert_eq!(used(&fs).0, space - unused);
    for path in ["/s/f", "/one/f", "/two/f"] {
        assert_eq!(fs.open_file(path).unwrap().fiemap(0).unwrap().len(), 1, "{path}");
    }
    assert!(seen(&fs) == before);
    fs.close().unwrap();
    judge(&device, &before);
}

#[test]
fn some_extents_stay_and_are_told() {
    let device = formatted(512 << 20);
    let fs = open(&device);
    fragmented(&fs, "/plain", &content(50, 1));
    let nocow = fs.create_file("/nocow").unwrap();
    nocow.inode().set_flags(InodeFlags::NODATACOW).unwrap();
    fs.open_file("/nocow").unwrap().write_all_at(&content(20, 2), 0).unwrap();
    fs.create_file("/preallocated").unwrap().allocate(0, 80 << 10, false).unwrap();
    fragmented(&fs, "/compressed", &content(50, 3));
    let zstd = Some(CompressionChoice::new(Compression::Zstd));
    let compressed = DefragmentOptions { compression: zstd, ..DefragmentOptions::default() };
    let file = fs.open_file("/compressed").unwrap();
    file.defragment(0..u64::MAX, &compressed, |_| true).unwrap();
    fs.sync().unwrap();
    // A part of each extent, which another file does not have.
    fs.write("/whole", content(64, 4)).unwrap();
    fs.sync().unwrap();
    let whole = fs.open_file("/whole").unwrap();
    for number in [9, 3, 20] {
        let part = fs.open_file("/part").or_else(|_| fs.create_file("/part")).unwrap();
        let to = part.size().unwrap();
        part.clone_range(&whole, number * SECTOR as u64, SECTOR as u64, to).unwrap();
    }
    fs.sync().unwrap();
    let before = seen(&fs);
    let report = merge(&fs);
    let reasons: BTreeSet<_> = report.stay.keys().cloned().collect();
    for reason in [StayReason::NoChecksums, StayReason::Preallocated, StayReason::Compressed] {
        assert!(reasons.contains(&reason), "{reason}: {report:?}");
    }
    assert!(report.staying.iter().any(|one| fs.staying_path(one).contains("nocow")), "{report:?}");
    assert_eq!(fs.open_file("/plain").unwrap().fiemap(0).unwrap().len(), 1);
    assert!(seen(&fs) == before);
    fs.close().unwrap();
    judge(&device, &before);
}

#[test]
fn limits_stop_after_a_batch() {
    let device = formatted(512 << 20);
    let fs = shared_by_snapshots(&device);
    let before = seen(&fs);
    let none = SharedDefragmentOptions { max_time: Some(Duration::ZERO), ..Default::default() };
    let report = merge_with(&fs, &none);
    assert!(report.stopped && report.replaced == 0, "{report:?}");
    let few = SharedDefragmentOptions { max_extents: Some(150), ..Default::default() };
    let report = merge_with(&fs, &few);
    assert!(report.stopped && (1..=150).contains(&report.replaced), "{report:?}");
    let few = SharedDefragmentOptions { max_bytes: Some(64 << 10), ..Default::default() };
    let report = merge_with(&fs, &few);
    assert!(report.stopped && report.bytes <= 64 << 10, "{report:?}");
    let files: Vec<_> = files(&fs).into_iter().map(|(_, inode)| inode).collect();
    let mut batches = 0;
    let report = fs.defragment_shared(&files, 0..u64::MAX, &SharedDefragmentOptions::default(), |_| {
        batches += 1;
        false
    });
    assert!(report.unwrap().stopped && batches == 1);
    assert!(seen(&fs) == before);
    fs.close().unwrap();
    judge(&device, &before);
}

#[test]
fn quotas_count_the_same() {
    for simple in [false, true] {
        let device = formatted(512 << 20);
        let fs = shared_by_snapshots(&device);
        if simple { fs.enable_simple_quotas() } else { fs.enable_quotas() }.unwrap();
        if !simple {
            fs.rescan_quotas(|_| {}).unwrap();
        }
        fragmented(&fs, "/s/new", &content(60, 9));
        overwrite(&fs, "/s/g", (0..100).step_by(9), 0xcc);
        fs.sync().unwrap();
        let before = seen(&fs);
        let report = merge(&fs);
        assert!(report.replaced > 0, "{report:?}");
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

pub(crate) fn sent(fs: &FileSystem, path: &str, parent: &str) -> Vec<u8> {
    let id = |path: &str| fs.inode(path).unwrap().tree();
    let mut bytes = Vec::new();
    let options = SendOptions::new().parent(Some(id(parent)));
    options.send(fs, id(path), &mut bytes, &mut ()).unwrap();
    bytes
}

#[test]
fn streams_from_snapshot_to_snapshot_stay_as_they_were() {
    let device = formatted(512 << 20);
    let fs = shared_by_snapshots(&device);
    overwrite(&fs, "/s/g", [10, 11, 40, 70].into_iter(), 0xee);
    fs.snapshot("/s", "/last", true).unwrap();
    let pairs = [("/snapshot1", "/snapshot0"), ("/last", "/snapshot0")];
    let before = pairs.map(|(path, parent)| sent(&fs, path, parent));
    assert!(merge(&fs).replaced > 0);
    let after = pairs.map(|(path, parent)| sent(&fs, path, parent));
    assert!(before[0] == after[0] && after[0].len() < 500, "nothing changed: {}", after[0].len());
    assert!(before[1].len() >= after[1].len(), "{} {}", before[1].len(), after[1].len());
    fs.close().unwrap();
}

#[test]
fn readers_and_writers_go_on() {
    let device = formatted(512 << 20);
    let fs = shared_by_snapshots(&device);
    let before = seen(&fs);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for path in ["/s/f", "/snapshot3/f", "/snapshot9/g", "/s/h"] {
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
        for number in 0..6 {
            let report = merge(&fs);
            assert!(number > 0 || report.replaced > 300, "{report:?}");
            overwrite(&fs, "/snapshot3/g", (number..90).step_by(5), number as u8);
        }
        ended.store(true, Ordering::Relaxed);
    });
    fs.close().unwrap();
    let fs = open(&device);
    let after = seen(&fs);
    for (path, known) in before.iter().filter(|(path, _)| !path.ends_with(b"snapshot3/g")) {
        assert!(after[path] == *known, "{}", String::from_utf8_lossy(path));
    }
    fs.close().unwrap();
    judge(&device, &after);
}

#[test]
fn a_snapshot_in_deletion_is_no_obstacle() {
    let device = formatted(512 << 20);
    let fs = shared_by_snapshots(&device);
    overwrite(&fs, "/snapshot3/g", (0..50).step_by(3), 7);
    for number in [3, 4] {
        fs.delete_subvolume(format!("/snapshot{number}")).unwrap();
    }
    fs.sync().unwrap();
    let before = seen(&fs);
    assert!(merge(&fs).replaced > 0);
    fs.clean_subvolumes_step().unwrap();
    merge(&fs);
    fs.clean_subvolumes().unwrap();
    merge(&fs);
    assert!(seen(&fs) == before);
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
    fragmented(&fs, "/s/good", &content(40, 1));
    fragmented(&fs, "/s/shared", &content(40, 2));
    let source = fs.open_file("/s/shared").unwrap();
    fs.create_file("/t/clone").unwrap().clone_range(&source, 0, 40 * SECTOR as u64, 0).unwrap();
    let damaged: TreeId = fs.inode("/t").unwrap().tree();
    drop(source);
    fs.close().unwrap();
    for place in places_of_blocks(&device, |header| header.level == 0 && header.owner == damaged) {
        device.write_at(&[0x55; 64], PhysicalAddress(place.0 + 2000)).unwrap();
    }
    let fs = open(&device);
    let of = |path: &str| fs.inode(path).unwrap();
    let files = [of("/s/good"), of("/s/shared")];
    let options = SharedDefragmentOptions::default();
    let report = fs.defragment_shared(&files, 0..u64::MAX, &options, |_| true).unwrap();
    assert_eq!((report.replaced, report.made), (40, 1), "{report:?}");
    assert_eq!(report.staying.len(), 40, "{report:?}");
    assert!(report.staying.iter().all(|one| matches!(one.reason, StayReason::Damaged(_))));
    assert!(fs.read("/s/shared").unwrap() == content(40, 2) && fs.read("/s/good").unwrap() == content(40, 1));
    let bad = |error: Error| error.to_string();
    fs.inode("/t/clone").map(drop).map_err(bad).unwrap_err();
    fs.close().unwrap();
}

#[test]
fn bad_data_is_not_moved() {
    let device = formatted(256 << 20);
    let fs = open(&device);
    fragmented(&fs, "/f", &content(40, 1));
    fragmented(&fs, "/g", &content(40, 2));
    fs.close().unwrap();
    let first = content(40, 1)[..SECTOR].to_vec();
    for place in (0..device.size()).step_by(SECTOR).map(PhysicalAddress) {
        let mut sector = vec![0; SECTOR];
        device.read_at(&mut sector, place).unwrap();
        if sector == first {
            device.write_at(&[0x55; 64], place).unwrap();
        }
    }
    let fs = open(&device);
    let report = merge(&fs);
    assert!(report.stay.keys().any(|reason| matches!(reason, StayReason::Damaged(_))), "{report:?}");
    assert_eq!(fs.open_file("/g").unwrap().fiemap(0).unwrap().len(), 1);
    assert!(fs.open_file("/f").unwrap().fiemap(0).unwrap().len() > 30);
    assert!(fs.read("/f").is_err() && fs.read("/g").unwrap() == content(40, 2));
    fs.close().unwrap();
}

#[test]
fn file_systems_for_reading_and_busy_ones_are_refused() {
    let device = formatted(256 << 20);
    let fs = open(&device);
    fragmented(&fs, "/f", &content(40, 1));
    let inode = fs.inode("/f").unwrap();
    let options = SharedDefragmentOptions::default();
    let mut inner = None;
    fs.defragment_shared([&inode], 0..u64::MAX, &options, |_| {
        inner = Some(fs.defragment_shared([&inode], 0..u64::MAX, &options, |_| true));
        true
    })
    .unwrap();
    assert!(matches!(inner, Some(Err(Error::Busy { .. }))), "{inner:?}");
    fs.close().unwrap();
    let fs = crate::in_memory::open_read_only(&device);
    let inode = fs.inode("/f").unwrap();
    let refused = fs.defragment_shared([&inode], 0..u64::MAX, &options, |_| true).unwrap_err();
    assert!(matches!(refused, Error::ReadOnlyFileSystem { .. }), "{refused}");
}

#[test]
fn every_state_after_a_power_cut_is_complete() {
    let states = std::env::var("PAPILIO_MOVED_STATES").map_or(25, |number| number.parse().unwrap());
    let device = formatted(320 << 20);
    let fs = shared_by_snapshots(&device);
    overwrite(&fs, "/s/g", (0..100).step_by(9), 0xcc);
    fs.close().unwrap();
    let fs = open(&device);
    let before = seen(&fs);
    fs.close().unwrap();
    let recording = Recording::new();
    let attached: Arc<dyn Device> = Arc::new(recording.attach(device.clone()));
    let fs = FileSystem::from_devices(vec![attached], &writable()).unwrap();
    let few = SharedDefragmentOptions { max_extents: Some(200), ..Default::default() };
    while merge_with(&fs, &few).replaced > 0 {}
    merge(&fs);
    fs.close().unwrap();
    let (mut replay, end) = (recording.replay(), recording.len() as u64);
    let mut random = fastrand::Rng::with_seed(end);
    let mut moments: Vec<_> = (0..states).map(|_| random.u64(..=end)).collect();
    moments.sort_unstable();
    for (number, moment) in (0..).zip(moments) {
        replay.advance(moment as usize);
        let crashed = Arc::new(replay.crash(random.u64(..)).swap_remove(0));
        let fs = FileSystem::from_devices(vec![crashed.clone() as Arc<dyn Device>], &writable()).unwrap();
        assert!(seen(&fs) == before, "event {moment} of {end}");
        let report = fs.check(&CheckOptions::new().data_csum(true)).unwrap();
        assert!(report.is_clean(), "event {moment} of {end}: {:#?}", report.findings);
        if number % 8 == 4 {
            merge(&fs);
            fs.close().unwrap();
            judge(&crashed, &before);
        }
    }
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
    let run = |arguments: &[&str]| {
        let mut shell = Command::new("sh");
        shell.args(["-ec", &arguments.join(" ")]).current_dir(mounted.path());
        assert!(shell.status().unwrap().success(), "{arguments:?}");
    };
    run(&["btrfs -q subvolume create s;"]);
    run(&[
        "for i in $(seq 0 2 198); do",
        "dd if=/dev/urandom of=s/f bs=4k count=1 seek=$i conv=notrunc,fsync status=none; done;",
        "for i in $(seq 1 2 199); do",
        "dd if=/dev/urandom of=s/f bs=4k count=1 seek=$i conv=notrunc,fsync status=none; done;",
        "cp --reflink=always s/f s/g;",
    ]);
    run(&["for i in $(seq 20); do btrfs -q subvolume snapshot -r s snapshot$i; done; sync"]);
    run(&["dd if=/dev/urandom of=s/f bs=4k count=3 seek=50 conv=notrunc status=none; sync"]);
    mounted.unmount().unwrap();
    let options = OpenOptions::new().write(true).commit_interval(None);
    let fs = FileSystem::open_with(&path, &options).unwrap();
    let (before, space, count) = (seen(&fs), used(&fs), extents(&fs));
    let report = merge(&fs);
    assert!(report.staying.is_empty() && extents(&fs) < count / 8, "{count}: {report:?}");
    assert!(used(&fs).0 <= space.0 && used(&fs).1 <= space.1, "{:?} {space:?}", used(&fs));
    assert!(seen(&fs) == before);
    let scrubbed = fs.scrub(&ScrubOptions::new(), |_| true).unwrap();
    assert!(!scrubbed.total().has_errors(), "{scrubbed:?}");
    fs.close().unwrap();
    let mounted = images.mount().unwrap();
    for (name, (content, _)) in &before {
        let name = std::str::from_utf8(name).unwrap().trim_start_matches('/');
        assert!(std::fs::read(mounted.path().join(name)).unwrap() == *content, "{name}");
    }
    let scrub = Command::new("btrfs").args(["scrub", "start", "-B"]).arg(mounted.path()).output().unwrap();
    assert!(scrub.status.success(), "{scrub:?}");
    mounted.unmount().unwrap();
    images.btrfs_check().unwrap();
}
