//! Modes, owners and times.

use crate::script::Script;
use rustix::fs::{AtFlags, CWD, FallocateFlags, OFlags, RenameFlags, Timespec, Timestamps, XattrFlags};
use std::io::Write;
use std::os::unix::fs::FileExt;

pub fn attributes(s: &mut Script) {
    s.write("f", b"content");
    s.mkdir("d", 0o755);
    s.symlink("f", "l");
    for mode in [0o600, 0o4755, 0o2755, 0o2644, 0o6777, 0o1777, 0o7777, 0] {
        s.chmod("f", mode);
        s.stat("f");
        s.chmod("d", mode);
        s.stat("d");
    }
    s.chmod("missing", 0o600);
    s.chmod("l", 0o640);
    s.stat("l");
    s.stat("f");
    s.chmod("d", 0o777);
    s.chmod("f", 0o6755);
    s.chown("f", Some(1000), None);
    s.stat("f");
    s.chmod("f", 0o6745);
    s.chown("f", None, Some(1000));
    s.stat("f");
    s.chmod("f", 0o6755);
    s.chmod("d", 0o6755);
    s.chown("d", Some(1000), Some(1000));
    s.stat("d");
    s.chown("l", Some(7), Some(8));
    s.stat("l");
    s.user(1000, 1000, &[1005], |s| {
        s.chmod("f", 0o2755);
        s.stat("f");
        s.chown("f", Some(1001), None);
        s.chown("f", None, Some(1005));
        s.stat("f");
        s.chmod("f", 0o2755);
        s.stat("f");
        s.chown("f", None, Some(1006));
        s.chown("f", Some(1000), Some(1000));
        s.stat("f");
    });
    s.chown("f", Some(1000), Some(50));
    s.user(1000, 1000, &[], |s| {
        // The caller is not in the group, so the bit is cleared.
        s.chmod("f", 0o2777);
        s.stat("f");
    });
    s.user(1001, 1001, &[], |s| {
        s.chmod("f", 0o777);
        s.chown("f", Some(1001), None);
        s.truncate("d", 0);
    });
    privileges(s);
}

fn privileges(s: &mut Script) {
    // Writes by other users clear privileges; writes by root do not.
    for mode in [0o6777, 0o2767, 0o4766] {
        s.chmod("f", mode);
        s.write("f", b"by root");
        s.stat("f");
        s.chmod("f", mode);
        s.user(1001, 1001, &[], |s| {
            if let Some(file) = s.open("f", OFlags::WRONLY, 0) {
                s.step("write", |_| Ok(std::fs::File::from(file).write(b"x")?.to_string()));
            }
        });
        s.stat("f");
        s.chmod("f", mode);
        s.user(1001, 1001, &[], |s| {
            s.truncate("f", 3);
        });
        s.stat("f");
        s.chmod("f", mode);
        s.user(1001, 1001, &[], |s| {
            if let Some(file) = s.open("f", OFlags::RDWR, 0) {
                s.fallocate(&file, FallocateFlags::empty(), 0, 8192);
                s.fstat("f", &file);
            }
        });
        s.stat("f");
        s.chmod("f", mode);
        s.user(1001, 1001, &[], |s| {
            s.open("f", OFlags::WRONLY | OFlags::TRUNC, 0);
        });
        s.stat("f");
    }
    sizes(s);
    umasks(s);
}

fn sizes(s: &mut Script) {
    s.write("size", &[7; 10_000]);
    for size in [5000, 0, 1, 100_000, 4096, 4095, 1 << 40, 10] {
        s.truncate("size", size);
        s.stat("size");
    }
    s.read("size");
    s.truncate("size", 1 << 62);
    s.truncate("size", 0);
    s.truncate("d", 0);
    s.truncate("missing", 0);
    s.user(1001, 1001, &[], |s| {
        s.truncate("size", 0);
    });
    if let Some(file) = s.open("size", OFlags::RDONLY, 0) {
        s.step("ftruncate of a file open for reading", |_| {
            rustix::fs::ftruncate(&file, 10)?;
            Ok("ok".into())
        });
    }
}

