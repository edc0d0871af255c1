//! Makes file systems with all kinds of options in memory, and checks them.

use super::*;
use crate::check::{self, CheckOptions};
use papilio_device::{CallKind, FaultDevice, MemoryDevice};
use papilio_engine::options::OpenOptions as MountOptions;
use papilio_engine::space::chunk_allocation::devices_min;
use papilio_engine::volume::Volume;
use papilio_format::items::inode::Timespec;
use papilio_format::superblock::{SUPERBLOCK_SIZE, superblock_offset};
use papilio_format::{Incompatible, PhysicalAddress};

const MIB: u64 = 1 << 20;

fn memory(size: u64) -> Arc<dyn Device> {
    Arc::new(MemoryDevice::new(size))
}

/// Fails with the findings unless the check of a device finds nothing.
fn assert_clean(device: Arc<dyn Device>, what: &str) {
    let volume = Arc::new(Volume::open(vec![device], &MountOptions::new()).expect(what));
    let report = check::check(&volume, 1 << 20, &CheckOptions::new().data_csum(true)).expect(what);
    assert!(report.findings.is_empty(), "{what}: {:#?}", report.findings);
    assert_eq!(report.statistics.inodes, 1, "{what}: the root directory");
}

fn make_clean(size: u64, options: &MkfsOptions, what: &str) -> Made {
    let device = memory(size);
    let made = mkfs_device(&device, options).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_clean(device, what);
    made
}

#[test]
fn all_checksums_and_node_sizes_are_clean() {
    for checksum in ChecksumType::ALL {
        for node_size in [4096, 8192, 16384, 32768, 65536] {
            let options = MkfsOptions::new().checksum(checksum).node_size(node_size).label("l");
            let made = make_clean(300 * MIB, &options, &format!("{checksum} {node_size}"));
            assert_eq!((made.checksum, made.node_size, made.total_bytes), (checksum, node_size, 300 * MIB));
        }
    }
}

#[test]
fn all_sector_sizes_are_clean() {
    for sector_size in [4096, 8192, 16384, 32768, 65536] {
        for mixed in [false, true] {
            let options = MkfsOptions::new().sector_size(sector_size);
            let options = options.feature(MkfsFeature::MixedGroups, mixed);
            let made = make_clean(300 * MIB + 4096, &options, &format!("{sector_size}, mixed: {mixed}"));
            assert_eq!(made.sector_size, sector_size);
            assert_eq!(made.node_size, if mixed { sector_size } else { sector_size.max(16384) });
            assert!(made.total_bytes.is_multiple_of(sector_size.into()));
        }
    }
}

#[test]
fn all_combinations_of_features_are_clean() {
    use MkfsFeature::{
        BlockGroupTree, FreeSpaceTree, MixedGroups, NoHoles, Quota, Raid1c34, Raid56, SimpleQuota,
    };
    // Those of profiles only set a bit.
    let features: Vec<_> =
        MkfsFeature::ALL.into_iter().filter(|feature| !matches!(feature, Raid56 | Raid1c34)).collect();
    for bits in 0..1u32 << features.len() {
        let on: Vec<_> =
            (0..features.len()).filter(|at| bits >> at & 1 == 1).map(|at| features[at]).collect();
        let is_on = |feature| on.contains(&feature);
        for node_size in [4096, 16384] {
            let mut options = MkfsOptions::new().node_size(node_size).feature(Raid56, bits % 3 == 0);
            for feature in &features {
                options = options.feature(*feature, is_on(*feature));
            }
            let Ok(choice) = options.resolve(1) else {
                let mixed = is_on(MixedGroups) && node_size > 4096;
                let tree = is_on(BlockGroupTree) && !(is_on(NoHoles) && is_on(FreeSpaceTree));
                let quotas = is_on(Quota) && is_on(SimpleQuota);
                assert!(mixed || tree || quotas, "{on:?} {node_size}");
                continue;
            };
            let made = make_clean(200 * MIB, &options, &format!("{:?} {node_size}", choice.features));
            assert_eq!(made.features, choice.features);
        }
    }
}

#[test]
fn all_profiles_are_clean_at_the_minimum_size_and_on_large_devices() {
    use RaidProfile::{Dup, Single};
    for mixed in [false, true] {
        for (data, metadata) in [(Single, Dup), (Single, Single), (Dup, Dup), (Dup, Single)] {
            if mixed && data != metadata {
                continue;
            }
            let options = MkfsOptions::new()
                .data_profile(data)
                .metadata_profile(metadata)
                .feature(MkfsFeature::MixedGroups, mixed);
            let what = format!("{data} {metadata} mixed {mixed}");
            let minimum = chunks::minimum_size(&options.resolve(1).unwrap());
            make_clean(minimum, &options, &what);
            make_clean(10 << 40, &options, &what);
            let error = mkfs_device(&memory(minimum - 1), &options).unwrap_err();
            assert!(
                matches!(error, Error::TooSmall { minimum: reported, .. } if reported == minimum),
                "{what}: {error}"
            );
        }
    }
}

