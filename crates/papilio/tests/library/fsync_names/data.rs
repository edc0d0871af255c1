//! Data, sizes and attributes together with names.

use super::case::{Case, judge_all, logged};

const CASES: &[Case] = &[
    logged(
        "a file changed and closed, then reopened and fsynced",
        |at| drop(at.file_with("/a", &[1; 50_000])),
        |at| {
            at.write("/a", 20_000, &[2; 10_000]);
            at.fsync("/a");
        },
        |seen| {
            seen.holds("/a", &[vec![1; 20_000], vec![2; 10_000], vec![1; 20_000]].concat());
        },
    ),
    logged(
        "other files of an fsynced directory are from one point in time",
        |at| {
            at.mkdir("/d");
            at.file_with("/d/old", &[1; 50_000]);
        },
        |at| {
            at.write("/d/old", 10_000, &[2; 70_000]);
            at.rename("/d/old", "/d/moved");
            at.file_with("/d/new", &[3; 30_000]);
            at.fsync("/d");
        },
        |seen| {
            seen.holds("/d/moved", &[vec![1; 10_000], vec![2; 70_000]].concat());
            seen.holds("/d/new", &[3; 30_000]);
        },
    ),
    logged(
        "whole sectors overwritten before a rename",
        |at| {
            at.mkdir("/d");
            at.file_with("/d/a", &[1; 40_960]);
        },
        |at| {
            let file = at.open("/d/a");
            file.write_all_at(&[2; 100], 0).unwrap();
            file.write_all_at(&[3; 8192], 4096).unwrap();
            at.rename("/d/a", "/d/b");
            at.fsync("/d");
        },
        |seen| {
            let content = [vec![2; 100], vec![1; 3996], vec![3; 8192], vec![1; 40_960 - 12_288]].concat();
            seen.holds("/d/b", &content);
        },
    ),
    logged(
        "fsynced, moved, changed, then the directory fsynced",
        |at| at.mkdir("/d"),
        |at| {
            at.file_with("/d/a", &[1; 50_000]);
            at.fsync("/d/a");
            at.write("/d/a", 0, &[2; 60_000]);
            at.rename("/d/a", "/d/b");
            at.fsync("/d");
        },
        |seen| {
            let found = std::fs::read(seen.0.join("d/b")).unwrap();
            assert!(found == [1; 50_000] || found == [2; 60_000]);
            seen.gone("/d/a");
        },
    ),
    logged(
        "truncated, extended and renamed",
        |at| drop(at.file_with("/a", &[1; 100_000])),
        |at| {
            let file = at.open("/a");
            file.set_len(10_000).unwrap();
            file.set_len(60_000).unwrap();
            at.rename("/a", "/b");
            at.link("/b", "/c");
            at.fsync("/c");
        },
        |seen| {
            seen.holds("/b", &[vec![1; 10_000], vec![0; 50_000]].concat());
            seen.same("/b", "/c");
            seen.gone("/a");
        },
    ),
    logged(
        "holes and preallocation past the end of a renamed file",
        |at| drop(at.file_with("/a", &[1; 200_000])),
        |at| {
            let file = at.open("/a");
            file.punch_hole(50_000, 100_000).unwrap();
            file.allocate(200_000, 100_000, true).unwrap();
            at.rename("/a", "/b");
            at.fsync("/b");
        },
        |seen| {
            seen.holds("/b", &[vec![1; 50_000], vec![0; 100_000], vec![1; 50_000]].concat());
        },
    ),
    logged(
        "a clone, and its source renamed",
        |at| drop(at.file_with("/a", &[1; 100_000])),
        |at| {
            let clone = at.file("/clone");
            clone.clone_range(&at.open("/a"), 0, 0, 0).unwrap();
            at.rename("/a", "/b");
            at.fsync("/clone");
            at.fsync("/b");
        },
        |seen| {
            seen.holds("/clone", &[1; 100_000]);
            seen.holds("/b", &[1; 100_000]);
        },
    ),
    logged(
        "attributes of a file whose directory is fsynced",
        |at| {
            at.mkdir("/d");
            at.file("/d/a");
            at.set_xattr("/d/a", "user.one", "1");
        },
        |at| {
            at.remove_xattr("/d/a", "user.one");
            at.set_xattr("/d/a", "user.two", "2");
            at.chmod("/d/a", 0o400);
            at.rename("/d/a", "/d/b");
            at.fsync("/d");
        },
        |seen| {
            seen.xattr("/d/b", "user.one", None);
            seen.xattr("/d/b", "user.two", Some("2"));
            seen.mode("/d/b", 0o400);
        },
    ),
    logged(
        "a file replaced while it is open and being written",
        |at| drop(at.file("/a")),
        |at| {
            let old = at.open("/a");
            at.file_with("/b", &[4; 10_000]);
            at.rename("/b", "/a");
            old.write_all_at(&[5; 10_000], 0).unwrap();
            old.sync_all().unwrap();
            at.fsync("/a");
        },
        |seen| {
            seen.holds("/a", &[4; 10_000]);
            seen.lists("/", &["a"]);
        },
    ),
];

#[test]
fn data_of_renamed_and_linked_files() {
    judge_all(CASES);
}
