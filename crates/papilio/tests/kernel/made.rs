//! File systems of several devices that Papilio made: each profile on 2 to 6 devices of different
//! sizes. The kernel mounts, compares, writes and scrubs them, in turn with Papilio.

use crate::images::{assert_clean, open, writable};
use crate::matrix::compare_with_kernel;
use papilio::format::items::chunk::RaidProfile;
use papilio::{MkfsFeature, MkfsOptions, Populate};
use papilio_oracle::{ImageSet, Need, Scratch, require};
use std::fs;
use std::path::Path;

const MIB: u64 = 1 << 20;
pub(crate) const NEEDS: &[Need] = &[Need::Root, Need::Loop, Need::KernelBtrfs, Need::Command("btrfs")];

/// Returns the smallest number of devices for a profile, as mkfs.btrfs(8) has it.
pub(crate) fn devices_min(profile: RaidProfile) -> usize {
    match profile {
        RaidProfile::Single | RaidProfile::Dup | RaidProfile::Raid0 => 1,
        RaidProfile::Raid1 | RaidProfile::Raid10 | RaidProfile::Raid5 => 2,
        RaidProfile::Raid1c3 | RaidProfile::Raid6 => 3,
        RaidProfile::Raid1c4 => 4,
    }
}

/// Writes folders of ten files of different sizes.
pub(crate) fn write_tree(root: &Path, entries: usize) {
    for number in 0..entries {
        let folder = root.join(format!("folder-{}", number / 10));
        fs::create_dir_all(&folder).unwrap();
        let size = if number % 50 == 7 { 700_000 } else { number * 37 % 20_000 };
        let content: Vec<u8> = (0..size).map(|at| (at * 7 + at / 251 + number) as u8).collect();
        fs::write(folder.join(format!("file-{number}")), content).unwrap();
    }
    std::os::unix::fs::symlink("folder-0/file-1", root.join("link")).unwrap();
}

/// Has the kernel read and verify all copies and parity.
fn scrub(images: &ImageSet, what: &str) {
    let mounted = images.mount_read_only().unwrap();
    let text = crate::images::btrfs(&["scrub", "start", "-B", "-d", "-r", mounted.path().to_str().unwrap()]);
    assert_eq!(text.matches("no errors found").count(), images.paths().len(), "{what}: {text}");
}

/// Compares, checks and scrubs the images.
pub(crate) fn judge(images: &ImageSet, entries: usize, parity: bool, what: &str) {
    let report = compare_with_kernel(images);
    assert!(report.is_equal() && report.entries > entries as u64, "{what}: {report}");
    assert_clean(images.paths(), what);
    scrub(images, what);
    // `btrfs check --check-data-csum` 6.2 rebuilds some sectors of RAID5 and RAID6 wrongly.
    if !parity {
        images.btrfs_check().unwrap_or_else(|error| panic!("{what}: {error:#}"));
    }
}

fn one(profile: RaidProfile, devices: usize, options: &MkfsOptions, entries: usize) {
    let what = format!("{profile} on {devices} devices");
    let scratch = Scratch::new((1 << 30) + entries as u64 * (1 << 17)).unwrap();
    let host = scratch.unique("host");
    fs::create_dir(&host).unwrap();
    write_tree(&host, entries);
    let size = (entries as u64 >> 3) * MIB;
    let paths: Vec<_> = (0..devices as u64)
        .map(|number| {
            let image = scratch.unique("image");
            let file = fs::File::create(&image).unwrap();
            file.set_len((300 + number * 70) * MIB + size).unwrap();
            image
        })
        .collect();
    let made = papilio::mkfs_many(&paths, options).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(made.devices.len(), devices, "{what}");
    let images = ImageSet::open(&scratch, paths.clone());
    judge(&images, 0, profile.parity() > 0, &format!("{what}, empty"));

    let filled = open(&paths, &writable()).unwrap();
    Populate::new().directory(&host, &filled.inode("/").unwrap(), &mut ()).unwrap();
    filled.close().unwrap();
    judge(&images, entries, profile.parity() > 0, &format!("{what}, filled"));

    let mounted = images.mount().unwrap();
    write_tree_again(mounted.path(), entries);
    mounted.unmount().unwrap();
    judge(&images, entries, profile.parity() > 0, &format!("{what}, written by the kernel"));

    let again = open(&paths, &writable()).unwrap();
    again.remove_file("/folder-1/file-11").unwrap();
    again.create_dir("/more").unwrap();
    Populate::new().directory(&host, &again.inode("/more").unwrap(), &mut ()).unwrap();
    again.close().unwrap();
    judge(&images, 2 * entries, profile.parity() > 0, &format!("{what}, written again"));
}

