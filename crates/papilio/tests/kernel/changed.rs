//! File systems that the kernel and Papilio change in turn, for each preset and each profile: the
//! kernel fills one, Papilio changes it, both check and compare it, then each changes it once more.

use crate::bridge::Papilio;
use crate::images::{btrfs, open, writable};
use crate::matrix::{assert_check_clean, compare_with_kernel, tree_spec};
use papilio::{
    Error, ErrorKind, FileSystem, NewInode, NewKind, OpenOptions, PathError, RenameMode, SetAttributes,
};
use papilio_oracle::{
    CompareOptions, FileSystemSpec, HostTree, ImageSet, Need, Scratch, compare, kernel_has, kernel_release,
    require,
};
use std::path::Path;

/// The presets that Papilio opens for writing.
const DEFAULT_PRESETS: &str = "default,sha256,blake2,xxhash,zlib,lzo,zstd,nodatasum,no-inline,dup,node-4k,\
                               node-64k,mixed,without-no-holes,without-extref,v1-cache,oldest,quota";
const PROFILES: [&str; 7] = ["raid0", "raid1", "raid1c3", "raid1c4", "raid10", "raid5", "raid6"];

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit.max(1)
    }
}

/// Ignores refusals for oddities of the test tree: immutable files, read-only snapshots.
fn allowed<T>(result: papilio::Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(Error::Path {
            kind:
                PathError::NotPermitted | PathError::ReadOnly | PathError::TooManyLinks | PathError::NotSupported,
            ..
        }) => None,
        // A reflink between files of which only one has checksums, or at an unaligned offset.
        Err(Error::Invalid(_)) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Makes seeded changes to the kernel's files, and new files; returns how many changes succeed.
fn change(fs: &FileSystem, seed: u64) -> u64 {
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ seed);
    let mut done = 0;
    let new = fs.create_dir(format!("/papilio-{seed}")).unwrap();
    let files: Vec<_> = fs
        .walk("/")
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.inode.metadata().is_file())
        .map(|entry| (entry.path, entry.inode))
        .collect();
    assert!(files.len() > 100, "{} files", files.len());
    for (number, (path, inode)) in files.iter().enumerate() {
        let name = format!("n{number}").into_bytes();
        let size = inode.metadata().size();
        let content: Vec<u8> = (0..random.below(40_000)).map(|n| (n * seed / 5) as u8).collect();
        let file = inode.open().unwrap();
        let changed = match random.below(9) {
            0 => allowed(file.write_all_at(&content, random.below(size + 5000))),
            1 => allowed(file.set_len(random.below(size + 10_000))),
            2 => allowed(file.punch_hole(random.below(size + 1), random.below(30_000) + 1)),
            3 => {
                let copy = new.create(&name, &NewInode::new(NewKind::Regular, 0o600)).unwrap();
                let _ = allowed(copy.set_flags(inode.metadata().flags() & papilio::InodeFlags::NODATACOW));
                allowed(copy.open().unwrap().clone_range(&file, 0, 0, 0))
            }
            4 => {
                drop(file);
                allowed(fs.remove_file(path))
            }
            5 => {
                let directory = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
                let renamed = [&path[..directory], format!("renamed-{seed}-{number}").as_bytes()].concat();
                allowed(fs.rename_with(path, renamed, RenameMode::NoReplace))
            }
            6 => allowed(
                inode.set_attributes(&SetAttributes { mode: Some(0o640), ..SetAttributes::default() }),
            ),
            7 => {
                allowed(inode.set_xattr(b"user.papilio", &content[..content.len() / 20], Default::default()))
            }
            _ => {
                let file = new.create(&name, &NewInode::new(NewKind::Regular, 0o644).owner(1, 2)).unwrap();
                allowed(file.open().unwrap().write_all_at(&content, 0))
            }
        };
        done += u64::from(changed.is_some());
    }
    done
}

