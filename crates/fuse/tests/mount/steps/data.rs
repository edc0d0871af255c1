//! File content: writes of all kinds, holes, preallocation, sharing, mappings, and files without
//! names.

use crate::script::{Script, lstat, summary};
use rustix::fs::{CWD, FallocateFlags, FlockOperation, Mode, OFlags, RenameFlags};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

/// Returns bytes without repetition.
fn pattern(length: usize, seed: u32) -> Vec<u8> {
    (0..length as u32).map(|n| (n.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8).collect()
}

fn open(s: &mut Script, name: &str, flags: OFlags) -> Option<std::fs::File> {
    s.open(name, flags, 0o644).map(std::fs::File::from)
}

pub fn data(s: &mut Script) {
    for size in [0, 1, 100, 2048, 2049, 4095, 4096, 4097, 65_536, 300_000, 5_000_000] {
        let name = format!("size-{size}");
        s.write(&name, &pattern(size, 1));
        s.stat(&name);
        s.blocks(&name);
        s.read(&name);
    }
    let create = OFlags::CREATE | OFlags::RDWR;
    let Some(file) = open(s, "f", create) else { return };
    for (offset, length) in
        [(0, 10), (100, 50), (4000, 200), (10_000, 5000), (9000, 3000), (1 << 20, 4096), (5, 3)]
    {
        s.step(format!("pwrite {offset} {length}"), |_| {
            Ok(file.write_at(&pattern(length, offset as u32), offset)?.to_string())
        });
        s.fstat("f", &file);
    }
    s.read("f");
    s.step("pread beyond the end", |_| Ok(file.read_at(&mut [0; 10], 1 << 30)?.to_string()));
    s.step("pread across the end", |_| Ok(file.read_at(&mut [0; 10_000], (1 << 20) + 4000)?.to_string()));
    s.step("pwrite beyond", |_| Ok(file.write_at(b"xx", i64::MAX as u64)?.to_string()));
    drop(file);
    if let Some(mut file) = open(s, "f", OFlags::WRONLY | OFlags::APPEND) {
        s.step("append", |_| {
            file.seek(SeekFrom::Start(0))?;
            file.write_all(b"appended")?;
            Ok(file.stream_position()?.to_string())
        });
    }
    s.read("f");
    if let (Some(one), Some(two)) =
        (open(s, "f", OFlags::WRONLY | OFlags::APPEND), open(s, "f", OFlags::RDWR))
    {
        s.step("one appends and one truncates", |_| {
            (&one).write_all(b"first")?;
            two.set_len(100)?;
            (&one).write_all(b"second")?;
            Ok(two.metadata()?.len().to_string())
        });
    }
    s.read("f");
    direct(s);
}

fn direct(s: &mut Script) {
    let create = OFlags::CREATE | OFlags::RDWR;
    if let Some(file) = open(s, "direct", create | OFlags::DIRECT) {
        // Direct I/O requires aligned memory.
        let memory = vec![0_u8; 4096 * 20];
        let skip = memory.as_ptr().align_offset(4096);
        let mut memory = memory;
        let block = &mut memory[skip..skip + 65_536];
        block.copy_from_slice(&pattern(65_536, 9));
        s.step("direct write", |_| Ok(file.write_at(block, 8192)?.to_string()));
        s.step("direct read", |_| {
            block.fill(0);
            let read = file.read_at(&mut block[..32_768], 4096)?;
            Ok(summary(&block[..read]))
        });
        s.fstat("direct", &file);
    }
    s.read("direct");
    for (flag, name) in [(OFlags::SYNC, "sync"), (OFlags::DSYNC, "dsync")] {
        if let Some(mut file) = open(s, name, create | flag) {
            s.step(format!("write {name}"), |_| Ok(format!("{:?}", file.write_all(&pattern(10_000, 3))?)));
        }
        s.blocks(name);
        s.read(name);
    }
    mapped(s);
    s.step("statvfs", |root| {
        let stat = rustix::fs::statvfs(root)?;
        Ok(format!("{} {} {} {} {}", stat.f_bsize, stat.f_frsize, stat.f_files, stat.f_ffree, stat.f_namemax))
    });
    s.step("a running program cannot be written", |root| {
        let program = root.join("true");
        papilio_oracle::program::copy_program("/bin/sleep".as_ref(), &program)?;
        let mut run = std::process::Command::new(&program).arg("1").spawn()?;
        let opened = std::fs::OpenOptions::new().write(true).open(&program);
        let _ = run.kill();
        let _ = run.wait();
        drop(opened?);
        Ok("opened".into())
    });
}

/// Shared mappings of a file.
fn mapped(s: &mut Script) {
    s.write("mapped", &pattern(20_000, 5));
    let Some(file) = open(s, "mapped", OFlags::RDWR) else { return };
    s.step("map, change and read", |root| {
        use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
        let length = 20_000;
        // SAFETY: a new mapping of the file, used below within its length. No thread truncates the
        // file.
        let memory = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, &file, 0)?
        };
        // SAFETY: as above; this is the only reference to it.
        let bytes = unsafe { std::slice::from_raw_parts_mut(memory.cast::<u8>(), length) };
        let before = summary(bytes);
        bytes[5000..5010].copy_from_slice(b"by mapping");
        bytes[19_999] = b'!';
        let mut seen = [0; 10];
        file.read_exact_at(&mut seen, 5000)?;
        file.write_all_at(b"by write", 100)?;
        let back = bytes[100..108].to_vec();
        // SAFETY: the mapping from above.
        unsafe {
            msync(memory, length, MsyncFlags::SYNC)?;
            munmap(memory, length)?;
        }
        let after = summary(&std::fs::read(root.join("mapped"))?);
        Ok(format!(
            "{before} {:?} {:?} {after}",
            String::from_utf8_lossy(&seen),
            String::from_utf8_lossy(&back)
        ))
    });
    drop(file);
    s.read("mapped");
    s.stat("mapped");
}

