//! `subvolume find-new`, compared with `btrfs subvolume find-new` on a kernel mount of the image.

use crate::common::{fail, succeed_json, succeed_text as succeed};
use crate::fixture::noise;
use papilio_oracle::{FileSystemSpec, Need, Scratch, require, sys};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

/// Runs the stock command.
fn btrfs(arguments: &[&str]) -> String {
    let output = Command::new("btrfs").args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn marker(text: &str) -> u64 {
    let last = text.lines().last().unwrap();
    last.strip_prefix("transid marker was ").unwrap().parse().unwrap()
}

fn write(root: &Path, round: u64) {
    for number in (round * 20..round * 20 + 40).step_by(3) {
        fs::write(root.join(format!("d/{number}")), noise(number, 3000 + number as usize * 977)).unwrap();
    }
    let sparse = fs::File::options().create(true).truncate(false).write(true).open(root.join("sparse"));
    sparse.unwrap().write_all_at(&noise(round, 9000), round << 20).unwrap();
}

#[test]
fn new_extents_are_those_of_btrfs() {
    if require(&[Need::Root, Need::Loop, Need::KernelBtrfs, Need::Command("btrfs")]).is_none() {
        return;
    }
    let scratch = Scratch::new(600 << 20).unwrap();
    let images = FileSystemSpec::default().make(&scratch).unwrap();
    let image = images.paths()[0].to_str().unwrap().to_owned();
    let mounted = images.mount_with(&["compress=zstd".to_owned()], false).unwrap();
    let root = mounted.path().join("sub");
    sys::create_subvolume(&root).unwrap();
    let shown = root.to_str().unwrap();
    fs::create_dir(root.join("d")).unwrap();
    // Enough files for several leaves, most of which stay as they are.
    for number in 0..600 {
        fs::write(root.join(format!("d/old {number}")), noise(number, 5000)).unwrap();
    }
    let mut generations = vec![0];
    for round in 0..3 {
        write(&root, round);
        fs::write(root.join("d/text"), "compressible ".repeat(4000 * (round as usize + 1))).unwrap();
        rustix::fs::fallocate(
            fs::File::create(root.join(format!("preallocated {round}"))).unwrap(),
            rustix::fs::FallocateFlags::empty(),
            0,
            1 << 20,
        )
        .unwrap();
        mounted.sync().unwrap();
        generations.push(marker(&btrfs(&["subvolume", "find-new", shown, "0"])) + 1);
    }
    fs::remove_file(root.join("d/21")).unwrap();
    mounted.sync().unwrap();
    let at = format!("{image}:/sub");
    let expected: Vec<_> = generations
        .iter()
        .map(|generation| btrfs(&["subvolume", "find-new", shown, &generation.to_string()]))
        .collect();
    let mut lines: Vec<_> = expected.iter().map(|text| text.lines().count()).collect();
    assert!(lines[0] > lines[1] && lines[1] > lines[2] && lines[2] > lines[3], "{lines:?}");
    lines.dedup();
    for (generation, expected) in generations.iter().zip(&expected) {
        let found = succeed(["subvolume", "find-new", shown, &generation.to_string()]);
        assert_eq!(&found, expected, "on the mount, from {generation} on");
    }
    fail(2, "not a subvolume", ["subvolume", "find-new", root.join("d").to_str().unwrap(), "0"]);
    mounted.unmount().unwrap();
    for (generation, expected) in generations.iter().zip(&expected) {
        let found = succeed(["subvolume", "find-new", &at, &generation.to_string()]);
        assert_eq!(&found, expected, "in the image, from {generation} on");
    }
    let last = generations[3].to_string();
    let json = succeed_json(["subvolume", "find-new", "--json", &at, &generations[2].to_string()]);
    assert_eq!(json["extents"].as_array().unwrap().len(), expected[2].lines().count() - 1);
    assert_eq!(json["generation"], marker(&expected[2]));
    assert_eq!(succeed(["subvolume", "find-new", &at, &last]), expected[3]);
    fail(2, "not a subvolume", ["subvolume", "find-new", &format!("{at}/d"), "0"]);
}
