//! Streams of Papilio, received by Papilio, on devices in memory: equal content, cut streams, and
//! paths that leave the subvolume.

use papilio::device::{Device, MemoryDevice};
use papilio::{
    Error, FileSystem, MkfsOptions, OpenOptions, Receive, ReceivedSubvolume, SendCommand as Command,
    SendOptions, SendProtocol, Uuid,
};
use std::sync::Arc;

fn made() -> FileSystem {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(256 << 20));
    papilio::mkfs_device(&device, &MkfsOptions::new()).unwrap();
    let options = OpenOptions::new().write(true).commit_interval(None);
    FileSystem::from_devices(vec![device], &options).unwrap()
}

/// Two snapshots, `/s1` and `/s2`, with a swap of directories, a move into a child, a reflink, a
/// hard link and a hole between them.
fn source() -> FileSystem {
    let fs = made();
    fs.create_subvolume("/sv").unwrap();
    for directory in ["/sv/a", "/sv/b", "/sv/a/in", "/sv/c"] {
        fs.create_dir(directory).unwrap();
    }
    fs.write("/sv/a/in/file", vec![7; 300_000]).unwrap();
    fs.write("/sv/b/small", "text").unwrap();
    fs.snapshot("/sv", "/s1", true).unwrap();
    fs.rename("/sv/a", "/sv/t").unwrap();
    fs.rename("/sv/b", "/sv/a").unwrap();
    fs.rename("/sv/t", "/sv/b").unwrap();
    fs.rename("/sv/b/in", "/sv/in").unwrap();
    fs.rename("/sv/b", "/sv/in/b").unwrap();
    fs.remove_dir("/sv/c").unwrap();
    fs.hard_link("/sv/a/small", "/sv/again").unwrap();
    let file = fs.open_file("/sv/in/file").unwrap();
    let copy = fs.create_file("/sv/copy").unwrap();
    copy.clone_range(&file, 0, 0, 0).unwrap();
    file.punch_hole(4096, 65_536).unwrap();
    fs.set_xattr("/sv/a", b"user.x", b"value").unwrap();
    drop((file, copy));
    fs.snapshot("/sv", "/s2", true).unwrap();
    fs
}

fn stream(fs: &FileSystem, send: SendOptions, path: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let id = fs.inode(path).unwrap().tree();
    send.send(fs, id, &mut bytes, &mut ()).unwrap();
    bytes
}

fn receive(fs: &FileSystem, bytes: &[u8]) -> (papilio::Result<()>, Vec<ReceivedSubvolume>) {
    let mut received = Vec::new();
    let result = Receive::new().receive(fs, "/", &mut &bytes[..], &mut received, &mut ());
    (result, received)
}

fn assert_same(left: &FileSystem, right: &FileSystem, path: &str) {
    let list = |fs: &FileSystem| {
        let mut entries: Vec<_> = fs.walk(path).unwrap().map(|entry| entry.unwrap()).collect();
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        entries
    };
    let (left_entries, right_entries) = (list(left), list(right));
    assert_eq!(left_entries.len(), right_entries.len());
    for (a, b) in left_entries.iter().zip(&right_entries) {
        assert_eq!(a.path, b.path);
        let (x, y) = (a.inode.metadata(), b.inode.metadata());
        assert_eq!((x.mode(), x.uid(), x.gid()), (y.mode(), y.uid(), y.gid()), "{:?}", a.path);
        assert_eq!((x.mtime(), x.nlink()), (y.mtime(), y.nlink()), "{:?}", a.path);
        assert_eq!(a.inode.xattrs().unwrap(), b.inode.xattrs().unwrap());
        if x.is_file() {
            let read = |inode: &papilio::Inode| inode.open().unwrap().read_all().unwrap();
            assert!(read(&a.inode) == read(&b.inode), "{:?}", String::from_utf8_lossy(&a.path));
        }
    }
}

#[test]
fn full_and_incremental_streams_carry_everything() {
    let fs = source();
    let parent = Some(fs.inode("/s1").unwrap().tree());
    for protocol in [SendProtocol::V1, SendProtocol::V2] {
        let target = made();
        let send = SendOptions::new().protocol(protocol).compressed_data(protocol == SendProtocol::V2);
        for bytes in [stream(&fs, send.clone(), "/s1"), stream(&fs, send.parent(parent), "/s2")] {
            let (result, received) = receive(&target, &bytes);
            result.unwrap();
            assert!(received.iter().all(|subvolume| subvolume.complete));
        }
        assert_same(&fs, &target, "/s1");
        assert_same(&fs, &target, "/s2");
    }
}

