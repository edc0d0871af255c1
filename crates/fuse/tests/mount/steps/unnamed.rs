//! Files without a name (`O_TMPFILE`), and birth times.

use crate::script::Script;
use rustix::fs::{AtFlags, CWD, OFlags, StatxFlags, XattrFlags};
use std::os::fd::{AsFd, AsRawFd};

impl Script {
    /// Gives an open file without a name its first one.
    fn link_open(&mut self, file: impl AsFd, name: &str) {
        self.step(format!("link the open file to {name}"), |root| {
            let from = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
            rustix::fs::linkat(CWD, from, CWD, root.join(name), AtFlags::SYMLINK_FOLLOW)?;
            Ok("ok".to_owned())
        });
    }

    /// Records whether a file has a birth time that is not after its other times.
    fn birth(&mut self, name: &str) {
        self.step(format!("birth time of {name}"), |root| {
            let found = rustix::fs::statx(CWD, root.join(name), AtFlags::empty(), StatxFlags::ALL)?;
            let (birth, change) = (found.stx_btime, found.stx_ctime);
            let ordered = (birth.tv_sec, birth.tv_nsec) <= (change.tv_sec, change.tv_nsec);
            Ok(format!("{:x} {} {ordered}", found.stx_mask & StatxFlags::BTIME.bits(), birth.tv_sec > 0))
        });
    }
}

pub fn unnamed(s: &mut Script) {
    let tmpfile = OFlags::TMPFILE | OFlags::RDWR;
    s.mkdir("d", 0o2775);
    s.chown("d", Some(0), Some(1005));
    // A user, a group and an other entry, and a mask: the default for new files.
    let acl = [
        &2_u32.to_le_bytes()[..],
        &acl_entry(0x01, 7, u32::MAX),
        &acl_entry(0x02, 6, 1001),
        &acl_entry(0x04, 5, u32::MAX),
        &acl_entry(0x10, 7, u32::MAX),
        &acl_entry(0x20, 0, u32::MAX),
    ]
    .concat();
    s.setxattr("d", "system.posix_acl_default", &acl, XattrFlags::empty());
    for directory in ["", "d"] {
        if let Some(file) = s.open(directory, tmpfile, 0o666) {
            s.fstat("unnamed", &file);
            s.step("write the open file", |_| Ok(rustix::io::write(&file, b"content")?.to_string()));
            s.fstat("unnamed", &file);
            s.link_open(&file, "linked");
            s.fstat("linked", &file);
            s.stat("linked");
            s.read("linked");
            s.birth("linked");
            s.listxattr("linked");
            s.link_open(&file, "linked");
            s.link_open(&file, "again");
            s.stat("again");
            s.unlink("linked");
            s.unlink("again");
            s.link_open(&file, "late");
        }
        // Not linked: it disappears.
        drop(s.open(directory, tmpfile, 0o600));
        if let Some(file) = s.open(directory, tmpfile | OFlags::EXCL, 0o600) {
            s.link_open(&file, "exclusive");
        }
    }
    s.write("f", b"f");
    s.birth("f");
    drop(s.open("f", tmpfile, 0o600));
    drop(s.open("missing", tmpfile, 0o600));
    s.mkdir("closed", 0o755);
    s.user(1000, 1000, &[], |s| {
        drop(s.open("closed", tmpfile, 0o600));
        drop(s.open("d", tmpfile, 0o600));
    });
    // Some stay unnamed until the end.
    let files: Vec<_> = (0..50).filter_map(|_| s.open("d", tmpfile, 0o600)).collect();
    for (number, file) in files.iter().enumerate() {
        let written = format!("{number}").into_bytes();
        s.step("write", |_| Ok(rustix::io::write(file, &written)?.to_string()));
        if number % 2 == 0 {
            s.link_open(file, &format!("d/n{number}"));
        }
    }
    s.list("d");
}

/// Encodes an entry of an access control list.
fn acl_entry(tag: u16, permissions: u16, id: u32) -> Vec<u8> {
    [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
}
