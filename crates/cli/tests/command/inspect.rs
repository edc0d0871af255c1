//! `subvolume`, `filesystem` and `inspect` print the same as btrfs-progs for the same file system.

use crate::common::{papilio, succeed_json as json, succeed_text as succeed};
use papilio_oracle::mkfs::Quota;
use papilio_oracle::{FileSystemSpec, ImageSet, Need, Scratch, TreeSpec, require, sys};
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, Weak};

/// A file system with a populated tree and nested snapshots.
struct Fixture {
    images: ImageSet,
    _scratch: Scratch,
}

static SHARED: Mutex<Weak<Fixture>> = Mutex::new(Weak::new());

impl Fixture {
    /// Returns the fixture that concurrent tests share, or `None` if the machine cannot create it.
    fn get() -> Option<Arc<Self>> {
        let _met = require(Need::KERNEL_MOUNT)?;
        let _tools = require(&[Need::Command("btrfs")])?;
        let mut shared = SHARED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(fixture) = shared.upgrade() {
            return Some(fixture);
        }
        let scratch = Scratch::new(256 << 20).unwrap();
        let spec = FileSystemSpec { label: Some("inspected".into()), ..FileSystemSpec::default() };
        let images = spec.make(&scratch).unwrap();
        let mounted = images.mount().unwrap();
        let tree = TreeSpec { files: 150, bytes: 8 << 20, seed: 11, subvolumes: true };
        tree.populate(mounted.path()).unwrap();
        mounted.sync().unwrap();
        let at = |path: &str| mounted.path().join(path);
        sys::create_subvolume(&at("origin")).unwrap();
        fs::create_dir(at("origin/directory")).unwrap();
        sys::create_snapshot(&at("origin"), &at("origin/directory/writable"), false).unwrap();
        sys::create_snapshot(&at("origin"), &at("frozen"), true).unwrap();
        mounted.unmount().unwrap();
        let fixture = Arc::new(Self { images, _scratch: scratch });
        *shared = Arc::downgrade(&fixture);
        Some(fixture)
    }

    fn image(&self) -> &Path {
        &self.images.paths()[0]
    }

    fn image_text(&self) -> &str {
        self.image().to_str().unwrap()
    }
}

fn btrfs<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> String {
    let output = Command::new("btrfs").args(arguments).env("TZ", "UTC").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Splits a command line into words, and replaces `@` with `path`.
fn words<'a>(line: &'a str, path: &'a str) -> Vec<&'a str> {
    line.split(' ').map(|word| if word == "@" { path } else { word }).collect()
}

#[test]
fn subvolume_list_matches_btrfs() {
    let Some(fixture) = Fixture::get() else { return };
    let mounted = fixture.images.mount_read_only().unwrap();
    let mount = mounted.path().to_str().unwrap();
    for options in
        ["", "-p -c -g -u -q -R ", "-t -u ", "-s ", "-s -t ", "-r ", "-a ", "-d ", "--sort=-gen,path "]
    {
        let line = format!("subvolume list {options}@");
        let (ours, theirs) = (succeed(words(&line, fixture.image_text())), btrfs(words(&line, mount)));
        assert_eq!(ours, theirs, "{line}");
    }
    assert!(btrfs(["subvolume", "list", mount]).lines().count() > 5);

    let list = json(["subvolume", "list", "--json", fixture.image_text()]);
    let list = list.as_array().unwrap();
    let named = |path: &str| list.iter().find(|subvolume| subvolume["path"] == path).unwrap();
    assert_eq!(named("frozen")["parent_uuid"], named("origin")["uuid"]);
    assert_eq!(named("frozen")["read_only"], true);
    assert_eq!(named("origin/directory/writable")["parent_id"], named("origin")["id"]);
    let below = json(["subvolume", "list", "-o", "--json", &format!("{}:/origin", fixture.image_text())]);
    assert_eq!(below.as_array().unwrap().len(), 1);
}

#[test]
fn subvolume_show_matches_btrfs() {
    let Some(fixture) = Fixture::get() else { return };
    let mounted = fixture.images.mount_read_only().unwrap();
    // btrfs-progs prints a send time even if there is none, and snapshots in a different order.
    let facts = |text: &str| {
        // Newer versions print quotas, which this tree does not have.
        let lines = text.lines().filter(|line| !line.contains("Send time:") && !line.contains("Quota"));
        let mut lines: Vec<String> = lines.map(str::to_owned).collect();
        let snapshots = lines.iter().position(|line| line == "\tSnapshot(s):").unwrap();
        lines[snapshots..].sort();
        lines
    };
    for path in ["/", "/origin", "/frozen", "/origin/directory/writable"] {
        let ours = succeed(["subvolume", "show", &format!("{}:{path}", fixture.image_text())]);
        let host = mounted.path().join(&path[1..]);
        let theirs = btrfs(["subvolume".as_ref(), "show".as_ref(), host.as_os_str()]);
        assert_eq!(facts(&ours), facts(&theirs), "{path}");
    }
    let output = papilio(["subvolume", "show", &format!("{}:/links", fixture.image_text())]);
    assert_ne!(output.status.code(), Some(0), "a plain directory is not a subvolume");
}

/// Compares `filesystem df`, `usage` and `show` with those of btrfs-progs, except for facts that
/// only a mount knows.
fn compare_usage(images: &ImageSet) {
    let mounted = images.mount_read_only().unwrap();
    let mount = mounted.path().to_str().unwrap();
    let image = images.paths()[0].to_str().unwrap();
    let mut global = Vec::new();
    for path in &images.paths()[1..] {
        global.extend(["--device", path.to_str().unwrap()]);
    }
    let ours = |line: &str| succeed(global.iter().copied().chain(words(line, image)));
    let theirs = btrfs(words("filesystem df --raw @", mount));
    assert_eq!(ours("filesystem df --raw @"), theirs);
    assert!(theirs.lines().count() >= 3, "{theirs}");

    // The devices have other paths in the mount, in the same order.
    let without_paths = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.contains("statfs") && !line.is_empty());
        lines
            .map(|line| if line.starts_with("   /") { line.rsplit('\t').next().unwrap() } else { line })
            .map(|line| line.trim_end().to_owned())
            .collect()
    };
    for line in ["filesystem usage -b @", "filesystem usage @"] {
        assert_eq!(without_paths(&ours(line)), without_paths(&btrfs(words(line, mount))));
    }
    let shown = ours("filesystem show --raw @");
    let theirs = btrfs(words("filesystem show --raw @", mount));
    let before_path = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split(" path ").next().unwrap().to_owned()).collect()
    };
    assert_eq!(before_path(&shown), before_path(&theirs));
    assert!(ours("filesystem usage -T @").contains("Unallocated"));
    let usage: Value = serde_json::from_str(&ours("filesystem usage --json @")).unwrap();
    assert_eq!(usage["devices"].as_array().unwrap().len(), images.paths().len());
}

