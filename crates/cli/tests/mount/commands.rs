//! Commands of Papilio and other programs on mounted paths.

use crate::world::{MOUNT, World, binary, check_failure, fail, run, succeed};
use papilio_ioctl::client::MountedPath;
use papilio_oracle::Need;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

#[test]
fn mount_is_usable_and_names_its_source() {
    let Some(world) = World::new(&[MOUNT, &[Need::Command("findmnt")]].concat()) else { return };
    world.mount(&["-o", "noatime,compress=zstd"]);
    let directory = world.directory();
    let shown = run("findmnt", &["-nro", "SOURCE,FSTYPE,OPTIONS", directory.to_str().unwrap()]);
    let fields: Vec<_> = shown.trim().split(' ').collect();
    assert_eq!(fields[..2], [world.image().to_str().unwrap(), "fuse.papilio"]);
    assert!(fields[2].split(',').any(|option| option == "noatime"), "{shown}");
    fs::create_dir(world.at("d")).unwrap();
    fs::write(world.at("d/text"), "some text\n").unwrap();
    world.unmount();
    assert_eq!(succeed(["cat", &format!("{}:/d/text", world.image().display())]), "some text\n");
    world.mount(&["-r"]);
    assert_eq!(fs::read_to_string(world.at("d/text")).unwrap(), "some text\n");
    let refused = fs::write(world.at("d/text"), "other").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    fail(1, "read-only", ["subvolume", "create", &world.at("sv")]);
    world.unmount();
}

#[test]
fn a_mount_has_a_tree_of_its_space() {
    let Some(world) = World::new(MOUNT) else { return };
    world.mount(&[]);
    for (name, mib) in [("a", 12_usize), ("b", 4)] {
        fs::create_dir(world.at(name)).unwrap();
        fs::write(world.at(&format!("{name}/f")), vec![mib as u8; mib << 20]).unwrap();
    }
    succeed(["subvolume", "snapshot", "-r", &world.at(""), &world.at("snapshot")]);
    let root = world.directory();
    let shown = |options: &[&str]| {
        let shown = succeed([&["usage", "--tree", "--json"], options, &[root.to_str().unwrap()]].concat());
        serde_json::from_str::<serde_json::Value>(&shown).unwrap()
    };
    let exact = shown(&["--exact"]);
    let entries = exact["tree"]["entries"].as_array().unwrap();
    let of = |name: &str| entries.iter().find(|entry| entry["name"] == name).unwrap()["bytes"].as_u64();
    assert_eq!((entries.len(), of("a"), of("b")), (2, Some(12 << 20), Some(4 << 20)), "{exact:#}");
    assert_eq!(shown(&["--samples", "50"])["tree"]["bytes"], 16 << 20);
    world.unmount();
}

#[test]
fn subvolumes_are_managed_in_a_mount() {
    let Some(world) = World::new(MOUNT) else { return };
    world.mount(&[]);
    // The kernel must drop its negative entry for the name.
    assert!(!fs::exists(world.at("sv")).unwrap());
    succeed(["subvolume", "create", &world.at("sv")]);
    assert!(fs::metadata(world.at("sv")).unwrap().is_dir());
    fs::write(world.at("sv/f"), "one").unwrap();
    fs::create_dir(world.at("snapshots")).unwrap();
    succeed(["subvolume", "snapshot", "-r", &world.at("sv"), &world.at("snapshots")]);
    fs::write(world.at("sv/f"), "two").unwrap();
    assert_eq!(fs::read_to_string(world.at("snapshots/sv/f")).unwrap(), "one");
    let refused = fs::write(world.at("snapshots/sv/f"), "three").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);

    let root = world.directory();
    let root = root.to_str().unwrap();
    let listed = succeed(["subvolume", "list", root]);
    let paths: Vec<_> = listed.lines().map(|line| line.split(" path ").nth(1).unwrap()).collect();
    assert_eq!(paths, ["sv", "snapshots/sv"]);
    assert_eq!(succeed(["subvolume", "list", "-r", root]).lines().count(), 1);
    assert_eq!(succeed(["subvolume", "list", "-o", &world.at("sv")]), "");
    let shown = succeed(["subvolume", "show", &world.at("snapshots/sv")]);
    assert!(shown.starts_with("snapshots/sv\n\tName: \t\t\tsv\n"), "{shown}");
    fail(2, "not a subvolume", ["subvolume", "show", &world.at("snapshots")]);

    assert_eq!(succeed(["property", "get", &world.at("snapshots/sv")]), "ro=true\n");
    let received = MountedPath::open(Path::new(&world.at("snapshots/sv"))).unwrap();
    received.set_subvolume_read_only(false).unwrap();
    received.mark_received([7; 16]).unwrap();
    received.set_subvolume_read_only(true).unwrap();
    drop(received);
    fail(1, "-f makes it writable", ["property", "set", &world.at("snapshots/sv"), "ro", "false"]);
    succeed(["property", "set", "-f", &world.at("snapshots/sv"), "ro", "false"]);
    let shown = succeed(["subvolume", "show", &world.at("snapshots/sv")]);
    assert!(shown.contains("Received UUID: \t\t-"), "{shown}");
    succeed(["property", "set", &world.at("snapshots/sv"), "ro", "true"]);
    succeed(["property", "set", &world.at("snapshots/sv"), "ro", "false"]);
    fs::write(world.at("snapshots/sv/f"), "three").unwrap();
    succeed(["subvolume", "set-default", &world.at("sv")]);
    fail(1, "operation not permitted", ["subvolume", "delete", &world.at("sv")]);
    succeed(["subvolume", "set-default", root]);
    fail(1, "no such subvolume", ["subvolume", "delete", &world.at("snapshots")]);
    fail(1, "already exists", ["subvolume", "create", &world.at("sv")]);
    succeed(["subvolume", "create", &world.at("by-id")]);
    let id =
        succeed(["subvolume", "list", root]).lines().last().unwrap().split(' ').nth(1).unwrap().to_owned();
    succeed(["subvolume", "delete", "-r", &id, root]);
    assert!(!fs::exists(world.at("by-id")).unwrap());
    fail(1, "no such file", ["subvolume", "delete", "-r", &id, root]);
    fail(2, "exactly one path", ["subvolume", "delete", "-r", "1", root, root]);
    succeed(["subvolume", "delete", &world.at("sv"), &world.at("snapshots/sv")]);
    assert!(!fs::exists(world.at("sv")).unwrap());
    assert_eq!(fs::read_dir(world.at("snapshots")).unwrap().count(), 0);
    succeed(["subvolume", "sync", root]);
    assert_eq!(succeed(["subvolume", "list", "-d", root]), "");
    world.unmount();
    succeed([Path::new("check"), &world.image()]);
}

