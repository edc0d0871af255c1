//! The device as a virtual machine monitor and its guest use it, and abuse it. The tests need no
//! virtual machine: they lend a file as memory and put requests into queues there.

#![cfg(target_os = "linux")]

mod fuse;
mod hostile;
mod monitor;

use fuse::{DESTROY, FORGET, FSYNC, GETATTR, IOCTL, MKDIR, SYNCFS, request};
use monitor::{Monitor, TURN};
use papilio::{FileSystem, MkfsOptions, OpenOptions};
use papilio_fuse::MountOptions;
use papilio_fuse::guest::GuestSession;
use papilio_virtiofs::{Listening, Server, Tag};
use std::path::{Path, PathBuf};

/// A server over an image in a folder of its own.
struct World {
    folder: tempfile::TempDir,
    server: Option<Server>,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        papilio::mkfs(folder.path().join("image"), &MkfsOptions::new().size(256 << 20)).unwrap();
        let mut world = Self { folder, server: None };
        world.start("rw");
        world
    }

    fn start(&mut self, options: &str) {
        let options = MountOptions::parse(options).unwrap();
        let open = OpenOptions::new().write(!options.read_only).cache_bytes(16 << 20);
        let fs = FileSystem::open_with(self.image(), &open).unwrap();
        let session = GuestSession::new(fs, &self.image(), &options);
        let listening = Listening::new(&self.socket()).unwrap();
        self.server = Some(Server::start(listening, session, Tag::new("shared").unwrap()).unwrap());
    }

    fn stop(&mut self) {
        self.server.take().unwrap().stop().unwrap();
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }
}

