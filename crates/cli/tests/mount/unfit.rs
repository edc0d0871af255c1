//! Writes that do not fit by other ways than `write`: through a mapping, and by a client of NBD
//! whose disk is a sparse file of the mount.
//!
//! The part that fits is stored, the error belongs to that file or request, and all else stays
//! sound. The kernel's Btrfs ends the program with SIGBUS where a page of a mapping finds no space.
//! FUSE does not ask the server then, so on our mount `msync` reports the error, and the pages that
//! are stored need not be the first ones.

use crate::kernel::KernelMount;
use crate::late_writes::disk::Disk;
use crate::world::{MOUNT, World, papilio, run, succeed};
use papilio_oracle::Need;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;
/// Bytes that are written, and bytes that the file system leaves for them.
const WRITTEN: usize = 48 * MIB;
const ROOM: u64 = 16 << 20;

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|at| ((at / 3 % 251) as u8 ^ (at >> 16) as u8) | 1).collect()
}

/// Takes all space but that of `ROOM` bytes.
fn leave_room(root: &Path) {
    let file = File::create(root.join("fill")).unwrap();
    let (mut at, mut step) = (0, 64 << 20);
    while step >= 4096 {
        match fallocate(&file, FallocateFlags::empty(), at, step) {
            Ok(()) => at += step,
            Err(_) => step /= 2,
        }
    }
    file.set_len(at - ROOM).unwrap();
    file.sync_all().unwrap();
    // The kernel's Btrfs frees the space with a commit.
    run("sync", &["-f", root.to_str().unwrap()]);
}

/// Writes all of `bytes` to a file through a mapping, and returns what `msync` and `fsync` say.
fn write_mapped(path: &str, bytes: &[u8]) -> [Result<(), Errno>; 2] {
    let file = File::options().read(true).write(true).create(true).truncate(true).open(path).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, inside the file, that nothing else uses and that is gone at the end.
    let synced = unsafe {
        let start = mmap(std::ptr::null_mut(), bytes.len(), access, MapFlags::SHARED, &file, 0).unwrap();
        let mapped = std::slice::from_raw_parts_mut(start.cast::<u8>(), bytes.len());
        // Page after page: one long copy may write its first bytes last.
        for (mapped, page) in mapped.chunks_mut(PAGE).zip(bytes.chunks(PAGE)) {
            mapped.copy_from_slice(page);
        }
        let synced = msync(start, bytes.len(), MsyncFlags::SYNC);
        munmap(start, bytes.len()).unwrap();
        synced
    };
    [synced, rustix::fs::fsync(&file)]
}

/// Asserts that each page of a file is what was written, or a hole, and returns the bytes that are
/// stored. The kernel's threads write the pages of a mapping back in an order of their own.
fn stored_of(found: &[u8], bytes: &[u8], who: &str) -> usize {
    assert_eq!(found.len(), bytes.len(), "{who}");
    let pages = found.chunks(PAGE).zip(bytes.chunks(PAGE)).enumerate();
    let stored = pages.filter(|(number, (found, wrote))| {
        // A page may have been written back while the program filled it.
        let is = found.iter().zip(*wrote).all(|(found, wrote)| found == wrote || *found == 0);
        assert!(is, "{who}: page {number} has other bytes");
        found.iter().any(|byte| *byte != 0)
    });
    stored.count() * PAGE
}

/// The limit of the room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scarce {
    Space,
    Limit,
}

fn meets_the_end(world: &World, scarce: Scarce, options: &[&str]) {
    let who = format!("{scarce:?}, {options:?}");
    fs::remove_file(world.image()).unwrap();
    let image = world.image().to_str().unwrap().to_owned();
    succeed(["mkfs", "-q", "--size", "300M", &image]);
    world.mount_plainly(options);
    let (root, bytes) = (world.at(""), content(WRITTEN));
    succeed(["subvolume", "create", &world.at("s")]);
    fs::write(world.at("s/before"), &bytes[..MIB]).unwrap();
    let error = match scarce {
        Scarce::Space => {
            leave_room(&world.directory());
            Errno::NOSPC
        }
        Scarce::Limit => {
            succeed(["quota", "enable", &root]);
            succeed(["quota", "rescan", "-W", &root]);
            succeed(["qgroup", "limit", "20M", &world.at("s")]);
            Errno::DQUOT
        }
    };
    let path = world.at("s/mapped");
    let [synced, _] = write_mapped(&path, &bytes);
    assert_eq!(synced, Err(error), "{who}");
    // Another file is not concerned. On a full disk it finds no space either.
    let before = File::options().append(true).open(world.at("s/before")).unwrap();
    before.sync_all().unwrap_or_else(|error| panic!("{who}: another file: {error}"));
    drop(before);
    if scarce == Scarce::Limit {
        fs::write(world.at("beside"), &bytes[..100]).unwrap();
        File::open(world.at("beside")).unwrap().sync_all().unwrap();
    }
    // No program of ours can know that this one was told, so a sync says it once, by its name.
    let first = papilio(["filesystem", "sync", &root]);
    let text = String::from_utf8_lossy(&first.stderr);
    assert!(first.status.success() || text.contains("s/mapped could not be stored"), "{who}: {text}");
    succeed(["filesystem", "sync", &root]);
    world.unmount();
    let stored = stored_of(&fs_read(&image, "s/mapped"), &bytes, &who);
    assert!(stored > 4 * MIB && stored < WRITTEN, "{who}: {stored} bytes");
    assert!(fs_read(&image, "s/before").starts_with(&bytes[..MIB]), "{who}");
    // The next mount knows of no error, and the space comes back.
    world.mount_plainly(options);
    fs::remove_file(&path).unwrap();
    succeed(["filesystem", "sync", &root]);
    fs::write(world.at("s/after"), &bytes[..8 * MIB]).unwrap();
    succeed(["filesystem", "sync", &root]);
    world.unmount();
    assert!(fs_read(&image, "s/after") == bytes[..8 * MIB], "{who}");
    world.assert_clean();
}

