//! File systems on memory devices that the tests change, and how they are judged.

use crate::in_memory::writable;
use papilio::device::Device;
use papilio::format::features::IncompatFeatures;
use papilio::format::superblock::{RawSuperblock, SUPERBLOCK_SIZE, Superblock, superblock_offset};
use papilio::{
    CheckOptions, FileSystem, Finding, FindingKind, MkfsOptions, OpenOptions, RaidProfile, Tune, Tuned,
};
use papilio_device::{Access, FileDevice, MemoryDevice, Recording};
use papilio_oracle::{
    CompareOptions, FileSystemSpec, HostTree, ImageSet, Manifest, ManifestOptions, Mounted,
};
use papilio_oracle::{Need, Scratch, TreeSpec, require};
use std::sync::Arc;

pub const SIZE: u64 = 256 << 20;
const FILES: usize = 400;
/// The kernel mounts one of so many states.
const KERNEL_SHARE: u64 = 8;

pub fn states() -> u64 {
    std::env::var("PAPILIO_TUNE_STATES").map_or(60, |number| number.parse().expect("a number"))
}

pub fn shared(devices: &[Arc<MemoryDevice>]) -> Vec<Arc<dyn Device>> {
    devices.iter().map(|device| device.clone() as Arc<dyn Device>).collect()
}

fn content(number: usize) -> Vec<u8> {
    vec![number as u8; number * 37]
}

/// Makes and fills a file system on several devices.
pub fn filled(devices: usize, metadata: RaidProfile) -> Vec<Arc<MemoryDevice>> {
    filled_with(devices, &MkfsOptions::new().metadata_profile(metadata))
}

/// As [`filled`], with options.
pub fn filled_with(devices: usize, options: &MkfsOptions) -> Vec<Arc<MemoryDevice>> {
    let memory: Vec<_> = (0..devices).map(|_| Arc::new(MemoryDevice::new(SIZE))).collect();
    papilio::mkfs_devices(&shared(&memory), options).unwrap();
    let fs = FileSystem::from_devices(shared(&memory), &writable()).unwrap();
    fs.create_subvolume("/s").unwrap();
    for number in 0..FILES {
        fs.write(format!("/s/{number}"), content(number)).unwrap();
    }
    fs.snapshot("/s", "/snapshot", true).unwrap();
    fs.close().unwrap();
    memory
}

pub fn superblock(device: &MemoryDevice) -> Superblock {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device.read_at(&mut bytes, superblock_offset(0)).unwrap();
    Superblock::parse(&bytes, superblock_offset(0)).unwrap()
}

pub fn tune(devices: &[Arc<MemoryDevice>], change: Tune) -> papilio::Result<Tuned> {
    papilio::tune(&shared(devices), change, &mut |_, _| {})
}

/// Checks everything, copies of blocks included, and that writing works.
pub fn judge(devices: &[Arc<MemoryDevice>], what: &str) {
    let fs = FileSystem::from_devices(shared(devices), &writable())
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    for number in 0..FILES {
        for folder in ["s", "snapshot"] {
            let path = format!("/{folder}/{number}");
            assert!(fs.read(&path).unwrap() == content(number), "{what}: {path}");
        }
    }
    let report = fs.check(&CheckOptions::new().data_csum(true)).unwrap();
    // The power may have been cut between the copies of a superblock.
    let serious = |finding: &&Finding| finding.kind != FindingKind::SuperblockCopy;
    let findings: Vec<_> = report.findings.iter().filter(serious).collect();
    assert!(findings.is_empty(), "{what}: {findings:#?}");
    fs.write("/new", b"new").unwrap();
    fs.close().unwrap();
}

