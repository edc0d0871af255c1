//! Mounts that are refused: one line and exit code 1, or 2 for wrong usage.

use crate::world::{MOUNT, World, binary, check_failure, fail, papilio, succeed, try_unmount, unmount};
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
fn too_few_descriptors_are_told() {
    let Some(world) = World::new(&[MOUNT, &[Need::Command("prlimit")]].concat()) else { return };
    let output = Command::new("prlimit")
        .args(["--nofile=5", "--"])
        .arg(binary())
        .args([Path::new("mount"), &world.image(), &world.directory()])
        .output()
        .unwrap();
    check_failure(&output, 1, "Too many open files");
    assert!(world.entry().is_none());
    world.mount(&[]);
    world.unmount();
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
        ("rescue=ibadroots", "mount option rescue=ignorebadroots requires ro"),
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
    world.mount(&[]);
    let (image, directory) = (world.image(), world.directory());
    let held = format!("mounted on {} (by process ", directory.display());
    fail(1, &held, ["ls", &format!("{}:/", image.display())]);
    fail(1, ": mounted on ", ["ls", &format!("{}:/", image.display())]);
    fail(1, ": mounted on ", ["touch", &format!("{}:/x", image.display())]);
    for command in [&["check"][..], &["mkfs", "-f"]] {
        fail(1, ": mounted on ", command.iter().copied().chain([image.to_str().unwrap()]));
    }
    // The mount answers for its image.
    assert!(succeed(["filesystem", "df", image.to_str().unwrap()]).starts_with("Data"));
    let second = world.beside("second.img");
    succeed([Path::new("mkfs"), "-b".as_ref(), "128m".as_ref(), &second]);
    fail(1, "busy: ", [Path::new("mount"), &second, &directory]);
    // A directory in the mount can be a mount point.
    fs::create_dir(world.at("inside")).unwrap();
    let inside = directory.join("inside");
    succeed([Path::new("mount"), &second, &inside]);
    fail(1, ": in use", [Path::new("umount"), &directory]);
    unmount(&inside);
    unmount(&directory);
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

#[test]
fn users_without_fuse_are_told_what_is_missing() {
    let needs = [Need::Root, Need::Fuse, Need::Command("unshare"), Need::Command("setpriv")];
    let Some(world) = World::new_in(&std::env::temp_dir(), &needs) else { return };
    let folder = world.image().parent().unwrap().to_path_buf();
    for (path, mode) in [(&folder, 0o755), (&world.image(), 0o666), (&world.directory(), 0o777)] {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    }
    let program = folder.join("papilio");
    papilio_oracle::program::copy_program(binary(), &program).unwrap();
    std::os::unix::fs::chown(world.directory(), Some(12345), Some(12345)).unwrap();
    let mount = |device_mode: &str, path: &str| {
        let device = format!("mknod -m {device_mode} /dev/fuse c 10 229; mknod -m 666 /dev/null c 1 3");
        Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-ec"])
            .arg(format!(
                "mount -t tmpfs none /dev; {device}; setpriv=$(command -v setpriv); PATH={path}; \
                 exec $setpriv --reuid=12345 --regid=12345 --clear-groups \"$@\""
            ))
            .arg("sh")
            .arg(&program)
            .arg("mount")
            .args([&world.image(), &world.directory()])
            .output()
            .unwrap()
    };
    check_failure(&mount("600", "$PATH"), 1, "/dev/fuse: permission denied: this user may not use FUSE");
    check_failure(&mount("666", "/nowhere"), 1, "needs root, or fusermount3, which is not installed");
    assert!(world.entry().is_none());
}

#[test]
fn image_may_be_below_its_own_mount_point() {
    let Some(world) = World::new(MOUNT) else { return };
    let image = world.directory().join("disk.img");
    fs::rename(world.image(), &image).unwrap();
    let directory = world.directory();
    succeed([Path::new("mount"), &image, &directory]);
    assert!(!image.exists(), "the mount covers the image");
    fs::write(world.at("f"), "content").unwrap();
    // The mounted directory can be mounted again inside the mount, as a bind mount can.
    fs::create_dir(world.at("inside")).unwrap();
    world.unmount();
    assert_eq!(succeed(["cat", &format!("{}:/f", image.display())]), "content");
    fs::rename(&image, world.image()).unwrap();
    world.assert_clean();
}

#[test]
fn shrunken_image_makes_the_mount_read_only() {
    let Some(world) = World::new(MOUNT) else { return };
    world.mount(&[]);
    let image = fs::File::options().write(true).open(world.image()).unwrap();
    // Only the superblock is left.
    image.set_len(1 << 20).unwrap();
    fs::create_dir(world.at("d")).unwrap();
    let directory = world.directory();
    let directory = directory.to_str().unwrap();
    fail(1, "", ["filesystem", "sync", directory]);
    let shown = succeed(["filesystem", "show", directory]);
    let cause = format!("*** Read-only: {}: the device is truncated: ", world.image().display());
    assert!(shown.contains(&cause), "{shown}");
    let json: serde_json::Value =
        serde_json::from_str(&succeed(["filesystem", "show", "--json", directory])).unwrap();
    assert!(json["read_only"].as_str().unwrap().contains("is truncated"), "{json}");
    assert_eq!(fs::create_dir(world.at("e")).unwrap_err().raw_os_error(), Some(30), "EROFS");
    // Names that are in memory are still shown, and a remount cannot bring the device back.
    assert!(fs::metadata(world.at("d")).is_ok());
    let image = world.image();
    let remount = papilio([Path::new("mount"), "-oremount,rw".as_ref(), &image, Path::new(directory)]);
    check_failure(&remount, 1, "read-only since a failure: ");
    let unmounted = try_unmount(directory.as_ref());
    assert_eq!(unmounted.status.code(), Some(1));
    assert!(world.entry().is_none());
}

#[test]
fn deleted_or_grown_image_stays_usable_while_mounted() {
    let Some(world) = World::new(MOUNT) else { return };
    world.mount(&[]);
    let image = fs::File::options().write(true).open(world.image()).unwrap();
    image.set_len(1 << 30).unwrap();
    let kept = world.beside("kept.img");
    fs::hard_link(world.image(), &kept).unwrap();
    fs::remove_file(world.image()).unwrap();
    fs::write(world.at("f"), vec![3; 9 << 20]).unwrap();
    let directory = world.directory();
    succeed([Path::new("filesystem"), "sync".as_ref(), &directory]);
    assert_eq!(fs::read(world.at("f")).unwrap(), vec![3; 9 << 20]);
    world.unmount();
    fs::rename(&kept, world.image()).unwrap();
    world.assert_clean();
}
