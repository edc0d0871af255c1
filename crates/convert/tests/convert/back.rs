//! The way back: after changes, and when it must be refused.

use super::fill::{bytes, everything};
use super::world::{NEEDS, World, run};
use papilio_oracle::require;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

fn converted() -> Option<World> {
    let _met = require(NEEDS)?;
    let world = World::new("-t ext4 -b 4096", 300, everything);
    world.convert();
    Some(world)
}

/// Changes the file system through the kernel's mount.
fn change(world: &World, change: impl FnOnce(&Path)) {
    let (mount, _loop) = world.mount_btrfs(false);
    change(mount.path());
    mount.sync().unwrap();
}

#[test]
fn files_that_were_added_and_deleted_do_not_matter() {
    let Some(world) = converted() else { return };
    change(&world, |root| {
        fs::remove_dir_all(root.join("names")).unwrap();
        fs::remove_dir_all(root.join("fragmented")).unwrap();
        fs::write(root.join("sizes/large"), bytes(1, 10 << 20)).unwrap();
        for at in 0..200 {
            fs::write(root.join(format!("new {at}")), bytes(at, 300_000)).unwrap();
        }
    });
    for pass in 0..3 {
        change(&world, |root| {
            for at in (pass..200).step_by(5) {
                fs::remove_file(root.join(format!("new {at}"))).unwrap();
            }
            fs::write(root.join(format!("again {pass}")), bytes(pass, 5 << 20)).unwrap();
        });
    }
    world.check_btrfs();
    let back = world.roll_back().unwrap();
    assert_eq!(back.variant, "ext4");
    world.check_back();
    // And once more, to and fro.
    world.convert();
    world.compare_btrfs(&[]);
}

#[test]
fn a_deleted_image_is_named() {
    let Some(world) = converted() else { return };
    change(&world, |root| {
        run("btrfs", &["subvolume", "delete", root.join("ext2_saved").to_str().unwrap()]);
    });
    let text = world.roll_back().unwrap_err().to_string();
    assert!(text.contains("there is no ext2_saved/image"), "{text}");
    world.check_btrfs();
}

#[test]
fn all_space_of_deleted_files_is_free_without_the_image() {
    let Some(world) = converted() else { return };
    let used = |root: &Path| {
        let text = run("btrfs", &["filesystem", "df", "-b", root.to_str().unwrap()]);
        let line = text.lines().find(|line| line.starts_with("Data")).unwrap().to_owned();
        line.split("used=").nth(1).unwrap().parse::<u64>().unwrap()
    };
    change(&world, |root| {
        run("btrfs", &["subvolume", "delete", "-c", root.join("ext2_saved").to_str().unwrap()]);
        for entry in fs::read_dir(root).unwrap().map(Result::unwrap) {
            if entry.path().is_dir() {
                fs::remove_dir_all(entry.path()).unwrap()
            }
        }
        run("btrfs", &["subvolume", "sync", root.to_str().unwrap()]);
    });
    // A second mount: the first one's cleaner may not have been done.
    change(&world, |root| {
        run("btrfs", &["filesystem", "sync", root.to_str().unwrap()]);
        assert_eq!(used(root), 0);
    });
    world.check_btrfs();
}

#[test]
fn moved_data_is_refused() {
    let Some(world) = converted() else { return };
    change(&world, |root| {
        run("btrfs", &["balance", "start", "-d", root.to_str().unwrap()]);
    });
    let text = world.roll_back().unwrap_err().to_string();
    assert!(text.contains("lies elsewhere on the device"), "{text}");
    world.check_btrfs();
}

#[test]
fn a_damaged_image_is_refused() {
    let Some(world) = converted() else { return };
    // A byte of a file, where it always was.
    let text = {
        let (mount, _loop) = world.mount_btrfs(true);
        run("filefrag", &["-v", "-b4096", mount.path().join("sizes/large").to_str().unwrap()])
    };
    let places =
        text.lines().filter_map(|line| line.split(':').nth(2)?.split("..").next()?.trim().parse().ok());
    let place: u64 = places.into_iter().next().map(|block: u64| block * 4096).unwrap();
    let mut byte = [0];
    let file = fs::OpenOptions::new().read(true).write(true).open(&world.image).unwrap();
    file.read_exact_at(&mut byte, place).unwrap();
    file.write_all_at(&[byte[0] ^ 1], place).unwrap();
    let text = world.roll_back().unwrap_err().to_string();
    assert!(text.contains("the image cannot be read"), "{text}");
}
