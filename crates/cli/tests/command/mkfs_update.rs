//! `papilio mkfs --update`: the content of a file system becomes that of a directory.

use crate::common::{fail, papilio, succeed, succeed_json};
use crate::fixture::noise;
use papilio_oracle::{CompareOptions, FileSystemSpec, HostTree, ImageSet, Need, Scratch, compare, require};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: usize = 1 << 20;

fn string(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A directory that changes at random.
struct ChangingTree {
    root: PathBuf,
    random: fastrand::Rng,
    made: u64,
}

impl ChangingTree {
    fn new(root: &Path, seed: u64) -> Self {
        fs::create_dir(root).unwrap();
        let mut tree = Self { root: root.to_owned(), random: fastrand::Rng::with_seed(seed), made: 0 };
        for _ in 0..120 {
            tree.make();
        }
        tree
    }

    /// Returns the paths below the root, in a fixed order.
    fn paths(&self) -> Vec<PathBuf> {
        let mut paths = Vec::new();
        let mut pending = vec![self.root.clone()];
        while let Some(directory) = pending.pop() {
            let mut entries: Vec<_> =
                fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
            entries.sort();
            for path in entries {
                if path.symlink_metadata().unwrap().is_dir() {
                    pending.push(path.clone());
                }
                paths.push(path);
            }
        }
        paths
    }

    fn some(&mut self, is_wanted: impl Fn(&fs::Metadata) -> bool) -> Option<PathBuf> {
        let mut paths = self.paths();
        paths.retain(|path| is_wanted(&path.symlink_metadata().unwrap()));
        (!paths.is_empty()).then(|| paths.swap_remove(self.random.usize(..paths.len())))
    }

    fn new_path(&mut self) -> PathBuf {
        self.made += 1;
        let folder = self.some(fs::Metadata::is_dir).filter(|_| self.random.u8(..4) > 0);
        folder.unwrap_or_else(|| self.root.clone()).join(format!("n{}", self.made))
    }

    fn content(&mut self) -> Vec<u8> {
        let length = match self.random.u8(..6) {
            0 => 0,
            1 => self.random.usize(1..2000),
            2 => self.random.usize(1..40) * 4096,
            3 => self.random.usize(MIB..3 * MIB),
            _ => self.random.usize(2000..300_000),
        };
        match self.random.u8(..3) {
            0 => noise(self.random.u64(..), length),
            1 => b"a line that repeats itself\n".iter().copied().cycle().take(length).collect(),
            _ => vec![0; length],
        }
    }

    /// Makes an entry.
    fn make(&mut self) {
        let path = self.new_path();
        self.make_at(&path);
    }

    fn make_at(&mut self, path: &Path) {
        match self.random.u8(..12) {
            0..=1 => fs::create_dir(path).unwrap(),
            2 => symlink(format!("target-{}", self.random.u8(..)), path).unwrap(),
            3 => {
                let number = self.random.u64(1..255);
                let (kind, device) = match self.random.u8(..3) {
                    0 => (rustix::fs::FileType::Fifo, 0),
                    1 => (rustix::fs::FileType::Socket, 0),
                    _ => (rustix::fs::FileType::CharacterDevice, rustix::fs::makedev(1, number as u32)),
                };
                let mode = rustix::fs::Mode::RUSR;
                rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, device).unwrap();
            }
            4 => match self.some(fs::Metadata::is_file) {
                Some(target) => fs::hard_link(target, path).unwrap(),
                None => fs::write(path, "alone").unwrap(),
            },
            5 => {
                let file = File::create(path).unwrap();
                let bytes = self.content();
                file.write_all_at(&bytes, self.random.u64(..64) * 65_536).unwrap();
                file.set_len(self.random.u64(..8) * MIB as u64 + 77).unwrap();
            }
            _ => fs::write(path, self.content()).unwrap(),
        }
    }

    /// Changes an entry.
    fn change(&mut self) {
        match self.random.u8(..14) {
            0..=2 => self.make(),
            3 => {
                let Some(path) = self.some(|_| true) else { return };
                remove(&path);
            }
            4 => {
                // Another kind under the same name.
                let Some(path) = self.some(|_| true) else { return };
                remove(&path);
                self.make_at(&path);
            }
            5 => {
                let Some(path) = self.some(|_| true) else { return };
                let to = self.new_path();
                // A directory cannot be moved below itself.
                let _ = fs::rename(path, to);
            }
            6..=8 => {
                let Some(path) = self.some(fs::Metadata::is_file) else { return };
                // Neither time nor size shows this change.
                let metadata = path.metadata().unwrap();
                let file = File::options().write(true).open(&path).unwrap();
                let offset = self.random.u64(..metadata.len().max(1));
                let length = (metadata.len() - offset.min(metadata.len())).min(9000);
                file.write_all_at(&noise(self.random.u64(..), length as usize), offset).unwrap();
                file.set_modified(metadata.modified().unwrap()).unwrap();
            }
            9 => {
                let Some(path) = self.some(fs::Metadata::is_file) else { return };
                let file = File::options().write(true).open(&path).unwrap();
                file.set_len(self.random.u64(..3 * MIB as u64)).unwrap();
            }
            10 => {
                let Some(path) = self.some(|metadata| !metadata.is_symlink()) else { return };
                let mode = self.random.u32(..) & 0o7777;
                fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
            }
            11 => {
                let Some(path) = self.some(|_| true) else { return };
                let owner = self.random.u32(..2000);
                std::os::unix::fs::lchown(path, Some(owner), Some(owner)).unwrap();
            }
            12 => {
                let Some(path) = self.some(|metadata| metadata.is_dir() || metadata.is_file()) else {
                    return;
                };
                let name = format!("user.x{}", self.random.u8(..3));
                let flags = rustix::fs::XattrFlags::empty();
                match self.random.bool() {
                    true => rustix::fs::setxattr(path, name, &noise(1, 200), flags).unwrap(),
                    false => drop(rustix::fs::removexattr(path, name)),
                }
            }
            _ => {
                let Some(path) = self.some(fs::Metadata::is_file) else { return };
                let file = File::options().write(true).open(&path).unwrap();
                let (offset, length) = (self.random.u64(..20) * 4096, self.random.u64(1..40) * 4096);
                use rustix::fs::FallocateFlags;
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(file, flags, offset, length).unwrap();
            }
        }
    }
}

