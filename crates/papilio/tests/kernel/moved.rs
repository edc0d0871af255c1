//! Devices added, removed and shrunk, and profiles converted: Papilio moves everything, and the
//! kernel mounts, compares, scrubs and goes on writing.

use crate::images::{open, writable};
use crate::made::{NEEDS, devices_min, judge, write_tree, write_tree_again};
use papilio::device::{Device, FileDevice};
use papilio::format::DeviceId;
use papilio::format::items::chunk::RaidProfile;
use papilio::{BalanceControl, BalanceFilter, BalanceOptions, MkfsOptions, Populate};
use papilio_oracle::{ImageSet, Scratch, require};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const ENTRIES: usize = 300;

fn image(scratch: &Scratch, size: u64) -> PathBuf {
    let image = scratch.unique("image");
    fs::File::create(&image).unwrap().set_len(size).unwrap();
    image
}

/// Returns images of a file system with a tree of files.
fn filled(scratch: &Scratch, devices: usize, data: RaidProfile, metadata: RaidProfile) -> Vec<PathBuf> {
    let host = scratch.unique("host");
    fs::create_dir(&host).unwrap();
    write_tree(&host, ENTRIES);
    let paths: Vec<_> = (0..devices as u64).map(|number| image(scratch, (400 + number * 30) * MIB)).collect();
    let options = MkfsOptions::new().data_profile(data).metadata_profile(metadata);
    papilio::mkfs_many(&paths, &options).unwrap();
    let fs = open(&paths, &writable()).unwrap();
    Populate::new().directory(&host, &fs.inode("/").unwrap(), &mut ()).unwrap();
    fs.snapshot("/", "/snapshot", true).unwrap();
    fs.close().unwrap();
    paths
}

fn converts_to(data: RaidProfile, metadata: RaidProfile) -> BalanceOptions {
    let to = |profile: RaidProfile| {
        Some(BalanceFilter { convert: Some(profile.flags()), soft: true, ..BalanceFilter::default() })
    };
    BalanceOptions { data: to(data), metadata: to(metadata), system: to(metadata), force: true }
}

fn convert(paths: &[PathBuf], data: RaidProfile, metadata: RaidProfile) {
    let fs = open(paths, &writable()).unwrap();
    let what = format!("to {data} and {metadata}");
    let report =
        fs.balance(&converts_to(data, metadata), |_| true).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(report.completed, report.expected, "{what}");
    for space in fs.usage().unwrap().spaces {
        let wanted = if space.kind.contains(papilio::BlockGroupFlags::DATA) { data } else { metadata };
        assert_eq!(space.profile, wanted, "{what}: {space:?}");
    }
    fs.close().unwrap();
}

fn has_parity(profiles: &[RaidProfile]) -> bool {
    profiles.iter().any(|profile| profile.parity() > 0)
}

/// Converts by Papilio, then by the kernel's choice of files, for each pair of neighbours.
fn converted_in_turn(order: &[RaidProfile]) {
    let scratch = Scratch::new(4 << 30).unwrap();
    let first = order[0];
    let paths = filled(&scratch, 4, first, first);
    let images = ImageSet::open(&scratch, paths.clone());
    for (round, &profile) in order[1..].iter().enumerate() {
        let what = format!("{} to {profile}", order[round]);
        convert(&paths, profile, profile);
        judge(&images, ENTRIES, has_parity(&order[round..round + 2]), &what);
    }
    let mounted = images.mount().unwrap();
    write_tree_again(mounted.path(), ENTRIES);
    mounted.unmount().unwrap();
    judge(&images, ENTRIES, has_parity(order), "written by the kernel");
    let what = format!("{} to {first} by the kernel", order[order.len() - 1]);
    // The kernel's chunks, of a tenth each, find too little room on devices of this size.
    for path in &paths {
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(2 << 30).unwrap();
    }
    let fs = open(&paths, &writable()).unwrap();
    for devid in 1..=paths.len() as u64 {
        fs.resize(DeviceId(devid), 2 << 30).unwrap();
    }
    fs.close().unwrap();
    let target = first.name().to_lowercase();
    let (data, metadata) = (format!("-dconvert={target}"), format!("-mconvert={target}"));
    let mounted = images.mount().unwrap();
    let path = mounted.path().as_os_str();
    let start = ["balance", "start", "--force", &data, &metadata].map(std::ffi::OsStr::new);
    let answer = btrfs(&[&start[..], &[path]].concat());
    mounted.unmount().unwrap();
    if answer.contains("No space left") {
        println!("{what}: the kernel finds no space, so Papilio goes on");
        convert(&paths, first, first);
    }
    let fs = open(&paths, &writable()).unwrap();
    for space in fs.usage().unwrap().spaces {
        assert_eq!(space.profile, first, "{what}: {space:?}: {answer}");
    }
    fs.write("/after the kernel", vec![7; 5 << 20]).unwrap();
    fs.close().unwrap();
    judge(&images, ENTRIES, has_parity(order), &what);
}

