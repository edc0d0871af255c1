//! `papilio subvolume cost`, judged by the kernel: its qgroups count the same bytes, and what is
//! free after the deletion of snapshots is what the command foretold.

use crate::common::{fail, papilio, succeed_text as succeed};
use papilio_oracle::{ImageSet, Need, Scratch, require};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const NEEDS: &[Need] = &[Need::Root, Need::Loop, Need::KernelBtrfs, Need::Command("btrfs")];

/// The kernel cleans deleted subvolumes after a commit.
const SOON: &str = "commit=1";

/// A small generator of random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

fn string(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Changes files of a writable subvolume in the way that real ones change: new, appended,
/// overwritten in part, cloned, removed.
fn change(subvolume: &Path, random: &mut Random) {
    for _ in 0..random.below(12) + 4 {
        let file = subvolume.join(format!("file{}", random.below(12)));
        let length = [300, 5000, 70_000, 400_000][random.below(4)];
        // One half can be compressed.
        let mut content = vec![0; length];
        for (at, part) in content.chunks_mut(4).enumerate() {
            let word = if length % 3 == 0 { at / 700 } else { random.below(1 << 31) };
            part.copy_from_slice(&word.to_le_bytes()[..part.len()]);
        }
        match random.below(6) {
            0 | 1 => fs::write(&file, content).unwrap(),
            2 if file.exists() => {
                let opened = fs::File::options().write(true).open(&file).unwrap();
                opened.write_all_at(&content[..content.len().min(9000)], 4096).unwrap();
            }
            3 if file.exists() => {
                let copy = subvolume.join(format!("file{}", random.below(12)));
                if copy != file {
                    run("cp", &["--reflink=always", string(&file), string(&copy)]);
                }
            }
            4 if file.exists() => fs::remove_file(&file).unwrap(),
            _ => fs::write(subvolume.join(format!("small{}", random.below(30))), &content[..200]).unwrap(),
        }
    }
}

/// Makes a file system with subvolumes, snapshots of them, and clones between them; returns the
/// numbers of the kernel's qgroups: referenced and exclusive bytes.
fn history(images: &ImageSet, seed: u64, snapshots: usize) -> BTreeMap<u64, (u64, u64)> {
    let mut random = Random(seed);
    let mut options = vec![SOON.to_owned()];
    options.extend(seed.is_multiple_of(2).then(|| "compress=zstd".to_owned()));
    let mounted = images.mount_with(&options, false).unwrap();
    let top = mounted.path().to_path_buf();
    run("btrfs", &["quota", "enable", string(&top)]);
    let mut writable: Vec<PathBuf> = vec![top.clone()];
    for name in ["one", "two"] {
        let path = top.join(name);
        run("btrfs", &["subvolume", "create", string(&path)]);
        writable.push(path);
    }
    for number in 0..snapshots {
        let source = writable[random.below(writable.len())].clone();
        change(&source, &mut random);
        let path = top.join(format!("snapshot{number}"));
        let mut arguments = vec!["subvolume", "snapshot"];
        let read_only = random.below(3) > 0;
        if read_only {
            arguments.push("-r");
        }
        run("btrfs", &[&arguments[..], &[string(&source), string(&path)]].concat());
        if !read_only {
            writable.push(path);
        } else if random.below(4) == 0 && number > 2 {
            run("btrfs", &["subvolume", "delete", string(&path)]);
        }
    }
    run("btrfs", &["subvolume", "sync", string(&top)]);
    run("btrfs", &["quota", "rescan", "-w", string(&top)]);
    run("btrfs", &["filesystem", "sync", string(&top)]);
    let shown = run("btrfs", &["qgroup", "show", "--raw", string(&top)]);
    let groups = shown.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let id = fields.next()?.strip_prefix("0/")?.parse().ok()?;
        Some((id, (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?)))
    });
    let groups = groups.collect();
    mounted.unmount().unwrap();
    groups
}

fn cost(arguments: &[&str]) -> Value {
    serde_json::from_str(&succeed([&["subvolume", "cost", "--json"], arguments].concat())).unwrap()
}

