//! Replacing devices: the result is the kernel's and clean, sources that are missing or bad are
//! rebuilt, and each resumes the replacement that the other has left.

use super::kernel;
use super::world::{PROFILES, Plants, World, read_all};
use crate::images::{assert_clean, btrfs, open};
use papilio::device::{Access, Device, FileDevice};
use papilio::{
    BalanceControl, DevReplaceState, DeviceId, FileSystem, OpenOptions, ReplaceOptions, ReplaceReport,
    ScrubCounts,
};
use papilio_oracle::{ImageSet, Need, require};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const NEEDS: &[Need] = &[Need::Root, Need::Loop, Need::KernelBtrfs, Need::Command("btrfs")];

fn device(path: &Path) -> Arc<dyn Device> {
    Arc::new(FileDevice::open(path, Access::ReadWrite).unwrap())
}

/// Replaces the device of image `source` by the file `target`; stops after `most` reports.
fn replace(
    images: &[PathBuf],
    source: u64,
    target: &Path,
    options: ReplaceOptions,
    most: usize,
) -> papilio::Result<ReplaceReport> {
    let devices = images.iter().map(|path| device(path)).collect();
    let mut reports = 0;
    let open = OpenOptions::new().degraded(true);
    papilio::replace_device(devices, DeviceId(source), &device(target), &open, options, |_| {
        reports += 1;
        reports < most
    })
}

/// Resumes a replacement, writes meanwhile, and pauses it: the target has old superblocks then.
fn write_while_replaced(world: &mut World, images: &ImageSet, target: &Path) {
    let devices = images.paths().iter().map(PathBuf::as_path).chain([target]).map(device).collect();
    let fs = FileSystem::from_devices(devices, &OpenOptions::new().write(true)).unwrap();
    let content = vec![7; 3 << 20];
    let mut reports = 0;
    let paused = fs.resume_replace(|_| {
        reports += 1;
        if reports < 5 {
            fs.write(format!("/meanwhile {reports}"), &content).unwrap();
            fs.sync().unwrap();
        }
        if reports < 8 { BalanceControl::Continue } else { BalanceControl::Pause }
    });
    assert_eq!(paused.unwrap().state, DevReplaceState::Started);
    fs.write("/later", &content).unwrap();
    fs.close().unwrap();
    let written = (1..5).map(|number| format!("meanwhile {number}")).chain(["later".to_owned()]);
    world.files.extend(written.map(|name| (name.into(), content.clone())));
}

fn new_file(world: &World, size: u64) -> PathBuf {
    let path = world.images.paths()[0].with_file_name(format!("target-{}", fastrand::u64(..)));
    File::create(&path).unwrap().set_len(size).unwrap();
    path
}

/// Compares the files on a mount of the kernel, and runs all checks.
fn assert_whole(world: &World, images: &ImageSet, when: &str) {
    assert_clean(images.paths(), when);
    let mounted = images.mount().unwrap();
    let read = read_all(mounted.path());
    assert!(read.keys().eq(world.files.keys()), "{when}");
    for (name, content) in &world.files {
        assert!(read[name].as_ref().is_ok_and(|read| read == content), "{when}: {}", name.display());
    }
    let mut counts = ScrubCounts::default();
    kernel::scrub(&mounted, false).values().for_each(|device| counts.add(device));
    assert!(!counts.has_errors(), "{when}: {counts:?}");
    mounted.unmount().unwrap();
    let devices = images.attach(true).unwrap();
    btrfs(&["check".as_ref(), "--readonly".as_ref(), devices[0].path().as_os_str()]);
}

#[test]
fn every_device_of_every_profile_is_replaced() {
    let Some(_met) = require(NEEDS) else { return };
    for (profile, devices) in PROFILES {
        for number in [0, devices - 1] {
            for avoid_source in [false, devices > 1] {
                let when = format!("{profile}, device {number}, avoided: {avoid_source}");
                let world = World::new(profile, devices, "crc32c");
                let images = world.copy();
                let target = new_file(&world, 500 << 20);
                let options = ReplaceOptions { avoid_source, force: false };
                let report =
                    replace(images.paths(), number as u64 + 1, &target, options, usize::MAX).unwrap();
                assert_eq!(report.state, DevReplaceState::Finished, "{when}");
                assert_eq!((report.uncorrectable_read_errors, report.write_errors), (0, 0), "{when}");
                let mut paths = images.paths().to_vec();
                let gone = std::mem::replace(&mut paths[number], target);
                assert!(open(&[gone], &OpenOptions::new()).is_err(), "{when}: the source is erased");
                assert_whole(&world, &world.set_of(paths), &when);
            }
        }
    }
}

