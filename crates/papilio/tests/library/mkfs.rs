//! New file systems of Papilio: `btrfs check` has no complaint about them, the kernel mounts and
//! writes them, and Papilio reads what the kernel wrote. Their chunks are where `mkfs.btrfs` puts
//! them.

use crate::images::{assert_clean_for_both, btrfs};
use papilio::format::items::chunk::RaidProfile;
use papilio::format::{ChecksumType, Uuid};
use papilio::{FileSystem, MkfsFeature, MkfsOptions, OpenOptions, Timespec};
use papilio_oracle::requirement::find_command;
use papilio_oracle::{ImageSet, Need, Scratch, require};
use std::path::Path;
use std::process::Command;

const MIB: u64 = 1 << 20;
const NEEDS: &[Need] = &[Need::Root, Need::Loop, Need::KernelBtrfs, Need::Command("btrfs")];

/// Options of a file system to test.
struct Case {
    name: &'static str,
    size: u64,
    options: MkfsOptions,
}

fn case(name: &'static str, size: u64, options: MkfsOptions) -> Case {
    Case { name, size, options }
}

fn features(list: &str) -> MkfsOptions {
    MkfsOptions::new().feature_list(list).unwrap()
}

fn profiles(data: RaidProfile, metadata: RaidProfile) -> MkfsOptions {
    MkfsOptions::new().data_profile(data).metadata_profile(metadata)
}

fn cases() -> Vec<Case> {
    use RaidProfile::{Dup, Single};
    let new = MkfsOptions::new;
    vec![
        case("default", 512 * MIB, new().label("papilio")),
        case("smallest", 109 * MIB, new()),
        case("smallest single", 45 * MIB, profiles(Single, Single)),
        case("smallest mixed", 16 * MIB, features("mixed-bg")),
        case("mixed", 300 * MIB, features("mixed-bg")),
        case("mixed dup", 157 * MIB, features("mixed-bg").metadata_profile(Dup)),
        case("all dup", 256 * MIB, profiles(Dup, Dup)),
        case("data dup", 256 * MIB, profiles(Dup, Single)),
        case("large", 300 << 30, new()),
        case("node 4K", 256 * MIB, new().node_size(4096)),
        case("node 8K", 256 * MIB, new().node_size(8192).checksum(ChecksumType::Sha256)),
        case("node 32K", 256 * MIB, new().node_size(32768).checksum(ChecksumType::XxHash64)),
        case("node 64K", 256 * MIB, new().node_size(65536).checksum(ChecksumType::Blake2b)),
        case("no free-space tree", 256 * MIB, features("^free-space-tree")),
        case("no holes off", 256 * MIB, features("^no-holes")),
        case("no block-group tree", 256 * MIB, features("^block-group-tree")),
        case("no block-group tree 4K", 256 * MIB, features("^bgt").node_size(4096)),
        case("not skinny", 256 * MIB, features("^skinny-metadata,^extref")),
        case("metadata uuid", 256 * MIB, new().metadata_uuid(Uuid::from_u128(0x1234))),
    ]
}

/// Asserts that Papilio's check and `btrfs check` have no findings.
fn assert_case_clean(case: &Case, images: &ImageSet, when: &str) {
    let when = format!("{} {when}", case.name);
    let output = assert_clean_for_both(images, &when);
    for word in ["warning", "WARNING", "ERROR", "invalid", "will be rebuilt"] {
        assert!(!output.contains(word), "{when}: {output}");
    }
}

/// Content for the kernel to write, too large for an inline extent.
fn content() -> Vec<u8> {
    (0..300_000u32).flat_map(|number| (number % 65_521).to_le_bytes()).collect()
}

#[test]
fn the_kernel_reads_and_writes_every_case() {
    let Some(_met) = require(NEEDS) else { return };
    let scratch = Scratch::new(512 * MIB).unwrap();
    for case in cases() {
        let image = scratch.unique("image");
        let made = papilio::mkfs(&image, &case.options.clone().size(case.size)).unwrap();
        let images = ImageSet::open(&scratch, vec![image.clone()]);
        assert_case_clean(&case, &images, "when made");

        let mounted = images.mount().unwrap_or_else(|error| panic!("{}: {error:#}", case.name));
        let folder = mounted.path().join("folder");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("file"), content()).unwrap();
        std::fs::write(folder.join("small"), "small").unwrap();
        mounted.unmount().unwrap();
        assert_case_clean(&case, &images, "after the kernel wrote");

        let fs = FileSystem::open(&image).unwrap();
        assert_eq!((fs.uuid(), &fs.label()[..]), (made.fsid, &made.label[..]), "{}", case.name);
        assert!(fs.read("/folder/file").unwrap() == content(), "{}", case.name);
        assert_eq!(fs.read("/folder/small").unwrap(), b"small", "{}", case.name);
        drop(fs);

        // The next mount shows the same content.
        let mounted = images.mount_read_only().unwrap();
        assert!(std::fs::read(mounted.path().join("folder/file")).unwrap() == content(), "{}", case.name);
        drop(mounted);
        std::fs::remove_file(&image).unwrap();
    }
}

