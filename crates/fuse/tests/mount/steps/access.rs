//! Permissions: modes, groups, access control lists. Also extended attributes.

use crate::script::Script;
use rustix::fs::{OFlags, XattrFlags};

const ANY: XattrFlags = XattrFlags::empty();
const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

const USER_OBJ: u16 = 1;
const USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHER: u16 = 32;

/// Encodes an access control list for the kernel.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

const NONE: u32 = u32::MAX;

pub fn access(s: &mut Script) {
    s.mkdir("set-gid", 0o2775);
    s.chown("set-gid", Some(0), Some(77));
    s.chmod("set-gid", 0o2777);
    s.stat("set-gid");
    s.mkdir("set-gid/d", 0o755);
    s.stat("set-gid/d");
    s.user(1000, 1000, &[], |s| {
        s.open("set-gid/f", OFlags::CREATE | OFlags::WRONLY, 0o2775);
        s.stat("set-gid/f");
        s.mkdir("set-gid/mine", 0o2755);
        s.stat("set-gid/mine");
        s.mknod("set-gid/fifo", rustix::fs::FileType::Fifo, 0o2775, 0);
        s.stat("set-gid/fifo");
        s.mknod("set-gid/device", rustix::fs::FileType::CharacterDevice, 0o666, 0x103);
        s.symlink("x", "set-gid/link");
        s.stat("set-gid/link");
    });
    s.user(1000, 1000, &[77], |s| {
        s.open("set-gid/member", OFlags::CREATE | OFlags::WRONLY, 0o2775);
        s.stat("set-gid/member");
    });
    s.mkdir("closed", 0o700);
    s.write("closed/f", b"secret");
    s.write("readable", b"for all");
    s.chmod("readable", 0o644);
    s.write("writable", b"for all");
    s.chmod("writable", 0o622);
    s.user(1000, 1000, &[], |s| {
        s.read("closed/f");
        s.stat("closed/f");
        s.list("closed");
        s.write("closed/new", b"");
        s.write("new", b"");
        s.read("readable");
        s.open("readable", OFlags::WRONLY, 0);
        s.open("readable", OFlags::RDONLY | OFlags::NOATIME, 0);
        s.read("writable");
        s.open("writable", OFlags::WRONLY, 0);
        s.unlink("readable");
        s.mkdir("d", 0o755);
        s.setxattr("readable", "user.x", b"1", ANY);
        s.setxattr("writable", "user.x", b"1", ANY);
        s.setxattr("writable", "trusted.x", b"1", ANY);
        s.getxattr("writable", "user.x");
        s.link("readable", "mine");
    });
    lists(s);
    default_lists(s);
}

fn lists(s: &mut Script) {
    s.write("f", b"content");
    s.chmod("f", 0o640);
    let for_user = list(&[
        (USER_OBJ, 6, NONE),
        (USER, 6, 1000),
        (GROUP_OBJ, 4, NONE),
        (GROUP, 7, 2000),
        (MASK, 6, NONE),
        (OTHER, 0, NONE),
    ]);
    s.setxattr("f", ACCESS, &for_user, ANY);
    s.getxattr("f", ACCESS);
    s.listxattr("f");
    s.stat("f");
    let tries = |s: &mut Script| {
        s.open("f", OFlags::RDONLY, 0);
        s.open("f", OFlags::WRONLY, 0);
        s.setxattr("f", ACCESS, b"", ANY);
    };
    s.user(1000, 1000, &[], tries);
    s.user(1001, 1001, &[], tries);
    s.user(1001, 1001, &[2000], tries);
    s.user(1001, 2000, &[], tries);
    s.chmod("f", 0o600);
    s.stat("f");
    s.getxattr("f", ACCESS);
    s.user(1000, 1000, &[], tries);
    s.chmod("f", 0o644);
    s.getxattr("f", ACCESS);
    s.user(1000, 1000, &[], tries);
    s.removexattr("f", ACCESS);
    s.stat("f");
    s.getxattr("f", ACCESS);
    s.removexattr("f", ACCESS);
    s.user(1000, 1000, &[], tries);
    // A list that expresses no more than a mode.
    s.setxattr("f", ACCESS, &list(&[(USER_OBJ, 7, NONE), (GROUP_OBJ, 5, NONE), (OTHER, 1, NONE)]), ANY);
    s.stat("f");
    s.getxattr("f", ACCESS);
    // Malformed lists.
    s.setxattr("f", ACCESS, b"x", ANY);
    s.setxattr("f", ACCESS, &list(&[(USER_OBJ, 7, NONE)]), ANY);
    s.setxattr("f", ACCESS, &list(&[(USER_OBJ, 9, NONE), (GROUP_OBJ, 5, NONE), (OTHER, 1, NONE)]), ANY);
    s.setxattr("f", DEFAULT, &for_user, ANY);
    s.stat("f");
    // Setting a list clears the set-group-id bit if the caller is not in the group.
    s.chown("f", Some(1000), Some(3000));
    for groups in [&[][..], &[3000]] {
        s.chmod("f", 0o2755);
        s.user(1000, 1000, groups, |s| {
            s.setxattr("f", ACCESS, &for_user, ANY);
        });
        s.stat("f");
    }
    s.symlink("f", "l");
    s.setxattr("l", ACCESS, &for_user, ANY);
}

