//! Cached superblocks that name successive logs, compared with newly encoded ones.

use super::super::testing::TestVolume;
use crate::errors::Error;
use papilio_device::{Device, MemoryDevice};
use papilio_format::items::chunk::RaidProfile;
use papilio_format::superblock::{RawSuperblock, SUPERBLOCK_SIZE, superblock_offset};
use papilio_format::{Generation, LogicalAddress, Superblock};

#[test]
fn cached_superblock_equals_a_newly_encoded_one() {
    let test = TestVolume::blank(RaidProfile::Raid1, 2);
    let volume = test.open(0, false).unwrap();
    let place = superblock_offset(0);
    let on_disk = |device: &MemoryDevice| {
        let mut bytes = [0; SUPERBLOCK_SIZE];
        device.read_at(&mut bytes, place).unwrap();
        bytes
    };
    let anew = |committed: &RawSuperblock, index: usize, root: u64, level: u8| {
        let dev_item = test.superblocks[index].dev_item;
        let (log_root, log_root_level) = (LogicalAddress(root), level);
        let raw = RawSuperblock { dev_item, log_root, log_root_level, ..*committed };
        Superblock::parse_unverified(&raw.to_bytes()).unwrap().to_bytes(place)
    };
    let mut committed = test.superblocks[0];
    let mut kept = None;
    for (root, level) in [(1 << 20, 0), (5 << 20, 2), (4096, 7), (1 << 20, 0)] {
        volume.write_log_superblock(&committed, (LogicalAddress(root), level), &mut kept).unwrap();
        for (index, device) in test.devices.iter().enumerate() {
            assert!(on_disk(device) == anew(&committed, index, root, level), "log at {root}, device {index}");
        }
    }
    // Readers would reject these, so the superblock on the device stays.
    for (root, level) in [(4097, 0), (4096, 8)] {
        let refused = volume.write_log_superblock(&committed, (LogicalAddress(root), level), &mut kept);
        assert!(matches!(refused, Err(Error::Superblock { .. })), "log at {root}, level {level}");
        assert!(on_disk(&test.devices[1]) == anew(&committed, 1, 1 << 20, 0));
    }
    // Another commit, or other devices, make it stale.
    committed.generation = Generation(10);
    volume.write_log_superblock(&committed, (LogicalAddress(8192), 1), &mut None).unwrap();
    assert!(on_disk(&test.devices[0]) == anew(&committed, 0, 8192, 1));
    let mut item = test.superblocks[1].dev_item;
    item.bytes_used += 1 << 20;
    volume.install_devices([test.superblocks[0].dev_item, item]).unwrap();
    volume.write_log_superblock(&committed, (LogicalAddress(8192), 1), &mut kept).unwrap();
    let changed = RawSuperblock { dev_item: item, ..committed };
    let changed = RawSuperblock { log_root: LogicalAddress(8192), log_root_level: 1, ..changed };
    let changed = Superblock::parse_unverified(&changed.to_bytes()).unwrap().to_bytes(place);
    assert!(on_disk(&test.devices[1]) == changed);
}
