//! Ioctls whose arguments refer to the caller's memory and descriptors, compared with the kernel's
//! on the same image; and the stock `btrfs`, told that the mount is one of Btrfs.

use crate::server::{Mount, NEEDS, check};
use papilio_oracle::sys::{clone_range, create_snapshot, create_subvolume};
use papilio_oracle::{
    CompareOptions, FileSystemSpec, HostTree, ImageSet, Mounted, Need, Scratch, compare, require,
};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs");

/// Compiles a program of this folder.
pub(crate) fn compile(scratch: &Scratch, source: &str, shared: bool) -> PathBuf {
    let binary = scratch.unique(if shared { "library.so" } else { "program" });
    let mut cc = Command::new("cc");
    if shared {
        cc.args(["-shared", "-fPIC"]);
    }
    let status = cc.arg("-O1").arg("-o").arg(&binary).arg(Path::new(PROGRAMS).join(source)).status().unwrap();
    assert!(status.success(), "cc {source}");
    binary
}

fn needs() -> Vec<Need> {
    [NEEDS, &[Need::Command("cc"), Need::Command("btrfs"), Need::Command("setpriv")]].concat()
}

/// Fills a file system of the kernel: shared, split, compressed and preallocated extents, links,
/// and snapshots.
fn fill(root: &Path) {
    let content = |seed: u32, length: u32| -> Vec<u8> {
        (0..length / 4).flat_map(|n| (n ^ seed).wrapping_mul(0x9e37_79b9).to_le_bytes()).collect()
    };
    fs::write(root.join("file"), content(1, 500_000)).unwrap();
    fs::write(root.join("small"), b"inline").unwrap();
    fs::create_dir(root.join("directory")).unwrap();
    for n in 0..40 {
        fs::hard_link(root.join("small"), root.join(format!("directory/link with a longer name {n}")))
            .unwrap();
    }
    let compressed = File::create(root.join("directory/compressed")).unwrap();
    xattr::set(root.join("directory/compressed"), "btrfs.compression", b"zstd").unwrap();
    drop(compressed);
    fs::write(root.join("directory/compressed"), vec![7; 400_000]).unwrap();
    create_subvolume(&root.join("subvolume")).unwrap();
    fs::write(root.join("subvolume/data"), content(2, 300_000)).unwrap();
    rustix::fs::sync();
    // A part that begins inside the extent.
    let (source, target) = (File::open(root.join("file")).unwrap(), root.join("subvolume/part"));
    clone_range(&source, 65_536, 131_072, &File::create(target).unwrap(), 8_192).unwrap();
    let split = File::options().write(true).open(root.join("file")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&split, &[1; 8192], 200_704).unwrap();
    let reserved = File::create(root.join("reserved")).unwrap();
    rustix::fs::fallocate(&reserved, rustix::fs::FallocateFlags::empty(), 0, 1 << 20).unwrap();
    create_snapshot(&root.join("subvolume"), &root.join("snapshot"), true).unwrap();
    fs::write(root.join("subvolume/data"), content(3, 100_000)).unwrap();
    rustix::fs::sync();
}

fn made(scratch: &Scratch) -> ImageSet {
    let set = FileSystemSpec::default().make(scratch).unwrap();
    let mounted = set.mount().unwrap();
    fill(mounted.path());
    mounted.unmount().unwrap();
    set
}

pub(crate) fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn assert_same(found: &str, expected: &str) {
    for (number, (found, expected)) in found.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found, expected, "line {number}");
    }
    assert_eq!(found.lines().count(), expected.lines().count());
}

#[test]
fn answers_are_those_of_the_kernel() {
    let Some(_) = require(&needs()) else { return };
    let scratch = Scratch::new(1 << 30).unwrap();
    let set = made(&scratch);
    let program = compile(&scratch, "ioctls.c", false);
    let run =
        |root: &Path, more: &[&str]| text(&Command::new(&program).arg(root).args(more).output().unwrap());
    // Root in a container may lack this capability.
    let confined = |root: &Path| {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", "-sys_admin,-dac_read_search", "--"]).arg(&program);
        text(&command.arg(root).arg("errors").output().unwrap())
    };
    let mounted = set.mount_read_only().unwrap();
    let errors_confined = confined(mounted.path());
    let expected = run(mounted.path(), &[]);
    let errors = run(mounted.path(), &["errors"]);
    mounted.unmount().unwrap();
    assert!(expected.lines().count() > 500 && errors.lines().count() > 20);
    for options in ["ro,subvolid=5", "subvolid=5,allow_other"] {
        let mount = Mount::new(&scratch, &set.paths()[0], options);
        assert_same(&run(mount.path(), &[]), &expected);
        if options.contains("allow_other") {
            assert_same(&run(mount.path(), &["errors"]), &errors);
            assert_same(&confined(mount.path()), &errors_confined);
        }
        mount.unmount();
    }
    check(&set.paths()[0]);
}