fn umasks(s: &mut Script) {
    for umask in [0o022, 0o077, 0o777] {
        // SAFETY: a system call without pointers. The umask is restored below, and parallel tests
        // set modes themselves.
        unsafe { libc::umask(umask) };
        s.mkdir(&format!("umask-d-{umask:o}"), 0o777);
        s.open(&format!("umask-f-{umask:o}"), OFlags::CREATE | OFlags::WRONLY, 0o666);
        s.mknod(&format!("umask-n-{umask:o}"), rustix::fs::FileType::Fifo, 0o666, 0);
        s.symlink("x", &format!("umask-l-{umask:o}"));
        // SAFETY: as above.
        unsafe { libc::umask(0) };
        for kind in ["d", "f", "n", "l"] {
            s.stat(&format!("umask-{kind}-{umask:o}"));
        }
    }
}

fn at(seconds: i64, nanoseconds: i64) -> Timespec {
    Timespec { tv_sec: seconds, tv_nsec: nanoseconds }
}

fn utimens(s: &mut Script, name: &str, atime: Timespec, mtime: Timespec) {
    s.step(
        format!("utimensat {name} {}.{} {}.{}", atime.tv_sec, atime.tv_nsec, mtime.tv_sec, mtime.tv_nsec),
        |root| {
            let times = Timestamps { last_access: atime, last_modification: mtime };
            rustix::fs::utimensat(CWD, root.join(name), &times, AtFlags::SYMLINK_NOFOLLOW)?;
            Ok("ok".into())
        },
    );
}

pub fn times(s: &mut Script) {
    const OMIT: i64 = rustix::fs::UTIME_OMIT;
    const NOW: i64 = rustix::fs::UTIME_NOW;
    s.mkdir("d", 0o755);
    s.mkdir("e", 0o755);
    s.write("f", b"content");
    s.symlink("f", "l");
    for name in ["f", "d", "l"] {
        for (atime, mtime) in [
            (at(1, 2), at(3, 4)),
            (at(0, 0), at(1_700_000_000, 999_999_999)),
            (at(-1, 0), at(-2, 250_000_000)),
            (at(-2_000_000_000, 1), at(4_000_000_000, 1)),
            (at(100, 5), at(0, OMIT)),
            (at(0, OMIT), at(200, 6)),
        ] {
            s.times(&[name], |s| utimens(s, name, atime, mtime));
            s.times_are(name);
        }
        s.times(&[name], |s| utimens(s, name, at(0, NOW), at(0, OMIT)));
        s.times(&[name], |s| utimens(s, name, at(0, NOW), at(0, NOW)));
        s.times(&[name], |s| utimens(s, name, at(0, OMIT), at(0, OMIT)));
    }
    s.user(1001, 1001, &[], |s| {
        utimens(s, "f", at(1, 1), at(1, 1));
        utimens(s, "f", at(0, NOW), at(0, NOW));
    });
    times_of_changes(s);
}

