//! Redundancy that degraded writing took away: commands and mounts say so, and name the balance
//! that gives it back.

use crate::kernel::KernelMount;
use crate::kernel_jobs::needs;
use crate::world::{MOUNT, World, papilio, succeed};
use papilio_oracle::loop_device::LoopDevice;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn warned(output: &Output) -> bool {
    assert!(output.status.success(), "{output:?}");
    let errors = String::from_utf8_lossy(&output.stderr);
    errors.contains(" of data are single beside raid1")
        && errors.contains("balance start -dconvert=raid1,soft")
}

/// A RAID1 file system whose second device is lost, and which holds more than mirrored chunks have
/// room for.
struct Degraded {
    world: World,
    first: String,
    new: String,
}

impl Degraded {
    fn new(world: World) -> Self {
        let images = ["a.img", "b.img", "new.img"].map(|name| world.beside(name));
        for image in &images {
            fs::File::create(image).unwrap().set_len(1 << 30).unwrap();
        }
        let [first, second, new] = images.map(|image| image.to_str().unwrap().to_owned());
        let directory = world.directory();
        succeed(["mkfs", "-q", "-f", "-d", "raid1", "-m", "raid1", &first, &second]);
        fs::remove_file(second).unwrap();
        assert!(papilio(["mount", "-o", "degraded", &first, directory.to_str().unwrap()]).status.success());
        fs::write(world.at("f"), vec![7; 500 << 20]).unwrap();
        Self { world, first, new }
    }

    /// Every byte has two copies, the kernel reads all, and `btrfs check` finds nothing.
    fn assert_restored(&self) {
        assert!(!warned(&papilio(["filesystem", "df", "--device", &self.new, &self.first])));
        succeed(["check", "--check-data-csum", "--device", &self.new, &self.first]);
        let loops =
            [&self.first, &self.new].map(|image| LoopDevice::attach(Path::new(image), false).unwrap());
        let checked = Command::new("btrfs").args(["check", "--readonly"]).arg(loops[0].path()).output();
        let checked = checked.unwrap();
        assert!(checked.status.success(), "{checked:?}");
        let directory = self.world.directory();
        let member = format!("ro,device={}", loops[0].path().display());
        let kernel = KernelMount::new(loops[1].path(), &directory, &member);
        assert!(fs::read(self.world.at("f")).unwrap() == vec![7; 500 << 20]);
        drop(kernel);
    }
}

#[test]
fn a_replacement_of_an_image_restores_redundancy() {
    let Some(world) = World::new(&[MOUNT, &needs()].concat()) else { return };
    let degraded = Degraded::new(world);
    degraded.world.unmount();
    let (first, new) = (&degraded.first, &degraded.new);
    let restored = papilio(["replace", "start", "--restore-redundancy", "--degraded", "2", new, first]);
    let said = String::from_utf8_lossy(&restored.stdout);
    assert!(restored.status.success() && said.contains("Done, had to relocate"), "{restored:?}");
    degraded.assert_restored();
}

#[test]
fn a_replacement_of_a_mount_restores_redundancy() {
    let Some(world) = World::new(&[MOUNT, &needs()].concat()) else { return };
    let degraded = Degraded::new(world);
    let directory = degraded.world.directory();
    let directory = directory.to_str().unwrap();
    let said = succeed(["replace", "start", "--restore-redundancy", "2", &degraded.new, directory]);
    assert!(said.contains("Done, had to relocate"), "{said}");
    degraded.world.unmount();
    degraded.assert_restored();
}

#[test]
fn the_removal_of_a_missing_device_restores_redundancy() {
    let Some(world) = World::new(&[MOUNT, &needs()].concat()) else { return };
    let degraded = Degraded::new(world);
    let directory = degraded.world.directory();
    let directory = directory.to_str().unwrap();
    succeed(["device", "add", &degraded.new, directory]);
    let said = succeed(["device", "remove", "--restore-redundancy", "missing", directory]);
    assert!(said.contains("Done, had to relocate"), "{said}");
    degraded.world.unmount();
    degraded.assert_restored();
}

/// The same work on a mount of the kernel's: it warns, or restores.
#[test]
fn a_replacement_of_a_kernel_mount_warns_or_restores() {
    let Some(world) = World::new(&[MOUNT, &needs()].concat()) else { return };
    for restores in [false, true] {
        let images = ["a", "b", "new"].map(|name| world.beside(&format!("{name}-{restores}")));
        for image in &images {
            fs::File::create(image).unwrap().set_len(1 << 30).unwrap();
        }
        let attach = |image: &PathBuf| LoopDevice::attach(image, false).unwrap();
        let (first, second) = (attach(&images[0]), attach(&images[1]));
        let [one, two] = [&first, &second].map(|device| device.path().to_str().unwrap());
        succeed(["mkfs", "-q", "-f", "-d", "raid1", "-m", "raid1", one, two]);
        succeed(["device", "scan", "--forget", two]);
        drop(second);
        let new = attach(&images[2]);
        let directory = world.directory();
        let kernel = KernelMount::new(first.path(), &directory, "degraded");
        fs::write(world.at("f"), vec![7; 300 << 20]).unwrap();
        let (target, root) = (new.path().to_str().unwrap(), directory.to_str().unwrap());
        if restores {
            succeed(["replace", "start", "--restore-redundancy", "2", target, root]);
        } else {
            assert!(warned(&papilio(["replace", "start", "2", target, root])));
        }
        assert_eq!(warned(&papilio(["filesystem", "df", root])), !restores);
        assert!(fs::read(world.at("f")).unwrap() == vec![7; 300 << 20]);
        drop(kernel);
    }
}

#[test]
fn chunks_of_degraded_writing_are_named_until_a_balance() {
    let Some(world) = World::new(MOUNT) else { return };
    let images = ["a.img", "b.img", "new.img"].map(|name| world.beside(name));
    for image in &images {
        fs::File::create(image).unwrap().set_len(1 << 30).unwrap();
    }
    let [first, second, new] = images.each_ref().map(|image| image.to_str().unwrap());
    let directory = world.directory();
    let directory = directory.to_str().unwrap();
    succeed(["mkfs", "-q", "-f", "-d", "raid1", "-m", "raid1", first, second]);
    assert!(!warned(&papilio(["filesystem", "df", "--device", second, first])));
    fs::remove_file(second).unwrap();
    assert!(papilio(["mount", "-o", "degraded", first, directory]).status.success());
    // More than the mirrored chunks have room for.
    fs::write(world.at("f"), vec![7; 500 << 20]).unwrap();
    world.unmount();
    let replaced = papilio(["replace", "start", "--degraded", "2", new, first]);
    assert!(warned(&replaced), "{replaced:?}");
    for command in [
        &["filesystem", "df", "--device", new, first][..],
        &["filesystem", "usage", "--device", new, first],
        &["mount", "--device", new, first, directory],
        &["filesystem", "df", directory],
        &["filesystem", "usage", directory],
    ] {
        let output = papilio(command);
        assert!(warned(&output), "{command:?}: {output:?}");
    }
    succeed(["balance", "start", "-dconvert=raid1,soft", "-mconvert=raid1,soft", directory]);
    assert!(!warned(&papilio(["filesystem", "df", directory])));
    assert!(fs::read(world.at("f")).unwrap() == vec![7; 500 << 20]);
    world.unmount();
    succeed(["check", "--device", new, first]);
}
