//! Tests of disk images made by imago, qemu-img and compressors.

mod sparse;
mod vhdx_log;

use super::*;
use crate::device::Access;
use crate::memory::MemoryDevice;
use imago::file::File as ImagoFile;
use imago::format::builder::FormatCreateBuilder;
use imago::qcow2::Qcow2;
use imago::{FormatAccess, Storage, StorageCreateOptions};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

const SIZE: u64 = 8 << 20;

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Creates an empty qcow2 image by imago.
fn new_qcow2(path: &Path, backing: Option<(&str, &str)>) {
    let _ = std::fs::remove_file(path);
    let file = ImagoFile::create_open(StorageCreateOptions::new().filename(path)).unwrap();
    let mut builder = Qcow2::<ImagoFile, Arc<FormatAccess<ImagoFile>>>::create_builder(file).size(SIZE);
    if let Some((name, format)) = backing {
        builder = builder.backing(name.to_owned(), format.to_owned());
    }
    builder.create().unwrap();
}

fn open(path: &Path, access: Access) -> Result<Arc<dyn Device>, OpenErrorKind> {
    OpenOptions::new(access).open_image(path, &ImageOptions::default()).map_err(|error| error.kind)
}

fn refused(path: &Path) -> String {
    open(path, Access::ReadOnly).unwrap_err().to_string()
}

fn random(seed: &mut u64, bound: u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % bound
}

/// Bytes with runs of zeros.
fn content() -> Vec<u8> {
    let mut seed = 3;
    let mut bytes = vec![0; SIZE as usize];
    for _ in 0..60 {
        let at = random(&mut seed, SIZE - 70_000) as usize;
        let length = random(&mut seed, 70_000) as usize;
        bytes[at..at + length].fill_with(|| random(&mut seed, 256) as u8);
    }
    bytes
}

fn assert_reads(device: &dyn Device, expected: &[u8]) {
    assert_eq!(device.size(), expected.len() as u64);
    let mut seed = 11;
    for _ in 0..200 {
        let at = random(&mut seed, SIZE - 1);
        let length = (1 + random(&mut seed, 200_000)).min(SIZE - at) as usize;
        let mut bytes = vec![1; length];
        device.read_at(&mut bytes, PhysicalAddress(at)).unwrap();
        assert!(bytes == expected[at as usize..][..length], "{length} bytes at {at}");
    }
    assert!(device.read_at(&mut [0; 2], PhysicalAddress(SIZE - 1)).is_err());
    assert!(device.read_at(&mut [0; 2], PhysicalAddress(u64::MAX)).is_err());
}

