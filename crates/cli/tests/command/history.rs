//! `papilio history`, on images and in mounts of the kernel.

use crate::common::{fail, succeed_json, succeed_text as succeed};
use papilio_oracle::{ImageSet, Need, Scratch, require};
use serde_json::Value;
use std::fs;
use std::path::Path;

fn string(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns the steps: both ends, and the changes as letter and paths.
fn history(arguments: &[&str]) -> Vec<(String, String, Vec<String>)> {
    let all = [&["history", "--json"], arguments].concat();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let change = |change: &Value| {
        let old = change.get("old_path").map(|old| format!("{} ", text(old))).unwrap_or_default();
        format!("{} {old}{}", text(&change["change"]), text(&change["path"]))
    };
    let steps = succeed_json(all);
    let step = |step: &Value| {
        let changes = step["changes"].as_array().unwrap().iter().map(change).collect();
        (text(&step["old"]["path"]), text(&step["new"]["path"]), changes)
    };
    steps.as_array().unwrap().iter().map(step).collect()
}

fn step(old: &str, new: &str, changes: &[&str]) -> (String, String, Vec<String>) {
    (old.to_owned(), new.to_owned(), changes.iter().map(|&change| change.to_owned()).collect())
}

/// Makes `/home` with four snapshots. The directory `/home/work` is called `draft` at first, and is
/// gone in the end.
fn days(folder: &Path, image: &str) {
    let at = |path: &str| format!("{image}:{path}");
    let host = folder.join("host");
    let write = |text: &str, path: &str| {
        fs::write(&host, text).unwrap();
        succeed(["cp", string(&host), &at(path)]);
    };
    let snapshot = |name: &str| succeed(["subvolume", "snapshot", "-r", &at("/home"), &at(name)]);
    succeed(["mkfs", "-q", "--size", "200M", image]);
    succeed(["subvolume", "create", &at("/home")]);
    for directory in ["draft", "other"] {
        succeed(["mkdir", &at(&format!("/home/{directory}"))]);
    }
    write("a", "/home/draft/a");
    write("b", "/home/draft/b");
    write("x", "/home/other/x");
    snapshot("/day1");
    succeed(["mv", &at("/home/draft"), &at("/home/work")]);
    write("changed", "/home/work/a");
    write("changed", "/home/other/x");
    snapshot("/day2");
    succeed(["rm", &at("/home/work/b")]);
    succeed(["mv", &at("/home/other/x"), &at("/home/work/x")]);
    snapshot("/day3");
    write("y", "/home/other/y");
    snapshot("/day4");
    succeed(["rm", "-r", &at("/home/work")]);
}

#[test]
fn a_directory_is_followed_from_snapshot_to_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image").to_str().unwrap().to_owned();
    days(folder.path(), &image);
    let work = format!("{image}:/home/work");
    let steps = [
        step("/day1", "/day2", &["renamed /draft /work", "changed /work/a"]),
        step("/day2", "/day3", &["deleted /work/b", "renamed /other/x /work/x"]),
        step("/day4", "/home", &["deleted /work", "deleted /work/a", "deleted /work/x"]),
    ];
    assert_eq!(history(&[&work]), steps);
    assert_eq!(history(&[&work, "--since", "day2"]), steps[1..]);
    assert_eq!(history(&[&work, "--all"])[2], step("/day3", "/day4", &[]));
    let home = history(&[&format!("{image}:/home")]);
    assert_eq!(home.len(), 4);
    assert_eq!(home[2], step("/day3", "/day4", &["added /other/y"]));
    let shown = succeed(["history", &work]);
    assert!(shown.contains("/day1 -> /day2, 2") && shown.contains("  R /draft/ -> /work/\n"), "{shown}");
    let counted = succeed(["history", "-s", &work]);
    assert!(counted.contains("0 added, 1 deleted, 1 renamed, 0 changed"), "{counted}");
    fail(1, "no such file", ["history", &format!("{image}:/home/never")]);
    fail(1, "not a directory", ["history", &format!("{image}:/home/other/y")]);
    fail(1, "no subvolume has this id", ["history", &work, "--since", "/nothing"]);
    // After a rollback, the past of the new subvolume ends where it began.
    let at = |path: &str| format!("{image}:{path}");
    succeed(["subvolume", "snapshot", &at("/day2"), &at("/back")]);
    assert_eq!(history(&[&at("/back/work")]), steps[..1]);
}

#[test]
fn a_directory_in_a_mount_of_the_kernel_has_a_history() {
    if require(&[Need::Root, Need::Loop, Need::KernelBtrfs]).is_none() {
        return;
    }
    let scratch = Scratch::new(300 << 20).unwrap();
    let image = scratch.path().join("image");
    days(scratch.path(), string(&image));
    let images = ImageSet::open(&scratch, vec![image]);
    let mounted = images.mount().unwrap();
    let work = mounted.path().join("home/work");
    assert_eq!(history(&[string(&work)]).len(), 3);
    fs::create_dir(&work).unwrap();
    fs::write(work.join("new"), "new").unwrap();
    let last = history(&[string(&work)]).pop().unwrap();
    assert!(last.2.iter().any(|change| change == "added /work/new"), "{last:?}");
    mounted.unmount().unwrap();
}
