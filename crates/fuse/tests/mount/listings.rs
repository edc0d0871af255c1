//! Cached directory listings stay correct after every kind of change to names.

use crate::server::{Mount, NEEDS, make_image};
use papilio::{FileSystem, OpenOptions};
use papilio_ioctl::client::MountedPath;
use papilio_oracle::{Scratch, require};
use rustix::fs::Dir;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;

/// Returns a directory's names without `.` and `..`.
fn names(directory: &Path) -> BTreeSet<String> {
    // The second listing may come from the kernel's cache.
    let listed =
        || fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let (first, second): (BTreeSet<_>, BTreeSet<_>) = (listed().collect(), listed().collect());
    assert_eq!(first, second);
    first
}

/// Returns the names from an open directory's position on, after a rewind if `rewind` is set.
fn rest_of(directory: &mut Dir, rewind: bool) -> BTreeSet<String> {
    if rewind {
        directory.rewind();
    }
    let all = directory.map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned());
    all.filter(|name| !name.starts_with('.')).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(ToString::to_string).collect()
}

#[test]
fn listings_follow_changes_to_names() {
    let Some(_) = require(NEEDS) else { return };
    let scratch = Scratch::new(256 << 20).unwrap();
    let image = make_image(&scratch, 256 << 20);
    for options in ["subvolid=5", "subvolid=5,strictatime", "subvolid=5,nowriteback_cache"] {
        let mount = Mount::new(&scratch, &image, options);
        let root = mount.path().join("t");
        let other = mount.path().join("other");
        fs::create_dir(&root).unwrap();
        fs::create_dir(&other).unwrap();
        let at = |name: &str| root.join(name);
        assert_eq!(names(&root), set(&[]));
        fs::write(at("file"), b"content").unwrap();
        assert_eq!(names(&root), set(&["file"]));
        fs::create_dir(at("directory")).unwrap();
        std::os::unix::fs::symlink("file", at("symlink")).unwrap();
        fs::hard_link(at("file"), at("link")).unwrap();
        assert_eq!(names(&root), set(&["directory", "file", "link", "symlink"]));
        fs::rename(at("file"), at("renamed")).unwrap();
        assert_eq!(names(&root), set(&["directory", "link", "renamed", "symlink"]));
        fs::rename(at("link"), other.join("moved")).unwrap();
        assert_eq!(names(&root), set(&["directory", "renamed", "symlink"]));
        assert_eq!(names(&other), set(&["moved"]));
        fs::rename(other.join("moved"), at("symlink")).unwrap();
        fs::remove_file(at("symlink")).unwrap();
        fs::remove_dir(at("directory")).unwrap();
        assert_eq!((names(&root), names(&other)), (set(&["renamed"]), set(&[])));

        // Names that an ioctl adds or removes, some of which the kernel has looked up before.
        let here = MountedPath::open(&root).unwrap();
        here.create_subvolume(b"subvolume").unwrap();
        assert_eq!(names(&root), set(&["renamed", "subvolume"]));
        let subvolume = MountedPath::open(&at("subvolume")).unwrap();
        assert!(!at("snapshot").exists());
        here.create_snapshot(&subvolume, b"snapshot", false).unwrap();
        assert_eq!(names(&root), set(&["renamed", "snapshot", "subvolume"]));
        drop(subvolume);
        here.delete_subvolume(b"subvolume").unwrap();
        assert_eq!(names(&root), set(&["renamed", "snapshot"]));
        here.delete_subvolume(b"snapshot").unwrap();
        assert_eq!(names(&root), set(&["renamed"]));
        drop(here);

        fs::remove_dir_all(&root).unwrap();
        fs::remove_dir(&other).unwrap();
        mount.unmount();
    }
}

#[test]
fn rewinding_lists_an_open_directory_anew() {
    let Some(_) = require(NEEDS) else { return };
    let scratch = Scratch::new(256 << 20).unwrap();
    let image = make_image(&scratch, 256 << 20);
    let mount = Mount::new(&scratch, &image, "subvolid=5");
    // More names than fit in one reply.
    let expected: BTreeSet<String> =
        (0..5000).map(|number| format!("a name of some length {number}")).collect();
    for name in &expected {
        File::create(mount.path().join(name)).unwrap();
    }
    assert_eq!(names(mount.path()), expected);
    let mut open = Dir::read_from(File::open(mount.path()).unwrap()).unwrap();
    assert_eq!(rest_of(&mut open, false), expected);
    for _ in 0..2 {
        assert_eq!(rest_of(&mut open, true), expected);
    }
    File::create(mount.path().join("new")).unwrap();
    let mut more = expected.clone();
    more.insert("new".to_owned());
    assert_eq!(rest_of(&mut open, true), more);
    // Renaming during a listing: each entry appears once, and the listing ends.
    let mut seen: BTreeSet<String> = BTreeSet::new();
    for (renamed, entry) in fs::read_dir(mount.path()).unwrap().enumerate() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        fs::rename(mount.path().join(&name), mount.path().join(format!("renamed {name}"))).unwrap();
        assert!(seen.insert(name), "an entry appears twice");
        assert!(renamed < more.len(), "the listing does not end");
    }
    assert_eq!(seen, more);
    drop(open);
    mount.unmount();
}

#[test]
fn read_only_files_open_without_the_server() {
    let Some(_) = require(NEEDS) else { return };
    let scratch = Scratch::new(256 << 20).unwrap();
    let image = make_image(&scratch, 256 << 20);
    let image_fs = FileSystem::open_with(&image, &OpenOptions::new().write(true)).unwrap();
    image_fs.create_dir("/d").unwrap();
    let expected: BTreeSet<String> = (0..3000).map(|number| format!("f{number}")).collect();
    for name in &expected {
        image_fs.create_file(format!("/d/{name}")).unwrap().write_all_at(name.as_bytes(), 0).unwrap();
    }
    image_fs.close().unwrap();
    let mount = Mount::new(&scratch, &image, "ro");
    let directory = mount.path().join("d");
    let mut open = Dir::read_from(File::open(&directory).unwrap()).unwrap();
    for _ in 0..2 {
        assert_eq!(names(&directory), expected);
        assert_eq!(rest_of(&mut open, true), expected);
        for name in &expected {
            assert_eq!(fs::read(directory.join(name)).unwrap(), name.as_bytes());
        }
        let writing = File::options().write(true).open(directory.join("f1"));
        assert_eq!(writing.unwrap_err().raw_os_error(), Some(libc::EROFS));
    }
    drop(open);
    mount.unmount();
}
