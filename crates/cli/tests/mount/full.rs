//! Full file systems and exhausted quotas of a mount: a file that met the error is a prefix of what
//! was written, the error belongs to that file, and promised space holds. The kernel's mount of the
//! same image size decides what else is right.

use crate::world::{MOUNT, World, check_failure, papilio, succeed, try_unmount};
use papilio_oracle::{ImageSet, Need, Scratch, require};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

const MIB: usize = 1 << 20;
const ENOSPC: i32 = rustix::io::Errno::NOSPC.raw_os_error();
const EDQUOT: i32 = rustix::io::Errno::DQUOT.raw_os_error();

/// An image of 200 MiB, which holds some 130 MiB of data.
fn small() -> Option<World> {
    let world = World::new(MOUNT)?;
    make_small(&world);
    Some(world)
}

fn make_small(world: &World) {
    fs::remove_file(world.image()).unwrap();
    succeed(["mkfs", "-q", "--size", "200M", world.image().to_str().unwrap()]);
}

/// Bytes of a file that tell their offset.
fn content(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 3 % 251) as u8 ^ (at >> 16) as u8).collect()
}

/// The end of a file that was written until an error.
struct Met {
    /// Bytes that `write` accepted.
    accepted: usize,
    error: i32,
}

/// Writes a file in pieces until an error, which `write` or `fsync` returns.
fn fill(path: &str, bytes: &[u8], piece: usize) -> Met {
    let mut file = File::create(path).unwrap();
    let mut accepted = 0;
    for part in bytes.chunks(piece) {
        match file.write_all(part) {
            Ok(()) => accepted += part.len(),
            Err(error) => return Met { accepted, error: error.raw_os_error().unwrap() },
        }
    }
    let error = file.sync_all().expect_err("the file does not fit");
    Met { accepted, error: error.raw_os_error().unwrap() }
}

/// The file is a prefix of `bytes`; returns its length.
fn assert_prefix(path: &str, bytes: &[u8]) -> usize {
    let found = fs::read(path).unwrap();
    assert_eq!(found.len() as u64, fs::metadata(path).unwrap().len());
    assert!(found.len() <= bytes.len(), "{path}: {} bytes", found.len());
    let differ = found.iter().zip(bytes).position(|(found, wrote)| found != wrote);
    assert_eq!(differ, None, "{path}: {} bytes are no prefix", found.len());
    found.len()
}

#[test]
fn a_file_that_met_a_full_disk_is_a_prefix() {
    let Some(world) = small() else { return };
    let bytes = content(250 * MIB);
    let root = world.at("");
    for (options, piece) in
        [(&[][..], MIB), (&[], 100_001), (&["-o", "nowriteback_cache"], MIB), (&["-o", "cache=0"], 256 << 10)]
    {
        world.mount(options);
        let path = world.at("f");
        let met = fill(&path, &bytes, piece);
        assert_eq!(met.error, ENOSPC);
        let length = assert_prefix(&path, &bytes);
        assert!(length >= met.accepted, "{options:?}: {length} of {} accepted bytes", met.accepted);
        assert!(length > 100 * MIB, "{options:?}: {length}");
        // A file that needs space is refused where it is written.
        let refused = fs::write(world.at("g"), &bytes[..8 * MIB]).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(ENOSPC));
        fs::remove_file(world.at("g")).unwrap();
        succeed(["filesystem", "sync", &root]);
        world.unmount();
        world.mount(options);
        assert_eq!(assert_prefix(&path, &bytes), length);
        fs::remove_file(&path).unwrap();
        fs::write(world.at("after"), &bytes[..MIB]).unwrap();
        succeed(["filesystem", "sync", &root]);
        world.unmount();
    }
    succeed(["check", world.image().to_str().unwrap()]);
}

#[test]
fn two_writers_of_a_full_disk_leave_prefixes() {
    let Some(world) = small() else { return };
    world.mount(&[]);
    let bytes = content(200 * MIB);
    let paths = [world.at("a"), world.at("b")];
    std::thread::scope(|scope| {
        for path in &paths {
            let bytes = &bytes;
            scope.spawn(move || assert_eq!(fill(path, bytes, 128 << 10).error, ENOSPC));
        }
    });
    let lengths = paths.each_ref().map(|path| assert_prefix(path, &bytes));
    world.unmount();
    world.mount(&[]);
    assert_eq!(paths.each_ref().map(|path| assert_prefix(path, &bytes)), lengths);
    world.unmount();
}