/// Returns the bytes that each subvolume references and holds alone.
fn by_subvolume(answer: &Value) -> BTreeMap<u64, (u64, u64)> {
    let rows = answer["subvolumes"].as_array().unwrap();
    rows.iter()
        .map(|row| {
            let bytes = |kind: &str| row[kind]["bytes"].as_u64().unwrap();
            (row["subvolume"]["id"].as_u64().unwrap(), (bytes("referenced"), bytes("exclusive")))
        })
        .collect()
}

/// Returns the bytes of data in use.
fn data_in_use(mounted: &Path) -> u64 {
    let shown = run("btrfs", &["filesystem", "df", "--raw", string(mounted)]);
    let data = shown.lines().find(|line| line.starts_with("Data")).unwrap();
    data.rsplit_once("used=").unwrap().1.parse().unwrap()
}

fn compare(seed: u64, snapshots: usize) {
    let scratch = Scratch::new(1 << 30).unwrap();
    let path = scratch.path().join("image");
    succeed(["mkfs", "-q", "--size", "700M", string(&path)]);
    let images = ImageSet::open(&scratch, vec![path.clone()]);
    let groups = history(&images, seed, snapshots);
    let image = string(&path);
    let answer = cost(&[image]);
    let mut measured = by_subvolume(&answer);
    assert!(measured.len() > 3);
    measured.retain(|id, _| groups.contains_key(id));
    for (id, found) in &measured {
        assert_eq!(*found, groups[id], "seed {seed}: subvolume {id}");
    }
    assert_eq!(cost(&[image, "--memory", "1K"]), answer, "seed {seed}: references in files");

    // Some snapshots go. One is not enough to see what several share with one another only.
    let mut random = Random(seed + 1);
    let rows = answer["subvolumes"].as_array().unwrap();
    let names: Vec<(String, String)> = rows
        .iter()
        .filter(|row| row["subvolume"]["path"].as_str().unwrap().starts_with("snapshot"))
        .map(|row| {
            (row["subvolume"]["id"].to_string(), row["subvolume"]["path"].as_str().unwrap().to_owned())
        })
        .filter(|_| random.below(2) == 0)
        .collect();
    if names.len() < 2 {
        return;
    }
    let ids: Vec<&str> = names.iter().map(|(id, _)| id.as_str()).collect();
    let together = cost(&[&[image], &ids[..]].concat())["together"].clone();
    let mounted = images.mount_with(&[SOON.to_owned()], false).unwrap();
    let before = data_in_use(mounted.path());
    for (_, name) in &names {
        run("btrfs", &["subvolume", "delete", string(&mounted.path().join(name))]);
    }
    run("btrfs", &["subvolume", "sync", string(mounted.path())]);
    run("btrfs", &["filesystem", "sync", string(mounted.path())]);
    let freed = before - data_in_use(mounted.path());
    // The devices of a mount of the kernel are read beside it.
    let there = by_subvolume(&cost(&[string(mounted.path())]));
    mounted.unmount().unwrap();
    assert_eq!(together["data"].as_u64().unwrap(), freed, "seed {seed}: {names:?}");
    assert_eq!(there, by_subvolume(&cost(&[image])), "seed {seed}: in the mount");
    let left = by_subvolume(&cost(&[image]));
    for (id, (referenced, _)) in left.iter().filter(|(id, _)| **id != 5) {
        assert_eq!(*referenced, measured[id].0, "seed {seed}: subvolume {id} keeps its own");
    }
}

#[test]
fn the_kernel_counts_and_frees_the_same() {
    if require(NEEDS).is_some() {
        (0..3).for_each(|seed| compare(seed, 8));
    }
}

#[test]
#[ignore = "takes minutes"]
fn the_kernel_counts_and_frees_the_same_in_many_histories() {
    if require(NEEDS).is_some() {
        (100..300).for_each(|seed| compare(seed, 6 + seed as usize % 20));
    }
}

/// Snapshots of a subvolume that changes between them, on an image, without the kernel.
fn with_snapshots(count: usize) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image").to_str().unwrap().to_owned();
    let at = |path: &str| format!("{image}:{path}");
    succeed(["mkfs", "-q", "--size", "300M", &image]);
    succeed(["subvolume", "create", &at("/home")]);
    let host = folder.path().join("host");
    for number in 0..count {
        fs::write(&host, vec![number as u8 + 1; 1 << 20]).unwrap();
        succeed(["cp", string(&host), &at("/home/changes")]);
        fs::write(&host, vec![number as u8 + 1; 100 << 10]).unwrap();
        succeed(["cp", string(&host), &at(&format!("/home/kept{number}"))]);
        succeed(["subvolume", "snapshot", "-r", &at("/home"), &at(&format!("/day{number}"))]);
    }
    (folder, image)
}

