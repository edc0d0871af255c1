//! The words, codes, keys of JSON and shortened options that scripts expect under the names of
//! btrfs-progs.

use crate::common::{binary, link_names};
use papilio_oracle::requirement::find_command;
use papilio_oracle::{ImageSet, LoopDevice, Need, Scratch, require};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// A folder of programs with the names of btrfs-progs, and of images.
struct World(tempfile::TempDir);

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        link_names(
            folder.path(),
            &["btrfs", "mkfs.btrfs", "btrfstune", "btrfs-image", "btrfs-find-root", "btrfs-map-logical"],
        );
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Makes an image with a file system.
    fn image(&self, name: &str) -> String {
        let path = self.path(name);
        File::create(&path).unwrap().set_len(300 << 20).unwrap();
        let path = path.to_str().unwrap().to_owned();
        self.succeed("mkfs.btrfs", &["-q", &path]);
        path
    }

    /// Runs a program with an input, which is not a terminal.
    fn run(&self, name: &str, arguments: &[&str], input: &str) -> Output {
        let mut command = Command::new(self.path(name));
        command.args(arguments).current_dir(self.0.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A program that asks nothing does not read.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    }

    fn succeed(&self, name: &str, arguments: &[&str]) -> String {
        let output = self.run(name, arguments, "");
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{name} {arguments:?}: {out}{err}");
        out
    }

    /// Runs a program that fails with 1, and returns its errors.
    fn fail(&self, name: &str, arguments: &[&str]) -> String {
        let output = self.run(name, arguments, "");
        assert_eq!(output.status.code(), Some(1), "{name} {arguments:?}: {}", text(&output.stdout));
        text(&output.stderr)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_clean_check_says_so_and_a_repair_never_asks() {
    let world = World::new();
    let image = world.image("image");
    for arguments in [&["check", &image][..], &["check", "--repair", &image], &["check", "--force", &image]] {
        let said = world.succeed("btrfs", arguments);
        assert!(said.contains("no error found"), "{said}");
        let rest = said.replace("no error found", "").to_lowercase();
        assert!(!rest.contains("error") && !rest.contains("warning"), "{said}");
    }
    // A repair with something to do: the size in the superblock is wrong.
    for arguments in [&["check", "--repair", &image][..], &["check", "--repair", "--force", &image]] {
        edit_size(&image);
        let said = world.succeed("btrfs", arguments);
        assert!(said.contains("repaired with"), "{said}");
        assert!(world.succeed("btrfs", &["check", &image]).contains("no error found"));
    }
    // Under its own name the command asks, and no answer is a no.
    edit_size(&image);
    let mut own = Command::new(binary());
    own.args(["check", "--repair", &image]).current_dir(world.0.path()).stdin(Stdio::null());
    let output = own.output().unwrap();
    assert!(!output.status.success() && text(&output.stderr).contains("nothing was written"));
}

/// Makes the size in the superblocks differ from that of the device.
fn edit_size(image: &str) {
    use papilio::format::superblock::{SUPERBLOCK_SIZE, superblock_offset};
    use std::os::unix::fs::FileExt;
    let file = File::options().read(true).write(true).open(image).unwrap();
    for copy in 0..2 {
        let place = superblock_offset(copy);
        let mut bytes = vec![0; SUPERBLOCK_SIZE];
        file.read_exact_at(&mut bytes, place.0).unwrap();
        let mut superblock = papilio::format::Superblock::parse(&bytes, place).unwrap();
        superblock.raw.total_bytes += 4096;
        file.write_all_at(&superblock.to_bytes(place), place.0).unwrap();
    }
}

#[test]
fn an_empty_file_is_one_to_be_made_and_a_short_one_grows() {
    let world = World::new();
    let content = world.path("content");
    fs::create_dir(&content).unwrap();
    fs::write(content.join("file"), vec![7; 3 << 20]).unwrap();
    let content = content.to_str().unwrap();
    for (name, length) in [("empty", 0), ("short", 1 << 20)] {
        let image = world.path(name);
        File::create(&image).unwrap().set_len(length).unwrap();
        let image = image.to_str().unwrap();
        world.succeed("mkfs.btrfs", &["-q", "-r", content, "--shrink", image]);
        assert!(world.succeed("btrfs", &["check", image]).contains("no error found"));
        assert!(fs::metadata(image).unwrap().len() > 3 << 20, "{name}");
    }
    // One that is long enough keeps its length.
    let long = world.path("long");
    File::create(&long).unwrap().set_len(500 << 20).unwrap();
    world.succeed("mkfs.btrfs", &["-q", "-r", content, long.to_str().unwrap()]);
    assert_eq!(fs::metadata(&long).unwrap().len(), 500 << 20);
    // A dump is restored to an empty file.
    let (dump, restored) = (world.path("dump"), world.path("restored"));
    File::create(&restored).unwrap();
    let (dump, restored) = (dump.to_str().unwrap(), restored.to_str().unwrap());
    world.succeed("btrfs-image", &[long.to_str().unwrap(), dump]);
    world.succeed("btrfs-image", &["-r", dump, restored]);
    assert!(world.succeed("btrfs", &["check", restored]).contains("no error found"));
}

#[test]
fn versions_helps_and_global_options() {
    let world = World::new();
    let image = world.image("image");
    for arguments in [
        &["version"][..],
        &["version", "--"],
        &["--version"],
        &["help"],
        &["help", "--"],
        &["help", "--full"],
        &["--help", "--full"],
        &["--log=quiet", "help"],
        &["-vvv", "help"],
    ] {
        assert!(!world.succeed("btrfs", arguments).is_empty(), "{arguments:?}");
    }
    assert!(world.fail("btrfs", &["--log=loud", "help"]).contains("loud"));
    for formatted in [&["filesystem", "usage", &image][..], &["subvolume", "find-new", &image, "1"]] {
        let error = world.fail("btrfs", &[&["--format", "json"], formatted].concat());
        assert!(error.contains("no such output"), "{error}");
    }
    assert!(world.fail("btrfs", &["--format=xml", "filesystem", "df", &image]).contains("xml"));
    let sub = format!("{image}:/sub");
    world.succeed("btrfs", &["subvolume", "create", &sub]);
    let would = world.succeed("btrfs", &["--dry-run", "subvolume", "delete", &sub]);
    assert!(would.contains(&sub), "{would}");
    assert!(world.succeed("btrfs", &["subvolume", "list", &image]).contains("path sub"));
    assert!(world.fail("btrfs", &["--dry-run", "subvolume", "create", &sub]).contains("--dry-run"));
    assert!(world.fail("btrfs", &["filesystem", "df", "/no/such"]).starts_with("ERROR: "));
}

#[test]
fn options_are_shortened_and_numbers_have_blanks() {
    let world = World::new();
    let image = world.path("image").to_str().unwrap().to_owned();
    world.succeed("mkfs.btrfs", &["-q", "--byte-co", " 200M", "--lab", "short", &image]);
    assert_eq!(fs::metadata(&image).unwrap().len(), 200 << 20);
    assert_eq!(world.succeed("btrfs", &["fi", "label", &image]), "short\n");
    world.succeed("btrfstune", &["-S 1", &image]);
    let superblock = world.succeed("btrfs", &["inspect-internal", "dump-super", &image]);
    assert!(superblock.contains("SEEDING"), "{superblock}");
    world.succeed("btrfs", &["check", "--read", &image]);
    assert_eq!(world.run("btrfs", &["check", "--re", &image], "").status.code(), Some(1), "ambiguous");
    // Under its own name the command takes options in full.
    let own = Command::new(binary()).args(["check", "--read", &image]).output().unwrap();
    assert_eq!(own.status.code(), Some(2));
}

#[test]
fn a_change_of_the_uuid_asks_and_names_both() {
    let world = World::new();
    let image = world.image("image");
    let wanted = "e315420e-3a1f-4d81-849e-93b68b85b76f";
    let refused = world.run("btrfstune", &["-U", wanted, &image], "n\n");
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused.stdout));
    assert!(text(&refused.stderr).contains("[y/N]"));
    let agreed = world.run("btrfstune", &["-u", &image], "y\n");
    assert!(agreed.status.success(), "{}", text(&agreed.stderr));
    let said = world.succeed("btrfstune", &["-f", "-U", wanted, &image]);
    assert!(said.contains("Current fsid: ") && said.contains(&format!("New fsid: {wanted}")), "{said}");
    world.succeed("btrfstune", &["-S", "1", &image]);
    assert_eq!(world.run("btrfstune", &["-S", "0", &image], "n\n").status.code(), Some(1));
    world.succeed("btrfstune", &["-f", "-S", "0", &image]);
    let found = world.succeed("btrfs-find-root", &[&image]);
    let line = found.lines().find(|line| line.starts_with("Found tree root at ")).unwrap();
    let words: Vec<&str> = line.split(' ').collect();
    assert!(words[4].parse::<u64>().is_ok() && words[5] == "gen" && words[7] == "level", "{line}");
}

