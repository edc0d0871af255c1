//! Answers about snapshots and space from damaged images and from mounts that change: they say what
//! they leave out, or ask again.

use crate::common::{command, papilio, succeed_json, succeed_text as succeed, text};
use crate::fixture::{run, string};
use papilio_oracle::{ImageSet, Need, Scratch, require};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

const MIB: usize = 1 << 20;

/// Makes a subvolume with three snapshots, between which a file changes and another goes.
fn days(folder: &Path) -> PathBuf {
    let image = folder.join("image");
    let at = |path: &str| format!("{}:{path}", string(&image));
    succeed(["mkfs", "-q", "--size", "300M", string(&image)]);
    succeed(["subvolume", "create", &at("/home")]);
    let host = folder.join("host");
    for number in 0..4 {
        fs::write(&host, vec![number as u8 + 1; MIB]).unwrap();
        succeed(["cp", string(&host), &at("/home/changes")]);
        succeed(["cp", string(&host), &at(&format!("/home/kept{number}"))]);
        if number < 3 {
            succeed(["subvolume", "snapshot", "-r", &at("/home"), &at(&format!("/day{number}"))]);
        }
    }
    succeed(["rm", &at("/home/kept0")]);
    image
}

/// Overwrites all copies of the root block of a tree.
fn damage(image: &Path, tree: &str) -> String {
    let dump = succeed(["inspect", "dump-tree", "-t", tree, string(image)]);
    let line = dump.lines().find(|line| line.starts_with("leaf ") || line.starts_with("node ")).unwrap();
    let address = line.split_whitespace().nth(1).unwrap().to_owned();
    let places = succeed(["inspect", "map-logical", "-l", &address, string(image)]);
    let file = File::options().write(true).open(image).unwrap();
    for place in places.lines() {
        let physical = place.split("physical ").nth(1).unwrap().split_whitespace().next().unwrap();
        file.write_all_at(&[0xee; 4096], physical.parse().unwrap()).unwrap();
    }
    address
}

/// Runs a command that must end with 1 and name the block. Returns its output and its messages.
fn in_part(arguments: &[&str], address: &str) -> (String, String) {
    let output = papilio(arguments);
    let (shown, said) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {shown} {said}");
    assert!(said.contains(address), "{arguments:?}: {said}");
    (shown, said)
}

#[test]
fn a_damaged_snapshot_is_left_out_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let image = days(folder.path());
    let whole = string(&image);
    let at = |path: &str| format!("{whole}:{path}");
    // Of the tree of /day1, nothing can be read.
    let bad = damage(&image, "258");

    let (shown, said) = in_part(&["versions", &at("/home/changes")], &bad);
    assert!(said.contains("/day1: left out, because it cannot be read"), "{said}");
    for part in ["/day0/changes", "/day2/changes", "/home/changes"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains("/day1"), "{shown}");

    // The steps beside it cannot be compared; the last one can.
    let (shown, said) = in_part(&["history", &at("/home")], &bad);
    assert!(said.contains("/day0 -> /day1: left out") && said.contains("/day1 -> /day2: left out"), "{said}");
    assert!(shown.contains("/day2 -> /home") && shown.contains("kept0"), "{shown}");
    assert!(!shown.contains("/day1"), "{shown}");

    let (shown, said) = in_part(&["versions", "--undelete", &at("/home")], &bad);
    assert!(shown.contains("/kept0 in /day2") && said.contains("left out"), "{shown} {said}");

    // Data that other subvolumes have counts for these. Only /day1 has its version of the file.
    let (shown, said) = in_part(&["usage", "--tree", "--exact", "--json", whole], &bad);
    assert!(said.contains("/day1: left out, because it cannot be read"), "{said}");
    let answer: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(answer["unread"]["bytes"], MIB, "{answer}");
    // Three versions of the file and four others that stay.
    assert_eq!(answer["tree"]["bytes"], 7 * MIB, "{answer}");
    let (shown, said) = in_part(&["usage", "--tree", "--samples", "200", whole], &bad);
    assert!(
        shown.contains("(files that cannot be read)") && said.matches("left out").count() == 1,
        "{shown}"
    );
    let run = folder.path().join("run");
    in_part(&["usage", "--tree", "--exact", "--export", string(&run), whole], &bad);
    let (shown, _) = in_part(&["usage", "--tree", "--exact", "--compare", string(&run), whole], &bad);
    assert!(shown.contains("(files that cannot be read)"), "{shown}");

    let picture = folder.path().join("map.svg");
    for colour in ["subvolume", "age", "compression"] {
        let (_, said) = in_part(&["treemap", "--exact", "--colour", colour, whole, string(&picture)], &bad);
        assert_eq!(said.matches("left out").count(), 1, "{said}");
        let drawn = fs::read_to_string(&picture).unwrap();
        assert!(drawn.contains("files that cannot be read: 1.00MiB") && drawn.contains("kept3"), "{drawn}");
    }
    // A path that is only in what cannot be read is not there.
    let (_, said) = in_part(&["versions", &at("/home/never")], &bad);
    assert!(said.contains("left out") && said.contains("no such file"), "{said}");
}

