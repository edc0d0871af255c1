//! `papilio backup`: chains of the kernel, restored to its mount and compared; the messages; keys;
//! a folder without space.
//!
//! `PAPILIO_BACKUP_CHAINS` sets the number of chains (1).

use crate::churn::{Random, churn};
use crate::common::{assert_clean, fail, papilio, succeed, succeed_json, succeed_text, text};
use crate::fixture::{TemporaryFileSystem, noise};
use crate::streams::{assert_equal, setting};
use papilio_oracle::{FileSystemSpec, Need, Scratch, TreeSpec, require, sys};
use std::fs;
use std::path::{Path, PathBuf};

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Snapshots of a chain.
const LENGTH: usize = 4;

/// Backs up a chain of the kernel, restores all of it, and compares.
fn check_chain(seed: u64) {
    let scratch = Scratch::new(1 << 30).unwrap();
    let compress = ["compress=zstd", "datacow", "compress-force=zlib"][seed as usize % 3];
    let spec = FileSystemSpec { mount_options: vec![compress.to_owned()], ..FileSystemSpec::default() };
    let images = spec.make(&scratch).unwrap();
    let mounted = images.mount().unwrap();
    let at = |name: &str| mounted.path().join(name);
    sys::create_subvolume(&at("s")).unwrap();
    TreeSpec { files: 60, bytes: 3 << 20, seed, subvolumes: false }.populate(&at("s")).unwrap();
    let mut random = Random(seed);
    for number in 1..=LENGTH {
        churn(&at("s"), &mut random, 30);
        mounted.sync().unwrap();
        sys::create_snapshot(&at("s"), &at(&format!("s{number}")), true).unwrap();
    }
    let (repository, key) = (scratch.unique("repository"), scratch.unique("key"));
    fs::write(&key, b"the bytes of a key file").unwrap();
    let key_option = ["--key-file", path(&key)];
    let options: &[&str] = if seed.is_multiple_of(2) { &key_option } else { &[] };
    let run =
        |arguments: &[&str]| succeed_text(["-q", "backup"].iter().chain(arguments).chain(options).copied());
    let encrypt: &[&str] = if options.is_empty() { &[] } else { &["--encrypt"] };
    run(&[&["init", path(&repository)], encrypt].concat());
    // From the kernel's mount, and from the image.
    let image = images.paths()[0].clone();
    let (first, rest) = (at("s1"), [at("s2"), at("s3")]);
    run(&["create", path(&repository), path(&first)]);
    let made = run(&["create", path(&repository), path(&rest[0]), path(&rest[1])]);
    assert_eq!(made.matches("incremental").count(), 2, "{made}");
    mounted.unmount().unwrap();
    let made = run(&["create", path(&repository), &format!("{}:/s4", image.display())]);
    assert!(made.contains("incremental"), "{made}");
    run(&["verify", path(&repository)]);
    let mounted = images.mount_read_only().unwrap();
    let source = |number: usize| mounted.path().join(format!("s{number}"));
    // To the kernel's mount, with and without a base there, and to an image.
    let target = FileSystemSpec::default().make(&scratch).unwrap();
    let to = target.mount().unwrap();
    for name in ["s3", "s1", "s4", "s2"] {
        run(&["restore", path(&repository), name, path(to.path())]);
    }
    for number in 1..=LENGTH {
        let label = format!("seed {seed}, s{number} on the mount");
        assert_equal(&label, &source(number), &to.path().join(format!("s{number}")), false);
    }
    assert_eq!(fs::read_dir(to.path()).unwrap().count(), LENGTH);
    to.unmount().unwrap();
    let target = FileSystemSpec::default().make(&scratch).unwrap();
    let image = &target.paths()[0];
    run(&["restore", path(&repository), "latest", &format!("{}:/", image.display())]);
    assert_clean(image);
    let to = target.mount_read_only().unwrap();
    assert_equal(&format!("seed {seed}, s4 in the image"), &source(4), &to.path().join("s4"), false);
    to.unmount().unwrap();
    check_files(&scratch, seed, &repository, options, &source(4));
    mounted.unmount().unwrap();
}