#[test]
fn the_kernel_uses_converted_profiles() {
    if require(NEEDS).is_none() {
        return;
    }
    use RaidProfile::*;
    converted_in_turn(&[Single, Raid1, Raid0, Raid10, Dup, Raid1c4, Single]);
    converted_in_turn(&[Raid1c3, Raid5, Raid1, Raid6, Raid10]);
}

#[test]
#[ignore = "takes minutes"]
fn the_kernel_uses_every_conversion() {
    if require(NEEDS).is_none() {
        return;
    }
    for from in RaidProfile::ALL {
        for to in RaidProfile::ALL {
            if from != to {
                converted_in_turn(&[from, to]);
            }
        }
    }
}

#[test]
fn the_kernel_uses_sets_that_grew_and_shrank() {
    if require(NEEDS).is_none() {
        return;
    }
    for (data, metadata) in [
        (RaidProfile::Single, RaidProfile::Raid1),
        (RaidProfile::Raid1, RaidProfile::Raid1),
        (RaidProfile::Raid0, RaidProfile::Dup),
        (RaidProfile::Raid5, RaidProfile::Raid1),
    ] {
        let what = format!("{data} and {metadata}");
        let parity = data.parity() > 0;
        let scratch = Scratch::new(4 << 30).unwrap();
        let mut paths = filled(&scratch, devices_min(data).max(2), data, metadata);
        let added = image(&scratch, 500 * MIB);
        let fs = open(&paths, &writable()).unwrap();
        let device: Arc<dyn Device> =
            Arc::new(FileDevice::open(&added, papilio::device::Access::ReadWrite).unwrap());
        let devid = fs.add_device(device, false).unwrap();
        assert_eq!(devid, DeviceId(paths.len() as u64 + 1), "{what}");
        fs.write("/after adding", vec![5; 30 << 20]).unwrap();
        fs.close().unwrap();
        paths.push(added);
        let images = ImageSet::open(&scratch, paths.clone());
        judge(&images, ENTRIES, parity, &format!("{what}, added"));

        let fs = open(&paths, &writable()).unwrap();
        assert!(fs.remove_device(DeviceId(1), |_| true).unwrap(), "{what}");
        fs.close().unwrap();
        let gone = paths.remove(0);
        assert!(open(&[gone], &writable()).is_err(), "{what}: the device is still found");
        let images = ImageSet::open(&scratch, paths.clone());
        judge(&images, ENTRIES, parity, &format!("{what}, removed"));
        let mounted = images.mount().unwrap();
        write_tree_again(mounted.path(), ENTRIES);
        mounted.unmount().unwrap();

        let fs = open(&paths, &writable()).unwrap();
        let size = 250 * MIB;
        assert_eq!(fs.shrink(DeviceId(2), size, |_| true).unwrap(), Some(size), "{what}");
        fs.close().unwrap();
        judge(&images, ENTRIES, parity, &format!("{what}, shrunk"));
    }
}

