//! Judges the repair of a device with a planted fault.
//!
//! Repaired means: no finding is left, `btrfs check` has no complaint, and the kernel mounts the
//! result with all the data of the image before the fault. Whatever a repair does, its undo file
//! restores every byte; and a repair that makes nothing better writes nothing.

use crate::in_memory::{check, crashed};
use papilio::OpenOptions;
use papilio_device::{Device, MemoryDevice, PhysicalAddress};
use papilio_oracle::{CompareOptions, HostTree, ImageSet, Scratch, compare};
use std::sync::Arc;

pub fn same(left: &MemoryDevice, right: &MemoryDevice) -> bool {
    const STEP: usize = 1 << 20;
    let (mut one, mut other) = (vec![0; STEP], vec![0; STEP]);
    assert!(left.size() == right.size() && left.size().is_multiple_of(STEP as u64));
    (0..left.size()).step_by(STEP).all(|offset| {
        left.read_at(&mut one, PhysicalAddress(offset)).unwrap();
        right.read_at(&mut other, PhysicalAddress(offset)).unwrap();
        one == other
    })
}

/// Repairs the device, and takes the repair back. Returns why it is not repaired.
pub fn judge(device: &Arc<MemoryDevice>, sound: &MemoryDevice) -> Result<(), String> {
    let before = device.snapshot();
    let devices = vec![device.clone() as Arc<dyn Device>];
    let open = OpenOptions::new();
    let folder = tempfile::tempdir().unwrap();
    let undo = folder.path().join("undo");
    let plan = match papilio::plan_repair(&devices, &open) {
        Ok(plan) => plan,
        Err(error) => return Err(error.to_string()),
    };
    if std::env::var_os("PAPILIO_FAULT").is_some() {
        println!("{:#?}\n{:#?}\n{:#?}", plan.changes, plan.refused, plan.after.findings);
    }
    if !plan.better {
        assert!(papilio::repair(&devices, &open, &plan, &undo).is_err());
        assert!(!undo.exists() && same(device, &before), "a refused repair writes nothing");
        let reason = match (plan.refused.first(), plan.changes.is_empty()) {
            (Some(reason), _) => reason.clone(),
            (None, true) => "nothing to do it with".to_owned(),
            (None, false) => "no better than before".to_owned(),
        };
        return Err(reason);
    }
    let made = papilio::repair(&devices, &open, &plan, &undo).expect("as planned");
    assert_eq!(made.changes, plan.changes);
    let after = crashed(device);
    papilio::undo_repair(&devices, &undo).expect("undo");
    assert!(same(device, &before), "the undo file restores every byte");
    if let Some((kind, count)) = plan.after.counts.first_key_value() {
        return Err(format!("{kind} {count} is left"));
    }
    assert!(plan.after.is_clean() && check(&after).is_clean());
    agrees(&after, sound)
}

/// Asks `btrfs check` and the kernel.
pub fn agrees(after: &MemoryDevice, sound: &MemoryDevice) -> Result<(), String> {
    let scratch = Scratch::new(600 << 20).expect("a scratch folder");
    let images = |name: &str, device: &MemoryDevice| {
        let path = scratch.image(name, device.size()).expect("an image");
        device.write_image(&path).expect("an image");
        ImageSet::open(&scratch, vec![path])
    };
    let (mended, sound) = (images("mended", after), images("sound", sound));
    mended.btrfs_check().map_err(|error| format!("btrfs check: {error}"))?;
    let sound_mount = sound.mount().expect("the sound image mounts");
    let mended_mount = mended.mount().map_err(|error| format!("the kernel: {error}"))?;
    // Without segments: a repair may clear flags that change how the kernel reports holes.
    let options = CompareOptions { segments: false, ..CompareOptions::SAME_IMAGE };
    let report = compare(&HostTree::new(sound_mount.path()), &HostTree::new(mended_mount.path()), &options);
    mended_mount.unmount().expect("unmount");
    sound_mount.unmount().expect("unmount");
    match report.is_equal() && report.entries > 60 {
        true => Ok(()),
        false => Err(format!("the kernel sees other data: {}", report.to_string().replace('\n', " "))),
    }
}
