//! The same steps on a mounted Papilio and on the kernel's Btrfs, with every result compared.
//!
//! Afterwards the library and `btrfs check` check the image. The kernel mounts it and must show the
//! same tree as the mount.

use crate::script::Script;
use crate::server::{Mount, NEEDS, check, make_image};
use crate::steps;
use papilio_oracle::{CompareOptions, FileSystemSpec, HostTree, ImageSet, Need, Scratch, compare, require};

fn needs() -> Vec<Need> {
    [NEEDS, Need::KERNEL_MOUNT].concat()
}

/// Runs steps on both file systems and compares the results.
pub fn both(options: &str, steps: impl Fn(&mut Script)) {
    let Some(_) = require(&needs()) else { return };
    let scratch = Scratch::new(1 << 30).unwrap();
    let kernel = FileSystemSpec { device_size: 1 << 30, ..FileSystemSpec::default() };
    let kernel = kernel.make(&scratch).unwrap();
    let theirs = kernel.mount().unwrap();
    let image = make_image(&scratch, 1 << 30);
    let ours = Mount::new(&scratch, &image, options);
    // SAFETY: system calls without pointers. They give this thread its own umask, which other tests
    // do not see.
    unsafe {
        assert_eq!(libc::unshare(libc::CLONE_FS), 0);
        libc::umask(0);
    }
    std::fs::set_permissions(ours.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let (mut here, mut there) = (Script::new(ours.path()), Script::new(theirs.path()));
    steps(&mut here);
    steps(&mut there);
    let differences = here.differences(&there);
    assert!(here.steps() > 0);
    ours.unmount();
    check(&image);
    assert!(
        differences.is_empty(),
        "{} of {} steps differ:\n{}",
        differences.len(),
        here.steps(),
        differences.join("\n")
    );
    drop(theirs);
    let again = Mount::new(&scratch, &image, "ro,noatime,subvolid=5");
    let kernel = ImageSet::open(&scratch, vec![image]).mount_read_only().unwrap();
    let (ours, theirs) = (HostTree::new(again.path()), HostTree::new(kernel.path()));
    let report = compare(&ours, &theirs, &CompareOptions::default());
    report.assert_equal(1);
    again.unmount();
}

#[test]
fn names() {
    both("noatime,allow_other", steps::names);
}

#[test]
fn unnamed_files() {
    both("noatime,allow_other", steps::unnamed);
}

#[test]
fn stubs_of_nested_subvolumes_in_a_snapshot() {
    both("noatime,allow_other,subvolid=5", steps::stubs);
}

#[test]
fn renames() {
    both("noatime,allow_other", steps::renames);
}

#[test]
fn attributes() {
    both("noatime,allow_other", steps::attributes);
}

#[test]
fn access_control_lists_and_inheritance() {
    both("noatime,allow_other", steps::access);
}

#[test]
fn extended_attributes() {
    both("noatime,allow_other", steps::xattrs);
}

#[test]
fn data() {
    both("noatime,allow_other", steps::data);
}

#[test]
fn data_without_the_writeback_cache() {
    both("noatime,allow_other,nowriteback_cache", steps::data);
}

#[test]
fn ranges() {
    both("noatime,allow_other", steps::ranges);
}

#[test]
fn times() {
    both("noatime,allow_other", steps::times);
}

#[test]
fn times_without_the_writeback_cache() {
    both("noatime,allow_other,nowriteback_cache", steps::times);
}

#[test]
fn open_files() {
    both("noatime,allow_other", steps::open_files);
}

/// These steps do not depend on the server's part in opens.
#[test]
fn names_and_data_with_opens_by_the_kernel() {
    for steps in [steps::names, steps::unnamed, steps::renames, steps::data, steps::ranges, steps::xattrs] {
        both("noatime,allow_other,opens=kernel", steps);
    }
}

#[test]
fn attributes_and_times_with_opens_by_the_kernel() {
    for steps in [steps::attributes, steps::times, steps::open_files, steps::access] {
        both("noatime,allow_other,opens=kernel", steps);
    }
}
