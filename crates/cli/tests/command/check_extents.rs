//! `papilio check -E` beside `btrfs check -E`, on file systems of the kernel.

use crate::common::{fail, succeed_text};
use papilio_oracle::{FileSystemSpec, Need, Scratch, require, sys};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Address, length, and the subvolumes that refer to it.
type Extent = (u64, u64, Vec<u64>);

/// Parses the lines of extents; all others have other columns.
fn extents(text: &str) -> Vec<Extent> {
    let line = |line: &str| -> Option<Extent> {
        let mut columns = line.split('\t');
        let mut number = || columns.next()?.parse::<u64>().ok();
        let (address, length, refs) = (number()?, number()?, number()?);
        let mut roots: Vec<u64> = columns.next()?.split_whitespace().map(|id| id.parse().unwrap()).collect();
        // Stock lists them in the order in which it finds them.
        roots.sort_unstable();
        assert_eq!(roots.len() as u64, refs, "{line}");
        Some((address, length, roots))
    };
    text.lines().filter_map(line).collect()
}

fn fill(top: &Path) {
    let one = top.join("one");
    sys::create_subvolume(&one).unwrap();
    for number in 0..200usize {
        fs::write(one.join(format!("file{number}")), vec![number as u8; 200 + number * 150]).unwrap();
    }
    fs::File::open(top).unwrap().sync_all().unwrap();
    sys::create_snapshot(&one, &top.join("two"), false).unwrap();
    sys::create_snapshot(&one, &top.join("three"), true).unwrap();
    fs::write(top.join("two/new"), vec![5; 70_000]).unwrap();
    fs::remove_file(top.join("two/file199")).unwrap();
    let file = fs::File::create(top.join("two/preallocated")).unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 1 << 20).unwrap();
    fs::write(top.join("top"), vec![6; 40_000]).unwrap();
    let arguments = ["--reflink=always", "one/file150", "clone"];
    let copied = Command::new("cp").args(arguments).current_dir(top).status().unwrap();
    assert!(copied.success());
}

#[test]
fn extents_of_subvolumes_are_those_of_btrfs_check() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    for nodesize in [None, Some(4096)] {
        let scratch = Scratch::new(400 << 20).unwrap();
        let images = FileSystemSpec { nodesize, ..FileSystemSpec::default() }.make(&scratch).unwrap();
        let mounted = images.mount().unwrap();
        fill(mounted.path());
        mounted.unmount().unwrap();
        let image = images.paths()[0].to_str().unwrap();
        for subvolume in ["5", "256", "257", "258"] {
            let stock = Command::new("btrfs").args(["check", "-E", subvolume, image]).output().unwrap();
            assert!(stock.status.success());
            let stock = extents(&String::from_utf8(stock.stdout).unwrap());
            let text = succeed_text(["check", "-E", subvolume, image]);
            let ours = extents(&text);
            assert!(!ours.is_empty(), "{text}");
            assert_eq!(ours, stock, "subvolume {subvolume}, node size {nodesize:?}");
            let own: u64 = ours.iter().filter(|found| found.2.len() == 1).map(|found| found.1).sum();
            assert!(text.ends_with(&format!("{own} of them used by no other subvolume\n")), "{text}");
        }
        fail(1, "", ["check", "-E", "999", image]);
    }
}
