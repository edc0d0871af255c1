//! Damaged images and wrong paths: one line with the cause, and exit code 1.

use crate::common::{fail, papilio, succeed, text};
use crate::fixture::{Fixture, copy_image, noise};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

#[test]
fn files_without_a_file_system_are_refused() {
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
    fail(2, "a directory on the host", ["ls", here]);
}

#[test]
fn truncated_images_are_refused_or_read_with_a_warning() {
    let Some(fixture) = Fixture::get() else { return };
    let folder = fixture.folder();
    let path = folder.path().join("cut");
    copy_image(fixture.image(), &path);
    let cut = |length| OpenOptions::new().write(true).open(&path).unwrap().set_len(length).unwrap();
    // No chunk is behind this end.
    cut(300 << 20);
    let whole = succeed(["ls", "-R", &fixture.at("/")]);
    let output = papilio(["ls", "-R", &format!("{}:/", path.display())]);
    let lines = |listing: &[u8]| text(listing).lines().count();
    assert!(output.status.success() && lines(&output.stdout) == lines(&whole));
    assert!(text(&output.stderr).contains("no chunk is behind its end"), "{}", text(&output.stderr));
    for length in [80 << 20, 1 << 20, (64 << 10) + 100] {
        cut(length);
        fail(1, "cut", ["ls", "-R", &format!("{}:/", path.display())]);
    }
}

#[test]
fn missing_names_are_reported() {
    let Some(fixture) = Fixture::get() else { return };
    fail(1, "/nothing: no such file or directory", ["ls", &fixture.at("/nothing")]);
    fail(1, "/tree/small/: not a directory", ["stat", &fixture.at("/tree/small/")]);
    fail(1, "/tree/small/x: not a directory", ["cat", &fixture.at("/tree/small/x")]);
    fail(1, "/tree/dangling: no such file", ["cat", &fixture.at("/tree/dangling")]);
    fail(1, "no such subvolume", ["ls", "--subvolid", "999", &fixture.at("/")]);
    fail(1, "no such", ["ls", "--subvol", "nowhere", &fixture.at("/")]);
}

#[test]
fn causes_are_printed_once() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("no/such");
    let missing = missing.to_str().unwrap();
    let image = folder.path().join("image");
    let image = image.to_str().unwrap();
    succeed(["mkfs", "-q", "-b", "128M", image]);
    for command in [
        &["mkfs", "--size", "1G", missing][..],
        &["scrub", "status", missing],
        &["device", "scan", missing],
        &["cp", missing, &format!("{image}:/")],
        &["mkfs", "-f", "--rootdir", missing, image],
        &["receive", "-f", missing, &format!("{image}:/")],
        &["ls", &format!("{missing}:/")],
    ] {
        let line = fail(1, missing, command).to_lowercase();
        assert_eq!(line.matches("no such file").count(), 1, "{line}");
    }
}

#[test]
fn unsupported_features_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let at = format!("{}:/", path.display());
    succeed(["mkfs", "-q", "-b", "128M", path.to_str().unwrap()]);
    let image = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mut superblock = vec![0; 4096];
    image.read_exact_at(&mut superblock, 65536).unwrap();
    for (bits, name) in [
        (1_u64 << 12, "not supported: zoned mode ("),
        (1 << 13, "extent-tree-v2 ("),
        (1 << 14, "raid-stripe-tree ("),
        (1 << 17, "remap-tree ("),
        (1 << 12 | 1 << 40, "unknown incompat feature bits 0x10000000000"),
    ] {
        let mut changed = superblock.clone();
        let flags = u64::from_le_bytes(changed[188..196].try_into().unwrap()) | bits;
        changed[188..196].copy_from_slice(&flags.to_le_bytes());
        let sum = papilio::ChecksumType::Crc32c.compute(&changed[32..]);
        changed[..4].copy_from_slice(&sum.as_bytes()[..4]);
        for place in [65536, 64 << 20] {
            let number = u64::to_le_bytes(place);
            let mut copy = changed.clone();
            copy[48..56].copy_from_slice(&number);
            let sum = papilio::ChecksumType::Crc32c.compute(&copy[32..]);
            copy[..4].copy_from_slice(&sum.as_bytes()[..4]);
            image.write_all_at(&copy, place).unwrap();
        }
        let line = fail(1, name, ["ls", &at]);
        assert!(!line.contains("0x1000)") && line.contains("image"), "{line}");
    }
}

