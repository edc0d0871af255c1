//! Fsyncs of directories.

use super::case::{Case, judge_all, logged};
use papilio::NewKind;

const CASES: &[Case] = &[
    logged(
        "new files, directories and links in a directory",
        |at| {
            at.mkdir("/d");
            at.file("/old");
        },
        |at| {
            at.file("/d/a");
            at.mkdir("/d/e");
            at.file("/d/e/b");
            at.mkdir("/d/e/f");
            at.symlink("somewhere", "/d/link");
            at.special(NewKind::Fifo, "/d/pipe");
            at.link("/old", "/d/old");
            at.fsync("/d");
        },
        |seen| {
            seen.lists("/d", &["a", "e", "link", "pipe", "old"]);
            seen.lists("/d/e", &["b", "f"]);
            seen.target("/d/link", "somewhere");
            seen.links("/old", 2);
        },
    ),
    logged(
        "a directory fsynced, then a file in it, and both can be removed",
        |at| {
            at.mkdir("/d");
            at.file("/d/a");
        },
        |at| {
            at.file("/d/b");
            at.fsync("/d");
            at.write("/d/b", 100, b"more");
            at.fsync("/d/b");
        },
        |seen| seen.lists("/d", &["a", "b"]),
    ),
    logged(
        "removed entries",
        |at| {
            at.mkdir("/d");
            (0..50).for_each(|n| drop(at.file(&format!("/d/{n}"))));
        },
        |at| {
            (0..50).filter(|n| n % 3 > 0).for_each(|n| at.unlink(&format!("/d/{n}")));
            at.fsync("/d");
        },
        |seen| {
            let left: Vec<String> = (0..50).filter(|n| n % 3 == 0).map(|n| n.to_string()).collect();
            seen.lists("/d", &left.iter().map(String::as_str).collect::<Vec<_>>());
        },
    ),
    logged(
        "the last entry removed, and others added",
        |at| {
            at.mkdir("/d");
            at.mkdir("/e");
            at.file("/d/a");
            at.file("/d/last");
        },
        |at| {
            at.rename("/d/last", "/e/last");
            at.file("/d/new");
            at.fsync("/d/new");
        },
        |seen| {
            seen.one_of("/d/last", "/e/last");
            seen.is("/d/new", "/d/new");
        },
    ),
    logged(
        "a directory fsynced repeatedly between creates and unlinks",
        |at| at.mkdir("/d"),
        |at| {
            for round in 0..30 {
                at.file(&format!("/d/a{round}"));
                if round % 2 == 1 {
                    at.unlink(&format!("/d/a{}", round - 1));
                }
                at.fsync("/d");
            }
        },
        |seen| {
            let left: Vec<String> = (0..30).filter(|n| n % 2 == 1).map(|n| format!("a{n}")).collect();
            seen.lists("/d", &left.iter().map(String::as_str).collect::<Vec<_>>());
        },
    ),
    logged(
        "the root directory",
        |at| {
            at.file("/a");
            at.file("/b");
        },
        |at| {
            at.unlink("/a");
            at.mkdir("/d");
            at.rename("/b", "/d/b");
            at.set_xattr("/", "user.root", "yes");
            at.fsync("/");
        },
        |seen| {
            seen.lists("/", &["d"]);
            seen.is("/d/b", "/b");
            seen.xattr("/", "user.root", Some("yes"));
        },
    ),
    logged(
        "attributes and permissions of a directory",
        |at| {
            at.mkdir("/d");
            at.set_xattr("/d", "user.one", "1");
            at.set_xattr("/d", "user.two", "2");
        },
        |at| {
            at.remove_xattr("/d", "user.one");
            at.chmod("/d", 0o750);
            at.fsync("/d");
        },
        |seen| {
            seen.xattr("/d", "user.one", None);
            seen.xattr("/d", "user.two", Some("2"));
            seen.mode("/d", 0o750);
        },
    ),
    logged(
        "a symbolic link fsynced, and one whose directory is fsynced",
        |at| at.mkdir("/d"),
        |at| {
            at.symlink("of its own", "/d/one");
            at.fsync("/d/one");
            at.symlink(&"long/".repeat(300), "/d/two");
            at.fsync("/d");
        },
        |seen| {
            seen.target("/d/one", "of its own");
            seen.target("/d/two", &"long/".repeat(300));
        },
    ),
    logged(
        "a file deep in new directories",
        |_| {},
        |at| {
            for path in ["/a", "/a/b", "/a/b/c", "/a/b/c/d"] {
                at.mkdir(path);
            }
            at.file("/a/b/beside");
            at.file("/a/b/c/d/file");
            at.fsync("/a/b/c/d/file");
        },
        |seen| seen.is("/a/b/c/d/file", "/a/b/c/d/file"),
    ),
    logged(
        "a directory whose files were all replaced",
        |at| {
            at.mkdir("/d");
            (0..300).for_each(|n| drop(at.file(&format!("/d/old{n}"))));
        },
        |at| {
            (0..300).for_each(|n| at.unlink(&format!("/d/old{n}")));
            (0..300).for_each(|n| drop(at.file(&format!("/d/new{n}"))));
            at.fsync("/d");
        },
        |seen| {
            let new: Vec<String> = (0..300).map(|n| format!("new{n}")).collect();
            seen.lists("/d", &new.iter().map(String::as_str).collect::<Vec<_>>());
        },
    ),
    logged(
        "names unlinked in a directory fsynced before",
        |at| at.mkdir("/d"),
        |at| {
            at.file("/d/a");
            at.file("/d/b");
            at.fsync("/d");
            at.unlink("/d/a");
            at.fsync("/d");
            at.rename("/d/b", "/b");
            at.fsync("/d");
        },
        |seen| {
            seen.lists("/d", &[]);
            seen.is("/b", "/d/b");
        },
    ),
    logged(
        "a removed directory tree",
        |at| {
            at.mkdir("/d");
            at.mkdir("/d/e");
            at.file("/d/e/a");
            at.file("/d/b");
        },
        |at| {
            at.unlink("/d/e/a");
            at.rmdir("/d/e");
            at.unlink("/d/b");
            at.rmdir("/d");
            at.fsync("/");
        },
        |seen| seen.lists("/", &[]),
    ),
];

#[test]
fn fsyncs_of_directories() {
    judge_all(CASES);
}
