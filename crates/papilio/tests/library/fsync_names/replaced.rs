//! Names that are removed and recreated.

use super::case::{Case, committed, judge_all, logged};
use papilio::NewKind;

const CASES: &[Case] = &[
    logged(
        "unlinked and recreated",
        |at| drop(at.file("/a")),
        |at| {
            at.unlink("/a");
            at.file_with("/a", b"another");
            at.fsync("/a");
        },
        |seen| seen.holds("/a", b"another"),
    ),
    logged(
        "unlinked after its fsync, recreated, and fsynced",
        |_| {},
        |at| {
            at.file("/a");
            at.fsync("/a");
            at.unlink("/a");
            at.file_with("/a", b"another");
            at.fsync("/a");
            at.unlink("/a");
            at.symlink("a third", "/a");
            at.fsync("/a");
        },
        |seen| seen.target("/a", "a third"),
    ),
    logged(
        "replaced by a file written under another name",
        |at| drop(at.file("/a")),
        |at| {
            at.file_with("/tmp", b"new");
            at.fsync("/tmp");
            at.rename("/tmp", "/a");
            at.fsync("/");
        },
        |seen| {
            seen.holds("/a", b"new");
            seen.lists("/", &["a"]);
        },
    ),
    logged(
        "an fsynced file replaced: the old or the new content, never a mix",
        |_| {},
        |at| {
            at.file_with("/a", b"old");
            at.fsync("/a");
            at.file_with("/tmp", b"new");
            at.fsync("/tmp");
            at.rename("/tmp", "/a");
            at.file("/other");
            at.fsync("/other");
        },
        |seen| {
            let content = std::fs::read(seen.0.join("a")).expect("a exists");
            assert!(content == b"old" || content == b"new", "{content:?}");
            seen.is("/other", "/other");
        },
    ),
    logged(
        "replaced repeatedly",
        |at| at.mkdir("/d"),
        |at| {
            for round in 0..40u8 {
                at.file_with("/d/tmp", &[round; 9000]);
                at.fsync("/d/tmp");
                at.rename("/d/tmp", "/d/a");
                at.fsync("/d");
            }
        },
        |seen| {
            seen.lists("/d", &["a"]);
            seen.holds("/d/a", &[39; 9000]);
        },
    ),
    logged(
        "a directory at the name of a removed one",
        |at| {
            at.mkdir("/d");
            at.file("/d/a");
        },
        |at| {
            at.unlink("/d/a");
            at.rmdir("/d");
            at.mkdir("/d");
            at.file("/d/b");
            at.fsync("/d/b");
        },
        |seen| seen.lists("/d", &["b"]),
    ),
    logged(
        "a directory at the name of one whose file was moved out",
        |at| {
            at.mkdir("/d");
            at.file("/d/a");
        },
        |at| {
            at.rename("/d/a", "/a");
            at.rmdir("/d");
            at.mkdir("/d");
            at.fsync("/d");
        },
        |seen| {
            seen.lists("/d", &[]);
            seen.is("/a", "/d/a");
        },
    ),
    logged(
        "the same, with a directory moved out",
        |at| {
            at.mkdir("/d");
            at.mkdir("/d/e");
            at.file("/d/e/a");
        },
        |at| {
            at.rename("/d/e", "/e");
            at.rmdir("/d");
            at.mkdir("/d");
            at.fsync("/d");
        },
        |seen| {
            seen.lists("/d", &[]);
            seen.is("/e/a", "/d/e/a");
        },
    ),
    logged(
        "a file at the name of a directory",
        |at| at.mkdir("/d"),
        |at| {
            at.rmdir("/d");
            at.file("/d");
            at.fsync("/d");
        },
        |seen| seen.is("/d", "/d"),
    ),
    logged(
        "a directory at the old name of a renamed file",
        |at| {
            at.file("/a");
            at.link("/a", "/b");
        },
        |at| {
            at.unlink("/a");
            at.mkdir("/a");
            at.file("/a/c");
            at.fsync("/a/c");
        },
        |seen| {
            seen.is("/b", "/a");
            seen.links("/b", 1);
            seen.is("/a/c", "/a/c");
        },
    ),
    logged(
        "special files",
        |at| {
            at.special(NewKind::Fifo, "/pipe");
            at.special(NewKind::CharacterDevice { major: 1, minor: 3 }, "/null");
        },
        |at| {
            at.link("/pipe", "/pipe2");
            at.unlink("/pipe");
            at.special(NewKind::Socket, "/pipe");
            at.rename("/null", "/zero");
            at.special(NewKind::BlockDevice { major: 8, minor: 1 }, "/null");
            at.fsync("/pipe2");
            at.fsync("/null");
        },
        |seen| {
            assert_eq!(seen.kind("/pipe2"), papilio::FileKind::Fifo);
            seen.links("/pipe2", 1);
            assert_eq!(seen.kind("/null"), papilio::FileKind::BlockDevice);
            assert_eq!(seen.kind("/zero"), papilio::FileKind::CharacterDevice);
        },
    ),
    logged(
        "a file fsynced in a new directory, moved out before its removal",
        |_| {},
        |at| {
            at.mkdir("/d");
            at.file("/d/a");
            at.fsync("/d/a");
            at.rename("/d/a", "/a");
            at.rmdir("/d");
            at.file("/other");
            at.fsync("/other");
        },
        |seen| {
            seen.one_of("/d/a", "/a");
            seen.is("/other", "/other");
        },
    ),
    committed(
        "a name that belonged to a subvolume",
        |at| drop(at.0.create_subvolume("/sub").unwrap()),
        |at| {
            at.0.delete_subvolume("/sub").unwrap();
            at.file("/sub");
            at.fsync("/sub");
        },
        |seen| seen.is("/sub", "/sub"),
    ),
    logged(
        "a new name beside a deleted subvolume",
        |at| {
            at.mkdir("/d");
            at.file("/d/a");
            drop(at.0.create_subvolume("/d/sub").unwrap());
        },
        |at| {
            at.0.delete_subvolume("/d/sub").unwrap();
            at.file("/d/new");
            at.fsync("/d/new");
        },
        |seen| seen.lists("/d", &["a", "sub", "new"]),
    ),
    committed(
        "a directory with a new subvolume",
        |at| at.mkdir("/d"),
        |at| {
            at.0.create_subvolume("/d/sub").unwrap();
            at.fsync("/d");
        },
        |seen| seen.lists("/d", &["sub"]),
    ),
    committed(
        "a subvolume exchanged with a file",
        |at| {
            drop(at.0.create_subvolume("/sub").unwrap());
            at.file("/a");
        },
        |at| {
            at.exchange("/sub", "/a");
            at.fsync("/sub");
        },
        |seen| {
            seen.is("/sub", "/a");
            seen.lists("/a", &[]);
        },
    ),
    logged(
        "names in a subvolume below a moved directory",
        |at| {
            at.mkdir("/d");
            drop(at.0.create_subvolume("/d/sub").unwrap());
            at.file("/d/sub/a");
        },
        |at| {
            at.rename("/d/sub/a", "/d/sub/b");
            at.rename("/d", "/e");
            at.fsync("/e/sub/b");
        },
        |seen| {
            let sub = if seen.there("/e") { "/e/sub" } else { "/d/sub" };
            seen.lists(sub, &["b"]);
        },
    ),
];

#[test]
fn recreated_names() {
    judge_all(CASES);
}