/// The parts of a file that a stream brings.
const RECEIVED: CompareOptions = CompareOptions {
    mtime: true,
    ctime: false,
    atime: false,
    btime: false,
    inode_numbers: false,
    flags: false,
    content: true,
    segments: false,
    extents: false,
    keep: 5,
};

/// A file system of the kernel that receives streams.
struct Receiver {
    mounted: Mounted,
    _set: ImageSet,
}

impl Receiver {
    fn new(scratch: &Scratch) -> Self {
        let set = FileSystemSpec::default().make(scratch).unwrap();
        Self { mounted: set.mount().unwrap(), _set: set }
    }

    fn receive(&self, stream: &Path) {
        let stdin = Stdio::from(File::open(stream).unwrap());
        text(&Command::new("btrfs").arg("receive").arg(self.mounted.path()).stdin(stdin).output().unwrap());
    }
}

#[test]
fn stock_btrfs_works_and_sends_are_received() {
    let Some(_) = require(&needs()) else { return };
    let scratch = Scratch::new(2 << 30).unwrap();
    let set = made(&scratch);
    let library = compile(&scratch, "as_btrfs.c", true);
    let mount = Mount::new(&scratch, &set.paths()[0], "subvolid=5,threads=1");
    let root = mount.path();
    let btrfs = |arguments: &[&str]| {
        let mut command = Command::new("btrfs");
        text(&command.env("LD_PRELOAD", &library).current_dir(root).args(arguments).output().unwrap())
    };
    assert!(btrfs(&["subvolume", "list", "."]).lines().count() >= 2);
    assert!(btrfs(&["subvolume", "show", "snapshot"]).contains("readonly"));
    btrfs(&["subvolume", "snapshot", "-r", "subvolume", "second"]);
    fs::write(root.join("subvolume/new"), b"more").unwrap();
    fs::remove_file(root.join("subvolume/part")).unwrap();
    btrfs(&["subvolume", "snapshot", "-r", "subvolume", "third"]);
    assert!(btrfs(&["filesystem", "df", "."]).contains("Data, single"));
    assert!(btrfs(&["device", "stats", "."]).contains("write_io_errs    0"));
    assert_eq!(btrfs(&["inspect-internal", "inode-resolve", "257", "."]).trim(), "./file");
    btrfs(&["inspect-internal", "rootid", "subvolume"]);

    let receiver = Receiver::new(&scratch);
    let stream = |name: &str| scratch.path().join(name);
    let (full, second, third, several) = (stream("full"), stream("2"), stream("3"), stream("several"));
    let file = |path: &Path| path.to_str().unwrap().to_owned();
    btrfs(&["send", "-f", &file(&full), "snapshot"]);
    btrfs(&["send", "-p", "snapshot", "-f", &file(&second), "second"]);
    btrfs(&["send", "-p", "second", "-c", "snapshot", "-f", &file(&third), "third"]);
    for stream in [&full, &second, &third] {
        receiver.receive(stream);
    }
    // `btrfs` reads the stream from a pipe and writes it to this mount, which has one thread.
    let in_mount = root.join("stream");
    btrfs(&["send", "-q", "-f", &file(&in_mount), "third"]);
    assert!(fs::metadata(&in_mount).unwrap().len() > 100_000);
    // Several in one stream, without headers in between.
    btrfs(&["send", "-q", "-f", &file(&several), "snapshot", "second"]);
    let fresh = Receiver::new(&scratch);
    fresh.receive(&several);
    for (receiver, names) in
        [(&receiver, &["snapshot", "second", "third"][..]), (&fresh, &["snapshot", "second"])]
    {
        for name in names {
            let (ours, theirs) =
                (HostTree::new(root.join(name)), HostTree::new(receiver.mounted.path().join(name)));
            compare(&ours, &theirs, &RECEIVED).assert_equal(1);
        }
    }
    receiver.mounted.unmount().unwrap();
    fresh.mounted.unmount().unwrap();
    mount.unmount();
    check(&set.paths()[0]);
}