fn times_of_changes(s: &mut Script) {
    s.times(&["d", "f"], |s| s.write("d/new", b""));
    s.times(&["d", "d/new"], |s| s.write("d/new", b"more"));
    s.times(&["d", "f"], |s| s.link("f", "d/link"));
    s.times(&["d", "f", "d/link"], |s| s.chmod("f", 0o640));
    s.times(&["d", "f"], |s| s.unlink("d/link"));
    s.times(&["d", "e", "d/new"], |s| s.rename("d/new", "e/new", RenameFlags::empty()));
    s.times(&["e", "e/new"], |s| s.rename("e/new", "e/newer", RenameFlags::empty()));
    s.times(&["e", "d", "f"], |s| s.rename("e", "d/e", RenameFlags::empty()));
    s.times(&["d", "f"], |s| s.rename("f", "d/e", RenameFlags::EXCHANGE));
    s.rename("f", "d/e", RenameFlags::EXCHANGE);
    s.times(&["d"], |s| s.mkdir("d/sub", 0o755));
    s.times(&["d"], |s| s.rmdir("d/sub"));
    s.times(&["d"], |s| s.symlink("x", "d/link"));
    s.times(&["d"], |s| s.unlink("d/link"));
    s.times(&["d"], |s| s.mkdir("d", 0o755));
    s.times(&["f"], |s| s.chown("f", Some(1), None));
    s.times(&["f"], |s| s.setxattr("f", "user.a", b"1", XattrFlags::empty()));
    s.times(&["f"], |s| s.removexattr("f", "user.a"));
    s.times(&["f"], |s| s.removexattr("f", "user.a"));
    s.times(&["f"], |s| s.truncate("f", 7));
    s.times(&["f"], |s| s.truncate("f", 3));
    s.times(&["f"], |s| s.truncate("f", 30_000));
    s.times(&["f"], |s| {
        if let Some(file) = s.open("f", OFlags::RDWR, 0) {
            s.step("ftruncate to the same", |_| {
                rustix::fs::ftruncate(&file, 30_000)?;
                Ok("ok".into())
            });
        }
    });
    s.times(&["f"], |s| drop(s.open("f", OFlags::RDWR, 0)));
    s.times(&["f"], |s| drop(s.open("f", OFlags::WRONLY | OFlags::TRUNC, 0)));
    s.times(&["f"], |s| drop(s.open("f", OFlags::WRONLY | OFlags::TRUNC, 0)));
    s.write("f", &[1; 50_000]);
    if let Some(file) = s.open("f", OFlags::RDWR, 0) {
        let empty = FallocateFlags::empty();
        let keep = FallocateFlags::KEEP_SIZE;
        s.times(&["f"], |s| s.fallocate(&file, empty, 0, 100_000));
        s.times(&["f"], |s| s.fallocate(&file, keep, 100_000, 100_000));
        s.times(&["f"], |s| s.fallocate(&file, keep | FallocateFlags::PUNCH_HOLE, 4096, 8192));
        s.times(&["f"], |s| s.fallocate(&file, FallocateFlags::ZERO_RANGE, 0, 8192));
        let file = std::fs::File::from(file);
        s.times(&["f"], |s| {
            s.step("pwrite", |_| Ok(file.write_at(b"x", 10)?.to_string()));
        });
        s.times(&["f"], |s| {
            s.step("pwrite nothing", |_| Ok(file.write_at(b"", 10)?.to_string()));
        });
        s.times(&["f"], |s| {
            s.step("fsync", |_| Ok(format!("{:?}", file.sync_all()?)));
        });
    }
    direct_times(s);
    s.times(&["d", "f"], |s| s.read("f"));
    s.times(&["d", "f"], |s| s.list("d"));
    s.times(&["f"], |s| s.stat("f"));
    utimens(s, "f", at(1000, 1), at(2000, 2));
    s.times_are("f");
    // Written first and then given times, as copying programs do.
    s.write("copied", &[9; 200_000]);
    utimens(s, "copied", at(123_456_789, 1), at(987_654_321, 2));
    s.times_are("copied");
    s.step("fsync of the copy", |root| {
        std::fs::File::open(root.join("copied"))?.sync_all()?;
        Ok("ok".into())
    });
    s.times_are("copied");
}

fn direct_times(s: &mut Script) {
    if let Some(file) = s.open("f", OFlags::RDWR | OFlags::DIRECT, 0) {
        let file = std::fs::File::from(file);
        // Direct I/O requires aligned memory.
        let memory = [3_u8; 3 * 4096];
        let start = memory.as_ptr().align_offset(4096);
        for offset in [0, 1 << 20] {
            s.times(&["f"], |s| {
                s.step("direct pwrite", |_| {
                    Ok(file.write_at(&memory[start..start + 4096], offset)?.to_string())
                });
            });
            s.fstat("f", &file);
        }
    }
}
