//! Work that takes long on mounts of the kernel's Btrfs: balance, scrub, and changes of devices.

use crate::common::binary;
use crate::kernel::KernelMount;
use crate::world::{World, check_failure, fail, papilio, run, succeed, unmount_kernel};
use papilio::device::{Access, Device, FileDevice};
use papilio::{BalanceControl, BalanceFilter, BalanceOptions, FileSystem, OpenOptions};
use papilio_ioctl::client::MountedPath;
use papilio_oracle::Need;
use papilio_oracle::loop_device::LoopDevice;
use std::fs;
use std::process::{Command, Output};
use std::sync::Arc;

pub fn needs() -> Vec<Need> {
    [Need::KERNEL_MOUNT, &[Need::Command("btrfs")]].concat()
}

/// Fills an image, and leaves a balance of it in the middle.
fn pause_in_the_middle(world: &World) {
    let fs = FileSystem::open_with(world.image(), &OpenOptions::new().write(true)).unwrap();
    for number in 0..40u8 {
        fs.write(format!("/file {number}"), vec![number; 1 << 20]).unwrap();
    }
    fs.sync().unwrap();
    let all = Some(BalanceFilter::default());
    let options = BalanceOptions { data: all.clone(), metadata: all, ..BalanceOptions::default() };
    fs.balance(&options, |report| match report.bytes {
        0 => BalanceControl::Continue,
        _ => BalanceControl::Pause,
    })
    .unwrap();
    assert!(fs.stored_balance().unwrap().is_some(), "the balance was over before it could be paused");
    fs.close().unwrap();
}

fn assert_files(world: &World) {
    for number in 0..40u8 {
        assert_eq!(fs::read(world.at(&format!("file {number}"))).unwrap(), vec![number; 1 << 20]);
    }
}

#[test]
fn a_balance_of_ours_is_shown_resumed_and_cancelled_on_a_kernel_mount() {
    let Some(world) = World::new(&needs()) else { return };
    let root = world.directory();
    let shown = root.to_str().unwrap();
    for end in ["resume", "cancel"] {
        pause_in_the_middle(&world);
        let kernel = KernelMount::new(&world.image(), &root, "noatime,skip_balance");
        assert_files(&world);
        let status = papilio(["balance", "status", shown]);
        assert_eq!(status.status.code(), Some(2), "{status:?}");
        assert!(String::from_utf8_lossy(&status.stdout).contains("is paused"), "{status:?}");
        fail(1, "another operation runs, or a balance is paused", ["balance", "start", shown]);
        fail(1, "another operation runs, or a balance is paused", ["balance", "start", "--bg", shown]);
        let done = succeed(["balance", end, shown]);
        assert_eq!(done.starts_with("Done, had to relocate"), end == "resume", "{done}");
        assert!(succeed(["balance", "status", shown]).starts_with("No balance found"));
        assert_files(&world);
        for command in ["pause", "cancel", "resume"] {
            fail(1, "a balance is not running", ["balance", command, shown]);
        }
        assert!(succeed(["balance", "start", "-dusage=100", shown]).starts_with("Done, had to relocate"));
        assert_files(&world);
        drop(kernel);
        world.assert_clean();
    }
}

/// Runs a scrub command, whose state is kept beside the image.
pub fn scrub(world: &World, arguments: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.env("XDG_STATE_HOME", world.beside("state")).arg("scrub").args(arguments);
    command.arg(world.directory()).output().unwrap()
}

#[test]
fn a_kernel_mount_is_scrubbed() {
    let Some(world) = World::new(&needs()) else { return };
    let root = world.directory();
    let kernel = KernelMount::new(&world.image(), &root, "noatime");
    for number in 0..20u8 {
        fs::write(world.at(&format!("file {number}")), vec![number; 1 << 20]).unwrap();
    }
    succeed(["filesystem", "sync", root.to_str().unwrap()]);
    check_failure(&scrub(&world, &["cancel"]), 2, "no scrub is running");
    let done = scrub(&world, &["start", "-B"]);
    assert!(done.status.success(), "{done:?}");
    assert!(String::from_utf8_lossy(&done.stdout).contains("finished"), "{done:?}");
    let status = scrub(&world, &["status", "-R"]);
    let text = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(text.contains(&format!("data_bytes_scrubbed: {}", 20 << 20)), "{text}");
    check_failure(&scrub(&world, &["resume"]), 2, "there is no scrub to resume");
    drop(kernel);
    world.assert_clean();
}

