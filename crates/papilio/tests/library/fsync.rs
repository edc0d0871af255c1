//! fsync by the log: the kernel's replay after a power loss restores all that was fsynced. Where a
//! log cannot hold a change, the fsync is a commit.

use crate::in_memory::{formatted_with, has_log, open_with, writable};
use papilio::format::items::file_extent::Compression;
use papilio::{
    CompressionChoice, File, FileSystem, InodeFlags, LogItems, MkfsFeature, MkfsOptions, OpenOptions, Tuning,
};
use papilio_device::MemoryDevice;
use papilio_oracle::{ImageSet, Need, Scratch, require};
use std::path::Path;
use std::sync::Arc;

/// A file system that is about to lose power.
struct Case {
    device: Arc<MemoryDevice>,
    fs: FileSystem,
}

impl Case {
    fn with(mkfs: &MkfsOptions, open: &OpenOptions) -> Self {
        let device = formatted_with(256 << 20, mkfs);
        let fs = open_with(&device, open);
        let case = Self { device, fs };
        // Makes the data chunk: a log cannot hold a new one.
        case.file("/first", &[1; 100_000]);
        case.fs.sync().unwrap();
        case
    }

    fn new() -> Self {
        Self::with(&MkfsOptions::new(), &writable())
    }

    fn file(&self, path: &str, content: &[u8]) -> File {
        let file = self.fs.create_file(path).unwrap();
        file.write_all_at(content, 0).unwrap();
        file
    }

    /// Whether the device has a log.
    fn has_log(&self) -> bool {
        has_log(&self.device)
    }

    /// Mounts a copy of the device with the kernel, which replays its log, and calls `judge`.
    fn after_power_loss(&self, judge: impl FnOnce(&Path)) {
        let scratch = Scratch::new(512 << 20).unwrap();
        let image = scratch.unique("image");
        self.device.snapshot().write_image(&image).unwrap();
        let images = ImageSet::open(&scratch, vec![image]);
        let mounted = images.mount().expect("the kernel mounts and replays");
        judge(mounted.path());
        mounted.unmount().unwrap();
        images.btrfs_check().expect("btrfs check");
    }
}

fn assert_content(root: &Path, name: &str, content: &[u8]) {
    let found = std::fs::read(root.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let differs = found.iter().zip(content).position(|(a, b)| a != b);
    assert!(
        found == content,
        "{name}: {} bytes instead of {}, the first difference at {differs:?}",
        found.len(),
        content.len()
    );
}

#[test]
fn fsynced_files_survive_power_loss_and_others_need_not() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    for how in [LogItems::Prepared, LogItems::InPlace] {
        let mut tuning = Tuning::default();
        tuning.log_items = how;
        let case = Case::with(&MkfsOptions::new(), &writable().tuning(tuning));
        let file = case.file("/new", b"some bytes");
        let other = case.file("/unsynced", b"lost");
        file.sync_all().unwrap();
        assert!(case.has_log(), "the fsync is a log, not a commit");
        // More fsyncs: of the same file, and of one that the last commit has.
        let old = case.fs.open_file("/first").unwrap();
        let mut model = vec![1; 100_000];
        for round in 0..20u8 {
            let at = usize::from(round) * 4999;
            old.write_all_at(&[round + 10; 5000], at as u64).unwrap();
            model[at..(at + 5000).min(100_000)].fill(round + 10);
            model.resize(model.len().max(at + 5000), round + 10);
            old.sync_all().unwrap();
        }
        file.write_all_at(&vec![7; 300_000], 5).unwrap();
        file.sync_all().unwrap();
        assert!(case.has_log());
        case.after_power_loss(|root| {
            let mut expected = b"some ".to_vec();
            expected.resize(300_005, 7);
            assert_content(root, "new", &expected);
            assert_content(root, "first", &model);
            assert!(!root.join("unsynced").exists());
        });
        drop((file, other, old));
        case.fs.sync().unwrap();
        assert!(!case.has_log(), "a commit ends the log");
        case.after_power_loss(|root| assert_content(root, "unsynced", b"lost"));
    }
}

#[test]
fn a_file_truncated_within_a_logged_extent_keeps_its_head() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let case = Case::new();
    let file = case.file("/cut", &[3; 22_056]);
    file.sync_all().unwrap();
    file.set_len(16_384).unwrap();
    file.write_all_at(&[4; 2139], 16_384).unwrap();
    file.sync_all().unwrap();
    assert!(case.has_log());
    let mut expected = vec![3; 16_384];
    expected.resize(16_384 + 2139, 4);
    case.after_power_loss(|root| assert_content(root, "cut", &expected));
}

