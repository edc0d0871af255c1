//! The transport that serves, by the option given and the kernel's switch.

use crate::rings::serves_rings;
use crate::server::{Mount, NEEDS, check, make_image};
use crate::transport::{Switch, switch};
use papilio::{FileSystem, OpenOptions};
use papilio_fuse::{MountError, MountOptions, RingError, Session};
use papilio_oracle::{Scratch, require};

#[test]
fn auto_uses_enabled_rings() {
    let Some(_) = require(NEEDS) else { return };
    let scratch = Scratch::new(256 << 20).unwrap();
    let image = make_image(&scratch, 256 << 20);
    let mount = Mount::by_transport(&scratch, &image, "auto", switch());
    assert!(serves_rings(&mount));
    mount.unmount();
    check(&image);
}

#[test]
fn auto_uses_dev_fuse_without_rings() {
    let Some(_) = require(NEEDS) else { return };
    let scratch = Scratch::new(256 << 20).unwrap();
    let image = make_image(&scratch, 256 << 20);
    let mount = Mount::by_transport(&scratch, &image, "auto", Switch::off().unwrap());
    assert!(!serves_rings(&mount));
    mount.unmount();
    check(&image);
}

#[test]
fn disabled_rings_are_refused_before_mounting() {
    let Some(_) = require(NEEDS) else { return };
    let scratch = Scratch::new(256 << 20).unwrap();
    let image = make_image(&scratch, 256 << 20);
    let directory = scratch.unique("directory");
    std::fs::create_dir(&directory).unwrap();
    let options = MountOptions::parse("transport=ring").unwrap();
    let switch = Switch::off().unwrap();
    let fs = FileSystem::open_with(&image, &options.open).unwrap();
    let refused = Session::mount(fs, &image, &directory, &options).unwrap_err();
    drop(switch);
    assert!(matches!(refused, MountError::Ring(RingError::Off)), "{refused}");
    assert_eq!(
        refused.to_string(),
        "FUSE over io_uring is disabled in this kernel; root enables it with: \
         echo Y > /sys/module/fuse/parameters/enable_uring"
    );
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(directory.to_str().unwrap()));
    // The failure has released the image.
    FileSystem::open_with(&image, &OpenOptions::new().write(true)).unwrap().close().unwrap();
}
