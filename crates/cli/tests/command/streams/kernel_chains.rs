//! Chains of the kernel, joined and received by the kernel, and extracted.

use super::{btrfs, setting};
use crate::churn::{Random, churn};
use crate::common::{fail, papilio, succeed, succeed_json, succeed_text};
use papilio_oracle::{
    CompareOptions, FileSystemSpec, HostTree, Need, Scratch, TreeSpec, compare, require, sys,
};
use std::fs;
use std::path::{Path, PathBuf};

/// Snapshots of a chain.
const LENGTH: usize = 4;

/// Compares a subvolume with its copy. The kernel sends an owner without the mode, which removes
/// set-user-ID bits, and not always the root's last time.
pub fn assert_equal(label: &str, left: &Path, right: &Path, plain: bool) {
    let options = CompareOptions { keep: 1000, ..CompareOptions::COPY };
    let report = compare(&HostTree::new(left), &HostTree::new(right), &options);
    let bits = |mode: &str| u32::from_str_radix(mode, 8).unwrap();
    let counts = |found: &papilio_oracle::Difference| match found.fact.as_str() {
        "mtime" => found.path != Path::new(""),
        "mode" => (bits(&found.left) ^ bits(&found.right)) & !0o6000 != 0,
        "size" | "nlink" => !(plain && left.join(&found.path).is_dir()),
        fact => !(plain && fact.contains("\"btrfs.")),
    };
    let lines: Vec<String> =
        report.differences.iter().filter(|found| counts(found)).map(ToString::to_string).collect();
    assert!(report.entries > 40, "{label}: only {} entries", report.entries);
    assert!(lines.is_empty() && report.total < 1000, "{label}:\n{}", lines.join("\n"));
}

/// The streams of a chain, and a mount with its snapshots `s1` to `s4`.
struct Chain {
    streams: Vec<PathBuf>,
    mounted: papilio_oracle::Mounted,
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Has the kernel make and send a chain.
fn kernel_chain(scratch: &Scratch, seed: u64) -> Chain {
    let compress = ["compress=zstd", "compress=lzo", "compress-force=zlib", "datacow"][seed as usize % 4];
    let spec = FileSystemSpec { mount_options: vec![compress.to_owned()], ..FileSystemSpec::default() };
    let mounted = spec.make(scratch).unwrap().mount().unwrap();
    let at = |path: &str| mounted.path().join(path);
    sys::create_subvolume(&at("s")).unwrap();
    TreeSpec { files: 60, bytes: 3 << 20, seed, subvolumes: false }.populate(&at("s")).unwrap();
    let mut random = Random(seed);
    let mut streams = Vec::new();
    for number in 1..=LENGTH {
        churn(&at("s"), &mut random, 30);
        mounted.sync().unwrap();
        let snapshot = at(&format!("s{number}"));
        sys::create_snapshot(&at("s"), &snapshot, true).unwrap();
        let stream = scratch.unique("chain");
        let mut arguments = vec!["send", "-q", "--proto", ["1", "2"][seed as usize / 4 % 2]];
        if seed / 4 % 2 == 1 {
            arguments.push("--compressed-data");
        }
        let parent = at(&format!("s{}", number - 1));
        let first = at("s1");
        if number > 1 {
            arguments.extend(["-p", text(&parent)]);
        }
        // A further source of clones, which is in the chain.
        if number == LENGTH {
            arguments.extend(["-c", text(&first)]);
        }
        arguments.extend(["-f", text(&stream), text(&snapshot)]);
        btrfs(arguments);
        streams.push(stream);
    }
    Chain { streams, mounted }
}

fn run<'a>(start: &[&'a str], streams: &'a [PathBuf], end: &[&'a str]) {
    let streams = streams.iter().map(|path| text(path));
    succeed(
        ["-q", "stream"].into_iter().chain(start.iter().copied()).chain(streams).chain(end.iter().copied()),
    );
}

fn receive(stream: &Path, directory: &Path) {
    btrfs(["receive".as_ref(), "-q".as_ref(), "-f".as_ref(), stream.as_os_str(), directory.as_os_str()]);
}

