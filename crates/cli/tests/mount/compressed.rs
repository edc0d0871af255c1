//! Compression in a mount: blocks that do not compress before ones that do, by buffered and direct
//! writes and by a defragmentation. A scrub of the mount finds data that does not decode.

use crate::world::{MOUNT, World, check_failure, papilio, succeed};
use papilio::format::items::file_extent::Compression;
use papilio::{EncodedExtent, FileSystem, OpenOptions};
use papilio_oracle::{ImageSet, Need, Scratch, require};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

const EXTENT: usize = 128 << 10;

/// Returns noise, text, noise and a little text.
fn content() -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(8);
    let mut bytes = Vec::new();
    for lines in [20_000, 300] {
        bytes.extend(std::iter::repeat_with(|| random.u8(..)).take(EXTENT));
        bytes.extend((0..lines).flat_map(|number: u32| format!("{number}\n").into_bytes()));
        bytes.resize(bytes.len().next_multiple_of(EXTENT), b' ');
    }
    bytes
}

/// Writes a file by direct I/O, in requests of 1 MiB.
fn write_direct(path: &str, bytes: &[u8]) {
    let output = format!("of={path}");
    let mut child = Command::new("dd")
        .args([&output[..], "bs=1M", "oflag=direct", "iflag=fullblock", "status=none"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    assert!(child.wait().unwrap().success());
}

/// Compares the files of an image with `content`, as Papilio and the kernel read them.
fn assert_files(image: &Path, names: &[String], content: &[u8]) {
    let fs = FileSystem::open_with(image, &OpenOptions::new()).unwrap();
    for name in names {
        let read = fs.read(&name[..]).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(read == content, "{name}");
    }
    drop(fs);
    succeed(["check", "--check-data-csum", image.to_str().unwrap()]);
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    let path = scratch.unique("image");
    fs::copy(image, &path).unwrap();
    let images = ImageSet::open(&scratch, vec![path]);
    let mounted = images.mount_read_only().unwrap();
    for name in names {
        assert!(fs::read(mounted.path().join(name)).unwrap() == content, "the kernel: {name}");
    }
    mounted.unmount().unwrap();
}

#[test]
fn noise_before_text_is_readable_afterwards() {
    let Some(world) = World::new(MOUNT) else { return };
    let (content, mut names) = (content(), Vec::new());
    for (number, choice) in ["zlib:1", "zlib:2", "zlib:9", "lzo", "zstd:1", "zstd:15"].into_iter().enumerate()
    {
        for option in ["compress", "compress-force"] {
            world.mount(&["-o", &format!("{option}={choice}")]);
            let name = |kind: &str| format!("{kind}-{option}-{number}");
            fs::write(world.at(&name("buffered")), &content).unwrap();
            write_direct(&world.at(&name("direct")), &content);
            names.extend([name("buffered"), name("direct")]);
            world.unmount();
        }
        world.mount(&[]);
        let (name, (algorithm, level)) =
            (format!("defragmented-{number}"), choice.split_once(':').unwrap_or((choice, "")));
        fs::write(world.at(&name), &content).unwrap();
        let path = world.at(&name);
        let compression = format!("-c{algorithm}");
        let arguments = ["filesystem", "defragment", &compression, "-L", level, &path];
        let without_level = ["filesystem", "defragment", &compression, &path];
        succeed(if level.is_empty() { &without_level[..] } else { &arguments[..] });
        names.push(name);
        world.unmount();
    }
    assert_files(&world.image(), &names, &content);
}

#[test]
fn a_scrub_of_a_mount_decodes_on_demand() {
    let Some(world) = World::new(MOUNT) else { return };
    let fs = FileSystem::open_with(world.image(), &OpenOptions::new().write(true)).unwrap();
    fs.write("/bad", [7; 2 * EXTENT]).unwrap();
    fs.sync().unwrap();
    let file = fs.open_file("/bad").unwrap();
    let extent = EncodedExtent {
        compression: Compression::Zstd,
        lzo_sector: 4096,
        data: &[0x55; 4096],
        uncompressed: EXTENT as u64,
        offset: 0,
        length: EXTENT as u64,
    };
    assert!(file.write_encoded_at(&extent, 0).unwrap());
    drop(file);
    fs.close().unwrap();
    world.mount(&[]);
    let directory = world.at("");
    assert!(succeed(["scrub", "start", "-B", &directory]).contains("no errors found"));
    let output = papilio(["scrub", "start", "-B", "--decode", &directory]);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(printed.contains("files: /bad\n"), "{printed}");
    check_failure(&output, 3, "1 compressed extents do not decode");
    assert!(succeed(["scrub", "status", &directory]).contains("Undecodable:      1 compressed extents\n"));
    fs::write(world.at("bad"), [8; 2 * EXTENT]).unwrap();
    succeed(["filesystem", "sync", &directory]);
    succeed(["scrub", "start", "-B", "--decode", &directory]);
    world.unmount();
}