fn remove(path: &Path) {
    match path.symlink_metadata().unwrap().is_dir() {
        true => fs::remove_dir_all(path).unwrap(),
        false => fs::remove_file(path).unwrap(),
    }
}

/// Compares the tree with the kernel's mount of the image.
fn assert_same(scratch: &Scratch, source: &Path, image: &Path) {
    succeed(["check", "--check-data-csum", string(image)]);
    let images = ImageSet::open(scratch, vec![image.to_owned()]);
    let mounted = images.mount_read_only().unwrap();
    compare(&HostTree::new(source), &HostTree::new(mounted.path()), &CompareOptions::COPY).assert_equal(20);
    mounted.unmount().unwrap();
}

fn update(options: &[&str], source: &Path, image: &Path) -> serde_json::Value {
    let all = [&["mkfs", "--json", "--update", "--rootdir", string(source)], options, &[string(image)]];
    succeed_json(all.concat())
}

/// Asserts that another update has nothing to do.
fn assert_settled(options: &[&str], source: &Path, image: &Path) {
    let again = update(options, source, image);
    for field in ["created", "changed", "removed", "bytes_written"] {
        assert_eq!(again[field], 0, "{again}");
    }
    assert!(again["unchanged"].as_u64().unwrap() > 0);
}

#[test]
fn updates_follow_a_changing_tree() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    // The tree lies on a Btrfs, which has all kinds of attributes.
    let scratch = Scratch::new(2 << 30).unwrap();
    let host = FileSystemSpec { device_size: 2 << 30, ..FileSystemSpec::default() }.make(&scratch).unwrap();
    let host = host.mount().unwrap();
    for (seed, options) in [
        (1, &[][..]),
        (2, &["--compress", "zstd"][..]),
        (3, &["--shrink"]),
        (4, &["--shrink", "--compress", "lzo"]),
    ] {
        let source = host.path().join(format!("source-{seed}"));
        let mut tree = ChangingTree::new(&source, seed);
        let image = scratch.path().join(format!("image-{seed}"));
        succeed([&["mkfs", "-O", "^bgt", "--rootdir", string(&source)], options, &[string(&image)]].concat());
        assert_settled(options, &source, &image);
        for round in 0..6 {
            for _ in 0..(1 << round) {
                tree.change();
            }
            update(options, &source, &image);
            assert_same(&scratch, &source, &image);
            assert_settled(options, &source, &image);
        }
        ImageSet::open(&scratch, vec![image.clone()]).btrfs_check().unwrap();
        fs::remove_file(&image).unwrap();
        fs::remove_dir_all(&source).unwrap();
    }
}