/// Changes the tree on a kernel mount.
pub(crate) fn write_tree_again(root: &Path, entries: usize) {
    fs::remove_file(root.join("folder-0/file-0")).unwrap();
    let made = root.join("by-the-kernel");
    fs::create_dir(&made).unwrap();
    write_tree(&made, entries / 3);
}

fn every_profile(counts: impl Fn(RaidProfile) -> Vec<usize>, entries: usize) {
    if require(NEEDS).is_none() {
        return;
    }
    for profile in RaidProfile::ALL {
        let options = MkfsOptions::new().data_profile(profile).metadata_profile(profile);
        for devices in counts(profile) {
            one(profile, devices, &options, entries);
        }
    }
}

#[test]
fn the_kernel_uses_every_profile_made() {
    every_profile(|profile| vec![devices_min(profile).max(2), 6], 300);
}

#[test]
#[ignore = "takes minutes"]
fn the_kernel_uses_every_profile_made_with_many_entries() {
    every_profile(|profile| (devices_min(profile).max(2)..=6).collect(), 5000);
}

#[test]
fn the_kernel_uses_defaults_mixed_groups_and_different_profiles() {
    if require(NEEDS).is_none() {
        return;
    }
    one(RaidProfile::Single, 2, &MkfsOptions::new(), 100);
    let mixed = MkfsOptions::new().feature(MkfsFeature::MixedGroups, true);
    one(RaidProfile::Raid1, 3, &mixed.metadata_profile(RaidProfile::Raid1), 100);
    let options = MkfsOptions::new().data_profile(RaidProfile::Raid10).metadata_profile(RaidProfile::Raid1c3);
    one(RaidProfile::Raid10, 6, &options, 100);
    one(RaidProfile::Raid0, 1, &MkfsOptions::new().data_profile(RaidProfile::Raid0), 100);
}

#[test]
fn unusable_sets_are_refused_and_left_alone() {
    let scratch = tempfile::tempdir().unwrap();
    let images: Vec<_> = ["a", "b"].map(|name| scratch.path().join(name)).to_vec();
    let sized = MkfsOptions::new().size(120 * MIB);
    let refusal =
        |paths: &[&Path], options: &MkfsOptions| papilio::mkfs_many(paths, options).unwrap_err().to_string();
    let [a, b] = [&images[0], &images[1]];
    let twice = refusal(&[a, a], &sized);
    assert!(twice.contains("given twice"), "{twice}");
    let few = refusal(&[a, b], &sized.clone().data_profile(RaidProfile::Raid6));
    assert!(few.contains("RAID6 needs at least 3 devices, not 2"), "{few}");
    assert!(refusal(&[a, b], &MkfsOptions::new().size(MIB)).contains("bytes"));
    assert!(!a.exists() && !b.exists(), "a refusal leaves no image behind");

    // A file system on the second device keeps the first as it was.
    papilio::mkfs(b, &sized).unwrap();
    fs::write(a, vec![7; 120 << 20]).unwrap();
    assert!(refusal(&[a, b], &sized).contains("Btrfs"));
    assert!(fs::read(a).unwrap().iter().all(|byte| *byte == 7), "nothing was written");
    // An alias of a device is the same device.
    let link = scratch.path().join("link");
    std::os::unix::fs::symlink(a, &link).unwrap();
    assert!(refusal(&[a, &link], &sized.clone().force(true)).contains("given twice"));
}