/// Returns the lines of `btrfs inspect-internal dump-tree` about chunks and device extents, without
/// UUIDs and without the alignment, which `mkfs.btrfs` sets differently for its first chunk.
fn chunks_and_extents(image: &Path) -> Vec<String> {
    let dump = |tree: &str| {
        let text = btrfs(&["inspect-internal", "dump-tree", "-t", tree, image.to_str().unwrap()]);
        let wanted = ["CHUNK_ITEM", "DEV_EXTENT", "length ", "stripe ", "total_bytes "];
        let is_wanted = |line: &&str| wanted.iter().any(|word| line.contains(word));
        let without_place = |line: &str| match line.split_once("key (") {
            Some((_, key)) => key.split(" itemoff").next().unwrap().to_owned(),
            None => line.trim().to_owned(),
        };
        text.lines().filter(is_wanted).map(without_place).collect::<Vec<_>>()
    };
    [dump("chunk"), dump("dev")].concat()
}

#[test]
fn chunks_are_where_mkfs_btrfs_puts_them() {
    let needs = [Need::Command("mkfs.btrfs"), Need::Command("btrfs")];
    let Some(_met) = require(&needs) else { return };
    let scratch = Scratch::new(64 * MIB).unwrap();
    use RaidProfile::{Dup, Single};
    for size in [109 * MIB, 230 * MIB, 1 << 30, (3 << 30) + 4096 * 77, 60 << 30] {
        for (data, metadata, mixed) in [
            (Single, Dup, false),
            (Single, Single, false),
            (Dup, Dup, false),
            (Dup, Single, false),
            (Single, Single, true),
            (Dup, Dup, true),
        ] {
            let options = profiles(data, metadata).feature(MkfsFeature::MixedGroups, mixed).size(size);
            let ours = scratch.unique("ours");
            match papilio::mkfs(&ours, &options) {
                Err(papilio::Error::TooSmall { minimum, .. }) => {
                    assert!(minimum > size);
                    continue;
                }
                made => drop(made.unwrap()),
            }
            let theirs = scratch.image("theirs", size).unwrap();
            let mut command = Command::new(find_command("mkfs.btrfs").unwrap());
            command.args([
                "-q",
                "-K",
                "-d",
                &data.name().to_lowercase(),
                "-m",
                &metadata.name().to_lowercase(),
            ]);
            if mixed {
                command.arg("-M");
            }
            let output = command.arg(&theirs).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let what = format!("{size} {data} {metadata} mixed {mixed}");
            assert_eq!(chunks_and_extents(&ours), chunks_and_extents(&theirs), "{what}");
            std::fs::remove_file(ours).unwrap();
            std::fs::remove_file(theirs).unwrap();
        }
    }
}

#[test]
fn equal_options_make_equal_images() {
    let folder = tempfile::tempdir().unwrap();
    let options = MkfsOptions::new()
        .size(120 * MIB)
        .fsid(Uuid::from_u128(0xabcd))
        .timestamp(Timespec { seconds: 1_600_000_000, nanoseconds: 0 });
    let make = |name: &str| {
        let image = folder.path().join(name);
        papilio::mkfs(&image, &options).unwrap();
        std::fs::read(image).unwrap()
    };
    assert!(make("one") == make("two"));
}

#[test]
fn nothing_takes_an_unfinished_file_system_for_one() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let options = MkfsOptions::new().size(128 * MIB).unfinished(true);
    papilio::mkfs(&image, &options).unwrap();
    let open = OpenOptions::new().write(true).unfinished(true);
    let fs = FileSystem::open_with(&image, &open).unwrap();
    fs.write("/file", b"content").unwrap();
    fs.close().unwrap();
    let error = FileSystem::open(&image).unwrap_err().to_string();
    assert!(error.contains("was not finished"), "{error}");
    if require(NEEDS).is_some() {
        let scratch = Scratch::new(0).unwrap();
        let images = ImageSet::open(&scratch, vec![image.clone()]);
        assert!(images.btrfs_check().is_err());
        assert!(images.mount_read_only().is_err(), "the kernel mounts it");
    }
    let fs = FileSystem::open_with(&image, &open).unwrap();
    fs.finish_making().unwrap();
    fs.close().unwrap();
    assert_eq!(FileSystem::open(&image).unwrap().read("/file").unwrap(), b"content");
}
