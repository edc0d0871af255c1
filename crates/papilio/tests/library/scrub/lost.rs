//! A device that vanishes while the file system is in use: the work goes on with the others, all
//! promises are kept, the device is noticed when it returns, and a scrub heals it.

use papilio::device::{Device, MemoryDevice};
use papilio::{FileSystem, InodeFlags, MkfsOptions, OpenOptions, RaidProfile, ScrubOptions};
use papilio_device::FaultDevice;
use std::sync::Arc;

const PROFILES: [(RaidProfile, usize); 5] = [
    (RaidProfile::Raid1, 2),
    (RaidProfile::Raid1c3, 3),
    (RaidProfile::Raid10, 4),
    (RaidProfile::Raid5, 3),
    (RaidProfile::Raid6, 4),
];

fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..length).map(|_| random.u8(..)).collect()
}

/// A file system on devices that can fail.
struct World {
    memory: Vec<Arc<dyn Device>>,
}

impl World {
    fn new(profile: RaidProfile, devices: usize) -> Self {
        let memory: Vec<Arc<dyn Device>> =
            (0..devices).map(|_| Arc::new(MemoryDevice::new(300 << 20)) as Arc<dyn Device>).collect();
        let options = MkfsOptions::new().data_profile(profile).metadata_profile(profile);
        papilio::mkfs_devices(&memory, &options).unwrap();
        Self { memory }
    }

    /// Opens the file system; device `lost` can fail.
    fn open(&self, lost: usize) -> (FileSystem, Arc<FaultDevice>) {
        let fault = Arc::new(FaultDevice::new(Arc::clone(&self.memory[lost])));
        let mut devices = self.memory.clone();
        devices[lost] = Arc::clone(&fault) as Arc<dyn Device>;
        let options = OpenOptions::new().write(true).commit_interval(None);
        (FileSystem::from_devices(devices, &options).unwrap(), fault)
    }

    fn open_without(&self, lost: usize) -> FileSystem {
        let mut devices = self.memory.clone();
        devices.remove(lost);
        FileSystem::from_devices(devices, &OpenOptions::new().degraded(true)).unwrap()
    }
}

/// Opens a file without checksums, whose data is overwritten in place.
fn nocow(fs: &FileSystem) -> papilio::File {
    let file = fs.create_file("/nocow").unwrap();
    file.inode().set_flags(InodeFlags::NODATACOW).unwrap();
    file
}

/// Loses device `lost` after `calls` more calls to it, while files change. Ends in a clean close or
/// in a crash. Then the device is back.
fn lose(profile: RaidProfile, devices: usize, lost: usize, calls: u64, crash: bool) {
    let when = format!("{profile:?}, device {lost}, {calls} calls, crash: {crash}");
    let world = World::new(profile, devices);
    let (fs, fault) = world.open(lost);
    let before = content(1, 3 << 20);
    fs.create_file("/before").unwrap().write_all_at(&before, 0).unwrap();
    let file = nocow(&fs);
    file.write_all_at(&content(2, 1 << 20), 0).unwrap();
    fs.sync().unwrap();

    fault.fail_all_from(fault.counts().total() + calls);
    let mut expected = content(2, 1 << 20);
    for round in 0..4u64 {
        // In place, made durable without a log.
        let part = content(10 + round, 150_000);
        file.write_all_at(&part, round * 200_000).unwrap();
        expected[(round * 200_000) as usize..][..part.len()].copy_from_slice(&part);
        file.sync_data().unwrap();
        let new = fs.create_file(format!("/new{round}")).unwrap();
        new.write_all_at(&content(20 + round, 400_000), 0).unwrap();
        new.sync_all().unwrap();
    }
    assert!(fault.counts().failed > 0, "{when}");
    assert!(fs.read("before").unwrap() == before && fs.read("nocow").unwrap() == expected, "{when}");
    let errors = fs.device_errors().unwrap();
    let counted = |number: usize| errors[number].write_errors + errors[number].flush_errors;
    assert!(counted(lost) > 0 && (0..devices).all(|other| other == lost || counted(other) == 0), "{when}");
    drop(file);
    if crash {
        std::mem::forget(fs);
    } else {
        fs.close().unwrap();
    }

    let assert_files = |fs: &FileSystem, when: &str| {
        assert!(fs.read("before").unwrap() == before, "{when}");
        assert!(fs.read("nocow").unwrap() == expected, "{when}: nocow");
        for round in 0..4 {
            assert!(
                fs.read(format!("new{round}")).unwrap() == content(20 + round, 400_000),
                "{when}: {round}"
            );
        }
    };
    // Whichever device comes first in the list.
    let mut devices = world.memory.clone();
    devices.rotate_left(lost);
    let fs = FileSystem::from_devices(devices, &OpenOptions::new()).unwrap();
    assert_files(&fs, &when);
    drop(fs);
    let (fs, _) = world.open(lost);
    assert_files(&fs, &when);
    let total = fs.scrub(&ScrubOptions::new(), |_| true).unwrap().total();
    assert_eq!(total.uncorrectable_errors, 0, "{when}: {total:?}");
    let again = fs.scrub(&ScrubOptions::new(), |_| true).unwrap().total();
    assert!(!again.has_errors(), "{when}: {again:?}");
    fs.close().unwrap();
    let report = papilio::check_devices(
        world.memory.clone(),
        &OpenOptions::new(),
        &papilio::CheckOptions::new().data_csum(true),
    );
    let report = report.unwrap();
    assert!(report.is_clean(), "{when}: {:#?}", report.findings);
    for other in (0..world.memory.len()).filter(|other| *other != lost) {
        assert_files(&world.open_without(other), &format!("{when}, then without {other}"));
    }
}

#[test]
fn the_work_goes_on_without_a_device_that_vanishes() {
    for (profile, devices) in PROFILES {
        for (lost, calls) in [(0, 0), (devices - 1, 7), (0, 23)] {
            for crash in [false, true] {
                lose(profile, devices, lost, calls, crash);
            }
        }
    }
}

#[test]
fn a_profile_without_redundancy_does_not_forgive() {
    let world = World::new(RaidProfile::Raid0, 2);
    let (fs, fault) = world.open(1);
    fs.create_file("/file").unwrap().write_all_at(&content(1, 1 << 20), 0).unwrap();
    fs.sync().unwrap();
    fault.fail_all_from(fault.counts().total());
    let written = fs.create_file("/new").unwrap().write_all_at(&content(2, 1 << 20), 0);
    assert!(written.is_err() || fs.sync().is_err());
    std::mem::forget(fs);
    let fs = FileSystem::from_devices(world.memory.clone(), &OpenOptions::new()).unwrap();
    assert!(fs.read("file").unwrap() == content(1, 1 << 20) && fs.read("new").is_err());
}
