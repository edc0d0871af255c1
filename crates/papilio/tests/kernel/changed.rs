//! What the kernel wrote, changed by Papilio, judged by the kernel: each shape of file system and each
//! profile is filled by the kernel, changed here, compared with the kernel's view, checked by both sides,
//! changed by the kernel, and changed here once more.

use crate::bridge::Papilio;
use crate::matrix::{assert_check_clean, compare_with_kernel, tree_spec};
use papilio::{
    Error, ErrorKind, FileSystem, NewInode, NewKind, OpenOptions, PathError, RenameMode, SetAttributes,
};
use papilio_oracle::{CompareOptions, FileSystemSpec, HostTree, ImageSet, Need, Scratch, compare, require};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Those of the matrix that can be opened for writing.
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

fn open(images: &[PathBuf]) -> FileSystem {
    let options =
        images[1..].iter().fold(OpenOptions::new().write(true), |options, path| options.device(path));
    FileSystem::open_with(&images[0], &options).expect("Papilio opens it for writing")
}

/// Passes over what the tree's own oddities forbid: immutable files, read-only snapshots.
fn allowed<T>(result: papilio::Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(Error::Path {
            kind:
                PathError::NotPermitted | PathError::ReadOnly | PathError::TooManyLinks | PathError::NotSupported,
            ..
        }) => None,
        // Of two files only one has checksums, or is aligned.
        Err(Error::Invalid(_)) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Seeded changes of the kernel's files, and new ones beside them.
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
            0 => allowed(file.write_at(&content, random.below(size + 5000))),
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
                allowed(fs.rename(path, renamed, RenameMode::NoReplace))
            }
            6 => allowed(
                inode.set_attributes(&SetAttributes { mode: Some(0o640), ..SetAttributes::default() }),
            ),
            7 => {
                allowed(inode.set_xattr(b"user.papilio", &content[..content.len() / 20], Default::default()))
            }
            _ => {
                let file = new.create(&name, &NewInode::new(NewKind::Regular, 0o644).owner(1, 2)).unwrap();
                allowed(file.open().unwrap().write_at(&content, 0))
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
        // `btrfs check --check-data-csum` of 6.2 complains of sectors that it rebuilds and that the kernel rebuilds
        // as they are: the kernel is the judge, by scrub and with each device lost.
        scrub(name, images);
        without_each_device(name, scratch, images);
    } else if images.checkable() {
        images.btrfs_check().unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// Has the kernel read all copies and parity, repairing nothing.
fn scrub(name: &str, images: &ImageSet) {
    let mounted = images.mount_read_only().unwrap();
    let output = Command::new("btrfs")
        .args(["scrub", "start", "-B", "-d", "-r"])
        .arg(mounted.path())
        .output()
        .expect("btrfs scrub runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{name}: {text}{}", String::from_utf8_lossy(&output.stderr));
    let devices = text.matches("no errors found").count();
    assert_eq!(devices, images.paths().len(), "{name}: {text}");
}

/// With each device lost in turn, the kernel shows what Papilio shows with all of them.
fn without_each_device(name: &str, scratch: &Scratch, images: &ImageSet) {
    // All five in the long run.
    let step = if std::env::var_os("PAPILIO_ORACLE_FILES").is_some() { 1 } else { 3 };
    for lost in (0..images.paths().len()).step_by(step) {
        let mut left = images.paths().to_vec();
        left.remove(lost);
        let degraded = ImageSet::open(scratch, left);
        let mounted = degraded
            .mount_with(&["degraded".to_owned(), "subvolid=5".to_owned()], true)
            .expect("the kernel mounts it degraded");
        let options =
            images.paths()[1..].iter().fold(OpenOptions::new(), |options, path| options.device(path));
        let fs = FileSystem::open_with(&images.paths()[0], &options).unwrap();
        let report = compare(&HostTree::new(mounted.path()), &Papilio(fs), &CompareOptions::SAME_IMAGE);
        assert!(report.is_equal(), "{name} without device {lost}: {report}");
    }
}

/// Changes through the kernel: new files, a removed directory, a snapshot.
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

    let fs = open(images.paths());
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
    let fs = open(images.paths());
    change(&fs, 3);
    assert_eq!(fs.failure(), None);
    fs.close().unwrap();
    judge(name, &scratch, &images);
}

#[test]
fn every_preset_is_changed_as_the_kernel_would_have_it() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let wanted = std::env::var("PAPILIO_ORACLE_PRESETS").unwrap_or_else(|_| DEFAULT_PRESETS.to_owned());
    for name in wanted.split(',').filter(|name| !name.is_empty()) {
        let spec = papilio_oracle::preset(name).unwrap_or_else(|| panic!("no preset '{name}'"));
        run(name, spec, tree_spec().bytes * 4 + (64 << 20));
    }
}

#[test]
fn every_profile_is_changed_as_the_kernel_would_have_it() {
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
fn a_file_system_in_use_is_not_opened_for_writing() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(256 << 20).unwrap();
    let images = FileSystemSpec::default().sized_for(64 << 20).make(&scratch).unwrap();
    let mounted = images.mount().unwrap();
    let error = FileSystem::open_with(&images.paths()[0], &OpenOptions::new().write(true)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Host, "{error}");
    mounted.unmount().unwrap();
    let fs = open(images.paths());
    let error = FileSystem::open_with(&images.paths()[0], &OpenOptions::new().write(true)).unwrap_err();
    assert!(error.to_string().contains("in use"), "{error}");
    drop(fs);
    let error =
        FileSystem::open_with(scratch.path().join("none"), &OpenOptions::new().write(true)).unwrap_err();
    assert!(error.to_string().contains("no such file"), "{error}");
}
