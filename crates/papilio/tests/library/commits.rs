//! Commits write nothing without a change. With one they write features, roots of subvolumes,
//! device use and the numbers of qgroups. In memory, so that no test needs the kernel.

use crate::in_memory::{
    assert_clean, check_all, close_clean, formatted, formatted_with, new_file_system, open,
};
use crate::in_memory::{open_with, superblock, try_open, writable};
use papilio::format::Uuid;
use papilio::format::features::IncompatFeatures;
use papilio::format::items::file_extent::Compression;
use papilio::format::items::inode::Timespec;
use papilio::{
    CompressionChoice, DiscardMode, ErrorKind, FileSystem, MkfsOptions, NewInode, NewKind, OpenOptions,
    QgroupId, QuotaError,
};
use papilio_device::{Action, Device, Event, MemoryDevice, Recording};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

#[test]
fn a_commit_without_a_change_writes_nothing() {
    let (device, fs) = new_file_system(128 * MIB);
    fs.write("/file", "some bytes").unwrap();
    fs.sync().unwrap();
    let generation = superblock(&device).raw.generation;
    for _ in 0..3 {
        fs.sync().unwrap();
        assert_eq!(superblock(&device).raw.generation, generation);
    }
    fs.write("/file", "other bytes").unwrap();
    fs.sync().unwrap();
    assert_eq!(superblock(&device).raw.generation.0, generation.0 + 1);
    close_clean(fs, &device);
    assert_eq!(superblock(&device).raw.generation.0, generation.0 + 1);
}

#[test]
fn compression_sets_its_feature() {
    let device = formatted(128 * MIB);
    let zstd = || superblock(&device).raw.incompat_flags.contains(IncompatFeatures::COMPRESS_ZSTD);
    let before = superblock(&device).raw.incompat_flags;
    assert!(!zstd());
    let fs = open_with(&device, &writable().compress(CompressionChoice::new(Compression::Zstd)));
    fs.write("/file", vec![7; 1 << 20]).unwrap();
    fs.sync().unwrap();
    assert!(zstd() && superblock(&device).raw.incompat_flags.contains(before));
    close_clean(fs, &device);
}

#[test]
fn only_changed_subvolumes_get_a_new_generation() {
    let (device, fs) = new_file_system(128 * MIB);
    for path in ["/one", "/two"] {
        fs.create_subvolume(path).unwrap();
        fs.write(format!("{path}/file"), "bytes").unwrap();
    }
    fs.sync().unwrap();
    let changed = |path: &str| {
        let id = fs.inode(path).unwrap().tree();
        let subvolume = fs.subvolume(id).unwrap();
        (subvolume.changed, subvolume.change_time)
    };
    let before = (changed("/one"), changed("/two"));
    fs.write("/one/more", "bytes").unwrap();
    fs.sync().unwrap();
    let generation = superblock(&device).raw.generation;
    assert_eq!(changed("/one").0, generation);
    assert!(changed("/one").1 >= before.0.1);
    assert_eq!(changed("/two"), before.1);
    close_clean(fs, &device);
}

#[test]
fn chunks_of_several_columns_give_their_bytes_back() {
    let devices: Vec<_> = (0..2).map(|_| Arc::new(MemoryDevice::new(512 * MIB))).collect();
    let all = || devices.iter().map(|device| device.clone() as Arc<dyn Device>).collect::<Vec<_>>();
    let options = MkfsOptions::new().data_profile(papilio::RaidProfile::Raid0);
    papilio::mkfs_devices(&all(), &options).unwrap();
    let used = || devices.iter().map(|device| superblock(device).raw.dev_item.bytes_used).collect::<Vec<_>>();
    let fs = FileSystem::from_devices(all(), &writable()).unwrap();
    let before = used();
    fs.write("/large", vec![5; 300 << 20]).unwrap();
    fs.sync().unwrap();
    assert!(used() > before);
    fs.remove_file("/large").unwrap();
    for _ in 0..3 {
        fs.write("/small", "changed").unwrap();
        fs.sync().unwrap();
    }
    assert!(used() <= before, "{:?} {before:?}", used());
    fs.close().unwrap();
    let report = check_all(all());
    assert!(report.is_clean(), "{:#?}", report.findings);
}

#[test]
fn uuids_are_random_unless_the_time_is_fixed() {
    let uuids = |time: Option<Timespec>| {
        let device = formatted(128 * MIB);
        let fs = open_with(&device, &writable().timestamp(time));
        let uuids = ["/one", "/two"].map(|path| {
            let id = fs.create_subvolume(path).unwrap().tree();
            fs.subvolume(id).unwrap().uuid
        });
        close_clean(fs, &device);
        uuids
    };
    let versions = |uuids: [Uuid; 2]| uuids.map(|uuid| uuid.get_version_num());
    assert_eq!(versions(uuids(None)), [4, 4]);
    let time = Timespec { seconds: 1_000_000_000, nanoseconds: 0 };
    let derived = uuids(Some(time));
    assert_eq!(versions(derived), [8, 8]);
    assert_ne!(derived[0], derived[1]);
}

