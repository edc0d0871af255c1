//! Balance, conversion and changes of devices that cannot be done, or that end in the middle:
//! wrong devices, no room, a device that vanishes, and two operations at once. Each gets a clear
//! error, the file system stays sound, and all files are as they were.

use crate::in_memory::writable;
use papilio::device::Device;
use papilio::format::DeviceId;
use papilio::{
    BalanceControl, BalanceFilter, BalanceOptions, BalanceReport, CheckOptions, Error, FileSystem,
    MkfsOptions, OpenOptions, RaidProfile, ReplaceOptions, ReplaceReport, ScrubOptions, Severity,
};
use papilio_device::{FaultDevice, MemoryDevice};
use std::sync::Arc;

const SIZE: u64 = 320 << 20;
const FILES: usize = 20;

fn memory(size: u64) -> Arc<dyn Device> {
    Arc::new(MemoryDevice::new(size))
}

/// The content of a file of this number.
fn content(number: usize) -> Vec<u8> {
    (0..number * number * 2000).map(|at| (at * 7 + at / 253 + number) as u8).collect()
}

/// Makes a file system with files on so many devices.
fn filled(devices: usize, data: RaidProfile, metadata: RaidProfile) -> Vec<Arc<dyn Device>> {
    let memory: Vec<_> = (0..devices).map(|_| memory(SIZE)).collect();
    let options = MkfsOptions::new().data_profile(data).metadata_profile(metadata);
    papilio::mkfs_devices(&memory, &options).unwrap();
    let fs = open(&memory);
    for number in 0..FILES {
        fs.write(format!("/{number}"), content(number)).unwrap();
    }
    fs.close().unwrap();
    memory
}

fn open(devices: &[Arc<dyn Device>]) -> FileSystem {
    FileSystem::from_devices(devices.to_vec(), &writable()).unwrap()
}

fn assert_files(fs: &FileSystem, when: &str) {
    for number in 0..FILES {
        let read = fs.read(format!("/{number}")).unwrap_or_else(|error| panic!("{when}: {number}: {error}"));
        assert!(read == content(number), "{when}: file {number}");
    }
}

fn assert_sound(fs: &FileSystem, when: &str) {
    assert_files(fs, when);
    let report = fs.check(&CheckOptions::new().data_csum(true)).unwrap();
    let bad: Vec<_> = report.findings.iter().filter(|finding| finding.severity == Severity::Error).collect();
    assert!(bad.is_empty(), "{when}: {bad:#?}");
}

fn all() -> BalanceOptions {
    let all = || Some(BalanceFilter::default());
    BalanceOptions { data: all(), metadata: all(), system: all(), force: false }
}

fn to(profile: RaidProfile, force: bool) -> BalanceOptions {
    let to = || Some(BalanceFilter { convert: Some(profile.flags()), ..BalanceFilter::default() });
    BalanceOptions { data: to(), metadata: to(), system: to(), force }
}

fn go_on(_: &BalanceReport) -> bool {
    true
}

/// Replaces device 1.
fn replace(fs: &FileSystem, target: &Arc<dyn Device>) -> papilio::Result<ReplaceReport> {
    fs.replace_device(DeviceId(1), target, ReplaceOptions::default(), |_| BalanceControl::Continue)
}

fn refused<T: std::fmt::Debug>(result: papilio::Result<T>, part: &str) {
    let error = result.unwrap_err().to_string();
    assert!(error.contains(part), "{error:?} does not say {part:?}");
}

#[test]
fn wrong_devices_are_refused() {
    let devices = filled(2, RaidProfile::Raid1, RaidProfile::Raid1);
    let other = filled(1, RaidProfile::Single, RaidProfile::Dup);
    let fs = open(&devices);
    refused(fs.add_device(devices[0].clone(), false), "is a device of this file system");
    refused(fs.add_device(devices[1].clone(), true), "is a device of this file system");
    refused(fs.add_device(other[0].clone(), false), "contains a Btrfs file system");
    refused(fs.add_device(memory(1 << 20), false), "are too few");
    refused(fs.remove_device(DeviceId(7), go_on), "device 7 is not part of the file system");
    refused(fs.remove_device(DeviceId(1), go_on), "profile RAID1 needs 2 devices, and 1 would be left");
    refused(replace(&fs, &devices[1]), "of this file system");
    refused(replace(&fs, &other[0]), "Btrfs file system");
    refused(replace(&fs, &memory(SIZE / 2)), "the file system needs");
    refused(fs.balance(&to(RaidProfile::Raid1c3, false), go_on), "needs 3 devices, and there are 2");
    refused(fs.balance(&to(RaidProfile::Single, false), go_on), "--force");
    assert!(fs.shrink(DeviceId(9), 200 << 20, go_on).is_err());
    assert_sound(&fs, "after all refusals");
    fs.balance(&to(RaidProfile::Single, true), go_on).unwrap();
    assert!(fs.remove_device(DeviceId(2), go_on).unwrap());
    refused(fs.remove_device(DeviceId(1), go_on), "it is the last device of the file system");
    fs.close().unwrap();
    assert_sound(&open(&devices[..1]), "on the last device");
    assert_files(&FileSystem::from_devices(other, &OpenOptions::new()).unwrap(), "the other file system");
}

