//! A mount gives freed space back to its image file, and a server that is killed meanwhile leaves a
//! sound image.

use crate::world::{MOUNT, World, eventually, papilio};
use papilio_oracle::Need;
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
