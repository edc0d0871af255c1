//! `papilio cp` to the host: compared with a kernel mount, GNU tar, and the rules of cp(1).

use crate::common::{check_failure, fail, papilio, succeed, text};
use crate::fixture::{Fixture, TemporaryFileSystem, copy_image, noise};
use papilio_oracle::{CompareOptions, FileSystemSpec, HostTree, Need, Scratch, compare, require};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

/// The facts that `cp -a` keeps on Btrfs.
const ARCHIVE: CompareOptions = CompareOptions { atime: true, segments: true, ..CompareOptions::COPY };

/// Creates another Btrfs to copy to, which supports everything that the first one has.
fn destination(fixture: &Fixture) -> papilio_oracle::Mounted {
    FileSystemSpec::default().make(&fixture.scratch).unwrap().mount().unwrap()
}

#[test]
fn archive_copy_matches_a_kernel_mount() {
    let Some(fixture) = Fixture::get() else { return };
    let to = destination(&fixture);
    let into = to.path().join("copy");
    succeed(["cp", "-a", &fixture.at("/tree/."), into.to_str().unwrap()]);
    succeed(["cp", "-a", &fixture.at("/socket"), into.with_extension("s").to_str().unwrap()]);
    let kernel = fixture.mount();
    let report = compare(&HostTree::new(kernel.path().join("tree")), &HostTree::new(&into), &ARCHIVE);
    report.assert_equal(600);
    assert!(fs::metadata(into.with_extension("s")).unwrap().file_type().is_socket());
    let ino = |name: &str| fs::symlink_metadata(into.join(name)).unwrap().ino();
    assert_eq!(ino("first link"), ino("no write/second link"));
    assert_eq!(ino("fifo"), ino("fifo again"));
}

#[test]
fn archive_copy_can_be_repeated() {
    let Some(fixture) = Fixture::get() else { return };
    let to = destination(&fixture);
    let into = to.path().join("tree");
    for _ in 0..2 {
        succeed(["cp", "-a", &fixture.at("/tree"), to.path().to_str().unwrap()]);
    }
    let kernel = fixture.mount();
    compare(&HostTree::new(kernel.path().join("tree")), &HostTree::new(&into), &ARCHIVE).assert_equal(600);
}

#[test]
fn inherited_acls_are_removed() {
    let Some(fixture) = Fixture::get() else { return };
    let to = destination(&fixture);
    xattr::set(to.path(), "system.posix_acl_default", &crate::fixture::acl()).unwrap();
    succeed(["cp", "-a", &fixture.at("/tree"), to.path().to_str().unwrap()]);
    let kernel = fixture.mount();
    compare(&HostTree::new(kernel.path().join("tree")), &HostTree::new(to.path().join("tree")), &ARCHIVE)
        .assert_equal(600);
}

#[test]
fn tar_archive_extracts_to_the_same_tree() {
    let Some(fixture) = Fixture::get() else { return };
    let Some(_) = require(&[Need::Command("tar")]) else { return };
    let to = destination(&fixture);
    let mut papilio = crate::common::command()
        .args(["cp", "--to-tar", "-", &fixture.at("/tree")])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let tar = Command::new("tar")
        .args([
            "--extract",
            "--same-permissions",
            "--same-owner",
            "--numeric-owner",
            "--acls",
            "--warning=no-timestamp",
        ])
        .args(["--xattrs", "--xattrs-include=*", "--directory"])
        .arg(to.path())
        .stdin(papilio.stdout.take().unwrap())
        .output()
        .unwrap();
    assert!(papilio.wait().unwrap().success());
    assert_eq!(text(&tar.stderr), "");
    assert!(tar.status.success());
    let kernel = fixture.mount();
    let options = CompareOptions { segments: true, ..CompareOptions::COPY };
    let extracted = HostTree::new(to.path().join("tree"));
    compare(&HostTree::new(kernel.path().join("tree")), &extracted, &options).assert_equal(600);
}

