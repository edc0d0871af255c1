//! Crashes: at each commit the stored numbers are exact, or the status says that they are not.

use crate::world::World;
use papilio::device::{Device, MemoryDevice};
use papilio::{CheckOptions, FileSystem, MkfsOptions, OpenOptions, check_devices, mkfs_device};
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
    crate::warnings::print();
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