#[test]
fn only_different_sectors_are_written() {
    let scratch = Scratch::new(300 << 20).unwrap();
    let (source, image) = (scratch.path().join("source"), scratch.path().join("image"));
    fs::create_dir(&source).unwrap();
    let mut content = noise(1, 20 * MIB);
    fs::write(source.join("large"), &content).unwrap();
    fs::write(source.join("gone"), "gone").unwrap();
    succeed(["mkfs", "--rootdir", string(&source), string(&image)]);
    content[7 * MIB + 5000] ^= 1;
    content[19 * MIB] ^= 1;
    fs::write(source.join("large"), &content).unwrap();
    fs::remove_file(source.join("gone")).unwrap();
    fs::write(source.join("new"), "new").unwrap();
    let done = update(&[], &source, &image);
    let equal = 20 * MIB as u64 - 8192;
    let expected = serde_json::json!({
        // The root directory has another time.
        "created": 1, "changed": 2, "removed": 1, "unchanged": 0,
        "bytes_written": 8192 + 3, "bytes_equal": equal,
    });
    assert_eq!(done, expected);
    assert!(succeed(["cat", &format!("{}:/large", image.display())]) == content);
    // With compression, whole parts of 128 KiB are written.
    content[3] ^= 1;
    fs::write(source.join("large"), &content).unwrap();
    assert_eq!(update(&["--compress", "zstd"], &source, &image)["bytes_written"], 128 << 10);
    assert!(succeed(["cat", &format!("{}:/large", image.display())]) == content);
    succeed(["check", "--check-data-csum", string(&image)]);
    // Damaged content is no reason to stop: it is written anew.
    let file = File::options().read(true).write(true).open(&image).unwrap();
    let at = position_of(&file, &content[10 * MIB..10 * MIB + 64]);
    file.write_all_at(&[0; 64], at).unwrap();
    assert_eq!(papilio(["check", "--check-data-csum", string(&image)]).status.code(), Some(1));
    let arguments = ["mkfs", "--json", "--update", "--rootdir", string(&source), string(&image)];
    let output = papilio(arguments);
    let warned = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && warned.contains("/large"), "{warned}");
    let done: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&done["bytes_written"], &done["changed"]), (&4096.into(), &1.into()), "{done}");
    assert!(succeed(["cat", &format!("{}:/large", image.display())]) == content);
    assert_settled(&[], &source, &image);
}

/// Returns the position of bytes that are once in a file.
fn position_of(file: &File, bytes: &[u8]) -> u64 {
    let mut all = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut all, 0).unwrap();
    all.windows(bytes.len()).position(|window| window == bytes).unwrap() as u64
}

