//! The empty directory that represents a nested subvolume in a snapshot: every operation on it but
//! the rename of a directory onto it, which docs/mount.md names as a difference.

use crate::script::{Script, done, lstat};
use papilio_ioctl::number::Command;
use papilio_oracle::sys::{create_snapshot, create_subvolume};
use rustix::fs::{AtFlags, CWD, FileType, OFlags, RenameFlags, Timespec, Timestamps, XattrFlags};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

const STUB: &str = "snapshot/inner";

/// Names of extended attributes, each with a value that other directories take.
fn attributes() -> Vec<(&'static str, Vec<u8>)> {
    let list = [(1_u16, 7_u16), (4, 5), (32, 5)].iter().fold(2_u32.to_le_bytes().to_vec(), |list, entry| {
        [list, entry.0.to_le_bytes().to_vec(), entry.1.to_le_bytes().to_vec(), vec![255; 4]].concat()
    });
    vec![
        ("user.a", b"value".to_vec()),
        ("user.", b"value".to_vec()),
        ("trusted.a", b"value".to_vec()),
        ("security.a", b"value".to_vec()),
        ("security.selinux", b"value".to_vec()),
        ("security.capability", b"value".to_vec()),
        ("btrfs.compression", b"zlib".to_vec()),
        ("other.a", b"value".to_vec()),
        ("system.posix_acl_access", list.clone()),
        ("system.posix_acl_default", list),
    ]
}