/// A file system of the kernel that receives.
fn target(scratch: &Scratch) -> papilio_oracle::Mounted {
    FileSystemSpec::default().make(scratch).unwrap().mount().unwrap()
}

fn check_joined(scratch: &Scratch, seed: u64, chain: &Chain) {
    let (streams, joined) = (&chain.streams, scratch.unique("joined"));
    let file = ["-f", text(&joined)];
    let source = |number: usize| chain.mounted.path().join(format!("s{number}"));
    // All as one full stream, as the streams are, and in each protocol.
    for options in [&[][..], &["--proto", "1"], &["--proto", "2", "--decompress"]] {
        let to = target(scratch);
        run(&[&["join"], options, &file].concat(), streams, &[]);
        receive(&joined, to.path());
        assert_equal(&format!("seed {seed}, {options:?}"), &source(4), &to.path().join("s4"), false);
        run(&["verify"], std::slice::from_ref(&joined), &[]);
        to.unmount().unwrap();
    }
    // The incremental ones as one, and two of them as one.
    let to = target(scratch);
    receive(&streams[0], to.path());
    run(&[&["join"], &file[..]].concat(), &streams[1..], &[]);
    receive(&joined, to.path());
    assert_equal(&format!("seed {seed}, incremental"), &source(4), &to.path().join("s4"), false);
    run(&[&["join", "--name", "two"], &file[..]].concat(), &streams[1..3], &[]);
    receive(&joined, to.path());
    assert_equal(&format!("seed {seed}, two"), &source(3), &to.path().join("two"), false);
    to.unmount().unwrap();
}

/// Rewrites the streams one by one, and receives them.
fn check_rewritten(scratch: &Scratch, seed: u64, chain: &Chain) {
    let compression = ["zstd", "lzo", "zlib:9"][seed as usize % 3];
    for options in [&["--compress", compression][..], &["--decompress", "--proto", "1"], &["--proto", "2"]] {
        let to = target(scratch);
        for stream in &chain.streams {
            let rewritten = scratch.unique("rewritten");
            run(
                &[&["recompress"], options, &["-f", text(&rewritten)]].concat(),
                std::slice::from_ref(stream),
                &[],
            );
            receive(&rewritten, to.path());
            fs::remove_file(rewritten).unwrap();
        }
        let label = format!("seed {seed}, {options:?}");
        assert_equal(&label, &chain.mounted.path().join("s4"), &to.path().join("s4"), false);
        to.unmount().unwrap();
    }
}

fn check_read(scratch: &Scratch, seed: u64, chain: &Chain) {
    let streams: Vec<&str> = chain.streams.iter().map(|path| text(path)).collect();
    let source = chain.mounted.path().join("s4");
    let folder = scratch.unique("extracted");
    fs::create_dir(&folder).unwrap();
    run(&["extract", "-C", text(&folder)], &chain.streams, &[]);
    assert_equal(&format!("seed {seed}, extracted"), &source, &folder.join("s4"), true);
    let archive = scratch.unique("archive");
    // Tar stores no sockets, which is said and nothing else.
    let arguments = ["-q", "stream", "extract", "--to-tar", text(&archive)];
    let output = papilio(arguments.into_iter().chain(streams.iter().copied()));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.lines().all(|line| line.contains("cannot store a socket")), "{stderr}");
    assert_eq!(output.status.success(), stderr.is_empty(), "{stderr}");
    let unpacked = scratch.unique("unpacked");
    fs::create_dir(&unpacked).unwrap();
    let tar = std::process::Command::new("tar")
        .args(["--xattrs", "--xattrs-include=*", "--acls", "-xpf"])
        .args([text(&archive), "-C", text(&unpacked)])
        .output()
        .unwrap();
    assert!(tar.status.success(), "{}", String::from_utf8_lossy(&tar.stderr));
    let listed = succeed_json(["stream", "ls", "--json"].into_iter().chain(streams.iter().copied()));
    let mut files = 0;
    for entry in listed.as_array().unwrap() {
        let path = entry["path"].as_str().unwrap();
        if entry["kind"] != "regular file" || entry.get("path_hex").is_some() || path.contains('\\') {
            continue;
        }
        // A file of almost 8 EiB, nearly all of it a hole.
        if entry["size"].as_u64().unwrap() > 64 << 20 {
            continue;
        }
        let expected = fs::read(source.join(&path[1..])).unwrap();
        assert_eq!(entry["size"].as_u64(), Some(expected.len() as u64), "{path}");
        assert!(fs::read(unpacked.join("s4").join(&path[1..])).unwrap() == expected, "{path} in tar");
        files += 1;
        // A process for each file would take long.
        if files % 16 == 1 {
            let read = succeed(["stream", "cat"].into_iter().chain(streams.iter().copied()).chain([path]));
            assert!(read == expected, "{path}");
        }
    }
    assert!(files > 20, "{files} files");
    assert_eq!(listed.as_array().unwrap().len(), HostEntries::of(&source) + 1);
}