/// Takes everything out of the last backup without restoring it.
fn check_files(scratch: &Scratch, seed: u64, repository: &Path, options: &[&str], source: &Path) {
    let folder = scratch.unique("extracted");
    fs::create_dir(&folder).unwrap();
    let start = ["-q", "backup", "extract", path(repository), "s4", "/", "-C", path(&folder)];
    succeed(start.iter().chain(options).copied());
    assert_equal(&format!("seed {seed}, extracted"), source, &folder.join("s4"), true);
    let listed =
        succeed_json(["backup", "ls", "--json", path(repository), "s4"].iter().chain(options).copied());
    let entries = listed.as_array().unwrap();
    assert!(entries.len() > 40, "{}", entries.len());
    let file = entries.iter().find(|entry| {
        let is_plain = entry.get("path_hex").is_none() && entry["size"].as_u64().unwrap() < 1 << 20;
        entry["kind"] == "regular file" && entry["data_bytes"].as_u64().unwrap() > 0 && is_plain
    });
    let file = file.unwrap()["path"].as_str().unwrap();
    let one = scratch.unique("one");
    fs::create_dir(&one).unwrap();
    let start = ["-q", "backup", "extract", path(repository), "s4", file, "-C", path(&one)];
    succeed(start.iter().chain(options).copied());
    let (copy, original) = (one.join("s4").join(&file[1..]), source.join(&file[1..]));
    assert!(fs::read(copy).unwrap() == fs::read(original).unwrap(), "{file}");
}

#[test]
fn chains_of_the_kernel_are_restored_to_it() {
    let needs = [Need::KERNEL_MOUNT, &[Need::Command("btrfs")]].concat();
    if require(&needs).is_none() {
        return;
    }
    let chains = setting("PAPILIO_BACKUP_CHAINS", 1);
    for seed in 0..chains {
        check_chain(seed);
        if chains > 1 {
            println!("chain {seed} is equal");
        }
    }
}

/// Runs the command, whose usage is wrong: clap says so in several lines.
fn refuse(part: &str, arguments: &[&str]) {
    let output = papilio(arguments);
    let stderr = text(&output.stderr);
    assert!(output.status.code() == Some(2) && stderr.contains(part), "{stderr}");
}

/// An image with a subvolume `/data` and its snapshots `/a` and `/b`, and an empty repository.
struct Small {
    folder: tempfile::TempDir,
    image: String,
    repository: String,
}

impl Small {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| path(&folder.path().join(name)).to_owned();
        let (image, repository) = (at("fs.img"), at("repository"));
        succeed(["mkfs", "-q", "--size", "256M", &image]);
        succeed(["subvolume", "create", &format!("{image}:/data")]);
        // Nothing that compresses: the largest object is part of a stream.
        fs::write(at("file"), [noise(1, 6000), b"first\n".repeat(1000)].concat()).unwrap();
        succeed(["cp", &at("file"), &format!("{image}:/data/file")]);
        succeed(["subvolume", "snapshot", "-r", &format!("{image}:/data"), &format!("{image}:/a")]);
        fs::write(at("file2"), noise(2, 7000)).unwrap();
        succeed(["cp", &at("file2"), &format!("{image}:/data/other")]);
        succeed(["subvolume", "snapshot", "-r", &format!("{image}:/data"), &format!("{image}:/b")]);
        succeed(["backup", "init", &repository]);
        Self { folder, image, repository }
    }

    fn at(&self, name: &str) -> String {
        format!("{}:/{name}", self.image)
    }

    fn create(&self, name: &str, time: &str) -> String {
        succeed_text(["backup", "create", "--time", time, &self.repository, &self.at(name)])
    }
}

#[test]
fn backups_are_listed_pruned_and_verified() {
    let small = Small::new();
    let repository = &small.repository;
    assert!(small.create("a", "2026-01-05").contains("  a  full, "));
    assert!(small.create("b", "2026-01-06").contains("  b  incremental, "));
    assert!(small.create("b", "2026-01-07").ends_with("  b  was there already\n"));
    let listed = succeed_text(["backup", "list", repository]);
    let lines: Vec<&str> = listed.lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[0].contains("  2026-01-05 00:00:00  full ") && lines[0].ends_with("  a"), "{listed}");
    let json = succeed_json(["backup", "list", "--json", repository]);
    assert_eq!(json[1]["base"]["id"], json[0]["id"]);
    let shown = succeed_text(["backup", "show", repository, &lines[1][..6]]);
    assert!(shown.contains("Snapshot: b\n") && shown.contains("Base:     "), "{shown}");
    assert_eq!(succeed_json(["backup", "show", "--json", repository, "a"])["name"], "a");
    assert_eq!(succeed_text(["backup", "ls", repository, "b"]), "/\n/file\n/other\n");
    assert!(succeed_text(["backup", "ls", "-l", repository, "b", "other"]).contains(" 7000 "));
    fail(1, "no such file", ["backup", "ls", repository, "b", "/none"]);
    fail(1, "no backup has this id or name", ["backup", "show", repository, "none"]);
    // The base of a kept backup stays, and says for which one.
    let plan = succeed_text(["backup", "prune", "--dry-run", "--keep-last", "1", repository]);
    assert!(plan.contains("is based on it") && plan.contains("keep    last"), "{plan}");
    let kept = succeed_text(["backup", "prune", "--keep-last", "1", repository]);
    assert!(kept.ends_with("0 backups and 0 objects deleted, 0.00B\n"), "{kept}");
    let merged = succeed_text(["backup", "prune", "--merge", "--keep-last", "1", repository]);
    assert!(merged.contains("joined with its bases") && merged.contains("\n1 backups and "), "{merged}");
    let left = succeed_text(["backup", "list", repository]);
    assert!(left.contains("  full ") && left.lines().count() == 1, "{left}");
    let out = small.folder.path().join("out");
    fs::create_dir(&out).unwrap();
    succeed(["backup", "restore", repository, "latest", path(&out)]);
    assert_eq!(fs::read(out.join("b/other")).unwrap(), noise(2, 7000));
}

