//! Faults in all profiles: found as the kernel finds them, and healed.

use crate::images::{assert_clean, btrfs, open, writable};
use crate::kernel;
use crate::world::{PROFILES, Plants, World, read_all};
use papilio::{OpenOptions, ScrubCounts, ScrubOptions, ScrubReport};
use papilio_oracle::{ImageSet, Need, require};
use std::collections::BTreeMap;

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

#[test]
fn counts_without_faults_are_those_of_the_kernel() {
    let Some(_met) = require(NEEDS) else { return };
    for (profile, devices) in PROFILES {
        let world = World::new(profile, devices, "crc32c");
        let ours = by_device(&scrub(&world.images, false));
        let theirs = kernel::scrub(&world.images.mount_read_only().unwrap(), true);
        eprintln!("{profile}: ours {ours:#?}\ntheirs {theirs:#?}");
    }
}