#[test]
fn destinations_follow_the_rules_of_cp() {
    let Some(fixture) = Fixture::get() else { return };
    let folder = fixture.folder();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let small = fixture.at("/tree/small");
    let read = |name: &str| fs::read(folder.path().join(name)).unwrap();

    succeed(["cp", &small, &at("new name")]);
    assert_eq!(read("new name"), b"small\n");
    succeed(["cp", &fixture.at("/tree/to small"), &at("")]);
    assert_eq!(read("to small"), b"small\n", "a link is followed");
    fs::create_dir(at("dir")).unwrap();
    succeed(["cp", &small, &fixture.at("/tree/empty"), &at("dir")]);
    assert_eq!(read("dir/small"), b"small\n");
    succeed(["cp", "-t", &at("dir"), &fixture.at("/sub/inside")]);
    assert_eq!(read("dir/inside"), b"inside a subvolume\n");
    succeed(["cp", "-r", &fixture.at("/sub"), &at("fresh/")]);
    assert_eq!(read("fresh/inside"), b"inside a subvolume\n");
    succeed(["cp", "-r", &fixture.at("/sub"), &at("fresh")]);
    assert_eq!(read("fresh/sub/inside"), b"inside a subvolume\n");
    succeed(["cp", "-rT", &fixture.at("/sub"), &at("dir")]);
    succeed(["cp", "-r", &fixture.at("/tree/to directory/"), &at("followed")]);
    assert_eq!(read("followed/file"), b"in a directory without w");
    succeed(["cp", "-r", &fixture.at("/tree/to directory"), &at("link")]);
    assert_eq!(fs::read_link(at("link")).unwrap(), Path::new("no write"));

    fail(1, "copied only with -r or -a", ["cp", &fixture.at("/tree"), &at("x")]);
    fail(1, "not a directory", ["cp", &small, &at("missing/")]);
    fail(1, "not a directory", ["cp", &small, &small, &at("new name")]);
    fail(1, "No such file or directory", ["cp", &small, &at("missing/name")]);
    fail(1, "cannot overwrite a file with a directory", ["cp", "-r", &fixture.at("/sub"), &at("new name")]);
    fail(1, "cannot overwrite a directory with a file", ["cp", "-T", &small, &at("dir")]);
    fail(1, "just created", ["cp", &small, &fixture.at("/tree/no write/../small"), &at("dir")]);
    fail(2, "are on the host", ["cp", &at("new name"), &at("y")]);
    fail(2, "destination is missing", ["cp", &small]);
    fail(2, "- is no destination: `papilio cat`", ["cp", &small, "-"]);
}

#[test]
fn existing_files_are_replaced_or_kept() {
    let Some(fixture) = Fixture::get() else { return };
    let folder = fixture.folder();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let small = fixture.at("/tree/small");
    fs::write(at("a"), b"something longer than the source").unwrap();
    let before = fs::metadata(at("a")).unwrap().ino();
    succeed(["cp", "-n", &small, &at("a")]);
    assert_eq!(fs::read(at("a")).unwrap(), b"something longer than the source");
    succeed(["cp", &small, &at("a")]);
    assert_eq!(fs::read(at("a")).unwrap(), b"small\n");
    assert_eq!(fs::metadata(at("a")).unwrap().ino(), before);
    // A sparse file that is written to a stream.
    let sparse = succeed(["cp", &fixture.at("/tree/sparse"), "/dev/stdout"]);
    assert_eq!(sparse, succeed(["cat", &fixture.at("/tree/sparse")]));
    assert_eq!(sparse.len(), 64 << 20);
}

