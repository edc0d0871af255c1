//! Simple quotas, turned on and off while nothing has the file system mounted.

use super::world::{assert_kernel_takes, cut, filled_with, judge, shared, superblock, tune};
use crate::in_memory::writable;
use papilio::format::features::IncompatFeatures;
use papilio::format::superblock::RawSuperblock;
use papilio::{FileSystem, MkfsFeature, MkfsOptions, OpenOptions, QgroupId, Tune};
use papilio_device::{Access, FileDevice, MemoryDevice};
use papilio_oracle::{ImageSet, Need, Scratch, clean_subvolumes, require};
use std::process::Command;
use std::sync::Arc;

fn simple() -> MkfsOptions {
    MkfsOptions::new().node_size(4096).feature(MkfsFeature::SimpleQuota, true)
}

fn has_feature(devices: &[Arc<MemoryDevice>]) -> bool {
    superblock(&devices[0]).raw.incompat_flags.contains(IncompatFeatures::SIMPLE_QUOTA)
}

#[test]
fn simple_quotas_come_and_go() {
    let devices = filled_with(1, &MkfsOptions::new().node_size(4096));
    let refused = |change, why: &str| {
        let error = tune(&devices, change).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    refused(Tune::SimpleQuotas(false), "has no simple quotas");
    tune(&devices, Tune::SimpleQuotas(true)).unwrap();
    refused(Tune::SimpleQuotas(true), "already has simple quotas");
    assert!(has_feature(&devices));
    // Writes, which are charged.
    judge(&devices, "on");
    tune(&devices, Tune::SimpleQuotas(false)).unwrap();
    assert!(!has_feature(&devices));
    judge(&devices, "off");
    // btrfs-progs 6.2 know no simple quotas.
    assert_kernel_takes(&devices, "off");
}

#[test]
fn quotas_of_the_other_kind_stay() {
    let devices = filled_with(1, &simple());
    let fs = FileSystem::from_devices(shared(&devices), &writable()).unwrap();
    fs.disable_quotas().unwrap();
    fs.enable_quotas().unwrap();
    fs.rescan_quotas(|_| {}).unwrap();
    let before = fs.qgroups().unwrap();
    fs.close().unwrap();
    let refused = tune(&devices, Tune::SimpleQuotas(true)).unwrap_err().to_string();
    assert!(refused.contains("must be off first"), "{refused}");
    assert!(has_feature(&devices));
    tune(&devices, Tune::SimpleQuotas(false)).unwrap();
    assert!(!has_feature(&devices));
    let fs = FileSystem::from_devices(shared(&devices), &OpenOptions::new()).unwrap();
    assert_eq!(fs.qgroups().unwrap(), before);
    drop(fs);
    judge(&devices, "the other kind");
    assert_kernel_takes(&devices, "the other kind");
}

#[test]
fn simple_quotas_survive_power_cuts() {
    let is_on = |raw: &RawSuperblock| raw.incompat_flags.contains(IncompatFeatures::SIMPLE_QUOTA);
    let plain = MkfsOptions::new().node_size(4096);
    for (options, on) in [(plain, true), (simple(), false)] {
        let change = Tune::SimpleQuotas(on);
        let cuts = cut(&filled_with(1, &options), change, change, |raw| is_on(raw) == on);
        assert_eq!(cuts, 0, "{change:?} sets no flag");
    }
}

/// The kernel charges by what the command turned on, and takes a file system that has nothing of
/// it any more.
#[test]
fn the_kernel_goes_on_charging() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    let image = scratch.image("charged", 1 << 30).unwrap();
    let images = ImageSet::open(&scratch, vec![image.clone()]);
    papilio::mkfs(&image, &MkfsOptions::new().node_size(4096).force(true)).unwrap();
    let btrfs = |words: &[&str]| {
        let done = Command::new("btrfs").args(words).output().unwrap();
        assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    };
    let turn = |number: u8| {
        let mounted = images.mount().unwrap();
        let root = mounted.path();
        let at = |name: &str| root.join(format!("{name}{number}"));
        btrfs(&["subvolume", "create", at("s").to_str().unwrap()]);
        for file in 0..300 {
            std::fs::write(at("s").join(file.to_string()), vec![number; 5000 + 16 * file]).unwrap();
        }
        btrfs(&["subvolume", "snapshot", at("s").to_str().unwrap(), at("c").to_str().unwrap()]);
        for file in (0..300).step_by(7) {
            std::fs::remove_file(at("s").join(file.to_string())).unwrap();
        }
        if let Some(before) = number.checked_sub(1) {
            // Extents from before the change are dropped after it.
            for name in [format!("s{before}"), format!("c{before}")] {
                btrfs(&["subvolume", "delete", "-c", root.join(name).to_str().unwrap()]);
            }
            clean_subvolumes(root).unwrap();
        }
        mounted.sync().unwrap();
        mounted.unmount().unwrap();
    };
    let tune = |on| {
        let device = Arc::new(FileDevice::open(&image, Access::ReadWrite).unwrap());
        papilio::tune(&[device], Tune::SimpleQuotas(on), &mut |_, _| {}).unwrap();
    };
    turn(0);
    tune(true);
    turn(1);
    let fs = FileSystem::open_with(&image, &OpenOptions::new()).unwrap();
    let stored: Vec<_> =
        fs.qgroups().unwrap().iter().map(|group| (group.id, group.referenced, group.exclusive)).collect();
    assert_eq!(fs.count_qgroups().unwrap(), stored);
    let charged = |id: QgroupId| stored.iter().find(|group| group.0 == id).map_or(0, |group| group.1);
    assert!(stored.iter().any(|group| charged(group.0) > 1 << 20), "{stored:?}");
    drop(fs);
    tune(false);
    images.btrfs_check().unwrap();
    turn(2);
    images.btrfs_check().unwrap();
}
