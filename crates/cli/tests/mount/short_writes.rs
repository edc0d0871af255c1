//! Writes that do not fit, in one call: `write` returns the number of bytes that are stored, the
//! next one fails with ENOSPC or EDQUOT, and the file is a prefix of what was written, to the byte.
//! `fsync` and `close` then have nothing to report. The kernel's mount of an image of the same size
//! does the same.
//!
//! The image is small, so that the mount passes on each write without being told
//! (`nowriteback_cache`). Where the kernel gathers writes, the same first bytes are stored, also of
//! a direct write, but the call returns the error and no number.

use crate::kernel::KernelMount;
use crate::world::{MOUNT, World, run, succeed};
use papilio_oracle::Need;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const MIB: usize = 1 << 20;

/// The way of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Buffered,
    Append,
    Vectored,
    /// From byte 1,234 on, with an odd length.
    Unaligned,
    Direct,
}

const WAYS: [Way; 5] = [Way::Buffered, Way::Append, Way::Vectored, Way::Unaligned, Way::Direct];

/// The errors of a file that was written beyond the room.
#[derive(Debug, PartialEq, Eq)]
struct Met {
    /// Bytes that the writes before the first error say they stored.
    stored: usize,
    /// Bytes that the file has.
    found: usize,
    error: i32,
    synced: Option<i32>,
    closed: Option<i32>,
}

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 3 % 251) as u8 ^ (at >> 16) as u8).collect()
}

fn number(result: io::Result<()>) -> Option<i32> {
    result.err().map(|error| error.raw_os_error().unwrap())
}

/// Writes `length` bytes to a file in calls that each have all of the rest, until one fails.
fn overfill(path: &Path, way: Way, length: usize) -> Met {
    let start = if way == Way::Unaligned { 1234 } else { 0 };
    let all = content(start + length + 4096);
    // At a multiple of the block size in memory, too.
    let at = all.as_ptr().align_offset(4096);
    let bytes = if way == Way::Direct { &all[at..at + length] } else { &all[start..start + length] };
    let mut options = File::options();
    options.write(true).create_new(true).append(way == Way::Append);
    if way == Way::Direct {
        options.custom_flags(libc::O_DIRECT);
    }
    let mut file = options.open(path).unwrap();
    file.seek(SeekFrom::Start(start as u64)).unwrap();
    let mut stored = 0;
    let error = loop {
        let rest = &bytes[stored..];
        let wrote = match way {
            Way::Vectored => {
                let (first, second) = rest.split_at(rest.len() / 2);
                file.write_vectored(&[io::IoSlice::new(first), io::IoSlice::new(second)])
            }
            _ => file.write(rest),
        };
        match wrote {
            Ok(count) => stored += count,
            Err(error) => break error.raw_os_error().unwrap(),
        }
        assert!(stored < length, "{way:?}: everything was stored");
    };
    let size = file.metadata().unwrap().len() as usize;
    let synced = number(file.sync_all());
    // SAFETY: the descriptor is this function's own, and nothing uses it afterwards.
    let closed = match unsafe { libc::close(file.into_raw_fd()) } {
        0 => None,
        _ => io::Error::last_os_error().raw_os_error(),
    };
    let found = fs::read(path).unwrap();
    assert_eq!(found.len(), size, "{way:?}");
    let found = &found[start.min(size)..];
    assert!(*found == bytes[..found.len()], "{way:?}: no prefix");
    Met { stored, found: found.len(), error, synced, closed }
}

/// Overfills files in each way below `root`, one after the other, and removes each. Returns what
/// each met.
fn overfill_each(root: &Path, length: usize) -> Vec<(Way, Met)> {
    let each = WAYS.into_iter().map(|way| {
        let path = root.join("f");
        let met = overfill(&path, way, length);
        fs::remove_file(&path).unwrap();
        run("sync", &["-f", root.to_str().unwrap()]);
        (way, met)
    });
    each.collect()
}