#[test]
fn a_missing_or_bad_source_is_rebuilt() {
    let Some(_met) = require(NEEDS) else { return };
    for (profile, devices) in PROFILES.into_iter().filter(|(_, devices)| *devices > 1) {
        let world = World::new(profile, devices, "crc32c");
        let images = world.copy();
        let mut paths = images.paths().to_vec();
        paths.remove(0);
        let target = new_file(&world, 400 << 20);
        let report = replace(&paths, 1, &target, ReplaceOptions::default(), usize::MAX).unwrap();
        assert_eq!(report.uncorrectable_read_errors, 0, "{profile}");
        paths.insert(0, target);
        assert_whole(&world, &world.set_of(paths), &format!("{profile}, missing"));

        let images = world.copy();
        assert!(Plants::new(&images, 3).lose_first_copies(&images, 40) > 0);
        let target = new_file(&world, 400 << 20);
        replace(images.paths(), 1, &target, ReplaceOptions::default(), usize::MAX).unwrap();
        let mut paths = images.paths().to_vec();
        paths[0] = target;
        let images = world.set_of(paths);
        let fs = open(images.paths(), &OpenOptions::new()).unwrap();
        let total = fs.scrub(&papilio::ScrubOptions::new(), |_| true).unwrap().total();
        // A bad sector in free space is copied, as nothing tells. Its row's parity may differ then.
        let errors = total.csum_errors + total.verify_errors + total.uncorrectable_errors;
        assert_eq!(errors, 0, "{profile}, bad: {total:?}");
    }
}

#[test]
fn a_replacement_that_stopped_is_resumed_here_by_the_kernel_or_cancelled() {
    let Some(_met) = require(NEEDS) else { return };
    for by_kernel in [false, true] {
        let when = format!("by the kernel: {by_kernel}");
        let mut world = World::new("raid1", 2, "crc32c");
        let images = world.copy();
        let target = new_file(&world, 400 << 20);
        let report = replace(images.paths(), 2, &target, ReplaceOptions::default(), 10).unwrap();
        assert_eq!(report.state, DevReplaceState::Started, "{when}");
        write_while_replaced(&mut world, &images, &target);
        let refused = open(images.paths(), &OpenOptions::new().write(true)).unwrap_err().to_string();
        assert!(refused.contains("being replaced"), "{refused}");
        let fs = open(images.paths(), &OpenOptions::new()).unwrap();
        assert_eq!(fs.replace_status().unwrap().unwrap().state, DevReplaceState::Started);
        drop(fs);
        let other = new_file(&world, 400 << 20);
        let error = replace(images.paths(), 1, &other, ReplaceOptions::default(), 1).unwrap_err();
        assert!(error.to_string().contains("replacement of device 2 is under way"), "{error}");
        let error = replace(images.paths(), 2, &other, ReplaceOptions::default(), 1).unwrap_err();
        assert!(error.to_string().contains("not the target"), "{error}");
        if by_kernel {
            let mut all = images.paths().to_vec();
            all.push(target.clone());
            let mounted = world.set_of(all).mount().unwrap();
            let end = Instant::now() + Duration::from_secs(60);
            loop {
                let status = btrfs(&[
                    "replace".as_ref(),
                    "status".as_ref(),
                    "-1".as_ref(),
                    mounted.path().as_os_str(),
                ]);
                if status.contains("finished on") {
                    break;
                }
                assert!(Instant::now() < end, "{status}");
                std::thread::sleep(Duration::from_millis(100));
            }
            mounted.unmount().unwrap();
        } else {
            replace(images.paths(), 2, &target, ReplaceOptions::default(), usize::MAX).unwrap();
        }
        let images = world.set_of(vec![images.paths()[0].clone(), target]);
        assert_whole(&world, &images, &when);
    }

    let world = World::new("raid1", 2, "crc32c");
    let images = world.copy();
    let target = new_file(&world, 400 << 20);
    replace(images.paths(), 2, &target, ReplaceOptions::default(), 10).unwrap();
    let devices = || images.paths().iter().map(|path| device(path)).collect();
    let report = papilio::cancel_replace(devices(), Some(&*device(&target)), &OpenOptions::new()).unwrap();
    assert_eq!(report.state, DevReplaceState::Canceled);
    assert!(papilio::cancel_replace(devices(), None, &OpenOptions::new()).is_err());
    assert_whole(&world, &images, "cancelled");
}