#[test]
fn an_image_grows_until_the_content_fits() {
    let scratch = Scratch::new(1 << 30).unwrap();
    let (source, image) = (scratch.path().join("source"), scratch.path().join("image"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("small"), "small").unwrap();
    succeed(["mkfs", "--shrink", "--rootdir", string(&source), string(&image)]);
    let before = fs::metadata(&image).unwrap().len();
    fs::write(source.join("large"), noise(2, 200 * MIB)).unwrap();
    update(&["--shrink"], &source, &image);
    assert!(fs::metadata(&image).unwrap().len() > before + (200 << 20));
    succeed(["check", "--check-data-csum", string(&image)]);
    assert!(succeed(["cat", &format!("{}:/large", image.display())]) == noise(2, 200 * MIB));
    // A block device or a partition has its size, and so has the disk in a disk image.
    let disk = scratch.path().join("disk.qcow2");
    if require(&[Need::Command("qemu-img")]).is_some() {
        let made =
            Command::new("qemu-img").args(["create", "-q", "-f", "qcow2", string(&disk), "150M"]).status();
        assert!(made.unwrap().success());
        fs::remove_file(source.join("large")).unwrap();
        succeed(["mkfs", "--rootdir", string(&source), string(&disk)]);
        fs::write(source.join("large"), noise(2, 200 * MIB)).unwrap();
        let arguments = ["mkfs", "--update", "--rootdir", string(&source), string(&disk)];
        fail(1, "no space left on the file system", arguments);
        succeed(["check", "--check-data-csum", string(&disk)]);
    }
}

#[test]
fn subvolumes_and_flags_stay_as_they_are_named() {
    let scratch = Scratch::new(300 << 20).unwrap();
    let (source, image) = (scratch.path().join("source"), scratch.path().join("image"));
    for name in ["home", "snapshots", "db"] {
        fs::create_dir_all(source.join(name)).unwrap();
        fs::write(source.join(name).join("f"), noise(3, 50_000)).unwrap();
    }
    let options = ["--subvol", "ro:home", "--subvol", "default:snapshots", "--inode-flags", "nodatacow:db"];
    succeed([&["mkfs", "--rootdir", string(&source)], &options[..], &[string(&image)]].concat());
    assert_settled(&options, &source, &image);
    fs::write(source.join("home/f"), "other").unwrap();
    fs::write(source.join("db/f"), noise(4, 50_000)).unwrap();
    let done = update(&options, &source, &image);
    assert_eq!((&done["changed"], &done["created"]), (&2.into(), &0.into()), "{done}");
    let list = String::from_utf8(succeed(["subvolume", "list", string(&image)])).unwrap();
    assert!(list.lines().count() == 2, "{list}");
    let shown = succeed(["property", "get", &format!("{}:/home", image.display()), "ro"]);
    assert_eq!(String::from_utf8(shown).unwrap().trim(), "ro=true");
    assert_eq!(succeed(["cat", &format!("{}:/home/f", image.display())]), b"other");
    // A subvolume of somebody else is not deleted.
    let taken = format!("{}:/taken", image.display());
    succeed(["subvolume", "snapshot", &format!("{}:/home", image.display()), &taken]);
    let before = fs::read(&image).unwrap();
    let arguments = [&["mkfs", "--update", "--rootdir", string(&source)], &options[..], &[string(&image)]];
    fail(1, "subvolumes that the new content lacks: taken; name or delete them", arguments.concat());
    assert!(fs::read(&image).unwrap() == before, "a refused update changes nothing");
    succeed(["subvolume", "delete", &taken]);
    // A subvolume that the directory lacks is refused before anything is removed.
    fs::rename(source.join("home"), source.join("house")).unwrap();
    let arguments = [&["mkfs", "--update", "--rootdir", string(&source)], &options[..], &[string(&image)]];
    fail(1, "subvolume home: the source has no such directory", arguments.concat());
    assert_eq!(succeed(["cat", &format!("{}:/home/f", image.display())]), b"other");
    fs::rename(source.join("house"), source.join("home")).unwrap();
    // The flags of subvolumes and directories that are not named any more go.
    let fewer = ["--subvol", "home"];
    fail(1, "subvolumes that the new content lacks: snapshots", {
        [&["mkfs", "--update", "--rootdir", string(&source)], &fewer[..], &[string(&image)]].concat()
    });
    let fewer = ["--subvol", "home", "--subvol", "snapshots"];
    update(&fewer, &source, &image);
    let shown = succeed(["property", "get", &format!("{}:/home", image.display()), "ro"]);
    assert_eq!(String::from_utf8(shown).unwrap().trim(), "ro=false");
    assert_settled(&fewer, &source, &image);
    succeed(["check", "--check-data-csum", string(&image)]);
}

#[test]
fn wrong_updates_are_refused() {
    let scratch = Scratch::new(300 << 20).unwrap();
    let (source, image) = (scratch.path().join("source"), scratch.path().join("image"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("f"), "f").unwrap();
    let archive = scratch.path().join("archive.tar");
    fs::write(&archive, "").unwrap();
    fail(1, "No such file", ["mkfs", "--update", "--rootdir", string(&source), string(&image)]);
    assert!(!image.exists());
    fs::write(&image, "").unwrap();
    fail(1, "", ["mkfs", "--update", "--rootdir", string(&source), string(&image)]);
    assert_eq!(fs::metadata(&image).unwrap().len(), 0);
    succeed(["mkfs", "-f", "--rootdir", string(&source), string(&image)]);
    let missing = scratch.path().join("missing");
    fail(1, "No such file or directory", ["mkfs", "--update", "--rootdir", string(&missing), string(&image)]);
    fail(
        2,
        "--rootdir names one directory",
        ["mkfs", "--update", "--rootdir", string(&archive), string(&image)],
    );
    for option in [&["-L", "x"][..], &["-b", "1G"], &["--csum", "sha256"], &["-f"], &["--reflink"], &["-M"]] {
        let arguments = [&["mkfs", "--update", "--rootdir", string(&source)], option, &[string(&image)]];
        assert_eq!(papilio(arguments.concat()).status.code(), Some(2), "{option:?}");
    }
    assert_eq!(papilio(["mkfs", "--update", string(&image)]).status.code(), Some(2));
    // Files of a directory with a default access control list would inherit it.
    let list = "0x0200000001000700ffffffff02000700e803000004000500ffffffff10000700ffffffff20000500ffffffff";
    let top = format!("{}:/top", image.display());
    succeed(["mkdir", &top]);
    succeed(["setfattr", "-n", "system.posix_acl_default", "-v", list, &top]);
    symlink("f", source.join("link")).unwrap();
    fs::create_dir(source.join("below")).unwrap();
    succeed(["cp", "-a", &format!("{}/.", source.display()), &top]);
    for name in ["f", "link", "below"] {
        let shown = succeed(["getfattr", &format!("{top}/{name}")]);
        assert!(shown.is_empty(), "{name}: {}", String::from_utf8_lossy(&shown));
    }
    // A directory that cannot be read ends the update; nothing of it is removed.
    if require(&[Need::Root, Need::Command("setpriv")]).is_some() {
        let hidden = source.join("hidden");
        fs::create_dir(&hidden).unwrap();
        fs::write(hidden.join("kept"), "kept").unwrap();
        succeed(["mkfs", "-f", "--rootdir", string(&source), string(&image)]);
        fs::set_permissions(&hidden, Permissions::from_mode(0o000)).unwrap();
        for path in [scratch.path(), &source, &image] {
            fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
        }
        let output = Command::new("setpriv")
            .args(["--reuid", "1000", "--regid", "1000", "--clear-groups"])
            .arg(crate::common::binary())
            .args(["mkfs", "--update", "--rootdir", string(&source), string(&image)])
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("hidden") && stderr.contains("ermission denied"), "{stderr}");
        assert_eq!(succeed(["cat", &format!("{}:/hidden/kept", image.display())]), b"kept");
        succeed(["check", string(&image)]);
    }
}
