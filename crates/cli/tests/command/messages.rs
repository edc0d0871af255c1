//! Messages: each names the reason, the place and the way out, once and in one line.

use crate::common::{command, fail, link_names, papilio, succeed, text};
use papilio_oracle::loop_device::LoopDevice;
use papilio_oracle::{Need, require};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Output;

/// A folder with images.
struct World {
    folder: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn image(&self, name: &str, mib: u64) -> String {
        let path = self.path(name);
        File::create(&path).unwrap().set_len(mib << 20).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Makes a file of the host.
    fn file(&self, name: &str, mib: usize) -> String {
        let path = self.path(name);
        fs::write(&path, vec![mib as u8; mib << 20]).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

fn errors_of(output: &Output) -> String {
    text(&output.stderr)
}

fn lines_with(text: &str, part: &str) -> usize {
    text.lines().filter(|line| line.contains(part)).count()
}

#[test]
fn a_lost_range_is_one_line() {
    let world = World::new();
    let (first, second) = (world.image("first", 400), world.image("second", 400));
    succeed(["mkfs", "-q", "-d", "single", "-m", "raid1", &first, &second]);
    for name in ["f1", "f2", "f3", "f4"] {
        let file = world.file(name, 60);
        succeed(["--device", &second, "cp", &file, &format!("{first}:/")]);
    }
    fs::remove_file(&second).unwrap();
    let (out, clone, archive) = (world.path("out"), world.path("clone"), world.path("a.tar"));
    let top = format!("{first}:/");
    for command in [
        vec!["--degraded", "restore", &first, out.to_str().unwrap()],
        vec!["--degraded", "rescue", "clone", &first, clone.to_str().unwrap()],
        vec!["--degraded", "cp", "-r", &top, archive.to_str().unwrap()],
    ] {
        let output = papilio(&command);
        let errors = errors_of(&output);
        assert_eq!(output.status.code(), Some(1), "{command:?}: {errors}");
        let incomplete: Vec<_> =
            (1..5).filter(|number| errors.contains(&format!("/f{number}: bytes "))).collect();
        assert!(!incomplete.is_empty(), "{command:?}: {errors}");
        for number in incomplete {
            let named = lines_with(&errors, &format!("/f{number}: bytes "));
            assert_eq!(named, 1, "{command:?}: {errors}");
        }
        // The same warning is said once.
        assert_eq!(lines_with(&errors, "a device is missing devid=2"), 1, "{command:?}: {errors}");
        // It is open in degraded mode already.
        assert!(!errors.contains("degraded mode"), "{command:?}: {errors}");
    }
    fail(1, "is missing: name its path with --device, or read without it with --degraded", ["ls", &top]);
}

#[test]
fn a_spare_that_is_too_small_names_the_size_it_needs() {
    let world = World::new();
    let (first, second, spare) =
        (world.image("first", 300), world.image("second", 300), world.image("spare", 200));
    succeed(["mkfs", "-q", "-d", "raid1", "-m", "raid1", &first, &second]);
    let needs = format!("at least {}", 300 << 20);
    let said = fail(1, &needs, ["--device", &second, "replace", "start", "2", &spare, &first]);
    assert!(said.contains(&spare) && !said.contains("truncated"), "{said}");
}

#[test]
fn an_attribute_that_needs_larger_nodes_is_named() {
    let world = World::new();
    let (small, large, note) = (world.image("small", 300), world.image("large", 300), world.file("note", 0));
    let value = "x".repeat(20_000);
    succeed(["mkfs", "-q", &small]);
    succeed(["mkfs", "-q", "-n", "64k", &large]);
    for image in [&small, &large] {
        succeed(["cp", &note, &format!("{image}:/note")]);
    }
    let set = |image: &str| {
        vec![
            "setfattr".to_owned(),
            "-n".to_owned(),
            "user.big".to_owned(),
            "-v".to_owned(),
            value.clone(),
            format!("{image}:/note"),
        ]
    };
    let said = fail(1, "-n 64k", set(&small));
    assert!(said.contains("/note") && said.contains("user.big"), "{said}");
    succeed(set(&large));
}

#[test]
fn a_conversion_without_room_says_how_much_is_missing_and_where() {
    let world = World::new();
    let (big, small) = (world.image("big", 900), world.image("small", 150));
    succeed(["mkfs", "-q", "-d", "single", "-m", "single", &big, &small]);
    for name in ["f1", "f2", "f3", "f4"] {
        let file = world.file(name, 60);
        succeed(["--device", &small, "cp", &file, &format!("{big}:/")]);
    }
    let said = fail(1, "too little", ["--device", &small, "balance", "start", "-dconvert=raid1", &big]);
    for part in ["of data are not raid1 yet", "on device 1", "on device 2"] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn a_size_beyond_the_device_names_the_bytes_of_the_device() {
    if require(&[Need::Root, Need::Loop]).is_none() {
        return;
    }
    let world = World::new();
    let image = world.image("image", 300);
    succeed(["mkfs", "-q", &image]);
    let device = LoopDevice::attach(Path::new(&image), false).unwrap();
    let said = fail(
        1,
        &format!("has {} bytes", 300 << 20),
        ["filesystem", "resize", "1g", device.path().to_str().unwrap()],
    );
    assert!(said.contains(&(1_u64 << 30).to_string()) && !said.contains("truncated"), "{said}");
}

#[test]
fn the_usage_names_the_program_that_was_called() {
    let world = World::new();
    let names = ["btrfs", "mkfs.btrfs", "btrfstune", "btrfs-image", "btrfs-map-logical", "btrfs-find-root"];
    link_names(world.folder.path(), &names);
    let wrong: &[&[&str]] =
        &[&[], &["--nosuch"], &["nosuch"], &["filesystem", "nosuch"], &["subvolume", "create"]];
    for name in names {
        for arguments in wrong.iter().filter(|arguments| name == "btrfs" || arguments.len() < 2) {
            let output = std::process::Command::new(world.path(name)).args(*arguments).output().unwrap();
            let said = text(&output.stdout) + &errors_of(&output);
            assert!(!output.status.success(), "{name} {arguments:?}: {said}");
            let usage: Vec<_> = said.lines().filter(|line| line.to_lowercase().contains("usage")).collect();
            assert!(usage.iter().all(|line| !line.contains("papilio")), "{name} {arguments:?}: {said}");
        }
    }
}

#[test]
fn a_very_long_path_is_cut_in_the_middle() {
    let world = World::new();
    let image = world.image("image", 300);
    succeed(["mkfs", "-q", &image]);
    let deep = vec!["d".repeat(240); 10].join("/");
    for command in ["cat", "ls", "stat"] {
        let said = fail(1, "no such file", [command, &format!("{image}:/{deep}/end")]);
        assert!(said.len() < 1000 && said.contains("/end: ") && said.contains(&image), "{said}");
    }
}

/// A refusal leaves no file, and a file that was there as it was.
#[test]
fn a_refused_output_leaves_no_file() {
    let world = World::new();
    let image = world.image("image", 300);
    succeed(["mkfs", "-q", &image]);
    succeed(["subvolume", "create", &format!("{image}:/writable")]);
    succeed(["subvolume", "create", &format!("{image}:/deep")]);
    let fs = papilio::FileSystem::open_with(&image, &papilio::OpenOptions::new().write(true)).unwrap();
    let mut at = fs.inode("/deep").unwrap();
    for _ in 0..17 {
        let new = papilio::NewInode::new(papilio::NewKind::Directory, 0o755);
        at = at.create("d".repeat(250).as_bytes(), &new).unwrap();
    }
    fs.snapshot("/deep", "/deep.ro", true).unwrap();
    drop(at);
    fs.close().unwrap();
    let out = world.path("out");
    let place = out.to_str().unwrap().to_owned();
    let refused = |arguments: &[&str]| {
        let output = command().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", errors_of(&output));
    };
    // The first is refused before a byte is written, the second in the midst of the stream.
    let early = format!("{image}:/writable");
    let late = format!("{image}:/deep.ro");
    for source in [&early, &late] {
        refused(&["send", "-f", &place, source]);
        assert!(!out.exists(), "{source}");
    }
    refused(&["inspect", "map-logical", "-l", "1", "-o", &place, &image]);
    assert!(!out.exists());
    fs::write(&out, "was here").unwrap();
    refused(&["send", "-f", &place, &early]);
    refused(&["inspect", "map-logical", "-l", "1", "-o", &place, &image]);
    assert_eq!(fs::read(&out).unwrap(), b"was here");
    succeed(["subvolume", "snapshot", "-r", &early, &format!("{image}:/ro")]);
    succeed(["send", "-f", &place, &format!("{image}:/ro")]);
    assert_eq!(&fs::read(&out).unwrap()[..12], b"btrfs-stream");
}
