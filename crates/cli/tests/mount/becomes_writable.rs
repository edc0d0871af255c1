//! Mounts that begin read-only: they become writable by a remount, as that of a root directory
//! does; beside a writable mount; or when a device is added to a seed.

use crate::joined::{READ_ONLY, Second, errno};
use crate::kernel::KernelMount;
use crate::logs::killed;
use crate::world::{MOUNT, World, binary, check_failure, fail, papilio, run, succeed, unmount_kernel};
use papilio_ioctl::client::MountedPath;
use papilio_oracle::{LoopDevice, Need};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn remount(world: &World, options: &str) -> Output {
    let (image, directory) = (world.image(), world.directory());
    papilio([Path::new("mount"), "-o".as_ref(), options.as_ref(), &image, &directory])
}

/// Returns the first option of a mount in the table of mounts: `ro` or `rw`.
fn access(directory: &Path) -> String {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let of = |line: &&str| line.split(' ').nth(1) == directory.to_str();
    let line = table.lines().rev().find(of).expect("it is mounted");
    line.split(' ').nth(3).unwrap().split(',').next().unwrap().to_owned()
}

/// Makes files, and mounts read-only.
fn read_only(options: &[&str]) -> Option<World> {
    let world = World::new(&[MOUNT, Need::KERNEL_MOUNT, &[Need::Command("btrfs")]].concat())?;
    world.mount(&[]);
    fs::create_dir(world.at("d")).unwrap();
    for number in 0..400 {
        fs::write(world.at(&format!("d/{number}")), vec![number as u8; 5000]).unwrap();
    }
    for name in ["a", "b"] {
        succeed(["subvolume", "create", &world.at(name)]);
        fs::write(world.at(&format!("{name}/file")), name).unwrap();
    }
    world.unmount();
    world.mount_plainly(options);
    Some(world)
}

#[test]
fn a_read_only_mount_becomes_writable_and_keeps_what_is_open() {
    for further in ["ro", "ro,opens=server", "ro,writeback_cache"] {
        let Some(world) = read_only(&["-o", further]) else { return };
        assert_eq!(errno(fs::write(world.at("x"), "")), READ_ONLY);
        assert_eq!(access(&world.directory()), "ro");
        // Others may read the image meanwhile.
        assert_eq!(succeed(["cat", &format!("{}:/a/file", world.image().display())]), "a");
        let server = world.server();
        let open = File::open(world.at("d/7")).unwrap();
        let mut listing = fs::read_dir(world.at("d")).unwrap();
        let first = listing.next().unwrap().unwrap().file_name();

        let output = remount(&world, "remount,rw");
        assert!(output.status.success(), "{output:?}");
        assert_eq!((access(&world.directory()), world.server()), ("rw".to_owned(), server), "{further}");
        let others = listing.map(|entry| entry.unwrap().file_name()).filter(|name| *name != first);
        assert_eq!(others.count(), 399);
        // A file that loses its name while it is open stays.
        fs::remove_file(world.at("d/7")).unwrap();
        for number in 0..200 {
            fs::write(world.at(&format!("new {number}")), vec![1; 20_000]).unwrap();
        }
        succeed(["filesystem", "sync", &world.at("")]);
        let mut bytes = vec![0; 6000];
        assert_eq!(open.read_at(&mut bytes, 0).unwrap(), 5000);
        assert!(bytes[..5000].iter().all(|byte| *byte == 7));
        drop(open);
        succeed(["subvolume", "snapshot", &world.at("a"), &world.at("snap")]);
        assert_eq!(fs::read_dir(world.at("d")).unwrap().count(), 399);
        // Names that change during a listing do not make it endless.
        let renamed = fs::read_dir(world.at("d")).unwrap().map(|entry| {
            let path = entry.unwrap().path();
            fs::rename(&path, path.with_extension("renamed")).unwrap();
        });
        assert!(renamed.take(1000).count() <= 2 * 399);

        assert!(remount(&world, "remount,ro").status.success());
        assert_eq!(errno(fs::write(world.at("x"), "")), READ_ONLY);
        assert!(remount(&world, "remount,rw").status.success());
        fs::write(world.at("x"), "again").unwrap();
        world.unmount();
        world.assert_clean();
        assert_eq!(succeed(["cat", &format!("{}:/x", world.image().display())]), "again");
    }
}

#[test]
fn the_log_is_replayed_when_a_mount_becomes_writable() {
    let Some(world) = killed() else { return };
    world.mount_plainly(&["-r"]);
    assert_eq!(fs::read_to_string(world.at("file")).unwrap(), "newer");
    let has_log = || succeed(["inspect", "dump-super", world.image().to_str().unwrap()]);
    assert!(!has_log().contains("log_root\t\t0\n"), "a reader writes nothing");
    let output = remount(&world, "remount,rw");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::read_to_string(world.at("file")).unwrap(), "newer");
    fs::write(world.at("other"), "other").unwrap();
    world.unmount();
    assert!(has_log().contains("log_root\t\t0\n"));
    world.assert_clean();
    assert_eq!(succeed(["cat", &format!("{}:/file", world.image().display())]), "newer");
}

