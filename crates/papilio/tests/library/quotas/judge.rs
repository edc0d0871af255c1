//! Opinions about quotas: the library's count and, where there is one, the kernel's.

use crate::images::btrfs;
use papilio::{CheckOptions, FileSystem, OpenOptions};
use papilio_oracle::{ImageSet, Need, Scratch, require};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// The requirements of these tests.
pub const NEEDS: &[Need] = &[Need::Root, Need::Loop, Need::KernelBtrfs, Need::Command("btrfs")];

/// Bytes referenced and exclusive, by the text of the qgroup's id.
pub type Numbers = BTreeMap<String, (u64, u64)>;

/// The numbers that the library reads from an image.
pub fn ours(image: &Path) -> Numbers {
    let fs = FileSystem::open_with(image, &OpenOptions::new()).unwrap();
    let status = fs.quota_status().unwrap().expect("quotas are on");
    assert!(!status.is_inconsistent() && !status.is_rescanning(), "{status:?}");
    numbers_of(&fs)
}

/// The numbers of an open file system.
pub fn numbers_of(fs: &FileSystem) -> Numbers {
    let qgroups = fs.qgroups().unwrap();
    qgroups.iter().map(|group| (group.id.to_string(), (group.referenced, group.exclusive))).collect()
}

/// The numbers that the kernel shows for a mounted file system.
pub fn shown(mounted: &Path) -> Numbers {
    let text = btrfs(&["qgroup", "show", "--raw", mounted.to_str().unwrap()]);
    let mut numbers = Numbers::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if let [id, referenced, exclusive, ..] = fields[..]
            && let (Ok(referenced), Ok(exclusive)) = (referenced.parse(), exclusive.parse())
        {
            numbers.insert(id.to_owned(), (referenced, exclusive));
        }
    }
    numbers
}

/// The numbers after a rescan by the kernel, on a copy of the image.
pub fn rescanned(scratch: &Scratch, image: &Path) -> Numbers {
    let copy = scratch.unique("rescanned");
    let status = Command::new("cp").args(["--sparse=always"]).arg(image).arg(&copy).status().unwrap();
    assert!(status.success());
    let images = ImageSet::open(scratch, vec![copy.clone()]);
    let mounted = images.mount().unwrap();
    let before = shown(mounted.path());
    btrfs(&["quota", "rescan", "-w", mounted.path().to_str().unwrap()]);
    let after = shown(mounted.path());
    mounted.unmount().unwrap();
    std::fs::remove_file(copy).unwrap();
    assert!(!before.is_empty(), "the kernel reads no qgroups");
    after
}

/// Asserts that the image's numbers are those of the library's count, and, where the kernel has
/// Btrfs, those of its rescan and of `btrfs check -Q`.
pub fn assert_exact(scratch: &Scratch, image: &Path, when: &str) {
    let ours = ours(image);
    let counted = FileSystem::open(image).unwrap().count_qgroups().unwrap();
    let counted: Numbers = counted.into_iter().map(|(id, r, e)| (id.to_string(), (r, e))).collect();
    assert_eq!(ours, counted, "{when}");
    let report = papilio::check(image, &OpenOptions::new(), &CheckOptions::new()).unwrap();
    assert!(report.findings.is_empty(), "{when}: {:#?}", report.findings);
    if require(NEEDS).is_none() {
        return;
    }
    let kernel = rescanned(scratch, image);
    let wrong: Vec<String> = ours
        .keys()
        .chain(kernel.keys())
        .filter(|id| ours.get(*id) != kernel.get(*id))
        .map(|id| format!("{id}: ours {:?}, the kernel's {:?}", ours.get(id), kernel.get(id)))
        .collect();
    assert!(wrong.is_empty(), "{when}: {wrong:#?}");
    let output = Command::new("btrfs").args(["check", "-Q"]).arg(image).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !text.contains("are different"), "{when}: {text}");
}
