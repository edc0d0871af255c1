//! Conversions of the trees that record block groups and free space.

use super::world::{assert_kernel_takes, cut, filled_with, judge, kernel_takes_changes, superblock, tune};
use papilio::format::features::{CompatRoFeatures, SuperblockFlags};
use papilio::format::superblock::superblock_offset;
use papilio::{MkfsFeature, MkfsOptions, RaidProfile, Tune};
use papilio_device::{Device, MemoryDevice};
use papilio_oracle::FileSystemSpec;
use std::sync::Arc;

const BLOCK_GROUPS: CompatRoFeatures = CompatRoFeatures::BLOCK_GROUP_TREE;
const FREE_SPACE: CompatRoFeatures = CompatRoFeatures::FREE_SPACE_TREE;

fn without_group_tree(metadata: RaidProfile) -> MkfsOptions {
    MkfsOptions::new().feature(MkfsFeature::BlockGroupTree, false).metadata_profile(metadata)
}

fn has(devices: &[Arc<MemoryDevice>], feature: CompatRoFeatures) -> bool {
    superblock(&devices[0]).raw.compat_ro_flags.contains(feature)
}

#[test]
fn trees_come_and_go() {
    let devices = filled_with(2, &without_group_tree(RaidProfile::Raid1));
    let refused = |change, why: &str| {
        let error = tune(&devices, change).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    refused(Tune::BlockGroupTree(false), "has no block-group tree");
    refused(Tune::FreeSpaceTree(true), "already has a free-space tree");
    for (change, groups, space) in [
        (Tune::BlockGroupTree(true), true, true),
        (Tune::BlockGroupTree(false), false, true),
        (Tune::FreeSpaceTree(false), false, false),
        (Tune::FreeSpaceTree(true), false, true),
        (Tune::BlockGroupTree(true), true, true),
    ] {
        tune(&devices, change).unwrap();
        assert_eq!((has(&devices, BLOCK_GROUPS), has(&devices, FREE_SPACE)), (groups, space), "{change:?}");
        // A kernel may use v1 caches, of which there are none, only without the tree.
        let caches = superblock(&devices[0]).raw.cache_generation;
        assert_eq!(caches, if space { 0 } else { u64::MAX }, "{change:?}");
        judge(&devices, &format!("{change:?}"));
        assert_kernel_takes(&devices, &format!("{change:?}"));
    }
    refused(Tune::FreeSpaceTree(false), "convert from that one first");
}

#[test]
fn a_block_group_tree_needs_its_features() {
    let without = |feature| MkfsOptions::new().feature(feature, false);
    for feature in [MkfsFeature::FreeSpaceTree, MkfsFeature::NoHoles] {
        let devices = filled_with(1, &without(feature));
        let before = superblock(&devices[0]);
        let error = tune(&devices, Tune::BlockGroupTree(true)).unwrap_err().to_string();
        assert!(error.contains("first"), "{error}");
        assert_eq!(superblock(&devices[0]), before);
    }
}

#[test]
fn conversions_are_one_transaction() {
    let plain = MkfsOptions::new().feature(MkfsFeature::FreeSpaceTree, false);
    for (devices, change, feature) in [
        (filled_with(1, &without_group_tree(RaidProfile::Dup)), Tune::BlockGroupTree(true), BLOCK_GROUPS),
        (filled_with(1, &plain), Tune::FreeSpaceTree(true), FREE_SPACE),
    ] {
        let done = |raw: &papilio::format::superblock::RawSuperblock| raw.compat_ro_flags.contains(feature);
        assert_eq!(cut(&devices, change, change, done), 0, "{change:?} leaves no state between");
    }
}

/// A file system of the kernel with v1 caches, which it mounts after each conversion.
#[test]
fn the_kernel_reads_what_was_converted() {
    let spec = FileSystemSpec {
        runtime_features: vec!["^free-space-tree".to_owned()],
        mount_options: vec!["space_cache=v1".to_owned()],
        ..FileSystemSpec::default()
    };
    let changes = [
        Tune::FreeSpaceTree(true),
        Tune::BlockGroupTree(true),
        Tune::BlockGroupTree(false),
        Tune::FreeSpaceTree(false),
    ];
    kernel_takes_changes(spec, &changes);
}

/// Sets flags and features of the superblocks.
fn edit_superblocks(
    devices: &[Arc<MemoryDevice>],
    edit: impl Fn(&mut papilio::format::superblock::RawSuperblock),
) {
    for device in devices {
        let mut found = superblock(device);
        edit(&mut found.raw);
        for copy in 0..2 {
            let place = superblock_offset(copy);
            device.write_at(&found.to_bytes(place), place).unwrap();
        }
    }
}

#[test]
fn an_interrupted_conversion_of_block_groups_is_finished() {
    const FLAG: SuperblockFlags = SuperblockFlags::CHANGING_BG_TREE;
    // Nothing was moved yet.
    let devices = filled_with(2, &without_group_tree(RaidProfile::Raid1));
    edit_superblocks(&devices, |raw| raw.flags |= FLAG);
    let refused = tune(&devices, Tune::FreeSpaceTree(false)).unwrap_err().to_string();
    assert!(refused.contains("--convert-to-block-group-tree"), "{refused}");
    assert!(tune(&devices, Tune::BlockGroupTree(true)).unwrap().resumed);
    judge(&devices, "not begun");
    assert!(has(&devices, BLOCK_GROUPS));
    assert_kernel_takes(&devices, "not begun");
    // Everything was moved, and the feature is not set.
    for on in [true, false] {
        edit_superblocks(&devices, |raw| {
            raw.flags |= FLAG;
            raw.compat_ro_flags = raw.compat_ro_flags.difference(BLOCK_GROUPS);
        });
        assert!(tune(&devices, Tune::BlockGroupTree(on)).unwrap().resumed, "{on}");
        judge(&devices, "all moved");
        assert_eq!(has(&devices, BLOCK_GROUPS), on);
        assert_kernel_takes(&devices, "all moved");
    }
}
