//! `papilio versions`, on images and in mounts of the kernel.

use crate::common::{assert_clean, fail, papilio, succeed_json, succeed_text as succeed};
use papilio_oracle::{FileSystemSpec, ImageSet, Mounted, Need, Scratch, require, sys};
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
    assert_eq!(papilio(["versions", &report, string(&other)]).status.code(), Some(2));

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

/// Content, mode, owner and group, time of change, and an attribute of a file.
type Kept = (Vec<u8>, u32, (u32, u32), (i64, i64), Option<Vec<u8>>);

/// Returns what a restored file must keep of its version.
fn kept(path: &Path) -> Kept {
    let found = fs::metadata(path).unwrap();
    let time = (found.mtime(), found.mtime_nsec());
    let attribute = xattr::get(path, "user.kind").unwrap();
    (fs::read(path).unwrap(), found.mode(), (found.uid(), found.gid()), time, attribute)
}

#[test]
fn versions_are_compared_and_restored_in_an_image() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image").to_str().unwrap().to_owned();
    days(folder.path(), &image);
    let report = format!("{image}:/home/docs/report");

    let shown = succeed(["versions", &report, "--diff", "1", "2"]);
    assert!(shown.contains("size: 5 -> 23") && shown.contains("-first"), "{shown}");
    assert!(shown.contains("+second, which is longer"), "{shown}");
    let found = succeed_json(["versions", &report, "--json", "--diff", "1"]);
    assert_eq!((found["new"].as_u64(), found["same_content"].as_bool()), (Some(3), Some(false)));
    fail(1, "there is no version 9", ["versions", &report, "--diff", "9"]);
    // The ranges that differ of a file that is no text.
    let host = folder.path().join("binary");
    let mut bytes = vec![0; 300_000];
    let write = |bytes: &[u8]| {
        fs::write(&host, bytes).unwrap();
        succeed(["cp", "-a", string(&host), &format!("{image}:/home/docs/binary")]);
    };
    write(&bytes);
    succeed(["subvolume", "snapshot", "-r", &format!("{image}:/home"), &format!("{image}:/day5")]);
    bytes[70_000..70_010].fill(1);
    bytes[200_000] = 2;
    write(&bytes);
    let binary = format!("{image}:/home/docs/binary");
    let found = succeed_json(["versions", &binary, "--json", "--diff", "1", "2"]);
    let ranges: Vec<_> = found["ranges"].as_array().unwrap().iter().collect();
    let range = |at: usize| (ranges[at]["offset"].as_u64().unwrap(), ranges[at]["length"].as_u64().unwrap());
    assert_eq!((ranges.len(), range(0), range(1)), (2, (70_000, 10), (200_000, 1)));

    // The present version is in day5 by now: nothing is lost in place.
    fail(1, "present version", ["versions", &report, "--restore", "3"]);
    succeed(["versions", &report, "--restore", "1"]);
    assert_eq!(succeed(["cat", &report]), "first");
    assert_eq!(
        succeed(["versions", &report, "--diff", "1"]),
        succeed(["versions", &report, "--diff", "1", "3"])
    );
    // A version that no snapshot has stays unless the user insists.
    fs::write(&host, "unsaved").unwrap();
    succeed(["cp", string(&host), &report]);
    fail(1, "-f replaces it", ["versions", &report, "--restore", "2"]);
    assert_eq!(succeed(["cat", &report]), "unsaved");
    succeed(["versions", &report, "--restore", "2", "-f"]);
    assert_eq!(succeed(["cat", &report]), "second, which is longer");
    // Under another name, with the data of the snapshot.
    let big = format!("{image}:/home/docs/big");
    succeed(["versions", &report, "--restore", "3", &big]);
    fail(1, "-f replaces it", ["versions", &report, "--restore", "3", &big]);
    let used = |path: &str| succeed_json(["filesystem", "du", "-s", "--json", path])[0]["exclusive"].clone();
    assert_eq!(used(&big), 0);
    let other = folder.path().join("other.img");
    succeed(["mkfs", "-q", "--size", "200M", string(&other)]);
    succeed(["versions", &report, "--restore", "1", &format!("{}:/copy", other.display())]);
    assert_eq!(succeed(["cat", &format!("{}:/copy", other.display())]), "first");
    assert_clean(Path::new(&image));
}

