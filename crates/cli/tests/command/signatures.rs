//! Devices that belong to something else, and files that are no Btrfs: they are named, and not
//! written.

use crate::common::{fail, papilio, succeed, succeed_text, text};
use papilio_oracle::Scratch;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

const SIZE: u64 = 160 << 20;

fn put(image: &str, offset: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(image).unwrap().write_all_at(bytes, offset).unwrap();
}

/// The superblock of a mirror of md, version 1.0, for a member of `size` bytes.
fn mirror(size: u64) -> (u64, Vec<u8>) {
    let offset = (size - 8192) & !4095;
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
    (offset, bytes)
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
    assert!(warning.lines().count() == 1 && warning.contains("a member of a RAID array (md)"), "{warning}");
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

    fail(1, "only -f overwrites it", ["mkfs", "-q", "-b", "128M", &image]);
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
    let message = fail(1, "no Btrfs magic", ["ls", &image("md", end, &mirror(8 << 20).1)]);
    assert!(message.contains("a member of a RAID array (md): assemble"), "{message}");
    let formats: &[(&str, &[u8], &str)] = &[
        ("luks", b"LUKS\xba\xbe\0\x02", "cryptsetup"),
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
    let message = fail(1, "the device is truncated", ["ls", &part("image.001")]);
    assert!(!message.contains("split"), "{message}");
    std::fs::write(part("image.002"), &bytes[64 << 20..]).unwrap();
    fail(1, "the first part of a split image: join", ["ls", &part("image.001")]);
}