#[test]
fn the_last_good_copy_is_not_removed() {
    let devices = filled(3, RaidProfile::Raid1, RaidProfile::Raid1);
    let degraded = OpenOptions::new().write(true).commit_interval(None).degraded(true);
    // With one device missing, each of the others has the only copy of some block groups.
    let fs = FileSystem::from_devices(devices[..2].to_vec(), &degraded).unwrap();
    refused(fs.remove_device(DeviceId(1), go_on), "profile RAID1 needs 2 devices, and 1 would be left");
    assert_files(&fs, "without device 3");
    // The missing one can be removed: its copies are made anew.
    assert!(fs.remove_device(DeviceId(3), go_on).unwrap());
    assert_sound(&fs, "device 3 removed");
    fs.close().unwrap();
    assert_sound(&open(&devices[..2]), "reopened");
}

#[test]
fn operations_exclude_one_another() {
    let devices = filled(2, RaidProfile::Single, RaidProfile::Raid1);
    let fs = open(&devices);
    let (mut first, new) = (true, memory(SIZE));
    let mut others = |running: &str| {
        if !std::mem::take(&mut first) {
            return;
        }
        let busy = |result: papilio::Result<()>| {
            let error = result.unwrap_err();
            assert!(matches!(error, Error::Busy { .. }), "{error}");
            assert!(error.to_string().contains(running), "{error}: {running}");
        };
        busy(fs.balance(&all(), go_on).map(drop));
        busy(fs.cancel_balance());
        busy(fs.remove_device(DeviceId(2), go_on).map(drop));
        busy(fs.add_device(new.clone(), false).map(drop));
        busy(fs.shrink(DeviceId(2), 200 << 20, go_on).map(drop));
        busy(replace(&fs, &new).map(drop));
        busy(fs.scrub(&ScrubOptions::new(), |_| true).map(drop));
    };
    fs.balance(&all(), |_| {
        others("a balance");
        true
    })
    .unwrap();
    assert!(!std::mem::replace(&mut first, true), "the balance reports progress");
    let mut others = |running: &str| {
        if std::mem::take(&mut first) {
            let error = fs.balance(&all(), go_on).unwrap_err();
            assert!(matches!(error, Error::Busy { .. }) && error.to_string().contains(running), "{error}");
        }
    };
    fs.scrub(&ScrubOptions::new(), |_| {
        others("a scrub");
        true
    })
    .unwrap();
    first = true;
    let mut others = |running: &str| {
        if std::mem::take(&mut first) {
            let error = fs.remove_device(DeviceId(2), go_on).unwrap_err();
            assert!(matches!(error, Error::Busy { .. }) && error.to_string().contains(running), "{error}");
        }
    };
    fs.replace_device(DeviceId(1), &new, ReplaceOptions::default(), |_| {
        others("the replacement of a device");
        BalanceControl::Continue
    })
    .unwrap();
    assert_sound(&fs, "afterwards");
}

/// Fills a file system, until so many bytes are left.
fn fill(fs: &FileSystem, left: u64) {
    let mut number = 0;
    while fs.usage().unwrap().statfs().available > left {
        if fs.write(format!("/fill{number}"), vec![number as u8; 8 << 20]).is_err() {
            return;
        }
        fs.sync().unwrap();
        number += 1;
    }
}