fn ioctl(file: &File, command: Command, argument: &mut [u8]) -> std::io::Result<String> {
    assert!(argument.len() >= command.size());
    // SAFETY: the argument has at least the bytes that the command's number says, and outlives the
    // call.
    match unsafe { libc::ioctl(file.as_raw_fd(), libc::Ioctl::from(command.0), argument.as_mut_ptr()) } {
        0.. => Ok("ok".to_owned()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// The number, mode, links, owner and size.
fn shown(path: &Path) -> std::io::Result<String> {
    let stat = lstat(path)?;
    let owner = (stat.st_uid, stat.st_gid);
    Ok(format!("{:o} {} {owner:?} {} {}", stat.st_mode, stat.st_nlink, stat.st_size, stat.st_mtime > 5))
}

fn stat(s: &mut Script) {
    s.step("stat of the stub", |root| shown(&root.join(STUB)));
}

fn xattrs(s: &mut Script) {
    s.listxattr(STUB);
    for (name, value) in attributes() {
        s.getxattr(STUB, name);
        for flags in [XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE] {
            s.setxattr(STUB, name, &value, flags);
        }
        s.removexattr(STUB, name);
    }
    s.listxattr(STUB);
}

fn entries(s: &mut Script) {
    let inside = &format!("{STUB}/x");
    s.list(STUB);
    s.open(inside, OFlags::CREATE | OFlags::WRONLY, 0o644);
    s.open(STUB, OFlags::TMPFILE | OFlags::WRONLY, 0o644);
    s.open(STUB, OFlags::RDWR, 0);
    s.mkdir(inside, 0o755);
    for kind in [FileType::RegularFile, FileType::Fifo, FileType::Socket, FileType::CharacterDevice] {
        s.mknod(inside, kind, 0o644, 0x103);
    }
    s.symlink("target", inside);
    s.link("snapshot/file", inside);
    for source in ["snapshot/file", "snapshot/directory"] {
        s.rename(source, inside, RenameFlags::empty());
        s.rename(source, inside, RenameFlags::NOREPLACE);
    }
    s.unlink(inside);
    s.rmdir(inside);
    s.rename(inside, "snapshot/moved", RenameFlags::empty());
    s.unlink(STUB);
    s.list(STUB);
}

fn ioctls(s: &mut Script) {
    let commands = [
        ("GETFLAGS", Command::GET_FLAGS),
        ("SETFLAGS", Command::SET_FLAGS),
        ("FSGETXATTR", Command::GET_ATTRIBUTES),
        ("FSSETXATTR", Command::SET_ATTRIBUTES),
        ("GETVERSION", Command::GET_VERSION),
        ("INO_LOOKUP", Command::INO_LOOKUP),
        ("SUBVOL_CREATE", Command::SUBVOL_CREATE),
        ("SNAP_CREATE", Command::SNAP_CREATE),
        ("SUBVOL_GETFLAGS", Command::SUBVOL_GETFLAGS),
        ("GET_SUBVOL_INFO", Command::GET_SUBVOL_INFO),
        ("FS_INFO", Command::FS_INFO),
        ("GETFSLABEL", Command::GET_LABEL),
        ("TREE_SEARCH", Command::TREE_SEARCH),
        ("SYNC", Command::SYNC),
        ("FITRIM", Command::TRIM),
        ("DEFRAG", Command::DEFRAG),
        ("SCRUB_CANCEL", Command::SCRUB_CANCEL),
    ];
    for (name, command) in commands {
        s.step(name, |root| ioctl(&File::open(root.join(STUB))?, command, &mut vec![0; 16 << 10]));
    }
    s.step("a snapshot of the stub", |root| {
        let (root, stub) = (File::open(root)?, File::open(root.join(STUB))?);
        let mut argument = vec![0; Command::SNAP_CREATE.size()];
        argument[..8].copy_from_slice(&i64::from(stub.as_raw_fd()).to_ne_bytes());
        argument[8..12].copy_from_slice(b"copy");
        ioctl(&root, Command::SNAP_CREATE, &mut argument)
    });
    s.step("a deletion of the stub as a subvolume", |root| {
        let mut argument = vec![0; Command::SNAP_DESTROY.size()];
        argument[8..13].copy_from_slice(b"inner");
        ioctl(&File::open(root.join("snapshot"))?, Command::SNAP_DESTROY, &mut argument)
    });
}

pub fn stubs(s: &mut Script) {
    s.step("subvolumes", |root| {
        create_subvolume(&root.join("origin"))?;
        for name in ["inner", "third"] {
            create_subvolume(&root.join("origin").join(name))?;
        }
        create_snapshot(&root.join("origin"), &root.join("snapshot"), false)?;
        Ok("ok".to_owned())
    });
    s.write("snapshot/file", b"content");
    s.mkdir("snapshot/directory", 0o755);
    stat(s);
    xattrs(s);
    s.chmod(STUB, 0o700);
    stat(s);
    s.chown(STUB, Some(5), Some(6));
    stat(s);
    s.step("utimes", |root| {
        let five = Timespec { tv_sec: 5, tv_nsec: 0 };
        let times = Timestamps { last_access: five, last_modification: five };
        done(rustix::fs::utimensat(CWD, root.join(STUB), &times, AtFlags::empty()))
    });
    stat(s);
    s.truncate(STUB, 0);
    entries(s);
    s.user(1000, 1000, &[], |s| {
        s.list(STUB);
        s.getxattr(STUB, "user.a");
        s.setxattr(STUB, "user.a", b"", XattrFlags::empty());
        s.mkdir(&format!("{STUB}/x"), 0o755);
        s.chmod(STUB, 0o777);
        s.rmdir(STUB);
    });
    ioctls(s);
    s.step("statfs", |root| Ok(rustix::fs::statfs(root.join(STUB))?.f_bsize.to_string()));
    s.step("fsync", |root| done(rustix::fs::fsync(File::open(root.join(STUB))?)));
    s.step("access", |root| {
        done(rustix::fs::accessat(CWD, root.join(STUB), rustix::fs::Access::WRITE_OK, AtFlags::empty()))
    });
    stat(s);
    // The stub itself.
    s.rename(STUB, "snapshot/moved", RenameFlags::empty());
    s.rename(STUB, "snapshot/moved", RenameFlags::NOREPLACE);
    s.rename(STUB, "snapshot/directory", RenameFlags::empty());
    s.rename(STUB, "snapshot/directory/moved", RenameFlags::empty());
    s.rename("snapshot/file", STUB, RenameFlags::empty());
    s.rmdir(STUB);
    s.rmdir(STUB);
    s.list("snapshot");
    s.rmdir("snapshot/third");
    s.list("origin");
    // The kernel shows other inode numbers across subvolumes, so none is left.
    for name in ["snapshot/inner", "snapshot/file"] {
        s.unlink(name);
    }
    for name in ["snapshot/directory", "snapshot", "origin/inner", "origin/third", "origin"] {
        s.rmdir(name);
    }
}