/// Returns whether a program is installed; prints that the test is skipped otherwise.
fn has(program: &str) -> bool {
    if Command::new(program).arg("--version").output().is_ok() {
        return true;
    }
    assert!(
        std::env::var_os("PAPILIO_REQUIRE_ALL").is_none_or(|value| value != "1"),
        "{program} is required"
    );
    eprintln!("SKIPPED: {program} is not installed");
    false
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn qcow2_matches_a_memory_device() {
    let folder = folder();
    let path = folder.path().join("a.qcow2");
    new_qcow2(&path, None);
    let model = MemoryDevice::new(SIZE);
    let mut seed = 5;
    for round in 0..4 {
        let device = open(&path, Access::ReadWrite).unwrap();
        for step in 0..60 {
            let at = random(&mut seed, SIZE - 1);
            let length = (1 + random(&mut seed, 150_000)).min(SIZE - at);
            if step % 10 == 9 {
                // Reads as anything afterwards, so both get the same bytes.
                device.discard(PhysicalAddress(at), length).unwrap();
            }
            let bytes: Vec<u8> = (0..length).map(|index| (index * 3 + step + round) as u8).collect();
            device.write_at(&bytes, PhysicalAddress(at)).unwrap();
            model.write_at(&bytes, PhysicalAddress(at)).unwrap();
        }
        device.flush().unwrap();
        assert!(device.write_at(&[0; 2], PhysicalAddress(SIZE - 1)).is_err());
        assert!(matches!(open(&path, Access::ReadOnly), Err(OpenErrorKind::InUseByProcess)));
    }
    let mut expected = vec![0; SIZE as usize];
    model.read_at(&mut expected, PhysicalAddress(0)).unwrap();
    let device = open(&path, Access::ReadOnly).unwrap();
    assert_reads(&*device, &expected);
    assert!(device.write_at(&[1], PhysicalAddress(0)).is_err());
    drop(device);
    if has("qemu-img") {
        run("qemu-img", &["check", path.to_str().unwrap()]);
        let raw = folder.path().join("raw");
        run("qemu-img", &["convert", "-O", "raw", path.to_str().unwrap(), raw.to_str().unwrap()]);
        assert!(std::fs::read(raw).unwrap() == expected);
    }
}

#[test]
fn qcow2_takes_requests_of_many_threads() {
    let folder = folder();
    let path = folder.path().join("a.qcow2");
    new_qcow2(&path, None);
    let device = open(&path, Access::ReadWrite).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let device = &device;
            scope.spawn(move || {
                for step in 0..128 {
                    let at = PhysicalAddress((step * 4 + thread) * 16384);
                    device.write_at(&[(thread * 60 + step % 60) as u8 + 1; 16384], at).unwrap();
                    let mut bytes = [0; 16384];
                    device.read_at(&mut bytes, at).unwrap();
                    assert!(bytes.iter().all(|byte| *byte == (thread * 60 + step % 60) as u8 + 1));
                    if step % 32 == 0 {
                        device.flush().unwrap();
                    }
                }
            });
        }
    });
    device.flush().unwrap();
    drop(device);
    let device = open(&path, Access::ReadOnly).unwrap();
    let mut bytes = vec![0; SIZE as usize];
    device.read_at(&mut bytes, PhysicalAddress(0)).unwrap();
    for (index, block) in bytes.chunks(16384).enumerate() {
        let wanted = (index % 4 * 60 + index / 4 % 60) as u8 + 1;
        assert!(block.iter().all(|byte| *byte == wanted), "block {index}");
    }
    if has("qemu-img") {
        run("qemu-img", &["check", path.to_str().unwrap()]);
    }
}

#[test]
fn backing_files_of_the_same_directory_only() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let bytes = content();
    std::fs::write(at("base.raw"), &bytes).unwrap();
    new_qcow2(&at("middle.qcow2"), Some(("base.raw", "raw")));
    new_qcow2(&at("top.qcow2"), Some(("./middle.qcow2", "qcow2")));
    let device = open(&at("top.qcow2"), Access::ReadWrite).unwrap();
    device.write_at(b"new", PhysicalAddress(100_000)).unwrap();
    device.flush().unwrap();
    let mut expected = bytes.clone();
    expected[100_000..100_003].copy_from_slice(b"new");
    assert_reads(&*device, &expected);
    // The backing files are locked against writers.
    assert!(matches!(open(&at("base.raw"), Access::ReadWrite), Err(OpenErrorKind::InUseByProcess)));
    drop(device);
    assert!(std::fs::read(at("base.raw")).unwrap() == bytes);

    let outside = at("base.raw").to_str().unwrap().to_owned();
    std::fs::create_dir(at("below")).unwrap();
    for name in [outside.as_str(), "../base.raw", "below/../base.raw", "file:/etc/passwd", "/dev/null"] {
        let path = at("below").join("bad.qcow2");
        new_qcow2(&path, Some((name, "raw")));
        let text = refused(&path);
        assert!(text.contains("outside of its directory") && text.contains("--allow-backing"), "{text}");
    }
    new_qcow2(&at("below/up.qcow2"), Some(("../base.raw", "raw")));
    let allowed = ImageOptions { allow_backing: true, ..ImageOptions::default() };
    let device = OpenOptions::new(Access::ReadOnly).open_image(at("below/up.qcow2"), &allowed).unwrap();
    assert_reads(&*device, &bytes);
    for name in ["nbd://localhost", "json:{}", "none.raw"] {
        new_qcow2(&at("bad.qcow2"), Some((name, "raw")));
        let text = refused(&at("bad.qcow2"));
        assert!(text.contains("no file name") || text.contains("no such file"), "{text}");
    }
    new_qcow2(&at("bad.qcow2"), Some(("base.raw", "vdi")));
    assert!(refused(&at("bad.qcow2")).contains("\"vdi\""));
}

