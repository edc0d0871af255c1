//! fs-verity: files of a kernel are verified, files of ours have the digests that the kernel gave
//! to the same content, and an interrupted construction leaves nothing behind.
//!
//! The image in `tests/fixtures` was made by a kernel 7.2 with fs-verity. `EXPECTED` has the
//! digests and the contents' SHA-256 that it printed.

use crate::in_memory;
use crate::in_memory::{
    assert_clean, close_clean, crashed, has_log, new_file_system, open, open_last_commit, open_read_only,
    superblock,
};
use papilio::format::features::CompatRoFeatures;
use papilio::format::{Generation, Key, objectid};
use papilio::{
    Error, ErrorKind, FileSystem, FsverityAlgorithm, FsverityMetadata, FsverityOptions, InodeFlags, ItemType,
    NewInode, NewKind, OpenOptions, PathError,
};
use papilio_device::{Device, MemoryDevice, PhysicalAddress};
use std::sync::Arc;

const CARRIED: &[u8] = include_bytes!("../../../../tests/fixtures/verity-files.img.zst");

/// A file's path, its algorithm, block size and salt, and its digest.
type Expected = (&'static str, FsverityAlgorithm, u32, &'static [u8], &'static str);

const EXPECTED: [Expected; 9] = [
    (
        "/two-levels",
        FsverityAlgorithm::Sha256,
        4096,
        b"",
        "650886e7ae4c2a93649a84f88eb8b04a4dc70616de0d8a2386941fecfe417618",
    ),
    (
        "/short",
        FsverityAlgorithm::Sha256,
        4096,
        b"",
        "ad89e9f7c832617a17ac5306cee9018cf9c81eef37a9f37ed3d1302a0bd0542b",
    ),
    (
        "/empty",
        FsverityAlgorithm::Sha256,
        4096,
        b"",
        "3d248ca542a24fc62d1c43b916eae5016878e2533c88238480b26128a1f1af95",
    ),
    (
        "/one-block",
        FsverityAlgorithm::Sha256,
        4096,
        b"",
        "a2a808ddaced77f0b6b3068f47b14b5a1fb3fc43674993ab11b8e7e6f2d089e2",
    ),
    (
        "/block-and-byte",
        FsverityAlgorithm::Sha256,
        4096,
        b"",
        "c6d5cc0703d262023822da09bfdf7bf3f2cc8d084bcac090bf6e9089a8d0e49f",
    ),
    (
        "/small-blocks",
        FsverityAlgorithm::Sha256,
        1024,
        b"\x0a\x0b\x0c",
        "b6eb543d81e0ffc6a3655aa77b0bcd00dff31846c3adf5e4203f896f9167455b",
    ),
    (
        "/sha512",
        FsverityAlgorithm::Sha512,
        4096,
        b"\x01\x02",
        "337381f463834fdc67e23a2adca17d8697b28743c6cc075aa62b5aa83f9dc0db\
         9c7b3f47d1e39dd37e2d3e2d65c454a28b77b6aaaf91967ecd9864040a7c348b",
    ),
    (
        "/sparse",
        FsverityAlgorithm::Sha256,
        4096,
        b"",
        "f116cf0421019cb2b75f29b1c0b584062e25c62f14c4e286fd5b70faf92e2293",
    ),
    (
        "/d/nodatasum",
        FsverityAlgorithm::Sha256,
        4096,
        b"",
        "38eca8a1eab8ef91e3f0439bd50e2595201fda5e551bf981b5bfc520c4b68a6b",
    ),
];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn carried() -> Arc<MemoryDevice> {
    let bytes = zstd::stream::decode_all(CARRIED).unwrap();
    let device = MemoryDevice::new(bytes.len() as u64);
    for (number, part) in bytes.chunks(1 << 20).enumerate() {
        if part.iter().any(|byte| *byte != 0) {
            device.write_at(part, PhysicalAddress((number as u64) << 20)).unwrap();
        }
    }
    Arc::new(device)
}

/// The keys of the top level's items in a range.
fn keys(fs: &FileSystem, range: std::ops::RangeInclusive<Key>) -> Vec<Key> {
    let mut found = Vec::new();
    fs.search_tree(objectid::FS_TREE, range, Generation(0), &mut |_, key, _| {
        found.push(key);
        true
    })
    .unwrap();
    found
}

/// The keys of the descriptor and the Merkle tree of an inode.
fn verity_keys(fs: &FileSystem, inode: u64) -> Vec<Key> {
    let first = Key::new(inode, ItemType::VERITY_DESC_ITEM, 0);
    keys(fs, first..=Key::new(inode, ItemType::VERITY_MERKLE_ITEM, u64::MAX))
}

fn is_orphan(fs: &FileSystem, inode: u64) -> bool {
    let key = Key::new(objectid::ORPHAN, ItemType::ORPHAN_ITEM, inode);
    !keys(fs, key..=key).is_empty()
}

#[test]
fn files_of_a_kernel_are_verified_and_measured() {
    let device = carried();
    assert_clean(&device);
    for options in [OpenOptions::new(), in_memory::writable(), in_memory::writable().cache_bytes(32 << 20)] {
        let fs = in_memory::open_with(&device, &options);
        for (path, algorithm, block_size, salt, digest) in EXPECTED {
            for path in [path.to_owned(), format!("/snap{path}")] {
                let file = fs.open_file(&path).unwrap();
                let info = file.verity().unwrap().expect("a file with fs-verity");
                assert_eq!((info.algorithm, info.block_size), (algorithm, block_size), "{path}");
                assert_eq!((&info.salt[..], hex(&info.digest)), (salt, digest.to_owned()), "{path}");
                let content = fs.read(&path).unwrap();
                // Any part reads as in the whole.
                let mut random = fastrand::Rng::with_seed(7);
                for _ in 0..40 {
                    let offset = random.usize(..=content.len() + 10);
                    let mut buffer = vec![1; random.usize(..200_000)];
                    let read = file.read_at(&mut buffer, offset as u64).unwrap();
                    let rest = content.get(offset..).unwrap_or_default();
                    assert!(buffer[..read] == rest[..rest.len().min(buffer.len())], "{path} at {offset}");
                }
            }
        }
        let plain = fs.open_file("/plain").unwrap();
        assert_eq!(plain.verity().unwrap(), None);
        assert_eq!(plain.read_verity(FsverityMetadata::Descriptor, 0, &mut [0; 9]).unwrap(), None);
        fs.close().unwrap();
    }
}

/// Trees that the kernel made are made anew from the content: the same digests, and the same bytes.
#[test]
fn trees_of_ours_are_those_of_the_kernel() {
    let kernel = open_read_only(&carried());
    let (device, fs) = new_file_system(256 << 20);
    for (path, algorithm, block_size, salt, digest) in EXPECTED {
        let name = format!("/{}", path.rsplit('/').next().unwrap());
        let content = kernel.read(path).unwrap();
        fs.write(&name, &content).unwrap();
        let file = fs.open_file(&name).unwrap();
        let options = FsverityOptions::new().algorithm(algorithm).block_size(block_size).salt(salt);
        let mut reached = 0;
        file.enable_verity(&options, |at| {
            reached = at;
            true
        })
        .unwrap();
        assert_eq!(reached, content.len() as u64);
        let info = file.verity().unwrap().expect("a file with fs-verity");
        assert_eq!(hex(&info.digest), digest, "{name}");
        assert!(fs.read(&name).unwrap() == content, "{name}");
        let number = file.inode().number();
        assert!(!is_orphan(&fs, number.0));
        for kind in [FsverityMetadata::MerkleTree, FsverityMetadata::Descriptor] {
            let read = |file: &papilio::File| {
                let mut bytes = vec![0; 200_000];
                let read = file.read_verity(kind, 0, &mut bytes).unwrap().unwrap();
                bytes.truncate(read);
                bytes
            };
            let theirs = read(&kernel.open_file(path).unwrap());
            assert!(read(&file) == theirs, "{name}: {kind:?}");
            assert!(kind != FsverityMetadata::Descriptor || theirs.len() == 256);
        }
        assert_eq!(file.read_verity(FsverityMetadata::Signature, 0, &mut [0; 9]).unwrap(), None);
    }
    // It was durable at once, without a log.
    let later = crashed(&device);
    assert!(superblock(&later).raw.compat_ro_flags.contains(CompatRoFeatures::VERITY) && !has_log(&later));
    let fs_later = open_last_commit(&later);
    for (path, .., digest) in EXPECTED {
        let name = format!("/{}", path.rsplit('/').next().unwrap());
        let info = fs_later.open_file(&name).unwrap().verity().unwrap().unwrap();
        assert_eq!(hex(&info.digest), digest, "{name}");
        assert!(fs_later.read(&name).unwrap() == kernel.read(path).unwrap());
    }
    close_clean(fs, &device);
}

#[test]
fn data_of_such_a_file_never_changes() {
    let (device, fs) = new_file_system(256 << 20);
    let content: Vec<u8> = (0..100_000u32).map(|number| (number / 3) as u8).collect();
    fs.write("/file", &content).unwrap();
    let file = fs.open_file("/file").unwrap();
    let signature = vec![7; 500];
    let options = FsverityOptions::new().signature(&*signature);
    file.enable_verity(&options, |_| true).unwrap();
    assert_eq!(file.verity().unwrap().unwrap().signature, signature);
    let kind = |result: papilio::Result<()>| result.unwrap_err().kind();
    let refused = ErrorKind::Path(PathError::NotPermitted);
    assert_eq!(kind(file.write_all_at(b"x", 10)), refused);
    assert_eq!(kind(file.write_all_at(b"x", 100_000)), refused);
    assert_eq!(kind(file.set_len(5)), refused);
    assert_eq!(kind(file.punch_hole(0, 4096)), refused);
    assert_eq!(kind(file.allocate(0, 200_000, false)), refused);
    assert_eq!(kind(file.enable_verity(&options, |_| true)), ErrorKind::Path(PathError::Exists));
    // Its name, attributes and copies are free.
    fs.set_xattr("/file", b"user.a", b"b").unwrap();
    fs.rename("/file", "/other").unwrap();
    fs.create_file("/copy").unwrap().clone_range(&file, 0, 0, 0).unwrap();
    fs.write("/copy", "changed").unwrap();
    fs.inode("/other").unwrap().sync_all().unwrap();
    let later = open_read_only(&crashed(&device));
    assert!(later.read("/other").unwrap() == content);
    assert!(fs.read("/other").unwrap() == content);
    drop(file);
    fs.remove_file("/other").unwrap();
    close_clean(fs, &device);
}

#[test]
fn wrong_options_and_files_are_refused() {
    let (device, fs) = new_file_system(256 << 20);
    fs.write("/file", "bytes").unwrap();
    let file = fs.open_file("/file").unwrap();
    for options in [
        FsverityOptions::new().block_size(512),
        FsverityOptions::new().block_size(8192),
        FsverityOptions::new().block_size(3000),
        FsverityOptions::new().salt(vec![0; 33]),
        FsverityOptions::new().signature(vec![0; 16129]),
    ] {
        let error = file.enable_verity(&options, |_| true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    for flag in [InodeFlags::IMMUTABLE, InodeFlags::APPEND] {
        fs.inode("/file").unwrap().set_flags(flag).unwrap();
        let error = file.enable_verity(&FsverityOptions::new(), |_| true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Path(PathError::NotPermitted));
        fs.inode("/file").unwrap().set_flags(InodeFlags::empty()).unwrap();
    }
    fs.create_subvolume("/sub").unwrap();
    fs.write("/sub/file", "bytes").unwrap();
    fs.set_subvolume_read_only("/sub", true).unwrap();
    let error =
        fs.open_file("/sub/file").unwrap().enable_verity(&FsverityOptions::new(), |_| true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Path(PathError::ReadOnly));
    drop(file);
    close_clean(fs, &device);
}

/// Content that takes several changes to store its tree. No two of its blocks are equal.
fn large() -> Vec<u8> {
    let byte =
        |at: u32| if at % 4096 < 4 { (at >> 12).to_le_bytes()[at as usize % 4] } else { (at >> 4) as u8 };
    (0..12 << 20).map(byte).collect()
}

#[test]
fn a_file_that_changes_meanwhile_stays_without() {
    for buffered in [false, true] {
        let (device, fs) = new_file_system(256 << 20);
        fs.close().unwrap();
        let cache = if buffered { 64 << 20 } else { 0 };
        let fs = in_memory::open_with(&device, &in_memory::writable().cache_bytes(cache));
        fs.write("/file", large()).unwrap();
        let file = fs.open_file("/file").unwrap();
        let writer = fs.open_file("/file").unwrap();
        let error = file
            .enable_verity(&FsverityOptions::new(), |at| {
                if at == 3 << 20 {
                    // A second caller is refused, too.
                    let second = writer.enable_verity(&FsverityOptions::new(), |_| true).unwrap_err();
                    assert_eq!(second.kind(), ErrorKind::Path(PathError::Busy));
                    writer.write_all_at(b"changed", 5).unwrap();
                }
                true
            })
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Path(PathError::Busy), "{error}");
        let number = file.inode().number().0;
        assert_eq!(
            (file.verity().unwrap(), verity_keys(&fs, number), is_orphan(&fs, number)),
            (None, vec![], false)
        );
        assert_eq!(&fs.read("/file").unwrap()[5..12], b"changed");
        // Stopped by the caller: as before.
        let error = file.enable_verity(&FsverityOptions::new(), |at| at < 2 << 20).unwrap_err();
        assert!(error.to_string().contains("stopped"), "{error}");
        assert_eq!((verity_keys(&fs, number), is_orphan(&fs, number)), (vec![], false));
        file.write_all_at(b"again", 0).unwrap();
        file.enable_verity(&FsverityOptions::new(), |_| true).unwrap();
        drop((file, writer));
        close_clean(fs, &device);
        assert!(open_read_only(&device).read("/file").unwrap().starts_with(b"again"));
    }
}

#[test]
fn a_crash_leaves_the_file_without_or_with_all_of_it() {
    let (device, fs) = new_file_system(256 << 20);
    fs.write("/file", large()).unwrap();
    fs.sync().unwrap();
    let file = fs.open_file("/file").unwrap();
    let number = file.inode().number().0;
    let mut begun = None;
    file.enable_verity(&FsverityOptions::new(), |at| {
        // A commit and an fsync with half of the tree.
        if at == 10 << 20 {
            fs.set_xattr("/file", b"user.a", b"b").unwrap();
            fs.sync().unwrap();
            fs.inode("/file").unwrap().sync_all().unwrap();
            begun = Some(crashed(&device));
        }
        true
    })
    .unwrap();
    let begun = begun.unwrap();
    assert_clean(&begun);
    let read_only = open_last_commit(&begun);
    assert!(is_orphan(&read_only, number) && !verity_keys(&read_only, number).is_empty());
    drop(read_only);
    // The first change in the subvolume clears the rest away.
    let later = open(&begun);
    later.write("/new", "bytes").unwrap();
    assert!(!is_orphan(&later, number));
    assert_eq!(
        (later.open_file("/file").unwrap().verity().unwrap(), verity_keys(&later, number)),
        (None, vec![])
    );
    assert!(later.read("/file").unwrap() == large());
    later.open_file("/file").unwrap().enable_verity(&FsverityOptions::new(), |_| true).unwrap();
    assert!(later.read("/file").unwrap() == large());
    close_clean(later, &begun);
    drop(file);
    close_clean(fs, &device);
}

#[test]
fn data_that_its_checksums_cannot_betray_is_found() {
    let (device, fs) = new_file_system(256 << 20);
    // Without checksums, so that only the Merkle tree knows.
    let new = NewInode::new(NewKind::Regular, 0o644);
    let inode = fs.create("/file", &new).unwrap();
    inode.set_flags(InodeFlags::NODATACOW).unwrap();
    let content = large();
    let file = inode.open().unwrap();
    file.write_all_at(&content, 0).unwrap();
    file.sync_all().unwrap();
    file.enable_verity(&FsverityOptions::new(), |_| true).unwrap();
    drop((file, inode));
    close_clean(fs, &device);
    // One byte of the third mebibyte changes on the device.
    let mark = &content[(2 << 20) + 4096..][..4096];
    let mut block = vec![0; 4096];
    let place = (0..device.size()).step_by(4096).map(PhysicalAddress).find(|place| {
        device.read_at(&mut block, *place).unwrap();
        block == mark
    });
    let place = place.expect("the block on the device");
    device.write_at(&[block[9] ^ 1], PhysicalAddress(place.0 + 9)).unwrap();
    let changed = large().chunks(4096).position(|block| block == mark).unwrap() as u64 * 4096;
    for options in [OpenOptions::new(), in_memory::writable(), in_memory::writable().cache_bytes(64 << 20)] {
        let fs = in_memory::open_with(&device, &options);
        let file = fs.open_file("/file").unwrap();
        let error = file.read_at(&mut [0; 10], changed + 100).unwrap_err();
        assert!(matches!(&error, Error::Verity { place, .. } if place.offset.0 == changed), "{error}");
        assert_eq!(error.kind(), ErrorKind::Io);
        let mut before = vec![0; changed as usize];
        file.read_exact_at(&mut before, 0).unwrap();
        assert!(before == content[..changed as usize]);
        file.read_exact_at(&mut [0; 4096], changed + 4096).unwrap();
        fs.close().unwrap();
    }
    // A reader that asks for no verification gets the bytes.
    let fs = in_memory::open_with(&device, &OpenOptions::new().verify_data(false));
    fs.open_file("/file").unwrap().read_exact_at(&mut [0; 10], changed + 100).unwrap();
}
