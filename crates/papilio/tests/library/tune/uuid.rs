//! Changes of UUIDs and flags.

use super::world::{cut, filled, judge, superblock, tune};
use papilio::format::features::{IncompatFeatures, SuperblockFlags};
use papilio::format::superblock::superblock_offset;
use papilio::{RaidProfile, Tune, Uuid};
use papilio_device::Device;

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

/// A device missed the commit that changed the metadata UUID: it has the flag, the old UUID and the
/// generation before. Without a UUID, the change is only finished.
#[test]
fn a_device_that_missed_the_new_metadata_uuid_gets_it() {
    for back in [false, true] {
        let devices = filled(2, RaidProfile::Raid1);
        let own = superblock(&devices[0]).raw.fsid;
        if back {
            tune(&devices, Tune::MetadataUuid(None)).unwrap();
        }
        let mut missed = superblock(&devices[1]);
        let wanted = if back { own } else { Uuid::from_u128(0x77) };
        tune(&devices, Tune::MetadataUuid(Some(wanted))).unwrap();
        // Earlier versions of btrfstune made a commit for each step.
        let newest = superblock(&devices[0]).raw;
        missed.raw.flags |= SuperblockFlags::CHANGING_FSID_V2;
        missed.raw.generation.0 = newest.generation.0 - 1;
        let place = superblock_offset(0);
        devices[1].write_at(&missed.to_bytes(place), place).unwrap();

        let tuned = tune(&devices, Tune::MetadataUuid(None)).unwrap();
        assert!(tuned.resumed);
        assert_eq!(tuned.fsid, wanted);
        for device in &devices {
            let raw = superblock(device).raw;
            assert_eq!((raw.fsid, raw.generation), (wanted, newest.generation));
            assert!(raw.flags.unfinished().is_empty());
            assert_eq!(raw.incompat_flags.contains(IncompatFeatures::METADATA_UUID), !back);
        }
        judge(&devices, "the change was finished");
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
