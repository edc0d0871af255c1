//! Changes of UUIDs and flags on memory devices, and power cuts during them: after each cut the
//! change finishes when it is started again, and all blocks and files are sound.
//!
//! `PAPILIO_TUNE_STATES` sets the number of states of each kind.

#[path = "support/in_memory.rs"]
mod in_memory;

use in_memory::writable;
use papilio::device::Device;
use papilio::format::features::{IncompatFeatures, SuperblockFlags};
use papilio::format::superblock::{SUPERBLOCK_SIZE, Superblock, superblock_offset};
use papilio::{CheckOptions, FileSystem, MkfsOptions, OpenOptions, RaidProfile, Tune, Tuned, Uuid};
use papilio_device::{MemoryDevice, Recording};
use papilio_oracle::{ImageSet, Need, Scratch, require};
use std::sync::Arc;

const SIZE: u64 = 256 << 20;
const FILES: usize = 400;
/// The kernel mounts one of so many states.
const KERNEL_SHARE: u64 = 8;

fn states() -> u64 {
    std::env::var("PAPILIO_TUNE_STATES").map_or(60, |number| number.parse().expect("a number"))
}

fn shared(devices: &[Arc<MemoryDevice>]) -> Vec<Arc<dyn Device>> {
    devices.iter().map(|device| device.clone() as Arc<dyn Device>).collect()
}

fn content(number: usize) -> Vec<u8> {
    vec![number as u8; number * 37]
}

fn filled(devices: usize, metadata: RaidProfile) -> Vec<Arc<MemoryDevice>> {
    let memory: Vec<_> = (0..devices).map(|_| Arc::new(MemoryDevice::new(SIZE))).collect();
    let options = MkfsOptions::new().metadata_profile(metadata);
    papilio::mkfs_devices(&shared(&memory), &options).unwrap();
    let fs = FileSystem::from_devices(shared(&memory), &writable()).unwrap();
    fs.create_subvolume("/s").unwrap();
    for number in 0..FILES {
        fs.write(format!("/s/{number}"), content(number)).unwrap();
    }
    fs.snapshot("/s", "/snapshot", true).unwrap();
    fs.close().unwrap();
    memory
}

fn superblock(device: &MemoryDevice) -> Superblock {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device.read_at(&mut bytes, superblock_offset(0)).unwrap();
    Superblock::parse(&bytes, superblock_offset(0)).unwrap()
}

fn tune(devices: &[Arc<MemoryDevice>], change: Tune) -> papilio::Result<Tuned> {
    papilio::tune(&shared(devices), change, &mut |_, _| {})
}

/// Checks everything, copies of blocks included, and that writing works.
fn judge(devices: &[Arc<MemoryDevice>], what: &str) {
    let fs = FileSystem::from_devices(shared(devices), &writable())
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    for number in 0..FILES {
        for folder in ["s", "snapshot"] {
            let path = format!("/{folder}/{number}");
            assert!(fs.read(&path).unwrap() == content(number), "{what}: {path}");
        }
    }
    let report = fs.check(&CheckOptions::new().data_csum(true)).unwrap();
    assert!(report.findings.is_empty(), "{what}: {:#?}", report.findings);
    fs.write("/new", b"new").unwrap();
    fs.close().unwrap();
}

/// Lets the kernel mount a state, and `btrfs check` look at it.
fn assert_kernel_takes(devices: &[Arc<MemoryDevice>], what: &str) {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(SIZE).unwrap();
    let paths: Vec<_> = (0..devices.len()).map(|_| scratch.unique("state")).collect();
    for (device, path) in devices.iter().zip(&paths) {
        device.write_image(path).unwrap();
    }
    let set = ImageSet::open(&scratch, paths);
    set.btrfs_check().unwrap_or_else(|error| panic!("{what}: {error}"));
    let mounted = set.mount().unwrap_or_else(|error| panic!("{what}: {error}"));
    for number in 0..FILES {
        let read = std::fs::read(mounted.path().join(format!("snapshot/{number}"))).unwrap();
        assert!(read == content(number), "{what}: file {number}");
    }
    mounted.unmount().unwrap();
}

