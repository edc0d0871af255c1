//! Shared by the tests of this folder: files, their listing by the kernel and by Papilio.

use crate::images::open;
use papilio::OpenOptions;
use papilio_oracle::{ImageSet, Need};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

pub const MIB: u64 = 1 << 20;
pub const NEEDS: &[Need] =
    &[Need::Root, Need::Loop, Need::KernelBtrfs, Need::Command("btrfs"), Need::Command("btrfstune")];

/// Content by path.
pub type Files = BTreeMap<String, Vec<u8>>;

pub fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..length).map(|_| random.u8(..)).collect()
}

/// Makes a file system by the kernel's mkfs.
pub fn made(images: &[PathBuf], options: &[&str]) {
    let made = Command::new("mkfs.btrfs").arg("-q").args(options).args(images).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// Writes `count` files whose content depends on `seed`.
pub fn write_files(root: &Path, seed: u64, count: u64) {
    for number in 0..count {
        let folder = root.join(format!("d{}", number % 7));
        fs::create_dir_all(&folder).unwrap();
        let length = 10 + (number * 7919 % 60_000) as usize;
        fs::write(folder.join(format!("file {seed} {number}")), bytes(seed + number, length)).unwrap();
    }
}

/// All files of a directory of the host.
pub fn files_of_host(root: &Path) -> Files {
    let mut files = Files::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
                continue;
            }
            let path = entry.path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            files.insert(name, fs::read(path).unwrap());
        }
    }
    files
}

/// All files, read through a mount of the kernel.
pub fn files_of_kernel(images: &ImageSet) -> Files {
    let mounted = images.mount_read_only().unwrap();
    files_of_host(mounted.path())
}

/// All files, read by Papilio.
pub fn files_of_papilio(images: &[PathBuf]) -> Files {
    let fs = open(images, &OpenOptions::new()).unwrap();
    let mut files = Files::new();
    for entry in fs.walk("/").unwrap() {
        let entry = entry.unwrap();
        let path = String::from_utf8(entry.path.to_vec()).unwrap();
        if entry.inode.metadata().is_file() {
            files.insert(path.trim_start_matches('/').to_owned(), fs.read(&path).unwrap());
        }
    }
    files
}

/// Fails with the first difference.
pub fn assert_same(left: &Files, right: &Files, when: &str) {
    assert!(left.keys().eq(right.keys()), "{when}: {:?} and {:?}", left.keys(), right.keys());
    for (path, content) in left {
        assert!(right[path] == *content, "{when}: {path} differs");
    }
}

/// Copies an image, holes stay holes.
pub fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("--sparse=always").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}
