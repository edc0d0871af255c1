//! `diff`: the changes between snapshots that the kernel made.

use crate::common::{fail, succeed_json, succeed_text as succeed};
use crate::fixture::noise;
use papilio_oracle::{FileSystemSpec, Need, Scratch, require, sys};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

fn make_old(root: &Path) {
    for name in ["d", "moved", "gone/deep"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    for (name, seed) in [("kept", 1), ("written", 2), ("mode", 3), ("d/renamed", 4), ("moved/below", 5)] {
        fs::write(root.join(name), noise(seed, 20_000)).unwrap();
    }
    for name in ["gone/deep/f", "becomes a directory", "attributes", "touched", "linked", "first", "swap a"] {
        fs::write(root.join(name), name).unwrap();
    }
    fs::write(root.join("swap b"), "b").unwrap();
    fs::hard_link(root.join("first"), root.join("second")).unwrap();
    for number in 0..500 {
        fs::write(root.join(format!("d/{number}")), "same").unwrap();
    }
}

fn make_new(root: &Path) {
    fs::write(root.join("written"), noise(9, 30_000)).unwrap();
    fs::set_permissions(root.join("mode"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(root.join("d/renamed"), root.join("new name")).unwrap();
    fs::rename(root.join("moved"), root.join("d/moved")).unwrap();
    fs::remove_dir_all(root.join("gone")).unwrap();
    fs::remove_file(root.join("becomes a directory")).unwrap();
    fs::create_dir(root.join("becomes a directory")).unwrap();
    xattr::set(root.join("attributes"), "user.a", b"1").unwrap();
    fs::File::open(root.join("touched")).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    fs::hard_link(root.join("linked"), root.join("d/link")).unwrap();
    fs::remove_file(root.join("second")).unwrap();
    fs::write(root.join("added\nname"), "x").unwrap();
    fs::rename(root.join("swap a"), root.join("t")).unwrap();
    fs::rename(root.join("swap b"), root.join("swap a")).unwrap();
    fs::rename(root.join("t"), root.join("swap b")).unwrap();
}

/// Returns the names below a directory, with inode numbers.
fn names(root: &Path) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    let mut directories = vec![root.to_path_buf()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let metadata = entry.metadata().unwrap();
            let path = entry.path().strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            found.insert(format!("/{path}"), metadata.ino());
            if metadata.is_dir() {
                directories.push(entry.path());
            }
        }
    }
    found
}

#[test]
fn changes_between_snapshots_are_shown() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(600 << 20).unwrap();
    let images = FileSystemSpec::default().make(&scratch).unwrap();
    let mounted = images.mount().unwrap();
    let (sub, old, new) =
        (mounted.path().join("sub"), mounted.path().join("old"), mounted.path().join("new"));
    sys::create_subvolume(&sub).unwrap();
    make_old(&sub);
    sys::create_snapshot(&sub, &old, true).unwrap();
    make_new(&sub);
    sys::create_snapshot(&sub, &new, true).unwrap();
    let (before, after) = (names(&old), names(&new));
    mounted.unmount().unwrap();
    let image = images.paths()[0].to_str().unwrap();
    let [old, new, sub] = ["old", "new", "sub"].map(|name| format!("{image}:/{name}"));
    let shown = succeed(["diff", &old, &new]);
    let expected = "\
A /added\\nname
M /attributes (metadata)
D /becomes a directory
A /becomes a directory/
A /d/link
R /moved/ -> /d/moved/
D /gone/
D /gone/deep/
D /gone/deep/f
M /mode (metadata)
R /d/renamed -> /new name
D /second
R /swap b -> /swap a
R /swap a -> /swap b
M /touched (metadata)
M /written (content)
";
    let sorted = |text: &str| {
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&shown), sorted(expected), "{shown}");
    assert_eq!(succeed(["diff", &old, &sub]), shown, "the subvolume equals its snapshot");
    assert_eq!(succeed(["diff", &new, &new]), "");
    assert_eq!(succeed(["diff", "-s", &old, &new]), "3 added, 5 deleted, 4 renamed, 4 changed\n");

    // Applied to the old names, the changes give the new ones.
    let mut names = before.clone();
    let json = succeed_json(["diff", "--json", &old, &new]);
    let text = |change: &serde_json::Value, field: &str| change[field].as_str().unwrap().to_owned();
    let changes = json.as_array().unwrap();
    let mut moved = BTreeMap::new();
    for change in changes.iter().filter(|change| ["deleted", "renamed"].contains(&&*text(change, "change"))) {
        let old = if change["old_path"].is_null() { text(change, "path") } else { text(change, "old_path") };
        let below = format!("{old}/");
        let taken: Vec<_> =
            names.keys().filter(|name| **name == old || name.starts_with(&below)).cloned().collect();
        for name in taken {
            let inode = names.remove(&name).unwrap();
            if text(change, "change") == "renamed" {
                moved.insert(format!("{}{}", text(change, "path"), &name[old.len()..]), inode);
            }
        }
    }
    names.extend(moved);
    for change in changes.iter().filter(|change| text(change, "change") == "added") {
        names.insert(text(change, "path"), after[&text(change, "path")]);
    }
    assert_eq!(names, after);
    // The other way round everything that was added is deleted.
    assert_eq!(succeed(["diff", "-s", &new, &old]), "5 added, 3 deleted, 4 renamed, 4 changed\n");
    fail(1, "no such subvolume", ["diff", &old, &format!("{image}:/new/d")]);
    fail(2, "in one file system", ["diff", &old, "/nowhere.img:/new"]);
}
