//! Beside the kernel's Btrfs: the same ioctls on the same image get the same answers, our commands work on the
//! kernel's mounts where the kernel answers, and file systems of several devices that it made are mounted.

use crate::world::{World, fail, papilio, run, succeed};
use papilio_fuse::ioctl::client::MountedPath;
use papilio_fuse::ioctl::layout::{GetSubvolInfo, IoctlTimespec};
use papilio_oracle::Need;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The image mounted by the kernel, through a loop device that goes with the mount.
struct KernelMount {
    directory: PathBuf,
}

impl KernelMount {
    fn new(image: &Path, directory: &Path, options: &str) -> Self {
        let options = format!("loop,{options}");
        run("mount", &["-t", "btrfs", "-o", &options, image.to_str().unwrap(), directory.to_str().unwrap()]);
        Self { directory: directory.to_path_buf() }
    }

    fn at(&self, path: &str) -> String {
        self.directory.join(path).to_str().unwrap().to_owned()
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        let ended = Command::new("umount").arg(&self.directory).status();
        assert!(ended.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

fn needs() -> Vec<Need> {
    [Need::KERNEL_MOUNT, &[Need::Fuse, Need::Command("btrfs"), Need::Command("lsattr")]].concat()
}

/// What differs from mount to mount: times of the last change, and the transaction that a mount itself makes.
fn comparable(mut info: GetSubvolInfo) -> String {
    info.generation = 0;
    info.changed = 0;
    info.change_time = IoctlTimespec::default();
    format!("{info:?}")
}

/// All that ioctls and tools which use them say of a mount.
fn told(root: &Path) -> Vec<String> {
    let open = |path: &str| MountedPath::open(&root.join(path)).unwrap();
    let mut lines = Vec::new();
    for path in ["", "sv", "sv/inner", "snap", "d"] {
        let asked = open(path);
        lines.push(format!("{path}: {:?}", asked.subvolume_id().unwrap()));
        lines.push(format!("{path}: {}", comparable(asked.subvolume_info().unwrap())));
        lines.push(format!("{path}: {:?}", asked.is_subvolume_root().unwrap()));
    }
    for path in ["sv", "snap"] {
        lines.push(format!("{path}: {}", open(path).is_subvolume_read_only().unwrap()));
    }
    let mut info = open("").fs_info().unwrap();
    // The kernel tells what was asked for; through FUSE that is not passed, and all is told.
    (info.csum_type, info.csum_size, info.generation, info.flags) = (0, 0, 0, 0);
    lines.push(format!("{info:?}"));
    lines.push(String::from_utf8(open("").label().unwrap()).unwrap());
    for path in ["cow", "d", "d/f", "sv"] {
        let path = root.join(path);
        let flags = run("lsattr", &["-dv", path.to_str().unwrap()]);
        lines.push(flags.replace(root.to_str().unwrap(), ""));
    }
    lines
}

#[test]
fn ioctls_get_the_kernels_answers() {
    let Some(world) = World::new(&needs()) else { return };
    {
        let kernel = KernelMount::new(&world.image(), &world.directory(), "noatime");
        let btrfs = |arguments: &[&str]| drop(run("btrfs", arguments));
        btrfs(&["subvolume", "create", &kernel.at("sv")]);
        btrfs(&["subvolume", "create", &kernel.at("sv/inner")]);
        fs::write(kernel.at("sv/f"), "one").unwrap();
        btrfs(&["subvolume", "snapshot", "-r", &kernel.at("sv"), &kernel.at("snap")]);
        btrfs(&["filesystem", "label", kernel.directory.to_str().unwrap(), "by the kernel"]);
        fs::create_dir(kernel.at("d")).unwrap();
        fs::write(kernel.at("cow"), "").unwrap();
        run("chattr", &["+C", &kernel.at("cow")]);
        run("chattr", &["+cdA", &kernel.at("d")]);
        fs::write(kernel.at("d/f"), "inherits").unwrap();
        run("chattr", &["+a", &kernel.at("d/f")]);
    }
    let by_kernel = {
        let kernel = KernelMount::new(&world.image(), &world.directory(), "ro,noatime");
        told(&kernel.directory)
    };
    world.mount(&["-o", "ro"]);
    let by_us = told(&world.directory());
    world.unmount();
    for (ours, kernels) in by_us.iter().zip(&by_kernel) {
        assert_eq!(ours, kernels);
    }
    assert_eq!(by_us.len(), by_kernel.len());
}

/// What was changed through the ioctls of one is what the other finds.
#[test]
fn the_kernel_finds_what_ioctls_changed() {
    let Some(world) = World::new(&needs()) else { return };
    world.mount(&[]);
    succeed(["subvolume", "create", &world.at("sv")]);
    fs::write(world.at("sv/f"), vec![5; 2 << 20]).unwrap();
    succeed(["subvolume", "snapshot", "-r", &world.at("sv"), &world.at("snap")]);
    succeed(["subvolume", "create", &world.at("gone")]);
    fs::write(world.at("gone/f"), vec![6; 2 << 20]).unwrap();
    succeed(["subvolume", "delete", &world.at("gone")]);
    succeed(["subvolume", "set-default", &world.at("sv")]);
    let root = world.directory();
    succeed(["filesystem", "label", root.to_str().unwrap(), "by us"]);
    succeed(["filesystem", "resize", "-100m", root.to_str().unwrap()]);
    fs::write(world.at("cow"), "").unwrap();
    run("chattr", &["+C", &world.at("cow")]);
    run("fstrim", &[root.to_str().unwrap()]);
    world.unmount();
    world.assert_clean();
    let kernel = KernelMount::new(&world.image(), &root, "noatime");
    // The default subvolume.
    assert_eq!(fs::read(kernel.at("f")).unwrap(), vec![5; 2 << 20]);
    drop(kernel);
    let kernel = KernelMount::new(&world.image(), &root, "subvolid=5");
    assert_eq!(fs::read(kernel.at("snap/f")).unwrap(), vec![5; 2 << 20]);
    assert!(!fs::exists(kernel.at("gone")).unwrap());
    let shown = run("btrfs", &["subvolume", "list", "-r", root.to_str().unwrap()]);
    assert!(shown.ends_with("path snap\n") && shown.lines().count() == 1, "{shown}");
    assert_eq!(run("btrfs", &["filesystem", "label", root.to_str().unwrap()]), "by us\n");
    assert!(run("lsattr", &["-d", &kernel.at("cow")]).split(' ').next().unwrap().contains('C'));
    let usage = run("btrfs", &["filesystem", "usage", "-b", root.to_str().unwrap()]);
    assert!(usage.contains(&format!("{}", 412 << 20)), "{usage}");
}

#[test]
fn our_commands_on_a_mount_of_the_kernels() {
    let Some(world) = World::new(&needs()) else { return };
    let root = world.directory();
    let kernel = KernelMount::new(&world.image(), &root, "noatime");
    let root = root.to_str().unwrap();
    succeed(["subvolume", "create", &kernel.at("sv")]);
    fs::write(kernel.at("sv/f"), "one").unwrap();
    succeed(["subvolume", "snapshot", "-r", &kernel.at("sv"), &kernel.at("snap")]);
    assert_eq!(succeed(["property", "get", &kernel.at("snap")]), "ro=true\n");
    succeed(["property", "set", &kernel.at("snap"), "ro", "false"]);
    fs::write(kernel.at("snap/f"), "two").unwrap();
    succeed(["property", "set", &kernel.at("sv/f"), "compression", "zstd"]);
    assert_eq!(succeed(["property", "get", &kernel.at("sv/f")]), "compression=zstd\n");
    succeed(["subvolume", "set-default", &kernel.at("snap")]);
    succeed(["subvolume", "set-default", root]);
    succeed(["subvolume", "delete", &kernel.at("snap")]);
    succeed(["filesystem", "label", root, "third"]);
    assert_eq!(succeed(["filesystem", "label", root]), "third\n");
    succeed(["filesystem", "sync", root]);
    succeed(["filesystem", "resize", "-64m", root]);
    for command in
        [["subvolume", "list"], ["subvolume", "show"], ["filesystem", "df"], ["filesystem", "usage"]]
    {
        fail(1, "mounted by the kernel's Btrfs", command.into_iter().chain([root]));
    }
    fail(1, "a mount of btrfs, not of Papilio", ["umount", root]);
    // An image that lies on a Btrfs is an image, not a path in a mount.
    let inner = kernel.at("inner.img");
    succeed(["mkfs", "-b", "128m", "-L", "inner", &inner]);
    assert_eq!(succeed(["filesystem", "label", &inner]), "inner\n");
    drop(kernel);
    world.assert_clean();
}

#[test]
fn several_devices() {
    let Some(world) = World::new(&needs()) else { return };
    let devices = [world.beside("a.img"), world.beside("b.img")];
    for device in &devices {
        fs::File::create(device).unwrap().set_len(300 << 20).unwrap();
    }
    let [first, second] = devices.each_ref().map(|device| device.to_str().unwrap());
    let directory = world.directory();
    let directory = directory.to_str().unwrap();
    run("mkfs.btrfs", &["-q", "-d", "raid1", "-m", "raid1", first, second]);
    fail(1, "is missing", ["mount", first, directory]);
    succeed(["mount", "--device", second, first, directory]);
    fs::write(world.at("f"), vec![9; 5 << 20]).unwrap();
    let shown = succeed(["filesystem", "show", directory]);
    assert!(shown.contains("Total devices 2") && shown.contains(first) && shown.contains(second), "{shown}");
    fail(1, "in use", ["ls", &format!("{second}:/")]);
    world.unmount();
    let option = format!("device={second}");
    succeed(["mount", "-o", &option, first, directory]);
    assert_eq!(fs::read(world.at("f")).unwrap(), vec![9; 5 << 20]);
    world.unmount();
    succeed(["check", "--check-data-csum", "--device", second, first]);
    // With one lost: for reading only, and not without a word.
    let degraded = papilio(["mount", "-o", "degraded,ro", second, directory]);
    let said = String::from_utf8_lossy(&degraded.stderr);
    assert!(degraded.status.success() && said.contains("device is missing"), "{said}");
    assert_eq!(fs::read(world.at("f")).unwrap(), vec![9; 5 << 20]);
    world.unmount();
    let refused = papilio(["mount", "-q", "-o", "degraded", second, directory]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(world.entry().is_none());
}
