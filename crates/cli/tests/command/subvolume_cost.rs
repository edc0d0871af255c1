//! `papilio subvolume cost`, judged by the kernel: its qgroups count the same bytes, and what is
//! free after the deletion of snapshots is what the command foretold.

use crate::common::{binary, check_failure, command, fail, papilio, succeed_text as succeed};
use crate::fixture::{run, string};
use papilio::format::items::block_group::BlockGroupFlags;
use papilio::{FileSystem, OpenOptions};
use papilio_oracle::{FileSystemSpec, ImageSet, Need, Scratch, require, sys};
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

/// Changes files of a writable subvolume in the way that real ones change: new, appended,
/// overwritten in part, cloned whole and in part, also inside one file, removed.
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
        match random.below(7) {
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
            5 if file.metadata().is_ok_and(|found| found.len() > 3 * 4096) => {
                let opened = fs::File::options().read(true).write(true).open(&file).unwrap();
                let end = file.metadata().unwrap().len().next_multiple_of(4096);
                let from = 4096 * random.below(2) as u64;
                sys::clone_range(&opened, from, 4096, &opened, end + 4096 * random.below(3) as u64).unwrap();
            }
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
    let groups = qgroups(string(&top));
    mounted.unmount().unwrap();
    groups
}

/// Returns the referenced and the exclusive bytes of each subvolume, as the kernel counts them.
fn qgroups(mounted: &str) -> BTreeMap<u64, (u64, u64)> {
    let shown = run("btrfs", &["qgroup", "show", "--raw", mounted]);
    let groups = shown.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let id = fields.next()?.strip_prefix("0/")?.parse().ok()?;
        Some((id, (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?)))
    });
    groups.collect()
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

