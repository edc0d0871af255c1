//! Devices that nobody named are found by every command that needs them: second devices, seeds,
//! and devices of a change that was interrupted between two of them.

use crate::common::{command, fail, link_names, succeed, text};
use papilio::device::{Access, Device, FileDevice};
use papilio::format::features::SuperblockFlags;
use papilio::format::superblock::{SUPERBLOCK_SIZE, Superblock, superblock_offset};
use papilio_oracle::{LoopDevice, Need, Scratch, require};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

fn image(scratch: &Scratch, name: &str) -> PathBuf {
    scratch.image(name, 300 << 20).unwrap()
}

fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs a program by a name of btrfs-progs. Returns its exit code and all that it said.
fn by_name(folder: &Path, program: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let mut run = std::process::Command::new(folder.join(program));
    let output = run.args(arguments).stdin(Stdio::null()).current_dir(folder).output().unwrap();
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

#[test]
fn readers_by_the_names_of_btrfs_progs_go_on_without_a_device() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    let (one, two) = (image(&scratch, "one"), image(&scratch, "two"));
    succeed(["mkfs", "-q", "-d", "raid1", "-m", "raid1", name(&one), name(&two)]);
    let folder = tempfile::tempdir().unwrap();
    link_names(folder.path(), &["btrfs", "btrfs-image"]);
    let device = LoopDevice::attach(&one, false).unwrap();
    let path = name(device.path());
    for arguments in [
        &["check", path][..],
        &["filesystem", "show", path],
        &["filesystem", "label", path],
        &["inspect-internal", "dump-tree", path],
        &["inspect-internal", "tree-stats", path],
    ] {
        let (code, said) = by_name(folder.path(), "btrfs", arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {said}");
        assert!(said.contains("missing"), "{arguments:?}: {said}");
    }
    let (code, said) = by_name(folder.path(), "btrfs-image", &[path, "dump"]);
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn a_seed_is_found_and_never_written() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    let (seed, sprout) = (image(&scratch, "seed"), image(&scratch, "sprout"));
    succeed(["mkfs", "-q", name(&seed)]);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), vec![5; 100_000]).unwrap();
    succeed(["cp", name(&folder.path().join("file")), &format!("{}:/", name(&seed))]);
    succeed(["tune", "-S", "1", name(&seed)]);
    succeed(["-q", "device", "add", name(&sprout), name(&seed)]);
    let before = fs::read(&seed).unwrap();
    let (one, two) = (LoopDevice::attach(&seed, false).unwrap(), LoopDevice::attach(&sprout, false).unwrap());
    let path = name(two.path());
    let run = |arguments: &[&str]| {
        let output = command().args(arguments).current_dir(folder.path()).output().unwrap();
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success() && !said.contains("missing"), "{arguments:?}: {said}");
        said
    };
    assert!(run(&["check", path]).contains("no error found"));
    run(&["rescue", "clear-uuid-tree", "--undo", "undo1", path]);
    run(&["rescue", "fix-device-size", "--undo", "undo2", path]);
    run(&["check", "--clear-space-cache", "v1", "--undo", "undo3", path]);
    run(&["tune", "-m", path]);
    fail(1, "builds on a seed", ["tune", "-u", path]);
    assert!(run(&["check", path]).contains("no error found"));
    assert_eq!(run(&["cat", &format!("{path}:/file")]).len(), 100_000);
    drop((one, two));
    assert!(fs::read(&seed).unwrap() == before, "no byte of a seed changes");
}

/// Makes a seed with a file, and an image that builds on it, in a directory that nothing else uses.
fn seed_and_sprout(scratch: &Scratch, name: &str) -> (PathBuf, PathBuf) {
    let (seed, sprout) = (image(scratch, &format!("{name} seed")), image(scratch, &format!("{name} sprout")));
    succeed(["mkfs", "-q", self::name(&seed)]);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), vec![5; 100_000]).unwrap();
    succeed(["cp", self::name(&folder.path().join("file")), &format!("{}:/", self::name(&seed))]);
    succeed(["tune", "-S", "1", self::name(&seed)]);
    succeed(["-q", "device", "add", self::name(&sprout), self::name(&seed)]);
    (seed, sprout)
}