#[test]
fn backing_loops_are_refused() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    new_qcow2(&at("self.qcow2"), Some(("self.qcow2", "qcow2")));
    assert!(refused(&at("self.qcow2")).contains("loop"));
    new_qcow2(&at("a.qcow2"), Some(("b.qcow2", "qcow2")));
    new_qcow2(&at("b.qcow2"), Some(("a.qcow2", "qcow2")));
    assert!(refused(&at("a.qcow2")).contains("loop"));
    std::os::unix::fs::symlink("c.qcow2", at("link.qcow2")).unwrap();
    new_qcow2(&at("c.qcow2"), Some(("link.qcow2", "qcow2")));
    assert!(refused(&at("c.qcow2")).contains("loop"));
}

#[test]
fn damaged_qcow2_is_an_error() {
    let folder = folder();
    let path = folder.path().join("a.qcow2");
    new_qcow2(&path, None);
    let device = open(&path, Access::ReadWrite).unwrap();
    device.write_at(&content()[..1 << 20], PhysicalAddress(0)).unwrap();
    device.flush().unwrap();
    drop(device);
    let good = std::fs::read(&path).unwrap();
    for length in [5, 72, 103, 4096, 65536, 131_072, 196_608] {
        std::fs::write(&path, &good[..length]).unwrap();
        if let Ok(device) = open(&path, Access::ReadOnly) {
            let mut bytes = vec![0; 1 << 20];
            // Bytes past the end of a truncated file read as zeros, as in QEMU.
            let _ = device.read_at(&mut bytes, PhysicalAddress(0));
        }
    }
    let mut seed = 23;
    for _ in 0..600 {
        let mut bytes = good.clone();
        for _ in 0..=random(&mut seed, 3) {
            let area = [112, 65536 * 4][random(&mut seed, 2) as usize];
            let at = random(&mut seed, area.min(bytes.len() as u64)) as usize;
            bytes[at] = random(&mut seed, 256) as u8;
        }
        bytes[..4].copy_from_slice(b"QFI\xfb");
        std::fs::write(&path, &bytes).unwrap();
        if let Ok(device) = open(&path, Access::ReadOnly) {
            let mut bytes = vec![0; 1 << 16];
            let size = device.size();
            for at in [0, 1 << 16, size.saturating_sub(1 << 16)] {
                let _ = device.read_at(&mut bytes, PhysicalAddress(at));
            }
        }
    }
}

#[test]
fn xz_blocks_are_read_at_random() {
    let folder = folder();
    let path = folder.path().join("a.img.xz");
    let bytes = content();
    // Two streams with padding between them, the first in blocks.
    let mut packed = Vec::new();
    for (part, block) in [(&bytes[..5_000_001], 300_000), (&bytes[5_000_001..], 1 << 20)] {
        let mut options = lzma_rust2::XzOptions::with_preset(1);
        options.set_block_size(std::num::NonZeroU64::new(block));
        let mut writer = lzma_rust2::XzWriter::new(&mut packed, options).unwrap();
        writer.write_all(part).unwrap();
        writer.finish().unwrap();
        packed.extend([0; 8]);
    }
    std::fs::write(&path, &packed).unwrap();
    assert_reads(&*open(&path, Access::ReadOnly).unwrap(), &bytes);
    let text = open(&path, Access::ReadWrite).unwrap_err().to_string();
    assert!(text.contains("only be opened for reading"), "{text}");
    // Damage in a block is an error of the read, and never wrong bytes.
    for at in (100..packed.len()).step_by(packed.len() / 40) {
        let mut damaged = packed.clone();
        damaged[at] ^= 0x10;
        std::fs::write(&path, &damaged).unwrap();
        let Ok(device) = open(&path, Access::ReadOnly) else { continue };
        let mut read = vec![0; SIZE as usize];
        if device.size() == SIZE && device.read_at(&mut read, PhysicalAddress(0)).is_ok() {
            assert!(read == bytes, "damage at {at}");
        }
    }
    for length in [6, 12, 40, packed.len() / 2, packed.len() - 9] {
        std::fs::write(&path, &packed[..length]).unwrap();
        let text = refused(&path);
        assert!(text.contains("truncated") || text.contains("index"), "{length}: {text}");
    }
    if has("xz") {
        std::fs::write(folder.path().join("b"), &bytes).unwrap();
        run("xz", &["--block-size=512KiB", "-T2", folder.path().join("b").to_str().unwrap()]);
        assert_reads(&*open(&folder.path().join("b.xz"), Access::ReadOnly).unwrap(), &bytes);
    }
}

