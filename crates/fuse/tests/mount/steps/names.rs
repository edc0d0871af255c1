//! Names: creation, links, renames, removal, and every way in which they can fail.

use crate::script::Script;
use rustix::fs::{FileType, OFlags, RenameFlags};

const REPLACE: RenameFlags = RenameFlags::empty();

pub fn names(s: &mut Script) {
    let long = "n".repeat(255);
    let too_long = "n".repeat(256);
    s.mkdir("d", 0o755);
    s.mkdir("d", 0o700);
    s.mkdir("missing/d", 0o755);
    s.mkdir(&long, 0o755);
    s.mkdir(&too_long, 0o755);
    s.rmdir(&long);
    s.write("f", b"content");
    s.mkdir("f/d", 0o755);
    s.mkdir("f", 0o755);
    s.write("d", b"into a directory");
    s.write("missing/f", b"");
    s.write(&format!("d/{long}"), b"long");
    s.write(&format!("d/{too_long}"), b"too long");
    s.stat(&format!("d/{long}"));
    s.stat(&too_long);
    s.stat("missing");
    s.stat("f/x");
    s.stat("d");
    s.rmdir("d");
    s.rmdir("f");
    s.rmdir("missing");
    s.unlink("d");
    s.unlink("missing");
    s.unlink(&format!("d/{long}"));
    s.rmdir("d/.");
    s.rmdir("d/..");
    s.link("f", "d/link");
    s.link("f", "d/link");
    s.link("d", "directory-link");
    s.link("missing", "x");
    s.link("f", &too_long);
    s.link("f", "missing/x");
    s.stat("f");
    s.stat("d/link");
    s.stat("d");
    s.unlink("f");
    s.stat("d/link");
    s.read("d/link");
    s.symlink("d/link", "to-file");
    s.symlink("nowhere", "to-nothing");
    s.symlink("", "to-empty");
    s.symlink("d", "to-directory");
    s.symlink("to-file", "to-file");
    s.symlink(&"t".repeat(4094), "to-4094");
    s.symlink(&"t".repeat(4095), "to-4095");
    s.symlink("loop", "loop");
    for name in ["to-file", "to-nothing", "to-4094", "to-4095", "loop", "d", "d/link"] {
        s.read_link(name);
        s.stat(name);
        s.blocks(name);
    }
    s.read("to-file");
    s.read("to-nothing");
    s.read("loop");
    s.read("to-directory/link");
    s.link("to-nothing", "link-to-symlink");
    s.stat("link-to-symlink");
    s.unlink("to-directory");
    s.rmdir("to-nothing");
    special_files(s);
}

fn special_files(s: &mut Script) {
    for (name, kind, device) in [
        ("fifo", FileType::Fifo, 0),
        ("socket", FileType::Socket, 0),
        ("character", FileType::CharacterDevice, 0x103),
        ("block", FileType::BlockDevice, 0x0010_0301),
        ("large", FileType::CharacterDevice, rustix::fs::makedev(4095, 1_048_575)),
        ("whiteout", FileType::CharacterDevice, 0),
        ("regular", FileType::RegularFile, 0),
    ] {
        s.mknod(name, kind, 0o640, device);
        s.stat(name);
    }
    s.mknod("fifo", FileType::Fifo, 0o640, 0);
    s.mknod("d/directory", FileType::Directory, 0o755, 0);
    s.list("");
    s.list("d");
    s.list("f");
    s.list("missing");
    for number in 0..700 {
        s.write(&format!("d/entry-{number}"), b"");
    }
    s.list("d");
    s.stat("d");
    for number in (0..700).step_by(2) {
        s.unlink(&format!("d/entry-{number}"));
    }
    s.list("d");
    s.rmdir("d");
    s.open("d/new", OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY, 0o600);
    s.open("d/new", OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY, 0o600);
    s.open("d/new", OFlags::CREATE | OFlags::WRONLY, 0o600);
    s.open("d", OFlags::CREATE | OFlags::WRONLY, 0o600);
    s.open("d", OFlags::WRONLY, 0);
    s.open("d", OFlags::DIRECTORY, 0);
    s.open("d/new", OFlags::DIRECTORY, 0);
    s.open("to-nothing", OFlags::NOFOLLOW, 0);
    s.open("to-nothing", OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY, 0o600);
    s.open("to-nothing", OFlags::CREATE | OFlags::WRONLY, 0o600);
    s.stat("nowhere");
    s.open(&"n".repeat(256), OFlags::CREATE | OFlags::WRONLY, 0o600);
    s.open("fifo", OFlags::WRONLY | OFlags::NONBLOCK, 0);
    s.open("socket", OFlags::RDONLY, 0);
    s.open("missing/new", OFlags::CREATE | OFlags::WRONLY, 0o600);
    s.list("");
}