#[test]
fn damage_and_locks_are_named() {
    let small = Small::new();
    let repository = &small.repository;
    small.create("a", "2026-01-05");
    small.create("b", "2026-01-06");
    let counted = succeed_text(["backup", "verify", repository]);
    assert!(counted.starts_with("2 backups, 4 objects, 4 of them read"), "{counted}");
    assert!(succeed_text(["backup", "verify", "--sample", "0", repository]).contains(" 0 of them read"));
    refuse("not a number", &["backup", "verify", "--sample", "x", repository]);
    let list = succeed_json(["backup", "list", "--json", repository]);
    let objects = objects_of(Path::new(repository));
    let object = objects.iter().max_by_key(|object| fs::metadata(object).unwrap().len()).unwrap();
    let bytes = fs::read(object).unwrap();
    fs::write(object, &bytes[..bytes.len() - 1]).unwrap();
    let name = object.file_name().unwrap().to_str().unwrap();
    let output = papilio(["backup", "verify", repository]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains(name) && stderr.contains("bytes in place of"), "{stderr}");
    assert!(
        stderr.contains("affects ") && stderr.contains(&list[1]["id"].as_str().unwrap()[..12]),
        "{stderr}"
    );
    fs::remove_file(object).unwrap();
    let out = small.folder.path().join("out");
    fs::create_dir(&out).unwrap();
    fail(1, "the object is missing", ["backup", "restore", repository, "b", path(&out)]);
    fs::write(object, &bytes).unwrap();
    succeed(["backup", "restore", repository, "b", path(&out)]);
    // A lock that cannot be read names no process.
    fs::write(Path::new(repository).join("lock"), b"PAPBKUP1").unwrap();
    fail(1, "--break-lock removes this lock", ["backup", "prune", repository]);
    succeed(["backup", "prune", "--break-lock", repository]);
    succeed(["backup", "prune", repository]);
}

fn objects_of(repository: &Path) -> Vec<PathBuf> {
    let folders = fs::read_dir(repository.join("data")).unwrap().map(|entry| entry.unwrap().path());
    folders.flat_map(|folder| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path())).collect()
}

#[test]
fn wrong_operands_are_refused() {
    let small = Small::new();
    let repository = &small.repository;
    fail(1, "the subvolume is not read-only", ["backup", "create", repository, &small.at("data")]);
    fail(1, "no such subvolume", ["backup", "create", repository, &small.at("data/file")]);
    let nothing = path(&small.folder.path().join("nothing")).to_owned();
    fail(1, "no backup repository", ["backup", "create", &nothing, &small.at("a")]);
    fail(1, "a repository is there already", ["backup", "init", repository]);
    fail(1, "an empty place", ["backup", "init", path(small.folder.path())]);
    refuse("not a time", &["backup", "create", "--time", "soon", repository, &small.at("a")]);
    assert!(objects_of_or_none(Path::new(repository)).is_empty());
}

fn objects_of_or_none(repository: &Path) -> Vec<PathBuf> {
    if repository.join("data").exists() { objects_of(repository) } else { Vec::new() }
}

