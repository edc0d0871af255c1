//! Tests of reading data that the kernel wrote: content, holes and extent maps, and the repair or
//! report of flipped bytes.

use crate::file_system::FileSystem;
use crate::{Error, OpenOptions};
use papilio_engine::data::extent_map::{DiskExtent, ExtentKind, FileExtents};
use papilio_engine::data::*;
use papilio_engine::items::inode;
use papilio_format::items::file_extent::Compression;
use papilio_format::items::inode::InodeFlags;
use papilio_format::{FileOffset, InodeNumber, objectid};
use papilio_oracle::source::{FiemapExtent as KernelExtent, Segment};
use papilio_oracle::{FileSystemSpec, HostTree, ImageSet, Need, Scratch, Source, TreeSpec, require};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A file as the kernel shows it.
struct KernelFile {
    path: PathBuf,
    number: u64,
    content: Vec<u8>,
    /// The content; `None` for a large file, of which only the segments are compared.
    size: u64,
    segments: Vec<Segment>,
    extents: Vec<KernelExtent>,
}

/// Limit in bytes of files whose content is compared.
const WHOLE: u64 = 64 << 20;

fn kernel_files(root: &Path) -> Vec<KernelFile> {
    let host = HostTree::new(root);
    let device = std::fs::metadata(root).unwrap().dev();
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let metadata = std::fs::symlink_metadata(&path).unwrap();
            if metadata.dev() != device {
                continue;
            }
            if metadata.is_dir() {
                folders.push(path);
            } else if metadata.is_file() {
                let relative = path.strip_prefix(root).unwrap();
                let content =
                    if metadata.len() <= WHOLE { std::fs::read(&path).unwrap() } else { Vec::new() };
                found.push(KernelFile {
                    number: metadata.ino(),
                    size: metadata.len(),
                    segments: host.segments(relative).unwrap().unwrap(),
                    extents: host.extents(relative).unwrap().unwrap(),
                    path,
                    content,
                });
            }
        }
    }
    found
}

/// An open file system with the trees of its top level.
struct Opened {
    fs: FileSystem,
    context: ReadContext,
}

impl Opened {
    fn new(images: &ImageSet) -> Self {
        let mut options = OpenOptions::new();
        for path in &images.paths()[1..] {
            options = options.device(path);
        }
        let fs = FileSystem::open_with(&images.paths()[0], &options).unwrap();
        let trees = &fs.info.trees;
        let sums = trees.find(objectid::CSUM_TREE).unwrap().map(|open| open.tree.clone());
        let context = ReadContext::new(fs.info.volume().clone(), sums, true);
        Self { fs, context }
    }