#[test]
fn deleted_files_come_back_from_snapshots() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image").to_str().unwrap().to_owned();
    days(folder.path(), &image);
    let at = |path: &str| format!("{image}:{path}");
    let only = |path: &str| -> Vec<String> {
        let found = succeed_json(["versions", "--undelete", "--json", &at(path)]);
        found.as_array().unwrap().iter().map(|one| one["path"].as_str().unwrap().to_owned()).collect()
    };
    // The file that the third day replaced has the same path.
    assert_eq!(only("/home"), [""; 0]);
    fail(1, "exists", ["versions", "--undelete", &at("/home/docs/report")]);
    succeed(["subvolume", "snapshot", "-r", &at("/home"), &at("/day5")]);
    succeed(["mv", &at("/home/docs/report"), &at("/home/docs/moved")]);
    succeed(["rm", "-r", &at("/home/docs/moved")]);
    assert_eq!(only("/home/docs"), ["/docs/report"]);
    assert!(succeed(["versions", "--undelete", &at("/home")]).contains("/docs/report in /day5"));
    succeed(["versions", "--undelete", &at("/home/docs/report")]);
    assert_eq!(succeed(["cat", &at("/home/docs/report")]), "third".repeat(20_000));
    assert_eq!(only("/home"), [""; 0]);
    // A whole directory.
    succeed(["rm", "-r", &at("/home/docs")]);
    assert_eq!(only("/home"), ["/docs", "/docs/report"]);
    fail(1, "no such file", ["versions", "--undelete", &at("/home/docs/never")]);
    succeed(["versions", "--undelete", &at("/home/docs")]);
    assert_eq!(succeed(["cat", &at("/home/docs/report")]), "third".repeat(20_000));
    assert_clean(Path::new(&image));
}

/// Returns the bytes of a file that it shares with no other.
fn exclusive(path: &Path) -> u64 {
    let shown = succeed_json(["filesystem", "du", "-s", "--json", string(path)]);
    shown[0]["exclusive"].as_u64().unwrap()
}

/// Restores and undeletes files in a mount, which may show `/home` alone: then no path leads to the
/// snapshots.
fn restore_in_mount(mounted: &Mounted, home: &Path) {
    let file = home.join("file");
    let found = versions(string(&file));
    assert_eq!(found.len(), 2, "{found:?}");
    fail(1, "-f replaces it", ["versions", string(&file), "--restore", "1"]);
    succeed(["versions", string(&file), "--restore", "1", "-f"]);
    mounted.sync().unwrap();
    let (bytes, mode, owner, time, attribute) = kept(&file);
    assert!(bytes == vec![b'a'; 1 << 20]);
    assert_eq!((mode & 0o7777, owner, time), (0o640, (12, 34), (1_000_000_000, 5)));
    assert_eq!(attribute.as_deref(), Some(&b"old"[..]));
    let copy = home.join("copy");
    succeed(["versions", string(&file), "--restore", "1", string(&copy)]);
    mounted.sync().unwrap();
    assert_eq!(kept(&copy), kept(&file));
    assert_eq!((exclusive(&copy), exclusive(&file)), (0, 0));
    fs::remove_file(&file).unwrap();
    fs::remove_file(&copy).unwrap();
    fs::remove_dir_all(home.join("folder")).unwrap();
    mounted.sync().unwrap();
    let only = succeed_json(["versions", "--undelete", "--json", string(home)]);
    let only: Vec<_> = only.as_array().unwrap().iter().map(|one| one["path"].as_str().unwrap()).collect();
    assert_eq!(only, ["/file", "/folder", "/folder/inside"]);
    assert!(versions(string(&home.join("folder/inside"))).len() == 1);
    succeed(["versions", "--undelete", string(&file)]);
    succeed(["versions", "--undelete", string(&home.join("folder"))]);
    mounted.sync().unwrap();
    assert!(fs::read(&file).unwrap() == vec![b'a'; 1 << 20]);
    assert!(fs::read(home.join("folder/inside")).unwrap() == vec![b'i'; 300_000]);
    assert_eq!((exclusive(&file), exclusive(&home.join("folder/inside"))), (0, 0));
}

#[test]
fn versions_are_restored_in_mounts_of_the_kernel() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    for subvolume in [None, Some("home")] {
        let scratch = Scratch::new(600 << 20).unwrap();
        let images = FileSystemSpec::default().make(&scratch).unwrap();
        let mounted = images.mount().unwrap();
        let home = mounted.path().join("home");
        sys::create_subvolume(&home).unwrap();
        let file = home.join("file");
        fs::write(&file, vec![b'a'; 1 << 20]).unwrap();
        fs::create_dir(home.join("folder")).unwrap();
        fs::write(home.join("folder/inside"), vec![b'i'; 300_000]).unwrap();
        std::os::unix::fs::chown(&file, Some(12), Some(34)).unwrap();
        fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
        xattr::set(&file, "user.kind", b"old").unwrap();
        let time = rustix::fs::Timespec { tv_sec: 1_000_000_000, tv_nsec: 5 };
        let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(rustix::fs::CWD, &file, &times, rustix::fs::AtFlags::empty()).unwrap();
        sys::create_snapshot(&home, &mounted.path().join("day1"), true).unwrap();
        fs::write(&file, vec![b'b'; 1 << 20]).unwrap();
        mounted.sync().unwrap();
        match subvolume {
            None => {
                restore_in_mount(&mounted, &home);
                mounted.unmount().unwrap();
            }
            Some(name) => {
                mounted.unmount().unwrap();
                let mounted = images.mount_with(&[format!("subvol={name}")], false).unwrap();
                restore_in_mount(&mounted, mounted.path());
                mounted.unmount().unwrap();
            }
        }
        images.btrfs_check().unwrap();
    }
}
