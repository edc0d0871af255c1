//! Power cuts while block groups are moved, converted, and devices added, removed, replaced and
//! shrunk: every state opens, is sound, and has all files as they were. The work can be done again.
//! A sample of the states is mounted by the kernel, which goes on with a balance and a replacement.
//!
//! `PAPILIO_MOVED_STATES` sets the number of states of each kind, `PAPILIO_MOVED_KERNEL` that of
//! the sample.

use crate::in_memory::writable;
use papilio::device::Device;
use papilio::format::DeviceId;
use papilio::format::superblock::{SUPERBLOCK_SIZE, Superblock, superblock_offset};
use papilio::{
    BalanceControl, BalanceFilter, BalanceOptions, CheckOptions, FileSystem, FindingKind, MkfsOptions,
    OpenOptions, RaidProfile, ReplaceOptions, ReplaceReport, Severity,
};
use papilio_device::{MemoryDevice, Recording};
use papilio_oracle::{ImageSet, Need, Scratch, require};
use std::collections::HashSet;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SIZE: u64 = 320 << 20;
const NEEDS: &[Need] = &[Need::Root, Need::Loop, Need::KernelBtrfs, Need::Command("btrfs")];

fn states() -> u64 {
    std::env::var("PAPILIO_MOVED_STATES").map_or(20, |number| number.parse().expect("a number"))
}

fn sample() -> u64 {
    std::env::var("PAPILIO_MOVED_KERNEL").map_or(3, |number| number.parse().expect("a number"))
}

fn open(devices: &[Arc<MemoryDevice>], options: &OpenOptions) -> papilio::Result<FileSystem> {
    FileSystem::from_devices(
        devices.iter().map(|device| device.clone() as Arc<dyn Device>).collect(),
        options,
    )
}

/// The content of a file of this number.
fn content(number: usize) -> Vec<u8> {
    (0..number * number * 900).map(|at| (at * 7 + at / 253 + number) as u8).collect()
}

const FILES: usize = 30;

/// Makes a file system with files and a snapshot, of which some files differ.
fn filled(devices: usize, data: RaidProfile, metadata: RaidProfile) -> Vec<Arc<MemoryDevice>> {
    let memory: Vec<_> = (0..devices).map(|_| Arc::new(MemoryDevice::new(SIZE))).collect();
    let shared: Vec<_> = memory.iter().map(|device| device.clone() as Arc<dyn Device>).collect();
    let options = MkfsOptions::new().data_profile(data).metadata_profile(metadata);
    papilio::mkfs_devices(&shared, &options).unwrap();
    let fs = open(&memory, &writable()).unwrap();
    fs.create_subvolume("/s").unwrap();
    for number in 0..FILES {
        fs.write(format!("/s/{number}"), content(number)).unwrap();
    }
    fs.snapshot("/s", "/snapshot", true).unwrap();
    for number in (0..FILES).step_by(3) {
        fs.write(format!("/s/{number}"), content(number + 1)).unwrap();
    }
    fs.close().unwrap();
    memory
}

fn assert_files(fs: &FileSystem, what: &str) {
    for number in 0..FILES {
        let changed = if number % 3 == 0 { number + 1 } else { number };
        assert!(fs.read(format!("/s/{number}")).unwrap() == content(changed), "{what}: file {number}");
        assert!(fs.read(format!("/snapshot/{number}")).unwrap() == content(number), "{what}: {number}");
    }
}

/// Returns the first superblock of a device, if it is good. That of a new device may be torn.
fn superblock(device: &MemoryDevice) -> Option<Superblock> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device.read_at(&mut bytes, superblock_offset(0)).unwrap();
    Superblock::parse(&bytes, superblock_offset(0)).ok()
}

fn is_recognised(device: &MemoryDevice) -> bool {
    superblock(device).is_some()
}

/// Opens a state as a machine finds it after a power cut, with the devices that are recognised.
fn judge(devices: Vec<MemoryDevice>, work: &dyn Fn(&FileSystem), what: &str) {
    let mut devices: Vec<_> = devices.into_iter().map(Arc::new).collect();
    devices.retain(|device| is_recognised(device));
    let fs = open(&devices, &writable()).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_files(&fs, what);
    let report = fs.check(&CheckOptions::new().data_csum(true)).unwrap();
    // The write hole: where a row with parity was cut, its parity tells of another block. The block
    // itself is good, and a scrub mends the parity.
    let parity = fs.usage().unwrap().spaces.iter().any(|space| space.profile.parity() > 0);
    let bad = report.findings.iter().filter(|finding| finding.severity == Severity::Error);
    let hole = |kind| parity && matches!(kind, FindingKind::BlockCopy | FindingKind::DataCopy);
    let bad: Vec<_> = bad.filter(|finding| !hole(finding.kind)).collect();
    assert!(bad.is_empty(), "{what}: {bad:#?}");
    work(&fs);
    assert_files(&fs, what);
    fs.close().unwrap();
}

