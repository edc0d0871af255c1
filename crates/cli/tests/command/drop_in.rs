//! The command under the names of btrfs-progs.

use crate::common::{binary, link_names};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output};

struct World(tempfile::TempDir);

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        link_names(folder.path(), &["btrfs", "mkfs.btrfs", "fsck.btrfs", "btrfsck", "btrfs-convert"]);
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
    assert_eq!(said, format!("Create readonly snapshot of '{a}' in '{b}'\n"));
    assert_eq!(world.succeed("btrfs", &["-q", "subvolume", "create", &format!("{image}:/c")]), "");
    assert!(world.succeed("btrfs", &["su", "li", &image]).contains("path deep/er/a"));
    let listed = world.succeed("btrfs", &["--format", "json", "subvolume", "list", &image]);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["subvolume-list"].as_array().unwrap().len(), 3);
    assert_eq!(world.succeed("btrfs", &["subvolume", "get-default", &image]), "ID 5 (FS_TREE)\n");
    world.succeed("btrfs", &["subvolume", "set-default", "256", &image]);
    let shown = world.succeed("btrfs", &["subvolume", "get-default", &image]);
    assert!(shown.starts_with("ID 256 gen ") && shown.ends_with("top level 5 path deep/er/a\n"), "{shown}");
    let said = world.succeed("btrfs", &["subvolume", "delete", "-c", &b]);
    assert_eq!(said, format!("Delete subvolume 257 (commit): '{b}'\n"));
    world.succeed("btrfsck", &[&image]);
    assert!(world.succeed("btrfs", &["version"]).contains("papilio"));
}

/// A program whose first argument is a path is no helper of mount(8), and has its own exit codes.
#[test]
fn a_path_as_the_first_argument_keeps_the_exit_codes() {
    let world = World::new();
    for name in ["mkfs.btrfs", "btrfsck"] {
        let failed = world.run(name, &["/nonexistent/image"]);
        assert_eq!(failed.status.code(), Some(1), "{name}: {failed:?}");
    }
    assert_eq!(world.run("mkfs.btrfs", &["/nonexistent/image", "--nonsense"]).status.code(), Some(1));
}

/// Commands that say nothing in btrfs-progs, and words that scripts look for in their help.
#[test]
fn commands_say_as_much_as_btrfs_progs() {
    let world = World::new();
    let image = world.image();
    let second = format!("{image} of the second device");
    File::create(&second).unwrap().set_len(256 << 20).unwrap();
    world.succeed("mkfs.btrfs", &["-q", "-m", "single", &image]);
    assert_eq!(world.succeed("btrfs", &["device", "add", &second, &image]), "");
    assert_eq!(world.succeed("btrfs", &["device", "remove", "--device", &second, "2", &image]), "");
    let said = world.succeed("btrfs", &["filesystem", "resize", "1:-16M", &image]);
    assert_eq!(said, format!("Resize device id 1 ({image}) from 256.00MiB to 240.00MiB\n"));
    let said = world.succeed("btrfs", &["filesystem", "resize", "1:max", &image]);
    assert_eq!(said, format!("Resize device id 1 ({image}) from 240.00MiB to max\n"));
    world.succeed("btrfs", &["quota", "enable", &image]);
    assert_eq!(world.succeed("btrfs", &["quota", "rescan", "-w", &image]), "quota rescan started\n");
    // A superblock copy beyond the end of the device is passed over.
    assert_eq!(world.succeed("btrfs", &["inspect-internal", "dump-super", "-s", "2", &image]), "");
    let papilio = Command::new(binary()).args(["inspect", "dump-super", "-s", "2", &image]).output();
    assert_eq!(papilio.unwrap().status.code(), Some(1));
    for (command, word) in [("device delete", "devid"), ("subvolume delete", "subvolid")] {
        let words: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        let help = world.succeed("btrfs", &words);
        let separate = |letter: char| !letter.is_alphanumeric();
        assert!(help.split(separate).any(|found| found == word), "{command}: {help}");
    }
    let help = world.succeed("mkfs.btrfs", &["--help"]);
    let lines = help.lines().filter(|line| line.contains("--uuid") || line.contains("--device-uuid"));
    assert_eq!(lines.count(), 2, "{help}");
}

