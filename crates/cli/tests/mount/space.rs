//! `filesystem du` and `compsize` on one file system: mounted by the kernel, mounted by Papilio,
//! and not mounted. `btrfs filesystem du` is the judge.

use crate::world::{MOUNT, World, fail, run, succeed};
use papilio_oracle::sys::clone_range;
use papilio_oracle::{ImageSet, Need, Scratch, require};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

const KIB: u64 = 1 << 10;

fn write(path: &Path, length: u64, seed: u64) {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    fs::write(path, (0..length).map(|_| next()).collect::<Vec<_>>()).unwrap();
}

/// Makes `to` share a range of `from`.
fn share(from: &Path, range: std::ops::Range<u64>, to: &Path, at: u64) {
    let from = File::open(from).unwrap();
    let to = File::options().write(true).create(true).truncate(false).open(to).unwrap();
    clone_range(&from, range.start, range.end - range.start, &to, at).unwrap();
}

/// Makes files of each kind in a file system that the kernel has mounted.
fn populate(root: &Path) {
    for directory in ["d", "d/deep", "compressed"] {
        fs::create_dir(root.join(directory)).unwrap();
    }
    write(&root.join("d/alone"), 300 * KIB, 1);
    write(&root.join("d/origin"), 256 * KIB, 2);
    write(&root.join("d/inline"), 700, 3);
    fs::write(root.join("d/empty"), []).unwrap();
    fs::hard_link(root.join("d/alone"), root.join("d/deep/name")).unwrap();
    run("sync", &["-f", root.to_str().unwrap()]);
    share(&root.join("d/origin"), 0..256 * KIB, &root.join("d/deep/copy"), 0);
    share(&root.join("d/origin"), 64 * KIB..128 * KIB, &root.join("d/part"), 4 * KIB);
    // Shared within one file, which the kernel counts as shared.
    write(&root.join("d/twice"), 128 * KIB, 4);
    run("sync", &["-f", root.to_str().unwrap()]);
    share(&root.join("d/twice"), 0..128 * KIB, &root.join("d/twice"), 128 * KIB);
    let sparse = File::create(root.join("d/sparse")).unwrap();
    for at in [0, 40, 900] {
        sparse.write_all_at(&[at as u8 + 1; 8192], at * 4 * KIB).unwrap();
    }
    run("fallocate", &["-l", "1M", root.join("d/preallocated").to_str().unwrap()]);
    for (algorithm, seed) in [("zlib", 5), ("lzo", 6), ("zstd", 7)] {
        let directory = root.join("compressed").join(algorithm);
        fs::create_dir(&directory).unwrap();
        run("btrfs", &["property", "set", directory.to_str().unwrap(), "compression", algorithm]);
        fs::write(directory.join("text"), format!("{algorithm} and {seed}, ").repeat(30_000)).unwrap();
    }
    let subvolume = root.join("subvolume");
    run("btrfs", &["subvolume", "create", subvolume.to_str().unwrap()]);
    write(&subvolume.join("before"), 200 * KIB, 8);
    write(&subvolume.join("changed"), 200 * KIB, 9);
    run("sync", &["-f", root.to_str().unwrap()]);
    let snapshot = root.join("snapshot");
    run("btrfs", &["subvolume", "snapshot", subvolume.to_str().unwrap(), snapshot.to_str().unwrap()]);
    let changed = File::options().write(true).open(subvolume.join("changed")).unwrap();
    changed.write_all_at(&[77; 64 << 10], 32 * KIB).unwrap();
    write(&subvolume.join("after"), 100 * KIB, 10);
    run("sync", &["-f", root.to_str().unwrap()]);
}

#[test]
fn exclusive_and_shared_bytes_are_those_of_btrfs() {
    let needs = [Need::Root, Need::Loop, Need::KernelBtrfs, Need::Command("btrfs")];
    if require(&needs).is_none() {
        return;
    }
    let Some(world) = World::new(MOUNT) else { return };
    let (image, directory) = (world.image(), world.directory());
    let disk = image.to_str().unwrap();
    let scratch = Scratch::new(1 << 30).unwrap();
    let images = ImageSet::open(&scratch, vec![image.clone()]);
    let mounted = images.mount().unwrap();
    populate(mounted.path());
    let root = mounted.path().to_str().unwrap().to_owned();
    let [file, deep] = ["d/origin", "d/deep"].map(|path| format!("{root}/{path}"));
    let operands: [&[&str]; 6] =
        [&[&root], &["-s", &root], &[&file], &[&deep, &file], &["-s", &file, &deep], &["--kbytes", &root]];
    let with = |more: &[&str], operands: &[&str]| {
        let raw = if operands.contains(&"--kbytes") { &[][..] } else { &["--raw"] };
        [more, raw, operands].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let expected = operands.map(|operands| {
        let output = Command::new("btrfs").args(with(&["filesystem", "du"], operands)).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let expected = String::from_utf8(output.stdout).unwrap();
        assert_eq!(succeed(with(&["filesystem", "du"], operands)), expected, "the kernel's mount");
        expected
    });
    let ratios = succeed(["compsize", "-b", &root]);
    mounted.unmount().unwrap();

    let renamed = |text: &str, root: &str, with: &str| text.replace(root, with);
    let plain = format!("{disk}:");
    for (operands, expected) in operands.iter().zip(&expected) {
        let operands: Vec<String> = operands.iter().map(|operand| renamed(operand, &root, &plain)).collect();
        let operands: Vec<&str> = operands.iter().map(String::as_str).collect();
        let found = succeed(with(&["filesystem", "du"], &operands));
        assert_eq!(
            renamed(&found, &format!("{plain}/"), &plain),
            renamed(&renamed(expected, &root, &plain), &format!("{plain}/"), &plain)
        );
    }
    assert_eq!(succeed(["compsize", "-b", &format!("{plain}/")]), ratios);

    world.mount(&[]);
    let here = directory.to_str().unwrap();
    for (operands, expected) in operands.iter().zip(&expected) {
        let operands: Vec<String> = operands.iter().map(|operand| renamed(operand, &root, here)).collect();
        let operands: Vec<&str> = operands.iter().map(String::as_str).collect();
        let found = succeed(with(&["filesystem", "du"], &operands));
        assert_eq!(found, renamed(expected, &root, here));
    }
    assert_eq!(succeed(["compsize", "-b", here]), ratios);
    fail(1, "no such file", ["filesystem", "du", &world.at("absent")]);
    world.unmount();
    println!("{}\n{ratios}", expected[0]);
}
