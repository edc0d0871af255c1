//! Hard links, one or very many.

use super::case::{Case, judge_all, logged};

const CASES: &[Case] = &[
    logged(
        "one of two names unlinked, the file fsynced by the other",
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
        "one of two names unlinked in another directory",
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
        "an unlinked name changes nothing else in an fsynced directory",
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
        "a new link, then the file fsynced; its data is unchanged",
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
        "a new link, then its directory fsynced",
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
        "two files linked into each other's directories",
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
        "a name unlinked and given to another file",
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
        "names of several files rotated by links",
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
        "linked again after the first name was unlinked",
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
        "an unnamed file linked twice",
        |at| at.mkdir("/d"),
        |at| {
            let file = at.tmpfile("/d", b"unnamed");
            file.sync_all().unwrap();
            at.name(&file, "/d/one");
            at.link("/d/one", "/two");
            file.sync_all().unwrap();
        },
        |seen| {
            seen.holds("/two", b"unnamed");
            seen.same("/two", "/d/one");
        },
    ),
    logged(
        "thousands of links, some unlinked again",
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
        "links added and removed in an fsynced directory",
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
        "attributes and permissions of a file with an unlinked name",
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