/// Compares the numbers of all qgroups with a count of all extents.
fn assert_counted(fs: &FileSystem, when: &str) {
    fs.sync().unwrap();
    assert!(!fs.quota_status().unwrap().unwrap().is_inconsistent(), "{when}");
    let kept = fs.qgroups().unwrap().into_iter().map(|group| (group.id, group.referenced, group.exclusive));
    let mut counted = fs.count_qgroups().unwrap();
    counted.sort_unstable();
    assert_eq!(kept.collect::<Vec<_>>(), counted, "{when}");
}

/// A file system with small blocks, so that trees are deep, and with quotas.
fn with_quotas(simple: bool) -> (Arc<MemoryDevice>, FileSystem) {
    let device = formatted_with(256 * MIB, &MkfsOptions::new().node_size(4096));
    let fs = open(&device);
    if simple {
        fs.enable_simple_quotas().unwrap();
    } else {
        fs.enable_quotas().unwrap();
        fs.rescan_quotas(|_| ()).unwrap();
    }
    (device, fs)
}

fn write(fs: &FileSystem, path: &str, byte: u8) {
    let file = fs.open_file(path).or_else(|_| fs.create_file(path)).unwrap();
    file.write_all_at(&vec![byte; if byte.is_multiple_of(2) { 1000 } else { 9000 }], 0).unwrap();
}

#[test]
fn qgroups_hold_what_a_count_finds() {
    for simple in [false, true] {
        let (device, fs) = with_quotas(simple);
        let mut random = fastrand::Rng::with_seed(7 + u64::from(simple));
        let mut subvolumes = vec!["/first".to_owned()];
        fs.create_subvolume("/first").unwrap();
        for round in 0..12 {
            for _ in 0..120 {
                let subvolume = &subvolumes[random.usize(..subvolumes.len())];
                let path = format!("{subvolume}/{}", random.u8(..150));
                match random.u8(..8) {
                    0 => drop(fs.remove_file(&path)),
                    _ => write(&fs, &path, random.u8(..)),
                }
            }
            assert_counted(&fs, &format!("round {round}"));
            if round == 8 {
                let gone = subvolumes.swap_remove(random.usize(..subvolumes.len()));
                fs.delete_subvolume(&gone).unwrap();
                fs.clean_subvolumes().unwrap();
                assert_counted(&fs, "a subvolume is gone");
            }
            let (from, new) = (&subvolumes[random.usize(..subvolumes.len())], format!("/s{round}"));
            fs.snapshot(from, &new, false).unwrap();
            subvolumes.push(new);
        }
        assert_counted(&fs, "before it is opened again");
        fs.close().unwrap();
        let fs = open(&device);
        write(&fs, &format!("{}/again", subvolumes[0]), 1);
        assert_counted(&fs, "opened again");
        if !simple {
            fs.rescan_quotas(|_| ()).unwrap();
            assert_counted(&fs, "a rescan");
        }
        close_clean(fs, &device);
    }
}

#[test]
fn a_rescan_counts_an_extent_that_changes_meanwhile_once() {
    let (device, fs) = with_quotas(false);
    fs.create_subvolume("/a").unwrap();
    // More extents than a step of the rescan counts.
    for name in 0..6000 {
        fs.write(format!("/a/{name}"), [name as u8; 4096]).unwrap();
    }
    assert_counted(&fs, "written");
    let mut steps = 0;
    fs.rescan_quotas(|_| {
        steps += 1;
        if steps == 1 {
            for name in 0..6000 {
                fs.remove_file(format!("/a/{name}")).unwrap();
            }
            fs.sync().unwrap();
        }
    })
    .unwrap();
    assert!(steps > 0);
    assert_counted(&fs, "removed during the rescan");
    close_clean(fs, &device);
}

