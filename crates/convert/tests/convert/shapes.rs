//! File systems of every shape: after the conversion, the kernel shows the same.

use super::fill::{everything, flags, nearly_full};
use super::world::{NEEDS, World, mend, run};
use papilio_convert::{ConvertOptions, TargetLabel, TargetUuid};
use papilio_format::ChecksumType;
use papilio_oracle::require;
use std::path::Path;

/// Converts a shape, judges the result, brings the source back, and judges that.
fn whole_way(arguments: &str, left_out: &[&str], fill: impl FnOnce(&Path)) -> Option<World> {
    let _met = require(NEEDS)?;
    let world = World::new(arguments, 300, fill);
    world.convert();
    world.check_btrfs();
    world.compare_btrfs(left_out);
    world.roll_back().unwrap();
    world.check_back();
    Some(world)
}

/// Facts that inodes of 128 bytes do not have.
const SHORT: &[&str] = &["btime"];

#[test]
fn ext2_with_block_maps() {
    whole_way("-t ext2 -b 4096 -I 256", &[], everything);
}

#[test]
fn ext3_with_a_journal() {
    whole_way("-t ext3 -b 4096 -I 256", &[], everything);
}

#[test]
fn ext4_as_it_is_made_today() {
    whole_way("-t ext4 -b 4096", &[], |root| {
        everything(root);
        flags(root);
    });
}

#[test]
fn ext4_without_extents_journal_and_kinds_in_directories() {
    whole_way("-t ext4 -b 4096 -O ^extent,^64bit,^has_journal,^filetype", &[], everything);
}

#[test]
fn ext4_as_it_was_made_once() {
    // Checksums of groups only, no 64 bits, no flexible groups.
    whole_way("-t ext4 -b 4096 -O ^64bit,^flex_bg,^metadata_csum,uninit_bg", &[], everything);
}

#[test]
fn ext4_with_clusters() {
    whole_way("-t ext4 -b 4096 -O bigalloc -C 65536", &[], everything);
}

#[test]
fn ext4_with_meta_groups_and_no_checksums() {
    whole_way("-t ext4 -b 4096 -O meta_bg,^resize_inode,^metadata_csum,^uninit_bg", &[], everything);
}

#[test]
fn ext4_with_much_data_in_inodes() {
    let Some(world) = whole_way("-t ext4 -b 4096 -O inline_data -I 1024", &[], everything) else { return };
    // The other way for the same data: sectors of its own.
    world.convert_with(&ConvertOptions::new().inline(false)).unwrap();
    world.check_btrfs();
    world.compare_btrfs(&[]);
}

#[test]
fn ext4_with_short_inodes_and_two_copies_of_the_superblock() {
    whole_way("-t ext4 -b 4096 -I 128 -O sparse_super2,^resize_inode", SHORT, everything);
}

#[test]
fn ext4_with_projects_and_quotas() {
    if require(NEEDS).is_none() {
        return;
    }
    // The features come later: kernels without quotas only read such a file system.
    let mut world = World::new("-t ext4 -b 4096", 300, everything);
    let image = world.image.to_str().unwrap().to_owned();
    run("tune2fs", &["-O", "project,quota", &image]);
    run("debugfs", &["-w", "-R", "set_inode_field /sizes/100 projid 4711", &image]);
    mend(&world.image);
    world.keep();
    let plan = world.plan().unwrap();
    assert_eq!(plan.losses.projects, 1);
    assert!(plan.losses.preallocated >= 2);
    assert!(plan.losses.lines().iter().any(|line| line.contains("project id")), "{:?}", plan.losses);
    world.convert();
    world.check_btrfs();
    world.compare_btrfs(&[]);
    world.roll_back().unwrap();
    world.check_back();
}

#[test]
fn ext4_with_rarer_features() {
    whole_way(
        "-t ext4 -b 4096 -O metadata_csum_seed,large_dir,mmp,orphan_file,fast_commit,stable_inodes,verity,\
         inline_data",
        &[],
        everything,
    );
}

#[test]
fn ext4_that_is_almost_full() {
    if require(NEEDS).is_none() {
        return;
    }
    let world = World::new("-t ext4 -b 4096 -m 0", 300, |root| {
        everything(root);
        nearly_full(root, 32 << 20, true);
    });
    let converted = world.convert();
    assert_eq!(converted.plan.metadata_copies, 1);
    world.check_btrfs();
    world.compare_btrfs(&[]);
    {
        // The kernel still finds room for metadata.
        let (mount, _loop) = world.mount_btrfs(false);
        for at in 0..100 {
            std::fs::create_dir(mount.path().join(format!("new {at}"))).unwrap();
        }
        mount.sync().unwrap();
    }
    world.roll_back().unwrap();
    world.check_back();
}

#[test]
fn blocks_that_are_larger_than_pages() {
    if require(NEEDS).is_none() {
        return;
    }
    for seed in 0..2 {
        super::many::large_blocks(&mut fastrand::Rng::with_seed(seed), &mut None);
    }
}

#[test]
fn options_change_the_result() {
    if require(NEEDS).is_none() {
        return;
    }
    let world = World::new("-t ext4 -b 4096 -L source", 300, everything);
    let options = [
        ConvertOptions::new()
            .node_size(8192)
            .checksum(ChecksumType::XxHash64)
            .label(TargetLabel::Copied)
            .uuid(TargetUuid::Copied)
            .features("block-group-tree")
            .names_bytes(20_000),
        ConvertOptions::new()
            .node_size(65536)
            .checksum(ChecksumType::Blake2b)
            .inline(false)
            .features("^no-holes,^free-space-tree"),
        ConvertOptions::new().data_checksums(false).label(TargetLabel::Given(b"new".to_vec())).xattrs(false),
    ];
    for (at, options) in options.iter().enumerate() {
        let converted = world.convert_with(options).unwrap();
        let label: &[u8] = [&b"source"[..], b"", b"new"][at];
        assert_eq!(converted.label, label);
        assert_eq!(converted.fsid == converted.plan.source_uuid, at == 0);
        world.check_btrfs();
        // Without access control lists, modes show the mask as the group's rights.
        world.compare_btrfs(if at == 2 { &["xattr"] } else { &[] });
        world.roll_back().unwrap();
        world.check_back();
    }
}
