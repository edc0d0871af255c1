//! A mount whose device or server fails.

use crate::world::{MOUNT, World, papilio, run, succeed, try_unmount};
use papilio_oracle::Need;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// A mount on a loop device whose file is in another mount. Dropping it takes all of it down.
struct Nested {
    device: String,
    directory: std::path::PathBuf,
}

impl Drop for Nested {
    fn drop(&mut self) {
        let _ = papilio([Path::new("umount"), "--lazy".as_ref(), &self.directory]);
        let _ = Command::new("losetup").args(["--detach", &self.device]).status();
    }
}

/// The file of the loop device is in a mount whose server is killed: the device then fails with
/// EIO, as a broken disk does.
#[test]
fn device_that_fails_makes_the_mount_read_only() {
    let Some(world) = World::new(&[MOUNT, &[Need::Command("losetup")]].concat()) else { return };
    world.mount(&[]);
    let inner = world.at("inner.img");
    File::create(&inner).unwrap().set_len(256 << 20).unwrap();
    succeed(["mkfs", &inner]);
    let directory = world.beside("nested");
    fs::create_dir(&directory).unwrap();
    let device = run("losetup", &["--find", "--show", &inner]).trim().to_owned();
    let nested = Nested { device, directory };
    let point = nested.directory.to_str().unwrap();
    succeed(["mount", &nested.device, point]);
    let path = nested.directory.join("f");
    let mut file = File::create(&path).unwrap();
    file.write_all(&[1; 100_000]).unwrap();
    file.sync_all().unwrap();
    assert!(!succeed(["filesystem", "show", point]).contains("Read-only"));

    world.kill_server();
    // The first commit meets the error.
    let failed = (0..20).any(|_| {
        let _ = file.write_all(&[2; 100_000]).and_then(|()| file.sync_all());
        !papilio(["filesystem", "sync", point]).status.success()
    });
    assert!(failed, "the device still accepts data");
    let shown = succeed(["filesystem", "show", point]);
    let line = shown.lines().find(|line| line.contains("*** Read-only: ")).expect(&shown);
    assert!(line.contains(&nested.device) && line.contains("Input/output error"), "{line}");
    let refused = fs::create_dir(nested.directory.join("d")).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem, "{refused}");
    // A file that was read before is still readable.
    assert!(fs::metadata(&path).is_ok());
    drop(file);
    let ended = try_unmount(point.as_ref());
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    drop(nested);
    world.unmount();
}

/// Deletes ten thousand files that are open, and kills the server before any is closed.
#[test]
fn open_unlinked_files_are_cleaned_after_a_kill() {
    const FILES: usize = 10_000;
    let Some(world) = World::new(&[MOUNT, &[Need::Command("btrfs")]].concat()) else { return };
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    if limit.maximum.is_some_and(|most| most < FILES as u64 + 100) {
        limit.maximum = Some(FILES as u64 + 100);
    }
    limit.current = limit.maximum;
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    world.mount(&["-o", "commit=300"]);
    let root = world.at("");
    fs::write(world.at("kept"), "kept").unwrap();
    succeed(["filesystem", "sync", &root]);
    let image = world.image();
    let orphans = || {
        let dump = succeed(["inspect", "dump-tree", "-t", "5", image.to_str().unwrap()]);
        dump.lines().filter(|line| line.contains("ORPHAN_ITEM") && line.contains("itemoff")).count()
    };
    let files: Vec<File> = (0..FILES)
        .map(|number| {
            let path = world.at(&format!("f{number}"));
            let mut file = File::create(&path).unwrap();
            file.write_all(&[number as u8; 5000]).unwrap();
            fs::remove_file(&path).unwrap();
            file
        })
        .collect();
    // Commits while all of them are open.
    succeed(["filesystem", "sync", &root]);
    world.kill_server();
    drop(files);
    // Lazily: a command that another test starts holds copies of the files until its exec.
    run("umount", &["-i", "-l", world.directory().to_str().unwrap()]);
    assert_eq!(orphans(), FILES);
    world.mount(&[]);
    assert_eq!(fs::read_dir(world.directory()).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(world.at("kept")).unwrap(), "kept");
    world.unmount();
    assert_eq!(orphans(), 0);
    world.assert_clean();
    let usage = succeed(["filesystem", "df", "--json", image.to_str().unwrap()]);
    let usage: serde_json::Value = serde_json::from_str(&usage).unwrap();
    let data = usage.as_array().unwrap().iter().find(|space| space["type"] == "Data").expect("there is data");
    assert!(data["used"].as_u64().unwrap() < 1 << 20, "{data}");
}

/// A program hears only EIO. The server's log has the operation, the inode and the reason.
#[test]
fn the_log_tells_why_a_request_failed() {
    let Some(world) = World::new(MOUNT) else { return };
    let (log, options) = (world.beside("log"), ["-o", "cache=0"]);
    world.mount(&options);
    fs::create_dir(world.at("d")).unwrap();
    let content: Vec<u8> =
        (0..65_536u32).flat_map(|word| word.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    fs::write(world.at("d/broken"), &content).unwrap();
    world.unmount();
    let mut image = fs::read(world.image()).unwrap();
    let at = image.windows(64).position(|window| window == &content[..64]).unwrap();
    image[at + 100] ^= 1;
    fs::write(world.image(), image).unwrap();
    world.mount(&["-o", "cache=0", "--log", log.to_str().unwrap()]);
    for _ in 0..30 {
        let error = fs::read(world.at("d/broken")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    }
    world.unmount();
    let said = fs::read_to_string(log).unwrap();
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("input/output error")).collect();
    assert!(
        lines[0].contains("READ of inode 258 in subvolume 5, \"d/broken\": input/output error: "),
        "{said}"
    );
    assert!(lines[0].contains("checksum"), "{said}");
    assert!(lines.len() < 15, "a broken file fills the log: {said}");
}
