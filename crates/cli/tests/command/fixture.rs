//! A small file system that the kernel has created, with files of every kind.

use papilio_oracle::{FileSystemSpec, ImageSet, Mounted, Need, Scratch, require, sys};
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, Weak};

/// An image with `/tree` (everything but a socket), `/socket` and the subvolume `/sub`.
pub struct Fixture {
    pub images: ImageSet,
    pub scratch: Scratch,
}

static SHARED: Mutex<Weak<Fixture>> = Mutex::new(Weak::new());

impl Fixture {
    /// Returns the fixture that concurrent tests share, or `None` if the machine cannot create it.
    pub fn get() -> Option<Arc<Self>> {
        let _met = require(Need::KERNEL_MOUNT)?;
        let mut shared = SHARED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(fixture) = shared.upgrade() {
            return Some(fixture);
        }
        let scratch = Scratch::new(600 << 20).unwrap();
        let images = FileSystemSpec::default().make(&scratch).unwrap();
        let mounted = images.mount().unwrap();
        populate(mounted.path());
        mounted.unmount().unwrap();
        let fixture = Arc::new(Self { images, scratch });
        *shared = Arc::downgrade(&fixture);
        Some(fixture)
    }

    /// Returns the path of the image.
    pub fn image(&self) -> &Path {
        &self.images.paths()[0]
    }

    /// Returns `IMAGE:path`.
    pub fn at(&self, path: &str) -> String {
        format!("{}:{path}", self.image().display())
    }

    /// Mounts the image with the kernel, read-only.
    pub fn mount(&self) -> Mounted {
        self.images.mount_read_only().unwrap()
    }

    /// Creates an empty directory on the host, which the guard removes.
    pub fn folder(&self) -> tempfile::TempDir {
        tempfile::tempdir_in(self.scratch.path()).unwrap()
    }
}

/// Runs a program of the host, which must succeed, and returns its output.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns a path as an argument.
pub fn string(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Copies an image, and preserves its holes.
pub fn copy_image(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("--sparse=always").args([from, to]).status();
    assert!(status.unwrap().success());
}

/// Returns pseudorandom bytes, which do not compress.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    next.flatten().take(length).collect()
}

/// Returns an access ACL: owner rwx, user 1234 r-x, group r--, mask r-x, others none.
pub fn acl() -> Vec<u8> {
    let none = u32::MAX;
    let entries = [(1, 7, none), (2, 5, 1234), (4, 4, none), (0x10, 5, none), (0x20, 0, none)];
    let mut acl = 2_u32.to_le_bytes().to_vec();
    for (tag, bits, id) in entries {
        let (tag, bits, id): (u16, u16, u32) = (tag, bits, id);
        acl.extend(tag.to_le_bytes());
        acl.extend(bits.to_le_bytes());
        acl.extend(id.to_le_bytes());
    }
    acl
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn set_times(path: &Path, atime: (i64, i64), mtime: (i64, i64)) {
    let time = |(tv_sec, tv_nsec)| rustix::fs::Timespec { tv_sec, tv_nsec };
    let times = rustix::fs::Timestamps { last_access: time(atime), last_modification: time(mtime) };
    let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, flags).unwrap();
}

fn node(path: &Path, kind: rustix::fs::FileType, device: u64) {
    let mode = rustix::fs::Mode::from_raw_mode(0o640);
    rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, device).unwrap();
}

fn populate(root: &Path) {
    let tree = root.join("tree");
    fs::create_dir(&tree).unwrap();
    files(&tree);
    directories(&tree);
    nodes(&tree);
    node(&root.join("socket"), rustix::fs::FileType::Socket, 0);
    let sub = root.join("sub");
    sys::create_subvolume(&sub).unwrap();
    fs::write(sub.join("inside"), b"inside a subvolume\n").unwrap();
    set_times(&tree, (1_000_000_001, 1), (1_000_000_002, 2));
}

