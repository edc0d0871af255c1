//! mount(8) and umount(8) with our helpers. Each test has a mount namespace, in which its own
//! directory covers `/sbin`, so that the system is not changed.

use crate::world::{MOUNT, World, binary, check_failure, run, succeed};
use papilio_oracle::Need;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output};

const NEEDS: [&[Need]; 2] = [
    MOUNT,
    &[Need::Command("unshare"), Need::Command("mount"), Need::Command("findmnt"), Need::Command("btrfs")],
];

/// Creates a directory with the helpers.
fn helpers(world: &World) -> PathBuf {
    let folder = world.beside("sbin");
    fs::create_dir(&folder).unwrap();
    for name in ["mount.fuse.papilio", "mount.papilio", "umount.fuse.papilio", "umount.papilio"] {
        symlink(binary(), folder.join(name)).unwrap();
    }
    folder
}

/// Runs a script with the helpers in `/sbin`, and unmounts what it leaves mounted.
fn script(world: &World, text: &str) -> Output {
    let folder = world.beside("sbin");
    let sbin = fs::canonicalize("/sbin").unwrap();
    let whole = format!(
        "set -eu; umount -a -i -t btrfs,fuse.papilio 2>/dev/null || true; trap 'umount -i -l \"$DIR\" 2>/dev/null || true' EXIT; mount --bind {} {}; {text}",
        folder.display(),
        sbin.display()
    );
    Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", &whole])
        .env("IMAGE", world.image())
        .env("DIR", world.directory())
        .env("FSTAB", world.beside("fstab"))
        .output()
        .unwrap()
}

#[test]
fn mount_and_umount_use_the_helpers() {
    let Some(world) = World::new(&NEEDS.concat()) else { return };
    helpers(&world);
    for round in 0..3 {
        let output = script(
            &world,
            "mount -t fuse.papilio \"$IMAGE\" \"$DIR\" -o noatime,compress=zstd,_netdev,nodev
             findmnt -nro SOURCE,FSTYPE,OPTIONS \"$DIR\"
             echo hello > \"$DIR/file\"
             umount \"$DIR\"",
        );
        // umount returns only after the helper has waited for the server.
        world.assert_clean();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "round {round}: {stderr}");
        let shown = String::from_utf8(output.stdout).unwrap();
        let expected = format!("{} fuse.papilio rw,nodev,noatime", world.image().display());
        assert!(shown.starts_with(&expected), "{shown}");
        assert_eq!(succeed(["cat", &format!("{}:/file", world.image().display())]), "hello\n");
    }
}

#[test]
fn fstab_entry_is_mounted() {
    let Some(world) = World::new(&NEEDS.concat()) else { return };
    helpers(&world);
    let line = format!(
        "{} {} fuse.papilio ro,subvolid=5,nofail,x-systemd.automount 0 0\n",
        world.image().display(),
        world.directory().display()
    );
    fs::write(world.beside("fstab"), line).unwrap();
    let output = script(
        &world,
        "mount --fstab \"$FSTAB\" \"$DIR\"
         findmnt -nro OPTIONS \"$DIR\"
         if touch \"$DIR/x\" 2>/dev/null; then exit 9; fi
         umount \"$DIR\"
         mount -t papilio -o rw \"$IMAGE\" \"$DIR\"
         touch \"$DIR/x\"
         umount \"$DIR\"",
    );
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", output.status);
    assert!(String::from_utf8(output.stdout).unwrap().starts_with("ro"));
    assert!(succeed(["ls", &format!("{}:/", world.image().display())]).contains('x'));
}

#[test]
fn fstab_entry_by_uuid_is_mounted() {
    let Some(world) = World::new(&[NEEDS.concat(), vec![Need::Command("losetup")]].concat()) else { return };
    helpers(&world);
    let image = world.image();
    let device = run("losetup", &["--find", "--show", image.to_str().unwrap()]).trim().to_owned();
    let uuid = papilio::FoundDevice::read(&image).unwrap().unwrap().fsid;
    let line = format!("UUID={uuid} {} fuse.papilio noatime 0 0\n", world.directory().display());
    fs::write(world.beside("fstab"), line).unwrap();
    let output = script(
        &world,
        // Without a cache of its own, libblkid may remember what the loop device held before.
        "BLKID_FILE=\"$FSTAB.blkid\" mount --fstab \"$FSTAB\" \"$DIR\"
         findmnt -nro SOURCE \"$DIR\"
         umount \"$DIR\"",
    );
    run("losetup", &["--detach", &device]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", output.status);
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), device);
}

