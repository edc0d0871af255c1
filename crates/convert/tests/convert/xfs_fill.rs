//! Files that only XFS has, or has in other forms.

use super::fill::bytes;
use super::world::run;
use rustix::fs::{CWD, FallocateFlags, FileType, Mode};
use std::fmt::Write;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

fn reflink(from: &Path, to: &Path) {
    run("cp", &["--reflink=always", from.to_str().unwrap(), to.to_str().unwrap()]);
}

/// Makes files that share blocks, whole and in parts.
pub fn reflinks(root: &Path) {
    let folder = root.join("reflinks");
    fs::create_dir(&folder).unwrap();
    let original = folder.join("original");
    fs::write(&original, bytes(50, 3 << 20)).unwrap();
    for at in 0..5u64 {
        let copy = folder.join(format!("copy {at}"));
        reflink(&original, &copy);
        let file = OpenOptions::new().write(true).open(&copy).unwrap();
        // Parts that differ end what is shared, at other places in each copy.
        for part in 0..at {
            file.write_all_at(&bytes(at, 9000), part * 500_000 + at * 40_960).unwrap();
        }
        file.set_len((3 << 20) - at * 100_001).unwrap();
    }
    // A file that shares blocks with itself, and the first of two that is gone.
    let [doubled, gone] = ["doubled", "gone"].map(|name| folder.join(name));
    reflink(&original, &doubled);
    reflink(&folder.join("copy 2"), &gone);
    let (from, to) = (File::open(&doubled).unwrap(), OpenOptions::new().write(true).open(&doubled).unwrap());
    rustix::fs::syncfs(&from).unwrap();
    run(
        "xfs_io",
        &["-c", &format!("reflink {} 0 1048576 65536", doubled.display()), doubled.to_str().unwrap()],
    );
    drop((from, to));
    fs::remove_file(&original).unwrap();
    fs::remove_file(&gone).unwrap();
    fs::write(folder.join("tiny"), "short").unwrap();
    reflink(&folder.join("tiny"), &folder.join("tiny copy"));
}

/// Makes attributes in leaves, in trees of leaves, and with values in blocks of their own.
pub fn large_attributes(root: &Path) {
    let folder = root.join("large attributes");
    fs::create_dir(&folder).unwrap();
    let file = |name: &str| {
        let path = folder.join(name);
        fs::write(&path, name).unwrap();
        path
    };
    let leaf = file("leaf");
    for at in 0..30 {
        xattr::set(&leaf, format!("user.{at}"), &bytes(at, 80)).unwrap();
    }
    let tree = file("tree");
    for at in 0..600 {
        xattr::set(&tree, format!("user.number {at} of many, with a long name"), &bytes(at, 120)).unwrap();
    }
    let remote = file("remote");
    for (at, size) in [2500, 4040, 4041, 8000, 30_000, 50_000].into_iter().enumerate() {
        xattr::set(&remote, format!("user.{size}"), &bytes(at as u64, size)).unwrap();
    }
    xattr::set(&remote, "trusted.remote", &bytes(7, 9000)).unwrap();
    for length in [300, 400, 1000, 1023] {
        symlink("t".repeat(length), folder.join(format!("to {length}"))).unwrap();
    }
}

/// Makes a directory with entries, of which some are deleted.
pub fn many_names(root: &Path, count: u32) {
    let folder = root.join("many");
    fs::create_dir(&folder).unwrap();
    for at in 0..count {
        let path = folder.join(format!("the entry with the number {at}"));
        if at % 50 == 0 { fs::create_dir(path).unwrap() } else { drop(File::create(path).unwrap()) }
    }
    for at in (1..count).step_by(7).filter(|at| at % 50 != 0) {
        fs::remove_file(folder.join(format!("the entry with the number {at}"))).unwrap();
    }
}

