//! Trees written through the kernel: repeatable, and accepted by `btrfs check`.

use std::collections::BTreeMap;
use std::path::Path;

use papilio_oracle::source::Kind;
use papilio_oracle::{
    CompareOptions, FileSystemSpec, HostTree, Manifest, ManifestOptions, Need, Scratch, TreeSpec, compare,
    matrix, require,
};

const SMALL: TreeSpec = TreeSpec { files: 200, bytes: 24 << 20, seed: 7, subvolumes: true };

fn can_run() -> bool {
    require(Need::KERNEL_MOUNT).is_some() && require(&[Need::Command("btrfs")]).is_some()
}

#[test]
fn same_seed_writes_same_tree() {
    if !can_run() {
        return;
    }
    let scratch = Scratch::new(256 << 20).unwrap();
    let make = |seed| {
        let images = FileSystemSpec::default().make(&scratch).unwrap();
        let mounted = images.mount().unwrap();
        TreeSpec { seed, ..SMALL }.populate(mounted.path()).unwrap();
        mounted
    };
    let (a, b) = (make(7), make(7));
    let (a, b) = (HostTree::new(a.path()), HostTree::new(b.path()));
    // Background writeback gives the two trees different layouts: compare neither inode numbers nor
    // holes.
    let options = CompareOptions { atime: true, flags: true, ..CompareOptions::COPY };
    compare(&a, &b, &options).assert_equal(1000);
    let other = make(8);
    assert!(compare(&a, &HostTree::new(other.path()), &options).total > 100);
}

#[test]
fn tree_contains_every_feature() {
    if !can_run() {
        return;
    }
    let scratch = Scratch::new(256 << 20).unwrap();
    let images = FileSystemSpec::default().make(&scratch).unwrap();
    let mounted = images.mount().unwrap();
    let done = SMALL.populate(mounted.path()).unwrap();
    mounted.unmount().unwrap();
    assert!(done.entries > 700 && done.bytes >= SMALL.bytes, "{done:?}");

    let mounted = images.mount_read_only().unwrap();
    let options = ManifestOptions { extents: true, ..ManifestOptions::default() };
    let tree = Manifest::read(&HostTree::new(mounted.path()), options).unwrap();
    let mut kinds = BTreeMap::new();
    for entry in tree.entries.values() {
        *kinds.entry(format!("{:?}", entry.metadata.kind)).or_insert(0_u64) += 1;
    }
    assert_eq!(kinds.len(), 7, "{kinds:?}");
    let entry = |path: &str| &tree.entries[Path::new(path)];
    assert_eq!(entry("links/origin").metadata.nlink, 1 + 320 + 36);
    assert_eq!(entry("links/symlink-4095").target.as_ref().unwrap().len(), 4095);
    assert_eq!(entry("links/wide-major").metadata.rdev, (4000, 1_000_000));
    assert_eq!(entry("extents/hole-huge").segments.as_ref().unwrap().len(), 2);
    assert_eq!(entry("extents/prealloc").segments.as_ref().unwrap().len(), 0);
    assert!(entry("extents/holes-many").extents.as_ref().unwrap().len() >= 128);
    assert_eq!(entry("attributes/xattr-many").xattrs.len(), 200);
    assert_eq!(entry("attributes/xattr-colliding").xattrs.len(), 12);
    assert!(
        entry("attributes/acl-directory/inherits")
            .xattrs
            .contains_key(std::ffi::OsStr::new("system.posix_acl_access"))
    );
    assert_eq!(entry("attributes/file-7").metadata.mode, 0o4755);
    let seconds: Vec<_> = tree.entries.values().map(|entry| entry.metadata.mtime.seconds).collect();
    assert!(seconds.iter().any(|&s| s < 0) && seconds.iter().any(|&s| s > 1 << 32));
    let roots = tree.entries.values().filter(|e| e.metadata.kind == Kind::Directory && e.metadata.ino == 256);
    assert_eq!(roots.count(), 9);
    // The folders that stand for subvolumes missing from snapshots.
    assert!(tree.entries.values().filter(|e| e.metadata.ino == 2).count() >= 3);
}

/// Every shape, with a few hundred files each, passes btrfs-progs' check.
#[test]
fn every_preset_passes_btrfs_check() {
    if !can_run() {
        return;
    }
    // The whole matrix takes a minute; a few of each kind exercise the machinery.
    let all = std::env::var_os("PAPILIO_REQUIRE_ALL").is_some();
    let few = ["sha256", "zstd", "raid6", "node-64k", "mixed", "oldest", "quota", "simple-quota"];
    let tree = TreeSpec { files: 60, bytes: 4 << 20, ..SMALL };
    for preset in matrix().into_iter().filter(|preset| all || few.contains(&preset.name.as_str())) {
        let scratch = Scratch::new(512 << 20).unwrap();
        let name = &preset.name;
        let images = preset.spec.make(&scratch).unwrap_or_else(|e| panic!("{name}: {e:#}"));
        let mounted = images.mount().unwrap_or_else(|e| panic!("{name}: {e:#}"));
        tree.populate(mounted.path()).unwrap_or_else(|e| panic!("{name}: {e:#}"));
        mounted.unmount().unwrap_or_else(|e| panic!("{name}: {e:#}"));
        if images.checkable() {
            images.btrfs_check().unwrap_or_else(|e| panic!("{name}: {e:#}"));
        }
    }
}