/// The kernel may accept all of a write before the server sees any of it. The end of the file is
/// lost then.
#[test]
fn a_single_write_larger_than_the_room_leaves_a_prefix() {
    let Some(world) = small() else { return };
    world.mount(&[]);
    let bytes = content(250 * MIB);
    let path = world.at("f");
    assert_eq!(fill(&path, &bytes, bytes.len()).error, ENOSPC);
    let length = assert_prefix(&path, &bytes);
    // Whether anything was lost depends on the memory that may be dirty on this machine.
    let _ = papilio(["filesystem", "sync", &world.at("")]);
    world.unmount();
    world.mount(&[]);
    assert_eq!(assert_prefix(&path, &bytes), length);
    world.unmount();
}

/// Fills the disk, and writes a file through a mapping, which the kernel always accepts.
fn lose_a_write(world: &World) -> String {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
    const LENGTH: usize = 4 << 20;
    fill_up(&world.directory());
    fs::create_dir_all(world.at("d")).unwrap();
    let path = world.at("d/lost");
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    file.set_len(LENGTH as u64).unwrap();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, inside the file, that nothing else uses and that is gone at the end.
    let synced = unsafe {
        let start = mmap(std::ptr::null_mut(), LENGTH, access, MapFlags::SHARED, &file, 0).unwrap();
        std::slice::from_raw_parts_mut(start.cast::<u8>(), LENGTH).fill(9);
        let synced = msync(start, LENGTH, MsyncFlags::SYNC);
        munmap(start, LENGTH).unwrap();
        synced
    };
    assert_eq!(synced, Err(rustix::io::Errno::NOSPC));
    path
}

/// The error of data that was accepted and lost is told once, with the file's path; never once the
/// file is gone.
#[test]
fn an_error_belongs_to_its_file() {
    let Some(world) = small() else { return };
    let (root, kept, snapshot) = (world.at(""), world.at("kept"), world.at("snapshot"));
    let bytes = content(MIB);
    world.mount(&[]);
    let forget = |lost: String| {
        fs::remove_file(lost).unwrap();
        fs::remove_file(world.at("fill")).unwrap();
        fs::write(&kept, &bytes).unwrap();
    };
    let lost = lose_a_write(&world);
    check_failure(&papilio(["filesystem", "sync", &root]), 1, "d/lost could not be stored: No space left");
    succeed(["filesystem", "sync", &root]);
    forget(lost);
    let after: [&[&str]; 6] = [
        &["filesystem", "sync", &root],
        &["subvolume", "snapshot", &root, &snapshot],
        &["subvolume", "sync", &root],
        &["balance", "start", "-d", &root],
        &["filesystem", "resize", "210M", &root],
        &["filesystem", "resize", "200M", &root],
    ];
    for command in after {
        forget(lose_a_write(&world));
        succeed(command);
        succeed(["filesystem", "sync", &root]);
        if command[1] == "snapshot" {
            succeed(["subvolume", "delete", &snapshot]);
        }
    }
    forget(lose_a_write(&world));
    let image = world.image();
    succeed(["mount", "-o", "remount,ro", image.to_str().unwrap(), &root]);
    succeed(["mount", "-o", "remount,rw", image.to_str().unwrap(), &root]);
    // A file that is cut before what it lost has lost nothing.
    let lost = lose_a_write(&world);
    File::create(&lost).unwrap();
    succeed(["filesystem", "sync", &root]);
    forget(lost);
    forget(lose_a_write(&world));
    world.unmount();
    world.mount(&[]);
    lose_a_write(&world);
    let unmounted = try_unmount(root.as_ref());
    check_failure(&unmounted, 1, "cannot write the last changes: data that was written to d/lost");
    world.mount(&[]);
    assert!(fs::read(&kept).unwrap() == bytes);
    world.unmount();
    succeed(["check", world.image().to_str().unwrap()]);
}