#[test]
fn all_profiles_on_one_to_six_devices_are_clean() {
    for profile in RaidProfile::ALL {
        for count in 1..=6 {
            for mixed in [false, true] {
                let options = MkfsOptions::new()
                    .data_profile(profile)
                    .metadata_profile(profile)
                    .feature(MkfsFeature::MixedGroups, mixed);
                let what = format!("{profile} on {count} devices, mixed {mixed}");
                let Ok(choice) = options.resolve(count) else {
                    assert!(count < devices_min(profile), "{what}");
                    continue;
                };
                let minimum = chunks::minimum_size(&choice);
                let devices: Vec<_> = (0..count as u64).map(|at| memory(minimum + at * 33 * MIB)).collect();
                let made = mkfs_devices(&devices, &options).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(made.devices.len(), count);
                assert!(made.block_groups.iter().all(|group| group.profile == profile), "{what}");
                let volume = Arc::new(Volume::open(devices, &MountOptions::new()).expect(&what));
                let report =
                    check::check(&volume, 1 << 20, &CheckOptions::new().data_csum(true)).expect(&what);
                assert!(report.findings.is_empty(), "{what}: {:#?}", report.findings);
            }
        }
    }
}

#[test]
fn a_set_whose_making_fails_does_not_open() {
    let options = MkfsOptions::new().force(true).discard(false).metadata_profile(RaidProfile::Raid1c3);
    for failing in 0..3 {
        for kind in [CallKind::Write, CallKind::Flush] {
            for call in 0.. {
                let inner: Vec<_> = (0..3).map(|_| memory(150 * MIB)).collect();
                let mut devices = inner.clone();
                let faulty = FaultDevice::new(Arc::clone(&inner[failing]));
                faulty.fail_call(kind, call);
                devices[failing] = Arc::new(faulty);
                if mkfs_devices(&devices, &options).is_ok() {
                    assert!(call > 1, "no {kind:?} failed");
                    break;
                }
                let found = Volume::open(inner, &MountOptions::new());
                assert!(found.is_err(), "device {failing}: {kind:?} {call}");
            }
        }
    }
}

#[test]
fn sizes_are_rounded_down_to_sectors() {
    let made = make_clean(200 * MIB + 4095, &MkfsOptions::new(), "device");
    assert_eq!(made.total_bytes, 200 * MIB);
    let made = make_clean(300 * MIB, &MkfsOptions::new().size(200 * MIB + 1), "part of a device");
    assert_eq!(made.total_bytes, 200 * MIB);
    let error = mkfs_device(&memory(200 * MIB), &MkfsOptions::new().size(201 * MIB)).unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
}

#[test]
fn equal_options_make_equal_images() {
    let (fsid, time) = (Uuid::from_u128(0xfeed), Timespec { seconds: 1_700_000_000, nanoseconds: 7 });
    let bytes = |options: &MkfsOptions| {
        let device = memory(120 * MIB);
        mkfs_device(&device, options).unwrap();
        let mut bytes = vec![0; 120 << 20];
        device.read_at(&mut bytes, PhysicalAddress(0)).unwrap();
        bytes
    };
    let fixed = MkfsOptions::new().fsid(fsid).timestamp(time);
    assert!(bytes(&fixed) == bytes(&fixed));
    assert!(bytes(&fixed) != bytes(&fixed.clone().label("other")));
    assert!(bytes(&MkfsOptions::new().fsid(fsid)) != bytes(&MkfsOptions::new().fsid(fsid)));
}

#[test]
fn a_metadata_uuid_is_in_the_blocks() {
    let (fsid, metadata) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let made = make_clean(120 * MIB, &MkfsOptions::new().fsid(fsid).metadata_uuid(metadata), "metadata UUID");
    assert_eq!((made.fsid, made.metadata_uuid), (fsid, metadata));
    // The same UUID twice needs no feature.
    let device = memory(120 * MIB);
    mkfs_device(&device, &MkfsOptions::new().fsid(fsid).metadata_uuid(fsid)).unwrap();
    let volume = Volume::open(vec![device], &MountOptions::new()).unwrap();
    assert_eq!(volume.superblock().raw.metadata_uuid, Uuid::nil());
}

#[test]
fn existing_content_needs_force() {
    let device = memory(200 * MIB);
    mkfs_device(&device, &MkfsOptions::new()).unwrap();
    let error = mkfs_device(&device, &MkfsOptions::new()).unwrap_err();
    assert!(matches!(error, Error::Occupied { found: "a Btrfs file system", .. }), "{error}");
    for discard in [true, false] {
        mkfs_device(&device, &MkfsOptions::new().force(true).discard(discard)).unwrap();
        assert_clean(Arc::clone(&device), "made again");
    }
}

#[test]
fn superblocks_of_a_larger_predecessor_are_wiped() {
    let device = memory(1 << 40);
    mkfs_device(&device, &MkfsOptions::new()).unwrap();
    mkfs_device(&device, &MkfsOptions::new().force(true).discard(false).size(200 * MIB)).unwrap();
    let mut old = [0; SUPERBLOCK_SIZE];
    device.read_at(&mut old, superblock_offset(2)).unwrap();
    assert_eq!(old, [0; SUPERBLOCK_SIZE]);
    assert_clean(device, "smaller");
}