#[test]
fn planted_links_are_not_followed() {
    let Some(fixture) = Fixture::get() else { return };
    let folder = fixture.folder();
    let outside = folder.path().join("outside");
    let into = folder.path().join("into");
    fs::create_dir_all(outside.join("deep")).unwrap();
    fs::create_dir_all(into.join("tree")).unwrap();
    fs::write(outside.join("target"), b"precious").unwrap();
    symlink("../../outside/target", into.join("tree/large")).unwrap();
    symlink("../../outside/new", into.join("tree/empty")).unwrap();
    symlink("../../outside/deep", into.join("tree/deep")).unwrap();
    fs::hard_link(outside.join("target"), into.join("tree/many-001")).unwrap();
    let arguments = ["cp", "-r", &fixture.at("/tree"), into.to_str().unwrap()];
    fail(1, "tree/deep: cannot overwrite a file with a directory", arguments);
    assert_eq!(fs::read(outside.join("target")).unwrap(), b"precious");
    assert!(!outside.join("new").exists());
    assert_eq!(fs::read_dir(outside.join("deep")).unwrap().count(), 0);
    assert_eq!(fs::read(into.join("tree/large")).unwrap(), noise(1, (5 << 20) + 123));
    assert!(into.join("tree/no write/file").exists());
}

#[test]
fn full_destination_ends_the_copy() {
    let Some(fixture) = Fixture::get() else { return };
    let folder = fixture.folder();
    let full = TemporaryFileSystem::new(folder.path().join("full"), 2 << 20);
    let large = fixture.at("/tree/large");
    let output = papilio(["cp", &large, full.0.to_str().unwrap()]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let lines: Vec<&str> = stderr.lines().collect();
    let [incomplete, stop] = lines[..] else { panic!("{stderr}") };
    assert!(incomplete.contains("incomplete: ") && incomplete.contains("full/large ("), "{stderr}");
    assert!(incomplete.contains("of 5243003 bytes): No space left on device"), "{stderr}");
    assert!(stop.contains("the copy stops here"), "{stderr}");
    let archive = full.0.join("a.tar");
    let output = papilio(["cp", "--to-tar", archive.to_str().unwrap(), &large]);
    check_failure(&output, 1, "incomplete archive");
}

#[test]
fn unprivileged_copy_keeps_what_it_can() {
    let Some(fixture) = Fixture::get() else { return };
    // Other users must be able to reach the program.
    let folder = tempfile::Builder::new().prefix("papilio-cli-").tempdir_in("/tmp").unwrap();
    let set_mode = |path: &Path, mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(path, mode).unwrap();
    };
    set_mode(folder.path(), 0o777);
    let program = folder.path().join("papilio");
    papilio_oracle::program::copy_program(assert_cmd::cargo::cargo_bin!("papilio"), &program).unwrap();
    set_mode(&program, 0o755);
    let image = folder.path().join("image");
    copy_image(fixture.image(), &image);
    let run = |arguments: &[&str]| {
        use std::os::unix::process::CommandExt;
        Command::new(&program)
            .args(arguments)
            .current_dir(folder.path())
            .uid(65_534)
            .gid(65_534)
            .output()
            .unwrap()
    };
    set_mode(&image, 0o600);
    check_failure(&run(&["ls", "image:/"]), 1, "ermission denied");

    set_mode(&image, 0o644);
    let output = run(&["cp", "-a", "image:/tree/owned", "owned"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let metadata = fs::metadata(folder.path().join("owned")).unwrap();
    assert_eq!((metadata.uid(), metadata.mode() & 0o7777), (65_534, 0o751), "no set-id bits");
    let output = run(&["cp", "-a", "image:/tree/marked", "marked"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("trusted.secret"), "{}", text(&output.stderr));
    check_failure(&run(&["cp", "-a", "image:/tree/character", "c"]), 1, "c: Operation not permitted");
}

#[test]
fn archive_of_an_empty_file_is_valid() {
    let Some(fixture) = Fixture::get() else { return };
    let scratch = Scratch::new(1 << 20).unwrap();
    let archive = scratch.path().join("one.tar");
    succeed(["cp", "--to-tar", archive.to_str().unwrap(), &fixture.at("/tree/empty")]);
    let output = Command::new("tar").arg("-tf").arg(&archive).output().unwrap();
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("empty\n".into(), String::new()));
}
