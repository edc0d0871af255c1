//! Power cuts at every write of a conversion and of a way back.
//!
//! `PAPILIO_CONVERT_CUTS` is the number of states to judge in each direction (200).

use super::fill::{bytes, flags};
use super::world::{NEEDS, World, XFS_NEEDS};
use papilio_convert::{ConvertOptions, convert, rollback};
use papilio_device::{Device, MemoryDevice, PhysicalAddress, Recording};
use papilio_engine::options::OpenOptions;
use papilio_fs::check_devices;
use papilio_oracle::require;
use papilio_progs::check::CheckOptions;
use std::fs;
use std::path::Path;
use std::sync::Arc;

fn cuts() -> usize {
    std::env::var("PAPILIO_CONVERT_CUTS").ok().and_then(|text| text.parse().ok()).unwrap_or(200)
}

fn few_files(root: &Path) {
    for at in 0..150 {
        fs::write(root.join(format!("file {at}")), bytes(at, at as usize * 500)).unwrap();
    }
    fs::create_dir(root.join("folder")).unwrap();
    fs::write(root.join("folder/large"), bytes(7, 6 << 20)).unwrap();
    // Something lies where the second superblock goes.
    fs::write(root.join("larger"), bytes(8, 60 << 20)).unwrap();
    flags(root);
}

/// Whether the device has a Btrfs superblock.
fn is_btrfs(device: &MemoryDevice) -> bool {
    let mut magic = [0; 8];
    device.read_at(&mut magic, PhysicalAddress(65536 + 64)).unwrap();
    &magic == b"_BHRfS_M"
}

/// Judges a state: a valid source, or a valid Btrfs. Returns whether it is Btrfs.
fn judge(world: &World, state: MemoryDevice, what: &str) -> bool {
    if is_btrfs(&state) {
        let device: Arc<dyn Device> = Arc::new(state);
        // The next run completes what the cut left out.
        papilio_convert::finish_interrupted(&device).unwrap();
        assert!(!papilio_convert::finish_interrupted(&device).unwrap(), "{what}");
        let options = CheckOptions::new().data_csum(true);
        let report =
            check_devices(vec![device], &OpenOptions::new().ignore_signatures(true), &options).unwrap();
        assert!(report.is_clean(), "{what}: {:?}", report.findings);
        return true;
    }
    let path = world.scratch.path().join("state");
    state.write_image(&path).unwrap();
    let checked = std::panic::catch_unwind(|| world.kind.check(&path));
    fs::remove_file(&path).unwrap();
    assert!(checked.is_ok(), "{what}");
    false
}

/// Judges states of a recording: each moment around the end, and others at random.
fn judge_all(world: &World, recording: &Recording, expected: &[bool]) -> usize {
    let count = recording.len();
    let mut random = fastrand::Rng::with_seed(5);
    let mut moments: Vec<usize> = (count.saturating_sub(30)..=count).collect();
    moments.extend((0..cuts().saturating_sub(moments.len() * 3) / 2).map(|_| random.usize(0..=count)));
    moments.sort_unstable();
    moments.dedup();
    let mut replay = recording.replay();
    let (mut judged, mut kinds) = (0, [false; 2]);
    for moment in moments {
        replay.advance(moment);
        let mut states = vec![replay.durable().remove(0), replay.everything().remove(0)];
        if moment + 30 >= count {
            states.push(replay.crash(moment as u64).remove(0));
        }
        for (at, state) in states.into_iter().enumerate() {
            kinds[usize::from(judge(world, state, &format!("moment {moment} of {count}, state {at}")))] =
                true;
            judged += 1;
        }
    }
    assert_eq!(kinds, [expected[0], expected[1]]);
    judged
}

#[test]
fn a_cut_leaves_the_old_or_the_new_file_system() {
    if require(NEEDS).is_none() {
        return;
    }
    cut_both_ways(&World::new("-t ext4 -b 4096", 200, few_files));
}

#[test]
fn a_cut_leaves_xfs_or_the_new_file_system() {
    if require(XFS_NEEDS).is_none() {
        return;
    }
    cut_both_ways(&World::xfs("-l size=10m -d agcount=2", 200, |root| {
        few_files(root);
        super::xfs_fill::reflinks(root);
    }));
}

/// A device may write a part of the superblock only. A copy in free space of the source tells the
/// rest.
#[test]
fn a_torn_switch_is_completed() {
    if require(NEEDS).is_none() || require(XFS_NEEDS).is_none() {
        return;
    }
    let fill = |root: &Path| fs::write(root.join("a"), bytes(1, 100_000)).unwrap();
    for world in [World::new("-t ext4 -b 4096", 100, fill), World::xfs("-l size=10m", 100, fill)] {
        let before = MemoryDevice::from_image(&world.image).unwrap();
        world.convert();
        let after = MemoryDevice::from_image(&world.image).unwrap();
        world.roll_back().unwrap();
        let back = MemoryDevice::from_image(&world.image).unwrap();
        let mut completed = 0;
        for parts in (0..=255u32).step_by(5) {
            let torn = after.snapshot();
            let mut bytes = vec![0; 65536];
            before.read_at(&mut bytes, PhysicalAddress(0)).unwrap();
            torn.write_at(&bytes, PhysicalAddress(0)).unwrap();
            for part in 0..8 {
                let from = if parts >> part & 1 == 1 { &after } else { &before };
                let place = PhysicalAddress(65536 + part * 512);
                from.read_at(&mut bytes[..512], place).unwrap();
                torn.write_at(&bytes[..512], place).unwrap();
            }
            let before_run = torn.snapshot();
            let torn = Arc::new(torn);
            let device: Arc<dyn Device> = Arc::clone(&torn) as Arc<dyn Device>;
            if !papilio_convert::finish_interrupted(&device).unwrap() {
                // Nothing of the new superblock but zeros was written.
                assert!(torn.same_content(&before_run) && !is_btrfs(&torn), "parts {parts:#x}");
                continue;
            }
            assert!(is_btrfs(&torn), "parts {parts:#x}");
            completed += 1;
            if parts % 4 == 1 {
                let options = OpenOptions::new();
                let report = check_devices(vec![device], &options, &CheckOptions::new()).unwrap();
                assert!(report.is_clean(), "parts {parts:#x}: {:?}", report.findings);
            }
        }
        assert!(completed > 30, "{completed}");
        // A whole way back is one, whatever copies it leaves.
        let device: Arc<dyn Device> = Arc::new(back);
        assert!(!papilio_convert::finish_interrupted(&device).unwrap());
    }
}

/// Converts a source and brings it back, and judges states in between.
fn cut_both_ways(world: &World) {
    let recording = Recording::new();
    let memory = Arc::new(MemoryDevice::from_image(&world.image).unwrap());
    let device: Arc<dyn Device> = Arc::new(recording.attach(Arc::clone(&memory)));
    convert(&device, &ConvertOptions::new(), &mut |_| ()).unwrap();
    drop(device);
    assert!(is_btrfs(&memory));
    let judged = judge_all(world, &recording, &[true, true]);
    assert!(judged >= cuts() / 2, "{judged}");

    let recording = Recording::new();
    let device: Arc<dyn Device> = Arc::new(recording.attach(Arc::clone(&memory)));
    rollback(&device, &mut |_| ()).unwrap();
    drop(device);
    assert!(!is_btrfs(&memory));
    judge_all(world, &recording, &[true, true]);
}