#[test]
fn work_without_room_ends_and_loses_nothing() {
    for left in [0, 16 << 20, 48 << 20] {
        let devices = filled(2, RaidProfile::Single, RaidProfile::Raid1);
        let fs = open(&devices);
        fill(&fs, left);
        let when = format!("{left} bytes left");
        let full = |result: papilio::Result<bool>, what: &str| match result {
            Ok(done) => assert!(done, "{when}: {what}"),
            Err(Error::NoSpace { .. }) => {}
            Err(error) => panic!("{when}: {what}: {error}"),
        };
        let data = || BalanceOptions { metadata: None, system: None, ..to(RaidProfile::Raid1, false) };
        let converted = fs.balance(&data(), go_on).map(|_| true);
        assert!(matches!(converted, Err(Error::NoSpace { .. })), "{when}: two copies cannot fit");
        if fs.stored_balance().unwrap().is_some() {
            fs.cancel_balance().unwrap();
        }
        assert_sound(&fs, &format!("{when}, converted"));
        full(fs.balance(&all(), go_on).map(|_| true), "balance");
        if fs.stored_balance().unwrap().is_some() {
            fs.cancel_balance().unwrap();
        }
        assert_sound(&fs, &format!("{when}, balanced"));
        let shrunk = fs.shrink(DeviceId(2), 150 << 20, go_on).map(|done| done.is_some());
        full(shrunk, "shrink");
        assert_sound(&fs, &format!("{when}, shrunk"));
        refused(fs.remove_device(DeviceId(2), go_on), "profile RAID1 needs 2 devices");
        fs.close().unwrap();
        let fs = open(&devices);
        assert_sound(&fs, &format!("{when}, reopened"));
        fs.remove_file("/fill0").unwrap();
        fs.write("/new", content(5)).unwrap();
        fs.close().unwrap();
    }
}

type Work = fn(&FileSystem, &Arc<dyn Device>) -> papilio::Result<()>;

const WORKS: [(&str, Work); 5] = [
    ("balance", |fs, _| fs.balance(&all(), go_on).map(drop)),
    ("conversion", |fs, _| fs.balance(&to(RaidProfile::Raid1, true), go_on).map(drop)),
    ("removal", |fs, _| fs.remove_device(DeviceId(1), go_on).map(drop)),
    ("shrinking", |fs, _| fs.shrink(DeviceId(1), 240 << 20, go_on).map(drop)),
    ("replacement", |fs, target| replace(fs, target).map(drop)),
];

/// Device `lost`, or the target of a replacement, fails all calls from some moment on.
fn vanish(work: (&str, Work), profile: RaidProfile, lost: usize, calls: u64) {
    let (name, work) = work;
    let when = format!("{name} of {profile}, device {} lost after {calls} calls", lost + 1);
    let devices = filled(4, profile, profile);
    let target = memory(SIZE);
    let fault = Arc::new(FaultDevice::new(devices.get(lost).unwrap_or(&target).clone()));
    let with_fault: Vec<_> = (0..4)
        .map(|number| if number == lost { fault.clone() as Arc<dyn Device> } else { devices[number].clone() })
        .collect();
    let used_target = if lost == 4 { fault.clone() as Arc<dyn Device> } else { target.clone() };
    let fs = FileSystem::from_devices(with_fault, &writable()).unwrap();
    fault.fail_all_from(fault.counts().total() + calls);
    let result = work(&fs, &used_target);
    let _ = fs.close();
    let tolerated = profile.tolerated_failures() > 0;
    if lost == 4 && name == "replacement" {
        assert!(result.is_err() || calls > 100, "{when}: the target was lost");
    }

    // As a machine finds them after a restart: with the device, and without it if the profile can
    // do without. A device that was removed has no superblock.
    let mut found = devices;
    found.push(target);
    let has_superblock = |device: &Arc<dyn Device>| {
        let mut magic = [0; 8];
        device.read_at(&mut magic, papilio::format::PhysicalAddress((64 << 10) + 64)).unwrap();
        magic == *b"_BHRfS_M"
    };
    let without = |lost: usize, found: &[Arc<dyn Device>]| {
        let rest =
            found.iter().enumerate().filter(|(number, device)| *number != lost && has_superblock(device));
        rest.map(|(_, device)| device.clone()).collect::<Vec<_>>()
    };
    if tolerated {
        let degraded = OpenOptions::new().degraded(true);
        let fs = FileSystem::from_devices(without(lost, &found), &degraded);
        assert_files(&fs.unwrap_or_else(|error| panic!("{when}, without it: {error}")), &when);
    }
    let fs = FileSystem::from_devices(without(usize::MAX, &found), &writable().degraded(tolerated));
    let fs = fs.unwrap_or_else(|error| panic!("{when}, with it: {error}"));
    assert_files(&fs, &when);
    // A conversion may have got so far that the file system went on without the device.
    fs.scrub(&ScrubOptions::new(), |_| true).unwrap();
    assert_sound(&fs, &when);
    fs.close().unwrap();
}

#[test]
fn a_device_that_vanishes_in_the_middle_loses_no_file() {
    use RaidProfile::*;
    for work in WORKS {
        for profile in [Raid1, Raid10, Raid5, Raid0] {
            let enough = profile != Raid10 || work.0 != "removal";
            for (lost, calls) in [(0, 0), (0, 30), (1, 3), (1, 60), (3, 25), (3, 200)] {
                if enough {
                    vanish(work, profile, lost, calls);
                }
            }
            if work.0 == "replacement" {
                vanish(work, profile, 4, 0);
                vanish(work, profile, 4, 12);
            }
        }
    }
}
