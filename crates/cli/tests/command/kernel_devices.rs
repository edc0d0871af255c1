//! The kernel hears of the block devices that a command makes or changes, so that a mount of one
//! device finds the others without udev.

use crate::common::{fail, succeed};
use papilio_oracle::loop_device::LoopDevice;
use papilio_oracle::mount::Mount;
use papilio_oracle::{Need, Scratch, require};
use std::path::Path;

/// Lets the kernel mount a file system by one device only.
fn mounts(scratch: &Scratch, device: &Path) -> bool {
    // Dropping the mount unmounts.
    Mount::btrfs(scratch, device, "", true).is_ok()
}

#[test]
fn the_kernel_hears_of_devices_that_are_made_changed_and_removed() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    let attach = |name: &str| {
        let image = scratch.image(name, 300 << 20).unwrap();
        LoopDevice::attach(&image, false).unwrap()
    };
    let (a, b, c) = (attach("a"), attach("b"), attach("c"));
    let names = [&a, &b, &c].map(|device| device.path().to_str().unwrap().to_owned());
    let [first, second, third] = names.each_ref().map(String::as_str);

    succeed(["mkfs", "-q", "-draid1", "-mraid1", first, second]);
    assert!(mounts(&scratch, a.path()), "after mkfs");
    succeed(["device", "ready", first]);

    // Without being told, the kernel knows one device at most.
    for device in [first, second] {
        succeed(["device", "scan", "--forget", device]);
    }
    assert!(!mounts(&scratch, a.path()), "after the kernel forgot the devices");
    fail(1, "does not know all 2 devices", ["device", "ready", first]);
    succeed(["device", "scan", first, second]);
    succeed(["device", "ready", first]);
    assert!(mounts(&scratch, a.path()), "after a scan");

    succeed(["device", "add", third, first]);
    assert!(mounts(&scratch, b.path()), "after device add");
    succeed(["device", "remove", second, first]);
    assert!(mounts(&scratch, c.path()), "after device remove");

    succeed(["tune", "-m", first, third]);
    assert!(mounts(&scratch, a.path()), "after tune");
    succeed(["replace", "start", third, second, first]);
    assert!(mounts(&scratch, b.path()), "after replace");

    // The command names the file system by the very device that it gives up.
    succeed(["replace", "start", "1", third, first]);
    assert!(mounts(&scratch, c.path()), "after the replacement of the named device");
    succeed(["device", "add", "--force", first, third]);
    succeed(["device", "remove", first, first]);
    assert!(mounts(&scratch, b.path()), "after the removal of the named device");
    succeed(["replace", "start", "1", first, third]);

    let dump = scratch.path().join("dump");
    let dump = dump.to_str().unwrap();
    succeed(["image", "dump", first, dump]);
    succeed(["image", "restore", "--force", "--multi", dump, second, third]);
    assert!(mounts(&scratch, c.path()), "after image restore");
    for device in [first, second, third] {
        succeed(["device", "scan", "--forget", device]);
    }
}

#[test]
fn forgetting_names_block_devices_only() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    if Path::new("/dev/btrfs-control").exists() {
        fail(1, "is not a block device", ["device", "scan", "--forget", path]);
    }
}
