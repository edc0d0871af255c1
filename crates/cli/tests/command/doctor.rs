//! `papilio doctor`: its findings are true of the machine, a report names nothing, and a check
//! that a script needs decides about the exit code.

use crate::common::{command, fail, papilio, succeed, succeed_json, succeed_text, text};
use papilio_oracle::Scratch;
use std::fs::{self, File};

fn state_of(found: &serde_json::Value, name: &str) -> String {
    let checks = found["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == name);
    check.unwrap_or_else(|| panic!("{name} is not in {found}"))["state"].as_str().unwrap().to_owned()
}

#[test]
fn findings_are_those_of_the_machine() {
    let scratch = Scratch::new(256 << 20).unwrap();
    let folder = scratch.path().to_str().unwrap();
    let files = || fs::read_dir(scratch.path()).unwrap().count();
    let before = files();
    let found = succeed_json(["doctor", "--json", folder]);
    let opens = |path: &str| File::options().read(true).write(true).open(path).is_ok();
    assert_eq!(state_of(&found, "fuse") == "works", opens("/dev/fuse"));
    assert_eq!(state_of(&found, "loop") == "works", opens("/dev/loop-control"));
    let known = fs::read_to_string("/proc/filesystems").unwrap();
    assert_eq!(state_of(&found, "kernel-btrfs") == "works", known.contains("\tbtrfs\n"));
    assert_eq!(state_of(&found, "directory"), "works");
    assert_eq!(state_of(&found, "locks"), "works");
    assert_eq!(files(), before, "no file is left");
    for check in found["checks"].as_array().unwrap() {
        assert_eq!(check["advice"].is_null(), check["state"] == "works", "{check}");
    }
    let shown = succeed_text(["doctor"]);
    assert!(shown.lines().any(|line| line.starts_with("fuse  ")), "{shown}");
    fail(1, "no-such-file", ["doctor", &format!("{folder}/no-such-file")]);
}

#[test]
fn needed_checks_decide() {
    succeed(["doctor", "--need", "images"]);
    fail(2, "no such check; the checks are images, ", ["doctor", "--need", "imagse"]);
    // A limit of descriptors that is too small, in a shell.
    let binary = crate::common::binary().to_str().unwrap().to_owned();
    let script = format!("ulimit -n 64; {binary} doctor --need images --need descriptors");
    let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(stderr.starts_with("papilio: descriptors: limited: 64 open files"), "{stderr}");
}

/// The report of an image has its features, but no label, UUID, path or name in it.
#[test]
fn a_report_names_nothing() {
    let scratch = Scratch::new(256 << 20).unwrap();
    let image = scratch.path().join("secret-name.img");
    let image = image.to_str().unwrap();
    let uuid = "5eb41b5c-2d04-4bb0-8a35-26fa5ccbe5b7";
    let made = papilio(["mkfs", "-q", "--size", "128M", "--label", "secret-label", "--uuid", uuid, image]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    succeed(["mkdir", &format!("{image}:/secret-folder")]);
    let report = succeed_text(["doctor", "--report", image]);
    assert!(!report.contains("secret") && !report.contains(&uuid[..8]), "{report}");
    for part in ["### Checks", "- version: ", "its checksum is right", "node 16384", "- Metadata DUP: "] {
        assert!(report.contains(part), "{part:?} is not in {report}");
    }
    fs::write(image, [0; 200_000]).unwrap();
    let report = succeed_text(["doctor", "--report", image]);
    assert!(report.contains("no Btrfs superblock") && !report.contains("secret"), "{report}");
    // Without PATH and HOME, as in a unit of systemd, it still answers.
    let output = command().args(["doctor", "--report"]).env_clear().output().unwrap();
    assert!(output.status.success());
}
