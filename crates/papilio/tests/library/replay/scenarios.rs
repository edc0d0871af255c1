//! Short histories that each end in an fsync, most of them named after a bug that a log once had.
//!
//! Each scenario has its own folder. A commit follows its first half; its second half ends in an
//! fsync, and then the power fails.

use super::judge::judge_all;
use super::power_cut::Machine;
use super::steps::{At, bytes};
use papilio_oracle::{Need, require};
use rustix::fs::{FallocateFlags, FileType};

struct Scenario {
    name: &'static str,
    before: fn(&At),
    act: fn(&At),
    /// Whether the kernel writes a log; otherwise its fsync may be a commit.
    logged: bool,
}

const fn logged(name: &'static str, before: fn(&At), act: fn(&At)) -> Scenario {
    Scenario { name, before, act, logged: true }
}

/// A scenario whose fsync may be a commit.
const fn either(name: &'static str, before: fn(&At), act: fn(&At)) -> Scenario {
    Scenario { name, before, act, logged: false }
}

const SCENARIOS: &[Scenario] = &[
    // Data and sizes.
    logged(
        "new file",
        |_| {},
        |at| {
            at.fill("new", 0, 100_000);
            at.fsync("new");
        },
    ),
    logged(
        "append",
        |at| at.fill("f", 0, 5000),
        |at| {
            at.fill("f", 5000, 9000);
            at.fsync("f");
        },
    ),
    logged(
        "overwrite at several offsets",
        |at| at.fill("f", 0, 400_000),
        |at| {
            at.fill("f", 8192, 4096);
            at.fill("f", 100_000, 70_000);
            at.fill("f", 395_000, 5000);
            at.fsync("f");
        },
    ),
    logged(
        "fsync and fdatasync in turn",
        |at| at.fill("f", 0, 65_536),
        |at| {
            at.fill("f", 0, 4096);
            at.fsync("f");
            at.fill("f", 8192, 4096);
            at.fdatasync("f");
            at.fill("f", 4096, 12_288);
            at.fill("g", 0, 20_000);
            at.fdatasync("g");
            at.fill("f", 70_000, 1);
            at.fdatasync("f");
        },
    ),
    logged(
        "shrink",
        |at| at.fill("f", 0, 200_000),
        |at| {
            at.truncate("f", 50_001);
            at.fsync("f");
        },
    ),
    logged(
        "shrink to nothing",
        |at| at.fill("f", 0, 200_000),
        |at| {
            at.truncate("f", 0);
            at.fsync("f");
        },
    ),
    logged(
        "grow",
        |at| at.fill("f", 0, 5000),
        |at| {
            at.truncate("f", 300_000);
            at.fsync("f");
        },
    ),
    logged(
        "shrink, grow and write past the old end",
        |at| at.fill("f", 0, 200_000),
        |at| {
            at.truncate("f", 30_000);
            at.truncate("f", 500_000);
            at.fill("f", 450_000, 3000);
            at.fsync("f");
        },
    ),
    logged(
        "written twice, logged once more after shrinking",
        |at| at.fill("f", 0, 4096),
        |at| {
            at.fill("f", 0, 131_072);
            at.fsync("f");
            at.truncate("f", 12_288);
            at.fsync("f");
            at.fill("f", 40_960, 4096);
            at.fsync("f");
        },
    ),
    logged(
        "sparse",
        |_| {},
        |at| {
            at.fill("f", 1 << 20, 4096);
            at.fill("f", 3 << 20, 10_000);
            at.truncate("f", 9 << 20);
            at.fsync("f");
        },
    ),
    logged(
        "holes",
        |at| at.fill("f", 0, 500_000),
        |at| {
            at.punch("f", 100_000, 200_000);
            at.punch("f", 0, 4096);
            at.punch("f", 490_000, 100_000);
            at.fsync("f");
        },
    ),
    logged(
        "a hole in a logged extent",
        |at| at.fill("f", 0, 262_144),
        |at| {
            at.fill("f", 65_536, 65_536);
            at.fsync("f");
            at.punch("f", 32_768, 65_536);
            at.fsync("f");
        },
    ),
    logged(
        "preallocated past the end",
        |at| at.fill("f", 0, 10_000),
        |at| {
            at.allocate("f", FallocateFlags::KEEP_SIZE, 16_384, 500_000);
            at.fsync("f");
        },
    ),
    logged(
        "preallocated and half written",
        |at| {
            at.fill("f", 0, 3000);
            at.allocate("f", FallocateFlags::empty(), 0, 400_000);
        },
        |at| {
            at.fill("f", 100_000, 50_000);
            at.fsync("f");
        },
    ),
    logged(
        "preallocation truncated",
        |at| {
            at.fill("f", 0, 30_000);
            at.allocate("f", FallocateFlags::KEEP_SIZE, 32_768, 1 << 20);
        },
        |at| {
            at.truncate("f", 30_000);
            at.allocate("f", FallocateFlags::KEEP_SIZE, 65_536, 8192);
            at.fsync("f");
        },
    ),
    logged(
        "preallocation past a logged end",
        |at| {
            at.fill("f", 0, 30_000);
            at.allocate("f", FallocateFlags::KEEP_SIZE, 32_768, 1 << 20);
        },
        |at| {
            at.fill("f", 0, 4096);
            at.fsync("f");
        },
    ),
    logged(
        "zeroed range",
        |at| at.fill("f", 0, 200_000),
        |at| {
            at.allocate("f", FallocateFlags::ZERO_RANGE, 10_000, 100_000);
            at.fsync("f");
        },
    ),
    logged(
        "inline: new, grown, shrunk, grown out",
        |at| {
            at.fill("grown", 0, 100);
            at.fill("shrunk", 0, 1500);
            at.fill("out", 0, 900);
            at.fill("in", 0, 90_000);
        },
        |at| {
            at.fill("new", 0, 77);
            at.fsync("new");
            at.fill("grown", 100, 1000);
            at.fsync("grown");
            at.truncate("shrunk", 33);
            at.fsync("shrunk");
            at.fill("out", 900, 30_000);
            at.fsync("out");
            at.truncate("in", 0);
            at.fill("in", 0, 50);
            at.fsync("in");
        },
    ),
    logged(
        "written through a mapping",
        |at| at.fill("f", 0, 100_000),
        |at| {
            at.write_mapped("f", 5000, &bytes(7, 30_000));
            at.fsync("f");
        },
    ),
    logged(
        "no copy-on-write",
        |at| {
            at.no_cow("f");
            at.fill("f", 0, 300_000);
        },
        |at| {
            at.fill("f", 4096, 50_000);
            at.fill("f", 290_000, 50_000);
            at.fsync("f");
        },
    ),
    logged(
        "cloned, then fsynced",
        |at| at.fill("f", 0, 200_000),
        |at| {
            at.clone_range("f", 0, 0, "copy", 0);
            at.fsync("copy");
            at.clone_range("f", 65_536, 65_536, "f", 1 << 20);
            at.fsync("f");
        },
    ),
    logged(
        "cloned from a new file",
        |at| at.fill("f", 0, 4096),
        |at| {
            at.fill("f", 0, 131_072);
            at.fsync("f");
            at.clone_range("f", 8192, 32_768, "copy", 4096);
            at.fsync("copy");
            at.fill("f", 8192, 8192);
            at.fsync("f");
        },
    ),
    logged(
        "clone punched in the middle",
        |at| {
            at.fill("f", 0, 131_072);
            at.clone_range("f", 0, 0, "copy", 0);
        },
        |at| {
            at.fill("copy", 40_000, 20_000);
            at.punch("copy", 0, 8192);
            at.fsync("copy");
        },
    ),
    logged(
        "compressed",
        |at| {
            for name in ["zlib", "lzo", "zstd"] {
                at.write(name, 0, b"");
                at.set_xattr(name, "btrfs.compression", name.as_bytes());
                at.write(name, 0, &b"the same again and again ".repeat(12_000));
            }
        },
        |at| {
            for name in ["zlib", "lzo", "zstd"] {
                at.write(name, 70_000, &b"not quite the same ".repeat(9000));
                at.punch(name, 8192, 20_000);
                at.clone_range(name, 131_072, 65_536, &format!("{name}-copy"), 4096);
                at.fsync(name);
                at.fsync(&format!("{name}-copy"));
            }
        },
    ),
    // Attributes.
    logged(
        "mode, owner, attributes",
        |at| {
            at.fill("f", 0, 5000);
            for name in ["user.a", "user.b", "user.c"] {
                at.set_xattr("f", name, b"before");
            }
        },
        |at| {
            at.chmod("f", 0o4751);
            at.chown("f", 17);
            at.remove_xattr("f", "user.b");
            at.set_xattr("f", "user.c", &bytes(3, 3000));
            at.set_xattr("f", "user.d", b"");
            at.fsync("f");
        },
    ),
    logged(
        "all attributes deleted",
        |at| {
            at.fill("f", 0, 5000);
            at.set_xattr("f", "user.a", &bytes(5, 2000));
            at.set_xattr("f", "user.b", b"b");
        },
        |at| {
            at.remove_xattr("f", "user.a");
            at.remove_xattr("f", "user.b");
            at.fsync("f");
        },
    ),
    logged(
        "attributes of a directory",
        |at| {
            at.mkdir("d");
            at.set_xattr("d", "user.a", b"a");
            at.set_xattr("d", "user.b", b"b");
        },
        |at| {
            at.remove_xattr("d", "user.a");
            at.set_xattr("d", "user.c", b"c");
            at.chmod("d", 0o711);
            at.fsync("d");
        },
    ),
    logged(
        "an attribute deleted from a file that is then linked",
        |at| {
            at.fill("f", 0, 5000);
            at.set_xattr("f", "user.a", b"a");
        },
        |at| {
            at.remove_xattr("f", "user.a");
            at.link("f", "g");
            at.fill("other", 0, 10);
            at.fsync(".");
        },
    ),
    // Names.
    logged(
        "renamed",
        |at| at.fill("f", 0, 5000),
        |at| {
            at.rename("f", "g");
            at.fsync("g");
        },
    ),
    logged(
        "renamed after an fsync",
        |at| at.fill("f", 0, 5000),
        |at| {
            at.fill("f", 0, 100);
            at.fsync("f");
            at.rename("f", "g");
            at.fill("other", 0, 1000);
            at.fsync("other");
        },
    ),
    logged(
        "renamed over another",
        |at| {
            at.fill("f", 0, 5000);
            at.fill("target", 0, 70_000);
        },
        |at| {
            at.fill("f", 3000, 10_000);
            at.rename("f", "target");
            at.fsync("target");
        },
    ),
    either(
        "exchanged",
        |at| {
            at.fill("a", 0, 5000);
            at.fill("b", 0, 70_000);
        },
        |at| {
            at.exchange("a", "b");
            at.fsync("a");
        },
    ),
    either(
        "exchanged between directories",
        |at| {
            at.mkdir("d");
            at.mkdir("e");
            at.fill("d/a", 0, 5000);
            at.fill("e/b", 0, 70_000);
            at.mkdir("d/sub");
            at.fill("d/sub/x", 0, 10);
        },
        |at| {
            at.exchange("d/a", "e/b");
            at.exchange("d/sub", "e/b");
            at.fsync("d");
            at.fsync("e");
        },
    ),
    either(
        "renamed with a whiteout",
        |at| at.fill("a", 0, 5000),
        |at| {
            at.whiteout("a", "b");
            at.fsync("b");
        },
    ),
    either(
        "removed and recreated",
        |at| at.fill("f", 0, 50_000),
        |at| {
            at.remove("f");
            at.fill("f", 0, 3000);
            at.fsync("f");
        },
    ),
    either(
        "renamed and recreated",
        |at| at.fill("f", 0, 50_000),
        |at| {
            at.rename("f", "old");
            at.fill("f", 0, 3000);
            at.fsync("f");
        },
    ),
    either(
        "a directory renamed and recreated",
        |at| {
            at.mkdir("d");
            at.fill("d/x", 0, 10_000);
        },
        |at| {
            at.rename("d", "old");
            at.mkdir("d");
            at.fill("d/x", 0, 3000);
            at.fsync("d/x");
            at.fsync("d");
        },
    ),
    either(
        "names rotated",
        |at| {
            for (name, size) in [("a", 1000), ("b", 20_000), ("c", 300)] {
                at.fill(name, 0, size);
            }
        },
        |at| {
            at.rename("a", "t");
            at.rename("b", "a");
            at.rename("c", "b");
            at.rename("t", "c");
            at.fsync("a");
        },
    ),
    either(
        "a chain of renames",
        |at| {
            for number in 0..6 {
                at.fill(&format!("n{number}"), 0, 1000 + number);
            }
        },
        |at| {
            at.remove("n5");
            for number in (0..5).rev() {
                at.rename(&format!("n{number}"), &format!("n{}", number + 1));
            }
            at.fill("n0", 0, 10);
            at.fsync("n0");
        },
    ),
    logged(
        "one more link",
        |at| at.fill("f", 0, 5000),
        |at| {
            at.link("f", "g");
            at.fsync("f");
        },
    ),
    logged(
        "a link in another directory",
        |at| {
            at.mkdir("d");
            at.fill("f", 0, 5000);
        },
        |at| {
            at.link("f", "d/g");
            at.fsync("f");
        },
    ),
    either(
        "one link less",
        |at| {
            at.fill("f", 0, 5000);
            at.link("f", "g");
            at.link("f", "h");
        },
        |at| {
            at.remove("g");
            at.fill("f", 0, 10);
            at.fsync("f");
        },
    ),
    either(
        "a link moved",
        |at| {
            at.mkdir("d");
            at.fill("f", 0, 5000);
            at.link("f", "g");
        },
        |at| {
            at.rename("g", "d/h");
            at.fsync("f");
        },
    ),
    either(
        "a link's name given to another file",
        |at| {
            at.fill("f", 0, 5000);
            at.link("f", "g");
            at.fill("other", 0, 9000);
        },
        |at| {
            at.remove("g");
            at.link("other", "g");
            at.fsync("other");
        },
    ),
    either(
        "more names than fit into an item",
        |at| {
            at.fill("f", 0, 5000);
            for number in 0..60 {
                at.link("f", &format!("{number:0>200}"));
            }
        },
        |at| {
            for number in 60..160 {
                at.link("f", &format!("{number:0>200}"));
            }
            at.fill("f", 0, 10);
            at.fsync("f");
        },
    ),
    either(
        "fewer names again than fit into an item",
        |at| {
            at.fill("f", 0, 5000);
            for number in 0..160 {
                at.link("f", &format!("{number:0>200}"));
            }
        },
        |at| {
            for number in (0..160).step_by(3) {
                at.remove(&format!("{number:0>200}"));
            }
            at.fsync("f");
        },
    ),
    logged(
        "an unnamed file linked",
        |_| {},
        |at| {
            let file = at.tmpfile("named", &bytes(9, 50_000));
            file.sync_all().unwrap();
        },
    ),
    either(
        "fsynced without a name, then linked",
        |at| at.fill("f", 0, 10),
        |at| {
            let file = at.tmpfile("named", &bytes(9, 50_000));
            file.sync_all().unwrap();
            at.link("named", "again");
            at.remove("named");
            file.sync_all().unwrap();
        },
    ),
    either(
        "removed while open",
        |at| at.fill("f", 0, 50_000),
        |at| {
            let file = at.open("f");
            at.fill("f", 0, 4096);
            at.remove("f");
            file.sync_all().unwrap();
            at.fill("other", 0, 3000);
            at.fsync("other");
        },
    ),
    either(
        "new, removed while open, then another new file",
        |_| {},
        |at| {
            at.fill("f", 0, 50_000);
            let file = at.open("f");
            at.remove("f");
            file.sync_all().unwrap();
            at.fill("other", 0, 3000);
            at.fsync("other");
        },
    ),
    either(
        "logged, then removed while open, and its name reused",
        |_| {},
        |at| {
            at.fill("f", 0, 50_000);
            at.fsync("f");
            let file = at.open("f");
            at.fill("new", 0, 3000);
            at.rename("new", "f");
            file.sync_all().unwrap();
            at.fsync("f");
        },
    ),
    either(
        "a symbolic link at the name of a file",
        |at| at.fill("f", 0, 5000),
        |at| {
            at.remove("f");
            at.symlink("elsewhere", "f");
            at.fill("g", 0, 100);
            at.fsync(".");
        },
    ),
    // Directories.
    logged(
        "a directory with new entries",
        |at| {
            at.mkdir("d");
            at.fill("d/old", 0, 5000);
        },
        |at| {
            for number in 0..20 {
                at.fill(&format!("d/n{number}"), 0, number * 700);
            }
            at.symlink("../nowhere", "d/link");
            at.fsync("d");
        },
    ),
    either(
        "a directory with removed entries",
        |at| {
            at.mkdir("d");
            for number in 0..200 {
                at.fill(&format!("d/n{number}"), 0, number);
            }
        },
        |at| {
            for number in (0..200).step_by(3) {
                at.remove(&format!("d/n{number}"));
            }
            at.fill("d/new", 0, 10);
            at.fsync("d");
        },
    ),
    either(
        "new directories below",
        |at| at.mkdir("d"),
        |at| {
            at.mkdir("d/e");
            at.mkdir("d/e/f");
            at.fill("d/e/f/x", 0, 20_000);
            at.fill("d/e/y", 0, 20);
            at.fsync("d");
        },
    ),
    either(
        "a file in new directories",
        |_| {},
        |at| {
            at.mkdir("d");
            at.mkdir("d/e");
            at.fill("d/e/x", 0, 20_000);
            at.fill("d/beside", 0, 100);
            at.fsync("d/e/x");
        },
    ),
    either(
        "a new directory itself",
        |_| {},
        |at| {
            at.mkdir("d");
            at.fill("d/x", 0, 20_000);
            at.mkdir("d/e");
            at.fsync("d");
        },
    ),
    either(
        "a file moved between directories, then the file",
        |at| {
            at.mkdir("a");
            at.mkdir("b");
            at.fill("a/f", 0, 5000);
        },
        |at| {
            at.rename("a/f", "b/f");
            at.fsync("b/f");
        },
    ),
    either(
        "a file moved between directories, then the old one",
        |at| {
            at.mkdir("a");
            at.mkdir("b");
            at.fill("a/f", 0, 5000);
            at.fill("a/g", 0, 5000);
        },
        |at| {
            at.rename("a/f", "b/f");
            at.fill("a/h", 0, 10);
            at.fsync("a");
        },
    ),
    either(
        "a file moved between directories, then the new one",
        |at| {
            at.mkdir("a");
            at.mkdir("b");
            at.fill("a/f", 0, 5000);
        },
        |at| {
            at.rename("a/f", "b/f");
            at.fsync("b");
        },
    ),
    either(
        "a directory moved",
        |at| {
            at.mkdir("a");
            at.mkdir("b");
            at.mkdir("a/d");
            at.fill("a/d/x", 0, 9000);
        },
        |at| {
            at.rename("a/d", "b/d");
            at.fill("b/d/x", 100, 9000);
            at.fsync("b/d/x");
            at.fsync("b/d");
        },
    ),
    either(
        "a directory removed and recreated",
        |at| {
            at.mkdir("d");
            at.fill("d/x", 0, 9000);
        },
        |at| {
            at.remove("d/x");
            at.rmdir("d");
            at.mkdir("d");
            at.fill("d/y", 0, 9000);
            at.fsync("d");
        },
    ),
    either(
        "a file at the name of a directory",
        |at| {
            at.mkdir("d");
            at.fill("d/x", 0, 9000);
        },
        |at| {
            at.remove("d/x");
            at.rmdir("d");
            at.fill("d", 0, 9000);
            at.fsync("d");
        },
    ),
    either(
        "entries removed, linked, and the directory logged twice",
        |at| {
            at.mkdir("d");
            for name in ["d/a", "d/b", "d/c"] {
                at.fill(name, 0, 2000);
            }
        },
        |at| {
            at.link("d/a", "d/a2");
            at.fsync("d");
            at.remove("d/b");
            at.fsync("d");
            at.fill("d/b", 0, 10);
            at.remove("d/a");
            at.fsync("d");
        },
    ),
    either(
        "directories exchanged, with content below them",
        |at| {
            for name in ["a", "a/x", "b", "b/y"] {
                at.mkdir(name);
            }
            at.fill("a/x/f", 0, 100);
            at.fill("b/y/g", 0, 100);
        },
        |at| {
            at.exchange("a/x", "b/y");
            at.fill("a/x/new", 0, 100);
            at.fsync("a/x/new");
            at.fsync("b");
        },
    ),
    either(
        "a directory tree removed, and a new one of many levels",
        |at| {
            at.mkdir("d");
            at.mkdir("d/e");
            at.fill("d/e/f", 0, 9000);
            at.link("d/e/f", "kept");
        },
        |at| {
            at.remove("d/e/f");
            at.rmdir("d/e");
            at.rmdir("d");
            for name in ["d", "d/e", "d/e/deeper"] {
                at.mkdir(name);
            }
            at.rename("kept", "d/e/deeper/f");
            at.fsync("d/e/deeper/f");
            at.fsync("d");
        },
    ),
    logged(
        "special files",
        |at| at.mkdir("d"),
        |at| {
            at.node("d/fifo", FileType::Fifo);
            at.node("d/socket", FileType::Socket);
            at.node("d/char", FileType::CharacterDevice);
            at.node("d/block", FileType::BlockDevice);
            at.symlink(&"long/".repeat(200), "d/link");
            at.chown("d/link", 5);
            at.fsync("d");
        },
    ),
    either(
        "files of two subvolumes",
        |at| {
            for name in ["s", "t"] {
                papilio_oracle::sys::create_subvolume(&at.path(name)).unwrap();
                at.fill(&format!("{name}/f"), 0, 9000);
            }
            papilio_oracle::sys::create_snapshot(&at.path("s"), &at.path("snap"), false).unwrap();
        },
        |at| {
            at.fill("s/f", 4096, 9000);
            at.fill("s/new", 0, 100);
            at.fill("t/f", 0, 20_000);
            at.fill("snap/f", 8192, 300);
            for name in ["s/f", "s/new", "t/f", "snap/f"] {
                at.fsync(name);
            }
        },
    ),
    either(
        "many files, each fsynced",
        |at| at.mkdir("d"),
        |at| {
            for number in 0..150 {
                let name = format!("d/n{number}");
                at.fill(&name, 0, number * 61);
                at.fsync(&name);
            }
        },
    ),
];