#[test]
fn usage_matches_the_kernel() {
    let Some(fixture) = Fixture::get() else { return };
    compare_usage(&fixture.images);
}

#[test]
fn usage_and_dump_match_on_several_devices_with_parity_and_quotas() {
    if require(Need::KERNEL_MOUNT).is_none() || require(&[Need::Command("btrfs")]).is_none() {
        return;
    }
    let scratch = Scratch::new(256 << 20).unwrap();
    let spec = FileSystemSpec {
        devices: 3,
        data_profile: Some("raid5".into()),
        metadata_profile: Some("raid1".into()),
        quota: Quota::Full,
        ..FileSystemSpec::default()
    };
    let images = spec.make(&scratch).unwrap();
    let mounted = images.mount().unwrap();
    fs::write(mounted.path().join("data"), vec![7; 3 << 20]).unwrap();
    mounted.unmount().unwrap();
    compare_usage(&images);
    compare_dump(&images);
}

/// Returns the blocks of a dump, and the items, each with its block.
fn blocks_and_items(dump: &str) -> BTreeSet<String> {
    let mut block = String::new();
    let mut found = BTreeSet::new();
    for line in dump.lines() {
        if (line.starts_with("leaf ") || line.starts_with("node ")) && line.contains(" owner ") {
            block = line.to_owned();
            found.insert(block.clone());
        } else if (line.starts_with("\titem ") && line.contains(" itemsize "))
            || (line.starts_with("\tkey (") && line.contains(" block "))
        {
            found.insert(format!("{block}{line}"));
        }
    }
    found
}

fn compare_dump(images: &ImageSet) {
    let image = images.paths()[0].to_str().unwrap();
    let rest: Vec<&str> = images.paths()[1..].iter().map(|path| path.to_str().unwrap()).collect();
    let devices = rest.iter().flat_map(|path| ["--device", path]);
    let ours = succeed(devices.chain(["inspect", "dump-tree", image]));
    let theirs = ["inspect-internal", "dump-tree", image].into_iter().chain(rest.iter().copied());
    let theirs = btrfs(theirs);
    let (ours_found, theirs_found) = (blocks_and_items(&ours), blocks_and_items(&theirs));
    assert!(theirs_found.len() > 50);
    let first = ours_found.symmetric_difference(&theirs_found).next();
    assert_eq!(first, None, "only one side shows it");
    assert!(!ours.contains("BAD") && !ours.contains("unknown item"));
}

#[test]
fn dump_tree_matches_btrfs() {
    let Some(fixture) = Fixture::get() else { return };
    compare_dump(&fixture.images);

    let dump = json(["inspect", "dump-tree", "--json", "-t", "fs", fixture.image_text()]);
    let blocks = dump.as_array().unwrap();
    let root = blocks.iter().find(|block| block["level"] == 0).unwrap();
    assert_eq!(root["items"][0]["key"]["type_name"], "INODE_ITEM");
    assert_eq!(root["items"][0]["fields"]["links"], 1);
    let hidden = succeed(["inspect", "dump-tree", "--hide-names", "-t", "5", fixture.image_text()]);
    assert!(hidden.contains("name: HIDDEN") && !hidden.contains("origin"));

    // One block by its address, alone and with the blocks below.
    let top = blocks.iter().max_by_key(|block| block["level"].as_u64()).unwrap();
    let address = top["address"].to_string();
    let one = json(["inspect", "dump-tree", "--json", "-b", &address, fixture.image_text()]);
    assert_eq!(one.as_array().unwrap().len(), 1);
    let all = json(["inspect", "dump-tree", "--json", "--follow", "-b", &address, fixture.image_text()]);
    assert_eq!(all.as_array().unwrap().len(), blocks.len());
}