#[test]
fn properties_are_refused_in_the_words_of_btrfs_progs() {
    let world = World::new();
    let image = world.image();
    world.succeed("mkfs.btrfs", &["-q", &image]);
    let inside = format!("{image}:/d");
    assert!(Command::new(binary()).args(["mkdir", &inside]).status().unwrap().success());
    let refusals: [(&[&str], String); 6] = [
        (&["get", &inside, "label"], "object is not compatible with property: label".into()),
        (&["set", &inside, "label", "x"], "object is not compatible with property: label".into()),
        (&["get", &inside, "ro"], "object is not compatible with property: ro".into()),
        (&["set", &inside, "ro", "foo"], "invalid value for property: foo".into()),
        (&["set", &image, "ro", "foo"], "invalid value for property: foo".into()),
        (
            &["set", &inside, "compression", "foo"],
            format!("failed to set compression for {inside}: Invalid argument"),
        ),
    ];
    for (arguments, message) in refusals {
        let refused = world.run("btrfs", &[&["property"][..], arguments].concat());
        assert_eq!(refused.status.code(), Some(1), "{arguments:?}");
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(said, format!("ERROR: {message}\n"), "{arguments:?}");
    }
    // The label is that of the file system, and no directory changes it.
    assert_eq!(world.succeed("btrfs", &["property", "get", &image, "label"]), "label=\n");
    world.succeed("btrfs", &["property", "set", &image, "label", "new"]);
    assert_eq!(world.succeed("btrfs", &["property", "get", &image, "label"]), "label=new\n");
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
fn conversions_refuse_others_and_the_boot_check_does_nothing() {
    let world = World::new();
    world.succeed("mkfs.btrfs", &[&world.image()]);
    let refused = world.run("btrfs-convert", &[&world.image()]);
    assert_eq!(refused.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert!(stderr.contains("it is Btrfs already"), "{stderr}");
    assert_eq!(world.run("btrfs-convert", &["-N", "5000", &world.image()]).status.code(), Some(1));
    assert_eq!(world.succeed("fsck.btrfs", &["-A", &world.image()]), "");
    let missing = Path::new("/no/such/device").to_str().unwrap();
    assert_eq!(world.run("fsck.btrfs", &["-a", missing]).status.code(), Some(8));
    // btrfs-progs exit with 1 for wrong usage, and fsck(8) with 16.
    assert_eq!(world.run("btrfs", &["no-such-command"]).status.code(), Some(1));
    assert_eq!(world.run("mkfs.btrfs", &["-d", "mirror", &world.image()]).status.code(), Some(1));
    assert_eq!(world.run("fsck.btrfs", &["--no-such-option"]).status.code(), Some(16));
}

/// Changes the first superblock copy and its mirror.
fn edit_superblocks(image: &str, edit: impl Fn(&mut papilio::format::superblock::RawSuperblock)) {
    use papilio::format::superblock::{SUPERBLOCK_SIZE, superblock_offset};
    use std::os::unix::fs::FileExt;
    let file = File::options().read(true).write(true).open(image).unwrap();
    for copy in 0..2 {
        let place = superblock_offset(copy);
        let mut bytes = vec![0; SUPERBLOCK_SIZE];
        file.read_exact_at(&mut bytes, place.0).unwrap();
        let mut superblock = papilio::format::Superblock::parse(&bytes, place).unwrap();
        edit(&mut superblock.raw);
        file.write_all_at(&superblock.to_bytes(place), place.0).unwrap();
    }
}

/// Breaks an image for `btrfs rescue`.
fn break_image(what: &str, image: &str) {
    use std::os::unix::fs::FileExt;
    let file = File::options().write(true).open(image).unwrap();
    match what {
        "" => {}
        "a superblock copy" => file.write_all_at(&[0; 4096], 64 << 20).unwrap(),
        "the size" => edit_superblocks(image, |raw| raw.total_bytes += 4096),
        "all" => {
            file.set_len(0).unwrap();
            file.set_len(100 << 20).unwrap();
        }
        _ => panic!("{what}"),
    }
}

#[test]
fn rescue_has_the_options_and_exit_codes_of_btrfs() {
    let world = World::new();
    let image = world.image();
    let sound = world.0.path().join("sound");
    // A block-group tree needs the free-space tree.
    world.succeed("mkfs.btrfs", &["-q", "-f", "-O", "^block-group-tree", &image]);
    fs::copy(&image, &sound).unwrap();
    // Damage, the command, and the exit code of btrfs-progs 6.2, or that of later versions.
    let cases: [(&str, &[&str], i32); 20] = [
        ("", &["super-recover", "-y"], 0),
        ("a superblock copy", &["super-recover", "-y"], 2),
        ("a superblock copy", &["super-recover", "-v", "-y"], 2),
        ("all", &["super-recover", "-y"], 1),
        ("", &["super-recover", "-z"], 1),
        ("", &["zero-log"], 0),
        ("all", &["zero-log"], 1),
        ("", &["fix-device-size"], 0),
        ("the size", &["fix-device-size"], 0),
        ("all", &["fix-device-size"], 1),
        ("", &["clear-uuid-tree"], 0),
        ("all", &["clear-uuid-tree"], 1),
        ("", &["clear-space-cache", "v1"], 0),
        ("", &["clear-space-cache", "v2"], 0),
        ("", &["clear-space-cache", "v3"], 1),
        ("", &["clear-ino-cache"], 0),
        ("", &["chunk-recover", "-y"], 0),
        ("", &["chunk-recover", "-y", "-v"], 0),
        ("all", &["chunk-recover", "-y"], 1),
        ("", &["no-such-command"], 1),
    ];
    let stock_has = |command: &str| {
        let later = ["clear-space-cache", "clear-ino-cache"].contains(&command);
        !later && Command::new("btrfs").arg("version").output().is_ok()
    };
    for (damage, command, code) in cases {
        fs::copy(&sound, &image).unwrap();
        break_image(damage, &image);
        let arguments = [&["rescue"], command, &[&image]].concat();
        let output = world.run("btrfs", &arguments);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?} {damage}: {errors}");
        if code != 1 {
            assert_eq!(errors, "", "{arguments:?} {damage}");
            world.succeed("btrfs", &["check", &image]);
        }
        if stock_has(command[0]) {
            fs::copy(&sound, &image).unwrap();
            break_image(damage, &image);
            let stock = Command::new("btrfs").args(&arguments).output().unwrap().status;
            // chunk-recover fails with 255.
            let same = stock.code() == Some(code) || (code == 1 && stock.code() == Some(255));
            assert!(same, "{arguments:?} {damage}: {stock}");
        }
    }
    for command in ["super-recover", "zero-log", "fix-device-size", "clear-uuid-tree", "chunk-recover"] {
        assert_eq!(world.run("btrfs", &["rescue", command]).status.code(), Some(1), "{command}");
    }
    // A script changes an image several times, and no undo file is in its way or overwritten.
    let names = || -> Vec<String> {
        let all = fs::read_dir(world.0.path()).unwrap().map(|entry| entry.unwrap().file_name());
        all.map(|name| name.into_string().unwrap()).filter(|name| name.contains(".undo")).collect()
    };
    let before = names();
    assert!(before.contains(&"image.undo".to_owned()) && before.contains(&"image.undo.2".to_owned()));
    fs::write(format!("{image}.undo"), "not an undo file").unwrap();
    fs::copy(&sound, &image).unwrap();
    let output = world.run("btrfs", &["rescue", "clear-uuid-tree", &image]);
    assert_eq!((output.status.code(), names().len()), (Some(1), before.len()));
    assert!(fs::read(&sound).unwrap() == fs::read(&image).unwrap(), "nothing was written");
}