/// Records `work`, and judges states in which the power was cut meanwhile. The kernel judges a
/// sample.
fn cut(
    what: &str,
    devices: &[Arc<MemoryDevice>],
    opened: usize,
    work: impl Fn(&FileSystem, &[Arc<dyn Device>]),
) {
    let seen_by_kernel = require(NEEDS).map(|_| sample());
    let recording = Recording::new();
    let attached: Vec<Arc<dyn Device>> =
        devices.iter().map(|device| Arc::new(recording.attach(device.clone())) as Arc<dyn Device>).collect();
    let fs = FileSystem::from_devices(attached[..opened].to_vec(), &writable()).unwrap();
    work(&fs, &attached[opened..]);
    assert_files(&fs, what);
    fs.close().unwrap();
    let (mut replay, end) = (recording.replay(), recording.len() as u64);
    let mut random = fastrand::Rng::with_seed(end);
    let mut moments: Vec<_> = (0..states()).map(|_| random.u64(..=end)).collect();
    moments.sort_unstable();
    let every = seen_by_kernel.map(|sample| states().div_ceil(sample.max(1)).max(1));
    for (number, moment) in (0..).zip(moments) {
        replay.advance(moment as usize);
        let seed = random.u64(..);
        let what = format!("{what}, event {moment} of {end}, seed {seed}");
        if every.is_some_and(|every| number % every == every / 2) {
            judge_by_kernel(&replay.crash(seed), opened, &what);
        }
        judge(replay.crash(seed), &|fs| work(fs, &[]), &what);
    }
}

/// The kernel mounts a state, and ends the balance or the replacement that it finds there.
fn judge_by_kernel(devices: &[MemoryDevice], opened: usize, what: &str) {
    let mut found: Vec<_> =
        devices.iter().filter_map(|device| Some((superblock(device)?.raw, device))).collect();
    if found.len() < opened {
        // The kernel looks at the first superblock only, and here it is torn.
        return;
    }
    // `btrfs check` opens the first device, and takes all others for parts of the file system.
    let memory: Vec<_> = found.iter().map(|(_, device)| Arc::new(device.snapshot())).collect();
    let fs = open(&memory, &OpenOptions::new()).unwrap();
    let members = fs.usage().unwrap().devices;
    // The new device is marked before the replacement is: a kernel would refuse both, until the
    // mark is wiped off.
    let is_begun = fs.replace_status().unwrap().is_some_and(|last| last.is_under_way());
    drop(fs);
    let target = DeviceId(0);
    found.retain(|(superblock, _)| {
        let devid = superblock.dev_item.devid;
        (devid == target && is_begun) || members.iter().any(|member| member.devid == devid)
    });
    // At the end two devices may have one number. The older one is not part of it any more.
    found.sort_by_key(|(superblock, _)| std::cmp::Reverse(superblock.generation));
    let mut seen = HashSet::new();
    found.retain(|(superblock, _)| seen.insert(superblock.dev_item.devid));
    // A device that is replaced, always number 1 here, ends without a superblock.
    let is_replaced = found.iter().any(|(superblock, _)| superblock.dev_item.devid == target);
    found.sort_by_key(|(superblock, _)| {
        let devid = superblock.dev_item.devid;
        devid == target || (is_replaced && devid == DeviceId(1))
    });
    if opened == 1 && found.len() > 1 {
        // Kernels (6.18) pass over a target whose superblock says that there is one device.
        return;
    }
    let scratch = Scratch::new(SIZE * found.len() as u64).unwrap();
    let images: Vec<_> = found
        .iter()
        .enumerate()
        .map(|(number, (_, device))| {
            let path = scratch.path().join(number.to_string());
            device.write_image(&path).unwrap();
            path
        })
        .collect();
    let images = ImageSet::open(&scratch, images);
    let mounted = images.mount().unwrap_or_else(|error| panic!("{what}: {error:#}"));
    let root = mounted.path();
    let btrfs = |arguments: &[&str]| {
        let output = Command::new("btrfs").args(arguments).arg(root).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let start = Instant::now();
    while !btrfs(&["balance", "status"]).starts_with("No balance found")
        || btrfs(&["replace", "status", "-1"]).contains("% done")
    {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}: the kernel does not end the work");
        std::thread::sleep(Duration::from_millis(20));
    }
    for number in 0..FILES {
        let changed = if number % 3 == 0 { number + 1 } else { number };
        let read = |path: String| std::fs::read(root.join(path)).unwrap();
        assert!(read(format!("s/{number}")) == content(changed), "{what}: file {number}");
        assert!(read(format!("snapshot/{number}")) == content(number), "{what}: {number}");
    }
    std::fs::write(root.join("new"), content(20)).unwrap();
    mounted.unmount().unwrap();
    // `btrfs check` 6.2 rebuilds sectors of rows with parity wrongly.
    if !what.to_lowercase().contains("raid5") {
        images.btrfs_check().unwrap_or_else(|error| panic!("{what}: {error:#}"));
    }
}

