//! Damage is planted in images, and what can be read of them is compared with the originals.
//!
//! `PAPILIO_SALVAGE_RUNS=N` runs N random damages instead of a few.

use crate::common::{fail, papilio, succeed, succeed_text, text};
use papilio::device::{Access, Device, FileDevice};
use papilio::format::superblock::superblock_offset;
use papilio::format::{LogicalAddress, PhysicalAddress, TreeId, objectid};
use papilio::{FileSystem, ScanOptions};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;

/// An image with files, and their content by path.
struct World {
    folder: tempfile::TempDir,
    image: PathBuf,
    files: BTreeMap<String, Vec<u8>>,
}

fn world() -> World {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    let mut files = BTreeMap::new();
    let mut random = fastrand::Rng::with_seed(17);
    for directory in 0..6 {
        for number in 0..60 {
            let length = [0, 90, 3000, 5000, 70_000][number % 5];
            let content: Vec<u8> = (0..length).map(|_| random.u8(..)).collect();
            files.insert(format!("dir{directory}/file{number}"), content);
        }
    }
    files.insert("big".to_owned(), (0..3 << 20).map(|_| random.u8(..)).collect());
    for (path, content) in &files {
        let path = tree.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let image = folder.path().join("image");
    succeed(["mkfs", "--size", "256M", "--rootdir", tree.to_str().unwrap(), image.to_str().unwrap()]);
    World { folder, image, files }
}

impl World {
    fn restore(&self, name: &str, options: &[&str]) -> (PathBuf, Output) {
        let to = self.folder.path().join(name);
        let _ = fs::remove_dir_all(&to);
        let places = [self.image.to_str().unwrap(), to.to_str().unwrap()];
        let output = papilio([&["restore"], options, &places].concat());
        (to, output)
    }

    /// Asserts that all files are there and equal.
    fn assert_whole(&self, to: &Path) {
        for (path, content) in &self.files {
            assert!(fs::read(to.join(path)).unwrap() == *content, "{path}");
        }
    }

    /// Returns the number of equal files. Each other one must be named on standard error, or be
    /// below a directory that is.
    fn count_equal(&self, to: &Path, output: &Output) -> usize {
        let errors = text(&output.stderr);
        let mut equal = 0;
        for (path, content) in &self.files {
            match fs::read(to.join(path)) {
                Ok(found) if found == *content => equal += 1,
                Ok(_) => assert!(errors.contains(&format!("/{path}: ")), "{path} is wrong: {errors}"),
                Err(_) => assert_eq!(output.status.code(), Some(1), "{path} is missing: {errors}"),
            }
        }
        equal
    }

    fn device(&self) -> FileDevice {
        FileDevice::open(&self.image, Access::ReadWrite).unwrap()
    }

    fn zero_superblocks(&self) {
        let device = self.device();
        for copy in 0..2 {
            device.write_at(&[0; 4096], superblock_offset(copy)).unwrap();
        }
    }

    /// Zeros all copies of all blocks that `wanted` accepts, by owner, level and address.
    fn zero_blocks(&self, wanted: impl Fn(TreeId, u8, LogicalAddress) -> bool) -> usize {
        let devices: Vec<Arc<dyn Device>> =
            vec![Arc::new(FileDevice::open(&self.image, Access::ReadOnly).unwrap())];
        let scan = papilio::scan_devices(&devices, &ScanOptions::new()).unwrap();
        drop(devices);
        let device = self.device();
        let mut zeroed = 0;
        for block in scan.blocks.iter().filter(|block| wanted(block.owner, block.level, block.address)) {
            device.write_at(&vec![0; scan.node_size as usize], block.offset).unwrap();
            zeroed += 1;
        }
        zeroed
    }
}

#[test]
fn a_sound_image_is_restored_whole() {
    let world = world();
    let (to, output) = world.restore("out", &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    world.assert_whole(&to);
    let listed = succeed_text(["restore", "-D", world.image.to_str().unwrap()]);
    assert!(listed.contains("/dir3/file7\n") && listed.contains("/big\n"), "{listed}");
    let some = ["--path-regex", "^/(|dir1(|/file1.))$"];
    let (to, output) = world.restore("some", &some);
    assert!(output.status.success());
    assert_eq!(fs::read_dir(to.join("dir1")).unwrap().count(), 10);
    assert_eq!(fs::read_dir(&to).unwrap().count(), 1);
    fail(2, "--path-regex", ["restore", "--path-regex", "(", world.image.to_str().unwrap(), "/x"]);
}

#[test]
fn without_superblocks_a_scan_finds_everything() {
    let world = world();
    let image = world.image.to_str().unwrap();
    world.zero_superblocks();
    fail(1, "no Btrfs magic", ["ls", &format!("{image}:/")]);
    fail(1, "no superblock copy is good", ["rescue", "super-recover", image]);
    let (to, output) = world.restore("out", &["--scan"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    world.assert_whole(&to);
    let listed = papilio(["ls", "--scan", &format!("{image}:/dir1")]);
    assert!(listed.status.success() && text(&listed.stdout).contains("file59"));
    let dumped = papilio(["inspect", "dump-tree", "--scan", "-t", "fs", image]);
    assert!(dumped.status.success() && text(&dumped.stdout).contains("INODE_ITEM"));
}

#[test]
fn without_the_chunk_tree_the_chunk_map_is_rebuilt() {
    let world = world();
    assert!(world.zero_blocks(|owner, _, _| owner == objectid::CHUNK_TREE) > 0);
    let (_, output) = world.restore("out", &[]);
    assert_eq!(output.status.code(), Some(1));
    let (to, output) = world.restore("out", &["--scan"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    world.assert_whole(&to);
    let recovered = papilio(["rescue", "chunk-recover", world.image.to_str().unwrap()]);
    assert!(text(&recovered.stdout).contains("DATA"), "{}", text(&recovered.stdout));
    // And without superblocks.
    world.zero_superblocks();
    let (to, output) = world.restore("out", &["--scan"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    world.assert_whole(&to);
}

/// Returns the image with a commit after the files were written.
fn changed(world: &World) {
    let image = world.image.to_str().unwrap();
    succeed(["mkdir", &format!("{image}:/later")]);
    succeed(["rm", &format!("{image}:/dir0/file4")]);
}

#[test]
fn an_older_root_tree_shows_what_was_deleted() {
    let world = world();
    changed(&world);
    let image = world.image.to_str().unwrap();
    let roots: serde_json::Value =
        serde_json::from_str(&succeed_text(["rescue", "find-root", "-a", "--json", image])).unwrap();
    let roots = roots.as_array().unwrap();
    assert!(roots.len() >= 2 && roots[0]["whole"] == true, "{roots:#?}");
    fail(1, "no such file", ["cat", &format!("{image}:/dir0/file4")]);
    let whole = roots.iter().filter(|root| root["whole"] == true);
    let found = whole.filter(|root| {
        let address = root["address"].to_string();
        let read = papilio(["cat", "--tree-root", &address, &format!("{image}:/dir0/file4")]);
        read.status.success() && read.stdout == world.files["dir0/file4"]
    });
    assert!(found.count() >= 1, "{roots:#?}");
    let generation = roots[0]["generation"].to_string();
    succeed(["ls", "--tree-root", &generation, &format!("{image}:/later")]);
    // The message names the block of another tree at that address.
    let fs = FileSystem::open(&world.image).unwrap();
    let csum = fs.tree_roots_of(objectid::CSUM_TREE).unwrap()[0].address.to_string();
    drop(fs);
    fail(1, "block of tree CSUM_TREE", ["ls", "--tree-root", &csum, &format!("{image}:/")]);
    fail(1, "no tree block is there", ["ls", "--tree-root", "1048576", &format!("{image}:/")]);
    fail(1, "can only be read", ["mkdir", "--tree-root", &generation, &format!("{image}:/x")]);
}

#[test]
fn a_lost_root_tree_is_replaced_by_an_older_one() {
    let world = world();
    changed(&world);
    let raw = FileSystem::open(&world.image).unwrap().superblock().raw;
    world.zero_blocks(|_, _, address| address == raw.root);
    let (_, output) = world.restore("out", &[]);
    assert_eq!(output.status.code(), Some(1));
    let (to, output) = world.restore("out", &["--scan"]);
    let equal = world.count_equal(&to, &output);
    assert!(equal + 2 >= world.files.len(), "{equal}: {}", text(&output.stderr));
    let checked = papilio(["check", "-b", world.image.to_str().unwrap()]);
    assert!(!text(&checked.stdout).contains("root tree"), "{}", text(&checked.stdout));
}

#[test]
fn a_lost_leaf_costs_only_its_own_files() {
    let world = world();
    let (leaves, chosen) = (std::cell::Cell::new(0), std::cell::Cell::new(None));
    let third = |owner, level, address| {
        leaves.set(leaves.get() + usize::from(owner == objectid::FS_TREE && level == 0));
        if leaves.get() == 3 && chosen.get().is_none() {
            chosen.set(Some(address));
        }
        chosen.get() == Some(address)
    };
    assert!(world.zero_blocks(third) > 0);
    let (to, output) = world.restore("out", &[]);
    assert_eq!(output.status.code(), Some(1));
    let equal = world.count_equal(&to, &output);
    assert!(equal > world.files.len() / 2 && equal < world.files.len(), "{equal}");
}

#[test]
fn lost_nodes_are_bridged_by_scanned_leaves() {
    let world = world();
    assert!(world.zero_blocks(|owner, level, _| owner == objectid::FS_TREE && level > 0) > 0);
    let (to, output) = world.restore("out", &["--orphans"]);
    assert_eq!(output.status.code(), Some(1), "what a scan found is not certain");
    assert_eq!(world.count_equal(&to, &output), world.files.len(), "{}", text(&output.stderr));
}

#[test]
fn without_checksums_data_is_not_verified() {
    let world = world();
    assert!(world.zero_blocks(|owner, _, _| owner == objectid::CSUM_TREE) > 0);
    let (to, output) = world.restore("out", &[]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert_eq!(said.matches("nothing is verified").count(), 1, "{said}");
    world.assert_whole(&to);
    let (_, output) = world.restore("json", &["--json"]);
    let marked: Vec<serde_json::Value> = text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .filter(|line| line["unverified"] == true && line["offset"].is_null())
        .collect();
    let image = world.image.to_str().unwrap();
    assert!(marked.len() == 1 && marked[0]["path"] == format!("{image}:/"), "{}", text(&output.stdout));
    // Reading commands need to be told, and say it, once for an image.
    let (one, other) = (format!("{image}:/dir1/file2"), format!("{image}:/dir1/file3"));
    let output = papilio(["cat", "--rescue=ignorebadroots", &one, &other]);
    let said = text(&output.stderr);
    assert!(output.status.success() && said.matches("nothing is verified").count() == 1, "{said}");
    assert_eq!(output.stdout, [&world.files["dir1/file2"][..], &world.files["dir1/file3"]].concat());
    let copy = world.folder.path().join("copy");
    for arguments in [
        vec!["ls", "--rescue=ibadroots", &format!("{image}:/dir1")],
        vec!["cp", "--rescue=all", &one, copy.to_str().unwrap()],
    ] {
        let said = text(&papilio(&arguments).stderr);
        assert_eq!(said.matches("nothing is verified").count(), 1, "{arguments:?}: {said}");
    }
    // Without being told, no data that has checksums is read.
    assert!(!papilio(["cat", &one]).status.success());
    let checked = papilio(["check", "--json", image]);
    let report: serde_json::Value = serde_json::from_slice(&checked.stdout).unwrap();
    let notes = report["notes"].as_array().unwrap();
    assert!(notes.iter().any(|note| note["code"] == "checksums-lost"), "{report:#}");
}

/// A sound image says nothing of it, and neither does one whose checksum tree lacks a leaf only.
#[test]
fn checksums_that_are_there_are_not_called_lost() {
    let world = world();
    let image = world.image.to_str().unwrap();
    let output = papilio(["cat", "--rescue=ignorebadroots", &format!("{image}:/dir1/file2")]);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
    assert!(!succeed_text(["check", "--json", image]).contains("checksums-lost"));
}

#[test]
fn superblock_copies_are_recovered_and_taken_back() {
    let world = world();
    let image = world.image.to_str().unwrap();
    world.device().write_at(&[0; 4096], superblock_offset(0)).unwrap();
    let before = fs::read(&world.image).unwrap();
    let undo = world.folder.path().join("undo");
    let told = succeed_text(["rescue", "super-recover", "--undo", undo.to_str().unwrap(), image]);
    assert!(told.contains("1 superblock copies written"), "{told}");
    succeed(["check", image]);
    assert!(succeed_text(["rescue", "super-recover", image]).contains("nothing to write"));
    succeed(["rescue", "undo", undo.to_str().unwrap(), image]);
    assert!(fs::read(&world.image).unwrap() == before);
}

#[test]
fn bad_input_is_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let zeros = folder.path().join("zeros");
    fs::File::create(&zeros).unwrap().set_len(64 << 20).unwrap();
    let zeros = zeros.to_str().unwrap();
    fail(1, "no tree block of Btrfs was found", ["rescue", "find-root", zeros]);
    fail(1, "no tree block of Btrfs was found", ["ls", "--scan", &format!("{zeros}:/")]);
    fail(1, "no superblock copy is good", ["rescue", "super-recover", zeros]);
}

/// Random damage: nothing that is wrong is called right.
#[test]
fn random_damage_is_never_called_right() {
    let runs = std::env::var("PAPILIO_SALVAGE_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(4);
    let world = world();
    let original = world.folder.path().join("original");
    fs::copy(&world.image, &original).unwrap();
    let devices: Vec<Arc<dyn Device>> =
        vec![Arc::new(FileDevice::open(&original, Access::ReadOnly).unwrap())];
    let scan = papilio::scan_devices(&devices, &ScanOptions::new()).unwrap();
    let (mut equal, mut total) = (0, 0);
    for seed in 0..runs {
        let mut random = fastrand::Rng::with_seed(seed);
        fs::copy(&original, &world.image).unwrap();
        let device = world.device();
        for _ in 0..random.usize(1..20) {
            let block = random.choice(scan.blocks.iter()).unwrap();
            let at = block.offset.0 + random.u64(0..u64::from(scan.node_size));
            let length = *random.choice(&[1, 512, 4096]).unwrap();
            let bytes: Vec<u8> = (0..length).map(|_| random.u8(..)).collect();
            device.write_at(&bytes, PhysicalAddress(at)).unwrap();
        }
        drop(device);
        let options = *random.choice(&[&[][..], &["--scan"], &["--orphans"]]).unwrap();
        let (to, output) = world.restore("out", options);
        assert!(matches!(output.status.code(), Some(0 | 1)), "{seed}: {output:?}");
        equal += world.count_equal(&to, &output);
        total += world.files.len();
    }
    println!("{equal} of {total} files came back equal in {runs} runs");
}