fn judge(found: &[(Way, Met)], error: i32, least: usize, most: usize, who: &str) {
    for (way, met) in found {
        assert_eq!((met.error, met.synced, met.closed), (error, None, None), "{who}: {way:?}: {met:?}");
        assert_eq!(met.found, met.stored, "{who}: {way:?}");
        // The kernel's direct write reserves the space of all of it at once.
        let none = *way == Way::Direct && met.stored == 0;
        assert!(none || (least..=most).contains(&met.stored), "{who}: {way:?}: {met:?}");
    }
}

fn on_the_kernels(world: &World, size: u64, overfill: impl Fn(&Path) -> Vec<(Way, Met)>) -> Vec<(Way, Met)> {
    let image = world.beside("kernel.img");
    File::create(&image).unwrap().set_len(size).unwrap();
    run("mkfs.btrfs", &["-q", image.to_str().unwrap()]);
    let kernel = KernelMount::new(&image, &world.directory(), "rw");
    let found = overfill(&world.directory());
    drop(kernel);
    fs::remove_file(image).unwrap();
    found
}

#[test]
fn one_write_beyond_the_room_is_short() {
    let needs = [Need::KERNEL_MOUNT, MOUNT, &[Need::Command("mkfs.btrfs")]];
    let Some(world) = World::new(&needs.concat()) else { return };
    fs::remove_file(world.image()).unwrap();
    succeed(["mkfs", "-q", "--size", "200M", world.image().to_str().unwrap()]);
    world.mount_plainly(&[]);
    let ours = overfill_each(&world.directory(), 300 * MIB);
    world.unmount();
    judge(&ours, libc::ENOSPC, 100 * MIB, 200 * MIB, "ours");
    succeed(["check", "--check-data-csum", world.image().to_str().unwrap()]);
    let theirs = on_the_kernels(&world, 200 << 20, |root| overfill_each(root, 300 * MIB));
    judge(&theirs, libc::ENOSPC, 50 * MIB, 200 * MIB, "the kernel");
    println!("ours {ours:?}\nthe kernel {theirs:?}");
}

#[test]
fn one_write_beyond_a_limit_is_short() {
    let needs = [Need::KERNEL_MOUNT, MOUNT, &[Need::Command("btrfs"), Need::Command("mkfs.btrfs")]];
    let Some(world) = World::new(&needs.concat()) else { return };
    const LIMIT: usize = 20 * MIB;
    fs::remove_file(world.image()).unwrap();
    succeed(["mkfs", "-q", "--size", "300M", world.image().to_str().unwrap()]);
    world.mount_plainly(&[]);
    let (root, subvolume) = (world.at(""), world.at("s"));
    for (simple, exclusive) in [(false, false), (false, true), (true, false)] {
        succeed(["subvolume", "create", &subvolume]);
        succeed([&["quota", "enable"], &["--simple"][..usize::from(simple)], &[&root[..]]].concat());
        if !simple {
            succeed(["quota", "rescan", "-W", &root]);
        }
        succeed([&["qgroup", "limit"], &["-e"][..usize::from(exclusive)], &["20M", &subvolume[..]]].concat());
        let ours = overfill_each(Path::new(&subvolume), 50 * MIB);
        judge(&ours, libc::EDQUOT, LIMIT - MIB, LIMIT, "ours");
        println!("simple {simple}, exclusive {exclusive}: ours {ours:?}");
        succeed(["quota", "disable", &root]);
        succeed(["subvolume", "delete", &subvolume]);
    }
    world.unmount();
    succeed(["check", "--check-data-csum", world.image().to_str().unwrap()]);
    let theirs = on_the_kernels(&world, 300 << 20, |root| {
        let (top, subvolume) = (root.to_str().unwrap(), root.join("s"));
        let below = subvolume.to_str().unwrap();
        run("btrfs", &["subvolume", "create", below]);
        run("btrfs", &["quota", "enable", top]);
        run("btrfs", &["quota", "rescan", "-w", top]);
        run("btrfs", &["qgroup", "limit", "20M", below]);
        overfill_each(&subvolume, 50 * MIB)
    });
    println!("the kernel {theirs:?}");
    judge(&theirs, libc::EDQUOT, LIMIT / 2, LIMIT, "the kernel");
}