/// A balance that a power cut has cut short is resumed.
fn balance_or_resume(fs: &FileSystem, options: &BalanceOptions) {
    match fs.stored_balance().unwrap() {
        Some(_) => fs.resume_balance(|_| true).unwrap(),
        None => fs.balance(options, |_| true).unwrap(),
    };
    assert!(fs.stored_balance().unwrap().is_none());
}

fn all() -> Option<BalanceFilter> {
    Some(BalanceFilter::default())
}

fn to(profile: RaidProfile) -> Option<BalanceFilter> {
    Some(BalanceFilter { convert: Some(profile.flags()), soft: true, ..BalanceFilter::default() })
}

#[test]
fn balance() {
    let options = BalanceOptions { data: all(), metadata: all(), system: all(), force: false };
    for (data, metadata) in [(RaidProfile::Raid0, RaidProfile::Raid1), (RaidProfile::Raid1, RaidProfile::Dup)]
    {
        let devices = filled(2, data, metadata);
        cut(&format!("balance of {data}"), &devices, 2, |fs, _| {
            balance_or_resume(fs, &options);
        });
    }
}

#[test]
fn conversion() {
    use RaidProfile::*;
    for (from, into) in [(Single, Raid1), (Raid1, Raid0), (Raid10, Raid5)] {
        let devices = filled(3, from, from);
        let options = BalanceOptions { data: to(into), metadata: to(into), system: to(into), force: true };
        cut(&format!("{from} to {into}"), &devices, 3, |fs, _| {
            balance_or_resume(fs, &options);
        });
    }
}

#[test]
fn removed_device() {
    let devices = filled(3, RaidProfile::Single, RaidProfile::Raid1);
    cut("removing device 1", &devices, 3, |fs, _| {
        if fs.usage().unwrap().devices.iter().any(|device| device.devid == DeviceId(1)) {
            assert!(fs.remove_device(DeviceId(1), |_| true).unwrap());
        }
    });
}

#[test]
fn added_device() {
    let mut devices = filled(2, RaidProfile::Raid0, RaidProfile::Raid1);
    devices.push(Arc::new(MemoryDevice::new(SIZE)));
    cut("adding a device", &devices, 2, |fs, added| {
        for device in added {
            fs.add_device(device.clone(), false).unwrap();
        }
    });
}

/// Files change while a device is replaced. A state has the old device, the new one, or both.
#[test]
fn replaced_device() {
    use RaidProfile::*;
    for (count, data, metadata) in [(1, Single, Dup), (2, Raid1, Raid1), (3, Raid5, Raid1), (2, Raid0, Raid1)]
    {
        let mut devices = filled(count, data, metadata);
        devices.push(Arc::new(MemoryDevice::new(SIZE)));
        cut(&format!("replacing a device of {data}"), &devices, count, |fs, new| {
            match fs.read("/live") {
                Ok(live) => assert!(live.iter().all(|byte| *byte == live[0])),
                Err(error) => assert_eq!(error.errno(), 2, "{error}"),
            }
            let mut calls = 0;
            let mut change = |_: &ReplaceReport| {
                calls += 1;
                if calls % 4 == 0 {
                    let path = format!("/{calls}");
                    fs.write(&path, content(calls % 20)).unwrap();
                    fs.open_file(&path).unwrap().sync_all().unwrap();
                }
                if calls % 10 == 0 {
                    fs.write("/live", vec![calls as u8; 70_000]).unwrap();
                    fs.sync().unwrap();
                }
                BalanceControl::Continue
            };
            let under_way = fs.replace_status().unwrap().is_some_and(|last| last.is_under_way());
            if under_way {
                fs.resume_replace(&mut change).unwrap();
            } else if let Some(target) = new.first() {
                fs.replace_device(DeviceId(1), target, ReplaceOptions::default(), &mut change).unwrap();
            }
            assert!(fs.replace_status().unwrap().is_none_or(|last| !last.is_under_way()));
        });
    }
}

#[test]
fn shrunk_device() {
    let devices = filled(2, RaidProfile::Raid0, RaidProfile::Raid1);
    cut("shrinking", &devices, 2, |fs, _| {
        fs.shrink(DeviceId(2), 200 << 20, |_| true).unwrap().unwrap();
    });
}