/// Lets the kernel mount a state, and `btrfs check` look at it.
pub fn assert_kernel_takes(devices: &[Arc<MemoryDevice>], what: &str) {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(SIZE).unwrap();
    let paths: Vec<_> = (0..devices.len()).map(|_| scratch.unique("state")).collect();
    for (device, path) in devices.iter().zip(&paths) {
        device.write_image(path).unwrap();
    }
    let set = ImageSet::open(&scratch, paths);
    // btrfs-progs 6.2 refuse simple quotas.
    if !superblock(&devices[0]).raw.incompat_flags.contains(IncompatFeatures::SIMPLE_QUOTA) {
        set.btrfs_check().unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    let mounted = set.mount().unwrap_or_else(|error| panic!("{what}: {error}"));
    for number in 0..FILES {
        let read = std::fs::read(mounted.path().join(format!("snapshot/{number}"))).unwrap();
        assert!(read == content(number), "{what}: file {number}");
    }
    mounted.unmount().unwrap();
}

/// Records a change, and looks at states in which the power was cut meanwhile. One in which the
/// change is `done` must be sound. Where it was interrupted, no one may write, and `finish`
/// finishes it. Returns the number of interrupted states.
pub fn cut(
    devices: &[Arc<MemoryDevice>],
    change: Tune,
    finish: Tune,
    done: impl Fn(&RawSuperblock) -> bool,
) -> u64 {
    let recording = Recording::new();
    let attached: Vec<Arc<dyn Device>> =
        devices.iter().map(|device| Arc::new(recording.attach(device.clone())) as Arc<dyn Device>).collect();
    papilio::tune(&attached, change, &mut |_, _| {}).unwrap();
    let (mut replay, end) = (recording.replay(), recording.len() as u64);
    let mut random = fastrand::Rng::with_seed(end);
    // All first and last moments, which write superblocks, and some between.
    let mut moments: Vec<_> = (0..states()).map(|_| random.u64(..=end)).collect();
    moments.extend((0..=end).filter(|moment| *moment < 12 || moment + 12 > end));
    moments.sort_unstable();
    let (mut resumed, mut judged) = (0u64, 0u64);
    for moment in moments {
        replay.advance(moment as usize);
        let seed = random.u64(..);
        let what = format!("{change:?}, event {moment} of {end}, seed {seed}");
        let state: Vec<_> = replay.crash(seed).into_iter().map(Arc::new).collect();
        let finished = |raw: &RawSuperblock| done(raw) && raw.flags.unfinished().is_empty();
        let superblocks: Vec<_> = state.iter().map(|device| superblock(device).raw).collect();
        if superblocks.iter().all(finished) {
            judge(&state, &what);
            continue;
        }
        if superblocks.iter().any(|raw| !raw.flags.unfinished().is_empty()) {
            resumed += 1;
            let refused = FileSystem::from_devices(shared(&state), &OpenOptions::new().write(true));
            assert!(refused.is_err(), "{what}: an interrupted change opens for writing");
            let tuned = tune(&state, finish).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(tuned.resumed, "{what}");
        } else {
            judge(&state, &what);
            tune(&state, change).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        for device in &state {
            assert!(finished(&superblock(device).raw), "{what}");
        }
        judge(&state, &what);
        judged += 1;
        if judged % KERNEL_SHARE == 1 {
            assert_kernel_takes(&state, &what);
        }
    }
    assert!(judged > 0, "no state was before the end");
    resumed
}

/// Lets the kernel make and fill a file system, makes the changes one after the other, and compares
/// the kernel's mount after each with the first.
pub fn kernel_takes_changes(spec: FileSystemSpec, changes: &[Tune]) {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(spec.device_size).unwrap();
    let image = spec.make(&scratch).unwrap();
    let read = |mounted: &Mounted| Manifest::read(&HostTree::new(mounted.path()), ManifestOptions::default());
    let mounted = image.mount().unwrap();
    let spec = TreeSpec { files: 200, bytes: 8 << 20, ..TreeSpec::default() };
    spec.populate(mounted.path()).unwrap();
    mounted.sync().unwrap();
    let before = read(&mounted).unwrap();
    mounted.unmount().unwrap();
    for change in changes {
        let open = |path| Arc::new(FileDevice::open(path, Access::ReadWrite).unwrap()) as Arc<dyn Device>;
        let devices: Vec<_> = image.paths().iter().map(open).collect();
        papilio::tune(&devices, *change, &mut |_, _| {})
            .unwrap_or_else(|error| panic!("{change:?}: {error}"));
        drop(devices);
        image.btrfs_check().unwrap_or_else(|error| panic!("{change:?}: {error}"));
        // Writable, so that the kernel must use the trees of space. The first mount's options no
        // longer apply.
        let mounted = ImageSet::open(&scratch, image.paths().to_vec())
            .mount()
            .unwrap_or_else(|error| panic!("{change:?}: {error}"));
        // The test itself changes the times of the root.
        let options = CompareOptions { mtime: false, ctime: false, ..CompareOptions::SAME_IMAGE };
        let differences = read(&mounted).unwrap().diff(&before, &options);
        assert!(differences.is_empty(), "{change:?}: {differences:#?}");
        std::fs::write(mounted.path().join("written"), vec![7; 1 << 20]).unwrap();
        mounted.sync().unwrap();
        std::fs::remove_file(mounted.path().join("written")).unwrap();
        mounted.unmount().unwrap();
    }
}
