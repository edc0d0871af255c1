//! Mounts that are refused: one line and exit code 1, or 2 for wrong usage.

use crate::world::{MOUNT, World, binary, check_failure, fail, papilio, succeed};
use papilio_oracle::Need;
use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
fn wrong_mount_points_are_refused() {
    let Some(world) = World::new(&[]) else { return };
    let image = world.image();
    let mount = |directory: &Path| papilio([Path::new("mount"), &image, directory]);
    check_failure(&mount(&world.beside("missing")), 1, "missing: the mount point does not exist");
    check_failure(&mount(&image), 1, "disk.img: the mount point is not a directory");
}

#[test]
fn wrong_images_are_refused() {
    let Some(world) = World::new(&[]) else { return };
    let directory = world.directory();
    let mount = |image: &Path| papilio([Path::new("mount"), image, &directory]);
    check_failure(&mount(&world.beside("none.img")), 1, "none.img: no such file or device");
    fs::write(world.beside("zeros.img"), vec![0; 1 << 20]).unwrap();
    check_failure(&mount(&world.beside("zeros.img")), 1, "zeros.img");
    fs::write(world.beside("empty.img"), "").unwrap();
    check_failure(&mount(&world.beside("empty.img")), 1, "the file is empty");
    check_failure(&mount(&directory), 1, "it is a directory; expected an image file");
}

#[test]
fn wrong_options_are_refused() {
    let Some(world) = World::new(&[]) else { return };
    let (image, directory) = (world.image(), world.directory());
    for (options, message) in [
        ("nonsense", "unknown mount option: nonsense"),
        ("commit=soon", "mount option commit: \"soon\" is not a number"),
        ("compress=lzma", "mount option compress: compression \"lzma\""),
        ("rescue=all", "mount option rescue=all requires ro"),
        ("ro,rescue=ibadroots", "mount option rescue=ibadroots is not supported"),
    ] {
        let arguments: [&std::ffi::OsStr; 5] =
            ["mount".as_ref(), "-o".as_ref(), options.as_ref(), image.as_os_str(), directory.as_os_str()];
        fail(1, message, arguments);
    }
    let usage = papilio(["mount", image.to_str().unwrap()]);
    assert_eq!(usage.status.code(), Some(2));
    assert_eq!(papilio(["umount"]).status.code(), Some(2));
}

#[test]
fn log_that_cannot_be_opened_is_refused() {
    let Some(world) = World::new(MOUNT) else { return };
    let (image, directory) = (world.image(), world.directory());
    let log = Path::new("/no/such/folder/log");
    fail(1, "log: cannot open the log", [Path::new("mount"), Path::new("--log"), log, &image, &directory]);
    assert!(world.entry().is_none());
}

#[test]
fn mounted_image_is_refused() {
    let Some(world) = World::new(MOUNT) else { return };
    let other = world.beside("other");
    fs::create_dir(&other).unwrap();
    world.mount(&[]);
    let (image, directory) = (world.image(), world.directory());
    let held = format!("mounted on {} (by process ", directory.display());
    fail(1, &held, [Path::new("mount"), &image, &other]);
    fail(1, ": mounted on ", ["ls", &format!("{}:/", image.display())]);
    fail(1, ": mounted on ", ["touch", &format!("{}:/x", image.display())]);
    for command in [&["check"][..], &["mkfs", "-f"], &["inspect", "dump-super"], &["filesystem", "df"]] {
        fail(1, ": mounted on ", command.iter().copied().chain([image.to_str().unwrap()]));
    }
    let second = world.beside("second.img");
    succeed([Path::new("mkfs"), "-b".as_ref(), "128m".as_ref(), &second]);
    fail(1, "busy: ", [Path::new("mount"), &second, &directory]);
    // A directory in the mount can be a mount point.
    fs::create_dir(world.at("inside")).unwrap();
    let inside = directory.join("inside");
    succeed([Path::new("mount"), &second, &inside]);
    fail(1, ": in use", [Path::new("umount"), &directory]);
    succeed([Path::new("umount"), &inside, &directory]);
}

#[test]
fn missing_fuse_is_reported() {
    let needs = [Need::Root, Need::Command("unshare")];
    let Some(world) = World::new_in(&std::env::temp_dir(), &needs) else { return };
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-ec"])
        .arg("mount -t tmpfs none /dev; mknod -m 666 /dev/null c 1 3; exec \"$@\"")
        .arg("sh")
        .arg(binary())
        .arg("mount")
        .args([&world.image(), &world.directory()])
        .output()
        .unwrap();
    check_failure(&output, 1, "/dev/fuse: ");
    check_failure(&output, 1, "FUSE is not available");
}
