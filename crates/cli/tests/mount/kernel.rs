//! Comparison with the kernel's Btrfs: ioctls return the same on one image, our commands work on
//! mounts of the kernel where it has the ioctls, and its file systems on several devices can be
//! mounted.

use crate::world::{World, eventually, fail, papilio, run, succeed, unmount_kernel};
use papilio_ioctl::client::MountedPath;
use papilio_ioctl::layout::{GetSubvolInfo, IoctlTimespec};
use papilio_oracle::Need;
use std::fs;
use std::path::{Path, PathBuf};

/// A mount of the image by the kernel, through a loop device that the unmount frees.
pub struct KernelMount {
    image: PathBuf,
    directory: PathBuf,
}

impl KernelMount {
    pub fn new(image: &Path, directory: &Path, options: &str) -> Self {
        let options = format!("loop,{options}");
        run("mount", &["-t", "btrfs", "-o", &options, image.to_str().unwrap(), directory.to_str().unwrap()]);
        Self { image: image.to_path_buf(), directory: directory.to_path_buf() }
    }

    fn at(&self, path: &str) -> String {
        self.directory.join(path).to_str().unwrap().to_owned()
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(unmount_kernel(&self.directory));
            // A mount namespace of another test may keep it a little longer.
            let image = self.image.to_str().unwrap();
            eventually("the kernel frees the loop device", || run("losetup", &["-j", image]).is_empty());
        } else {
            unmount_kernel(&self.directory);
        }
    }
}

fn needs() -> Vec<Need> {
    [Need::KERNEL_MOUNT, &[Need::Fuse, Need::Command("btrfs"), Need::Command("lsattr")]].concat()
}

/// Clears the fields that a mount itself changes.
fn comparable(mut info: GetSubvolInfo) -> String {
    info.generation = 0;
    info.changed = 0;
    info.change_time = IoctlTimespec::default();
    format!("{info:?}")
}

/// Returns the answers of all ioctls, and of tools that use them.
fn ioctl_answers(root: &Path) -> Vec<String> {
    let open = |path: &str| MountedPath::open(&root.join(path)).unwrap();
    let mut lines = Vec::new();
    for path in ["", "sv", "sv/inner", "snap", "d"] {
        let path_in_mount = open(path);
        lines.push(format!("{path}: {:?}", path_in_mount.subvolume_id().unwrap()));
        lines.push(format!("{path}: {}", comparable(path_in_mount.subvolume_info().unwrap())));
        lines.push(format!("{path}: {:?}", path_in_mount.is_subvolume_root().unwrap()));
    }
    for path in ["sv", "snap"] {
        lines.push(format!("{path}: {}", open(path).is_subvolume_read_only().unwrap()));
    }
    let mut info = open("").fs_info().unwrap();
    // The kernel returns optional fields on request. FUSE does not pass the request on, so Papilio
    // returns all of them.
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
fn ioctls_answer_like_the_kernel() {
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
        ioctl_answers(&kernel.directory)
    };
    world.mount(&["-o", "ro"]);
    let by_us = ioctl_answers(&world.directory());
    world.unmount();
    for (ours, kernels) in by_us.iter().zip(&by_kernel) {
        assert_eq!(ours, kernels);
    }
    assert_eq!(by_us.len(), by_kernel.len());
}

#[test]
fn kernel_sees_changes_made_by_ioctls() {
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
fn commands_work_on_a_kernel_mount() {
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
    assert!(succeed(["subvolume", "list", root]).ends_with(" path sv\n"));
    assert!(succeed(["subvolume", "show", &kernel.at("sv")]).contains("Name: \t\t\tsv\n"));
    let shown = succeed(["filesystem", "df", "-b", root]);
    assert!(shown.starts_with("Data, single: total=") && shown.contains("Metadata, DUP: "), "{shown}");
    fail(1, "mounted as btrfs, not by Papilio", ["umount", root]);
    // An image on a Btrfs is an image, not a path in a mount.
    let inner = kernel.at("inner.img");
    succeed(["mkfs", "-b", "128m", "-L", "inner", &inner]);
    assert_eq!(succeed(["filesystem", "label", &inner]), "inner\n");
    drop(kernel);
    world.assert_clean();
}

#[test]
fn file_system_on_several_devices_is_mounted() {
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
    fail(1, "another process is using it", ["ls", &format!("{second}:/")]);
    world.unmount();
    let option = format!("device={second}");
    succeed(["mount", "-o", &option, first, directory]);
    assert_eq!(fs::read(world.at("f")).unwrap(), vec![9; 5 << 20]);
    world.unmount();
    succeed(["check", "--check-data-csum", "--device", second, first]);
    // With a missing device, the mount prints a warning, if it is asked to say more.
    let degraded = papilio(["mount", "-v", "-o", "degraded,ro", second, directory]);
    let stderr = String::from_utf8_lossy(&degraded.stderr);
    assert!(degraded.status.success() && stderr.contains("device is missing"), "{stderr}");
    assert_eq!(fs::read(world.at("f")).unwrap(), vec![9; 5 << 20]);
    world.unmount();
    // RAID1 tolerates the loss, so the mount may write too.
    let degraded = papilio(["mount", "-q", "-o", "degraded", second, directory]);
    assert!(degraded.status.success(), "{}", String::from_utf8_lossy(&degraded.stderr));
    fs::write(world.at("g"), "written on one device").unwrap();
    world.unmount();
    let read = papilio(["--degraded", "cat", &format!("{second}:/g")]);
    assert_eq!(read.stdout, b"written on one device");
    assert!(world.entry().is_none());
}