#[test]
fn a_key_opens_an_encrypted_repository() {
    let small = Small::new();
    let at = |name: &str| path(&small.folder.path().join(name)).to_owned();
    let (repository, key, wrong) = (at("hidden"), at("key"), at("wrong"));
    fs::write(&key, b"right").unwrap();
    fs::write(&wrong, b"other").unwrap();
    succeed(["backup", "init", "--encrypt", "--key-file", &key, &repository]);
    succeed(["backup", "create", "--key-file", &key, &repository, &small.at("a")]);
    fail(1, "wrong passphrase or key file", ["backup", "list", "--key-file", &wrong, &repository]);
    let listed = succeed_text(["backup", "list", "--key-file", &key, &repository]);
    assert!(listed.ends_with("  a\n"), "{listed}");
    for object in objects_of(Path::new(&repository)) {
        let bytes = fs::read(object).unwrap();
        assert!(!bytes.windows(5).any(|part| part == b"first"));
    }
}

#[test]
fn keys_are_added_changed_and_removed() {
    let small = Small::new();
    let at = |name: &str| path(&small.folder.path().join(name)).to_owned();
    let (repository, first, second, third) = (at("hidden"), at("key"), at("second"), at("third"));
    for (file, key) in [(&first, "right"), (&second, "other"), (&third, "newest")] {
        fs::write(file, key).unwrap();
    }
    succeed(["backup", "init", "--encrypt", "--key-file", &first, &repository]);
    succeed(["backup", "create", "--key-file", &first, &repository, &small.at("a")]);
    let key = |arguments: &[&str]| succeed_text(["backup", "key"].iter().chain(arguments).copied());
    let added =
        key(&["add", "--key-file", &first, "--new-key-file", &second, "--label", "the office", &repository]);
    assert!(added.ends_with("  the office\n"), "{added}");
    let listed = key(&["list", &repository]);
    assert!(listed.lines().count() == 2 && listed.ends_with(&added), "{listed}");
    let json = succeed_json(["backup", "key", "list", "--json", &repository]);
    assert_eq!(
        (json[1]["label"].as_str(), json[0]["memory_kib"].as_u64()),
        (Some("the office"), Some(65536))
    );
    succeed(["backup", "verify", "--key-file", &second, &repository]);
    key(&["change", "--key-file", &first, "--new-key-file", &third, &repository]);
    fail(1, "wrong passphrase or key file", ["backup", "list", "--key-file", &first, &repository]);
    succeed(["backup", "verify", "--key-file", &third, &repository]);
    let wrong = ["backup", "key", "remove", "--key-file", &third, &repository, "nobody"];
    fail(1, "nobody: no key of the repository", wrong);
    key(&["remove", "--key-file", &third, &repository, "the office"]);
    fail(1, "wrong passphrase or key file", ["backup", "list", "--key-file", &second, &repository]);
    let last = key(&["list", &repository]);
    let last = last.trim();
    fail(1, "the only key", ["backup", "key", "remove", "--key-file", &third, &repository, last]);
    let listed = succeed_text(["backup", "list", "--key-file", &third, &repository]);
    assert!(listed.ends_with("  a\n"), "{listed}");
    // Without a terminal there is nobody to ask.
    let mut alone = crate::common::command();
    alone.args(["backup", "key", "change", "--key-file", &third, &repository]);
    let refused = std::process::Command::new("setsid")
        .args([std::ffi::OsStr::new("--wait"), alone.get_program()])
        .args(alone.get_args())
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let stderr = text(&refused.stderr);
    assert!(refused.status.code() == Some(1) && stderr.contains("give --new-key-file FILE"), "{stderr}");
    let plain = ["backup", "key", "add", "--new-key-file", &second, &small.repository];
    fail(1, "is not encrypted", plain);
    assert_eq!(key(&["list", &small.repository]), "");
}

#[test]
fn a_folder_without_space_loses_nothing() {
    if require(&[Need::Root]).is_none() {
        return;
    }
    let small = Small::new();
    let full = TemporaryFileSystem::new(small.folder.path().join("full"), 256 << 10);
    let repository = path(&full.0.join("repository")).to_owned();
    succeed(["backup", "init", &repository]);
    succeed(["backup", "create", &repository, &small.at("a")]);
    let mut noise = vec![0; 2 << 20];
    fastrand::Rng::with_seed(1).fill(&mut noise);
    let big = path(&small.folder.path().join("big")).to_owned();
    fs::write(&big, noise).unwrap();
    succeed(["cp", &big, &small.at("data/big")]);
    succeed(["subvolume", "snapshot", "-r", &small.at("data"), &small.at("c")]);
    fail(1, "No space left", ["backup", "create", &repository, &small.at("c")]);
    assert_eq!(succeed_text(["backup", "list", &repository]).lines().count(), 1);
    succeed(["backup", "prune", &repository]);
    let found = succeed_text(["backup", "verify", &repository]);
    assert!(found.contains("1 backups, 2 objects") && found.contains(" 0 not in use, 0 faults"), "{found}");
}