#[test]
fn snapshots_to_delete_are_chosen() {
    let (_folder, image) = with_snapshots(5);
    let shown = succeed(["subvolume", "cost", &image]);
    assert!(
        shown.contains("Exclusive") && shown.contains("day3") && shown.contains("All together"),
        "{shown}"
    );
    let answer = cost(&[&image, "--free", "2M"]);
    let chosen: Vec<u64> =
        answer["delete"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    assert_eq!(chosen, [257, 258]);
    assert!(answer["freed"]["bytes"].as_u64().unwrap() >= 2 << 20);
    let spared = cost(&[&image, "--free", "2M", "--keep", "/day1"]);
    assert_eq!(spared["delete"], serde_json::json!([257, 259]));
    // The last snapshot shares everything with its source.
    fail(1, "deleting all 5 subvolumes that may go frees", ["subvolume", "cost", &image, "--free", "50M"]);
    fail(2, "no subvolume has this id", ["subvolume", "cost", &image, "day9"]);
    fail(2, "--keep", ["subvolume", "cost", &image, "--free", "1M", "--keep", "[a"]);
    let two = cost(&[&image, "day0", "/day1"]);
    assert_eq!(two["subvolumes"].as_array().unwrap().len(), 2);
    assert!(two["together"]["data"].as_u64().unwrap() >= 2 << 20);
    let raw = succeed(["subvolume", "cost", "--raw", "-b", &image]);
    assert!(raw.lines().count() > 6, "{raw}");
}

#[test]
fn a_sample_comes_near_the_truth() {
    let folder = tempfile::tempdir().unwrap();
    let (image, tree) = (folder.path().join("image"), folder.path().join("tree"));
    fs::create_dir(&tree).unwrap();
    // More than a block of pointers to leaves, which are what a sample leaves out.
    for number in 0..12_000_u32 {
        fs::write(tree.join(format!("a file with quite a long name, number {number:06}")), [7; 5000])
            .unwrap();
    }
    let at = |path: &str| format!("{}:{path}", string(&image));
    succeed(["mkfs", "-q", "--size", "600M", "--rootdir", string(&tree), string(&image)]);
    succeed(["subvolume", "snapshot", "-r", &at("/"), &at("/old")]);
    succeed(["rm", &at("/a file with quite a long name, number 000007")]);
    let exact = cost(&[string(&image)]);
    let sampled = cost(&[string(&image), "--sample=60"]);
    assert!(sampled["sampled"] == true && exact["sampled"] == false);
    let leaves = |answer: &Value| answer["leaves_read"].as_u64().unwrap();
    assert!(leaves(&sampled) * 2 < leaves(&exact), "{} of {}", leaves(&sampled), leaves(&exact));
    for (near, true_row) in
        sampled["subvolumes"].as_array().unwrap().iter().zip(exact["subvolumes"].as_array().unwrap())
    {
        let number = |row: &Value, field: &str| row["referenced"][field].as_u64().unwrap();
        assert_eq!(number(near, "metadata"), number(true_row, "metadata"));
        let error = number(near, "data").abs_diff(number(true_row, "data"));
        assert!(error <= 2 * number(near, "data_error") + (1 << 20), "{near} {true_row}");
    }
}

#[test]
fn what_cannot_be_read_is_named() {
    let (_folder, image) = with_snapshots(2);
    let root = succeed(["inspect", "dump-tree", "-t", "257", &image]);
    let line = root.lines().find(|line| line.starts_with("leaf ") || line.starts_with("node ")).unwrap();
    let address = line.split_whitespace().nth(1).unwrap();
    let places = succeed(["inspect", "map-logical", "-l", address, &image]);
    let file = fs::File::options().write(true).open(&image).unwrap();
    for place in places.lines() {
        let physical: u64 =
            place.split("physical ").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap();
        file.write_all_at(&[0xee; 4096], physical).unwrap();
    }
    let output = papilio(["subvolume", "cost", &image]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains(address) && error.contains("1 tree blocks cannot be read"), "{error}");
}
