//! Images that are none: one line that says what is wrong where, and exit code 1.

use crate::fixture::{Fixture, copy_image, fail};
use std::fs::{self, OpenOptions};

#[test]
fn not_a_btrfs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let at = format!("{}:/", path.display());
    fail(1, "image", ["ls", &at]);
    fs::write(&path, b"").unwrap();
    fail(1, "image", ["ls", &at]);
    fs::write(&path, vec![0; 1 << 20]).unwrap();
    for command in [&["ls"][..], &["cat"], &["stat"], &["find"], &["du"], &["cp", "-t", "/tmp"]] {
        fail(1, "image", [command, &[&at]].concat());
    }
    let here = folder.path().to_str().unwrap();
    fail(2, "a directory of the host", ["ls", here]);
}

#[test]
fn truncated() {
    let Some(fixture) = Fixture::get() else { return };
    let folder = fixture.folder();
    let path = folder.path().join("cut");
    copy_image(fixture.image(), &path);
    for length in [300 << 20, 80 << 20, 1 << 20, (64 << 10) + 100] {
        OpenOptions::new().write(true).open(&path).unwrap().set_len(length).unwrap();
        fail(1, "cut", ["ls", "-R", &format!("{}:/", path.display())]);
    }
}

#[test]
fn names_that_are_not_there() {
    let Some(fixture) = Fixture::get() else { return };
    fail(1, "/nothing: no such file or directory", ["ls", &fixture.at("/nothing")]);
    fail(1, "/tree/small/: not a directory", ["stat", &fixture.at("/tree/small/")]);
    fail(1, "/tree/small/x: not a directory", ["cat", &fixture.at("/tree/small/x")]);
    fail(1, "/tree/dangling: no such file", ["cat", &fixture.at("/tree/dangling")]);
    fail(1, "no such subvolume", ["ls", "--subvolid", "999", &fixture.at("/")]);
    fail(1, "no such", ["ls", "--subvol", "nowhere", &fixture.at("/")]);
}

#[test]
fn names_with_control_characters_stay_in_the_line() {
    let Some(fixture) = Fixture::get() else { return };
    fail(1, "/a\\nb\\033[1m: no such file", ["cat", &fixture.at("/a\nb\x1b[1m")]);
}

#[test]
fn full_standard_output() {
    let Some(fixture) = Fixture::get() else { return };
    let output = std::process::Command::new(assert_cmd::cargo::cargo_bin!("papilio"))
        .args(["find", &fixture.at("/")])
        .stdout(OpenOptions::new().write(true).open("/dev/full").unwrap())
        .output()
        .unwrap();
    crate::fixture::check_failure(&output, 1, "standard output: No space left");
}
