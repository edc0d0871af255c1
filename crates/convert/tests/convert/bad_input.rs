//! Sources that cannot be converted: a clear line, and nothing changed.

use super::fill::{everything, nearly_full};
use super::world::{Kind, NEEDS, SourceMount, World, XFS_NEEDS, run};
use papilio_convert::{ConvertOptions, convert};
use papilio_device::{Access, Device, FileDevice, MemoryDevice};
use papilio_oracle::require;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Converts the image, which must be refused with these words, and leave every byte.
fn refused(world: &World, words: &str) {
    refused_with(world, &ConvertOptions::new(), words);
}

fn refused_with(world: &World, options: &ConvertOptions, words: &str) {
    let before = fs::read(&world.image).unwrap();
    let text = world.convert_with(options).unwrap_err().to_string();
    assert!(text.contains(words) && !text.contains('\n'), "{text}");
    assert!(fs::read(&world.image).unwrap() == before, "{text}: the image changed");
}

/// Changes bytes of the image.
fn put(world: &World, offset: u64, bytes: &[u8]) {
    let file = fs::OpenOptions::new().write(true).open(&world.image).unwrap();
    file.write_all_at(bytes, offset).unwrap();
}

#[test]
fn small_blocks_are_refused_by_name() {
    if require(NEEDS).is_none() {
        return;
    }
    for (arguments, words) in
        [("-t ext4 -b 1024", "blocks of 1024 bytes"), ("-t ext2 -b 2048", "blocks of 2048 bytes")]
    {
        refused(&World::new(arguments, 40, |_| ()), words);
    }
}

#[test]
fn superblocks_with_errors_are_refused() {
    if require(NEEDS).is_none() {
        return;
    }
    for (state, words) in [(0u16, "not unmounted cleanly"), (3, "says that it has errors")] {
        let world = World::new("-t ext2 -b 4096 -O ^metadata_csum", 40, |_| ());
        put(&world, 1024 + 0x3a, &state.to_le_bytes());
        refused(&world, words);
    }
    let world = World::new("-t ext4 -b 4096 -O ^metadata_csum", 40, |_| ());
    put(&world, 1024 + 0xe8, &15u32.to_le_bytes());
    refused(&world, "deleted files that are not freed");
    put(&world, 1024 + 0xe8, &0u32.to_le_bytes());
    put(&world, 1024 + 0x60, &0x8000_0242u32.to_le_bytes());
    refused(&world, "unknown features");
}

#[test]
fn values_in_inodes_of_their_own_need_tree_blocks_that_hold_them() {
    if require(NEEDS).is_none() {
        return;
    }
    let world = World::new("-t ext4 -b 4096 -O ea_inode", 60, |root| {
        fs::write(root.join("file"), "x").unwrap();
        xattr::set(root.join("file"), "user.huge", &[7; 20_000]).unwrap();
        xattr::set(root.join("file"), "user.large", &[8; 5000]).unwrap();
    });
    refused(&world, "does not fit into a tree block");
    world.convert_with(&ConvertOptions::new().node_size(65536)).unwrap();
    world.check_btrfs();
    world.compare_btrfs(&[]);
    world.roll_back().unwrap();
    world.check_back();
}

#[test]
fn a_source_without_room_is_refused() {
    if require(NEEDS).is_none() {
        return;
    }
    let world = World::new("-t ext4 -b 4096 -m 0", 200, |root| {
        everything(root);
        nearly_full(root, 2 << 20, false);
    });
    refused(&world, "no room");
}

#[test]
fn names_that_collide_with_ours_are_refused() {
    if require(NEEDS).is_none() {
        return;
    }
    let world = World::new("-t ext4 -b 4096", 100, |root| fs::create_dir(root.join("ext2_saved")).unwrap());
    refused(&world, "ext2_saved");
}

#[test]
fn items_that_exceed_a_small_tree_block_are_refused() {
    if require(NEEDS).is_none() {
        return;
    }
    let world = World::new("-t ext4 -b 4096", 200, everything);
    refused_with(&world, &ConvertOptions::new().node_size(4096), "does not fit into a tree block");
}

#[test]
fn wrong_options_are_refused() {
    if require(NEEDS).is_none() {
        return;
    }
    let world = World::new("-t ext4 -b 4096", 100, |_| ());
    for (options, words) in [
        (ConvertOptions::new().node_size(5000), "node size 5000"),
        (ConvertOptions::new().node_size(2048), "node size 2048"),
        (ConvertOptions::new().features("mixed-bg"), "mixed-bg"),
        (ConvertOptions::new().features("quota"), "quota"),
        (ConvertOptions::new().features("nonsense"), "nonsense"),
    ] {
        refused_with(&world, &options, words);
    }
}

#[test]
fn other_devices_are_refused() {
    for (size, words) in
        [(0, "it has 0 bytes"), (1024, "it has 1024 bytes"), (1 << 20, "no magic number of ext")]
    {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(size));
        let text = convert(&device, &ConvertOptions::new(), &mut |_| ()).unwrap_err().to_string();
        assert!(text.contains(words), "{text}");
        let text = papilio_convert::rollback(&device, &mut |_| ()).unwrap_err().to_string();
        assert!(!text.is_empty());
    }
}