fn default_lists(s: &mut Script) {
    s.mkdir("inherits", 0o755);
    let default = list(&[
        (USER_OBJ, 7, NONE),
        (USER, 7, 1000),
        (GROUP_OBJ, 5, NONE),
        (MASK, 7, NONE),
        (OTHER, 0, NONE),
    ]);
    s.setxattr("inherits", DEFAULT, &default, ANY);
    s.stat("inherits");
    for umask in [0, 0o077] {
        // SAFETY: a system call without pointers; the umask is restored below.
        unsafe { libc::umask(umask) };
        let file = format!("inherits/f-{umask}");
        let directory = format!("inherits/d-{umask}");
        s.open(&file, OFlags::CREATE | OFlags::WRONLY, 0o666);
        s.mkdir(&directory, 0o777);
        s.mknod(&format!("inherits/n-{umask}"), rustix::fs::FileType::Fifo, 0o640, 0);
        s.symlink("x", &format!("inherits/l-{umask}"));
        // SAFETY: as above.
        unsafe { libc::umask(0) };
        for name in [file, directory, format!("inherits/n-{umask}")] {
            s.stat(&name);
            s.getxattr(&name, ACCESS);
            s.getxattr(&name, DEFAULT);
        }
    }
    s.user(1000, 1000, &[], |s| {
        s.open("inherits/f-0", OFlags::WRONLY, 0);
        s.open("inherits/d-0/by-list", OFlags::CREATE | OFlags::WRONLY, 0o666);
        s.stat("inherits/d-0/by-list");
    });
    s.removexattr("inherits", DEFAULT);
    s.mkdir("inherits/none", 0o777);
    s.getxattr("inherits/none", ACCESS);
    s.stat("inherits");
}

pub fn xattrs(s: &mut Script) {
    s.write("f", b"");
    s.mkdir("d", 0o755);
    s.symlink("f", "l");
    s.mknod("fifo", rustix::fs::FileType::Fifo, 0o644, 0);
    for name in ["f", "d", "l", "fifo"] {
        for attribute in [
            "user.a",
            "trusted.a",
            "security.a",
            "user.",
            "trusted.",
            "security.",
            "other.a",
            "a",
            "btrfs.a",
            "btrfs.compression",
            "system.a",
        ] {
            s.setxattr(name, attribute, b"value", ANY);
            s.getxattr(name, attribute);
        }
        s.listxattr(name);
        s.stat(name);
    }
    for value in ["zlib", "zstd", "lzo", "zstd:3", "none", "no", ""] {
        s.setxattr("d", "btrfs.compression", value.as_bytes(), ANY);
        s.getxattr("d", "btrfs.compression");
        s.setxattr("f", "btrfs.compression", value.as_bytes(), ANY);
        s.getxattr("f", "btrfs.compression");
        s.write(&format!("d/inherits-{value}"), &[1; 40_000]);
        s.listxattr(&format!("d/inherits-{value}"));
    }
    s.removexattr("d", "btrfs.compression");
    values(s);
}

fn values(s: &mut Script) {
    s.setxattr("f", "user.b", b"", ANY);
    s.getxattr("f", "user.b");
    s.setxattr("f", "user.b", b"new", XattrFlags::CREATE);
    s.setxattr("f", "user.c", b"new", XattrFlags::REPLACE);
    s.setxattr("f", "user.b", b"replaced", XattrFlags::REPLACE);
    s.setxattr("f", "user.c", b"created", XattrFlags::CREATE);
    s.setxattr("f", "user.c", b"both", XattrFlags::CREATE | XattrFlags::REPLACE);
    s.getxattr("f", "user.b");
    s.getxattr("f", "user.c");
    s.removexattr("f", "user.c");
    s.removexattr("f", "user.c");
    s.removexattr("f", "other.c");
    s.getxattr("f", "user.c");
    s.setxattr("f", &format!("user.{}", "n".repeat(250)), b"long name", ANY);
    s.setxattr("f", &format!("user.{}", "n".repeat(251)), b"too long", ANY);
    for size in [100, 3000, 16_000, 16_200, 20_000, 65_536, 65_537] {
        s.removexattr("f", "user.large");
        s.setxattr("f", "user.large", &vec![b'v'; size], ANY);
        s.getxattr("f", "user.large");
    }
    for number in 0..40 {
        s.setxattr("d", &format!("user.many-{number}"), &[b'x'; 300], ANY);
    }
    s.listxattr("d");
    s.step("size of a value", |root| Ok(rustix::fs::getxattr_query(root.join("f"), "user.b")?.to_string()));
    s.step("size of the list", |root| Ok(rustix::fs::listxattr_query(root.join("d"))?.to_string()));
    s.step("a value in too small a buffer", |root| {
        let mut buffer = [0_u8; 3];
        Ok(rustix::fs::getxattr(root.join("f"), "user.b", &mut buffer[..])?.to_string())
    });
    s.step("a list in too small a buffer", |root| {
        let mut buffer = [0_u8; 3];
        Ok(rustix::fs::listxattr(root.join("d"), &mut buffer[..])?.to_string())
    });
    s.chmod("f", 0o644);
    s.user(1000, 1000, &[], |s| {
        s.getxattr("f", "user.b");
        s.getxattr("f", "trusted.a");
        s.setxattr("f", "user.b", b"mine", ANY);
        s.setxattr("f", "security.b", b"mine", ANY);
        s.removexattr("f", "user.b");
    });
    s.getxattr("missing", "user.b");
    // A write clears capabilities, also one by root.
    let capability = [1, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    s.setxattr("f", "security.capability", &capability, ANY);
    s.getxattr("f", "security.capability");
    s.write("f", b"written");
    s.getxattr("f", "security.capability");
    s.setxattr("f", "security.capability", &capability, ANY);
    s.chown("f", Some(5), None);
    s.getxattr("f", "security.capability");
}