/// Runs `btrfs`, which may fail. Returns its output.
fn btrfs(arguments: &[&std::ffi::OsStr]) -> String {
    let output = std::process::Command::new("btrfs").args(arguments).output().expect("btrfs runs");
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A balance is paused by one of the two, and resumed by the other one.
#[test]
fn a_paused_balance_is_resumed_by_the_other() {
    if require(NEEDS).is_none() {
        return;
    }
    let scratch = Scratch::new(4 << 30).unwrap();
    let paths = filled(&scratch, 2, RaidProfile::Single, RaidProfile::Raid1);
    let images = ImageSet::open(&scratch, paths.clone());
    let to_raid1 = BalanceOptions {
        metadata: None,
        system: None,
        ..converts_to(RaidProfile::Raid1, RaidProfile::Raid1)
    };
    let fs = open(&paths, &writable()).unwrap();
    let mut calls = 0;
    let report = fs.balance(&to_raid1, |_| {
        calls += 1;
        BalanceControl::Pause
    });
    assert!(calls == 1 && report.unwrap().bytes > 0);
    let refused = fs.balance(&to_raid1, |_| true).unwrap_err();
    assert!(refused.to_string().contains("paused"), "{refused}");
    assert!(fs.stored_balance().unwrap().unwrap().data.unwrap().convert.is_some());
    fs.close().unwrap();
    judge(&images, ENTRIES, false, "paused by Papilio");

    // The kernel resumes it when it mounts the file system, in the background.
    let mounted = images.mount().unwrap();
    let path = mounted.path().as_os_str();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !btrfs(&["balance".as_ref(), "status".as_ref(), path]).contains("No balance found") {
        assert!(std::time::Instant::now() < end, "the kernel's balance does not end");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let shown = btrfs(&["filesystem".as_ref(), "df".as_ref(), path]);
    assert!(shown.contains("Data, RAID1") && !shown.contains("Data, single"), "{shown}");
    // And the kernel's, which it pauses while the first block group moves.
    let back = ["balance", "start", "--background", "-f", "-dconvert=single", "-mconvert=single"];
    let mut back: Vec<_> = back.iter().map(std::ffi::OsStr::new).collect();
    back.push(path);
    btrfs(&back);
    // The command returns before the kernel begins, and a small balance may end before the pause.
    let converted = || !btrfs(&["filesystem".as_ref(), "df".as_ref(), path]).contains("RAID1");
    let idle = || btrfs(&["balance".as_ref(), "status".as_ref(), path]).contains("No balance found");
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while idle() && !converted() {
        assert!(std::time::Instant::now() < end, "the kernel's balance does not begin");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    btrfs(&["balance".as_ref(), "pause".as_ref(), path]);
    let paused = btrfs(&["balance".as_ref(), "status".as_ref(), path]).contains("paused");
    mounted.unmount().unwrap();
    let fs = open(&paths, &writable()).unwrap();
    assert_eq!(fs.stored_balance().unwrap().is_some(), paused);
    if paused {
        fs.resume_balance(|_| true).unwrap();
    } else {
        println!("the kernel's balance ended before it could be paused");
    }
    assert!(fs.stored_balance().unwrap().is_none());
    assert!(fs.usage().unwrap().spaces.iter().all(|space| space.profile == RaidProfile::Single));
    fs.close().unwrap();
    judge(&images, ENTRIES, false, "paused by the kernel");
}

#[test]
fn a_paused_balance_can_be_cancelled() {
    if require(NEEDS).is_none() {
        return;
    }
    let scratch = Scratch::new(4 << 30).unwrap();
    let paths = filled(&scratch, 2, RaidProfile::Single, RaidProfile::Raid1);
    let images = ImageSet::open(&scratch, paths.clone());
    let all = BalanceOptions { data: Some(BalanceFilter::default()), ..BalanceOptions::default() };
    let fs = open(&paths, &writable()).unwrap();
    assert!(fs.cancel_balance().is_err() && fs.resume_balance(|_| true).is_err());
    fs.balance(&all, |_| BalanceControl::Pause).unwrap();
    drop(fs);
    let fs = open(&paths, &writable()).unwrap();
    fs.cancel_balance().unwrap();
    assert!(fs.stored_balance().unwrap().is_none());
    fs.balance(&all, |_| BalanceControl::Cancel).unwrap();
    assert!(fs.stored_balance().unwrap().is_none());
    fs.close().unwrap();
    judge(&images, ENTRIES, false, "cancelled");
}
