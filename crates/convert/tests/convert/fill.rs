//! Files of every kind, made through the kernel's ext4 or XFS.

use rustix::fs::{CWD, FallocateFlags, FileType, Mode, Timespec, Timestamps};
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, lchown, symlink};
use std::path::Path;
use std::process::Command;

/// Bytes that do not repeat.
pub fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| random.u8(..)).take(length).collect()
}

/// Makes files of every kind that all variants of ext can have.
pub fn everything(root: &Path) {
    sizes(&root.join("sizes"));
    sparse(&root.join("sparse"));
    fragmented(&root.join("fragmented"));
    names(&root.join("names"));
    links(&root.join("links"));
    attributes(&root.join("attributes"));
    times(&root.join("times"));
    sync(root);
}

/// Makes files of the kinds that any file system of the host can have, for `mke2fs -d`.
pub fn for_any_host(root: &Path) {
    sizes(&root.join("sizes"));
    let names = root.join("names");
    fs::create_dir(&names).unwrap();
    for at in 0..500 {
        fs::write(names.join(format!("file {at}")), bytes(at, at as usize * 20)).unwrap();
    }
    for length in [1, 59, 60, 300, 2500] {
        symlink("t".repeat(length), names.join(format!("to {length}"))).unwrap();
    }
    fs::hard_link(names.join("file 1"), root.join("linked")).unwrap();
}

fn sync(root: &Path) {
    rustix::fs::syncfs(File::open(root).unwrap()).unwrap();
}

fn sizes(folder: &Path) {
    fs::create_dir(folder).unwrap();
    for (at, size) in
        [0, 1, 59, 60, 61, 100, 160, 400, 900, 2000, 2048, 2049, 4095, 4096, 4097, 70_000, 1 << 20]
            .into_iter()
            .enumerate()
    {
        fs::write(folder.join(format!("{size}")), bytes(at as u64, size)).unwrap();
    }
    fs::write(folder.join("large"), bytes(99, 6 << 20)).unwrap();
}

fn sparse(folder: &Path) {
    fs::create_dir(folder).unwrap();
    let file = |name: &str| File::create(folder.join(name)).unwrap();
    let holes = file("holes");
    for at in 0..50u64 {
        holes.write_all_at(&bytes(at, 5000), at * 40_000).unwrap();
    }
    holes.set_len(5 << 20).unwrap();
    file("only-hole").set_len(3 << 20).unwrap();
    file("small-hole").set_len(700).unwrap();
    let far = file("far");
    far.write_all_at(b"far away", (6 << 30) + 5).unwrap();
    far.write_all_at(b"near", 3).unwrap();
    // Only ext4 with extents preallocates.
    let preallocated = file("preallocated");
    if rustix::fs::fallocate(&preallocated, FallocateFlags::empty(), 0, 2 << 20).is_ok() {
        preallocated.write_all_at(&bytes(5, 9000), 1 << 20).unwrap();
        let behind = file("behind-the-end");
        behind.write_all_at(&bytes(6, 9000), 0).unwrap();
        rustix::fs::fallocate(&behind, FallocateFlags::KEEP_SIZE, 0, 1 << 20).unwrap();
    }
}

fn fragmented(folder: &Path) {
    fs::create_dir(folder).unwrap();
    let files: Vec<_> = (0..3).map(|at| File::create(folder.join(format!("{at}"))).unwrap()).collect();
    for at in 0..50u64 {
        for (number, file) in files.iter().enumerate() {
            file.write_all_at(&bytes(at + number as u64, 4096 + 4096 * (at as usize % 3)), at * 16384)
                .unwrap();
            file.sync_data().unwrap();
        }
    }
}

fn names(folder: &Path) {
    fs::create_dir(folder).unwrap();
    let large = folder.join("large");
    fs::create_dir(&large).unwrap();
    for at in 0..1500 {
        File::create(large.join(format!("entry number {at} of a directory with a hash tree"))).unwrap();
    }
    for at in (0..1500).step_by(7) {
        fs::remove_file(large.join(format!("entry number {at} of a directory with a hash tree"))).unwrap();
    }
    let hash = papilio_oracle::populate::names::name_hash(b"collision");
    for name in papilio_oracle::populate::names::colliding_names("c", hash, 5) {
        fs::write(folder.join(std::ffi::OsStr::from_bytes(&name)), &name).unwrap();
    }
    fs::write(folder.join("x".repeat(255)), "long").unwrap();
    fs::write(folder.join(std::ffi::OsStr::from_bytes(b"\xff\xfe new\nline")), "odd").unwrap();
    let mut deep = folder.to_owned();
    for at in 0..40 {
        deep.push(format!("d{at}"));
        fs::create_dir(&deep).unwrap();
    }
    fs::write(deep.join("bottom"), "deep").unwrap();
    fs::create_dir(folder.join("empty")).unwrap();
}

