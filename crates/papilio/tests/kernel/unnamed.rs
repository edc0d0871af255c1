//! Files without a name (`O_TMPFILE`) inherit as the kernel's do.

use crate::images::{assert_clean_for_both, open, writable};
use papilio::{FileSystem, Inode, NewInode, NewKind};
use papilio_oracle::{Need, Scratch, preset, require};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, XattrFlags};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const DEFAULT_ACL: &str = "system.posix_acl_default";

/// An access control list as the system calls take it: `(tag, permissions, id)` of each entry.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// The directories: mode, group, default list.
fn directories() -> Vec<(&'static str, u32, u32, Option<Vec<u8>>)> {
    const NONE: u32 = u32::MAX;
    let acl = list(&[(1, 7, NONE), (2, 6, 1234), (4, 5, NONE), (0x10, 7, NONE), (0x20, 1, NONE)]);
    let plain = list(&[(1, 6, NONE), (4, 4, NONE), (0x20, 0, NONE)]);
    vec![
        ("plain", 0o755, 0, None),
        ("set-group", 0o2775, 77, None),
        ("acl", 0o755, 0, Some(acl.clone())),
        ("set-group-acl", 0o2770, 78, Some(acl)),
        ("simple-acl", 0o700, 0, Some(plain)),
    ]
}

const MODES: [u32; 3] = [0o666, 0o777, 0o2711];

fn kernel_file(directory: &Path, mode: u32) {
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let file = rustix::fs::openat(CWD, directory, flags, Mode::from_raw_mode(mode)).unwrap();
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_nlink, 0);
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let name = directory.join(format!("kernel-{mode:o}"));
    rustix::fs::linkat(CWD, path, CWD, name, AtFlags::SYMLINK_FOLLOW).unwrap();
}

fn papilio_file(directory: &Inode, mode: u32, umask: u32) {
    let new = NewInode { umask, ..NewInode::new(NewKind::Regular, mode) };
    let file = directory.create_unnamed(&new).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    let before = file.metadata().unwrap().btime();
    file.write_all_at(b"content", 0).unwrap();
    directory.hard_link(file.inode(), format!("papilio-{mode:o}").as_bytes()).unwrap();
    let after = file.metadata().unwrap();
    assert_eq!((after.nlink(), after.btime()), (1, before));
}

/// Returns all that a file without a name inherited.
fn seen(fs: &FileSystem, path: &str) -> String {
    let inode = fs.inode(path).unwrap();
    let metadata = inode.metadata();
    let mut xattrs = inode.xattrs().unwrap();
    xattrs.sort();
    format!("{:o} {} {} {} {xattrs:?}", metadata.mode(), metadata.uid(), metadata.gid(), metadata.nlink())
}

#[test]
fn an_unnamed_file_inherits_as_the_kernels() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    let images = preset("default").unwrap().make(&scratch).unwrap();
    let mounted = images.mount().unwrap();
    for (name, mode, group, acl) in directories() {
        let path = mounted.path().join(name);
        std::fs::create_dir(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(0), Some(group)).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        if let Some(acl) = &acl {
            rustix::fs::setxattr(&path, DEFAULT_ACL, acl, XattrFlags::empty()).unwrap();
        }
        MODES.into_iter().for_each(|mode| kernel_file(&path, mode));
    }
    mounted.unmount().unwrap();
    // The process's own umask, which the kernel used. Reading it sets it for a moment.
    let umask = rustix::process::umask(Mode::from_raw_mode(0o022));
    rustix::process::umask(umask);
    let fs = open(images.paths(), &writable()).unwrap();
    for (name, ..) in directories() {
        let directory = fs.inode(format!("/{name}")).unwrap();
        for mode in MODES {
            papilio_file(&directory, mode, umask.as_raw_mode());
            let ours = seen(&fs, &format!("/{name}/papilio-{mode:o}"));
            assert_eq!(ours, seen(&fs, &format!("/{name}/kernel-{mode:o}")), "{name}, {mode:o}");
        }
    }
    fs.close().unwrap();
    assert_clean_for_both(&images, "files without names");
    let mounted = images.mount_read_only().unwrap();
    for (name, ..) in directories() {
        let file = mounted.path().join(name).join("papilio-666");
        assert_eq!(std::fs::read(&file).unwrap(), b"content");
        let statx = rustix::fs::statx(CWD, &file, AtFlags::empty(), rustix::fs::StatxFlags::BTIME).unwrap();
        assert!(statx.stx_btime.tv_sec > 0);
    }
    mounted.unmount().unwrap();
}