/// Judges single writes that the kernel would have gathered: the first call returns the error, and
/// the file has the bytes that fit.
fn judge_gathered(found: &[(Way, Met)], error: i32, least: usize, most: usize) {
    for (way, met) in found {
        assert_eq!((met.error, met.synced, met.closed), (error, None, None), "{way:?}: {met:?}");
        assert_eq!(met.stored, 0, "{way:?}: {met:?}");
        // After an error a program may append the same data again, so such a write stores nothing.
        let range = if *way == Way::Append { 0..=0 } else { least..=most };
        assert!(range.contains(&met.found), "{way:?}: {met:?}");
    }
}

#[test]
fn one_write_that_the_kernel_would_gather_leaves_what_fits() {
    let Some(world) = World::new(MOUNT) else { return };
    const LIMIT: usize = 20 * MIB;
    world.mount(&[]);
    let (root, subvolume) = (world.at(""), world.at("s"));
    succeed(["subvolume", "create", &subvolume]);
    succeed(["quota", "enable", &root]);
    succeed(["quota", "rescan", "-W", &root]);
    succeed(["qgroup", "limit", "20M", &subvolume]);
    let ours = overfill_each(Path::new(&subvolume), 50 * MIB);
    println!("a limit: {ours:?}");
    judge_gathered(&ours, libc::EDQUOT, LIMIT - MIB, LIMIT);
    // The limit of the program's own files holds.
    let limited = format!("ulimit -f 8192; trap '' XFSZ; dd if=/dev/zero of={subvolume}/f bs=50M count=1");
    let ended = std::process::Command::new("bash").args(["-c", &limited]).output().unwrap();
    assert!(!ended.status.success());
    assert!(fs::metadata(world.at("s/f")).unwrap().len() <= 8192 * 1024);
    fs::remove_file(world.at("s/f")).unwrap();
    succeed(["quota", "disable", &root]);
    // A nearly full disk.
    let fill = File::create(world.at("fill")).unwrap();
    let sizes = rustix::fs::statvfs(world.directory()).unwrap();
    let left = (sizes.f_bavail * sizes.f_frsize).next_multiple_of(4096) - (40 << 20);
    for at in (0..left).step_by(16 << 20) {
        let step = (left - at).min(16 << 20);
        rustix::fs::fallocate(&fill, rustix::fs::FallocateFlags::empty(), at, step).unwrap();
    }
    drop(fill);
    succeed(["filesystem", "sync", &root]);
    let ours = overfill_each(&world.directory(), 100 * MIB);
    println!("a full disk: {ours:?}");
    judge_gathered(&ours, libc::ENOSPC, 20 * MIB, 48 * MIB);
    world.unmount();
    world.assert_clean();
}

/// The kernel takes a short answer to a direct write for EIO where it opened the file by itself.
#[test]
fn a_direct_write_without_room_gets_its_error() {
    let Some(world) = World::new(MOUNT) else { return };
    fs::remove_file(world.image()).unwrap();
    succeed(["mkfs", "-q", "--size", "200M", world.image().to_str().unwrap()]);
    world.mount_plainly(&["-o", "opens=kernel"]);
    let all = content(2 * MIB);
    let at = all.as_ptr().align_offset(4096);
    for name in ["first", "f"] {
        File::create(world.at(name)).unwrap();
    }
    let mut file = File::options().write(true).custom_flags(libc::O_DIRECT).open(world.at("f")).unwrap();
    // Of an odd number of blocks, so that the last one does not end where the room does.
    let error = loop {
        if let Err(error) = file.write_all(&all[at..at + 255 * 4096]) {
            break error;
        }
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    drop(file);
    world.unmount();
}
