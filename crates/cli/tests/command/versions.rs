//! `papilio versions`, on images and in mounts of the kernel.

use crate::common::{fail, papilio, succeed_text as succeed};
use papilio_oracle::{ImageSet, Need, Scratch, require};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

fn string(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn versions(path: &str) -> Vec<Value> {
    let shown: Value = serde_json::from_str(&succeed(["versions", "--json", path])).unwrap();
    shown.as_array().unwrap().clone()
}

/// Returns the paths of a version.
fn paths(version: &Value) -> Vec<&str> {
    version["holders"].as_array().unwrap().iter().map(|holder| holder["path"].as_str().unwrap()).collect()
}

/// Makes `/home/docs/report` with a version for each day; it was renamed after the second day, and
/// replaced by another file after the third.
fn days(folder: &Path, image: &str) {
    let at = |path: &str| format!("{image}:{path}");
    let host = folder.join("host");
    let write = |text: &str, path: &str| {
        fs::write(&host, text).unwrap();
        succeed(["cp", "-a", string(&host), &at(path)]);
    };
    let snapshot = |name: &str| succeed(["subvolume", "snapshot", "-r", &at("/home"), &at(name)]);
    succeed(["mkfs", "-q", "--size", "200M", image]);
    succeed(["subvolume", "create", &at("/home")]);
    // Another subvolume, which no snapshot connects with the first, has such a path, too.
    succeed(["subvolume", "create", &at("/other")]);
    for subvolume in ["home", "other"] {
        succeed(["mkdir", &at(&format!("/{subvolume}/docs"))]);
    }
    write("something else", "/other/docs/report");
    write("first", "/home/docs/draft");
    snapshot("/day1");
    succeed(["mv", &at("/home/docs/draft"), &at("/home/docs/report")]);
    snapshot("/day2");
    write("second, which is longer", "/home/docs/report");
    snapshot("/day3");
    snapshot("/day4");
    write(&"third".repeat(20_000), "/home/docs/new");
    succeed(["mv", &at("/home/docs/new"), &at("/home/docs/report")]);
}

#[test]
fn versions_are_found_by_path_and_by_inode() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image").to_str().unwrap().to_owned();
    days(folder.path(), &image);
    let report = format!("{image}:/home/docs/report");
    let found = versions(&report);
    let all: Vec<Vec<&str>> = found.iter().map(paths).collect();
    assert_eq!(
        all,
        [
            vec!["/day1/docs/draft", "/day2/docs/report"],
            vec!["/day3/docs/report", "/day4/docs/report"],
            vec!["/home/docs/report"]
        ]
    );
    assert_eq!(found[2]["size"], 100_000);
    let shown = succeed(["versions", &report]);
    assert!(shown.contains("/day1/docs/draft to /day2/docs/report"), "{shown}");
    let all = succeed(["versions", "-a", "-b", &report]);
    assert!(all.contains("/day1/docs/draft, /day2/docs/report") && all.contains("100000"), "{all}");

    let to = folder.path().join("restored");
    succeed(["versions", &report, "--restore", "2", string(&to)]);
    assert_eq!(fs::read_to_string(&to).unwrap(), "second, which is longer");
    assert_eq!(fs::metadata(&to).unwrap().mode() & 0o777, found[1]["mode"].as_u64().unwrap() as u32);
    fail(1, "exists already", ["versions", &report, "--restore", "1", string(&to)]);
    assert_eq!(fs::read_to_string(&to).unwrap(), "second, which is longer");
    let other = folder.path().join("other");
    fail(1, "there is no version 4, only 3", ["versions", &report, "--restore", "4", string(&other)]);
    assert!(!other.exists());
    fail(2, "papilio cp -a", ["versions", &report, "--restore", "1", &format!("{image}:/x")]);
    assert_eq!(papilio(["versions", &report, "--restore", "1"]).status.code(), Some(2));

    // A file that is gone, and one that never was.
    succeed(["rm", &report]);
    assert_eq!(versions(&report).len(), 2);
    fail(1, "no such file", ["versions", &format!("{image}:/home/docs/never")]);
    fail(2, "a subvolume", ["versions", &format!("{image}:/home")]);
}

#[test]
fn versions_are_found_in_mounts_of_the_kernel() {
    if require(&[Need::Root, Need::Loop, Need::KernelBtrfs]).is_none() {
        return;
    }
    let scratch = Scratch::new(300 << 20).unwrap();
    let image = scratch.path().join("image");
    days(scratch.path(), string(&image));
    let images = ImageSet::open(&scratch, vec![image]);
    let mounted = images.mount().unwrap();
    let report = mounted.path().join("home/docs/report");
    assert_eq!(versions(string(&report)).len(), 3);
    // A write of a moment ago is seen, twice: blocks that were read before are not shown again.
    for length in [500, 900] {
        fs::write(&report, vec![b'x'; length]).unwrap();
        let found = versions(string(&report));
        assert_eq!(found.last().unwrap()["size"], length);
    }
    fs::remove_file(&report).unwrap();
    assert_eq!(versions(string(&report)).len(), 2);
    mounted.unmount().unwrap();
}
