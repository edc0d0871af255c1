//! `papilio mkfs --rootdir` with inode flags, and with blocks that are shared with the host.

use crate::common::{fail, papilio, succeed, text};
use crate::fixture::noise;
use papilio_oracle::{
    CompareOptions, FileSystemSpec, HostTree, ImageSet, Need, Scratch, compare, require, sys,
};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

/// The flag of an extent in FIEMAP's answer that other files share it.
const SHARED: u32 = 0x2000;

fn string(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns what btrfs-progs print as the flags of the inode of each name in the subvolume `tree`.
fn flags_of(image: &Path, tree: &str, name: &str) -> String {
    let output = Command::new("btrfs")
        .args(["inspect-internal", "dump-tree", "-t", tree])
        .arg(image)
        .output()
        .unwrap();
    assert!(output.status.success());
    let dump = text(&output.stdout);
    // An inode item is followed by the item of its names.
    let named = dump.split(" INODE_ITEM 0) itemoff ").skip(1).find(|inode| {
        let names = inode.split(" INODE_REF ").nth(1).and_then(|names| names.split("\titem ").next());
        names.is_some_and(|names| names.contains(&format!("name: {name}\n")))
    });
    let inode = named.unwrap_or_else(|| panic!("no {name} in {dump}"));
    let flags = inode.split(" flags ").nth(1).unwrap().lines().next().unwrap();
    flags.split_once('(').unwrap().1.trim_end_matches(')').to_owned()
}

#[test]
fn inode_flags_are_inherited_below_a_path() {
    if require(&[Need::Command("btrfs")]).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (source, image) = (folder.path().join("source"), folder.path().join("image"));
    fs::create_dir_all(source.join("cow-less/deep")).unwrap();
    fs::create_dir_all(source.join("cow-less/volume")).unwrap();
    fs::create_dir_all(source.join("sum-less")).unwrap();
    for (number, name) in
        ["cow-less/fa", "cow-less/deep/fb", "cow-less/volume/fc", "sum-less/fd", "fe", "ff", "zlink"]
            .into_iter()
            .enumerate()
    {
        fs::write(source.join(name), noise(number as u64, 50_000)).unwrap();
    }
    fs::hard_link(source.join("zlink"), source.join("another")).unwrap();
    let arguments = [
        ["--inode-flags", "nodatacow:cow-less"],
        ["--inode-flags", "nodatasum:./sum-less/"],
        ["--inode-flags", "nodatasum:fe"],
        ["--inode-flags", "nodatacow,nodatasum:zlink"],
        ["--subvol", "cow-less/volume"],
        ["-O", "^bgt"],
    ];
    let arguments = arguments.as_flattened();
    let arguments = [&["mkfs", "--rootdir", string(&source)], arguments, &[string(&image)]].concat();
    succeed(arguments);
    succeed(["check", "--check-data-csum", string(&image)]);
    for (name, flags) in [
        ("cow-less", "NODATACOW"),
        ("deep", "NODATACOW"),
        ("fa", "NODATASUM|NODATACOW"),
        ("fb", "NODATASUM|NODATACOW"),
        // Of a directory, only NODATACOW is inherited.
        ("sum-less", "NODATASUM"),
        ("fd", "none"),
        ("fe", "NODATASUM"),
        ("ff", "none"),
        // Its name "another" is copied first.
        ("zlink", "NODATASUM|NODATACOW"),
    ] {
        assert_eq!(flags_of(&image, "5", name), flags, "{name}");
    }
    // Subvolumes inherit no flags.
    assert_eq!(flags_of(&image, "256", "fc"), "none");
    let scratch = Scratch::new(0).unwrap();
    let images = ImageSet::open(&scratch, vec![image]);
    images.btrfs_check().unwrap();
    if require(Need::KERNEL_MOUNT).is_some() {
        let mounted = images.mount_read_only().unwrap();
        for name in ["cow-less/fa", "cow-less/deep/fb", "cow-less/volume/fc", "sum-less/fd", "fe", "another"]
        {
            let same = fs::read(source.join(name)).unwrap() == fs::read(mounted.path().join(name)).unwrap();
            assert!(same, "{name}");
        }
    }
}

#[test]
fn wrong_inode_flags_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (source, image) = (folder.path().join("source"), folder.path().join("image"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("f"), "x").unwrap();
    std::os::unix::fs::symlink("f", source.join("link")).unwrap();
    let make = |flags: &'static str| {
        ["mkfs", "--rootdir", string(&source), "--inode-flags", flags, string(&image)].map(str::to_owned)
    };
    for (flags, part) in [
        ("nodatacow:missing", "inode flags of missing: the source has no such file or directory"),
        ("nodatacow:link", "inode flags of link: the source has no such file or directory"),
    ] {
        fail(1, part, make(flags));
        assert!(!image.exists());
    }
    for wrong in ["f", "append:f", ":f"] {
        assert_eq!(papilio(make(wrong)).status.code(), Some(2), "{wrong}");
    }
    // Of an archive, paths are known at its end.
    let archive = folder.path().join("archive.tar");
    succeed(["mkfs", "-q", "--rootdir", string(&source), string(&image)]);
    let all = format!("{}:/.", image.display());
    succeed(["cp", "--to-tar", string(&archive), &all]);
    let from = |flags: &'static str| {
        ["mkfs", "-f", "--rootdir", string(&archive), "--inode-flags", flags, string(&image)]
            .map(str::to_owned)
    };
    fail(1, "inode flags of missing", from("nodatasum:missing"));
    succeed(from("nodatasum:f"));
    if require(&[Need::Command("btrfs")]).is_some() {
        succeed([&from("nodatasum:f")[..], &["-O".to_owned(), "^bgt".to_owned()]].concat());
        assert_eq!(flags_of(&image, "5", "f"), "NODATASUM");
        let whole = ["mkfs", "-f", "-O", "^bgt", "--inode-flags", "nodatacow:.", "--rootdir"];
        succeed([&whole[..], &[string(&source), string(&image)]].concat());
        assert_eq!(flags_of(&image, "5", "f"), "NODATASUM|NODATACOW");
        assert_eq!(flags_of(&image, "5", ".."), "NODATACOW");
        succeed(["check", "--check-data-csum", string(&image)]);
    }
}