    fn with<T>(&self, number: u64, then: impl FnOnce(&FileData<'_>) -> T) -> T {
        let subvolume = self.fs.info.trees.subvolume(objectid::FS_TREE).unwrap();
        let number = InodeNumber(number);
        let item = inode::inode(&subvolume.tree, number).unwrap().unwrap();
        then(&FileData {
            tree: (&subvolume.tree).into(),
            inode: number,
            flags: item.flags,
            size: item.size,
            written: None,
            extent_cache: None,
            ordered: None,
        })
    }

    fn sector_size(&self) -> u32 {
        self.fs.info.volume().geometry().sector_size
    }
}

/// A small generator for offsets and lengths.
fn random(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

fn compare_content(opened: &Opened, kernel: &KernelFile) {
    opened.with(kernel.number, |file| {
        assert_eq!(file.size, kernel.size, "{}", kernel.path.display());
        if kernel.content.is_empty() {
            return;
        }
        let mut buffer = vec![0xa5; kernel.content.len() + 100];
        let read = opened.context.read(file, FileOffset(0), &mut buffer).unwrap();
        assert_eq!(read, kernel.content.len(), "{}", kernel.path.display());
        assert!(buffer[..read] == kernel.content, "{}: whole", kernel.path.display());
        assert!(buffer[read..].iter().all(|&byte| byte == 0xa5), "written behind the end");
        let mut state = kernel.number;
        for _ in 0..12 {
            let offset = random(&mut state, kernel.size + 1);
            let longest = [1, 100, 5000, 70_000, 600_000][random(&mut state, 5) as usize];
            let wanted = 1 + random(&mut state, longest) as usize;
            let read =
                opened.context.read(file, FileOffset(offset), &mut buffer[..wanted.min(read)]).unwrap();
            let expected = &kernel.content[offset as usize..][..read];
            assert!(read == wanted.min(kernel.content.len()).min((kernel.size - offset) as usize));
            assert!(&buffer[..read] == expected, "{}: {read} at {offset}", kernel.path.display());
        }
    });
}

fn compare_segments(opened: &Opened, kernel: &KernelFile) {
    opened.with(kernel.number, |file| {
        let seek = |from, whence| {
            seek(file.tree.get(), file.inode, file.size, opened.sector_size(), FileOffset(from), whence)
                .unwrap()
        };
        let (mut found, mut at) = (Vec::new(), 0);
        while let Some(start) = seek(at, Whence::Data) {
            let end = seek(start.0, Whence::Hole).expect("the end is a hole").0;
            assert_eq!(seek(start.0, Whence::Data), Some(start));
            found.push(Segment { start: start.0, end });
            at = end;
        }
        assert_eq!(found, kernel.segments, "{}", kernel.path.display());
        assert_eq!(seek(file.size, Whence::Hole), None);
    });
}

/// Extents as (start, address, length, flags). Without SHARED, adjacent extents merge.
fn normalised(extents: impl Iterator<Item = FiemapExtent>) -> Vec<FiemapExtent> {
    let mut all: Vec<FiemapExtent> = Vec::new();
    for mut extent in extents {
        extent.flags &= !FiemapExtent::SHARED;
        match all.last_mut() {
            Some(last)
                if last.start.0 + last.length == extent.start.0
                    && last.address.0 + last.length == extent.address.0
                    && last.flags == extent.flags & !FiemapExtent::LAST =>
            {
                last.length += extent.length;
                last.flags = extent.flags;
            }
            _ => all.push(extent),
        }
    }
    all
}

fn compare_extents(opened: &Opened, kernel: &KernelFile) {
    opened.with(kernel.number, |file| {
        let mut found = Vec::new();
        let report = |extent| {
            found.push(extent);
            true
        };
        fiemap(file.tree.get(), file.inode, opened.sector_size(), FileOffset(0), |_| Ok(false), report)
            .unwrap();
        let expected = kernel.extents.iter().map(|extent| FiemapExtent {
            start: FileOffset(extent.logical),
            address: extent.physical.into(),
            length: extent.length,
            flags: extent.flags,
        });
        let (found, expected) = (normalised(found.into_iter()), normalised(expected));
        let differ = found.iter().zip(&expected).position(|(a, b)| a != b);
        if let Some(at) =
            differ.or((found.len() != expected.len()).then_some(found.len().min(expected.len())))
        {
            let (found, expected) = (found.get(at), expected.get(at));
            panic!("{}: extent {at}: {found:?} instead of {expected:?}", kernel.path.display());
        }
    });
}

fn same_as_the_kernel(spec: FileSystemSpec) {
    let Some(_met) = require(Need::KERNEL_MOUNT) else { return };
    let scratch = Scratch::new(spec.device_size * spec.devices as u64).unwrap();
    let images = spec.make(&scratch).unwrap();
    let mounted = images.mount().unwrap();
    let tree = TreeSpec { files: 50, bytes: 2 << 20, seed: 11, subvolumes: false };
    tree.populate(mounted.path()).unwrap();
    mounted.unmount().unwrap();
    let mounted = images.mount_read_only().unwrap();
    let files = kernel_files(mounted.path());
    drop(mounted);
    assert!(files.len() > 100 && files.iter().any(|file| file.extents.len() > 10));
    let opened = Opened::new(&images);
    for file in &files {
        compare_content(&opened, file);
        compare_segments(&opened, file);
        compare_extents(&opened, file);
    }
}

fn spec(csum: &str, options: &[&str]) -> FileSystemSpec {
    FileSystemSpec {
        csum: Some(csum.to_owned()),
        mount_options: options.iter().map(|&option| option.to_owned()).collect(),
        ..FileSystemSpec::default()
    }
}

#[test]
fn plain_files_read_as_in_the_kernel() {
    same_as_the_kernel(spec("crc32c", &[]));
}

#[test]
fn files_without_no_holes_read_as_in_the_kernel() {
    same_as_the_kernel(FileSystemSpec {
        features: vec!["^no-holes".to_owned()],
        nodesize: Some(4096),
        ..spec("crc32c", &["max_inline=0"])
    });
}

#[test]
fn zlib_files_read_as_in_the_kernel() {
    same_as_the_kernel(spec("xxhash", &["compress-force=zlib"]));
}

#[test]
fn lzo_files_read_as_in_the_kernel() {
    same_as_the_kernel(spec("sha256", &["compress-force=lzo"]));
}

#[test]
fn zstd_files_read_as_in_the_kernel() {
    same_as_the_kernel(spec("blake2", &["compress-force=zstd"]));
}

#[test]
fn striped_files_read_as_in_the_kernel() {
    same_as_the_kernel(FileSystemSpec {
        devices: 2,
        data_profile: Some("raid0".to_owned()),
        metadata_profile: Some("raid1".to_owned()),
        ..spec("crc32c", &["compress=zstd"])
    });
}

/// Makes a mirrored file system with one file of `content`, and returns the inode number too.
fn mirrored(scratch: &Scratch, options: &[&str], content: &[u8]) -> (ImageSet, u64) {
    let spec = FileSystemSpec {
        devices: 2,
        data_profile: Some("raid1".to_owned()),
        metadata_profile: Some("raid1".to_owned()),
        ..spec("crc32c", options)
    };
    let images = spec.make(scratch).unwrap();
    let mounted = images.mount().unwrap();
    let path = mounted.path().join("file");
    std::fs::write(&path, content).unwrap();
    let number = std::fs::metadata(&path).unwrap().ino();
    mounted.unmount().unwrap();
    (images, number)
}

/// Returns the address and length on disk of a file's first regular extent.
fn first_extent(opened: &Opened, number: u64) -> DiskExtent {
    opened.with(number, |file| {
        let end = FileOffset(file.size);
        FileExtents::new(file.tree.get(), file.inode, opened.sector_size(), FileOffset(0), end)
            .find_map(|extent| match extent.unwrap().kind {
                ExtentKind::Regular(disk) => Some(disk),
                _ => None,
            })
            .expect("a regular extent")
    })
}

/// Flips a bit of the byte at `logical` in the given copies.
fn flip(opened: &Opened, images: &ImageSet, logical: u64, copies: &[usize]) {
    for &copy in copies {
        let (device, place) = opened.fs.info.volume().place_of(logical.into(), copy).unwrap();
        let path = images.paths().iter().find(|path| device.contains(&*path.to_string_lossy())).unwrap();
        let image = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        let mut byte = [0];
        image.read_exact_at(&mut byte, place.0).unwrap();
        image.write_all_at(&[byte[0] ^ 0x10], place.0).unwrap();
    }
}

fn text(length: usize) -> Vec<u8> {
    (0..length).map(|index| b"lorem ipsum dolor sit amet "[index % 27] ^ (index >> 12) as u8).collect()
}

#[test]
fn flipped_bytes_are_read_from_the_other_copy_or_reported() {
    let Some(_met) = require(Need::KERNEL_MOUNT) else { return };
    for options in [&[][..], &["compress-force=zstd"], &["compress-force=lzo"]] {
        let scratch = Scratch::new(1 << 30).unwrap();
        let content = text(300_000);
        let (images, number) = mirrored(&scratch, options, &content);
        let opened = Opened::new(&images);
        let disk = first_extent(&opened, number);
        let read = |opened: &Opened, offset: u64, length: usize| {
            let mut buffer = vec![0; length];
            opened.with(number, |file| opened.context.read(file, FileOffset(offset), &mut buffer))?;
            Ok::<_, Error>(buffer)
        };
        // Breaks one copy of each of two sectors, so that the result does not depend on which copy
        // is read first. A compressed extent has one sector only.
        let second = if disk.disk_length > 4096 { 4096 } else { 0 };
        flip(&opened, &images, disk.disk_address.0 + 17, &[0]);
        assert!(read(&Opened::new(&images), 0, 300_000).unwrap() == content, "{options:?}: copy 0");
        if second > 0 {
            flip(&opened, &images, disk.disk_address.0 + second + 99, &[1]);
        }
        assert!(read(&Opened::new(&images), 0, 300_000).unwrap() == content, "{options:?}: both");
        assert!(read(&Opened::new(&images), 10, 5000).unwrap() == content[10..5010]);
        // Breaks the other copy of the first sector too.
        flip(&opened, &images, disk.disk_address.0 + 17, &[1]);
        let error = read(&Opened::new(&images), 1, 5).unwrap_err();
        let Error::DataChecksum { place, logical, copies } = &error else { panic!("{error}") };
        assert!(place.offset <= FileOffset(1), "{error}");
        assert_eq!((*logical, *copies), (disk.disk_address, 2), "{error}");
        if disk.compression == Compression::None {
            assert!(read(&Opened::new(&images), 8192, 4096).unwrap() == content[8192..12288]);
        }
    }
}

#[test]
fn data_with_missing_checksums_is_reported() {
    let Some(_met) = require(Need::KERNEL_MOUNT) else { return };
    let scratch = Scratch::new(1 << 30).unwrap();
    let (images, number) = mirrored(&scratch, &["nodatasum"], &text(100_000));
    let opened = Opened::new(&images);
    let mut buffer = vec![0; 100_000];
    opened.with(number, |file| {
        assert!(file.flags.contains(InodeFlags::NODATASUM));
        opened.context.read(file, FileOffset(0), &mut buffer).unwrap();
        assert!(buffer == text(100_000));
        // Clears NODATASUM in memory: the reader must miss the checksums.
        let lying = FileData { flags: InodeFlags::empty(), ..*file };
        let error = opened.context.read(&lying, FileOffset(5000), &mut buffer[..10]).unwrap_err();
        let Error::MissingChecksum { place, .. } = &error else { panic!("{error}") };
        assert_eq!(place.offset, FileOffset(4096));
    });
}