#[test]
fn the_uuid_of_another_device_is_refused() {
    let Some(_met) = require(&[Need::Root, Need::Loop]) else { return };
    let world = World::new();
    let first = world.image("first");
    let device = LoopDevice::attach(first.as_ref(), true).unwrap();
    let uuid = "1d8c8a5d-6f2c-4c6e-9d5f-5a3d6c3f2b11";
    let second = world.path("second").to_str().unwrap().to_owned();
    world.succeed("mkfs.btrfs", &["-q", "-U", uuid, "-b", "200M", &second]);
    drop(device);
    let device = LoopDevice::attach(second.as_ref(), true).unwrap();
    let third = world.path("third").to_str().unwrap().to_owned();
    let error = world.fail("mkfs.btrfs", &["-q", "-U", uuid, "-b", "200M", &third]);
    assert!(error.contains(device.path().to_str().unwrap()) && error.contains(uuid), "{error}");
    drop(device);
    world.succeed("mkfs.btrfs", &["-q", "-U", uuid, "-b", "200M", &third]);
}

/// Returns the keys of an object, with those of objects in it as `outer.inner`.
fn keys(value: &Value, prefix: &str, found: &mut BTreeSet<String>) {
    let Value::Object(fields) = value else { return };
    for (key, value) in fields {
        let name = format!("{prefix}{key}");
        match value {
            Value::Object(_) => keys(value, &format!("{name}."), found),
            _ => drop(found.insert(name)),
        }
    }
}

