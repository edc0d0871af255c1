//! `papilio mkfs --rootdir`: a kernel mount shows the content of the source directory or archive.

use crate::common::{check_failure, fail, papilio, succeed, text};
use crate::fixture::Fixture;
use papilio_oracle::{CompareOptions, Difference, HostTree, ImageSet, Need, Report, compare, require};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

const UUID: &str = "12345678-1234-4234-8234-123456789abc";
/// The facts that the copy keeps, including holes.
const KEPT: CompareOptions = CompareOptions { atime: true, segments: true, ..CompareOptions::COPY };

fn string(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs both checks, and compares the source with a kernel mount.
fn check_and_compare(fixture: &Fixture, source: &Path, image: &Path, options: &CompareOptions) -> Report {
    succeed(["check", "--check-data-csum", string(image)]);
    let images = ImageSet::open(&fixture.scratch, vec![image.to_path_buf()]);
    images.btrfs_check().unwrap();
    let mounted = images.mount_read_only().unwrap();
    compare(&HostTree::new(source), &HostTree::new(mounted.path()), options)
}

fn assert_same(fixture: &Fixture, source: &Path, image: &Path, options: &CompareOptions, entries: u64) {
    check_and_compare(fixture, source, image, options).assert_equal(entries);
}

/// Like `assert_same`, but allows that GNU tar stores a pipe with two links as two pipes.
fn assert_same_except_pipes(report: &Report, entries: u64) {
    let pipe =
        |difference: &Difference| difference.path.to_str().is_some_and(|path| path.starts_with("fifo"));
    assert!(report.differences.iter().all(|one| pipe(one) && one.fact == "nlink"), "{report}");
    assert!(report.total == 2 && report.entries >= entries, "{report}");
}

#[test]
fn directory_is_copied_completely() {
    let Some(fixture) = Fixture::get() else { return };
    let source = fixture.mount();
    let folder = fixture.folder();
    for (name, options) in [
        ("plain", &[][..]),
        ("shrunk", &["--shrink"]),
        ("zstd", &["--compress", "zstd:1", "--shrink"]),
        ("lzo", &["--compress", "lzo"]),
        ("mixed", &["--size", "300M", "-M", "--csum", "xxhash"]),
        ("tree", &["-O", "bgt", "-n", "4k"]),
    ] {
        let image = folder.path().join(name);
        let from = string(source.path());
        let arguments = [&["mkfs", "--rootdir", from][..], options, &[string(&image)]].concat();
        let shown = text(&succeed(arguments));
        assert!(shown.contains("\nContent:            65"), "{shown}");
        if name == "tree" {
            // btrfs-progs 6.2 cannot read the block-group tree.
            succeed(["check", "--check-data-csum", string(&image)]);
            continue;
        }
        // Holes may end elsewhere in compressed files.
        let compressed = options.contains(&"--compress");
        let options = CompareOptions { segments: !compressed, ..KEPT };
        assert_same(&fixture, source.path(), &image, &options, 640);
    }
    let length = |name: &str| fs::metadata(folder.path().join(name)).unwrap().len();
    assert!(length("shrunk") < length("plain"), "{} {}", length("shrunk"), length("plain"));
}

#[test]
fn kernel_can_change_the_file_system() {
    let Some(fixture) = Fixture::get() else { return };
    let folder = fixture.folder();
    let image = folder.path().join("image");
    let source = fixture.mount();
    succeed(["mkfs", "-b", "400M", "--rootdir", string(source.path()), string(&image)]);
    let images = ImageSet::open(&fixture.scratch, vec![image.clone()]);
    let mounted = images.mount().unwrap();
    fs::write(mounted.path().join("of the kernel"), vec![7; 3 << 20]).unwrap();
    fs::remove_dir_all(mounted.path().join("tree/deep")).unwrap();
    mounted.unmount().unwrap();
    images.btrfs_check().unwrap();
    succeed(["check", "--check-data-csum", string(&image)]);
    let at = format!("{}:/of the kernel", image.display());
    assert!(succeed(["cat", &at]) == vec![7; 3 << 20]);
    succeed(["rm", &at]);
    images.btrfs_check().unwrap();
}

#[test]
fn archives_of_gnu_tar_and_papilio_are_copied() {
    let Some(fixture) = Fixture::get() else { return };
    if require(&[Need::Command("tar")]).is_none() {
        return;
    }
    let source = fixture.mount();
    let folder = fixture.folder();
    let ours = folder.path().join("ours.tar");
    // An archive cannot store the socket.
    let tree = source.path().join("tree");
    succeed(["cp", "--to-tar", string(&ours), &fixture.at("/tree/.")]);
    let gnus = folder.path().join("gnus.tar.gz");
    let status = Command::new("tar")
        .args(["--format=pax", "--pax-option=exthdr.name=%d/PaxHeaders/%f,atime:=0", "--sparse", "--xattrs"])
        .args(["--xattrs-include=*", "--acls", "--numeric-owner", "-czf"])
        .arg(&gnus)
        .arg("-C")
        .arg(&tree)
        .arg(".")
        .status();
    assert!(status.unwrap().success());
    let options = CompareOptions { segments: false, atime: false, ..KEPT };
    for archive in [&ours, &gnus] {
        let image = folder.path().join("image");
        succeed(["mkfs", "--rootdir", string(archive), string(&image)]);
        let report = check_and_compare(&fixture, &tree, &image, &options);
        match archive == &ours {
            true => report.assert_equal(630),
            false => assert_same_except_pipes(&report, 630),
        }
        fs::remove_file(&image).unwrap();
    }
    // The size of a stream is unknown beforehand.
    let image = folder.path().join("image");
    let mut command = crate::common::command();
    command.args(["mkfs", "-q", "--rootdir", "-", string(&image)]).stdin(fs::File::open(&gnus).unwrap());
    assert!(command.status().unwrap().success());
    assert!(fs::metadata(&image).unwrap().len() < 3 << 30);
    assert_same_except_pipes(&check_and_compare(&fixture, &tree, &image, &options), 630);
}

/// Creates a tree that needs no privileges.
fn small_tree(at: &Path) {
    fs::create_dir_all(at.join("etc/deep")).unwrap();
    fs::write(at.join("etc/passwd"), "root:x:0:0::/:\n").unwrap();
    fs::write(at.join("etc/deep/large"), vec![9; 3 << 20]).unwrap();
    fs::hard_link(at.join("etc/passwd"), at.join("etc/deep/again")).unwrap();
    std::os::unix::fs::symlink("etc/passwd", at.join("link")).unwrap();
}

#[test]
fn same_source_gives_the_same_image() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    small_tree(&tree);
    let make = |name: &str, options: &[&str]| {
        let image = folder.path().join(name);
        let mut command = crate::common::command();
        command.args(["mkfs", "-q", "--uuid", UUID, "--rootdir"]).arg(&tree).args(options).arg(&image);
        let output = command.env("SOURCE_DATE_EPOCH", "1700000000").output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        succeed(["check", "--check-data-csum", string(&image)]);
        fs::read(image).unwrap()
    };
    for options in [&["--shrink"][..], &["--compress", "zstd", "--shrink"]] {
        let first = make("one", options);
        // Access times must not matter.
        fs::read(tree.join("etc/deep/large")).unwrap();
        fs::read_dir(tree.join("etc")).unwrap().count();
        fs::remove_file(folder.path().join("one")).unwrap();
        assert!(first == make("one", options), "{options:?}");
        fs::remove_file(folder.path().join("one")).unwrap();
    }
    let first = make("two", &[]);
    fs::write(tree.join("etc/more"), "").unwrap();
    assert!(first != make("three", &[]));
}

