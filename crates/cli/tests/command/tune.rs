//! `papilio tune`: the kernel mounts the result, `btrfs check` finds no fault, and btrfstune can
//! undo what it did.

use crate::common::{assert_clean, fail, papilio, succeed, succeed_text, text};
use papilio_oracle::{ImageSet, Need, Scratch, require};
use std::path::{Path, PathBuf};
use std::process::Command;

// Tests run at once, and the kernel gives a second device of the same UUID another one.
const FIRST: &str = "11111111-2222-4333-8444-555555555555";
const SECOND: &str = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee";
const THIRD: &str = "33333333-2222-4333-8444-555555555555";
const FOURTH: &str = "44444444-bbbb-4ccc-8ddd-eeeeeeeeeeee";
const FIFTH: &str = "55555555-bbbb-4ccc-8ddd-eeeeeeeeeeee";

/// Makes a file system of `devices` images with files on it.
fn images(folder: &Path, devices: usize) -> Vec<PathBuf> {
    let images: Vec<_> = (0..devices).map(|number| folder.join(format!("image{number}"))).collect();
    let source = folder.join("source");
    std::fs::create_dir(&source).unwrap();
    for number in 0..300u32 {
        std::fs::write(source.join(format!("f{number}")), number.to_le_bytes().repeat(900)).unwrap();
    }
    for image in &images {
        std::fs::File::create(image).unwrap().set_len(300 << 20).unwrap();
    }
    let mut arguments = vec!["mkfs".into(), "--rootdir".into(), source.into_os_string()];
    arguments.extend(images.iter().map(|image| image.clone().into_os_string()));
    succeed(arguments);
    images
}

/// Runs `papilio tune` on the images.
fn tune(options: &[&str], images: &[PathBuf]) -> String {
    let options = ["tune"].iter().chain(options).map(|option| option.as_ref());
    succeed_text(options.chain(images.iter().map(|image| image.as_os_str())))
}

/// Mounts the images with the kernel, checks a file and the UUID, and writes.
fn assert_kernel_takes(images: &[PathBuf], uuid: &str) {
    if require(&[Need::Root, Need::Loop, Need::KernelBtrfs, Need::Command("btrfs")]).is_none() {
        return;
    }
    let scratch = Scratch::new(0).unwrap();
    let set = ImageSet::open(&scratch, images.to_vec());
    set.btrfs_check().unwrap();
    let mounted = set.mount().unwrap();
    for number in 0..300u32 {
        let read = std::fs::read(mounted.path().join(format!("f{number}"))).unwrap();
        assert!(read == number.to_le_bytes().repeat(900), "file {number}");
    }
    let known = std::fs::read_dir("/sys/fs/btrfs").unwrap().any(|entry| entry.unwrap().file_name() == uuid);
    assert!(known, "the kernel does not know {uuid}");
    std::fs::write(mounted.path().join("new"), uuid).unwrap();
    mounted.unmount().unwrap();
    set.btrfs_check().unwrap();
}

#[test]
fn the_kernel_takes_every_uuid() {
    for devices in [1, 2] {
        let folder = tempfile::tempdir().unwrap();
        let images = images(folder.path(), devices);
        assert!(tune(&["-U", FIRST], &images).contains(FIRST));
        assert_kernel_takes(&images, FIRST);
        tune(&["-M", SECOND], &images);
        assert_kernel_takes(&images, SECOND);
        let mut arguments = vec!["tune".as_ref(), "-u".as_ref()];
        arguments.extend(images.iter().map(|image| image.as_os_str()));
        fail(1, FIRST, arguments);
        tune(&["-M", FIRST], &images);
        assert_kernel_takes(&images, FIRST);
        let random = tune(&["-u"], &images);
        let uuid =
            random.lines().find_map(|line| line.strip_prefix("UUID ")).unwrap().split(',').next().unwrap();
        assert_kernel_takes(&images, uuid);
    }
}

