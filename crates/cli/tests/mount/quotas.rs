//! Quotas of a mount: the commands, and a write beyond the limit.

use crate::world::{MOUNT, World, eventually, fail, papilio, succeed};
use std::fs::{self, File};
use std::io::Write;

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