pub fn ranges(s: &mut Script) {
    let (empty, keep) = (FallocateFlags::empty(), FallocateFlags::KEEP_SIZE);
    let punch = FallocateFlags::PUNCH_HOLE | keep;
    let zero = FallocateFlags::ZERO_RANGE;
    s.write("f", &pattern(100_000, 7));
    let Some(file) = open(s, "f", OFlags::RDWR) else { return };
    let step = |s: &mut Script, mode, offset, length| {
        s.fallocate(&file, mode, offset, length);
        s.fstat("f", &file);
        s.read("f");
    };
    step(s, punch, 4096, 8192);
    step(s, punch, 30_000, 10_000);
    step(s, punch, 50_000, 100);
    step(s, punch, 99_000, 10_000);
    step(s, punch, 200_000, 10_000);
    step(s, FallocateFlags::PUNCH_HOLE, 0, 4096);
    step(s, zero, 60_000, 20_000);
    step(s, zero | keep, 90_000, 30_000);
    step(s, zero, 99_990, 10_000);
    step(s, zero, 5, 10);
    step(s, empty, 0, 50_000);
    step(s, keep, 200_000, 50_000);
    step(s, empty, 150_000, 20_000);
    step(s, empty, 0, 0);
    step(s, FallocateFlags::COLLAPSE_RANGE, 4096, 4096);
    step(s, FallocateFlags::INSERT_RANGE, 4096, 4096);
    step(s, FallocateFlags::UNSHARE_RANGE, 0, 4096);
    s.blocks("f");
    s.fallocate(&file, empty, i64::MAX as u64 - 10, 100);
    if let Some(reading) = open(s, "f", OFlags::RDONLY) {
        s.fallocate(&reading, empty, 0, 4096);
    }
    sparse(s);
    copies(s);
}