#[test]
fn btrfstune_and_papilio_follow_one_another() {
    if require(&[Need::Command("btrfstune")]).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let images = images(folder.path(), 1);
    let btrfstune = |options: &[&str]| {
        let output = Command::new("btrfstune").args(options).arg(&images[0]).output().unwrap();
        assert!(output.status.success(), "{options:?}: {}", text(&output.stderr));
    };
    btrfstune(&["-f", "-U", THIRD]);
    tune(&["-U", FOURTH], &images);
    btrfstune(&["-f", "-M", THIRD]);
    tune(&["-M", FOURTH], &images);
    btrfstune(&["-f", "-U", THIRD]);
    assert_kernel_takes(&images, THIRD);
    tune(&["-S", "1"], &images);
    btrfstune(&["-f", "-S", "0"]);
    assert_clean(&images[0]);
}

#[test]
fn features_and_the_seed_flag() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(300 << 20).unwrap();
    let path = image.to_str().unwrap();
    succeed(["mkfs", path]);
    for option in ["-r", "-x", "-n"] {
        succeed(["tune", option, path]);
    }
    let dump = succeed_text(["inspect", "dump-super", path]);
    for feature in ["EXTENDED_IREF", "SKINNY_METADATA", "NO_HOLES"] {
        assert!(dump.contains(feature), "{feature}: {dump}");
    }
    succeed(["tune", "-S", "1", path]);
    fail(1, "seed", ["tune", "-u", path]);
    fail(2, "--force", ["tune", "-S", "0", path]);
    succeed(["tune", "-S", "0", "-f", path]);
    assert_clean(&image);
}

#[test]
fn wrong_usage_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let images = images(folder.path(), 2);
    let before = std::fs::read(&images[0]).unwrap();
    let path = images[0].to_str().unwrap();
    fail(1, "give all of them", ["tune", "-u", path]);
    for wrong in [
        &["tune", path][..],
        &["tune", "-u", "-m", path],
        &["tune", "-U", "x", path],
        &["tune", "-S", "2", path],
    ] {
        assert_eq!(papilio(wrong).status.code(), Some(2), "{wrong:?}");
    }
    let source = folder.path().join("source/f1");
    fail(1, "f1", ["tune", "-u", source.to_str().unwrap()]);
    assert!(std::fs::read(&images[0]).unwrap() == before);
}

#[test]
fn the_kernel_takes_conversions_and_checksums() {
    let folder = tempfile::tempdir().unwrap();
    let images = images(folder.path(), 1);
    tune(&["-U", FIFTH], &images);
    for option in [
        "--convert-from-block-group-tree",
        "--convert-from-free-space-tree",
        "--convert-to-free-space-tree",
        "--convert-to-block-group-tree",
        "--csum=xxhash",
    ] {
        let shown = tune(&[option], &images);
        assert_eq!(shown.contains("xxhash64 checksums, "), option.starts_with("--csum"), "{shown}");
        assert_kernel_takes(&images, FIFTH);
    }
    let image = images[0].to_str().unwrap();
    fail(1, "already has xxhash64", ["tune", "--csum", "xxhash64", image]);
    fail(1, "already has a block-group tree", ["tune", "--convert-to-block-group-tree", image]);
}

#[test]
fn a_file_system_with_a_metadata_uuid_becomes_no_seed() {
    let folder = tempfile::tempdir().unwrap();
    let [image] = &images(folder.path(), 1)[..] else { panic!("one image was asked for") };
    succeed(["tune", "-m", "-f", image.to_str().unwrap()]);
    fail(
        1,
        "the kernel mounts no seed with a metadata UUID",
        ["tune", "-S", "1", "-f", image.to_str().unwrap()],
    );
    assert_clean(image);
}

#[test]
fn simple_quotas_leave_nothing_in_the_extent_tree() {
    let folder = tempfile::tempdir().unwrap();
    let images = images(folder.path(), 1);
    let image = images[0].to_str().unwrap();
    let owners =
        || succeed_text(["inspect", "dump-tree", "-t", "extent", image]).matches("extent owner root").count();
    fail(1, "has no simple quotas", ["tune", "--remove-simple-quota", image]);
    tune(&["--enable-simple-quota"], &images);
    fail(1, "already has simple quotas", ["tune", "--enable-simple-quota", image]);
    let source = folder.path().join("source");
    succeed(["cp", "-r", source.to_str().unwrap(), &format!("{image}:/copy")]);
    assert!(owners() > 0);
    // btrfs-progs 6.2 refuse simple quotas.
    succeed(["check", image]);
    tune(&["--remove-simple-quota"], &images);
    assert_eq!(owners(), 0);
    assert_clean(&images[0]);
}
