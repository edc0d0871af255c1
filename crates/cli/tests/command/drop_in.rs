//! The command under the names of btrfs-progs.

use crate::common::binary;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

struct World(tempfile::TempDir);

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["btrfs", "mkfs.btrfs", "fsck.btrfs", "btrfsck", "btrfs-convert"] {
            symlink(binary(), folder.path().join(name)).unwrap();
        }
        File::create(folder.path().join("image")).unwrap().set_len(256 << 20).unwrap();
        Self(folder)
    }

    fn image(&self) -> String {
        self.0.path().join("image").to_str().unwrap().to_owned()
    }

    fn run(&self, name: &str, arguments: &[&str]) -> Output {
        Command::new(self.0.path().join(name)).args(arguments).output().unwrap()
    }

    fn succeed(&self, name: &str, arguments: &[&str]) -> String {
        let output = self.run(name, arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name} {arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }
}

#[test]
fn scripts_for_btrfs_progs_work_with_an_image() {
    let world = World::new();
    let image = world.image();
    world.succeed("mkfs.btrfs", &["-f", "-L", "dropped in", &image]);
    assert_eq!(world.succeed("btrfs", &["fi", "label", &image]), "dropped in\n");
    let (a, b) = (format!("{image}:/deep/er/a"), format!("{image}:/b"));
    let said = world.succeed("btrfs", &["subv", "create", "-p", &a]);
    assert_eq!(said, format!("Create subvolume '{a}'\n"));
    let said = world.succeed("btrfs", &["subvolume", "snapshot", "-r", &a, &b]);
    assert_eq!(said, format!("Create a readonly snapshot of '{a}' in '{b}'\n"));
    assert_eq!(world.succeed("btrfs", &["-q", "subvolume", "create", &format!("{image}:/c")]), "");
    assert!(world.succeed("btrfs", &["su", "li", &image]).contains("path deep/er/a"));
    let listed = world.succeed("btrfs", &["--format", "json", "subvolume", "list", &image]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&listed).unwrap().as_array().unwrap().len(), 3);
    assert_eq!(world.succeed("btrfs", &["subvolume", "get-default", &image]), "ID 5 (FS_TREE)\n");
    world.succeed("btrfs", &["subvolume", "set-default", "256", &image]);
    let shown = world.succeed("btrfs", &["subvolume", "get-default", &image]);
    assert!(shown.starts_with("ID 256 gen ") && shown.ends_with("top level 5 path deep/er/a\n"), "{shown}");
    let said = world.succeed("btrfs", &["subvolume", "delete", "-c", &b]);
    assert_eq!(said, format!("Delete subvolume (commit): '{b}'\n"));
    world.succeed("btrfsck", &[&image]);
    assert!(world.succeed("btrfs", &["version"]).contains("papilio"));
}

#[test]
fn addresses_and_numbers_are_resolved() {
    let world = World::new();
    let image = world.image();
    world.succeed("mkfs.btrfs", &["-q", &image]);
    world.succeed("btrfs", &["subvolume", "create", &format!("{image}:/sub")]);
    let host = world.0.path().join("host");
    fs::write(&host, vec![1; 100_000]).unwrap();
    let papilio = |arguments: &[&str]| Command::new(binary()).args(arguments).output().unwrap();
    assert!(papilio(&["mkdir", &format!("{image}:/sub/d")]).status.success());
    assert!(papilio(&["cp", host.to_str().unwrap(), &format!("{image}:/sub/d/f")]).status.success());
    assert_eq!(world.succeed("btrfs", &["inspect-internal", "rootid", &format!("{image}:/sub/d")]), "256\n");
    assert_eq!(world.succeed("btrfs", &["ins", "subvolid-resolve", "256", &image]), "sub\n");
    let path = world.succeed("btrfs", &["ins", "inode-resolve", "258", &format!("{image}:/sub")]);
    assert_eq!(path, "/sub/d/f\n");
    // The address of the file's data, as the tree has it.
    let dump = world.succeed("btrfs", &["ins", "dump-tree", "-t", "256", &image]);
    let byte = dump.split("disk byte ").nth(1).unwrap().split(' ').next().unwrap();
    assert_eq!(world.succeed("btrfs", &["ins", "logical-resolve", byte, &image]), "/sub/d/f\n");
    let numbers = world.succeed("btrfs", &["ins", "logical-resolve", "-P", byte, &image]);
    assert_eq!(numbers, "inode 258 offset 0 root 256\n");
    let none = world.run("btrfs", &["ins", "logical-resolve", "4096", &image]);
    assert_eq!(none.status.code(), Some(1));
    assert!(world.succeed("btrfs", &["ins", "min-dev-size", &image]).contains(" bytes ("));
    assert!(world.succeed("btrfs", &["device", "usage", &image]).contains("Unallocated:"));
}

#[test]
fn cp_compresses_if_asked_to() {
    let world = World::new();
    let image = world.image();
    world.succeed("mkfs.btrfs", &["-q", &image]);
    let host = world.0.path().join("host");
    fs::write(&host, "compressible ".repeat(20_000)).unwrap();
    let host = host.to_str().unwrap();
    let papilio = |arguments: &[&str]| {
        let output = Command::new(binary()).args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    for (option, algorithm) in
        [("--compress=lzo", "lzo"), ("--compress", "zstd"), ("--compress=zlib:9", "zlib")]
    {
        assert_eq!(papilio(&["cp", option, host, &format!("{image}:/{algorithm}")]).0, Some(0));
        let read = papilio(&["cat", &format!("{image}:/{algorithm}")]).1;
        assert!(read == fs::read_to_string(host).unwrap(), "{algorithm}");
        let dump = world.succeed("btrfs", &["ins", "dump-tree", "-t", "5", &image]);
        assert!(dump.contains(&format!("({algorithm})")), "{dump}");
    }
    assert_eq!(papilio(&["cp", "--compress", &format!("{image}:/lzo"), "/tmp/never"]).0, Some(2));
    assert_eq!(papilio(&["cp", "--compress=rar", host, &format!("{image}:/x")]).0, Some(2));
}

#[test]
fn other_programs_are_refused_and_the_boot_check_does_nothing() {
    let world = World::new();
    let refused = world.run("btrfs-convert", &["/dev/null"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("no such program"));
    assert_eq!(world.succeed("fsck.btrfs", &["-A", &world.image()]), "");
    let missing = Path::new("/no/such/device").to_str().unwrap();
    assert_eq!(world.run("fsck.btrfs", &["-a", missing]).status.code(), Some(8));
    // btrfs-progs exit with 1 for wrong usage, and fsck(8) with 16.
    assert_eq!(world.run("btrfs", &["no-such-command"]).status.code(), Some(1));
    assert_eq!(world.run("mkfs.btrfs", &["-d", "mirror", &world.image()]).status.code(), Some(1));
    assert_eq!(world.run("fsck.btrfs", &["--no-such-option"]).status.code(), Some(16));
}
