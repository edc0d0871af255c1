//! The log of fsyncs that a killed server leaves: mounts show it or refuse, as the kernel does.

use crate::world::{MOUNT, World, papilio, succeed, unmount};
use papilio::device::{Access, Device, FileDevice};
use papilio::format::objectid;
use papilio_oracle::Need;
use std::fs::{self, File};
use std::process::Command;
use std::sync::Arc;

/// Writes old content durably, and newer content with an fsync, and kills the server.
pub fn killed() -> Option<World> {
    let world = World::new(MOUNT)?;
    world.mount(&["-o", "commit=300"]);
    fs::write(world.at("file"), "old").unwrap();
    succeed(["filesystem", "sync", &world.at("")]);
    fs::write(world.at("file"), "newer").unwrap();
    File::open(world.at("file")).unwrap().sync_all().unwrap();
    world.kill_server();
    unmount(&world.directory());
    Some(world)
}

/// Breaks a bit in each block of the logs.
fn break_log(world: &World) {
    let image = world.image();
    let read: Vec<Arc<dyn Device>> = vec![Arc::new(FileDevice::open(&image, Access::ReadOnly).unwrap())];
    let scan = papilio::scan_devices(&read, &papilio::ScanOptions::new()).unwrap();
    drop(read);
    let device = FileDevice::open(&image, Access::ReadWrite).unwrap();
    for block in scan.blocks.iter().filter(|block| block.owner == objectid::TREE_LOG) {
        let mut bytes = vec![0; scan.node_size as usize];
        device.read_at(&mut bytes, block.offset).unwrap();
        bytes[16_000] ^= 1;
        device.write_at(&bytes, block.offset).unwrap();
    }
}

/// Mounts with options. Returns the exit code, standard error, and the file in the mount.
fn mounted(world: &World, options: &str) -> (Option<i32>, String, Option<String>) {
    let (image, directory) = (world.image(), world.directory());
    let places = [image.to_str().unwrap(), directory.to_str().unwrap()];
    let output = papilio([&["mount", "-o", options][..], &places].concat());
    let content = world.entry().map(|_| fs::read_to_string(world.at("file")).unwrap());
    if content.is_some() {
        world.unmount();
    }
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned(), content)
}

#[test]
fn every_reader_shows_what_a_killed_server_had_fsynced() {
    let Some(world) = killed() else { return };
    let image = world.image();
    let image = image.to_str().unwrap();
    for options in ["ro", "ro,rescue=ignorebadroots", "ro,rescue=all", "ro,rescue=usebackuproot"] {
        let newest = (Some(0), String::new(), Some("newer".to_owned()));
        assert_eq!(mounted(&world, options), newest, "{options}");
    }
    let (code, errors, content) = mounted(&world, "ro,rescue=nologreplay");
    assert_eq!((code, content.as_deref()), (Some(0), Some("old")));
    assert!(errors.contains("not replayed, as asked") && errors.lines().count() == 1, "{errors}");
    let out = world.beside("out");
    succeed(["restore", image, out.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(out.join("file")).unwrap(), "newer");
    let clone = world.beside("clone");
    let told = succeed(["rescue", "clone", image, clone.to_str().unwrap()]);
    assert!(told.ends_with("; 0 losses\n"), "{told}");
    assert_eq!(succeed(["cat", &format!("{}:/file", clone.display())]), "newer");
}

#[test]
fn a_mount_fails_where_the_log_cannot_be_replayed_and_names_what_is_older() {
    let Some(world) = killed() else { return };
    break_log(&world);
    let (code, errors, content) = mounted(&world, "ro");
    assert_eq!((code, content), (Some(1), None), "{errors}");
    assert!(errors.contains("/file: it is older"), "{errors}");
    assert!(errors.contains("rescue=nologreplay shows the last commit"), "{errors}");
    let (code, errors, content) = mounted(&world, "ro,rescue=nologreplay");
    assert_eq!((code, content.as_deref()), (Some(0), Some("old")), "{errors}");
    let (code, errors, content) = mounted(&world, "ro,rescue=all");
    assert_eq!((code, content.as_deref()), (Some(0), Some("old")), "{errors}");
    assert!(errors.contains("cannot be replayed") && errors.contains("/file: it is older"), "{errors}");
    if papilio_oracle::require(Need::KERNEL_MOUNT).is_some() {
        let mount = |options: &str| {
            let options = format!("loop,{options}");
            let paths = [world.image(), world.directory()];
            Command::new("mount").args(["-o", &options]).args(paths).output().unwrap().status
        };
        assert!(!mount("ro").success(), "the kernel refuses as well");
        assert!(mount("ro,rescue=nologreplay").success());
        assert_eq!(fs::read_to_string(world.at("file")).unwrap(), "old");
        assert!(crate::world::unmount_kernel(&world.directory()));
    }
}
