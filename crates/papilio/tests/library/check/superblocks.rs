//! Superblock copies: absent or older ones are warnings, which the next commit of a writer mends.

use crate::in_memory::{check, crashed, formatted, open, open_with, writable};
use papilio::format::superblock::{SUPERBLOCK_SIZE, superblock_offset};
use papilio::{FindingKind, OpenOptions, Severity};
use papilio_device::{Device, PhysicalAddress};
use std::sync::Arc;

#[test]
fn an_absent_copy_is_a_warning_that_a_writer_mends() {
    let device = formatted(256 << 20);
    assert_eq!(check(&device).verdict(), None);
    device.write_at(&[0; SUPERBLOCK_SIZE], superblock_offset(1)).unwrap();
    let report = check(&device);
    assert_eq!((report.verdict(), report.counts.len()), (Some(Severity::Warning), 1));
    assert!(report.is_clean() && report.counts.contains_key(&FindingKind::SuperblockCopy));
    let fs = open(&device);
    fs.create_file("/new").unwrap();
    fs.close().unwrap();
    assert!(check(&device).counts.is_empty(), "{:#?}", check(&device).findings);
}

#[test]
fn a_writer_with_a_chosen_copy_mends_the_others_even_if_it_changes_nothing() {
    let device = formatted(256 << 20);
    device.write_at(&[7; 64], superblock_offset(0)).unwrap();
    let fs = open_with(&device, &writable().superblock_mirror(1));
    fs.close().unwrap();
    assert!(check(&device).counts.is_empty(), "{:#?}", check(&device).findings);
}

#[test]
fn a_bad_first_copy_is_an_error() {
    let device = formatted(256 << 20);
    device.write_at(&[7; 64], superblock_offset(0)).unwrap();
    let devices = vec![device.clone() as Arc<dyn Device>];
    let open = OpenOptions::new().superblock_mirror(1);
    let report = papilio::check_devices(devices.clone(), &open, &papilio::CheckOptions::new()).unwrap();
    assert_eq!(report.counts.get(&FindingKind::SuperblockFirst), Some(&1), "{:#?}", report.findings);
    // The repair writes it anew, and the undo file takes that back.
    let before = crashed(&device);
    let folder = tempfile::tempdir().unwrap();
    let undo = folder.path().join("undo");
    let plan = papilio::plan_repair(&devices, &open).unwrap();
    papilio::repair(&devices, &open, &plan, &undo).unwrap();
    assert!(check(&device).counts.is_empty());
    papilio::undo_repair(&devices, &undo).unwrap();
    let head = |device: &dyn Device| {
        let mut bytes = [0; 64];
        device.read_at(&mut bytes, PhysicalAddress(superblock_offset(0).0)).unwrap();
        bytes
    };
    assert_eq!(head(&*device), head(&*before));
    // An undo file does not fit another file system, nor a later state of its own.
    let other = vec![formatted(256 << 20) as Arc<dyn Device>];
    assert!(papilio::undo_repair(&other, &undo).is_err());
    papilio::repair(&devices, &open, &plan, &folder.path().join("again")).unwrap();
    let fs = crate::in_memory::open(&device);
    fs.create_file("/later").unwrap();
    fs.close().unwrap();
    let error = papilio::undo_repair(&devices, &undo).unwrap_err().to_string();
    assert!(error.contains("changed since"), "{error}");
}
