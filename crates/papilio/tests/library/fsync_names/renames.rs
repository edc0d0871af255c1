//! Renamed files.

use super::case::{Case, judge_all, logged};

const CASES: &[Case] = &[
    logged(
        "a renamed file has only its new name",
        |at| drop(at.file("/a")),
        |at| {
            at.rename("/a", "/b");
            at.fsync("/b");
        },
        |seen| {
            seen.is("/b", "/a");
            seen.gone("/a");
        },
    ),
    logged(
        "renamed into another directory, with later writes",
        |at| {
            at.mkdir("/d");
            at.mkdir("/e");
            at.file("/d/a");
        },
        |at| {
            at.write("/d/a", 0, b"new");
            at.rename("/d/a", "/e/b");
            at.fsync("/e/b");
        },
        |seen| {
            seen.holds("/e/b", b"newa");
            seen.lists("/d", &[]);
        },
    ),
    logged(
        "a rename after the fsync, and another file's fsync",
        |at| drop(at.file("/other")),
        |at| {
            at.file("/a");
            at.fsync("/a");
            at.rename("/a", "/b");
            at.write("/other", 0, b"x");
            at.fsync("/other");
        },
        |seen| {
            seen.one_of("/a", "/b");
            seen.holds("/other", b"xother");
        },
    ),
    logged(
        "renamed after its fsync and fsynced again",
        |_| {},
        |at| {
            at.file("/a");
            at.fsync("/a");
            at.rename("/a", "/b");
            at.fsync("/b");
        },
        |seen| {
            seen.is("/b", "/a");
            seen.gone("/a");
        },
    ),
    logged(
        "a new file with the name of one that was renamed",
        |at| drop(at.file_with("/a", &[7; 40_000])),
        |at| {
            at.rename("/a", "/b");
            at.file_with("/a", b"another");
            at.fsync("/a");
        },
        |seen| {
            seen.holds("/b", &[7; 40_000]);
            seen.holds("/a", b"another");
        },
    ),
    logged(
        "the same, with the renamed file fsynced",
        |at| drop(at.file("/a")),
        |at| {
            at.rename("/a", "/b");
            at.file_with("/a", b"another");
            at.fsync("/b");
        },
        |seen| {
            seen.is("/b", "/a");
            assert!(!seen.there("/a") || std::fs::read(seen.0.join("a")).unwrap() == b"another");
        },
    ),
    logged(
        "the same in another directory, then the first directory fsynced",
        |at| {
            at.mkdir("/d");
            at.mkdir("/e");
            at.file("/d/a");
        },
        |at| {
            at.rename("/d/a", "/e/a");
            at.file_with("/d/a", b"another");
            at.fsync("/d");
        },
        |seen| {
            seen.is("/e/a", "/d/a");
            assert!(seen.there("/d/a"));
        },
    ),
    logged(
        "a file moved out of a directory, then the directory fsynced",
        |at| {
            at.mkdir("/d");
            at.mkdir("/e");
            at.file("/d/a");
            at.file("/d/stays");
        },
        |at| {
            at.rename("/d/a", "/e/a");
            at.fsync("/d");
        },
        |seen| {
            seen.is("/e/a", "/d/a");
            seen.lists("/d", &["stays"]);
        },
    ),
    logged(
        "a chain of renames, each to the name freed before",
        |at| ["/1", "/2", "/3", "/4"].into_iter().for_each(|name| drop(at.file(name))),
        |at| {
            at.rename("/1", "/0");
            at.rename("/2", "/1");
            at.rename("/3", "/2");
            at.rename("/4", "/3");
            at.fsync("/3");
        },
        |seen| {
            for (now, made) in [("/0", "/1"), ("/1", "/2"), ("/2", "/3"), ("/3", "/4")] {
                seen.is(now, made);
            }
            seen.gone("/4");
        },
    ),
    logged(
        "two files that swap names through a third name",
        |at| ["/a", "/b"].into_iter().for_each(|name| drop(at.file(name))),
        |at| {
            at.rename("/a", "/t");
            at.rename("/b", "/a");
            at.rename("/t", "/b");
            at.fsync("/a");
        },
        |seen| {
            seen.is("/a", "/b");
            seen.is("/b", "/a");
            seen.gone("/t");
        },
    ),
    logged(
        "two files exchanged between two directories",
        |at| {
            at.mkdir("/d");
            at.mkdir("/e");
            at.file("/d/a");
            at.file("/e/b");
        },
        |at| {
            at.exchange("/d/a", "/e/b");
            at.fsync("/d/a");
        },
        |seen| {
            seen.is("/d/a", "/e/b");
            seen.is("/e/b", "/d/a");
        },
    ),
    logged(
        "a new file exchanged with an old one",
        |at| drop(at.file("/old")),
        |at| {
            at.file("/new");
            at.fsync("/new");
            at.exchange("/new", "/old");
            at.fsync("/new");
        },
        |seen| {
            seen.is("/new", "/old");
            seen.is("/old", "/new");
        },
    ),
    logged(
        "renamed and renamed back",
        |at| {
            at.file("/a");
            at.mkdir("/d");
        },
        |at| {
            at.rename("/a", "/d/b");
            at.fsync("/d/b");
            at.rename("/d/b", "/a");
            at.fsync("/a");
        },
        |seen| {
            seen.is("/a", "/a");
            seen.lists("/d", &[]);
        },
    ),
    logged(
        "a whiteout at the old name of a renamed file",
        |at| {
            at.mkdir("/d");
            at.file("/d/a");
        },
        |at| {
            at.whiteout("/d/a", "/d/b");
            at.fsync("/d");
        },
        |seen| {
            seen.is("/d/b", "/d/a");
            assert_eq!(seen.kind("/d/a"), papilio::FileKind::CharacterDevice);
            seen.lists("/d", &["a", "b"]);
        },
    ),
    logged(
        "a file whose hard link in another directory was renamed",
        |at| {
            at.mkdir("/d");
            at.mkdir("/e");
            at.file("/d/a");
            at.link("/d/a", "/e/link");
            at.file("/e/b");
        },
        |at| {
            at.rename("/e/link", "/e/other");
            at.rename("/e/b", "/d/b");
            at.fsync("/d/a");
        },
        |seen| {
            seen.same("/d/a", "/e/other");
            seen.gone("/e/link");
            seen.links("/d/a", 2);
            seen.one_of("/e/b", "/d/b");
        },
    ),
    logged(
        "a file moved and truncated, and a longer one at its old name",
        |at| drop(at.file_with("/a", &[1; 100_000])),
        |at| {
            at.rename("/a", "/b");
            at.open("/b").set_len(5000).unwrap();
            at.file_with("/a", &[2; 200_000]);
            at.fsync("/a");
            at.fsync("/b");
        },
        |seen| {
            seen.holds("/a", &[2; 200_000]);
            seen.holds("/b", &[1; 5000]);
        },
    ),
    logged(
        "names of a directory taken over by other files, repeatedly",
        |at| {
            at.mkdir("/d");
            (0..20).for_each(|n| drop(at.file(&format!("/d/{n}"))));
        },
        |at| {
            for round in 0..7 {
                at.rename(&format!("/d/{round}"), "/d/spare");
                for n in round + 1..20 {
                    at.rename(&format!("/d/{n}"), &format!("/d/{}", n - 1));
                }
                at.rename("/d/spare", "/d/19");
                at.fsync("/d/10");
            }
        },
        |seen| {
            let names: Vec<String> = (0..20).map(|n| n.to_string()).collect();
            seen.lists("/d", &names.iter().map(String::as_str).collect::<Vec<_>>());
        },
    ),
];

#[test]
fn renamed_files() {
    judge_all(CASES);
}