/// The automount is that of a small daemon, which treats the kernel and the mount command as
/// systemd does.
#[test]
fn automount_mounts_at_the_first_access() {
    let needs = [NEEDS.concat(), vec![Need::Command("cc"), Need::Command("timeout")]].concat();
    let Some(world) = World::new(&needs) else { return };
    if !fs::read_to_string("/proc/filesystems").unwrap().contains("autofs") {
        return eprintln!("skipped: the kernel has no autofs");
    }
    helpers(&world);
    let daemon = world.beside("automount");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/automount.c");
    run("cc", &["-o", daemon.to_str().unwrap(), source]);
    let output = script(
        &world,
        &format!(
            "timeout 20 {} \"$DIR\" $(command -v mount) -t fuse.papilio \"$IMAGE\" \"$DIR\" > /dev/null &
             until grep -q autofs /proc/self/mounts; do sleep 0.05; done
             timeout 20 touch \"$DIR/automounted\"
             wait
             umount \"$DIR\"
             umount \"$DIR\"",
            daemon.display()
        ),
    );
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", output.status);
    world.assert_clean();
    assert!(succeed(["ls", &format!("{}:/", world.image().display())]).contains("automounted"));
}

#[test]
fn helpers_accept_their_arguments() {
    let Some(world) = World::new(MOUNT) else { return };
    let folder = helpers(&world);
    let (image, directory) = (world.image(), world.directory());
    let call = |name: &str, arguments: &[&str]| {
        let arguments = arguments.iter().map(|argument| match *argument {
            "IMAGE" => image.to_str().unwrap(),
            "DIR" => directory.to_str().unwrap(),
            other => other,
        });
        Command::new(folder.join(name)).args(arguments).output().unwrap()
    };
    // -f does everything except the mount itself.
    assert!(call("mount.fuse.papilio", &["IMAGE", "DIR", "-f", "-o", "rw"]).status.success());
    assert!(world.entry().is_none());
    check_failure(
        &call("mount.papilio", &["IMAGE", "DIR", "-o", "nonsense"]),
        32,
        "unknown mount option: nonsense",
    );
    check_failure(
        &call("mount.papilio", &["IMAGE", "DIR", "-o", "remount,ro"]),
        32,
        "nothing to remount: Papilio has no mount there",
    );
    check_failure(&call("umount.papilio", &["DIR"]), 32, "");
    check_failure(&call("mount.papilio", &["IMAGE", "DIR", "-x"]), 1, "unknown option -x");
    // -s ignores unknown options.
    assert!(call("mount.papilio", &["IMAGE", "DIR", "-s", "-n", "-o", "nonsense,noatime"]).status.success());
    assert!(world.entry().is_some());
    assert!(call("umount.papilio", &["DIR", "-n"]).status.success());
    assert!(world.entry().is_none());
    run("sync", &[]);
}

/// FUSE's own helper runs `papilio SOURCE DIR -o OPTIONS`.
#[test]
fn helper_of_fuse_works() {
    let needs = [NEEDS[0], NEEDS[1], &[Need::Command("mount.fuse")]].concat();
    let Some(world) = World::new(&needs) else { return };
    let folder = world.beside("bin");
    fs::create_dir(&folder).unwrap();
    symlink(binary(), folder.join("papilio")).unwrap();
    let text = "umount -a -i -t btrfs,fuse.papilio 2>/dev/null || true
        trap 'umount -i -l \"$DIR\" 2>/dev/null || true' EXIT
        mount --bind \"$BIN\" /usr/local/bin
        mount -t fuse.papilio \"$IMAGE\" \"$DIR\" -o noatime
        findmnt -nro SOURCE,FSTYPE,OPTIONS \"$DIR\"
        \"$BIN/papilio\" umount \"$DIR\"";
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-euc", text])
        .env("IMAGE", world.image())
        .env("DIR", world.directory())
        .env("BIN", &folder)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", output.status);
    let expected = format!("{} fuse.papilio rw,noatime", world.image().display());
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.starts_with(&expected), "{shown}");
    world.assert_clean();
}

#[test]
fn mount_remounts_through_the_helper() {
    let Some(world) = World::new(&NEEDS.concat()) else { return };
    helpers(&world);
    let output = script(
        &world,
        "mount -t fuse.papilio \"$IMAGE\" \"$DIR\"
         echo hello > \"$DIR/file\"
         mount -o remount,ro \"$DIR\"
         findmnt -nro OPTIONS \"$DIR\"
         if touch \"$DIR/x\" 2>/dev/null; then exit 9; fi
         cat \"$DIR/file\"
         mount -o remount,rw,noatime \"$DIR\"
         findmnt -nro OPTIONS \"$DIR\"
         touch \"$DIR/x\"
         umount \"$DIR\"",
    );
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", output.status);
    let shown = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = shown.lines().collect();
    assert!(lines[0].starts_with("ro,") && lines[1] == "hello", "{shown}");
    assert!(lines[2].starts_with("rw,noatime"), "{shown}");
    world.assert_clean();
}
