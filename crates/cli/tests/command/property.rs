//! `papilio property`, spellings of `setfattr`, and warnings of the library on the terminal.

use crate::common::{fail, papilio, succeed_text as succeed, text};
use papilio::{FileSystem, OpenOptions, Received, Timespec, Uuid};

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
    fail(1, "only -f overwrites it", ["mkfs", image.to_str().unwrap()]);
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