fn sparse(s: &mut Script) {
    let Some(file) = open(s, "sparse", OFlags::CREATE | OFlags::RDWR) else { return };
    for offset in [0, 1 << 20, 3 << 20] {
        s.step(format!("pwrite {offset}"), |_| Ok(file.write_at(&pattern(8192, 2), offset)?.to_string()));
    }
    // Before anything is written back.
    for offset in
        [0, 5, 8192, 8193, 1 << 20, (1 << 20) + 8192, 2 << 20, 3 << 20, (3 << 20) + 8191, (3 << 20) + 8192]
    {
        s.seek(&file, offset);
    }
    s.fallocate(&file, FallocateFlags::empty(), 5 << 20, 1 << 20);
    s.step("fsync", |_| Ok(format!("{:?}", file.sync_all()?)));
    for offset in [0, 8192, (3 << 20) + 8192, 5 << 20, (6 << 20) - 1, 6 << 20, 7 << 20] {
        s.seek(&file, offset);
    }
    s.step("truncate up", |_| Ok(format!("{:?}", file.set_len(10 << 20)?)));
    s.seek(&file, 6 << 20);
    s.read("sparse");
    s.blocks("sparse");
}

fn copies(s: &mut Script) {
    s.write("source", &pattern(1_000_003, 11));
    let copy = |s: &mut Script, target: &str, from: u64, to: u64, length: usize| {
        let (Some(source), Some(file)) =
            (open(s, "source", OFlags::RDONLY), open(s, target, OFlags::CREATE | OFlags::RDWR))
        else {
            return;
        };
        s.step(format!("copy {target} {from} {to} {length}"), |_| {
            let (mut from, mut to, mut left) = (from, to, length);
            let mut all = 0;
            while left > 0 {
                let copied =
                    rustix::fs::copy_file_range(&source, Some(&mut from), &file, Some(&mut to), left)?;
                if copied == 0 {
                    break;
                }
                all += copied;
                left -= copied;
            }
            Ok(format!("{all} to {from} and {to}"))
        });
        s.fstat(target, &file);
        s.read(target);
    };
    copy(s, "whole", 0, 0, 1_000_003);
    copy(s, "more", 0, 0, 2_000_000);
    copy(s, "beyond", 2_000_000, 0, 100);
    copy(s, "aligned", 4096, 8192, 409_600);
    copy(s, "ragged", 1000, 1000 + 4096, 300_000);
    copy(s, "unaligned", 1000, 1001, 100_000);
    copy(s, "small", 10, 20, 5);
    copy(s, "whole", 4096, 0, 8192);
    copy(s, "tail", 999_424, 0, 579);
    copy(s, "source", 0, 500_000, 100_000);
    copy(s, "source", 0, 1000, 100_000);
    s.write("inline", b"a little");
    s.step("copy inline data", |root| {
        let (source, target) =
            (std::fs::File::open(root.join("inline"))?, std::fs::File::create(root.join("inline2"))?);
        Ok(rustix::fs::copy_file_range(source, None, target, None, 100)?.to_string())
    });
    s.read("inline2");
    for name in ["whole", "aligned", "ragged"] {
        s.blocks(name);
    }
}

pub fn open_files(s: &mut Script) {
    s.write("f", &pattern(50_000, 3));
    if let Some(mut file) = open(s, "f", OFlags::RDWR) {
        s.unlink("f");
        s.stat("f");
        s.fstat("unlinked", &file);
        s.step("an unlinked file can be read and written", |_| {
            let mut content = Vec::new();
            file.read_to_end(&mut content)?;
            file.write_at(&pattern(10_000, 4), 100_000)?;
            file.set_len(105_000)?;
            file.sync_all()?;
            let mut again = vec![0; 105_000];
            file.read_exact_at(&mut again, 0)?;
            Ok(format!("{} {}", summary(&content), summary(&again)))
        });
        s.fstat("unlinked", &file);
        s.step("an unlinked file gets no new name", |root| {
            use std::os::fd::AsRawFd;
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            rustix::fs::linkat(CWD, path, CWD, root.join("again"), rustix::fs::AtFlags::SYMLINK_FOLLOW)?;
            Ok("ok".into())
        });
        s.write("f", b"another of the same name");
        s.fstat("unlinked", &file);
    }
    s.read("f");
    replaced(s);
}

