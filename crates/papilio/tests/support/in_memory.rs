//! File systems on memory devices: tests format, open and check them with these functions.
//!
//! Integration tests include this file with `#[path]`. Unit tests of `papilio-fs` find it as
//! `crate::in_memory`: its `lib.rs` includes it, and gives the crate the name `papilio` within
//! itself.

#![allow(dead_code, reason = "each crate that includes this file uses a part of it")]

#[path = "watched_reads.rs"]
mod watched_reads;

use papilio::format::node::NodeHeader;
use papilio::format::superblock::{SUPERBLOCK_SIZE, Superblock, superblock_offset};
use papilio::{CheckOptions, CheckReport, FileSystem, MkfsOptions, OpenOptions};
use papilio_device::{Device, MemoryDevice, PhysicalAddress};
use std::sync::Arc;
#[allow(unused_imports, reason = "each crate that includes this file uses a part of it")]
pub use watched_reads::WatchedReads;

/// Returns a new device of `size` bytes with an empty file system.
pub fn formatted(size: u64) -> Arc<MemoryDevice> {
    formatted_with(size, &MkfsOptions::new())
}

/// As [`formatted`], with options.
pub fn formatted_with(size: u64, options: &MkfsOptions) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(size));
    papilio::mkfs_device(&(device.clone() as Arc<dyn Device>), options).expect("mkfs");
    device
}

/// Options for writing, with no commits in the background: only the test commits.
pub fn writable() -> OpenOptions {
    OpenOptions::new().write(true).commit_interval(None)
}

/// Opens a device for writing, with no commits in the background.
pub fn open(device: &Arc<impl Device + 'static>) -> FileSystem {
    open_with(device, &writable())
}

/// Opens a device for reading.
pub fn open_read_only(device: &Arc<impl Device + 'static>) -> FileSystem {
    open_with(device, &OpenOptions::new())
}

/// Opens a device for reading its last commit, without a replay of its log.
pub fn open_last_commit(device: &Arc<impl Device + 'static>) -> FileSystem {
    open_with(device, &OpenOptions::new().replay_log(false))
}

/// Opens a device with the given options.
pub fn open_with(device: &Arc<impl Device + 'static>, options: &OpenOptions) -> FileSystem {
    try_open(device, options).expect("open")
}

/// As [`open_with`], for tests that expect an error.
pub fn try_open(device: &Arc<impl Device + 'static>, options: &OpenOptions) -> papilio::Result<FileSystem> {
    FileSystem::from_devices(vec![device.clone() as Arc<dyn Device>], options)
}

/// Returns a new file system of `size` bytes, open for writing, and its device.
pub fn new_file_system(size: u64) -> (Arc<MemoryDevice>, FileSystem) {
    let device = formatted(size);
    let fs = open(&device);
    (device, fs)
}

/// Returns a copy of what a crash would leave on the device now.
pub fn crashed(device: &MemoryDevice) -> Arc<MemoryDevice> {
    Arc::new(device.snapshot())
}

/// Returns the device offsets of the tree blocks that `wanted` accepts: those of each copy.
pub fn places_of_blocks(device: &MemoryDevice, wanted: impl Fn(&NodeHeader) -> bool) -> Vec<PhysicalAddress> {
    let places = (0..device.size()).step_by(4096).map(PhysicalAddress);
    let is_wanted = |place: &PhysicalAddress| {
        let mut header = [0; NodeHeader::SIZE];
        device.read_at(&mut header, *place).unwrap();
        NodeHeader::parse(&header).is_ok_and(|header| wanted(&header))
    };
    places.filter(is_wanted).collect()
}

/// Checks a device, data checksums included.
pub fn check(device: &Arc<impl Device + 'static>) -> CheckReport {
    check_all(vec![device.clone() as Arc<dyn Device>])
}

/// Checks the devices of one file system, data checksums included.
pub fn check_all(devices: Vec<Arc<dyn Device>>) -> CheckReport {
    let options = CheckOptions::new().data_csum(true);
    papilio::check_devices(devices, &OpenOptions::new(), &options).expect("check")
}

/// Fails with the findings unless the check of a device finds nothing.
pub fn assert_clean(device: &Arc<impl Device + 'static>) {
    let report = check(device);
    assert!(report.is_clean(), "{:#?}", report.findings);
}

/// Closes a file system and asserts that its device is clean.
pub fn close_clean(fs: FileSystem, device: &Arc<impl Device + 'static>) {
    fs.close().unwrap();
    assert_clean(device);
}

/// Returns the first superblock copy of a device.
pub fn superblock(device: &MemoryDevice) -> Superblock {
    let place = superblock_offset(0);
    let mut bytes = vec![0; SUPERBLOCK_SIZE];
    device.read_at(&mut bytes, place).unwrap();
    Superblock::parse(&bytes, place).unwrap()
}

/// Whether the superblock of a device points to a log.
pub fn has_log(device: &MemoryDevice) -> bool {
    superblock(device).log_root().is_some()
}