fn links(folder: &Path) {
    fs::create_dir(folder).unwrap();
    fs::write(folder.join("many"), "linked").unwrap();
    fs::create_dir(folder.join("other")).unwrap();
    for at in 0..400 {
        fs::hard_link(folder.join("many"), folder.join(format!("link {at} {}", "n".repeat(40)))).unwrap();
    }
    fs::hard_link(folder.join("many"), folder.join("other/one")).unwrap();
    for length in [1, 59, 60, 61, 300, 2500, 4000] {
        match symlink("t".repeat(length), folder.join(format!("to {length}"))) {
            // Targets of XFS are shorter.
            Err(error) if length > 1023 && error.kind() == std::io::ErrorKind::InvalidFilename => {}
            result => result.unwrap(),
        }
    }
    let node = |name: &str, kind, major, minor| {
        let device = rustix::fs::makedev(major, minor);
        rustix::fs::mknodat(CWD, folder.join(name), kind, Mode::from_raw_mode(0o640), device).unwrap();
    };
    node("character", FileType::CharacterDevice, 5, 1);
    node("block", FileType::BlockDevice, 259, 70_000);
    node("fifo", FileType::Fifo, 0, 0);
    node("socket", FileType::Socket, 0, 0);
    for (name, mode) in [("suid", 0o4755), ("sgid", 0o2711), ("sticky", 0o1777), ("none", 0)] {
        fs::write(folder.join(name), name).unwrap();
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::write(folder.join("owned"), "owned").unwrap();
    lchown(folder.join("owned"), Some(100_000), Some(4_000_000_000)).unwrap();
}

fn attributes(folder: &Path) {
    fs::create_dir(folder).unwrap();
    let file = |name: &str| {
        let path = folder.join(name);
        fs::write(&path, name).unwrap();
        path
    };
    xattr::set(file("one"), "user.origin", b"by hand").unwrap();
    let several = file("several");
    for at in 0..20 {
        xattr::set(&several, format!("user.number-{at}"), &bytes(at, 60)).unwrap();
    }
    xattr::set(file("large"), "user.large", &bytes(1, 3000)).unwrap();
    xattr::set(file("empty"), "user.empty", b"").unwrap();
    let mixed = file("mixed");
    xattr::set(&mixed, "trusted.of-root", b"secret").unwrap();
    xattr::set(&mixed, "security.note", &bytes(2, 100)).unwrap();
    xattr::set(folder, "user.of-directory", &bytes(3, 200)).unwrap();
    let acl = |entries: &[(u16, u16, u32)]| {
        let mut value = 2u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            value.extend(tag.to_le_bytes());
            value.extend(permissions.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    };
    let whole = acl(&[
        (1, 6, u32::MAX),
        (2, 4, 1000),
        (2, 7, 70_000),
        (4, 4, u32::MAX),
        (8, 5, 100),
        (16, 7, u32::MAX),
        (32, 0, u32::MAX),
    ]);
    xattr::set(file("acl"), "system.posix_acl_access", &whole).unwrap();
    let inherits = folder.join("inherits");
    fs::create_dir(&inherits).unwrap();
    xattr::set(&inherits, "system.posix_acl_default", &whole).unwrap();
    fs::write(inherits.join("inherited"), "by default").unwrap();
}

fn times(folder: &Path) {
    fs::create_dir(folder).unwrap();
    for (at, seconds) in
        [0, -1, -1_000_000_000, 1, 2_000_000_000, (1 << 31) + 5, (1 << 32) + 5, 10_000_000_000]
            .into_iter()
            .enumerate()
    {
        let path = folder.join(format!("{at}"));
        fs::write(&path, "time").unwrap();
        let times = Timestamps {
            last_access: Timespec { tv_sec: seconds, tv_nsec: 123_456_789 },
            last_modification: Timespec { tv_sec: seconds + 1, tv_nsec: 999_999_999 },
        };
        rustix::fs::utimensat(CWD, &path, &times, rustix::fs::AtFlags::empty()).unwrap();
    }
}

/// Makes files with flags that Btrfs has, too.
pub fn flags(root: &Path) {
    let folder = root.join("flags");
    fs::create_dir(&folder).unwrap();
    for letter in ["A", "d", "S", "a", "i"] {
        let path = folder.join(letter);
        fs::write(&path, letter).unwrap();
        let status = Command::new("chattr").arg(format!("+{letter}")).arg(&path).status().unwrap();
        assert!(status.success());
    }
}

/// Copies parts of `/usr`, as a tar archive of them would fill the file system: at most 150 MiB.
pub fn programs(root: &Path) {
    let mut left = 150u64 << 20;
    for folder in ["/usr/share/zoneinfo", "/usr/sbin", "/usr/share/perl", "/usr/share/doc", "/usr/include"] {
        let text = super::world::run("du", &["-sb", folder]);
        let size: u64 = text.split_whitespace().next().unwrap().parse().unwrap();
        if size <= left {
            left -= size;
            super::world::run("cp", &["-a", folder, root.to_str().unwrap()]);
        }
    }
    assert!(left < 149 << 20, "nothing was copied");
    sync(root);
}

/// Makes sparse files, up to the largest that any kind of ext has.
pub fn sparse_files(root: &Path) {
    sparse(&root.join("sparse"));
    let folder = root.join("far");
    fs::create_dir(&folder).unwrap();
    for at in 0..60u64 {
        let file = File::create(folder.join(format!("{at}"))).unwrap();
        for part in 0..at % 7 {
            file.write_all_at(&bytes(at, 3000 + 1000 * part as usize), part * part * (at << 24) + at)
                .unwrap();
        }
        file.set_len((at << 30) + at * 4096 + at % 3).unwrap();
    }
    sync(root);
}

/// Makes files of so many extents altogether, most of them in one.
pub fn fragments(root: &Path, extents: u64) {
    let file = File::create(root.join("fragments")).unwrap();
    let block = bytes(1, 4096);
    for at in 0..extents {
        file.write_all_at(&block, at * 8192).unwrap();
    }
    fragmented(&root.join("fragmented"));
    sync(root);
}

/// Makes files with many names.
pub fn many_links(root: &Path, count: u64) {
    links(&root.join("links"));
    let file = root.join("file");
    fs::write(&file, bytes(1, 10_000)).unwrap();
    for folder in 0..4 {
        let path = root.join(format!("folder {folder}"));
        fs::create_dir(&path).unwrap();
        for at in 0..count / 4 {
            fs::hard_link(&file, path.join(format!("name {at} {}", "n".repeat(at as usize % 200)))).unwrap();
        }
    }
    sync(root);
}

/// Makes many files with extended attributes, alike and different.
pub fn many_xattrs(root: &Path) {
    attributes(&root.join("attributes"));
    let folder = root.join("many");
    fs::create_dir(&folder).unwrap();
    for at in 0..2000u64 {
        let path = folder.join(format!("{at}"));
        fs::write(&path, bytes(at, at as usize % 300)).unwrap();
        xattr::set(&path, "user.alike", &bytes(at % 3, 50 + 400 * (at as usize % 7))).unwrap();
        if at % 5 == 0 {
            xattr::set(&path, "trusted.number", &at.to_le_bytes()).unwrap();
        }
    }
    sync(root);
}

/// Makes long names, and folders in folders.
pub fn deep_folders(root: &Path) {
    names(&root.join("names"));
    let long = root.join("long");
    fs::create_dir(&long).unwrap();
    for at in 0..1500 {
        fs::write(long.join(format!("{at:0>255}")), "").unwrap();
    }
    let mut deep = root.join("deep");
    for at in 0..300 {
        fs::create_dir(&deep).unwrap();
        fs::write(deep.join("file"), at.to_string()).unwrap();
        deep.push(format!("{}", at % 10));
    }
    sync(root);
}

/// Makes files that may lie in their inodes, and in tree blocks.
pub fn small_files(root: &Path) {
    let folder = root.join("small");
    fs::create_dir(&folder).unwrap();
    for at in 0..3000u64 {
        fs::write(folder.join(format!("{at}")), bytes(at, at as usize % 700)).unwrap();
    }
    sizes(&root.join("sizes"));
    sync(root);
}

/// Fills the rest of a file system with files, but for about `left` bytes. Most of them are only
/// preallocated, where the image should be small and the file system can do that.
pub fn nearly_full(root: &Path, left: u64, may_preallocate: bool) {
    let folder = root.join("full");
    fs::create_dir(&folder).unwrap();
    let free = || {
        sync(root);
        let found = rustix::fs::statvfs(root).unwrap();
        found.f_bfree * found.f_frsize
    };
    for at in 0.. {
        let rest = free();
        if rest <= left + (64 << 10) {
            break;
        }
        let size = (rest - left).min(8 << 20) as usize;
        let file =
            OpenOptions::new().create_new(true).write(true).open(folder.join(format!("{at}"))).unwrap();
        let is_empty = may_preallocate && at % 4 != 0;
        let length = size as u64;
        if is_empty && rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, length).is_ok() {
            continue;
        }
        if file.write_all_at(&bytes(at, size), 0).is_err() {
            break;
        }
    }
}