fn replaced(s: &mut Script) {
    s.write("old", &pattern(5000, 5));
    s.write("new", b"new");
    if let Some(file) = open(s, "old", OFlags::RDWR) {
        s.rename("new", "old", RenameFlags::empty());
        s.step("a replaced file can be read", |_| {
            let mut content = vec![0; 5000];
            file.read_exact_at(&mut content, 0)?;
            Ok(format!("{} {}", summary(&content), file.metadata()?.len()))
        });
        s.step("a replaced file's attributes can be changed", |_| {
            rustix::fs::fchmod(&file, Mode::from_raw_mode(0o600))?;
            rustix::fs::fsetxattr(&file, "user.x", b"1", rustix::fs::XattrFlags::empty())?;
            Ok("ok".into())
        });
        s.fstat("replaced", &file);
    }
    s.mkdir("d", 0o755);
    if let Some(directory) = open(s, "d", OFlags::DIRECTORY) {
        s.rmdir("d");
        s.fstat("removed", &directory);
        s.step("a removed directory accepts no entry", |_| {
            rustix::fs::mkdirat(&directory, "x", Mode::from_raw_mode(0o755))?;
            Ok("ok".into())
        });
        s.step("a removed directory has no entries", |_| {
            rustix::fs::statat(&directory, "x", rustix::fs::AtFlags::empty())?;
            Ok("ok".into())
        });
    }
    locks(s);
}

fn locks(s: &mut Script) {
    s.write("locked", b"");
    if let (Some(one), Some(two)) = (open(s, "locked", OFlags::RDWR), open(s, "locked", OFlags::RDWR)) {
        for (name, operation) in [
            ("exclusive", FlockOperation::NonBlockingLockExclusive),
            ("shared", FlockOperation::NonBlockingLockShared),
        ] {
            s.step(format!("flock {name}"), |_| {
                rustix::fs::flock(&one, operation)?;
                let other = rustix::fs::flock(&two, FlockOperation::NonBlockingLockShared);
                let third = rustix::fs::flock(&two, FlockOperation::NonBlockingLockExclusive);
                rustix::fs::flock(&one, FlockOperation::Unlock)?;
                let fourth = rustix::fs::flock(&two, FlockOperation::NonBlockingLockExclusive);
                rustix::fs::flock(&two, FlockOperation::Unlock)?;
                Ok(format!("{other:?} {third:?} {fourth:?}"))
            });
        }
        s.step("fcntl lock of another process", |root| {
            rustix::fs::fcntl_lock(&one, FlockOperation::NonBlockingLockExclusive)?;
            let other = std::process::Command::new(crate::server::HELPER)
                .arg("try-lock")
                .arg(root.join("locked"))
                .output()?;
            assert!(other.status.success(), "{}", String::from_utf8_lossy(&other.stderr));
            Ok(String::from_utf8_lossy(&other.stdout).trim_end().to_owned())
        });
    }
    listings(s);
}

fn listings(s: &mut Script) {
    s.step("a listing continues while entries are removed", |root| {
        let directory = root.join("listed");
        std::fs::create_dir(&directory)?;
        for number in 0..2000 {
            std::fs::write(directory.join(format!("entry-{number}")), b"")?;
        }
        let mut seen = 0;
        for entry in std::fs::read_dir(&directory)? {
            std::fs::remove_file(entry?.path())?;
            seen += 1;
        }
        std::fs::remove_dir(&directory)?;
        Ok(seen.to_string())
    });
    s.step("a listing ends although each entry is renamed", |root| {
        let directory = root.join("renamed");
        std::fs::create_dir(&directory)?;
        for number in 0..500 {
            std::fs::write(directory.join(format!("entry-{number}")), b"")?;
        }
        let mut seen = 0;
        for entry in std::fs::read_dir(&directory)?.take(10_000) {
            let path = entry?.path();
            std::fs::rename(&path, path.with_extension("renamed"))?;
            seen += 1;
        }
        Ok(seen.to_string())
    });
    s.step("hard links share an inode number", |root| {
        std::fs::write(root.join("n1"), b"")?;
        std::fs::hard_link(root.join("n1"), root.join("n2"))?;
        std::fs::write(root.join("n3"), b"")?;
        let number = |name| lstat(&root.join(name)).map(|stat| stat.st_ino);
        Ok(format!("{} {}", number("n1")? == number("n2")?, number("n1")? == number("n3")?))
    });
}