/// Where data and tree blocks lie, and the bytes of devices that a byte takes, as a fraction.
struct Layout {
    devices: usize,
    profiles: [&'static str; 2],
    raw: [(u64, u64); 2],
}

const LAYOUTS: [Layout; 6] = [
    Layout { devices: 1, profiles: ["single", "dup"], raw: [(1, 1), (2, 1)] },
    Layout { devices: 1, profiles: ["dup", "single"], raw: [(2, 1), (1, 1)] },
    Layout { devices: 2, profiles: ["raid1", "raid1"], raw: [(2, 1), (2, 1)] },
    Layout { devices: 4, profiles: ["raid10", "raid10"], raw: [(2, 1), (2, 1)] },
    Layout { devices: 3, profiles: ["raid5", "raid1"], raw: [(3, 2), (2, 1)] },
    Layout { devices: 4, profiles: ["raid6", "raid1c3"], raw: [(2, 1), (3, 1)] },
];

/// Returns the arguments that name all images of a file system.
fn named(images: &ImageSet) -> Vec<&str> {
    let (first, others) = images.paths().split_first().unwrap();
    let others = others.iter().flat_map(|path| ["--device", string(path)]);
    others.chain([string(first)]).collect()
}

/// Returns the bytes of data in use, of an image that is not mounted.
fn data_on(images: &[&str]) -> u64 {
    let usage = serde_json::from_str::<Value>(&succeed([&["usage", "--json"], images].concat())).unwrap();
    let spaces = usage["spaces"].as_array().unwrap().iter();
    spaces.filter(|space| space["type"] == "Data").map(|space| space["used"].as_u64().unwrap()).sum()
}

/// Deletes subvolumes of copies of the images with Papilio, and returns the bytes of data that are
/// free afterwards.
fn freed_by_papilio(scratch: &Scratch, images: &ImageSet, paths: &[&str]) -> u64 {
    let folder = scratch.path().join("copies");
    fs::create_dir(&folder).unwrap();
    let copies: Vec<PathBuf> =
        images.paths().iter().map(|path| folder.join(path.file_name().unwrap())).collect();
    for (from, to) in images.paths().iter().zip(&copies) {
        run("cp", &["--sparse=always", string(from), string(to)]);
    }
    let (first, others) = copies.split_first().unwrap();
    let devices: Vec<&str> = others.iter().flat_map(|path| ["--device", string(path)]).collect();
    let before = data_on(&[&devices[..], &[string(first)]].concat());
    for path in paths {
        let place = format!("{}:/{path}", first.display());
        succeed([&["subvolume", "delete"], &devices[..], &[&place[..]]].concat());
    }
    let after = data_on(&[&devices[..], &[string(first)]].concat());
    fs::remove_dir_all(folder).unwrap();
    before - after
}

/// Compares the bytes of devices with those without copies.
fn check_raw(answer: &Value, raw: [(u64, u64); 2]) {
    let rows = answer["subvolumes"].as_array().unwrap().iter();
    let estimates = rows.flat_map(|row| [&row["exclusive"], &row["referenced"]]);
    for estimate in estimates.chain([&answer["total"]]) {
        for (kind, (times, parts)) in ["data", "metadata"].into_iter().zip(raw) {
            let bytes = estimate[kind].as_u64().unwrap();
            let on_devices = estimate[format!("raw_{kind}")].as_u64().unwrap();
            // A share of parity is rounded for each extent.
            let difference = (bytes * times / parts).abs_diff(on_devices);
            assert!(difference <= bytes / 4096 * (parts - 1), "{kind}: {estimate}");
        }
    }
}

fn compare(seed: u64, snapshots: usize, layout: &Layout) {
    let scratch = Scratch::new(2 << 30).unwrap();
    let images = FileSystemSpec {
        devices: layout.devices,
        device_size: 700 << 20,
        data_profile: Some(layout.profiles[0].to_owned()),
        metadata_profile: Some(layout.profiles[1].to_owned()),
        ..FileSystemSpec::default()
    };
    let images = images.make(&scratch).unwrap();
    let groups = history(&images, seed, snapshots);
    let image = named(&images);
    let answer = cost(&image);
    let mut measured = by_subvolume(&answer);
    assert!(measured.len() > 3);
    measured.retain(|id, _| groups.contains_key(id));
    for (id, found) in &measured {
        assert_eq!(*found, groups[id], "seed {seed}, {:?}: subvolume {id}", layout.profiles);
    }
    check_raw(&answer, layout.raw);
    let spilled = cost(&[&image[..], &["--memory", "1K"]].concat());
    assert_eq!(spilled, answer, "seed {seed}: references in files");

    // Some snapshots go. One is not enough to see what several share with one another only.
    let mut random = Random(seed + 1);
    let rows = answer["subvolumes"].as_array().unwrap();
    let can_go = rows.iter().filter(|row| row["subvolume"]["path"].as_str().unwrap().starts_with("snapshot"));
    let chosen: Vec<&Value> = can_go.filter(|_| random.below(2) == 0).collect();
    if chosen.len() < 2 {
        return;
    }
    let path_of = |row: &Value| row["subvolume"]["path"].as_str().unwrap().to_owned();
    let names: Vec<String> = chosen.iter().map(|row| path_of(row)).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for row in &chosen[..2] {
        let name = path_of(row);
        let freed = freed_by_papilio(&scratch, &images, &[&name]);
        assert_eq!(row["exclusive"]["data"].as_u64().unwrap(), freed, "seed {seed}: {name}");
    }
    let ids: Vec<String> = chosen.iter().map(|row| row["subvolume"]["id"].to_string()).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let together = cost(&[&image[..], &ids[..]].concat())["together"]["data"].as_u64().unwrap();
    assert_eq!(together, freed_by_papilio(&scratch, &images, &names), "seed {seed}: {names:?}");
    let mounted = images.mount_with(&[SOON.to_owned()], false).unwrap();
    let before = data_in_use(mounted.path());
    for name in &names {
        run("btrfs", &["subvolume", "delete", string(&mounted.path().join(name))]);
    }
    run("btrfs", &["subvolume", "sync", string(mounted.path())]);
    run("btrfs", &["filesystem", "sync", string(mounted.path())]);
    let freed = before - data_in_use(mounted.path());
    // The devices of a mount of the kernel are read beside it.
    let there = by_subvolume(&cost(&[string(mounted.path())]));
    mounted.unmount().unwrap();
    assert_eq!(together, freed, "seed {seed}: {names:?}");
    assert_eq!(there, by_subvolume(&cost(&image)), "seed {seed}: in the mount");
    let left = by_subvolume(&cost(&image));
    for (id, (referenced, _)) in left.iter().filter(|(id, _)| **id != 5) {
        assert_eq!(*referenced, measured[id].0, "seed {seed}: subvolume {id} keeps its own");
    }
}

#[test]
fn the_kernel_counts_and_frees_the_same() {
    if require(NEEDS).is_some() {
        (0..3).for_each(|seed| compare(seed, 8, &LAYOUTS[0]));
    }
}

#[test]
fn the_kernel_counts_the_same_on_several_devices() {
    if require(NEEDS).is_some() {
        (10_u64..).zip(&LAYOUTS[1..]).for_each(|(seed, layout)| compare(seed, 8, layout));
    }
}

/// The environment variable `PAPILIO_HISTORIES` names the first seed and the number of histories.
#[test]
#[ignore = "takes an hour"]
fn the_kernel_counts_and_frees_the_same_in_many_histories() {
    if require(NEEDS).is_none() {
        return;
    }
    let (mut first, mut count) = (100, 200);
    if let Ok(wanted) = std::env::var("PAPILIO_HISTORIES") {
        let (from, number) = wanted.split_once('+').expect("PAPILIO_HISTORIES=FIRST+COUNT");
        (first, count) = (from.parse().unwrap(), number.parse().unwrap());
    }
    for seed in first..first + count {
        // Every fourth is on several devices.
        let layout =
            if seed % 4 == 0 { &LAYOUTS[1 + seed as usize / 4 % (LAYOUTS.len() - 1)] } else { &LAYOUTS[0] };
        compare(seed, 6 + seed as usize % 20, layout);
        println!("{seed}: as the kernel counts, {:?}", layout.profiles);
    }
}

fn to_write(image: &str) -> FileSystem {
    FileSystem::open_with(image, &OpenOptions::new().write(true).commit_interval(None)).unwrap()
}

#[test]
fn a_snapshot_that_is_half_deleted_holds_nothing() {
    if require(NEEDS).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    let tree = scratch.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for number in 0..9000_u32 {
        fs::write(tree.join(format!("file{number}")), [number as u8; 5000]).unwrap();
    }
    let path = scratch.path().join("image");
    let image = string(&path);
    let at = |inside: &str| format!("{image}:{inside}");
    succeed(["mkfs", "-q", "--size", "600M", "--rootdir", string(&tree), image]);
    succeed(["subvolume", "snapshot", "-r", &at("/"), &at("/old")]);
    // Files that only the snapshot has take several steps to clean.
    let gone = (0..8500).map(|number| at(&format!("/file{number}")));
    succeed(std::iter::once("rm".to_owned()).chain(gone));
    succeed(["subvolume", "snapshot", "-r", &at("/"), &at("/new")]);
    succeed(["rm", &at("/file8600"), &at("/file8700")]);
    let file_system = to_write(image);
    file_system.delete_subvolume("/old").unwrap();
    file_system.sync().unwrap();
    assert!(file_system.clean_subvolumes_step().unwrap(), "more is left");
    file_system.sync().unwrap();
    // Closing would end the deletion, so a copy takes the place of the image.
    let path = scratch.path().join("copy");
    run("cp", &["--sparse=always", image, string(&path)]);
    file_system.close().unwrap();
    let image = string(&path);

    let answer = cost(&[image]);
    assert_eq!((&answer["in_deletion"], answer["subvolumes"].as_array().unwrap().len()), (&1.into(), 2));
    let shown = succeed(["subvolume", "cost", image]);
    assert!(shown.contains("1 deleted subvolumes are not cleaned yet"), "{shown}");
    let measured = by_subvolume(&answer);
    assert!(measured.values().any(|(_, exclusive)| *exclusive > 2 * 8192), "{measured:?}");
    // The kernel ends the deletion, and counts.
    let images = ImageSet::open(&scratch, vec![path.clone()]);
    let mounted = images.mount_with(&[SOON.to_owned()], false).unwrap();
    let top = string(mounted.path());
    // The commit wakes its cleaner, and changes no subvolume.
    run("btrfs", &["quota", "enable", top]);
    run("btrfs", &["subvolume", "sync", top]);
    // On a busy machine the last blocks may still be referred to.
    let begun = std::time::Instant::now();
    while cost(&[top])["in_deletion"] != 0 {
        assert!(begun.elapsed().as_secs() < 60, "the kernel ends the deletion");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    run("btrfs", &["filesystem", "sync", top]);
    run("btrfs", &["quota", "rescan", "-w", top]);
    run("btrfs", &["filesystem", "sync", top]);
    let counted = qgroups(top);
    let there = by_subvolume(&cost(&[top]));
    mounted.unmount().unwrap();
    let snapshot = measured.keys().find(|id| **id != 5).unwrap();
    assert_eq!(counted[snapshot], measured[snapshot]);
    assert_eq!(there[snapshot], measured[snapshot]);
    assert_eq!(cost(&[image])["in_deletion"], 0);
}

#[test]
fn an_extent_with_a_hundred_thousand_references_counts_once() {
    const PIECES: u64 = 100_000;
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let image = string(&image);
    succeed(["mkfs", "-q", "--size", "600M", image]);
    let file_system = to_write(image);
    let sector = 4096;
    file_system.write("/one", vec![7; 128 << 10]).unwrap();
    file_system.sync().unwrap();
    let one = file_system.open_file("/one").unwrap();
    let many = file_system.create_file("/many").unwrap();
    for piece in 0..PIECES {
        // Neighbours in the file are none on disk, so each is an item.
        many.clone_range(&one, piece * 7 % 32 * sector, sector, piece * sector).unwrap();
    }
    drop((one, many));
    file_system.close().unwrap();
    succeed(["subvolume", "snapshot", "-r", &format!("{image}:/"), &format!("{image}:/old")]);
    let start = std::time::Instant::now();
    let answer = cost(&[image]);
    println!("{PIECES} references to one extent: {:.2?}", start.elapsed());
    assert_eq!(answer["total"]["data"], 128 << 10);
    assert!(answer["leaves_read"].as_u64().unwrap() > PIECES * 78 / 16384);
    // References that do not fit are merged from files.
    assert_eq!(cost(&[image, "--memory", "64K"]), answer);
    assert_eq!(answer["subvolumes"][0]["exclusive"]["data"], 0);
}

/// Measures; run it by name.
#[test]
#[ignore = "a measurement"]
fn a_million_references_are_counted() {
    const EXTENTS: u64 = 100_000;
    let scratch = Scratch::new(2 << 30).unwrap();
    let path = scratch.path().join("image");
    let image = string(&path);
    succeed(["mkfs", "-q", "--size", "1800M", image]);
    let file_system = to_write(image);
    let file = file_system.create_file("/file0").unwrap();
    for extent in 0..EXTENTS {
        file.write_all_at(&extent.to_le_bytes().repeat(512), extent * 8192).unwrap();
        if extent % 2048 == 0 {
            file_system.sync().unwrap();
        }
    }
    file_system.sync().unwrap();
    for copy in 1..10 {
        let target = file_system.create_file(format!("/file{copy}")).unwrap();
        target.clone_range(&file, 0, 0, 0).unwrap();
        file_system.sync().unwrap();
    }
    drop(file);
    file_system.close().unwrap();
    let start = std::time::Instant::now();
    let answer = cost(&[image]);
    println!("10 references to each of {EXTENTS} extents: {:.2?}", start.elapsed());
    assert_eq!(answer["total"]["data"], EXTENTS * 4096);
    assert!(answer["leaves_read"].as_u64().unwrap() > 10 * EXTENTS * 78 / 16384);
    assert_eq!(cost(&[image, "--memory", "1M"]), answer);
}

/// The number in an environment variable, or another one.
fn number_of(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).map_or(usual, |number| number.parse().unwrap())
}

/// The most memory that a process has used, in MiB.
fn peak_of(child: &std::process::Child) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or_default() / 1024
}