fn files(tree: &Path) {
    fs::write(tree.join("empty"), b"").unwrap();
    fs::write(tree.join("small"), b"small\n").unwrap();
    fs::write(tree.join("large"), noise(1, (5 << 20) + 123)).unwrap();
    fs::write(tree.join("first link"), noise(2, 10_000)).unwrap();
    for number in 0..300 {
        let path = tree.join(format!("many-{number:03}"));
        fs::write(path, noise(number, usize::try_from(number * 37).unwrap())).unwrap();
    }
    let sparse = File::create(tree.join("sparse")).unwrap();
    sparse.write_all_at(&noise(3, 8192), 1 << 20).unwrap();
    sparse.write_all_at(&noise(4, 100), 3 << 20).unwrap();
    sparse.set_len(64 << 20).unwrap();
    File::create(tree.join("all hole")).unwrap().set_len(100 << 20).unwrap();
    for name in [&b"new\nline"[..], b"back\\slash", b"\xff\xfe not UTF-8", b"-dash", "grün".as_bytes()] {
        fs::write(tree.join(OsStr::from_bytes(name)), name).unwrap();
    }
    let long = tree.join("x".repeat(255));
    fs::write(&long, b"a long name").unwrap();

    let owned = tree.join("owned");
    fs::write(&owned, b"somebody else's").unwrap();
    std::os::unix::fs::chown(&owned, Some(3_000_000_000), Some(54_321)).unwrap();
    mode(&owned, 0o6751);
    set_times(&owned, (-5, 999_999_999), (-123_456_789, 500_000_001));

    let marked = tree.join("marked");
    fs::write(&marked, b"with attributes").unwrap();
    xattr::set(&marked, "user.text", b"value").unwrap();
    xattr::set(&marked, "user.bytes=%", &noise(5, 2000)).unwrap();
    xattr::set(&marked, "trusted.secret", b"\0\xff").unwrap();
    xattr::set(&marked, "system.posix_acl_access", &acl()).unwrap();
    mode(&tree.join("small"), 0o400);
    set_times(&tree.join("small"), (1_700_000_000, 111), (1_600_000_000, 222_222_222));
}

fn directories(tree: &Path) {
    let mut deep = tree.join("deep");
    for level in 0..160 {
        fs::create_dir(&deep).unwrap();
        fs::write(deep.join("here"), level.to_string()).unwrap();
        deep.push("d");
    }
    fs::create_dir(tree.join("no write")).unwrap();
    fs::write(tree.join("no write/file"), b"in a directory without w").unwrap();
    fs::hard_link(tree.join("first link"), tree.join("no write/second link")).unwrap();
    mode(&tree.join("no write"), 0o555);
    set_times(&tree.join("no write"), (1_500_000_000, 5), (1_500_000_001, 6));
    let sticky = tree.join("sticky");
    fs::create_dir(&sticky).unwrap();
    fs::write(sticky.join("made before the ACL"), b"").unwrap();
    xattr::set(&sticky, "system.posix_acl_default", &acl()).unwrap();
    xattr::set(&sticky, "user.of a directory", b"yes").unwrap();
    mode(&sticky, 0o3777);
}

fn nodes(tree: &Path) {
    use rustix::fs::{FileType, makedev};
    node(&tree.join("fifo"), FileType::Fifo, 0);
    node(&tree.join("block"), FileType::BlockDevice, makedev(259, 70_000));
    node(&tree.join("character"), FileType::CharacterDevice, makedev(1, 3));
    fs::hard_link(tree.join("fifo"), tree.join("fifo again")).unwrap();
    symlink("small", tree.join("to small")).unwrap();
    symlink("no write", tree.join("to directory")).unwrap();
    symlink("/nowhere/at/all", tree.join("dangling")).unwrap();
    symlink("y".repeat(3000), tree.join("long target")).unwrap();
    let owned = tree.join("owned link");
    symlink("owned", &owned).unwrap();
    std::os::unix::fs::lchown(&owned, Some(77), Some(88)).unwrap();
    xattr::set(&owned, "trusted.of a link", b"too").unwrap();
    set_times(&owned, (1_400_000_000, 7), (1_400_000_001, 8));
}

/// A file system in memory, which the guard unmounts.
pub struct TemporaryFileSystem(pub PathBuf);

impl TemporaryFileSystem {
    /// Mounts a file system of `bytes` at `path`.
    pub fn new(path: PathBuf, bytes: u64) -> Self {
        fs::create_dir_all(&path).unwrap();
        let options = format!("size={bytes}");
        let status = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&path).status();
        assert!(status.unwrap().success());
        Self(path)
    }
}

impl Drop for TemporaryFileSystem {
    fn drop(&mut self) {
        let status = Command::new("umount").arg(&self.0).status();
        assert!(std::thread::panicking() || status.is_ok_and(|status| status.success()));
    }
}