pub fn renames(s: &mut Script) {
    let no_replace = RenameFlags::NOREPLACE;
    let exchange = RenameFlags::EXCHANGE;
    let whiteout = RenameFlags::WHITEOUT;
    for name in ["a", "b", "full", "full/inner"] {
        s.mkdir(name, 0o755);
    }
    s.write("a/f", b"one");
    s.write("a/g", b"two and more");
    s.rename("a/f", "b/f", REPLACE);
    s.read("b/f");
    s.read("a/f");
    s.rename("a/g", "b/f", no_replace);
    s.rename("a/g", "b/f", REPLACE);
    s.read("b/f");
    s.rename("a/missing", "b/x", REPLACE);
    s.rename("a/missing", "b/f", exchange);
    s.rename("b/f", "a/missing", exchange);
    s.rename("b/f", "missing/x", REPLACE);
    s.rename("b/f", &format!("a/{}", "n".repeat(256)), REPLACE);
    s.rename("b/f", "a", REPLACE);
    s.rename("a", "b/f", REPLACE);
    s.rename("a", "full", REPLACE);
    s.rename("a", "full", no_replace);
    s.rename("a", "a/inside", REPLACE);
    s.rename("full", "full/inner/below", REPLACE);
    s.rename("full/inner", "full", REPLACE);
    s.rename("full", "full/inner", exchange);
    s.rename("a", "b", REPLACE);
    s.mkdir("empty", 0o700);
    s.rename("a", "empty", REPLACE);
    s.stat("empty");
    s.stat("a");
    s.rename("empty", "a", REPLACE);
    s.rename("a", "full", exchange);
    s.list("a");
    s.list("full");
    s.rename("a", "full", exchange);
    s.rename("b/f", "a", exchange);
    s.stat("a");
    s.stat("b/f");
    s.rename("b/f", "a", exchange);
    s.link("b/f", "b/same");
    s.rename("b/f", "b/same", REPLACE);
    s.rename("b/f", "b/same", whiteout);
    s.list("b");
    s.rename("b/same", "b/same", REPLACE);
    s.rename("b/same", "b/same", no_replace);
    s.rename("b/same", "b/moved", whiteout);
    s.stat("b/same");
    s.stat("b/moved");
    s.rename("b/same", "b/moved", whiteout | no_replace);
    s.rename("b/moved", "b/other", whiteout | no_replace);
    s.stat("b/moved");
    s.rename("b/other", "b/moved", whiteout | exchange);
    s.rename("b/other", "b/moved", no_replace | exchange);
    s.rename("a", "a2", whiteout);
    s.stat("a");
    s.rename("b/.", "c", REPLACE);
    s.rename("b", "b/..", REPLACE);
    s.rename("full/inner", "inner", REPLACE);
    s.stat("full");
    s.stat("inner");
    sticky(s);
}

fn sticky(s: &mut Script) {
    let whiteout = RenameFlags::WHITEOUT;
    s.symlink("target", "link");
    s.rename("link", "b/f", REPLACE);
    s.read_link("b/f");
    s.write("last", b"last");
    s.rename("last", "b/f", REPLACE);
    s.read("b/f");
    s.mkdir("sticky", 0o1777);
    s.write("sticky/of-root", b"");
    s.user(1000, 1000, &[], |s| {
        s.rename("sticky/of-root", "sticky/mine", REPLACE);
        s.unlink("sticky/of-root");
        s.write("sticky/own", b"own");
        s.rename("sticky/own", "sticky/own2", REPLACE);
        s.rename("sticky/own2", "sticky/of-root", REPLACE);
        s.rename("sticky/own2", "b/f", REPLACE);
        s.rename("sticky/own2", "sticky/own3", whiteout);
    });
    s.user(1001, 1001, &[], |s| {
        s.unlink("sticky/own2");
        s.rename("sticky/own2", "sticky/x", REPLACE);
    });
    for name in ["", "a2", "b", "sticky", "full"] {
        s.list(name);
        s.stat(name);
    }
}
