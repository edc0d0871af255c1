//! `papilio property`, spellings of `setfattr`, properties of new subvolumes, and warnings of the
//! library on the terminal.

use crate::common::{fail, papilio, succeed_text as succeed, text};
use papilio::{FileSystem, OpenOptions, Received, Timespec, Uuid};
use papilio_oracle::{FileSystemSpec, Need, Scratch, require, sys};
use std::fs::File;
use std::path::Path;
use std::process::Command;

#[test]
fn received_subvolume_becomes_writable_only_by_force() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("received.img");
    let at = |path: &str| format!("{}:{path}", image.display());
    succeed(["mkfs", "--size", "300M", image.to_str().unwrap()]);
    succeed(["subvolume", "create", &at("/a")]);
    let uuid = Uuid::from_u128(7);
    let fs = FileSystem::open_with(&image, &OpenOptions::new().write(true)).unwrap();
    let send_time = Timespec { seconds: 1, nanoseconds: 2 };
    fs.set_received("/a", &Received { uuid, sent: papilio::Generation(3), send_time }).unwrap();
    fs.set_subvolume_read_only("/a", true).unwrap();
    fs.close().unwrap();
    let received = || {
        let fs = FileSystem::open(&image).unwrap();
        let id = fs.inode("/a").unwrap().tree();
        fs.subvolume(id).unwrap().received_uuid
    };
    fail(1, "-f makes it writable", ["property", "set", &at("/a"), "ro", "false"]);
    assert_eq!(received(), uuid);
    assert_eq!(succeed(["property", "get", &at("/a")]), "ro=true\n");
    succeed(["property", "set", "-f", &at("/a"), "ro", "false"]);
    assert!(received().is_nil());
    assert_eq!(succeed(["property", "get", &at("/a")]), "ro=false\n");
    succeed(["check", image.to_str().unwrap()]);
    let listed = succeed(["property", "list", &at("/a")]);
    assert!(listed.starts_with("ro ") && listed.contains("\ncompression "), "{listed}");
    succeed(["touch", &at("/a/file")]);
    assert!(!succeed(["property", "list", &at("/a/file")]).contains("ro "));
    succeed(["setfattr", "-n", "user.a", "-v", "value", &at("/a/file")]);
    assert!(succeed(["getfattr", "-d", &at("/a/file")]).contains("user.a=\"value\""));
    fail(1, "use -f to overwrite it", ["mkfs", image.to_str().unwrap()]);
    let short = folder.path().join("short");
    std::fs::write(&short, "no file system").unwrap();
    fail(1, "not a Btrfs file system: it has only 14 bytes", ["ls", short.to_str().unwrap()]);
}

#[test]
fn warnings_of_the_library_reach_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("warned.img");
    let name = image.to_str().unwrap();
    let at = |path: &str| format!("{name}:{path}");
    succeed(["mkfs", "--size", "300M", name]);
    succeed(["quota", "enable", name]);
    for path in ["/a", "/b"] {
        succeed(["subvolume", "create", &at(path)]);
    }
    let host = folder.path().join("file");
    std::fs::write(&host, vec![1; 100_000]).unwrap();
    succeed(["cp", host.to_str().unwrap(), &at("/b/file")]);
    succeed(["qgroup", "create", "1/1", name]);
    succeed(["qgroup", "assign", "256", "1/1", name]);
    succeed(["qgroup", "assign", "257", "1/1", name]);
    // Its source is in a group with others, in which the snapshot is not.
    let output = papilio(["subvolume", "snapshot", &at("/a"), &at("/c")]);
    assert!(output.status.success());
    let warned = text(&output.stderr);
    assert!(warned.starts_with("papilio: warning: the numbers of quotas are inconsistent"), "{warned}");
    let output = papilio(["-q", "qgroup", "show", name]);
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn a_new_subvolume_inherits_as_in_the_kernel() {
    if require(Need::KERNEL_MOUNT).is_none() || require(&[Need::Command("chattr")]).is_none() {
        return;
    }
    let scratch = Scratch::new(600 << 20).unwrap();
    let images = FileSystemSpec::default().make(&scratch).unwrap();
    let image = images.paths()[0].to_str().unwrap().to_owned();
    const PLACES: [&str; 3] = ["in-place", "zstd", "lzo-root"];
    let inherited = |root: &Path, name: &str| {
        PLACES.map(|place| {
            let path = root.join(place).join(name);
            let flags = rustix::fs::ioctl_getflags(File::open(&path).unwrap()).unwrap();
            (flags, xattr::get(&path, "btrfs.compression").unwrap())
        })
    };
    let mounted = images.mount().unwrap();
    let at = |path: &str| mounted.path().join(path);
    for place in PLACES {
        std::fs::create_dir(at(place)).unwrap();
    }
    let changed = Command::new("chattr").arg("+C").arg(at("in-place")).status().unwrap();
    assert!(changed.success());
    xattr::set(at("zstd"), "btrfs.compression", b"zstd").unwrap();
    for place in &PLACES[..2] {
        sys::create_subvolume(&at(place).join("theirs")).unwrap();
    }
    xattr::set(mounted.path(), "btrfs.compression", b"lzo").unwrap();
    sys::create_subvolume(&at("lzo-root/theirs")).unwrap();
    xattr::remove(mounted.path(), "btrfs.compression").unwrap();
    mounted.unmount().unwrap();
    let create = |place: &str| succeed(["subvolume", "create", &format!("{image}:/{place}/ours")]);
    create("in-place");
    create("zstd");
    succeed(["property", "set", &format!("{image}:/"), "compression", "lzo"]);
    create("lzo-root");
    let mounted = images.mount().unwrap();
    let ours = inherited(mounted.path(), "ours");
    assert_eq!(ours, inherited(mounted.path(), "theirs"));
    assert_eq!(ours.map(|(_, compression)| compression), [None, None, Some(b"lzo".to_vec())]);
}