/// Other programs create snapshots with the kernel's ioctl and a file descriptor.
#[test]
fn snapshots_work_with_the_kernels_ioctl() {
    let Some(world) = World::new(MOUNT) else { return };
    world.mount(&[]);
    succeed(["subvolume", "create", &world.at("sv")]);
    fs::write(world.at("sv/f"), "one").unwrap();
    let open = |path: &str| MountedPath::open(Path::new(path)).unwrap();
    let (root, source) = (open(&world.at("")), open(&world.at("sv")));
    root.create_snapshot_by_descriptor(&source, b"snap", true).unwrap();
    assert_eq!(fs::read_to_string(world.at("snap/f")).unwrap(), "one");
    assert!(open(&world.at("snap")).is_subvolume_read_only().unwrap());
    let foreign = MountedPath::open(Path::new("/dev/shm")).unwrap();
    let refused = root.create_snapshot_by_descriptor(&foreign, b"x", false).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::CrossesDevices);
    drop((root, source));
    world.unmount();
}

#[test]
fn file_system_is_managed_in_a_mount() {
    let Some(world) = World::new(&[MOUNT, &[Need::Command("fstrim")]].concat()) else { return };
    world.mount(&[]);
    let root = world.directory();
    let root = root.to_str().unwrap();
    assert_eq!(succeed(["filesystem", "label", root]), "first\n");
    succeed(["filesystem", "label", root, "second"]);
    assert_eq!(succeed(["filesystem", "label", root]), "second\n");
    fs::write(world.at("f"), vec![7; 8 << 20]).unwrap();
    succeed(["filesystem", "sync", root]);
    let shown = succeed(["filesystem", "show", root]);
    assert!(shown.starts_with("Label: 'second'  uuid: ") && shown.contains("Total devices 1"), "{shown}");
    assert!(shown.contains(world.image().to_str().unwrap()), "{shown}");
    let of_mount = succeed(["filesystem", "df", "--json", root]);
    let usage = succeed(["filesystem", "usage", "-b", root]);
    assert!(usage.contains("Device size:\t\t         536870912"), "{usage}");
    assert!(run("fstrim", &["-v", root]).contains("trimmed"));
    // The image file is resized too, and can be written beyond its old end.
    let length = || fs::metadata(world.image()).unwrap().len();
    assert!(succeed(["filesystem", "resize", "-64m", root]).contains("448.00MiB"));
    assert_eq!(length(), 448 << 20);
    succeed(["filesystem", "resize", "+576m", root]);
    assert_eq!(length(), 1 << 30);
    fs::write(world.at("large"), vec![8; 520 << 20]).unwrap();
    fail(1, "no room for the data", ["filesystem", "resize", "1m", root]);
    fs::remove_file(world.at("large")).unwrap();
    fail(1, "the file system has no device 7", ["filesystem", "resize", "7:max", root]);
    assert_eq!(length(), 1 << 30);
    let shown = succeed(["filesystem", "resize", "min", root]);
    let least = length();
    assert!(least < 1 << 30 && shown.contains(&format!("({least} bytes)")), "{least} {shown}");
    succeed(["filesystem", "sync", root]);
    fs::write(world.at("after"), vec![9; 1 << 20]).unwrap();
    world.unmount();
    assert_eq!(length(), least);
    let image = world.image();
    let image = image.to_str().unwrap();
    assert_eq!(succeed(["filesystem", "label", image]), "second\n");
    // The numbers differ by those of the last commit.
    let of_image = succeed(["filesystem", "df", "--json", image]);
    assert_eq!(of_mount.lines().count(), of_image.lines().count());
    succeed(["check", "--check-data-csum", image]);
}

