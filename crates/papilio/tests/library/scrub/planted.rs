//! Faults in all profiles: found as the kernel finds them, and healed.

use super::kernel;
use super::world::{PROFILES, Plants, World, read_all};
use crate::images::{assert_clean, btrfs, open, writable};
use papilio::{OpenOptions, ScrubCounts, ScrubOptions, ScrubReport};
use papilio_oracle::{ImageSet, Mounted, Need, require};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const NEEDS: &[Need] = &[Need::Root, Need::Loop, Need::KernelBtrfs, Need::Command("btrfs")];

/// Faults of one profile, unless `PAPILIO_SCRUB_PLANTS` says how many all profiles get together.
const PLANTS: usize = 60;
/// The most faults of one image.
const AT_ONCE: usize = 400;

fn scrub(images: &ImageSet, write: bool) -> ScrubReport {
    let options = if write { writable() } else { OpenOptions::new() };
    let fs = open(images.paths(), &options).unwrap();
    let report = fs.scrub(&ScrubOptions::new(), |_| true).unwrap();
    assert!(report.finished);
    report
}

fn by_device(report: &ScrubReport) -> BTreeMap<u64, ScrubCounts> {
    report.devices.iter().map(|device| (device.devid.0, device.counts)).collect()
}

/// The counters that the kernel has, too.
fn shared(counts: &BTreeMap<u64, ScrubCounts>) -> BTreeMap<u64, ScrubCounts> {
    let shared = |counts: &ScrubCounts| ScrubCounts {
        generation_errors: 0,
        parity_errors: 0,
        write_errors: 0,
        ..*counts
    };
    counts.iter().map(|(devid, counts)| (*devid, shared(counts))).collect()
}

#[test]
fn counts_without_faults_are_those_of_the_kernel() {
    let Some(_met) = require(NEEDS) else { return };
    for (profile, devices) in PROFILES {
        let world = World::new(profile, devices, "crc32c");
        let report = scrub(&world.images, false);
        let theirs = kernel::scrub(&world.images.mount_read_only().unwrap(), true);
        assert!(!report.total().has_errors(), "{profile}: {report:#?}");
        assert_eq!(by_device(&report), theirs, "{profile}");
        let (total, kind) = (report.total(), profile);
        assert!(total.data_bytes_scrubbed > 20 << 20 && total.tree_bytes_scrubbed > 0, "{kind}");
    }
}

/// The sums over all rounds of a profile.
#[derive(Debug, Default)]
struct Tally {
    plants: usize,
    found: u64,
    healed: u64,
    lost: u64,
    parity: u64,
    /// Rounds after which the kernel could not mount the images, and Papilio not open them.
    unmountable: usize,
    lost_files: usize,
}

/// Plants faults once, and compares the verdicts and the results.
fn round(world: &World, profile: &str, seed: u64, plants: usize, tally: &mut Tally) {
    let when = format!("{profile}, seed {seed}");
    let images = world.copy();
    Plants::new(&images, seed).plant(&images, plants);
    tally.plants += plants;
    let Ok(fs) = open(images.paths(), &OpenOptions::new()) else {
        let mounted = images.mount_read_only();
        assert!(mounted.is_err(), "{when}: the kernel mounts it, Papilio does not open it");
        tally.unmountable += 1;
        return;
    };
    drop(fs);
    let Ok(mounted) = images.mount_read_only() else {
        // The kernel needs all of the block groups to mount, Papilio to write.
        assert!(open(images.paths(), &writable()).is_err(), "{when}: only the kernel refuses it");
        tally.unmountable += 1;
        return;
    };
    let theirs = kernel::scrub(&mounted, true);
    drop(mounted);
    let verdict = scrub(&images, false);
    let total = verdict.total();
    let parity = matches!(profile, "raid5" | "raid6");
    if verdict.skipped > 0 || parity {
        // The kernel ends the scrub of a device at a tree block of the checksum tree, or a row
        // with parity, that it cannot mend.
        assert_not_more(&theirs, &by_device(&verdict), &when);
    }
    if verdict.skipped == 0 && (total.uncorrectable_errors == 0 || !parity) {
        assert_eq!(shared(&by_device(&verdict)), shared(&theirs), "{when}: verdict");
    }
    let report = scrub(&images, true);
    assert_eq!(shared(&by_device(&report)), shared(&by_device(&verdict)), "{when}: verdict while healing");
    tally.found += total.csum_errors + total.verify_errors;
    tally.healed += total.corrected_errors;
    tally.lost += total.uncorrectable_errors;
    tally.parity += total.parity_errors;

    let again = scrub(&images, true).total();
    assert_eq!((again.corrected_errors, again.parity_errors), (0, 0), "{when}: after healing");
    let mounted = images.mount().unwrap();
    let kernels =
        kernel::scrub(&mounted, false).into_values().fold(ScrubCounts::default(), |mut sum, counts| {
            sum.add(&counts);
            sum
        });
    // Where blocks of the checksum tree are lost, the kernel may read a little more of it.
    assert!(kernels.corrected_errors == 0 || report.skipped > 0, "{when}: {kernels:?} after {report:?}");
    assert_eq!(kernels.uncorrectable_errors > 0, total.uncorrectable_errors > 0, "{when}");
    compare_files(world, &images, &mounted, &when, tally);
    let complete = read_all(mounted.path());
    mounted.unmount().unwrap();
    if total.uncorrectable_errors == 0 {
        let all = complete.keys().eq(world.files.keys()) && complete.values().all(Result::is_ok);
        assert!(all, "{when}");
        assert_clean(images.paths(), &when);
        check_with_tools(&images, parity, &when);
    }
}

