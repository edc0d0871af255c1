//! A mount gives freed space back to its image file, and a server that is killed meanwhile leaves a
//! sound image.

use crate::world::{MOUNT, World, eventually, papilio, run, succeed};
use papilio_oracle::Need;
use papilio_oracle::loop_device::LoopDevice;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// Bytes of the image that the host stores.
fn stored(world: &World) -> u64 {
    fs::metadata(world.image()).unwrap().blocks() * 512
}

/// Writes a file and makes it durable.
fn write(world: &World, name: &str, mib: usize) {
    fs::write(world.at(name), vec![7; mib << 20]).unwrap();
    fs::File::open(world.at(name)).unwrap().sync_all().unwrap();
}

#[test]
fn removed_files_shrink_the_image() {
    let Some(world) = World::new(MOUNT) else { return };
    world.mount(&["-o", "commit=1"]);
    write(&world, "kept", 8);
    write(&world, "removed", 200);
    assert!(stored(&world) > 208 * MIB);
    fs::remove_file(world.at("removed")).unwrap();
    eventually("the image shrinks", || stored(&world) < 16 * MIB);
    assert!(fs::read(world.at("kept")).unwrap() == vec![7; 8 << 20]);
    world.unmount();
    let checked = papilio(["check", "--check-data-csum", world.image().to_str().unwrap()]);
    assert!(checked.status.success(), "{checked:?}");
}

#[test]
fn nodiscard_keeps_the_space() {
    let Some(world) = World::new(MOUNT) else { return };
    world.mount(&["-o", "commit=1,nodiscard"]);
    write(&world, "removed", 50);
    fs::remove_file(world.at("removed")).unwrap();
    std::thread::sleep(Duration::from_secs(6));
    assert!(stored(&world) > 50 * MIB);
    world.unmount();
}

/// A loop device passes discards on: its file gets holes, as a disk forgets blocks.
#[test]
fn a_block_device_is_told_what_is_free() {
    let needs = [MOUNT, &[Need::Loop, Need::Command("fstrim")]].concat();
    let Some(world) = World::new(&needs) else { return };
    let image = world.image();
    let stored = || stored(&world);
    let noise: Vec<u8> = (0..32 << 20).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    // mkfs discards what was there, unless told not to.
    for (option, discards) in [(Some("-K"), false), (None, true)] {
        fs::write(&image, [&noise[..], &noise].concat()).unwrap();
        fs::File::options().write(true).open(&image).unwrap().set_len(512 << 20).unwrap();
        let device = LoopDevice::attach(&image, false).unwrap();
        let path = device.path().to_str().unwrap();
        succeed(["mkfs", "-q", "-f"].into_iter().chain(option).chain([path]));
        assert_eq!(stored() < 16 * MIB, discards, "{option:?}: {} bytes are stored", stored());
    }
    let device = LoopDevice::attach(&image, false).unwrap();
    let (path, point) = (device.path().to_str().unwrap(), world.directory());
    let point = point.to_str().unwrap();
    succeed(["mount", "-o", "commit=1", path, point]);
    write(&world, "kept", 8);
    write(&world, "removed", 100);
    assert!(stored() > 108 * MIB);
    fs::remove_file(world.at("removed")).unwrap();
    eventually("the device's file shrinks", || stored() < 24 * MIB);
    world.unmount();

    succeed(["mount", "-o", "commit=1,nodiscard", path, point]);
    write(&world, "removed", 50);
    fs::remove_file(world.at("removed")).unwrap();
    std::thread::sleep(Duration::from_secs(6));
    assert!(stored() > 50 * MIB, "nodiscard");
    run("fstrim", &[point]);
    assert!(stored() < 24 * MIB, "fstrim");
    assert!(fs::read(world.at("kept")).unwrap() == vec![7; 8 << 20]);
    world.unmount();
    succeed(["check", "--check-data-csum", path]);
}

/// Discards are advice: a device that takes none stays usable.
#[test]
fn a_device_without_discards_is_used_all_the_same() {
    let Some(world) = World::new(&[MOUNT, &[Need::Loop]].concat()) else { return };
    let device = LoopDevice::attach(&world.image(), false).unwrap();
    device.forbid_discards().unwrap();
    let (path, point) = (device.path().to_str().unwrap(), world.directory());
    let point = point.to_str().unwrap();
    succeed(["mkfs", "-q", "-f", path]);
    succeed(["mount", "-o", "commit=1", path, point]);
    write(&world, "kept", 8);
    write(&world, "removed", 50);
    fs::remove_file(world.at("removed")).unwrap();
    std::thread::sleep(Duration::from_secs(6));
    write(&world, "later", 8);
    assert!(!succeed(["filesystem", "show", point]).contains("Read-only"));
    world.unmount();
    succeed(["mount", "-o", "ro", path, point]);
    assert!(fs::read(world.at("kept")).unwrap() == vec![7; 8 << 20]);
    world.unmount();
    succeed(["check", "--check-data-csum", path]);
}

/// The file system is used all the time, so that space is freed, used again and discarded.
#[test]
fn a_killed_server_leaves_a_sound_image() {
    let needs = [MOUNT, &[Need::Command("btrfs")]].concat();
    let Some(world) = World::new(&needs) else { return };
    for round in 0..5_u64 {
        world.mount(&["-o", "commit=1"]);
        write(&world, "kept", 8);
        for step in 0..10 {
            let name = format!("file {}", step % 3);
            write(&world, &name, 20 + step);
            std::thread::sleep(Duration::from_millis(200 + 90 * round));
            fs::remove_file(world.at(&name)).unwrap();
        }
        std::thread::sleep(Duration::from_millis(1500 + 400 * round));
        world.kill_server();
        let left = papilio(["umount", "--lazy", world.directory().to_str().unwrap()]);
        assert!(left.status.success(), "{left:?}");
        eventually("the mount is gone", || world.entry().is_none());
        world.assert_clean();
        let kept = papilio(["cat", &format!("{}:/kept", world.image().display())]);
        assert!(kept.stdout == vec![7; 8 << 20], "round {round}");
    }
}
