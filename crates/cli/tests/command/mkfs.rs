//! `papilio mkfs`: options, output, refusals.

use crate::common::{fail, papilio, succeed, text};
use papilio_oracle::{Need, require};
use std::process::Command;

const UUID: &str = "12345678-1234-4234-8234-123456789abc";

#[test]
fn new_file_system_is_described_and_clean() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let image = image.to_str().unwrap();
    let shown = text(&succeed(["mkfs", "-b", "256M", "-L", "backup", "-U", UUID, "-n", "8k", image]));
    for line in [
        "Label:              backup",
        "UUID:               12345678-1234-4234-8234-123456789abc",
        "Node size:          8192",
        "Filesystem size:    256.00MiB",
        "  Metadata:         DUP              32.00MiB",
        "Features:           extref, skinny-metadata, no-holes, free-space-tree, block-group-tree",
        "Checksum:           crc32c",
    ] {
        assert!(shown.lines().any(|found| found == line), "{line}: {shown}");
    }
    succeed(["check", "--check-data-csum", image]);
    assert_eq!(text(&succeed(["ls", &format!("{image}:/")])), "");

    let shown =
        text(&succeed(["mkfs", "--json", "-f", "-M", "-O", "^extref,bgt", "--csum", "xxhash", image]));
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["csum"], "xxhash64");
    assert_eq!(shown["nodesize"], 4096);
    assert_eq!(shown["features"][0], "mixed-bg");
    assert_eq!(shown["block_groups"][1]["type"], "Data+Metadata");
    assert_ne!(shown["uuid"], UUID);
    succeed(["check", image]);
    assert_eq!(text(&succeed(["mkfs", "--quiet", "--force", image])), "");
}

#[test]
fn each_sector_size_is_clean_for_btrfs_check() {
    let Some(_) = require(&[Need::Command("btrfs")]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let (source, image) = (folder.path().join("source"), folder.path().join("image"));
    std::fs::create_dir(&source).unwrap();
    for length in [0, 1, 2000, 4096, 9000, 70_000, 400_000] {
        let content: Vec<u8> = (0..length).map(|at| (at / 7) as u8).collect();
        std::fs::write(source.join(length.to_string()), content).unwrap();
    }
    let [source, image] = [&source, &image].map(|path| path.to_str().unwrap());
    for sector_size in ["4k", "8k", "16k", "32k", "64k"] {
        let size = ["-s", sector_size, "-n", "64k", "-b", "256M"];
        succeed([&["mkfs", "-f"][..], &size, &["--rootdir", source, image]].concat());
        let copy = format!("{image}:/copy");
        succeed(["cp", "-r", &format!("{image}:/"), folder.path().join(sector_size).to_str().unwrap()]);
        succeed(["cp", "-r", source, &copy]);
        succeed(["check", "--check-data-csum", image]);
        let mut command = Command::new("btrfs");
        let judged = command.args(["check", "--check-data-csum", image]).output().unwrap();
        assert!(judged.status.success(), "{sector_size}: {}", String::from_utf8_lossy(&judged.stderr));
        let found = folder.path().join(sector_size).join("70000");
        assert!(std::fs::read(found).unwrap() == std::fs::read(folder.path().join("source/70000")).unwrap());
    }
}

#[test]
fn uuid_and_epoch_determine_every_byte() {
    let folder = tempfile::tempdir().unwrap();
    let make = |name: &str, epoch: &str| {
        let image = folder.path().join(name);
        let mut command = crate::common::command();
        command.args(["mkfs", "--size", "120M", "--uuid", UUID]).arg(&image).env("SOURCE_DATE_EPOCH", epoch);
        assert!(command.output().unwrap().status.success());
        std::fs::read(image).unwrap()
    };
    let first = make("one", "1700000000");
    assert!(first == make("two", "1700000000"));
    assert!(first != make("three", "1700000001"));
}

#[test]
fn refusals_are_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let image = image.to_str().unwrap();
    fail(2, "give a size", ["mkfs", image]);
    fail(1, "at least 114294784", ["mkfs", "-b", "100M", image]);
    fail(1, "at least 16777216", ["mkfs", "-b", "10M", "-M", image]);
    assert!(!std::path::Path::new(image).exists());
    succeed(["mkfs", "-b", "128M", image]);
    fail(1, "contains a Btrfs file system", ["mkfs", image]);
    fail(2, "from 4096 to 65536", ["mkfs", "-f", "-s", "128k", image]);
    fail(2, "at least 2 devices", ["mkfs", "-f", "-d", "raid1", image]);
    fail(2, "needs free-space-tree", ["mkfs", "-f", "-O", "bgt,^fst", image]);
    fail(1, "directory", ["mkfs", folder.path().to_str().unwrap()]);
    for wrong in [&["mkfs"][..], &["mkfs", "-d", "mirror", image], &["mkfs", "-b", "1.5G", image]] {
        assert_eq!(papilio(wrong).status.code(), Some(2), "{wrong:?}");
    }
    succeed(["check", image]);
}

#[test]
fn content_that_does_not_fit_leaves_no_file_system() {
    let folder = tempfile::tempdir().unwrap();
    let (source, image) = (folder.path().join("source"), folder.path().join("image"));
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("first"), "small").unwrap();
    std::fs::write(source.join("second"), vec![1; 200 << 20]).unwrap();
    let [source, image] = [&source, &image].map(|path| path.to_str().unwrap());
    std::fs::File::create(image).unwrap().set_len(120 << 20).unwrap();
    fail(1, "space", ["mkfs", "-b", "120M", "--rootdir", source, image]);
    fail(1, "was not finished", ["ls", &format!("{image}:/")]);
    fail(1, "was not finished", ["check", image]);
    // It is no file system that would have to be overwritten by force.
    std::fs::write(folder.path().join("source/second"), "fits").unwrap();
    succeed(["mkfs", "--rootdir", source, image]);
    assert_eq!(text(&succeed(["cat", &format!("{image}:/second")])), "fits");
}

#[test]
fn further_devices_come_from_the_global_option() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    let shown = text(&succeed(["mkfs", "-b", "256M", "--device", &b, &a]));
    assert!(shown.contains("Number of devices:  2\n"), "{shown}");
    assert!(shown.contains("  Metadata:         RAID1 "), "{shown}");
    let shown = text(&succeed(["filesystem", "show", "--device", &b, &a]));
    assert!(shown.contains("Total devices 2 "), "{shown}");
    // The operand is the first device.
    let devids: Vec<_> = shown.lines().filter(|line| line.contains("devid")).collect();
    assert!(devids.len() == 2 && devids[0].ends_with(&a) && devids[1].ends_with(&b), "{shown}");
    fail(1, "missing", ["ls", &format!("{a}:/")]);
    succeed(["check", "--device", &b, &a]);
    fail(2, "given twice", ["mkfs", "-f", "-b", "256M", "--device", &a, &a]);
}