#[test]
fn owners_of_an_extent_are_named_beside_a_damaged_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let image = days(folder.path());
    let whole = string(&image);
    // The second extent of /day2 belongs to files of other snapshots, too.
    let dump = succeed(["inspect", "dump-tree", "-t", "259", whole]);
    let after = dump.split("extent data disk byte ").nth(2).expect("two files have extents");
    let extent = after.split_whitespace().next().unwrap().to_owned();
    let before = succeed(["inspect", "logical-resolve", &extent, whole]);
    assert!(before.contains("/day1/") && before.contains("/day2/"), "{before}");

    let places = succeed(["inspect", "map-logical", "-l", &extent, whole]);
    let physical = places.split("physical ").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    let bad = damage(&image, "258");
    let (shown, said) = in_part(&["inspect", "logical-resolve", &extent, whole], &bad);
    let expected: Vec<_> = before.lines().filter(|line| !line.contains("/day1/")).collect();
    assert_eq!(shown.lines().collect::<Vec<_>>(), expected);
    assert!(said.contains("subvolume 258: files are left out"), "{said}");

    // A check names the files that it can find.
    let file = File::options().write(true).open(&image).unwrap();
    file.write_all_at(&[0xee; 4096], physical.parse().unwrap()).unwrap();
    let output = papilio(["check", "--check-data-csum", whole]);
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{shown}");
    assert!(shown.contains("files in subvolumes that cannot be read are not named"), "{shown}");
    for name in &expected {
        assert!(shown.contains(&format!("file {name}, offset 0")), "{name}: {shown}");
    }
}

#[test]
fn a_file_system_that_changes_meanwhile_is_read_again() {
    let needs = [Need::Root, Need::Loop, Need::KernelBtrfs, Need::Command("btrfs")];
    if require(&needs).is_none() {
        return;
    }
    let scratch = Scratch::new(600 << 20).unwrap();
    let path = scratch.image("image", 400 << 20).unwrap();
    run("mkfs.btrfs", &["-q", "-f", string(&path)]);
    let images = ImageSet::open(&scratch, vec![path]);
    let mounted = images.mount_with(&["commit=1".to_owned()], false).unwrap();
    let top = mounted.path();
    run("btrfs", &["subvolume", "create", string(&top.join("home"))]);
    fs::write(top.join("home/file"), vec![1; MIB]).unwrap();
    run("btrfs", &["subvolume", "snapshot", "-r", string(&top.join("home")), string(&top.join("old"))]);
    fs::write(top.join("home/file"), vec![2; MIB]).unwrap();
    run("btrfs", &["filesystem", "sync", string(top)]);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in (0_u32..).take_while(|_| !ended.load(Ordering::Relaxed)) {
                let name = top.join(format!("home/busy{}", number % 40));
                fs::write(&name, vec![number as u8; 30_000]).unwrap();
                if number % 7 == 0 {
                    fs::remove_file(&name).unwrap();
                }
                if number % 20 == 0 {
                    run("btrfs", &["filesystem", "sync", string(top)]);
                }
            }
        });
        for _ in 0..5 {
            // Each answer is that of one commit, or a refusal that says why.
            let cost = command().args(["subvolume", "cost", "--json", string(top)]).output().unwrap();
            match cost.status.code() {
                Some(0) => {
                    let answer: serde_json::Value = serde_json::from_slice(&cost.stdout).unwrap();
                    let rows = answer["subvolumes"].as_array().unwrap();
                    let old = rows.iter().find(|row| row["subvolume"]["id"] == 257).expect("it has a row");
                    assert_eq!(old["referenced"]["data"], MIB as u64, "{answer}");
                }
                Some(1) => assert!(!cost.stderr.is_empty()),
                other => panic!("{other:?}: {}", text(&cost.stderr)),
            }
            let versions = papilio(["versions", "--json", string(&top.join("home/file"))]);
            match versions.status.code() {
                Some(0) => {
                    let found: serde_json::Value = serde_json::from_slice(&versions.stdout).unwrap();
                    assert_eq!(found.as_array().unwrap().len(), 2, "{found}");
                }
                _ => assert!(!versions.stderr.is_empty()),
            }
        }
        ended.store(true, Ordering::Relaxed);
    });
    // Nothing changes any more.
    run("btrfs", &["filesystem", "sync", string(top)]);
    let found = succeed_json(["versions", "--json", string(&top.join("home/file"))]);
    assert_eq!(found.as_array().unwrap().len(), 2);
    mounted.unmount().unwrap();
}

#[test]
fn snapshots_in_deletion_have_no_versions_and_no_history() {
    let folder = tempfile::tempdir().unwrap();
    let image = days(folder.path());
    let whole = string(&image);
    let at = |path: &str| format!("{whole}:{path}");
    // It is deleted, and no mount has cleaned it yet.
    let fs = papilio::FileSystem::open_with(
        &image,
        &papilio::OpenOptions::new().write(true).commit_interval(None),
    )
    .unwrap();
    fs.delete_subvolume("/day1").unwrap();
    fs.sync().unwrap();
    // The process ends without a clean close, which would clean it.
    let copy = folder.path().join("copy");
    fs::copy(&image, &copy).unwrap();
    fs.close().unwrap();
    fs::copy(&copy, &image).unwrap();
    let shown = succeed(["versions", &at("/home/changes")]);
    assert!(shown.contains("/day0/changes") && !shown.contains("day1"), "{shown}");
    let shown = succeed(["history", &at("/home")]);
    assert!(shown.contains("/day0 -> /day2") && !shown.contains("day1"), "{shown}");
    let shown = succeed(["usage", "--tree", "--exact", whole]);
    assert!(shown.contains("day0") && !shown.contains("day1"), "{shown}");
    succeed(["subvolume", "cost", whole]);
    let report = succeed_json(["dedupe", "-n", "--json", &at("/")]);
    assert!(report.is_object());
}
