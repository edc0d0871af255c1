//! `device add` and `remove`, `replace` and `balance` with wrong devices: one line of error, exit
//! code 1, and not a byte of any image changes.

use crate::common::{fail, succeed, succeed_text};
use crate::fixture::noise;
use papilio_oracle::{ImageSet, Need, Scratch, require};
use std::fs::{self, File};
use std::path::Path;

/// A file system on two images, another one, a small image and an empty one.
struct World {
    folder: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let world = Self { folder: tempfile::tempdir().unwrap() };
        for (name, mib) in [("a", 300), ("b", 300), ("other", 300), ("small", 1), ("empty", 300)] {
            File::create(world.path(name)).unwrap().set_len(mib << 20).unwrap();
        }
        succeed(["mkfs", "-d", "raid1", "-m", "raid1", &world.path("a"), &world.path("b")]);
        succeed(["mkfs", &world.path("other")]);
        fs::write(world.path("source"), noise(3, 3 << 20)).unwrap();
        let target = format!("{}:/file", world.path("a"));
        succeed(["cp", "--device", &world.path("b"), &world.path("source"), &target]);
        world
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn bytes(&self) -> Vec<Vec<u8>> {
        ["a", "b", "other", "small", "empty"].map(|name| fs::read(self.path(name)).unwrap()).into()
    }
}

#[test]
fn wrong_devices_change_nothing() {
    let world = World::new();
    let [a, b, other, small, empty] = ["a", "b", "other", "small", "empty"].map(|name| world.path(name));
    let before = world.bytes();
    let add = |part: &str, new: &str| fail(1, part, ["device", "add", "--device", &b, new, &a]);
    add("contains a Btrfs file system", &other);
    add("are too few", &small);
    add("no such file or device", &world.path("nowhere"));
    add("is a directory", world.folder.path().to_str().unwrap());
    let remove = |part: &str, name: &str| fail(1, part, ["device", "remove", "--device", &b, name, &a]);
    remove("is not part of the file system", "9");
    remove("is not a device of the file system", &other);
    remove("No such file", &world.path("nowhere"));
    remove("profile RAID1 needs 2 devices, and 1 would be left: convert it first", "2");
    remove("no missing devices found to remove", "missing");
    let replace =
        |part: &str, old: &str, new: &str| fail(1, part, ["replace", "start", "--device", &b, old, new, &a]);
    replace("small", "2", &small);
    replace("contains a Btrfs file system", "2", &other);
    replace("is not part of the file system", "9", &empty);
    let balance = |part: &str, words: &[&str]| {
        let words = [&["balance", "start", "--device", &b], words, &[&*a]].concat();
        fail(1, part, words);
    };
    balance("needs 4 devices, and there are 2", &["-mconvert=raid1c4"]);
    balance(
        "tolerates fewer lost devices or copies than now; --force converts nevertheless",
        &["-mconvert=single"],
    );
    balance("needs the device's id", &["-ddrange=0..1g"]);
    fail(1, "no balance is running or paused", ["balance", "resume", "--device", &b, &a]);
    fail(1, "no Btrfs", ["balance", "start", &empty]);
    // Without one of its devices.
    fail(1, "is missing", ["device", "add", &empty, &a]);
    fail(1, "is missing", ["balance", "start", &a]);
    assert!(world.bytes() == before, "an image changed");
    assert_eq!(succeed(["cat", "--device", &b, &format!("{a}:/file")]), noise(3, 3 << 20));
}

#[test]
fn a_device_is_added_once() {
    let world = World::new();
    let [a, b, empty] = ["a", "b", "empty"].map(|name| world.path(name));
    let twice = ["device", "add", "--device", &b, &empty, &empty, &a];
    fail(1, "empty: is a device of the file system already", twice);
    // The first of the two was added.
    let shown = succeed_text(["device", "usage", "--device", &b, "--device", &empty, &a]);
    assert_eq!(shown.matches("ID: ").count(), 3, "{shown}");
    let again = ["device", "add", "--device", &b, "--device", &empty, &empty, &a];
    fail(1, "empty: is a device of the file system already", again);
    fail(
        1,
        "a: is a device of the file system already",
        ["device", "add", "--device", &b, "--device", &empty, &a, &a],
    );
    fail(
        1,
        "a: is in use by the file system",
        ["replace", "start", "--device", &b, "--device", &empty, "1", &a, &a],
    );
    let all = ["check", "--check-data-csum", "--device", &b, "--device", &empty, &a];
    assert!(succeed_text(all).contains("no error found"));
}

#[test]
fn a_device_that_the_kernel_has_mounted_is_not_taken() {
    let needs = [Need::KERNEL_MOUNT, &[Need::Command("btrfs")]].concat();
    let Some(_met) = require(&needs) else { return };
    let world = World::new();
    let [a, b, other] = ["a", "b", "other"].map(|name| world.path(name));
    let scratch = Scratch::new(1 << 20).unwrap();
    let mounted = ImageSet::open(&scratch, vec![Path::new(&other).to_path_buf()]).mount().unwrap();
    for force in [&["-f"][..], &[]] {
        let add = [&["device", "add", "--device", &b], force, &[&*other, &*a]].concat();
        fail(1, "mounted", add);
        let replace = [&["replace", "start", "--device", &b], force, &["2", &*other, &*a]].concat();
        fail(1, "mounted", replace);
    }
    mounted.unmount().unwrap();
    succeed(["device", "add", "-f", "--device", &b, &other, &a]);
}
