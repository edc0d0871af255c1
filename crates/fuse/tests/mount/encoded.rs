//! Encoded reads and writes, beside the kernel's Btrfs; and the stock `btrfs receive`, which keeps
//! compressed extents as they lie.

use crate::ioctls::{compile, text};
use crate::server::{Mount, NEEDS, check};
use papilio_ioctl::EncodedPart;
use papilio_ioctl::client::MountedPath;
use papilio_oracle::sys::{create_snapshot, create_subvolume};
use papilio_oracle::{FileSystemSpec, ImageSet, Need, Scratch, require};
use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

/// Names of the files below the subvolume.
const FILES: [&str; 4] = ["long", "odd", "part", "plain"];

fn content(length: usize) -> Vec<u8> {
    let lines = (0_u64..).flat_map(|n| format!("line {n} {:x}\n", n.wrapping_mul(0x9e37_79b9)).into_bytes());
    lines.take(length).collect()
}

fn spec(options: &str) -> FileSystemSpec {
    FileSystemSpec { mount_options: vec![options.to_owned()], ..FileSystemSpec::default() }
}

/// Fills the subvolume `s` of a file system of the kernel, with the read-only snapshot `s1`.
fn source(scratch: &Scratch) -> ImageSet {
    let set = spec("compress-force=zstd").make(scratch).unwrap();
    let mounted = set.mount().unwrap();
    let root = mounted.path().join("s");
    create_subvolume(&root).unwrap();
    fs::write(root.join("long"), content(700_000)).unwrap();
    fs::write(root.join("odd"), content(50_001)).unwrap();
    fs::write(root.join("part"), content(300_000)).unwrap();
    rustix::fs::sync();
    // The middle of an extent, so that parts of it remain on both sides.
    let part = File::options().write(true).open(root.join("part")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&part, &content(8192), 40_960).unwrap();
    let plain = File::create(root.join("plain")).unwrap();
    xattr::set(root.join("plain"), "btrfs.compression", b"none").unwrap();
    drop(plain);
    fs::write(root.join("plain"), content(30_000)).unwrap();
    rustix::fs::sync();
    create_snapshot(&root, &mounted.path().join("s1"), true).unwrap();
    mounted.unmount().unwrap();
    set
}

/// Returns the stored bytes of an extent that the kernel compressed, and its length without
/// compression.
fn compressed_extent(scratch: &Scratch) -> (Vec<u8>, u64) {
    let set = source(scratch);
    let from = set.mount_read_only().unwrap();
    let mut buffer = vec![0; 256 << 10];
    let long = MountedPath::from_file(File::open(from.path().join("s1/long")).unwrap());
    let (read, part) = long.read_encoded(0, &mut buffer).unwrap();
    drop(long);
    from.unmount().unwrap();
    buffer.truncate(read);
    (buffer, part.unencoded_length)
}