fn judge(name: &str, scratch: &Scratch, images: &ImageSet) {
    let report = compare_with_kernel(images);
    assert!(report.is_equal(), "{name}: {report}");
    assert_check_clean(name, images.paths());
    if name == "raid5" || name == "raid6" {
        // `btrfs check --check-data-csum` 6.2 reports sectors that it rebuilds wrongly and the
        // kernel rebuilds correctly. The kernel decides: by scrub, and by mounts without each
        // device.
        scrub(name, images);
        // Kernel 6.1 reads no compressed data of a degraded RAID5, which it wrote itself, either.
        if kernel_release() >= (6, 2) {
            without_each_device(name, scratch, images);
        }
    } else if images.checkable() {
        images.btrfs_check().unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// Has the kernel read all copies and parity, without repair.
fn scrub(name: &str, images: &ImageSet) {
    let mounted = images.mount_read_only().unwrap();
    let text = btrfs(&["scrub", "start", "-B", "-d", "-r", mounted.path().to_str().unwrap()]);
    let devices = text.matches("no errors found").count();
    assert_eq!(devices, images.paths().len(), "{name}: {text}");
}

/// Asserts that the kernel, without each device in turn, shows the same as Papilio with all of
/// them.
fn without_each_device(name: &str, scratch: &Scratch, images: &ImageSet) {
    // All five devices in the long run.
    let step = if std::env::var_os("PAPILIO_ORACLE_FILES").is_some() { 1 } else { 3 };
    for lost in (0..images.paths().len()).step_by(step) {
        let mut left = images.paths().to_vec();
        left.remove(lost);
        let degraded = ImageSet::open(scratch, left);
        let mounted = degraded
            .mount_with(&["degraded".to_owned(), "subvolid=5".to_owned()], true)
            .expect("the kernel mounts the images degraded");
        let fs = open(images.paths(), &OpenOptions::new()).unwrap();
        let report = compare(&HostTree::new(mounted.path()), &Papilio(fs), &CompareOptions::SAME_IMAGE);
        assert!(report.is_equal(), "{name} without device {lost}: {report}");
    }
}

/// Makes changes on a kernel mount: new files, removed files, a snapshot.
fn change_by_kernel(root: &Path) {
    let made = root.join("by-the-kernel");
    std::fs::create_dir(&made).unwrap();
    for number in 0..50u32 {
        std::fs::write(made.join(format!("k{number}")), vec![number as u8; number as usize * 700]).unwrap();
    }
    for entry in std::fs::read_dir(root.join("papilio-1")).unwrap().step_by(2) {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    papilio_oracle::sys::create_snapshot(root, &root.join("kernel-snapshot"), false).unwrap();
}

fn run(name: &str, spec: FileSystemSpec, scratch_bytes: u64) {
    let tree = tree_spec();
    let scratch = Scratch::new(scratch_bytes).unwrap();
    let images = spec.sized_for(tree.bytes * 2).make(&scratch).unwrap();
    let mounted = images.mount().unwrap();
    tree.populate(mounted.path()).unwrap();
    mounted.unmount().unwrap();

    let fs = open(images.paths(), &writable()).unwrap();
    let done = change(&fs, 1);
    fs.sync().unwrap();
    let more = change(&fs, 2);
    fs.close().unwrap();
    println!("{name:20} {done} and {more} changes");
    assert!(done > 60 && more > 60, "{name}: {done} and {more} changes");
    judge(name, &scratch, &images);

    let mounted = images.mount().unwrap();
    change_by_kernel(mounted.path());
    mounted.unmount().unwrap();
    let fs = open(images.paths(), &writable()).unwrap();
    change(&fs, 3);
    assert_eq!(fs.failure(), None);
    fs.close().unwrap();
    judge(name, &scratch, &images);
}

#[test]
fn papilio_changes_every_preset_and_the_kernel_agrees() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let wanted = std::env::var("PAPILIO_ORACLE_PRESETS").unwrap_or_else(|_| DEFAULT_PRESETS.to_owned());
    for name in wanted.split(',').filter(|name| !name.is_empty() && kernel_has(name)) {
        let spec = papilio_oracle::preset(name).unwrap_or_else(|| panic!("no preset '{name}'"));
        run(name, spec, tree_spec().bytes * 4 + (64 << 20));
    }
}

#[test]
fn papilio_changes_every_profile_and_the_kernel_agrees() {
    let needs = [Need::Command("btrfs")];
    if require(Need::KERNEL_MOUNT).is_none() || require(&needs).is_none() {
        return;
    }
    let wanted = std::env::var("PAPILIO_ORACLE_PROFILES").unwrap_or_default();
    for profile in PROFILES {
        if !wanted.is_empty() && !wanted.split(',').any(|name| name == profile) {
            continue;
        }
        let spec = FileSystemSpec {
            devices: 5,
            data_profile: Some(profile.to_owned()),
            metadata_profile: Some(profile.to_owned()),
            ..FileSystemSpec::default()
        };
        run(profile, spec, tree_spec().bytes * 8 + (256 << 20));
    }
}

#[test]
fn a_mounted_file_system_is_not_opened_for_writing() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(256 << 20).unwrap();
    let images = FileSystemSpec::default().sized_for(64 << 20).make(&scratch).unwrap();
    let mounted = images.mount().unwrap();
    let error = FileSystem::open_with(&images.paths()[0], &OpenOptions::new().write(true)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Host, "{error}");
    mounted.unmount().unwrap();
    let fs = open(images.paths(), &writable()).unwrap();
    let error = FileSystem::open_with(&images.paths()[0], &OpenOptions::new().write(true)).unwrap_err();
    assert!(error.to_string().contains("another process is using it"), "{error}");
    drop(fs);
    let error =
        FileSystem::open_with(scratch.path().join("none"), &OpenOptions::new().write(true)).unwrap_err();
    assert!(error.to_string().contains("no such file"), "{error}");
}