#[test]
fn a_file_that_met_a_quota_is_a_prefix() {
    let Some(world) = small() else { return };
    world.mount(&[]);
    let (root, subvolume) = (world.at(""), world.at("s"));
    succeed(["subvolume", "create", &subvolume]);
    succeed(["quota", "enable", &root]);
    succeed(["quota", "rescan", "-W", &root]);
    succeed(["qgroup", "limit", "20M", &subvolume]);
    let bytes = content(50 * MIB);
    let path = world.at("s/f");
    for piece in [MIB, 30_000, 50 * MIB] {
        let met = fill(&path, &bytes, piece);
        assert_eq!(met.error, EDQUOT, "{piece}");
        let length = assert_prefix(&path, &bytes);
        assert!(length >= met.accepted && length <= 20 * MIB, "{piece}: {length}, {}", met.accepted);
        assert!(length >= (18 * MIB).min(50 * MIB - piece), "{piece}: {length}");
        // Other subvolumes have room.
        fs::write(world.at("beside"), &bytes).unwrap();
        succeed(["filesystem", "sync", &root]);
        fs::remove_file(&path).unwrap();
        succeed(["filesystem", "sync", &root]);
    }
    // A limit that is set while a program writes.
    succeed(["qgroup", "limit", "none", &subvolume]);
    let mut file = File::create(&path).unwrap();
    file.write_all(&bytes[..10 * MIB]).unwrap();
    succeed(["qgroup", "limit", "15M", &subvolume]);
    let rest = bytes[10 * MIB..].chunks(MIB).map(|part| file.write_all(part));
    let error = rest.filter_map(Result::err).next().expect("the limit refuses");
    assert_eq!(error.raw_os_error(), Some(EDQUOT));
    drop(file);
    let length = assert_prefix(&path, &bytes);
    assert!((10 * MIB..=15 * MIB).contains(&length), "{length}");
    world.unmount();
    world.mount(&[]);
    assert_eq!(assert_prefix(&path, &bytes), length);
    world.unmount();
    succeed(["check", world.image().to_str().unwrap()]);
}

/// Fills what is left, so that a sector finds no space.
fn fill_up(root: &Path) {
    let file = File::create(root.join("fill")).unwrap();
    let (mut at, mut step) = (0, 64 << 20);
    while step >= 4096 {
        match fallocate(&file, FallocateFlags::empty(), at, step) {
            Ok(()) => at += step,
            Err(_) => step /= 2,
        }
    }
    file.sync_all().unwrap();
}

/// Writes into space that `fallocate` promised, without and with the file's size, on a full disk.
fn write_promised(root: &Path) -> Vec<(String, Vec<u8>)> {
    const PROMISED: u64 = 4 << 20;
    let mut made = Vec::new();
    for (name, flags, nocow) in [
        ("keeps", FallocateFlags::KEEP_SIZE, false),
        ("keeps-nocow", FallocateFlags::KEEP_SIZE, true),
        ("grows", FallocateFlags::empty(), false),
    ] {
        let file = File::create(root.join(name)).unwrap();
        if nocow {
            let flags = rustix::fs::ioctl_getflags(&file).unwrap() | rustix::fs::IFlags::NOCOW;
            rustix::fs::ioctl_setflags(&file, flags).unwrap();
        }
        fallocate(&file, flags, 0, PROMISED).unwrap();
        made.push((name.to_owned(), file));
    }
    let overwritten = File::create(root.join("overwritten")).unwrap();
    let flags = rustix::fs::ioctl_getflags(&overwritten).unwrap() | rustix::fs::IFlags::NOCOW;
    rustix::fs::ioctl_setflags(&overwritten, flags).unwrap();
    overwritten.write_all_at(&content(2 * MIB), 0).unwrap();
    overwritten.sync_all().unwrap();
    fill_up(root);
    let bytes = content(PROMISED as usize);
    for (name, file) in &made {
        let ranges =
            [0..131_072, 131_072..200_704, 204_800..303_104, MIB + 77..MIB + 69_632, 3 * MIB..4 * MIB];
        for range in ranges {
            let wrote = file.write_all_at(&bytes[range.clone()], range.start as u64);
            wrote.unwrap_or_else(|error| panic!("{name}: {range:?}: {error}"));
        }
        file.sync_all().unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&overwritten, punch, 100_001, 300_000).unwrap();
    overwritten.write_all_at(&bytes[..50_000], MIB as u64 + 5).unwrap();
    overwritten.set_len(MIB as u64 + 300_003).unwrap();
    overwritten.sync_all().unwrap();
    let names = made.iter().map(|(name, _)| name.clone()).chain(["overwritten".to_owned()]);
    names.map(|name| (name.clone(), fs::read(root.join(name)).unwrap())).collect()
}

