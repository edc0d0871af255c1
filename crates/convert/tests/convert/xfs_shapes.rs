//! XFS of every shape: after the conversion, the kernel shows the same, and what files share stays
//! shared.
//!
//! The kernel fills file systems of version 5. Those of version 4, which it may not know, are
//! filled by `mkfs.xfs` from a prototype, and the host's files are the measure.

use super::fill::{bytes, everything, flags, nearly_full};
use super::world::{World, XFS_NEEDS, run};
use super::xfs_fill::{large_attributes, many_names, reflinks, scattered_inodes, with_holes};
use papilio_convert::{ConvertOptions, TargetLabel, TargetUuid};
use papilio_oracle::require;
use std::fs;
use std::path::Path;

/// Converts a shape, judges the result, brings the source back, and judges that.
fn whole_way(arguments: &str, fill: impl FnOnce(&Path)) -> Option<World> {
    let _met = require(XFS_NEEDS)?;
    let world = World::xfs(arguments, 300, fill);
    world.convert_with(&wide()).unwrap();
    judge_both_ways(&world);
    Some(world)
}

/// Judges a conversion, goes back, and judges that.
fn judge_both_ways(world: &World) {
    world.check_btrfs();
    world.compare_btrfs(&[]);
    let back = world.roll_back().unwrap();
    assert_eq!((back.variant, back.saved), ("XFS", "xfs_saved"));
    world.check_back();
}

/// Tree blocks that hold the largest attributes.
fn wide() -> ConvertOptions {
    ConvertOptions::new().node_size(65536)
}

/// Files of every kind, with flags.
fn all(root: &Path) {
    everything(root);
    flags(root);
}

#[test]
fn xfs_as_it_is_made_today() {
    whole_way("", |root| {
        all(root);
        reflinks(root);
        large_attributes(root);
    });
}

#[test]
fn xfs_without_newer_features() {
    whole_way(
        "-m reflink=0,rmapbt=0,finobt=0,bigtime=0,inobtcount=0 -i sparse=0,nrext64=0 -d agcount=2",
        |root| {
            everything(root);
            many_names(root, 3000);
        },
    );
}

#[test]
fn xfs_with_inodes_of_1024_bytes_in_one_group() {
    whole_way("-i size=1024 -d agcount=1 -l size=16m", |root| {
        everything(root);
        many_names(root, 3000);
    });
}

#[test]
fn xfs_with_sixteen_groups_and_reverse_maps() {
    whole_way("-m rmapbt=1 -d agcount=16 -l size=14m", |root| {
        all(root);
        reflinks(root);
        many_names(root, 2000);
    });
}

#[test]
fn xfs_with_sectors_of_4096_bytes_and_long_counts_of_extents() {
    whole_way("-s size=4096 -i nrext64=1 -l size=20m,sunit=64", everything);
}

#[test]
fn xfs_with_large_inodes_and_directory_blocks() {
    whole_way("-i size=2048 -n size=16384 -l size=20m", |root| {
        large_attributes(root);
        many_names(root, 5000);
    });
}

#[test]
fn xfs_with_directories_of_every_form() {
    whole_way("-l size=20m -m rmapbt=1", |root| {
        for count in [1, 5, 20, 60, 200, 900, 4000] {
            let folder = root.join(format!("of {count}"));
            fs::create_dir(&folder).unwrap();
            many_names(&folder, count);
        }
    });
}

#[test]
fn xfs_with_sparse_inodes() {
    let Some(world) =
        whole_way("-i sparse=1 -l size=20m -m reflink=0,rmapbt=0,finobt=0,inobtcount=0", scattered_inodes)
    else {
        return;
    };
    // Records are [first inode, holes, count, free, bits of the free ones].
    let has_holes = (0..4).any(|group| {
        let header = format!("agi {group}");
        let path = world.original.to_str().unwrap();
        let text = run("xfs_db", &["-r", "-c", &header, "-c", "addr root", "-c", "p recs", path]);
        let holes = text.split('[').filter_map(|record| record.split(',').nth(1));
        holes
            .filter_map(|mask| u64::from_str_radix(mask.trim().trim_start_matches("0x"), 16).ok())
            .any(|mask| mask != 0)
    });
    assert!(has_holes, "no chunk of inodes has holes");
}