/// Returns the keys that docs/commands.md lists for a command.
fn documented(command: &str) -> BTreeSet<String> {
    let document = include_str!("../../../../docs/commands.md");
    let start = format!("| `--format json {command}` |");
    let row = document.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("{start}"));
    row[start.len()..].split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn json_has_the_documented_keys() {
    let world = World::new();
    let image = world.image("image");
    let sub = format!("{image}:/sub");
    world.succeed("btrfs", &["subvolume", "create", &sub]);
    world.succeed("btrfs", &["subvolume", "snapshot", "-r", &sub, &format!("{image}:/snapshot")]);
    world.succeed("btrfs", &["quota", "enable", &image]);
    world.succeed("btrfs", &["qgroup", "limit", "1G", "0/256", &image]);
    world.succeed("btrfs", &["subvolume", "set-default", "256", &image]);
    let cases: [(&str, &[&str]); 6] = [
        ("device stats", &[&image]),
        ("filesystem df", &[&image]),
        ("qgroup show", &[&image]),
        ("subvolume get-default", &[&image]),
        ("subvolume list", &["-pcusqR", &image]),
        ("subvolume show", &[&sub]),
    ];
    for (command, rest) in cases {
        let words: Vec<&str> = command.split(' ').collect();
        let said = world.succeed("btrfs", &[&["--format", "json"], &words[..], rest].concat());
        let mut value: Value = serde_json::from_str(&said).unwrap();
        let header = value.as_object_mut().unwrap().remove("__header").unwrap();
        assert_eq!(header["version"], "1");
        let mut found = BTreeSet::new();
        for (key, content) in value.as_object().unwrap() {
            let mut top = key.clone();
            let mut content = content;
            if let Some(rows) = content.as_array() {
                content = &rows[0];
            } else if content.is_object() {
                // The path of the subvolume.
                assert_eq!(key, "sub");
                top = "PATH".to_owned();
            }
            match content {
                Value::Object(_) => {
                    found.insert(top);
                    keys(content, "", &mut found);
                }
                _ => drop(found.insert(top)),
            }
        }
        assert_eq!(found, documented(command), "{command}: {said}");
    }
    let said = world.succeed("btrfs", &["--format", "json", "qgroup", "show", &image]);
    let value: Value = serde_json::from_str(&said).unwrap();
    let rows = &value["qgroup-show"];
    assert_eq!((&rows[0]["path"], &rows[0]["max_referenced"]), (&"".into(), &"none".into()));
    assert_eq!((&rows[1]["path"], &rows[1]["max_referenced"]), (&"sub".into(), &(1_u64 << 30).into()));
    let said = world.succeed("btrfs", &["--format", "json", "subvolume", "show", &sub]);
    let value: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(value["sub"]["parent_uuid"], Value::Null);
    assert_eq!(value["sub"]["snapshots"], serde_json::json!(["snapshot"]));
    assert_eq!(value["sub"]["flags"], serde_json::json!([]));
    assert_eq!(value["sub"]["rtime"], "-");
    world.succeed("btrfs", &["subvolume", "create", &format!("{sub}/inner")]);
    let said = world.succeed("btrfs", &["--format", "json", "subvolume", "list", "-a", &image]);
    let value: Value = serde_json::from_str(&said).unwrap();
    let paths: Vec<_> = value["subvolume-list"].as_array().unwrap().iter().map(|row| &row["path"]).collect();
    assert_eq!(paths, ["sub", "snapshot", "<FS_TREE>/sub/inner"]);
}

