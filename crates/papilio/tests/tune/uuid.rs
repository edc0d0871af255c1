//! Changes of UUIDs and flags.

use crate::world::{cut, filled, judge, superblock, tune};
use papilio::format::features::{IncompatFeatures, SuperblockFlags};
use papilio::{RaidProfile, Tune, Uuid};

#[test]
fn uuid_survives_power_cuts() {
    let fsid = Uuid::from_u128(0x1234_5678);
    for (number, profile) in
        [(1, RaidProfile::Single), (1, RaidProfile::Dup), (2, RaidProfile::Raid1), (3, RaidProfile::Raid0)]
    {
        // An interrupted change knows its UUID.
        let devices = filled(number, profile);
        let (change, finish) = (Tune::Uuid(Some(fsid)), Tune::Uuid(None));
        assert!(cut(&devices, change, finish, |raw| raw.fsid == fsid) > 0, "no state was between");
    }
}

#[test]
fn metadata_uuid_survives_power_cuts() {
    let fsid = Uuid::from_u128(0x9876);
    for number in [1, 3] {
        let devices = filled(number, RaidProfile::Single);
        let change = Tune::MetadataUuid(Some(fsid));
        assert!(cut(&devices, change, change, |raw| raw.fsid == fsid) > 0);
    }
}

#[test]
fn metadata_uuid_comes_and_goes() {
    let devices = filled(2, RaidProfile::Raid1);
    let first = superblock(&devices[0]).raw.fsid;
    let other = tune(&devices, Tune::MetadataUuid(None)).unwrap().fsid;
    let raw = superblock(&devices[1]).raw;
    assert_eq!((raw.fsid, raw.metadata_uuid), (other, first));
    assert!(raw.incompat_flags.contains(IncompatFeatures::METADATA_UUID));
    judge(&devices, "metadata UUID");
    let error = tune(&devices, Tune::Uuid(None)).unwrap_err().to_string();
    assert!(error.contains(&first.to_string()), "{error}");
    assert!(tune(&devices, Tune::MetadataUuid(Some(other))).is_err());
    tune(&devices, Tune::MetadataUuid(Some(first))).unwrap();
    let raw = superblock(&devices[1]).raw;
    assert_eq!((raw.fsid, raw.metadata_uuid), (first, Uuid::nil()));
    assert!(!raw.incompat_flags.contains(IncompatFeatures::METADATA_UUID));
    judge(&devices, "without metadata UUID");
}

#[test]
fn seeds_keep_their_uuid() {
    let devices = filled(1, RaidProfile::Dup);
    tune(&devices, Tune::Seed(true)).unwrap();
    assert!(superblock(&devices[0]).raw.flags.contains(SuperblockFlags::SEEDING));
    assert!(tune(&devices, Tune::Seed(true)).is_err());
    for change in [Tune::Uuid(None), Tune::MetadataUuid(None), Tune::NoHoles] {
        let error = tune(&devices, change).unwrap_err().to_string();
        assert!(error.contains("seed"), "{error}");
    }
    tune(&devices, Tune::Seed(false)).unwrap();
    judge(&devices, "no seed any more");
}

#[test]
fn all_devices_are_needed() {
    let devices = filled(2, RaidProfile::Raid1);
    let before = superblock(&devices[0]);
    let error = tune(&devices[..1], Tune::Uuid(None)).unwrap_err().to_string();
    assert!(error.contains("2 devices, and 1 were given"), "{error}");
    let stranger = filled(1, RaidProfile::Dup);
    let mixed = [devices[0].clone(), stranger[0].clone()];
    assert!(tune(&mixed, Tune::MetadataUuid(None)).is_err());
    assert!(tune(&[devices[0].clone(), devices[0].clone()], Tune::Uuid(None)).is_err());
    assert!(tune(&[], Tune::NoHoles).is_err());
    assert_eq!(superblock(&devices[0]), before);
}