/// Leaves no room for a whole chunk of inodes, so that chunks have holes.
pub fn scattered_inodes(root: &Path) {
    // Blocks that are set aside would be whole runs of free space.
    run("xfs_io", &["-x", "-c", "resblks 0", root.to_str().unwrap()]);
    let file = |name: &str| File::create(root.join(name)).unwrap();
    let room = file("room");
    rustix::fs::fallocate(&room, FallocateFlags::empty(), 0, 90 << 20).unwrap();
    let full = file("full");
    let (mut size, mut step) = (0, 16u64 << 20);
    while step >= 32 << 10 {
        match rustix::fs::fallocate(&full, FallocateFlags::empty(), size, step) {
            Ok(()) => size += step,
            Err(_) => step /= 2,
        }
    }
    // Seven free blocks of eight hold a part of a chunk, wherever it has to begin.
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for at in (0..size).step_by(32 << 10).take(1500) {
        rustix::fs::fallocate(&full, punch, at, 28 << 10).unwrap();
    }
    rustix::fs::syncfs(&full).unwrap();
    let small = root.join("small");
    fs::create_dir(&small).unwrap();
    for at in 0..1500 {
        fs::write(small.join(format!("{at}")), "").unwrap();
    }
    rustix::fs::syncfs(&full).unwrap();
    // Room for Btrfs, in one piece.
    fs::remove_file(root.join("room")).unwrap();
}

/// Makes a file of so many extents.
pub fn with_holes(root: &Path, extents: u64) {
    let file = File::create(root.join("holes")).unwrap();
    for at in 0..extents {
        file.write_all_at(&bytes(at, 4096), at * 8192).unwrap();
    }
    let unwritten = File::create(root.join("unwritten")).unwrap();
    rustix::fs::fallocate(&unwritten, FallocateFlags::empty(), 0, 8 << 20).unwrap();
    for at in 0..200u64 {
        unwritten.write_all_at(&bytes(at, 4096), at * 32768).unwrap();
    }
}

/// Makes files on the host, and describes them for `mkfs.xfs -p`.
pub fn prototype(source: &Path) -> String {
    let mut text = "boot\n0 0\nd--755 0 0\n".to_owned();
    let content = source.parent().unwrap().join("content");
    fs::create_dir(&content).unwrap();
    for (at, size) in [0usize, 1, 500, 2048, 2049, 4096, 70_000, 5 << 20].into_iter().enumerate() {
        let (name, from) = (format!("file{size}"), content.join(format!("{size}")));
        fs::write(&from, bytes(at as u64, size)).unwrap();
        fs::write(source.join(&name), bytes(at as u64, size)).unwrap();
        writeln!(text, "{name} ---644 0 0 {}", from.display()).unwrap();
    }
    for length in [1, 100, 400, 1000] {
        let (name, target) = (format!("link{length}"), "t".repeat(length));
        symlink(&target, source.join(&name)).unwrap();
        writeln!(text, "{name} l--777 0 0 {target}").unwrap();
    }
    let node = |name: &str, kind, device| {
        rustix::fs::mknodat(CWD, source.join(name), kind, Mode::from_raw_mode(0o600), device).unwrap();
    };
    node("char", FileType::CharacterDevice, rustix::fs::makedev(5, 1));
    node("block", FileType::BlockDevice, rustix::fs::makedev(8, 17));
    node("pipe", FileType::Fifo, 0);
    text += "char c--600 0 0 5 1\nblock b--600 0 0 8 17\npipe p--600 0 0\n";
    // Directories in an inode, in a block, with a leaf, and with nodes.
    for count in [3, 40, 300, 3000] {
        let folder = source.join(format!("folder{count}"));
        fs::create_dir(&folder).unwrap();
        writeln!(text, "folder{count} d--755 0 0").unwrap();
        for at in 0..count {
            let name = format!("entry-number-{at}");
            fs::write(folder.join(&name), "").unwrap();
            writeln!(text, "{name} ---644 0 0 {}", content.join("0").display()).unwrap();
        }
        text += "$\n";
    }
    for entry in fs::read_dir(source).unwrap().map(Result::unwrap) {
        use std::os::unix::fs::PermissionsExt;
        let kind = entry.file_type().unwrap();
        if kind.is_file() {
            fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o644)).unwrap();
        }
    }
    text + "$\n"
}
