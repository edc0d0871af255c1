//! Sectors that a device cannot read: the check of data names each of them, and verifies all around
//! them.

use super::image::Image;
use crate::in_memory::{crashed, formatted, formatted_with, open};
use papilio::device::Device;
use papilio::format::items::file_extent::{FileExtentContent, FileExtentItem};
use papilio::format::{ItemType, LogicalAddress, objectid};
use papilio::{CheckOptions, CheckReport, FileSystem, FindingKind, MkfsOptions, OpenOptions, RaidProfile};
use papilio_device::{FaultDevice, MemoryDevice, PhysicalAddress};
use std::collections::BTreeMap;
use std::sync::Arc;

const BYTES: usize = 3 << 20;
const SECTOR: u64 = 4096;

fn content() -> Vec<u8> {
    (0..BYTES as u64).flat_map(|at| (at * 0x9e37_79b9).to_le_bytes()).take(BYTES).collect()
}

fn checked(devices: Vec<Arc<dyn Device>>) -> CheckReport {
    let options = CheckOptions::new().data_csum(true);
    papilio::check_devices(devices, &OpenOptions::new(), &options).unwrap()
}

/// The findings about data, by address.
fn found(report: &CheckReport) -> Vec<(FindingKind, LogicalAddress)> {
    report.findings.iter().map(|finding| (finding.kind, finding.place.address.unwrap())).collect()
}

/// The address of the only file's data.
fn data_of(image: &Image) -> LogicalAddress {
    let (_, item) = image.find(objectid::FS_TREE, |key, _| key.item_type == ItemType::EXTENT_DATA);
    match FileExtentItem::parse(&item).unwrap().content {
        FileExtentContent::Regular(part) => part.disk_address,
        _ => panic!("the data is inline"),
    }
}

fn sector(start: LogicalAddress, number: u64) -> LogicalAddress {
    LogicalAddress(start.0 + number * SECTOR)
}

/// Fails reads of sectors of copy `copy`.
fn fail(device: &FaultDevice, image: &Image, start: LogicalAddress, copy: usize, sectors: &[u64]) {
    for number in sectors {
        let place = image.copies(sector(start, *number))[copy];
        device.fail_reads(place..PhysicalAddress(place.0 + SECTOR));
    }
}

fn with_file(device: Arc<MemoryDevice>) -> (Image, Arc<FaultDevice>) {
    let fs = open(&device);
    fs.write("/file", content()).unwrap();
    fs.close().unwrap();
    let image = Image::new(device.snapshot());
    let faulty = Arc::new(FaultDevice::new(image.device.clone()));
    (image, faulty)
}

#[test]
fn each_unreadable_sector_is_named_and_the_rest_is_verified() {
    let (image, faulty) = with_file(formatted(256 << 20));
    let start = data_of(&image);
    let whole = checked(vec![faulty.clone()]).statistics.data_bytes_read;
    assert!(whole >= BYTES as u64);
    // The first one, neighbours, the last of a read of 1 MiB, and wrong bytes between them.
    let (unread, wrong) = ([0, 100, 101, 255, 600], [102, 254, 256]);
    fail(&faulty, &image, start, 0, &unread);
    wrong.iter().for_each(|number| image.flip(sector(start, *number), 1));
    let report = checked(vec![faulty.clone()]);
    let mut expected: BTreeMap<_, _> =
        unread.iter().map(|number| (sector(start, *number), FindingKind::DataRead)).collect();
    expected.extend(wrong.iter().map(|number| (sector(start, *number), FindingKind::DataChecksum)));
    let expected: Vec<_> = expected.into_iter().map(|(address, kind)| (kind, address)).collect();
    assert_eq!(found(&report), expected, "{:#?}", report.findings);
    assert_eq!(report.statistics.data_bytes_read, whole - unread.len() as u64 * SECTOR);
    assert!(report.findings[0].to_string().contains("read of 4096 bytes"), "{}", report.findings[0]);
}

#[test]
fn a_sector_that_one_copy_has_is_a_bad_copy() {
    let dup = MkfsOptions::new().data_profile(RaidProfile::Dup);
    let (image, faulty) = with_file(formatted_with(256 << 20, &dup));
    let start = data_of(&image);
    fail(&faulty, &image, start, 1, &[7, 300]);
    fail(&faulty, &image, start, 0, &[300, 301]);
    let report = checked(vec![faulty]);
    let expected = [
        (FindingKind::DataCopy, sector(start, 7)),
        (FindingKind::DataRead, sector(start, 300)),
        (FindingKind::DataCopy, sector(start, 301)),
    ];
    assert_eq!(found(&report), expected, "{:#?}", report.findings);
}

/// Of RAID0 with a missing device, the sectors of the other are verified.
#[test]
fn sectors_beside_those_of_a_missing_device_are_verified() {
    let devices: Vec<Arc<MemoryDevice>> = (0..2).map(|_| Arc::new(MemoryDevice::new(256 << 20))).collect();
    let all: Vec<Arc<dyn Device>> = devices.iter().map(|device| device.clone() as Arc<dyn Device>).collect();
    let options = MkfsOptions::new().data_profile(RaidProfile::Raid0).metadata_profile(RaidProfile::Raid1);
    papilio::mkfs_devices(&all, &options).unwrap();
    let fs = FileSystem::from_devices(all, &OpenOptions::new().write(true)).unwrap();
    fs.write("/file", content()).unwrap();
    fs.close().unwrap();
    let first = crashed(&devices[0]);
    let options = CheckOptions::new().data_csum(true);
    let alone: Vec<Arc<dyn Device>> = vec![first.clone()];
    let degraded = OpenOptions::new().degraded(true);
    let report = papilio::check_devices(alone.clone(), &degraded, &options).unwrap();
    let read = report.statistics.data_bytes_read;
    assert!(read >= BYTES as u64 / 2, "{read} bytes verified");
    // A sector of the device that is there.
    let content = content();
    let mut bytes = vec![0; first.size() as usize];
    first.read_at(&mut bytes, PhysicalAddress(0)).unwrap();
    let mut sectors = content.chunks(SECTOR as usize);
    let place = sectors.find_map(|one| bytes.chunks(SECTOR as usize).position(|other| other == one)).unwrap();
    first.write_at(&[1; 16], PhysicalAddress(place as u64 * SECTOR)).unwrap();
    let report = papilio::check_devices(alone, &degraded, &options).unwrap();
    let wrong = report.findings.iter().filter(|finding| finding.kind == FindingKind::DataChecksum).count();
    assert_eq!(wrong, 1, "{:#?}", report.findings);
}
