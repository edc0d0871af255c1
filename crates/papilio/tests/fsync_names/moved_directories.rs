//! Directories that move, and what lies in them.

use crate::case::{Case, judge_all, logged};

const CASES: &[Case] = &[
    logged(
        "a moved directory is fsynced",
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
        "the directory that it left is fsynced",
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
        "a new directory with the name of one that was renamed",
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
        "a directory moves below what it held",
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
        "the same, and a file in what moved is fsynced",
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
        "a file that left a directory before that was removed",
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
        "the same, with a new directory in between that is in the log",
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
        "a file that leaves a directory, which is renamed and made anew",
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
        "two directories that exchange their names, and a file in one of them",
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
            // It lies in what was e.
            let (e, d) = if seen.there("/d/b") { ("/d", "/e") } else { ("/e", "/d") };
            seen.lists(e, &["b", "c"]);
            seen.lists(d, &["a"]);
        },
    ),
    logged(
        "a file whose directory is renamed after its fsync",
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
        "a new directory that is renamed after its file's fsync",
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
        "a directory that moves into a new one",
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
        "an empty directory that another one replaces",
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
        "what was in directories that are gone, in directories that moved",
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
fn directories_that_move() {
    judge_all(CASES);
}