#[test]
fn a_mount_that_cannot_become_writable_stays_as_it_is() {
    let Some(world) = read_only(&["-r"]) else { return };
    let image = world.image();
    let refused = |part: &str| {
        check_failure(&remount(&world, "remount,rw"), 1, part);
        assert_eq!(access(&world.directory()), "ro");
        assert_eq!(errno(fs::write(world.at("x"), "")), READ_ONLY);
        assert_eq!(fs::read_to_string(world.at("a/file")).unwrap(), "a");
        // It is still locked for reading.
        let lock = Command::new("flock").args(["-n", "-x"]).arg(&image).arg("true").status().unwrap();
        assert!(!lock.success(), "{part}");
    };
    // Another program reads it.
    let mut other = Command::new("flock");
    other.args(["--shared", "--no-fork"]).arg(&image).args(["sh", "-c", "echo locked; read line"]);
    let mut other = other.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(other.stdout.take().unwrap()).read_line(&mut line).unwrap();
    refused("cannot become writable: cannot open");
    drop(other.stdin.take());
    other.wait().unwrap();
    refused_in_place_of_another(&world);
    assert!(remount(&world, "remount,rw").status.success());
    fs::write(world.at("x"), "x").unwrap();
    world.unmount();
    for options in ["ro,rescue=nologreplay", "ro,rescue=all", "ro,rescue=ignoredatacsums"] {
        world.mount_plainly(&["-o", options]);
        check_failure(&remount(&world, "remount,rw"), 1, "requires ro");
        assert_eq!(access(&world.directory()), "ro");
        world.unmount();
    }
    world.assert_clean();
    // A device that the system lets nobody write.
    let device = LoopDevice::attach(&image, true).unwrap();
    let point = world.directory();
    succeed([Path::new("mount"), "-r".as_ref(), device.path(), &point]);
    let again = [Path::new("mount"), "-o".as_ref(), "remount,rw".as_ref(), device.path(), &point];
    check_failure(&papilio(again), 1, "cannot become writable");
    world.unmount();
}

/// The image is not the file of that name any more.
fn refused_in_place_of_another(world: &World) {
    let (image, moved) = (world.image(), world.beside("moved"));
    fs::rename(&image, &moved).unwrap();
    fs::copy(&moved, &image).unwrap();
    check_failure(&remount(world, "remount,rw"), 1, "another file has taken the place");
    fs::rename(&moved, &image).unwrap();
}

#[test]
fn a_writable_mount_beside_read_only_ones_leaves_them_read_only() {
    let Some(world) = read_only(&["-o", "ro,subvol=a"]) else { return };
    let server = world.server();
    let (b, top, third) = (Second::new(&world, "b"), Second::new(&world, "top"), Second::new(&world, "c"));
    third.mount(&world, "ro,subvolid=5");
    b.mount(&world, "rw,subvol=b");
    assert_eq!(MountedPath::open(&b.0).unwrap().server().unwrap().pid, Some(server));
    let accesses = [&world.directory(), &third.0, &b.0].map(|point| access(point));
    assert_eq!(accesses, ["ro", "ro", "rw"]);
    fs::write(b.at("new"), "new").unwrap();
    assert_eq!(errno(fs::write(world.at("new"), "")), READ_ONLY);
    assert_eq!(errno(fs::write(third.at("b/new"), "")), READ_ONLY);
    assert_eq!(fs::read_to_string(third.at("b/new")).unwrap(), "new");
    top.mount(&world, "subvolid=5,noatime");
    fs::write(top.at("a/new"), "also").unwrap();
    assert_eq!(fs::read_to_string(world.at("new")).unwrap(), "also");
    succeed(["subvolume", "create", top.at("c").to_str().unwrap()]);
    b.unmount();
    top.unmount();
    world.unmount();
    assert_eq!(fs::read_to_string(third.at("a/new")).unwrap(), "also");
    third.unmount();
    world.assert_clean();
}

/// Makes a seed with files, and two empty images. Returns the paths of the images.
fn seed(world: &World) -> [std::path::PathBuf; 2] {
    succeed(["tune", "-S", "1", world.image().to_str().unwrap()]);
    ["one", "two"].map(|name| {
        let path = world.beside(name);
        File::create(&path).unwrap().set_len(400 << 20).unwrap();
        path
    })
}

/// Mounts both images by the kernel, and returns what `look` finds.
fn by_kernel<T>(world: &World, sprout: &Path, look: impl FnOnce(&Path) -> T) -> T {
    let (one, two) =
        (LoopDevice::attach(&world.image(), true).unwrap(), LoopDevice::attach(sprout, false).unwrap());
    run("btrfs", &["device", "scan", one.path().to_str().unwrap(), two.path().to_str().unwrap()]);
    let point = world.directory();
    run("mount", &["-t", "btrfs", two.path().to_str().unwrap(), point.to_str().unwrap()]);
    let found = look(&point);
    assert!(unmount_kernel(&point));
    for device in [&one, &two] {
        let _ = Command::new("btrfs").args(["device", "scan", "--forget"]).arg(device.path()).output();
    }
    found
}

