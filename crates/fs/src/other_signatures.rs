//! Tests: devices that have the signature of something else beside that of Btrfs.

use crate::{FileSystem, MkfsOptions, OpenOptions, mkfs_device};
use papilio_device::MemoryDevice;
use papilio_device::{Device, signatures};
use papilio_engine::errors::{Error, Result};
use papilio_engine::mount::check_signatures;
use papilio_format::PhysicalAddress;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// DRBD's superblock in the last 4 KiB of a device of this size.
fn put_drbd(device: &MemoryDevice, size: u64) {
    let mut bytes = [0; 4096];
    bytes[..8].copy_from_slice(&1000_u64.to_be_bytes());
    bytes[60..64].copy_from_slice(&0x8374_026b_u32.to_be_bytes());
    device.write_at(&bytes, PhysicalAddress(size - 4096)).unwrap();
}

fn format(device: &Arc<MemoryDevice>, options: &MkfsOptions) {
    mkfs_device(&(Arc::clone(device) as Arc<dyn Device>), options).unwrap();
}

fn made(file_system: u64, device: u64) -> Arc<MemoryDevice> {
    let made = Arc::new(MemoryDevice::new(device));
    format(&made, &MkfsOptions::new().size(file_system));
    made
}

fn open(device: &Arc<MemoryDevice>, ignore: bool) -> Result<()> {
    check_signatures(&**device, ignore)?;
    let options = OpenOptions::new().write(true).ignore_signatures(ignore);
    FileSystem::from_devices(vec![Arc::clone(device) as Arc<dyn Device>], &options)?.close()
}

#[test]
fn signatures_after_the_file_system_count() {
    let device = made(128 * MIB, 129 * MIB);
    open(&device, false).unwrap();
    put_drbd(&device, 129 * MIB);
    let refused = open(&device, false).unwrap_err();
    assert!(matches!(refused, Error::OtherSignature { found: "a DRBD device", .. }), "{refused}");
    assert_eq!(refused.errno(), 16);
    open(&device, true).unwrap();
    // Creating a file system removes it.
    format(&device, &MkfsOptions::new().size(128 * MIB).force(true));
    open(&device, false).unwrap();
}

#[test]
fn signatures_inside_the_file_system_do_not_count() {
    let device = made(128 * MIB, 128 * MIB);
    put_drbd(&device, 128 * MIB);
    open(&device, false).unwrap();
    assert_eq!(signatures(&*device).unwrap().len(), 2);
}

#[test]
fn signatures_in_the_first_megabyte_count_if_they_are_good() {
    let device = made(128 * MIB, 128 * MIB);
    device.write_at(b"LUKS\xba\xbe\0\x07", PhysicalAddress(0)).unwrap();
    open(&device, false).unwrap();
    device.write_at(b"LUKS\xba\xbe\0\x02", PhysicalAddress(0)).unwrap();
    let refused = open(&device, false).unwrap_err().to_string();
    assert!(
        refused.contains("an encrypted volume (LUKS) at 0") && refused.contains("cryptsetup"),
        "{refused}"
    );
}