#[test]
fn the_kernels_replacement_is_resumed() {
    let Some(_met) = require(NEEDS) else { return };
    let mut world = World::new("raid1", 2, "crc32c");
    let images = world.copy();
    let target = new_file(&world, 400 << 20);
    let mounted = images.mount().unwrap();
    let content: Vec<u8> = (0..40 << 20).map(|_| fastrand::u8(..)).collect();
    std::fs::write(mounted.path().join("more"), &content).unwrap();
    world.files.insert("more".into(), content);
    mounted.sync().unwrap();
    let fsid = papilio::FoundDevice::read(&images.paths()[0]).unwrap().unwrap().fsid;
    let limit = format!("/sys/fs/btrfs/{fsid}/devinfo/2/scrub_speed_max");
    std::fs::write(&limit, "8M").unwrap();
    let devices = world.set_of(vec![target.clone()]).attach(false).unwrap();
    let [replaced, by] = ["2".as_ref(), devices[0].path().as_os_str()];
    let arguments = ["replace".as_ref(), "start".as_ref(), replaced, by, mounted.path().as_os_str()];
    btrfs(&arguments);
    // As after a power cut: the start is committed, and a part is copied.
    let status =
        || btrfs(&["replace".as_ref(), "status".as_ref(), "-1".as_ref(), mounted.path().as_os_str()]);
    let end = Instant::now() + Duration::from_secs(20);
    while !status().contains("% done") || status().contains("0.0% done") {
        assert!(Instant::now() < end, "{}", status());
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut all = images.paths().to_vec();
    all.push(target);
    let cut = world.copy_of(&world.set_of(all));
    let cut_in_time = !status().contains("finished");
    std::fs::write(limit, "0").unwrap();
    while status().contains("% done") {
        std::thread::sleep(Duration::from_millis(50));
    }
    mounted.unmount().unwrap();
    drop(devices);

    assert!(cut_in_time, "the kernel was faster than its limit");
    let [first, second, target] = cut.paths() else { panic!("three images") };
    let left = [first.clone(), second.clone()];
    let fs = open(&left, &OpenOptions::new()).unwrap();
    assert_eq!(fs.replace_status().unwrap().unwrap().state, DevReplaceState::Started);
    drop(fs);
    let report = replace(&left, 2, target, ReplaceOptions::default(), usize::MAX).unwrap();
    assert_eq!(report.state, DevReplaceState::Finished);
    assert_whole(&world, &world.set_of(vec![first.clone(), target.clone()]), "resumed");
}

#[test]
fn wrong_targets_are_refused() {
    let Some(_met) = require(NEEDS) else { return };
    let world = World::new("raid1", 2, "crc32c");
    let images = world.copy();
    let small = new_file(&world, 300 << 20);
    let refused = |source, target: &Path| {
        let error =
            replace(images.paths(), source, target, ReplaceOptions::default(), usize::MAX).unwrap_err();
        error.to_string()
    };
    assert!(refused(1, &small).contains("the file system needs"), "{}", refused(1, &small));
    let other = World::new("dup", 1, "crc32c");
    assert!(refused(1, &other.images.paths()[0]).contains("a Btrfs file system"));
    let target = new_file(&world, 400 << 20);
    assert!(refused(7, &target).contains("device 7 is not part"));
    assert_whole(&world, &images, "after refusals");
    let force = ReplaceOptions { force: true, ..ReplaceOptions::default() };
    replace(images.paths(), 1, &other.images.paths()[0], force, usize::MAX).unwrap();
}
