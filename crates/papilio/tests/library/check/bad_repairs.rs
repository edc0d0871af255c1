//! Repairs of what cannot be repaired: one clear line, and nothing is written.

use super::repaired::same;
use crate::in_memory::{crashed, formatted, open};
use papilio::format::superblock::superblock_offset;
use papilio::{FileSystem, MkfsOptions, OpenOptions, RaidProfile};
use papilio_device::{Device, MemoryDevice, PhysicalAddress};
use papilio_oracle::{Need, require};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

const SIZE: u64 = 256 << 20;

fn sample() -> Arc<MemoryDevice> {
    let device = formatted(SIZE);
    let fs = open(&device);
    for number in 0..30 {
        fs.write(format!("/{number}"), vec![number as u8; 20_000]).unwrap();
    }
    fs.close().unwrap();
    device
}

/// Plants a fault that a repair mends: a superblock copy of zeros.
fn mendable() -> Arc<MemoryDevice> {
    let device = sample();
    device.write_at(&[0; 4096], superblock_offset(1)).unwrap();
    device
}

/// Plans a repair, and makes it if there is a plan. Asserts that it fails, with one line that has
/// `part`, and that nothing is written.
fn refused(devices: &[Arc<MemoryDevice>], undo: &Path, part: &str) {
    let before: Vec<_> = devices.iter().map(|device| device.snapshot()).collect();
    let shared: Vec<_> = devices.iter().map(|device| device.clone() as Arc<dyn Device>).collect();
    let options = OpenOptions::new();
    let made = papilio::plan_repair(&shared, &options)
        .and_then(|plan| papilio::repair(&shared, &options, &plan, undo).map(|_| plan));
    let error = made.expect_err(part).to_string();
    assert!(error.contains(part), "{part:?} is not in {error:?}");
    assert_eq!(error.lines().count(), 1, "{error:?}");
    for (device, before) in devices.iter().zip(&before) {
        assert!(same(device, before), "{part}: nothing is written");
    }
}

#[test]
fn bad_devices_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let undo = folder.path().join("undo");
    refused(&[Arc::new(MemoryDevice::new(SIZE))], &undo, "superblock");
    refused(&[Arc::new(MemoryDevice::new(1 << 20))], &undo, "superblock");
    let torn = sample();
    for copy in 0..2 {
        torn.write_at(&[0xff; 512], PhysicalAddress(superblock_offset(copy).0 + 512)).unwrap();
    }
    refused(&[torn], &undo, "checksum");
    let long = sample();
    let short = Arc::new(MemoryDevice::new(SIZE / 8));
    let mut part = vec![0; 1 << 20];
    for at in (0..SIZE / 8).step_by(part.len()) {
        long.read_at(&mut part, PhysicalAddress(at)).unwrap();
        short.write_at(&part, PhysicalAddress(at)).unwrap();
    }
    refused(&[short], &undo, "was cut");
    // One device twice, and one of another file system.
    refused(&[mendable(), mendable()], &undo, "");
    assert!(!undo.exists());
}

#[test]
fn devices_in_another_order_are_the_same_file_system() {
    let make = || {
        let devices: Vec<_> = (0..2).map(|_| Arc::new(MemoryDevice::new(SIZE))).collect();
        let shared: Vec<_> = devices.iter().map(|device| device.clone() as Arc<dyn Device>).collect();
        papilio::mkfs_devices(&shared, &MkfsOptions::new().metadata_profile(RaidProfile::Raid1)).unwrap();
        devices
    };
    let folder = tempfile::tempdir().unwrap();
    let undo = folder.path().join("undo");
    let mut devices = make();
    refused(&devices[1..], &undo, "");
    refused(&[devices[0].clone(), make()[1].clone()], &undo, "");
    devices.reverse();
    devices[0].write_at(&[0; 4096], superblock_offset(1)).unwrap();
    let before: Vec<_> = devices.iter().map(|device| device.snapshot()).collect();
    let mut shared: Vec<_> = devices.iter().map(|device| device.clone() as Arc<dyn Device>).collect();
    let plan = papilio::plan_repair(&shared, &OpenOptions::new()).unwrap();
    papilio::repair(&shared, &OpenOptions::new(), &plan, &undo).unwrap();
    shared.reverse();
    papilio::undo_repair(&shared, &undo).unwrap();
    for (device, before) in devices.iter().zip(&before) {
        assert!(same(device, before), "swapped back and forth");
    }
}

#[test]
fn an_undo_file_that_is_cut_short_is_refused() {
    let device = mendable();
    let folder = tempfile::tempdir().unwrap();
    let undo = folder.path().join("undo");
    let shared = vec![device.clone() as Arc<dyn Device>];
    let plan = papilio::plan_repair(&shared, &OpenOptions::new()).unwrap();
    papilio::repair(&shared, &OpenOptions::new(), &plan, &undo).unwrap();
    let whole = std::fs::read(&undo).unwrap();
    let left = device.snapshot();
    for length in [0, 8, 4095, 4096, 5000, whole.len() - 1] {
        std::fs::write(&undo, &whole[..length]).unwrap();
        let error = papilio::undo_repair(&shared, &undo).unwrap_err().to_string();
        assert!(error.contains("undo") && error.lines().count() == 1, "{error:?}");
        assert!(same(&device, &left), "cut at {length}");
    }
    std::fs::write(&undo, &whole).unwrap();
    let other = vec![mendable() as Arc<dyn Device>];
    let error = papilio::undo_repair(&other, &undo).unwrap_err().to_string();
    assert!(error.contains("no device is the one"), "{error}");
    let error = papilio::undo_repair(&[], &undo).unwrap_err().to_string();
    assert!(error.contains("no device is the one"), "{error}");
}

#[test]
fn an_undo_file_that_exists_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let undo = folder.path().join("undo");
    std::fs::write(&undo, b"precious").unwrap();
    refused(&[mendable()], &undo, "exists");
    assert_eq!(std::fs::read(&undo).unwrap(), b"precious");
}

/// A host file system of a few KiB, which is full after the header, the first record, and so on.
struct Full(tempfile::TempDir);

impl Full {
    fn new(kib: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={kib}k"), "full"]).arg(folder.path());
        let status = mount.status().unwrap();
        assert!(status.success(), "tmpfs");
        Self(folder)
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_for_the_undo_file_changes_nothing() {
    if require(&[Need::Root]).is_none() {
        return;
    }
    for kib in [4, 8, 12, 16] {
        let full = Full::new(kib);
        let device = mendable();
        let undo = full.0.path().join("undo");
        refused(std::slice::from_ref(&device), &undo, "undo");
        assert!(!undo.exists(), "{kib} KiB: nothing is left to take back");
        let fs = FileSystem::from_devices(vec![crashed(&device) as Arc<dyn Device>], &OpenOptions::new());
        assert_eq!(fs.unwrap().read("/7").unwrap(), vec![7; 20_000]);
    }
}