fn fs_read(image: &str, path: &str) -> Vec<u8> {
    papilio::FileSystem::open(image).unwrap().read(path).unwrap()
}

#[test]
fn a_mapped_file_that_does_not_fit_keeps_what_does() {
    let Some(world) = World::new(&[MOUNT, &[Need::Command("btrfs")]].concat()) else { return };
    for options in [&[][..], &["-o", "writeback_cache"], &["-o", "cache=0"]] {
        meets_the_end(&world, Scarce::Space, options);
    }
    meets_the_end(&world, Scarce::Limit, &["-o", "writeback_cache"]);
}

#[test]
fn the_kernel_ends_a_program_whose_mapping_does_not_fit() {
    let needs = [Need::KERNEL_MOUNT, MOUNT, &[Need::Command("xfs_io"), Need::Command("mkfs.btrfs")]];
    let Some(world) = World::new(&needs.concat()) else { return };
    let image = world.beside("kernel.img");
    File::create(&image).unwrap().set_len(300 << 20).unwrap();
    run("mkfs.btrfs", &["-q", image.to_str().unwrap()]);
    let kernel = KernelMount::new(&image, &world.directory(), "rw");
    leave_room(&world.directory());
    let write = format!("mwrite -S 0x5a 0 {WRITTEN}");
    let map = format!("mmap -rw 0 {WRITTEN}");
    let size = format!("truncate {WRITTEN}");
    let path = world.at("mapped");
    let ended = Command::new("xfs_io")
        .args(["-f", "-c", &size, "-c", &map, "-c", &write, "-c", "msync -s", &path])
        .status()
        .unwrap();
    assert_eq!(ended.signal(), Some(libc::SIGBUS), "{ended}");
    run("sync", &["-f", world.directory().to_str().unwrap()]);
    drop(kernel);
    let stored = stored_of(&fs_read(image.to_str().unwrap(), "mapped"), &[0x5a; WRITTEN], "the kernel");
    assert!(stored > 4 * MIB && stored < WRITTEN, "{stored}");
}

/// Writes a disk that does not fit, request by request, then frees space and writes the rest.
fn write_disk(root: &Path, who: &str) {
    let path = root.join("disk");
    File::create(&path).unwrap().set_len(WRITTEN as u64).unwrap();
    fs::write(root.join("beside"), [5; 100_000]).unwrap();
    leave_room(root);
    let bytes = content(WRITTEN);
    let disk = Disk::new(&path);
    let mut refused = Vec::new();
    for at in (0..WRITTEN).step_by(MIB) {
        let wrote = disk.write(&bytes[at..at + MIB], at as u64).and_then(|()| disk.flush());
        if let Err(error) = wrote {
            assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{who}: {at}: {error}");
            refused.push(at);
        }
    }
    let fit = WRITTEN / MIB - refused.len();
    assert!((8..=24).contains(&fit), "{who}: {fit} requests fit");
    // The server goes on, and what it acknowledged can be read.
    let found = fs::read(&path).unwrap();
    for at in (0..WRITTEN).step_by(MIB).filter(|at| !refused.contains(at)) {
        assert!(found[at..at + MIB] == bytes[at..at + MIB], "{who}: {at}");
    }
    assert!(fs::read(root.join("beside")).unwrap() == [5; 100_000], "{who}");
    fs::remove_file(root.join("fill")).unwrap();
    run("sync", &["-f", root.to_str().unwrap()]);
    for at in refused {
        disk.write(&bytes[at..at + MIB], at as u64).unwrap_or_else(|error| panic!("{who}: {at}: {error}"));
    }
    disk.flush().unwrap_or_else(|error| panic!("{who}: flush: {error}"));
    drop(disk);
    assert!(fs::read(&path).unwrap() == bytes, "{who}");
}

#[test]
fn a_disk_of_nbd_that_does_not_fit_answers_for_its_requests() {
    let needs = [Need::KERNEL_MOUNT, MOUNT, &[Need::Command("btrfs"), Need::Command("mkfs.btrfs")]];
    let Some(world) = World::new(&needs.concat()) else { return };
    for options in [&[][..], &["-o", "writeback_cache"], &["-o", "cache=0"]] {
        fs::remove_file(world.image()).unwrap();
        succeed(["mkfs", "-q", "--size", "300M", world.image().to_str().unwrap()]);
        world.mount_plainly(options);
        write_disk(&world.directory(), &format!("{options:?}"));
        succeed(["filesystem", "sync", &world.at("")]);
        world.unmount();
        assert!(fs_read(world.image().to_str().unwrap(), "disk") == content(WRITTEN), "{options:?}");
        world.assert_clean();
    }
    let image = world.beside("kernel.img");
    File::create(&image).unwrap().set_len(300 << 20).unwrap();
    run("mkfs.btrfs", &["-q", image.to_str().unwrap()]);
    let kernel = KernelMount::new(&image, &world.directory(), "rw");
    write_disk(&world.directory(), "the kernel");
    drop(kernel);
}