/// Checks an image that nothing has open.
fn check(image: &Path) {
    let report = papilio::check(image, &OpenOptions::new(), &papilio::CheckOptions::default()).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

#[test]
fn a_guest_has_files_and_the_next_one_finds_them() {
    let _turn = TURN.lock();
    let mut world = World::new();
    let mut monitor = Monitor::connect(&world.socket());
    let (tag, queues) = monitor.config();
    assert!(tag == "shared" && queues >= 1);
    // Before the guest has agreed it gets nothing.
    assert_eq!(monitor.fuse(GETATTR, 1, &[&[0; 16]]), Err(libc_eio()));
    // Neither gathered writes, nor mapped ids: see `papilio_fuse::guest`.
    assert_eq!(monitor.begin() & (1 << 16 | 1 << 40), 0);
    let file = monitor.create(1, "file").unwrap();
    let data: Vec<u8> = (0..100_000_u32).map(|number| (number / 7) as u8).collect();
    assert_eq!(monitor.write(file, 0, &data), Ok(100_000));
    assert_eq!(monitor.read(file, 0, 100_000).unwrap(), data);
    assert_eq!(monitor.read(file, 99_990, 100).unwrap(), data[99_990..]);
    let mut made = Vec::new();
    made.extend(0o755_u32.to_le_bytes());
    made.extend(0_u32.to_le_bytes());
    let folder = monitor.fuse(MKDIR, 1, &[&made, b"folder\0"]).unwrap();
    let inner = monitor.create(fuse::u64_at(&folder, 0), "inner").unwrap();
    monitor.write(inner, 0, b"inner").unwrap();
    monitor.fuse(FSYNC, file, &[&[0; 16]]).unwrap();
    monitor.fuse(SYNCFS, 1, &[&[0; 8]]).unwrap();
    // A request without a reply, in the queue of high priority.
    let mut forget = request(FORGET, file, &[&1_u64.to_le_bytes()]);
    monitor.submit(0, 0, &forget, 0);
    assert_eq!(monitor.returned(0), (0, 0));
    assert!(monitor.fuse(GETATTR, file, &[&[0; 16]]).is_err());
    // A guest that is gone without a word.
    drop(monitor);

    let mut monitor = Monitor::connect(&world.socket());
    monitor.begin();
    let file = monitor.lookup(1, "file").unwrap();
    assert_eq!(monitor.read(file, 0, 100_000).unwrap(), data);
    assert_eq!(monitor.lookup(1, "other"), Ok(0));
    // It restarts within the connection.
    monitor.fuse(DESTROY, 0, &[]).unwrap();
    assert_eq!(monitor.fuse(GETATTR, 1, &[&[0; 16]]), Err(libc_eio()));
    monitor.begin();
    let folder = monitor.lookup(1, "folder").unwrap();
    let inner = monitor.lookup(folder, "inner").unwrap();
    assert_eq!(monitor.read(inner, 0, 10).unwrap(), b"inner");
    // Many requests at once.
    for number in 0..8_u16 {
        let read = request(fuse::READ, inner, &[&fuse::access(0, 5)]);
        monitor.submit(1, number, &read, 100);
    }
    for _ in 0..8 {
        let (head, length) = monitor.returned(1);
        assert_eq!(fuse::body(&monitor.reply(head / 2, length)).unwrap(), b"inner");
    }
    assert!(monitor.stop(1) > 10);
    forget.clear();
    world.stop();
    assert!(!world.socket().exists());
    drop(monitor);
    check(&world.image());
}

#[test]
fn a_guest_that_may_only_read_changes_nothing() {
    let _turn = TURN.lock();
    let mut world = World::new();
    let mut monitor = Monitor::connect(&world.socket());
    monitor.begin();
    let file = monitor.create(1, "file").unwrap();
    monitor.write(file, 0, b"content").unwrap();
    drop(monitor);
    world.stop();
    let before = std::fs::read(world.image()).unwrap();
    world.start("ro");
    let mut monitor = Monitor::connect(&world.socket());
    monitor.begin();
    let file = monitor.lookup(1, "file").unwrap();
    assert_eq!(monitor.read(file, 0, 100).unwrap(), b"content");
    assert!(monitor.create(1, "other").is_err());
    assert!(monitor.write(file, 0, b"changed").is_err());
    drop(monitor);
    world.stop();
    assert!(std::fs::read(world.image()).unwrap() == before);
}

#[test]
fn ioctls_that_reach_into_this_machine_are_refused() {
    let _turn = TURN.lock();
    let mut world = World::new();
    let mut monitor = Monitor::connect(&world.socket());
    monitor.begin();
    let mut ioctl = |command: u32, input: &[u8], output: u32| {
        // `struct fuse_ioctl_in`: handle, flags, command, argument, sizes.
        let mut argument = Vec::new();
        argument.extend(0_u64.to_le_bytes());
        argument.extend(0_u32.to_le_bytes());
        argument.extend(command.to_le_bytes());
        argument.extend(0x1000_u64.to_le_bytes());
        argument.extend((input.len() as u32).to_le_bytes());
        argument.extend(output.to_le_bytes());
        monitor.fuse(IOCTL, 1, &[&argument, input])
    };
    // FS_IOC_GETFLAGS, and BTRFS_IOC_ADD_DEV of a path of this machine; BTRFS_IOC_DEV_INFO.
    assert!(ioctl(0x8008_6601, &[], 8).is_ok());
    let mut path = vec![0; 4096];
    path[8..17].copy_from_slice(b"/dev/vda\0");
    assert_eq!(ioctl(0x5000_940a, &path, 0), Err(25));
    assert_eq!(ioctl(0xd000_941e, &[0; 4096], 4096), Err(25));
    drop(monitor);
    world.stop();
    check(&world.image());
}

#[test]
fn tags_have_1_to_36_bytes() {
    assert!(Tag::new("a").is_some() && Tag::new(&"a".repeat(36)).is_some());
    assert!(Tag::new("").is_none() && Tag::new(&"a".repeat(37)).is_none() && Tag::new("a\nb").is_none());
}

fn libc_eio() -> i32 {
    5
}