#[test]
fn xfs_with_fragmented_files_that_share() {
    whole_way("-l size=20m -m rmapbt=1 -d agcount=3", |root| {
        with_holes(root, 4000);
        reflinks(root);
        run(
            "cp",
            &["--reflink=always", root.join("holes").to_str().unwrap(), root.join("copy").to_str().unwrap()],
        );
    });
}

#[test]
fn xfs_that_is_almost_full() {
    if require(XFS_NEEDS).is_none() {
        return;
    }
    let world = World::xfs("-l size=10m", 300, |root| {
        everything(root);
        nearly_full(root, 16 << 20, true);
    });
    let converted = world.convert();
    assert_eq!(converted.plan.metadata_copies, 1);
    judge_both_ways(&world);
}

#[test]
fn options_change_the_result() {
    if require(XFS_NEEDS).is_none() {
        return;
    }
    let world = World::xfs("-L source -l size=10m", 300, |root| {
        everything(root);
        reflinks(root);
    });
    let options = [
        ConvertOptions::new().node_size(8192).label(TargetLabel::Copied).uuid(TargetUuid::Copied),
        ConvertOptions::new()
            .data_checksums(false)
            .inline(false)
            .names_bytes(20_000)
            .features("^no-holes,^free-space-tree"),
    ];
    for (at, options) in options.iter().enumerate() {
        let converted = world.convert_with(options).unwrap();
        assert_eq!(converted.fsid == converted.plan.source_uuid, at == 0);
        assert_eq!(converted.label, [&b"source"[..], b""][at]);
        judge_both_ways(&world);
    }
}

#[test]
fn shared_blocks_stay_shared() {
    if require(XFS_NEEDS).is_none() {
        return;
    }
    let world = World::xfs("-l size=10m", 300, |root| {
        fs::write(root.join("one"), bytes(1, 30 << 20)).unwrap();
        fs::write(root.join("small"), b"short, and shared").unwrap();
        for at in 0..6 {
            let [from, to] = [root.join("one"), root.join(format!("copy {at}"))];
            run("cp", &["--reflink=always", from.to_str().unwrap(), to.to_str().unwrap()]);
        }
        let [from, to] = [root.join("small"), root.join("small copy")];
        run("cp", &["--reflink=always", from.to_str().unwrap(), to.to_str().unwrap()]);
        // A part of a copy that is its own.
        let file = fs::OpenOptions::new().write(true).open(root.join("copy 3")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes(2, 70_000), 5_000_000).unwrap();
    });
    world.convert();
    {
        let (mount, _loop) = world.mount_btrfs(true);
        let text = run("btrfs", &["filesystem", "du", "--raw", "-s", mount.path().to_str().unwrap()]);
        let fields = text.lines().last().unwrap().split_whitespace();
        let [total, exclusive, shared]: [u64; 3] =
            fields.take(3).map(|field| field.parse().unwrap()).collect::<Vec<_>>().try_into().unwrap();
        // Seven files and the image of everything: shared blocks count once.
        assert!(total > (7 * 30) << 20 && shared < 80 << 20, "{text}");
        assert!(exclusive < 80 << 20, "{text}");
        let places = |name: &str| {
            let path = mount.path().join(name);
            let text = run("filefrag", &["-v", "-b4096", path.to_str().unwrap()]);
            text.lines()
                .filter_map(|line| Some(line.split(':').nth(2)?.trim().to_owned()))
                .collect::<Vec<_>>()
        };
        assert_eq!(places("one"), places("copy 0"));
        assert_ne!(places("one"), places("copy 3"));
        assert_eq!(places("small"), places("small copy"));
    }
    judge_both_ways(&world);
}

/// Version 4, which this kernel may not mount: `mkfs.xfs` fills it from a prototype.
#[test]
fn xfs_of_version_4() {
    if require(XFS_NEEDS).is_none() {
        return;
    }
    super::many::four_both_ways(&[
        "-m crc=0 -n ftype=0 -i size=256",
        "-m crc=0 -n ftype=1 -i size=512,attr=2,projid32bit=0 -d agcount=5",
        "-m crc=0 -i size=2048 -n size=8192 -l lazy-count=0 -d agcount=2",
        "-m crc=0 -n version=ci,ftype=0 -d agcount=8",
    ]);
}