/// Runs the command, and prints time and memory.
fn timed(what: &str, arguments: &[&str]) -> Value {
    let start = std::time::Instant::now();
    let mut child = command();
    let output =
        fs::File::create(std::env::temp_dir().join(format!("timed-{}", std::process::id()))).unwrap();
    let mut child = child.args(arguments).stdout(output).spawn().unwrap();
    let mut peak = 0;
    let status = loop {
        peak = peak.max(peak_of(&child));
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None => std::thread::sleep(std::time::Duration::from_millis(5)),
        }
    };
    println!("{what}: {:.2?}, {peak} MiB", start.elapsed());
    assert!(status.success(), "{arguments:?}");
    let path = std::env::temp_dir().join(format!("timed-{}", std::process::id()));
    let answer = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    fs::remove_file(path).unwrap();
    answer
}

/// Measures; run it by name. PAPILIO_COST_FILES, PAPILIO_COST_SNAPSHOTS and PAPILIO_COST_CHANGES
/// set the numbers of files, of snapshots, and of files that change between two of them. Data is
/// preallocated, so that the image is sparse.
#[test]
#[ignore = "a measurement"]
fn a_large_file_system_is_counted() {
    let (files, snapshots) =
        (number_of("PAPILIO_COST_FILES", 100_000), number_of("PAPILIO_COST_SNAPSHOTS", 100));
    let changes = number_of("PAPILIO_COST_CHANGES", 50);
    let scratch = Scratch::new(6 << 30).unwrap();
    let path = scratch.path().join("image");
    let image = string(&path);
    succeed(["mkfs", "-q", "-m", "single", "--size", "20G", image]);
    let file_system = to_write(image);
    file_system.create_subvolume("/home").unwrap();
    let start = std::time::Instant::now();
    let mut folder = file_system.inode("/home").unwrap();
    for number in 0..files {
        if number % 1000 == 0 {
            let name = format!("/home/{}", number / 1000);
            file_system.create_dir(&name).unwrap();
            folder = file_system.inode(&name).unwrap();
        }
        let name = format!("file{number}");
        let new = papilio::NewInode::new(papilio::NewKind::Regular, 0o644);
        let inode = folder.create(name.as_bytes(), &new).unwrap();
        inode.open().unwrap().allocate(0, 4096, false).unwrap();
    }
    file_system.sync().unwrap();
    println!("{files} files: {:.2?}", start.elapsed());
    let mut random = Random(7);
    for number in 0..snapshots {
        file_system.snapshot("/home", format!("/day{number}"), true).unwrap();
        for _ in 0..changes {
            let file = random.below(files as usize);
            let name = format!("/home/{}/file{file}", file / 1000);
            file_system.set_permissions(name, 0o600 + number as u32 % 64).unwrap();
        }
        // One file has another version each time.
        file_system.write("/home/0/file0", format!("version {number}")).unwrap();
        file_system.sync().unwrap();
    }
    let usage = file_system.usage().unwrap();
    let metadata = usage.spaces.iter().filter(|space| !space.kind.contains(BlockGroupFlags::DATA));
    let metadata: u64 = metadata.map(|space| space.used).sum();
    file_system.close().unwrap();
    println!("{snapshots} snapshots, {} MiB of metadata: {:.2?}", metadata >> 20, start.elapsed());
    let exact = timed("exact", &["subvolume", "cost", "--json", image]);
    let sampled = timed("sampled", &["subvolume", "cost", "--json", "--sample", image]);
    let at = format!("{image}:/home/0/file0");
    let versions = timed("versions", &["versions", "--json", &at]);
    assert_eq!(versions.as_array().unwrap().len() as u64, snapshots + 1);
    assert_eq!(exact["subvolumes"].as_array().unwrap().len() as u64, snapshots + 2);
    assert_eq!(sampled["sampled"], true);
    if require(NEEDS).is_none() {
        return;
    }
    let images = ImageSet::open(&scratch, vec![path.clone()]);
    let mounted = images.mount().unwrap();
    let timed = |what: &str, arguments: &[&str]| {
        let start = std::time::Instant::now();
        run("btrfs", arguments);
        println!("{what}: {:.2?}", start.elapsed());
    };
    let days: Vec<_> =
        (0..snapshots.min(20)).map(|number| mounted.path().join(format!("day{number}"))).collect();
    let days: Vec<_> = days.iter().map(|day| string(day)).collect();
    let du = format!("btrfs filesystem du -s of {} snapshots", days.len());
    timed(&du, &[&["filesystem", "du", "-s"][..], &days].concat());
    run("btrfs", &["quota", "enable", string(mounted.path())]);
    timed("btrfs quota rescan", &["quota", "rescan", "-w", string(mounted.path())]);
    mounted.unmount().unwrap();
}

