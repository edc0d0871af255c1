//! Kernel-made file systems, seen through this crate.

use papilio_oracle::{
    CompareOptions, FileSystemSpec, HostTree, Manifest, ManifestOptions, Need, Scratch, compare, require,
};

#[test]
fn remounted_file_system_is_unchanged() {
    let Some(_) = require(Need::KERNEL_MOUNT) else { return };
    let scratch = Scratch::new(256 << 20).unwrap();
    let images = FileSystemSpec { devices: 2, ..FileSystemSpec::default() }.make(&scratch).unwrap();
    let mounted = images.mount().unwrap();
    std::fs::write(mounted.path().join("file"), b"content").unwrap();
    let point = mounted.path().to_owned();
    let before = Manifest::read(&HostTree::new(&point), ManifestOptions::default()).unwrap();
    mounted.unmount().unwrap();
    assert!(!point.join("file").exists());

    let mounted = images.mount_read_only().unwrap();
    let tree = HostTree::new(mounted.path());
    let after = Manifest::read(&tree, ManifestOptions::default()).unwrap();
    assert_eq!(before.diff(&after, &CompareOptions::default()), []);
    assert_eq!(after.entries[std::path::Path::new("")].metadata.subvolume, Some(5));
    compare(&tree, &tree, &CompareOptions { extents: true, ..CompareOptions::default() }).assert_equal(2);
    drop(mounted);
    images.btrfs_check().unwrap();
}

#[test]
fn mount_ends_with_its_scratch_folder() {
    let Some(_) = require(Need::KERNEL_MOUNT) else { return };
    let scratch = Scratch::new(256 << 20).unwrap();
    let folder = scratch.path().to_owned();
    let images = FileSystemSpec::default().make(&scratch).unwrap();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _held = (scratch, images.mount().unwrap(), images);
        std::panic::resume_unwind(Box::new("on purpose"));
    }));
    assert!(caught.is_err());
    assert!(!folder.exists());
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(folder.to_str().unwrap()));
}
