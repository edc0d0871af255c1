//! Ends of mounts: umount, signals and a killed server. The image is clean and closed afterwards.

use crate::world::{MOUNT, World, binary, eventually, fail, run, succeed, unmount};
use papilio_oracle::Need;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

#[test]
fn image_is_closed_when_umount_returns() {
    let Some(world) = World::new(&[MOUNT, &[Need::Command("btrfs")]].concat()) else { return };
    for round in 0..10 {
        world.mount(&[]);
        fs::write(world.at(&format!("f{round}")), vec![round; 3 << 20]).unwrap();
        world.unmount();
        world.assert_clean();
    }
    world.mount(&["-o", "ro"]);
    assert_eq!(fs::read_dir(world.directory()).unwrap().count(), 10);
    world.unmount();
}

/// umount(8) without a helper does not wait for the server. The next command does.
#[test]
fn commands_wait_for_the_server_of_a_mount_that_has_ended() {
    let Some(world) = World::new(MOUNT) else { return };
    let image = world.image();
    for round in 0..3 {
        world.mount(&[]);
        for number in 0..500 {
            fs::write(world.at(&format!("{round}-{number}")), vec![number as u8; 20_000]).unwrap();
        }
        run("umount", &["-i", world.directory().to_str().unwrap()]);
        let listed = succeed(["ls", &format!("{}:/", image.display())]);
        assert_eq!(listed.lines().count(), (round + 1) * 500);
    }
}

#[test]
fn umount_takes_the_image_or_is_lazy() {
    let Some(world) = World::new(MOUNT) else { return };
    world.mount(&[]);
    let open = File::create(world.at("open")).unwrap();
    fail(1, ": in use", [std::path::Path::new("umount"), &world.directory()]);
    succeed([std::path::Path::new("umount"), "--lazy".as_ref(), &world.directory()]);
    assert!(world.entry().is_none());
    (&open).write_all(b"still there").unwrap();
    drop(open);
    let image = world.image();
    eventually("the server ends after its last user", || {
        crate::world::papilio(["check", image.to_str().unwrap()]).status.success()
    });
    assert_eq!(succeed(["cat", &format!("{}:/open", image.display())]), "still there");
    world.mount(&[]);
    unmount(&image);
    assert!(world.entry().is_none());
    fail(1, "not mounted", [std::path::Path::new("umount"), &world.directory()]);
    fail(1, "mounted as proc, not by Papilio", ["umount", "/proc"]);
}

#[test]
fn fsynced_data_survives_a_killed_server() {
    let Some(world) = World::new(&[MOUNT, &[Need::Command("btrfs"), Need::Command("fusermount3")]].concat())
    else {
        return;
    };
    for by_helper in [true, false] {
        world.mount(&["-o", "commit=300"]);
        let mut file = File::create(world.at("kept")).unwrap();
        file.write_all(&vec![3; 1 << 20]).unwrap();
        file.sync_all().unwrap();
        drop(file);
        fs::write(world.at("lost-perhaps"), vec![4; 1 << 20]).unwrap();
        world.kill_server();
        fail(1, "the server of the mount has died", ["subvolume", "list", &world.at("")]);
        let (image, directory) = (world.image(), world.directory());
        fail(1, "busy", [std::path::Path::new("mount"), &image, &directory]);
        match by_helper {
            true => drop(run("fusermount3", &["-u", directory.to_str().unwrap()])),
            false => unmount(&directory),
        }
        world.assert_clean();
        world.mount(&[]);
        assert_eq!(fs::read(world.at("kept")).unwrap(), vec![3; 1 << 20]);
        world.unmount();
    }
}

#[test]
fn signal_ends_a_foreground_server() {
    let Some(world) = World::new(&[MOUNT, &[Need::Command("btrfs")]].concat()) else { return };
    for signal in ["-INT", "-TERM"] {
        let log = world.beside("log");
        let mut server = Command::new(binary())
            .args(["mount", "-f", "-v", "--log"])
            .args([&log, &world.image(), &world.directory()])
            .spawn()
            .unwrap();
        eventually("the server mounts", || world.entry().is_some());
        assert_eq!(world.server().as_raw_nonzero().get(), server.id() as i32);
        fs::write(world.at("f"), signal).unwrap();
        run("kill", &[signal, &server.id().to_string()]);
        assert!(server.wait().unwrap().success());
        assert!(world.entry().is_none());
        world.assert_clean();
        let logged = fs::read_to_string(&log).unwrap();
        assert!(logged.contains("papilio: INFO: signal"), "{logged}");
    }
    // The server also ends when another process unmounts.
    let mut server = Command::new(binary())
        .args(["mount", "--foreground"])
        .args([&world.image(), &world.directory()])
        .spawn()
        .unwrap();
    eventually("the server mounts", || world.entry().is_some());
    world.unmount();
    assert!(server.wait().unwrap().success());
}

/// An image in memory has no direct I/O. The mount works all the same, and says so.
#[test]
fn mount_says_that_direct_io_is_not_possible() {
    let Some(world) = World::new_in(std::path::Path::new("/dev/shm"), MOUNT) else { return };
    let server = Command::new(binary())
        .args(["mount", "-f", "-v", "-o", "device_io=direct"])
        .args([&world.image(), &world.directory()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("the server mounts", || world.entry().is_some());
    fs::write(world.at("f"), "text").unwrap();
    world.unmount();
    let output = server.wait_with_output().unwrap();
    assert!(output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("no direct I/O there: requests pass through the host's page cache"), "{said}");
}

/// A script that reads the command's output must see its end, although the server continues.
#[test]
fn background_server_releases_the_callers_streams() {
    let Some(world) = World::new(MOUNT) else { return };
    let mut mount = Command::new(binary())
        .arg("mount")
        .args([&world.image(), &world.directory()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    for stream in [
        Box::new(mount.stdout.take().unwrap()) as Box<dyn std::io::Read>,
        Box::new(mount.stderr.take().unwrap()),
    ] {
        assert_eq!(BufReader::new(stream).lines().count(), 0);
    }
    assert!(mount.wait().unwrap().success());
    let directory = fs::read_link(format!("/proc/{}/cwd", world.server().as_raw_nonzero())).unwrap();
    assert_eq!(directory, std::path::Path::new("/"));
    world.unmount();
}