#[test]
fn without_rights_or_room_one_line_says_so() {
    let needs = [NEEDS, &[Need::Command("setpriv"), Need::Command("unshare")]].concat();
    if require(&needs).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    let tree = scratch.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for number in 0..3000_u32 {
        fs::write(tree.join(format!("file{number}")), [number as u8; 5000]).unwrap();
    }
    let path = scratch.path().join("image");
    let image = string(&path);
    succeed(["mkfs", "-q", "--size", "400M", "--rootdir", string(&tree), image]);

    // A folder for temporary files that has a page only.
    let small = scratch.path().join("small");
    fs::create_dir(&small).unwrap();
    let script = "mount -t tmpfs -o size=4k none \"$1\" && shift && exec \"$@\"";
    let mut spilling = Command::new("unshare");
    spilling.args(["-m", "sh", "-c", script, "sh"]).arg(&small).arg(binary());
    spilling.args(["subvolume", "cost", "--memory", "1K", image]).env("TMPDIR", &small);
    check_failure(&spilling.output().unwrap(), 1, "No space left on device");

    let images = ImageSet::open(&scratch, vec![path.clone()]);
    let mounted = images.mount().unwrap();
    fs::set_permissions(scratch.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let program = scratch.path().join("papilio");
    papilio_oracle::program::copy_program(binary(), &program).unwrap();
    let as_user = Command::new("setpriv")
        .args(["--reuid=12345", "--regid=12345", "--clear-groups"])
        .arg(&program)
        .args(["subvolume", "cost", string(mounted.path())])
        .output()
        .unwrap();
    check_failure(&as_user, 1, "cannot open /dev/loop");
    mounted.unmount().unwrap();
    // The file system was not changed: the same answer comes to those who may ask.
    let mut asked = command();
    assert!(asked.args(["subvolume", "cost", image]).output().unwrap().status.success());
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