/// Sends `/s1` and what changed until `/s2`, and compares what arrives.
fn assert_arrives(fs: &FileSystem) {
    let target = made();
    let parent = Some(fs.inode("/s1").unwrap().tree());
    for bytes in [stream(fs, SendOptions::new(), "/s1"), stream(fs, SendOptions::new().parent(parent), "/s2")]
    {
        receive(&target, &bytes).0.unwrap();
    }
    assert_same(fs, &target, "/s1");
    assert_same(fs, &target, "/s2");
}

#[test]
fn attributes_of_directories_do_not_reach_new_inodes() {
    const COMPRESSION: &[u8] = b"btrfs.compression";
    let fs = made();
    fs.create_subvolume("/sv").unwrap();
    fs.create_dir("/sv/d").unwrap();
    let plain = |path: &str| {
        fs.write(path, "text").unwrap();
        assert!(!fs.inode(path).unwrap().xattrs().unwrap().is_empty(), "{path} inherits");
        fs.inode(path).unwrap().remove_xattr(COMPRESSION).unwrap();
    };
    fs.set_xattr("/sv", COMPRESSION, b"zstd").unwrap();
    fs.set_xattr("/sv/d", COMPRESSION, b"lzo").unwrap();
    ["/sv/one", "/sv/d/one"].into_iter().for_each(plain);
    fs.snapshot("/sv", "/s1", true).unwrap();
    ["/sv/two", "/sv/d/two"].into_iter().for_each(plain);
    fs.create_dir("/sv/e").unwrap();
    fs.set_xattr("/sv", COMPRESSION, b"zlib").unwrap();
    fs.snapshot("/sv", "/s2", true).unwrap();
    assert_arrives(&fs);
}

#[test]
fn directories_that_wait_and_circles_of_directories_arrive() {
    let fs = made();
    fs.create_subvolume("/sv").unwrap();
    let numbers = 0..80;
    for number in numbers.clone() {
        fs.create_dir(format!("/sv/d{number}")).unwrap();
        fs.create_dir(format!("/sv/d{number}/in")).unwrap();
    }
    // Three directories that change their order in one chain.
    ["/sv/a", "/sv/a/b", "/sv/a/b/c"].into_iter().for_each(|path| drop(fs.create_dir(path).unwrap()));
    fs.snapshot("/sv", "/s1", true).unwrap();
    // Each moves into the one after it, which moves later.
    for number in numbers.take(79) {
        fs.rename(format!("/sv/d{number}"), format!("/sv/d{}/in/m{number}", number + 1)).unwrap();
    }
    fs.rename("/sv/d79", "/sv/a/b/c/top").unwrap();
    for (from, to) in [("/sv/a/b/c", "/sv/c"), ("/sv/a/b", "/sv/c/b"), ("/sv/a", "/sv/c/b/a")] {
        fs.rename(from, to).unwrap();
    }
    fs.snapshot("/sv", "/s2", true).unwrap();
    assert_arrives(&fs);
    // The same backwards.
    let target = made();
    let parent = Some(fs.inode("/s2").unwrap().tree());
    for bytes in
        [stream(&fs, SendOptions::new(), "/s2"), stream(&fs, SendOptions::new().parent(parent), "/s1")]
    {
        receive(&target, &bytes).0.unwrap();
    }
    assert_same(&fs, &target, "/s1");
}

#[test]
fn a_cut_stream_leaves_nothing_that_looks_complete() {
    let fs = source();
    let bytes = stream(&fs, SendOptions::new(), "/s1");
    for cut in (0..bytes.len()).step_by(bytes.len() / 40) {
        let target = made();
        let (result, received) = receive(&target, &bytes[..cut]);
        assert!(matches!(result, Err(Error::SendStream(_))), "{cut}: {result:?}");
        assert!(received.iter().all(|subvolume| !subvolume.complete));
        for subvolume in target.subvolumes().unwrap().iter().filter(|found| !found.name.is_empty()) {
            assert!(subvolume.received_uuid.is_nil() && !subvolume.is_read_only());
        }
    }
}

