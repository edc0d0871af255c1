//! Power cuts while block groups are moved, converted, and devices added, removed, replaced and
//! shrunk: every state opens, is sound, and has all files as they were. The work can be done again.
//!
//! `PAPILIO_MOVED_STATES` sets the number of states of each kind.

#[path = "support/in_memory.rs"]
mod in_memory;

use in_memory::writable;
use papilio::device::Device;
use papilio::format::DeviceId;
use papilio::format::superblock::{SUPERBLOCK_SIZE, Superblock, superblock_offset};
use papilio::{
    BalanceControl, BalanceFilter, BalanceOptions, CheckOptions, FileSystem, FindingKind, MkfsOptions,
    OpenOptions, RaidProfile, ReplaceOptions, ReplaceReport, Severity,
};
use papilio_device::{MemoryDevice, Recording};
use std::sync::Arc;

const SIZE: u64 = 320 << 20;

fn states() -> u64 {
    std::env::var("PAPILIO_MOVED_STATES").map_or(40, |number| number.parse().expect("a number"))
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

/// Returns whether a device has a good superblock. That of a new device may be torn.
fn is_recognised(device: &MemoryDevice) -> bool {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device.read_at(&mut bytes, superblock_offset(0)).unwrap();
    Superblock::parse(&bytes, superblock_offset(0)).is_ok()
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

/// Records `work`, and judges states in which the power was cut meanwhile.
fn cut(
    what: &str,
    devices: &[Arc<MemoryDevice>],
    opened: usize,
    work: impl Fn(&FileSystem, &[Arc<dyn Device>]),
) {
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
    for moment in moments {
        replay.advance(moment as usize);
        let seed = random.u64(..);
        let what = format!("{what}, event {moment} of {end}, seed {seed}");
        judge(replay.crash(seed), &|fs| work(fs, &[]), &what);
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