#[test]
fn a_device_that_is_added_to_a_mount_of_a_seed_makes_a_file_system() {
    let Some(world) = read_only(&["-r"]) else { return };
    world.unmount();
    let [one, two] = seed(&world);
    let before = fs::read(world.image()).unwrap();
    let output = papilio([Path::new("mount"), &world.image(), &world.directory()]);
    assert!(output.status.success(), "{output:?}");
    let uuid = |point: &Path| MountedPath::open(point).unwrap().fs_info().unwrap().fsid;
    let of_seed = uuid(&world.directory());
    check_failure(&remount(&world, "remount,rw"), 1, "it is a seed: add a device first");
    let small = world.beside("small");
    File::create(&small).unwrap().set_len(8 << 20).unwrap();
    fail(1, "are too few", ["device", "add", small.to_str().unwrap(), &world.at("")]);
    assert_eq!(uuid(&world.directory()), of_seed);
    let open = File::open(world.at("d/9")).unwrap();
    succeed(["-q", "device", "add", one.to_str().unwrap(), &world.at("")]);
    // As in the kernel, it takes changes after a remount.
    assert_eq!(errno(fs::write(world.at("x"), "")), READ_ONLY);
    assert_ne!(uuid(&world.directory()), of_seed);
    assert!(remount(&world, "remount,rw").status.success());
    fs::write(world.at("d/9"), "changed").unwrap();
    fs::remove_file(world.at("d/10")).unwrap();
    fs::write(world.at("b/new"), vec![6; 3 << 20]).unwrap();
    let mut bytes = [0; 10];
    assert_eq!(open.read_at(&mut bytes, 0).unwrap(), 7);
    drop(open);
    // The seed is a file system of its own, for others, too.
    let second = Second::new(&world, "second");
    let output = papilio([Path::new("mount"), &world.image(), &second.0]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!((uuid(&second.0), fs::read(second.at("d/9")).unwrap()), (of_seed, vec![9; 5000]));
    succeed(["-q", "device", "add", two.to_str().unwrap(), second.0.to_str().unwrap()]);
    second.unmount();
    world.unmount();

    let files = |point: &Path| {
        let count = fs::read_dir(point.join("d")).unwrap().count();
        (count, fs::read(point.join("d/9")).unwrap(), fs::read(point.join("d/11")).unwrap())
    };
    let expected = (399, b"changed".to_vec(), vec![11; 5000]);
    assert_eq!(by_kernel(&world, &one, files), expected);
    assert_eq!(by_kernel(&world, &two, files), (400, vec![9; 5000], vec![11; 5000]));
    // The seed is found beside the image. Without it, the file system is independent.
    succeed([Path::new("mount"), &one, &world.directory()]);
    assert_eq!(files(&world.directory()), expected);
    succeed(["-q", "device", "remove", "1", &world.at("")]);
    world.unmount();
    assert!(fs::read(world.image()).unwrap() == before, "no byte of the seed changes");
    fs::rename(world.image(), world.beside("gone")).unwrap();
    {
        let kernel = KernelMount::new(&one, &world.directory(), "rw");
        assert_eq!(files(&world.directory()), expected);
        drop(kernel);
    }
    run("btrfs", &["check", "--check-data-csum", one.to_str().unwrap()]);
    succeed(["check", one.to_str().unwrap()]);
    fs::rename(world.beside("gone"), world.image()).unwrap();
}

/// mount(8) remounts without its helper if it is given a source. The server learns of it from the
/// table of mounts.
#[test]
fn a_remount_that_the_server_does_not_see_allows_changes_of_devices() {
    let Some(world) = read_only(&["-r"]) else { return };
    world.unmount();
    let [one, two] = seed(&world);
    let output = papilio([Path::new("mount"), &world.image(), &world.directory()]);
    assert!(output.status.success(), "{output:?}");
    succeed(["-q", "device", "add", one.to_str().unwrap(), &world.at("")]);
    let replace = || papilio(["replace", "start", "2", two.to_str().unwrap(), &world.at("")]);
    check_failure(&replace(), 1, "read-only");
    let mut command = Command::new(binary());
    command.arg0("btrfs").args(["replace", "start", "2"]).arg(&two).arg(world.directory());
    let refused = command.output().unwrap();
    let said = format!(
        "ERROR: ioctl(DEV_REPLACE_START) failed on \"{}\": Read-only file system\n",
        world.directory().display()
    );
    assert_eq!(String::from_utf8_lossy(&refused.stderr), said);
    run("mount", &["-i", "-o", "remount,rw", one.to_str().unwrap(), &world.at("")]);
    fs::write(world.at("written"), vec![3; 3 << 20]).unwrap();
    let replaced = replace();
    assert!(replaced.status.success(), "{replaced:?}");
    succeed(["-q", "device", "remove", "1", &world.at("")]);
    run("mount", &["-i", "-o", "remount,ro", two.to_str().unwrap(), &world.at("")]);
    check_failure(&papilio(["device", "add", one.to_str().unwrap(), &world.at("")]), 1, "");
    world.unmount();
    assert_eq!(by_kernel(&world, &two, |point| fs::read(point.join("written")).unwrap()), vec![3; 3 << 20]);
}
