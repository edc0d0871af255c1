//! The space that images take, and which file a bad sector belongs to.

use crate::common::{papilio, succeed, text};
use papilio_oracle::{ImageSet, Need, Scratch, require};
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

fn string(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns bytes that no compression makes smaller.
fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend((state ^ (state >> 29)).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

#[test]
fn a_shrunk_file_system_depends_on_its_content_alone() {
    let at = tempfile::tempdir().unwrap();
    let tree = at.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for number in 0..60 {
        fs::write(tree.join(number.to_string()), noise(2 << 20, number)).unwrap();
    }
    let made = |size: Option<&str>| {
        let image = at.path().join("image");
        let _ = fs::remove_file(&image);
        let sized = size.map(|size| vec!["--size", size]).unwrap_or_default();
        let arguments =
            [&["mkfs", "-q", "--shrink", "--rootdir", string(&tree)][..], &sized, &[string(&image)]];
        succeed(arguments.concat());
        succeed(["check", "--check-data-csum", string(&image)]);
        let length = fs::metadata(&image).unwrap().len();
        (length, image)
    };
    let (least, image) = made(None);
    let used: u64 = (120 << 20) + (1 << 20);
    assert!(least < used * 11 / 10, "{least} for {used}");
    for size in ["300M", "1G", "16G", "1T"] {
        assert_eq!(made(Some(size)).0, least, "{size}");
    }
    // The kernel reads and changes it.
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(300 << 20).unwrap();
    // Nothing is free in it until it grows, and files can be removed at any time.
    let images = ImageSet::open(&scratch, vec![image.clone()]);
    let mounted = images.mount().unwrap();
    assert!(fs::read(mounted.path().join("7")).unwrap() == noise(2 << 20, 7));
    fs::remove_file(mounted.path().join("9")).unwrap();
    mounted.unmount().unwrap();
    drop(images);
    fs::File::options().write(true).open(&image).unwrap().set_len(400 << 20).unwrap();
    let images = ImageSet::open(&scratch, vec![image]);
    let mounted = images.mount().unwrap();
    succeed(["filesystem", "resize", "max", string(mounted.path())]);
    fs::write(mounted.path().join("small"), "of the kernel").unwrap();
    mounted.unmount().unwrap();
    images.btrfs_check().unwrap();
}

#[test]
fn trim_gives_space_of_images_back() {
    let at = tempfile::tempdir().unwrap();
    let big = at.path().join("big");
    fs::write(&big, noise(96 << 20, 3)).unwrap();
    let mut images = vec![at.path().join("raw")];
    succeed(["mkfs", "-q", "-b", "400M", string(&images[0])]);
    if require(&[Need::Command("qemu-img")]).is_some() {
        let image = at.path().join("disk.qcow2");
        let made =
            Command::new("qemu-img").args(["create", "-q", "-f", "qcow2", string(&image), "400M"]).status();
        assert!(made.unwrap().success());
        succeed(["mkfs", "-q", string(&image)]);
        images.push(image);
    }
    for image in images {
        let inside = |path: &str| format!("{}:{path}", image.display());
        let taken = || fs::metadata(&image).unwrap().blocks() * 512;
        succeed(["cp", string(&big), &inside("/big")]);
        succeed(["cp", "/proc/self/mountinfo", &inside("/kept")]);
        let kept = succeed(["cat", &inside("/kept")]);
        assert!(taken() > 96 << 20);
        succeed(["rm", &inside("/big")]);
        let said = text(&succeed(["trim", string(&image)]));
        assert!(said.contains("discarded"), "{said}");
        assert!(taken() < 8 << 20, "{}: {}", image.display(), taken());
        assert!(succeed(["cat", &inside("/kept")]) == kept);
        succeed(["check", "--check-data-csum", string(&image)]);
        if image.extension().is_some() {
            let checked = Command::new("qemu-img").args(["check", "-q", string(&image)]).status();
            assert!(checked.unwrap().success());
        }
    }
}

#[test]
fn the_file_of_a_bad_sector_is_named() {
    let at = tempfile::tempdir().unwrap();
    let image = at.path().join("image");
    let source = at.path().join("source");
    let bytes = noise(3 << 20, 9);
    fs::write(&source, &bytes).unwrap();
    succeed(["mkfs", "-q", "-b", "256M", string(&image)]);
    let inside = |path: &str| format!("{}:{path}", image.display());
    succeed(["subvolume", "create", &inside("/sub")]);
    succeed(["cp", string(&source), &inside("/sub/file of mine")]);
    let content = fs::read(&image).unwrap();
    let sector = &bytes[8192..12_288];
    let place = content.chunks_exact(4096).position(|found| found == sector).unwrap() as u64 * 4096;
    fs::File::options().write(true).open(&image).unwrap().write_all_at(b"damage", place).unwrap();
    let checked = papilio(["check", "--check-data-csum", string(&image)]);
    assert_eq!(checked.status.code(), Some(1));
    let shown = text(&checked.stdout);
    assert!(shown.contains("file /sub/file of mine, offset 8192\n"), "{shown}");
    // All other sectors were read.
    assert!(shown.contains(&format!("{} bytes of data read", bytes.len())), "{shown}");
    let scrubbed = papilio(["scrub", "start", "-B", string(&image)]);
    assert_eq!(scrubbed.status.code(), Some(3));
    let shown = text(&scrubbed.stdout);
    assert!(shown.contains("files: /sub/file of mine\n"), "{shown}");
}
