//! Hard links, one or very many.

use crate::case::{Case, judge_all, logged};

const CASES: &[Case] = &[
    logged(
        "one of two names goes, and the other is fsynced",
        |at| {
            at.file("/a");
            at.link("/a", "/b");
        },
        |at| {
            at.unlink("/b");
            at.fsync("/a");
        },
        |seen| {
            seen.is("/a", "/a");
            seen.gone("/b");
            seen.links("/a", 1);
        },
    ),
    logged(
        "one of two names goes, in another directory",
        |at| {
            at.mkdir("/d");
            at.file("/a");
            at.link("/a", "/d/b");
        },
        |at| {
            at.unlink("/d/b");
            at.fsync("/a");
        },
        |seen| {
            seen.lists("/d", &[]);
            seen.links("/a", 1);
        },
    ),
    logged(
        "a name that goes takes nothing from a directory that is fsynced",
        |at| {
            at.mkdir("/d");
            at.file("/a");
            at.link("/a", "/d/b");
            at.link("/a", "/d/c");
        },
        |at| {
            at.unlink("/d/b");
            at.fsync("/d");
        },
        |seen| {
            seen.lists("/d", &["c"]);
            seen.links("/a", 2);
        },
    ),
    logged(
        "a new link, and the file is fsynced; its data stays",
        |at| drop(at.file_with("/a", &[5; 30_000])),
        |at| {
            at.write("/a", 30_000, &[6; 8192]);
            at.fsync("/a");
            at.link("/a", "/b");
            at.file("/other");
            at.fsync("/other");
            at.fsync("/b");
        },
        |seen| {
            let content = [vec![5; 30_000], vec![6; 8192]].concat();
            seen.holds("/b", &content);
            seen.same("/a", "/b");
            seen.is("/other", "/other");
        },
    ),
    logged(
        "a new link, and its directory is fsynced",
        |at| {
            at.mkdir("/d");
            at.file("/a");
        },
        |at| {
            at.link("/a", "/d/b");
            at.fsync("/d");
        },
        |seen| {
            seen.same("/a", "/d/b");
            seen.links("/a", 2);
        },
    ),
    logged(
        "links of two files in the directories of one another",
        |at| {
            at.mkdir("/d");
            at.mkdir("/e");
            at.file("/d/a");
            at.file("/e/b");
        },
        |at| {
            at.link("/d/a", "/e/a");
            at.link("/e/b", "/d/b");
            at.fsync("/d/a");
        },
        |seen| {
            seen.same("/d/a", "/e/a");
            seen.is("/e/b", "/e/b");
        },
    ),
    logged(
        "a name goes and another file gets it",
        |at| {
            at.file("/a");
            at.link("/a", "/b");
        },
        |at| {
            at.unlink("/b");
            at.file_with("/b", b"another");
            at.fsync("/b");
        },
        |seen| {
            seen.is("/a", "/a");
            seen.links("/a", 1);
            seen.holds("/b", b"another");
        },
    ),
    logged(
        "links that go around in a circle",
        |at| {
            at.file("/a");
            at.file("/b");
            at.link("/a", "/a2");
        },
        |at| {
            at.unlink("/a2");
            at.rename("/b", "/a2");
            at.link("/a", "/b");
            at.fsync("/a2");
        },
        |seen| {
            seen.is("/a2", "/b");
            seen.is("/a", "/a");
            assert!(!seen.there("/b") || std::fs::read(seen.0.join("b")).unwrap() == b"/a");
        },
    ),
    logged(
        "linked anew after the first name went",
        |at| {
            at.mkdir("/d");
            at.file("/a");
        },
        |at| {
            at.link("/a", "/d/a");
            at.unlink("/a");
            at.fsync("/d/a");
            at.link("/d/a", "/a");
            at.unlink("/d/a");
            at.fsync("/a");
        },
        |seen| {
            seen.is("/a", "/a");
            seen.links("/a", 1);
            seen.lists("/d", &[]);
        },
    ),
    logged(
        "a file without a name gets two",
        |at| at.mkdir("/d"),
        |at| {
            let file = at.tmpfile("/d", b"unnamed");
            file.sync().unwrap();
            at.name(&file, "/d/one");
            at.link("/d/one", "/two");
            file.sync().unwrap();
        },
        |seen| {
            seen.holds("/two", b"unnamed");
            seen.same("/two", "/d/one");
        },
    ),
    logged(
        "thousands of links, some of which go again",
        |at| {
            at.mkdir("/d");
            at.file("/a");
            (0..1500).for_each(|n| at.link("/a", &format!("/d/link number {n}")));
        },
        |at| {
            (0..300).for_each(|n| at.link("/a", &format!("/d/a later one {n}")));
            (0..200).for_each(|n| at.unlink(&format!("/d/link number {}", n * 7)));
            at.fsync("/a");
        },
        |seen| {
            seen.links("/a", 1 + 1500 + 300 - 200);
            seen.same("/a", "/d/a later one 299");
            seen.gone("/d/link number 7");
            seen.same("/a", "/d/link number 8");
        },
    ),
    logged(
        "links that come and go in an fsynced directory",
        |at| {
            at.mkdir("/d");
            at.file("/a");
            at.link("/a", "/d/1");
            at.link("/a", "/d/2");
        },
        |at| {
            at.unlink("/d/1");
            at.link("/a", "/d/3");
            at.fsync("/d");
            at.unlink("/d/2");
            at.link("/a", "/d/1");
            at.unlink("/d/3");
            at.fsync("/d");
        },
        |seen| {
            seen.lists("/d", &["1"]);
            seen.links("/a", 2);
        },
    ),
    logged(
        "a linked file's attributes, permissions and a name that goes",
        |at| {
            at.file("/a");
            at.link("/a", "/b");
            at.set_xattr("/a", "user.one", "1");
            at.set_xattr("/a", "user.two", "2");
        },
        |at| {
            at.remove_xattr("/a", "user.one");
            at.set_xattr("/a", "user.three", "3");
            at.chmod("/a", 0o600);
            at.unlink("/a");
            at.fsync("/b");
        },
        |seen| {
            seen.gone("/a");
            seen.xattr("/b", "user.one", None);
            seen.xattr("/b", "user.two", Some("2"));
            seen.xattr("/b", "user.three", Some("3"));
            seen.mode("/b", 0o600);
        },
    ),
];

#[test]
fn hard_links() {
    judge_all(CASES);
}