/// Scenarios for every preset: data of all kinds, and more names than a leaf holds.
const FEW: [&str; 7] = [
    "overwrite at several offsets",
    "inline: new, grown, shrunk, grown out",
    "preallocated and half written",
    "cloned from a new file",
    "a directory with removed entries",
    "files of two subvolumes",
    "many files, each fsynced",
];

/// Runs scenarios on one file system, then judges each power loss. `PAPILIO_REPLAY_SCENARIO`
/// selects one. If `strict`, the kernel must have logged each fsync that it can log, otherwise at
/// least one: other presets may need a new chunk, and so a commit, at any time.
fn run(shape: &str, strict: bool, chosen: impl Fn(&str) -> bool) {
    if require(Need::KERNEL_MOUNT).is_none() || require(&[Need::Command("btrfs")]).is_none() {
        return;
    }
    let wanted = std::env::var("PAPILIO_REPLAY_SCENARIO").unwrap_or_default();
    let machine = Machine::new(shape);
    let mut cuts = Vec::new();
    for (number, scenario) in SCENARIOS.iter().enumerate() {
        if !scenario.name.contains(&wanted) || !chosen(scenario.name) {
            continue;
        }
        let at = At(machine.root().join(format!("s{number}")));
        std::fs::create_dir(&at.0).unwrap();
        (scenario.before)(&at);
        machine.commit();
        (scenario.act)(&at);
        let cut = machine.cut(&format!("{shape}: {}", scenario.name));
        let has_log = cut.has_log();
        println!("{}: {}", cut.name, if has_log { "log" } else { "commit" });
        let strict = scenario.logged && strict;
        assert!(has_log || !strict, "{}: the kernel committed instead of logging", cut.name);
        if has_log {
            cuts.push(cut);
        } else {
            cut.remove();
        }
    }
    assert!(!cuts.is_empty(), "{shape}: no fsync was logged");
    judge_all(&machine.stop(), cuts);
}