#[test]
fn a_device_in_use_is_not_opened() {
    if require(NEEDS).is_none() {
        return;
    }
    let world = World::new("-t ext4 -b 4096", 100, |_| ());
    let mounted = SourceMount::new(&world.scratch, Kind::Ext, &world.image, false);
    let device = mounted_device(mounted.path());
    let text = FileDevice::open(Path::new(&device), Access::ReadWrite).unwrap_err().to_string();
    assert!(text.contains("mounted or claimed"), "{text}");
    drop(mounted);
    let read_only: Arc<dyn Device> = Arc::new(FileDevice::open(&world.image, Access::ReadOnly).unwrap());
    let before = fs::read(&world.image).unwrap();
    assert!(convert(&read_only, &ConvertOptions::new(), &mut |_| ()).is_err());
    assert!(fs::read(&world.image).unwrap() == before);
}

/// Returns the device of a mount point.
fn mounted_device(point: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts.lines().find(|line| line.split(' ').nth(1) == point.to_str()).unwrap();
    line.split(' ').next().unwrap().to_owned()
}

#[test]
fn xfs_with_a_log_to_replay_is_refused_until_a_mount() {
    if require(XFS_NEEDS).is_none() {
        return;
    }
    let mut world = World::xfs("-l size=10m", 120, |root| fs::write(root.join("a"), "a").unwrap());
    {
        let mounted = SourceMount::new(&world.scratch, Kind::Xfs, &world.image, false);
        for at in 0..100 {
            fs::write(mounted.path().join(format!("b {at}")), "b").unwrap();
        }
        let folder = fs::File::open(mounted.path()).unwrap();
        rustix::fs::fsync(&folder).unwrap();
        super::world::copy(&world.image, &world.original);
    }
    fs::copy(&world.original, &world.image).unwrap();
    refused(&world, "mount it once and unmount it");
    drop(SourceMount::new(&world.scratch, Kind::Xfs, &world.image, false));
    world.keep();
    world.convert();
    world.compare_btrfs(&[]);
    refused(&world, "it is Btrfs already");
    world.roll_back().unwrap();
    world.check_back();
    // A log that xfs_repair has emptied is clean.
    run("xfs_repair", &["-f", "-L", world.image.to_str().unwrap()]);
    world.keep();
    world.convert();
    world.compare_btrfs(&[]);
}

#[test]
fn xfs_that_cannot_be_converted_is_refused_by_name() {
    if require(XFS_NEEDS).is_none() {
        return;
    }
    let scratch = papilio_oracle::Scratch::new(400 << 20).unwrap();
    let log = scratch.image("log", 20 << 20).unwrap();
    let time = scratch.image("time", 40 << 20).unwrap();
    let [log, time] = [&log, &time].map(|path| path.to_str().unwrap());
    for (arguments, words) in [
        ("-b size=1024".to_owned(), "blocks of 1024 bytes"),
        (format!("-l logdev={log},size=10m"), "its log is on another device"),
        (format!("-m reflink=0 -r rtdev={time}"), "a real-time section"),
    ] {
        let image = scratch.image("refused", 60 << 20).unwrap();
        let mut all: Vec<&str> = vec!["-q", "-f"];
        all.extend(arguments.split_whitespace());
        all.push(image.to_str().unwrap());
        run("mkfs.xfs", &all);
        refused(&World::of(Kind::Xfs, scratch.clone(), image), words);
    }
    let world = World::xfs("-l size=10m", 60, |root| fs::create_dir(root.join("xfs_saved")).unwrap());
    refused(&world, "xfs_saved");
    let image = world.image.to_str().unwrap();
    run("xfs_db", &["-x", "-c", "sb 0", "-c", "write -d features_incompat 0x1b", image]);
    refused(&world, "needs a repair");
    run("xfs_db", &["-x", "-c", "sb 0", "-c", "write -d features_incompat 0x1000b", image]);
    refused(&world, "unknown features (incompat 0x10000)");
}

#[test]
fn quotas_of_xfs_are_counted_as_lost() {
    if require(XFS_NEEDS).is_none() {
        return;
    }
    let world = World::xfs("-l size=10m -d agcount=2", 60, |root| {
        fs::write(root.join("quota"), vec![7; 8192]).unwrap();
        fs::create_dir(root.join("folder")).unwrap();
    });
    let image = world.image.to_str().unwrap();
    let text = run("xfs_db", &["-r", "-c", "path /quota", "-c", "p v3.inumber", image]);
    let number = text.split('=').nth(1).unwrap().trim();
    let write = |field: &str, value: &str| {
        run("xfs_db", &["-x", "-c", "sb 0", "-c", &format!("write -d {field} {value}"), image]);
    };
    write("uquotino", number);
    write("versionnum", "0xb4e5");
    // An inode with a name is a file all the same; one without is none.
    let plan = world.plan().unwrap();
    assert_eq!(plan.losses.quotas, 1, "{:?}", plan.losses);
    assert!(plan.losses.lines().iter().any(|line| line.contains("quotas")));
}