#[test]
fn zstd_frames_are_read_at_random() {
    let folder = folder();
    let path = folder.path().join("a.img.zst");
    let bytes = content();
    let mut packed = Vec::new();
    let policy = zeekstd::FrameSizePolicy::Uncompressed(256 << 10);
    let options = zeekstd::EncodeOptions::new().frame_size_policy(policy);
    let mut encoder = options.into_encoder(&mut packed).unwrap();
    encoder.write_all(&bytes).unwrap();
    encoder.finish().unwrap();
    std::fs::write(&path, &packed).unwrap();
    assert_reads(&*open(&path, Access::ReadOnly).unwrap(), &bytes);
    // Without its last frame, the table, it is a small file in one piece.
    let small = zstd::encode_all(&bytes[..], 3).unwrap();
    std::fs::write(&path, &small).unwrap();
    assert_reads(&*open(&path, Access::ReadOnly).unwrap(), &bytes);
    let mut table = packed.clone();
    let end = table.len();
    table[end - 9..end - 5].copy_from_slice(&u32::MAX.to_le_bytes());
    std::fs::write(&path, &table).unwrap();
    assert!(refused(&path).contains("seek table"));
    for length in [4, 20, small.len() / 2, small.len() - 1] {
        std::fs::write(&path, &small[..length]).unwrap();
        assert!(open(&path, Access::ReadOnly).is_err(), "{length}");
    }
}

#[test]
fn large_images_in_one_block_are_refused() {
    let folder = folder();
    let path = folder.path().join("a");
    let zeros = vec![0; (64 << 20) + 1];
    std::fs::write(&path, zstd::encode_all(&zeros[..], 1).unwrap()).unwrap();
    let text = refused(&path);
    assert!(text.contains("no seek table") && text.contains("zeekstd"), "{text}");
    let mut packed = Vec::new();
    let mut writer = lzma_rust2::XzWriter::new(&mut packed, lzma_rust2::XzOptions::with_preset(0)).unwrap();
    writer.write_all(&zeros).unwrap();
    writer.finish().unwrap();
    std::fs::write(&path, packed).unwrap();
    let text = refused(&path);
    assert!(text.contains("67108865 bytes") && text.contains("xz --block-size"), "{text}");
}

#[test]
fn vmdk_of_qemu_is_read() {
    if !has("qemu-img") {
        return;
    }
    let folder = folder();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let bytes = content();
    std::fs::write(at("raw"), &bytes).unwrap();
    for kind in ["monolithicSparse", "streamOptimized", "monolithicFlat"] {
        let (path, option) = (at(&format!("{kind}.vmdk")), format!("subformat={kind}"));
        run("qemu-img", &["convert", "-f", "raw", "-O", "vmdk", "-o", &option, &at("raw"), &path]);
        assert_reads(&*open(Path::new(&path), Access::ReadOnly).unwrap(), &bytes);
        if kind == "streamOptimized" {
            let text = open(Path::new(&path), Access::ReadWrite).unwrap_err().to_string();
            assert!(text.contains("compressed") && text.contains("only be opened for reading"), "{text}");
        }
        assert_damage_is_no_panic(Path::new(&path), &[0..80, 0..70_000]);
    }
    for (format, name) in [("vdi", "VDI"), ("vpc", "VHD")] {
        run("qemu-img", &["convert", "-O", format, &at("raw"), &at("other")]);
        let text = refused(&PathBuf::from(at("other")));
        assert!(text.contains(name) && text.contains("qemu-img convert"), "{text}");
    }
}