#[test]
fn promised_space_holds_as_in_the_kernel() {
    let Some(world) = small() else { return };
    let needs = [Need::Root, Need::Loop, Need::KernelBtrfs];
    let kernel = require(&needs).map(|_| {
        let scratch = Scratch::new(1 << 30).unwrap();
        let mounted = ImageSet::open(&scratch, vec![world.image()]).mount().unwrap();
        let found = write_promised(mounted.path());
        mounted.unmount().unwrap();
        found
    });
    for options in [&[][..], &["-o", "compress-force=zlib"], &["-o", "cache=0"], &["-o", "nowriteback_cache"]]
    {
        make_small(&world);
        world.mount(options);
        let found = write_promised(&world.directory());
        for (ours, theirs) in found.iter().zip(kernel.iter().flatten()) {
            assert!(ours == theirs, "{options:?}: {} differs from the kernel's", ours.0);
        }
        world.unmount();
        world.mount(options);
        for (name, bytes) in &found {
            assert!(fs::read(world.at(name)).unwrap() == *bytes, "{options:?}: {name} after a remount");
        }
        world.unmount();
        succeed(["check", "--check-data-csum", world.image().to_str().unwrap()]);
    }
}

/// The middle of a write that the kernel has cached is written back first, behind the end of the
/// file on disk. That end is written anew then, and finds space, too.
#[test]
fn an_accepted_write_is_stored_in_any_order() {
    const END: usize = 534;
    let Some(world) = small() else { return };
    world.mount(&[]);
    let (path, bytes) = (world.at("f"), content(4 * MIB));
    for mode in [FallocateFlags::PUNCH_HOLE, FallocateFlags::ZERO_RANGE] {
        fs::write(&path, &bytes[..END]).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.sync_all().unwrap();
        fill_up(&world.directory());
        let fill = File::options().write(true).open(world.at("fill")).unwrap();
        let length = fill.metadata().unwrap().len();
        fill.set_len(length - (8 << 20)).unwrap();
        succeed(["filesystem", "sync", &world.at("")]);
        file.write_all_at(&bytes[109..], 109).unwrap();
        // Another file takes the rest.
        let other = File::create(world.at("other")).unwrap();
        let mut at = 0;
        while other.write_all_at(&bytes[..64 << 10], at).is_ok() {
            at += 64 << 10;
        }
        // Writes the range back. On the full disk it may fail itself.
        let changed = fallocate(&file, mode | FallocateFlags::KEEP_SIZE, 540_183, MIB as u64);
        file.sync_all().unwrap_or_else(|error| panic!("{mode:?}: {error}"));
        let found = fs::read(&path).unwrap();
        let same = |range: std::ops::Range<usize>| found[range.clone()] == bytes[range];
        assert!(same(0..540_183) && same(540_183 + MIB..4 * MIB), "{mode:?}: {changed:?}");
        drop((file, fill, other));
        for name in ["f", "other", "fill"] {
            fs::remove_file(world.at(name)).unwrap();
        }
        succeed(["filesystem", "sync", &world.at("")]);
    }
    world.unmount();
    succeed(["check", "--check-data-csum", world.image().to_str().unwrap()]);
}