#[test]
fn manifest_sets_owners_without_root() {
    let folder = tempfile::tempdir().unwrap();
    let (tree, image) = (folder.path().join("tree"), folder.path().join("image"));
    small_tree(&tree);
    let manifest = folder.path().join("owners");
    fs::write(&manifest, "# of all\n* 0 0 -\netc/passwd 5 6 0640\n/etc/deep 1000 100 2775\n").unwrap();
    let shown = succeed([
        "mkfs",
        "--json",
        "--rootdir",
        string(&tree),
        "--manifest",
        string(&manifest),
        string(&image),
    ]);
    let shown: serde_json::Value = serde_json::from_slice(&shown).unwrap();
    assert_eq!(shown["content"]["entries"], 6);
    assert_eq!(shown["content"]["bytes"], 15 + (3 << 20));
    let listed = text(&succeed(["ls", "-lnR", &format!("{}:/", image.display())]));
    for wanted in ["-rw-r----- 2 5 6", "drwxrwsr-x 1 1000 100", "lrwxrwxrwx 1 0 0"] {
        let squeezed: Vec<String> =
            listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert!(squeezed.iter().any(|line| line.contains(wanted)), "{wanted}: {listed}");
    }
    fs::write(&manifest, "etc/passwd 5 six 0640\n").unwrap();
    let arguments =
        ["mkfs", "-f", "--rootdir", string(&tree), "--manifest", string(&manifest), string(&image)];
    fail(1, "owners: manifest, line 1: the group is not a number", arguments);
}