#[test]
fn content_shares_its_blocks_with_the_source() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(300 << 20).unwrap();
    let host = FileSystemSpec { device_size: 1 << 30, ..FileSystemSpec::default() }.make(&scratch).unwrap();
    let host = host.mount().unwrap();
    let source = host.path().join("source");
    fs::create_dir_all(source.join("deep")).unwrap();
    fs::write(source.join("large"), noise(1, (40 << 20) + 1234)).unwrap();
    fs::write(source.join("deep/whole"), noise(2, 1 << 20)).unwrap();
    fs::write(source.join("small"), "fits into an item").unwrap();
    fs::write(source.join("no sums"), noise(3, 100_000)).unwrap();
    let sparse = File::create(source.join("sparse")).unwrap();
    sparse.write_all_at(&noise(4, 300_000), 2 << 20).unwrap();
    sparse.set_len((30 << 20) + 77).unwrap();
    fs::hard_link(source.join("deep/whole"), source.join("again")).unwrap();
    host.sync().unwrap();
    let before = free(host.path());
    for (name, options) in [
        ("single", &["--inode-flags", "nodatasum:no sums"][..]),
        ("dup", &["-d", "dup", "--csum", "sha256"]),
        ("mixed", &["-M"]),
    ] {
        let image = host.path().join(name);
        let arguments = ["mkfs", "--reflink", "--shrink", "-O", "^bgt", "--rootdir", string(&source)];
        succeed([&arguments, options, &[string(&image)]].concat());
        succeed(["check", "--check-data-csum", string(&image)]);
        host.sync().unwrap();
        let taken = before.saturating_sub(free(host.path()));
        assert!(taken < 12 << 20, "{name}: {taken} bytes for 42 MiB that are shared");
        let extents = sys::fiemap(&File::open(source.join("large")).unwrap()).unwrap();
        assert!(extents.iter().rev().skip(1).all(|extent| extent.flags & SHARED != 0), "{extents:?}");
        {
            let images = ImageSet::open(&scratch, vec![image.clone()]);
            images.btrfs_check().unwrap();
            let mounted = images.mount_read_only().unwrap();
            let options = CompareOptions { segments: true, ..CompareOptions::COPY };
            compare(&HostTree::new(&source), &HostTree::new(mounted.path()), &options).assert_equal(8);
            mounted.unmount().unwrap();
        }
        // A change of the source does not reach the image.
        let file = File::options().write(true).open(source.join("large")).unwrap();
        file.write_all_at(&noise(9, 8192), 1 << 20).unwrap();
        succeed(["check", "--check-data-csum", string(&image)]);
        fs::remove_file(&image).unwrap();
    }
    let parity = host.path().join("parity");
    let second = host.path().join("second");
    let arguments = ["mkfs", "--reflink", "-b", "256M", "-d", "raid5", "-m", "raid1", "--rootdir"];
    let images = [string(&source), string(&parity), string(&second)];
    fail(1, "rows with parity cannot be cloned", [&arguments[..], &images].concat());
    assert!(!parity.exists() && !second.exists());
    // Another file system shares nothing.
    let elsewhere = scratch.path().join("elsewhere");
    let arguments = ["mkfs", "--reflink", "--rootdir", string(&source), string(&elsewhere)];
    fail(1, "have to be in one file system with reflinks", arguments);
    assert!(!elsewhere.exists());
    fail(2, "regular file", ["mkfs", "-f", "--reflink", "--rootdir", string(&source), "/dev/null"]);
    fail(2, "an archive shares no blocks", ["mkfs", "--reflink", "--rootdir", "-", string(&elsewhere)]);
    let both = ["mkfs", "--reflink", "--compress", "zstd", "--rootdir", string(&source), string(&elsewhere)];
    assert_eq!(papilio(both).status.code(), Some(2));
}

fn free(path: &Path) -> u64 {
    let stat = rustix::fs::statvfs(path).unwrap();
    stat.f_bfree * stat.f_frsize
}
