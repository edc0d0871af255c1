//! Commands that name the device of a mount, seeds, and the sizes that `statfs` shows.

use crate::world::{MOUNT, World, binary, papilio, succeed};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

/// Runs the command under the name `btrfs`.
fn btrfs(arguments: &[&str]) -> Output {
    Command::new(binary()).arg0("btrfs").args(arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn structures_and_counters_of_a_mounted_device_are_shown() {
    let Some(world) = World::new(MOUNT) else { return };
    world.mount(&[]);
    let image = world.image();
    let image = image.to_str().unwrap();
    let shown = said(&btrfs(&["inspect-internal", "dump-super", image]));
    assert!(shown.contains("[match]"), "{shown}");
    let shown = said(&btrfs(&["inspect-internal", "dump-tree", "-t", "root", image]));
    assert!(shown.contains("FS_TREE"), "{shown}");
    let shown = said(&btrfs(&["device", "stats", image]));
    assert!(shown.contains("write_io_errs"), "{shown}");
    let shown = said(&btrfs(&["filesystem", "show", image]));
    assert!(shown.contains("Label: 'first'"), "{shown}");
    assert_eq!(said(&btrfs(&["filesystem", "label", image])), "first\n");
    // FUSE tells the server of no sync: everything written before is in the dump.
    fs::write(world.at("new"), "x").unwrap();
    let shown = said(&btrfs(&["inspect-internal", "dump-tree", "-t", "5", image]));
    assert!(shown.contains("name: new"), "{shown}");
    let byte = shown_extent(&said(&btrfs(&["inspect-internal", "dump-tree", "-t", "extent", image])));
    let place =
        said(&Command::new(binary()).arg0("btrfs-map-logical").args(["-l", &byte, image]).output().unwrap());
    assert!(place.contains(&format!("logical {byte} physical")), "{place}");
    // A command that changes it is refused as before.
    assert!(!papilio(["mkfs", "-f", image]).status.success());
    world.unmount();
}

/// Returns the address of an extent in a dump of the extent tree.
fn shown_extent(dump: &str) -> String {
    let key = dump.lines().find(|line| line.contains("METADATA_ITEM")).unwrap();
    key.split("key (").nth(1).unwrap().split(' ').next().unwrap().to_owned()
}

#[test]
fn a_subvolume_that_is_deleted_by_its_id_is_named() {
    let Some(world) = World::new(MOUNT) else { return };
    world.mount(&[]);
    let top = world.at("");
    let top = top.trim_end_matches('/');
    succeed(["subvolume", "create", &world.at("a")]);
    // Errors of a mount have the words of the C library under this name.
    let refused = btrfs(&["subvolume", "create", &world.at("a")]);
    let said_of = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(said_of, format!("ERROR: {top}/a: File exists\n"));
    let deleted = said(&btrfs(&["subvolume", "delete", "--subvolid", "256", top]));
    assert_eq!(deleted, format!("Delete subvolume 256 (no-commit): '{top}/a'\n"));
    world.unmount();
}

#[test]
fn a_mount_point_has_the_label_and_paths_name_qgroups() {
    let Some(world) = World::new(MOUNT) else { return };
    world.mount(&[]);
    let top = world.at("");
    assert_eq!(said(&btrfs(&["property", "get", &top])), "ro=false\nlabel=first\n");
    succeed(["subvolume", "create", &world.at("a")]);
    assert_eq!(said(&btrfs(&["property", "get", &world.at("a")])), "ro=false\n");
    succeed(["quota", "enable", &top]);
    succeed(["qgroup", "create", "1/7", &top]);
    said(&btrfs(&["qgroup", "assign", &world.at("a"), "1/7", &top]));
    let shown = said(&btrfs(&["qgroup", "show", "-p", &top]));
    assert!(shown.lines().any(|line| line.starts_with("0/256") && line.contains("1/7")), "{shown}");
    // A directory has no label: it belongs to the file system.
    for arguments in [["get", &world.at("a"), "label"].as_slice(), &["set", &world.at("a"), "label", "x"]] {
        let refused = btrfs(&[&["property"][..], arguments].concat());
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains("not compatible with property"), "{said}");
    }
    assert_eq!(said(&btrfs(&["filesystem", "label", &top])), "first\n");
    let wrong = btrfs(&["qgroup", "assign", "no such path", "1/7", &top]);
    assert!(!wrong.status.success());
    world.unmount();
}

#[test]
fn a_seed_mounts_read_only() {
    let Some(world) = World::new(MOUNT) else { return };
    world.mount(&[]);
    fs::write(world.at("file"), "x").unwrap();
    world.unmount();
    let (image, directory) = (world.image(), world.directory());
    succeed(["tune", "-S", "1", "-f", image.to_str().unwrap()]);
    let mounted = papilio(["mount".as_ref(), image.as_os_str(), directory.as_os_str()]);
    let warning = String::from_utf8_lossy(&mounted.stderr).into_owned();
    assert!(mounted.status.success() && warning.contains("a seed file system"), "{warning}");
    assert_eq!(fs::read_to_string(world.at("file")).unwrap(), "x");
    let refused = fs::write(world.at("new"), "x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    world.unmount();
}

/// Returns the free bytes of the file system that contains a path.
fn free(path: &str) -> u64 {
    let sizes = rustix::fs::statvfs(Path::new(path)).unwrap();
    sizes.f_bfree * sizes.f_frsize
}

#[test]
fn statfs_counts_what_was_written_and_removed() {
    let Some(world) = World::new(MOUNT) else { return };
    world.mount(&["-o", "commit=600"]);
    let before = free(&world.at(""));
    fs::write(world.at("big"), vec![7; 100 << 20]).unwrap();
    fs::File::open(world.at("big")).unwrap().sync_all().unwrap();
    let full = free(&world.at(""));
    assert!(before - full > 95 << 20, "{before} {full}");
    fs::remove_file(world.at("big")).unwrap();
    succeed(["filesystem", "sync", &world.at("")]);
    let after = free(&world.at(""));
    assert!(after - full > 90 << 20, "{full} {after}");
    world.unmount();
}
