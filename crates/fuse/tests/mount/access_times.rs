//! Access times under each mount option, compared with the kernel's Btrfs.

use crate::script::Script;
use crate::server::{Mount, NEEDS, make_image};
use papilio_oracle::{FileSystemSpec, Need, Scratch, require};
use rustix::fs::{AtFlags, CWD, OFlags, Timespec, Timestamps};
use rustix::mount::{MountFlags, mount_remount};
use std::io::Write;
use std::path::Path;

/// Empties the kernel's cache of a file: the server does not see reads that the cache answers.
fn forget(path: &Path) {
    let file = std::fs::File::open(path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

fn set(s: &mut Script, name: &str, atime: i64, mtime: i64) {
    s.step(format!("set {name}"), |root| {
        let at = |tv_sec| Timespec { tv_sec, tv_nsec: 0 };
        let times = Timestamps { last_access: at(atime), last_modification: at(mtime) };
        rustix::fs::utimensat(CWD, root.join(name), &times, AtFlags::empty())?;
        Ok("ok".into())
    });
}

fn steps(s: &mut Script) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
    s.write("f", b"content");
    s.mkdir("d", 0o755);
    s.write("d/entry", b"");
    s.symlink("f", "l");
    let read = |s: &mut Script| {
        forget(&s.path("f"));
        s.times(&["f"], |s| s.read("f"));
    };
    read(s);
    read(s);
    s.chmod("f", 0o640);
    read(s);
    s.link("f", "g");
    read(s);
    read(s);
    s.write("f", b"changed");
    read(s);
    // First later than the last change and less than a day old, then more than a day old.
    for atime in [now + 1000, now - 90_000] {
        set(s, "f", atime, now - 100_000);
        read(s);
    }
    forget(&s.path("f"));
    s.times(&["f"], |s| {
        if let Some(file) = s.open("f", OFlags::RDONLY | OFlags::NOATIME, 0) {
            s.step("read", |_| Ok(rustix::io::read(&file, &mut [0_u8; 10])?.to_string()));
        }
    });
    // Written data is in the cache. The first read updates the access time all the same.
    s.write("cached", b"content");
    for _ in 0..2 {
        s.times(&["cached"], |s| s.read("cached"));
    }
    s.step("append", |root| {
        std::fs::File::options().append(true).open(root.join("cached"))?.write_all(b"more")?;
        Ok("ok".into())
    });
    for _ in 0..2 {
        s.times(&["cached"], |s| s.read("cached"));
    }
    for _ in 0..2 {
        s.times(&["d"], |s| s.list("d"));
    }
    s.times(&["f"], |s| s.stat("f"));
    s.times(&["l"], |s| s.read_link("l"));
}

fn both(options: &str, flags: MountFlags) {
    let Some(_) = require(&[NEEDS, Need::KERNEL_MOUNT].concat()) else { return };
    let scratch = Scratch::new(1 << 30).unwrap();
    let kernel = FileSystemSpec { device_size: 512 << 20, ..FileSystemSpec::default() };
    let theirs = kernel.make(&scratch).unwrap();
    let theirs = theirs.mount().unwrap();
    mount_remount(theirs.path(), flags, c"").unwrap();
    let image = make_image(&scratch, 512 << 20);
    let ours = Mount::new(&scratch, &image, options);
    let (mut here, mut there) = (Script::new(ours.path()), Script::new(theirs.path()));
    steps(&mut here);
    steps(&mut there);
    let differences = here.differences(&there);
    ours.unmount();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn relatime() {
    both("", MountFlags::RELATIME);
}

#[test]
fn strictatime() {
    both("strictatime", MountFlags::STRICTATIME);
}

#[test]
fn noatime() {
    both("noatime", MountFlags::NOATIME);
}

#[test]
fn nodiratime() {
    both("nodiratime", MountFlags::RELATIME | MountFlags::NODIRATIME);
}