#[test]
fn every_scenario_replays_as_the_kernel_would() {
    run("default", true, |_| true);
}

#[test]
fn data_scenarios_without_no_holes() {
    // The long run has all scenarios.
    let all = std::env::var_os("PAPILIO_REPLAY_ROUNDS").is_some();
    let place = |name: &str| SCENARIOS.iter().position(|scenario| scenario.name == name);
    let names = place("mode, owner, attributes");
    assert!(names.is_some());
    run("without-no-holes", true, |name| all || place(name) < names);
}

#[test]
fn a_few_scenarios_with_every_preset() {
    for name in FEW {
        assert!(SCENARIOS.iter().any(|scenario| scenario.name == name), "{name}");
    }
    let wanted = std::env::var("PAPILIO_REPLAY_SHAPES");
    let shapes = wanted
        .unwrap_or_else(|_| "xxhash,sha256,blake2,zstd,lzo,quota,node-4k,mixed,oldest,raid1".to_owned());
    for (number, shape) in shapes.split(',').enumerate() {
        // The long run has all scenarios.
        let all = std::env::var_os("PAPILIO_REPLAY_ROUNDS").is_some();
        run(shape, false, |name| {
            let place = FEW.iter().position(|few| *few == name);
            all || place.is_some_and(|place| place % 3 == number % 3)
        });
    }
}