/// Counts what is below a directory.
struct HostEntries;

impl HostEntries {
    fn of(directory: &Path) -> usize {
        let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
        let below = |entry: fs::DirEntry| match entry.file_type().unwrap().is_dir() {
            true => 1 + Self::of(&entry.path()),
            false => 1,
        };
        entries.map(below).sum()
    }
}

/// Splits all streams of one file, and compares what `diff` says with the trees.
fn check_parts(scratch: &Scratch, chain: &Chain) {
    let all = scratch.unique("all");
    let bytes: Vec<Vec<u8>> = chain.streams.iter().map(|path| fs::read(path).unwrap()).collect();
    fs::write(&all, bytes.concat()).unwrap();
    let folder = scratch.unique("parts");
    fs::create_dir(&folder).unwrap();
    run(&["split", "-C", text(&folder)], std::slice::from_ref(&all), &[]);
    for (number, bytes) in bytes.iter().enumerate() {
        let part = folder.join(format!("s{}.stream", number + 1));
        assert!(fs::read(part).unwrap() == *bytes, "part {number}");
    }
    fail(1, "exists already", ["stream", "split", "-C", text(&folder), text(&all)]);
    let info = succeed_json(["stream", "info", "--json", text(&all)]);
    assert_eq!(info.as_array().unwrap().len(), LENGTH);
    assert_eq!(info[1]["parent"]["uuid"], info[0]["identity"]["uuid"]);
    assert_eq!(succeed_text(["stream", "diff", text(&all), "--to", text(&all)]), "");
    let changes = succeed_text(["stream", "diff", text(&all)]);
    let (old, new) = (chain.mounted.path().join("s3"), chain.mounted.path().join("s4"));
    for line in changes.lines().filter(|line| !line.contains(['\\', '\u{fffd}'])) {
        let path = line[3..].trim_end_matches(" (content)").trim_end_matches(" (metadata)");
        let path = path.trim_end_matches(" (content, metadata)").trim_end_matches('/');
        let (before, after) = (old.join(path).symlink_metadata(), new.join(path).symlink_metadata());
        match &line[..1] {
            "A" => assert!(before.is_err() && after.is_ok(), "{line}"),
            "D" => assert!(before.is_ok() && after.is_err(), "{line}"),
            _ => assert!(before.is_ok() && after.is_ok(), "{line}"),
        }
    }
    assert!(changes.lines().count() > 5, "{changes}");
}

#[test]
fn joined_chains_are_received_by_the_kernel() {
    let needs = [Need::KERNEL_MOUNT, &[Need::Command("btrfs")]].concat();
    if require(&needs).is_none() {
        return;
    }
    let chains = setting("PAPILIO_STREAM_CHAINS", 1);
    let first = setting("PAPILIO_STREAM_SEED", 4);
    for seed in first..first + chains {
        let scratch = Scratch::new(1 << 30).unwrap();
        let chain = kernel_chain(&scratch, seed);
        run(&["verify"], &chain.streams, &[]);
        check_joined(&scratch, seed, &chain);
        check_rewritten(&scratch, seed, &chain);
        check_read(&scratch, seed, &chain);
        check_parts(&scratch, &chain);
        if chains > 1 {
            println!("chain {seed} is equal");
        }
    }
}
