//! Changes of the checksum algorithm.

use super::world::{SIZE, assert_kernel_takes, cut, filled, judge, kernel_takes_changes, superblock, tune};
use crate::in_memory::{assert_clean, formatted_with, open};
use papilio::format::features::SuperblockFlags;
use papilio::format::superblock::RawSuperblock;
use papilio::{ChecksumType, MkfsOptions, RaidProfile, Tune};
use papilio_device::{Device, MemoryDevice};
use papilio_format::{PhysicalAddress, objectid};
use papilio_oracle::FileSystemSpec;
use std::sync::Arc;

#[test]
fn each_algorithm_follows_each_other() {
    use ChecksumType::{Blake2b, Crc32c, Sha256, XxHash64};
    let devices = filled(2, RaidProfile::Raid1);
    for algorithm in [Sha256, Crc32c, XxHash64, Blake2b, XxHash64, Sha256, Blake2b, Crc32c] {
        let tuned = tune(&devices, Tune::Checksum(algorithm)).unwrap();
        assert!(tuned.blocks > 10 && !tuned.resumed, "{tuned:?}");
        assert_eq!(superblock(&devices[1]).checksum_type(), algorithm);
        judge(&devices, algorithm.name());
        assert_kernel_takes(&devices, algorithm.name());
        let error = tune(&devices, Tune::Checksum(algorithm)).unwrap_err().to_string();
        assert!(error.contains("already has"), "{error}");
    }
}

#[test]
fn all_levels_of_the_old_tree_are_freed() {
    // A leaf has 125 checksums, so that the tree of 100 MiB has three levels.
    let options = MkfsOptions::new().node_size(4096).checksum(ChecksumType::Sha256);
    let device = formatted_with(SIZE, &options);
    let fs = open(&device);
    fs.write("/file", vec![7; 100 << 20]).unwrap();
    fs.sync().unwrap();
    let roots = fs.tree_roots().unwrap();
    let tree = roots.iter().find(|root| root.id == objectid::CSUM_TREE).unwrap();
    assert_eq!(tree.level, 2);
    fs.close().unwrap();
    tune(std::slice::from_ref(&device), Tune::Checksum(ChecksumType::XxHash64)).unwrap();
    assert_clean(&device);
}

#[test]
fn checksums_survive_power_cuts() {
    for (number, profile, algorithm) in [
        (1, RaidProfile::Dup, ChecksumType::Sha256),
        (2, RaidProfile::Raid1, ChecksumType::XxHash64),
        (3, RaidProfile::Raid0, ChecksumType::Blake2b),
    ] {
        let change = Tune::Checksum(algorithm);
        let done = |raw: &RawSuperblock| raw.csum_type == algorithm as u16;
        assert!(cut(&filled(number, profile), change, change, done) > 0, "no state was between");
    }
}

#[test]
fn bad_data_stops_the_change_before_it_begins() {
    let devices = filled(1, RaidProfile::Dup);
    // A sector of a file's bytes, which all are the same.
    let mut sector = [0; 4096];
    let place = (0..devices[0].size()).step_by(sector.len()).map(PhysicalAddress).find(|place| {
        devices[0].read_at(&mut sector, *place).unwrap();
        sector.iter().all(|byte| *byte == 200)
    });
    devices[0].write_at(b"damage", place.expect("a file has such a sector")).unwrap();
    let before: Arc<MemoryDevice> = Arc::new(devices[0].snapshot());
    let error = tune(&devices, Tune::Checksum(ChecksumType::Sha256)).unwrap_err().to_string();
    assert!(error.contains("none of its copies"), "{error}");
    assert_eq!(superblock(&devices[0]), superblock(&before));
    assert!(!superblock(&devices[0]).raw.flags.intersects(SuperblockFlags::CHANGING_META_CSUM));
}

#[test]
fn the_kernel_reads_what_was_summed_anew() {
    let changes = [ChecksumType::Blake2b, ChecksumType::XxHash64].map(Tune::Checksum);
    kernel_takes_changes(FileSystemSpec::default(), &changes);
}
