//! Error counters on disk: counted as the kernel counts them, and each reads the other's. Reads
//! heal the copies that they find bad.

use super::kernel;
use super::world::{PROFILES, Plants, World, read_all};
use crate::images::{btrfs, open, writable};
use papilio::{CheckOptions, DeviceErrors, FileSystem, OpenOptions, ScrubOptions};
use papilio_oracle::{Mounted, Need, require};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const NEEDS: &[Need] = &[Need::Root, Need::Loop, Need::KernelBtrfs, Need::Command("btrfs")];

/// Returns the sum of each of the kernel's counters over all devices, by name.
fn kernels(mounted: &Mounted) -> BTreeMap<String, u64> {
    let text = btrfs(&["device".as_ref(), "stats".as_ref(), mounted.path()]);
    let mut sums = BTreeMap::new();
    for line in text.lines() {
        let (_, counter) = line.split_once("].").unwrap();
        let (name, value) = counter.split_once(' ').unwrap();
        *sums.entry(name.to_owned()).or_default() += value.trim().parse::<u64>().unwrap();
    }
    sums
}

fn sums(errors: &[DeviceErrors]) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for (name, value) in errors.iter().flat_map(DeviceErrors::named) {
        *sums.entry(name.to_owned()).or_default() += value;
    }
    sums
}

#[test]
fn counters_are_those_of_the_kernel_and_both_read_them() {
    let Some(_met) = require(NEEDS) else { return };
    let world = World::new("raid1", 2, "crc32c");
    let images = world.copy();
    // Only data: the kernel meets bad tree blocks when it mounts, and counts them then.
    Plants::new(&images, 5).plant_where(&images, 30, |sector| !looks_like_tree_block(sector));
    let copy = world.copy_of(&images);
    let mounted = copy.mount().unwrap();
    kernel::scrub(&mounted, false);
    let expected = kernels(&mounted);
    mounted.unmount().unwrap();
    assert!(expected["corruption_errs"] > 0, "{expected:?}");

    let fs = open(images.paths(), &writable()).unwrap();
    fs.scrub(&ScrubOptions::new(), |_| true).unwrap();
    assert_eq!(sums(&fs.device_errors().unwrap()), expected);
    fs.close().unwrap();
    let read = |options: &OpenOptions| sums(&open(images.paths(), options).unwrap().device_errors().unwrap());
    assert_eq!(read(&OpenOptions::new()), expected, "ours, read again");
    let theirs = open(copy.paths(), &OpenOptions::new()).unwrap().device_errors().unwrap();
    assert_eq!(sums(&theirs), expected, "the kernel's, read by Papilio");
    assert_eq!(kernels(&images.mount().unwrap()), expected, "ours, read by the kernel");

    let fs = open(images.paths(), &writable()).unwrap();
    let before = fs.device_errors().unwrap();
    for device in &before {
        assert_eq!(fs.reset_device_errors(device.devid).unwrap(), *device);
    }
    assert!(fs.reset_device_errors(papilio::DeviceId(9)).is_err());
    fs.close().unwrap();
    assert!(read(&OpenOptions::new()).values().all(|count| *count == 0));
    assert!(kernels(&images.mount().unwrap()).values().all(|count| *count == 0));
    // Some data had no good copy; the trees are good.
    let options = OpenOptions::new().device(&images.paths()[1]);
    let report = papilio::check(&images.paths()[0], &options, &CheckOptions::new()).unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
}

/// Returns whether a sector has the header of a tree block of these file systems.
fn looks_like_tree_block(sector: &[u8]) -> bool {
    // Level, count and flags of a header are small; random data has no run of zeros like that.
    sector.windows(16).any(|bytes| bytes.iter().all(|byte| *byte == 0)) || sector[0x47] == 1
}

fn read_files(fs: &FileSystem, world: &World) {
    for (name, content) in &world.files {
        if name != Path::new("nocow") {
            assert!(fs.read(name.as_os_str().as_bytes()).unwrap() == *content, "{}", name.display());
        }
    }
}

#[test]
fn reads_heal_the_copies_that_they_find_bad() {
    let Some(_met) = require(NEEDS) else { return };
    for (profile, devices) in PROFILES {
        let world = World::new(profile, devices, "crc32c");
        let images = world.copy();
        let planted = Plants::new(&images, 11).lose_first_copies(&images, 25);
        assert!(planted > 0);
        // Nothing is written where that is not allowed.
        let fs = open(images.paths(), &OpenOptions::new()).unwrap();
        read_files(&fs, &world);
        drop(fs);
        let verdict = || {
            let fs = open(images.paths(), &OpenOptions::new()).unwrap();
            fs.scrub(&ScrubOptions::new(), |_| true).unwrap().total()
        };
        let before = verdict();
        assert!(before.corrected_errors > 0 && before.uncorrectable_errors == 0, "{profile}: {before:?}");
        let fs = open(images.paths(), &writable().heal_reads(false)).unwrap();
        read_files(&fs, &world);
        fs.close().unwrap();
        assert_eq!(verdict().corrected_errors, before.corrected_errors, "{profile}");

        // The reads until now were counted.
        let fs = open(images.paths(), &writable()).unwrap();
        let corrupt = || sums(&fs.device_errors().unwrap())["corruption_errs"];
        let counted = corrupt();
        assert!(counted > 0, "{profile}");
        read_files(&fs, &world);
        fs.heal();
        let healed = corrupt() - counted;
        fs.close().unwrap();
        let after = verdict();
        assert!(healed > 0 && after.corrected_errors < before.corrected_errors, "{profile}: {after:?}");
        // The faults that are left are in copies that no read needed.
        assert_eq!(after.corrected_errors + healed, before.corrected_errors, "{profile}");
        let mounted = images.mount().unwrap();
        let read = read_all(mounted.path());
        assert!(world.files.iter().all(|(name, content)| {
            name == Path::new("nocow") || read[name].as_ref().is_ok_and(|read| read == content)
        }));
        mounted.unmount().unwrap();
    }
}