/// Opens and reads an image with a few wrong bytes in one of `areas`, many times.
fn assert_damage_is_no_panic(path: &Path, areas: &[std::ops::Range<u64>]) {
    use std::os::unix::fs::FileExt as _;
    let size = std::fs::metadata(path).unwrap().len();
    let mut seed = 31;
    for _ in 0..200 {
        let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
        let mut kept = Vec::new();
        for _ in 0..=random(&mut seed, 3) {
            let area = &areas[random(&mut seed, areas.len() as u64) as usize];
            let at = area.start + random(&mut seed, area.end.min(size) - area.start);
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            kept.push((at, byte));
            file.write_all_at(&[random(&mut seed, 256) as u8], at).unwrap();
        }
        if let Ok(device) = open(path, Access::ReadOnly) {
            for at in [0, device.size().saturating_sub(1 << 16)] {
                let _ = device.read_at(&mut vec![0; 1 << 16], PhysicalAddress(at));
            }
        }
        for (at, byte) in kept.iter().rev() {
            file.write_all_at(byte, *at).unwrap();
        }
    }
}

#[test]
fn vhdx_of_qemu_is_read() {
    if !has("qemu-img") {
        return;
    }
    let folder = folder();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let bytes = content();
    std::fs::write(at("raw"), &bytes).unwrap();
    for kind in ["dynamic", "fixed"] {
        let (path, option) = (at(&format!("{kind}.vhdx")), format!("subformat={kind}"));
        run("qemu-img", &["convert", "-f", "raw", "-O", "vhdx", "-o", &option, &at("raw"), &path]);
        let path = Path::new(&path);
        assert_reads(&*open(path, Access::ReadOnly).unwrap(), &bytes);
        // The identifier and headers, the tables of regions, then the log, the metadata and the
        // table of blocks.
        let table = |at: u64| at..at + 512;
        let areas = [table(0), table(64 << 10), table(128 << 10), table(192 << 10), table(256 << 10)];
        let places = [1 << 20, 2 << 20, (2 << 20) + (64 << 10), 3 << 20].map(table);
        assert_damage_is_no_panic(path, &[&areas[..], &places].concat());
        assert_reads(&*open(path, Access::ReadOnly).unwrap(), &bytes);
    }
    std::fs::write(at("short"), &std::fs::read(at("fixed.vhdx")).unwrap()[..70_000]).unwrap();
    assert!(refused(&PathBuf::from(at("short"))).contains("vhdx"));
}