/// btrfs-map-logical shows the parities as further copies.
#[test]
fn map_logical_shows_the_places_of_parities() {
    let needs = [Need::Root, Need::Loop, Need::Command("btrfs")];
    let Some(_met) = require(&needs) else { return };
    // Not every package of btrfs-progs has it.
    if find_command("btrfs-map-logical").is_none() {
        return;
    }
    let world = World::new();
    let scratch = Scratch::new(1 << 30).unwrap();
    let paths: Vec<_> =
        (0..4).map(|number| scratch.image(&format!("disk{number}"), 300 << 20).unwrap()).collect();
    let loops: Vec<_> = paths.iter().map(|path| LoopDevice::attach(path, false).unwrap()).collect();
    let names: Vec<&str> = loops.iter().map(|one| one.path().to_str().unwrap()).collect();
    for profile in ["raid5", "raid6"] {
        let mkfs = [&["-q", "-f", "-d", profile, "-m", profile][..], &names].concat();
        world.succeed("mkfs.btrfs", &mkfs);
        let extents = world.succeed("btrfs", &["inspect-internal", "dump-tree", "-t", "extent", names[0]]);
        let blocks: Vec<&str> = extents.lines().filter(|line| line.contains(" METADATA_ITEM ")).collect();
        assert!(blocks.len() > 5, "{extents}");
        for line in blocks {
            let address = line.split('(').nth(1).unwrap().split(' ').next().unwrap();
            let stock = Command::new("btrfs-map-logical").args(["-l", address, names[0]]).output().unwrap();
            let places = |text: String| -> Vec<String> {
                text.lines().filter(|line| line.starts_with("mirror ")).map(str::to_owned).collect()
            };
            let ours = places(world.succeed("btrfs-map-logical", &["-l", address, names[0]]));
            assert_eq!(ours, places(text(&stock.stdout)), "{profile}, {address}");
            assert_eq!(ours.len(), if profile == "raid5" { 2 } else { 3 });
        }
    }
}

