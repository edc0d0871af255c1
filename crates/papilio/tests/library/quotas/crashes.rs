//! Crashes: at each commit the stored numbers are exact, or the status says that they are not.

use super::judge::{NEEDS, assert_exact};
use super::world::World;
use crate::images::writable;
use papilio::device::{Device, MemoryDevice};
use papilio::{CheckOptions, FileSystem, MkfsOptions, OpenOptions, check_devices, mkfs_device};
use papilio_oracle::{Scratch, require};
use std::sync::Arc;

/// Opens a copy of a device.
fn copy_of(device: &Arc<dyn Device>, bytes: u64) -> Arc<dyn Device> {
    let mut content = vec![0; bytes as usize];
    device.read_at(&mut content, papilio::PhysicalAddress(0)).unwrap();
    let copy: Arc<dyn Device> = Arc::new(MemoryDevice::new(bytes));
    copy.write_at(&content, papilio::PhysicalAddress(0)).unwrap();
    copy
}

#[test]
fn every_state_that_a_crash_leaves_has_exact_numbers() {
    const BYTES: u64 = 192 << 20;
    super::warnings::print();
    for (seed, simple) in [(1, false), (2, false), (3, false), (4, true), (5, true)] {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(BYTES));
        mkfs_device(&device, &MkfsOptions::new().node_size(4096)).unwrap();
        let options = OpenOptions::new().write(true).commit_interval(None);
        let fs = FileSystem::from_devices(vec![Arc::clone(&device)], &options).unwrap();
        let mut world = World::new(seed);
        world.steps(&fs, 150);
        if simple {
            fs.enable_simple_quotas().unwrap();
        } else {
            fs.enable_quotas().unwrap();
            fs.start_quota_rescan().unwrap();
        }
        let (mut checked, mut rescanning) = (0, !simple);
        for step in 0..250 {
            world.step(&fs);
            // The rescan goes on beside the changes.
            if rescanning && step % 20 == 19 {
                rescanning = fs.rescan_quotas_step().unwrap().is_some();
            }
            if step % 3 == 0 {
                fs.clean_subvolumes_step().unwrap();
            }
            if step % 10 != 0 {
                continue;
            }
            fs.sync().unwrap();
            world.step(&fs);
            // Without closing: the last commit, or the log after it.
            let crashed = copy_of(&device, BYTES);
            let check = CheckOptions::new();
            let report = check_devices(vec![Arc::clone(&crashed)], &OpenOptions::new(), &check).unwrap();
            assert!(report.findings.is_empty(), "seed {seed}, step {step}: {:#?}", report.findings);
            // The next mount continues from there.
            let again = FileSystem::from_devices(vec![crashed], &options).unwrap();
            let status = again.quota_status().unwrap().unwrap();
            if !status.is_inconsistent() {
                checked += 1;
            } else if status.is_rescanning() {
                again.rescan_quotas(|_| ()).unwrap();
            } else {
                panic!("seed {seed}, step {step}: {status:?}");
            }
            let counted = again.count_qgroups().unwrap();
            let stored: Vec<_> = again
                .qgroups()
                .unwrap()
                .iter()
                .map(|group| (group.id, group.referenced, group.exclusive))
                .collect();
            assert_eq!(stored, counted, "seed {seed}, step {step}");
        }
        assert!(checked > 10, "seed {seed}: only {checked} states were consistent");
    }
}

/// `PAPILIO_QUOTA_CRASHES` sets the number of states, `PAPILIO_QUOTA_SEED` the seed.
#[test]
fn numbers_after_a_crash_equal_the_kernels_rescan() {
    const BYTES: u64 = 256 << 20;
    if require(NEEDS).is_none() {
        return;
    }
    let setting = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |value| value.parse().expect("the setting is a number"))
    };
    let (states, seed) = (setting("PAPILIO_QUOTA_CRASHES", 6), setting("PAPILIO_QUOTA_SEED", 1));
    let scratch = Scratch::new(2 << 30).unwrap();
    super::warnings::print();
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(BYTES));
    mkfs_device(&device, &MkfsOptions::new().node_size(4096)).unwrap();
    let options = OpenOptions::new().write(true).commit_interval(None);
    let fs = FileSystem::from_devices(vec![Arc::clone(&device)], &options).unwrap();
    fs.enable_quotas().unwrap();
    fs.rescan_quotas(|_| ()).unwrap();
    let mut world = World::new(seed);
    world.steps(&fs, 150);
    for state in 0..states {
        let when = format!("seed {seed}, state {state}");
        world.steps(&fs, 40);
        // Otherwise the kernel deletes subvolumes while it counts.
        fs.clean_subvolumes().unwrap();
        fs.sync().unwrap();
        // Lost with the power.
        fs.create_file(format!("/lost{state}")).unwrap().write_all_at(&[7; 20_000], 0).unwrap();
        let mut content = vec![0; BYTES as usize];
        device.read_at(&mut content, papilio::PhysicalAddress(0)).unwrap();
        let image = scratch.unique("crashed");
        std::fs::write(&image, &content).unwrap();
        assert!(FileSystem::open(&image).unwrap().inode(format!("/lost{state}")).is_err(), "{when}");
        assert_exact(&scratch, &image, &when);
        // The next mount goes on from there.
        let again = FileSystem::open_with(&image, &writable()).unwrap();
        again.snapshot("/", "/continued", false).unwrap();
        again.create_file("/continued/file").unwrap().write_all_at(&[8; 20_000], 0).unwrap();
        again.close().unwrap();
        assert_exact(&scratch, &image, &format!("{when}, continued"));
        std::fs::remove_file(image).unwrap();
    }
}