#[test]
fn a_subvolume_that_is_half_gone_is_counted() {
    let (device, fs) = with_quotas(false);
    fs.create_subvolume("/a").unwrap();
    fs.create_subvolume("/b").unwrap();
    // All items refer to one extent from its first byte on, so that its reference stays until the
    // last of them goes.
    let file = fs.create_file("/a/0").unwrap();
    file.allocate(0, 64 << 20, false).unwrap();
    for number in 0..8000 {
        file.punch_hole(number * 8192, 4096).unwrap();
    }
    drop(file);
    // After a snapshot, references are followed to find out which subvolumes reach the extent.
    fs.snapshot("/a", "/snapshot", true).unwrap();
    fs.delete_subvolume("/snapshot").unwrap();
    fs.clean_subvolumes().unwrap();
    assert_counted(&fs, "full of holes");
    fs.delete_subvolume("/a").unwrap();
    fs.sync().unwrap();
    let mut steps = 0;
    while fs.clean_subvolumes_step().unwrap() {
        steps += 1;
        fs.sync().unwrap();
        // Others take the places of blocks that are gone.
        for name in 0..30_000 {
            fs.write(format!("/b/{steps}-{name}"), [name as u8; 900]).unwrap();
        }
        assert_counted(&fs, &format!("step {steps}"));
    }
    assert!(steps > 1, "{steps}");
    assert_counted(&fs, "gone");
    close_clean(fs, &device);
}

#[test]
fn extents_from_before_simple_quotas_stay_uncharged() {
    let device = formatted_with(256 * MIB, &MkfsOptions::new().node_size(4096));
    let fs = open(&device);
    fs.create_subvolume("/a").unwrap();
    fs.write("/a/old", vec![1; 1 << 20]).unwrap();
    fs.sync().unwrap();
    fs.enable_simple_quotas().unwrap();
    fs.write("/a/new", vec![2; 4 << 20]).unwrap();
    assert_counted(&fs, "a new file");
    fs.remove_file("/a/old").unwrap();
    assert_counted(&fs, "the old file is gone");
    fs.remove_file("/a/new").unwrap();
    assert_counted(&fs, "both are gone");
    close_clean(fs, &device);
}

#[test]
fn a_snapshot_gives_an_empty_group_its_numbers() {
    let (device, fs) = with_quotas(false);
    let (empty, full) = (QgroupId::new(1, 0).unwrap(), QgroupId::new(1, 1).unwrap());
    for id in [empty, full] {
        fs.create_qgroup(id).unwrap();
    }
    let source = fs.create_subvolume("/a").unwrap();
    write(&fs, "/a/file", 1);
    let root = fs.inode("/").unwrap();
    let within = |id| root.create_subvolume_in(b"member", &NewInode::new(NewKind::Directory, 0o755), &[id]);
    within(full).unwrap();
    assert_counted(&fs, "a member each");
    root.create_snapshot_in(source.tree(), b"first", true, &[empty]).unwrap();
    assert_counted(&fs, "the group was empty");
    // Nobody knows how much a group with other members shares with a snapshot.
    root.create_snapshot_in(source.tree(), b"second", true, &[full]).unwrap();
    assert!(fs.quota_status().unwrap().unwrap().is_inconsistent());
    fs.rescan_quotas(|_| ()).unwrap();
    assert_counted(&fs, "a rescan");
    close_clean(fs, &device);
}

#[test]
fn limits_count_a_changed_block_once() {
    let (device, fs) = with_quotas(false);
    fs.create_subvolume("/a").unwrap();
    for name in 0..2000 {
        fs.write(format!("/a/{name}"), vec![1; 900]).unwrap();
    }
    fs.sync().unwrap();
    let id = QgroupId(fs.inode("/a").unwrap().tree().0);
    let used = fs.qgroups().unwrap().iter().find(|group| group.id == id).unwrap().referenced;
    assert!(used > MIB, "{used}");
    // The limit leaves room for a change, but not for a second copy of the tree.
    fs.limit_qgroup(id, Some(used + MIB / 2), false).unwrap();
    let generation = superblock(&device).raw.generation;
    for name in 0..2000 {
        fs.set_permissions(format!("/a/{name}"), 0o600).unwrap();
    }
    fs.write("/a/0", vec![2; 900]).unwrap();
    // A change that a limit refuses commits, and is tried again.
    assert_eq!(superblock(&device).raw.generation, generation, "a limit refused a change");
    close_clean(fs, &device);
}