/// A mount of the kernel's Btrfs, with quotas, a default subvolume and a stale qgroup.
#[test]
fn mounts_of_the_kernel_show_what_its_own_tools_show() {
    let needs = [Need::KERNEL_MOUNT, &[Need::Command("btrfs")]].concat();
    let Some(_met) = require(&needs) else { return };
    let world = World::new();
    let scratch = Scratch::new(1 << 30).unwrap();
    let path = scratch.image("image", 400 << 20).unwrap();
    world.succeed("mkfs.btrfs", &["-q", path.to_str().unwrap()]);
    let images = ImageSet::open(&scratch, vec![path]);
    let mounted = images.mount().unwrap();
    let root = mounted.path().to_str().unwrap();
    let at = |name: &str| format!("{root}/{name}");
    let stock = |arguments: &[&str]| {
        let output = Command::new("btrfs").args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let same = |arguments: &[&str]| {
        let words = |text: String| -> Vec<Vec<String>> {
            // btrfs-progs 6.2 does not count the members.
            let text = text.replace("<1 member qgroup>", "<0 member qgroups>");
            let lines = text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect());
            lines.filter(|line: &Vec<String>| !line.is_empty()).collect()
        };
        assert_eq!(words(world.succeed("btrfs", arguments)), words(stock(arguments)), "{arguments:?}");
    };
    same(&["subvolume", "get-default", root]);
    assert!(world.fail("btrfs", &["qgroup", "show", root]).contains("quotas are not enabled"));
    assert!(world.succeed("btrfs", &["quota", "status", root]).contains("no"));

    // Parents are made on a mount, too.
    world.succeed("btrfs", &["subvolume", "create", "-p", &at("a/b/./../c///sub//")]);
    assert!(mounted.path().join("a/b").is_dir() && mounted.path().join("a/c/sub").is_dir());
    world.succeed("btrfs", &["quota", "enable", root]);
    world.succeed("btrfs", &["subvolume", "create", &at("gone")]);
    world.succeed("btrfs", &["qgroup", "create", "1/7", root]);
    world.succeed("btrfs", &["qgroup", "assign", "0/256", "1/7", root]);
    world.succeed("btrfs", &["qgroup", "limit", "300M", "1/7", root]);
    fs::write(at("a/c/sub/file"), vec![1; 1 << 20]).unwrap();
    world.succeed("btrfs", &["quota", "rescan", "-w", root]);
    world.succeed("btrfs", &["filesystem", "sync", root]);
    same(&["qgroup", "show", "--raw", "-r", "-e", "-p", "-c", root]);
    same(&["subvolume", "list", root]);
    same(&["filesystem", "df", root]);
    assert!(world.succeed("btrfs", &["quota", "status", root]).contains("yes"));
    let shown = world.succeed("btrfs", &["subvolume", "show", &at("a/c/sub")]);
    assert!(shown.contains("Quota group:\t\t0/256"), "{shown}");

    world.succeed("btrfs", &["subvolume", "set-default", "256", root]);
    same(&["subvolume", "get-default", root]);
    let would = world.succeed("btrfs", &["--dry-run", "subvolume", "delete", &at("gone")]);
    assert!(would.contains("gone") && mounted.path().join("gone").is_dir(), "{would}");
    world.succeed("btrfs", &["subvolume", "delete", &at("gone")]);
    same(&["subvolume", "list", root]);
    world.succeed("btrfs", &["subvolume", "sync", root]);
    world.succeed("btrfs", &["qgroup", "clear-stale", root]);
    assert!(!world.succeed("btrfs", &["qgroup", "show", root]).contains("0/257"));
    let error = world.fail("btrfs", &["device", "remove", "missing", root]);
    assert!(error.contains("no missing devices found to remove"), "{error}");
    let error = world.fail("btrfs", &["device", "remove", "3", root]);
    assert_eq!(error, "ERROR: error removing devid 3: No such file or directory\n");

    // The paths of the host for data at an address: one mount shows a part only.
    let dump = stock(&["inspect-internal", "dump-tree", "-t", "256", images.paths()[0].to_str().unwrap()]);
    let byte = dump.split("disk byte ").nth(1).unwrap().split(' ').next().unwrap();
    let found = world.succeed("btrfs", &["inspect-internal", "logical-resolve", byte, root]);
    assert_eq!(found, format!("{}\n", at("a/c/sub/file")));
    mounted.unmount().unwrap();
}

