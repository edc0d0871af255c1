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