#[test]
fn a_file_unlinked_after_its_fsync_comes_back_as_fsynced() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let case = Case::new();
    for name in ["/gone", "/again"] {
        case.file(name, b"of the last commit");
    }
    case.fs.sync().unwrap();
    for (name, byte) in [("/gone", 8), ("/again", 9)] {
        let file = case.fs.open_file(name).unwrap();
        file.write_all_at(&[byte; 50_000], 0).unwrap();
        file.sync_all().unwrap();
        drop(file);
        case.fs.remove_file(name).unwrap();
    }
    case.file("/again", b"another").sync_all().unwrap();
    assert!(case.has_log());
    case.after_power_loss(|root| {
        // No fsync logged the unlink.
        assert_content(root, "gone", &[8; 50_000]);
        assert_content(root, "again", b"another");
    });
}

#[test]
fn extents_that_a_file_refers_to_twice_are_logged() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let zlib = CompressionChoice::new(Compression::Zlib);
    let case = Case::with(&MkfsOptions::new(), &writable().compress(zlib));
    // A later write splits a compressed extent in two.
    let split = case.file("/split", &[3; 100_000]);
    split.write_all_at(&[4; 4096], 40_960).unwrap();
    split.sync_all().unwrap();
    // An extent that is cloned within its file.
    let twice = case.file("/twice", &[5; 65_536]);
    twice.clone_range(&twice, 0, 32_768, 131_072).unwrap();
    twice.sync_all().unwrap();
    assert!(case.has_log());
    let mut expected = vec![3; 100_000];
    expected[40_960..45_056].fill(4);
    let mut cloned = vec![5; 65_536];
    cloned.resize(131_072, 0);
    cloned.resize(131_072 + 32_768, 5);
    case.after_power_loss(|root| {
        assert_content(root, "split", &expected);
        assert_content(root, "twice", &cloned);
    });
}

#[test]
fn holes_truncation_and_preallocation_are_logged() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    for no_holes in [true, false] {
        let mkfs = MkfsOptions::new().feature(MkfsFeature::NoHoles, no_holes);
        let case = Case::with(&mkfs, &writable());
        let bytes: Vec<u8> = (0..1 << 20).map(|n: u32| (n / 5) as u8 | 1).collect();
        let names = ["punched", "shrunk", "grown", "reserved", "sparse", "regrown"];
        for name in names {
            case.file(&format!("/{name}"), &bytes);
        }
        case.fs.sync().unwrap();
        let open = |name: &str| case.fs.open_file(format!("/{name}")).unwrap();
        let files: Vec<File> = names.iter().map(|name| open(name)).collect();
        files[0].punch_hole(8192, 65536).unwrap();
        files[0].sync_all().unwrap();
        files[0].punch_hole(500_000, 1000).unwrap();
        files[0].sync_all().unwrap();
        files[1].set_len(12_345).unwrap();
        files[1].sync_all().unwrap();
        files[2].set_len(3 << 20).unwrap();
        files[2].write_all_at(b"end", (3 << 20) - 3).unwrap();
        files[2].sync_all().unwrap();
        files[3].allocate(2 << 20, 1 << 20, false).unwrap();
        files[3].sync_all().unwrap();
        files[4].write_all_at(b"far", 5_000_001).unwrap();
        files[4].sync_all().unwrap();
        files[5].write_all_at(&[9; 4096], 900_000).unwrap();
        files[5].sync_all().unwrap();
        files[5].set_len(4096).unwrap();
        files[5].set_len(800_000).unwrap();
        files[5].sync_all().unwrap();
        assert!(case.has_log(), "no_holes {no_holes}");
        case.after_power_loss(|root| {
            let mut punched = bytes.clone();
            punched[8192..8192 + 65536].fill(0);
            punched[500_000..501_000].fill(0);
            assert_content(root, "punched", &punched);
            assert_content(root, "shrunk", &bytes[..12_345]);
            let mut grown = bytes.clone();
            grown.resize((3 << 20) - 3, 0);
            grown.extend_from_slice(b"end");
            assert_content(root, "grown", &grown);
            let mut reserved = bytes.clone();
            reserved.resize(3 << 20, 0);
            assert_content(root, "reserved", &reserved);
            let mut sparse = bytes.clone();
            sparse.resize(5_000_001, 0);
            sparse.extend_from_slice(b"far");
            assert_content(root, "sparse", &sparse);
            let mut regrown = bytes[..4096].to_vec();
            regrown.resize(800_000, 0);
            assert_content(root, "regrown", &regrown);
        });
    }
}