/// A lock that the caller holds is no conflict, and one of another process is.
#[test]
fn the_lock_of_the_caller_is_no_conflict() {
    let Some(_met) = require(&[Need::Command("flock")]) else { return };
    let world = World::new();
    let image = world.image("image");
    let mkfs = world.path("mkfs.btrfs").to_str().unwrap().to_owned();
    let btrfs = world.path("btrfs").to_str().unwrap().to_owned();
    let run = |script: &str| {
        let mut shell = Command::new("sh");
        let output = shell.args(["-c", script, "sh", &image, &mkfs, &btrfs]).output().unwrap();
        (output.status.success(), text(&output.stderr))
    };
    // The lock of the parent, one that a program before took for the shell's descriptor, and the
    // same inherited by exec.
    for script in [
        "flock \"$1\" \"$2\" -q -f \"$1\"",
        "exec 9<>\"$1\"; flock 9; \"$2\" -q -f \"$1\" && \"$3\" check \"$1\"; exit $?",
        "exec 9<\"$1\"; flock -s 9; \"$3\" filesystem label \"$1\" x; exit $?",
        "exec 9<>\"$1\"; flock 9; exec \"$2\" -q -f \"$1\"",
        "exec 9<\"$1\"; flock -s 9; exec \"$3\" filesystem label \"$1\" y",
    ] {
        let (succeeded, errors) = run(script);
        assert!(succeeded, "{script}: {errors}");
    }
    let script = "flock --no-fork \"$1\" sleep 20 & p=$!; sleep 1; \"$2\" -q -f \"$1\"; c=$?; kill $p; \
                  wait; exit $c";
    let (succeeded, errors) = run(script);
    assert!(!succeeded && errors.contains("in use") || errors.contains("using it"), "{errors}");
}

/// The file system of a mount point may not be mounted.
#[test]
fn a_stream_is_not_received_beside_btrfs() {
    let world = World::new();
    let image = world.image("image");
    for arguments in [
        &["subvolume", "create", &format!("{image}:/a")][..],
        &["property", "set", &format!("{image}:/a"), "ro", "true"],
    ] {
        world.succeed("btrfs", arguments);
    }
    world.succeed("btrfs", &["send", "-f", "stream", &format!("{image}:/a")]);
    fs::create_dir(world.path("point")).unwrap();
    let errors = world.fail("btrfs", &["receive", "-f", "stream", "point"]);
    assert!(errors.contains("not on a Btrfs file system but on"), "{errors}");
    assert_eq!(fs::read_dir(world.path("point")).unwrap().count(), 0);
    let mut received = Command::new(binary());
    received.args(["receive", "-f", "stream", "point"]).current_dir(world.0.path());
    assert!(received.output().unwrap().status.success());
    assert!(world.path("point/a").is_dir());
    world.succeed("btrfs", &["receive", "-f", "stream", &format!("{}:/", world.image("other"))]);
}