/// Records a change, and finishes it from states in which the power was cut meanwhile.
fn cut(devices: &[Arc<MemoryDevice>], change: Tune, finish: Tune, fsid: Uuid) {
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
    let mut resumed = 0u64;
    for moment in moments {
        replay.advance(moment as usize);
        let seed = random.u64(..);
        let what = format!("{change:?}, event {moment} of {end}, seed {seed}");
        let state: Vec<_> = replay.crash(seed).into_iter().map(Arc::new).collect();
        let superblocks: Vec<_> = state.iter().map(|device| superblock(device).raw).collect();
        if superblocks.iter().all(|raw| raw.fsid == fsid && raw.flags.unfinished().is_empty()) {
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
            let raw = superblock(device).raw;
            assert!(raw.flags.unfinished().is_empty() && raw.fsid == fsid, "{what}: {}", raw.fsid);
        }
        judge(&state, &what);
        if resumed % KERNEL_SHARE == 1 {
            assert_kernel_takes(&state, &what);
        }
    }
    assert!(resumed > 0, "no state was between");
}

#[test]
fn uuid_survives_power_cuts() {
    let fsid = Uuid::from_u128(0x1234_5678);
    for (number, profile) in
        [(1, RaidProfile::Single), (1, RaidProfile::Dup), (2, RaidProfile::Raid1), (3, RaidProfile::Raid0)]
    {
        // An interrupted change knows its UUID.
        cut(&filled(number, profile), Tune::Uuid(Some(fsid)), Tune::Uuid(None), fsid);
    }
}

#[test]
fn metadata_uuid_survives_power_cuts() {
    let fsid = Uuid::from_u128(0x9876);
    for number in [1, 3] {
        let devices = filled(number, RaidProfile::Single);
        let change = Tune::MetadataUuid(Some(fsid));
        cut(&devices, change, change, fsid);
    }
}

#[test]
fn metadata_uuid_comes_and_goes() {
    let devices = filled(2, RaidProfile::Raid1);
    let first = superblock(&devices[0]).raw.fsid;
    let other = tune(&devices, Tune::MetadataUuid(None)).unwrap().fsid;
    let raw = superblock(&devices[1]).raw;
    assert_eq!((raw.fsid, raw.metadata_uuid), (other, first));
    assert!(raw.incompat_flags.contains(IncompatFeatures::METADATA_UUID));
    judge(&devices, "metadata UUID");
    let error = tune(&devices, Tune::Uuid(None)).unwrap_err().to_string();
    assert!(error.contains(&first.to_string()), "{error}");
    assert!(tune(&devices, Tune::MetadataUuid(Some(other))).is_err());
    tune(&devices, Tune::MetadataUuid(Some(first))).unwrap();
    let raw = superblock(&devices[1]).raw;
    assert_eq!((raw.fsid, raw.metadata_uuid), (first, Uuid::nil()));
    assert!(!raw.incompat_flags.contains(IncompatFeatures::METADATA_UUID));
    judge(&devices, "without metadata UUID");
}

#[test]
fn seeds_keep_their_uuid() {
    let devices = filled(1, RaidProfile::Dup);
    tune(&devices, Tune::Seed(true)).unwrap();
    assert!(superblock(&devices[0]).raw.flags.contains(SuperblockFlags::SEEDING));
    assert!(tune(&devices, Tune::Seed(true)).is_err());
    for change in [Tune::Uuid(None), Tune::MetadataUuid(None), Tune::NoHoles] {
        let error = tune(&devices, change).unwrap_err().to_string();
        assert!(error.contains("seed"), "{error}");
    }
    tune(&devices, Tune::Seed(false)).unwrap();
    judge(&devices, "no seed any more");
}

#[test]
fn all_devices_are_needed() {
    let devices = filled(2, RaidProfile::Raid1);
    let before = superblock(&devices[0]);
    let error = tune(&devices[..1], Tune::Uuid(None)).unwrap_err().to_string();
    assert!(error.contains("2 devices, and 1 were given"), "{error}");
    let stranger = filled(1, RaidProfile::Dup);
    let mixed = [devices[0].clone(), stranger[0].clone()];
    assert!(tune(&mixed, Tune::MetadataUuid(None)).is_err());
    assert!(tune(&[devices[0].clone(), devices[0].clone()], Tune::Uuid(None)).is_err());
    assert!(tune(&[], Tune::NoHoles).is_err());
    assert_eq!(superblock(&devices[0]), before);
}