/// A change that fails may have begun: a part of the range is zeros, or gone. The mount then shows
/// the content on disk, and no page that the kernel read before.
#[test]
fn a_change_that_fails_shows_what_is_stored() {
    let Some(world) = small() else { return };
    const LENGTH: usize = MIB + 77;
    for options in ["writeback_cache", "nowriteback_cache", "compress-force=zlib,writeback_cache"] {
        make_small(&world);
        world.mount(&["-o", options]);
        let bytes: Vec<u8> = content(LENGTH).into_iter().map(|byte| byte | 1).collect();
        let changes = [
            ("zero", FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE),
            ("zero-and-grow", FallocateFlags::ZERO_RANGE),
        ];
        for (name, _) in changes {
            fs::write(world.at(name), &bytes).unwrap();
        }
        fill_up(&world.directory());
        let mut shown = Vec::new();
        for (name, flags) in changes {
            let file = File::options().read(true).write(true).open(world.at(name)).unwrap();
            // The pages are in the kernel's cache.
            assert!(fs::read(world.at(name)).unwrap() == bytes, "{options}: {name}");
            // It frees less than it takes.
            let refused = fallocate(&file, flags, 300_001, 16 << 20);
            assert_eq!(refused, Err(rustix::io::Errno::NOSPC), "{options}: {name}");
            let found = fs::read(world.at(name)).unwrap();
            assert!(found.len() == LENGTH && found[..300_001] == bytes[..300_001], "{options}: {name}");
            let zeroed = found.iter().zip(&bytes).all(|(found, old)| found == old || *found == 0);
            assert!(zeroed, "{options}: {name}");
            shown.push((name, found));
        }
        world.unmount();
        world.mount(&["-o", options]);
        for (name, found) in shown {
            assert!(fs::read(world.at(name)).unwrap() == found, "{options}: {name} after a remount");
        }
        world.unmount();
    }
}

/// A small write on a full disk fails in `write`: a shell looks at no other result.
#[test]
fn a_small_write_on_a_full_disk_fails_at_once() {
    let Some(world) = small() else { return };
    for mounted_full in [false, true] {
        make_small(&world);
        world.mount(&[]);
        fill_up(&world.directory());
        if mounted_full {
            world.unmount();
            world.mount(&[]);
        }
        let file = File::create(world.at("small")).unwrap();
        let mut accepted = 0;
        let error = loop {
            match file.write_all_at(&[7; 65_536], accepted) {
                Ok(()) => accepted += 65_536,
                Err(error) => break error,
            }
            assert!(accepted < 64 << 20, "the disk is full");
        };
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        file.sync_all().unwrap();
        assert_eq!(file.metadata().unwrap().len(), accepted);
        drop(file);
        assert!(fs::read(world.at("small")).unwrap() == vec![7; accepted as usize]);
        world.unmount();
    }
}

/// Programs write files that have no name any more, or lose it, while they are open. Each has far
/// more metadata reserved than it takes, which must not look like a full file system.
#[test]
fn many_open_files_without_names_are_written_and_removed() {
    const FILES: usize = 900;
    let Some(world) = World::new(MOUNT) else { return };
    for (options, length) in [
        ("cache=32m,nowriteback_cache", 5000),
        ("cache=32m,writeback_cache", 20_000),
        ("nowriteback_cache", 20_000),
    ] {
        fs::remove_file(world.image()).unwrap();
        succeed(["mkfs", "-q", "--size", "256M", world.image().to_str().unwrap()]);
        world.mount_plainly(&["-o", options]);
        let bytes = content(length);
        let mut open = Vec::new();
        for number in 0..FILES {
            let path = world.at(&format!("f{number}"));
            let made = File::options().read(true).write(true).create_new(true).open(&path);
            let written = made.and_then(|mut file| file.write_all(&bytes).map(|()| file));
            let removed = written.and_then(|file| fs::remove_file(&path).map(|()| file));
            let file = removed.unwrap_or_else(|error| panic!("{options}: {number}: {error}"));
            open.push(file);
        }
        for file in &open {
            let mut found = vec![0; length];
            file.read_exact_at(&mut found, 0).unwrap();
            assert!(found == bytes, "{options}");
        }
        drop(open);
        world.unmount();
        succeed(["check", "--check-data-csum", world.image().to_str().unwrap()]);
    }
}