#[test]
fn image_inside_its_source_is_skipped() {
    let folder = tempfile::tempdir().unwrap();
    small_tree(folder.path());
    let image = folder.path().join("image");
    succeed(["mkfs", "--rootdir", string(folder.path()), string(&image)]);
    let listed = text(&succeed(["ls", &format!("{}:/", image.display())]));
    assert_eq!(listed, "etc\nlink\n");
    succeed(["check", string(&image)]);
}

#[test]
fn refusals_leave_no_image() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let (at, missing) = (string(&image), folder.path().join("missing"));
    fail(1, "missing: No such file", ["mkfs", "--rootdir", string(&missing), at]);
    let text_file = folder.path().join("text");
    fs::write(&text_file, vec![b'x'; 4096]).unwrap();
    fail(1, "not a tar header", ["mkfs", "--rootdir", string(&text_file), at]);
    assert!(!image.exists());
    let tree = folder.path().join("tree");
    small_tree(&tree);
    fs::write(tree.join("huge"), vec![3; 120 << 20]).unwrap();
    fail(1, "no space left", ["mkfs", "-b", "120M", "--rootdir", string(&tree), at]);
    assert!(!image.exists(), "the partial image is removed");
    fail(1, "contains a Btrfs", {
        succeed(["mkfs", "-b", "128M", at]);
        ["mkfs", "--rootdir", string(&tree), at]
    });
    let wrong = papilio(["mkfs", "--shrink", at]);
    assert_eq!(wrong.status.code(), Some(2));
    let mut command = crate::common::command();
    command.args(["mkfs", "-f", "--rootdir", "-", at]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(&[0x1f, 0x8b, 1, 2, 3]).unwrap();
    check_failure(&child.wait_with_output().unwrap(), 1, "standard input: ");
}

#[test]
fn directories_become_subvolumes() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    small_tree(&tree);
    let make = |name: &str| {
        let image = folder.path().join(name);
        let mut command = crate::common::command();
        command.args([
            "mkfs",
            "-q",
            "--uuid",
            UUID,
            "--shrink",
            "--subvol",
            "ro:etc/deep",
            "-u",
            "default:etc",
        ]);
        let output =
            command.arg("--rootdir").arg(&tree).arg(&image).env("SOURCE_DATE_EPOCH", "1700000000").output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        image
    };
    let image = make("one");
    succeed(["check", "--check-data-csum", string(&image)]);
    let at = |path: &str| format!("{}:{path}", image.display());
    assert_eq!(text(&succeed(["property", "get", &at("/etc/deep")])), "ro=true\n");
    assert_eq!(text(&succeed(["property", "get", &at("/etc")])), "ro=false\n");
    assert_eq!(text(&succeed(["cat", "--default-subvol", &at("/passwd")])), "root:x:0:0::/:\n");
    assert_eq!(text(&succeed(["cat", &at("/etc/deep/again")])), "root:x:0:0::/:\n", "the link is a copy");
    assert!(fs::read(&image).unwrap() == fs::read(make("two")).unwrap());
    let other = folder.path().join("three");
    let arguments = ["mkfs", "--rootdir", string(&tree), "--subvol", "nowhere", string(&other)];
    fail(1, "nowhere: the source has no such directory", arguments);
    assert!(!other.exists());
}