#[test]
fn an_older_state_of_a_backup_root_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let image = path.to_str().unwrap();
    succeed(["mkfs", "-q", "-b", "128M", image]);
    let at = |name: &str| format!("{image}:/{name}");
    succeed(["mkdir", &at("old")]);
    succeed(["mkdir", &at("new")]);
    let shown = text(&succeed(["inspect", "dump-super", image]));
    let root = shown.lines().find_map(|line| line.strip_prefix("root\t\t\t")).unwrap();
    let root: u64 = root.parse().unwrap();
    // Both copies of the newest root: a header names its own address.
    let bytes = fs::read(&path).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let mut copies = 0;
    for start in (1 << 20..bytes.len() - 4096).step_by(4096) {
        if bytes[start + 48..start + 56] == root.to_le_bytes() && bytes[start + 88] == 1 {
            file.write_all_at(&[0xff; 16], start as u64 + 200).unwrap();
            copies += 1;
        }
    }
    assert_eq!(copies, 2);
    fail(1, "checksum", ["ls", &at("")]);
    // The user did not choose the root that is shown, so that the older state is a failure.
    let output = papilio(["ls", "--backup-root", &at("")]);
    let messages = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{messages}");
    assert!(messages.starts_with("papilio: warning: ") && messages.contains("backup root"), "{messages}");
    assert_eq!(text(&output.stdout), "old\n", "the state before the last commit");
    let quiet = papilio(["ls", "-q", "--backup-root", &at("")]);
    let messages = text(&quiet.stderr);
    assert_eq!(quiet.status.code(), Some(1), "{messages}");
    assert!(messages.lines().count() == 1 && messages.contains("an older state"), "{messages}");
    // A root that the user names is one that was asked for.
    assert_eq!(succeed(["ls", "--backup-root=1", &at("")]), b"old\n");
}

#[test]
fn control_characters_in_names_are_escaped() {
    let Some(fixture) = Fixture::get() else { return };
    fail(1, "/a\\nb\\033[1m: no such file", ["cat", &fixture.at("/a\nb\x1b[1m")]);
}

#[test]
fn full_standard_output_is_an_error() {
    let Some(fixture) = Fixture::get() else { return };
    let output = crate::common::command()
        .args(["find", &fixture.at("/")])
        .stdout(OpenOptions::new().write(true).open("/dev/full").unwrap())
        .output()
        .unwrap();
    crate::common::check_failure(&output, 1, "standard output: No space left");
}

#[test]
fn file_with_a_bad_sector_is_copied_but_for_that_sector() {
    let Some(fixture) = Fixture::get() else { return };
    let folder = fixture.folder();
    let path = folder.path().join("bad");
    copy_image(fixture.image(), &path);
    let large = noise(1, (5 << 20) + 123);
    let wanted = &large[3 << 20..][..4096];
    let image = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mut sector = vec![0; 4096];
    let end = image.metadata().unwrap().len();
    let at = (0..end).step_by(4096).find(|&at| {
        image.read_exact_at(&mut sector, at).unwrap();
        sector == wanted
    });
    let at = at.expect("the file's sector is in the image");
    image.write_all_at(&[!wanted[5]], at + 5).unwrap();

    let to = folder.path().join("to");
    fs::create_dir(&to).unwrap();
    let tree = format!("{}:/tree", path.display());
    let output = papilio(["cp", "-a", &tree, to.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(stderr.contains("checksum mismatch"), "{stderr}");
    assert!(stderr.contains("incomplete: ") && stderr.contains("/to/tree/large ("), "{stderr}");
    assert!(stderr.contains("(5238907 of 5243003 bytes): zeros"), "{stderr}");
    assert!(stderr.contains("tree/large: bytes 3145728 to 3149824 are missing: "), "{stderr}");
    let mut salvaged = large.clone();
    salvaged[3 << 20..][..4096].fill(0);
    assert!(fs::read(to.join("tree/large")).unwrap() == salvaged, "all but the sector is copied");
    assert!(to.join("tree/no write/second link").exists(), "other files are copied");

    let archive = folder.path().join("a.tar");
    let output = papilio(["cp", "--to-tar", archive.to_str().unwrap(), &tree]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(stderr.contains("zeros in place of the rest"), "{stderr}");
    let listed = std::process::Command::new("tar").arg("-tf").arg(&archive).output().unwrap();
    assert!(text(&listed.stdout).contains("no write/second link"), "{}", text(&listed.stderr));
    let unpacked = std::process::Command::new("tar").arg("-xOf").arg(&archive).arg("tree/large").output();
    assert!(unpacked.unwrap().stdout == salvaged, "the archive has all but the sector");

    let single = folder.path().join("single");
    let file = format!("{tree}/large");
    let output = papilio(["cp", "--json", &file, single.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let lines: Vec<serde_json::Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [missing] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!((&missing["path"], &missing["offset"]), (&file.clone().into(), &3145728.into()));
    assert_eq!(missing["length"], 4096);
    assert!(missing["reason"].as_str().unwrap().contains("checksum mismatch"), "{missing}");
    assert!(fs::read(&single).unwrap() == salvaged);
    fail(2, "standard output", ["cp", "--json", "--to-tar", "-", &file]);
    let output = papilio(["cat", &format!("{tree}/large")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(large.starts_with(&output.stdout));
}