#[test]
fn tree_stats_match_btrfs() {
    let Some(fixture) = Fixture::get() else { return };
    let ours = succeed(["inspect", "tree-stats", "-b", fixture.image_text()]);
    let theirs = btrfs(["inspect-internal", "tree-stats", "-b", fixture.image_text()]);
    let known = ["size", "seek", "cluster", "Inline", "spread", "Levels", "nodes", "On level"];
    let facts = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| known.iter().any(|word| line.contains(word)));
        lines.filter(|line| !line.contains("Unused")).map(str::to_owned).collect()
    };
    assert_eq!(facts(&ours), facts(&theirs));
    let stats = json(["inspect", "tree-stats", "--json", "--tree", "fs", fixture.image_text()]);
    assert!(stats[0]["items"].as_u64().unwrap() > 1000 && stats[0]["bad_blocks"] == 0, "{stats}");
}

#[test]
fn dump_super_matches_btrfs() {
    let Some(fixture) = Fixture::get() else { return };
    for options in ["", "-f ", "-a -f ", "-s 1 "] {
        let ours = succeed(words(&format!("inspect dump-super {options}@"), fixture.image_text()));
        let theirs = btrfs(words(&format!("inspect-internal dump-super {options}@"), fixture.image_text()));
        assert_eq!(ours.trim_end(), theirs.trim_end(), "{options}");
    }
    let dump = json(["inspect", "dump-super", "--json", fixture.image_text()]);
    assert_eq!(dump[0]["label"], "inspected");
    assert_eq!((&dump[0]["valid"], &dump[0]["csum_matches"]), (&true.into(), &true.into()));
}

#[test]
fn dump_super_shows_invalid_superblocks() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let file = fs::File::create(&image).unwrap();
    file.set_len(1 << 20).unwrap();
    // Only the magic number and the size of a system chunk array of zeros are set.
    file.write_all_at(b"_BHRfS_M", (64 << 10) + 64).unwrap();
    file.write_all_at(&100_u32.to_le_bytes(), (64 << 10) + 160).unwrap();
    let image = image.to_str().unwrap();
    let dump = succeed(["inspect", "dump-super", "-f", image]);
    assert!(dump.contains("csum\t\t\t0x00000000 [DON'T MATCH]"), "{dump}");
    assert!(dump.contains("magic\t\t\t_BHRfS_M [match]") && dump.contains("\tBAD: "), "{dump}");
    let dump = json(["inspect", "dump-super", "--json", image]);
    assert_eq!(dump[0]["valid"], false);

    file.write_all_at(&[0; 8], (64 << 10) + 64).unwrap();
    let output = papilio(["inspect", "dump-super", image]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("bad magic"));
    let dump = succeed(["inspect", "dump-super", "--force", image]);
    assert!(dump.contains("magic\t\t\t........ [DON'T MATCH]"), "{dump}");
    assert_eq!(papilio(["inspect", "dump-super", "-s", "1", image]).status.code(), Some(1));
}

#[test]
fn dump_tree_continues_after_a_bad_block() {
    let Some(fixture) = Fixture::get() else { return };
    let folder = tempfile::tempdir_in(fixture.image().parent().unwrap()).unwrap();
    let copy = folder.path().join("image");
    fs::copy(fixture.image(), &copy).unwrap();
    // Damages both copies of a leaf of the top-level subvolume.
    let dump = json(["inspect", "dump-tree", "--json", "-t", "fs", fixture.image_text()]);
    let blocks = dump.as_array().unwrap();
    let leaf = blocks.iter().filter(|block| block["level"] == 0).nth(1).unwrap();
    let address = leaf["address"].as_u64().unwrap();
    let bytes = fs::read(&copy).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&copy).unwrap();
    // The address in its header identifies each copy.
    let marks: Vec<usize> = (0..bytes.len() - 56)
        .step_by(4096)
        .filter(|&at| bytes[at + 48..at + 56] == address.to_le_bytes())
        .collect();
    assert!(!marks.is_empty());
    for at in marks {
        file.write_all_at(b"rotten", at as u64 + 2000).unwrap();
    }
    let output = papilio(["inspect", "dump-tree", "--json", "-t", "fs", copy.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains(&address.to_string()));
    let broken: Value = serde_json::from_slice(&output.stdout).unwrap();
    let broken = broken.as_array().unwrap();
    assert_eq!(broken.len(), blocks.len());
    assert_eq!(broken.iter().filter(|block| block.get("error").is_some()).count(), 1);
    let output = papilio(["inspect", "tree-stats", "--json", "--tree", "5", copy.to_str().unwrap()]);
    let stats: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((stats[0]["bad_blocks"].as_u64(), output.status.code()), (Some(1), Some(1)));
}