#[test]
fn devices_of_a_kernel_mount_are_added_replaced_and_removed() {
    let Some(world) = World::new(&needs()) else { return };
    let image = |name: &str, size: u64| {
        let path = world.beside(name);
        fs::File::create(&path).unwrap().set_len(size).unwrap();
        path
    };
    let plain = image("plain.img", 300 << 20);
    let loops = [300u64, 400, 100]
        .map(|size| LoopDevice::attach(&image(&format!("{size}.img"), size << 20), false).unwrap());
    let [second, third, small] = loops.each_ref().map(|device| device.path().to_str().unwrap());
    let root = world.directory();
    let kernel = KernelMount::new(&world.image(), &root, "noatime");
    let root = root.to_str().unwrap();
    for number in 0..40u8 {
        fs::write(world.at(&format!("file {number}")), vec![number; 1 << 20]).unwrap();
    }
    fail(1, "is not a block device", ["device", "add", plain.to_str().unwrap(), root]);
    succeed(["mkfs", "-q", second]);
    fail(1, "contains a Btrfs file system", ["device", "add", second, root]);
    assert!(succeed(["device", "add", "-f", second, root]).contains("was added"));
    // Copies on both devices would leave the kernel no room to set a block group read-only.
    succeed(["balance", "start", "-f", "-dconvert=single", "-mconvert=single", root]);

    fail(1, "the file system needs", ["replace", "start", "2", small, root]);
    fail(1, "is not a device of the file system", ["replace", "start", "7", third, root]);
    assert!(succeed(["replace", "start", "2", third, root]).contains("device 2: finished"));
    assert!(succeed(["replace", "status", root]).contains("finished"));
    fail(1, "is not running", ["replace", "cancel", root]);

    fail(1, "is not running", ["device", "remove", "cancel", root]);
    assert_eq!(succeed(["device", "remove", third, root]), "device 2 removed\n");
    assert_files(&world);
    drop(kernel);
    world.assert_clean();
}

/// The usage of space that the kernel's ioctls tell is the one on its devices.
#[test]
fn the_usage_of_a_kernel_mount_is_that_of_its_devices() {
    let Some(world) = World::new(&needs()) else { return };
    let loops = [300u64, 400, 350].map(|mib| {
        let path = world.beside(&format!("{mib}.img"));
        fs::File::create(&path).unwrap().set_len(mib << 20).unwrap();
        LoopDevice::attach(&path, false).unwrap()
    });
    let paths = loops.each_ref().map(|device| device.path().to_str().unwrap());
    let root = world.directory();
    let shown = root.to_str().unwrap();
    for (data, metadata) in [("raid5", "raid1"), ("raid0", "raid1c3"), ("single", "dup")] {
        succeed([&["mkfs", "-q", "-f", "-d", data, "-m", metadata], &paths[..]].concat());
        let devices = format!("noatime,device={},device={}", paths[1], paths[2]);
        run("mount", &["-t", "btrfs", "-o", &devices, paths[0], shown]);
        for number in 0..30u8 {
            fs::write(root.join(format!("file {number}")), vec![number; 1 << 20]).unwrap();
        }
        succeed(["filesystem", "sync", shown]);
        let mount = MountedPath::open(&root).unwrap();
        let told = mount.usage().unwrap();
        drop(mount);
        let device_usage = succeed(["device", "usage", shown]);
        let usage = succeed(["filesystem", "usage", "-T", shown]);
        assert!(succeed(["filesystem", "show", shown]).contains("Total devices 3"));
        assert!(succeed(["device", "stats", shown]).contains(".write_io_errs"), "{device_usage}");
        assert!(unmount_kernel(&root));
        let images =
            paths.map(|path| Arc::new(FileDevice::open(path, Access::ReadOnly).unwrap()) as Arc<dyn Device>);
        let fs = FileSystem::from_devices(images.to_vec(), &OpenOptions::new()).unwrap();
        let found = fs.usage().unwrap();
        assert_eq!(told.devices, found.devices, "{data}");
        for (told, found) in told.spaces.iter().zip(&found.spaces) {
            assert_eq!((told.kind, told.profile), (found.kind, found.profile), "{data}");
            assert_eq!((told.total, told.used), (found.total, found.used), "{data}");
            assert_eq!(told.raw_total, found.raw_total, "{data}");
            assert!(told.raw_used.abs_diff(found.raw_used) < 100, "{data}");
        }
        assert_eq!(told.spaces.len(), found.spaces.len(), "{data}");
        for (path, device) in paths.iter().zip(&found.devices) {
            assert!(device_usage.contains(&format!("{path}, ID: {}", device.devid)), "{device_usage}");
            assert!(usage.contains(path), "{usage}");
        }
    }
    run("btrfs", &["device", "scan", "--forget"]);
}
