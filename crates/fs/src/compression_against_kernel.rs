//! Tests that the kernel decompresses our streams. They replace the streams in extents that the
//! kernel wrote, and the file is read through a mount that ignores data checksums.

use crate::file_system::FileSystem;
use crate::{CompressionChoice, OpenOptions, VerifyCompression};
use papilio_engine::data::compress;
use papilio_engine::data::extent_map::{DiskExtent, ExtentKind, FileExtents};
use papilio_engine::items::inode;
use papilio_format::items::file_extent::Compression;
use papilio_format::{FileOffset, InodeNumber, objectid};
use papilio_oracle::{FileSystemSpec, ImageSet, Need, Scratch, require};
use std::fs::OpenOptions as HostOptions;
use std::os::unix::fs::{FileExt, MetadataExt};

const EXTENT: usize = 128 << 10;
const SECTOR: u32 = 4096;

/// Returns text with one noise byte in `rare`, followed by noise only. It starts compressible
/// because the kernel's LZO gives up early otherwise.
fn data(seed: u64, noise: usize, rare: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..length)
        .map(|index| match next() {
            value if index + noise >= length || value.is_multiple_of(rare) => (value >> 32) as u8,
            _ => b"a kernel and its oracle "[(index + seed as usize) % 24],
        })
        .collect()
}

/// Returns data of the same length whose compressed form fills `sectors` sectors, and that form.
fn replacement(choice: CompressionChoice, seed: u64, length: usize, sectors: usize) -> (Vec<u8>, Vec<u8>) {
    let mut output = Vec::new();
    // More noise compresses worse: a binary search for its amount.
    let (mut low, mut high) = (0, length);
    while low < high {
        let noise = low + (high - low) / 2;
        // With less noise than the kernel's data, whose compressor may do better.
        let data = data(seed, noise, 60, length);
        let worth = compress(choice, &data, &mut output, SECTOR, VerifyCompression::Always);
        match (worth, output.len() / SECTOR as usize) {
            (true, found) if found == sectors => return (data, output),
            (true, found) if found < sectors => low = noise + 1,
            _ => high = noise,
        }
    }
    panic!("{choice}: {length} bytes never take {sectors} sectors");
}

fn extents(fs: &FileSystem, number: u64, size: u64) -> Vec<(FileOffset, DiskExtent)> {
    let subvolume = fs.info.trees.subvolume(objectid::FS_TREE).unwrap();
    let number = InodeNumber(number);
    assert_eq!(inode::inode(&subvolume.tree, number).unwrap().unwrap().size, size);
    FileExtents::new(&subvolume.tree, number, SECTOR, FileOffset(0), FileOffset(size))
        .map(|extent| {
            let extent = extent.unwrap();
            match extent.kind {
                ExtentKind::Regular(disk) => (extent.start, disk),
                other => panic!("{other:?}"),
            }
        })
        .collect()
}

/// Makes a file that the kernel compressed with `algorithm`; returns images, inode number and size.
fn written(scratch: &Scratch, algorithm: Compression) -> (ImageSet, u64, u64) {
    let spec = FileSystemSpec {
        mount_options: vec![format!("compress-force={algorithm}")],
        data_profile: Some("single".to_owned()),
        ..FileSystemSpec::default()
    };
    let images = spec.make(scratch).unwrap();
    let mounted = images.mount().unwrap();
    let path = mounted.path().join("file");
    let mut content = Vec::new();
    for seed in 0..30 {
        // Extents that compress to few sectors up to nearly all, and a short extent at the end.
        let length = if seed == 29 { 20_001 } else { EXTENT };
        content.extend(data(seed, seed as usize * length / 40, 11, length));
    }
    std::fs::write(&path, &content).unwrap();
    let metadata = std::fs::metadata(&path).unwrap();
    mounted.unmount().unwrap();
    (images, metadata.ino(), metadata.size())
}

fn check_algorithm(algorithm: Compression, levels: &[i32]) {
    let scratch = Scratch::new(256 << 20).unwrap();
    let (images, number, size) = written(&scratch, algorithm);
    let mut expected = vec![0; size as usize];
    let mut replaced = 0;
    {
        let fs = FileSystem::open_with(&images.paths()[0], &OpenOptions::new()).unwrap();
        let image = HostOptions::new().write(true).open(&images.paths()[0]).unwrap();
        for (index, (start, disk)) in extents(&fs, number, size).into_iter().enumerate() {
            if disk.compression != algorithm {
                assert_eq!(disk.compression, Compression::None, "the kernel gave up on this one");
                continue;
            }
            let length = (size - start.0).min(disk.ram_bytes) as usize;
            let choice = CompressionChoice::with_level(algorithm, levels[index % levels.len()]).unwrap();
            let sectors = (disk.disk_length / u64::from(SECTOR)) as usize;
            let (data, stream) = replacement(choice, 1000 + index as u64, length, sectors);
            let (_, place) = fs.info.volume().place_of(disk.disk_address, 0).unwrap();
            image.write_all_at(&stream, place.0).unwrap();
            expected[start.0 as usize..][..length].copy_from_slice(&data);
            replaced += 1;
        }
    }
    assert!(replaced >= 20, "{algorithm}: {replaced} extents were compressed");
    let mounted = images.mount_with(&["rescue=ignoredatacsums".to_owned()], true).unwrap();
    let read = std::fs::read(mounted.path().join("file")).unwrap();
    assert_eq!(read.len(), expected.len());
    for (number, (read, expected)) in read.chunks(EXTENT).zip(expected.chunks(EXTENT)).enumerate() {
        let left_alone = expected.iter().all(|&byte| byte == 0);
        assert!(left_alone || read == expected, "{algorithm}: extent {number}");
    }
}

#[test]
fn the_kernel_decompresses_every_algorithm() {
    let Some(_met) = require(Need::KERNEL_MOUNT) else { return };
    check_algorithm(Compression::Zlib, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    check_algorithm(Compression::Lzo, &[0]);
    check_algorithm(Compression::Zstd, &[-15, -7, -1, 1, 2, 3, 5, 8, 10, 12, 15]);
}