/// Returns the ends of the commands of a stream.
fn ends(bytes: &[u8]) -> Vec<usize> {
    let mut rest = bytes;
    let input: &mut dyn std::io::Read = &mut rest;
    let mut reader = papilio::StreamReader::new(input);
    let mut ends = Vec::new();
    while reader.next_command().unwrap().is_some() {
        ends.push(reader.offset() as usize);
    }
    ends
}

#[test]
fn an_incremental_stream_is_resumed_from_a_cut_at_every_command() {
    let fs = source();
    let protocol = SendOptions::new().protocol(SendProtocol::V2);
    let full = stream(&fs, protocol.clone(), "/s1");
    let next = stream(&fs, protocol.parent(Some(fs.inode("/s1").unwrap().tree())), "/s2");
    let ends = ends(&next);
    assert!(ends.len() > 20, "{} commands", ends.len());
    let target = made();
    receive(&target, &full).0.unwrap();
    let resume = |bytes: &[u8]| {
        let mut received = Vec::new();
        let run = Receive::new().resume(true);
        (run.receive(&target, "/", &mut &bytes[..], &mut received, &mut ()), received)
    };
    // One run for each command: each goes on where the one before it ended.
    for end in &ends[..ends.len() - 1] {
        let (result, received) = resume(&next[..*end]);
        assert!(matches!(result, Err(Error::SendStream(_))), "{end}: {result:?}");
        assert!(received[0].resumable && !received[0].complete);
        let found = target.subvolumes().unwrap().into_iter().find(|found| found.name == b"s2").unwrap();
        assert!(found.received_uuid.is_nil() && !found.is_read_only(), "{end}");
    }
    // A stream whose first commands differ is refused.
    let mut other = next.clone();
    let (from, to) = (ends[ends.len() - 3], ends[ends.len() - 2]);
    other.drain(from..to);
    assert!(resume(&other).0.is_err());
    let (result, received) = resume(&next);
    result.unwrap();
    assert!(received[0].complete);
    assert_same(&fs, &target, "/s2");
}

#[test]
fn a_full_target_and_reordered_commands_leave_nothing_complete() {
    let uuid = Uuid::from_u128(5);
    let path = || b"f".to_vec();
    let subvol = Command::Subvol { path: b"s".to_vec(), uuid, ctransid: 1 };
    let write = Command::Write { path: path(), offset: 0, data: vec![1; 40_000] };
    let file = Command::Mkfile { path: path(), inode: 257 };
    let space = Command::Fallocate { path: path(), mode: 0, offset: 0, size: 4 << 30 };
    for commands in [
        vec![subvol.clone(), write.clone(), file.clone(), Command::End],
        vec![subvol.clone(), file, space, Command::End],
        vec![write, subvol.clone(), Command::End],
        vec![Command::End, subvol],
    ] {
        let target = made();
        let mut bytes = SendProtocol::V2.header().to_vec();
        for command in &commands {
            command.append_to(SendProtocol::V2, &mut bytes).unwrap();
        }
        let (result, received) = receive(&target, &bytes);
        assert!(matches!(result, Err(Error::Receive { .. })), "{commands:?}: {result:?}");
        assert!(received.iter().all(|subvolume| !subvolume.complete));
    }
}

#[test]
fn paths_that_leave_the_subvolume_are_refused() {
    let uuid = Uuid::from_u128(5);
    for path in ["../outside", "/outside", "link/outside", "a//b", "./a", "d/../../outside"] {
        let target = made();
        let commands = [
            Command::Subvol { path: b"s".to_vec(), uuid, ctransid: 1 },
            Command::Mkdir { path: b"d".to_vec(), inode: 257 },
            Command::Symlink { path: b"link".to_vec(), inode: 258, target: b"..".to_vec() },
            Command::Mkfile { path: path.as_bytes().to_vec(), inode: 259 },
            Command::End,
        ];
        let mut bytes = SendProtocol::V1.header().to_vec();
        for command in &commands {
            command.append_to(SendProtocol::V1, &mut bytes).unwrap();
        }
        let (result, _) = receive(&target, &bytes);
        assert!(matches!(result, Err(Error::Receive { .. })), "{path}: {result:?}");
        assert!(target.inode("/outside").is_err());
    }
}
