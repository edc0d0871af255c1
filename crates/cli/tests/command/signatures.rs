//! Devices that belong to something else, and files that are no Btrfs: they are named, and not
//! written.

use crate::common::{fail, papilio, succeed, succeed_json, succeed_text, text};
use papilio_oracle::{LoopDevice, Need, Scratch, require};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

const SIZE: u64 = 160 << 20;

fn put(image: &str, offset: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(image).unwrap().write_all_at(bytes, offset).unwrap();
}

/// The superblock of a mirror of md, version 1.0, for a member of `size` bytes.
fn mirror(size: u64) -> (u64, Vec<u8>) {
    let offset = (size - 8192) & !4095;
    (offset, mirror_at(offset))
}

/// The superblock of a mirror of md, version 1, for the place `offset`.
fn mirror_at(offset: u64) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, &[0xfc, 0x4e, 0x2b, 0xa9, 1]);
    put(16, &[0xa5; 16]);
    put(72, &1_u32.to_le_bytes());
    put(92, &2_u32.to_le_bytes());
    put(144, &(offset / 512).to_le_bytes());
    put(220, &2_u32.to_le_bytes());
    put(256, &[0, 0, 1, 0]);
    let words = bytes[..260].as_chunks::<4>().0;
    let sum: u64 = words.iter().map(|word| u64::from(u32::from_le_bytes(*word))).sum();
    bytes[216..220].copy_from_slice(&((sum as u32).wrapping_add((sum >> 32) as u32)).to_le_bytes());
    bytes
}