#[test]
fn raw_images_of_btrfs_and_encrypted_ones_are_told_apart() {
    let folder = folder();
    let path = folder.path().join("a");
    let mut bytes = content();
    bytes[..8].copy_from_slice(b"LUKS\xba\xbe\0\x02");
    std::fs::write(&path, &bytes).unwrap();
    assert!(matches!(open(&path, Access::ReadOnly), Err(OpenErrorKind::Encrypted)));
    // The first bytes do not count where Btrfs has its superblock.
    bytes[0x1_0040..0x1_0048].copy_from_slice(b"_BHRfS_M");
    for magic in [&b"LUKS\xba\xbe"[..], b"QFI\xfb", b"KDMV", b"vhdxfile", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd"]
    {
        bytes[..magic.len()].copy_from_slice(magic);
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(open(&path, Access::ReadWrite).unwrap().size(), SIZE);
    }
    // A disk with a partition table whose guest wrote the magic of qcow2.
    let mut disk = vec![0; SIZE as usize];
    disk[446 + 4] = 0x83;
    disk[446 + 9] = 8;
    disk[446 + 13] = 8;
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk[..4].copy_from_slice(b"QFI\xfb");
    std::fs::write(&path, &disk).unwrap();
    let text = refused(&path);
    assert!(text.contains("--partition none"), "{text}");
    let whole = ImageOptions { partition: PartitionChoice::Whole, ..ImageOptions::default() };
    OpenOptions::new(Access::ReadWrite).open_image(&path, &whole).unwrap();
}

#[test]
fn partitions_are_chosen_by_number_and_content() {
    let folder = folder();
    let path = folder.path().join("disk");
    // Three partitions of 1 MiB each: Btrfs, Btrfs, LUKS.
    let mut disk = vec![0; SIZE as usize];
    for index in 0..3usize {
        let entry = &mut disk[446 + index * 16..][..16];
        entry[4] = 0x83;
        entry[8..12].copy_from_slice(&(2048 * (index as u32 + 1)).to_le_bytes());
        entry[12..].copy_from_slice(&2048u32.to_le_bytes());
    }
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk[(3 << 20)..][..6].copy_from_slice(b"LUKS\xba\xbe");
    std::fs::write(&path, &disk).unwrap();
    assert!(refused(&path).contains("no partition has a Btrfs file system"));
    disk[(2 << 20) + 0x1_0040..][..8].copy_from_slice(b"_BHRfS_M");
    std::fs::write(&path, &disk).unwrap();
    let device = open(&path, Access::ReadWrite).unwrap();
    assert_eq!((device.size(), device.name().ends_with("disk@2")), (1 << 20, true));
    device.write_at(b"there", PhysicalAddress(4096)).unwrap();
    assert!(device.write_at(&[0; 2], PhysicalAddress((1 << 20) - 1)).is_err());
    drop(device);
    let mut disk = std::fs::read(&path).unwrap();
    assert_eq!(&disk[(2 << 20) + 4096..][..5], b"there");
    disk[(1 << 20) + 0x1_0040..][..8].copy_from_slice(b"_BHRfS_M");
    std::fs::write(&path, &disk).unwrap();
    let text = refused(&path);
    assert!(text.contains("2 partitions have Btrfs") && text.contains("3 (luks, 1048576 bytes)"), "{text}");
    let numbered = |number: u32| folder.path().join(format!("disk@{number}"));
    assert_eq!(open(&numbered(1), Access::ReadOnly).unwrap().size(), 1 << 20);
    assert!(matches!(open(&numbered(3), Access::ReadOnly), Err(OpenErrorKind::Encrypted)));
    assert!(refused(&numbered(9)).contains("no partition 9"));
    let named = |name: &str| ImageOptions { partition: name.parse().unwrap(), ..ImageOptions::default() };
    let by_uuid = OpenOptions::new(Access::ReadOnly).open_image(&path, &named("00000000-02")).unwrap();
    assert!(by_uuid.name().ends_with("disk@2"));
    assert!(OpenOptions::new(Access::ReadOnly).open_image(&path, &named("nothing")).is_err());
    // A file of that name wins.
    std::fs::write(numbered(1), &content()[..5000]).unwrap();
    assert_eq!(open(&numbered(1), Access::ReadOnly).unwrap().size(), 5000);
}

#[test]
fn holes_of_qcow2_are_those_of_all_its_files() {
    let folder = folder();
    let (base, path) = (folder.path().join("base.qcow2"), folder.path().join("top.qcow2"));
    let write = |path: &Path, at: u64| {
        let device = open(path, Access::ReadWrite).unwrap();
        device.write_at(&[7; 4096], PhysicalAddress(at)).unwrap();
        device.flush().unwrap();
    };
    new_qcow2(&base, None);
    assert_eq!(open(&base, Access::ReadOnly).unwrap().next_data(PhysicalAddress(5)), None);
    write(&base, 1 << 20);
    new_qcow2(&path, Some(("base.qcow2", "qcow2")));
    write(&path, 4 << 20);
    let device = open(&path, Access::ReadWrite).unwrap();
    let next = |at: u64| device.next_data(PhysicalAddress(at)).map(PhysicalAddress::get);
    assert_eq!(next(0), Some(1 << 20));
    assert_eq!(next((1 << 20) + 9), Some((1 << 20) + 9));
    // A cluster has 64 KiB.
    assert_eq!(next((1 << 20) + (64 << 10)), Some(4 << 20));
    assert_eq!(next((4 << 20) + (64 << 10)), None);
    // Zeros above data are a hole.
    device.write_zeroes(PhysicalAddress(0), 2 << 20, false).unwrap();
    assert_eq!(next(0), Some(4 << 20));
}
