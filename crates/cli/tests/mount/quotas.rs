//! Quotas of a mount: the commands, and a write beyond the limit.

use crate::world::{MOUNT, World, eventually, fail, papilio, succeed};
use papilio::QgroupId;
use papilio_ioctl::client::MountedPath;
use papilio_oracle::Need;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// Writes until the limit stops it; returns the errno.
fn fill(path: &str, most: usize) -> Option<i32> {
    let mut file = File::create(path).unwrap();
    for _ in 0..most {
        if let Err(error) = file.write_all(&[1; 1 << 20]) {
            return error.raw_os_error();
        }
    }
    file.sync_all().err().and_then(|error| error.raw_os_error())
}

#[test]
fn quotas_of_a_mount_are_counted_and_limit_writers() {
    let Some(world) = World::new(MOUNT) else { return };
    world.mount(&[]);
    let root = world.at("");
    succeed(["subvolume", "create", &world.at("a")]);
    assert_eq!(fill(&world.at("a/before"), 2), None);
    assert!(succeed(["quota", "status", &root]).contains("no"));
    fail(1, "quotas are not enabled", ["qgroup", "show", &root]);
    succeed(["quota", "enable", &root]);
    succeed(["quota", "rescan", "-W", &root]);
    eventually("the rescan ends", || {
        succeed(["quota", "rescan", "-s", &root]).contains("no rescan operation")
    });
    let shown = succeed(["qgroup", "show", "--raw", &root]);
    let of_a = shown.lines().find(|line| line.starts_with("0/256")).unwrap();
    let referenced: u64 = of_a.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!((2 << 20..3 << 20).contains(&referenced), "{shown}");

    succeed(["qgroup", "create", "1/7", &root]);
    fail(1, "exist", ["qgroup", "create", "1/7", &root]);
    succeed(["qgroup", "assign", "256", "1/7", &root]);
    succeed(["qgroup", "limit", "8M", "1/7", &root]);
    let edquot = Some(rustix::io::Errno::DQUOT.raw_os_error());
    assert_eq!(fill(&world.at("a/large"), 30), edquot);
    fs::remove_file(world.at("a/large")).unwrap();
    // The kernel remembers a failed writeback for one more sync.
    let _ = papilio(["filesystem", "sync", &root]);
    assert_eq!(fill(&world.at("a/small"), 3), None);
    succeed(["qgroup", "limit", "none", "1/7", &root]);
    assert_eq!(fill(&world.at("a/large"), 30), None);
    succeed(["subvolume", "snapshot", &world.at("a"), &world.at("b")]);
    succeed(["filesystem", "sync", &root]);
    world.unmount();
    let image = world.image();
    let image = image.to_str().unwrap();
    succeed(["check", image]);
    let status = succeed(["quota", "status", image]);
    assert!(status.contains("Total count:            4"), "{status}");
}

/// New subvolumes join qgroups, and the kernel's own ioctl sets limits.
#[test]
fn new_subvolumes_of_a_mount_join_qgroups() {
    let Some(world) = World::new(&[MOUNT, &[Need::Command("btrfs")]].concat()) else { return };
    world.mount(&[]);
    let (root, a, b) = (world.at(""), world.at("a"), world.at("b"));
    // Without quotas the wish has no effect.
    succeed(["subvolume", "create", "-i", "1/5", &world.at("early")]);
    succeed(["quota", "enable", &root]);
    succeed(["quota", "rescan", "-W", &root]);
    succeed(["qgroup", "create", "1/5", &root]);
    succeed(["qgroup", "create", "2/6", &root]);
    succeed(["subvolume", "create", "-i", "1/5", &a]);
    assert_eq!(fill(&world.at("a/f"), 3), None);
    succeed(["subvolume", "snapshot", "-r", "-i", "1/5", "-i", "2/6", &a, &b]);
    fail(1, "-i: there is no such qgroup", ["subvolume", "create", "-i", "1/9", &world.at("c")]);
    fail(1, "-i: there is no such qgroup", ["subvolume", "snapshot", "-i", "1/9", &a, &world.at("c")]);
    fail(1, "-i: a qgroup of level 0", ["subvolume", "create", "-i", "0/257", &world.at("c")]);
    assert!(!fs::exists(world.at("c")).unwrap());
    let shown = succeed(["qgroup", "show", "--raw", "-p", &root]);
    let parents = |id: &str| {
        let line = shown.lines().find(|line| line.starts_with(id)).expect(&shown);
        line.split_whitespace().nth(3).unwrap().to_owned()
    };
    let id = |path: &str| {
        let id = MountedPath::open(Path::new(path)).unwrap().subvolume_id().unwrap();
        format!("0/{} ", id.0)
    };
    assert_eq!((parents(&id(&a)), parents(&id(&b))), ("1/5".to_owned(), "1/5,2/6".to_owned()));

    // BTRFS_IOC_QGROUP_LIMIT, whose argument the server reads from the caller's memory.
    let limit = |id: QgroupId, bytes| {
        MountedPath::open(Path::new(&root)).unwrap().limit_qgroup_by_pointer(Some(id), bytes, false)
    };
    let group = QgroupId(1 << 48 | 5);
    limit(group, Some(6 << 20)).unwrap();
    let missing = limit(QgroupId(1 << 48 | 77), Some(1)).unwrap_err();
    assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
    let shown = succeed(["qgroup", "show", "--raw", "-r", &root]);
    assert!(shown.lines().any(|line| line.starts_with("1/5") && line.contains("6291456")), "{shown}");
    assert_eq!(fill(&world.at("a/large"), 30), Some(rustix::io::Errno::DQUOT.raw_os_error()));
    limit(group, None).unwrap();
    // The kernel reports a failed writeback that no `fsync` has met to the file's next opener.
    fs::remove_file(world.at("a/large")).unwrap();
    let _ = papilio(["filesystem", "sync", &root]);
    assert_eq!(fill(&world.at("a/large"), 30), None);
    world.unmount();
    world.assert_clean();
}
