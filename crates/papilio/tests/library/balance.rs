//! Balance on file systems of the kernel: the files and what they share stay as they were, both
//! checks are clean, and the kernel and Papilio go on writing.

use crate::images::{assert_clean_for_both, btrfs, open, writable};
use papilio::{BalanceFilter, BalanceOptions};
use papilio_oracle::{ImageSet, Need, Scratch, require, sys};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

const MIB: u64 = 1 << 20;
const NEEDS: &[Need] = &[Need::Root, Need::Loop, Need::KernelBtrfs, Need::Command("btrfs")];

fn bytes(seed: u32, length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed.into());
    (0..length).map(|_| random.u8(..)).collect()
}

/// Makes a file system by the kernel with snapshots, reflinks, compression, preallocation and
/// files without checksums.
fn kernel_image(scratch: &Scratch, options: &[&str]) -> ImageSet {
    let image = scratch.image("balance", 1024 * MIB).unwrap();
    let made = Command::new("mkfs.btrfs").arg("-q").args(options).arg(&image).status().unwrap();
    assert!(made.success());
    let images = ImageSet::open(scratch, vec![image]);
    let mounted = images.mount().unwrap();
    let root = mounted.path();
    sys::create_subvolume(&root.join("sub")).unwrap();
    for number in 0..1500u32 {
        let folder = root.join("sub").join(format!("d{}", number % 20));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("file {number}")), bytes(number, 10 + number as usize * 17)).unwrap();
    }
    fs::write(root.join("sub/large"), bytes(1, 20 << 20)).unwrap();
    mounted.sync().unwrap();
    sys::create_snapshot(&root.join("sub"), &root.join("snap1"), true).unwrap();
    for number in (0..1500u32).step_by(100) {
        let name = format!("sub/d{}/file {number}", number % 20);
        fs::write(root.join(name), bytes(number + 7, 9000)).unwrap();
    }
    let large = File::options().write(true).open(root.join("sub/large")).unwrap();
    large.write_all_at(&bytes(2, 100_000), 3 << 20).unwrap();
    mounted.sync().unwrap();
    sys::create_snapshot(&root.join("sub"), &root.join("snap2"), false).unwrap();
    fs::write(root.join("snap2/new"), bytes(3, 50_000)).unwrap();
    for (from, to) in [("sub/large", "reflink"), ("sub/large", "snap2/reflink")] {
        let copied =
            Command::new("cp").arg("--reflink=always").arg(root.join(from)).arg(root.join(to)).status();
        assert!(copied.unwrap().success());
    }
    let commands = format!(
        "cd {} && touch nocow && chattr +C nocow && head -c 3000000 /dev/urandom > nocow \
         && fallocate -l 2000000 prealloc && head -c 70000 /dev/urandom | dd of=prealloc conv=notrunc status=none \
         && mkdir packed && btrfs property set packed compression zstd \
         && yes compressible | head -c 5000000 > packed/file",
        root.display()
    );
    assert!(Command::new("sh").arg("-c").arg(commands).status().unwrap().success());
    mounted.sync().unwrap();
    // The source goes, so that shared blocks have full back references.
    sys::create_snapshot(&root.join("snap2"), &root.join("snap3"), true).unwrap();
    fs::write(root.join("snap2/later"), bytes(4, 40_000)).unwrap();
    mounted.unmount().unwrap();
    images
}

/// The content of all files, and what each shares with others.
fn seen_by_kernel(images: &ImageSet) -> (String, String) {
    let mounted = images.mount_read_only().unwrap();
    let root = mounted.path();
    let list =
        "find . -type f -print0 | sort -z | xargs -0 sha256sum; find . -printf '%p %m %s %T@ %n\\n' | sort";
    let output = Command::new("sh").arg("-c").arg(list).current_dir(root).output().unwrap();
    assert!(output.status.success());
    let usage = btrfs(&["filesystem", "du", "--raw", root.to_str().unwrap()]);
    let usage = usage.replace(root.to_str().unwrap(), "");
    drop(mounted);
    (String::from_utf8_lossy(&output.stdout).into_owned(), usage)
}

fn all() -> BalanceOptions {
    let filter = || Some(BalanceFilter::default());
    BalanceOptions { data: filter(), metadata: filter(), system: filter(), force: false }
}

fn balance(images: &ImageSet) {
    let fs = open(images.paths(), &writable()).unwrap();
    let before = chunk_lines(images);
    let report = fs.balance(&all(), |_| true).unwrap();
    assert_eq!(report.completed, report.expected);
    assert!(report.bytes > 0, "{report:?}");
    fs.close().unwrap();
    for chunk in chunk_lines(images) {
        assert!(!before.contains(&chunk), "{chunk}: stayed");
    }
}

/// The keys of all chunks.
fn chunk_lines(images: &ImageSet) -> Vec<String> {
    let dump = btrfs(&["inspect-internal", "dump-tree", "-t", "chunk", images.paths()[0].to_str().unwrap()]);
    let keys = dump.lines().filter_map(|line| line.split_once("key (FIRST_CHUNK_TREE CHUNK_ITEM "));
    keys.map(|(_, key)| key.split(')').next().unwrap().to_owned()).collect()
}

fn change(root: &Path, seed: u32) {
    for number in (0..1500u32).step_by(50) {
        let name = format!("sub/d{}/file {number}", number % 20);
        fs::write(root.join(name), bytes(number + seed, 5000)).unwrap();
    }
    for number in (0..1500u32).step_by(70) {
        fs::write(root.join(format!("snap2/d{}/file {number}", number % 20)), "changed").unwrap();
    }
}

#[test]
fn files_and_sharing_stay_when_everything_moves() {
    let Some(_met) = require(NEEDS) else { return };
    let scratch = Scratch::new(1200 * MIB).unwrap();
    for options in [&["-m", "dup"][..], &["-m", "single", "-n", "4096"]] {
        let images = kernel_image(&scratch, options);
        let before = seen_by_kernel(&images);
        for round in 0..2 {
            balance(&images);
            assert_clean_for_both(&images, &format!("{options:?}, round {round}"));
            let after = seen_by_kernel(&images);
            assert!(before.0 == after.0, "{options:?}: files differ");
            assert_eq!(before.1, after.1, "{options:?}: sharing differs");
        }
        let mounted = images.mount().unwrap();
        change(mounted.path(), 1000);
        mounted.sync().unwrap();
        sys::delete_subvolume(&mounted.path().join("snap1")).unwrap();
        let path = mounted.path().to_str().unwrap().to_owned();
        btrfs(&["balance", "start", "--full-balance", &path]);
        mounted.unmount().unwrap();
        assert_clean_for_both(&images, &format!("{options:?}: changed and balanced by the kernel"));

        balance(&images);
        let fs = open(images.paths(), &writable()).unwrap();
        fs.write("/sub/large", b"short").unwrap();
        for number in (0..1500u32).step_by(30) {
            fs.remove_file(format!("/snap2/d{}/file {number}", number % 20)).unwrap();
        }
        fs.delete_subvolume("/sub").unwrap();
        fs.clean_subvolumes().unwrap();
        fs.close().unwrap();
        assert_clean_for_both(&images, &format!("{options:?}: changed by Papilio"));
        fs::remove_file(&images.paths()[0]).unwrap();
    }
}