/// Fails if the kernel counted more of anything than Papilio.
fn assert_not_more(theirs: &BTreeMap<u64, ScrubCounts>, ours: &BTreeMap<u64, ScrubCounts>, when: &str) {
    for (devid, theirs) in theirs {
        let ours = &ours[devid];
        let pairs = [
            (theirs.csum_errors, ours.csum_errors),
            (theirs.verify_errors, ours.verify_errors),
            (theirs.uncorrectable_errors, ours.uncorrectable_errors),
            (theirs.corrected_errors, ours.corrected_errors),
        ];
        assert!(pairs.iter().all(|(theirs, ours)| theirs <= ours), "{when}: {theirs:?}, ours {ours:?}");
    }
}

/// Compares the files on the kernel's mount with those of the world.
fn compare_files(world: &World, images: &ImageSet, mounted: &Mounted, when: &str, tally: &mut Tally) {
    let fs = open(images.paths(), &OpenOptions::new());
    for (name, content) in read_all(mounted.path()) {
        // Nothing tells that the bytes of a file without checksums are wrong.
        if name == Path::new("nocow") {
            continue;
        }
        match content {
            Ok(content) if world.files[&name] == content => {}
            Err(_) => tally.lost_files += 1,
            Ok(content) => {
                // The kernel returns zeros for some sectors without a good copy. Papilio does not.
                let sectors = |bytes: &[u8]| bytes.chunks(4096).map(<[u8]>::to_vec).collect::<Vec<_>>();
                let (before, now) = (sectors(&world.files[&name]), sectors(&content));
                let zeros = before.iter().zip(&now).all(|(a, b)| a == b || b.iter().all(|byte| *byte == 0));
                let lost = fs.as_ref().is_ok_and(|fs| fs.read(name.as_os_str().as_bytes()).is_err());
                assert!(zeros && lost && before.len() == now.len(), "{when}: {} differs", name.display());
                tally.lost_files += 1;
            }
        }
    }
}

/// Runs `btrfs check`. With parity it leaves the data out: btrfs-progs 6.2 rebuilds some sectors of
/// rows wrongly whose data and parity belong together.
fn check_with_tools(images: &ImageSet, parity: bool, when: &str) {
    if !parity {
        images.btrfs_check().unwrap_or_else(|error| panic!("{when}: {error:#}"));
        return;
    }
    let devices = images.attach(true).unwrap();
    btrfs(&["check".as_ref(), "--readonly".as_ref(), devices[0].path().as_os_str()]);
}

fn planted(profile: &str, csum: &str) {
    let Some(_met) = require(NEEDS) else { return };
    let wanted =
        std::env::var("PAPILIO_SCRUB_PLANTS").ok().map(|count| count.parse::<usize>().expect("a number"));
    let plants = wanted.map_or(PLANTS, |count| count.div_ceil(PROFILES.len()));
    let devices = PROFILES.iter().find(|(name, _)| *name == profile).unwrap().1;
    let world = World::new(profile, devices, csum);
    let mut tally = Tally::default();
    let mut seed = 0;
    while tally.plants < plants {
        // Rounds with few faults are healed completely; in those with many, some files are lost.
        let count = [10, 50, AT_ONCE][seed as usize % 3].min(plants - tally.plants);
        round(&world, profile, seed, count, &mut tally);
        seed += 1;
    }
    eprintln!("{profile}: {tally:?}");
    assert!(tally.healed > 0 && tally.unmountable < seed as usize, "{profile}: {tally:?}");
}

#[test]
fn faults_in_dup_are_healed() {
    planted("dup", "sha256");
}

#[test]
fn faults_in_raid1_are_healed() {
    planted("raid1", "crc32c");
}

#[test]
fn faults_in_raid1c3_are_healed() {
    planted("raid1c3", "xxhash");
}

#[test]
fn faults_in_raid10_are_healed() {
    planted("raid10", "crc32c");
}

#[test]
fn faults_in_raid5_are_healed() {
    planted("raid5", "crc32c");
}

#[test]
fn faults_in_raid6_are_healed() {
    planted("raid6", "blake2");
}