#[test]
fn names_and_attributes_are_logged_also_after_renames() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let case = Case::new();
    let fs = &case.fs;
    fs.create_dir("/d").unwrap();
    fs.create_dir("/d/e").unwrap();
    let deep = case.file("/d/e/deep", b"deep");
    fs.set_xattr("/d/e/deep", b"user.a", b"1").unwrap();
    fs.set_permissions("/d/e/deep", 0o600).unwrap();
    deep.sync_all().unwrap();
    assert!(case.has_log());
    // A journal that is created and removed again and again, as databases do.
    for round in 0..5u8 {
        let journal = case.file("/journal", &[round; 20_000]);
        journal.sync_all().unwrap();
        deep.write_all_at(&[round; 10], 100).unwrap();
        deep.sync_all().unwrap();
        drop(journal);
        fs.remove_file("/journal").unwrap();
    }
    assert!(case.has_log(), "creating and removing files does not force a commit");
    deep.sync_all().unwrap();
    let linked = case.file("/one", b"two names");
    fs.hard_link("/one", "/d/two").unwrap();
    linked.sync_all().unwrap();
    case.after_power_loss(|root| {
        let mut expected = b"deep".to_vec();
        expected.resize(100, 0);
        expected.extend([4; 10]);
        assert_content(root, "d/e/deep", &expected);
        assert_eq!(xattr::get(root.join("d/e/deep"), "user.a").unwrap().unwrap(), b"1");
        assert!(!root.join("journal").exists());
        assert_content(root, "one", b"two names");
        assert_content(root, "d/two", b"two names");
    });
    // A new file takes the name of a renamed one: the log has both.
    fs.rename("/first", "/moved").unwrap();
    let again = case.file("/first", b"another");
    again.sync_all().unwrap();
    assert!(case.has_log());
    case.after_power_loss(|root| {
        assert_content(root, "first", b"another");
        assert_content(root, "moved", &[1; 100_000]);
    });
    // Written under another name, fsynced, and renamed over the old file: either content is whole.
    let temporary = case.file("/temporary", b"new content");
    temporary.sync_all().unwrap();
    assert!(case.has_log());
    fs.rename("/temporary", "/first").unwrap();
    case.after_power_loss(|root| {
        let content = std::fs::read(root.join("first")).unwrap();
        assert!(content == b"another" || content == b"new content", "{content:?}");
    });
    temporary.sync_all().unwrap();
    case.after_power_loss(|root| assert_content(root, "first", b"new content"));
}

#[test]
fn files_of_all_kinds_are_logged() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    use papilio::format::ChecksumType;
    for (checksum, compress) in [
        (ChecksumType::Crc32c, "zstd"),
        (ChecksumType::XxHash64, "lzo"),
        (ChecksumType::Sha256, "zlib"),
        (ChecksumType::Blake2b, "none"),
    ] {
        let case = Case::with(
            &MkfsOptions::new().checksum(checksum),
            &writable().compress(compress.parse().unwrap()).cache_bytes(8 << 20),
        );
        let fs = &case.fs;
        // A commit sets the feature bit of the compression, which a log cannot.
        case.file("/packed", &[5; 200_000]);
        fs.create_subvolume("/sub").unwrap();
        fs.sync().unwrap();
        let text: Vec<u8> = (0..300_000u32).flat_map(|n| (n / 1000).to_le_bytes()).collect();
        let files =
            [case.file("/text", &text), case.file("/sub/text", &text), case.file("/small", b"inline")];
        let in_place = fs.create_file("/in-place").unwrap();
        in_place.inode().set_flags(InodeFlags::NODATACOW).unwrap();
        let in_place = fs.open_file("/in-place").unwrap();
        in_place.allocate(0, 1 << 20, false).unwrap();
        in_place.write_all_at(&[3; 8192], 4096).unwrap();
        in_place.sync_all().unwrap();
        in_place.write_all_at(&[4; 8192], 65536).unwrap();
        in_place.sync_all().unwrap();
        let clone = fs.create_file("/clone").unwrap();
        clone.clone_range(&files[0], 0, 0, 0).unwrap();
        for file in &files {
            file.sync_all().unwrap();
        }
        clone.sync_all().unwrap();
        assert!(case.has_log(), "{checksum:?}");
        case.after_power_loss(|root| {
            assert_content(root, "text", &text);
            assert_content(root, "sub/text", &text);
            assert_content(root, "clone", &text);
            assert_content(root, "small", b"inline");
            let mut model = vec![0; 1 << 20];
            model[4096..4096 + 8192].fill(3);
            model[65536..65536 + 8192].fill(4);
            assert_content(root, "in-place", &model);
        });
    }
}

#[test]
fn many_threads_share_log_commits() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let case = Case::with(&MkfsOptions::new(), &writable().cache_bytes(16 << 20));
    let files: Vec<File> = (0..8).map(|n| case.file(&format!("/file{n}"), &[n; 1 << 20])).collect();
    case.fs.sync().unwrap();
    std::thread::scope(|scope| {
        for (number, file) in files.iter().enumerate() {
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(number as u64);
                for round in 0..40u8 {
                    file.write_all_at(&[round; 4096], random.u64(0..256) * 4096).unwrap();
                    file.sync_all().unwrap();
                }
            });
        }
    });
    let expected: Vec<Vec<u8>> = files.iter().map(|file| file.read_all().unwrap()).collect();
    case.after_power_loss(|root| {
        for (number, content) in expected.iter().enumerate() {
            assert_content(root, &format!("file{number}"), content);
        }
    });
}