/// The superblock of a mirror of md, version 0.90.
fn old_mirror() -> Vec<u8> {
    let mut words = [0_u32; 1024];
    words[..3].copy_from_slice(&[0xa92b_4efc, 0, 90]);
    words[5..11].copy_from_slice(&[0x1234, 1_700_000_000, 1, 1024, 2, 2]);
    words[13..16].copy_from_slice(&[1, 2, 3]);
    words[32..36].copy_from_slice(&[1_700_000_000, 1, 2, 2]);
    for (place, number) in [(128, 0), (160, 1), (992, 0)] {
        words[place..place + 5].copy_from_slice(&[number, 7, number, number, 6]);
    }
    let sum: u64 = words.iter().map(|word| u64::from(*word)).sum();
    words[38] = (sum as u32).wrapping_add((sum >> 32) as u32);
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Lists name, offset and end of the good signatures on an image.
fn listed(image: &str) -> Vec<(String, u64, String)> {
    let found = succeed_json(["inspect", "signatures", "--json", image]);
    let good = found.as_array().unwrap().iter().filter(|signature| signature["good"] == true);
    good.map(|signature| {
        assert_eq!(signature["device"], image);
        let at = signature["at"].as_str().unwrap().to_owned();
        (signature["name"].as_str().unwrap().to_owned(), signature["offset"].as_u64().unwrap(), at)
    })
    .collect()
}

/// Runs a tool, which succeeds, and returns its output.
fn tool(name: &str, arguments: &[&str], input: &str) -> String {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("sh");
    let line = format!("exec {name} \"$@\"");
    command.args(["-c", &line, name]).args(arguments).env("PATH", path);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{name} {arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// mdadm(8) and libblkid find the superblocks of md where Papilio does. Without arrays in the
/// kernel mdadm makes none, but it judges these.
#[test]
fn superblocks_of_md_are_listed_where_its_tools_find_them() {
    let Some(_met) = require(&[Need::Root, Need::Loop, Need::Command("mdadm"), Need::Command("wipefs")])
    else {
        return;
    };
    const MEMBER: u64 = 64 << 20;
    let scratch = Scratch::new(1 << 30).unwrap();
    let end = MEMBER - 8192;
    let cases = [
        ("1.0", end, mirror_at(end), "end"),
        ("1.1", 0, mirror_at(0), "start"),
        ("1.2", 4096, mirror_at(4096), "start"),
        ("0.90", MEMBER - 65536, old_mirror(), "end"),
    ];
    for (version, offset, bytes, at) in cases {
        let image = scratch.image(version, MEMBER).unwrap().to_str().unwrap().to_owned();
        put(&image, offset, &bytes);
        let device = LoopDevice::attach(Path::new(&image), true).unwrap();
        let judged = tool("mdadm", &["--examine", device.path().to_str().unwrap()], "");
        assert!(judged.contains(&format!("Version : {version}")), "{judged}");
        assert!(judged.contains("- correct"), "{judged}");
        let wiped = tool("wipefs", &["--parsable", &image], "");
        assert!(wiped.contains(&format!("{offset:#x},")) && wiped.contains("linux_raid_member"), "{wiped}");
        let name = "a member of a RAID array (md)".to_owned();
        assert_eq!(listed(&image), [(name, offset, at.to_owned())], "{version}");
        let table = succeed_text(["inspect", "signatures", &image]);
        let line = table.lines().nth(1).unwrap();
        assert!(line.contains(&format!("  {offset}  {at}")) && line.contains("mdadm(8)"), "{table}");
    }
}

/// Swap, LUKS and LVM as their own tools write them.
#[test]
fn signatures_of_real_tools_are_listed() {
    let needs = ["mkswap", "cryptsetup", "pvcreate"].map(Need::Command);
    let Some(_met) = require(&[&needs[..], &[Need::Root, Need::Loop]].concat()) else { return };
    let scratch = Scratch::new(1 << 30).unwrap();
    let make = |name: &str| scratch.image(name, 64 << 20).unwrap().to_str().unwrap().to_owned();
    let (swap, luks1, luks2, lvm) = (make("swap"), make("luks1"), make("luks2"), make("lvm"));
    tool("mkswap", &[&swap], "");
    for (kind, image) in [("luks1", &luks1), ("luks2", &luks2)] {
        let cheap = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
        tool(
            "cryptsetup",
            &[&["-q", "luksFormat", "--type", kind], &cheap[..], &[image, "-"]].concat(),
            "key",
        );
    }
    let device = LoopDevice::attach(Path::new(&lvm), false).unwrap();
    tool("pvcreate", &["-ff", "-y", device.path().to_str().unwrap()], "");
    drop(device);
    let start = "start".to_owned();
    assert_eq!(listed(&swap), [("a swap area".to_owned(), 4086, start.clone())]);
    for image in [&luks1, &luks2] {
        assert_eq!(listed(image), [("an encrypted volume (LUKS)".to_owned(), 0, start.clone())]);
    }
    assert_eq!(listed(&lvm), [("an LVM physical volume".to_owned(), 512, start.clone())]);
    for image in [&swap, &luks1, &luks2, &lvm] {
        fail(1, "use -f to overwrite it", ["mkfs", "-q", image]);
    }

    let btrfs = make("btrfs");
    succeed(["mkfs", "-q", "-M", "-b", "32M", &btrfs]);
    assert_eq!(listed(&btrfs), [("a Btrfs file system".to_owned(), 0x1_0040, start)]);
    let several = succeed_text(["inspect", "signatures", &btrfs, &lvm]);
    assert_eq!(several.lines().count(), 3, "{several}");
    assert!(succeed_text(["inspect", "signatures", &make("empty")]).is_empty());
    let missing = papilio(["inspect", "signatures", "/nowhere", &lvm]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stdout).contains("LVM") && text(&missing.stderr).contains("/nowhere"));
}

#[test]
fn one_half_of_a_mirror_is_read_and_not_written() {
    let scratch = Scratch::new(1 << 30).unwrap();
    let image = scratch.image("half", SIZE).unwrap().to_str().unwrap().to_owned();
    succeed(["mkfs", "-q", "-b", "128M", &image]);
    succeed(["touch", &format!("{image}:/file")]);
    let (offset, superblock) = mirror(SIZE);
    put(&image, offset, &superblock);
    let before = std::fs::read(&image).unwrap();

    let read = papilio(["ls", &format!("{image}:/")]);
    assert!(read.status.success() && text(&read.stdout) == "file\n");
    let warning = text(&read.stderr);
    assert!(warning.lines().count() == 2 && warning.contains("1 of 2 members are missing"), "{warning}");
    assert!(warning.contains("a member of a RAID array (md)"), "{warning}");
    let file = format!("{image}:/new");
    let local = scratch.path().join("local").to_str().unwrap().to_owned();
    std::fs::write(&local, "local").unwrap();
    let other = scratch.image("other", SIZE).unwrap().to_str().unwrap().to_owned();
    let writers: &[&[&str]] = &[
        &["touch", &file],
        &["mkdir", &file],
        &["cp", &local, &file],
        &["rm", &format!("{image}:/file")],
        &["check", "--repair", "--yes", &image],
        &["tune", "-u", &image],
        &["balance", "start", "--full-balance", &image],
        &["device", "add", &other, &image],
        &["replace", "start", "-B", "1", &other, &image],
        &["rescue", "clear-uuid-tree", &image],
        &["subvolume", "create", &file],
        &["filesystem", "label", &image, "label"],
        &["scrub", "start", "-B", &image],
        &["serve", "--nfs", "--listen", "127.0.0.1:0", &image],
    ];
    for arguments in writers {
        let output = papilio(*arguments);
        let message = text(&output.stderr);
        assert!(
            !output.status.success() && message.contains("a RAID array (md)"),
            "{arguments:?}: {message}"
        );
        assert!(std::fs::read(&image).unwrap() == before, "{arguments:?}");
    }
    let message = fail(1, "and writing would damage that", ["touch", &file]);
    assert!(message.contains("mdadm(8)"), "{message}");
    succeed(["--ignore-signatures", "-q", "touch", &file]);
    assert!(succeed_text(["ls", "-q", &format!("{image}:/")]).contains("new"));

    fail(1, "use -f to overwrite it", ["mkfs", "-q", "-b", "128M", &image]);
    succeed(["mkfs", "-q", "-f", "-b", "128M", &image]);
    succeed(["touch", &file]);
}

#[test]
fn other_content_is_named_with_advice() {
    let scratch = Scratch::new(1 << 30).unwrap();
    let image = |name: &str, offset: u64, bytes: &[u8]| {
        let image = scratch.image(name, 8 << 20).unwrap().to_str().unwrap().to_owned();
        put(&image, offset, bytes);
        image
    };
    let mut lvm = *b"LABELONE\x01\0\0\0\0\0\0\0\0\0\0\0\x20\0\0\0LVM2 001";
    lvm[16] = 1;
    let cases: &[(&str, u64, &[u8], &str)] = &[
        ("zoned", 0x40, b"_BHRfS_M", "a zoned Btrfs file system: only the kernel"),
        ("lvm", 512, &lvm, "an LVM physical volume: activate"),
        ("ext4", 0x438, &[0x53, 0xef], "an ext2, ext3 or ext4 file system"),
        ("xfs", 0, b"XFSB", "an XFS file system"),
        ("ntfs", 3, b"NTFS    ", "an NTFS file system"),
        ("iso", 0x8001, b"CD001", "an ISO 9660 file system"),
    ];
    for (name, offset, bytes, expected) in cases {
        let message = fail(1, "no Btrfs magic", ["ls", &image(name, *offset, bytes)]);
        assert!(message.contains(expected), "{message}");
    }
    let end = (8 << 20) - 8192;
    let degraded = papilio(["ls", &image("md", end, &mirror(8 << 20).1)]);
    let message = text(&degraded.stderr);
    assert_eq!(degraded.status.code(), Some(1), "{message}");
    assert!(message.contains("no Btrfs file system lies over it"), "{message}");
    let formats: &[(&str, &[u8], &str)] = &[
        ("luks", b"LUKS\xba\xbe\0\x02", "LUKS: the first header"),
        ("e01", b"EVF\x09\x0d\x0a\xff\0", "it is a forensic (E01) image"),
        ("gz", &[0x1f, 0x8b, 8], "it is a gzip image"),
        ("zip", b"PK\x03\x04", "it is a zip image"),
    ];
    for (name, bytes, expected) in formats {
        fail(1, expected, ["ls", &image(name, 0, bytes)]);
    }
}

#[test]
fn the_first_part_of_a_split_image_is_named() {
    let scratch = Scratch::new(1 << 30).unwrap();
    let whole = scratch.path().join("whole").to_str().unwrap().to_owned();
    succeed(["mkfs", "-q", "--size", "128M", &whole]);
    let bytes = std::fs::read(&whole).unwrap();
    let part = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(part("image.001"), &bytes[..64 << 20]).unwrap();
    let message = fail(1, "the device was cut", ["ls", &part("image.001")]);
    assert!(!message.contains("split"), "{message}");
    std::fs::write(part("image.002"), &bytes[64 << 20..]).unwrap();
    fail(1, "the first part of a split image: join", ["ls", &part("image.001")]);
}