#[test]
fn file_flags_are_supported() {
    let Some(world) = World::new(&[MOUNT, &[Need::Command("chattr"), Need::Command("lsattr")]].concat())
    else {
        return;
    };
    world.mount(&[]);
    fs::write(world.at("cow"), "").unwrap();
    run("chattr", &["+C", &world.at("cow")]);
    let flags = |name: &str| run("lsattr", &["-d", &world.at(name)]).split(' ').next().unwrap().to_owned();
    assert!(flags("cow").contains('C'));
    fs::create_dir(world.at("d")).unwrap();
    run("chattr", &["+c", &world.at("d")]);
    fs::write(world.at("d/inherits"), "x").unwrap();
    assert!(flags("d/inherits").contains('c'));
    run("chattr", &["+i", &world.at("d/inherits")]);
    let refused = fs::write(world.at("d/inherits"), "y").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    run("chattr", &["-i", &world.at("d/inherits")]);
    fs::write(world.at("d/inherits"), "y").unwrap();
    succeed(["property", "set", &world.at("cow"), "compression", ""]);
    succeed(["property", "set", &world.at("d"), "compression", "zstd"]);
    assert_eq!(succeed(["property", "get", &world.at("d")]), "compression=zstd\n");
    world.unmount();
    // The mount option sets the flag on new files.
    world.mount(&["-o", "nodatacow"]);
    fs::write(world.at("by-option"), "").unwrap();
    assert!(flags("by-option").contains('C') && flags("cow").contains('C'));
    world.unmount();
}

#[test]
fn subvolume_is_mounted_by_path_or_id() {
    let Some(world) = World::new(MOUNT) else { return };
    let in_image = |path: &str| format!("{}:{path}", world.image().display());
    succeed(["subvolume", "create", &in_image("/a"), &in_image("/a/b")]);
    succeed(["mkdir", &in_image("/a/b/here")]);
    for options in ["subvol=/a/b", "subvol=a/b,subvolid=257", "subvolid=257"] {
        world.mount(&["-o", options]);
        assert!(fs::metadata(world.at("here")).unwrap().is_dir(), "{options}");
        world.unmount();
    }
    succeed(["subvolume", "set-default", &in_image("/a")]);
    world.mount(&[]);
    assert!(fs::metadata(world.at("b/here")).unwrap().is_dir());
    world.unmount();
    let (image, directory) = (world.image(), world.directory());
    let mount = |options: &str| {
        let arguments =
            ["mount".as_ref(), "-o".as_ref(), options.as_ref(), image.as_os_str(), directory.as_os_str()];
        crate::world::papilio(arguments)
    };
    check_failure(&mount("subvol=a,subvolid=257"), 1, "conflict");
    check_failure(&mount("subvolid=999"), 1, "no such subvolume");
    check_failure(&mount("subvol=nowhere"), 1, "no such");
    assert!(world.entry().is_none());
}

#[test]
fn users_manage_their_own_subvolumes() {
    let Some(world) = World::new(&[MOUNT, &[Need::Command("setpriv")]].concat()) else { return };
    world.mount(&["-o", "allow_other,user_subvol_rm_allowed"]);
    fs::create_dir(world.at("home")).unwrap();
    std::os::unix::fs::chown(world.at("home"), Some(12345), Some(12345)).unwrap();
    succeed(["subvolume", "create", &world.at("system")]);
    let parent = world.directory();
    let parent = parent.parent().unwrap();
    fs::set_permissions(parent, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    // A copy that the user can reach.
    let program = parent.join("papilio");
    papilio_oracle::program::copy_program(binary(), &program).unwrap();
    let as_user = |arguments: &[&str]| {
        Command::new(papilio_oracle::requirement::find_command("setpriv").unwrap())
            .args(["--reuid=12345", "--regid=12345", "--clear-groups"])
            .arg(&program)
            .args(arguments)
            .output()
            .unwrap()
    };
    let done = as_user(&["subvolume", "create", &world.at("home/own")]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(fs::metadata(world.at("home/own")).unwrap().uid(), 12345);
    check_failure(&as_user(&["subvolume", "create", &world.at("own")]), 1, "permission denied");
    let stolen = as_user(&["subvolume", "snapshot", &world.at("system"), &world.at("home/stolen")]);
    check_failure(&stolen, 1, "operation not permitted");
    check_failure(&as_user(&["subvolume", "delete", &world.at("system")]), 1, "permission denied");
    let root = world.directory();
    check_failure(&as_user(&["filesystem", "label", root.to_str().unwrap(), "x"]), 1, "not permitted");
    assert!(as_user(&["subvolume", "delete", &world.at("home/own")]).status.success());
    world.unmount();
}