#[test]
fn a_failing_device_has_no_file_system() {
    let options = MkfsOptions::new().force(true).discard(false);
    for kind in [CallKind::Write, CallKind::Flush] {
        for call in 0.. {
            let inner = Arc::new(MemoryDevice::new(120 * MIB));
            mkfs_device(&(Arc::clone(&inner) as Arc<dyn Device>), &MkfsOptions::new()).unwrap();
            let faulty = FaultDevice::new(Arc::clone(&inner) as Arc<dyn Device>);
            faulty.fail_call(kind, call);
            let device: Arc<dyn Device> = Arc::new(faulty);
            if mkfs_device(&device, &options).is_ok() {
                assert!(call > 1, "no {kind:?} failed");
                break;
            }
            let found = Volume::open(vec![inner as Arc<dyn Device>], &MountOptions::new());
            // The first write wipes the old superblock: only its failure leaves the old file
            // system.
            let untouched = kind == CallKind::Write && call == 0;
            assert_eq!(found.is_ok(), untouched, "{kind:?} {call}");
        }
    }
}

#[test]
fn only_features_that_readers_support_are_set() {
    let superblock = |options: &MkfsOptions| {
        let layout = MkfsLayout::new(&[200 * MIB], &options.resolve(1).unwrap()).unwrap();
        layout.superblocks[0].clone()
    };
    let default = superblock(&MkfsOptions::new());
    assert_eq!((default.raw.cache_generation, default.raw.uuid_tree_generation), (0, 1));
    let without = superblock(&MkfsOptions::new().feature_list("^fst").unwrap());
    assert_eq!(without.raw.cache_generation, u64::MAX);
    assert_eq!(
        Incompatible::IncompatBits(default.raw.incompat_flags.unsupported()),
        Incompatible::IncompatBits(0)
    );
}

#[test]
fn images_are_created_and_failures_undone() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let missing = mkfs(&image, &MkfsOptions::new()).unwrap_err().to_string();
    assert!(missing.contains("give a size"), "{missing}");
    assert!(matches!(mkfs(&image, &MkfsOptions::new().size(MIB)), Err(Error::TooSmall { .. })));
    assert!(!image.exists());

    let made = mkfs(&image, &MkfsOptions::new().size(200 * MIB)).unwrap();
    assert_eq!(std::fs::metadata(&image).unwrap().len(), made.total_bytes);
    // An occupied image is extended only with force.
    let longer = MkfsOptions::new().size(300 * MIB);
    assert!(matches!(mkfs(&image, &longer), Err(Error::Occupied { .. })));
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 200 * MIB);
    mkfs(&image, &longer.force(true)).unwrap();
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 300 * MIB);

    let empty = folder.path().join("empty");
    std::fs::write(&empty, b"").unwrap();
    assert!(mkfs(&empty, &MkfsOptions::new()).is_err());
    mkfs(&empty, &MkfsOptions::new().size(200 * MIB)).unwrap();

    // An image that is open elsewhere, here in this process, is locked.
    let held = FileDevice::open(&empty, Access::ReadWrite).unwrap();
    assert!(matches!(mkfs(&empty, &MkfsOptions::new().force(true).size(300 * MIB)), Err(Error::Open(_))));
    assert_eq!(held.size(), 200 * MIB);
}

#[test]
fn a_file_system_for_an_older_kernel_has_no_newer_features() {
    let features = |version: &str, options: MkfsOptions| {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(256 * MIB));
        let made = mkfs_device(&device, &options.kernel(version.parse().unwrap()));
        made.map(|made| made.features).map_err(|error| error.to_string())
    };
    use MkfsFeature::{BlockGroupTree, ExtendedIref, FreeSpaceTree, NoHoles, SkinnyMetadata};
    let basic = [ExtendedIref, SkinnyMetadata];
    assert_eq!(features("4.19", MkfsOptions::new()).unwrap(), basic);
    let of_5_15 = [ExtendedIref, SkinnyMetadata, NoHoles, FreeSpaceTree];
    for version in ["5.15", "5.15.0-91-generic", "6.1", "6.18"] {
        assert_eq!(features(version, MkfsOptions::new()).unwrap(), of_5_15, "{version}");
    }
    assert!(features("6.19", MkfsOptions::new()).unwrap().contains(&BlockGroupTree));
    // A feature that is asked for is made where the kernel can mount it, and refused elsewhere.
    let tree = || MkfsOptions::new().feature(BlockGroupTree, true);
    assert!(features("6.1", tree()).unwrap().contains(&BlockGroupTree));
    let refused = features("5.15", tree()).unwrap_err();
    assert_eq!(refused, "block-group-tree: Linux 6.1 and newer have it, not 5.15");
    let checksum = MkfsOptions::new().checksum(ChecksumType::Sha256);
    assert!(features("5.4", checksum.clone()).is_err() && features("5.5", checksum).is_ok());
    let uuid = MkfsOptions::new().metadata_uuid(Uuid::from_u128(7));
    assert!(features("4.19", uuid).is_err());
}
