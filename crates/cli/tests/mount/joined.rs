//! One file system mounted several times, and mounts that become read-only or writable.

use crate::world::{MOUNT, World, eventually, fail, papilio, run, succeed, unmount};
use papilio_ioctl::client::MountedPath;
use papilio_ioctl::mount_table::MountEntry;
use papilio_oracle::Need;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A further mount point, unmounted at the end.
pub struct Second(pub PathBuf);

impl Second {
    pub fn new(world: &World, name: &str) -> Self {
        let directory = world.beside(name);
        fs::create_dir(&directory).unwrap();
        Self(directory)
    }

    pub fn mount(&self, world: &World, options: &str) {
        succeed([Path::new("mount"), "-o".as_ref(), options.as_ref(), &world.image(), &self.0]);
    }

    pub fn fails(&self, world: &World, options: &str, message: &str) {
        fail(1, message, [Path::new("mount"), "-o".as_ref(), options.as_ref(), &world.image(), &self.0]);
        assert!(MountEntry::of_papilio_on(&self.0).unwrap().is_none());
    }

    pub fn unmount(&self) {
        unmount(&self.0);
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        if let Ok(Some(_)) = MountEntry::of_papilio_on(&self.0) {
            let _ = papilio([Path::new("umount"), "--lazy".as_ref(), &self.0]);
        }
    }
}

/// Returns the error number of a failed call.
pub fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// EROFS.
pub const READ_ONLY: Option<i32> = Some(rustix::io::Errno::ROFS.raw_os_error());

#[test]
fn second_mount_joins_the_server() {
    let Some(world) = World::new(MOUNT) else { return };
    world.mount(&[]);
    succeed(["subvolume", "create", &world.at("sub")]);
    succeed(["subvolume", "create", &world.at("sub/inner")]);
    fs::write(world.at("top"), "top").unwrap();
    let server = world.server();
    let (all, sub, inner) =
        (Second::new(&world, "all"), Second::new(&world, "sub"), Second::new(&world, "inner"));
    all.mount(&world, "ro");
    sub.mount(&world, "subvol=sub,noatime");
    let id = MountedPath::open(Path::new(&world.at("sub/inner"))).unwrap().subvolume_id().unwrap();
    inner.mount(&world, &format!("subvolid={id},subvol=/sub/inner"));
    for second in [&all, &sub, &inner] {
        assert_eq!(MountedPath::open(&second.0).unwrap().server().unwrap().pid, Some(server));
    }
    // All mounts show a change at once.
    fs::write(sub.at("f"), "from sub").unwrap();
    assert_eq!(fs::read_to_string(all.at("sub/f")).unwrap(), "from sub");
    fs::write(world.at("sub/f"), "from the first").unwrap();
    assert_eq!(fs::read_to_string(sub.at("f")).unwrap(), "from the first");
    fs::write(inner.at("deep"), "deep").unwrap();
    assert_eq!(
        fs::metadata(world.at("sub/inner/deep")).unwrap().ino(),
        fs::metadata(inner.at("deep")).unwrap().ino()
    );
    // ro is of one mount.
    assert_eq!(errno(fs::write(all.at("x"), "")), READ_ONLY);
    fs::write(world.at("x"), "").unwrap();
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(
        table.lines().any(|line| line.contains(sub.0.to_str().unwrap()) && line.contains("noatime")),
        "{table}"
    );
    // Wrong wishes.
    let other = Second::new(&world, "other");
    other.fails(&world, "subvol=nowhere", "no such subvolume: nowhere");
    other.fails(&world, "subvolid=999", "no such subvolume: 999");
    other.fails(&world, "subvolid=5,subvol=sub", "mount options subvol and subvolid conflict");
    other.fails(&world, "uid=7", "must be the same");
    // The first mount may end before the others.
    world.unmount();
    all.unmount();
    assert_eq!(fs::read_to_string(sub.at("f")).unwrap(), "from the first");
    fs::write(sub.at("late"), "late").unwrap();
    // A further one still joins, also one that shows more than those that are left.
    other.mount(&world, "subvol=sub/inner");
    assert_eq!(fs::read_to_string(other.at("deep")).unwrap(), "deep");
    other.unmount();
    other.mount(&world, "subvolid=5");
    assert_eq!(fs::read_to_string(other.at("sub/late")).unwrap(), "late");
    other.unmount();
    sub.unmount();
    inner.unmount();
    world.assert_clean();
    assert_eq!(succeed(["cat", &format!("{}:/sub/late", world.image().display())]), "late");
}

#[test]
fn signal_ends_all_mounts_of_a_server() {
    let Some(world) = World::new(MOUNT) else { return };
    world.mount(&[]);
    let second = Second::new(&world, "second");
    second.mount(&world, "ro");
    fs::write(world.at("f"), "content").unwrap();
    let process = MountedPath::open(&second.0).unwrap().server_process().unwrap().unwrap();
    world.unmount();
    rustix::process::pidfd_send_signal(&process, rustix::process::Signal::TERM).unwrap();
    eventually("the second mount ends", || MountEntry::of_papilio_on(&second.0).unwrap().is_none());
    let mut ends = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut ends, None).unwrap();
    world.assert_clean();
}

#[test]
fn mount_becomes_read_only_and_writable_again() {
    let Some(world) = World::new(&[MOUNT, &[Need::Command("btrfs")]].concat()) else { return };
    world.mount(&[]);
    let (image, directory) = (world.image(), world.directory());
    let remount =
        |options: &str| papilio([Path::new("mount"), "-o".as_ref(), options.as_ref(), &image, &directory]);
    fs::write(world.at("f"), vec![7; 3 << 20]).unwrap();
    succeed(["subvolume", "create", &world.at("sub")]);
    let open = fs::File::options().write(true).open(world.at("f")).unwrap();
    crate::world::check_failure(&remount("remount,ro"), 1, "in use: files are open for writing");
    fs::write(world.at("g"), "still writable").unwrap();
    drop(open);
    assert!(remount("remount,ro").status.success());
    assert_eq!(errno(fs::write(world.at("x"), "")), READ_ONLY);
    assert_eq!(errno(fs::remove_file(world.at("f"))), READ_ONLY);
    assert_eq!(fs::read(world.at("f")).unwrap().len(), 3 << 20);
    // The kernel does not check FUSE's ioctls: the server does.
    for command in [
        &["subvolume", "create", &world.at("new")][..],
        &["subvolume", "delete", &world.at("sub")],
        &["filesystem", "label", &world.at(""), "x"],
        &["property", "set", &world.at("sub"), "ro", "true"],
    ] {
        fail(1, "is read-only", command);
    }
    // Everything is in the image: a copy of it, taken under the mount, is complete.
    let copy = world.beside("copy.img");
    fs::copy(&image, &copy).unwrap();
    run("btrfs", &["check", "--check-data-csum", copy.to_str().unwrap()]);
    assert_eq!(succeed(["cat", &format!("{}:/g", copy.display())]), "still writable");
    assert!(remount("remount,rw").status.success());
    fs::write(world.at("x"), "again").unwrap();
    succeed(["subvolume", "create", &world.at("new")]);
    crate::world::check_failure(
        &papilio([Path::new("mount"), "-o".as_ref(), "remount,ro".as_ref(), &image, &world.beside("")]),
        1,
        "nothing to remount",
    );
    world.unmount();
    world.assert_clean();
    assert_eq!(succeed(["cat", &format!("{}:/x", image.display())]), "again");
}
