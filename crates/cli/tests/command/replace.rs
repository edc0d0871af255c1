//! `replace` on images: a device is replaced, also a missing one, and errors are one line.

use crate::common::{fail, papilio, succeed, succeed_json, succeed_text, text};
use crate::fixture::noise;
use std::fs::File;

#[test]
fn a_device_is_replaced_and_a_missing_one_rebuilt() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let make = |name: &str, mib: u64| {
        File::create(path(name)).unwrap().set_len(mib << 20).unwrap();
        path(name)
    };
    let (a, b, c, d) = (make("a", 300), make("b", 300), make("c", 300), make("d", 300));
    let small = make("small", 100);
    succeed(["mkfs", "-d", "raid1", "-m", "raid1", &a, &b]);
    std::fs::write(path("source"), noise(7, 5 << 20)).unwrap();
    succeed(["cp", "--device", &b, &path("source"), &format!("{a}:/file")]);
    assert!(succeed_text(["replace", "status", "--device", &b, &a]).contains("Never started"));
    fail(1, "small", ["replace", "start", "--device", &b, "2", &small, &a]);
    fail(1, "device 9 is not part", ["replace", "start", "--device", &b, "9", &c, &a]);
    fail(1, "no replacement of a device is under way", ["replace", "cancel", "--device", &b, &a]);
    let done = succeed_text(["replace", "start", "--device", &b, &b, &c, &a]);
    assert!(done.starts_with("device 2: finished, 0 write errs"), "{done}");
    assert!(!papilio(["ls", &b]).status.success(), "the old device is erased");
    assert_eq!(succeed(["cat", "--device", &c, &format!("{a}:/file")]), noise(7, 5 << 20));

    // The first device is lost.
    std::fs::remove_file(&a).unwrap();
    let output = papilio(["replace", "start", "--degraded", "1", &d, &c]);
    assert!(output.status.success() && text(&output.stderr).contains("a device is missing"));
    assert_eq!(succeed_json(["replace", "status", "--json", "--device", &c, &d])["state"], "finished");
    assert_eq!(succeed(["cat", "--device", &c, &format!("{d}:/file")]), noise(7, 5 << 20));
    assert!(succeed_text(["check", "--check-data-csum", "--device", &c, &d]).contains("no error found"));
}
