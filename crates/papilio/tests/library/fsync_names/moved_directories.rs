//! Moved directories, and the files in them.

use super::case::{Case, judge_all, logged};

const CASES: &[Case] = &[
    logged(
        "a moved directory fsynced",
        |at| {
            at.mkdir("/d");
            at.mkdir("/d/e");
            at.file("/d/e/a");
            at.mkdir("/f");
        },
        |at| {
            at.rename("/d/e", "/f/e");
            at.fsync("/f/e");
        },
        |seen| {
            seen.is("/f/e/a", "/d/e/a");
            seen.lists("/d", &[]);
        },
    ),
    logged(
        "a directory moved, then its old parent fsynced",
        |at| {
            at.mkdir("/d");
            at.mkdir("/d/e");
            at.file("/d/e/a");
            at.mkdir("/f");
        },
        |at| {
            at.rename("/d/e", "/f/e");
            at.file("/d/b");
            at.fsync("/d");
        },
        |seen| {
            seen.is("/f/e/a", "/d/e/a");
            seen.lists("/d", &["b"]);
        },
    ),
    logged(
        "a new directory with the old name of a renamed one",
        |at| {
            at.mkdir("/d");
            at.mkdir("/d/x");
            at.file("/d/x/a");
            at.file("/d/x/b");
        },
        |at| {
            at.rename("/d/x", "/d/y");
            at.mkdir("/d/x");
            at.fsync("/d/x");
        },
        |seen| {
            seen.lists("/d/x", &[]);
            seen.lists("/d/y", &["a", "b"]);
        },
    ),
    logged(
        "a directory moved below one that it contained",
        |at| {
            at.mkdir("/a");
            at.mkdir("/a/b");
            at.mkdir("/a/b/c");
            at.file("/a/b/c/file");
        },
        |at| {
            at.rename("/a/b", "/b");
            at.rename("/a", "/b/c/a");
            at.fsync("/b/c/a");
        },
        |seen| {
            seen.lists("/b/c/a", &[]);
            seen.is("/b/c/file", "/a/b/c/file");
            seen.gone("/a");
        },
    ),
    logged(
        "the same, then a file in the moved directory fsynced",
        |at| {
            at.mkdir("/a");
            at.mkdir("/a/b");
            at.mkdir("/a/b/c");
        },
        |at| {
            at.rename("/a/b", "/b");
            at.rename("/a", "/b/c/a");
            at.file("/b/c/a/file");
            at.fsync("/b/c/a/file");
        },
        |seen| {
            seen.lists("/", &["b"]);
            seen.lists("/b/c/a", &["file"]);
        },
    ),
    logged(
        "a file moved out of a directory that is then removed",
        |at| {
            at.mkdir("/d");
            at.mkdir("/d/e");
            at.file("/d/e/a");
        },
        |at| {
            at.rename("/d/e/a", "/a");
            at.rmdir("/d/e");
            at.rmdir("/d");
            at.fsync("/a");
        },
        |seen| {
            seen.lists("/", &["a"]);
            seen.is("/a", "/d/e/a");
        },
    ),
    logged(
        "the same, through a new directory that is in the log",
        |at| {
            at.mkdir("/a");
            at.mkdir("/a/b");
        },
        |at| {
            at.mkdir("/a/b/new");
            at.fsync("/a/b/new");
            at.rename("/a/b", "/b");
            at.rename("/a", "/b/new/a");
            at.fsync("/b/new/a");
        },
        |seen| {
            seen.lists("/b/new/a", &[]);
            seen.lists("/", &["b"]);
        },
    ),
    logged(
        "a file moved out of a directory that is then renamed and recreated",
        |at| {
            at.mkdir("/a");
            at.mkdir("/a/b");
            at.mkdir("/c");
            at.file("/a/b/foo");
        },
        |at| {
            at.rename("/a/b/foo", "/c/foo");
            at.file("/a/bar");
            at.fsync("/a");
        },
        |seen| {
            seen.one_of("/a/b/foo", "/c/foo");
            seen.is("/a/bar", "/a/bar");
        },
    ),
    logged(
        "two directories exchanged, and a file in one of them fsynced",
        |at| {
            at.mkdir("/d");
            at.mkdir("/e");
            at.file("/d/a");
            at.file("/e/b");
        },
        |at| {
            at.exchange("/d", "/e");
            at.file("/d/c");
            at.fsync("/d/c");
        },
        |seen| {
            // It is in the directory that was e.
            let (e, d) = if seen.there("/d/b") { ("/d", "/e") } else { ("/e", "/d") };
            seen.lists(e, &["b", "c"]);
            seen.lists(d, &["a"]);
        },
    ),
    logged(
        "a directory renamed after the fsync of its file",
        |at| at.mkdir("/d"),
        |at| {
            at.file("/d/a");
            at.fsync("/d/a");
            at.rename("/d", "/e");
            at.fsync("/e/a");
        },
        |seen| {
            seen.one_of("/d", "/e");
            let at = if seen.there("/e") { "/e/a" } else { "/d/a" };
            seen.is(at, "/d/a");
        },
    ),
    logged(
        "a new directory renamed after the fsync of its file",
        |_| {},
        |at| {
            at.mkdir("/d");
            at.file("/d/a");
            at.fsync("/d/a");
            at.rename("/d", "/e");
            at.file("/e/b");
            at.fsync("/e/b");
        },
        |seen| {
            seen.gone("/d");
            seen.lists("/e", &["a", "b"]);
        },
    ),
    logged(
        "a directory moved into a new one",
        |at| {
            at.mkdir("/d");
            at.file("/d/a");
        },
        |at| {
            at.mkdir("/new");
            at.mkdir("/new/newer");
            at.rename("/d", "/new/newer/d");
            at.fsync("/new/newer/d/a");
            at.fsync("/new/newer/d");
        },
        |seen| {
            seen.is("/new/newer/d/a", "/d/a");
            seen.gone("/d");
        },
    ),
    logged(
        "an empty directory replaced by another",
        |at| {
            at.mkdir("/d");
            at.mkdir("/e");
            at.file("/d/a");
        },
        |at| {
            at.rename("/d", "/e");
            at.fsync("/e");
        },
        |seen| {
            seen.gone("/d");
            seen.is("/e/a", "/d/a");
        },
    ),
    logged(
        "content of removed directories, now in moved directories",
        |at| {
            for path in ["/a", "/a/b", "/a/b/c", "/d", "/d/e"] {
                at.mkdir(path);
            }
            at.file("/a/b/c/one");
            at.file("/a/b/two");
        },
        |at| {
            at.rename("/a/b/c", "/d/e/c");
            at.rename("/a/b/two", "/d/e/c/two");
            at.rmdir("/a/b");
            at.rmdir("/a");
            at.rename("/d", "/a");
            at.fsync("/a");
        },
        |seen| {
            seen.lists("/", &["a"]);
            seen.lists("/a/e/c", &["one", "two"]);
        },
    ),
];

#[test]
fn moved_directories() {
    judge_all(CASES);
}