#[test]
fn every_command_finds_the_image_of_a_seed_beside_an_image() {
    let scratch = Scratch::new(1 << 30).unwrap();
    let (seed, sprout) = seed_and_sprout(&scratch, "one");
    let before = fs::read(&seed).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = name(&sprout);
    let inside = |rest: &str| format!("{path}:{rest}");
    fs::write(folder.path().join("local"), "content").unwrap();
    for arguments in [
        &["ls", &inside("/")][..],
        &["cat", &inside("/file")],
        &["stat", &inside("/file")],
        &["du", &inside("/")],
        &["find", &inside("/")],
        &["check", path],
        &["check", "--check-data-csum", path],
        &["inspect", "dump-tree", path],
        &["inspect", "dump-super", path],
        &["inspect", "tree-stats", path],
        &["inspect", "rootid", &inside("/")],
        &["inspect", "min-dev-size", "--id", "2", path],
        &["filesystem", "show", path],
        &["filesystem", "df", path],
        &["filesystem", "usage", path],
        &["filesystem", "du", &inside("/")],
        &["filesystem", "label", path],
        &["device", "usage", path],
        &["device", "stats", path],
        &["device", "ready", path],
        &["subvolume", "list", path],
        &["image", "dump", path, "dump"],
        &["restore", path, "restored"],
        &["compsize", &inside("/file")],
        &["diff", &inside("/"), &inside("/")],
        &["scrub", "start", "-B", path],
        &["cp", "local", &inside("/")],
        &["mkdir", &inside("/directory")],
        &["filesystem", "label", path, "label"],
        &["filesystem", "sync", path],
        &["subvolume", "create", &inside("/subvolume")],
        &["subvolume", "snapshot", "-r", &inside("/subvolume"), &inside("/snapshot")],
        &["send", "-f", "stream", &inside("/snapshot")],
        &["property", "list", &inside("/subvolume")],
        &["quota", "enable", path],
        &["qgroup", "show", path],
        &["filesystem", "defragment", &inside("/file")],
        &["rescue", "clear-uuid-tree", "--undo", "undo1", path],
        &["rescue", "fix-device-size", "--undo", "undo2", path],
        &["check", "--clear-space-cache", "v1", "--undo", "undo3", path],
        &["rescue", "clone", path, "clone"],
        &["trim", path],
        &["check", path],
        &["balance", "start", "-musage=1", path],
        &["device", "remove", "1", path],
        &["check", path],
    ] {
        let output =
            command().args(arguments).stdin(Stdio::null()).current_dir(folder.path()).output().unwrap();
        let (said, errors) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success() && !errors.contains("missing"), "{arguments:?}: {said}{errors}");
    }
    assert!(fs::read(&seed).unwrap() == before, "no byte of a seed changes");
    fs::remove_file(&seed).unwrap();
    assert_eq!(succeed(["cat", &inside("/file")]), vec![5; 100_000]);
}

#[test]
fn a_seed_that_was_changed_since_is_not_the_seed() {
    let scratch = Scratch::new(1 << 30).unwrap();
    let (seed, sprout) = seed_and_sprout(&scratch, "two");
    let copy = scratch.path().join("a copy");
    fs::copy(&seed, &copy).unwrap();
    succeed(["tune", "--force", "-S", "0", name(&seed)]);
    succeed(["mkdir", &format!("{}:/new", name(&seed))]);
    succeed(["tune", "-S", "1", name(&seed)]);
    // Its copy from before is.
    assert_eq!(succeed(["cat", &format!("{}:/file", name(&sprout))]), vec![5; 100_000]);
    fs::remove_file(&copy).unwrap();
    fail(1, "missing", ["cat", &format!("{}:/file", name(&sprout))]);
}

#[test]
fn two_images_that_build_on_one_seed_are_used_at_once() {
    let scratch = Scratch::new(1 << 30).unwrap();
    let (seed, sprout) = seed_and_sprout(&scratch, "three");
    let other = image(&scratch, "three other");
    succeed(["-q", "device", "add", name(&other), name(&seed)]);
    let options = papilio::OpenOptions::new().write(true).device(&seed);
    let open = [&sprout, &other].map(|path| papilio::FileSystem::open_with(path, &options).unwrap());
    let reader = papilio::FileSystem::open(&seed).unwrap();
    for (number, fs) in open.iter().enumerate() {
        fs.write("/file", [number as u8]).unwrap();
    }
    assert_eq!(reader.read("/file").unwrap(), vec![5; 100_000]);
    for fs in open {
        fs.close().unwrap();
    }
    drop(reader);
    for (number, path) in [&sprout, &other].into_iter().enumerate() {
        assert_eq!(succeed(["cat", &format!("{}:/file", name(path))]), [number as u8]);
        succeed(["check", name(path)]);
    }
}

fn superblock(image: &Path) -> Superblock {
    let device = FileDevice::open(image, Access::ReadOnly).unwrap();
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device.read_at(&mut bytes, superblock_offset(0)).unwrap();
    Superblock::parse(&bytes, superblock_offset(0)).unwrap()
}

#[test]
fn an_interrupted_change_of_the_uuid_finds_the_other_device() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    let (one, two) = (image(&scratch, "one"), image(&scratch, "two"));
    succeed(["mkfs", "-q", "-d", "raid1", "-m", "raid1", name(&one), name(&two)]);
    // The second device is as it was between the two steps of the change.
    let mut old = superblock(&two);
    old.raw.flags |= SuperblockFlags::CHANGING_FSID_V2;
    succeed(["tune", "-m", name(&one), name(&two)]);
    let device = FileDevice::open(&two, Access::ReadWrite).unwrap();
    for copy in 0..2 {
        let place = superblock_offset(copy);
        device.write_at(&old.to_bytes(place), place).unwrap();
    }
    drop(device);
    let (first, second) =
        (LoopDevice::attach(&one, false).unwrap(), LoopDevice::attach(&two, false).unwrap());
    for path in [first.path(), second.path()] {
        let said = text(&succeed(["tune", "-m", name(path)]));
        assert_eq!(said.contains("finished an interrupted change"), path == first.path(), "{said}");
    }
    assert!(text(&succeed(["check", name(second.path())])).contains("no error found"));
    drop((first, second));
    assert_eq!(superblock(&one).raw.fsid, superblock(&two).raw.fsid);
}

#[test]
fn a_seed_has_no_metadata_uuid() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    succeed(["mkfs", "-q", "--size", "128M", name(&image)]);
    succeed(["tune", "-m", name(&image)]);
    fail(1, "metadata UUID", ["tune", "-S", "1", name(&image)]);
    let plain = folder.path().join("plain");
    succeed(["mkfs", "-q", "--size", "128M", name(&plain)]);
    succeed(["tune", "-S", "1", name(&plain)]);
    fail(1, "seed", ["tune", "-m", name(&plain)]);
}