/// A part of a file as it lies: its numbers, and the stored bytes.
type Found = (EncodedPart<'static>, Vec<u8>);

fn encoded(path: &Path) -> Vec<Found> {
    let file = File::open(path).unwrap();
    let size = file.metadata().unwrap().len();
    let file = MountedPath::from_file(file);
    let (mut found, mut at) = (Vec::new(), 0);
    while at < size {
        let mut buffer = vec![0xee; 256 << 10];
        let (read, part) = file.read_encoded(at, &mut buffer).unwrap();
        assert!(part.length > 0 && buffer[read..].iter().all(|byte| *byte == 0xee), "{part:?}");
        buffer.truncate(read);
        at += part.length;
        found.push((part, buffer));
    }
    let mut none = [0; 10];
    assert_eq!(file.read_encoded(size, &mut none).unwrap().0, 0);
    found
}

fn assert_same_extents(left: &Path, right: &Path) {
    // The kernel sends the parts of a split extent as plain bytes or as clones.
    for name in FILES.into_iter().filter(|name| *name != "part") {
        let (left, right) = (encoded(&left.join(name)), encoded(&right.join(name)));
        let numbers = |found: &[Found]| found.iter().map(|(part, _)| *part).collect::<Vec<_>>();
        assert_eq!(numbers(&left), numbers(&right), "{name}");
        assert!(left == right, "{name}: other bytes");
    }
}

#[test]
fn stock_receive_keeps_extents_encoded() {
    let needs = [NEEDS, &[Need::Command("cc"), Need::Command("btrfs")]].concat();
    let Some(_) = require(&needs) else { return };
    let scratch = Scratch::new(2 << 30).unwrap();
    let set = source(&scratch);
    let stream = scratch.path().join("stream");
    let from = set.mount_read_only().unwrap();
    let mut send = Command::new("btrfs");
    send.args(["send", "-q", "--proto", "2", "--compressed-data", "-f"]).arg(&stream);
    text(&send.arg(from.path().join("s1")).output().unwrap());
    assert!(encoded(&from.path().join("s1/long")).iter().all(|(part, _)| part.compression == 2));

    // The mount compresses nothing itself: compressed extents arrived so.
    let to = FileSystemSpec::default().make(&scratch).unwrap();
    let library = compile(&scratch, "as_btrfs.c", true);
    let mount = Mount::new(&scratch, &to.paths()[0], "subvolid=5");
    let mut receive = Command::new("btrfs");
    receive.env("LD_PRELOAD", &library).args(["receive", "-q", "-f"]).arg(&stream).arg(mount.path());
    text(&receive.output().unwrap());
    for name in FILES {
        let at = |root: &Path| fs::read(root.join("s1").join(name)).unwrap();
        assert!(at(mount.path()) == at(from.path()), "{name}");
    }
    assert!(encoded(&mount.path().join("s1/long")).iter().all(|(part, _)| part.compression == 2));
    assert_same_extents(&mount.path().join("s1"), &from.path().join("s1"));
    mount.unmount();
    check(&to.paths()[0]);
    to.btrfs_check().unwrap();
    let kernel = to.mount_read_only().unwrap();
    assert_same_extents(&kernel.path().join("s1"), &from.path().join("s1"));
    kernel.unmount().unwrap();
    from.unmount().unwrap();
}

/// Issues calls that a file system refuses or takes, and returns what came of each.
fn answers(root: &Path, extent: &[u8], uncompressed: u64) -> Vec<String> {
    let path = root.join("file");
    let open = |flags: i32| {
        MountedPath::from_file(
            File::options().read(true).write(true).custom_flags(flags).open(&path).unwrap(),
        )
    };
    fs::write(&path, content(20_000)).unwrap();
    let file = open(0);
    let good = EncodedPart {
        data: extent,
        offset: 0,
        length: uncompressed,
        unencoded_length: uncompressed,
        unencoded_offset: 0,
        compression: 2,
    };
    let mut lines = Vec::new();
    let mut note = |what: &str, result: std::io::Result<()>| {
        let size = fs::metadata(&path).unwrap().len();
        lines.push(format!("{what}: {:?}, size {size}", result.map_err(|error| error.raw_os_error())));
    };
    note("no compression", file.write_encoded(&EncodedPart { compression: 0, ..good }));
    note("unknown compression", file.write_encoded(&EncodedPart { compression: 8, ..good }));
    note("other sectors", file.write_encoded(&EncodedPart { compression: 4, ..good }));
    note("no data", file.write_encoded(&EncodedPart { data: &[], ..good }));
    note("unaligned start", file.write_encoded(&EncodedPart { offset: 1000, ..good }));
    note("unaligned end", file.write_encoded(&EncodedPart { length: 5000, ..good }));
    note("unaligned part", file.write_encoded(&EncodedPart { unencoded_offset: 100, length: 4096, ..good }));
    note("too long", file.write_encoded(&EncodedPart { length: uncompressed + 4096, ..good }));
    note("too large", file.write_encoded(&EncodedPart { unencoded_length: 1 << 20, ..good }));
    note(
        "no gain",
        file.write_encoded(&EncodedPart { unencoded_length: extent.len() as u64, length: 4096, ..good }),
    );
    note("negative offset", file.write_encoded(&EncodedPart { offset: u64::MAX - 4095, ..good }));
    let reading = MountedPath::from_file(File::open(&path).unwrap());
    note("a file for reading", reading.write_encoded(&good));
    note("a small buffer", file.read_encoded(0, &mut [0; 0]).map(drop));
    // Dirty pages come first, and what the cache has of the range goes.
    assert_eq!(fs::read(&path).unwrap(), content(20_000));
    std::os::unix::fs::FileExt::write_all_at(file.file(), b"dirty", 100).unwrap();
    note("the whole extent", file.write_encoded(&good));
    assert!(fs::read(&path).unwrap() == content(uncompressed as usize), "the extent's bytes");
    note("an extent that does not fit", file.read_encoded(0, &mut [0; 100]).map(drop));
    let beyond = EncodedPart { offset: 1 << 20, unencoded_offset: 8192, length: 5000, ..good };
    note("a part beyond the end", file.write_encoded(&beyond));
    let whole = fs::read(&path).unwrap();
    assert!(whole.len() == (1 << 20) + 5000, "{}", whole.len());
    assert!(whole[1 << 20..] == content(uncompressed as usize)[8192..13_192], "the part's bytes");
    note("appended at an odd end", open(libc::O_APPEND).write_encoded(&good));
    rustix::fs::ftruncate(file.file(), 1 << 20).unwrap();
    note("appended", open(libc::O_APPEND).write_encoded(&good));
    lines.push(format!("{:x?}", fs::read(&path).unwrap().len()));
    lines
}

#[test]
fn encoded_writes_are_those_of_the_kernel() {
    let Some(_) = require(&[NEEDS, &[Need::Command("btrfs")]].concat()) else { return };
    let scratch = Scratch::new(2 << 30).unwrap();
    let (extent, size) = compressed_extent(&scratch);
    let kernel = FileSystemSpec::default().make(&scratch).unwrap();
    let mounted = kernel.mount().unwrap();
    let expected = answers(mounted.path(), &extent, size);
    mounted.unmount().unwrap();
    for options in ["subvolid=5", "subvolid=5,nowriteback_cache"] {
        let ours = FileSystemSpec::default().make(&scratch).unwrap();
        let mount = Mount::new(&scratch, &ours.paths()[0], options);
        assert_eq!(answers(mount.path(), &extent, size), expected, "{options}");
        mount.unmount();
        check(&ours.paths()[0]);
        ours.btrfs_check().unwrap();
    }
}

/// Writes the extent encoded into preallocated space, and returns what the files then hold: sizes,
/// blocks, and the parts with their stored bytes.
fn in_preallocated_space(directory: &Path, extent: &[u8], uncompressed: u64) -> Vec<String> {
    use rustix::fs::{FallocateFlags, fallocate};
    use std::os::unix::fs::{FileExt, MetadataExt};
    let whole = EncodedPart {
        data: extent,
        offset: 256 << 10,
        length: uncompressed,
        unencoded_length: uncompressed,
        unencoded_offset: 0,
        compression: 2,
    };
    let mut lines = Vec::new();
    for (name, flags) in [("sized", FallocateFlags::empty()), ("kept", FallocateFlags::KEEP_SIZE)] {
        let path = directory.join(name);
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        fallocate(&file, flags, 0, 1 << 20).unwrap();
        file.write_all_at(&content(20_000), 0).unwrap();
        let encoded_file = MountedPath::from_file(file);
        let parts = [
            whole,
            // Over the end of the first one, and over its start in part.
            EncodedPart { offset: whole.offset + uncompressed - 8192, ..whole },
            EncodedPart { offset: whole.offset - 4096, unencoded_offset: 4096, length: 12_288, ..whole },
            // Over data that was written before.
            EncodedPart { offset: 4096, length: 8192, ..whole },
            // Over the end of what was preallocated.
            EncodedPart { offset: (1 << 20) - 4096, ..whole },
        ];
        for part in parts {
            let result = encoded_file.write_encoded(&part).map_err(|error| error.raw_os_error());
            let size = encoded_file.file().metadata().unwrap().size();
            lines.push(format!("{name}, at {}: {result:?}, size {size}", part.offset));
        }
        encoded_file.file().sync_all().unwrap();
        drop(encoded_file);
        lines.push(format!("{name}: {} blocks", fs::metadata(&path).unwrap().blocks()));
        let hash =
            |bytes: &[u8]| bytes.iter().fold(7_u64, |hash, byte| hash.wrapping_mul(31) + u64::from(*byte));
        for (part, stored) in encoded(&path) {
            let stored = hash(&stored);
            lines.push(format!("{name}: {part:?} {stored:x}"));
        }
        lines.push(format!("{name}: content {:x}", hash(&fs::read(&path).unwrap())));
    }
    lines
}

#[test]
fn encoded_writes_into_preallocated_space_are_those_of_the_kernel() {
    let Some(_) = require(&[NEEDS, &[Need::Command("btrfs")]].concat()) else { return };
    let scratch = Scratch::new(2 << 30).unwrap();
    let (extent, size) = compressed_extent(&scratch);
    let kernel = FileSystemSpec::default().make(&scratch).unwrap();
    let mounted = kernel.mount().unwrap();
    let expected = in_preallocated_space(mounted.path(), &extent, size);
    mounted.unmount().unwrap();
    for options in ["subvolid=5", "subvolid=5,nowriteback_cache"] {
        let ours = FileSystemSpec::default().make(&scratch).unwrap();
        let mount = Mount::new(&scratch, &ours.paths()[0], options);
        let found = in_preallocated_space(mount.path(), &extent, size);
        assert_eq!(found, expected, "{options}");
        mount.unmount();
        check(&ours.paths()[0]);
        ours.btrfs_check().unwrap();
        // The kernel reads what we stored.
        let mounted = ours.mount_read_only().unwrap();
        for name in ["sized", "kept"] {
            let parts: Vec<String> = encoded(&mounted.path().join(name))
                .iter()
                .map(|(part, _)| format!("{name}: {part:?} "))
                .collect();
            for part in parts {
                assert!(expected.iter().any(|line| line.starts_with(&part)), "{part} of {expected:#?}");
            }
        }
        mounted.unmount().unwrap();
    }
}