/// Whether quotas refused the change.
fn is_refused<T: std::fmt::Debug>(result: papilio::Result<T>) -> bool {
    match result {
        Ok(_) => false,
        Err(error) if matches!(error.kind(), ErrorKind::Quota(QuotaError::Exceeded { .. })) => true,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn limits_stay_and_count_blocks() {
    let (device, fs) = with_quotas(false);
    fs.create_subvolume("/a").unwrap();
    let id = QgroupId(fs.inode("/a").unwrap().tree().0);
    fs.limit_qgroup(id, Some(MIB), false).unwrap();
    // Blocks that come and go count for nothing after a commit.
    for round in 0..30 {
        for name in 0..120 {
            fs.write(format!("/a/{name}"), vec![1; 900]).unwrap();
        }
        fs.sync().unwrap();
        for name in 0..120 {
            fs.remove_file(format!("/a/{name}")).unwrap();
        }
        if round % 2 == 0 {
            fs.sync().unwrap();
        }
    }
    fs.close().unwrap();
    // The limit holds in the next mount, for blocks before their commit, too.
    let fs = open(&device);
    let refused = (0..3000).find(|name| is_refused(fs.write(format!("/a/{name}"), vec![1; 900])));
    let refused = refused.expect("blocks count, too");
    assert!((500..2000).contains(&refused), "{refused}");
    assert!(is_refused(fs.write("/a/large", vec![1; 2 << 20])));
    // A snapshot has the limit of its source.
    fs.snapshot("/a", "/b", false).unwrap();
    let groups = fs.qgroups().unwrap();
    let of = |path: &str| {
        let id = QgroupId(fs.inode(path).unwrap().tree().0);
        groups.iter().find(|group| group.id == id).unwrap().max_referenced
    };
    assert_eq!((of("/a"), of("/b")), (Some(MIB), Some(MIB)));
    assert!(is_refused(fs.write("/b/large", vec![1; 2 << 20])));
    close_clean(fs, &device);
}

#[test]
fn every_group_may_have_a_limit() {
    let (device, fs) = with_quotas(false);
    for group in fs.qgroups().unwrap() {
        fs.limit_qgroup(group.id, Some(4 * MIB), false).unwrap();
    }
    assert!(!is_refused(fs.write("/small", vec![1; 1 << 20])));
    assert!(is_refused(fs.write("/large", vec![1; 8 << 20])));
    close_clean(fs, &device);
}

#[test]
fn the_group_of_a_deleted_subvolume_goes() {
    let (device, fs) = with_quotas(false);
    let mut ids = Vec::new();
    for path in ["/a", "/b"] {
        fs.create_subvolume(path).unwrap();
        write(&fs, &format!("{path}/file"), 1);
        ids.push(QgroupId(fs.inode(path).unwrap().tree().0));
    }
    let has = |id| fs.qgroups().unwrap().iter().any(|group| group.id == id);
    fs.delete_subvolume("/a").unwrap();
    assert!(has(ids[0]), "its bytes are still there");
    fs.clean_subvolumes().unwrap();
    fs.sync().unwrap();
    assert!(!has(ids[0]) && has(ids[1]));
    assert_counted(&fs, "one is left");
    fs.close().unwrap();
    assert_clean(&device);
}

/// Reads all files of a state. Returns the number of bytes.
fn read_all(fs: &FileSystem) -> papilio::Result<u64> {
    let mut bytes = 0;
    for entry in fs.read_dir("/")? {
        bytes += fs.read(format!("/{}", String::from_utf8_lossy(entry?.file_name())))?.len() as u64;
    }
    Ok(bytes)
}

/// Which backup roots lead to a state that can be read as a whole.
fn readable_backups(device: &Arc<MemoryDevice>) -> [bool; 4] {
    [0, 1, 2, 3].map(|number| {
        let opened = try_open(device, &OpenOptions::new().backup_root(number));
        opened.is_ok_and(|fs| read_all(&fs).is_ok())
    })
}

/// Power cuts around each discard while space is freed and used again: the last commit is whole,
/// and no discard takes anything from a state that a backup root leads to.
#[test]
fn discards_spare_what_backup_roots_lead_to() {
    let recording = Recording::new();
    let device = formatted(512 * MIB);
    let recorded = Arc::new(recording.attach(device));
    let fs = open_with(&recorded, &writable().discard(DiscardMode::Async));
    for round in 0..16u8 {
        fs.write(format!("/small {}", round % 3), vec![round; 300 << 10]).unwrap();
        if round % 2 == 0 {
            fs.write("/large", vec![round; 24 << 20]).unwrap();
        } else {
            fs.remove_file("/large").unwrap();
        }
        fs.sync().unwrap();
    }
    drop(fs);
    let events = recording.events();
    let is_discard = |event: &Event| matches!(event.action, Action::Discard { .. });
    let (mut replay, mut discards, mut spared) = (recording.replay(), 0, 0);
    for (position, _) in (0..).zip(&events).filter(|(_, event)| is_discard(event)) {
        let mut state = |events: usize| {
            replay.advance(events);
            Arc::new(replay.everything().remove(0))
        };
        let before = readable_backups(&state(position));
        let device = state(position + 1);
        let after = readable_backups(&device);
        read_all(&open_with(&device, &OpenOptions::new())).unwrap();
        for (number, (before, after)) in before.into_iter().zip(after).enumerate() {
            assert!(after || !before, "event {position}: a discard took the state of backup {number}");
            spared += usize::from(after);
        }
        discards += 1;
    }
    assert!(discards >= 10 && spared > 2 * discards, "{discards} discards, {spared} states");
}
